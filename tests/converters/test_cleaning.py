"""Cleaning: the effect of each step, the audit, recipes, and the papers' numbers."""

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

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.logs import CORI, CORI_LONG, CORI_ROWS, cori_row, write
from tracebed import cli
from tracebed.converters.cleaning import recipes, steps
from tracebed.converters.cleaning.audit import ACTIONS, Cleaned, clean
from tracebed.converters.cleaning.recipes import load_recipe
from tracebed.converters.formats.reading import read_raw, read_workload
from tracebed.converters.log import Log
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError, Tolerated
from tracebed.ground.yaml_file import MAX_CHARACTERS


def workload(rows: dict[str, Any], system: System | None = None) -> Workload:
    table = pd.DataFrame(rows)
    for name, value in (("job_id", [str(i) for i in range(len(table))]), ("run_time", 10.0), ("nodes", 1)):
        if name not in table:
            table[name] = value
    if "submit_time" not in table:
        table["submit_time"] = 0.0
    return Workload(table, Provenance(system=system or System(100, 4), unix_start=1.6e9))


def ids(done: Cleaned) -> list[str]:
    return list(done.workload.column("job_id"))


def test_knl_is_the_papers(reference_data: Callable[[str], Path]) -> None:
    recipe = load_recipe("cori-knl")
    done = clean(read_raw([reference_data("logs/cori-knl")]), recipe.steps, system=recipe.system, explain=True)
    by_step = {row.step: row for row in done.audit}
    assert by_step["drop_partitions"].jobs_before == recipe.expect["records"] == 55_600
    assert len(done.workload) == recipe.expect["jobs"] == 41_524
    assert by_step["drop_partitions"].dropped == 11_978
    assert by_step["merge_split"].merged == 2_098
    lost = by_step["drop_partitions"].node_hours_before - by_step["drop_partitions"].node_hours_after
    assert lost == pytest.approx(41, abs=0.5), "table 1: about 41 h, 0.004 %"
    assert lost / by_step["drop_partitions"].node_hours_before == pytest.approx(4e-5, rel=0.1)
    assert (done.touched["action"] == "dropped").sum() == 11_978
    assert np.isfinite(done.workload.floats("time_limit")).all()


def test_ricc_september(reference_data: Callable[[str], Path]) -> None:
    path = reference_data("logs/RICC-2010-2.swf.gz")
    with pytest.warns(UserWarning):
        log = read_workload(path)
    done = clean(log, load_recipe("ricc-sept").steps)
    first, last = ids(done)[0], ids(done)[-1]
    assert (len(done.workload), first, last) == (10_000, "414970", "424969")
    cores = done.workload.ints("nodes") * done.workload.ints("cores_per_node")
    assert done.workload.ints("nodes").max() == 72
    assert cores.max() == 576
    done = clean(log, load_recipe("ricc-sept-first").steps)
    assert (len(done.workload), ids(done)[0], ids(done)[-1]) == (10_000, "304056", "314055")
    cores = done.workload.ints("nodes") * done.workload.ints("cores_per_node")
    assert cores.max() == 1024


def test_curie_on_a_stand_in(tmp_path: Path) -> None:
    lines = ["; MaxNodes: 5544", "; MaxProcs: 93312"]
    lines += [f"{i} {i} 0 100 16 -1 -1 16 600 -1 1 1 1 1 1 {1 if i % 4 else 2} -1 -1" for i in range(1, 41)]
    lines += [
        "41 50 0 100 81920 -1 -1 81920 600 -1 1 1 1 1 1 1 -1 -1",
        "42 51 0 0 16 -1 -1 16 600 -1 1 1 1 1 1 1 -1 -1",
    ]
    (tmp_path / "curie.swf").write_text("\n".join(lines) + "\n")
    recipe = load_recipe("curie")
    done = clean(read_workload(tmp_path / "curie.swf", **recipe.read), recipe.steps, system=recipe.system)
    assert set(done.workload.ints("nodes")) == {1}
    assert set(done.workload.ints("cores_per_node")) == {16}
    assert len(done.workload) == 30, "ten of another partition, one of zero time; 81,920 cores are too many"
    assert done.workload.provenance.system == System(5040, 16, "CEA Curie primary")


def test_the_audit_accounts_for_every_record(tmp_path: Path) -> None:
    recipe = load_recipe("cori-knl")
    log = read_raw([write(tmp_path / "a.csv", CORI, CORI_ROWS)])
    done = clean(log, recipe.steps, system=recipe.system, explain=True)
    assert ids(done) == ["11", "14_1", "11-2"]
    for before, after in zip(done.audit, done.audit[1:], strict=False):
        assert before.jobs_after == after.jobs_before
    for row in done.audit:
        assert row.jobs_before - row.jobs_after == row.dropped + row.merged
    gone = done.touched[done.touched["action"].isin(["dropped", "merged"])]
    assert len(gone) == len(CORI_ROWS) - len(done.workload)
    assert gone["record"].is_unique
    reasons = dict(zip(gone["job_id"], gone["reason"], strict=True))
    assert reasons["12"] == "partition xfer"
    assert reasons["13"].startswith("used a share of its nodes of 0.25")
    assert reasons["15_[2-9]"] == "0 nodes"
    assert done.workload.ints("nodes").max() == 9688, "clipped to the machine"
    assert [step.name for step in done.workload.provenance.steps][1:] == [f"clean {name}" for name, _ in recipe.steps]
    assert list(done.workload.floats("time_limit")) == [1.25 * run for run in done.workload.floats("run_time")]


def test_an_empty_result_is_an_error_that_names_the_step(tmp_path: Path) -> None:
    log = read_raw([write(tmp_path / "a.csv", CORI, CORI_ROWS)])
    with pytest.raises(InputError, match="drop_partitions leaves no job"):
        clean(log, [("drop_partitions", {"partitions": ["regular_knl", "xfer", ""]})])


def test_no_misspelled_partition_is_left_out_in_silence(tmp_path: Path) -> None:
    log = read_raw([write(tmp_path / "a.csv", CORI, CORI_ROWS)])
    with pytest.raises(InputError, match="no job has the partition 'regular_hsw'") as error:
        clean(log, [("keep_partitions", {"partitions": ["regular_knl", "regular_hsw"]})])
    assert "one of regular_knl, xfer" in str(error.value)


@pytest.mark.parametrize(
    ("step", "parameters", "rows", "left"),
    [
        ("drop_partitions", {"queues": ["debug"]}, {"queue": ["debug", "", "x"]}, "12"),
        ("keep_partitions", {"partitions": ["a"]}, {"partition": ["a", "b", "a"]}, "02"),
        ("keep_partitions", {"largest": True}, {"partition": ["a", "b", "a"], "nodes": [1, 9, 1]}, "1"),
        ("drop_statuses", {"statuses": ["failed"]}, {"status": ["failed", "completed", ""]}, "12"),
        ("drop_partitions", {"partitions": "ab"}, {"partition": ["ab", "a", ""]}, "12"),
        ("drop_partitions", {"partitions": [1]}, {"partition": ["1", "2", "11"]}, "12"),
        ("drop_gpu", {}, {"extra_gpus": [1.0, np.nan, 0.0]}, "12"),
        ("drop_shared", {}, {"extra_node_share": [0.5, np.nan, 1.0]}, "12"),
        (
            "drop_cancelled_before_start",
            {},
            {"status": ["cancelled"] * 2 + ["completed"], "logged_start": [np.nan, 1, np.nan]},
            "12",
        ),
        ("drop_unfinished", {}, {"run_time": [np.nan, 0.0, 1.0]}, "12"),
        ("drop_short", {}, {"run_time": [0.0, np.nan, 1.0]}, "12"),
        ("drop_zero_nodes", {}, {"nodes": [0, 1, 2]}, "12"),
        ("over_machine", {"action": "drop"}, {"nodes": [101, 100, 2]}, "12"),
        ("over_machine", {"nodes": 1, "action": "drop"}, {"nodes": [2, 1, 1]}, "12"),
        ("over_limit", {"action": "drop"}, {"time_limit": [9.0, 10.0, np.nan]}, "12"),
        ("window", {"start": 5, "end": 9}, {"submit_time": [1.0, 5.0, 9.0]}, "1"),
        ("window", {"start": "2020-09-13 12:26:42"}, {"submit_time": [1.0, 2.0, 9.0]}, "12"),
        ("keep_ids", {"first": 1, "last": 2}, {"submit_time": [0.0, 0.0, 0.0, 0.0]}, "12"),
        ("keep_first", {"jobs": 2, "start": 1}, {"submit_time": [0.0, 1.0, 2.0, 3.0]}, "12"),
    ],
)
def test_what_a_step_drops(step: str, parameters: dict[str, Any], rows: dict[str, Any], left: str) -> None:
    done = clean(workload(rows), [(step, parameters)], explain=True)
    assert "".join(ids(done)) == left
    assert done.audit[0].dropped == len(rows[next(iter(rows))]) - len(left)
    assert (done.touched["reason"].str.len() > 3).all()


def test_what_a_step_changes() -> None:
    jobs = workload({"run_time": [2880.0, 2881.0, 10.0, np.nan], "time_limit": [np.nan, np.nan, 5.0, np.nan]})

    def limits(**parameters: Any) -> list[float]:
        return list(clean(jobs, [("missing_limits", parameters)]).workload.floats("time_limit"))[:3]

    assert limits() == [3600.0, 3601.25, 5.0]
    assert limits(rounding="hour") == [3600.0, 7200.0, 5.0]
    assert limits(rounding="next-hour") == [7200.0, 7200.0, 5.0], "a full hour becomes the next"
    raised = clean(jobs, [("over_limit", {})]).workload
    assert raised.floats("time_limit")[2] == 10.0
    clipped = clean(jobs, [("over_limit", {"action": "clip"})]).workload
    assert clipped.floats("run_time")[2] == 5.0


@pytest.mark.parametrize(
    ("step", "parameters", "says"),
    [
        ("unheard_of", {}, "unknown cleaning step"),
        ("missing_limits", {"rounding": "day"}, "one of none, hour, next-hour"),
        ("over_limit", {"action": "x"}, "one of raise, clip, drop"),
        ("drop_short", {"longer": 1}, "drop_short"),
        ("window", {"start": "yesterday"}, "yesterday"),
        ("window", {"start": "2022-13-45"}, "2022-13-45"),
        ("window", {"start": True}, "window.start True is not a date"),
        ("whole_nodes", {}, "cores"),
        ("whole_nodes", {"cores": 0}, "cores is 0, below 1"),
        ("over_machine", {"nodes": 0}, "nodes is 0, below 1"),
        ("drop_short", {"shorter": "soon"}, "drop_short.shorter 'soon' is not a number"),
        ("missing_limits", {"factor": float("nan")}, "not a number >= 0"),
        ("flag_bursts", {"within": -5.0}, "flag_bursts.within -5.0"),
        ("flag_flurries", {"within": 0.0}, "flag_flurries: within is 0 s"),
        ("flag_gaps", {"drop": "maybe"}, "not true or false"),
        ("drop_partitions", {"partitions": {"a": 1}}, "not a list of strings"),
    ],
)
def test_a_wrong_step_is_an_error(step: str, parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        clean(workload({"nodes": [1, 1]}), [(step, parameters)])


def test_ids_stay_unique_if_the_log_has_such_ids_already(tmp_path: Path) -> None:
    rows = [row.replace('"14_1"', '"11-2"') for row in CORI_ROWS]
    done = clean(read_raw([write(tmp_path / "a.csv", CORI, rows)]), [("merge_split", {}), ("unique_ids", {})])
    assert sorted(ids(done))[:3] == ["11", "11-2", "11-run2"]


@pytest.mark.parametrize(("counts", "more"), [(True, 1.0), (False, 0.0)])
def test_the_second_between_two_records_of_a_job_counts_unless_it_is_left_out(
    counts: bool, more: float, tmp_path: Path
) -> None:
    """Records that are split at midnight leave out a second: 23:59:59 to 00:00:00."""
    rows = [
        cori_row("11", "regular_knl", "07 20:00:00", "07 23:00:00", "07 23:59:59", nodes=2),
        cori_row("11", "regular_knl", "07 20:00:00", "08 00:00:00", "08 01:00:00", nodes=2),
    ]
    raw = read_raw([write(tmp_path / "a.csv", CORI, rows)])
    (run_time,) = clean(raw, [("merge_split", {"count_gaps": counts})]).workload.floats("run_time")
    assert run_time == 3599 + 3600 + more


def test_records_of_overlapping_exports_are_reported_and_dropped_on_request(tmp_path: Path) -> None:
    other = cori_row("11", "regular_knl", "09 02:00:00", "09 03:00:00", "09 04:00:00", nodes=5)  # other nodes
    twice = [row for row in CORI_ROWS if row.startswith('"11"')]
    files = [write(tmp_path / "a.csv", CORI, CORI_ROWS), write(tmp_path / "b.csv", CORI, [*twice, other])]
    with pytest.warns(Tolerated, match=r"drop_copies\) \(5 times\)"):
        raw = read_raw(files)
    assert isinstance(raw, Log)
    steps = [("drop_copies", {}), ("merge_split", {}), ("unique_ids", {})]
    done = clean(raw, steps, explain=True)
    assert done.audit[0].dropped == 4
    assert set(done.touched["reason"][:4]) == {"repeats an earlier record in every column"}
    once = clean(read_raw(files[:1]), steps)
    assert once.audit[0].dropped == 0
    assert len(done.workload) == len(once.workload) + 1


# -- anomalies


def test_a_gap_is_flagged_for_jobs_that_waited_through_it() -> None:
    hour = 3600.0
    jobs = workload(
        {
            "submit_time": np.array([0.0, 0.5, 2.0, 9.0]) * hour,
            "logged_start": np.array([0.0, 5.0, 5.0, 9.0]) * hour,
            "logged_end": np.array([1.0, 6.0, 9.5, 9.9]) * hour,
        }
    )
    done = clean(jobs, [("flag_gaps", {"longer": 3 * hour})])
    assert list(done.workload.table["extra_flag"]) == ["", "gap", "gap", ""]
    assert done.audit[0].found == ["no job ran for 4.0 h from 3,600 s"]
    assert ids(clean(jobs, [("flag_gaps", {"drop": True})])) == ["0", "3"]


def test_bursts_storms_and_flurries() -> None:
    rng = np.random.default_rng(1)
    quiet = np.sort(rng.uniform(0, 10 * 86_400, 200))
    jobs = workload(
        {
            "submit_time": np.concatenate([quiet, 500_000 + np.arange(50) * 0.5]),
            "user": ["a"] * 100 + ["b"] * 100 + ["c"] * 50,
            "run_time": [100.0] * 200 + [5.0] * 50,
        }
    )
    for step, parameters, word in (
        ("flag_bursts", {"jobs": 50, "within": 30}, "burst"),
        ("flag_storms", {"jobs": 50, "within": 30}, "storm"),
        ("flag_flurries", {"jobs": 50, "times": 2}, "flurry"),
    ):
        done = clean(jobs, [(step, parameters)])
        flags = done.workload.table["extra_flag"]
        assert set(done.workload.table["user"][flags == word]) == {"c"}, step
        assert (flags == word).sum() == done.audit[0].flagged == 50, step
        assert clean(jobs, [(step, parameters | {"drop": True})]).audit[0].dropped == 50
        assert clean(jobs, [(step, parameters | {"jobs": 51})]).audit[0].flagged == 0
    both = clean(jobs, [("flag_bursts", {"jobs": 50}), ("flag_storms", {"jobs": 50})]).workload.table["extra_flag"]
    assert set(both) == {"", "burst storm"}


def test_a_regular_log_has_no_flags() -> None:
    long = workload({"run_time": [100.0, np.nan], "submit_time": [0.0, 1e10], "user": ["a", "a"]})
    done = clean(long, [("flag_storms", {"jobs": 1}), ("flag_flurries", {"within": 1, "times": 0, "jobs": 2})])
    assert [row.flagged for row in done.audit] == [0, 0]


@given(st.lists(st.integers(-5, 30), min_size=1, max_size=30))
def test_the_median_includes_empty_intervals(places: list[int]) -> None:
    counts = np.bincount(np.array(places) - min(places))
    assert steps._median_count(np.array(places)) == np.median(counts)


@given(
    jobs=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=40), within=st.integers(0, 20)
)
def test_a_crowd_is_the_densest_interval_that_contains_the_job(jobs: list[tuple[int, int]], within: int) -> None:
    groups, times = np.array([g for g, _ in jobs]), np.array([float(t) for _, t in jobs])
    crowd = steps._largest_groups(groups, times, float(within))
    for job, (group, time) in enumerate(jobs):
        fullest = max(
            sum(g == group and start <= t <= start + within for g, t in jobs)
            for g, start in jobs
            if g == group and start <= time <= start + within
        )
        assert crowd[job] == fullest


# -- recipes


@pytest.mark.parametrize("name", recipes.names())
def test_a_shipped_recipe_can_be_read_and_has_a_description(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.steps
    assert recipe.system is not None or name in ("gpu-cluster", "sacct", "slurm"), "of no machine in particular"
    assert len(recipe.about) > 50


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("steps: [unheard_of]", "unknown cleaning step 'unheard_of'"),
        ("steps: [{drop_short: {longer: 1}}]", "has no parameter 'longer'"),
        ("steps: [[]]", "mine.yaml:1: step .* is not a step"),
        ("steps: [drop_short]\nmachines: {}", "mine.yaml:2: machines: unknown key"),
        ("steps:\n- {drop_short: 5}", "mine.yaml:2: step 'drop_short': 5 is not a mapping"),
        ("steps: [{drop_short: {shorter: -1}}]", "drop_short.shorter -1 is not a number >= 0"),
        ("steps: [drop_short]\nmachine: {nodes: 0}", "mine.yaml:2: machine.nodes: must be at least 1"),
        ("steps: [drop_short]\nmachine: {nodes: 1.5}", "machine.nodes: must be a whole number"),
        ("steps: [drop_short]\nmachine: 5", "machine: must be a mapping of keys to values"),
        ("steps: [drop_short]\nread: {time_zone: 5}", "read.time_zone"),
        ("steps: [drop_short]\nexpect: 7", "expect: must be a mapping of keys to values"),
        ("steps: [drop_short]\nexpect: {job: 7}", "expect.job: unknown key"),
        ("- drop_short", "must be a mapping of keys to values"),
        ("steps: [", "not YAML"),
        ("\x00", "not YAML"),
        ("steps: [drop_short]\nsteps: [merge_split]", "mine.yaml:2: key 'steps' occurs twice"),
        ("steps: " + "[" * 5000, "not YAML: (nested too deeply|did not find expected node content)"),
        ("#" * (MAX_CHARACTERS + 1), "too long for YAML"),
        ("steps: [keep_ids: {first: 1, last: 99999999999999999999}]", "is not a whole number"),
        ("steps: [merge_split]\nmachine: {name: [a]}", "machine.name: must be text"),
        ("steps:\n - &a [x, x, x]\n - [" + "[*a, *a], " * 500 + "]", r"^.{0,300}is not a step"),
    ],
)
def test_a_broken_recipe_is_an_error(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        load_recipe(str(path))


def test_numbers_of_a_recipe_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    steps = ["drop_short: {shorter: 1e1}", "window: {start: 2022-11-06}", "drop_partitions: {partitions: [on, 12:30]}"]
    path.write_text("steps:\n" + "".join(f"- {step}\n" for step in steps))
    assert load_recipe(str(path)).steps == (
        ("drop_short", {"shorter": 10.0}),
        ("window", {"start": "2022-11-06"}),
        ("drop_partitions", {"partitions": ["on", "12:30"]}),
    )


def test_a_recipe_can_be_varied() -> None:
    recipe = load_recipe("eagle")
    varied = recipe.without("drop_gpu").with_settings(
        {"window": {"start": "2022-09-01"}, "drop_short": {"shorter": 60}}
    )
    assert "drop_gpu" not in dict(varied.steps)
    assert dict(varied.steps)["window"] == {"start": "2022-09-01"}
    for wrong in ({"unheard_of": {}}, {"drop_short": {"longer": 1}}):
        with pytest.raises(InputError):
            recipe.with_settings(wrong)


def test_a_log_of_another_machine_gives_a_warning(tmp_path: Path) -> None:
    recipe = load_recipe("cori-haswell")
    with pytest.warns(Tolerated, match="the recipe is for NERSC Cori Haswell, the log is from NERSC Cori KNL"):
        clean(read_raw([write(tmp_path / "a.csv", CORI, CORI_ROWS)]), recipe.steps, system=recipe.system)


def test_ids_that_repeat_are_an_error_that_names_the_step_to_add(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"job_id '11' is not unique \(add the step unique_ids\)"):
        clean(read_raw([write(tmp_path / "a.csv", CORI, CORI_ROWS)]), [("merge_split", {})])


def test_the_actions_are_those_of_an_audit_row() -> None:
    done = clean(workload({"nodes": [1, 0]}), [("drop_zero_nodes", {})])
    assert all(isinstance(getattr(done.audit[0], action), int) for action in ACTIONS)
    assert done.to_json()[0]["dropped"] == 1


# Cleaning compared with a slow, simple reference on drawn logs; and files without names of users.

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
