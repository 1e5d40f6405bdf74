"""The cluster of a slurm.conf: nodes with their resources, partitions, and the weights of priority/multifactor.

Source: slurm.conf(5) and topology.conf(5) of Slurm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from pydantic import Field

from tracebed.ground.errors import InputError
from tracebed.ground.host_lists import host_names
from tracebed.machine import machine as general
from tracebed.machine.machine import Machine
from tracebed.machine.nodes import NodeFacts
from tracebed.machine.power import NodePower
from tracebed.slurm.conf_lines import (
    Line,
    available,
    features_of,
    hosts_of,
    layout_of,
    node_lines,
    partition_lines,
    state_of,
    whole,
    without_node_sets,
)
from tracebed.slurm.database import SCALES, Database, in_cores, mode_of
from tracebed.slurm.gres import counted_gres, demanded_gres, gres_of, kept_gres, licenses_of
from tracebed.slurm.power_saving import NEVER, PowerRules, rules_of, seconds
from tracebed.slurm.reservations import LIST as RESERVATIONS
from tracebed.slurm.reservations import Reservation
from tracebed.slurm.topology import Switch as Switch
from tracebed.slurm.values import MINUTE_S as MINUTE_S
from tracebed.slurm.values import UNLIMITED
from tracebed.slurm.values import Fact as Fact
from tracebed.slurm.values import duration_s as duration_s

FOREVER_S = 10**9
OVER_S = 60.0
"""By how much the logged run time of a job that was killed may exceed its limit, s."""
SHARED = ("select/cons_tres", "select/cons_res")
CONSUMED = "CR_Core_Memory"
"""SelectTypeParameters that Slurm assumes for nodes that jobs share (slurm.conf(5); `scontrol show config`)."""
SOCKETS = ("cr_socket", "cr_socket_memory")
WITH_MEMORY = ("cr_core_memory", "cr_cpu_memory", "cr_socket_memory", "cr_memory")
WHOLE = ("NODE", "TOPO")
"""Values of `Exclusive` with which a job has whole nodes."""
NO_TIME = ("", "NONE")
RESETS = ("daily", "weekly", "monthly", "quarterly", "yearly")
"""Values of `PriorityUsageResetPeriod`, in lower case, that set the usage to zero regularly."""
FLAGS_WITHOUT_EFFECT = ("calculate_running", "fair_tree")
"""`PriorityFlags` that change no decision. Priorities of running jobs matter to preemption only."""


class Alike(Fact):
    """Nodes that are alike.

    Attributes:
        names: their names, as a list of hosts.
        cores: number of cores that jobs may use.
        threads: CPUs of each core, which Slurm allocates together.
        socket_cores: cores of each socket.
        memory_mib: memory that jobs may use, MiB.
        gres: generic resource -> count, such as `{"gpu": 3, "gpu:a100": 2, "gpu:v100": 1}`.
        kept: generic resources that jobs leave to others (`no_consume`).
        weight: nodes of smaller weight are allocated first.
        power: the power of each node by state, and the times of its changes; None: unknown.
        cloud: whether the nodes are off at the begin (`State=CLOUD`).
    """

    names: str
    cores: int
    threads: int = 1
    socket_cores: int = 1
    memory_mib: int = 1
    gres: dict[str, int] = Field(default_factory=dict)
    kept: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    weight: int = 1
    power: NodePower | None = None
    cloud: bool = False


class Partition(Fact):
    """A partition.

    Attributes:
        nodes: its nodes, as a list of hosts; empty: all nodes.
        empty: whether it has no nodes.
        default: whether jobs without a partition belong to it.
        tier: jobs of a higher tier are considered first (`PriorityTier`).
        factor: `PriorityJobFactor`.
        limit_s: largest time limit of a job, s; 0: none.
        default_s: time limit of a job that asks for none, s; 0: the largest one (`DefaultTime`).
        most_nodes: largest number of nodes of a job; 0: any (`MaxNodes`).
        memory_per_core_mib: memory for each core of a job that asks for no memory (`DefMemPerCPU`); for each CPU, where
            cores are CPUs (`SlurmCluster.cpus_per_core`). So are the weights of `billing`.
        memory_per_node_mib: the same for each node (`DefMemPerNode`); if both are 0, it is all memory of a node.
        exclusive: whether jobs get whole nodes (`OverSubscribe=EXCLUSIVE`; from Slurm 26.05 on, `Exclusive=NODE`).
        qos: the QOS of the partition, whose limits apply to its jobs.
        billing: weights of `TRESBillingWeights`, that of memory for each MiB; empty: the cores are billed.
        preempt_mode: what happens to its jobs if they are preempted (`PreemptMode`); empty: as in the whole cluster.
        grace_s: time from the preemption to the end of its jobs, s (`GraceTime`).
        sockets: whether jobs get whole sockets (`CR_Socket`).
        least_loaded: whether the nodes with the most idle cores come first (`LLN`, `CR_LLN`).
        over_limit_s: time that its jobs may run beyond their limit, s (`OverTimeLimit`).
        suspend_s, suspend_timeout_s, resume_timeout_s: of its nodes, see `PowerRules`; None: those of the cluster.
    """

    name: str
    nodes: str = ""
    empty: bool = False
    default: bool = False
    tier: int = 1
    factor: int = 1
    limit_s: float = 0.0
    default_s: float = 0.0
    most_nodes: int = 0
    memory_per_core_mib: int = 0
    memory_per_node_mib: int = 0
    exclusive: bool = False
    qos: str = ""
    billing: dict[str, float] = Field(default_factory=dict)
    preempt_mode: str = ""
    grace_s: int = 0
    sockets: bool = False
    least_loaded: bool = False
    over_limit_s: int = 0
    suspend_s: int | None = None
    suspend_timeout_s: int | None = None
    resume_timeout_s: int | None = None


class Preempt(Fact):
    """How jobs preempt others.

    Attributes:
        by_tier: whether jobs of a partition of a higher tier preempt those of lower ones (`preempt/partition_prio`).
        by_qos: whether jobs of a QOS preempt those of other ones (`preempt/qos`).
        mode: what happens to the others: cancel, requeue, suspend or off (`PreemptMode`).
        exempt_s: a job that has run for less time is not preempted, s (`PreemptExemptTime`).
        youngest: whether the youngest jobs are preempted first (`preempt_youngest_first`).
        again: how often the jobs are sorted again (`preempt_reorder_count`).
    """

    by_tier: bool = False
    by_qos: bool = False
    mode: str = "off"
    exempt_s: float = 0.0
    youngest: bool = False
    again: int = 1


class Weights(Fact):
    """The parameters of priority/multifactor. All weights 0: priority/basic, the order of submission.

    Attributes:
        age, fairshare, job_size, partition, qos, association: weights of the factors (`PriorityWeightAge`, ...).
        tres: weight of each trackable resource (`PriorityWeightTRES`).
        max_age_s: waiting time at which the factor of the age is 1, s.
        half_life_s: time in which recorded usage decays to one half, s; 0: no decay.
        reset: how often recorded usage is set to zero (`PriorityUsageResetPeriod`); empty: never.
        period_s: time between two computations of all priorities, s.
        favor_small: whether the factor of the size decreases with the size.
        flags: `PriorityFlags`, in lower case.
        dampening: `FairShareDampeningFactor`, of the classic fair share.
    """

    age: int = 0
    fairshare: int = 0
    job_size: int = 0
    partition: int = 0
    qos: int = 0
    association: int = 0
    tres: dict[str, float] = Field(default_factory=dict)
    max_age_s: float = 7 * 86400.0
    half_life_s: float = 7 * 86400.0
    reset: str = ""
    period_s: float = 300.0
    favor_small: bool = False
    flags: tuple[str, ...] = ()
    dampening: int = 1

    def normal(self, factor: str) -> bool:
        """Return whether a factor is divided by its largest value: no flag `NO_NORMAL_...` says otherwise."""
        return "no_normal_all" not in self.flags and f"no_normal_{factor}" not in self.flags

    @property
    def classic(self) -> int:
        """The dampening factor of the classic fair share; 0: Fair Tree."""
        return self.dampening if "no_fair_tree" in self.flags else 0


class SlurmCluster(Fact):
    """The cluster.

    Attributes:
        kinds: the nodes by kind, in the order of slurm.conf.
        switches: the switches of `topology/tree`, in the order of topology.conf; empty: there is no topology.
        shared: whether jobs share nodes, by cores; else jobs get whole nodes.
        cons_res: whether they do so with `select/cons_res`, which Slurm had until 23.02.
        memory: whether memory is allocated, too.
        kill_wait_s: time from the time limit of a job to its forced end, s.
        kill_invalid_depend: whether a job is cancelled if its dependency can never be satisfied.
        bf_licenses: whether a backfill pass reserves licences.
        resv_over_run_s: time after the end of a reservation at which its jobs are killed, s.
        partition_job_depth: number of jobs of a partition in a pass of the main loop; 0: any number.
        bf_max_job_part, bf_max_job_user_part: number of jobs of a partition, and of a user in a partition, in a
            backfill pass; 0: any number.
        complete_wait_s: for how long no job starts while another one is completing, s (`CompleteWait`).
        all_partitions: whether a job is refused if it exceeds a limit of one of its partitions (`EnforcePartLimits`).
        bf_one_resv_per_job: whether a job in several partitions has one reservation at most in a backfill pass.
        bf_max_job_array_resv: most tasks of an array with a reservation in a backfill pass.
        enforced: what Slurm enforces (`AccountingStorageEnforce`): associations, limits, qos.
        exact_cpus: whether Slurm counts the CPUs that a job asked for, not those of its cores (`CR_CPU`).
        requeue: whether a job that loses a node returns to the queue (`JobRequeue`).
        saving: when nodes are switched off and on; None: they are always on, or their power is unknown.
    """

    kinds: tuple[Alike, ...]
    partitions: tuple[Partition, ...]
    switches: tuple[Switch, ...] = ()
    shared: bool = False
    cons_res: bool = False
    memory: bool = False
    weights: Weights = Weights()
    kill_wait_s: int = 30
    kill_invalid_depend: bool = False
    preempt: Preempt = Preempt()
    licenses: dict[str, int] = Field(default_factory=dict)
    bf_licenses: bool = False
    resv_over_run_s: int = 0
    partition_job_depth: int = 0
    bf_max_job_part: int = 0
    bf_max_job_user_part: int = 0
    complete_wait_s: int = 0
    all_partitions: bool = False
    bf_one_resv_per_job: bool = False
    bf_max_job_array_resv: int = 20
    enforced: tuple[str, ...] = ()
    exact_cpus: bool = False
    requeue: bool = True
    saving: PowerRules | None = None
    database: Database = Database()

    @cached_property
    def nodes(self) -> tuple[tuple[str, Alike], ...]:
        """Name and kind of each node, in the order of slurm.conf."""
        return tuple((name, kind) for kind in self.kinds for name in host_names(kind.names))

    @cached_property
    def cpus_per_core(self) -> int:
        """CPUs of what the simulation counts as a core: those of a core, or 1 if the nodes differ in that."""
        return _common(kind.threads for kind in self.kinds)

    def cores_of(self, kind: Alike) -> int:
        """Return the cores of a node as the simulation counts them: CPUs, if nodes have cores of unlike threads."""
        return kind.cores * kind.threads // self.cpus_per_core

    @cached_property
    def gres(self) -> tuple[str, ...]:
        """The generic resources that are counted, see `gres.counted_gres`."""
        return counted_gres([kind.gres for kind in self.kinds])

    @property
    def gives_gres(self) -> bool:
        """Whether jobs with whole nodes get generic resources that they do not request."""
        return self.shared and any(kind.gres for kind in self.kinds)

    def demanded(self, gres: str) -> dict[str, int]:
        """Return the generic resources of a text of `--gres` by those of `gres`, and others that no node has."""
        return demanded_gres(gres, [kind.gres for kind in self.kinds], self.gres)

    def power_times(self) -> list[tuple[int, int, int]]:
        """Return `SuspendTime` (-1: never), `SuspendTimeout` and `ResumeTimeout` of each node, s.

        Of its partitions that have one, the largest counts; if none has, it is that of the cluster.
        """
        rules = self.saving or PowerRules()
        given: list[list[list[int]]] = [[[], [], []] for _ in self.nodes]
        for number, partition in enumerate(self.partitions):
            own = (partition.suspend_s, partition.suspend_timeout_s, partition.resume_timeout_s)
            for node in self.members(number):
                for values, value in zip(given[node], own, strict=True):
                    values += [] if value is None else [value]
        found = []
        for suspend, down, up in given:
            suspend = suspend or [rules.suspend_s]
            timeouts = max(down, default=rules.suspend_timeout_s), max(up, default=rules.resume_timeout_s)
            found.append((NEVER if NEVER in suspend else max(suspend), *timeouts))
        return found

    def limit_s(self, partition: int, run_s: float = 0.0) -> float:
        """Return the limit of a job that asks for none, s; 0: there is none.

        A job that ran for longer than `DefaultTime` has asked for more: its limit is taken to be `MaxTime`.
        """
        own = self.partitions[partition]
        return own.default_s if own.default_s and not run_s > own.default_s + OVER_S else own.limit_s

    def members(self, partition: int) -> list[int]:
        """Return the numbers of the nodes of a partition."""
        own = self.partitions[partition]
        if not own.nodes:
            return [] if own.empty else list(range(len(self.nodes)))
        names = set(host_names(own.nodes))
        return [number for number, (name, _) in enumerate(self.nodes) if name in names]

    def only(self, nodes: Collection[str]) -> SlurmCluster:
        """Return the cluster that has some of the nodes. Consecutive nodes that are alike are a kind."""
        own = [(name, kind.model_copy(update={"names": ""})) for name, kind in self.nodes if name in nodes]
        kinds = [
            kind.model_copy(update={"names": ",".join(name for name, _ in alike)})
            for kind, alike in groupby(own, itemgetter(1))
        ]
        left = [
            [self.nodes[number][0] for number in self.members(partition) if self.nodes[number][0] in nodes]
            for partition in range(len(self.partitions))
        ]
        partitions = [
            partition.model_copy(
                update={"nodes": "" if len(names) == len(own) else ",".join(names), "empty": not names}
            )
            for partition, names in zip(self.partitions, left, strict=True)
        ]
        facts = {name: getattr(self, name) for name in SlurmCluster.model_fields}  # without the cached nodes
        return SlurmCluster(**facts | {"kinds": tuple(kinds), "partitions": tuple(partitions)})

    @property
    def plain(self) -> bool:
        """Whether the nodes are equal and wholly allocated, in one partition, in the order of submission."""
        kind = self.kinds[0]
        alike = all(other == kind.model_copy(update={"names": other.names}) for other in self.kinds)
        whole = len(self.partitions) == 1 and len(self.members(0)) == len(self.nodes)
        limited = self.partitions[0].limit_s > 0
        ordered = self.weights != Weights() or self.database != Database()
        special = self.shared or ordered or self.switches or self.saving
        return alike and whole and not limited and not special

    def partition(self, name: str) -> int | None:
        """Return the number of a partition, of the default one if `name` is empty; None: there is no such partition."""
        for number, partition in enumerate(self.partitions):
            if partition.name == name or (not name and partition.default):
                return number
        return 0 if not name else None


@dataclass(frozen=True, kw_only=True, eq=False)
class SlurmMachine(Machine):
    """The machine of a slurm.conf, or one that the simulation of Slurm takes as such.

    Two are equal, for the memory of the simulation, if their content is.

    Attributes:
        cluster: all that the simulation of Slurm knows of it.
        reservations: its advance reservations; None: unknown.
        parameters: parameters of the policy `slurm` in the slurm.conf, as texts.
    """

    cluster: SlurmCluster
    reservations: tuple[Reservation, ...] | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        cluster: SlurmCluster,
        reservations: tuple[Reservation, ...] | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> SlurmMachine:
        """Return the machine of a cluster."""
        classes = tuple(
            general.NodeClass(
                names=tuple(host_names(kind.names)),
                sockets=max(1, kind.cores // kind.socket_cores),
                memory_mib=kind.memory_mib,
                **_same(kind, OF_NODES),
            )
            for kind in cluster.kinds
        )
        partitions = tuple(
            general.Partition(
                nodes=tuple(host_names(partition.nodes)) if partition.nodes else (),
                shared=cluster.shared and not partition.exclusive,
                **_same(partition, OF_PARTITIONS),
            )
            for partition in cluster.partitions
            if not partition.empty
        )
        own: dict[str, Any] = {"classes": classes, "partitions": partitions}
        return cls(**own, cluster=cluster, reservations=reservations, parameters=parameters or {})

    def __post_init__(self) -> None:
        """Check nothing: the cluster is checked where it is read, and may have partitions without nodes."""

    @cached_property
    def nodes(self) -> tuple[NodeFacts, ...]:
        """The nodes, with their cores as the simulation counts them."""
        return tuple(NodeFacts(name, self.cluster.cores_of(kind)) for name, kind in self.cluster.nodes)

    @property
    def plain(self) -> bool:
        """Whether the nodes are equal and wholly allocated, in one partition, in the order of submission."""
        return self.cluster.plain and self.reservations is None

    def to_json(self) -> dict[str, Any]:
        """Return the machine as JSON values."""
        booked = None if self.reservations is None else [_given(each) for each in self.reservations]
        return {
            "source": "slurm",
            "cluster": _given(self.cluster),
            **({} if booked is None else {"reservations": booked}),
            **({"parameters": dict(self.parameters)} if self.parameters else {}),
        }

    @classmethod
    def from_json(cls, raw: Any, where: str = "machine") -> SlurmMachine:
        """Return the machine in the JSON values of `to_json`. Raise InputError if a value is invalid."""
        try:
            return cls.of(
                SlurmCluster.model_validate(raw.get("cluster")),
                None if raw.get("reservations") is None else RESERVATIONS.validate_python(raw["reservations"]),
                raw.get("parameters"),
            )
        except ValueError as error:
            lines = str(error).splitlines()
            what = f"the cluster of Slurm is invalid: {' '.join(lines[:2])}"
            raise InputError(what, where=where, hint="read the slurm.conf again: --machine slurm.conf") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SlurmMachine) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def _given(part: Fact) -> dict[str, Any]:
    """Return a part of a cluster as JSON values, without fields that have their default."""
    return part.model_dump(mode="json", exclude_defaults=True)


def slurm_machine_of(machine: Machine) -> SlurmMachine:
    """Return a machine as Slurm has it: with the defaults of slurm.conf for all that the machine does not say.

    Raises:
        InputError: its nodes sleep.
    """
    if machine.sleep is not None:
        what = "nodes sleep on a cluster of Slurm by the settings of a slurm.conf, and not by `sleep`"
        raise InputError(what, hint="leave out `sleep`, or give a slurm.conf with SuspendTime")
    nodes, shared = iter(machine.nodes), any(partition.shared for partition in machine.partitions)
    kinds = tuple(
        Alike(
            names=",".join(node.name for node in islice(nodes, kind.size)),
            socket_cores=max(1, kind.cores // kind.sockets),
            memory_mib=kind.memory_mib or 1,
            **_same(kind, OF_NODES),
        )
        for kind in machine.classes
    )
    partitions = tuple(
        Partition(
            nodes=",".join(general.expanded(partition.nodes)),
            exclusive=shared and not partition.shared,
            **_same(partition, OF_PARTITIONS),
        )
        for partition in machine.partitions
    ) or (Partition(name="", default=True),)
    memory = shared and all(kind.memory_mib for kind in machine.classes)
    return SlurmMachine.of(SlurmCluster(kinds=kinds, partitions=partitions, shared=shared, memory=memory))


OF_NODES = ("cores", "threads", "gres", "features", "weight", "power")
"""Fields that a class of nodes of a machine and of Slurm have alike."""
OF_PARTITIONS = ("name", "default", "tier", "limit_s", "most_nodes")
"""The same for a partition."""


def _same(part: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(part, name) for name in names}


def machine_of(
    lines: Sequence[Line],
    path: Path,
    database: Database | None = None,
    switches: Sequence[Switch] = (),
    power: Mapping[str, NodePower] | None = None,
) -> SlurmCluster | None:
    """Return the cluster of the lines of a slurm.conf; None: the file names no nodes with a known number of cores.

    Without the `power` of the nodes, none is switched off: it is unknown how long they boot.
    """
    lines = without_node_sets(lines)
    values = {line.key.lower(): line.value for line in lines}
    nodes = node_lines(lines)
    kinds = [kind_of(line) for line in nodes if available(line)]
    if not kinds and any(state_of(line) != "FUTURE" for line in nodes):
        hint = "give State=UNKNOWN to the nodes that run"
        raise InputError("no job can start: each node is DOWN, DRAIN, FAIL or FUTURE", where=str(path), hint=hint)
    if not kinds or not all(kind.cores for kind in kinds):
        return None
    hosts = {line.value: hosts_of(line.value, line.where) for line in nodes}
    names = {name for own in hosts.values() for name in own}
    kinds = _with_power(kinds, hosts, power, str(path)) if power else kinds
    threads = _common(kind.threads for kind in kinds)
    multifactor = values.get("prioritytype", "priority/basic").lower() == "priority/multifactor"
    scheduler = _parameters(values, "schedulerparameters")
    shared = values.get("selecttype", "").lower() in SHARED
    parameters = (values.get("selecttypeparameters") or (CONSUMED if shared else "")).lower().split(",")
    selection = frozenset(parameters) if shared else frozenset[str]()
    partitions = [_partition(line, names, threads, values, selection) for line in partition_lines(lines)]
    default = next((each.name for each in reversed(partitions) if each.default), None)  # Slurm takes the last one
    partitions = [each.model_copy(update={"default": each.name == default}) for each in partitions]
    return SlurmCluster(
        kinds=tuple(kinds),
        partitions=tuple(partitions or [Partition(name="", default=True, **_chosen(selection))]),
        switches=tuple(switches),
        shared=shared,
        cons_res=values.get("selecttype", "").lower() == "select/cons_res",
        memory=any(parameter in WITH_MEMORY for parameter in parameters),
        weights=weights_of(values) if multifactor else Weights(),
        kill_wait_s=whole(values.get("killwait", ""), 30),
        preempt=_preempt(values, scheduler),
        licenses=licenses_of(values.get("licenses", ""), str(path)),
        bf_licenses="bf_licenses" in scheduler,
        resv_over_run_s=_minutes_s(values.get("resvoverrun", "")),
        partition_job_depth=whole(scheduler.get("partition_job_depth", ""), 0),
        bf_max_job_part=whole(scheduler.get("bf_max_job_part", ""), 0),
        bf_max_job_user_part=whole(scheduler.get("bf_max_job_user_part", ""), 0),
        complete_wait_s=whole(values.get("completewait", ""), 0),
        all_partitions=values.get("enforcepartlimits", "").lower() in ("all", "yes"),
        bf_one_resv_per_job="bf_one_resv_per_job" in scheduler,
        bf_max_job_array_resv=whole(scheduler.get("bf_max_job_array_resv", ""), 20),
        kill_invalid_depend="kill_invalid_depend" in _parameters(values, "dependencyparameters"),
        exact_cpus=not selection.isdisjoint(("cr_cpu", "cr_cpu_memory")),
        requeue=values.get("jobrequeue", "1") != "0",
        saving=rules_of(values, partition_lines(lines)) if power else None,
        enforced=_enforced(values.get("accountingstorageenforce", "")),
        database=in_cores(database, threads) if database else Database(),
    )


def weights_of(values: Mapping[str, str]) -> Weights:
    """Return the weights in the settings of a slurm.conf, keys in lower case."""
    given = set(re.split(r"[,\s]+", values.get("priorityflags", "").lower())) - {"", *FLAGS_WITHOUT_EFFECT}
    flags = tuple(sorted(given))
    if "depth_oblivious" in flags:
        flags = (*flags, "no_fair_tree")

    reset = values.get("priorityusageresetperiod", "").lower()

    def weight(name: str) -> int:
        return whole(values.get(f"priorityweight{name}", ""), 0)

    def period(name: str, default: str) -> float:
        return duration_s(values.get(name, default), "")

    return Weights(
        age=weight("age"),
        fairshare=weight("fairshare"),
        job_size=weight("jobsize"),
        partition=weight("partition"),
        qos=weight("qos"),
        association=weight("assoc"),
        tres=tres_weights(values.get("priorityweighttres", ""), ""),
        max_age_s=period("prioritymaxage", "7-0"),
        half_life_s=period("prioritydecayhalflife", "7-0"),
        period_s=period("prioritycalcperiod", "5"),
        favor_small=values.get("priorityfavorsmall", "no").lower() == "yes",
        reset=reset if reset in RESETS else "",
        flags=flags,
        dampening=whole(values.get("fairsharedampeningfactor", ""), 1) or 1,
    )


def tres_weights(text: str, where: str) -> dict[str, float]:
    """Return the weights of a text such as `CPU=1.0,Mem=0.25G,GRES/gpu=2.0`: name -> weight, of memory for each MiB."""
    found = {}
    for item in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*([\w/:.-]+)\s*=\s*(-?[0-9]*\.?[0-9]+)([KMGTP]?)\s*", item, re.IGNORECASE)
        if match is None:
            raise InputError(f"{item[:40]!r} is not a weight", where=where, hint="write CPU=1.0,Mem=0.25G")
        found[match[1].lower()] = float(match[2]) / (SCALES[match[3].upper()] if match[3] else 1)
    return found


def _preempt(values: Mapping[str, str], scheduler: Mapping[str, str]) -> Preempt:
    exempt, own = values.get("preemptexempttime", "-1"), _parameters(values, "preemptparameters")  # from Slurm 24.11 on
    return Preempt(
        by_tier=values.get("preempttype", "").lower() == "preempt/partition_prio",
        by_qos=values.get("preempttype", "").lower() == "preempt/qos",
        mode=_mode(values.get("preemptmode", ""), values) or "off",
        exempt_s=0.0 if exempt == "-1" else duration_s(exempt, ""),
        youngest="preempt_youngest_first" in scheduler or "youngest_first" in own,
        again=whole(own.get("reorder_count") or scheduler.get("preempt_reorder_count", ""), 1),
    )


def _mode(text: str, values: Mapping[str, str]) -> str:
    """Return the part of `PreemptMode` that says what happens to a preempted job; empty: it does not say so."""
    mode = mode_of(text)
    return "cancel" if mode == "requeue" and values.get("jobrequeue", "1") == "0" else mode


def _minutes_s(text: str) -> int:
    """Return `ResvOverRun` or `OverTimeLimit`, in minutes, as s."""
    return FOREVER_S if text.lower() in UNLIMITED else MINUTE_S * whole(text, 0)


def _parameters(values: Mapping[str, str], key: str) -> dict[str, str]:
    """Return the items NAME or NAME=VALUE of a list, names in lower case. Slurm takes the first of a name."""
    found: dict[str, str] = {}
    for item in values.get(key, "").split(","):
        name, _, value = item.partition("=")
        found.setdefault(name.strip().lower(), value.strip())
    return found


def kind_of(line: Line) -> Alike:
    """Return the nodes of a line."""
    cpus, threads, socket_cores = layout_of(line)
    special = hosts_of(f"[{line.of('CpuSpecList')}]", line.where) if line.of("CpuSpecList") else []
    spared, cores = whole(line.of("CoreSpecCount"), -(-len(special) // threads)), cpus // threads
    return Alike(
        names=line.value,
        cores=cores - (spared if spared < cores else min(1, cores - 1)),
        threads=threads,
        socket_cores=socket_cores,
        memory_mib=max(1, whole(line.of("RealMemory"), 1) - whole(line.of("MemSpecLimit"), 0)),
        gres=gres_of(line.of("Gres")),
        kept=kept_gres(line.of("Gres")),
        features=features_of(line),
        weight=whole(line.of("Weight"), 1),
        cloud=state_of(line) == "CLOUD",
    )


def _with_power(
    kinds: Sequence[Alike], names: Mapping[str, Sequence[str]], power: Mapping[str, NodePower], where: str
) -> list[Alike]:
    """Return kinds of nodes with their power. A kind whose nodes differ in power becomes several.

    `names` has the nodes of each list of hosts of the file `where`. An InputError names a node that it lacks.
    """
    known = {name for hosts in names.values() for name in hosts}
    if unknown := next((name for name in power if name not in known), ""):
        hint = "correct the file of the power of nodes"
        raise InputError(f"has no node {unknown}, whose power is given", where=where, hint=hint)
    found: list[Alike] = []
    for kind in kinds:
        for own, alike in groupby(names[kind.names], power.get):
            listed = [*alike]
            hosts = kind.names if len(listed) == len(names[kind.names]) else ",".join(listed)
            found.append(kind.model_copy(update={"names": hosts, "power": own}))
    return found


def _common(threads: Iterable[int]) -> int:
    """Return the CPUs of a core; 1 if the nodes differ in that."""
    different = {*threads}
    return different.pop() if len(different) == 1 else 1


def _chosen(selection: Collection[str]) -> dict[str, Any]:
    """Return what SelectTypeParameters, in lower case, say about the choice of nodes and cores."""
    return {"sockets": not {*selection}.isdisjoint(SOCKETS), "least_loaded": "cr_lln" in selection}


def _partition(
    line: Line, nodes: Collection[str], threads: int, values: Mapping[str, str], selection: Collection[str]
) -> Partition:
    """Return the partition of a line. Slurm counts CPUs; what a simulation counts as a core has `threads` of them."""
    listed = "" if line.of("Nodes").upper() == "ALL" else line.of("Nodes")
    for name in hosts_of(listed, line.where) if listed else ():
        if name not in nodes:
            hint = "add a NodeName line, or correct the list"
            raise InputError(f"partition {line.value} has the unknown node {name}", where=line.where, hint=hint)
    oversubscribe = (line.of("OverSubscribe") or line.of("Shared")).upper()
    per_cpu, per_node = line.of("DefMemPerCPU"), line.of("DefMemPerNode")
    if not (per_cpu or per_node):  # a partition that has one of them ignores both of the whole cluster
        per_cpu, per_node = values.get("defmempercpu", ""), values.get("defmempernode", "")
    own = line.of("SelectTypeParameters").lower()  # CR_Core or CR_Socket, in place of that of the cluster
    if selection and own not in ("", "none"):
        selection = {own, *({"cr_lln"} & {*selection})}
    if line.of("LLN").upper() == "YES" and selection:
        selection = {*selection, "cr_lln"}
    billing = tres_weights(line.of("TRESBillingWeights"), line.where) or ({"cpu": 1.0} if threads > 1 else {})
    return Partition(
        name=line.value,
        nodes=listed,
        empty=not line.of("Nodes"),
        default=line.of("Default").upper() == "YES",
        tier=whole(line.of("PriorityTier") or line.of("Priority"), 1),
        factor=whole(line.of("PriorityJobFactor") or line.of("Priority"), 1),
        limit_s=duration_s(line.of("MaxTime"), line.where) if line.of("MaxTime") else 0.0,
        default_s=duration_s(line.of("DefaultTime"), line.where) if line.of("DefaultTime") not in NO_TIME else 0.0,
        most_nodes=whole(line.of("MaxNodes"), 0),
        memory_per_core_mib=threads * whole(per_cpu, 0),
        memory_per_node_mib=whole(per_node, 0),
        exclusive=oversubscribe == "EXCLUSIVE" or line.of("Exclusive").upper() in WHOLE,
        qos=line.of("QOS"),
        billing={name: weight * threads if name == "cpu" else weight for name, weight in billing.items()},
        preempt_mode=_mode(line.of("PreemptMode"), values),
        grace_s=whole(line.of("GraceTime"), 0),
        **_chosen(selection),
        over_limit_s=_minutes_s(line.of("OverTimeLimit") or values.get("overtimelimit", "")),
        suspend_s=seconds(line.of("SuspendTime")),
        suspend_timeout_s=seconds(line.of("SuspendTimeout")),
        resume_timeout_s=seconds(line.of("ResumeTimeout")),
    )


def _enforced(text: str) -> tuple[str, ...]:
    """Return what Slurm enforces. Limits and QOS include associations."""
    given = set(filter(None, re.split(r"[,\s]+", text.lower())))
    if "all" in given:
        given |= {"associations", "limits", "qos"}
    if "safe" in given:
        given.add("limits")
    if given & {"limits", "qos", "wckeys"}:
        given.add("associations")
    return tuple(name for name in ("associations", "limits", "qos") if name in given)
