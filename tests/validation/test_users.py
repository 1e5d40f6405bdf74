"""Fairness between users, and the figures of jobs by user, account, partition and size."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.commands import call
from tests.runs import NAN, lending_run, make_run
from tests.validation.test_schemas import SCHEMAS
from tracebed.converters.formats.writing import write_workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import MeasuredRun, Undefined, metrics
from tracebed.validation.metrics.classes import MOST, metrics_by, node_hours
from tracebed.validation.metrics.users import jain, slowdowns_by, spread
from tracebed.validation.report.runs import render
from tracebed.validation.verdict.comparison import compare

# Four nodes; each job runs for 100 s. Waits 0, 100, 300 and 200: bounded slowdowns 1, 2, 4 and 3.
JOBS = [(0.0, 0.0, 100.0, 1), (0.0, 100.0, 200.0, 4), (0.0, 300.0, 400.0, 2), (0.0, 200.0, 300.0, 1)]
FAIRNESS = ("mean_bounded_slowdown_users", "jain_index_users", "slowdown_spread_users")


def of_users(users: list[str], **columns: list[str]) -> Run:
    run = make_run(JOBS)
    return Run(run.info, run.jobs.assign(user=users, **columns), run.allocations)


def test_hand_worked_fairness() -> None:
    found = metrics(of_users(["ann", "bob", "bob", "eve"], group=["x", "x", "x", "y"]))
    # ann: 1, bob: (2 + 4) / 2 = 3, eve: 3
    assert found["mean_bounded_slowdown_users"] == pytest.approx(7 / 3)
    assert found["mean_bounded_slowdown"] == pytest.approx(10 / 4), "here each job counts"
    assert found["jain_index_users"] == pytest.approx(7**2 / (3 * (1 + 9 + 9)))
    assert found["slowdown_spread_users"] == pytest.approx(3 / 1.4)  # 10th percentile: 1 + 0.2 * (3 - 1)
    assert found["mean_bounded_slowdown_accounts"] == pytest.approx((7 / 3 + 3) / 2)


def test_users_with_equal_slowdowns_are_served_fairly() -> None:
    found = metrics(of_users(["ann", "bob", "ann", "bob"]))  # (1 + 4) / 2 and (2 + 3) / 2
    assert (found["jain_index_users"], found["slowdown_spread_users"]) == (1, 1)


def test_fairness_is_undefined_without_users_and_leaves_out_jobs_without_one() -> None:
    none = metrics(make_run(JOBS))
    assert all(math.isnan(none[name]) for name in FAIRNESS)
    assert {none["undefined"][name] for name in FAIRNESS} == {"the users of the jobs are unknown"}
    assert none["undefined"]["mean_bounded_slowdown_accounts"] == "the accounts of the jobs are unknown"
    some = metrics(of_users(["ann", "", "", "eve"]))
    assert some["mean_bounded_slowdown_users"] == (1 + 3) / 2


def test_fairness_is_undefined_if_no_job_of_a_known_user_ended() -> None:
    run = make_run([(0.0, 0.0, 10.0, 1), (0.0, NAN, NAN, 1)], states={"2": "interrupted"})
    found = metrics(Run(run.info, run.jobs.assign(user=["", "ann"]), run.allocations))
    assert found["undefined"]["jain_index_users"] == "no job of a known user ended"


def test_excluded_jobs_enter_no_figure_of_a_user() -> None:
    run = make_run([(0.0, 0.0, 100.0, 1), (50.0, 150.0, 250.0, 1)])
    run.jobs["user"] = ["ann", "bob"]
    assert slowdowns_by(MeasuredRun(run, after=10.0), "user").tolist() == [2.0]
    assert metrics_by(MeasuredRun(run, after=10.0), "user")["class"].tolist() == ["bob"]


slowdowns = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=30)


@given(slowdowns, st.floats(1e-3, 1e3), st.randoms(use_true_random=False))
def test_indices_depend_on_neither_the_order_nor_the_scale(values: list[float], factor: float, random: object) -> None:
    x, shuffled = np.array(values), [*values]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for index in (jain, spread):
        assert index(np.array(shuffled)) == pytest.approx(index(x))
        assert index(factor * x) == pytest.approx(index(x))
    assert 1 / len(x) * (1 - 1e-12) <= jain(x) <= 1 + 1e-12
    assert spread(x) >= 1


@given(st.floats(1.0, 1e6), st.integers(1, 30))
def test_equal_values_have_the_index_1(value: float, users: int) -> None:
    x = np.full(users, value)
    assert jain(x) == 1
    assert spread(x) == pytest.approx(1)


def test_one_value_far_above_the_others_has_almost_the_lowest_index() -> None:
    assert jain(np.array([1e9, 1.0, 1.0, 1.0])) == pytest.approx(1 / 4)


def test_hand_worked_classes() -> None:
    run = of_users(["ann", "bob", "bob", ""], partition=["cpu,gpu", "gpu", "cpu", "cpu"])
    found = metrics_by(MeasuredRun(run), "user")
    assert found["class"].tolist() == ["bob", "ann", "unknown"], "by node hours, then by name"
    assert found["classes"].tolist() == [1, 1, 1]
    assert found["jobs"].tolist() == [2, 1, 1]
    assert found["node_hours"].tolist() == pytest.approx([600 / 3600, 100 / 3600, 100 / 3600])
    assert found["mean_wait_s"].tolist() == found["median_wait_s"].tolist() == [200, 0, 200]
    assert found["mean_bounded_slowdown"].tolist() == [3, 1, 3]
    found = metrics_by(MeasuredRun(run), "partition").set_index("class")
    assert found["jobs"].to_dict() == {"cpu": 3, "gpu": 1}  # of 400 node seconds each
    assert found["median_wait_s"].to_dict() == {"cpu": 200, "gpu": 100}
    found = metrics_by(MeasuredRun(run), "size")
    assert found["class"].tolist() == ["1", "2", "3 to 4"]
    assert found["jobs"].tolist() == [2, 1, 1]


def test_jobs_without_an_end_are_counted_and_have_no_wait() -> None:
    run = make_run([(0.0, 0.0, 10.0, 1), (0.0, NAN, NAN, 2)], states={"2": "interrupted"})
    found = metrics_by(MeasuredRun(run), "size").set_index("class")
    assert found["jobs"].to_dict() == {"1": 1, "2": 1}
    assert math.isnan(found.loc["2", "mean_wait_s"]) and found.loc["2", "node_hours"] == 0


def test_names_beyond_the_most_share_a_row() -> None:
    run = make_run([(float(n), float(n), n + 3600.0 * (n + 1), 1) for n in range(25)], machine=25)
    run.jobs["user"] = [f"u{n}" for n in range(25)]
    measured = MeasuredRun(run)
    found = metrics_by(measured, "user")
    assert found["class"].tolist() == [*(f"u{n}" for n in range(24, 4, -1)), "5 others"]
    assert found["classes"].tolist() == [*[1] * MOST, 5]
    assert found["node_hours"].iloc[-1] == pytest.approx(1 + 2 + 3 + 4 + 5)
    assert found["node_hours"].sum() == pytest.approx(node_hours(measured).sum())
    assert len(metrics_by(measured, "user", None)) == 25
    assert metrics_by(measured, "user", 24)["class"].iloc[-1] == "1 other"


def test_node_hours_are_those_held() -> None:
    run = make_run([(0.0, 0.0, 100.0, 2)], staircases={"1": [(0.0, 50.0, 2), (50.0, 100.0, 4)]})
    assert node_hours(MeasuredRun(run)) * 3600 == pytest.approx([2 * 50 + 4 * 50])
    shared = node_hours(MeasuredRun(lending_run()))  # for 40 s, a quarter of both nodes belongs to job 2
    assert shared * 3600 == pytest.approx([200 - 20, 20])
    unrecorded = Run(run.info, run.jobs)
    assert node_hours(MeasuredRun(unrecorded)) * 3600 == pytest.approx([200])


def test_classes_without_names_are_undefined() -> None:
    with pytest.raises(Undefined, match="the partitions of the jobs are unknown"):
        metrics_by(MeasuredRun(make_run(JOBS)), "partition")
    with pytest.raises(InputError, match="the users of the jobs are unknown"):
        tb.metrics_by(make_run(JOBS), "user")
    with pytest.raises(InputError, match="unknown classification 'queue'"):
        tb.metrics_by(make_run(JOBS), "queue")


# From a workload to the table.


@pytest.fixture
def workload() -> tb.Workload:
    table = tb.generate("cirne", jobs=30, nodes=16, seed=3).table
    names = {"user": ["ann", "bob", "eve"], "group": ["x", "y", "y"], "partition": ["cpu", "gpu", "cpu,gpu"]}
    return tb.Workload(table.assign(**{name: values * 10 for name, values in names.items()}))


def test_runs_have_accounts_and_partitions_of_their_workload(workload: tb.Workload) -> None:
    sim = tb.simulate(workload, "easy", nodes=16)
    logged = workload.table.assign(logged_start=sim.jobs["start"], logged_end=sim.jobs["end"])
    log = tb.as_run(tb.Workload(logged, workload.provenance))
    plan = SubmissionPlan.of(workload, speed=1.0, limit_step_s=60.0)
    for name in ("user", "group", "partition"):
        expected = workload.table[name].tolist()
        assert sim.jobs[name].tolist() == log.jobs[name].tolist() == getattr(plan, name) == expected


def test_a_run_of_an_earlier_version_is_read(workload: tb.Workload, tmp_path: Path) -> None:
    tb.simulate(workload, "easy", nodes=16).save(tmp_path / "run")
    path = tmp_path / "run" / "jobs.parquet"
    pd.read_parquet(path).drop(columns=["group", "partition"]).to_parquet(path)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    del facts["checksums"]["jobs"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts))
    with pytest.warns(tb.Tolerated, match="without a checksum"):
        run = tb.Run.load(tmp_path / "run")
    assert set(run.jobs["partition"]) == {""}
    assert len(tb.metrics_by(run, "user")) == 3


def test_differences_are_broken_down_by_account_and_partition() -> None:
    real = of_users(["ann"] * 4, group=["x", "y", "y", "x"], partition=["cpu,gpu", "gpu", "cpu", ""])
    later = [(a, s + 60.0 * (s > 0), e + 60.0 * (s > 0), nodes) for a, s, e, nodes in JOBS]
    table = compare(real, make_run(later, real=False)).breakdown().query("quantity == 'wait'").set_index("class")
    found = {by: table[table["by"] == by]["difference"].to_dict() for by in ("account", "partition")}
    assert found == {"account": {"x": 30, "y": 60}, "partition": {"cpu": 30, "gpu": 60, "unknown": 60}}


@pytest.mark.usefixtures("without_pictures")
def test_from_a_workload_to_the_table_by_command(
    workload: tb.Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_workload(workload, Path("w.parquet"))
    for policy in ("easy", "fcfs"):
        assert call("simulate", "w.parquet", "--policy", policy, "--nodes", 16, "-o", policy).exit_code == 0
    for by, names in (("user", "ann bob eve"), ("account", "x y"), ("partition", "cpu gpu"), ("size", "1 2")):
        shown = call("metrics", "easy", "--by", by).stdout.splitlines()
        assert shown[0].split()[:2] == [by, "jobs"]
        assert {*names.split()} <= {line.split()[0] for line in shown[1:]}
    several = call("metrics", "easy", "fcfs", "--by", "account").stdout
    assert several.count("easy") == several.count("fcfs") == 2
    document = json.loads(call("metrics", "easy", "fcfs", "--by", "user", "--json").stdout)
    jsonschema.validate(document, SCHEMAS["tracebed-metrics-by-1.json"])
    expected = tb.metrics_by("easy", "user").to_dict("records")
    assert document["runs"][0] == {"run": "easy", "classes": expected}
    assert "fairness between users" in call("metrics", "easy").stdout
    assert call("metrics", "easy", "fcfs", "--report", "runs.html").exit_code == 0
    page = Path("runs.html").read_text(encoding="utf-8")
    section = page[page.index('<section id="classes"') :].partition("</section>")[0]
    assert [f"<summary>By {by}" in section for by in ("user", "account", "partition", "size")] == [True] * 4
    assert section.count("<td>ann</td>") == 2  # of each run
    refused = call("metrics", "easy", "--by", "user", "--report", "page.html")
    assert "--report does not apply with --by" in str(refused.exception)


@pytest.mark.usefixtures("without_pictures")
def test_a_page_without_names_has_sizes_only() -> None:
    page = render({"run": make_run(JOBS)})
    assert "<summary>By size" in page and "<summary>By user" not in page
