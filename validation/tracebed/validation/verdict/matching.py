"""Matching of the jobs of two runs by id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.ground.table import Table, ascending, rows_of, take
from tracebed.orchestrator.run import Run

if TYPE_CHECKING:
    import pandas as pd

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
    jobs, others = real.table("jobs"), predicted.table("jobs")
    theirs = rows_of(jobs.raw("job_id"), others.raw("job_id"))
    both = jobs.take(theirs >= 0), others.take(theirs[theirs >= 0])
    differ = np.zeros(len(both[0]), dtype=bool)
    for name in PLAN:
        ours, other = (side[name].astype(np.float64) for side in both)
        close = np.isclose(ours, other, rtol=SAME, atol=SAME, equal_nan=True)
        if not close.all() and np.allclose(np.sort(ours), np.sort(other), rtol=SAME, atol=SAME, equal_nan=True):
            differ |= ~close
    if differ.any():
        row = int(differ.argmax())
        plans = [
            f"{side['nodes'][row]} nodes for {side['run_time'][row]:g} s at {side['submit_planned'][row]:g} s"
            for side in both
        ]
        raise InputError(
            f"{int(differ.sum()):,} jobs of the same workload differ in their plan, "
            f"first job {both[0].text('job_id', row)}: {plans[1]} in the prediction, {plans[0]} in the real run",
            hint="the job ids of one run were changed: repeat the prediction",
        )


def match(real: Table, predicted: Table) -> tuple[pd.DataFrame, Matching]:
    """Match the jobs of two tables of `measures` by id.

    Returns:
        A row per job that ended in both runs, in the submit order of the real run: job_id, kind, nodes, and
        `MEASURES` with the suffixes _real and _predicted; and the numbers of jobs.

    Raises:
        InputError: the runs have no job in common.
    """
    theirs = rows_of(real.raw("job_id"), predicted.raw("job_id"))  # row in `predicted`; -1: absent
    common = theirs >= 0
    if not common.any():
        raise InputError("the two runs have no job in common", hint="simulate the replayed workload")
    ended_real, ended = real["finished"], predicted["finished"]
    ended_predicted = ended[theirs] & common
    alike = np.zeros(len(real), dtype=bool)
    for state in JobState:
        alike |= real.equal("state", state) & predicted.equal("state", state)[theirs] & common
    neither = ~ended_real & ~ended_predicted
    same_end = neither & alike & ~real.equal("state", JobState.INTERRUPTED)
    paired = ended_real & ended_predicted
    alone = np.ones(len(predicted), dtype=bool)
    alone[theirs[common]] = False
    matching = Matching(
        matched=int(paired.sum()),
        ended_in_neither=int(same_end.sum()),
        only_real=int((ended_real & ~ended_predicted).sum()),
        only_predicted=int((ended_predicted & ~ended_real).sum() + (alone & ended).sum()),
        unlike=int((neither & ~same_end).sum() + (alone & ~ended).sum()),
        states_differ=int((paired & ~alike).sum()),
    )
    ours = np.flatnonzero(paired)
    ours = ours[ascending(take(real.raw("job_id"), ours))]
    ours = ours[np.argsort(real["submit"][ours], kind="stable")]
    sides = {"real": real.take(ours), "predicted": predicted.take(theirs[ours])}
    jobs = {f"{name}_{side}": rows[name] for name in MEASURES for side, rows in sides.items()}
    same = {name: sides["real"].raw(name) for name in ("job_id", "kind", "nodes")}
    return Table(jobs | same).frame(), matching
