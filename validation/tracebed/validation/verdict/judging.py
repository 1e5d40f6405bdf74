"""The verdict on each metric of measured cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.run import RunInfo
from tracebed.validation.metrics import Margin, Metric, all_metrics
from tracebed.validation.verdict.decision import Estimate, Samples, decide, estimate, rejected, third_moment
from tracebed.validation.verdict.evidence import imposed
from tracebed.validation.verdict.measuring import MeasuredCase
from tracebed.validation.verdict.rule import Reason, Verdict
from tracebed.validation.verdict.tolerances import Tolerances


class Noise(Protocol):
    """Noise of one metric from earlier repetitions on a testbed of the same class."""

    @property
    def log_sd(self) -> float:
        """Standard deviation of the logarithm of the metric."""

    @property
    def df(self) -> float:
        """Degrees of freedom of `log_sd`."""


class Noises(Protocol):
    """A noise profile: the noise of each metric on a class of testbeds."""

    def require(self, info: RunInfo, tau: float) -> None:
        """Raise InputError unless a run is from a testbed of this class."""

    def noise(self, metric: str) -> Noise | None:
        """Return the noise of a metric, or None if it is unknown."""


@dataclass(frozen=True)
class Judgment:
    """One metric over the cases in which it is defined."""

    metric: Metric
    margin: Margin
    gate: bool
    evidence: bool
    cases: tuple[MeasuredCase, ...]
    """The cases that are shown. Cases of calibration workloads come last, and are not part of `estimate`."""
    shown: Samples
    """The values of all shown cases."""
    samples: Samples
    """The values of the cases on which the verdict depends."""
    estimate: Estimate
    compression: FloatArray
    """Factor on the absolute amount of the margin in each case of `samples`."""
    decidable: bool
    """Whether some margin makes the metric accurate: no reason other than error and noise forbids it."""
    profile_based: bool
    """Whether the noise of a case comes from a noise profile."""
    verdict: Verdict
    reasons: tuple[Reason, ...]


def judge(
    cases: Sequence[MeasuredCase], tolerances: Tolerances, profile: Noises | None = None, *, flagged: bool = True
) -> list[Judgment]:
    """Return the judgments of all metrics with a margin that apply to the cases: gated metrics first.

    Args:
        tolerances: margins and constants.
        profile: the noise for cases with too few repetitions.
        flagged: whether repetitions with the signals H4 and H5 are included.
    """
    found = []
    for name, margin in sorted(tolerances.margins.items(), key=lambda item: not item[1].gate):
        metric = all_metrics().get(name)
        if metric is not None and (judged := _judged(metric, margin, cases, tolerances, profile, flagged)):
            found.append(judged)
    gated = [item for item in found if item.gate]
    inaccurate = rejected([item.estimate.p for item in gated], tolerances.alpha) if gated else []
    decided = [_with_verdict(item, bool(off)) for item, off in zip(gated, inaccurate, strict=True)]
    advisory = [item for item in found if not item.gate]
    return decided + [_with_verdict(item, bool(item.estimate.p < tolerances.alpha)) for item in advisory]


def common_reasons(cases: Sequence[MeasuredCase], tolerances: Tolerances, *, profile_based: bool) -> set[Reason]:
    """Return the reasons that forbid the verdict accurate on any metric.

    Args:
        cases: the cases on which the verdict depends.
        tolerances: the numbers of repetitions and the share of unmatched jobs.
        profile_based: whether a noise profile replaces missing repetitions.
    """
    needed = tolerances.repeats(real_runs(cases))
    total = [each.healthy + each.unfit for each in cases]
    applies = {
        Reason.CALIBRATION_WORKLOAD: all(each.calibration for each in cases),
        Reason.UNMATCHED_JOBS: any(each.unmatched > each.unmatched_limit for each in cases),
        Reason.TOO_FEW_REPEATS: min(total) < needed and not profile_based,
        Reason.UNHEALTHY: any(each.unfit and each.healthy < (1 if profile_based else needed) for each in cases),
    }
    return {reason for reason, holds in applies.items() if holds}


def real_runs(cases: Iterable[MeasuredCase]) -> int:
    """Return the number of cases, where cases with the same real runs count once."""
    return len({each.member.real_run for each in cases})


def _with_verdict(item: Judgment, inaccurate: bool) -> Judgment:
    """Return the judgment with its verdict; `reasons` has those that forbid the verdict accurate until then."""
    found, reasons = decide(item.estimate, inaccurate)
    if Reason.CALIBRATION_WORKLOAD in item.reasons or (found is Verdict.ACCURATE and item.reasons):
        found = Verdict.INCONCLUSIVE
    if found is not Verdict.INCONCLUSIVE:
        return replace(item, verdict=found, reasons=())
    every = {*reasons, *item.reasons}
    return replace(item, verdict=found, reasons=tuple(reason for reason in Reason if reason in every))


def _judged(
    metric: Metric,
    margin: Margin,
    cases: Sequence[MeasuredCase],
    tolerances: Tolerances,
    profile: Noises | None,
    flagged: bool,
) -> Judgment | None:
    """Return the estimate of one metric, or None if the metric does not apply to the cases."""
    defined = [each for each in cases if np.isfinite(each.values(metric.name, flagged=flagged)[0]).any()]
    malleable = any(side["jobs_malleable"] for each in cases for side in (*each.figures, *each.predicted_figures))
    if not defined or (metric.of_malleable_jobs and not malleable and not margin.gate):
        return None
    defined.sort(key=lambda each: each.calibration)
    deciding = [each for each in defined if not each.calibration] or defined
    noise = profile.noise(metric.name) if profile is not None else None
    needed = tolerances.repeats(real_runs(deciding))
    columns = [_values(metric, margin, each, noise, needed, flagged) for each in defined]
    fields = (np.array(column) for column in zip(*columns, strict=True))
    numbers = np.unique([each.member.real_run for each in defined], return_inverse=True)[1]
    shown = replace(Samples(*fields), real_run=numbers)
    samples = shown.first(len(deciding))
    measured = not any(each.copied or any(imposed(run.info) for run in each.case.real) for each in deciding)
    evidence = measured or not metric.of_run_times
    profile_based = noise is not None and any(each.healthy < needed for each in deciding)
    reasons = common_reasons(deciding, tolerances, profile_based=profile_based)
    if not np.isfinite(samples.predicted - samples.real).all():
        reasons.add(Reason.NOT_DEFINED)
    return Judgment(
        metric=metric,
        margin=margin,
        gate=margin.gate and evidence,
        evidence=evidence,
        cases=tuple(defined),
        shown=shown,
        samples=samples,
        estimate=estimate(samples, tolerances.alpha, tolerances.kappa),
        compression=np.array([each.compression if metric.unit == "s" else 1.0 for each in deciding]),
        decidable=not reasons,
        profile_based=profile_based,
        verdict=Verdict.INCONCLUSIVE,
        reasons=tuple(reasons),
    )


def _values(
    metric: Metric, margin: Margin, case: MeasuredCase, noise: Noise | None, needed: int, flagged: bool
) -> tuple[float, ...]:
    """Return the fields of `Samples` for one case."""
    real, predicted = case.values(metric.name, flagged=flagged)
    mean, repeats = float(real.mean()), len(real)
    sd, df = _sd(real) if case.healthy else np.nan, repeats - 1.0
    if noise is not None and case.healthy and repeats < needed:
        of_profile = (noise.log_sd * mean) ** 2 * noise.df
        own = df * sd**2 if df else 0.0
        sd, df = float(np.sqrt((of_profile + own) / (noise.df + df))), noise.df + df
    in_seconds = metric.unit == "s"
    amount = margin.absolute * (case.compression if in_seconds else 1.0)
    allowed = replace(margin, absolute=amount).at(mean)
    predicted_sd = _sd(predicted) if len(predicted) > 1 else 0.0
    resolution = case.resolution_s if in_seconds else 0.0
    third = float(third_moment(real))
    return mean, sd, df, repeats, float(predicted.mean()), allowed, predicted_sd, len(predicted), resolution, third


def _sd(values: FloatArray) -> float:
    """Return the standard deviation of the sample, or NaN for fewer than two values."""
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")
