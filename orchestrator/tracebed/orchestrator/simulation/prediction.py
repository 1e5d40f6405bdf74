"""Predictions: a workload under a policy on nodes that are not there."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal, TypeAlias

from tracebed.converters.workload import Workload
from tracebed.errors import InputError
from tracebed.orchestrator.run import NodeFacts, Run, RunInfo, workload_facts
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.priorities import FCFS
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.simulation.engine import CompiledSimulator, obstacle
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.simulation.simulator import Overheads, Simulator
from tracebed.orchestrator.tables import make_run

EngineChoice: TypeAlias = Literal["auto", "compiled", "python"]
"""The simulator to use; `auto`: the compiled one for all that it supports."""


def predict(
    workload: Workload,
    nodes: Sequence[NodeFacts],
    policy: str | type[Policy] | Policy,
    *,
    name: str = "workload",
    policy_parameters: Mapping[str, Any] | None = None,
    runtime_model: RuntimeModel = RuntimeModel.IDEAL,
    overheads: Overheads | None = None,
    speed: float = 1.0,
    interval_s: float = 0.0,
    malleability_interval_s: float = 0.0,
    over_limit: OverLimit = OverLimit.EXTEND,
    priority: str = FCFS,
    engine: EngineChoice = "auto",
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Simulate `workload` on `nodes` under `policy` and return the run.

    Args:
        workload: the submission list.
        nodes: the machine.
        policy: a name of `policies.registry`, a policy class or an instance.
        name: the workload's name, for reports.
        policy_parameters: its parameters; values may be texts.
        runtime_model: see `runtime_models`.
        overheads: in **wall** seconds of a replay at `speed`.
        speed: trace seconds a wall second; it turns overheads into trace seconds and does nothing else.
        interval_s: > 0: the policy is called only at multiples of it, trace seconds.
        malleability_interval_s: > 0: resizes take effect only at multiples of it since a job's start.
        over_limit: what happens to jobs that outlive their time limit.
        priority: in which order waiting jobs are considered, a name of `priorities`.
        engine: `auto` takes the compiled simulator for what it knows; the results are the same.
        on_progress: called now and then with the number of jobs submitted so far.

    Raises:
        InputError: no job can be run, the policy, its parameters or the priority are not known, or the engine that
            was asked for does not know them.
    """
    policy_name, chosen = registry.resolve(policy, policy_parameters)
    overheads = overheads or Overheads()
    jobs = Jobs.of(workload, cores_per_node=max(node.cores for node in nodes), over_limit=over_limit)
    reason = "" if engine == "python" else obstacle(jobs, chosen, len(nodes), priority)
    if reason and engine == "compiled":
        raise InputError(reason, hint="leave the choice of the engine to us (auto), or take python")
    compiled = engine != "python" and not reason
    simulator = (CompiledSimulator if compiled else Simulator)(
        jobs,
        [node.cores for node in nodes],
        chosen,
        runtime_model=runtime_model,
        overheads=Overheads(**{key: value * speed for key, value in asdict(overheads).items()}),
        interval_s=interval_s,
        malleability_interval_s=malleability_interval_s,
        priority=priority,
    )
    simulator.cluster.sockets = [node.sockets for node in nodes]
    with _no_collection():
        record = simulator.run(on_progress)
    info = RunInfo(
        source="simulator",
        engine="compiled" if compiled else "python",
        execution="simulated",
        nodes=list(nodes),
        workload=workload_facts(workload, name),
        policy=policy_name,
        policy_parameters=registry.parameters(chosen),
        parameters={
            "runtime_model": str(runtime_model),
            "interval_s": interval_s,
            "malleability_interval_s": malleability_interval_s,
            "over_limit": str(over_limit),
            "priority": priority,
            **{f"overhead_{key}": value for key, value in asdict(overheads).items()},
        },
        speed=speed,
    )
    return make_run(record, simulator.cluster, info)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the cyclic garbage collector from looking at millions of live tuples, a tenth of the time, for no cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
