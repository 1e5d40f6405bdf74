"""Experiments on testbeds: replays that run to their end, are interrupted, resumed, changed and summarized."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tracebed.api as tb
from tests.commands import call
from tests.patience import GUARD_S, matching
from tracebed.ground.errors import ExitCode, TracebedError
from tracebed.ground.files import locked_folder
from tracebed.orchestrator.replay.folder import WorkingFolder
from tracebed.orchestrator.run import JOURNAL
from tracebed.validation.experiments.background_command import BackgroundCommand

REAL = """\
workloads: {w: w.csv}
policies: [easy, fcfs]
testbed: {inventory: nodes.yaml, speed: 1e6}
repetitions: 2
settle_s: 0
"""
VIRTUAL = "groups: {all: {provider: virtual, nodes: 'n[1-4]', cores: 4, emulated: true}}\n"
REAL_NODES = "nodes: [{name: 'n[1-4]', cores: 4, emulated: true}]\n"


def prepare(folder: Path) -> None:
    """Write the workload and the experiment."""
    tb.write(tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4), folder / "w.csv")
    (folder / "c.yaml").write_text(REAL)
    (folder / "nodes.yaml").write_text(VIRTUAL)


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
        assert experiment("c.yaml", "-o", "out").return_value == ExitCode.OK
    return place / "out"


@pytest.fixture
def finished(folder: Path, made: Path) -> None:
    """Copy the finished campaign to the folder."""
    shutil.copytree(made, folder / "out")


experiment = partial(call, "experiment")


def document(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(experiment("c.yaml", "-o", folder, "--dry-run", "--json").stdout)
    return found


def attempts(folder: Path) -> list[tuple[str, int, str | None]]:
    lines = [json.loads(line) for line in (folder / "real" / "repetitions.jsonl").read_text().splitlines()]
    return [(line["cell"], line["number"], line["error"]) for line in lines]


def test_an_experiment_makes_a_run_of_each_repetition_and_prints_its_statistics(folder: Path) -> None:
    (folder / "nodes.yaml").write_text(REAL_NODES)  # whose repetitions differ
    result = experiment("c.yaml", "-o", "out")
    assert result.return_value == ExitCode.OK, result.output
    assert "cases: 2, repetitions: 4" in result.output and "replays to make: 4, at least" in result.output
    runs = sorted(path.parent.relative_to(folder).as_posix() for path in (folder / "out").rglob("run.json"))
    assert runs == [f"out/real/w-{policy}/rep-0{number}" for policy in ("easy", "fcfs") for number in (1, 2)]
    found = document("out")
    assert found["schema"] == "tracebed-repetitions/1"
    assert [(item["cell"], item["selection"], item["n"]) for item in found["cells"] if item["selection"] == "all"] == [
        ("w-easy", "all", 2),
        ("w-fcfs", "all", 2),
    ]
    own = [tb.Run.load(folder / f"out/real/w-easy/rep-0{number}").metrics()["makespan_s"] for number in (1, 2)]
    mean = sum(own) / 2
    figures = found["cells"][0]["metrics"]["makespan_s"]
    assert figures["mean"] == pytest.approx(mean)
    assert figures["cv"] == pytest.approx(abs(own[0] - own[1]) / 2**0.5 / mean)
    plan = json.loads((folder / "out" / "real" / "campaign.json").read_text())
    assert [(slot["cell"], slot["number"], None) for slot in plan["order"]] == attempts(folder / "out")


@pytest.mark.slow
def test_a_cell_is_predicted_and_the_error_is_that_of_the_mean(folder: Path) -> None:
    (folder / "nodes.yaml").write_text(REAL_NODES)  # virtual nodes are not predicted
    (folder / "c.yaml").write_text(REAL + "simulators: {tracebed: {}}\n")
    result = experiment("c.yaml", "-o", "out")
    assert "error of the prediction" in result.output
    predicted = tb.simulate(tb.read("w.csv"), "easy", "nodes.yaml").metrics()["mean_response_s"]
    figures = document("out")["cells"][0]["metrics"]["mean_response_s"]
    assert figures["errors"] == {"tracebed": pytest.approx(predicted / figures["mean"] - 1)}
    (folder / "c.yaml").write_text(REAL + "simulators: {tracebed: {}, other: {policy: pref}}\n")
    result = experiment("c.yaml", "-o", "out")  # the runs do not depend on the simulators
    assert "predictions to make: 2 by other" in result.output and "replays to make" not in result.output
    whole = {item["cell"]: item for item in document("out")["cells"] if item["selection"] == "all"}
    assert set(whole["w-fcfs"]["metrics"]["mean_response_s"]["errors"]) == {"tracebed", "other"}


@pytest.mark.usefixtures("finished")
def test_a_changed_experiment_is_refused_with_what_differs(folder: Path) -> None:
    (folder / "c.yaml").write_text(REAL.replace("fcfs", "{policy: pref, label: fcfs}").replace("1e6", "5e5"))
    result = experiment("c.yaml", "-o", "out")
    assert isinstance(result.exception, TracebedError)
    assert "cells.w-easy.timing.speed was 1000000.0, is 500000.0" in str(result.exception)
    assert 'cells.w-fcfs.scheduling.policy was "fcfs", is "pref"' in str(result.exception)
    assert len(list((folder / "out").rglob("run.json"))) == 4
    assert "restore the experiment file" in str(result.exception)


@pytest.mark.usefixtures("finished")
def test_a_changed_inventory_is_what_must_be_restored(folder: Path) -> None:
    nodes = folder / "nodes.yaml"
    nodes.write_text(nodes.read_text().replace("n[1", "m[1"))
    error = str(experiment("c.yaml", "-o", "out").exception)
    assert "inventory.nodes was" in error and "restore the inventory" in error


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_an_experiment_may_grow_and_only_what_is_new_is_replayed(folder: Path) -> None:
    (folder / "c.yaml").write_text(REAL.replace("repetitions: 2", "repetitions: 3").replace("fcfs]", "fcfs, pref]"))
    result = experiment("c.yaml", "-o", "out")
    assert result.return_value == ExitCode.OK, result.output
    assert "cases: 3, repetitions: 9, 4 of them done" in result.output
    assert sorted(attempts(folder / "out")[4:]) == [
        ("w-easy", 3, None),
        ("w-fcfs", 3, None),
        *(("w-pref", n, None) for n in (1, 2, 3)),
    ]
    (folder / "c.yaml").write_text(REAL)
    error = str(experiment("c.yaml", "-o", "out").exception)
    assert "repetitions.w-easy was 3, is 2" in error and "repetitions.w-pref was 3, is missing" in error


@pytest.mark.slow
def test_a_repetition_that_fails_does_not_end_the_experiment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check, after_replay = BackgroundCommand.check, itertools.cycle([False, True])

    def check_after_the_end(self: BackgroundCommand) -> None:
        """Find the failure after the replay: one in virtual time may end before the command does."""
        if next(after_replay):
            self.wait(GUARD_S)
            check(self)

    monkeypatch.setattr(BackgroundCommand, "check", check_after_the_end)
    beds = "testbeds:\n  a: {inventory: nodes.yaml, speed: 1e6}\n"
    beds += "  c: {inventory: nodes.yaml, speed: 1e6, beside: exit 3}\n"
    text = REAL.replace("testbed: {inventory: nodes.yaml, speed: 1e6}\n", beds).replace("[easy, fcfs]", "[easy]")
    (folder / "c.yaml").write_text(text)
    result = experiment("c.yaml", "-o", "out")
    assert result.return_value == ExitCode.UNHEALTHY
    assert "w-easy-c, repetition 2 failed: " in result.output
    assert "`exit 3` failed with status 3" in result.output
    assert len(list((folder / "out").rglob("run.json"))) == 2
    found = document("out")
    assert [(item["cell"], item["number"]) for item in found["failed"]] == [("w-easy-c", 1), ("w-easy-c", 2)]
    assert found["cells"][-1] | {"metrics": {}, "health": {}} == {
        "cell": "w-easy-c",
        "selection": "all",
        "n": 0,
        "metrics": {},
        "health": {},
    }


def make_unhealthy(run: Path) -> None:
    """Let the record of a run say that it has lost a node, and thus that it is no run of the whole workload."""
    record = json.loads((run / "run.json").read_text())
    record |= {"state": "interrupted", "interruptions": ["the agent of n2 was lost"]}
    (run / "run.json").write_text(json.dumps(record))


@pytest.mark.usefixtures("finished")
def test_unhealthy_repetitions_are_repeated_up_to_a_bound(folder: Path) -> None:
    cell = folder / "out" / "real" / "w-easy"
    make_unhealthy(cell / "rep-02")
    experiment("c.yaml", "-o", "out")
    assert not (cell / "rep-03").exists()  # the file does not ask for it
    (folder / "c.yaml").write_text(REAL + "repeat_excluded: 1\n")
    with pytest.warns(UserWarning, match=r"w-easy: 1 of 2 repetitions unhealthy .*: 1 repetition more, of at most 1"):
        assert experiment("c.yaml", "-o", "out").return_value == ExitCode.OK
    assert [path.name for path in sorted((folder / "out" / "real").glob("*/rep-03"))] == ["rep-03"]
    assert "cases: 2, repetitions: 5" in experiment("c.yaml", "-o", "out", "--dry-run").stderr
    make_unhealthy(cell / "rep-03")
    with pytest.warns(UserWarning, match="2 of 3 repetitions unhealthy .*: no more than 1 are replayed"):
        experiment("c.yaml", "-o", "out")
    assert not (cell / "rep-04").exists()
    (folder / "c.yaml").write_text(REAL.replace("repetitions: 2", "repetitions: 3") + "repeat_excluded: 2\n")
    with pytest.warns(UserWarning, match=r"1 repetition more, of at most 2"):
        experiment("c.yaml", "-o", "out")
    counts = {path.name: len([*path.glob("rep-*/run.json")]) for path in (folder / "out" / "real").glob("w-*")}
    assert counts == {"w-easy": 5, "w-fcfs": 3}


@pytest.mark.usefixtures("finished")
def test_a_repetition_whose_run_was_lost_is_repeated_under_its_own_number(folder: Path) -> None:
    for path in (folder / "out" / "real" / "w-fcfs" / "rep-01").iterdir():
        path.unlink()
    result = experiment("c.yaml", "-o", "out")
    assert "3 of them done" in result.output
    assert attempts(folder / "out")[4:] == [("w-fcfs", 1, None)]
    order = [(run["cell"], run["repetition"]) for run in document("out")["runs"]]
    assert order[-1] == ("w-fcfs", 1)  # the order is that of the execution


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_an_experiment_is_watched_while_it_runs(folder: Path) -> None:
    out = folder / "out"
    real = out / "real"
    assert call("watch", "out").stdout.endswith("4 of 4 repetitions done, ended\n")
    journal = (real / "w-easy" / "rep-02" / JOURNAL).read_bytes()
    shutil.rmtree(real / "w-easy" / "rep-02")
    shutil.rmtree(real / "w-fcfs" / "rep-01")
    assert "2 of 4 repetitions done, stopped" in call("watch", "out").stdout
    with locked_folder(out, "experiment"):
        assert "between replays" in call("watch", "out", "--interval", "0").stdout
        working = WorkingFolder(real / "w-easy" / "rep-02")
        try:
            (working.path / JOURNAL).write_bytes(journal)
            state = tb.ExperimentProgress.read(out)
            shown = call("watch", "out", "--interval", "0").stdout
            found = json.loads(call("watch", "out", "--interval", "0", "--json").stdout)
        finally:
            working.remove()
    assert state.run == real / "w-easy" / "rep-02" and state.locked
    each = {cell: float(mean_s or 0) for cell, *_, mean_s in state.cells()}
    assert state.left_s() == pytest.approx(each["w-fcfs"])  # without a view, of the running one nothing is known
    assert "2 of 4 repetitions done, w-easy rep-02 runs, about " in shown and "of 5 jobs ended" in shown
    assert found["experiment"]["running"] == "w-easy/rep-02" and found["policy"] == "easy"
    assert {each["cell"]: (each["done"], each["planned"]) for each in found["experiment"]["cells"]} == {
        "w-easy": (1, 2),
        "w-fcfs": (1, 2),
    }


def test_the_folder_of_a_grid_stands_for_that_of_its_replays(finished: None, folder: Path) -> None:
    (folder / "sims" / "grid").mkdir(parents=True)
    (folder / "out").rename(folder / "sims" / "grid" / "replayed")
    assert "4 of 4 repetitions done, ended" in call("watch", "sims").stdout
    assert tb.experiment_at(folder / "sims" / "grid") is None


@pytest.mark.usefixtures("finished")
def test_the_log_survives_a_line_that_was_cut_off(folder: Path) -> None:
    log = folder / "out" / "real" / "repetitions.jsonl"
    log.write_bytes(log.read_bytes()[:-9])
    (folder / "out" / "real" / "w-easy" / "rep-01" / "run.json").unlink()
    (folder / "c.yaml").write_text(REAL)
    for path in (folder / "out" / "real" / "w-easy" / "rep-01").iterdir():
        path.unlink()
    assert experiment("c.yaml", "-o", "out").return_value == ExitCode.OK
    assert json.loads(log.read_text().splitlines()[-1])["error"] is None


@pytest.mark.usefixtures("finished")
def test_a_run_that_is_not_in_the_log_is_in_the_statistics(folder: Path) -> None:
    log = folder / "out" / "real" / "repetitions.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # killed after the run was saved
    found = document("out")
    assert found["missing"] == 0 and len(found["runs"]) == 4
    assert [run["seconds"] for run in found["runs"]].count(None) == 1
    assert [item["n"] for item in found["cells"] if item["selection"] == "all"] == [2, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.slow
def test_an_interrupted_experiment_continues_with_the_interrupted_repetition(folder: Path, number: int) -> None:
    (folder / "nodes.yaml").write_text(REAL_NODES)
    slow = REAL.replace("repetitions: 2", "repetitions: 1").replace("1e6", "40000")
    (folder / "c.yaml").write_text(slow.replace("40000}", "40000, beside: echo $$ > pid; sleep 1000}"))
    command = [sys.executable, "-c", "from tracebed.cli import main; main()", "experiment", "c.yaml"]
    with subprocess.Popen([*command, "-o", "out"], stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + GUARD_S
        while not (found := matching(folder / "out", "real/*/rep-01.partial-*/**/job-*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, number)
        errors = process.communicate(timeout=GUARD_S)[1]
    if number != signal.SIGKILL:
        assert process.returncode == ExitCode.INTERRUPTED
        assert "the same command continues the experiment" in errors
    cell = found[0].relative_to(folder / "out" / "real").parts[0]
    assert document("out")["missing"] + len(document("out")["failed"]) == (2 if cell == first(folder) else 1)
    result = experiment("c.yaml", "-o", "out")
    assert result.return_value == ExitCode.OK, result.output
    assert document("out")["missing"] + len(document("out")["failed"]) == 0
    assert {run["state"] for run in document("out")["runs"]} == {"completed"}
    assert list((folder / "out").glob("real/*/*.partial-*")) == []


def first(folder: Path) -> str:
    """Return the first cell of the plan."""
    cell: str = json.loads((folder / "out" / "real" / "campaign.json").read_text())["order"][0]["cell"]
    return cell


def test_cells_may_be_replayed_in_parts(folder: Path) -> None:
    result = experiment("c.yaml", "-o", "out", "--only", "policy=fcfs")
    assert result.return_value == ExitCode.OK, result.output
    assert "cases: 1, repetitions: 2\n" in result.output
    assert [cell for cell, _, _ in attempts(folder / "out")] == ["w-fcfs"] * 2
    assert document("out")["missing"] == 2
    assert "cases: 2, repetitions: 4, 2 of them done" in experiment("c.yaml", "-o", "out").output
    assert "replays to make" not in experiment("c.yaml", "-o", "out", "--only", "policy=easy").output
    assert document("out")["missing"] == 0


@pytest.mark.parametrize(
    "change", [{"cells": None}, {"cells": {}}, {"order": 5}, {"order": [{"cell": []}]}, {"schema": 1}]
)
@pytest.mark.usefixtures("finished")
def test_a_damaged_plan_is_an_error_of_one_line(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "out" / "real" / "campaign.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    for words in (["--dry-run"], []):
        error = experiment("c.yaml", "-o", "out", *words).exception
        assert isinstance(error, TracebedError) and "campaign.json: is damaged" in str(error)
