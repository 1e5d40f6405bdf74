"""Scenarios on a machine of three classes with partitions that may overlap, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from tests.faults.scenario import CORES, FAULTS, HEARTBEAT_S, JOBS, NODES, POLICIES, JobSpec, Scenario
from tracebed.converters.workload import Workload
from tracebed.machine.machine import Partition
from tracebed.orchestrator.testbeds.nodes import AGENTS, Group, Inventory, Node
from tracebed.testing.virtual.provider import VirtualSettings

SMALL_MIB, BIG_MIB = 1_000, 4_000
"""Memory of a node, and of one with much memory."""


class PartitionSpec(NamedTuple):
    """A partition of a scenario: its nodes by number, from 1. The first partition is the default one."""

    name: str
    nodes: tuple[int, ...]
    tier: int = 1
    most_nodes: int = 0


@dataclass(frozen=True)
class PartitionedScenario(Scenario):
    """A scenario in which a job has the nodes of its partitions that have the memory and the GPUs that it demands.

    Attributes:
        big: the nodes with much memory, and twice the cores.
        gpus: the nodes with a GPU.
    """

    partitions: tuple[PartitionSpec, ...] = ()
    big: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()

    @classmethod
    def drawn(cls, seed: int, *, jobs: int = JOBS, nodes: int = NODES, faults: int = FAULTS) -> PartitionedScenario:
        """Return the scenario of a seed."""
        base = Scenario.drawn(seed, jobs=jobs, nodes=nodes, faults=faults)
        draw = random.Random(f"partitions {seed}")
        policy = draw.choice([*(name for name in POLICIES if name != "slurm"), "oar"])  # a replay refuses slurm here
        numbers = range(1, nodes + 1)
        if draw.random() < 0.4:  # no node is in two partitions
            ends = sorted(draw.sample(range(1, nodes), 2))
            own = [tuple(numbers[a:b]) for a, b in zip([0, *ends], [*ends, nodes], strict=True)]
        else:
            own = [tuple(sorted(draw.sample(numbers, draw.randint(1, nodes)))) for _ in range(draw.randint(2, 4))]
        specs = tuple(
            PartitionSpec(f"p{index}", those, draw.choice((1, 1, 2)), draw.choice((0, 0, 0, 2)))
            for index, those in enumerate(own)
        )
        big = tuple(sorted(draw.sample(numbers, draw.randint(0, nodes // 2))))
        gpus = tuple(sorted(draw.sample(numbers, draw.randint(0, nodes // 2))))
        scenario = cls(seed, policy, base.on_node_failure, base.over_limit, nodes, (), base.faults)
        scenario = replace(scenario, partitions=specs, big=big, gpus=gpus)
        demands = []
        for job in base.jobs:
            names = draw.sample([spec.name for spec in specs], draw.choice((0, 1, 1, 1, 2)))
            memory, gpu = draw.choice((0, 0, 0, BIG_MIB)), draw.choice((0, 0, 0, 0, 1))
            asks = job._replace(partition=",".join(names), memory_mib=memory, gpus=gpu)
            most = max(1, min(len(scenario.eligible(asks)), scenario.most_nodes(asks)))
            if draw.random() < 0.9:  # else it may need more nodes than can serve it
                asks = asks._replace(nodes=min(job.nodes, most), low=min(job.low, most))
            demands.append(asks)
        return replace(scenario, jobs=tuple(demands))

    @cached_property
    def present(self) -> list[PartitionSpec]:
        """The partitions that have nodes, without those that the scenario has no longer."""
        specs = [spec._replace(nodes=tuple(n for n in spec.nodes if n <= self.nodes)) for spec in self.partitions]
        return [spec for spec in specs if spec.nodes]

    def of_job(self, job: JobSpec) -> list[PartitionSpec]:
        """Return the partitions of a job."""
        if not job.partition:
            return self.present[:1]
        return [spec for spec in self.present if spec.name in job.partition.split(",")]

    def eligible(self, job: JobSpec) -> set[str]:
        """Return the names of the nodes that can serve a job: slow and obvious, for the rules."""
        own = {number for spec in self.of_job(job) for number in spec.nodes}
        own = own if self.present else {*range(1, self.nodes + 1)}
        own = own & {*self.big} if job.memory_mib > SMALL_MIB else own
        return {f"v{number}" for number in (own & {*self.gpus} if job.gpus else own)}

    def most_nodes(self, job: JobSpec) -> int:
        """Return the most nodes that the partitions of a job allow it."""
        limits = [spec.most_nodes for spec in self.of_job(job)]
        return max(limits) if limits and all(limits) else self.nodes

    @cached_property
    def workload(self) -> Workload:
        """The workload."""
        base = super().workload
        table = base.table.assign(
            partition=[job.partition for job in self.jobs],
            memory_mib=[job.memory_mib or None for job in self.jobs],
            gres=["gpu:1" if job.gpus else "" for job in self.jobs],
        )
        return Workload(table, base.provenance)

    @cached_property
    def inventory(self) -> Inventory:
        """The nodes and the partitions."""
        nodes = tuple(
            Node(
                f"v{n}",
                2 * CORES if n in self.big else CORES,
                emulated=True,
                provider="virtual",
                memory_mib=BIG_MIB if n in self.big else SMALL_MIB,
                gres={"gpu": 1} if n in self.gpus else {},
            )
            for n in range(1, self.nodes + 1)
        )
        partitions = tuple(
            Partition(
                name=spec.name,
                nodes=tuple(f"v{n}" for n in spec.nodes),
                tier=spec.tier,
                most_nodes=spec.most_nodes,
            )
            for spec in self.present
        )
        group = Group("nodes", "virtual", VirtualSettings(seed=self.seed), nodes, "virtual-nodes")
        return Inventory("virtual", AGENTS, nodes, heartbeat_s=HEARTBEAT_S, groups=(group,), partitions=partitions)
