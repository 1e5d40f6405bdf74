"""Simulates, slowly and plainly, the rules of a published program whose nodes are switched off each night.

Schäfer et al. (EESP at SC26, "Saving Energy Costs and Time on Supercomputers"), in the branch of ElastiSim of
github.com/FuldaHPC/ElastisimFulda, commit c2d6b930. The rules are read from its source and written anew. Two
schedulers, `easy` (their `rigid_easy_backfill`) and `msa` (their `min_steal_agreement`), are called each second, or at
multiples of another interval:

* A message takes no time, but a step of the simulator. A call at second n therefore finds what was submitted or ended
  before n. A job that is submitted at n starts at n + 1 or later.
* Jobs are taken in the order of submission, if they fit the free nodes. The head has no protection: what should protect
  it compares an instant with a duration, and holds only in the first hours (`_delays_head`).
* In `msa`, a job that follows one that starts is not looked at in this call.
* A malleable job has an iteration for each second of its time in the log, and changes its nodes after one.
* The first `int(nodes * (1 - active))` nodes are to be off from 22:00 to 06:00, on a clock that begins with the first
  submission. A node of these that is free in the window is switched off, and switched on after the window.
* A job takes such a node only if it is expected to end by 22:00. A malleable job leaves such nodes at 22:00, except
  those among its first `low` ones.
* Promises of nodes are reduced by nodes which the waiting job may not have. The job then starts on fewer nodes than its
  least (the run time of a rigid job is the same).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal, NamedTuple

DAY_S = 86_400
NIGHT = (22 * 3600, 6 * 3600)
BOOT_S, SHUTDOWN_S = 159, 10


@dataclass
class Job:
    """A job, and its state in the simulation. Times in s."""

    number: int
    submit: float
    run_time: float
    """On `pref` nodes."""
    iterations: float
    """Of a malleable job; a rigid one has one."""
    pref: int
    low: int
    high: int
    malleable: bool
    part: float
    """Parallel part of the work (Amdahl)."""
    predicted: float
    """Predicted run time on `pref` nodes."""
    state: Literal["pending", "running", "changing", "done"] = "pending"
    assigned: list[int] = field(default_factory=list)
    holding: list[int] = field(default_factory=list)
    start: float = math.nan
    end: float = math.nan
    anchor: float = math.nan
    """Since when the job iterates on the nodes that it holds."""
    left: float = math.nan
    """Iterations that were left at `anchor`."""
    point: float = math.inf
    """When the job changes its nodes."""
    work: float = math.nan
    """Predicted work that was left at `told`, in seconds on `pref` nodes."""
    told: float = math.nan

    def speedup(self, nodes: int) -> float:
        """Return the speedup of Amdahl."""
        return 1 / ((1 - self.part) + self.part / nodes)

    def iteration_s(self) -> float:
        """Return the duration of an iteration on the nodes that the job holds. A rigid job has no other speed."""
        return self.run_time / self.iterations / (self.rate(len(self.holding)) if self.malleable else 1.0)

    def rate(self, nodes: int) -> float:
        """Return the speed on `nodes` nodes, in that on `pref`."""
        return self.speedup(nodes) / self.speedup(self.pref)

    def predicted_on(self, nodes: int) -> float:
        """Return the predicted run time on `nodes` nodes."""
        return self.predicted / self.rate(nodes)

    def predicted_left(self, nodes: int, now: float) -> float:
        """Return the predicted rest of the run time on `nodes` nodes."""
        return max(0.0, self.work - (now - self.told) * self.rate(len(self.holding))) / self.rate(nodes)

    def boundary(self, now: float) -> float:
        """Return the end of an iteration at or after `now` that is not the last one; infinite: there is none."""
        step = self.iteration_s()
        count = max(1, math.ceil((now - self.anchor) / step - 1e-9))
        return self.anchor + count * step if count < self.left else math.inf


class Outcome(NamedTuple):
    """What happened: jobs with their times, and changes of the number of nodes by state (instant, state, change)."""

    jobs: list[Job]
    busy: list[tuple[float, int]]
    states: list[tuple[float, str, int]]


def take(ordered: list[int], nodes: list[int]) -> None:
    """Take `nodes` from an ordered list."""
    for node in nodes:
        del ordered[bisect_left(ordered, node)]


class Fulda:
    """A simulation. `off`: share of the nodes that is off at night; 0: no node is switched off."""

    def __init__(
        self,
        jobs: list[Job],
        nodes: int,
        scheduler: str,
        off: float,
        *,
        window: tuple[int, int] = NIGHT,
        boot_s: float = BOOT_S,
        shutdown_s: float = SHUTDOWN_S,
        shrinks: bool = True,
        interval: int = 1,
    ) -> None:
        self.jobs, self.nodes, self.scheduler = jobs, nodes, scheduler
        self.window, self.boot_s, self.shutdown_s, self.shrinks = window, boot_s, shutdown_s, shrinks
        self.interval = interval
        self.sleeps = off > 0
        # The difference of two rounded numbers, as there: 0.3 of 10 nodes are 3, and 1 - 0.7 is less than 0.3.
        self.targets = int(nodes * (1.0 - (1.0 - off))) if self.sleeps else 0
        self.free = list(range(nodes))
        self.reserved: set[int] = set()
        self.going: dict[int, tuple[str, float]] = {}
        """Nodes that are not on: their state, and the time of its end."""
        self.pending: list[Job] = []
        self.running: list[Job] = []
        """In the order of submission."""
        self.events: list[tuple[float, int]] = []
        self.changes = 0
        self.promised: dict[int, int] = {}
        """Node -> the waiting job which it is promised to."""
        self.promises: dict[int, set[int]] = {}
        self.busy: list[tuple[float, int]] = []
        self.states: list[tuple[float, str, int]] = []
        self.now = 0.0

    # -- the night ---------------------------------------------------------------------------------------------------

    def night(self) -> bool:
        """Return whether the window is open."""
        second, (begin, end) = int(self.now) % DAY_S, self.window
        open_now = begin <= second < end if begin < end else second >= begin or second < end
        return self.sleeps and open_now

    def next_night(self) -> float:
        """Return the next 22:00."""
        day, second = divmod(int(self.now), DAY_S)
        return (day + (second >= self.window[0])) * DAY_S + self.window[0]

    def accepts(self, length_s: float, *, expands: bool = False) -> bool:
        """Return whether a job of this predicted length may take a node that is to be off."""
        if not self.sleeps:
            return True
        return (expands or not self.night()) and self.now + length_s <= self.next_night()

    def allowed(self, nodes: list[int], length_s: float, *, expands: bool = False) -> list[int]:
        """Return those of the ordered `nodes` which a job of this predicted length may take."""
        return nodes if self.accepts(length_s, expands=expands) else nodes[bisect_left(nodes, self.targets) :]

    def change_power(self) -> None:
        """Switch nodes off and on. A state ends in the call at which its time is over."""
        if not self.sleeps:
            return
        if self.night():
            while self.free and self.free[0] < self.targets:
                self.going[self.free.pop(0)] = ("shutdown", self.now + self.shutdown_s)
                self.states.append((self.now, "shutdown", 1))
                self.changes += 1
        else:
            for node, (state, _) in self.going.items():
                if state == "off":
                    self.going[node] = ("boot", self.now + self.boot_s)
                    self.states += [(self.now, "off", -1), (self.now, "boot", 1)]
                    self.changes += 1
        for job in list(self.running) if self.night() and self.shrinks else []:
            if job.state == "running" and job.malleable and len(job.assigned) > job.low:
                leaves = [node for node in job.assigned[job.low :] if node < self.targets]
                self.shrink(job, leaves)
        for node, (state, until) in list(self.going.items()):
            if self.now >= until:
                self.changes += 1
                self.states.append((self.now, state, -1))
                if state == "boot":
                    del self.going[node]
                    insort(self.free, node)
                else:
                    self.going[node] = ("off", math.inf)
                    self.states.append((self.now, "off", 1))

    # -- nodes of jobs -----------------------------------------------------------------------------------------------

    def shrink(self, job: Job, nodes: list[int]) -> None:
        """Let a job leave nodes at the end of its iteration."""
        if not nodes:
            return
        for node in nodes:
            job.assigned.remove(node)
            self.unreserve(node)
        self.change(job)

    def change(self, job: Job) -> None:
        """Let a job whose assigned nodes are not those that it holds change at the end of its iteration."""
        self.changes += 1
        if job.state == "running" and job.assigned != job.holding:
            job.state, job.point = "changing", job.boundary(self.now)
            heappush(self.events, (job.point, job.number))
        elif job.assigned == job.holding:
            job.state = "running"

    def unreserve(self, node: int) -> None:
        """A node that is reserved for an expansion is free again."""
        if node in self.reserved:
            self.reserved.discard(node)
            insort(self.free, node)

    def begin(self, job: Job, nodes: list[int]) -> None:
        """Start a job."""
        self.pending.remove(job)
        take(self.free, nodes)
        job.state, job.start = "running", self.now
        job.assigned, job.holding = list(nodes), list(nodes)
        job.anchor, job.left = self.now, job.iterations
        job.work, job.told = job.predicted, self.now
        insort(self.running, job, key=lambda row: row.number)
        self.busy.append((self.now, len(nodes)))
        self.set_end(job, self.now)

    def reconfigure(self, job: Job, at: float) -> None:
        """Give a job its new nodes at the end of an iteration."""
        job.work, job.told = job.predicted_left(job.pref, at), at
        job.left -= round((at - job.anchor) / job.iteration_s())
        job.anchor = at
        before, now = set(job.holding), set(job.assigned)
        for node in before - now:
            insort(self.free, node)
        self.reserved -= now
        self.busy.append((at, len(now) - len(before)))
        job.holding = list(job.assigned)
        job.state = "running"
        self.set_end(job, at)

    def set_end(self, job: Job, at: float) -> None:
        """Expect the end of a job with its present nodes."""
        job.end = at + job.left * job.iteration_s()
        heappush(self.events, (job.end, job.number))
        self.changes += 1

    def finish(self, job: Job) -> None:
        """End a job."""
        job.state = "done"
        for node in job.holding:
            insort(self.free, node)
        for node in set(job.assigned) - set(job.holding):
            self.unreserve(node)
        self.busy.append((job.end, -len(job.holding)))
        del self.running[bisect_left(self.running, job.number, key=lambda row: row.number)]
        self.changes += 1

    # -- promises ----------------------------------------------------------------------------------------------------

    def promise(self, job: Job, nodes: list[int]) -> None:
        """Promise nodes to a waiting job."""
        for node in nodes:
            self.promised[node] = job.number
        self.promises.setdefault(job.number, set()).update(nodes)

    def withdraw(self, job: Job) -> None:
        """Withdraw the promise to a job."""
        self.changes += 1
        for node in self.promises.pop(job.number, ()):
            del self.promised[node]

    def exchange(self, job: Job, here: list[int]) -> None:
        """Exchange promised nodes of the job that are still held for the promised nodes of others that are free."""
        own = self.promises[job.number]
        away = [node for node in sorted(own) if node not in here]
        others = [node for node in here if node not in own]
        for mine, theirs in zip(away, others, strict=False):
            other = self.promised[theirs]
            self.promises[job.number] = self.promises[job.number] - {mine} | {theirs}
            self.promises[other] = self.promises[other] - {theirs} | {mine}
            self.promised[mine], self.promised[theirs] = other, job.number

    def keep_promises(self) -> None:
        """Start the jobs whose promised nodes are free."""
        for job in [job for job in self.pending if job.number in self.promises]:
            here = [node for node in self.free if node in self.promised]
            if not here:
                break
            needed = len(self.promises[job.number])
            if needed > len(here):
                continue
            self.exchange(job, here)
            nodes = [node for node in here if node in self.promises[job.number]]
            if len(self.allowed(nodes, job.predicted_on(needed))) == needed:
                self.begin(job, nodes)
            self.withdraw(job)

    # -- the two schedulers ------------------------------------------------------------------------------------------

    def easy(self) -> None:
        """Start jobs on the nodes that they prefer."""
        head = self.pending[0] if self.pending else None
        for job in list(self.pending):
            if not self.free:
                break
            if job.pref > len(self.free) or self._delays_head(job, head, job.pref, len(self.free), head.pref):
                continue
            nodes = self.allowed(self.free, job.predicted_on(job.pref))[: job.pref]
            if len(nodes) == job.pref:
                self.begin(job, nodes)

    def _delays_head(self, job: Job, head: Job, needed: int, free: int, size: int) -> bool:
        """Return whether a job must wait for the head. The instant of its start is compared with its run time."""
        if job is head:
            return False
        needed -= free
        instant = self.now
        rows = [job for job in self.running if job.state == "running" and job.start < self.now]
        for row in sorted(rows, key=lambda row: row.predicted_left(len(row.holding), self.now)) if needed > 0 else ():
            if needed <= 0:
                break
            needed -= len(row.assigned)
            instant = self.now + row.predicted_left(len(row.holding), self.now)
        return needed <= 0 and instant < head.predicted_on(size)

    def msa(self) -> None:
        """Start jobs on their least nodes, shrink jobs for waiting ones, expand jobs to nodes that are left."""
        malleable = [job for job in self.running if job.malleable and job.state == "running"]
        self.keep_promises()
        waiting = [job for job in self.pending if job.number not in self.promises]
        free = [node for node in self.free if node not in self.promised]
        at = 0
        while at < len(waiting) and free:
            job, head = waiting[at], waiting[0]
            at += 1
            nodes = self.allowed(free, job.predicted_on(job.low))
            if len(nodes) < job.low:
                continue
            of_head = len(self.allowed(free, head.predicted_on(head.low)))
            if self._delays_head(job, head, job.low, of_head, head.low):
                continue
            nodes = nodes[: job.low]
            self.begin(job, nodes)
            take(free, nodes)
            waiting.remove(job)  # the next job takes its place, and is not looked at
        order = sorted(malleable, key=lambda job: job.low - len(job.assigned))
        for job in waiting:
            self.shrink_for(job, order)
        for job in sorted(malleable, key=lambda job: len(job.assigned) - job.low):
            if not free:
                break
            self.expand(job, free)

    def shrink_for(self, waiting: Job, order: list[Job]) -> None:
        """Shrink jobs for a waiting one, if its least size is there, and promise it what it may have of these nodes."""
        needed, taken = waiting.low, []
        for job in order:
            if needed <= 0:
                break
            spare = [node for node in job.assigned[job.low :] if node not in self.promised][:needed]
            if spare:
                taken.append((job, spare))
                needed -= len(spare)
        if needed > 0:
            return
        for job, nodes in taken:
            while nodes:
                length_s = waiting.predicted_on(len(nodes))
                left = [node for node in nodes if node >= self.targets or self.accepts(length_s)]
                if len(left) == len(nodes):
                    break
                nodes = left
            if nodes:
                self.promise(waiting, nodes)
                self.shrink(job, nodes)

    def expand(self, job: Job, free: list[int]) -> None:
        """Expand a job to as many of the `free` nodes as it may have, and take these from `free`."""
        size = len(job.assigned)
        for target in range(min(size + len(free), job.high), size, -1):
            nodes = self.allowed(free, job.predicted_left(target, self.now), expands=True)[: target - size]
            if len(nodes) < target - size:
                continue
            job.assigned += nodes
            take(free, nodes)
            take(self.free, nodes)
            self.reserved |= set(nodes)
            self.change(job)
            return

    # -- time --------------------------------------------------------------------------------------------------------

    def run(self, *, each_second: bool = False) -> Outcome:
        """Return the outcome. `each_second`: make also the calls in which nothing can have changed."""
        coming = self.jobs[::-1]
        second, last, changed = 0, 0, True
        while coming or self.pending or self.running:
            second = second + self.interval if changed or each_second else self._next(second, coming)
            if not coming and not self.running and second - last > 30 * DAY_S:
                break  # the waiting jobs need more nodes than they ever get
            before = self.changes
            while coming and coming[-1].submit < second:
                self.pending.append(coming.pop())
                self.changes += 1
            self.now = float(second)
            while self.events and self.events[0][0] < self.now - 1e-6:
                at, number = heappop(self.events)
                job = self.jobs[number]
                if job.state != "done" and at == job.end:
                    self.finish(job)
                elif job.state == "changing" and at == job.point:
                    self.reconfigure(job, at)
            self.change_power()
            if self.scheduler == "easy":
                self.easy()
            else:
                self.msa()
            changed = self.changes > before
            last = second if coming or self.running else last
        return Outcome(self.jobs, self.busy, self.states)

    def _next(self, second: int, coming: list[Job]) -> int:
        """Return the next second whose call can decide something, after one that found and changed nothing."""
        times = [coming[-1].submit + 1] if coming else []
        if self.events:
            times.append(math.inf if math.isinf(self.events[0][0]) else math.floor(self.events[0][0] + 2e-6) + 1)
        if self.pending:  # when the rule for the head ends
            head = self.pending[0]
            size = head.pref if self.scheduler == "easy" else head.low
            times.append(math.ceil(head.predicted_on(size)) if head.predicted_on(size) > second else math.inf)
        if self.sleeps:
            day = second // DAY_S * DAY_S
            times += [at + day + own for own in (0, DAY_S) for at in self.window if at + day + own > second]
            times += [until for _, until in self.going.values()]
        return max(second + self.interval, math.ceil((min(times) - 1e-3) / self.interval) * self.interval)


# -- the jobs of a log, and the figures of a run ---------------------------------------------------------------------

PARTS = (0.999, 0.995, 0.99, 0.985, 0.98, 0.975, 0.97, 0.965, 0.96, 0.955, 0.95)
FACTORS = ((0.10, 0.5, 0.7), (0.25, 0.7, 0.95), (0.55, 0.95, 1.05), (0.80, 1.05, 1.5), (math.inf, 1.5, 3.0))
"""Predicted run times as factors of the real ones: up to this part of the jobs, uniform from and to."""


def efficiency(part: float, nodes: int) -> float:
    """Return speedup / nodes."""
    return (1 / ((1 - part) + part / nodes)) / nodes


def scaling(pref: int, nodes: int) -> tuple[float, int, int]:
    """Return the parallel part of a job that prefers `pref` of `nodes` nodes, its least and its largest size."""
    enough = [part for part in PARTS if 0 < efficiency(part, pref) - 0.8 < 1]
    least = min(enough, key=lambda part: efficiency(part, pref) - 0.8) if enough else max(PARTS)
    part = min(PARTS) if pref == 1 else least
    high = pref + 1
    while efficiency(part, high) > 0.5:
        high += 1
    return part, max(1, int(pref * 0.2)), min(nodes, high - 1)


def jobs_of(rows: list[tuple[int, float, int, float]], nodes: int, share: int, seed: str) -> list[Job]:
    """Return jobs of a log (id, submit, nodes, run time), with the draws of their generator (by seed + id)."""
    rows = sorted(sorted(rows, key=lambda row: str(row[0])), key=lambda row: row[1])
    jobs = []
    known: dict[int, tuple[float, int, int]] = {}
    for number, (name, submit, pref, run_time) in enumerate(rows):
        draw = random.Random(f"{seed}{name}")
        kind = draw.choices("RMm", (100 - share, 0, share))[0]
        u = draw.random()
        factor = next(draw.uniform(low, high) for upto, low, high in FACTORS if u < upto)
        limit = run_time * 1.25
        limit += 3600 - limit % 3600
        predicted = max(1, min(math.ceil(1.1 * factor * run_time), int(limit)))
        part, low, high = known.setdefault(pref, scaling(pref, nodes))
        if kind == "R":
            low = high = pref
        iterations = run_time if kind == "m" else 1
        run_s = run_time / efficiency(part, pref)  # their application model takes the log's time to be without loss
        jobs.append(Job(number, submit - rows[0][1], run_s, iterations, pref, low, high, kind == "m", part, predicted))
    return jobs


class Watts(NamedTuple):
    """Power of a node, W."""

    idle: float
    busy: float
    boot: float
    shutdown: float
    off: float


class Machine(NamedTuple):
    """A machine of the paper."""

    nodes: int
    watts: Watts
    solar_kw: float


MACHINES = {
    "haswell": Machine(2388, Watts(2 * 68 + 54, 2 * 135 + 92, 2 * 72 + 57, 2 * 56 + 44, 5), 250),
    "knl": Machine(9688, Watts(125 + 43, 215 + 73, 133 + 46, 102 + 35, 5), 850),
}
GRID, SOLAR = (0.18, 0.264), (0.06, 0.04)
"""Price, USD/kWh, and CO2, kg/kWh."""


def solar_kwh(begin: float, end: float, peak_kw: float) -> float:
    """Return what the panels give: all from 6:00 to 22:00, a thousandth at night."""
    day = sum(max(0.0, min(end, d * DAY_S + NIGHT[0]) - max(begin, d * DAY_S + NIGHT[1])) for d in range(-1, 9))
    return peak_kw * (day + 0.001 * (end - begin - day)) / 3600


def figures(outcome: Outcome, machine: Machine) -> dict[str, float]:
    """Return the means of a run, over the jobs submitted from the first that waits for more than 2 s on.

    Energy is a sum over intervals of 60 s, each with the power at its begin, from that submission to the last one.
    """
    jobs = outcome.jobs
    begin = min(job.submit for job in jobs if job.start - job.submit > 2)
    end = max(job.submit for job in jobs)
    counted = [job for job in jobs if job.submit >= begin]
    wait = sum(job.start - job.submit for job in counted) / len(counted)
    run = sum(job.end - job.start for job in counted) / len(counted)
    busy_events, state_events = sorted(outcome.busy), sorted(outcome.states)
    busy, kwh, cost, co2, off = 0, 0.0, 0.0, 0.0, 0.0
    counts = {"boot": 0, "shutdown": 0, "off": 0}
    b = s = 0
    for sample in range(0, int(end) + 60, 60):
        while b < len(busy_events) and busy_events[b][0] < sample:
            busy += busy_events[b][1]
            b += 1
        while s < len(state_events) and state_events[s][0] < sample + 0.5:  # times are written with six digits
            counts[state_events[s][1]] += state_events[s][2]
            s += 1
        left, right = max(sample, begin), min(sample + 60, end)
        if right <= left:
            continue
        watts = machine.watts
        on = machine.nodes - sum(counts.values())
        power = on * watts.idle + busy * (watts.busy - watts.idle)
        power += sum(counts[state] * getattr(watts, state) for state in counts)
        demand = power / 1000 * (right - left) / 3600
        solar = min(demand, solar_kwh(left, right, machine.solar_kw))
        kwh += demand
        cost += (demand - solar) * GRID[0] + solar * SOLAR[0]
        co2 += (demand - solar) * GRID[1] + solar * SOLAR[1]
        off += counts["off"] * (right - left)
    return {
        "window_start_s": begin,
        "wait_mean_s": wait,
        "turnaround_mean_s": wait + run,
        "runtime_mean_s": run,
        "energy_total_kwh": kwh,
        "cost_total_usd": cost,
        "co2_total_kg": co2,
        "off_fraction_mean": off / (machine.nodes * (end - begin)),
    }
