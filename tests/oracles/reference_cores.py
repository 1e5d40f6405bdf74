"""Slow references of dmr, sd and drom-share, written from docs/reference/policies/: the oracle for their tests.

`DmrReference` extends the whole-node reference. `CoresReference` has its own model: a node records how many of its
cores each job has, and every quantity is computed from all nodes and all jobs.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

from tests.oracles.reference_scheduler import RefJob, _Reference, _Running


class DmrReference(_Reference):
    """The policy dmr, in the order of the sentences of its section."""

    def __init__(
        self,
        jobs: list[RefJob],
        nodes: int,
        *,
        interval_s: float,
        malleability_interval_s: float,
        over_limit: str,
        floor: str = "pref",
        sizes: str = "any",
    ) -> None:
        super().__init__(jobs, nodes, "dmr", malleability_interval_s, over_limit, "fcfs")
        self.interval_s = interval_s
        self.floor, self.sizes = floor, sizes
        self.call = self.dmr

    def sizes_count(self, job: RefJob) -> bool:
        return job.malleable

    def preferred(self, job: RefJob) -> int:
        return self.largest(job)

    def dmr(self) -> None:
        self.start_by_easy()
        idle = self.free()
        for run in [run for run in self.running if self.is_asked(run)]:
            for size in (run.job.nodes_pref, run.job.nodes_min) if self.floor == "min" else (run.job.nodes_pref,):
                room = idle + run.decided - size
                fits = [job for job in self.queue if idle < self.smallest(job) <= room]
                if run.decided > size and fits:
                    self.resize(run, size)
                    target = self.allowed(fits[0], room)
                    self.queue.remove(fits[0])
                    self.make_promise(fits[0], target, [])
                    self.serve_promises(self.calls)
                    idle = room - target
                    break
        if not any(self.smallest(job) <= self.free() for job in self.queue):
            for run in [run for run in self.running if self.is_asked(run) and run.call_resized != self.calls]:
                size = self.allowed(run.job, run.decided + self.free())
                if size > run.decided:
                    self.resize(run, size)

    def start(self, job: RefJob, n: int, call: int) -> None:
        super().start(job, self.allowed(job, n), call)

    def allowed(self, job: RefJob, room: int) -> int:
        """Return the largest size of the job of at most `room` nodes, by halving its maximum down to its minimum."""
        most, least = self.largest(job), self.smallest(job)
        if self.sizes == "any":
            return min(most, room)
        powers = [most // 2**power for power in range(20)]
        return max([size for size in powers if least <= size <= room], default=least)

    def is_asked(self, run: _Running) -> bool:
        return self.may_change(run) and run.call_started != self.calls


@dataclass
class CoreJob:
    """A job of the sharing policies."""

    id: int
    submit: float
    run_time: float
    limit: float
    nodes: int
    cores: int
    kind: str
    """rigid, moldable or malleable."""
    fraction: float = 1.0
    """f in Amdahl's law."""
    user: str = ""
    ranks: int = 1
    """On each node; each needs a core."""

    def speed(self, share: float) -> float:
        """Return the speed on the requested nodes with the given share of the cores: 1 with all cores."""
        if self.kind != "malleable":
            return share
        serial, parallel = 1 - self.fraction, self.fraction / self.nodes
        return (serial + parallel) / (serial + parallel / share)


@dataclass
class Node:
    """A node: its owner, its guest, and the guest's cores."""

    owner: int | None = None
    guest: int | None = None
    guest_cores: int = 0


@dataclass
class Run:
    """A running job: its actual and worst-case progress, and its speeds since the last change."""

    job: CoreJob
    start: float
    number: int
    since: float
    limit: float
    """The progress by the worst case at which its limit ends."""
    rate: float = 1.0
    worst: float = 1.0
    done: float = 0.0
    worst_done: float = 0.0
    end: float = 0.0
    expected_end: float = 0.0


@dataclass
class Outcome:
    """The outcome of a job."""

    start: float = math.nan
    end: float = math.nan
    cores: list[tuple[float, int]] = field(default_factory=list)
    """(since when, cores on all its nodes together)."""


class CoresReference:
    """The model of docs/reference/policies/, "Sharing nodes", and the two policies that need it."""

    def __init__(  # type: ignore[no-untyped-def]
        self,
        jobs: list[CoreJob],
        nodes: int,
        cores: int,
        sockets: int,
        model: str,
        policy: str,
        over_limit: str = "extend",
        **options,
    ):
        self.cores, self.sockets, self.model, self.over_limit = cores, sockets, model, over_limit
        if over_limit == "extend":
            jobs = [replace(job, limit=max(job.limit, job.run_time)) for job in jobs]
        self.nodes = [Node() for _ in range(nodes)]
        self.to_come = sorted(jobs, key=lambda job: job.submit)
        self.queue: list[CoreJob] = []
        self.running: dict[int, Run] = {}
        self.now = 0.0
        self.started = 0
        self.pass_at = math.inf
        self.options = options
        self.policy = {"sd": self.sd, "drom-share": self.drom}[policy]
        self.outcomes = {job.id: Outcome() for job in jobs}

    def go(self) -> dict[int, Outcome]:
        while self.running or self.to_come or self.queue:
            ends, submissions = [run.end for run in self.running.values()], [job.submit for job in self.to_come]
            self.now = min([*ends, *submissions, self.pass_at])
            for run in sorted(self.running.values(), key=lambda run: run.job.id):
                if run.end == self.now:
                    self.end(run)
            for job in [job for job in self.to_come if job.submit == self.now]:
                self.to_come.remove(job)
                if job.nodes <= len(self.nodes):
                    self.queue.append(job)
            if self.over_limit == "again":
                self.expect_again()
            self.policy()
        assert not self.queue
        return self.outcomes

    # ---- the model -----------------------------------------------------------------------------------------

    def held(self, job: int) -> list[Node]:
        return [node for node in self.nodes if job in (node.owner, node.guest)]

    def has(self, job: int, node: Node) -> int:
        return node.guest_cores if node.guest == job else self.cores - node.guest_cores

    def idle(self) -> int:
        return sum(node.owner is None for node in self.nodes)

    def worst_rate(self, run: Run, gone: set[int]) -> float:
        wanted = min(run.job.cores, self.cores)
        return run.job.speed(
            min(
                1.0 if node.guest in gone else min(self.has(run.job.id, node), wanted) / wanted
                for node in self.held(run.job.id)
            )
        )

    def change(self, changed: list[int], starting: int | None = None) -> None:
        """Recompute the speeds and ends of jobs whose cores changed, and all expected ends that depend on them."""
        for run in (self.running[job] for job in changed):
            wanted = min(run.job.cores, self.cores)
            if run.job.kind == "malleable" or run.job.id == starting:
                run.done += (self.now - run.since) * run.rate
                run.worst_done += (self.now - run.since) * run.worst
                run.since = self.now
                has = [min(self.has(run.job.id, node), wanted) for node in self.held(run.job.id)]
                run.worst = run.job.speed(min(has) / wanted)
                run.rate = run.job.speed(sum(has) / (wanted * len(has))) if self.model == "ideal" else run.worst
                work = min(run.job.run_time, run.job.limit) if self.over_limit == "kill" else run.job.run_time
                run.end = self.now + max(0.0, work - run.done) / run.rate
            staircase = self.outcomes[run.job.id].cores
            if staircase and staircase[-1][0] == self.now:
                staircase.pop()
            staircase.append((self.now, sum(self.has(run.job.id, node) for node in self.held(run.job.id))))
        for run in (self.running[job] for job in changed):
            self.expect(run)

    def expect_again(self) -> None:
        """Expect each job past its limit to run for another limit, at least 1 s."""
        for run in sorted(self.running.values(), key=lambda run: run.expected_end):
            if run.expected_end <= self.now:
                run.limit = run.worst_done + (self.now - run.since) * run.worst + max(run.job.limit, 1.0)
                self.expect(run)

    def expect(self, run: Run) -> None:
        guests = {node.guest for node in self.nodes if node.owner == run.job.id and node.guest is not None}
        at, rate, gone = self.now, run.worst, set[int]()
        left = run.limit - run.worst_done - (self.now - run.since) * run.worst
        for guest in sorted(guests, key=lambda guest: self.running[guest].expected_end):
            until = self.running[guest].expected_end
            there = max(0.0, until - at) * rate
            if left <= there:
                break
            left -= there
            at = max(at, until)
            gone.add(guest)
            rate = self.worst_rate(run, gone)
        run.expected_end = at + left / rate
        for host in {node.owner for node in self.nodes if node.guest == run.job.id}:
            assert host is not None
            self.expect(self.running[host])

    def begin(self, job: CoreJob, own: int, lent: dict[int, int]) -> None:
        """Start `job` on idle nodes and on `lent`: node -> cores."""
        self.queue.remove(job)
        self.started += 1
        self.running[job.id] = Run(job, self.now, self.started, self.now, job.limit)
        self.outcomes[job.id].start = self.now
        for node in [node for node in self.nodes if node.owner is None][:own]:
            node.owner = job.id
        hosts = []
        for number, cores in lent.items():
            node = self.nodes[number]
            assert node.guest is None and node.owner is not None
            node.guest, node.guest_cores = job.id, cores
            hosts.append(node.owner)
        self.running[job.id].expected_end = self.now
        self.change([*dict.fromkeys(hosts), job.id], starting=job.id)

    def end(self, run: Run) -> None:
        job = run.job.id
        del self.running[job]
        self.outcomes[job].end = self.now
        changed = []
        for node in self.nodes:
            if node.guest == job:
                changed.append(node.owner)
            elif node.owner == job:
                node.owner = node.guest
                changed.append(node.owner)
            else:
                continue
            node.guest, node.guest_cores = None, 0
        self.change([other for other in dict.fromkeys(changed) if other is not None])

    def free_at(self, instant: float) -> int:
        """Return the nodes idle at `instant` by expected ends; an end in the past counts as now."""
        both = [[self.running[job] for job in (node.owner, node.guest) if job is not None] for node in self.nodes]
        return sum(all(max(run.expected_end, self.now) <= instant for run in runs) for runs in both)

    def shadow(self, need: int) -> tuple[float, int]:
        instants = [self.now, *(max(self.now, run.expected_end) for run in self.running.values())]
        shadow = min(instant for instant in instants if self.free_at(instant) >= need)
        return shadow, self.free_at(shadow) - need

    def may_start_behind(self, duration: float, nodes: int, head: CoreJob | None) -> bool:
        """Return whether `nodes` idle nodes can be used for the given time without delaying the head."""
        if head is None:
            return True
        shadow, extra = self.shadow(head.nodes)
        return self.now + duration <= shadow or nodes <= extra

    # ---- drom-share ----------------------------------------------------------------------------------------

    def drom(self) -> None:
        while self.queue:
            job = self.queue[0]
            missing = job.nodes - self.idle()
            if missing <= 0:
                self.begin(job, job.nodes, {})
                continue
            lent: dict[int, int] = {}
            for run in sorted(self.running.values(), key=lambda run: run.number):
                for number, node in enumerate(self.nodes):
                    if node.owner == run.job.id and node.guest is None and run.job.kind == "malleable":
                        half, socket = self.cores // 2, self.cores // self.sockets
                        half = half // socket * socket if half >= socket else half
                        most = max(half, self.cores - run.job.cores)
                        part = min(job.cores, self.cores - 1 if self.options.get("split") == "asked" else most)
                        if part > 0 and len(lent) < missing:
                            lent[number] = part
            if job.kind == "rigid" or len(lent) < missing or self.options.get("mode") == "serial":
                return
            self.begin(job, self.idle(), lent)

    # ---- sd ------------------------------------------------------------------------------------------------

    def sd(self) -> None:
        interval = self.options["backfill_interval_s"]
        in_slurm = interval > 0
        if in_slurm:
            while self.queue and self.queue[0].nodes <= self.idle():
                self.begin(self.queue[0], self.queue[0].nodes, {})
            is_pass, self.pass_at = self.now >= self.pass_at, math.inf
            if not is_pass:
                if self.queue:
                    self.pass_at = math.ceil(self.now / interval) * interval
                return
        cut_off = self.options["max_slowdown"]
        if cut_off in ("dynamic", "median", "p70"):
            known = [run for run in self.running.values() if run.job.limit > 0]
            slowdowns = [(max(run.expected_end, self.now) - run.job.submit) / run.job.limit for run in known]
            share = {"median": 0.5, "p70": 0.7}.get(cut_off)
            reached = [
                one for one in slowdowns if sum(other <= one for other in slowdowns) >= (share or 0) * len(slowdowns)
            ]
            mean = sum(slowdowns) / len(slowdowns) if slowdowns else math.inf
            cut_off = mean if share is None else min(reached, default=math.inf)
        # The map: nodes taken from one instant to another; of running jobs, those of each node until both have ended.
        busy = [
            (self.now, max(self.running[job].expected_end for job in (node.owner, node.guest) if job is not None), 1)
            for node in self.nodes
            if node.owner is not None
        ]
        head = None
        bounds: set[float] = set()
        waiting = list(self.queue)
        if most := self.options.get("bf_max_job_user", 0):
            waiting = [job for job in waiting if [one for one in waiting if one.user == job.user].index(job) < most]
        depth = self.options["depth"] or len(waiting)
        for at, job in enumerate(waiting):
            if in_slurm and at >= depth:
                break
            in_time = (
                self.earliest(busy, job) == self.now if in_slurm else self.may_start_behind(job.limit, job.nodes, head)
            )
            if job.nodes <= self.idle() and in_time:
                self.begin(job, job.nodes, {})
                busy.append((self.now, self.now + job.limit, job.nodes))
                continue
            chosen = self.mates(job, float(cut_off), head) if job.kind != "rigid" and at < depth else None
            planned = self.earliest(busy, job) if at < depth else math.inf
            window = self.options.get("bf_window", 0) * 60 or math.inf
            if planned > self.now + window:
                planned = math.inf
            if chosen and self.options.get("keep_plan") and not self.keeps_plan(busy, chosen):
                chosen = None
            if chosen and (self.now + chosen[1] < planned + job.limit or not self.options.get("if_earlier", True)):
                lent, _, own = chosen
                hosts = dict.fromkeys(self.nodes[number].owner for number in lent)
                before = {host: self.running[host].expected_end for host in hosts if host is not None}
                self.begin(job, own, lent)
                busy.append((self.now, self.running[job.id].expected_end, own))
                busy += [
                    (end, self.running[host].expected_end, self.running[host].job.nodes) for host, end in before.items()
                ]
                continue
            head = head or job
            if planned == math.inf:
                continue
            slots = self.options.get("bf_node_space_size", 0)
            if slots and 1 + len(bounds) >= slots:
                break
            first, last = planned, planned + max(job.limit, 1.0)
            if unit := self.options.get("bf_resolution", 0):
                first, last = (
                    max(self.now, math.floor(first / unit) * unit),
                    max(self.now, math.floor(last / unit) * unit),
                )
            bounds |= {instant for instant in (first, last) if self.now < instant < self.now + window}
            busy.append((first, last, job.nodes))

    def keeps_plan(self, busy: list[tuple[float, float, int]], chosen: tuple[dict[int, int], float, int]) -> bool:
        """Return whether each mate can end as late as the guest makes it, and the idle nodes be taken, by the map."""
        lent, duration, own = chosen
        taken = [(self.now, self.now + duration, own)] if own else []
        for host in {self.nodes[number].owner for number in lent}:
            run = self.running[host]
            number = next(number for number in lent if self.nodes[number].owner == host)
            used = min(run.job.cores, self.cores)
            delay = duration * (1 - min(used, self.cores - lent[number]) / used)
            end = max(run.expected_end, self.now)
            taken.append((end, end + delay, run.job.nodes))
        both = [*busy, *taken]
        instants = {edge for start, end, _ in both for edge in (start, end)}
        inside = {at for at in instants if any(start <= at < end for start, end, _ in taken)}
        return all(sum(nodes for start, end, nodes in both if start <= at < end) <= len(self.nodes) for at in inside)

    def earliest(self, busy: list[tuple[float, float, int]], job: CoreJob) -> float:
        def idle_at(instant: float) -> int:
            return len(self.nodes) - sum(nodes for start, end, nodes in busy if start <= instant < end)

        instants = sorted({self.now, *(edge for start, end, _ in busy for edge in (start, end) if edge > self.now)})
        duration = max(job.limit, 1.0)
        for start in instants:
            inner = [start, *(instant for instant in instants if start < instant < start + duration)]
            if all(idle_at(instant) >= job.nodes for instant in inner):
                return start
        raise AssertionError

    def mates(self, job: CoreJob, cut_off: float, head: CoreJob | None) -> tuple[dict[int, int], float, int] | None:
        """Return node -> cores, the run time on them, and the idle nodes used; None if no mates fit."""
        options = self.options
        wanted = min(job.cores, self.cores)
        single = []
        for run in self.running.values():
            nodes = self.held(run.job.id)
            shares = any(node.guest is not None for node in nodes)
            too_large = len(nodes) > job.nodes and not options.get("partial")
            if run.job.kind != "malleable" or shares or too_large or run.job.limit == 0:
                continue
            used = min(run.job.cores, self.cores)
            most = min(math.floor(used * options["sharing_factor"] + 1e-9), max(0, used - run.job.ranks))
            socket = self.cores // self.sockets
            most = most // socket * socket if most >= socket else most
            spare = self.cores - used
            lost = min(max(wanted - spare, 0), most)
            given = min(wanted, spare + lost)
            if given >= min(job.ranks, wanted):
                own_rate = (used - lost) / used
                delayed = run.expected_end - (run.start + run.job.limit)  # by earlier guests
                wait = run.start - run.job.submit + delayed
                mate = (run, given, given / wanted, own_rate, wait, run.expected_end - self.now, len(nodes))
                penalty = self.penalty([mate], job, cut_off, weigh=False)
                if penalty is not None:
                    single.append((penalty, run.start, run.job.id, mate))
        single.sort(key=lambda entry: entry[:3])
        tried = [entry[3] for entry in single][: options["candidates"] or None]
        best: tuple[float, tuple[int, ...]] | None = None
        for size in range(1, options["mates"] + 1):
            for picked in itertools.combinations(range(len(tried)), size):
                some = [tried[at] for at in picked]
                own = job.nodes - sum(mate[6] for mate in some)
                if options.get("partial") and own < 0 < own + some[-1][6]:
                    own = 0  # the last mate shares some of its nodes
                if own < 0 or (own > 0 and not (options["include_free_nodes"] and own <= self.idle())):
                    continue
                impact = self.penalty(some, job, cut_off, weigh=True)
                duration = job.limit / min(mate[2] for mate in some)
                if impact is None or (own and not self.may_start_behind(duration, own, head)):
                    continue
                if best is None or (impact, picked) < best:
                    best = (impact, picked)
        if best is None:
            return None
        some = [tried[at] for at in best[1]]
        parts = [
            (number, mate[1]) for mate in some for number, node in enumerate(self.nodes) if node.owner == mate[0].job.id
        ]
        lent = dict(parts[: job.nodes])
        return lent, job.limit / min(mate[2] for mate in some), job.nodes - len(lent)

    def penalty(
        self, some: list[tuple[Run, int, float, float, float, float, int]], job: CoreJob, cut_off: float, *, weigh: bool
    ) -> float | None:
        """Return the sum of the penalties of these mates, or None if one is above the cutoff or ends too early."""
        duration = job.limit / min(mate[2] for mate in some)
        total = 0.0
        for run, _, _, rate, wait, left, nodes in some:
            p = (wait + duration * (1 - rate) + run.job.limit) / run.job.limit
            needed = {"after": duration * rate, "before": duration, "off": -math.inf}[self.options["inside"]]
            if p >= cut_off * (1 - 1e-9) or left < needed:
                return None
            total += p * (nodes if self.options.get("weighted") and weigh else 1)
        return total
