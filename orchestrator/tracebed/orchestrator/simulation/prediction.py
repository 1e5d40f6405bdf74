"""Predictions: simulations of a workload under a policy on virtual nodes."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from tracebed.converters.workload import MAX_EXACT, System, Workload
from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.ground.registry import unknown
from tracebed.ground.states import JobState
from tracebed.orchestrator.run import Run, RunInfo, workload_facts
from tracebed.orchestrator.runs.nodes import NodeFacts, nodes_of
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.scheduling.state import handles_requests
from tracebed.orchestrator.setup import AnyPolicy, Setup, Timing
from tracebed.orchestrator.simulation.delays import Delays, Drawn, Pauses, count_dispatched, draw
from tracebed.orchestrator.simulation.engine import CompiledSimulator, missing, obstacle
from tracebed.orchestrator.simulation.interference import Interference
from tracebed.orchestrator.simulation.simulator import Simulator
from tracebed.orchestrator.tables import make_run

EngineChoice: TypeAlias = Literal["auto", "compiled", "python"]
"""The simulator to use. `auto`: the compiled engine if it supports the simulation, else the Python simulator."""
SLOWER = "6 to 30"
"""Time of the Python simulator in that of the compiled engine, in words (docs/explanation/engine.md)."""


def predict(
    workload: Workload,
    nodes: int | Sequence[NodeFacts] | None,
    setup: AnyPolicy | Setup,
    *,
    name: str = "workload",
    engine: EngineChoice = "auto",
    on_progress: Callable[[int], None] | None = None,
    member: int | None = None,
    **settings: Any,
) -> Run:
    """Simulate `workload` on `nodes` under `setup` and return the run.

    Args:
        workload: the submission list.
        nodes: the nodes, or a number of nodes of the workload's system. None: all nodes of that system.
        setup: the setup, or its policy: the name of an installed one, a class, or an instance.
        name: the name of the workload, for reports.
        engine: the simulator. The results of both are identical.
        on_progress: called periodically with the number of jobs submitted so far.
        member: seed with which the delays of the jobs are drawn from the distributions of the calibration, and the
            phases of the loops of the policy `slurm`: a member of an ensemble. None: all delays are the overheads.
        settings: settings by name, as for `Setup.of`.

    Raises:
        InputError: no job has a run time and a size; a setting or the engine is unknown or invalid; or the engine does
            not support the simulation; or `member` is given without a calibration that has distributions, and the
            policy is not `slurm`.
    """
    chosen = Setup.of(setup, **settings)
    policy = chosen.policy()
    if isinstance(policy, Slurm) and policy.cluster:
        return _predict_cluster(workload, nodes, chosen, name, engine, member)
    machine = machine_of(workload, nodes)
    if isinstance(policy, Slurm) and member is not None:
        _, *parts = np.random.default_rng(member).uniform(0.0, 1.0, 4).tolist()  # as for a cluster
        own = policy.phases(*parts)
        chosen = Setup.of(chosen, policy_parameters={**chosen.scheduling.policy_parameters, **own})
    chosen, policy = chosen.resolved(len(machine))
    scheduling, timing = chosen.scheduling, chosen.timing
    most = max(node.cores for node in machine)
    jobs = Jobs.of(workload, cores_per_node=most, over_limit=scheduling.over_limit, evolving=handles_requests(policy))
    if isinstance(policy, Slurm) and scheduling.over_limit is OverLimit.KILL:
        jobs = jobs.killed_as_logged((workload.runnable()[0].texts("status") == JobState.KILLED).to_numpy(dtype=bool))
    measured = timing.calibration.facts() if timing.calibration else {}
    interference, pauses = Interference.of(measured), Pauses.of(measured, jobs, timing.speed)
    measures = timing.calibration is not None and bool(timing.calibration.factors)
    needless = member is None or (isinstance(policy, Slurm) and not measures)
    drawn = None if needless else _drawn(timing, len(jobs), int(member or 0))
    reason = obstacle(jobs, policy, len(machine), chosen, interference=interference)
    simulator_class = _simulator(engine, reason)
    cores, sockets = [node.cores for node in machine], [node.sockets for node in machine]
    simulator = simulator_class(
        jobs, cores, policy, chosen, sockets=sockets, interference=interference, drawn=drawn, pauses=pauses
    )
    with _no_collection(), ThreadPoolExecutor(1) as thread:
        facts = thread.submit(workload_facts, workload, name)  # hashes while the compiled engine simulates
        record = simulator.run(on_progress)
    if timing.dispatched:
        count_dispatched(record, simulator.cluster, Delays(timing.overheads.times(timing.speed), drawn))
    if (np.asarray(record.end) > MAX_EXACT).any():
        raise InputError(f"the jobs end later than {MAX_EXACT:.3g} s", hint="use shorter run times or overheads")
    info = RunInfo(
        source="simulator",
        engine="compiled" if simulator_class is CompiledSimulator else "python",
        execution="simulated",
        nodes=machine,
        workload=facts.result(),
        setup=chosen,
        calibration=measured,
        parameters={} if member is None else {"member": member},
        warnings=_ignored(workload, policy),
    )
    return make_run(record, simulator.cluster, info)


def _ignored(workload: Workload, policy: object) -> list[str]:
    """Return a warning for each column that a simulation of Slurm ignores."""
    if not isinstance(policy, Slurm):
        return []
    from tracebed.slurm.simulation.events import ignored

    return ignored(workload, policy)


def _predict_cluster(
    workload: Workload,
    nodes: int | Sequence[NodeFacts] | None,
    setup: Setup,
    name: str,
    engine: EngineChoice,
    member: int | None,
) -> Run:
    """Simulate `workload` on the cluster of a slurm.conf; arguments as for `predict`. A member is a seed."""
    from tracebed.slurm.simulation import engine as compiled
    from tracebed.slurm.simulation.prediction import machine_of as cluster_of
    from tracebed.slurm.simulation.prediction import nodes_of as nodes_of_cluster
    from tracebed.slurm.simulation.prediction import simulate

    if member is not None:
        setup = Setup.of(setup, policy_parameters={**setup.scheduling.policy_parameters, "seed": member})
    chosen, policy = setup.complete()
    assert isinstance(policy, Slurm)
    machine = nodes_of_cluster(cluster_of(policy))
    given = len(machine) if nodes is None else nodes if isinstance(nodes, int) else len(nodes)
    if given != len(machine):
        what = f"the slurm.conf has {len(machine):,} nodes, but {given:,} are given"
        raise InputError(what, hint="leave the nodes out: those of the slurm.conf are used")
    obstacle = "" if compiled.available() else missing() or "the compiled engine belongs to another version"
    python = _simulator(engine, obstacle) is Simulator
    with _no_collection():
        record, cluster = simulate(workload, policy, chosen, python=python)
    info = RunInfo(
        source="simulator",
        engine="python" if python else "compiled",
        execution="simulated",
        nodes=machine,
        workload=workload_facts(workload, name),
        setup=chosen,
        warnings=_ignored(workload, policy),
    )
    return make_run(record, cluster, info)


def _drawn(timing: Timing, jobs: int, member: int) -> Drawn:
    """Return the factors of the delays of a member. Raise InputError if the calibration has no distributions."""
    if timing.calibration is None or not timing.calibration.factors:
        what = "the calibration has no distributions of delays" if timing.calibration else "the calibration is missing"
        raise InputError(f"an ensemble draws delays: {what}", hint="calibrate the nodes, `tracebed nodes calibrate`")
    return draw(timing.calibration.factors, jobs, member)


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
    for node in {node.cores: node for node in reversed(nodes)}.values():  # the first node of each size
        bounds.check(f"cores of node {node.name}", node.cores, 1, bounds.MAX_MACHINE)
    return list(nodes)


@cache
def _warn(reason: str) -> None:
    """Warn, once a process, that simulations are slow."""
    warnings.warn(f"{reason}; simulations take about {SLOWER} times as long, with the same results", stacklevel=5)


def _simulator(engine: EngineChoice, obstacle: str) -> type[CompiledSimulator] | type[Simulator]:
    """Return the simulator to use. `obstacle`: the reason why the compiled engine cannot be used, or an empty text."""
    if engine not in get_args(EngineChoice):
        raise unknown("engine", engine, list(get_args(EngineChoice)))
    if engine == "compiled" and obstacle:
        raise InputError(obstacle, hint="use --engine auto or --engine python")
    if engine == "auto" and obstacle and obstacle == missing():
        _warn(obstacle)
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
