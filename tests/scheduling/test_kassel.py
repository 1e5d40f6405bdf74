"""The options of the Kassel policies, each by a case worked by hand, and the policies beside ElastiSim's output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from tests.oracles import kassel_published
from tests.oracles.reference_scheduler import RefJob
from tests.scheduling.test_scheduling import workload_of
from tracebed.cli import tracebed
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.malleability import to_malleable
from tracebed.converters.workload import Workload
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.prediction import predict

THEIRS = kassel_published.RULES
"""The rules of the public strategies in the sample."""


def run_of(jobs: list[RefJob], nodes: int, policy: str = "pref", interval_s: float = 0.0, **options: Any) -> Run:
    machine = [NodeFacts(f"n{number}", 1) for number in range(nodes)]
    return predict(workload_of(jobs), machine, policy, policy_parameters=options, interval_s=interval_s)


def resizes(run: Run) -> list[tuple[str, float, int, int]]:
    rows = run.reconfigurations[["job_id", "asked", "nodes_from", "nodes_to"]]
    return [tuple(row) for row in rows.itertuples(index=False)]


@pytest.mark.parametrize(
    ("calls", "interval_s", "asked"), [("event", 0.0, 30.0), ("settle", 0.0, 0.0), ("tick", 4.0, 4.0)]
)
def test_a_job_that_just_started_expands_in_the_next_call(calls: str, interval_s: float, asked: float) -> None:
    """The job prefers 2 of 4 nodes. Nothing happens until another job arrives at 30, which waits for the end."""
    jobs = [RefJob(0, 0.0, 100.0, 100.0, 2, True, 2, 4, 2), RefJob(1, 30.0, 10.0, 10.0, 9)]
    run = run_of(jobs, 4, interval_s=interval_s, calls=calls)
    assert resizes(run)[0] == ("0", asked, 2, 4)


def test_without_events_ticks_go_on_only_while_jobs_run() -> None:
    jobs = [RefJob(0, 0.0, 10.0, 10.0, 1), RefJob(1, 1e6, 10.0, 10.0, 1)]
    run = run_of(jobs, 1, interval_s=0.01, calls="tick")
    assert run.jobs["start"].tolist() == [0.0, 1e6]


@pytest.mark.parametrize(("count_idle", "left"), [("yes", 3), ("head", 3), ("no", 2)])
def test_idle_nodes_count_towards_the_nodes_of_the_head(count_idle: str, left: int) -> None:
    """The job has 4 of 5 nodes, and the head needs 2: the idle one and one of the job, or two of the job."""
    jobs = [RefJob(0, 0.0, 100.0, 100.0, 4, True, 2, 4, 4), RefJob(1, 10.0, 50.0, 50.0, 2)]
    assert resizes(run_of(jobs, 5, count_idle=count_idle))[0] == ("0", 10.0, 4, left)


@pytest.mark.parametrize(("count_idle", "starts"), [("yes", True), ("head", False), ("no", False)])
def test_idle_nodes_count_for_a_later_job_only_with_yes(count_idle: str, starts: bool) -> None:
    """One of 8 nodes is idle, and job 1 can release 3: too few for the head, enough for job 3 with the idle one."""
    jobs = [RefJob(0, 0.0, 80.0, 80.0, 3), RefJob(1, 0.0, 100.0, 100.0, 4, True, 1, 4, 4)]
    jobs += [RefJob(2, 10.0, 50.0, 50.0, 5), RefJob(3, 10.0, 50.0, 500.0, 4)]
    assert (run_of(jobs, 8, count_idle=count_idle).jobs["start"][3] == 10.0) == starts


@pytest.mark.parametrize(("count_idle", "starts"), [("yes", False), ("head", False), ("no", True)])
def test_no_job_shrinks_for_a_job_that_the_reservation_refused(count_idle: str, starts: bool) -> None:
    """Two of 8 nodes are idle. Job 3 fits them, and would delay the head, which needs all nodes."""
    jobs = [RefJob(0, 0.0, 80.0, 80.0, 3), RefJob(1, 0.0, 100.0, 100.0, 3, True, 1, 3, 3)]
    jobs += [RefJob(2, 10.0, 50.0, 50.0, 8), RefJob(3, 10.0, 50.0, 500.0, 2)]
    assert (run_of(jobs, 8, count_idle=count_idle).jobs["start"][3] == 10.0) == starts


@pytest.mark.parametrize(("narrow", "starts"), [(True, True), (False, False)])
def test_a_later_job_may_start_narrower_on_the_extra_nodes(narrow: bool, starts: bool) -> None:
    """Two of 4 nodes are idle, and one is extra. Job 2 prefers 2 nodes, needs 1, and outlives the shadow time."""
    jobs = [RefJob(0, 0.0, 50.0, 50.0, 2), RefJob(1, 10.0, 50.0, 50.0, 3)]
    jobs.append(RefJob(2, 10.0, 1000.0, 1000.0, 2, True, 1, 2, 2))
    run = run_of(jobs, 4, narrow=narrow)
    assert (run.jobs["start"][2] == 10.0) == starts
    assert run.jobs["start"][1] == 50.0  # the head is not delayed


@pytest.mark.parametrize(("expected_end", "starts"), [("scaled", False), ("limit", True)])
def test_the_shadow_time_follows_from_the_expected_end(expected_end: str, starts: bool) -> None:
    """Job 0 grows from 2 nodes to 4 at once, so that it ends at 50; its limit is 100. Job 2 would end by 70."""
    jobs = [RefJob(0, 0.0, 100.0, 100.0, 2, True, 2, 4, 2), RefJob(1, 10.0, 50.0, 50.0, 5)]
    jobs.append(RefJob(2, 10.0, 60.0, 60.0, 1))
    run = run_of(jobs, 5, expected_end=expected_end)
    assert run.jobs["end"][0] == 50.0
    assert (run.jobs["start"][2] == 10.0) == starts


@pytest.mark.parametrize(("ties", "shrinks"), [("start", "2"), ("id", "1")])
def test_equal_priorities_are_taken_in_the_order_of_start_or_of_submission(ties: str, shrinks: str) -> None:
    """Job 2 starts before job 1, on the extra nodes. At 20 both have the size they prefer, and job 3 needs a node."""
    jobs = [RefJob(0, 0.0, 10.0, 10.0, 4), RefJob(1, 1.0, 100.0, 100.0, 4, True, 3, 4, 4)]
    jobs += [RefJob(2, 2.0, 100.0, 100.0, 2, True, 1, 2, 2), RefJob(3, 20.0, 5.0, 5.0, 1)]
    job, asked, before, after = resizes(run_of(jobs, 6, ties=ties))[0]
    assert (job, asked, before - after) == (shrinks, 20.0, 1)


@pytest.mark.parametrize(("spread", "sizes"), [(False, [("0", 8)]), (True, [("0", 5), ("1", 5)])])
def test_idle_nodes_expand_one_job_after_another_or_node_by_node(spread: bool, sizes: list[tuple[str, int]]) -> None:
    """Jobs 0 and 1 have the 2 nodes that they prefer. At 10 the job on the other 6 of 10 nodes ends."""
    jobs = [RefJob(number, 0.0, 100.0, 100.0, 2, True, 1, 8, 2) for number in range(2)]
    jobs.append(RefJob(2, 0.0, 10.0, 10.0, 6))
    found = resizes(run_of(jobs, 10, policy="keep-pref", spread=spread))
    assert [(job, after) for job, asked, _, after in found if asked == 10.0] == sizes


@pytest.mark.parametrize(("if_idle", "shrink"), [(False, ("0", 5.0, 4, 1)), (True, ("0", 10.0, 4, 3))])
def test_jobs_shrink_for_waiting_jobs_with_or_without_idle_nodes(
    if_idle: bool, shrink: tuple[str, float, int, int]
) -> None:
    """No node is idle when job 2 arrives at 5, and two are when job 1 ends at 10."""
    jobs = [RefJob(0, 0.0, 100.0, 100.0, 4, True, 1, 4, 4), RefJob(1, 0.0, 10.0, 10.0, 2)]
    jobs.append(RefJob(2, 5.0, 50.0, 50.0, 3))
    found = resizes(run_of(jobs, 6, "min", if_idle=if_idle))
    assert next(row for row in found if row[3] < row[2]) == shrink


@pytest.mark.parametrize(
    ("straight", "expansions"), [(False, [("1", 10.0, 3, 5), ("2", 10.0, 1, 3)]), (True, [("2", 10.0, 1, 5)])]
)
def test_jobs_expand_first_to_the_preferred_size_or_straight_to_the_maximum(
    straight: bool, expansions: list[tuple[str, float, int, int]]
) -> None:
    """Jobs 1 and 2 prefer 3 of 8 nodes and start on 3 and 1. The job on the other 4 nodes ends at 10."""
    jobs = [RefJob(0, 0.0, 10.0, 10.0, 4)]
    jobs += [RefJob(number, 0.0, 100.0, 100.0, 3, True, 1, 6, 3) for number in (1, 2)]
    found = resizes(run_of(jobs, 8, straight=straight))
    assert [row for row in found if row[1] == 10.0] == expansions


@pytest.mark.parametrize(("policy", "strategy"), [("avg", "average"), ("min", "min"), ("pref", "pref")])
@pytest.mark.parametrize("rules", [{"promise": "steal"}, THEIRS])
def test_schedules_agree_with_those_of_elastisim(
    reference_data: Callable[[str], Path], policy: str, strategy: str, rules: dict[str, Any]
) -> None:
    """The margins are those of the sample, for a simulator with the same rules. Our own rules meet them too."""
    folder = reference_data("elastisim/kassel-k32a")
    [output] = folder.glob(f"k32a-m50-{strategy}_*.jobs.csv.gz")
    [sizes] = folder.glob(f"k32a-m50-{strategy}_*.sizes.csv.gz")
    theirs = pd.read_csv(output).set_index("ID")
    steps = pd.read_csv(sizes).groupby("id").size().sum() - 2 * len(theirs)  # less a start and an end of each job
    workload = read_workload(folder / "k32a-m50.csv")
    run = predict(workload, 32, policy, policy_parameters=rules)
    ours = run.jobs.set_index(run.jobs["job_id"].astype(int)).loc[theirs.index]
    wait, turnaround = (theirs[name].mean() for name in ("Wait Time", "Turnaround Time"))
    assert (ours["start"] - ours["submit"]).mean() == pytest.approx(wait, rel=0.05, abs=10)
    assert (ours["end"] - ours["submit"]).mean() == pytest.approx(turnaround, rel=0.015)
    assert ours["end"].max() == pytest.approx(theirs["End Time"].max(), rel=0.015)
    assert np.median((ours["start"] - theirs["Start Time"]).abs()) < 2
    if rules is THEIRS:
        assert len(run.reconfigurations) == pytest.approx(steps, rel=0.07)


@pytest.mark.parametrize("policy", ["avg", "min", "pref"])
def test_calls_at_events_only_wait_longer_than_elastisim(reference_data: Callable[[str], Path], policy: str) -> None:
    """Why `settle` is the default: freed nodes wait for the next event, which the public strategies do not."""
    workload = read_workload(reference_data("elastisim/kassel-k32a") / "k32a-m50.csv")
    runs = [predict(workload, 32, policy, policy_parameters={"calls": calls}) for calls in ("event", "settle")]
    waits = [(run.jobs["start"] - run.jobs["submit"]).mean() for run in runs]
    assert waits[0] > 1.02 * waits[1]


@pytest.mark.parametrize(
    ("policy", "load", "scaled", "public"),
    [
        ("min", 2.0, 277.4, 296.4),
        ("pref", 2.0, 217.6, 223.4),
        ("min", 3.0, 1369.1, 1453.7),
        ("pref", 3.0, 1221.0, 1324.7),
    ],
)
def test_start_plus_limit_protects_no_head_if_all_jobs_are_malleable(
    reference_data: Callable[[str], Path], policy: str, load: float, scaled: float, public: float
) -> None:
    """`public`: mean wait of the public strategies, unchanged, in a small simulation made for this comparison, s.

    There, each of the 150 starts is that of `limit`, and of `firstfit`: jobs on their minimum outlive start + limit.
    """
    rigid = read_workload(reference_data("elastisim/kassel-k32a") / "k32a-m0.csv")
    denser = rigid.columns.assign(submit_time=rigid.floats("submit_time") / load)
    workload = to_malleable(Workload(denser, rigid.provenance), 1.0, nodes=32)
    rules = ({"expected_end": "scaled"}, {"expected_end": "limit"}, {"backfill": "firstfit"})
    runs = [
        predict(workload, 32, policy, policy_parameters={"promise": "steal", "ties": "id", **rule}) for rule in rules
    ]
    waits = [(run.jobs["start"] - run.jobs["submit"]).mean() for run in runs]
    assert waits == pytest.approx([scaled, public, public], abs=0.06)
    assert (runs[1].jobs["start"] - runs[2].jobs["start"]).abs().max() < 1e-6


@pytest.mark.slow
def test_predictions_agree_with_the_published_runs_of_another_program(
    reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    """Ten runs of 41,524 jobs; no rule was fitted to them."""
    log = reference_data("logs/cori-knl")
    output = tmp_path / "knl.parquet"
    recipe = ["--recipe", "cori-knl", "--set", "missing_limits.rounding=next-hour"]  # as their generator
    done = CliRunner().invoke(tracebed, ["clean", str(log), *recipe, "-o", str(output)])
    assert done.exit_code == 0, done.output
    rows = list(kassel_published.compared(kassel_published.slowed(read_workload(output))))
    assert len(rows) == 10
    for row, wait, run_time in rows:
        assert wait + run_time == pytest.approx(row.wait_s + row.run_s, rel=0.03), row
        assert wait == pytest.approx(row.wait_s, rel=0.17, abs=3), row
