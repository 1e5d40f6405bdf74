"""Pools of nodes: each as a machine of its own if none overlap, and by the rules of the page of machines if they do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.drawn import POLICIES, draw
from tests.oracles.reference_pools import PoolJob, schedule
from tests.oracles.reference_scheduler import MALLEABLE, RefJob, reference_schedule
from tests.scheduling.test_scheduling import MICROSECOND, POLICY_PARAMETERS, nodes_held, workload_of
from tests.slurm.test_slurm_cluster import model_jobs
from tracebed.machine.pools import Pool, Pools
from tracebed.machine.sources import read_machine
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.scheduling.scheduler import Promises
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.simulator import Simulator

SEEDS = st.integers(0, 2**32 - 1)


def pools_of(nodes: list[list[int]], of: list[int], tiers: list[int] | None = None) -> Pools:
    pools = [Pool(tuple(sorted(own)), tier) for own, tier in zip(nodes, tiers or [1] * len(nodes), strict=True)]
    count = len(of)
    ones = np.ones(count, dtype=np.int64)
    weights = np.ones(max(map(max, nodes)) + 1, dtype=np.int64)
    return Pools(tuple(pools), np.array(of, dtype=np.int64), {}, np.full(count, np.inf), ones, 0, weights)


@settings(max_examples=60)
@given(seed=SEEDS, policy=st.sampled_from(POLICIES))
def test_pools_without_a_common_node_are_machines_of_their_own(seed: int, policy: str) -> None:
    rng = random.Random(seed)
    first = draw(seed, policy)
    cases = [
        first,
        *(replace(draw(seed + more, policy), options=first.options) for more in range(1, rng.randint(2, 3))),
    ]
    expected = [reference_schedule(case.jobs, case.machine, policy, **first.options) for case in cases]
    every = [*range(sum(case.machine for case in cases))]
    rng.shuffle(every)  # the nodes of a pool are scattered over the machine
    nodes = [sorted(every.pop() for _ in range(case.machine)) for case in cases]
    jobs = sorted(
        ((job.submit, pool, number) for pool, case in enumerate(cases) for number, job in enumerate(case.jobs)),
    )
    merged = [replace(cases[pool].jobs[number], id=at) for at, (_, pool, number) in enumerate(jobs)]
    options = dict(first.options)
    parameters = {key: options.pop(key) for key in list(options) if key in POLICY_PARAMETERS}
    read = Jobs.of(workload_of(merged), over_limit=OverLimit(options.pop("over_limit", "extend")))
    pools = pools_of(nodes, [pool for _, pool, _ in jobs])
    simulator = Simulator(
        read, [1] * sum(map(len, nodes)), registry.load(policy, parameters), Setup.of(policy, **options), pools=pools
    )
    record = simulator.run()
    held = nodes_held(simulator)
    for at, (_, pool, number) in enumerate(jobs):
        want = expected[pool][cases[pool].jobs[number].id]
        assert record.state[at] == want.state
        if want.state != "rejected":
            assert record.start[at] == pytest.approx(want.start, abs=MICROSECOND)
            assert record.end[at] == pytest.approx(want.end, abs=MICROSECOND)
            assert set(held.get(at, ())) <= set(nodes[pool])
            if want.nodes:
                assert held[at] == [nodes[pool][place] for place in want.nodes]


def drawn_pools(seed: int) -> tuple[list[PoolJob], list[tuple[set[int], int]]]:
    rng = random.Random(seed)
    machine = rng.randint(2, 10)
    pools = [(set(range(machine)), 1), ({0}, 1)]  # a pool without a common node keeps its reservations
    for _ in range(rng.randint(0, 3)):
        nodes = set(rng.sample(range(machine), rng.randint(1, machine)))
        tier = rng.choice([1, 1, 2])
        if (nodes, tier) not in pools:
            pools.append((nodes, tier))
    pools = sorted(pools, key=lambda pool: (sorted(pool[0]), -pool[1]))
    jobs, submit = [], 0.0
    for _ in range(rng.randint(1, 40)):
        submit += rng.choice([0.0, 1.0, 3.0, 10.0])
        pool = rng.randrange(len(pools))
        run_time = float(rng.choice([0, 1, 2, 5, 7, 10, 20, 40]))
        nodes = rng.randint(1, len(pools[pool][0]))
        jobs.append(PoolJob(submit, run_time, max(1.0, run_time * rng.choice([1, 1, 2, 3])), nodes, pool))
    return jobs, pools


@settings(max_examples=150)
@given(seed=SEEDS, policy=st.sampled_from(["fcfs", "firstfit", "easy", "conservative"]))
def test_pools_that_overlap_equal_the_reference(seed: int, policy: str) -> None:
    jobs, pools = drawn_pools(seed)
    listed = [RefJob(at, job.submit, job.run_time, job.limit, job.nodes) for at, job in enumerate(jobs)]
    read = Jobs.of(workload_of(listed))
    known = pools_of([sorted(nodes) for nodes, _ in pools], [job.pool for job in jobs], [tier for _, tier in pools])
    simulator = Simulator(read, [1] * 10, registry.load(policy, {}), Setup.of(policy), pools=known)
    record = simulator.run()
    schedule(jobs, pools, policy)
    assert list(record.start) == [job.start for job in jobs]
    assert nodes_held(simulator) == {number: sorted(job.held) for number, job in enumerate(jobs)}


def resized(nodes: int, jobs: list[RefJob], pools: Pools, policy: str, **options: Any) -> tuple[ScheduleRecord, int]:
    """Return the record, and the largest number of calls at one instant; fail at a promise that is withdrawn."""
    parameters = {key: options.pop(key) for key in list(options) if key in POLICY_PARAMETERS}
    read = Jobs.of(workload_of(jobs))
    simulator = Simulator(
        read, [1] * nodes, registry.load(policy, parameters), Setup.of(policy, **options), pools=pools
    )
    calls, decide, drop = Counter[float](), simulator._decide, Promises.drop

    def counted(now: float) -> float:
        calls[now] += 1
        assert calls[now] <= 5 + 2 * len(jobs), f"the policy decides for ever at {now:g} s"
        return decide(now)

    def dropped(promises: Promises, job: int) -> bool:
        assert job not in promises, f"the promise to job {job} is withdrawn"
        return drop(promises, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "_decide", counted)
        patch.setattr(Promises, "drop", dropped)
        return simulator.run(), max(calls.values())


@pytest.mark.parametrize("policy", MALLEABLE)
@pytest.mark.parametrize(("interval_s", "at"), [(0.0, 2.0), (5.0, 5.0)])
def test_a_node_that_a_job_releases_for_a_promise_is_used_for_it(policy: str, interval_s: float, at: float) -> None:
    """Job 0 shrinks from 3 of 4 nodes to 2 for job 2 of its pool, at once or at its point at 5 s.

    Job 1, of the pool with the higher tier, needs 3 nodes, and waits for the end of job 0. The pool kept the node that
    job 0 had released, which then expanded onto it again, shrank again, and so on.
    """
    sizes = {"nodes_min": 2, "nodes_pref": 2, "nodes_max": 3}
    jobs = [
        RefJob(0, 0.0, 30.0, 30.0, 2, malleable=True, **sizes),
        RefJob(1, 1.0, 10.0, 10.0, 3),
        RefJob(2, 2.0, 10.0, 10.0, 2),
    ]
    pools = pools_of([[0, 1, 2, 3]] * 2, [1, 0, 1], [2, 1])
    record, most = resized(4, jobs, pools, policy, malleability_interval_s=interval_s)
    # Job 0 does its 60 node-seconds on 2 or 3 nodes, with 3 from the end of job 2 on.
    assert list(record.start) == pytest.approx([0.0, {2.0: 70 / 3, 5.0: 25.0}[at], at])
    assert most == 3


@settings(max_examples=150)
@given(seed=SEEDS, policy=st.sampled_from([*MALLEABLE, "fcfs-malleable", "dmr", "mallob"]))
def test_every_promise_is_kept_and_no_policy_decides_for_ever_where_pools_overlap(seed: int, policy: str) -> None:
    rng = random.Random(seed)
    nodes = rng.randint(3, 8)
    drawn = [(sorted(rng.sample(range(nodes), rng.randint(2, nodes))), rng.choice([1, 1, 2])) for _ in range(4)]
    own, tiers = zip(*(pool for at, pool in enumerate(drawn) if pool not in drawn[:at]), strict=True)
    jobs, of, submit = list[RefJob](), list[int](), 0.0
    for number in range(rng.randint(3, 15)):
        submit += rng.choice([0.0, 1.0, 3.0, 10.0])
        of.append(rng.randrange(len(own)))
        low, pref, high = sorted(rng.choices(range(1, len(own[of[-1]]) + 1), k=3))
        run_time, malleable = float(rng.choice([0, 1, 5, 10, 40])), rng.random() < 0.8
        limit, fraction = run_time * rng.choice([1, 1, 2]), rng.choice([None, 0.5, 0.9])
        jobs.append(RefJob(number, submit, run_time, limit, pref, malleable, low, high, pref, fraction))
    options = {"malleability_interval_s": rng.choice([0.0, 2.0, 5.0]), "interval_s": rng.choice([0.0, 0.0, 7.0])}
    if policy in MALLEABLE:
        options |= {
            "promise": rng.choice(["pool", "direct", "steal"]),
            "backfill": rng.choice(["easy", "firstfit"]),
            "count_idle": rng.choice(["yes", "no", "head"]),
            "grow_at_start": rng.random() < 0.3,
            "spread": rng.random() < 0.5,
        }
    record, _ = resized(nodes, jobs, pools_of([*own], of, [*tiers]), policy, **options)
    assert set(record.state) == {"completed"}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative"])
def test_the_jobs_of_slurm_model_on_the_machine_of_its_slurm_conf_equal_the_reference(
    policy: str, reference_data: Callable[[str], Path]
) -> None:
    """Five pools of ten nodes: all, two features, one node with GPUs, one with much memory."""
    folder = reference_data("slurm-model")
    workload, machine = model_jobs(folder), read_machine(folder / "slurm.conf")
    jobs = workload.runnable()[0]
    pools = Pools.on(machine, jobs, jobs.ints("nodes"))
    assert sorted(len(pool.nodes) for pool in pools.pools) == [1, 1, 4, 4, 10]
    limit = np.where(np.isnan(jobs.floats("time_limit")), jobs.floats("run_time"), jobs.floats("time_limit"))
    columns = (
        jobs.floats("submit_time"),
        np.minimum(jobs.floats("run_time"), limit),
        limit,
        jobs.ints("nodes"),
        pools.of,
    )
    expected = [PoolJob(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    schedule(expected, [({*pool.nodes}, pool.tier) for pool in pools.pools], policy)
    run = predict(workload, machine, policy, over_limit=OverLimit.KILL)
    assert run.jobs["start"].tolist() == [job.start for job in expected]
