"""Records of PBS accounting as columns of texts.

pbs.c cuts blocks of lines. Python cuts a block with a line that is no plain record, and all blocks where tracebed was
installed without a C compiler.
"""

from __future__ import annotations

import ctypes
import io
import math
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracebed.converters.formats.tools import files as input_files
from tracebed.converters.formats.tools.amounts import span
from tracebed.converters.formats.tools.files import Input, bad_line, too_long
from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.errors import InputError

LIBRARY = Path(__file__).with_name("libtracebed_pbs.so")
LINE = re.compile(r"(\d\d/\d\d/\d{4}) (\d\d:\d\d:\d\d);(\w);([^;]*);(.*)", re.ASCII | re.DOTALL)
BETWEEN = re.compile(r" +(?=[A-Za-z_][\w.]*=)")
"""Blanks between values that contain blanks."""
BLOCK = 2**20
"""Bytes of lines that are cut at once: their columns stay in the cache of a core."""
NUMBERS = ("length", "rows", "columns", "every_key")
ARRAYS = ("key_ends", "next", "cells", "stamps", "kinds", "offsets", "valid", "data")
Block: TypeAlias = tuple[IntArray, npt.NDArray[np.uint8], FloatArray, pa.Array, pa.Table, pa.Table]
"""Lines, kinds, timestamps, jobs, columns and positions of `Accounting`."""


class Part(NamedTuple):
    """The records of a file."""

    file: Input
    start: int
    """Row of the first record."""
    end: int
    """Row after the last record."""
    broken: bool
    """Whether the last line is cut off before its end, and left out."""
    unfinished: bool
    """Whether the last line has no line end and no resources used, so that an end in it may be cut off."""


@dataclass
class Accounting:
    """Records in the order of their lines."""

    lines: IntArray
    kinds: npt.NDArray[np.uint8]
    """The letter of each record, shape (records,)."""
    stamps: FloatArray
    """Timestamps of the lines, s since 1970 in the server's time zone, shape (records,)."""
    jobs: pa.Array
    columns: dict[str, pa.Array]
    """Key -> texts, null where a record lacks the key."""
    positions: dict[str, pa.Array]
    """Key -> numbers that grow with its position in a record."""
    parts: list[Part]

    def value(self, name: str, row: int) -> Any:
        """Return a value of a record, None if it lacks the key."""
        return self.columns[name][row].as_py()

    def place(self, row: int) -> str:
        """Return `file:line` of a record."""
        file = next(part.file for part in self.parts if row < part.end)
        return f"{file.where}:{self.lines[row]}"


def read_accounting(files: Sequence[Input], used: Collection[str], extras: bool) -> Accounting:
    """Return the records of files with the values of the keys `used`, and of the other keys if `extras`.

    Raises InputError for a line that is no record, except an incomplete last line.
    """
    parts, blocks, rows, keys = list[Part](), list[Block](), 0, dict.fromkeys(used)
    for file in files:
        start, broken, last = rows, None, b""
        for number, count, last in _texts(file):
            block = _compiled(last, number, count, keys, extras)
            if block is None:
                block, broken = _interpreted(file, last, number, keys, extras, broken)
            elif broken is not None and count:
                raise broken
            blocks.append(block)
            rows += len(block[0])
        complete = last.endswith(b"\n")
        if broken is not None and complete:
            raise broken
        unfinished = not complete and b"resources_used" not in last[last.rfind(b"\n") + 1 :]
        parts.append(Part(file, start, rows, broken is not None, unfinished and broken is None))
    lines, kinds, stamps, jobs, *tables = zip(*blocks, strict=True)
    whole = (pa.concat_tables(some, promote_options="default") for some in tables)
    columns, positions = ({name: table[name].combine_chunks() for name in table.column_names} for table in whole)
    numbers = np.concatenate(lines), np.concatenate(kinds), np.concatenate(stamps)
    return Accounting(*numbers, pa.concat_arrays(jobs), columns, positions, parts)


def _texts(file: Input) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number of the first line, the count and the text of whole lines. Invalid UTF-8 is replaced."""
    with file.open() as stream:
        reader, number, library = io.BufferedReader(cast(Any, stream), BLOCK), 1, _library(LIBRARY)
        while text := reader.read(BLOCK) + reader.readline(input_files.MAX_LINE + 1):
            last = text.rfind(b"\n", 0, -1) + 1
            endless = len(text) - last > input_files.MAX_LINE
            text = text[:last] if endless else text
            text = text if number > 1 else text.removeprefix(b"\xef\xbb\xbf")
            count = library.tracebed_pbs_lines(text, len(text)) if library else text.count(b"\n")
            yield number, count, text if text.isascii() else text.decode("utf-8", "replace").encode()
            number += count
            if endless:
                raise too_long(f"{file.where}:{number}")


class _Block(ctypes.Structure):
    """`struct block` of pbs.c."""

    _fields_ = (
        *((name, ctypes.c_char_p) for name in ("text", "keys")),
        *((name, ctypes.c_int64) for name in NUMBERS),
        *((name, ctypes.c_void_p) for name in ARRAYS),
    )


@cache
def _library(path: Path) -> Any:
    """Load pbs.c as it was compiled for this machine and version; None, with a warning, if it was not."""
    try:
        library = ctypes.CDLL(str(path))
        for name in ("size", "lines", "read"):
            getattr(library, f"tracebed_pbs_{name}").restype = ctypes.c_int64
        library.tracebed_pbs_lines.argtypes = [ctypes.c_char_p, ctypes.c_int64]
        if library.tracebed_pbs_size() == ctypes.sizeof(_Block):
            return library
    except (OSError, AttributeError):
        pass
    hint = "install a C compiler (gcc), then tracebed again"
    warnings.warn(f"Python reads the accounting of PBS, which takes ten times as long; {hint}", stacklevel=2)
    return None


def _compiled(text: bytes, number: int, rows: int, keys: Collection[str], extras: bool) -> Block | None:
    """Return the records of `rows` lines, the first of which is line `number`; None if Python has to cut them.

    That is so if a line is no plain record, or has a new key and `extras`.
    """
    if (library := _library(LIBRARY)) is None:
        return None
    names, columns = [key.encode() for key in keys], 1 + len(keys)
    cells, bits = np.empty((rows, columns, 3), np.int32), np.zeros((columns, rows // 8 + 1), np.uint8)
    stamps, kinds = np.empty(rows, np.int64), np.empty(rows, np.uint8)
    offsets, data = np.empty((columns, rows + 1), np.int64), np.empty(len(text), np.uint8)
    ends, following = np.cumsum([0, *map(len, names)]), np.empty(columns, np.int32)
    pointers = (array.ctypes.data for array in (ends, following, cells, stamps, kinds, offsets, bits, data))
    block = _Block(text, b"".join(names), len(text), rows, columns, extras, *pointers)
    if library.tracebed_pbs_read(ctypes.byref(block)):
        return None
    days, which = np.unique(stamps // 10**5, return_inverse=True)
    midnights = np.array([_midnight(f"{day:08}") for day in days.tolist()])
    if np.isnan(midnights).any():
        return None
    content = pa.py_buffer(data[: offsets[-1, -1]].copy())
    jobs, *texts = (
        pa.LargeStringArray.from_buffers(rows, pa.py_buffer(places), content, pa.py_buffer(valid))
        for places, valid in zip(offsets, bits, strict=True)
    )
    positions = [pa.array(cells[:, column, 2]) for column in range(1, columns)] if extras else []
    tables = pa.table(texts, [*keys]), pa.table(positions, [*keys][: len(positions)])
    return np.arange(number, number + rows), kinds, midnights[which] + stamps % 10**5, jobs, *tables


def _interpreted(
    file: Input, text: bytes, number: int, keys: dict[str, None], extras: bool, broken: InputError | None
) -> tuple[Block, InputError | None]:
    """Return the records of lines, the first of which is line `number`, and the error of a last line that is no record.

    New keys are added to `keys` if `extras`. Raises the error of a line, `broken` or in the text, before another line.
    """
    records = []
    for place, line in enumerate(text.decode().split("\n"), number):
        if not line.strip():
            continue
        if broken is not None:
            raise broken
        try:
            records.append((place, *_record(line.rstrip("\r"), f"{file.where}:{place}")))
        except InputError as error:
            broken = error
    lines, kinds, stamps, jobs, values = zip(*records, strict=True) if records else [()] * 5
    keys |= dict.fromkeys(key for record in values for key in record if extras)
    order = [{key: place for place, key in enumerate(record)} for record in values if extras]
    tables = (
        pa.Table.from_pylist(rows, pa.schema([(key, kind) for key in keys]))
        for rows, kind in ((values, pa.large_string()), (order, pa.int32()))
    )
    numbers = np.array(lines, np.int64), np.array(kinds, np.uint8), np.array(stamps, np.float64)
    return (*numbers, pa.array(jobs, pa.large_string()), *tables), broken


def _record(line: str, place: str) -> tuple[int, float, str, dict[str, str]]:
    """Return the kind, timestamp, job and values of a line. Raises InputError if it is no record."""
    match = LINE.match(line)
    if not match or not match[4]:
        hint = "the format is MM/DD/YYYY HH:MM:SS;KIND;job;key=value ..."
        raise InputError(f"not a record: {line[:40]!r}", where=place, hint=hint)
    date, clock, kind, job, body = match.groups()
    second, midnight = span(clock), _midnight(date.replace("/", ""))
    if second is None or second >= 86_401 or math.isnan(midnight):
        raise InputError(f"'{date} {clock}' is not MM/DD/YYYY HH:MM:SS", where=place, hint="correct the line")
    try:
        values = dict(item.split("=", 1) for item in body.split(" ") if item)
    except ValueError:  # a value contains blanks
        values = dict(item.split("=", 1) for item in BETWEEN.split(body.strip()) if "=" in item)
        if kind in "ES" and not values:
            raise bad_line("record without values", place) from None
    return ord(kind), midnight + second, job, values


@lru_cache
def _midnight(date: str) -> float:
    """Return MMDDYYYY as s since 1970, NaN if the date is invalid."""
    try:
        return datetime.strptime(date, "%m%d%Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return math.nan
