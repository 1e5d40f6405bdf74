"""The files of jobs that a node sends as a tar archive."""

from __future__ import annotations

import os
import tarfile
import zlib
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from tracebed.ground.errors import TestbedError


def unpack(stream: IO[bytes], node: str, target: Path) -> None:
    """Write the files of jobs in a tar archive from a node to the folder `target`, and ignore everything else in it.

    Only regular files `job-ID/NODE.*` are written, so a node cannot replace other files here.

    Args:
        stream: the archive, also a compressed one. It is read once, from its beginning.
        node: name of the node.
        target: folder that is created if it does not exist.

    Raises:
        OSError: the stream cannot be read, or a file cannot be written.
        TestbedError: the archive is damaged.
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
