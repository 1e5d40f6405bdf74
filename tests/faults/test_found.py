"""Scenarios that have found defects, shrunk, each with its seed; and races that other schedulers had."""

from __future__ import annotations

import pytest

from tests.faults.scenario import JobSpec, Outcome, Scenario, carry_out
from tests.faults.shrinking import violations
from tracebed.orchestrator.testbeds.agent.processes import GRACE_S
from tracebed.testing.virtual.faults import Fault

FOUND: dict[str, Scenario] = {
    # An agent that was taken over was lost before all agents were up. A fresh agent took its place, and its rank was
    # awaited for ever. Seed 683.
    "an agent that is lost while others are awaited is not counted as running": Scenario(
        seed=683,
        policy="keep-pref",
        on_node_failure="fail",
        over_limit="kill",
        nodes=8,
        jobs=(
            JobSpec(738.643, 31.581, 63.161, 1, 1, 2),
            JobSpec(783.961, 101.819, 203.638, 2, 2, 2),
            JobSpec(813.565, 26.877, 32.252, 8, 4, 8),
            JobSpec(839.368, 81.793, 81.793, 1, 1, 2),
            JobSpec(858.747, 94.45, 113.34, 1, 1, 2),
            JobSpec(865.73, 335.201, 670.401, 8, 8, 8),
            JobSpec(1250.779, 176.541, 353.083, 2, 2, 2),
            JobSpec(1330.062, 143.267, 143.267, 4, 4, 4),
            JobSpec(1401.056, 73.588, 88.306, 1, 1, 2),
            JobSpec(1424.581, 552.162, 662.594, 4, 2, 8),
            JobSpec(1587.32, 31.727, 31.727, 2, 1, 4),
        ),
        faults=(
            Fault("cut_connection", 16.396, "v4", 90.0, 0.641),
            Fault("flipped_byte", 1101, "", 3.0, 0.843),
            Fault("hang", 10.972, "v5", 90.0, 0.142),
        ),
    ),
    # A rank ended while the replay was stopped, and was launched again in the first round: it was launched twice. Seed
    # 200100.
    "a rank that ended during the pause is launched once": Scenario(
        seed=200100,
        policy="min",
        on_node_failure="fail",
        over_limit="kill",
        nodes=8,
        jobs=(
            JobSpec(62.239, 157.028, 314.056, 1, 1, 2),
            JobSpec(88.7, 28.685, 28.685, 1, 1, 2),
            JobSpec(94.405, 33.369, 33.369, 1, 1, 2),
            JobSpec(96.178, 438.639, 526.367, 2, 1, 4),
            JobSpec(112.695, 59.618, 59.618, 1, 1, 2),
        ),
        faults=(Fault("kill", 482, "", 20.0, 0.106),),
    ),
    # The clock of a node stepped back: a resize was decided before it was asked for. Seed 200232.
    "a step of a clock leaves the run readable": Scenario(
        seed=200232,
        policy="dmr",
        on_node_failure="requeue",
        over_limit="kill",
        nodes=8,
        jobs=(
            JobSpec(64.311, 1746.506, 2095.807, 1, 1, 1),
            JobSpec(137.806, 258.17, 258.17, 1, 1, 2),
            JobSpec(143.171, 167.823, 201.388, 1, 1, 1),
            JobSpec(207.831, 856.061, 856.061, 1, 1, 2),
            JobSpec(252.51, 209.456, 209.456, 2, 1, 4),
            JobSpec(555.58, 59.901, 119.802, 2, 2, 2),
            JobSpec(586.32, 241.875, 290.25, 2, 1, 4),
            JobSpec(640.463, 414.131, 496.957, 1, 1, 2),
            JobSpec(666.588, 138.885, 166.662, 4, 2, 8),
            JobSpec(694.04, 630.061, 630.061, 2, 1, 4),
            JobSpec(696.172, 208.119, 208.119, 1, 1, 1),
            JobSpec(708.116, 557.897, 1115.795, 1, 1, 2),
            JobSpec(1211.916, 133.227, 266.454, 1, 1, 1),
            JobSpec(1216.148, 123.451, 148.141, 1, 1, 2),
        ),
        faults=(Fault("partition", 3.672, "v8", 90.0, 0.626), Fault("step_clock", 17.817, "v5", 90.0, 0.074)),
    ),
    # The message that a job had started was late. Its cores were changed meanwhile: it seemed to have started with the
    # cores that the policy decided later, so that the change had taken effect before it was decided. Seed 4000892.
    "cores that are changed before the news of a start are not those of the start": Scenario(
        seed=4000892,
        policy="sd",
        on_node_failure="fail",
        over_limit="kill",
        nodes=8,
        jobs=(
            JobSpec(145.474, 575.062, 575.062, 2, 2, 2),
            JobSpec(167.537, 358.375, 716.749, 8, 8, 8),
            JobSpec(301.366, 201.732, 403.465, 2, 2, 2),
            JobSpec(506.17, 245.416, 490.831, 1, 1, 2),
            JobSpec(615.12, 128.068, 128.068, 2, 2, 2),
            JobSpec(710.067, 118.628, 237.257, 2, 1, 4),
            JobSpec(849.87, 220.313, 264.376, 1, 1, 1),
            JobSpec(868.723, 165.446, 198.535, 8, 4, 8),
            JobSpec(979.13, 48.503, 58.203, 1, 1, 1),
            JobSpec(1048.941, 59.673, 119.345, 2, 1, 4),
            JobSpec(1130.668, 41.446, 49.735, 8, 4, 8),
            JobSpec(1254.899, 66.68, 133.36, 1, 1, 1),
            JobSpec(1361.73, 120.071, 120.071, 4, 2, 8),
            JobSpec(1413.78, 39.99, 79.98, 2, 1, 4),
        ),
        faults=(
            Fault("slow_network", 4.492, "v3", 8.0, 0.877),
            Fault("slow_network", 13.004, "v1", 90.0, 0.316),
        ),
    ),
    # The cores of a job were shared in the round of its launch. The network delayed the request to its rank, which had
    # begun without the cores of the other job: its run had the smaller number of cores too late. Seed 5000920, rebuilt
    # by hand.
    "a rank that begins with fewer cores than those of its launch has them since then": Scenario(
        seed=17,
        policy="sd",
        nodes=2,
        jobs=(
            JobSpec(0.0, 100.0, 200.0, 2, 2, 2),
            JobSpec(10.0, 150.0, 300.0, 2, 1, 2),
            JobSpec(20.0, 20.0, 25.0, 2, 1, 2),
        ),
        faults=(Fault("slow_network", 1.1, "v1", 2.0, 0.9),),
    ),
    # A rank was stopped from outside. Its controller was killed, and the rank continued before the controller was
    # resumed: the virtual world did not let its job compute again. This was a defect of the virtual world alone. Seed
    # 4100708, shrunk by hand.
    "a rank that was continued while its agent had stopped it computes again": Scenario(
        seed=4100708,
        policy="firstfit",
        nodes=2,
        jobs=(JobSpec(0.0, 1000.0, 1000.0, 2, 2, 2),),
        faults=(Fault("stop_rank", 3.0, "v2", 2.0, 0.5), Fault("kill", 0, "", 3.0, 0.5, "halted j1")),
    ),
    # A replay was killed before it wrote its journal. A resumption with another workload began, and the rule expected
    # that it was refused. This was a defect of the rule alone. Seed 4397, shrunk by hand.
    "a replay that was killed before its journal is not resumed": Scenario(
        seed=4397,
        nodes=1,
        jobs=(JobSpec(0.0, 100.0, 100.0, 1, 1, 1), JobSpec(1.0, 100.0, 100.0, 1, 1, 1)),
        faults=(Fault("kill", 3, "", 3.0, 0.21),),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_scenario_of_a_defect_violates_no_rule(name: str) -> None:
    assert violations(FOUND[name]) == []


# -- two races that schedulers of containers had (kubernetes-sigs/kueue #11480) ----------------------------------------

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
