"""The simulated cells of an experiment: their computation, and the tables of their means and of differences."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.experiments.ledger import print_ledger
from tracebed.cli.experiments.options import Execution
from tracebed.cli.messages import MessageLevel, emit, progress, warn
from tracebed.ground.display import cell
from tracebed.ground.errors import ExitCode

if TYPE_CHECKING:
    import pandas as pd

    from tracebed.api.experiments import Against, ExperimentFile, GridPlan, GridResult, Ledger, Point, Pool

SHOWN = ["mean_response_s", "mean_run_s", "mean_wait_s", "mean_slowdown_ref", "makespan_s", "utilization"]
RATES = ["acceptance_rate", "accepted_cancel_rate", "in_time_rate"]
"""Shown in place of them if jobs have deadlines."""
"""Figures of the printed table; the files have all."""


def run(
    file: ExperimentFile,
    points: Sequence[Point],
    logs: Mapping[str, Path],
    execution: Execution,
    only: Sequence[str],
    as_json: bool,
    artifact: Path | None,
) -> ExitCode:
    """Simulate the cells of an experiment that are not kept, write the views, and print the means.

    `only` are the values of `--only`, for the ledger and the artifact. `artifact` is the folder of an artifact.
    """
    from tracebed.api.experiments import grid
    from tracebed.cli.experiments.ledger import command_of
    from tracebed.ground.files import locked_folder

    pool, folder = execution.pool(), execution.folder
    command = command_of(file.argument, logs, only)
    with locked_folder(folder, "experiment"):
        with progress(f"preparing {', '.join(file.experiment.workloads)}"):
            plan = grid.plan(file, points, folder, logs)
        emit(f"{file.name}: {len(points):,} points, {plan.distinct:,} cells, {len(plan.todo):,} of them to compute")
        try:
            with pool:
                with progress(f"simulating {file.name}", total=len(plan.todo)) as bar:
                    done = grid.run(file, plan, folder, pool, lambda done, total: bar.update(done))
                status = _finish(file, plan, done, execution, pool, command, as_json)
        except KeyboardInterrupt:
            emit(f"tracebed: the computed cells are in {folder}; the same command continues the experiment")
            raise
        if artifact is not None:
            _write_artifact(file, plan, folder, artifact, only, logs)
        return status


def _write_artifact(
    file: ExperimentFile, plan: GridPlan, folder: Path, artifact: Path, only: Sequence[str], logs: Mapping[str, Path]
) -> None:
    """Write the artifact of an experiment with the time of its cells."""
    from tracebed.api.experiments import Ledger, Made, cell_store, claim_texts, write_artifact

    cells = {cell.identity: cell for cell in plan.cells.values()}
    kept = [cell for cell in cells.values() if cell_store.is_kept(cell, folder)]
    seconds = sum(cell_store.read(cell, folder).seconds for cell in kept)
    options = [shlex.join(["--only", text]) for text in only]
    claims = claim_texts(Ledger.load(folder / file.name / "ledger.json"))
    with progress(f"writing {artifact.name}, and rebuilding its results"):
        write_artifact(file, folder, artifact, Made([*plan.cells], (), options, None, seconds, logs, claims))
    emit(f"artifact: {artifact}")


def _finish(
    file: ExperimentFile,
    plan: GridPlan,
    done: GridResult,
    execution: Execution,
    pool: Pool,
    command: str,
    as_json: bool,
) -> ExitCode:
    """Write plots, the ledger and differences, and print results, warnings and failures. Local workers draw."""
    import pandas as pd

    from tracebed.api.experiments import against_first, is_perturbed, ledger_of_grid, plots
    from tracebed.api.experiments import cell_store as store
    from tracebed.ground.files import replacing

    folder = execution.folder
    own = folder / file.name
    ledger = ledger_of_grid(file, done, command)
    against = against_first(file.experiment, done.table) if len(done.table) and is_perturbed(done.table) else {}
    drawn: list[Path] = []
    ledger.write(own)
    differing = _records(file, against)
    (own / "differences.csv").unlink(missing_ok=True)
    if differing:
        with replacing(own / "differences.csv") as stream:
            pd.DataFrame(differing).to_csv(stream, index=False)

    if len(done.table):
        jobs, here = store.KeptJobs(plan.cells, folder), None if execution.dask else pool
        with progress("drawing"):
            drawn, left_out = plots.draw(file, done.table, jobs, own / "plots", here)
        for reason in left_out:
            emit(f"tracebed: {reason}")
    for warning, count in done.warnings.items():
        warn(f"{warning} (in {count:,} cells)")
    if as_json:
        print_json("tracebed-simulations/2", _facts(file, plan, done, ledger, drawn, own) | {"differences": differing})
    elif len(done.table):
        _print(done.table)
        _print_differences(file, against)
        _tell_alone(file, done.table, against)
        print_ledger(ledger)
        if not is_perturbed(done.table) and len(file.experiment.policies) > 1:
            emit("significance is unknown: `perturbations: 20` in the file shows which differences are significant")
        emit(f"{own / 'table.parquet'}, .csv; {len(drawn)} plots")
    for reason, points in done.failed.items():
        emit(
            f"tracebed: {reason}: no row for {len(points):,} points, the first {_point_text(points[0])}",
            MessageLevel.ERROR,
        )
    return ExitCode.USAGE if done.failed else ExitCode.OK


def _facts(
    file: ExperimentFile, plan: GridPlan, done: GridResult, ledger: Ledger, drawn: Sequence[Path], own: Path
) -> dict[str, Any]:
    from tracebed.api.experiments import means

    return {
        "experiment": file.name,
        "output": str(own),
        "points": len(plan.cells),
        "cells": plan.distinct,
        "computed": done.computed,
        "failed": {reason: [asdict(point) for point in points] for reason, points in done.failed.items()},
        "means": means(done.table).to_dict("records") if len(done.table) else [],
        "ledger": [row.model_dump(mode="json") for row in ledger.rows],
        "plots": [str(path) for path in drawn],
    }


def _print(table: pd.DataFrame) -> None:
    """Print means over seeds, without keys of a single value.

    If the workload was perturbed, a mean has the interval over the changes.
    """
    from tracebed.api.experiments import GROUP, intervals, means
    from tracebed.api.measures import metric_definitions

    averaged = means(table)
    keys = [key for key in [*GROUP, "window"] if key == "policy" or averaged[key].nunique(dropna=False) > 1]
    figures = RATES if averaged[RATES].notna().any(axis=None) else SHOWN
    columns = [*keys, *(metric_definitions()[name].title for name in figures)]
    shown = averaged[[*keys, *figures]].astype(object)
    if table["perturbation"].nunique() > 1:
        ranges = intervals(table, figures)
        for name in figures:
            sides = zip(shown[name], ranges[f"{name}_low"], ranges[f"{name}_high"], strict=True)
            shown[name] = [f"{cell(value)} ({cell(low)} to {cell(high)})" for value, low, high in sides]
    print_table(columns, shown.to_numpy(dtype=object).tolist(), keys=len(keys))
    runs = table.groupby([*GROUP, "window"], dropna=False).size()
    over = "-".join(dict.fromkeys(f"{each:,}" for each in (runs.min(), runs.max())))
    if table["perturbation"].nunique() > 1:
        click.echo(f"means over {over} seeds and perturbations (from, to: the middle 95 % of these runs)")
    elif runs.max() > 1:
        click.echo(f"means over {over} seeds")


def _records(file: ExperimentFile, against: Mapping[tuple[Any, ...], Against]) -> list[dict[str, Any]]:
    """Return the differences of the policies from the first one: a row per point, window and metric."""
    from tracebed.api.experiments import GROUP

    return [
        {
            **dict(zip([*GROUP, "window"], at, strict=True)),
            "against": _base(file, found),
            "figure": name,
            **difference.to_json(),
        }
        for at, found in against.items()
        for name, difference in found.differences.items()
    ]


def _base(file: ExperimentFile, found: Against) -> str:
    """Return the point that is compared with: the first policy, and values that differ: `easy, share 0`."""
    return ", ".join(
        [file.experiment.policies[0].name, *(f"{key} {_cell(value)}" for key, value in found.base.items())]
    )


def _print_differences(file: ExperimentFile, against: Mapping[tuple[Any, ...], Against]) -> None:
    """Print the differences of the policies from the first one, over the same seeds and changes."""
    from tracebed.api.experiments import GROUP
    from tracebed.api.measures import metric_definitions
    from tracebed.cli.perturbation import change, explain_falls

    if not against:
        return
    keys = [*GROUP, "window"]
    shown = [place for place, key in enumerate(keys) if key == "policy" or len({at[place] for at in against}) > 1]
    several = any(found.base for found in against.values())
    rows = [
        [
            *(_cell(at[place]) for place in shown),
            *([_base(file, found)] if several else []),
            *(change(found.differences.get(name)) for name in SHOWN),
        ]
        for at, found in against.items()
    ]
    what = "difference of the means (the middle 95 % of the pairs of runs)"
    click.echo(f"\nagainst {file.experiment.policies[0].name}, over the same seeds and changes: {what}")
    heads = [*(keys[place] for place in shown), *(["against"] if several else [])]
    print_table([*heads, *(metric_definitions()[name].title for name in SHOWN)], rows, keys=len(heads))
    every = [found.differences for found in against.values()]
    explain_falls((found[name].low, found[name].base) for found in every for name in SHOWN if name in found)


def _tell_alone(file: ExperimentFile, table: pd.DataFrame, against: Mapping[tuple[Any, ...], Against]) -> None:
    """Print how many points of other policies have no point of the first one that they can be compared with."""
    from tracebed.api.experiments import GROUP

    first = file.experiment.policies[0].name
    known = {at[: len(GROUP)] for at in against}
    rows = table[table["policy"] != first][GROUP].drop_duplicates().to_dict("records")
    points = [{key: None if value != value else value for key, value in row.items()} for row in rows]
    alone = [point for point in points if tuple(point.values()) not in known]
    if against and alone:
        named = ", ".join(f"{key} {_cell(value)}" for key, value in alone[0].items() if value is not None)
        emit(f"tracebed: {len(alone):,} points have no point of {first} to compare with, the first {named}")


def list_points(file: ExperimentFile, points: Sequence[Point], as_json: bool) -> None:
    """Print the points of the grid."""
    rows = [asdict(point) for point in points]
    if as_json:
        print_json("tracebed-grid/1", {"experiment": file.name, "points": len(points), "grid": rows})
        return
    keys = [key for key in rows[0] if key in ("workload", "policy") or len({str(row[key]) for row in rows}) > 1]
    print_table(keys, [[_cell(row[key]) for key in keys] for row in rows], keys=len(keys))


def _cell(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value)


def _point_text(point: Point) -> str:
    return ", ".join(f"{key} {_cell(value)}" for key, value in asdict(point).items())
