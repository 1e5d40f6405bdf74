"""Atomic files and folders: written beside their place, and moved there only when complete."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from tracebed.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends well; compressed if the
    name ends in `.gz` or `.zst`.

    Until then, and for good if the block fails, what stood at `path` stays as it was. The same content gives
    the same bytes (no time stamp in the gzip header).

    Raises:
        InputError: the folder is missing or cannot be written, or the disk is full.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError("is a folder, not a file", where=str(path), hint="name a file in it")
    if not target.parent.is_dir():
        raise InputError("its folder does not exist", where=str(path), hint=f"mkdir -p {path.parent}")
    special = target.exists() and not target.is_file()  # /dev/stdout and the like must not be replaced
    part = target if special else target.with_name(f".{target.name[:40]}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as zipped:
                    yield cast(BinaryIO, zipped)
            elif path.suffix == ".zst":
                import pyarrow as pa

                with pa.CompressedOutputStream(pa.PythonFile(file), "zstd") as zipped:
                    yield cast(BinaryIO, zipped)
            else:
                yield file
        if not special:
            part.replace(target)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}", where=str(path), hint="write elsewhere"
        ) from error
    finally:
        if not special:
            part.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path, ours: str) -> Iterator[Path]:
    """Make a folder that takes the place of `path` when the block ends well.

    Args:
        path: where it shall be.
        ours: the file that an earlier folder of the same kind holds; only such a folder is replaced.

    Raises:
        InputError: `path` is something else, or cannot be written.
    """
    if path.exists() and not (path.is_dir() and (not any(path.iterdir()) or (path / ours).is_file())):
        what = "exists, and is not what would be written there"
        raise InputError(what, where=str(path), hint="name another folder with -o")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), hint="name another folder") from error
    try:
        scratch.chmod(0o755)
        yield scratch
        earlier = scratch.with_name(f"{scratch.name}.earlier")
        if path.exists():
            path.replace(earlier)
        scratch.replace(path)
        shutil.rmtree(earlier, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}", where=str(path), hint="free space, or name another with -o"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
