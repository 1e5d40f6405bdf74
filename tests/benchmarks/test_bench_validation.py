"""Speed of metrics, comparison and report on runs of a large log's size."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tracebed.orchestrator.run import NodeFacts, Run, RunInfo
from tracebed.validation.metrics import metrics
from tracebed.validation.report import html
from tracebed.validation.verdict import compare

JOBS, NODES, CORES = 450_000, 1024, 8


def large(count: int, *, real: bool, noise: float = 0.0) -> Run:
    """Return a run of `count` jobs of one to five nodes; nodes are drawn, so some are allocated twice."""
    generator = np.random.default_rng(0)
    submit = np.sort(generator.uniform(0, 30.0 * count, count))
    start = submit + generator.exponential(500.0, count) * (generator.random(count) < 0.5)
    end = start + generator.lognormal(6.0, 1.5, count) * (1 + noise)
    nodes = generator.integers(1, 6, count)
    ids = np.arange(count).astype(str)
    jobs = pd.DataFrame(
        {
            "job_id": ids,
            "kind": "rigid",
            "submit_planned": submit,
            "submit": submit,
            "start": start,
            "launched": start,
            "end": end,
            "state": "completed",
            "reason": "",
            "nodes": nodes,
            "run_time": end - start,
            "time_limit": 2 * (end - start),
            "user": "",
        }
    )
    row = np.repeat(np.arange(count), nodes)
    held = pd.DataFrame(
        {
            "job_id": ids[row],
            "node": generator.integers(0, NODES, len(row)),
            "count": 1,
            "start": start[row],
            "end": end[row],
            "cores": CORES,
            "cpus": "",
        }
    )
    info = RunInfo(
        "replay" if real else "simulator",
        "emulated" if real else "simulated",
        [NodeFacts(f"n{index}", CORES) for index in range(NODES)],
        {"name": "large", "sha256": "a", "jobs": count},
        "easy",
    )
    return Run(info, jobs, held)


@pytest.fixture(scope="module")
def pair() -> tuple[Run, Run]:
    return large(JOBS, real=True, noise=0.02), large(JOBS, real=False)


def test_metrics_of_450_000_jobs(benchmark: BenchmarkFixture, pair: tuple[Run, Run]) -> None:
    assert benchmark(metrics, pair[0])["jobs"] == JOBS


def test_compare_450_000_jobs(benchmark: BenchmarkFixture, pair: tuple[Run, Run]) -> None:
    found = benchmark.pedantic(compare, pair, rounds=3)
    assert found.matching.matched == JOBS


def test_report_of_450_000_jobs(benchmark: BenchmarkFixture, pair: tuple[Run, Run]) -> None:
    found = compare(*pair)
    assert len(benchmark.pedantic(html.render, (found,), rounds=3)) < 5_000_000
