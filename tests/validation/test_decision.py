"""The decision on a metric: by hand, against a slow reference, its invariances, and its error rates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from tests.oracles.error_rates import DESIGNS, NOISE, NOISES, RULE, Noise, cancelling, one_bad, rates, short
from tracebed.validation.verdict import Reason, Verdict
from tracebed.validation.verdict.decision import (
    Estimate,
    Samples,
    decide,
    estimate,
    rejected,
    repeats_needed,
    tost_power,
)

ALPHA, KAPPA = 0.025, 2.0
Case = tuple[list[float], float]
"""Real repetitions and the prediction of one case."""

values = st.floats(50.0, 150.0)
cases_of = st.integers(2, 5).flatmap(
    lambda repeats: st.lists(
        st.tuples(st.lists(values, min_size=repeats, max_size=repeats), values), min_size=1, max_size=5
    )
)


def samples(cases: Sequence[Case], relative: float = 0.1, absolute: float = 0.0) -> Samples:
    """Return the samples of cases with the margin max(relative x real mean, absolute)."""
    real = np.array([runs for runs, _ in cases])
    margin = np.maximum(relative * np.abs(real.mean(axis=1)), absolute)
    return Samples.of(real, [predicted for _, predicted in cases], margin)


def estimated(cases: Sequence[Case], relative: float = 0.1, absolute: float = 0.0) -> Estimate:
    return estimate(samples(cases, relative, absolute), ALPHA, KAPPA)


def verdict_of(found: Estimate) -> tuple[Verdict, tuple[Reason, ...]]:
    """Return the verdict on a single gated metric."""
    return decide(found, bool(rejected([found.p], ALPHA)[0]))


def reference(cases: Sequence[Case], relative: float) -> tuple[Verdict, float, float, float]:
    """Return the verdict on one gated metric, its interval and its reserve, by the formulas one number at a time."""
    count = len(cases)
    z, v, third = [], [], []
    for runs, predicted in cases:
        mean = sum(runs) / len(runs)
        variance = sum((value - mean) ** 2 for value in runs) / (len(runs) - 1)
        margin = relative * abs(mean)
        z.append((predicted - mean) / margin)
        v.append(variance / margin**2 / len(runs))
        n, cubes = len(runs), sum(((value - mean) / margin) ** 3 for value in runs)
        third.append(cubes * n / ((n - 1) * (n - 2)) / n**2 if n > 2 else 0.0)
    mean = sum(z) / count
    se = math.sqrt(sum(v)) / count
    if se == 0:
        low = high = mean
        reserve = 0.0
    else:
        terms = sum((each / count**2) ** 2 / (len(runs) - 1) for each, (runs, _) in zip(v, cases, strict=True))
        t = stats.t.ppf(1 - ALPHA, se**4 / terms)
        low, high = mean - t * se, mean + t * se
        assumed = sum(2 * each**1.5 / math.sqrt(len(runs)) for each, (runs, _) in zip(v, cases, strict=True))
        skewness = (abs(sum(third)) + assumed) / sum(v) ** 1.5
        reserve = skewness * (2 * t**2 + 1) / 6 * se
    proved = any(
        abs(each) - stats.t.ppf(1 - ALPHA / count, len(runs) - 1) * math.sqrt(spread) > KAPPA
        for each, spread, (runs, _) in zip(z, v, cases, strict=True)
    )
    if low > 1 or high < -1 or proved:
        return Verdict.INACCURATE, low, high, reserve
    if low - reserve > -1 and high + reserve < 1 and max(map(abs, z)) <= KAPPA:
        return Verdict.ACCURATE, low, high, reserve
    return Verdict.INCONCLUSIVE, low, high, reserve


@given(cases_of, st.sampled_from([0.02, 0.1, 0.5]))
def test_the_decision_is_that_of_the_reference(cases: list[Case], relative: float) -> None:
    expected, low, high, reserve = reference(cases, relative)
    found = estimated(cases, relative)
    assume(all(abs(abs(end) - 1) > 1e-6 for end in (low, high, low - reserve, high + reserve)))
    assert float(found.low) == pytest.approx(low, rel=1e-6, abs=1e-9)
    assert float(found.high) == pytest.approx(high, rel=1e-6, abs=1e-9)
    assert float(found.reserve) == pytest.approx(reserve, rel=1e-6, abs=1e-9)
    assert verdict_of(found)[0] is expected


def test_one_case_by_hand() -> None:
    real = [100.0, 102.0, 98.0, 101.0, 99.0]
    found = estimated([(real, 101.0)], relative=0.05)
    assert float(found.mean) == pytest.approx(0.2)
    assert float(found.se) == pytest.approx(math.sqrt(2.5 / 5) / 5)
    assert float(found.df) == pytest.approx(4)
    assert float(found.half) == pytest.approx(2.7764 * math.sqrt(0.5) / 5, rel=1e-4)
    assert float(found.reserve) == pytest.approx(2 / math.sqrt(5) * (2 * 2.7764**2 + 1) / 6 * found.se, rel=1e-4)
    assert verdict_of(found) == (Verdict.ACCURATE, ())
    assert verdict_of(estimated([(real, 103.0)], relative=0.05)) == (Verdict.INCONCLUSIVE, (Reason.SKEWED_NOISE,))


@pytest.mark.parametrize(
    ("cases", "verdict", "reasons"),
    [
        ([([99.0, 100.0, 101.0], 101.0)] * 3, Verdict.ACCURATE, ()),
        ([([99.0, 100.0, 101.0], 120.0)] * 3, Verdict.INACCURATE, ()),
        ([([60.0, 100.0, 140.0], 100.0)], Verdict.INCONCLUSIVE, (Reason.NOISE_EXCEEDS_MARGIN,)),
        ([([99.0, 100.0, 101.0], 110.0)] * 3, Verdict.INCONCLUSIVE, (Reason.NEAR_MARGIN,)),
        # The errors cancel in the mean. The noise is too small to excuse them, so that the case is proved to be off.
        ([([99.9, 100.0, 100.1], 130.0), ([99.9, 100.0, 100.1], 70.0)], Verdict.INACCURATE, ()),
        # Here the noise could excuse them, and still the mean is no evidence.
        ([([96.0, 100.0, 104.0], 121.0)] + [([96.0, 100.0, 104.0], 97.0)] * 6, Verdict.INCONCLUSIVE,
         (Reason.WORKLOAD_OUTLIER,)),
    ],
)  # fmt: skip
def test_verdicts_and_reasons(cases: list[Case], verdict: Verdict, reasons: tuple[Reason, ...]) -> None:
    assert verdict_of(estimated(cases)) == (verdict, reasons)


def test_identical_repetitions_have_no_noise_and_are_decided_by_the_error_alone() -> None:
    same = [100.0] * 3
    assert verdict_of(estimated([(same, 109.9)]))[0] is Verdict.ACCURATE
    assert verdict_of(estimated([(same, 110.1)]))[0] is Verdict.INACCURATE
    assert float(estimated([(same, 109.0)]).half) == 0


def test_the_resolution_of_the_times_is_a_lower_bound_of_the_noise() -> None:
    plain = samples([([100.0] * 5, 100.0)])
    coarse = estimate(Samples(**(vars(plain) | {"resolution": 1.0})), ALPHA, KAPPA)
    assert float(coarse.se) == pytest.approx(1 / math.sqrt(12) / 10 / math.sqrt(5))


def test_a_margin_of_zero_accepts_rounding_errors_only() -> None:
    exact = [0.3] * 3
    assert verdict_of(estimated([(exact, 0.1 + 0.2)], relative=0.0))[0] is Verdict.ACCURATE
    assert verdict_of(estimated([(exact, 0.31)], relative=0.0))[0] is Verdict.INACCURATE
    zero = [0.0] * 3
    assert verdict_of(estimated([(zero, 0.0)]))[0] is Verdict.ACCURATE
    assert verdict_of(estimated([(zero, 0.01)]))[0] is Verdict.INACCURATE


def test_one_repetition_decides_nothing() -> None:
    for predicted in (100.0, 105.0, 1e6):
        found = estimated([([100.0], predicted)])
        assert verdict_of(found)[0] is Verdict.INCONCLUSIVE
        assert math.isnan(float(found.half))


def test_an_undefined_value_decides_nothing() -> None:
    for case in ([math.nan, 1.0, 1.0], 1.0), ([1.0, 1.0, 1.0], math.nan):
        assert verdict_of(estimated([case]))[0] is Verdict.INCONCLUSIVE


def test_a_case_without_noise_estimate_does_not_hide_another_that_is_proved_off() -> None:
    real = np.array([[100.0, 100.1, 99.9, 100.0, 100.0], [100.0] * 5])
    found = Samples.of(real, [150.0, 100.0], [10.0, 10.0])
    unknown = Samples(**(vars(found) | {"sd": np.array([found.sd[0], math.nan])}))
    assert verdict_of(estimate(unknown, ALPHA, KAPPA))[0] is Verdict.INACCURATE


def test_the_runs_of_a_stochastic_simulator_add_their_noise() -> None:
    real = np.array([[99.0, 100.0, 101.0, 100.0, 100.0]])
    single = Samples.of(real, [100.0], [10.0])
    several = Samples.of(real, [100.0], [10.0], predicted_sd=np.array([2.0]), runs=np.array([4]))
    a, b = (estimate(each, ALPHA, KAPPA) for each in (single, several))
    assert float(b.se) == pytest.approx(math.sqrt(float(a.se) ** 2 + (2 / 10) ** 2 / 4))
    # Welch-Satterthwaite: (v1 + v2)^2 / (v1^2 / 4 + v2^2 / 3).
    v1, v2 = float(a.se) ** 2, 0.01
    assert float(b.df) == pytest.approx((v1 + v2) ** 2 / (v1**2 / 4 + v2**2 / 3))


def test_the_spread_of_an_ensemble_is_a_lower_bound_of_the_noise_and_replaces_the_skewness() -> None:
    real = np.array([[99.0, 100.0, 101.0, 100.0, 100.0]])  # standard deviation 0.71

    def found(spread: float, runs: int) -> Estimate:
        more = {"predicted_sd": np.array([spread]), "runs": np.array([runs])}
        return estimate(Samples.of(real, [100.0], [10.0], **more), ALPHA, KAPPA)

    narrow, wide = found(0.5, 50), found(5.0, 50)
    assert float(narrow.skewness) > 0.5  # the noise exceeds the spread, so that the ensemble does not explain it
    assert float(wide.skewness) == 0
    se = 0.5 * math.sqrt(1 / 5 + 1 / 50)
    df = (1 / 5 + 1 / 50) ** 2 / ((1 / 5) ** 2 / 49 + (1 / 50) ** 2 / 49)
    assert float(wide.half + wide.reserve) == pytest.approx(stats.t.isf(ALPHA, df) * se)
    assert float(wide.p) == float(found(5.0, 50).p)
    assert verdict_of(found(50.0, 50)) == (Verdict.INCONCLUSIVE, (Reason.NOISE_EXCEEDS_MARGIN,))


def test_an_ensemble_that_is_too_wide_does_not_excuse_a_wrong_mean() -> None:
    real = np.array([[99.0, 100.0, 101.0, 100.0, 100.0]])
    spread = {"predicted_sd": np.array([20.0]), "runs": np.array([400])}
    assert verdict_of(estimate(Samples.of(real, [130.0], [10.0], **spread), ALPHA, KAPPA))[0] is Verdict.INACCURATE


# Invariances.


@given(cases_of, st.floats(0.01, 0.5), st.floats(1.0, 5.0))
def test_a_wider_margin_never_makes_an_accurate_prediction_worse(
    cases: list[Case], relative: float, factor: float
) -> None:
    narrow, wide = estimated(cases, relative), estimated(cases, relative * factor)
    if narrow.accurate:
        assert wide.accurate
    if rejected([wide.p], ALPHA)[0]:
        assert rejected([narrow.p], ALPHA)[0]


@given(cases_of, st.sampled_from([1e-6, 0.1, 3600.0, 1e9]))
def test_the_unit_does_not_matter(cases: list[Case], factor: float) -> None:
    scaled = [([factor * run for run in runs], factor * predicted) for runs, predicted in cases]
    one, other = estimated(cases), estimated(scaled)
    np.testing.assert_allclose([other.mean, other.half], [one.mean, one.half], rtol=1e-6, atol=1e-9)


@given(cases_of, st.integers(0, 1000))
def test_the_order_of_repetitions_and_cases_does_not_matter(cases: list[Case], seed: int) -> None:
    generator = np.random.default_rng(seed)
    turned = [(list(generator.permutation(runs)), predicted) for runs, predicted in cases]
    turned = [turned[index] for index in generator.permutation(len(turned))]
    one, other = estimated(cases), estimated(turned)
    np.testing.assert_allclose([other.mean, other.half, other.p], [one.mean, one.half, one.p], rtol=1e-6, atol=1e-9)


@given(cases_of)
def test_leading_axes_are_independent_trials(cases: list[Case]) -> None:
    one = estimated(cases)
    real = np.array([runs for runs, _ in cases])
    both = Samples.of(np.stack([real, real]), [p for _, p in cases], 0.1 * np.abs(real.mean(axis=1)))
    two = estimate(both, ALPHA, KAPPA)
    for name in ("mean", "half", "df", "p", "worst"):
        np.testing.assert_allclose(getattr(two, name), [getattr(one, name)] * 2, rtol=1e-9)


# Holm's procedure.


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_rejects_in_the_order_of_the_p_values(p: list[float]) -> None:
    found = [bool(each) for each in rejected([np.array(each) for each in p], ALPHA)]
    expected = [False] * len(p)
    for place, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[index] >= ALPHA / (len(p) - place):
            break
        expected[index] = True
    assert found == expected


# Power.


@pytest.mark.parametrize(
    ("noise", "exact", "half"), [(0.25, 3, 5), (0.5, 5, 10), (0.75, 9, 20), (1.0, 13, 34), (2.0, 44, 128)]
)
def test_repetitions_for_a_power_of_80_percent(noise: float, exact: int, half: int) -> None:
    """Published with the protocol: repetitions of one case for noise / margin, at the errors 0 and half a margin."""
    for error, expected in ((0.0, exact), (0.5, half)):
        powers = [tost_power(error, noise / math.sqrt(count), count - 1, ALPHA) for count in (expected - 1, expected)]
        assert powers[0] < 0.8 <= powers[1]


def test_the_repetitions_needed_follow_from_noise_and_error() -> None:
    def needed(error: float, noise: float, cases: int = 1) -> int | None:
        count = np.full(cases, 5.0)
        some = Samples(np.full(cases, 100.0), np.full(cases, 10 * noise), count - 1, count,
                       np.full(cases, 100 + 10 * error), np.full(cases, 10.0))  # fmt: skip
        return repeats_needed(some, estimate(some, ALPHA, KAPPA), ALPHA, least=2)

    assert [needed(0.0, noise) for noise in (0.25, 0.5, 0.75, 1.0, 2.0)] == [5, 8, 13, 19, 56]
    assert [needed(0.5, noise) for noise in (0.25, 0.5, 0.75, 1.0, 2.0)] == [7, 16, 28, 45, 150]
    more = needed(0.0, 1.0, cases=5)
    assert more is not None
    assert more < 13
    assert needed(1.0, 0.1) is None  # more repetitions never show that the error is below the margin
    assert needed(0.99, 2.0) is None
    assert needed(0.0, math.nan) is None


def test_power_without_noise_is_certainty() -> None:
    assert (tost_power(0.9, 0.0, 4, ALPHA), tost_power(1.1, 0.0, 4, ALPHA)) == (1.0, 0.0)


# The error rates of the verdict, by simulation (docs/explanation/verdict.md has the tables).


TRIALS = 5000
"""Trials of the tests that the guard does not decide; the standard error of a rate of 1 % is 0.14 %."""


@pytest.mark.slow
@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_an_error_at_the_margin_is_rarely_accepted_and_rarely_rejected(cases: int, repeats: int) -> None:
    for error in (1.0, -1.0):
        found = rates(cases, repeats, error, trials=TRIALS)
        assert found.accept.max() <= 0.01
        assert found.any_reject <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_an_exact_simulator_is_never_rejected_and_mostly_accepted(cases: int, repeats: int) -> None:
    found = rates(cases, repeats, 0.0, trials=TRIALS)
    assert found.any_reject <= 0.01
    assert found.accept.max() >= (0.15 if (cases, repeats) == (1, 5) else 0.9)
    assert found.unreserved.min() >= (0.3 if cases == 1 else 0.9)


@pytest.mark.slow
@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_an_error_of_two_margins_is_found(cases: int, repeats: int) -> None:
    for error in (2.0, -2.0):
        found = rates(cases, repeats, error, trials=TRIALS)
        assert found.accept.max() <= 0.001
        assert found.reject.min() >= (0.35 if cases == 1 else 0.9)


@pytest.mark.slow
@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_the_guard_finds_errors_that_the_mean_over_the_cases_hides(cases: int, repeats: int) -> None:
    hidden, bad = (rates(cases, repeats, errors(cases), trials=TRIALS) for errors in (cancelling, one_bad))
    assert hidden.accept.max() == 0
    assert bad.accept.max() <= 0.001
    if cases == 10:  # without the guard, the mean over the cases hides both
        assert hidden.unguarded.min() > 0.9
        assert bad.unguarded.min() > 0.7


@pytest.mark.slow
def test_few_exclusions_hide_no_error_even_if_they_depend_on_the_outcome() -> None:
    """`5 x 5, 2` of docs/explanation/verdict.md; without the limit on the power, more than 2 %."""
    for error, extreme in ((1.0, 0), (-1.0, 0), (1.0, -1), (-1.0, 1)):
        found, accepted = short(5, 5, 2, error, extreme)
        assert accepted.max() <= 0.006
        assert found.any_reject <= (0.16 if extreme else 0.05)
    found, accepted = short(5, 5, 2, 0.0)
    assert found.any_reject == 0 and accepted.max() > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("cases", "repeats"), DESIGNS)
def test_skewed_noise_hides_an_error_of_the_margin_in_6_percent_at_most(cases: int, repeats: int, noise: Noise) -> None:
    """A course that the repetitions missed is found by an ensemble only: see the next test."""
    if not str(noise).startswith("course"):
        for error in (1.0, -1.0):
            assert rates(cases, repeats, error, noise=noise, trials=TRIALS).accept.max() <= 0.065
    for error in (1.0, -1.0):
        assert rates(cases, repeats, error, noise=noise, runs=20, trials=TRIALS).accept.max() <= 0.025


@pytest.mark.slow
def test_a_rare_course_that_the_repetitions_missed_misleads_a_rule_with_one_prediction() -> None:
    """The limit of the rule, which the documentation states: 0.7^5 = 17 % of five repetitions miss a course of 30 %."""
    assert rates(1, 5, -1.0, noise="course 0.3").accept.max() > 0.1
    assert rates(1, 10, -1.0, noise="course 0.3").accept.max() <= 0.05
    assert rates(1, 5, -1.0, noise="course 0.3", runs=20).accept.max() <= 0.01


@pytest.mark.slow
def test_without_the_reserve_skewed_noise_is_accepted_beyond_the_level() -> None:
    assert rates(1, 5, -1.0, noise=2.0).unreserved.max() > 0.08


@pytest.mark.slow
def test_the_rates_of_one_case_with_normal_noise_are_those_of_two_t_tests() -> None:
    """With one case, the rule is two one-sided t tests (Schuirmann 1987), and `tost_power` is their exact power."""
    for error in (0.0, 0.5, 1.0):
        found = rates(1, 5, error, noise="normal").unreserved
        expected = [tost_power(error, sd / np.sqrt(5), 4, RULE.alpha) for sd in NOISE]
        np.testing.assert_allclose(found, expected, atol=0.02)
