"""Agents that lose their controller: they stop their ranks, and wait for another controller, or end."""

from __future__ import annotations

import base64
import json
import math
import os
import random
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.patience import GUARD_S, until
from tests.servers.agents import Agent, Controller, gone, stopped
from tracebed.benchmarks.clock import Clock, Pauses, SteadyClock
from tracebed.benchmarks.lines import Lines, decode
from tracebed.benchmarks.program import Program
from tracebed.orchestrator.testbeds.agent import spool
from tracebed.orchestrator.testbeds.local import AGENT

pytestmark = pytest.mark.usefixtures("no_process_is_left")

SECONDS = Program("pils", 0, 12_000_000, 60, rate=1e6)
"""Three seconds of work on four cores: a busy machine must not lose the controller only after them."""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """Yield an agent that waits for another controller, long enough for any test."""
    with Agent(tmp_path, linger_s=600.0) as found:
        found.greet()
        yield found


def socket_of(agent: Agent) -> str:
    return next(message for message in agent.heard if message["type"] == "hello")["attach"]


def lose(agent: Agent) -> psutil.Process:
    """Hang up, and return the rank, which is stopped."""
    [rank] = agent.children()
    agent.hang_up()
    assert stopped(rank)
    return rank


def stop_within_a_part(agent: Agent, clock: SteadyClock) -> None:
    """Stop the rank while it holds the clock: on a busy machine it may be between two parts for long."""
    [rank] = agent.children()
    while True:
        rank.suspend()
        assert stopped(rank)
        if min(clock._state[3::2]) < math.inf:
            return
        rank.resume()


SLOW = """
import runpy, time
from tracebed.orchestrator.testbeds.agent import processes
library = processes._libc
class Slow:
    def prctl(self, *arguments):
        time.sleep(1.0)
        return library.prctl(*arguments)
processes._libc = Slow()
runpy.run_module("tracebed.orchestrator.testbeds.agent", run_name="__main__")
"""


def test_a_rank_that_has_just_been_forked_does_not_outlive_its_agent(tmp_path: Path) -> None:
    """The agent stopped ranks that were not yet bound to it. They stayed stopped forever if the agent was killed."""
    with Agent(tmp_path, [*AGENT[:2], "-c", SLOW], linger_s=600.0) as agent:
        agent.greet()
        agent.launch("a")
        assert until(lambda: bool(agent.children()))
        rank = lose(agent)
        agent.process.kill()
        assert gone(rank)


@pytest.mark.slow
def test_a_rank_goes_on_with_its_plan_after_the_pause(agent: Agent) -> None:
    agent.launch("a", SECONDS)
    agent.hear("progress")
    lose(agent)
    time.sleep(4.0)
    with agent.attach(socket_of(agent)) as other:
        hello = other.greet(seen=agent.heard[-1]["n"])
        assert hello["adopted"] == ["a"] and hello["paused_s"] >= 4.0
        assert hello["pid"] == agent.process.pid
        ended = other.hear("ended")
    assert (ended["state"], ended["units_done"]) == ("completed", 12_000_000)
    assert ended["planned_s"] == pytest.approx(3.0, abs=0.01)
    assert ended["residual_s"] < 2.0 and ended["late_s"] < 2.0  # less than the pause of 4 s


@pytest.mark.slow
def test_a_computing_rank_leaves_out_the_pause(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    node = {"name": "n1", "cores": 1, "cpus": str(cpu), "emulated": False}
    with Agent(tmp_path, node=node, linger_s=600.0) as agent:
        agent.greet()
        agent.start("a", Program("pils", 0, 2000, 4, rate=1000.0), duty=0.01)
        lose(agent)
        time.sleep(4.0)
        with agent.attach(socket_of(agent)) as other:
            other.greet()
            ended = other.hear("ended")
    assert ended["state"] == "completed" and ended["residual_s"] < 2.0
    assert sum(sample[3] for event in other.heard if event["type"] == "work" for sample in event["samples"]) < 2.0


def test_a_stopped_rank_holds_the_steady_clock(agent: Agent, tmp_path: Path) -> None:
    clock = SteadyClock.create(tmp_path / "clock", 2)
    agent.launch("a", Program("pils", 0, 4_000_000_000, 20_000, rate=1e6), clock=clock.path)
    agent.hear("progress")
    stop_within_a_part(agent, clock)
    lose(agent)
    stood_still = clock.now() + 0.1  # a part takes 0.05 s
    time.sleep(2.0)
    assert clock.now() < stood_still
    with agent.attach(socket_of(agent)) as other:
        other.greet()
        assert until(lambda: clock.now() > stood_still)
    clock.close()


def test_events_are_kept_until_they_are_recorded(agent: Agent) -> None:
    for job in "abc":  # one after the other: a node has CPUs for one of them
        agent.launch(job, Program("pils", 1, 1, 1, rate=1e6))
        agent.hear("ended")
    numbers = [message["n"] for message in agent.heard if "n" in message]
    assert numbers == list(range(1, len(numbers) + 1))
    agent.tell({"type": "ping", "time": 1.5, "seen": 4})
    agent.tell({"type": "sample", "calibrate": False})
    assert agent.hear("heartbeat")["ping"]["sent"] == 1.5
    events = [message for message in agent.heard if message.get("n", 0) > 4]
    agent.hang_up()
    with agent.attach(socket_of(agent)) as other:
        assert other.greet()["adopted"] == []
        for event in events:
            other.hear(event["type"])
        assert other.heard[1:] == events
        other.hang_up()
        with agent.attach(socket_of(agent)) as third:
            third.greet(seen=numbers[-1])
            third.tell({"type": "kill", "job": "a", "reason": "r"})
            third.hear("error")
            assert [message["type"] for message in third.heard] == ["hello", "error"]


def test_an_event_during_the_pause_is_kept(agent: Agent) -> None:
    agent.start("a")
    lose(agent).kill()
    assert until(lambda: not agent.children())
    with agent.attach(socket_of(agent)) as other:
        assert other.greet()["adopted"] == []
        assert (ended := other.hear("ended"))["state"] == "failed" and "signal 9" in ended["reason"]


def test_after_the_time_for_another_controller_nothing_is_left(tmp_path: Path) -> None:
    with Agent(tmp_path, linger_s=0.3) as agent:
        folder = Path(agent.greet()["sockets"])
        agent.start("a")
        rank = lose(agent)
        assert agent.process.wait(GUARD_S) == 0
        assert not rank.is_running() and not folder.exists()


@pytest.mark.parametrize("way", ["bye", "SIGTERM", "SIGKILL"])
def test_a_stopped_rank_dies_with_its_agent(agent: Agent, way: str) -> None:
    agent.start("a")
    rank = lose(agent)
    if way == "bye":
        with agent.attach(socket_of(agent)) as other:
            other.tell({"type": "bye"})
            assert agent.process.wait(GUARD_S) == 0
            assert other.process.wait(GUARD_S) == 0
    else:
        agent.process.send_signal(signal.Signals[way])
        agent.process.wait(GUARD_S)
    assert gone(rank)
    # The next agent of this machine, also one of another test, removes the folder of an agent that was killed.
    assert way == "SIGKILL" or not Path(socket_of(agent)).parent.exists()


def test_an_agent_that_ends_accepts_no_controller(agent: Agent) -> None:
    agent.start("a")
    lose(agent)
    with agent.attach(socket_of(agent)) as other:
        other.tell(b'{"type":"bye"}\n' + json.dumps(other.hello).encode() + b"\n")  # arrive at once
        [refused] = [json.loads(line) for line in iter(other.next_line, b"")]
    assert refused["type"] == "error" and "the agent ends" in refused["what"]


def test_a_silent_controller_is_a_lost_one(agent: Agent) -> None:
    agent.start("a")
    [rank] = agent.children()
    with agent.attach(socket_of(agent)) as other:
        other.greet(silence_s=0.5)
        assert stopped(rank)
        assert not [line for line in iter(other.next_line, b"") if b"heartbeat" in line]
        assert other.process.wait(GUARD_S) == 0


@pytest.mark.slow
def test_pings_keep_the_connection(agent: Agent) -> None:
    with agent.attach(socket_of(agent)) as other:
        other.greet(silence_s=2.0, heartbeat_s=0.1)
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            other.tell({"type": "ping", "time": time.monotonic()})
            beat = other.hear("heartbeat")
            if "ping" in beat:
                assert beat["ping"]["sent"] <= beat["ping"]["received"] <= beat["time"] <= time.monotonic()


def test_another_controller_replaces_a_connected_one(agent: Agent) -> None:
    agent.start("a")
    with agent.attach(socket_of(agent)) as other:
        hello = other.greet(seen=agent.heard[-1]["n"])
        assert (hello["adopted"], hello["paused_s"]) == (["a"], 0.0)
        assert agent.process.stdout is not None
        assert all(b"hello" not in line for line in agent.process.stdout)  # until its end
        other.tell({"type": "kill", "job": "a", "reason": "enough"})
        assert other.hear("ended")["reason"] == "enough"


def test_no_held_rank_works_before_it_may_continue(agent: Agent) -> None:
    """A controller that takes over several agents lets all of their ranks continue at the same instant."""
    agent.start("a", SECONDS)
    lose(agent)
    with agent.attach(socket_of(agent)) as other:
        hello = other.greet(seen=agent.heard[-1]["n"], hold=True)
        assert hello["paused_s"] > 0.0 == hello["left_out_s"]
        other.hang_up()  # the second controller is lost too
    with agent.attach(socket_of(agent)) as other:
        again = other.greet(hold=True)
        assert again["paused_s"] > hello["paused_s"] and again["left_out_s"] == 0.0
        [rank] = agent.children()
        assert stopped(rank)
        other.tell({"type": "continue", "left_out_s": again["paused_s"]})
        ended = other.hear("ended")
    assert (ended["state"], ended["units_done"]) == ("completed", 12_000_000)


def test_a_connection_without_a_valid_hello_changes_nothing(agent: Agent) -> None:
    agent.start("a")
    [rank] = agent.children()
    with agent.attach(socket_of(agent)) as other:
        other.tell({"type": "kill", "job": "a", "reason": "r"})
        assert "before hello" in other.hear("error")["what"]
        other.tell(other.hello | {"node": {"name": "n2", "cores": 4, "emulated": True}})
        assert "not that of the first hello" in other.hear("error")["what"]
        other.tell(other.hello | {"protocol": 1})
        assert "protocol is 1" in other.hear("error")["what"]
        other.hang_up()
    agent.tell({"type": "kill", "job": "b", "reason": "r"})
    assert "'b'" in agent.hear("error")["what"]
    assert rank.status() != psutil.STATUS_STOPPED


def test_without_a_time_to_linger_an_agent_ends_and_no_controller_can_attach(tmp_path: Path) -> None:
    with Agent(tmp_path) as agent:
        assert agent.greet()["attach"] is None
        agent.start("a")
        agent.hang_up()
        assert agent.process.wait(GUARD_S) == 0


def test_attaching_to_no_agent_is_an_error_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run([*AGENT, "--attach", str(tmp_path / "no")], capture_output=True, text=True, timeout=GUARD_S)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"no agent listens at {tmp_path / 'no'}: [Errno 2] No such file or directory\n"
    done = subprocess.run([*AGENT, "--atach", "x"], capture_output=True, text=True, timeout=GUARD_S)
    assert done.returncode == 1 and done.stderr.startswith("usage: ")


def test_a_repeated_request_is_ignored(agent: Agent) -> None:
    agent.start("a", SECONDS)
    for request in (1, 1, 2, 2):
        agent.tell({"type": "resize", "job": "a", "request": request, "members": ["n1"]})
        agent.tell({"type": "sample", "calibrate": False})  # the second request of a pair comes later
        agent.hear("heartbeat")
    agent.hear("ended")
    answers = [message["request"] for message in agent.heard if "request" in message]
    assert sorted(set(answers)) == [1, 2] and answers.count(1) == 1


class Router:
    """A controller of several agents that carries their relays, and can lose them all at once."""

    def __init__(self, folder: Path, count: int) -> None:
        self.agents = [self._agent(folder, f"n{number}") for number in range(count)]
        self.controllers: list[Controller] = list(self.agents)
        self.sockets = [agent.greet()["attach"] for agent in self.agents]
        self.seen = [0] * count
        self.relays = 0
        self.events: list[dict[str, Any]] = []
        self._listen()

    def _agent(self, folder: Path, name: str) -> Agent:
        return Agent(folder, node={"name": name, "cores": 2, "emulated": True}, linger_s=600.0)

    def _listen(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.lines = [self._watch(controller) for controller in self.controllers]
        for node, lines in enumerate(self.lines):
            lines.data = partial(self._hear, node)
            self.selector.modify(lines.reader, selectors.EVENT_READ, lines.data)

    def _watch(self, controller: Controller) -> Lines:
        assert controller.process.stdin is not None and controller.process.stdout is not None
        return Lines(self.selector, controller.process.stdout.fileno(), controller.process.stdin.fileno(), None)

    def turn(self) -> None:
        for key, _ in self.selector.select(GUARD_S):
            key.data()

    def _hear(self, node: int) -> None:
        self.lines[node].flush()
        for line in self.lines[node].receive():
            message = decode(line)
            if message["type"] == "relay":
                self.relays += 1
                self.lines[int(message["to"][1:])].send(message)
            elif message.get("n", 0) > self.seen[node]:
                self.seen[node] = message["n"]
                self.events.append(message)
        assert not self.lines[node].closed

    def lose(self, draw: random.Random) -> None:
        """Lose all connections with what is in them, and attach to all agents in any order."""
        for lines, controller in zip(self.lines, self.controllers, strict=True):
            lines.forget()
            controller.hang_up()
        order = list(range(len(self.agents)))
        draw.shuffle(order)
        for node in order:
            old = self.controllers[node]
            self.controllers[node] = self.agents[node].attach(self.sockets[node])
            self.controllers[node].tell(self.agents[node].hello | {"seen": self.seen[node]})
            if old is not self.agents[node]:
                old.__exit__()
        self._listen()

    def close(self) -> None:
        for agent, controller in zip(self.agents, self.controllers, strict=True):
            agent.__exit__()
            if controller is not agent:
                controller.__exit__()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_relayed_job_survives_the_loss_of_controllers(tmp_path: Path, seed: int) -> None:
    """The units are exact at the end, so no message between the ranks was lost or doubled."""
    draw = random.Random(seed)
    router = Router(tmp_path, 3)
    try:
        program = Program("pils", 1000, 600_000, 400, balance="dynamic", rate=1e6)
        names = [agent.hello["node"]["name"] for agent in router.agents]
        job: dict[str, Any] = {"members": names, "family": "agents"}
        router.agents[0].launch("j", program, **job)
        while not any(event["type"] == "listening" for event in router.events):
            router.turn()
        for agent in router.agents[1:]:
            agent.launch("j", program, **job, leader=False, address="n0")
        lost = 0
        while sum(event["type"] == "ended" for event in router.events) < 3:
            router.turn()
            if not lost:
                assert not any(rank.net_connections("inet") for agent in router.agents for rank in agent.children())
            if lost < 5 and router.relays >= (lost + 1) * draw.randint(100, 200):
                router.lose(draw)
                lost += 1
        assert lost == 5
    finally:
        router.close()
    ends = [event for event in router.events if event["type"] == "ended"]
    assert {event["state"] for event in ends} == {"completed"}
    assert sum(event["units_done"] for event in ends) == 601_000


def test_relays_for_a_leader_that_has_ended_are_closed(agent: Agent) -> None:
    relay = {"type": "relay", "job": "j", "rank": "n2", "stream": 1, "to": "n1", "offset": 7, "received": 0}
    agent.tell(relay | {"data": base64.b64encode(b"hello").decode()})
    answer = agent.hear("relay")
    assert (answer["to"], answer["received"], answer["closed"]) == ("n2", 7, True)


def test_pauses_shift_the_clock_and_are_shared() -> None:
    pauses = Pauses()
    clock = Clock(pauses)
    before = clock.now()
    child = os.fork()
    if not child:
        pauses.add(1000.0)
        os._exit(0)
    os.waitpid(child, 0)
    assert clock.now() < before - 900
    assert clock.monotonic(clock.now()) == pytest.approx(time.monotonic(), abs=5)
    assert clock.stamp(clock.now()) == pytest.approx(time.monotonic(), abs=5)


def test_folders_of_killed_agents_are_removed_by_a_later_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as short:  # paths of sockets are short
        monkeypatch.setenv("TMPDIR", short)
        with Agent(tmp_path) as killed:
            left = Path(killed.greet()["sockets"])
            killed.process.kill()
            killed.process.wait(GUARD_S)
            assert spool.table_path(left).stat().st_mode & 0o777 == 0o600
            other = left.with_name(f"{spool.PREFIX}other")
            (other / "folder").mkdir(parents=True)
            with Agent(tmp_path) as used:
                in_use = Path(used.greet(host=False)["sockets"])
                assert {folder.parent for folder in (left, in_use)} == {Path(short)}
                with Agent(tmp_path) as later:
                    later.greet(host=False)
                    assert left.exists()
                with Agent(tmp_path) as later:
                    later.greet(host=True)
                assert not left.exists() and in_use.exists()
                assert not spool.table_path(left).exists() and spool.table_path(in_use).exists()
        assert (other / "folder").exists()  # an agent makes no folders
