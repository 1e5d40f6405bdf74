"""Replays on a batch system in virtual time, with faults drawn from a seed, and the defects that these have found."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.faults.batch import BatchFault
from tests.faults.batch_scenario import BatchPlay, BatchScenario
from tests.faults.shrinking import examine, violations
from tracebed.orchestrator.replay.journal import read
from tracebed.orchestrator.run import JOURNAL, Run

SEEDS = 40
"""Number of seeds in the default run. CI plays a thousand."""
PORTION = 20
"""Number of seeds of a test."""
JOBS = tuple((20.0 * number, 100.0, 600.0, 4) for number in range(6))
"""At 10 times the speed, jobs of 10 s on half of the nodes, one every 2 s."""


def played(*faults: BatchFault, seed: int = 1, jobs: tuple[tuple[float, float, float, int], ...] = JOBS) -> BatchPlay:
    """Return a replay after its invariants have been checked."""
    play = BatchPlay(BatchScenario(seed, jobs, faults)).play()
    play.check()
    return play


def run_of(play: BatchPlay) -> Run:
    """Return the run of a replay."""
    assert play.run is not None
    return play.run


def states(play: BatchPlay) -> list[str]:
    """Return the states of the jobs."""
    return [str(state) for state in run_of(play).jobs["state"]]


@pytest.mark.parametrize("first", range(0, SEEDS, PORTION))
def test_invariants_hold_with_faults(first: int) -> None:
    assert examine(range(first, first + PORTION), BatchScenario) == (PORTION, [])


def test_a_seed_is_one_course_of_events() -> None:
    journals = []
    for _ in range(2):
        play = BatchPlay(BatchScenario.drawn(7)).play()
        assert play.run is not None and play.run.folder is not None
        journals.append(read(play.run.folder / JOURNAL))
    assert journals[0] == journals[1]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_a_killed_replay_has_written_what_an_uninterrupted_one_writes(seed: int) -> None:
    """Kill the controller at some calls: up to there, the journal is that of the replay without the kills."""
    calm = BatchScenario.drawn(seed, faults=0)
    undisturbed = BatchPlay(calm).play()
    assert undisturbed.run is not None and undisturbed.run.folder is not None
    _, entries = read(undisturbed.run.folder / JOURNAL)
    for call in range(20, 400, 40):
        killed = BatchPlay(replace(calm, faults=(BatchFault("kill", call, 2.0),))).play()
        killed.check()
        assert [entries[: len(journal)] for journal in killed.journals] == killed.journals


def test_another_workload_is_refused_and_loses_nothing() -> None:
    play = played(BatchFault("kill_other", 300, 2.0))
    assert [each.split(":")[0] for each in play.log] == ["kill_other", "refused"]
    assert states(play) == ["completed"] * len(JOBS)


# -- defects that seeds have found -------------------------------------------------------------------------------------


def test_incomplete_answers_do_not_end_jobs() -> None:
    """Seed 10: two answers without a job ended it. The replay was over while its jobs ran."""
    assert states(played(BatchFault("poll_empty", 5.0, 8.0, 0.9))) == ["completed"] * len(JOBS)


def test_old_answers_do_not_end_jobs() -> None:
    """Seed 139: old answers lack the jobs that were submitted since."""
    assert states(played(BatchFault("poll_stale", 5.0, 130.0, 0.9))) == ["completed"] * len(JOBS)


def test_a_job_without_a_trace_is_cancelled_before_it_counts_as_ended() -> None:
    """A batch system that does not list a job for a minute may run it."""
    faults = tuple(BatchFault("poll_empty", 5.0 + 4.5 * number, 0.0, 0.9) for number in range(20))
    play = BatchPlay(BatchScenario(1, ((0.0, 1000.0, 1200.0, 4), (0.0, 10.0, 600.0, 1)), faults)).play()
    play.check()
    assert states(play) == ["unknown", "completed"]
    assert [job.now.word for job in play.system.jobs] == ["CANCELLED", "COMPLETED"]


def test_a_job_that_was_accepted_twice_runs_once() -> None:
    """Seed 39: both jobs have one name. The second one was not seen, and neither waited for nor cancelled."""
    play = played(BatchFault("submit_twice", 3.0, 1.0, 0.2))
    assert states(play) == ["completed"] * len(JOBS)
    assert len(play.system.jobs) > len(JOBS)


def test_second_jobs_of_a_killed_replay_are_cancelled() -> None:
    """Seed 39: the observation had one job of each name."""
    play = played(BatchFault("submit_twice", 3.0, 1.0, 0.2), BatchFault("kill_cancel", 300, 1.0))
    assert play.run is None
    assert len(play.system.jobs) > 2


def test_jobs_of_a_killed_replay_are_cancelled_although_an_answer_is_incomplete() -> None:
    """Seed 1260: a job that the only answer lacked stayed in the batch system."""
    play = played(BatchFault("poll_empty", 5.0, 0.0, 0.9), BatchFault("kill_cancel", 142, 0.3))
    assert play.run is None


@pytest.mark.parametrize("size", [-3600.0, -30.0, -0.4, 0.4, 30.0, 3600.0])
def test_times_are_right_before_and_after_a_step_of_the_wall_clock(size: float) -> None:
    """Seeds 48, 93, 17: a step back moved the times before it, too, and the records until its detection were wrong."""
    play = played(BatchFault("step", 8.3, size))
    assert [round(step) for step in run_of(play).info.batch["clock"]["steps_s"]] == [round(size)]


def test_a_step_during_a_pause_is_taken_out() -> None:
    """Seed 8: the resumed replay had not noticed the step. All later times were wrong by it."""
    played(BatchFault("kill", 300, 25.0), BatchFault("step", 20.0, 3600.0))


def test_a_step_while_the_batch_system_is_silent_is_taken_out() -> None:
    """Seed 17: the clock was only compared when the batch system answered."""
    played(BatchFault("poll_silent", 6.0, 70.0), BatchFault("step", 9.0, 30.0))


def test_a_script_that_began_before_a_step_back_did_not_begin_after_it() -> None:
    """Seed 2003986: the start of a job, rounded down to 1 s, was 1.09 s before its script began."""
    jobs = ((0.0, 10.0, 600.0, 1), (9.2, 100.0, 600.0, 1))
    play = BatchPlay(BatchScenario(2, jobs, (BatchFault("step", 8.3, -30.0),))).play()
    began = play.system.jobs[1].lives[0]
    assert began.launched > math.floor(began.start) + 1.0
    play.check()


def test_a_second_job_does_not_overwrite_the_record_of_the_first() -> None:
    """Seeds 2004907 and 2005158: jobs were forgotten while no replayer ran. Those with a second job were unknown."""
    faults = (BatchFault("submit_lost", 0.9, 130.0, 0.8), BatchFault("kill", 1000, 400.0))
    play = played(*faults, jobs=((0.0, 600.0, 1200.0, 4),))
    assert len(play.system.jobs) == 2
    assert states(play) == ["completed"]


def test_a_timeout_does_not_make_observations_rare() -> None:
    """Seed 1307: after an observation that took 60 s until its timeout, the next one was 5 minutes later."""
    assert played(BatchFault("poll_silent", 6.0, 10.0)).world.now < 120.0


def test_a_job_that_was_killed_at_once_has_not_started_before_its_submission() -> None:
    """Seed 1038: the batch system gave the second in which the job was submitted."""
    assert states(played(BatchFault("terminate", 35))) == ["interrupted"] * len(JOBS)


def test_an_interrupted_replay_that_is_killed_stays_interrupted() -> None:
    """Seed 3103: the resumed replay submitted the other jobs, and its run was complete, with cancelled jobs."""
    play = played(BatchFault("cancel_late", 5.0, 9.0, 1.0), BatchFault("terminate", 150), BatchFault("kill", 170, 2.0))
    assert play.log == ["kill"]
    assert run_of(play).info.state == "interrupted"
    assert "interrupted" in states(play)


def test_a_run_tells_that_jobs_could_not_be_cancelled() -> None:
    """The run of an interrupted replay was silent about jobs that still ran two minutes later."""
    jobs = ((0.0, 5000.0, 6000.0, 4), (0.0, 5000.0, 6000.0, 4))
    faults = (BatchFault("cancel_error", 0.0, 400.0), BatchFault("terminate", 100))
    play = played(*faults, jobs=jobs)
    assert run_of(play).info.warnings == ["2 jobs may still run in the batch system, for example job 1"]


def test_the_start_of_a_job_that_was_started_again_is_right_after_a_step_back() -> None:
    """Seed 2372: of the two possible times of the second start, the one near the first start was taken."""
    play = played(BatchFault("step", 3.2, -5.0), BatchFault("node_requeue", 9.4, 0.0, 0.0))
    assert run_of(play).jobs["restarts"].max() == 1


def test_a_job_that_started_again_and_was_forgotten_has_its_last_start() -> None:
    """Seed 10651: the last observation was of the first execution."""
    faults = (BatchFault("node_requeue", 9.4, 0.0, 0.0), BatchFault("poll_silent", 8.9, 400.0))
    play = played(*faults)
    assert run_of(play).jobs["restarts"].max() == 1


def test_times_are_right_after_a_step_during_a_late_observation() -> None:
    """Seed 10040: the observation took 25 s, and the next one was 125 s after it."""
    play = played(BatchFault("poll_late", 3.4, 25.0, 0.9), BatchFault("step", 16.0, -30.0))
    assert 100.0 < run_of(play).jobs["end"][0] < 120.0


def test_a_submission_that_failed_has_the_time_of_its_call() -> None:
    """Seed 10216: the journal had only the time at which its thread was started."""
    played(BatchFault("submit_error", 2.6, 2.0, 0.4), BatchFault("terminate", 110), seed=4)


def test_jobs_of_a_killed_replay_are_waited_for_although_an_answer_is_empty() -> None:
    """Seed 300377: the batch system had not cancelled the jobs yet, and an answer without them was believed."""
    faults = (BatchFault("cancel_late", 0.0, 20.0), BatchFault("poll_empty", 9.0, 0.0, 0.9))
    play = played(BatchFault("kill_cancel", 142, 0.3), *faults)
    assert play.run is None


def test_a_replay_waits_for_the_end_of_second_jobs() -> None:
    """Seed 300601: a second job that the batch system had not cancelled yet ran after the end of the replay."""
    jobs = ((0.0, 50.0, 600.0, 4), (0.0, 200.0, 600.0, 4))
    faults = (BatchFault("submit_twice", 1.02, 1.0, 0.1), BatchFault("cancel_late", 0.0, 50.0))
    play = played(*faults, jobs=jobs)
    assert len(play.system.jobs) > len(jobs)


def test_a_second_job_of_an_unknown_state_is_cancelled() -> None:
    """The second jobs 8 and 11 have an unknown state when they are first seen. They ran after the end of the replay."""
    assert violations(BatchScenario.drawn(601263)) == []


def test_a_second_job_has_not_ended_because_an_old_answer_is_without_it() -> None:
    """Jobs were cancelled late, and answers were of the time before them: the replay ended while they ran."""
    assert violations(BatchScenario.drawn(2001768)) == []


def test_a_second_job_that_was_accepted_while_no_replayer_ran_is_noticed() -> None:
    """Seed 400027: all jobs had ended before the replay was killed. The resumed replay observed nothing."""
    jobs = ((0.0, 10.0, 600.0, 4),)
    twice = BatchFault("submit_twice", 0.9, 70.0, 0.5)  # accepted after 35 s and after 70 s
    undisturbed = BatchPlay(BatchScenario(1, jobs, (twice,))).play()
    assert len(undisturbed.system.jobs) == 1
    killed = BatchFault("kill", undisturbed.world.calls - 2, 60.0)
    play = played(twice, killed, jobs=jobs)
    assert len(play.system.jobs) == 2


def test_a_job_that_arrives_after_an_interruption_is_cancelled() -> None:
    """Seeds 5001059, 5006608 and 5021138: the batch system accepted the second job after its submission had failed, and
    the replay had been interrupted. The job was listed, but neither taken over nor cancelled.
    """
    jobs = ((0.0, 5000.0, 6000.0, 1), (10.0, 5000.0, 6000.0, 1))
    silent = BatchFault("submit_silent", 1.5, 130.0, 0.5)  # accepted after 65 s; the submission fails after 60 s
    faults = (silent, BatchFault("cancel_late", 0.0, 45.0), BatchFault("terminate", 350))
    play = played(*faults, jobs=jobs)
    assert states(play) == ["interrupted"] * 2
    assert [job.now.word for job in play.system.jobs] == ["CANCELLED"] * 2


def test_a_second_job_is_not_noticed_while_the_batch_system_is_silent() -> None:
    """Seed 5002553: the interrupted replay had ended without an answer since the second job was accepted."""
    twice, silent = BatchFault("submit_twice", 0.9, 25.0, 0.6), BatchFault("poll_silent", 18.0, 70.0)
    faults = (twice, silent, BatchFault("terminate", 200))
    play = played(*faults, jobs=((0.0, 5000.0, 6000.0, 1),))
    assert run_of(play).info.warnings == ["1 jobs may still run in the batch system, for example job 1"]


def test_a_job_that_was_started_again_on_other_nodes_was_not_resized() -> None:
    """Seed 5016030: no observation was between two executions of a job. It seemed to hold a node that it had lost."""
    play = played(BatchFault("node_requeue", 3.2, 0.3, 0.0), jobs=((0.0, 200.0, 600.0, 4),))
    assert run_of(play).jobs["restarts"].tolist() == [1]
    assert run_of(play).allocations[["node", "count"]].to_numpy().tolist() == [[1, 4]]


def test_a_second_job_that_was_seen_before_the_answer_to_its_submission_is_noticed() -> None:
    """Seed 7000569: both jobs had ended, and all answers after that to the submission were empty."""
    twice, empty = BatchFault("submit_twice", 0.9, 25.0, 0.06), BatchFault("poll_empty", 25.2, 2.0, 0.7)
    play = played(twice, empty, jobs=((1.7, 21.0, 600.0, 1),))
    folder = run_of(play).folder
    assert folder is not None
    assert "twice" in {entry.kind for entry in read(folder / JOURNAL)[1]}


def test_an_end_that_was_seen_once_counts_at_the_end_of_an_interrupted_replay() -> None:
    """Seed 7019444: the job left no record, and the batch system was silent after it had told the end once."""
    silent, no_record = BatchFault("poll_silent", 4.2, 400.0), BatchFault("no_record", 2.0)
    jobs = ((0.0, 20.0, 600.0, 8), (0.5, 50.0, 600.0, 8))
    play = BatchPlay(BatchScenario(4, jobs, (BatchFault("terminate", 150), silent, no_record))).play()
    play.check()
    assert states(play) == ["completed", "interrupted"]


def test_a_job_whose_end_was_not_observed_has_ended_when_another_job_holds_its_nodes() -> None:
    """Seed 9209816: a job vanished, and the batch system was silent, then without an answer about it."""
    jobs = (
        (0.565, 68.856, 1800.0, 8),
        (0.565, 44.192, 1200.0, 8),
        (0.565, 4.417, 1800.0, 1),
        (0.625, 44.283, 600.0, 8),
    )
    silent, empty = BatchFault("poll_silent", 28.146, 130.0, 0.277), BatchFault("poll_empty", 28.985, 400.0, 0.623)
    faults = (BatchFault("terminate", 671, 400.0, 0.729), BatchFault("vanish", 2.507, 70.0, 0.135), empty, silent)
    play = BatchPlay(BatchScenario(9209816, jobs, faults, speed=10.0, accounting=False)).play()
    play.check()
    assert states(play) == ["interrupted", "completed", "completed", "completed"]
    assert run_of(play).jobs["end"][0] == run_of(play).jobs["start"][1]


def test_a_job_that_was_listed_has_not_ended_because_an_answer_of_a_cancelled_replay_is_without_it() -> None:
    """Seed 8001767: the submission was not in the journal, the cancellation was late, and an answer was incomplete."""
    jobs = ((0.0, 20.0, 600.0, 8), (0.2, 50.0, 1200.0, 8), (27.5, 10.0, 1200.0, 8), (27.5, 101.0, 600.0, 1))
    late, partial = BatchFault("cancel_late", 0.0, 70.0), BatchFault("poll_partial", 12.3, 70.0)
    faults = (late, partial, BatchFault("kill_cancel", 112, 0.3))
    for seed in range(8001760, 8001770):
        play = BatchPlay(BatchScenario(seed, jobs, faults)).play()
        play.check()
        assert play.run is None
