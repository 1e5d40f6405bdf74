"""The error rates of the verdict, by simulation (docs/explanation/verdict.md has the tables)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles.error_rates import DESIGNS, NOISE, NOISES, RULE, Noise, cancelling, one_bad, rates
from tracebed.validation.verdict.decision import tost_power

pytestmark = pytest.mark.slow

TRIALS = 5000
"""Trials of the tests that the guard does not decide; the standard error of a rate of 1 % is 0.14 %."""


@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_an_error_at_the_margin_is_rarely_accepted_and_rarely_rejected(cases: int, repeats: int) -> None:
    for error in (1.0, -1.0):
        found = rates(cases, repeats, error, trials=TRIALS)
        assert found.accept.max() <= 0.01
        assert found.any_reject <= 0.05


@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_an_exact_simulator_is_never_rejected_and_mostly_accepted(cases: int, repeats: int) -> None:
    found = rates(cases, repeats, 0.0, trials=TRIALS)
    assert found.any_reject <= 0.01
    assert found.accept.max() >= (0.15 if (cases, repeats) == (1, 5) else 0.9)
    assert found.unreserved.min() >= (0.3 if cases == 1 else 0.9)


@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_an_error_of_two_margins_is_found(cases: int, repeats: int) -> None:
    for error in (2.0, -2.0):
        found = rates(cases, repeats, error, trials=TRIALS)
        assert found.accept.max() <= 0.001
        assert found.reject.min() >= (0.35 if cases == 1 else 0.9)


@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_the_guard_finds_errors_that_the_mean_over_the_cases_hides(cases: int, repeats: int) -> None:
    hidden, bad = (rates(cases, repeats, errors(cases), trials=TRIALS) for errors in (cancelling, one_bad))
    assert hidden.accept.max() == 0
    assert bad.accept.max() <= 0.001
    if cases == 10:  # without the guard, the mean over the cases hides both
        assert hidden.unguarded.min() > 0.9
        assert bad.unguarded.min() > 0.7


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_skewed_noise_hides_an_error_of_the_margin_in_6_percent_at_most(cases: int, repeats: int, noise: Noise) -> None:
    """A course that the repetitions missed is found by an ensemble only: see the next test."""
    if not str(noise).startswith("course"):
        for error in (1.0, -1.0):
            assert rates(cases, repeats, error, noise=noise, trials=TRIALS).accept.max() <= 0.065
    for error in (1.0, -1.0):
        assert rates(cases, repeats, error, noise=noise, runs=20, trials=TRIALS).accept.max() <= 0.025


def test_a_rare_course_that_the_repetitions_missed_misleads_a_rule_with_one_prediction() -> None:
    """The limit of the rule, which the documentation states: 0.7^5 = 17 % of five repetitions miss a course of 30 %."""
    assert rates(1, 5, -1.0, noise="course 0.3").accept.max() > 0.1
    assert rates(1, 10, -1.0, noise="course 0.3").accept.max() <= 0.05
    assert rates(1, 5, -1.0, noise="course 0.3", runs=20).accept.max() <= 0.01


def test_without_the_reserve_skewed_noise_is_accepted_beyond_the_level() -> None:
    assert rates(1, 5, -1.0, noise=2.0).unreserved.max() > 0.08


def test_the_rates_of_one_case_with_normal_noise_are_those_of_two_t_tests() -> None:
    """With one case, the rule is two one-sided t tests (Schuirmann 1987), and `tost_power` is their exact power."""
    for error in (0.0, 0.5, 1.0):
        found = rates(1, 5, error, noise="normal").unreserved
        expected = [tost_power(error, sd / np.sqrt(5), 4, RULE.alpha) for sd in NOISE]
        np.testing.assert_allclose(found, expected, atol=0.02)
