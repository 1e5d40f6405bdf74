"""Validation of a simulator: from the runs of cases to the verdict."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tracebed.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import TAU
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.cautions import cautions
from tracebed.validation.verdict.comparison import compare_measured
from tracebed.validation.verdict.decision import estimate, repeats_needed
from tracebed.validation.verdict.evidence import evidence
from tracebed.validation.verdict.judging import Judgment, Noises, common_reasons, judge
from tracebed.validation.verdict.measuring import MeasuredCase
from tracebed.validation.verdict.per_job import per_job
from tracebed.validation.verdict.ranking import Observation, Ranking, rank
from tracebed.validation.verdict.rates import paired_rates
from tracebed.validation.verdict.rule import REASONS, Reason, Verdict, combine
from tracebed.validation.verdict.screening import most_frequent
from tracebed.validation.verdict.tolerances import Tolerances
from tracebed.validation.verdict.validation import (
    CaseMetric,
    CaseResult,
    MetricVerdict,
    Population,
    SimulatorFacts,
    Validation,
)

SENSITIVITY = (0.5, 2.0)
"""Factors on all margins for which the verdict is shown, too."""
POPULATION = 8
"""Smallest number of workloads for a claim about the population of workloads."""


def validate(
    cases: Sequence[Case],
    tolerances: Tolerances | None = None,
    *,
    profile: Noises | None = None,
    tau: float = TAU,
    simulator: SimulatorFacts | None = None,
    allow_different_workloads: bool = False,
) -> Validation:
    """Return the verdict on a simulator.

    Args:
        cases: at least one case, with different names.
        tolerances: margins and constants; the defaults if None.
        profile: noise of the testbed, for cases with too few repetitions.
        tau: threshold of the bounded slowdown, s, for all runs.
        simulator: the simulator; by default from the metadata of the predictions.
        allow_different_workloads: match jobs by id even if the workloads of the runs differ.

    Raises:
        InputError: there is no case, two have the same name, runs of a case do not belong together, or the profile is
            from another class of testbeds.
    """
    if not cases:
        raise InputError("there is no case to validate")
    if len({case.name for case in cases}) < len(cases):
        raise InputError("two cases have the same name", hint="name each case differently")
    tolerances = tolerances or Tolerances.default()
    measured = [MeasuredCase.of(case, tolerances, tau, allow_different_workloads) for case in cases]
    if profile is not None:
        for each in measured:
            profile.require(each.case.real[0].info, tau)
    judged = judge(measured, tolerances, profile)
    metrics = tuple(_metric(item, tolerances) for item in judged)
    results = tuple(_result(each, tolerances) for each in measured)
    verdict, reasons = _overall(judged, measured, tolerances)
    deciding = [each.case for each in measured if not each.calibration] or list(cases)
    found = evidence(
        [run.info for case in deciding for run in case.real], [run.info for case in deciding for run in case.predicted]
    )
    flagged = any(repetition.flags for each in measured for repetition in each.repetitions)

    def again(factor: float = 1.0, *, flagged: bool = True) -> Verdict:
        changed = tolerances.scaled(factor)
        return _overall(judge(measured, changed, profile, flagged=flagged), measured, changed)[0]

    without = again(flagged=False) if flagged else None
    ranking = _ranking(judged, measured, tolerances)
    discordant = ranking.discordant if ranking else ()
    return Validation(
        simulator=simulator or _simulator(run for case in cases for run in case.predicted),
        cases=results,
        metrics=metrics,
        verdict=verdict,
        reasons=reasons,
        headline=_headline(metrics, results, verdict, reasons),
        warnings=cautions(results, metrics, tolerances, found, without, verdict)
        + [f"policies in the wrong order: {pair.sentence}" for pair in discordant],
        tolerances=tolerances,
        tau=tau,
        sensitivity={factor: again(factor) for factor in SENSITIVITY},
        without_outliers=without,
        population=_population(judged, tolerances),
        ranking=ranking,
        could_fail=list(found.could_fail),
        could_not_fail=list(found.could_not_fail),
        same_scheduler=found.same_scheduler,
    )


def _overall(
    judged: Sequence[Judgment], cases: Sequence[MeasuredCase], tolerances: Tolerances
) -> tuple[Verdict, tuple[Reason, ...]]:
    """Return the overall verdict and the reasons of the inconclusive gated metrics."""
    gated = [item for item in judged if item.gate]
    verdict = combine(item.verdict for item in gated)
    found = {reason for item in gated for reason in item.reasons}
    if not gated:
        found = {Reason.NOT_DEFINED, *common_reasons(cases, tolerances, profile_based=False)}
    return verdict, tuple(reason for reason in Reason if reason in found)


def _metric(item: Judgment, tolerances: Tolerances) -> MetricVerdict:
    """Return the verdict on one metric with its figures."""
    alpha, kappa = tolerances.alpha, tolerances.kappa
    found = item.estimate
    relative = estimate(replace(item.samples, margin=np.abs(item.samples.real)), alpha, kappa)
    known = bool((item.samples.real != 0).all())
    least = tolerances.repeats(len(found.z))
    return MetricVerdict(
        metric=item.metric,
        margin=item.margin,
        gate=item.gate,
        evidence=item.evidence,
        cases=tuple(_cases(item, tolerances)),
        z=float(found.mean),
        low=float(found.low),
        high=float(found.high),
        se=float(found.se),
        df=float(found.df),
        relative_error=float(relative.mean) if known else math.nan,
        relative_low=float(relative.low) if known else math.nan,
        relative_high=float(relative.high) if known else math.nan,
        delta_needed=(item.margin.relative or item.margin.absolute) * float(found.factor_needed),
        repeats_needed=repeats_needed(item.samples, found, alpha, least),
        profile_based=item.profile_based,
        verdict=item.verdict,
        reasons=item.reasons,
        calibration=len(item.cases) - len(found.z),
    )


def _cases(item: Judgment, tolerances: Tolerances) -> Iterable[CaseMetric]:
    """Yield the figures of a metric in each case."""
    values, found = item.shown, estimate(item.shown, tolerances.alpha, tolerances.kappa)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(values.real == 0, np.nan, np.abs(values.real))
        error, cv = (values.predicted - values.real) / size, values.sd / size
    for index, each in enumerate(item.cases):
        z, half = float(found.z[index]), float(found.case_half[index])
        yield CaseMetric(
            case=each.case.name,
            repeats=int(values.repeats[index]),
            runs=int(np.asarray(values.runs)[index]),
            real_mean=float(values.real[index]),
            real_sd=float(values.sd[index]),
            predicted=float(values.predicted[index]),
            relative_error=float(error[index]),
            margin=float(values.margin[index]),
            z=z,
            low=z - half,
            high=z + half,
            noise_cv=float(cv[index]),
        )


def _result(each: MeasuredCase, tolerances: Tolerances) -> CaseResult:
    """Return the result of a case: repetitions, a typical pair of runs, and differences job by job."""
    gated = [name for name, margin in tolerances.margins.items() if margin.gate and name in each.figures[0]]
    real, predicted = each.central(gated)
    return CaseResult(
        case=each.case,
        repetitions=each.repetitions,
        pair=compare_measured(
            each.real[real], each.predicted[predicted], (each.figures[real], each.predicted_figures[predicted])
        ),
        calibration=each.calibration,
        unmatched=each.unmatched,
        per_job=per_job([each.real[index] for index in each.selected()], each.predicted),
        rates=tuple(paired_rates(each.real[real], each.predicted[predicted], alpha=tolerances.alpha)),
    )


def _ranking(judged: Sequence[Judgment], cases: Sequence[MeasuredCase], tolerances: Tolerances) -> Ranking | None:
    """Return the order of the policies by each gated metric, on each workload with several policies."""
    names = [item.metric.name for item in judged if item.gate]
    observations = [
        Observation(each.case.workload, each.case.policy, name, *each.values(name)) for name in names for each in cases
    ]
    return rank(observations, alpha=tolerances.alpha)


def _headline(
    metrics: Sequence[MetricVerdict],
    cases: Sequence[CaseResult],
    verdict: Verdict,
    reasons: Sequence[Reason],
) -> str:
    """Return the reason for the verdict, and the largest error, in one or two sentences."""
    gated = [item for item in metrics if item.gate]
    known = [item for item in gated if not math.isnan(item.z)]
    worst = max(known, key=lambda item: abs(item.z), default=None)
    largest = f"largest error: {worst.metric.label}, {worst.error}, {_z(worst)}" if worst else ""
    if verdict is Verdict.ACCURATE:
        count = len([each for each in cases if not each.calibration])
        where = f" in the mean over {count} cases" if count > 1 else ""
        return f"all {len(gated)} gated metrics are within their margins{where}; {largest}."
    if verdict is Verdict.INACCURATE:
        wrong = [item for item in gated if item.verdict is Verdict.INACCURATE]
        return "; ".join(f"{item.metric.label} is off {_off(item)}" for item in wrong) + "."
    inside = sum(abs(item.z) <= 1 for item in known)
    seen = f"{inside} of {len(known)} gated metrics lie within their margins" if known else "no gated metric is defined"
    why = "; ".join(_because(reason, gated, cases) for reason in reasons)
    return f"{why}. Observation: {seen}{f'; {largest}' if largest else ''}."


def _z(item: MetricVerdict) -> str:
    return f"{abs(item.z):.2g} of the margin" if abs(item.z) < 10 else f"{abs(item.z):,.0f} times the margin"


def _off(item: MetricVerdict) -> str:
    """Return the error of an inaccurate metric as text: the mean, and the worst case if the mean does not show it."""
    mean = "" if math.isnan(item.z) else f"by {item.error}, {_z(item)}"
    if abs(item.z) > 1 or item.worst is None:
        return mean
    return ", ".join(filter(None, (mean, f"in {item.worst.case} by {item.worst.z:+.2g} margins")))


def _because(reason: Reason, gated: Sequence[MetricVerdict], cases: Sequence[CaseResult]) -> str:
    """Return a reason with the causes or the metrics concerned."""
    if reason is Reason.UNHEALTHY:
        return _unhealthy(cases)
    if reason is Reason.TOO_FEW_REPEATS and all(len(each.repetitions) == 1 for each in cases):
        return "one real run: no accuracy claim"
    concerned = [item.metric.label for item in gated if reason in item.reasons]
    some = f" ({', '.join(concerned)})" if 0 < len(concerned) < len(gated) else ""
    return REASONS[reason] + some


def _unhealthy(cases: Sequence[CaseResult]) -> str:
    """Return the causes for which repetitions are excluded, as text."""
    runs = [each for case in cases for each in case.repetitions]
    unfit = [each for each in runs if each.unfit]
    _, text = most_frequent([(each, each.excluded) for each in unfit])
    cause = text.partition(": ")[2]
    if len(runs) == 1:
        return f"the real run is unhealthy: {cause}"
    if len(unfit) == 1:
        return f"1 of {len(runs)} real runs is unhealthy: {cause}"
    return f"{len(unfit)} of {len(runs)} real runs are unhealthy, most often: {cause}"


def _population(judged: Sequence[Judgment], tolerances: Tolerances) -> Population | None:
    """Return the intervals of the gated metrics over the population of workloads.

    The cases of one workload under several policies are one observation, their mean. Student's t over the workloads
    holds for a sample of workloads of the same kind.
    """
    from scipy import stats

    intervals = {}
    number = 0
    for item in judged:
        names = [each.case.workload for each in item.cases[: len(item.estimate.z)]]
        workloads = list(dict.fromkeys(names))
        if not item.gate or len(workloads) < POPULATION:
            continue
        means = np.array([item.estimate.z[[name == workload for name in names]].mean() for workload in workloads])
        number = len(means)
        half = float(stats.t.isf(tolerances.alpha, number - 1) * means.std(ddof=1) / np.sqrt(number))
        intervals[item.metric.name] = (float(means.mean()) - half, float(means.mean()) + half)
    return Population(number, intervals) if intervals else None


def _simulator(runs: Iterable[Run]) -> SimulatorFacts:
    """Return the simulator according to the metadata of its runs."""
    infos = [run.info for run in runs]
    first = infos[0]
    name = "tracebed" if first.source == "simulator" else first.source
    arguments = sorted(
        json.dumps(
            [
                info.policy,
                info.policy_parameters,
                info.parameters,
                info.speed,
                info.seed,
                info.calibration.get("sha256"),
            ],
            sort_keys=True,
            default=str,
        )
        for info in infos
    )
    digest = hashlib.sha256(json.dumps(sorted(set(arguments))).encode()).hexdigest()
    return SimulatorFacts(name, str(first.versions.get(name, "")), digest, len(infos))
