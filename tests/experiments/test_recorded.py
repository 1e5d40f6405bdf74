"""Recorded suites of the package: complete, small, and read back."""

from __future__ import annotations

import io
import json
import runpy
import zipfile
from pathlib import Path

import pytest

import tracebed.api as tb
from tests.commands import call
from tests.recorders import packing
from tests.runs import fcfs_run
from tracebed.ground.errors import InputError
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.recorded import RecordedSuite, recorded_runs, recorded_suite, recorded_suites, unpack

ROOT = Path(__file__).resolve().parents[2]
SUITES = list(recorded_suites())


@pytest.mark.parametrize("name", SUITES)
def test_a_recorded_suite_is_complete_and_small(name: str, tmp_path: Path) -> None:
    suite = recorded_suite(name)
    assert len(suite.data) < 2_000_000
    file = unpack(name, tmp_path / "suite")
    runs = recorded_runs(name)
    assert (len(runs), sum(map(len, runs.values()))) == (suite.cases, suite.runs)
    for case, repetitions in runs.items():
        workload, _, policy = case.rpartition("-")
        jobs = tb.read(tmp_path / "suite" / "workloads" / f"{workload}.csv")
        for run in repetitions:
            assert (run.info.policy, run.info.workload["sha256"]) == (policy, jobs.sha256)
            assert run.info.is_real
            assert not len(run.nodes)
    experiment = load_experiment(str(file)).experiment
    assert {experiment.case_name(point) for point in experiment.points()} == set(runs)
    assert experiment.recorded is not None


def test_the_commands_list_and_copy(tmp_path: Path) -> None:
    listed = json.loads(call("experiment", "--list", "--json").stdout)
    assert [suite["name"] for suite in listed["recorded"]] == SUITES
    shown = call("experiment", "--list").stdout
    assert all(f"\n{name} " in f"\n{shown}" for name in [*SUITES, *listed["experiments"]])
    copy = ("validate", "--recorded", SUITES[0], "-o")
    result = call(*copy, tmp_path / "copy")
    assert str(tmp_path / "copy" / "suite.yaml") in result.stdout
    facts = json.loads(call(*copy, tmp_path / "second", "--json").stdout)
    assert (facts["name"], facts["file"]) == (SUITES[0], str(tmp_path / "second" / "suite.yaml"))
    (tmp_path / "copy" / "mine").mkdir()
    other = tmp_path / "other"
    for words, message in (
        ((*copy, tmp_path / "copy"), "exists and is not empty"),
        (("validate", "--recorded", "emulatde", "-o", other), "unknown recorded suite 'emulatde'"),
        ((*copy, other, tmp_path / "copy" / "suite.yaml"), "FILE does not apply with --recorded"),
        ((*copy, other, "--baseline", tmp_path / "b.yaml"), "--baseline does not apply with --recorded"),
        (("validate", "-o", other), "no experiment file"),
    ):
        failed = call(*words)
        assert isinstance(failed.exception, InputError)
        assert message in str(failed.exception)
    assert (tmp_path / "copy" / "mine").is_dir()
    assert not other.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_the_page_on_accuracy_has_the_verdict_of_today(name: str, tmp_path: Path) -> None:
    """The runs are recorded and the predictions are deterministic: another figure is a change of tracebed."""
    unpack(name, tmp_path / "suite")
    call("validate", tmp_path / "suite/suite.yaml", "-o", tmp_path / "found", "--no-case-pages")
    (verdict,) = json.loads((tmp_path / "found/verdict.json").read_text())["simulators"]
    tables = runpy.run_path(str(ROOT / "tests/performance/accuracy/tables.py"))
    head = f"**{verdict['verdict'].capitalize()}**: {verdict['headline']}"
    expected = "\n\n".join([head, tables["by_metric"](verdict), tables["by_case"](verdict)])
    page = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    printed = page.partition(f"<!-- {name.upper()} -->\n")[2].partition("<!-- end -->")[0]
    assert printed.split() == expected.split()


@pytest.mark.slow
def test_no_command_on_a_recorded_suite_warns_of_what_its_user_cannot_mend(tmp_path: Path) -> None:
    """The suites have no journals and compressed workloads: both are said once, beside the evidence."""
    call("validate", "--recorded", "emulated", "-o", tmp_path / "suite")
    result = call("validate", tmp_path / "suite/suite.yaml", "--no-case-pages", "-o", tmp_path / "out")
    noise = call("metrics", tmp_path / "suite/real", "--noise", tmp_path / "n.yaml")
    run = tmp_path / "suite/real/sd-5-easy/rep-01"
    one = call("compare", "--real", run, "--predicted", tmp_path / "out/predicted/tracebed/sd-5-easy")
    for each in (result, noise, one):
        warned = [line for line in each.stderr.splitlines() if "warning" in line]
        assert not [line for line in warned if "journal" in line or "multiplied" in line], warned
    assert result.stdout.count("journal") == one.stdout.count("journal") == 1
    assert "health without a journal (50 of 50 real runs): judged by" in result.stdout
    assert result.stdout.count("margins in seconds are multiplied by 0.00445") == 1


def test_a_changed_suite_is_detected() -> None:
    facts = vars(recorded_suite(SUITES[0])) | {"sha256": "0" * 64}
    with pytest.raises(InputError, match="is missing or was changed"):
        _ = RecordedSuite(**facts).data


def test_the_runs_of_an_experiment_are_packed(tmp_path: Path) -> None:
    tb.write(tb.generate("cirne", jobs=10, nodes=16, seed=1), tmp_path / "w.csv")
    for number in (1, 2):
        run = fcfs_run(10, seed=number, created="2024-05-06T07:08:09+00:00")
        run.save(tmp_path / f"out/real/tiny-fcfs/rep-0{number}")
    file = tmp_path / "experiment.yaml"
    file.write_text("workloads: {tiny: w.csv}\npolicies: [fcfs]\ntestbed: {inventory: emulated-4}\n")
    data, facts = packing.pack(file, tmp_path / "out", "a tiny one")
    assert (data, facts) == packing.pack(file, tmp_path / "out", "a tiny one")
    assert facts == {"title": "a tiny one", "cases": 1, "runs": 2, "jobs": 10, "recorded": "2024-05-06"} | {
        "sha256": facts["sha256"]
    }
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(tmp_path / "suite")
    loaded = load_experiment(str(tmp_path / "suite" / "suite.yaml"))
    assert loaded.experiment.recorded is not None
    assert [policy.name for policy in loaded.experiment.policies] == ["fcfs"]
    for text, message in (
        ("workloads: {none: w.csv}\npolicies: [fcfs]\n", "case none-fcfs has no runs"),
        ("workloads: {tiny: {model: cirne}}\npolicies: [fcfs]\n", "workload tiny is not a file"),
    ):
        file.write_text(text + "testbed: {inventory: emulated-4}\n")
        with pytest.raises(InputError, match=message):
            packing.pack(file, tmp_path / "out", "")


def test_new_columns_of_workloads_do_not_change_the_hashes_of_stored_runs(tmp_path: Path) -> None:
    unpack("emulated", tmp_path)
    stored = recorded_runs("emulated")["cirne-easy"][0].info.workload["sha256"]
    assert tb.read(tmp_path / "workloads/cirne.csv").sha256 == stored
