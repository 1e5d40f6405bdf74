"""The scheduler, its policies and the simulator: equal to the slow reference, and within invariants."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.reference_scheduler import RefJob, reference_schedule
from tests.runs import resize_rows
from tracebed.converters.speedup import Speedup
from tracebed.converters.workload import Workload
from tracebed.ground.table import strings
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.simulator import Simulator

MICROSECOND = 1e-6
POLICY_PARAMETERS = {
    *("promise", "backfill", "count_idle", "grow_at_start", "calls", "expected_end", "narrow", "ties"),
    *("spread", "if_idle", "straight"),
    *("backfill_depth", "backfill_interval_s", "reserve"),
}


def workload_of(jobs: list[RefJob], *, cores_per_node: int = 1, ids: list[str] | None = None) -> Workload:
    """Return the reference's jobs as a workload, optionally with other ids."""
    return Workload(
        pd.DataFrame(
            {
                "job_id": [str(job.id) for job in jobs] if ids is None else ids,
                "cores_per_node": cores_per_node,
                "submit_time": [job.submit for job in jobs],
                "run_time": [job.run_time for job in jobs],
                "time_limit": [math.nan if job.limit is None else job.limit for job in jobs],
                "nodes": [job.nodes for job in jobs],
                "kind": ["malleable" if job.malleable else "rigid" for job in jobs],
                "nodes_min": [job.nodes_min for job in jobs],
                "nodes_max": [job.nodes_max for job in jobs],
                "nodes_pref": [job.nodes_pref for job in jobs],
                "speedup": ["linear" if job.parallel_fraction is None else "amdahl" for job in jobs],
                "speedup_parameters": [
                    "" if job.parallel_fraction is None else str(job.parallel_fraction) for job in jobs
                ],
            }
        )
    )


def simulated(jobs: list[RefJob], machine: int, policy: str, **options: Any) -> tuple[ScheduleRecord, Simulator]:
    parameters = {key: options.pop(key) for key in list(options) if key in POLICY_PARAMETERS}
    read = Jobs.of(workload_of(jobs), over_limit=OverLimit(options.pop("over_limit", "extend")))
    simulator = Simulator(read, [1] * machine, registry.load(policy, parameters), Setup.of(policy, **options))
    return simulator.run(), simulator


def staircases(simulator: Simulator) -> dict[int, list[tuple[float, int]]]:
    """Return job -> (time, nodes held), one entry per change, from the ledger."""
    changes: dict[int, dict[float, int]] = {}
    ledger = simulator.cluster.ledger
    for job, start, end, count in zip(ledger.jobs, ledger.starts, ledger.ends, ledger.counts, strict=True):
        if start < end:
            steps = changes.setdefault(job, {})
            steps[start] = steps.get(start, 0) + count
            steps[end] = steps.get(end, 0) - count
    return {
        job: [
            (time, held)
            for time, held in zip(
                sorted(steps), itertools.accumulate(steps[time] for time in sorted(steps)), strict=True
            )
            if held and steps[time]
        ]
        for job, steps in changes.items()
    }


def nodes_held(simulator: Simulator) -> dict[int, list[int]]:
    """Return job -> the numbers of all nodes that the job held, ascending, from the ledger."""
    nodes: dict[int, set[int]] = {}
    ledger = simulator.cluster.ledger
    for job, first, count in zip(ledger.jobs, ledger.firsts, ledger.counts, strict=True):
        nodes.setdefault(job, set()).update(range(first, first + count))
    return {job: sorted(held) for job, held in nodes.items()}


def assert_same(jobs: list[RefJob], machine: int, policy: str, **options: Any) -> None:
    expected = reference_schedule(jobs, machine, policy, **options)
    record, simulator = simulated(jobs, machine, policy, **options)
    assert simulator.cluster.idle == [*range(machine)]
    held, named = staircases(simulator), nodes_held(simulator)
    resizes: dict[int, list[tuple[float, int, int]]] = {}
    for job, before, after, asked, *_ in resize_rows(record):
        resizes.setdefault(int(job), []).append((float(asked), int(before), int(after)))
    for job in jobs:
        want = expected[job.id]
        assert record.state[job.id] == want.state
        if want.state == "rejected":
            continue
        assert want.start is not None and want.end is not None
        assert record.start[job.id] == pytest.approx(want.start, abs=MICROSECOND), job
        assert record.end[job.id] == pytest.approx(want.end, abs=MICROSECOND), job
        if want.nodes:
            assert named[job.id] == want.nodes, job
        mine = resizes.get(job.id, [])
        assert [step[1:] for step in mine] == [step[1:] for step in want.resizes], job
        assert [step[0] for step in mine] == pytest.approx([step[0] for step in want.resizes], abs=MICROSECOND)
        if want.start < want.end - MICROSECOND:
            steps = [_merged([*steps, (want.end, 0)]) for steps in (held[job.id], want.sizes)]
            assert [step[1] for step in steps[0]] == [step[1] for step in steps[1]], job


def _merged(steps: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Drop steps within rounding error and steps without a change."""
    kept: list[tuple[float, int]] = []
    for time, held in steps:
        while kept and time - kept[-1][0] < MICROSECOND:
            kept.pop()
        if not kept or kept[-1][1] != held:
            kept.append((time, held))
    return kept


def test_a_job_that_prefers_more_nodes_than_requested_is_backfilled_by_its_shorter_limit() -> None:
    """The limit of 8 s on 2 nodes is too long before the head's reservation at 9; 8 / r(7) = 8 / 3.5 s is not."""
    jobs = [
        RefJob(0, 1.0, 8.0, 8.0, 2),
        RefJob(1, 4.5, 5.0, 5.0, 8),
        RefJob(2, 5.5, 0.0, 8.0, 2, True, 1, 9, 7),
    ]
    record, _ = simulated(jobs, 8, "pref")
    assert record.start == [1.0, 9.0, 5.5]
    assert_same(jobs, 8, "pref")


def test_the_shortest_limit_is_found_on_a_curve_with_a_maximum() -> None:
    """Measured times of the DMR paper's first table: 12 nodes are faster than 24."""
    job = {"job_id": ["j"], "submit_time": 0.0, "run_time": 40.0, "time_limit": 80.0, "kind": "malleable"}
    job |= {"nodes": 12, "nodes_min": 3, "nodes_pref": 24, "nodes_max": 24, "speedup": "table"}
    jobs = Jobs.of(Workload(pd.DataFrame(job | {"speedup_parameters": "3:238 6:68 12:40 24:44"})))
    assert jobs.shortest_limit(0) == pytest.approx(80.0)
    assert jobs.limit[0] / jobs.rate(0, 24) == pytest.approx(88.0)


MODELS = st.sampled_from(
    [("linear", ""), ("amdahl", "0.9"), ("amdahl", "0.5"), ("downey", "4 0.5"), ("table", "1:9 4:3 6:4")]
)


@given(st.lists(st.tuples(MODELS, st.integers(1, 6), st.booleans()), min_size=1, max_size=8))
def test_columns_of_jobs_are_those_of_each_job(rows: list[tuple[tuple[str, str], int, bool]]) -> None:
    """The arrays that the compiled engine reads agree with the lists, and with the model of each job alone."""
    table = {
        "job_id": [f"j{number}" for number in range(len(rows))],
        "submit_time": 0.0,
        "run_time": [float(nodes) for _, nodes, _ in rows],
        "nodes": [nodes for _, nodes, _ in rows],
        "kind": ["malleable" if malleable else "rigid" for *_, malleable in rows],
        "speedup": [name for (name, _), *_ in rows],
        "speedup_parameters": [parameters for (_, parameters), *_ in rows],
    }
    jobs = Jobs.of(Workload(pd.DataFrame(table)))
    functions, number = jobs.speedups
    for job, (model, nodes, malleable) in enumerate(rows):
        own = Speedup.parse(*model)
        assert jobs.parallel[job] == (own.parallel_share(nodes) if malleable else 1.0)
        assert (number[job] >= 0) == malleable
        if malleable:
            assert jobs.speedup[job] is functions[number[job]]
            assert [functions[number[job]](size) for size in (1, 3, 7)] == [own.of(size) for size in (1, 3, 7)]
    assert jobs.kind == table["kind"]
    for name in ("submit", "limit", "nodes", "low", "malleable"):
        assert getattr(jobs, name) == list(jobs.column(name))
    assert jobs.ids == strings(jobs.column("ids")) == table["job_id"]
    rigid = jobs.as_rigid()
    assert (rigid.high, rigid.malleable, rigid.speedup) == (jobs.nodes, [False] * len(rows), [None] * len(rows))
    assert jobs.kind == rigid.kind and jobs.malleable == [malleable for *_, malleable in rows]
    assert jobs.with_columns(low=jobs.pref).low == jobs.pref
    every_other = np.arange(0, len(rows), 2)
    part = jobs.with_columns(low=jobs.pref).take(every_other)
    for name in ("ids", "submit", "kind", "malleable", "parallel", "user"):
        assert getattr(part, name) == getattr(jobs, name)[::2]
    assert (
        part.low == jobs.pref[::2]
        and part.deadline == []
        and part.work == jobs.work[::2]
        and len(part) == len(every_other)
    )
    functions, number = part.speedups
    assert [functions[at] if at >= 0 else None for at in number.tolist()] == part.speedup == jobs.speedup[::2]
    assert set(number.tolist()) - {-1} == set(range(len(functions)))
    with pytest.raises(AttributeError, match="no attribute 'lows'"):
        getattr(jobs, "lows")  # noqa: B009 - mypy would refuse the attribute
