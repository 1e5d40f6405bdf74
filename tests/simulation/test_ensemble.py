"""Ensembles: delays drawn from a calibration, the courses of the runs, and what the verdict makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import tracebed.api as tb
from tests.pages import without_pictures
from tests.runs import fcfs_run
from tests.testbeds.test_calibrate import calibration, estimate
from tracebed.cli import tracebed
from tracebed.ground.errors import InputError
from tracebed.orchestrator.calibrating.estimates import factors, of_joining_ranks
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.delays import ROWS, STEPS, Delays, draw
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.experiments import runner
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.suite import load_suite
from tracebed.validation.metrics import Margin
from tracebed.validation.verdict import Case, Reason, validate
from tracebed.validation.verdict.courses import courses, sentence

FACTORS = {"launch": [0.5, 1.5], "end": [0.0, 2.0]}
MADE = calibration(
    inventory="emulated-4",
    execution="emulated",
    duty=0.0,
    grain_s=0.0,
    units_per_core_second=None,
    overheads={"launch_s": estimate(0.1), "end_s": estimate(0.01)},
    factors=FACTORS,
)


def race() -> tb.Workload:
    """Return three jobs on four nodes: the launch times of the first two decide where the long one starts."""
    rows = [("a", 0.0, 100.0, 2), ("b", 0.0, 105.0, 2), ("c", 1.0, 1000.0, 2), ("d", 2.0, 50.0, 4)]
    return tb.Workload(pd.DataFrame(rows, columns=["job_id", "submit_time", "run_time", "nodes"]))


# The distributions.


def test_the_factors_have_mean_1_and_do_not_depend_on_the_number_of_ranks() -> None:
    rng = np.random.default_rng(1)
    ranks = rng.choice([1.0, 2.0, 4.0], 300)
    of_size = 0.01 + 0.02 * (ranks > 1) + 0.003 * np.maximum(0, ranks - 2)
    noise = rng.lognormal(-0.125, 0.5, 300)
    found = np.array(factors([np.column_stack([ranks, of_size * noise])], of_joining_ranks))
    assert (len(found), float(found.mean())) == (200, pytest.approx(1, abs=1e-4))
    assert (np.diff(found) >= 0).all()
    assert float(found.std()) == pytest.approx(float(noise.std()), rel=0.15)


def test_samples_without_noise_have_factors_of_1() -> None:
    assert factors([np.array([[1.0, 0.01], [1.0, 0.01], [2.0, 0.02]])], of_joining_ranks) == [1.0, 1.0, 1.0]
    assert factors([np.zeros((0, 2))], of_joining_ranks) == []


def test_the_factors_of_a_job_depend_on_the_seed_and_the_step_only() -> None:
    values = {step: list(np.linspace(0.1, 1.9, 50)) for step in STEPS}
    few, many, other = draw(values, 10, 3), draw(values, 1000, 3), draw(values, 10, 4)
    assert (few["launch"] == many["launch"][:10]).all()
    assert (few["launch"] != few["end"]).any()
    assert (few["launch"] != other["launch"]).any()
    assert len(few["release"]) == ROWS
    assert (draw({}, 10, 3)["launch"] == 1.0).all()


def test_each_delay_is_the_overhead_times_its_factor() -> None:
    constants = Overheads(
        launch_s=1.0, launch_join_s=0.5, end_s=2.0, expand_s=3.0, reconfiguration_s=4.0, release_s=5.0
    )
    drawn = {step: np.full(ROWS, 10.0 + number) for number, step in enumerate(STEPS)}
    found = Delays(constants, drawn)
    assert (found.launch(3, 2), found.end(3, 1), found.expand(ROWS + 1, 1)) == (15.0, 22.0, 36.0)
    assert (found.reconfiguration(2, 0, 1), found.release(2, 0, -1), found.expand(0, -1)) == (52.0, 70.0, 0.0)
    assert Delays(constants).launch(3, 2) == 1.5


# Predictions.


def test_a_member_is_repeated_by_its_seed_and_the_mean_delay_is_the_overhead() -> None:
    def member(seed: int | None) -> Run:
        return tb.simulate(race(), "fcfs", 4, speed=10, calibration=MADE, member=seed)

    launches = np.array([member(seed).jobs["launched"][0] for seed in range(40)])
    assert set(launches.round(9)) == {0.5, 1.5}
    assert 0.7 < launches.mean() < 1.3
    assert member(7).jobs.equals(member(7).jobs)
    assert member(7).info.parameters == {"member": 7}
    assert member(None).jobs["launched"][0] == 1.0
    assert member(None).info.parameters == {}


def test_a_job_that_is_cancelled_during_its_launch_has_not_begun(tmp_path: Path) -> None:
    """Long drawn launches showed it: the run could not be read."""
    rows = [("a", 0.0, 20.0, 2, 30.0)]
    workload = tb.Workload(pd.DataFrame(rows, columns=["job_id", "submit_time", "run_time", "nodes", "deadline"]))
    run = tb.simulate(workload, "deadline", 4, overheads={"launch_s": 40.0})
    job = Run.load(run.save(tmp_path / "run")).jobs.iloc[0]
    assert (job["state"], job["start"], job["end"]) == ("cancelled", 0.0, 30.0)
    assert np.isnan(job["launched"])


def test_an_ensemble_needs_a_calibration_with_distributions() -> None:
    with pytest.raises(InputError, match="the calibration is missing"):
        tb.simulate(race(), "fcfs", 4, member=0)
    with pytest.raises(InputError, match="the calibration has no distributions of delays"):
        tb.simulate(race(), "fcfs", 4, calibration=MADE.model_copy(update={"factors": {}}), member=0)


def test_the_seeds_of_a_suite_are_members_and_one_seed_is_the_prediction_with_constant_delays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tb.write(race(), "w.csv")
    MADE.save(tmp_path / "c.yaml")
    (tmp_path / "s.yaml").write_text(
        "workloads: {w: w.csv}\npolicies: [fcfs]\ntestbed: {inventory: emulated-4, speed: 10}\nrepetitions: 2\n"
        "simulators:\n  one: {calibration: c.yaml}\n  several: {calibration: c.yaml, seeds: 3}\n"
    )
    loaded = load_experiment("s.yaml")
    suite = load_suite(loaded, loaded.selected({}), Path("out"), {}, ())
    Path("out").mkdir()
    found, failed = runner.predict_suite(suite, Path("out"))
    assert failed == {}
    plain = tb.simulate(tb.read("w.csv"), "fcfs", "emulated-4", speed=10, calibration=MADE)
    (one,), several = found["one"]["w-fcfs"], found["several"]["w-fcfs"]
    assert one.jobs.equals(plain.jobs)
    assert [run.info.parameters["member"] for run in several] == [0, 1, 2]
    assert runner.forecast_suite(suite, Path("out")).to_predict == {"one": 0, "several": 0}


def test_the_command_writes_the_members_and_prints_the_courses(tmp_path: Path) -> None:
    path, workload = MADE.save(tmp_path / "c.yaml"), tb.write(race(), tmp_path / "w.csv")
    words = ["simulate", str(workload), "--policy", "fcfs", "--nodes", "4", "--speed", "60", "--calibration", str(path)]
    result = CliRunner().invoke(tracebed, [*words, "--repetitions", "5", "-o", str(tmp_path / "sim")])
    assert result.exit_code == 0, result.output
    assert "95 % of the ensemble" in result.output
    assert "fcfs: course A" in result.output
    again = [tb.simulate(tb.read(workload), "fcfs", 4, speed=60, calibration=MADE, member=seed) for seed in range(5)]
    kept = [Run.load(tmp_path / f"sim/ensemble/run-{number:02d}") for number in range(1, 6)]
    assert [run.jobs["end"].tolist() for run in kept] == [run.jobs["end"].tolist() for run in again]
    constant = tb.simulate(tb.read(workload), "fcfs", 4, speed=60, calibration=MADE)
    assert Run.load(tmp_path / "sim").jobs["end"].tolist() == constant.jobs["end"].tolist()


def test_an_ensemble_that_cannot_be_drawn_is_refused_before_a_run_is_written(tmp_path: Path) -> None:
    workload = tb.write(race(), tmp_path / "w.csv")
    words = ["simulate", str(workload), "--policy", "fcfs", "--nodes", "4", "--speed", "60", "--repetitions", "5"]
    result = CliRunner().invoke(tracebed, [*words, "-o", str(tmp_path / "sim")])
    assert "the calibration is missing" in str(result.exception)
    assert not (tmp_path / "sim").exists()


# Courses.

MARGINS = {"makespan_s": Margin(0.03, gate=True), "mean_wait_s": Margin(0.1, gate=True), "median_run_s": Margin(0.01)}


def figures(makespan: float, wait: float = 100.0) -> Mapping[str, float]:
    return {"makespan_s": makespan, "mean_wait_s": wait, "median_run_s": 1.0}


def test_courses_are_groups_of_runs_half_a_margin_apart() -> None:
    predicted = [figures(7260 + step) for step in range(0, 140, 20)] + [figures(8000), figures(8010), figures(8020)]
    real = [figures(7300), figures(7200), figures(7990), figures(9000)]
    found = courses(predicted, real, MARGINS)
    assert [course.predictions for course in found] == [tuple(range(7)), (7, 8, 9)]
    assert [course.real for course in found] == [(0, 1), (2,)]
    assert [course.share for course in found] == [0.7, 0.3]
    assert sentence("pref", found, 4) == (
        "pref: course A 70 % (2 of 4 real runs), makespan 7,320 s, wait 100 s; "
        "course B 30 % (1 of 4 real runs), makespan 8,010 s, wait 100 s; 1 of 4 real runs on no predicted course"
    )


def test_rare_courses_are_counted_together() -> None:
    apart = [figures(1000.0 * 1.1**step) for step in range(11)]
    assert sentence("leak", courses(apart, apart[:1], MARGINS), 1) == "leak: 11 courses 100 % (1 of 1 real runs)"
    frequent = courses([figures(500.0)] * 9 + apart, [], MARGINS)
    assert sentence("leak", frequent, 0) == "leak: course A 45 %, makespan 500 s, wait 100 s; 11 further courses 55 %"


def test_any_gated_metric_separates_courses_and_advisory_or_undefined_ones_do_not() -> None:
    assert len(courses([figures(100, 100), figures(100, 106)], [], MARGINS)) == 2
    assert len(courses([figures(100, 100), figures(100, 104)], [], MARGINS)) == 1
    apart = [{**figures(100), "median_run_s": value} for value in (1.0, 9.0)]
    assert len(courses(apart, [], MARGINS)) == 1
    assert courses([figures(float("nan"), float("nan"))], [], MARGINS) == []


# The verdict.


def ended(share: float, number: int, *, real: bool) -> Run:
    """Return a run of 40 jobs, of which a share is rejected, other ones in each run."""
    run = fcfs_run(40, stretch=1.0, real=real)
    chosen = np.zeros(40, dtype=bool)
    chosen[(np.arange(round(40 * share)) * 7 + 3 * number) % 40] = True
    jobs = run.jobs.assign(state=run.jobs["state"].astype(str).where(~chosen, "rejected"))
    jobs.loc[chosen, ["start", "launched", "end"]] = np.nan
    held = run.allocations[~run.allocations["job_id"].isin(jobs["job_id"][chosen])]
    return Run(replace(run.info), jobs, held, run.reconfigurations)


def test_states_that_vary_in_the_ensemble_do_not_exclude_a_repetition() -> None:
    real = [ended(0.1, number, real=True) for number in range(5)]
    single = validate([Case.of(real, [ended(0.1, 9, real=False)])])
    ensemble = validate([Case.of(real, [ended(0.1, 10 + number, real=False) for number in range(20)])])
    assert {each.excluded[:2] for each in single.cases[0].repetitions} == {"H2"}
    assert {each.excluded[:2] for each in ensemble.cases[0].repetitions} <= {"", "H7"}
    assert Reason.UNMATCHED_JOBS in single.reasons
    assert Reason.UNMATCHED_JOBS not in ensemble.reasons
    calm = validate([Case.of(real, [ended(0.0, number, real=False) for number in range(3)])])
    assert {each.excluded[:2] for each in calm.cases[0].repetitions} == {"H2"}


def test_the_courses_are_in_the_console_the_summary_the_report_and_the_document(tmp_path: Path) -> None:
    def run(stretch: float, *, real: bool) -> Run:
        return fcfs_run(40, stretch=stretch, real=real)

    real = [run(1 + 0.001 * number, real=True) for number in range(4)] + [run(1.2, real=True)]
    predicted = [run(1 + 0.001 * number, real=False) for number in range(7)] + [run(1.2, real=False)] * 3
    for folder, runs in (("real/rep", real), ("predicted/run", predicted)):
        for number, each in enumerate(runs, start=1):
            each.save(tmp_path / f"{folder}-{number:02d}")
    pages = [tmp_path / name for name in ("r.html", "r.md")]
    words = [str(word) for page in pages for word in ("--report", page)]
    sides = ["--real", str(tmp_path / "real"), "--predicted", str(tmp_path / "predicted")]
    with without_pictures():
        shown = CliRunner().invoke(tracebed, ["compare", *sides, *words]).output
    for text in (shown, *(page.read_text() for page in pages)):
        assert "course A 70 % (4 of 5 real runs)" in text
        assert "course B 30 % (1 of 5 real runs)" in text
    (case,) = validate([Case.of(real, predicted)]).to_json()["cases"]
    assert [len(course["predictions"]) for course in case["courses"]] == [7, 3]
    assert [course["real"] for course in case["courses"]] == [(0, 1, 2, 3), (4,)]


def test_an_ensemble_of_slurm_draws_the_phases_of_its_loops() -> None:
    w = tb.scale(tb.generate("cirne", jobs=40, nodes=16, seed=3), nodes=8)
    plain = predict(w, 8, "slurm")
    members = [predict(w, 8, "slurm", member=member) for member in range(3)]
    phases = [run.info.policy_parameters["bf_phase_s"] for run in members]
    assert len({*phases, plain.info.policy_parameters["bf_phase_s"]}) == 4
    assert not members[0].jobs["start"].equals(members[1].jobs["start"])
    for member, run in enumerate(members):
        again = predict(w, 8, "slurm", member=member, engine="python")
        assert again.jobs.equals(run.jobs)
    given = predict(w, 8, "slurm", member=1, policy_parameters={"bf_phase_s": 0.25})
    assert given.info.policy_parameters["bf_phase_s"] == 0.25
    with pytest.raises(InputError, match="an ensemble draws delays"):
        predict(w, 8, "easy", member=1)


def test_recorded_runs_of_slurm_have_an_ensemble_in_one_line(tmp_path: Path) -> None:
    w = tb.scale(tb.generate("cirne", jobs=20, nodes=16, seed=3), nodes=8)
    tb.write(w, tmp_path / "w.parquet")
    real = predict(w, 8, "slurm", policy_parameters={"bf_interval": 7})
    info = replace(real.info, source="replay", execution="emulated", engine="")
    Run(info, real.jobs, real.allocations, real.reconfigurations).save(tmp_path / "real/w-slurm/rep-1")
    file = tmp_path / "s.yaml"
    file.write_text(
        "workloads: {w: w.parquet}\npolicies: [slurm]\nrecorded: 'real/{workload}-{policy}/rep-*'\n"
        "simulators: {tracebed: {seeds: 3}}\n"
    )
    loaded = load_experiment(str(file))
    suite = load_suite(loaded, loaded.experiment.points(), tmp_path / "out", {})
    (tmp_path / "out").mkdir()
    found, failed = runner.predict_suite(suite, tmp_path / "out")
    assert not failed
    runs = found["tracebed"]["w-slurm"]
    assert [run.info.policy_parameters["bf_interval"] for run in runs] == [7, 7, 7]
    assert len({run.info.policy_parameters["bf_phase_s"] for run in runs}) == 3
