"""The calendar of a machine: the outages of its nodes. Readers of files are entry points of `tracebed.outages`.

A source of outages is a module with an `OutageSource` and one line in `pyproject.toml`, in tracebed or in another
package:

    [project.entry-points."tracebed.outages"]
    mine = "my_package.mine:SOURCE"
"""

from __future__ import annotations

import csv
import enum
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tracebed.converters.provenance import Provenance
from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.ground.extension_errors import checked
from tracebed.ground.input_files import read_text
from tracebed.ground.registry import Registry, one_of, unknown
from tracebed.machine.machine import expanded
from tracebed.machine.nodes import NodeFacts


class OutageKind(enum.StrEnum):
    """What an outage of a node means for the jobs."""

    DOWN = "down"
    """The jobs on the node are lost."""
    DRAIN = "drain"
    """The jobs on the node end as usual. No other job starts there."""


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A time in which a node takes no jobs.

    Attributes:
        node: name of the node.
        start: first instant, trace s (s since time 0 of the workload). It may be negative.
        end: first instant after the outage, trace s; infinite: the node does not return.
        kind: `down` or `drain`.
        reason: the reason, for `run.json`; may be empty.
    """

    node: str
    start: float
    end: float = math.inf
    kind: OutageKind = OutageKind.DOWN
    reason: str = ""

    def __post_init__(self) -> None:
        """Raise InputError if the kind is unknown, an instant is not a number, or the end is not after the start."""
        one_of("kind of outage", self.kind, OutageKind)
        object.__setattr__(self, "kind", OutageKind(self.kind))
        bounds.check("start of an outage", self.start, -bounds.MAX_EXACT, bounds.MAX_EXACT)
        if self.end != math.inf:
            bounds.check("end of an outage", self.end, -bounds.MAX_EXACT, bounds.MAX_EXACT)
        if not self.start < self.end:
            what = f"an outage of node {self.node} ends at {self.end:g} s, and starts at {self.start:g} s"
            raise InputError(what, hint="an outage ends after its start")


class NodeChange(NamedTuple):
    """The instant at which the availability of a node changes."""

    at: float
    """Trace s."""
    node: int
    """Number of the node on the machine."""
    kind: OutageKind | None
    """The kind of outage from now on; None: the node is back."""
    reason: str


@dataclass(frozen=True)
class Calendar:
    """The outages of a machine, in any order.

    Outages of one node may overlap: the node is back when all have ended, and `down` is stronger than `drain`. What was
    before time 0 counts from time 0 on.
    """

    outages: tuple[Outage, ...] = ()

    def changes(self, nodes: Sequence[NodeFacts]) -> list[NodeChange]:
        """Return the changes of the availability of the nodes of a machine, in the order of time, then of nodes.

        Raises:
            InputError: a node of an outage is not on the machine.
        """
        numbers = {node.name: number for number, node in enumerate(nodes)}
        by_node: dict[int, list[Outage]] = {}
        for outage in self.outages:
            if outage.node not in numbers:
                what = f"an outage has node {outage.node!r}, which is not on the machine"
                raise InputError(what, hint=f"the {len(nodes):,} nodes are {nodes[0].name} to {nodes[-1].name}")
            by_node.setdefault(numbers[outage.node], []).append(outage)
        changes = [change for node, outages in by_node.items() for change in _changes(node, outages)]
        return sorted(changes, key=lambda change: change[:2])

    @property
    def digest(self) -> str:
        """Hash of the outages."""
        rows = [[*vars(outage).values()] for outage in self.outages]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _changes(node: int, outages: list[Outage]) -> Iterable[NodeChange]:
    """Yield the changes of a node."""
    outages = sorted((outage for outage in outages if outage.end > 0), key=lambda outage: outage.start)
    edges = sorted({max(0.0, edge) for outage in outages for edge in (outage.start, outage.end) if edge < math.inf})
    current: list[Outage] = []
    kind, following = None, 0
    for edge in edges:
        while following < len(outages) and outages[following].start <= edge:
            current.append(outages[following])
            following += 1
        current = [outage for outage in current if outage.end > edge]
        strongest = next((outage for outage in current if outage.kind is OutageKind.DOWN), next(iter(current), None))
        if (strongest.kind if strongest else None) is not kind:
            kind = strongest.kind if strongest else None
            yield NodeChange(edge, node, kind, strongest.reason if strongest else "")


# -- files -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutageSource:
    """A kind of file that lists outages."""

    title: str
    """What the file is, in a few words."""
    recognizes: Callable[[str], bool]
    """Return whether a text is of this kind, by its first line."""
    read: Callable[[str, str, Clock], Iterable[Outage]]
    """Read the outages: `read(text, file, clock)`. Raises InputError if a line is invalid."""


SOURCES: Registry[OutageSource] = Registry("tracebed.outages", "source of outages", OutageSource)


DAY_S = 86_400
UNDATED = "the date of time 0 of the workload is unknown: time 0 counts as midnight"


@dataclass(frozen=True)
class Clock:
    """The clock of a workload, which makes trace seconds of dates and of times of the day.

    Attributes:
        unix_start: Unix time of time 0, s; None: unknown.
        zone: time zone of dates without an offset; empty: UTC.
    """

    unix_start: float | None = None
    zone: str = ""

    @classmethod
    def of(cls, provenance: Provenance) -> Clock:
        """Return the clock of a workload."""
        return cls(provenance.unix_start, provenance.time_zone or "")

    @property
    def time_zone(self) -> tzinfo | None:
        """The time zone; None: it is not stated, or there is no such zone."""
        try:
            return ZoneInfo(self.zone) if self.zone else None
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return None

    def day(self, at: float) -> int:
        """Return the number of the day of an instant, trace s. Without a date of time 0, time 0 begins day 0."""
        if self.unix_start is None:
            return math.floor(at / DAY_S)
        return datetime.fromtimestamp(self.unix_start + at, self.time_zone or UTC).toordinal()

    def instant(self, day: int, second: int) -> float:
        """Return the trace seconds of a second of a day, by the clock of the time zone; UTC if that is unknown."""
        if self.unix_start is None:
            return float(DAY_S * day + second)
        local = datetime.combine(date.fromordinal(day), time()) + timedelta(seconds=second)
        return local.replace(tzinfo=self.time_zone or UTC).timestamp() - self.unix_start

    def seconds(self, text: str, where: str) -> float:
        """Return the trace seconds of a date in ISO 8601, or of a number of seconds since time 0.

        Raises:
            InputError: the text is neither, or a date, and the date of time 0 is unknown.
        """
        try:
            return float(text)
        except ValueError:
            pass
        return self.of_date(text, where)

    def of_date(self, text: str, where: str) -> float:
        """Return the trace seconds of a date in ISO 8601. Raises InputError as `seconds`."""
        try:
            date = datetime.fromisoformat(text)
            date = date if date.tzinfo else date.replace(tzinfo=ZoneInfo(self.zone or "UTC"))
            instant = date.timestamp()
        except (ValueError, OverflowError, ZoneInfoNotFoundError):
            hint = "write seconds since time 0 of the workload, or a date such as 2026-01-31T12:00:00"
            raise InputError(f"{text[:40]!r} is not a time", where=where, hint=hint) from None
        return self.of_unix(instant, where, text)

    def of_unix(self, instant: float, where: str, text: str = "") -> float:
        """Return the trace seconds of a Unix time, which is `text` in the file. Raises InputError as `seconds`."""
        if self.unix_start is None:
            what = f"{text or f'{instant:.0f}'!r} is a date, but the date of time 0 of the workload is unknown"
            raise InputError(what, where=where, hint="write seconds since time 0")
        return instant - self.unix_start


def read_outages(file: Path | str, clock: Clock | None = None) -> Calendar:
    """Return the calendar in a file. Its first line says of which installed source it is.

    Args:
        file: the file.
        clock: the clock of the workload, for dates; None: the file has seconds since time 0.

    Raises:
        InputError: the file does not exist, no source recognizes it, or a line is invalid.
    """
    text = read_text(Path(file), "outages", hint="check the path")
    sources = [source for _, source in SOURCES.all()]
    source = next((source for source in sources if source.recognizes(text)), None)
    if source is None:
        titles = ", ".join(source.title for source in sources)
        raise InputError("does not list outages", where=str(file), hint=f"give {titles}")
    what = f"the reader of {source.title}"
    outages = checked(source.read(text, str(file), clock or Clock()), Iterable, what, source.read)
    return Calendar(tuple(checked(outage, Outage, what, source.read) for outage in outages))


COLUMNS = ("node", "from", "to", "kind", "reason")
NEEDED = COLUMNS[:2]


def _header(text: str) -> list[str]:
    return [name.strip().lower() for name in text.partition("\n")[0].lstrip("\ufeff").split(",")]


def _read_csv(text: str, file: str, clock: Clock) -> Iterable[Outage]:
    header = _header(text)
    for name in header:
        if name not in COLUMNS:
            error = unknown("column", name, [*COLUMNS])
            raise InputError(error.what, where=f"{file}:1", hint=error.hint)
    lines = csv.reader(io.StringIO(text, newline=""))
    next(lines)
    while True:
        where = f"{file}:{lines.line_num + 1}"
        try:
            cells = next(lines)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"is not CSV: {error}", where=where, hint="quote texts with commas or quotes") from error
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) > len(header):
            raise InputError(f"has {len(cells)} cells, and the header {len(header)}", where=where, hint="quote commas")
        row = {name: cell.strip() for name, cell in zip(header, cells, strict=False)}
        try:
            start = clock.seconds(row["from"], where)
            end = clock.seconds(row["to"], where) if row.get("to") else math.inf
            kind = OutageKind.DOWN if not row.get("kind") else row["kind"].lower()
            for node in expanded([row["node"]]):
                yield Outage(node=node, start=start, end=end, kind=kind, reason=row.get("reason", ""))  # type: ignore[arg-type]
        except InputError as error:
            raise InputError(error.what, where=error.where or where, hint=error.hint) from error
        except KeyError as error:
            raise InputError(f"has no {error.args[0]}", where=where, hint="give node and from in each line") from None


CSV = OutageSource(
    "CSV with the columns node, from, to, kind, reason", lambda text: {*NEEDED} <= {*_header(text)}, _read_csv
)
"""Tables of outages: one row a node, or a range of nodes."""
