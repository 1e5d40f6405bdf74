"""Outages from the events of a Slurm cluster, as a real one printed them (`slurm_recordings/outages`)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tracebed.ground.errors import InputError
from tracebed.machine.calendar import Clock, Outage, OutageKind, read_outages

RECORDED = Path(__file__).parents[1] / "slurm_recordings" / "outages"
SUBMITTED = 1_795_895_790.0
"""Unix time at which the recorded job was submitted, about."""
DRAIN = OutageKind.DRAIN


def expected(last: OutageKind) -> tuple[Outage, ...]:
    """Return the recorded outages. `last`: the kind of the event of a node that was drained and down."""
    return (
        Outage(node="n1", start=8, end=21, reason="fan failure, rack 3"),
        Outage(node="n2", start=19, end=25, kind=DRAIN, reason="disk|soon"),
        Outage(node="n3", start=8, end=22, kind=DRAIN, reason="idle one"),
        Outage(node="n3", start=22, end=25, kind=last, reason="now down"),
        Outage(node="n4", start=8, end=math.inf, kind=DRAIN, reason="failing"),
        Outage(node="n6", start=22, end=math.inf, reason="Not responding"),
    )


@pytest.mark.parametrize(("name", "last"), [("default", DRAIN), ("unix", DRAIN), ("raw", OutageKind.DOWN)])
def test_the_events_of_a_real_slurm_are_outages(name: str, last: OutageKind) -> None:
    """Only StateRaw says that a drained node is down."""
    assert read_outages(RECORDED / f"{name}.txt", Clock(SUBMITTED)).outages == expected(last)


def test_dates_are_in_the_time_zone_of_the_workload(tmp_path: Path) -> None:
    path = tmp_path / "events.txt"
    path.write_text("NodeName|TimeStart|TimeEnd|State\nn1|2026-11-28T20:56:38|2026-11-28T20:56:51|DOWN*\n")
    [outage] = read_outages(path, Clock(SUBMITTED, "Europe/Berlin")).outages
    assert outage == Outage(node="n1", start=8, end=21, reason="DOWN*")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("n1|2026-11-28T19:56:38|Unknown", "events.txt:2: has 3 of 5 columns"),
        ("n1|None|Unknown|DOWN|1", "events.txt:2: 'None' is not a time"),
        ("n1|2026-11-28T19:56:38|Unknown|DOWN|x", "events.txt:2: StateRaw is 'x'"),
    ],
)
def test_an_invalid_event_is_refused_with_the_line(tmp_path: Path, row: str, says: str) -> None:
    path = tmp_path / "events.txt"
    path.write_text(f"NodeName|TimeStart|TimeEnd|State|StateRaw\n{row}\n")
    with pytest.raises(InputError, match=says):
        read_outages(path, Clock(SUBMITTED))


def test_events_need_the_date_of_time_0() -> None:
    with pytest.raises(InputError, match="the date of time 0 of the workload is unknown"):
        read_outages(RECORDED / "default.txt")
    with pytest.raises(InputError, match="the date of time 0 of the workload is unknown"):
        read_outages(RECORDED / "unix.txt")
