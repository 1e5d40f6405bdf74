"""Make the pictures of docs/how-to/pictures.md again, by the commands of the page.

python -m tests.recorders.gallery
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/pictures.md"
FOLDER = PAGE.parent / "gallery"


def shown() -> list[str]:
    """Return the names of the pictures in the page."""
    return re.findall(r"\]\(gallery/([\w.-]+)\)", PAGE.read_text(encoding="utf-8"))


def made(name: str, folder: Path) -> Path:
    """Return the picture that the commands made in `folder`: FILE, or DIRECTORY-FILE in this directory."""
    first, _, rest = name.partition("-")
    found = [*folder.rglob(name), *folder.glob(f"{first}/{rest}")]
    assert len(found) == 1, (name, found)
    return found[0]


def main() -> int:
    """Run the commands in an empty folder, and copy the pictures."""
    from tests.documented import blocks, run_all

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run_all(list(blocks(PAGE.read_text(encoding="utf-8"))), Path(folder))
        for name in shown():
            shutil.copyfile(made(name, Path(folder)), FOLDER / name)
    sys.stdout.write(f"{len(shown())} pictures, {sum(p.stat().st_size for p in FOLDER.iterdir()):,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
