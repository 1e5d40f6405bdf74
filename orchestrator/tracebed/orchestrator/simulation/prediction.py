"""Predictions: simulations of a workload under a policy on virtual nodes."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from tracebed.converters.workload import MAX_EXACT, System, Workload
from tracebed.ground import bounds
from tracebed.ground.display import counted
from tracebed.ground.errors import InputError
from tracebed.ground.registry import one_of, unknown
from tracebed.ground.states import JobState
from tracebed.ground.table import PACKED_FROM, release_memory
from tracebed.machine.calendar import Calendar, Clock
from tracebed.machine.machine import Machine
from tracebed.machine.nodes import NodeFacts
from tracebed.machine.pools import Pools
from tracebed.orchestrator.executors import Options, execute
from tracebed.orchestrator.run import Run, RunInfo, workload_facts
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.names import NODE_FAILURES, SHRINK
from tracebed.orchestrator.scheduling.sleeping import Sleeping
from tracebed.orchestrator.scheduling.state import Policy, handles_requests
from tracebed.orchestrator.setup import AnyPolicy, Setup, Timing
from tracebed.orchestrator.simulation.checkpoints import Checkpoints
from tracebed.orchestrator.simulation.delays import Delays, Drawn, Pauses, count_dispatched, draw
from tracebed.orchestrator.simulation.engine import CompiledSimulator, missing, obstacle
from tracebed.orchestrator.simulation.engine.pools import PooledSimulator
from tracebed.orchestrator.simulation.interference import Interference
from tracebed.orchestrator.simulation.outages import OutageModel, Outages, horizon_s
from tracebed.orchestrator.tables import make_run

if TYPE_CHECKING:
    from tracebed.orchestrator.simulation.simulator import Simulator

EngineChoice: TypeAlias = Literal["auto", "compiled", "python"]
"""The simulator to use. `auto`: the compiled engine if it supports the simulation, else the Python simulator."""
SLOWER = "6 to 30"
"""Time of the Python simulator in that of the compiled engine, in words (docs/explanation/engine.md)."""


@dataclass(frozen=True, kw_only=True)
class PredictionOptions(Options):
    """What only a simulation has besides the setup."""

    engine: EngineChoice = "auto"
    """The simulator. The results of both are identical."""
    member: int | None = None
    """Seed of a member of an ensemble, with which the delays of the jobs are drawn from the distributions of the
    calibration, and the phases of the loops of the policy `slurm`. None: all delays are the overheads."""
    outages: Calendar | OutageModel | None = None
    """The outages of the nodes, or a model from which they are drawn. None: there are none."""
    on_node_failure: str = "requeue"
    """Treatment of the jobs of a node that is down, one of `scheduling.names.NODE_FAILURES`, or `SHRINK`: malleable
    jobs continue on their other nodes."""
    checkpoint_s: float = 0.0
    """Work between two checkpoints of a job, from which it continues if it loses a node, s. 0: it begins again."""
    checkpoint_cost_s: float = 0.0
    """Time to write a checkpoint, s."""

    def __post_init__(self) -> None:
        """Raise InputError if the treatment is unknown, or there is no use of checkpoints."""
        one_of("on_node_failure", self.on_node_failure, (*NODE_FAILURES, SHRINK))
        if self.checkpoint_s:
            bounds.check("checkpoint_s", self.checkpoint_s, 1e-3, bounds.MAX_SECONDS)
        bounds.check("checkpoint_cost_s", self.checkpoint_cost_s, 0.0, bounds.MAX_SECONDS)
        if self.checkpoint_cost_s and not self.checkpoint_s:
            raise InputError("checkpoints have a cost and no interval", hint="give checkpoint_s")
        if self.checkpoint_s and (self.outages is None or self.on_node_failure == "fail"):
            what = "no job continues from a checkpoint"
            raise InputError(what, hint="give outages, and requeue or shrink as on_node_failure")


class Simulation:
    """The executor `simulator`: jobs on whole nodes, in virtual time. A derived class may replace parts of it."""

    options = PredictionOptions
    predicts = True

    def accepts(self, machine: Machine, setup: Setup) -> bool:
        """Return that each machine is accepted, under a policy without a simulation of its own."""
        return True

    def execute(self, workload: Workload, machine: Machine, setup: Setup, options: PredictionOptions) -> Run:
        """Simulate a workload.

        Raises:
            InputError: no job has a run time and a size; the engine is unknown or does not support the simulation; or a
                member needs a calibration that has distributions.
        """
        nodes = list(machine.nodes)
        chosen, policy = setup.resolved(len(nodes))
        timing, member = chosen.timing, options.member
        most = max(node.cores for node in nodes) if machine.plain else None  # else jobs are rejected, not clipped
        jobs, pools = self.jobs(workload, chosen, policy, most), None
        if not machine.plain:
            from tracebed.orchestrator.scheduling.pools import on_pools  # with the scheduler

            jobs, pools = on_pools(workload, machine, jobs, policy)
        measured = timing.calibration.facts() if timing.calibration else {}
        interference, pauses = Interference.of(measured), Pauses.of(measured, jobs, timing.speed)
        drawn = None if member is None else self.delays(timing, len(jobs), member)
        calendar, outages = self.outages(workload, nodes, options)
        if sleeping := Sleeping.of(machine, Clock.of(workload.provenance)):
            sleeping.check(policy)
        reason = obstacle(
            jobs,
            policy,
            len(nodes),
            chosen,
            interference=interference,
            outages=outages,
            pools=pools,
            sleeping=sleeping,
        )
        simulator_class = simulator_of(options.engine, reason, pools)
        cores, sockets = [node.cores for node in nodes], [node.sockets for node in nodes]
        simulator = simulator_class(
            jobs,
            cores,
            policy,
            chosen,
            sockets=sockets,
            interference=interference,
            drawn=drawn,
            pauses=pauses,
            outages=outages,
            pools=pools,
            sleeping=sleeping,
        )
        with no_collection(), ThreadPoolExecutor(1) as thread:
            facts = thread.submit(workload_facts, workload, options.name)  # hashes while the compiled engine simulates
            record = simulator.run(options.on_progress)
        if len(jobs) >= PACKED_FROM:
            release_memory()
        if timing.dispatched:
            count_dispatched(record, simulator.cluster, Delays(timing.overheads.times(timing.speed), drawn))
        if (np.asarray(record.end) > MAX_EXACT).any():
            raise InputError(f"the jobs end later than {MAX_EXACT:.3g} s", hint="use shorter run times or overheads")
        info = RunInfo(
            source="simulator",
            engine="compiled" if simulator_class in (CompiledSimulator, PooledSimulator) else "python",
            execution="simulated",
            nodes=nodes,
            machine=None if machine.told_by_nodes else machine,
            workload=facts.result(),
            setup=chosen,
            calibration=measured,
            outages=record.outages_of([node.name for node in nodes]) if outages else [],
            parameters=({} if member is None else {"member": member}) | calendar,
            warnings=self.ignored(workload, policy) + (sleeping.warnings if sleeping else []),
        )
        if (lost := len(simulator.cluster.lost)) and (never := record.state.count(JobState.UNKNOWN)):
            absent = f"{lost:,} of {len(nodes):,} nodes did not return"
            info.warnings.append(f"{counted(never, 'job')} never started, and {absent}")
        run = make_run(record, simulator.cluster, info, pools=None if pools is None else pools.of)
        if len(jobs) >= PACKED_FROM:
            release_memory()
        return run

    def outages(
        self, workload: Workload, nodes: Sequence[NodeFacts], options: PredictionOptions
    ) -> tuple[dict[str, Any], Outages | None]:
        """Return the outages of a simulation, and what `RunInfo.parameters` says of them.

        Raises:
            InputError: a node of an outage is not on the machine, or too many are drawn.
        """
        given = options.outages
        if given is None:
            return {}, None
        calendar = given.calendar(nodes, horizon_s(workload, len(nodes))) if isinstance(given, OutageModel) else given
        facts: dict[str, Any] = {"sha256": calendar.digest, "listed": len(calendar.outages)}
        facts |= {"model": asdict(given)} if isinstance(given, OutageModel) else {}
        facts["on_node_failure"] = options.on_node_failure
        checkpoints = None
        if options.checkpoint_s:
            facts |= {name: getattr(options, name) for name in ("checkpoint_s", "checkpoint_cost_s")}
            checkpoints = Checkpoints(options.checkpoint_s, options.checkpoint_cost_s)
        changes, names = calendar.changes(nodes), [node.name for node in nodes]
        return {"outages": facts}, Outages(changes, names, options.on_node_failure, checkpoints)

    def jobs(self, workload: Workload, setup: Setup, policy: Policy, most: int | None) -> Jobs:
        """Return the jobs of a workload. `most`: most cores of a node, to which they are clipped; None: any number."""
        scheduling = setup.scheduling
        return Jobs.of(
            workload,
            cores_per_node=most,
            over_limit=scheduling.over_limit,
            evolving=handles_requests(policy),
            dependencies=scheduling.dependencies,
        )

    def delays(self, timing: Timing, jobs: int, member: int) -> Drawn | None:
        """Return the factors of the delays of a member.

        Raises:
            InputError: the calibration has no distributions.
        """
        if timing.calibration is None or not timing.calibration.factors:
            what = (
                "the calibration has no distributions of delays" if timing.calibration else "the calibration is missing"
            )
            raise InputError(
                f"an ensemble draws delays: {what}", hint="calibrate the nodes, `tracebed nodes calibrate`"
            )
        return draw(timing.calibration.factors, jobs, member)

    def ignored(self, workload: Workload, policy: Policy) -> list[str]:
        """Return a warning for each column of the workload that the simulation ignores under its policy."""
        return []


EXECUTOR = Simulation()


def predict(
    workload: Workload,
    nodes: int | Sequence[NodeFacts] | Machine | None,
    setup: AnyPolicy | Setup,
    *,
    name: str = "workload",
    engine: EngineChoice = "auto",
    on_progress: Callable[[int], None] | None = None,
    member: int | None = None,
    outages: Calendar | OutageModel | None = None,
    on_node_failure: str = "requeue",
    checkpoint_s: float = 0.0,
    checkpoint_cost_s: float = 0.0,
    **settings: Any,
) -> Run:
    """Simulate `workload` on `nodes` under `setup` and return the run.

    Args:
        workload: the submission list.
        nodes: the machine, its nodes, or a number of nodes of the workload's system. None: all nodes of that system.
        setup: the setup, or its policy: the name of an installed one, a class, or an instance.
        name: the name of the workload, for reports.
        engine: the simulator. The results of both are identical.
        on_progress: called periodically with the number of jobs submitted so far.
        member: see `PredictionOptions`.
        outages: see `PredictionOptions`.
        on_node_failure: see `PredictionOptions`.
        checkpoint_s, checkpoint_cost_s: see `PredictionOptions`.
        settings: settings by name, as for `Setup.of`.

    Raises:
        InputError: as `machine_of`, `execute` and `Simulation.execute`; or a setting is unknown or invalid.
    """
    chosen = Setup.of(setup, **settings)
    options = PredictionOptions(
        name=name,
        engine=engine,
        on_progress=on_progress,
        member=member,
        outages=outages,
        on_node_failure=on_node_failure,
        checkpoint_s=checkpoint_s,
        checkpoint_cost_s=checkpoint_cost_s,
    )
    return execute(workload, machine_of(workload, nodes), chosen, options)


def machine_of(workload: Workload, nodes: int | Sequence[NodeFacts] | Machine | None) -> Machine:
    """Return the machine of a simulation; `nodes` as for `predict`.

    Raises:
        InputError: the number of nodes is out of bounds, or the size of the workload's system is unknown.
    """
    if isinstance(nodes, Machine):
        return nodes
    system = workload.provenance.system
    if nodes is None:
        return Machine.of_system(system)
    if not isinstance(nodes, Sequence):
        bounds.check("nodes", nodes, 1, bounds.MAX_MACHINE)
        return Machine.of_system(System(int(nodes), system.cores_per_node))
    bounds.check("number of nodes", len(nodes), 1, bounds.MAX_MACHINE)
    for node in {node.cores: node for node in reversed(nodes)}.values():  # the first node of each size
        bounds.check(f"cores of node {node.name}", node.cores, 1, bounds.MAX_MACHINE)
    return Machine.of_nodes(nodes)


@cache
def _warn(reason: str) -> None:
    """Warn, once a process, that simulations are slow."""
    warnings.warn(f"{reason}; simulations take about {SLOWER} times as long, with the same results", stacklevel=6)


def simulator_of(
    engine: EngineChoice, obstacle: str, pools: Pools | None = None
) -> type[CompiledSimulator] | type[PooledSimulator] | type[Simulator]:
    """Return the simulator to use. `obstacle`: the reason why the compiled engine cannot be used, or an empty text."""
    if engine not in get_args(EngineChoice):
        raise unknown("engine", engine, list(get_args(EngineChoice)))
    if engine == "compiled" and obstacle:
        raise InputError(obstacle, hint="use --engine auto or --engine python")
    if engine == "auto" and obstacle and obstacle == missing():
        _warn(obstacle)
    if engine == "python" or obstacle:
        from tracebed.orchestrator.simulation.simulator import Simulator  # the compiled engine needs no scheduler

        return Simulator
    return PooledSimulator if pools else CompiledSimulator


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector: it takes a tenth of the time, and the simulators create no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
