"""Conversion of Arrow columns to the kinds of `columns`; an invalid value is an InputError with its place."""

from __future__ import annotations

from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from tracebed.converters.formats.tools.files import PARQUET, Input, bad_line
from tracebed.ground.errors import InputError

NOTHING = ["", "None", "none", "NULL", "null", "Unknown", "NaN", "nan", "NaT", "N/A", "NA"]
"""Spellings of a missing value in logs."""
FAR = 1e11
"""Times above this are in milliseconds or finer units since 1970, not in seconds."""


def cast(column: pa.ChunkedArray, kind: str, file: Input, name: str) -> tuple[pa.ChunkedArray, bool]:
    """Convert a column to its kind; return it and whether times are instants. Raises InputError for an invalid one."""
    type = column.type
    if pa.types.is_dictionary(type) and kind != "label":
        column = column.cast(type.value_type)
        type = column.type
    if kind == "label":
        return (column if pa.types.is_dictionary(type) else _text(column).dictionary_encode()), False
    if kind == "text":
        column = _text(column)
        broken = pc.index(pc.match_substring(column, "\n"), pa.scalar(True)).as_py()
        if broken >= 0:  # the parser took the following lines as part of this value
            what = f"{name[:40]} {abbreviated(column[broken].as_py())} contains a line break"
            raise InputError(what, where=place_in(file, broken), hint="close the quote")
        return column, False
    is_text = pa.types.is_string(type) or pa.types.is_large_string(type)
    if is_text:
        column = pc.utf8_trim_whitespace(column)
        column = pc.if_else(pc.is_in(column, pa.array(NOTHING, column.type)), pa.scalar(None, column.type), column)
    if kind == "time" and not (is_text and _numeric(column) is None):
        if pa.types.is_timestamp(type):
            unit = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[type.unit]
            return pc.divide(column.cast(pa.int64()).cast(pa.float64(), safe=False), unit), type.tz is not None
        numbers = _numeric(column) if is_text else column.cast(pa.float64(), safe=False)
        largest = pc.max(numbers).as_py() or 0.0
        power = 1.0 if largest < FAR else 1e3 if largest < FAR * 1e3 else 1e6 if largest < FAR * 1e6 else 1e9
        return pc.divide(numbers, power), True
    if kind == "time":
        clocks = (pa.timestamp("us"), False), (pa.timestamp("us", "UTC"), True)
        for type, instant in clocks:
            try:
                return cast(column.cast(type), kind, file, name)[0], instant
            except pa.ArrowInvalid:
                continue
        first = max(_first_not(column, type) for type, _ in clocks)  # the clock that fits most values is meant
        _refuse(column, first, "a time such as 2022-11-08 22:04:02", file, name)
    numbers = _numeric(column) if is_text else column.cast(pa.float64(), safe=False)
    if numbers is None:
        _refuse(column, _first_not(column, pa.float64()), "a number", file, name)
    return numbers, False


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return any column as text; integers stored as floats lose their `.0`."""
    if pa.types.is_floating(column.type):
        whole = column.cast(pa.int64(), safe=False)
        if pc.all(pc.equal(whole.cast(pa.float64(), safe=False), column)).as_py() is not False:
            column = whole
    return pc.fill_null(column.cast(pa.string()), "")


def _numeric(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return texts as numbers, or None if a text is not a number."""
    try:
        return column.cast(pa.float64())
    except pa.ArrowInvalid:
        return None


def _first_not(column: pa.ChunkedArray, type: pa.DataType) -> int:
    """Return the first row whose value cannot be cast to `type`; there must be one."""
    low, high = 0, len(column)
    while high - low > 1:  # bisection: casting a slice fails if it contains an invalid value
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(type)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _refuse(column: pa.ChunkedArray, row: int, wanted: str, file: Input, name: str) -> NoReturn:
    """Raise InputError for the value in `row`, which is not `wanted`."""
    raise bad_line(f"{name[:40]} {abbreviated(column[row].as_py())} is not {wanted}", place_in(file, row))


def abbreviated(value: object) -> str:
    """Return a value as shown in messages, shortened."""
    text = repr(value)
    return text if len(text) < 80 else f"{text[:60]}..."


def place_in(file: Input, row: int) -> str:
    """Return `file:line` of record `row` (`file, row N` for Parquet), for errors: lines are counted only then."""
    if file.head.startswith(PARQUET):
        return f"{file.where}, row {row + 1}"
    filled = (number for number, line in file.lines() if line.strip())
    return f"{file.where}:{next((line for index, line in enumerate(filled) if index == row + 1), row + 2)}"


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return an extra column as a type that a workload can store: bool, number or text."""
    type = column.type
    if pa.types.is_boolean(type) or pa.types.is_integer(type) or pa.types.is_floating(type):
        return column.cast(pa.float64(), safe=False) if pa.types.is_integer(type) and column.null_count else column
    if pa.types.is_nested(type):
        return pa.chunked_array([pa.array([str(value) for value in column.to_pylist()], pa.string())])
    return pc.fill_null(column.cast(pa.string()), "")
