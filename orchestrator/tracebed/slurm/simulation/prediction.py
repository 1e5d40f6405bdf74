"""The prediction of what a Slurm cluster does with a workload: nodes that jobs share, partitions, priorities.

What slurm.conf leaves open is drawn from the seed of the policy: the phases of the two loops and of the computation of
priorities, and when slurmctld notices that a job has passed its time limit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache, reduce
from operator import or_, sub
from typing import Any, NamedTuple

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray, Workload
from tracebed.ground.display import counted
from tracebed.ground.errors import InputError
from tracebed.ground.host_lists import host_names
from tracebed.ground.states import JobState
from tracebed.ground.table import Texts, codes_of, distinct, equal, expanded, grouped
from tracebed.machine.calendar import NodeChange, OutageKind
from tracebed.machine.features import satisfies
from tracebed.machine.machine import Machine
from tracebed.orchestrator.run import Run, RunInfo, workload_facts
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import IGNORED, Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.names import SHRINK, DependencyRule
from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of
from tracebed.orchestrator.scheduling.policies.registry import resolve
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.setup import Setup, Timing
from tracebed.orchestrator.simulation.delays import Drawn
from tracebed.orchestrator.simulation.outages import Outages
from tracebed.orchestrator.simulation.prediction import PredictionOptions, Simulation, no_collection, simulator_of
from tracebed.orchestrator.simulation.simulator import Simulator
from tracebed.orchestrator.tables import make_run
from tracebed.slurm.machine import MINUTE_S, Partition, SlurmCluster, SlurmMachine, Weights, slurm_machine_of
from tracebed.slurm.simulation import engine
from tracebed.slurm.simulation.accounts import Accounting, Owner
from tracebed.slurm.simulation.allocated_ranges import AllocatedRanges
from tracebed.slurm.simulation.demands import STARTED, as_asked, in_cpus
from tracebed.slurm.simulation.factors import Factors, resets
from tracebed.slurm.simulation.feasibility import NEVER_RUN, fits, lacking
from tracebed.slurm.simulation.inputs import (
    CHECK_S,
    ENDED,
    KILLED,
    LOST,
    PREEMPTED,
    Entries,
    Inputs,
    Outcome,
    amounts_of,
)
from tracebed.slurm.simulation.resizing import Sizes, with_layer
from tracebed.slurm.simulation.resources import (
    ALL,
    CONS_RES,
    CONS_TRES,
    LINEAR,
    OF_CPUS,
    OF_TASKS,
    Parts,
    Request,
    Resources,
    Switches,
)
from tracebed.slurm.simulation.sleeping import enter_states, with_saving
from tracebed.slurm.simulation.start_conditions import (
    HET_JOB,
    arrays_in,
    conditions_of,
    excess,
    heterogeneous,
    ignored,
    licenses_in,
    of,
    preemption_of,
    start_of,
    with_bookings,
    with_outages,
)

PLACEMENTS = 10_000
"""Number of different requests whose eligible nodes are remembered."""
NAN = math.nan
"""The only missing number in the keys of what is remembered: a key with another one is equal to none."""
QUERY_S = 0.4
"""Longest usual time from the instant at which a pass of a layer is due until it decides: it queries Slurm first. 95 %
of the passes of five replays took less."""


class Size(NamedTuple):
    """The size and the resources of a job of a workload, in its columns. A missing number is `NAN`, the same object."""

    nodes: int
    cores_per_node: int
    spread: int
    fewest_nodes: int
    memory_mib: float
    gres: str
    features: str


class IdleCluster(NamedTuple):
    """An idle cluster: its kinds of generic resources, its resources, and the functions `placement` and `requests`."""

    cluster: SlurmCluster
    kinds: Sequence[str]
    resources: Resources
    placed: Callable[[int, str, Request], Request | str]
    asked: Callable[[int, Size, bool], tuple[Request, Request | str]]

    @classmethod
    def of(cls, cluster: SlurmCluster) -> IdleCluster:
        """Return a cluster with its idle resources."""
        kinds = cluster.gres
        empty = resources_of(cluster, kinds)
        placed = placement(cluster, empty)
        return cls(cluster, kinds, empty, placed, requests(cluster, kinds, empty, placed))


@lru_cache(maxsize=2)
def _idle(machine: SlurmMachine) -> IdleCluster:
    """Return the idle cluster of a machine. The members of an ensemble, and those of a pair, share it."""
    return IdleCluster.of(machine.cluster)


class SlurmSimulation(Simulation):
    """The executor `slurm`: what a Slurm does with a workload.

    On equal nodes of one partition, the policy decides in the simulator of tracebed. The cluster of a slurm.conf has a
    simulation of its own.
    """

    def accepts(self, machine: Machine, setup: Setup) -> bool:
        """Return whether the policy is `slurm`."""
        return isinstance(setup.policy(), Slurm)

    def execute(self, workload: Workload, machine: Machine, setup: Setup, options: PredictionOptions) -> Run:
        """Simulate a workload. A member is the seed of all that a slurm.conf leaves open."""
        policy, equal_nodes = setup.policy(), not isinstance(machine, SlurmMachine) and machine.plain
        assert isinstance(policy, Slurm)
        if equal_nodes and policy.resizes == "none":
            if options.member is not None:
                _, *parts = np.random.default_rng(options.member).uniform(0.0, 1.0, 4).tolist()  # as for a cluster
                setup = _with(setup, replace(policy, **policy.phases(*parts)))
            return super().execute(workload, machine, setup, options)
        machine = machine if isinstance(machine, SlurmMachine) else slurm_machine_of(machine)
        given = {**machine.parameters, **setup.scheduling.policy_parameters}
        policy = setup.scheduling.instance or resolve(setup.scheduling.policy, given)[1]
        assert isinstance(policy, Slurm)
        seed = policy.seed if options.member is None else options.member
        chosen, policy = _with(setup, replace(policy, seed=0)).complete()  # the simulation draws itself
        assert isinstance(policy, Slurm)
        if simulator_of(options.engine, "") is Simulator:
            what = "a cluster of a slurm.conf is simulated by the compiled engine only"
            raise InputError(what, hint="use --engine auto or --engine compiled")
        facts, outages = self.outages(workload, machine.nodes, options)
        if outages is not None and (outages.checkpoints or outages.on_node_failure == SHRINK):
            what = "checkpoints are" if outages.checkpoints else "jobs that shrink off a lost node are"
            hint = "leave them out, or give --nodes N: equal nodes in one partition"
            raise InputError(f"{what} not modeled for a cluster of a slurm.conf", hint=hint)
        asked, warnings = _limited(workload) if equal_nodes else (workload, [])
        with no_collection():
            record, cluster = simulate(asked, machine, policy, chosen, seed, outages)
        parameters = {**chosen.scheduling.policy_parameters, "seed": seed}
        scheduling = replace(chosen.scheduling, policy_parameters=parameters, instance=setup.scheduling.instance)
        info = RunInfo(
            source="simulator",
            engine="compiled",
            execution="simulated",
            nodes=list(machine.nodes),
            workload=workload_facts(workload, options.name),
            setup=replace(chosen, scheduling=scheduling),
            machine=machine,
            outages=record.outages_of([node.name for node in machine.nodes]) if outages else [],
            parameters=facts,
            warnings=[*warnings, *ignored(workload, machine)],
        )
        return make_run(record, cluster, info)

    def jobs(self, workload: Workload, setup: Setup, policy: Policy, most: int | None) -> Jobs:
        """Return the jobs. With over-limit `kill`, a job that the log says was killed ends when it did."""
        jobs = super().jobs(workload, setup, policy, most)
        if setup.scheduling.over_limit is not OverLimit.KILL:
            return jobs
        return jobs.killed_as_logged((workload.runnable()[0].texts("status") == JobState.KILLED).to_numpy(dtype=bool))

    def delays(self, timing: Timing, jobs: int, member: int) -> Drawn | None:
        """Return the factors of the delays of a member. Without distributions, only the phases of the loops differ."""
        measured = timing.calibration is not None and bool(timing.calibration.factors)
        return super().delays(timing, jobs, member) if measured else None

    def ignored(self, workload: Workload, policy: Policy) -> list[str]:
        """Return a warning for each column of the workload that the simulation ignores."""
        return ignored(workload)


EXECUTOR = SlurmSimulation()


def _with(setup: Setup, policy: Slurm) -> Setup:
    """Return a setup with another policy."""
    return replace(setup, scheduling=replace(setup.scheduling, instance=policy))


def _limited(workload: Workload) -> tuple[Workload, list[str]]:
    """Return jobs of equal nodes, which have their run time as the limit if they have none, and a warning of it."""
    limit, run_time = workload.floats("time_limit"), workload.floats("run_time")
    missing = np.isnan(limit) & np.isfinite(run_time)
    if not missing.any():
        return workload, []
    columns = workload.columns.assign(time_limit=np.where(missing, run_time, limit))
    what = f"{counted(int(missing.sum()), 'job')} without a time limit: run time used as limit"
    return Workload(columns, workload.provenance), [what]


def simulate(
    workload: Workload,
    machine: SlurmMachine,
    policy: Slurm,
    setup: Setup,
    seed: int = 0,
    outages: Outages | None = None,
) -> tuple[ScheduleRecord, Cluster]:
    """Simulate a workload on a cluster; return the record, and the nodes with the ledger.

    What a slurm.conf leaves open is drawn from `seed`. An InputError says which setting is not modeled, or that no job
    can run on the cluster.
    """
    slurm_cluster, nodes, reservations = machine.cluster, machine.nodes, machine.reservations
    if (speed := setup.timing.speed) != 1:
        hint = f"without the speed, the intervals of Slurm last {speed:g} times as long as in the run"
        if policy.resizes != "none":
            raise InputError("a layer that resizes jobs is simulated at speed 1 only", hint="leave --speed out")
        if machine.plain:
            hint = f"give --nodes {len(nodes)}: equal nodes in one partition need no cluster"
        raise InputError("a cluster of a slurm.conf is simulated at speed 1 only", hint=hint)
    if setup.scheduling.over_limit not in (OverLimit.KILL, OverLimit.EXTEND):
        what = f"--over-limit {setup.scheduling.over_limit} is not modeled for a cluster of a slurm.conf"
        raise InputError(what, hint="use kill, as Slurm does, or extend")
    workload, counts = as_asked(workload, slurm_cluster)
    jobs = Jobs.of(workload, over_limit=setup.scheduling.over_limit, dependencies=DependencyRule.IGNORE)
    if setup.scheduling.dependencies is DependencyRule.IGNORE:
        workload = Workload(workload.table.drop(columns=["dependency", "after"], errors="ignore"), workload.provenance)
    elif jobs.counts.pop(IGNORED, 0) and (
        thinks := int(np.isfinite(workload.runnable()[0].floats("think_time")).sum())
    ):
        jobs.counts["jobs with a think time: submitted at their own time"] = thinks
    jobs.counts.update({what: count for what, count in counts.items() if count})
    record, cluster = ScheduleRecord(jobs), Cluster([node.cores for node in nodes])
    inputs, numbers = _inputs(workload, jobs, _idle(machine), setup, record)
    record.submit = list(jobs.submit)
    reset = slurm_cluster.weights.reset
    if reservations is not None or reset:
        policy = replace(policy, epoch_s=start_of(workload, policy))
    policy, inputs = _drawn(policy, inputs, seed)
    if reset:
        begin = policy.epoch_s + float(inputs.submit[0])
        inputs = replace(inputs, associations=replace(inputs.associations, resets=resets(reset, begin)))
    if reservations is not None:
        names = of(workload.runnable()[0], "reservation", numbers)
        inputs = with_bookings(inputs, names, slurm_cluster, reservations, policy.epoch_s, seed)
    if outages is not None:
        inputs = with_outages(inputs, outages, slurm_cluster)
    of_steps: list[float] = []
    if policy.resizes != "none":
        of_steps, ends = _steps(jobs, numbers, setup)
        inputs = replace(inputs, launch_s=np.add(inputs.launch_s, of_steps), end_s=np.add(inputs.end_s, ends))
        inputs = _with_layer(inputs, numbers, jobs, policy, setup, seed, slurm_cluster)
    if slurm_cluster.saving is not None:
        inputs = with_saving(inputs, slurm_cluster, seed)
    outcome = engine.simulate(inputs, policy)
    if of_steps:  # the script launches the steps
        outcome = replace(outcome, launched=[*map(sub, outcome.launched, of_steps)])
    _enter(record, cluster, numbers, inputs, outcome, setup)
    if slurm_cluster.saving is not None:
        enter_states(record, slurm_cluster, inputs, outcome)
    if outages is not None:
        _enter_outages(record, numbers, outcome, outages)
    return record, cluster


class _Kind(NamedTuple):
    """Jobs in the queue of a partition that ask for the same, whatever their time limits."""

    partition: int
    asked: Request
    request: Request
    """The same with the eligible nodes."""
    owner: Owner
    amounts: Sequence[int]
    longest: float
    """Longest time limit in the partition, s; infinity: any."""
    timed: bool
    """Whether the priority, or the limits of the owner, depend on the time limit."""


RELEASE = "extra_release_s"
"""Column of a log with the time from the end of each job to the end of its steps that ignore SIGTERM, s."""
ASKED = ("partition", "features", "gres", "group", "user", "queue", "licenses")
"""Columns of texts with what a job asks for."""


def _inputs(
    workload: Workload, jobs: Jobs, idle: IdleCluster, setup: Setup, record: ScheduleRecord
) -> tuple[Inputs, list[int]]:
    """Return the inputs of the simulation, and the job of each of its entries. Jobs that never fit are rejected.

    Jobs that ask for the same are decided together.
    """
    runnable, _ = workload.runnable()
    cluster, kinds, empty = idle.cluster, idle.kinds, idle.resources
    texts = [codes_of(runnable.arrow(name)) for name in ASKED]
    started = runnable.column(STARTED) if STARTED in runnable.columns else np.zeros(len(jobs), dtype=bool)
    nodes, cores = np.asarray(jobs.column("nodes")), np.asarray(jobs.column("cores"))
    amounts = nodes, cores, runnable.ints("spread"), runnable.ints("fewest_nodes"), runnable.floats("memory_mib")
    _, first, group = distinct(grouped(*(codes for codes, _ in texts), *amounts, started.astype(np.int64)))
    words = {
        name: [known[code] for code in codes[first].tolist()] for name, (codes, known) in zip(ASKED, texts, strict=True)
    }
    accounting = Accounting(cluster, kinds, words["group"], words["user"])
    factors = Factors(cluster, kinds)
    weights, extend = cluster.weights, setup.scheduling.over_limit is OverLimit.EXTEND
    by_time = "small_relative_to_time" in weights.flags
    of_slurm = in_cpus(workload)
    owner_of, priority = cache(accounting.owner), cache(accounting.priority)

    def kind_of(name: str, size: Size, user: tuple[str, str, str], licenses: str, started: bool) -> _Kind | str:
        """Return what such jobs are in the queue of a partition, or why they are not in it."""
        number = cluster.partition(name)
        if number is None:
            return f"the cluster has no partition {name}"
        partition = cluster.partitions[number]
        if partition.empty:
            return f"partition {partition.name} has no nodes"
        request, fitting = idle.asked(number, size, of_slurm)
        if isinstance(fitting, str):
            return fitting
        if name := excess(licenses, cluster):
            return f"the cluster has fewer licences {name}"
        owner = owner_of(*user, number)
        if isinstance(owner, str):
            return owner
        any_limit = started or not partition.limit_s or accounting.beyond_partition(owner)
        amounts = amounts_of(request, None, empty, factors.billing[number], factors.most)
        timed = by_time or accounting.wall_s(owner) < math.inf
        return _Kind(number, request, fitting, owner, amounts, math.inf if any_limit else partition.limit_s, timed)

    def fixed(kind: _Kind | str, started: bool, limit: int, own_s: float) -> float | str:
        """Return the part of the priority that does not change, or why such jobs are rejected."""
        if isinstance(kind, str):
            return kind
        most_nodes = cluster.partitions[kind.partition].most_nodes
        if own_s > kind.longest:
            return "PartitionTimeLimit: the time limit exceeds that of the partition"
        if most_nodes and kind.asked.fewest > most_nodes and not started:
            return "PartitionNodeLimit: the job needs more nodes than a job of its partition may have"
        if not started and (reason := accounting.never(kind.owner, kind.amounts, limit)):
            return reason
        return factors.fixed(kind.asked, kind.amounts, kind.partition, priority(kind.owner), limit)

    sizes = map(
        Size,
        *(values[first].tolist() for values in amounts[:4]),
        _numbers(amounts[4][first]),
        words["gres"],
        words["features"],
    )
    named = zip(words["group"], words["user"], words["queue"], strict=True)
    of_groups = [
        [kind_of(name, *own) for name in listed.split(",")]
        for listed, *own in zip(
            words["partition"], sizes, named, words["licenses"], started[first].tolist(), strict=True
        )
    ]
    every = [kind for own in of_groups for kind in own]
    count = np.array([*map(len, of_groups)])
    begin, count = (np.cumsum(count) - count)[group], count[group]
    job, kind = expanded(begin, count)  # of each entry
    longest = np.array([math.inf if isinstance(each, str) else each.longest for each in every])[kind]
    timed = np.array([not isinstance(each, str) and each.timed for each in every])[kind]
    limit_s, own_s = np.asarray(jobs.column("limit"))[job], runnable.floats("time_limit")[job]
    minutes = np.ceil((limit_s if extend else np.minimum(limit_s, longest)) / MINUTE_S - 1e-6)
    limit = np.maximum(1, minutes).astype(np.int64) * MINUTE_S
    columns = kind, started[job], limit, own_s
    _, rows, variant = distinct(grouped(kind, np.where(timed, limit, 0), (own_s > longest).astype(np.int64)))
    judged = [
        fixed(every[number], *own) for number, *own in zip(*(values[rows].tolist() for values in columns), strict=True)
    ]
    bad = np.array([isinstance(each, str) for each in judged])[variant]
    refused = np.bincount(job, bad, len(jobs))
    rejected = refused > (0 if cluster.all_partitions else count - 1)
    wrong = np.flatnonzero(bad & rejected[job])
    for own, row in zip(*(values.tolist() for values in np.unique(job[wrong], return_index=True)), strict=True):
        record.refuse(own, JobState.REJECTED, str(judged[variant[wrong[row]]]))
    if HET_JOB in runnable.columns:
        codes, names = codes_of(runnable.arrow(HET_JOB))
        lost = np.isin(codes, codes[rejected]) & ~rejected & np.array([*map(bool, names)])[codes]
        for own in np.flatnonzero(lost).tolist():
            record.refuse(own, JobState.REJECTED, "another component of its heterogeneous job is rejected")
        rejected |= lost
    entries = np.flatnonzero(~bad & ~rejected[job])
    if not len(entries):
        reason, most = Counter(record.reason).most_common(1)[0]
        some = f" (so {most:,} of them)" if most < len(jobs) else ""
        hint = "correct the demands of the jobs, or give the slurm.conf of the cluster on which they ran"
        raise InputError(f"none of the {len(jobs):,} jobs can run on the cluster: {reason}{some}", hint=hint)
    begun = _begins(runnable.arrow("array"), np.asarray(jobs.column("submit")))
    entries = entries[np.lexsort((job[entries], kind[entries] - begin[job[entries]], begun[job[entries]]))]
    which = job[entries]
    numbers = which.tolist()
    different, size = np.unique(nodes[which], return_inverse=True)
    order, _, kind = distinct(kind[entries])
    used = [each for number in order.tolist() if isinstance(each := every[number], _Kind)]
    release = runnable.floats(RELEASE)[which] if RELEASE in runnable.columns else 0.0
    overheads = setup.timing.overheads
    launch, end = (np.array([*map(delay, different.tolist())])[size] for delay in (overheads.launch, overheads.end))
    users: dict[str, int] = {}
    licenses = of(runnable, "licenses", numbers) if any(words["licenses"]) else []
    inputs = Inputs(
        **rules(idle, accounting, factors, [(each.owner, each.partition) for each in used], kind),
        submit=np.asarray(jobs.column("submit"))[which],
        run_time=np.asarray(jobs.column("run_time"))[which],
        limit=limit[entries],
        launch_s=launch,
        overrun_s=_overruns(runnable, kill=not extend)[which],
        end_s=end + release,
        requests=[used[each].request for each in kind.tolist()],
        user=np.array([users.setdefault(each.owner.user, len(users)) for each in used])[kind],
        fixed=np.array([math.nan if isinstance(each, str) else each for each in judged])[variant[entries]],
        associations=accounting.tree(weights.half_life_s, (), weights.classic),
        association=np.array([each.owner.association for each in used])[kind],
        fairshare=weights.fairshare,
        conditions=conditions_of(runnable, numbers, kill_invalid=cluster.kill_invalid_depend),
        arrays=arrays_in(runnable, numbers),
        licenses=licenses_in(licenses, of(runnable, "job_id", numbers), cluster) if licenses else None,
        het_job=heterogeneous(of(runnable, HET_JOB, numbers)) if HET_JOB in runnable.columns else (),
        entries=Entries.of(numbers, one_reservation=cluster.bf_one_resv_per_job)
        if len(entries) > len({*numbers})
        else None,
    )
    return inputs, numbers


def rules(
    idle: IdleCluster, accounting: Accounting, factors: Factors, kinds: Sequence[tuple[Owner, int]], of: IntArray
) -> dict[str, Any]:
    """Return the fields of `Inputs` that follow from a cluster, and from the kind of each job, its number in `kinds`.

    A kind is an owner and a partition, by its number.
    """
    cluster = idle.cluster
    partition = [number for _, number in kinds]
    over_limit = [float(cluster.partitions[number].over_limit_s) for number in partition]
    preemption = preemption_of(cluster, partition, [owner.qos for owner, _ in kinds])
    return {
        "partition": np.array(partition)[of],
        "tier": [each.tier for each in cluster.partitions],
        "over_limit_s": np.array(over_limit)[of],
        "free": idle.resources,
        "usage_factor": np.array([accounting.usage_factor(owner) for owner, _ in kinds])[of],
        "billing": factors.billing,
        "billing_most": factors.most,
        "limits": accounting.limits(np.array([accounting.group(owner) for owner, _ in kinds])[of]),
        "reserve": np.array([accounting.reserves(owner) for owner, _ in kinds])[of],
        "age": cluster.weights.age,
        "max_age_s": cluster.weights.max_age_s,
        "period_s": cluster.weights.period_s,
        "first_period_s": 0.0,
        "kill_wait_s": cluster.kill_wait_s,
        "array_reservations": cluster.bf_max_job_array_resv,
        "job_depth": cluster.partition_job_depth,
        "part_test": cluster.bf_max_job_part,
        "user_part_test": cluster.bf_max_job_user_part,
        "complete_wait_s": cluster.complete_wait_s,
        "preemption": preemption and replace(preemption, of=np.array(preemption.of)[of]),
    }


def _numbers(values: FloatArray) -> list[float]:
    """Return numbers, of which missing ones are `NAN`."""
    return [NAN if math.isnan(value) else value for value in values.tolist()]


def _overruns(workload: Workload, *, kill: bool) -> FloatArray:
    """Return for how long each job ran beyond its limit, s, if the log says that Slurm ended it so; else NaN."""
    beyond = workload.floats("run_time") - workload.floats("time_limit")
    killed = equal(workload.arrow("status"), JobState.KILLED) & (beyond > 0) & kill
    return np.where(killed, beyond, np.nan)


def _begins(arrays: Texts, submit: FloatArray) -> IntArray:
    """Return where each job begins in the queue: the tasks of an array begin with the first of them."""
    codes = codes_of(arrays)[0]
    begins = np.ones(len(submit), dtype=bool)
    begins[1:] = equal(arrays, "")[1:] | (np.diff(codes) != 0) | (np.diff(submit) != 0)
    return np.maximum.accumulate(np.where(begins, np.arange(len(submit)), 0))


def memory_of(memory_mib: float, partition: Any, cluster: SlurmCluster) -> dict[str, Any]:
    """Return the fields `memory` and `by_core` of a request."""
    if not cluster.memory:
        return {}
    if not math.isnan(memory_mib):
        return {"memory": math.ceil(memory_mib)}
    if partition.memory_per_core_mib:
        return {"memory": partition.memory_per_core_mib, "by_core": True}
    return {"memory": partition.memory_per_node_mib or ALL}


def whole_minutes(limit_s: float) -> int:
    """Return a time limit in whole minutes, s."""
    return max(1, math.ceil(limit_s / MINUTE_S - 1e-6)) * MINUTE_S


def resources_of(cluster: SlurmCluster, kinds: Sequence[str]) -> Resources:
    """Return the resources of the empty cluster, with generic resources of these kinds."""
    nodes = [kind for _, kind in cluster.nodes]
    cores, memory = [cluster.cores_of(node) for node in nodes], [node.memory_mib for node in nodes]
    per_core = cluster.cpus_per_core
    threads = [node.threads // per_core for node in nodes]
    kept = [tuple(kind in node.kept for kind in kinds) for node in nodes]
    return Resources(
        cores,
        memory,
        [tuple(node.gres.get(kind, 0) for kind in kinds) for node in nodes],
        cores,
        memory,
        _switches_of(cluster),
        [node.weight for node in nodes],
        threads=threads if max(threads) > 1 else (),
        sockets=[node.socket_cores * own for node, own in zip(nodes, threads, strict=True)]
        if any(partition.sockets for partition in cluster.partitions)
        else (),
        kept=kept if any(map(any, kept)) else (),
    )


def _switches_of(cluster: SlurmCluster) -> Switches | None:
    """Return the switches of the nodes; None: there is no topology."""
    if not cluster.switches:
        return None
    node = {name: number for number, (name, _) in enumerate(cluster.nodes)}
    switch = {each.name: number for number, each in enumerate(cluster.switches)}
    attached = [host_names(each.nodes) if each.nodes else [] for each in cluster.switches]
    return Switches.of(
        [mask_of([node[name] for name in names if name in node]) for names in attached],
        [[switch[name] for name in each.below] for each in cluster.switches],
        CONS_RES if cluster.cons_res else CONS_TRES if cluster.shared else LINEAR,
    )


def choice_of(partition: Partition, *, in_cpus: bool) -> dict[str, Any]:
    """Return the fields of a request that say how nodes and cores are chosen. `in_cpus`: see `demands.in_cpus`."""
    whole = OF_CPUS if in_cpus else OF_TASKS
    return {"sockets": whole if partition.sockets else 0, "least_loaded": partition.least_loaded}


def placement(cluster: SlurmCluster, empty: Resources) -> Callable[[int, str, Request], Request | str]:
    """Return a function from partition, features and request to the request with its eligible nodes, or to a reason."""

    @lru_cache(maxsize=PLACEMENTS)
    def placed(partition: int, features: str, request: Request) -> Request | str:
        plain = request._replace(gres=(0,) * len(request.gres))
        of_partition = members(partition, features)
        able = (mask for node, mask in empty.alike if mask & of_partition and empty.capacity(plain, node))
        suited = request._replace(eligible=of_partition & reduce(or_, able, 0))
        if fits(empty, suited):
            return suited
        return f"{NEVER_RUN}: {lacking(cluster, empty, request, nodes_of(of_partition), features)}"

    @cache
    def members(partition: int, features: str) -> int:
        of_kind = {kind.names: satisfies(kind.features, features) for kind in cluster.kinds}
        return mask_of([node for node in cluster.members(partition) if of_kind[cluster.nodes[node][1].names]])

    return placed


def requests(
    cluster: SlurmCluster, kinds: Sequence[str], empty: Resources, placed: Callable[[int, str, Request], Request | str]
) -> Callable[[int, Size, bool], tuple[Request, Request | str]]:
    """Return a function from partition, size, and `demands.in_cpus` to a request, and what `placement` makes of it."""

    @lru_cache(maxsize=PLACEMENTS)
    def asked(number: int, size: Size, of_slurm: bool) -> tuple[Request, Request | str]:
        partition, wanted = cluster.partitions[number], cluster.demanded(size.gres)
        request = Request(
            cores=size.nodes * size.cores_per_node,
            per_node=0 if size.spread else size.cores_per_node,
            fewest=size.fewest_nodes or size.nodes,
            whole=partition.exclusive or not cluster.shared,
            gres=tuple(wanted.get(kind, 0) for kind in kinds),
            one_thread=bool(empty.threads) and not of_slurm,
            **memory_of(size.memory_mib, partition, cluster),
            **choice_of(partition, in_cpus=of_slurm),
        )
        if lacking := wanted.keys() - set(kinds):
            return request, f"{NEVER_RUN}: the cluster has no generic resource {min(lacking)}"
        return request, placed(number, size.features, request)

    return asked


def _drawn(policy: Slurm, inputs: Inputs, seed: int) -> tuple[Slurm, Inputs]:
    """Draw the unknown phases and delays."""
    (period, *parts), check = draws(seed)
    phases = policy.phases(*parts)  # reservations begin at multiples of the resolution
    first = float(inputs.submit[0]) + period * inputs.period_s
    return replace(policy, **phases), replace(inputs, check_s=check, first_period_s=first)


def draws(seed: int) -> tuple[list[float], float]:
    """Return the drawn phases of priorities, main loop, backfill and clock, as shares, and the first check, s."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0.0, 1.0, 4).tolist(), rng.uniform(0.0, CHECK_S)


def _steps(jobs: Jobs, numbers: Sequence[int], setup: Setup) -> tuple[list[float], list[float]]:
    """Return how much later than other jobs those with steps launch, and end, s (`Calibration.steps`)."""
    measured = {} if setup.timing.calibration is None else setup.timing.calibration.steps
    launch_s, end_s = (max(0.0, measured[name].value) if name in measured else 0.0 for name in ("launch_s", "end_s"))
    has_steps = [jobs.malleable[job] for job in numbers]
    return [launch_s * each for each in has_steps], [end_s * each for each in has_steps]


def _with_layer(
    inputs: Inputs,
    numbers: Sequence[int],
    jobs: Jobs,
    policy: Slurm,
    setup: Setup,
    seed: int,
    slurm_cluster: SlurmCluster,
) -> Inputs:
    """Return the inputs with the layer of the policy. The jobs that it does not resize are counted."""
    assert policy.resizes != "none"
    known = dict[tuple[Any, ...], list[float]]()

    def sizes(job: int, eligible: int) -> Sizes | None:
        if not jobs.malleable[job]:
            return None
        least, most = jobs.low[job], max(jobs.nodes[job], min(jobs.high[job], eligible.bit_count()))
        key = id(jobs.speedup[job]), jobs.nodes[job], least, most
        if key not in known:
            known[key] = [jobs.rate(job, nodes) for nodes in range(least, most + 1)]
        return Sizes(least, min(jobs.pref[job], most), most, known[key])

    of_entries = [sizes(job, inputs.requests[entry].eligible) for entry, job in enumerate(numbers)]
    overheads = setup.timing.overheads
    query_s = min(QUERY_S, float(policy.resize_interval))
    changed, reasons = with_layer(
        inputs,
        of_entries,
        policy.resizes,
        policy.release,
        gives_gres=slurm_cluster.gives_gres,
        counted=slurm_cluster.weights != Weights(),
        interval_s=float(policy.resize_interval),
        phase_s=float(inputs.submit[0]) + np.random.default_rng([seed, 4]).uniform(0.0, query_s),
        pause_s=overheads.reconfiguration_s,
        release_s=overheads.release_s,
        merge_s=overheads.expand_s,
        merge_rank_s=overheads.expand_rank_s,
    )
    why = {numbers[entry]: reason for entry, reason in reasons.items()}
    for reason, count in sorted(Counter(why.values()).items()):
        jobs.counts[f"malleable jobs {reason}"] = count
    return changed


def _never(inputs: Inputs, job: int, refused: int) -> tuple[JobState, str]:
    """Return the final state, and the reason, of a job that never starts."""
    if refused >= 0:
        reason = inputs.limits.limits[inputs.limits.group[job]][refused].reason
        return JobState.REJECTED, f"{reason}: Slurm refuses the job"
    if inputs.conditions and inputs.conditions.dependencies[job]:
        killed = inputs.conditions.kill_invalid
        return JobState.CANCELLED if killed else JobState.INTERRUPTED, "its dependency is never satisfied"
    if inputs.bookings and inputs.bookings.inside[job] >= 0:
        return JobState.INTERRUPTED, "its reservation ends before it can start"
    return JobState.INTERRUPTED, "no pass of Slurm ever starts it"


def _enter(
    record: ScheduleRecord,
    cluster: Cluster,
    numbers: Sequence[int],
    inputs: Inputs,
    outcome: Outcome,
    setup: Setup,
) -> None:
    """Write the outcome into the record and the ledger."""
    starts = outcome.start
    if setup.timing.dispatched:  # a job that is preempted while its nodes boot has no processes
        starts = [
            start if math.isnan(launched) else launched
            for start, launched in zip(outcome.start, outcome.launched, strict=True)
        ]
    for resize in outcome.resizes:
        job = numbers[resize.job]
        record.resize_requested(job, resize.before, resize.after, resize.asked)
        record.resize_applied(job, resize.decided, resize.applied, max(resize.applied, resize.ended))
    settled = {job for job, end in zip(numbers, outcome.end, strict=True) if not math.isnan(end)}
    rows = zip(numbers, starts, outcome.launched, outcome.end, outcome.fate, outcome.restarts, strict=True)
    for at, (job, start, launched, end, fate, restarts) in enumerate(rows):
        if restarts:
            record.restarts[job] += restarts
        if not math.isnan(end):
            record.start[job], record.launched[job], record.end[job] = start, launched, end
            record.state[job], record.reason[job] = FATES[fate]
        elif job not in settled:  # the first entry of the job has the reason
            record.refuse(job, *_never(inputs, at, outcome.refused[at]))
            settled.add(job)
    begins = [
        active if active > start else begin
        for active, start, begin in zip(outcome.active, outcome.start, starts, strict=True)
    ]
    _hold(cluster, outcome.parts, numbers, begins, outcome.end)
    stints = outcome.stints
    if stints:
        owners = [numbers[stint.job] for stint in stints]
        begins = [starts[each.job] if each.start == outcome.start[each.job] else each.start for each in stints]
        _hold(cluster, [each.parts for each in stints], owners, begins, [each.end for each in stints])


def _enter_outages(record: ScheduleRecord, numbers: Sequence[int], outcome: Outcome, outages: Outages) -> None:
    """Write the outages until the last end into the record, and the lost nodes into the reasons of the lost jobs."""
    last = max((end for end in outcome.end if not math.isnan(end)), default=-math.inf)
    out, downs = set[int](), dict[float, list[NodeChange]]()
    for change in outages.changes:
        if change.at > last:
            break
        if change.node in out:
            record.node_up(change.node, change.at)
        if change.kind is None:
            out.discard(change.node)
        else:
            out.add(change.node)
            record.node_down(change.node, change.at, change.reason, change.kind.value)
            if change.kind is OutageKind.DOWN:
                downs.setdefault(change.at, []).append(change)
    for at, job in enumerate(numbers):
        if outcome.fate[at] == LOST and not math.isnan(outcome.end[at]):
            own = next(change for change in downs[outcome.end[at]] if change.node in outcome.parts[at])
            record.reason[job] = record.treat_loss(job, "fail", outages.names[own.node], own.reason)[1]
            if record.launched[job] > record.end[job]:
                record.launched[job] = math.nan


FATES = {
    LOST: (JobState.FAILED, ""),  # the reason has the node
    ENDED: (JobState.COMPLETED, ""),
    KILLED: (JobState.KILLED, ""),
    PREEMPTED: (JobState.CANCELLED, "preempted"),
}
"""How a job ended -> its final state and the reason."""


def _hold(
    cluster: Cluster, parts: Sequence[Parts], jobs: Sequence[int], begins: Sequence[float], ends: Sequence[float]
) -> None:
    """Write into the ledger which cores each of `jobs` held."""
    held = parts if isinstance(parts, AllocatedRanges) else AllocatedRanges.of(parts)
    at, row = held.by_job()
    ledger, first, cores = cluster.ledger, held.first[row], held.cores[row]
    before = len(ledger.jobs)
    for column, values in (
        (ledger.jobs, np.array(jobs)[at]),
        (ledger.firsts, first),
        (ledger.counts, held.nodes[row]),
        (ledger.starts, np.array(begins)[at]),
        (ledger.ends, np.array(ends)[at]),
    ):
        column.frombytes(values.astype(column.typecode).tobytes())
    shared = np.flatnonzero(cores != np.array(cluster.cores)[first])
    ledger.parts.update(
        (before + entry, range(part)) for entry, part in zip(shared.tolist(), cores[shared].tolist(), strict=True)
    )
