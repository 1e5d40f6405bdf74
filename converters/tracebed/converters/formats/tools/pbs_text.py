"""The records of PBS accounting as columns, a value for each key: blocks of lines are cut at all delimiters at once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracebed.converters.formats.tools import files as input_files
from tracebed.converters.formats.tools.files import Input, bad_line, too_long
from tracebed.converters.workload import BoolArray, FloatArray, IntArray
from tracebed.ground.errors import InputError

LINE = re.compile(r"(\d\d/\d\d/\d{4}) (\d\d:\d\d:\d\d);(\w);([^;]*);(.*)", re.ASCII | re.DOTALL)
KEY = re.compile(r"[A-Za-z_][\w.]*")
"""A key after a value with blanks."""
HEAD = len("MM/DD/YYYY HH:MM:SS;K;")
BLOCK = 2**21
"""Bytes of lines that are cut at once: their numbers stay in the cache of a core."""
BLANK, EQUALS, END, BETWEEN = b" =\n;"


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
    positions: dict[str, IntArray]
    """Key -> numbers that grow with its position in a record, shape (records,)."""
    parts: list[Part] = field(default_factory=list)

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
    parts, blocks, rows = list[Part](), list[Accounting](), 0
    for file in files:
        start, broken, last = rows, None, b""
        for number, text in _texts(file):
            complete = text.endswith(b"\n")
            block, error, follows = _block(file, text if complete else text + b"\n", number, None if extras else used)
            if broken is not None and (len(block.kinds) or error is not None):
                raise broken
            if error is not None and follows:
                raise error
            broken, last = error or broken, text
            blocks.append(block)
            rows += len(block.kinds)
        complete = last.endswith(b"\n")
        if broken is not None and complete:
            raise broken
        unfinished = not complete and b"resources_used" not in last[last.rfind(b"\n") + 1 :]
        parts.append(Part(file, start, rows, broken is not None, unfinished and broken is None))
    lines, kinds, stamps = (
        np.concatenate([getattr(block, name) for block in blocks]) for name in ("lines", "kinds", "stamps")
    )
    result = Accounting(lines, kinds, stamps, pa.concat_arrays([block.jobs for block in blocks]), {}, {}, parts)
    for name in dict.fromkeys([*used, *(name for block in blocks for name in block.columns)]):
        result.columns[name] = pa.concat_arrays(
            [block.columns.get(name, pa.nulls(len(block.kinds), pa.large_string())) for block in blocks]
        )
        if extras:
            result.positions[name] = np.concatenate(
                [block.positions.get(name, np.zeros(len(block.kinds), np.int64)) for block in blocks]
            )
    return result


def _texts(file: Input) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines and the numbers of their first lines. Bytes that are not UTF-8 are replaced."""
    with file.open() as stream:
        number, rest, more = 1, b"", True
        while more:
            read = stream.read(BLOCK)
            more = bool(read)
            both = rest + read
            cut = both.rfind(b"\n") + 1 if more else len(both)
            text, rest = both[:cut], both[cut:]
            if text.find(b"\n") >= input_files.MAX_LINE:
                raise too_long(f"{file.where}:{number}")
            if text:
                lines = text.count(b"\n")
                text = text if number > 1 else text.removeprefix(b"\xef\xbb\xbf")
                yield number, text if text.isascii() else text.decode("utf-8", "replace").encode()
                number += lines
            if len(rest) > input_files.MAX_LINE:
                raise too_long(f"{file.where}:{number}")


def _block(
    file: Input, text: bytes, number: int, used: Collection[str] | None, joined: BoolArray | None = None
) -> tuple[Accounting, InputError | None, bool]:
    """Return the records of lines, the error of the first line that is no record, and whether another line follows it.

    The first of the lines is line `number`. `joined`: the records whose values contain blanks.
    """
    content = np.zeros(len(text) + HEAD, np.uint8)
    content[: len(text)] = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(content == END)
    starts = np.append(0, ends[:-1] + 1)
    stops = _without_returns(text, content, starts, ends)
    head = content[starts[:, None] + np.arange(HEAD)]
    colons = np.append(np.flatnonzero(content == BETWEEN), len(text))
    names = colons[np.searchsorted(colons, np.minimum(starts + HEAD, len(text)))]  # where the names of the jobs end
    sound = _is_head(head) & (names > starts + HEAD) & (names < stops)
    stamps = _stamps(head, sound)
    rows = np.flatnonzero(sound & (stamps >= 0))
    content[names[rows]] = BLANK
    cuts = np.flatnonzero((content == BLANK) | (content == EQUALS) | (content == END))
    at = np.flatnonzero(content[cuts] != EQUALS)
    line = np.cumsum(content[cuts[at[:-1]]] == END)
    start, equals, end = cuts[at[:-1]] + 1, cuts[at[:-1] + 1], np.minimum(cuts[at[1:]], stops[line])
    row_of = np.full(len(ends), -1)
    row_of[rows] = np.arange(len(rows))
    kept = np.flatnonzero((start > names[line]) & (row_of[line] >= 0) & (end > start))
    start, equals, end, row = start[kept], equals[kept], end[kept], row_of[line[kept]]
    buffer, bare = pa.py_buffer(text), np.zeros(len(rows), dtype=bool)
    if joined is None:
        joined = bare.copy()
        joined[row[equals >= end]] = True
        if (stripped := _stripped(text, names[rows] + 1, stops[rows], joined)) != text:
            return _block(file, stripped, number, used, joined)
    if joined.any():
        if len(row):
            start, equals, end, row = _joined(buffer, start, equals, end, row, joined)
        bare = joined & np.isin(head[rows, HEAD - 2], list(b"ES"))
        bare[row] = False
        if bare.any():  # left out if it is the last line of the file
            rows = rows[: int(np.argmax(bare))]
            start, equals, end, row = (values[row < len(rows)] for values in (start, equals, end, row))
    error, follows = _error(file, text, number, starts, stops, sound, stamps, rows)
    keys = _pieces(buffer, start, equals).dictionary_encode()
    code = keys.indices.to_numpy()
    order = np.argsort(code.astype(np.int16) if len(keys.dictionary) < 2**15 else code, kind="stable")
    limits = np.append(0, np.cumsum(np.bincount(code, minlength=len(keys.dictionary))))
    found, positions = dict[str, IntArray](), dict[str, IntArray]()
    for key, first, last in zip(keys.dictionary.to_pylist(), limits[:-1], limits[1:], strict=True):
        if used is None or key in used:
            chosen = order[first:last]
            found[key] = np.full(len(rows), -1)
            found[key][row[chosen]] = chosen  # the last of the values of a key counts
            if used is None:
                positions[key] = np.zeros(len(rows), np.int64)
                positions[key][row[chosen[::-1]]] = chosen[::-1]
    columns = _columns(buffer, equals + 1, end, found)
    jobs = _pieces(buffer, starts[rows] + HEAD, names[rows])
    return Accounting(rows + number, head[rows, HEAD - 2], stamps[rows], jobs, columns, positions), error, follows


def _without_returns(text: bytes, content: Any, starts: IntArray, ends: IntArray) -> IntArray:
    """Return where the lines end without carriage returns."""
    stops = ends
    if b"\r" in text:
        stops = ends - ((ends > starts) & (content[ends - 1] == ord("\r")))
        for line in np.flatnonzero((stops > starts) & (content[stops - 1] == ord("\r"))).tolist():
            stops[line] = starts[line] + len(text[starts[line] : ends[line]].rstrip(b"\r"))
    return stops


SHAPE = np.frombuffer(b"00/00/0000 00:00:00;K;", np.uint8)
DIGITS = SHAPE == ord("0")  # noqa: SIM300
FIXED = ~DIGITS & (np.arange(HEAD) != HEAD - 2)
IS_LETTER = np.array([re.match(rb"\w", bytes([value])) is not None for value in range(256)])


def _is_head(head: npt.NDArray[np.uint8]) -> BoolArray:
    """Return which lines begin with a timestamp and a kind."""
    sound: BoolArray = (head[:, FIXED] == SHAPE[FIXED]).all(axis=1) & IS_LETTER[head[:, HEAD - 2]]
    return sound & (head[:, DIGITS] - ord("0") <= 9).all(axis=1)


def _stamps(head: npt.NDArray[np.uint8], sound: BoolArray) -> FloatArray:
    """Return the timestamps of sound lines in s since 1970, NaN if invalid, shape (lines,)."""
    digits = head[:, DIGITS].astype(np.int64) - ord("0")
    digits[~sound] = 0
    date, hour, minute, second = (
        digits[:, first:last] @ 10 ** np.arange(last - first)[::-1]
        for first, last in ((0, 8), (8, 10), (10, 12), (12, 14))
    )
    days, which = np.unique(date, return_inverse=True)
    midnights = np.array([_midnight(f"{day:08}") for day in days.tolist()])
    clock = (hour * 60 + minute) * 60 + second
    return np.where(sound & (clock < 86_401), midnights[which] + clock, np.nan)


@lru_cache
def _midnight(date: str) -> float:
    """Return MMDDYYYY as s since 1970, NaN if the date is invalid."""
    try:
        return datetime.strptime(date, "%m%d%Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return np.nan


def _stripped(text: bytes, starts: IntArray, stops: IntArray, joined: BoolArray) -> bytes:
    """Return the lines with blanks in place of other white space around the values of the rows `joined`."""
    pieces, done = [], 0
    for row in np.flatnonzero(joined).tolist():
        first, last = int(starts[row]), int(stops[row])
        body = text[first:last]
        if not (33 <= body[0] <= 126 and 33 <= body[-1] <= 126):
            core = body.decode().strip()
            lead = len(body) - len(body.decode().lstrip().encode())
            pieces += [text[done:first], b" " * lead, core.encode().ljust(last - first - lead)]
            done = last
    return b"".join([*pieces, text[done:]])


def _joined(
    buffer: pa.Buffer, start: IntArray, equals: IntArray, end: IntArray, row: IntArray, joined: BoolArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return the values with those of the rows `joined` as they are with blanks: a word without a key continues one."""
    first = np.append(True, row[1:] != row[:-1])
    heads = ~joined[row] | first
    maybe = np.flatnonzero(~heads & (equals < end))
    keys = _pieces(buffer, start[maybe], equals[maybe]).dictionary_encode()
    named = np.array([KEY.fullmatch(key) is not None for key in keys.dictionary.to_pylist()], dtype=bool)
    heads[maybe] = named[keys.indices.to_numpy()]
    chosen = np.flatnonzero(heads)
    ends = end[np.append(chosen[1:], len(end)) - 1]
    marks = np.minimum.reduceat(np.where(equals < end, equals, np.iinfo(np.int64).max), chosen)
    valid = marks < ends
    return start[chosen][valid], marks[valid], ends[valid], row[chosen][valid]


def _error(
    file: Input,
    text: bytes,
    number: int,
    starts: IntArray,
    stops: IntArray,
    sound: BoolArray,
    stamps: FloatArray,
    rows: IntArray,
) -> tuple[InputError | None, bool]:
    """Return the error of the first line that is no record, None if there is none, and whether a line follows it."""
    bad = np.ones(len(starts), dtype=bool)
    bad[rows] = False
    faults = [line for line in np.flatnonzero(bad).tolist() if text[starts[line] : stops[line]].decode().strip()]
    if not faults:
        return None, False
    line, where = faults[0], f"{file.where}:{number + faults[0]}"
    follows = len(faults) > 1 or bool(len(rows) and rows[-1] > line)
    record = text[starts[line] : stops[line]].decode()
    if not sound[line]:
        what, hint = f"not a record: {record[:40]!r}", "the format is MM/DD/YYYY HH:MM:SS;KIND;job;key=value ..."
        return InputError(what, where=where, hint=hint), follows
    if np.isnan(stamps[line]):
        what = f"'{record[: HEAD - 3]}' is not MM/DD/YYYY HH:MM:SS"
        return InputError(what, where=where, hint="correct the line"), follows
    return bad_line("record without values", where), follows


def _between(buffer: pa.Buffer, starts: IntArray, ends: IntArray) -> pa.Array:
    """Return the texts between `starts` and `ends`, which are in order, each with the text after it, without a copy."""
    offsets = np.append(np.column_stack([starts, ends]), ends[-1:] if len(ends) else 0).astype(np.int64)
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), buffer)


def _pieces(buffer: pa.Buffer, starts: IntArray, ends: IntArray) -> pa.Array:
    """Return the texts between `starts` and `ends`, which are in order."""
    return _between(buffer, starts, ends).take(pa.array(np.arange(0, 2 * len(starts), 2)))


def _columns(buffer: pa.Buffer, starts: IntArray, ends: IntArray, found: Mapping[str, IntArray]) -> dict[str, pa.Array]:
    """Return for each key the texts between `starts` and `ends` with the numbers `found`; -1 is missing."""
    there = {key: numbers >= 0 for key, numbers in found.items()}
    chosen = np.concatenate([numbers[there[key]] for key, numbers in found.items()]) if found else np.zeros(0, np.int64)
    _, limits, data = _between(buffer, starts, ends).take(pa.array(2 * chosen)).buffers()
    limit, columns, at = np.frombuffer(limits, np.int64), {}, 0
    for key, mask in there.items():
        places = at + np.append(0, np.cumsum(mask))  # a missing text is empty
        bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
        columns[key] = pa.LargeStringArray.from_buffers(len(mask), pa.py_buffer(limit[places]), data, bits)
        at = int(places[-1])
    return columns
