"""Each planted defect is found by a seed, whose scenario violates no rule without the defect."""

from __future__ import annotations

import pytest

from faults.planted import PLANTED
from tracebed.testing.virtual.scenario import Scenario
from tracebed.testing.virtual.shrinking import violations

FOUND = {
    "missing_fsync": (46, "ends"),
    "lost_wake": (2, "states"),
    "double_free": (31, "cores"),
    "requeued_twice": (2, "crash"),
    "journalled_after_its_message": (648, "states"),
    "confirmed_too_early": (62, "states"),
    "ranks_run_on": (8, "ends"),
    "released_too_early": (7, "states"),
    "waits_for_dead_ranks": (90, "crash"),
}
"""Defect -> the first seed from 0 that finds it (`python tests/faults/planted.py`), and the rule that it violates."""


def test_each_planted_defect_has_a_seed() -> None:
    assert FOUND.keys() == PLANTED.keys()


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, rule = FOUND[name]
    assert violations(Scenario.drawn(seed)) == []
    PLANTED[name](monkeypatch)
    found = violations(Scenario.drawn(seed))
    assert found
    assert found[0].startswith(f"{rule}: ")
