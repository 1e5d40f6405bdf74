"""Replays on unlike nodes in partitions in virtual time, with faults."""

from __future__ import annotations

import pytest

from tests.faults.invariants import CoreWatch, check
from tests.faults.partitioned_scenario import BIG_MIB, PartitionedScenario, PartitionSpec
from tests.faults.scenario import JobSpec, Outcome, carry_out
from tests.faults.shrinking import examine, violations
from tracebed.machine.pools import Pools
from tracebed.testing.virtual.faults import Fault

SEEDS, PORTION = 8, 4
"""Number of seeds, and of those of a test. CI plays 200."""


@pytest.mark.parametrize("first", range(0, SEEDS, PORTION))
def test_no_rule_is_violated(first: int) -> None:
    assert examine(range(first, first + PORTION), PartitionedScenario) == (PORTION, [])


def test_scenarios_have_partitions_that_overlap_and_jobs_that_no_nodes_serve() -> None:
    drawn = [PartitionedScenario.drawn(seed) for seed in range(40)]
    overlapping = [each for each in drawn if sum(len(part.nodes) for part in each.present) > each.nodes]
    assert 10 < len(overlapping) < 40
    jobs = [(scenario, job) for scenario in drawn for job in scenario.jobs]
    assert any(job.low > len(scenario.eligible(job)) for scenario, job in jobs)
    assert any(job.low < job.high > scenario.most_nodes(job) >= job.low for scenario, job in jobs)


GPU = PartitionedScenario(
    seed=3,
    policy="fcfs",
    nodes=4,
    jobs=(
        JobSpec(0.0, 100.0, 200.0, 2, 2, 2, partition="p0"),
        JobSpec(1.0, 100.0, 200.0, 1, 1, 1, partition="p1", gpus=1),
        JobSpec(2.0, 100.0, 200.0, 1, 1, 1, partition="p0,p1", memory_mib=BIG_MIB),
        JobSpec(3.0, 100.0, 200.0, 2, 2, 2, partition="p1", gpus=1),
    ),
    partitions=(PartitionSpec("p0", (1, 2, 3)), PartitionSpec("p1", (3, 4))),
    big=(2, 3),
    gpus=(4,),
)


def test_a_job_on_a_node_that_cannot_serve_it_is_noticed() -> None:
    """The rule reads the processes of the world: with other demands than those of the replay, it reports the nodes."""
    cores, found = CoreWatch(), list[list[str]]()

    def judge(outcome: Outcome) -> None:
        assert outcome.run is not None
        assert dict(zip(outcome.run.jobs["job_id"], outcome.run.jobs["state"], strict=True)) == {
            "j1": "completed",
            "j2": "completed",
            "j3": "completed",
            "j4": "rejected",
        }
        found.append(check(outcome, cores))
        vars(outcome.scenario)["present"] = [PartitionSpec("p0", (1, 2)), PartitionSpec("p1", (3,))]
        found.append(check(outcome, cores))

    carry_out(GPU, judge, cores)
    assert found[0] == []
    assert {text.split(":")[0] for text in found[1]} >= {"eligible", "states"}
    assert "eligible: job j2 runs on v4" in "".join(found[1])


@pytest.mark.parametrize("policy", ["fcfs", "pref"])
def test_a_replay_on_partitions_that_is_killed_and_loses_nodes_decides_the_same(policy: str) -> None:
    jobs = tuple(
        JobSpec(20.0 * n, 120.0, 240.0, 1 + n % 2, 1, 3, partition=("p0", "p1", "p0,p1", "")[n % 4], gpus=n % 3 == 1)
        for n in range(12)
    )
    faults = (
        *(Fault("kill", 250 + 200 * n, "", 2.0, 0.9) for n in range(4)),
        Fault("crash", 3.0, "v3", 2.0, 0.9),
        Fault("kill_agent", 4.0, "v4", 0.5, 0.5),
    )
    scenario = PartitionedScenario(
        5,
        policy,
        nodes=5,
        jobs=jobs,
        faults=tuple(sorted(faults)),
        partitions=(PartitionSpec("p0", (1, 2, 3)), PartitionSpec("p1", (3, 4, 5), tier=2)),
        gpus=(3, 4),
    )
    assert violations(scenario) == []
    kills: list[int] = []
    carry_out(scenario, lambda outcome: kills.append(outcome.kills))
    assert kills == [4]


CHAIN = PartitionedScenario(
    seed=23,
    policy="firstfit",
    nodes=8,
    jobs=(
        JobSpec(97.529, 266.337, 319.605, 1, 1, 1),
        JobSpec(888.724, 397.665, 795.329, 2, 2, 2, partition="p0"),
        JobSpec(951.628, 221.427, 265.712, 3, 3, 4, partition="p0"),
        JobSpec(1186.39, 181.018, 181.018, 2, 2, 2, partition="p1,p0"),
        JobSpec(1295.782, 111.682, 223.363, 2, 1, 4, partition="p1,p0"),
        JobSpec(1742.385, 1095.023, 1314.027, 1, 1, 2, partition="p1"),
        JobSpec(1788.82, 60.305, 60.305, 4, 4, 4, partition="p2,p1"),
        JobSpec(1830.706, 28.304, 28.304, 1, 1, 1, partition="p2"),
    ),
    faults=(
        Fault("crash", 1.782, "v2", 8.0, 0.351),
        Fault("dead_start", 27.309, "v6", 8.0, 0.625),
        Fault("disk_full", 168, "", 3.0, 0.976),
    ),
    partitions=(
        PartitionSpec("p0", (1, 2, 3)),
        PartitionSpec("p1", (4, 5, 6, 7), most_nodes=2),
        PartitionSpec("p2", (8,)),
    ),
)


def test_a_start_calls_the_pools_from_which_it_kept_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool was called at the next event only, if an event was in a pool beside the one that kept nodes. Seed 23."""
    assert violations(CHAIN) == []
    monkeypatch.setattr(Pools, "connected", Pools.overlapping)
    assert violations(CHAIN)[0].startswith("liveness: ['v1', 'v2', 'v3', 'v8'] are idle at ")


def test_events_of_an_agent_that_is_newer_than_the_journal_arrive() -> None:
    """The journal lost the rows in which a node had another agent, whose numbers of events begin again.

    Its events were taken for those of the agent before it, so that a job never ended.
    """
    assert violations(PartitionedScenario.drawn(300812)) == []
