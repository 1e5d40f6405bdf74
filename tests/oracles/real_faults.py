"""Scenarios of the virtual testbed on real processes: emulated nodes of the provider `local`, with the same faults.

As a program, this module replays the scenarios that it reads (pickled) from its standard input, a few at a time, each
in a child process, which a fault may kill. The run of a scenario is in the folder `N/run`, its errors in `N/errors`.
"""

from __future__ import annotations

import functools
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.faults.scenario import CORES, HEARTBEAT_S, Scenario
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.replay.journal import Entry, Journal
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.testbeds import local
from tracebed.orchestrator.testbeds.local import LocalChannel, LocalProvider
from tracebed.orchestrator.testbeds.nodes import AGENTS, Inventory, Node
from tracebed.orchestrator.testbeds.testbed import AgentTestbed
from tracebed.testing.virtual.faults import Fault

AT_ONCE = 8
"""Number of scenarios that are replayed at a time."""
AGAIN = 3
"""Exit status of a controller whose disk was full: the replay is to be resumed."""
CUTTABLE = f"""
import os, select, signal, subprocess, time
controller = os.getppid()
class Cut(Exception): pass
def cut(*_): raise Cut
signal.signal(signal.SIGUSR1, cut)
agent = subprocess.Popen({local.AGENT!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
ways = {{0: agent.stdin.fileno(), agent.stdout.fileno(): 1}}
try:
    while agent.stdout.fileno() in ways:
        for source in select.select([*ways], [], [])[0]:
            data = os.read(source, 65536)
            while data:
                data = data[os.write(ways[source], data):]
                if not data: break
            else:
                os.close(ways.pop(source))
    agent.wait()
except Cut:
    for descriptor in {{*ways, *ways.values()}}: os.close(descriptor)
    while os.getppid() == controller: time.sleep(0.1)
if agent.returncode < 0: os.kill(os.getpid(), -agent.returncode)
"""
"""A program that starts an agent and passes its messages on, until SIGUSR1: then it closes both connections, and ends
with its controller."""


class Striker:
    """The faults of a scenario, done to the controller in whose process it lives, and to the agents of the controller.

    `note` is called before each fault strikes.
    """

    def __init__(self, faults: Iterable[Fault], note: Callable[[], None]) -> None:
        self.following, self.note = deque(faults), note
        self.off: dict[str, float] = {}
        """Node that does not start agents -> the monotonic time until which it does not."""
        self.testbed: AgentTestbed

    def arm(self) -> None:
        """Watch the journal, the testbed and the provider of this process."""
        write, start, run = Journal.write, AgentTestbed.start, LocalProvider.run
        cuttable = any(fault.kind == "cut_connection" for fault in self.following)

        def written(journal: Journal, entries: Iterable[Entry]) -> None:
            entries = list(entries)
            write(journal, entries)
            for entry in entries:
                self.written(entry.kind, entry.job or entry.node or "")

        def started(testbed: AgentTestbed, adopt: Any = None) -> None:
            self.testbed = testbed
            start(testbed, adopt)

        def unless_off(provider: LocalProvider, node: Node, arguments: Sequence[str]) -> LocalChannel:
            if time.monotonic() < self.off.get(node.name, 0.0):
                raise TestbedError("the node cannot be reached", where=f"node {node.name}", transient=True)
            if cuttable and not arguments:
                provider.command = [sys.executable, "-c", CUTTABLE]
            return run(provider, node, arguments)

        Journal.write, AgentTestbed.start = written, started  # type: ignore[method-assign]
        LocalProvider.run = unless_off  # type: ignore[method-assign]

    def written(self, kind: str, name: str) -> None:
        """Let the next fault that waits for this entry of the journal strike."""
        if self.following and self.following[0].after == f"{kind} {name}":
            fault = self.following.popleft()
            self.note()
            getattr(self, fault.kind)(fault)

    def _agent(self, fault: Fault) -> psutil.Process:
        return psutil.Process(self.testbed.agents[fault.node]["pid"])

    def _rank(self, fault: Fault) -> psutil.Process:
        ranks = sorted(self._agent(fault).children(), key=lambda rank: rank.pid)
        return ranks[int(fault.draw * len(ranks)) % len(ranks)]

    def _stop(self, process: psutil.Process, fault: Fault) -> None:
        process.suspend()
        threading.Timer(fault.seconds, process.resume).start()

    def kill_agent(self, fault: Fault) -> None:
        self._agent(fault).kill()

    def crash(self, fault: Fault) -> None:
        self.off[fault.node] = time.monotonic() + fault.seconds
        self._agent(fault).kill()

    def hang(self, fault: Fault) -> None:
        self._stop(self._agent(fault), fault)

    def cut_connection(self, fault: Fault) -> None:
        relay = self._agent(fault).parent()
        assert relay is not None and relay.pid != os.getpid()
        relay.send_signal(signal.SIGUSR1)

    def kill_rank(self, fault: Fault) -> None:
        self._rank(fault).kill()

    def stop_rank(self, fault: Fault) -> None:
        self._stop(self._rank(fault), fault)

    def kill(self, fault: Fault) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def terminate(self, fault: Fault) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def disk_full(self, fault: Fault) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # each write to a file fails


KINDS = ("kill_agent", "crash", "hang", "cut_connection", "kill_rank", "stop_rank", "kill", "terminate", "disk_full")
"""The faults that real processes can suffer here."""


# -- the program -------------------------------------------------------------------------------------------------------


class Story(NamedTuple):
    """A scenario, and the folder of its run."""

    scenario: Scenario
    folder: Path

    @property
    def struck(self) -> int:
        """The number of faults that have struck."""
        file = self.folder / "struck"
        return file.stat().st_size if file.exists() else 0

    def start(self) -> int:
        """Start a controller, which continues the replay if there is one, and return its PID."""
        if child := os.fork():
            return child
        status = 1
        try:
            status = self._control()
        except BaseException:  # noqa: BLE001  a child process must not return into the loop of its parent
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _control(self) -> int:
        scenario, struck = self.scenario, self.struck
        errors = os.open(self.folder / "errors", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(errors, 2)
        os.dup2(errors, 1)
        if struck:
            time.sleep(scenario.faults[struck - 1].seconds)
        striker = Striker(
            scenario.faults[struck:], functools.partial(os.write, os.open(self.folder / "struck", 0o2101), b"x")
        )
        striker.arm()
        nodes = tuple(Node(f"v{number}", CORES, emulated=True) for number in range(1, scenario.nodes + 1))
        inventory = Inventory("real", AGENTS, nodes, heartbeat_s=HEARTBEAT_S)
        options = Options(on_node_failure=scenario.on_node_failure)
        output, resumed = self.folder / "run", struck > 0
        try:
            replay(scenario.workload, inventory, scenario.setup, output, options=options, resume=resumed)
        except (InputError, KeyboardInterrupt):
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            traceback.print_exc()
            return AGAIN if scenario.faults[self.struck - 1].kind == "disk_full" else 0
        return 0


def main(folder: Path, scenarios: Sequence[Scenario]) -> None:
    """Replay scenarios, a few at a time. A replay whose controller was killed is resumed."""
    waiting, running = deque(range(len(scenarios))), dict[int, Story]()
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            number = waiting.popleft()
            story = Story(scenarios[number], folder / str(number))
            story.folder.mkdir()
            running[story.start()] = story
        child, status = os.wait()
        story = running.pop(child)
        if os.waitstatus_to_exitcode(status) in (-signal.SIGKILL, AGAIN):
            running[story.start()] = story


def replay_all(scenarios: Sequence[Scenario], folder: Path, guard_s: float) -> list[Path]:
    """Replay scenarios on real processes, and return the folder of each of them."""
    command = [sys.executable, "-m", __name__, str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    given = pickle.dumps(scenarios)
    subprocess.run(command, input=given, check=True, timeout=guard_s, cwd=folder, env=environment)
    return [folder / str(number) for number in range(len(scenarios))]


def slowed(scenario: Scenario, factor: float, seed: int = 0) -> Scenario:
    """Return a scenario in which everything but tracebed itself takes `factor` times as long, and with another seed."""
    faults = tuple(fault._replace(seconds=fault.seconds * factor) for fault in scenario.faults)
    return replace(scenario, seed=scenario.seed + seed, speed=scenario.speed / factor, faults=faults)


if __name__ == "__main__":
    main(Path(sys.argv[1]), pickle.load(sys.stdin.buffer))
