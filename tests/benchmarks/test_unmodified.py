"""Programs that follow their CPUs without a change of their code, and the administrator's calls in C."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.answering import AFTER_A_LINE, Answering
from tests.oracles import table_cases
from tests.patience import GUARD_S, until
from tracebed.benchmarks import unmodified
from tracebed.benchmarks.affinity import strays
from tracebed.benchmarks.drom import TABLE, VARIABLE, Administrator
from tracebed.benchmarks.mpi.launch import LOOPBACK
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.ownership import DromResult, Flags
from tracebed.ground.errors import TestbedError

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
needs_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
LIBOMP = next(iter(sorted(Path("/usr/lib").glob("*/libomp.so.5"))), None)
needs_libomp = pytest.mark.skipif(LIBOMP is None, reason="apt-get install libomp5-14")
OPENMP = r"""
#include <omp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
int main(void) {
    char line[80];
    uint64_t sum = 0;
    while (fgets(line, sizeof line, stdin) != NULL) {
        int threads = 0, cpus = 0, nested = 0;
        #pragma omp parallel reduction(+ : threads)
        {
            cpu_set_t own;
            sched_getaffinity(0, sizeof own, &own);
            threads += 1;
            #pragma omp critical
            if (CPU_COUNT(&own) > cpus) cpus = CPU_COUNT(&own);
            #pragma omp parallel reduction(+ : nested)
            nested += 1;
        }
        #pragma omp parallel for schedule(SCHEDULE) reduction(+ : sum)
        for (int i = 0; i < 100000; i++) {
            uint64_t x = (uint64_t)i * 2654435769u + 1;
            x ^= x << 13; x ^= x >> 7; x ^= x << 17;
            sum += x;
        }
        printf("%d %d %llu\n", threads, cpus, (unsigned long long)sum);
        fflush(stdout);
    }
    return 0;
}
"""
"""A program that answers each line after two parallel regions: threads, CPUs, and the checksum so far."""
PLAIN = r"""
import os, sys, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
for line in sys.stdin: print(*sorted(os.sched_getaffinity(0)), flush=True)
"""
MPI = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct comm *MPI_Comm;
#define CALL(name, PARAMETERS, ...)                                         \
    int PMPI_##name PARAMETERS { return printf(__VA_ARGS__) > 0 ? 0 : 1; }  \
    int MPI_##name PARAMETERS __attribute__((weak, alias("PMPI_" #name)));
#ifdef LIBRARY
CALL(Init, (int *a, char ***b), "init %d %s\n", *a, **b)
CALL(Barrier, (MPI_Comm c), "barrier %p\n", (void *)c)
CALL(Sendrecv, (const char *a, int b, int c, int d, int e, char *f, int g, int h, int i, int j, MPI_Comm k, void *l),
     "%s %d %d %d %d %s %d %d %d %d %p %p\n", a, b, c, d, e, f, g, h, i, j, (void *)k, l)
#else
int MPI_Init(int *, char ***);
int MPI_Barrier(MPI_Comm);
int MPI_Sendrecv(const char *, int, int, int, int, char *, int, int, int, int, MPI_Comm, void *);
int main(int count, char **words) {
    char line[80];
    int failed = MPI_Init(&count, &words);
    while (fgets(line, sizeof line, stdin) != NULL) {
        failed |= *line == 'b' ? MPI_Barrier((MPI_Comm)0x7fff12345678)
                               : MPI_Sendrecv("sent", -1, 2, -3, 4, line, 6, -7, 8, -9, (MPI_Comm)0x99, NULL);
        fflush(stdout);
    }
    return failed;
}
#endif
"""
"""A library with a few calls of MPI, which print their arguments, and a program that calls one for each line."""

SUM = r"""
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
    long rank, step = 0, all, wrong = 0, ends = 0;
    int number;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &number);
    for (rank = number; !ends; step++) {
        long own[2] = {rank + step, access(words[1], F_OK) == 0}, sums[2];
        MPI_Allreduce(own, sums, 2, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        wrong |= sums[0] != 2 * step + 1;
        ends = sums[1];
    }
    MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (number == 0) puts(all ? "wrong" : "right");
    MPI_Finalize();
    return 0;
}
"""
"""A program of two ranks that ends once a file exists."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unmodified.build(tmp_path_factory.mktemp("follower"))


@pytest.fixture
def cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))[:2]


@pytest.fixture
def admin(tmp_path: Path, cpus: list[int]) -> Iterator[Administrator]:
    table = NodeTable.create(tmp_path / "node", cpus)
    yield Administrator(table, sync_s=GUARD_S)
    table.close()


class Program(Answering):
    """A program with the library, for which CPUs were prepared, and which answers each line."""

    def __init__(self, admin: Administrator, cpus: list[int], *command: str, **variables: str) -> None:
        given = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "LD_"))}
        of_the_program = ["env", *(f"{name}={value}" for name, value in variables.items())]
        super().__init__([*AFTER_A_LINE, *of_the_program, *command], {**given, TABLE: str(admin.table.path)})
        assert admin.prepare(self.pid, cpus)[0] is DromResult.SUCCESS
        self.tell()


def compiled(folder: Path, source: str, *options: str, link: tuple[str, ...] = ()) -> str:
    (folder / "program.c").write_text(source)
    subprocess.run(["gcc", "-O1", "-Wall", *options, "-c", "program.c"], cwd=folder, check=True)
    subprocess.run(["gcc", "program.o", *(link or options), "-o", "program"], cwd=folder, check=True)
    return str(folder / "program")


def openmp(folder: Path, runtime: str) -> str:
    options = ("-fopenmp", f"-DSCHEDULE={'static' if runtime == 'gomp' else 'dynamic,1000'}", "-D_GNU_SOURCE")
    return compiled(folder, OPENMP, *options, link=(str(LIBOMP),) if runtime == "libomp" else ())


@needs_cpus
@pytest.mark.parametrize(
    ("runtime", "how"),
    [
        ("gomp", "LD_PRELOAD"),
        ("gomp-dynamic", "LD_PRELOAD"),
        pytest.param("libomp", "LD_PRELOAD", marks=needs_libomp),
        pytest.param("libomp", "OMP_TOOL_LIBRARIES", marks=needs_libomp),
    ],
)
def test_an_openmp_program_shrinks_and_expands_with_the_same_checksum(
    tmp_path: Path, admin: Administrator, library: Path, cpus: list[int], runtime: str, how: str
) -> None:
    binary = openmp(tmp_path, runtime)
    alone = subprocess.run([binary], input="\n", capture_output=True, text=True, check=True).stdout.split()
    program = Program(admin, cpus, binary, **{how: str(library)})
    found = [program.ask()]

    def settled() -> str:
        """Let the program go on until it holds the CPUs of the last mask, and return its next answer but the sum."""
        assert until(lambda: found.append(program.ask()) or not admin.mask(program.pid)[0])
        found.append(program.ask())
        return found[-1].rsplit(" ", 1)[0]

    assert settled() == "2 2"
    assert admin.set_mask(program.pid, cpus[1:]) is DromResult.NOTED
    assert settled() == "1 1"
    assert admin.mask(program.pid) == (DromResult.SUCCESS, (cpus[1],))
    assert strays(program.pid, cpus[1:]) == {}
    assert admin.free() == (cpus[0],)
    assert admin.set_mask(program.pid, cpus) is DromResult.NOTED
    assert settled() == "2 2"
    sums = [int(line.split()[2]) for line in found]
    assert sums == [number * int(alone[2]) % 2**64 for number in range(1, len(found) + 1)]
    program.end()


@needs_cpus
def test_a_region_has_no_more_threads_than_the_variable_says(
    tmp_path: Path, admin: Administrator, library: Path, cpus: list[int]
) -> None:
    """A program may have sized its arrays by this number at its start."""
    program = Program(admin, cpus, openmp(tmp_path, "gomp"), LD_PRELOAD=str(library), OMP_NUM_THREADS="1")
    assert program.ask().startswith("1 2 ")
    program.end()


@needs_cpus
def test_regions_with_a_number_of_threads_follow_the_cpus_too(
    tmp_path: Path, admin: Administrator, library: Path, cpus: list[int]
) -> None:
    """They keep their number. Before, a program of such regions alone never took part under libgomp."""
    source = OPENMP.replace("parallel reduction(+ : threads)", "parallel num_threads(2) reduction(+ : threads)")
    source = source.replace("parallel for schedule", "parallel for num_threads(2) schedule")
    binary = compiled(tmp_path, source, "-fopenmp", "-DSCHEDULE=static", "-D_GNU_SOURCE")
    program = Program(admin, cpus, binary, LD_PRELOAD=str(library))
    assert program.ask().startswith("2 2 ")
    assert admin.pids() == [program.pid]
    assert admin.set_mask(program.pid, cpus[1:]) is DromResult.NOTED
    assert until(lambda: program.ask().startswith("2 1 ") and not admin.mask(program.pid)[0])
    assert strays(program.pid, cpus[1:]) == {}
    program.end()


def test_a_program_without_a_cpu_waits_at_its_next_region(
    tmp_path: Path, admin: Administrator, library: Path, cpus: list[int]
) -> None:
    program = Program(admin, cpus[:1], openmp(tmp_path, "gomp"), LD_PRELOAD=str(library))
    assert program.ask().startswith("1 1 ")
    assert admin.set_mask(program.pid, []) is DromResult.NOTED
    asked = 20  # the first of these may find the table as it was
    program.tell("\n" * (asked - 1))
    assert until(lambda: admin.mask(program.pid)[0] is DromResult.SUCCESS)
    assert admin.free() == tuple(cpus)
    assert admin.set_mask(program.pid, cpus[-1:]) is DromResult.NOTED
    assert all(program.heard().startswith("1 1 ") for _ in range(asked))
    assert admin.mask(program.pid) == (DromResult.SUCCESS, (cpus[-1],))
    program.end()


def test_without_a_table_the_program_runs_as_ever(tmp_path: Path, library: Path) -> None:
    binary = openmp(tmp_path, "gomp")
    runs = [
        subprocess.run([binary], input="\n", capture_output=True, text=True, env=os.environ | given, check=True).stdout
        for given in ({}, {"LD_PRELOAD": str(library)}, {"LD_PRELOAD": str(library), TABLE: str(tmp_path / "missing")})
    ]
    assert runs[0] and runs == runs[:1] * 3


@needs_cpus
def test_a_thread_polls_for_a_program_without_openmp_and_mpi(
    admin: Administrator, library: Path, cpus: list[int]
) -> None:
    program = Program(admin, cpus, sys.executable, "-c", PLAIN, **unmodified.variables(library, pause_ms=1))
    assert program.ask() == "{} {}".format(*cpus)
    assert admin.set_mask(program.pid, cpus[:1], Flags.SYNC) is DromResult.SUCCESS
    assert strays(program.pid, cpus[:1]) == {}  # both threads, without a call of the program
    assert admin.set_mask(program.pid, []) is DromResult.NOTED
    assert program.ask() == str(cpus[0])
    assert admin.mask(program.pid) == (DromResult.NOTED, (cpus[0],))  # its threads cannot be stopped
    assert admin.set_mask(program.pid, cpus, Flags.REPLACE) in (DromResult.NOTED, DromResult.SUCCESS)
    assert until(lambda: admin.mask(program.pid) == (DromResult.SUCCESS, tuple(cpus)))
    program.end()


@needs_cpus
def test_an_mpi_program_polls_in_its_calls(
    tmp_path: Path, admin: Administrator, library: Path, cpus: list[int]
) -> None:
    """All arguments arrive: of 32 and 64 bits, negative ones, in registers and on the stack."""
    (tmp_path / "mpi.c").write_text(MPI)
    build = ["gcc", "-DLIBRARY", "-fPIC", "-shared", "-o", "libmpi.so", "mpi.c"]
    subprocess.run(build, cwd=tmp_path, check=True)
    binary = compiled(tmp_path, MPI, "-Wall", link=(str(tmp_path / "libmpi.so"),))
    program = Program(admin, cpus, binary, LD_PRELOAD=str(library))
    assert program.ask("barrier") == f"init 1 {binary}"
    assert program.heard() == "barrier 0x7fff12345678"
    assert admin.set_mask(program.pid, cpus[:1]) is DromResult.NOTED
    asked = [program.ask("x"), program.heard()]
    assert asked == ["sent -1 2 -3 4 x", "6 -7 8 -9 0x99 (nil)"]
    assert until(lambda: [program.ask("x"), program.heard()] == asked and not admin.mask(program.pid)[0])
    assert admin.mask(program.pid) == (DromResult.SUCCESS, (cpus[0],))
    assert strays(program.pid, cpus[:1]) == {}
    program.end()


@needs_cpus
def test_ranks_share_the_cpus_of_their_launcher(
    tmp_path: Path, admin: Administrator, library: Path, cpus: list[int]
) -> None:
    (tmp_path / "mpi.c").write_text(MPI)
    subprocess.run(["gcc", "-DLIBRARY", "-fPIC", "-shared", "-o", "libmpi.so", "mpi.c"], cwd=tmp_path, check=True)
    binary = compiled(tmp_path, MPI, link=(str(tmp_path / "libmpi.so"),))
    assert admin.prepare(os.getpid(), cpus)[0] is DromResult.SUCCESS
    variables = {TABLE: str(admin.table.path), VARIABLE: str(os.getpid()), "LD_PRELOAD": str(library)}
    ranks = [
        subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cpus)), binary],
            env={**os.environ, **variables, "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": "2"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    assert until(lambda: len(admin.pids()) == 2)
    assert [admin.mask(rank.pid) for rank in ranks] == [(DromResult.SUCCESS, (cpu,)) for cpu in cpus]
    for rank in ranks:
        rank.communicate()
        assert rank.returncode == 0


@needs_cpus
def test_an_mpi_program_of_two_ranks_follows_its_cpus(
    tmp_path: Path, admin: Administrator, library: Path, cpus: list[int]
) -> None:
    mpicc, mpiexec = (Path(sys.executable).with_name(name) for name in ("mpicc", "mpiexec"))
    if not mpicc.exists():
        pytest.skip("pip install 'tracebed[mpi]'")
    (tmp_path / "sum.c").write_text(SUM)
    subprocess.run([mpicc, "-O1", "sum.c", "-o", "sum"], cwd=tmp_path, check=True)
    assert admin.prepare(os.getpid(), cpus)[0] is DromResult.SUCCESS
    variables = {TABLE: str(admin.table.path), VARIABLE: str(os.getpid()), "LD_PRELOAD": str(library)}
    program = subprocess.Popen(
        ["taskset", "-c", ",".join(map(str, cpus)), mpiexec, "-n", "2", tmp_path / "sum", tmp_path / "end"],
        env={**os.environ, **LOOPBACK, **variables},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert until(lambda: len(admin.pids()) == 2)
    first, second = sorted(admin.pids(), key=admin.mask)
    for pid in (second, first):
        own = admin.mask(pid)[1]
        assert admin.set_mask(pid, []) is DromResult.NOTED
        assert until(lambda pid=pid: admin.mask(pid) == (DromResult.SUCCESS, ()))  # the other rank waits for it
        assert admin.set_mask(pid, own) is DromResult.NOTED
        assert until(lambda pid=pid, own=own: admin.mask(pid) == (DromResult.SUCCESS, own))
    (tmp_path / "end").touch()
    assert program.communicate(timeout=GUARD_S)[0] == "right\n"
    assert program.returncode == 0


def test_the_library_is_compiled_once(library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert unmodified.build(library.parent) == library
    with pytest.raises(TestbedError, match="cannot be compiled"):
        unmodified.build(tmp_path)
    monkeypatch.setenv("CC", "false")
    with pytest.raises(TestbedError, match="cannot be compiled"):
        unmodified.build(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", range(8))
def test_the_calls_of_an_administrator_in_c_do_what_those_in_python_do(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    calls = folder / table_cases.LIBRARY
    if not calls.exists():
        table_cases.build(folder)
    assert table_cases.compared(calls, seed) is None


def test_a_damaged_table_is_refused_in_c(tmp_path: Path, cpus: list[int]) -> None:
    twin = table_cases.Twin(table_cases.build(tmp_path), tmp_path / "node", cpus)
    assert twin.mask(os.getpid())[0] == DromResult.NO_PROCESS
    with open(tmp_path / "node", "r+b") as file:
        file.truncate(100)
    assert twin.mask(os.getpid())[0] == DromResult.NO_TABLE
    twin.close()
    assert twin.calls.call_open(twin.table, str(tmp_path / "node").encode()) == DromResult.NO_TABLE
