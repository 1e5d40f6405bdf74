"""Each planted defect is found by a seed, whose scenario violates no rule without the defect."""

from __future__ import annotations

import pytest

from tests.faults.scenario import Scenario
from tests.faults.shrinking import violations
from tests.oracles.planted import OF_WAITS, PLANTED

FOUND = {
    "missing_fsync": (213, "crash"),
    "lost_wake": (2, "states"),
    "double_free": (31, "cores"),
    "requeued_twice": (2, "crash"),
    "journalled_after_its_message": (648, "states"),
    "confirmed_too_early": (19, "states"),
    "never_killed": (326, "left"),
    "lost_launch": (10, "crash"),
    "ranks_run_on": (8, "ends"),
    "released_too_early": (50, "states"),
    "completed_rank_is_killed": (1084, "ends"),
    "waits_for_dead_ranks": (23, "crash"),
    "trusts_ranks_without_rows": (276, "crash"),
    "stands_still_after_a_restart": (31, "crash"),
    "steps_reach_the_run": (442, "resizes"),
    "agent_waits_for_its_first_message": (148, "left"),
    "pause_is_forgotten": (18, "crash"),
    "submits_again": (4, "ends"),
    "ends_too_early": (14, "waits"),
}
"""Defect -> a seed that finds it (`python -m tests.oracles.planted`), and the rule that it violates."""


# The others are slow because they are many.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if n > 4 else ()) for n, name in enumerate(FOUND)]
)
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, rule = FOUND[name]
    scenario = Scenario.drawn(seed, waits=name in OF_WAITS)
    assert violations(scenario) == []
    PLANTED[name](monkeypatch)
    found = violations(scenario)
    assert found
    assert found[0].startswith(f"{rule}: ")
