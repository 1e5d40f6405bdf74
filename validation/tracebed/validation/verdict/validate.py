"""Validation of a simulator: from the runs of cases to the verdict."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import TAU
from tracebed.validation.verdict.case_metric import CaseMetric
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.cautions import cautions
from tracebed.validation.verdict.clusters import Level, interval
from tracebed.validation.verdict.comparison import compare_measured
from tracebed.validation.verdict.courses import courses
from tracebed.validation.verdict.decision import estimate, repeats_needed
from tracebed.validation.verdict.evidence import evidence
from tracebed.validation.verdict.headline import headline
from tracebed.validation.verdict.health import Health
from tracebed.validation.verdict.judging import Judgment, Noises, common_reasons, judge, real_runs
from tracebed.validation.verdict.measuring import MeasuredCase
from tracebed.validation.verdict.moving_average import moving_average
from tracebed.validation.verdict.needed import Needed, needed
from tracebed.validation.verdict.per_job import per_job
from tracebed.validation.verdict.ranking import Observation, Ranking, rank
from tracebed.validation.verdict.rates import paired_rates
from tracebed.validation.verdict.rule import Reason, Verdict, combine
from tracebed.validation.verdict.tolerances import Tolerances
from tracebed.validation.verdict.validation import (
    CaseResult,
    MetricVerdict,
    SimulatorFacts,
    Validation,
)

SENSITIVITY = (0.5, 2.0)
"""Factors on all margins for which the verdict is shown, too."""


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
    measured = MeasuredCase.of_all(cases, tolerances, tau, allow_different_workloads)
    if profile is not None:
        for each in measured:
            profile.require(each.case.real[0].info, tau)
    judged = judge(measured, tolerances, profile)
    metrics = tuple(_metric(item, tolerances) for item in judged)
    results = tuple(_result(each, tolerances) for each in measured)
    verdict, reasons = _overall(judged, measured, tolerances)
    deciding = [each for each in measured if not each.calibration] or measured
    found = evidence(
        [run.info for each in deciding for run in each.case.real],
        [run.info for each in deciding for run in each.case.predicted],
        [each.copied for each in deciding],
    )
    flagged = any(repetition.flags for each in measured for repetition in each.repetitions)

    def again(
        factor: float = 1.0, *, flagged: bool = True, measured: Sequence[MeasuredCase] = tuple(measured)
    ) -> Verdict:
        changed = tolerances.scaled(factor)
        return _overall(judge(measured, changed, profile, flagged=flagged), measured, changed)[0]

    without = again(flagged=False) if flagged else None
    lenient = any(repetition.lenient for each in measured for repetition in each.repetitions)
    by_own = again(measured=[each.by_own_limits() for each in measured]) if lenient else None
    ranking = _ranking(judged, measured, tolerances)
    discordant = ranking.discordant if ranking else ()
    return Validation(
        simulator=simulator or _simulator(run for case in cases for run in case.predicted),
        cases=results,
        metrics=metrics,
        verdict=verdict,
        reasons=reasons,
        headline=headline(metrics, results, verdict, reasons),
        warnings=cautions(results, metrics, tolerances, found, without, by_own, verdict)
        + [f"policies in the wrong order: {pair.sentence}" for pair in discordant],
        tolerances=tolerances,
        tau=tau,
        sensitivity={factor: again(factor) for factor in SENSITIVITY},
        without_outliers=without,
        by_own_limits=by_own,
        levels=_levels(judged, tolerances),
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
    least = tolerances.repeats(real_runs(item.cases[: len(found.z)]))
    smallest = (
        needed(item.samples, item.margin.absolute, item.compression, alpha, kappa) if item.decidable else Needed()
    )
    return MetricVerdict(
        metric=item.metric,
        margin=item.margin,
        gate=item.gate,
        evidence=item.evidence,
        cases=tuple(_cases(item, tolerances)),
        z=float(found.mean),
        low=float(found.low),
        high=float(found.high),
        reserve=float(found.reserve),
        se=float(found.se),
        df=float(found.df),
        relative_error=float(relative.mean) if known else math.nan,
        relative_low=float(relative.low) if known else math.nan,
        relative_high=float(relative.high) if known else math.nan,
        needed=smallest,
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
    typical = each.repetitions[real]
    pair = compare_measured(
        each.real[real],
        each.predicted[predicted],
        (each.figures[real], each.predicted_figures[predicted]),
        Health(typical.state, typical.causes, typical.notes, typical.lenient, typical.signals),
    )
    level = 1 - 2 * tolerances.alpha
    return CaseResult(
        case=each.case,
        member=each.member,
        repetitions=each.repetitions,
        pair=pair,
        calibration=each.calibration,
        copied=each.copied,
        unmatched=each.unmatched,
        per_job=per_job([each.real[index] for index in each.selected()], each.predicted),
        rates=tuple(paired_rates(each.real[real], each.predicted[predicted], alpha=tolerances.alpha)),
        moving_average=(
            moving_average(pair.jobs, window_s=tolerances.window_s, level=level) if len(each.real) == 1 else None
        ),
        unmatched_limit=each.unmatched_limit,
        courses=tuple(
            courses(each.predicted_figures, [each.figures[index] for index in each.selected()], tolerances.margins)
            if len(each.predicted) > 1
            else ()
        ),
    )


def _ranking(judged: Sequence[Judgment], cases: Sequence[MeasuredCase], tolerances: Tolerances) -> Ranking | None:
    """Return the order of the policies by each gated metric, on each workload with several policies."""
    names = [item.metric.name for item in judged if item.gate]
    observations = [
        Observation(each.case.workload, each.case.policy, name, *each.values(name)) for name in names for each in cases
    ]
    return rank(observations, alpha=tolerances.alpha)


def _levels(judged: Sequence[Judgment], tolerances: Tolerances) -> tuple[Level, ...]:
    """Return the intervals of the gated metrics over the cases, over shared real runs, and over the workloads.

    Cases with the same real run, or of the same workload, are one observation, their mean. Student's t over the
    workloads holds for a sample of workloads of the same kind.
    """
    found = []
    for unit in ("cases", "real runs", "workloads"):
        intervals, numbers = {}, {}
        for item in judged:
            deciding = item.cases[: len(item.estimate.z)]
            names = {
                "cases": [each.case.name for each in deciding],
                "real runs": [each.member.real_run for each in deciding],
                "workloads": [each.member.workload for each in deciding],
            }[unit]
            if unit == "real runs" and len(set(names)) == len(names):  # each case has real runs of its own
                continue
            if item.gate and len(set(names)) > 1:
                intervals[item.metric.name] = interval(item.estimate.z, names, tolerances.alpha)
                numbers[item.metric.name] = len(set(names))
        if intervals:
            found.append(Level(unit, numbers, intervals))
    return tuple(found)


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
                info.settings,
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
