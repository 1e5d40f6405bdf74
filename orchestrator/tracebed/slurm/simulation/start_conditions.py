"""What decides about the starts of jobs beyond their resources, from a workload and the cluster of a slurm.conf.

These are begin times, dependencies, arrays, licences, reservations and preemption. Source: sbatch(1) and slurm.conf(5)
of Slurm 22.05, and the recordings `begin*`, `dependency*`, `singleton`, `licenses*`, `reservation*` and `preempt*` of
Slurm 22.05.8.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tracebed.converters.workload import Workload
from tracebed.ground.display import counted
from tracebed.ground.errors import InputError
from tracebed.ground.host_lists import host_names
from tracebed.ground.table import codes_of, equal
from tracebed.machine.calendar import OutageKind
from tracebed.orchestrator.scheduling.dependencies import SINGLETON, SUCCESSFUL, dependencies_of, groups_of
from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.simulation.outages import Outages
from tracebed.slurm.database import Qos
from tracebed.slurm.gres import licenses_of
from tracebed.slurm.machine import Partition, SlurmCluster, SlurmMachine
from tracebed.slurm.reservations import DAY_S, Reservation
from tracebed.slurm.simulation.accounts import NORMAL
from tracebed.slurm.simulation.inputs import (
    BACK,
    CANCEL,
    DOWN,
    DRAINED,
    REQUEUE,
    SUSPEND,
    Arrays,
    Availability,
    Booked,
    Bookings,
    Conditions,
    Entries,
    Inputs,
    Licenses,
    NodeChange,
    Preemption,
    listed,
)

NOTICE_S = 5.0
"""slurmctld looks for reservations that have begun or ended at this interval, s."""
REPEATED_S = 30 * DAY_S
"""Periodic reservations are repeated until this long after the last submission, s."""


def conditions_of(workload: Workload, numbers: Sequence[int], *, kill_invalid: bool) -> Conditions | None:
    """Return the conditions of entries of jobs of a workload; None: there are none.

    `numbers` has the job of each entry. The state of a job is that of its first entry. The name of a job, for
    `singleton`, is its application.
    """
    waits = any(not equal(workload.arrow(name), "").all() for name in ("dependency", "after"))
    if not waits and np.isnan(workload.floats("earliest_start")).all():
        return None
    jobs = [*dict.fromkeys(numbers)]
    earliest = workload.floats("earliest_start")[jobs]
    texts = _texts(workload, jobs)
    if not any(texts) and np.isnan(earliest).all():
        return None
    groups = groups_of(of(workload, "user", jobs), of(workload, "application", jobs), texts)
    arrays = [text.partition("%")[0] for text in of(workload, "array", jobs)]
    dependencies, any_of = dependencies_of(texts, of(workload, "job_id", jobs), arrays, groups)
    place = {job: at for at, job in enumerate(jobs)}
    own = [place[job] for job in numbers]
    entry_of = [*dict.fromkeys(Entries.of(numbers).first)]
    return Conditions(
        [-math.inf if math.isnan(earliest[job]) else float(earliest[job]) for job in own],
        [
            tuple(each if each.kind == SINGLETON else each._replace(of=entry_of[each.of]) for each in dependencies[job])
            for job in own
        ],
        [any_of[job] for job in own],
        [groups[job] if entry == entry_of[job] else -1 for entry, job in enumerate(own)],
        [state not in SUCCESSFUL for state in of(workload, "status", numbers)],
        kill_invalid,
    )


def _texts(workload: Workload, jobs: Sequence[int]) -> list[str]:
    """Return the conditions of jobs, with that of the column `after` of a job without a think time."""
    texts, after = of(workload, "dependency", jobs), of(workload, "after", jobs)
    if not any(after):
        return texts
    think_s = workload.floats("think_time")[jobs]
    return [
        f"{text},afterany:{previous}".lstrip(",") if previous and math.isnan(time) and "?" not in text else text
        for text, previous, time in zip(texts, after, think_s.tolist(), strict=True)
    ]


def arrays_in(workload: Workload, numbers: Sequence[int]) -> Arrays | None:
    """Return the arrays of the jobs `numbers` of a workload; None: there are none."""
    if equal(workload.arrow("array"), "").all():
        return None
    texts = of(workload, "array", numbers)
    return arrays_of(texts, of(workload, "job_id", numbers)) if any(texts) else None


def arrays_of(texts: Sequence[str], ids: Sequence[str]) -> Arrays:
    """Return the arrays of the jobs, from texts such as `12%5`: at most five tasks of array 12 run at once."""
    numbers: dict[str, int] = {}
    of, most = [], list[int]()
    for job, text in enumerate(texts):
        name, _, limit = text.partition("%")
        if not re.fullmatch(r"\d*", limit):
            raise InputError(f"array {text[:40]!r} of job {ids[job]} is invalid", hint="write it as 12 or 12%5")
        array = numbers.setdefault(name, len(numbers)) if text else -1
        if array == len(most):
            most.append(0)
        if limit:
            most[array] = int(limit)
        of.append(array)
    return Arrays(of, most)


def licenses_in(texts: Sequence[str], ids: Sequence[str], cluster: SlurmCluster) -> Licenses | None:
    """Return the licences of cluster and jobs; None: no job wants any. NAME@SERVER is of the database, not counted."""
    if not any(texts):
        return None
    kinds = [*cluster.licenses]
    named = (licenses_of(text, f"job {job}") for job, text in zip(ids, texts, strict=True))
    wanted = [tuple(own.get(kind, 0) for kind in kinds) for own in named]
    return Licenses([cluster.licenses[kind] for kind in kinds], wanted, cluster.bf_licenses)


def excess(text: str, cluster: SlurmCluster) -> str:
    """Return the licence of which a job wants more than the cluster has; empty: there is none."""
    wanted = licenses_of(text, "") if text else {}
    return next((name for name, many in wanted.items() if "@" not in name and many > cluster.licenses.get(name, 0)), "")


def heterogeneous(names: Sequence[str]) -> list[int]:
    """Return the number of the heterogeneous job of each job, from their names; -1: none. Empty: all have none."""
    number = {name: at for at, name in enumerate(dict.fromkeys(name for name in names if name))}
    return [number.get(name, -1) for name in names] if number else []


MODES = {"cancel": CANCEL, "requeue": REQUEUE, "suspend": SUSPEND}


def preemption_of(cluster: SlurmCluster, partitions: Sequence[int], qos: Sequence[str]) -> Preemption | None:
    """Return which jobs preempt which, from partition and QOS of each; None: no job preempts another one.

    By QOS, the last class has the jobs of an unknown QOS, which neither preempt nor yield.
    """
    rules, known = cluster.preempt, cluster.database.qos
    by_qos = rules.by_qos and bool(known)
    if not (by_qos or rules.by_tier):
        return None
    classes: Sequence[Qos | Partition] = [*known, Qos(name="", preempt_mode="off")] if by_qos else cluster.partitions
    modes = [each.preempt_mode or rules.mode for each in classes]
    number = {each.name: at for at, each in enumerate(known)}

    def weaker(strong: Qos | Partition) -> Iterator[int]:
        """Yield the classes whose jobs those of a class may preempt."""
        if isinstance(strong, Qos):
            yield from (number[name] for name in strong.preempts if name in number)
        else:
            yield from (at for at, each in enumerate(cluster.partitions) if each.tier < strong.tier)

    return Preemption(
        of=[number.get(name or NORMAL, len(known)) for name in qos] if by_qos else partitions,
        may=[mask_of([low for low in weaker(each) if modes[low] in MODES]) for each in classes],
        rank=[each.priority if isinstance(each, Qos) else each.tier for each in classes],
        mode=[MODES.get(mode, CANCEL) for mode in modes],
        grace_s=[each.grace_s for each in classes],
        exempt_s=[
            rules.exempt_s if not isinstance(each, Qos) or each.exempt_s is None else each.exempt_s for each in classes
        ],
        youngest=rules.youngest,
        again=rules.again,
    )


def start_of(workload: Workload, policy: Slurm) -> float:
    """Return the Unix time of second 0, for the dates of reservations and of resets of usage."""
    if policy.epoch_s or workload.provenance.unix_start:
        return policy.epoch_s or float(workload.provenance.unix_start or 0.0)
    what = "reservations and resets of usage have dates, but the Unix time of second 0 of the workload is unknown"
    raise InputError(what, hint="give it: -P epoch_s=SECONDS")


NODES = {None: BACK, OutageKind.DRAIN: DRAINED, OutageKind.DOWN: DOWN}
"""Kind of outage from an instant on -> what becomes of the node."""


def with_outages(inputs: Inputs, outages: Outages, cluster: SlurmCluster) -> Inputs:
    """Return the inputs of a simulation with the outages of nodes. Their numbers are those of the cluster."""
    changes = [NodeChange(change.at, change.node, NODES[change.kind]) for change in outages.changes]
    requeues = cluster.requeue and outages.on_node_failure == "requeue"
    return replace(inputs, availability=Availability(changes, requeues))


def with_bookings(
    inputs: Inputs,
    names_of: Sequence[str],
    cluster: SlurmCluster,
    reservations: Sequence[Reservation],
    epoch: float,
    seed: int = 0,
) -> Inputs:
    """Return the inputs of a simulation with the advance reservations of a machine, and the one of each job in them.

    `names_of` has the reservations of each job, joined by commas, `epoch` the Unix time of second 0, s. The delays with
    which slurmctld notices that one begins or ends are drawn from `seed`.
    """
    known = {name: number for number, (name, _) in enumerate(cluster.nodes)}
    rng = np.random.default_rng((seed, 1))  # slurmctld notices a begin and an end late
    booked, notices, number = list[Booked](), list[float](), dict[str, list[int]]()
    for each in reservations:
        names = host_names(each.nodes) if each.nodes else []
        if unknown := next((name for name in names if name not in known), ""):
            what = f"reservation {each.name} has the unknown node {unknown}"
            raise InputError(what, hint="use the slurm.conf of the cluster of the reservations")
        mask = mask_of([known[name] for name in names])
        for begin, end in each.until(int(epoch + max(inputs.submit)) + REPEATED_S):
            number.setdefault(each.name, []).append(len(booked))
            booked.append(Booked(begin, end, end + cluster.resv_over_run_s, mask, each.flexible))
            notices += [instant - epoch + rng.uniform(0.0, NOTICE_S) for instant in (begin, end)]
    inside = [
        _chosen(number, names, booked, submit + epoch) for names, submit in zip(names_of, inputs.submit, strict=True)
    ]
    conditions = inputs.conditions or Conditions.none(len(inside))
    earliest = [
        max(earliest, booked[own].begin - epoch) if own >= 0 and not booked[own].flexible else earliest
        for own, earliest in zip(inside, listed(conditions.earliest), strict=True)
    ]
    bookings = Bookings(booked, inside, notices)
    return replace(inputs, bookings=bookings, conditions=replace(conditions, earliest=earliest))


def _chosen(number: Mapping[str, Sequence[int]], names: str, booked: Sequence[Booked], submitted: float) -> int:
    """Return the first occurrence of a job's reservation that has not ended at the submission; -1: none is known."""
    for name in names.split(","):
        if found := number.get(name.strip()):
            return next((each for each in found if booked[each].end > submitted), found[-1])
    return -1


HET_JOB = "extra_het_job"
"""Column of a log with the heterogeneous job of each component."""
EVENTS = ("earliest_start", "array", "reservation", "licenses")
"""Columns that only a simulation of a cluster uses."""


def ignored(workload: Workload, machine: SlurmMachine | None = None) -> list[str]:
    """Return a warning for each column of a workload that a simulation ignores or lacks. No `machine`: equal nodes."""
    warnings = []
    for name in EVENTS if machine is None else () if machine.reservations is not None else ("reservation",):
        if name == "earliest_start":
            count = int(np.isfinite(workload.floats(name)).sum())
        else:
            wanted = "%" if name == "array" else ""  # without a limit, the tasks of an array are jobs
            count = sum(wanted in text for text in workload.texts(name).tolist() if text)
        if count:
            of_cluster = "it needs a slurm.conf whose nodes differ, are shared, or are in partitions"
            why = "the reservations are not given (-P @FILE)" if machine is not None else of_cluster
            warnings.append(f"the column {name} of {counted(count, 'job')} is ignored: {why}")
    components = sum(workload.texts(HET_JOB).astype(bool)) if HET_JOB in workload.columns else 0
    if components and machine is None:
        warnings.append(f"{counted(components, 'component')} of heterogeneous jobs start one by one, not together")
    if machine is not None:
        warnings += [
            *_of_all_memory(workload, machine.cluster),
            *_partial(machine.reservations or (), machine.cluster),
        ]
    return warnings


def _of_all_memory(workload: Workload, cluster: SlurmCluster) -> Iterator[str]:
    """Yield a warning about the jobs that hold all memory of shared nodes because no request and no default is known.

    In Slurm, a job without a request does so. A log without requests, such as most of SWF, must not.
    """
    if not (cluster.memory and cluster.shared):
        return
    limited = [each.memory_per_core_mib or each.memory_per_node_mib or each.exclusive for each in cluster.partitions]
    unknown = np.isnan(workload.floats("memory_mib"))
    by_partition = Counter(names.split(",")[0] for names in workload.texts("partition")[unknown].tolist())
    numbers = {name: cluster.partition(name) for name in by_partition}
    count = sum(by_partition[name] for name, number in numbers.items() if number is not None and not limited[number])
    if count:
        yield (
            f"{counted(count, 'job')} without a memory request: each holds all memory of its nodes, as in a Slurm"
            " without DefMemPerCPU and DefMemPerNode. If the log lacks the requests, set"
            " SelectTypeParameters=CR_Core in slurm.conf"
        )


def _partial(reservations: Sequence[Reservation], cluster: SlurmCluster) -> Iterator[str]:
    """Yield a warning for each reservation of some cores of its nodes."""
    cores: dict[str, int] = {}
    for each in reservations:
        cores = cores or {name: cluster.cores_of(kind) for name, kind in cluster.nodes}
        all_cores = sum(cores.get(name, 0) for name in (host_names(each.nodes) if each.nodes else ()))
        if 0 < each.cores < all_cores:
            yield f"the reservation {each.name} has {each.cores} of {all_cores} cores; all cores are assumed"


def of(workload: Workload, name: str, numbers: Sequence[int]) -> list[str]:
    """Return the texts of a column for the jobs `numbers`."""
    codes, words = codes_of(workload.arrow(name))
    return [words[code] for code in codes[[*numbers]].tolist()]
