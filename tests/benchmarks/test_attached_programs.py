"""Programs that are not part of tracebed, and follow the table of CPUs of their node, or are bound from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from tests.answering import AFTER_A_LINE, Answering
from tracebed import malleable
from tracebed.benchmarks.affinity import set_affinity, strays, threads_of
from tracebed.benchmarks.drom import TABLE, Administrator
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.ownership import DromResult, Flags

HEADER = Path(str(files("tracebed.benchmarks") / "include" / "tracebed_malleable.h"))
PYTHON = """
import os, sys
from tracebed import malleable
with malleable.attach() as m:
    print(0, *m.cpus, flush=True)
    for line in sys.stdin:
        print(int(m.poll()), *sorted(os.sched_getaffinity(0)), flush=True)
"""
C = r"""
#include "tracebed_malleable.h"
#include <stdio.h>
int main(void) {
    tb_malleable m;
    char line[80];
    int cpu, changed = 0;
    tb_attach(&m);
    do {
        printf("%d", changed);
        for (cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &m.cpus)) printf(" %d", cpu);
        printf("\n");
        fflush(stdout);
        if (fgets(line, sizeof line, stdin) == NULL) break;
        changed = tb_poll(&m);
    } while (1);
    tb_detach(&m);
    return 0;
}
"""
OPENMP = r"""
#include <omp.h>
#include <stdio.h>
int main(void) {
    char line[80];
    do {
        int threads = 0;
        #pragma omp parallel num_threads(omp_get_num_procs()) reduction(+ : threads)
        threads += 1;
        printf("%d\n", threads);
        fflush(stdout);
    } while (fgets(line, sizeof line, stdin) != NULL);
    return 0;
}
"""
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
needs_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")


def compiled(folder: Path, source: str, *options: str) -> Path:
    (folder / "program.c").write_text(source)
    warnings = ("-Wall", "-Wextra", "-Werror", "-std=c11")
    command = ["gcc", "-O1", *warnings, *options, f"-I{HEADER.parent}", "program.c", "-o", "program"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "program"


class Program(Answering):
    """A program that starts after the first line, and then answers each line."""

    def __init__(self, table: Path | None, *command: str) -> None:
        environment = {key: value for key, value in os.environ.items() if key != TABLE}
        super().__init__([*AFTER_A_LINE, *command], environment | ({TABLE: str(table)} if table else {}))


@pytest.fixture
def cpus() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))[:2]


@pytest.fixture
def admin(tmp_path: Path, cpus: tuple[int, ...]) -> Iterator[Administrator]:
    table = NodeTable.create(tmp_path / "node", cpus)
    yield Administrator(table)
    table.close()


@pytest.fixture(params=["python", pytest.param("c", marks=needs_gcc)])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    if request.param == "c":
        return [str(compiled(tmp_path, C))]
    return [sys.executable, "-c", PYTHON]


@needs_cpus
def test_a_program_follows_its_cpus(admin: Administrator, command: list[str], cpus: tuple[int, ...]) -> None:
    low, high = cpus
    first, second = (Program(admin.table.path, *command) for _ in range(2))
    assert admin.prepare(first.pid, cpus)[0] is DromResult.SUCCESS
    assert first.ask() == f"0 {low} {high}"
    assert first.ask() == f"0 {low} {high}"
    assert admin.prepare(second.pid, [high], Flags.STEAL)[0] is DromResult.NOTED
    assert admin.mask(second.pid) == (DromResult.NOTED, ())
    assert first.ask() == f"1 {low}"
    assert admin.mask(second.pid) == (DromResult.SUCCESS, (high,))  # a program that has not started need not poll
    assert second.ask() == f"0 {high}"
    assert admin.set_mask(first.pid, cpus, Flags.STEAL) is DromResult.NOTED
    assert first.ask() == f"0 {low}"
    if command[0] == sys.executable:
        assert admin.finalize(second.pid) is DromResult.SUCCESS
    else:
        assert second.ask() == "1"
        assert admin.mask(second.pid) == (DromResult.SUCCESS, ())
    assert first.ask() == f"1 {low} {high}"
    for program in (first, second):
        program.kill()
    assert admin.pids() == []
    assert admin.free() == cpus


def test_without_an_administrator_a_program_is_rigid(command: list[str]) -> None:
    own = " ".join(map(str, sorted(os.sched_getaffinity(0))))
    program = Program(None, *command)
    assert [program.ask() for _ in range(3)] == [f"0 {own}"] * 3
    program.end()


@needs_gcc
def test_a_c_program_is_rigid_with_a_table_that_lacks_it_or_is_damaged(tmp_path: Path, admin: Administrator) -> None:
    own = " ".join(map(str, sorted(os.sched_getaffinity(0))))
    binary = compiled(tmp_path, C)
    (tmp_path / "damaged").write_bytes(b"tb-drom1" + bytes(100))
    for table in (admin.table.path, tmp_path / "damaged", tmp_path / "missing"):
        program = Program(table, str(binary))
        assert [program.ask() for _ in range(2)] == [f"0 {own}"] * 2
        program.end()


def test_a_program_without_a_cpu_waits(admin: Administrator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TABLE, str(admin.table.path))
    cpu = admin.cpus()[0]
    assert admin.prepare(os.getpid(), [cpu])[0] is DromResult.SUCCESS
    with malleable.attach(pin=False) as m:
        assert m.malleable
        assert m.cpus == (cpu,)
        assert admin.set_mask(os.getpid(), []) is DromResult.SUCCESS
        later = threading.Timer(0.2, lambda: admin.set_mask(os.getpid(), [cpu]))
        begun = time.monotonic()
        later.start()
        m.poll()
        assert time.monotonic() - begun >= 0.2
        assert m.cpus == (cpu,)
        later.join()
        admin.set_mask(os.getpid(), admin.cpus())
        admin.table.path.unlink()
        with pytest.warns(UserWarning, match="NO_TABLE"):
            assert not m.poll()
        assert not m.poll()


@needs_gcc
@needs_cpus
def test_an_openmp_program_is_resized_from_outside(tmp_path: Path, cpus: tuple[int, ...]) -> None:
    program = Program(None, str(compiled(tmp_path, OPENMP, "-fopenmp")))
    set_affinity(program.pid, cpus)
    assert program.ask() == "2"
    assert set_affinity(program.pid, cpus[:1]) == 2
    assert strays(program.pid, cpus[:1]) == {}
    assert strays(program.pid, cpus[1:]).keys() == set(threads_of(program.pid))
    assert program.ask() == "1"
    assert set_affinity(program.pid, cpus) == 2
    assert program.ask() == "2"
    program.end()
    with pytest.raises(ProcessLookupError):
        set_affinity(program.pid, cpus)


def test_threads_that_start_meanwhile_are_bound_too(cpus: tuple[int, ...]) -> None:
    """A thread inherits the CPUs of the thread that starts it, which may not be bound yet."""
    text = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(0.01,)).start()"
    process = subprocess.Popen([sys.executable, "-c", text])
    try:
        while len(list(threads_of(process.pid))) < 5:
            time.sleep(0.01)
        for _ in range(50):
            set_affinity(process.pid, cpus[:1])
            assert strays(process.pid, cpus[:1]) == {}
            set_affinity(process.pid, cpus)
    finally:
        process.kill()
        process.wait()
