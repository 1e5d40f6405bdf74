"""Workloads as Parquet: the table as it is, the provenance in the schema's metadata, meanings in its columns'."""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tracebed.converters.dictionary import meaning_of
from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools.files import PARQUET, Input
from tracebed.converters.workload import Provenance, Step, Workload
from tracebed.errors import InputError

PROVENANCE = b"tracebed-provenance"
MEANING = b"meaning"
"""Key of a column's metadata under which stands what it means, with its unit."""
ROWS = 2**20
"""Of a row group."""


def recognises(file: Input) -> bool:
    """Tell a workload's Parquet file by its magic number and the names of its columns."""
    return file.head.startswith(PARQUET) and {"job_id", "submit_time", "run_time", "nodes"} <= set(file.columns)


def read(file: Input) -> Workload:
    """Read a workload; raise InputError where the file is broken or no workload."""
    try:
        content = pq.read_table(file.seekable())
        content.validate(full=True)
        table = _texts(content).to_pandas()
    except (pa.ArrowException, OSError, ValueError) as error:
        line = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"not a readable Parquet file: {line}", where=file.where, hint="write it again") from None
    kept = (content.schema.metadata or {}).get(PROVENANCE)
    provenance = (
        Provenance.from_json(kept, where=file.where)
        if kept
        else Provenance(sources=(file.source,), steps=(Step("read", {"format": "parquet"}),))
    )
    return Workload(table, provenance, where=file.where)


def _texts(content: pa.Table) -> pa.Table:
    """Return the table with text for bytes, as older writers store it; ArrowInvalid where they are no UTF-8."""
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    fields = [
        field.with_type(pa.string()) if any(is_(field.type) for is_ in binary) else field for field in content.schema
    ]
    return content.cast(pa.schema(fields, content.schema.metadata))


def write(workload: Workload, file: BinaryIO) -> None:
    """Write the table with the provenance in its metadata; the same workload gives the same bytes."""
    content = pa.Table.from_pandas(workload.table, preserve_index=False)
    metadata = {**(content.schema.metadata or {}), PROVENANCE: workload.provenance.to_json().encode()}
    columns = [column.with_metadata({MEANING: meaning_of(column.name).encode()}) for column in content.schema]
    content = pa.Table.from_arrays(content.columns, schema=pa.schema(columns, metadata))
    with pq.ParquetWriter(file, content.schema, compression="zstd") as writer:
        for first in range(0, len(content), ROWS):  # each in one piece, or pages would tell in which a file was read
            writer.write_table(content.slice(first, ROWS).combine_chunks(), ROWS)


FORMAT = Format(
    "parquet",
    "tracebed's own",
    recognises,
    marks=Marks.COMMON_NAMES,
    suffixes=(".parquet",),
    read=read,
    write=write,
)
