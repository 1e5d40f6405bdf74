"""Imports of tables of jobs: columns, units, dates, matching, and what a file does not tell."""

from __future__ import annotations

import gzip
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracebed.api as tb
from tests.commands import call
from tests.runs import fcfs_run
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import ExitCode, InputError
from tracebed.orchestrator.run import Run
from tracebed.validation.export import export
from tracebed.validation.metrics import all_metrics, metrics, per_job
from tracebed.validation.simulators.assembly import workload_of
from tracebed.validation.simulators.history import run_of_log
from tracebed.validation.simulators.observed import resolution_of, states_of
from tracebed.validation.simulators.table import split

# id, submit, start, end, nodes
JOBS = [("a", 0.0, 0.0, 60.5, 2), ("b", 5.0, 60.5, 90.25, 1), ("c", 7.25, 60.5, 100.0, 1)]


def workload(jobs: Sequence[tuple[Any, ...]] = JOBS, nodes: int | None = 2, **columns: Any) -> Workload:
    """Return the workload of `jobs`."""
    table = pd.DataFrame(
        {
            "job_id": [job[0] for job in jobs],
            "submit_time": [job[1] for job in jobs],
            "run_time": [job[3] - job[2] for job in jobs],
            "nodes": [job[4] for job in jobs],
            **columns,
        }
    )
    return Workload(table, Provenance(System(nodes)))


def table(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def lines(jobs: Sequence[tuple[Any, ...]] = JOBS, separator: str = ",") -> list[str]:
    return [separator.join(str(value) for value in job) for job in jobs]


def times(run: Run) -> list[tuple[Any, ...]]:
    """Return id, submit, start, end of the jobs of a run."""
    return [tuple(row) for row in run.jobs[["job_id", "submit", "start", "end"]].itertuples(index=False)]


EXPECTED = [job[:4] for job in JOBS]


# -- columns, units, dates


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Start Time (ms)", ("starttime", "ms")),
        ("start_time_ms", ("starttime", "ms")),
        ("startTimeMs", ("starttime", "ms")),
        ("START", ("start", "")),
        ("jobID", ("jobid", "")),
        ("run_s", ("run", "s")),
        ("wait [min]", ("wait", "min")),
        ("s", ("s", "")),
    ],
)
def test_a_column_name_states_its_field_and_unit(name: str, expected: tuple[str, str]) -> None:
    assert split(name) == expected


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("id,submit,start,end,nodes", "{0},{1},{2},{3},{4}"),
        ("Job ID;Submit Time;Start Time;Finish Time;Num Nodes", "{0};{1};{2};{3};{4}"),
        ("JobID|Submit_ms|Start_ms|End_ms|NNodes", "{0}|{ms[1]}|{ms[2]}|{ms[3]}|{4}"),
        ("jobid\tarrival\twaiting_time\truntime\tprocs", "{0}\t{1}\t{wait}\t{run}\t{4}"),
        ("id,submission_time,starting_time,turnaround_time", "{0},{1},{2},{response}"),
        ("id,submit,start,run", "{0},{epoch[1]},{epoch[2]},{run}"),
        ("id,submit,start,end", "{0},{far[1]},{far[2]},{far[3]}"),
        ("id,submit,start,end", "{0},{date[1]},{date[2]},{date[3]}"),
        ("id,submit,start,end", "{0},{zoned[1]},{zoned[2]},{zoned[3]}"),
        ("id,wait,run", "{0},{wait},{run}"),
    ],
)
def test_a_table_is_read_in_any_form(tmp_path: Path, header: str, row: str) -> None:
    rows = []
    for job in JOBS:
        epoch = [None, *(1.7e9 + value for value in job[1:4])]
        stamps = [None, *(pd.Timestamp(each, unit="s") for each in epoch[1:])]
        rows.append(
            row.format(
                *job,
                ms=[None, *(1000 * value for value in job[1:4])],
                wait=job[2] - job[1],
                run=job[3] - job[2],
                response=job[3] - job[1],
                epoch=epoch,
                far=[None, *(f"{1000 * each:.0f}" for each in epoch[1:])],
                date=stamps,
                zoned=[None, *(f"{each + pd.Timedelta(hours=2)}+02:00" for each in stamps[1:])],
            )
        )
    run = tb.import_run(table(tmp_path / "t.csv", header, *rows), side="predicted", workload=workload())
    assert [name for name, *_ in times(run)] == ["a", "b", "c"]
    np.testing.assert_allclose([row[1:] for row in times(run)], [job[1:] for job in EXPECTED], atol=1e-6)
    assert run.info.unknown == {}
    assert run.total_nodes == 2


def test_columns_units_and_a_time_zone_can_be_given(tmp_path: Path) -> None:
    path = table(
        tmp_path / "t.csv", "who,in,go,out,x", *lines([(n, a / 60, s / 60, e / 60, x) for n, a, s, e, x in JOBS])
    )
    with pytest.raises(InputError, match=r"no column is recognized as start \(or wait\) and end .*--columns"):
        tb.import_run(path, side="predicted", workload=workload())
    columns = {"job_id": "who", "submit": "in", "start": "go", "end": "out"}
    run = tb.import_run(path, side="predicted", workload=workload(), columns=columns, unit="min")
    np.testing.assert_allclose([row[1:] for row in times(run)], [job[1:] for job in EXPECTED])
    assert run.info.imported["columns"] == columns
    with pytest.raises(InputError, match=r"unknown column of .*'walk'.*did you mean|unknown column of .*'walk'"):
        tb.import_run(path, side="predicted", workload=workload(), columns=columns | {"start": "walk"})
    with pytest.raises(InputError, match="unknown field 'begin'"):
        tb.import_run(path, side="predicted", workload=workload(), columns={"begin": "go"})


def test_dates_without_an_offset_are_in_the_given_time_zone(tmp_path: Path) -> None:
    """The hour that a clock is set forward is no part of a run time."""
    path = table(
        tmp_path / "t.csv", "id,submit,start,end", "a,2024-03-31 01:00:00,2024-03-31 01:30:00,2024-03-31 03:30:00"
    )
    lone = workload([("a", 0.0, 0.0, 3600.0, 1)])
    berlin = tb.import_run(path, side="predicted", workload=lone, time_zone="Europe/Berlin")
    utc = tb.import_run(path, side="predicted", workload=lone)
    assert [run.jobs["end"][0] - run.jobs["start"][0] for run in (berlin, utc)] == [3600.0, 7200.0]
    with pytest.raises(InputError, match="unknown time zone 'Mars/Base'"):
        tb.import_run(path, side="predicted", workload=lone, time_zone="Mars/Base")


def test_compressed_and_parquet_tables(tmp_path: Path) -> None:
    text = "\n".join(["id,submit,start,end,nodes", *lines()])
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    frame = pd.DataFrame(JOBS, columns=["id", "submit", "start", "end", "nodes"])
    frame.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv.gz", "t.parquet"):
        run = tb.import_run(tmp_path / name, side="predicted", workload=workload())
        assert times(run) == EXPECTED


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 7.0], 1.0),
        ([0.5, 1.25], 0.01),
        ([1 / 3], 0.0),
        ([60.0 * n for n in range(30)], 60.0),
        ([60.0, 120.0], 1.0),
        ([1.7e9 + 0.001], 1e-3),
        ([], 0.0),
        ([math.nan], 0.0),
    ],
)
def test_the_resolution_is_that_of_the_values(values: list[float], expected: float) -> None:
    assert resolution_of([np.array(values)]) == expected


def test_words_for_states() -> None:
    words = pd.Series(["COMPLETED", "COMPLETED_WALLTIME_REACHED", "CANCELLED by 7", "1", "", "melted"])
    states, strange = states_of(words)
    assert [str(state) for state in states] == ["completed", "killed", "cancelled", "completed", "None", "unknown"]
    assert strange == ["melted"]


# -- matching


def test_jobs_are_matched_by_a_mapping(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "id,start,end", *(f"{n},{job[2]},{job[3]}" for n, job in enumerate(JOBS)))
    (tmp_path / "map.txt").write_text("# theirs, ours\n0,a\n1 b\n\n2\tc\n")
    run = tb.import_run(path, side="predicted", workload=workload(), match=tmp_path / "map.txt")
    assert times(run) == EXPECTED
    assert run.info.imported["matched_by"] == "mapping"
    for text, message in (("0 a x\n", "map.txt:1: has 3 values"), ("0 a\n1 a\n", "map.txt:2: id 'a' occurs twice")):
        (tmp_path / "map.txt").write_text(text)
        with pytest.raises(InputError, match=message):
            tb.import_run(path, side="predicted", workload=workload(), match=tmp_path / "map.txt")


def test_jobs_are_matched_by_order(tmp_path: Path) -> None:
    shuffled = [(n, job[1], job[2], job[3]) for n, job in enumerate([JOBS[2], JOBS[0], JOBS[1]])]
    path = table(tmp_path / "t.csv", "id,submit,start,end", *lines(shuffled))
    assert times(tb.import_run(path, side="predicted", workload=workload(), match="order")) == EXPECTED
    with pytest.raises(InputError, match="has 3 jobs, the workload has 2: jobs cannot be matched by order"):
        tb.import_run(path, side="predicted", workload=workload(JOBS[:2]), match="order")


def test_jobs_are_matched_by_shape_whatever_their_order_and_origin_of_time(tmp_path: Path) -> None:
    jobs = [("x", 0.0, 0.0, 30.0, 1), ("y", 0.0, 0.0, 50.0, 1), ("z", 0.0, 0.0, 30.0, 2), ("w", 9.0, 9.0, 19.0, 1)]
    rows = [(100.0 + job[1], 100.0 + job[2], 100.0 + job[3], job[4]) for job in reversed(jobs)]
    path = table(tmp_path / "t.csv", "submit,start,end,nodes", *lines(rows))
    run = tb.import_run(path, side="predicted", workload=workload(jobs, nodes=9))
    assert run.info.imported["matched_by"] == "shape"
    assert run.info.imported["offset_s"] == 100.0
    assert times(run) == [job[:4] for job in jobs]


def test_shapes_that_several_jobs_have_are_an_error_unless_the_jobs_are_alike(tmp_path: Path) -> None:
    jobs = [("x", 0.0, 0.0, 30.0, 1), ("y", 0.0, 0.0, 30.0, 1), ("w", 9.0, 30.0, 40.0, 1)]
    path = table(tmp_path / "t.csv", "submit,start,end,nodes", "0,0,30,1", "0,30,60,1", "9,60,70,1")
    run = tb.import_run(path, side="predicted", workload=workload(jobs))
    assert times(run) == [("x", 0.0, 0.0, 30.0), ("y", 0.0, 30.0, 60.0), ("w", 9.0, 60.0, 70.0)]
    unlike = workload(jobs, time_limit=[40.0, 60.0, 20.0])
    with pytest.raises(InputError, match="2 jobs have the submit time, size and run time of another job: x, y"):
        tb.import_run(path, side="predicted", workload=unlike)


def test_ids_that_number_other_jobs_are_detected(tmp_path: Path) -> None:
    """A simulator that counts from 0, and a workload that counts from 1, have ids in common."""
    jobs = [(str(n), 60.0 * n, 60.0 * n, 60.0 * n + 30, 1 + n % 3) for n in range(1, 9)]
    moved = [(n - 1, *job[1:]) for n, job in enumerate(jobs, 1)]
    path = table(tmp_path / "t.csv", "id,submit,start,end,nodes", *lines(moved))
    with pytest.raises(InputError, match=r"t\.csv:\d+: job '\d' has \d nodes, but \d in the workload; .*matched by id"):
        tb.import_run(path, side="predicted", workload=workload(jobs, nodes=9))
    without = table(tmp_path / "u.csv", "id,submit,start,end", *(line.rpartition(",")[0] for line in lines(moved[1:])))
    # The first job of both defines the offset, so equal distances fit; other distances do not.
    uneven = [(name, submit + (300 if submit > 200 else 0), *rest) for name, submit, *rest in jobs]
    with pytest.raises(InputError, match=r"was submitted at .* jobs matched by id differ by more than 5 s"):
        tb.import_run(without, side="predicted", workload=workload(uneven, nodes=9), match="id")
    assert times(tb.import_run(path, side="predicted", workload=workload(jobs, nodes=9), match="shape"))[0][0] == "1"


def test_a_wrong_unit_is_named(tmp_path: Path) -> None:
    jobs = [(str(n), 60.0 * n, 60.0 * n, 60.0 * n + 30, 1) for n in range(9)]
    path = table(
        tmp_path / "t.csv", "id,submit,start,end", *(f"{n},{a * 1e3},{s * 1e3},{e * 1e3}" for n, a, s, e, _ in jobs)
    )
    with pytest.raises(InputError, match="the times seem to be in ms: give --unit ms"):
        tb.import_run(path, side="predicted", workload=workload(jobs))
    assert times(tb.import_run(path, side="predicted", workload=workload(jobs), unit="ms")) == [job[:4] for job in jobs]


# -- what is missing or contradicts


def test_jobs_that_are_missing_in_the_file_have_not_ended(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "id,submit,start,end,nodes", *lines(JOBS[:2]), "c,7.25,,,1")
    four = [*JOBS, ("d", 8.0, 0.0, 1.0, 1)]
    run = tb.import_run(path, side="predicted", workload=workload(four))
    assert run.jobs["state"].tolist() == ["completed", "completed", "unknown", "unknown"]
    assert run.jobs["reason"].tolist() == ["", "", "", "not in the file"]
    assert metrics(run)["jobs_unfinished"] == 2
    assert run.info.imported["jobs_without_row"] == 1
    assert any("1 of 4 jobs are not in the file" in warning for warning in run.info.warnings)


def test_rows_of_no_job_are_an_error_in_a_prediction_and_left_out_of_a_real_run(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "id,submit,start,end,nodes", *lines(), "zz,8,100,120,1")
    with pytest.raises(InputError, match=r"t\.csv:5: 1 of 4 rows match no job of the workload"):
        tb.import_run(path, side="predicted", workload=workload())
    run = tb.import_run(path, side="real", workload=workload())
    assert len(run.jobs) == 3
    assert run.info.is_real
    assert any("1 of 4 rows match no job" in warning for warning in run.info.warnings)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*lines(), "a,0,0,60.5,2"], r"t\.csv:5: job 'a' occurs twice: its first row is .*t\.csv:2"),
        ([*lines(JOBS[:2]), "c,7.25,3,100,1"], r"t\.csv:4: job 'c' starts 4\.25 s before its submission"),
        ([*lines(JOBS[:2]), "c,7.25,60,50,1"], r"t\.csv:4: job 'c' ends 10 s before its start"),
        ([*lines(JOBS[:2]), "c,7.25,soon,50,1"], r"t\.csv:4: start 'soon' is not a number"),
        ([*lines(JOBS[:2]), "c,7.25,60"], r"t\.csv:4: 3 values, but the header has 5 columns"),
        (["x,0,0,1,1", "y,1,1,2,1"], "no job of the file is in the workload|job ids of the file are not"),
        ([], "contains no jobs|the file is empty"),
    ],
)
def test_a_broken_table_is_an_error_with_its_line(tmp_path: Path, rows: list[str], message: str) -> None:
    path = table(tmp_path / "t.csv", "id,submit,start,end,nodes", *rows)
    with pytest.raises(InputError, match=message):
        tb.import_run(path, side="predicted", workload=workload(), match="id" if "x,0" in str(rows) else "auto")


def test_a_start_before_the_submission_within_the_resolution_is_no_error(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "id,submit,start,end", "a,1,0,60", "b,5,60,90", "c,8,60,100")
    run = tb.import_run(path, side="real", workload=workload([(n, a + 1, *rest) for n, a, *rest in JOBS]))
    assert run.info.resolution_s == 1.0
    assert per_job(run)["wait"][0] <= 0


def test_a_schedule_on_more_nodes_than_there_are(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "id,submit,start,end,nodes", "a,0,0,60,2", "b,5,30,90,1", "c,7.25,90,100,1")
    with pytest.raises(InputError, match="up to 3 nodes are busy at once, but the machine has 2"):
        tb.import_run(path, side="predicted", workload=workload())
    real = tb.import_run(path, side="real", workload=workload())
    assert real.total_nodes == 3
    assert any("nodes were added" in warning for warning in real.info.warnings)


def test_what_a_file_does_not_tell_is_unknown_and_not_zero(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "id,submit,start,end", *(",".join(map(str, job[:4])) for job in JOBS))
    without_nodes = tb.import_run(path, side="predicted", workload=workload(nodes=None))
    figures = without_nodes.metrics()
    assert figures["undefined"]["utilization"] == "the number of nodes is unknown (import --nodes)"
    assert math.isnan(figures["loss_of_capacity"])
    assert figures["makespan_s"] == 100.0
    given = tb.import_run(path, side="predicted", workload=workload(nodes=None), nodes=2).metrics()
    assert given["utilization"] > 0
    malleable = workload(kind=["rigid", "malleable", "rigid"])
    run = tb.import_run(path, side="predicted", workload=malleable)
    figures = run.metrics()
    undefined = {name for name in figures["undefined"] if all_metrics()[name].of_malleable_jobs}
    assert undefined == {metric.name for metric in all_metrics().values() if metric.of_malleable_jobs}
    assert "resized" in figures["undefined"]["expand_operations_per_job"]
    assert "1 jobs are malleable" in figures["undefined"]["utilization"]
    assert figures["operations"] == {}
    run.save(tmp_path / "run")
    assert Run.load(tmp_path / "run").info.unknown == run.info.unknown
    rigid = tb.import_run(path, side="predicted", workload=malleable, policy="easy")
    assert rigid.info.unknown == {}
    assert set(rigid.jobs["kind"]) == {"rigid"}
    assert rigid.info.workload == run.info.workload


def test_held_nodes_are_recorded_and_checked(tmp_path: Path) -> None:
    rows = [f"{line},{held}" for line, held in zip(lines(), ["0-1", "1", "0"], strict=True)]
    path = table(tmp_path / "t.csv", "id,submit,start,end,nodes,held_nodes", *rows)
    run = tb.import_run(path, side="predicted", workload=workload())
    assert run.info.imported["nodes_of_jobs"] == "recorded"
    assert run.allocations[["job_id", "node", "count"]].to_numpy().tolist() == [["a", 0, 2], ["b", 1, 1], ["c", 0, 1]]
    for held, message in (
        ("0-7", "holds node number 7, but there are 2 nodes"),
        ("x", "is not a list of node numbers"),
        ("9" * 5000, "is not a list of node numbers"),
    ):
        table(tmp_path / "t.csv", "id,submit,start,end,nodes,held_nodes", rows[0].replace("0-1", held), *rows[1:])
        with pytest.raises(InputError, match=rf"t\.csv:2: .*{message}"):
            tb.import_run(path, side="predicted", workload=workload())


# -- without a workload


def test_two_tables_become_a_verdict_by_two_commands_and_compare(tmp_path: Path) -> None:
    """A stranger's tables: no workload file, other origins of time, other units, other names."""
    real = table(tmp_path / "real.csv", "JobID,Submit,Start,End,NNodes", *_dated(JOBS))
    slower = [(n, 1e3 * a, 1e3 * s, 1e3 * (e + 0.5)) for n, a, s, e, _ in JOBS]
    sim = table(tmp_path / "sim.csv", "job,submit_ms,start_ms,end_ms", *lines(slower))
    runs = tmp_path / "real", tmp_path / "sim"
    assert call("import", real, "--as", "real", "--nodes", 4, "-o", runs[0]).exit_code == 0
    assert call("import", sim, "--as", "predicted", "--workload", runs[0], "-o", runs[1]).exit_code == 0
    one, two = (Run.load(path) for path in runs)
    assert one.info.workload == two.info.workload
    comparison = call("compare", "--real", runs[0], "--predicted", runs[1], "--json")
    assert "verdict" in json.loads(comparison.stdout)
    assert one.jobs["run_time"].tolist() == [60.0, 30.0, 40.0]


def test_tables_become_a_verdict_by_one_command(tmp_path: Path) -> None:
    """Five repetitions and a prediction, as files: the first real one is the workload of all."""
    drawn = np.random.default_rng(1)
    files = [tmp_path / f"{name}.csv" for name in ("one", "two", "three", "four", "five", "predicted")]
    for path in files:
        delays = np.round(drawn.uniform(0, 2, 60), 3).tolist()
        rows = [f"{j},{60 * j},{60 * j + 5 + d},{60 * j + 95 + d},{1 + j % 3}" for j, d in enumerate(delays)]
        table(path, "job,submitted,started,finished,size", *rows)
    words = [word for path in files[:5] for word in ("--real", path)]
    result = call("compare", *words, "--predicted", files[5], "--json")
    document = json.loads(result.stdout)
    assert document["verdict"] == "accurate"
    assert result.return_value == ExitCode.OK


def _dated(jobs: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return lines with dates in whole seconds."""
    return [
        ",".join([n, *(str(pd.Timestamp(1.7e9 + math.floor(each), unit="s")) for each in (a, s, e)), str(x)])
        for n, a, s, e, x in jobs
    ]


def test_a_prediction_needs_its_workload(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "id,submit,start,end,nodes", *lines())
    with pytest.raises(InputError, match="a prediction needs the workload that it predicts"):
        tb.import_run(path, side="predicted")
    with pytest.raises(InputError, match="jobs can only be matched with a --workload"):
        tb.import_run(path, side="real", match="order")
    without = table(tmp_path / "u.csv", "id,start,end", "a,0,1")
    with pytest.raises(InputError, match="has no submit time, so no workload can be made"):
        tb.import_run(without, side="real")


def test_the_command_prints_the_run_and_refuses_bad_options(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "id,submit,start,end,nodes", *lines())
    result = call("import", path, "--as", "real", "--nodes", 2, "-o", tmp_path / "run", "--json")
    assert json.loads(result.stdout)["completed"] == 3
    info = Run.load(tmp_path / "run").info
    assert (info.source, info.execution, info.imported["file"]) == ("log", "logged", "t.csv")
    for words, message in (
        (["--columns", "start"], "--columns 'start' is not FIELD=NAME"),
        (["--columns", "start=a,start=b"], "--columns names start twice"),
        (["--from", "simulatron"], "unknown form of a file 'simulatron'"),
        (["--from", "swf", "--unit", "ms"], "--unit is for tables"),
    ):
        failed = call("import", path, "--as", "real", "-o", tmp_path / "other", *words)
        assert isinstance(failed.exception, InputError)
        assert message in str(failed.exception)
        assert not (tmp_path / "other").exists()


# -- round trips


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(1, 40), seed=st.integers(0, 1000), match=st.sampled_from(["auto", "id", "order"]))
def test_a_run_survives_export_and_import(tmp_path: Path, count: int, seed: int, match: Any) -> None:
    run = fcfs_run(count, seed=seed, real=False)
    path = tmp_path / "run.csv"
    export(run, "csv", path, replace=True)
    jobs = run.jobs
    back = tb.import_run(path, side="predicted", workload=run, match=match, nodes=run.total_nodes)
    np.testing.assert_allclose(back.jobs[["submit", "start", "end"]], jobs[["submit", "start", "end"]], atol=1e-6)
    assert back.jobs["job_id"].tolist() == jobs["job_id"].tolist()
    assert back.jobs["state"].tolist() == jobs["state"].tolist()
    assert back.info.workload == run.info.workload
    assert back.info.imported["nodes_of_jobs"] == "recorded"
    ours, theirs = metrics(run), metrics(back)
    for name in ("utilization", "mean_wait_s", "makespan_s", "mean_bounded_slowdown"):
        assert theirs[name] == pytest.approx(ours[name], rel=1e-6, abs=1e-6, nan_ok=True)


def test_a_run_survives_swf(tmp_path: Path) -> None:
    run = fcfs_run(40, real=False)
    export(run, "swf", tmp_path / "run.swf")
    back = tb.import_run(tmp_path / "run.swf", side="predicted", workload=run, nodes=run.total_nodes)
    assert back.info.imported["from"] == "swf"
    np.testing.assert_allclose(back.jobs["start"], run.jobs["start"], atol=0.01)


def test_a_log_is_its_own_workload(tmp_path: Path) -> None:
    run = fcfs_run(40, real=False)
    export(run, "swf", tmp_path / "run.swf")
    real = tb.import_run(tmp_path / "run.swf", side="real", form="swf")
    log = run_of_log(tb.read(tmp_path / "run.swf"))
    assert real.info.workload["sha256"] == log.info.workload["sha256"]
    pd.testing.assert_frame_equal(real.jobs[["start", "end"]], log.jobs[["start", "end"]])
    tb.write(tb.generate("cirne", jobs=5, nodes=8, seed=1), tmp_path / "drawn.swf")
    with pytest.raises(InputError, match="the file in format swf has no starts of jobs"):
        tb.import_run(tmp_path / "drawn.swf", side="real", form="swf")


LOGS = Path(__file__).parents[1] / "operator_logs"


@pytest.mark.parametrize("form", ["csv", "sacct"])
def test_no_job_cancelled_before_its_start_is_started(form: str) -> None:
    run = tb.import_run(LOGS / "cancelled.csv", side="real", form=form, nodes=4, time_zone="Europe/Berlin")
    assert np.isfinite(run.jobs["start"]).tolist() == [True, False, False, False]
    assert run.jobs["state"].tolist() == ["completed", "cancelled", "cancelled", "cancelled"]
    assert run.allocations is not None
    assert set(run.allocations["job_id"]) == {"1"}


@pytest.mark.parametrize("form", ["csv", "sacct"])
def test_no_time_zone_is_assumed_in_silence(form: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = tb.import_run(LOGS / "cancelled.csv", side="real", form=form)
    said = [str(warning.message) for warning in caught] + list(run.info.warnings)
    assert sum("taken as UTC" in text and "--time-zone ZONE" in text for text in said) == 1
    assert run.info.imported["time_zone"] == "UTC"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = tb.import_run(LOGS / "cancelled.csv", side="real", form=form, time_zone="Europe/Berlin")
    assert not any("UTC" in text for text in [*map(str, caught), *run.info.warnings])
    assert run.info.imported["time_zone"] == "Europe/Berlin"


@pytest.mark.parametrize("form", ["csv", "sacct"])
@pytest.mark.parametrize("zone", ["abc", "/etc/passwd", "..", "Europe", "a\0b", "\udcff"])
def test_no_unknown_time_zone_is_accepted(form: str, zone: str) -> None:
    with pytest.raises(InputError, match="unknown time zone"):
        tb.import_run(LOGS / "cancelled.csv", side="real", form=form, time_zone=zone)


def test_no_time_zone_is_ignored_by_a_format_without_one(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text("1 0 0 10 1 -1 -1 1 20 -1 1 1 1 1 1 1 -1 -1\n")
    with pytest.raises(InputError, match="time_zone"):
        tb.import_run(path, side="real", time_zone="Europe/Berlin")


def test_no_machine_of_nodes_grows_to_hold_a_real_run(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "id,submit,start,end,nodes", "a,0,0,60,2", "b,5,30,90,1")
    with pytest.raises(InputError, match="up to 3 nodes are busy at once, but the machine has 2"):
        tb.import_run(path, side="real", nodes=2)


# -- nodes that are shared or numbered from 1


def test_nodes_that_begin_at_any_number_are_the_first_of_the_machine(tmp_path: Path) -> None:
    for first in (1, 35):
        rows = [f"a,0,0,60,2,{first}-{first + 1}", f"b,5,60,90,1,{first}"]
        path = table(tmp_path / "t.csv", "id,submit,start,end,nodes,held_nodes", *rows)
        run = tb.import_run(path, side="real", nodes=2)
        assert run.allocations[["node", "count"]].to_numpy().tolist() == [[0, 2], [0, 1]]
    with pytest.raises(InputError, match=r"t\.csv:2: .*holds node number 36, but there are 1 nodes, numbered from 35"):
        tb.import_run(path, side="real", nodes=1)


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("nodes,held_nodes", ["1,0", "1,0"], "1 of 2 nodes are held by several jobs at once, and count whole"),
        ("cores", ["2", "4"], "1 of 2 jobs hold a part of a node of 4 cores: the node counts whole for each"),
        ("nodes,held_nodes", ["1,0", "1,1"], None),
        ("cores", ["4", "4"], None),
    ],
)
def test_no_shared_node_counts_whole_in_silence(
    tmp_path: Path, header: str, rows: list[str], message: str | None
) -> None:
    lines = [f"{job},0,0,60,{row}" for job, row in zip("ab", rows, strict=True)]
    path = table(tmp_path / "t.csv", f"id,submit,start,end,{header}", *lines)
    run = tb.import_run(path, side="real", nodes=2, cores_per_node=4)
    said = [text for text in run.info.warnings if "whole" in text]
    assert len(said) == (message is not None)
    assert not message or message in said[0]


SWF = """; MaxNodes: 2
; MaxProcs: 8
1 0 0 60 4 -1 -1 4 100 -1 1 1 1 1 1 1 -1 -1
2 5 0 60 1 -1 -1 1 100 -1 1 1 1 1 1 1 -1 -1
3 6 0 60 1 -1 -1 1 100 -1 1 1 1 1 1 1 -1 -1
"""
SACCT = "JobID,NCPUS,NNodes,Submit,Start,End,ElapsedRaw,State\n" + "".join(
    f"{job},{cores},1,{1700000000 + job},{1700000000 + job},{1700000100 + job},100,COMPLETED\n"
    for job, cores in ((1, 4), (2, 1), (3, 1))
)


@pytest.mark.parametrize(("name", "content"), [("log.swf", SWF), ("sacct.csv", SACCT)])
def test_no_log_of_shared_nodes_is_read_in_silence(tmp_path: Path, name: str, content: str) -> None:
    """On two nodes of four cores, three jobs run at once: the second and the third share a node."""
    path = tmp_path / name
    path.write_text(content)
    said = "jobs on a part of a node, which count as jobs of the whole node (convert --by core)"
    for read in (lambda: tb.read(path), lambda: tb.import_run(path, side="real", nodes=3)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read()
        assert [w.message.count for w in caught if said in str(w.message)] == [2]  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = tb.import_run(path, side="real", nodes=2)
    assert run.total_nodes == 2  # no node is added
    assert run.info.unknown["allocations"] == "jobs share nodes"
    what = (
        "up to 3 nodes are busy at once, but the machine has 2: 2 jobs on a part of a node count as jobs of the whole "
    )
    assert [text for text in run.info.warnings if "busy" in text] == [f"{what}node, and allocations are unknown"]


# -- tables of several runs, and columns of the same name with another meaning

RUNS = ["1,a,0,0,60.5", "1,b,5,60.5,90.25", "1,c,7.25,60.5,100", "2,a,0,1,61.5", "2,b,5,61.5,91.25", "2,c,7.25,x,101"]


def test_one_run_of_a_table_of_several_is_chosen_by_its_rows(tmp_path: Path) -> None:
    path = table(
        tmp_path / "t.csv", "run_id,job_id,submit_job,launch_job,job_epilog_complete", *RUNS[:5], "2,c,7.25,61.5,101"
    )
    words = ("import", path, "--as", "real", "--nodes", 2)
    for number, starts in (("1", [0.0, 60.5, 60.5]), ("2", [1.0, 61.5, 61.5])):
        call(*words, "--only", f"run_id={number}", "-o", tmp_path / number)
        assert Run.load(tmp_path / number).jobs["start"].tolist() == starts
    both = str(call(*words, "-o", tmp_path / "both").exception)
    assert "t.csv:5: job 'a' occurs twice (3 rows are repeated)" in both
    assert "of a table of several runs, choose one: import --only COLUMN=VALUE" in both
    with pytest.raises(InputError, match=r"t\.csv:5: .*choose one: import --only COLUMN=VALUE"):
        tb.import_run(path, side="real", workload=workload())
    for rows, message in (
        ({"run_id": "3"}, "no row has run_id '3' .the column has 1, 2"),
        ({"run": "1"}, "unknown column of .*t.csv: 'run'"),
        ({"run_id": "1", "launch_job": "61.5"}, "no row has run_id=1, launch_job=61.5"),
    ):
        with pytest.raises(InputError, match=message):
            tb.import_run(path, side="real", rows=rows)
    swf = tmp_path / "log.swf"
    swf.write_text(SWF)
    with pytest.raises(InputError, match=r"--only is for tables, and log\.swf is in format swf"):
        tb.import_run(swf, side="real", rows={"a": "1"}, form="swf")


def test_an_error_in_a_chosen_row_names_its_line(tmp_path: Path) -> None:
    rows = ["1,a,0,0,60", "2,a,0,0,60", "2,b,9,5,60"]
    path = table(tmp_path / "t.csv", "run_id,id,submit,start,end", *rows)
    with pytest.raises(InputError, match=r"t\.csv:4: job 'b' "):
        tb.import_run(path, side="real", nodes=2, rows={"run_id": "2"})


@pytest.mark.parametrize(("walltime", "is_limit"), [((60.5, 29.75, 39.5), False), ((100, 100, 100), True)])
def test_a_walltime_is_a_limit_unless_it_is_the_run_time(
    tmp_path: Path, walltime: tuple[float, ...], is_limit: bool
) -> None:
    path = table(
        tmp_path / "t.csv",
        "id,submit,start,end,nodes,wall_time",
        *map(",".join, zip(lines(), map(str, walltime), strict=True)),
    )
    run = tb.import_run(path, side="real", nodes=2)
    assert run.jobs["time_limit"].notna().all() == is_limit
    what = "the column wall_time has the run times of the jobs, and is not read as time limits"
    assert (what in run.info.warnings) != is_limit


# -- the workload of an imported run, and options of compare


def test_the_workload_of_an_imported_run_is_exported(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "id,submit,start,end,nodes,walltime", *(f"{line},100" for line in lines()))
    call("import", path, "--as", "real", "--nodes", "2", "-o", tmp_path / "real")
    result = call("export", tmp_path / "real", "--to", "workload", "-o", tmp_path / "w.csv")
    assert "the run times are those observed" in result.stderr
    found, run = tb.read(tmp_path / "w.csv"), Run.load(tmp_path / "real")
    assert found.sha256 == run.info.workload["sha256"]
    assert found.provenance.system.nodes == 2
    assert found.table["time_limit"].tolist() == [100.0] * 3
    predicted = tb.simulate(found, "fcfs")
    assert tb.compare(run, predicted).pair.jobs["wait_real"].tolist() == [0.0, 55.5, 53.25]


def test_no_property_of_a_job_is_lost_in_silence(tmp_path: Path) -> None:
    malleable = tb.make_malleable(tb.generate("cirne", jobs=8, nodes=16, seed=3), share=1.0, seed=1)
    tb.simulate(malleable, "pref").save(tmp_path / "run")
    notes = tb.Run.load(tmp_path / "run").export("workload", tmp_path / "w.csv")
    [note] = notes
    assert note.startswith(
        "the run lacks properties of its jobs, such as the cores of a node and the sizes of malleable"
    )
    assert "match by id only (compare --match id)" in note
    with pytest.raises(InputError, match=r"has properties of jobs that its runs lack .*use the file"):
        workload_of(Run.load(tmp_path / "run"))


def test_compare_reads_tables_with_given_columns_units_and_time_zones(tmp_path: Path) -> None:
    """Columns apply to the files that have them: the sides have different names."""
    theirs = table(
        tmp_path / "r.csv", "who,came,go,out,x", *lines([(n, a / 60, s / 60, e / 60, x) for n, a, s, e, x in JOBS])
    )
    sim = table(
        tmp_path / "p.csv", "id,begin_ms,end_ms,nodes", *lines([(n, s * 1e3, e * 1e3, x) for n, _, s, e, x in JOBS])
    )
    words = ["compare", "--real", theirs, "--predicted", sim, "--unit", "min", "--json"]
    columns = "job_id=who,submit=came,start=go,end=out,nodes=x"
    document = json.loads(call(*words, "--columns", columns).stdout)
    assert document["verdict"] == "inconclusive"
    pair = tb.compare(theirs, sim, unit="min", columns=dict(word.split("=") for word in columns.split(","))).pair
    np.testing.assert_allclose(pair.jobs["wait_real"], [0.0, 55.5, 53.25])
    np.testing.assert_allclose(pair.jobs["wait_predicted"], [0.0, 55.5, 53.25])
    with pytest.raises(InputError, match="unknown column of the files 'walk'"):
        tb.compare(theirs, sim, columns={"start": "walk"})
    with pytest.raises(InputError, match="no side is a table"):
        run = fcfs_run(3)
        tb.compare(run, fcfs_run(3, real=False), columns={"start": "go"})
