"""Predictions: simulations of a workload under a policy on virtual nodes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from tracebed import bounds
from tracebed.converters.workload import MAX_EXACT, System, Workload
from tracebed.errors import InputError
from tracebed.orchestrator.run import NodeFacts, Run, RunInfo, nodes_of, workload_facts
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.placement import FIRST, grid_of
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.priorities import FCFS
from tracebed.orchestrator.scheduling.state import Policy, dispatches, hears
from tracebed.orchestrator.simulation.dispatch import count_dispatched
from tracebed.orchestrator.simulation.engine import CompiledSimulator, obstacle
from tracebed.orchestrator.simulation.interference import Interference
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.simulation.simulator import Overheads, Simulator
from tracebed.orchestrator.tables import make_run
from tracebed.registry import unknown

if TYPE_CHECKING:
    from tracebed.orchestrator.calibration import Calibration

EngineChoice: TypeAlias = Literal["auto", "compiled", "python"]
"""The simulator to use. `auto`: the compiled engine if it supports the simulation, else the Python simulator."""

SHORTEST_GRAIN_S = 1e-6
"""Shortest grain, wall seconds. A replay cannot have a shorter one either."""


def predict(
    workload: Workload,
    nodes: int | Sequence[NodeFacts] | None,
    policy: str | type[Policy] | Policy,
    *,
    name: str = "workload",
    policy_parameters: Mapping[str, Any] | None = None,
    runtime_model: RuntimeModel = RuntimeModel.IDEAL,
    overheads: Overheads | None = None,
    calibration: Calibration | None = None,
    dispatched: bool | None = None,
    speed: float = 1.0,
    interval_s: float = 0.0,
    malleability_interval_s: float = 0.0,
    over_limit: OverLimit = OverLimit.EXTEND,
    priority: str = FCFS,
    placement: str = FIRST,
    engine: EngineChoice = "auto",
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Simulate `workload` on `nodes` under `policy` and return the run.

    Args:
        workload: the submission list.
        nodes: the nodes, or the number of nodes like those of the workload's system. None: the nodes of that system.
        policy: the name of an installed policy, a policy class, or a policy.
        name: the name of the workload, for reports.
        policy_parameters: parameters if `policy` is a name or a class; values may be strings.
        runtime_model: run-time model for jobs that hold fewer cores than requested.
        overheads: overheads in **wall** seconds of a replay at `speed`; None: those of `calibration`, or none.
        calibration: the calibration of the overheads and of the interference, which the run names.
        dispatched: whether the overheads of launches and ends are latencies of a batch system, before the start of a
            job and after its end (`count_dispatched`). None: under a policy that models a batch system (`dispatches`),
            unless they are those of a calibration of jobs that tracebed launches.
        speed: trace seconds per wall second; converts the overheads, and the wall times of a policy, to trace seconds.
        interval_s: > 0: the policy is called only at multiples of it, trace seconds.
        malleability_interval_s: > 0: resizes take effect only at multiples of it since the start of a job.
        over_limit: treatment of jobs that exceed their time limit.
        priority: the order in which waiting jobs are considered, a name of `priorities`.
        placement: the choice of the nodes of jobs and the grid of the machine, as `hilbert@8x16`.
        engine: the simulator. The results of both are identical.
        on_progress: called periodically with the number of jobs submitted so far.

    Raises:
        InputError: no job has a run time and a size; the policy, a parameter, the priority or the engine is unknown;
            the engine does not support the simulation; or a number is out of bounds (`tracebed.bounds`).
    """
    bounds.check("speed", speed, bounds.MIN_SPEED, bounds.MAX_SPEED)
    policy_name, chosen = registry.resolve(policy, policy_parameters, speed=speed)
    machine = machine_of(workload, nodes)
    if dispatched is None:
        dispatched = dispatches(chosen) and (calibration is None or bool(calibration.batch))
    overheads = overheads or calibrated(calibration)
    for key, value in {"interval_s": interval_s, "malleability_interval_s": malleability_interval_s}.items():
        bounds.check(key, value, 0, bounds.MAX_SECONDS)
    registry.check(chosen, interval_s, over_limit)
    for key, value in asdict(overheads).items():
        bounds.check(f"overhead {key}", value, 0, bounds.MAX_SECONDS / speed)
    if overheads.grain_s and malleability_interval_s:
        raise InputError("both a grain and a malleability interval are given", hint="give one of them")
    if 0 < overheads.grain_s < SHORTEST_GRAIN_S:
        raise InputError(f"grain_s is {overheads.grain_s:g}", hint=f"use 0, or at least {SHORTEST_GRAIN_S:g} s")
    grid_of(placement, len(machine))
    most = max(node.cores for node in machine)
    jobs = Jobs.of(workload, cores_per_node=most, over_limit=over_limit, evolving=hears(chosen))
    interference = Interference.of(calibration.facts()) if calibration else None
    reason = obstacle(jobs, chosen, len(machine), priority, placement, overheads=overheads, interference=interference)
    simulator_class = _simulator(engine, reason)
    simulator = simulator_class(
        jobs,
        [node.cores for node in machine],
        chosen,
        runtime_model=runtime_model,
        overheads=overheads.times(speed),
        interval_s=interval_s,
        malleability_interval_s=malleability_interval_s,
        priority=priority,
        placement=placement,
        sockets=[node.sockets for node in machine],
        interference=interference,
    )
    with _no_collection(), ThreadPoolExecutor(1) as thread:
        facts = thread.submit(workload_facts, workload, name)  # hashes while the compiled engine simulates
        record = simulator.run(on_progress)
    if dispatched:
        count_dispatched(record, simulator.cluster, overheads.times(speed))
    if (np.asarray(record.end) > MAX_EXACT).any():
        raise InputError(f"the jobs end later than {MAX_EXACT:.3g} s", hint="use shorter run times or overheads")
    info = RunInfo(
        source="simulator",
        engine="compiled" if simulator_class is CompiledSimulator else "python",
        execution="simulated",
        nodes=machine,
        workload=facts.result(),
        policy=policy_name,
        policy_parameters=registry.parameters(chosen),
        parameters={
            "runtime_model": str(runtime_model),
            "interval_s": interval_s,
            "malleability_interval_s": malleability_interval_s,
            "over_limit": str(over_limit),
            "priority": priority,
            "placement": placement,
            **{f"overhead_{key}": value for key, value in asdict(overheads).items()},
            **({"dispatched": True} if dispatched else {}),
        },
        speed=speed,
        calibration=calibration.facts() if calibration else {},
    )
    return make_run(record, simulator.cluster, info)


def calibrated(calibration: Calibration | None) -> Overheads:
    """Return the overheads of a calibration, wall s; all are 0 without one."""
    return Overheads(**calibration.constants) if calibration else Overheads()


def machine_of(workload: Workload, nodes: int | Sequence[NodeFacts] | None) -> list[NodeFacts]:
    """Return the nodes of the cluster; `nodes` as for `predict`.

    Raises:
        InputError: the number of nodes is out of bounds, or the size of the workload's system is unknown.
    """
    own = workload.provenance.system
    if nodes is None:
        return nodes_of(own)
    if not isinstance(nodes, Sequence):
        bounds.check("nodes", nodes, 1, bounds.MAX_MACHINE)
        return nodes_of(System(int(nodes), own.cores_per_node))
    bounds.check("number of nodes", len(nodes), 1, bounds.MAX_MACHINE)
    for node in nodes:
        bounds.check(f"cores of node {node.name}", node.cores, 1, bounds.MAX_MACHINE)
    return list(nodes)


def _simulator(engine: EngineChoice, obstacle: str) -> type[CompiledSimulator] | type[Simulator]:
    """Return the simulator to use. `obstacle`: the reason why the compiled engine cannot be used, or an empty text."""
    if engine not in get_args(EngineChoice):
        raise unknown("engine", engine, list(get_args(EngineChoice)))
    if engine == "compiled" and obstacle:
        raise InputError(obstacle, hint="use --engine auto or --engine python")
    return Simulator if engine == "python" or obstacle else CompiledSimulator


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector: it takes a tenth of the time, and the simulators create no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
