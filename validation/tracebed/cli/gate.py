"""Options and exit status of the commands that end in a verdict: `compare` and `validate`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.console import print_table
from tracebed.cli.messages import MessageLevel, emit, warn
from tracebed.cli.options import PATH, OutputPath, gathered
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.outputs import BASELINE, CODE_QUALITY, JUNIT, SUMMARY

if TYPE_CHECKING:
    from tracebed.api.gates import Baseline, Finding, OnInconclusive, SimulatorBaseline
    from tracebed.api.types import Validation


STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Environment variable: path of the summary file of a step of a GitHub job."""
COLUMNS = ("metric", "verdict", "case", "error / margin", "predicted", "lowest", "highest")
"""Columns of a baseline."""


@dataclass(frozen=True)
class Gating:
    """The options of a gate."""

    inconclusive: str
    baseline: Path | None
    update_baseline: str | None
    """Whether to write the baseline: `better`, unless a result is worse, or `any`; None: no."""
    annotate: bool
    code_quality: Path | None

    def kept(self) -> Baseline | None:
        """Return the baseline, which is empty if its file is to be made.

        Raises:
            InputError: the file is invalid or missing, or cannot be written.
        """
        from tracebed.api.gates import Baseline

        if self.update_baseline is None:
            return Baseline.load(self.baseline) if self.baseline is not None else None
        if self.baseline is None:
            raise InputError("--update-baseline is given without a baseline", hint="name its file with --baseline")
        BASELINE.check(self.baseline)
        return Baseline.load(self.baseline) if self.baseline.exists() else Baseline.of([])

    def judge(self, validations: Sequence[Validation], kept: Baseline | None) -> Gate:
        """Return the gate for validations, one per simulator, compared with the baseline if there is one."""
        from tracebed.api.gates import Baseline, OnInconclusive

        updated, findings = None, []
        if kept is not None and self.update_baseline is None:
            findings = [finding for validation in validations for finding in kept.check(validation)]
        elif kept is not None:
            new = Baseline.of([validation.to_json() for validation in validations])
            updated, findings = kept.updated(new), list(kept.changes(new))
            if self.update_baseline == "any":
                findings = [replace(finding, failed=False) for finding in findings]
        return Gate(self, OnInconclusive(self.inconclusive), findings, updated)


gate_options = gathered(
    "gating",
    Gating,
    click.option(
        "--inconclusive",
        type=click.Choice(["fail", "warn", "pass"]),
        default="fail",
        show_default=True,
        help="Exit status of an inconclusive verdict: 3, 0 with a warning, or 0.",
    ),
    click.option(
        "--baseline",
        type=PATH,
        metavar="FILE",
        help="Also fail if a metric is worse than in this baseline: YAML, or JSON if the name ends in .json.",
    ),
    click.option(
        "--update-baseline",
        type=click.Choice(["better", "any"]),
        help="Write the results to the file of --baseline, which may be missing, and print them. `better` writes "
        "nothing and ends with status 1 if a result is worse than before, or the tolerances changed.",
    ),
    click.option(
        "--annotate",
        is_flag=True,
        help="Print annotations of GitHub for metrics that fail, and append the summary in Markdown to the file in "
        f"the variable {STEP_SUMMARY}, if it is set.",
    ),
    click.option(
        "--code-quality",
        type=OutputPath(CODE_QUALITY),
        metavar="FILE.json",
        help="Write the metrics that fail as a code-quality report of GitLab.",
    ),
)
"""`--inconclusive`, `--baseline`, `--update-baseline`, `--annotate` and `--code-quality`."""


@dataclass(frozen=True)
class Gate:
    """What the verdicts mean for the exit status."""

    options: Gating
    inconclusive: OnInconclusive
    findings: list[Finding]
    """Differences from the baseline."""
    updated: Baseline | None
    """The baseline with the new results, if it is to be written."""

    def write(self, validations: Sequence[Validation], markdown: Path | None, junit: Path | None) -> None:
        """Write the summary in Markdown and the verdicts as JUnit XML, to the files that are given."""
        from tracebed.api import gates

        if markdown is not None:
            with SUMMARY.file(markdown) as stream:
                stream.write(gates.markdown(validations, self.findings, self.inconclusive).encode())
        if junit is not None:
            with JUNIT.file(junit) as stream:
                stream.write(gates.junit(validations, self.inconclusive, self.findings))

    def status(
        self,
        validations: Sequence[Validation],
        files: Sequence[Path],
        *,
        as_json: bool,
        failures: Mapping[str, str] | None = None,
    ) -> ExitCode:
        """Print the findings and the annotations, write the baseline, and return the exit status.

        Args:
            validations: one per simulator.
            files: files to annotate: the experiment file, the tolerances.
            as_json: whether standard output is a JSON document, so that the baseline is not printed.
            failures: simulator without a verdict -> why.
        """
        from tracebed.api import gates

        for finding in self.findings:
            text = f"{finding.simulator}: {finding.text}"
            if finding.failed:
                emit(f"tracebed: worse than the baseline: {text}", MessageLevel.ERROR)
            else:
                (warn if self.updated is None else emit)(f"baseline: {text}")
        if self.options.annotate:
            for line in gates.annotate(validations, self.inconclusive, self.findings, files, failures):
                click.echo(line, err=True)
            if step := os.environ.get(STEP_SUMMARY):
                with Path(step).open("a", encoding="utf-8") as summary:
                    summary.write(gates.markdown(validations, self.findings, self.inconclusive, failures))
        if self.options.code_quality is not None:
            with CODE_QUALITY.file(self.options.code_quality) as stream:
                entries = gates.code_quality(validations, self.inconclusive, self.findings, files, failures)
                stream.write(entries.encode())
        self._update(as_json)
        undecided = any(validation.verdict is gates.Verdict.INCONCLUSIVE for validation in validations)
        code = gates.gate(validations, self.inconclusive, self.findings, failures)
        if undecided and self.inconclusive is gates.OnInconclusive.WARN and code is ExitCode.OK:
            warn("a verdict is inconclusive; the exit status is 0 because of --inconclusive warn")
        return code

    def _update(self, as_json: bool) -> None:
        """Write the baseline unless a result is worse, and print it."""
        file = self.options.baseline
        if self.updated is None or file is None:
            return
        if worse := sum(finding.failed for finding in self.findings):
            hint = "improve the simulator, or review the changes and give --update-baseline any"
            warn(f"{file}: not written, {worse} results are worse ({hint})")
            return
        self.updated.save(file, replace=True)
        emit(f"baseline: {file}")
        for name, simulator in self.updated.simulators.items() if not as_json else ():
            click.echo(f"{name} {simulator.version}: {simulator.verdict}; ratchet {simulator.ratchet:g} margins")
            print_table(COLUMNS, list(_rows(simulator)))


def _rows(simulator: SimulatorBaseline) -> Iterator[tuple[Any, ...]]:
    """Yield a row per metric with the mean error over the cases, and a row per case with its limits."""
    from tracebed.api.gates import title

    for name, metric in simulator.metrics.items():
        label = title(name) + ("" if metric.gate else "*")
        reach = (None, None) if metric.reach is None else (-metric.reach, metric.reach)
        if len(metric.cases) != 1:
            yield label, metric.verdict, "mean of the errors", _signed(metric.z), "", *map(_signed, reach)
        for case, item in metric.cases.items():
            low, high = item.limits or (None, None)
            first = (label, metric.verdict) if len(metric.cases) == 1 else ("", "")
            yield *first, case, _signed(item.z), item.predicted, low, high


def _signed(z: float | None) -> str:
    return "-" if z is None else f"{z:+.3f}"
