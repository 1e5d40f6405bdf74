"""Slurm's main scheduling loop and backfill pass, with Slurm's parameters (`SchedulerParameters` of slurm.conf)."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np

from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.names import OF_LAYER, ResizePolicy
from tracebed.orchestrator.scheduling.node_masks import best_fit, mask_of, nodes_of
from tracebed.orchestrator.scheduling.policies.slurm_backfill import Pending, Rules, Running, backfill
from tracebed.orchestrator.scheduling.policies.wall_times import ROUNDING_S, at_speed, whole_limit, whole_second
from tracebed.orchestrator.scheduling.queue import first_of_users
from tracebed.orchestrator.scheduling.state import Decision, Note, ParameterTable, Start, State, Wake, next_multiple

MINUTE_S = 60
OF_SLURMCTLD = ("release", "speed", "epoch_s", "sched_loop_s", "sched_phase_s", "bf_loop_s", "bf_phase_s")
"""Parameters that describe slurmctld and its clocks, and are not parameters of slurm.conf."""
NEWER, EXTENDS = 24.11, 25.11
"""The first releases of Slurm with other rules of backfill, see `Rules`."""
RELEASES = (22.05, 24.11, 25.05, 25.11, 26.05)
"""The releases whose rules are known. 22.05, 24.11 and 26.05 were tried; 24.11 and 26.05 have the same rules, and so do
those between them."""
PING_S = 100.0
"""slurmctld pings the nodes at this interval, a third of the default of `SlurmdTimeout`, s. A ping tells the backfill
thread that something may have changed."""
FEW = 4
"""A backfill pass over more jobs counts as not quiet, as one with idle nodes does: see `Slurm._backfill`."""
CHANGED, COMPUTED = 1, 2
"""Why jobs may start without an event: something has lapsed, of which Slurm is not told; the priorities have been
computed, of which the backfill thread is told, and not the main loop."""
LEAST = {
    **dict.fromkeys(("sched_interval", "bf_interval"), -1),
    **dict.fromkeys(("bf_resolution", "bf_window", "bf_max_job_test", "default_queue_depth", "resize_interval"), 1),
}
"""Lower bound of a parameter; of all others: 0."""


@dataclass(frozen=True)
class Slurm(ParameterTable):
    """Slurm with sched/backfill, select/linear and priority/basic: the main loop and the backfill pass.

    The parameters have the names, units and defaults of slurm.conf, except `release` and those after it, which describe
    slurmctld. All times of Slurm are wall seconds.

    Args:
        sched_interval: interval of the passes of the main loop over the whole queue, s; -1: no main loop.
        batch_sched_delay: least time between two other passes of the main loop, s.
        default_queue_depth: number of jobs in a pass of the main loop, except a pass over the whole queue.
        sched_max_job_start: most jobs started by a pass of the main loop; 0: any number.
        bf_interval: time between two backfill passes, s; -1: no backfill.
        bf_resolution: reservations begin and end at multiples of it, s.
        bf_window: how far a pass looks ahead, minutes.
        bf_max_job_test: number of jobs in a backfill pass.
        bf_max_job_start: most jobs started by a backfill pass; 0: any number.
        bf_max_job_user: most jobs of one user in a backfill pass; 0: any number.
        bf_node_space_size: largest number of slots of the plan; 0: `bf_max_job_test`.
        bf_min_age_reserve: a job that waits for less time has no reservation and does not block the main loop, s.
        bf_job_part_count_reserve: number of jobs with a reservation; 0: any number.
        release: release of Slurm, one of `RELEASES`. From 24.11 on, some rules of backfill differ (see `Rules`).
        speed: trace seconds per wall second; 0: the speed of the run. A speed that differs from it is an error.
        epoch_s: Unix time of second 0 of the trace, which sets the phase of whole seconds and of `bf_resolution`.
        sched_loop_s: period of the loop of slurmctld that starts the passes of the main loop.
        sched_phase_s: first instant of that loop.
        bf_loop_s: period of the backfill thread.
        bf_phase_s: first instant at which it may make a pass.
        resizes: policy of a layer that shrinks and expands running malleable jobs beside Slurm, which starts all jobs;
            `none`: malleable jobs keep their size. Such jobs are simulated as on the cluster of a slurm.conf.
        resize_interval: time between two passes of the layer, s.
        seed: seed of the draws of what is left open: the phases of the two loops and of the clock that have their
            defaults, and on the cluster of a slurm.conf also delays. On equal nodes, 0 draws nothing.
    """

    malleable: ClassVar[bool] = False
    dispatches: ClassVar[bool] = True
    executor: ClassVar[str] = "slurm"

    sched_interval: int = 60
    batch_sched_delay: int = 3
    default_queue_depth: int = 100
    sched_max_job_start: int = 0
    bf_interval: int = 30
    bf_resolution: int = 60
    bf_window: int = 1440
    bf_max_job_test: int = 500
    bf_max_job_start: int = 0
    bf_max_job_user: int = 0
    bf_node_space_size: int = 0
    bf_min_age_reserve: int = 0
    bf_job_part_count_reserve: int = 0
    release: float = 22.05
    speed: float = 0.0
    epoch_s: float = 0.0
    sched_loop_s: float = 1.0027
    sched_phase_s: float = 0.0
    bf_loop_s: float = 1.0009
    bf_phase_s: float = 0.5
    resizes: Literal["none", ResizePolicy] = "none"
    resize_interval: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError if a parameter is out of range."""
        for name in (each.name for each in fields(self) if each.name != "resizes"):
            value, least = getattr(self, name), LEAST.get(name, 0)
            if not least <= value < math.inf or (value == 0 and name.endswith("loop_s")):
                raise InputError(f"slurm.{name} is {value:g}", hint=f"use a number from {least} on")
        if self.release not in RELEASES:
            known = ", ".join(f"{release:.2f}" for release in RELEASES)
            what = f"slurm.release is {self.release:.2f}: the rules of this release are unknown"
            raise InputError(what, hint=f"22.05 to 26.05 were tried: use one of {known}")

    def phases(self, sched: float, backfill: float, epoch: float) -> dict[str, Any]:
        """Return the phases of the two loops and of the clock; those that have their defaults at shares of a period."""
        default = self.bf_phase_s == Slurm.bf_phase_s
        return {
            "sched_phase_s": self.sched_phase_s or float(sched) * self.sched_loop_s,
            "bf_phase_s": float(backfill) * self.bf_loop_s if default else self.bf_phase_s,
            "epoch_s": self.epoch_s or float(epoch) * self.bf_resolution,
        }

    def at_speed(self, speed: float) -> Slurm:
        """Return the policy in a run at `speed`, with the phases that its seed draws.

        Raises:
            InputError: the parameter `speed` differs.
        """
        policy = at_speed(self, speed)
        if not policy.seed:
            return policy
        return replace(policy, **policy.phases(*np.random.default_rng(policy.seed).uniform(0.0, 1.0, 3)))

    @property
    def rules(self) -> Rules:
        """The rules of a backfill pass of this Slurm."""
        return Rules(self.bf_resolution, self.release >= NEWER, self.release >= EXTENDS)

    def decide(self, state: State) -> Iterator[Decision]:
        """Make the passes that are due, and request the next one."""
        now = state.now / self._speed
        due = {"sched": math.inf, "bf": math.inf} | {
            name: state.notes[f"{name}_due"] for name in ("sched", "bf") if f"{name}_due" in state.notes
        }
        changed = self._changed(state)
        event = state.arrived or state.freed or (not changed and now < min(due.values()) - ROUNDING_S)
        if event or changed:
            yield from self._catch_up(state, now)
            at = self._next_main(state, now) if event else self._full_from(state, now)
            due["sched"] = min(due["sched"], at)
            told = event or changed == COMPUTED or not self._sleeps(state)
            waking = now if told else self._ping(state.notes.get("bf_last", now))
            due["bf"] = min(due["bf"], self._next_backfill(state, waking))
        for name in sorted(due, key=due.__getitem__):
            at = due[name]
            if at > now + ROUNDING_S:
                continue
            if (until := self._held(state)) > now:
                retry = name == "bf"  # the thread looks again in each of its periods, and the main loop does not
                due[name] = next_multiple(self.bf_loop_s, until, origin=at) if retry else self._full_from(state, until)
                continue
            due[name] = math.inf
            yield Note(f"{name}_last", at)
            started, unfinished = yield from (self._main(state, at) if name == "sched" else self._backfill(state, at))
            if started:
                due["bf"] = min(due["bf"], self._next_backfill(state, now, at if name == "bf" else None))
            if unfinished:
                again = self._next_backfill(state, now, at) if name == "bf" else self._next_full(state, at)
                due[name] = min(due[name], again)
        for name, at in due.items():
            yield Note(f"{name}_due", at)
        if min(due.values()) < math.inf:
            yield Wake(min(due.values()) * self._speed)

    def _changed(self, state: State) -> int:
        """Return whether jobs may start since the last call that neither a submission nor an end tells slurmctld of.

        Returns:
            0: no; `CHANGED` or `COMPUTED`.
        """
        return 0

    def _waits(self, state: State) -> bool:
        """Return whether jobs have waited since the last call."""
        return len(state.queue) > len(state.arrived)

    def _held(self, state: State) -> float:
        """Return until when no pass is made, because jobs are completing."""
        return -math.inf

    # -- the instants of the passes ---------------------------------------------------------------------------------

    def _next_main(self, state: State, now: float) -> float:
        """Return the next pass of the main loop, at least `batch_sched_delay` whole seconds after the last one."""
        if self.sched_interval < 0:
            return math.inf
        at = next_multiple(self.sched_loop_s, now, origin=self.sched_phase_s)
        last = state.notes.get("sched_last")
        if last is not None:
            while self._second(at) - self._second(last) < self.batch_sched_delay:
                at += self.sched_loop_s
        return at

    def _next_full(self, state: State, last: float) -> float:
        """Return the next pass of the main loop over the whole queue, at the earliest one loop after `last`."""
        if self.sched_interval < 0:
            return math.inf
        since, least = state.notes.get("full_last", self.sched_phase_s), last + self.sched_loop_s
        if 0 < self.sched_interval < least - since:  # passes over the whole queue that were not simulated
            period = math.ceil(self.sched_interval / self.sched_loop_s) * self.sched_loop_s
            since += (math.ceil((least - since) / period - ROUNDING_S) - 1) * period
        at = max(least, since + self.sched_interval)
        return next_multiple(self.sched_loop_s, at, origin=self.sched_phase_s)

    def _full_from(self, state: State, now: float) -> float:
        """Return the first pass of the main loop over the whole queue from `now` on."""
        return self._next_full(state, now - self.sched_loop_s)

    def _catch_up(self, state: State, now: float) -> Iterator[Note]:
        """Record the last backfill pass before `now` that was not made.

        As long as jobs wait, Slurm makes a pass every `bf_interval`, and after a quiet pass one after each ping. The
        passes between two events hardly ever change anything, because the nodes and the jobs are the same: only the
        reservations come nearer, so that one may begin within the time limit of a job. These passes are left out, but
        they determine the instant of the next one. What lapses is an event of its own.
        """
        last = state.notes.get("bf_last")
        if last is None or self.bf_interval <= 0:
            return
        if self._sleeps(state):
            last = max(last, now - 2 * (self._interval + PING_S))
            while (after := self._next_backfill(state, self._ping(last), last)) < now:
                last = after
            yield Note("bf_last", last)
        elif (passes := math.ceil((now - last) / self._interval - ROUNDING_S) - 1) > 0:
            yield Note("bf_last", last + passes * self._interval)

    def _sleeps(self, state: State) -> bool:
        """Return whether the backfill thread makes its next pass only after an event or a ping."""
        return not self._waits(state) or state.notes.get("bf_quiet", 0.0) > 0

    def _ping(self, after: float) -> float:
        """Return the first ping of the nodes from `after` on."""
        return next_multiple(PING_S, after, origin=self.sched_phase_s)

    def _next_backfill(self, state: State, now: float, last: float | None = None) -> float:
        """Return the next backfill pass for an event `now`, at least `bf_interval` after the last one."""
        if self.bf_interval < 0:
            return math.inf
        last = state.notes.get("bf_last") if last is None else last
        if last is None:
            return next_multiple(self.bf_loop_s, now, origin=self.bf_phase_s, first=0)
        return next_multiple(self.bf_loop_s, now, origin=last + self._interval, first=0)

    @property
    def _speed(self) -> float:
        """Trace seconds per wall second; 1 in a scheduler without a speed."""
        return self.speed or 1.0

    @property
    def _interval(self) -> float:
        """Time between two backfill passes while jobs wait, s."""
        return self.bf_interval + self.bf_loop_s - 1.0

    def _second(self, at: float) -> int:
        """Return the whole second of an instant, as Slurm's clock shows it."""
        return whole_second(at + self.epoch_s)

    # -- the passes ---------------------------------------------------------------------------------------------------

    def _main(self, state: State, at: float) -> Generator[Decision, None, tuple[bool, bool]]:
        """Start jobs in queue order up to the first that does not fit. Return whether any started and any are left."""
        jobs = state.jobs
        depth = self.default_queue_depth
        if at - state.notes.get("full_last", self.sched_phase_s) >= self.sched_interval:
            yield Note("full_last", at)
            depth = len(jobs)
        idle, started = None, 0
        for tested, job in enumerate(state.queue.jobs()):
            if tested == depth or (self.sched_max_job_start and started == self.sched_max_job_start):
                return started > 0, True
            nodes = jobs.nodes[job]
            if nodes <= state.idle:
                idle = mask_of(state.cluster.idle) if idle is None else idle
                chosen = best_fit(idle, nodes)
                idle &= ~chosen
                yield Start(job, nodes, on=nodes_of(chosen))
                started += 1
            elif not self._young(state, job):
                break
        return started > 0, False

    def _backfill(self, state: State, at: float) -> Generator[Decision, None, tuple[bool, bool]]:
        """Start the jobs that a backfill pass plans for now. Return whether any started, and whether work is left.

        After a quiet pass, Slurm makes the next one only after an event or a ping: it reserved no idle node, and no job
        waits for another reservation. This is computed for few jobs without idle nodes; other passes are rarely quiet.
        """
        few = len(state.queue) <= FEW and not state.idle
        pending, noticed = self._pending(state, few), list[int]()
        if not pending:
            yield Note("bf_quiet", float(few))
            return False, False
        cluster, second = state.cluster, self._second(at)
        running = [Running(self._end(state, job), job, mask_of(cluster.owned(job))) for job in state.size]
        running += [
            Running(self._second(until / self._speed), number, mask_of(cluster.owned(number)))
            for number, until in state.stopping.items()
        ]
        plan = backfill(
            second,
            mask_of(cluster.idle),
            running,
            pending,
            rules=self.rules,
            window=self.bf_window * MINUTE_S,
            table=self.bf_node_space_size or self.bf_max_job_test,
            reservations=self.bf_job_part_count_reserve,
            noticed=noticed,
        )
        started = 0
        for planned in plan:
            if planned.start > second:
                continue
            yield Start(planned.job, state.jobs.nodes[planned.job], on=nodes_of(planned.nodes))
            started += 1
            if started == self.bf_max_job_start:
                yield Note("bf_quiet", 0.0)
                return True, True
        yield Note("bf_quiet", float(few and not started and not noticed))
        return started > 0, any(not job.reserve for job in pending) and self.bf_min_age_reserve > 0

    def _pending(self, state: State, every: bool) -> list[Pending]:
        """Return the jobs of a pass, unless `every` up to the last one that could start on the idle nodes."""
        jobs, last = state.jobs, 0
        found: list[Pending] = []
        for job in first_of_users(state.queue.jobs(), jobs.user, self.bf_max_job_user)[: self.bf_max_job_test]:
            found.append(Pending(job, jobs.nodes[job], self._limit(state, job), not self._young(state, job)))
            if jobs.nodes[job] <= state.idle:
                last = len(found)
        return found if every else found[:last]

    def _young(self, state: State, job: int) -> bool:
        """Return whether `job` has waited for less than `bf_min_age_reserve`."""
        return (state.now - state.jobs.submit[job]) / self._speed < self.bf_min_age_reserve

    def _limit(self, state: State, job: int) -> int:
        """Return the time limit of `job` in whole minutes, s."""
        return whole_limit(state.jobs.limit[job] / self._speed, MINUTE_S)

    def _end(self, state: State, job: int) -> int:
        """Return the second at which the running `job` is expected to end."""
        start = (state.expected_end[job] - state.jobs.limit[job]) / self._speed
        return self._second(start) + self._limit(state, job)


OF_CONF = frozenset(field.name for field in fields(Slurm)) - {*OF_SLURMCTLD, *OF_LAYER, "seed"}
"""Parameters of the policy that are `SchedulerParameters` of slurm.conf."""
