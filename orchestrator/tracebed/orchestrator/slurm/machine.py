"""The cluster of a slurm.conf: nodes with their resources, partitions, and the weights of priority/multifactor.

Source: slurm.conf(5) and topology.conf(5) of Slurm 22.05.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tracebed.errors import InputError
from tracebed.orchestrator.slurm.lines import Line, cpus, entries, hosts_of, lines_of, whole

MINUTE_S = 60
UNLIMITED = ("infinite", "unlimited", "-1")
SHARED = ("select/cons_tres", "select/cons_res")
WITH_MEMORY = ("cr_core_memory", "cr_cpu_memory", "cr_socket_memory", "cr_memory")
TREES = ("topology/tree",)


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
        switch: the switch of the lowest level; empty: there is no topology.
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
        default: whether jobs without a partition belong to it.
        tier: jobs of a higher tier are considered first (`PriorityTier`).
        factor: `PriorityJobFactor`.
        limit_s: largest time limit of a job, s; infinite: none.
        memory_per_core_mib: memory for each core of a job that asks for no memory; 0: all memory of a node.
        exclusive: whether jobs get whole nodes (`OverSubscribe=EXCLUSIVE`).
    """

    name: str
    nodes: tuple[int, ...]
    default: bool = False
    tier: int = 1
    factor: int = 1
    limit_s: float = math.inf
    memory_per_core_mib: int = 0
    exclusive: bool = False


class Weights(Fact):
    """The parameters of priority/multifactor. All weights 0: priority/basic, the order of submission.

    Attributes:
        age, fairshare, job_size, partition: weights of the factors (`PriorityWeightAge`, ...).
        max_age_s: waiting time at which the factor of the age is 1, s.
        half_life_s: time in which recorded usage decays to one half, s; 0: no decay.
        period_s: time between two computations of all priorities, s.
        favor_small: whether the factor of the size decreases with the size.
    """

    age: int = 0
    fairshare: int = 0
    job_size: int = 0
    partition: int = 0
    max_age_s: float = 7 * 86400.0
    half_life_s: float = 7 * 86400.0
    period_s: float = 300.0
    favor_small: bool = False


class Machine(Fact):
    """The cluster.

    Attributes:
        nodes: the nodes, in the order of slurm.conf.
        partitions: the partitions.
        shared: whether jobs share nodes, by cores; else jobs get whole nodes.
        memory: whether memory is allocated, too.
        weights: the weights of priorities.
        kill_wait_s: time from the time limit of a job to its forced end, s.
        defer: whether jobs are not tried at their submission.
    """

    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    shared: bool = False
    memory: bool = False
    weights: Weights = Weights()
    kill_wait_s: int = 30
    defer: bool = False

    @property
    def plain(self) -> bool:
        """Whether the nodes are equal and wholly allocated, in one partition, in the order of submission."""
        first = self.nodes[0]
        alike = all(node == first.model_copy(update={"name": node.name}) for node in self.nodes)
        whole = len(self.partitions) < 2 and len(self.partitions[0].nodes) == len(self.nodes)
        return alike and whole and not self.shared and self.weights == Weights() and not first.switch

    def partition(self, name: str) -> int | None:
        """Return the number of a partition, of the default one if `name` is empty; None: there is no such partition."""
        for number, partition in enumerate(self.partitions):
            if partition.name == name or (not name and partition.default):
                return number
        return 0 if not name else None


def machine_of(lines: Sequence[Line], path: Path) -> Machine | None:
    """Return the cluster of the lines of a slurm.conf; None: the file names no nodes with a known number of cores.

    The file topology.conf in the same folder is read if the file says `TopologyPlugin=topology/tree`.

    Raises:
        InputError: a list of nodes or a number is invalid, or a partition has a node that no line names.
    """
    values = {line.key.lower(): line.value for line in lines}
    switches = _switches(path) if values.get("topologyplugin", "").lower() in TREES else {}
    nodes: list[Node] = []
    for line in entries(lines, "NodeName"):
        nodes += _nodes(line, switches)
    if not nodes or not all(node.cores for node in nodes):
        return None
    numbers = {node.name: number for number, node in enumerate(nodes)}
    partitions = [_partition(line, numbers, values) for line in entries(lines, "PartitionName")]
    if not partitions:
        partitions = [Partition(name="", nodes=tuple(range(len(nodes))), default=True)]
    multifactor = values.get("prioritytype", "priority/basic").lower() == "priority/multifactor"
    parameters = values.get("selecttypeparameters", "").lower().split(",")
    return Machine(
        nodes=tuple(nodes),
        partitions=tuple(partitions),
        shared=values.get("selecttype", "").lower() in SHARED,
        memory=any(parameter in WITH_MEMORY for parameter in parameters),
        weights=_weights(values) if multifactor else Weights(),
        kill_wait_s=whole(values.get("killwait", ""), 30),
        defer="defer" in values.get("schedulerparameters", "").lower().split(","),
    )


def _nodes(line: Line, switches: Mapping[str, str]) -> Iterator[Node]:
    features = tuple(filter(None, re.split(r"[,\s]+", line.of("Feature") or line.of("Features"))))
    # A core with several hardware threads is allocated as a whole.
    cores = cpus(line) // max(1, whole(line.of("ThreadsPerCore"), 1))
    for name in hosts_of(line.value, line.where):
        yield Node(
            name=name,
            cores=cores,
            memory_mib=whole(line.of("RealMemory"), 1),
            gres=gres_of(line.of("Gres")),
            features=features,
            weight=whole(line.of("Weight"), 1),
            switch=switches.get(name, ""),
        )


def gres_of(text: str) -> dict[str, int]:
    """Return the generic resources of a text such as `gpu:tesla:2,nvme`: name -> count, of all types of a name."""
    found: dict[str, int] = {}
    for item in filter(None, re.sub(r"\([^)]*\)", "", text).split(",")):
        name, *rest = item.strip().removeprefix("gres:").removeprefix("gres/").split(":")
        count = rest[-1] if rest and rest[-1].isdecimal() else "1"
        found[name] = found.get(name, 0) + int(count)
    return found


def _partition(line: Line, numbers: Mapping[str, int], values: Mapping[str, str]) -> Partition:
    listed = line.of("Nodes")
    names = [*numbers] if listed.upper() == "ALL" else hosts_of(listed, line.where)
    for name in names:
        if name not in numbers:
            hint = "add a NodeName line, or correct the list"
            raise InputError(f"partition {line.value} has the unknown node {name}", where=line.where, hint=hint)
    oversubscribe = (line.of("OverSubscribe") or line.of("Shared")).upper()
    per_core = line.of("DefMemPerCPU") or values.get("defmempercpu", "")
    return Partition(
        name=line.value,
        nodes=tuple(sorted(numbers[name] for name in names)),
        default=line.of("Default").upper() == "YES",
        tier=whole(line.of("PriorityTier") or line.of("Priority"), 1),
        factor=whole(line.of("PriorityJobFactor") or line.of("Priority"), 1),
        limit_s=duration_s(line.of("MaxTime") or "infinite", line.where),
        memory_per_core_mib=whole(per_core, 0),
        exclusive=oversubscribe == "EXCLUSIVE",
    )


def _weights(values: Mapping[str, str]) -> Weights:
    def weight(name: str) -> int:
        return whole(values.get(f"priorityweight{name}", ""), 0)

    def period(name: str, default: str) -> float:
        return duration_s(values.get(name, default), "")

    return Weights(
        age=weight("age"),
        fairshare=weight("fairshare"),
        job_size=weight("jobsize"),
        partition=weight("partition"),
        max_age_s=period("prioritymaxage", "7-0"),
        half_life_s=period("prioritydecayhalflife", "7-0"),
        period_s=period("prioritycalcperiod", "5"),
        favor_small=values.get("priorityfavorsmall", "no").lower() == "yes",
    )


def duration_s(text: str, where: str) -> float:
    """Return a time of Slurm, s: minutes, minutes:seconds, hours:minutes:seconds, days-hours, or days-h:m:s.

    Raises:
        InputError: the text is not such a time.
    """
    if text.lower() in UNLIMITED:
        return math.inf
    found = re.fullmatch(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", text)
    if found is None:
        raise InputError(
            f"{text[:40]!r} is not a time", where=where, hint="write minutes, or days-hours:minutes:seconds"
        )
    parts = [int(part) for part in found.groups()[1:] if part is not None]
    if found[1] is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return float(((int(found[1]) * 24 + hours) * 60 + minutes) * 60 + seconds)
    if len(parts) == 3:
        return float((parts[0] * 60 + parts[1]) * 60 + parts[2])
    return float(parts[0] * MINUTE_S + (parts[1] if len(parts) > 1 else 0))


def _switches(path: Path) -> dict[str, str]:
    """Return the switch of the lowest level of each node, from the file topology.conf beside a slurm.conf."""
    found: dict[str, str] = {}
    file = path.with_name("topology.conf")
    if not file.is_file():
        return found
    for line in lines_of(file):
        for name in hosts_of(line.of("Nodes"), line.where) if line.of("Nodes") else ():
            found[name] = line.value
    return found
