"""The headline of a validation: the reason for the verdict, and the largest error."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracebed.validation.verdict.rule import REASONS, Reason, Verdict
from tracebed.validation.verdict.screening import most_frequent
from tracebed.validation.verdict.validation import CaseResult, MetricVerdict


def headline(
    metrics: Sequence[MetricVerdict],
    cases: Sequence[CaseResult],
    verdict: Verdict,
    reasons: Sequence[Reason],
) -> str:
    """Return the reason for the verdict, and the largest error, in one or two sentences.

    Over several cases, the size of an error is the mean of its absolute values: errors of opposite sign cancel in a
    signed mean.
    """
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
            "; ".join(
                f"{item.metric.label} is off{' by' if len(item.deciding) == 1 else ':'} {item.spread}" for item in wrong
            )
            + "."
        )
    seen = _beyond(known) if known else "no gated metric is defined"
    because = [each for each in reasons if each is not Reason.WORKLOAD_OUTLIER or len(cases) > 1] or reasons
    why = "; ".join(_because(reason, gated, cases) for reason in because)
    return f"{why}. Observation: {seen}{f'; {most}' if most else ''}."


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
