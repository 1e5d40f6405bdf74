"""How fast the scheduler is, in virtual time and in real time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import growth
from tracebed.converters.cleaning.audit import clean
from tracebed.converters.cleaning.recipes import load_recipe
from tracebed.converters.formats.registry import read_raw
from tracebed.converters.malleability import to_malleable
from tracebed.converters.models import registry
from tracebed.converters.scaling import scale
from tracebed.converters.workload import Workload, read_workload
from tracebed.orchestrator.prediction import Engine, nodes_of, predict
from tracebed.orchestrator.replayer import Options, replay
from tracebed.orchestrator.run import NodeFacts
from tracebed.orchestrator.testbeds.inventory import Inventory, Node

RICC = "logs/RICC-2010-2.swf.gz"


@pytest.mark.parametrize(
    ("policy", "by", "engine"),
    [
        *((policy, "node", "compiled") for policy in ("fcfs", "easy", "pref")),
        ("easy", "core", "compiled"),
        *((policy, "node", "python") for policy in ("fcfs", "easy")),
    ],
)
def test_ricc(benchmark: Any, reference_data: Callable[[str], Path], policy: str, by: str, engine: Engine) -> None:
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


@pytest.mark.parametrize(("jobs", "nodes"), [(10_000, 1_000), (100_000, 1_000), (1_000_000, 1_000), (100_000, 100_000)])
def test_growth(benchmark: Any, jobs: int, nodes: int) -> None:
    """EASY at a load of 0.85; `growth.py` draws more of it."""
    machine = [NodeFacts(f"n{number}", 1) for number in range(nodes)]
    run = benchmark.pedantic(predict, (growth.workload(jobs, nodes), machine, "easy"), {"engine": "compiled"}, rounds=1)
    assert run.info.counts["completed"] == jobs


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
    """600 jobs within 20 minutes, at 100x, on four emulated nodes: how late submissions are is an extra figure."""
    rng = np.random.default_rng(1)
    table = {
        "job_id": [str(number) for number in range(600)],
        "submit_time": np.sort(rng.uniform(0, 1200, 600)),
        "run_time": rng.uniform(1, 10, 600),
        "time_limit": 20.0,
        "nodes": rng.integers(1, 3, 600),
    }
    inventory = Inventory("bench", "local", tuple(Node(f"n{i}", 8, 1, None, True) for i in range(4)))
    work = Workload(pd.DataFrame(table))

    def run() -> dict[str, float]:
        return replay(work, inventory, "easy", tmp_path / "run", options=Options(speed=100)).info.lateness_ms

    benchmark.extra_info.update(benchmark.pedantic(run, rounds=1))
    assert benchmark.extra_info["count"] == 600
