"""Workloads as CSV: the provenance in a comment on the first line, the columns' names, a row a job.

Dtypes are those of the workload's schema; columns outside it (`extra_...`) say theirs in a second comment.
Nothing between two commas is an empty text, or a number that is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc

from tracebed.converters.formats.files import Input
from tracebed.converters.workload import SCHEMA, Provenance, Step, Workload, dtype_of
from tracebed.errors import InputError

PROVENANCE = b"# tracebed-provenance: "
EXTRAS = b"# tracebed-extras: "
ARROW_TYPES = {"str": pa.string(), "float64": pa.float64(), "int64": pa.int64(), "bool": pa.bool_()}


def recognises(file: Input) -> bool:
    """Tell a workload's CSV by its provenance line, or by the names in its header."""
    head = file.head.removeprefix(b"\xef\xbb\xbf")
    return head.startswith(PROVENANCE) or {"job_id", "submit_time", "run_time", "nodes"} <= set(file.columns)


def read(file: Input) -> Workload:
    """Read a workload; raise InputError, with the line, where the file is broken or no workload."""
    data = file.data.removeprefix(b"\xef\xbb\xbf")
    provenance = Provenance(sources=(file.source,), steps=(Step("read", {"format": "csv"}),))
    extras: dict[str, str] = {}
    if data.startswith(PROVENANCE):
        line, _, data = data.partition(b"\n")
        provenance = Provenance.from_json(line.removeprefix(PROVENANCE), where=f"{file.where}:1")
    if data.startswith(EXTRAS):
        line, _, data = data.partition(b"\n")
        extras = _extras(line, file.where)
    dtypes = {name: column.dtype for name, column in SCHEMA.items()} | extras
    try:
        try:
            table = _table(data, dtypes)
        except pa.ArrowInvalid:
            table = _table(data, dtypes, use_threads=False)  # again: only in a single thread does Arrow count the rows
    except (pa.ArrowException, OSError, ValueError) as error:
        line_of_error = str(error).splitlines()[0]
        raise InputError(
            f"not a readable CSV file: {line_of_error}",
            where=file.where,
            mend="mend that row, or write it again",
        ) from None
    return Workload(table, provenance, where=file.where)


def _table(data: bytes, dtypes: Mapping[str, str], *, use_threads: bool = True) -> pd.DataFrame:
    content: pa.Table = pc.read_csv(
        pa.BufferReader(data),
        read_options=pc.ReadOptions(use_threads=use_threads),
        parse_options=pc.ParseOptions(newlines_in_values=True),
        convert_options=pc.ConvertOptions(
            column_types={name: ARROW_TYPES[dtype] for name, dtype in dtypes.items()},
            null_values=["", "nan", "NaN"],
            strings_can_be_null=False,
        ),
    )
    table: pd.DataFrame = content.to_pandas()
    return table


def _extras(line: bytes, where: str) -> dict[str, str]:
    try:
        dtypes = json.loads(line.removeprefix(EXTRAS))
        return {str(name): str(dtype) for name, dtype in dtypes.items() if ARROW_TYPES[dtype]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        mend = "remove that line to let the types be guessed"
        raise InputError(f"broken tracebed-extras line: {error!r}", where=where, mend=mend) from None


def write(workload: Workload, file: BinaryIO) -> None:
    """Write provenance, header and rows; the same workload gives the same bytes."""
    extras = {name: dtype_of(values) for name, values in _columns(workload.table) if name not in SCHEMA}
    file.write(PROVENANCE + workload.provenance.to_json().encode() + b"\n")
    if extras:
        file.write(EXTRAS + json.dumps(extras).encode() + b"\n")
    arrays = {name: pa.array(values, from_pandas=True) for name, values in _columns(workload.table)}
    pc.write_csv(pa.table(arrays), file)


def _columns(table: pd.DataFrame) -> Iterator[tuple[str, pd.Series[Any]]]:
    return ((str(name), values) for name, values in table.items())
