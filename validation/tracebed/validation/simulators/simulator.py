"""Simulators of other projects: a registry, fed by entry points of the group `tracebed.simulators`.

A simulator is a module with a `ExternalSimulator` and one line in `pyproject.toml`, in tracebed or in another package:

    [project.entry-points."tracebed.simulators"]
    mine = "my_package.mine:SIMULATOR"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from tracebed.converters.formats.tools.columns import check_zone
from tracebed.converters.workload import Workload
from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.ground.extension_errors import checked
from tracebed.ground.registry import Registry
from tracebed.machine.machine import Machine
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.executors import Options
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.setup import Setup

Side: TypeAlias = Literal["predicted", "real"]
"""Side of a comparison to which an imported run belongs."""
MatchName: TypeAlias = Literal["auto", "id", "order", "shape"]
"""How the jobs of a file are matched with the jobs of a workload: by id, by order of submission, or by submit time,
size and run time. `auto` matches by id if most ids of the file are ids of the workload, else by shape."""

TIMEOUT_S = 3600.0  # default time after which a simulator is stopped, wall s


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of an import: facts about a file that the file does not contain."""

    side: Side = "predicted"
    """Whether the run was observed on a real system."""
    match: MatchName = "auto"
    """How jobs are matched if there is no `mapping`."""
    mapping: Path | None = None
    """File of two columns: id of the job in the file, id of the job in the workload."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Field (`submit`, `start`, `end`, ...) -> name of its column. For tables without standard names."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """Column of a table -> value: only the rows with this value are read. For tables of several runs."""
    unit: str = ""
    """Unit of all times: `s`, `ms`, `us`, `ns`, `min` or `h`. Empty: from the column names, else seconds."""
    time_zone: str = ""
    """Time zone of date-times without an offset (`Europe/Berlin`). Empty: UTC."""
    speed: float = 1.0
    """Trace seconds per second of the file, by which all of its times are multiplied."""
    nodes: int | None = None
    """Number of nodes. None: as stated by the file, else by the workload."""
    cores_per_node: int | None = None
    """Cores of each node. None: as stated by the file, else by the workload."""
    policy: str = ""
    """Scheduling policy of the run. Empty: as stated by the file, else unknown."""
    name: str = "workload"
    """Name of the workload in reports."""
    workload_facts: Mapping[str, Any] | None = None
    """Facts of the workload for `run.json`. None: those of the workload."""

    def __post_init__(self) -> None:
        """Raise InputError if the speed or the time zone is invalid, also for a file without date-times."""
        bounds.check("speed", self.speed, bounds.MIN_SPEED, bounds.MAX_SPEED)
        if self.time_zone:
            check_zone(self.time_zone)


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(Options):
    """What only a simulation by the simulator of another project has."""

    timeout_s: float = TIMEOUT_S
    """Time after which the simulator is stopped and the simulation fails, wall s."""
    keep: Path | None = None
    """Folder in which the input and output files of the simulator are kept. None: a temporary folder."""
    replace: bool = False
    """Whether an earlier folder of this kind is replaced."""
    seed: int = 0
    """Seed of a stochastic simulator."""
    simulator_options: Mapping[str, str] = field(default_factory=dict)
    """Further options that only this simulator has, by name."""


@dataclass(frozen=True, kw_only=True)
class ExternalSimulator:
    """A simulator of another project: how its output is read, and how it is run. At least one of the two is present."""

    name: str
    """Name of the simulator, which is also the name of its entry point."""
    title: str
    """What the simulator or its output is, in one line."""
    read: Callable[[Path, Workload | None, ReadOptions], Run] | None = None
    """Read the output of the simulator, a file or folder, as a run of the workload.

    If the workload is None, it is made from the file itself. Raises InputError for invalid files and options.
    """
    recognizes: Callable[[Path], bool] | None = None
    """Return whether a file or folder is output of the simulator."""
    simulate: Callable[[Workload, Sequence[NodeFacts], Setup, SimulateOptions], Run] | None = None
    """Run the simulator: `simulate(workload, nodes, setup, options)`. The overheads of a setup are wall s.

    Raises InputError if the simulator is not installed, lacks the policy or an option, or fails.
    """
    version: Callable[[Mapping[str, str]], str] | None = None
    """Return the version, or a hash, of the installed program with its `simulator_options`; empty if it is missing.

    Predictions that `tracebed validate` keeps are made again with another version.
    """
    supports: frozenset[str] = frozenset()
    """Settings of a setup that `simulate` uses besides `EVERY_SIMULATOR`, and `seed`. Other settings are refused."""

    options: ClassVar[type[SimulateOptions]] = SimulateOptions
    predicts: ClassVar[bool] = True

    def accepts(self, machine: Machine, setup: Setup) -> bool:
        """Return whether jobs may have any node of the machine, at any time."""
        return machine.plain and machine.sleep is None

    def execute(self, workload: Workload, machine: Machine, setup: Setup, options: SimulateOptions) -> Run:
        """Run the simulator as an executor; see the function `simulate`."""
        return simulate(self.name, workload, list(machine.nodes), setup, options)


EVERY_SIMULATOR = frozenset({"policy", "policy_parameters", "speed", "grid"})
"""Settings that each simulator accepts. The grid is that of the machine."""

SIMULATORS: Registry[ExternalSimulator] = Registry("tracebed.simulators", "simulator", ExternalSimulator)


def simulate(
    name: str,
    workload: Workload,
    nodes: Sequence[NodeFacts],
    setup: str | Setup,
    options: SimulateOptions | None = None,
    **settings: Any,
) -> Run:
    """Run the simulator `name`, which has a driver; `settings` by name as for `Setup.of`."""
    chosen, options = SIMULATORS.load(name), options or SimulateOptions()
    if chosen.simulate is None:
        drivers = [other for other, external in SIMULATORS.all() if external.simulate]
        hint = f"`tracebed import --from {name}` reads its output; simulators with a driver: {', '.join(drivers)}"
        raise InputError(f"simulator {name} has no driver", hint=hint)
    made = Setup.of(setup, **settings)
    if made.scheduling.instance is not None:
        raise InputError(f"{name} needs a policy that is given by name", hint="give the name of the policy")
    given = [*made.given, *(["seed"] if options.seed else [])]
    for setting in given:
        if setting not in EVERY_SIMULATOR | chosen.supports:
            raise InputError(f"simulator {name} does not support {setting}", hint="leave the option out")
    run: Run = checked(chosen.simulate(workload, nodes, made, options), Run, f"simulator {name}", chosen.simulate)
    return run
