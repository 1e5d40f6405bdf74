"""Files of other batch systems, tables with one thing wrong: each is read, or refused with what to do."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import tracebed.api as tb
from tracebed.ground.errors import InputError, Tolerated

HEADER = (
    "job_id,workload_name,submission_time,requested_number_of_resources,requested_time,success,starting_time,"
    "execution_time,finish_time,waiting_time,allocated_resources\n"
)
FOREIGN = {
    "LSF's bjobs": "JOBID   USER   STAT  QUEUE   FROM_HOST\n101  u1  DONE  normal  h1\n",
    "lsb.acct": '"JOB_FINISH" "10.1" 1709281200 1001 500 33554438 1 1709280000 0 0 1709280600 "u1" "normal"\n',
    "LSF's bhist": "Summary of time in seconds spent in various states:\nJOBID   USER    JOB_NAME  PEND    RUN\n",
    "LSF's bjobs or bhist": "Job <101>, User <u1>, Project <default>, Command <sleep 100>\nFri Mar  1 08:00:00: x\n",
    "HTCondor": "000 (101.000.000) 2024-03-01 08:00:00 Job submitted from host: <10.0.0.1:9618>\n...\n",
    "OAR with jobs in JSON": '{\n   "7" : {\n      "name" : null,\n      "assigned_resources" : [1, 2],\n   }\n}\n',
    "PBS's qstat in JSON": '{\n    "timestamp":1709280000,\n    "pbs_version":"22.05.11",\n    "Jobs":{}\n}\n',
    "Grid Engine's qstat in XML": "<?xml version='1.0'?>\n<job_info  xmlns:xsd='x'>\n</job_info>\n",
    "accounting of Grid Engine": "all.q:n1:grp:u1:job:1001:sge:" + ":".join(["0"] * 38) + "\n",
    "qacct": "=====================\nqname        all.q\nhostname     n1\n",
    "flux jobs": "       JOBID USER     NAME       ST NTASKS NNODES     TIME INFO\n   f3sG u1 a.sh CD 4 1 10.05s n1\n",
    "Flux with jobs in JSON": '{"id": "f1", "t_submit": 1709280000.1, "t_run": 1709280600.2, "nnodes": 2}\n',
    "kubectl get jobs": "NAME    COMPLETIONS   DURATION   AGE\njob-1   1/1           30s        2d\n",
    "Kubernetes objects": '{"apiVersion": "v1", "kind": "List", "items": []}\n',
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_file_of_another_system_is_named_with_what_to_do(what: str, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text(FOREIGN[what])
    for read in (lambda: tb.read(path), lambda: tb.import_run(path, side="real")):
        with pytest.raises(InputError) as error:
            read()
        assert what in error.value.what
        assert "tracebed import FILE --as real --columns" in str(error.value.hint)


def test_a_table_of_bjobs_with_times_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bjobs.csv"
    path.write_text("JOBID,USER,STAT,QUEUE,SUBMIT_TIME,START_TIME,FINISH_TIME,NUM_HOSTS\n1,u,DONE,q,0,5,65,2\n")
    assert tb.import_run(path, side="real").jobs[["start", "end", "nodes"]].values.tolist() == [[5, 65, 2]]


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "index"])
def test_an_index_that_pandas_wrote_is_no_column(name: str, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text(f"{name},job_id,submit_time,run_time,nodes\n0,a,0,60,2\n1,b,5,30,1\n")
    with pytest.warns(Tolerated, match="columns of row numbers"):
        assert tb.read(path).column("job_id").tolist() == ["a", "b"]


def test_an_index_of_an_index_is_no_column(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text("Unnamed: 0.1,Unnamed: 0,job_id,submit_time,run_time,nodes\n0,0,a,0,60,2\n1,1,b,5,30,1\n")
    with pytest.warns(Tolerated, match=r"columns of row numbers without a name, left out \(2 times\)"):
        assert tb.read(path).column("job_id").tolist() == ["a", "b"]


@pytest.mark.parametrize("name", ["", '""', "Unnamed: 0", "index"])
def test_a_table_of_sacct_with_an_index_is_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    names = "JobID,Submit,Start,End,Elapsed,State,NNodes,AllocTRES"
    day = "2024-03-01T0"
    rows = [
        f'{row},{row + 7},{day}8:00:00,{day}8:00:05,{day}9:00:05,01:00:00,COMPLETED,2,"cpu=8,mem=2G"' for row in (0, 1)
    ]
    path.write_text("\n".join([f"{name},{names}", *rows]) + "\n")
    batch = tb.read(path, time_zone="UTC")
    assert batch.column("job_id").tolist() == ["7", "8"]
    assert batch.floats("run_time").tolist() == [3600.0, 3600.0]


def test_two_workloads_in_an_output_of_batsim_are_chosen_by_name(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(HEADER + "1,w0,0,1,-1,1,0,60,60,0,0\n1,w1,5,1,-1,1,60,30,90,55,0\n")
    with pytest.raises(InputError, match=r"the jobs of 2 workloads \(w0, w1\)") as error:
        tb.import_run(path, side="real", nodes=1)
    assert error.value.hint == "choose one: import --only workload_name=w0"
    run = tb.import_run(path, side="real", nodes=1, rows={"workload_name": "w1"})
    assert run.jobs["end"].tolist() == [85.0]
    assert run.info.imported["from"] == "batsim"


def test_a_number_that_is_too_large_is_not_called_no_number(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,submit,start,end,nodes\na,0,0,1e+16,2\n")
    with pytest.raises(InputError, match=r"end '1e\+16' is above 9.01e\+15, the largest number"):
        tb.import_run(path, side="real", nodes=2)


@pytest.mark.parametrize("pairs", ["x,a\ny,b\n", "a,x\nb,y\n"])
def test_the_columns_of_a_mapping_are_in_either_order(pairs: str, tmp_path: Path) -> None:
    path, mapping = tmp_path / "t.csv", tmp_path / "map.csv"
    path.write_text("id,submit,start,end,nodes\ny,5,60,90,1\nx,0,0,60,1\n")
    mapping.write_text(pairs)
    (tmp_path / "w.csv").write_text("job_id,submit_time,run_time,nodes\na,0,60,1\nb,5,30,1\n")
    run = tb.import_run(path, side="predicted", workload=tmp_path / "w.csv", nodes=1, match=mapping)
    assert run.jobs.set_index("job_id")["start"].to_dict() == {"a": 0.0, "b": 60.0}


@pytest.mark.parametrize("text", ["-", "NA", "n/a", "0", "null"])
def test_a_repeated_placeholder_is_no_id(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"id,submit,start,end,nodes\n{text},0,0,60,1\nb,2,0,60,1\n{text},5,60,90,1\n")
    with pytest.raises(InputError, match="is the id of 2 rows: it seems to stand for a missing id"):
        tb.import_run(path, side="real", nodes=2)


@pytest.mark.parametrize(("elapsed", "end"), [("00:10:00", "02:30:00"), ("01:10:00", "02:30:00")])
def test_elapsed_tells_in_which_of_two_hours_a_job_ended(elapsed: str, end: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"a,2023-10-29 01:00:00,2023-10-29 02:20:00,2023-10-29 {end},{elapsed},1"]
    path.write_text("\n".join(["id,submit,start,end,elapsed,nodes", *rows]) + "\n")
    run = tb.import_run(path, side="real", nodes=1, time_zone="Europe/Berlin")
    ran = (run.jobs["end"] - run.jobs["start"]).tolist()
    assert ran == [pd.Timedelta(elapsed).total_seconds()]
