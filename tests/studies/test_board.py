"""Data sets of real runs by other people: copies are verified, and become suites without code."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import call
from tracebed.ground.errors import InputError
from tracebed.studies.board.datasets import CONVERSIONS, Dataset, datasets, fetch
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.suite import load_suite

SUITE = """\
workloads: [one]
policies: [fcfs]
recorded: {runs: log.csv, from: csv, nodes: 1}
simulators: {fcfs: {}}
"""
TABLE = "id,submit,start,end,nodes\na,0,0,60,1\nb,5,60,90,1\n"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A data set of one file, beside the others."""
    made = Dataset(
        name="small",
        title="two jobs",
        institution="a university",
        source="https://example.org/runs",
        commit="0123456",
        licence="",
        citation="Someone, somewhere",
        files={"log.csv": hashlib.sha256(TABLE.encode()).hexdigest()},
        suite=SUITE,
    )
    monkeypatch.setitem(datasets(), "small", made)
    return made


@pytest.mark.parametrize("packed", [False, True])
def test_a_local_copy_becomes_a_suite(small: Dataset, tmp_path: Path, packed: bool) -> None:
    (tmp_path / "clone" / "runs").mkdir(parents=True)
    data = gzip.compress(TABLE.encode()) if packed else TABLE.encode()
    (tmp_path / "clone" / "runs" / f"jobs-7.csv{'.gz' * packed}").write_bytes(data)  # another name
    (tmp_path / "clone" / "log.csv").write_text("another file of this name\n")
    result = call("validate", "--recorded", "small", "--from", tmp_path / "clone", "-o", tmp_path / "copy")
    assert "licence: none stated; cite: Someone, somewhere" in result.stdout
    assert (tmp_path / "copy" / "log.csv").read_text() == TABLE
    origin = (tmp_path / "copy" / "ORIGIN.txt").read_text()
    assert "source: https://example.org/runs, commit 0123456" in origin
    assert "licence: none stated" in origin
    suite = load_experiment(str(tmp_path / "copy" / "suite.yaml"))
    task = load_suite(suite, suite.selected({}), tmp_path / "out", {}).cases["one-fcfs"]
    assert task.workload is not None and len(task.workload) == 2
    with pytest.raises(InputError, match="exists and is not empty"):
        fetch("small", tmp_path / "copy", tmp_path / "clone")


def test_a_copy_that_is_not_the_data_is_refused(small: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        fetch("small", tmp_path / "copy", tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"1 of 1 files of small are missing: no file has the SHA-256 of log\.csv; "):
        fetch("small", tmp_path / "copy", tmp_path)
    (tmp_path / "log.csv").write_text(TABLE + "c,6,90,95,1\n")
    with pytest.raises(InputError, match=r"SHA-256 of log\.csv; .*log\.csv is another file"):
        fetch("small", tmp_path / "copy", tmp_path)
    (tmp_path / ".git").mkdir()
    with pytest.raises(InputError) as wrong:  # a clone of another commit
        fetch("small", tmp_path / "copy", tmp_path)
    assert wrong.value.what.endswith("the files are those of https://example.org/runs at commit 0123456")
    assert wrong.value.hint == f"git -C {tmp_path} checkout 0123456"
    boarded = str(
        call("validate", "--board", "--only", "dataset=small", "--from", tmp_path, "-o", tmp_path / "b").exception
    )
    assert "no data set can be scored" in boarded and f"git -C {tmp_path} checkout 0123456" in boarded
    with pytest.raises(InputError, match="unknown data set 'smal'"):
        fetch("smal", tmp_path / "copy", tmp_path)
    alone = str(call("validate", "--from", tmp_path, "-o", tmp_path / "copy").exception)
    assert "--from applies with --recorded NAME or --board" in alone
    assert not (tmp_path / "copy").exists()


def test_each_data_set_states_its_origin_and_has_a_valid_suite(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("SchedulerType=sched/backfill\n")  # that of a suite
    document = json.loads(call("experiment", "--list", "--json").stdout)
    assert [each["name"] for each in document["datasets"]] == list(datasets())
    printed = call("experiment", "--list").stdout
    for name, each in datasets().items():
        own = each.institution == "tracebed"
        assert own or (each.source.startswith("https://github.com/") and each.commit), name
        assert all([each.title, each.institution, each.citation, each.files])
        assert f"{name:24}  {each.title}" in printed
        assert f"licence: {each.licence or 'none stated'}; {each.citation}" in printed
        if each.suite:  # the workloads of a pattern exist beside the files only
            file = tmp_path / f"{name}.yaml"
            file.write_text(each.suite.replace('workloads: "*"', "workloads: [delay_size34]"))
            assert load_experiment(str(file)).experiment.recorded is not None


MODEL = {
    "jobs500.csv": b"dt;job_id;wall_time;user;wall_limit;n_tasks;ntasks_per_node;account;partition;qos;constraint;"
    b"mem;gres\n"
    b"0;7;15;u5;2;24;12;a2;normal;normal;CPU-N;;\n49;8;-1;u1;30;1;1;a1;normal;normal;;500000;gpu:1\n",
    "two-runs.csv": b"slurm_mode,start_offset,run_id,job_id,submit_job,launch_job,job_epilog_complete,wait_time,"
    b"wall_time\n"
    b"normal,10,1,7,8.5,8.75,23.5,.25,15\nnormal,10,2,7,8.5,9.5,24.5,1,15\nnormal,10,1,8,57.5,58,1900,.5,1800\n",
}


def test_the_jobs_of_slurm_model_are_a_workload_of_cores_or_of_shared_nodes() -> None:
    def rows(table: bytes) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(table.decode())))

    first, second = rows(CONVERSIONS["slurm-model-cores"](MODEL))
    assert (first["submit_time"], first["run_time"], first["time_limit"], first["nodes"]) == ("0", "15", "120", "24")
    assert (second["run_time"], second["time_limit"], second["nodes"]) == ("1800", "1800", "1")  # until its limit
    first, second = rows(CONVERSIONS["slurm-model-nodes"](MODEL))
    assert (first["nodes"], first["cores_per_node"], first["features"], first["group"]) == ("2", "12", "CPU-N", "a2")
    assert (second["memory_mib"], second["gres"], second["run_time"]) == ("500000", "gpu:1", str(1800 + 86400))
    assert rows(CONVERSIONS["slurm-model-run-2"](MODEL)) == [
        {"job_id": "7", "submit": "8.5", "start": "9.5", "end": "24.5"}
    ]
    assert [row["job_id"] for row in rows(CONVERSIONS["slurm-model-run-1"](MODEL))] == ["7", "8"]


@pytest.mark.slow
def test_february_2016_is_ten_real_runs_of_five_workloads(
    reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    """Twenty pairs become cases by two commands; the intervals are those over cases, runs and workloads."""
    source = reference_data("grid5000-2016-02")
    call("validate", "--recorded", "grid5000-2016-02", "--from", source, "-o", tmp_path / "g5k")
    words = ["--only", "simulator=batsim", "--no-case-pages", "--json"]
    document = json.loads(call("validate", tmp_path / "g5k" / "suite.yaml", "-o", tmp_path / "out", *words).stdout)
    text = json.dumps(document)
    assert "20 cases have 10 different real runs, and each counts once" in text
    assert "20 cases have 5 different workloads, and each counts once" in text
    (simulator,) = document["simulators"]
    wait = next(metric for metric in simulator["metrics"] if metric["name"] == "mean_wait_s")
    assert len(wait["cases"]) == 20
    assert sum(abs(case["z"]) for case in wait["cases"]) / 20 == pytest.approx(1.96, abs=0.01)
