"""The head of a report: the verdict, the numbers that decide, where the differences are, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracebed.validation.report.words import error, margin, real_side
from tracebed.validation.verdict.breakdown import QUANTITIES, breakdown
from tracebed.validation.verdict.rule import Verdict
from tracebed.validation.verdict.validation import CaseMetric, MetricVerdict, Validation

SYMBOLS = {Verdict.ACCURATE: "✓", Verdict.INACCURATE: "✗", Verdict.INCONCLUSIVE: "?"}
CLASSES = {
    "size": "jobs of {} nodes",
    "run time": "jobs with run times of {}",
    "user": "jobs of user {}",
    "hour": "jobs submitted in hour {}",
    "kind": "{} jobs",
    "behaviour": "jobs of behavior {}",
}
"""Classification of `breakdown` -> text for a class."""
FAR = 3
"""Largest number of places in the head."""
LEAST_SHARE = 0.5
"""Smallest share of a difference for which a class of jobs is named."""


@dataclass(frozen=True)
class Tile:
    """A number that decides: one gated metric."""

    label: str
    error: str
    """Error, without its interval."""
    margin: str
    state: str
    """Verdict on the metric."""


@dataclass(frozen=True)
class Banner:
    """The head of a report."""

    symbol: str
    verdict: str
    headline: str
    tiles: tuple[Tile, ...]
    where: tuple[str, ...]
    """The metrics and cases with the largest errors; empty if all are within their margins."""
    why: tuple[str, ...]
    facts: str
    """Number of repetitions and predictions, and how the jobs were executed."""


def banner(validation: Validation) -> Banner:
    """Return the head of the report."""
    gated = [item for item in validation.metrics if item.gate]
    headline = validation.headline
    return Banner(
        symbol=SYMBOLS[validation.verdict],
        verdict=validation.verdict.value,
        headline=headline[:1].upper() + headline[1:],
        tiles=tuple(_tile(item) for item in gated),
        where=_where(gated),
        why=_why(validation, gated),
        facts=_facts(validation),
    )


def _tile(item: MetricVerdict) -> Tile:
    return Tile(item.metric.label, error(item).partition(" [")[0], margin(item), item.verdict.value)


def _where(gated: list[MetricVerdict]) -> tuple[str, ...]:
    """Return the metrics and cases with the largest errors beyond their margins."""
    far = [(abs(case.z), item, case) for item in gated for case in item.cases if abs(case.z) > 1]
    far.sort(key=lambda each: -each[0])
    texts = [f"{_place(item, case)}: {error(item, case)}" for _, item, case in far[:FAR]]
    if len(far) > FAR:
        texts.append(f"and {len(far) - FAR} more beyond their margins")
    return tuple(texts)


def _place(item: MetricVerdict, case: CaseMetric) -> str:
    return item.metric.label + (f" of {case.case}" if len(item.cases) > 1 else "")


def _why(validation: Validation, gated: list[MetricVerdict]) -> tuple[str, ...]:
    """Return the classes of jobs that cause most of the largest error of a mean, in the case with this error."""
    results = {result.case.name: result for result in validation.cases}
    far = [(abs(case.z), item, case) for item in gated for case in item.cases if abs(case.z) > 1]
    far = [each for each in far if each[1].metric.mean_of in QUANTITIES]
    if not far:
        return ()
    _, item, case = max(far, key=lambda each: each[0])
    pair = results[case.case].pair
    if not len(pair.jobs):
        return ()
    table = breakdown(pair.jobs, pair.real)
    table = table[(table["quantity"] == item.metric.mean_of) & (table["by"] != "hour")]
    table = table[table.groupby("by")["class"].transform("size") > 1].nlargest(1, "share")
    texts = [
        f"{100 * min(share, 1.0):.0f} % of the error of {_place(item, case)}: {CLASSES[by].format(name)}"
        for by, name, share in zip(table["by"], table["class"], table["share"], strict=True)
        if math.isfinite(share) and share >= LEAST_SHARE
    ]
    return tuple(texts)


def _facts(validation: Validation) -> str:
    """Return how much the verdict is based on: cases, repetitions, predictions."""
    repetitions = [one for result in validation.cases for one in result.repetitions]
    included = sum(not one.excluded for one in repetitions)
    parts = [_count(len(validation.cases), "case")] if len(validation.cases) > 1 else []
    left = f" ({len(repetitions) - included} more excluded)" if included < len(repetitions) else ""
    parts += [_count(included, "real repetition") + left]
    parts += [_count(sum(len(result.case.predicted) for result in validation.cases), "prediction")]
    sides = sorted({real_side(one.run.info) for one in repetitions})
    return f"{', '.join(parts)}; {' and '.join(sides)}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
