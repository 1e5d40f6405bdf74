"""The calls of DROM, on the table of a node with 48 CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest

from tracebed.benchmarks import node_table
from tracebed.benchmarks.affinity import strays
from tracebed.benchmarks.drom import Administrator, DromProcess
from tracebed.benchmarks.node_table import FOLDER, NodeTable

CPUS = range(48)


@pytest.fixture
def table() -> Iterator[NodeTable]:
    path = FOLDER / f"tracebed-bench-{os.getpid()}"
    found = NodeTable.create(path, CPUS)
    yield found
    found.close()
    path.unlink()


def test_poll_without_a_change(benchmark: Any, table: NodeTable) -> None:
    with DromProcess(table, CPUS) as application:
        benchmark(application.poll)


@pytest.mark.parametrize("processes", [1, 200])
def test_change_of_a_mask_and_its_poll(
    benchmark: Any, table: NodeTable, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other processes hold no CPU, and are not real ones."""
    with DromProcess(table, CPUS) as application, table.transaction() as found:
        start_of = node_table.start_of
        monkeypatch.setattr(node_table, "start_of", lambda pid: start_of(pid) if pid == os.getpid() else 1)
        for number in range(1, processes):
            found.add(-number, registered=True)
    with DromProcess(table, CPUS) as application:
        masks, administrator = cycle([CPUS, range(24)]), Administrator(table)

        def change() -> None:
            administrator.set_mask(os.getpid(), next(masks))
            application.poll()

        benchmark(change)


@pytest.mark.parametrize("descendants", [False, True])
def test_check_of_the_threads_of_a_rank(benchmark: Any, descendants: bool) -> None:
    """A process of four threads. An agent checks its ranks every 5 s, with descendants if they run a command."""
    threads = "for _ in range(3): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    code = f"import threading, time\n{threads}\nprint(flush=True)\ntime.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        assert benchmark(strays, process.pid, os.sched_getaffinity(0), descendants=descendants) == {}
    finally:
        process.kill()
        process.communicate()
