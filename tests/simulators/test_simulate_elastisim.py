"""ElastiSim: its output is read as runs, and tracebed drives it with its own policies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.fuzzing.fuzz import mutated
from tests.oracles import elastisim_programs as programs
from tests.patience import GUARD_S
from tracebed.api.runs import split
from tracebed.cli import tracebed
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.drivers.elastisim import outputs
from tracebed.drivers.elastisim.program import Invocation, MessageReason, Reply, decoded
from tracebed.drivers.elastisim.reader import Stages, read
from tracebed.ground.errors import ExitCode, InputError, TracebedError
from tracebed.machine.machine import Machine
from tracebed.machine.nodes import nodes_of
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.scheduler import PolicyError
from tracebed.orchestrator.scheduling.state import Cancel, Decision, Reject, Resize, Start, State
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.testing import check_executor
from tracebed.validation.simulators.simulator import ReadOptions, SimulateOptions, simulate

GRAIN_S = 100.0
MAIN = "import sys; from tracebed.cli import main; sys.exit(main())"
OVERHEADS = Overheads(
    launch_s=3.5, launch_join_s=2.25, launch_rank_s=0.5, end_s=1.125, end_rank_s=0.25, reconfiguration_s=4.0,
    expand_s=7.0, expand_rank_s=1.0, grain_s=GRAIN_S,
)  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the real program, or skip the test."""
    return programs.real(tmp_path_factory.mktemp("elastisim"))


def workload_of(*jobs: dict[str, Any], nodes: int = 4) -> Workload:
    """Return jobs with defaults: submitted at 0 s, 100 s on 2 nodes, rigid."""
    usual = {"submit_time": 0.0, "run_time": 100.0, "nodes": 2, "kind": "rigid"}
    table = pd.DataFrame([{"job_id": f"j{number}", **usual, **job} for number, job in enumerate(jobs)])
    for name in ("nodes_min", "nodes_max", "nodes_pref"):
        given = table[name] if name in table else pd.Series(np.nan, index=table.index)
        table[name] = given.fillna(table["nodes"]).astype(int)
    return Workload(table, Provenance(system=System(nodes, 1)))


def by_elastisim(workload: Workload, policy: str, program: Path, **options: Any) -> Run:
    own = workload.provenance.system
    usual = {"timeout_s": 300.0, "simulator_options": {"program": str(program)}}
    settings, given = split(usual | options, SimulateOptions, policy)
    return simulate("elastisim", workload, nodes_of(own), policy, SimulateOptions(**given), **settings)


def assert_same(workload: Workload, policy: str, program: Path, **options: Any) -> Run:
    """Check that both simulators make the same decisions at the same times, to 1 us; return ElastiSim's run."""
    theirs = by_elastisim(workload, policy, program, **options)
    ours = predict(workload, None, policy, **options)
    for table, times in (("jobs", ("submit", "start", "launched", "end")), ("reconfigurations", ("asked", "applied"))):
        mine, other = getattr(ours, table), getattr(theirs, table)
        assert len(mine) == len(other)
        for name in times:
            assert np.allclose(mine[name], other[name], rtol=0, atol=1e-6, equal_nan=True), name
    assert ours.jobs[["state", "reason"]].equals(theirs.jobs[["state", "reason"]])
    held = ["job_id", "node", "count"]
    key = ["job_id", "node", "start"]
    mine, other = (run.allocations.round({"start": 5}).sort_values(key)[held] for run in (ours, theirs))
    assert mine.reset_index(drop=True).equals(other.reset_index(drop=True))
    sizes = ["job_id", "kind", "nodes_from", "nodes_to", "state"]
    assert ours.reconfigurations[sizes].equals(theirs.reconfigurations[sizes])
    return theirs


# -- conformance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_job_alone_takes_exactly_its_run_time(program: Path, nodes: int) -> None:
    workload = workload_of({"submit_time": 12.0, "run_time": 1234.5678912, "nodes": nodes})
    run = by_elastisim(workload, "fcfs", program)
    assert run.jobs["start"].tolist() == [12.0]
    assert run.jobs["end"].tolist() == pytest.approx([12.0 + 1234.5678912], abs=1e-8)


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
@pytest.mark.parametrize("model", ["cirne", "lublin99"])
def test_rigid_jobs_start_as_in_our_simulator(program: Path, policy: str, model: str) -> None:
    assert_same(tb.generate(model, jobs=300, nodes=64, seed=2, load=0.95), policy, program)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs", "easy"])
@pytest.mark.parametrize("model", ["cirne", "lublin99"])
def test_a_thousand_rigid_jobs_start_as_in_our_simulator(program: Path, policy: str, model: str) -> None:
    assert_same(tb.generate(model, jobs=1000, nodes=128, seed=1, load=0.95), policy, program)


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_events_at_one_instant_are_one_call_of_the_policy(program: Path, policy: str) -> None:
    """With times in multiples of 100 s, many jobs end or are submitted at one instant."""
    drawn = tb.generate("cirne", jobs=200, nodes=32, seed=4, load=1.0)
    table = drawn.table.copy()
    for name in ("submit_time", "run_time", "time_limit"):
        table[name] = table[name].round(-2).clip(lower=0.0 if name == "submit_time" else 100.0)
    assert_same(Workload(table, drawn.provenance), policy, program)


@pytest.mark.parametrize("policy", ["pref", "min", "avg", "keep-pref", "dmr"])
def test_malleable_jobs_are_resized_as_in_our_simulator(program: Path, policy: str) -> None:
    drawn = tb.generate("lublin99", jobs=60, nodes=16, seed=2, load=0.9)
    workload = tb.make_malleable(drawn, share=0.6, seed=1)
    run = assert_same(workload, policy, program, overheads=Overheads(grain_s=GRAIN_S))
    assert (run.reconfigurations["state"] == "applied").sum() > 5


def test_overheads_last_as_long_as_in_our_simulator(program: Path) -> None:
    drawn = tb.generate("lublin99", jobs=60, nodes=16, seed=2, load=0.9)
    run = assert_same(tb.make_malleable(drawn, share=0.6, seed=1), "pref", program, overheads=OVERHEADS)
    assert (run.reconfigurations["state"] == "applied").sum() > 5
    assert run.info.warnings == ["60 jobs without a time limit: run time used as limit"]


def test_a_release_time_has_no_effect_which_is_a_warning(program: Path) -> None:
    workload = workload_of({}, {"submit_time": 1.0})
    runs = [by_elastisim(workload, "fcfs", program, overheads=Overheads(release_s=value)) for value in (0.0, 9.0)]
    assert runs[0].jobs.equals(runs[1].jobs)
    warning = "ElastiSim releases nodes at the scheduling point: release_s of the overheads has no effect"
    assert [warning in run.info.warnings for run in runs] == [False, True]


@pytest.mark.parametrize("over_limit", list(OverLimit))
def test_jobs_over_their_limit_end_as_in_our_simulator(program: Path, over_limit: OverLimit) -> None:
    workload = workload_of(
        {"time_limit": 40.5, "nodes": 3},
        {"time_limit": 100.0, "submit_time": 1.0},
        {"time_limit": 30.0, "submit_time": 2.0, "run_time": 20.0, "nodes": 1},
        {"time_limit": 99.75, "submit_time": 3.0, "nodes": 4},
    )
    run = assert_same(workload, "easy", program, over_limit=over_limit)
    assert run.info.counts.get("killed", 0) == (2 if over_limit is OverLimit.KILL else 0)


def test_the_policy_is_called_at_multiples_of_the_interval(program: Path) -> None:
    workload = workload_of({"submit_time": 125.0}, {"submit_time": 131.0, "nodes": 4}, {"submit_time": 140.0})
    run = assert_same(workload, "easy", program, interval_s=60.0)
    assert run.jobs["start"].tolist() == [180.0, 300.0, 180.0]
    assert_same(workload, "conservative", program, interval_s=60.0, policy_parameters={"backfill_interval_s": 120})


def test_jobs_larger_than_the_machine_are_rejected_and_times_keep_their_origin(program: Path) -> None:
    workload = workload_of({"submit_time": 7.0, "nodes": 9}, {"submit_time": 1e9, "run_time": 0.25}, nodes=4)
    run = assert_same(workload, "easy", program)
    assert run.jobs["state"].tolist() == ["rejected", "completed"]
    alone = assert_same(workload_of({"nodes": 9}), "easy", program)  # ElastiSim has nothing to do
    assert alone.jobs["state"].tolist() == ["rejected"]


# -- policies with other decisions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selective:
    """Start jobs of user a, reject those of user b, cancel those of user c when another job arrives, ignore others."""

    malleable: ClassVar[bool] = True

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the decisions."""
        user = state.jobs.user
        for job in list(state.size):
            if user[job] == "c" and state.arrived:
                yield Cancel(job, "another job arrived")
        for job in state.queue.jobs():
            if user[job] == "b":
                yield Reject(job, "of user b")
            elif user[job] in ("a", "c") and state.jobs.nodes[job] <= state.idle:
                yield Start(job, state.jobs.nodes[job])


@dataclass(frozen=True)
class Impossible:
    """Resize a job that is not malleable."""

    malleable: ClassVar[bool] = True

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield an impossible decision."""
        for job in state.queue.jobs():
            yield Start(job, 2)
            yield Resize(job, 3)


@pytest.fixture
def policy_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a policy class known by the name `special`."""

    def register(policy: type) -> str:
        resolve = registry.resolve
        monkeypatch.setattr(
            registry, "resolve", lambda _, given=None, **more: ("special", resolve(policy, given, **more)[1])
        )
        return "special"

    return register


def test_rejected_cancelled_and_never_started_jobs_end_the_simulation(program: Path, policy_of: Any) -> None:
    workload = workload_of(
        {"user": "c", "nodes": 4},
        {"user": "b", "submit_time": 10.0},
        {"user": "a", "submit_time": 20.0},
        {"user": "d", "submit_time": 30.0},
    )
    run = assert_same(workload, policy_of(Selective), program)
    assert run.jobs["state"].tolist() == ["cancelled", "rejected", "completed", "unknown"]
    assert run.jobs["reason"].tolist()[3] == "the policy never started it"


def test_an_impossible_decision_is_an_error_and_ends_the_program(
    program: Path, policy_of: Any, no_process_is_left: None
) -> None:
    with pytest.raises(PolicyError, match="is not a running malleable job"):
        by_elastisim(workload_of({}), policy_of(Impossible), program)


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("sd", {}, "lets jobs share nodes, which ElastiSim cannot do"),
        ("conservative", {"policy_parameters": {"backfill_interval_s": 30}}, "give a scheduling interval"),
        ("easy", {"seed": 3}, "simulator elastisim does not support seed"),
        ("easy", {"simulator_options": {"iteration": "3"}}, "elastisim has no option 'iteration'"),
    ],
)
def test_what_elastisim_cannot_do_is_refused(program: Path, policy: str, options: dict[str, Any], message: str) -> None:
    given = {"program": str(program)} | options.pop("simulator_options", {})
    with pytest.raises(InputError, match=message):
        by_elastisim(
            workload_of({}, {"submit_time": 1.0, "nodes": 4}), policy, program, **options, simulator_options=given
        )


# -- failures of the program -------------------------------------------------------------------------------------------

FAILURES = {
    "deadlock": ("print('Oops! Deadlock detected, some activities are still around')", "detected a deadlock"),
    "crash": ("sys.exit('ZMQ communication failed')", "ended early with status 1: ZMQ communication failed"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "ended early with status -9, without a message"),
    "library": ("sys.exit('libsimgrid.so: cannot open shared library')", "apt-get install libsimgrid3.32 libzmq5"),
    "empty": ("invoke(1, 0.0, 0)\nfinish('')", "job_statistics.csv: is empty: ElastiSim did not finish"),
    "no rows": ("invoke(1, 0.0, 0)\nfinish(HEADER)", "has no rows: ElastiSim did not finish"),
    "half": ("invoke(1, 0.0, 0)\nfinish(HEADER + '0,rigid,0,0,100,0,100,100,completed\\n')", "has 1 of 2 jobs"),
    "other times": (
        "invoke(1, 0.0, 0), invoke(1, 1.0, 1), invoke(2, 100.0, 0), invoke(2, 101.0, 1)\n"
        "finish(HEADER + '0,rigid,0,0,100,0,100,100,completed\\n1,rigid,1,1,105,0,104,104,completed\\n')",
        "end of job 1 is 105 s, but 101 s in the messages of ElastiSim",
    ),
    "nonsense": ("socket.send(b'hello')\nsocket.recv()", "ElastiSim sent an unknown message: hello"),
}


@pytest.mark.usefixtures("no_process_is_left")
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_of_the_program_is_a_clear_error(name: str, tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    body, message = FAILURES[name]
    with pytest.raises(InputError) as caught:
        by_elastisim(workload_of({}, {"submit_time": 1.0}), "easy", programs.fake(tmp_path, body))
    assert message in str(caught.value)


@pytest.mark.usefixtures("no_process_is_left")
def test_a_silent_program_is_stopped_after_the_time_limit(tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    silent = programs.fake(tmp_path, "invoke(1, 0.0, 0)\nos.fork()\ntime.sleep(3600)")
    with pytest.raises(InputError, match=r"did not finish within 4 s: 0 of 2 jobs had ended, and its last message was"):
        by_elastisim(workload_of({}, {"submit_time": 1.0}), "easy", silent, timeout_s=4.0)


def test_a_missing_program_is_an_error_that_names_the_ways_to_give_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TRACEBED_ELASTISIM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for options, named in (({}, "elastisim"), ({"program": "./none"}, "./none")):
        with pytest.raises(InputError, match=rf"is not found: {named} \(install ElastiSim, and give program=FILE"):
            by_elastisim(workload_of({}), "easy", tmp_path, simulator_options=options)
    monkeypatch.setenv("TRACEBED_ELASTISIM", str(tmp_path / "other"))
    with pytest.raises(InputError, match=r"is not found: .*other"):
        by_elastisim(workload_of({}), "easy", tmp_path, simulator_options={})


# -- protocol ----------------------------------------------------------------------------------------------------------


def test_messages_are_read_and_replies_kill_before_they_start() -> None:
    message = json.dumps({"code": 0xFFEC4400, "invocation_type": 4, "time": 1.5, "job_id": 7})
    assert decoded(message.encode()) == Invocation(MessageReason.SCHEDULING_POINT, 1.5, 7)
    assert decoded(json.dumps({"code": 0xFFEC44FF}).encode()) is None
    reply = Reply(kills=[3], nodes={1: [0, 2], 3: [1]}).encoded().decode()
    assert reply.index('"id": 3') < reply.index('"id": 1')
    assert reply.count('"id"') == 2


@pytest.mark.parametrize("message", [b"", b"[]", b"{}", b'{"code": 4293673984, "invocation_type": 9, "time": 0}'])
def test_an_unknown_message_is_an_error(message: bytes) -> None:
    with pytest.raises(InputError, match="ElastiSim sent an unknown message"):
        decoded(message)


# -- the command -------------------------------------------------------------------------------------------------------


def command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(tracebed, arguments)
    if isinstance(result.exception, TracebedError):
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.output


def test_the_command_simulates_and_keeps_the_files(program: Path, tmp_path: Path) -> None:
    tb.write(tb.generate("cirne", jobs=20, nodes=8, seed=1), tmp_path / "w.parquet")
    words = ["simulate", str(tmp_path / "w.parquet"), "--policy", "easy", "--nodes", "8"]
    kept = tmp_path / "kept"
    words_of_elastisim = [*words, "--with", f"elastisim,program={program},keep={kept}"]
    code, text = command(*words_of_elastisim, "-o", str(tmp_path / "es"))
    assert code == 0, text
    before = {path: path.read_bytes() for path in kept.iterdir()}
    code, text = command(*words_of_elastisim, "-o", str(tmp_path / "again"))
    assert (code, "kept: exists: a folder of ElastiSim" in text) == (ExitCode.USAGE, True)
    assert {path: path.read_bytes() for path in kept.iterdir()} == before
    code, text = command(*words_of_elastisim, "-o", str(tmp_path / "es"), "--replace")
    assert code == 0, text
    assert {"job_statistics.csv", "jobs.json", "elastisim.log"} <= {path.name for path in kept.iterdir()}
    assert command(*words, "-o", str(tmp_path / "own"))[0] == 0
    theirs, ours = Run.load(tmp_path / "es"), Run.load(tmp_path / "own")
    assert theirs.info.source == "elastisim"
    assert theirs.info.parameters["scheduler"] == "tracebed"  # a verdict says that the same code decided
    assert not theirs.info.is_real
    assert np.allclose(theirs.jobs["start"], ours.jobs["start"], rtol=0, atol=1e-6)


def test_elastisim_passes_the_check_of_executors(program: Path) -> None:
    options = SimulateOptions(name="mine", simulator_options={"program": str(program)})
    work = workload_of({}, {"nodes": 3}, {"nodes": 9})
    check_executor("elastisim", work, Machine.of_system(work.provenance.system), Setup.of("easy"), options)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--with", "elastisim,time=5"], "time"),
        (
            ["--with", "elastisim", "--engine", "python"],
            "engine is an option of tracebed's simulator",
        ),
        (["--with", "elastisym"], "unknown simulator 'elastisym' (did you mean elastisim?"),
        (["--with", "csv"], "simulator csv has no driver"),
    ],
)
def test_the_command_refuses_options_that_do_not_apply(words: list[str], message: str, tmp_path: Path) -> None:
    tb.write(tb.generate("cirne", jobs=5, nodes=8, seed=1), tmp_path / "w.parquet")
    code, text = command(
        "simulate", str(tmp_path / "w.parquet"), "--policy", "easy", "--nodes", "8", *words, "-o", str(tmp_path / "r")
    )
    assert code == 2
    assert message in text


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Return an empty folder with a path that is short enough for sockets in it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.usefixtures("no_process_is_left")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_program_and_removes_its_files(number: int, tmp_path: Path, scratch: Path) -> None:
    pytest.importorskip("zmq")
    tb.write(tb.generate("cirne", jobs=5, nodes=8, seed=1), tmp_path / "w.parquet")
    silent = programs.fake(tmp_path, "open(os.environ['STARTED'], 'w')\ntime.sleep(3600)")
    words = ["simulate", str(tmp_path / "w.parquet"), "--policy", "easy", "--nodes", "8", "-o", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *words, "--with", f"elastisim,program={silent}"],
        env={**os.environ, "TMPDIR": str(scratch), "STARTED": str(tmp_path / "started")},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + GUARD_S
    while not (tmp_path / "started").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    status = process.wait(GUARD_S)
    assert not (tmp_path / "run").exists()
    if number != signal.SIGKILL:  # after SIGKILL only the program is gone
        assert status == 130
        assert list(scratch.iterdir()) == []


def test_a_long_path_of_the_temporary_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zmq")
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(InputError, match=r"too long for a socket \(set TMPDIR"):
        by_elastisim(workload_of({}), "easy", programs.fake(tmp_path, "pass"))


def test_without_pyzmq_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(InputError, match="pip install pyzmq"):
        by_elastisim(workload_of({}), "easy", programs.fake(tmp_path, "pass"))


# The output of ElastiSim, read as runs.

# ElastiSim 26c03fb, run by tracebed under `pref`: overheads of 2 s (launch) and 5 s (reconfiguration), a grain of 40 s.
STATISTICS = """ID,Type,Submit Time,Start Time,End Time,Wait Time,Makespan,Turnaround Time,Status
0,malleable,0,0,252,0,252,252,completed
1,rigid,100.25,102,154.125,1.75,52.125,53.875,completed
2,rigid,100.75,252,554,151.25,302,453.25,completed
"""
CHANGES = {
    "0": "node_0,free,none;node_1,free,none;node_2,free,none;node_3,free,none;"
    "node_0,allocated,0;node_1,allocated,0;node_2,allocated,0;node_3,allocated,0",
    "102": "node_2,free,none;node_3,free,none;node_2,allocated,1;node_3,allocated,1",
    "154.125": "node_2,free,none;node_3,free,none",
    "187": "node_2,allocated,0;node_3,allocated,0",
    "252": "node_0,free,none;node_1,free,none;node_2,free,none;node_3,free,none;"
    "node_0,allocated,2;node_1,allocated,2;node_2,allocated,2;node_3,allocated,2",
    "554": "node_0,free,none;node_1,free,none;node_2,free,none;node_3,free,none",
}
UTILIZATION = "Time,Node,State,Running jobs,Expected jobs\n" + "".join(
    f"{time},{change},none\n" for time, changes in CHANGES.items() for change in changes.split(";")
)
TASKS = """Time,Job,Node,Task,Duration
2,0,node_0,launch,2
2,0,node_1,launch,2
102,0,node_0,run,20
104,1,node_2,launch,2
107,0,node_0,reconfiguration,5
107,0,node_1,reconfiguration,5
192,0,node_0,reconfiguration,5
192,0,node_2,reconfiguration,5
254,2,node_0,launch,2
554,2,node_3,run,300
"""
MODEL = {
    "phases": [{"iterations": "iterations", "tasks": [{"type": "busy_wait", "name": "run"}]}],
    "on_init": {"tasks": [{"type": "busy_wait", "name": "launch"}]},
    "on_reconfiguration": {"tasks": [{"type": "busy_wait", "name": "reconfiguration"}]},
}
FILES = {
    "job_statistics.csv": STATISTICS,
    "node_utilization.csv": UTILIZATION,
    "task_times.csv": TASKS,
    "jobs.json": json.dumps({"jobs": [{"application_model": "application.json"}] * 3}),
    "application.json": json.dumps(MODEL),
    "mapping.csv": "id,job_id\n0,a\n1,b\n2,c\n",
}
FIRST = 1_000_000.25
"""Submit time of the first job, s: ElastiSim's time 0."""


def jobs_of(*jobs: dict[str, Any], nodes: int = 4) -> Workload:
    table = pd.DataFrame([{"nodes": 2, "run_time": 100.0, "kind": "rigid", **job} for job in jobs])
    for name in ("nodes_min", "nodes_max", "nodes_pref"):
        table[name] = table["nodes"] if name not in table else table[name].fillna(table["nodes"]).astype(int)
    return Workload(table, Provenance(system=System(nodes, 2)))


WORKLOAD = jobs_of(
    {"job_id": "a", "submit_time": FIRST, "run_time": 400.0, "kind": "malleable", "nodes_min": 1, "nodes_max": 4},
    {"job_id": "b", "submit_time": 1_000_100.5, "run_time": 50.125},
    {"job_id": "c", "submit_time": 1_000_101.0, "run_time": 300.0, "nodes": 4},
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the recorded files, some of them changed or left out (None)."""

    def files(**changes: str | None) -> Path:
        for name, text in FILES.items():
            text = changes.get(name.partition(".")[0], text)
            (tmp_path / name).unlink(missing_ok=True)
            if text is not None:
                (tmp_path / name).write_text(text)
        return tmp_path

    return files


def saved(run: Run, folder: Path) -> Run:
    """Return the run as it is read again, with all checks."""
    return Run.load(run.save(folder / "run"))


# -- what is read ------------------------------------------------------------------------------------------------------


def test_a_recorded_output_is_read_with_exact_times_nodes_and_resizes(write: Callable[..., Path]) -> None:
    folder = write()
    run = saved(read(folder, WORKLOAD, ReadOptions(policy="pref")), folder)
    jobs = run.jobs
    assert jobs["job_id"].tolist() == ["a", "b", "c"]
    assert jobs["submit"].tolist() == WORKLOAD.table["submit_time"].tolist()
    assert jobs["start"].tolist() == [FIRST, 1_000_102.25, 1_000_252.25]
    assert jobs["launched"].tolist() == [FIRST + 2, FIRST + 104, FIRST + 254]
    assert jobs["end"].tolist() == [1_000_252.25, 1_000_154.375, 1_000_554.25]
    assert jobs["state"].tolist() == ["completed"] * 3
    assert (run.info.source, run.info.execution, run.info.policy) == ("elastisim", "simulated", "pref")
    assert [node.name for node in run.info.nodes] == ["node_0", "node_1", "node_2", "node_3"]
    assert {node.cores for node in run.info.nodes} == {2}
    assert run.info.unknown == {}
    held = run.allocations.assign(start=run.allocations["start"] - FIRST, end=run.allocations["end"] - FIRST)
    assert held[["job_id", "node", "count", "start", "end"]].to_numpy().tolist() == [
        ["a", 0, 2, 0.0, 252.0],
        ["a", 2, 2, 0.0, 102.0],
        ["b", 2, 2, 102.0, 154.125],
        ["a", 2, 2, 187.0, 252.0],
        ["c", 0, 4, 252.0, 554.0],
    ]
    changes = run.reconfigurations
    assert changes[["job_id", "kind", "nodes_from", "nodes_to", "state"]].to_numpy().tolist() == [
        ["a", "shrink", 4, 2, "applied"],
        ["a", "expand", 2, 4, "applied"],
    ]
    assert changes["asked"].isna().all()  # ElastiSim does not print the time of the decision
    assert (changes["decided"] - FIRST).tolist() == [102.0, 187.0]
    assert (changes["applied"] - FIRST).tolist() == [107.0, 192.0]
    assert (changes["ended"] - FIRST).tolist() == [107.0, 192.0]


def test_the_stages_are_unknown_without_task_times(write: Callable[..., Path]) -> None:
    run = read(write(task_times=None), WORKLOAD, ReadOptions())
    assert run.jobs["launched"].isna().all()
    assert (run.reconfigurations["applied"] - FIRST).tolist() == [102.0, 187.0]


def test_the_nodes_of_malleable_jobs_are_unknown_without_node_utilization(write: Callable[..., Path]) -> None:
    folder = write(node_utilization=None)
    run = saved(read(folder / "job_statistics.csv", WORKLOAD, ReadOptions()), folder)
    assert set(run.info.unknown) == {"allocations", "reconfigurations"}
    assert np.isnan(tb.metrics(run).loc["utilization"].iloc[-1])
    assert run.jobs["start"].tolist() == [FIRST, 1_000_102.25, 1_000_252.25]


def test_a_run_without_a_workload_has_the_jobs_of_the_file(write: Callable[..., Path]) -> None:
    run = read(write(mapping=None), None, ReadOptions())
    assert run.jobs["job_id"].tolist() == ["0", "1", "2"]
    assert run.jobs["submit"].tolist() == [0.0, 100.25, 100.75]
    assert run.jobs["nodes"].tolist() == [4, 2, 4]
    assert run.jobs["run_time"].fillna(-1).tolist() == [-1, 52.125, 302.0]  # job 0 was resized


def test_jobs_are_numbered_by_submit_time_unless_a_mapping_says_otherwise(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    without = read(write(mapping=None), WORKLOAD, ReadOptions())
    assert without.jobs.equals(read(write(), WORKLOAD, ReadOptions()).jobs)
    more = Workload(
        pd.concat([WORKLOAD.table.head(1).assign(job_id="zero", run_time=np.nan, submit_time=7.0), WORKLOAD.table]),
        WORKLOAD.provenance,
    )  # the export leaves out jobs without a run time
    run = read(write(mapping=None), more, ReadOptions())
    assert run.jobs["state"].tolist() == ["unknown", *["completed"] * 3]
    assert run.jobs["start"].tolist()[1:] == without.jobs["start"].tolist()
    (tmp_path / "map.txt").write_text("0 a\n1 c\n2 b\n")
    with pytest.raises(InputError, match=r"job 1 was submitted at 100.25 s, but job 'c' of the workload at"):
        read(write(), WORKLOAD, ReadOptions(mapping=tmp_path / "map.txt"))
    (tmp_path / "map.txt").write_text("0 a\n1 b\n")
    with pytest.raises(InputError, match=r"lacks job 2 of job_statistics\.csv"):
        read(write(), WORKLOAD, ReadOptions(mapping=tmp_path / "map.txt"))


def test_tiny_negative_waits_are_zero_and_jobs_killed_before_their_start_are_cancelled(
    write: Callable[..., Path],
) -> None:
    text = STATISTICS.replace("0,0,252,0,252,252,completed", "0,0,252,-1.02318e-12,252,252,killed")
    text = text.replace("252,554,151.25,302,453.25,completed", "-1,150,-1,151,49.25,killed")
    nodes = UTILIZATION.replace(",allocated,2,", ",free,none,")
    folder = write(job_statistics=text, node_utilization=nodes)
    jobs = saved(read(folder, WORKLOAD, ReadOptions()), folder).jobs
    assert jobs["start"].tolist()[:2] == [FIRST, 1_000_102.25]
    assert jobs["state"].tolist() == ["killed", "completed", "cancelled"]
    assert np.isnan(jobs["start"][2])
    late = STATISTICS.replace("1,rigid,100.25,102,154.125,1.75", "1,rigid,100.25,98,154.125,-2.25")
    with pytest.raises(InputError, match=r"starts 2.25 s before its submission"):
        read(write(job_statistics=late, node_utilization=None), WORKLOAD, ReadOptions())


def test_several_jobs_on_a_node_are_held_apart(write: Callable[..., Path]) -> None:
    """With `allow_oversubscription`, a node lists its jobs separated by semicolons."""
    text = (
        "Time,Node,State,Running jobs,Expected jobs\n0,n,free,none,none\n0,n,allocated,0,none\n"
        "102,n,allocated,0;1,none\n"
        "154.125,n,allocated,0,none\n252,n,allocated,2,none\n554,n,free,none,none\n"
    )
    run = read(write(node_utilization=text), None, ReadOptions())
    held = run.allocations.set_index("job_id")
    assert held["start"].to_dict() == {"a": 0.0, "b": 102.0, "c": 252.0}
    assert held["end"].to_dict() == {"a": 252.0, "b": 154.125, "c": 554.0}


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"job_statistics": ""}, "is empty: ElastiSim did not finish"),
        ({"job_statistics": STATISTICS.partition("\n")[0]}, "has no rows: ElastiSim did not finish"),
        ({"job_statistics": "a,b\n1,2\n"}, "lacks column 'ID'"),
        ({"mapping": "0," + 2**18 * "a" + "\n"}, "mapping.csv: is not CSV: field larger than field limit"),
        ({"job_statistics": STATISTICS.replace("151.25", "1e")}, "job_statistics.csv:4: wait is '1e', not a number"),
        (
            {"job_statistics": STATISTICS.replace("1,rigid", "7,rigid")},
            "lacks job 1: ElastiSim numbers the jobs",
        ),
        ({"job_statistics": STATISTICS.replace("454,completed", "x")[:-10] + "\n"}, "status of job 2 is"),
        ({"job_statistics": STATISTICS.replace("100.25", "500")}, "job 1 was submitted at 500 s, but job 'b'"),
        ({"mapping": "id,job_id\n0,a\n1,b\n2,d\n"}, "job 'd' is not in the workload"),
        ({"node_utilization": UTILIZATION.replace(",2,none", ",9,none")}, "has job 9, which is not in the statistics"),
        ({"node_utilization": UTILIZATION.replace(",2,none", ",none,none")}, "has no nodes of job 2"),
        ({"node_utilization": UTILIZATION.replace(",2,none", ",x,none")}, "running jobs are 'x'"),
        ({"node_utilization": ""}, "node_utilization.csv: is empty"),
        ({"task_times": "Time,Job\n1,2\n"}, "task_times.csv: lacks column 'Node'"),
    ],
)
def test_damaged_files_are_refused(write: Callable[..., Path], changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(write(**changes), WORKLOAD, ReadOptions())
    assert message in str(caught.value)


def test_another_number_of_jobs_is_refused(write: Callable[..., Path]) -> None:
    two = Workload(WORKLOAD.table.head(2), WORKLOAD.provenance)
    with pytest.raises(InputError, match="has 3 jobs, the workload has 2 with a run time and nodes"):
        read(write(mapping=None), two, ReadOptions())


@pytest.mark.parametrize("name", ["job_statistics.csv", "node_utilization.csv", "task_times.csv", "jobs.json"])
@given(data=st.data())
def test_mutated_files_are_read_or_refused(name: str, data: st.DataObject) -> None:
    damaged = data.draw(mutated(FILES[name].encode()))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        for other, text in FILES.items():
            Path(folder, other).write_text(text)
        Path(folder, name).write_bytes(damaged)
        with contextlib.suppress(InputError):
            read(Path(folder), WORKLOAD, ReadOptions()).save(Path(folder, "run"))
            Run.load(Path(folder, "run"))


# -- real outputs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["reconf", "epoch", "walltime", "unsorted", "minint_ctl"])
def test_real_outputs_become_runs(reference_data: Callable[[str], Path], case: str, tmp_path: Path) -> None:
    folder = reference_data(f"elastisim/edge/{case}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        workload = tb.read(folder / "jobs.json")
    run = saved(read(folder, workload, ReadOptions()), tmp_path)
    printed = outputs.statistics(folder / "job_statistics.csv")
    assert (run.jobs["end"] - run.jobs["start"]).tolist() == pytest.approx(printed["makespan"].tolist(), abs=1e-9)
    assert run.total_nodes == 8
    busy = (run.allocations["count"] * (run.allocations["end"] - run.allocations["start"])).groupby(
        run.allocations["job_id"]
    )
    if case == "epoch":  # all submit times print alike, and the runs overlap
        assert (run.jobs["submit"] - run.jobs["submit"][0]).tolist() == [0.0, 7.0, 14.0]
        assert busy.sum().tolist() == [222.0] * 3
    if case == "walltime":
        assert run.jobs["state"].tolist() == ["completed", "killed"]
    if case == "unsorted":
        assert run.jobs["submit"].is_monotonic_increasing
    if case == "reconf":
        assert run.reconfigurations[["nodes_from", "nodes_to"]].to_numpy().tolist() == [[2, 6], [6, 2]]
        assert run.reconfigurations["applied"].tolist() == [160.0, 213.333]
        assert run.jobs["launched"].tolist() == [10.0, 10.0, 423.333]
        assert busy.sum()["1"] == pytest.approx(2 * 110 + 6 * 83.333 + 2 * 220, abs=0.01)


def test_a_deadlock_leaves_an_empty_file(reference_data: Callable[[str], Path]) -> None:
    with pytest.raises(InputError, match="is empty: ElastiSim did not finish"):
        read(reference_data("elastisim/edge/toolarge"), None, ReadOptions())


def test_a_large_real_output_is_complete(reference_data: Callable[[str], Path], tmp_path: Path) -> None:
    path = reference_data("elastisim/example500/job_statistics.csv")
    run = saved(read(path, None, ReadOptions()), tmp_path)
    assert (len(run.jobs), run.total_nodes, len(run.reconfigurations)) == (500, 128, 286)
    assert set(run.jobs["kind"]) == {"rigid", "moldable", "malleable", "evolving"}
    assert (run.jobs["start"] >= run.jobs["submit"]).all()
    assert tb.metrics(run).loc["utilization"].iloc[-1] > 0.5


# -- round trip with the real program ----------------------------------------------------------------------------------


def test_the_files_of_a_simulation_give_the_run_of_its_messages(tmp_path: Path) -> None:
    """The driver has exact times from the messages; the reader rebuilds them from six digits."""
    program = programs.real(tmp_path)
    drawn = tb.generate("lublin99", jobs=50, nodes=16, seed=3, load=0.9)
    table = drawn.table.assign(submit_time=drawn.table["submit_time"] + 5e6)
    workload = tb.make_malleable(Workload(table, drawn.provenance), share=0.5, seed=1)
    options = SimulateOptions(keep=tmp_path / "kept", simulator_options={"program": str(program)})
    nodes = nodes_of(workload.provenance.system)
    exact = simulate("elastisim", workload, nodes, "pref", options, malleability_interval_s=60)
    found = saved(read(tmp_path / "kept", workload, ReadOptions()), tmp_path)
    resolution = found.info.resolution_s
    for name in ("submit", "start", "end"):
        assert np.allclose(found.jobs[name], exact.jobs[name], rtol=0, atol=resolution), name
    assert found.jobs["state"].equals(exact.jobs["state"])
    resized = ["job_id", "kind", "nodes_from", "nodes_to"]
    applied = exact.reconfigurations[exact.reconfigurations["state"] == "applied"]
    assert len(applied) > 3
    ours, theirs = (
        rows.sort_values(["job_id", "applied"], ignore_index=True) for rows in (applied, found.reconfigurations)
    )
    assert ours[resized].equals(theirs[resized])
    assert np.allclose(ours["applied"], theirs["applied"], rtol=0, atol=max(resolution, 1.0))


def test_the_command_imports_an_output(write: Callable[..., Path], tmp_path: Path) -> None:
    tb.write(WORKLOAD, tmp_path / "w.parquet")
    words = ["import", str(write()), "--from", "elastisim", "--workload", str(tmp_path / "w.parquet")]
    result = CliRunner().invoke(tracebed, [*words, "--as", "predicted", "-o", str(tmp_path / "es")])
    assert not isinstance(result.exception, TracebedError), result.exception
    assert result.exit_code == 0, result.output
    assert Run.load(tmp_path / "es").jobs["start"].tolist() == [FIRST, 1_000_102.25, 1_000_252.25]


@pytest.mark.parametrize("value", [5, "x", {"a": 1}, [7], None, [{"tasks": 3}]])
@pytest.mark.parametrize("key", ["jobs", "on_init"])
def test_no_value_of_a_wrong_kind_in_the_files_of_jobs_ends_the_import(tmp_path: Path, key: str, value: object) -> None:
    model = {"on_init": value if key == "on_init" else [], "phases": value}
    jobs = value if key == "jobs" else [{"application_model": "model.json"}]
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    (tmp_path / "model.json").write_text(json.dumps(model))
    assert np.isnan(Stages(tmp_path).launched(2, 0.0)).all()
