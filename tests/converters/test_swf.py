"""Standard Workload Format: reading of real logs, and writing for other programs."""

from __future__ import annotations

import gzip
import math
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.converters.test_elastisim import workload_of
from tests.fuzzing.fuzz import read_or_refuse
from tests.logs import read_counted, tolerated
from tracebed.converters.formats import swf
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.tools import swf_columns
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.swf_header import SwfHeader
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import System, Workload
from tracebed.ground.errors import InputError, Tolerated

HEADER = "; MaxNodes: 4\n; MaxProcs: 16\n"
JOB = "1 0 10 100 4 -1 -1 4 200 2048 1 7 8 -1 2 1 -1 -1"


def job(**fields: object) -> str:
    """Return `JOB` with some fields replaced."""
    values = dict(zip(swf_columns.FIELDS, JOB.split(), strict=True)) | {name: str(v) for name, v in fields.items()}
    return " ".join(values.values())


def read_text(text: str, **options: str) -> tuple[Workload, dict[str, int]]:
    """Read SWF from memory; return the workload and the tolerated defects."""
    data = text.encode()
    with tolerated() as counts:
        workload = swf.read(Input.of(data, "log.swf"), **options)
    return workload, counts


def test_a_job_line_becomes_a_row() -> None:
    workload, tolerated = read_text(
        f"; Computer: Box\n; UnixStartTime: 1000\n; TimeZoneString: Asia/Tokyo\n{HEADER}{JOB}\n"
    )
    assert workload.table.iloc[0].to_dict() == {
        "job_id": "1",
        "submit_time": 0.0,
        "run_time": 100.0,
        "time_limit": 200.0,
        "nodes": 1,
        "cores_per_node": 4,
        "memory_mib": 8.0,  # 2,048 KiB on each of 4 processors
        "user": "7",
        "group": "8",
        "queue": "2",
        "partition": "1",
        "status": "completed",
        "logged_start": 10.0,
        "logged_end": 110.0,
    }
    assert tolerated == {}
    provenance = workload.provenance
    assert provenance.system == System(4, 4, "Box")
    assert (provenance.unix_start, provenance.time_zone) == (1000.0, "Asia/Tokyo")
    assert provenance.steps[0].parameters == {"format": "swf", "by": "node"}


@pytest.mark.parametrize(
    ("processors", "by", "nodes", "cores"),
    [
        (1, "node", 1, 1),
        (4, "node", 1, 4),
        (5, "node", 2, 3),
        (16, "node", 4, 4),
        (9, "node", 3, 3),
        (9, "core", 9, 1),
    ],
)
def test_processors_become_nodes_by_the_header(processors: int, by: str, nodes: int, cores: int) -> None:
    workload, _ = read_text(f"{HEADER}{job(requested=processors, allocated=processors)}\n", by=by)
    assert (workload.ints("nodes")[0], workload.ints("cores_per_node")[0]) == (nodes, cores)
    assert workload.provenance.system == (System(4, 4) if by == "node" else System(16, 1))


def test_partition_lists_and_missing_sizes_in_the_header() -> None:
    assert read_text(f"; MaxNodes: 10 (4 1:2)\n; MaxProcs: 20 (x)\n{JOB}\n")[0].provenance.system == System(10, 2)
    assert read_text(f"; MaxProcs: 20\n{JOB}\n")[0].provenance.system == System(20, 1)
    assert read_text(f"; Note: none\n{JOB}\n")[0].provenance.system == System(None, 1)


TOLERATED = {
    "jobs cancelled before they started": (1, [job(status=5, wait=30, run=-1, allocated=-1)]),
    "jobs without a run time": (1, [job(run=-1)]),
    "different requested and allocated processors": (2, [job(allocated=8), job(job=2, allocated=2), job(job=3)]),
    "ran longer than their limit": (1, [job(run=300), job(job=2, limit=-1)]),
    "size taken from the allocation": (1, [job(requested=-1)]),
    "without a wait time": (1, [job(wait=-1)]),
    "of unknown size": (1, [job(requested=-1, allocated=-1)]),
    "more than 18 fields": (1, [JOB + " 7", job(job=2)]),
    "nodes and cores after field 18": (2, [JOB + " 0 3600 c:excl:1x4", job(job=2) + " {n1} q 1:ppn=4#excl"]),
    "times longer than 300 years": (3, [job(run=10**12), job(job=2, wait=10**11, limit=10**12)]),
    "semicolons between the fields": (2, [JOB.replace(" ", ";"), job(job=2).replace(" ", " ; ") + ";"]),
    "17 fields": (1, [JOB.rsplit(" ", 1)[0]]),
    "user is not a number": (1, [job(user="alice")]),
    "queue is not a number": (1, [job(queue="q_short"), job(job=2)]),
    "partition is not a number": (1, [job(partition="gpu")]),
    "not in submit order": (1, [job(submit=50), job(job=2)]),
    "begin with 0": (1, [job(job=0)]),
    "more nodes than the machine has": (1, [job(requested=17, allocated=17), job(job=2, requested=16, allocated=16)]),
    "more than 100,000,000 processors": (1, [job(requested=10**12, allocated=10**12)]),
    "MaxJobs 3, but 1 job lines": (1, ["; MaxJobs: 3", JOB]),
    "not in ASCII": (1, ["; Note: Universität", JOB]),
    "parts of checkpointed jobs": (2, [JOB, job(status=2), job(status=3)]),
    "unknown status code": (1, [job(status=9)]),
    "times since 1970": (1, [job(submit=1_388_530_800)]),
}


@pytest.mark.parametrize("what", TOLERATED)
def test_each_deviation_is_tolerated_and_counted(what: str) -> None:
    expected, lines = TOLERATED[what]
    workload, tolerated = read_text(HEADER + "\n".join(lines) + "\n")
    assert [count for message, count in tolerated.items() if what in message] == [expected]
    assert workload.provenance.steps[0].counts == tolerated


def test_the_effect_of_deviations() -> None:
    lines = [
        job(job=0, submit=1_388_530_900, wait=-1),
        job(job=5, submit=1_388_530_800, run=-1, status=5, wait=40),
        job(job=6, submit=1_388_530_950, requested=-1, allocated=8, limit=-1, user="ann", preceding=5, think=60),
    ]
    workload, _ = read_text(HEADER + "\n".join(lines))
    assert workload.provenance.unix_start == 1_388_530_800
    assert workload.column("job_id").tolist() == ["5", "0", "6"]
    assert workload.floats("submit_time").tolist() == [0, 100, 150]
    assert np.isnan(workload.floats("run_time")).tolist() == [True, False, False]
    assert np.isnan(workload.floats("logged_start")).tolist() == [True, True, False]
    assert np.isnan(workload.floats("time_limit")).tolist() == [False, False, True]
    assert workload.ints("nodes").tolist() == [1, 1, 2]
    assert workload.column("user").tolist() == ["7", "7", "ann"]
    assert workload.column("after").tolist() == ["", "", "5"]
    assert workload.floats("think_time")[2] == 60


def test_a_checkpointed_job_is_its_summary_line() -> None:
    workload, tolerated = read_text("\n".join([HEADER + job(status=2, run=30), job(status=3, run=70), JOB]))
    assert workload.floats("run_time").tolist() == [100]
    assert [count for what, count in tolerated.items() if "checkpointed" in what] == [2]


def test_the_executable_is_kept_only_if_present() -> None:
    assert "extra_executable" not in read_text(HEADER + JOB)[0].table
    workload, _ = read_text(HEADER + JOB + "\n" + job(job=2, executable=42))
    assert workload.column("extra_executable").tolist() == ["", "42"]


def test_allocated_and_used_amounts_are_kept_only_if_the_log_has_them() -> None:
    assert not [name for name in read_text(HEADER + JOB)[0].table if name.startswith("extra_")]
    lines = [
        job(allocated=8, cpu_time=50, used_memory=300),
        job(job=2, submit=1, cpu_time=0),
        job(job=3, submit=2, requested=-1),
    ]
    workload, _ = read_text(HEADER + "\n".join(lines))
    np.testing.assert_array_equal(workload.floats("extra_allocated"), [8, np.nan, np.nan])
    np.testing.assert_array_equal(workload.floats("extra_cpu_time_s"), [50, 0, np.nan])
    np.testing.assert_array_equal(workload.floats("extra_used_memory_kib"), [300, np.nan, np.nan])


def test_written_swf_preserves_allocated_and_used_amounts(tmp_path: Path) -> None:
    lines = [job(allocated=8, cpu_time=50.5, used_memory=300), job(job=2, submit=1, cpu_time=7)]
    workload, _ = read_text(HEADER + "\n".join(lines) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is lost
        write_workload(workload, tmp_path / "w.swf")
    rows = [line.split() for line in (tmp_path / "w.swf").read_text().splitlines() if line[0] != ";"]
    assert [row[4:8] for row in rows] == [["8", "50.5", "300", "4"], ["4", "7", "-1", "4"]]
    pd.testing.assert_frame_equal(read_workload(tmp_path / "w.swf").table, workload.table)


def test_amounts_that_no_field_holds_are_kept_in_comments(tmp_path: Path) -> None:
    table = pd.DataFrame({"job_id": ["1", "2"], "submit_time": 0.0, "run_time": 5.0, "nodes": [1, 0]})
    table["extra_allocated"] = [2.5, 4.0]
    table["extra_cpu_time_s"] = ["much", "little"]
    table["extra_used_memory_kib"] = [-3.0, 1e300]
    workload = Workload(table)
    with pytest.warns(Tolerated, match="extra_allocated, extra_cpu_time_s, extra_used_memory_kib"):
        write_workload(workload, tmp_path / "w.swf")
    pd.testing.assert_frame_equal(read_workload(tmp_path / "w.swf").table, workload.table)


ALEA = job(allocated=1, requested=512) + " 64 1800 frontier:excl:8x56"
METACENTRUM = job(queue=3, requested=3, allocated=3) + " {tarkil1,tarkil2} q_long@pbs 2:ppn=2:infiniband#excl"


@pytest.mark.parametrize(
    ("line", "by", "size"),
    [
        (ALEA, "node", (8, 56)),
        (ALEA, "core", (448, 1)),
        (METACENTRUM, "node", (2, 2)),
        (METACENTRUM, "core", (4, 1)),
        (JOB + " {a b c} q 1:ppn=4:x+2:ppn=8", "node", (3, 8)),
        (JOB + " {a} q 3", "node", (3, 1)),
        (JOB + " {a} q", "node", (1, 4)),  # without a shape: from the processors
        (JOB + " {a} q 2:ppn=0", "node", (1, 4)),
        (JOB + " 1 60 c:excl:0x0", "node", (1, 4)),
        (JOB + " 1 60 c:excl:99999999999x9", "node", (1, 4)),
    ],
)
def test_fields_after_the_18th_say_the_size(line: str, by: str, size: tuple[int, int]) -> None:
    workload, _ = read_text(HEADER + line, by=by)
    assert (workload.ints("nodes")[0], workload.ints("cores_per_node")[0]) == size


def test_fields_after_the_18th_say_gpus_limits_and_names() -> None:
    workload, tolerated = read_text("; MaxNodes: 9\n" + ALEA + "\n" + METACENTRUM.replace("1 ", "2 ", 1))
    np.testing.assert_array_equal(workload.floats("extra_gpus"), [64, np.nan])
    np.testing.assert_array_equal(workload.floats("extra_soft_limit_s"), [1800, np.nan])
    assert workload.column("extra_cluster").tolist() == ["frontier", ""]
    assert workload.column("queue").tolist() == ["2", "q_long@pbs"]
    assert workload.column("extra_node_list").tolist() == ["", "tarkil1,tarkil2"]
    assert "extra_allocated" not in workload.table  # the processor fields are unreliable
    assert tolerated == {"jobs with nodes and cores after field 18, used as their size": 2}


def test_a_header_with_absurd_numbers_is_ignored() -> None:
    workload, tolerated = read_text("; MaxNodes: 10000000000\n; MaxProcs: 8\n" + JOB)
    assert workload.provenance.system == System(8, 1)
    assert tolerated == {"header with MaxNodes above 100,000,000, set to unknown": 1}
    digits = "9" * 5000  # more than Python converts to an integer
    assert read_text(f"; MaxNodes: {digits}\n{JOB}")[0].provenance.system == System(None, 1)


def test_unreasonable_times_are_unknown() -> None:
    workload, _ = read_text(HEADER + "\n".join([job(run=10**12), job(job=2, wait=10**11), job(job=3, run=-50)]))
    assert np.isnan(workload.floats("run_time")).tolist() == [True, False, True]
    assert np.isnan(workload.floats("logged_start")).tolist() == [False, True, False]


def test_header_labels_repeat_continue_and_may_be_empty() -> None:
    workload, _ = read_text(
        ";Version: 2.2\n; Information: http://one\n;              http://two\n;\n"
        "; Note: first\n;       and on\n"
        f"; Queue:  1  \n; Queue: 2 long\n; Partition:\n; a word without a label\n; Note: second\n{JOB}\n"
    )
    header = workload.provenance.header
    assert header["Information"] == ["http://one\nhttp://two"]
    assert header["Note"] == ["first\nand on", "second"]
    assert header["Queue"] == ["1", "2 long"]
    assert header["Partition"] == ["a word without a label"]
    assert read_text(f"; no label at all\n{JOB}\n")[0].provenance.header == {"Note": ["no label at all"]}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("1 2 3", "3 fields"),
        (job(run="fast"), r"field 4 \(run\) is 'fast'"),
        (job(limit="nan"), r"field 9 \(limit\) is 'nan'"),
        (job(job="A7"), r"field 1 \(job\)"),
        (job(job=-1), "invalid job number"),
        (job(job=1.5), "invalid job number"),
        (job(job=10**30), "invalid job number"),
        (job(submit=-1), "missing submit time"),
        (job(status=1.5), "invalid status code: field 11 is 1.5"),
        (job(preceding=1.5), "invalid job number: field 17 is 1.5"),
        (job(allocated=1e30), "invalid number of processors: field 5"),
        (job(requested=1e30), "invalid number of processors: field 8"),
        (JOB, r":\d+: second job with number \d+ \(renumber or remove the line\)"),
        pytest.param("1 " * (9 * 2**20), "line longer than 16 MiB", id="long"),
    ],
)
def test_a_line_that_cannot_be_read_is_an_error_with_its_place(line: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as error:
        read_text(f"{HEADER}{JOB}\n\n{line}\n")
    assert error.value.where == "log.swf:5"


def test_line_ends_blank_lines_and_comments_anywhere() -> None:
    dos = f"{HEADER}{JOB}\n\n; Note: in between\n   {job(job=2, submit=7)}   ".replace("\n", "\r\n")
    workload, tolerated = read_text(dos)
    assert workload.floats("submit_time").tolist() == [0, 7]
    assert tolerated == {}
    assert workload.provenance.header["Note"] == ["in between"]


numbers = st.integers(-1, 10**6)


@given(
    st.lists(st.tuples(*[numbers] * 18), min_size=1, max_size=5, unique_by=lambda row: row[0]),
    st.sampled_from([" ", "  ", "\t", " \t "]),
)
def test_reading_at_once_and_line_by_line_agree(rows: list[tuple[int, ...]], gap: str) -> None:
    data = "\n".join(gap.join(map(str, row)) for row in rows).encode()
    at_once = swf_columns._read_at_once(data, 0)
    assert at_once is not None
    one_by_one = swf_columns._read_one_by_one(Input.of(data, "x")).fields[list(swf_columns.FIELDS)]
    pd.testing.assert_frame_equal(at_once.astype("str"), one_by_one.astype("str"))


@given(st.text(st.sampled_from('019 -.;:{}\t\n\rabE_é"#,[]Tracebed-Column: '), max_size=120) | st.binary(max_size=80))
def test_any_text_gives_a_workload_or_an_input_error(content: str | bytes) -> None:
    read_or_refuse(content.encode() if isinstance(content, str) else content, "x", "swf")


def mixed() -> Workload:
    """Return a workload that SWF's fields cannot hold."""
    table = pd.DataFrame(
        {
            "job_id": ["first", "second", "third"],
            "submit_time": [0.0, 1.5, 3.0],
            "run_time": [10.0, math.nan, 7.25],
            "time_limit": [20.0, 30.0, math.nan],
            "nodes": [2, 4, 1],
            "cores_per_node": [8, 8, 3],
            "kind": ["rigid", "malleable", "malleable"],
            "nodes_min": [2, 1, 1],
            "nodes_max": [2, 8, 2],
            "nodes_pref": [2, 4, 1],
            "user": ["ann", "bob", "ann"],
            "after": ["", "first", ""],
            "think_time": [math.nan, 1.0, math.nan],
        }
    )
    return Workload(table).with_provenance(system=System(16, 8, "Box"), time_zone="Europe/Berlin", unix_start=5.0)


def test_what_swf_cannot_hold_is_kept_in_comments_with_one_warning(tmp_path: Path) -> None:
    path = tmp_path / "w.swf"
    with pytest.warns(Tolerated, match="job_id, kind, nodes_min, nodes_max, user, after") as caught:
        write_workload(mixed(), path)
    assert len(caught) == 1
    again = read_workload(path)
    pd.testing.assert_frame_equal(again.table, mixed().table)
    assert again.provenance == mixed().provenance
    assert max(map(len, path.read_text().splitlines())) < 4000


def test_other_readers_see_a_plain_log(tmp_path: Path) -> None:
    path = tmp_path / "w.swf"
    with pytest.warns(Tolerated):
        write_workload(mixed(), path)
    plain = [line for line in path.read_text().splitlines() if "Tracebed-" not in line]
    workload, tolerated = read_text("\n".join(plain))
    assert workload.column("job_id").tolist() == ["1", "2", "3"]
    assert workload.floats("submit_time").tolist() == [0, 1.5, 3]
    assert workload.ints("nodes").tolist() == [2, 4, 1]
    assert workload.ints("cores_per_node").tolist() == [8, 8, 3]
    assert workload.column("user").tolist() == ["1", "2", "1"]
    assert workload.column("after").tolist() == ["", "1", ""]
    assert workload.provenance.system == System(16, 8)
    assert workload.provenance.time_zone == "Europe/Berlin"
    assert not any("18" in what or "semicolons" in what for what in tolerated)


def test_job_lines_in_whole_seconds_hold_whole_numbers_and_nothing_is_lost(tmp_path: Path) -> None:
    workload = workload_of(
        {"submit_time": 0.4, "run_time": 0.5, "time_limit": 10.7, "memory_mib": 0.1, "cores_per_node": 3},
        {"submit_time": 2.6, "run_time": 7.25, "time_limit": float("nan"), "memory_mib": 3.0, "cores_per_node": 1},
    )
    path = tmp_path / "w.swf"
    for options, whole in (({}, False), ({"whole_seconds": True}, True)):
        write_workload(workload, path, replace=True, **options)
        lines = [line.split() for line in path.read_text().splitlines() if not line.startswith(";")]
        assert all(re.fullmatch(r"-?\d+", field) for line in lines for field in line) == whole
    assert [line[1:4] for line in lines] == [["0", "-1", "0"], ["3", "-1", "7"]]
    assert read_workload(path).sha256 == workload.sha256


def test_a_log_that_swf_holds_is_written_without_a_warning(tmp_path: Path) -> None:
    workload, _ = read_text(f"; Note: one\n;   two\n{HEADER}{JOB}\n{job(job=9, submit=4, requested=9)}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_workload(workload, tmp_path / "w.swf")
    text = (tmp_path / "w.swf").read_text()
    assert "; Note: one\n;       two\n" in text
    assert "Tracebed-Column" not in text
    assert read_workload(tmp_path / "w.swf").provenance == workload.provenance


def test_an_edited_file_of_tracebed_is_not_misread(tmp_path: Path) -> None:
    path = tmp_path / "w.swf"
    with pytest.warns(Tolerated):
        write_workload(mixed(), path)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))
    with pytest.raises(InputError, match="2 job lines, but the comments have job_id for 3 jobs"):
        read_workload(path)
    record = mixed().provenance.to_json()
    path.write_text(f'; Tracebed-Provenance: {record}\n; Tracebed-Table: ["extra_x"]\n{JOB}\n')
    with pytest.raises(InputError, match="no comment has the values of column 'extra_x'"):
        read_workload(path)
    for damage in ("; Tracebed-Table: 5", '; Tracebed-Column: {"name": []}', "; Tracebed-Column: 7"):
        path.write_text(f"; Tracebed-Provenance: {record}\n{damage}\n{JOB}\n")
        with pytest.raises(InputError, match="broken Tracebed- comments"):
            read_workload(path)
    path.write_text("; Tracebed-Column: {broken\n" + JOB)
    with pytest.raises(InputError, match="broken Tracebed-Column comment") as error:
        read_workload(path)
    assert error.value.where == f"{path}:1"
    with pytest.warns(Tolerated):
        path.unlink()
        write_workload(mixed(), path)
    with pytest.raises(InputError, match="already has nodes"):
        read_workload(path, by="core")


@pytest.mark.slow
def test_ricc(reference_data: Callable[[str], Path], tmp_path: Path) -> None:
    path = reference_data("logs/RICC-2010-2.swf.gz")
    workload, counts = read_counted(path)
    assert len(workload) == 447_794
    assert workload.provenance.system == System(1024, 8, "Fujitsu RX200S5 Cluster")
    assert workload.provenance.unix_start == 1272639895
    assert workload.table["status"].value_counts().to_dict() == {"completed": 431_549, "cancelled": 16_245}
    assert counts == {
        "jobs that ran longer than their limit": 7092,  # and two that had no limit
        "jobs with different requested and allocated processors": 6974,  # and the two below
        "jobs without requested processors, size taken from the allocation": 2,
        "jobs on a part of a node, which count as jobs of the whole node (convert --by core)": 354_501,
        "up to 3,552 nodes held at once, more than the 1,024 nodes of the machine": 1,
    }
    assert "first" not in workload.provenance.header
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_workload(workload, tmp_path / "r.swf")
        assert read_workload(tmp_path / "r.swf").sha256 == workload.sha256


def test_nasa(reference_data: Callable[[str], Path]) -> None:
    workload, counts = read_counted(reference_data("logs/NASA-iPSC-1993-3.1-cln.swf.gz"))
    assert len(workload) == 18_239
    assert workload.provenance.system == System(128, 1, "Intel iPSC/860")
    assert counts["jobs without a wait time, start unknown"] == 18_239
    assert counts["header with MaxJobs 42264, but 18239 job lines"] == 1
    assert set(np.unique(workload.ints("nodes"))) <= {2**i for i in range(8)}
    assert "time_limit" not in workload.table
    assert len(workload.provenance.header["Note"]) == 4


def test_a_log_is_read_from_a_zip_that_holds_nothing_else(tmp_path: Path) -> None:
    plain, packed = tmp_path / "log.swf", tmp_path / "log.swf.zip"
    plain.write_text(HEADER + JOB + "\n")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(plain, "log.swf")
    pd.testing.assert_frame_equal(read_workload(packed).table, read_workload(plain).table)
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("other.swf", JOB)
    with pytest.raises(InputError, match="broken zip: the archive has 2 files"):
        read_workload(packed)
    packed.write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(InputError, match="broken zip"):
        read_workload(packed)


def test_blank_lines_anywhere_change_nothing_but_the_numbers_of_lines(tmp_path: Path) -> None:
    line = "{} 0 5 100 4 -1 -1 8 200 -1 1 1 1 -1 1 1 -1 -1"
    path = tmp_path / "blank.swf"
    path.write_text("\n".join(["; MaxNodes: 4", "", "; MaxProcs: 16", "", line.format(1), " \r", "", line.format(2)]))
    workload = read_workload(path)
    assert list(workload.table["job_id"]) == ["1", "2"]
    assert workload.provenance.system == System(4, 4)
    path.write_text("\n".join(["; MaxNodes: 4", "", line.format(1), line.format(2), line.format(2)]))
    with pytest.raises(InputError, match=r"blank\.swf:5: second job with number 2"):
        read_workload(path)


def test_a_line_of_any_length_is_detected_before_the_memory_is_full(tmp_path: Path) -> None:
    path = tmp_path / "long.swf.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"; MaxNodes: 4\n1 0 5 100\n")
        for _ in range(40):
            file.write(b"7" * 2**20)
    with pytest.raises(InputError, match=r"long\.swf\.gz:3: line longer than 16 MiB"):
        read_workload(path)


@pytest.mark.parametrize("field", [1, 11, 17])
@pytest.mark.parametrize("value", [b"1.5", b"99999999999999999999"])
def test_a_number_that_is_not_whole_is_a_clear_error(tmp_path: Path, field: int, value: bytes) -> None:
    """Job number, status and preceding job of a damaged file of tracebed."""
    table = {"job_id": ["1", "2"], "submit_time": [0.0, 5.0], "run_time": [9.0, 3.0], "nodes": [1, 2]}
    write_workload(Workload(pd.DataFrame(table | {"user": ["a", "b"]})), tmp_path / "w.swf")
    head, _, last = (tmp_path / "w.swf").read_bytes().rstrip().rpartition(b"\n")
    fields = last.split()
    fields[field - 1] = value
    read_or_refuse(head + b"\n" + b" ".join(fields) + b"\n", "w.swf")


# -- header values, and families that use fields otherwise


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,152", 1152),
        ("1'152", 1152),
        ("1 152", 1152),
        ("144 (144 nodes of 4)", 144),
        ("16 cores", 16),
        ("128.0", 128),
        ("-1", None),
        ("2017-10-06 14:40:00", None),
        ("4x16", None),
        ("1.5", None),
        ("1,15", None),
        ("two", None),
        ("12 34", None),
        ("1152, see the notes", 1152),
        ("16 Processors (8 x 2)", 16),
        ("4 x 36", None),
        ("2 racks of 64", None),
        ("16 nodes", None),  # not of processors
        ("16 nodes of 4 cores", None),
        ("100-200", None),
        ("4k", None),
        ("1.5e2", None),
    ],
)
def test_no_leading_digits_of_a_text_are_a_number(text: str, number: int | None) -> None:
    header = SwfHeader(labels={"MaxProcs": [text]})
    assert header.number("MaxProcs") == number
    assert any(header.defects().values()) == (number is None and text != "-1")


@pytest.mark.parametrize(
    ("text", "zone", "start"),
    [
        ("2017-10-06 14:40:00", "Europe/Amsterdam", 1507293600.0),
        ("2017-10-06T14:40:00+02:00", "", 1507293600.0),
        ("2017-10-06 12:40:00", "", 1507293600.0),
        ("1507293600", "Europe/Amsterdam", 1507293600.0),
        ("1507293600 (Fri Oct  6 14:40:00 2017)", "", 1507293600.0),
        ("Fri Oct  6", "", None),
        ("2017 Oct 6", "", None),
        ("2017-10-06 12:40:00", "CEST", 1507293600.0),  # no name of a time zone
        ("2017-10-06 12:40:00", "No/Where", 1507293600.0),
        ("2017-10-06 14:40:00", "+7200", 1507293600.0),
        ("2017-10-06 05:40:00", "-25200", 1507293600.0),
        ("2017-10-06 12:40:00", "+720000", 1507293600.0),  # no offset of the earth
    ],
)
def test_a_date_as_start_is_one_of_the_time_zone_of_the_log(text: str, zone: str, start: float | None) -> None:
    label = "TimeZone" if zone[:1] in ("+", "-") else "TimeZoneString"
    header = SwfHeader(labels={"UnixStartTime": [text], label: [zone]})
    assert header.start()[0] == start
    assert ("taken as UTC" in str([what for what, count in header.defects().items() if count])) == (
        text == "2017-10-06 12:40:00"
    )


WAGAP = """\
0 1356996147 0 56011 64 1 1024 64 86400 68719476736 1 62 1 1 -1 1 1 1 {1241,1241} q_1d 1:ppn=64
1 1356996695 71 1164297 12 1 1024 12 1209600 91268055040 1 101 1 1 -1 1 1 1 {1129} q_2w 2:ppn=6
"""


def test_logs_of_metacentrum_have_bytes_a_job_and_fillers(tmp_path: Path) -> None:
    path = tmp_path / "wagap.swf"
    path.write_text(WAGAP)
    batch, counts = read_counted(path)
    assert batch.floats("memory_mib").tolist() == [65536.0, 87040.0 / 2]
    assert batch.column("after").tolist() == ["", ""]
    assert "think_time" not in batch.table or np.isnan(batch.floats("think_time")).all()
    assert [count for text, count in counts.items() if "one value in all fields 17 and 18, left out" in text] == [2]
    assert not any("cores per node of the machine" in text for text in counts)


@pytest.mark.parametrize(
    ("request_", "nodes", "cores"),
    [
        ("4:x86_64:ppn=8", 4, 8),
        ("1:ppn=64:mem=400gb:cl_zewura#excl", 1, 64),
        ("2:ncpus=16:mem=4gb+1:ncpus=4", 3, 16),
        ("zewura1:ppn=8+zewura2:ppn=8:x86_64", 2, 8),
        ("3:6", 3, 6),
        ("2#excl", 2, 1),
        ("1:ppn=4 and more words", 1, 4),
        ("x86_64", 12, 1),  # the size is that of field 8
        ("1:ppn=4+", 12, 1),
    ],
)
def test_the_request_of_metacentrum_has_its_cores_anywhere(
    request_: str, nodes: int, cores: int, tmp_path: Path
) -> None:
    path = tmp_path / "wagap.swf"
    path.write_text(f"1 0 0 9 12 1 1024 12 99 {nodes * 2**30} 1 6 1 1 -1 1 1 1 {{1}} q_2w {request_}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Tolerated)
        batch = tb.read(path)
    assert (batch.ints("nodes")[0], batch.ints("cores_per_node")[0]) == (nodes, cores)
    assert batch.floats("memory_mib").tolist() == [1024.0]
    assert batch.column("queue").tolist() == ["q_2w"]


def test_memory_in_another_unit_is_unknown(tmp_path: Path) -> None:
    """The log of a family with bytes a job, without the fields by which the family is known."""
    path = tmp_path / "log.swf"
    lines = [f"{job} 0 0 10 4 -1 -1 4 20 {2**30 * 4**job} 1 1 1 1 1 1 -1 -1\n" for job in range(1, 5)]
    path.write_text("".join(lines))
    with pytest.warns(Tolerated, match=r"field 10 in another unit than KiB per processor, set to unknown \(4 times\)"):
        assert "memory_mib" not in tb.read(path).table


def test_a_job_that_follows_itself_follows_no_job(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    rest = "1 -1 -1 1 20 -1 1 1 1 1 1 1"
    path.write_text(f"1 0 0 10 {rest} -1 -1\n2 5 0 10 {rest} 2 7\n3 9 0 10 {rest} 1 7\n")
    with pytest.warns(Tolerated, match="jobs that follow themselves"):
        assert tb.read(path).column("after").tolist() == ["", "", "1"]


def test_memory_that_no_node_has_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    rest = "1 1 1 1 1 1 -1 -1"
    path.write_text(f"1 0 0 10 1 -1 -1 1 20 68719476736000 {rest}\n2 5 0 10 1 -1 -1 1 20 1024 {rest}\n")
    with pytest.warns(Tolerated, match="more than 1 PiB of memory"):
        np.testing.assert_array_equal(tb.read(path).floats("memory_mib"), [np.nan, 1.0])
