"""Scores of the board: clusters, intervals over clusters, paired differences, and what noise cannot explain."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tracebed.studies.board.scores import (
    ALPHA,
    KAPPA,
    NOISE,
    inaccurate,
    of_clusters,
    paired,
    pooled_sd,
    proved_off,
    spread,
)

ERRORS = st.floats(0, 50)
CASES = st.lists(st.tuples(ERRORS, st.sampled_from("abc"), st.sampled_from("xyz")), min_size=1, max_size=12)


@given(CASES)
def test_a_cluster_is_the_mean_of_its_real_runs_which_are_means_of_their_cases(
    cases: list[tuple[float, str, str]],
) -> None:
    values = [value for value, _, _ in cases]
    runs, clusters = [run for _, run, _ in cases], [cluster for _, _, cluster in cases]
    nested: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for value, run, cluster in cases:
        nested[cluster][run].append(value)
    expected = {
        name: statistics.fmean(statistics.fmean(own) for own in by_run.values()) for name, by_run in nested.items()
    }
    assert of_clusters(values, runs, clusters) == pytest.approx(expected)


def test_copies_of_a_case_change_nothing() -> None:
    """Twenty cases of ten real runs of five workloads have the mean and the interval of five workloads."""
    errors, runs, workloads = [1.0, 3.0, 5.0], ["a34", "a37", "b34"], ["a", "a", "b"]
    once = of_clusters(errors, runs, workloads)
    assert once == {"a": 2.0, "b": 5.0}
    assert of_clusters(errors * 2, runs * 2, workloads * 2) == once
    assert spread(list(once.values())).clusters == 2


@given(st.lists(ERRORS, min_size=2, max_size=9))
def test_an_interval_is_that_of_student(values: list[float]) -> None:
    found = spread(values)
    mean, sem = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    assert found.mean == pytest.approx(mean)
    low, high = (mean, mean) if sem == 0 else stats.t.interval(1 - 2 * ALPHA, len(values) - 1, mean, sem)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-9)


def test_one_cluster_has_no_interval() -> None:
    found = spread([3.0])
    assert found.mean == 3.0
    assert math.isnan(found.low) and math.isnan(found.high)


def test_a_paired_difference_is_over_the_common_clusters_and_loses_their_difficulty() -> None:
    """Two simulators with overlapping intervals may differ in each workload in the same direction."""
    ours = {"a": 1.0, "b": 5.0, "c": 20.0, "only ours": 90.0}
    theirs = {"a": 1.5, "b": 5.4, "c": 20.6}
    found = paired(ours, theirs)
    assert found is not None
    assert found.mean == pytest.approx(-0.5)
    assert found.clusters == 3
    assert found.high < 0
    assert spread(list(ours.values())).low < spread(list(theirs.values())).mean
    back = paired(theirs, ours)
    assert back is not None and (back.low, back.high) == pytest.approx((-found.high, -found.low))
    assert paired({"a": 1.0}, {"b": 1.0}) is None


def test_the_noise_is_at_least_what_is_assumed() -> None:
    """An error of 4.5 margins is proved to be off, unless repetitions of the data set show more noise."""
    errors = {"mean_wait_s": [0.1, -4.5], "makespan_s": [0.1, 0.2]}
    assert inaccurate(errors, {}) == ["mean_wait_s"]
    assert inaccurate(errors, {"mean_wait_s": 0.1}) == ["mean_wait_s"]
    assert inaccurate(errors, {"mean_wait_s": 2.0}) == []
    assert inaccurate({}, {}) == []


def test_p_values_are_those_of_the_worst_case_by_bonferroni() -> None:
    errors = np.array([0.5, -4.0, 3.0])
    expected = 3 * stats.norm.sf((4.0 - KAPPA) / NOISE)
    assert proved_off(errors, NOISE) == pytest.approx(expected)
    assert proved_off([0.0], NOISE) > 0.99


@pytest.mark.parametrize("bias", [0.0, 1.0, KAPPA])
@pytest.mark.parametrize("cases", [1, 6, 20])
def test_errors_up_to_two_margins_are_rarely_called_inaccurate(bias: float, cases: int) -> None:
    """Five metrics, each case off by `bias` margins, and noise as large as it is assumed to be at most."""
    rng = np.random.default_rng(cases)
    trials = 1000
    z = bias + NOISE * rng.standard_normal((trials, 5, cases))
    wrong = np.mean([bool(inaccurate({str(k): metric for k, metric in enumerate(trial)}, {})) for trial in z])
    assert wrong <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / trials)


@pytest.mark.parametrize(("skewness", "bias", "most"), [(0.5, 0.0, 0.01), (0.5, 1.0, 0.03), (1.0, 0.0, 0.025)])
def test_skewed_noise_rarely_makes_an_accurate_simulator_inaccurate(skewness: float, bias: float, most: float) -> None:
    """Disturbances only delay jobs. Gamma noise of 0.8 margins, 20 cases, five metrics."""
    rng = np.random.default_rng(3)
    shape = 4 / skewness**2
    noise = (rng.gamma(shape, 1.0, (600, 5, 20)) - shape) / math.sqrt(shape)
    z = bias + NOISE * noise
    wrong = np.mean([bool(inaccurate({str(k): metric for k, metric in enumerate(trial)}, {})) for trial in z])
    assert wrong <= most


def test_large_errors_are_called_inaccurate() -> None:
    rng = np.random.default_rng(1)
    z = NOISE * rng.standard_normal((500, 6))
    z[:, 0] += 6.0
    assert np.mean([bool(inaccurate({"mean_wait_s": trial}, {})) for trial in z]) > 0.9


def test_standard_deviations_are_pooled_by_their_degrees_of_freedom() -> None:
    groups = [[1.0, 2.0, 4.0], [10.0, 10.5], [7.0]]
    sd = [statistics.stdev(each) if len(each) > 1 else math.nan for each in groups]
    squares = sum((value - statistics.fmean(each)) ** 2 for each in groups for value in each)
    assert pooled_sd(sd, [2, 1, 0]) == pytest.approx(math.sqrt(squares / 3))
    assert math.isnan(pooled_sd([math.nan], [0]))
