"""The record of changes of cores: which request a change of a mask answers."""

from __future__ import annotations

import math

import pytest

from tests.replay.test_replayer import workload
from tracebed.orchestrator.replay.event_handler import mask_changed
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import NEVER, CoreChange, CoreChanges, ScheduleRecord

WHOLE, HALF = range(4), range(2)
SHRINK, GROW = CoreChange(WHOLE, HALF), CoreChange(HALF, WHOLE)


def test_a_change_is_applied_by_the_last_request_before_it() -> None:
    """A guest ends as another one comes: the cores return and are lent at once, and the rank notices neither."""
    changes = CoreChanges()
    for asked, change in ((1.0, SHRINK), (5.0, GROW), (5.0, SHRINK), (9.0, GROW)):
        changes.requested(0, 1, {0: change}, asked)
        if asked in (1.0, 9.0):
            changes.took_effect(0, 0, (len(change.before), len(change.after)), (asked + 0.1, NEVER, asked + 0.2))
    assert changes.applied.tolist() == pytest.approx([1.2, math.nan, math.nan, 9.2], nan_ok=True)
    changes.took_effect(0, 0, (4, 3), (10.0, NEVER, 10.0))
    assert changes.cause[-1] == "operator" and len(changes) == 5


def test_a_clock_that_is_late_does_not_make_a_change_that_of_an_operator() -> None:
    changes = CoreChanges()
    changes.requested(0, 1, {0: SHRINK}, 12.0)
    changes.took_effect(0, 0, (4, 2), (11.999, NEVER, 12.0))
    assert (changes.decided.tolist(), changes.applied.tolist()) == ([12.0], [12.0])


def test_a_clock_that_has_stepped_leaves_the_steps_of_a_change_in_order() -> None:
    changes = CoreChanges()
    changes.requested(0, 1, {0: SHRINK, 1: SHRINK, 2: SHRINK}, 12.0)
    changes.took_effect(0, 0, (4, 2), (3.0, 2.0, 4.0))
    changes.took_effect(0, 1, (4, 2), (19.0, 18.0, 14.0))
    changes.launched_with(0, 2, 2, 3.0)
    assert changes.seen.tolist() == pytest.approx([12.0, 14.0, math.nan], nan_ok=True)
    assert (changes.decided.tolist(), changes.applied.tolist()) == ([12.0, 14.0, 12.0], [12.0, 14.0, 12.0])


def test_a_step_towards_the_cores_asked_for_is_no_change_of_an_operator() -> None:
    changes = CoreChanges()
    changes.requested(0, 1, {0: GROW}, 1.0)
    changes.took_effect(0, 0, (2, 3), (1.1, NEVER, 1.1))
    assert len(changes) == 1 and math.isnan(changes.applied[0])
    changes.took_effect(0, 0, (3, 4), (1.2, NEVER, 1.2))
    assert changes.applied.tolist() == [1.2]


def test_a_rank_that_is_launched_after_a_change_has_applied_it() -> None:
    record = ScheduleRecord(Jobs.of(workload(2)))
    record.cores.requested(0, 1, {0: SHRINK}, 1.0)
    mask = {"before": None, "after": "0-1", "applied": 1.5, "nodes": 1}
    mask_changed(record, 0, 0, mask)
    mask_changed(record, 1, 0, mask)  # a guest, of which no change was asked
    assert record.cores.applied.tolist() == [1.5]
