"""Files in and out: decompressed and identified when read, replaced as a whole when written."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from tracebed.converters.workload import Source
from tracebed.errors import InputError

GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"


@dataclass(frozen=True)
class Input:
    """A file that was read: its bytes (decompressed), what it is on the disk, and what messages call it."""

    data: bytes
    source: Source
    where: str


def read_input(path: Path) -> Input:
    """Read a file whole, decompress it if it is gzip or zip, and hash it as it stands on the disk.

    Raises:
        InputError: there is no such file, it cannot be read, it is empty, or its compression is broken.
    """
    where = str(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError("no such file", where=where, mend="check the path") from None
    except IsADirectoryError:
        raise InputError("is a folder, not a file", where=where, mend="name a file in it") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where, mend="check permissions") from None
    source = Source(path.name, hashlib.sha256(raw).hexdigest(), len(raw))
    try:
        data = _unpacked(raw)
    except (EOFError, OSError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        raise InputError(
            f"broken {'gzip' if raw.startswith(GZIP) else 'zip'}: {str(error).rstrip('.')}",
            where=where,
            mend="fetch the file again",
        ) from None
    if not data.strip():
        raise InputError("the file is empty", where=where, mend="fetch or write it again")
    return Input(data, source, where)


def _unpacked(raw: bytes) -> bytes:
    """Return the content of a gzip, of the one file in a zip, or `raw` itself."""
    if raw.startswith(GZIP):
        return gzip.decompress(raw)
    if raw.startswith(ZIP):
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            if len(names) != 1:
                raise zipfile.BadZipFile(f"a zip of {len(names)} files, not of one")
            return archive.read(names[0])
    return raw


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends well; gzip if the name ends in `.gz`.

    Until then, and for good if the block fails, what stood at `path` stays as it was. The same content gives
    the same bytes (no time stamp in the gzip header).

    Raises:
        InputError: the folder is missing or cannot be written, or the disk is full.
    """
    target = path.resolve()
    if target.is_dir():
        raise InputError("is a folder, not a file", where=str(path), mend="name a file in it")
    if not target.parent.is_dir():
        raise InputError("its folder does not exist", where=str(path), mend=f"mkdir -p {path.parent}")
    special = target.exists() and not target.is_file()  # /dev/stdout and the like must not be replaced
    part = target if special else target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as zipped:
                    yield cast(BinaryIO, zipped)
            else:
                yield file
        if not special:
            part.replace(target)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}", where=str(path), mend="write elsewhere"
        ) from error
    finally:
        if not special:
            part.unlink(missing_ok=True)
