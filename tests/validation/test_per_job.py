"""Differences job by job over all repetitions: equal to a slow, obvious reference."""

from __future__ import annotations

import itertools
import json
import math
import statistics

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from tests.runs import NAN, make_run
from tracebed.orchestrator.run import Run
from tracebed.validation.statistics import harrell_davis, kendall_tau, wasserstein
from tracebed.validation.verdict.per_job import DECILES, PerJob, per_job

waits = st.lists(st.floats(0, 1e4, allow_subnormal=False).map(lambda x: round(x, 3)), min_size=4, max_size=4)


def run_of(values: list[float], *, real: bool = True, missing: int | None = None) -> Run:
    """Return a run of one-node jobs with these waits; the job at `missing` never starts."""
    jobs = [(10.0 * n, 10.0 * n + wait, 10.0 * n + wait + 5.0, 1) for n, wait in enumerate(values)]
    if missing is not None:
        jobs[missing] = (10.0 * missing, NAN, NAN, 1)
    states = {} if missing is None else {str(missing + 1): "cancelled"}
    return make_run(jobs, machine=len(values), real=real, states=states)


@given(st.integers(2, 60), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_rank_correlation_and_distance_are_those_of_scipy(jobs: int, kinds: int, seed: int) -> None:
    """The correlation to the bit; the distance but for the order of its sum."""
    drawn = np.random.default_rng(seed)
    a, b = drawn.integers(0, kinds, (2, jobs)) * drawn.choice([1.0, 0.1])
    assert wasserstein(a, b) == pytest.approx(stats.wasserstein_distance(a, b), rel=1e-12, abs=1e-15)
    if np.ptp(a) > 0 and np.ptp(b) > 0:
        assert kendall_tau(a, b) == stats.kendalltau(a, b).statistic
    else:
        assert math.isnan(kendall_tau(a, b))


def reference(real: list[list[float]], predicted: list[list[float]]) -> dict[str, float]:
    """Return the figures from their definitions, without numpy."""
    jobs = range(len(real[0]))
    mean = [statistics.fmean(run[j] for run in real) for j in jobs]
    found = [statistics.fmean(run[j] for run in predicted) for j in jobs]
    d = [b - a for a, b in zip(mean, found, strict=True)]

    def distance(a: list[float], b: list[float]) -> float:
        return math.sqrt(statistics.fmean((x - y) ** 2 for x, y in zip(a, b, strict=True)))

    def wasserstein(a: list[float], b: list[float]) -> float:
        return float(stats.wasserstein_distance(a, b))

    def ks(a: list[float], b: list[float]) -> float:
        return max(abs(sum(x <= at for x in a) / len(a) - sum(x <= at for x in b) / len(b)) for at in (*a, *b))

    between = list(itertools.combinations(real, 2))
    across = list(itertools.product(real, predicted))
    own = statistics.fmean(distance(*pair) for pair in between) if between else NAN
    inside = [min(r[j] for r in real) - 1e-6 <= p[j] <= max(r[j] for r in real) + 1e-6 for p in predicted for j in jobs]
    return {
        "bias": statistics.fmean(d),
        "mae": statistics.fmean(map(abs, d)),
        "rmse": math.sqrt(statistics.fmean(x * x for x in d)),
        "inside_envelope": statistics.fmean(inside),
        "placed": statistics.fmean(abs(r[j] - p[j]) <= 15 + 1e-6 for r, p in across for j in jobs),
        "wasserstein": statistics.fmean(wasserstein(*pair) for pair in across),
        "wasserstein_real": statistics.fmean(wasserstein(*pair) for pair in between) if between else NAN,
        "ks_d": statistics.fmean(ks(*pair) for pair in across),
        "noise_ratio": statistics.fmean(distance(*pair) for pair in across) / own if own and between else NAN,
    }


@example([[0.0, 0.0, 0.0, 0.812]], [[0.0, 0.812, 0.0, 0.0]])  # the waits differ by a rounding error
@given(real=st.lists(waits, min_size=1, max_size=4), predicted=st.lists(waits, min_size=1, max_size=3))
def test_the_figures_equal_those_of_a_slow_reference(real: list[list[float]], predicted: list[list[float]]) -> None:
    found = per_job([run_of(run) for run in real], [run_of(run, real=False) for run in predicted])
    assert found is not None
    for name, value in reference(real, predicted).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-6, abs=1e-6, nan_ok=True), name
    matrix = np.array(found.distances)
    assert matrix.shape == (len(real) + len(predicted),) * 2
    assert (matrix == matrix.T).all()
    assert (np.diag(matrix) == 0).all()
    low, high = found.limits
    assert low <= found.bias <= high


def test_harrell_davis_equals_the_estimator_of_scipy() -> None:
    values = np.sort(np.random.default_rng(1).lognormal(3, 1, (2, 75)), axis=1)
    expected = [stats.mstats.hdquantiles(row, prob=DECILES) for row in values]
    assert harrell_davis(values, DECILES) == pytest.approx(np.array(expected))


def test_kendall_tau_is_the_mean_of_the_pairs() -> None:
    real, predicted = [[0.0, 3.0, 1.0, 7.0], [0.0, 3.0, 4.0, 7.0]], [1.0, 2.0, 3.0, 3.0]
    found = per_job([run_of(run) for run in real], [run_of(predicted, real=False)])
    assert found is not None
    expected = statistics.fmean(stats.kendalltau(run, predicted).statistic for run in real)
    assert found.kendall_tau == pytest.approx(expected)


def of_arrays(real: np.ndarray, predicted: np.ndarray) -> PerJob:
    found = per_job([run_of(run.tolist()) for run in real], [run_of(run.tolist(), real=False) for run in predicted])
    assert found is not None
    return found


def test_one_more_repetition_has_a_noise_ratio_of_1_and_the_exact_mean_less() -> None:
    rng = np.random.default_rng(7)
    mean = rng.uniform(100, 200, 300)
    real = mean + rng.normal(0, 5, (5, 300))
    another = of_arrays(real, mean + rng.normal(0, 5, (1, 300)))
    assert another.noise_ratio == pytest.approx(1, abs=0.1)
    assert another.inside_envelope == pytest.approx(another.inside_expected, abs=0.1)
    assert another.inside_expected == pytest.approx(4 / 6)
    assert of_arrays(real, mean[None]).noise_ratio == pytest.approx(math.sqrt(0.5), abs=0.05)
    off = of_arrays(real, mean[None] + 20)
    assert off.noise_ratio > 2.5
    assert np.array(off.shift.difference) == pytest.approx(np.full(9, 20), abs=3)
    assert (np.array(off.shift.low) <= off.shift.real).all()
    assert (np.array(off.shift.real) <= off.shift.high).all()


def test_shuffled_waits_have_the_same_distribution_and_another_noise_ratio() -> None:
    rng = np.random.default_rng(8)
    real = rng.uniform(100, 200, 100) + rng.normal(0, 1, (3, 100))
    found = of_arrays(real, rng.permuted(real[:1], axis=1))
    assert found.wasserstein < 1
    assert found.ks_d < 0.1
    assert found.noise_ratio > 10


def test_a_job_that_did_not_end_in_every_run_is_counted_and_left_out() -> None:
    found = per_job(
        [run_of([1.0, 2.0, 3.0]), run_of([1.0, 2.0, 3.0], missing=1)], [run_of([2.0, 9.0, 4.0], real=False)]
    )
    assert found is not None
    assert (found.jobs, found.unmatched) == (2, 1)
    assert found.bias == 1
    assert found.jobs_table["job_id"].tolist() == ["1", "3"]
    assert per_job([run_of([1.0, 2.0], missing=0)], [run_of([1.0, 2.0], real=False)]) is None


def test_one_repetition_has_no_noise_and_equal_repetitions_no_ratio() -> None:
    single = per_job([run_of([1.0, 2.0])], [run_of([1.0, 3.0], real=False)])
    assert single is not None
    assert math.isnan(single.noise_ratio)
    assert math.isnan(single.wasserstein_real)
    equal = per_job([run_of([1.0, 2.0])] * 2, [run_of([1.0, 3.0], real=False)])
    assert equal is not None
    assert math.isnan(equal.noise_ratio)


def test_the_figures_are_json_values() -> None:
    found = per_job([run_of([1.0, 2.0])] * 2, [run_of([1.0, 3.0], real=False)])
    assert found is not None
    document = json.loads(json.dumps(found.to_json()))
    assert len(document["distances"]) == 3
    assert document["shift"]["probabilities"] == list(DECILES)
    assert "jobs_table" not in document
