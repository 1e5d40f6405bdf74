"""Install the oldest version of each dependency that pyproject.toml allows, for `tox -e floors`."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def floors() -> list[str]:
    """Return the dependencies of an installation without extras, each with its floor as its only version."""
    return [each.replace(">=", "==") for each in tomllib.loads(PROJECT.read_text())["project"]["dependencies"]]


if __name__ == "__main__":
    subprocess.run([sys.executable, "-m", "pip", "install", *floors()], check=True)
