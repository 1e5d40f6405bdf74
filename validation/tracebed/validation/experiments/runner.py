"""The runner of an experiment: it computes the cells that the store lacks, in a pool of workers or by replays.

Experiments with the same output folder share simulated cells. An interrupted command keeps its cells, repetitions and
predictions, and the next one continues.
"""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.workload import Workload
from tracebed.ground.display import counted
from tracebed.ground.errors import InputError, Tolerated, TracebedError
from tracebed.ground.files import replacing
from tracebed.ground.table import Table, rows_of, texts
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.outages import outages_of
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.experiments import store, workloads
from tracebed.validation.experiments.background_command import BackgroundCommand
from tracebed.validation.experiments.cell import Campaign, CellResult, SimulatedCell, Slot, simulated_cell
from tracebed.validation.experiments.experiment import Point
from tracebed.validation.experiments.experiment_schema import NO_OUTAGES, NO_PROCESSES
from tracebed.validation.experiments.file import ExperimentFile
from tracebed.validation.experiments.pools import Pool
from tracebed.validation.experiments.store import Attempt, StoredCell
from tracebed.validation.metrics import MeasuredRun, Undefined, table_row
from tracebed.validation.metrics.classes import names_of

if TYPE_CHECKING:  # the workers of a pool load this module, and not the verdicts
    from tracebed.orchestrator.evolving.machine import Machine
    from tracebed.orchestrator.evolving.programs import Programs
    from tracebed.orchestrator.simulation.processes import Processes
    from tracebed.validation.experiments.suite import Predictions, Suite

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class GridPlan:
    """The cells of an experiment, kept or to be computed."""

    cells: dict[Point, SimulatedCell]
    variants: list[workloads.Variant]
    """Workloads of the cells to be computed that are not kept yet."""
    todo: list[SimulatedCell]
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


def _inputs(cell: SimulatedCell) -> tuple[int, Path, str]:
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
    bases = workloads.Bases(file, logs, folder)
    cells: dict[Point, SimulatedCell] = {}
    variants: dict[Path, workloads.Variant] = {}
    for point in points:
        jobs = any(map(point.fits, shown))
        cells[point], variant = simulated_cell(experiment, point, bases.of(point), jobs=jobs)
        if variant is not None:
            variants[variant.path] = variant
    wanted: dict[str, SimulatedCell] = {}
    for cell in cells.values():
        earlier = wanted.get(cell.identity, cell)
        wanted[cell.identity] = replace(cell, jobs=cell.jobs or earlier.jobs)
    todo = [cell for cell in wanted.values() if not store.is_kept(cell, folder)]
    missing = {cell.workload for cell in todo}
    needed = [variant for path, variant in variants.items() if path in missing and not workloads.is_kept(path)]
    return GridPlan(cells, needed, sorted(todo, key=_inputs))  # so that a worker reads and draws each once


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
    if workloads.needs_characteristics(file.experiment) and len(table):
        paths = {cell.identity: cell.workload for cell in plan.cells.values()}
        table = workloads.with_characteristics(file.experiment, table, paths)
    _write(file, table, folder / file.name)
    return GridResult(table, len(plan.todo) - len(errors), failed, warnings)


def compute(plan: GridPlan, folder: Path, pool: Pool, on_progress: Progress | None = None) -> dict[str, str]:
    """Compute the cells of `plan` that are not kept, and return the errors: identity of the cell -> message."""
    errors: dict[str, str] = {}
    unmade: dict[Path, str] = {}
    for variant, path in pool.map(workloads.make, plan.variants):
        if isinstance(path, TracebedError):
            unmade[variant.path] = str(path)
    errors |= {cell.identity: unmade[cell.workload] for cell in plan.todo if cell.workload in unmade}
    todo = [cell for cell in plan.todo if cell.workload not in unmade]
    for done, (cell, result) in enumerate(pool.map(simulate, todo), start=1):
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
        stored = kept[cell.identity]
        about = {
            **{key: value for key, value in vars(point).items() if key != "testbed"},
            "parameters": json.dumps(dict(cell.setup.scheduling.policy_parameters), sort_keys=True),
            "cell": cell.identity,
            "seconds": stored.seconds,
        }
        rows += [{**about, **row} for row in stored.rows]
    return pd.DataFrame(rows), dict(Counter(warning for stored in kept.values() for warning in stored.warnings))


def _write(file: ExperimentFile, table: pd.DataFrame, folder: Path) -> None:
    from tracebed.validation.experiments.views.tables import means_table  # workers need no tables
    from tracebed.validation.latex import write_csv

    folder.mkdir(exist_ok=True)
    file.write(folder)
    with replacing(folder / "table.parquet") as stream:
        table.to_parquet(stream, index=False)
    write_csv(table, folder / "table.csv", *([means_table(table)] if len(table) else []))


def simulate(cell: SimulatedCell) -> CellResult:
    """Simulate and measure a cell. Raises InputError if the simulation cannot run."""
    begun = time.perf_counter()
    with warnings.catch_warnings(record=True) as tolerated:
        warnings.simplefilter("always", Tolerated)
        workload = _workload(cell.workload)
        if cell.processes == NO_PROCESSES:
            run = predict(workload, cell.machine, cell.setup, **_outages(workload, cell))
        else:
            run = _as_processes(workload, cell)
        measured = MeasuredRun(run, cell.tau)
        jobs = _jobs(measured, workload) if cell.jobs else None
        rows = []
        for name, window in cell.windows:
            measured = measured.of_jobs(after=window.after_s, ended=window.ended)  # with what the last window computed
            rows.append({"window": name, **table_row(measured)})
    said = [*run.info.warnings, *(str(item.message) for item in tolerated if issubclass(item.category, Tolerated))]
    return CellResult(rows, time.perf_counter() - begun, list(dict.fromkeys(said)), jobs)


def _outages(workload: Workload, cell: SimulatedCell) -> dict[str, Any]:
    """Return the outages of a cell as keywords of `predict`."""
    if cell.outages == NO_OUTAGES:
        return {}
    given: dict[str, Any] = json.loads(cell.outages)
    return given | {"outages": outages_of(given["outages"], workload)}


@lru_cache(maxsize=2)
def _workload(path: Path) -> Workload:
    """Return a workload. Cells are ordered by workload, so a worker needs at most two workloads at a time."""
    return read_workload(path)


@dataclass(frozen=True)
class _Schedule:
    """What a scheduler reads. Cells whose jobs differ in their behavior only have equal schedules."""

    workload: str  # hash of the workload without the column `behaviour`
    machine: str
    setup: str
    cell: SimulatedCell = field(compare=False)


@lru_cache(maxsize=64)
def _simulated(schedule: _Schedule) -> tuple[Run, list[Warning | str]]:
    """Return the simulation of a schedule, and its warnings. The cells of one seed follow each other and share it."""
    cell = schedule.cell
    with warnings.catch_warnings(record=True) as tolerated:
        warnings.simplefilter("always", Tolerated)
        run = predict(_workload(cell.workload), cell.machine, cell.setup)
    return run, [item.message for item in tolerated]


@lru_cache(maxsize=2)
def _digest(path: Path) -> str:
    """Return the hash of a workload without the behavior of its jobs."""
    workload = _workload(path)
    return workload.digest(sorted(name for name in workload.columns if name != "behaviour"))


def _as_processes(workload: Workload, cell: SimulatedCell) -> Run:
    """Return the run with jobs that are programs of processes."""
    from tracebed.orchestrator.simulation.processes import Processes, carried_out, machine_of  # for such cells only

    run, tolerated = _simulated(_Schedule(_digest(cell.workload), cell.machine.digest, cell.setup.digest, cell))
    for warning in tolerated:
        warnings.warn(warning, stacklevel=2)
    machine, processes = machine_of(run), Processes(**json.loads(cell.processes))
    programs = _programs(cell.workload, machine, processes, cell.processes_seed)
    jobs = run.jobs.assign(behaviour=workload.column("behaviour"))
    own = Run(run.info, jobs, run.allocations, run.reconfigurations)
    return carried_out(own, workload, programs, machine, processes, seed=cell.processes_seed)


@lru_cache(maxsize=2)
def _programs(path: Path, machine: Machine, processes: Processes, seed: int) -> Programs:
    """Return the programs of the jobs of a workload, which are the same under all policies."""
    from tracebed.orchestrator.evolving.simulation import programs_of

    communication = processes.communication
    return programs_of(_workload(path), machine, communication=communication, seed=seed, parameters=processes)


def _jobs(measured: MeasuredRun, workload: Workload) -> pd.DataFrame:
    """Return the finished jobs for plots: times, whether the job started on fewer cores than requested, and classes."""
    jobs, held = measured.run.table("jobs"), measured.run.table("allocations")
    row = held.rows_in("job_id", jobs)
    first = held["start"] == jobs["start"][row]
    cores = (held["cores"] * held["count"])[first]
    got = np.bincount(row[first], cores, minlength=len(jobs))
    asked = (workload.ints("nodes") * workload.ints("cores_per_node")).take(
        rows_of(jobs.raw("job_id"), workload.arrow("job_id"))
    )
    kept = {name: measured.jobs[name] for name in ("submit", "wait", "run", "response", "slowdown_ref", "nodes")}
    kept |= {"run_time": jobs["run_time"], "started_smaller": (got > 0) & (got < asked)}
    for by in ("partition", "class"):
        with suppress(Undefined):
            codes, names = names_of(measured.run, by)
            kept[by] = texts([names[code] for code in codes.tolist()])
    table = Table(kept)
    return table.take(measured.jobs["finished"]).frame()


@dataclass(frozen=True)
class Forecast:
    """The remaining work of a suite, and its duration."""

    cases: int
    repetitions: int
    """Number of repetitions of all cases; recorded runs too."""
    to_replay: int
    """Number of repetitions that are not done."""
    shortest_s: float
    """Lower bound of the wall time of the replays, with the pauses between them, s."""
    to_predict: dict[str, int]
    """Simulator -> number of predictions to be made."""


def forecast_suite(suite: Suite, folder: Path) -> Forecast:
    """Return the remaining work of a suite with the output folder `folder`, which may be missing.

    Raises:
        InputError: a run in the folder is damaged.
    """
    to_predict = {
        name: sum(simulator.missing(case, folder) for case in suite.cases.values())
        for name, simulator in suite.simulators.items()
    }
    if suite.campaign is None:
        count = sum(len(case.recorded) for case in suite.cases.values())
        return Forecast(len(suite.cases), count, 0, 0.0, to_predict)
    campaign = suite.campaign
    todo = _remaining(campaign, folder / store.REAL)
    settle_s = campaign.file.experiment.settle_s
    shortest = {name: settle_s + cell.shortest_s for name, cell in campaign.cells.items()}
    repetitions = sum(campaign.counts[name] + campaign.more.get(name, 0) for name in campaign.chosen)
    return Forecast(len(suite.cases), repetitions, len(todo), sum(shortest[slot.cell] for slot in todo), to_predict)


def predict_suite(
    suite: Suite, folder: Path, on_progress: Callable[[int], None] | None = None
) -> tuple[Predictions, dict[str, str]]:
    """Make the missing predictions, and read the others.

    A simulator that fails does not end the suite.

    Args:
        folder: the output folder, locked by `files.locked_folder`.
        on_progress: called with the number of cases that are predicted, over all simulators.

    Returns:
        the predictions of the simulators without failure; and simulator -> failure.
    """
    predictions: Predictions = {}
    failed: dict[str, str] = {}
    done = 0
    for name, simulator in suite.simulators.items():
        predictions[name] = {}
        for case in suite.cases.values():
            try:
                predictions[name][case.name] = simulator.predictions(case, folder)
            except TracebedError as error:
                failed[name] = f"{case.name}: {error}"
                del predictions[name]
                break
            done += 1
            if on_progress is not None:
                on_progress(done)
    return predictions, failed


def _remaining(campaign: Campaign, folder: Path) -> list[Slot]:
    """Return the chosen repetitions that are not done. Raises InputError if a run is damaged."""
    chosen = [slot for slot in campaign.order if slot.cell in campaign.chosen]
    return [slot for slot in chosen if store.run_of(slot, folder) is None]


def replay_campaign(
    campaign: Campaign, output: Path, on_progress: Callable[[float, Attempt | None], None] | None = None
) -> list[Attempt]:
    """Keep the plan, and replay the missing repetitions in order. A repetition that fails does not end the campaign.

    With the key `repeat_excluded`, another repetition is replayed for each unhealthy one, up to this number for each
    cell, and a repetition that failed is tried once more. A warning names them.

    Args:
        output: the output folder, locked by `files.locked_folder`.
        on_progress: called with the number of repetitions done so far, with a fraction during a replay; and with the
            attempt when it has ended.

    Returns:
        The last attempt at each repetition.

    Raises:
        InputError: the folder has the runs of another campaign.
        KeyboardInterrupt: a signal ended a replay. The next call repeats it and continues.
    """
    folder = output / store.REAL
    tries = 2 if campaign.file.experiment.repeat_excluded else 1
    tried: Counter[Slot] = Counter()
    attempts: dict[Slot, Attempt] = {}
    store.keep_plan(campaign, folder)
    while True:
        earlier, campaign = campaign.more, _with_more(campaign, folder)
        if campaign.more != earlier:
            store.keep_plan(campaign, folder)
        todo = [slot for slot in _remaining(campaign, folder) if tried[slot] < tries]
        if not todo:
            return [*attempts.values()]
        for slot in todo:

            def show(share: float, attempt: Attempt | None = None, done: int = tried.total()) -> None:
                if on_progress is not None:
                    on_progress(done + share, attempt)

            attempts[slot] = _attempt(campaign, slot, folder, show)
            show(1.0, attempts[slot])
            tried[slot] += 1


def _with_more(campaign: Campaign, folder: Path) -> Campaign:
    """Return the campaign with a repetition more for each unhealthy one, as far as the experiment has them repeated."""
    from tracebed.validation.verdict.health import UNHEALTHY, Health

    # A command beside the replays disturbs them on purpose.
    most, more = campaign.file.experiment.repeat_excluded, dict(campaign.more)
    for name, cell in campaign.cells.items() if most else ():
        if name not in campaign.chosen or (cell.replay is not None and cell.replay.beside):
            continue
        runs = [store.run_of(slot, folder) for slot in campaign.order if slot.cell == name]
        found = [Health.of(run, 0) for run in runs if run is not None]
        causes = [health.why for health in found if health.state == UNHEALTHY]
        had, more[name] = more.get(name, 0), min(most, len(causes))
        if more[name] > had:
            what = f"{counted(more[name] - had, 'repetition')} more, of at most {most}"
        elif len(causes) > most:
            what = f"no more than {most} are replayed in their place (`repeat_excluded`)"
        else:
            more[name] = had
            continue
        warnings.warn(
            f"{name}: {len(causes)} of {len(found)} repetitions unhealthy ({causes[-1].partition('; ')[0]}): {what}",
            stacklevel=3,
        )
    return replace(campaign, more={name: count for name, count in more.items() if count})


def _attempt(campaign: Campaign, slot: Slot, folder: Path, show: Callable[[float], None]) -> Attempt:
    """Replay one repetition and append the attempt to the log of the campaign."""
    started, begun = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    error: str | None = "the experiment was interrupted"
    try:
        run = _replay(campaign, slot, folder, show)
        if run.info.state == "interrupted":
            (error,) = run.info.interruptions
            if run.info.stopped_by_signal:
                raise KeyboardInterrupt
        else:
            error = None
    except TracebedError as failure:
        error = str(failure)
    finally:
        attempt = Attempt(slot.cell, slot.number, slot.session, started, time.monotonic() - begun, error)
        store.note(attempt, folder)
    return attempt


def _replay(campaign: Campaign, slot: Slot, folder: Path, show: Callable[[float], None]) -> Run:
    """Replay one repetition, with the command of its cell beside it."""
    from tracebed.orchestrator.replay import session
    from tracebed.orchestrator.replay.batch import session as batch
    from tracebed.orchestrator.replay.batch.recovery import cancel_leftover_jobs

    cell, settle_s, output = campaign.cells[slot.cell], campaign.file.experiment.settle_s, folder / slot.folder
    workload, conditions = cell.workload, cell.replay
    assert workload is not None and conditions is not None
    try:
        output.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(output.parent)) from error
    for left in store.left_folders(slot, folder):
        if conditions.scheduler is not None:
            cancel_leftover_jobs(left, conditions.scheduler.system())
        shutil.rmtree(left)

    def progress(ended: int) -> None:
        show(ended / max(1, len(workload)))

    def replay() -> Run:
        if conditions.scheduler is not None:
            return batch.replay(
                workload,
                output,
                conditions.scheduler,
                name=cell.title,
                replace_run=True,  # an interrupted attempt
                on_progress=progress,
            )
        return session.replay(
            workload,
            conditions.inventory,
            cell.setup,
            output,
            name=cell.title,
            options=conditions.options,
            work_rate=conditions.work_rate,
            replace_run=True,  # an interrupted attempt
            on_progress=progress,
        )

    if not conditions.beside:
        time.sleep(settle_s)
        return replay()
    with BackgroundCommand(conditions.beside, output.with_name(f"{output.name}.log"), campaign.file.folder) as beside:
        time.sleep(settle_s)
        beside.check()
        run = replay()
        try:
            beside.check()
        except TracebedError:
            shutil.rmtree(output)  # the command did not run beside the whole replay
            raise
    return run
