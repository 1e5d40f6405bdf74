"""Speed of a what-if of a month, of a forecast, of a cell of a study, and of the start of commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tracebed.api as tb
from tests.performance.forecast_cost import drawn, log_of
from tracebed.slurm.simulation.forecast import forecast
from tracebed.validation.experiments import runner
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.workloads import make

CONF = """SchedulerParameters=bf_interval=30
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/basic
NodeName=n[1-280] CPUs=36
PartitionName=batch Nodes=n[1-280] Default=YES OverSubscribe=EXCLUSIVE
"""
JOBS = 4000


def month(folder: Path) -> tuple[tb.Workload, Path]:
    """Return a log of whole nodes, with the starts of a simulated Slurm, and its slurm.conf."""
    conf = folder / "slurm.conf"
    conf.write_text(CONF)
    jobs = tb.generate("lublin99", jobs=JOBS, nodes=280, cores_per_node=36, load=0.85, seed=1, estimates="tsafrir05")
    jobs = tb.Workload(jobs.table.assign(partition="batch"), jobs.provenance)
    real = tb.simulate(jobs, "slurm", tb.read_machine(conf), over_limit="kill", policy_parameters={"seed": 1})
    return tb.with_starts(jobs, real), conf


def test_whatif_of_4_000_jobs(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    log, conf = month(tmp_path)
    found = benchmark.pedantic(tb.whatif, (log, conf), {"settings": ["bf_interval=120"]}, rounds=3)
    assert len(found.jobs) > 0.99 * JOBS


def test_forecast_of_1_000_waiting_jobs(benchmark: BenchmarkFixture) -> None:
    found = benchmark.pedantic(forecast, (drawn(32, 1000), log_of(32), 16, 1), rounds=3)
    assert found.starts.shape == (1000, 16)


def test_cell_of_the_knl_study(
    benchmark: BenchmarkFixture, reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    file = load_experiment("kassel-knl")
    plan = runner.plan(file, file.selected({"seed": ["0"]}), tmp_path, {"knl": reference_data("logs/cori-knl")})
    for variant in plan.variants:
        make(variant)
    assert benchmark.pedantic(runner.simulate, (plan.todo[-1],), rounds=5).rows


@pytest.mark.parametrize("command", ["simulate", "whatif", "forecast"])
def test_start_of_a_command(benchmark: BenchmarkFixture, command: str) -> None:
    """All imports before a simulation, and an input that does not exist."""
    rest = {"simulate": ["--policy", "easy", "-o", "out"], "whatif": ["none.conf"], "forecast": ["--log", "none.swf"]}
    words = [sys.executable, "-c", "from tracebed.cli import main; main()", command, "none.parquet", *rest[command]]
    done = benchmark(subprocess.run, words, capture_output=True, text=True, check=False)
    assert (done.returncode, "none.parquet" in done.stderr or "none.swf" in done.stderr) == (2, True), done.stderr
