"""Batsim workloads: written for both versions, and read."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.converters.test_elastisim import VALUES, workload_of
from tests.logs import read_counted, tolerated
from tracebed.converters.formats import batsim
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import SCHEMA, Provenance, System, Workload
from tracebed.ground.errors import InputError


def written(workload: Workload, path: Path, **options: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """Write a folder, or a file if the name has a suffix; return the document and the warnings."""
    with tolerated() as counts:
        write_workload(workload, path, "batsim", **options)
    document = json.loads((path / "workload.json" if path.is_dir() else path).read_text())
    return document, counts


@pytest.mark.parametrize(("version", "type"), [("4", "delay"), ("5", "DelayProfile")])
def test_jobs_and_profiles(tmp_path: Path, version: str, type: str) -> None:
    workload = workload_of(
        {"submit_time": 100.5, "run_time": 12.25, "time_limit": 30.0},
        {"submit_time": 103.0, "run_time": 12.25, "time_limit": math.nan, "nodes": 200},
        {"submit_time": 103.0, "run_time": 0.0, "time_limit": 0.0, "kind": "moldable"},
        {"submit_time": 104.0, "run_time": math.nan},
    )
    document, tolerated = written(workload, tmp_path / "w.json", version=version)
    assert document["nb_res"] == 128
    assert [{key: job[key] for key in job if key not in ("profile", "extra_data")} for job in document["jobs"]] == [
        {"id": "job0", "subtime": 0, "res": 4, "walltime": 30},
        {"id": "job1", "subtime": 2.5, "res": 200},
        {"id": "job2", "subtime": 2.5, "res": 4, "walltime": 0.001},
    ]
    profiles = [document["profiles"][job["profile"]] for job in document["jobs"]]
    assert profiles == [{"type": type, "delay": delay} for delay in (12.25, 12.25, 0.001)]
    assert len(document["profiles"]) == 2, "jobs of one run time share a profile"
    assert tolerated == {
        "jobs without a run time left out": 1,
        "jobs larger than the machine's 128 nodes": 1,
        "jobs that are not rigid, written at their requested size": 1,
        "run times below 1 ms, written as 1 ms": 1,
        "time limits below 1 ms, written as 1 ms": 1,
        "columns without a field in Batsim (kind), kept in extra_data, which Batsim passes to the scheduler": 1,
    }


def test_a_folder_has_a_platform_with_a_master(tmp_path: Path) -> None:
    written(workload_of({}), tmp_path / "bat")
    assert sorted(path.name for path in (tmp_path / "bat").iterdir()) == ["platform.xml", "workload.json"]
    root = ElementTree.parse(tmp_path / "bat" / "platform.xml").getroot()
    nodes, master = root.iter("cluster")
    assert nodes.get("radical") == "0-127"
    assert [(prop.get("id"), prop.get("value")) for prop in master] == [("role", "master")]
    (route,) = root.iter("zoneRoute")
    for end, cluster in (("src", nodes), ("dst", master)):
        assert route.get(end) == cluster.get("id")
        assert route.get(f"gw_{end}") == f"{cluster.get('prefix')}{cluster.get('id')}_router"
    written(workload_of({}), tmp_path / "bat", replace=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="exists and is not a workload for batsim"):
        written(workload_of({}), tmp_path / "mine")


def test_each_column_is_held_or_warned_of_and_comes_back(tmp_path: Path) -> None:
    usual = {name: 2 if column.default == "nodes" else column.default for name, column in SCHEMA.items()}
    table = pd.DataFrame([VALUES, usual | {"job_id": "y", "submit_time": 1.0, "run_time": 1.5, "nodes": 2}])
    workload = Workload(table.assign(extra_flag=[True, False]), Provenance(system=System(16, 4)))
    _, tolerated = written(workload, tmp_path / "w.json")
    (warning,) = (what for what in tolerated if what.startswith("columns without a field in Batsim"))
    warned = set(re.search(r"\((.*)\),", warning)[1].split(", "))  # type: ignore[index]
    assert warned == {*SCHEMA, "extra_flag"} - batsim.HELD
    back, _ = read_counted(tmp_path / "w.json")
    for name in workload.table:
        pd.testing.assert_series_equal(back.table[name], workload.table[name], check_dtype=name != "extra_flag")
    assert back.provenance.system == System(16, 4)
    assert back.provenance.steps[-1].parameters["format"] == "batsim"


GOOD = {"id": 7, "subtime": 3.5, "res": 2, "profile": "p"}
PROFILES = {"p": {"type": "delay", "delay": 10.5}, "q": {"type": "parallel_homogeneous", "cpu": 1e9, "com": 0}}


def foreign(path: Path, *jobs: dict[str, Any], **more: Any) -> Path:
    path.write_text(json.dumps({"nb_res": 8, "jobs": jobs, "profiles": PROFILES, **more}))
    return path


def test_files_of_other_programs(tmp_path: Path) -> None:
    jobs = (
        GOOD | {"walltime": 20, "extra_data": "colour: red", "priority": 3},
        GOOD | {"id": "w0!8", "walltime": -1, "profile": "q", "subtime": 1},
    )
    path = foreign(tmp_path / "any.json", *jobs, description="made by hand")
    workload, tolerated = read_counted(path)
    assert workload.column("job_id").tolist() == ["w0!8", "7"]
    assert workload.floats("run_time").tolist()[1] == 10.5
    assert math.isnan(workload.floats("run_time")[0])
    assert workload.floats("time_limit").tolist()[1] == 20.0
    assert math.isnan(workload.floats("time_limit")[0])
    assert workload.provenance.system.nodes == 8
    assert tolerated == {
        "jobs whose profile is not a delay, run time unknown": 1,
        "jobs with additional keys, not kept": 1,
    }
    workload, tolerated = read_counted(path, keep_extra=True)
    assert workload.table["extra_extra_data"].tolist() == ["", "colour: red"]
    assert workload.table["extra_priority"].tolist()[1] == 3
    assert tolerated == {"jobs whose profile is not a delay, run time unknown": 1}


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"profile": "r"}, r"jobs\[1\]: profile 'r' is missing"),
        ({"profile": None}, "profile is null, not a text"),
        ({"res": -1}, "res is -1, not a number of at least 0"),
        ({"res": 2.5}, "res is 2.5, not a whole number"),
        ({"id": None}, "id is null"),
        ({"id": True}, "id is true"),
        ({"id": 7}, "job_id is not unique"),
        ({"id": "\ud800"}, "contains a lone surrogate"),
        ({"extra_data": {"user": "\udfff"}}, "contains a lone surrogate"),
        ({"subtime": "3"}, 'subtime is "3", not a number'),
        ({"walltime": -5}, "walltime is -5, not -1"),
        ({"walltime": 1e300}, "walltime is 1e.300"),
        ({"walltime": [1]}, "walltime is"),
    ],
)
def test_bad_jobs_are_one_line_with_their_place(tmp_path: Path, job: dict[str, Any], message: str) -> None:
    path = foreign(tmp_path / "w.json", GOOD, GOOD | {"id": 8} | job)
    with pytest.raises(InputError, match=message) as caught:
        read_counted(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown Batsim version 6"):
        written(workload_of({}), tmp_path / "a.json", version="6")
    with pytest.raises(InputError, match="no job with a run time"):
        written(workload_of({"run_time": math.nan}), tmp_path / "bat")
    assert list(tmp_path.iterdir()) == []


VALID = json.dumps({"nb_res": 4, "jobs": [GOOD, GOOD | {"id": 8, "walltime": 9}], "profiles": PROFILES}).encode()
