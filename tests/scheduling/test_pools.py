"""Pools of nodes: each as a machine of its own if none overlap, and by the rules of the page of machines if they do."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.drawn import POLICIES, draw
from tests.oracles.reference_pools import PoolJob, schedule
from tests.oracles.reference_scheduler import RefJob, reference_schedule
from tests.scheduling.test_scheduling import MICROSECOND, POLICY_PARAMETERS, nodes_held, workload_of
from tests.slurm.test_slurm_cluster import model_jobs
from tracebed.machine.pools import Pool, Pools
from tracebed.machine.sources import read_machine
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
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
