"""Replays in virtual time in which a policy decides and a batch system executes, with faults of its commands."""

from __future__ import annotations

import pytest

from tests.faults.batch import NODES, BatchFault
from tests.faults.resizing_batch import SECOND_S, ResizingBatch, ResizingPlay, ResizingScenario
from tests.faults.shrinking import examine, violations
from tracebed.orchestrator.replay.batch.deciding import OF_OTHERS
from tracebed.orchestrator.replay.batch.resizes import ResizeCommand
from tracebed.orchestrator.replay.journal import read
from tracebed.orchestrator.run import JOURNAL

SEEDS = 10
"""Number of seeds in the default run. CI plays 100."""
PORTION = 10
"""Number of seeds of a test."""
JOBS = tuple((20.0 * number, 100.0, 600.0, 4) for number in range(6))
"""At 10 times the speed, jobs of 10 s on half of the nodes, one every 2 s. Every other job is malleable."""


def played(*faults: BatchFault, seed: int = 1) -> ResizingPlay:
    """Return a replay of `JOBS` after its invariants have been checked."""
    play = ResizingPlay(ResizingScenario(seed, JOBS, faults))
    play.play()
    play.check()
    assert play.run is not None
    assert {*play.run.jobs["state"]} == {"completed"}
    return play


def resizes(play: ResizingPlay) -> list[str]:
    """Return the states of the resizes."""
    assert play.run is not None
    return [str(state) for state in play.run.reconfigurations["state"]]


def kinds(play: ResizingPlay) -> list[str]:
    """Return the kinds of the entries in the journal."""
    assert play.run is not None and play.run.folder is not None
    return [entry.kind for entry in read(play.run.folder / JOURNAL)[1]]


def longest_second(play: ResizingPlay) -> float:
    """Return the longest time for which a second job held nodes, s."""
    assert isinstance(play.system, ResizingBatch)
    ended = [job.states[-1][0] - job.began for job in play.system.jobs if "+" in job.request.name]
    return max((each for each in ended if each == each), default=0.0)


@pytest.mark.parametrize("first", range(0, SEEDS, PORTION))
def test_invariants_hold_with_faults(first: int) -> None:
    assert examine(range(first, first + PORTION), ResizingScenario) == (PORTION, [])


def test_a_policy_resizes_jobs_without_faults() -> None:
    play = played()
    assert resizes(play).count("applied") >= 4
    assert {*resizes(play)} <= {"applied", "cancelled"}
    assert "not_done" not in kinds(play)


@pytest.mark.parametrize("kind", ["merge_refused", "second_cancelled", "request_refused"])
def test_a_refused_expansion_is_in_the_run_and_its_second_job_is_withdrawn(kind: str) -> None:
    play = played(BatchFault(kind, 0.0, 0.0, 1.0))
    assert "refused" in resizes(play)
    assert play.run is not None
    assert "resizes were refused, for example of job" in play.run.info.warnings[-1]
    assert longest_second(play) < SECOND_S / 4


@pytest.mark.parametrize("kind", ["merge_lost", "request_lost", "shrink_lost", "start_lost"])
def test_a_command_whose_answer_is_lost_is_settled_by_an_observation(kind: str) -> None:
    faults = [BatchFault(kind, at, 0.0, 1.0) for at in (0.0, 5.0, 10.0, 15.0, 20.0)]
    play = played(*faults)
    assert "not_done" in kinds(play)
    assert "refused" not in resizes(play)


def test_a_shrink_is_tried_until_it_is_accepted() -> None:
    faults = [BatchFault(f"shrink_{how}", at, 0.0, 1.0) for at, how in ((0.0, "refused"), (5.0, "error"))]
    play = played(*faults, BatchFault("shrink_refused", 10.0, 0.0, 1.0))
    assert "not_done" in kinds(play)
    assert "refused" not in resizes(play)


def test_a_start_that_is_refused_returns_to_the_queue_of_the_policy() -> None:
    play = played(BatchFault("start_refused", 0.0, 0.0, 1.0))
    assert "withdrawn" in kinds(play)


def test_nodes_of_jobs_of_others_are_not_used_and_are_outages_of_the_run() -> None:
    play = played(BatchFault("other_job", 0.0, 8.0, 0.0))
    assert play.run is not None
    outages = play.run.info.outages
    assert [(each["node"], each["reason"]) for each in outages] == [("n0", OF_OTHERS)]
    assert outages[0]["until"] - outages[0]["from"] == pytest.approx(80.0, abs=20.0)  # 8 s at 10 times the speed
    used = play.run.allocations
    assert not ((used["node"] == 0) & (used["start"] < outages[0]["until"])).any()
    assert "refused" not in resizes(play)
    assert {cause["signal"] for cause in play.run.info.health["causes"]} == {"agents_lost"}


def test_nodes_on_which_no_job_can_start_are_left_out_at_the_beginning() -> None:
    play = ResizingPlay(ResizingScenario(1, JOBS, (BatchFault("node_fail", 0.0, 500.0, 0.0),)))
    play._wait(1.0)
    play.play()
    play.check()
    assert play.run is not None
    assert [node.name for node in play.run.info.nodes] == [f"n{node}" for node in range(1, NODES)]
    assert "1 of 8 nodes" in play.run.info.warnings[-1]
    assert not play.run.info.outages


@pytest.mark.parametrize(("at", "late_s"), [(4.0, 4.0), (28.0, 15.0)])
def test_an_old_answer_does_not_change_the_nodes_that_a_job_has_held(at: float, late_s: float) -> None:
    """The answers tell of a job that ran on its nodes of before a resize, or waited for its start.

    Seed 9700213.
    """
    played(BatchFault("poll_stale", at, late_s, 0.5))


def test_the_search_finds_a_failed_command_that_counts_as_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(command: ResizeCommand, nodes: object, seconds: object, began: float) -> str:
        command.resize.merged, command.failed_at = began, None
        return "merged"

    monkeypatch.setattr(ResizeCommand, "settle", settle)
    scenario = ResizingScenario(1, JOBS, (BatchFault("merge_refused", 0.0, 0.0, 1.0),))
    assert violations(scenario) != []


def test_a_killed_replay_cancels_the_second_job_that_it_left() -> None:
    """The controller is killed while a second job has nodes. The resumed one finds it by its name."""
    found = 0
    for call in range(150, 450, 20):
        play = ResizingPlay(ResizingScenario(1, JOBS, (BatchFault("kill", call, 1.0),)))
        play.play()
        play.check()
        assert longest_second(play) < SECOND_S / 4
        found += "twice" not in kinds(play) and bool(play.log)
    assert found


def test_a_killed_replay_has_shrunk_a_job_to_nodes_that_it_held_before() -> None:
    """The controller is killed between a shrink and its answer. The first observation of the resumed one is right.

    Seed 5043.
    """
    jobs = (
        *((29.11, 126.265, 1200.0, 8), (30.011, 17.937, 1800.0, 8), (30.011, 27.15, 600.0, 2)),
        *((30.061, 5.656, 1800.0, 4), (30.061, 40.666, 1800.0, 4), (30.684, 50.167, 600.0, 4)),
        *((30.684, 71.732, 1200.0, 4), (31.096, 7.814, 1800.0, 8), (31.258, 34.579, 600.0, 2)),
        *((32.189, 27.895, 600.0, 4), (32.26, 104.237, 1800.0, 1), (32.526, 17.551, 1200.0, 8)),
        (32.526, 37.447, 600.0, 8),
    )
    faults = (BatchFault("kill_other", 983, 0.3, 0.365), BatchFault("start_lost", 4.57, 25.0, 0.834))
    assert violations(ResizingScenario(5043, jobs, faults, accounting=True, policy="min")) == []
