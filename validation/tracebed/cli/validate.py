"""`tracebed validate`: the verdicts on the simulators of an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracebed.cli.console import print_json
from tracebed.cli.gate import gate_options
from tracebed.cli.messages import progress
from tracebed.cli.options import PATH, STORE, json_option, output_option
from tracebed.errors import ExitCode, InputError

if TYPE_CHECKING:
    from tracebed.validation.verdict.validation import Validation


@click.command()
@click.argument("file", type=PATH, metavar="FILE")
@click.option(
    "--simulator",
    "only",
    multiple=True,
    metavar="NAME",
    help="Validate only this simulator of the experiment. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Print the forecast, and neither replay nor predict.")
@click.option(
    "--case-pages/--no-case-pages", default=True, help="Write a report for each case too (some seconds a case)."
)
@output_option("Folder of the runs, the verdicts and the reports.", STORE)
@gate_options
@json_option
def validate(
    file: Path,
    only: tuple[str, ...],
    dry_run: bool,
    case_pages: bool,
    output: Path,
    inconclusive: str,
    baseline: Path | None,
    annotate: bool,
    code_quality: Path | None,
    as_json: bool,
) -> ExitCode:
    """Validate the simulators of an experiment: FILE has workloads, policies, simulators, and a testbed or real runs.

    Each case, a workload under a policy, is predicted by each simulator, and replayed several times in random order.
    The same command continues an interrupted validation: finished runs are not repeated. The folder has the
    verdicts (verdict.json), a summary (verdict.md), JUnit XML (junit.xml), and a report per simulator.

    \b
    Exit status: that of the worst simulator: 1 inaccurate, 4 unhealthy testbed data, 3 inconclusive, 0 accurate;
    2 if a simulator fails.

    \b
    Example:
      tracebed validate suite.yaml -o validation
    """
    from tracebed.cli.gate import Gate
    from tracebed.cli.runs import end_on_signals

    end_on_signals()
    from tracebed.api import Baseline
    from tracebed.api.experiments import forecast_suite, load_experiment, load_suite, validate_suite, write_results
    from tracebed.cli.experiments.real import announce, execute
    from tracebed.files import locked_folder

    with progress(f"reading {file.name}"):
        loaded = load_experiment(str(file))
        spec = loaded.experiment
        if not spec.simulators:
            raise InputError("no simulator to validate", where=str(file), hint="add `simulators: {tracebed: {}}`")
        ratchet = baseline or (loaded.folder / spec.baseline if spec.baseline else None)
        kept = Baseline.load(ratchet) if ratchet else None  # an invalid baseline is reported before the replays
        suite = load_suite(loaded, loaded.selected({}), output, {}, only)
        forecast = forecast_suite(suite, output)
    announce(forecast)
    if dry_run:
        return ExitCode.OK
    with locked_folder(output, "experiment"):
        predictions, failed, _ = execute(suite, forecast, output)
        with progress("comparing"):
            validations = validate_suite(suite, predictions, output)
        gate = Gate.of(list(validations.values()), inconclusive, kept)
        with progress("drawing the reports"):
            document = write_results(
                suite, validations, failed, output, gate.inconclusive, gate.findings, case_pages=case_pages
            )
    if as_json:
        print_json(document["schema"], document)
    else:
        _show(validations, output)
    files = [file, *([loaded.folder / spec.tolerances] if spec.tolerances else [])]
    status = gate.status(list(validations.values()), annotate=annotate, code_quality=code_quality, files=files)
    return ExitCode.USAGE if failed else status


def _show(validations: dict[str, Validation], output: Path) -> None:
    """Print the result of each simulator, and where its report is."""
    from tracebed.cli.comparison import show

    said: set[str] = set()  # the simulators have the real runs, and their warnings, in common
    for name, validation in validations.items():
        show(validation, said)
        said.update(validation.warnings)
        click.echo(f"report: {output / name}.html\n")
