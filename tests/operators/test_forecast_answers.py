"""Answers of a forecast: the drain of the queue, some of the jobs, and a job that is not submitted yet."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tracebed.api as tb
from tests.slurm.test_forecast import CONFIG, PARTITION, call, folder_of, log_of, minutes_of, running, waiting
from tracebed.cli import tracebed
from tracebed.ground.errors import ExitCode, InputError
from tracebed.operators.forecasts import _when


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """Two full nodes until 12:40, three jobs of 50 min that start one after the other in pairs, and a held job."""
    tb.write(log_of(), tmp_path / "log.parquet")
    jobs = [waiting(3, priority=300), waiting(4, priority=200), waiting(5, priority=150).replace("ann", "bob")]
    held = waiting(6, reason="JobHeldUser")
    return folder_of(tmp_path / "state", running(1, "n1"), running(2, "n2"), *jobs, held)


def forecast_of(state: Path, **options: object) -> tb.Forecast:
    return tb.forecast(state, log_of(), repetitions=8, **options)  # type: ignore[arg-type]


def test_the_queue_drains_when_its_last_job_starts(queue: Path) -> None:
    found = forecast_of(queue)
    assert found.starts.shape == (4, 8)
    assert np.isnan(found.starts[-1]).all()  # the held job
    assert found.sentence.startswith("the queue drains on Saturday at 13:3")
    assert found.sentence.endswith("): the last of 3 jobs starts; 1 job without a forecast")
    assert f"{found.table['start'][2]:%H:%M} (" in found.sentence


def test_a_drain_beyond_the_day_has_its_day(tmp_path: Path) -> None:
    long = waiting(3, limit="4-00:00:00"), waiting(4, priority=50)
    state = folder_of(tmp_path / "state", running(1, "n1", limit="10-00:00:00"), *long, states=("MIXED", "DOWN"))
    found = tb.forecast(state, log_of(), repetitions=8)
    assert found.sentence.startswith("the queue drains on 2026-02-07 at ")


def test_a_queue_without_jobs_or_forecasts_says_so(queue: Path, tmp_path: Path) -> None:
    assert forecast_of(folder_of(tmp_path / "empty", running(1, "n1"))).sentence == "no job"
    assert forecast_of(queue).only({"job": ["6"]}).sentence == "no job with a forecast"


@pytest.mark.parametrize(
    ("wanted", "jobs"),
    [
        ({"job": ["4"]}, ["4"]),
        ({"user": ["bob"]}, ["5"]),
        ({"user": ["ann"], "job": ["3", "5"]}, ["3"]),
        ({"partition": ["main"]}, ["3", "4", "5", "6"]),
        ({"account": ["physics"]}, []),
    ],
)
def test_some_jobs_are_chosen_and_start_as_in_the_whole_forecast(
    wanted: dict[str, list[str]], jobs: list[str], queue: Path
) -> None:
    whole, found = forecast_of(queue), forecast_of(queue).only(wanted)
    assert found.table["job_id"].tolist() == jobs
    assert len(found.starts) == len(jobs)
    every = minutes_of(whole)
    assert [every[job] for job in jobs if job != "6"] == [time for time in minutes_of(found).values() if time == time]


def test_a_value_without_a_waiting_job_is_named(queue: Path) -> None:
    found = forecast_of(queue).only({"partition": ["main", "mian"], "job": ["3"]})
    assert found.table["job_id"].tolist() == ["3"]
    assert found.notes[-1] == "no waiting job has the partition mian (those of the waiting jobs: main)"


def test_the_interval_of_a_drain_reads_well() -> None:
    time = datetime(2026, 1, 31, 12)
    assert _when(time, time, day=True) == "on Saturday at 12:00"
    assert [_when(time + timedelta(days=days), time) for days in (0, 1, 9)] == [
        "12:00",
        "Sunday at 12:00",
        "2026-02-09 at 12:00",
    ]


def test_the_id_of_an_array_chooses_its_tasks(tmp_path: Path) -> None:
    state = folder_of(tmp_path / "state", waiting(7, array="ArrayJobId=5 ArrayTaskId=3-4 "), waiting(8))
    assert forecast_of(state).only({"job": ["5"]}).table["job_id"].tolist() == ["5_3", "5_4"]


def test_an_unknown_key_is_an_error(queue: Path) -> None:
    with pytest.raises(InputError, match="unknown key of a job"):
        forecast_of(queue).only({"users": ["ann"]})


def test_gpus_of_all_nodes_are_in_the_table(queue: Path) -> None:
    file = queue / "job.txt"
    wanted = "NumNodes=2 TresPerNode=gres:gpu:a100:4 NumCPUs"
    two = waiting(7).replace("NumNodes=1 NumCPUs", wanted).replace("node=1", "node=2")
    file.write_text(f"{file.read_text()}{two}\n")
    assert dict(zip(*forecast_of(queue).table[["job_id", "gpus"]].to_numpy().T, strict=True))["7"] == 8
    assert "4 cores, 8 GPUs, 1 h 40 min" in call(queue)


# -- a job that is not submitted yet ----------------------------------------------------------------------------------


def test_a_job_that_is_not_submitted_starts_after_the_queue(queue: Path) -> None:
    """The three waiting jobs hold n1, n2, n1 from 12:40 on; the new one fits on n2 from 13:30 on, beside the third."""
    found = forecast_of(queue, would_start="nodes=1,cores=4,time=01:40:00")
    assert found.table[["job_id", "cores", "limit_s", "waits"]].to_numpy().tolist() == [
        ["new", 4, 6000.0, "not submitted"]
    ]
    (start,) = minutes_of(found).values()
    (last,) = (time for job, time in minutes_of(forecast_of(queue)).items() if job == "5")
    assert last - 5 <= start <= last + 10
    assert found.sentence.startswith("the job starts on Saturday at 13:")


def test_a_short_job_is_backfilled(queue: Path) -> None:
    """A third node has two free cores: a job that fits there starts at once."""
    nodes = (queue / "node.txt").read_text()
    third = nodes.splitlines()[0].replace("n1", "n3").replace("4 G", "2 G")
    (queue / "node.txt").write_text(f"{nodes}{third}\n")
    (queue / "partition.txt").write_text(PARTITION.replace("n[1-2]", "n[1-3]") + "\n")
    (start,) = minutes_of(forecast_of(queue, would_start="cores=2,time=10")).values()
    assert start < 3


def test_the_job_of_a_user_has_the_priority_of_this_user(queue: Path) -> None:
    """With fair shares, a new job of the user with a large factor starts before the queue of the other."""
    (queue / "config.txt").write_text(CONFIG.replace("= 1000", "= 0\nPriorityWeightFairShare = 100000"))
    header = (
        "Account|User|RawShares|NormShares|RawUsage|NormUsage|EffectvUsage|FairShare|LevelFS|GrpTRESMins|TRESRunMins"
    )
    rows = ["chem||1|1.0|900|1.0|1.0||||", "chem|ann|1|0.5|900|1.0|1.0|0.1|0.5||", "chem|bob|1|0.5|0|0.0|0.0|1.0|inf||"]
    (queue / "sshare.txt").write_text("\n".join([header, *rows]) + "\n")
    file = queue / "job.txt"
    text = file.read_text().replace("Priority=300", "Priority=10000").replace("Priority=200", "Priority=10000")
    file.write_text(text.replace("Priority=150", "Priority=10000").replace("UserId=bob", "UserId=ann"))
    job = "cores=4,time=01:40:00"
    (end,) = minutes_of(forecast_of(queue, would_start=job)).values()
    (of_ann,) = minutes_of(forecast_of(queue, would_start=f"{job},user=ann")).values()
    (of_bob,) = minutes_of(forecast_of(queue, would_start=f"{job},user=bob")).values()
    assert of_bob + 30 < of_ann <= end + 5


def test_a_job_that_no_node_can_run_has_no_forecast(queue: Path) -> None:
    found = forecast_of(queue, would_start="nodes=1,gres=gpu:1,time=10")
    assert found.table["reason"].tolist() == ["no available nodes of its partition can run it"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes", "'nodes' is not KEY=VALUE"),
        ("nodes=0", "nodes=0 is not a number from 1 to"),
        ("nodes=2,nodes=3", "nodes is given twice"),
        ("size=2", "unknown key of --would-start"),
        ("partition=gpu", "unknown partition of --would-start"),
        ("time=soon", "'soon' is not a time"),
        ("memory=much", "memory=much is not a size"),
        ("time=2:00:00", "time=2:00:00 exceeds MaxTime of the partition main, 60 min"),
        ("nodes=3", "nodes=3 exceeds MaxNodes of the partition main, 2"),
    ],
)
def test_an_invalid_job_is_an_error_with_its_mend(text: str, message: str, queue: Path) -> None:
    limits = PARTITION.replace("MaxTime=UNLIMITED", "MaxTime=01:00:00 MaxNodes=2")
    (queue / "partition.txt").write_text(limits + "\n")
    with pytest.raises(InputError, match=message):
        forecast_of(queue, would_start=text)


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_some_jobs_and_the_sentence(queue: Path) -> None:
    *_, job, sentence = call(queue, "--only", "user=bob,eve", "--only", "partition=main").splitlines()
    assert job.split()[:2] == ["5", "bob"]
    assert sentence.startswith("the job starts on Saturday at 13:")
    assert "the queue drains" in call(queue)


def test_the_command_tells_when_a_job_would_start(queue: Path) -> None:
    found = json.loads(call(queue, "--would-start", "nodes=1,cores=4,time=01:40:00", "--json"))
    assert [job["job_id"] for job in found["jobs"]] == ["new"]
    assert found["sentence"].startswith("the job starts on Saturday at 13:")


def test_the_command_shows_its_progress(queue: Path) -> None:
    done: list[int] = []
    forecast_of(queue, on_progress=done.append)
    assert done == [*range(1, 9)]
    command = ["-v", "forecast", str(queue), "--log", str(queue.parent / "log.parquet")]
    result = CliRunner().invoke(tracebed, command)
    assert result.exit_code == ExitCode.OK
    assert "simulating: " in result.stderr
