"""Unmodified programs that follow their CPUs: the cost of a call, and the delay from a new mask until it is applied."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tracebed.benchmarks import unmodified
from tracebed.benchmarks.drom import TABLE, VARIABLE, Administrator
from tracebed.benchmarks.mpi.launch import LOOPBACK
from tracebed.benchmarks.node_table import FOLDER, NodeTable
from tracebed.benchmarks.ownership import DromResult

CPUS = sorted(os.sched_getaffinity(0))[:2]
LIBOMP = next(iter(sorted(Path("/usr/lib").glob("*/libomp.so.5"))), None)
ITERATION_S = 0.005
REGIONS = r"""
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
    long regions = atol(words[1]), spins = atol(words[2]), sum = 0;
    double begun = omp_get_wtime();
    for (long region = 0; region < regions; region++) {
        #pragma omp parallel reduction(+ : sum)
        for (long i = 0; i < spins; i++) { sum += i; __asm__ volatile("" : "+r"(sum)); }
    }
    printf("%.1f\n", (omp_get_wtime() - begun) / regions * 1e9);
    return 0;
}
"""
"""A program that prints the mean time of a parallel region, ns."""
CALLS = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
    long calls = atol(words[1]);
    double begun;
    MPI_Init(&count, &words);
    begun = MPI_Wtime();
    for (long call = 0; call < calls; call++) MPI_Barrier(MPI_COMM_SELF);
    printf("%.1f\n", (MPI_Wtime() - begun) / calls * 1e9);
    MPI_Finalize();
    return 0;
}
"""
"""A program that prints the mean time of a call of MPI that needs no other process, ns."""
LOOP = """
import sys
from tracebed import malleable
with malleable.attach() as m:
    while True:
        m.poll()
        sum(range(int(sys.argv[1])))
"""
"""A program with calls of tracebed: a poll in each iteration."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unmodified.build(tmp_path_factory.mktemp("follower"))


@pytest.fixture
def admin() -> Iterator[Administrator]:
    path = FOLDER / f"tracebed-bench-{os.getpid()}"
    table = NodeTable.create(path, CPUS)
    yield Administrator(table)
    table.close()
    path.unlink()


def openmp(folder: Path, runtime: str) -> str:
    if runtime == "libomp" and LIBOMP is None:
        pytest.skip("apt-get install libomp5-14")
    (folder / "regions.c").write_text(REGIONS)
    subprocess.run(["gcc", "-O1", "-fopenmp", "-c", "regions.c"], cwd=folder, check=True)
    link = [str(LIBOMP)] if runtime == "libomp" else ["-fopenmp"]
    subprocess.run(["gcc", "regions.o", "-o", "regions", *link], cwd=folder, check=True)
    return str(folder / "regions")


def environment(admin: Administrator, given: dict[str, str]) -> dict[str, str]:
    """Return the environment of a program whose CPUs are prepared for its parent, this process."""
    assert admin.prepare(os.getpid(), CPUS)[0] is DromResult.SUCCESS
    return {**os.environ, TABLE: str(admin.table.path), VARIABLE: str(os.getpid()), **given}


def compared(benchmark: Any, admin: Administrator, command: list[str], given: dict[str, str]) -> None:
    """Measure a program without and with the library, in turns: the cost of a call is the difference of medians."""
    times: dict[bool, list[float]] = {False: [], True: []}

    def pair() -> None:
        for followed in (False, True):
            env = environment(admin, given if followed else {})
            times[followed].append(float(subprocess.run(command, env=env, capture_output=True, check=True).stdout))
            for pid in (*admin.pids(), os.getpid()):
                admin.finalize(pid)

    benchmark.pedantic(pair, rounds=7)
    without, followed = (sorted(times[kind])[3] for kind in (False, True))
    benchmark.extra_info |= {"without_ns": without, "with_ns": followed, "cost_ns": followed - without}
    print(f"\na call: {without:.0f} ns, followed {followed:.0f} ns: {followed - without:+.0f} ns")  # noqa: T201


@pytest.mark.parametrize("runtime", ["gomp", "libomp"])
def test_the_cost_of_a_parallel_region(
    benchmark: Any, admin: Administrator, library: Path, tmp_path: Path, runtime: str
) -> None:
    """One thread: a region of two on a busy machine waits for its second CPU."""
    command = ["taskset", "-c", str(CPUS[0]), openmp(tmp_path, runtime), "200000", "0"]
    compared(benchmark, admin, command, {**unmodified.variables(library), "OMP_NUM_THREADS": "1"})


def test_the_cost_of_a_call_of_mpi(benchmark: Any, admin: Administrator, library: Path, tmp_path: Path) -> None:
    mpicc = Path(sys.executable).with_name("mpicc")
    if not mpicc.exists():
        pytest.skip("pip install 'tracebed[mpi]'")
    (tmp_path / "calls.c").write_text(CALLS)
    subprocess.run([mpicc, "-O1", "calls.c", "-o", "calls"], cwd=tmp_path, check=True)
    compared(benchmark, admin, [str(tmp_path / "calls"), "5000000"], {**LOOPBACK, **unmodified.variables(library)})


@pytest.mark.parametrize("how", ["tracebed", "gomp", "libomp", "thread"])
def test_the_delay_from_a_mask_until_it_is_applied(
    benchmark: Any, admin: Administrator, library: Path, tmp_path: Path, how: str
) -> None:
    """Iterations of some 5 ms, except for the thread, which polls each ms whatever the program does."""
    given = dict(unmodified.variables(library, pause_ms=1 if how == "thread" else 0))
    match how:
        case "tracebed":
            given, command = {}, [sys.executable, "-c", LOOP, str(spins(lambda n: sum(range(n))))]
        case "thread":
            command = [sys.executable, "-c", "while True: pass"]
        case _:
            binary = openmp(tmp_path, how)
            one = float(subprocess.run([binary, "1", "10000000"], capture_output=True, check=True).stdout)
            command = [binary, "1000000000", str(int(1e7 * ITERATION_S * 1e9 / one))]
    program = subprocess.Popen(command, env=environment(admin, given))
    try:
        while not admin.pids():
            time.sleep(0.01)
        (pid,), masks = admin.pids(), cycle([CPUS[:1], CPUS])

        def change() -> None:
            admin.set_mask(pid, next(masks))
            while admin.mask(pid)[0] is DromResult.NOTED:
                time.sleep(0.0001)

        benchmark.pedantic(change, rounds=200)
    finally:
        program.kill()
        program.wait()


def spins(work: Any) -> int:
    """Return the argument with which `work` takes an iteration."""
    begun = time.perf_counter()
    work(10**6)
    return int(1e6 * ITERATION_S / (time.perf_counter() - begun))
