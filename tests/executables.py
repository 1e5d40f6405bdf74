"""Programs that stand for others on the path of a test."""

from __future__ import annotations

from pathlib import Path


def write_program(path: Path, text: str) -> Path:
    """Write an executable file, and the folder in which it is. Return its path."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path
