"""Forecasts of the starts of waiting jobs, from the state of a live Slurm cluster: an ensemble of simulations.

A member of the ensemble begins with the running jobs of the state and the present priorities. It draws the run times
of all jobs, the phases of slurmctld, and the jobs that are submitted later, which are those of a window of the log.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.table import codes_of, distinct, grouped
from tracebed.orchestrator.scheduling.dependencies import dependencies_of, groups_of
from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.policies.registry import resolve
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.slurm.simulation import engine
from tracebed.slurm.simulation.accounts import NONE, Accounting, Owner
from tracebed.slurm.simulation.factors import Factors, size_factor
from tracebed.slurm.simulation.feasibility import fits
from tracebed.slurm.simulation.inputs import CHECK_S, Associations, Conditions, Entries, Inputs, amounts_of
from tracebed.slurm.simulation.prediction import IdleCluster, choice_of, memory_of, rules, whole_minutes
from tracebed.slurm.simulation.resources import ALL, Request
from tracebed.slurm.simulation.run_times import Draws, RunTimes
from tracebed.slurm.simulation.start_conditions import (
    NOTICE_S,
    arrays_of,
    heterogeneous,
    licenses_in,
    with_bookings,
)
from tracebed.slurm.state import BLOCKING, USED_UP, ClusterState, LiveJob

OF_JOBS = (
    *("submit", "limit", "launch_s", "overrun_s", "over_limit_s", "end_s", "requests", "partition", "user", "fixed"),
    *("held", "since", "association", "usage_factor", "reserve", "shortest", "deadline"),
)
"""The fields of `Inputs` with a value for each job, except those that a member draws."""
OF_PARTS = {
    "limits": ("group",),
    "conditions": ("earliest", "dependencies", "any_of", "group", "fails"),
    "arrays": ("of",),
    "licenses": ("wanted",),
    "bookings": ("inside",),
    "preemption": ("of",),
}
"""Parts of `Inputs`, each of which may be None -> their fields with a value for each job."""
TEXTS_OF_LOG = ("user", "group", "partition", "features", "gres", "queue", "licenses")
NUMBERS_OF_LOG = ("time_limit", "nodes", "cores_per_node", "spread", "fewest_nodes", "memory_mib")
"""Columns of a log with what its jobs ask for: texts, and numbers."""
HORIZON = 2.0
"""Later jobs are submitted until this multiple of the time after which the last waiting job starts without them."""
UNKNOWN_RESERVATION = "Reservation: unknown (no reservation.txt, or not in it)"
INCOMPLETE = "another component of its heterogeneous job has no forecast"
UNRANKED = -1
"""Priority of a job that is not submitted yet: as that of a later job, it follows from the rules."""
UNAVAILABLE = "no available nodes of its partition can run it"


@dataclass(frozen=True)
class Starts:
    """The starts of the waiting jobs in each member, s on the clock of the cluster, shape (jobs, members).

    A job without a forecast (NaN) has a reason. The notes say what is not modeled, and what the log lacks.
    """

    jobs: tuple[LiveJob, ...]
    starts: FloatArray
    reasons: tuple[str, ...]
    notes: tuple[str, ...]


def forecast(
    state: ClusterState,
    log: Workload,
    members: int,
    seed: int,
    *,
    arrivals: bool = True,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Starts:
    """Forecast the starts of the waiting jobs. Run times and, with `arrivals`, later jobs are drawn from the log.

    `on_progress` is called with the number of finished members.
    """
    learnt = RunTimes(log)
    if not learnt.jobs:
        hint = "give the accounting of a month or more, with Timelimit"
        raise InputError("no job of the log has a run time and a time limit", hint=hint)
    rng = np.random.default_rng(seed)
    ensemble = _Ensemble(state, learnt, rng)
    starts = np.full((len(ensemble.waiting), members), np.nan)
    if ensemble.rows:
        starts[ensemble.rows] = ensemble.starts(log if arrivals else None, members, on_progress)
    notes = (*state.notes, *_unknown_users(state, learnt))
    for row in ensemble.rows:
        missing = int(np.isnan(starts[row]).sum())
        if missing:
            job = ensemble.waiting[row]
            what = f"{_never(job)} in {missing} of {members} simulations"
            if 2 * missing >= members:  # there is no median
                ensemble.reasons[row] = what
            else:
                notes = (*notes, f"job {job.id}: {what}")
    return Starts(tuple(ensemble.waiting), starts, tuple(ensemble.reasons), notes)


def _never(job: LiveJob) -> str:
    """Return what becomes of a job that a simulation does not start."""
    if job.deadline is None:
        return "does not start"
    latest = datetime.fromtimestamp(job.deadline - (job.shortest_s or job.limit_s), UTC)
    return f"DeadLine: Slurm ends it, since it has not started until {latest:%Y-%m-%dT%H:%M:%S},"


def _unknown_users(state: ClusterState, learnt: RunTimes) -> Iterator[str]:
    """Yield a sentence about the users that the log does not have."""
    users = {job.user for job in state.jobs if job.user}
    known = len(users & learnt.users)
    if known < len(users):
        hint = "" if known else " (read it with --keep names)"
        yield f"the log has {known} of the {len(users)} users{hint}; jobs of the others run as those of all users"


def _further(job: LiveJob) -> Iterator[LiveJob]:
    """Yield the further entries of a waiting job in Slurm's queue: in other partitions, and other reservations."""
    inside = job.reservation.split(",") if job.start is None else [job.reservation]
    every = product((job.partition, *job.others), inside)
    yield from (replace(job, partition=name, reservation=reservation) for name, reservation in [*every][1:])


class _Ensemble:
    """The simulations of a state: its `waiting` jobs, why some have no forecast, and the `rows` of the others."""

    def __init__(self, state: ClusterState, learnt: RunTimes, rng: np.random.Generator) -> None:
        self._state, self._learnt, self._rng = state, learnt, rng
        policy = resolve("slurm", state.conf.parameters)[1]
        assert isinstance(policy, Slurm)
        running = [job for job in state.jobs if job.start is not None and job.held]
        self.waiting = [job for job in state.jobs if job.start is None]
        past = [job.waits_since if job.start is None else job.start for job in state.jobs]
        self._zero = min([state.instant, *past]) - policy.sched_interval - 1.0
        self._begin = state.instant - self._zero
        self._policy = replace(policy, epoch_s=self._zero)
        self._live = StateInputs(state, self._zero)
        self.reasons, requests = self._requests()
        self.rows = [row for row, reason in enumerate(self.reasons) if not reason]
        self._jobs = [*running, *(self.waiting[row] for row in self.rows)]
        self._running, self._count = len(running), len(running) + len(self.rows)
        self._own = [request for job in running if (request := self._live.request(job))]
        self._own += [requests[row] for row in self.rows]
        self._first = [*range(self._count)]
        for at, job in enumerate(self._jobs[: self._count]):
            for entry in _further(job):
                if (request := self._live.request(entry)) is not None:
                    self._jobs.append(entry)
                    self._own.append(request)
                    self._first.append(at)

    def _requests(self) -> tuple[list[str], dict[int, Request]]:
        """Return why a waiting job has no forecast, and the requests of the others."""
        reasons, requests = [], {}
        reservations = {each.name for each in self._state.reservations or ()}
        for row, job in enumerate(self.waiting):
            blocked = job.reason in BLOCKING or USED_UP.search(job.reason)
            reason = job.reason if blocked else ""
            if job.reservation and not reservations.intersection(job.reservation.split(",")):
                reason = reason or UNKNOWN_RESERVATION
            request = None if reason else self._live.request(job)
            if request is not None:
                reason = self._live.never(job, request)
                requests[row] = request
            reasons.append(reason or (UNAVAILABLE if request is None else ""))
        again = True
        while again:  # a job that depends on a job that is not simulated is not, either
            known = {job.id for row, job in enumerate(self.waiting) if not reasons[row]}
            known |= {job.id for job in self._state.jobs if job.start is not None and job.held}
            known |= {name.partition("_")[0] for name in known}
            incomplete = {job.whole_id for job in self.waiting if job.whole_id and job.id not in known}
            stuck = {(job.user, job.name): job.number for job in reversed(self.waiting) if job.id not in known}
            again = False
            for row, job in enumerate(self.waiting):
                named = re.findall(r"[:,?](\d+(?:_\d+)?)", f",{job.dependency}")
                alone = "singleton" in job.dependency and stuck.get((job.user, job.name), job.number) < job.number
                if not reasons[row] and job.whole_id in incomplete:
                    reasons[row], again = INCOMPLETE, True
                if not reasons[row] and job.dependency and (alone or {*named} - known):
                    reasons[row], again = "Dependency", True
        return reasons, requests

    def starts(self, log: Workload | None, members: int, on_progress: Callable[[int], None]) -> FloatArray:
        """Return the starts of the jobs `rows`, s on the clock of the cluster, shape (jobs, members)."""
        draws = Draws(self._learnt, members, self._rng)
        drawn = np.array([self._run_times(job, draws) for job in self._jobs[: self._count]])[self._leaders()][
            self._first
        ]
        inputs = self._live.of(self._jobs, self._own, self._count, self._first)
        nothing = _Later(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
        later = [nothing] * members
        if log is not None:
            first = self._simulated(self._drawn(inputs, np.median(drawn, axis=1), nothing))
            last = max((start for start in first if not math.isnan(start)), default=self._begin)
            inputs, later = self._with_later(log, HORIZON * (last - self._begin) + 60.0, members)
        with ThreadPoolExecutor(os.cpu_count()) as threads:  # the engine runs outside the interpreter
            every = (self._drawn(inputs, drawn[:, member], later[member]) for member in range(members))
            simulated: list[list[float]] = []
            for starts in threads.map(self._simulated, every):
                simulated.append(starts)
                on_progress(len(simulated))
            return np.array(simulated).T + self._zero

    def _leaders(self) -> list[int]:
        """Return the job with whose end each job ends: the first component of its heterogeneous job, or itself."""
        first: dict[str, int] = {}
        return [
            first.setdefault(job.whole_id, at) if job.whole_id else at
            for at, job in enumerate(self._jobs[: self._count])
        ]

    def _run_times(self, job: LiveJob, draws: Draws) -> FloatArray:
        """Draw the run time of a job of the state in each member."""
        elapsed = 0.0 if job.start is None else max(0.0, self._state.instant - job.start)
        drawn = draws.of(job.user, whole_minutes(job.limit_s), sum(job.held.values()) or job.cores, elapsed)
        return drawn * 0.0 if job.ending else drawn

    def _drawn(self, inputs: Inputs, run_times: FloatArray, later: _Later) -> tuple[Inputs, Slurm]:
        """Return the inputs and the parameters of a member, with drawn phases and delays."""
        rng, begin, policy = self._rng, self._begin, self._policy
        own = len(self._jobs)
        which = np.append(np.arange(own), later.jobs)
        columns: dict[str, Any] = {name: _of(getattr(inputs, name), which) for name in OF_JOBS}
        columns["submit"][own:] = later.submit + begin
        check = rng.random() * CHECK_S
        columns["run_time"] = np.append(run_times, later.run_time)
        first = begin + rng.random() * inputs.period_s
        columns |= _rows_of(inputs, which, own)
        if bookings := columns.get("bookings"):
            instants = [at - self._zero for each in bookings.booked for at in (each.begin, each.end)]
            notices = (np.array(instants) + rng.random(len(instants)) * NOTICE_S).tolist()
            columns["bookings"] = replace(bookings, notices=notices)
        return replace(inputs, **columns, check_s=check, first_period_s=first), replace(
            policy,
            sched_phase_s=begin - rng.random() * policy.sched_interval,
            bf_phase_s=begin + rng.random() * max(policy.bf_loop_s, policy.bf_interval),
        )

    def _simulated(self, drawn: tuple[Inputs, Slurm]) -> list[float]:
        """Simulate a member; return the starts of the jobs `rows`, s."""
        every = engine.simulate(*drawn).start
        start = every[: self._count]
        for at, of_entry in zip(self._first[self._count :], every[self._count :], strict=False):
            start[at] = of_entry if math.isnan(start[at]) else start[at]
        return start[self._running :]

    def _with_later(self, log: Workload, horizon: float, members: int) -> tuple[Inputs, list[_Later]]:
        """Return inputs with all jobs of the log that a member uses, and the later jobs of each member.

        A member uses the jobs of a window of the log, which begins at any instant. After its end, the log begins again.
        """
        run_time, submit = log.floats("run_time"), log.floats("submit_time")
        usable = np.isfinite(run_time) & (log.floats("time_limit") > 0) & (log.ints("nodes") > 0)
        length = float(submit[-1] - submit[0]) + 1.0
        windows: list[tuple[IntArray, FloatArray]] = []
        for origin in self._rng.uniform(0.0, length, members):
            since = np.mod(submit - submit[0] - origin, length)
            inside = np.flatnonzero(usable & (since < horizon))
            windows.append((inside, since[inside]))
        jobs, requests, number = [*self._jobs], [*self._own], np.full(len(log), -1)
        used = np.unique(np.concatenate([rows for rows, _ in windows]))
        codes = [codes_of(log.arrow(name))[0][used] for name in TEXTS_OF_LOG]
        _, first, kind = distinct(grouped(*codes, *(log.column(name)[used] for name in NUMBERS_OF_LOG)))
        column = cache(lambda name: log.column(name)[used[first]].tolist())
        alike = [_job_of_log(column, at) for at in range(len(first))]
        of_kind = [self._live.request(job) for job in alike]
        for row, own in zip(used.tolist(), kind.tolist(), strict=True):
            if (request := of_kind[own]) is not None:
                number[row] = len(jobs)
                jobs.append(alike[own])
                requests.append(request)
        later = []
        for rows, since in windows:
            kept = number[rows] >= 0
            later.append(_Later(number[rows[kept]], since[kept], run_time[rows[kept]]))
        return self._live.of(jobs, requests, self._count, self._first), later


@dataclass(frozen=True)
class _Later:
    """The later jobs of a member: numbers in the inputs, submissions after the instant of the state, and run times."""

    jobs: IntArray
    submit: FloatArray
    run_time: FloatArray


def _of(values: Any, which: IntArray) -> Any:
    """Return the values of the jobs `which`, an array or a list."""
    return values[which] if isinstance(values, np.ndarray) else [values[job] for job in which.tolist()]


def _rows_of(inputs: Inputs, which: IntArray, own: int) -> dict[str, Any]:
    """Return the conditions, limits and further rules of the jobs `which`, of which `own` are those of the state."""
    rows: dict[str, Any] = {}
    for part, names in OF_PARTS.items():
        if (whole := getattr(inputs, part)) is not None:
            rows[part] = replace(whole, **{name: _of(getattr(whole, name), which) for name in names})
    if inputs.het_job:
        rows["het_job"] = _of(inputs.het_job, which)
    if entries := inputs.entries:
        jobs = [*entries.first[:own], *range(own, len(which))]
        rows["entries"] = Entries.of(jobs, one_reservation=entries.one_reservation) if entries.several else None
    return rows


def _job_of_log(column: Callable[[str], Sequence[Any]], row: int) -> LiveJob:
    """Return a job of a log as one that will be submitted. `column`: name -> the values of all jobs."""

    def of(name: str) -> Any:
        return column(name)[row]

    def text(name: str) -> str:
        return str(of(name))

    cores, nodes = int(of("cores_per_node")), int(of("nodes"))
    return LiveJob(
        id="",
        user=text("user"),
        account=text("group"),
        partition=text("partition").partition(",")[0],
        limit_s=float(of("time_limit")),
        cores=nodes * cores,
        per_node=0 if of("spread") else cores,
        fewest=int(of("fewest_nodes")) or nodes,
        memory_mib=float(of("memory_mib")),
        features=text("features"),
        gres=text("gres"),
        qos=text("queue"),
        licenses=text("licenses"),
    )


# -- the inputs of a member --------------------------------------------------------------------------------------------


class StateInputs:
    """The requests, users and priorities of the jobs of a cluster. Its instant `zero` is time 0 of the inputs.

    `empty` has the resources of the idle nodes.
    """

    def __init__(self, state: ClusterState, zero: float) -> None:
        self._state, self._zero, cluster = state, zero, state.machine
        self._idle = IdleCluster.of(cluster)
        _, self._kinds, self.empty, self._placed, _ = self._idle
        self._nodes = {name: number for number, (name, _) in enumerate(cluster.nodes)}
        self._down = mask_of([self._nodes[name] for name in state.unavailable])
        self._most = max(partition.factor for partition in cluster.partitions) or 1
        self._demanded = cache(cluster.demanded)

    def request(self, job: LiveJob) -> Request | None:
        """Return the request of a job; None: no available nodes of its partition can run it."""
        cluster, number = self._state.machine, self._state.machine.partition(job.partition)
        if number is None:
            return None
        partition, wanted = cluster.partitions[number], self._demanded(job.gres)
        memory = {"memory": int(job.memory_mib or ALL), "by_core": job.by_core} if math.isfinite(job.memory_mib) else {}
        request = Request(
            cores=sum(job.held.values()) or job.cores,
            per_node=0 if job.held else job.per_node,
            fewest=len(job.held) or job.fewest,
            whole=job.whole or partition.exclusive or not cluster.shared,
            gres=tuple(wanted.get(kind, 0) for kind in self._kinds),
            **({**memory_of(math.nan, partition, cluster), **memory} if cluster.memory else {}),
            **choice_of(partition, in_cpus=job.start is not None),
        )
        if job.held:
            return request._replace(eligible=mask_of([self._nodes[name] for name in job.held]))
        fitting = self._placed(number, job.features, request) if not wanted.keys() - {*self._kinds} else None
        if fitting is None or isinstance(fitting, str):
            return None
        if not self._down:
            return fitting
        fitting = fitting._replace(eligible=fitting.eligible & ~self._down)
        return fitting if fits(self.empty, fitting) else None

    def never(self, job: LiveJob, request: Request) -> str:
        """Return the limit of a QOS with which a job never starts; empty: none."""
        accounting, factors = self._rules
        number = self._state.machine.partition(job.partition) or 0
        amounts = amounts_of(request, None, self.empty, factors.billing[number], factors.most)
        return accounting.never(_owner(accounting, job, number), amounts, job.limit_s)

    @cached_property
    def _rules(self) -> tuple[Accounting, Factors]:
        """The limits and factors for the jobs of the state."""
        cluster, jobs = self._state.machine, self._state.jobs
        accounting = Accounting(cluster, self._kinds, [job.account for job in jobs], [job.user for job in jobs])
        return accounting, Factors(cluster, self._kinds)

    def of(self, jobs: Sequence[LiveJob], requests: Sequence[Request], live: int, first: Sequence[int]) -> Inputs:
        """Return the inputs of jobs without run times. The simulation ends when the `live` jobs have started.

        `jobs` are those of the state, then their entries of further partitions, then later ones, whose priorities
        follow from the rules. `first` has the job of each job of the state and of each entry.
        """
        state, cluster, weights = self._state, self._state.machine, self._state.machine.weights
        users = _Users(state, jobs)
        accounting = Accounting(cluster, self._kinds, [job.account for job in jobs], [job.user for job in jobs])
        factors = Factors(cluster, self._kinds)
        known = len(first)
        fair = weights.fairshare if state.shares else 0
        partition = [cluster.partition(job.partition) or 0 for job in jobs]
        static = [self._static(request, number) for request, number in zip(requests, partition, strict=True)]
        fixed = [
            self._fixed(job, fair * users.factors[users.of_job[k]], static[k] - static[first[k]])
            if k < known and job.priority != UNRANKED
            else static[k]
            for k, job in enumerate(jobs)
        ]
        beyond: dict[str, list[float]] = defaultdict(list)  # of a user: by which priorities exceed what is static
        for k, job in enumerate(jobs[:live]):
            if job.start is None and job.priority != UNRANKED:
                for name in (job.user, ""):
                    beyond[name].append(fixed[k] - static[k])
        for k in [k for k, job in enumerate(jobs) if k >= known or job.priority == UNRANKED]:
            more = beyond.get(jobs[k].user) or beyond.get("")
            fixed[k] += fmean(more) if more else 0.0
        count = len(jobs)
        own = [*first, *range(known, count)]
        alike: dict[tuple[str, str, str, int], LiveJob] = {}
        asked = [(job.account, job.user, job.qos, number) for job, number in zip(jobs, partition, strict=True)]
        for key, job in zip(asked, jobs, strict=True):
            alike.setdefault(key, job)
        kinds = [(_owner(accounting, job, key[3]), key[3]) for key, job in alike.items()]
        kind = {key: number for number, key in enumerate(alike)}
        ids = [job.id for job in jobs]
        inputs = Inputs(
            **rules(self._idle, accounting, factors, kinds, np.array([kind[key] for key in asked], dtype=np.int64)),
            submit=np.array([max(job.waits_since, job.eligible) for job in jobs]) - self._zero,
            run_time=np.full(count, np.nan),
            limit=np.array([whole_minutes(job.limit_s) for job in jobs]),
            launch_s=np.zeros(count),
            overrun_s=np.full(count, np.nan),
            end_s=np.zeros(count),
            requests=requests,
            user=np.array(users.numbers),
            fixed=np.array(fixed),
            associations=replace(users.tree, half_life_s=weights.half_life_s),
            association=np.array(users.of_job),
            fairshare=fair,
            conditions=_conditions(jobs, own, live, kill_invalid=cluster.kill_invalid_depend),
            arrays=arrays_of([job.array for job in jobs], ids) if any(job.array for job in jobs) else None,
            licenses=licenses_in([job.licenses for job in jobs], ids, cluster),
            entries=Entries.of(own, one_reservation=cluster.bf_one_resv_per_job),
            begin_s=state.instant - self._zero,
            held=[{self._nodes[name]: cores for name, cores in job.held.items()} for job in jobs],
            since=[math.nan if job.start is None else job.start - self._zero for job in jobs],
            usage=users.usage,
            factors=users.factors,
            shortest=[whole_minutes(job.shortest_s) if job.shortest_s else 0 for job in jobs],
            deadline=[math.inf if job.deadline is None else job.deadline - self._zero for job in jobs],
            het_job=heterogeneous([job.whole_id if job.start is None else "" for job in jobs]),
            watched=live,
        )
        if state.reservations is None:
            return inputs
        return with_bookings(inputs, [job.reservation for job in jobs], cluster, state.reservations, self._zero)

    def _static(self, request: Request, partition: int) -> float:
        """Return the parts of a priority that come from the partition and the size of the job."""
        weights, all_nodes, all_cores = self._state.machine.weights, len(self._nodes), sum(self.empty.total)
        size = size_factor(request.fewest, request.cores, all_nodes, all_cores, favor_small=weights.favor_small)
        factor = self._state.machine.partitions[partition].factor / self._most
        return weights.partition * factor + weights.job_size * size

    def _fixed(self, job: LiveJob, of_share: float, more: float) -> float:
        """Return the part of the priority of a job that does not change: the present one without age and fair share.

        `more`: by how much that of an entry of another partition exceeds it.
        """
        weights = self._state.machine.weights
        waited = 0.0 if job.dependency else max(0.0, self._state.instant - job.waits_since)
        known = self._state.factors.get(job.number, (weights.age * min(1.0, waited / weights.max_age_s), of_share))
        return job.priority + more - known[0] - (known[1] if self._state.shares else 0.0)


def _owner(accounting: Accounting, job: LiveJob, partition: int) -> Owner:
    """Return the association and QOS of a job that Slurm has accepted."""
    found = accounting.owner(job.account, job.user, job.qos, partition)
    return found if isinstance(found, Owner) else Owner(NONE, job.user, job.account, job.qos, "")


def _conditions(jobs: Sequence[LiveJob], own: Sequence[int], live: int, *, kill_invalid: bool) -> Conditions | None:
    """Return the conditions of the jobs; None: there are none. `own`: the first entry of each job."""
    if not any(job.dependency for job in jobs):
        return None
    ids = [job.id if k < live else "" for k, job in enumerate(jobs)]
    arrays = [job.array.partition("%")[0] if k < live else "" for k, job in enumerate(jobs)]
    nothing = Conditions.none(len(jobs))
    texts = [job.dependency for job in jobs]
    groups = groups_of([job.user for job in jobs], [job.name for job in jobs], texts)
    found, any_of = dependencies_of(texts, ids, arrays, groups)
    return replace(
        nothing,
        group=[group if k < live else -1 for k, group in enumerate(groups)],
        dependencies=[found[first] for first in own],
        any_of=[any_of[first] for first in own],
        kill_invalid=kill_invalid,
    )


class _Users:
    """The associations of a state and of jobs, in the form of `Inputs`, with the association of each job."""

    def __init__(self, state: ClusterState, jobs: Sequence[LiveJob]) -> None:
        shares = {(share.account, share.user): share for share in state.shares}
        pairs = dict.fromkeys([*shares, *((job.account, job.user) for job in jobs)])
        of_account = {share.account: share.account_share for share in state.shares}
        accounts = dict.fromkeys(account for account, _ in pairs)
        first = 2 + len(accounts)  # after the root, its user and the accounts
        account = {name: 2 + number for number, name in enumerate(accounts)}
        known = [shares.get(pair) for pair in pairs]
        own = {pair: first + number for number, pair in enumerate(pairs)}
        names: dict[str, int] = {}
        self.of_job = [own[job.account, job.user] for job in jobs]
        self.numbers = [names.setdefault(job.user, len(names)) for job in jobs]
        self.tree = Associations(
            parent=[0, 0, *(0 for _ in accounts), *(account[name] for name, _ in pairs)],
            shares=[
                *(1.0, 1.0, *(of_account.get(name, 1.0) for name in accounts)),
                *(share.share if share else 1.0 for share in known),
            ],
            is_user=[False, True, *(False for _ in accounts), *(True for _ in pairs)],
        )
        self.usage = [*(0.0 for _ in range(first)), *(share.usage if share else 0.0 for share in known)]
        for (name, _), number in own.items():
            self.usage[account[name]] += self.usage[number]
            self.usage[0] += self.usage[number]
        self.factors = [*(0.0 for _ in range(first)), *(share.factor if share else 1.0 for share in known)]
