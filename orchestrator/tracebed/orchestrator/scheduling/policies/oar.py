"""OAR's server loop and the plan of its scheduler, with OAR's parameters (oar.conf)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.node_masks import lowest, mask_of, nodes_of
from tracebed.orchestrator.scheduling.policies.wall_times import ROUNDING_S, at_speed, whole_limit, whole_second
from tracebed.orchestrator.scheduling.profile import NodeProfile
from tracebed.orchestrator.scheduling.queue import first_of_users
from tracebed.orchestrator.scheduling.state import (
    Decision,
    Note,
    ParameterTable,
    Reserve,
    Start,
    State,
    Wake,
    next_multiple,
)

READ_S = 10.0
"""The server reads its commands for at most this time, and then looks whether a pass is due, s."""
QUIET_S = 60
"""Time after which the server makes a pass without a command, s."""


class Waiting(NamedTuple):
    """A waiting job in a pass."""

    job: int
    nodes: int
    limit: int
    """Time limit, s."""


class Planned(NamedTuple):
    """A job planned by a pass."""

    job: int
    start: int
    nodes: int
    """Mask of the nodes."""


class Occupied(NamedTuple):
    """A running job in a pass."""

    start: int
    limit: int
    """Time limit, s."""
    nodes: int
    """Mask of the nodes."""


def plan(
    now: int, idle: int, running: Iterable[Occupied], waiting: Iterable[Waiting], *, security: int, hole: int
) -> Iterator[Planned]:
    """Plan the waiting jobs in order, each at its earliest start, and yield those that can start at some time.

    Args:
        now: the instant of the pass.
        idle: mask of the idle nodes.
        running: the running jobs.
        waiting: the waiting jobs.
        security: `job_security_time`, s.
        hole: `gantt_hole_minimum_time`, s.
    """
    ends = [(max(job.start + job.limit, now) + security + 1, job.nodes, 0) for job in running]
    profile = NodeProfile(now, idle, ends)
    for job in waiting:
        duration = job.limit + security + 1
        start, free = profile.earliest(job.nodes, duration)
        if start > now and duration <= hole:
            start, free = profile.earliest(job.nodes, hole + 1)
        if start == math.inf:
            continue  # the job needs lost nodes
        nodes = lowest(free, job.nodes)
        profile.occupy(start, start + duration, nodes)
        yield Planned(job.job, int(start), nodes)


SUBMISSION, END = 1.0, 2.0
"""Commands of the server, see `Server.command`."""


@dataclass
class Server:
    """The server of OAR: the commands that it has got, and the time of its next pass.

    The server handles one command after another. A command of a job, its submission or its end, causes a pass, unless
    the last one ended too recently. Such a pass is made with a later command, or when none has come for `READ_S`. The
    end of a job is two commands.

    Attributes:
        since: the instant from which on the server waits for a command, s.
        last: the whole second in which the last pass ended.
        at: the instant for which the last pass planned, a whole second.
        wanted: 1: a command came too early for a pass.
        command: the command that is to be handled; 0: none.
    """

    since: float = 0.0
    last: float = -math.inf
    at: float = -math.inf
    wanted: float = 0.0
    command: float = 0.0

    @classmethod
    def of(cls, notes: Mapping[str, float]) -> Server:
        """Return the server that `notes` describe."""
        return cls(**{field.name: notes[field.name] for field in fields(cls) if field.name in notes})

    def next(self, least: int) -> float:
        """Return the instant at which the server handles the command, or else makes a pass without one.

        Args:
            least: `min_time_between_2_calls`.
        """
        if self.command:
            return self.since
        due = self.last + (least if self.wanted else QUIET_S)
        return next_multiple(READ_S, max(due, self.since), origin=self.since, first=1)

    def due(self, now: float, least: int) -> bool:
        """Return whether a pass is due, after a command that has come is handled."""
        if now < self.next(least) - ROUNDING_S:
            return False
        if self.command and whole_second(now) < self.last + least:
            self.since, self.command, self.wanted = now, 0.0, 1.0
            return False
        return True

    def passed(self, end: float, least: int) -> None:
        """Record a pass that ends at `end`. The second command of an end of a job comes too early for a pass."""
        again = self.command == END
        self.since, self.last = end, whole_second(end)
        self.wanted, self.command = float(again and least > 0), float(again and not least)

    def skip(self, before: float, duration: float, least: int) -> None:
        """Record the passes before an instant that had no waiting jobs. Each of them takes `duration`."""
        at = self.next(least)
        if at < before and not self.command:
            at += math.floor((before - at) / (QUIET_S + duration)) * (QUIET_S + duration)
            self.passed(at + duration, least)


@dataclass(frozen=True)
class Oar(ParameterTable):
    """OAR 2.5 with its default scheduler, for one queue and one user: conservative backfilling on named nodes.

    The first four parameters have the names, units and defaults of oar.conf, without `SCHEDULER_`. The others describe
    the clocks of the server. All times of OAR are wall seconds.

    Args:
        job_security_time: time between the limit of a job and the next job on its nodes, s.
        gantt_hole_minimum_time: a job is planned into a later gap only if the gap is longer, s.
        min_time_between_2_calls: least time from the end of a pass to the next one, in whole seconds.
        fairsharing_max_job_per_user: most jobs of a user in a pass; 0: any number.
        speed: trace seconds per wall second; 0: the speed of the run. A speed that differs from it is an error.
        epoch_s: Unix time of second 0 of the trace, which sets the phase of whole seconds.
        call_s: time from a command to the plan, s.
        pass_s: time from the plan until the server waits for the next command, s.
    """

    malleable: ClassVar[bool] = False
    dispatches: ClassVar[bool] = True

    job_security_time: int = 60
    gantt_hole_minimum_time: int = 300
    min_time_between_2_calls: int = 5
    fairsharing_max_job_per_user: int = 30
    speed: float = 0.0
    epoch_s: float = 0.0
    call_s: float = 0.2
    pass_s: float = 0.2

    def __post_init__(self) -> None:
        """Raise InputError if a parameter is out of range."""
        for name in (field.name for field in fields(self)):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"oar.{name} is {getattr(self, name):g}", hint="use a number from 0 on")

    def at_speed(self, speed: float) -> Oar:
        """Return the policy in a run at `speed`. Raise InputError if the parameter `speed` differs."""
        return at_speed(self, speed)

    def decide(self, state: State) -> Iterator[Decision]:
        """Launch the jobs of a pass whose instant has come, make the pass that is due, and request the next call."""
        yield from _launch(state)
        now, least = self._wall(state.now), self.min_time_between_2_calls
        server = Server.of(state.notes)
        if state.arrived or state.freed:
            if not state.woken:
                server.skip(now, self.call_s + self.pass_s, least)
            server.command = END if state.freed else max(SUBMISSION, server.command)
        if server.due(now, least):
            server.at = max(whole_second(now + self.call_s), server.at) + 1
            yield from self._pass(state, int(server.at))
            server.passed(now + self.call_s + self.pass_s, least)
        for name, value in vars(server).items():
            yield Note(name, value)
        wake = min((hold.start for hold in state.reservations.holds.values()), default=math.inf)
        if len(state.queue) or server.wanted or server.command:
            wake = min(wake, self._trace(server.next(least)))
        if wake < math.inf:
            yield Wake(wake)

    def _pass(self, state: State, at: int) -> Iterator[Reserve]:
        """Plan the waiting jobs, and reserve the nodes of the jobs that are launched at `at`."""
        jobs, cluster, launched = state.jobs, state.cluster, dict(state.reservations.holds)
        idle = mask_of(cluster.idle)
        for hold in launched.values():
            idle &= ~mask_of(hold.nodes)
        waiting = [job for job in state.queue.jobs() if job not in launched]
        first = first_of_users(waiting, jobs.user, self.fairsharing_max_job_per_user)
        asked = [Waiting(job, jobs.nodes[job], self._limit(state, job)) for job in first]
        while asked and asked[-1].nodes > idle.bit_count():
            asked.pop()  # the last ones cannot start, and the plan is discarded
        if not asked:
            return
        lost = mask_of(cluster.lost)
        running = [
            Occupied(
                whole_second(self._wall(state.expected_end[job] - jobs.limit[job])), self._limit(state, job), nodes
            )
            for job, nodes in ((job, mask_of(cluster.owned(job)) & ~lost) for job in state.size)
        ]
        running += [
            Occupied(whole_second(self._wall(hold.start)), self._limit(state, job), mask_of(hold.nodes))
            for job, hold in launched.items()
        ]
        running += [
            Occupied(at, max(0, whole_second(self._wall(until)) - at), mask_of(cluster.owned(number)))
            for number, until in state.stopping.items()
        ]
        planned = plan(at, idle, running, asked, security=self.job_security_time, hole=self.gantt_hole_minimum_time)
        for job, start, nodes in planned:
            if start <= at:
                begin = self._trace(at)
                yield Reserve(job, begin, nodes_of(nodes), begin + max(jobs.limit[job], 1.0))
                idle &= ~nodes
                if not idle:
                    return

    def _limit(self, state: State, job: int) -> int:
        return whole_limit(state.jobs.limit[job] / (self.speed or 1.0), 1)

    def _wall(self, at: float) -> float:
        """Return the time of the server, s, at an instant of the trace."""
        return at / (self.speed or 1.0) + self.epoch_s

    def _trace(self, at: float) -> float:
        """Return the instant of the trace at a time of the server."""
        return (at - self.epoch_s) * (self.speed or 1.0)


def _launch(state: State) -> Iterator[Decision]:
    """Start the jobs that a pass has planned for now or earlier, on their nodes."""
    due = [(job, hold) for job, hold in state.reservations.holds.items() if hold.start <= state.now]
    idle = mask_of(state.cluster.idle) if due else 0
    for job, hold in due:
        yield Reserve(job, math.inf)
        if not mask_of(hold.nodes) & ~idle:  # none has been lost since
            yield Start(job, len(hold.nodes), on=hold.nodes)
