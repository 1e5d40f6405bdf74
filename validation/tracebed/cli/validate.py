"""`tracebed validate`: the verdicts on the simulators of an experiment."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracebed.cli.board import Data, copy, data_options, score
from tracebed.cli.console import print_json
from tracebed.cli.experiments.options import artifact_option
from tracebed.cli.fitting import FIT_SETTINGS, Fitting, fit_options, fit_simulator
from tracebed.cli.gate import Gating, gate_options
from tracebed.cli.messages import emit, progress
from tracebed.cli.options import PATH, STORE, check_alone, given, json_option, output_option
from tracebed.cli.sections import Sectioned
from tracebed.ground.errors import ExitCode, InputError

if TYPE_CHECKING:
    from tracebed.api.experiments import ExperimentFile, Point
    from tracebed.api.types import Validation


@click.command(cls=Sectioned, sections={"Fit the parameters of a simulator": ("fit", *FIT_SETTINGS)})
@click.argument("file", required=False, type=PATH, metavar="FILE")
@click.option(
    "--only",
    multiple=True,
    metavar="KEY=VALUE[,VALUE]",
    help="Validate only these simulators (simulator=NAME), or cells (policy=easy); may be repeated. With --board: only "
    "these data sets (dataset=NAME).",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the forecast, and neither replay nor predict. With --board: make the page again from the scores in "
    "the output folder.",
)
@click.option(
    "--case-pages/--no-case-pages", default=True, help="Write a report for each case too (some seconds a case)."
)
@output_option("Folder of the runs, the verdicts and the reports.", STORE)
@data_options
@fit_options
@gate_options
@artifact_option
@json_option
def validate(
    file: Path | None,
    only: tuple[str, ...],
    dry_run: bool,
    case_pages: bool,
    output: Path,
    data: Data,
    fitting: Fitting,
    gating: Gating,
    artifact: Path | None,
    as_json: bool,
) -> ExitCode:
    """Validate the simulators of an experiment: FILE has workloads, policies, simulators, and a testbed or real runs.

    Each case, a workload under a policy, is predicted by each simulator, and replayed several times in random order.
    The same command continues an interrupted validation: finished runs are not repeated. The folder has the
    verdicts (verdict.json), a summary (verdict.md), JUnit XML (junit.xml), and a report per simulator.

    With --fit, the calibration of a simulator is written to OUTPUT/calibrated/NAME.yaml, for its key `calibration` in
    FILE. It is fitted to the workloads with `calibration: true`, or else to all, and no verdict is based on these.

    \b
    Exit status: that of the worst simulator: 1 inaccurate, 4 unhealthy testbed data, 3 inconclusive, 0 accurate;
    2 if a simulator fails.

    \b
    Example:
      tracebed validate suite.yaml -o validation
      tracebed validate --recorded emulated -o suite
      tracebed validate --board mine.yaml --from batsim-experiments -o board
      tracebed validate suite.yaml --fit -o validation
    """
    from tracebed.cli.runs import end_on_signals

    if data.recorded is not None:
        check_alone("recorded", ("output", "as_json", "sources"))
        copy(data.recorded, data.sources, output, as_json)
        return ExitCode.OK
    if data.board:
        check_alone("board", ("file", "only", "dry_run", "output", "as_json", "sources"))
        end_on_signals()
        score([file] if file else [], data.sources, only, output, stored=dry_run, as_json=as_json)
        return ExitCode.OK
    if data.sources:
        raise InputError("--from applies with --recorded NAME or --board", hint="name the real runs, or leave it out")
    if file is None:
        raise InputError("no experiment file", hint="name it, or copy recorded real runs: --recorded NAME")
    end_on_signals()
    if fitting.fit:
        check_alone("fit", ("file", "only", "output", "as_json", *FIT_SETTINGS))
        from tracebed.cli.experiments.options import chosen

        fit_simulator(file, output, chosen("--only", only), fitting, as_json=as_json)
        return ExitCode.OK
    if name := given(FIT_SETTINGS):
        raise InputError(f"{name} is an option of a fit", hint="add --fit, or leave it out")
    from tracebed.api.experiments import (
        clear_results,
        forecast_suite,
        load_experiment,
        load_suite,
        validate_suite,
        write_results,
    )
    from tracebed.cli.experiments.options import chosen
    from tracebed.cli.experiments.real import announce, execute, show_failures
    from tracebed.ground.files import locked_folder

    if artifact is not None and gating.update_baseline is not None:
        hint = "update the baseline first, then write the artifact with --baseline"
        raise InputError("--report does not apply with --update-baseline", hint=hint)
    with progress(f"reading {file.name}"):
        loaded = load_experiment(str(file))
        spec = loaded.experiment
        if not spec.simulators:
            raise InputError("no simulator to validate", where=str(file), hint="add `simulators: {tracebed: {}}`")
        if gating.baseline is None and spec.baseline:
            gating = replace(gating, baseline=loaded.folder / spec.baseline)
        kept = gating.kept()  # an invalid baseline is reported before the replays
        wanted = chosen("--only", only)
        simulators = wanted.pop("simulator", ())
        points = loaded.selected(wanted)
        suite = load_suite(loaded, points, output, {}, simulators)
        forecast = forecast_suite(suite, output)
    announce(forecast)
    if dry_run:
        return ExitCode.OK
    with locked_folder(output, "experiment"):
        clear_results(output, loaded.experiment.simulators)
        predictions, failed, _ = execute(suite, forecast, output)
        with progress("comparing"):
            validations, incomparable = validate_suite(suite, predictions, output)
        show_failures(incomparable)
        failed |= incomparable
        gate = gating.judge(list(validations.values()), kept)
        with progress("drawing the reports"):
            document = write_results(
                suite, validations, failed, output, gate.inconclusive, gate.findings, case_pages=case_pages
            )
    if as_json:
        print_json(document["schema"], document)
    else:
        _show(validations, output)
    if artifact is not None:
        if failed:
            raise InputError(f"no artifact: the simulator {min(failed)} failed", hint="it needs all verdicts")
        _write_artifact(loaded, points, list(suite.simulators), only, gating, output, artifact)
    files = [file, *([loaded.folder / spec.tolerances] if spec.tolerances else [])]
    return gate.status(list(validations.values()), files, as_json=as_json, failures=failed)


def _write_artifact(
    file: ExperimentFile,
    points: Sequence[Point],
    simulators: Sequence[str],
    only: Sequence[str],
    gating: Gating,
    output: Path,
    artifact: Path,
) -> None:
    """Write the artifact of the verdicts in `output`, with the options on which they depend."""
    from tracebed.api.experiments import Made, write_artifact

    options = [shlex.join(["--only", text]) for text in only]
    options += [f"--inconclusive {gating.inconclusive}"] if gating.inconclusive != "fail" else []
    given = gating.baseline if gating.baseline != file.folder / str(file.experiment.baseline) else None
    with progress(f"writing {artifact.name}, and rebuilding its results"):
        write_artifact(file, output, artifact, Made(points, simulators, options, given))
    emit(f"artifact: {artifact}")


def _show(validations: dict[str, Validation], output: Path) -> None:
    """Print the result of each simulator, and where its report is."""
    from tracebed.cli.comparison import show

    said: set[str] = set()  # the simulators have the real runs, and their warnings, in common
    for name, validation in validations.items():
        show(validation, said)
        said.update(validation.warnings)
        click.echo(f"report: {output / name}.html\n")
