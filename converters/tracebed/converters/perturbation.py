"""Perturbation of workloads: small random changes, which show how much a simulated figure depends on them.

A schedule depends on chance in its input, such as the order of jobs that are submitted in the same second. Simulations
of slightly perturbed inputs give the distribution of its figures (D. Tsafrir, K. Ouaknine and D. G. Feitelson,
"Reducing performance evaluation sensitivity and variability by input shaking", MASCOTS 2007).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from tracebed.converters.workload import Step, Workload
from tracebed.ground.errors import InputError


@dataclass(frozen=True)
class Perturbation:
    """The largest changes."""

    submit_s: float = 10.0
    """Each submission moves by at most this time, s, earlier or later. 0: only the order of ties changes."""
    limit_s: float = 60.0
    """Limits are rounded up to multiples of a time drawn up to this one, s. Below 1: they do not change."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0.0 <= value < np.inf:
                raise InputError(f"{name} {value} is out of range", hint="give 0 or more seconds")


def perturbed(workload: Workload, seed: int, perturbation: Perturbation | None = None) -> Workload:
    """Return `workload` with other submit times, another order of ties, and other time limits.

    Submissions move by a uniformly distributed time. If all submit times are whole seconds, as in most logs, this time
    is too, so that ties remain. Jobs that are submitted at once are in random order. All limits are rounded up to the
    same multiple, a whole number of seconds. Deadlines and earliest starts move with the submission. Logged times are
    left out, because they belong to the submission in the log.
    """
    perturbation = perturbation or Perturbation()
    rng = np.random.default_rng(seed)
    before, limit = workload.floats("submit_time"), workload.floats("time_limit")
    if (before == np.rint(before)).all():
        most = int(perturbation.submit_s)
        submit = before + rng.integers(-most, most, len(before), endpoint=True)
    else:
        submit = before + rng.uniform(-perturbation.submit_s, perturbation.submit_s, len(before))
    submit = np.maximum(submit, 0.0)
    multiple = int(rng.integers(1, max(1, int(perturbation.limit_s)), endpoint=True))
    if multiple > 1:
        limit = np.ceil(limit / multiple) * multiple
    columns = workload.columns
    moved = {name: columns[name] + submit - before for name in ("deadline", "earliest_start") if name in columns}
    changed = columns.assign(submit_time=submit, time_limit=limit, **moved).without("logged_start", "logged_end")
    step = Step("perturb", asdict(perturbation), {"jobs": len(workload)}, seed)
    return workload.with_step(step, changed.take(rng.permutation(len(changed))))


def input_hash(workload: Workload) -> str:
    """Return a short hash of the ids and submit times of the jobs, in their order.

    Perturbed workloads with the same hash are one random input, also if their jobs differ otherwise, such as in the
    share of malleable jobs.
    """
    return workload.digest(("job_id", "submit_time"))[:16]
