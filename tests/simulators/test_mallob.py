"""Logs of Mallob: what of each line enters the run, on a handmade folder of two clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tracebed.api as tb
from tracebed.ground.errors import InputError
from tracebed.validation.simulators.mallob import contents_of, logged_jobs, logged_volumes, ranks_of, recognizes

LOGS = {
    "6": {
        "log.6.streamer": "0.9 6 Streamer SUBMIT templated-job-1 arr=2.000 prio=0.250 wclim=50s maxdem=7\n"
        "0.9 6 Streamer SUBMIT templated-job-2 arr=3.000 prio=1.000 wclim=9s maxdem=3\n"
        "0.9 6 Streamer SUBMIT templated-job-3 arr=99.000 prio=1.000 wclim=9s maxdem=3\n",
        "log.6.i": '0.9 6 I Mapping job "admin.templated-job-1.json" to internal ID #1\n'
        "0.9 6 I Job #1 : wallclock time limit 50.000 secs\n"
        '0.9 6 I Mapping job "admin.templated-job-2.json" to internal ID #2\n',
        "log.6.reader": "2.000 6 <Reader> [T] Reading job #1 rev. 0 {instances/a.cnf} ...\n"
        "2.050 6 <Reader> [T] Initialized job #1 {instances/a.cnf} in 0.050s: 9 lits w/ separators, 0 assumptions\n",
        "log.6": "1.0 6 I am worker #6\n"
        "2.100 6 Introducing job #1 rev. 0 : r.#1:0 rev. 0 <- [6] born=2.100 hops=0 epoch=-1 => [3]\n"
        "2.110 6 Scheduling r.#1:0 rev. 0 <- [6] born=2.100 hops=0 epoch=-1 on [3] (latency: 0.01000s)\n"
        "2.200 6 #100001:4 : update v=5 epoch=6 lastreqsepoch=6 evlat=0.00000\n"
        "3.000 6 Introducing job #2 rev. 0 : r.#2:0 rev. 0 <- [6] born=3.000 hops=0 epoch=-1 => [2]\n"
        "3.500 6 Scheduling r.#2:0 rev. 0 <- [6] born=3.000 hops=0 epoch=-1 on [5] (latency: 0.50000s)\n"
        "12.600 6 TIMEOUT #2 9.600000 <= [5]\n"
        "20.000 6 Received result of job #1 rev. 0, code: 20 <= [3]\n"
        "20.000 6 RESPONSE_TIME #1 17.900000 rev. 0\n"
        "20.000 6 SOLUTION #1 UNSAT rev. 0\n",
    },
    "7": {
        "log.7.streamer": "0.9 7 Streamer SUBMIT templated-job-1 arr=2.000 prio=0.500 wclim=60s maxdem=8\n",
        "log.7.i": '0.9 7 I Mapping job "admin.templated-job-1.json" to internal ID #100001\n',
        "log.7.reader": "",
        "log.7": "2.000 7 Introducing job #100001 rev. 0 : r.#100001:0 rev. 0 <- [7] born=2.000 => [0]\n"
        "2.001 7 Scheduling r.#100001:0 rev. 0 <- [7] born=2.000 on [0] (latency: 0.00100s)\n",
    },
    "0": {"log.0": "2.150 0 #100001:0 : update v=4 epoch=5 lastreqsepoch=6 evlat=0.00000\n", "log.0.janitor": "?"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank, files in LOGS.items():
        (tmp_path / "run" / rank).mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / "run" / rank / name).write_text(text)
    (tmp_path / "run" / "slurm-7.out").write_text("#ranks: 8\nbuild/mallob -q -c=2 -T=60 -t=4 -log=x\n")
    return tmp_path / "run"


def test_the_jobs_of_all_clients_with_what_they_ask_for(folder: Path) -> None:
    jobs = logged_jobs(contents_of(folder), "run")
    assert jobs.index.tolist() == [100001, 1, 2]  # by their introduction; a job that was not introduced is no job
    assert jobs.loc[1, ["client", "formula", "priority", "limit", "demand"]].tolist() == [
        *(6, "instances/a.cnf", 0.25, 50.0, 7),
    ]
    assert jobs["state"].tolist() == ["running", "solved", "timeout"]
    assert jobs.loc[1, ["submit", "start", "end"]].tolist() == [2.1, 2.11, 20.0]
    assert np.isnan(jobs.loc[100001, "end"])


def test_the_run_and_its_workload(folder: Path) -> None:
    assert recognizes(folder)
    run = tb.import_run(folder, side="real")
    assert run.jobs["state"].tolist() == ["interrupted", "completed", "killed"]
    assert run.jobs["submit"].tolist() == [2.0, 2.1, 3.0]
    assert (run.jobs["end"] - run.jobs["start"]).tolist()[1:] == pytest.approx([17.89, 9.1])
    assert run.jobs["time_limit"].tolist() == [60.0, 50.0, 9.0]
    assert set(run.jobs["kind"]) == {"malleable"}
    assert len(run.info.nodes) == 8
    assert run.info.nodes[0].cores == 4
    assert run.info.imported["nodes_of_jobs"] == "assigned"


def test_the_sizes_are_those_of_the_rule_beside_the_logged_ones(folder: Path) -> None:
    """8 ranks, priorities 0.5, 0.25 and from 3.5 to 12.6 s 1.0 with at most three workers."""
    run = tb.import_run(folder, side="real")
    assert run.resizes[["job_id", "nodes_from", "nodes_to", "asked"]].to_numpy().tolist() == [
        *(["100001", 8, 6, 2.11], ["100001", 6, 4, 3.5], ["100001", 4, 6, 12.6], ["100001", 6, 8, 20.0]),
        *(["1", 2, 1, 3.5], ["1", 1, 2, 12.6]),
    ]
    held = run.allocations
    for time, busy in ((2.05, 8), (3.0, 8), (5.0, 8), (15.0, 8), (30.0, 8)):
        at = held[(held["start"] <= time) & ~(held["end"] <= time)]
        nodes = [node + k for node, count in zip(at["node"], at["count"], strict=True) for k in range(count)]
        assert len(nodes) == len(set(nodes)) == busy
    assert "in 50.0 % of 2 logged volumes" in run.info.warnings[0]  # 4 and 5 workers, where the rule has 6
    few = tb.import_run(folder, side="real", nodes=2)
    assert set(few.info.unknown) == {"allocations", "reconfigurations"}
    assert "more jobs than ranks run at once" in few.info.warnings[0]


def test_a_table_of_the_jobs_is_a_run_too(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    logged_jobs(contents_of(folder), "run").to_csv(file)
    run, of_logs = (tb.import_run(each, side="real", form="mallob", nodes=8) for each in (file, folder))
    assert run.resizes.equals(of_logs.resizes)
    assert run.jobs["end"].equals(of_logs.jobs["end"])
    file.write_text(file.read_text().replace("priority", "weight"))
    with pytest.raises(InputError, match="the column priority is missing"):
        tb.import_run(file, side="real", form="mallob", nodes=8)


def test_volumes_of_a_job_from_all_ranks_in_order_of_time(folder: Path) -> None:
    assert logged_volumes(contents_of(folder)).to_numpy().tolist() == [[2.15, 100001, 4], [2.2, 100001, 5]]
    assert ranks_of(contents_of(folder)) == (8, 4)


@pytest.mark.parametrize(
    ("lost", "message"),
    [("log.6", "log.6 is missing"), ("log.7.reader", "log.7.reader is missing"), ("all", "no client introduced a job")],
)
def test_an_incomplete_folder_is_an_error(folder: Path, lost: str, message: str) -> None:
    for file in folder.rglob("*"):
        if file.name == lost or (lost == "all" and file.is_file()):
            file.unlink()
    with pytest.raises(InputError, match=message):
        logged_jobs(contents_of(folder), "run")


@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [
        ("6/log.6.i", "#1\n", "#9\n", "job 1 of log.6 was never submitted"),
        ("6/log.6", "TIMEOUT #2 ", "TIMEOUT #5 ", "job 5 of log.6 was never introduced"),
    ],
)
def test_a_job_without_its_lines_is_an_error(folder: Path, file: str, before: str, after: str, message: str) -> None:
    text = (folder / file).read_text()
    (folder / file).write_text(text.replace(before, after, 1))
    with pytest.raises(InputError, match=message):
        logged_jobs(contents_of(folder), "run")
