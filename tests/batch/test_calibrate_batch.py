"""The calibration of a batch system from replays in virtual time in which a policy decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pytest

import tracebed.api as tb
from tests.faults.batch import VirtualJob
from tests.faults.layered_batch import LayeredBatch, LayerPlay, LayerScenario
from tests.faults.resizing_batch import GRANT_S, SPAWN_S, ResizingBatch, ResizingPlay, ResizingScenario
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.batch.base import BatchSettings
from tracebed.orchestrator.replay.batch.records import NS

JOBS = tuple((15.0 * number, 100.0, 600.0, 4) for number in range(30))
"""At 10 times the speed, jobs of 10 s on half of the nodes, one every 1.5 s. Every other job is malleable."""

SMALL_JOBS = tuple(sorted((25.0 * number + number * 7 % 5 * 6.0, 100.0, 600.0, 2) for number in range(60)))
"""Jobs that are resized more often."""


@pytest.fixture(scope="module")
def plays() -> Iterator[list[ResizingPlay]]:
    """Yield three repetitions."""
    made = [ResizingPlay(ResizingScenario(seed, JOBS)) for seed in range(3)]
    for play in made:
        play.play()
    yield made
    for play in made:
        play.close()


def runs_of(plays: list[ResizingPlay]) -> list[tb.Run]:
    """Return the runs."""
    return [play.run for play in plays if play.run is not None]


def wait_s(run: tb.Run) -> float:
    """Return the mean wait."""
    return float((run.jobs["start"] - run.jobs["submit"]).mean())


def test_the_times_of_the_batch_system_are_those_of_its_world(plays: list[ResizingPlay]) -> None:
    made = tb.calibrate_batch(runs_of(plays), name="virtual")
    assert (made.batch, made.repetitions, made.speed, made.nodes) == ("virtual", 3, 10.0, 8)
    values = {name: estimate.value for name, estimate in made.overheads.items()}
    assert values.keys() == {"launch_s", "end_s", "expand_s", "reconfiguration_s", "release_s"}
    assert values["reconfiguration_s"] == pytest.approx(SPAWN_S / 2, abs=0.05)  # drawn from 0 to SPAWN_S
    assert 0.1 < values["end_s"] < 1.0  # the release, and the time until the next observation
    assert 0.1 < values["launch_s"] < 1.0
    assert 0.05 < values["expand_s"] < GRANT_S
    assert values["release_s"] > values["reconfiguration_s"]


def test_a_simulation_with_the_calibration_predicts_the_waits(plays: list[ResizingPlay], tmp_path: Path) -> None:
    workload = plays[0].scenario.workload
    made = tb.calibrate_batch(runs_of(plays), name="virtual")
    real = np.mean([wait_s(run) for run in runs_of(plays)])
    calibrated = tb.simulate(workload, "pref", 8, speed=10.0, calibration=made)
    without = tb.simulate(workload, "pref", 8)
    calibrated.save(tmp_path / "run")
    assert tb.Run.load(tmp_path / "run").jobs.equals(calibrated.jobs)  # checks the allocations, also of late expansions
    errors = [abs(wait_s(run) / real - 1.0) for run in (calibrated, without)]
    assert errors[0] < 0.03 < errors[1] / 2


def test_a_run_in_which_no_policy_decided_is_refused() -> None:
    with pytest.raises(InputError, match="not of a policy or a layer that decides"):
        tb.calibrate_batch([tb.simulate(tb.generate("cirne", jobs=5, nodes=4, seed=1), "easy", 4)])


# -- steps -------------------------------------------------------------------------------------------------------------

LAUNCH_S, END_S = 0.75, 1.5
"""Of the steps of a malleable job, wall s."""


class SteppedBatch(LayeredBatch):
    """A batch system whose malleable jobs work when their steps do, and end when their steps have ended."""

    def _launch(self, job: VirtualJob) -> None:
        self._for(job, LAUNCH_S, partial(super()._launch, job))

    def _record(self, job: VirtualJob, kind: str, fields: str) -> None:
        launched, steps_s = job.script_start, LAUNCH_S * self._is_malleable(job)
        assert launched is not None
        job.script_start = launched - steps_s
        super()._record(job, kind, f"launched={round(launched / NS)}\n{fields}")
        job.script_start = launched

    def _release(self, job: VirtualJob, word: str, state: JobState, start: float | None) -> None:
        self._for(job, END_S * self._is_malleable(job), partial(super()._release, job, word, state, start))

    def _is_malleable(self, job: VirtualJob) -> bool:
        return len(job.request.arguments) > 3


class SteppedPlay(LayerPlay):
    """The replay of a scenario of such a batch system."""

    def _make_system(self) -> LayeredBatch:
        assert isinstance(self.scenario, LayerScenario)
        return SteppedBatch(self.scenario, self)


def test_the_steps_of_malleable_jobs_beside_a_layer_have_times_of_their_own() -> None:
    played = [SteppedPlay(LayerScenario(seed, JOBS)) for seed in range(3)]
    for play in played:
        play.play()
    runs = runs_of([*played])
    made = tb.calibrate_batch(runs, name="layer")
    malleable = sum(run.jobs["kind"].tolist().count("malleable") for run in runs)
    for play in played:
        play.close()
    assert made.steps["launch_s"].value == pytest.approx(LAUNCH_S, abs=1e-6)
    assert made.steps["launch_s"].count == malleable > 40
    # starts and ends are in whole seconds: a mean of 40 has a standard error of 0.05 s
    assert made.steps["end_s"].value == pytest.approx(END_S, abs=0.3)
    assert made.overheads["launch_s"].value < 0.3
    assert made.overheads["end_s"].value < 0.3
    assert made.facts()["steps"] == {name: one.value for name, one in made.steps.items()}


# -- programs ----------------------------------------------------------------------------------------------------------


def pause_s(application: str, mib: float, added: int) -> float:
    """Return how long a program of the virtual batch system pauses when `added` nodes are added, wall s."""
    if application == "mpi":
        return 0.2 + 0.05 * (added - 1) + 0.002 * mib if added > 0 else 0.1 + 0.001 * mib
    return 2.0 if added > 0 else 1.0


class ProgramBatch(ResizingBatch):
    """A batch system whose malleable jobs are programs."""

    sizes: dict[str, int]

    def _pause_of(self, job: VirtualJob, names: Sequence[str]) -> float:
        self.sizes = vars(self).get("sizes", {})
        before, self.sizes[job.id] = self.sizes.get(job.id), len(names)
        _, application, mib = job.request.arguments[4:]
        return 0.0 if before is None else pause_s(application, float(mib), len(names) - before)


class ProgramScenario(ResizingScenario):
    """A scenario in which the malleable jobs are two programs, with states of different sizes."""

    @cached_property
    def workload(self) -> Workload:
        base = ResizingScenario(self.seed, self.jobs).workload
        numbers = base.table.index
        programs = [("mpi", "command")[number // 2 % 2] for number in numbers]
        return Workload(
            base.table.assign(
                application=programs,
                application_parameters=["name=train" if each == "command" else "" for each in programs],
                state_mib=[float(number % 5 * 20) for number in numbers],
            ),
            base.provenance,
        )


class ProgramPlay(ResizingPlay):
    """The replay of such a scenario."""

    def __init__(self, scenario: ResizingScenario) -> None:
        super().__init__(scenario)
        self.options = replace(self.options, settings=BatchSettings(program="train"))

    def _make_system(self) -> ResizingBatch:
        scenario = self.scenario
        return ProgramBatch(self.world, scenario.faults, accounting=scenario.accounting, seed=scenario.seed + 2)


@pytest.fixture(scope="module")
def programs() -> Iterator[list[ResizingPlay]]:
    """Yield three repetitions with programs."""
    made: list[ResizingPlay] = [ProgramPlay(ProgramScenario(seed, SMALL_JOBS)) for seed in range(3)]
    for play in made:
        play.play()
    yield made
    for play in made:
        play.close()


def test_a_simulation_has_the_measured_resizes_of_each_program(programs: list[ResizingPlay], tmp_path: Path) -> None:
    file = tb.calibrate_batch(runs_of(programs), name="virtual").save(tmp_path / "c.yaml")
    made, workload = tb.Calibration.load(file), programs[0].scenario.workload
    values = {name: {cost: one.value for cost, one in each.items()} for name, each in made.applications.items()}
    assert values["mpi"] == pytest.approx(
        {
            **{"expand_pause_s": 0.2, "expand_pause_rank_s": 0.05, "expand_pause_mib_s": 0.002},
            **{"shrink_pause_s": 0.1, "shrink_pause_mib_s": 0.001, "shrink_release_s": 0.15},
        },
        rel=0.2,
    )
    assert values["train"]["expand_pause_s"] == pytest.approx(2.0)
    assert set(made.factors["reconfiguration"]) == {1.0}  # the costs leave nothing to the ensemble
    calibrated = tb.simulate(workload, "pref", 8, speed=10.0, calibration=made)
    of = workload.table.set_index("job_id")
    for row in calibrated.resizes[(calibrated.resizes["state"] == "applied").to_numpy()].itertuples():
        application, mib = of.loc[row.job_id, ["application", "state_mib"]]
        measured = 10.0 * pause_s(application, mib, row.nodes_to - row.nodes_from)
        assert row.applied - row.decided == pytest.approx(measured, rel=0.001)
        assert (row.kind == "shrink") == (row.ended > row.applied)
    real = np.mean([wait_s(run) for run in runs_of(programs)])
    one_for_all = tb.simulate(workload, "pref", 8, speed=10.0, calibration=made.model_copy(update={"applications": {}}))
    errors = [abs(wait_s(run) / real - 1.0) for run in (calibrated, one_for_all)]
    assert errors[0] < 0.06 < errors[1]
