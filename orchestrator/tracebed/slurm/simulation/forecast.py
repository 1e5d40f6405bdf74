"""Forecasts of the starts of waiting jobs, from the state of a live Slurm cluster: an ensemble of simulations.

A member of the ensemble begins with the running jobs of the state and the present priorities. It draws the run times
of all jobs, the phases of slurmctld, and the jobs that are submitted later, which are those of a window of the log.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray, Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.policies.registry import resolve
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.slurm.reservations import parsed
from tracebed.slurm.rules.entries import Entries
from tracebed.slurm.rules.resources import Request
from tracebed.slurm.simulation import engine
from tracebed.slurm.simulation.events import NOTICE_S
from tracebed.slurm.simulation.inputs import CHECK_S, Inputs
from tracebed.slurm.simulation.live import LiveInputs, minutes
from tracebed.slurm.simulation.run_times import Draws, RunTimes
from tracebed.slurm.simulation.simulator import Simulation
from tracebed.slurm.state import BLOCKING, USED_UP, ClusterState, LiveJob

OF_JOBS = (
    *("submit", "limit", "launch_s", "overrun_s", "over_limit_s", "end_s", "requests", "partition", "user", "fixed"),
    *("held", "since", "association", "usage_factor", "reserve", "shortest", "deadline"),
)
"""The fields of `Inputs` with a value for each job, except those that a member draws."""
HORIZON = 2.0
"""Later jobs are submitted until this multiple of the time after which the last waiting job starts without them."""
UNKNOWN_RESERVATION = "Reservation: unknown (no reservation.txt, or not in it)"
INCOMPLETE = "another component of its heterogeneous job has no forecast"
UNAVAILABLE = "no available nodes of its partition can run it"


@dataclass(frozen=True)
class Starts:
    """The forecast starts.

    Attributes:
        jobs: the waiting jobs.
        starts: starts in each member, s on the clock of the cluster, shape (jobs, members); NaN: no forecast.
        reasons: why there is no forecast, of each job; empty: there is one.
        notes: what the state has that is not modeled, and what the log lacks, one sentence each.
    """

    jobs: tuple[LiveJob, ...]
    starts: FloatArray
    reasons: tuple[str, ...]
    notes: tuple[str, ...]


def forecast(state: ClusterState, log: Workload, members: int, seed: int, *, arrivals: bool = True) -> Starts:
    """Forecast the starts of the waiting jobs.

    Args:
        state: the state of the cluster.
        log: jobs that ended before. Run times and later jobs are drawn from it.
        members: number of simulations.
        seed: seed of all draws.
        arrivals: whether jobs are submitted later, as in a window of the log.

    Raises:
        InputError: no job of the log has a run time and a time limit, or a job has features that are not modeled.
    """
    learnt = RunTimes(log)
    if not learnt.jobs:
        hint = "give the accounting of a month or more, with Timelimit"
        raise InputError("no job of the log has a run time and a time limit", hint=hint)
    rng = np.random.default_rng(seed)
    ensemble = _Ensemble(state, learnt, rng)
    starts = np.full((len(ensemble.waiting), members), np.nan)
    if ensemble.rows:
        starts[ensemble.rows] = ensemble.starts(log if arrivals else None, members)
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
    users = {job.user for job in state.jobs}
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
    """The simulations of a state.

    Attributes:
        waiting: the waiting jobs.
        reasons: why there is no forecast, of each waiting job; empty: there is one.
        rows: the waiting jobs with a forecast.
    """

    def __init__(self, state: ClusterState, learnt: RunTimes, rng: np.random.Generator) -> None:
        self._state, self._learnt, self._rng = state, learnt, rng
        policy = resolve("slurm", state.conf.parameters)[1]
        assert isinstance(policy, Slurm)
        running = [job for job in state.jobs if job.start is not None and job.held]
        self.waiting = [job for job in state.jobs if job.start is None]
        past = [job.waits_since if job.start is None else job.start for job in state.jobs]
        self._zero = min([state.instant, *past]) - policy.sched_interval - 1.0
        self._begin = state.instant - self._zero
        self._policy = replace(policy, cluster="", epoch_s=self._zero)
        self._live = LiveInputs(state, self._zero)
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
        reservations = {each.name for each in parsed(self._state.reservations)}
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

    def starts(self, log: Workload | None, members: int) -> FloatArray:
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
            return np.array([*threads.map(self._simulated, every)]).T + self._zero

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
        drawn = draws.of(job.user, minutes(job.limit_s), sum(job.held.values()) or job.cores, elapsed)
        return drawn * 0.0 if job.ending else drawn

    def _drawn(self, inputs: Inputs, run_times: FloatArray, later: _Later) -> tuple[Inputs, Slurm]:
        """Return the inputs and the parameters of a member, with drawn phases and delays."""
        rng, begin, policy = self._rng, self._begin, self._policy
        own = len(self._jobs)
        which = [*range(own), *later.jobs.tolist()]
        columns: dict[str, Any] = {name: [getattr(inputs, name)[job] for job in which] for name in OF_JOBS}
        columns["submit"][own:] = (later.submit + begin).tolist()
        check = rng.random() * CHECK_S
        columns["run_time"] = [*run_times.tolist(), *later.run_time.tolist()]
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
        outcome = engine.simulate(*drawn) if engine.available() else Simulation(*drawn).run()
        start = outcome.start[: self._count]
        for entry, at in enumerate(self._first[self._count :], self._count):
            start[at] = outcome.start[entry] if math.isnan(start[at]) else start[at]
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
        column = cache(lambda name: log.column(name).tolist())
        for row in np.unique(np.concatenate([rows for rows, _ in windows])).tolist():
            job = _job_of_log(column, row)
            request = self._live.request(job)
            if request is not None:
                number[row] = len(jobs)
                jobs.append(job)
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


def _rows_of(inputs: Inputs, which: Sequence[int], own: int) -> dict[str, Any]:
    """Return the conditions, limits and further rules of the jobs `which`, of which `own` are those of the state."""

    def of(values: Sequence[Any]) -> list[Any]:
        return [values[job] for job in which]

    found: dict[str, Any] = {"limits": replace(inputs.limits, group=of(inputs.limits.group))}
    if inputs.together:
        found["together"] = of(inputs.together)
    if each := inputs.entries:
        later = range(own, len(which))
        jobs = [*each.first[:own], *later]
        found["entries"] = Entries.of(jobs, one_reservation=each.one_reservation) if each.several else None
    if conditions := inputs.conditions:
        names = ("earliest", "dependencies", "any_of", "group", "fails")
        columns: dict[str, Any] = {name: of(getattr(conditions, name)) for name in names}
        found["conditions"] = replace(conditions, **columns)
    if arrays := inputs.arrays:
        found["arrays"] = replace(arrays, of=of(arrays.of))
    if licenses := inputs.licenses:
        found["licenses"] = replace(licenses, wanted=of(licenses.wanted))
    if bookings := inputs.bookings:
        found["bookings"] = replace(bookings, inside=of(bookings.inside))
    if preemption := inputs.preemption:
        found["preemption"] = replace(preemption, of=of(preemption.of))
    return found


def _job_of_log(column: Callable[[str], Sequence[Any]], row: int) -> LiveJob:
    """Return a job of a log as one that will be submitted. `column`: name -> the values of all jobs."""

    def of(name: str) -> Any:
        return column(name)[row]

    def text(name: str) -> str:
        return str(of(name))

    cores, nodes = int(of("cores_per_node")), int(of("nodes"))
    return LiveJob(
        id="",
        number=0,
        user=text("user"),
        account=text("group"),
        partition=text("partition").partition(",")[0],
        waits_since=0.0,
        eligible=0.0,
        start=None,
        estimate=None,
        limit_s=float(of("time_limit")),
        cores=nodes * cores,
        per_node=0 if of("spread") else cores,
        fewest=int(of("fewest_nodes")) or nodes,
        whole=False,
        memory_mib=float(of("memory_mib")),
        by_core=False,
        features=text("features"),
        gres=text("gres"),
        priority=0,
        reason="",
        held={},
        qos=text("queue"),
        licenses=text("licenses"),
    )
