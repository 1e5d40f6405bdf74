"""The head of a report: the verdict, the deciding numbers, and the places and causes of the differences."""

from __future__ import annotations

from dataclasses import dataclass

from tracebed.ground.display import counted
from tracebed.validation.report.words import error, extent, real_side, size
from tracebed.validation.verdict.breakdown import QUANTITIES
from tracebed.validation.verdict.case_metric import CaseMetric
from tracebed.validation.verdict.causes import causes, scaled_run_times, uniform_bias
from tracebed.validation.verdict.gate import WORSE
from tracebed.validation.verdict.rule import Verdict
from tracebed.validation.verdict.validation import MetricVerdict, Validation

SYMBOLS = {Verdict.ACCURATE: "✓", Verdict.INACCURATE: "✗", Verdict.INCONCLUSIVE: "?"}
FAR = 3
"""Largest number of places in the head."""


@dataclass(frozen=True)
class Tile:
    """A number that decides: one gated metric."""

    label: str
    error: str
    """Size of the error, without an interval."""
    margin: str
    """The margin; over several cases with the worst case."""
    state: str
    """Verdict on the metric."""


@dataclass(frozen=True)
class Banner:
    """The head of a report."""

    symbol: str
    verdict: str
    """Class of the colors: that of a verdict."""
    outcome: str
    """The result of the gate, or the verdict."""
    headline: str
    tiles: tuple[Tile, ...]
    where: tuple[str, ...]
    """The metrics and cases with the largest errors; empty if all are within their margins."""
    why: tuple[str, ...]
    noise: str
    """The noise ratio of the waits; empty if unknown."""
    facts: str
    """Number of repetitions and predictions, and how the jobs were executed."""


def banner(validation: Validation, outcome: str = "") -> Banner:
    """Return the head of the report. `outcome` is the result of the gate; empty: the verdict."""
    shown = Verdict.INACCURATE if outcome.startswith(WORSE) else validation.verdict
    gated = [item for item in validation.metrics if item.gate]
    headline = validation.headline
    return Banner(
        symbol=SYMBOLS[shown],
        verdict=shown.value,
        outcome=outcome or validation.verdict.value,
        headline=headline[:1].upper() + headline[1:],
        tiles=tuple(_tile(item) for item in gated),
        where=_where(gated),
        why=_main_cause(validation, gated),
        noise=validation.noise.removeprefix("noise ratio of the "),
        facts=_facts(validation),
    )


def _tile(item: MetricVerdict) -> Tile:
    return Tile(item.metric.label, size(item), extent(item), item.verdict.value)


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


def _main_cause(validation: Validation, gated: list[MetricVerdict]) -> tuple[str, ...]:
    """Return the cause of the largest error of a metric that is not accurate, in the case with this error.

    A uniform bias of the run times concerns every metric. Classes of jobs have a part in the error of a mean only.
    """
    results = {result.case.name: result.pair for result in validation.cases}
    off = [item for item in gated if item.verdict is not Verdict.ACCURATE]
    far = [(abs(case.z), item, case) for item in off for case in item.deciding if abs(case.z) > 1]
    far.sort(key=lambda each: -each[0])
    for _, item, case in far[:1]:
        if scaled := scaled_run_times(results[case.case].predicted):
            return (f"{_place(item, case)}: {scaled}",)
        if (bias := uniform_bias(results[case.case].jobs)) is not None:
            return (f"{_place(item, case)}: {bias.sentence}",)
    for _, item, case in [each for each in far if each[1].metric.mean_of in QUANTITIES][:1]:
        pair = results[case.case]
        return tuple(f"{_place(item, case)}: {cause}" for cause in causes(pair.jobs, pair.real, item.metric.mean_of))
    return ()


def _facts(validation: Validation) -> str:
    """Return how much the verdict is based on: cases, repetitions, predictions."""
    repetitions = [one for result in validation.cases for one in result.repetitions]
    included = sum(not one.excluded for one in repetitions)
    several = len(validation.cases) > 1
    cases = f"{counted(len(validation.cases), 'case')} of {counted(validation.workloads, 'workload')}"
    parts = [cases] if several else []
    left = f" ({len(repetitions) - included} more excluded)" if included < len(repetitions) else ""
    shared = f" of {counted(validation.real_runs, 'real run')}" if validation.real_runs < included else ""
    parts += [counted(included, "real repetition") + left + shared]
    parts += [counted(sum(len(result.case.predicted) for result in validation.cases), "prediction")]
    sides = sorted({real_side(one.run.info) for one in repetitions})
    return f"{', '.join(parts)}; {' and '.join(sides)}"
