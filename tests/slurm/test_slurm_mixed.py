"""Slurm as operators run it against recordings of a real Slurm 22.05.8 (`record_slurm_mixed.py`)."""

from __future__ import annotations

import pytest

from tests.oracles import slurm_mixed

RECORDINGS = sorted(slurm_mixed.FOLDER.glob("*.json.xz"))


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.partition(".")[0])
def test_passes_and_orders_are_those_of_slurm(path: slurm_mixed.Path) -> None:
    forced = slurm_mixed.Forced(slurm_mixed.recorded(path)).repeat()
    assert forced.counts["backfill"] > 100
    assert not [kind for _, kind in forced.differ if kind == "main"]
    assert len(forced.differ) <= 2
