"""Scaling to fewer nodes and less time: proportional sizes, windows, compressed times, provenance."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracebed.api import generate
from tracebed.converters.malleability import to_malleable
from tracebed.converters.models.cirne import cirne
from tracebed.converters.scaling import map_sizes, scale, seconds_since_start
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError

NAN = math.nan


def log(**provenance: Any) -> Workload:
    table = pd.DataFrame(
        {
            "job_id": ["a", "b", "c", "d"],
            "submit_time": [100.0, 160.0, 200.0, 400.0],
            "run_time": [50.0, 1000.0, NAN, 500.0],
            "time_limit": [100.0, 2000.0, 300.0, NAN],
            "nodes": [1, 64, 33, 0],
            "cores_per_node": [8, 4, 1, 8],
            "after": ["", "a", "b", "a"],
            "think_time": [NAN, 10.0, 20.0, 30.0],
            "deadline": [NAN, 1160.0, NAN, NAN],
            "earliest_start": [NAN, 180.0, NAN, NAN],
            "logged_start": [110.0, 170.0, NAN, 400.0],
            "logged_end": [160.0, 1170.0, NAN, 900.0],
        }
    )
    known = {"system": System(64, 8, "Box"), "unix_start": 1000.0, "time_zone": "Asia/Tokyo"}
    return Workload(table, Provenance(**(known | provenance)))


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=20), st.integers(1, 5000), st.integers(1, 5000))
def test_sizes_are_in_proportion_and_within_the_target(sizes: list[int], original: int, target: int) -> None:
    mapped = map_sizes(np.array(sizes), original, target)
    for size, got in zip(sizes, mapped.tolist(), strict=True):
        if size == 0:
            assert got == 0
            continue
        exact = Fraction(size * target, original)
        nearest = math.floor(exact + Fraction(1, 2))
        assert got == min(max(nearest, 1), target)


@given(nodes=st.integers(1, 300), share=st.floats(0, 1), seed=st.integers(0, 9))
def test_malleable_jobs_keep_their_order_of_sizes_and_their_speedup(nodes: int, share: float, seed: int) -> None:
    before = to_malleable(cirne(50, seed=seed), share, seed)
    after = scale(before, nodes)
    low, pref, high = (after.ints(f"nodes_{name}") for name in ("min", "pref", "max"))
    assert (low >= 1).all()
    assert (low <= pref).all()
    assert (pref <= high).all()
    assert (high <= nodes).all()
    assert (pref == after.ints("nodes")).all()
    assert (after.column("speedup_parameters") == before.column("speedup_parameters")).all()
    assert after.provenance.system.nodes == nodes


def test_a_window_moves_time_zero_and_drops_references_outside() -> None:
    cut = scale(log(), window=200.0, start=150.0)
    assert cut.column("job_id").tolist() == ["b", "c"]
    assert cut.floats("submit_time").tolist() == [10.0, 50.0]
    assert cut.floats("deadline")[0] == 1010.0
    assert cut.floats("earliest_start")[0] == 30.0
    assert cut.floats("logged_start")[0] == 20.0
    assert cut.column("after").tolist() == ["", "b"]
    assert np.isnan(cut.floats("think_time")).tolist() == [True, False]
    assert cut.provenance.unix_start == 1150.0
    assert cut.provenance.steps[-1].counts == {
        "jobs before": 4,
        "jobs after": 2,
        "dependencies on jobs outside the window dropped": 1,
    }
    assert scale(log(), window=100.0).column("job_id").tolist() == ["a", "b"]  # the window excludes its end
    assert scale(log(), start=160.0).column("job_id").tolist() == ["b", "c", "d"]


def test_an_empty_window_names_the_span() -> None:
    with pytest.raises(InputError, match=r"100 s to 400 s, 1970-01-01 00:18 to 1970-01-01 00:23 UTC"):
        scale(log(), start=500.0)
    with pytest.raises(InputError, match="100 s to 400 s"):
        scale(log(unix_start=None), window=50.0, start=0.0)


def test_a_factor_that_makes_times_too_large_is_an_error_of_the_factor() -> None:
    with pytest.raises(InputError, match=r"^after scaling, run_time is infinite, or beyond 2\^53 .*smaller factor"):
        scale(log(), run_time=1e300)


def test_limits_and_deadlines_scale_with_run_times() -> None:
    half = scale(log(), run_time=0.5)
    assert half.floats("run_time")[[0, 1, 3]].tolist() == [25.0, 500.0, 250.0]
    assert half.floats("time_limit")[:3].tolist() == [50.0, 1000.0, 150.0]
    assert half.floats("deadline")[1] == 160.0 + 500.0
    assert half.floats("submit_time").tolist() == log().floats("submit_time").tolist()
    assert "logged_start" not in half.table


def test_the_longest_run_time_is_reached_and_nothing_is_stretched() -> None:
    short = scale(log(), longest=100.0)
    assert short.floats("run_time")[[0, 1, 3]].tolist() == pytest.approx([5.0, 100.0, 50.0])
    assert short.provenance.steps[-1].parameters["run_time"] == pytest.approx(0.1)
    same = scale(log(), longest=5000.0)
    assert same.table.equals(log().table)
    assert scale(log(), window=50.0, longest=100.0).floats("run_time").tolist() == [50.0]  # of the window's jobs


def test_think_times_scale_with_arrivals_and_run_times_do_not() -> None:
    dense = scale(log(), arrivals=0.5)
    assert dense.floats("submit_time").tolist() == [50.0, 80.0, 100.0, 200.0]
    assert dense.floats("think_time")[1:].tolist() == [5.0, 10.0, 15.0]
    assert dense.floats("earliest_start")[1] == 90.0
    assert dense.floats("deadline")[1] == 80.0 + 1000.0
    assert dense.floats("run_time")[1] == 1000.0
    assert "logged_end" not in dense.table
    assert dense.offered_load == pytest.approx(2 * (log().offered_load or 0.0))


def test_the_system_and_the_load_are_recorded() -> None:
    small = scale(log(), 4, 2, arrivals=0.5)
    assert small.provenance.system == System(4, 2, "Box")
    assert small.ints("nodes").tolist() == [1, 4, 2, 0]
    assert small.ints("cores_per_node").tolist() == [2, 1, 1, 2]
    step = small.provenance.steps[-1]
    assert step.name == "scale"
    assert (step.parameters["from_nodes"], step.parameters["nodes"]) == (64, 4)
    assert step.parameters["offered_load_before"] == pytest.approx((50 + 64 * 1000) / (64 * 300))
    assert step.parameters["offered_load_after"] == pytest.approx((50 + 4 * 1000) / (4 * 150))
    assert step.parameters["offered_load_after"] == small.offered_load
    assert "window" not in step.parameters


def test_scaling_without_arguments_changes_only_the_provenance() -> None:
    assert scale(log()).sha256 == log().sha256


def test_an_unknown_system_is_an_error_with_a_hint() -> None:
    unknown = log(system=System(None, None))
    with pytest.raises(InputError, match="--system NODESxCORES"):
        scale(unknown, 4)
    with pytest.raises(InputError, match="cores per node of the workload's system"):
        scale(unknown, cores_per_node=2)
    assert scale(unknown, 4, system=System(64)).ints("nodes").tolist() == [1, 4, 2, 0]
    assert scale(unknown, window=100.0).provenance.steps[-1].parameters["offered_load_after"] is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0},
        {"cores_per_node": -1},
        {"window": 0.0},
        {"run_time": 0.0},
        {"arrivals": -1.0},
        {"longest": NAN},
        {"arrivals": math.inf},
    ],
)
def test_wrong_arguments_are_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="out of range"):
        scale(log(), **wrong)


def test_factor_and_longest_exclude_each_other() -> None:
    with pytest.raises(InputError, match="one of them"):
        scale(log(), run_time=0.5, longest=10.0)


@pytest.mark.parametrize(
    ("text", "instant"),
    [("1970-01-01T09:30", 1800.0), ("1970-01-01 01:00+00:00", 3600.0), ("1970-01-02", 15 * 3600.0)],
)
def test_dates_are_in_the_workloads_time_zone(text: str, instant: float) -> None:
    assert seconds_since_start(text, log().provenance) == instant - 1000.0


def test_dates_need_a_date_of_time_zero() -> None:
    with pytest.raises(InputError, match="date of the workload's time 0 is unknown"):
        seconds_since_start("2010-09-01", log(unix_start=None).provenance)
    with pytest.raises(InputError, match="not a time"):
        seconds_since_start("tomorrow", log().provenance)
    with pytest.raises(InputError, match="time zone 'Mars/Base' is unknown"):
        seconds_since_start("2010-09-01", log(time_zone="Mars/Base").provenance)


def test_the_grid_of_a_machine_of_another_size_is_unknown() -> None:
    """A workload of the deadline study, whose machine is a grid, could not be scaled."""
    drawn = generate("deadline-heavy", jobs=5, seed=1)
    assert drawn.provenance.system.grid == "8x16"
    assert scale(drawn, nodes=8).provenance.system.grid == ""
    assert scale(drawn, cores_per_node=1).provenance.system.grid == "8x16"


def test_requests_of_evolving_jobs_are_mapped_as_sizes() -> None:
    table = {"job_id": ["a", "b"], "submit_time": 0.0, "run_time": 9.0, "nodes": 32, "kind": ["evolving", "rigid"]}
    sizes = {"nodes_min": [16, 32], "nodes_max": [64, 32], "requests": ["0.25:64 0.5:16", ""]}
    work = Workload(pd.DataFrame(table | sizes), Provenance(system=System(128, 1)))
    assert scale(work, nodes=8).table["requests"].tolist() == ["0.25:4 0.5:1", ""]
