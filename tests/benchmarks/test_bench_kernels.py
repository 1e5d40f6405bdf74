"""The cost of malleability, and the bandwidth of memory-bound units. On an otherwise idle machine with two CPUs.

The two sides of a comparison take turns, and medians of the pairs are compared.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agents import Agent
from team import Team, share
from tracebed import malleable
from tracebed.benchmarks import kernels
from tracebed.benchmarks.applications import registry
from tracebed.benchmarks.drom import TABLE, Administrator
from tracebed.benchmarks.kernels.stream import BLOCK, ELEMENT, unit_kernel
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.program import Program

CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]
PAIRS = 7
JOB_S = 2.0
GRAIN_S = 0.05
ITERATION_S = 0.005
"""Time of an iteration on two CPUs."""
pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the medians of both sides, and of their ratio."""
    first, second = zip(*pairs, strict=True)
    return statistics.median(first), statistics.median(second), statistics.median(x / y for x, y in pairs)


def show(benchmark: Any, text: str, **figures: Any) -> None:
    """Print figures, and store them with the benchmark."""
    benchmark.extra_info.update(figures)
    print(f"\n{text}")  # noqa: T201


def in_turns(ours: Callable[[], Any], theirs: Callable[[], Any], pairs: int = PAIRS) -> list[tuple[Any, Any]]:
    """Return the results of pairs. The order of a pair alternates."""
    found = []
    for pair in range(pairs):
        if pair % 2:
            found.append((ours(), theirs()))
        else:
            other = theirs()
            found.append((ours(), other))
    return found


@contextmanager
def administrator(folder: Path) -> Iterator[Administrator]:
    """Make a table of the CPUs, and prepare all of them for this process."""
    table = NodeTable.create(folder / "node", CPUS)
    made = Administrator(table)
    assert not made.prepare(os.getpid(), CPUS)[0].error
    os.environ[TABLE] = str(table.path)
    try:
        yield made
    finally:
        del os.environ[TABLE]
        table.close()
        table.path.unlink()


def test_polling_costs_less_than_one_percent(benchmark: Any, tmp_path: Path) -> None:
    """The time of a poll without a change, in iterations of 5 ms."""
    with administrator(tmp_path), malleable.attach() as program:
        times = benchmark.pedantic(timeit.repeat, (program.poll,), {"number": 10_000}, rounds=1)
    poll_s = min(times) / 10_000
    show(benchmark, f"a poll: {1e6 * poll_s:.2f} us, {poll_s / ITERATION_S:.3%} of an iteration", poll_s=poll_s)
    assert poll_s / ITERATION_S < 0.01


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_job_costs_less_than_one_percent(benchmark: Any, tmp_path: Path, cpus: int) -> None:
    """A rank of a job, with its messages and its heartbeat file, against threads with the same barriers."""
    used = CPUS[:cpus]
    program = Program.lasting(JOB_S, 1, cpus, kernels.calibrate(), grain_s=GRAIN_S)
    numbers = iter(range(10**6))

    def bare() -> float:
        size, iterations = program.parallel_units, program.iterations
        with Team(used) as team:
            begun = time.monotonic()
            for iteration in range(iterations):
                first, units = share(size, iterations, iteration)

                def work(index: int, threads: int, first: int = first, units: int = units) -> None:
                    begin, count = share(units, threads, index)
                    kernels.compute(first + begin, count)

                team.run(work)
            return 1 / (time.monotonic() - begun)

    node = {"name": "n1", "cores": cpus, "cpus": ",".join(map(str, used)), "emulated": False}
    with Agent(tmp_path, node=node) as agent:
        agent.greet()

        def job() -> float:
            agent.launch(str(next(numbers)), program, cpus=node["cpus"], cores=cpus, duty=1)
            begun = agent.hear("started")["time"]
            heard = len(agent.heard)
            assert agent.hear("ended")["state"] == "completed"
            works = [message for message in agent.heard[heard:] if message["type"] == "work"]
            return float(1 / (works[-1]["samples"][-1][0] - begun))  # without the end of the process

        pairs = benchmark.pedantic(in_turns, (job, bare), rounds=1)
    ratio = medians(pairs)[2]
    show(benchmark, f"throughput of a job on {cpus} CPUs over that of bare threads: {ratio:.4f}", ratio=ratio)
    assert ratio > 0.99


RESIZER = """
import sys, time
from pathlib import Path
from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.ownership import DromResult, Flags
path, pid, *cpus = sys.argv[1:]
administrator, cpus = Administrator(NodeTable(Path(path))), [int(cpu) for cpu in cpus]
while True:
    for mask in (cpus[:1], cpus):
        time.sleep(0.1)
        begun = time.monotonic()
        if administrator.set_mask(int(pid), mask, Flags.SYNC) is not DromResult.SUCCESS:
            sys.exit()
        print(time.monotonic() - begun, flush=True)
"""
"""An administrator that shrinks and expands a process until it ends. It prints the times from set to applied, s."""


def test_a_shrink_loses_less_than_two_percent(benchmark: Any, tmp_path: Path) -> None:
    """2 -> 1 -> 2 CPUs every 0.2 s, in iterations of 5 ms: the work per core and second, and the time to apply."""
    units = round(2 * kernels.calibrate() * ITERATION_S)
    latencies: list[float] = []

    def work(index: int, threads: int) -> None:
        first, count = share(units, threads, index)
        kernels.compute(first, count)

    def run(*, resized: bool) -> float:
        core_s, sizes = 0.0, set()
        with administrator(tmp_path) as admin, malleable.attach(pin=False) as program, Team(program.cpus) as team:
            command = [sys.executable, "-c", RESIZER, str(admin.table.path), str(os.getpid()), *map(str, CPUS)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True) if resized else None
            try:
                for _ in range(600):
                    if program.poll():
                        team.resize(program.cpus)
                    begun = time.monotonic()
                    team.run(work)
                    core_s += len(team.cpus) * (time.monotonic() - begun)
                    sizes.add(len(team.cpus))
            finally:
                if process is not None:
                    process.kill()
                    latencies.extend(float(line) for line in process.communicate()[0].splitlines())
        assert sizes == ({1, 2} if resized else {2})
        return 600 * units / core_s

    pairs = benchmark.pedantic(in_turns, (lambda: run(resized=True), lambda: run(resized=False)), rounds=1)
    ratio = medians(pairs)[2]
    latencies.sort()
    late_ms = [1e3 * latencies[int(len(latencies) * part)] for part in (0.5, 0.99)]
    show(benchmark, f"work per core and second over undisturbed: {ratio:.4f}", ratio=ratio)
    text = f"median {late_ms[0]:.2f} ms, p99 {late_ms[1]:.2f} ms of {len(latencies)} changes"
    show(benchmark, f"from set to applied, iterations of 5 ms: {text}", applied_ms=late_ms)
    assert ratio > 0.98


def test_bandwidth_of_the_application_stream(benchmark: Any) -> None:
    """GB/s of the units of a core alone, and of each of two cores; units per core and second."""
    kernel, units = unit_kernel(registry.load("stream", {}).own_mib), 4000

    def work(index: int, size: int) -> None:
        kernel(units * index, units)

    def run(threads: int) -> float:
        with Team(CPUS[:threads]) as team:
            begun = time.perf_counter()
            team.run(work)
            return units / (time.perf_counter() - begun)

    run(2)
    alone, both, ratio = medians(benchmark.pedantic(in_turns, (lambda: run(1), lambda: run(2)), rounds=1))
    gigabytes = 3 * BLOCK * ELEMENT / 1e9
    text = f"one core: {alone:,.0f} units/s, {alone * gigabytes:.1f} GB/s; two: {both * gigabytes:.1f} GB/s each"
    show(benchmark, text, alone=alone, both=both)
    assert ratio > 0.9  # a core alone is not slower
