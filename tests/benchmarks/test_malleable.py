"""Malleable jobs on a local testbed: they shrink, grow and change CPU masks without losing work."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pytest

from tests.patience import GUARD_S
from tracebed.benchmarks.program import Program
from tracebed.ground.cpus import format_cpus, parse_cpus
from tracebed.orchestrator.testbeds.base import Event
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.orchestrator.testbeds.testbed import AgentTestbed

CPUS = sorted(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")

Message = dict[str, Any]


class Driver:
    """A driver of one job, with the protocol of a replayer."""

    def __init__(self, testbed: AgentTestbed, program: Program, members: Sequence[int]) -> None:
        self.testbed, self.program = testbed, program
        self.names = [node.name for node in testbed.nodes]
        self.members = list(members)
        self.here = set(members)
        """Nodes with a rank, as far as we know."""
        self.requests = 0
        self.heard: list[Message] = []
        self.queue: list[Event] = []

    def start(self, *, mask: str | None = None, followers: bool = True) -> None:
        self.launch(self.members[0], leader=True, mask=mask)
        self.address = self.hear(lambda message: message["type"] == "listening")["address"]
        if followers:
            for node in self.members[1:]:
                self.launch(node, leader=False)
            self.hear(lambda message: message["type"] == "started")

    def launch(self, node: int, *, leader: bool, mask: str | None = None, key: str = "c0ffee") -> None:
        cores = len(parse_cpus(mask)) if mask else self.testbed.nodes[node].cores
        message = {
            "type": "launch",
            "job": "j",
            "rank": self.names[node],
            "leader": leader,
            "members": [self.names[member] for member in self.members],
            "address": None if leader else self.address,
            "family": self.testbed.family,
            "authkey": key,
            "cpus": mask,
            "cores": cores,
            "program": self.program._asdict(),
            "duty": self.testbed.nodes[node].duty_or(1),
        }
        self.testbed.send(node, message)
        self.here.add(node)

    def ask(self, members: Sequence[int]) -> int:
        """Launch the missing ranks, and request the leader to continue with `members`."""
        for node in set(members) - self.here:
            self.launch(node, leader=False)
        return self.resize(self.members[0], members=[self.names[member] for member in members])

    def resize(self, node: int, **change: Any) -> int:
        self.requests += 1
        self.testbed.send(node, {"type": "resize", "job": "j", "request": self.requests, **change})
        return self.requests

    def step(self) -> Message:
        """Return the next event; fail on a lost agent or after a long time."""
        until = monotonic() + GUARD_S
        while not self.queue:
            self.queue += self.testbed.receive(until)
            assert self.queue or monotonic() < until, f"waited in vain; heard {self.heard}"
        event = self.queue.pop(0)
        self.heard.append(event.message)
        assert event.message["type"] != "lost", event.message
        if event.message["type"] == "ended":
            self.here.discard(event.node)
        return event.message

    def hear(self, wanted: Callable[[Message], bool]) -> Message:
        """Return the next event that matches; fail after a long time, also if other events arrive."""
        until = monotonic() + GUARD_S
        while not wanted(message := self.step()):
            assert monotonic() < until, f"waited in vain; heard {self.heard}"
        return message

    def resized(self, request: int) -> Message:
        """Return the event that answers `request`, or the end of the job if it comes first."""
        return self.hear(
            lambda message: message.get("request") == request or (message["type"] == "ended" and message["leader"])
        )

    def finish(self) -> Message:
        """Wait for all ranks; return the leader's end event."""
        while self.here:
            self.step()
        return next(m for m in self.heard if m["type"] == "ended" and m["leader"])

    @property
    def over(self) -> bool:
        """Whether the leader has ended."""
        return any(message["type"] == "ended" and message["leader"] for message in self.heard)

    @property
    def units_by_rank(self) -> dict[str, int]:
        units: dict[str, int] = {}
        for message in self.heard:
            if message["type"] == "ended":
                units[message["rank"]] = units.get(message["rank"], 0) + message["units_done"]
        return units

    def process(self, node: int) -> psutil.Process:
        """Return the process of the rank on a node."""
        [rank] = psutil.Process(self.testbed._links[node].hello["pid"]).children()
        return rank


def affinities(process: psutil.Process) -> list[str]:
    """Return the kernel's CPU list of each thread of a process."""
    tasks = Path(f"/proc/{process.pid}/task")
    return sorted((task / "status").read_text().split("Cpus_allowed_list:")[1].split()[0] for task in tasks.iterdir())


@contextmanager
def emulated(tmp_path: Path, *cores: int, network: str = "auto") -> Iterator[AgentTestbed]:
    nodes = tuple(Node(f"n{i}", count, 1, None, True) for i, count in enumerate(cores))
    with AgentTestbed(Inventory("test", "agents", nodes, network=network), tmp_path / "spool") as testbed:
        yield testbed


@contextmanager
def computing(tmp_path: Path, *masks: Sequence[int]) -> Iterator[AgentTestbed]:
    nodes = tuple(Node(f"n{i}", len(mask), 1, tuple(mask)) for i, mask in enumerate(masks))
    with AgentTestbed(Inventory("test", "agents", nodes), tmp_path / "spool") as testbed:
        yield testbed


@pytest.mark.parametrize(
    ("balance", "network", "seed"),
    [
        pytest.param(balance, network, seed, marks=pytest.mark.slow if seed else ())
        for balance in ("static", "dynamic")
        for network in ("auto", "agents")
        for seed in (0, 1)
    ],
)
def test_no_work_is_lost_or_done_twice_however_often_the_job_changes(
    tmp_path: Path, balance: str, network: str, seed: int
) -> None:
    draw = random.Random(seed)
    program = Program("pils", 10_007, 2_000_003, 300, balance=balance, rate=1e6)
    with emulated(tmp_path, 1, 4, 2, 3, network=network) as testbed:
        assert testbed.family == {"auto": "AF_UNIX", "agents": "agents"}[network]
        job = Driver(testbed, program, [1, 0])
        job.start(followers=False)
        first = job.resize(1, cpus="0-1")  # before the work begins: on a busy machine it may end before the next change
        job.launch(0, leader=False)
        assert job.resized(first)["type"] == "resized"
        changes = 1
        while True:
            if draw.random() < 0.3:
                node = draw.choice(sorted(job.here))
                cores = draw.randint(1, testbed.nodes[node].cores)
                answer = job.resized(job.resize(node, cpus=format_cpus(range(cores))))
            else:
                others = draw.sample([0, 2, 3], draw.randint(0, 3))
                members = [1, *others]
                answer = job.resized(job.ask(members))
                if answer["type"] == "resized":
                    assert answer["members"] == [job.names[member] for member in members]
                    while not job.here <= set(members):  # a node is idle after its rank has ended
                        job.step()
            if job.over:  # the answer may be an error: the ranks had ended
                break
            assert answer["type"] == "resized" and answer["decided"] <= answer["applied"], answer
            changes += 1
            if changes == 12:
                break
        assert job.finish()["state"] == "completed"
    assert sum(job.units_by_rank.values()) == 10_007 + 2_000_003


@pytest.mark.parametrize("fraction", [0.0, 0.8, 1.0])
def test_emulated_jobs_follow_amdahls_law(tmp_path: Path, fraction: float) -> None:
    """The planned sleeps follow Amdahl's law, to one unit per part, on every number of nodes."""
    rate, cores = 1e6, 4
    program = Program.lasting(0.1, 2, cores, rate, parallel_fraction=fraction, grain_s=0.01)
    with emulated(tmp_path, *[cores] * 4) as testbed:
        times = []
        for nodes in (1, 2, 4):
            job = Driver(testbed, program, range(nodes))
            job.start()
            times.append(job.finish()["planned_s"])
    alone = 0.1 / (1 - fraction + fraction / 2)
    slack = 2 * program.iterations / rate
    for nodes, took in zip((1, 2, 4), times, strict=True):
        assert took == pytest.approx(alone * (1 - fraction + fraction / nodes), abs=slack)


def test_the_overhead_of_a_number_of_nodes_takes_time_and_is_not_work(tmp_path: Path) -> None:
    """On n nodes, the leader does the overhead for n on one core: also after a resize, and without a serial part."""
    rate = 1e6
    for serial in (0, 20_000):
        program = Program("pils", serial, 120_000, 10, rate=rate, overhead={"2": 50_000, "3": 90_000})
        with emulated(tmp_path / str(serial), 2, 2, 2) as testbed:
            for nodes in (1, 2, 3):
                job = Driver(testbed, program, range(nodes))
                job.start()
                alone = serial + program.overhead.get(str(nodes), 0)
                expected = alone / rate + 120_000 / (2 * nodes * rate)
                assert job.finish()["planned_s"] == pytest.approx(expected, abs=2 * 10 / rate)
                assert sum(job.units_by_rank.values()) == serial + 120_000


@pytest.mark.parametrize("application", ["pils", "simulation", "aligner"])
def test_overhead_does_not_change_the_checksum(tmp_path: Path, application: str) -> None:
    with computing(tmp_path, CPUS[:1]) as testbed:
        checksums = []
        for overhead in ({}, {"1": 50_003}):
            job = Driver(testbed, Program(application, 1_001, 50_000, 7, rate=1e6, overhead=overhead), [0])
            job.start()
            checksums.append(job.finish()["checksum"])
            assert job.units_by_rank == {"n0": 51_001}
    assert checksums[0] is not None and checksums[0] == checksums[1]


def test_static_shares_are_equal_and_dynamic_ones_proportional_to_cores(tmp_path: Path) -> None:
    units = {}
    with emulated(tmp_path, 1, 3) as testbed:
        for balance in ("static", "dynamic"):
            program = Program("pils", 0, 1_200_000, 10, balance=balance, chunks=8, rate=1e6)
            job = Driver(testbed, program, [1, 0])  # the rank with more cores draws without messages, which may be late
            job.start()
            job.finish()
            units[balance] = job.units_by_rank
    assert units["static"] == {"n0": 600_000, "n1": 600_000}
    assert sum(units["dynamic"].values()) == 1_200_000
    assert units["dynamic"]["n1"] > units["dynamic"]["n0"]


@pytest.mark.slow
@needs_two_cpus
@pytest.mark.parametrize("balance", ["static", "dynamic"])
def test_a_computing_job_shrinks_and_grows_on_pinned_cpus(tmp_path: Path, balance: str) -> None:
    with computing(tmp_path, CPUS[:1], CPUS[1:2]) as testbed:
        program = Program.lasting(5.0, 2, 1, testbed.units_per_core_second, parallel_fraction=0.9)
        program = program._replace(balance=balance)
        job = Driver(testbed, program, [0, 1])
        job.start()
        assert set(affinities(job.process(0))) == {str(CPUS[0])}
        assert set(affinities(job.process(1))) == {str(CPUS[1])}
        first = job.process(0).pid
        assert job.resized(job.ask([0]))["members"] == ["n0"]
        while not (ends := [message for message in job.heard if message["type"] == "ended"]):
            job.step()  # long before the job ends; the end may also have come before the answer of the leader
        [released] = ends
        assert (released["rank"], released["state"], released["reason"]) == ("n1", "completed", "released")
        assert job.resized(job.ask([0, 1]))["members"] == ["n0", "n1"]
        assert job.process(0).pid == first  # the rank was not restarted
        ended = job.finish()
        assert ended["state"] == "completed" and ended["cpu_s"] > 0
        assert sum(job.units_by_rank.values()) == program.serial_units + program.parallel_units
        assert testbed.hosts[0]["units_per_core_second"].keys() == {"n0", "n1"}


@needs_two_cpus
def test_a_mask_changes_at_the_next_malleability_point(tmp_path: Path) -> None:
    both = format_cpus(CPUS[:2])
    with computing(tmp_path, CPUS[:2]) as testbed:
        job = Driver(testbed, Program.lasting(3600.0, 1, 2, testbed.units_per_core_second), [0])
        job.start(mask=both)
        rank = job.process(0)
        assert affinities(rank) == sorted([both, str(CPUS[0]), str(CPUS[1])])
        answer = job.resized(job.resize(0, cpus=str(CPUS[1])))
        assert (answer["type"], answer["cpus"]) == ("resized", str(CPUS[1]))
        assert affinities(rank) == [str(CPUS[1])] * 3  # one thread is parked
        later = job.resized(job.resize(0, cpus=both))
        assert affinities(rank) == sorted([both, str(CPUS[0]), str(CPUS[1])])
        assert later["iteration"] >= answer["iteration"]  # one point may see both: the order can arrive in it
        outside = job.resized(job.resize(0, cpus="4000"))
        assert outside["type"] == "error" and "not a subset of the node" in outside["what"]
        testbed.send(0, {"type": "kill", "job": "j", "reason": "seen enough"})
        assert job.finish()["state"] == "killed"


def test_one_change_at_a_time(tmp_path: Path) -> None:
    """A second change of members is refused while one is pending. A second mask replaces the first."""
    with emulated(tmp_path, 2, 2) as testbed:
        job = Driver(testbed, Program("pils", 0, 10**9, 1, rate=1e6), [0])  # one part of 500 s
        job.start()
        job.resize(0, cpus="0")
        job.resize(0, members=["n0", "n1"])
        answer = job.resized(job.resize(0, members=["n0"]))
        assert answer["type"] == "error" and "is still pending" in answer["what"]
        answer = job.resized(job.resize(0, cpus="0-1"))  # the mask that the rank still has
        assert (answer["type"], answer["cpus"]) == ("resized", "0-1")
        assert answer["asked"] == answer["seen"] == answer["decided"] == answer["applied"]
        answer = job.resized(job.resize(0, members=["n1", "n1"]))
        assert answer["type"] == "error" and "listed twice" in answer["what"]
        testbed.send(0, {"type": "kill", "job": "j", "reason": "seen enough"})
        assert (job.finish()["state"], job.units_by_rank) == ("killed", {"n0": 0})


def test_the_leader_is_never_released_and_only_it_changes_members(tmp_path: Path) -> None:
    with emulated(tmp_path, 1, 1) as testbed:
        job = Driver(testbed, Program("pils", 0, 10**9, 10**5, rate=1e6), [0, 1])
        job.start()
        answer = job.resized(job.resize(0, members=["n1"]))
        assert answer["type"] == "error" and "'n0' cannot be released" in answer["what"]
        answer = job.resized(job.resize(1, members=["n0"]))
        assert answer["type"] == "error" and "not on this node" in answer["what"]


def test_a_job_continues_until_new_ranks_have_joined(tmp_path: Path) -> None:
    with emulated(tmp_path, 1, 1) as testbed:
        job = Driver(testbed, Program("pils", 0, 10**9, 10**5, rate=1e6), [0])
        job.start()
        request = job.resize(0, members=["n0", "n1"])  # before n1 is launched
        job.hear(lambda message: message["type"] == "progress")
        job.hear(lambda message: message["type"] == "progress")
        assert not any(message["type"] == "resized" for message in job.heard)
        job.launch(1, leader=False)
        assert job.resized(request)["members"] == ["n0", "n1"]


def test_a_rank_that_dies_fails_the_job(tmp_path: Path) -> None:
    with emulated(tmp_path, 1, 1, 1) as testbed:
        job = Driver(testbed, Program("pils", 0, 10**12, 10**8, rate=1e6), [0, 1, 2])
        job.start()
        job.process(1).kill()
        ended = job.finish()
        assert (ended["state"], ended["reason"]) == ("failed", "lost rank 'n1'")
        reasons = {m["rank"]: (m["state"], m["reason"]) for m in job.heard if m["type"] == "ended"}
        assert reasons["n1"] == ("failed", "was killed by signal 9 (Killed)")
        assert reasons["n2"] == ("failed", "lost the connection to the leader")


def test_a_wrong_key_is_refused_and_the_right_one_accepted(tmp_path: Path) -> None:
    with emulated(tmp_path, 1, 1) as testbed:
        job = Driver(testbed, Program("pils", 0, 100, 2, rate=1e6), [0, 1])
        job.start(followers=False)
        job.launch(1, leader=False, key="00")
        ended = job.hear(lambda message: message["type"] == "ended")
        assert (ended["rank"], ended["state"]) == ("n1", "failed")
        assert "cannot join the leader" in ended["reason"]
        if not any(message["type"] == "error" for message in job.heard):
            job.hear(lambda message: message["type"] == "error")
        assert any("failed authentication" in message.get("what", "") for message in job.heard)
        job.launch(1, leader=False)
        assert job.finish()["state"] == "completed"
        assert sum(job.units_by_rank.values()) == 100


def test_an_emulated_job_uses_no_cpu_time(tmp_path: Path) -> None:
    with emulated(tmp_path, 48) as testbed:
        program = Program.lasting(1.0, 1, 48, 1e6, grain_s=0.1)
        job = Driver(testbed, program, [0])
        job.start()
        assert job.process(0).num_threads() == 1
        ended = job.finish()
    assert ended["cpu_s"] < 0.1 * ended["planned_s"]
    assert ended["planned_s"] == pytest.approx(1.0, abs=1e-4)
    assert ended["late_s"] >= 0


@needs_two_cpus
@pytest.mark.parametrize("network", ["auto", "agents"])
def test_the_state_moves_between_nodes_and_the_agents_time_the_stages(tmp_path: Path, network: str) -> None:
    """Also when the connections of ranks go through the agents and the controller."""
    nodes = tuple(Node(f"n{index}", 1, 1, (CPUS[index],)) for index in range(2))
    program = Program("pils", 0, 10**9, 10**6, rate=1e6, state_mib=4.0)
    with AgentTestbed(Inventory("test", "agents", nodes, network=network), tmp_path / "spool") as testbed:
        job = Driver(testbed, program, [0])
        job.start()
        grown = job.resized(job.ask([0, 1]))["stages"]
        shrunk = job.resized(job.ask([0]))["stages"]
        assert (grown["moved_mib"], shrunk["moved_mib"]) == (2.0, 2.0)
        assert grown["spawn_s"] > 0 == shrunk["spawn_s"]
        assert min(*grown.values(), *shrunk.values()) >= 0
        ends = [message for message in job.heard if message["type"] == "ended"]  # may precede the answer of the leader
        left = ends[0] if ends else job.hear(lambda message: message["type"] == "ended")
        assert (left["rank"], left["state"], left["reason"]) == ("n1", "completed", "released")
        assert left["termination_s"] > 0
        job.testbed.send(0, {"type": "kill", "job": "j", "reason": "seen enough"})
        assert job.finish()["termination_s"] is None


def test_a_resize_of_a_job_behind_its_plan_shows_how_much(tmp_path: Path) -> None:
    """The leader makes up for its delay later, so that the end of the job does not show it."""
    stopped_s = 1.0
    with emulated(tmp_path, 1, 1) as testbed:
        job = Driver(testbed, Program("pils", 0, 10**9, 10**4, rate=1e6), [0, 1])  # iterations of 0.05 s
        job.start()
        [begun] = [message["begun"] for message in job.heard if message["type"] == "started"]
        job.process(0).suspend()
        request = job.resize(0, members=["n0"])
        time.sleep(stopped_s)
        job.process(0).resume()
        answer = job.resized(request)
        assert answer["applied"] - begun - answer["planned_s"] > 0.8 * stopped_s
