"""Evolving jobs on a machine: programs of a workload, plans for their nodes, and their simulation.

The compiled simulation is used if it was built, else the Python one, which is its reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.evolving import behaviours, compiled, reference
from tracebed.orchestrator.evolving.machine import AllocationPlan, LeakVariant, Machine, ProgramOutcome
from tracebed.orchestrator.evolving.programs import Communication, FloatArray, IntArray, Programs
from tracebed.orchestrator.scheduling.placement import median


def programs_of(
    workload: Workload,
    machine: Machine,
    *,
    communication: Communication = "asynchronous",
    seed: int = 0,
    parameters: behaviours.BehaviourParameters | None = None,
) -> Programs:
    """Return programs of the jobs of a workload, adapted to their run times.

    Args:
        workload: jobs with run times and the column `behaviour`. A job uses all cores of its nodes.
        machine: the machine, without latency.
        communication: whether sends wait for their receivers.
        parameters: constants of the programs.

    Raises:
        InputError: a behavior or a run time is missing or invalid, a job is too large, or the machine has latency.
    """
    if "behaviour" not in workload.columns:
        hint = "use a workload of the model deadline-normal, -heavy or -very-heavy"
        raise InputError("the workload lacks the column behaviour", hint=hint)
    drawn = behaviours.drawn(
        [str(name) for name in workload.column("behaviour")],
        workload.ints("nodes"),
        cores=machine.cores,
        communication=communication,
        seed=seed,
        parameters=parameters,
    )
    return adapted(drawn, workload.floats("run_time"), machine)


def adapted(programs: Programs, run_times: FloatArray, machine: Machine) -> Programs:
    """Return the programs, scaled so that each job alone takes its run time on a compact partition of the machine.

    The compact partition is chosen by the placement `median` on the empty machine. Seed 004 adapts its programs in this
    way. Works and sizes are scaled by the same factor, which scales every time if there is no latency.

    Args:
        run_times: run time of each job, s, shape (jobs,).
        machine: the machine, without latency.

    Raises:
        InputError: a job is too large for the machine, a run time is invalid, or the machine has latency.
    """
    if machine.latency:
        raise InputError("programs cannot be adapted to a machine with latency", hint="use a latency of 0")
    invalid = ~((run_times >= 0.0) & np.isfinite(run_times))
    if invalid.any():
        raise InputError(
            f"invalid run time {run_times[invalid][0]}", where=f"job {int(np.argmax(invalid)) + 1}", hint="at least 0 s"
        )
    everywhere = range(len(machine.grid))
    if (large := programs.nodes > len(machine.grid)).any():
        what = f"a job of {programs.nodes[large][0]} nodes on a grid of {len(machine.grid)}"
        raise InputError(what, where=f"job {int(np.argmax(large)) + 1}", hint="use a larger grid")
    compact = {count: median(machine.grid, everywhere, count, (), 0) for count in set(programs.nodes.tolist())}
    plan = reserved(programs, np.zeros(len(programs)), [compact[count] for count in programs.nodes.tolist()])
    return programs.scaled(run_times / run_alone(programs, machine, plan))


def run_alone(programs: Programs, machine: Machine, plan: AllocationPlan) -> FloatArray:
    """Return the run time of each job of a plan alone on the machine, s, shape (jobs,)."""
    plan.check(programs, machine)
    starts = np.where(np.isnan(plan.start), np.nan, 0.0)
    never = np.full(len(programs), np.inf)
    if compiled.is_available():
        plan = replace(plan, start=starts, cancel=never)
        return compiled.simulated(programs, machine, plan, alone=True).end
    ends = np.full(len(programs), np.nan)
    for job in np.flatnonzero(~np.isnan(starts)):
        only = np.full(len(programs), np.nan)
        only[job] = 0.0
        single = replace(plan, start=only, cancel=never)
        ends[job] = reference.ReferenceSimulation(programs, machine, single).run().end[job]
    return ends


def simulate(programs: Programs, machine: Machine, plan: AllocationPlan) -> ProgramOutcome:
    """Simulate the jobs of a plan together on the machine.

    Raises:
        InputError: the plan does not match the programs or the machine.
    """
    plan.check(programs, machine)
    if compiled.is_available():
        return compiled.simulated(programs, machine, plan)
    return reference.ReferenceSimulation(programs, machine, plan).run()


def leaking(
    workload: Workload,
    leak: LeakVariant,
    *,
    waits: bool = False,
    joins_release: bool = False,
    by_nodes: bool = False,
) -> AllocationPlan:
    """Return the plan of dynamic allocation: each job searches its first node at its earliest start.

    The start of a job without `earliest_start` is its submission. A job is cancelled at its deadline, if there is one.

    Args:
        leak: how a fork finds a node.
        waits: whether a job that finds no idle core waits for one until its deadline; else it is rejected.
        joins_release: whether a forked process keeps its core until it is joined; else until it ends.
        by_nodes: whether a process searches a node without processes; else an idle core.
    """
    start = np.fmax(workload.floats("submit_time"), workload.floats("earliest_start"))
    never = _or_never(workload.floats("deadline"))
    return AllocationPlan(start, never, leak=leak, waits=waits, joins_release=joins_release, by_nodes=by_nodes)


def reserved(
    programs: Programs, start: FloatArray, nodes: Sequence[Sequence[int]], cancel: FloatArray | None = None
) -> AllocationPlan:
    """Return the plan of static allocation, for example of a run under a policy with reservations.

    Processes fill the nodes of their job in the order of the numbers of the nodes, since a run has nodes in this order.

    Args:
        start: start of each job, s; NaN: the job is rejected.
        nodes: the nodes of each job, in any order; of a rejected job they are not used.
        cancel: time of cancellation, s: the deadline, or the end of the reservation. NaN, infinity or None: never.

    Raises:
        InputError: a job that starts has another number of nodes than its program.
    """
    flat: list[IntArray] = [np.zeros(0, dtype=np.int64)]
    for job, (given, count) in enumerate(zip(nodes, programs.nodes.tolist(), strict=True)):
        starts = not np.isnan(start[job])
        if starts and len(given) != count:
            hint = "a job has as many nodes as its program"
            raise InputError(f"{len(given)} nodes for a program of {count}", where=f"job {job + 1}", hint=hint)
        flat.append(np.sort(np.asarray(given, dtype=np.int64)) if starts else np.full(count, -1))
    return AllocationPlan(
        start, _or_never(np.full(len(programs), np.inf) if cancel is None else cancel), np.concatenate(flat)
    )


def _or_never(times: FloatArray) -> FloatArray:
    """Return times with infinity for unknown times."""
    return np.where(np.isnan(times), np.inf, times)
