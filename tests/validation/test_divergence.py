"""The jobs at which two runs first part, and their decisions."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracebed.api as tb
from tests.runs import NAN, fcfs_run, make_run
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics.classes import USERS
from tracebed.validation.verdict import compare
from tracebed.validation.verdict.breakdown import QUANTITIES, breakdown
from tracebed.validation.verdict.divergence import (
    COLUMNS,
    _displaced,
    _longest_ascent,
    default_tolerance,
    divergences,
)

# On 4 nodes: 1 runs, 2 needs all, 3 is small. FCFS makes 3 wait for 2; a backfiller starts 3 at once.
FCFS = [(0.0, 0.0, 100.0, 2), (10.0, 100.0, 200.0, 4), (20.0, 200.0, 230.0, 1), (300.0, 300.0, 310.0, 1)]
EASY = [(0.0, 0.0, 100.0, 2), (10.0, 100.0, 200.0, 4), (20.0, 20.0, 50.0, 1), (300.0, 300.0, 310.0, 1)]

REAL = [(0.0, 0.0, 100.0, 1), (10.0, 100.0, 200.0, 4), (3600.0, 3600.0, 4600.0, 3), (3700.0, 4600.0, 4600.5, 2)]
PREDICTED = [(0.0, 0.0, 100.0, 1), (10.0, 130.0, 230.0, 4), (3600.0, 3600.0, 4590.0, 3), (3700.0, 4590.0, 4590.5, 2)]


def shifted(jobs: list[tuple[float, float, float, int]], by: float) -> list[tuple[float, float, float, int]]:
    return [tuple(time + by for time in job[:3]) + job[3:] for job in jobs]  # type: ignore[misc]


def test_hand_worked_divergence() -> None:
    found = divergences(make_run(FCFS), make_run(shifted(EASY, 7.0), real=False))
    assert (found.decisions, found.jobs) == (4, 1)
    (row,) = found.table.to_dict("records")
    assert row == {
        "job_id": "3",
        "parting": "order",
        "time": 20.0,
        "first": "predicted",
        "real": "nothing: still waiting; start on 1 node later, after start on 4 nodes of job 2",
        "predicted": "start on 1 node",
        "delay": -180.0,
        "idle_real": 2.0,
        "idle_predicted": 2.0,
        "waiting_real": 2,
        "waiting_predicted": 2,
    }
    back = divergences(make_run(EASY), make_run(FCFS, real=False)).table.iloc[0]
    assert (back["first"], back["real"], back["delay"]) == ("real", "start on 1 node", 180.0)


def test_equal_runs_do_not_part() -> None:
    found = divergences(fcfs_run(60), fcfs_run(60, real=False))
    assert (found.decisions, found.jobs, len(found.table)) == (60, 0, 0)
    assert list(found.table.columns) == COLUMNS


def test_starts_that_follow_late_ends_are_explained() -> None:
    """With each run time longer, all later starts are later, and each still follows the end of the same job."""
    late = [(0.0, 0.0, 103.0, 2), (10.0, 103.0, 206.0, 4), (20.0, 206.0, 239.0, 1), (300.0, 300.0, 313.0, 1)]
    assert divergences(make_run(FCFS), make_run(late, real=False)).jobs == 0


def test_a_start_may_have_waited_for_its_submission_in_one_run_and_for_nodes_in_the_other() -> None:
    late = [(0.0, 0.0, 330.0, 4), (310.0, 330.0, 350.0, 4)]
    early = [(0.0, 0.0, 100.0, 4), (310.0, 310.0, 330.0, 4)]
    assert divergences(make_run(late), make_run(early, real=False)).jobs == 0
    assert divergences(make_run(early), make_run(late, real=False)).jobs == 0
    idle = [(0.0, 0.0, 100.0, 4), (310.0, 330.0, 350.0, 4)]
    assert divergences(make_run(late), make_run(idle, real=False)).jobs == 0  # the tables cannot tell it from a start
    assert divergences(make_run(early), make_run(idle, real=False)).jobs == 1


def test_a_job_held_back_without_a_reason_parts_by_time() -> None:
    held = [*FCFS[:3], (300.0, 350.0, 360.0, 1)]
    found = divergences(make_run(FCFS), make_run(held, real=False))
    (row,) = found.table.to_dict("records")
    assert (row["job_id"], row["parting"], row["delay"]) == ("4", "time", 50.0)
    assert row["predicted"] == "nothing: still waiting; start on 1 node later"
    assert divergences(make_run(FCFS), make_run(held, real=False), tolerance_s=50.0).jobs == 0
    assert divergences(make_run(FCFS), make_run(held, real=False), tolerance_s=49.0).jobs == 1


def test_a_job_that_never_starts_is_missing() -> None:
    never = [*FCFS[:3], (300.0, NAN, NAN, 1)]
    run = make_run(never, states={"4": "interrupted"}, real=False)
    (row,) = divergences(make_run(FCFS), run).table.to_dict("records")
    assert (row["job_id"], row["parting"], row["first"]) == ("4", "missing", "real")
    assert row["predicted"] == "nothing: still waiting"
    assert np.isnan(row["delay"])


def test_starts_on_another_number_of_nodes_part() -> None:
    small = make_run([*FCFS[:3], (300.0, 300.0, 310.0, 3)], real=False)
    (row,) = divergences(make_run(FCFS), small).table.to_dict("records")
    assert (row["parting"], row["real"], row["predicted"]) == ("nodes", "start on 1 node", "start on 3 nodes")
    assert (row["idle_real"], row["waiting_real"]) == (4.0, 1)


STAIRS = [(0.0, 50.0, 2), (50.0, 100.0, 4)]
ASKED = ("1", "expand", 2, 4, 44.0, 48.0, 50.0, 50.0, "applied")


def resized(*, to: int = 4, real: bool = True, recorded: bool = True) -> Run:
    stairs = {"1": [STAIRS[0], (50.0, 100.0, to)]} if to != 2 else {"1": [(0.0, 100.0, 2)]}
    asked = [(*ASKED[:3], to, *ASKED[4:])] if recorded and to != 2 else []
    return make_run([(0.0, 0.0, 100.0, 2)], staircases=stairs, reconfigurations=asked, real=real)


def test_resizes_are_decisions() -> None:
    assert divergences(resized(), resized(real=False)).decisions == 2
    assert divergences(resized(), resized(real=False)).jobs == 0
    (row,) = divergences(resized(), resized(to=3, real=False)).table.to_dict("records")
    assert (row["parting"], row["time"]) == ("nodes", 44.0)
    assert (row["real"], row["predicted"]) == ("expand from 2 to 4 nodes", "expand from 2 to 3 nodes")
    (row,) = divergences(resized(), resized(to=2, real=False)).table.to_dict("records")
    assert (row["parting"], row["predicted"]) == ("missing", "nothing: still on 2 nodes")
    assert row["idle_real"] == 2.0


def test_resizes_of_a_run_without_reconfigurations_come_from_its_allocations() -> None:
    found = divergences(resized(), resized(real=False, recorded=False))
    assert (found.decisions, found.jobs) == (2, 0)
    (row,) = divergences(resized(), resized(to=3, real=False, recorded=False)).table.to_dict("records")
    assert (row["time"], row["predicted"]) == (50.0, "expand from 2 to 3 nodes")


def test_a_resize_in_the_instant_of_the_start_does_not_change_the_nodes_of_the_start() -> None:
    at_once = make_run(
        [(0.0, 0.0, 100.0, 2)],
        staircases={"1": [(0.0, 100.0, 4)]},
        reconfigurations=[("1", "expand", 2, 4, 0.0, 0.0, 0.0, 0.0, "applied")],
        real=False,
    )
    found = divergences(resized(), at_once)
    assert (found.decisions, found.jobs) == (2, 0)


def test_only_the_first_parting_of_a_job_is_listed() -> None:
    other = make_run(
        [(0.0, 0.0, 100.0, 3)],
        staircases={"1": [(0.0, 50.0, 3), (50.0, 100.0, 4)]},
        reconfigurations=[("1", "expand", 3, 4, 44.0, 48.0, 50.0, 50.0, "applied")],
        real=False,
    )
    (row,) = divergences(resized(), other).table.to_dict("records")
    assert (row["time"], row["real"]) == (0.0, "start on 2 nodes")


def test_the_tolerance_is_what_is_known_of_the_runs() -> None:
    real = make_run(FCFS, lateness_ms={"max": 20.0}, speed=100.0, parameters={"interval_s": 5.0}, resolution_s=1.0)
    predicted = make_run(FCFS, real=False, parameters={"interval_s": 30.0}, resolution_s=0.5)
    assert default_tolerance(real, predicted) == pytest.approx(1.5 + 2.0 + 30.0)
    assert 0 < default_tolerance(make_run(FCFS), make_run(FCFS, real=False)) < 1e-3


@pytest.mark.parametrize("policy", ["easy", "pref"])
def test_overheads_delay_decisions_and_do_not_change_them(policy: str) -> None:
    workload = tb.make_malleable(tb.generate("cirne", jobs=80, nodes=16, seed=3), 0.6, 1)
    plain = tb.simulate(workload, policy, 16)
    delayed = tb.simulate(workload, policy, 16, overheads={"launch_s": 0.01}, speed=100.0)
    found = divergences(plain, delayed)
    assert (plain.jobs["start"] - delayed.jobs["start"]).abs().max() > 1.0
    assert found.jobs == 0
    fcfs = tb.simulate(workload, "fcfs", 16)
    assert divergences(plain, fcfs).jobs > 0
    assert divergences(plain, fcfs, count=3).table.shape[0] == 3


def test_two_jobs_that_swap_by_their_triggers_part_by_order_once() -> None:
    """Jobs 1 and 2 end in the other order; each gives its nodes to the job of its size."""
    real = [(0.0, 0.0, 100.0, 3), (0.0, 0.0, 120.0, 1), (1.0, 100.0, 200.0, 3), (1.0, 120.0, 200.0, 1)]
    swapped = [(0.0, 0.0, 120.0, 3), (0.0, 0.0, 100.0, 1), (1.0, 120.0, 200.0, 3), (1.0, 100.0, 200.0, 1)]
    found = divergences(make_run(real), make_run(swapped, real=False))
    (row,) = found.table.to_dict("records")
    assert row["parting"] == "order"
    assert "after start on" in row["real"] + row["predicted"]
    assert divergences(make_run(real), make_run(swapped, real=False), tolerance_s=25.0).jobs == 0


def test_idle_and_waiting_are_those_before_the_decisions_of_the_instant() -> None:
    table = divergences(make_run(EASY), make_run(FCFS, real=False)).table
    assert table[["idle_real", "waiting_real"]].iloc[0].tolist() == [2, 2]  # job 3 itself waits and has no node yet


def test_nodes_held_in_part_are_idle_in_part() -> None:
    real = make_run(EASY, cores=4)
    real.allocations["cores"] = np.where(real.allocations["job_id"] == "1", 1, 4)
    assert divergences(real, make_run(FCFS, cores=4, real=False)).table["idle_real"].iloc[0] == 3.5


values = st.lists(st.integers(0, 9).map(float), max_size=9)


@given(values)
def test_the_longest_ascent_is_the_longest(numbers: list[float]) -> None:
    found = _longest_ascent(np.array(numbers))[::-1]
    assert found == sorted(found)
    picked = [numbers[index] for index in found]
    assert picked == sorted(picked)
    longest = max(
        size for size in range(len(numbers) + 1) for part in combinations(numbers, size) if list(part) == sorted(part)
    )
    assert len(found) == longest


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=25), st.integers(1, 8))
def test_what_is_left_without_the_displaced_decisions_has_one_order(pairs: list[tuple[int, int]], tol: int) -> None:
    real, predicted = (np.array([pair[side] for pair in pairs], dtype=np.float64) for side in (0, 1))
    displaced = _displaced(real, predicted, float(tol))
    kept = np.flatnonzero(~displaced)
    for i, j in combinations(kept.tolist(), 2):
        early, late = (i, j) if real[i] < real[j] else (j, i)
        inverted = real[late] - real[early] > 2 * tol and predicted[early] - predicted[late] > 2 * tol
        assert not inverted
    if np.array_equal(real, predicted):
        assert not displaced.any()


def test_one_moved_decision_displaces_only_itself() -> None:
    real = np.arange(50.0)
    predicted = real.copy()
    predicted[10] = 33.5
    assert np.flatnonzero(_displaced(real, predicted, 0.1)).tolist() == [10]


def test_a_run_without_decisions_has_no_partings() -> None:
    nothing = make_run([(0.0, NAN, NAN, 1)], states={"1": "interrupted"})
    predicted = make_run([(0.0, NAN, NAN, 1)], states={"1": "interrupted"}, real=False)
    found = divergences(nothing, predicted)
    assert (found.decisions, found.jobs) == (0, 0)
    assert isinstance(found.table, pd.DataFrame)


def test_the_python_interface_has_breakdown_and_divergences() -> None:
    comparison = tb.compare(make_run(EASY), make_run(FCFS, real=False))
    assert comparison.divergences()["job_id"].tolist() == ["3"]
    assert comparison.divergences(tolerance_s=1000.0).empty
    waits = comparison.breakdown().query("by == 'size' and quantity == 'wait'").set_index("class")
    assert waits["share"].to_dict() == {"1": 1.0, "2": 0.0, "3 to 4": 0.0}


def found(real: Run, predicted: Run) -> pd.DataFrame:
    return breakdown(compare(real, predicted).jobs, real)


def rows(table: pd.DataFrame, by: str, quantity: str) -> pd.DataFrame:
    return table[(table["by"] == by) & (table["quantity"] == quantity)].set_index("class")


def test_hand_worked_breakdown() -> None:
    real = make_run(REAL)
    real.jobs["user"] = ["ann", "bob", "bob", "ann"]
    table = found(real, make_run(PREDICTED, real=False))
    wait = rows(table, "size", "wait")
    assert list(wait.index) == ["1", "2", "3 to 4"]
    assert wait["jobs"].tolist() == [1, 1, 2]
    assert wait.loc["3 to 4", ["real", "predicted", "difference"]].tolist() == [45, 60, 15]
    assert wait["difference"].tolist() == [0, -10, 15]
    assert wait["contribution"].tolist() == [0, -2.5, 7.5]
    assert wait["share"].tolist() == [0, -0.5, 1.5]
    run = rows(table, "run time", "run")
    assert list(run.index) == ["below 1 s", "100 to 1,000 s", "1,000 to 10,000 s"]
    assert run["difference"].tolist() == [0, 0, -10]
    assert rows(table, "user", "wait")["jobs"].to_dict() == {"ann": 2, "bob": 2}
    assert rows(table, "hour", "wait")["difference"].to_dict() == {"00": 15, "01": -5}
    assert rows(table, "kind", "wait")["share"].to_dict() == {"rigid": 1}


@pytest.mark.slow
@settings(max_examples=15)  # an example compares two runs
@given(st.integers(0, 10_000), st.floats(0.5, 2.0))
def test_contributions_add_up_to_the_difference_of_the_means(seed: int, stretch: float) -> None:
    real = fcfs_run(40, seed=seed)
    real.jobs["user"] = [f"u{number % 11}" for number in range(40)]
    predicted = fcfs_run(40, seed=seed, stretch=stretch, real=False)
    comparison = compare(real, predicted)
    table = breakdown(comparison.jobs, real)
    for quantity in QUANTITIES:
        difference = (comparison.jobs[f"{quantity}_predicted"] - comparison.jobs[f"{quantity}_real"]).mean()
        for by in ("size", "run time", "user", "hour", "kind"):
            of = rows(table, by, quantity)
            assert of["contribution"].sum() == pytest.approx(difference, abs=1e-9)
            assert of["jobs"].sum() == 40
            if abs(difference) > 1e-6:
                assert of["share"].sum() == pytest.approx(1)


def test_small_users_are_one_class() -> None:
    real = fcfs_run(60)
    real.jobs["user"] = [f"u{int(number**0.6)}" for number in range(60)]
    users = rows(found(real, fcfs_run(60, real=False)), "user", "wait")
    assert len(users) == USERS + 1
    assert users.index[-1] == "others"
    assert users["jobs"].iloc[:-1].is_monotonic_decreasing
    assert np.isnan(users["share"]).all()  # the means do not differ


def test_hours_are_those_of_the_time_zone() -> None:
    provenance = {"unix_start": 1_700_000_000.0, "time_zone": "Europe/Vilnius"}  # 2023-11-14 22:13 UTC, 00:13 there
    workload = {"name": "w", "sha256": "a" * 64, "jobs": 4, "provenance": provenance}
    real = make_run(REAL, workload=workload)
    hours = rows(found(real, make_run(PREDICTED, real=False)), "hour", "wait")
    assert hours["jobs"].to_dict() == {"00": 2, "01": 2}
    provenance["time_zone"] = "UTC"
    assert list(rows(found(real, make_run(PREDICTED, real=False)), "hour", "wait").index) == ["22", "23"]
    provenance["unix_start"] = "edited"  # type: ignore[assignment]
    assert list(rows(found(real, make_run(PREDICTED, real=False)), "hour", "wait").index) == ["00", "01"]


def test_runs_without_matched_jobs_have_an_empty_breakdown() -> None:
    nothing = [(0.0, NAN, NAN, 1)]
    states = {"1": "interrupted"}
    table = found(make_run(nothing, states=states), make_run([(0.0, 0.0, 1.0, 1)], real=False))
    assert len(table) == 0
    assert "contribution" in table
