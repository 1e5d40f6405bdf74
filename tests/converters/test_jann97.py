"""Jann's model as a fit to a log: three moments are recovered, also for each class of a real log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.models.cirne import cirne
from tracebed.converters.models.jann97 import (
    HyperErlang,
    Jann97Parameters,
    SizeClass,
    draw,
    fit,
    hyper_erlang,
    jann97,
    moments,
)
from tracebed.converters.workload import System, Workload
from tracebed.ground.errors import InputError, Tolerated


def same_moments(law: HyperErlang, m: tuple[float, float, float], rel: float) -> None:
    assert [law.moment(k) for k in (1, 2, 3)] == pytest.approx(m, rel=rel)
    assert 0.0 <= law.p <= 1.0
    assert law.scale1 > 0.0
    assert law.scale2 > 0.0


@given(
    st.integers(1, 8),
    st.floats(0.001, 0.999),
    st.floats(1e-2, 1e6),
    st.floats(1.1, 1000.0),
)
def test_the_inversion_recovers_a_hyper_erlang_law(order: int, p: float, scale: float, ratio: float) -> None:
    law = HyperErlang(order, p, scale * ratio, scale)
    m = (law.moment(1), law.moment(2), law.moment(3))
    found = hyper_erlang(*m, 100)
    assert found is not None
    assert found.order <= order
    same_moments(found, m, 1e-6)
    if found.order == order and ratio > 2.0 and 0.01 < p < 0.99:
        assert found == pytest.approx(law, rel=1e-3)


def test_values_too_small_to_be_cubed_have_no_distribution() -> None:
    assert hyper_erlang(*moments(np.array([0.0, 0.0, 0.0, 2.22e-120])), 100) is None


@given(st.lists(st.floats(0.0, 1e5), min_size=4, max_size=40))
def test_any_values_that_vary_are_fitted(values: list[float]) -> None:
    m = moments(np.array(values))
    assume(m[1] > 1.02 * m[0] ** 2 > 0.0)
    law = hyper_erlang(*m, 10_000)
    assume(law is not None)  # two distinct values: m1 m3 = m2^2 has no solution of any order
    assert law is not None
    same_moments(law, m, 1e-5)


def test_the_order_is_the_lowest_possible() -> None:
    m = tuple(stats.gamma(3.5).moment(k) for k in (1, 2, 3))
    law = hyper_erlang(*m, 100)
    assert law is not None
    assert law.order == 4
    assert hyper_erlang(*m, 3) is None
    exponential = hyper_erlang(1.0, 2.2, 8.0, 100)
    assert exponential is not None
    assert exponential.order == 1


def test_draws_follow_the_law() -> None:
    law = HyperErlang(2, 0.3, 100.0, 5.0)
    drawn = law.draw(np.random.default_rng(1), 20_000)

    def cdf(t: np.ndarray) -> np.ndarray:
        return 0.3 * stats.gamma(2, scale=100.0).cdf(t) + 0.7 * stats.gamma(2, scale=5.0).cdf(t)

    assert stats.kstest(drawn, cdf).pvalue > 1e-3


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_class_of_ricc_keeps_its_three_moments(reference_data: Callable[[str], Path]) -> None:
    log = read_workload(reference_data("logs/RICC-2010-2.swf.gz"))
    classes = fit(log)
    size = log.ints("nodes") * log.ints("cores_per_node")
    assert sum(c.jobs for c in classes) == len(log)
    assert [c.low for c in classes[:4]] == [1, 2, 3, 5]
    for c in classes:
        members = (size >= c.low) & (size <= c.high)
        assert members.sum() == c.jobs
        same_moments(c.gap, moments(np.diff(log.floats("submit_time")[members])), 1e-6)
        same_moments(c.run, moments(log.floats("run_time")[members]), 1e-6)


def log_of(nodes: list[int], seed: int = 1) -> Workload:
    """Return a log with exponential gaps and run times, so that every class can be fitted."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "job_id": [str(i) for i in range(len(nodes))],
            "submit_time": np.cumsum(rng.exponential(60.0, len(nodes))),
            "run_time": rng.exponential(600.0, len(nodes)) * np.array(nodes),
            "nodes": nodes,
        }
    )
    return Workload(table)


def test_small_classes_join_a_neighbor() -> None:
    nodes = [1] * 10 + [2] * 60 + [3] * 20 + [8] * 5 + [16] * 70 + [32] * 3
    classes = fit(log_of(nodes), Jann97Parameters(fewest=20))
    assert [(c.low, c.high, c.jobs) for c in classes] == [(1, 2, 70), (3, 8, 25), (16, 32, 73)]
    assert [dict(zip(c.nodes.tolist(), c.shares * c.jobs, strict=True)) for c in classes] == [
        pytest.approx({1: 10, 2: 60}),
        pytest.approx({3: 20, 8: 5}),
        pytest.approx({16: 70, 32: 3}),
    ]


def test_a_draw_has_the_rate_the_sizes_and_the_times_of_each_class() -> None:
    rng = np.random.default_rng(2)
    log = log_of(rng.choice([1, 2, 6, 8], 4000, p=[0.1, 0.5, 0.1, 0.3]).tolist())
    classes = fit(log)
    table = draw(50_000, classes, 3)
    assert (np.diff(table["submit_time"]) >= 0).all()
    end = table["submit_time"].iloc[-1]
    for c in classes:
        members = table[(table["nodes"] >= c.low) & (table["nodes"] <= c.high)]
        assert len(members) == pytest.approx(end / c.gap.moment(1), rel=0.05)
        gap = np.diff(members["submit_time"], prepend=0.0)
        assert gap.mean() == pytest.approx(c.gap.moment(1), rel=0.05)
        assert members["run_time"].mean() == pytest.approx(c.run.moment(1), rel=0.05)
        found = [(members["nodes"] == n).sum() for n in c.nodes]
        assert found == pytest.approx(c.shares * len(members), abs=5 * np.sqrt(len(members)))
        law = c.run.draw(np.random.default_rng(9), 20_000)
        assert stats.ks_2samp(members["run_time"], law).pvalue > 1e-3


def test_a_bursty_class_is_drawn_until_the_end() -> None:
    """First guesses from mean rates are too small if gaps are rare and very long."""
    bursts = HyperErlang(1, 0.001, 1e6, 0.01)
    steady = HyperErlang(1, 1.0, 1e3, 1e3)
    one = SizeClass(1, 1, 10, bursts, steady, np.array([1]), np.array([1]), np.array([1.0]))
    two = one._replace(gap=steady, nodes=np.array([2]))
    table = draw(3000, [one, two], 1)
    last = table.groupby("nodes")["submit_time"].max()
    assert len(table) == 3000
    assert (table["nodes"] == 2).sum() == pytest.approx(table["submit_time"].iloc[-1] / 1e3, rel=0.2)
    assert last[2] > table["submit_time"].iloc[-1] - 2e4


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    write_workload(cirne(3000, nodes=64, cores_per_node=4, seed=1), path)
    drawn = jann97(2000, log=path, seed=4)
    assert drawn.provenance.system == System(64, 4, "Jann et al. 1997, log.parquet")
    (step,) = drawn.provenance.steps
    assert (step.name, step.seed) == ("jann97", 4)
    assert step.counts["jobs fitted"] == 3000
    assert set(drawn.ints("cores_per_node")) == {4}
    assert drawn.sha256 == jann97(2000, log=path, seed=4).sha256
    assert drawn.sha256 != jann97(2000, log=path, seed=5).sha256
    smaller = jann97(2000, log=path, seed=4, nodes=16, cores_per_node=2)
    assert smaller.ints("nodes").tolist() == np.minimum(drawn.ints("nodes"), 16).tolist()
    assert set(smaller.ints("cores_per_node")) == {2}


def test_logs_that_cannot_be_fitted_are_errors() -> None:
    with pytest.raises(InputError, match="3 jobs to fit are too few"):
        fit(log_of([1, 1, 1]))
    at_once = log_of([1] * 60 + [64] * 60)
    table = at_once.table.assign(submit_time=np.where(at_once.ints("nodes") == 1, 5.0, at_once.floats("submit_time")))
    with pytest.raises(InputError, match="all 60 jobs of 1 to 1 cores have the same submit time"):
        fit(Workload(table))
    regular = log_of([1] * 100)
    with pytest.warns(Tolerated, match="only the mean was fitted"):
        (only,) = fit(Workload(regular.table.assign(run_time=30.0)))
    assert only.run.moment(1) == pytest.approx(30.0)
    with pytest.warns(Tolerated, match="only the mean was fitted"):
        (only,) = fit(Workload(regular.table.assign(run_time=0.0)))
    assert only.run.draw(np.random.default_rng(1), 3).tolist() == [0.0, 0.0, 0.0]
