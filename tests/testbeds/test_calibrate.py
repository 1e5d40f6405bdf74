"""Calibrating: estimates from samples, the proposed duty, the probes, and a calibration from end to end."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import tracebed.api as tb
from tracebed.cli import tracebed
from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import InputError
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.calibrating import probes, procedure
from tracebed.orchestrator.calibrating.estimates import by_size, estimates, joins, linear, mean, mean_of, with_step
from tracebed.orchestrator.calibrating.probes import OverheadSamples, samples_of
from tracebed.orchestrator.calibrating.procedure import propose_duty
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.testbeds import rates
from tracebed.orchestrator.testbeds.calibration import (
    OVERHEADS,
    Calibration,
    OverheadEstimate,
    RateEstimate,
    StoredRate,
    load_rate,
    state_folder,
    store_rate,
)
from tracebed.orchestrator.testbeds.inventory import load_inventory
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.orchestrator.testbeds.rates import median_interval, rate_of
from tracebed.orchestrator.testbeds.testbed import AgentTestbed

SPEED = 100.0
TRUE = Overheads(
    launch_s=0.011,
    launch_join_s=0.013,
    launch_rank_s=0.002,
    end_s=0.003,
    end_rank_s=0.0025,
    reconfiguration_s=0.001,
    expand_s=0.02,
    release_s=0.006,
    grain_s=0.05,
)


# -- estimates


def test_a_fit_recovers_the_coefficients_of_samples_without_noise() -> None:
    ranks = np.array([1, 1, 2, 2, 3, 4, 8])
    step = 0.01 + 0.02 * (ranks > 1) + 0.003 * np.maximum(0, ranks - 2)
    assert with_step(np.column_stack([ranks, step])) == pytest.approx([0.01, 0.02, 0.003])
    assert linear(np.column_stack([ranks, 0.01 + 0.002 * (ranks - 1)])) == pytest.approx([0.01, 0.002])


def test_a_fit_has_no_negative_coefficients_also_with_one_size() -> None:
    falling = np.array([[1, 0.03], [2, 0.02], [4, 0.01]])
    assert linear(falling).min() >= 0 and with_step(falling).min() >= 0
    assert with_step(np.array([[1, 0.03], [1, 0.05]])) == pytest.approx([0.04, 0.0, 0.0])


def test_the_constant_is_a_mean_and_ignores_one_spoiled_repetition() -> None:
    rng = np.random.default_rng(1)
    repetitions = [rng.exponential(0.02, 200) for _ in range(3)]
    good = mean_of(repetitions)
    assert good is not None
    assert good.low < 0.02 < good.high and good.median < good.value and good.count == 600
    assert good.value == pytest.approx(sorted(good.repetitions)[1])
    spoiled = mean_of([*repetitions[:2], repetitions[2] + 1.0])
    assert spoiled is not None and spoiled.value < 0.025 and max(spoiled.repetitions) > 1.0


def test_the_interval_contains_the_variation_between_repetitions() -> None:
    rng = np.random.default_rng(3)
    true, covered = 0.02, 0
    for _ in range(20):
        found = mean_of([true + rng.normal(0, 0.004) + rng.normal(0, 0.001, 100) for _ in range(5)])
        assert found is not None
        covered += found.low <= true <= found.high
    assert covered >= 15  # samples drawn within the repetitions alone: at most 5


def test_repetitions_without_samples_are_left_out() -> None:
    assert mean_of([np.array([]), np.array([])]) is None
    found = mean_of([np.array([]), np.array([2.0])])
    assert found is not None and found.value == 2.0 and found.repetitions == [2.0]
    assert estimates([], mean) == []
    [one] = by_size([np.array([[4, 0.5]]), np.array([[4, 0.7]])])
    assert one.ranks == 4 and one.estimate.value == pytest.approx(0.6)


# -- the proposed duty


def test_equal_windows_propose_all_the_time() -> None:
    assert propose_duty(np.ones(100), 64).duty == 1.0
    assert propose_duty(np.full(100, 1.2), 64).duty == 1.0


def test_the_slowest_ranks_decide_and_three_times_their_shortfall_is_left() -> None:
    speeds = np.linspace(0.8, 1.2, 10_001)
    one, many = propose_duty(speeds, 1), propose_duty(speeds, 1000)
    assert one.duty == 0.4  # 1 % of the windows are below 0.804: 1 - 3 * 0.196 = 0.412
    assert many.duty == 0.4 and many.late == 0.0  # 1 - 3 * 0.2 = 0.4
    assert propose_duty(np.linspace(0.97, 1.0, 1001), 2).duty == 0.9
    assert propose_duty(np.array([*np.ones(98), 0.1, 0.1]), 4).duty == 0.3
    assert propose_duty(np.array([*np.ones(98), 0.1, 0.1]), 4).late == pytest.approx(1 - 0.98**4, abs=1e-6)


def test_more_ranks_never_propose_more() -> None:
    speeds = np.random.default_rng(2).normal(1.0, 0.02, 5000)
    duties = [propose_duty(speeds, ranks).duty for ranks in (1, 2, 8, 64)]
    assert duties == sorted(duties, reverse=True) and duties[0] > duties[-1]


# -- the probes, simulated with known overheads


def test_the_ladder_has_all_sizes() -> None:
    assert [probes.sizes(nodes) for nodes in (1, 2, 4, 6)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 6]]


def simulated_samples(probe: tb.Workload, policy: object) -> OverheadSamples:
    """Return the samples of a probe that was simulated instead of replayed, with the journal of such a replay."""
    machine = [NodeFacts(f"n{number}", 8) for number in range(1, 5)]
    run = predict(probe, machine, policy, overheads=TRUE, speed=SPEED)  # type: ignore[arg-type]
    entries = [
        Entry(0, 0.0, "ended", name, "n1", {"leader": True, "planned_s": planned, "residual_s": 0.0})
        for name, planned in planned_times(run, probe).items()
    ]
    return samples_of(run, probe, entries, TRUE.grain_s)


def planned_times(run: Run, workload: tb.Workload) -> dict[str, float]:
    """Return the wall time from the first to the planned end of the work of each job: its end without the overhead."""
    jobs = Jobs.of(workload)
    last = {name: int(nodes) for name, nodes in zip(jobs.ids, jobs.nodes, strict=True)}
    applied = run.reconfigurations[run.reconfigurations["state"] == "applied"]
    starts = run.allocations.sort_values("start").merge(run.jobs[["job_id", "start"]], on="job_id", suffixes=("", "_j"))
    first = starts[starts["start"] == starts["start_j"]].groupby("job_id")["count"].sum()
    last |= {name: int(nodes) for name, nodes in first.items()}
    asked = run.reconfigurations[::-1]
    last |= dict(zip(asked["job_id"], asked["nodes_from"], strict=True))
    last |= dict(zip(applied["job_id"], applied["nodes_to"], strict=True))
    rows = zip(run.jobs["job_id"], run.jobs["launched"], run.jobs["end"], strict=True)
    return {name: (end - launched) / SPEED - TRUE.end(last[name]) for name, launched, end in rows}


def test_the_estimates_recover_known_overheads_from_the_probes() -> None:
    inventory = load_inventory("emulated-4")
    ladder = probes.ladder(inventory, SPEED)
    samples = OverheadSamples.joined(
        [
            simulated_samples(ladder, probes.Ladder(2 * inventory.grain_s * SPEED)),
            simulated_samples(probes.mix(inventory, SPEED), "pref"),
        ]
    )
    assert with_step(samples.launch) == pytest.approx([0.011, 0.013, 0.002], rel=1e-6)
    assert linear(samples.end) == pytest.approx([0.003, 0.0025], rel=1e-6)
    assert len(samples.expand) > 50 and len(samples.shrink) > 25
    assert {1.0, 2.0} <= set(samples.expand[:, 0])
    assert samples.shrink[:, 2].mean() == pytest.approx(0.001)
    assert (samples.shrink[:, 2] + samples.shrink[:, 3]).mean() == pytest.approx(0.006, rel=0.01)
    assert (samples.shrink[:, 1] / samples.shrink[:, 4]).mean() == pytest.approx(0.5, abs=0.15)
    first, further = estimates([samples.ready] * 3, joins, resamples=20)
    assert first.value == pytest.approx(0.02, abs=0.001) and further.value < 0.003
    assert first.low < first.value <= first.high


def test_intervals_of_different_position_determine_the_mean_of_joins_that_are_not_observed() -> None:
    def drawn(seed: int) -> tuple[float, float, float]:
        """Return estimates of 50 joins, 12 ms and 4 ms for each further rank: by the centers, and by `joins`."""
        rng = np.random.default_rng(seed)
        ranks, iteration = rng.choice([1, 2, 3], 50, p=[0.5, 0.4, 0.1]), rng.choice([0.05, 0.1, 0.2], 50)
        joined = 0.012 * rng.lognormal(-0.045, 0.3, 50) + 0.004 * (ranks - 1)
        first = rng.uniform(size=50) * iteration  # end of the current iteration
        end = first + np.maximum(0, np.ceil((joined - first) / iteration)) * iteration
        samples = np.column_stack([ranks, end, iteration])
        return linear(np.column_stack([ranks, end - iteration / 2]))[0], *joins(samples)

    centers, found, further = np.array([drawn(seed) for seed in range(20)]).T
    assert found.mean() == pytest.approx(0.012, abs=0.001) and found.std() < 0.003 < centers.std()
    assert 0.001 < further.mean() < 0.006


def test_joins_that_are_known_exactly_are_fitted_as_others() -> None:
    exact = np.array([0.01, 0.01, 0.03])
    assert joins(np.column_stack([[1, 1, 2], exact, np.full(3, 1e-9)])) == pytest.approx([0.01, 0.02], abs=0.03 / 200)
    assert joins(np.array([[1.0, 0.0, 0.05]])).tolist() == [0.0, 0.0]
    assert joins(np.zeros((0, 3))).tolist() == [0.0, 0.0]


# -- from end to end


def test_a_stall_distorts_one_block_of_a_single_repetition() -> None:
    samples = np.full(60, 0.008)
    samples[30:34] = 0.5
    alone, several = mean_of([samples]), mean_of([samples, samples, samples])
    assert alone is not None and several is not None
    assert alone.value == pytest.approx(0.008) and len(alone.repetitions) == 3 and alone.count == 60
    assert several.value == pytest.approx(samples.mean(), rel=1e-3)
    few = mean_of([samples[:10]])
    assert few is not None and len(few.repetitions) == 1


@pytest.mark.usefixtures("no_process_is_left")
@pytest.mark.slow
def test_a_calibration_of_emulated_nodes_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "e.calibration.yaml"
    shares: list[float] = []
    made = tb.calibrate("emulated-4", repetitions=2, seconds=0.1, on_progress=shares.append)
    made.save(path)
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert tb.Calibration.load(path) == made
    assert made.execution == "emulated" and made.nodes == 4 and made.cores == [8] and made.duty == 0.0
    assert made.units_per_core_second is None and made.duty_proposal is None and made.sharing is None
    assert {"launch_s", "launch_join_s", "launch_rank_s", "end_s", "end_rank_s"} <= made.overheads.keys()
    assert [size.ranks for size in made.launch][-1] == 4
    assert len(made.overheads["launch_s"].repetitions) == 6  # three blocks of each repetition
    assert len(made.workloads) == 2 and any("speedup" in what for what in made.skipped)

    workload = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
    nominal = tb.simulate(workload, "easy", "emulated-4", speed=1e5)
    calibrated = tb.simulate(workload, "easy", "emulated-4", speed=1e5, calibration=path)
    real = tb.replay(workload, "easy", "emulated-4", speed=1e5)
    delays = [(run.jobs["launched"] - run.jobs["start"]).mean() for run in (nominal, calibrated, real)]
    assert delays[0] == 0.0 < min(delays[1:])
    assert calibrated.info.calibration["sha256"] == made.sha256
    assert not set(made.workloads) & {workload.sha256}


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
def test_the_command_writes_a_calibration_and_refuses_what_it_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "MIX_JOBS", 8)
    monkeypatch.setattr(probes, "RIGID_JOBS", 1)
    monkeypatch.setattr(probes, "MALLEABLE_S", 0.5)
    command = ["nodes", "calibrate", "--inventory", "emulated-4", "--repetitions", "1"]
    done = CliRunner().invoke(tracebed, [*command, "-o", str(tmp_path / "missing" / "c.yaml")])
    assert "parent folder does not exist" in str(done.exception)
    done = CliRunner().invoke(tracebed, [*command, "-o", str(tmp_path / "c.yaml")], catch_exceptions=False)
    assert done.exit_code == 0
    assert "launch_join" in done.output and "95 % interval" in done.output
    assert tb.Calibration.load(tmp_path / "c.yaml").repetitions == 1


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
def test_a_calibration_of_computing_nodes_has_rate_duty_and_speedups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procedure, "DUTY_WINDOWS", 12)  # the duty of a busy machine is not checked
    (tmp_path / "one.yaml").write_text("nodes:\n  - {name: 'n[1-*]', cpus: auto, cores: 1, duty: 1}\n")
    made = tb.calibrate(tmp_path / "one.yaml", repetitions=1, seconds=0.2)
    assert made.units_per_core_second is not None and made.duty_proposal is not None
    assert made.duty == 1.0 and made.execution == "computed"
    assert made.speedups[0].speedup == 1.0 and made.speedups[0].nodes == 1
    assert any("share a node" in what for what in made.skipped)


# -- calibration files, stored work rates, and what replays do with them -----------------------------------------------

RATE = RateEstimate(median=2e5, low=1.9e5, high=2.1e5, p05=1.5e5, p95=2.2e5, windows=25, window_s=0.2)
MACHINE = {"host": "h", "cpu": "model", "kernel": "c", "cpus": "0-1"}


def estimate(value: float) -> OverheadEstimate:
    return OverheadEstimate(value=value, median=value, low=value, high=value, count=5, repetitions=[value])


def calibration(**changes: object) -> Calibration:
    fields = {
        "name": "local",
        "created": "2026-01-02T03:04:05+00:00",
        "tracebed": "1",
        "inventory": "local",
        "execution": "computed",
        "nodes": 2,
        "cores": [1],
        "host": {"name": "h", "memory_mib": 5},
        "speed": 100.0,
        "grain_s": 0.05,
        "repetitions": 3,
        "units_per_core_second": RATE,
        "duty": 0.5,
        "overheads": {"launch_s": estimate(0.01), "end_s": estimate(-0.001)},
        "workloads": ["a" * 64],
    }
    return Calibration.model_validate(fields | changes)


@pytest.fixture
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_a_calibration_survives_saving_and_loading(tmp_path: Path) -> None:
    before = calibration()
    after = Calibration.load(before.save(tmp_path / "c.yaml"))
    assert after == before and after.sha256 == before.sha256
    (tmp_path / "c.yaml").write_text("# a comment\n" + before.text)
    assert Calibration.load(tmp_path / "c.yaml").sha256 == before.sha256
    assert calibration(duty=0.6).sha256 != before.sha256


def test_a_calibration_without_applications_has_the_hash_of_earlier_versions() -> None:
    assert calibration().sha256 == "fcab2c6f3d76e91cfacfbf71f270633caa32f18c02d825334923342caa465b85"
    measured = calibration(applications={"mpi": {"expand_pause_s": estimate(0.5)}})
    assert measured.sha256 != calibration().sha256
    assert measured.facts()["applications"] == {"mpi": {"expand_pause_s": 0.5}}
    with pytest.raises(ValueError, match="pause_s is not a cost of a resize"):
        calibration(applications={"mpi": {"pause_s": estimate(0.5)}})


def test_the_constants_are_overheads_of_the_simulator_and_not_negative() -> None:
    assert calibration().constants == {"launch_s": 0.01, "end_s": 0.0, "grain_s": 0.05}
    Overheads(**calibration(overheads={name: estimate(1.0) for name in OVERHEADS}).constants)


def test_a_run_names_the_calibration_and_its_workloads() -> None:
    facts = calibration().facts()
    assert facts["sha256"] == calibration().sha256 and facts["workloads"] == ["a" * 64]
    assert facts["units_per_core_second"] == 2e5 and facts["spread"] == [0.75, 1.1] and facts["duty"] == 0.5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tracebed-calibration/1", "tracebed-calibration/9", "schema is 'tracebed-calibration/9'"),
        ("schema: tracebed-calibration/1\n", "", "schema is missing"),
        ("duty: 0.5", "duty: 1.5", "duty: must be at most 1"),
        ("duty: 0.5", "dutty: 0.5", "dutty: unknown key"),
        ("nodes: 2", "nodes: two", "nodes: must be a whole number"),
        ("  launch_s:", "  lunch_s:", "overheads.lunch_s"),
        ("value: 0.01", "value: .nan", "overheads.launch_s.value: must be a finite number"),
        ("created: '2026-01-02T03:04:05+00:00'", "created: today", "created: Invalid isoformat string"),
        ("05+00:00", "05", "created: the time zone is missing"),
        ("[aaa", "[AAA", "workloads.0: must match"),
    ],
)
def test_an_invalid_file_is_an_error_with_its_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    text = calibration().text
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=r"tracebed nodes calibrate|did you mean duty\?") as caught:
        Calibration.load(path)
    assert message in str(caught.value)
    line = text[: text.index(old)].count("\n") + 1
    assert f"{path}:{line}: " in str(caught.value)


def test_a_file_that_does_not_exist_or_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the calibration"):
        Calibration.load(tmp_path / "c.yaml")
    with pytest.raises(InputError, match="parent folder does not exist"):
        calibration().save(tmp_path / "missing" / "c.yaml")


def test_the_state_folder_is_that_of_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert state_folder() == Path("/state/tracebed")
    for ignored in ("relative/path", ""):
        monkeypatch.setenv("XDG_STATE_HOME", ignored)
        assert state_folder() == Path.home() / ".local/state/tracebed"


@pytest.mark.usefixtures("_own_folder")
def test_a_stored_rate_is_found_on_the_same_cpus_only() -> None:
    rate = StoredRate(created="2026-01-02T03:04:05+00:00", units_per_core_second=RATE, **MACHINE)  # type: ignore[arg-type]
    assert load_rate(**MACHINE) is None
    path = store_rate(rate)
    assert load_rate(**MACHINE) == rate and path.is_relative_to(state_folder())
    for key in MACHINE:
        assert load_rate(**MACHINE | {key: "other"}) is None
    path.write_text(rate.text.replace("host: h", "host: g"))
    with pytest.raises(InputError, match="is the rate of another machine"):
        load_rate(**MACHINE)


def test_the_interval_of_a_median_covers_it() -> None:
    rng = np.random.default_rng(1)
    for count, least in ((10, 0.93), (25, 0.93), (100, 0.93)):
        samples = rng.lognormal(0.0, 1.0, (1000, count))
        intervals = np.array([median_interval(row) for row in samples])
        covered = np.mean((intervals[:, 0] <= 1.0) & (intervals[:, 1] >= 1.0))
        assert least < covered <= 1.0, count
    assert median_interval(np.array([3.0])) == (3.0, 3.0)


@pytest.mark.usefixtures("_own_folder", "no_process_is_left")
def test_the_first_replay_measures_the_rate_and_later_ones_use_it(tmp_path: Path) -> None:
    cpus = tuple(sorted(os.sched_getaffinity(0)))[:1]
    inventory = Inventory("i", "agents", (Node("n1", 1, cpus=cpus),))
    with AgentTestbed(inventory, tmp_path / "spool") as testbed:
        first = rate_of(testbed, windows=3)
        second = rate_of(testbed, windows=3)
        third = rate_of(testbed, windows=2, again=True)
    assert first is not None and third is not None
    assert first == second and first.cpus == format_cpus(cpus)
    assert first.units_per_core_second.windows == 3 and third.units_per_core_second.windows == 2
    assert first.path == third.path and load_rate(third.host, third.cpu, third.kernel, third.cpus) == third


@pytest.mark.usefixtures("no_process_is_left")
def test_emulated_nodes_have_no_rate(tmp_path: Path) -> None:
    inventory = Inventory("i", "agents", (Node("n1", 2, emulated=True),))
    with AgentTestbed(inventory, tmp_path / "spool") as testbed:
        assert rate_of(testbed) is None
        assert rates.measure(testbed, [0], 1, 0.01) is None


def work_of(run: Path) -> tuple[int, dict[str, object], object]:
    """Return the units that the only job of a replay did, the calibration that the run names, and its duty."""
    _, entries = journal.read(run / JOURNAL)
    [ended] = [entry for entry in entries if entry.kind == "ended"]
    info = Run.load(run).info
    return ended.data["units_done"], info.calibration, info.parameters["duty"]


@pytest.mark.slow
@pytest.mark.usefixtures("_own_folder", "no_process_is_left")
def test_replays_do_the_same_work_by_the_stored_rate_or_that_of_a_calibration(tmp_path: Path) -> None:
    cpus = tuple(sorted(os.sched_getaffinity(0)))[:1]
    inventory = Inventory("i", "agents", (Node("n1", 1, cpus=cpus),), grain_s=0.02)
    workload = tb.Workload(pd.DataFrame({"job_id": ["a"], "submit_time": [0.0], "run_time": [5.0], "nodes": [1]}))
    made = calibration(duty=0.3)
    for name, chosen in (("first", None), ("second", None), ("calibrated", made)):
        tb.replay(workload, "fcfs", inventory, speed=100, output=tmp_path / name, work_rate=chosen)
    first, second = work_of(tmp_path / "first"), work_of(tmp_path / "second")
    assert first == second and str(first[1]["name"]).startswith("stored rate")
    assert first[0] == pytest.approx(0.05 * float(str(first[1]["units_per_core_second"])), abs=1.0)
    assert work_of(tmp_path / "calibrated") == (
        10_000,
        made.facts() | {"rates": {"pils": 200_000.0}},
        0.3,
    )  # 0.05 s at 200,000 units a second


@pytest.mark.usefixtures("_own_folder")
def test_no_computing_node_is_sized_by_a_calibration_without_a_work_rate(tmp_path: Path) -> None:
    """Those of emulated nodes and of fits have none. Before, the stored rate sized the work without a word."""
    inventory = Inventory("i", "agents", (Node("n1", 1, cpus=(0,)),), grain_s=0.02)
    workload = tb.Workload(pd.DataFrame({"job_id": ["a"], "submit_time": [0.0], "run_time": [5.0], "nodes": [1]}))
    without = calibration(units_per_core_second=None)
    with pytest.raises(InputError, match="no work rate for computing nodes"):
        tb.replay(workload, "fcfs", inventory, speed=100, output=tmp_path / "run", work_rate=without)
    assert not (tmp_path / "run").exists()
