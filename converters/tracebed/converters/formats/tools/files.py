"""Files in and out: identified and decompressed when read, replaced as a whole when written."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tracebed.converters.workload import Source
from tracebed.errors import InputError, tolerate

MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"PK\x03\x04": "zip"}
PARQUET = b"PAR1"
SUFFIXES = (".gz", ".zst")
"""Of compressed files that are written."""
HEAD_BYTES = 65_536
"""How much of a file is looked at to tell its format."""
MAX_LINE = 16 * 2**20
"""Bytes; no log has such a line, and a file without line breaks must not fill the memory."""
BROKEN = (EOFError, OSError, zlib.error, zipfile.BadZipFile, RuntimeError)
"""What the decompressors raise."""


@dataclass(frozen=True)
class Input:
    """A file to read: what it is on the disk, what messages call it, and its content, decompressed."""

    path: Path
    source: Source
    key: bytes = b""
    """Drawn from the content: who has not got the file cannot make it (`log.pseudonyms`)."""
    raw: bytes | None = None
    """The content on the disk, where it can be read only once (a pipe)."""

    @classmethod
    def at(cls, path: Path) -> Input:
        """Identify the file at `path`.

        Raises:
            InputError: there is no such file, it cannot be read, it is empty, or its compression is broken.
        """
        where, key = str(path), hashlib.blake2b(digest_size=32)
        digest, size, pieces = hashlib.sha256(), 0, []
        try:
            with path.open("rb") as file:
                once = not path.is_file()
                if once and not (path.is_fifo() or file.isatty()):
                    raise InputError("is a device, not a file", where=where, hint="name a file or a pipe")
                while block := file.read(2**20):
                    digest.update(block)
                    key.update(block)
                    size += len(block)
                    if once:
                        pieces.append(block)
        except FileNotFoundError:
            raise InputError("no such file", where=where, hint="check the path") from None
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=where, hint="check permissions") from None
        raw = b"".join(pieces) if once else None
        file_there = cls(path, Source(path.name, digest.hexdigest(), size), key.digest(), raw)
        if not file_there.head.strip():
            raise InputError("the file is empty", where=where, hint="fetch or write it again")
        return file_there

    @classmethod
    def of(cls, data: bytes, name: str) -> Input:
        """Return content that is no file."""
        return cls(Path(name), Source(name, hashlib.sha256(data).hexdigest(), len(data)), b"", data)

    @property
    def where(self) -> str:
        """What messages call the file."""
        return str(self.path)

    @property
    def name(self) -> str:
        """The file's name in lower case, without the ending of a compression."""
        name, ending = os.path.splitext(self.path.name.lower())  # noqa: PTH122 - a name, no path
        return name if ending in (*SUFFIXES, ".bz2", ".zip") else name + ending

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the content, decompressed; raise InputError where the block meets a broken compression."""
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
                        archive.open(_only(archive)) as file,
                    ):
                        yield cast(BinaryIO, file)
                elif compression:
                    with pa.CompressedInputStream(stream, compression) as file:
                        yield cast(BinaryIO, file)
                else:
                    yield cast(BinaryIO, stream)
        except InputError:
            raise
        except BROKEN as error:
            what = f"broken {compression}" if compression else "cannot be read"
            reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
            raise InputError(f"{what}: {reason}", where=self.where, hint="fetch the file again") from None

    @cached_property
    def data(self) -> bytes:
        """The whole content."""
        with self.open() as file:
            return file.read()

    @cached_property
    def text(self) -> bytes:
        """The whole content of a text; a line longer than `MAX_LINE` is an InputError before more is read."""
        return self.bounded(b"\n", "line")

    def bounded(self, mark: bytes, piece: str) -> bytes:
        """Return the whole content, but read no further where `mark` is missing for `MAX_LINE`.

        Args:
            mark: the byte that ends each piece of such a file.
            piece: what a piece is called.

        Raises:
            InputError: a piece is longer than `MAX_LINE`.
        """
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
        """The first `HEAD_BYTES` of the content."""
        with self.open() as file:
            return file.read(HEAD_BYTES)

    @cached_property
    def header(self) -> str:
        """The first line that is not empty; of a table, the names of its columns."""
        lines = re.split(r"[\r\n]+", self.head.decode("utf-8-sig", "replace"))
        return next(filter(None, lines), "")

    def seekable(self) -> pa.NativeFile:
        """Return the content to read here and there, as Parquet wants it; a plain file is not loaded into memory."""
        plain = self.raw is None and self.head.startswith(PARQUET)
        with self.open() as file:
            plain = plain and isinstance(file, pa.OSFile)
        return pa.memory_map(os.fsencode(self.path)) if plain else pa.BufferReader(self.data)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield (number, line) of a text, without line ends; bytes that are not UTF-8 are replaced.

        Raises:
            InputError: a line is longer than `MAX_LINE`.
        """
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
    def columns(self) -> tuple[str, ...]:
        """The names of a table's columns, in lower case: of Parquet, or in the header of a text.

        A line without delimiters gives one name, which is no harm; a broken Parquet file gives none.
        """
        if self.head.startswith(PARQUET):
            try:
                return tuple(name.lower() for name in pq.read_schema(self.seekable()).names)
            except (pa.ArrowException, OSError, ValueError):
                return ()
        if not (self.header.isprintable() or "\t" in self.header):
            return ()
        names = next(csv.reader([self.header], delimiter=delimiter_of(self.header)), [])
        return tuple(name.strip().lower() for name in names)


def delimiter_of(header: str) -> str:
    """Return what stands between the names in the first line of a table: the commonest of `,`, `|`, `;` and tab."""
    return max(",|;\t", key=header.count)


def too_long(where: str, piece: str = "line") -> InputError:
    """Return what to raise of a line, or another piece of a file, longer than `MAX_LINE`."""
    return InputError(f"a {piece} of more than {MAX_LINE // 2**20} MiB", where=where, hint="check that it is a log")


def inputs_at(path: Path) -> list[Input]:
    """Return the files of a log: the one at `path`, or all in that folder, by name, without hidden ones.

    Raises:
        InputError: there is no such file, the folder is empty, or a file cannot be read (see `Input.at`).
    """
    if not path.is_dir():
        return [Input.at(path)]
    files = sorted(_walk(path))
    if not files:
        raise InputError("the folder holds no file", where=str(path), hint="name the folder of the log's files")
    return [Input.at(file) for file in files]


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and those in it, without hidden ones, pipes and devices."""

    def fail(error: OSError) -> NoReturn:
        raise InputError(f"cannot be read: {error.strerror}", where=str(error.filename), hint="check permissions")

    links = 0
    for here, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name[0] not in "._"]
        links += sum(Path(here, name).is_symlink() for name in folders)
        for file in (Path(here, name) for name in names if name[0] not in "._"):
            if file.is_file() or not file.exists():  # a link to nothing is an error, when it is read
                yield file
    tolerate({"links to folders, not followed": links}, where=str(folder))


def _only(archive: zipfile.ZipFile) -> str:
    names = [info.filename for info in archive.infolist() if not info.is_dir()]
    if len(names) != 1:
        raise zipfile.BadZipFile(f"a zip of {len(names)} files, not of one")
    return names[0]
