"""How fast the scheduler is, in virtual time and in real time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tracebed.converters.malleability import to_malleable
from tracebed.converters.models import registry
from tracebed.converters.scaling import scale
from tracebed.converters.workload import Workload, read_workload
from tracebed.orchestrator.prediction import nodes_of, predict
from tracebed.orchestrator.replayer import Options, replay
from tracebed.orchestrator.run import NodeFacts
from tracebed.orchestrator.testbeds.inventory import Inventory, Node

RICC = "logs/RICC-2010-2.swf.gz"


@pytest.mark.parametrize("by", ["node", "core"])
@pytest.mark.parametrize("policy", ["fcfs", "easy", "pref"])
def test_ricc(benchmark: Any, reference_data: Callable[[str], Path], policy: str, by: str) -> None:
    """447,794 jobs on 1,024 whole nodes, or on 8,192 cores."""
    if by == "core" and policy != "easy":
        pytest.skip("one policy is enough to see what 8,192 nodes cost")
    workload = read_workload(reference_data(RICC), by=by)
    nodes = nodes_of(workload.provenance.system)
    run = benchmark.pedantic(predict, (workload, nodes, policy), rounds=1)
    assert run.info.counts["completed"] == 447_794


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
