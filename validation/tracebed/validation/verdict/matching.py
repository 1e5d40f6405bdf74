"""Matching of the jobs of two runs by id."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracebed.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.states import JobState

SAME = 1e-6
"""Accepted difference of equal numbers, relative and absolute."""
MEASURES = ("submit", "wait", "run", "response", "bounded_slowdown")
"""Columns of `per_job` that the table of matched jobs has for each run."""


@dataclass(frozen=True)
class Matching:
    """Numbers of jobs with and without a counterpart in the other run."""

    matched: int
    """Jobs that ended in both runs."""
    ended_in_neither: int
    """Jobs that were rejected or canceled in both runs."""
    only_real: int
    """Jobs that ended only in the real run."""
    only_predicted: int
    """Jobs that ended only in the prediction."""
    unlike: int
    """Jobs that ended in neither run and have different states, or are missing in one run."""
    states_differ: int
    """Matched jobs with different final states."""

    @property
    def unmatched(self) -> int:
        """Jobs without a counterpart."""
        return self.only_real + self.only_predicted + self.unlike

    @property
    def unmatched_share(self) -> float:
        """Share of the jobs of both runs that have no counterpart."""
        return self.unmatched / max(self.matched + self.ended_in_neither + self.unmatched, 1)


PLAN = ("submit_planned", "nodes", "run_time")
"""Columns of the jobs of a run that come from the workload."""


def check_same_plan(real: Run, predicted: Run) -> None:
    """Check that the ids of the jobs are not permuted in one of two runs of one workload.

    A column of the plan is checked if both runs have the same values in it, in any order: a run of another program may
    have other values.

    Raises:
        InputError: jobs have other submit times, sizes or run times, so the ids of one run were changed.
    """
    columns = ["job_id", *PLAN]
    both = real.jobs[columns].merge(predicted.jobs[columns], on="job_id", suffixes=("_real", "_predicted"))
    differ = np.zeros(len(both), dtype=bool)
    for name in PLAN:
        ours, theirs = (both[f"{name}_{side}"].to_numpy(dtype=np.float64) for side in ("real", "predicted"))
        if np.allclose(np.sort(ours), np.sort(theirs), rtol=SAME, atol=SAME, equal_nan=True):
            differ |= ~np.isclose(ours, theirs, rtol=SAME, atol=SAME, equal_nan=True)
    if differ.any():
        job = both.iloc[int(differ.argmax())]
        plans = [
            f"{job[f'nodes_{side}']} nodes for {job[f'run_time_{side}']:g} s at {job[f'submit_planned_{side}']:g} s"
            for side in ("real", "predicted")
        ]
        raise InputError(
            f"{int(differ.sum()):,} jobs of the same workload differ in their plan, "
            f"first job {job['job_id']}: {plans[1]} in the prediction, {plans[0]} in the real run",
            hint="the job ids of one run were changed: repeat the prediction",
        )


def match(real: pd.DataFrame, predicted: pd.DataFrame) -> tuple[pd.DataFrame, Matching]:
    """Match the jobs of two tables of `per_job` by id.

    Returns:
        A row per job that ended in both runs, in the submit order of the real run: job_id, kind, nodes, and
        `MEASURES` with the suffixes _real and _predicted; and the numbers of jobs.

    Raises:
        InputError: the runs have no job in common.
    """
    both = real.merge(predicted, on="job_id", how="outer", suffixes=("_real", "_predicted"), indicator=True)
    if not (both["_merge"] == "both").any():
        raise InputError("the two runs have no job in common", hint="simulate the replayed workload")
    ended_real = both["finished_real"].eq(True).to_numpy()
    ended_predicted = both["finished_predicted"].eq(True).to_numpy()
    alike = (both["state_real"] == both["state_predicted"]).to_numpy(dtype=bool, na_value=False)
    neither = ~ended_real & ~ended_predicted
    paired = both[ended_real & ended_predicted]
    same_end = neither & alike & (both["state_real"] != JobState.INTERRUPTED).to_numpy(dtype=bool, na_value=False)
    matching = Matching(
        matched=len(paired),
        ended_in_neither=int(same_end.sum()),
        only_real=int((ended_real & ~ended_predicted).sum()),
        only_predicted=int((ended_predicted & ~ended_real).sum()),
        unlike=int((neither & ~same_end).sum()),
        states_differ=int((paired["state_real"] != paired["state_predicted"]).sum()),
    )
    jobs = paired[[f"{name}_{of}" for name in MEASURES for of in ("real", "predicted")]].assign(
        job_id=paired["job_id"], kind=paired["kind_real"], nodes=paired["nodes_real"].astype("int64")
    )
    return jobs.sort_values("submit_real", kind="stable").reset_index(drop=True), matching
