"""The overhead of DROM without a change of cores: a program under an administrator beside the same program alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from tracebed.benchmarks import kernels
from tracebed.benchmarks.drom import TABLE, VARIABLE, Administrator
from tracebed.benchmarks.node_table import FOLDER, NodeTable
from tracebed.benchmarks.ownership import DromResult
from tracebed.errors import InputError, TestbedError
from tracebed.validation.experiments.papers.base import Findings, FindingsTable, Settings
from tracebed.validation.experiments.views.ledger import Measured

MODES = ("plain", "drom")
FIGURES = {"run_time_s": "run time", "cpu_s": "CPU time"}
ITERATIONS = 200
TASK_S = 500e-6
TASKS = 10
"""Tasks of a thread in an iteration: 5 ms between two malleability points."""
PROGRAM = """
import json, sys, time
from tracebed.benchmarks.standalone.pils import run
tasks, iterations, units = map(int, sys.argv[1:])
found = run([tasks], iterations=iterations, units=units)
print(json.dumps({"run_time_s": found.seconds, "cpu_s": time.process_time()}))
"""


def overhead(settings: Settings) -> Findings:
    """Run time of a DROM-enabled program beside the same without DROM (DROM paper, section 6).

    Raises:
        InputError: an inventory or a speed is given.
        TestbedError: a run has failed.
    """
    if settings.inventory or settings.speed:
        what = "drom-overhead runs a program on this machine, without a replay"
        raise InputError(what, hint="leave out --inventory and --speed of tracebed experiment")
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    work = (TASKS * len(cpus), ITERATIONS, max(1, round(TASK_S * kernels.calibrate())))
    figures: list[dict[str, Any]] = []
    for repetition in range(1, settings.repetitions + 1):
        settings.on_step(f"pair {repetition} of {settings.repetitions}")
        for mode in MODES if repetition % 2 else reversed(MODES):  # neither of the two is always the first
            measured = _run(work, cpus if mode == "drom" else None)
            figures.append({"mode": mode, "repetition": repetition, **measured})
    rows = []
    for name, label in FIGURES.items():
        plain, drom = ([row[name] for row in figures if row["mode"] == mode] for mode in MODES)  # in order of the pairs
        ratios = [with_drom / alone for alone, with_drom in zip(plain, drom, strict=True)]
        medians = (f"{median(plain):.3f} s", f"{median(drom):.3f} s", f"{median(ratios):.4f}")
        rows.append([label, *medians, f"{min(ratios):.4f} to {max(ratios):.4f}"])
    columns = ("", "plain, median", "with DROM, median", "ratio, median of pairs", "ratio, range")
    notes = (
        f"PILS on {len(cpus)} CPUs of this machine: {ITERATIONS} iterations of {TASKS * TASK_S * 1e3:g} ms, a poll in"
        " each. The paper compared on two nodes of MareNostrum 3, and prints no figure.",
        "Run times depend on other programs of this machine, CPU times hardly.",
    )
    table = FindingsTable(f"The same work with and without DROM, {settings.repetitions} pairs", columns, rows)
    return Findings("Overhead of DROM", [table], notes, Measured.of(figures, ("mode",)))


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
