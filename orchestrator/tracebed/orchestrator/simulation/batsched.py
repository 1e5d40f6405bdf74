"""The executor `batsched`: nodes that are switched off and on by plan, under the rules of a published program.

Source: batsched, github.com/oar-team/batsched, commit 71f3c19 (`energy_bf_subpart_sleeper` and
`energy_bf_monitoring_inertial`), whose rules are written again here. A machine whose `sleep` has the rule `subpart` or
`inertial` names this executor. docs/reference/power.md states the rules. The one policy is EASY backfilling with
reservations of named nodes; jobs are rigid.

A set of nodes is an integer with a bit for each node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar

import numpy as np

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.machine.machine import Machine
from tracebed.machine.power import PowerState
from tracebed.orchestrator.run import Run, RunInfo, workload_facts
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.scheduling.sleeping import Sleeping
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.node_plan import HORIZON, Plan, lowest, nodes_in
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import PredictionOptions
from tracebed.orchestrator.tables import make_run

RULES = ("subpart", "inertial")
SAME = 1e-8  # events that are nearer to each other are simultaneous, s


class Batsched:
    """The executor. With several members of an ensemble, each draws the order of simultaneous ends of jobs."""

    options = PredictionOptions
    predicts = True

    def accepts(self, machine: Machine, setup: Setup) -> bool:
        """Return whether the nodes are alike for all jobs and sleep by these rules, and the policy is `easy`."""
        ruled = machine.sleep is not None and machine.sleep.rule in RULES
        return machine.plain and ruled and setup.scheduling.policy == "easy"

    def execute(self, workload: Workload, machine: Machine, setup: Setup, options: PredictionOptions) -> Run:
        """Simulate a workload.

        Raises:
            InputError: there are dependencies, outages, overheads or a scheduling interval; or the power of the nodes
                is unknown.
        """
        nodes, scheduling = list(machine.nodes), setup.scheduling
        jobs = Jobs.of(
            workload,
            cores_per_node=max(node.cores for node in nodes),
            over_limit=scheduling.over_limit,
            dependencies=scheduling.dependencies,
        )
        refused = {
            "dependencies and think times": jobs.waits is not None,
            "outages": options.outages is not None,
            "overheads": setup.timing.overheads != Overheads() or setup.timing.calibration is not None,
            "a scheduling interval": scheduling.interval_s > 0,
        }
        for what in (name for name, given in refused.items() if given):
            raise InputError(f"the executor batsched does not support {what}", hint="leave them out")
        sleeping = Sleeping.of(machine)
        assert sleeping is not None  # `accepts`
        record, cluster = ScheduleRecord(jobs), Cluster([node.cores for node in nodes])
        drawn = np.random.default_rng(options.member)
        first = (lambda ends: 0) if options.member is None else (lambda ends: int(drawn.integers(ends)))
        simulation = Simulation(jobs.as_rigid(), sleeping, record, cluster, first)
        simulation.run()
        record.close(JobState.UNKNOWN, "never started")
        info = RunInfo(
            source="simulator",
            engine="python",
            execution="simulated",
            nodes=nodes,
            machine=machine,
            workload=workload_facts(workload, options.name),
            setup=setup,
            parameters={"executor": "batsched"} | ({} if options.member is None else {"member": options.member}),
        )
        return make_run(record, cluster, info)


@dataclass
class _Event:
    """Something that happens: a `job` is submitted or ends, `nodes` are on or off, or the trend is looked at."""

    kind: str
    job: int = -1
    nodes: int = 0


class Simulation:
    """A simulation of the jobs and of the nodes. `first(n)` chooses which of n simultaneous ends comes first."""

    DONE: ClassVar = {"on": PowerState.ON, "off": PowerState.OFF}

    def __init__(
        self, jobs: Jobs, sleeping: Sleeping, record: ScheduleRecord, cluster: Cluster, first: Callable[[int], int]
    ) -> None:
        """Start with nodes that are on. The outcome is added to `record` and to the ledger of `cluster`."""
        self.jobs, self.record, self.cluster, self.first, self.rule = jobs, record, cluster, first, sleeping.rule
        self.total = len(cluster)
        self.boot_s, self.shutdown_s = float(max(sleeping.boot_s)), float(max(sleeping.shutdown_s))
        rule, margin = self.rule, self.rule.margin_s
        self.planned_boot_s = (self.boot_s if rule.planned_boot_s is None else rule.planned_boot_s) + margin
        self.planned_shutdown_s = self.shutdown_s + margin
        self.size, self.work = [int(each) for each in jobs.nodes], jobs.work
        self.limit = [float(each) + margin for each in jobs.limit]
        self.events: list[tuple[float, int, _Event]] = []
        self.count = 0  # of events
        self.on, self.off, self.booting, self.stopping = (1 << self.total) - 1, 0, 0, 0
        self.busy_until = [0.0] * self.total  # expected
        self.held: dict[int, tuple[float, int]] = {}  # running job -> its start and nodes
        self.queue: list[int] = []
        self.to_off, self.to_on = 0, 0  # nodes to switch off and on as soon as they can be
        self.off_idle, self.off_ruled = 0, 0  # numbers of nodes that are off, or to be: for being idle, by the rule
        self.idle, self.idle_since = self.on, [0.0] * self.total
        self.plan = Plan(0.0, self.busy_until, {})
        # The trend: the delay of the load, its integral since the last look, and that of the time before.
        self.delay, self.delay_at, self.integral, self.previous = 0.0, 0.0, 0.0, 0.0
        self.grows: bool | None = None  # whether nodes are switched on, not off; None: before the first look
        self.last_on, self.last_off = 0, 0  # nodes switched since the last look

    def run(self) -> None:
        """Simulate until all jobs have ended."""
        self._decide(0.0)
        left, last, begun = 0, -1.0, False
        for job, submit in enumerate(self.jobs.submit):
            self.record.submit[job] = submit
            if self.size[job] > self.total:
                what = f"needs {self.size[job]} nodes, the machine has {self.total}"
                self.record.refuse(job, JobState.REJECTED, what)
            else:
                self._add(submit, _Event("submit", job))
                left += 1
        while left and self.events:
            now, chosen = self._next(last)
            last, looks = now, False
            submitted = []
            for event in chosen:
                if event.kind == "submit":
                    submitted.append(event.job)
                    if not begun:
                        self._add(now + self.rule.period_s, _Event("look"))
                        begun = True
                elif event.kind == "end":
                    self._end(event.job, now)
                    left -= 1
                elif event.kind == "look":
                    looks = True
                else:
                    self._switched(event, now)
            if looks:
                (self._look_at_trend if self.rule.rule == "inertial" else self._look_at_part)(now)
                self._add(now + self.rule.period_s, _Event("look"))
            self._decide(now, submitted)
        for at, _, event in sorted(self.events, key=lambda each: each[:2]):
            if event.nodes:
                self._switched(event, at)  # switches that are under way at the last end

    def _next(self, last: float) -> tuple[float, list[_Event]]:
        """Return the events that come next: of simultaneous ones one alone, then the others together."""
        now = self.events[0][0]
        together = []
        while self.events and self.events[0][0] <= now + SAME:
            together.append(heappop(self.events))
        if len(together) == 1 or now <= last + SAME:
            return now, [event for _, _, event in together]
        ends = all(event.kind == "end" for _, _, event in together)
        alone = together.pop(self.first(len(together)) if ends else 0)
        for each in together:
            heappush(self.events, each)
        return now, [alone[2]]

    def _add(self, time: float, event: _Event) -> None:
        self.count += 1
        heappush(self.events, (time, self.count, event))

    def _end(self, job: int, now: float) -> None:
        start, nodes = self.held.pop(job)
        killed = self.jobs.over_limit is OverLimit.KILL and self.jobs.run_time[job] > self.jobs.limit[job]
        self.record.end[job], self.record.state[job] = now, JobState.KILLED if killed else JobState.COMPLETED
        self.cluster.ledger.add(job, [*nodes_in(nodes)], start, now)
        for node in nodes_in(nodes):
            self.busy_until[node] = now

    def _switched(self, event: _Event, now: float) -> None:
        """Handle that nodes are on, or off."""
        if event.kind == "on":
            self.booting, self.on = self.booting & ~event.nodes, self.on | event.nodes
        else:
            self.stopping, self.off = self.stopping & ~event.nodes, self.off | event.nodes
        for node in nodes_in(event.nodes):
            self.busy_until[node] = now
            self.record.power.add(node, now, self.DONE[event.kind])

    # -- the plan

    def _new_plan(self, now: float) -> Plan:
        """Return a plan with what is under way: running jobs, boots, and shutdowns, after which nodes stay off."""
        late = math.nextafter(now, math.inf)  # for what lasts longer than planned
        under_way = self.booting | self.stopping
        for _, nodes in self.held.values():
            under_way |= nodes
        for node in nodes_in(under_way):
            self.busy_until[node] = max(self.busy_until[node], late)
        wakes = dict.fromkeys(nodes_in(self.off), now) | {n: self.busy_until[n] for n in nodes_in(self.stopping)}
        self.plan = Plan(now, [HORIZON if node in wakes else time for node, time in enumerate(self.busy_until)], wakes)
        return self.plan

    def _apply(self, now: float, off: int = 0, on: int = 0) -> None:
        """Switch nodes now, and start the jobs that begin now in the plan."""
        self.off, self.booting = self.off & ~on, self.booting | on
        self.on, self.stopping = self.on & ~off, self.stopping | off
        for job, (begin, end, nodes) in self.plan.jobs.items():
            if begin == now and job in self.queue:
                self.queue.remove(job)
                self.held[job] = now, nodes
                self.record.start[job] = self.record.launched[job] = now
                for node in nodes_in(nodes):
                    self.busy_until[node] = end
                self._add(now + self.work[job], _Event("end", job))
        for nodes, kind, state, lasts, planned in (
            (on, "on", PowerState.BOOT, self.boot_s, self.planned_boot_s),
            (off, "off", PowerState.SHUTDOWN, self.shutdown_s, self.planned_shutdown_s),
        ):
            for node in nodes_in(nodes):
                self.busy_until[node] = now + planned
                self.record.power.add(node, now, state)
            if nodes:
                self._add(now + lasts, _Event(kind, nodes=nodes))

    def _add_to_plan(self, job: int) -> tuple[float, int] | None:
        return self.plan.add(job, self.size[job], self.limit[job])

    def _uncount(self, nodes: int) -> None:
        """Count nodes as on, of those that are off first those by the rule."""
        count = nodes.bit_count()
        ruled = min(count, self.off_ruled)
        self.off_ruled, self.off_idle = self.off_ruled - ruled, self.off_idle - (count - ruled)

    @property
    def _on_soon(self) -> int:
        """The nodes that are on or boot, and are not to be off."""
        return (self.on | self.booting | self.to_on) & ~self.to_off

    def _head_in(self, plan: Plan) -> tuple[float, int, int] | None:
        """Return the begin of the first job, its nodes, and all that it could have then; None: nodes must boot.

        The plan then is without this job.
        """
        job = self.queue[0]
        plan.remove(job)
        if not (found := plan.add(job, self.size[job], self.limit[job])):
            return None
        begin, end, nodes = plan.jobs[job]
        plan.remove(job)
        return found[0], nodes, plan.during(begin, end)

    # -- what is decided at each event

    def _decide(self, now: float, submitted: Sequence[int] = ()) -> None:
        """Start jobs, boot nodes for those that wait, and switch off idle nodes."""
        self._measure(now, add=True)
        self.queue += submitted
        plan = self._new_plan(now)
        on, off = plan.boot(self.to_on, self.planned_boot_s), plan.switch_off(self.to_off)
        head = None
        for job in [*self.queue]:
            found = self._add_to_plan(job)
            if found is None:
                head = job
                off, booted = self._make_room(job, off)
                on |= booted
            elif found[0] > now:
                head = job
            if head is not None:
                break
        self.to_on, self.to_off = self.to_on & ~on, self.to_off & ~off
        if self.queue:
            self.last_on, self.last_off = self.last_on | on, self.last_off | off
        for job in self.queue:
            found = None if job in plan.jobs else plan.fit(self.size[job], self.limit[job])
            if found is not None and found[0] == now:
                self._add_to_plan(job)
        self._apply(now, off, on)
        self._mark_idle(now)
        if boots := self._boots_for_queue():
            self.off_idle -= boots.bit_count()
            self._apply(now, on=plan.boot(boots, self.planned_boot_s))
        else:
            self._switch_off_idle(now, head)
        self._measure(now)

    def _make_room(self, job: int, off: int) -> tuple[int, int]:
        """Let the first job fit: keep nodes on that were to be off, else boot nodes. It fits nowhere yet.

        Return the nodes that are switched off now, of those given, and those that are switched on now.
        """
        plan, on = self.plan, 0
        plan.cancel_off(self.to_off)
        if found := self._add_to_plan(job):
            kept = self.to_off & found[1]
            plan.switch_off(self.to_off & ~kept)
        else:
            available = self.on | self.booting | self.to_on
            boots = plan.first_wakes(self.size[job] - available.bit_count(), self.off | self.stopping)
            on, kept = plan.boot(boots, self.planned_boot_s), self.to_off
            self._add_to_plan(job)
            self._uncount(boots)
            self.to_on |= boots & ~on
        self._uncount(kept)
        self.to_off &= ~kept
        return off & ~kept, on

    def _mark_idle(self, now: float) -> None:
        free = self.plan.free[0]
        for node in nodes_in(free & ~self.idle):
            self.idle_since[node] = now
        self.idle = free

    def _boots_for_queue(self) -> int:
        """Return the nodes that boot for jobs of the queue, of those that are off for having been idle."""
        if not self.queue or not self.off_idle:
            return 0
        off = sum(1 << node for node, when in self.plan.wakes.items() if when <= self.plan.begin[0])
        off = lowest(off, self.off_idle)
        head = self._head_in(self.plan.copy())
        idle, usable = self.idle & ~(head[1] if head else 0), (self.idle | off) & ~(head[1] if head else 0)
        boots = 0
        for job in self.queue:
            if self.size[job] <= usable.bit_count():
                nodes = lowest(idle, self.size[job])
                idle &= ~nodes
                # The lowest usable nodes may be among these: such a job gets too few.
                nodes |= lowest(usable, self.size[job] - nodes.bit_count())
                boots, usable, off = boots | off & nodes, usable & ~nodes, off & ~nodes
        return boots

    def _switch_off_idle(self, now: float, head: int | None) -> None:
        """Switch off nodes that have been idle for long enough, unless nodes boot, or the first job needs them."""
        if self.booting or self.to_on:
            return
        rest_s = self.rule.rest_s
        rested = sum(1 << node for node in nodes_in(self.idle) if self.idle_since[node] <= now - rest_s)
        needed = 0 if head is None else self.size[head]
        if nodes := lowest(rested, self._on_soon.bit_count() - needed):
            off = self.plan.switch_off(nodes)
            self._apply(now, off)
            self.off_idle += off.bit_count()

    # -- what is decided each period

    def _forget_offs(self) -> None:
        self._uncount(self.to_off)
        self.to_off = 0

    def _look_at_part(self, now: float) -> None:
        """Switch nodes off until only a part is on, or what the first job needs."""
        plan = self._new_plan(now)
        self._forget_offs()
        head = self.queue[0] if self.queue else None
        stay = int(self.total * (1 - self.rule.share))
        begin = self._head_in(plan) if self.queue else (now, 0, 0)
        if begin is not None:
            stay = max(stay, 0 if head is None else self.size[head])
            if (more := self._on_soon.bit_count() - stay) > 0:
                renamed = min(self.off_idle, more)
                self.off_ruled, self.off_idle = self.off_ruled + renamed, self.off_idle - renamed
                self._add_offs(more, self._on_soon, begin[2])
                off = plan.switch_off(self.to_off)
                self.to_off &= ~off
                self._apply(now, off)
            self._mark_idle(now)
            self._switch_off_idle(now, head)
        if (more := self.off_idle - stay) > 0:
            self.off_idle, self.off_ruled = stay, self.off_ruled + more

    def _look_at_trend(self, now: float) -> None:
        """Switch ever more nodes on while the delay of the load grows, and off while it does not."""
        self._measure(now, add=True)
        plan = self._new_plan(now)
        self._forget_offs()
        head = self.queue[0] if self.queue else None
        begin = self._head_in(plan) if self.queue else (now, 0, 0)
        if self.grows is None:
            self.grows = True
        elif begin is not None:
            self._follow_trend(begin[1], begin[2])
        if head is not None and begin is not None:
            self._add_to_plan(head)
        self.previous, self.integral = self.integral, 0.0
        on, off = plan.boot(self.to_on, self.planned_boot_s), plan.switch_off(self.to_off)
        self.to_on, self.to_off = self.to_on & ~on, self.to_off & ~off
        self.last_on, self.last_off = on, off
        self._apply(now, off, on)
        if head is not None and begin is None:
            self._add_to_plan(head)
        self._mark_idle(now)
        self._switch_off_idle(now, head)
        self._measure(now)

    def _follow_trend(self, reserved: int, usable: int) -> None:
        """Choose nodes to switch by the trend. The first job has the nodes `reserved`, of the `usable` ones."""
        if self.integral / self.rule.period_s >= self.rule.delay_s:
            self.grows, self.previous = True, 0.0
        if self.grows != (self.integral > self.previous):
            self.grows = not self.grows
        elif self.grows:
            among = self.off & ~self.to_on
            boots = self.plan.first_wakes(max(int(self.last_on.bit_count() * self.rule.factor), 1), among)
            self.to_on |= boots
            self._uncount(boots)
        else:
            among = self.on & ~self.to_off
            most = max(0, among.bit_count() - reserved.bit_count())
            count = min(max(int(self.last_off.bit_count() * self.rule.factor), 1), most)
            renamed = min(self.off_idle, count)
            self.off_ruled, self.off_idle = self.off_ruled + renamed, self.off_idle - renamed
            if count > renamed:  # then all of them are new ones, not only those beyond the idle ones
                self._add_offs(count, among, usable)

    def _add_offs(self, count: int, among: int, usable: int) -> None:
        """Choose nodes to switch off: those that are free first, and not those that the first job needs of `usable`."""
        chosen = taken = 0
        spare = among & usable
        most = max(0, spare.bit_count() - (self.size[self.queue[0]] if self.queue else 0))
        for free in self.plan.free:
            free &= among & ~chosen
            needed = free & spare & ~taken
            more = lowest(needed, min(most - taken.bit_count(), count - chosen.bit_count()))
            taken, chosen, free = taken | more, chosen | more, free & ~needed
            chosen |= lowest(free, count - chosen.bit_count())
        self.to_off |= chosen
        self.off_ruled += chosen.bit_count()

    def _measure(self, now: float, *, add: bool = False) -> None:
        """Compute the delay of the load, and add it to the integral."""
        if self.rule.rule == "inertial":
            before, since = self.delay, self.delay_at
            self.delay = self.plan.delay(sum(self.size[job] * self.limit[job] for job in self.queue), now)
            self.delay_at = now
            if add:
                self.integral += (before + self.delay) / 2 * (now - since)


EXECUTOR = Batsched()
