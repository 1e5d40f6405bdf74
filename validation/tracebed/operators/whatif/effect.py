"""The effect of a change on the work and the waits of a log: the same jobs in both clusters.

Jobs that the changed cluster refuses are left out of both. Otherwise the others would wait less because less work is
done, not because the cluster is better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray, Workload
from tracebed.operators.whatif.classes import Changed
from tracebed.operators.whatif.members import Predicted, Side
from tracebed.operators.whatif.refused import Refused, Remedy, beyond
from tracebed.slurm.machine import OVER_S

HOUR_S = 3600.0
IN_SOME = "some of the predictions never start it"


@dataclass(frozen=True)
class Effect:
    """The members of both clusters, without the refused jobs.

    Attributes:
        before, after: waits of all jobs of the log, s, shape (members, jobs); NaN: refused, or never started.
        members: the members of the changed cluster.
        lost: core seconds that each job lacks in the changed cluster, shape (jobs,).
        held: core seconds of each job, shape (jobs,).
        refused: what is refused.
    """

    before: FloatArray
    after: FloatArray
    members: list[Predicted]
    lost: FloatArray
    held: FloatArray
    refused: Refused

    def of(self, rows: BoolArray) -> Changed:
        """Return the effect on some of the jobs."""
        return Changed(self.before, self.after, self.lost, self.held, self.refused.much).of(rows)


def effect_of(
    workload: Workload,
    base: Sequence[Predicted],
    sides: Sequence[Side],
    predict: Callable[[Workload, Side, range], list[Predicted]],
) -> Effect:
    """Return the effect of a change.

    Args:
        workload: the jobs of the log.
        base: its members in the cluster as it was.
        sides: the cluster as it was, and the changed one.
        predict: a function that returns the members of a workload on a cluster.

    Raises:
        InputError: no job can run on the changed cluster.
    """
    new = sides[1]
    (probe,) = predict(workload, new, range(1))
    kept = ~(np.isfinite(base[0].wait) & ~np.isfinite(probe.wait))
    if kept.all():
        before, after = base, [probe, *predict(workload, new, range(1, len(base)))]
    else:
        some = Workload(workload.columns.take(kept), workload.provenance)
        before, after = (predict(some, side.of(kept), range(len(base))) for side in sides)
    waits = np.full((2, len(base), len(workload)), np.nan)
    waits[:, :, kept] = [[member.wait for member in members] for members in (before, after)]
    refused = ~kept | (np.isfinite(waits[0]).all(axis=0) & ~np.isfinite(waits[1]).all(axis=0))
    held = base[0].cores * base[0].run_time
    shorter = np.nan_to_num(base[0].run_time - probe.run_time)
    cut = (shorter > OVER_S) & ~refused
    lost = np.where(refused, held, np.where(cut, base[0].cores * shorter, 0.0))
    ran = np.isfinite(workload.floats("logged_start")) & np.isfinite(base[0].wait)
    adapted = beyond(workload, new.longest) if new.remedy is not Remedy.LEAVE_OUT else np.zeros(len(workload), bool)
    found = Refused(
        new.remedy,
        int((refused & ran).sum()),
        float(lost[refused & ran].sum() / HOUR_S),
        int((cut & ran).sum()),
        float(lost[cut & ran].sum() / HOUR_S),
        int((adapted & ran).sum()),
        float(held[ran].sum() / HOUR_S),
        Counter(probe.reasons.get(job, IN_SOME) for job in np.flatnonzero(refused & ran).tolist()),
    )
    return Effect(waits[0], waits[1], after, lost, held, found)
