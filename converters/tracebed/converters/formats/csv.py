"""Workloads as CSV: provenance in a comment on the first line, a header, and one row per job.

Dtypes are those of the workload schema; the dtypes of other columns (`extra_...`) are in a second comment. An empty
value is an empty text or an unknown number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv as pc

from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools.cast import abbreviated
from tracebed.converters.formats.tools.columns import unreadable
from tracebed.converters.formats.tools.files import MAX_LINE, PARQUET, PROVENANCE_LINE, Input, bad_line
from tracebed.converters.workload import SCHEMA, Provenance, RowError, Step, Workload, dtype_of
from tracebed.ground.errors import InputError, tolerate

EXTRAS = "# tracebed-extras: "
INDEX = re.compile(r"|Unnamed: \d+(?:\.\d+)?|index|level_\d+")
"""Name of the first column of a table that pandas wrote with its index."""
ARROW_TYPES = {"str": pa.string(), "float64": pa.float64(), "int64": pa.int64(), "bool": pa.bool_()}


def recognizes(file: Input) -> bool:
    """Return whether the file has a provenance line, or the columns of a workload."""
    ours = {"job_id", "submit_time", "run_time", "nodes"} <= set(file.columns) and not file.head.startswith(PARQUET)
    return file.header.startswith(PROVENANCE_LINE) or ours


def read(file: Input) -> Workload:
    """Read a workload. Lines above the header that begin with `#` are comments."""
    if b"\0" in file.head:
        raise InputError("binary data, not CSV", where=file.where, hint="check the file")
    provenance = Provenance(sources=(file.source,), steps=(Step("read", {"format": "csv"}),))
    extras: dict[str, str] = {}
    above = 0
    for number, line in file.lines():
        if line.startswith(PROVENANCE_LINE):
            provenance = Provenance.from_json(line.removeprefix(PROVENANCE_LINE), where=f"{file.where}:{number}")
        elif line.startswith(EXTRAS):
            extras = _extras(line, f"{file.where}:{number}")
        elif not line.startswith("#"):
            break
        above = number
    types = {name: ARROW_TYPES[column.dtype] for name, column in SCHEMA.items()}
    types |= {name: ARROW_TYPES[dtype] for name, dtype in extras.items()}
    try:
        try:
            content = _content(file, above, types)
            _refuse_hexadecimal(file, above, types)
        except pa.ArrowInvalid:
            content = _content(file, above, types, careful=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        header = next((line for number, line in file.lines() if number > above and line.strip()), "")
        names = [name.strip('" ') for name in header.split(",")]
        raise unreadable(error, file, names, lambda row: _place(file, above, row - 1 - above)) from None
    if any(pa.types.is_binary(kind) for kind in content.schema.types) or not _named(content):
        raise InputError("the file is not UTF-8", where=file.where, hint="convert it: iconv -f LATIN1 -t UTF-8")
    # There are two if a table with row numbers was read and written.
    indices = [*takewhile(INDEX.fullmatch, content.column_names)]
    if indices and not {*content.column_names} <= SCHEMA.keys():
        content = content.drop_columns(indices)
        tolerate({"columns of row numbers without a name, left out": len(indices)}, where=file.where)
    try:
        return Workload(content.to_pandas(), provenance, where=file.where)
    except RowError as error:
        raise bad_line(error.what, _place(file, above, error.row + 1)) from None


def _named(content: pa.Table) -> bool:
    """Return whether the column names are UTF-8."""
    try:
        return bool(content.column_names)
    except UnicodeDecodeError:
        return False


def _place(file: Input, above: int, record: int) -> str:
    """Return `file:line` of a record; record 0 is the header, which follows the first `above` lines.

    Empty lines are not records, and a quoted value may span lines. If quotes inside values mislead the count, return
    `file, row N`.
    """
    records, quotes = -1, 0
    for number, line in file.lines():
        if number > above and (line or quotes % 2):
            records += quotes % 2 == 0
            if records == record:
                return f"{file.where}:{number}"
            quotes += line.count('"')
    return f"{file.where}, row {record}"


def _content(file: Input, above: int, types: Mapping[str, pa.DataType], *, careful: bool = False) -> pa.Table:
    """Return the table below the first `above` lines. With `careful`, Arrow uses one thread and reports row numbers."""
    with file.open() as stream:
        return pc.read_csv(
            stream,
            pc.ReadOptions(use_threads=not careful, skip_rows=above, block_size=MAX_LINE if careful else 2**22),
            pc.ParseOptions(newlines_in_values=True),
            pc.ConvertOptions(column_types=types, null_values=["", "nan", "NaN"], strings_can_be_null=False),
        )


def _refuse_hexadecimal(file: Input, above: int, types: Mapping[str, pa.DataType]) -> None:
    """Raise InputError for a hexadecimal number, which Arrow reads as an integer, if the file has `0x` anywhere."""
    if not _has_prefix(file):
        return
    texts = _content(file, above, dict.fromkeys(types, pa.string()), careful=True)
    for name in texts.column_names:
        if pa.types.is_integer(types.get(name, pa.string())):
            hexadecimal = pyarrow.compute.match_substring_regex(texts.column(name), r"^\s*[-+]?0[xX]")
            row = hexadecimal.index(pa.scalar(True)).as_py()
            if row >= 0:
                value = texts.column(name)[row].as_py()
                what = f"{name} {abbreviated(value)} is not a whole number"
                raise InputError(what, where=_place(file, above, row + 1), hint="write the number in decimal digits")


def _has_prefix(file: Input) -> bool:
    last = b""
    with file.open() as stream:
        while block := stream.read(2**22):
            if re.search(b"0[xX]", last + block):
                return True
            last = block[-1:]
    return False


def _extras(line: str, where: str) -> dict[str, str]:
    try:
        dtypes = json.loads(line.removeprefix(EXTRAS))
        return {str(name): str(dtype) for name, dtype in dtypes.items() if ARROW_TYPES[dtype]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = "remove the line; types are then inferred"
        raise InputError(f"broken tracebed-extras line: {error!r}", where=where, hint=hint) from None


def write(workload: Workload, file: BinaryIO) -> None:
    """Write provenance, header and rows; equal workloads give identical files."""
    extras = {name: dtype_of(values) for name, values in _columns(workload.table) if name not in SCHEMA}
    file.write(f"{PROVENANCE_LINE}{workload.provenance.to_json()}\n".encode())
    if extras:
        file.write(f"{EXTRAS}{json.dumps(extras)}\n".encode())
    arrays = {name: pa.array(values, from_pandas=True) for name, values in _columns(workload.table)}
    pc.write_csv(pa.table(arrays), file)


def _columns(table: pd.DataFrame) -> Iterator[tuple[str, pd.Series[Any]]]:
    return ((str(name), values) for name, values in table.items())


FORMAT = Format(
    "csv",
    "tracebed's own",
    recognizes,
    marks=Marks.COMMON_NAMES,
    suffixes=(".csv",),
    read=read,
    write=write,
)
