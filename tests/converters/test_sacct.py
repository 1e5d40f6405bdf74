"""The reader of sacct's output, including unusual and damaged files."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from tracebed.cli import tracebed
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.sacct import COMMAND
from tracebed.converters.formats.tools.files import MAX_LINE
from tracebed.converters.workload import System, Workload
from tracebed.ground.errors import InputError, Tolerated

FIELDS = (
    *("JobID", "JobName", "Cluster", "User", "Account", "Partition", "QOS", "Submit", "Eligible", "Start", "End"),
    *("Elapsed", "Timelimit", "State", "NNodes", "NCPUS", "ReqNodes", "ReqCPUS", "ReqMem", "AllocTRES", "ReqTRES"),
    *("NodeList", "Comment"),
)


def row(
    job: str, submit: str = "10:00:00", start: str = "10:01:00", end: str = "10:02:30", **values: str
) -> dict[str, str]:
    """Return a row of one day; the defaults are a job on two whole nodes of 64 cores."""
    day = "2021-12-10T"
    times = {
        name: time if time[0].isalpha() else day + time
        for name, time in zip(("Submit", "Start", "End"), (submit, start, end), strict=True)
    }
    usual = {
        **{"JobName": "name", "Cluster": "blue", "User": "ann", "Account": "a1", "Partition": "std", "QOS": "normal"},
        **{"Eligible": times["Submit"], "Elapsed": "00:01:30", "Timelimit": "1-00:00:00", "State": "COMPLETED"},
        **{"NNodes": "2", "NCPUS": "128", "ReqNodes": "2", "ReqCPUS": "128", "ReqMem": "16G", "Comment": ""},
        **{"AllocTRES": "billing=128,cpu=128,mem=16G,node=2", "ReqTRES": "billing=128,cpu=128,mem=16G,node=2"},
        "NodeList": "n[1-2]",
    }
    return {**usual, **times, "JobID": job, **values}


def never(job: str, **values: str) -> dict[str, str]:
    """Return a row of a job that was cancelled before it started."""
    usual = {"State": "CANCELLED by 17", "Elapsed": "00:00:00", "AllocTRES": "", "NodeList": "None assigned"}
    return row(job, start="None", **{**usual, **values})


OF_JOBS = ("User", "Account", "Timelimit", "ReqMem", "ReqTRES", "Partition", "QOS")
"""Fields that a row of a job step does not have."""
SPREAD = "jobs on more nodes than they asked for, whose cores may lie on any nodes (no --ntasks-per-node known)"
ROWS = [
    row("1"),
    row("1.batch", NNodes="1", NCPUS="64", **dict.fromkeys(OF_JOBS, "")),
    row("1.0", Timelimit="", ReqMem=""),
    row("2_7", submit="10:00:05", Timelimit="UNLIMITED", State="TIMEOUT"),
    never("2_[8-9%2]", submit="10:00:05"),
    row("3+0", submit="10:00:10", Timelimit="Partition_Limit", NNodes="1", NCPUS="3"),
    row("3+1", submit="10:00:10", AllocTRES="cpu=8,gres/gpu:a100=2,gres/gpu=2,node=2"),
    row("4", submit="10:00:20", Eligible="2021-12-10T10:00:50", State="NODE_FAIL", NNodes="1K", NCPUS="64K"),
    row("4", submit="10:02:31", start="10:03:00", end="10:04:00", Elapsed="01:00.123"),
    row("5", submit="10:00:30", end="Unknown", State="RUNNING"),
    row("6", submit="10:00:40", State="SOMETHING_NEW", Timelimit="90:00"),
    never("7", submit="10:00:45", Eligible="Unknown", State="PENDING", End="Unknown"),
]


def table(rows: list[dict[str, str]], fields: tuple[str, ...] = FIELDS, delimiter: str = "|", end: str = "") -> str:
    """Return the output of `sacct -P -o FIELDS` for these rows."""
    lines = [delimiter.join(fields), *(delimiter.join(values[name] for name in fields) for values in rows)]
    return "".join(f"{line}{end}\n" for line in lines)


def read(path: Path, text: str, **options: object) -> Workload:
    path.write_bytes(text.encode())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_workload(path, **options)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def by_id(workload: Workload) -> pd.DataFrame:
    return workload.table.set_index("job_id")


def test_rows_become_jobs(log: Path) -> None:
    workload = read(log, table(ROWS))
    jobs = by_id(workload)
    assert list(jobs.index) == ["1", "2_7", "2_[8-9%2]", "3+0", "3+1", "4", "5", "6", "7", "4-2"]
    assert jobs["submit_time"].tolist() == [0.0, 5.0, 5.0, 10.0, 10.0, 20.0, 30.0, 40.0, 45.0, 151.0]
    assert jobs.loc["1", ["run_time", "time_limit", "nodes", "cores_per_node"]].tolist() == [90.0, 86_400.0, 2, 64]
    assert jobs.loc["1", "memory_mib"] == 8192.0  # the job's 16 GiB on two nodes
    assert jobs.loc["1", ["logged_start", "logged_end"]].tolist() == [60.0, 150.0]
    assert jobs["time_limit"].isna().tolist() == [False, True, False, True, *[False] * 6]
    assert jobs.loc["6", "time_limit"] == 90 * 60
    assert jobs.loc["3+0", "cores_per_node"] == 3  # a shared node stays shared
    assert jobs.loc["3+0", "extra_het_job"] == "3" == jobs.loc["3+1", "extra_het_job"]
    assert jobs.loc["3+1", "extra_gpus"] == 2.0
    assert jobs.loc["4", ["nodes", "cores_per_node"]].tolist() == [1024, 64]  # sacct writes 1024 as 1K
    assert jobs.loc["4", "earliest_start"] == 50.0
    assert np.isnan(jobs.loc["1", "earliest_start"])
    assert jobs.loc["4-2", "run_time"] == pytest.approx(60.123)
    statuses = "completed killed cancelled completed completed failed running unknown pending completed"
    assert jobs["status"].tolist() == statuses.split()
    for job in ("2_[8-9%2]", "5", "7"):
        assert np.isnan(jobs.loc[job, "run_time"])
    assert np.isnan(jobs.loc["7", "logged_start"])
    assert jobs.loc["1", "user"].startswith("user-") and jobs.loc["1", "user"] != jobs.loc["1", "group"]
    assert workload.provenance.system == System(name="blue")
    [read_step, *_] = workload.provenance.steps
    assumed = "records with times without a time zone, taken as UTC (convert --time-zone ZONE sets the zone)"
    parts = "components of heterogeneous jobs, which become jobs of their own"
    array = "tasks of an array that did not start, one job for all of them"
    assert read_step.counts == {"rows of job steps, left out": 2, parts: 2, assumed: 10, SPREAD: 1, array: 1}


def test_an_unknown_state_is_named(log: Path) -> None:
    log.write_text(table(ROWS))
    with pytest.warns(Tolerated, match="SOMETHING_NEW"):
        read_workload(log)


@pytest.mark.parametrize("delimiter", ["|", ";;", "^", "\t", "\x1f"])
@pytest.mark.parametrize("end", ["", "DELIMITER"])
def test_any_order_and_delimiter_give_the_same(log: Path, delimiter: str, end: str) -> None:
    expected = read(log, table(ROWS), keep_names=True).table
    turned = tuple(reversed(FIELDS))
    text = table(ROWS, turned, delimiter, end.replace("DELIMITER", delimiter)).replace("\n", "\r\n")
    pd.testing.assert_frame_equal(read(log, text, keep_names=True).table, expected)


def test_epoch_times_are_instants(log: Path) -> None:
    rows = [dict(values) for values in ROWS]
    for values in rows:
        for name in ("Submit", "Eligible", "Start", "End"):
            if values[name][0].isdigit():
                values[name] = str(int(pd.Timestamp(values[name], tz="America/Denver").timestamp()))
    expected = read(log, table(ROWS), keep_names=True, time_zone="America/Denver")
    found = read(log, table(rows), keep_names=True, time_zone="America/Denver")
    pd.testing.assert_frame_equal(found.table, expected.table)
    assert found.provenance.unix_start == expected.provenance.unix_start
    assert read(log, table(rows)).provenance.unix_start == expected.provenance.unix_start


def test_files_of_both_clocks_are_one_log(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    epoch = int(pd.Timestamp("2021-12-10T10:00:30", tz="America/Denver").timestamp())
    times = {"Submit": str(epoch), "Eligible": "Unknown", "Start": str(epoch + 60), "End": str(epoch + 150)}
    (folder / "1.txt").write_text(table([{**row("1"), **times}]))
    (folder / "2.txt").write_text(table([row("2", Eligible="2021-12-10T10:00:40")]))
    jobs = by_id(read_workload(folder, time_zone="America/Denver"))
    assert jobs.loc[["2", "1"], "submit_time"].tolist() == [0.0, 30.0]
    assert jobs.loc["2", "earliest_start"] == 40.0


HARD_NAMES = [
    *("job_0||0002|", "|", "two\nlines", "a|b\n\n|c\nd", "COMPLETED|FAILED", "2021-12-10T10:00:00|1|2"),
    *("x\n1 2", 'say "x'),
]


@pytest.mark.parametrize("name", HARD_NAMES)
@pytest.mark.parametrize("place", [0, 1, 10, len(FIELDS) - 1])
def test_a_name_may_hold_anything(log: Path, name: str, place: int) -> None:
    fields = [name for name in FIELDS if name != "JobName"]
    fields.insert(place, "JobName")
    rows = [{**values, "JobName": name} if number % 3 == 0 else values for number, values in enumerate(ROWS)]
    expected = read(log, table(ROWS), keep_names=True).table
    pd.testing.assert_frame_equal(read(log, table(rows, tuple(fields)), keep_names=True).table, expected)


def test_two_free_texts_and_their_content(log: Path) -> None:
    rows = [{**ROWS[0], "JobName": "a|b\nc|", "Comment": "d|e"}, {**ROWS[0], "JobID": "2", "Comment": "f\ng|h"}]
    for fields in (FIELDS, tuple(reversed(FIELDS))):
        jobs = read(log, table(rows, fields), keep_extra=True).table
        assert jobs["extra_JobName"].tolist() == ["a|b c|", "name"]
        assert jobs["extra_Comment"].tolist() == ["d|e", "f g|h"]


def test_ambiguous_rows_are_refused(log: Path) -> None:
    fields = ("JobID", "Submit", "End", "NNodes", "JobName", "State", "Comment")
    rows = [ROWS[0], {**ROWS[0], "JobName": "a|FAILED"}]
    with pytest.raises(InputError, match=r"log.txt:3: line has 8 fields, but the header has 7.*--delimiter"):
        read(log, table(rows, fields))


def test_rows_of_a_resized_job_are_its_segments(log: Path) -> None:
    resized = [
        row("9", end="10:02:00", State="RESIZING", Elapsed="00:01:00", NNodes="4", NCPUS="256"),
        row("9.batch", end="10:02:00", State="RESIZING", Timelimit=""),
        row("9", submit="10:02:00", end="10:04:00", State="RESIZING", Elapsed="00:03:00", NNodes="2"),
        row("9", submit="10:04:00", end="10:04:30", State="FAILED", Elapsed="00:03:30", NNodes="1"),
        row("9", submit="11:00:00", start="11:00:00", end="11:01:00", Elapsed="00:01:00"),  # requeued
        row("8", submit="11:00:00", start="11:00:00", end="11:01:00", State="RESIZING", Elapsed="00:01:00"),  # cut
    ]
    log.write_text(table(resized))
    with pytest.warns(Tolerated, match=r"resized jobs, merged into one job \(2 times\)"):
        jobs = by_id(read_workload(log))
    assert sorted(jobs.index) == ["8", "9", "9-2"]
    assert jobs.loc["9", ["submit_time", "run_time", "nodes", "logged_end"]].tolist() == [0.0, 210.0, 4, 270.0]
    assert jobs.loc["9", "cores_per_node"] == 64
    assert jobs.loc["9", "status"] == "failed"
    assert jobs.loc["9", "extra_segments"] == "4:60 2:120 1:30"
    assert jobs.loc["9-2", "extra_segments"] == ""
    assert jobs.loc["8", "status"] == "resizing"


def test_older_versions_and_fewer_fields(log: Path) -> None:
    older = ("JobIDRaw", "ElapsedRaw", "TimelimitRaw", "ReqMem", "AllocCPUS", "AllocNodes")
    rows = [
        {**row("1"), **dict(zip(older, ("1", "90", "30", "4000Mc", "64", "2"), strict=True))},
        {**never("2"), **dict(zip(older, ("2", "0", "UNLIMITED", "2Gn", "0", "0"), strict=True))},
    ]
    jobs = read(log, table(rows, (*older, "Submit", "End", "ReqNodes", "State"))).table
    assert jobs["time_limit"].tolist()[0] == 1800.0 and np.isnan(jobs["time_limit"][1])
    assert jobs["memory_mib"].tolist() == [128_000.0, 2048.0]
    assert jobs["logged_start"][0] == 60.0 and np.isnan(jobs["logged_start"][1])
    assert jobs["nodes"].tolist() == [2, 2]
    ended = {**never("1"), "Start": "2021-12-10T10:02:30"}  # before Slurm 20, Start of a job that never ran is its End
    assert "logged_start" not in read(log, table([ended])).table.dropna(axis="columns", how="all")


def test_a_csv_of_the_same_columns(log: Path) -> None:
    text = "JobID,Submit,Start,End,ElapsedRaw,State,NNodes,NCPUS,JobName\n"
    text += '1,1639130400,1639130460,1639130550,90,COMPLETED,2,4,"a,b"\n'
    assert read(log, text, keep_extra=True).table.loc[0, ["run_time", "extra_JobName"]].tolist() == [90.0, "a,b"]


def test_a_folder_of_months(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "1.txt").write_text(table(ROWS[:3]))
    (folder / "2.txt.gz").write_bytes(gzip.compress(table(ROWS[3:], tuple(reversed(FIELDS))).encode()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(read_workload(folder)) == 10


LATE = table(ROWS)
BAD = {
    "no row": (table([]), "contains no jobs"),
    "no header": (table(ROWS).partition("\n")[2], "the first line is a record"),
    "steps only": (table(ROWS[1:3]), "contains no jobs"),
    "no Submit": (
        table(ROWS, ("JobID", "Start", "End", "NNodes", "State")),
        r"log.txt:1: column submit is missing \(export the log with sacct -aPD",
    ),
    "no size": (table(ROWS, ("JobID", "Submit", "End", "State")), "column nnodes or .* is missing"),
    "for the eye": (
        "JobID    State   Submit   NNodes\n-------- ------- -------- -----\n1        FAILED  2021     2\n",
        "padded",
    ),
    "other dates": (
        LATE.replace("2021-12-10T10:00:20", "10.12.2021 10:00:20"),
        r"log.txt:9: Submit '10.12.2021 10:00:20' is not a time",
    ),
    "a word for nodes": (LATE.replace("|1K|", "|many|"), r"log.txt:9: nodes 'many' is not a number of nodes"),
    "a strange limit": (LATE.replace("|90:00|", "|soon|"), r"log.txt:12: limit 'soon' is not a time limit"),
    "a cut line": (
        LATE.replace("|00:01:30|Partition_Limit", "\n", 1),
        r"log.txt:7: line has 11 fields, but the header has 23",
    ),
    "too long": (LATE + "8|" + "x" * MAX_LINE + "\n", r"log.txt:14: line longer than 16 MiB"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_line(log: Path, what: str) -> None:
    text, message = BAD[what]
    with pytest.raises(InputError, match=message):
        read(log, text)


def test_a_last_line_cut_off_is_left_out_and_counted(log: Path) -> None:
    log.write_text(table(ROWS[:3])[:-60])
    with pytest.warns(Tolerated, match="last line cut off"):
        assert len(read_workload(log)) == 1


def test_impossible_times_are_tolerated_and_counted(log: Path) -> None:
    rows = [row("1"), row("2", start="09:00:00"), row("3", end="09:59:00", Elapsed="")]
    rows.append({**row("4"), "End": "9999-12-10T10:00:00", "Elapsed": "90000000-00:00:00"})
    log.write_text(table(rows))
    with pytest.warns(Tolerated) as found:
        jobs = by_id(read_workload(log))
    messages = " ".join(str(warning.message) for warning in found)
    for words in ("submitted after their start", "longer than 300 years", "end before"):
        assert words in messages
    assert np.isnan(jobs.loc["3", "run_time"]) and np.isnan(jobs.loc["4", "run_time"])


NAMED = [{**values, "JobName": "a|b\nc"} if number == 4 else values for number, values in enumerate(ROWS)]


def test_rows_of_several_clusters_are_refused_until_one_is_chosen(log: Path) -> None:
    rows = table([row("1"), row("1", Cluster="red", NNodes="3"), row("2")])
    with pytest.raises(InputError, match=r"2 machines: blue, red .choose one"):
        read(log, rows)
    red = read(log, rows, machine="red")
    assert (red.provenance.system.name, list(red.ints("nodes"))) == ("red", [3])


@pytest.mark.filterwarnings("ignore::tracebed.ground.errors.Tolerated")
def test_the_shipped_recipe_makes_a_workload_of_any_sacct_log(tmp_path: Path) -> None:
    over = row("8", Timelimit="00:01:00")
    gone = row("9", start="10:01:00", end="10:01:00", Elapsed="00:00:00", State="CANCELLED by 17")
    (tmp_path / "a.txt").write_text(table([*ROWS, over, gone]))
    (tmp_path / "b.txt").write_text(table([over, row("10", submit="11:00:00", start="11:00:00", end="11:05:00")]))
    words = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), "--recipe", "sacct", "--system", "1100x128"]
    result = CliRunner().invoke(tracebed, ["clean", *words, "-o", str(tmp_path / "w.parquet"), "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    audit = {step["step"]: step for step in json.loads(result.stdout)["audit"]}
    assert audit["drop_copies"]["dropped"] == 1
    workload = read_workload(tmp_path / "w.parquet")
    assert workload.provenance.system == System(1100, 128, "blue")
    assert set(workload.column("job_id")) == {"1", "2_7", "3+0", "3+1", "4", "6", "8", "4-2", "10"}
    assert np.isfinite(workload.floats("time_limit")).all()
    assert (workload.floats("time_limit") >= workload.floats("run_time")).all()
    assert dict(zip(workload.column("job_id"), workload.floats("time_limit"), strict=True))["8"] == 90.0


MORE = (*FIELDS[:-1], "Constraints", "Reservation", "SubmitLine")


def asked(job: str, line: str = "", **values: str) -> dict[str, str]:
    """Return a row with a command line."""
    return {**row(job), "Constraints": "", "Reservation": "", "SubmitLine": line, **values}


def told(path: Path, text: str, **options: object) -> tuple[pd.DataFrame, str]:
    """Return the jobs by id, and all warnings."""
    path.write_text(text)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        jobs = by_id(read_workload(path, **options))
    return jobs, "\n".join(str(warning.message) for warning in found)


def test_a_job_of_several_partitions_names_the_one_in_which_it_ran_first(log: Path) -> None:
    rows = [
        asked("1", "sbatch -p gpu,cpu job.sh", Partition="cpu"),
        asked("2", "sbatch --partition=cpu job.sh", Partition="cpu"),
        asked("3", "sbatch -pa,b job.sh", Partition="cpu"),  # an administrator moved it
    ]
    jobs, _ = told(log, table(rows, fields=MORE), time_zone="UTC")
    assert jobs["partition"].tolist() == ["cpu,gpu", "cpu", "cpu"]
    workload = read_workload(log, time_zone="UTC")
    assert workload.partitions().tolist() == ["cpu"] * 3


def test_demands_become_columns(log: Path) -> None:
    gpus = {"AllocTRES": "cpu=128,gres/gpu:a100=8,gres/gpu=8,gres/nvme=2,mem=16G,node=2", "Constraints": "ib&[r1|r2]"}
    rows = [
        asked("1", "sbatch -N2 job.sh", **gpus),
        asked("2", "sbatch -L ansys:3 -d afterok:1:7 j.sh --array=1-9%3", Reservation="course", QOS="high"),
        asked("3", "sbatch --gres=gpu:v100:1 job.sh", AllocTRES="", ReqTRES=""),
        asked("4", "sbatch --gpus-per-node 2 job.sh", AllocTRES="license/matlab=4,node=2", ReqTRES=""),
    ]
    jobs = by_id(read(log, table(rows, MORE), keep_names=True))
    assert jobs["gres"].tolist() == ["gpu:a100:4,nvme:1", "", "gpu:v100:1", "gpu:2"]
    assert jobs["features"].tolist() == ["ib&[r1|r2]", "", "", ""]
    assert jobs["licenses"].tolist() == ["", "ansys:3", "", "matlab:4"]
    assert jobs["reservation"].tolist() == ["", "course", "", ""]
    assert jobs["dependency"].tolist() == ["", "afterok:1:7", "", ""]
    assert jobs.loc["2", ["user", "group", "partition", "queue"]].tolist() == ["ann", "a1", "std", "high"]
    assert "array" not in jobs  # an option of the script of job 2


def test_the_request_stands_in_where_nothing_was_allocated(log: Path) -> None:
    waiting = never("1", ReqTRES="cpu=128,gres/gpu=4,license/matlab=1,mem=32G,node=2", ReqMem="")
    older = {**row("2"), "ReqTRES": "", "AllocTRES": "", "ReqGRES": "PER_NODE:gpu:2"}
    jobs = by_id(read(log, table([{**waiting, "ReqGRES": ""}, older], (*FIELDS, "ReqGRES"))))
    assert jobs["gres"].tolist() == ["gpu:2", "gpu:2"]
    assert jobs.loc["1", ["licenses", "memory_mib"]].tolist() == ["matlab:1", 16384.0]


def test_generic_resources_that_differ_between_nodes_are_rounded_up_and_counted(log: Path) -> None:
    jobs, said = told(log, table([row("1", AllocTRES="cpu=128,gres/gpu=3,node=2")]))
    assert jobs.loc["1", "gres"] == "gpu:2"
    assert "jobs with unequal generic resources on their nodes, counts rounded up (1 time)" in said


def test_more_nodes_than_asked_for(log: Path) -> None:
    """Rows of Slurm 22.05 for -n12 --mem=500, -n12 --mem-per-cpu=100, -n8 --ntasks-per-node=4 and -n2 --mem=0."""
    of = {"ReqNodes": "1", "NNodes": "3", "NCPUS": "12"}
    rows = [
        asked("1", "", **of, AllocTRES="cpu=12,mem=1500M,node=3", ReqTRES="cpu=12,mem=500M,node=1", ReqMem="500M"),
        asked("2", "", **of, AllocTRES="cpu=12,mem=1200M,node=3", ReqTRES="cpu=12,mem=1200M,node=1", ReqMem="1200M"),
        asked("3", "sbatch -n8 --ntasks-per-node=4 j", **{**of, "NNodes": "2", "NCPUS": "8"}, AllocTRES="mem=1000M"),
        asked("4", "", **{**of, "NNodes": "1", "NCPUS": "2"}, AllocTRES="cpu=2,mem=16000M,node=1", ReqMem="4000M"),
    ]
    jobs, said = told(log, table(rows, MORE))
    assert jobs["memory_mib"].tolist() == [500.0, 400.0, 500.0, 16000.0]
    assert jobs["fewest_nodes"].tolist() == [1, 1, 1, 0]
    assert jobs["spread"].tolist() == [1, 1, 0, 0]
    assert f"{SPREAD} (2 times)" in said
    cores, said = told(log, table(rows, MORE), by="core")
    assert SPREAD not in said
    assert cores["nodes"].tolist() == [12, 12, 8, 2]
    assert not {"spread", "gres"} & set(cores) or not (cores["spread"].any() or cores["fewest_nodes"].any())


UNKNOWN = "tasks of arrays that became eligible one after the other, number of tasks at once (%) unknown"


def test_shortest_limits_and_deadlines_are_counted(log: Path) -> None:
    lines = ("sbatch --time-min=5 a.sh", "sbatch --deadline now+1hour a.sh", "sbatch -t9 a.sh --deadline=1")
    _, said = told(log, table([asked(str(job), line) for job, line in enumerate(lines, 1)], MORE))
    assert "jobs with --time-min or --deadline, which simulations ignore (2 times)" in said


def test_the_limit_of_an_array_is_no_earliest_start(log: Path) -> None:
    """Slurm 22.05 makes a task of an array eligible when the limit of the array lets the task run."""
    late = "2021-12-10T10:00:30"
    rows = [asked("1_1"), asked("1_2"), asked("1_3", Eligible=late), asked("9", Eligible=late)]
    jobs, said = told(log, table(rows, MORE))
    assert jobs["array"].tolist() == ["1", "1", "1", ""]
    assert jobs["earliest_start"].isna().tolist() == [True, True, True, False]
    assert f"{UNKNOWN} (1 time)" in said
    known = [{**values, "SubmitLine": "sbatch --array 1-3%2 job.sh"} for values in rows[:3]]
    left = {**never("1_[4-9%2]"), "Constraints": "", "Reservation": "", "SubmitLine": ""}
    for export in (known, [*rows[:3], left]):
        jobs, said = told(log, table(export, MORE))
        assert set(jobs["array"]) == {"1%2"}
        assert UNKNOWN not in said
    begun = [{**values, "Eligible": late} for values in rows[:2]]
    assert told(log, table(begun, MORE))[0]["earliest_start"].tolist() == [30.0, 30.0]


def test_a_dependency_is_no_earliest_start(log: Path) -> None:
    late = {"Eligible": "2021-12-10T10:00:30"}
    rows = [
        asked("1", "sbatch -dafterok:5 job.sh", **late),
        asked("2", "sbatch job.sh", **late),
        asked("3", "sbatch -d singleton --begin=now+30 job.sh", **late),
    ]
    jobs = by_id(read(log, table(rows, MORE)))
    assert jobs["earliest_start"].isna().tolist() == [True, False, False]
    assert jobs["dependency"].tolist() == ["afterok:5", "", "singleton"]
    assert jobs["extra_eligible"].tolist() == [30.0] * 3  # in any case, what happened


@pytest.mark.parametrize("delimiter", ["|", "&"])
@pytest.mark.parametrize("order", ["recommended", "last", "adjacent"])
def test_a_constraint_may_hold_the_delimiter(log: Path, delimiter: str, order: str) -> None:
    line = "sbatch -C a|b&c|d -d afterok:4 job.sh"
    rows = [asked("1", line, Constraints="a|b&c|d"), asked("2", "sbatch job.sh", Constraints="a|b")]
    fields = {
        "recommended": tuple(COMMAND.rpartition(" ")[2].split(",")),
        "last": MORE,
        "adjacent": (*FIELDS[:-1], "Constraints", "SubmitLine"),
    }[order]
    jobs = by_id(read(log, table(rows, fields, delimiter)))
    assert jobs["features"].tolist() == ["a|b&c|d", "a|b"]
    assert jobs["dependency"].tolist() == ["afterok:4", ""]


def test_a_dependency_on_a_requeued_job_is_on_its_last_run(log: Path) -> None:
    rows = [
        asked("1", State="NODE_FAIL"),
        asked("1", Submit="2021-12-10T10:02:31"),
        asked("2", "sbatch -d afterok:1 j"),
    ]
    jobs = by_id(read(log, table(rows, MORE)))
    assert sorted(jobs.index) == ["1", "1-2", "2"]
    assert jobs.loc["2", "dependency"] == "afterok:1-2"
