"""Grid Workloads Format: 29 fields, names as text, times since 1970. All lines here are synthetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.logs import tolerated
from tracebed.converters.cleaning.audit import jobs_of
from tracebed.converters.formats import gwf, swf
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import System, Workload
from tracebed.ground.errors import InputError

JOB = (
    "1 1100000000 30 600 4 580.5 20480 4 3600 4096 1 U1 G1 app Q1 P1 siteA siteB UNITARY -1 -1 -1 -1 linux -1 -1 -1"
    " VO1 PR1"
)


def job(**fields: object) -> str:
    """Return the line `JOB` with some fields replaced."""
    values = dict(zip(gwf.FIELDS, JOB.split(), strict=True)) | {name: str(value) for name, value in fields.items()}
    return " ".join(values.values())


LOG = "\n".join(
    [
        "# A grid that never was",
        "# JobID SubmitTime WaitTime ...",
        JOB,
        job(JobID="a-2", SubmitTime=1100000060, UserID="U2", Status=0, NProc=8, JobStructure="BoT"),
        "",
        job(JobID=3, SubmitTime=1100000120, WaitTime=-20, ReqNProcs=-1, NProc=2, ReqTime=-1, Status=5),
        job(JobID=4, SubmitTime=1100000180, WaitTime=-1, RunTime=-1, NProc=-1, ReqNProcs=-1, UsedMemory=-1.0),
    ]
).encode()


def read(data: bytes, **options: Any) -> tuple[Workload, dict[str, int]]:
    with tolerated() as counts:
        workload = jobs_of(gwf.read_log([Input.of(data, "log.gwf")], **options))
    return workload, counts


def test_a_grid() -> None:
    workload, tolerated = read(LOG, keep_names=True, time_zone="Europe/Amsterdam")
    assert workload.provenance.system == System()
    assert workload.provenance.unix_start == 1_100_000_000
    assert workload.provenance.time_zone == "Europe/Amsterdam"
    assert workload.column("job_id").tolist() == ["1", "a-2", "3", "4"]
    assert workload.floats("submit_time").tolist() == [0, 60, 100, 180]  # the third started 20 s before its submission
    np.testing.assert_array_equal(workload.floats("logged_start"), [30, 90, 100, np.nan])
    np.testing.assert_array_equal(workload.floats("run_time"), [600, 600, 600, np.nan])
    np.testing.assert_array_equal(workload.floats("time_limit"), [3600, 3600, np.nan, 3600])
    assert workload.ints("nodes").tolist() == [4, 4, 2, 0]
    assert workload.column("status").tolist() == ["completed", "failed", "cancelled", "completed"]
    assert workload.column("user").tolist() == ["U1", "U2", "U1", "U1"]
    assert workload.column("extra_site").tolist() == ["siteB"] * 4
    assert workload.floats("memory_mib").tolist() == [4, 4, 4, 4]
    np.testing.assert_array_equal(workload.floats("extra_allocated"), [np.nan, 8, np.nan, np.nan])
    np.testing.assert_array_equal(workload.floats("extra_used_memory_kib"), [20480, 20480, 20480, np.nan])
    assert workload.floats("extra_cpu_time_s")[0] == 580.5
    assert tolerated == {
        "jobs that started before they were submitted (reservations)": 1,
        "tasks of bags or workflows, read as separate jobs": 1,
        "records submitted after their start, submit time set to the start": 1,
        "jobs of unknown size": 1,
    }


def test_names_become_pseudonyms_and_extras_come_on_request() -> None:
    workload, _ = read(LOG)
    assert workload.column("user")[0].startswith("user-")
    assert "extra_project" not in workload.table
    workload, _ = read(LOG, keep_extra=True)
    assert workload.column("extra_project")[0].startswith("extra_project-")
    assert workload.column("extra_ReqPlatform").tolist() == ["linux"] * 4
    assert workload.column("extra_OrigSiteID").tolist() == ["siteA"] * 4


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("1 2 3", "3 fields instead of 29"),
        (JOB + " 30", "30 fields instead of 29"),
        (JOB.replace(" ", ","), "1 fields instead of 29"),
        (job(RunTime="fast"), r"field 4 \(RunTime\) is 'fast', not a number"),
        (job(UsedMemory="1e300"), r"field 7 \(UsedMemory\) is '1e300', too large"),
        (job(ReqTime="inf"), r"field 9 \(ReqTime\) is 'inf', not a number"),
    ],
)
def test_a_line_that_cannot_be_read_is_an_error_with_its_place(line: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as error:
        read(f"# first\n{JOB}\n{line}\n".encode())
    assert error.value.where == "log.gwf:3"
    assert error.value.hint


def test_a_file_of_comments_is_an_error() -> None:
    with pytest.raises(InputError, match="contains no jobs"):
        read(b"# nothing\n\n# at all\n")


def test_it_is_not_taken_for_swf_nor_swf_for_it() -> None:
    assert gwf.recognizes(Input.of(LOG, "x"))
    assert gwf.recognizes(Input.of(JOB.encode(), "x"))
    wagap = "1 0 10 100 4 -1 -1 4 200 2048 1 7 8 -1 2 1 -1 -1"
    assert not gwf.recognizes(Input.of(f"{wagap} {{a b c d e f g h}} q 8:ppn=1".encode(), "x"))
    assert not gwf.recognizes(Input.of(wagap.encode(), "x"))
    assert swf.recognizes(Input.of(wagap.encode(), "x"))


def test_ids_that_repeat_are_made_unique() -> None:
    workload, _ = read(f"{JOB}\n{JOB}\n".encode())
    assert workload.column("job_id").tolist() == ["1", "1-2"]
