"""`tracebed validate`: the verdicts on the simulators of an experiment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import click

import tracebed.api as tb
from tracebed.cli.board import Data, copy, data_options, score
from tracebed.cli.console import end_on_signals, print_json, print_table
from tracebed.cli.gate import Gating, Judgment, gate_options, show
from tracebed.cli.groups import Sectioned
from tracebed.cli.messages import emit, progress, warn
from tracebed.cli.options import (
    PATH,
    STORE,
    artifact_option,
    budget_option,
    check_alone,
    chosen,
    gathered,
    given,
    json_option,
    keywords,
    loss_option,
    names_in,
    option,
    output_option,
    seed_option,
    shared,
)
from tracebed.cli.real import announce, execute, show_failures
from tracebed.ground.errors import ExitCode, InputError


@dataclass(frozen=True)
class Fitting:
    """The options of a fit of a simulator."""

    fit: bool = option(help="Validate nothing: fit the `parameters` of a simulator with a `command` to the real runs.")
    loss: Literal["metrics", "jobs"] = shared(loss_option)
    budget: int = shared(budget_option("Number of parameter sets to try in a fit, and as many by random search."))
    seed: int = shared(seed_option)
    workers: int | None = option(
        type=click.IntRange(1), help="Number of simulations of a fit at a time.  [default: the number of cores]"
    )


def fit_simulator(
    file: Path, output: Path, only: Mapping[str, Sequence[str]], fitting: Fitting, *, as_json: bool
) -> None:
    """Fit the parameters of a simulator of an experiment, and print the result."""
    try:
        with progress(f"fitting with {file.name}", total=1.0) as bar:
            how = {name: value for name, value in keywords(fitting).items() if name != "fit"}
            made = tb.fit_simulator(file, output, only=only, on_progress=bar.update, **how)
    except KeyboardInterrupt:
        emit(f"tracebed: the finished simulations are in {output}; the same command continues the fit")
        raise
    if as_json:
        print_json(made.file_schema, made.model_dump(mode="json", exclude={"file_schema"}))
    else:
        show_simulator_fit(made)
        emit(f"calibration: {output / 'calibrated' / f'{made.name}.yaml'}")
    warn_of_fit(made)


def show_simulator_fit(made: tb.SimulatorCalibration) -> None:
    """Print the fitted parameters with their ranges over the cloud, the losses, and the cross-validation."""
    print_table(
        ["parameter", "fitted", "range over the cloud", "identified", "searched"],
        [
            (
                name,
                f"{each.value:.4g}",
                f"{each.low:.4g} to {each.high:.4g}",
                "yes" if each.identified else "no",
                f"{each.range[0]:g} to {each.range[1]:g}, {each.scale}{', integer' * each.integer}",
            )
            for name, each in made.parameters.items()
        ],
    )
    print_table(
        ["loss", "search, fitted", "random, fitted", "search, left out", "random, left out"],
        [
            ("all workloads", _percent(made.search_value), _percent(made.random_value), "-", "-"),
            *(
                (
                    f"without {fold.workload}",
                    _percent(fold.loss_in),
                    _percent(fold.loss_in_random),
                    _percent(fold.loss_out),
                    _percent(fold.loss_out_random),
                )
                for fold in made.cross_validation
            ),
        ],
    )
    emit(
        f"{made.cloud_sets} parameter sets are within {100 * made.tolerance:.3g} % of the smallest loss; "
        f"{made.simulations:,} simulations, {made.failures.simulations:,} failed"
    )
    if not made.cross_validation:
        emit("no cross-validation: it needs real runs of at least two workloads")
    click.echo(made.fitted)


def warn_of_fit(made: tb.SimulatorCalibration) -> None:
    """Print what the fit does not determine."""
    tied = {name for pair in made.tied for name in pair.parameters}
    for name, each in made.parameters.items():
        if each.at_end and name not in tied:  # the end of a range says nothing of two parameters with one effect
            end = each.range[each.at_end == "upper"]
            warn(f"{name} is at the {each.at_end} end of its range, {end:g}: a wider range may fit better")
    for pair in made.tied:
        one, other = pair.parameters
        warn(f"{one} and {other} cannot be told apart: their correlation over the cloud is {pair.correlation:+.2f}")
    if made.without_effect:
        warn(f"no effect on these runs, left at the lower ends: {', '.join(made.without_effect)}")
    if made.random_value is not None and made.random_value < made.search_value:
        warn("the random search found a better set, which is the result: raise --budget")
    if made.failures.simulations:
        warn(f"{made.failures.simulations:,} simulations failed, such as: {made.failures.first}")


def _percent(loss: float | None) -> str:
    return "failed" if loss is None else f"{100 * loss:.3g} %"


@dataclass(frozen=True)
class Cases:
    """What is validated."""

    only: tuple[str, ...] = option(
        metavar="KEY=VALUE[,VALUE]",
        help="Validate only these simulators (simulator=NAME), or cells (policy=easy); may be repeated. With --board: "
        "only these data sets (dataset=NAME).",
    )
    dry_run: bool = option(
        help="Print the forecast, and neither replay nor predict. With --board: make the page again from the scores in "
        "the output folder."
    )
    case_pages: bool = option(
        "--case-pages/--no-case-pages",
        default=True,
        show_default=False,
        help="Write a report for each case too (some seconds a case).",
    )


@click.command(cls=Sectioned, sections={"Fit the parameters of a simulator": Fitting})
@click.argument("file", required=False, type=PATH, metavar="FILE")
@gathered("cases", Cases)
@output_option("Folder of the runs, the verdicts and the reports.", STORE)
@data_options
@gathered("fitting", Fitting)
@gate_options
@artifact_option
@json_option
def validate(
    file: Path | None,
    cases: Cases,
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
    verdicts (verdict.json), a summary (verdict.md), JUnit XML (junit.xml), a baseline (baseline.json), and
    a report per simulator.

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
    if data.recorded is not None:
        check_alone("recorded", ("output", "as_json", "sources"))
        copy(data.recorded, data.sources, output, as_json)
        return ExitCode.OK
    if data.board:
        used = ("file", "only", "dry_run", "output", "as_json", "sources", "baseline", "update_baseline")
        check_alone("board", used)
        end_on_signals()
        files = [file] if file else []
        return score(files, data.sources, cases.only, output, gating, stored=cases.dry_run, as_json=as_json)
    if data.sources:
        raise InputError("--from applies with --recorded NAME or --board", hint="name the real runs, or leave it out")
    if file is None:
        raise InputError("no experiment file", hint="name it, or copy recorded real runs: --recorded NAME")
    end_on_signals()
    if fitting.fit:
        check_alone("fit", ("file", "only", "output", "as_json", *names_in(Fitting)))
        fit_simulator(file, output, chosen("--only", cases.only), fitting, as_json=as_json)
        return ExitCode.OK
    if name := given(names_in(Fitting)):
        raise InputError(f"{name} is an option of a fit", hint="add --fit, or leave it out")
    if artifact is not None and gating.update_baseline is not None:
        hint = "update the baseline first, then write the artifact with --baseline"
        raise InputError("--report does not apply with --update-baseline", hint=hint)
    with progress(f"reading {file.name}"):
        loaded = tb.load_experiment(str(file))
        spec = loaded.experiment
        if not spec.simulators:
            raise InputError("no simulator to validate", where=str(file), hint="add `simulators: {tracebed: {}}`")
        if gating.baseline is None and spec.baseline:
            gating = replace(gating, baseline=loaded.folder / spec.baseline)
        kept = gating.kept()  # an invalid baseline is reported before the replays
        wanted = chosen("--only", cases.only)
        simulators = wanted.pop("simulator", ())
        points = loaded.selected(wanted)
        suite = tb.load_suite(loaded, points, output, {}, simulators)
        forecast = tb.forecast_suite(suite, output)
    announce(forecast)
    if cases.dry_run:
        return ExitCode.OK

    def run() -> tuple[tb.Predictions, dict[str, str]]:
        return execute(suite, forecast, output)[:2]

    judgment: Judgment | None = None

    def judge(validations: tb.Validations, incomparable: Mapping[str, str]) -> tb.Gate:
        nonlocal judgment
        show_failures(incomparable)
        judgment = gating.judge(list(validations.values()), kept)
        return judgment.gate

    validations, failed, document = tb.validate_suite(
        suite, output, run, judge, case_pages=cases.case_pages, on_step=progress
    )
    assert judgment is not None
    if as_json:
        print_json(document["schema"], document)
    else:
        _show(validations, output)
        again = shlex.join(["tracebed", "validate", str(file), "-o", str(output)])
        for name in failed:  # as loud as a verdict
            click.echo(f"failed: {name} has no verdict; to repeat it alone: {again} --only simulator={name}")
    if artifact is not None:
        if failed:
            raise InputError(f"no artifact: the simulator {min(failed)} failed", hint="it needs all verdicts")
        _write_artifact(loaded, points, list(suite.simulators), cases.only, gating, output, artifact)
    files = [file, *([loaded.folder / spec.tolerances] if spec.tolerances else [])]
    return judgment.status(files, as_json=as_json, failures=failed)


def _write_artifact(
    file: tb.ExperimentFile,
    points: Sequence[tb.Point],
    simulators: Sequence[str],
    only: Sequence[str],
    gating: Gating,
    output: Path,
    artifact: Path,
) -> None:
    """Write the artifact of the verdicts in `output`, with the options on which they depend."""
    options = [shlex.join(["--only", text]) for text in only]
    options += [f"--inconclusive {gating.inconclusive}"] if gating.inconclusive != "fail" else []
    given = gating.baseline if gating.baseline != file.folder / str(file.experiment.baseline) else None
    with progress(f"writing {artifact.name}, and rebuilding its results"):
        tb.write_artifact(file, output, artifact, tb.ArtifactFacts(points, simulators, options, given))
    emit(f"artifact: {artifact}")


def _show(validations: tb.Validations, output: Path) -> None:
    """Print the result of each simulator, and where its report is."""
    said: set[str] = set()  # the simulators have the real runs, and their warnings, in common
    for name, validation in validations.items():
        show(validation, said)
        said.update(validation.warnings)
        click.echo(f"report: {output / name}.html\n")
