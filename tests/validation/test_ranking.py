"""Ranking of policies: decisive pairs, concordance, rank correlation."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from tests.runs import fcfs_run
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.ranking import Observation, rank, welch_interval
from tracebed.validation.verdict.validate import validate


def observed(
    policy: str, real: list[float], predicted: float, workload: str = "w", metric: str = "wait"
) -> Observation:
    return Observation(workload, policy, metric, np.array(real), np.array([predicted]))


def test_the_interval_is_that_of_welch() -> None:
    a, b = np.array([1.0, 2.0, 4.0]), np.array([3.0, 3.5, 4.5, 6.0])
    low, high = welch_interval(a, b)
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))
    assert welch_interval(np.ones(3), np.zeros(3)) == (1, 1)
    assert all(map(math.isnan, welch_interval(np.ones(1), np.zeros(3))))


def test_pairs_count_only_if_the_noise_decides_them() -> None:
    found = rank(
        [
            observed("easy", [100.0, 101.0, 99.0], 100.0),
            observed("fcfs", [200.0, 198.0, 203.0], 190.0),
            observed("sd", [100.5, 103.0, 98.0], 90.0),
        ]
    )
    assert found is not None
    assert [(pair.first, pair.second, pair.decisive) for pair in found.pairs] == [
        ("easy", "fcfs", True),
        ("easy", "sd", False),
        ("fcfs", "sd", True),
    ]
    assert (found.concordant, found.decisive, found.passed) == (2, 2, True)
    assert found.orders[0].policies == ("easy", "sd", "fcfs")
    assert found.orders[0].predicted == ("sd", "easy", "fcfs")
    assert found.orders[0].tau_b == pytest.approx(1 / 3)
    assert "2 of 2 decisive pairs" in found.headline
    assert "a rank correlation (tau-b) of 3 policies means little" in found.headline
    json.dumps(found.to_json())


def test_a_decisive_pair_in_the_opposite_order_fails_and_a_predicted_tie_does_not() -> None:
    real = [
        observed("easy", [10.0, 11.0], 30.0),
        observed("fcfs", [20.0, 21.0], 20.0),
        observed("sd", [40.0, 41.0], 20.0),
    ]
    found = rank(real)
    assert found is not None
    assert [pair.sentence for pair in found.discordant] == [
        "w, wait: easy below fcfs in the real runs, above in the predictions",
        "w, wait: easy below sd in the real runs, above in the predictions",
    ]
    assert not found.passed
    assert (found.concordant, found.decisive) == (0, 3)


def test_values_of_0_are_compared_by_their_difference() -> None:
    found = rank([observed("easy", [0.0, 0.0, 0.1], 0.0), observed("fcfs", [20.0, 21.0, 22.0], 5.0)])
    assert found is not None
    assert found.pairs[0].real == pytest.approx(0.1 / 3 - 21)
    assert found.passed
    assert found.decisive == 1


def test_undefined_values_and_single_policies_give_no_ranking() -> None:
    assert rank([observed("easy", [1.0, 2.0], 1.0), observed("fcfs", [math.nan], 1.0)]) is None
    assert rank([observed("easy", [1.0, 2.0], 1.0), observed("fcfs", [1.0, 2.0], 1.0, workload="v")]) is None
    single = rank([observed("easy", [1.0], 1.0), observed("fcfs", [2.0], 1.0)])
    assert single is not None
    assert single.decisive == 0
    assert single.passed
    assert "decides none of the 1 pairs" in single.headline


def test_a_validation_ranks_the_policies_of_each_workload() -> None:
    def case(policy: str, real: float, predicted: float) -> Case:
        runs = [fcfs_run(40, stretch=real * (1 + 0.001 * k), policy=policy) for k in range(5)]
        return Case.of(runs, [fcfs_run(40, stretch=predicted, real=False, policy=policy)])

    good = validate([case("easy", 1.0, 1.0), case("fcfs", 1.3, 1.3)])
    assert good.ranking is not None
    assert good.ranking.passed
    assert good.ranking.concordant == good.ranking.decisive > 0
    assert good.to_json()["ranking"]["passed"]
    wrong = validate([case("easy", 1.0, 1.3), case("fcfs", 1.3, 1.0)])
    assert any(
        "policies in the wrong order: tiny, wait, mean: easy below fcfs in the real runs" in text
        for text in wrong.warnings
    )
    assert validate([case("easy", 1.0, 1.0)]).ranking is None


@pytest.mark.slow
def test_an_exact_simulator_rarely_fails() -> None:
    """Five policies, two of them equal, five repetitions with 3 % noise: fewer than 5 % of the trials fail."""
    rng = np.random.default_rng(3)
    means = np.array([100.0, 100.0, 101.0, 120.0, 150.0])
    failed = 0
    for _ in range(300):
        real = means[:, None] * np.exp(rng.normal(0, 0.03, (5, 5)))
        found = rank([observed(f"p{i}", real[i].tolist(), float(means[i])) for i in range(5)])
        assert found is not None
        failed += not found.passed
    assert failed / 300 < 0.05
