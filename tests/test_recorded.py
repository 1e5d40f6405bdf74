"""Recorded suites of the package: complete, small, and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracebed.api as tb
from runs import fcfs_run
from test_cli_verdicts import call
from tracebed.errors import InputError
from tracebed.validation.recorded import packing, recorded_runs, recorded_suite, recorded_suites, unpack
from tracebed.validation.recorded.store import RecordedSuite

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
    assert "recorded:" in file.read_text()


def test_the_command_lists_and_copies(tmp_path: Path) -> None:
    listed = json.loads(call("recorded", "--json").stdout)["suites"]
    assert [suite["name"] for suite in listed] == SUITES
    assert all(name in call("recorded").stdout for name in SUITES)
    result = call("recorded", SUITES[0], "-o", tmp_path / "copy")
    assert str(tmp_path / "copy" / "suite.yaml") in result.stdout
    (tmp_path / "copy" / "mine").mkdir()
    for words, message in (
        ((SUITES[0], "-o", tmp_path / "copy"), "exists and is not empty"),
        (("emulatde", "-o", tmp_path / "other"), "unknown recorded suite 'emulatde'"),
        ((SUITES[0],), "the folder of the copy is missing"),
        (("-o", tmp_path / "other"), "without the name of a suite"),
    ):
        failed = call("recorded", *words)
        assert isinstance(failed.exception, InputError)
        assert message in str(failed.exception)
    assert (tmp_path / "copy" / "mine").is_dir()
    assert not (tmp_path / "other").exists()


def test_a_changed_suite_is_detected() -> None:
    facts = vars(recorded_suite(SUITES[0])) | {"sha256": "0" * 64}
    with pytest.raises(InputError, match="is missing or was changed"):
        _ = RecordedSuite(**facts).data


def test_a_campaign_is_packed(tmp_path: Path) -> None:
    tb.write(tb.generate("cirne", jobs=10, nodes=16, seed=1), tmp_path / "w.csv")
    for number in (1, 2):
        fcfs_run(10, seed=number, created="2024-05-06T07:08:09+00:00").save(tmp_path / f"out/tiny-fcfs/rep-0{number}")
    campaign = tmp_path / "campaign.yaml"
    campaign.write_text("cells: {tiny-fcfs: {workload: w.csv, policy: fcfs}}\n")
    data, facts = packing.pack(campaign, tmp_path / "out", "a tiny one")
    assert (data, facts) == packing.pack(campaign, tmp_path / "out", "a tiny one")
    assert facts == {"title": "a tiny one", "cases": 1, "runs": 2, "jobs": 10, "recorded": "2024-05-06"} | {
        "sha256": facts["sha256"]
    }
    campaign.write_text("cells: {tiny: {workload: w.csv, policy: fcfs}}\n")
    with pytest.raises(InputError, match="cell tiny is not named WORKLOAD-fcfs"):
        packing.pack(campaign, tmp_path / "out", "")
    campaign.write_text("cells: {none-fcfs: {workload: w.csv, policy: fcfs}}\n")
    with pytest.raises(InputError, match="cell none-fcfs has no runs"):
        packing.pack(campaign, tmp_path / "out", "")
