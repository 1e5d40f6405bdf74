"""Simulators of other projects: a registry, fed by entry points of the group `tracebed.simulators`.

A simulator is a module with a `Simulator` and one line in `pyproject.toml`, in tracebed or in another package:

    [project.entry-points."tracebed.simulators"]
    mine = "my_package.mine:SIMULATOR"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tracebed.converters.formats.tools.columns import check_zone
from tracebed.converters.workload import Workload
from tracebed.errors import InputError
from tracebed.orchestrator.run import NodeFacts, Run
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.placement import FIRST
from tracebed.orchestrator.scheduling.priorities import FCFS
from tracebed.orchestrator.simulation.simulator import Overheads
from tracebed.registry import Registry

Side: TypeAlias = Literal["predicted", "real"]
"""Side of a comparison to which an imported run belongs."""
MatchName: TypeAlias = Literal["auto", "id", "order", "shape"]
"""How the jobs of a file are matched with the jobs of a workload: by id, by order of submission, or by submit time,
size and run time. `auto` matches by id if most ids of the file are ids of the workload, else by shape."""

TIMEOUT_S = 3600.0
"""Default time after which a simulator is stopped, wall s."""


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
    unit: str = ""
    """Unit of all times: `s`, `ms`, `us`, `ns`, `min` or `h`. Empty: from the column names, else seconds."""
    time_zone: str = ""
    """Time zone of date-times without an offset (`Europe/Berlin`). Empty: UTC."""
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
        """Raise InputError if the time zone is unknown, also for a file without date-times."""
        if self.time_zone:
            check_zone(self.time_zone)


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """Options of a simulation by the simulator of another project."""

    policy_parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the policy, values may be texts."""
    priority: str = FCFS
    """Order in which waiting jobs are considered, a name of `scheduling.priorities`."""
    placement: str = FIRST
    """Choice of the nodes of jobs, and the grid of the machine, as `scheduling.placement.chooser` reads it."""
    over_limit: OverLimit = OverLimit.EXTEND
    """Treatment of jobs that exceed their time limit."""
    timeout_s: float = TIMEOUT_S
    """Time after which the simulator is stopped and the simulation fails, wall s."""
    folder: Path | None = None
    """Folder in which the input and output files of the simulator are kept. None: a temporary folder."""
    replace: bool = False
    """Whether an earlier folder of this kind is replaced."""
    seed: int = 0
    """Seed of a stochastic simulator."""
    interval_s: float = 0.0
    """Scheduling interval, trace s. 0: the policy is called on every event."""
    malleability_interval_s: float = 0.0
    """Time between malleability points of a job, trace s. 0: as usual in the simulator."""
    overheads: Overheads = field(default_factory=Overheads)
    """Overheads of the predicted system, trace s."""
    calibration: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the calibration that the overheads are from, for the metadata of the run. Empty: without one."""
    speed: float = 1.0
    """Trace seconds per wall second of the predicted replay, for the metadata of the run."""
    on_progress: Callable[[int], None] | None = None
    """Called periodically with the number of jobs submitted so far."""
    name: str = "workload"
    """Name of the workload in reports."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options that only this simulator has, by name."""


@dataclass(frozen=True, kw_only=True)
class Simulator:
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
    simulate: Callable[[Workload, Sequence[NodeFacts], str, SimulateOptions], Run] | None = None
    """Run the simulator: `simulate(workload, nodes, policy, options)`.

    Raises InputError if the simulator is not installed, lacks the policy or an option, or fails.
    """
    version: Callable[[Mapping[str, str]], str] | None = None
    """Return the version, or a hash, of the installed program with `SimulateOptions.options`; empty if it is missing.

    Predictions that `tracebed validate` keeps are made again with another version.
    """
    supports: frozenset[str] = frozenset()
    """Fields of `SimulateOptions` that `simulate` uses, of those in `OPTIONAL`."""


OPTIONAL = ("priority", "placement", "over_limit", "seed", "interval_s", "malleability_interval_s", "overheads")
"""Fields of `SimulateOptions` that a simulator may lack. Other values than the default are then refused."""

SIMULATORS: Registry[Simulator] = Registry("tracebed.simulators", "simulator")


def simulator(name: str) -> Simulator:
    """Return the installed simulator `name`.

    Raises:
        InputError: there is no such simulator, or its entry point is not a `Simulator`.
    """
    found = SIMULATORS.load(name)
    if not isinstance(found, Simulator):
        what = f"is not a simulator: {type(found).__name__}"
        raise InputError(what, where=SIMULATORS.entries[name].value, hint="the entry point names a Simulator")
    return found


def simulate(
    name: str, workload: Workload, nodes: Sequence[NodeFacts], policy: str, options: SimulateOptions | None = None
) -> Run:
    """Run the simulator `name`.

    Args:
        name: an installed simulator with a driver.
        workload: the submission list.
        nodes: the nodes.
        policy: name of the policy.
        options: the options; None: the defaults.

    Raises:
        InputError: there is no such simulator, it has no driver, it does not support an option, or it fails.
    """
    chosen, options = simulator(name), options or SimulateOptions()
    if chosen.simulate is None:
        drivers = [other for other, found in SIMULATORS.all() if isinstance(found, Simulator) and found.simulate]
        hint = f"`tracebed import --from {name}` reads its output; simulators with a driver: {', '.join(drivers)}"
        raise InputError(f"simulator {name} has no driver", hint=hint)
    usual = SimulateOptions()
    for option in OPTIONAL:
        if option not in chosen.supports and getattr(options, option) != getattr(usual, option):
            raise InputError(f"simulator {name} does not support {option}", hint="leave the option out")
    return chosen.simulate(workload, nodes, policy, options)
