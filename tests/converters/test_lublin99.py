"""The Lublin model: bit for bit equal to its reference program, and statistically equal with NumPy's generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tracebed.converters.models.lublin99 import (
    BUCKET,
    BUCKETS,
    Drand48,
    JobType,
    Lublin99Draws,
    Lublin99Parameters,
    cycle,
    draw_exactly,
    draw_fast,
    instants,
    lublin99,
)
from tracebed.converters.workload import System
from tracebed.ground.errors import InputError

PUBLISHED = Lublin99Parameters()


def types(name: str) -> list[JobType]:
    """Return the job types of a reference file: typed128 or untyped256."""
    kind, nodes = name.rstrip("0123456789"), int(name.lstrip("untyped"))
    return [
        of.on(nodes) for of in ([PUBLISHED.interactive, PUBLISHED.batch] if kind == "typed" else [PUBLISHED.untyped])
    ]


def differences(draws: Lublin99Draws, expected: pd.DataFrame) -> dict[str, int]:
    """Return the number of jobs that differ from the reference, by column."""
    return {
        name: int((expected[name].to_numpy() != values).sum())
        for name, values in zip(("arrival", "nodes", "runtime", "type"), draws, strict=True)
    }


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        *((name, "exact/lublin99_{}_seed1_first2000.csv") for name in ("untyped128", "untyped256")),
        *((name, "exact/lublin99_{}_seed1_first2000.csv") for name in ("untyped1024", "typed128")),
        *((name, "lublin99_{}_seed1_first20000.csv.gz") for name in ("untyped1024", "typed128")),
    ],
)
def test_with_drand48_it_equals_the_reference_bit_for_bit(
    name: str, jobs: str, reference_data: Callable[[str], Path]
) -> None:
    expected = pd.read_csv(reference_data("models/" + jobs.format(name)))
    draws = draw_exactly(len(expected), types(name), 1, PUBLISHED)
    assert differences(draws, expected) == dict.fromkeys(expected.columns, 0)


@pytest.mark.parametrize("name", ["typed128", "untyped1024"])
@pytest.mark.parametrize("seed", [1, 2])
def test_with_numpy_the_distributions_are_the_same(name: str, seed: int, reference_data: Callable[[str], Path]) -> None:
    expected = pd.read_csv(reference_data(f"models/lublin99_{name}_seed1_first20000.csv.gz"))
    draws = draw_fast(len(expected), types(name), seed, PUBLISHED)
    p_values = {}
    for kind in range(len(types(name))):  # one type at a time: their shares are bursty, like arrivals
        ours, theirs = draws.kind == kind, expected["type"] == kind
        p_values[f"nodes {kind}"] = stats.ks_2samp(draws.nodes[ours], expected["nodes"][theirs]).pvalue
        p_values[f"run {kind}"] = stats.ks_2samp(draws.run[ours], expected["runtime"][theirs]).pvalue
    assert min(p_values.values()) > 1e-3, p_values
    log_gaps = [np.log1p(np.diff(submit)) for submit in (draws.submit, expected["arrival"])]
    levels = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]
    ours, theirs = (np.quantile(log_gap, levels) for log_gap in log_gaps)
    assert ours == pytest.approx(theirs, abs=0.15)
    pmfs = [
        np.bincount(submit // 3600 % 24, minlength=24) / len(expected) for submit in (draws.submit, expected["arrival"])
    ]
    assert np.abs(pmfs[0] - pmfs[1]).sum() / 2 < 0.1


@pytest.mark.parametrize(
    ("name", "a_day", "nodes", "serial", "run_mean", "run_median"),
    [
        ("typed128", 168.0, 8.90, 0.175, 1600.0, 18.0),
        ("untyped128", 95.3, 12.13, 0.244, 4359.0, 107.0),
        ("untyped256", 95.8, 22.16, 0.244, 4896.0, 145.0),
        ("untyped1024", 93.1, 77.95, 0.244, 6258.0, 555.0),
    ],
)
def test_its_means_are_those_of_the_reference(
    name: str, a_day: float, nodes: float, serial: float, run_mean: float, run_median: float
) -> None:
    """The figures are means over 3 x 100,000 jobs of the reference program; arrivals are bursty."""
    draws = draw_fast(300_000, types(name), 7, PUBLISHED)
    assert len(draws.submit) / (draws.submit[-1] / 86_400) == pytest.approx(a_day, rel=0.06)
    assert draws.nodes.mean() == pytest.approx(nodes, rel=0.02)
    assert (draws.nodes == 1).mean() == pytest.approx(serial, rel=0.03)
    assert draws.run.mean() == pytest.approx(run_mean, rel=0.06)
    assert np.median(draws.run) == pytest.approx(run_median, rel=0.06)


@given(st.lists(st.floats(0.0, 4e5), min_size=1, max_size=30), st.sampled_from(["interactive", "batch", "untyped"]))
def test_arrivals_equal_those_of_a_plain_loop_over_the_day(gaps: list[float], name: str) -> None:
    weights = cycle(getattr(PUBLISHED, name))
    assert weights.shape == (BUCKETS,)
    assert weights.mean() == pytest.approx(1.0)
    bucket, points, expected = 0, 0.0, []
    for gap in gaps:
        points += gap / BUCKET
        while points > weights[bucket % BUCKETS]:
            points -= weights[bucket % BUCKETS]
            bucket += 1
        expected.append(BUCKET * (bucket + points / weights[bucket % BUCKETS]))
    assert instants(np.array(gaps), weights) == pytest.approx(np.array(expected), abs=1e-3)


def test_the_day_is_busy_when_people_work() -> None:
    for of in (PUBLISHED.interactive, PUBLISHED.batch, PUBLISHED.untyped):
        weights = cycle(of)
        assert 22 <= weights.argmax() <= 32
        assert 4 <= weights.argmin() <= 10


@pytest.mark.parametrize("exact", [False, True])
def test_the_workload_has_the_draws_and_their_provenance(exact: bool) -> None:
    workload = lublin99(500, seed=5, cores_per_node=4, exact=exact)
    draws = (draw_exactly if exact else draw_fast)(500, types("typed128"), 5, PUBLISHED)
    assert workload.provenance.system == System(128, 4, "Lublin and Feitelson")
    assert workload.floats("submit_time").tolist() == draws.submit.tolist()
    assert workload.floats("run_time").tolist() == draws.run.tolist()
    assert workload.ints("nodes").tolist() == draws.nodes.tolist()
    assert [("interactive", "batch")[kind] for kind in draws.kind] == workload.column("queue").tolist()
    assert np.isnan(workload.floats("time_limit")).all()
    (step,) = workload.provenance.steps
    assert (step.name, step.seed, step.parameters["batch.long_shape"]) == ("lublin99", 5, 639.1)
    assert step.counts == {"jobs": 500, "interactive jobs": 500 - draws.kind.sum(), "batch jobs": draws.kind.sum()}
    assert "queue" not in lublin99(50, untyped=True, exact=exact).table


def test_the_same_seed_gives_the_same_workload_and_another_seed_another() -> None:
    assert lublin99(100, seed=3).sha256 == lublin99(100, seed=3).sha256
    assert lublin99(100, seed=3).sha256 != lublin99(100, seed=4).sha256


@given(st.integers(1, 5000), st.booleans(), st.integers(0, 99))
def test_no_job_is_larger_than_the_machine(nodes: int, untyped: bool, seed: int) -> None:
    sizes = lublin99(300, nodes=nodes, untyped=untyped, seed=seed).ints("nodes")
    assert sizes.min() >= 1
    assert sizes.max() <= nodes


def test_parameters_have_their_documented_effect() -> None:
    serial = replace(PUBLISHED, untyped=replace(PUBLISHED.untyped, serial=1.0))
    assert set(lublin99(500, untyped=True, parameters=serial).ints("nodes")) == {1}
    powers = replace(PUBLISHED, untyped=replace(PUBLISHED.untyped, serial=0.0, power_of_two=1.0))
    assert set(lublin99(500, untyped=True, parameters=powers).ints("nodes")) <= {2**i for i in range(1, 8)}
    short = replace(PUBLISHED, longest_run=10.0)
    assert lublin99(5000, parameters=short).floats("run_time").max() <= np.exp(10.0)


def test_a_distribution_beyond_its_cutoff_is_an_error_and_not_an_endless_loop() -> None:
    with pytest.raises(InputError, match=r"longest_run 9.0 is out of range \(must be 9.97 \(batch\) to 25"):
        Lublin99Parameters(longest_run=9.0)
    with pytest.raises(InputError, match="longest_gap"):
        Lublin99Parameters(untyped=replace(PUBLISHED.untyped, gap_shape=40.0))


def test_a_day_with_hours_of_no_arrivals_is_an_error() -> None:
    night = replace(PUBLISHED.untyped, cycle_shape=1e9)
    with pytest.raises(InputError, match="a daily cycle of gamma"):
        lublin99(5, untyped=True, parameters=replace(PUBLISHED, untyped=night))


def test_drand48_is_that_of_posix() -> None:
    random = Drand48(0)
    assert [round(random.uniform(), 6) for _ in range(4)] == [0.170828, 0.749902, 0.096372, 0.870465]


@pytest.mark.parametrize(("shape", "scale"), [(0.4, 2.0), (3.0, 0.5), (4.2, 0.94)])
def test_drand48_draws_gamma_variates(shape: float, scale: float) -> None:
    random = Drand48(12345)
    values = [random.gamma(shape, scale) for _ in range(3000)]
    assert stats.kstest(values, stats.gamma(shape, scale=scale).cdf).pvalue > 1e-3
