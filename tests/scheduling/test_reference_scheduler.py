"""Cases computed by hand from docs/reference/policies/: the policies and the reference scheduler agree with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.oracles.drawn import draw
from tests.oracles.reference_scheduler import NearTie, RefJob, RefResult, reference_schedule
from tests.scheduling.test_scheduling import assert_same


def scheduled(jobs: list[RefJob], machine: int, policy: str, **options: Any) -> dict[int, RefResult]:
    """Return the schedule of the reference scheduler, and check that it is that of the policy."""
    assert_same([replace(job, id=job.id - 1) for job in jobs], machine, policy, **options)
    return reference_schedule(jobs, machine, policy, **options)


def rigid(id: int, submit: float, nodes: int, run_time: float, limit: float | None = None) -> RefJob:
    return RefJob(id, submit, run_time, run_time if limit is None else limit, nodes)


def malleable(id: int, submit: float, nodes: int, run_time: float, low: int, pref: int, high: int) -> RefJob:
    """Return a job with linear speedup, its run time as limit, and separate preferred and requested sizes."""
    return RefJob(id, submit, run_time, run_time, nodes, True, nodes_min=low, nodes_max=high, nodes_pref=pref)


def spans(results: dict[int, RefResult]) -> dict[int, tuple[float | None, float | None]]:
    return {id: (result.start, result.end) for id, result in results.items()}


def test_fcfs_starts_no_job_behind_a_head_that_does_not_fit() -> None:
    # 4 nodes. 1 (3 nodes) runs from 0 to 10. 2 (2 nodes) does not fit. 3 (1 node) fits, but waits behind 2. At 10
    # both start.
    jobs = [rigid(1, 0, 3, 10), rigid(2, 1, 2, 5), rigid(3, 2, 1, 5)]
    assert spans(scheduled(jobs, 4, "fcfs")) == {1: (0, 10), 2: (10, 15), 3: (10, 15)}
    # EASY: the limit of 3 is 5 s and 2 + 5 <= 10, so it starts at once.
    assert spans(scheduled(jobs, 4, "easy"))[3] == (2, 7)


def test_easy_backfills_on_extra_nodes_and_by_the_shadow_time() -> None:
    # 10 nodes. 1 holds 6 until 100. 2 needs 8: shadow 100, 10 idle then, 2 extra.
    # 3 (2 nodes, 500 s) is too long but takes the 2 extra nodes at 2; 4 (the same) finds none left.
    # 5 (2 nodes, 96 s) at 4: 4 + 96 = 100 <= 100, starts; with a limit of 97 s it would wait.
    # 2 starts at 100 on its 8 of 8 idle nodes, ends at 110, then 4.
    jobs = [
        rigid(1, 0, 6, 100),
        rigid(2, 1, 8, 10),
        rigid(3, 2, 2, 500),
        rigid(4, 3, 2, 500),
        rigid(5, 4, 2, 96),
    ]
    assert spans(scheduled(jobs, 10, "easy")) == {
        1: (0, 100),
        2: (100, 110),
        3: (2, 502),
        4: (110, 610),
        5: (4, 100),
    }
    jobs[4] = rigid(5, 4, 2, 96, limit=97)
    assert spans(scheduled(jobs, 10, "easy"))[5] == (110, 206)


def test_easy_plans_with_limits_and_starts_the_head_when_nodes_are_released() -> None:
    # 4 nodes. 1 (3 nodes) has a limit of 100 s and runs 50 s. 2 (4 nodes) waits for it. 3 (1 node, 60 s) at 2:
    # 62 <= 100, starts. When 1 ends early at 50, 2 still waits for 3 until 62: later than without backfill,
    # never later than the shadow.
    jobs = [rigid(1, 0, 3, 50, limit=100), rigid(2, 1, 4, 10), rigid(3, 2, 1, 60)]
    assert spans(scheduled(jobs, 4, "easy")) == {1: (0, 50), 2: (62, 72), 3: (2, 62)}


def test_a_job_past_its_limit_counts_as_ending_now() -> None:
    # 4 nodes. 1 (3 nodes) is over its limit of 10 from then on. 2 needs 2 at 20: shadow 20, 4 idle then, 2
    # extra. 3 (1 node, 100 s) at 21: 121 > 21, but 1 <= 2 extra: starts. 2 starts when 1 ends.
    jobs = [rigid(1, 0, 3, 50, limit=10), rigid(2, 20, 2, 5), rigid(3, 21, 1, 100)]
    assert spans(scheduled(jobs, 4, "easy", over_limit="now")) == {1: (0, 50), 2: (50, 55), 3: (21, 121)}
    # A head that needs all 4 leaves no extra node: 3 waits for it.
    jobs[1] = rigid(2, 20, 4, 5)
    assert spans(scheduled(jobs, 4, "easy", over_limit="now")) == {1: (0, 50), 2: (50, 55), 3: (55, 155)}
    # If 1 is killed at its limit, it delays no job.
    results = scheduled(jobs, 4, "easy", over_limit="kill")
    assert spans(results) == {1: (0, 10), 2: (20, 25), 3: (25, 125)}
    assert [results[id].state for id in (1, 2, 3)] == ["killed", "completed", "completed"]


def test_a_job_without_a_limit_is_expected_to_take_its_run_time() -> None:
    # 4 nodes. 1 (3 nodes, 10 s, no limit); 2 needs 4: shadow 10; 3 (1 node) may run 8 s from 2, not 9. 1 is
    # never killed.
    for run_time, span in ((8.0, (2.0, 10.0)), (9.0, (15.0, 24.0))):
        jobs = [RefJob(1, 0, 10, None, 3), rigid(2, 1, 4, 5), RefJob(3, 2, run_time, None, 1)]
        results = scheduled(jobs, 4, "easy", over_limit="kill")
        assert spans(results) == {1: (0, 10), 2: (10, 15), 3: span}
        assert results[3].state == "completed"


def test_pref_starts_below_the_preferred_size_and_expands() -> None:
    # 10 nodes. 1 holds 7 until 100. 2 (2-6-8, 60 s on 6) starts on the 3 idle ones: r = 1/2. At 100 it has
    # done 50 s of its 60, and 7 nodes are released. It grows to 6, then to 8, in one resize. r = 8/6: 7.5 s more.
    results = scheduled([rigid(1, 0, 7, 100), malleable(2, 0, 6, 60, 2, 6, 8)], 10, "pref")
    assert spans(results) == {1: (0, 100), 2: (0, 107.5)}
    assert results[2].sizes == [(0, 3), (100, 8)]
    assert results[2].resizes == [(100, 3, 8)]


def test_under_pref_a_job_waits_for_its_minimum() -> None:
    # The same with minimum 4: 3 idle nodes are too few, and no job can be shrunk. It starts on 6 of the 10 at
    # 100.
    results = scheduled([rigid(1, 0, 7, 100), malleable(2, 0, 6, 60, 4, 6, 8)], 10, "pref", calls="event")
    assert spans(results)[2] == (100, 160)


# 10 nodes. 1 (2-4-10, on 4 nodes at 0) grows to 8 at 10, when 2 takes the other two until the end. At 20, 1 has
# done 10 + 10 * 8/4 = 30 s of its work. Then 3 is submitted, and no node is idle. 1 can give 4 nodes down to its
# preferred size, 6 down to its minimum.
def shrinking(newcomer: RefJob, work: float = 40) -> dict[int, RefResult]:
    return scheduled([malleable(1, 0, 4, work, 2, 4, 10), rigid(2, 10, 2, 1000), newcomer], 10, "pref", calls="event")


def test_pref_first_attempt_gives_the_preferred_size_and_leaves_others_theirs() -> None:
    # 3 prefers 4: 1 shrinks to 4, r = 1, and needs 10 s more.
    results = shrinking(malleable(3, 20, 4, 40, 2, 4, 4))
    assert results[1] == RefResult(0, 30, "completed", [(0, 4), (10, 8), (20, 4)], [(10, 4, 8), (20, 8, 4)])
    assert results[3] == RefResult(20, 60, "completed", [(20, 4)], [])


def test_pref_second_attempt_gives_the_minimum_and_leaves_others_their_preferred_size() -> None:
    # 3 prefers 6 > 4, its minimum is 3: 1 gives 3, 8 -> 5, r = 5/4, 10 / r = 8 s more. 3 runs at 3/6 until
    # 28: 4 s of 40 done; then it grows to 6 and needs 36 s more.
    results = shrinking(malleable(3, 20, 6, 40, 3, 6, 6))
    assert results[1] == RefResult(0, 28, "completed", [(0, 4), (10, 8), (20, 5)], [(10, 4, 8), (20, 8, 5)])
    assert results[3] == RefResult(20, 64, "completed", [(20, 3), (28, 6)], [(28, 3, 6)])


def test_pref_third_attempt_goes_down_to_the_minimum_of_others() -> None:
    # 3 is rigid and needs 5 > 4, but 5 <= 6: 1 shrinks to 3, r = 3/4; 12 of its 42 s are left and take 16 s.
    results = shrinking(rigid(3, 20, 5, 30), work=42)
    assert results[1] == RefResult(0, 36, "completed", [(0, 4), (10, 8), (20, 3)], [(10, 4, 8), (20, 8, 3)])
    assert results[3] == RefResult(20, 50, "completed", [(20, 5)], [])


def test_pref_shrinks_no_job_in_vain() -> None:
    # 3 needs 7 > 6: 1 keeps its 8 nodes and releases them at its end, at 25.
    results = shrinking(rigid(3, 20, 7, 30))
    assert results[1] == RefResult(0, 25, "completed", [(0, 4), (10, 8)], [(10, 4, 8)])
    assert spans(results)[3] == (25, 55)


def test_pref_takes_from_the_highest_priority_and_from_the_last_one_only_what_is_missing() -> None:
    # 12 nodes. 1 and 2 (1-2-6) start on 2 each. At 5, 3 (rigid, 2 nodes, 1 s) starts and 6 idle nodes
    # remain: 1 grows to 6 (tie: earlier start first), 2 to 4. At 6, 3 ends and 2 grows to 6 as well: 6 + 6.
    # Work done at 10: 1: 5 + 5 * 3 = 20; 2: 5 + 1 * 2 + 4 * 3 = 19. At 10, 4 (rigid, 6 nodes): both have 4
    # nodes above their preferred 2: 1 gives all 4 (tie again), 2 gives 2.
    jobs = [
        malleable(1, 0, 2, 100, 1, 2, 6),
        malleable(2, 0, 2, 100, 1, 2, 6),
        rigid(3, 5, 2, 1),
        rigid(4, 10, 6, 200),
    ]
    # 2, on 4 again with r = 2, needs 81 / 2 s more and ends at 50.5. Then 1, with 20 + 40.5 s done, grows
    # to 6: 39.5 / 3 s more.
    results = scheduled(jobs, 12, "pref", calls="event")
    assert spans(results)[4] == (10, 210)
    assert results[2] == RefResult(
        0, 50.5, "completed", [(0, 2), (5, 4), (6, 6), (10, 4)], [(5, 2, 4), (6, 4, 6), (10, 6, 4)]
    )
    assert results[1].sizes == [(0, 2), (5, 6), (10, 2), (50.5, 6)]
    assert results[1].end == pytest.approx(50.5 + 39.5 / 3)


def test_pref_skips_a_job_that_waits_only_for_its_reservation() -> None:
    # 10 nodes. 1 holds 6 until 100, 2 (2-3-3, 200 s) holds 3, one is idle. 3 needs 7: shadow 100, nothing
    # extra, and the one node that 2 could give is not enough. 4 (1 node, 500 s) fits the idle node but would
    # delay 3, so it waits, and 2 keeps its 3 nodes. At 100, 3 takes all 7, and now 2 gives a node for 4:
    # r = 2/3. At 115, when 3 ends, 2 has done 110 s and grows.
    jobs = [rigid(1, 0, 6, 100), malleable(2, 0, 3, 200, 2, 3, 3), rigid(3, 1, 7, 15), rigid(4, 2, 1, 500)]
    results = scheduled(jobs, 10, "pref")
    assert spans(results) == {1: (0, 100), 2: (0, pytest.approx(205)), 3: (100, 115), 4: (100, 600)}
    assert results[2].sizes == [(0, 3), (100, 2), (115, 3)]


def test_pref_backfills_by_the_speed_on_the_nodes_it_gives() -> None:
    # 10 nodes. 1 holds 6 until 100, 2 needs 8: shadow 100, 2 extra. 3 (4-8-8) would start at 2 on the 4
    # idle nodes, r = 1/2: 49 s of limit are 98 s, 100 <= 100; 50 s are 100 s, too long.
    for limit, start in ((49, 2.0), (50, 110.0)):
        jobs = [rigid(1, 0, 6, 100), rigid(2, 1, 8, 10), malleable(3, 2, 8, limit, 4, 8, 8)]
        results = scheduled(jobs, 10, "pref")
        assert results[2].start == 100
        assert results[3].start == start


def test_amdahl_sets_the_speed() -> None:
    # 4 nodes. f = 0.5: S(4) = 1/(0.5 + 0.125) = 1.6, S(2) = 1/(0.5 + 0.25) = 4/3, r(2) = 5/6.
    # 1 holds 2 until 60; 2 (2-4-4, 100 s) starts on 2: 50 s done at 60, then on 4 for 50 s more.
    job = RefJob(2, 0, 100, 100, 4, True, nodes_min=2, nodes_pref=4, nodes_max=4, parallel_fraction=0.5)
    results = scheduled([rigid(1, 0, 2, 60), job], 4, "pref")
    assert results[2].end == pytest.approx(110)


def test_a_promise_waits_for_the_malleability_point() -> None:
    # 10 nodes, points every 10 s. 1 (2-8-8, 70 s) on 8. 2 (rigid, 4) at 3: 2 idle, 2 more from 1 at its
    # point at 10. Until then the idle nodes are reserved, so 3 (1 node, 5 s) at 5 must wait, and 1 with its
    # pending resize gives no node. At 10: 1 on 6, 2 starts. 3 is the head and gets a node of 1. Decision and
    # point coincide, so 3 starts at 10: 1 on 5. At 15 both end. 1 holds 8 at once, but runs on them from 20:
    # 10 + 10 * 5/8 = 16.25 s done, 53.75 more.
    jobs = [malleable(1, 0, 8, 70, 2, 8, 8), rigid(2, 3, 4, 5), rigid(3, 5, 1, 5)]
    results = scheduled(jobs, 10, "pref", malleability_interval_s=10)
    assert results[2] == RefResult(10, 15, "completed", [(10, 4)], [])
    assert results[3] == RefResult(10, 15, "completed", [(10, 1)], [])
    assert results[1] == RefResult(
        0, 73.75, "completed", [(0, 8), (10, 5), (15, 8)], [(3, 8, 6), (10, 6, 5), (15, 5, 8)]
    )


def test_a_promise_takes_any_nodes_that_come_free() -> None:
    # 10 nodes, points every 10 s. 1 (2-8-8) on 8, 2 (2 nodes) until 6. 3 (2 nodes) at 3 is promised two of
    # 1, but gets those of 2 at 6. At 10, 1 releases two nodes that no job waits for and takes them again, so
    # it held 8 all the time.
    jobs = [malleable(1, 0, 8, 70, 2, 8, 8), rigid(2, 0, 2, 6), rigid(3, 3, 2, 1)]
    results = scheduled(jobs, 10, "pref", malleability_interval_s=10)
    assert spans(results)[3] == (6, 7)
    assert results[1] == RefResult(0, 70, "completed", [(0, 8)], [(3, 8, 6), (10, 6, 8)])


def test_a_promise_that_can_be_served_overtakes_one_that_cannot() -> None:
    # 10 nodes, points every 10 s. 1 (2-8-8) on 8. 2 (6 nodes) at 3: 2 idle and 4 of 1 (8 -> 4), released at
    # 10. 3 (3 nodes) gets no promise at 4, since 1 has a resize pending. At 10, 2 starts. 3 needs 3 nodes
    # and 1 can give 2: at 110 3 gets nodes of 2.
    jobs = [malleable(1, 0, 8, 70, 2, 8, 8), rigid(2, 3, 6, 100), rigid(3, 4, 3, 1)]
    results = scheduled(jobs, 10, "pref", malleability_interval_s=10)
    assert results[2].start == 10
    assert results[3].start == 110
    # Two promises made in one call (a tick at 5): 2 (5 nodes) takes the 2 idle nodes and 3 of 1; 3 (2 nodes)
    # takes two more of 1, in one resize. The 2 idle nodes are enough for 3 to start at once, before 2, which
    # starts at 10 on the 5 nodes of 1.
    jobs = [malleable(1, 0, 8, 70, 2, 8, 8), rigid(2, 3, 5, 100), rigid(3, 4, 2, 100)]
    results = scheduled(jobs, 10, "pref", malleability_interval_s=10, interval_s=5)
    assert results[1].resizes[0] == (5, 8, 3)
    assert results[3].start == 5
    assert results[2].start == 10


def test_without_counting_idle_nodes_the_whole_size_is_taken_from_running_jobs() -> None:
    # 10 nodes. 1 (2-8-8) on 8, 2 idle. 2 (rigid, 4) at 3: with the idle nodes 1 gives 2, without them it
    # gives 4. Then 2 are idle again, but a job does not grow in the call that shrunk it: 1 waits until 8, when
    # 2 ends. By then it has done 3 + 5/2 s of its 70.
    jobs = [malleable(1, 0, 8, 70, 2, 8, 8), rigid(2, 3, 4, 5)]
    assert scheduled(jobs, 10, "pref", calls="event")[1].resizes[0] == (3, 8, 6)
    results = scheduled(jobs, 10, "pref", calls="event", count_idle="no")
    assert results[1] == RefResult(0, 72.5, "completed", [(0, 8), (3, 4), (8, 8)], [(3, 8, 4), (8, 4, 8)])
    assert results[2] == RefResult(3, 8, "completed", [(3, 4)], [])


def test_a_job_grows_in_the_call_that_started_it_only_with_the_option() -> None:
    # 8 nodes, 1 (2-4-8, 40 s) alone: 4 nodes until the end, or 8 from the start at twice the speed.
    job = malleable(1, 0, 4, 40, 2, 4, 8)
    assert scheduled([job], 8, "pref", calls="event")[1] == RefResult(0, 40, "completed", [(0, 4)], [])
    grown = scheduled([job], 8, "pref", calls="event", grow_at_start=True)[1]
    assert grown == RefResult(0, 20, "completed", [(0, 8)], [(0, 4, 8)])
    # With points every 10 s it holds 8 at once and runs on them from 10: 10 s done, 30 at double speed.
    late = scheduled([job], 8, "pref", calls="event", grow_at_start=True, malleability_interval_s=10)[1]
    assert late == RefResult(0, 25, "completed", [(0, 8)], [(0, 4, 8)])


def test_a_stretched_limit_kills_no_job_that_does_its_work() -> None:
    # In test_pref_starts_below_... the limit is the run time, so a stretched limit does not kill the job. A
    # limit shorter by 10 s does: 50 s on 6 nodes are 100 s on 3 nodes, and the limit ends at 100, before the
    # job would grow.
    jobs = [rigid(1, 0, 7, 100), malleable(2, 0, 6, 60, 2, 6, 8)]
    assert scheduled(jobs, 10, "pref", over_limit="kill")[2].state == "completed"
    jobs[1].limit = 50
    results = scheduled(jobs, 10, "pref", over_limit="kill")
    assert results[2] == RefResult(0, 100, "killed", [(0, 3)], [])


def test_the_policy_is_called_at_ticks_only() -> None:
    # 4 nodes, a tick every 10 s. 1 is submitted at 3, starts at 10, ends at 15. 2 and 3 (4 nodes each; 0 s and
    # 5 s) are submitted at 12 and 20, in time for the tick at 20: 2 starts and ends, and the round after its
    # end starts 3 at 20 as well.
    jobs = [rigid(1, 3, 4, 5), rigid(2, 12, 4, 0), rigid(3, 20, 4, 5)]
    for policy in ("fcfs", "easy", "pref"):
        results = scheduled(jobs, 4, policy, interval_s=10)
        assert spans(results) == {1: (10, 15), 2: (20, 20), 3: (20, 25)}


@pytest.mark.parametrize("policy", ["fcfs", "easy", "pref"])
def test_jobs_of_no_run_time_follow_each_other_at_one_instant(policy: str) -> None:
    # 1 node: each job starts and ends at 5 in its own round, then 4 runs.
    jobs = [rigid(1, 5, 1, 0), rigid(2, 5, 1, 0, limit=10), rigid(3, 5, 1, 0), rigid(4, 5, 1, 10)]
    assert spans(scheduled(jobs, 1, policy)) == {1: (5, 5), 2: (5, 5), 3: (5, 5), 4: (5, 15)}


def test_a_job_larger_than_the_machine_is_rejected() -> None:
    jobs = [rigid(1, 0, 5, 10), rigid(2, 1, 4, 10), malleable(3, 2, 8, 10, 3, 8, 8)]
    easy = scheduled(jobs, 4, "easy")
    assert easy[1] == RefResult(None, None, "rejected", [], [])
    assert easy[3].state == "rejected"
    # Under pref, 3 has a minimum of 3 nodes and starts on 4 of its 8: r = 1/2.
    assert spans(scheduled(jobs, 4, "pref")) == {1: (None, None), 2: (1, 11), 3: (11, 31)}


def test_a_tie_that_rounding_decides_has_no_expected_schedule() -> None:
    """A job ended 7e-15 s after the point of its resize, so that the policy was called with it and without it."""
    case = draw(13890050, "avg")
    with pytest.raises(NearTie, match=r"within 1e-09 s after t = 49\.90"):
        reference_schedule(case.jobs, case.machine, case.policy, **{**case.options, "if_idle": False})
