"""Predictions that must fail: each keeps something of the real runs that a careless score takes for accuracy.

- `shuffled` has the real waits, given to other jobs: equal means and distributions, wrong jobs.
- `other-runs` predicts the mean wait of all other workloads for each job: no knowledge of the workload.
- `observed` has the run times of the real run, which no simulator could have known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.run import Run
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.validation import CaseResult

CONTROLS = {
    "shuffled": "the real waits, shuffled among the jobs",
    "other-runs": "the mean wait of all other workloads, for each job",
    "observed": "the run times of the real run, entered as planned",
}
"""Name of a control -> its prediction."""


def controls(cases: Sequence[Case], results: Sequence[CaseResult]) -> dict[str, list[Case]]:
    """Return control -> its cases, without the controls that need what the data set lacks."""
    waits = [_waits(case.real[0]) for case in cases]
    found = {
        "shuffled": [
            _with(case, _changed(case, _shuffled(wait, index)))
            for index, (case, wait) in enumerate(zip(cases, waits, strict=True))
        ]
    }
    clusters = [result.member.workload for result in results]
    if len(set(clusters)) > 1:
        means = np.array([np.nanmean(wait) for wait in waits])
        others = [float(means[[name != own for name in clusters]].mean()) for own in clusters]
        found["other-runs"] = [
            _with(case, _changed(case, np.full(len(wait), mean)))
            for case, wait, mean in zip(cases, waits, others, strict=True)
        ]
    if not all(result.copied for result in results):
        found["observed"] = [_with(case, _changed(case, None, observed=True)) for case in cases]
    return found


def _with(case: Case, run: Run) -> Case:
    return replace(case, predicted=(run,))


def _waits(run: Run) -> FloatArray:
    jobs = run.table("jobs")
    return np.asarray(jobs["start"] - jobs["submit"], dtype=np.float64)


def _shuffled(waits: FloatArray, seed: int) -> FloatArray:
    """Return the waits in another order. The place of unknown waits, those of jobs that never started, is kept."""
    found, known = waits.copy(), np.isfinite(waits)
    found[known] = np.random.default_rng(seed).permutation(waits[known])
    return found


def _changed(case: Case, waits: FloatArray | None, *, observed: bool = False) -> Run:
    """Return the first prediction of a case with other waits (s, in the order of the real run) or run times."""
    base = case.predicted[0]
    # Runs with frames would convert them for each of the many uses of their tables.
    jobs, allocations = (base.table(name).frame() for name in ("jobs", "allocations"))
    real = case.real[0].table("jobs").frame()
    order = pd.Series(np.arange(len(real)), index=real["job_id"]).reindex(jobs["job_id"]).to_numpy()
    ran = (jobs["end"] - jobs["start"]).to_numpy(dtype=np.float64)
    if observed:
        ran = (real["end"] - real["start"]).to_numpy(dtype=np.float64)[order]
    if waits is not None:
        jobs["start"] = jobs["submit"].to_numpy(dtype=np.float64) + waits[order]
    jobs["end"] = jobs["start"].to_numpy(dtype=np.float64) + ran
    times = jobs.set_index("job_id")[["start", "end"]].reindex(allocations["job_id"])
    moved = allocations.assign(start=times["start"].to_numpy(), end=times["end"].to_numpy())
    return Run(base.info, jobs, moved, base.table("reconfigurations"))
