"""The duty that a calibration proposes.

A rank with duty d computes d times the units that fit into an iteration at the calibrated rate R. On a core with the
rate r (units per wall second) this takes d R / r of the iteration, so the work fits if r / R >= d. The ranks of a job
wait for the slowest one, so the work of N ranks fits with probability (1 - F(d))^N, with F the distribution of r / R
over windows of the length of an iteration. Let q be the value with (1 - F(q))^N = `QUANTILE`. The windows of a
calibration span seconds, but the rate of a machine drifts over hours. So `DRIFT` times the shortfall 1 - q is left
free.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracebed.orchestrator.testbeds.calibration import DutyProposal

DUTIES = tuple(round(1 - 0.05 * step, 2) for step in range(15))
"""The duties that can be proposed: 1, 0.95, ..., 0.3."""
QUANTILE = 0.99
"""Share of the iterations whose work must fit into the plan."""
DRIFT = 3.0
"""Multiple of the shortfall of the slowest ranks that is left free."""


def propose(speeds: npt.NDArray[np.float64], ranks: int) -> DutyProposal:
    """Return the proposed duty.

    Args:
        speeds: rates of cores over windows of the length of an iteration, as multiples of the calibrated rate, shape
            (windows,).
        ranks: number of ranks that wait for each other.
    """
    slowest = float(np.quantile(speeds, 1 - QUANTILE ** (1 / ranks)))
    bound = 1 - DRIFT * max(0.0, 1 - slowest)
    duty = next((duty for duty in DUTIES if duty <= bound), DUTIES[-1])
    late = 1 - float(np.mean(speeds >= duty)) ** ranks
    return DutyProposal(duty=duty, quantile=QUANTILE, ranks=ranks, late=round(late, 6))
