"""Standard Workload Format, version 2.2: 18 numbers per job, `;` comments.

Format: Chapin et al. 1999, and the Parallel Workloads Archive. The reader tolerates and counts the deviations of
real logs. The writer stores data that does not fit the 18 fields in comments (see `swf_header`), so that tracebed
reads back an identical workload.

The processors of a job (requested, or else allocated) become whole nodes: on nodes with c cores, p processors are
ceil(p / c) nodes with ceil(p / nodes) cores each, where c is MaxProcs / MaxNodes of the header. Two families of
logs have nodes and cores in fields after the 18th (see `swf_columns`), which then give the size.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools import swf_columns, swf_header
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.log import TOO_LARGE
from tracebed.converters.workload import Provenance, Step, Workload
from tracebed.ground.errors import InputError, tolerate


def recognizes(file: Input) -> bool:
    """Return whether the file begins with `;`, or with a line of at least 17 fields, the first five numbers."""
    first = file.head.lstrip().split(b"\n", 1)[0]
    if first.startswith(b";"):
        return True
    tokens = first.replace(b";", b" ").split()
    return len(tokens) >= 17 and all(re.fullmatch(rb"[-+]?\d+(\.\d*)?", token) for token in tokens[:5])


def read(file: Input, *, by: str = "node") -> Workload:
    """Read a log, or a workload written by tracebed. `by` core converts each processor to a node with one core."""
    if by not in ("node", "core"):
        raise InputError(f"invalid option by={by!r}", hint="use node or core")
    if b"\0" in file.text:
        raise InputError("binary data, not SWF", where=file.where, hint="check the file")
    lines = swf_columns.read_lines(file)
    header = swf_header.parse(lines.comments, file.where)
    if header.provenance is not None:
        if by == "core":
            raise InputError(
                "the file was written by tracebed and already has nodes",
                where=file.where,
                hint="read the original log by core",
            )
        decoded = swf_columns.decode(lines, header.system(by).cores_per_node or 1)
        return Workload(swf_columns.restored(decoded.table, header, file.where), header.provenance, where=file.where)
    swf_columns.refuse_unreadable(lines, file.where)
    system = header.system(by)
    decoded = swf_columns.decode(lines, system.cores_per_node or 1, by)
    if decoded.has_sizes and system.nodes is None and by == "node":
        system = replace(system, cores_per_node=None)  # the jobs have nodes and cores, the header has no machine
    counts = {**lines.counts, **decoded.counts, **header.defects(), **_mismatch(header, lines)}
    counts[TOO_LARGE] = int((decoded.table["nodes"] > system.nodes).sum()) if system.nodes else 0
    counts = {what: count for what, count in counts.items() if count}
    tolerate(counts, where=file.where)
    start, _ = header.start()
    provenance = Provenance(
        system=system,
        time_zone=header.text("TimeZoneString") or None,
        unix_start=decoded.unix_start or start,
        sources=(file.source,),
        steps=(Step("read", {"format": "swf", "by": by}, counts),),
        header=header.labels,
    )
    return Workload(decoded.table, provenance, where=file.where)


def write(workload: Workload, file: BinaryIO, *, whole_seconds: bool = False) -> None:
    """Write a workload, and warn about columns that only tracebed can read back.

    `whole_seconds` rounds times and memory in the job lines to integers, for programs that read only integers (AccaSim,
    AleaNG). The exact values are kept in comments.
    """
    provenance, table = workload.provenance, workload.table
    fields = swf_columns.encode(workload)
    if whole_seconds:
        fields = fields.apply(lambda values: np.rint(values).astype(np.int64) if values.dtype.kind == "f" else values)
    header = list(swf_header.lines_of(provenance, len(table)))
    labels = swf_header.parse(((0, line[1:]) for line in header), "")
    decoded = swf_columns.decode(swf_columns.FieldLines(fields), labels.system("node").cores_per_node or 1).table
    lost = swf_columns.lossy_columns(table, decoded)
    if lost:
        what = f"columns without a field in SWF ({', '.join(lost)}), kept in comments that only tracebed reads"
        tolerate({what: len(lost)})
    header += swf_header.own_lines(provenance, table, lost)
    file.write(("\n".join(header) + "\n").encode())
    plain = pc.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")
    pc.write_csv(pa.Table.from_pandas(fields, preserve_index=False), file, plain)


def _mismatch(header: swf_header.SwfHeader, lines: swf_columns.FieldLines) -> dict[str, int]:
    stated, jobs = header.number("MaxJobs"), len(lines.fields)
    if stated in (None, jobs):
        return {}
    return {f"header with MaxJobs {stated}, but {jobs} job lines": 1}


FORMAT = Format(
    "swf",
    "Standard Workload Format",
    recognizes,
    marks=Marks.LOOSE,
    suffixes=(".swf",),
    read=read,
    write=write,
)
