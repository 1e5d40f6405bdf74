"""`tracebed repeat`: campaigns that run to their end, are interrupted, resumed, changed and summarized."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tracebed.api as tb
from tracebed.cli import tracebed
from tracebed.errors import ExitCode, TracebedError

CAMPAIGN = """\
repetitions: 2
settle_s: 0
defaults: {workload: w.csv, policy: easy, inventory: emulated-4, speed: 1e6}
cells:
  a: {}
  b: {policy: fcfs}
"""


def prepare(folder: Path) -> None:
    """Write the workload and the campaign."""
    tb.write(tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4), folder / "w.csv")
    (folder / "c.yaml").write_text(CAMPAIGN)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the finished campaign."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        prepare(place)
        assert repeat("c.yaml", "-o", "out").return_value == ExitCode.OK
    return place / "out"


@pytest.fixture
def finished(folder: Path, made: Path) -> None:
    """Copy the finished campaign to the folder."""
    shutil.copytree(made, folder / "out")


def repeat(*arguments: str) -> Result:
    result = CliRunner().invoke(tracebed, ["repeat", *arguments], standalone_mode=False)
    if result.exception and not isinstance(result.exception, SystemExit | TracebedError):
        raise result.exception
    return result


def document(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(repeat("--summary", folder, "--json").stdout)
    return found


def attempts(folder: Path) -> list[tuple[str, int, str | None]]:
    lines = [json.loads(line) for line in (folder / "repetitions.jsonl").read_text().splitlines()]
    return [(line["cell"], line["number"], line["error"]) for line in lines]


def test_a_campaign_makes_a_run_of_each_repetition_and_prints_its_statistics(folder: Path) -> None:
    result = repeat("c.yaml", "-o", "out")
    assert result.return_value == ExitCode.OK, result.output
    assert "2 cells, 4 repetitions; this takes at least" in result.output
    runs = sorted(path.parent.relative_to(folder).as_posix() for path in (folder / "out").rglob("run.json"))
    assert runs == ["out/a/rep-01", "out/a/rep-02", "out/b/rep-01", "out/b/rep-02"]
    found = document("out")
    assert found["schema"] == "tracebed-campaign/1"
    assert [(item["cell"], item["selection"], item["n"]) for item in found["cells"] if item["selection"] == "all"] == [
        ("a", "all", 2),
        ("b", "all", 2),
    ]
    own = [tb.Run.load(folder / f"out/a/rep-0{number}").metrics()["makespan_s"] for number in (1, 2)]
    mean = sum(own) / 2
    figures = found["cells"][0]["metrics"]["makespan_s"]
    assert figures["mean"] == pytest.approx(mean)
    assert figures["cv"] == pytest.approx(abs(own[0] - own[1]) / 2**0.5 / mean)
    plan = json.loads((folder / "out" / "campaign.json").read_text())
    assert [(slot["cell"], slot["number"], None) for slot in plan["order"]] == attempts(folder / "out")


@pytest.mark.slow
def test_a_cell_is_predicted_and_the_error_is_that_of_the_mean(folder: Path) -> None:
    (folder / "c.yaml").write_text(CAMPAIGN.replace("  a: {}", "  a: {predict: true}"))
    result = repeat("c.yaml", "-o", "out")
    assert "error of the prediction" in result.output
    predicted = tb.simulate(tb.read("w.csv"), "easy", "emulated-4").metrics()["mean_response_s"]
    figures = document("out")["cells"][0]["metrics"]["mean_response_s"]
    assert figures["error"] == pytest.approx(predicted / figures["mean"] - 1)
    (folder / "c.yaml").write_text(CAMPAIGN.replace("fcfs}", "fcfs, predict: true}"))  # the runs do not depend on it
    assert "4 of them done" in repeat("c.yaml", "-o", "out").output
    whole = {item["cell"]: item for item in document("out")["cells"] if item["selection"] == "all"}
    assert whole["b"]["metrics"]["mean_response_s"]["error"] is not None


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_a_finished_campaign_is_not_repeated(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("run.json")}
    result = repeat("c.yaml", "-o", "out")
    assert "4 of them done" in result.output
    assert {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("run.json")} == before


@pytest.mark.usefixtures("finished")
def test_a_changed_campaign_is_refused_with_what_differs(folder: Path) -> None:
    (folder / "c.yaml").write_text(CAMPAIGN.replace("fcfs", "pref").replace("1e6", "5e5"))
    result = repeat("c.yaml", "-o", "out")
    assert isinstance(result.exception, TracebedError)
    assert "cells.a.timing.speed was 1000000.0, is 500000.0" in str(result.exception)
    assert 'cells.b.scheduling.policy was "fcfs", is "pref"' in str(result.exception)
    assert len(list((folder / "out").rglob("run.json"))) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_a_campaign_may_grow_and_only_what_is_new_is_replayed(folder: Path) -> None:
    (folder / "c.yaml").write_text(CAMPAIGN.replace("repetitions: 2", "repetitions: 3") + "  c: {policy: pref}\n")
    result = repeat("c.yaml", "-o", "out")
    assert result.return_value == ExitCode.OK, result.output
    assert "3 cells, 9 repetitions, 4 of them done" in result.output
    assert sorted(attempts(folder / "out")[4:]) == [
        ("a", 3, None),
        ("b", 3, None),
        *(("c", n, None) for n in (1, 2, 3)),
    ]
    (folder / "c.yaml").write_text(CAMPAIGN)
    error = str(repeat("c.yaml", "-o", "out").exception)
    assert "repetitions.a was 3, is 2" in error and "repetitions.c was 3, is missing" in error


@pytest.mark.slow
def test_a_campaign_of_an_earlier_version_continues_if_later_options_have_their_defaults(folder: Path) -> None:
    repeat("c.yaml", "-o", "out")
    path = folder / "out" / "campaign.json"
    plan = json.loads(path.read_text())
    for cell in plan["cells"].values():
        del cell["on_node_failure"], cell["drain"]
    path.write_text(json.dumps(plan))
    (folder / "c.yaml").write_text(CAMPAIGN.replace("repetitions: 2", "repetitions: 3"))
    assert repeat("c.yaml", "-o", "out").return_value == ExitCode.OK
    assert {"on_node_failure", "drain"} <= json.loads(path.read_text())["cells"]["a"].keys()
    del plan["cells"]["b"]["speed"]
    path.write_text(json.dumps(plan))
    assert "cells.b.speed was missing, is 1000000.0" in str(repeat("c.yaml", "-o", "out").exception)


def test_a_folder_with_other_content_is_refused(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "mine.txt").touch()
    result = repeat("c.yaml", "-o", "out")
    assert "is not the folder of a campaign" in str(result.exception)
    assert "is not a campaign" in str(repeat("--summary", "out").exception)


@pytest.mark.slow
def test_a_repetition_that_fails_does_not_end_the_campaign(folder: Path) -> None:
    (folder / "c.yaml").write_text(CAMPAIGN + "  c: {beside: sleep 0.01; exit 3}\n")
    result = repeat("c.yaml", "-o", "out")
    assert result.return_value == ExitCode.UNHEALTHY
    assert "c, repetition 2 failed: " in result.output
    assert "`sleep 0.01; exit 3` failed with status 3" in result.output
    assert len(list((folder / "out").rglob("run.json"))) == 4
    found = document("out")
    assert [(item["cell"], item["number"]) for item in found["failed"]] == [("c", 1), ("c", 2)]
    assert found["cells"][-1] | {"metrics": {}, "health": {}} == {
        "cell": "c",
        "selection": "all",
        "n": 0,
        "metrics": {},
        "health": {},
    }


@pytest.mark.usefixtures("finished")
def test_a_repetition_whose_run_was_lost_is_repeated_under_its_own_number(folder: Path) -> None:
    for path in (folder / "out" / "b" / "rep-01").iterdir():
        path.unlink()
    result = repeat("c.yaml", "-o", "out")
    assert "3 of them done" in result.output
    assert attempts(folder / "out")[4:] == [("b", 1, None)]
    order = [(run["cell"], run["repetition"]) for run in document("out")["runs"]]
    assert order[-1] == ("b", 1)  # the order is that of the execution


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_the_log_survives_a_line_that_was_cut_off(folder: Path) -> None:
    log = folder / "out" / "repetitions.jsonl"
    log.write_bytes(log.read_bytes()[:-9])
    (folder / "out" / "a" / "rep-01" / "run.json").unlink()
    (folder / "c.yaml").write_text(CAMPAIGN)
    for path in (folder / "out" / "a" / "rep-01").iterdir():
        path.unlink()
    assert repeat("c.yaml", "-o", "out").return_value == ExitCode.OK
    assert json.loads(log.read_text().splitlines()[-1])["error"] is None


@pytest.mark.usefixtures("finished")
def test_a_run_that_is_not_in_the_log_is_in_the_statistics(folder: Path) -> None:
    log = folder / "out" / "repetitions.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # killed after the run was saved
    found = document("out")
    assert found["missing"] == 0 and len(found["runs"]) == 4
    assert [run["seconds"] for run in found["runs"]].count(None) == 1
    assert [item["n"] for item in found["cells"] if item["selection"] == "all"] == [2, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.slow
def test_an_interrupted_campaign_continues_with_the_interrupted_repetition(folder: Path, number: int) -> None:
    slow = CAMPAIGN.replace("repetitions: 2", "repetitions: 1").replace("1e6", "40000")
    (folder / "c.yaml").write_text(slow.replace("  a: {}", "  a: {beside: echo $$ > pid; sleep 1000}"))
    command = [sys.executable, "-c", "from tracebed.cli import main; main()", "repeat", "c.yaml"]
    with subprocess.Popen([*command, "-o", "out"], stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (found := list((folder / "out").glob("*/rep-01.partial-*/**/job-*"))):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, number)
        errors = process.communicate(timeout=60)[1]
    if number != signal.SIGKILL:
        assert process.returncode == ExitCode.INTERRUPTED
        assert "the same command continues the campaign" in errors
    cell = found[0].relative_to(folder / "out").parts[0]
    assert document("out")["missing"] + len(document("out")["failed"]) == (2 if cell == first(folder) else 1)
    result = repeat("c.yaml", "-o", "out")
    assert result.return_value == ExitCode.OK, result.output
    assert document("out")["missing"] + len(document("out")["failed"]) == 0
    assert {run["state"] for run in document("out")["runs"]} == {"completed"}
    assert list((folder / "out").glob("*/*.partial-*")) == []


def first(folder: Path) -> str:
    """Return the first cell of the plan."""
    cell: str = json.loads((folder / "out" / "campaign.json").read_text())["order"][0]["cell"]
    return cell
