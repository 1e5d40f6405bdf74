"""The options of `sd` that the paper's program and Slurm's backfill of its time have: cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.oracles.reference_cores import CoreJob
from tests.scheduling.test_cores import pieces, simulated
from tracebed.orchestrator.scheduling.policies.sd import SlowdownDriven

PASSES: dict[str, Any] = {"backfill_interval_s": 30.0, "depth": 0}


def whole(number: int, submit: float, limit: float, nodes: int, kind: str = "rigid") -> CoreJob:
    """Return a job that uses its nodes of 8 cores whole, for its limit."""
    return CoreJob(number, submit, limit, limit, nodes, 8, kind)


def starts(jobs: list[CoreJob], nodes: int, **parameters: Any) -> list[float]:
    record, _ = simulated(jobs, SlowdownDriven(**({"max_slowdown": "inf"} | parameters)), nodes=nodes, cores=8)
    return [record.start[job.id] for job in jobs]


def test_a_job_that_would_start_beyond_bf_window_has_no_reservation() -> None:
    """Job 1 would start at 7,200 s. Without a reservation for it, job 2 starts in the pass at 30 and delays it."""
    jobs = [whole(0, 0.0, 7200.0, 1), whole(1, 1.0, 10.0, 2), whole(2, 2.0, 8000.0, 1)]
    assert starts(jobs, 2, **PASSES) == [0.0, 7200.0, 7210.0]
    assert starts(jobs, 2, **PASSES, bf_window=60) == [0.0, 8030.0, 30.0]
    assert starts(jobs, 2, **PASSES, bf_window=120) == [0.0, 7200.0, 7210.0]


FULL = [whole(0, 0.0, 100.0, 1), whole(1, 1.0, 10.0, 2), whole(2, 1.0, 10.0, 2), whole(3, 1.0, 20.0, 1)]
"""Job 1 is planned from 100 to 110, job 2 from 110 to 120, and job 3 fits beside job 0."""


def test_a_pass_ends_when_the_plan_has_bf_node_space_size_slots() -> None:
    """The slots are those that begin at 30, 100 and 110, and with job 2 at 120."""
    assert starts(FULL, 2, **PASSES) == [0.0, 100.0, 110.0, 30.0]
    assert starts(FULL, 2, **PASSES, bf_node_space_size=4) == [0.0, 100.0, 110.0, 30.0]
    assert starts(FULL, 2, **PASSES, bf_node_space_size=3) == [0.0, 100.0, 110.0, 120.0]


def test_a_full_plan_does_not_end_a_pass_before_a_job_needs_a_slot() -> None:
    without_2 = [FULL[0], FULL[1], replace(FULL[3], id=2)]
    assert starts(without_2, 2, **PASSES, bf_node_space_size=3) == [0.0, 100.0, 30.0]


def test_a_job_beyond_bf_window_takes_no_slot() -> None:
    """With a window of one minute jobs 1 and 2 have no reservation, and the smallest plan is not full."""
    assert starts(FULL, 2, **PASSES, bf_node_space_size=1, bf_window=1)[3] == 30.0
    assert starts(FULL, 2, **PASSES, bf_node_space_size=1)[3] == 120.0


def test_reservations_begin_at_multiples_of_bf_resolution() -> None:
    """Job 1 is planned for 95 to 125, rounded down to 60 and 120. Job 2 would end at 80."""
    jobs = [whole(0, 0.0, 95.0, 1), whole(1, 1.0, 30.0, 2), whole(2, 2.0, 50.0, 1)]
    assert starts(jobs, 2, **PASSES) == [0.0, 95.0, 30.0]
    assert starts(jobs, 2, **PASSES, bf_resolution=60) == [0.0, 95.0, 125.0]
    assert starts(jobs, 2, **PASSES, bf_resolution=40) == [0.0, 95.0, 30.0]


@pytest.mark.parametrize(("user", "start"), [("a", 120.0), ("b", 30.0)])
def test_a_pass_considers_bf_max_job_user_jobs_of_a_user(user: str, start: float) -> None:
    jobs = [replace(job, user="a") for job in FULL[:3]] + [replace(FULL[3], user=user)]
    assert starts(jobs, 2, **PASSES, bf_max_job_user=2) == [0.0, 100.0, 110.0, start]


def test_without_mates_sd_is_static_backfill() -> None:
    jobs = [whole(0, 0.0, 100.0, 1, "malleable"), whole(1, 10.0, 20.0, 1, "malleable")]
    assert starts(jobs, 1) == [0.0, 10.0]
    assert starts(jobs, 1, mates=0) == [0.0, 100.0]


def test_a_job_may_be_a_guest_though_it_would_end_earlier_if_it_waited() -> None:
    """At 85, waiting until 100 and running 20 s ends at 120, sharing the node of the mate at 125."""
    jobs = [whole(0, 0.0, 100.0, 1, "malleable"), whole(1, 85.0, 20.0, 1, "malleable")]
    assert starts(jobs, 1, inside="off") == [0.0, 100.0]
    assert starts(jobs, 1, inside="off", if_earlier=False) == [0.0, 85.0]


@pytest.mark.parametrize(("weighted", "mates"), [(False, {3}), (True, {1, 2})])
def test_the_penalties_of_large_mates_may_weigh_more(weighted: bool, mates: set[int]) -> None:
    """At 60 four nodes are needed: job 3 has waited 50 s and p = 1.35; jobs 1 and 2, of two nodes each, have 1.1."""
    jobs = [whole(0, 0.0, 50.0, 4), *(whole(number, 0.0, 200.0, 2, "malleable") for number in (1, 2))]
    jobs += [whole(3, 0.0, 200.0, 4, "malleable"), whole(4, 60.0, 20.0, 4, "malleable")]
    policy = SlowdownDriven(max_slowdown="inf", weighted=weighted)
    record, simulator = simulated(jobs, policy, nodes=8, cores=8)
    assert record.start == [0.0, 0.0, 0.0, 50.0, 60.0]
    held = pieces(simulator)
    shared = {row[2] for row in held[4]}
    assert {job for job in (1, 2, 3) if shared & {row[2] for row in held[job]}} == mates


def test_a_mate_may_share_some_of_its_nodes() -> None:
    """The guest of 10 takes one of the mate's two nodes; the mate is as slow as on both in the worst-case model."""
    jobs = [whole(0, 0.0, 100.0, 2, "malleable"), whole(1, 10.0, 20.0, 1, "malleable")]
    assert starts(jobs, 2) == [0.0, 100.0]
    policy = SlowdownDriven(max_slowdown="inf", partial=True)
    record, simulator = simulated(jobs, policy, nodes=2, cores=8, model="worst-case")
    assert (record.start, record.end) == ([0.0, 10.0], [120.0, 50.0])
    assert len({row[2] for row in pieces(simulator)[1]}) == 1


@pytest.mark.parametrize(("ranks", "cores"), [(1, 4), (4, 4), (6, 2), (8, 0)])
def test_a_mate_keeps_a_core_for_each_of_its_ranks(ranks: int, cores: int) -> None:
    """SharingFactor would take 4 of 8 cores. With 8 ranks, the job has none to lend, and its node no guest."""
    jobs = [replace(whole(0, 0.0, 100.0, 1, "malleable"), ranks=ranks), whole(1, 10.0, 5.0, 1, "malleable")]
    record, simulator = simulated(jobs, SlowdownDriven(max_slowdown="inf"), nodes=1, cores=8)
    assert record.start[1] == (10.0 if cores else 100.0)
    assert pieces(simulator)[1][0][3] == (cores or 8)


@pytest.mark.parametrize(("ranks", "start"), [(4, 10.0), (5, 100.0)])
def test_a_guest_needs_a_core_for_each_of_its_ranks(ranks: int, start: float) -> None:
    jobs = [whole(0, 0.0, 100.0, 1, "malleable"), replace(whole(1, 10.0, 5.0, 1, "malleable"), ranks=ranks)]
    assert starts(jobs, 1) == [0.0, start]


def test_a_guest_that_requests_few_cores_leaves_the_others_to_its_mate() -> None:
    """Section 3.3: a memory-bound job that requests 2 of 8 cores takes 2, though SharingFactor would allow 4."""
    jobs = [whole(0, 0.0, 100.0, 1, "malleable"), replace(whole(1, 10.0, 5.0, 1, "malleable"), cores=2)]
    _, simulator = simulated(jobs, SlowdownDriven(max_slowdown="inf"), nodes=1, cores=8)
    assert pieces(simulator) == {
        0: [(0.0, 10.0, 0, 8), (10.0, 15.0, 0, 6), (15.0, 101.25, 0, 8)],
        1: [(10.0, 15.0, 0, 2)],
    }
