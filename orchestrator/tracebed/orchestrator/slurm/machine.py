"""The cluster of a slurm.conf: nodes with their resources, partitions, switches, and the weights of priorities."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from pydantic import BaseModel, ConfigDict

from tracebed.errors import InputError
from tracebed.orchestrator.slurm.lines import Line

MINUTE_S = 60
UNLIMITED = ("infinite", "unlimited", "-1")
INFEASIBLE = "write the nodes as n[1-4,7], each named in a NodeName line"


class Fact(BaseModel):
    """Base of the facts of a cluster: immutable, of known fields only."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Node(Fact):
    """A node.

    Attributes:
        name: the name in slurm.conf.
        cores: number of cores.
        memory_mib: memory that jobs may use, MiB.
        gres: generic resource -> count, such as `{"gpu": 2}`.
        features: the features that a job may demand.
        weight: nodes of smaller weight are allocated first.
        switch: the switch of the lowest level, or empty.
    """

    name: str
    cores: int
    memory_mib: int = 1
    gres: dict[str, int] = {}
    features: tuple[str, ...] = ()
    weight: int = 1
    switch: str = ""


class Partition(Fact):
    """A partition.

    Attributes:
        name: the name.
        nodes: numbers of its nodes, ascending.
        tier: jobs of a higher tier are considered first (`PriorityTier`).
        factor: `PriorityJobFactor`, relative to the largest one of all partitions.
        limit_s: largest time limit of a job, s; infinite: none.
        memory_per_core_mib: memory for each core of a job that asks for no memory; 0: all memory of a node.
        exclusive: whether jobs get whole nodes (`OverSubscribe=EXCLUSIVE`).
    """

    name: str
    nodes: tuple[int, ...]
    tier: int = 1
    factor: int = 1
    limit_s: float = math.inf
    memory_per_core_mib: int = 0
    exclusive: bool = False


class Weights(Fact):
    """The parameters of priority/multifactor. All weights 0: priority/basic, the order of submission.

    Attributes:
        age, fairshare, job_size, partition, qos: weights of the factors (`PriorityWeightAge`, ...).
        max_age_s: waiting time at which the factor age is 1, s.
        half_life_s: time in which recorded usage decays to one half, s; 0: no decay.
        period_s: time between two computations of all priorities, s.
        favor_small: whether the factor of the size decreases with the size.
    """

    age: int = 0
    fairshare: int = 0
    job_size: int = 0
    partition: int = 0
    qos: int = 0
    max_age_s: float = 7 * 86400.0
    half_life_s: float = 7 * 86400.0
    period_s: float = 300.0
    favor_small: bool = False

    @property
    def basic(self) -> bool:
        """Whether jobs have the order of submission."""
        return not (self.age or self.fairshare or self.job_size or self.partition or self.qos)


class Machine(Fact):
    """The cluster.

    Attributes:
        nodes: the nodes, in the order of slurm.conf.
        partitions: the partitions, the default one first.
        shared: whether jobs share nodes, by cores (select/cons_tres, select/cons_res); else by whole nodes.
        memory: whether memory is allocated, too (`CR_Core_Memory`, `CR_CPU_Memory`).
        weights: the weights of priorities.
        kill_wait_s: greatest time from the time limit to the end of a job that does not end itself, s.
    """

    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    shared: bool = False
    memory: bool = False
    weights: Weights = field(default_factory=Weights)
