"""Tables of jobs of the Slurm simulator of the University at Buffalo: a log that becomes a suite by commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tracebed.api as tb
from tests.commands import call
from tests.logs import read_counted
from tracebed.ground.errors import InputError

JOBS = """\
dt;job_id;wall_time;user;wall_limit;n_tasks;ntasks_per_node;account;partition;qos;constraint;mem;gres
0;1001;15;user5;7;12;12;account2;normal;normal;;;
49;1002;1201;user1;30;1;1;account1;normal;normal;CPU-N;;
60.5;1003;155;user4;16;25;12;account2;normal;high;;500000;gpu:2
594;1007;-1;user4;25;24;12;account2;debug;normal;CPU-M;;
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


def test_a_table_of_jobs_is_a_workload(log: Path) -> None:
    workload, said = read_counted(log)
    assert workload.provenance.steps[0].parameters["format"] == "ub-slurm"
    table = workload.table
    assert table["job_id"].tolist() == ["1001", "1002", "1003", "1007"]
    assert table["submit_time"].tolist() == [0, 49, 60.5, 594]
    assert table["run_time"].tolist() == [15, 1201, 155, 1500]  # the last job runs until its limit
    assert table["time_limit"].tolist() == [420, 1800, 960, 1500]
    assert table["nodes"].tolist() == [1, 1, 3, 2]
    assert table["cores_per_node"].tolist() == [12, 1, 12, 12]
    np.testing.assert_array_equal(table["memory_mib"], [np.nan, np.nan, 500000, np.nan])
    assert table["queue"].tolist() == ["normal", "normal", "high", "normal"]
    assert table["partition"].tolist() == ["normal", "normal", "normal", "debug"]
    assert table["user"].str.startswith("user-").all()
    assert table["features"].tolist() == ["", "CPU-N", "", "CPU-M"]
    assert table["gres"].tolist() == ["", "", "gpu:2", ""]
    assert table["fewest_nodes"].tolist() == [1, 1, 1, 1]
    assert said == {
        "jobs that run until their limit (run time -1), limit used as run time": 1,
        "jobs that demand features, which count as jobs of any node (simulate --machine FILE)": 2,
        "jobs with GPUs, which count as jobs of nodes without GPUs "
        "(clean: drop_gpu, --only partition=NAME, or simulate --machine FILE)": 1,
        "jobs in 2 partitions (normal 3, debug 1), which count as jobs of one machine of equal nodes "
        "(clean --only partition=NAME, or simulate --machine FILE)": 4,
        "jobs on a part of a node, which count as jobs of the whole node (convert --by core)": 1,
    }


@pytest.mark.parametrize("limit", ["1e300", "1e308"])  # in seconds, the latter is infinite
def test_a_limit_that_is_too_long_is_unknown(limit: str, log: Path) -> None:
    log.write_text(JOBS.replace(";7;12;", f";{limit};12;"))
    workload, counts = read_counted(log)
    assert np.isnan(workload.floats("time_limit")[0])
    assert counts["time limits that are negative or longer than 300 years, set to unknown"] == 1


def test_cores_as_nodes_and_kept_columns(log: Path) -> None:
    workload, said = read_counted(log, by="core", keep_extra=True, keep_names=True)
    assert workload.table["nodes"].tolist() == [12, 1, 25, 24]
    assert workload.table["cores_per_node"].tolist() == [1, 1, 1, 1]
    assert workload.table["user"].tolist() == ["user5", "user1", "user4", "user4"]
    assert workload.column("fewest_nodes").tolist() == [0, 0, 0, 0]
    assert not [what for what in said if "part of a node" in what]
    with pytest.raises(InputError, match="unknown by 'cores'"):
        read_counted(log, by="cores")


def test_a_missing_column_is_named(log: Path) -> None:
    log.write_text(JOBS.replace("job_id", "id"))
    with pytest.raises(InputError, match="column 'job_id' is missing"):
        read_counted(log)


EVENTS = """\
# the events of the table above
-dt 0 -e submit_batch_job | -J jobid_1001 -sim-walltime 15 --uid=user5 -t 00:07:00 -n 12 --ntasks-per-node=12 -A a2 j
-dt 49 -e submit_batch_job | -jid 1002 -sim-walltime 1201 --uid=user1 -t 30 -n 1 --ntasks-per-node=1 --contiguous j
-dt 60.5 -e submit_batch_job | -J jobid_1003 -sim-walltime 155 -t 16:00 -N 3 -n 25 -q high --mem=500G --gres=gpu:2 j

-dt 594 -e submit_batch_job | -J jobid_1007 -sim-walltime -1 -t 0-0:25 -n 24 --ntasks-per-node=12 -p debug -C CPU-M j
"""


def test_events_are_read(tmp_path: Path) -> None:
    path = tmp_path / "w.events"
    path.write_text(EVENTS)
    workload, said = read_counted(path, keep_names=True)
    table = workload.table
    assert table["job_id"].tolist() == ["1001", "1002", "1003", "1007"]
    assert table["submit_time"].tolist() == [0, 49, 60.5, 594]
    assert table["run_time"].tolist() == [15, 1201, 155, 1500]
    assert table["time_limit"].tolist() == [420, 1800, 960, 1500]
    assert table["nodes"].tolist() == [1, 1, 3, 2]
    assert table["cores_per_node"].tolist() == [12, 1, 9, 12]
    np.testing.assert_array_equal(table["memory_mib"], [np.nan, np.nan, 512000, np.nan])
    assert table["user"].tolist() == ["user5", "user1", "", ""]
    assert table["queue"].tolist() == ["", "", "high", ""]
    assert table["features"].tolist() == ["", "", "", "CPU-M"]
    assert table["gres"].tolist() == ["", "", "gpu:2", ""]
    assert table["fewest_nodes"].tolist() == [1, 1, 3, 1]
    assert said["events with other options of sbatch, which are left out"] == 1  # --contiguous
    assert said["jobs that run until their limit (run time -1), limit used as run time"] == 1


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("-dt 0 -e cancel_job | -J jobid_1 p.job", "line has 1 fields instead of 15"),
        ("-dt x -e submit_batch_job | -J jobid_1 -sim-walltime 1 p.job", r"\(submit_time\) is 'x', not a number"),
        ("-dt 0 -e submit_batch_job | -J jobid_1 -sim-walltime 1 -t soon p.job", r"\(limit\) is 'soon', not a number"),
        ("-dt 0 -e submit_batch_job | -J jobid_1 -sim-walltime 1 --mem=much p.job", r"\(memory\) is 'much', not a"),
    ],
)
def test_an_invalid_event_is_named_with_its_line(tmp_path: Path, event: str, message: str) -> None:
    path = tmp_path / "w.events"
    path.write_text(EVENTS + event + "\n")
    with pytest.raises(InputError, match=message) as error:
        read_counted(path)
    assert str(error.value.where).endswith("w.events:7")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("5:30", 330), ("1:00:00", 3600), ("2-3", 183600), ("2-3:30", 185400), ("1-00:00:01", 86401)],
)
def test_limits_of_sbatch(tmp_path: Path, text: str, seconds: float) -> None:
    path = tmp_path / "w.events"
    path.write_text(f"-dt 0 -e submit_batch_job | -J jobid_1 -sim-walltime 1 -t {text} -n 1 p.job\n")
    assert read_counted(path)[0].table["time_limit"].tolist() == [seconds]


def test_written_events_are_read_as_the_same_jobs(tmp_path: Path) -> None:
    before, _ = read_table(tmp_path)
    tb.write(before, tmp_path / "again.events")
    after, _ = read_counted(tmp_path / "again.events", keep_names=True)
    for name in (
        "job_id",
        "run_time",
        "time_limit",
        "nodes",
        "cores_per_node",
        "memory_mib",
        "user",
        "queue",
        "features",
        "gres",
    ):
        assert after.column(name).tolist() == pytest.approx(before.column(name).tolist(), nan_ok=True), name


def read_table(folder: Path) -> tuple[tb.Workload, dict[str, int]]:
    path = folder / "jobs.csv"
    path.write_text(JOBS)
    return read_counted(path, keep_names=True)


def test_the_two_real_runs_become_a_case(reference_data: Callable[[str], Path], tmp_path: Path) -> None:
    """Two runs in one table are two repetitions of the workload in another one; by core, since jobs share nodes."""
    source = reference_data("slurm-model")
    call("convert", source / "jobs500.csv", "--by", "core", "--system", "120", "-o", tmp_path / "w.parquet")
    for number in (1, 2):
        words = ("--as", "real", "--workload", tmp_path / "w.parquet", "--only", f"run_id={number}")
        call("import", source / "two-runs.csv", *words, "-o", tmp_path / "real" / f"rep-0{number}")
    call("simulate", tmp_path / "w.parquet", "--policy", "easy", "-o", tmp_path / "sim")
    found = tb.compare(tmp_path / "real", tmp_path / "sim")
    assert [len(run.jobs) for run in found.cases[0].case.real] == [500, 500]
    assert found.cases[0].unmatched == 0
    assert found.verdict == "inconclusive"  # two repetitions are too few
    (wait,) = [item for item in found.metrics if item.name == "mean_wait_s"]
    assert wait.cases[0].real_mean > 0


def test_the_real_runs_are_predicted_with_their_slurm_conf_by_commands(
    reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    """The jobs share ten nodes, and demand features, GPUs and memory: whole nodes are not assigned to them."""
    source = reference_data("slurm-model")
    call("convert", source / "jobs500.csv", "--system", "10x12", "-o", tmp_path / "w.parquet")
    for number in (1, 2):
        words = ("--as", "real", "--workload", tmp_path / "w.parquet", "--only", f"run_id={number}")
        call("import", source / "two-runs.csv", *words, "-o", tmp_path / "real" / f"rep-0{number}")
    slurm = ("--policy", "slurm", "-P", f"@{source / 'slurm.conf'}", "--over-limit", "kill")
    call("simulate", tmp_path / "w.parquet", *slurm, "-o", tmp_path / "sim")
    found = tb.compare(tmp_path / "real", tmp_path / "sim")
    assert [run.total_nodes for run in found.cases[0].case.real] == [10, 10]
    metrics = {item.name: item.cases[0] for item in found.metrics}
    assert "utilization" not in metrics
    wait = metrics["mean_wait_s"]
    assert (round(wait.real_mean), wait.predicted) == (9593, pytest.approx(wait.real_mean, rel=0.08))
