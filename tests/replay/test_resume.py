"""Replays that are killed with SIGKILL, and resumed: each job ends exactly once, and the pause is not in the times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracles.redecided import decided, decided_again, emulated, workload
from tests.oracles.survival import KEEP, Case, assert_every_job_ended_once, assert_no_rank_ran_twice, count
from tests.patience import GUARD_S
from tests.replay.test_replayer import CPUS
from tests.runs import replaying
from tracebed.benchmarks.clock import Clock
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.pace import Timeline
from tracebed.orchestrator.replay.recovery import recover
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry

pytestmark = pytest.mark.usefixtures("no_process_is_left")

SPEED = 100.0
INVENTORY = """
grain_s: 0.02
heartbeat_s: 0.2
linger_s: {linger}
nodes:
  - {{name: "n[1-4]", cores: 2, emulated: true}}
"""


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    """Return a replay of 12 jobs on four nodes, whose agents wait two minutes for another controller."""
    case = Case(tmp_path, workload(12), INVENTORY.format(linger=120), "--speed", str(SPEED), "--policy", "pref")
    yield case
    case.end()


def entries_of(folder: Path) -> list[journal.Entry]:
    return journal.read(folder / "run" / JOURNAL)[1]


def assert_sound(case: Case, run: Run, pauses: int, policy: str = "pref") -> None:
    entries = entries_of(case.folder)
    assert_every_job_ended_once(run, entries)
    assert_no_rank_ran_twice(case.folder / "kept" / "spool")
    assert run.info.state == "completed"
    assert len(run.info.pauses) == pauses
    assert not case.working
    times = [entry.time for entry in entries if entry.kind in ("submit", "start", "effect", "end", "pause")]
    assert times == sorted(times)
    jobs = Jobs.of(workload(12), cores_per_node=2)
    path = case.folder / "run" / JOURNAL
    assert decided_again(path, jobs, emulated(4), registry.load(policy), replaying(SPEED)) == decided(path)


KILL = """
import os
from tracebed.orchestrator.{module} import {name}
inner, calls = {name}.{method}, [0]
def method(self, *arguments, **named):
    calls[0] += 1
    if calls[0] == {call} and {before}:
        os.kill(os.getpid(), 9)
    result = inner(self, *arguments, **named)
    if calls[0] == {call}:
        os.kill(os.getpid(), 9)
    return result
{name}.{method} = method
"""


def killing(module: str, name: str, method: str, *, call: int = 1, before: bool = False) -> str:
    """Return code that kills its process at a call of a method: before it, or after it."""
    return KILL.format(module=module, name=name, method=method, call=call, before=before)


INSTANTS = {
    "before the run is saved": killing("run", "Run", "save", before=True),
    "after the run is saved": killing("run", "Run", "save"),
}


@pytest.mark.slow
@pytest.mark.parametrize("instant", INSTANTS)
def test_a_replay_that_is_killed_at_a_certain_instant_is_resumed(case: Case, instant: str) -> None:
    process = case.start(hook=KEEP + INSTANTS[instant])
    assert process.wait(GUARD_S) == -9, case.errors
    run = case.finish(case.start("--resume", hook=KEEP))
    assert_sound(case, run, 0)
    assert run.jobs["restarts"].sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize("first", ["decide", "send"])
def test_a_replay_that_is_killed_while_it_is_resumed_is_resumed_again(case: Case, first: str) -> None:
    process = case.start()
    case.wait_until(process, count("start", 3))
    case.kill(process)
    module, name = ("replay.loop", "Replayer") if first == "decide" else ("replay.executor", "Ranks")
    for call in (2, 1):
        hook = killing("replay.resumption", "Resumption", "continue_replay") if call == 2 else ""
        hook = hook or killing(module, name, first, call=10_000 if first == "decide" else 1, before=True)
        process = case.start("--resume", hook=hook)
        if first == "decide" and call == 1:
            case.wait_until(process, count("pause", 2))
            case.kill(process)
        assert process.wait(GUARD_S) == -9, case.errors
    run = case.finish(case.start("--resume", hook=KEEP))
    entries = entries_of(case.folder)
    assert_sound(case, run, sum(entry.kind == "pause" for entry in entries))
    assert run.jobs["restarts"].sum() == 0


def test_no_time_before_a_pause_is_moved_by_it() -> None:
    """A rank may have started, and a job may have accepted a resize, before the replay was killed."""
    timeline = Timeline(Clock(), 10.0)
    timeline.zero = 1000.0
    timeline.pause(500.0, 1030.0)  # from 1050 s of the clock to 1080 s
    timeline.pause(1500.0, 1035.0)  # from 1180 s to 1185 s
    clock = [1000.0, 1049.0, 1050.0, 1079.0, 1080.0, 1179.0, 1180.0, 1184.0, 1185.0, 1200.0]
    assert [timeline.trace(time) for time in clock] == [0.0, 490.0, 500.0, 500.0, 500.0, 1490.0] + [1500.0] * 3 + [
        1650.0
    ]
    assert [timeline.clock_at(trace) for trace in (1500.0, 1650.0)] == [1185.0, 1200.0]


@pytest.mark.parametrize(("treatment", "states"), [("requeue", {"completed"}), ("fail", {"completed", "failed"})])
@pytest.mark.slow
def test_jobs_whose_agents_died_with_the_replayer_wait_again_or_fail(
    tmp_path: Path, treatment: str, states: set[str]
) -> None:
    options = ("--speed", str(SPEED), "--policy", "pref", "--on-node-failure", treatment)
    case = Case(tmp_path, workload(12), INVENTORY.format(linger=120), *options)
    try:
        process = case.start()
        case.wait_until(process, count("launched", 2))
        agents = case.agents()
        case.kill(process)
        for agent in agents:
            agent.kill()
        run = case.finish(case.start("--resume", hook=KEEP))
        entries = entries_of(tmp_path)
        assert_every_job_ended_once(run, entries, states=states)
        assert set(run.jobs["state"]) == states
        [pause] = run.info.pauses
        assert pause["lost"] > 0 == pause["adopted"]
        assert run.jobs["restarts"].sum() == (pause["lost"] if treatment == "requeue" else 0)
        failed = run.jobs[run.jobs["state"] == "failed"]
        assert failed["reason"].str.contains("was lost: its agent ended while the replay was stopped").all()
        assert {outage["until"] is not None for outage in run.info.outages} == {True}
        assert run.info.health["state"] == "unhealthy"
    finally:
        case.end()


@pytest.mark.slow
def test_a_replay_with_a_steady_clock_on_real_cpus_is_resumed(tmp_path: Path) -> None:
    inventory = f"grain_s: 0.02\nheartbeat_s: 0.2\nlinger_s: 120\nnodes:\n  - {{name: n1, cpus: '{CPUS[0]}'}}\n"
    work = workload(4, nodes=1)
    case = Case(tmp_path, work, inventory, "--speed", str(SPEED), "--policy", "fcfs", "--clock", "steady")
    try:
        process = case.start()
        case.wait_until(process, count("launched"))
        case.kill(process)
        run = case.finish(case.start("--resume"))
        assert_every_job_ended_once(run, entries_of(tmp_path))
        assert run.jobs["restarts"].sum() == 0
    finally:
        case.end()


@pytest.mark.slow
def test_a_replay_whose_nodes_do_not_start_when_it_is_resumed_can_be_resumed_later(case: Case) -> None:
    process = case.start()
    case.wait_until(process, count("start", 3))
    agents = case.agents()
    case.kill(process)
    for agent in agents:
        agent.kill()
    hook = "from tracebed.ground.errors import TestbedError\n"
    hook += "from tracebed.orchestrator.testbeds.local import LocalProvider\n"
    hook += "def refuse(self, node, arguments): raise TestbedError('the node is switched off')\n"
    hook += "LocalProvider.run = refuse\n"
    assert case.start("--resume", hook=hook).wait(GUARD_S) == 4
    assert "the node is switched off" in case.errors
    assert len(case.working) == 1
    assert_sound(case, case.finish(case.start("--resume", hook=KEEP)), 1)


@pytest.mark.slow
def test_another_command_does_not_resume_the_replay(case: Case) -> None:
    process = case.start()
    case.wait_until(process, count("start"))
    case.kill(process)
    before = case.working
    case.options = (
        "--inventory",
        "i.yaml",
        "-o",
        "run",
        "--policy",
        "fcfs",
        "--speed",
        "50",
        "--on-node-failure",
        "fail",
    )
    assert case.start("--resume").wait(GUARD_S) == 2
    assert "differs in: parameters, policy, policy_parameters, speed" in case.errors
    assert case.working == before
    recover(before[0], case.folder / "recovered")
    assert Run.load(case.folder / "recovered").info.state == "interrupted"
    for agent in case.agents():
        agent.kill()


def test_a_resumed_replay_that_is_killed_can_be_recovered(case: Case) -> None:
    for kind in ("start", "pause"):
        process = case.start("--resume")
        case.wait_until(process, count(kind))
        case.kill(process)
    [folder] = case.working
    run, _ = recover(folder)
    assert run.info.state == "interrupted"
    assert len(run.info.pauses) == 1
    for agent in case.agents():
        agent.kill()


@pytest.mark.slow
def test_without_a_killed_replay_resume_starts_from_the_beginning(case: Case) -> None:
    run = case.finish(case.start("--resume"))
    assert "no killed replay to run is found: the replay starts from the beginning" in case.errors
    assert run.info.pauses == []
