"""What does a replay cost its controller? The replayer runs in virtual time against modelled agents.

The agents are modelled: they answer each message as an agent would, after a fixed time, and send heartbeats with
samples. Their ranks send the messages of emulated ranks. The replayer, its scheduler and its journal are the real ones;
the clock jumps to the next event. The CPU time of the process, without that of the model, is thus the cost of the
controller, whatever the size of the machine that runs this.

    python controller.py --nodes 1000 --jobs 10000 --hours 1
    python controller.py --nodes 10000 --jobs 1000000 --hours 24 --heartbeat 60 --then
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import heapq
import itertools
import pstats
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

import tracebed.api as tb
from tracebed.ground import system
from tracebed.ground.system import World
from tracebed.orchestrator.replay.ending import ended_run
from tracebed.orchestrator.replay.journal import Journal
from tracebed.orchestrator.replay.loop import Replayer
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.recovery import facts_of, recovered
from tracebed.orchestrator.replay.resumption import Resumption
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.run import RunInfo, workload_facts
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Event
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

LATENCY_S = 0.005
"""Time between a message to an agent and its answer, s."""
CORES = 8
"""Cores of each node."""
LOAD = 0.7
"""Offered load."""
HOST = {"cpus": 64, "busy_s": 0.0, "steal_s": 0.0, "cpu": 0.0, "io": 0.0, "memory": 0.0}


class VirtualTime(World):
    """A world whose clock stands at the time of the last event."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class _Job:
    """A job on modelled agents: its ranks, and how far it is."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        self.name = message["job"]
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
    """Modelled agents in virtual time, on a clock that `receive` moves."""

    family = "AF_INET"
    units_per_core_second = EMULATED_RATE

    def __init__(self, count: int, cores: int, clock: VirtualTime, heartbeat_s: float) -> None:
        self.nodes: Sequence[Node] = [Node(f"n{number}", cores, emulated=True) for number in range(1, count + 1)]
        self.hosts: list[dict[str, Any]] = []
        self.agents: dict[str, dict[str, Any]] = {}
        self.out: dict[str, str] = {}
        self.clock = clock
        self.heartbeat_s = heartbeat_s
        self.sent = self.received = 0
        self.cpu_s = 0.0
        self._work_s = 1.0
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
        heapq.heappush(self._queue, (self.clock.now + seconds, next(self._order), node, message))

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        """Answer a message as an agent would, some time later."""
        self.sent += 1
        kind = message["type"]
        self._work_s = message.get("work_s", self._work_s)
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
        elif kind == "kill":
            self._kill(message["job"], node)
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
            job.since = self.clock.now + LATENCY_S
            self._later(LATENCY_S, self._index[job.members[0]], {"type": "started", "job": name})
            for rank in job.members:
                self._work(name, rank, self._index[rank])
            self._progress(name)
            self._end_later(name)

    def _resize_if_complete(self, name: str) -> None:
        job = self._jobs[name]
        if job.pending is None or job.since is None or not job.joined >= set(job.pending["members"]):
            return
        at = self.clock.now + LATENCY_S
        job.done += max(0.0, at - job.since) / job.duration()
        job.since = max(job.since, at)
        left = set(job.members) - set(job.pending["members"])
        joined = [rank for rank in job.pending["members"] if rank not in set(job.members)]
        job.members, request, job.pending = list(job.pending["members"]), job.pending["request"], None
        job.joined = set(job.members)
        leader = self._index[job.members[0]]
        resized = {"type": "resized", "job": name, "request": request, "members": job.members, "iteration": 1}
        self._later(LATENCY_S, leader, resized | {"decided": at, "applied": at})
        for rank in joined:
            self._work(job.name, rank, self._index[rank])
        for rank in sorted(left):
            self._later(2 * LATENCY_S, self._index[rank], self._ended(name, rank, "released", leader=False))
        self._end_later(name)

    def _kill(self, name: str, node: int) -> None:
        """End the rank on a node, and with the leader the job."""
        job, rank = self._jobs.get(name), self.nodes[node].name
        if job is None or rank not in job.members:
            return
        leader = rank == job.members[0]
        self._later(LATENCY_S, node, self._ended(name, rank, "", leader=leader) | {"state": "killed"})
        job.version += 1
        job.members.remove(rank)
        if not job.members:
            del self._jobs[name]

    def _end_later(self, name: str) -> None:
        job = self._jobs[name]
        assert job.since is not None
        job.version += 1
        seconds = max(LATENCY_S, job.since - self.clock.now) + max(0.0, 1 - job.done) * job.duration()
        self._later(seconds, 0, {"type": "over", "job": name, "version": job.version})

    def _ended(self, name: str, rank: str, reason: str, *, leader: bool) -> dict[str, Any]:
        facts = {"exit_code": 0, "units_done": 1, "cpu_s": 0.0, "planned_s": 1.0, "late_s": 0.0, "overruns": 0}
        ended = {"type": "ended", "job": name, "rank": rank, "leader": leader, "state": "completed", "reason": reason}
        return ended | facts | {"residual_s": 0.0 if leader else None}

    def receive(self, until: float | None) -> list[Event]:
        """Move the clock to the next event, or to `until`, and return the events of that time."""
        begun = time.process_time()
        events = self._receive(float("inf") if until is None else until)
        self.received += len(events)
        self.cpu_s += time.process_time() - begun
        return events

    def _receive(self, limit: float) -> list[Event]:
        events: list[Event] = []
        while self._queue and self._queue[0][0] <= (self.clock.now if events else limit):
            self.clock.now, _, node, message = heapq.heappop(self._queue)
            kind = message["type"]
            if kind == "over":
                self._over(message)
                continue
            if kind == "work due":
                if not self._work(message["job"], message["rank"], node):
                    continue
                message = self._worked(message["job"], message["rank"])
            elif kind == "progress" and not self._progress(message["job"]):
                continue
            elif kind == "heartbeat":
                if not message.get("once"):
                    self._later(self.heartbeat_s, node, message)
                sample = {"cpu_s": self.clock.now / 100} | ({"host": HOST} if node == 0 else {})
                message = {"type": "heartbeat", "jobs": [], "late_s": 0.0001, "sample": sample}
            events.append(Event(node, message | {"time": self.clock.now}, self.clock.now))
        if not events:
            self.clock.now = max(self.clock.now, limit)
        return events

    def _over(self, message: Mapping[str, Any]) -> None:
        name = message["job"]
        job = self._jobs.get(name)
        if job is None or job.version != message["version"]:
            return
        del self._jobs[name]
        for rank in job.members:
            self._later(0.0, self._index[rank], self._worked(name, rank))
            ended = self._ended(name, rank, "", leader=rank == job.members[0])
            self._later(0.0, self._index[rank], ended)

    def _work(self, name: str, rank: str, node: int) -> bool:
        """Return whether the rank still runs, and let it send its next message `work` later."""
        job = self._jobs.get(name)
        if running := job is not None and rank in job.members:
            self._later(self._work_s, node, {"type": "work due", "job": name, "rank": rank})
        return running

    def _progress(self, name: str) -> bool:
        """Return whether the job still runs, and let its leader send its next message `progress` later."""
        job = self._jobs.get(name)
        if job is not None:
            self._later(self._work_s / 2, self._index[job.members[0]], {"type": "progress", "job": name})
        return job is not None

    def _worked(self, name: str, rank: str) -> dict[str, Any]:
        samples = [[round(self.clock.now, 6), 123456, 0.012345, 0.987654, 0.000123]]
        return {"type": "work", "job": name, "rank": rank, "samples": samples}


def draw(nodes: int, jobs: int, widest: int, *, malleable: float, limit: float) -> tb.Workload:
    """Draw jobs of 1 to `widest` nodes at an offered load of `LOAD`. `limit`: time limit over run time; 0: none."""
    drawn = tb.scale(tb.generate("lublin99", nodes=widest, jobs=jobs, seed=1), nodes=widest, cores_per_node=CORES)
    scaled = tb.scale(drawn, run_time=LOAD * nodes * drawn.span / drawn.work.sum())
    made = tb.make_malleable(scaled, share=malleable, seed=1)
    if not limit:
        return made
    return tb.Workload(made.table.assign(time_limit=limit * made.floats("run_time")), made.provenance)


def measure(chosen: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Replay a workload against modelled agents, and return what it costs the controller."""
    workload = draw(chosen.nodes, chosen.jobs, chosen.widest, malleable=chosen.malleable, limit=chosen.limit)
    speed = workload.span / (3600 * chosen.hours)
    given = Setup.of(chosen.policy, speed=speed, over_limit=chosen.over_limit)
    setup, policy = given.resolved(chosen.nodes)
    jobs = Jobs.of(workload, cores_per_node=CORES, over_limit=setup.scheduling.over_limit)
    clock = VirtualTime()
    testbed = ModelledTestbed(chosen.nodes, CORES, clock, chosen.heartbeat)
    inventory = Inventory("modelled", "modelled", tuple(testbed.nodes), heartbeat_s=chosen.heartbeat)
    info = RunInfo("replay", "emulated", inventory.facts, workload_facts(workload, "drawn"), setup)
    thresholds = HealthThresholds.read()

    def make(journal: Journal) -> Replayer:
        return Replayer(jobs, testbed, inventory, policy, setup, Options(), journal, secret=b"secret")

    gc.collect()
    before, path = _memory_mib(), folder / "journal"
    with system.using(clock), closing(Journal(path, facts_of(info, jobs, inventory, thresholds))) as journal:
        replayer = make(journal)
        begun, start = time.process_time(), clock.now
        replayer.run()
        cpu_s, wall_s = time.process_time() - begun - testbed.cpu_s, clock.now - start
        replayer.close()
    messages, after = testbed.sent + testbed.received, _memory_mib()
    found = {
        "wall_h": wall_s / 3600,
        "speed": speed,
        "nodes_a_job": sum(jobs.nodes) / len(jobs),
        "completed": sum(state == "completed" for state in replayer.record.state),
        "messages": messages,
        "messages_a_job": messages / len(jobs),
        "cpu_s": cpu_s,
        "cpu_us_a_message": 1e6 * cpu_s / messages,
        "cores": cpu_s / wall_s,
        "journal_mib": path.stat().st_size / 2**20,
        "memory_mib": after,
        "memory_grown_mib": after - before,
        "model_cpu_s": testbed.cpu_s,
    }
    if not chosen.then:
        return found
    begun = time.process_time()
    ended_run(replayer.record, replayer.cluster, info, None, [()] * chosen.nodes, replayer.monitor, thresholds)
    found |= {"run_cpu_s": time.process_time() - begun, "run_memory_mib": _memory_mib()}
    del replayer
    begun = time.process_time()
    past = Resumption(path)
    found |= {"load_cpu_s": time.process_time() - begun}
    with system.using(clock), closing(Journal(folder / "again", {})) as again:
        begun = time.process_time()
        resumed = make(again)
        past.restore(resumed)
        found |= {"restore_cpu_s": time.process_time() - begun, "restore_memory_mib": _memory_mib()}
    del past, resumed
    gc.collect()
    begun = time.process_time()
    recovered(path)
    return found | {"recover_cpu_s": time.process_time() - begun, "recover_memory_mib": _memory_mib()}


def _memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--widest", type=int, default=128, help="nodes of the widest job")
    parser.add_argument("--hours", type=float, default=1.0, help="span of the submissions in the replay, wall hours")
    parser.add_argument("--policy", default="easy")
    parser.add_argument("--malleable", type=float, default=0.5, help="share of malleable jobs")
    parser.add_argument("--heartbeat", type=float, default=1.0)
    parser.add_argument("--over-limit", default="extend")
    parser.add_argument("--limit", type=float, default=0.0, help="time limit over run time; 0: no limits")
    parser.add_argument("--then", action="store_true", help="also make the run, resume the journal and recover it")
    parser.add_argument("--profile", action="store_true", help="print the functions with the most CPU time")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profile = cProfile.Profile() if chosen.profile else None
        found = profile.runcall(measure, chosen, Path(folder)) if profile else measure(chosen, Path(folder))
    for name, value in found.items():
        click.echo(f"{name:20} {value:,.4g}")
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
