"""`tracebed compare`: the verdict on the predictions of one case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracebed.cli.console import load_workload, print_json
from tracebed.cli.gate import gate_options
from tracebed.cli.messages import progress, say
from tracebed.cli.options import PATH, OutputPath, json_option, tau_option
from tracebed.cli.shaking import UNKNOWN
from tracebed.errors import ExitCode, InputError
from tracebed.outputs import JUNIT, REPORT, SUMMARY

if TYPE_CHECKING:
    from tracebed.api import ErrorBudget, Validation


@click.command(epilog="\b\nExample:\n  tracebed compare --real runs/cell --predicted runs/sim --report report.html")
@click.option(
    "--real",
    required=True,
    multiple=True,
    type=PATH,
    metavar="RUN",
    help="A repetition of the real run, a folder of repetitions (`rep-01`, `rep-02`, ...), or a file that `tracebed "
    "import` reads. Give it several times.",
)
@click.option(
    "--predicted",
    required=True,
    multiple=True,
    type=PATH,
    metavar="RUN",
    help="The run of a simulator, or its output as a file; several runs of a stochastic one.",
)
@click.option("--tolerances", type=PATH, metavar="FILE", help="Margins and constants of the decision.")
@click.option(
    "--margin",
    "margins",
    multiple=True,
    metavar="METRIC=MARGIN",
    help="Margin of one metric: `wait=15%`, `makespan=3%,60s`, `wait=off`.",
)
@click.option("--noise", type=PATH, metavar="FILE", help="Noise profile of the testbed, for few repetitions.")
@click.option("--report", type=OutputPath(REPORT), metavar="FILE.html", help="Write a report with figures.")
@click.option(
    "--markdown", type=OutputPath(SUMMARY), metavar="FILE.md", help="Write a summary for the page of a CI job."
)
@click.option("--junit", type=OutputPath(JUNIT), metavar="FILE.xml", help="Write the verdicts as JUnit XML.")
@click.option(
    "--workload",
    type=PATH,
    metavar="FILE",
    help="The replayed workload: adds the error budget of `tracebed explain` to the report.",
)
@tau_option
@click.option("--allow-different-workloads", is_flag=True, help="Match jobs by id although the workloads differ.")
@gate_options
@json_option
def compare(
    real: tuple[Path, ...],
    predicted: tuple[Path, ...],
    tolerances: Path | None,
    margins: tuple[str, ...],
    noise: Path | None,
    report: Path | None,
    markdown: Path | None,
    junit: Path | None,
    workload: Path | None,
    tau: float,
    allow_different_workloads: bool,
    inconclusive: str,
    baseline: Path | None,
    annotate: bool,
    code_quality: Path | None,
    as_json: bool,
) -> ExitCode:
    """Compare the predictions of a case with its real runs: a verdict for each metric, with margin and reason.

    A verdict needs repetitions of the real run: five for one case. With fewer, or with a noise that is too large for
    the margins, it is inconclusive. `tracebed metrics --definitions` prints the margins.

    With a prediction of `tracebed simulate --shake`, the table has the difference between the real runs and the runs
    with shaken input, which is marked where it may be an accident. The verdict does not depend on it.

    \b
    Exit status: 0 accurate, 1 inaccurate, 2 usage or bad input, 3 inconclusive, 4 unhealthy testbed data.
    """
    import tracebed.api as tb
    from tracebed.cli.comparison import show
    from tracebed.cli.gate import Gate

    if workload is not None and report is None:
        raise InputError("--workload adds to a report, and --report is missing", hint="name a file with --report")
    kept = tb.Baseline.load(baseline) if baseline else None
    with progress("comparing"):
        validation = tb.compare(
            real,
            predicted,
            tolerances=tolerances,
            margins=_margins(margins),
            noise=noise,
            tau=tau,
            allow_different_workloads=allow_different_workloads,
        )
    gate = Gate.of([validation], inconclusive, kept)
    if as_json:
        document = validation.to_json()
        print_json(document.pop("schema"), document)
    else:
        show(validation)
        if validation.accidents is None:
            say(f"tracebed: {UNKNOWN}")
    if report is not None:
        _report(validation, report, real, workload)
    gate.write([validation], markdown, junit)
    return gate.status(
        [validation], annotate=annotate, code_quality=code_quality, files=[tolerances] if tolerances else []
    )


def _margins(texts: Sequence[str]) -> dict[str, str]:
    """Return `METRIC=MARGIN` texts as a dictionary. Raises InputError if a text is not of this form."""
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, margin) in zip(texts, pairs, strict=True):
        if not (name.strip() and equals and margin.strip()):
            raise InputError(f"--margin {text}: not of the form METRIC=MARGIN", hint="write --margin wait=15%")
    return {name.strip(): margin.strip() for name, _, margin in pairs}


def _report(validation: Validation, path: Path, real: Sequence[Path], workload: Path | None) -> None:
    """Write the report, with the error budget over the included repetitions if the workload is given."""
    from tracebed.api.budgets import budget_of_case

    budget: ErrorBudget | None = None
    if workload is not None:
        jobs = load_workload(workload)
        with progress("repeating the prediction"):
            budget = budget_of_case(validation, jobs, real)
    with progress("drawing the report"):
        validation.to_html(path, budget)
    say(f"report: {path}")
