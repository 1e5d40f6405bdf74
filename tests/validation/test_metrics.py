"""The definitions of the metrics: computed by hand on tiny runs, and compared with a slow, simple reference."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import packages
from tests.commands import call
from tests.oracles import engines, metric_tables
from tests.runs import NAN, fcfs_run, lending_run, make_run
from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import InputError, Tolerated
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps
from tracebed.orchestrator.scheduling.scheduler import Sharing
from tracebed.orchestrator.scheduling.state import Share
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.metrics import (
    Margin,
    MeasuredRun,
    all_metrics,
    busy_cores,
    figures,
    metrics,
    per_job,
    table_row,
    waiting,
)
from tracebed.validation.metrics.jobs import guests_and_mates

# Two nodes. A: both, 0 to 10. B: submitted at 2, one node, 10 to 30. C: submitted at 4, one node, 10 to 12.
HAND = [(0.0, 0.0, 10.0, 2), (2.0, 10.0, 30.0, 1), (4.0, 10.0, 12.0, 1)]

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE = DOCS / "how-to" / "write-a-metric.md"


def test_hand_worked_figures() -> None:
    run = make_run(HAND, machine=2)
    got = metrics(run)
    assert got["makespan_s"] == 30
    assert got["mean_wait_s"] == pytest.approx((0 + 8 + 6) / 3)
    assert got["median_wait_s"] == 6
    assert got["p95_wait_s"] == pytest.approx(6 + 0.9 * 2)
    assert got["mean_response_s"] == pytest.approx((10 + 28 + 8) / 3)
    assert got["mean_slowdown"] == pytest.approx((1 + 28 / 20 + 8 / 2) / 3)
    assert got["mean_bounded_slowdown"] == pytest.approx((1 + 1.4 + 1) / 3)
    assert got["utilization_window"] == {"name": "arrivals", "start_s": 0.0, "end_s": 4.0}
    assert got["utilization"] == 1
    assert got["utilization_full"] == pytest.approx((2 * 10 + 20 + 2) / (2 * 30))
    assert got["loss_of_capacity"] == 0
    assert got["throughput"] == 0
    assert got["jobs"] == got["jobs_finished"] == 3
    assert got["jobs_by_state"] == {"completed": 3}
    assert got["expand_operations_per_job"] == 0
    assert set(all_metrics()) <= set(got)


def test_tau_is_elementwise_and_reported() -> None:
    run = make_run(HAND, machine=2)
    assert per_job(run, 1.0)["bounded_slowdown"].tolist() == pytest.approx([1, 1.4, 4])
    assert per_job(run, 10.0)["bounded_slowdown"].tolist() == pytest.approx([1, 1.4, 1])
    assert per_job(run, 60.0)["bounded_slowdown"].tolist() == [1, 1, 1]
    assert metrics(run, tau=1.0)["tau"] == 1.0
    with pytest.raises(InputError, match="not above 0"):
        metrics(run, tau=0)


def test_time_origin_is_the_first_submission() -> None:
    later = [(a + 1e6, b + 1e6, c + 1e6, n) for a, b, c, n in HAND]
    got, expected = metrics(make_run(later, machine=2)), metrics(make_run(HAND, machine=2))
    for name in all_metrics():
        assert got[name] == pytest.approx(expected[name], nan_ok=True), name


def test_windows() -> None:
    run = make_run(HAND, machine=2)
    assert metrics(run, window="full")["utilization"] == metrics(run)["utilization_full"]
    late = metrics(run, window=(12.0, 30.0))
    assert late["utilization"] == 0.5
    assert late["throughput"] == pytest.approx(2 / 18)
    at_once = metrics(make_run([(0, 0, 4, 2), (0, 4, 8, 1)], machine=2))
    assert at_once["utilization"] == at_once["utilization_full"] == 0.75
    assert at_once["utilization_window"]["name"].startswith("full (all jobs were submitted at once")
    for bad in ((5.0, 5.0), (-1.0, 5.0), "nights"):
        with pytest.raises(InputError, match="window"):
            metrics(run, window=bad)


def test_loss_of_capacity_is_idle_while_a_job_waits() -> None:
    # One of two nodes is idle from 0 to 10 while a job of one node waits.
    run = make_run([(0, 0, 20, 1), (0, 10, 20, 1)], machine=2)
    assert metrics(run, window="full")["loss_of_capacity"] == pytest.approx(10 / 40)


def test_reference_slowdown_uses_the_dedicated_run_time() -> None:
    run = make_run([(0, 20, 40, 2)], staircases={"1": [(20, 40, 4)]}, run_times={"1": 40.0})
    got = metrics(run)
    assert got["mean_bounded_slowdown"] == 2  # 40 / 20: the expansion shortened the run time, the divisor
    assert got["mean_bounded_slowdown_ref"] == 1


def test_waits_within_the_resolution_are_zero_and_others_are_clock_skew() -> None:
    jobs = [(0.0, -1.9e-10, 5.0, 1), (1.0, 2.0, 5.0, 1)]
    assert metrics(make_run(jobs))["mean_wait_s"] == 0.5
    coarse = make_run([(0.0, -0.6, 5.0, 1)], resolution_s=1.0)
    assert metrics(coarse)["mean_wait_s"] == 0
    skewed = make_run([(0.0, -0.6, 5.0, 1)])
    with pytest.warns(Tolerated, match="clock skew"):
        got = metrics(skewed)
    assert got["clock_skew_jobs"] == 1
    assert got["mean_wait_s"] == -0.6  # reported as measured, with the warning


def test_unfinished_jobs_are_counted_and_left_out_of_means() -> None:
    jobs = [(0, 1, 5, 1), (0, NAN, NAN, 9), (0, NAN, 3, 1), (0, 2, 4, 1), (0, 1, 9, 1)]
    states = {"2": "rejected", "3": "cancelled", "4": "interrupted", "5": "failed"}
    got = metrics(make_run(jobs, states=states))
    assert got["jobs"] == 5
    assert (got["jobs_finished"], got["jobs_unfinished"]) == (2, 3)
    assert got["jobs_by_state"] == {
        "completed": 1,
        "failed": 1,
        "cancelled": 1,
        "rejected": 1,
        "interrupted": 1,
    }
    assert got["mean_wait_s"] == 1
    assert got["makespan_s"] == 9


def test_a_job_of_zero_length_has_no_plain_slowdown() -> None:
    got = metrics(make_run([(0, 5, 5, 1), (0, 5, 10, 1)]))
    assert got["zero_run_jobs"] == 1
    assert got["mean_slowdown"] == 2
    assert got["mean_bounded_slowdown"] == 1


@pytest.mark.parametrize("jobs", [[], [(0, NAN, NAN, 1)], [(NAN, NAN, NAN, 1)]])
def test_a_run_without_ended_jobs_has_a_reason(jobs: Any) -> None:
    got = metrics(make_run(jobs))
    for name in ("makespan_s", "mean_wait_s", "p95_response_s", "mean_bounded_slowdown", "mean_slowdown"):
        assert math.isnan(got[name])
        assert "ended" in got["undefined"][name]
    assert math.isnan(got["throughput"])
    assert got["undefined"]["utilization"] == "the window is empty"
    assert got["jobs"] == len(jobs)


def test_a_run_without_allocations_has_no_utilization() -> None:
    run = make_run(HAND, machine=2)
    bare = metrics(Run(run.info, run.jobs))
    assert math.isnan(bare["utilization"])
    assert "which jobs held which nodes" in bare["undefined"]["utilization"]
    assert bare["mean_wait_s"] == metrics(run)["mean_wait_s"]


def test_hand_overs_are_those_of_the_run_and_undefined_without() -> None:
    facts = {"handovers": 3, "gap_s": 0.25, "overlap_s": 0.0}
    got = metrics(make_run(HAND, machine=2, handovers=facts))
    assert (got["handover_gap_s"], got["overlap_s"]) == (0.25, 0.0)
    without = metrics(make_run(HAND, machine=2, real=False))
    for name in ("handover_gap_s", "overlap_s"):
        assert math.isnan(without[name])
        assert without["undefined"][name] == "no CPU was handed over between the processes of two jobs"


def test_changes_of_cores_have_numbers_and_delays_by_cause() -> None:
    run = lending_run()
    run.reconfigurations.loc[0, ["applied", "state"]] = (NAN, "cancelled")
    got = metrics(run)
    assert got["core_changes"].keys() == {"lend", "return", "operator"}
    assert got["core_changes"]["lend"] == {"applied": 1, "cancelled": 1, "median_s": 2, "p99_s": 2, "max_s": 2}
    assert got["core_changes"]["return"] == {"applied": 2, "cancelled": 0, "median_s": 1, "p99_s": 1, "max_s": 1}
    assert got["core_changes"]["operator"]["applied"] == 1  # no decision: the delay is unknown
    assert math.isnan(got["core_changes"]["operator"]["median_s"])
    assert got["operations"]["shrink"] == {"requested": 0, "executed": 0}
    assert metrics(make_run(HAND, machine=2))["core_changes"] == {}


def test_operations_and_stages() -> None:
    asked = [
        ("1", "expand", 1, 2, 10.0, 12.0, 13.0, 13.0, "applied"),
        ("1", "shrink", 2, 1, 20.0, 21.0, 22.0, 26.0, "applied"),
        ("1", "expand", 1, 2, 29.0, NAN, NAN, NAN, "cancelled"),
    ]
    run = make_run(
        [(0, 0, 30, 1), (0, 0, 5, 1)],
        staircases={"1": [(0, 13, 1), (13, 26, 2), (26, 30, 1)]},
        reconfigurations=asked,
    )
    got = metrics(run)
    assert got["operations"] == {
        "expand": {"requested": 2, "executed": 1},
        "shrink": {"requested": 1, "executed": 1},
    }
    assert got["expand_operations_per_job"] == 0.5
    assert got["expand_operations_per_malleable_job"] == 1
    assert got["jobs_malleable"] == 1
    stages = got["reconfiguration_s"]
    assert stages["expand"]["decision"] == {"count": 1, "median": 2, "p95": 2, "sum": 2}
    assert stages["shrink"]["release"]["median"] == 4
    assert got["median_reconfiguration_s"] == pytest.approx(2.5)
    assert got["nodes_moved_per_operation"] == 1
    assert got["blocked_node_s"] == (13 - 10) + (26 - 22)
    assert got["utilization_full"] == pytest.approx((13 + 26 + 4 + 5) / (4 * 30))


def test_measured_stages_of_resizes_are_summed_by_the_names_of_dmr() -> None:
    asked = [("1", "expand", 1, 2, 10.0, 12.0, 13.0, 13.0, "applied")]
    run = make_run([(0, 0, 30, 1)], staircases={"1": [(0, 13, 1), (13, 30, 2)]}, reconfigurations=asked)
    for column, seconds in {"decision_s": 0.25, "grant_s": 1.0, "merge_s": 2.0, "spawn_s": 0.5}.items():
        run.reconfigurations[column] = seconds
    stages = metrics(run)["reconfiguration_s"]["expand"]
    found = {name: stages[name]["sum"] for name in ("scheduling", "grant", "merge", "resizing", "spawn")}
    assert found == {"scheduling": 3.25, "grant": 1.0, "merge": 2.0, "resizing": 0.5, "spawn": 0.5}
    assert "redistribution" not in stages


def test_operations_per_resized_job_leave_out_jobs_that_were_never_resized() -> None:
    shrinks = [("1", "shrink", 4 - n, 3 - n, 10.0 + n, 10.0 + n, 10.0 + n, 10.0 + n, "applied") for n in range(3)]
    once = ("2", "shrink", 4, 3, 20.0, 20.0, 20.0, 20.0, "applied")
    refused = ("3", "shrink", 4, 3, 20.0, NAN, NAN, NAN, "cancelled")
    stairs = {str(job): [(0.0, 30.0, 4)] for job in (1, 2, 3)}
    run = make_run([(0, 0, 30, 4)] * 4, machine=16, staircases=stairs, reconfigurations=[*shrinks, once, refused])
    got = metrics(run)
    assert got["shrink_operations_per_malleable_job"] == pytest.approx(4 / 3)
    assert got["shrink_operations_per_resized_job"] == 2, "three of the first job, one of the second"
    assert got["quartiles"]["shrink_operations_per_resized_job"] == (1.5, 2.5)
    assert math.isnan(got["expand_operations_per_resized_job"])
    assert got["undefined"]["expand_operations_per_resized_job"] == "no finished job expanded"


def test_trimmed_means_cut_both_ends_of_the_arrivals() -> None:
    jobs = [(float(t), float(t) + wait, t + 30.0, 1) for t, wait in ((0, 9), (50, 1), (60, 3), (100, 9))]
    trimmed = metrics(make_run(jobs))["trimmed"]
    assert trimmed["jobs"] == 2
    assert trimmed["mean_wait_s"] == 2


def test_steps() -> None:
    steps = Steps.count(np.array([0.0, 2.0, 2.0]), np.array([4.0, 3.0, 2.0]))
    assert steps.times.tolist() == [0, 2, 3, 4]
    assert steps.values.tolist() == [1, 2, 1, 0]
    assert steps.at(np.array([-1.0, 0, 2.5, 3, 9])).tolist() == [0, 1, 2, 1, 0]
    assert steps.means(np.array([-1.0, 1, 3, 5])).tolist() == [0.5, 1.5, 0.5]
    assert math.isnan(steps.mean(3, 3))


def test_steps_between_instants_are_those_of_all_intervals() -> None:
    rng = np.random.default_rng(1)
    instants, since = np.cumsum(rng.random(50)), np.sort(rng.integers(0, 40, 200))
    until, weight = since + rng.integers(0, 10, 200), rng.integers(1, 9, 200).astype(float)
    halves = [(since[half], until[half], weight[half]) for half in (slice(100), slice(100, None))]
    steps, same = Steps.between(instants, halves), Steps.count(instants[since], instants[until], weight)
    assert steps.times.tolist() == same.times.tolist() and steps.values.tolist() == same.values.tolist()


# The reference: dicts, loops and the definitions word by word.


def reference(run: Run, tau: float) -> dict[str, float]:
    jobs = run.jobs.to_dict("records")
    zero = min(job["submit"] for job in jobs)
    waits, responses, slowdowns, bounded, ends, sizes = [], [], [], [], [], []
    for job in jobs:
        if job["state"] in ("rejected", "interrupted") or any(math.isnan(job[k]) for k in ("start", "end")):
            continue
        wait, response, ran = (
            job["start"] - job["submit"],
            job["end"] - job["submit"],
            job["end"] - job["start"],
        )
        waits.append(wait)
        responses.append(response)
        if ran > 0:
            slowdowns.append(response / ran)
        bounded.append(max(1.0, response / max(ran, tau)))
        sizes.append(job["nodes"] * ran)
        ends.append(job["end"] - zero)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else math.nan

    first, last = 0.0, max(job["submit"] for job in jobs) - zero
    if last == 0:
        last = max(ends, default=0.0)
    cores = sum(node.cores for node in run.info.nodes)
    rows = [(r["start"] - zero, r["end"] - zero, r["cores"] * r["count"]) for r in run.allocations.to_dict("records")]
    area = sum(c * max(0.0, min(end, last) - max(start, first)) for start, end, c in rows)
    instants = {first, last}
    waiting: list[tuple[float, float, float]] = []
    for job in jobs:
        if job["state"] == "rejected":
            continue
        until = job["start"] if not math.isnan(job["start"]) else job["end"]
        waiting.append((job["submit"] - zero, until - zero, job["nodes"] * cores / len(run.info.nodes)))
    instants |= {x for a, b, _ in rows + waiting for x in (a, b) if first < x < last}
    lost = 0.0
    for a, b in zip(sorted(instants), sorted(instants)[1:], strict=False):
        busy = sum(c for start, end, c in rows if start <= a < end)
        demand = sum(c for start, end, c in waiting if start <= a < end)
        lost += min(cores - busy, demand) * (b - a)
    return {
        "makespan_s": max(ends, default=math.nan),
        "mean_wait_s": mean(waits),
        "mean_response_s": mean(responses),
        "mean_slowdown": mean(slowdowns),
        "mean_bounded_slowdown": mean(bounded),
        "area_bounded_slowdown": sum(map(math.prod, zip(sizes, bounded, strict=True))) / sum(sizes)
        if sum(sizes)
        else math.nan,
        "utilization": area / (cores * last) if last else math.nan,
        "delivered_nodes": area / last * len(run.info.nodes) / cores if last else math.nan,
        "loss_of_capacity": lost / (cores * last) if last else math.nan,
        "throughput": sum(first <= end <= last for end in ends) / last if last else math.nan,
    }


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Draw a run on 4 nodes whose jobs of one node wait, run, are rejected or cancelled."""
    quarters = st.integers(0, 80).map(lambda n: n / 4)
    free = [0.0] * 4
    jobs, states, stairs = [], {}, {}
    for name in map(str, range(1, draw(st.integers(1, 12)) + 1)):
        submit, wait, length = draw(quarters), draw(quarters), draw(quarters)
        fate = draw(st.sampled_from(["completed"] * 6 + ["failed", "killed", "rejected", "cancelled", "interrupted"]))
        states[name] = fate
        if fate in ("rejected", "cancelled"):
            jobs.append((submit, NAN, submit if fate == "rejected" else submit + wait, draw(st.integers(1, 6))))
            continue
        node = min(range(4), key=lambda n: free[n])
        start = max(submit + wait, free[node])
        free[node] = start + length
        jobs.append((submit, start, start + length, 1))
        if draw(st.booleans()):
            stairs[name] = [(start, start + length / 2, 1), (start + length / 2, start + length, 1)]
    order = sorted(range(len(jobs)), key=lambda i: jobs[i][1] if not math.isnan(jobs[i][1]) else -1)
    names = [str(i + 1) for i in order]
    return make_run(
        [jobs[i] for i in order], ids=names, states=states, staircases=stairs, cores=draw(st.integers(1, 3))
    )


@given(run=runs(), tau=st.sampled_from([1.0, 10.0, 60.0]))
def test_metrics_agree_with_the_reference(run: Run, tau: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Tolerated)
        got = metrics(run, tau)
    for name, expected in reference(run, tau).items():
        assert got[name] == pytest.approx(expected, nan_ok=True, abs=1e-9), name
    assert 0 <= got["utilization_full"] <= 1 or math.isnan(got["utilization_full"])


@given(run=runs())
def test_a_table_of_two_windows_has_the_figures_of_each_alone(run: Run) -> None:
    measured = MeasuredRun(run)
    for ended in (True, False):
        measured = measured.of_jobs(after=0.0, ended=ended)
        alone = metrics(run, ended=ended)
        expected = {name: alone[name] for name in all_metrics()}
        for name, (low, high) in alone["quartiles"].items():
            expected |= {f"{name}_p25": low, f"{name}_p75": high}
        assert repr(table_row(measured)) == repr(expected)


@given(run=runs())
def test_some_figures_are_those_of_all_metrics(run: Run) -> None:
    found, names = metrics(run), ("makespan_s", "utilization", "mean_wait_s", "energy_kwh")
    names = tuple(name for name in names if name in found)
    some = figures(run, names)
    assert list(some) == list(names)
    assert all(some[name] == found[name] or (math.isnan(some[name]) and math.isnan(found[name])) for name in names)


@given(run=runs())
def test_queue_and_use_end_empty(run: Run) -> None:
    for steps in (busy_cores(run), waiting(run), waiting(run, cores=True)):
        values: FloatArray = steps.values
        assert (values >= 0).all()
        assert not len(values) or values[-1] == 0


def test_guests_and_mates_are_those_of_the_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """On drawn workloads. Jobs that share for no time share no node in the allocations."""
    shares: list[tuple[str, list[str]]] = []
    begin = Sharing.begin

    def noted(sharing: Sharing, share: Share) -> None:
        shares.append((sharing.jobs.ids[share.job], [sharing.jobs.ids[loan.owner] for loan in share.loans]))
        begin(sharing, share)

    monkeypatch.setattr(Sharing, "begin", noted)
    at_once = 0
    for seed in range(36, 42):
        shares.clear()
        run = predict(**engines.case(seed, "sd"), engine="python")
        jobs = run.jobs.set_index("job_id")
        pairs = [
            (guest, owner)
            for guest, owners in shares
            for owner in owners
            if min(jobs["end"][guest], jobs["end"][owner]) > jobs["start"][guest]
        ]
        guests, mates = (set(jobs.index[of]) for of in guests_and_mates(run))
        assert (guests, mates) == ({guest for guest, _ in pairs}, {owner for _, owner in pairs}), seed
        assert [metrics(run)[name] for name in ("guests", "mates")] == [len(guests), len(mates)]
        at_once += sum(jobs["start"][guest] == jobs["start"][owner] for guest, owner in pairs)
    assert at_once > 0


def test_guests_share_of_hand_worked_cases() -> None:
    """Job 2 holds one of four cores of two nodes for 40 s: 80 core seconds, and whole nodes take 320."""
    run = lending_run()
    values = metrics(run)
    assert [values[name] for name in ("guests", "mates", "guest_share", "mate_share", "guests_better")] == [
        *(1, 1, 0.5, 0.5, 1.0)
    ]
    slower = Run(run.info, run.jobs.assign(run_time=[100.0, 10.0]), run.allocations, run.reconfigurations)
    assert metrics(slower)["guests_better"] == 0  # 10 s on 8 cores are 80 core seconds, too
    assert metrics(run, after=5.0)["mates"] == 0  # the mate was submitted earlier
    rigid = Run(run.info, run.jobs.assign(kind="rigid"), run.allocations, run.reconfigurations)
    assert metrics(rigid)["undefined"]["guests"] == "no job is malleable"
    shared = Run(run.info, run.jobs.assign(kind=["rigid", "malleable"]), run.allocations, run.reconfigurations)
    assert metrics(shared)["guests"] == 0  # rigid jobs lend no cores: a batch system put both there
    alone = metrics(make_run(HAND, machine=2, staircases={"1": [(0.0, 10.0, 2)]}))
    assert (alone["guests"], alone["undefined"]["guests_better"]) == (0, "no job was a guest")


def test_the_documentation_has_the_tables_of_the_metrics() -> None:
    """`python -m tests.oracles.metric_tables` prints the tables."""
    assert metric_tables.definitions() in (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert metric_tables.margins() in (DOCS / "reference" / "tolerances.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_metrics_of_the_guide_are_measured_compared_and_reported(tmp_path: Path) -> None:
    site = packages.install(tmp_path / "guide", packages.files_of(GUIDE))
    fcfs_run(300, machine=4, stretch=10).save(tmp_path / "real")
    fcfs_run(300, machine=4, stretch=11, real=False).save(tmp_path / "sim")

    done = packages.tracebed(site, "metrics", "real", "sim", "--json", cwd=tmp_path)
    real, sim = (run["metrics"] for run in json.loads(done.stdout)["runs"])
    assert 0 < real["long_wait_share"] < sim["long_wait_share"] <= 1
    assert sim["p95_wait_s"] < sim["p99_wait_s"]
    assert "jobs that waited for more than 1 h" in packages.tracebed(site, "metrics", "sim", cwd=tmp_path).stdout

    sides = ("--real", "real", "--predicted", "sim")
    done = packages.tracebed(site, "compare", *sides, "--report", "report.html", "--json", cwd=tmp_path)
    found = {item["name"]: item for item in json.loads(done.stdout)["metrics"]}
    assert (found["p99_wait_s"]["gate"], found["p99_wait_s"]["delta"]) == (True, 0.15)
    assert (found["long_wait_share"]["gate"], found["long_wait_share"]["cases"][0]["margin"]) == (False, 0.01)
    assert "of 6 gated metrics" in json.loads(done.stdout)["headline"]
    assert (tmp_path / "report.html").read_text().count("wait, p99") >= 2  # in the verdict and in the table


@pytest.mark.slow
def test_duplicate_names_and_invalid_entry_points_are_refused(tmp_path: Path) -> None:
    fcfs_run(3).save(tmp_path / "run")
    code = """
        from tracebed.validation.metrics import Metric
        AGAIN = Metric(name="makespan_s", label="again", definition=lambda run: 0.0, docs="")
        TAU = Metric(name="tau", label="tau", definition=lambda run: 0.0, docs="")
        NUMBER = 7
        """
    for target, message in (
        ("AGAIN", "plugged:AGAIN: metric 'makespan_s' already exists"),
        ("TAU", "plugged:TAU: metric 'tau' already exists"),
        ("NUMBER", "plugged:NUMBER: not a metric"),
    ):
        entry = {"tracebed.metrics": {"own": f"plugged:{target}"}}
        site = packages.install(tmp_path / target, {"plugged.py": code}, entry)
        done = packages.tracebed(site, "metrics", "run", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(f"tracebed: {message}")


def test_the_command_prints_definitions_and_margins() -> None:
    shown = call("metrics", "--list").stdout
    for metric in all_metrics().values():
        assert metric.name in shown
        assert metric.docs in shown
    assert "10 %, at least 10 s, gate" in shown
    assert Margin(absolute=0.01).words() == "0.01, advisory"
