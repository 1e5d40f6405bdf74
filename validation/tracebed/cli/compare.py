"""`tracebed compare`: the verdict on the predictions of one case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import tracebed.api as tb
from tracebed.cli.console import load_workload, print_json, print_table
from tracebed.cli.gate import Gating, gate_options, show
from tracebed.cli.groups import Sectioned
from tracebed.cli.imports import Tables
from tracebed.cli.messages import emit, progress, warn
from tracebed.cli.options import OutputPath, check_alone, gathered, json_option, keywords, option, shared, tau_option
from tracebed.cli.reports import FIGURES, ReportFile, by_kind, save_figures
from tracebed.ground.errors import ExitCode, InputError


@dataclass(frozen=True)
class Sides:
    """The runs of a case."""

    real: tuple[Path, ...] = option(
        required=True,
        metavar="RUN",
        help="A repetition of the real run, a folder of repetitions (`rep-01`, `rep-02`, ...), or a file that "
        "`tracebed import` reads. Give it several times.",
    )
    predicted: tuple[Path, ...] = option(
        metavar="RUN",
        help="The run of a simulator, or its output as a file; several runs of a stochastic one.",
    )
    by: Literal["policy"] | None = option(
        help="Compare the policies of real runs with the first one instead, beside the gains that were simulated. "
        "--real and --predicted also take the folder of an experiment."
    )


@dataclass(frozen=True)
class Decision:
    """How a verdict is decided."""

    tolerances: Path | None = option(help="Margins and constants of the decision.")
    margins: tuple[str, ...] = option(
        "--margin",
        metavar="METRIC=MARGIN",
        help="Margin of one metric: `wait=15%`, `makespan=3%,60s`, `wait=off`.",
    )
    noise: Path | None = option(help="Noise profile of the testbed, for few repetitions.")
    tau: float = shared(tau_option)
    match: Literal["workload", "id"] = option(
        default="workload",
        help="Match the jobs of equal workloads, or match jobs by id although the workloads differ.",
    )

    @property
    def keywords(self) -> dict[str, Any]:
        """The given options, as `tracebed.api.compare` takes them."""
        found = keywords(self) | {"margins": _margins(self.margins)}
        return found | {"allow_different_workloads": found.pop("match") == "id"}


@dataclass(frozen=True)
class Reports:
    """Reports of a comparison."""

    reports: tuple[Path, ...] = option(
        "--report",
        type=OutputPath(ReportFile("html", "markdown", "junit", "latex")),
        help="Write a report with figures (.html), a summary for the page of a CI job (.md), or the verdicts as JUnit "
        f"XML (.xml), or a LaTeX table (.tex); may be repeated. {FIGURES[0].upper()}{FIGURES[1:]}.",
    )
    workload: Path | None = option(
        help="The replayed workload: adds the error budget of `tracebed explain` to the report."
    )


@click.command(
    cls=Sectioned,
    sections={
        "Decision": Decision,
        "Tables of other programs": Tables,
        "Reports": Reports,
        "Use in CI": Gating,
    },
    epilog="\b\nExample:\n  tracebed compare --real runs/cell --predicted runs/sim --report r.html",
)
@gathered("sides", Sides)
@gathered("decision", Decision)
@gathered("reports", Reports)
@gathered("tables", Tables)
@gate_options
@json_option
def compare(
    sides: Sides, decision: Decision, reports: Reports, tables: Tables, gating: Gating, as_json: bool
) -> ExitCode:
    """Compare the predictions of a case with its real runs: a verdict for each metric, with margin and reason.

    With --by policy, each policy is compared with the first one: the gain that was simulated, the real gain with its
    95 % interval over the pairs of repetitions, and whether both have one sign. Then the exit status is 0.

    A verdict needs repetitions of the real run: five for one case. With fewer, or with a noise that is too large for
    the margins, it is inconclusive. `tracebed metrics --list` prints the margins.

    With a prediction of `tracebed simulate --perturb`, the table has the difference between the real runs and the runs
    with perturbed input, which is marked where it is not significant. The verdict does not depend on it.

    \b
    Exit status: 0 accurate, 1 inaccurate, 2 usage or bad input, 3 inconclusive, 4 unhealthy testbed data.
    """
    pages = by_kind(reports.reports)
    if sides.by is not None:
        check_alone("by", ("real", "predicted", "tau", "reports", "as_json"))
        return show_gains(sides, decision.tau, pages, as_json=as_json)
    if not sides.predicted:
        raise InputError("--predicted is missing", hint="name the predictions, or compare real runs: --by policy")
    if reports.workload is not None and "html" not in pages:
        raise InputError("--workload adds to a report, and --report is missing", hint="name a .html file with --report")
    kept = gating.kept()
    with progress("comparing"):
        validation = tb.compare(sides.real, sides.predicted, **decision.keywords, **tables.keywords)
    judgment = gating.judge([validation], kept)
    if as_json:
        document = tb.judged(judgment.gate, validation)
        print_json(document.pop("schema"), document)
    else:
        show(validation)
    if "latex" in pages:
        tb.write_latex(pages["latex"], tb.verdict_table(validation))
    if "figures" in pages:
        save_figures(validation, pages["figures"])
    if "html" in pages:
        result = tb.outcome(judgment.gate, validation)
        _report(validation, pages["html"], sides.real, reports.workload, result)
    judgment.write(pages.get("markdown"), pages.get("junit"))
    return judgment.status([decision.tolerances] if decision.tolerances else [], as_json=as_json)


def show_gains(sides: Sides, tau: float, pages: Mapping[str, Path], *, as_json: bool) -> ExitCode:
    """Print and write the real gains of policies, and the simulated ones."""
    if wrong := pages.keys() - {"latex", "figures"}:
        raise InputError(f"{pages[min(wrong)]} is no report of policies", hint="name a .tex file, or a folder")
    with progress("comparing"):
        found = tb.gains(sides.real, sides.predicted, tau=tau)
    if as_json:
        print_json("tracebed-gains/1", {"workloads": [each.to_json() for each in found]})
    for each in found if not as_json else ():
        print_gains(each)
    if "latex" in pages:
        tb.write_gains(found, pages["latex"])
        emit(f"table: {pages['latex']}")
    if "figures" in pages:
        for each in found:
            save_figures(each, pages["figures"] / Path(each.workload).stem if len(found) > 1 else pages["figures"])
    return ExitCode.OK


def print_gains(found: tb.PolicyComparison) -> None:
    """Print the table of a comparison of policies, what its columns mean, and its warnings."""
    heads, rows = found.table()
    click.echo(f"\n{found.workload}: gains against {found.first}")
    print_table(heads, rows, keys=2)
    click.echo("gain: difference of the means; n: pairs of repetitions; unclear: the interval contains zero")
    for warning in found.warnings:
        warn(warning)
    if found.headline:
        click.echo(found.headline)


def _margins(texts: Sequence[str]) -> dict[str, str]:
    """Return `METRIC=MARGIN` texts as a dictionary. Raises InputError if a text is not of this form."""
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, margin) in zip(texts, pairs, strict=True):
        if not (name.strip() and equals and margin.strip()):
            raise InputError(f"--margin {text}: not of the form METRIC=MARGIN", hint="write --margin wait=15%")
    return {name.strip(): margin.strip() for name, _, margin in pairs}


def _report(validation: tb.Validation, path: Path, real: Sequence[Path], workload: Path | None, result: str) -> None:
    """Write the report, with the error budget over the included repetitions if the workload is given."""
    budget: tb.ErrorBudget | None = None
    if workload is not None:
        jobs = load_workload(workload)
        with progress("repeating the prediction"):
            budget = tb.budget_of_case(validation, jobs, real)
    with progress("drawing the report"):
        validation.to_html(path, budget, outcome=result)
    emit(f"report: {path}")
