"""Modular Workload Format: 41 or 42 fields, one line per component. All lines here are synthetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.logs import tolerated
from tracebed.converters.cleaning.audit import jobs_of
from tracebed.converters.formats import mwf, swf
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import System, Workload
from tracebed.ground.errors import InputError

DEFAULT = dict.fromkeys(mwf.FIELDS[:-1], "-1") | {
    **{"job": "1", "components": "1", "name": "j1", "submit": "0", "wait": "10", "limit": "3600"},
    **{"component": "0", "run": "600", "status": "1", "partitions": "cm", "nodes": "4", "processes": "8"},
}


def component(**fields: object) -> str:
    """Return a line of 41 fields, or of 42 if the last is given."""
    return ";".join(str(value) for value in (DEFAULT | fields).values())


LOG = "\n".join(
    [
        "; a modular machine that never was",
        component(),
        component(job=2, components=2, submit=20, component=0, component_wait=5, nodes=16, threads=2, status=0),
        component(job=2, components=2, submit=20, component=1, component_wait=65, nodes=2, partitions="gpu", run=900),
        component(job=3, submit=30, after="2,1", dependency="afterok,afterok", think=60, limit=-1),
        component(job=4, submit=40, after=99, think=5, nodes=-1, processes=-1, nodes_alloc=3, processes_alloc=4),
        component(job=5, submit=50, nodes_alloc=6, processes_alloc=8, partition="esb", partitions=-1, wait=-1),
    ]
).encode()


def read(data: bytes, **options: Any) -> tuple[Workload, dict[str, int]]:
    with tolerated() as counts:
        workload = jobs_of(mwf.read_log([Input.of(data, "log.mwf")], **options))
    return workload, counts


def test_components_become_jobs() -> None:
    workload, tolerated = read(LOG)
    assert workload.provenance.system == System()
    assert workload.provenance.unix_start is None
    assert workload.column("job_id").tolist() == ["1", "2+0", "2+1", "3", "4", "5"]
    assert workload.column("extra_job").tolist() == ["", "2", "2", "", "", ""]
    assert workload.column("extra_component").tolist() == ["", "0", "1", "", "", ""]
    assert workload.floats("submit_time").tolist() == [0, 20, 20, 30, 40, 50]
    np.testing.assert_array_equal(workload.floats("logged_start"), [10, 25, 85, 40, 50, np.nan])
    assert workload.floats("run_time").tolist() == [600, 600, 900, 600, 600, 600]
    np.testing.assert_array_equal(workload.floats("time_limit"), [3600, 3600, 3600, np.nan, 3600, 3600])
    assert workload.ints("nodes").tolist() == [4, 16, 2, 4, 3, 4]
    assert workload.ints("cores_per_node").tolist() == [8, 16, 8, 8, 4, 8]
    assert workload.column("partition").tolist() == ["cm", "cm", "gpu", "cm", "cm", "esb"]
    assert workload.column("status").tolist() == ["completed", "failed", *["completed"] * 4]
    np.testing.assert_array_equal(workload.floats("extra_allocated"), [np.nan] * 5 + [48])
    assert tolerated == {
        "components of multi-component jobs, read as independent jobs": 2,
        "dependencies after the first of a job, left out": 1,
        "jobs that depend on a job that is not in the file, dependency left out": 1,
    }


def test_a_job_follows_the_component_that_ends_last() -> None:
    workload, _ = read(LOG)
    assert workload.column("after").tolist() == ["", "", "", "2+1", "", ""]
    np.testing.assert_array_equal(workload.floats("think_time"), [np.nan] * 3 + [60] + [np.nan] * 2)
    shorter = LOG.replace(b";900;", b";500;")  # now the first component ends last
    assert read(shorter)[0].column("after").tolist()[3] == "2+0"


def test_a_job_never_follows_itself() -> None:
    workload, tolerated = read(component(after=1, think=5).encode())
    assert "after" not in workload.table or workload.column("after").tolist() == [""]
    assert tolerated == {"jobs that depend on a job that is not in the file, dependency left out": 1}


def test_42_fields_instants_since_1970_and_extras() -> None:
    lines = [component(submit=1_600_000_000, api_call_time=3), component(job=2, submit=1_600_000_007, api_call_time=4)]
    workload, _ = read("\n".join(lines).encode(), keep_extra=True, time_zone="Europe/Berlin")
    assert workload.provenance.unix_start == 1_600_000_000
    assert workload.floats("submit_time").tolist() == [0, 7]
    assert workload.column("extra_api_call_time").tolist() == ["3", "4"]
    assert workload.column("extra_name").tolist() == ["j1", "j1"]


def test_it_is_not_taken_for_swf_nor_swf_for_it() -> None:
    assert mwf.recognizes(Input.of(LOG, "x"))
    bsc = "1;0;10;100;4;-1;-1;4;200;2048;1;7;8;-1;2;1;-1"
    assert not mwf.recognizes(Input.of(bsc.encode(), "x"))
    assert swf.recognizes(Input.of(bsc.encode(), "x"))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("1;2;3", "3 fields instead of 41"),
        (component(api_call_time=1) + ";9", "43 fields"),
        (component().replace(";", ","), "1 fields"),
        (component(run="fast"), r"field 11 \(run\) is 'fast', not a number"),
        (component(nodes_alloc="nan"), r"field 29 \(nodes_alloc\) is 'nan', not a number"),
    ],
)
def test_a_line_that_cannot_be_read_is_an_error_with_its_place(line: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as error:
        read(f"# first\n{component()}\n{line}\n".encode())
    assert error.value.where == "log.mwf:3"
    assert error.value.hint
