"""Exports of sacct as operators make them: delimiters in texts, commas, no header, JSON, arrays, resizes, clocks."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.converters.test_sacct import ROWS, by_id, read, row, table, told
from tests.logs import read_counted
from tests.recorders import sacct_dumps
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.sacct import HALVED, STATES
from tracebed.converters.formats.tools.columns import WHICH_HOUR
from tracebed.ground.errors import InputError


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


# Delimiters in values

TWO_WAYS = r"log.txt:2: line has \d+ fields, but the header has \d+, .* cannot be located: two repairs fit"
USED = ("JobID", "Submit", "Start", "End", "Elapsed", "NNodes", "NCPUS")


def featured(constraints: str, **texts: str) -> list[dict[str, str]]:
    usual = {"Constraints": constraints, "SubmitLine": "", "Reservation": "", "JobName": "name", "WorkDir": "/a"}
    return [{**row("1"), **usual, **texts}, {**row("2"), **usual, "Constraints": "cpu-a", "Comment": ""}]


@pytest.mark.parametrize(
    ("order", "constraints", "texts"),
    [
        (("Comment", "Constraints", "State"), "cpu-a|cpu-b", {}),  # or: Comment="|cpu-a"
        (("Constraints", "Comment", "State"), "cpu-a|cpu-b", {}),
        (("Constraints", "Comment", "State"), "cpu-a", {"Comment": "x|y"}),  # or: cpu-a|x
        (("JobName", "Constraints", "State"), "cpu-a", {"JobName": "x|y"}),
        (("Comment", "SubmitLine", "State"), "", {"Comment": "x|sbatch -dafterok:1 y", "SubmitLine": "sbatch -n 1 a"}),
        (("JobName", "Account", "State"), "", {"Account": "x|y"}),
    ],
)
def test_two_repairs_that_differ_in_a_column_that_is_read_are_an_error(
    log: Path, order: tuple[str, ...], constraints: str, texts: dict[str, str]
) -> None:
    rows = featured(constraints, **texts)
    if "Account" in texts:  # one repair fits: the free text has the delimiter. Without it, two columns of names may
        order = ("Account", "QOS", "State")
        rows = rows[:1]
    with pytest.raises(InputError, match=TWO_WAYS):
        read(log, table(rows, (*USED, *order)))


@pytest.mark.parametrize(
    ("order", "constraints", "texts"),
    [
        (("Comment", "Constraints", "State"), "[r1|r2]", {"Comment": "two words"}),  # brackets stay closed
        (("Comment", "State", "Constraints"), "a|b", {"Comment": "x|y"}),
        (("Comment", "Constraints", "State"), "", {"Comment": "a|"}),  # no operator begins a constraint
        (("Constraints", "Comment", "State"), "a", {"Comment": "x y|z"}),  # no constraint has a blank
        (("Constraints", "SubmitLine", "State"), "a|b", {"SubmitLine": "sbatch --wrap=x|y j"}),
        (("SubmitLine", "WorkDir", "State"), "a", {"SubmitLine": "sbatch a.sh|b", "WorkDir": "/x"}),  # same options
        (("Constraints", "WorkDir", "State"), "a", {"WorkDir": "/a|b"}),
        (("JobName", "Reservation", "State"), "", {"JobName": "a|b"}),
        (("WorkDir", "State", "Comment"), "", {"WorkDir": "/a|b", "Comment": "c|d\ne|f"}),
    ],
)
def test_one_repair_is_taken(log: Path, order: tuple[str, ...], constraints: str, texts: dict[str, str]) -> None:
    fields = (*USED, *order)
    jobs, said = told(log, table(featured(constraints, **texts), fields))
    assert jobs.loc[["1", "2"], "run_time"].tolist() == [90.0, 90.0]
    assert jobs["status"].tolist() == ["completed"] * 2
    if "Constraints" in order:
        assert list(jobs["features"]) == [constraints, "cpu-a"]
    assert "records whose values contain delimiters or line breaks, reassembled (1 time)" in said


@pytest.mark.parametrize(
    ("column", "ours", "value"),
    [("Account", "group", "p|q"), ("QOS", "queue", "q|r"), ("Reservation", "reservation", "a|b"), ("WCKey", "", "w|k")],
)
def test_names_of_slurm_may_hold_the_delimiter(log: Path, column: str, ours: str, value: str) -> None:
    """Slurm 22.05 accepts such names of accounts, QOS, reservations and workload keys."""
    usual = {"Reservation": "", "WCKey": ""}
    rows = [{**row("1"), **usual, column: value}, {**row("2"), **usual}]
    fields = ("JobID", "Cluster", "User", "Account", "Partition", "QOS", "Submit", "Start", "End", "Elapsed", "NNodes")
    jobs = by_id(read(log, table(rows, (*fields, "Reservation", "State", "WCKey", "NCPUS")), keep_names=True))
    expected = {"user": "ann", "group": "a1", "partition": "std", "queue": "normal", "reservation": ""}
    found = jobs.loc["1", [name for name in expected if name in jobs]].to_dict()
    assert found == {name: text for name, text in {**expected, ours: value}.items() if name in jobs}
    assert jobs.loc["1", ["run_time", "status"]].tolist() == [90.0, "completed"]


def test_a_line_of_two_repairs_does_not_take_in_the_next(log: Path) -> None:
    usual = {"Constraints": "", "Reservation": ""}
    rows = [{**row("1"), **usual, "QOS": "p|q", "Reservation": "c|d"}, {**row("2"), **usual}, {**row("3"), **usual}]
    with pytest.raises(InputError, match=TWO_WAYS):
        read(log, table(rows, ("JobName", *USED, "State", "QOS", "Reservation", "User")))


def test_a_free_text_before_names_is_told_from_them_by_the_cluster(log: Path) -> None:
    rows = [row("1", JobName="x", Account="p|q"), row("2", JobName="x|y"), row("3")]
    jobs = by_id(read(log, table(rows), keep_names=True))
    assert jobs["group"].tolist() == ["p|q", "a1", "a1"]
    assert jobs["user"].tolist() == ["ann"] * 3


@pytest.mark.parametrize("delimiter", ["|", ";", ","])
@pytest.mark.parametrize("after", [("User", "Partition"), ("State", "Comment"), ("Partition", "Comment")])
def test_licenses_may_be_alternatives(log: Path, delimiter: str, after: tuple[str, str]) -> None:
    """A job of Slurm 25.05 and newer requests `a:1|b:2`; licenses of a list have commas or semicolons between them."""
    fields = (*(name for name in USED if name != "NNodes"), "Licenses", *after, *({"State"} - {*after}), "NNodes")
    value = delimiter.join(("matlab:1", "fluent@db:2"))
    usual = {"Licenses": "", "Comment": "", "Partition": "std", "User": "ann"}
    rows = [{**row("1"), **usual, "Licenses": value, "Comment": "two words"}, {**row("2"), **usual}]
    jobs = by_id(read(log, table(rows, fields, delimiter), keep_names=True))
    assert jobs["licenses"].tolist() == [value, ""]
    assert "partition" not in jobs or jobs["partition"].tolist() == ["std", "std"]
    assert jobs["run_time"].tolist() == [90.0, 90.0]


@pytest.mark.parametrize(
    ("order", "texts"),
    [
        (("State", "JobName", "Reservation", "Licenses"), {"JobName": ""}),  # or: JobName="|", Reservation="a:1"
        (("Licenses", "Partition", "Comment", "State"), {"Comment": "x|y"}),  # or: Partition="b:1"
        (("State", "Licenses", "StdOut"), {"StdOut": "/dev/null"}),  # or: StdOut="b:1|/dev/null"
    ],
)
def test_alternative_licenses_beside_a_text_have_two_repairs(
    log: Path, order: tuple[str, ...], texts: dict[str, str]
) -> None:
    rows = [{**row("1"), "Reservation": "", "Licenses": "a:1|b:1", **texts}]
    with pytest.raises(InputError, match=TWO_WAYS):
        read(log, table(rows, (*USED, *order)))


@pytest.mark.parametrize("before", ["Reservation", "Account", "QOS", "WCKey"])
def test_commas_belong_to_partitions_and_not_to_names(log: Path, before: str) -> None:
    """No other line has the partition gpu."""
    usual = {before: "x", "Partition": "std"}
    rows = [{**row("1"), **usual, "Partition": "gpu,std"}, {**row("2"), **usual}]
    jobs = by_id(read(log, table(rows, (*USED, before, "Partition", "State"), ","), keep_names=True))
    assert jobs["partition"].tolist() == ["gpu,std", "std"]


def test_a_comma_between_usual_partitions_or_before_them_has_two_repairs(log: Path) -> None:
    usual = {"WorkDir": "/a", "Partition": "std"}
    rows = [{**row("1"), **usual}, {**row("2"), **usual, "Partition": "gpu"}]
    rows += [{**row("3"), "WorkDir": "/a", "Partition": "gpu,std"}]
    with pytest.raises(InputError, match="two repairs fit"):
        read(log, table(rows, (*USED, "WorkDir", "Partition", "State"), ","), keep_names=True)


DOCUMENTED = (*sacct_dumps.FIELDS,)


def test_a_comma_as_the_delimiter(log: Path) -> None:
    """Values of sacct hold commas, which it does not quote."""
    rows = sacct_dumps.rows(jobs=60, seed=5)
    rows[0]["NodeList"] = "n[1,3-4],gpu01"
    rows[1] |= {"JobID": "900_[1,3,7-9%2]", "AllocTRES": "", "NodeList": "None assigned", "State": "PENDING"}
    expected = read(log, sacct_dumps.text(rows), keep_names=True).table
    found = read(log, sacct_dumps.text(rows, delimiter=","), keep_names=True).table
    pd.testing.assert_frame_equal(found, expected)


def test_quotes_of_other_tools_and_of_names(log: Path) -> None:
    fields = ("JobID", "JobName", "Submit", "Start", "End", "ElapsedRaw", "State", "NNodes", "NCPUS", "AllocTRES")
    times, held = "1639130400,1639130460,1639130550,90,COMPLETED,2,8", "cpu=8,mem=2G,node=2"
    for name, resources in (('"a,b"', f'"{held}"'), ('say "x', held), ('"x" y', held)):
        jobs = read(log, f"{','.join(fields)}\n1,{name},{times},{resources}\n").table
        assert jobs.loc[0, ["run_time", "nodes", "memory_mib"]].tolist() == [90.0, 2, 1024.0]


# The header

OF_DEFAULT = """JobID           JobName  Partition    Account  AllocCPUS      State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
1                  wrap       main       root          2  COMPLETED      0:0
"""


@pytest.mark.parametrize("given", [None, "sacct"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OF_DEFAULT, "padded with blanks.*with -P"),
        ("       " + OF_DEFAULT, "padded with blanks.*with -P"),  # names are aligned to the right
        (OF_DEFAULT.partition("-\n")[2], "first line is a record.*without -n"),
        (table(ROWS).partition("\n")[2], "first line is a record.*without -n"),
        (table(ROWS, delimiter="^").partition("\n")[2], "first line is a record.*without -n"),
        (table(ROWS, delimiter=",").partition("\n")[2], "first line is a record.*without -n"),
    ],
)
def test_a_missing_header_and_padded_columns_are_named(log: Path, text: str, message: str, given: str | None) -> None:
    with pytest.raises(InputError, match=rf"log.txt:1: .*{message}.*sacct -aPD -S DATE -E DATE -s {STATES} -o JobID"):
        read(log, text, format=given)


def test_each_page_and_message_exports_all_states() -> None:
    """Without -s, sacct leaves out jobs that were held while they ran."""
    root = Path(__file__).parents[2]
    folders = ("docs", "converters", "validation", "orchestrator")
    files = [root / "README.md", *(path for folder in folders for path in (root / folder).rglob("*.*"))]
    commands = 0
    for path in files:
        if path.suffix in (".md", ".py", ".yaml", ".ipynb") and "decisions" not in path.parts:
            text = path.read_text(encoding="utf-8")
            lines = [line for line in text.splitlines() if re.search(r"sacct -\S*a\S* ", line)]
            commands += len(lines)
            assert all(re.search(r"-s (\$STATES|\{STATES\})", line) for line in lines), path
            assert "$STATES" not in text or f"STATES={STATES}" in text, path
    assert commands >= 3


# Arrays


@pytest.mark.parametrize(
    ("job", "array"),
    [
        ("203_[1,3,5,7-1000,...]", "203"),
        ("203_[1,3,5,58,6...%5]", "203%5"),
        ("2000_[1-100%5]", "2000%5"),
        ("2000_[1-99:2]", "2000"),
        ("2000_[0-3:2,9]", "2000"),
        ("12_3", "12"),
        ("12+1", ""),
        ("12_3+1", "12"),
    ],
)
def test_a_row_is_a_job_unless_it_is_a_step(log: Path, job: str, array: str) -> None:
    pending = {"State": "PENDING", "End": "Unknown"} if "[" in job else {}
    steps = [row(f"{job.split('[')[0].rstrip('_')}.{step}") for step in ("batch", "extern", "interactive", "0", "0+1")]
    jobs, said = told(log, table([{**row("9")}, {**row(job), **pending}, *steps]))
    assert list(jobs.index) == ["9", job]
    assert "rows of job steps, left out (5 times)" in said
    assert list(jobs.get("array", [""] * 2)) == ["", array]
    assert ("tasks of an array that did not start, one job for all of them (1 time)" in said) == ("[" in job)


# Resizes


def sizes(*rows: str) -> str:
    """Return an export of rows "job submit start end elapsed nodes state", on one day."""
    lines = ["JobID|Submit|Start|End|Elapsed|NNodes|State|NCPUS"]
    for text in rows:
        job, *times, elapsed, nodes, state = text.split(maxsplit=6)
        days = [time if time[0].isalpha() else f"2026-11-28T07:{time}" for time in times]
        lines.append("|".join([job, *days, f"00:{elapsed}", nodes, state, nodes]))
    return "\n".join(lines) + "\n"


RESIZED = {
    # Rows of Slurm 22.05.8; run times are wall times less the suspensions.
    "suspended, shrunk": (
        ["5 10:47 10:47 11:08 00:11 2 RESIZING", "5 11:08 10:47 11:27 00:40 1 COMPLETED"],
        (30, "2:21 1:19"),
    ),
    "suspended before and after": (
        ["5 29:55 29:55 30:05 00:05 2 RESIZING", "5 30:05 29:55 30:17 00:18 1 COMPLETED"],
        (13, "2:10 1:12"),
    ),
    "grown, then shrunk": (
        [
            "5 30:14 30:15 30:22 00:04 1 RESIZING",
            "5 30:22 30:22 30:33 00:08 2 RESIZING",
            "5 30:33 30:33 30:41 00:08 1 COMPLETED",
        ],
        (20, "1:7 2:11 1:8"),
    ),
    "24.11: each row starts at the resize": (
        ["5 10:47 10:47 11:08 00:11 2 RESIZING", "5 11:08 11:08 11:27 00:19 1 COMPLETED"],
        (30, "2:21 1:19"),
    ),
    "gave its nodes away": (
        ["5 00:35 00:35 00:37 00:02 1 RESIZING", "5 00:37 00:37 Unknown 03:54 0 COMPLETED"],
        (2, "1:2"),
    ),
    "ended by its limit after it gave its nodes away": (
        ["5 00:35 00:35 00:37 00:02 1 RESIZING", "5 00:37 00:37 09:37 09:00 0 TIMEOUT"],
        (2, "1:2"),
    ),
    "cancelled after it gave its nodes away": (
        ["5 00:35 00:35 00:37 00:02 1 RESIZING", "5 00:37 00:37 Unknown 03:54 0 CANCELLED by 7"],
        (2, "1:2"),
    ),
}


@pytest.mark.parametrize("what", RESIZED)
@pytest.mark.parametrize("twice", [False, True])
def test_the_run_time_of_a_resized_job_is_without_suspensions(log: Path, what: str, twice: bool) -> None:
    rows, (run_time, segments) = RESIZED[what]
    job = told(log, sizes(*rows, *(rows if twice else ())))[0].loc["5"]
    assert job["run_time"] == run_time
    assert job["extra_segments"] == segments
    assert job["logged_end"] - job["logged_start"] == sum(float(part.partition(":")[2]) for part in segments.split())


def test_a_resized_job_that_still_runs_has_no_run_time(log: Path) -> None:
    rows = ["5 00:35 00:35 00:37 00:02 2 RESIZING", "5 00:37 00:35 Unknown 03:54 1 RUNNING"]
    job = told(log, sizes(*rows))[0].loc["5"]
    assert np.isnan(job["run_time"]) and job["status"] == "running"


def test_a_log_without_all_sizes_of_a_job_says_so(log: Path) -> None:
    """Slurm 22.05 leaves out the first size of a job that was held while it ran, unless states are named (-s)."""
    second, first = "20 29:48 29:43 29:52 00:09 1 COMPLETED", "20 29:43 29:43 29:48 00:05 2 RESIZING"
    assert f"{HALVED} (2 times)" in told(log, sizes(second, "21 29:55 29:55 30:05 00:05 2 RESIZING"))[1]
    assert HALVED not in told(log, sizes(first, second, "21 29:55 29:55 30:05 00:05 2 COMPLETED"))[1]


# The hour that occurs twice

BERLIN = [  # submit, start, end, elapsed; hours since 2024-10-27T00:00Z of submit, start, end; whether unclear
    ("01:50", "02:10", "02:40", "00:30:00", (-1 / 6, 7 / 6, 10 / 6), True),
    ("02:50", "02:10", "02:40", "00:30:00", (5 / 6, 7 / 6, 10 / 6), False),
    ("02:20", "02:30", "02:40", "01:10:00", (1 / 3, 1 / 2, 10 / 6), False),
    ("01:50", "02:10", "03:10", "02:00:00", (-1 / 6, 1 / 6, 13 / 6), False),
    ("01:50", "02:10", "03:10", "01:00:00", (-1 / 6, 7 / 6, 13 / 6), False),
    ("01:50", "01:55", "02:05", "00:10:00", (-1 / 6, -1 / 12, 1 / 12), False),
    ("01:50", "01:55", "02:05", "01:10:00", (-1 / 6, -1 / 12, 13 / 12), False),
    ("01:50", "02:10", "03:10", "00:50:00", (-1 / 6, 7 / 6, 13 / 6), True),  # it was suspended
    ("02:10", "04:00", "05:00", "01:00:00", (7 / 6, 3, 4), True),
]


@pytest.mark.parametrize("number", range(len(BERLIN)))
def test_elapsed_tells_which_of_two_hours_it_was(log: Path, number: int) -> None:
    submit, start, end, elapsed, hours, unclear = BERLIN[number]
    day = "2024-10-27T"
    times = {"Submit": submit, "Start": start, "End": end}
    text = table(
        [row("1", Elapsed=elapsed, Eligible="Unknown") | {name: f"{day}{time}:00" for name, time in times.items()}]
    )
    log.write_text(text)
    workload, said = read_counted(log, time_zone="Europe/Berlin")
    jobs, origin = by_id(workload), workload.provenance.unix_start
    since = pd.Timestamp("2024-10-27T00:00Z").timestamp()
    seen = [float(jobs.loc["1", name]) + origin - since for name in ("submit_time", "logged_start", "logged_end")]
    assert seen == pytest.approx([3600 * hour for hour in hours], abs=1.0)
    assert any(WHICH_HOUR in what for what in said) == unclear


def test_other_logs_tell_the_hours_apart_too(tmp_path: Path) -> None:
    text = "job_id,user,submit_time,start_time,end_time,run_time,wallclock_req,nodes_req,processors_req\n"
    text += "1,a,2024-11-03 00:50:00,2024-11-03 01:30:00,2024-11-03 01:40:00,4200,7200,1,36\n"
    text += "2,a,2024-11-03 00:50:00,2024-11-03 01:30:00,2024-11-03 01:40:00,600,7200,1,36\n"
    jobs, said = told(tmp_path / "log.csv", text)
    assert (jobs["logged_end"] - jobs["logged_start"]).tolist() == [4200.0, 600.0]
    assert f"{WHICH_HOUR} (1 time)" in said


# JSON

PLAIN: dict[str, Any] = {
    "account": "chem",
    "comment": {"administrator": None, "job": None, "system": None},
    "allocation_nodes": 2,
    "array": {"job_id": 0, "limits": {"max": {"running": {"tasks": 0}}}, "task": None, "task_id": None},
    "association": {"account": "chem", "cluster": "blue", "partition": None, "user": "ann"},
    "cluster": "blue",
    "constraints": "a|b",
    "time": {"elapsed": 90, "eligible": 1000, "end": 1150, "start": 1060, "submission": 1000, "limit": 10},
    "het": {"job_id": 0, "job_offset": None},
    "job_id": 1,
    "name": "x|y",
    "nodes": "n[1-2]",
    "partition": "std",
    "qos": "normal",
    "required": {"CPUs": 8, "memory": 1000},
    "reservation": {"id": 0, "name": 0},
    "state": {"current": "COMPLETED", "reason": "None"},
    "steps": [{"state": "COMPLETED"}],
    "tres": {
        "allocated": [
            {"type": "cpu", "name": None, "id": 1, "count": 8},
            {"type": "mem", "name": None, "id": 2, "count": 2000},
            {"type": "energy", "name": None, "id": 3, "count": None},
            {"type": "gres", "name": "gpu:a100", "id": 1001, "count": 4},
        ],
        "requested": [],
    },
    "user": "ann",
}
"""A job of openapi/dbv0.0.38, as Slurm 22.05.8 writes it."""


def number(value: int | None) -> dict[str, Any]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


def changed(**paths: Any) -> dict[str, Any]:
    """Return `PLAIN` with other values; two underscores separate the keys."""
    job = copy.deepcopy(PLAIN)
    for path, value in paths.items():
        *keys, last = path.split("__")
        inner = job
        for key in keys:
            inner = inner[key]
        inner[last] = value
    return job


def newer(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job as data_parser v0.0.40 and newer write it."""
    job = copy.deepcopy(job)
    job["time"]["limit"] = number(job["time"]["limit"])
    job["array"]["task_id"] = number(job["array"]["task_id"])
    job["het"]["job_offset"] = number(job["het"]["job_offset"])
    job["state"]["current"] = job["state"]["current"].split("+")
    job["required"] = {"CPUs": 8, "memory_per_cpu": number(None), "memory_per_node": number(1000)}
    job["reservation"]["name"] = ""
    return {**job, "submit_line": "sbatch -d afterok:7 j.sh", "licenses": "ansys:2"}


WAITS = {"nodes": "None assigned", "time__elapsed": 0}
MASK = {"array__task": "0x8E", "array__limits__max__running__tasks": 2, "time__start": 0, "time__end": 0}
JOBS = [
    PLAIN,
    changed(job_id=2, array__job_id=12, array__task_id=0, time__limit=None),
    changed(job_id=3, array__job_id=13, state__current="PENDING", **MASK, **WAITS),
    changed(job_id=5, het__job_id=4, het__job_offset=1, state__current="TIMEOUT"),
    changed(job_id=6, time__eligible=0, state__current="CANCELLED", time__start=2**32 - 2, **WAITS),
]


@pytest.mark.parametrize("version", ["dbv0.0.38", "v0.0.39", "v0.0.40", "complex"])
@pytest.mark.filterwarnings("ignore::tracebed.ground.errors.Tolerated")
def test_json_of_sacct_is_read(tmp_path: Path, version: str) -> None:
    jobs = JOBS if version in ("dbv0.0.38", "complex") else [newer(job) for job in JOBS]
    if version == "v0.0.39":
        for job in jobs:
            job["state"]["current"] = job["state"]["current"][0]
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"jobs": jobs, "meta": {"plugin": {"data_parser": version}}, "errors": []}, indent=1))
    workload = read_workload(path, keep_names=True)
    found = by_id(workload)
    assert sorted(found.index) == ["1", "12_0", "13_[1-3,7%2]", "4+1", "6"]
    found = found.loc[["1", "12_0", "13_[1-3,7%2]", "4+1", "6"]]
    assert workload.provenance.unix_start == 1000.0
    first = found.loc["1"]
    times = ["submit_time", "logged_start", "logged_end", "run_time", "time_limit"]
    assert first[times].tolist() == [0, 60, 150, 90, 600]
    size = ["nodes", "cores_per_node", "memory_mib", "gres", "features"]
    assert first[size].tolist() == [2, 4, 1000, "gpu:a100:2", "a|b"]
    assert first[["user", "group", "partition", "queue"]].tolist() == ["ann", "chem", "std", "normal"]
    assert found["status"].tolist() == ["completed", "completed", "pending", "killed", "cancelled"]
    assert found["time_limit"].isna().tolist() == [False, True, False, False, False]
    assert found["array"].tolist() == ["", "12", "13%2", "", ""]
    assert found.loc[["13_[1-3,7%2]", "6"], "logged_start"].isna().all()
    if version in ("v0.0.39", "v0.0.40"):
        assert (first["dependency"], first["licenses"]) == ("afterok:7", "ansys:2")


def test_states_with_flags_and_rows_of_resized_jobs(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    parts = [
        newer(changed(state__current="RUNNING+RESIZING", time__end=1100, time__elapsed=40)),
        newer(changed(allocation_nodes=1, time__submission=1100)),
    ]
    path.write_text(json.dumps({"jobs": parts}))
    job = told(path, path.read_text())[0].loc["1"]
    assert job[["run_time", "extra_segments", "status"]].tolist() == [90.0, "2:40 1:50", "completed"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({"jobs": [PLAIN, changed(time__start="soon")]}), r"log.json, jobs\[1\], time: start is \"soon\""),
        (json.dumps({"jobs": [PLAIN, changed(state=7)]}), r"jobs\[1\]: state is 7, not an object"),
        (json.dumps({"jobs": [PLAIN]})[:-200], r"log.json:1: is not JSON"),
        (json.dumps({"jobs": [PLAIN, changed(job_id=None)]}), r"jobs\[1\]: job_id is null"),
    ],
)
def test_bad_json_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path / "log.json", text)


def test_other_keys_of_json_are_kept_on_request(tmp_path: Path) -> None:
    jobs = read(tmp_path / "log.json", json.dumps({"jobs": [PLAIN]}), keep_extra=True).table
    assert jobs["extra_name"].tolist() == ["x|y"]
