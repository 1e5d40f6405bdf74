"""Verdicts, and the reasons for an inconclusive verdict (docs/explanation/verdict.md)."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from tracebed.ground.errors import ExitCode


class Verdict(enum.StrEnum):
    """Verdict on a prediction."""

    ACCURATE = "accurate"
    INACCURATE = "inaccurate"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of `tracebed compare`."""
        return {
            Verdict.ACCURATE: ExitCode.OK,
            Verdict.INACCURATE: ExitCode.INACCURATE,
            Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
        }[self]


class Reason(enum.StrEnum):
    """Reason for an inconclusive verdict."""

    UNHEALTHY = "unhealthy"
    CALIBRATION_WORKLOAD = "calibration_workload"
    NOT_DEFINED = "not_defined"
    UNMATCHED_JOBS = "unmatched_jobs"
    TOO_FEW_REPEATS = "too_few_repeats"
    WORKLOAD_OUTLIER = "workload_outlier"
    NOISE_EXCEEDS_MARGIN = "noise_exceeds_margin"
    NEAR_MARGIN = "near_margin"
    SKEWED_NOISE = "skewed_noise"


REASONS = {
    Reason.UNHEALTHY: "too many repetitions of the real run are unhealthy",
    Reason.CALIBRATION_WORKLOAD: "the prediction uses a calibration that was made from this workload",
    Reason.NOT_DEFINED: "the metric is undefined for one of the runs",
    Reason.UNMATCHED_JOBS: "too many jobs ended in one run only",
    Reason.TOO_FEW_REPEATS: "too few repetitions of the real run",
    Reason.WORKLOAD_OUTLIER: "the error of at least one case exceeds the limit of one case (by default two margins)",
    Reason.NOISE_EXCEEDS_MARGIN: "the noise of the real runs is too large for the margin",
    Reason.NEAR_MARGIN: "the error is too close to the margin",
    Reason.SKEWED_NOISE: "the interval lies inside the margins, but so few repetitions may have missed slow runs",
}


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the combined verdict of the gated metrics: inaccurate if any is, accurate if all are."""
    distinct = set(verdicts)
    for verdict in (Verdict.INACCURATE, Verdict.INCONCLUSIVE):
        if verdict in distinct:
            return verdict
    return Verdict.ACCURATE if distinct else Verdict.INCONCLUSIVE
