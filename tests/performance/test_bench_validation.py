"""Speed of metrics, comparison and report on runs of a large log's size."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.pages import validated
from tests.runs import large_run
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import metrics
from tracebed.validation.report import html
from tracebed.validation.verdict import compare

JOBS = 450_000


@pytest.fixture(scope="module")
def pair() -> tuple[Run, Run]:
    return large_run(JOBS, real=True, noise=0.02), large_run(JOBS, real=False)


def test_metrics_of_450_000_jobs(benchmark: BenchmarkFixture, pair: tuple[Run, Run]) -> None:
    assert benchmark(metrics, pair[0])["jobs"] == JOBS


def test_compare_450_000_jobs(benchmark: BenchmarkFixture, pair: tuple[Run, Run]) -> None:
    found = benchmark.pedantic(compare, pair, rounds=3)
    assert found.matching.matched == JOBS


def test_report_of_450_000_jobs(benchmark: BenchmarkFixture, pair: tuple[Run, Run]) -> None:
    found = validated(*pair)
    assert len(benchmark.pedantic(html.render, (found,), rounds=3)) < 30_000_000
