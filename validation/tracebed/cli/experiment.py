"""`tracebed experiment`: the cells of an experiment, simulated or replayed, and views of their results."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tracebed.api as tb
from tracebed.cli import papers, real
from tracebed.cli.compare import print_gains
from tracebed.cli.console import end_on_signals, explain_falls, print_json, print_table
from tracebed.cli.groups import Sectioned
from tracebed.cli.messages import MessageLevel, emit, progress, warn
from tracebed.cli.options import (
    SPEED,
    STORE,
    artifact_option,
    check_only,
    chosen,
    gathered,
    json_option,
    keywords,
    names_in,
    option,
    output_option,
    shared,
)
from tracebed.ground.display import cell, effect
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.files import locked_folder
from tracebed.ground.registry import one_of

if TYPE_CHECKING:
    import pandas as pd


FOLDER = Path("experiments")
"""The output folder by default."""
PERTURBATIONS = 20
REPETITIONS = 5  # of each of the best cells: a verdict on one case needs five
GAIN = "mean_response_s"
"""The best cells have the largest gain in this figure."""


@dataclass(frozen=True)
class Execution:
    """Where cells come from, where they are computed, and where they go to."""

    logs: tuple[str, ...] = option(
        "--log", metavar="[NAME=]PATH", help="Path of the log of a workload; may be repeated."
    )
    workers: int | None = option(
        type=click.IntRange(1), help="Number of simulations at a time.  [default: the number of cores]"
    )
    dask: str | None = option(
        metavar="ADDRESS", help="Simulate on the workers of a Dask cluster; its scheduler is at tcp://host:8786."
    )
    output: Path | None = shared(
        output_option(
            "The output folder; experiments that share one share simulated cells.  [default: experiments]",
            STORE,
            required=False,
        )
    )

    @property
    def folder(self) -> Path:
        """The output folder."""
        return self.output or FOLDER

    def pool(self) -> tb.Pool:
        """Return the workers. Raises InputError if the options contradict each other."""
        if self.dask is None:
            return tb.LocalPool(self.workers)
        if self.workers is not None:
            raise InputError("--workers is given with --dask", hint="Dask has the workers that it was started with")
        return tb.DaskPool(self.dask)


@dataclass(frozen=True)
class Choices:
    """What a sensitivity analysis changes, in place of the section `sensitivity` of the file where given."""

    sensitivity: bool = option(
        help="Change the free choices of the file one at a time, and print the effects, largest first."
    )
    choices: tuple[str, ...] = option(
        *("-x", "--choice"),
        metavar="NAME=VALUE[,VALUE]",
        help="Free choice with other values, in place of those of the file; may be repeated.",
    )
    settings: tuple[str, ...] = option(
        *("-b", "--base"),
        metavar="NAME=VALUE",
        help="Value of a choice at the base; may be repeated.",
    )
    figures: tuple[str, ...] = option("--figure", metavar="METRIC", help="Figure to print and plot; may be repeated.")
    perturb: int | None = option(
        type=click.IntRange(2, 10_000),
        metavar="N",
        help=f"Number of perturbed inputs for the base and for each changed choice.  [default: {PERTURBATIONS}]",
    )

    def __post_init__(self) -> None:
        """Raise InputError if only details of an analysis are given."""
        if not self.asked and (self.settings or self.figures or self.perturb):
            raise InputError("-b, --figure and --perturb are for a sensitivity analysis", hint="add --sensitivity")

    @property
    def asked(self) -> bool:
        """Whether the sensitivity is analyzed."""
        return self.sensitivity or bool(self.choices)

    @property
    def runs(self) -> int:
        """Number of perturbed inputs."""
        return self.perturb or PERTURBATIONS


@dataclass(frozen=True)
class Paper:
    """The settings of replays, of a paper or of the best cells of a grid; None: those of the paper."""

    inventory: str | None = option(
        metavar="NAME|FILE",
        help="The nodes.  [default: the cores of this machine] With a FILE of simulated cells: replay the two cells "
        "with the largest gain in the mean response, and print the simulated and the real gain.",
    )
    repetitions: int | None = option(
        type=click.IntRange(1, 1000),
        help="Replays of each scenario, or perturbed simulations.  [default: 3; of the best cells: 5]",
    )
    speed: float | None = option(type=SPEED, help="Trace seconds per wall second.")


@dataclass(frozen=True)
class Actions:
    """What is done with an experiment, and with which of its cells."""

    listing: bool = option("--list", help="List the experiments and the recorded real runs that are part of tracebed.")
    show: bool = option(
        help="Print the experiment file, as a start for one of your own; of the replays of a paper, settings and "
        "claims."
    )
    ledger: bool = option(
        help="Print the ledger of a paper, NAME, as a Markdown page, from the studies in the output folder; without "
        "NAME, the counts of all papers."
    )
    only: tuple[str, ...] = option(
        metavar="KEY=VALUE[,VALUE]", help="Restrict the cells to these values of a key; may be repeated."
    )
    dry_run: bool = option(
        help="Print the cells or the replays, and the statistics of replays that are done; run nothing."
    )


OF_SIMULATIONS = ("workers", "dask")
SECTIONS = {
    "Simulated cells": ("logs", *OF_SIMULATIONS),
    "Sensitivity to free choices": Choices,
    "Replays of a paper, or of the best simulated cells": Paper,
}


@click.command(cls=Sectioned, sections=SECTIONS)
@click.argument("experiment", required=False, metavar="FILE|NAME")
@gathered("actions", Actions)
@gathered("execution", Execution)
@artifact_option
@gathered("choices", Choices)
@gathered("paper", Paper)
@json_option
def experiment(
    experiment: str | None,
    actions: Actions,
    execution: Execution,
    artifact: Path | None,
    choices: Choices,
    paper: Paper,
    as_json: bool,
) -> ExitCode:
    """Run the cells of an experiment: every workload under every policy and setting, simulated or replayed.

    FILE is a YAML file, or NAME an experiment that is part of tracebed. Without a testbed in the file, each cell is
    simulated once, and the table, the plots and the ledger of published figures are written. With a testbed, each cell
    is replayed several times in random order, and predicted by the simulators in the file. The same command continues
    an experiment that was stopped. `tracebed validate` judges the predictions.

    \b
    Example:
      tracebed experiment kassel-knl --log cori-knl/ -o knl
      tracebed experiment mine.yaml --only policy=easy,pref --dry-run
      tracebed experiment kassel-knl --log cori-knl/ --sensitivity -o knl
      tracebed experiment kassel --ledger -o knl
      tracebed experiment mine.yaml --inventory emulated-4 --speed 400 -o mine
    """
    end_on_signals()  # a signal must end the workers and release what they share
    if actions.listing:
        check_only(("listing", "as_json"), "--list")
        papers.list_all(as_json)
        return ExitCode.OK
    if actions.ledger:
        check_only(("ledger", "experiment", "output"), "--ledger")
        return papers.print_page(experiment, execution.folder)
    if experiment is None:
        raise InputError("no experiment", hint="name one, or a file; `tracebed experiment --list` has those shipped")
    if actions.show:
        check_only(("show", "experiment"), "--show")
    settings = keywords(paper)
    if papers.is_paper(experiment):
        hint = "they are no cells of a file: `--show` prints their settings"
        check_only(
            ("experiment", "show", "dry_run", "logs", "output", "as_json", *names_in(Paper)),
            "the replays of a paper",
            hint=hint,
        )
        if actions.show:
            click.echo(papers.text_of(experiment), nl=False)
            return ExitCode.OK
        return papers.run(
            experiment, execution.folder, settings, execution.logs, dry_run=actions.dry_run, as_json=as_json
        )
    file = tb.load_experiment(experiment)
    if settings and (paper.inventory is None or file.experiment.is_real or choices.asked):
        hint = "for real cells, write testbed, repetitions and speed into the file"
        what = (
            "--inventory, --repetitions and --speed are for experiments of papers, or replay the best simulated cells"
        )
        raise InputError(what, hint=hint)
    if actions.show:
        click.echo(file.source.text, nl=False)
        return ExitCode.OK
    if settings and as_json:
        raise InputError("--json does not apply with --inventory", hint="`tracebed compare --by policy --json` has it")
    if choices.asked and not file.experiment.is_real:
        check_only(
            ("experiment", "logs", "output", "as_json", *OF_SIMULATIONS, *names_in(Choices)), "a sensitivity analysis"
        )
    paths, points = tb.logs_of(file, execution.logs), file.selected(chosen("--only", actions.only))
    if artifact is not None and (file.experiment.is_real or choices.asked or actions.dry_run):
        raise InputError("--report is of simulated cells", hint="with real runs: `tracebed validate --report`")
    if file.experiment.is_real:
        if choices.asked:
            raise InputError("the sensitivity of real runs is not analyzed", hint="leave out the testbed in a copy")
        check_only(("experiment", "only", "dry_run", "logs", "output", "as_json"), "real runs")
        return real.run(file, points, paths, execution.folder, dry_run=actions.dry_run, as_json=as_json)
    if actions.dry_run:
        for name in dict.fromkeys(point.workload for point in points):
            source = file.experiment.workloads[name].file
            if source is not None and not (path := file.folder / source).exists():
                raise file.source.error(f"file {path} does not exist", "workloads", name, "file")
        real.list_points(file, points, as_json)
        emit(f"{file.name}: {len(points):,} points; what is equal in all that matters is simulated once")
        return ExitCode.OK
    if choices.asked:
        return _analyze(file, choices, execution, paths, as_json)
    return _run(file, points, paths, execution, actions.only, as_json, artifact, paper)


def _run(
    file: tb.ExperimentFile,
    points: Sequence[tb.Point],
    logs: Mapping[str, Path],
    execution: Execution,
    only: Sequence[str],
    as_json: bool,
    artifact: Path | None,
    paper: Paper,
) -> ExitCode:
    """Simulate the cells of an experiment that are not kept, write the views, and print the means.

    `only` are the values of `--only`, for the ledger and the artifact. `artifact` is the folder of an artifact.
    """
    pool, folder = execution.pool(), execution.folder
    # A mistake in the inventory must not be found only after the simulations.
    inventory = None if paper.inventory is None else tb.inventory(paper.inventory, facts_follow=True)
    command = papers.command_of(file.argument, logs, only)
    with locked_folder(folder, "experiment"):
        with progress(f"preparing {', '.join(file.experiment.workloads)}"):
            plan = tb.plan_grid(file, points, folder, logs)
        emit(f"{file.name}: {len(points):,} points, {plan.distinct:,} cells, {len(plan.todo):,} of them to compute")
        try:
            with pool:
                with progress(f"simulating {file.name}", total=len(plan.todo)) as bar:
                    done = tb.run_grid(file, plan, folder, pool, lambda done, total: bar.update(done))
                status = _finish(file, plan, done, execution, pool, command, as_json)
        except KeyboardInterrupt:
            emit(f"tracebed: the computed cells are in {folder}; the same command continues the experiment")
            raise
        if artifact is not None:
            _write_artifact(file, plan, folder, artifact, only, logs)
        if inventory is None or status is not ExitCode.OK:
            return status
        return _replay_best(file, plan, done.table, paper, inventory, folder / file.name / "replayed")


def _replay_best(
    file: tb.ExperimentFile,
    plan: tb.GridPlan,
    table: pd.DataFrame,
    paper: Paper,
    nodes: tb.Inventory,
    folder: Path,
) -> ExitCode:
    """Replay the cells with the largest simulated gain, and print, draw and tabulate the gains. Returns the status."""
    best = tb.best_points(file.experiment, [*plan.cells], table, GAIN)
    keys = [key for key, values in file.experiment.axes.items() if key in ("workload", "policy") or len(values) > 1]
    cell_text = ", ".join(f"{key} {tb.value_text(getattr(best[1], key))}" for key in keys)
    emit(f"replays of the largest gain in {tb.metric_definitions()[GAIN].label}: {cell_text}; and {best[0].policy}")
    cell = plan.cells[best[1]]
    wide = int(min(tb.read(cell.workload).column("nodes").max(), len(cell.machine.nodes)))
    if wide > len(nodes.nodes):
        what = f"{nodes.name} has {len(nodes.nodes)} nodes, and the largest job of {best[1].workload} {wide}"
        raise InputError(what, hint="give an inventory with as many nodes, or scale the workload: `scale` in the file")
    workload = folder.with_name("replayed-workloads") / f"{best[1].workload}.parquet"  # named as in the tables
    workload.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(cell.workload, workload)
    name = str(paper.inventory)
    inventory = str(Path(name).resolve()) if Path(name).is_file() else name
    testbed = {"inventory": inventory} | ({"speed": paper.speed} if paper.speed is not None else {})
    repetitions = paper.repetitions or REPETITIONS
    keys_of_replays = {"testbed": testbed, "repetitions": repetitions, "repeat_excluded": -(-repetitions // 2)}
    real_file = file.replayed(best, workload, keys_of_replays)
    status = real.run(real_file, real_file.selected({}), {}, folder, dry_run=False, as_json=False)
    if status is ExitCode.USAGE:
        return status
    gains = tb.gains([folder], [folder])
    tb.write_gains(gains, folder / "gains.csv")
    for each in gains:
        tb.save_pictures(each, folder / "figures")
        print_gains(each)
    emit(f"{folder / 'gains.csv'}, .tex; {folder / 'figures'}")
    return status


def _write_artifact(
    file: tb.ExperimentFile,
    plan: tb.GridPlan,
    folder: Path,
    artifact: Path,
    only: Sequence[str],
    logs: Mapping[str, Path],
) -> None:
    """Write the artifact of an experiment with the time of its cells."""
    cells = {cell.identity: cell for cell in plan.cells.values()}
    kept = [cell for cell in cells.values() if tb.is_kept(cell, folder)]
    seconds = sum(tb.read_cell(cell, folder).seconds for cell in kept)
    options = [shlex.join(["--only", text]) for text in only]
    with progress(f"writing {artifact.name}, and rebuilding its results"):
        claims = tb.claim_texts(tb.Ledger.load(folder / file.name / "ledger.json"))
        facts = tb.ArtifactFacts([*plan.cells], (), options, None, seconds, logs, claims)
        tb.write_artifact(file, folder, artifact, facts)
    emit(f"artifact: {artifact}")


def _finish(
    file: tb.ExperimentFile,
    plan: tb.GridPlan,
    done: tb.GridResult,
    execution: Execution,
    pool: tb.Pool,
    command: str,
    as_json: bool,
) -> ExitCode:
    """Write plots, the ledger and differences, and print results, warnings and failures. Local workers draw."""
    folder = execution.folder
    own = folder / file.name
    ledger = tb.ledger_of_grid(file, done, command)
    against = tb.against_first(file.experiment, done.table) if len(done.table) and tb.is_perturbed(done.table) else {}
    drawn: list[Path] = []
    ledger.write(own)
    differing = tb.differences_frame(file.experiment, against)
    shown = [tb.differences_table(file.experiment, done.table, against)] if against else []
    tb.write_csv(differing, own / "differences.csv", *shown)

    if len(done.table):
        jobs, here = tb.KeptJobs(plan.cells, folder), None if execution.dask else pool
        with progress("drawing"):
            drawn, left_out = tb.draw_plots(file, done.table, jobs, own / "plots", here)
        for reason in left_out:
            emit(f"tracebed: {reason}")
    for warning, count in done.warnings.items():
        warn(f"{warning} (in {count:,} cells)")
    if as_json:
        print_json(
            "tracebed-simulations/2",
            _facts(file, plan, done, ledger, drawn, own) | {"differences": differing.to_dict("records")},
        )
    elif len(done.table):
        _print(done.table)
        _print_differences(file, done.table, against)
        _tell_alone(file, done.table, against)
        papers.print_ledger(ledger)
        if not tb.is_perturbed(done.table) and len(file.experiment.policies) > 1:
            emit("significance is unknown: `perturbations: 20` in the file shows which differences are significant")
        emit(f"{own / 'table.parquet'}, .csv, .tex; {len(drawn)} plots")
    for reason, points in done.failed.items():
        emit(
            f"tracebed: {reason}: no row for {len(points):,} points, the first {_point_text(points[0])}",
            MessageLevel.ERROR,
        )
    return ExitCode.USAGE if done.failed else ExitCode.OK


def _facts(
    file: tb.ExperimentFile, plan: tb.GridPlan, done: tb.GridResult, ledger: tb.Ledger, drawn: Sequence[Path], own: Path
) -> dict[str, Any]:
    return {
        "experiment": file.name,
        "output": str(own),
        "points": len(plan.cells),
        "cells": plan.distinct,
        "computed": done.computed,
        "failed": {reason: [asdict(point) for point in points] for reason, points in done.failed.items()},
        "means": tb.means(done.table).to_dict("records") if len(done.table) else [],
        "ledger": [row.model_dump(mode="json") for row in ledger.rows],
        "plots": [str(path) for path in drawn],
    }


def _print(table: pd.DataFrame) -> None:
    """Print means over seeds, without keys of a single value.

    If the workload was perturbed, a mean has the interval over the changes.
    """
    shown = tb.means_table(table, spread=False)
    print_table(shown.heads[:-1], [row[:-1] for row in shown.rows], keys=shown.keys)
    runs = table.groupby([*tb.GRID_KEYS, "window"], dropna=False).size()
    over = "-".join(dict.fromkeys(f"{each:,}" for each in (runs.min(), runs.max())))
    if table["perturbation"].nunique() > 1:
        click.echo(f"means over {over} seeds and perturbations (from, to: the middle 95 % of these runs)")
    elif runs.max() > 1:
        click.echo(f"means over {over} seeds")
    averaged = tb.means(table)
    if averaged[[*tb.RATES]].isna().all(axis=None):
        _tell_unequal_work(averaged)


def _tell_unequal_work(averaged: pd.DataFrame) -> None:
    """Warn if policies finish different jobs: waits fall where jobs are rejected, and no policy gains by that."""
    same = [key for key in [*tb.GRID_KEYS, "window"] if key != "policy"]
    unequal = [
        rows for _, rows in averaged.groupby(same, sort=False, dropna=False) if rows["jobs_finished"].nunique() > 1
    ]
    if not unequal:
        return
    rows = unequal[0]
    columns = (rows[name] for name in ("policy", "jobs_finished", "jobs"))
    counts = ", ".join(f"{policy} {cell(done)} of {cell(jobs)}" for policy, done, jobs in zip(*columns, strict=True))
    others = f" (and at {len(unequal) - 1:,} more points)" if len(unequal) > 1 else ""
    warn(f"figures are over the jobs that finish, and policies finish different jobs: {counts}{others}")


def _print_differences(
    file: tb.ExperimentFile, table: pd.DataFrame, against: Mapping[tuple[Any, ...], tb.Against]
) -> None:
    """Print the differences of the policies from the first one, over the same seeds and changes."""
    if not against:
        return
    shown = tb.differences_table(file.experiment, table, against)
    what = "difference of the means (the middle 95 % of the pairs of runs)"
    click.echo(f"\nagainst {file.experiment.policies[0].name}, over the same seeds and changes: {what}")
    print_table(shown.heads[:-1], [row[:-1] for row in shown.rows], keys=shown.keys)
    every = [found.differences for found in against.values()]
    explain_falls((found[name].low, found[name].base) for found in every for name in tb.SHOWN if name in found)


def _tell_alone(file: tb.ExperimentFile, table: pd.DataFrame, against: Mapping[tuple[Any, ...], tb.Against]) -> None:
    """Print how many points of other policies have no point of the first one that they can be compared with."""
    first = file.experiment.policies[0].name
    known = {at[: len(tb.GRID_KEYS)] for at in against}
    rows = table[table["policy"] != first][tb.GRID_KEYS].drop_duplicates().to_dict("records")
    points = [{key: None if value != value else value for key, value in row.items()} for row in rows]
    alone = [point for point in points if tuple(point.values()) not in known]
    if against and alone:
        named = ", ".join(f"{key} {tb.value_text(value)}" for key, value in alone[0].items() if value is not None)
        emit(f"tracebed: {len(alone):,} points have no point of {first} to compare with, the first {named}")


def _point_text(point: tb.Point) -> str:
    return ", ".join(f"{key} {tb.value_text(value)}" for key, value in asdict(point).items())


def _analyze(
    file: tb.ExperimentFile, asked: Choices, execution: Execution, logs: Mapping[str, Path], as_json: bool
) -> ExitCode:
    """Change one free choice of an experiment at a time, and print the effects, largest first.

    The base and each change are simulated with the same perturbed inputs. Base, choices and figures are those of the
    section `sensitivity` of the file, unless options give others.
    """
    spec = file.experiment.sensitivity
    wanted: dict[str, list[Any]] = {
        name: [_value(value) for value in values] for name, values in chosen("-x", asked.choices).items()
    } or spec.choices
    if not wanted:
        raise InputError("no free choice", where=file.source.where, hint="give one: -x interval_s=10,60")
    base = spec.base | {name: _value(values[-1]) for name, values in chosen("-b", asked.settings).items()}
    shown = _known(asked.figures) or spec.figures
    pool, folder = execution.pool(), execution.folder
    with locked_folder(folder, "experiment"):
        with progress(f"preparing {file.name}"):
            prepared = tb.analysis(file, base, wanted, asked.runs, folder, logs)
        todo = len(prepared.plan.todo)
        changes = f"{len(prepared.changed)} changes, {asked.runs} perturbed inputs each"
        emit(f"{file.name}: {changes}, {todo:,} cells to compute")
        with pool, progress(f"simulating {file.name}", total=todo) as bar:
            found = tb.measure(prepared, folder, pool, lambda done, total: bar.update(done))
        return _finish_analysis(prepared, found, shown, folder / file.name, as_json)


def _value(text: str) -> Any:
    """Return the value of a text, as in an experiment file: a number, a truth value, or text."""
    from tracebed.ground.yaml_file import YamlFile

    return YamlFile.parse(text, text, hint="write a value as in an experiment file").raw


def _known(figures: Sequence[str]) -> list[str]:
    for name in figures:
        one_of("metric", name, tb.metric_definitions())
    return list(figures)


def _finish_analysis(
    asked: tb.Analysis, found: tb.Sensitivity, shown: Sequence[str], own: Path, as_json: bool
) -> ExitCode:
    """Draw the plots, and print the effects, warnings and failures."""
    table = found.table[found.table["figure"].isin(shown)]
    with progress("drawing"):
        printed = {name: asked.printed(name) for name in shown}
        drawn = tb.draw_tornado(table, printed, f"{asked.file.name}: {asked.about}", own / "plots")
    for warning, count in found.warnings.items():
        warn(f"{warning} (in {count:,} cells)")
    if as_json:
        facts = {
            "experiment": asked.file.name,
            "output": str(own),
            "base": asked.settings,
            "runs": asked.runs,
            "printed": {name: asked.printed(name) for name in shown},
            "effects": table.to_dict("records"),
            "failed": found.failed,
            "plots": [str(path) for path in drawn],
        }
        print_json("tracebed-sensitivity/1", facts)
    else:
        for name in shown:
            _print_effects(table[table["figure"] == name], asked)
        emit(f"{own / 'sensitivity.csv'}; {len(drawn)} plots")
    for label, reason in found.failed.items():
        emit(f"tracebed: {label}: {reason}", MessageLevel.ERROR)
    return ExitCode.USAGE if found.failed else ExitCode.OK


def _print_effects(rows: Any, asked: tb.Analysis) -> None:
    """Print the effects on one figure."""
    if not len(rows):
        return
    first = rows.iloc[0]
    band = f"{cell(first['band_low'])} to {cell(first['band_high'])}"
    printed = "".join(f", printed {cell(value)}" for value in asked.printed(first["figure"]))
    click.echo(
        f"\n{tb.metric_definitions()[first['figure']].title}: {cell(first['base'])} ({band}){printed}; {asked.about}"
    )
    print_table(
        ["choice", "base", "changed to", "figure", "effect", "found"],
        [
            [
                *(row[key] for key in ("choice", "base_value", "value", "changed")),
                effect(row["change"], row["low"], row["high"], row["base"]),
                row["found"],
            ]
            for row in rows.to_dict("records")
        ],
        keys=3,
    )
    explain_falls(zip(rows["low"], rows["base"], strict=True))
