"""The state of a live Slurm cluster, from the output of its commands: the cluster, and its running and waiting jobs."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from pathlib import Path

from tracebed.ground.bounds import MAX_SIZE
from tracebed.ground.display import counted
from tracebed.ground.errors import InputError
from tracebed.ground.host_lists import host_names
from tracebed.ground.input_files import read_file
from tracebed.slurm import reservations
from tracebed.slurm.conf import EQUAL_SHARES, NO_LIMITS, SlurmConf, of_lines, with_release
from tracebed.slurm.conf_lines import Line
from tracebed.slurm.database import ASSOCIATIONS, Database, read_associations, read_qos
from tracebed.slurm.job_fields import gres, ignored_fields, memory, whole_nodes
from tracebed.slurm.machine import SlurmCluster
from tracebed.slurm.scontrol import (
    YEAR_S,
    Record,
    Share,
    configuration,
    kept_gres,
    priority_factors,
    records,
    shares,
    task_numbers,
)

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "config": ("scontrol", "show", "config"),
    "partition": ("scontrol", "-a", "-o", "show", "partition"),
    "node": ("scontrol", "-o", "show", "node"),
    "job": ("scontrol", "-d", "-o", "show", "job"),
    "sprio": ("sprio", "-l"),
    "sshare": ("sshare", "-a", "-l", "-P"),
    "reservation": ("scontrol", "show", "reservation"),
    "qos": ("sacctmgr", "-P", "show", "qos"),
    "accounts": ASSOCIATIONS,
}
"""Name of a part of a state -> the command that prints it. In a folder, the part is the file NAME.txt."""
OPTIONAL = ("sprio", "sshare", "reservation", "qos", "accounts")
TRIED = "22.05"
"""The version of Slurm whose output and decisions were compared."""
MAX_BYTES = 2**29
RUNNING = ("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
UNAVAILABLE = frozenset(
    {
        *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "MAINT", "RESERVED", "UNKNOWN", "FUTURE"),
        *("INVAL", "INVALID_REG", "NOT_RESPONDING", "REBOOT_ISSUED", "REBOOT_REQUESTED"),
    }
)
"""States of nodes on which no waiting job is assumed to start."""
BLOCKING = frozenset(
    {
        *("JobHeldUser", "JobHeldAdmin", "DependencyNeverSatisfied", "PartitionDown"),
        *("PartitionInactive", "PartitionTimeLimit", "ReservationDeleted", "BadConstraints"),
        *("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed", "DeadLine", "PartitionConfig"),
    }
)
"""Reasons of waiting jobs whose start depends on something else than resources and priorities."""
MODELED = frozenset(
    {
        *("", "Priority", "Resources", "BeginTime", "Prolog", "Cleaning", "ReqNodeNotAvail", "Licenses"),
        *("JobArrayTaskLimit", "Nodes_required_for_job_are_DOWN"),  # goes on: or reserved for other partitions
    }
)
USED_UP = re.compile(r"Minutes|GrpWallLimit")
"""In the reasons of jobs that wait for a limit on the resources times minutes of a job, an account or a QOS."""
DEFAULTS = {
    "maxjobcount": "10000",
    "jobrequeue": "1",
    "maxbatchrequeue": "5",
    "preemptexempttime": "00:00:00",
    "schedulertimeslice": "30",
    "resumerate": "300",
    "resumetimeout": "60",
    "suspendrate": "60",
    "suspendtimeout": "30",
    "completewait": "0",
    "overtimelimit": "0",
    "resvoverrun": "0",
    "accountingstorageenforce": "associations",
}
"""Settings that `scontrol` prints although they have no effect or their default value."""
OF_NODES = {"cpus": "CPUTot", "threadspercore": "ThreadsPerCore", "realmemory": "RealMemory", "weight": "Weight"}
OF_NODES |= {"gres": "Gres", "feature": "ActiveFeatures", "sockets": "Sockets", "corespersocket": "CoresPerSocket"}
OF_NODES |= {"corespeccount": "CoreSpecCount", "memspeclimit": "MemSpecLimit"}
NOT_OF_PARTITIONS = frozenset(("partitionname", "nodes", "state", "totalcpus", "totalnodes", "tres"))
RESERVED = frozenset(("MAINT", "RESERVED"))
"""States of nodes in an advance reservation."""


@dataclass(frozen=True)
class LiveJob:
    """A running or waiting job. Times are seconds on the clock of the cluster.

    Attributes:
        id: the id, of a task of an array with its number: `12_3`.
        number: the id as a number, which breaks ties of priorities.
        waits_since: since when the job gains priority by its age.
        eligible: earliest start.
        start: start of a running job; None: the job waits.
        estimate: Slurm's own estimate of the start of a waiting job; None: there is none.
        cores: cores on all nodes.
        per_node: cores on each node (`--ntasks-per-node`); 0: any number.
        fewest: smallest number of nodes.
        memory_mib: memory on each node, or for each core, MiB; 0: all memory.
        by_core: whether the memory is for each core.
        held: node -> cores of a running job.
        ending: whether the job has ended, and its nodes are not yet free.
        others: further partitions of a waiting job.
        qos, dependency, licenses, reservation: the request, as in a workload.
        array: array of the job, and how many of its tasks may run at once, as in a workload.
        name: the name, which `singleton` compares.
        shortest_s: shortest time limit with which the job may start (`--time-min`), s; 0: its time limit.
        deadline: instant until which the job must end, s; None: the job has no deadline.
        whole_id: id of the heterogeneous job of a component; empty: none.
    """

    id: str
    user: str
    account: str
    partition: str
    limit_s: float
    cores: int
    per_node: int
    fewest: int
    memory_mib: float
    features: str
    gres: str
    number: int = 0
    waits_since: float = 0.0
    eligible: float = 0.0
    start: float | None = None
    estimate: float | None = None
    whole: bool = False
    by_core: bool = False
    priority: int = 0
    reason: str = ""
    held: Mapping[str, int] = field(default_factory=dict)
    ending: bool = False
    others: tuple[str, ...] = ()
    qos: str = ""
    dependency: str = ""
    licenses: str = ""
    reservation: str = ""
    array: str = ""
    name: str = ""
    shortest_s: float = 0.0
    deadline: float | None = None
    whole_id: str = ""


@dataclass(frozen=True)
class ClusterState:
    """The state of a cluster.

    Attributes:
        instant: the instant, s on the clock of the cluster, since 1970.
        jobs: the running and waiting jobs, by number.
        factors: number of a waiting job -> the parts of its priority from age and fair share; empty: unknown.
        notes: what the state has that is not modeled, one sentence each.
        reservations: the advance reservations; None: unknown.
    """

    instant: float
    conf: SlurmConf
    machine: SlurmCluster
    unavailable: frozenset[str]
    jobs: tuple[LiveJob, ...]
    factors: Mapping[int, tuple[float, float]]
    shares: tuple[Share, ...]
    notes: tuple[str, ...]
    reservations: tuple[reservations.Reservation, ...] | None = None


def read_folder(folder: Path) -> dict[str, str]:
    """Return the texts of the files of a folder: the output of `COMMANDS`, by name."""
    texts: dict[str, str] = {}
    for name, command in COMMANDS.items():
        file = folder / f"{name}.txt"
        hint = f"save it: {' '.join(command)} > {file.name}"
        if not folder.is_dir():
            raise InputError("is not a folder", where=str(folder), hint="give a folder with the output of Slurm")
        if name in OPTIONAL and (not file.exists() or (file.is_file() and file.stat().st_size == 0)):
            continue  # an empty file is what a refused command leaves: sprio without multifactor priorities
        data = read_file(file, f"output of {' '.join(command)}", hint=hint, most=MAX_BYTES)
        if b"\0" in data:
            raise InputError("binary data, not the output of a command", where=str(file), hint=hint)
        if not data.endswith(b"\n"):  # the commands end each line, and say so where they have nothing to list
            cut = f"line {len(data.splitlines())} is cut off"
            raise InputError(cut if data else "is empty", where=str(file), hint=hint)
        texts[name] = data.decode("utf-8", "replace")
    return texts


def state_of(texts: Mapping[str, str], folder: Path) -> ClusterState:
    """Return the state in the output of `COMMANDS`. `folder`: that of the files, for messages and topology.conf."""

    def where(name: str) -> str:
        return str(folder / f"{name}.txt")

    kept = kept_gres(texts["job"])
    now, settings = configuration(texts["config"], where("config"))
    nodes = records(texts["node"], "NodeName", where("node"))
    partitions = records(texts["partition"], "PartitionName", where("partition"))
    if not nodes or not partitions:
        missing = "node" if not nodes else "partition"
        hint = f"save it: {' '.join(COMMANDS[missing])} > {missing}.txt"
        raise InputError(f"has no {missing}", where=where(missing), hint=hint)
    qos, ignored = read_qos(texts["qos"], where("qos")) if "qos" in texts else ((), [])
    accounts, more = read_associations(texts["accounts"], where("accounts")) if "accounts" in texts else ((), [])
    booked: tuple[reservations.Reservation, ...] | None = None
    unmodeled: list[str] = []
    if "reservation" in texts:
        booked, unmodeled = reservations.read(texts["reservation"], where("reservation"), "UTC")
    conf = of_lines(
        [*_settings(settings), *(_node(node, kept) for node in nodes), *map(_partition, partitions)],
        folder,
        plain=True,
        database=Database(associations=accounts, qos=qos),
        ignored=[*ignored, *more],
    )
    version = settings.get("SLURM_VERSION", "unknown")
    parameters, unknown = with_release(conf.parameters, version)
    conf = replace(conf, parameters=parameters, differences=(*conf.differences, *unknown))
    assert conf.cluster is not None  # every node has its number of CPUs
    threads = conf.cluster.cpus_per_core
    jobs: list[LiveJob] = []
    odd = Counter[str]()
    known = {partition.name for partition in conf.cluster.partitions}
    limited = re.compile(f"{r'QOS|Max.+PerAccount|' if qos else ''}{'Assoc|' if accounts else ''}(?!)")
    names = {record.needed("NodeName") for record in nodes}
    for record in records(texts["job"], "JobId", where("job")):
        for job in _jobs(record, threads, odd, limited):
            _check(job, record, known, names)
            if record.of("TimeLimit") == "Partition_Limit":
                job = replace(job, limit_s=conf.cluster.limit_s(conf.cluster.partition(job.partition) or 0) or YEAR_S)
            jobs.append(job)
    jobs.sort(key=lambda job: job.number)
    unavailable = frozenset(
        record.needed("NodeName")
        for record in nodes
        if {*re.split(r"[+*~#!%$@^-]+", record.needed("State"))}
        & (UNAVAILABLE if booked is None else UNAVAILABLE - RESERVED)
    )
    stopped = {
        record.needed("PartitionName"): record.of("State")
        for record in partitions
        if record.of("State") not in ("UP", "DRAIN", "")
    }
    jobs = [replace(job, reason="PartitionDown") if _waits(job) and job.partition in stopped else job for job in jobs]
    found = shares(texts["sshare"], where("sshare")) if "sshare" in texts else []
    factors = priority_factors(texts["sprio"], where("sprio")) if "sprio" in texts else {}
    fair = conf.cluster.weights.fairshare > 0
    lacking = [file for file, own in (("accounts.txt", accounts), ("qos.txt", qos)) if not own]
    limits = f"limits are unknown without {' and '.join(lacking)}: jobs that they hold start"
    differences = [sentence for sentence in conf.differences if sentence != EQUAL_SHARES]
    notes = [limits if sentence.endswith(NO_LIMITS) else sentence for sentence in differences] + unmodeled
    if not version.startswith(TRIED):
        release = conf.parameters.get("release", TRIED)
        what = f"is simulated with the rules of release {release}, and its output is read as that of {TRIED}"
        notes.append(f"Slurm {version} {what}, which was compared")
    if unavailable:
        notes.append(f"no job starts on nodes that are down, drained or reserved ({len(unavailable)})")
    if fair and not found:
        notes.append("the fair-share factors stay as they are (no sshare.txt, or accounts below accounts)")
    notes += [f"{counted(count, 'job')}: {what}" for what, count in sorted(odd.items())]
    return ClusterState(
        now, conf, conf.cluster, unavailable, tuple(jobs), factors, tuple(found) if fair else (), tuple(notes), booked
    )


def _waits(job: LiveJob) -> bool:
    return job.start is None


# -- the cluster ------------------------------------------------------------------------------------------------------


def _settings(settings: Mapping[str, str]) -> Iterator[Line]:
    for key, value in settings.items():
        if key != "SLURM_VERSION" and key.isidentifier() and DEFAULTS.get(key.lower()) != value and value:
            yield Line(key, value, {}, "config.txt")


def _node(record: Record, kept: Mapping[str, Collection[str]]) -> Line:
    if not 0 < record.number("CPUTot") <= MAX_SIZE:
        hint = "save the output of scontrol as it is"
        raise InputError(f"CPUTot={record.of('CPUTot')} is not a number of CPUs", where=record.where, hint=hint)
    settings = {key: record.of(name) for key, name in OF_NODES.items() if record.of(name)}
    name = record.needed("NodeName")
    for own in kept.get(name, ()):
        settings["gres"] = re.sub(rf"(^|,){re.escape(own)}:", rf"\1{own}:no_consume:", settings.get("gres", ""))
    return Line("NodeName", name, settings, record.where)


def _partition(record: Record) -> Line:
    settings = {
        key.lower(): value
        for key, value in record.fields.items()
        if key.lower() not in NOT_OF_PARTITIONS and record.of(key)
    }
    return Line("PartitionName", record.needed("PartitionName"), settings | {"nodes": record.of("Nodes")}, record.where)


# -- jobs -------------------------------------------------------------------------------------------------------------


def _jobs(record: Record, threads: int, odd: Counter[str], limited: re.Pattern[str]) -> Iterator[LiveJob]:
    """Yield the job of a record, or the waiting tasks of an array; nothing for a job that has ended."""
    state = record.needed("JobState")
    if state not in ("PENDING", *RUNNING):
        return
    job = _job(record, state, threads)
    for what in _odd(record, job, state, limited):
        odd[what] += 1
    array, tasks = record.of("ArrayJobId"), record.of("ArrayTaskId")
    if not array or not tasks:
        yield job
    elif job.start is None and (numbers := task_numbers(tasks)):
        for number in numbers:
            yield replace(job, id=f"{array}_{number}")
    else:
        yield replace(job, id=f"{array}_{tasks}")


def _odd(record: Record, job: LiveJob, state: str, limited: re.Pattern[str]) -> Iterator[str]:
    """Yield what is not modeled of a job. `limited`: the reasons of jobs whose limits are known."""
    yield from ignored_fields(record.fields, waits=job.start is None)
    if job.start is not None:
        if state in ("SUSPENDED", "STOPPED"):
            yield f"{state} is modeled as running on"
        return
    if USED_UP.search(job.reason):
        yield f"the reason {job.reason} is not modeled: there is no forecast while it lasts"
    elif job.reason not in MODELED | BLOCKING | {"Dependency", "Reservation"} and not limited.match(job.reason):
        yield f"the reason {job.reason} is not modeled: the forecast is too early while it lasts"


def _job(record: Record, state: str, threads: int) -> LiveJob:
    running = state != "PENDING"
    tres = dict(item.partition("=")[::2] for item in record.of("TRES", "ReqTRES", "AllocTRES").split(","))
    tasks = re.match(r"(\d+):", record.of("NtasksPerN:B:S:C"))
    per_task = record.number("CPUs/Task") if record.of("CPUs/Task") else 1
    eligible = record.instant("EligibleTime") or record.instant("SubmitTime") or 0.0
    memory_mib, by_core = memory(record)
    start, limit_s = record.instant("StartTime"), record.limit_s("TimeLimit")
    if running and record.of("SuspendTime") and (end := record.instant("EndTime")):
        start = end - limit_s  # without the time of its suspension
    fewest = tres.get("node", "")
    reason = record.of("Reason").partition(",")[0]
    dependent = record.of("Dependency") and reason not in ("BeginTime",)
    if not running and record.number("Priority") == 0 and reason not in BLOCKING:
        reason = "JobHeldUser"
    array, limit = record.of("ArrayJobId"), record.of("ArrayTaskId").partition("%")[2] or record.of("ArrayTaskThrottle")
    partition, *others = record.needed("Partition").split(",")
    return LiveJob(
        id=str(record.number("JobId")),
        number=record.number("JobId"),
        user=record.needed("UserId").partition("(")[0],
        account=record.of("Account"),
        partition=partition,
        waits_since=record.instant("AccrueTime") or eligible,
        eligible=eligible,
        start=start if running else None,
        estimate=None if running else start,
        limit_s=limit_s,
        cores=math.ceil(record.number("NumCPUs") / threads),
        per_node=math.ceil(int(tasks[1]) * per_task / threads) if tasks else 0,
        fewest=int(fewest) if fewest.isdecimal() else record.number("NumNodes"),
        whole=whole_nodes(record),
        memory_mib=memory_mib * threads if by_core else memory_mib,
        by_core=by_core,
        features=record.of("Features"),
        gres=gres(record, int(fewest) if fewest.isdecimal() else record.number("NumNodes")),
        priority=record.number("Priority"),
        reason=reason,
        held=held_cores(record, threads) if running else {},
        ending=state in ("COMPLETING", "STAGE_OUT"),
        others=() if running else tuple(others),
        qos=record.of("QOS"),
        dependency=record.of("Dependency") if dependent and not running else "",
        licenses=record.of("Licenses"),
        reservation=record.of("Reservation"),
        array=f"{array}%{limit}" if limit else array,
        name=record.of("JobName"),
        shortest_s=record.limit_s("TimeMin") if record.of("TimeMin") else 0.0,
        deadline=record.instant("Deadline"),
        whole_id=record.of("HetJobId"),
    )


def held_cores(record: Record, threads: int = 1) -> dict[str, int]:
    """Return the cores of a running job by node. Without `scontrol -d`, its nodes have equal shares.

    Slurm 22.05 does not list the CPUs of all nodes of a job that has expanded: the others have as many as the first.
    """
    try:
        held: dict[str, int] = {}
        for nodes, listed in re.findall(r" Nodes=(\S+) CPU_IDs=([\d,-]+) ", record.text):
            cpus = sum(len(task_numbers(item)) for item in listed.split(","))
            held |= dict.fromkeys(host_names(nodes), math.ceil(cpus / threads))
        names = host_names(record.of("NodeList")) if record.of("NodeList") else []
    except ValueError as error:
        raise InputError(str(error), where=record.where, hint="save the output of scontrol as it is") from None
    share = next(iter(held.values()), math.ceil(record.number("NumCPUs") / threads / max(1, len(names))))
    return dict.fromkeys(names, share) | held


def _check(job: LiveJob, record: Record, partitions: Sequence[str] | set[str], nodes: set[str]) -> None:
    if job.partition not in partitions:
        hint = "save all files at once; partition.txt must list each partition: scontrol -a -o show partition"
        raise InputError(f"job {job.id} has the unknown partition {job.partition}", where=record.where, hint=hint)
    for node in job.held.keys() - nodes:
        raise InputError(f"job {job.id} runs on the unknown node {node}", where=record.where, hint="save all at once")


# -- why jobs wait -----------------------------------------------------------------------------------------------------


def waits_for(jobs: Sequence[LiveJob]) -> list[str]:
    """Return why each of the waiting `jobs` waits, as squeue says it, and for what.

    With the reason `Priority`, this is the number of jobs before it in the queues of its partitions.
    """
    # components of heterogeneous jobs often have no reason
    before = [job for job in jobs if job.reason in ("Priority", "Resources") or (job.whole_id and job.priority)]
    queue = sorted(((_rank(job), _partitions(job)) for job in before), key=itemgetter(0))
    ranks = cache(lambda parts: [rank for rank, others in queue if not parts.isdisjoint(others)])
    return [" ".join(filter(None, (job.reason or "None", _named(job, ranks)))) for job in jobs]


def _rank(job: LiveJob) -> tuple[float, int]:
    """Return the place of a job in a queue; the first job has the largest."""
    return job.priority, -job.number


def _partitions(job: LiveJob) -> frozenset[str]:
    return frozenset((job.partition, *job.others))


def _named(job: LiveJob, ranks: Callable[[frozenset[str]], Sequence[tuple[float, int]]]) -> str:
    """Return what the reason of a job means; empty: the reason says it. `ranks`: those in the queues of partitions."""
    if job.reason == "Priority":
        queue = ranks(_partitions(job))
        before = len(queue) - bisect_right(queue, _rank(job))
        return f"({before} before it)"
    if job.reason == "BeginTime":
        return f"({datetime.fromtimestamp(job.eligible, UTC):%Y-%m-%dT%H:%M:%S})"
    if job.reason.startswith("QOS"):
        return f"(QOS {job.qos})" if job.qos else ""
    if job.reason.startswith("Assoc") or job.reason.endswith("PerAccount"):
        return f"({job.account})"
    values = {"Licenses": job.licenses, "Reservation": job.reservation, "JobArrayTaskLimit": job.array}
    values["Dependency"] = re.sub(r"[(]unfulfilled[)]", "", job.dependency)
    value = values.get(job.reason, "")
    return f"({value})" if value else ""
