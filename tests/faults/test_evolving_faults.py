"""Replays of evolving jobs in virtual time, with faults."""

from __future__ import annotations

import pytest

from tests.faults.evolving_scenario import EvolvingScenario
from tests.faults.invariants import CoreWatch, check
from tests.faults.scenario import JobSpec, Outcome, carry_out
from tests.faults.shrinking import examine, violations
from tracebed.testing.virtual.faults import Fault

SEEDS, PORTION = 8, 4
"""Number of seeds, and of those of a test. CI plays 100."""


@pytest.mark.parametrize("first", range(0, SEEDS, PORTION))
def test_no_rule_is_violated(first: int) -> None:
    assert examine(range(first, first + PORTION), EvolvingScenario) == (PORTION, [])


def test_requests_are_granted_and_denied_and_one_that_no_job_made_is_noticed() -> None:
    scenario, cores, found = EvolvingScenario.drawn(1, faults=0), CoreWatch(), list[list[str]]()

    def judge(outcome: Outcome) -> None:
        assert outcome.run is not None
        assert {"applied", "denied"} <= {*outcome.run.requests["state"]}
        found.append(check(outcome, cores))
        outcome.seen[:] = [facts for facts in outcome.seen if facts[1] != "asks"]
        found.append(check(outcome, cores))

    carry_out(scenario, judge, cores)
    assert found[0] == []
    assert {text.split(":")[0] for text in found[1]} == {"requests"}


def test_a_job_that_is_stopped_twice_and_continued_once_goes_on() -> None:
    """The model of a rank that was continued while its agent had stopped it did nothing when the agent continued it.

    Seed 1013 of evolving jobs: the controller is killed, and a rank is stopped meanwhile.
    """
    jobs = (JobSpec(0.0, 100.0, 200.0, 1, 1, 2), JobSpec(10.0, 400.0, 800.0, 2, 1, 4))
    faults = (Fault("kill", 80, "", 3.0, 0.9), Fault("stop_rank", 3.0, "v2", 0.3, 0.0))
    assert violations(EvolvingScenario(1013, nodes=3, jobs=jobs, faults=faults)) == []


def test_a_message_that_arrives_twice_is_one_request() -> None:
    """A repeated request was noted and asked again, after the next request of the job as well.

    Seed 2010 of evolving jobs.
    """
    jobs = (JobSpec(0.0, 400.0, 800.0, 2, 1, 4),)
    faults = tuple(Fault("send_twice", 2.0 + second / 4, "v1", 2.0, 0.0) for second in range(12))
    assert violations(EvolvingScenario(2010, nodes=4, jobs=jobs, faults=faults)) == []
