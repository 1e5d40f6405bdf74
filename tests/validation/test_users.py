"""Fairness between users, and the figures of jobs by user, account, partition, class of nodes and size."""

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
from tracebed.machine.machine import Machine, NodeClass, Partition
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import MeasuredRun, Undefined, metrics
from tracebed.validation.metrics.classes import MOST, metrics_by, names_of, node_classes, node_hours
from tracebed.validation.metrics.users import jain, slowdowns_by, spread
from tracebed.validation.report.runs import render
from tracebed.validation.verdict import Case, Tolerances, validate
from tracebed.validation.verdict.breakdown import causes
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


def test_a_job_belongs_to_the_class_of_most_of_its_nodes() -> None:
    jobs = [(0.0, 0.0, 100.0, 3), (0.0, 100.0, 200.0, 4), (0.0, 200.0, 300.0, 5), (0.0, NAN, NAN, 1)]
    run = make_run(jobs, machine=5, states={"4": "cancelled"})
    run.info.nodes = [NodeFacts(f"n{n}", 4 if n in (0, 1, 4) else 8) for n in range(5)]
    found = metrics_by(MeasuredRun(run), "class")
    # Job 1 held n0, n1 and n2; job 2 also n3: two nodes of each class, of which that of n0 is the first.
    assert found["class"].tolist() == ["n[0-1],n4", "unknown"]
    assert found["jobs"].tolist() == [3, 1]
    assert found["mean_wait_s"].iloc[0] == (0 + 100 + 200) / 3
    run.info.nodes = [NodeFacts(f"n{n}", 4 if n == 0 else 8) for n in range(5)]
    found = metrics_by(MeasuredRun(run), "class").set_index("class")
    assert found["jobs"].to_dict() == {"n[1-4]": 3, "unknown": 1}


def test_a_node_whose_cores_changed_counts_once() -> None:
    run = lending_run()  # job 1 has three rows with n0 and n1, job 2 one
    run.info.nodes = [NodeFacts("n0", 4), *(NodeFacts(f"n{n}", 8) for n in range(1, 5))]
    codes, names = names_of(run, "class")
    assert [names[code] for code in codes] == ["n0", "n0"], "one node of each class"


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 6)), max_size=12)


@given(ROWS, st.lists(st.sampled_from([2, 4, 8]), min_size=16, max_size=16))
def test_classes_are_those_of_nodes_counted_one_by_one(rows: list[tuple[int, int, int]], cores: list[int]) -> None:
    run = make_run([(0.0, 0.0, 10.0, 1)] * 4)
    run.info.nodes = [NodeFacts(f"n{n}", has) for n, has in enumerate(cores)]
    held = pd.DataFrame(rows, columns=["job", "node", "count"]).astype({"job": int, "node": int, "count": int})
    held["job_id"] = [str(job + 1) for job in held["job"]]
    run = Run(run.info, run.jobs, held.assign(start=0.0, end=10.0, cores=2).drop(columns="job"))
    codes, names = names_of(run, "class")
    kinds = list(dict.fromkeys(cores))
    for job in range(4):
        nodes = {node for own, first, count in rows if own == job for node in range(first, first + count)}
        counts = [sum(cores[node] == kind for node in nodes) for kind in kinds]
        assert codes[job] == (counts.index(max(counts)) if nodes else len(kinds))
    assert len(names) == len(kinds) + 1 and names[-1] == ""


def test_classes_of_nodes_are_those_of_the_machine_and_alike_ones_are_one() -> None:
    classes = (
        NodeClass(names=("n[1-2]",), cores=8),
        NodeClass(names=("g[1-2]",), cores=8, gres={"gpu": 4}),
        NodeClass(names=("n[3-4]",), cores=8),
    )
    machine = Machine(classes=classes, partitions=(Partition(name="all"),))
    info = make_run(JOBS, machine=6).info
    assert node_classes(info)[1] == ["n[0-5]"], "nodes of equal cores"
    info.nodes, info.machine = list(machine.nodes), machine
    codes, names = node_classes(info)
    assert (codes.tolist(), names) == ([0, 0, 1, 1, 0, 0], ["n[1-4]", "g[1-2]"])
    info.nodes, info.machine = [NodeFacts(f"n{2 * n}", 4) for n in range(9)], None
    assert node_classes(info)[1] == ["n0,n2,... (9 nodes)"]


def test_jobs_without_a_partition_are_in_the_default_one_of_the_machine() -> None:
    run = of_users(["ann"] * 4, partition=["", "gpu", "cpu,gpu", ""])
    assert metrics_by(MeasuredRun(run), "partition").set_index("class")["jobs"].to_dict() == {
        "unknown": 2,
        "gpu": 1,
        "cpu": 1,
    }
    nodes = NodeClass(count=4)
    for default, first in ((True, "gpu"), (False, "cpu")):
        parts = (Partition(name="cpu"), Partition(name="gpu", default=default))
        run.info.machine = Machine(classes=(nodes,), partitions=parts)
        found = metrics_by(MeasuredRun(run), "partition").set_index("class")["jobs"].to_dict()
        assert found == {"cpu": 1, "gpu": 1} | {first: 3}


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
    lost = make_run(JOBS, unknown={"allocations": "the file does not name nodes"})
    with pytest.raises(InputError, match=r"the file does not name nodes \(each run has its jobs by size\)"):
        tb.metrics_by(lost, "class")


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


def test_differences_are_broken_down_by_the_class_of_the_real_nodes() -> None:
    later = [(a, s + 60.0 * (s > 0), e + 60.0 * (s > 0), nodes) for a, s, e, nodes in JOBS]
    real, predicted = make_run(JOBS), make_run(later, real=False)
    assert "class" not in set(compare(real, predicted).breakdown()["by"]), "one class of nodes"
    real.info.nodes = [NodeFacts("n0", 4), *(NodeFacts(f"n{n}", 8) for n in range(1, 4))]
    table = compare(real, predicted).breakdown().query("by == 'class' and quantity == 'wait'").set_index("class")
    assert table["difference"].to_dict() == {"n0": 40, "n[1-3]": 60}  # jobs 1, 3 and 4 began on n0
    assert table["jobs"].to_dict() == {"n0": 3, "n[1-3]": 1}


def test_a_class_of_nodes_is_named_as_the_cause() -> None:
    jobs = [(float(100 * n), float(100 * n), 100.0 * n + 50, 1 + 3 * (n % 5 == 0)) for n in range(20)]
    late = [(a, s + 30.0 * (nodes > 1), e + 30.0 * (nodes > 1), nodes) for a, s, e, nodes in jobs]
    real = make_run(jobs, run_times=dict.fromkeys(map(str, range(1, 21)), 50.0))
    real.info.nodes = [NodeFacts("n0", 4), *(NodeFacts(f"n{n}", 8) for n in range(1, 4))]
    pair = compare(real, make_run(late, real=False))
    named = pair.jobs.assign(nodes=1)  # the sizes do not tell the classes
    assert [*causes(named, real, "wait")] == ["100 % of the error in jobs on nodes n[1-3], which are 20 % of the jobs"]


def test_fairness_is_judged_if_it_has_a_margin() -> None:
    users = ["ann", "bob", "bob", "eve"]
    real, predicted = of_users(users), make_run(JOBS, real=False)
    predicted.jobs["user"] = users
    case = Case("case", "tiny", "fcfs", (real,), (predicted,))
    names = {item.metric.name for item in validate([case]).metrics}
    assert not names & {*FAIRNESS, "mean_bounded_slowdown_accounts"}, "no margin by default"
    judged = validate([case], Tolerances.default().replaced({"jain_index_users": "5%"})).metrics
    (index,) = (item for item in judged if item.metric.name == "jain_index_users")
    assert index.cases[0].predicted == index.cases[0].real_mean == pytest.approx(7**2 / (3 * (1 + 9 + 9)))
    assert not index.gate


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


@pytest.mark.usefixtures("without_pictures")
def test_a_page_has_the_classes_of_a_machine_that_has_several(
    workload: tb.Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_workload(tb.Workload(workload.table.assign(partition="cpu", nodes=1, submit_time=0.0)), Path("w.parquet"))
    nodes = "classes:\n  - {names: ['n[1-3]'], cores: 4}\n  - {names: ['big[1-2]'], cores: 8}\n"
    Path("machine.yaml").write_text(f"{nodes}partitions:\n  - {{name: cpu, default: true}}\n")
    done = call("simulate", "w.parquet", "--policy", "slurm", "--machine", "machine.yaml", "--replace", "-o", "run")
    assert done.exit_code == 0, done.output
    shown = call("metrics", "run", "--by", "class").stdout.splitlines()
    assert shown[0].split()[:2] == ["class", "jobs"]
    assert {line.split()[0] for line in shown[1:]} == {"n[1-3]", "big[1-2]"}
    document = json.loads(call("metrics", "run", "--by", "class", "--json").stdout)
    jsonschema.validate(document, SCHEMAS["tracebed-metrics-by-1.json"])
    assert sum(row["jobs"] for row in document["runs"][0]["classes"]) == 30
    page = render({"run": tb.Run.load("run")})
    assert "<summary>By class of nodes" in page and page.count("<td>big[1-2]</td>") == 1
    assert "<summary>By partition" not in page, "all jobs are in one"
    assert "<summary>By size" not in page, "all jobs have one node"
