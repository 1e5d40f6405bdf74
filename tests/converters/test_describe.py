"""The statistics of a workload, and their display in a terminal."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tracebed.cli import tracebed
from tracebed.cli.describe import area
from tracebed.converters.description import (
    cumulative,
    describe,
    occupation,
    occupied_nodes,
    quantiles,
    size_histogram,
)
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.models.cirne import cirne
from tracebed.converters.scaling import scale
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError, Tolerated

MONDAY = 1_283_731_200.0  # 2010-09-06 00:00 UTC


def week(**provenance: object) -> Workload:
    table = pd.DataFrame(
        {
            "job_id": ["a", "b", "c", "d"],
            "submit_time": [0.0, 3600.0, 7200.0, 86_400.0],
            "run_time": [100.0, 50.0, math.nan, 5000.0],
            "time_limit": [200.0, 100.0, 100.0, math.nan],
            "nodes": [1, 2, 4, 0],
            "kind": ["rigid", "malleable", "rigid", "rigid"],
        }
    )
    known = {"system": System(4, 8), "unix_start": MONDAY, "time_zone": "Asia/Tokyo"}
    return Workload(table, Provenance(**(known | provenance)))  # type: ignore[arg-type]


def test_the_statistics() -> None:
    facts = describe(week())
    assert facts["jobs"] == 4
    assert facts["span_s"] == 86_400.0
    assert facts["offered_load"] == (100 + 2 * 50) / (4 * 86_400)
    assert facts["nodes"]["max"] == 4
    assert facts["run_time_s"]["median"] == 100.0
    assert facts["accuracy"]["mean"] == 0.5
    assert facts["interarrival_s"]["max"] == 79_200.0
    assert facts["kinds"] == {"rigid": 3, "malleable": 1}
    assert facts["unknown"] == {"run_time": 1, "time_limit": 1, "nodes": 1, "logged_times": 4}
    assert facts["first_submit"] == "2010-09-06T09:00:00+09:00"
    assert [facts["arrivals_by_hour"][hour] for hour in (9, 10, 11)] == [2, 1, 1]
    assert facts["arrivals_by_weekday"]["Mon"] == 3
    assert facts["arrivals_by_weekday"]["Tue"] == 1
    assert facts["arrivals_by_weekday_and_hour"][1][9] == 1
    assert facts["occupation"] is None
    assert [bin["jobs"] for bin in facts["nodes_histogram"]] == [1, 1, 1]
    assert sum(bin["jobs"] for bin in facts["run_time_histogram"]) == 3
    json.dumps(facts, allow_nan=False)


def test_without_a_date_hours_count_from_time_zero() -> None:
    facts = describe(week(unix_start=None))
    assert facts["arrivals_by_weekday"] is None
    assert facts["first_submit"] is None
    assert facts["arrivals_by_hour"][:3] == [2, 1, 1]


def test_an_unknown_time_zone_is_tolerated() -> None:
    with pytest.warns(Tolerated, match="Mars/Base"):
        assert describe(week(time_zone="Mars/Base"))["arrivals_by_hour"][:3] == [2, 1, 1]


@pytest.mark.parametrize("start", [-1e12, 1e17, 1e300])
def test_invalid_dates_are_tolerated(start: float) -> None:
    workload = week(unix_start=start)
    with pytest.warns(Tolerated, match="before 1970 or after 2260"):
        assert describe(workload)["first_submit"] is None
    with pytest.raises(InputError, match="submit times are from"):
        scale(workload, start=1e9)


def test_the_load_is_unknown_without_a_system_or_a_span() -> None:
    assert week(system=System(None)).offered_load is None
    one = Workload(week().table.iloc[:1], week().provenance)
    assert one.offered_load is None
    facts = describe(one)
    assert facts["offered_load"] is None
    assert facts["interarrival_s"]["mean"] is None


def test_the_effect_of_scaling_on_the_load_is_shown() -> None:
    facts = describe(scale(scale(cirne(100), 16), arrivals=0.5))
    first, second = facts["offered_load_steps"]
    assert first["after"] == second["before"] == second["in_window"]
    assert second["after"] == pytest.approx(2 * second["before"])
    assert facts["offered_load"] == second["after"]
    assert len(facts["steps"]) == 3


@given(st.lists(st.integers(0, 5000), max_size=30))
def test_every_size_is_in_its_bin(sizes: list[int]) -> None:
    histogram = size_histogram(np.array(sizes, dtype=np.int64))
    for low, high, jobs in histogram:
        assert jobs == sum(low <= size <= high for size in sizes)
    assert sum(jobs for _, _, jobs in histogram) == sum(size > 0 for size in sizes)


def test_quantiles_of_no_values_are_missing() -> None:
    assert set(quantiles(np.array([np.nan])).values()) == {None}


def logged(jobs: list[tuple[float, float, int]], nodes: int | None = None) -> Workload:
    """Return a workload of jobs that ran (from, to, nodes)."""
    start, end, sizes = (list(column) for column in zip(*jobs, strict=True))
    table = pd.DataFrame(
        {
            "job_id": [str(number) for number in range(len(jobs))],
            "submit_time": 0.0,
            "run_time": np.subtract(end, start).clip(min=0.0),
            "nodes": sizes,
            "logged_start": np.array(start, dtype=float),
            "logged_end": np.array(end, dtype=float),
        }
    )
    return Workload(table, Provenance(system=System(nodes)))


def held_at(jobs: list[tuple[float, float, int]], instant: float) -> int:
    """Return the number of nodes allocated at an instant, as a slow and simple sum over jobs."""
    return sum(nodes for start, end, nodes in jobs if start <= instant < end)


instants = st.one_of(st.integers(0, 12).map(float), st.floats(0, 12), st.just(math.nan))
logs = st.lists(st.tuples(instants, instants, st.integers(0, 9)), min_size=1, max_size=12)


@given(logs)
def test_the_occupation_equals_a_slow_count(jobs: list[tuple[float, float, int]]) -> None:
    steps, held = occupied_nodes(logged(jobs))
    found = dict(zip(steps.tolist(), held.tolist(), strict=True))
    ran = [job for job in jobs if job[0] < job[1] and job[2] > 0]
    assert sorted(found) == sorted({instant for start, end, _ in ran for instant in (start, end)})
    assert found == {instant: held_at(ran, instant) for instant in found}


@given(logs, st.integers(1, 20))
def test_bins_have_the_mean_and_the_maximum_of_their_values(jobs: list[tuple[float, float, int]], bins: int) -> None:
    ran = [job for job in jobs if job[0] < job[1] and job[2] > 0]
    instants, held = occupied_nodes(logged(jobs))
    if not ran:
        assert not len(held)
        return
    edges, mean, highest = occupation(instants, held, bins)
    assert edges[0] >= min(start for start, _, _ in ran)
    assert edges[-1] <= max(end for _, end, _ in ran)
    assert len(edges) - 1 == len(mean) == len(highest) <= bins
    for low, high, average, top in zip(edges, edges[1:], mean, highest, strict=False):
        node_seconds = sum(max(0.0, min(end, high) - max(start, low)) * nodes for start, end, nodes in ran)
        assert average * (high - low) == pytest.approx(node_seconds, abs=1e-9)
        inside = [low, *(start for start, _, _ in ran if low < start < high)]
        assert top == max(held_at(ran, instant) for instant in inside)


def test_the_time_above_capacity() -> None:
    found = describe(logged([(0, 10, 4), (10, 20, 4), (12, 16, 3), (5, 5, 99), (8, math.nan, 50)], nodes=4))
    occupied = found["occupation"]
    assert found["unknown"]["logged_times"] == 1
    assert occupied["highest"] == 7  # back-to-back jobs do not overlap; jobs of zero length hold no node
    assert occupied["share_of_time_above_capacity"] == pytest.approx(4 / 20)
    assert occupied["node_hours_above_capacity"] == pytest.approx(3 * 4 / 3600)
    assert occupied["node_hours"] == pytest.approx((80 + 12) / 3600)
    assert occupied["mean"] == pytest.approx(92 / 20)
    json.dumps(found, allow_nan=False)


def test_a_long_tail_of_low_values_is_not_drawn() -> None:
    drawn = describe(logged([(0, 100, 40), (0, 100, 60), (900, 1000, 1)], nodes=50))["occupation"]
    assert not drawn["whole"]
    edges = drawn["over_time"]["edges_s"]
    total = 100 * 100 + 100
    assert edges[-1] - edges[0] == pytest.approx(0.95 * total / 100)
    assert 0.0 <= edges[0] < edges[-1] <= 100.0
    assert (drawn["from_s"], drawn["to_s"]) == (0.0, 1000.0)
    assert drawn["mean"] == pytest.approx(100.0)
    assert drawn["share_of_time_above_capacity"] == pytest.approx(1.0)
    assert drawn["node_hours"] == pytest.approx(total / 3600)
    assert drawn["node_hours_above_capacity"] == pytest.approx(50 * 100 / 3600)
    assert describe(logged([(0, 100, 4), (100, 200, 4)]))["occupation"]["whole"]


def test_without_a_capacity_nothing_is_above_it() -> None:
    occupied = describe(logged([(0, 10, 4)]))["occupation"]
    assert occupied["highest"] == 4
    assert occupied["share_of_time_above_capacity"] is None


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=30),
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
)
def test_cumulative_shares(jobs: list[tuple[float, float]], points: list[float]) -> None:
    values, work = (np.array(column) for column in zip(*jobs, strict=True))
    points.sort()
    found = cumulative(values, work, known=np.ones(len(jobs), dtype=bool), points=np.array(points))
    assert found is not None
    assert found["jobs"] == pytest.approx([float(np.mean(values <= point)) for point in points])
    for share, value in ((0.5, found["jobs_within"]["50"]), (0.9, found["jobs_within"]["90"])):
        assert np.mean(values <= value) >= share - 1e-12
        assert np.mean(values < value) < share
    if work.sum() > 0:
        shares = [work[values <= point].sum() / work.sum() for point in points]
        assert found["node_hours"] == pytest.approx(shares)
        half = found["node_hours_within"]["50"]
        assert work[values <= half].sum() >= 0.5 * work.sum() * (1 - 1e-9)
        assert work[values < half].sum() <= 0.5 * work.sum() * (1 + 1e-9)
    else:
        assert found["node_hours"] is None


def test_the_last_point_of_a_cumulative_distribution_has_all_jobs() -> None:
    many = cirne(2000, seed=2)
    for found in describe(many)["cumulative"].values():
        assert found["jobs"][-1] == 1.0
        assert found["at_most"] == sorted(set(found["at_most"]))


def test_an_area_is_above_its_limit_only_if_it_exceeds_it() -> None:
    def above(highest: list[float]) -> str:
        lines = area("nodes", [1.0] * len(highest), highest, limit=40.0, ends=("a", "b"), width=len(highest))
        limit = next(number for number, line in enumerate(lines) if line.startswith("40 "))
        return "".join(lines[1:limit]).strip("0123456789 ")

    assert above([40.0, 40.0, 3.0]) == ""
    assert set(above([40.0, 41.0, 3.0])) == {"░"}


@pytest.mark.parametrize("terminal", [80, 120])
def test_no_line_is_wider_than_the_terminal(terminal: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.parquet"
    write_workload(cirne(3000, seed=1), path)
    for module in ("describe", "console"):
        monkeypatch.setattr(f"tracebed.cli.{module}.UNBOUNDED", terminal)
    out = CliRunner().invoke(tracebed, ["describe", str(path)], catch_exceptions=False).stdout
    charts = out[out.index("Requested nodes") :]
    assert max(map(len, charts.splitlines())) <= terminal
    assert ("Run time" in charts.splitlines()[0]) == (terminal == 120)


def test_before_and_after(tmp_path: Path) -> None:
    write_workload(logged([(0, 7200, 3), (0, 3600, 3)], nodes=4), tmp_path / "raw.parquet")
    write_workload(logged([(0, 7200, 3)], nodes=4), tmp_path / "clean.parquet")
    arguments = ["describe", str(tmp_path / "clean.parquet"), "--before", str(tmp_path / "raw.parquet")]
    picture = tmp_path / "both.svg"
    done = CliRunner().invoke(tracebed, [*arguments, "--plot", str(picture)], catch_exceptions=False)
    table = done.stdout[done.stdout.index("before: ") :]
    figures = {" ".join(line.split()[:-2]): line.split()[-2:] for line in table.splitlines()[1:18]}
    assert figures["jobs"] == ["2", "1"]
    assert figures["highest, nodes"] == ["6", "3"]
    assert figures["above capacity, of time"] == ["50.00%", "0.00%"]
    assert figures["occupation, node hours"] == ["9", "6"]
    assert "Node occupation, before" in done.stdout
    assert "Node occupation, after" in picture.read_text()
    facts = json.loads(CliRunner().invoke(tracebed, [*arguments, "--json"]).stdout)
    assert (facts["jobs"], facts["before"]["jobs"]) == (1, 2)


def test_a_missing_occupation_has_a_reason(tmp_path: Path) -> None:
    write_workload(cirne(20), tmp_path / "w.parquet")
    out = CliRunner().invoke(tracebed, ["describe", str(tmp_path / "w.parquet")]).stdout
    assert "not known: no job has nodes, a logged start and a logged end" in out
    times = [line.split()[3:] for line in out.splitlines() if re.match(r"(run time|between arrivals), s", line)]
    assert times and not any(re.search(r"\d{3}\.\d", number) for row in times for number in row)
    assert "Node occupation" not in out


def test_a_public_log(reference_data: Callable[[str], Path]) -> None:
    out = (
        CliRunner()
        .invoke(tracebed, ["describe", str(reference_data("logs/RICC-2010-2-sept-first10000.swf.gz")), "--json"])
        .stdout
    )
    facts = json.loads(out)
    assert facts["jobs"] == 10_000
    assert facts["occupation"]["highest"] >= facts["nodes"]["max"]
    assert facts["occupation"]["node_hours"] == pytest.approx(facts["node_hours"])


def test_the_format_and_the_machine_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    write_workload(cirne(5, nodes=4, seed=1), path)
    given = CliRunner().invoke(tracebed, ["describe", str(path), "--from", "swf", "--json"], catch_exceptions=False)
    assert json.loads(given.stdout)["jobs"] == 5
    with pytest.raises(InputError, match="column 'job' is missing"):
        CliRunner().invoke(tracebed, ["describe", str(path), "--from", "cori"], catch_exceptions=False)
    with pytest.raises(InputError, match="option 'machine'"):
        CliRunner().invoke(tracebed, ["describe", str(path), "--machine", "knl"], catch_exceptions=False)
