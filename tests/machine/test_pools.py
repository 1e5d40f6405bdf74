"""The pools of a machine: which nodes serve which jobs, and why none do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracebed.converters.workload import Workload
from tracebed.machine.calendar import Calendar, Outage, OutageKind
from tracebed.machine.machine import Machine
from tracebed.machine.pools import Pools
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.testing.workloads import draw, in_partitions

MACHINE = Machine.from_json(
    {
        "classes": [
            {"names": ["c[1-4]"], "cores": 8, "memory_mib": 1000},
            {"names": ["m[1-2]"], "cores": 8, "threads": 2, "memory_mib": 4000},
            {"names": ["g[1-2]"], "cores": 4, "memory_mib": 2000, "gres": {"gpu:a100": 2}, "features": ["nvlink"]},
        ],
        "partitions": [
            {"name": "batch", "nodes": ["c[1-4]", "m[1-2]"], "default": True, "limit_s": 100, "most_nodes": 5},
            {"name": "gpu", "nodes": ["g[1-2]"], "tier": 2},
            {"name": "all"},
        ],
    }
)
C, M, G = (0, 1, 2, 3), (4, 5), (6, 7)


def workload(*jobs: dict[str, Any]) -> Workload:
    usual = {"submit_time": 0.0, "run_time": 10.0, "time_limit": 20.0, "nodes": 1, "cores_per_node": 1}
    return Workload(pd.DataFrame([{"job_id": str(at), **usual, **job} for at, job in enumerate(jobs, 1)]))


def simulated(*jobs: dict[str, Any], policy: str = "easy", machine: Machine = MACHINE) -> Run:
    return predict(workload(*jobs), machine, policy)


def nodes(run: Run, job: int) -> list[int]:
    rows = run.allocations[run.allocations["job_id"] == str(job)]
    return sorted({node for row in rows.itertuples() for node in range(row.node, row.node + row.count)})


@pytest.mark.parametrize(
    ("job", "pool"),
    [
        ({}, C + M),
        ({"memory_mib": 1000.0}, C + M),
        ({"memory_mib": 1001.0}, M),
        ({"partition": "gpu"}, G),
        ({"partition": "batch,gpu"}, C + M + G),
        ({"partition": "all", "cores_per_node": 5}, C + M),
        ({"partition": "all", "cores_per_node": 9}, M),
        ({"partition": "all", "gres": "gpu:1"}, G),
        ({"partition": "all", "gres": "gpu:a100:2"}, G),
        ({"partition": "all", "features": "nvlink"}, G),
        ({"nodes": 5}, C + M),
    ],
)
def test_the_pool_of_a_job_has_the_nodes_that_meet_its_demands(job: dict[str, Any], pool: tuple[int, ...]) -> None:
    jobs = workload(job)
    pools = Pools.on(MACHINE, jobs, jobs.ints("nodes"))
    assert pools.pools[pools.of[0]].nodes == pool
    assert set(nodes(simulated(job, {"submit_time": 1.0}), 1)) <= set(pool)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"memory_mib": 5000.0}, "MiB of a node: 5,000, partition batch has 4,000"),
        ({"memory_mib": 2000.0, "nodes": 3}, "MiB of a node: 2,000, partition batch has too few such nodes"),
        ({"cores_per_node": 17}, "cores of a node: 17, partition batch has 16"),
        ({"gres": "gpu:1"}, "gres of a node: gpu:1, partition batch has none"),
        ({"partition": "gpu", "gres": "gpu:3"}, "gres of a node: gpu:3, partition gpu has gpu:a100:2"),
        ({"features": "ib"}, "features: ib, partition batch has none"),
        ({"partition": "gpu", "nodes": 3}, "nodes: 3, partition gpu has 2"),
        ({"partition": "gone"}, "partition gone is not on the machine"),
        ({"nodes": 6}, "nodes of a job: 6, partition batch allows 5"),
        ({"time_limit": 101.0}, "time limit: 101 s, partition batch allows 100 s"),
    ],
)
def test_a_job_that_no_nodes_serve_is_rejected_with_the_reason(job: dict[str, Any], reason: str) -> None:
    run = simulated(job, {})
    assert run.jobs["state"].tolist() == ["rejected", "completed"]
    assert run.jobs["reason"].tolist() == [reason, ""]
    assert run.info.warnings == [f"1 job rejected, since no nodes of the machine serve it: {reason}"]
    assert run.info.machine == MACHINE


def test_a_malleable_job_has_at_most_the_nodes_that_its_partition_allows() -> None:
    job = {"kind": "malleable", "nodes": 4, "nodes_min": 1, "nodes_max": 8, "nodes_pref": 6, "speedup": "linear"}
    run = simulated(job | {"run_time": 100.0, "time_limit": 100.0}, policy="pref")
    assert nodes(run, 1) == [0, 1, 2, 3, 4]
    assert run.jobs["end"].tolist() == [80.0]


def test_nodes_of_smaller_weight_are_allocated_first() -> None:
    kinds = [{"names": ["m1"], "cores": 1, "weight": 9}, {"names": ["c[1-2]"], "cores": 1, "weight": 2}]
    machine = Machine.from_json({"classes": kinds})
    run = simulated({"nodes": 2}, {}, machine=machine)
    assert (nodes(run, 1), nodes(run, 2)) == ([1, 2], [0])


def test_jobs_of_shared_nodes_hold_whole_ones_and_the_run_says_how_many() -> None:
    raw = MACHINE.to_json()
    raw["partitions"][0]["shared"] = True
    run = simulated({}, {"cores_per_node": 8}, machine=Machine.from_json(raw))
    assert run.info.warnings == ["1 jobs share nodes on this machine: they hold whole nodes here"]


@pytest.mark.parametrize("policy", [name for name in registry.names() if name != "slurm"])  # simulated in its own way
def test_one_pool_of_all_nodes_changes_nothing(policy: str) -> None:
    rng = np.random.default_rng(7)
    rows = []
    for submit in np.sort(rng.integers(0, 300, 60)).tolist():
        size = int(rng.integers(1, 7))
        kind = {"kind": "malleable", "nodes_min": 1, "nodes_max": 8, "nodes_pref": size, "speedup": "linear"}
        row = {"submit_time": submit, "run_time": float(rng.integers(1, 60)), "time_limit": 80.0, "nodes": size}
        rows.append(row | (kind if rng.random() < 0.5 else {"kind": "rigid"}))
    jobs = workload(*rows)
    kinds = [{"count": 8, "cores": 2}]
    plain = predict(jobs, Machine.from_json({"classes": kinds}), policy, engine="python")
    one = Machine.from_json({"classes": kinds, "partitions": [{"name": "only"}]})
    pooled = predict(jobs, one, policy, engine="python")
    assert pooled.jobs.equals(plain.jobs)
    assert pooled.allocations.equals(plain.allocations)
    assert pooled.reconfigurations.equals(plain.reconfigurations)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(["fcfs", "easy", "conservative", "oar", "pref", "avg", "dmr"]),
)
def test_no_job_holds_a_node_that_is_down_or_outside_its_partition(seed: int, policy: str) -> None:
    jobs, machine = in_partitions(draw(seed), seed)
    rng = random.Random(seed)
    outages = []
    for node in machine.nodes:
        if rng.random() < 0.5:
            begin = rng.uniform(0, 60)
            kind = rng.choice([OutageKind.DOWN, OutageKind.DRAIN])
            outages.append(Outage(node=node.name, start=begin, end=begin + rng.uniform(1, 60), kind=kind))
    run = predict(jobs, machine, policy, outages=Calendar(tuple(outages)))
    members = {part.name: {int(name[1:]) - 1 for name in part.nodes} for part in machine.partitions}
    partition = run.jobs.set_index("job_id")["partition"]
    assert {*run.jobs["state"]} <= {"completed", "rejected", "failed"}
    for row in run.allocations.itertuples():
        held = {*range(row.node, row.node + row.count)}
        assert held <= members[partition[row.job_id]]
        for outage in outages:
            if int(outage.node[1:]) - 1 in held:
                assert not outage.start <= row.start < outage.end or row.start == row.end
                assert outage.kind is OutageKind.DRAIN or row.end <= outage.start or row.start >= outage.end


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "pref", "dmr"])
def test_a_job_of_one_partition_waits_for_a_job_of_another(policy: str) -> None:
    rows = [
        {"run_time": 30.0, "time_limit": 40.0},
        {"partition": "gpu", "dependency": "afterok:1"},
        {"dependency": "afterok:2"},
        {"partition": "gpu", "nodes": 3},
        {"dependency": "afterok:4"},
    ]
    run = simulated(*rows, policy=policy)
    assert run.jobs["start"].tolist()[:3] == [0.0, 30.0, 40.0]
    assert run.jobs["state"].tolist() == ["completed", "completed", "completed", "rejected", "cancelled"]
    assert "4" in run.jobs["reason"].iloc[4]


def test_a_reservation_is_for_no_more_nodes_than_can_serve_the_job() -> None:
    job = {"partition": "gpu", "kind": "malleable", "nodes": 3, "nodes_min": 1, "nodes_max": 3, "nodes_pref": 3}
    job |= {"speedup": "linear", "time_limit": 100.0}
    run = predict(workload(job), MACHINE, "leak", policy_parameters={"reserve": True, "contiguous": False})
    assert run.jobs[["start", "end"]].to_numpy().tolist() == [[0.0, 15.0]]
