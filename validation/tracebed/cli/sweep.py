"""`tracebed sweep`: a study, that is a grid of simulations with a table, plots and published figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.grids import Grid, chosen, grid_options
from tracebed.cli.messages import progress, say, warn
from tracebed.cli.options import json_option
from tracebed.display import cell
from tracebed.errors import ExitCode, InputError

if TYPE_CHECKING:
    import pandas as pd

    from tracebed.validation.accidents import Difference
    from tracebed.validation.experiments.experiment import Point
    from tracebed.validation.experiments.file import StudyFile
    from tracebed.validation.experiments.simulated.grid import Plan, Swept

SHOWN = ["mean_response_s", "mean_run_s", "mean_wait_s", "mean_slowdown_ref", "makespan_s", "utilization"]
RATES = ["acceptance_rate", "accepted_cancel_rate", "in_time_rate"]
"""Shown in place of them if jobs have deadlines."""
"""Figures of the printed table; the files have all."""


@click.command()
@click.argument("study", required=False, metavar="STUDY")
@click.option("--list", "listing", is_flag=True, help="List the studies that are part of tracebed.")
@click.option("--show", is_flag=True, help="Print the study file, as a start for one of your own.")
@click.option(
    "--only",
    multiple=True,
    metavar="KEY=VALUE[,VALUE]",
    help="Restrict the grid to these values of a key; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="List the points of the grid and compute nothing.")
@grid_options
@json_option
def sweep(
    study: str | None,
    listing: bool,
    show: bool,
    only: tuple[str, ...],
    dry_run: bool,
    grid: Grid,
    as_json: bool,
) -> ExitCode:
    """Compute a study: simulate every point of a grid once, and write a table, plots and the published figures.

    STUDY is a YAML file, or the name of a study that is part of tracebed. The same command resumes a sweep that was
    stopped. --show prints a study to copy.

    \b
    Example:
      tracebed sweep kassel-knl --log cori-knl/ -o sweeps
      tracebed sweep study.yaml --only policy=easy,pref --only share=0.2 --dry-run
    """
    from tracebed.validation.experiments.file import load_study
    from tracebed.validation.experiments.workloads import logs_of

    if listing:
        _list()
        return ExitCode.OK
    if study is None:
        raise InputError("no study", hint="name one, or a file; `tracebed sweep --list` has those that are shipped")
    file = load_study(study)
    if show:
        click.echo(file.source.text, nl=False)
        return ExitCode.OK
    paths, points = logs_of(file, grid.logs), file.selected(chosen("--only", only))
    if dry_run:
        _dry_run(file, points, as_json)
        return ExitCode.OK
    workers_of = grid.pool()
    folder = grid.folder

    from tracebed.files import locked_folder
    from tracebed.validation.experiments.simulated import grid as sweeping

    with locked_folder(folder, "sweep", mark="cells"):
        with progress(f"preparing {', '.join(file.study.workloads)}"):
            plan = sweeping.plan(file, points, folder, paths)
        say(f"{file.name}: {len(points):,} points, {plan.distinct:,} cells, {len(plan.todo):,} of them to compute")
        try:
            with workers_of, progress(f"sweeping {file.name}", total=len(plan.todo)) as bar:
                done = sweeping.sweep(file, plan, folder, workers_of, lambda done, total: bar.update(done))
        except KeyboardInterrupt:
            say(f"tracebed: the computed cells are in {folder}; the same command continues the sweep")
            raise
        return _finish(file, plan, done, folder, as_json)


def _finish(file: StudyFile, plan: Plan, done: Swept, folder: Path, as_json: bool) -> ExitCode:
    """Write plots, published figures and differences, and print results, warnings and failures."""
    import pandas as pd

    from tracebed.files import replacing
    from tracebed.validation.experiments.simulated import store
    from tracebed.validation.experiments.views import plots
    from tracebed.validation.experiments.views.published import against_first, beside, is_shaken

    own = folder / file.name
    held = beside(file.study, done.table) if len(done.table) else None
    against = against_first(file.study, done.table) if len(done.table) and is_shaken(done.table) else {}
    drawn: list[Path] = []
    if held is not None and len(held):
        with replacing(own / "published.csv") as stream:
            held.to_csv(stream, index=False)
    differing = _records(file, against)
    (own / "differences.csv").unlink(missing_ok=True)
    if differing:
        with replacing(own / "differences.csv") as stream:
            pd.DataFrame(differing).to_csv(stream, index=False)

    def jobs(point: Point) -> pd.DataFrame | None:
        cell = plan.cells.get(point)
        return store.jobs_of(cell, folder) if cell is not None and store.has_jobs(cell, folder) else None

    if len(done.table):
        with progress("drawing"):
            drawn, left_out = plots.draw(file, done.table, jobs, own / "plots")
        for reason in left_out:
            say(f"tracebed: {reason}")
    for warning, count in done.warnings.items():
        warn(f"{warning} (in {count:,} cells)")
    if as_json:
        print_json("tracebed-sweep/1", _facts(file, plan, done, held, drawn, own) | {"differences": differing})
    elif len(done.table):
        _print(done.table, held)
        _print_differences(file, against)
        if not is_shaken(done.table) and ((held is not None and len(held)) or len(file.study.policies) > 1):
            say("accidents are unknown: `shake: 20` in the study shows which differences they explain")
        say(f"{own / 'table.parquet'}, .csv; {len(drawn)} plots")
    for reason, points in done.failed.items():
        say(f"tracebed: {reason}: no row for {len(points):,} points, the first {_spelt(points[0])}")
    return ExitCode.USAGE if done.failed else ExitCode.OK


def _facts(
    file: StudyFile, plan: Plan, done: Swept, held: pd.DataFrame | None, drawn: Sequence[Path], own: Path
) -> dict[str, Any]:
    from tracebed.validation.experiments.views.published import means

    return {
        "study": file.name,
        "output": str(own),
        "points": len(plan.cells),
        "cells": plan.distinct,
        "computed": done.computed,
        "failed": {reason: [asdict(point) for point in points] for reason, points in done.failed.items()},
        "means": means(done.table).to_dict("records") if len(done.table) else [],
        "published": [] if held is None else held.to_dict("records"),
        "plots": [str(path) for path in drawn],
    }


def _print(table: pd.DataFrame, held: pd.DataFrame | None) -> None:
    """Print means over seeds, without keys of a single value, and the published figures.

    If the workload was shaken, a mean has the interval over the changes.
    """
    from tracebed.validation.experiments.views.published import GROUP, intervals, means
    from tracebed.validation.metrics import all_metrics

    averaged = means(table)
    keys = [key for key in [*GROUP, "window"] if key == "policy" or averaged[key].nunique(dropna=False) > 1]
    figures = RATES if averaged[RATES].notna().any(axis=None) else SHOWN
    columns = [*keys, *(all_metrics()[name].title for name in figures)]
    shown = averaged[[*keys, *figures]].astype(object)
    if table["shake"].nunique() > 1:
        ranges = intervals(table, figures)
        for name in figures:
            sides = zip(shown[name], ranges[f"{name}_low"], ranges[f"{name}_high"], strict=True)
            shown[name] = [f"{cell(value)} ({cell(low)} to {cell(high)})" for value, low, high in sides]
    print_table(columns, shown.to_numpy(dtype=object).tolist(), spare=columns[-2:])
    if held is not None and len(held):
        click.echo("")
        columns = ["published", "of", "window", "printed", "ours", "difference", "note"]
        rows = [
            [
                all_metrics()[row["figure"]].title,
                *(row[key] for key in ("at", "window", "published", "ours")),
                _held(row),
                row["note"],
            ]
            for row in held.to_dict("records")
        ]
        print_table(columns, rows, spare=("note",))


def _held(row: Mapping[Any, Any]) -> str:
    """Return the difference from a published figure as text, with the interval of our figure if there is one."""
    text = f"{row['difference']:+.1%}"
    if row["differ"] is None:
        return text
    return f"{'' if row['differ'] else 'accident: '}{text} (ours {cell(row['low'])} to {cell(row['high'])})"


def _records(file: StudyFile, against: Mapping[tuple[Any, ...], Mapping[str, Difference]]) -> list[dict[str, Any]]:
    """Return the differences of the policies from the first one: a row per point, window and metric."""
    from tracebed.validation.experiments.views.published import GROUP

    first = {"against": file.study.policies[0].name}
    return [
        {**dict(zip([*GROUP, "window"], at, strict=True)), **first, "figure": name, **difference.to_json()}
        for at, found in against.items()
        for name, difference in found.items()
    ]


def _print_differences(file: StudyFile, against: Mapping[tuple[Any, ...], Mapping[str, Difference]]) -> None:
    """Print the differences of the policies from the first one, over the same seeds and changes."""
    from tracebed.cli.shaking import change
    from tracebed.validation.experiments.views.published import GROUP
    from tracebed.validation.metrics import all_metrics

    if not against:
        return
    keys = [*GROUP, "window"]
    shown = [place for place, key in enumerate(keys) if key == "policy" or len({at[place] for at in against}) > 1]
    rows = [
        [*(_cell(at[place]) for place in shown), *(change(found.get(name)) for name in SHOWN)]
        for at, found in against.items()
    ]
    click.echo(f"\nagainst {file.study.policies[0].name}, over the same seeds and changes")
    print_table([*(keys[place] for place in shown), *(all_metrics()[name].title for name in SHOWN)], rows)


def _dry_run(file: StudyFile, points: Sequence[Point], as_json: bool) -> None:
    rows = [asdict(point) for point in points]
    if as_json:
        print_json("tracebed-grid/1", {"study": file.name, "points": len(points), "grid": rows})
        return
    keys = [key for key in rows[0] if key in ("workload", "policy") or len({str(row[key]) for row in rows}) > 1]
    print_table(keys, [[_cell(row[key]) for key in keys] for row in rows])
    say(f"{file.name}: {len(points):,} points; what is equal in all that matters is simulated once")


def _cell(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value)


def _spelt(point: Point) -> str:
    return ", ".join(f"{key} {_cell(value)}" for key, value in asdict(point).items())


def _list() -> None:
    import textwrap

    from tracebed.validation.experiments.file import load_study, names

    for name in names():
        click.echo(f"{name:16}  {textwrap.shorten(load_study(name).study.about, 100, placeholder=' ...')}")
