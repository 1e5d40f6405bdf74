"""The commands simulate, replay and demo in a shell."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

from tracebed.cli import demo as demo_module
from tracebed.cli import tracebed
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import ExitCode, TracebedError
from tracebed.orchestrator.run import Run
from tracebed.validation.verdict import Verdict

Tracebed = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracebed:
    """Return a function that runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()

    def call(*arguments: str) -> Result:
        return runner.invoke(tracebed, list(arguments), standalone_mode=False)

    return call


def refused(result: Result) -> str:
    """Return the single line of a user error."""
    assert isinstance(result.exception, TracebedError), result.exception
    assert result.exception.exit_code == ExitCode.USAGE
    message = str(result.exception)
    assert "\n" not in message
    return message


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Write a workload of three jobs for a system of two nodes."""
    table = {"job_id": ["a", "b", "c"], "submit_time": [0.0, 5.0, 10.0], "run_time": [100.0, 50.0, 20.0]}
    table |= {"time_limit": [120.0, 60.0, math.nan], "nodes": [1, 2, 1], "cores_per_node": 4}
    path = tmp_path / "w.parquet"
    write_workload(Workload(pd.DataFrame(table), Provenance(system=System(2, 4, "tiny"))), path)
    return path


def test_simulate_takes_the_workloads_own_system(run: Tracebed, small: Path) -> None:
    result = run("simulate", "w.parquet", "--policy", "easy", "-o", "runs/sim", "--json")
    assert result.exception is None
    facts = json.loads(result.stdout)
    assert facts["nodes"] == 2
    assert facts["completed"] == 3
    assert facts["makespan_s"] == 150.0
    saved = Run.load("runs/sim")
    assert saved.info.nodes[0].cores == 4
    assert saved.jobs["start"].tolist() == [0.0, 100.0, 10.0]  # c ends before a's node is needed
    assert any("time limit" in warning for warning in saved.info.warnings)


def test_simulate_on_a_size_or_an_inventory(run: Tracebed, small: Path, tmp_path: Path) -> None:
    (tmp_path / "i.yaml").write_text("nodes: [{name: 'n[1-3]', cores: 4, emulated: true}]\n")
    for size in (["--nodes", "3"], ["--inventory", "i.yaml"]):
        result = run("simulate", "w.parquet", "--policy", "fcfs", *size, "-o", "runs/sim", "--replace", "--json")
        assert json.loads(result.stdout)["nodes"] == 3
    both = run("simulate", "w.parquet", "--policy", "fcfs", "--nodes", "3", "--inventory", "i.yaml", "-o", "x")
    assert "one of them" in refused(both)


def test_a_tick_delays_starts_to_its_multiples(run: Tracebed, small: Path) -> None:
    run("simulate", "w.parquet", "--policy", "fcfs", "--nodes", "4", "--interval", "1m", "-o", "sim")
    assert set(Run.load("sim").jobs["start"]) == {0.0, 60.0}


def test_a_policys_parameters_reach_the_run(run: Tracebed, small: Path) -> None:
    run("simulate", "w.parquet", "--policy", "pref", "-P", "count-idle=no", "-o", "sim")
    parameters = {"count_idle": "no", "grow_at_start": False, "promise": "pool", "backfill": "easy"}
    parameters |= {"calls": "settle", "expected_end": "scaled", "narrow": False, "ties": "start", "spread": False}
    parameters |= {"if_idle": False, "straight": False}
    assert Run.load("sim").info.policy_parameters == parameters


def test_calls_at_ticks_need_an_interval(run: Tracebed, small: Path) -> None:
    command = ["simulate", "w.parquet", "--policy", "pref", "-P", "calls=tick", "--nodes", "4", "-o", "sim"]
    assert "calls=tick needs an interval" in refused(run(*command))
    assert "--over-limit kill" in refused(run(*command[:5], "expected_end=limit", *command[6:], "--over-limit", "kill"))
    run(*command, "--interval", "10")
    assert set(Run.load("sim").jobs["start"] % 10) == {0.0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["simulate", "absent.parquet", "--policy", "easy", "-o", "x"], "absent.parquet"),
        (
            ["simulate", "w.parquet", "--policy", "best", "-o", "x"],
            "unknown policy 'best' (one of avg, conservative, deadline, dmr, drom-share, easy, ",
        ),
        (["simulate", "w.parquet", "--policy", "pref", "-P", "count_idle", "-o", "x"], "write NAME=VALUE"),
        (["simulate", "w.parquet", "--policy", "fcfs", "-P", "depth=3", "-o", "x"], "parameters: none"),
        (["simulate", "w.parquet", "--policy", "easy", "--inventory", "no.yaml", "-o", "x"], "no.yaml"),
        (["simulate", "w.parquet", "--policy", "easy", "-o", "w.parquet"], "would replace what it is made from"),
        (["replay", "w.parquet", "--policy", "easy", "--inventory", "no.yaml", "-o", "x"], "no.yaml"),
        (["replay", "w.parquet", "--policy", "easy", "--inventory", "w.parquet", "-o", "x"], "w.parquet"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    run: Tracebed, small: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    before = small.read_bytes()
    assert says in refused(run(*arguments))
    assert [path.name for path in tmp_path.iterdir()] == ["w.parquet"]
    assert small.read_bytes() == before


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e400", "1e308", "1.1e9"])
@pytest.mark.parametrize(
    "option",
    ["speed", "interval", "malleability-interval"],
)
def test_invalid_times_are_refused(run: Tracebed, small: Path, option: str, value: str) -> None:
    """With an interval of NaN or -1 s the simulation would not end."""
    result = run("simulate", str(small), "--policy", "easy", f"--{option}", value, "-o", "x")
    assert isinstance(result.exception, click.BadParameter)
    assert f"--{option}" in result.exception.format_message()


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e400", "1e308", "1.1e9", "1 s"])
def test_invalid_overheads_are_refused(run: Tracebed, small: Path, value: str) -> None:
    given = ("--policy", "easy", "--overhead", f"launch_s={value}", "-o", "x")
    assert "overhead launch_s is" in refused(run("simulate", str(small), *given))


def test_a_workload_without_a_system_needs_the_option(run: Tracebed, tmp_path: Path) -> None:
    table = {"job_id": ["a"], "submit_time": [0.0], "run_time": [1.0], "nodes": [1]}
    write_workload(Workload(pd.DataFrame(table)), tmp_path / "w.csv")
    assert "--nodes or --inventory" in refused(run("simulate", "w.csv", "--policy", "easy", "-o", "x"))


def test_an_unusable_workload_is_an_error_with_a_reason(run: Tracebed, tmp_path: Path) -> None:
    table = {"job_id": ["a"], "submit_time": [0.0], "run_time": [math.nan], "nodes": [1]}
    write_workload(Workload(pd.DataFrame(table)), tmp_path / "w.csv")
    message = refused(run("simulate", "w.csv", "--policy", "easy", "--nodes", "1", "-o", "x"))
    assert "none of the 1 jobs" in message


def test_replay_prints_its_lateness(run: Tracebed, small: Path, tmp_path: Path, no_process_is_left: Any) -> None:
    (tmp_path / "i.yaml").write_text("nodes: [{name: 'n[1-2]', cores: 4, emulated: true}]\n")
    options = ["--policy", "easy", "--inventory", "i.yaml", "--speed", "500", "-o", "real", "--json"]
    result = run("replay", "w.parquet", *options)
    assert result.return_value == ExitCode.OK
    facts = json.loads(result.stdout)
    assert facts["completed"] == 3
    assert facts["execution"] == "emulated"
    assert facts["lateness_p99_ms"] >= 0


@pytest.mark.slow
def test_the_demo_runs_from_workload_to_report(
    run: Tracebed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_process_is_left: Any
) -> None:
    monkeypatch.setattr(demo_module, "SPEED", 60000)
    result = run("demo", "--on", "emulated")
    assert result.return_value == ExitCode.OK, result.output
    folder = tmp_path / "tracebed-demo"
    real = [Run.load(folder / f"verdict/real/demo-pref/rep-0{number}") for number in range(1, 6)]
    predicted = Run.load(folder / "verdict/predicted/tracebed/demo-pref/run-01")
    assert {run.info.execution for run in real} == {"emulated"}
    assert all((run.jobs["state"] == "completed").all() for run in real)
    assert {"expand", "shrink"} <= set(predicted.reconfigurations["kind"])
    document = json.loads((folder / "verdict/verdict.json").read_text(encoding="utf-8"))
    verdict = document["simulators"][0]["verdict"]
    assert f"\n{verdict}: " in result.stdout
    assert "<svg" in (folder / "verdict/tracebed.html").read_text(encoding="utf-8")
    before = (folder / "verdict/verdict.json").read_bytes()
    assert "add --replace" in refused(run("demo", "--on", "emulated"))
    assert (folder / "verdict/verdict.json").read_bytes() == before
    monkeypatch.setattr(demo_module, "REPETITIONS", 1)
    again = run("demo", "--on", "emulated", "--json", "--replace")
    assert again.return_value == ExitCode.OK
    assert json.loads(again.stdout)["simulators"][0]["verdict"] in set(Verdict)


@pytest.mark.parametrize(
    ("found", "repetitions"),  # of each validation: excluded repetitions, and repetitions needed by undecided metrics
    [
        ([(0, [None, 3])], [5]),
        ([(0, [8, 7]), (0, [])], [5, 8]),
        ([(0, [8]), (0, [9]), (0, [9])], [5, 8, 9]),
        ([(1, [8]), (1, [8]), (1, [8])], [5, 6, 9]),  # a disturbed repetition first, and then the noise
        ([(2, [20]), (2, [])], [5, 7]),
        ([(5, [])], [5]),
        ([(0, [13, 6])], [5]),
        ([(3, [5]), (5, [5])], [5, 8]),
    ],
)
def test_the_demo_replays_as_often_as_the_noise_requires(
    found: list[tuple[int, list[int | None]]],
    repetitions: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[int] = []

    def validated(*words: str | Path) -> ExitCode:
        excluded, needed = found[len(calls)]
        calls.append(yaml.safe_load(suite.read_text(encoding="utf-8"))["repetitions"])
        cases = [{"repetitions": [{"excluded": [""] * (number < excluded)} for number in range(calls[-1])]}]
        metrics = [{"gate": True, "verdict": "inconclusive", "repeats_needed": each} for each in needed]
        metrics.append({"gate": False, "verdict": "inconclusive", "repeats_needed": 12})
        (tmp_path / "verdict.json").write_text(json.dumps({"simulators": [{"cases": cases, "metrics": metrics}]}))
        return ExitCode.INCONCLUSIVE

    suite = tmp_path / "suite.yaml"
    monkeypatch.setattr(demo_module, "_run", validated)
    assert demo_module._validate(suite, tmp_path) == ExitCode.OK
    assert calls == repetitions
    advised = "Other processes disturbed the replays" in capsys.readouterr().err
    assert advised == (found[-1][0] >= 5)


def test_a_demo_that_cannot_write_is_an_error(run: Tracebed, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "cannot be written" in refused(run("demo", "-o", "file/demo"))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_demo_does_not_change_foreign_folders(run: Tracebed, tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("nodes: [{name: mine, cores: 1, emulated: true}]\n")
    assert "holds something else than a demo" in refused(run("demo", "-o", "."))
    assert "mine" in (tmp_path / "inventory.yaml").read_text()
