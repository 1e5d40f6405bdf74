"""The commands `metrics` and `compare` in a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import tracebed.api as tb
from tests.pages import without_pictures
from tests.runs import NAN, fcfs_run, make_run
from tracebed.cli import tracebed
from tracebed.ground.errors import ExitCode, InputError


def call(*words: object) -> Result:
    return CliRunner().invoke(tracebed, [str(word) for word in words], standalone_mode=False)


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
