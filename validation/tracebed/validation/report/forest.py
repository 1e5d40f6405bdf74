"""Report section with the plot of the verdict: the difference of each metric and case in margins (forest plot)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from tracebed.validation.report.sections import Section
from tracebed.validation.report.templates import fill
from tracebed.validation.report.words import error, margin, signed, size
from tracebed.validation.significance import Difference
from tracebed.validation.verdict.case_metric import CaseMetric
from tracebed.validation.verdict.rule import Verdict
from tracebed.validation.verdict.validation import MetricVerdict, Validation

REACH = 3.2
"""Largest multiple of the margin on the axis."""
LAST_TICK = 3.0
DOT, DIAMOND = "M0 -4.5a4.5 4.5 0 1 0 .001 0z", "M0 -7l7 7-7 7-7-7z"
ARROWS = {True: "M5 0l-8 -6v12z", False: "M-5 0l8 -6v12z"}


@dataclass(frozen=True)
class Row:
    """A line of the plot: text and bar."""

    label: str
    note: str
    z: float | None
    """Difference / margin, limited to the axis; None if undefined."""
    interval: tuple[float, float] | None
    perturbed: tuple[float, float] | None
    """Interval of the difference with perturbed input; None if it is unknown."""
    dots: tuple[float, ...]
    shape: str
    state: str
    """CSS class: accurate, inaccurate or inconclusive."""
    verdict: str
    text: str
    beyond: str = ""
    """Difference / margin where it is beyond the last tick, as text."""


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
    off = math.isfinite(case.z) and abs(case.z) > 1
    return Row(
        label=case.case,
        note="",
        z=_finite_or_none(case.z),
        interval=_interval(case.low, case.high),
        perturbed=None,
        dots=(),
        shape=_shape(case.z, DOT),
        state="" if math.isnan(case.z) else "outside" if off else "inside",
        verdict="",
        text=_text(item, case),
        beyond=_beyond(case.z),
    )


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
