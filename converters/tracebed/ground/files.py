"""Atomic writes: a file or folder is written under a temporary name and renamed when complete."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from tracebed.ground import system
from tracebed.ground.errors import InputError

LOCK = ".lock"
Guard = Callable[[Path], None]
"""Function that raises InputError if the existing file or folder may not be replaced."""


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of the content of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: Path, guard: Guard | None = None) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the block succeeds; compressed if the name ends in `.gz` or `.zst`.

    If the block fails, `path` is unchanged. Equal content gives equal bytes: the gzip header has no time stamp. `guard`
    is called with a file that exists when the block has succeeded. Raises InputError if `path` cannot be written.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError("is a folder, not a file", where=str(path), hint="name a file in it")
    if not target.parent.is_dir():
        raise InputError("the parent folder does not exist", where=str(path), hint=f"mkdir -p {path.parent}")
    special = target.exists() and not target.is_file()  # devices and pipes such as /dev/stdout are written in place
    part = target if special else target.with_name(f".{target.name[:40]}.{system.token_hex(4)}.part")
    try:
        with part.open("wb" if special else "xb") as file:  # x: never write through an existing link
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as zipped:
                    yield cast(BinaryIO, zipped)
            elif path.suffix == ".zst":
                import pyarrow as pa

                with pa.CompressedOutputStream(pa.PythonFile(file, mode="w"), "zstd") as zipped:
                    yield cast(BinaryIO, zipped)
            else:
                yield file
        if not special and not (guard and _created(part, target)):
            if guard:
                guard(target)
            part.replace(target)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}", where=str(path), hint="write elsewhere"
        ) from error
    finally:
        if not special:
            part.unlink(missing_ok=True)


def _created(part: Path, target: Path) -> bool:
    """Give the complete file `part` the name `target`, unless a file has this name. Return whether `target` is new."""
    try:
        os.link(part, target)
    except OSError:  # the file exists, or the file system has no hard links
        return False
    return True


def check_folder(
    path: Path, ours: Collection[str], kind: str = "a folder of this kind", guard: Guard | None = None
) -> Path:
    """Return `path` with links resolved if it can be replaced, and create its parent folder.

    A folder is replaced if it is empty or has all files of `ours`, and if `guard` allows it. Raises InputError for any
    other file or folder, for one that contains the current folder, and if `path` cannot be written.
    """
    hint = "name another folder with -o"
    target = Path(os.path.realpath(path))
    try:
        if Path.cwd().is_relative_to(target) or target.is_mount():
            what = "is the current folder, one of its parents, or a mount point"
            raise InputError(what, where=str(path), hint=hint)
        if not _replaceable(target, ours):
            raise InputError(f"exists and is not {kind}", where=str(path), hint=hint)
        if guard and target.exists() and any(target.iterdir()):
            guard(target)
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), hint=hint) from error
    if not os.access(target.parent, os.W_OK):
        raise InputError("cannot be written: no permission", where=str(path), hint=hint)
    return target


@contextmanager
def locked_folder(path: Path, process: str) -> Iterator[None]:
    """Create and lock an output folder that a process fills step by step, so that no other process fills it too.

    The lock file has the name of the process, such as `experiment`. Raises InputError if the folder is that of another
    process, has other content, is locked, or cannot be written.
    """
    hint = "name another folder with -o"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if _owner(path) != process and any(item.name != LOCK for item in path.iterdir()):
            whose = f"{'an' if process[0] in 'aeiou' else 'a'} {process}"
            raise InputError(f"exists and is not the folder of {whose}", where=str(path), hint=hint)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), hint=hint) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        hint = f"wait, or {hint}"
        raise InputError(f"another {process} is running in this folder", where=str(path), hint=hint) from None
    else:
        os.pwrite(lock, f"{process}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def is_locked(file: Path) -> bool:
    """Return whether a process holds the lock of a file. No process does if the file is gone."""
    try:
        with file.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _owner(folder: Path) -> str:
    """Return the process in the lock file of a folder; empty if the file is missing or empty."""
    path = folder / LOCK
    return path.read_text(encoding="utf-8", errors="replace")[:100].strip() if path.is_file() else ""


@contextmanager
def replacing_folder(
    path: Path,
    ours: Collection[str],
    parts: Collection[str] = (),
    kind: str = "a folder of this kind",
    guard: Guard | None = None,
) -> Iterator[Path]:
    """Create a folder that replaces `path` when the block succeeds; `guard` is called before the block and after it.

    Files of `ours` and `parts` in the previous folder are removed, as are files that the new folder has under the same
    name. All other files were not written by tracebed and move to the new folder. Errors are those of `check_folder`.
    """
    target = check_folder(path, ours, kind, guard)
    unique = f".{target.name[:40]}.{system.token_hex(4)}"
    scratch, earlier = target.with_name(unique), target.with_name(f"{unique}.earlier")
    try:
        scratch.mkdir()
        yield scratch
        if os.path.lexists(target):
            target.replace(earlier)
            try:
                if not _replaceable(earlier, ours):  # created after the first check
                    raise InputError(f"exists and is not {kind}", where=str(path), hint="name another folder with -o")
                if guard and any(earlier.iterdir()):
                    guard(earlier)
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


@contextmanager
def set_aside(folder: Path) -> Iterator[None]:
    """Rename an existing folder for the length of a block. Remove it if the block succeeds, otherwise restore it."""
    if not folder.exists():
        yield
        return
    earlier = folder.with_name(f".{folder.name[:40]}.{system.token_hex(4)}.earlier")
    folder.replace(earlier)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        earlier.replace(folder)
        raise
    shutil.rmtree(earlier, ignore_errors=True)


def _replaceable(folder: Path, ours: Collection[str]) -> bool:
    """Return whether `folder` is missing, empty, or contains the files `ours`. A link is not replaceable."""
    if not os.path.lexists(folder):
        return True
    if folder.is_symlink() or not folder.is_dir():
        return False
    return not any(folder.iterdir()) or all((folder / name).is_file() for name in ours)


def _carry_over(earlier: Path, successor: Path, replaced: Collection[str]) -> None:
    """Move entries of `earlier` to `successor` unless replaced or there; what cannot be moved or removed stays."""
    for entry in list(earlier.iterdir()):
        with suppress(OSError):
            if entry.name not in replaced and not os.path.lexists(successor / entry.name):
                entry.replace(successor / entry.name)
            elif entry.is_symlink() or not entry.is_dir():
                entry.unlink()
    with suppress(OSError):
        earlier.rmdir()
