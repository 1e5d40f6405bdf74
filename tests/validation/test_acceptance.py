"""Acceptance limits: inside them a prediction is accurate, outside it is not, by the rule of the decision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracebed.converters.workload import FloatArray
from tracebed.validation.verdict.acceptance import CaseBaseline, MetricBaseline, ranges, reach_of
from tracebed.validation.verdict.decision import Estimate, Samples, estimate

ALPHA, KAPPA = 0.025, 2.0


def judged(real: FloatArray, predicted: FloatArray, margin: FloatArray) -> Estimate:
    return estimate(Samples.of(real, predicted, margin), ALPHA, KAPPA)


def drawn(seed: int, cases: int, repeats: int, noise: float, error: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the real values, predictions and margins of one metric; noise and error in margins."""
    rng = np.random.default_rng(seed)
    centers = rng.lognormal(5, 1, cases)
    margin = 0.1 * centers
    real = centers[:, None] + margin[:, None] * noise * rng.standard_normal((cases, repeats))
    return real, real.mean(axis=1) + margin * error * rng.standard_normal(cases), margin


SUITES = {
    "seed": st.integers(0, 10_000),
    "cases": st.integers(1, 8),
    "repeats": st.integers(2, 8),
    "noise": st.floats(0.0, 1.5),
    "error": st.floats(0.0, 1.5),
}


@given(**SUITES)
def test_the_decision_flips_at_the_limits(seed: int, cases: int, repeats: int, noise: float, error: float) -> None:
    real, predicted, margin = drawn(seed, cases, repeats, noise, error)
    found = judged(real, predicted, margin)
    for case, (low, high) in enumerate(ranges(found.z, reach_of(float(found.half + found.reserve)), KAPPA)):

        def accurate(z: float, case: int = case) -> bool:
            moved = predicted.copy()
            moved[case] = real[case].mean() + z * margin[case]
            return bool(judged(real, moved, margin).accurate)

        if np.isnan(low):
            assert not any(accurate(z) for z in np.linspace(-2.5, 2.5, 21))
        else:
            step = min(1e-6, (high - low) / 10)
            assert [accurate(low - step), accurate(low + step)] == [False, True]
            assert [accurate(high - step), accurate(high + step)] == [True, False]
            assert accurate((low + high) / 2)


@given(**SUITES)
def test_a_baseline_accepts_what_the_decision_accepts(
    seed: int, cases: int, repeats: int, noise: float, error: float
) -> None:
    real, predicted, margin = drawn(seed, cases, repeats, noise, error)
    found = judged(real, predicted, margin)
    names = [f"case-{index}" for index in range(cases)]
    metric = MetricBaseline(
        gate=True,
        margin="10%, gate",
        verdict="accurate",
        z=0.0,
        reach=reach_of(float(found.half + found.reserve)),
        cases={
            name: CaseBaseline(predicted=None, real=float(values.mean()), margin=float(width), z=None, limits=None)
            for name, values, width in zip(names, real, margin, strict=True)
        },
    )
    values = dict(zip(names, map(float, predicted), strict=True))
    assert metric.accepts(values, KAPPA) == bool(found.accurate)
    assert not metric.accepts(values | {names[0]: float("nan")}, KAPPA)


def test_with_one_case_the_limits_are_the_margin_less_the_noise() -> None:
    real = np.array([[99.0, 101.0, 100.0, 98.0, 102.0]])
    half = float(judged(real, np.array([100.0]), np.array([10.0])).half)
    assert ranges(np.array([0.3]), reach_of(half), KAPPA)[0] == pytest.approx([half - 1, 1 - half])
    assert 0 < half < 1


def test_no_value_is_accurate_beside_a_case_that_is_off_by_more_than_kappa() -> None:
    spans = ranges(np.array([2.5, 0.0]), 0.9, KAPPA)
    assert np.isnan(spans[1]).all()
    assert spans[0] == pytest.approx([-1.8, 1.8])


def test_noise_of_the_margin_or_unknown_noise_leaves_no_limits() -> None:
    assert reach_of(1.0) is None
    assert reach_of(float("nan")) is None
    assert np.isnan(ranges(np.array([0.0]), None, KAPPA)).all()
