"""Copies of one real run are not repetitions, and permuted ids are not a prediction of the same jobs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.runs import fcfs_run
from tests.validation.test_validation import predicted, repetitions, validated
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.validation.verdict.copies import is_copy
from tracebed.validation.verdict.noise import noise_floor

TIMES = ["submit", "start", "end"]


def moved(run: Run, seconds: float = 0.0, decimals: int | None = None) -> Run:
    """Return a copy of a run with all times shifted, and rounded."""
    jobs = run.jobs.copy()
    jobs[TIMES] += seconds
    if decimals is not None:
        jobs[TIMES] = jobs[TIMES].round(decimals)
    return Run(run.info, jobs, run.allocations)


@pytest.mark.parametrize(("seconds", "decimals"), [(0.003, None), (3600.0, None), (0.0, 0), (0.4, 0), (0.0, 1)])
def test_no_copy_passes_shifted_or_rounded(seconds: float, decimals: int | None) -> None:
    real = repetitions(4)
    copy = moved(real[0], seconds, decimals)
    assert is_copy(copy, real[0])
    if decimals != 0:  # the repetitions differ by less than a second
        assert not any(is_copy(copy, other) for other in real[1:])
    found = validated([*real, copy])
    assert found.cases[0].repetitions[4].excluded == "H7: the same log as rep-01"
    assert noise_floor({"one": real[0], "two": copy, "three": real[1]}).left_out == ("two: the same times as one",)


def test_five_copies_shifted_by_milliseconds_are_one_repetition() -> None:
    [run] = repetitions(1)
    found = validated([moved(run, 0.001 * number) for number in range(5)])
    assert [each.excluded for each in found.cases[0].repetitions[1:]] == ["H7: the same log as rep-01"] * 4


def test_repetitions_with_little_noise_are_no_copies() -> None:
    generator = np.random.default_rng(1)
    [run] = repetitions(1)
    for decimals in (None, 0):
        jobs = run.jobs.copy()
        jobs[["start", "end"]] += generator.exponential(0.5, (len(jobs), 2))
        other = moved(Run(run.info, jobs, run.allocations), 0.0, decimals)
        assert not is_copy(other, moved(run, 0.0, decimals))


def test_a_prediction_with_permuted_ids_is_no_prediction() -> None:
    real, sim = repetitions(5), predicted()
    jobs = sim.jobs.copy()
    jobs["job_id"] = np.roll(jobs["job_id"], 7)
    with pytest.raises(InputError, match=r"40 jobs of the same workload differ in their plan, first job 1: "):
        validated(real, Run(sim.info, jobs, sim.allocations))


def test_a_prediction_with_ids_permuted_among_jobs_of_one_size_is_no_prediction() -> None:
    real, sim = repetitions(5), predicted()
    jobs = sim.jobs.copy().assign(submit_planned=0.0)
    for run in real:
        run.jobs["submit_planned"] = 0.0
    alike = np.flatnonzero(jobs["nodes"] == jobs["nodes"].mode()[0])[:2]
    jobs.loc[alike, "job_id"] = jobs.loc[alike[::-1], "job_id"].to_numpy()
    with pytest.raises(InputError, match="2 jobs of the same workload differ in their plan"):
        validated(real, Run(sim.info, jobs, sim.allocations))


def test_the_order_of_rows_does_not_matter() -> None:
    sim = predicted()
    shuffled = Run(sim.info, sim.jobs.sample(frac=1, random_state=1), sim.allocations)
    assert isinstance(shuffled.jobs, pd.DataFrame)
    validated([fcfs_run(40, stretch=1.001)], shuffled)
