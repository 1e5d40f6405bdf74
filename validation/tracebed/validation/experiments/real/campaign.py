"""Campaigns: the real cells of an experiment, and the random order of their repetitions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.batch.base import BatchSettings
from tracebed.orchestrator.batch.session import BatchOptions
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.programs import shortest_replay
from tracebed.orchestrator.runs.nodes import nodes_of
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.testbeds.calibration import Calibration
from tracebed.orchestrator.testbeds.inventory import FIELDS, inventory_of, load_inventory
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.validation.experiments.file import ExperimentFile, place_of
from tracebed.validation.experiments.testbeds import TestbedSpec


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
class RealCell:
    """A validated cell, with its workload and its inventory."""

    name: str
    workload: Workload
    title: str
    """Name of the workload in reports."""
    inventory: Inventory
    setup: Setup
    options: Options
    work_rate: Calibration | None
    """Calibration with the work rate, and the duty of nodes that have none."""
    beside: str
    scheduler: BatchOptions | None
    """The batch system that decides in place of the policy. Its nodes are simulated as those of `inventory`."""
    repetitions: int

    @property
    def settings(self) -> dict[str, Any]:
        """All settings on which the runs of the cell depend, as JSON values."""
        facts = {
            "workload": self.workload.sha256,
            "inventory": self.inventory.as_dict(),
            **self.setup.as_dict(),
            **asdict(self.options),
            "work_rate": self.work_rate.sha256 if self.work_rate else None,
            "beside": self.beside,
            **(self.scheduler.as_dict() if self.scheduler is not None else {}),
        }
        plain: dict[str, Any] = json.loads(json.dumps(facts))
        return plain

    @property
    def shortest_s(self) -> float:
        """Lower bound of the wall time of a repetition, s."""
        speed, over_limit = self.setup.timing.speed, self.setup.scheduling.over_limit
        return shortest_replay(self.workload, self.inventory, speed, over_limit=over_limit)


@dataclass(frozen=True)
class Campaign:
    """The real cells of an experiment and the order of their repetitions."""

    file: ExperimentFile
    cells: dict[str, RealCell]
    chosen: frozenset[str]
    """Names of the cells that are to be replayed now."""

    @property
    def counts(self) -> dict[str, int]:
        """Cell -> number of its repetitions."""
        return {name: cell.repetitions for name, cell in self.cells.items()}

    @property
    def order(self) -> list[Slot]:
        """The repetitions of all cells in the order of execution, which is random in each session.

        The order depends only on the seed, the names of the cells, and the numbers of repetitions and sessions.
        """
        sessions, rng = self.file.experiment.sessions, np.random.default_rng(self.file.experiment.seed)
        counted = dict.fromkeys(self.cells, 0)
        order: list[Slot] = []
        for session in range(sessions):
            shares = [(count + session) // sessions for count in self.counts.values()]
            for cell in map(str, rng.permutation(np.repeat(list(self.counts), shares))):
                counted[cell] += 1
                order.append(Slot(cell, counted[cell], session + 1))
        return order


def cell_of(
    name: str,
    spec: TestbedSpec,
    setup: Setup,
    workload: Workload,
    title: str,
    inventory: Inventory,
    repetitions: int,
    folder: Path,
) -> RealCell:
    """Return a validated cell.

    Args:
        spec: the testbed, whose paths are relative to `folder`.
        setup: the setup of the replays.
        title: name of the workload in reports.
        inventory: the nodes.
        repetitions: number of repetitions.
        folder: the folder of the experiment file.

    Raises:
        InputError: an option, the placement, a calibration or a CPU of the inventory is invalid.
    """
    inventory.check_here()
    work_rate = Calibration.load(folder / spec.work_rate) if spec.work_rate is not None else None
    scheduler = None
    if spec.scheduler is not None:
        conf = folder / spec.scheduler_conf if spec.scheduler_conf is not None else None
        scheduler = BatchOptions(
            setup.timing.speed,
            spec.scheduler,
            BatchSettings(spec.partition, tuple(spec.scheduler_options), configuration=conf),
        )
        scheduler.system()  # checks the options
        setup = Setup.of(setup, over_limit=OverLimit.KILL)
    cell = RealCell(
        name,
        workload,
        title,
        inventory,
        setup.on(inventory.grid).resolved(len(inventory.nodes))[0],
        Options(balance=spec.balance, clock=spec.clock),
        work_rate,
        spec.beside,
        scheduler,
        repetitions,
    )
    if not 0 <= cell.shortest_s < float("inf"):  # computing it checks that the workload can be replayed
        raise InputError("no job of the workload can be replayed")
    return cell


def inventory_on(bed: str, workload: Workload, file: ExperimentFile) -> Inventory:
    """Return the nodes of a testbed: of its inventory, or of the workload's system if a batch system decides.

    Raises:
        InputError: the inventory is missing or invalid, or the workload has no system.
    """
    spec = file.experiment.beds[bed]
    place = place_of(bed)
    if spec.inventory is None and spec.scheduler is None:
        raise file.source.error("required key inventory is missing", *place)
    if spec.inventory is None:
        nodes = [
            Node(node.name, node.cores, node.sockets, emulated=True) for node in nodes_of(workload.provenance.system)
        ]
        return Inventory(str(spec.scheduler), str(spec.scheduler), tuple(nodes))
    if isinstance(spec.inventory, str):
        path = file.folder / spec.inventory
        return load_inventory(path if path.is_file() else spec.inventory)
    return inventory_of(file.source.part(*place, "inventory", hint=FIELDS), bed or "testbed")
