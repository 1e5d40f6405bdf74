"""Atomic files and folders: written beside their place, and moved there only when complete."""

from __future__ import annotations

import gzip
import hashlib
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from tracebed.errors import InputError


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of the content of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    part = target if special else target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}.part")
    try:
        with part.open("wb" if special else "xb") as file:  # x: a link or a file of that name is not written to
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


def check_folder(path: Path, ours: Collection[str], kind: str = "what would be written there") -> Path:
    """Return the folder that a folder written to `path` would replace, links resolved; make its parent if missing.

    Args:
        path: the output folder.
        ours: the files that every folder of this kind holds. Only such a folder, or an empty one, may be replaced.
        kind: what a folder of this kind is called in messages.

    Raises:
        InputError: `path` is something else, holds the current folder, or cannot be written.
    """
    hint = "name another folder with -o"
    target = Path(os.path.realpath(path))
    try:
        if Path.cwd().is_relative_to(target) or target.is_mount():
            what = "is the current folder, a folder above it, or a mount point"
            raise InputError(what, where=str(path), hint=hint)
        if not _replaceable(target, ours):
            raise InputError(f"exists and is not {kind}", where=str(path), hint=hint)
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), hint=hint) from error
    if not os.access(target.parent, os.W_OK):
        raise InputError("cannot be written: no permission", where=str(path), hint=hint)
    return target


@contextmanager
def replacing_folder(
    path: Path, ours: Collection[str], parts: Collection[str] = (), kind: str = "what would be written there"
) -> Iterator[Path]:
    """Make a folder that takes the place of `path` when the block ends well.

    Of an earlier folder, the files of `ours` and `parts` and those with a successor of the same name are removed.
    All other files in it were not written by tracebed, and move to the new folder.

    Args:
        path: the output folder.
        ours: the files that every folder of this kind holds. Only such a folder, or an empty one, is replaced.
        parts: further files that a folder of this kind may hold.
        kind: what a folder of this kind is called in messages.

    Raises:
        InputError: `path` is something else, or cannot be written.
    """
    target = check_folder(path, ours, kind)
    unique = f".{target.name[:40]}.{secrets.token_hex(4)}"
    scratch, earlier = target.with_name(unique), target.with_name(f"{unique}.earlier")
    try:
        scratch.mkdir()
        yield scratch
        if os.path.lexists(target):
            target.replace(earlier)
            try:
                if not _replaceable(earlier, ours):  # it came after the check
                    raise InputError(f"exists and is not {kind}", where=str(path), hint="name another folder with -o")
                scratch.replace(target)
            except BaseException:
                earlier.replace(target)
                raise
            _carry_over(earlier, target, {*ours, *parts})
        else:
            scratch.replace(target)
    except OSError as error:
        hint = "free space, or name another folder with -o"
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(path), hint=hint) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _replaceable(folder: Path, ours: Collection[str]) -> bool:
    """Return whether there is no `folder`, or an empty one, or one with the files `ours`. A link is none of these."""
    if not os.path.lexists(folder):
        return True
    if folder.is_symlink() or not folder.is_dir():
        return False
    return not any(folder.iterdir()) or all((folder / name).is_file() for name in ours)


def _carry_over(earlier: Path, successor: Path, replaced: Collection[str]) -> None:
    """Move to `successor` the entries of `earlier` that neither are named in `replaced` nor have a successor.

    Whatever cannot be moved or removed stays in `earlier`.
    """
    for entry in list(earlier.iterdir()):
        with suppress(OSError):
            if entry.name not in replaced and not os.path.lexists(successor / entry.name):
                entry.replace(successor / entry.name)
            elif entry.is_symlink() or not entry.is_dir():
                entry.unlink()
    with suppress(OSError):
        earlier.rmdir()
