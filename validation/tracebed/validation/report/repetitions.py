"""Report sections about the real repetitions: their health, and their noise beside the error of the prediction."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from markupsafe import Markup

from tracebed.validation.report.sections import Section
from tracebed.validation.report.templates import fill
from tracebed.validation.report.words import percentage
from tracebed.validation.verdict.case_metric import CaseMetric
from tracebed.validation.verdict.screening import Repetition
from tracebed.validation.verdict.validation import CaseResult, Validation

REACH = 2.0
"""End of the axis of the bars, in margins."""


class Bars(NamedTuple):
    """A line with two bars: spread of the real repetitions and error of the prediction, in margins."""

    label: str
    spread: float
    error: float
    text: str


def _repetitions(validation: Validation) -> Markup:
    """Return the tables of the repetitions of each case, with the causes of those that are excluded."""
    every = [one for result in validation.cases for one in result.repetitions]
    excluded = sum(bool(one.excluded) for one in every)
    return fill(
        "repetitions",
        repetitions=len(every),
        excluded=excluded,
        flagged=sum(bool(one.flags) and not one.excluded for one in every),
        results=[(result, _counts(result), _doubtful(result)) for result in validation.cases],
        several=len(validation.cases) > 1,
        remarks=_remarks,
    )


def _counts(result: CaseResult) -> str:
    excluded = sum(bool(one.excluded) for one in result.repetitions)
    count = len(result.repetitions)
    return f"{count} repetition{'s' if count > 1 else ''}" + (f", {excluded} excluded" if excluded else "")


def _doubtful(result: CaseResult) -> bool:
    return any(one.excluded or one.flags or one.causes for one in result.repetitions)


def _remarks(one: Repetition) -> str:
    """Return causes and signals of a repetition as text."""
    _, _, why = one.excluded.partition(": ")
    texts = [str(cause.get("text", "")) for cause in one.causes]
    known = why in texts or why in "; ".join(texts)
    return "; ".join(filter(None, ("" if known else why, *texts, one.flags))) or "-"


def _noise(validation: Validation) -> Markup | None:
    """Return the bars of each gated metric, or None if no case has two repetitions."""
    metrics = [item for item in validation.metrics if item.gate and any(case.repeats > 1 for case in item.cases)]
    if not metrics:
        return None
    several = len(validation.cases) > 1
    lines = [
        (
            _bars(item.metric.label, item.cases),
            [_bars(one.case, [one]) for one in item.cases] if several else [],
        )
        for item in metrics
    ]
    return fill("noise", lines=lines, several=several, reach=REACH, at=_at)


def _bars(label: str, cases: Iterable[CaseMetric]) -> Bars:
    """Return the line of the root mean squares over some cases."""
    known = [case for case in cases if math.isfinite(case.z)]
    spread = _root_mean_square([case.real_sd / case.margin for case in known if case.margin])
    error = _root_mean_square([case.z for case in known])
    noise = _root_mean_square([case.noise_cv for case in known])
    off = _root_mean_square([case.relative_error for case in known])
    text = f"noise {percentage(noise)}, error {percentage(off)}"
    return Bars(label, spread, error, text)


def _root_mean_square(values: list[float]) -> float:
    """Return the root of the mean square of the values that are not NaN; NaN if all are."""
    known = [value for value in values if not math.isnan(value)]
    return math.sqrt(sum(value**2 for value in known) / len(known)) if known else math.nan


def _at(margins: float) -> str:
    """Return a place on the axis as a share of its length."""
    return f"{100 * min(margins / REACH, 1.0):.2f}%"


REPETITIONS = Section("Real repetitions", 300, _repetitions, scope="validation")
NOISE = Section("Noise of the real runs and error of the prediction", 360, _noise, scope="validation")
