"""The two races that schedulers of containers had, as scenarios in virtual time (kubernetes-sigs/kueue #11480).

A scheduler counts a start or an end as done before it is done: cores are free before the old processes are gone, or a
job that waits for a release is never woken.
"""

from __future__ import annotations

from tests.faults.scenario import JobSpec, Outcome, Scenario, carry_out
from tests.faults.shrinking import violations
from tracebed.orchestrator.testbeds.agent.processes import GRACE_S
from tracebed.testing.virtual.faults import Fault

STOPPED_S = 2.5


def ends_and_starts(scenario: Scenario, node: str) -> tuple[list[tuple[str, str, float]], dict[str, str]]:
    """Return the starts and ends of ranks on a node, with their jobs and times, and the state of each job."""
    seen: list[tuple[str, str, float]] = []
    states: dict[str, str] = {}

    def keep(outcome: Outcome) -> None:
        assert outcome.run is not None
        states.update(zip(outcome.run.jobs["job_id"], outcome.run.jobs["state"], strict=True))
        for now, what, *details in outcome.seen:
            if what in ("fork", "end") and details[0].name == node:
                seen.append((what, details[0].launch.job, now))

    carry_out(scenario, keep)
    return seen, states


def test_cores_are_not_free_before_the_old_ranks_are_gone() -> None:
    """A job loses a node. Its other node is used by the next job only when the rank there has ended."""
    jobs = (JobSpec(0.0, 1000.0, 2000.0, 2, 2, 2), JobSpec(50.0, 100.0, 200.0, 1, 1, 1))
    faults = (Fault("stop_rank", 2.0, "v1", 9.0), Fault("crash", 2.5, "v2", 20.0, 0.9))
    scenario = Scenario(11, "firstfit", nodes=2, jobs=jobs, faults=faults)
    assert violations(scenario) == []
    seen, states = ends_and_starts(scenario, "v1")
    first, end, second, *_ = seen
    assert (first[:2], end[:2], second[:2]) == (("fork", "j1"), ("end", "j1"), ("fork", "j2"))
    assert end[2] >= 2.5 + GRACE_S  # a stopped rank ends by SIGKILL only
    assert states == {"j1": "completed", "j2": "completed"}


def test_a_release_wakes_the_queue() -> None:
    """A job shrinks for a waiting job, which starts as soon as the rank on the released node has ended."""
    jobs = (JobSpec(0.0, 1000.0, 2000.0, 2, 1, 2), JobSpec(50.0, 100.0, 200.0, 1, 1, 1))
    faults = (Fault("stop_rank", 0.75, "v2", STOPPED_S),)
    scenario = Scenario(12, "min", nodes=2, jobs=jobs, faults=faults)
    assert violations(scenario) == []
    seen, states = ends_and_starts(scenario, "v2")
    first, end, second, *_ = seen
    assert (first[:2], end[:2], second[:2]) == (("fork", "j1"), ("end", "j1"), ("fork", "j2"))
    assert end[2] >= 0.75 + STOPPED_S  # a stopped rank cannot leave
    assert second[2] - end[2] < 0.1
    assert states == {"j1": "completed", "j2": "completed"}
