"""Rates of jobs with deadlines: definitions, paired differences, and their interval."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.commands import call
from tests.runs import NAN, make_run
from tracebed.converters.workload import Workload
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import MeasuredRun, metrics
from tracebed.validation.verdict.rates import paired_rate, paired_rates, tango_interval

# (submit, start, end, nodes), state, deadline: met, late, cancelled, rejected, killed in time, without a deadline
JOBS = [
    ((0.0, 0.0, 10.0, 1), "completed", 10.0),
    ((0.0, 0.0, 11.0, 1), "completed", 10.0),
    ((0.0, NAN, 5.0, 1), "cancelled", 10.0),
    ((0.0, NAN, NAN, 1), "rejected", 10.0),
    ((0.0, 0.0, 3.0, 1), "killed", 10.0),
    ((0.0, 0.0, 3.0, 1), "completed", NAN),
]


def run_of(jobs: list[Any], **options: Any) -> Run:
    states = {str(n): job[1] for n, job in enumerate(jobs, 1)}
    run = make_run([job[0] for job in jobs], machine=len(jobs), states=states, **options)
    run.jobs["deadline"] = [job[2] for job in jobs]
    return run


def test_the_rates_of_a_hand_worked_run() -> None:
    found = metrics(run_of(JOBS))
    assert found["acceptance_rate"] == 4 / 5
    assert found["guarantee_rate"] == 1 / 4
    assert found["cancel_rate"] == 1 / 5


def test_the_time_to_the_deadline_is_that_of_the_workload() -> None:
    run = run_of([((3.0, 3.0, 13.0, 1), "completed", 10.0)])
    run.jobs["submit_planned"] = 0.0  # submitted 3 s late, or by a clock that is 3 s ahead
    assert metrics(run)["guarantee_rate"] == 1


def test_without_deadlines_the_rates_are_undefined_and_not_shown(tmp_path: Any) -> None:
    run = run_of([(job, state, NAN) for job, state, _ in JOBS])
    found = metrics(run)
    assert math.isnan(found["acceptance_rate"])
    assert found["undefined"]["cancel_rate"] == "no submitted job has a deadline"
    run.save(tmp_path / "run")
    done = call("metrics", tmp_path / "run")
    assert "rate" not in done.stdout + done.stderr
    assert "energy" not in done.stderr


def test_simulations_logs_and_replays_carry_the_deadlines() -> None:
    facts = {"job_id": ["a", "b"], "submit_time": [0.0, 1.0], "run_time": 10.0, "nodes": 2, "deadline": [12.0, 15.0]}
    table = pd.DataFrame(facts)
    workload = Workload(table)
    run = tb.simulate(workload, "fcfs", nodes=2)
    assert run.jobs["deadline"].tolist() == [12.0, 15.0]
    assert metrics(run)["guarantee_rate"] == 0.5
    real = tb.replay(workload, "fcfs", "emulated-4", speed=1000)
    assert real.jobs["deadline"].tolist() == [12.0, 15.0]
    assert tb.simulate(Workload(table.drop(columns="deadline")), "fcfs", nodes=2).jobs["deadline"].isna().all()
    log = Workload(table.assign(logged_start=[0.0, 10.0], logged_end=[10.0, 20.0]))
    assert metrics(tb.as_run(log))["guarantee_rate"] == 0.5


def test_runs_without_the_column_are_read(tmp_path: Any) -> None:
    folder = run_of(JOBS).save(tmp_path / "run")
    old = pd.read_parquet(folder / "jobs.parquet").drop(columns="deadline")
    old.to_parquet(folder / "jobs.parquet", index=False)
    facts = (folder / "run.json").read_text()
    (folder / "run.json").write_text(facts.replace('"checksums"', '"checksums_of_another_version"'))
    with pytest.warns(tb.Tolerated, match="without a checksum"):
        assert Run.load(folder).jobs["deadline"].isna().all()


def test_paired_rates_count_the_discordant_jobs() -> None:
    predicted = [
        (job, "completed" if state in ("cancelled", "killed") else state, deadline) for job, state, deadline in JOBS
    ]
    predicted[2] = ((0.0, 0.0, 5.0, 1), "completed", 10.0)
    found = {item.name: item for item in paired_rates(*map(MeasuredRun, (run_of(JOBS), run_of(predicted, real=False))))}
    cancel, guarantee = found["cancel_rate"], found["guarantee_rate"]
    assert (cancel.jobs, cancel.only_real, cancel.only_predicted) == (5, 1, 0)
    assert cancel.difference == pytest.approx(-1 / 5)
    assert cancel.low < cancel.difference < cancel.high
    assert (guarantee.jobs, guarantee.only_real, guarantee.only_predicted) == (4, 0, 2)
    assert guarantee.mcnemar_p == 0.5
    assert found["acceptance_rate"].mcnemar_p == 1
    assert paired_rates(*(MeasuredRun(run_of(JOBS[-1:], real=real)) for real in (True, False))) == []


@pytest.mark.parametrize(
    ("b", "c", "n", "low", "high"),
    [
        (1, 7, 21, -0.5172, -0.0260),  # Fagerland, Lydersen and Laake, Statistics in Medicine 2014: airway reactivity
        (6, 16, 161, -0.1240, -0.0054),  # Fagerland, Lydersen and Laake 2017: complete response (Cavo et al. 2012)
    ],
)
def test_the_interval_of_published_examples(b: int, c: int, n: int, low: float, high: float) -> None:
    assert tango_interval(b, c, n) == pytest.approx((low, high), abs=5e-5)


def likelihood_interval(b: int, c: int, n: int) -> tuple[float, float]:
    """Return the differences that the score test accepts, with the likelihood maximized on a grid."""
    accepted = []
    for difference in np.linspace(-0.999, 0.999, 1999):
        q = np.linspace(max(0.0, -difference), (1 - difference) / 2, 4001)[1:-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            log = sum(
                count * np.log(p) if count else np.zeros_like(q)
                for count, p in ((b, q + difference), (c, q), (n - b - c, 1 - 2 * q - difference))
            )
        best = q[np.nanargmax(log)]
        variance = n * (2 * best + difference * (1 - difference))
        if abs(b - c - n * difference) <= 1.959964 * math.sqrt(max(variance, 0)):
            accepted.append(float(difference))
    return min(accepted), max(accepted)


@pytest.mark.parametrize(("b", "c", "n"), [(0, 0, 30), (3, 0, 20), (5, 9, 40), (12, 2, 15), (20, 20, 40)])
def test_the_interval_equals_that_of_a_grid_search(b: int, c: int, n: int) -> None:
    assert tango_interval(b, c, n) == pytest.approx(likelihood_interval(b, c, n), abs=2e-3)


def test_the_interval_ends_at_1() -> None:
    assert tango_interval(10, 0, 10)[1] == 1
    assert tango_interval(0, 10, 10)[0] == -1
    low, high = tango_interval(4, 1, 20)
    assert tango_interval(1, 4, 20) == pytest.approx((-high, -low))


@pytest.mark.slow
def test_the_interval_covers_the_difference() -> None:
    rng = np.random.default_rng(4)
    covered = 0
    for b, c, _ in rng.multinomial(60, (0.10, 0.05, 0.85), 400):
        low, high = tango_interval(int(b), int(c), 60)
        covered += low <= 0.05 <= high
    assert 0.92 < covered / 400 < 0.98


def test_a_rate_of_equal_outcomes_has_no_difference() -> None:
    outcome = np.array([True, False, True])
    found = paired_rate("cancel_rate", outcome, outcome)
    assert found.difference == 0
    assert found.low < 0 < found.high
