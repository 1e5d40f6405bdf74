"""Replays on virtual nodes, as a user meets them: settings, faults, signals, resumption, and what is refused."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from tests.patience import GUARD_S, until
from tracebed.cli import tracebed
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import ExitCode, TracebedError
from tracebed.orchestrator.replay.session import BEGINS_AGAIN
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.dependencies import Arrivals
from tracebed.testing.virtual.faults import OUTAGES, OUTAGES_S, drawn_outages
from tracebed.testing.virtual.kernel import PREFIX, SHARED
from tracebed.validation.fitting.cases import _check_real

Tracebed = Callable[..., Result]

GROUP = {"provider": "virtual", "nodes": [{"name": "v[1-4]", "cores": 2, "emulated": True}]}


def inventory(folder: Path, *others: dict[str, object], heartbeat_s: float = 5.0, **settings: object) -> str:
    """Write an inventory of four virtual nodes and other groups, and return its path."""
    groups = {"nodes": {**GROUP, **settings}, **{f"g{number}": group for number, group in enumerate(others)}}
    path = folder / "nodes.yaml"
    path.write_text(json.dumps({"name": "rehearsal", "heartbeat_s": heartbeat_s, "groups": groups}))
    return str(path)


def write_jobs(path: Path, jobs: int, run_time: float) -> None:
    """Write a workload of jobs of 1 to 3 nodes, one each 1,000 s."""
    numbers = range(jobs)
    table = {"job_id": [f"j{number}" for number in numbers], "submit_time": [1000.0 * number for number in numbers]}
    table |= {"run_time": run_time, "time_limit": 2 * run_time, "nodes": [1 + number % 3 for number in numbers]}
    table |= {"cores_per_node": 2}
    write_workload(Workload(pd.DataFrame(table), Provenance(system=System(4, 2, "tiny"))), path)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracebed:
    """Return a function that runs a command in a folder with the workload w.parquet."""
    monkeypatch.chdir(tmp_path)
    write_jobs(tmp_path / "w.parquet", 20, 1500.0)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(tracebed, list(arguments), standalone_mode=False)


def replay(run: Tracebed, *more: str, nodes: str, output: str = "real", speed: str = "1000") -> Result:
    return run("replay", "w.parquet", "--policy", "easy", "--inventory", nodes, "--speed", speed, "-o", output, *more)


def test_a_virtual_replay_says_that_it_is_virtual(run: Tracebed, tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    result = replay(run, nodes=inventory(tmp_path))
    assert result.exception is None, result.output
    assert "at 1000x the virtual nodes run for at least 20" in result.output
    assert [line.split() for line in result.output.splitlines() if line.startswith("execution")] == [
        ["execution", "virtual"]
    ]
    info = Run.load(tmp_path / "real").info
    assert (info.source, info.execution, info.parameters["testbed"]) == ("virtual", "virtual", "virtual")
    assert {(host["cpu"], host["kernel"], host["machine"]) for host in info.hosts} == {("virtual",) * 3}
    assert info.created is not None and before <= datetime.fromisoformat(info.created) <= datetime.now(UTC)
    assert info.counts == {"jobs": 20, "completed": 20} and info.health["state"] == "healthy"
    assert "warning: real is a replay on virtual nodes, not a real run" in run("metrics", "real").output


def test_a_virtual_replay_is_compared_as_a_prediction_only(run: Tracebed, tmp_path: Path) -> None:
    replay(run, nodes=inventory(tmp_path), output="virtual")
    assert run("simulate", "w.parquet", "--policy", "easy", "-o", "sim").exception is None
    refused = run("compare", "--real", "virtual", "--predicted", "sim").exception
    assert isinstance(refused, TracebedError)
    assert "the run given as real is a virtual replay" in str(refused)
    noise = run("metrics", "--noise", "noise.yaml", "virtual").exception
    assert "is a virtual replay" in str(noise)
    with pytest.raises(TracebedError, match="the run is a virtual replay"):
        _check_real({"virtual": Run.load("virtual")})
    assert "is a virtual replay" in str(run("explain", "w.parquet", "--real", "virtual").exception)


def test_faults_are_drawn_by_the_mean_time_between_them() -> None:
    names = [f"v{number}" for number in range(100)]
    month = 30 * 86400.0
    found = drawn_outages("1", names, 200 * 3600.0, month, 1000.0)
    assert found == drawn_outages("1", names, 200 * 3600.0, month, 1000.0) != drawn_outages("2", names, 1e6, month, 1e3)
    assert 300 < len(found) < 420  # 720 h / 200 h of 100 nodes
    assert {fault.kind for fault in found} == set(OUTAGES)
    assert all(0 <= fault.at < month / 1000 for fault in found)
    assert all(OUTAGES_S[0] <= 1000 * fault.seconds <= OUTAGES_S[1] for fault in found)


def test_each_fault_is_a_warning_of_the_run_and_a_seed_gives_one_replay(run: Tracebed, tmp_path: Path) -> None:
    found = {}
    for output, seed in (("a", 1), ("b", 1), ("c", 2)):
        result = replay(run, nodes=inventory(tmp_path, mtbf_h=3, seed=seed), output=output)
        assert result.exception is None, result.output
        assert "warning: fault at " in result.output
        found[output] = Run.load(tmp_path / output)
    struck = {
        name: [text for text in each.info.warnings if text.startswith("fault at")] for name, each in found.items()
    }
    assert len(struck["a"]) > 3 and struck["a"] == struck["b"] != struck["c"]
    assert all(text.split(": ")[1].split()[0] in OUTAGES for texts in struck.values() for text in texts)
    pd.testing.assert_frame_equal(found["a"].jobs, found["b"].jobs)
    assert found["a"].info.outages, "no node was lost"


def test_an_interrupted_virtual_replay_is_saved(run: Tracebed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert replay(run, nodes=inventory(tmp_path)).exception is None
    submitted = Arrivals.submitted

    def interrupt(self: Arrivals, job: int, now: float) -> bool:
        if job == 10:
            signal.raise_signal(signal.SIGTERM)
        return submitted(self, job, now)

    monkeypatch.setattr(Arrivals, "submitted", interrupt)
    result = replay(run, "--replace", nodes=inventory(tmp_path))
    (beside,) = tmp_path.glob("real.interrupted-*")
    assert Run.load(beside).info.interruptions == ["SIGTERM"], result.output
    assert Run.load(tmp_path / "real").info.state == "completed"  # a finished replay stays


def test_a_virtual_replay_that_was_resumed_starts_from_the_beginning(run: Tracebed, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=BEGINS_AGAIN):
        first = replay(run, "--resume", nodes=inventory(tmp_path))
    assert first.exception is None
    created = Run.load(tmp_path / "real").info.created
    with pytest.warns(UserWarning, match="finished already"):
        again = replay(run, "--resume", nodes=inventory(tmp_path))
    assert Run.load(tmp_path / "real").info.created == created
    assert _printed_table(again) == _printed_table(first)  # in the same order


def _printed_table(result: Result) -> list[str]:
    lines = result.output.splitlines()
    return lines[next(number for number, line in enumerate(lines) if line.startswith("run ")) :]


def test_virtual_nodes_exist_only_in_a_replay(run: Tracebed, tmp_path: Path) -> None:
    nodes = inventory(tmp_path)
    for words in (["check"], ["up"], ["facts"], ["down"], ["calibrate", "-o", "c.yaml", "--inventory"]):
        refused = run("nodes", *words, nodes).exception
        assert isinstance(refused, TracebedError), (words, refused)
        assert "virtual" in str(refused)


def test_virtual_nodes_are_not_mixed_with_others(run: Tracebed, tmp_path: Path) -> None:
    local = {"provider": "local", "nodes": [{"name": "n1", "cores": 2, "emulated": True}]}
    refused = replay(run, nodes=inventory(tmp_path, local)).exception
    assert isinstance(refused, TracebedError)
    assert "not in one world" in str(refused)


def test_an_experiment_says_that_its_nodes_are_virtual_and_a_validation_refuses_them(
    run: Tracebed, tmp_path: Path
) -> None:
    inventory(tmp_path)
    text = (
        "workloads: {w: w.parquet}\npolicies: [easy]\nrepetitions: 1\nsettle_s: 0\n"
        "testbed: {inventory: nodes.yaml, speed: 1000}\n"
    )
    Path("experiment.yaml").write_text(text)
    with pytest.warns(UserWarning, match="the nodes of rehearsal are virtual: its runs are not real, and equal"):
        assert run("experiment", "experiment.yaml", "-o", "e", "--dry-run").exception is None
    Path("suite.yaml").write_text(text + "simulators: {tracebed: {}}\n")
    refused = run("validate", "suite.yaml", "-o", "s", "--dry-run").exception
    assert isinstance(refused, TracebedError)
    assert "not a real run" in str(refused)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_signals_of_a_process(run: Tracebed, tmp_path: Path, number: signal.Signals) -> None:
    write_jobs(tmp_path / "long.parquet", 3, 1e8)  # three years at 1x, which would take hours
    nodes = inventory(tmp_path)
    words = ["replay", "long.parquet", "--policy", "easy", "--inventory", nodes, "--speed", "1", "-o", "real"]
    command = [sys.executable, "-c", "from tracebed.cli import main; main()", *words]

    def is_under_way() -> bool:
        with contextlib.suppress(FileNotFoundError):  # a file of the database that exists for a moment
            return any(path.stat().st_size > 100_000 for path in tmp_path.glob("real.partial-*/journal.sqlite*"))
        return False

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert until(lambda: is_under_way() or process.poll() is not None)
        assert process.poll() is None
        process.send_signal(number)
        _, printed = process.communicate(timeout=GUARD_S)
    assert "Traceback" not in printed
    if number == signal.SIGINT:
        assert process.returncode == ExitCode.INTERRUPTED
        assert "interrupted (SIGINT)" in printed
        assert Run.load(tmp_path / "real").info.interruptions == ["SIGINT"]
        return
    (left,) = SHARED.glob(f"{PREFIX}{process.pid:07}-*")
    with pytest.warns(UserWarning, match=BEGINS_AGAIN), pytest.warns(UserWarning, match="remains from an earlier"):
        assert replay(run, "--resume", nodes=nodes).exception is None
    assert Run.load(tmp_path / "real").info.pauses == []
    assert not left.exists()
