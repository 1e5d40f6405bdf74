"""The machine on which programs run: nodes with cores, directed links between neighbors, and the routes of messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracebed.ground.errors import InputError
from tracebed.ground.topology import Grid
from tracebed.orchestrator.evolving.programs import FloatArray, IntArray, Programs

BoolArray: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Machine:
    """Nodes that are alike on a grid.

    Args:
        grid: the nodes and their neighbors.
        cores: cores of each node. So many processes compute at full speed; more share the cores equally.
        bandwidth: seconds of message size per second that each direction of each link carries.
        latency: time of a message per link of its route, s, before it uses bandwidth.
    """

    grid: Grid
    cores: int = 1
    bandwidth: float = 1.0
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.cores <= 1_000_000:
            raise InputError(f"invalid number of cores {self.cores}", hint="use a whole number from 1 to 1,000,000")
        if not 0.0 < self.bandwidth < np.inf:
            raise InputError(f"invalid bandwidth {self.bandwidth}", hint="use a number above 0")
        if not 0.0 <= self.latency < np.inf:
            raise InputError(f"invalid latency {self.latency}", hint="use a number of seconds, at least 0")

    def route(self, node: int, other: int) -> list[int]:
        """Return the links from a node to another: along the first dimension, then the second, then the third.

        A torus is crossed the shorter way, upwards if both ways are equally long. Each node has two outgoing links in
        each dimension, to the lower and to the higher neighbor; they are numbered in this order.
        """
        at, end = (list(map(int, self.grid.coordinates[number])) for number in (node, other))
        links = []
        for axis, side in enumerate(self.grid.sides):
            ahead = (end[axis] - at[axis]) % side
            upwards = 2 * ahead <= side if self.grid.torus else end[axis] > at[axis]
            while at[axis] != end[axis]:
                number = int(np.ravel_multi_index(at, self.grid.sides))
                links.append((number * len(at) + axis) * 2 + upwards)
                at[axis] = (at[axis] + (1 if upwards else -1)) % side
        return links


class LeakVariant(IntEnum):
    """How a fork finds a node under dynamic allocation. The numbers are defined in machine.h."""

    CONTIGUOUS = 1  # on the node of its parent or beside a node of its job; else it shares the node of its parent
    # Else on the next idle core of the snake; only if all cores are busy, it shares the node of its parent.
    NONCONTIGUOUS = 2


@dataclass(frozen=True)
class AllocationPlan:
    """When and where jobs start, and when they are cancelled."""

    start: FloatArray
    """Start of each job, s; NaN: the job is rejected. Shape (jobs,)."""
    cancel: FloatArray
    """Time at which a job is cancelled if it still runs, s; infinity: never. Shape (jobs,)."""
    nodes: IntArray | None = None
    """The nodes of the jobs, one job after another, each with as many as its program has, in the order in which
    processes fill them. Shape (sum of nodes,)."""
    leak: LeakVariant | None = None
    """How jobs find their nodes, if `nodes` is None."""
    waits: bool = False
    """With `leak`: a job that finds no idle core at its start waits for one until its cancellation, in the order of the
    starts. False: it is rejected, as in Linnert et al. 2024, figure 10."""
    joins_release: bool = False
    """With `leak`: a forked process keeps its core until it is joined, or its job ends. False: until it ends."""

    by_nodes: bool = False
    """With `leak`: a process searches a node without processes, and one that belongs on the node of the process that
    creates it (a thread) starts there. False: it searches an idle core."""

    def check(self, programs: Programs, machine: Machine) -> None:
        """Raise InputError if the plan does not fit to the programs or the machine."""
        for name, times in (("start", self.start), ("cancel", self.cancel)):
            if times.shape != (len(programs),) or times.dtype != np.float64:
                raise InputError(
                    f"{name} of a plan has the shape {times.shape} for {len(programs)} jobs", hint="float64"
                )
        if np.isinf(self.start).any() or np.isnan(self.cancel).any():
            raise InputError("a start of a plan is infinite, or a cancellation is not a number", hint="use times in s")
        if (self.nodes is None) == (self.leak is None):
            raise InputError("a plan has nodes or leak", hint="give one of the two")
        if self.nodes is None:
            return
        if self.nodes.shape != (programs.nodes.sum(),) or self.nodes.dtype != np.int64:
            raise InputError(
                f"a plan has {self.nodes.shape} nodes for {programs.nodes.sum()} in programs", hint="int64"
            )
        job = np.repeat(np.arange(len(programs)), programs.nodes)
        starts = ~np.isnan(self.start)[job]
        invalid = starts & ((self.nodes < 0) | (self.nodes >= len(machine.grid)))
        if invalid.any():
            raise InputError(
                f"invalid node {self.nodes[invalid][0]}",
                where=f"job {job[invalid][0] + 1}",
                hint=f"a number from 0 to {len(machine.grid) - 1}",
            )


@dataclass(frozen=True)
class ProgramOutcome:
    """What happened to the jobs of a plan. All arrays have the shape (jobs,)."""

    accepted: BoolArray
    start: FloatArray
    """Start, s; NaN: not started."""
    end: FloatArray
    """End or cancellation, s; NaN: not accepted."""
    completed: BoolArray
    """Whether all processes ended."""
    work: FloatArray
    """Work that the processes of the job did, in core seconds."""
    held: FloatArray
    """Cores allocated to the job over time, in core seconds. A static allocation has all cores of its nodes."""

    @classmethod
    def of(
        cls,
        programs: Programs,
        machine: Machine,
        plan: AllocationPlan,
        accepted: BoolArray,
        start: FloatArray,
        end: FloatArray,
        completed: BoolArray,
        work: FloatArray,
        leaked: FloatArray,
    ) -> ProgramOutcome:
        """Return the outcome of a simulation; `leaked` is what jobs held under dynamic allocation, in core seconds."""
        static = np.where(accepted, programs.nodes * machine.cores * (end - start), 0.0)
        return cls(accepted, start, end, completed, work, static if plan.leak is None else leaked)

    def utilization(self, machine: Machine) -> float:
        """Return the share of the machine's core time in which jobs computed, not only held cores (see `held`)."""
        if np.isnan(self.start).all():
            return 0.0
        span = float(np.nanmax(self.end) - np.nanmin(self.start))
        return float(self.work.sum()) / (span * machine.cores * len(machine.grid)) if span > 0.0 else 0.0
