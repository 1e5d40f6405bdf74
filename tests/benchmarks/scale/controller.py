"""What does a replay cost its controller? The replayer runs in virtual time against modelled agents.

The agents are modelled: they answer each message as an agent would, after a fixed time, and send heartbeats with
samples. The replayer, its scheduler and its journal are the real ones; the clock jumps to the next event. The CPU time
of the process is thus the cost of the controller, whatever the size of the machine that runs this.

    python controller.py --nodes 500 --jobs 10000
    python controller.py --table --heartbeat 10 --speed 1000     # the table of docs/explanation/scale.md
"""

from __future__ import annotations

import argparse
import gc
import heapq
import itertools
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import click

import tracebed.api as tb
from tracebed.benchmarks.clock import Clock
from tracebed.orchestrator.replay import event_handler, loop, outages, rounds
from tracebed.orchestrator.replay.journal import Journal
from tracebed.orchestrator.replay.loop import Options, Replayer
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Event
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

LATENCY_S = 0.005
"""Time between a message to an agent and its answer, s."""
TABLE = ((100, 1_000), (500, 10_000), (2_000, 3_000))
"""Nodes and jobs of the rows of the table, each in a process of its own, for its memory."""
HOST = {"cpus": 64, "busy_s": 0.0, "steal_s": 0.0, "cpu": 0.0, "io": 0.0, "memory": 0.0}


class VirtualClock(Clock):
    """A clock that stands at the time of the last event."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def at(self, monotonic: float) -> float:
        return monotonic


class _Job:
    """A job on modelled agents: its ranks, and how far it is."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        self.members = list(message["members"])
        self.program = message["program"]
        self.cores = message["cores"]
        self.joined = {message["rank"]}
        self.done = 0.0
        self.since: float | None = None
        self.version = 0
        self.pending: Mapping[str, Any] | None = None

    def duration(self) -> float:
        """Return the time of the whole work on the present members, s."""
        program = self.program
        parallel = program["parallel_units"] / (self.cores * len(self.members))
        return float((program["serial_units"] + parallel) / program["rate"])


class ModelledTestbed:
    """Modelled agents in virtual time.

    Args:
        count: number of nodes.
        cores: cores of each node.
        clock: the clock, which `receive` moves.
        heartbeat_s: time between two heartbeats of an agent, s.
    """

    family = "AF_INET"
    units_per_core_second = EMULATED_RATE

    def __init__(self, count: int, cores: int, clock: VirtualClock, heartbeat_s: float) -> None:
        self.nodes: Sequence[Node] = [Node(f"n{number}", cores, emulated=True) for number in range(1, count + 1)]
        self.hosts: list[dict[str, Any]] = []
        self.agents: dict[str, dict[str, Any]] = {}
        self.out: dict[str, str] = {}
        self.clock = clock
        self.heartbeat_s = heartbeat_s
        self.sent = self.received = 0
        self._queue: list[tuple[float, int, int, dict[str, Any]]] = []
        self._order = itertools.count()
        self._jobs: dict[str, _Job] = {}
        self._index = {node.name: number for number, node in enumerate(self.nodes)}
        for number in range(count):
            self._later(heartbeat_s * number / count, number, {"type": "heartbeat"})

    def start(self, *args: Any) -> None:
        """Do nothing: the agents are modelled."""

    def stop(self) -> None:
        """Do nothing: the agents are modelled."""

    def drop(self, node: int, reason: str) -> None:
        """Do nothing: no modelled agent is lost."""

    def _later(self, seconds: float, node: int, message: dict[str, Any]) -> None:
        heapq.heappush(self._queue, (self.clock.time + seconds, next(self._order), node, message))

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        """Answer a message as an agent would, some time later."""
        self.sent += 1
        kind = message["type"]
        if kind == "launch" and message["leader"]:
            self._jobs[message["job"]] = _Job(message)
            self._later(
                LATENCY_S,
                node,
                {"type": "listening", "job": message["job"], "rank": message["rank"]} | {"address": ["10.0.0.1", 4000]},
            )
            self._start_if_complete(message["job"])
        elif kind == "launch":
            self._jobs[message["job"]].joined.add(message["rank"])
            self._start_if_complete(message["job"])
            self._resize_if_complete(message["job"])
        elif kind == "resize":
            self._jobs[message["job"]].pending = message
            self._resize_if_complete(message["job"])
        elif kind == "sample":
            self._later(LATENCY_S, node, {"type": "heartbeat", "once": True})
            if message["calibrate"]:
                self._later(LATENCY_S, node, {"type": "calibrated", "units_per_core_second": None})

    def _start_if_complete(self, name: str) -> None:
        job = self._jobs[name]
        if job.since is None and job.joined >= set(job.members):
            job.since = self.clock.time + LATENCY_S
            self._later(LATENCY_S, self._index[job.members[0]], {"type": "started", "job": name})
            self._end_later(name)

    def _resize_if_complete(self, name: str) -> None:
        job = self._jobs[name]
        if job.pending is None or job.since is None or not job.joined >= set(job.pending["members"]):
            return
        at = self.clock.time + LATENCY_S
        job.done += max(0.0, at - job.since) / job.duration()
        job.since = max(job.since, at)
        left = set(job.members) - set(job.pending["members"])
        job.members, request, job.pending = list(job.pending["members"]), job.pending["request"], None
        job.joined = set(job.members)
        leader = self._index[job.members[0]]
        resized = {"type": "resized", "job": name, "request": request, "members": job.members, "iteration": 1}
        self._later(LATENCY_S, leader, resized | {"decided": at, "applied": at})
        for rank in left:
            self._later(2 * LATENCY_S, self._index[rank], self._ended(name, rank, "released", leader=False))
        self._end_later(name)

    def _end_later(self, name: str) -> None:
        job = self._jobs[name]
        assert job.since is not None
        job.version += 1
        seconds = max(LATENCY_S, job.since - self.clock.time) + max(0.0, 1 - job.done) * job.duration()
        self._later(seconds, 0, {"type": "over", "job": name, "version": job.version})

    def _ended(self, name: str, rank: str, reason: str, *, leader: bool) -> dict[str, Any]:
        facts = {"exit_code": 0, "units_done": 1, "cpu_s": 0.0, "planned_s": 1.0, "late_s": 0.0, "overruns": 0}
        ended = {"type": "ended", "job": name, "rank": rank, "leader": leader, "state": "completed", "reason": reason}
        return ended | facts | {"residual_s": 0.0 if leader else None}

    def receive(self, until: float | None) -> list[Event]:
        """Move the clock to the next event, or to `until`, and return the events of that time."""
        limit = float("inf") if until is None else until
        events: list[Event] = []
        while self._queue and self._queue[0][0] <= (self.clock.time if events else limit):
            self.clock.time, _, node, message = heapq.heappop(self._queue)
            if message["type"] == "over":
                self._over(message)
                continue
            if message["type"] == "heartbeat":
                if not message.get("once"):
                    self._later(self.heartbeat_s, node, {"type": "heartbeat"})
                sample = {"cpu_s": self.clock.time / 100} | ({"host": HOST} if node == 0 else {})
                message = {"type": "heartbeat", "jobs": [], "late_s": 0.0001, "sample": sample}
            self.received += 1
            events.append(Event(node, message | {"time": self.clock.time}, self.clock.time))
        if not events:
            self.clock.time = max(self.clock.time, limit)
        return events

    def _over(self, message: Mapping[str, Any]) -> None:
        name = message["job"]
        job = self._jobs.get(name)
        if job is None or job.version != message["version"]:
            return
        del self._jobs[name]
        for rank in job.members:
            ended = self._ended(name, rank, "", leader=rank == job.members[0])
            self._later(0.0, self._index[rank], ended)


@contextmanager
def virtual_time(clock: VirtualClock) -> Iterator[None]:
    """Let the replayer read the virtual clock."""
    virtual = mock.Mock(monotonic=clock.now, process_time=time.process_time)
    with ExitStack() as stack:
        for module in (event_handler, loop, outages, rounds):
            stack.enter_context(mock.patch.object(module, "time", virtual))
        yield


def measure(nodes: int, jobs: int, policy: str, heartbeat_s: float, speed: float) -> dict[str, float]:
    """Replay a workload against modelled agents, and return what it costs the controller."""
    drawn = tb.generate("lublin99", nodes=min(nodes, 1024), jobs=jobs, seed=1)
    scaled = tb.scale(drawn, nodes=nodes, cores_per_node=8, load=0.9 * min(1.0, 1024 / nodes))
    workload = Jobs.of(tb.make_malleable(scaled, share=0.5, seed=1), cores_per_node=8)
    clock = VirtualClock()
    testbed = ModelledTestbed(nodes, 8, clock, heartbeat_s)
    inventory = Inventory("modelled", "modelled", tuple(testbed.nodes), heartbeat_s=heartbeat_s)
    with (
        tempfile.TemporaryDirectory() as folder,
        virtual_time(clock),
        closing(Journal(Path(folder) / "journal", {})) as journal,
    ):
        chosen = registry.resolve(policy, {})[1]
        gc.collect()
        before = _memory_mib()
        replayer = Replayer(workload, testbed, inventory, chosen, Options(speed=speed), journal, clock)
        begun, start = time.process_time(), clock.time
        replayer.run()
        cpu_s, wall_s = time.process_time() - begun, clock.time - start
        size = (Path(folder) / "journal").stat().st_size
    messages = testbed.sent + testbed.received
    return {
        "nodes": nodes,
        "jobs": len(workload),
        "heartbeat_s": heartbeat_s,
        "virtual_s": wall_s,
        "cpu_s": cpu_s,
        "cores": cpu_s / wall_s,
        "messages": messages,
        "messages_a_job": messages / len(workload),
        "cpu_us_a_message": 1e6 * cpu_s / messages,
        "journal_mib": size / 2**20,
        "memory_mib": _memory_mib() - before,
    }


def _memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def print_table(policy: str, heartbeat_s: float, speed: float) -> None:
    """Measure all rows of the table, and print it in Markdown."""
    click.echo("| nodes | jobs | messages | CPU per message | CPU | time of the replay | memory | journal |")
    click.echo("|---|---|---|---|---|---|---|---|")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for nodes, jobs in TABLE:
            found = pool.apply(measure, (nodes, jobs, policy, heartbeat_s, speed))
            click.echo(
                f"| {nodes:,} | {jobs:,} | {found['messages']:,.0f} | {found['cpu_us_a_message']:.0f} us "
                f"| {found['cpu_s']:.0f} s | {found['virtual_s']:,.0f} s | {found['memory_mib']:.0f} MiB "
                f"| {found['journal_mib']:.0f} MiB |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--policy", default="easy")
    parser.add_argument("--heartbeat", type=float, default=1.0)
    parser.add_argument("--speed", type=float, default=100.0)
    parser.add_argument("--table", action="store_true", help="print a table for several sizes")
    chosen = parser.parse_args()
    if chosen.table:
        print_table(chosen.policy, chosen.heartbeat, chosen.speed)
        return
    found = measure(chosen.nodes, chosen.jobs, chosen.policy, chosen.heartbeat, chosen.speed)
    for name, value in found.items():
        click.echo(f"{name:20} {value:,.4g}")


if __name__ == "__main__":
    main()
