"""The calibration of a batch system from replays in virtual time in which a policy decided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tracebed.api as tb
from faults.resizing_batch import GRANT_S, SPAWN_S
from faults.resizing_scenario import ResizingPlay, ResizingScenario
from tracebed.errors import InputError

JOBS = tuple((15.0 * number, 100.0, 600.0, 4) for number in range(30))
"""At 10 times the speed, jobs of 10 s on half of the nodes, one every 1.5 s. Every other job is malleable."""


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
    with pytest.raises(InputError, match="not of a policy that decides"):
        tb.calibrate_batch([tb.simulate(tb.generate("cirne", jobs=5, nodes=4, seed=1), "easy", 4)])
