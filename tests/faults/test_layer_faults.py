"""Replays in virtual time in which a layer resizes jobs beside a batch system, with faults of its commands."""

from __future__ import annotations

import pytest

from tests.faults.batch import BatchFault
from tests.faults.layered_batch import LayerPlay, LayerScenario
from tests.faults.shrinking import examine
from tests.faults.test_resize_faults import JOBS, kinds

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
