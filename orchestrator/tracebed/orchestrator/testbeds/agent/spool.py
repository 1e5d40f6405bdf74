"""The folders of an agent: its private folder for sockets, and the spool of the testbed for the files of jobs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from pathlib import Path

from tracebed.benchmarks.node_table import FOLDER
from tracebed.ground.errors import InputError, TestbedError

PREFIX = "tracebed-agent-"
LONGEST_PATH = 70
"""Longest path for temporary files that leaves room for the names of sockets, whose paths have at most 107 bytes."""


def private_folder() -> tuple[Path, int]:
    """Create a folder that only this user can enter. Return it, and its descriptor with a lock of this process."""
    parent = tempfile.gettempdir()
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent if len(os.fsencode(parent)) < LONGEST_PATH else "/tmp")
        with contextlib.suppress(FileNotFoundError):  # removed by another agent before it was locked
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if Path(folder).exists():
                return Path(folder), descriptor
            os.close(descriptor)


def table_path(folder: Path) -> Path:
    """Return the path of the table of the CPUs of the agent with this private folder."""
    return FOLDER / f"{folder.name}.cpus"


def remove_tables(folder: Path) -> None:
    """Remove the tables of the CPUs of the agent with this private folder."""
    path = table_path(folder)
    for table in path.parent.glob(f"{path.name}*"):
        table.unlink(missing_ok=True)


def remove_leftovers(parent: Path) -> None:
    """Remove the private folders in `parent`, and the tables of CPUs, of this user's agents that were killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # for example, the folder of another user, or of a running agent
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tables(folder)
                for path in folder.iterdir():
                    path.unlink()
                folder.rmdir()
            finally:
                os.close(descriptor)


def make_spool(spool: Path) -> None:
    """Create the spool if it does not exist. A spool that another user owns or can write to is a TestbedError."""
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = spool.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise TestbedError(
            f"the spool {spool} is not a folder that only its own user can write to",
            hint="remove it, or set another folder",
        )


def plain_name(name: str) -> str:
    """Return a node name. Raises InputError if it is not a plain file name, since files are named after nodes."""
    if not name or name in (".", "..") or "/" in name or len(name.encode()) > 200:
        raise InputError(f"node name {name[:200]!r} is not a plain file name of at most 200 bytes")
    return name
