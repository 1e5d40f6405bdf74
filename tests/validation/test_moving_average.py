"""Error of the moving average of the wait: equal to a slow, obvious reference, and printed with one real run only."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal, stats

from tests.commands import call
from tests.pages import plain
from tests.runs import fcfs_run
from tests.validation.test_schemas import problems
from tracebed.validation.moving_average import (
    FEWEST_JOBS,
    PART,
    POSITIONS,
    WINDOW_S,
    MovingAverage,
    in_words,
    moving_average,
    moving_means,
    relative_errors,
    window_length,
    window_starts,
)
from tracebed.validation.report.markdown import markdown
from tracebed.validation.verdict import Case, Tolerances, validate
from tracebed.validation.verdict.gate import Gate

times = st.lists(st.integers(0, 200).map(lambda t: t / 4), min_size=1, max_size=40)
waits = st.integers(0, 400).map(lambda wait: wait / 8)
"""Sums of these numbers have no rounding errors."""


def table(submit: Any, real: Any, predicted: Any) -> pd.DataFrame:
    """Return matched jobs."""
    return pd.DataFrame({"submit_real": submit, "wait_real": real, "wait_predicted": predicted})


def reference(submit: list[float], values: list[float], start: float, window: float) -> float:
    """Return the mean over the jobs submitted in one window, by its definition."""
    inside = [value for time, value in zip(submit, values, strict=True) if start <= time < start + window]
    return statistics.fmean(inside) if inside else math.nan


@given(st.data(), times, st.integers(1, 100).map(lambda w: w / 4))
def test_the_means_of_windows_are_those_of_the_definition(
    data: st.DataObject, submit: list[float], window: float
) -> None:
    values = data.draw(st.lists(waits, min_size=len(submit), max_size=len(submit)))
    starts = np.arange(-2.0, 55.0, 0.25)
    (means,), counts = moving_means(np.array(submit), np.array([values]), starts, window)
    expected = [reference(submit, values, start, window) for start in starts.tolist()]
    np.testing.assert_allclose(means, expected, rtol=1e-12)
    assert counts.tolist() == [sum(start <= time < start + window for time in submit) for start in starts.tolist()]


def drawn(seed: int, jobs: int, span: float, *, idle: float = 0.0) -> pd.DataFrame:
    """Return jobs with waits in both runs; the first share `idle` of the jobs did not wait."""
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.uniform(0, span, jobs))
    real = np.where(submit < idle * span, 0.0, rng.exponential(100, jobs))
    return table(submit, real, real * rng.lognormal(0, 0.3, jobs) + (real == 0))


@pytest.mark.parametrize(("span", "most"), [(1e5, WINDOW_S), (1e5, 3e3)])
def test_the_figure_is_that_of_its_definition(span: float, most: float) -> None:
    jobs = drawn(1, 300, span, idle=0.3)
    found = moving_average(jobs, window_s=most, level=0.95)
    assert found is not None
    submit, real, predicted = (jobs[name].tolist() for name in jobs)
    window = min(most, (max(submit) - min(submit)) / 10)
    errors, left_out, counts = [], 0, []
    for number in itertools.count():
        start = min(submit) + window / 336 * number
        if start + window > max(submit) + 1e-6:
            break
        y, s = (reference(submit, values, start, window) for values in (real, predicted))
        counts.append(sum(start <= time < start + window for time in submit))
        if y > 0:
            errors.append(abs(s - y) / y)
        else:
            left_out += 1
    assert left_out > 0
    assert (found.windows, found.left_out) == (len(errors), left_out)
    assert found.window_s == pytest.approx(window)
    assert found.jobs == pytest.approx(statistics.fmean(counts))
    assert found.error == pytest.approx(statistics.fmean(errors))
    batches = [statistics.fmean(batch) for batch in np.array_split(np.array(errors), 10)]
    half = stats.t.ppf(0.975, 9) * statistics.stdev(batches) / math.sqrt(10)
    assert found.low == pytest.approx(max(0.0, found.error - half))
    assert found.high == pytest.approx(found.error + half)


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100), st.floats(1, 1e7), st.floats(0, 3))
@settings(max_examples=30)
def test_units_and_origins_do_not_matter_and_a_common_factor_is_the_error(
    seed: int, unit: float, origin: float, factor: float
) -> None:
    jobs = drawn(seed, FEWEST_JOBS, 5e4)
    found = moving_average(jobs)
    other = moving_average(
        table(*(jobs[name] * unit for name in jobs)).assign(submit_real=jobs["submit_real"] * unit + origin)
    )
    assert found is not None
    assert other is not None
    # a window that begins at a submission may have this job, or not, by a rounding error
    assert other.error == pytest.approx(found.error, rel=0.02)
    assert abs(other.windows - found.windows) <= 2
    wrong = moving_average(jobs.assign(wait_predicted=jobs["wait_real"] * factor))
    assert wrong is not None
    assert wrong.error == pytest.approx(abs(factor - 1), abs=1e-9)
    assert (wrong.low, wrong.high) == (pytest.approx(wrong.error, abs=1e-9), pytest.approx(wrong.error, abs=1e-9))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_the_order_of_the_jobs_does_not_matter(seed: int) -> None:
    jobs = drawn(seed, 150, 1e4)
    a, b = moving_average(jobs), moving_average(jobs.sample(frac=1, random_state=seed % 1000))
    assert a is not None
    assert b is not None
    assert (a.windows, a.jobs, b.error) == (b.windows, b.jobs, pytest.approx(a.error))


def test_a_window_is_two_weeks_and_moves_by_an_hour_and_is_a_tenth_of_a_shorter_log() -> None:
    half_a_year = np.array([0.0, 182 * 86400.0])
    assert window_length(half_a_year, WINDOW_S) == 14 * 86400
    starts = window_starts(half_a_year, WINDOW_S)
    assert set(np.diff(starts)) == {3600.0}
    assert (starts[0], starts[-1]) == (0.0, 168 * 86400.0)
    month = np.array([5.0, 5.0 + 30 * 86400])
    assert window_length(month, WINDOW_S) == 3 * 86400
    assert window_length(month, 3600.0) == 3600
    assert len(window_starts(month, 3 * 86400.0)) == (PART - 1) * POSITIONS + 1


def test_windows_without_a_real_wait_have_no_relative_error() -> None:
    real, predicted = np.array([0.0, np.nan, 2.0, 4.0]), np.array([1.0, np.nan, 1.0, 6.0])
    assert relative_errors(real, predicted).tolist() == [0.5, 0.5]
    jobs = drawn(3, 200, 1e4).assign(wait_real=0.0)
    found = moving_average(jobs)
    assert found is not None
    assert (found.windows, math.isnan(found.error), math.isnan(found.low), math.isnan(found.high)) == (
        0,
        True,
        True,
        True,
    )
    assert in_words({"a": found}) == []


def test_few_jobs_and_jobs_submitted_at_once_have_no_figure() -> None:
    assert moving_average(drawn(1, FEWEST_JOBS - 1, 1e4)) is None
    assert moving_average(drawn(1, FEWEST_JOBS, 1e4)) is not None
    assert moving_average(drawn(1, FEWEST_JOBS, 1e4).assign(submit_real=7.0)) is None


def stationary(rng: np.random.Generator, spans: int) -> pd.DataFrame:
    """Return 100 jobs in each of `spans` windows of length 1, with correlated waits and correlated errors."""
    jobs, rho = 100 * spans, math.exp(-1 / 50)
    innovations = rng.standard_normal((2, jobs)) * math.sqrt(1 - rho**2)
    level, error = signal.lfilter([1], [1, -rho], innovations)
    real = 1000 * np.exp(0.5 * level)
    return table(np.arange(jobs) / 100, real, real * np.exp(0.3 * error))


def test_the_interval_is_too_narrow_for_a_log_of_few_windows() -> None:
    """The coverage that docs/explanation/verdict.md prints for these waits: 95 % are promised."""
    rng = np.random.default_rng(7)
    truth = 0.188
    covered = {}
    for spans in (11, 100):
        found = [moving_average(stationary(rng, spans), window_s=1, level=0.95) for _ in range(100)]
        covered[spans] = statistics.fmean(each.low <= truth <= each.high for each in found if each)
    assert 0.6 < covered[11] < 0.9
    assert covered[100] > 0.88


def case(repetitions: int, jobs: int = 120) -> Case:
    real = tuple(
        fcfs_run(jobs, seed=1, stretch=1 + n / 1000, sha256="1" * 64, source="replay") for n in range(repetitions)
    )
    return Case("log-fcfs", "log", "fcfs", real, (fcfs_run(jobs, seed=1, stretch=1.1, real=False, sha256="1" * 64),))


def test_it_is_printed_as_advisory_where_there_is_one_real_run() -> None:
    alone = validate([case(1)])
    (sentence,) = alone.moving_averages
    assert sentence.startswith("moving average of the wait (advisory, one real run): mean absolute percentage error ")
    assert sentence in alone.explain()
    assert sentence in markdown(Gate([alone]))
    assert "oving average of the wait (advisory, one real run)" in plain(alone)
    document = alone.to_json()
    assert problems(document, "tracebed-verdict-2.json") == []
    assert document["cases"][0]["moving_average"]["windows"] > 1000
    assert validate([case(2)]).moving_averages == []
    assert validate([case(1, jobs=30)]).moving_averages == []
    others = validate([case(1)], Tolerances.default())
    assert others.tolerances.sha256 == alone.tolerances.sha256


def test_the_window_is_a_setting_of_the_tolerances_on_which_no_verdict_depends(tmp_path: Path) -> None:
    file = tmp_path / "tolerances.yaml"
    file.write_text("window_s: 60\n")
    tolerances = Tolerances.load(file)
    found = validate([case(1)], tolerances).cases[0].moving_average
    assert found is not None
    assert found.window_s == 60
    assert tolerances.sha256 == Tolerances.default().sha256
    for number, side in (("real", case(1).real[0]), ("sim", case(1).predicted[0])):
        side.save(tmp_path / number)
    words = ("compare", "--real", tmp_path / "real", "--predicted", tmp_path / "sim", "--tolerances", file)
    assert "moving average of the wait (advisory, one real run)" in call(*words).stdout
    assert json.loads(call(*words, "--json").stdout)["cases"][0]["moving_average"]["window_s"] == 60


def test_several_cases_have_their_mean_and_the_worst_one() -> None:
    a = MovingAverage(WINDOW_S, 3000, 20, 512.4, 0.0734, 0.051, 0.12)
    b = MovingAverage(7200.0, 40, 0, 10.0, 2.5, math.nan, math.nan)
    assert in_words({"a": a}) == [
        "moving average of the wait (advisory, one real run): mean absolute percentage error 7.34 % [5.1, 12], "
        "3,000 windows of 14 d, 512 jobs each, 20 left out without a real wait"
    ]
    (both,) = in_words({"a": a, "b": b})
    assert "2 cases: mean absolute percentage error 129 % in the mean of the cases; worst case b: " in both
    assert both.endswith("250 %, 40 windows of 2 h, 10 jobs each")
    (exact,) = in_words({"a": dataclasses.replace(a, error=1.3e-8, low=0.0, high=0.004)})
    assert "error 0.00 % [0.00, 0.40], 3,000 windows" in exact
