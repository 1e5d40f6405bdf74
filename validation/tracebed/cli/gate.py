"""Options and exit status of the commands that end in a verdict: `compare` and `validate`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracebed.cli.messages import say, warn
from tracebed.cli.options import PATH, Command, OutputPath
from tracebed.errors import ExitCode
from tracebed.outputs import CODE_QUALITY, JUNIT, SUMMARY

if TYPE_CHECKING:
    from tracebed.validation.verdict.baseline import Baseline
    from tracebed.validation.verdict.gate import Finding, OnInconclusive
    from tracebed.validation.verdict.validation import Validation


STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Variable with the file that has the summary of a step of a GitHub job."""


def gate_options(command: Command) -> Command:
    """`--inconclusive`, `--baseline`, `--annotate` and `--code-quality`."""
    for option in (
        click.option(
            "--code-quality",
            type=OutputPath(CODE_QUALITY),
            metavar="FILE.json",
            help="Write the metrics that fail as a code-quality report of GitLab.",
        ),
        click.option(
            "--annotate",
            is_flag=True,
            help="Print annotations of GitHub for metrics that fail, and append the summary in Markdown to the file in "
            f"the variable {STEP_SUMMARY}, if it is set.",
        ),
        click.option(
            "--baseline", type=PATH, metavar="FILE", help="Also fail if a metric is worse than in this baseline."
        ),
        click.option(
            "--inconclusive",
            type=click.Choice(["fail", "warn", "pass"]),
            default="fail",
            show_default=True,
            help="Exit status of an inconclusive verdict: 3, 0 with a warning, or 0.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class Gate:
    """What the verdicts mean for the exit status."""

    inconclusive: OnInconclusive
    findings: list[Finding]
    """Differences from the baseline."""

    @classmethod
    def of(cls, validations: Sequence[Validation], inconclusive: str, baseline: Baseline | None) -> Gate:
        """Return the gate for these validations, compared with a baseline if one is given."""
        from tracebed.validation.verdict.gate import OnInconclusive

        findings = []
        if baseline is not None:
            findings = [finding for validation in validations for finding in baseline.check(validation)]
        return cls(OnInconclusive(inconclusive), findings)

    def write(self, validations: Sequence[Validation], markdown: Path | None, junit: Path | None) -> None:
        """Write the summary in Markdown and the verdicts as JUnit XML, to the files that are given."""
        from tracebed.validation.report import junit as as_junit
        from tracebed.validation.report import markdown as as_markdown

        if markdown is not None:
            with SUMMARY.file(markdown) as stream:
                stream.write(as_markdown.markdown(validations, self.findings).encode())
        if junit is not None:
            with JUNIT.file(junit) as stream:
                stream.write(as_junit.junit(validations, self.inconclusive, self.findings))

    def status(
        self, validations: Sequence[Validation], *, annotate: bool, code_quality: Path | None, files: Sequence[Path]
    ) -> ExitCode:
        """Print the findings, the annotations if `annotate`, and return the exit status.

        Args:
            validations: one per simulator.
            annotate: whether annotations are printed, and the summary of the step of a GitHub job is written.
            code_quality: the file of a code-quality report of GitLab.
            files: files to annotate: the suite file, the tolerances.
        """
        from tracebed.validation.report import annotations
        from tracebed.validation.report.markdown import markdown
        from tracebed.validation.verdict.gate import OnInconclusive, gate
        from tracebed.validation.verdict.rule import Verdict

        for finding in self.findings:
            text = f"{finding.simulator}: {finding.text}"
            if finding.failed:
                say(f"tracebed: worse than the baseline: {text}")
            else:
                warn(f"baseline: {text}")
        if annotate:
            for line in annotations.annotate(validations, self.inconclusive, self.findings, files):
                click.echo(line, err=True)
            if step := os.environ.get(STEP_SUMMARY):
                with Path(step).open("a", encoding="utf-8") as summary:
                    summary.write(markdown(validations, self.findings))
        if code_quality is not None:
            with CODE_QUALITY.file(code_quality) as stream:
                entries = annotations.code_quality(validations, self.inconclusive, self.findings, files)
                stream.write(entries.encode())
        undecided = any(validation.verdict is Verdict.INCONCLUSIVE for validation in validations)
        code = gate(validations, self.inconclusive, self.findings)
        if undecided and self.inconclusive is OnInconclusive.WARN and code is ExitCode.OK:
            warn("a verdict is inconclusive; the exit status is 0 because of --inconclusive warn")
        return code
