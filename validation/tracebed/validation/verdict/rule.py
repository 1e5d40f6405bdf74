"""The rule of the verdict: what may be said of a prediction, and why not more.

The noise of the real system cannot be estimated from one run, so the verdict on one real run is `inconclusive`
whatever the numbers (docs/explanation/verdict.md).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from tracebed.errors import ExitCode

REPEATS_NEEDED = 5
"""Healthy real repetitions without which a comparison of fewer than three workloads decides nothing."""
UNMATCHED_ALLOWED = 0.01
"""Share of the jobs that may have no counterpart."""


class Verdict(enum.StrEnum):
    """What may be said of a prediction."""

    ACCURATE = "accurate"
    INACCURATE = "inaccurate"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> ExitCode:
        """The exit status of `tracebed compare`."""
        return {
            Verdict.ACCURATE: ExitCode.OK,
            Verdict.INACCURATE: ExitCode.INACCURATE,
            Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
        }[self]


class Reason(enum.StrEnum):
    """Why a verdict is inconclusive."""

    UNHEALTHY = "unhealthy"
    NOT_DEFINED = "not_defined"
    UNMATCHED_JOBS = "unmatched_jobs"
    TOO_FEW_REPEATS = "too_few_repeats"


REASONS = {
    Reason.UNHEALTHY: "the real run's clocks contradict each other",
    Reason.NOT_DEFINED: "one of the runs has no such figure",
    Reason.UNMATCHED_JOBS: f"more than {100 * UNMATCHED_ALLOWED:g} % of the jobs ended in one run only",
    Reason.TOO_FEW_REPEATS: "one real run: no accuracy claim",
}


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of several gated metrics: inaccurate if one is; accurate only if all are."""
    found = set(verdicts)
    for verdict in (Verdict.INACCURATE, Verdict.INCONCLUSIVE):
        if verdict in found:
            return verdict
    return Verdict.ACCURATE if found else Verdict.INCONCLUSIVE
