"""User estimates: the histogram equals the reference program's, and every estimate is long enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tracebed.converters.models.cirne import cirne
from tracebed.converters.models.lublin99 import lublin99
from tracebed.converters.models.tsafrir05 import (
    HEAD,
    Tsafrir05Parameters,
    assign,
    estimates,
    head_seconds,
    head_shares,
    histogram,
    longest_of,
    popularity,
    repaired,
    tail_seconds,
    with_estimates,
)
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError

TWO_DAYS = 172_800


@pytest.mark.parametrize("seed", range(5))
def test_the_histogram_equals_the_references_up_to_the_permutation(
    seed: int, reference_data: Callable[[str], Path]
) -> None:
    expected = pd.read_csv(reference_data("models/est_dist_max172800_n10000_seed1.csv"))
    made = histogram(10_000, TWO_DAYS, np.random.default_rng(seed))
    assert made.seconds.tolist() == expected["seconds"].tolist()
    assert sorted(made.jobs) == sorted(expected["njobs"])
    assert made.jobs[-1] == expected["njobs"].iloc[-1]
    head = set(head_seconds(TWO_DAYS))
    ours, theirs = (counts[np.isin(made.seconds, list(head))] for counts in (made.jobs, expected["njobs"].to_numpy()))
    assert sorted(ours) == sorted(theirs)


def test_jobs_get_estimates_as_in_the_reference(reference_data: Callable[[str], Path]) -> None:
    expected = pd.read_csv(reference_data("models/lublin99_typed128_est172800_seed1_first20000.csv.gz"))
    run, theirs = expected["runtime"].to_numpy(np.float64), expected["estimate"].to_numpy()
    ours = assign(run, np.sort(theirs)[::-1], np.random.default_rng(1))
    assert sorted(ours) == sorted(theirs)
    assert stats.ks_2samp(run / ours, run / theirs).pvalue > 1e-3
    for low, high in ((0, 10), (10, 100), (100, 3600), (3600, TWO_DAYS)):
        some = (run >= low) & (run < high)
        assert stats.ks_2samp(ours[some], theirs[some]).pvalue > 1e-3


@given(st.integers(200, 30_000), st.integers(60, 20_000), st.floats(0.0, 88.0), st.integers(0, 99))
def test_a_histogram_counts_every_job_once(jobs: int, minutes: int, share: float, seed: int) -> None:
    made = histogram(jobs, 60 * minutes, np.random.default_rng(seed), share)
    assert made.jobs.sum() == jobs
    assert made.jobs.min() >= 1
    assert (np.diff(made.seconds) > 0).all()
    assert made.seconds[0] > 0
    assert made.seconds[-1] == 60 * minutes
    if share > 20 and jobs > 1000:  # the most popular by far
        assert made.jobs[-1] / jobs == pytest.approx(share / 100, abs=0.02)


@given(
    st.lists(st.floats(0.0, 3600.0), min_size=1, max_size=400),
    st.integers(0, 99),
)
def test_every_estimate_is_long_enough_or_it_is_an_error(runs: list[float], seed: int) -> None:
    run = np.array(runs)
    try:
        found = estimates(run, np.random.default_rng(seed), Tsafrir05Parameters(longest=7200))
    except InputError as error:
        assert "estimates are that long" in str(error)
        return
    assert (found >= run).all()
    assert found.max() == 7200 or run.max() < 7200


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(0, 99))
def test_estimates_are_handed_out_whole(runs: list[int], seed: int) -> None:
    run = np.array(runs, dtype=np.float64)
    offered = np.sort(run + np.random.default_rng(seed).integers(0, 30, len(run))).astype(np.int64)[::-1]
    given_out = assign(run, offered, np.random.default_rng(seed))
    assert sorted(given_out) == sorted(offered)
    assert (given_out >= run).all()


def test_which_of_equal_jobs_gets_which_estimate_is_even() -> None:
    rng = np.random.default_rng(1)
    firsts = [assign(np.array([5.0, 5.0, 1.0]), np.array([9, 8, 7]), rng)[0] for _ in range(3000)]
    assert stats.chisquare(np.unique(firsts, return_counts=True)[1]).pvalue > 1e-3


def test_run_times_that_are_too_long_are_an_error() -> None:
    with pytest.raises(InputError, match="2 jobs run 90 s or longer, but only 1 estimates are that long"):
        assign(np.array([100.0, 90.0, 1.0]), np.array([100, 80, 80]), np.random.default_rng(0))
    with pytest.raises(InputError, match="estimates are that long"):
        estimates(np.full(500, 80_000.0), np.random.default_rng(0))
    covered = estimates(np.full(200, 60.0), np.random.default_rng(0))
    assert (covered >= 60.0).all()


@given(st.integers(3600, 2_000_000))
def test_the_head_has_twenty_estimates(longest: int) -> None:
    head = head_seconds(longest)
    assert len(set(head)) == len(head) == HEAD
    assert head[0] == longest == max(head)
    assert head[1:] == sorted(head[1:])


def test_popularity_is_a_permutation_with_the_longest_first() -> None:
    drawn = [popularity(np.random.default_rng(seed)) for seed in range(200)]
    assert all(sorted(ranks) == list(range(1, 21)) and ranks[0] == 1 for ranks in drawn)
    assert len({tuple(ranks) for ranks in drawn}) > 100


def test_shares() -> None:
    assert head_shares().sum() == pytest.approx(89.0)
    assert head_shares()[:2] == pytest.approx([21.73, 10.31], abs=0.005)
    assert head_shares(40.0).sum() == pytest.approx(89.0)
    assert head_shares(40.0)[0] == 40.0
    assert repaired(np.array([10, 1, 1]), 9).tolist() == [7, 1, 1]
    assert repaired(np.array([6, 3, 1]), 20).sum() == 20


def test_the_tail_keeps_clear_of_the_head() -> None:
    head = set(head_seconds(TWO_DAYS))
    tail = tail_seconds(340, TWO_DAYS, head)
    assert len(set(tail)) == len(tail)
    assert not head & set(tail)


@pytest.mark.parametrize(("run", "longest"), [(1.0, 3600), (3600.0, 3600), (3601.0, 7200), (90_000.0, TWO_DAYS)])
def test_the_longest_estimate_is_whole_hours_or_days(run: float, longest: float) -> None:
    assert longest_of(np.array([0.5, run])) == longest


def test_a_workload_gets_limits_and_records_it() -> None:
    bare = lublin99(3000, seed=4)
    limited = with_estimates(bare, 4)
    assert (limited.floats("time_limit") >= limited.floats("run_time")).all()
    step = limited.provenance.steps[-1]
    assert (step.name, step.seed) == ("tsafrir05", 4)
    assert step.parameters == {"longest": longest_of(bare.floats("run_time")), "longest_share": 0.0}
    assert step.counts == {"jobs with an estimate": 3000, "limits replaced": 0}
    assert limited.sha256 == with_estimates(bare, 4).sha256 != with_estimates(bare, 5).sha256
    assert with_estimates(cirne(500), 1).provenance.steps[-1].counts["limits replaced"] == 500


def test_jobs_without_a_run_time_keep_their_limits() -> None:
    table = pd.DataFrame({"job_id": ["a", "b"], "submit_time": 0.0, "run_time": [np.nan, 60.0], "nodes": 1})
    limits = with_estimates(Workload(table.assign(time_limit=7.0)), 1).floats("time_limit")
    assert limits[0] == 7.0
    assert limits[1] >= 60.0
    with pytest.raises(InputError, match="no job has a run time"):
        with_estimates(Workload(table.assign(run_time=np.nan)))
