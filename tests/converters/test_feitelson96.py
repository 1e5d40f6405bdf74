"""The model of Feitelson 1996: its distributions, both variants, and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.models.feitelson96 import (
    Feitelson96Parameters,
    Gaps,
    Repeats,
    draw,
    feitelson96,
    short_branch,
    size_law,
)
from tracebed.converters.workload import System

JOBS = 40_000
P = Feitelson96Parameters(factor=10.0, short_mean=100.0)


def first_runs(repeats: Repeats = "arrival", p: Feitelson96Parameters = P) -> tuple[np.ndarray, np.ndarray]:
    """Return size and run time of each job, once per job although jobs are repeated."""
    draws = draw(JOBS, 128, 3, p, repeats, "exponential")
    first = draws.turn == 0
    return draws.nodes[first], draws.run[first]


def test_sizes_are_harmonic_with_an_emphasis() -> None:
    plain = size_law(100, Feitelson96Parameters(power_of_two=1.0, small=1.0))
    assert plain[:3] / plain[0] == pytest.approx([1.0, 2**-1.5, 3**-1.5])
    assert plain.sum() == pytest.approx(1.0)
    law = size_law(100, Feitelson96Parameters(power_of_two=2.0, small=5.0, small_up_to=4))
    assert law[[0, 1, 2, 3, 4, 7]] / plain[[0, 1, 2, 3, 4, 7]] / (law[4] / plain[4]) == pytest.approx(
        [10, 10, 5, 10, 1, 2]
    )


@pytest.mark.parametrize("repeats", ["arrival", "end"])
def test_sizes_are_drawn_from_that_law(repeats: Repeats) -> None:
    sizes, _ = first_runs(repeats)
    law = size_law(128, P)
    cells = [*range(16), slice(16, 32), slice(32, 128)]
    found = np.bincount(sizes, minlength=129)[1:]
    expected = np.array([law[cell].sum() for cell in cells]) * len(sizes)
    assert stats.chisquare([found[cell].sum() for cell in cells], expected).pvalue > 1e-3
    assert sizes.min() == 1
    assert sizes.max() <= 128


def test_run_times_are_hyperexponential_and_longer_for_larger_jobs() -> None:
    sizes, runs = first_runs(p=Feitelson96Parameters(short=0.9, short_slope=0.8, short_mean=100.0, size_order=0.5))
    assert runs.std() / runs.mean() > 1
    for low, high in ((0, 1), (1, 16), (16, 64), (64, 128)):
        chosen = (sizes > low) & (sizes <= high)
        p = 0.9 - 0.8 * sizes[chosen] / 128

        def cdf(t: np.ndarray, p: np.ndarray = p) -> np.ndarray:
            return 1 - p.mean() * np.exp(-t / 100) - (1 - p.mean()) * np.exp(-t / 700)

        assert stats.kstest(runs[chosen], cdf).pvalue > 1e-3
    assert short_branch(np.array([0, 64, 128]), 128, P) == pytest.approx([0.95, 0.85, 0.75])


def test_jobs_run_again_by_a_harmonic_law() -> None:
    draws = draw(JOBS, 128, 1, P, "arrival", "exponential")
    runs = np.bincount(draws.job)
    found = [(runs == r).sum() for r in range(1, 8)] + [(runs > 7).sum()]
    law = stats.zipf(2.5)
    expected = np.array([*law.pmf(np.arange(1, 8)), law.sf(7)]) * len(runs)
    assert stats.chisquare(found, expected).pvalue > 1e-3


def fits(gaps: Gaps, gap: np.ndarray) -> float:
    """Return the p-value of the distribution of `gaps` with mean 10."""
    if gaps == "exponential":
        return float(stats.kstest(gap, stats.expon(scale=10).cdf).pvalue)
    found = np.array([(gap == whole).sum() for whole in range(4, 17)])
    expected = stats.poisson(10).pmf(np.arange(4, 17)) * len(gap)
    rest = [len(gap) - found.sum()], [len(gap) - expected.sum()]
    return float(stats.chisquare([*found, *rest[0]], [*expected, *rest[1]]).pvalue)


@pytest.mark.parametrize("gaps", ["exponential", "poisson"])
def test_every_run_is_an_arrival_or_comes_when_its_last_has_ended(gaps: Gaps) -> None:
    every = draw(JOBS, 128, 5, P, "arrival", gaps)
    again = draw(JOBS, 128, 5, P, "end", gaps)
    first = again.turn == 0
    for submit in (every.submit, again.submit[first]):
        assert fits(gaps, np.diff(submit, prepend=0.0)) > 1e-3
    assert (np.diff(every.job) >= 0).all()
    assert (np.diff(again.submit) >= 0).all()
    began = np.empty(again.job.max() + 1)
    began[again.job[first]] = again.submit[first]
    assert again.submit == pytest.approx(began[again.job] + again.turn * again.run)


@pytest.mark.parametrize("repeats", ["arrival", "end"])
def test_both_readings_draw_the_same_runs(repeats: Repeats) -> None:
    draws = draw(5000, 64, 9, P, repeats, "exponential")
    assert len(draws.submit) == 5000
    other = draw(5000, 64, 9, P, "arrival", "exponential")
    assert sorted(zip(draws.job, draws.turn, draws.run, strict=True)) == sorted(
        zip(other.job, other.turn, other.run, strict=True)
    )


def test_a_job_that_runs_again_names_the_run_before() -> None:
    table = feitelson96(3000, repeats="end", seed=2, parameters=P).table
    by_id = table.set_index("job_id")
    again = table[table["after"] != ""]
    assert len(again) > 500
    before = by_id.loc[again["after"]]
    for name in ("extra_executable", "nodes", "run_time"):
        assert (before[name].to_numpy() == again[name].to_numpy()).all()
    assert (before["submit_time"] + before["run_time"]).to_numpy() == pytest.approx(again["submit_time"].to_numpy())
    assert (again["think_time"] == 0).all()
    assert again["after"].is_unique
    assert len(table) - len(again) == table["extra_executable"].nunique()


def features(nodes: np.ndarray, run_time: np.ndarray) -> dict[str, bool]:
    """Return what the page of the model in the Parallel Workloads Archive says of sizes and run times."""
    sizes = np.bincount(nodes, minlength=129)
    powers = [1, 2, 4, 8, 16, 32, 64, 128]
    correlation = np.corrcoef(nodes, run_time)[0, 1]
    return {
        "serial jobs are many": sizes[1] > 0.2 * len(nodes),
        "most jobs have less than ten nodes": sizes[:10].sum() > 0.5 * len(nodes),
        "powers of two are the most popular sizes": sizes[powers].sum() > 0.5 * len(nodes),
        "run times vary more than exponential ones": run_time.std() > run_time.mean(),
        "run times have a weak correlation with sizes": 0.02 < correlation < 0.3,
    }


def test_the_features_that_the_archive_names_hold() -> None:
    drawn = feitelson96(50_000, nodes=128, seed=1)
    assert all(features(drawn.ints("nodes"), drawn.floats("run_time")).values())
    assert len(drawn) / len(set(drawn.column("extra_executable"))) > 1.5  # jobs are run repeatedly


@pytest.mark.filterwarnings("ignore::tracebed.ground.errors.Tolerated")
def test_a_log_behind_the_model_has_the_same_features(reference_data: Callable[[str], Path]) -> None:
    log = read_workload(reference_data("logs/NASA-iPSC-1993-3.1-cln.swf.gz"))
    assert all(features(log.ints("nodes"), log.floats("run_time")).values())


def test_the_fitted_mean_decides_only_the_unit_of_time() -> None:
    one, two = (draw(5000, 128, 7, Feitelson96Parameters(short_mean=m), "arrival", "exponential") for m in (1.0, 3e4))
    assert (one.nodes == two.nodes).all() and (one.job == two.job).all() and (one.submit == two.submit).all()
    assert two.run == pytest.approx(3e4 * one.run)


def test_the_workload_says_where_it_comes_from() -> None:
    workload = feitelson96(500, nodes=32, cores_per_node=4, seed=5)
    assert workload.provenance.system == System(32, 4, "like Feitelson 1996")
    assert workload.ints("nodes").max() <= 32
    assert (workload.ints("cores_per_node") == 4).all()
    assert "after" not in workload.table
    (step,) = workload.provenance.steps
    assert (step.name, step.seed, step.parameters["size_order"], step.parameters["repeats"]) == (
        *("feitelson96", 5),
        *(1.5, "arrival"),
    )
    assert (
        step.counts["runs of a job that had run before"] == 500 - workload.column("extra_executable").astype(int).max()
    )
    assert workload.sha256 == feitelson96(500, nodes=32, cores_per_node=4, seed=5).sha256
    assert workload.sha256 != feitelson96(500, nodes=32, cores_per_node=4, seed=6).sha256


@pytest.mark.parametrize("repeats", ["arrival", "end"])
def test_one_job_is_a_workload(repeats: Repeats) -> None:
    assert len(feitelson96(1, nodes=1, repeats=repeats)) == 1


def test_traces_are_as_long_as_those_of_the_deadline_study() -> None:
    """1000 requests span about 65 days at factors 1 and 150, and about 9 more at 1500."""
    days = {
        factor: np.mean(
            [
                np.max(sum(draw(1000, 128, seed, Feitelson96Parameters(factor=factor), "end", "exponential")[0:3:2]))
                for seed in range(320)
            ]
        )
        / 86_400
        for factor in (1.0, 1500.0)
    }
    assert 50 < days[1.0] < 80
    assert 2 < days[1500.0] - days[1.0] < 12
