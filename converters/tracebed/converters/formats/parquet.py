"""Workloads as Parquet: the unchanged table, provenance in the schema metadata, meanings in the column metadata."""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools.files import PARQUET, PROVENANCE, Input
from tracebed.converters.schema import meaning_of
from tracebed.converters.workload import Provenance, Step, Workload
from tracebed.ground.parquet_file import read_packed, refusing
from tracebed.ground.table import cast

MEANING = b"meaning"
"""Key of the meaning and unit of a column in its metadata."""
ROWS = 2**20
"""Rows in a row group."""


def recognizes(file: Input) -> bool:
    """Return whether the file is Parquet and has the columns of a workload."""
    return file.head.startswith(PARQUET) and {"job_id", "submit_time", "run_time", "nodes"} <= set(file.columns)


def read(file: Input) -> Workload:
    """Read a workload; raise InputError if the file is broken, too large, or is not a workload."""
    hint = "write the file again"
    source = file.seekable()
    content = read_packed(source, where=file.where, hint=hint)
    with refusing(file.where, hint):
        kept = (pq.read_schema(source).metadata or {}).get(PROVENANCE)
        table = _texts(content) if isinstance(content, pa.Table) else content
    provenance = (
        Provenance.from_json(kept, where=file.where)
        if kept
        else Provenance(sources=(file.source,), steps=(Step("read", {"format": "parquet"}),))
    )
    return Workload(table, provenance, where=file.where)


def _texts(content: pa.Table) -> pa.Table:
    """Return the table with binary columns, which older writers use for text, as text; ArrowInvalid: not UTF-8."""
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    fields = [
        field.with_type(pa.string()) if any(is_(field.type) for is_ in binary) else field for field in content.schema
    ]
    columns = [
        column if column.type == field.type else cast(column, field.type)
        for column, field in zip(content.columns, fields, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, content.schema.metadata))


def write(workload: Workload, file: BinaryIO) -> None:
    """Write the table with the provenance in its metadata; equal workloads give identical files."""
    content = workload.columns.arrow()
    metadata = {PROVENANCE: workload.provenance.to_json().encode()}
    columns = [column.with_metadata({MEANING: meaning_of(column.name).encode()}) for column in content.schema]
    content = pa.Table.from_arrays(content.columns, schema=pa.schema(columns, metadata))
    with pq.ParquetWriter(file, content.schema, compression="zstd") as writer:
        for first in range(0, len(content), ROWS):  # combined, so that pages do not depend on how the input was chunked
            writer.write_table(content.slice(first, ROWS).combine_chunks(), ROWS)


FORMAT = Format(
    "parquet",
    "tracebed's own",
    recognizes,
    marks=Marks.COMMON_NAMES,
    suffixes=(".parquet",),
    read=read,
    write=write,
)
