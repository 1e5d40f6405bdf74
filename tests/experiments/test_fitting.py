"""Fits of overheads to real runs. The real runs are simulations with known overheads that vary between repetitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tracebed.api as tb
from tracebed.cli import tracebed
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.setup import SETTINGS, Setup, Timing
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.testbeds.calibration import OVERHEADS as NAMES
from tracebed.orchestrator.testbeds.calibration import Calibration
from tracebed.validation.fitting import Fit, LossName, calibration_of, cases_of, fit
from tracebed.validation.fitting.fit import spread_out
from tracebed.validation.fitting.loss import Target
from tracebed.validation.metrics import MeasuredRun, metrics

SPEED, NODES = 100.0, 8
TRUTH = {"launch_s": 0.05, "launch_rank_s": 0.01, "end_s": 0.02, "reconfiguration_s": 0.2, "expand_s": 0.05}
FLOORS = {
    "makespan_s": 0.0,
    "mean_wait_s": 10.0,
    "mean_response_s": 10.0,
    "mean_bounded_slowdown": 0.1,
    "utilization": 0.01,
}
"""Gated metric -> its absolute margin."""


@cache
def workload(seed: int, share: float = 0.7, jobs: int = 80) -> Workload:
    scaled = tb.scale(tb.generate("cirne", jobs=jobs, nodes=64, seed=seed), nodes=NODES)
    return tb.make_malleable(scaled, share=share, seed=1) if share else scaled


def replayed(of: Workload, policy: str = "pref", noise: float = 0.0, seed: int = 0, **info: Any) -> Run:
    """Return a run like that of a replay with the overheads TRUTH, each drawn with a relative standard deviation."""
    random = np.random.default_rng(seed)
    drawn = {name: value * (1 + noise * random.standard_normal()) for name, value in TRUTH.items()}
    # Called at events only, jobs expand less often, and the overheads of these runs are identified.
    calls = {"calls": "event"} if policy == "pref" else {}
    overheads = Overheads(**drawn, grain_s=0.05)
    run = predict(of, NODES, policy, policy_parameters=calls, overheads=overheads, speed=SPEED)
    run.info.source, run.info.execution = "replay", "emulated"
    own = {"grain_s": 0.05, "inventory": "emulated-8", "testbed": "local", "duty": 0.0} | info.pop("parameters", {})
    settings = {name: info.pop(name) for name in SETTINGS if name in info}
    setup = Setup.of(Setup(run.info.setup.scheduling, Timing(speed=SPEED)), **settings)
    run.info = replace(run.info, **info, setup=setup, parameters=own)
    return run


def repetitions(of: Workload, name: str, policy: str = "pref", noise: float = 0.03, count: int = 5) -> dict[str, Run]:
    return {f"{name}/rep-{seed}": replayed(of, policy, noise, seed) for seed in range(count)}


@cache
def fitted(seeds: tuple[int, ...] = (3,), *, share: float = 0.7) -> Fit:
    """Return a fit to five repetitions of each workload."""
    policy = "pref" if share else "easy"
    workloads = {f"w{number}": workload(number, share) for number in seeds}
    runs = {name: run for key, of in workloads.items() for name, run in repetitions(of, key, policy).items()}
    return fit(cases_of(workloads, runs), budget=150)


observed_in = cache(metrics)
"""Metrics of a real run, measured once for all sets of the cloud."""


def slow_loss(of: Workload, real: Mapping[str, Run], overheads: Mapping[str, float]) -> float:
    """Return the mean relative error of the gated metrics, with the metrics that users see."""
    given: dict[str, Any] = dict(overheads)
    run = next(iter(real.values()))
    overheads, chosen = Overheads(**given, grain_s=0.05), run.info.policy_parameters
    predicted = metrics(predict(of, NODES, run.info.policy, policy_parameters=chosen, overheads=overheads, speed=SPEED))
    observed = [observed_in(run) for run in real.values()]
    errors = []
    for name, floor in FLOORS.items():
        mean = sum(figures[name] for figures in observed) / len(observed)
        errors.append(abs(predicted[name] - mean) / max(abs(mean), floor))
    return sum(errors) / len(errors)


@pytest.mark.parametrize("loss", ["metrics", "jobs"])
def test_the_fit_recovers_what_the_runs_identify(loss: LossName) -> None:
    free = ("launch_s", "end_s", "reconfiguration_s")
    known = {name: (TRUTH.get(name, 0.0),) * 2 for name in NAMES if name not in free}
    of = workload(3)
    found = fit(cases_of({"w3": of}, repetitions(of, "w3", noise=0.01)), loss=loss, budget=120, bounds=known)
    best = found.best.values
    assert best["reconfiguration_s"] == pytest.approx(TRUTH["reconfiguration_s"], rel=0.1)
    # Launches and ends both delay the next jobs by the same time: only the sum of the two is identified.
    assert best["launch_s"] + best["end_s"] == pytest.approx(TRUTH["launch_s"] + TRUTH["end_s"], rel=0.05)
    assert found.best.loss < 0.02 * found.beside.loss
    assert found.ranges["reconfiguration_s"].identified
    assert not found.ranges["launch_s"].identified
    assert not found.ranges["end_s"].identified
    identified = found.ranges["reconfiguration_s"]
    assert identified.low <= TRUTH["reconfiguration_s"] <= identified.high
    assert {name: best[name] for name in known} == found.known == {name: TRUTH.get(name, 0.0) for name in known}
    assert set(found.ranges) == set(free)


@pytest.mark.slow
def test_the_cloud_contains_the_truth_and_is_wide_where_the_runs_say_little() -> None:
    ranges = fitted().ranges
    for name, values in ranges.items():
        assert values.low <= max(TRUTH.get(name, 0.0), 1e-4) <= values.high, name
    for name in ("launch_s", "end_s", "expand_rank_s"):
        assert ranges[name].high > 10 * ranges[name].low


@pytest.mark.slow
def test_every_set_of_the_cloud_fits_and_the_cloud_is_spread_and_small() -> None:
    found, of = fitted(), workload(3)
    assert 10 <= len(found.cloud) <= 50
    assert found.cloud[0] == found.best
    for member in found.cloud:
        assert member.loss <= found.best.loss + found.tolerance
        assert member.loss == pytest.approx(slow_loss(of, found.cases[0].runs, member.values), rel=1e-9)
    for name, values in found.ranges.items():
        of_cloud = [member.values[name] for member in found.cloud]
        assert values.low <= min(of_cloud) <= max(of_cloud) <= values.high
    assert found.beside.loss == pytest.approx(slow_loss(of, found.cases[0].runs, {}), rel=1e-9)


@pytest.mark.slow
def test_overheads_of_resizes_have_no_effect_on_rigid_jobs() -> None:
    found = fitted(share=0.0)
    assert found.without_effect == ("reconfiguration_s", "expand_s", "expand_rank_s", "release_s")
    assert not found.ranges.keys() & set(found.without_effect)
    assert all(member.values[name] == 0 for member in found.cloud for name in found.without_effect)


@pytest.mark.slow
def test_a_fit_depends_on_its_seed_only_and_keeps_its_budget() -> None:
    runs = repetitions(workload(3), "w3")
    cases = cases_of({"w3": workload(3)}, runs)
    calls: list[int] = []
    one = fit(cases, budget=100, seed=5, on_simulation=calls.append)
    other = fit(cases_of({"w3": workload(3)}, runs), budget=100, seed=5)
    assert (one.cloud, one.ranges, one.tolerance) == (other.cloud, other.ranges, other.tolerance)
    assert one.cloud != fit(cases, budget=100, seed=6).cloud
    assert one.sets == one.simulations == len(calls) == 100
    assert calls == list(range(1, 101))


@pytest.mark.slow
def test_cross_validation_is_a_fit_without_each_workload() -> None:
    found = fitted(seeds=(3, 4))
    assert [fold.workload for fold in found.folds] == ["w3", "w4"]
    for fold, (inside, outside) in zip(found.folds, [(4, 3), (3, 4)], strict=True):
        alone = fitted(seeds=(inside,))
        assert fold.values == alone.best.values
        assert fold.loss_in == alone.best.loss
        real = repetitions(workload(outside), "w")
        assert fold.loss_out == pytest.approx(slow_loss(workload(outside), real, fold.values), rel=1e-9)
        assert fold.loss_out_beside == pytest.approx(slow_loss(workload(outside), real, {}), rel=1e-9)
        assert fold.loss_out < 0.5 * fold.loss_out_beside
    assert found.loss_in == np.mean([fold.loss_in for fold in found.folds])
    assert found.loss_out == np.mean([fold.loss_out for fold in found.folds])


def test_cross_validation_leaves_out_a_workload_with_all_its_policies() -> None:
    of = workload(3)
    runs = repetitions(of, "pref", "pref", count=2) | repetitions(of, "easy", "easy", count=2)
    found = fit(cases_of({"w3": of}, runs), budget=40)
    assert [case.info.policy for case in found.cases] == ["pref", "easy"]
    assert found.folds == ()
    assert np.isnan(found.loss_out)
    assert found.simulations == 80


def test_the_tolerance_is_the_half_width_of_the_interval_of_the_means() -> None:
    of = workload(3)
    runs = repetitions(of, "w3", count=2)
    (case,) = cases_of({"w3": of}, runs)
    one, other = (metrics(run) for run in runs.values())
    quantile = 12.706204736432095  # of Student's t at 0.975 with one degree of freedom
    halves = [
        quantile * abs(one[name] - other[name]) / 2 / max((one[name] + other[name]) / 2, floor)
        for name, floor in FLOORS.items()
    ]
    assert Target.of(case, "metrics").tolerance == pytest.approx(np.mean(halves))


@pytest.mark.parametrize("loss", ["metrics", "jobs"])
def test_the_noise_of_a_single_run_is_assumed(loss: LossName) -> None:
    (case,) = cases_of({"w3": workload(3)}, {"run": replayed(workload(3))})
    assert Target.of(case, loss).tolerance == pytest.approx(0.01)


def test_the_loss_of_jobs_is_relative_to_the_mean_wait_and_response() -> None:
    of = workload(3)
    runs = repetitions(of, "w3", count=2)
    (case,) = cases_of({"w3": of}, runs)
    target = Target.of(case, "jobs")
    predicted = predict(of, NODES, "pref", overheads=Overheads(launch_s=0.3, grain_s=0.05), speed=SPEED)

    def times(run: Run) -> dict[str, tuple[float, float]]:
        rows = run.jobs.itertuples()
        return {row.job_id: (row.start - row.submit, row.end - row.submit) for row in rows}

    one, other = (times(run) for run in runs.values())
    total = 0.0
    for quantity in (0, 1):
        real = {job: (one[job][quantity] + other[job][quantity]) / 2 for job in one}
        differences = [abs(times(predicted)[job][quantity] - real[job]) for job in real]
        total += sum(differences) / len(real) / max(sum(real.values()) / len(real), 10.0)
    assert target.loss(target.measure(MeasuredRun(predicted))) == pytest.approx(total / 2)


def test_bounds_and_tolerance_limit_the_search() -> None:
    cases = cases_of({"w3": workload(3)}, repetitions(workload(3), "w3", count=2))
    found = fit(cases, budget=50, bounds={"launch_s": (0.1, 0.2)}, tolerance=0.5)
    assert found.tolerance == 0.5
    assert 0.1 <= found.ranges["launch_s"].low < found.ranges["launch_s"].high <= 0.2


def test_points_far_from_each_other_are_kept() -> None:
    points = np.array([[0.0], [0.1], [1.0], [0.45], [0.99]])
    assert spread_out(points, 3) == [0, 2, 3]
    assert spread_out(points, 10) == [0, 2, 3, 1, 4]


@pytest.mark.slow
def test_a_fit_is_saved_as_a_calibration(tmp_path: Path) -> None:
    found = fitted(seeds=(3, 4))
    calibration = calibration_of(found, "fitted")
    path = calibration.save(tmp_path / "fitted.yaml")
    read = Calibration.load(path)
    assert read == calibration
    assert read.constants == {**found.best.values, "grain_s": 0.05}
    assert set(read.workloads) == {workload(3).sha256, workload(4).sha256}
    assert read.cloud == [member.values for member in found.cloud]
    assert read.fit is not None
    assert [fold.loss_out for fold in read.fit.cross_validation] == [fold.loss_out for fold in found.folds]
    assert read.overheads["launch_s"].low == found.ranges["launch_s"].low


def test_runs_that_cannot_be_fitted_to_are_rejected() -> None:
    three, four = workload(3), workload(4)
    real = replayed(three)
    prediction = tb.simulate(three, "pref", NODES)
    cut = replayed(three, state="interrupted")
    cause = {"signal": "x", "value": 1, "limit": 0, "state": "unhealthy", "text": "the host was busy"}
    sick = replayed(three, health={"state": "unhealthy", "causes": [cause]})
    other_policy = replayed(three, "easy")
    both = {"w3": three, "w4": four}
    smaller = replayed(four, nodes=real.info.nodes[:4])
    smaller.allocations = smaller.allocations.iloc[:0]
    for workloads, runs, message in (
        ({"w3": three}, {}, "no real run is given"),
        ({"w3": three}, {"sim": prediction}, r"sim: the run is a prediction \(simulator\)"),
        ({"w3": three}, {"log": replayed(three, source="log", execution="logged")}, "log: the run is a log"),
        ({"w3": three}, {"cut": cut}, "cut: the run is interrupted"),
        ({"w3": three}, {"sick": sick}, "sick: the run is unhealthy: the host was busy"),
        (
            {"w3": three},
            {"cut": cut, "real": real, "sick": sick},
            "cut: the run is interrupted; sick cannot be used either",
        ),
        ({"w4": four}, {"real": real}, r"real: the workload of the run \(workload\) is not among"),
        (both, {"real": real}, "no run is of the workload w4"),
        ({"w3": three}, {"a": real, "b": replayed(three, speed=200.0)}, "speed differs: 100.0 in a, 200.0 in b"),
        (
            {"w3": three},
            {"a": real, "b": replayed(three, interval_s=30.0)},
            "interval_s differs: 0.0 in a, 30.0 in b",
        ),
        (
            both,
            {"a": real, "b": replayed(four, parameters={"inventory": "local"})},
            "inventory differs: emulated-8 in a, local in b",
        ),
        (both, {"a": real, "b": replayed(four, execution="computed")}, "execution differs: emulated in a, computed in"),
        (both, {"a": real, "b": smaller}, "number of nodes differs: 8 in a, 4 in b"),
    ):
        with pytest.raises(InputError, match=message):
            cases_of(workloads, runs)
    assert len(cases_of({"w3": three}, {"a": real, "b": other_policy})) == 2


def test_invalid_options_of_a_fit_are_rejected() -> None:
    cases = cases_of({"w3": workload(3)}, {"run": replayed(workload(3))})
    options: list[tuple[dict[str, Any], str]] = [
        ({"budget": 5}, "budget is 5"),
        ({"loss": "wait"}, "unknown loss 'wait'"),
        ({"tolerance": -1.0}, "tolerance is -1.0"),
        ({"bounds": {"lunch_s": (1e-3, 1.0)}}, "unknown parameter 'lunch_s'.*launch_s"),
        ({"bounds": {"launch_s": (0.0, 1.0)}}, "bound of launch_s is 0.0"),
        ({"bounds": {"launch_s": (1.0, 0.5)}}, "bounds of launch_s are 1 and 0.5"),
    ]
    for given, message in options:
        with pytest.raises(InputError, match=message):
            fit(cases, **given)


@pytest.mark.slow
def test_the_command_fits_to_replays_and_predicts_over_the_cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    of = tb.scale(tb.generate("cirne", jobs=8, nodes=16, seed=3), nodes=4)
    tb.write(of, "w.parquet")
    for number in (1, 2):
        run = tb.replay(of, "easy", "emulated-4", speed=1e6)
        run.info.health = {}  # this speed is too high for a healthy run
        run.save(f"rep-{number}")

    def command(text: str) -> Any:
        return CliRunner().invoke(tracebed, text.split(), catch_exceptions=True)

    done = command("nodes calibrate rep-1 rep-2 --workload w.parquet --budget 45 -o fitted.yaml")
    assert done.exit_code == 0, done.output
    assert "launch" in done.output
    made = Calibration.load("fitted.yaml")
    assert made.fit is not None
    assert made.fit.runs[0].runs == ["rep-1", "rep-2"]
    assert (made.name, made.inventory, made.execution, made.duty) == ("fitted", "emulated-4", "emulated", 0.0)
    assert made.cloud == tb.fit({"w.parquet": of}, ["rep-1", "rep-2"], budget=45, name="fitted").cloud
    assert [member.constants["end_s"] for member in made.members] == [values["end_s"] for values in made.cloud]

    simulating = "simulate w.parquet --policy easy --inventory emulated-4 --speed 1e6 -o"
    cloud = command(f"{simulating} sim --calibration fitted.yaml --cloud")
    assert cloud.exit_code == 0, cloud.output
    assert "largest" in cloud.output
    waits = [
        tb.simulate(of, "easy", "emulated-4", speed=1e6, calibration=member).metrics()["mean_wait_s"]
        for member in made.members
    ]
    (row,) = [
        line.split() for line in cloud.output.splitlines() if line.startswith("wait, mean") and len(line.split()) > 4
    ]
    assert [float(cell.replace(",", "")) for cell in row[-2:]] == pytest.approx([min(waits), max(waits)], rel=1e-3)

    made.model_copy(update={"cloud": []}).save("point.yaml")
    failed = command(f"{simulating} other --calibration point.yaml --cloud")
    assert "the calibration has no cloud" in str(failed.exception)
    assert not Path("other").exists()

    for text, message in (
        ("nodes calibrate -o x.yaml", "needs an inventory to measure, or recorded replays"),
        ("nodes calibrate rep-1 --inventory emulated-4 -o x.yaml", "needs an inventory to measure"),
        ("nodes calibrate rep-1 -o x.yaml", "not of a policy or a layer that decides on a batch system"),
        ("nodes calibrate rep-1 sim --workload w.parquet -o x.yaml", "sim: the run is a predict"),
        ("nodes calibrate rep-1 --workload w.parquet -o w.parquet", "would replace"),
        ("nodes calibrate missing --workload w.parquet -o no/x.yaml", "parent folder does not exist"),
        (
            "nodes calibrate --inventory emulated-4 --workload w.parquet -o x.yaml",
            "--workload is given without recorded replays",
        ),
        (f"{simulating} other --cloud", "--cloud prints a table for a --calibration"),
    ):
        failed = command(text)
        assert isinstance(failed.exception, InputError)
        assert message in str(failed.exception)
