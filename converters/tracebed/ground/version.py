"""The installed tracebed: its version, and its own extensions.

An agent needs both at its start. `importlib.metadata` would take 25 ms for that, and more where many packages are
installed, so the folder of the metadata is looked up here. Only if it is missing is `importlib.metadata` used.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

PREFIX, SUFFIX = "tracebed-", ".dist-info"


@cache
def version() -> str:
    """Return the version that is installed."""
    if folder := _metadata():
        return folder.name.removeprefix(PREFIX).removesuffix(SUFFIX)
    import importlib.metadata

    return importlib.metadata.version("tracebed")


@cache
def own_entry_points() -> dict[str, dict[str, str]]:
    """Return the entry points of tracebed itself: group -> name -> `module:object`. Empty if they are unknown."""
    entries: dict[str, dict[str, str]] = {}
    group, folder = "", _metadata()
    for line in (folder / "entry_points.txt").read_text(encoding="utf-8").splitlines() if folder else ():
        name, equals, value = (part.strip() for part in line.partition("="))
        if line.startswith("["):
            group = line.strip().strip("[]")
        elif equals:
            entries.setdefault(group, {})[name] = value
    return entries


@cache
def others_installed(group: str) -> bool:
    """Return whether another package has entry points of a group. It takes 1.4 ms; `importlib.metadata` takes 30 ms."""
    header = f"[{group}]".encode()
    for folder in filter(os.path.isdir, sys.path):
        for name in os.listdir(folder):  # noqa: PTH208 - pathlib takes three times as long
            if name.endswith(SUFFIX) and not name.startswith(PREFIX):
                with suppress(OSError), Path(folder, name, "entry_points.txt").open("rb") as file:
                    if header in file.read():
                        return True
    return False


@cache
def _metadata() -> Path | None:
    """Return the folder of the metadata: the first one in the search path, as for `importlib.metadata`."""
    folders = (path for folder in sys.path for path in Path(folder).glob(f"{PREFIX}*{SUFFIX}"))
    return next(folders, None)
