"""Overheads of predictions: launches and ends by number of ranks, resizes by stage, and the grain of iterations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.oracles.reference_scheduler import RefJob
from tests.scheduling.test_scheduling import workload_of
from tests.testbeds.test_calibrate import calibration, estimate
from tracebed.cli import tracebed
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.state import Decision, Resize, Start, State, Wake
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import EngineChoice, predict

ENGINES: list[EngineChoice] = ["python", "compiled"]


@dataclass(frozen=True)
class ResizeAt:
    """Start the only job on its preferred size, and resize it to `nodes` at the instant `at`."""

    at: float
    nodes: int
    malleable: ClassVar[bool] = True

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the start, the wake, or the resize."""
        if (head := state.queue.head) is not None:
            yield Start(head, state.jobs.pref[head])
            yield Wake(self.at)
        elif state.woken:
            yield Resize(0, self.nodes)


def malleable_job(preferred: int) -> RefJob:
    """A job of 100 s on 2 nodes: an iteration with a grain of 10 s takes 10 s on 2 nodes, 20 s on 1, 5 s on 4."""
    job = RefJob(0, 0.0, 100.0, None, 2)
    job.malleable, job.nodes_min, job.nodes_pref, job.nodes_max = True, 1, preferred, 4
    return job


def resized(at: float, preferred: int, nodes: int, interval_s: float = 0.0, **overheads: float) -> Run:
    workload, costs = workload_of([malleable_job(preferred)]), Overheads(**overheads)
    return predict(workload, 4, ResizeAt(at, nodes), overheads=costs, malleability_interval_s=interval_s)


def row(run: Run) -> dict[str, Any]:
    [found] = run.reconfigurations.to_dict("records")
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("ranks", "launch", "end"), [(1, 1.0, 3.0), (2, 1.5, 3.25), (4, 1.7, 3.75)])
def test_launch_and_end_depend_on_the_number_of_ranks(
    ranks: int, launch: float, end: float, engine: EngineChoice
) -> None:
    overheads = Overheads(launch_s=1.0, launch_join_s=0.5, launch_rank_s=0.1, end_s=3.0, end_rank_s=0.25)
    jobs = [RefJob(0, 0.0, 10.0, None, ranks)]
    run = predict(workload_of(jobs), 4, "fcfs", overheads=overheads, speed=2.0, engine=engine)
    assert run.jobs["launched"].tolist() == pytest.approx([2 * launch])
    assert run.jobs["end"].tolist() == pytest.approx([2 * launch + 10.0 + 2 * end])


def test_a_shrink_takes_effect_at_the_end_of_the_iteration_and_then_releases() -> None:
    run = resized(13.0, 2, 1, grain_s=10.0, launch_s=1.0, release_s=4.0)
    found = row(run)
    assert (found["asked"], found["decided"], found["applied"], found["ended"]) == (13.0, 21.0, 21.0, 25.0)
    assert run.jobs["end"].tolist() == [1.0 + 20.0 + 160.0]
    ends = run.allocations.sort_values("end")["end"].tolist()
    assert ends == [25.0, 181.0]  # the released node is held until the release has ended


def test_an_expansion_waits_for_its_ranks_and_then_for_the_end_of_an_iteration() -> None:
    run = resized(12.0, 1, 4, grain_s=10.0, expand_s=8.0, expand_rank_s=1.5)
    found = row(run)  # on one node iterations end at 20, 40, ...; three ranks join at 12 + 8 + 2 * 1.5 = 23
    assert (found["asked"], found["decided"], found["applied"]) == (12.0, 40.0, 40.0)
    assert run.jobs["end"].tolist() == [40.0 + 80.0 / 2]


def test_a_reconfiguration_pauses_the_job_before_the_released_nodes_count() -> None:
    found = row(resized(13.0, 2, 1, grain_s=10.0, reconfiguration_s=3.0, release_s=1.0))
    assert (found["decided"], found["applied"], found["ended"]) == (20.0, 23.0, 23.0)


def test_a_job_that_ends_during_the_last_iteration_or_the_release_is_not_resized() -> None:
    for overheads in ({"grain_s": 100.0}, {"grain_s": 10.0, "release_s": 500.0}):
        run = resized(93.0 if "release_s" not in overheads else 13.0, 2, 1, **overheads)
        assert row(run)["state"] == "cancelled"
        assert run.jobs["state"].tolist() == ["completed"]


def test_without_overheads_an_expansion_takes_effect_at_once() -> None:
    found = row(resized(12.0, 1, 4))
    assert found["asked"] == found["decided"] == found["applied"] == found["ended"] == 12.0


@pytest.mark.parametrize(("nodes", "end"), [(1, 8.0 + 1.0 + 200.0), (4, 8.0 + 1.0 + 50.0)])
def test_a_job_that_is_being_launched_is_resized_when_its_work_begins(nodes: int, end: float) -> None:
    """As the programs of the AMTE scheduler: an order waits until the program listens, then its own time begins."""
    run = resized(5.0, 2, nodes, launch_s=8.0, reconfiguration_s=1.0, release_s=4.0)
    found = row(run)
    assert (found["asked"], found["decided"], found["applied"]) == (5.0, 8.0, 9.0)
    assert found["ended"] == (12.0 if nodes == 1 else 9.0)
    assert run.jobs["end"].tolist() == [end]
    assert row(resized(5.0, 2, nodes, interval_s=3.0, launch_s=8.0))["decided"] == 9.0  # of 3, 6, 9, ... s
    assert row(resized(5.0, 1, 4, launch_s=8.0, expand_s=7.0))["decided"] == 12.0  # the ranks join meanwhile


@pytest.mark.parametrize("policy", ["dmr", "min", "pref", "avg"])
def test_both_engines_resize_launching_jobs_alike(policy: str) -> None:
    jobs = [RefJob(number, 7.0 * number, 60.0 + number, None, 3, True, 1, 8, 3) for number in range(12)]
    costs = Overheads(launch_s=30.0, reconfiguration_s=1.0, release_s=4.0)
    runs = [predict(workload_of(jobs), 8, policy, overheads=costs, engine=engine) for engine in ENGINES]
    begins = runs[0].jobs.set_index("job_id")["launched"]
    for run in runs:
        decided = run.reconfigurations.dropna(subset=["decided"])
        assert len(decided)
        assert (decided["decided"] >= decided["job_id"].map(begins)).all()
    pd.testing.assert_frame_equal(runs[0].reconfigurations, runs[1].reconfigurations)


@given(
    st.floats(0.0, 100.0),
    st.integers(1, 4),
    st.dictionaries(st.sampled_from([field.name for field in fields(Overheads)]), st.floats(0.001, 10.0)),
    st.sampled_from([field.name for field in fields(Overheads)]),
    st.floats(0.0, 10.0),
)
def test_a_larger_overhead_never_ends_a_rigid_job_under_fcfs_earlier(
    run_time: float, nodes: int, overheads: dict[str, float], larger: str, more: float
) -> None:
    workload, before = workload_of([RefJob(0, 1.0, run_time, None, nodes)]), Overheads(**overheads)
    after = replace(before, **{larger: max(0.001, getattr(before, larger) + more)})
    ends = [predict(workload, 4, "fcfs", overheads=one).jobs["end"].tolist()[0] for one in (before, after)]
    assert ends[1] >= ends[0] >= 1.0 + run_time


def test_a_grain_excludes_a_malleability_interval_and_has_a_least_value() -> None:
    workload = workload_of([malleable_job(2)])
    with pytest.raises(InputError, match="both a grain and a malleability interval"):
        predict(workload, 4, "pref", overheads=Overheads(grain_s=1.0), malleability_interval_s=1.0)
    with pytest.raises(InputError, match="grain_s is 1e-07"):
        predict(workload, 4, "pref", overheads=Overheads(grain_s=1e-7))


# -- simulate with a calibration


@pytest.fixture
def small() -> tb.Workload:
    return tb.Workload(
        pd.DataFrame({"job_id": ["a", "b"], "submit_time": [0.0, 0.0], "run_time": [100.0, 50.0], "nodes": [4, 1]})
    )


def test_a_prediction_uses_and_names_its_calibration(small: tb.Workload, tmp_path: Path) -> None:
    made = calibration(
        inventory="emulated-4",
        execution="emulated",
        duty=0.0,
        overheads={"launch_s": estimate(0.1), "launch_rank_s": estimate(0.01), "end_s": estimate(0.02)},
    )
    path = made.save(tmp_path / "c.yaml")
    run = tb.simulate(small, "fcfs", "emulated-4", speed=10, calibration=path)
    assert run.info.calibration == made.facts()
    assert run.jobs["launched"].tolist() == pytest.approx([1.2, 101.4 + 1.0])
    assert run.jobs["end"].tolist() == pytest.approx([101.4, 101.4 + 51.2])
    assert run.info.settings["overhead_launch_rank_s"] == 0.01 and run.info.settings["overhead_grain_s"] == 0.05
    loaded = Run.load(run.save(tmp_path / "run"))
    assert loaded.info.calibration["workloads"] == made.workloads
    assert tb.simulate(small, "fcfs", "emulated-4").info.calibration == {}


def test_a_calibration_and_other_overheads_are_an_error(small: tb.Workload) -> None:
    made = calibration()
    with pytest.raises(InputError, match="both a calibration and overheads are given"):
        tb.simulate(small, "fcfs", 4, calibration=made, overheads={"launch_s": 0.1})
    with pytest.raises(InputError, match="both a calibration and a malleability interval are given"):
        tb.simulate(small, "fcfs", 4, calibration=made, malleability_interval_s=1.0)


def test_a_calibration_of_another_testbed_is_a_warning(small: tb.Workload) -> None:
    with pytest.warns(UserWarning) as warnings:
        tb.simulate(small, "fcfs", "emulated-4", calibration=calibration(grain_s=0.1))
    texts = " ".join(str(warning.message) for warning in warnings)
    for part in ("inventory local", "execution computed", "grain 0.1", "duty 0.5"):
        assert f"made for {part}, but it is used for" in texts
    other = calibration(inventory="other", execution="emulated", duty=0.0, units_per_core_second=None)
    with pytest.warns(UserWarning, match="made for inventory other, but it is used for inventory emulated-4"):
        tb.replay(small, "fcfs", "emulated-4", speed=1e6, work_rate=other)


def test_the_command_takes_a_calibration(small: tb.Workload, tmp_path: Path) -> None:
    made = calibration(inventory="emulated-4", execution="emulated", duty=0.0)
    path, workload = made.save(tmp_path / "c.yaml"), tb.write(small, tmp_path / "w.parquet")
    command = ["simulate", str(workload), "--policy", "fcfs", "--inventory", "emulated-4", "--speed", "10"]
    command += ["--calibration", str(path), "-o", str(tmp_path / "run")]
    done = CliRunner().invoke(tracebed, command, catch_exceptions=False)
    assert done.exit_code == 0
    assert Run.load(tmp_path / "run").info.calibration["sha256"] == made.sha256
    done = CliRunner().invoke(tracebed, [*command, "--replace", "--overhead", "end_s=1"])
    assert "both a calibration and overheads are given" in str(done.exception)
