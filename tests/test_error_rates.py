"""The error rates of the verdict, by simulation (docs/explanation/verdict.md has the tables)."""

from __future__ import annotations

import numpy as np
import pytest

from error_rates import DESIGNS, NOISE, RULE, cancelling, one_bad, rates
from tracebed.validation.verdict.decision import tost_power

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_an_error_at_the_margin_is_rarely_accepted_and_rarely_rejected(cases: int, repeats: int) -> None:
    for error in (1.0, -1.0):
        found = rates(cases, repeats, error)
        assert found.accept.max() <= 0.05
        assert found.any_reject <= 0.05


@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_an_exact_simulator_is_never_rejected_and_mostly_accepted(cases: int, repeats: int) -> None:
    found = rates(cases, repeats, 0.0)
    assert found.any_reject <= 0.01
    assert found.accept.min() >= (0.3 if cases == 1 else 0.9)


@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_an_error_of_two_margins_is_found(cases: int, repeats: int) -> None:
    for error in (2.0, -2.0):
        found = rates(cases, repeats, error)
        assert found.accept.max() <= 0.001
        assert found.reject.min() >= (0.35 if cases == 1 else 0.9)


@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_the_guard_finds_errors_that_the_mean_over_the_cases_hides(cases: int, repeats: int) -> None:
    assert rates(cases, repeats, cancelling(cases)).accept.max() == 0
    assert rates(cases, repeats, one_bad(cases)).accept.max() <= 0.001
    if cases == 10:  # without the guard, the mean over the cases hides both
        assert rates(cases, repeats, cancelling(cases)).unguarded.min() > 0.9
        assert rates(cases, repeats, one_bad(cases)).unguarded.min() > 0.9


def test_more_skewed_noise_raises_false_acceptance_of_too_small_predictions_beyond_the_level() -> None:
    """The limit of the rule, which the documentation states: the level holds for moderate skewness only."""
    assert rates(1, 5, -1.0, skewness=2.0).accept.max() > 0.08
    assert rates(10, 3, -1.0, skewness=2.0).accept.max() <= 0.05


def test_the_rates_of_one_case_with_normal_noise_are_those_of_two_t_tests() -> None:
    """With one case, the rule is two one-sided t tests (Schuirmann 1987), and `tost_power` is their exact power."""
    for error in (0.0, 0.5, 1.0):
        found = rates(1, 5, error, skewness=0.01).accept
        expected = [tost_power(error, sd / np.sqrt(5), 4, RULE.alpha) for sd in NOISE]
        np.testing.assert_allclose(found, expected, atol=0.02)
