"""Replayer failures: crossing messages, killed or hung processes, full disks and interrupts. Nodes never overlap."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import psutil
import pytest

from tests.oracles.redecided import decided, decided_again, emulated, virtual, workload
from tests.patience import GUARD_S
from tests.replay.test_replayer import CPUS, assert_sound, working_folders, write_case
from tests.runs import COMPLETED_REASON, by_node, replaying
from tracebed.benchmarks.program import Program
from tracebed.converters.workload import Workload
from tracebed.ground import system
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay import event_handler, journal, loop
from tracebed.orchestrator.replay.executor import RunningJob
from tracebed.orchestrator.replay.loop import Replayer
from tracebed.orchestrator.replay.programs import AllowedCommand, AllowedCommands
from tracebed.orchestrator.replay.recovery import recover
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run, RunInfo
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Cancel, Decision, Policy, Resize, Start, State
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.tables import make_run
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Event
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.orchestrator.testbeds.provider import world_of
from tracebed.orchestrator.testbeds.testbed import AgentTestbed

pytestmark = pytest.mark.usefixtures("no_process_is_left")

Said = list[tuple[int, dict[str, Any]]]
GROWING = registry.load("pref", {"grow_at_start": True})
"""A policy that expands a job in the call that starts it, before the job's leader listens."""


@dataclass(eq=False)
class Restless:
    """A policy that starts jobs at their minimum, keeps two nodes idle, and resizes jobs at random in every call."""

    malleable: ClassVar[bool] = True

    def __init__(self, seed: int, *, cancels: float = 0.0) -> None:
        self.draw, self.cancels = random.Random(seed), cancels

    def decide(self, state: State) -> Iterator[Decision]:
        draw, jobs = self.draw, state.jobs
        for job in list(state.queue.jobs()):
            if state.idle > 2 or not state.size:
                yield Start(job, jobs.low[job])
        for job in [job for job in state.resizable if job not in state.resizing]:
            size = draw.randint(jobs.low[job], min(jobs.high[job], state.size[job] + state.idle))
            if size != state.size[job]:
                yield Resize(job, size)
        for job in list(state.size):
            if draw.random() < self.cancels:
                yield Cancel(job, "bad luck")


def one_job(run_time: float = 100.0, **columns: Any) -> Workload:
    table = {"job_id": ["a"], "submit_time": 0.0, "run_time": run_time, "time_limit": 1e4, "nodes": 1}
    malleable = {"kind": "malleable", "nodes_min": 1, "nodes_max": 2, "speedup": "amdahl", "speedup_parameters": "0.9"}
    return Workload(pd.DataFrame(table | malleable | columns))


def carry_out(
    work: Workload,
    policy: Policy,
    folder: Path,
    inventory: Inventory,
    options: dict[str, Any],
    testbed: Any = None,
    here: system.World | None = None,
) -> Run:
    """Replay with `policy` on the nodes of `inventory` or on `testbed`, in the world `here` or that of the nodes.

    The journal and the spool are in `folder`.
    """
    setup = Setup.of(policy, **{name: value for name, value in options.items() if name != "options"})
    jobs = Jobs.of(work, over_limit=setup.scheduling.over_limit)
    with (
        system.using(here or world_of(inventory, 1.0, 60.0)),
        closing(journal.Journal(folder / JOURNAL, {"jobs": jobs.ids})) as log,
    ):
        testbed = testbed or AgentTestbed(inventory, folder / "spool")
        own = Replayer(jobs, testbed, inventory, policy, setup, options["options"], log)
        with testbed:
            own.run()
        own.close()
    info = RunInfo("replay", "emulated", [], {}, setup)
    return make_run(own.record, own.cluster, info)


def assert_each_rank_ended_within_its_allocation(run: Run, path: Path, names: Sequence[str]) -> None:
    """Check that each rank ran within one allocation of its job's nodes."""
    _, entries = journal.read(path)
    ends = [(entry.job, entry.node, entry.time) for entry in entries if entry.kind == "ended"]
    held = by_node(run)
    within: Counter[int] = Counter()
    for job, node, at in ends:
        own = (held["job_id"] == job) & (held["node"] == names.index(node or ""))
        [row] = held.index[own & (held["start"] < at) & (at <= held["end"])]
        within[row] += 1
    assert max(within.values()) == 1
    idle = set(held.index) - within.keys()
    assert set(held.loc[list(idle), "job_id"]) <= {entry[0] for entry in ends}


@pytest.mark.parametrize(
    ("balance", "cancels", "jobs"),
    [
        pytest.param("static", 0.0, 220, marks=pytest.mark.slow),
        pytest.param("dynamic", 0.01, 110, marks=pytest.mark.slow),
        ("dynamic", 0.01, 40),
    ],
)
def test_many_jobs_under_a_restless_policy(tmp_path: Path, balance: str, cancels: float, jobs: int) -> None:
    """Every job does exactly its work, whatever the order of messages, and the journal accounts for it."""
    draw = np.random.default_rng(5)
    run_time = draw.exponential(50.0, jobs)
    table = {
        "job_id": [f"job {number}" for number in range(jobs)],
        "submit_time": np.sort(draw.uniform(0.0, 23.0 * jobs, jobs)),
        "run_time": run_time,
        "time_limit": 2 * run_time + 1,
        "nodes": 1,
        "cores_per_node": 2,
        "kind": "malleable",
        "nodes_min": 1,
        "nodes_max": 6,
        "speedup": "amdahl",
        "speedup_parameters": "0.95",
    }
    work = Workload(pd.DataFrame(table))
    nodes = tuple(Node(f"n{number}", 2, 1, None, True) for number in range(6))
    inventory = Inventory("test", "agents", nodes, grain_s=0.002)
    options = replaying(2000.0, balance=balance)
    run = carry_out(work, Restless(5, cancels=cancels), tmp_path, inventory, options)
    assert_sound(run)
    states = Counter(run.jobs["state"])
    assert states.keys() <= {"completed", "cancelled"} and states["completed"] >= 0.45 * jobs
    assert states["cancelled"] == 0 or cancels
    assert len(run.reconfigurations)  # on a busy machine, jobs may end before each of these changes

    path, names = tmp_path / JOURNAL, [node.name for node in nodes]
    assert_each_rank_ended_within_its_allocation(run, path, names)
    done: Counter[str] = Counter()
    cut_short = set()  # a rank that is killed as its job completes may not report its last units
    for entry in journal.read(path)[1]:
        if entry.kind == "ended":
            done[entry.job or ""] += entry.data["units_done"]
            cut_short |= {entry.job} if entry.data["state"] == "killed" else set()
    whole = run.jobs[(run.jobs["state"] == "completed") & ~run.jobs["job_id"].isin(cut_short)]
    assert len(whole) >= 0.45 * jobs
    for name, seconds in zip(whole["job_id"], whole["run_time"] / options["speed"], strict=True):
        program = Program.lasting(seconds, 1, 2, EMULATED_RATE, parallel_fraction=0.95)
        assert done[name] == program.serial_units + program.parallel_units
    assert decided_again(path, Jobs.of(work), inventory, Restless(5, cancels=cancels)) == decided(path)


def test_a_new_rank_that_cannot_join_fails_its_job(tmp_path: Path) -> None:
    """Otherwise the leader would continue without the rank, and its node would stay allocated but unused."""
    (tmp_path / "spool" / "job-a" / "n2.out").mkdir(parents=True)  # where the rank's output should go
    run = carry_out(one_job(1000.0), GROWING, tmp_path, emulated(2), replaying(100.0))
    assert run.reconfigurations["kind"].tolist() == ["expand"]
    assert run.jobs["state"].tolist() == ["failed"]
    assert run.jobs["reason"][0].startswith("on n2: ended with status 1")
    assert run.allocations["end"].nunique() == 1


# -- message orders that are rare with real agents ---------------------------------------------------------------------


class Scripted:
    """Two emulated nodes without agents, whose events come from a script.

    `script` receives the list of messages sent so far and yields the next events; an empty list means no event yet.
    """

    def __init__(self, script: Callable[[Said], Iterator[Said]]) -> None:
        self.nodes = emulated(2).nodes
        self.units_per_core_second = EMULATED_RATE
        self.family = "AF_UNIX"
        self.hosts: list[dict[str, Any]] = []
        self.out: dict[str, str] = {}
        self.agents: dict[str, dict[str, Any]] = {}
        self.adopted: dict[str, list[str]] = {}
        self.sent: Said = []
        self.script = script(self.sent)

    def send(self, node: int, message: dict[str, Any]) -> None:
        if message["type"] != "sample":  # these nodes send no samples
            self.sent.append((node, message))

    def receive(self, until: float | None) -> list[Event]:
        said = next(self.script, [])
        if not said:
            assert until is not None
            time.sleep(max(0.0, min(until - time.monotonic(), 0.001)))
        now = time.monotonic()
        return [Event(node, {"job": "a", "time": now, **message}, now) for node, message in said]

    def start(self, adopt: object = None) -> None:
        pass

    def drop(self, node: int, reason: str) -> None:
        raise AssertionError(f"node {node} is given up: {reason}")

    def stop(self) -> None:
        pass

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def until_sent(sent: Said, kind: str, count: int = 1) -> Iterator[Said]:
    """Yield no events until `count` messages of `kind` have been sent; fail after a timeout."""
    deadline = time.monotonic() + GUARD_S
    while sum(message["type"] == kind for _, message in sent) < count:
        assert time.monotonic() < deadline, f"waited in vain for {kind}: {sent}"
        yield []


def ended(node: int, state: str, reason: str = "") -> tuple[int, dict[str, Any]]:
    return node, {"type": "ended", "rank": f"n{node + 1}", "leader": node == 0, "state": state, "reason": reason}


LISTENING: tuple[int, dict[str, Any]] = (0, {"type": "listening", "address": "there"})
STARTED: tuple[int, dict[str, Any]] = (0, {"type": "started"})


def outlived_leader(state: str, reason: str = "") -> Callable[[Said], Iterator[Said]]:
    """Return a script of a job of two ranks: the leader completes, the other rank ends in `state` when killed."""

    def script(sent: Said) -> Iterator[Said]:
        yield from until_sent(sent, "launch")
        yield [LISTENING]
        yield from until_sent(sent, "launch", 2)
        yield [STARTED, ended(0, "completed")]
        yield from until_sent(sent, "kill")
        yield [ended(1, state, reason)]

    return script


def scripted(
    tmp_path: Path, work: Workload, script: Callable[[Said], Iterator[Said]], **options: Any
) -> tuple[Run, Said]:
    testbed = Scripted(script)
    run = carry_out(work, GROWING, tmp_path, emulated(2), replaying(100.0, **options), testbed)
    return run, testbed.sent


def test_no_more_ranks_are_launched_for_a_job_that_is_ending(tmp_path: Path) -> None:
    """The job is killed at its limit before its leader listens."""

    def script(sent: Said) -> Iterator[Said]:
        yield from until_sent(sent, "kill")
        yield [LISTENING]
        yield [ended(0, "killed", "time limit")]

    work = one_job(nodes=2, time_limit=1.0, kind="rigid")
    run, sent = scripted(tmp_path, work, script, over_limit=OverLimit.KILL)
    assert [(node, message["type"]) for node, message in sent] == [(0, "launch"), (0, "kill")]
    assert run.jobs["state"].tolist() == ["killed"] and run.jobs["reason"].tolist() == ["time limit"]


@dataclass(eq=False)
class ShrinksAtOnce:
    """A policy that starts jobs on two nodes, and shrinks them to one before they work."""

    malleable: ClassVar[bool] = True

    def decide(self, state: State) -> Iterator[Decision]:
        for job in list(state.queue.jobs()):
            yield Start(job, 2)
        for job in [job for job in state.resizable if job not in state.resizing and state.size[job] > 1]:
            yield Resize(job, 1)


def test_the_ranks_of_a_command_start_with_the_same_members(tmp_path: Path) -> None:
    """A rank that a job would release before its leader listened did not find itself among the members, and failed."""

    def script(sent: Said) -> Iterator[Said]:
        yield from until_sent(sent, "launch")
        yield [LISTENING]
        yield from until_sent(sent, "launch", 2)
        yield [STARTED]
        yield from until_sent(sent, "resize")
        yield [ended(1, "completed", "released"), ended(0, "completed")]

    commands = AllowedCommands("commands.yaml", "0" * 64, {"it": AllowedCommand(arguments=["true"])})
    parameters = {"application": "command", "application_parameters": "name=it backend=elastic"}
    work = one_job(nodes=2, speedup="linear", speedup_parameters="", **parameters)
    testbed = Scripted(script)
    carry_out(work, ShrinksAtOnce(), tmp_path, emulated(2), replaying(100.0, commands=commands), testbed)
    members = [message["members"] for _, message in testbed.sent if message["type"] in ("launch", "resize")]
    assert members == [["n1", "n2"], ["n1", "n2"], ["n1"]]


@pytest.mark.parametrize(
    ("leader", "outcome"),
    [
        (("completed", ""), ("completed", "")),
        (("failed", "was killed by signal 9 (Killed)"), ("failed", "was killed by signal 9 (Killed)")),
        (("killed", "on n2: cannot join"), ("failed", "on n2: cannot join")),
    ],
)
def test_the_leaders_state_decides_when_its_end_crosses_with_an_expansion(
    tmp_path: Path, leader: tuple[str, str], outcome: tuple[str, str]
) -> None:
    def script(sent: Said) -> Iterator[Said]:
        yield from until_sent(sent, "launch")
        yield [LISTENING]
        yield from until_sent(sent, "launch", 2)
        yield [STARTED]
        yield from until_sent(sent, "resize")
        yield [ended(1, "failed", "cannot join")]
        yield from until_sent(sent, "kill")
        yield [ended(0, *leader)]

    run, _ = scripted(tmp_path, one_job(), script)
    assert (run.jobs["state"][0], run.jobs["reason"][0]) == outcome
    assert run.reconfigurations["state"].tolist() == ["cancelled"]
    assert by_node(run)["node"].tolist() == [0, 1] and run.allocations["end"].nunique() == 1


def test_nodes_are_held_until_the_last_rank_has_ended(tmp_path: Path) -> None:
    """The leader completes while the rank of an expansion is being launched; another job waits for both nodes."""
    seen: list[list[int]] = []

    def script(sent: Said) -> Iterator[Said]:
        yield from until_sent(sent, "launch")
        yield [LISTENING]
        yield from until_sent(sent, "launch", 2)
        yield [STARTED, ended(0, "completed")]
        for _ in range(5):
            yield []
            seen.append([node for node, message in sent if message["type"] == "launch"])
        yield [ended(1, "failed", "cannot join")]
        yield from until_sent(sent, "launch", 3)
        yield [(0, {**LISTENING[1], "job": "b"})]
        yield from until_sent(sent, "launch", 4)
        yield [(0, {**STARTED[1], "job": "b"})]
        yield [(node, {**message, "job": "b"}) for node, message in (ended(1, "completed"), ended(0, "completed"))]

    table = one_job().table
    late = one_job(job_id=["b"], submit_time=1.0, nodes=2, kind="rigid").table
    work = Workload(pd.concat([table, late], ignore_index=True))
    run, _ = scripted(tmp_path, work, script)
    assert seen == [[0, 1]] * 5
    assert run.jobs["state"].tolist() == ["completed", "completed"]
    assert_sound(run)


def test_a_rank_that_does_not_end_with_its_job_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its node would stay allocated and the replay would never end."""
    monkeypatch.setattr(event_handler, "OUTLIVE_S", 0.05)

    script = outlived_leader("killed", "the leader has ended")
    run, sent = scripted(tmp_path, one_job(nodes=2, kind="rigid"), script)
    assert [node for node, message in sent if message["type"] == "kill"] == [1]
    assert run.jobs["state"].tolist() == ["completed"]


@pytest.mark.parametrize(("pause_s", "records"), [(0.0, 5), (1e6, 1)])
def test_agents_that_return_one_by_one_are_recorded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause_s: float, records: int
) -> None:
    """The facts have all agents: a record for each of ten thousand would take gigabytes."""
    monkeypatch.setattr(loop, "AGENTS_S", pause_s)

    def script(sent: Said) -> Iterator[Said]:
        yield from until_sent(sent, "launch")
        yield [LISTENING, STARTED]
        for _ in range(5):
            yield [(1, {"type": "lost", "reason": "was killed"})]
            yield [(1, {"type": "back"})]
        yield [ended(0, "completed")]

    run, _ = scripted(tmp_path, one_job(nodes=1, nodes_max=1), script)
    assert run.jobs["state"].tolist() == ["completed"]
    with contextlib.closing(sqlite3.connect(tmp_path / JOURNAL)) as database:
        [(count,)] = database.execute("SELECT COUNT(*) FROM facts WHERE name = 'agents'").fetchall()
    assert count == 1 + records


# -- job names, run times and limits -----------------------------------------------------------------------------------

NAMES = ["two words", "ä/ö/漢字", "line\nbreak", "x" * 300, "漢" * 300, "..", "%2f", "-", "'\"\\", "\U0001f40c" * 60]


@pytest.mark.parametrize(("execution", "balance"), [("computed", "static"), ("emulated", "dynamic")])
def test_jobs_of_any_name_and_of_zero_length(tmp_path: Path, execution: str, balance: str) -> None:
    table = {"job_id": NAMES, "submit_time": 0.0, "run_time": [0.0, 1e-9, 1e-4, 0.01, 1.0] * 2, "time_limit": 10.0}
    nodes = emulated(2) if execution == "emulated" else Inventory("test", "agents", (Node("c", 1, 1, (CPUS[0],)),))
    work = Workload(pd.DataFrame(table | {"nodes": len(nodes.nodes)}))
    run = replay(work, nodes, "fcfs", tmp_path / "run", **replaying(100.0, balance=balance))
    assert run.jobs["job_id"].tolist() == NAMES
    assert run.jobs["reason"].str.fullmatch(COMPLETED_REASON).all()
    assert set(run.jobs["state"]) == {"completed"}
    assert Run.load(tmp_path / "run").jobs["job_id"].tolist() == NAMES


def test_only_a_given_limit_kills_a_job(tmp_path: Path) -> None:
    """A job without a limit is planned with its run time, which is shorter here than its launch."""
    table = {"job_id": ["none", "own"], "submit_time": 0.0, "run_time": [50.0, 1e4], "time_limit": [np.nan, 20.0]}
    options = replaying(500.0, over_limit=OverLimit.KILL)
    run = replay(Workload(pd.DataFrame(table | {"nodes": 1})), virtual(2), "fcfs", tmp_path / "run", **options)
    assert run.jobs["state"].tolist() == ["completed", "killed"]


def test_the_limit_of_a_malleable_job_scales_with_its_speed(tmp_path: Path) -> None:
    """On two nodes the job progresses at double speed, so its limit of 1000 s on one node is 500 s."""
    work = one_job(1e5, time_limit=1000.0, speedup_parameters="1.0")
    run = carry_out(work, GROWING, tmp_path, virtual(2), replaying(100.0, over_limit=OverLimit.KILL))
    assert run.reconfigurations["state"].tolist() == ["applied"]
    grown = run.reconfigurations["ended"][0]
    assert run.jobs["state"].tolist() == ["killed"]
    limit = grown + (1000.0 - (grown - run.jobs["start"][0])) / 2
    _, entries = journal.read(tmp_path / JOURNAL)
    [killed] = [entry.time for entry in entries if entry.kind == "kill" and entry.data["reason"] == "time limit"]
    assert killed >= limit
    assert killed <= run.jobs["end"][0]


def test_with_an_interval_the_policy_is_called_once_per_tick(tmp_path: Path) -> None:
    options = replaying(400.0, interval_s=20.0)
    run = replay(workload(5), virtual(4), "easy", tmp_path / "run", **options)
    assert set(run.jobs["state"]) == {"completed"}
    _, entries = journal.read(tmp_path / "run" / JOURNAL)
    rows = list(entries)
    calls = [entry.time for entry in rows if entry.kind == "call"]
    ticks = [call // 20.0 for call in calls]
    assert ticks == sorted(set(ticks))
    assert {entry.time for entry in rows if entry.kind == "start"} <= set(calls)
    assert (run.jobs["start"] // 20.0 * 20.0 >= run.jobs["submit"]).all()


def test_jobs_that_the_policy_never_starts_do_not_interrupt(tmp_path: Path) -> None:
    @dataclass(eq=False)
    class Idle:
        malleable: ClassVar[bool] = False

        def decide(self, state: State) -> Iterator[Decision]:
            yield from ()

    run = carry_out(one_job(), Idle(), tmp_path, virtual(1), replaying(100.0))
    assert run.jobs[["state", "reason"]].to_numpy().tolist() == [["unknown", "the policy never started it"]]


# -- signals and full disks --------------------------------------------------------------------------------------------


def interrupt() -> None:
    """Ctrl-C, pressed twice."""
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)


def both_run(replayer: int) -> bool:
    """Return whether two agents run: a log is there before its agent, and a signal between the two loses its files."""
    running = []
    for child in psutil.Process(replayer).children():
        with contextlib.suppress(psutil.Error):
            running.append(child.cmdline()[-1:] == ["import sys; sys.stdin.read()"])
    return sum(running) == 2


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGINT, signal.SIGHUP))],
)
@pytest.mark.parametrize("earlier", [False, True])
def test_an_interrupt_while_agents_start_leaves_nothing(tmp_path: Path, earlier: bool, number: signal.Signals) -> None:
    command = write_case(tmp_path, 1.0)
    if earlier:
        subprocess.run([*command, "--speed", "100"], cwd=tmp_path, check=True, capture_output=True)
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*")}
    command += ["--replace"] if earlier else []
    dumb = f"local.AGENT = [{sys.executable!r}, '-c', 'import sys; sys.stdin.read()']"  # agents that never send hello
    command[2] = f"from tracebed.orchestrator.testbeds import local; {dumb}; {command[2]}"
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + GUARD_S
        while not list(tmp_path.glob("run.partial-*/spool/agents/n2.log")) or not both_run(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        process.send_signal(number)
        _, errors = process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
    first, _, rest = errors.partition("\n")
    assert first == "tracebed: at 1x this takes at least 2 s"  # the last job: submitted at 1 s, runs 1 s
    assert (process.returncode, rest) == (130, "\ntracebed: interrupted\n")
    assert {path: path.read_bytes() for path in (tmp_path / "run").glob("*")} == before
    assert working_folders(tmp_path) == []


def test_an_interrupt_before_the_first_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOOK_S", 0.001)
    run = replay(workload(3), virtual(2), "fcfs", tmp_path / "run", on_progress=lambda ended: interrupt())
    assert (run.info.state, run.info.interruptions) == ("interrupted", ["SIGINT"])
    assert set(run.jobs["state"]) == {"interrupted"} and run.jobs["submit"].isna().all()
    assert Run.load(tmp_path / "run").info.state == "interrupted"


def test_an_interrupt_while_ranks_are_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send = AgentTestbed.send

    def send_and_interrupt(self: AgentTestbed, node: int, message: dict[str, Any]) -> None:
        send(self, node, message)
        if message["type"] == "launch" and not message["leader"]:
            interrupt()

    monkeypatch.setattr(AgentTestbed, "send", send_and_interrupt)
    work = one_job(1e6, nodes=4, kind="rigid", nodes_max=4)
    run = replay(work, virtual(4), "fcfs", tmp_path / "run", **replaying(100.0))
    assert run.jobs["state"].tolist() == ["interrupted"]
    assert by_node(run)["node"].tolist() == [0, 1, 2, 3]
    assert Run.load(tmp_path / "run").info.interruptions == ["SIGINT"]


def test_an_interrupt_while_a_complete_run_is_saved_keeps_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Run.save

    def interrupt_and_save(self: Run, folder: Path, **journal: Any) -> Path:
        interrupt()
        return save(self, folder, **journal)

    monkeypatch.setattr(Run, "save", interrupt_and_save)
    with pytest.raises(KeyboardInterrupt):
        replay(workload(3), virtual(4), "fcfs", tmp_path / "run", **replaying(2000.0))
    run = Run.load(tmp_path / "run")
    assert run.info.state == "completed" and set(run.jobs["state"]) == {"completed"}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(("room", "begun"), [(8_000, False), (300_000, True)])
def test_a_journal_that_cannot_grow_ends_the_replay(tmp_path: Path, room: int, begun: bool) -> None:
    """A full disk gives one line of error, leaves no process, and keeps the journal readable up to that point."""
    command = write_case(tmp_path, 1e5)
    (tmp_path / "w.parquet").unlink()
    from tracebed.converters.formats.writing import write_workload

    write_workload(workload(400, nodes=2, malleable=0.0), tmp_path / "w.parquet")
    limit = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({room}, r.RLIM_INFINITY))"
    command[2] = f"{limit}; {command[2]}"
    done = subprocess.run([*command, "--speed", "3000"], cwd=tmp_path, capture_output=True, text=True, timeout=GUARD_S)
    assert done.returncode == 2, done.stderr
    first, *rest = done.stderr.splitlines()
    assert first.startswith("tracebed: at 3000x this takes at least ")
    said = [line for line in rest if not line.startswith("replaying")]
    assert len(said) == 1 and "journal.sqlite: cannot write the journal: " in said[0], done.stderr
    assert not (tmp_path / "run").exists()
    assert bool(working_folders(tmp_path)) is begun
    if begun:
        [left] = working_folders(tmp_path)
        assert f"tracebed replay --recover {left}" in said[0]
        run, _ = recover(left)
        _, entries = journal.read(left / JOURNAL)
        assert run.info.state == "interrupted"
        assert run.jobs["submit"].notna().sum() == sum(entry.kind == "submit" for entry in entries) > 0


def test_a_run_that_cannot_be_saved_keeps_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(writer: Any, table: Any, rows: int) -> None:
        raise OSError("error while writing: no space left on device")  # as pyarrow raises it: without errno

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
    with pytest.raises(InputError, match=r"while writing: no space left.*`tracebed replay --recover .*run\.partial-"):
        replay(workload(3), virtual(4), "fcfs", tmp_path / "run", **replaying(2000.0))
    [left] = working_folders(tmp_path)
    assert list(tmp_path.iterdir()) == [left]
    monkeypatch.undo()
    run, output = recover(left)
    assert run.info.state == "completed" and set(run.jobs["state"]) == {"completed"}
    assert output == tmp_path / "run" and Run.load(output).info.interruptions == []


@pytest.mark.parametrize("seed", range(5))
def test_overdue_jobs_are_killed_in_the_first_round_after_their_time(seed: int) -> None:
    """As in an obvious search of all running jobs in each round."""
    draw, now, killed = random.Random(seed), [0.0], list[int]()

    class Drawn(system.World):
        def monotonic(self) -> float:
            return now[0]

    jobs = list(range(60))
    running = {
        job: RunningJob([job, 100 + job], None, "", {}, started=job < 40, launched=draw.uniform(0.0, 20.0))  # type: ignore[arg-type]
        for job in draw.sample(jobs, 60)
    }
    ranks = SimpleNamespace(running=running, check_ended=lambda job: None)
    executor = SimpleNamespace(ranks=ranks, rounds=None, jobs=SimpleNamespace(ids=[]), record=None)
    executor.kill = lambda job, reason: killed.append(job)
    handler = event_handler.EventHandler(executor, None)  # type: ignore[arg-type]
    left, orphaned = jobs[:40], dict[int, float]()
    with system.using(Drawn()):
        while running:
            now[0] += draw.choice([0.0, 0.1, 1.0, 5.0, event_handler.OUTLIVE_S])
            for job in draw.sample(left, min(len(left), draw.choice([0, 1, 3]))):
                left.remove(job)
                orphaned[job] = now[0]
                ended = {"state": "completed", "leader": True, "reason": ""}
                handler._rank_ended(job, running[job], job, ended)
            for job in [job for job in orphaned if draw.random() < 0.1]:  # its other rank ends by itself
                del running[job], orphaned[job]
            expected = [
                job
                for job, active in running.items()
                if (job in orphaned and now[0] - orphaned[job] > event_handler.OUTLIVE_S)
                or (not active.started and now[0] - active.launched > event_handler.START_S)
            ]
            killed.clear()
            handler.end_overdue(now[0])
            assert killed == expected
            for job in expected:
                assert running.pop(job).started == (orphaned.pop(job, None) is not None)
