"""Calibration files, stored work rates, and what replays do with them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.simulation.overheads import Overheads
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
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.orchestrator.testbeds.rates import median_interval, rate_of
from tracebed.orchestrator.testbeds.testbed import AgentTestbed

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
    with pytest.raises(InputError, match="tracebed nodes calibrate") as caught:
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
