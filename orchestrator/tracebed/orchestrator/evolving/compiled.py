"""Python binding of evolving.c, which gives the same outcomes as `reference.Simulation`, to the bit."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tracebed.orchestrator.evolving.machine import AllocationPlan, Machine, ProgramOutcome
from tracebed.orchestrator.evolving.programs import Programs
from tracebed.orchestrator.scheduling.shapes import ENTRIES, snake

LIBRARY = Path(__file__).with_name("libtracebed_evolving.so")
PROGRAMS = ["processes", "messages", "steps", "parent", "home", "kind", "argument"]
PROGRAMS += ["sender", "receiver", "amount", "size"]
"""The arrays of `Programs` that are passed as they are."""
NUMBERS = ["jobs", "dimensions", "side0", "side1", "side2", "torus", "cores", "synchronous", "leak", "waits"]
NUMBERS += ["joins_release", "by_nodes", "alone", "starts", "cancels"]
FLOATS = ["bandwidth", "latency"]
ARRAYS = [*PROGRAMS, "first_node", "nodes", "neighbour", "neighbours", "snake", "entry", "start", "cancel"]
ARRAYS += ["start_order", "cancel_order", "started", "ended", "work", "held", "accepted", "completed"]


class EngineInput(ctypes.Structure):
    """`struct setup` of evolving.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in NUMBERS),
        *((name, ctypes.c_double) for name in FLOATS),
        *((name, ctypes.c_void_p) for name in ARRAYS),
    )


@cache
def _library(path: Path) -> Any:
    """Return the library, or None if it was not built, or for another machine or version."""
    try:
        library = ctypes.CDLL(str(path))
        library.tracebed_evolving_size.restype = ctypes.c_int64
        library.tracebed_evolving_run.argtypes = [ctypes.POINTER(EngineInput)]
        return library if library.tracebed_evolving_size() == ctypes.sizeof(EngineInput) else None
    except (OSError, AttributeError):
        return None


def is_available() -> bool:
    """Return whether the compiled simulation was built."""
    return _library(LIBRARY) is not None


def simulated(programs: Programs, machine: Machine, plan: AllocationPlan, *, alone: bool = False) -> ProgramOutcome:
    """Return what happens to the jobs of a plan.

    Args:
        plan: when and where the jobs start.
        alone: simulate each job alone on the machine, without cancellation.

    Raises:
        MemoryError: there is not enough memory.
    """
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
