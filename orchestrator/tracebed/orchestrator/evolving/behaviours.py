"""Programs drawn by seed from the behavior of jobs: the four types of Linnert et al. 2024, table 1 and figures 1 to 4.

The paper describes the types in words and figures without constants, so every constant is a choice of tracebed
(`BehaviourParameters`). Only the ratios of works and sizes matter: programs are scaled to the run times of jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tracebed.converters.models.deadlines import TYPES
from tracebed.ground.errors import InputError
from tracebed.orchestrator.evolving.programs import (
    COMMUNICATIONS,
    Builder,
    Communication,
    IntArray,
    Programs,
    Round,
)


@dataclass(frozen=True)
class BehaviourParameters:
    """Constants of the programs. The mean work of a process in a superstep or phase is 1."""

    per_node: int = 0  # `independent`, `bsp` and `forks`: processes on each node of a job; 0: one on each core
    imbalance: float = 0.2  # works are uniform between 1 - imbalance and 1 + imbalance of their mean
    # `independent`: size of all input data together, and of all results, relative to the work of a process.
    input: float = 0.05
    supersteps: int = 6  # `bsp`: number of supersteps
    # Size of a message between two processes of the other types, relative to the work of a superstep or phase.
    message: float = 0.05
    phases: int = 3  # `local-forks` and `forks`: number of phases. Each of them forks and joins.
    # `local-forks`: largest number of children of a process in a phase, relative to the other cores of its node (one if
    # there is no other). The number is uniform from 0, so that 2 fills the cores on average.
    overload: float = 2.0
    # `forks`: the tree of a phase has from 1 - growth to 1 + growth times as many processes as a static program.
    growth: float = 0.5
    branches: int = 3  # `forks`: largest number of children of a process; a process that forks has at least 1

    def __post_init__(self) -> None:
        for name, high in (("imbalance", 1.0), ("growth", 1.0), ("overload", 100.0), ("input", 1e6), ("message", 1e6)):
            if not 0.0 <= getattr(self, name) <= high:
                raise InputError(f"invalid {name} {getattr(self, name)}", hint=f"use a number from 0 to {high:g}")
        for name, low in (("supersteps", 1), ("phases", 1), ("branches", 1), ("per_node", 0)):
            if not low <= getattr(self, name) <= 1000:
                raise InputError(f"invalid {name} {getattr(self, name)}", hint=f"use a whole number from {low} to 1000")


def drawn(
    behaviours: Sequence[str],
    nodes: Sequence[int] | IntArray,
    *,
    cores: int,
    communication: Communication,
    seed: int = 0,
    parameters: BehaviourParameters | None = None,
) -> Programs:
    """Return programs of jobs. The program of a job depends on its number, and not on other jobs.

    `behaviours` are `TYPES`. A process uses one of the `cores` of a node. Without `per_node`, a static program has a
    process on each. `communication` is whether sends wait for their receivers.
    """
    if communication not in COMMUNICATIONS:
        hint = f"one of {', '.join(COMMUNICATIONS)}"
        raise InputError(f"unknown communication {communication!r}", hint=hint)
    builder = Builder(communication)
    for number, (behaviour, count) in enumerate(zip(behaviours, nodes, strict=True)):
        if behaviour not in PROGRAMS:
            raise InputError(
                f"unknown behavior {behaviour!r}", where=f"job {number + 1}", hint=f"one of {', '.join(TYPES)}"
            )
        builder.begin(int(count))
        rng = np.random.default_rng([seed, 2, number])  # 0 and 1 are the draws of the workload
        PROGRAMS[behaviour](_Drawing(builder, rng, parameters or BehaviourParameters(), int(count), cores))
    return builder.build()


@dataclass(frozen=True)
class _Drawing:
    """The program of one job: where it is built, and what it is drawn from."""

    builder: Builder
    rng: np.random.Generator
    parameters: BehaviourParameters
    nodes: int
    cores: int

    @property
    def per_node(self) -> int:
        """Processes of a static program on each node."""
        return self.parameters.per_node or self.cores

    @property
    def processes(self) -> int:
        """Processes of a static program."""
        return self.nodes * self.per_node

    def homes(self, processes: int) -> IntArray:
        """Return the nodes of processes that fill one node after another, and begin again at the first node."""
        return np.arange(processes) // self.per_node % self.nodes

    def compute(self, processes: IntArray, mean: float = 1.0) -> None:
        """Add computations of the processes, with the imbalance of the parameters."""
        spread = self.parameters.imbalance
        self.builder.compute(processes, mean * self.rng.uniform(1.0 - spread, 1.0 + spread, len(processes)))

    def mixed(self, processes: IntArray) -> tuple[Round, Round]:
        """Return the rounds of messages in random pairs. With an odd number, one process has no partner."""
        order = self.rng.permutation(processes)
        half = len(order) // 2
        one, other = order[:half], order[half : 2 * half]
        return (one, other, self.parameters.message), (other, one, self.parameters.message)


def independent(job: _Drawing) -> None:
    """Build a Monte Carlo program: the first process distributes input data, all compute, and it collects results."""
    processes = job.builder.create(job.homes(job.processes))
    others = processes[1:]
    root = np.full(len(others), processes[0])
    size = job.parameters.input / max(1, len(others))
    job.builder.exchange((root, others, size))
    job.compute(processes)
    job.builder.exchange((others, root, size))


def bsp(job: _Drawing) -> None:
    """Build a bulk-synchronous program: supersteps of computation and of messages to the neighbours in a rectangle."""
    processes = job.builder.create(job.homes(job.processes))
    numbers = np.arange(len(processes))
    width = math.ceil(math.sqrt(len(processes)))
    rounds: list[Round] = []
    for step, place in ((1, numbers % width), (width, numbers // width)):
        beside = (numbers + step < len(processes)) & ((place + 1 < width) | (step > 1))
        for odd in (0, 1):
            first = numbers[beside & (place % 2 == odd)]
            one, other = processes[first], processes[first + step]
            rounds += [(one, other, job.parameters.message), (other, one, job.parameters.message)]
    for _ in range(job.parameters.supersteps):
        job.compute(processes)
        job.builder.exchange(*rounds)


def local_forks(job: _Drawing) -> None:
    """Build a program of one process per node, which forks others on its own node as the work requires (OpenMP)."""
    builder, most = job.builder, round(job.parameters.overload * max(1, job.cores - 1))
    processes = builder.create(np.arange(job.nodes))
    for _ in range(job.parameters.phases):
        parents = np.repeat(processes, job.rng.integers(0, most, job.nodes, endpoint=True))
        children = builder.fork(parents, parents - processes[0])
        builder.exchange((parents, children, job.parameters.message / max(1, most)))
        job.compute(np.concatenate([processes, children]))
        builder.exchange((children, parents, job.parameters.message / max(1, most)))
        builder.join(parents, children)
        builder.exchange(*job.mixed(processes))


def forks(job: _Drawing) -> None:
    """Build a program of one process, from which a tree grows over the nodes and is joined, in phases (MPI-2)."""
    builder, p = job.builder, job.parameters
    root = builder.create([0])
    for _ in range(p.phases):
        size = max(1, round(job.processes * job.rng.uniform(1.0 - p.growth, 1.0 + p.growth)))
        homes = job.homes(size)
        grown: list[tuple[IntArray, IntArray]] = []
        tree = edge = root
        while len(tree) < size:
            job.compute(edge, 1.0 / p.branches)
            parents = np.repeat(edge, job.rng.integers(1, p.branches, len(edge), endpoint=True))[: size - len(tree)]
            edge = builder.fork(parents, homes[len(tree) : len(tree) + len(parents)])
            builder.exchange((parents, edge, p.message))
            grown.append((parents, edge))
            tree = np.concatenate([tree, edge])
        job.compute(tree)
        builder.exchange(*job.mixed(tree))
        job.compute(tree)
        for parents, children in reversed(grown):
            builder.exchange((children, parents, p.message))
            builder.join(parents, children)


PROGRAMS: dict[str, Callable[[_Drawing], None]] = dict(zip(TYPES, (independent, bsp, local_forks, forks), strict=True))
"""Behavior -> function that builds its program."""
