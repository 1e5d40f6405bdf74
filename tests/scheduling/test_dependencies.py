"""Dependencies and think times: each kind by hand, and drawn workloads against a slow reference."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.oracles.reference_dependencies import DependentReference, Wait, with_waits
from tests.oracles.reference_scheduler import RefJob
from tests.scheduling.test_scheduling import workload_of
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.queue import PRIORITIES
from tracebed.orchestrator.scheduling.record import WAITS
from tracebed.orchestrator.scheduling.state import Decision, State
from tracebed.orchestrator.simulation.prediction import predict

NAN = math.nan


def simulated(policy: str = "fcfs", machine: int = 4, **columns: Any) -> Run:
    """Simulate jobs of one node and 100 s, submitted at 0, 1, 2, ... s, with these columns."""
    count = len(next(iter(columns.values())))
    plain = {"submit_time": [*map(float, range(count))], "run_time": 100.0, "time_limit": 100.0, "nodes": 1}
    table = pd.DataFrame({"job_id": [str(number) for number in range(1, count + 1)]} | plain | columns)
    options = {"over_limit": "kill"} if "time_limit" in columns else {}
    return tb.simulate(Workload(table), policy, nodes=machine, **options)


def starts(run: Run) -> list[float]:
    return run.jobs["start"].tolist()


def test_each_kind_waits_for_its_event() -> None:
    run = simulated(dependency=["", "afterok:1", "afterany:1", "after:1", "after:1+2", "afternotok:1", "1"], machine=8)
    np.testing.assert_array_equal(starts(run), [0, 100, 100, 3, 120, NAN, 100])
    assert run.jobs["state"].tolist() == [*["completed"] * 5, "cancelled", "completed"]
    assert run.jobs["reason"][5] == "dependency afternotok:1 is never satisfied: job 1 completed"
    assert run.jobs["submit"].tolist() == [0, 1, 2, 3, 4, 5, 6]  # a wait counts from the submission
    assert run.info.engine == "python"
    assert not [text for text in run.info.warnings if "depend" in text]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"time_limit": [50.0, 100.0, 100.0, 100.0]}, "job 1 was killed"),
        ({"nodes": [9, 1, 1, 1]}, "job 1 was rejected"),
        ({"status": ["failed", "", "", ""]}, "job 1 failed in the log"),
    ],
)
def test_a_job_that_depends_on_the_success_of_a_failed_job_is_cancelled(columns: dict[str, Any], why: str) -> None:
    run = simulated(dependency=["", "afterok:1", "afterok:2", "afternotok:1"], **columns)
    states, reasons = run.jobs["state"].tolist(), run.jobs["reason"].tolist()
    assert states[1:] == ["cancelled", "cancelled", "completed"]
    assert reasons[1:3] == [
        f"dependency afterok:1 is never satisfied: {why}",
        "dependency afterok:2 is never satisfied: job 2 was cancelled",
    ]
    assert run.info.counts["cancelled"] == 2


def test_of_several_conditions_all_or_one_must_be_met() -> None:
    run = simulated(dependency=["", "", "afterany:1:2", "afterany:1?afterany:2", "afternotok:1?afterok:2"], machine=8)
    assert starts(run) == [0, 1, 101, 100, 101]
    never = simulated(dependency=["", "", "afternotok:1?afternotok:2"])
    assert never.jobs["state"].tolist()[2] == "cancelled"


def test_a_singleton_waits_for_the_jobs_of_its_user_and_name() -> None:
    alone = ["", "singleton", "singleton", "singleton"]
    assert starts(simulated(dependency=alone)) == [0, 100, 200, 300]
    assert starts(simulated(dependency=alone, user=["a", "b", "a", "b"])) == [0, 1, 100, 101]
    assert starts(simulated(dependency=alone, application=["pils", "stream", "pils", "pils"])) == [0, 1, 100, 200]


def test_a_late_job_keeps_its_place_in_the_queue() -> None:
    run = simulated(machine=1, dependency=["", "after:1+3", "", ""], run_time=[200.0, 100.0, 100.0, 100.0])
    assert starts(run) == [0, 200, 300, 400]
    assert starts(simulated("easy", machine=1, dependency=["", "", "after:1+1", "afterok:1"])) == [0, 100, 200, 300]


def test_a_job_that_was_refused_before_is_tried_again_behind_a_late_job() -> None:
    """The late job becomes the head of the queue, with a later reservation, before which the last job ends."""
    columns = {"run_time": [100.0, 300.0, 100.0, 200.0, 150.0], "nodes": [2, 1, 5, 3, 2]}
    columns["time_limit"] = columns["run_time"]
    assert starts(simulated("easy", 5, dependency=["", "", "after:1+1", "", ""], **columns)) == [0, 1, 301, 401, 60]
    assert starts(simulated("easy", 5, dependency=["", "", "after:1+5", "", ""], **columns)) == [0, 1, 301, 100, 401]


def test_a_think_time_moves_the_submission() -> None:
    run = simulated(machine=1, after=["", "1", "2", ""], think_time=[NAN, 30.0, 0.0, NAN])
    assert run.jobs["submit"].tolist() == [0, 130, 300, 3]
    assert run.jobs["submit_planned"].tolist() == [0, 1, 2, 3]
    assert starts(run) == [0, 200, 300, 100]  # the last job is first in the queue: it was submitted first


@pytest.mark.parametrize("priority", ["largest-slowdown-first", "aging"])
def test_priorities_count_the_wait_from_the_moved_submission(priority: str) -> None:
    table = {"after": ["", "1", ""], "think_time": [NAN, 0.0, NAN], "nodes": [2, 1, 2]}
    work = pd.DataFrame({"job_id": ["1", "2", "3"], "submit_time": [0.0, 0.0, 50.0], "run_time": 100.0} | table)
    run = tb.simulate(Workload(work), "fcfs", nodes=2, priority=priority)
    assert run.jobs["submit"].tolist() == [0, 100, 50]
    assert starts(run) == [0, 200, 100]


def test_a_previous_job_without_a_think_time_delays_the_start_only() -> None:
    run = simulated(after=["", "1", "7"], think_time=[NAN, NAN, 5.0])
    assert run.jobs["submit"].tolist() == [0, 1, 2]
    assert starts(run) == [0, 100, 2]
    assert [text for text in run.info.warnings if "previous" in text] == [
        "1 jobs whose previous job is not in the workload: submitted at their own time"
    ]


def test_a_job_after_a_rejected_one_is_submitted_nevertheless() -> None:
    run = simulated(after=["", "1"], think_time=[NAN, 5.0], nodes=[9, 1])
    assert run.jobs["state"].tolist() == ["rejected", "completed"]
    assert run.jobs["submit"].tolist() == [0, 5]


@dataclass(frozen=True)
class Idle:
    """A policy that starts no job."""

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        yield from ()


def test_a_job_that_waits_for_a_job_without_an_end_says_so() -> None:
    run = predict(jobs(after=["", "1", "1"], think_time=[NAN, NAN, 5.0]), 4, Idle())
    assert run.jobs["reason"].tolist() == [
        "the policy never started it",
        *[WAITS] * 2,
    ]
    assert np.isnan(run.jobs["submit"].tolist()[2])


def jobs(**columns: Any) -> Workload:
    count = len(next(iter(columns.values())))
    ids = {"job_id": [str(number) for number in range(1, count + 1)], "submit_time": [*map(float, range(count))]}
    return Workload(pd.DataFrame(ids | {"run_time": 100.0, "nodes": 1} | columns))


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"after": ["3", "1", "2"]}, "jobs wait for each other: 1 waits for 3 waits for 2 waits for 1"),
        ({"after": ["", "2", ""], "think_time": [NAN, 1.0, NAN]}, "jobs wait for each other: 2 waits for 2"),
        ({"after": ["3", "", ""], "dependency": ["", "afterok:1", "after:2"]}, "1 waits for 3 waits for 2 waits for 1"),
        ({"after": [str(n % 9 + 1) for n in range(1, 10)]}, "6 waits for 7 waits for ... waits for 1|1 waits for 2"),
        ({"after": ["", "1", ""], "think_time": [NAN, -1.0, NAN]}, "think_time of job 2 is -1 s"),
        ({"dependency": ["", "before:1", ""]}, "dependency 'before:1' of job 2 is invalid"),
    ],
)
def test_no_jobs_that_can_never_arrive_are_simulated(columns: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=error):
        tb.simulate(jobs(**columns), "fcfs", nodes=4)
    assert set(tb.simulate(jobs(**columns), "fcfs", nodes=9, dependencies="ignore").jobs["state"]) == {"completed"}


def test_jobs_of_a_chain_of_later_jobs_are_no_cycle() -> None:
    chain = jobs(after=["2", "3", "4", ""], think_time=[1.0, 1.0, 1.0, NAN])
    assert tb.simulate(chain, "fcfs", nodes=1).jobs["submit"].tolist() == [306, 205, 104, 3]


def test_dependencies_are_ignored_if_asked() -> None:
    work = jobs(dependency=["", "afterok:1", ""], after=["", "", "1"], think_time=[NAN, NAN, 7.0])
    run = tb.simulate(work, "fcfs", nodes=4, dependencies="ignore")
    assert starts(run) == [0, 1, 2]
    assert run.info.engine == "compiled"
    assert "2 jobs that depend on another job: dependency ignored" in run.info.warnings
    with pytest.raises(InputError, match="the compiled engine does not support dependencies and think times"):
        tb.simulate(work, "fcfs", nodes=4, engine="compiled")


def test_a_job_of_many_others_costs_in_proportion_to_them() -> None:
    """A fan of jobs that wait for one job, and a chain of as many, take no time that grows with its square."""
    count = 6_000
    fan = jobs(dependency=["", *["afterany:1"] * (count - 1)])
    chain = jobs(after=["", *map(str, range(1, count))], think_time=[NAN, *[0.0] * (count - 1)])
    assert Jobs.of(fan).waits is not None
    assert (tb.simulate(fan, "fcfs", nodes=count).jobs["start"][1:] == np.maximum(100, range(1, count))).all()
    assert tb.simulate(chain, "fcfs", nodes=1).jobs["start"].tolist() == [100.0 * n for n in range(count)]


POLICIES = ("fcfs", "firstfit", "easy", "conservative", "pref", "min", "keep-pref")
SECONDS = st.integers(0, 40).map(float)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[RefJob], list[Wait], int]:
    nodes, count = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    submits = sorted(draw(SECONDS) for _ in range(count))
    drawn, waits = [], []
    for number, submit in enumerate(submits):
        run_time = float(draw(st.integers(1, 90)))
        size = draw(st.integers(1, nodes + (draw(st.integers(0, 9)) == 0)))
        limit = run_time + draw(st.integers(-5, 30))
        malleable = size <= nodes and draw(st.booleans())
        sizes = {"nodes_min": 1, "nodes_max": nodes, "nodes_pref": size} if malleable else {}
        drawn.append(RefJob(number, submit, run_time, max(1.0, limit), size, malleable, **sizes))
        others = st.integers(0, count - 1)
        kind = st.sampled_from(["afterok", "afternotok", "afterany", "after"])
        condition = st.one_of(
            st.just("singleton"),
            st.builds(
                lambda kind, other, delay: f"{kind}:{other}{delay}", kind, others, st.sampled_from(["", "", "+1"])
            ),
        )
        texts = tuple(draw(st.lists(condition, max_size=3))) if draw(st.booleans()) else ()
        previous = draw(st.integers(0, number - 1)) if number and draw(st.integers(0, 2)) == 0 else None
        think_s = draw(st.one_of(st.none(), SECONDS)) if previous is not None else None
        any_of = (
            len(texts) > 1
            and draw(st.booleans())
            and all(text == "singleton" or int(re.split("[:+]", text)[1]) < number for text in texts)
        )
        group, fails = draw(st.sampled_from(["a", "b"])), draw(st.integers(0, 5)) == 0
        waits.append(Wait(texts, any_of, previous, think_s, group, fails))
    return drawn, waits, nodes


@given(cases(), st.sampled_from(POLICIES), st.sampled_from(["extend", "kill"]), st.sampled_from(["fcfs", *PRIORITIES]))
def test_drawn_jobs_run_as_in_the_reference(
    case: tuple[list[RefJob], list[Wait], int], policy: str, over_limit: str, priority: str
) -> None:
    drawn, waits, nodes = case
    plain = workload_of(drawn)
    work = Workload(with_waits(plain.table, waits))
    reference = DependentReference(
        [*map(copied, drawn)], nodes, policy, waits, over_limit=over_limit, priority=priority
    )
    reference.go()
    run = predict(work, nodes, policy, over_limit=over_limit, priority=priority)
    for job in drawn:
        want, row = reference.results.get(job.id), run.jobs.iloc[job.id]
        if want is None:  # two jobs wait for each other, one by its group
            assert (row["state"], row["reason"]) == ("unknown", WAITS)
            continue
        assert row["state"] == want.state, job
        assert row["submit"] == reference.submitted[job.id], job
        for name, value in (("start", want.start), ("end", want.end)):
            assert row[name] == pytest.approx(NAN if value is None else value, abs=1e-6, nan_ok=True), (name, job)


def copied(job: RefJob) -> RefJob:
    """Return a copy of a job, whose submission the reference moves."""
    return RefJob(**vars(job))
