"""Input files: identification, decompression, and bounded reading."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tracebed.converters.workload import Source
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.input_files import open_file

FREE_BYTES = 2**26
"""Content of a compressed file that is always accepted, in bytes."""
MAX_RATIO = 100
"""Largest accepted ratio of the content to the compressed file. Logs have 5 to 20, gzip reaches 1,000."""
MAX_BYTES = 2**32
"""Largest accepted content of a compressed file, in bytes. A plain file may be larger."""


class Bounded(io.RawIOBase):
    """The decompressed content `inner` of a file, as far as its ratio to the bytes `used` of the file is plausible."""

    def __init__(self, inner: Any, used: Callable[[], int], where: str) -> None:
        super().__init__()
        self._inner, self._used, self._where = inner, used, where
        self._size = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer` and return the number of bytes, 0 at the end. Raises InputError above the bounds."""
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        self._size += len(data)
        if self._size > min(MAX_BYTES, max(FREE_BYTES, MAX_RATIO * self._used())):
            size = f"more than {self._size // 2**20:,} MiB, {self._size // max(1, self._used()):,} times the file"
            hint = "if it is a log, decompress it, and give the plain file"
            raise InputError(f"expands to {size}", where=self._where, hint=hint)
        return len(data)

    def readall(self) -> bytes:
        """Return the rest of the content."""
        return b"".join(iter(lambda: self.read(2**22), b""))


MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"PK\x03\x04": "zip"}
PARQUET = b"PAR1"
PROVENANCE = b"tracebed-provenance"
"""Key of the provenance in the metadata of a Parquet file that tracebed wrote."""
PROVENANCE_LINE = "# tracebed-provenance: "
"""Beginning of the first line of a CSV file that tracebed wrote, before the provenance."""
SUFFIXES = (".gz", ".zst")
"""Endings of the compressed files that tracebed writes."""
HEAD_BYTES = 65_536
"""Bytes of a file that are examined to recognize its format."""
MAX_LINE = 16 * 2**20
"""Largest accepted line in bytes, so that a file without line breaks cannot exhaust the memory."""
MAX_PIPE = 2**29
"""Largest accepted content of a pipe in bytes. It is kept in memory, because it can be read only once."""
BROKEN = (EOFError, OSError, zlib.error, zipfile.BadZipFile, RuntimeError)
"""Exceptions raised by the decompressors."""


@dataclass(frozen=True)
class Input:
    """A file to read: its path, its checksum and its decompressed content."""

    path: Path
    source: Source
    key: bytes = b""
    """Hash of the content, the key of `log.pseudonyms`. It cannot be computed without the file."""
    raw: bytes | None = None
    """The content before decompression, if it can be read only once (a pipe)."""

    @classmethod
    def at(cls, path: Path) -> Input:
        """Identify the file at `path`. Raises InputError if it cannot be read or decompressed, or is empty."""
        where, key = str(path), hashlib.blake2b(digest_size=32)
        digest, size, pieces = hashlib.sha256(), 0, []
        try:
            with open_file(path) as file:
                once = not file.seekable()
                while block := file.read(2**20):
                    digest.update(block)
                    key.update(block)
                    size += len(block)
                    if once:
                        pieces.append(block)
                    if once and size > MAX_PIPE:
                        what = f"is a pipe with more than {MAX_PIPE // 2**20} MiB"
                        raise InputError(what, where=where, hint="write the data to a file, and give the file")
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=where, hint="check permissions") from None
        raw = b"".join(pieces) if once else None
        file_there = cls(path, Source(path.name, digest.hexdigest(), size), key.digest(), raw)
        if not file_there.head.strip():
            raise InputError("the file is empty", where=where, hint="download or write the file again")
        return file_there

    @classmethod
    def of(cls, data: bytes, name: str) -> Input:
        """Return `data` as an input that is not a file."""
        return cls(Path(name), Source(name, hashlib.sha256(data).hexdigest(), len(data)), b"", data)

    @property
    def where(self) -> str:
        """The name of the file in messages."""
        return str(self.path)

    @property
    def name(self) -> str:
        """The file name in lower case, without the ending of a compression."""
        name, ending = os.path.splitext(self.path.name.lower())  # noqa: PTH122 - a name, not a path
        return name if ending in (*SUFFIXES, ".bz2", ".zip") else name + ending

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the decompressed content; raise InputError if the block fails on a broken compression."""
        compression = None
        try:
            stream = pa.BufferReader(self.raw) if self.raw is not None else pa.OSFile(os.fsencode(self.path))
            with stream:
                start = stream.read(4)
                stream.seek(0)
                compression = next((name for magic, name in MAGIC.items() if start.startswith(magic)), None)
                if compression == "zip":
                    with (
                        zipfile.ZipFile(io.BytesIO(self.raw) if self.raw is not None else self.path) as archive,
                        archive.open(only := _only(archive)) as file,
                    ):
                        yield cast(BinaryIO, Bounded(file, lambda: only.compress_size, self.where))
                elif compression:
                    with pa.CompressedInputStream(stream, compression) as file:
                        yield cast(BinaryIO, Bounded(file, stream.tell, self.where))
                else:
                    yield cast(BinaryIO, stream)
        except InputError:
            raise
        except BROKEN as error:
            what = f"broken {compression}" if compression else "cannot be read"
            reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
            raise InputError(f"{what}: {reason}", where=self.where, hint="download the file again") from None

    @cached_property
    def data(self) -> bytes:
        """The whole decompressed content."""
        with self.open() as file:
            return file.read()

    @cached_property
    def text(self) -> bytes:
        """The whole content of a text file; raises InputError at a line longer than `MAX_LINE`."""
        return self.bounded(b"\n", "line")

    def bounded(self, mark: bytes, piece: str) -> bytes:
        """Return the whole content. Raises InputError if a `piece` that ends with `mark` is longer than `MAX_LINE`."""
        blocks, lines, length = [], 1, 0
        with self.open() as file:
            while block := file.read(2**22):
                first = block.find(mark)
                length += len(block) if first < 0 else first
                if length > MAX_LINE:
                    raise too_long(f"{self.where}:{lines}", piece)
                if first >= 0:
                    length = len(block) - block.rfind(mark) - 1
                lines += block.count(b"\n")
                blocks.append(block)
        return b"".join(blocks)

    @cached_property
    def head(self) -> bytes:
        """The first `HEAD_BYTES` bytes of the decompressed content."""
        with self.open() as file:
            return file.read(HEAD_BYTES)

    @cached_property
    def header(self) -> str:
        """The first line that is not empty; in a table, the column names."""
        lines = re.split(r"[\r\n]+", self.head.decode("utf-8-sig", "replace"))
        return next(filter(None, lines), "")

    def seekable(self) -> pa.NativeFile:
        """Return the content with random access, as Parquet requires; an uncompressed file is mapped, not loaded."""
        plain = self.raw is None and self.head.startswith(PARQUET)
        with self.open() as file:
            plain = plain and isinstance(file, pa.OSFile)
        return pa.memory_map(os.fsencode(self.path)) if plain else pa.BufferReader(self.data)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield (line number, line) of a text file, without line ends; bytes that are not UTF-8 are replaced."""
        with self.open() as file:
            reader = io.BufferedReader(cast(Any, file), 2**20)
            for number in range(1, 2**62):
                line = reader.readline(MAX_LINE + 1)
                if not line:
                    return
                if len(line) > MAX_LINE:
                    raise too_long(f"{self.where}:{number}")
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8", "replace").rstrip("\r\n")

    @cached_property
    def schema(self) -> pa.Schema | None:
        """The schema of a Parquet file; None for any other file and for a broken Parquet file."""
        if self.head.startswith(PARQUET):
            try:
                return pq.read_schema(self.seekable())
            except (pa.ArrowException, OSError, ValueError):
                return None
        return None

    @property
    def own_format(self) -> str | None:
        """The format of a workload that tracebed wrote with its provenance, as Parquet or CSV; None: another file."""
        if self.schema is not None and PROVENANCE in (self.schema.metadata or {}):
            return "parquet"
        return "csv" if self.header.startswith(PROVENANCE_LINE) else None

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The column names of a table in lower case, from the Parquet schema or from the first line of a text.

        A first line without delimiters gives one name. A broken Parquet file gives no names.
        """
        if self.head.startswith(PARQUET):
            return tuple(name.lower() for name in self.schema.names) if self.schema else ()
        if not (self.header.isprintable() or "\t" in self.header):
            return ()
        names = next(csv.reader([self.header], delimiter=delimiter_of(self.header)), [])
        return tuple(name.strip().lower() for name in names)


def delimiter_of(header: str) -> str:
    """Return the delimiter in the first line of a table: the most frequent of `,`, `|`, `;` and tab."""
    return max(",|;\t", key=header.count)


def too_long(where: str, piece: str = "line") -> InputError:
    """Return the error for a line, or another piece of a file, longer than `MAX_LINE`."""
    return InputError(f"{piece} longer than {MAX_LINE // 2**20} MiB", where=where, hint="check that the file is a log")


def bad_line(what: str, where: str) -> InputError:
    """Return the error about a line or a value in it."""
    return InputError(what, where=where, hint="correct or remove the line")


def wrong_fields(count: int, wanted: int, where: str) -> InputError:
    """Return the error about a line with `count` fields."""
    hint = "complete or remove the line, or name the format: convert --from FORMAT"
    return InputError(f"line has {count} fields instead of {wanted}", where=where, hint=hint)


def inputs_at(path: Path) -> list[Input]:
    """Return the files of a log: the file at `path`, or all files below that folder except hidden ones, sorted."""
    return [Input.at(file) for file in paths_at(path)]


def paths_at(path: Path) -> list[Path]:
    """Return the paths of the files of a log, as `inputs_at`. Raise InputError if the folder is empty or unreadable."""
    if not path.is_dir():
        return [path]
    files = sorted(_walk(path))
    if not files:
        raise InputError("the folder contains no files", where=str(path), hint="give the folder of the log")
    return files


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders, except hidden files, pipes and devices."""

    def fail(error: OSError) -> NoReturn:
        raise InputError(f"cannot be read: {error.strerror}", where=str(error.filename), hint="check permissions")

    links = 0
    for here, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name[0] not in "._"]
        links += sum(Path(here, name).is_symlink() for name in folders)
        for file in (Path(here, name) for name in names if name[0] not in "._"):
            if file.is_file() or not file.exists():  # a dangling link gives an error when it is read
                yield file
    tolerate({"symbolic links to folders, not followed": links}, where=str(folder))


def _only(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    files = [info for info in archive.infolist() if not info.is_dir()]
    if len(files) != 1:
        raise zipfile.BadZipFile(f"the archive has {len(files)} files instead of one")
    return files[0]
