"""`tracebed experiment`: the cells of an experiment, simulated or replayed, and views of their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tracebed.cli.experiments.options import (
    Choices,
    Execution,
    artifact_option,
    choices_options,
    chosen,
    execution_options,
    paper_options,
)
from tracebed.cli.messages import emit
from tracebed.cli.options import check_only, json_option
from tracebed.cli.sections import Sectioned
from tracebed.ground.errors import ExitCode, InputError

OF_SIMULATIONS = ("workers", "dask")
CHOICES = ("sensitivity", "choices", "settings", "figures", "perturb")
PAPER = ("inventory", "repetitions", "speed")
SECTIONS = {
    "Simulated cells": ("logs", *OF_SIMULATIONS),
    "Sensitivity to free choices": CHOICES,
    "Replays of a paper": PAPER,
}


@click.command(cls=Sectioned, sections=SECTIONS)
@click.argument("experiment", required=False, metavar="FILE|NAME")
@click.option(
    "--list", "listing", is_flag=True, help="List the experiments and the recorded real runs that are part of tracebed."
)
@click.option(
    "--show",
    is_flag=True,
    help="Print the experiment file, as a start for one of your own; of the replays of a paper, settings and claims.",
)
@click.option(
    "--ledger",
    is_flag=True,
    help="Print the ledger of a paper, NAME, as a Markdown page, from the studies in the output folder; without NAME,"
    " the counts of all papers.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="KEY=VALUE[,VALUE]",
    help="Restrict the cells to these values of a key; may be repeated.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the cells or the replays, and the statistics of replays that are done; run nothing.",
)
@execution_options
@artifact_option
@choices_options
@paper_options
@json_option
def experiment(
    experiment: str | None,
    listing: bool,
    show: bool,
    ledger: bool,
    only: tuple[str, ...],
    dry_run: bool,
    execution: Execution,
    artifact: Path | None,
    choices: Choices | None,
    paper: dict[str, Any],
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
    """
    from tracebed.cli.experiments import papers, real, simulated
    from tracebed.cli.experiments.ledger import print_page
    from tracebed.cli.experiments.sensitivity import analyze

    if listing:
        check_only(("listing", "as_json"), "--list")
        papers.list_all(as_json)
        return ExitCode.OK
    if ledger:
        check_only(("ledger", "experiment", "output"), "--ledger")
        return print_page(experiment, execution.folder)
    if experiment is None:
        raise InputError("no experiment", hint="name one, or a file; `tracebed experiment --list` has those shipped")
    if show:
        check_only(("show", "experiment"), "--show")
    if papers.is_paper(experiment):
        hint = "they are no cells of a file: `--show` prints their settings"
        check_only(("experiment", "show", "dry_run", "output", "as_json", *PAPER), "the replays of a paper", hint=hint)
        if show:
            click.echo(papers.text_of(experiment), nl=False)
            return ExitCode.OK
        return papers.run(experiment, execution.folder, paper, dry_run=dry_run, as_json=as_json)
    if paper:
        hint = "write testbed, repetitions and speed into the file"
        raise InputError("--inventory, --repetitions and --speed are for experiments of papers", hint=hint)
    from tracebed.api.experiments import load_experiment, logs_of

    file = load_experiment(experiment)
    if show:
        click.echo(file.source.text, nl=False)
        return ExitCode.OK
    if choices is not None and not file.experiment.is_real:
        check_only(("experiment", "logs", "output", "as_json", *OF_SIMULATIONS, *CHOICES), "a sensitivity analysis")
    paths, points = logs_of(file, execution.logs), file.selected(chosen("--only", only))
    if artifact is not None and (file.experiment.is_real or choices is not None or dry_run):
        raise InputError("--report is of simulated cells", hint="with real runs: `tracebed validate --report`")
    if file.experiment.is_real:
        if choices is not None:
            raise InputError("the sensitivity of real runs is not analyzed", hint="leave out the testbed in a copy")
        check_only(("experiment", "only", "dry_run", "logs", "output", "as_json"), "real runs")
        return real.run(file, points, paths, execution.folder, dry_run=dry_run, as_json=as_json)
    if dry_run:
        simulated.list_points(file, points, as_json)
        emit(f"{file.name}: {len(points):,} points; what is equal in all that matters is simulated once")
        return ExitCode.OK
    if choices is not None:
        return analyze(file, choices, execution, paths, as_json)
    return simulated.run(file, points, paths, execution, only, as_json, artifact)
