"""Replays in virtual time in which a policy decides in the partitions of a batch system, with faults of commands."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tracebed.api as tb
from tests.faults.batch import NODES, BatchFault
from tests.faults.pooled_batch import PooledPlay, PooledScenario
from tests.faults.shrinking import examine
from tests.faults.test_resize_faults import JOBS, kinds, resizes
from tracebed.ground import system as outside
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay.batch.deciding import DecidingReplayer

SEEDS = 10
"""Number of seeds in the default run."""
PORTION = 10
"""Number of seeds of a test."""
HALVES = PooledScenario(
    1,
    JOBS,
    partitions=((0, 1, 2, 3), (4, 5, 6, 7)),
    gpus=(4, 5, 6),
    asks=((0, False), (0, False), (1, True), (0, False), (1, False), (1, True)),
)
"""Two partitions of four nodes. The third job (malleable, two to eight nodes, three of which serve it) has GPUs."""


def played(scenario: PooledScenario) -> PooledPlay:
    """Return the replay of a scenario after its invariants have been checked."""
    play = PooledPlay(scenario)
    play.play()
    play.check()
    return play


@pytest.mark.parametrize("first", range(0, SEEDS, PORTION))
def test_invariants_hold_with_faults(first: int) -> None:
    assert examine(range(first, first + PORTION), PooledScenario) == (PORTION, [])


def test_scenarios_have_partitions_that_overlap_and_malleable_jobs_with_gpus() -> None:
    drawn = [PooledScenario.drawn(seed) for seed in range(40)]
    assert 5 < sum(sum(map(len, each.partitions)) > NODES for each in drawn) < 40
    assert sum(gpu for each in drawn for _, gpu in each.asks[::2]) > 20


def test_the_run_has_the_machine_and_is_that_of_its_simulation() -> None:
    play = played(HALVES)
    assert play.run is not None
    states = play.run.jobs["state"].tolist()
    assert states == [*["completed"] * 5, "rejected"]
    assert play.run.jobs["reason"].iloc[5] == "gres of a node: gpu:1, partition p1 has too few such nodes"
    assert play.run.info.machine == HALVES.machine_of(range(NODES))
    predicted = tb.simulate(HALVES.workload, "pref", play.run.info.machine)
    assert predicted.jobs["state"].tolist() == states
    found = tb.compare(tb.Run.of(play.run), predicted)
    assert not [each for each in found.warnings if "machine" in each or "nodes differs" in each]
    other = tb.simulate(HALVES.workload, "pref", replace(HALVES, gpus=(0,)).machine_of(range(NODES)))
    assert any("machine differs" in each for each in tb.compare(tb.Run.of(play.run), other).warnings)


def test_a_job_with_gpus_shrinks_and_never_expands() -> None:
    """Its partition has an idle node with a GPU after another job has ended. `PooledBatch.request` would fail."""
    jobs = ((0.0, 300.0, 600.0, 2), (20.0, 60.0, 600.0, 2), (40.0, 40.0, 600.0, 1))
    scenario = PooledScenario(1, jobs, partitions=((0, 1, 2, 3),), gpus=(0, 1, 2, 3), asks=((0, True),) * 3)
    play = played(replace(scenario, policy="dmr"))
    assert play.run is not None
    done = play.run.reconfigurations
    assert play.run.jobs["state"].tolist() == ["completed"] * 3
    assert [*zip(done["job_id"], done["kind"], done["state"], strict=True)] == [("j0", "shrink", "applied")]
    free = replace(scenario, policy="dmr", asks=((0, False),) * 3)
    assert "expand" in played(free).run.reconfigurations["kind"].tolist()  # type: ignore[union-attr]


def test_a_job_that_returns_to_the_queue_has_its_own_sizes_again() -> None:
    """It starts on two of four nodes, with its GPUs. Then the batch system forgets the start."""
    jobs = ((0.0, 60.0, 600.0, 2), (0.0, 60.0, 600.0, 2), (1.0, 300.0, 600.0, 2))
    asks = ((1, False), (0, False), (0, True))
    scenario = PooledScenario(1, jobs, partitions=((0, 1, 2, 3), (4, 5, 6, 7)), gpus=(0, 1, 2, 3), asks=asks)
    play = PooledPlay(replace(scenario, policy="dmr"))
    system = play.system
    forgotten: list[tuple[int, ...]] = []

    def forget() -> None:
        job = next(job for job in system.jobs if job.request.name.endswith("-2"))
        forgotten.append(job.nodes)
        job.life += 1
        nodes, job.nodes = job.nodes, ()
        system._idle = sorted({*system._idle, *nodes})
        system._hold(job)  # type: ignore[attr-defined]

    play.world.after(12.0, forget)
    play.play()
    assert play.run is not None
    assert [len(nodes) for nodes in forgotten] == [2]
    assert play.run.jobs["state"].tolist() == ["completed"] * 3
    held = play.run.allocations.set_index("job_id").loc[["j2"]]
    assert held["count"].max() == 4
    play.close()


def test_nodes_of_a_merge_without_an_answer_were_not_held_since_the_start() -> None:
    """The replay ended between a merge and its answer, and the job ended before the replay was resumed. Seed 1072.

    The run had the last nodes of the job for the whole time, and thus two jobs on a node.
    """
    scenario = PooledScenario.drawn(1072)
    play = played(scenario)
    assert play.run is not None
    table = play.run.allocations
    held = {*table[table["job_id"] == "j8"]["node"]}
    names = [node.name for node in play.run.info.nodes]
    assert {names[node] for node in held} == {"n2"}
    merged = [job.nodes for job in play.system.jobs if job.request.name.endswith("-8")]
    assert merged == [(2, 4)]


def test_a_time_limit_is_at_most_that_of_the_partition() -> None:
    play = PooledPlay(HALVES)
    play.system.longest_s["p0"] = 60.0  # type: ignore[attr-defined]
    play.play()
    play.check()
    limits = {job.request.demands[0]: job.request.limit_s for job in play.system.jobs if "+" not in job.request.name}
    assert limits["--partition=p0"] == 60.0
    assert limits["--partition=p1"] is not None and limits["--partition=p1"] > 100.0


def test_nodes_on_which_no_job_can_start_are_not_on_the_machine() -> None:
    play = PooledPlay(replace(HALVES, faults=(BatchFault("node_fail", 0.0, 500.0, 0.0),)))
    play._wait(1.0)
    play.play()
    play.check()
    assert play.run is not None
    assert play.run.info.machine == HALVES.machine_of(range(1, NODES))
    assert play.run.jobs["state"].tolist()[1] == "rejected"  # it needs four nodes


def test_a_killed_replay_is_resumed_on_the_same_machine() -> None:
    """A node that is down then is an outage. On another machine, the replay is not resumed."""
    for call in (120, 200, 300):
        play = played(replace(HALVES, faults=(BatchFault("kill", call, 1.0), BatchFault("node_fail", 60.0, 9.0, 0.9))))
        assert play.run is not None
        assert play.run.info.machine == HALVES.machine_of(range(NODES))
        assert "killed" not in kinds(play)
        assert {*resizes(play)} <= {"applied", "cancelled"}


def test_a_replay_is_not_resumed_on_another_machine() -> None:
    play = PooledPlay(replace(HALVES, faults=(BatchFault("kill", 200, 1.0), BatchFault("kill", 300, 1.0))))
    original, attempts = play.system.machine, list[bool]()  # type: ignore[attr-defined]
    replay = play._replay

    def changing(workload: tb.Workload, *, resume: bool) -> object:
        if resume and not attempts:
            attempts.append(True)
            play.system.machine = lambda nodes: replace(HALVES, gpus=(0,)).machine_of(range(NODES))  # type: ignore
            try:
                return replay(workload, resume=True)
            finally:
                play.system.machine = original  # type: ignore[attr-defined]
        return replay(workload, resume=resume)

    play._replay = changing  # type: ignore[method-assign, assignment]
    play.play()
    play.check()
    assert any("differs in: machine" in each for each in play.log), play.log


def test_a_job_of_several_partitions_none_of_which_has_its_nodes_is_refused() -> None:
    play = PooledPlay(HALVES)
    table = HALVES.workload.table.assign(partition=["p0,p1", *["p0"] * 5], gres="")
    what = "none of the partitions p0,p1 of job j0 has all nodes on which a policy may start it"
    with outside.using(play.world), pytest.raises(InputError, match=what):
        play._replay(tb.Workload(table, HALVES.workload.provenance), resume=False)
    play.close()


def test_a_job_of_several_partitions_is_in_the_one_that_has_its_nodes() -> None:
    scenario = replace(HALVES, partitions=((0, 1), (0, 1, 2, 3, 4, 5, 6, 7)), asks=((1, False),) * 6)
    table = scenario.workload.table.assign(partition="p0,p1")
    play = PooledPlay(scenario)
    play.scenario.__dict__["workload"] = tb.Workload(table, scenario.workload.provenance)
    play.play()
    assert {job.request.demands for job in play.system.jobs if "+" not in job.request.name} == {("--partition=p1",)}
    play.close()


def test_the_bounds_of_other_jobs_stay() -> None:
    """Only the jobs that cannot expand have another largest size after their start."""
    bounds: list[tuple[list[int], list[int]]] = []
    before = DecidingReplayer._bound

    def noting(self: DecidingReplayer, job: int) -> None:
        before(self, job)
        bounds.append(([*self.scheduler.state_of(job).jobs.high], [*self.resized.high]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecidingReplayer, "_bound", noting)
        played(HALVES)
    changed = {number for now, own in bounds for number, high in enumerate(own) if now[number] != high}
    assert changed <= {2}
