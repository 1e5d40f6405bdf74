"""The study of Mallob: work and censored work by hand, and the figures of its page where the logs are."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tracebed.converters.speedup import speedup_function
from tracebed.orchestrator.scheduling.policies.mallob import volumes
from tracebed.studies.mallob import CENSORED, END_S, MEASURED, RANKS, completed, curve, observed, plan, work_of
from tracebed.validation.simulators.mallob import contents_of, logged_jobs, logged_volumes, ruled_volumes
from tracebed.validation.verdict.resizing import resizing


def table(*rows: tuple[str, float, int, float, float]) -> pd.DataFrame:
    """Return logged jobs of (state, priority, demand, start, end), introduced at their start with a limit of 100 s."""
    jobs = pd.DataFrame(rows, columns=["state", "priority", "demand", "start", "end"], index=range(1, len(rows) + 1))
    return jobs.assign(client=0, formula="a", limit=100.0, submit=jobs["start"])


def test_work_is_the_integral_of_the_speedup_over_the_shares() -> None:
    jobs = table(
        ("solved", 0.5, 4000, 0.0, 10.0), ("solved", 0.5, 4000, 4.0, 12.0), ("running", 0.5, 2, 3594.0, math.nan)
    )
    half = RANKS // 2
    assert work_of(jobs, float) == pytest.approx([4 * RANKS + 6 * half, 6 * half + 2 * RANKS, 12.0])
    assert work_of(jobs, lambda size: 1.0) == pytest.approx([10.0, 8.0, 6.0])


def test_the_curve_has_the_measured_speedups() -> None:
    speedup = speedup_function("table", curve())
    for cores in (40, 160, 640, 2560):
        assert speedup(cores // 4) / speedup(5) == pytest.approx(MEASURED[cores], rel=1e-3)
    sizes = [speedup(size) for size in range(1, RANKS + 1)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 1


def test_censored_work_is_larger_and_that_of_another_job_of_the_formula() -> None:
    work = np.array([5.0, 1.0, 9.0, 3.0, 7.0, 2.0])
    solved = np.array([True, True, True, False, False, False])
    formula = ["a", "a", "a", "a", "a", "b"]
    assert completed(work, solved, formula, "never").tolist() == [5, 1, 9, math.inf, math.inf, math.inf]
    assert completed(work, solved, formula, "at once").tolist() == work.tolist()
    drawn = np.array([completed(work, solved, formula, "formula", seed) for seed in range(400)])
    assert (drawn[:, :3] == [5, 1, 9]).all()
    # Beyond 3 s are 5, more than 7, and 9 s: a third of the jobs has 5 s, and the others, by the largest one, 9 s.
    assert set(drawn[:, 3]) == {5.0, 9.0}
    assert (drawn[:, 3] == 5.0).mean() == pytest.approx(1 / 3, abs=0.08)
    assert (drawn[:, 4] == 9.0).all()
    assert np.isinf(drawn[:, 5]).all()  # no job of the formula was solved


def test_a_plan_reads_the_introductions_of_its_own_run_only() -> None:
    base = table(("solved", 0.5, 4, 0.0, 10.0), ("timeout", 1.0, 8, 1.0, 101.0))
    own = base.assign(submit=[3590.0, 50.0], start=math.nan, end=math.nan, state="?")
    made = plan(base, pd.concat([own, own.rename(index={1: 8, 2: 9})]), "never", "linear")
    assert made["job_id"].tolist() == ["1", "2"]
    assert made["run_time"].tolist() == [40.0, RANKS * 200.0]
    assert made["deadline"].tolist() == [END_S, 150.0]
    assert made["nodes_max"].tolist() == [4, 8]


def test_the_end_of_the_run_ends_the_jobs_that_run() -> None:
    jobs = table(
        ("solved", 0.5, 4, 0.0, 10.0), ("running", 1.0, 8, 1.0, math.nan), ("running", 1, 8, math.nan, math.nan)
    )
    times = observed(jobs)
    assert times["end"].tolist()[:2] == [10.0, END_S]
    assert np.isnan(times["end"][2])
    assert times["state"].tolist() == ["completed", "timeout", "timeout"]


LOGS = "mallob-experimental-data/europar2022/logs"


@pytest.fixture(scope="module")
def logs(reference_data: Callable[[str], Path]) -> Callable[[str], dict[str, bytes]]:
    folder = reference_data(LOGS)
    return lambda run: contents_of(folder / f"mallob_realistic_{run}")


@pytest.mark.slow
@pytest.mark.parametrize(("run", "within_one", "mean"), [("default", 0.99, 0.05), ("interarrival10", 0.8, 0.02)])
def test_the_rule_gives_the_logged_volumes(logs: Any, run: str, within_one: float, mean: float) -> None:
    contents = logs(run)
    jobs = logged_jobs(contents, run)
    start, end = (jobs[name].to_numpy() for name in ("start", "end"))
    differences = []
    known = logged_volumes(contents).sample(400, random_state=1)
    for time, job, volume in known.itertuples(index=False):
        active = jobs[(start <= time) & ~(end <= time)]
        if job in active.index:
            demand = np.minimum(active["demand"], RANKS).tolist()
            share = dict(
                zip(active.index, volumes(active["priority"].tolist(), [1] * len(active), demand, RANKS), strict=True)
            )
            differences.append((abs(share[job] - volume), volume))
    size, of = np.array(differences).T
    assert (size <= 1).mean() >= within_one
    assert size.sum() / of.sum() <= mean


@pytest.mark.slow
def test_the_staircases_of_the_page(logs: Any, tmp_path: Path) -> None:
    base, own = (logged_jobs(logs(run), run) for run in ("default", "interarrival10"))
    observed(own).to_csv(tmp_path / "run.csv", index=False)
    workload = tb.Workload(plan(base, own))
    real = tb.import_run(tmp_path / "run.csv", form="mallob", side="real", workload=workload, nodes=RANKS)
    found = resizing([real], [tb.simulate(workload, "mallob", nodes=RANKS)])
    assert found is not None
    assert found.predicted.area == pytest.approx(0.272, abs=1e-3)
    assert found.predicted.recall(near=True) == pytest.approx(0.846, abs=1e-3)
    sizes = ruled_volumes(own, RANKS)
    assert sizes is not None
    assert sizes.agreement(own, logged_volumes(logs("interarrival10"))) == (4615, pytest.approx(0.844, abs=1e-3))


@pytest.mark.slow
def test_the_figures_of_the_page_for_the_run_with_a_quarter_of_the_jobs(logs: Any) -> None:
    base, own = (logged_jobs(logs(run), run) for run in ("default", "interarrival10"))
    real = own["end"].fillna(END_S) - own["submit"]
    found = {}
    for treatment in CENSORED:
        run = tb.simulate(tb.Workload(plan(base, own, treatment)), "mallob", nodes=RANKS)
        ends = run.jobs.set_index(run.jobs["job_id"].astype(int))["end"]
        found[treatment] = float((ends - own["submit"]).mean())
    assert real.mean() == pytest.approx(115.67, abs=0.01)
    assert found == pytest.approx({"formula": 114.67, "never": 123.65, "at once": 44.35}, abs=0.02)


@pytest.mark.slow
def test_the_curve_is_that_of_the_published_run_times(reference_data: Callable[[str], Path]) -> None:
    folder = reference_data("mallob-experimental-data/sat2021/experiments/mallob_mono")
    seconds = {}
    for nodes in (1, 2, 8, 32, 128):
        lines = (folder / f"mallob_mono_cbdf0.875_mlbd00_mcl0_n{nodes}" / "runtimes").read_text().split("\n")
        seconds[20 * nodes] = {line.split()[0]: float(line.split()[2]) for line in lines if line}
    sequential = (folder / "mallob_mono_cbdf0.875_mlbd00_mcl0_n1" / "speedups_lingeling").read_text().split("\n")
    seconds[1] = {line.split()[0]: float(line.split()[3]) for line in sequential if line}
    for cores, expected in MEASURED.items():
        ratios = [seconds[20][formula] / seconds[cores][formula] for formula in seconds[20]]
        assert math.exp(np.log(ratios).mean()) == pytest.approx(expected, abs=1e-4)
