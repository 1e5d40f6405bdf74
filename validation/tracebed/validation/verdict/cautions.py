"""Warnings about a validation: exclusions, weak evidence, and practices that weaken a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracebed.ground.display import cell
from tracebed.validation.metrics import all_metrics
from tracebed.validation.verdict.evidence import Evidence
from tracebed.validation.verdict.health import counted_notes
from tracebed.validation.verdict.rejudging import NO_JOURNAL
from tracebed.validation.verdict.rule import Verdict
from tracebed.validation.verdict.screening import Repetition, most_frequent
from tracebed.validation.verdict.tolerances import Tolerances
from tracebed.validation.verdict.validation import CaseResult, MetricVerdict

WEAK = {"makespan_s", "utilization", "throughput"}
"""Metrics that are determined mostly by arrivals, and hardly depend on errors of a schedule."""
NAMED = 3
"""Most cases that a warning names."""
WIDE = 2.0
"""Factor of an absolute margin over the relative one from which a warning names the case."""


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
    found: dict[str, list[str]] = {}
    for each in cases:
        for text in each.pair.warnings:
            found.setdefault(text, []).append(each.case.name)
    for text, names in found.items():
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
        unit = next((unit for unit in units if len(_of(unit, units, names)) > 1), None)
        if unit is None or (what == "workload" and any(each.case.cluster for each in deciding)):
            continue
        same = _names(_of(unit, units, names))
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


def _of(unit: str, units: Sequence[str], names: Sequence[str]) -> list[str]:
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
