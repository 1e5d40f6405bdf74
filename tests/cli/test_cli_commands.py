"""The commands that make workloads and runs, and that measure and compare runs, in a shell."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
import yaml
from click.testing import Result

import tracebed.api as tb
from tests.commands import call
from tests.pages import without_pictures
from tests.runs import NAN, fcfs_run, make_run
from tracebed.cli import demo as demo_module
from tracebed.cli.describe import bars, columns, duration_text
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import ExitCode, InputError, TracebedError
from tracebed.orchestrator.run import Run
from tracebed.validation.verdict import Verdict

Tracebed = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracebed:
    """Return a function that runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
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


# The commands `metrics` and `compare`.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    fcfs_run(60).save(path / "real")
    fcfs_run(60, stretch=1.1, real=False).save(path / "sim")
    return path


def test_metrics_as_json(folder: Path) -> None:
    result = call("metrics", folder / "sim", "--json")
    document = json.loads(result.stdout)
    assert document["schema"] == "tracebed-metrics/1"
    assert [run["run"] for run in document["runs"]] == [str(folder / "sim")]
    found = document["runs"][0]["metrics"]
    for key in (
        "makespan_s",
        "mean_wait_s",
        "mean_response_s",
        "mean_slowdown",
        "mean_bounded_slowdown",
        "utilization",
        "jobs",
        "loss_of_capacity",
        "throughput",
    ):
        assert isinstance(found[key], (int, float))
    assert found["jobs"] == 60
    assert found["tau"] == 10


def figures(result: Result) -> list[dict[str, Any]]:
    """Return the metrics of each run of `metrics --json`."""
    return [run["metrics"] for run in json.loads(result.stdout)["runs"]]


def test_metrics_options_reach_the_definitions(folder: Path) -> None:
    plain, full, part = (
        figures(call("metrics", folder / "sim", "--json", *options))[0]
        for options in ((), ("--window", "full", "--tau", "1m"), ("--window", "10m:20m"))
    )
    assert full["utilization"] == plain["utilization_full"]
    assert full["mean_bounded_slowdown"] < plain["mean_bounded_slowdown"]
    assert part["utilization_window"] == {"name": "600:1200", "start_s": 600, "end_s": 1200}


def test_metrics_of_several_runs_stand_side_by_side(folder: Path) -> None:
    result = call("metrics", folder / "real", folder / "sim")
    header = next(line for line in result.stdout.splitlines() if line.strip())
    assert header.split() == ["real", "sim"]
    assert "makespan (s)" in result.stdout
    real, sim = figures(call("metrics", folder / "real", folder / "sim", "--json"))
    assert sim["makespan_s"] > real["makespan_s"]
    assert "workloads" not in result.stderr


def test_metrics_of_different_workloads_have_a_warning(folder: Path) -> None:
    fcfs_run(60, sha256="b" * 64).save(folder / "other")
    result = call("metrics", folder / "sim", folder / "other", folder / "real", "--json")
    assert result.exception is None
    warning = f"{folder / 'other'} and {folder / 'sim'} have different workloads"
    assert [line for line in result.stderr.splitlines() if "different workloads" in line] == [
        f"tracebed: warning: {warning} (the hashes differ)"
    ]
    error = call("compare", "--real", folder / "other", "--predicted", folder / "sim").exception
    assert isinstance(error, InputError)
    assert "different workloads: the hashes of tiny (real) and tiny (predicted) differ" in error.what
    assert "--match id" in str(error.hint)


def test_metrics_of_a_run_without_ended_jobs_have_a_reason(tmp_path: Path) -> None:
    make_run([(0.0, NAN, NAN, 1)], states={"1": "unknown"}).save(tmp_path / "none")
    result = call("metrics", tmp_path / "none")
    assert result.exception is None
    assert "no job ended" in result.stderr
    (found,) = figures(call("metrics", tmp_path / "none", "--json"))
    assert found["mean_wait_s"] is None
    assert found["undefined"]["mean_wait_s"] == "no job ended"


@without_pictures()
def test_compare_is_inconclusive_and_writes_a_report(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    result = call("compare", "--real", folder / "real", "--predicted", folder / "sim", "--report", path)
    assert result.return_value == ExitCode.INCONCLUSIVE
    assert "inconclusive: one real run: no accuracy claim" in result.stdout
    assert path.read_text().startswith("<!doctype html>")
    assert str(path) in result.stderr


def test_compare_as_json_is_json_alone(folder: Path) -> None:
    result = call("compare", "--real", folder / "real", "--predicted", folder / "sim", "--json")
    found = json.loads(result.stdout)
    assert found["verdict"] == "inconclusive"
    assert [case["matching"]["matched"] for case in found["cases"]] == [60]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("metrics", "nowhere"), "is not a run"),
        (("metrics", "{}/sim", "--window", "noon"), "unknown window"),
        (("metrics", "{}/sim", "--window", "9:x"), "not a duration"),
        (("metrics", "{}/sim", "--window", "9:2"), "window"),
        (("metrics", "{}/sim", "--tau", "0"), "tau 0 is not above 0"),
        (("compare", "--real", "{}/sim", "--predicted", "{}/real"), "swap --real and --predicted"),
        (
            ("compare", "--real", "a", "--predicted", "c", "--tau=1", "--tau=2"),
            "--tau is given 2 times, and takes one value",
        ),
        (("simulate", "w", "-o", "a", "--output", "b"), "--output is given 2 times, and takes one value"),
    ],
)
def test_bad_input_is_one_line_with_a_hint(folder: Path, words: tuple[str, ...], message: str) -> None:
    error = call(*(word.format(folder) for word in words)).exception
    assert isinstance(error, (InputError, click.UsageError))
    assert message in str(error)
    assert "\n" not in str(error)


def shell(script: str, folder: Path, **streams: int) -> subprocess.CompletedProcess[str]:
    """Run a shell script in which $COMPARE is a command that prints a table."""
    command = f"{sys.executable} -c 'from tracebed.cli import main; main()' compare"
    environment = os.environ | {"COMPARE": f"{command} --real {folder / 'real'} --predicted {folder / 'sim'}"}
    script = script.replace("$COMPARE", 'eval "$COMPARE"')
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(["bash", "-c", script], text=True, check=False, env=environment, **streams)  # type: ignore[call-overload,no-any-return]


@pytest.mark.slow
def test_a_full_disk_behind_our_output_is_one_line(folder: Path) -> None:
    for option in ("", "--json"):
        done = shell(f"$COMPARE {option} > /dev/full", folder)
        assert done.returncode == ExitCode.USAGE
        assert done.stderr.splitlines()[-1] == "tracebed: No space left on device"
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_closed_pipe_is_not_a_verdict(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = shell("$COMPARE --json", folder, stdout=writer)
    os.close(writer)
    assert done.returncode == ExitCode.BROKEN_PIPE
    assert done.stderr == ""


@pytest.mark.slow
def test_output_needs_no_open_stream_and_no_unicode(folder: Path) -> None:
    assert shell("$COMPARE >&-", folder).returncode == ExitCode.INCONCLUSIVE
    assert shell("$COMPARE 2>&-", folder).returncode == ExitCode.INCONCLUSIVE
    again = folder / "again"
    fcfs_run(60, stretch=1.02).save(again)
    done = shell(f"export PYTHONIOENCODING=ascii; $COMPARE --real {again}", folder)  # an interval has the sign ±
    assert done.returncode == ExitCode.INCONCLUSIVE
    assert "?" in done.stdout


def test_the_exit_status_reaches_the_shell(folder: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    command = [sys.executable, "-c", "from tracebed.cli import main; main()"]
    words = ["compare", "--real", str(folder / "real"), "--predicted", str(folder / "sim")]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    status, _, error = call("compare", "--real", str(folder / "sim"), "--predicted", str(folder / "real"))
    assert status == 2
    assert error.startswith("tracebed: ")
    assert "Traceback" not in error


def test_an_unhealthy_real_run_ends_with_4(folder: Path, tmp_path: Path) -> None:
    cause = {"signal": "rank_late_s", "value": 10.2, "limit": 1.0, "state": "unhealthy"}
    cause["text"] = "a rank was 10.2 s late"
    health = {"state": "unhealthy", "causes": [cause], "signals": {}, "thresholds": "0" * 64}
    fcfs_run(60, health=health).save(tmp_path / "real")
    result = call("compare", "--real", tmp_path / "real", "--predicted", folder / "sim")
    assert result.return_value == ExitCode.UNHEALTHY
    assert "inconclusive: the real run is unhealthy: a rank was 10.2 s late; one real run" in result.stdout
    assert "warning: the real run is unhealthy: a rank was 10.2 s late" in result.stderr
    assert "** no evidence: the run times were imposed or copied" in result.stdout
    found = json.loads(call("compare", "--real", tmp_path / "real", "--predicted", folder / "sim", "--json").stdout)
    assert found["cases"][0]["repetitions"][0]["health"]["causes"] == [cause]


@pytest.mark.slow
def test_a_report_with_the_workload_has_the_error_budget(tmp_path: Path) -> None:
    jobs = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
    tb.write(jobs, tmp_path / "w.parquet")
    tb.replay(jobs, "easy", "emulated-4", speed=1e6, output=tmp_path / "real")
    tb.simulate(jobs, "easy", "emulated-4").save(tmp_path / "sim")
    sides = ("--real", tmp_path / "real", "--predicted", tmp_path / "sim", "--workload", tmp_path / "w.parquet")
    result = call("compare", *sides, "--report", tmp_path / "report.html")
    assert result.return_value in (ExitCode.INCONCLUSIVE, ExitCode.UNHEALTHY)
    report = (tmp_path / "report.html").read_text()
    assert '<section id="budget"' in report and "calibrated overheads" not in report
    tb.simulate(jobs, "easy", "emulated-4", speed=1e6, overheads={"launch_s": 0.01}).save(
        tmp_path / "sim", replace=True
    )
    assert call("compare", *sides, "--report", tmp_path / "report.html").return_value == result.return_value
    assert "calibrated overheads" in (tmp_path / "report.html").read_text()  # of the compared prediction
    with pytest.raises(InputError, match="--report is missing"):
        raise call("compare", *sides).exception or AssertionError


# The commands that make workloads.

SWF = "; MaxNodes: 4\n; MaxProcs: 16\n; UnixStartTime: 86400\n1 0 5 100 4 -1 -1 8 200 -1 1 1 1 -1 1 1 -1 -1\n"


def test_a_workload_from_model_to_plot(call: Callable[..., Any]) -> None:
    status, out, _ = call("generate", "cirne", "--nodes", "16", "--jobs", "200", "--seed", "7", "-o", "w.parquet")
    assert status == ExitCode.OK
    assert "jobs 200" in out
    assert "nodes 16" in out
    status, out, _ = call("scale", "w.parquet", "--nodes", "4", "--window", "3d", "--runtime", "0.1", "-o", "s.csv")
    assert status == ExitCode.OK
    assert "before" in out
    status, out, _ = call("malleable", "s.csv", "--share", "0.5", "--seed", "1", "-o", "m.swf.gz")
    assert status == ExitCode.OK
    mixed = read_workload("m.swf.gz")
    assert [step.name for step in mixed.provenance.steps] == ["cirne", "scale", "malleable"]
    assert mixed.provenance.system == System(4, 1, "Cirne and Berman anl")
    assert (mixed.column("kind") == "malleable").sum() == round(len(mixed) / 2 + 1e-9)
    status, out, err = call("describe", "m.swf.gz", "--plot", "m.png")
    assert status == ExitCode.OK
    for word in (
        "offered load",
        "scaled",
        "Requested nodes",
        "Run time",
        "Arrivals by hour",
        "step 3: malleable",
    ):
        assert word in out
    assert Path("m.png").exists()
    assert "m.png" in err


def test_json_is_one_document_and_nothing_else(call: Callable[..., Any]) -> None:
    _, out, _ = call("generate", "cirne", "--jobs", "50", "-o", "w.parquet", "--json")
    drawn = json.loads(out)
    assert (drawn["jobs"], drawn["nodes"], drawn["step"]["name"]) == (50, 120, "cirne")
    assert drawn["sha256"] == read_workload("w.parquet").sha256
    _, out, _ = call("scale", "w.parquet", "--nodes", "12", "--runtime", "max=600s", "-o", "s.parquet", "--json")
    scaled = json.loads(out)
    assert scaled["longest_run_time_s"] == pytest.approx(600)
    assert scaled["before"]["nodes"] == 120
    _, out, _ = call("describe", "s.parquet", "--json")
    assert json.loads(out)["offered_load"] == scaled["offered_load"]
    _, out, _ = call("malleable", "s.parquet", "--share", "1", "-o", "m.parquet", "--json")
    assert json.loads(out)["malleable_jobs"] == 50
    _, out, _ = call("convert", "m.parquet", "-o", "m.csv", "--json")
    assert json.loads(out)["sha256"] == json.loads(call("convert", "m.csv", "-o", "n.parquet", "--json")[1])["sha256"]


def test_the_same_command_writes_the_same_bytes(call: Callable[..., Any]) -> None:
    for name in ("a.parquet", "b.parquet"):
        call("generate", "cirne", "--jobs", "100", "--set", "site=kth", "--seed", "3", "-o", name)
    assert Path("a.parquet").read_bytes() == Path("b.parquet").read_bytes()


def test_convert_counts_and_makes_nodes(call: Callable[..., Any]) -> None:
    Path("log.swf").write_text(SWF)
    status, out, err = call("convert", "log.swf", "-o", "w.parquet")
    assert status == ExitCode.OK
    assert "warning: log.swf: jobs with different requested and allocated processors (1 time)" in err
    assert "nodes 4" in out
    assert read_workload("w.parquet").ints("nodes").tolist() == [2]
    call("convert", "log.swf", "--by", "core", "--from", "swf", "-o", "c.parquet")
    assert read_workload("c.parquet").ints("nodes").tolist() == [8]
    assert read_workload("c.parquet").provenance.system == System(16, 1)


def test_a_defect_gives_one_warning(call: Callable[..., Any]) -> None:
    Path("log.swf").write_text(f"; TimeZoneString: Mars/Base\n{SWF}")
    status, _, err = call("describe", "log.swf", "--plot", "log.svg")
    assert status == ExitCode.OK
    assert err.count("Mars/Base") == 1


def test_constants_of_the_model_are_options(call: Callable[..., Any]) -> None:
    call("generate", "cirne", "--jobs", "9", "--set", "cancelled=0", "--set", "reduction=2", "-o", "w.parquet")
    parameters = read_workload("w.parquet").provenance.steps[0].parameters
    assert (parameters["cancelled"], parameters["reduction"]) == (0.0, 2)


def test_an_inventory_stands_for_its_size(call: Callable[..., Any]) -> None:
    Path("i.yaml").write_text('nodes:\n  - {name: "e[1-3]", cores: 2, emulated: true}\n')
    call("generate", "cirne", "--jobs", "9", "--cores-per-node", "8", "-o", "w.parquet")
    status, _, err = call("scale", "w.parquet", "--inventory", "i.yaml", "-o", "s.parquet")
    assert status == ExitCode.OK, err
    assert read_workload("s.parquet").provenance.system == System(3, 2, "Cirne and Berman anl")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("convert absent.swf -o w.csv", "absent.swf: no such file (check the path)"),
        ("convert log.swf -o w.xls", "w.xls: the name has no known output format"),
        ("convert log.swf -o no/w.csv", "folder does not exist"),
        ("convert log.swf --from xls -o w.csv", "unknown format 'xls'"),
        ("convert broken.swf -o w.csv", "broken.swf:2: line has 3 fields instead of 18"),
        ("describe log.swf --plot w.gif", "w.gif: unsupported picture format"),
        ("describe .", "is in format"),
        ("describe run", "run: is a run, not a workload (`tracebed metrics` reads runs"),
        (
            "metrics late",
            "late: is not a run: run.json is missing (a replay to it has not ended: `tracebed watch",
        ),
        ("scale log.swf --runtime fast -o w.csv", "--runtime 'fast' is no factor"),
        ("scale log.swf --runtime max=soon -o w.csv", "'soon' is not a duration"),
        ("scale log.swf --start tomorrow -o w.csv", "'tomorrow' is not a time"),
        ("scale log.swf --start 1999-01-01 -o w.csv", "submit times are from 0 s to 0 s"),
        ("scale log.swf --system big -o w.csv", "--system 'big' is not a machine"),
        ("scale broken.csv --nodes 2 -o w.csv", "the nodes of the workload's system are unknown"),
        ("scale log.swf --nodes 2 --inventory i.yaml -o w.csv", "give one of them"),
        ("malleable broken.csv --share 1 -o w.csv", "the size of the workload's system is unknown"),
        ("malleable log.swf --share 1 --set most=0 -o w.csv", "threshold most"),
        ("malleable log.swf --share 2 -o w.csv", "'--share'"),
        ("malleable log.swf --share nan -o w.csv", "nan is not a finite number"),
        ("malleable log.swf --share 1 --nodes 99999999999999999999 -o w.csv", "'--nodes'"),
        ("scale log.swf --nodes 99999999999999999999 -o w.csv", "'--nodes'"),
        ("scale log.swf --system 4x0 -o w.csv", "--system '4x0' is not a machine: 0 is not in the range"),
        ("scale log.swf --window 1e400 -o w.csv", "'1e400' is not a duration"),
        ("scale log.swf --window -1 -o w.csv", "'-1' is not from 0 to"),
        ("generate cirne --jobs 99999999999999 -o w.csv", "99999999999999 jobs is out of range"),
        (f"convert log.swf -o {'w' * 300}.csv", "File name too long"),
        ("generate cirne --jobs 1 --set load=x -o w.csv", "'x' is not a number"),
        ("generate cirne --jobs 1 --set weight=1 -o w.csv", "unknown constant 'weight'"),
        ("generate cirne --jobs 0 -o w.csv", "'--jobs'"),
        ("generate lublin", "unknown model 'lublin' (did you mean lublin99?"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: str, what: str, call: Callable[..., Any]) -> None:
    Path("log.swf").write_text(SWF)
    Path("broken.swf").write_text("; Version: 2.2\n1 2 3\n")
    Path("broken.csv").write_text("job_id,submit_time,run_time,nodes\n1,0,1,1\n")
    Path("run").mkdir()
    Path("run/run.json").write_text("{}")
    Path("late.partial-0a1b").mkdir()
    status, out, err = call(*arguments.split())
    assert status == ExitCode.USAGE
    assert what in err
    assert "Traceback" not in err
    assert out == ""
    assert not Path("w.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("convert log.swf -o log.swf", "log.swf: would replace what it is made from (name another file)"),
        ("convert link.swf -o ./log.swf", "would replace"),
        ("convert log.swf -o link.swf", "would replace"),
        ("convert daily -o daily/log.swf", "would replace"),
        ("convert es/jobs.json --to elastisim -o es", "would replace"),
        ("scale log.swf --nodes 2 -o log.swf", "would replace"),
        ("malleable log.swf --share 1 -o log.swf", "would replace"),
        ("generate jann97 --jobs 9 --log log.swf -o log.swf", "would replace"),
        ("clean daily --recipe least.yaml -o daily/log.swf", "would replace"),
        ("clean log.swf --recipe least.yaml --explain log.csv -o log.csv", "log.csv: two results under one name"),
        ("clean log.csv --recipe least.yaml --explain log.csv -o w.csv", "would replace"),
    ],
)
def test_no_command_writes_over_what_it_reads(arguments: str, what: str, call: Callable[..., Any]) -> None:
    Path("daily").mkdir()
    for name in ("log.swf", "daily/log.swf"):
        Path(name).write_text(SWF)
    Path("link.swf").symlink_to("log.swf")
    Path("log.csv").write_text("job_id,submit_time,run_time,nodes\n1,0,1,1\n")
    Path("least.yaml").write_text("steps: [merge_split, unique_ids]\n")
    call("convert", "log.swf", "--to", "elastisim", "-o", "es")
    before = {path: path.read_bytes() for path in sorted(Path().rglob("*.*")) if path.is_file()}
    status, out, err = call(*arguments.split())
    assert (status, out) == (ExitCode.USAGE, "")
    assert what in err
    assert {path: path.read_bytes() for path in sorted(Path().rglob("*.*")) if path.is_file()} == before


def test_a_name_of_any_kind_is_one_line(call: Callable[..., Any]) -> None:
    for name in ("two\nlines\x1b[1m.swf", os.fsdecode(b"latin\xfc.swf"), "ü [red].swf"):
        Path(name).write_text(SWF.replace(" 100 4 ", " 500 4 "))
        status, out, err = call("convert", name, "-o", "w.csv", "--replace")
        assert status == ExitCode.OK, err
        assert err.splitlines()[0].endswith("jobs that ran longer than their limit (1 time)")
        assert len(err.splitlines()) == 2
        Path(name).write_text("; Version: 2.2\n1 2 3\n")
        status, out, err = call("convert", name, "-o", "w.csv", "--replace")
        assert (status, out, err.count("\n")) == (ExitCode.USAGE, "", 1)
        assert "\x1b" not in err
    status, _, err = call("convert", "", "-o", "w.csv")
    assert (status, "the name is empty" in err) == (ExitCode.USAGE, True)


def test_a_pipe_is_read_and_a_device_is_not(call: Callable[..., Any]) -> None:
    os.mkfifo("pipe")
    writer = subprocess.Popen(["sh", "-c", f"printf %s '{SWF}' > pipe"])
    status, _, err = call("convert", "pipe", "-o", "w.csv")
    assert writer.wait() == 0
    assert status == ExitCode.OK, err
    assert len(read_workload("w.csv")) == 1
    for device in ("/dev/zero", "/dev/null"):
        status, _, err = call("convert", device, "-o", "w.csv", "--replace")
        assert (status, "is a device, not a file" in err) == (ExitCode.USAGE, True)


def test_unusual_output_paths(call: Callable[..., Any]) -> None:
    Path("log.swf").write_text(SWF)
    Path("loop.csv").symlink_to("loop.csv")
    for name in ("loop.csv", "w" * 250 + ".csv"):
        status, _, err = call("convert", "log.swf", "-o", name)
        assert status == ExitCode.OK, err
        assert len(read_workload(name)) == 1


def test_a_simulation_imports_only_what_it_needs(tmp_path: Path) -> None:
    table = pd.DataFrame({"job_id": ["a", "b"], "submit_time": [0.0, 1.0], "run_time": [9.0, 3.0], "nodes": [1, 2]})
    write_workload(Workload(table), tmp_path / "w.parquet")
    code = (
        "import sys; from tracebed import cli; sys.argv[0] = 'tracebed'\n"
        "try: cli.main()\nexcept SystemExit as end: status = end.code\n"
        "spare = {'docker', 'fabric', 'matplotlib', 'paramiko', 'pydantic', 'scipy', 'tracebed.benchmarks.program',\n"
        "  'tracebed.converters.cleaning', 'tracebed.converters.formats.swf', 'tracebed.converters.scaling',\n"
        "  'tracebed.converters.description', 'tracebed.converters.log', 'tracebed.orchestrator.replay',\n"
        "  'tracebed.orchestrator.scheduling.policies.sd', 'tracebed.orchestrator.scheduling.policies.slurm',\n"
        "  'tracebed.orchestrator.scheduling.scheduler', 'tracebed.orchestrator.scheduling.shapes',\n"
        "  'tracebed.orchestrator.testbeds.nodes', 'tracebed.validation.verdict', 'tracebed.validation.report'}\n"
        "slow = {'pandas', 'pyarrow.compute', 'rich'}\n"
        "print(status, sorted(spare & set(sys.modules)), bool(slow & set(sys.modules)))"
    )
    words = ["simulate", "w.parquet", "--policy", "pref", "--nodes", "2", "-o", "run"]
    for arguments, frames in ((words, False), (["metrics", "run"], True)):
        result = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert result.stdout.splitlines()[-1] == f"0 [] {frames}", arguments


def test_durations_in_words() -> None:
    assert [duration_text(s) for s in (None, 0.5, 60.0, 5400.0, 86_400.0, 220_000.0)] == [
        *("not known", "0.5 s", "1 min", "1.5 h", "1 d", "2.5 d"),
    ]


def test_charts_show_every_count() -> None:
    lines = bars("Sizes", {"1": 100, "2–3": 1, "4": 0}, width=8)
    assert "████████" in lines[1]
    assert "▏" in lines[2]
    assert not set(lines[3]) & set("▏▎▍▌▋▊▉█")
    assert len(set(map(len, lines))) == 1
    drawn = columns("Hours", {"0": 0, "1": 8, "2": 16}, height=2)
    assert [line.split() for line in drawn[1:3]] == [["██"], ["██", "██"]]


def test_convert_sets_a_system_that_the_file_lacks(call: Callable[..., Any]) -> None:
    Path("w.csv").write_text("job_id,submit_time,run_time,nodes\na,0,5,2\nb,9,5,80\n")
    status, _, err = call("convert", "w.csv", "--system", "64x48", "-o", "w.parquet")
    assert status == ExitCode.OK
    assert "jobs with more nodes than the machine has, kept (clean: over_machine) (1 time)" in err
    workload = read_workload("w.parquet")
    assert workload.provenance.system == System(64, 48)
    step = workload.provenance.steps[-1]
    assert (step.name, step.parameters) == ("system", {"nodes": 64, "cores_per_node": 48})
    assert list(step.counts.values()) == [1]
    Path("log.swf").write_text(SWF)
    assert call("convert", "log.swf", "--system", "9", "-o", "s.parquet")[0] == ExitCode.OK
    assert read_workload("s.parquet").provenance.system == System(9, 4), "the cores stay as known"
    for wrong in ("64x", "x48", "0x1", "64x48x2", "1e9x1", "99999999999x1"):
        status, _, err = call("convert", "w.csv", "--system", wrong, "-o", "no.parquet")
        assert (status, err.count("\n")) == (ExitCode.USAGE, 1)
        assert f"--system {wrong!r} is not a machine" in err
