"""Campaign files: YAML files that list the cells of a measurement and their numbers of repetitions.

    repetitions: 10
    sessions: 2
    seed: 1
    defaults: {workload: w.parquet, policy: pref, speed: 4000}
    cells:
      quiet: {inventory: local}
      busy: {inventory: local, beside: stress-ng --cpu 1}

docs/reference/campaign.md describes every key.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, Field, model_validator

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.workload import Workload
from tracebed.errors import InputError
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
from tracebed.validation.setups import OF_REPLAYS, given, model_of
from tracebed.validation.studies.specs import STRICT, Name, Part
from tracebed.yaml_file import FileName, YamlFile

HINT = "keys: repetitions, sessions, seed, settle_s, defaults, cells"
REQUIRED = ("workload", "policy", "inventory")
"""Keys that each cell needs, in the cell or in `defaults`. A cell with a `scheduler` needs no inventory."""
OF_TESTBEDS = {"inventory", "balance", "clock", "work_rate", *OF_REPLAYS} - {"speed"}
"""Keys that a replay on a batch system does not accept."""
MOST_REPETITIONS = 10_000


SetupSpec = model_of("SetupSpec", Part, OF_REPLAYS)
"""The settings of a replay."""


class ReplaySpec(SetupSpec):  # type: ignore[misc, valid-type]
    """The settings and the options of a replay, each optional."""

    inventory: FileName | dict[str, Any] | None = None
    """Name, file or content of an inventory."""
    balance: str = Options.balance
    clock: str = Options.clock
    work_rate: FileName | None = None
    """File of a calibration with the work rate, relative to the file that has the options."""
    beside: str = ""
    """Command that runs beside each repetition."""
    scheduler: str | None = None
    """Name of a batch system that decides in place of a policy, on its own nodes."""
    partition: str | None = None
    scheduler_options: list[str] = Field(default_factory=list)
    """Additional options of each submission, `KEY=VALUE` or `KEY`."""
    scheduler_conf: FileName | None = None
    """Configuration of the batch system, relative to the file that has the options; None: that of the environment."""

    @model_validator(mode="after")
    def _fits_scheduler(self) -> Self:
        given = self.model_fields_set
        if self.scheduler is not None and (wrong := OF_TESTBEDS & given):
            raise ValueError(f"`{min(wrong)}` does not apply with `scheduler`: the batch system decides")
        return self


class CellSpec(ReplaySpec):
    """A cell as written in the file, each key optional."""

    workload: FileName | None = None
    policy: str | None = None
    policy_parameters: dict[str, Any] = Field(default_factory=dict)
    predict: bool | str = False
    """Whether the cell is also simulated: with its calibration, or with that of a file."""
    repetitions: Annotated[int, Field(ge=1, le=MOST_REPETITIONS)] | None = None
    """Number of repetitions of this cell; None: that of the campaign."""

    def over(self, defaults: CellSpec) -> CellSpec:
        """Return this cell with the values of `defaults` for the keys that it does not set."""
        return CellSpec(**{**defaults.model_dump(exclude_unset=True), **self.model_dump(exclude_unset=True)})


class OrderSpec(BaseModel):
    """The number of the repetitions, and their order."""

    model_config = STRICT

    repetitions: Annotated[int, Field(ge=1, le=MOST_REPETITIONS)]
    """Number of repetitions of each cell."""
    sessions: Annotated[int, Field(ge=1)] = 1
    """Number of blocks, each with every cell, in a random order of its own."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    settle_s: Annotated[float, Field(ge=0, le=3600)] = 1.0
    """Pause before each repetition, wall s. The command of `beside` also runs during the pause."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.sessions > (least := min(self.counts.values(), default=self.sessions)):
            raise ValueError(f"{self.sessions} sessions need at least as many repetitions of each cell, not {least}")
        return self

    @property
    def counts(self) -> dict[str, int]:
        """Cell -> number of its repetitions."""
        raise NotImplementedError


class CampaignSpec(OrderSpec):
    """The content of a campaign file."""

    about: str = ""
    defaults: CellSpec = CellSpec()
    cells: Annotated[dict[Name, CellSpec], Field(min_length=1)]

    @property
    def counts(self) -> dict[str, int]:
        """Cell -> number of its repetitions."""
        of_all = self.defaults.repetitions or self.repetitions
        return {name: cell.repetitions or of_all for name, cell in self.cells.items()}


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
class Cell:
    """A validated cell, with its workload and its inventory."""

    name: str
    workload: Workload
    workload_name: str
    inventory: Inventory
    setup: Setup
    options: Options
    work_rate: Calibration | None
    """Calibration with the work rate, and the duty of nodes that have none."""
    beside: str
    scheduler: BatchOptions | None
    """The batch system that decides in place of the policy. Its nodes are simulated as those of `inventory`."""
    predict: bool
    """Whether the cell is also simulated."""
    predicted_by: Calibration | None
    """Calibration of the prediction; None: a prediction without overheads."""

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
    """The cells of a campaign and the order of their repetitions."""

    spec: OrderSpec
    source: YamlFile
    """The file of the campaign."""
    cells: dict[str, Cell]

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.source.where).stem

    @property
    def folder(self) -> Path:
        """The folder of the file: paths in the file are relative to it."""
        return Path(self.source.where).parent

    @property
    def order(self) -> list[Slot]:
        """The repetitions of all cells in the order of execution, which is random in each session.

        The order depends only on the seed, the names of the cells, and the numbers of repetitions and sessions.
        """
        spec, rng = self.spec, np.random.default_rng(self.spec.seed)
        counted = dict.fromkeys(self.cells, 0)
        order: list[Slot] = []
        for session in range(spec.sessions):
            shares = [(count + session) // spec.sessions for count in spec.counts.values()]
            for cell in map(str, rng.permutation(np.repeat(list(spec.counts), shares))):
                counted[cell] += 1
                order.append(Slot(cell, counted[cell], session + 1))
        return order


def load_campaign(path: Path | str) -> Campaign:
    """Read a campaign file, and the workloads and inventories of its cells (paths are relative to the file).

    Raises:
        InputError: the file, a workload, an inventory, a policy or an option is invalid. The error names the line.
    """
    path = Path(path)
    source = YamlFile.read(path, "campaign", hint=HINT, unreadable="give the path of a YAML file")
    spec = source.checked(CampaignSpec)
    workloads: dict[str, Workload] = {}
    cells = {}
    for name, own in spec.cells.items():
        try:
            cells[name] = _cell(name, own.over(spec.defaults), source, workloads)
        except InputError as error:
            if error.where and error.where.startswith(f"{source.where}:"):
                raise
            what = f"cell {name}: {error.where + ': ' if error.where else ''}{error.what}"
            raise source.error(what, "cells", name, hint=error.hint) from error
    return Campaign(spec, source, cells)


def _cell(name: str, spec: CellSpec, source: YamlFile, workloads: dict[str, Workload]) -> Cell:
    """Return a validated cell. `workloads` has the workloads that were read already, by path."""
    for key in REQUIRED:
        if getattr(spec, key) is None and (key != "inventory" or spec.scheduler is None):
            raise InputError(f"required key {key} is missing", hint="add it to the cell or to defaults")
    assert spec.workload and spec.policy  # checked above
    if spec.workload not in workloads:
        workloads[spec.workload] = read_workload(Path(source.where).parent / spec.workload)
    if spec.inventory is None:
        return cell_of(name, spec, workloads[spec.workload], machine_of(workloads[spec.workload], spec), source)
    own = "inventory" in (source.raw["cells"][name] or {})
    place = ("cells", name, "inventory") if own else ("defaults", "inventory")
    inventory = inventory_at(spec.inventory, source, *place, name=name)
    return cell_of(name, spec, workloads[spec.workload], inventory, source)


def machine_of(workload: Workload, spec: ReplaySpec) -> Inventory:
    """Return the nodes of a batch system for simulators: those of the system of the workload.

    Raises:
        InputError: the workload has no system.
    """
    nodes = [Node(node.name, node.cores, node.sockets, emulated=True) for node in nodes_of(workload.provenance.system)]
    return Inventory(str(spec.scheduler), str(spec.scheduler), tuple(nodes))


def cell_of(name: str, spec: CellSpec, workload: Workload, inventory: Inventory, source: YamlFile) -> Cell:
    """Return a validated cell, whose paths are relative to the file `source`.

    Raises:
        InputError: the policy, an option, the placement, a calibration or a CPU of the inventory is invalid.
    """
    assert spec.workload and spec.policy
    folder = Path(source.where).parent
    setup = Setup.of(spec.policy, policy_parameters=spec.policy_parameters, **given(spec, OF_REPLAYS))
    inventory.check_here()
    work_rate = Calibration.load(folder / spec.work_rate) if spec.work_rate is not None else None
    by_file = Calibration.load(folder / spec.predict) if isinstance(spec.predict, str) else None
    scheduler = None
    if spec.scheduler is not None:
        conf = folder / spec.scheduler_conf if spec.scheduler_conf is not None else None
        scheduler = BatchOptions(
            setup.timing.speed, spec.scheduler, BatchSettings(spec.partition, tuple(spec.scheduler_options), conf)
        )
        scheduler.system()  # checks the options
        setup = Setup.of(setup, over_limit=OverLimit.KILL)
    cell = Cell(
        name,
        workload,
        Path(spec.workload).name,
        inventory,
        setup.on(inventory.grid).resolved(len(inventory.nodes))[0],
        Options(balance=spec.balance, clock=spec.clock),
        work_rate,
        spec.beside,
        scheduler,
        bool(spec.predict),
        by_file or work_rate,
    )
    if not 0 <= cell.shortest_s < float("inf"):  # computing it checks that the workload can be replayed
        raise InputError("no job of the workload can be replayed")
    return cell


def inventory_at(value: str | dict[str, Any], source: YamlFile, *place: str, name: str) -> Inventory:
    """Return an inventory from its name, its file (relative to the file `source`), or its content at `place` there.

    Args:
        value: the name, file or content.
        source: the file with `value`.
        place: path of `value` in the file.
        name: name of an inventory that is given by its content.
    """
    if isinstance(value, str):
        file = Path(source.where).parent / value
        return load_inventory(file if file.is_file() else value)
    return inventory_of(source.part(*place, hint=FIELDS), name)
