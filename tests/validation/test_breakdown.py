"""Breakdown of the differences by classes of jobs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runs import NAN, fcfs_run, make_run
from tracebed.orchestrator.run import Run
from tracebed.validation.verdict import compare
from tracebed.validation.verdict.breakdown import QUANTITIES, USERS, breakdown

REAL = [(0.0, 0.0, 100.0, 1), (10.0, 100.0, 200.0, 4), (3600.0, 3600.0, 4600.0, 3), (3700.0, 4600.0, 4600.5, 2)]
PREDICTED = [(0.0, 0.0, 100.0, 1), (10.0, 130.0, 230.0, 4), (3600.0, 3600.0, 4590.0, 3), (3700.0, 4590.0, 4590.5, 2)]


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
