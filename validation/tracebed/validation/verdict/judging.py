"""Measured cases, and the verdict on each metric of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import InputError
from tracebed.validation.metrics import Margin, MeasuredRun, Metric, all_metrics, summarize
from tracebed.validation.verdict.cases import Case, Membership, memberships
from tracebed.validation.verdict.comparison import check_sides, copied_run_times, imposed, match, time_compression
from tracebed.validation.verdict.decision import (
    POWER,
    Estimate,
    Samples,
    decide,
    estimate,
    power,
    rejected,
    third_moment,
)
from tracebed.validation.verdict.noise import MetricNoise, NoiseProfile
from tracebed.validation.verdict.rule import Reason, Verdict
from tracebed.validation.verdict.screening import Repetition, different_states, screen
from tracebed.validation.verdict.tolerances import Tolerances

Figures = dict[str, Any]  # the dictionary of `metrics` of a run
FEW = 0.1
"""Largest share of unhealthy runs that may leave the verdict to the others (docs/explanation/verdict.md)."""


@dataclass(frozen=True)
class MeasuredCase:
    """A case with the figures of its runs."""

    case: Case
    real: tuple[MeasuredRun, ...]
    predicted: tuple[MeasuredRun, ...]
    figures: tuple[Figures, ...]  # metrics of each repetition
    predicted_figures: tuple[Figures, ...]  # metrics of each prediction
    repetitions: tuple[Repetition, ...]
    unmatched: float  # largest share of the jobs of a pair of runs without a counterpart
    # Largest accepted share: that of the tolerances or, if it is larger, that of two runs of the ensemble.
    unmatched_limit: float
    copied: bool  # whether the run times of each prediction are copies of those that a repetition observed
    compression: float  # factor on absolute margins in seconds: the compression of the run times of the workload
    calibration: bool  # whether the predictions use a calibration that was made from the workload of this case
    member: Membership  # the real run and the workload of the case, which other cases may share

    @classmethod
    def of_all(
        cls, cases: Sequence[Case], tolerances: Tolerances, tau: float, allow_different_workloads: bool
    ) -> list[MeasuredCase]:
        """Measure the runs of `cases`, and find what the cases share. Raises InputError as `of`."""
        measured = [cls.of(case, tolerances, tau, allow_different_workloads) for case in cases]
        logs = [[each.repetitions[index].sha256 for index in each.selected()] for each in measured]
        members = memberships(cases, logs)
        return [replace(each, member=member) for each, member in zip(measured, members, strict=True)]

    @classmethod
    def of(cls, case: Case, tolerances: Tolerances, tau: float, allow_different_workloads: bool) -> MeasuredCase:
        """Measure the runs of `case`. Raises InputError if its runs do not belong together."""
        _check(case, allow_different_workloads)
        real, predicted = (tuple(MeasuredRun(run, tau) for run in side) for side in (case.real, case.predicted))
        # What the figures of a run are computed from, such as the busy cores over time, is not kept.
        figures = tuple(summarize(copy(each)) for each in real)
        names = [case.name_of(index) for index in range(len(real))]
        repetitions = screen(case.real, names, figures, max(tolerances.unmatched, *different_states(case.predicted)))
        included = [side for side, each in zip(real, repetitions, strict=True) if not each.excluded] or real
        pairs = [[_paired(a, b) for a in included] for b in predicted]
        calibrated = {sha for run in case.predicted for sha in run.info.calibration.get("workloads", [])}
        hashes = {run.info.workload.get("sha256") for run in (*case.real, *case.predicted)}
        return cls(
            case=case,
            real=real,
            predicted=predicted,
            figures=figures,
            predicted_figures=tuple(summarize(copy(each)) for each in predicted),
            repetitions=repetitions,
            unmatched_limit=max([tolerances.unmatched, *(_paired(a, b)[0] for a, b in pairwise(predicted))]),
            unmatched=max(unmatched for row in pairs for unmatched, _ in row),
            copied=all(any(copied for _, copied in row) for row in pairs),
            compression=time_compression(case.real[0].info),
            calibration=case.calibration or not calibrated.isdisjoint(hashes),
            member=Membership(case.name, case.cluster or case.workload),
        )

    def by_own_limits(self) -> MeasuredCase:
        """Return the case with the repetitions that are excluded by the default limits of health only."""
        included = tuple(replace(each, excluded="") if each.lenient else each for each in self.repetitions)
        return replace(self, repetitions=included)

    @property
    def healthy(self) -> int:
        """Number of repetitions that are not excluded."""
        return sum(not each.excluded for each in self.repetitions)

    @property
    def unfit(self) -> int:
        """Number of repetitions that are excluded for their health."""
        return sum(each.unfit for each in self.repetitions)

    def selected(self, *, flagged: bool = True) -> list[int]:
        """Return the positions of the included repetitions (`flagged`: also H4, H5); of all if all are excluded."""
        positions = [i for i, each in enumerate(self.repetitions) if not each.excluded and (flagged or not each.flags)]
        return positions or list(range(len(self.repetitions)))

    def values(self, metric: str, *, flagged: bool = True) -> tuple[FloatArray, FloatArray]:
        """Return a metric of the selected repetitions and of the predictions; NaN where it is undefined."""
        real = [self.figures[index][metric] for index in self.selected(flagged=flagged)]
        return np.array(real, dtype=float), np.array([each[metric] for each in self.predicted_figures], dtype=float)

    @property
    def resolution_s(self) -> float:
        """Resolution of the times of the real runs, s; 0 for exact times."""
        return max(run.info.resolution_s for run in self.case.real)

    def central(self, metrics: Iterable[str]) -> tuple[int, int]:
        """Return the positions of the selected repetition and of the prediction nearest to the medians of `metrics`."""
        names, chosen = list(metrics), self.selected()
        real = _nearest([[self.figures[index][name] for name in names] for index in chosen])
        return chosen[real], _nearest([[each[name] for name in names] for each in self.predicted_figures])


def _nearest(table: list[list[float]]) -> int:
    """Return the row of a table nearest to the medians of the columns, relative to these medians."""
    values = np.array(table, dtype=float)
    values[:, ~np.isfinite(values).all(axis=0)] = 0.0
    middle = np.median(values, axis=0)
    return int(np.argmin((np.abs(values - middle) / np.where(middle, np.abs(middle), 1.0)).sum(axis=1)))


def _paired(real: MeasuredRun, predicted: MeasuredRun) -> tuple[float, bool]:
    """Return the share of jobs without a counterpart, and whether the predicted run times are copies."""
    jobs, matching = match(real.jobs, predicted.jobs)
    resolution_s = max(side.run.info.resolution_s for side in (real, predicted))
    return matching.unmatched_share, copied_run_times(jobs, resolution_s)


def _check(case: Case, allow_different_workloads: bool) -> None:
    """Raise InputError if the runs of a case do not belong together."""
    for real in case.real:
        check_sides(real, case.predicted[0], allow_different_workloads)
    for predicted in case.predicted[1:]:
        check_sides(case.real[0], predicted, allow_different_workloads)
    for what, values in (
        ("repetitions of the case {} have different policies", [run.info.policy for run in case.real]),
        ("predictions of the case {} come from different simulators", [run.info.source for run in case.predicted]),
    ):
        if len(distinct := dict.fromkeys(values)) > 1:
            raise InputError(f"{what.format(case.name)}: {', '.join(distinct)}", hint="make a case of each")


@dataclass(frozen=True)
class Judgment:
    """One metric over the cases in which it is defined."""

    metric: Metric
    margin: Margin
    gate: bool
    evidence: bool
    # The cases that are shown. Cases of calibration workloads come last, and are not part of `estimate`.
    cases: tuple[MeasuredCase, ...]
    shown: Samples  # the values of all shown cases
    samples: Samples  # the values of the cases on which the verdict depends
    estimate: Estimate
    compression: FloatArray  # factor on the absolute amount of the margin in each case of `samples`
    decidable: bool  # whether some margin makes the metric accurate: no reason other than error and noise forbids it
    profile_based: bool  # whether the noise of a case comes from a noise profile
    verdict: Verdict
    reasons: tuple[Reason, ...]


def judge(
    cases: Sequence[MeasuredCase], tolerances: Tolerances, profile: NoiseProfile | None = None, *, flagged: bool = True
) -> list[Judgment]:
    """Return the judgments of all metrics with a margin that apply to the cases, gated metrics first."""
    judgments = []
    for name, margin in sorted(tolerances.margins.items(), key=lambda item: not item[1].gate):
        metric = all_metrics().get(name)
        if metric is not None and (judged := _judged(metric, margin, cases, tolerances, profile, flagged)):
            judgments.append(judged)
    gated = [item for item in judgments if item.gate]
    inaccurate = rejected([item.estimate.p for item in gated], tolerances.alpha) if gated else []
    decided = [_with_verdict(item, bool(off)) for item, off in zip(gated, inaccurate, strict=True)]
    advisory = [item for item in judgments if not item.gate]
    return decided + [_with_verdict(item, bool(item.estimate.p < tolerances.alpha)) for item in advisory]


def common_reasons(cases: Sequence[MeasuredCase], tolerances: Tolerances, *, profile_based: bool) -> set[Reason]:
    """Return the reasons that forbid the verdict accurate on any metric; a noise profile may replace repetitions."""
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


def few_excluded(cases: Sequence[MeasuredCase], needed: int) -> bool:
    """Return whether some, but few, runs are unhealthy, and no case lacks more than one needed repetition."""
    unfit = sum(each.unfit for each in cases)
    few = 0 < unfit <= FEW * (unfit + sum(each.healthy for each in cases))
    return few and all(each.healthy >= needed - 1 for each in cases)


def _with_verdict(item: Judgment, inaccurate: bool) -> Judgment:
    """Return the judgment with its verdict; `reasons` has those that forbid the verdict accurate until then."""
    verdict, reasons = decide(item.estimate, inaccurate)
    if Reason.CALIBRATION_WORKLOAD in item.reasons or (verdict is Verdict.ACCURATE and item.reasons):
        verdict = Verdict.INCONCLUSIVE
    if verdict is not Verdict.INCONCLUSIVE:
        return replace(item, verdict=verdict, reasons=())
    every = {*reasons, *item.reasons}
    return replace(item, verdict=verdict, reasons=tuple(reason for reason in Reason if reason in every))


def _judged(
    metric: Metric,
    margin: Margin,
    cases: Sequence[MeasuredCase],
    tolerances: Tolerances,
    profile: NoiseProfile | None,
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
    found = estimate(samples, tolerances.alpha, tolerances.kappa)
    profile_based = noise is not None and any(each.healthy < needed for each in deciding)
    reasons = common_reasons(deciding, tolerances, profile_based=profile_based)
    if not np.isfinite(samples.predicted - samples.real).all():
        reasons.add(Reason.NOT_DEFINED)
    left = int(samples.repeats.min())
    if few_excluded(deciding, needed) and power(samples, found, tolerances.alpha, left) >= POWER:
        reasons.discard(Reason.UNHEALTHY)
    return Judgment(
        metric=metric,
        margin=margin,
        gate=margin.gate and evidence,
        evidence=evidence,
        cases=tuple(defined),
        shown=shown,
        samples=samples,
        estimate=found,
        compression=np.array([each.compression if metric.unit == "s" else 1.0 for each in deciding]),
        decidable=not reasons,
        profile_based=profile_based,
        verdict=Verdict.INCONCLUSIVE,
        reasons=tuple(reasons),
    )


def _values(
    metric: Metric, margin: Margin, case: MeasuredCase, noise: MetricNoise | None, needed: int, flagged: bool
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
