"""Cleaning compared with a slow, simple reference on drawn logs; and files without names of users."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.logs import CORI, CORI_LONG, write
from tracebed import cli
from tracebed.converters.cleaning.audit import clean
from tracebed.converters.cleaning.recipes import load_recipe
from tracebed.converters.formats.reading import read_raw
from tracebed.ground.errors import Tolerated

NOON = datetime(2022, 11, 14, 12)  # far from any change of the clock
Record = dict[str, Any]


# -- drawn logs


def pieces(job: Record) -> list[Record]:
    """Return a run as accounting records: cut at midnight, without the day's last second."""
    start, end, found = job["start"], job["start"] + timedelta(seconds=job["length"]), []
    while start.date() < end.date():
        midnight = datetime(start.year, start.month, start.day) + timedelta(days=1)
        found.append(job | {"start": start, "end": midnight - timedelta(seconds=1)})
        start = midnight
    return [*found, job | {"start": start, "end": end}]


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Draw records of a few runs: job numbers repeat, days are missing, and the order is random."""
    instants = st.sampled_from([0, 1, 43_199, 43_200, 43_201, 90_000]) | st.integers(0, 200_000)
    records: list[Record] = []
    for _ in range(draw(st.integers(1, 12))):
        submit = NOON + timedelta(seconds=draw(instants))
        job = {
            "job": draw(st.sampled_from(["7", "8", "9_1"])),
            "partition": draw(st.sampled_from(["regular_knl", "regular_knl", "debug_knl", "xfer"])),
            "nodes": draw(st.sampled_from([0, 1, 4, 4, 9688, 20_000])),
            "share": draw(st.sampled_from([1.0, 1.0, 1.0, 0.25])),
            "submit": submit,
            "start": submit + timedelta(seconds=draw(instants)),
            "length": draw(st.sampled_from([0, 1, 2880, 86_400]) | st.integers(0, 300_000)),
        }
        whole = pieces(job)
        lost = draw(st.none() | st.integers(0, len(whole) - 1)) if len(whole) > 1 else None
        records += [piece for number, piece in enumerate(whole) if number != lost]
        if draw(st.booleans()):  # the same submission is requeued, shortly or long after its end
            again = timedelta(seconds=draw(st.sampled_from([0, 1, 2, 5000])))
            records += pieces(job | {"start": whole[-1]["end"] + again})
    return list(draw(st.permutations(records)))


def row(record: Record) -> str:
    seconds = int((record["end"] - record["start"]).total_seconds())
    hours = repr(seconds * record["nodes"] * record["share"] / 3600)
    times = [f"{record[name]:%Y-%m-%d %H:%M:%S}" for name in ("submit", "start", "end")]
    fields = [record["job"], "cori knl", record["partition"], "regular_1", *times, seconds, record["nodes"], hours]
    return ",".join(f'"{field}"' for field in fields)


# -- the slow reference


def slowly(log: list[Record]) -> tuple[list[Record], list[tuple[str, Counter[str]]]]:
    """Clean as in the recipe cori-knl; return the jobs and the counts of each step."""
    zero = min(record["submit"] for record in log)

    def since(instant: datetime) -> float:
        return float((instant - zero).total_seconds())

    jobs = [
        {
            **{name: record[name] for name in ("job", "partition", "nodes")},
            **{name: since(record[name]) for name in ("submit", "start", "end")},
            "shared": record["nodes"] > 0 and record["end"] > record["start"] and record["share"] < 0.99,
        }
        for record in log
    ]
    jobs.sort(key=lambda job: (job["submit"], job["start"]))  # stable
    audit = []

    def drop(step: str, bad: Callable[[Record], bool]) -> None:
        nonlocal jobs
        audit.append((step, Counter(dropped=sum(map(bad, jobs)))))
        jobs = [job for job in jobs if not bad(job)]

    drop("drop_partitions", lambda job: job["partition"] in ("xfer", "compile", "dnarw"))
    drop("drop_shared", lambda job: job["shared"])

    merged: list[Record] = []
    last: dict[str, tuple[Record, Record]] = {}  # job number -> its run and the run's last record
    joined = set()
    for job in jobs:
        run, piece = last.get(job["job"], (None, None))
        if (
            run is not None
            and piece is not None
            and (piece["submit"], piece["nodes"]) == (job["submit"], job["nodes"])
            and 0 <= job["start"] - piece["end"] <= 1
        ):
            run["end"] = job["end"]
            joined.add(id(run))
            last[job["job"]] = (run, job)
        else:
            run = dict(job)
            merged.append(run)
            last[job["job"]] = (run, job)
    audit.append(("merge_split", Counter(merged=len(jobs) - len(merged), changed=len(joined))))
    jobs = merged

    drop("drop_zero_nodes", lambda job: job["nodes"] < 1)
    drop("drop_short", lambda job: job["end"] - job["start"] < 1)

    seen: Counter[str] = Counter()
    for job in jobs:
        seen[job["job"]] += 1
        job["id"] = job["job"] if seen[job["job"]] == 1 else f"{job['job']}-{seen[job['job']]}"
    audit.append(("unique_ids", Counter(changed=sum(job["id"] != job["job"] for job in jobs))))

    audit.append(("over_machine", Counter(changed=sum(job["nodes"] > 9688 for job in jobs))))
    for job in jobs:
        job["nodes"] = min(job["nodes"], 9688)
        job["limit"] = max(1.25 * (job["end"] - job["start"]), 1.0)
    audit.append(("missing_limits", Counter(changed=len(jobs))))
    return jobs, audit


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(logs())
def test_the_slow_reference_gives_the_same_jobs_and_counts(log: list[Record]) -> None:
    jobs, audit = slowly(log)
    recipe = load_recipe("cori-knl")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", Tolerated)
        raw = read_raw([write(Path(folder) / "a.csv", CORI, [row(record) for record in log])])
        if not jobs:
            with pytest.raises(Exception, match="leaves no job"):
                clean(raw, recipe.steps, system=recipe.system)
            return
        done = clean(raw, recipe.steps, system=recipe.system, explain=True)
    columns = ["job_id", "submit_time", "logged_start", "logged_end", "nodes", "time_limit"]
    ours = done.workload.table[columns].to_numpy().tolist()
    assert ours == [[job[name] for name in ("id", "submit", "start", "end", "nodes", "limit")] for job in jobs]
    assert list(done.workload.floats("run_time")) == [job["end"] - job["start"] for job in jobs]
    for counted, (step, counts) in zip(done.audit, audit, strict=True):
        assert counted.step == step
        for action in ("merged", "dropped", "changed", "flagged"):
            assert getattr(counted, action) == counts[action], f"{step}: {action}"
            touched = (done.touched["step"] == step) & (done.touched["action"] == action)
            assert touched.sum() == counts[action], f"{step}: {action}"
    assert done.audit[0].jobs_before == len(log)
    assert done.audit[-1].node_hours_after == pytest.approx(
        sum((job["end"] - job["start"]) * job["nodes"] for job in jobs) / 3600
    )


# -- names


PEOPLE = ("amelie_k", "bertold-w", "m9877", "geophys", "Deep Ocean")


def text_of(path: Path) -> str:
    """Return all text of a file, including compressed columns and metadata."""
    if path.is_dir():
        return "\n".join(text_of(file) for file in sorted(path.iterdir()))
    if path.suffix != ".parquet":
        return path.read_text()
    table = pq.read_table(path)
    fields = [(field.name, field.metadata) for field in table.schema]
    return repr((table.to_pydict(), table.schema.metadata, fields))


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, str]:
    """Clean and convert a log with names into all writable formats; return the text of all files."""
    rows = [
        f'"{job}","{PEOPLE[job % 2]}","{PEOPLE[2]}","{PEOPLE[3]}","cori knl","regular_knl","regular_1",'
        f'"2022-11-14 12:00:0{job}","2022-11-14 13:00:00","2022-11-14 14:00:00","1","3600","68","1","1","1.0","1","1"'
        for job in range(4)
    ]
    recipe = "steps: [unique_ids, {flag_bursts: {jobs: 2}}, {flag_flurries: {jobs: 2, times: 0, within: 1}}]\n"
    monkeypatch.chdir(folder)
    write(Path("raw.csv"), CORI_LONG, rows)
    Path("r.yaml").write_text(recipe)
    clean = ["clean", "raw.csv", "--recipe", "r.yaml"]
    calls = [[*clean, "--explain", "touched.csv", "-o", "clean.csv"], [*clean, "-o", "clean.parquet"]]
    calls += [["convert", "raw.csv", "-o", f"w.{end}"] for end in ("swf", "csv", "parquet", "sh", "events")]
    calls += [["convert", "raw.csv", "--to", "run", "-o", "run"], ["convert", "raw.csv", "--to", "batsim", "-o", "bat"]]
    calls += [["convert", "raw.csv", "--to", "elastisim", "-o", "es"]]
    for arguments in calls:
        monkeypatch.setattr(sys, "argv", ["tracebed", *arguments, *options])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code, arguments
    return {path.name: text_of(path) for path in Path().iterdir() if path.name not in ("raw.csv", "r.yaml")}


def test_no_file_contains_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = written(tmp_path, monkeypatch)
    assert len(files) == 11
    for name, text in files.items():
        assert not [person for person in PEOPLE if person in text], name
    assert "user-" in files["clean.csv"]
    kept = tmp_path / "kept"
    kept.mkdir()
    named = written(kept, monkeypatch, "--keep", "names")
    for name in ("clean.csv", "clean.parquet", "w.swf", "w.events", "run"):
        assert PEOPLE[0] in named[name], name


def test_keep_extra_keeps_names_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = written(tmp_path, monkeypatch, "--keep", "extra")["w.csv"]
    header = extra.splitlines()[2].replace('"', "").split(",")
    assert "extra_Account Name" in header
    assert PEOPLE[3] in extra, "as docs/reference/formats/ says: free texts as they are"
    assert json.loads(extra.splitlines()[0].partition(": ")[2])["steps"][0]["parameters"]["keep_extra"] is True
