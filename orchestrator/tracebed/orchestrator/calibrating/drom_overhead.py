"""The overhead of DROM without a change of cores: PILS under an administrator beside the same work without a table.

An iteration takes 5 ms, and begins with a poll.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tracebed.benchmarks import kernels
from tracebed.benchmarks.drom import TABLE, VARIABLE, Administrator
from tracebed.benchmarks.node_table import FOLDER, NodeTable
from tracebed.benchmarks.ownership import DromResult
from tracebed.ground.errors import TestbedError

MODES = ("plain", "drom")
TASK_S = 500e-6
TASKS = 10  # tasks of a thread in an iteration
PROGRAM = """
import json, sys, time
from tracebed.benchmarks.standalone.pils import run
tasks, iterations, units = map(int, sys.argv[1:])
found = run([tasks], iterations=iterations, units=units)
print(json.dumps({"run_time_s": found.seconds, "cpu_s": time.process_time()}))
"""


def pairs(count: int, iterations: int) -> Iterator[dict[str, Any]]:
    """Run PILS on all CPUs of this process in pairs, with a table of CPUs and without. Yield the times, s."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    work = (TASKS * len(cpus), iterations, max(1, round(TASK_S * kernels.calibrate())))
    for number, mode in kernels.alternated(MODES, count):
        yield {"mode": mode, "repetition": number, **_run(work, cpus if mode == "drom" else None)}


def _run(work: tuple[int, int, int], cpus: tuple[int, ...] | None) -> dict[str, float]:
    """Run the program, with a table of `cpus` prepared for it or without a table, and return its times, s."""
    with tempfile.TemporaryDirectory(prefix="tracebed-overhead-", dir=FOLDER) as folder:
        variables: Mapping[str, str] = {}
        if cpus is not None:
            table = NodeTable.create(Path(folder) / "cpus", cpus)
            result, variables = Administrator(table).prepare(os.getpid(), cpus)
            if result is not DromResult.SUCCESS:
                raise TestbedError(f"the CPUs of the program cannot be prepared: {result.name}", where=folder)
        inherited = {name: value for name, value in os.environ.items() if name not in (TABLE, VARIABLE)}
        command = [sys.executable, "-c", PROGRAM, *map(str, work)]
        done = subprocess.run(command, env={**inherited, **variables}, capture_output=True, text=True, check=False)
        if cpus is not None:
            table.close()
    if done.returncode:
        what = f"the program ended with status {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        raise TestbedError(what, hint="run tracebed nodes bench pils, which does the same work")
    return dict(json.loads(done.stdout))
