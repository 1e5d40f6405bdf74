"""Exports: other programs read the events of the run, and facts that a format cannot hold are reported."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import packages
from tests.runs import NAN, fcfs_run, make_run
from tracebed.converters.formats.reading import read_workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.validation.export import EXPORTERS, export, perfetto
from tracebed.validation.export.csv import COLUMNS
from tracebed.validation.metrics import busy_cores, per_job, total_cores

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "export.md"


def staircase(**options: Any) -> Run:
    """Return a run: job 1 has 1 node from 10 and 3 from 30 to 40, job 2 has 2, job 3 is rejected, job 4 never ends."""
    return make_run(
        [(5.0, 10.0, 40.5, 1), (5.0, 5.0, 25.0, 2), (6.0, NAN, NAN, 9), (7.0, 26.0, NAN, 1)],
        staircases={"1": [(10.0, 30.0, 1), (30.0, 40.5, 3)]},
        states={"2": "killed", "3": "rejected", "4": "interrupted"},
        **options,
    )


def trace(run: Run, path: Path) -> dict[str, Any]:
    export(run, "perfetto", path)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def slices(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in found["traceEvents"] if event["ph"] == "X"]


# -- perfetto


@pytest.mark.parametrize("run", [staircase(), fcfs_run(200, machine=8, seed=3)], ids=["staircase", "many"])
def test_a_trace_has_the_format_of_the_viewer(run: Run, tmp_path: Path) -> None:
    events = trace(run, tmp_path / "trace.json")["traceEvents"]
    names = {(event["pid"], event.get("tid")): event["args"]["name"] for event in events if "name" in event["args"]}
    assert {names[1, None], names[2, None]} == {"scheduler", "nodes"}
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert {event["ph"] for event in timed} == {"X", "C"}
    last = 1e6 * (float(run.jobs[["submit", "start", "end"]].max().max()) - float(run.jobs["submit"].min()))
    ends: dict[int, int] = {}
    for event in timed:
        assert isinstance(event["ts"], int)
        if event["ph"] == "X":
            assert (event["pid"], event["tid"]) in names
            assert 0 <= event["ts"] <= event["ts"] + event["dur"] <= last + 1
            assert event["ts"] >= ends.get(event["tid"], 0)  # slices of one track never overlap
            ends[event["tid"]] = event["ts"] + event["dur"]


def test_a_trace_has_every_allocation_on_its_nodes(tmp_path: Path) -> None:
    found = trace(staircase(), tmp_path / "trace.json")
    tracks = {e["tid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    drawn = sorted((e["name"], tracks[e["tid"]], e["ts"] / 1e6, e["dur"] / 1e6) for e in slices(found))
    assert drawn == [
        ("job 1", "n1", 25.0, 10.5),
        ("job 1", "n2", 5.0, 20.0),
        ("job 1", "n2", 25.0, 10.5),
        ("job 1", "n3", 25.0, 10.5),
        ("job 2", "n0", 0.0, 20.0),
        ("job 2", "n1", 0.0, 20.0),
        ("job 4", "n0", 21.0, 14.5),
    ]
    (first, *_) = [event for event in slices(found) if event["name"] == "job 2"]
    assert first["args"] == {
        "job": "2",
        "kind": "rigid",
        "state": "killed",
        "nodes": 2,
        "submit_s": 0.0,
        "start_s": 0.0,
        "end_s": 20.0,
        "cores": 1,
    }


def test_the_counters_are_the_curves_of_the_run(tmp_path: Path) -> None:
    run = fcfs_run(60, machine=8, seed=3)
    events = trace(run, tmp_path / "trace.json")["traceEvents"]
    percent = [(e["ts"] / 1e6, e["args"]["percent"]) for e in events if e["name"] == "utilization (%)"]
    busy = busy_cores(run)
    assert np.array(percent) == pytest.approx(np.stack([busy.times, 100 * busy.values / total_cores(run)], axis=1))
    queue = [event["args"]["jobs"] for event in events if event["name"] == "waiting jobs"]
    assert min(queue) == 0
    assert queue[-1] == 0


def test_jobs_that_share_a_node_have_tracks_of_their_own(tmp_path: Path) -> None:
    run = make_run([(0.0, 0.0, 10.0, 1), (0.0, 0.0, 30.0, 1)], machine=2, cores=4)
    run.allocations["node"] = 0
    found = trace(run, tmp_path / "trace.json")
    tracks = {e["tid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    assert [tracks[event["tid"]] for event in slices(found)] == ["n0", "n0 (2)"]


def test_a_large_trace_is_truncated_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fcfs_run(100, machine=8, seed=3)
    every = len(slices(trace(run, tmp_path / "every.json")))
    assert every > 200
    monkeypatch.setattr(perfetto, "SLICES", 80)
    monkeypatch.setattr(perfetto, "SAMPLES", 50)
    found = trace(run, tmp_path / "few.json")
    assert len(slices(found)) == 80
    assert all("held" in e["args"] or e["args"]["nodes"] >= 1 for e in slices(found))
    first, second = found["otherData"]["notes"]
    assert first.startswith("more than 80 slices: neighboring nodes held alike have one slice")
    assert re.fullmatch(r"\d+ allocations with the fewest node seconds have no slice", second)
    assert sum(event["name"] == "waiting jobs" for event in found["traceEvents"]) <= 51


# -- evalys


def rows(run: Run, to: str, path: Path) -> list[dict[str, str]]:
    export(run, to, path)
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_evalys_has_the_columns_of_its_jobset(tmp_path: Path) -> None:
    (first, *_) = rows(fcfs_run(5), "evalys", tmp_path / "jobs.csv")
    assert list(first) == [
        "job_id",
        "workload_name",
        "submission_time",
        "requested_number_of_resources",
        "requested_time",
        "success",
        "starting_time",
        "execution_time",
        "finish_time",
        "waiting_time",
        "turnaround_time",
        "stretch",
        "allocated_resources",
    ]


def test_evalys_has_the_waits_and_the_node_seconds_of_the_run(tmp_path: Path) -> None:
    run = fcfs_run(80, machine=8, seed=2)
    found = rows(run, "evalys", tmp_path / "jobs.csv")
    waits = {row["job_id"]: float(row["waiting_time"]) for row in found}
    expected = per_job(run).set_index("job_id")["wait"]
    assert waits == pytest.approx(expected.to_dict())
    sets = [[[int(n) for n in part.split("-")] for part in row["allocated_resources"].split()] for row in found]
    sizes = [sum(part[-1] - part[0] + 1 for part in parts) for parts in sets]
    assert sizes == [int(row["requested_number_of_resources"]) for row in found]


def test_evalys_has_a_row_for_each_allocation_of_a_job(tmp_path: Path) -> None:
    run = staircase()
    found = rows(run, "evalys", tmp_path / "jobs.csv")
    times = {row["job_id"]: (float(row["submission_time"]), float(row["starting_time"])) for row in found}
    assert times["1"] == (0.0, 5.0)
    assert times["1#2"] == (25.0, 25.0)  # not counted in a queue
    assert {row["job_id"]: row["success"] for row in found}["2"] == "0"
    notes = export(run, "evalys", tmp_path / "jobs.csv", replace=True)
    assert notes == [
        "1 jobs that never ran have no allocation and no row",
        "1 rows more than jobs: a job whose nodes changed has a row for each of its allocations",
    ]


# -- SWF


def test_swf_is_read_back_as_the_run(tmp_path: Path) -> None:
    run = fcfs_run(80, machine=8, seed=2)
    export(run, "swf", tmp_path / "run.swf")
    back = read_workload(tmp_path / "run.swf")
    zero = run.jobs["submit"].min()
    assert back.floats("logged_start") == pytest.approx((run.jobs["start"] - zero).to_numpy())
    assert back.floats("run_time") == pytest.approx((run.jobs["end"] - run.jobs["start"]).to_numpy())
    assert back.ints("nodes").tolist() == run.jobs["nodes"].tolist()
    assert back.provenance.system.nodes == 8


def test_swf_is_plain_to_other_readers(tmp_path: Path) -> None:
    """Without tracebed's comments: fields 3 and 4 are wait and run time, 5 is processors, 11 is the status."""
    export(staircase(), "swf", tmp_path / "run.swf")
    lines = (tmp_path / "run.swf").read_text().splitlines()
    fields = [line.split() for line in lines if not line.startswith(";")]
    assert [(f[0], f[1], f[2], f[3], f[4], f[10]) for f in fields] == [
        ("1", "0", "5", "30.5", "1", "1"),
        ("2", "0", "0", "20", "2", "0"),
        ("3", "1", "-1", "-1", "9", "5"),
        ("4", "2", "19", "-1", "1", "-1"),
    ]
    assert "; Note: policy: fcfs" in lines
    assert any(line.startswith("; Tracebed-Column:") and '"extra_state"' in line for line in lines)


# -- CSV


def test_csv_has_its_documented_columns_and_figures(tmp_path: Path) -> None:
    run = fcfs_run(80, machine=8, seed=2)
    export(run, "csv", tmp_path / "jobs.csv")
    table = pd.read_csv(tmp_path / "jobs.csv", dtype={"job_id": str})
    assert list(table) == list(COLUMNS)
    figures = per_job(run)
    assert table["wait_s"].to_numpy() == pytest.approx(figures["wait"].to_numpy())
    assert table["node_seconds"].sum() == pytest.approx((figures["run"] * figures["nodes"]).sum())


def test_the_page_has_the_columns_of_the_csv() -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {name: documented.get(name) for name in COLUMNS} == COLUMNS


# -- all


@pytest.mark.parametrize("to", EXPORTERS.names())
def test_the_same_run_gives_the_same_bytes(to: str, tmp_path: Path) -> None:
    run = staircase()
    for name in ("a.gz", "b.gz"):
        export(run, to, tmp_path / name)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes())


@pytest.mark.parametrize("to", EXPORTERS.names())
@pytest.mark.parametrize("jobs", [[], [(0.0, NAN, NAN, 1)]], ids=["no jobs", "nothing ran"])
def test_a_run_without_started_jobs_has_an_export(
    jobs: list[tuple[float, float, float, int]], to: str, tmp_path: Path
) -> None:
    export(make_run(jobs), to, tmp_path / "out")
    assert (tmp_path / "out").stat().st_size > 0


@pytest.mark.parametrize("to", EXPORTERS.names())
def test_odd_names_do_not_break_a_file(to: str, tmp_path: Path) -> None:
    odd = 'a "b", <c>\n; d \\'
    run = make_run([(0.0, 0.0, 5.0, 1), (1.0, 5.0, 9.0, 1)], ids=[odd, "2"], machine=1, policy=odd)
    run.info.nodes = [type(run.info.nodes[0])(odd, 1)]
    export(run, to, tmp_path / "out")
    if to == "perfetto":
        assert {e["args"]["job"] for e in slices(json.loads((tmp_path / "out").read_text()))} == {odd, "2"}
    elif to == "swf":
        assert read_workload(tmp_path / "out", "swf").floats("run_time").tolist() == [5.0, 4.0]
    elif to == "workload":
        assert sorted(read_workload(tmp_path / "out", "csv").column("job_id")) == sorted([odd, "2"])
    else:
        assert list(pd.read_csv(tmp_path / "out", dtype={"job_id": str})["job_id"]) == [odd, "2"]


def test_an_unknown_format_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean perfetto"):
        export(staircase(), "perfeto", tmp_path / "out")
    assert not list(tmp_path.iterdir())


THEIRS = """
    from tracebed.validation.export import Exporter

    def write(run, file):
        file.write(b"%d jobs" % len(run.jobs))
        return ["nothing else"]

    COUNT = Exporter("number of jobs", write)
"""


def test_a_format_of_another_package_is_a_choice_of_the_command(tmp_path: Path) -> None:
    entry = {"tracebed.exporters": {"count": "theirs:COUNT"}}
    site = packages.install(tmp_path / "theirs", {"theirs.py": THEIRS}, entry)
    fcfs_run(7).save(tmp_path / "run")
    done = packages.tracebed(site, "export", "run", "--to", "count", "-o", "n.txt", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "n.txt").read_text() == "7 jobs"
    assert done.stdout == "n.txt: count, 7 jobs\n"
    assert "note: nothing else" in done.stderr


def test_the_run_is_never_replaced(tmp_path: Path) -> None:
    fcfs_run(7).save(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    done = packages.tracebed(tmp_path, "export", "run", "--to", "csv", "-o", "run/run.json", cwd=tmp_path)
    assert done.returncode == 2
    assert (tmp_path / "run" / "run.json").read_bytes() == before
