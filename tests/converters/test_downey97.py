"""Downey's workload model compared with closed forms; there is no reference program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tracebed.converters.models.downey97 import DAY, HALF, Downey97Parameters, arrivals, downey97, draw
from tracebed.converters.speedup import downey_speedup
from tracebed.converters.workload import System

JOBS = 30_000
P = Downey97Parameters(work_min=50.0, work_max=2e5, day_gap=40.0, night_gap=160.0)


def test_work_and_parallelism_are_log_uniform_and_sigma_uniform() -> None:
    draws = draw(JOBS, 256, 1, P)
    assert stats.kstest(draws.work, stats.loguniform(50.0, 2e5).cdf).pvalue > 1e-3
    assert stats.kstest(draws.parallelism, stats.loguniform(1.0, 256.0).cdf).pvalue > 1e-3
    assert stats.kstest(draws.sigma, stats.uniform(0.0, 2.0).cdf).pvalue > 1e-3
    narrow = draw(JOBS, 256, 1, Downey97Parameters(parallelism_max=16.0, sigma_max=0.5))
    assert stats.kstest(narrow.parallelism, stats.loguniform(1.0, 16.0).cdf).pvalue > 1e-3
    assert stats.kstest(narrow.sigma, stats.uniform(0.0, 0.5).cdf).pvalue > 1e-3
    assert draw(JOBS, 256, 1, P).work.mean() == pytest.approx((2e5 - 50.0) / np.log(2e5 / 50.0), rel=0.03)


@pytest.mark.parametrize("begins", [0.0, 28_800.0, 50_000.0])
def test_arrivals_are_poisson_with_a_rate_for_each_half_of_the_day(begins: float) -> None:
    p = Downey97Parameters(day_gap=40.0, night_gap=160.0, day_begins=begins)
    submit = draw(JOBS, 128, 2, p).submit
    days = int(submit[-1] // DAY)
    submit = submit[submit < days * DAY]
    by_day = (submit - begins) % DAY < HALF
    for jobs, gap in ((by_day.sum(), 40.0), ((~by_day).sum(), 160.0)):
        assert jobs == pytest.approx(days * HALF / gap, abs=4 * np.sqrt(days * HALF / gap))
    assert stats.kstest((submit[by_day] - begins) % DAY, stats.uniform(0, HALF).cdf).pvalue > 1e-3
    within = np.diff(submit)[by_day[1:] & by_day[:-1] & (np.diff(submit) < HALF)]
    assert stats.kstest(within, stats.expon(scale=40.0).cdf).pvalue > 1e-3


@given(st.floats(0.0, 86_399.0), st.floats(1.0, 5000.0), st.floats(1.0, 5000.0), st.floats(0.0, 400_000.0))
def test_arrivals_invert_the_cumulative_rate(begins: float, day: float, night: float, until: float) -> None:
    p = Downey97Parameters(day_gap=day, night_gap=night, day_begins=begins)
    passed = np.array([DAY - begins, DAY - begins + until])  # since the start of a half-day, at time 0 and at the end
    by_day = np.diff(passed // DAY * HALF + np.minimum(passed % DAY, HALF))
    units = by_day / day + (until - by_day) / night
    assert arrivals(units, p)[0] == pytest.approx(until, rel=1e-6, abs=1e-6)


def test_a_job_requests_its_parallelism_and_runs_as_downey_says() -> None:
    workload, draws = downey97(2000, nodes=64, seed=4), draw(2000, 64, 4, Downey97Parameters())
    nodes = workload.ints("nodes")
    assert nodes.tolist() == np.ceil(draws.parallelism).tolist()
    assert workload.floats("run_time") * downey_speedup(nodes, draws.parallelism, draws.sigma) == pytest.approx(
        draws.work
    )
    assert set(workload.column("kind")) == {"moldable"}
    assert (workload.ints("nodes_min") == 1).all()
    most = workload.ints("nodes_max")
    assert most.max() == 64
    beyond = downey_speedup(np.maximum(most + 1, 65), draws.parallelism, draws.sigma)
    within = most < 64
    assert downey_speedup(most, draws.parallelism, draws.sigma)[within] == pytest.approx(beyond[within])
    average, sigma = np.array([words.split() for words in workload.column("speedup_parameters")], dtype=float).T
    assert average == pytest.approx(draws.parallelism)
    assert sigma == pytest.approx(draws.sigma)


def test_the_workload_says_where_it_comes_from() -> None:
    workload = downey97(100, nodes=64, cores_per_node=2, seed=5, parameters=P)
    assert workload.provenance.system == System(64, 2, "Downey 1997")
    (step,) = workload.provenance.steps
    assert (step.name, step.seed, step.parameters["work_min"]) == ("downey97", 5, 50.0)
    assert workload.sha256 == downey97(100, nodes=64, cores_per_node=2, seed=5, parameters=P).sha256
    assert workload.sha256 != downey97(100, nodes=64, cores_per_node=2, seed=6, parameters=P).sha256
