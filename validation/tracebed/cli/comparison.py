"""The verdict of a validation on the console."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from tracebed.cli.console import print_table
from tracebed.cli.messages import warn
from tracebed.cli.perturbation import change
from tracebed.ground.display import cell, counted, signed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tracebed.api.types import MetricVerdict, Reason, Run, Validation

LEAST = 0.005
"""Smallest number that is not shown as 0: percent, or margins."""
SINGLE = ("real", "noise", "predicted", "error", "margin")
"""Columns for one case, between the metric and the verdict."""
NOISES = "noise (largest)"
SEVERAL = (NOISES, "|error|", "worst", ">1, >2", "mean", "margin")
"""Columns for several cases; errors are in margins."""


def show(validation: Validation, said: Collection[str] = ()) -> None:
    """Print the cases, the result for each metric, what the verdict depends on, the warnings, and the verdict.

    Args:
        validation: the validation.
        said: warnings that were printed before, and are not repeated.
    """
    single = len(validation.cases) == 1
    for line in _sides(validation):
        click.echo(line)
    columns = ["metric", *(SINGLE if single else SEVERAL), "verdict"]
    rows = [list(_row(item, single)) for item in validation.metrics]
    if validation.perturbed_differences is not None:
        columns.append("with perturbed input")
        for item, row in zip(validation.metrics, rows, strict=True):
            row.append(change(validation.perturbed_differences.get(item.name)))
    noise = "noise" if single else NOISES
    if all(row[columns.index(noise)] == "-" for row in rows):
        rows = [[value for value, name in zip(row, columns, strict=True) if name != noise] for row in rows]
        columns.remove(noise)
    print_table(columns, rows, spare=(noise, "predicted", "with perturbed input"))
    for line in validation.courses:
        click.echo(line)
    for part in (_notes, _dependence, _evidence):
        for line in part(validation):
            click.echo(line)
    for warning in validation.warnings:
        if warning not in said:
            warn(warning)
    if validation.noise:
        click.echo(validation.noise)
    click.echo(f"{validation.verdict}: {validation.headline}")


def _sides(validation: Validation) -> Iterator[str]:
    """Yield a line about the real and one about the predicted side of each case, or of all cases."""
    cases = validation.cases
    if len(cases) == 1:
        case = cases[0].case
        yield f"real:      {_counted(case.real)}"
        yield f"predicted: {_counted(case.predicted)}"
        return
    simulator = validation.simulator
    yield f"simulator: {simulator.name} {simulator.version}, {counted(simulator.runs, 'run')}"
    workloads = counted(validation.workloads, "workload")
    yield f"cases:     {len(cases)}, {counted(validation.real_runs, 'real run')} of {workloads}"
    if marked := [case.case.name for case in cases if case.calibration]:
        yield f"           shown only, since they were used for calibration: {', '.join(marked)}"


def _counted(runs: tuple[Run, ...]) -> str:
    """Return number, source, policy and execution of runs of one case."""
    from tracebed.api.words import execution, policy_name

    info = runs[0].info
    return f"{counted(len(runs), 'run')}, {info.source}, {policy_name(info)}; {execution(info)}"


def _row(item: MetricVerdict, single: bool) -> tuple[str, ...]:
    """Return the row of a metric for one case, or for several."""
    noise, largest = item.noise
    middle: tuple[str, ...]
    if single:
        (case,) = item.cases
        scale = case.margin / abs(case.real_mean) if case.real_mean else math.nan
        middle = (
            f"{cell(case.real_mean)}{' s' if item.metric.unit == 's' else ''}",
            _percent(noise),
            cell(case.predicted),
            _interval(100 * case.relative_error, 50 * (case.high - case.low) * scale, "%"),
            _percent(scale),
        )
    else:
        middle = (
            "-" if math.isnan(noise) else f"{_percent(noise)} ({_percent(largest)})",
            "-" if math.isnan(item.mean_absolute) else f"{item.mean_absolute:.2f}",
            f"{item.worst.z:+.2f}" if item.worst else "-",
            f"{item.beyond(1)}, {item.beyond(2)}/{len(item.deciding)}",
            _interval(item.z, (item.high - item.low) / 2),
            item.margin.text(item.metric.unit).partition(",")[0],
        )
    return (_name(item), *middle, item.verdict.value if item.gate else f"({item.verdict.value})")


def _name(item: MetricVerdict) -> str:
    """Return the name of a metric, marked if the metric is not part of the verdict."""
    name = item.metric.short or item.metric.label.removesuffix(" in the window")
    return name if item.gate else f"{name}*" if item.evidence else f"{name}**"


def _percent(share: float) -> str:
    """Return a share in percent with two significant digits; a dash if unknown."""
    return "-" if math.isnan(share) else f"{100 * share:{'.0f' if abs(share) >= 0.995 else '.2g'}}%"


def _interval(middle: float, half: float, unit: str = "") -> str:
    """Return a value and the half-width of its interval: `-0.25 ± 0.06%`; a dash if the value is unknown."""
    if math.isnan(middle):
        return "-"
    if math.isnan(half):
        return f"{signed(middle) if abs(middle) >= LEAST else 0}{unit}"
    digits = min(max(0, 1 - math.floor(math.log10(half))) if half > 0 else 1, 4)
    return f"{middle:+,.{digits}f} ± {half:,.{digits}f}{unit}"


def _notes(validation: Validation) -> Iterator[str]:
    """Yield what the marks mean, and why gated metrics have their verdicts."""
    from tracebed.api.words import Reason

    if not all(item.gate or not item.evidence for item in validation.metrics):
        yield "* advisory: not part of the verdict"
    if not all(item.evidence for item in validation.metrics):
        yield "** no evidence: the run times were imposed or copied"
    if len(validation.cases) > 1:
        if not all(math.isnan(item.noise[0]) for item in validation.metrics):
            yield (
                "noise: standard deviation of the real repetitions of a case, in percent of their mean; the root mean "
                "square over the cases, and the largest"
            )
        level = f"{100 * (1 - 2 * validation.tolerances.alpha):g} %"
        yield (
            "errors (predicted - real) in margins: mean of |error| over the cases, the worst case, numbers of cases "
            f"beyond one and two margins, and the mean with its {level} interval"
        )
        yield from validation.dependence
    yield from validation.moving_averages
    gated = validation.gated
    shared = set.intersection(*(set(item.reasons) for item in gated)) if gated else set()  # the headline has them
    if len(validation.cases) == 1:
        shared |= {Reason.WORKLOAD_OUTLIER}  # the table has the error of the case
    for item in gated:
        if item.reasons and (text := "; ".join(_reasons(item, shared))):
            yield f"{_name(item)}: {text}"


def _reasons(item: MetricVerdict, shared: set[Reason]) -> Iterator[str]:
    """Yield the reasons of the verdict on a metric, the smallest margin that would pass, and the repetitions needed."""
    from tracebed.api.words import REASONS

    yield from (REASONS[reason] for reason in item.reasons if reason not in shared)
    if item.margin_needed != "-":
        yield f"smallest margin that passes: {item.margin_needed}"
    if item.repeats_needed is not None:
        yield f"repetitions needed: {item.repeats_needed}"


def _dependence(validation: Validation) -> Iterator[str]:
    """Yield the verdicts with other margins, and without the repetitions with an unusual outcome."""
    if validation.sensitivity:
        others = [f"{factor:g} times the margins: {verdict}" for factor, verdict in validation.sensitivity.items()]
        yield f"with {', '.join(others)}"
    if validation.without_outliers is not None:
        yield f"without the repetitions with an unusual outcome: {validation.without_outliers}"
    if validation.by_own_limits is not None:
        yield f"by the limits of health of the runs themselves, wider than the defaults: {validation.by_own_limits}"
    if validation.ranking is not None:
        yield f"ranking: {validation.ranking.headline}"
        yield from (f"  wrong order: {pair.sentence}" for pair in validation.ranking.discordant)


def _evidence(validation: Validation) -> Iterator[str]:
    """Yield which errors the real runs could have revealed, and which they could not."""
    yield from (f"could have failed: {part}" for part in validation.could_fail)
    yield from (f"could not have failed: {part}" for part in validation.could_not_fail)
    yield from validation.remarks
