"""The administrator of programs that do not know tracebed, beside programs that follow the table of the node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agents import stopped, until
from tracebed.benchmarks.affinity import processes_of, strays
from tracebed.benchmarks.drom import Administrator, Application
from tracebed.benchmarks.external import ExternalAdministrator
from tracebed.benchmarks.node_table import Table
from tracebed.benchmarks.ownership import Flags, Result

CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]
needs_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
SPAWNING = """
import subprocess, sys, threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
child = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
subprocess.Popen(child, start_new_session=True)
time.sleep(60)
"""


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    table = Table.create(tmp_path / "node", CPUS)
    yield table
    table.close()


@pytest.fixture
def programs() -> Iterator[list[int]]:
    """Two programs that do not know tracebed: each has four threads, and a child process in another session."""
    started = [subprocess.Popen([sys.executable, "-c", SPAWNING], stdout=subprocess.PIPE) for _ in range(2)]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    trees = [psutil.Process(pid) for process in started for pid in processes_of(process.pid)]
    assert len(trees) == 4
    yield [process.pid for process in started]
    for tree in trees:
        tree.kill()
    for process in started:
        process.communicate()


def bound(pid: int, cpus: tuple[int, ...]) -> bool:
    """Return whether all threads of the program and of its child have exactly these CPUs, by the kernel."""
    texts = [
        path.read_text() for process in processes_of(pid) for path in Path(f"/proc/{process}/task").glob("*/status")
    ]
    lists = {line.split()[1] for text in texts for line in text.splitlines() if line.startswith("Cpus_allowed_list")}
    return len(texts) == 5 and lists <= {",".join(map(str, cpus)), "-".join(map(str, cpus))}


@needs_cpus
def test_programs_that_do_not_know_us_are_bound_with_all_threads_and_children(
    table: Table, programs: list[int]
) -> None:
    low, high = CPUS
    first, second = programs
    administrator = ExternalAdministrator(table)
    assert administrator.attach(first, CPUS) is Result.SUCCESS
    assert administrator.attach(first, CPUS) is Result.REGISTERED
    assert bound(first, CPUS)
    assert administrator.attach(second, [high]) is Result.PERMISSION
    assert administrator.set(second, [high]) is Result.NO_PROCESS
    assert bound(first, CPUS)
    assert administrator.attach(second, [high], Flags.STEAL) is Result.SUCCESS
    assert bound(first, (low,)) and bound(second, (high,))
    assert administrator.get(first) == (Result.SUCCESS, (low,))
    assert administrator.set(first, CPUS) is Result.PERMISSION
    assert administrator.set(first, [max(CPUS) + 1], Flags.STEAL) is Result.PERMISSION
    assert bound(first, (low,)) and bound(second, (high,))
    assert administrator.detach(second, Flags.RETURN_STOLEN) is Result.SUCCESS
    assert administrator.detach(second) is Result.NO_PROCESS
    assert bound(first, CPUS)


def test_a_program_without_a_cpu_is_stopped(table: Table, programs: list[int]) -> None:
    first, second = programs
    administrator = ExternalAdministrator(table)
    administrator.attach(first, CPUS)
    administrator.attach(second, CPUS, Flags.STEAL)
    assert administrator.get(first) == (Result.SUCCESS, ())
    assert all(stopped(psutil.Process(pid)) for pid in processes_of(first))
    assert psutil.Process(second).status() != psutil.STATUS_STOPPED
    psutil.Process(processes_of(second)[1]).kill()
    psutil.Process(second).kill()
    assert until(lambda: administrator.get(first) == (Result.SUCCESS, CPUS))
    # The signal to continue has been sent; the kernel delivers it to each process in turn.
    own = [psutil.Process(pid) for pid in processes_of(first)]
    assert until(lambda: all(process.status() != psutil.STATUS_STOPPED for process in own))
    assert not strays(first, CPUS, descendants=True)


@needs_cpus
def test_programs_of_both_kinds_share_a_node(table: Table, programs: list[int]) -> None:
    low, high = CPUS
    polling, outside = Administrator(table), ExternalAdministrator(table)
    with Application(table, CPUS) as own:
        assert outside.attach(programs[0], [high], Flags.STEAL) is Result.SUCCESS
        own.poll()
        assert own.cpus == (low,)
        assert outside.get(programs[0]) == (Result.SUCCESS, (high,))
        assert bound(programs[0], (high,))
        assert outside.set(programs[0], CPUS) is Result.PERMISSION
        assert polling.set_mask(os.getpid(), CPUS, Flags.STEAL) is Result.SUCCESS
        assert outside.get(programs[0]) == (Result.SUCCESS, ())
        assert polling.mask(os.getpid()) == (Result.SUCCESS, CPUS)


def test_a_program_that_polls_gets_its_table(table: Table) -> None:
    code = "from tracebed import malleable\nwith malleable.attach() as m: print(m.malleable, *m.cpus)"
    polling = Administrator(table)
    command = ["sh", "-c", 'read line; exec "$@"', "sh", sys.executable, "-c", code]
    result, variables = polling.prepare(os.getpid(), CPUS[:1])
    assert result is Result.SUCCESS
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    assert process.communicate("\n")[0].split() == ["True", str(CPUS[0])]
    assert polling.mask(os.getpid())[0] is Result.NO_PROCESS
    assert polling.finalize(process.pid) is Result.NO_PROCESS


def test_a_process_that_has_ended_is_unknown(table: Table) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    administrator = ExternalAdministrator(table)
    assert administrator.attach(ended.pid, CPUS) is Result.NO_PROCESS
    assert administrator.set(ended.pid, CPUS) is Result.NO_PROCESS
    assert administrator.get(ended.pid) == (Result.NO_PROCESS, ())
    assert administrator.detach(ended.pid) is Result.NO_PROCESS
