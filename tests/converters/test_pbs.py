"""The reader of accounting logs of PBS Pro and Torque."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.tools.files import MAX_LINE
from tracebed.converters.formats.tools.states import pbs_exit
from tracebed.converters.workload import System, Workload
from tracebed.ground.errors import InputError, Tolerated

T = 1_614_600_000
"""2021-03-01 12:00:00 UTC, s since 1970."""


def line(kind: str, job: str, at: float, **values: object) -> str:
    """Return a record, stamped `at` s after T; `__` in a name stands for a dot."""
    stamp = pd.Timestamp(T + at, unit="s").strftime("%m/%d/%Y %H:%M:%S")
    body = " ".join(f"{name.replace('__', '.')}={value}" for name, value in values.items())
    return f"{stamp};{kind};{job};{body}"


def ended(job: str, submit: float, start: float, end: float, exit: int = 0, **values: object) -> str:
    """Return an E record with the defaults of PBS Pro."""
    usual = {
        **{"user": "ann", "group": '"all users"', "account": '"A1"', "project": "_pbs_project_default"},
        **{"jobname": "name", "queue": "workq", "ctime": T + submit, "qtime": T + submit, "etime": T + submit},
        **{"start": T + start, "exec_host": "n1/0*16+n2/0*16", "exec_vnode": "(n1:ncpus=16)+(n2:ncpus=16)"},
        **{"Resource_List__mem": "64gb", "Resource_List__select": "2:ncpus=16:mpiprocs=16"},
        **{"Resource_List__walltime": "01:00:00", "session": 17, "end": T + end, "Exit_status": exit},
        **{"resources_used__walltime": "00:01:00", "run_count": 1},
    }
    return line("E", job, end, **{**usual, **values})


TORQUE = {
    "exec_vnode": "",
    "Resource_List__select": "",
    "exec_host": "n1/0-3+n2/0,2-4",
    "Resource_List__nodes": "2:ppn=4:gpus=1:fast",
    "Resource_List__mem": "18996kb",
}
LOG = [
    line("L", "license", 0) + "floating license hour:3 day:10 max:12",
    line("Q", "1.srv", 0, queue="workq"),
    line("S", "1.srv", 10, ctime=T, start=T + 10),
    ended("1.srv", 0, 10, 70),
    line("Q", "2.srv", 5, queue="workq"),
    line("D", "2.srv", 8, requestor="ann@login"),
    ended("3[4].srv", 6, 20, 50, exit=1, etime=T + 15),
    ended("3[].srv", 6, 20, 50),
    line("D", "4.srv", 30, requestor="ann@login"),
    ended("4.srv", 7, 20, 31, exit=271, **TORQUE),
    ended("5.srv", 8, 100, 3700, exit=-29, Resource_List__walltime="1:00:00:00"),
    line("R", "6.srv", 60, ctime=T + 9, start=T + 10, exec_host="n1/0", Exit_status=-1),
    ended("6.srv", 9, 80, 90, exec_host="n1/0+n1/1+n2/0"),
    line("S", "7.srv", 95, ctime=T + 11, qtime=T + 11, start=T + 95, Resource_List__nodes="n3:ppn=8+2:ppn=4"),
    line("A", "8.srv", 96) + "Job aborted by the server",
    line("Q", "8.srv", 12, queue="workq"),
    line("Q", "9.srv", 99, queue="workq"),
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "20210301"


def read(path: Path, lines: list[str], **options: object) -> Workload:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_workload(path, **options)


def test_records_become_jobs(log: Path) -> None:
    workload = read(log, LOG, keep_names=True)
    jobs = workload.table.set_index("job_id")
    assert list(jobs.index) == ["1", "2", "3[4]", "4", "5", "6", "6-2", "7", "8"]
    assert jobs["submit_time"].tolist() == [0, 5, 6, 7, 8, 9, 9, 11, 12]
    statuses = ["completed", "cancelled", "failed", "cancelled", "killed", "requeued", "completed", "running", "failed"]
    assert jobs["status"].tolist() == statuses
    assert jobs["nodes"].tolist() == [2, 0, 2, 2, 2, 1, 2, 3, 0]
    assert jobs["cores_per_node"].tolist() == [16, 1, 16, 4, 16, 1, 2, 6, 1]
    assert jobs["run_time"].fillna(-1).tolist() == [60, -1, 30, 11, 3600, 50, 10, -1, -1]
    assert jobs.loc["1", ["time_limit", "memory_mib", "logged_start"]].tolist() == [3600, 32_768, 10]
    assert jobs.loc["5", "time_limit"] == 86_400
    assert jobs.loc["3[4]", "earliest_start"] == 15
    assert jobs.loc["4", ["extra_gpus", "gres", "features"]].tolist() == [2, "gpu:1", "fast"]
    assert jobs.loc["1", ["gres", "features"]].tolist() == ["", ""]
    assert jobs.loc["4", "memory_mib"] == pytest.approx(18_996 / 1024 / 2)
    assert jobs.loc["1", ["user", "group", "queue", "partition"]].tolist() == ["ann", "A1", "workq", "workq"]
    assert np.isnan(jobs.loc["2", "logged_start"])
    assert workload.provenance.system == System(name="srv")
    assert workload.provenance.unix_start == T
    assert read(log, LOG).table["user"][0].startswith("user-")


def test_demands_of_pbs_pro_are_carried(log: Path) -> None:
    select = "2:ncpus=16:ngpus=2:bigmem=true:ib=False:model=sky+1:ncpus=4"
    depend = '"afterok:1.srv@srv:2.srv@srv,afterany:3[4].srv,on:1"'
    lines = [
        ended("1.srv", 0, 10, 70),
        line("Q", "4.srv", 5, ctime=T + 5, qtime=T + 5, etime=0, queue="gpuq", depend=depend),
        ended("4.srv", 5, 80, 90, etime=T + 70, exec_host="n1/0*16+n2/0*16+n3/0*4", Resource_List__select=select),
        line("Q", "5.srv", 6, ctime=T + 6, queue="workq", depend="beforeok:6.srv"),
        ended("5.srv", 6, 80, 90, etime=T + 70),
    ]
    with pytest.warns(Tolerated, match="unequal generic resources on their nodes, counts rounded up"):
        (log.write_text("\n".join(lines) + "\n"), read_workload(log))
    jobs = read(log, lines).table.set_index("job_id")
    demands = ["gres", "features", "dependency", "queue"]
    assert jobs.loc["4", demands].tolist() == ["gpu:2", "bigmem", "afterok:1:2,afterany:3[4]", "workq"]
    assert np.isnan(jobs.loc["4", "earliest_start"]), "the other jobs make it eligible"
    assert jobs.loc["5", "dependency"] == ""
    assert jobs.loc["5", "earliest_start"] == 70


def test_ignored_records_are_counted(log: Path) -> None:
    [step, *_] = read(log, LOG).provenance.steps
    assert step.counts == {
        "jobs of unknown size": 2,
        "records with times without a time zone, taken as UTC (convert --time-zone ZONE sets the zone)": 3,
        "records of other kinds, left out": 1,
        "records of whole job arrays, left out (tasks have their own records)": 1,
        "jobs still queued at the end of the log, left out": 1,
    }


def test_days_in_a_folder_are_one_log(tmp_path: Path) -> None:
    folder = tmp_path / "accounting"
    folder.mkdir()
    (folder / "20210301").write_text("\n".join(LOG[:3]) + "\n")
    (folder / "20210302.gz").write_bytes(gzip.compress(("\n".join(LOG[3:6]) + "\n").encode()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = read_workload(folder).table
    assert table["job_id"].tolist() == ["1", "2"]
    assert table["status"].tolist() == ["completed", "cancelled"]


def test_stamps_are_in_the_time_zone_of_the_server(log: Path) -> None:
    lines = [ended("1.srv", 0, 10, 70), line("Q", "2.srv", 5 - 7 * 3600), line("D", "2.srv", 8 - 7 * 3600)]
    assert read(log, lines, time_zone="America/Denver").table["submit_time"].tolist() == [0, 5]


def test_a_job_deleted_before_the_log_begins_has_no_submission(log: Path) -> None:
    log.write_text("\n".join([ended("1.srv", 0, 10, 70), line("D", "2.srv", 5)]) + "\n")
    with pytest.warns(Tolerated, match="without a submit time"):
        assert len(read_workload(log)) == 1


def test_several_servers_keep_their_names(log: Path) -> None:
    assert read(log, [ended("1.a", 0, 1, 2), ended("1.b", 0, 1, 2)]).table["job_id"].tolist() == ["1.a", "1.b"]


def test_other_fields_are_kept_on_request(log: Path) -> None:
    table = read(log, LOG, keep_extra=True).table
    assert table["extra_jobname"][0] == "name"
    assert table["extra_resources_used.walltime"][0] == "00:01:00"


@pytest.mark.parametrize(
    ("code", "torque", "deleted", "over", "status"),
    [
        (0, True, True, True, "completed"),
        (-11, True, False, False, "killed"),
        (-11, False, False, False, "failed"),
        (-29, False, False, False, "killed"),
        (271, True, False, True, "killed"),
        (271, True, True, True, "cancelled"),
        (137, False, False, False, "failed"),
        (1, True, True, False, "failed"),
    ],
)
def test_exit_statuses(code: int, torque: bool, deleted: bool, over: bool, status: str) -> None:
    assert pbs_exit(code, torque=torque, deleted=deleted, over=over) == status


def test_a_last_line_cut_off_is_left_out_and_counted(log: Path) -> None:
    whole = "\n".join([ended("1.srv", 0, 10, 70), ended("2.srv", 1, 80, 190)])
    for cut in (whole[: whole.rindex("Exit_status")], whole[: whole.rindex(";E;") + 2]):
        log.write_text(cut)
        with pytest.warns(Tolerated, match="cut off"):
            assert read_workload(log).table["job_id"].tolist() == ["1"]
    log.write_text(whole)
    assert len(read_workload(log)) == 2
    log.write_text(f"{whole}\n03/01/2021 12:05:00;L;license;floating license end=5")  # no record of a job
    assert len(read_workload(log)) == 2


E = ended("1.srv", 0, 10, 70)
BAD = {
    "no end": (LOG[0] + "\n", "contains no jobs that ended"),
    "in the middle": (f"{E}\n03/01/20\n{E}\n", r"20210301:2: not a record: '03/01/20'"),
    "whole line, but none": (f"{E}\n{E[:22]}\n", r"20210301:2: not a record"),
    "another locale": (
        f"{E}\n{E.replace('03/01/2021', '28/03/2021', 1)}\n",
        r"20210301:2: '28/03/2021 12:01:10' is not MM",
    ),
    "a word for a time": (E.replace(f"ctime={T}", "ctime=now") + "\n", r"20210301:1: ctime=now is not a number"),
    "a strange host": (E.replace("n1/0*16", "n1/all") + "\n", r"20210301:1: exec_host=n1/all\+n2/0\*16 is not"),
    "a strange limit": (E.replace("01:00:00", "1h") + "\n", r"20210301:1: Resource_List.walltime=1h is not a time"),
    "a strange memory": (E.replace("64gb", "much") + "\n", r"Resource_List.mem=much is not an amount"),
    "a strange exit": (E.replace("Exit_status=0", "Exit_status=ok") + "\n", r"Exit_status=ok is not a whole"),
    "too many cores": (
        E.replace("n1/0*16", "n1/0*999999999") + "\n",
        r"20210301:1: invalid size of 2 nodes, 1000000015 cores",
    ),
    "too many nodes": (  # without a node name, too
        f"{E[:20]}E;2.srv;ctime=1 start=2 end=3 Resource_List.select={10**20}:ncpus=1\n",
        r"20210301:1: invalid size of 100000000000000000 nodes",
    ),
    "nothing said": (f"{E}\n{E[:20]}E;2.srv;gone\n{E}\n", r"20210301:2: record without values"),
    "too long": (f"{E}\n{'x' * (MAX_LINE + 1)}\n", r"20210301:2: line longer than 16 MiB"),
    "another delimiter": (E.replace(";", ",") + "\n", "the format is not recognized"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_line(log: Path, what: str) -> None:
    text, message = BAD[what]
    log.write_text(text)
    with pytest.raises(InputError, match=message), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read_workload(log)


def test_impossible_times_are_tolerated_and_counted(log: Path) -> None:
    log.write_text(
        "\n".join(
            [
                E,
                ended("2.srv", 20, 10, 70),
                ended("3.srv", 0, 10, 5),
                ended("4.srv", 0, 1, 2).replace(f"end={T + 2}", f"end={10**12}"),
            ]
        )
        + "\n"
    )
    with pytest.warns(Tolerated) as found:
        table = read_workload(log).table
    messages = " ".join(str(warning.message) for warning in found)
    for words in ("submitted after their start", "end before their start", "longer than 300 years"):
        assert words in messages
    assert table["run_time"].isna().sum() == 2


@pytest.mark.parametrize(
    ("exec_host", "exec_vnode", "nodes", "cores"),
    [
        ("b9/0*0", "(b9[0]:ncpus=24:mem=1048576kb+b9[1]:ncpus=24)", 1, 48),
        ("b9/0*24+b9/1*24", "(b9[0]:ncpus=24)+(b9[1]:ncpus=24)", 1, 48),
        ("b9/0", "(b9:ncpus=1)", 1, 1),
        ("b9/0*0+b8/0*0", "(b9[0]:ncpus=8+b9[1]:ncpus=8)+(b8[0]:mem=4gb:ncpus=16)", 2, 16),
        ("b3/0*8+b4/0*8", "", 2, 8),
        ("b9/0*0", "", 1, 32),
        ("b9/0*0+b8/0*24", "(b9[0]:ncpus=8+b9[1]:ncpus=8)+(b8[0]:ncpus=24)", 2, 20),
        ("b9", "(b9:ncpus=8)", 1, 8),
        ("b9+b8", "", 2, 16),
    ],
)
def test_the_cores_of_vnodes_are_those_of_the_job(
    exec_host: str, exec_vnode: str, nodes: int, cores: int, log: Path
) -> None:
    given = {"Resource_List__select": "1:ncpus=32", "exec_host": exec_host, "exec_vnode": exec_vnode}
    batch = read(log, [ended("5.srv", 0, 10, 70, **given)])
    assert (batch.ints("nodes")[0], batch.ints("cores_per_node")[0]) == (nodes, cores)


@pytest.mark.parametrize("exec_host", ["n1", "n1/0*0"])
def test_cores_that_no_host_states_are_those_of_the_request(exec_host: str, log: Path) -> None:
    batch = read(
        log, [ended("5.srv", 0, 10, 70, **{**TORQUE, "exec_host": exec_host, "Resource_List__nodes": "1:ppn=4"})]
    )
    assert (batch.ints("nodes")[0], batch.ints("cores_per_node")[0]) == (1, 4)


@pytest.mark.parametrize("kind", ["A", "D", "R", "E"])
def test_a_record_after_the_end_is_no_second_job(kind: str, log: Path) -> None:
    whole = ended("5.srv", 0, 10, 70, exec_host="n1/0")
    after = whole if kind == "E" else line(kind, "5.srv", 90, ctime=T, start=T + 10, exec_host="n1/0")
    batch = read(log, [whole, after, ended("6.srv", 0, 10, 70, exec_host="n1/0")])
    assert batch.column("job_id").tolist() == ["5", "6"]
    assert batch.provenance.steps[0].counts["records of jobs that had ended, left out"] == 1


def test_a_job_that_starts_again_after_its_end_is_another_run(log: Path) -> None:
    again = [line("S", "5.srv", 90, ctime=T, start=T + 90, exec_host="n1/0"), line("D", "5.srv", 95)]
    batch = read(log, [ended("5.srv", 0, 10, 70, exec_host="n1/0"), *again])
    assert batch.floats("logged_end").tolist() == [70.0, 95.0]
