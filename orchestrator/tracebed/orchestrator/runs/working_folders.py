"""The working folders of replays beside their output, and the locks that mark running replays.

`replay/folder.py` creates and locks the folders.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tracebed.ground.errors import InputError
from tracebed.ground.files import is_locked
from tracebed.ground.input_files import read_json

MARKER = "tracebed-replay.json"
MAGIC = "tracebed-replay/1"


def check_idle(output: Path, own: Path | None = None) -> None:
    """Raise InputError if a replay to `output` is running, other than the one with the working folder `own`."""
    for folder in working_folders(output):
        if folder != own and is_running(folder):
            hint = "choose another folder with -o, or wait until the replay ends"
            raise InputError("another replay is writing to it", where=str(output), hint=hint)


def working_folders(output: Path) -> list[Path]:
    """Return the working folders of replays to `output`, the newest last."""
    output = Path(os.path.realpath(output))
    found, beside = [], list[str]()
    with contextlib.suppress(OSError), os.scandir(output.parent) as entries:
        beside = [entry.name for entry in entries if entry.name.startswith(f"{output.name}.partial-")]
    for path in map(output.parent.joinpath, beside):
        if output_of(path) == output:
            with contextlib.suppress(FileNotFoundError):  # the replay has ended since
                found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def output_of(folder: Path) -> Path | None:
    """Return the output of the working folder `folder`, or None if `folder` is not a working folder."""
    try:
        if folder.is_symlink():
            return None
        marker = read_json(folder / MARKER, "marker of a replay")
        if marker["schema"] != MAGIC:
            return None
        return Path(os.path.realpath(folder)).with_name(marker["output"])
    except (InputError, OSError, ValueError, TypeError, KeyError):
        return None


def is_running(folder: Path) -> bool:
    """Return whether the replay of the working folder `folder` is still running. It is not if the folder is gone."""
    return is_locked(folder / MARKER)
