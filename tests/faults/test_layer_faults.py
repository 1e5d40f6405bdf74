"""Replays in virtual time in which a layer resizes jobs beside a batch system, with faults of its commands."""

from __future__ import annotations

import pytest

from tests.faults.batch import BatchFault
from tests.faults.layered_batch import LayerPlay, LayerScenario
from tests.faults.shrinking import examine
from tests.faults.test_resize_faults import JOBS, kinds, resizes

SEEDS = 10
"""Number of seeds in the default run."""
PORTION = 10
"""Number of seeds of a test."""


def played(*faults: BatchFault, seed: int = 1) -> LayerPlay:
    """Return a replay of `JOBS` after its invariants have been checked."""
    play = LayerPlay(LayerScenario(seed, JOBS, faults))
    play.play()
    play.check()
    assert play.run is not None
    assert {*play.run.jobs["state"]} == {"completed"}
    return play


@pytest.mark.parametrize("first", range(0, SEEDS, PORTION))
def test_invariants_hold_with_faults(first: int) -> None:
    assert examine(range(first, first + PORTION), LayerScenario) == (PORTION, [])


def test_a_layer_resizes_jobs_without_faults() -> None:
    play = played()
    assert play.run is not None
    done = play.run.reconfigurations
    assert {*done[done["state"] == "applied"]["kind"]} == {"shrink", "expand"}
    assert "not_done" not in kinds(play)
    counts = play.run.info.batch["layer"]
    assert counts["expanders"] >= counts["merged"] >= 1
    assert counts["refused"] == 0


def test_a_pass_that_failed_is_made_again_and_named() -> None:
    play = played(BatchFault("decide_error", 0.0, 0.0, 1.0))
    assert "shrink" in play.run.reconfigurations["kind"].tolist()  # type: ignore[union-attr]
    assert play.run is not None
    assert play.run.info.batch["layer"]["passes_failed"] >= 1
    assert any("passes of the layer that failed" in warning for warning in play.run.info.warnings)


@pytest.mark.parametrize("kind", ["merge_lost", "shrink_lost", "ask_lost", "limit_lost"])
def test_a_command_whose_answer_is_lost_leaves_no_second_job(kind: str) -> None:
    play = played(*(BatchFault(kind, at, 0.0, 1.0) for at in (0.0, 5.0, 10.0, 15.0, 20.0)))
    assert "not_done" in kinds(play)


def test_a_refused_merge_is_in_the_run() -> None:
    play = played(*(BatchFault("merge_refused", 5.0 * number, 0.0, 1.0) for number in range(6)))
    assert "refused" in resizes(play)


@pytest.mark.parametrize("kind", ["second_cancelled", "ask_refused"])
def test_an_expander_without_nodes_is_counted(kind: str) -> None:
    play = played(*(BatchFault(kind, 5.0 * number, 0.0, 1.0) for number in range(6)))
    assert play.run is not None
    assert play.run.info.batch["layer"]["refused"] >= 1
    assert "refused" not in resizes(play)


def test_a_killed_replay_withdraws_the_second_jobs_that_it_left() -> None:
    """The controller is killed at a call. The resumed one finds second jobs by their names."""
    for call in range(150, 450, 20):
        play = LayerPlay(LayerScenario(1, JOBS, (BatchFault("kill", call, 1.0),)))
        play.play()
        play.check()
