"""Cells: named conditions of an experiment, a workload under a setup on a machine.

A simulated cell is named by the hash of all that determines its result. Points share a cell if their simulations have
the same result. A real cell is named WORKLOAD-POLICY, with the testbed and other axes if they vary: it is replayed
several times, or was recorded, and simulators predict it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.input_files import read_text
from tracebed.machine.machine import Machine
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator import evolving, scheduling, simulation
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.setup import Scheduling, Setup
from tracebed.orchestrator.testbeds.nodes import Inventory
from tracebed.validation.experiments.experiment import Experiment, Point
from tracebed.validation.experiments.experiment_schema import NO_OUTAGES, NO_PROCESSES, WindowSpec
from tracebed.validation.experiments.file import ExperimentFile
from tracebed.validation.experiments.workloads import Prepared, Variant, code_of, variant_of, version_of_tracebed
from tracebed.validation.metrics.metric import REGISTRY as METRICS

if TYPE_CHECKING:  # simulated cells and recorded runs need no testbed and no batch system
    from tracebed.orchestrator.replay.batch.session import BatchOptions
    from tracebed.orchestrator.testbeds.calibration import Calibration


@dataclass(frozen=True)
class SimulatedCell:
    """The input of a simulation and the choice of its metrics."""

    workload: Path
    machine: Machine
    setup: Setup
    processes: str  # fields of `Processes` as JSON, including defaults; `none`: jobs take their run times
    processes_seed: int
    outages: str  # keywords of `predict` as JSON; `none`: no node fails
    tau: float
    windows: tuple[tuple[str, WindowSpec], ...]
    identity: str  # hash of everything that determines the result; also the file name of the cell
    jobs: bool = False  # whether the table of jobs is also kept


@dataclass(frozen=True)
class CellResult:
    """The result of a simulated cell."""

    rows: list[dict[str, Any]]  # a row per window: name and metrics
    seconds: float
    warnings: list[str]
    # A row per job: submit, wait, run, response, slowdown_ref, nodes, run_time, started_smaller; partition and class of
    # nodes, if they are known.
    jobs: pd.DataFrame | None


def simulated_cell(
    experiment: Experiment, point: Point, base: Prepared, *, jobs: bool
) -> tuple[SimulatedCell, Variant | None]:
    """Return the cell of a point and the variant of the workload for the cell (None: the workload itself)."""
    setup, policy = experiment.setup(point).on(base.system.grid).complete()
    processes = experiment.processes_of(point)
    variant = variant_of(experiment, point, base, policy)
    outages, of_outages = _outages(experiment, point)
    machine = experiment.machine(point, base.system.nodes) or Machine.of_system(base.system)
    rooms = [scheduling, simulation, *([evolving] if processes else [])]  # their code determines the result
    facts: dict[str, Any] = {
        "processes": json.dumps(asdict(processes), sort_keys=True) if processes else NO_PROCESSES,
        "processes_seed": point.seed if processes else 0,
        "tau": experiment.tau,
    }
    identity = {
        **facts,
        **of_outages,
        "setup": setup.as_dict(),
        "windows": {name: window.model_dump() for name, window in experiment.windows.items()},
        "workload": base.sha256,
        "machine": machine.digest,
        "malleable": variant.path.stem if variant else None,
        "tracebed": [version_of_tracebed(), *(code_of(Path(room.__path__[0])) for room in rooms)],
        "by": maker_of_policy(setup.scheduling),
        "metrics": [maker_of(entry) for entry in METRICS.entries.values()],
    }
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    path = variant.path if variant else base.path
    windows = tuple(experiment.windows.items())
    facts |= {"outages": outages, "windows": windows, "identity": name, "jobs": jobs}
    return SimulatedCell(path, machine, setup, **facts), variant


def _outages(experiment: Experiment, point: Point) -> tuple[str, dict[str, Any]]:
    """Return `SimulatedCell.outages` of a point, and what they add to the identity.

    Raises:
        InputError: the file of the outages cannot be read, or the jobs of the point are programs.
    """
    spec = experiment.outages_of(point)
    if spec is None:
        return NO_OUTAGES, {}
    if experiment.processes_of(point):
        raise InputError("outages do not apply to processes", hint="exclude the points with both")
    if spec.file is None:
        own: Any = spec.model(point.seed)
        return json.dumps({"outages": own, **spec.treatment}), {"outages": own, **spec.treatment}
    text = read_text(Path(spec.file), "outages", hint="check the path")
    content = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({"outages": spec.file, **spec.treatment}), {"outages": content, **spec.treatment}


def maker_of_policy(scheduling: Scheduling) -> list[str]:
    """Return what determines the decisions of a policy: its maker, or the name with a hash if it is in a file."""
    return [scheduling.policy] if scheduling.file else maker_of(registry.POLICIES.entries[scheduling.policy])


def maker_of(entry: EntryPoint) -> list[str]:
    """Return the package of an entry point, the version, and a hash of the code in the folder of the module."""
    name, release, path = _package_of(entry)
    return [name, release, code_of(path)]


@cache
def _package_of(entry: EntryPoint) -> tuple[str, str, Path]:
    """Return the package of an entry point, its version, and the path of the code."""
    # Cached: reading the metadata of a package takes about a millisecond, and each cell needs all metrics.
    spec = find_spec(entry.module)
    if spec is None or spec.origin is None:
        raise InputError("module not found", where=entry.value, hint="install the package again")
    file = Path(spec.origin)
    path = file.parent if "." in entry.module else file
    return (entry.dist.name, entry.dist.version, path) if entry.dist else (entry.value, "", path)


@dataclass(frozen=True)
class ReplayConditions:
    """How a real cell is replayed, besides its workload and its setup."""

    inventory: Inventory
    options: Options
    work_rate: Calibration | None  # calibration with the work rate, and the duty of nodes that have none
    beside: str  # command that runs beside each repetition
    # The batch system that decides in place of the policy. Its nodes are simulated as those of `inventory`.
    scheduler: BatchOptions | None
    repetitions: int


@dataclass(frozen=True)
class RealCell:
    """A workload under a policy on a testbed: what is replayed or was recorded, and what simulators predict."""

    name: str
    # Names in the experiment of the `workload` and the `policy`, as in patterns of paths, and of the `testbed`.
    names: Mapping[str, str]
    file: Path | None  # the file of the workload; None: the workload is derived from its runs, or is not known
    title: str  # name of the workload in reports
    workload: Workload | None
    nodes: list[NodeFacts]
    machine: Machine | None  # the machine that the policy has; None: that of the testbed
    setup: Setup  # the setup of the real runs; of the timing, the speed only
    label: str = ""  # name of the workload in verdicts, with the testbed if there are several
    calibration: bool = False  # whether a simulator was calibrated with the workload
    cluster: str = ""  # name of the cluster of dependent workloads; empty: found from the runs
    recorded: Mapping[str, Run] = field(default_factory=dict)  # name -> recorded run; empty with a testbed
    replay: ReplayConditions | None = None  # None with recorded runs

    @property
    def reading(self) -> dict[str, Any]:
        """Arguments of `read_run` for predictions of the cell."""
        return {
            "workload": self.workload,
            "policy": self.setup.scheduling.policy,
            "title": self.title,
            "names": self.names,
            "nodes": len(self.nodes) or None,
            "cores_per_node": max((node.cores for node in self.nodes), default=None),
        }

    @cached_property
    def machine_of_testbed(self) -> Machine | None:
        """The machine on which the jobs are replayed, or were; None: `nodes` say all of it."""
        if self.replay is not None:
            from tracebed.orchestrator.testbeds.machine import InventoryMachine

            machine = InventoryMachine.of(self.replay.inventory)
            return None if machine.told_by_nodes else machine
        run = next(iter(self.recorded.values()), None)
        return run.info.machine if run is not None and run.info.is_replay else None

    @property
    def predicted_machine(self) -> Machine | None:
        """The machine of predictions; None: `nodes` say all of it."""
        return self.machine or self.machine_of_testbed

    @property
    def facts(self) -> dict[str, Any]:
        """All inputs of a prediction, besides the simulator, as JSON values."""
        return {
            "workload": self.workload.sha256 if self.workload else None,
            "nodes": [list(node) for node in self.nodes],
            "setup": self.setup.as_dict(),
            **({} if self.predicted_machine is None else {"machine": self.predicted_machine.digest}),
        }

    @property
    def settings(self) -> dict[str, Any]:
        """All settings on which the replays of the cell depend, as JSON values."""
        assert self.workload is not None and self.replay is not None
        replay = self.replay
        facts = {
            "workload": self.workload.sha256,
            "inventory": replay.inventory.as_dict(),
            **self.setup.as_dict(),
            **asdict(replay.options),
            "work_rate": replay.work_rate.sha256 if replay.work_rate else None,
            "beside": replay.beside,
            **(replay.scheduler.as_dict() if replay.scheduler is not None else {}),
        }
        plain: dict[str, Any] = json.loads(json.dumps(facts))
        return plain

    @property
    def shortest_s(self) -> float:
        """Lower bound of the wall time of a repetition, s."""
        from tracebed.orchestrator.replay.programs import shortest_replay

        assert self.workload is not None and self.replay is not None
        speed, over_limit = self.setup.timing.speed, self.setup.scheduling.over_limit
        return shortest_replay(self.workload, self.replay.inventory, speed, over_limit=over_limit)


@dataclass(frozen=True)
class Slot:
    """One repetition of a cell. `number` counts from 1 in the order of execution, `session` from 1."""

    cell: str
    number: int
    session: int

    @property
    def folder(self) -> str:
        """Folder of the run, relative to the folder of the campaign."""
        return f"{self.cell}/rep-{self.number:02d}"


@dataclass(frozen=True)
class Campaign:
    """The real cells of an experiment with testbeds, and the order of their repetitions."""

    file: ExperimentFile
    cells: dict[str, RealCell]
    chosen: frozenset[str]  # names of the cells that are to be replayed now
    more: Mapping[str, int] = field(default_factory=dict)  # cell -> repetitions that are added for unhealthy ones

    @property
    def counts(self) -> dict[str, int]:
        """Cell -> number of its repetitions, without those that are added."""
        return {name: cell.replay.repetitions for name, cell in self.cells.items() if cell.replay is not None}

    @property
    def order(self) -> list[Slot]:
        """The repetitions of all cells in a random order of execution, by seed, names, repetitions and session.

        Those that are added come last.
        """
        sessions, rng = self.file.experiment.sessions, np.random.default_rng(self.file.experiment.seed)
        counted = dict.fromkeys(self.cells, 0)
        order: list[Slot] = []
        for session in range(sessions):
            shares = [(count + session) // sessions for count in self.counts.values()]
            for cell in map(str, rng.permutation(np.repeat(list(self.counts), shares))):
                counted[cell] += 1
                order.append(Slot(cell, counted[cell], session + 1))
        added = [Slot(cell, counted[cell] + more + 1, sessions) for cell, n in self.more.items() for more in range(n)]
        return order + added
