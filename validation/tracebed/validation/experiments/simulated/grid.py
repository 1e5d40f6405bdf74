"""The simulated grid of an experiment: compute each cell once, store the results, and collect them in one table.

    OUTPUT/cells/IDENTITY.json           the metrics of a cell with a checksum; written atomically
    OUTPUT/cells/IDENTITY.jobs.parquet   jobs of the cell, if a plot requires them
    OUTPUT/workloads/                    simulated workloads with checksums
    OUTPUT/NAME/                         experiment.yaml, table.parquet, table.csv, published.csv, plots

Experiments with the same OUTPUT share cells. An interrupted command keeps its cells, and the next one continues.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from tracebed.ground.errors import TracebedError
from tracebed.ground.files import replacing
from tracebed.validation.experiments import characteristics
from tracebed.validation.experiments.experiment import Point
from tracebed.validation.experiments.file import ExperimentFile
from tracebed.validation.experiments.simulated import cells, store
from tracebed.validation.experiments.simulated.cells import Cell
from tracebed.validation.experiments.simulated.pools import Pool
from tracebed.validation.experiments.simulated.store import StoredCell
from tracebed.validation.experiments.workloads import Bases, Variant, is_kept, make

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class GridPlan:
    """The cells of an experiment, kept or to be computed."""

    cells: dict[Point, Cell]
    variants: list[Variant]
    """Workloads of the cells to be computed that are not kept yet."""
    todo: list[Cell]
    """Distinct cells that are not kept yet."""

    @property
    def distinct(self) -> int:
        """Number of simulations for all points."""
        return len({cell.identity for cell in self.cells.values()})


@dataclass(frozen=True)
class GridResult:
    """The results of the cells of a grid."""

    table: pd.DataFrame
    """A row per point and window."""
    computed: int
    failed: dict[str, list[Point]]
    """Error message -> points without a row."""
    warnings: dict[str, int]
    """Warning -> number of cells."""


def _inputs(cell: Cell) -> tuple[int, Path, str]:
    """Return the inputs that cells share: the seed of programs, the workload, and the programs of its jobs."""
    return cell.processes_seed, cell.workload, cell.processes


def plan(file: ExperimentFile, points: Sequence[Point], folder: Path, logs: Mapping[str, Path]) -> GridPlan:
    """Prepare the workloads of `points`, and return their cells and the cells to be computed.

    Raises:
        InputError: a workload cannot be prepared.
    """
    experiment = file.experiment
    plots = [plot for plot in experiment.plots.values() if plot.of_jobs]
    shown = [where for plot in plots for where in (plot.at, plot.relative_to) if where is not None]
    bases = Bases(file, logs, folder)
    found: dict[Point, Cell] = {}
    variants: dict[Path, Variant] = {}
    for point in points:
        jobs = any(map(point.fits, shown))
        found[point], variant = cells.cell_of(experiment, point, bases.of(point), jobs=jobs)
        if variant is not None:
            variants[variant.path] = variant
    wanted: dict[str, Cell] = {}
    for cell in found.values():
        earlier = wanted.get(cell.identity, cell)
        wanted[cell.identity] = replace(cell, jobs=cell.jobs or earlier.jobs)
    todo = [cell for cell in wanted.values() if not store.is_kept(cell, folder)]
    missing = {cell.workload for cell in todo}
    needed = [variant for path, variant in variants.items() if path in missing and not is_kept(path)]
    return GridPlan(found, needed, sorted(todo, key=_inputs))  # so that a worker reads and draws each once


def union(plans: Sequence[GridPlan]) -> GridPlan:
    """Return the plan of the distinct cells of several plans, without their points."""
    variants = {variant.path: variant for plan in plans for variant in plan.variants}
    todo = {cell.identity: cell for plan in plans for cell in plan.todo}
    return GridPlan({}, list(variants.values()), sorted(todo.values(), key=_inputs))


def run(
    file: ExperimentFile, plan: GridPlan, folder: Path, pool: Pool, on_progress: Progress | None = None
) -> GridResult:
    """Compute the cells of `plan` that are not kept, and write the table.

    Args:
        plan: plan for this experiment and this folder.
        folder: the output folder, locked by `files.locked_folder`.
        pool: the workers.
        on_progress: called after each cell with the numbers of computed cells and of cells to compute in this call.

    Raises:
        InputError: the folder cannot be written, or a worker died.
    """
    errors = compute(plan, folder, pool, on_progress)
    failed: dict[str, list[Point]] = {}
    for point, cell in plan.cells.items():
        if cell.identity in errors:
            failed.setdefault(errors[cell.identity], []).append(point)
    table, warnings = gathered(plan, folder, errors)
    if characteristics.asked(file.experiment) and len(table):
        paths = {cell.identity: cell.workload for cell in plan.cells.values()}
        table = characteristics.with_characteristics(file.experiment, table, paths)
    _write(file, table, folder / file.name)
    return GridResult(table, len(plan.todo) - len(errors), failed, warnings)


def compute(plan: GridPlan, folder: Path, pool: Pool, on_progress: Progress | None = None) -> dict[str, str]:
    """Compute the cells of `plan` that are not kept, and return the errors: identity of the cell -> message."""
    errors: dict[str, str] = {}
    unmade: dict[Path, str] = {}
    for variant, path in pool.map(make, plan.variants):
        if isinstance(path, TracebedError):
            unmade[variant.path] = str(path)
    errors |= {cell.identity: unmade[cell.workload] for cell in plan.todo if cell.workload in unmade}
    todo = [cell for cell in plan.todo if cell.workload not in unmade]
    for done, (cell, result) in enumerate(pool.map(cells.compute, todo), start=1):
        if isinstance(result, TracebedError):
            errors[cell.identity] = str(result)
        else:
            store.write(cell, result, folder)
        if on_progress is not None:
            on_progress(done, len(todo))
    return errors


def gathered(plan: GridPlan, folder: Path, failed: Collection[str]) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the rows of the points without failed cells, and the number of cells for each warning."""
    kept: dict[str, StoredCell] = {}
    rows: list[dict[str, Any]] = []
    for point, cell in plan.cells.items():
        if cell.identity in failed:
            continue
        if cell.identity not in kept:
            kept[cell.identity] = store.read(cell, folder)
        found = kept[cell.identity]
        about = {
            **{key: value for key, value in vars(point).items() if key != "testbed"},
            "parameters": json.dumps(dict(cell.setup.scheduling.policy_parameters), sort_keys=True),
            "cell": cell.identity,
            "seconds": found.seconds,
        }
        rows += [{**about, **row} for row in found.rows]
    return pd.DataFrame(rows), dict(Counter(warning for found in kept.values() for warning in found.warnings))


def _write(file: ExperimentFile, table: pd.DataFrame, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    file.write(folder)
    with replacing(folder / "table.parquet") as stream:
        table.to_parquet(stream, index=False)
    with replacing(folder / "table.csv") as stream:
        table.to_csv(stream, index=False)
