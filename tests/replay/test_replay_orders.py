"""The replayer against a model of agents and ranks in virtual time, with crossing messages and killed ranks.

Most of these message orders are rare with real processes. Here each delay is drawn; 1,000 replays take a minute.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.oracles.redecided import decided, decided_again, emulated
from tests.replay.test_replay_sharing import Crowding, assert_no_core_has_two_jobs, crowd
from tests.replay.test_replayer_mishaps import carry_out
from tests.runs import by_node, replaying
from tracebed.ground.cpus import format_cpus, parse_cpus
from tracebed.ground.system import World
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.loop import Replayer
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.state import Decision, Resize, State
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Event
from tracebed.orchestrator.testbeds.nodes import Inventory

FOREVER_S = 600.0
"""Virtual time in which a replay must be over: its jobs last for some tenths of a second."""


class Resizing(Crowding):
    """A policy that also resizes jobs that share no node."""

    malleable: ClassVar[bool] = True

    def decide(self, state: State) -> Iterator[Decision]:
        yield from super().decide(state)
        for job in [job for job in state.resizable if job not in state.resizing and not state.cluster.shares(job)]:
            most = min(state.jobs.high[job], state.size[job] + state.idle)
            size = self.draw.randint(state.jobs.low[job], most)
            if size != state.size[job]:
                yield Resize(job, size)


@dataclass(eq=False)
class Rank:
    node: int
    job: str
    leader: bool
    target: set[int]
    """The CPUs that the rank is to hold, by the table of its node."""
    held: set[int] = field(default_factory=set)
    asked: dict[str, Any] | None = None
    """The last request for other CPUs, unless it was answered."""
    ready: bool = False
    """Whether the rank has held all its CPUs."""
    joined: bool = False
    killed: bool = False


@dataclass
class Job:
    leader: Rank
    members: set[int]
    begun: bool = False
    asked: dict[str, Any] | None = None
    """The pending request for other members."""


class Modelled:
    """Emulated nodes in virtual time. Messages keep their order to and from each node, but not across nodes.

    Args:
        inventory: the nodes.
        draw: random generator of delays and deaths.
        deaths: probability that a rank is killed.
    """

    def __init__(self, inventory: Inventory, draw: random.Random, deaths: float) -> None:
        self.nodes = inventory.nodes
        self.units_per_core_second = EMULATED_RATE
        self.family = "AF_UNIX"
        self.hosts: list[dict[str, Any]] = []
        self.agents: dict[str, dict[str, Any]] = {}
        self.out: dict[str, str] = {}
        self.draw, self.deaths = draw, deaths
        self.pace = 10 ** draw.uniform(-4.0, -1.5)
        self.now = 0.0
        self.ranks: dict[tuple[int, str], Rank] = {}
        self.jobs: dict[str, Job] = {}
        self.seen: Counter[str] = Counter()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._latest = [[0.0] * len(self.nodes) for _ in range(2)]  # latest delivery time to and from each node
        self._events: list[tuple[int, dict[str, Any]]] = []
        for node in range(len(self.nodes)):
            self._beat(node)

    def monotonic(self) -> float:
        self.now += 1e-7  # no two instants are equal
        return self.now

    def _after(self, delay: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._numbers), call))

    def _soon(self, call: Callable[[], None]) -> None:
        self._after(self._delay(), call)

    def _delay(self) -> float:
        return self.draw.expovariate(1 / self.pace) * (30 if self.draw.random() < 0.05 else 1)

    def _in_order(self, node: int, way: int, call: Callable[[], None]) -> None:
        self._latest[way][node] = max(self._latest[way][node] + 1e-9, self.now + self._delay())
        self._after(self._latest[way][node] - self.now, call)

    def _say(self, node: int, kind: str, **fields: Any) -> None:
        self._in_order(node, 1, lambda: self._events.append((node, {"type": kind, **fields})))

    def _beat(self, node: int) -> None:
        self._say(node, "heartbeat")
        self._after(1.0, lambda: self._beat(node))

    # What the replayer calls.

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        if message["type"] != "sample":  # these nodes send no samples
            self._in_order(node, 0, lambda: self._obey(node, dict(message)))

    def receive(self, until: float) -> list[Event]:
        while self._heap and self._heap[0][0] <= until and (not self._events or self.draw.random() < 0.5):
            at, _, call = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            call()
        self.now = self.now if self._events else max(self.now, until)
        assert self.now < FOREVER_S, f"a rank waits forever: {self.ranks}"
        events = [Event(node, {"time": self.now, **message}, self.now) for node, message in self._events]
        self._events.clear()
        return events

    def drop(self, node: int, reason: str) -> None:
        raise AssertionError(f"node {node} has failed: {reason}")

    def __enter__(self) -> Modelled:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    # Agents and ranks.

    def _obey(self, node: int, message: dict[str, Any]) -> None:
        job, kind = message["job"], message["type"]
        rank = self.ranks.get((node, job))
        if kind == "launch":
            assert rank is None, f"a second rank of {job}"
            self._launch(node, message)
        elif rank is None:
            self._say(node, "error", job=job, what="no rank here")
        elif kind == "kill":
            if not rank.killed:
                rank.killed = True
                self._soon(lambda: self._end(rank, "killed"))
        elif "cpus" in message:
            rank.asked = message
            self._set_mask(rank, set(parse_cpus(message["cpus"])))
        else:
            assert rank.leader and self.jobs[job].asked is None
            assert self.nodes[node].name in message["members"], "the leader must stay a member"
            self.jobs[job].asked = message
            self._soon(lambda: self._resize(self.jobs[job]))

    def _launch(self, node: int, message: dict[str, Any]) -> None:
        rank = Rank(node, message["job"], message["leader"], set(parse_cpus(message["cpus"])))
        if self.draw.random() < self.deaths / 5:
            self._say(node, "ended", **self._last_words(rank, "failed", "cannot be launched"))
            return
        self.ranks[node, rank.job] = rank
        self.seen["beside another"] += any(other.node == node for other in self.ranks.values() if other is not rank)
        if rank.leader:
            self.jobs[rank.job] = Job(rank, self._numbered(message["members"]))
        self._set_mask(rank, rank.target)
        if self.draw.random() < self.deaths:
            self._after(self.draw.choice([self._delay(), self.draw.expovariate(20)]), lambda: self._end(rank, "failed"))

    def _numbered(self, names: list[str]) -> set[int]:
        return {number for number, node in enumerate(self.nodes) if node.name in names}

    def _others(self, rank: Rank) -> list[Rank]:
        return [other for other in self.ranks.values() if other.node == rank.node and other is not rank]

    def _set_mask(self, rank: Rank, cpus: set[int]) -> None:
        """Change the table of the node: the CPUs are taken from other ranks. All concerned poll some time later."""
        rank.target = cpus
        for other in self._others(rank):
            if other.target & cpus:
                other.target = other.target - cpus
                self._poll_later(other)
        self._poll_later(rank)

    def _poll_later(self, rank: Rank) -> None:
        self._after(self.draw.choice([0.0, self._delay(), self.draw.expovariate(30)]), lambda: self._poll(rank))

    def _poll(self, rank: Rank) -> None:
        """Release and take CPUs, as the table says."""
        if not self._lives(rank):
            return
        before, blocked = rank.held, set[int]().union(*(other.held for other in self._others(rank)))
        rank.held = rank.target - blocked
        if before - rank.held:
            self.seen["narrowed"] += 1
            for other in self._others(rank):
                self._poll_later(other)
        complete = rank.held == rank.target
        if rank.asked is not None and complete:
            self._say_held(rank, rank.asked["request"])
            rank.asked = None
        elif rank.held != before and rank.ready:
            self._say_held(rank, None)
        if complete and not rank.ready and rank.held:
            rank.ready = True
            if before or self.draw.random() < 0.5:  # the rank has waited
                self._say_held(rank, None)
            self._soon(lambda: self._join(rank))

    def _say_held(self, rank: Rank, request: int | None) -> None:
        instants = {"seen": None, "decided": self.now, "applied": self.now}
        self._say(rank.node, "resized", job=rank.job, cpus=format_cpus(sorted(rank.held)), request=request, **instants)

    def _lives(self, rank: Rank) -> bool:
        return self.ranks.get((rank.node, rank.job)) is rank

    def _join(self, rank: Rank) -> None:
        job = self.jobs[rank.job]
        if not self._lives(rank):
            return
        if not self._lives(job.leader):
            self._end(rank, "failed")
            return
        rank.joined = True
        if rank.leader:
            self._say(rank.node, "listening", job=rank.job, address="there")
        if not job.begun and self._are_here(rank.job, job.members):
            job.begun = True
            self._say(job.leader.node, "started", job=rank.job)
            self._after(self.draw.expovariate(20), lambda: self._end(job.leader, "completed"))

    def _are_here(self, job: str, members: set[int]) -> bool:
        return all((node, job) in self.ranks and self.ranks[node, job].joined for node in members)

    def _resize(self, job: Job) -> None:
        if not self._lives(job.leader) or job.asked is None:
            return
        name, members = job.leader.job, self._numbered(job.asked["members"])
        if not (job.begun and self._are_here(name, members)):
            self._soon(lambda: self._resize(job))
            return
        for node in job.members - members:
            if (node, name) in self.ranks:
                self._leave(self.ranks[node, name], "completed")
        job.members = members
        instants = {"decided": self.now, "applied": self.now}
        self._say(job.leader.node, "resized", job=name, request=job.asked["request"], **instants)
        job.asked = None

    def _leave(self, rank: Rank, state: str) -> None:
        self._soon(lambda: self._end(rank, state))

    def _end(self, rank: Rank, state: str) -> None:
        """Remove `rank` and notify the other ranks of its job."""
        if not self._lives(rank):
            return
        for other in self._others(rank):
            self._poll_later(other)
        del self.ranks[rank.node, rank.job]
        self._say(rank.node, "ended", **self._last_words(rank, state, f"has {state}"))
        job = self.jobs[rank.job]
        if rank.leader:
            for other in [other for other in self.ranks.values() if other.job == rank.job and other.joined]:
                self._leave(other, state if state == "completed" else "failed")
        elif state != "completed" and rank.joined and self._lives(job.leader):
            self._leave(job.leader, "failed")

    def _last_words(self, rank: Rank, state: str, reason: str) -> dict[str, Any]:
        name = self.nodes[rank.node].name
        return {"job": rank.job, "rank": name, "leader": rank.leader, "state": state, "reason": reason}


def assert_ranks_end_where_their_jobs_are(run: Run, path: Path) -> None:
    held: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in by_node(run).itertuples():
        held.setdefault((row.job_id, f"n{row.node + 1}"), []).append((row.start, row.end))
    for entry in journal.read(path)[1]:
        if entry.kind == "ended":
            assert any(start < entry.time <= end for start, end in held[entry.job or "", entry.node or ""]), entry


def replayed(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch, *over_limit: OverLimit) -> Counter[str]:
    """Replay one drawn case, check the invariants, and return what was observed.

    The treatment of jobs that exceed their limit is one of `over_limit`, or any if none is given.
    """
    draw = random.Random(seed)
    resizes, deaths, cancels = draw.random() < 0.5, draw.choice([0.0, 0.05, 0.2, 0.5]), draw.choice([0.0, 0.03, 0.2])
    inventory = emulated(4, cores=4)
    work = crowd(draw.randint(5, 50), seed, resizes=resizes)
    policy = Resizing if resizes else Crowding
    options = replaying(
        1000.0, over_limit=draw.choice(over_limit or [*OverLimit]), interval_s=draw.choice([0.0, 0.0, 20.0])
    )
    testbed = Modelled(inventory, draw, deaths)
    monkeypatch.setattr(World, "monotonic", lambda world: testbed.monotonic())
    run = carry_out(work, policy(seed, cancels), folder, inventory, options, testbed)
    states = Counter(run.jobs["state"])
    assert states.keys() <= {"completed", "cancelled", "failed", "killed"}
    assert bool(deaths) >= bool(states["failed"]) and bool(cancels) >= bool(states["cancelled"])
    assert not testbed.ranks
    assert not run.info.handovers.get("overlap_s")
    assert_no_core_has_two_jobs(run.allocations, [4] * 4)
    assert_ranks_end_where_their_jobs_are(run, folder / JOURNAL)
    jobs = Jobs.of(work, over_limit=OverLimit(options.get("over_limit", "extend")))
    again = decided_again(folder / JOURNAL, jobs, inventory, policy(seed, cancels), options)
    assert again == decided(folder / JOURNAL)
    return states + testbed.seen + Counter(f"resize {state}" for state in run.reconfigurations["state"])


@pytest.mark.parametrize("block", range(4))
def test_any_message_order_and_any_killed_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block * 10, (block + 1) * 10):
        (tmp_path / str(seed)).mkdir()
        seen += replayed(seed, tmp_path / str(seed), monkeypatch)
    assert min(seen[what] for what in ("completed", "cancelled", "failed", "beside another", "narrowed")) > 10, seen


def test_limits_end_as_in_a_search_of_all_running_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replayer searches only the jobs whose expected ends come first."""
    next_limit, enforce = Replayer._next_limit, Replayer._enforce_limits
    counts: Counter[str] = Counter()

    def ends(replayer: Replayer, now: float) -> dict[int, float]:
        jobs, running = replayer.jobs, replayer.ranks.running
        able = [job for job in running if running[job].outcome is None and jobs.limit[job] != jobs.run_time[job]]
        return {job: replayer.scheduler.limit_end(job, now) for job in able}

    def checked_next_limit(replayer: Replayer) -> float:
        expected = min(ends(replayer, replayer.rounds.now).values(), default=math.inf)
        found = next_limit(replayer)
        assert found == pytest.approx(expected, rel=1e-12)
        counts["limits"] += found < math.inf
        return found

    def checked_enforce(replayer: Replayer, now: float) -> None:
        expected = [job for job, end in ends(replayer, now).items() if end <= now]
        entries = len(replayer.rounds.entries)
        enforce(replayer, now)
        kills = [replayer.event_handler.numbers[entry.job or ""] for entry in replayer.rounds.entries[entries:]]
        assert kills == expected
        counts["kills"] += len(kills)

    monkeypatch.setattr(Replayer, "_next_limit", checked_next_limit)
    monkeypatch.setattr(Replayer, "_enforce_limits", checked_enforce)
    for seed in range(12):
        (tmp_path / str(seed)).mkdir()
        counts += replayed(seed, tmp_path / str(seed), monkeypatch, OverLimit.KILL)
    assert min(counts[what] for what in ("limits", "kills", "killed", "beside another")) > 10, counts
