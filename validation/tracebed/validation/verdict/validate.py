"""Validation of a simulator: from the runs of cases to the verdict, with its headline and its warnings."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tracebed.ground.display import cell
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.validation.metrics import TAU, all_metrics
from tracebed.validation.moving_average import moving_average
from tracebed.validation.verdict.cases import Case, Level, interval
from tracebed.validation.verdict.comparison import Evidence, compare_measured, evidence
from tracebed.validation.verdict.courses import courses
from tracebed.validation.verdict.decision import Needed, estimate, needed, repeats_needed
from tracebed.validation.verdict.health import Health, counted_notes
from tracebed.validation.verdict.judging import Judgment, MeasuredCase, common_reasons, judge, real_runs
from tracebed.validation.verdict.noise import NoiseProfile
from tracebed.validation.verdict.per_job import per_job
from tracebed.validation.verdict.ranking import Observation, Ranking, rank
from tracebed.validation.verdict.rates import paired_rates
from tracebed.validation.verdict.rejudging import NO_JOURNAL
from tracebed.validation.verdict.resizing import resizing
from tracebed.validation.verdict.rule import REASONS, Reason, Verdict, combine
from tracebed.validation.verdict.screening import Repetition, most_frequent
from tracebed.validation.verdict.tolerances import Tolerances
from tracebed.validation.verdict.validation import (
    CaseMetric,
    CaseResult,
    MetricVerdict,
    SimulatorFacts,
    Validation,
)

SENSITIVITY = (0.5, 2.0)  # factors on all margins for which the verdict is shown, too

WEAK = {"makespan_s", "utilization", "throughput"}
"""Metrics that are determined mostly by arrivals, and hardly depend on errors of a schedule."""
NAMED = 3  # most cases that a warning names
WIDE = 2.0  # factor of an absolute margin over the relative one from which a warning names the case


def validate(
    cases: Sequence[Case],
    tolerances: Tolerances | None = None,
    *,
    profile: NoiseProfile | None = None,
    tau: float = TAU,
    simulator: SimulatorFacts | None = None,
    allow_different_workloads: bool = False,
) -> Validation:
    """Return the verdict on a simulator from at least one case, with different names.

    By default the tolerances are those of the metrics, and the simulator is that of the metadata of the predictions.
    The profile has the noise of cases with too few repetitions. InputError: there is no case, two have the same name,
    runs of a case do not belong together, or the profile is from another class of testbeds.
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
    tested = evidence(
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
        warnings=cautions(results, metrics, tolerances, tested, without, by_own, verdict)
        + [f"policies in the wrong order: {pair.sentence}" for pair in discordant],
        tolerances=tolerances,
        tau=tau,
        sensitivity={factor: again(factor) for factor in SENSITIVITY},
        without_outliers=without,
        by_own_limits=by_own,
        levels=_levels(judged, tolerances),
        ranking=ranking,
        could_fail=list(tested.could_fail),
        could_not_fail=list(tested.could_not_fail),
        same_scheduler=tested.same_scheduler,
    )


def _overall(
    judged: Sequence[Judgment], cases: Sequence[MeasuredCase], tolerances: Tolerances
) -> tuple[Verdict, tuple[Reason, ...]]:
    """Return the overall verdict and the reasons of the inconclusive gated metrics."""
    gated = [item for item in judged if item.gate]
    verdict = combine(item.verdict for item in gated)
    given = {reason for item in gated for reason in item.reasons}
    if not gated:
        given = {Reason.NOT_DEFINED, *common_reasons(cases, tolerances, profile_based=False)}
    return verdict, tuple(reason for reason in Reason if reason in given)


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
        resizing=resizing(
            [each.real[index].given for index in each.selected()], [predicted.given for predicted in each.predicted]
        ),
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
    """Return the intervals of the gated metrics over the cases, over shared real runs, and over the workloads."""
    # Cases with the same real run, or of the same workload, are one observation, their mean. Student's t over the
    # workloads holds for a sample of workloads of the same kind.
    levels = []
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
            levels.append(Level(unit, numbers, intervals))
    return tuple(levels)


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
                *([info.machine.digest] if info.machine else []),
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


def headline(
    metrics: Sequence[MetricVerdict],
    cases: Sequence[CaseResult],
    verdict: Verdict,
    reasons: Sequence[Reason],
) -> str:
    """Return the reason for the verdict, and the largest error, in one or two sentences."""
    # Over several cases, the size of an error is the mean of its absolute values: errors of opposite sign cancel in a
    # signed mean.
    gated = [item for item in metrics if item.gate]
    known = [item for item in gated if not math.isnan(item.mean_absolute)]
    largest = max(known, key=lambda item: item.mean_absolute, default=None)
    most = f"largest error: {largest.metric.label}, {largest.spread}" if largest else ""
    if verdict is Verdict.ACCURATE:
        count = len([each for each in cases if not each.calibration])
        found = f"accurate over {count} cases" if count > 1 else "within their margins"
        return f"all {len(gated)} gated metrics are {found}; {most}."
    if verdict is Verdict.INACCURATE:
        wrong = [item for item in gated if item.verdict is Verdict.INACCURATE]
        return (
            _uncalibrated(cases)
            + "; ".join(
                f"{item.metric.label} is off{' by' if len(item.deciding) == 1 else ':'} {item.spread}" for item in wrong
            )
            + "."
        )
    seen = _beyond(known) if known else "no gated metric is defined"
    because = [each for each in reasons if each is not Reason.WORKLOAD_OUTLIER or len(cases) > 1] or reasons
    why = "; ".join(_because(reason, gated, cases) for reason in because)
    return f"{why}. Observation: {seen}{f'; {most}' if most else ''}."


def _uncalibrated(cases: Sequence[CaseResult]) -> str:
    """Return that predictions of replays lack overheads, since no calibration was given; empty elsewhere."""
    # At a speed of 400, an overhead of 50 ms is 20 trace seconds: the first thing to mend.
    for each in cases:
        real, predicted = each.case.real[0].info, each.case.predicted[0].info
        ours = real.source == "replay" and predicted.source == "simulator"
        if ours and real.speed > 1 and predicted.setup.timing.overheads == Overheads():
            return (
                "the predictions have no calibration: launches, ends and resizes take no time in them, and a second of "
                f"these is {real.speed:,g} trace seconds in the replays (measure them with `tracebed nodes calibrate`, "
                "and give its file to the simulator); "
            )
    return ""


def _beyond(known: Sequence[MetricVerdict]) -> str:
    """Return how many metrics have an error beyond the margin, as text."""
    beyond = sum(item.beyond(1) > 0 for item in known)
    some = " in some case" if any(len(item.deciding) > 1 for item in known) else ""
    return f"{beyond} of {len(known)} gated metrics exceed their margins{some}"


def _because(reason: Reason, gated: Sequence[MetricVerdict], cases: Sequence[CaseResult]) -> str:
    """Return a reason with the causes or the metrics concerned."""
    if reason is Reason.UNHEALTHY:
        return _unhealthy(cases)
    if reason is Reason.TOO_FEW_REPEATS and all(len(each.repetitions) == 1 for each in cases):
        log = all(each.case.real[0].info.source == "log" for each in cases)
        why = ", since a log cannot be repeated: how much two runs of its machine differ is unknown" if log else ""
        return f"one real run{' in each case' if len(cases) > 1 else ''}: no accuracy claim{why}"
    if reason is Reason.UNMATCHED_JOBS:
        most = max(cases, key=lambda each: each.unmatched)
        return f"{REASONS[reason]} ({most.unmatched:.1%}, accepted: {most.unmatched_limit:.1%})"
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


def cautions(
    cases: Sequence[CaseResult],
    metrics: Sequence[MetricVerdict],
    tolerances: Tolerances,
    found: Evidence,
    without_outliers: Verdict | None,
    by_own_limits: Verdict | None,
    verdict: Verdict,
) -> list[str]:
    """Return the warnings about a validation, one sentence each."""
    return [
        *_repetitions(cases, without_outliers, verdict),
        *_recomputed(cases, by_own_limits, verdict),
        *_comparability(cases),
        *_calibration(cases),
        *_shared_contents(cases),
        *_gates(metrics, tolerances),
        *_undefined(cases, metrics),
        *_cancellation(metrics),
        *_absolute(metrics),
        *_profile(metrics),
        *_shared(found),
    ]


def _repetitions(cases: Sequence[CaseResult], without: Verdict | None, verdict: Verdict) -> Iterable[str]:
    """Yield a line per case with excluded, degraded or unusual repetitions, and the verdict without unusual ones."""
    alone = len(cases) == 1
    for each in cases:
        runs = each.repetitions
        if len(runs) == 1:
            name = "the real run" if alone else each.case.name
            yield from (f"{name} is {cause['state']}: {cause['text']}" for cause in runs[0].causes)
            if runs[0].excluded and not runs[0].causes:
                yield f"{name} is excluded: {runs[0].excluded}"
            continue
        counts = {
            "excluded": [(run, run.excluded) for run in runs if run.excluded],
            "degraded": [(run, run.why("degraded")) for run in runs if not run.excluded and run.why("degraded")],
            "unusual in outcome": [(run, run.flags) for run in runs if run.flags],
        }
        if texts := [_counted(what, found, len(runs)) for what, found in counts.items() if found]:
            yield ("" if alone else f"{each.case.name}: ") + "; ".join(texts)
    if without is not None:
        change = "is the same" if without is verdict else f"is {without} instead of {verdict}"
        yield f"without the repetitions with an unusual outcome, the verdict {change}"
    unknown = [
        f"{each.case.name} {repetition.name}"
        for each in cases
        for repetition in each.repetitions
        if repetition.state == "unknown" and repetition.run.info.source == "replay"
    ]
    if unknown:
        what = "the real run" if alone and len(cases[0].repetitions) == 1 else _names(unknown)
        yield f"the health of {what} is unknown: the replay has no record of it; repeat the replay"


def _recomputed(cases: Sequence[CaseResult], by_own_limits: Verdict | None, verdict: Verdict) -> Iterable[str]:
    """Yield how the health of the real runs differs from their records, and the verdict by their own limits."""
    alone = len(cases) == 1
    names = {len(each.repetitions) > 1 for each in cases}
    runs = [
        (("the real run" if names == {False} else run.name) if alone else f"{each.case.name} {run.name}", run)
        for each in cases
        for run in each.repetitions
    ]
    notes = [(name, note) for name, run in runs for note in run.notes if note != NO_JOURNAL]  # that is a remark
    yield from counted_notes(notes, len(runs))
    if by_own_limits is not None:
        change = "is the same" if by_own_limits is verdict else f"is {by_own_limits} instead of {verdict}"
        yield f"by the limits of health of the runs themselves, the verdict {change}"


def _counted(what: str, found: Sequence[tuple[Repetition, str]], total: int) -> str:
    """Return how many repetitions are `what`, with the most frequent kind of cause."""
    verb = "is" if len(found) == 1 else "are"
    run, cause = most_frequent(found)
    return f"{len(found)} of {total} repetitions {verb} {what} ({run.name}{', and others' * (len(found) > 1)}: {cause})"


def _comparability(cases: Sequence[CaseResult]) -> Iterable[str]:
    """Yield the warnings about the pairs of runs, each once, with the cases if not all have it."""
    cases_by_warning: dict[str, list[str]] = {}
    for each in cases:
        for text in each.pair.warnings:
            cases_by_warning.setdefault(text, []).append(each.case.name)
    for text, names in cases_by_warning.items():
        yield text if len(names) == len(cases) else f"{_names(names)}: {text}"
    for each in cases:
        for what, values in (
            ("speeds", [run.info.speed for run in each.case.real]),
            ("parameters", [str(sorted(run.info.settings.items())) for run in each.case.real]),
            ("versions of tracebed", [run.info.versions.get("tracebed") for run in each.case.real]),
        ):
            if len(set(values)) > 1:
                yield f"{each.case.name}: the repetitions have different {what}"


def _calibration(cases: Sequence[CaseResult]) -> Iterable[str]:
    names = [each.case.name for each in cases if each.calibration]
    if names:
        yield f"{_names(names)}: not part of the verdict, since the predictions were calibrated on this workload"


def _shared_contents(cases: Sequence[CaseResult]) -> Iterable[str]:
    """Yield that cases have the same real run, or the same jobs under different names: they count once."""
    deciding = [each for each in cases if not each.calibration]
    for what, units, names in (
        ("real run", [each.member.real_run for each in deciding], [each.case.name for each in deciding]),
        ("workload", [each.member.workload for each in deciding], [each.case.workload for each in deciding]),
    ):
        unit = next((unit for unit in units if len(_cases_of_unit(unit, units, names)) > 1), None)
        if unit is None or (what == "workload" and any(each.case.cluster for each in deciding)):
            continue
        same = _names(_cases_of_unit(unit, units, names))
        number = len(set(units))
        yield (
            f"{len(deciding)} cases have {number} different {what}{'s' * (number > 1)}, and each counts once: the same "
            f"{what} is that of {same}"
        )
    by_run: dict[str, set[str]] = {}
    for each in deciding:
        by_run.setdefault(each.member.real_run, set()).add(each.member.workload)
    for run, clusters in by_run.items():
        if len(clusters) > 1:
            yield f"the clusters {_names(sorted(clusters))} have the real run of {run} in common: they are dependent"


def _cases_of_unit(unit: str, units: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the different names of one unit, in their order."""
    return list(dict.fromkeys(name for each, name in zip(units, names, strict=True) if each == unit))


def _gates(metrics: Sequence[MetricVerdict], tolerances: Tolerances) -> Iterable[str]:
    gated = {item.name for item in metrics if item.gate}
    if gated and gated <= WEAK:
        labels = ", ".join(item.metric.label for item in metrics if item.gate)
        yield f"the verdict depends on {labels} only: arrivals determine most of it, so errors of waits stay undetected"
    known = all_metrics()
    for name, margin in tolerances.margins.items():
        usual = known[name].margin if name in known else None
        if usual is None or not usual.gate:
            continue
        if not margin.gate:
            yield f"{known[name].label} is not part of the verdict, by {tolerances.source}"
        elif margin.relative > usual.relative or margin.absolute > usual.absolute:
            label, unit = known[name].label, known[name].unit
            yield f"the margin of {label} ({margin.text(unit)}) is wider than the default ({usual.text(unit)})"
            if margin.relative * tolerances.kappa >= 1:
                yield (
                    f"a {label} that is predicted too low is off by 100 % at most, which is within "
                    f"{tolerances.kappa:g} margins: no case can be proved to be off below the real value"
                )
    for name, metric in known.items():
        if metric.margin is not None and metric.margin.gate and name not in tolerances.margins:
            yield f"{metric.label} is not part of the verdict, by {tolerances.source}"
        elif name in tolerances.margins and tolerances.margins[name].gate and name not in {m.name for m in metrics}:
            yield f"{metric.label} is not part of the verdict: it is undefined for the real runs"


def _undefined(cases: Sequence[CaseResult], metrics: Sequence[MetricVerdict]) -> Iterable[str]:
    """Yield the gated metrics that the real runs of some cases lack."""
    for item in metrics:
        known = {case.case for case in item.cases}
        missing = [each.case.name for each in cases if each.case.name not in known and not each.calibration]
        if item.gate and missing:
            yield f"{item.metric.label} is undefined for the real runs of {_names(missing)}: other cases decide it"


def _cancellation(metrics: Sequence[MetricVerdict]) -> Iterable[str]:
    for item in metrics:
        each = item.deciding
        if item.gate and abs(item.z) <= 1 and any(c.z > 1 for c in each) and any(c.z < -1 for c in each):
            low, high = (extreme(each, key=lambda case: case.z) for extreme in (min, max))
            yield (
                f"errors of {item.metric.label} cancel in the mean: {low.case} {low.z:+.2g} margins, "
                f"{high.case} {high.z:+.2g} margins"
            )


def _absolute(metrics: Sequence[MetricVerdict]) -> Iterable[str]:
    """Yield the gated metrics with an absolute margin much above the relative one."""
    for item in metrics:
        wide = [
            case
            for case in item.cases
            if item.gate and case.margin > WIDE * item.margin.relative * abs(case.real_mean) and case.real_mean
        ]
        if wide:
            unit = f" {item.metric.unit}" if item.metric.unit else ""
            share = max(case.margin / abs(case.real_mean) for case in wide)
            yield (
                f"the margin of {item.metric.label} is the amount of {cell(wide[0].margin)}{unit} in "
                f"{_names([case.case for case in wide])}: up to {share:.0%} of the real value"
            )


def _profile(metrics: Sequence[MetricVerdict]) -> Iterable[str]:
    labels = [item.metric.label for item in metrics if item.profile_based and item.gate]
    if labels:
        yield f"profile-based: the noise of {', '.join(labels)} comes from earlier runs, not from these repetitions"


def _shared(found: Evidence) -> Iterable[str]:
    if found.same_scheduler:
        yield (
            "the same scheduler code decided in the real runs and in the predictions: errors of its decisions are not "
            "detected"
        )


def _names(names: Sequence[str]) -> str:
    """Return some names as text: the first ones, and the number of others."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
