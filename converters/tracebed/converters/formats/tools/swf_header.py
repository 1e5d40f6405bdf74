"""The comments of a file in Standard Workload Format: labels with values, and what tracebed adds to them.

SWF has 18 fields. What a workload has beyond them stands in comments that other readers pass over:

    ; Tracebed-Provenance: {...}                   where the workload comes from
    ; Tracebed-Table: ["job_id", ...]              its columns, in order
    ; Tracebed-Column: {"name": ..., "dtype": ..., "values": [...]}
                                                   values of a column, in the order of the job lines; repeats
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import MAX_SIZE, Provenance, System, dtype_of
from tracebed.errors import InputError

OURS = "Tracebed-"
LABEL = re.compile(r"[ \t]{0,3}([A-Za-z][\w-]*):(?!/)(.*)")
WRITTEN = (
    *("Version", "MaxJobs", "MaxRecords", "MaxNodes", "MaxProcs", "UnixStartTime", "TimeZoneString"),
    *("TimeZone", "StartTime", "EndTime", "MaxRuntime"),
)
"""Labels that say something of the jobs or the clock: written anew, never carried over from another file."""
VALUES_PER_LINE = 100


@dataclass
class Header:
    """What the comments of an SWF file say."""

    labels: dict[str, list[str]] = field(default_factory=dict)
    """label -> its values in order; continuation lines are joined to the value with line breaks."""
    provenance: Provenance | None = None
    """Only in a file that tracebed wrote, like the two below."""
    columns: tuple[str, ...] = ()
    values: dict[str, pd.Series[Any]] = field(default_factory=dict)

    def number(self, label: str) -> int | None:
        """Return the first whole number in the first value of `label`, if there is one and it is positive."""
        found = re.match(r"\s*(\d{1,4000})", (self.labels.get(label) or [""])[0])
        return int(found[1]) or None if found else None

    def size(self, label: str) -> int | None:
        """Return the number in `label` unless it is beyond `MAX_SIZE`."""
        number = self.number(label)
        return None if number is None or number > MAX_SIZE else number

    def absurd(self) -> dict[str, int]:
        """Return the labels whose sizes are none, for a warning."""
        labels = [label for label in ("MaxNodes", "MaxProcs") if self.number(label) != self.size(label)]
        return {f"a header with {label} of more than {MAX_SIZE:,}, taken as not known": 1 for label in labels}

    def text(self, label: str) -> str:
        """Return the first value of `label`, empty if there is none."""
        return (self.labels.get(label) or [""])[0]

    def system(self, by: str) -> System:
        """Return the machine: MaxNodes of MaxProcs / MaxNodes cores; by core, MaxProcs nodes of one core."""
        nodes, cores = self.size("MaxNodes"), self.size("MaxProcs")
        if nodes is None or by == "core":
            return System(cores or nodes, 1, self.text("Computer"))
        return System(nodes, max(1, -(-(cores or nodes) // nodes)), self.text("Computer"))


def parse(lines: Iterable[tuple[int, str]], where: str) -> Header:
    """Read comments, given as (line number, what follows the semicolon).

    Raises:
        InputError: a comment of tracebed's own is broken.
    """
    header = Header()
    ours: dict[str, list[Any]] = {}
    label = ""
    for number, line in lines:
        found = LABEL.match(line)
        if found and found[1].startswith(OURS):
            try:
                ours.setdefault(found[1], []).append(json.loads(found[2]))
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"broken {found[1]} comment: {error}",
                    where=f"{where}:{number}",
                    hint="write the file again, or remove all Tracebed- comments to read it as plain SWF",
                ) from None
        elif found:
            label = found[1]
            header.labels.setdefault(label, []).append(found[2].strip())
        elif line.strip():
            values = header.labels.setdefault(label or "Note", [])
            if label and values:
                values[-1] = f"{values[-1]}\n{line.strip()}".strip()
            else:
                values.append(line.strip())
        else:
            label = ""
    _take_ours(header, ours, where)
    return header


def _take_ours(header: Header, ours: dict[str, list[Any]], where: str) -> None:
    try:
        for record in ours.get("Tracebed-Provenance", [])[:1]:
            header.provenance = Provenance.from_json(json.dumps(record), where=where)
            header.columns = tuple(ours["Tracebed-Table"][0])
        parts: dict[tuple[str, str], list[Any]] = {}
        for record in ours.get("Tracebed-Column", []):
            parts.setdefault((record["name"], record["dtype"]), []).extend(record["values"])
        for (name, dtype), values in parts.items():
            header.values[name] = pd.Series(np.array(values, dtype=object if dtype == "str" else dtype), dtype=dtype)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise InputError(
            f"broken Tracebed- comments: {error!r}",
            where=where,
            hint="write the file again, or remove all Tracebed- comments to read it as plain SWF",
        ) from None


def lines_of(provenance: Provenance, jobs: int) -> Iterator[str]:
    """Yield the standard header of a file with `jobs` jobs."""
    system = provenance.system
    yield "; Version: 2.2"
    yield f"; MaxJobs: {jobs}"
    yield f"; MaxRecords: {jobs}"
    if provenance.unix_start is not None:
        yield f"; UnixStartTime: {provenance.unix_start:.0f}"
    if provenance.time_zone:
        yield f"; TimeZoneString: {provenance.time_zone}"
    if system.nodes:
        yield f"; MaxNodes: {system.nodes}"
        yield f"; MaxProcs: {system.nodes * (system.cores_per_node or 1)}"
    for label, values in provenance.header.items():
        if label not in WRITTEN:
            for value in values:
                first, *more = value.splitlines() or [""]
                yield f"; {label}: {first}"
                yield from (f";       {line}" for line in more)


def our_lines(provenance: Provenance, table: pd.DataFrame, lost: Iterable[str]) -> Iterator[str]:
    """Yield tracebed's own comments: the provenance, and the values of the columns `lost`."""
    yield f"; Tracebed-Provenance: {provenance.to_json()}"
    yield f"; Tracebed-Table: {json.dumps([str(name) for name in table])}"
    for name in lost:
        dtype = dtype_of(table[name])
        values = [None if value != value else value for value in table[name].tolist()]
        for begin in range(0, len(values), VALUES_PER_LINE):
            part = {"name": name, "dtype": dtype, "values": values[begin : begin + VALUES_PER_LINE]}
            yield f"; Tracebed-Column: {json.dumps(part)}"
