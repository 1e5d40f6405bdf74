"""The agent of a node: the time from a mask to its application, and what an agent with many jobs costs."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.servers.agents import FOREVER, Agent
from tracebed.benchmarks import kernels
from tracebed.benchmarks.program import Program
from tracebed.ground.cpus import format_cpus, parse_cpus

CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]
CHANGES = 300
CHUNK_S = 0.002
"""Time of an iteration on two CPUs. A mask takes effect at its end."""
JOBS = 200
WATCHED_S = 10.0


def show(benchmark: Any, text: str, **figures: Any) -> None:
    """Print figures, and store them with the benchmark."""
    benchmark.extra_info.update(figures)
    print(f"\n{text}")  # noqa: T201


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_from_a_mask_to_its_application(benchmark: Any, tmp_path: Path) -> None:
    """2 -> 1 -> 2 CPUs of a computing rank, from the change of the table to the use of the CPUs."""
    node = {"name": "n1", "cores": 2, "cpus": format_cpus(CPUS), "emulated": False}
    program = Program.lasting(3600.0, 1, 2, kernels.calibrate(), grain_s=CHUNK_S)
    with Agent(tmp_path, node=node) as agent:
        agent.greet()
        agent.start("1", program, cpus=node["cpus"], cores=2, duty=1)

        def changes() -> list[tuple[float, float]]:
            found = []
            for request in range(1, CHANGES + 1):
                time.sleep(0.02)
                cpus = CPUS[: 1 + request % 2]
                agent.tell({"type": "resize", "job": "1", "cpus": format_cpus(cpus), "request": request})
                answer = agent.hear("resized")
                assert parse_cpus(answer["cpus"]) == cpus
                before = 3 - len(cpus)
                found.append((answer["applied"] - answer["asked"], CHUNK_S * 2 / before))
            return found

        found = sorted(wait - chunk for wait, chunk in benchmark.pedantic(changes, rounds=1))
        agent.tell({"type": "kill", "job": "1", "reason": "enough"})
        agent.hear("ended")
    median, p99 = (1e3 * found[int(CHANGES * part)] for part in (0.5, 0.99))
    text = f"{CHANGES} masks, time from set to applied above one chunk: median {median:.2f} ms, p99 {p99:.2f} ms"
    show(benchmark, text, median_ms=median, p99_ms=p99)
    assert median < 2 and p99 < 10


@pytest.mark.parametrize("points", ["idle", "a malleability point each second"])
def test_an_agent_with_two_hundred_jobs(benchmark: Any, tmp_path: Path, points: str) -> None:
    """The CPU time and the memory of the agent itself while its jobs run, with a heartbeat each second."""
    node = {"name": "n1", "cores": JOBS, "cpus": None, "emulated": True}
    work = FOREVER._replace(iterations=1) if points == "idle" else FOREVER
    with Agent(tmp_path, node=node) as agent:
        agent.greet(heartbeat_s=1.0)
        for job in range(JOBS):
            agent.launch(str(job), work, cpus=str(job), cores=1)
        for _ in range(JOBS):
            agent.hear("started")
        process = psutil.Process(agent.process.pid)

        def used() -> float:
            begun = process.cpu_times()
            time.sleep(WATCHED_S)
            ended = process.cpu_times()
            return float(ended.user + ended.system - begun.user - begun.system) / WATCHED_S

        share = benchmark.pedantic(used, rounds=1)
        memory = process.memory_info().rss / 2**20
        ranks = [psutil.Process(rank.pid).memory_info().rss / 2**20 for rank in agent.children()]
    text = f"{JOBS} jobs, {points}: {share:.3f} cores, {memory:.1f} MiB; a rank {statistics.median(ranks):.1f} MiB"
    show(benchmark, text, cores=share, memory_mib=memory)
    assert memory < 60
    assert share < 0.02 or points != "idle"
