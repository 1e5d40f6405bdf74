"""Calendars of outages: their changes, their readers, and their clock."""

from __future__ import annotations

import math
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tracebed.converters.workload import Provenance
from tracebed.ground.errors import InputError
from tracebed.machine import calendar
from tracebed.machine.calendar import Calendar, Clock, NodeChange, Outage, OutageKind, OutageSource, read_outages
from tracebed.machine.nodes import NodeFacts

DOWN, DRAIN = OutageKind.DOWN, OutageKind.DRAIN
NODES = [NodeFacts(f"n{number}", 1) for number in range(1, 4)]
NOON = 1_769_860_800.0
"""Unix time of 2026-01-31T12:00:00Z."""


@st.composite
def outages(draw: st.DrawFn) -> Outage:
    start, length = draw(st.integers(-5, 20)), draw(st.sampled_from([1, 2, 5, math.inf]))
    return Outage(
        node=f"n{draw(st.integers(1, 3))}", start=start, end=start + length, kind=draw(st.sampled_from(OutageKind))
    )


@given(st.lists(outages(), max_size=8).map(tuple))
def test_the_changes_are_those_of_the_strongest_outage_at_each_instant(listed: tuple[Outage, ...]) -> None:
    changes = Calendar(listed).changes(NODES)
    assert [change[:2] for change in changes] == sorted({change[:2] for change in changes})
    for node, facts in enumerate(NODES):
        kind: OutageKind | None = None
        for at in range(30):
            for change in changes:
                if change.node == node and change.at == at:
                    assert change.kind is not kind
                    kind = change.kind
            now = {outage.kind for outage in listed if outage.node == facts.name and outage.start <= at < outage.end}
            assert kind is (DOWN if DOWN in now else DRAIN if now else None)


def test_a_table_has_a_node_or_a_range_in_each_row(tmp_path: Path) -> None:
    path = tmp_path / "o.csv"
    path.write_text('\ufeffFrom,Node,to,kind,reason\n10,n[1-2],20.5,,"fan, again"\n\n 30 , n3 ,,DRAIN,\n', "utf-8")
    made = read_outages(path)
    assert made == Calendar(
        (
            Outage(node="n1", start=10, end=20.5, reason="fan, again"),
            Outage(node="n2", start=10, end=20.5, reason="fan, again"),
            Outage(node="n3", start=30, kind=DRAIN),
        )
    )
    assert made.changes(NODES) == [
        NodeChange(10, 0, DOWN, "fan, again"),
        NodeChange(10, 1, DOWN, "fan, again"),
        NodeChange(20.5, 0, None, ""),
        NodeChange(20.5, 1, None, ""),
        NodeChange(30, 2, DRAIN, ""),
    ]
    assert tb.read_outages(path).digest == made.digest


def test_dates_are_those_of_the_clock_of_the_workload(tmp_path: Path) -> None:
    path = tmp_path / "o.csv"
    path.write_text("node,from,to\nn1,2026-01-31T12:00:10Z,2026-01-31 13:01:00\n")
    clock = Clock.of(Provenance(unix_start=NOON, time_zone="Europe/Berlin"))
    assert read_outages(path, clock).outages == (Outage(node="n1", start=10, end=60),)
    path.write_text("node,from,to\nn1,2026-01-31T12:00:10,\n")
    assert read_outages(path, Clock.of(Provenance(unix_start=NOON))).outages == (Outage(node="n1", start=10),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("job,start\n1,2\n", "does not list outages"),
        ("", "does not list outages"),
        ("node,from,until\nn1,1,2\n", "o.csv:1: unknown column 'until'"),
        ("node,from\nn1,soon\n", r"o.csv:2: 'soon' is not a time .write seconds"),
        ("node,from\nn1,2026-01-31\n", "o.csv:2: '2026-01-31' is a date, but the date of time 0 .* is unknown"),
        ("node,from,to\nn1,5,5\n", "o.csv:2: an outage of node n1 ends at 5 s, and starts at 5 s"),
        ("node,from,to\nn1,inf,\n", "o.csv:2: start of an outage is inf"),
        ("node,from,to\nn1,1,nan\n", "o.csv:2: end of an outage is nan"),
        ("node,from,kind\nn1,1,maint\n", "o.csv:2: unknown kind of outage 'maint'"),
        ("node,from\nn1\n", "o.csv:2: has no from"),
        ("node,from\nn1,1,2,3\n", "o.csv:2: has 4 cells, and the header 2"),
        ("node,from\nn[3-1],1\n", r"o.csv:2: name range 'n\[3-1\]' is empty"),
        ("node,from\nn[1-*],1\n", "o.csv:2: name range 'n.1-..' has no end"),
    ],
)
def test_an_invalid_table_is_refused_with_the_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "o.csv").write_text(text)
    with pytest.raises(InputError, match=says):
        read_outages(tmp_path / "o.csv")


@given(st.sampled_from(["node,from,to,kind\n", "NodeName|TimeStart|TimeEnd|State|StateRaw|Reason\n"]), st.text())
def test_any_text_is_read_or_refused_in_one_line(header: str, rest: str) -> None:
    for text in (header + rest, header + "n1,2,3," + rest, header + "n1|2|3|" + rest):
        for _, source in calendar.SOURCES.all():
            if source.recognizes(text):
                try:
                    Calendar(tuple(source.read(text, "f", Clock(NOON)))).changes(NODES)
                except InputError as error:
                    assert "\n" not in str(error)


def test_a_cell_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "o.csv").write_text("node,from\nn1,1\n" + "n" * 200_000 + ",1\n")
    with pytest.raises(InputError, match="is not CSV"):
        read_outages(tmp_path / "o.csv")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_outages(tmp_path / "none.csv")


def test_a_source_of_another_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("mine", f"{__name__}:OURS", calendar.SOURCES.group)
    monkeypatch.setitem(calendar.SOURCES.entries, "mine", entry)
    (tmp_path / "out.txt").write_text("#broken n2\n")
    assert read_outages(tmp_path / "out.txt").outages == (Outage(node="n2", start=0),)


OURS = OutageSource(
    "a list", lambda text: text.startswith("#broken"), lambda text, file, clock: [Outage(node=text.split()[1], start=0)]
)
