"""Tables of jobs whose columns a recipe names. All tables here are made by hand, after the documentation of logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.logs import tolerated
from tracebed.cli.logs import TABLES
from tracebed.converters.formats.table import SHARED_GPUS
from tracebed.converters.formats.tools.column_recipes import SHIPPED, load_columns, names
from tracebed.converters.formats.tools.gres import UNEVEN
from tracebed.ground.errors import ExitCode, InputError

HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
11,uA,vcX,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:05,2020-06-10 04:55:09,36844,4
12,uB,vcY,16,64,2,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
13,uB,vcY,0,8,1,NODE_FAIL,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-09 18:41:58,30,0
14,uC,vcY,7,8,2,TIMEOUT,2020-06-09 18:41:29,2020-06-09 18:41:29,2020-06-09 18:42:29,60,0
"""
KALOS = """job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,\
end_time,fail_time,stop_time,duration,queue,gpu_time
dlc1,u7,8,64,960,1000,100.0,Other,CANCELLED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,\
2023-05-17 11:01:16+00:00,,,18,10.0,1152.0
"""
SEREN = """job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
57,u5,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
"""
PAI = """j1,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.296875,50.0,MISC
j1,ps,2.0,Failed,1739163.0,1739200.0,400.0,2.0,,CPU
j2,worker,4.0,Waiting,,,400.0,2.0,200.0,V100
j3,worker,4.0,Running,1739165.0,,400.0,2.0,200.0,V100
"""
OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p1,88000,327680,8,1000,,Burstable,Succeeded,9437497,10769854,9437497
p2,4000,15258,1,220,,BE,Running,9679175,9973826,9679180
p3,16000,32768,1,1000,V100M16|V100M32,LS,Failed,9967058,9968575,9967063
p4,500,32768,0,0,,LS,Pending,9967058,,
"""


def held(ip: str, gpus: int) -> dict[str, Any]:
    """Return a server of an attempt."""
    return {"ip": ip, "gpus": [f"gpu{number}" for number in range(gpus)]}


def attempt(start: str | None, end: str | None, *detail: dict[str, Any]) -> dict[str, Any]:
    """Return an attempt on 2017-10-07."""
    start, end = (None if time is None else f"2017-10-07 {time}" for time in (start, end))
    return {"start_time": start, "end_time": end, "detail": list(detail)}


PHILLY = [
    {
        "status": "Pass",
        "vc": "v1",
        "jobid": "a1",
        "attempts": [
            attempt("01:12:09", "01:13:23", held("m1", 8)),
            attempt("01:13:30", "02:13:30", held("m2", 8), held("m3", 8)),
        ],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "u1",
    },
    {
        "status": "Killed",
        "vc": "v2",
        "jobid": "a2",
        "attempts": [],
        "submitted_time": "2017-10-07 01:12:00",
        "user": "",
    },
    {
        "status": "Failed",
        "vc": "v1",
        "jobid": "a3",
        "attempts": [attempt("02:00:00", None, held("m1", 1)), attempt("03:00:00", "03:10:00", held("m1", 1))],
        "submitted_time": "2017-10-07 01:59:00",
        "user": "u2",
    },
]


def read(path: Path, text: str, columns: str, **options: Any) -> tuple[pd.DataFrame, tb.Workload, dict[str, int]]:
    """Return the jobs by id, the workload and the tolerated defects."""
    path.write_text(text)
    with tolerated() as counts:
        workload = tb.read(path, columns=columns, **options)
    return workload.table.set_index("job_id"), workload, counts


def test_the_shipped_recipes_are_those_of_the_help() -> None:
    assert ", ".join(names()) == TABLES
    for name in names():
        assert "github.com" in load_columns(name).about


def test_helios(tmp_path: Path) -> None:
    jobs, workload, counts = read(tmp_path / "cluster_log.csv", HELIOS, "helios", keep_names=True)
    assert jobs["gres"].tolist() == ["gpu:1", "gpu:8", "", "gpu:4"]
    assert jobs["partition"].tolist() == ["vcX", "vcY", "vcY", "vcY"]
    assert jobs["nodes"].tolist() == [1, 2, 1, 2]
    assert jobs["cores_per_node"].tolist() == [1, 32, 8, 4]
    assert jobs["status"].tolist() == ["completed", "failed", "failed", "killed"]
    assert jobs["user"].tolist() == ["uA", "uB", "uB", "uC"]
    assert jobs["run_time"].tolist() == [36_844, 249, 30, 60]
    assert "queue" not in jobs, "the column queue is a wait"
    assert counts[UNEVEN] == 1
    assert workload.provenance.unix_start == pd.Timestamp("2020-06-09 18:41:01", tz="Asia/Shanghai").timestamp()
    assert workload.provenance.system.name == "SenseTime Helios"
    assert read(tmp_path / "again.csv", HELIOS, "helios")[0]["user"].iloc[0].startswith("user-")


def test_acme(tmp_path: Path) -> None:
    jobs, workload, _ = read(tmp_path / "trace_kalos.csv", KALOS, "acme")
    demands = ["nodes", "cores_per_node", "gres", "memory_mib", "status"]
    assert jobs.loc["dlc1", demands].tolist() == [8, 120, "gpu:8", 1_024_000, "cancelled"]
    assert workload.provenance.unix_start == pd.Timestamp("2023-05-17 11:00:58", tz="UTC").timestamp()
    jobs, workload, _ = read(tmp_path / "trace_seren.csv", SEREN, "acme")
    assert jobs.loc["57", demands[:3]].tolist() == [1, 128, "gpu:8"]
    assert workload.provenance.unix_start == pd.Timestamp("2023-03-01 00:18:22", tz="Asia/Shanghai").timestamp()


def test_each_attempt_of_philly_is_a_run(tmp_path: Path) -> None:
    jobs, workload, _ = read(tmp_path / "cluster_job_log", json.dumps(PHILLY), "philly")
    assert list(jobs.index) == ["a1", "a2", "a1-2", "a3", "a3-2"]
    assert jobs["status"].tolist() == ["requeued", "cancelled", "completed", "requeued", "failed"]
    assert jobs["nodes"].tolist() == [1, 0, 2, 1, 1]
    assert jobs["gres"].tolist() == ["gpu:8", "", "gpu:8", "gpu:1", "gpu:1"]
    assert jobs["partition"].tolist() == ["v1", "v2", "v1", "v1", "v1"]
    assert jobs["submit_time"].diff().tolist()[1:3] == [21, 83], "at the end of the attempt before"
    assert jobs.loc["a3-2", "submit_time"] == jobs.loc["a3-2", "logged_start"], "the end of the one before is unknown"
    np.testing.assert_array_equal(jobs["run_time"], [74, np.nan, 3600, np.nan, 600])
    assert workload.provenance.time_zone == "America/Los_Angeles"


def test_values_of_several_types_in_json_are_texts(tmp_path: Path) -> None:
    odd = [PHILLY[0] | {"jobid": 10**30, "status": 7}, PHILLY[2] | {"user": {"name": ["a"]}}]
    jobs, _, counts = read(tmp_path / "a", json.dumps(odd), "philly")
    assert list(jobs.index) == [str(10**30), f"{10**30}-2", "a3", "a3-2"]
    assert jobs["status"].tolist() == ["requeued", "unknown", "requeued", "failed"]
    assert counts["jobs in an unknown state: 7"] == 2


def test_an_attempt_over_the_end_of_summer_time_has_its_hours(tmp_path: Path) -> None:
    times = {"start_time": "2017-11-05 00:30:00", "end_time": "2017-11-05 01:10:00", "detail": [held("m1", 1)]}
    job = PHILLY[0] | {"submitted_time": "2017-11-05 00:29:00", "attempts": [times]}
    jobs, _, counts = read(tmp_path / "a", json.dumps([job]), "philly")
    assert jobs["run_time"].tolist() == [40 * 60 + 3600]
    assert any("occurs twice" in what for what in counts), "each hour is possible"


def test_alibaba_2020_has_no_header(tmp_path: Path) -> None:
    jobs, workload, counts = read(tmp_path / "pai_task_table.csv", PAI, "alibaba-2020")
    assert list(jobs.index) == ["j1.tensorflow", "j1.ps", "j3.worker"]
    assert jobs["gres"].tolist() == ["gpu:1", "", "gpu:2"]
    assert jobs["extra_gpus"].fillna(0).tolist() == [0.5, 0, 8]
    assert jobs["cores_per_node"].tolist() == [6, 4, 4]
    assert jobs["memory_mib"].tolist() == [30_000, 2048, 2048]
    assert jobs["partition"].tolist() == ["MISC", "CPU", "V100"]
    assert jobs["status"].tolist() == ["completed", "failed", "running"]
    assert counts[SHARED_GPUS] == 1
    assert workload.provenance.unix_start == 1_739_162
    with pytest.raises(InputError, match=r"bad\.csv:2: inst_num 'two' is not a number"):
        read(tmp_path / "bad.csv", PAI.replace("2.0,Failed", "two,Failed"), "alibaba-2020")
    header = ",".join(load_columns("alibaba-2020").header)
    again, _, _ = read(tmp_path / "with_header.csv", f"{header}\n{PAI}", "alibaba-2020")
    assert again["gres"].tolist() == jobs["gres"].tolist()


def test_alibaba_2023(tmp_path: Path) -> None:
    jobs, workload, counts = read(tmp_path / "openb_pod_list_default.csv", OPENB, "alibaba-2023")
    assert jobs["gres"].tolist() == ["gpu:8", "gpu:1", "gpu:1", ""]
    assert jobs["extra_gpu_share"].tolist() == [1, 0.22, 1, 0]
    assert jobs["nodes"].tolist() == [1, 1, 1, 1]
    assert jobs["cores_per_node"].tolist() == [88, 4, 16, 1]
    assert jobs["features"].tolist() == ["", "", "V100M16|V100M32", ""]
    assert jobs["queue"].tolist() == ["Burstable", "BE", "LS", "LS"]
    assert jobs["status"].tolist() == ["completed", "running", "failed", "pending"]
    assert counts[SHARED_GPUS] == 1
    assert workload.provenance.unix_start is None, "the dates are unknown"
    assert jobs["submit_time"].iloc[0] == 0


def test_a_recipe_of_ones_own(tmp_path: Path, call: Callable[..., Any]) -> None:
    (tmp_path / "mine.yaml").write_text(
        "columns: {job_id: [job, Id], submit_time: at, nodes: n, run_time: {column: minutes, unit: 60}, cores: 96,\n"
        "  memory_of_job_mib: {column: gib, unit: 1024}, gpus: gpus, gpu_type: type, dependency: needs}\n"
    )
    (tmp_path / "log.csv").write_text(
        "Id;at;n;minutes;gib;gpus;type;needs\n1;100;3;10;6;6;A100;\n2;160;1;5;;;;afterok:1\n"
    )
    status, _, error = call("convert", "log.csv", "--columns", "mine.yaml", "-o", "w.parquet")
    assert status == ExitCode.OK, error
    jobs = tb.read("w.parquet").table.set_index("job_id")
    assert jobs.loc["1", ["nodes", "cores_per_node", "memory_mib", "gres"]].tolist() == [3, 32, 2048, "gpu:a100:2"]
    assert jobs["run_time"].tolist() == [600, 300]
    assert jobs.loc["2", "dependency"] == "afterok:1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("columns: {job_id: a, submit_time: b}", "column 'nodes' is missing"),
        ("columns: {job_id: a, submit_time: b, nodes: c, ram: d}", r"column 'ram' is unknown.*memory_mib"),
        (
            "columns: {job_id: a, submit_time: b, nodes: 1}\nstates: {Done: ended}",
            r"state 'ended' is unknown.*completed",
        ),
        ("columns: {job_id: [], submit_time: b, nodes: 1}", "must not be empty"),
        ("colums: {}", "colums: unknown key"),
    ],
)
def test_an_invalid_recipe_is_one_clear_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(InputError, match=says):
        load_columns(tmp_path / "r.yaml")


def test_what_is_not_there_is_named(tmp_path: Path, call: Callable[..., Any]) -> None:
    (tmp_path / "a.csv").write_text(HELIOS)
    status, _, error = call("convert", "a.csv", "--columns", "heloos", "-o", "w.parquet")
    assert status == ExitCode.USAGE
    assert TABLES in error
    status, _, error = call("convert", "a.csv", "--columns", "alibaba-2023", "-o", "w.parquet")
    assert status == ExitCode.USAGE
    assert "a.csv:1: column 'name' is missing" in error
    status, _, error = call("convert", "a.csv", "--from", "table", "-o", "w.parquet")
    assert status == ExitCode.USAGE
    assert "no recipe of the columns" in error
    (tmp_path / "b.json").write_text("[1]")
    with pytest.raises(InputError, match="item 1 of the list is not an object"):
        tb.read(tmp_path / "b.json", columns="philly")
    (tmp_path / "c.json").write_text("[]")
    with pytest.raises(InputError, match="contains no jobs"):
        tb.read(tmp_path / "c.json", columns="philly")


@pytest.mark.parametrize("command", [["--columns", "helios", "--recipe", "gpu-cluster"], ["--recipe", "helios.yaml"]])
def test_tables_are_cleaned(command: list[str], tmp_path: Path, call: Callable[..., Any]) -> None:
    (tmp_path / "helios.yaml").write_text("read: {columns: helios}\nsteps: [drop_zero_nodes, unique_ids]")
    (tmp_path / "a.csv").write_text(HELIOS)
    status, _, error = call("clean", "a.csv", *command, "-o", "w.parquet")
    assert status == ExitCode.OK, error
    assert tb.read("w.parquet").column("gres").tolist() == ["gpu:1", "gpu:8", "", "gpu:4"]
    status, out, _ = call("describe", "a.csv", "--columns", "helios", "--json")
    assert json.loads(out)["gpu_jobs"] == 3


def test_shipped_recipes_are_packaged() -> None:
    assert {f"{name}.yaml" for name in names()} == {file.name for file in SHIPPED.iterdir()}
