"""The delays of the steps of each job in one simulation: the overheads, or draws from their measured distribution.

A member of an ensemble (docs/explanation/ensembles.md) multiplies each delay by a factor that is drawn from the factors
of a calibration. The factors of launches and ends belong to a job, those of a resize to its row in the record. They are
drawn before the simulation, so that they depend neither on the order of events nor on the engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.pauses import Pauses

LAUNCH, END, EXPAND, RECONFIGURATION, RELEASE = STEPS = ("launch", "end", "expand", "reconfiguration", "release")
"""Steps of jobs whose delays vary."""
OF_RESIZES = (EXPAND, RECONFIGURATION, RELEASE)
ROWS = 4096
"""Number of resizes after which their factors repeat."""
Drawn = Mapping[str, FloatArray]
"""Step -> the factor of each job, or of each resize up to `ROWS`."""


def draw(factors: Mapping[Any, Sequence[float]], jobs: int, seed: int) -> Drawn:
    """Return the factors of a member: shape (jobs,) for launches and ends, (ROWS,) for resizes.

    Args:
        factors: step -> factors of equal probability, with mean 1. The factors of a missing step are 1.
        jobs: number of jobs.
        seed: seed of the member.
    """
    found = {}
    for number, step in enumerate(STEPS):
        values = np.asarray(factors.get(step) or (1.0,), dtype=np.float64)
        size = ROWS if step in OF_RESIZES else jobs
        found[step] = values[np.random.default_rng((seed, number)).integers(0, len(values), size)]
    return found


@dataclass(frozen=True)
class Delays:
    """The delays of one simulation.

    Args:
        overheads: the constants, trace s.
        drawn: the factors; None: all are 1.
        pauses: the resizes of jobs whose application was measured, trace s; None: all jobs have the constants.
    """

    overheads: Overheads
    drawn: Drawn | None = None
    pauses: Pauses | None = None

    def launch(self, job: int, ranks: int) -> float:
        """Return the launch time of `job` with `ranks` ranks, s."""
        return self._times(self.overheads.launch(ranks), LAUNCH, job)

    def end(self, job: int, ranks: int) -> float:
        """Return the end time of `job` with `ranks` ranks, s."""
        return self._times(self.overheads.end(ranks), END, job)

    def expand(self, row: int, ranks: int) -> float:
        """Return the time until `ranks` new ranks have joined in the resize of this row, s; 0 for no ranks."""
        return self._times(self.overheads.expand(ranks), EXPAND, row % ROWS)

    def reconfiguration(self, row: int, job: int, added: int) -> float:
        """Return the pause of `job` in the resize of this row by `added` nodes (negative: a shrink), s."""
        own = self.pauses.pause(job, added) if self.pauses else math.nan
        return self._times(self.overheads.reconfiguration_s if math.isnan(own) else own, RECONFIGURATION, row % ROWS)

    def release(self, row: int, job: int, added: int) -> float:
        """Return the time until the nodes that `job` leaves in the shrink of this row are idle, s."""
        own = self.pauses.release(job, added) if self.pauses else math.nan
        return self._times(self.overheads.release_s if math.isnan(own) else own, RELEASE, row % ROWS)

    def _times(self, constant: float, step: str, index: int) -> float:
        return constant if self.drawn is None else constant * float(self.drawn[step][index])
