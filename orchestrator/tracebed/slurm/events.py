"""The outages of the nodes of a Slurm cluster, from the output of `sacctmgr -P show event`.

Source: sacctmgr(1) of Slurm 22.05, and the output of Slurm 22.05.8 with slurmdbd. An event DRAIN begins when the last
job on the node has ended, not when the node was drained. A node that is down and drained has the state DRAIN; only
StateRaw says that it is down. A maintenance reservation is no event. A reason may contain a bar.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tracebed.ground.errors import InputError
from tracebed.machine.calendar import Clock, Outage, OutageKind, OutageSource

NEEDED = ("NodeName", "TimeStart", "TimeEnd", "State")
RAW, REASON = "StateRaw", "Reason"
OPEN = ("", "Unknown")
"""What TimeEnd is of an event that goes on."""
BASE_STATE = 0xF
"""Bits of StateRaw that have the state of a node without its flags."""
DOWN = 1
"""The state of these bits of a node that is down."""
HINT = "give the output of `sacctmgr -P show event` as it is"


def _header(text: str) -> list[str]:
    return text.partition("\n")[0].strip().split("|")


def _kind(row: dict[str, str], where: str) -> OutageKind:
    """Return the kind of outage of a state. Jobs are lost on a node that is down; other states take no new jobs."""
    if row.get(RAW):
        if not row[RAW].isdecimal():
            raise InputError(f"StateRaw is {row[RAW][:40]!r}", where=where, hint=HINT)
        return OutageKind.DOWN if int(row[RAW]) & BASE_STATE == DOWN else OutageKind.DRAIN
    return OutageKind.DOWN if row["State"].startswith("DOWN") else OutageKind.DRAIN


def _read(text: str, file: str, clock: Clock) -> Iterable[Outage]:
    header = _header(text)
    reason = header.index(REASON) if REASON in header else len(header) - 1
    for number, line in enumerate(text.splitlines()[1:], 2):
        if not line.strip():
            continue
        where, cells = f"{file}:{number}", line.split("|")
        bars = len(cells) - len(header)
        if bars < 0:
            raise InputError(f"has {len(cells)} of {len(header)} columns", where=where, hint=HINT)
        cells[reason : reason + bars + 1] = ["|".join(cells[reason : reason + bars + 1])]
        row = dict(zip(header, cells, strict=True))
        if not row["NodeName"]:  # an event of the cluster
            continue
        start = _instant(row["TimeStart"], clock, where)
        end = math.inf if row["TimeEnd"] in OPEN else _instant(row["TimeEnd"], clock, where)
        if start < end:  # an event may be over in the second in which it begins
            what = row.get(REASON) or row["State"]
            yield Outage(node=row["NodeName"], start=start, end=end, kind=_kind(row, where), reason=what)


def _instant(text: str, clock: Clock, where: str) -> float:
    """Return trace seconds of a date, or of a Unix time, which SLURM_TIME_FORMAT=%s gives."""
    return clock.of_unix(float(text), where) if text.isdecimal() and len(text) < 12 else clock.of_date(text, where)


SOURCE = OutageSource("the output of `sacctmgr -P show event`", lambda text: {*NEEDED} <= {*_header(text)}, _read)
"""Events of nodes, from the database of Slurm."""
