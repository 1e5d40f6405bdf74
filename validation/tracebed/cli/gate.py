"""Verdicts on the console: the tables, the options of a gate, and the exit status of `compare` and `validate`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import tracebed.api as tb
from tracebed.cli.console import change, print_table
from tracebed.cli.messages import MessageLevel, emit, warn
from tracebed.cli.options import OutputPath, gathered, option
from tracebed.ground.display import cell, counted, signed
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.outputs import BASELINE, CODE_QUALITY, JUNIT, SUMMARY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


LEAST = 0.005
"""Smallest number that is not shown as 0: percent, or margins."""
SINGLE = ("real", "noise", "predicted", "error", "margin")
"""Columns for one case, between the metric and the verdict."""
NOISES = "noise (largest)"
SEVERAL = (NOISES, "|error|", "worst", ">1, >2", "mean", "margin")
"""Columns for several cases; errors are in margins."""


def show(validation: tb.Validation, said: Collection[str] = ()) -> None:
    """Print cases, metrics, what the verdict depends on, the warnings that are not `said` yet, and the verdict."""
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
    for line in filter(None, (validation.noise, validation.resizes)):
        click.echo(line)
    click.echo(f"{validation.verdict}: {validation.headline}")


def _sides(validation: tb.Validation) -> Iterator[str]:
    """Yield a line about the real and one about the predicted side of each case, or of all cases."""
    cases = validation.cases
    if len(cases) == 1:
        case = cases[0].case
        yield f"real:      {_counted(len(case.real), case.real[0].info)}"
        yield f"predicted: {_counted(len(case.predicted), case.predicted[0].info)}"
        return
    simulator = validation.simulator
    yield f"simulator: {simulator.name} {simulator.version}, {counted(simulator.runs, 'run')}"
    workloads = counted(validation.workloads, "workload")
    yield f"cases:     {len(cases)}, {counted(validation.real_runs, 'real run')} of {workloads}"
    if marked := [case.case.name for case in cases if case.calibration]:
        yield f"           shown only, since they were used for calibration: {', '.join(marked)}"


def _counted(runs: int, info: tb.RunInfo) -> str:
    """Return number, source, policy and execution of runs of one case."""
    return f"{counted(runs, 'run')}, {info.source}, {tb.policy_name(info)}; {tb.execution_text(info)}"


def _row(item: tb.MetricVerdict, single: bool) -> tuple[str, ...]:
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


def _name(item: tb.MetricVerdict) -> str:
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


def _notes(validation: tb.Validation) -> Iterator[str]:
    """Yield what the marks mean, and why gated metrics have their verdicts."""
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
            "errors (predicted - real) in margins: |error|: mean of its size over the cases; worst: the worst case; "
            ">1, >2: cases beyond one and beyond two margins / all cases (1, 0/5: one of five, none); "
            f"mean: with its {level} interval"
        )
        yield from validation.dependence
    yield from validation.moving_averages
    gated = validation.gated
    shared = set.intersection(*(set(item.reasons) for item in gated)) if gated else set()  # the headline has them
    if len(validation.cases) == 1:
        shared |= {tb.Reason.WORKLOAD_OUTLIER}  # the table has the error of the case
    for item in gated:
        if item.reasons and (text := "; ".join(_reasons(item, shared))):
            yield f"{_name(item)}: {text}"


def _reasons(item: tb.MetricVerdict, shared: set[tb.Reason]) -> Iterator[str]:
    """Yield the reasons of the verdict on a metric, the smallest margin that would pass, and the repetitions needed."""
    yield from (tb.REASONS[reason] for reason in item.reasons if reason not in shared)
    if item.margin_needed != "-":
        yield f"smallest margin that passes: {item.margin_needed}"
    counted_now = min(case.repeats for case in item.deciding)
    if item.repeats_needed is not None and item.repeats_needed > counted_now:
        yield f"repetitions needed: {item.repeats_needed} (counted now: {counted_now})"


def _dependence(validation: tb.Validation) -> Iterator[str]:
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


def _evidence(validation: tb.Validation) -> Iterator[str]:
    """Yield which errors the real runs could have revealed, and which they could not."""
    yield from (f"could have failed: {part}" for part in validation.could_fail)
    yield from (f"could not have failed: {part}" for part in validation.could_not_fail)
    yield from validation.remarks


STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Environment variable: path of the summary file of a step of a GitHub job."""
COLUMNS = ("metric", "verdict", "case", "error / margin", "predicted", "lowest", "highest")
"""Columns of a baseline."""


@dataclass(frozen=True)
class Gating:
    """The options of a gate."""

    inconclusive: Literal["fail", "warn", "pass"] = option(
        default="fail", help="Exit status of an inconclusive verdict: 3, 0 with a warning, or 0."
    )
    baseline: Path | None = option(
        help="Also fail if a metric is worse than in this baseline: YAML, or JSON if the name ends in .json."
    )
    update_baseline: Literal["better", "any"] | None = option(
        help="Write the results to the file of --baseline, which may be missing, and print them. `better` writes "
        "nothing and ends with status 1 if a result is worse than before, or the tolerances changed.",
    )
    annotate: bool = option(
        help="Print annotations of GitHub for metrics that fail, and append the summary in Markdown to the file in "
        f"the variable {STEP_SUMMARY}, if it is set.",
    )
    code_quality: Path | None = option(
        type=OutputPath(CODE_QUALITY),
        metavar="FILE.json",
        help="Write the metrics that fail as a code-quality report of GitLab.",
    )

    def kept(self) -> tb.Baseline | None:
        """Return the baseline, which is empty if its file is to be made. Raises InputError if the file is unusable."""
        if self.update_baseline is None:
            return tb.Baseline.load(self.baseline) if self.baseline is not None else None
        if self.baseline is None:
            raise InputError("--update-baseline is given without a baseline", hint="name its file with --baseline")
        BASELINE.check(self.baseline)
        return tb.Baseline.load(self.baseline) if self.baseline.exists() else tb.Baseline.of([])

    def judge(self, validations: Sequence[tb.Validation], kept: tb.Baseline | None) -> Judgment:
        """Return the judgment on validations, one per simulator, compared with the baseline if there is one."""
        updated, findings = None, []
        if kept is not None and self.update_baseline is None:
            findings = [finding for validation in validations for finding in kept.check(validation)]
        elif kept is not None:
            new = tb.Baseline.of([validation.to_json() for validation in validations])
            updated, findings = kept.updated(new), list(kept.changes(new))
            if self.update_baseline == "any":
                findings = [replace(finding, failed=False) for finding in findings]
        return Judgment(self, tb.Gate(validations, tb.OnInconclusive(self.inconclusive), findings), updated)


gate_options = gathered("gating", Gating)


@dataclass(frozen=True)
class Judgment:
    """What the verdicts mean for the exit status."""

    options: Gating
    gate: tb.Gate
    updated: tb.Baseline | None
    """The baseline with the new results, if it is to be written."""

    def write(self, markdown: Path | None, junit: Path | None) -> None:
        """Write the summary in Markdown and the verdicts as JUnit XML, to the files that are given."""
        if markdown is not None:
            with SUMMARY.file(markdown) as stream:
                stream.write(tb.markdown(self.gate).encode())
        if junit is not None:
            with JUNIT.file(junit) as stream:
                stream.write(tb.junit(self.gate))

    def status(self, files: Sequence[Path], *, as_json: bool, failures: Mapping[str, str] | None = None) -> ExitCode:
        """Print findings and annotations, write the baseline (printed unless `as_json`), and return the exit status.

        `files` (the experiment file, the tolerances) are annotated; `failures` has simulators without a verdict -> why.
        """
        gate = replace(self.gate, failures=failures or {})
        for finding in gate.findings:
            text = f"{finding.simulator}: {finding.text}"
            if finding.failed:
                emit(f"tracebed: worse than the baseline: {text}", MessageLevel.ERROR)
            else:
                (warn if self.updated is None else emit)(f"baseline: {text}")
        if self.options.annotate:
            for line in tb.annotate(gate, files):
                click.echo(line, err=True)
            if step := os.environ.get(STEP_SUMMARY):
                with Path(step).open("a", encoding="utf-8") as summary:
                    summary.write(tb.markdown(gate))
        if self.options.code_quality is not None:
            with CODE_QUALITY.file(self.options.code_quality) as stream:
                stream.write(tb.code_quality(gate, files).encode())
        self._update(as_json)
        undecided = any(validation.verdict is tb.Verdict.INCONCLUSIVE for validation in gate.validations)
        code = tb.gate(gate)
        if undecided and gate.inconclusive is tb.OnInconclusive.WARN and code is ExitCode.OK:
            warn("a verdict is inconclusive; the exit status is 0 because of --inconclusive warn")
        return code

    def _update(self, as_json: bool) -> None:
        """Write the baseline unless a result is worse, and print it."""
        file = self.options.baseline
        if self.updated is None or file is None:
            return
        if worse := sum(finding.failed for finding in self.gate.findings):
            hint = "improve the simulator, or review the changes and give --update-baseline any"
            warn(f"{file}: not written, {worse} results are worse ({hint})")
            return
        self.updated.save(file, replace=True)
        emit(f"baseline: {file}")
        for name, simulator in self.updated.simulators.items() if not as_json else ():
            click.echo(f"{name} {simulator.version}: {simulator.verdict}; ratchet {simulator.ratchet:g} margins")
            print_table(COLUMNS, list(_rows(simulator)))


def _rows(simulator: tb.SimulatorBaseline) -> Iterator[tuple[Any, ...]]:
    """Yield a row per metric with the mean error over the cases, and a row per case with its limits."""
    for name, metric in simulator.metrics.items():
        label = tb.metric_title(name) + ("" if metric.gate else "*")
        reach = (None, None) if metric.reach is None else (-metric.reach, metric.reach)
        if len(metric.cases) != 1:
            yield label, metric.verdict, "mean of the errors", _signed(metric.z), "", *map(_signed, reach)
        for case, item in metric.cases.items():
            low, high = item.limits or (None, None)
            first = (label, metric.verdict) if len(metric.cases) == 1 else ("", "")
            yield *first, case, _signed(item.z), item.predicted, low, high


def _signed(z: float | None) -> str:
    return "-" if z is None else f"{z:+.3f}"
