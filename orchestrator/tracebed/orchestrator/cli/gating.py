"""Options of `compare` and `validate` for CI jobs: the baseline, inconclusive verdicts, summaries and annotations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.errors import ExitCode
from tracebed.orchestrator.cli.messages import say, warn
from tracebed.orchestrator.cli.options import PATH, Command

if TYPE_CHECKING:
    from tracebed.validation.verdict.validation import Validation

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Variable with the file to which a step of a GitHub job appends its summary."""


@dataclass(frozen=True)
class GateOptions:
    """The values of `gate_options`."""

    baseline: Path | None = None
    inconclusive: str = "fail"
    markdown: Path | None = None
    junit: Path | None = None
    code_quality: Path | None = None
    annotate: str | None = None

    @classmethod
    def taken(cls, options: dict[str, Any]) -> GateOptions:
        """Return the values of these options, and remove them from `options`, the options of a command."""
        return cls(**{field.name: options.pop(field.name) for field in fields(cls)})


def gate_options(command: Command) -> Command:
    """Add `--baseline`, `--inconclusive`, `--markdown`, `--junit`, `--annotate` and `--code-quality`."""
    for option in (
        click.option(
            "--code-quality", type=PATH, metavar="FILE", help="Write the annotations as a GitLab code-quality report."
        ),
        click.option(
            "--annotate",
            type=click.Choice(["github"]),
            help="Print annotations of the tolerances or suite file for GitHub, and append the Markdown summary to "
            f"the file of the variable {STEP_SUMMARY}.",
        ),
        click.option("--junit", type=PATH, metavar="FILE", help="Write a test case per metric and case as JUnit XML."),
        click.option("--markdown", type=PATH, metavar="FILE", help="Write a summary in Markdown."),
        click.option(
            "--inconclusive",
            type=click.Choice(["fail", "warn", "pass"]),
            default="fail",
            show_default=True,
            help="Exit status of an inconclusive verdict: 3 (fail), 0 with a warning (warn), or 0 (pass).",
        ),
        click.option(
            "--baseline",
            type=PATH,
            metavar="FILE",
            help="Exit with status 1 if the error of a metric grew since this baseline, or left its limits.",
        ),
    ):
        command = option(command)
    return command


def publish(validations: Sequence[Validation], options: GateOptions, files: Sequence[Path | None] = ()) -> ExitCode:
    """Write the chosen reports of the validations of all simulators, and return the exit code of the command.

    Args:
        validations: one per simulator.
        options: the options of the command.
        files: the tolerances file and the suite file, if there are any, for the annotations.
    """
    from tracebed.files import replacing
    from tracebed.validation.report.annotations import annotate, code_quality
    from tracebed.validation.report.junit import junit
    from tracebed.validation.report.markdown import markdown
    from tracebed.validation.verdict.baseline import Baseline
    from tracebed.validation.verdict.gate import OnInconclusive, gate
    from tracebed.validation.verdict.rule import Verdict

    policy, places = OnInconclusive(options.inconclusive), [file for file in files if file is not None]
    baseline = Baseline.load(options.baseline) if options.baseline is not None else None
    findings = [finding for item in validations for finding in (baseline.check(item) if baseline else [])]
    summary = markdown(validations, findings)
    written = {
        options.markdown: summary.encode(),
        options.junit: junit(validations, policy, findings),
        options.code_quality: code_quality(validations, policy, findings, places).encode(),
    }
    for path, content in written.items():
        if path is not None:
            with replacing(path) as file:
                file.write(content)
    for finding in findings:
        warn(f"{finding.simulator}: {'worse than the baseline: ' if finding.failed else ''}{finding.text}")
    if options.annotate == "github":
        for line in annotate(validations, policy, findings, places):
            click.echo(line)
        if step := os.environ.get(STEP_SUMMARY):
            with Path(step).open("a", encoding="utf-8") as appended:
                appended.write(summary)
    code = gate(validations, policy, findings)
    inconclusive = [item.simulator.name for item in validations if item.verdict is Verdict.INCONCLUSIVE]
    if inconclusive and policy is OnInconclusive.WARN:
        warn(f"inconclusive, and accepted by --inconclusive warn: {', '.join(inconclusive)}")
    if options.baseline is not None and not findings:
        say(f"baseline {options.baseline}: no metric is worse")
    return code
