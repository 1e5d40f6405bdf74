"""The driver of ElastiSim: the schedules of tracebed's simulator, and clear errors when ElastiSim fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import tracebed.api as tb
from tests.oracles import elastisim_programs as programs
from tests.patience import GUARD_S
from tracebed.api.runs import split
from tracebed.cli import tracebed
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.drivers.elastisim.program import Invocation, MessageReason, Reply, decoded
from tracebed.ground.errors import ExitCode, InputError, TracebedError
from tracebed.machine.nodes import nodes_of
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.scheduler import PolicyError
from tracebed.orchestrator.scheduling.state import Cancel, Decision, Reject, Resize, Start, State
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.simulators.simulator import SimulateOptions, simulate

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
    settings, given = split(usual | options, SimulateOptions)
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
    for given, named in (({}, "elastisim"), ({"program": "./none"}, "./none")):
        with pytest.raises(InputError, match=rf"is not found: {named} \(install ElastiSim, and give program=FILE"):
            by_elastisim(workload_of({}), "easy", tmp_path, simulator_options=given)
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--with", "elastisim,time=5"], "is not one of"),
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
