"""Report sections of a validation: the verdict on each metric and its evidence, the cases, and the ranking of policies.

The plot of the verdict is a forest plot: the difference of each metric and case in margins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from tracebed.ground.display import cell
from tracebed.validation.report.sections import Section
from tracebed.validation.report.templates import fill
from tracebed.validation.report.words import error, margin, reason_text, signed, size
from tracebed.validation.significance import Difference
from tracebed.validation.verdict.rule import REASONS, Reason, Verdict
from tracebed.validation.verdict.validation import CaseMetric, CaseResult, MetricVerdict, Validation

FACTORS = {0.5: "half the margins", 1.0: "the margins as given", 2.0: "double margins"}

REACH = 3.2  # largest multiple of the margin on the axis
LAST_TICK = 3.0
DOT, DIAMOND = "M0 -4.5a4.5 4.5 0 1 0 .001 0z", "M0 -7l7 7-7 7-7-7z"
ARROWS = {True: "M5 0l-8 -6v12z", False: "M-5 0l8 -6v12z"}


def _verdicts(validation: Validation) -> Markup:
    """Return the table of metrics: real and predicted values, margin, interval, verdict and reasons."""
    metrics = [item for item in validation.metrics if item.cases]
    given = {reason for item in metrics for reason in item.reasons}
    return fill(
        "verdicts",
        metrics=metrics,
        alone=len(validation.cases) == 1,
        alpha=validation.tolerances.alpha,
        reasons=[(reason_text(reason), REASONS[reason]) for reason in Reason if reason in given],
        error=error,
        perturbed_differences=validation.perturbed_differences,
    )


def _evidence(validation: Validation) -> Markup:
    """Return how the verdict depends on the margins and on doubtful runs, and what could have failed."""
    by_factor = {**validation.sensitivity, 1.0: validation.verdict}
    verdicts = [(FACTORS.get(factor, f"margins x {factor:g}"), by_factor[factor].value) for factor in sorted(by_factor)]
    if validation.without_outliers is not None:
        verdicts.append(("without the repetitions with signals H4 or H5", validation.without_outliers.value))
    if validation.by_own_limits is not None:
        verdicts.append(("by the limits of health of the runs themselves", validation.by_own_limits.value))
    tolerances, simulator = validation.tolerances, validation.simulator
    facts = [
        ("simulator", " ".join(filter(None, (simulator.name, simulator.version)))),
        ("margins", tolerances.source),
        (
            "decision",
            f"intervals leave out {100 * tolerances.alpha:g} % on each side (alpha); limit of a single case "
            f"{tolerances.kappa:g} margins (kappa); slowdowns bounded at {cell(validation.tau)} s (tau)",
        ),
    ]
    labels = {item.metric.name: item.metric.label for item in validation.metrics}
    return fill(
        "evidence",
        verdicts=verdicts,
        could_fail=validation.could_fail,
        could_not_fail=validation.could_not_fail,
        same_scheduler=validation.same_scheduler,
        facts=facts,
        hashes=[("tolerances", tolerances.sha256), ("arguments of the simulator", simulator.arguments_sha256)],
        dependence=validation.dependence,
        courses=validation.courses,
        remarks=[*filter(None, [validation.resizes]), *validation.moving_averages, *validation.remarks],
        workloads=validation.workloads,
        intervals=[
            f"{labels.get(name, name)} {signed(low)} to {signed(high)}"
            for name, (low, high) in validation.population.items()
        ],
    )


VERDICTS = Section("Verdict by metric", 200, _verdicts, scope="validation")
EVIDENCE = Section("Evidence for the verdict", 250, _evidence, scope="validation")


@dataclass(frozen=True)
class Row:
    """A line of the plot: text and bar."""

    label: str
    note: str
    z: float | None  # difference / margin, limited to the axis; None if undefined
    interval: tuple[float, float] | None
    perturbed: tuple[float, float] | None  # interval of the difference with perturbed input; None if it is unknown
    dots: tuple[float, ...]
    shape: str
    state: str  # CSS class: accurate, inaccurate or inconclusive
    verdict: str
    text: str
    beyond: str = ""  # difference / margin where it is beyond the last tick, as text


def _forest(validation: Validation) -> Markup:
    """Return the plot: a line per gated metric with its cases below, then the advisory metrics, folded."""
    differences = validation.perturbed_differences or {}
    gated = [_metric(item, differences) for item in validation.metrics if item.gate]
    others = [_metric(item, differences) for item in validation.metrics if not item.gate and item.cases]
    tolerances = validation.tolerances
    return fill(
        "forest",
        groups=[("", gated), *([("Advisory metrics", others)] if others else [])],
        kappa=tolerances.kappa,
        level=f"{100 * (1 - 2 * tolerances.alpha):g} %",
        several=len(validation.cases) > 1,
        perturbed=any(row.perturbed for row, _, _ in gated + others),
        axis="error [interval], margin",
        ticks=range(-3, 4),
        at=lambda z: f"{50 + 50 * _limited(z) / REACH:.2f}%",
        width=lambda z: f"{50 * z / REACH:.2f}%",
    )


def _metric(item: MetricVerdict, differences: Mapping[str, Difference]) -> tuple[Row, list[Row], bool]:
    """Return the line of a metric, the lines of its cases if there are several, and whether these are unfolded."""
    cases = [_case(item, case) for case in item.cases] if len(item.cases) > 1 else []
    return metric_row(item, differences.get(item.name)), cases, item.gate and item.verdict is not Verdict.ACCURATE


def metric_row(item: MetricVerdict, difference: Difference | None = None) -> Row:
    """Return the line of a metric, with the difference between the real runs and predictions with perturbed input."""
    several = len(item.cases) > 1
    return Row(
        label=item.metric.label,
        note="" if item.evidence else "run times not tested: no evidence",
        z=_finite_or_none(item.z),
        interval=_interval(item.low, item.high),
        perturbed=_with_perturbed_input(item, difference),
        dots=tuple(z for case in item.cases if (z := _finite_or_none(case.z)) is not None) if several else (),
        shape=_shape(item.z, DIAMOND),
        state=item.verdict.value,
        verdict=item.verdict.value,
        text=_text(item, None),
        beyond=_beyond(item.z),
    )


def _case(item: MetricVerdict, case: CaseMetric) -> Row:
    return Row(
        label=case.case,
        note="",
        z=_finite_or_none(case.z),
        interval=_interval(case.low, case.high),
        perturbed=None,
        dots=(),
        shape=_shape(case.z, DOT),
        state=_state(case.z),
        verdict="",
        text=_text(item, case),
        beyond=_beyond(case.z),
    )


def _state(z: float) -> str:
    """Return the CSS class of an error of a case, in margins."""
    return "" if math.isnan(z) else "inside" if abs(z) <= 1 else "outside"


def _text(item: MetricVerdict, case: CaseMetric | None) -> str:
    if case is None and len(item.cases) > 1:
        return f"mean |error| {size(item)}, {margin(item)}"
    return ", ".join(filter(None, (error(item, case), margin(item, case))))


def _with_perturbed_input(item: MetricVerdict, difference: Difference | None) -> tuple[float, float] | None:
    """Return the interval of a difference in margins of the only case, or None if it is unknown."""
    if difference is None or difference.differ is None or len(item.cases) != 1 or not item.cases[0].margin > 0:
        return None
    margin = item.cases[0].margin
    return _interval(difference.low / margin, difference.high / margin)


def _finite_or_none(z: float) -> float | None:
    return None if math.isnan(z) else _limited(z)


def _interval(low: float, high: float) -> tuple[float, float] | None:
    return None if math.isnan(low) or math.isnan(high) else (_limited(low), _limited(high))


def _limited(z: float) -> float:
    return min(max(z, -REACH), REACH)


def _beyond(z: float) -> str:
    return signed(z) if LAST_TICK < abs(z) < math.inf else ""


def _shape(z: float, inside: str) -> str:
    return inside if not abs(z) > REACH else ARROWS[z > 0]


FOREST = Section("Differences in margins", 100, _forest, scope="validation")


def cases(folder: str) -> Section:
    """Return the section with the table of cases and gated metrics. The pages of the cases are in `folder`, if any."""

    def content(validation: Validation) -> Markup:
        gated = [item for item in validation.metrics if item.gate]
        found = {(item.metric.name, case.case): case for item in gated for case in item.cases}
        rows = [
            _row(folder, result, [found.get((item.metric.name, result.case.name)) for item in gated])
            for result in validation.cases
        ]
        return fill("cases", labels=[item.metric.label for item in gated], rows=rows)

    return Section("Cases", 120, content, scope="validation")


def _ranking(validation: Validation) -> Markup | None:
    """Return the orders of the policies, or None if no workload has several policies."""
    return None if validation.ranking is None else fill("ranking", ranking=validation.ranking)


def _row(folder: str, result: CaseResult, metrics: list[CaseMetric | None]) -> dict[str, Any]:
    wait = result.per_job
    return {
        "name": result.case.name,
        "page": quote(f"{folder}/{result.case.name}.html") if folder else "",
        "calibration": result.calibration,
        "included": sum(not one.excluded for one in result.repetitions),
        "repetitions": len(result.repetitions),
        "cells": [(math.nan, "") if one is None else (one.z, _state(one.z)) for one in metrics],
        "noise_ratio": wait.noise_ratio if wait else math.nan,
    }


RANKING = Section("Ranking of policies", 380, _ranking, scope="validation")
