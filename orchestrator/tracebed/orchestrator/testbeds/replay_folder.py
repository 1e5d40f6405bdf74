"""The folder of a replay on this machine, which all providers of its nodes use.

It contains the logs of the agents, the names of the groups that the replay has brought up, and the files of jobs that
nodes send.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Protocol

from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds.nodes import Group, Node

MADE = "made"  # file with the names of the groups that the replay has brought up


class ReplayProvider(Protocol):
    """The attributes of a provider that `note_making` uses."""

    group: Group
    folder: Path
    made: bool


def note_making(provider: ReplayProvider) -> None:
    """Set `made` of a provider, and record in the folder of the replay that the replay brings up the group.

    Providers call this function before they make anything. A replay that is killed afterwards and resumed then takes
    the nodes down.
    """
    provider.made = True
    note_made(provider.folder, provider.group)


def note_made(folder: Path, group: Group) -> None:
    """Record in the folder of a replay that the replay has brought up a group."""
    if group.name not in groups_made(folder):
        with (folder / MADE).open("a", encoding="utf-8") as file:
            file.write(f"{group.name}\n")


def groups_made(folder: Path) -> set[str]:
    """Return the names of the groups that the replay has brought up, also before it was resumed."""
    file = folder / MADE
    return set(file.read_text(encoding="utf-8").splitlines()) if file.exists() else set()


def agent_log(folder: Path, node: Node) -> Path:
    """Return the file for the standard error of the agent of a node, in a folder that only the user can read."""
    logs = folder / "agents"
    logs.mkdir(mode=0o700, exist_ok=True)
    return logs / f"{node.name}.log"


def append_to(log: Path) -> BinaryIO:
    """Open a log to append to it. A new log is readable only by the user."""
    return open(log, "ab", opener=partial(os.open, mode=0o600))


def name_on_nodes(folder: Path) -> str:
    """Return the name of the folder on nodes for the files of the replay with the folder `folder` on this machine."""
    return f"replay-{hashlib.sha256(bytes(folder.absolute())).hexdigest()[:12]}"


def unpack(stream: IO[bytes], node: str, target: Path) -> None:
    """Write the files of jobs in a tar archive from a node to the folder `target`, and ignore everything else in it.

    Only regular files `job-ID/NODE.*` are written, so a node cannot replace other files here. The archive, also a
    compressed one, is read once, from its beginning; a damaged one is a TestbedError.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as archive:
            for member in archive:
                parts = PurePosixPath(member.name).parts
                content = archive.extractfile(member) if member.isreg() else None
                if content is None or len(parts) != 2 or not parts[0].startswith("job-"):
                    continue
                if not parts[1].startswith(f"{node}."):
                    continue
                folder = target / parts[0]
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with open(folder / parts[1], "wb", opener=partial(os.open, mode=0o600)) as file:
                    while data := content.read(2**16):
                        file.write(data)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise TestbedError(f"sent a damaged archive of the files of jobs: {error}", where=f"node {node}") from error
