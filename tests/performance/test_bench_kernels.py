"""The kernels against plain C, and the cost of malleability. On an otherwise idle machine with two CPUs.

The two sides of a comparison take turns, and medians of the pairs are compared.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.servers.agents import Agent
from tracebed import malleable as malleable_program
from tracebed.benchmarks import kernels
from tracebed.benchmarks.applications.base import load_application
from tracebed.benchmarks.drom import TABLE, VARIABLE, Administrator
from tracebed.benchmarks.kernels.stream import BLOCK, ELEMENT, Function, unit_kernel
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.program import Program
from tracebed.benchmarks.standalone import pils, stream
from tracebed.benchmarks.standalone.team import Team, share

CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]
PAIRS = 7
JOB_S = 2.0
GRAIN_S = 0.05
TASKS = 20
"""Tasks of an iteration of PILS, of 0.5 ms each: 5 ms on two CPUs."""
pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
PLAIN = r"""
#include <float.h>
#include <omp.h>
#include <stdio.h>
static double a[N], b[N], c[N];
int main(void)
{
    const double s = 3.0, bytes[] = {16.0 * N, 16.0 * N, 24.0 * N, 24.0 * N};
    double best[] = {DBL_MAX, DBL_MAX, DBL_MAX, DBL_MAX}, error = 0, t;
    #pragma omp parallel for
    for (long i = 0; i < N; i++) { a[i] = 2.0; b[i] = 2.0; c[i] = 0.0; }
    for (int time = 0; time < 10; time++)
        for (int kernel = 0; kernel < 4; kernel++) {
            t = omp_get_wtime();
            if (kernel == 0) {
                #pragma omp parallel for
                for (long i = 0; i < N; i++) c[i] = a[i];
            } else if (kernel == 1) {
                #pragma omp parallel for
                for (long i = 0; i < N; i++) b[i] = s * c[i];
            } else if (kernel == 2) {
                #pragma omp parallel for
                for (long i = 0; i < N; i++) c[i] = a[i] + b[i];
            } else {
                #pragma omp parallel for
                for (long i = 0; i < N; i++) a[i] = b[i] + s * c[i];
            }
            t = omp_get_wtime() - t;
            if (time > 0 && t < best[kernel]) best[kernel] = t;
        }
    for (long i = 0; i < N; i++) error += a[i] - a[0] + b[i] - b[0] + c[i] - c[0];
    if (error != 0.0 || a[0] != 1153300781250.0) return 1;
    for (int kernel = 0; kernel < 4; kernel++) printf("%.9g\n", bytes[kernel] / best[kernel] / 1e6);
    return 0;
}
"""
"""STREAM, written from its definition: best of ten repetitions, the first left out, MB/s of the four kernels."""


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


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize("threads", [1, 2])
def test_stream_is_as_fast_as_plain_c(benchmark: Any, tmp_path: Path, threads: int) -> None:
    elements = max(stream.ELEMENTS, stream.least_elements(stream.last_level_cache(CPUS)))
    (tmp_path / "plain.c").write_text(PLAIN)
    options = ("-O3", "-fopenmp", "-mcmodel=medium", f"-DN={elements}L")
    subprocess.run(["gcc", *options, "plain.c", "-o", "plain"], cwd=tmp_path, check=True)
    places = ",".join(f"{{{cpu}}}" for cpu in CPUS[:threads])
    variables = {"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "true", "OMP_PLACES": places}

    def plain() -> list[float]:
        command, environment = [str(tmp_path / "plain")], os.environ | variables
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return [float(line) for line in done.stdout.split()]

    def ours() -> list[float]:
        result = stream.run(elements, threads=threads)
        assert result.valid
        return [row.mb_per_s for row in result.table(threads)]

    pairs = benchmark.pedantic(in_turns, (ours, plain, 2 * PAIRS), rounds=1)
    for function in Function:
        rates = medians([(here[function], there[function]) for here, there in pairs])
        plains = [there[function] for _, there in pairs]
        itself = medians(list(pairwise(plains)))[2]
        text = f"{rates[0]:.0f} MB/s, plain C {rates[1]:.0f}: {rates[2]:.3f} (plain C against itself: {itself:.3f})"
        show(benchmark, f"{function.name.lower()}, {threads} threads: {text}", **{function.name.lower(): rates})
    for function in Function:
        assert benchmark.extra_info[function.name.lower()][2] == pytest.approx(1.0, abs=0.05), function


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


def task_units() -> int:
    """Return the units of a task of 0.5 ms."""
    return round(kernels.calibrate() * 0.0005)


def test_polling_costs_less_than_one_percent(benchmark: Any, tmp_path: Path) -> None:
    """PILS by hand, with iterations of 5 ms: with a table of CPUs, and without.

    The ratio of the throughputs is printed. Runs of 2 s differ by up to 20 %, so the time of a poll decides.
    """
    units = task_units()

    def rigid() -> float:
        return rate(pils.run([TASKS], units=units, iterations=400, cpus=CPUS))

    def malleable() -> float:
        with administrator(tmp_path):
            return rate(pils.run([TASKS], units=units, iterations=400))

    def rate(result: pils.PilsResult) -> float:
        return 1 / sum(result.ranks[0].iteration_s)

    assert VARIABLE not in os.environ
    ratio = medians(benchmark.pedantic(in_turns, (malleable, rigid), rounds=1))[2]
    show(benchmark, f"throughput with polling over throughput without: {ratio:.4f}", ratio=ratio)
    with administrator(tmp_path), malleable_program.attach() as program:
        poll_s = min(timeit.repeat(program.poll, number=10_000)) / 10_000
    show(benchmark, f"a poll: {1e6 * poll_s:.2f} us, {poll_s / 0.005:.3%} of an iteration", poll_s=poll_s)
    assert poll_s / 0.005 < 0.01


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
    units = task_units()
    latencies: list[float] = []

    def run(*, resized: bool) -> float:
        with administrator(tmp_path) as admin:
            command = [sys.executable, "-c", RESIZER, str(admin.table.path), str(os.getpid()), *map(str, CPUS)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True) if resized else None
            try:
                result = pils.run([TASKS], units=units, iterations=600)
            finally:
                if process is not None:
                    process.kill()
                    latencies.extend(float(line) for line in process.communicate()[0].splitlines())
        sizes = {len(mask) for mask in result.ranks[0].cpus}
        assert sizes == ({1, 2} if resized else {2})
        return TASKS * 600 * units / result.ranks[0].core_s

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
    kernel, units = unit_kernel(load_application("stream", {}).own_mib), 4000

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
