"""Speed of the scheduler, in virtual time and in real time."""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.packages import files_of
from tests.performance import slurm_scale
from tests.recorders import growth
from tests.runs import replaying
from tests.scheduling.test_policies import GUIDE
from tracebed.converters.cleaning.audit import clean
from tracebed.converters.cleaning.recipes import load_recipe
from tracebed.converters.formats.reading import read_raw, read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.malleability import to_malleable
from tracebed.converters.models import registry
from tracebed.converters.scaling import scale
from tracebed.converters.workload import Workload
from tracebed.machine.nodes import NodeFacts, nodes_of
from tracebed.orchestrator.replay.journal import Entry, Journal, read
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.prediction import EngineChoice, predict
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.slurm.simulation import prediction

RICC = "logs/RICC-2010-2.swf.gz"
PEAK = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.recorders import growth
growth.measure(int(sys.argv[3]), 1_000, sys.argv[2], rounds=1)
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


@pytest.mark.parametrize(
    ("policy", "by", "engine"),
    [
        *((policy, "node", "compiled") for policy in ("fcfs", "easy", "pref")),
        ("easy", "core", "compiled"),
        *((policy, "node", "python") for policy in ("fcfs", "easy")),
    ],
)
def test_ricc(
    benchmark: Any, reference_data: Callable[[str], Path], policy: str, by: str, engine: EngineChoice
) -> None:
    """447,794 jobs on 1,024 whole nodes, or on 8,192 cores."""
    workload = read_workload(reference_data(RICC), by=by)
    nodes = nodes_of(workload.provenance.system)
    rounds = 3 if engine == "compiled" else 1
    run = benchmark.pedantic(predict, (workload, nodes, policy), {"engine": engine}, rounds=rounds)
    assert run.info.counts["completed"] == 447_794


@pytest.mark.parametrize("policy", ["firstfit", "easy", "min", "avg", "pref", "keep-pref"])
def test_knl(benchmark: Any, reference_data: Callable[[str], Path], policy: str) -> None:
    """41,524 jobs, all malleable, on 9,688 nodes, in ticks of 10 s: a cell of the study kassel-knl."""
    recipe = load_recipe("cori-knl")
    cleaned = clean(read_raw([reference_data("logs/cori-knl")]), recipe.steps, system=recipe.system).workload
    workload, nodes = to_malleable(cleaned, 1.0, 1), nodes_of(cleaned.provenance.system)
    run = benchmark.pedantic(predict, (workload, nodes, policy), {"interval_s": 10.0, "engine": "compiled"}, rounds=3)
    assert run.info.counts["completed"] == 41_524


@pytest.mark.parametrize("parameters", [{}, {"backfill_depth": 50, "backfill_interval_s": 30.0}])
def test_conservative(benchmark: Any, reference_data: Callable[[str], Path], parameters: dict[str, Any]) -> None:
    """10,000 jobs of RICC's September, on 1,024 nodes: textbook, and as Slurm's sched/backfill."""
    recipe = load_recipe("ricc-sept")
    workload = clean(read_raw([reference_data(RICC)]), recipe.steps, system=recipe.system).workload
    options = {"policy_parameters": parameters, "engine": "compiled"}
    nodes = nodes_of(workload.provenance.system)
    run = benchmark.pedantic(predict, (workload, nodes, "conservative"), options, rounds=3)
    assert run.info.counts["completed"] == 10_000


@pytest.mark.parametrize("nodes", [128, 512])
def test_slurm_on_shared_nodes(benchmark: Any, nodes: int) -> None:
    """10,000 drawn jobs at load 0.85 on nodes of 48 cores, three partitions, fair share of 50 users."""
    run = benchmark.pedantic(slurm_scale.simulate, slurm_scale.shared_cluster(10_000, nodes), rounds=3)
    assert run.info.counts["completed"] > 9_900


@pytest.mark.parametrize("setting", ["month", "partitions"])
def test_slurm_of_a_large_cluster(benchmark: Any, setting: str) -> None:
    """100,000 jobs on 5,000 nodes at load 0.85."""
    run = benchmark.pedantic(slurm_scale.simulate, slurm_scale.SETTINGS[setting](100_000), rounds=1)
    assert run.info.counts["completed"] == 100_000


def test_inputs_of_slurm(benchmark: Any) -> None:
    """All that is made in Python before the engine simulates 30,000 of the same jobs, but what they can run on."""
    workload, cluster = slurm_scale.SETTINGS["month"](30_000)
    jobs, setup = Jobs.of(workload), Setup.of("slurm", over_limit=OverLimit.KILL)
    idle = prediction.IdleCluster.of(cluster)
    inputs, _ = benchmark(lambda: prediction._inputs(workload, jobs, idle, setup, ScheduleRecord(jobs)))
    assert len(inputs.requests) == 30_000


def test_slurm_of_four_months(benchmark: Any) -> None:
    """FastSim's setting: 600,000 jobs of four months on 5,860 whole nodes, at load 0.9."""
    run = benchmark.pedantic(slurm_scale.simulate, slurm_scale.SETTINGS["quarter"](600_000), rounds=1)
    assert run.info.counts["completed"] == 600_000


@pytest.mark.parametrize("engine", ["compiled", "python"])
def test_slurm_without_a_cluster(benchmark: Any, engine: EngineChoice) -> None:
    """2,000 of the same jobs under the policy `slurm` without a slurm.conf."""
    workload, _ = slurm_scale.whole_nodes(2_000)
    run = benchmark.pedantic(predict, (workload, None, "slurm"), {"engine": engine}, rounds=1)
    assert run.info.counts["completed"] == 2_000


def test_sd(benchmark: Any, reference_data: Callable[[str], Path]) -> None:
    """The same 10,000 jobs, all malleable, DynAVGSD: a cell of the study sd-3, on textbook EASY."""
    recipe = load_recipe("ricc-sept")
    cleaned = clean(read_raw([reference_data(RICC)]), recipe.steps, system=recipe.system).workload
    workload, nodes = to_malleable(cleaned, 1.0, 0), nodes_of(cleaned.provenance.system)
    run = benchmark.pedantic(predict, (workload, nodes, "sd"), rounds=3)
    assert run.info.counts["completed"] == 10_000


@pytest.mark.parametrize(("file", "policy"), [("bestfit.py", "BestFit"), ("admit.py", "Admit")])
def test_third_party(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, policy: str) -> None:
    """A policy of docs/how-to/write-a-policy.md on 100,000 jobs at a load of 0.85, in the Python simulator.

    Under the second one, all jobs are malleable, and resized 290,000 times.
    """
    (tmp_path / file).write_text(files_of(GUIDE)[file])
    monkeypatch.chdir(tmp_path)
    machine = [NodeFacts(f"n{number}", 1) for number in range(1_000)]
    run = benchmark.pedantic(predict, (growth.workload(100_000, 1_000), machine, f"{file}:{policy}"), rounds=3)
    assert run.info.counts["completed"] == 100_000 and run.info.engine == "python"


def test_start_of_a_simulation(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """50 jobs, almost nothing but imports; the extra figure is the CPU time of the last command, s."""
    monkeypatch.chdir(tmp_path)
    write_workload(registry.draw("cirne", 50, nodes=16, seed=1), Path("tiny.parquet"))
    line = [shutil.which("tracebed"), "simulate", "tiny.parquet", "--policy", "easy", "-o", "run", "--replace"]

    def run() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(line, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    benchmark.extra_info["cpu_s"] = benchmark.pedantic(run, rounds=7)
    assert Path("run/run.json").exists()


@pytest.mark.parametrize(("jobs", "nodes"), [(10_000, 1_000), (100_000, 1_000), (1_000_000, 1_000), (100_000, 100_000)])
def test_growth(benchmark: Any, jobs: int, nodes: int) -> None:
    """EASY at a load of 0.85; `growth.py` draws more of it."""
    machine = [NodeFacts(f"n{number}", 1) for number in range(nodes)]
    run = benchmark.pedantic(predict, (growth.workload(jobs, nodes), machine, "easy"), {"engine": "compiled"}, rounds=1)
    assert run.info.counts["completed"] == jobs


@pytest.mark.parametrize("policy", ["easy", "pref"])
@pytest.mark.parametrize("kind", ["one", "pools"])
def test_pools(benchmark: Any, kind: str, policy: str) -> None:
    """100,000 jobs on 1,000 nodes of one class, and on three classes in four partitions without a common node."""
    work, machine = growth.in_partitions(100_000)
    nodes = machine if kind == "pools" else [NodeFacts(f"n{number}", 8) for number in range(1_000)]
    run = benchmark.pedantic(predict, (work, nodes, policy), {"engine": "compiled"}, rounds=5)
    assert run.info.counts["completed"] == 100_000


@pytest.mark.parametrize(("policy", "jobs"), [("easy", 1_000_000), ("pref", 1_000_000)])
def test_memory(benchmark: Any, policy: str, jobs: int) -> None:
    """The same with its peak memory (MiB), in a separate process; under `pref` all jobs are malleable."""
    line = [sys.executable, "-c", PEAK, str(Path(__file__).parents[2]), policy, str(jobs)]

    def run() -> int:
        return int(subprocess.run(line, capture_output=True, text=True, check=True).stdout) // 1024

    benchmark.extra_info["peak_mib"] = benchmark.pedantic(run, rounds=1)


@pytest.mark.parametrize("policy", ["easy", "pref"])
def test_cirne(benchmark: Any, policy: str) -> None:
    """20,000 jobs, half of them malleable, at a load of 0.9."""
    drawn = registry.draw("cirne", 20_000, site="anl", nodes=128, seed=1)
    load = float((drawn.floats("run_time") * drawn.ints("nodes")).sum() / 128 / np.ptp(drawn.floats("submit_time")))
    workload = to_malleable(scale(drawn, arrivals=load / 0.9), 0.5, 1)
    nodes = [NodeFacts(f"n{number}", 1) for number in range(128)]
    run = benchmark.pedantic(predict, (workload, nodes, policy), rounds=3)
    assert run.info.counts["completed"] == 20_000


def test_lateness_of_600_submissions_at_100x(benchmark: Any, tmp_path: Path) -> None:
    """600 jobs in 20 minutes, at 100x, on four emulated nodes; the extra figure is the lateness of submissions."""
    rng = np.random.default_rng(1)
    table = {
        "job_id": [str(number) for number in range(600)],
        "submit_time": np.sort(rng.uniform(0, 1200, 600)),
        "run_time": rng.uniform(1, 10, 600),
        "time_limit": 20.0,
        "nodes": rng.integers(1, 3, 600),
    }
    inventory = Inventory("bench", "agents", tuple(Node(f"n{i}", 8, 1, None, True) for i in range(4)))
    work = Workload(pd.DataFrame(table))

    def run() -> dict[str, float]:
        return replay(work, inventory, "easy", tmp_path / "run", **replaying(speed=100)).info.lateness_ms

    benchmark.extra_info.update(benchmark.pedantic(run, rounds=1))
    assert benchmark.extra_info["count"] == 600


def test_the_journal_of_20_000_events(benchmark: Any, tmp_path: Path) -> None:
    """Write each event in a transaction of its own, and verify the whole journal."""
    data = {"time": 1.5, "state": "completed", "reason": "", "units_done": 4_000_000, "cpu_s": 3.25}
    entries = [Entry(number, number + 0.3, "ended", "job 1", "n1", data) for number in range(20_000)]

    def write_and_read() -> None:
        path = tmp_path / "journal.sqlite"
        for file in tmp_path.iterdir():
            file.unlink()
        with contextlib.closing(Journal(path, {"schema": "x"})) as journal:
            for entry in entries:
                journal.write([entry])
        assert len(read(path)[1]) == len(entries)

    benchmark.pedantic(write_and_read, rounds=3)
