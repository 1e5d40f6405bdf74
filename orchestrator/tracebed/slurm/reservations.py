"""The advance reservations of a Slurm cluster, from the output of `scontrol show reservation`.

Source: scontrol(1) of Slurm 22.05, and its output (recordings `reservation*`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from pydantic import TypeAdapter

from tracebed.ground.errors import InputError
from tracebed.slurm.conf_lines import hosts_of, whole
from tracebed.slurm.values import Fact

FIRST = "ReservationName="
NONE = "No reservations in the system"
ABSENT = ("", "(null)", "N/A", "n/a")
DAY_S = 86400
PERIODS = {"HOURLY": 3600, "DAILY": DAY_S, "WEEKDAY": DAY_S, "WEEKEND": DAY_S, "WEEKLY": 7 * DAY_S}
"""Flag -> time between two occurrences, s."""
ASSUMED = {
    "MAGNETIC": "only jobs that name the reservation run in it",
    "TIME_FLOAT": "it begins at the given time",
    "PURGE_COMP": "it lasts until its end",
    "REPLACE": "its nodes do not change",
    "NO_HOLD_JOBS_AFTER": "jobs that wait for it at its end never start",
}
"""Flag without a model -> what is assumed."""
SHORTEST = 60


class Reservation(Fact):
    """An advance reservation.

    Attributes:
        begin, end: its first and last instant, s since 1970.
        nodes: its nodes, as a list of hosts; empty: none.
        cores: number of its cores; 0: unknown.
        period_s: time between two occurrences, s; 0: one occurrence.
        days: days of the week of the occurrences, 0 for Monday; empty: all.
        flexible: whether its jobs may also run on other nodes, and outside of its time (`FLEX`).
    """

    name: str
    begin: int
    end: int
    nodes: str = ""
    cores: int = 0
    period_s: int = 0
    days: tuple[int, ...] = ()
    flexible: bool = False

    def until(self, last: int) -> list[tuple[int, int]]:
        """Return begin and end of each occurrence that begins until `last`; the first one in any case."""
        found, begin = list[tuple[int, int]](), self.begin
        while not found or (self.period_s and begin <= last):
            if not self.days or datetime.fromtimestamp(begin, UTC).weekday() in self.days or not self.period_s:
                found.append((begin, begin + self.end - self.begin))
            begin += max(self.period_s, SHORTEST)
        return found


LIST = TypeAdapter(tuple[Reservation, ...])


def recognized(text: str) -> bool:
    """Return whether a text is the output of `scontrol show reservation`."""
    return text.lstrip().startswith((FIRST, NONE))


def read(text: str, file: str, zone: str = "") -> tuple[tuple[Reservation, ...], list[str]]:
    """Return the reservations of a text, and a sentence for each unmodeled setting. Without a `zone`, times are UTC."""
    found, unmodeled, local = list[Reservation](), dict[str, list[str]](), False
    for number, part in enumerate(re.split(rf"(?=\b{FIRST})", text)[1:], 1):
        values = dict(re.findall(r"(\w+)=(\S*)", part))
        where = f"{file}: reservation {number}"
        local = local or "T" in values.get("StartTime", "")
        flags = [flag.partition("=")[0] for flag in re.split("[,+]", values.get("Flags", ""))]
        nodes = "" if values.get("Nodes", "") in ABSENT else values["Nodes"]
        if nodes:
            hosts_of(nodes, where)
        name = values["ReservationName"]
        for flag in (flag for flag in flags if flag in ASSUMED):
            unmodeled.setdefault(f"flag {flag} of reservations is not modeled; {ASSUMED[flag]}", []).append(name)
        if values.get("MaxStartDelay", "") not in ABSENT:
            what = "MaxStartDelay of reservations is not modeled; jobs with --signal=R wait for its nodes"
            unmodeled.setdefault(what, []).append(name)
        if values.get("Licenses", "") not in ABSENT:
            what = "licences of reservations are not modeled; they are free for all jobs"
            unmodeled.setdefault(what, []).append(name)
        period = next((PERIODS[flag] for flag in flags if flag in PERIODS), 0)
        days = tuple(range(5)) if "WEEKDAY" in flags else (5, 6) if "WEEKEND" in flags else ()
        begin, end = (_instant(values.get(key, ""), where, zone) for key in ("StartTime", "EndTime"))
        cores = whole(values.get("CoreCnt", ""), 0)
        own = Reservation(name=name, begin=begin, end=end, nodes=nodes, cores=cores, period_s=period, days=days)
        found.append(own.model_copy(update={"flexible": "FLEX" in flags}))
    sentences = [f"{what} ({', '.join(names[:12])})" for what, names in unmodeled.items()]
    if local and not zone:
        sentences.append("the times of the reservations are read as UTC; with SLURM_TIME_FORMAT=%s, they have no zone")
    return tuple(found), sentences


def _instant(text: str, where: str, zone: str) -> int:
    try:
        instant = datetime.fromisoformat(text)
        return int((instant if instant.tzinfo else instant.replace(tzinfo=ZoneInfo(zone or "UTC"))).timestamp())
    except ValueError:
        if text.isdecimal() and len(text) < 12:
            return int(text)
        raise InputError(
            f"{text[:40]!r} is not a time", where=where, hint="give the output of scontrol show reservation"
        ) from None
