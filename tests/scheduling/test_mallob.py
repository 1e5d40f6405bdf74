"""The policy `mallob`: its volumes beside nodes given one by one, and its runs beside jobs that flow between events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.policies.mallob import volumes


def one_by_one(priority: Sequence[float], low: Sequence[int], high: Sequence[int], available: int) -> list[int]:
    """Give each node to the job whose next node is worth the smallest multiplier, nodes / priority."""
    size = [*low]
    while sum(size) < available:
        growing = [job for job in range(len(size)) if size[job] < high[job]]
        if not growing:
            break
        order = {j: ((size[j] + 1) / priority[j], -priority[j], -high[j], j) for j in growing}
        size[min(growing, key=order.__getitem__)] += 1
    return size


def of_multiplier(alpha: Fraction, priority: Sequence[float], low: Sequence[int], high: Sequence[int]) -> list[int]:
    """Return the rule as it is printed, for a given multiplier, in exact numbers."""
    rows = zip(priority, low, high, strict=True)
    return [max(least, min(most, math.floor(alpha * Fraction(str(p))))) for p, least, most in rows]


@st.composite
def drawn_jobs(draw: st.DrawFn) -> tuple[list[float], list[int], list[int], int]:
    number = draw(st.integers(1, 12))
    few = st.sampled_from([0.1, 0.25, 0.5, 1.0])  # equal priorities are ties
    priority = draw(st.lists(few | st.floats(0.001, 1.0), min_size=number, max_size=number))
    low = draw(st.lists(st.integers(1, 4), min_size=number, max_size=number))
    high = [least + draw(st.integers(0, 60)) for least in low]
    return priority, low, high, sum(low) + draw(st.integers(0, 200))


@given(drawn_jobs())
def test_volumes_are_those_given_one_by_one(case: tuple[list[float], list[int], list[int], int]) -> None:
    assert volumes(*case) == one_by_one(*case)


@given(drawn_jobs())
def test_volumes_follow_the_printed_rule_up_to_ties(case: tuple[list[float], list[int], list[int], int]) -> None:
    priority, low, high, available = case
    size = volumes(*case)
    assert sum(size) == min(available, sum(high))
    if sum(high) <= available:
        assert size == high
        return
    thresholds = sorted(
        {Fraction(n) / Fraction(str(p)) for p, most in zip(priority, high, strict=True) for n in range(most + 2)}
    )
    fitting = [alpha for alpha in thresholds if sum(of_multiplier(alpha, priority, low, high)) <= available]
    rule = of_multiplier(fitting[-1], priority, low, high)
    following = of_multiplier(thresholds[len(fitting)], priority, low, high)
    assert all(least <= own <= most for least, own, most in zip(rule, size, following, strict=True))


def test_a_hundred_nodes_by_hand() -> None:
    assert volumes([0.5, 0.25, 0.25], [1, 1, 1], [100, 100, 100], 100) == [50, 25, 25]
    assert volumes([0.5, 0.25, 0.25], [1, 1, 1], [20, 100, 100], 100) == [20, 40, 40]
    assert volumes([1.0, 0.001], [1, 1], [100, 100], 100) == [99, 1]  # 0.1 nodes, but at least one
    assert volumes([0.5, 0.5, 0.5], [1, 1, 1], [9, 9, 8], 10) == [4, 3, 3]  # ties: larger demand, then order
    assert volumes([0.5, 0.5, 0.5], [1, 1, 1], [8, 9, 8], 11) == [4, 4, 3]


def workload(rows: Sequence[dict[str, float]]) -> tb.Workload:
    """Return malleable jobs whose run time is their work on one node, with linear speedup."""
    table = pd.DataFrame(rows).assign(kind="malleable", nodes=1, nodes_min=1, nodes_pref=1)
    return tb.Workload(table.assign(job_id=[str(row) for row in range(len(table))]))


def test_shares_change_with_arrivals_and_ends() -> None:
    rows = [
        {"submit_time": 0.0, "run_time": 1000.0, "nodes_max": 100, "priority": 1.0},
        {"submit_time": 5.0, "run_time": 100.0, "nodes_max": 100, "priority": 1.0},
        {"submit_time": 6.0, "run_time": 30.0, "nodes_max": 3, "priority": 2.0},
    ]
    run = tb.simulate(workload(rows), "mallob", nodes=100)
    # 500 are done at 5 s on 100 nodes; 50 nodes each for a second; then 3 for the third job, and 49 and 48.
    done = run.jobs.set_index("job_id")["end"]
    assert done["1"] == pytest.approx(6 + 50 / 48)
    assert done["2"] == 16
    assert done["0"] == pytest.approx(6 + 50 / 48 + (450 - 49 * 50 / 48) / 97)
    assert run.jobs["start"].tolist() == [0, 5, 6]


def test_a_deadline_ends_a_job_on_any_number_of_nodes() -> None:
    rows = [
        {"submit_time": 0.0, "run_time": 1e6, "nodes_max": 4, "deadline": 7.0},
        {"submit_time": 1.0, "run_time": 10.0, "nodes_max": 10, "deadline": 100.0},
    ]
    run = tb.simulate(workload(rows), "mallob", nodes=4)
    assert run.jobs["state"].tolist() == ["cancelled", "completed"]
    assert run.jobs["end"].tolist() == [7.0, 6.0]


def test_jobs_wait_if_there_is_no_node_for_each() -> None:
    rows = [{"submit_time": 0.0, "run_time": 10.0, "nodes_max": 9} for _ in range(3)]
    run = tb.simulate(workload(rows), "mallob", nodes=2)
    assert run.jobs["start"].tolist() == [0, 0, 10]


@dataclass
class Flow:
    """Jobs between events: what is left of each, s on one node."""

    left: dict[int, float]
    ends: dict[int, float]


def flowed(table: pd.DataFrame, nodes: int) -> dict[int, float]:
    """Return the end of each job; volumes are given one by one after each event."""
    flow, now, coming = Flow({}, {}), 0.0, [*table.index]
    while coming or flow.left:
        active = sorted(flow.left)
        columns = [table.loc[active, name].tolist() for name in ("priority", "nodes_min", "nodes_max")]
        rate = dict(zip(active, one_by_one(*columns, nodes), strict=True))
        ends = {job: min(now + flow.left[job] / rate[job], table["deadline"][job]) for job in active}
        arrival = table["submit_time"][coming[0]] if coming else math.inf
        until = min([arrival, *ends.values()])
        flow.left = {job: left - rate[job] * (until - now) for job, left in flow.left.items()}
        now = until
        for job in [job for job in active if ends[job] <= until]:
            flow.ends[job] = until
            del flow.left[job]
        while coming and table["submit_time"][coming[0]] <= now:
            flow.left[coming[0]] = table["run_time"][coming[0]]
            del coming[0]
    return flow.ends


@given(st.integers(0, 2**32 - 1))
def test_a_run_is_that_of_jobs_that_flow(seed: int) -> None:
    random = np.random.default_rng(seed)
    number = int(random.integers(1, 15))
    submit = np.cumsum(random.exponential(4.0, number))
    table = pd.DataFrame(
        {
            "submit_time": submit,
            "run_time": random.exponential(200.0, number),
            "nodes_min": 1,
            "nodes_max": random.integers(1, 30, number),
            "priority": random.choice([0.25, 1.0, *random.uniform(0.01, 1.0, 3)], number),
            "deadline": submit + random.uniform(1.0, 60.0, number),
        }
    )
    run = tb.simulate(workload(table.to_dict("records")), "mallob", nodes=20)
    ends = run.jobs.set_index("job_id")["end"]
    for job, end in flowed(table, 20).items():
        assert ends[str(job)] == pytest.approx(end, abs=1e-6)


@pytest.mark.parametrize("release_s", [0.0, 3.0])
def test_nodes_of_slow_shrinks_follow_later(release_s: float) -> None:
    rows = [
        {"submit_time": 0.0, "run_time": 4000.0, "nodes_max": 10},
        {"submit_time": 1.0, "run_time": 50.0, "nodes_max": 10},
    ]
    run = tb.simulate(workload(rows), "mallob", nodes=10, overheads={"release_s": release_s})
    assert run.jobs["start"].tolist() == [0.0, 1.0 + release_s]
    assert run.jobs["end"][1] == 11 + release_s


def test_a_priority_of_zero_is_an_error() -> None:
    with pytest.raises(InputError, match="priority is not above 0"):
        workload([{"submit_time": 0.0, "run_time": 1.0, "nodes_max": 2, "priority": 0.0}])
