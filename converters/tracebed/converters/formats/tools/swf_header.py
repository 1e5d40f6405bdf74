"""The header comments of a file in Standard Workload Format: labels with values, and tracebed's own comments.

SWF has 18 fields. Further data of a workload is stored in comments, which other readers ignore:

    ; Tracebed-Provenance: {...}                   the origin of the workload
    ; Tracebed-Table: ["job_id", ...]              its columns, in order
    ; Tracebed-Column: {"name": ..., "dtype": ..., "values": [...]}
                                                   values of a column, in the order of the job lines; repeated
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from tracebed.converters.workload import MAX_SIZE, Provenance, System, dtype_of
from tracebed.ground.errors import InputError, reason_of

OURS = "Tracebed-"
LABEL = re.compile(r"[ \t]{0,3}([A-Za-z][\w-]*):(?!/)(.*)")
WRITTEN = (
    *("Version", "MaxJobs", "MaxRecords", "MaxNodes", "MaxProcs", "UnixStartTime", "TimeZoneString"),
    *("TimeZone", "StartTime", "EndTime", "MaxRuntime"),
)
"""Labels that describe the jobs or the clock. They are recomputed, not copied from the input file."""
VALUES_PER_LINE = 100
UNITS = {
    **{"MaxNodes": "nodes?|hosts?", "MaxProcs": r"cores?|cpus?|pes?|proc(?:essor)?s?", "MaxJobs": "jobs?"},
    **{"UnixStartTime": "s|sec(?:ond)?s?"},
}
"""Label -> pattern of the units of its number. A number of another unit is another quantity: MaxProcs of 16 nodes."""
WHOLE = r"(\d{1,18}|\d{1,3}(?:[,' \u00a0\u202f]\d{3}){1,5})(?:\.0*)?"
"""A whole number, maybe with separators of thousands: `1,152`."""
COMMENT = r"\s*(?:(?:[(\[;\n]|,\s).*)?"
"""What may follow a number: `144 (144 nodes of 4)`."""
MAX_OFFSET_S = 14 * 3600
"""Largest offset of a time zone."""
UNKNOWN = re.compile(r"-1(?!\d)|\Z")


@dataclass
class SwfHeader:
    """The header comments of an SWF file."""

    labels: dict[str, list[str]] = field(default_factory=dict)
    """Label -> values in order; continuation lines are joined with line breaks."""
    provenance: Provenance | None = None
    """Present only in a file that tracebed wrote, like `columns` and `values`."""
    columns: tuple[str, ...] = ()
    values: dict[str, pd.Series[Any]] = field(default_factory=dict)

    def number(self, label: str) -> int | None:
        """Return the first value of `label` if it is a positive whole number (not a date or `4x16`), otherwise None."""
        unit = rf"(?:\s*(?:{UNITS[label]}))?"
        match = re.fullmatch(WHOLE + unit + COMMENT, self.text(label).strip(), re.IGNORECASE | re.DOTALL)
        return int(re.sub(r"\D", "", match[1])) or None if match else None

    def size(self, label: str) -> int | None:
        """Return the number in `label`, or None if it exceeds `MAX_SIZE`."""
        number = self.number(label)
        return None if number is None or number > MAX_SIZE else number

    def start(self) -> tuple[float | None, bool]:
        """Return the instant of time 0 in s since 1970, and whether a date was read in an assumed time zone, UTC.

        `UnixStartTime` is a number; some logs have a date there, which is one of the time zone of the log, by name or
        by its offset in s (`TimeZone`, which newer versions of the format no longer have).
        """
        number = self.number("UnixStartTime")
        if number is not None:
            return float(number), False
        try:
            date = datetime.fromisoformat(self.text("UnixStartTime").strip())
        except ValueError:
            return None, False
        if date.tzinfo is not None:
            return date.timestamp(), False
        zone, offset = self.text("TimeZoneString").strip(), self.text("TimeZone").strip()
        try:
            return date.replace(tzinfo=ZoneInfo(zone)).timestamp(), False
        except (KeyError, ValueError, OSError):  # not the name of a time zone
            known = re.fullmatch(r"[+-]?\d{1,5}", offset) is not None and abs(int(offset)) <= MAX_OFFSET_S
            return date.replace(tzinfo=UTC).timestamp() - (int(offset) if known else 0), not known

    def defects(self) -> dict[str, int]:
        """Return warnings about labels with invalid numbers."""
        defects = {}
        for label in ("MaxNodes", "MaxProcs", "MaxJobs", "UnixStartTime"):
            text = self.text(label).strip()
            if label == "UnixStartTime":
                known, assumed = self.start()
                defects["header with a date as UnixStartTime, taken as UTC"] = int(assumed)
            else:
                known = self.number(label)
                if label != "MaxJobs" and known != self.size(label):
                    defects[f"header with {label} above {MAX_SIZE:,}, set to unknown"] = 1
            if known is None and not UNKNOWN.match(text) and not re.fullmatch(r"0+", text):
                defects[f"header with {label} {text.splitlines()[0][:40]!r}, not a number, set to unknown"] = 1
        return defects

    def text(self, label: str) -> str:
        """Return the first value of `label`, or an empty string."""
        return (self.labels.get(label) or [""])[0]

    def system(self, by: str) -> System:
        """Return the machine: MaxNodes nodes with MaxProcs / MaxNodes cores, or MaxProcs one-core nodes by core."""
        nodes, cores = self.size("MaxNodes"), self.size("MaxProcs")
        if nodes is None or by == "core":
            return System(cores or nodes, 1, self.text("Computer"))
        return System(nodes, max(1, -(-(cores or nodes) // nodes)), self.text("Computer"))


def parse(lines: Iterable[tuple[int, str]], where: str) -> SwfHeader:
    """Parse comments, given as (line number, text after the semicolon)."""
    header = SwfHeader()
    ours: dict[str, list[Any]] = {}
    label = ""
    for number, line in lines:
        match = LABEL.match(line)
        if match and match[1].startswith(OURS):
            try:
                ours.setdefault(match[1], []).append(json.loads(match[2]))
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"broken {match[1]} comment: {reason_of(error)}",
                    where=f"{where}:{number}",
                    hint="write the file again, or remove all Tracebed- comments to read it as plain SWF",
                ) from None
        elif match:
            label = match[1]
            header.labels.setdefault(label, []).append(match[2].strip())
        elif line.strip():
            values = header.labels.setdefault(label or "Note", [])
            if label and values:
                values[-1] = f"{values[-1]}\n{line.strip()}".strip()
            else:
                values.append(line.strip())
        else:
            label = ""
    _parse_own(header, ours, where)
    return header


def _parse_own(header: SwfHeader, ours: dict[str, list[Any]], where: str) -> None:
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
    """Yield the lines of the standard header of a file with `jobs` jobs."""
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


def own_lines(provenance: Provenance, table: pd.DataFrame, lost: Iterable[str]) -> Iterator[str]:
    """Yield tracebed's comments: the provenance, and the values of the columns `lost`."""
    yield f"; Tracebed-Provenance: {provenance.to_json()}"
    yield f"; Tracebed-Table: {json.dumps([str(name) for name in table])}"
    for name in lost:
        dtype = dtype_of(table[name])
        values = [None if value != value else value for value in table[name].tolist()]
        for begin in range(0, len(values), VALUES_PER_LINE):
            part = {"name": name, "dtype": dtype, "values": values[begin : begin + VALUES_PER_LINE]}
            yield f"; Tracebed-Column: {json.dumps(part)}"
