"""Evolving jobs on a machine: programs of a workload, plans for their nodes, and their simulation by evolving.c.

The reference of evolving.c is `tests/oracles/evolving.py`, which gives the same outcomes, to the bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.evolving import behaviours
from tracebed.orchestrator.evolving.machine import AllocationPlan, LeakVariant, Machine, ProgramOutcome
from tracebed.orchestrator.evolving.programs import Communication, FloatArray, IntArray, Programs
from tracebed.orchestrator.scheduling.shapes import ENTRIES, place_median, snake

LIBRARY = Path(__file__).with_name("libtracebed_evolving.so")
INSTALL = "install a C compiler (apt-get install gcc libc6-dev), then tracebed again; or a wheel of `tox -e release`"
PROGRAMS = ["processes", "messages", "steps", "parent", "home", "kind", "argument"]
PROGRAMS += ["sender", "receiver", "amount", "size"]
"""The arrays of `Programs` that are passed as they are."""
NUMBERS = ["jobs", "dimensions", "side0", "side1", "side2", "torus", "cores", "synchronous", "leak", "waits"]
NUMBERS += ["joins_release", "by_nodes", "alone", "starts", "cancels"]
FLOATS = ["bandwidth", "latency"]
ARRAYS = [*PROGRAMS, "first_node", "nodes", "neighbour", "neighbours", "snake", "entry", "start", "cancel"]
ARRAYS += ["start_order", "cancel_order", "started", "ended", "work", "held", "accepted", "completed"]


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
    """Return the programs, scaled so that each job alone takes its run time (s) on a compact partition of the machine.

    The compact partition is chosen by the placement `median` on the empty machine, as in seed 004. Works and sizes are
    scaled by the same factor, which scales every time if there is no latency: a machine with latency is an InputError.
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
    compact = {count: place_median(machine.grid, everywhere, count, (), 0) for count in set(programs.nodes.tolist())}
    plan = reserved(programs, np.zeros(len(programs)), [compact[count] for count in programs.nodes.tolist()])
    return programs.scaled(run_times / run_alone(programs, machine, plan))


def run_alone(programs: Programs, machine: Machine, plan: AllocationPlan) -> FloatArray:
    """Return the run time of each job of a plan alone on the machine, s, shape (jobs,)."""
    plan.check(programs, machine)
    starts = np.where(np.isnan(plan.start), np.nan, 0.0)
    never = np.full(len(programs), np.inf)
    return _simulated(programs, machine, replace(plan, start=starts, cancel=never), alone=True).end


def simulate(programs: Programs, machine: Machine, plan: AllocationPlan) -> ProgramOutcome:
    """Simulate the jobs of a plan together on the machine.

    Raises:
        InputError: the plan does not match the programs or the machine, or the compiled simulation is missing.
    """
    plan.check(programs, machine)
    return _simulated(programs, machine, plan)


class EngineInput(ctypes.Structure):
    """`struct setup` of evolving.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in NUMBERS),
        *((name, ctypes.c_double) for name in FLOATS),
        *((name, ctypes.c_void_p) for name in ARRAYS),
    )


@cache
def _library(path: Path) -> Any:
    """Load the library, which must be built for this machine and version."""
    if not path.exists():
        what = "evolving jobs are simulated in C, and there was no C compiler when tracebed was installed"
        raise InputError(what, hint=INSTALL)
    try:
        library = ctypes.CDLL(str(path))
        library.tracebed_evolving_size.restype = ctypes.c_int64
        library.tracebed_evolving_run.argtypes = [ctypes.POINTER(EngineInput)]
        matches = library.tracebed_evolving_size() == ctypes.sizeof(EngineInput)
    except (OSError, AttributeError):
        matches = False
    if not matches:
        raise InputError(f"{path.name} was built for another machine or version", hint="install tracebed again")
    return library


def _simulated(programs: Programs, machine: Machine, plan: AllocationPlan, *, alone: bool = False) -> ProgramOutcome:
    """Return what happens to the jobs of a plan, or to each job `alone` on the machine, without cancellation."""
    jobs = len(programs)
    beside = machine.grid.neighbours
    order = np.array(snake(machine.grid, 0), dtype=np.int64)
    place = np.argsort(order)
    arrays: dict[str, Any] = {name: getattr(programs, name) for name in PROGRAMS}
    arrays |= {
        "first_node": np.concatenate([[0], np.cumsum(programs.nodes)]),
        "nodes": np.zeros(0, dtype=np.int64) if plan.nodes is None else plan.nodes,
        "neighbour": np.concatenate([[0], np.cumsum([len(others) for others in beside])]),
        "neighbours": np.array([other for others in beside for other in others], dtype=np.int64),
        "snake": order,
        "entry": np.resize([place[snake(machine.grid, job)[0]] for job in range(ENTRIES)], jobs),
        "start": plan.start,
        "cancel": plan.cancel,
        "start_order": np.argsort(plan.start, kind="stable")[: np.count_nonzero(~np.isnan(plan.start))],
        "cancel_order": np.argsort(plan.cancel, kind="stable")[: np.count_nonzero(np.isfinite(plan.cancel))],
        "started": np.full(jobs, np.nan),
        "ended": np.full(jobs, np.nan),
        "work": np.zeros(jobs),
        "held": np.zeros(jobs),
        "accepted": np.zeros(jobs, dtype=np.bool_),
        "completed": np.zeros(jobs, dtype=np.bool_),
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    sides = (*machine.grid.sides, 1, 1)
    setup = EngineInput(
        jobs=jobs,
        dimensions=len(machine.grid.sides),
        side0=sides[0],
        side1=sides[1],
        side2=sides[2],
        torus=machine.grid.torus,
        cores=machine.cores,
        synchronous=programs.communication == "synchronous",
        leak=int(plan.leak or 0),
        waits=plan.waits,
        joins_release=plan.joins_release,
        by_nodes=plan.by_nodes,
        alone=alone,
        starts=len(arrays["start_order"]),
        cancels=len(arrays["cancel_order"]),
        bandwidth=machine.bandwidth,
        latency=machine.latency,
        **{name: arrays[name].ctypes.data for name in ARRAYS},
    )
    if _library(LIBRARY).tracebed_evolving_run(ctypes.byref(setup)):
        raise MemoryError(f"not enough memory to simulate {jobs:,} jobs")
    return ProgramOutcome.of(
        programs,
        machine,
        plan,
        *(arrays[name] for name in ("accepted", "started", "ended", "completed", "work", "held")),
    )


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
