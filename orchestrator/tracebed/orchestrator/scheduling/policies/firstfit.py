"""First fit: every job that fits starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tracebed.orchestrator.scheduling.state import Decision, ParameterTable, Start, State


@dataclass(frozen=True)
class FirstFit(ParameterTable):
    """Every waiting job, in queue order, starts if it fits. There are no reservations, and a large job may starve.

    The policy is the rigid baseline of the study of malleable jobs on Cori, Eagle and Theta.
    """

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the starts."""
        yield from first_fit(state)


def first_fit(state: State) -> Iterator[Start]:
    """Yield the starts of first fit. A job starts on its preferred size, or on fewer nodes down to its minimum."""
    jobs, queue = state.jobs, state.queue
    behind = -1
    if queue.by_submission and not state.freed:  # earlier jobs did not fit when no fewer nodes were idle
        behind = state.arrived[0] - 1 if state.arrived else queue.last
    # Without a reservation all idle nodes are extra.
    while state.idle and (job := queue.first_fit(behind, state.idle, 0.0, state.idle)) is not None:
        yield Start(job, min(jobs.pref[job], state.idle))
        behind = job
