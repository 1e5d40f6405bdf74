"""Simulated cells: one simulation and its metrics. Points share a cell if their simulations have the same result."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.workload import System, Workload
from tracebed.ground.errors import InputError, Tolerated
from tracebed.ground.table import Table, rows_of
from tracebed.orchestrator import evolving, scheduling, simulation
from tracebed.orchestrator.evolving.machine import Machine
from tracebed.orchestrator.evolving.programs import Programs
from tracebed.orchestrator.evolving.simulation import programs_of
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.nodes import nodes_of
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.setup import Scheduling, Setup
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.processes import Processes, carried_out, machine_of
from tracebed.validation.experiments.experiment import Experiment, Point
from tracebed.validation.experiments.parts import NO_PROCESSES, WindowSpec
from tracebed.validation.experiments.workloads import (
    Prepared,
    Variant,
    code_of,
    variant_of,
    version_of_tracebed,
)
from tracebed.validation.metrics import MeasuredRun, table_row
from tracebed.validation.metrics.metric import REGISTRY as METRICS


@dataclass(frozen=True)
class Cell:
    """The input of a simulation and the choice of its metrics."""

    workload: Path
    system: System
    setup: Setup
    processes: str
    """Fields of `Processes` as JSON, including defaults; `none`: jobs take their run times."""
    processes_seed: int
    tau: float
    windows: tuple[tuple[str, WindowSpec], ...]
    identity: str
    """Hash of everything that determines the result; also the file name of the cell."""
    jobs: bool = False
    """Whether the table of jobs is also kept."""


@dataclass(frozen=True)
class CellResult:
    """The result of a cell."""

    rows: list[dict[str, Any]]
    """A row per window: name and metrics."""
    seconds: float
    warnings: list[str]
    jobs: pd.DataFrame | None
    """A row per job: submit, wait, run, response, slowdown_ref, nodes, run_time, started_smaller."""


def cell_of(experiment: Experiment, point: Point, base: Prepared, *, jobs: bool) -> tuple[Cell, Variant | None]:
    """Return the cell of a point and the variant of the workload for the cell (None: the workload itself)."""
    setup, policy = experiment.setup(point).on(base.system.grid).complete()
    processes = experiment.processes_of(point)
    wanted = variant_of(experiment, point, base, policy)
    facts: dict[str, Any] = {
        "processes": json.dumps(asdict(processes), sort_keys=True) if processes else NO_PROCESSES,
        "processes_seed": point.seed if processes else 0,
        "tau": experiment.tau,
    }
    identity = {
        **facts,
        "setup": setup.as_dict(),
        "windows": {name: window.model_dump() for name, window in experiment.windows.items()},
        "workload": base.sha256,
        "system": asdict(base.system),
        "malleable": wanted.path.stem if wanted else None,
        "tracebed": [version_of_tracebed(), *(code_of(Path(room.__path__[0])) for room in _code(processes))],
        "by": maker_of_policy(setup.scheduling),
        "metrics": [maker_of(entry) for entry in METRICS.entries.values()],
    }
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    path = wanted.path if wanted else base.path
    return Cell(
        path, base.system, setup, **facts, windows=tuple(experiment.windows.items()), identity=name, jobs=jobs
    ), wanted


def _code(processes: Processes | None) -> list[ModuleType]:
    """Return the packages whose code determines the result of a point."""
    return [scheduling, simulation, *([evolving] if processes else [])]


def compute(cell: Cell) -> CellResult:
    """Simulate and measure a cell. Raises InputError if the simulation cannot run."""
    begun = time.perf_counter()
    with warnings.catch_warnings(record=True) as tolerated:
        warnings.simplefilter("always", Tolerated)
        workload = _workload(cell.workload)
        if cell.processes == NO_PROCESSES:
            run = predict(workload, nodes_of(cell.system), cell.setup)
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


@lru_cache(maxsize=2)
def _workload(path: Path) -> Workload:
    """Return a workload. Cells are ordered by workload, so a worker needs at most two workloads at a time."""
    return read_workload(path)


@dataclass(frozen=True)
class _Schedule:
    """What a scheduler reads. Cells whose jobs differ in their behavior only have equal schedules."""

    workload: str
    """Hash of the workload without the column `behaviour`."""
    system: System
    setup: str
    cell: Cell = field(compare=False)


@lru_cache(maxsize=64)
def _simulated(schedule: _Schedule) -> tuple[Run, list[Warning | str]]:
    """Return the simulation of a schedule, and its warnings. The cells of one seed follow each other and share it."""
    cell = schedule.cell
    with warnings.catch_warnings(record=True) as tolerated:
        warnings.simplefilter("always", Tolerated)
        run = predict(_workload(cell.workload), nodes_of(cell.system), cell.setup)
    return run, [item.message for item in tolerated]


@lru_cache(maxsize=2)
def _digest(path: Path) -> str:
    """Return the hash of a workload without the behavior of its jobs."""
    workload = _workload(path)
    return workload.digest(sorted(name for name in workload.columns if name != "behaviour"))


def _as_processes(workload: Workload, cell: Cell) -> Run:
    """Return the run with jobs that are programs of processes."""
    run, tolerated = _simulated(_Schedule(_digest(cell.workload), cell.system, cell.setup.digest, cell))
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
    communication = processes.communication
    return programs_of(_workload(path), machine, communication=communication, seed=seed, parameters=processes)


def maker_of_policy(scheduling: Scheduling) -> list[str]:
    """Return what determines the decisions of a policy: its maker, or the name with a hash if it is in a file."""
    return [scheduling.policy] if scheduling.file else maker_of(registry.POLICIES.entries[scheduling.policy])


def maker_of(entry: EntryPoint) -> list[str]:
    """Return the package of an entry point, the version, and a hash of the code in the folder of the module."""
    name, release, path = _package_of(entry)
    return [name, release, code_of(path)]


@cache
def _package_of(entry: EntryPoint) -> tuple[str, str, Path]:
    """Return the package of an entry point, its version, and the path of the code.

    The result is cached: reading the metadata of a package takes about a millisecond, and each cell needs all metrics.
    """
    spec = find_spec(entry.module)
    if spec is None or spec.origin is None:
        raise InputError("module not found", where=entry.value, hint="install the package again")
    file = Path(spec.origin)
    path = file.parent if "." in entry.module else file
    return (entry.dist.name, entry.dist.version, path) if entry.dist else (entry.value, "", path)


def _jobs(measured: MeasuredRun, workload: Workload) -> pd.DataFrame:
    """Return the finished jobs for plots: times, and whether the job started on fewer cores than requested."""
    jobs, held = measured.run.table("jobs"), measured.run.table("allocations")
    row = rows_of(held.raw("job_id"), jobs.raw("job_id"))
    first = held["start"] == jobs["start"][row]
    cores = (held["cores"] * held["count"])[first]
    got = np.bincount(row[first], cores, minlength=len(jobs))
    asked = (workload.ints("nodes") * workload.ints("cores_per_node")).take(
        rows_of(jobs.raw("job_id"), workload.arrow("job_id"))
    )
    kept = {name: measured.jobs[name] for name in ("submit", "wait", "run", "response", "slowdown_ref", "nodes")}
    table = Table(kept | {"run_time": jobs["run_time"], "started_smaller": (got > 0) & (got < asked)})
    return table.take(measured.jobs["finished"]).frame()
