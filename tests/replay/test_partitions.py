"""Replays on unlike nodes: a job runs only on nodes of its partitions with the memory and the resources it demands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.documented import ROOT
from tests.oracles.redecided import complete_budget, decided
from tests.runs import by_node, replaying
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.machine.machine import Machine, Partition
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.programs import check_programs, shortest_replay
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.redecide import redecide
from tracebed.orchestrator.replay.resumption import Resumption
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.pools import on_pools
from tracebed.orchestrator.scheduling.state import Decision, Policy, State
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.testbeds.machine import InventoryMachine
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node
from tracebed.testing.virtual.provider import VirtualSettings

PARTITIONS = (
    Partition(name="batch", nodes=("c[1-3]", "m1"), default=True),
    Partition(name="big", nodes=("m1", "g1"), tier=2),
    Partition(name="gpu", nodes=("g1",)),
    Partition(name="short", most_nodes=1, limit_s=200.0),
)
SERVES = {"": "c1 c2 c3 m1", "batch": "c1 c2 c3 m1", "big": "m1 g1", "gpu": "g1", "short": "c1 c2 c3 m1 g1"}
"""Partition -> its nodes."""


def unlike(provider: str = "virtual") -> Inventory:
    """Return five nodes of three classes in four partitions."""
    nodes = (
        *(Node(f"c{n}", 2, 1, None, True, memory_mib=1000, provider=provider) for n in (1, 2, 3)),
        Node("m1", 4, 1, None, True, memory_mib=4000, features=("bigmem",), provider=provider),
        Node("g1", 4, 1, None, True, memory_mib=4000, gres={"gpu": 2}, provider=provider),
    )
    groups = (Group("test", provider, VirtualSettings(), nodes),) if provider == "virtual" else ()
    return Inventory("unlike", "agents", nodes, groups=groups, partitions=PARTITIONS, grain_s=0.02)


def jobs_of_partitions(count: int = 16, seed: int = 1) -> Workload:
    """Return jobs that demand memory, GPUs and partitions; the last one needs two GPU nodes of one."""
    rng = np.random.default_rng(seed)
    partition = rng.choice([*SERVES], count)
    size = np.where(partition == "batch", rng.integers(1, 4, count), 1)
    run_time = rng.uniform(20, 150, count)
    kind = np.where(rng.random(count) < 0.6, "malleable", "rigid")
    table = pd.DataFrame(
        {
            "job_id": [f"job {number}" for number in range(count)],
            "submit_time": np.sort(rng.uniform(0, 400, count)),
            "run_time": run_time,
            "time_limit": run_time * 1.3,
            "nodes": size,
            "cores_per_node": 2,
            "kind": kind,
            "nodes_min": np.where(kind == "malleable", 1, size),
            "nodes_max": np.where(kind == "malleable", 4, size),
            "speedup": "amdahl",
            "speedup_parameters": "0.95",
            "partition": partition,
            "memory_mib": np.where((partition == "batch") & (size == 1), 3000.0, 500.0),
            "gres": np.where(partition == "gpu", "gpu:1", ""),
        }
    )
    table.loc[count - 1, ["partition", "nodes", "nodes_min", "nodes_max", "gres"]] = ["gpu", 2, 2, 2, "gpu:1"]
    return Workload(table)


def nodes_of(run: Run) -> dict[str, set[str]]:
    """Return the nodes on which each job has run."""
    held = by_node(run)
    return {job: {run.info.nodes[node].name for node in own} for job, own in held.groupby("job_id")["node"]}


def assert_eligible(run: Run, work: Workload) -> None:
    """Check, without the pools, that each job has run on nodes that can serve it, and on no more than it may have."""
    held = nodes_of(run)
    for row in work.table.to_dict("records"):
        serves = {*SERVES[row["partition"]].split()}
        serves = serves & {"m1", "g1"} if row["memory_mib"] > 1000 else serves
        assert held.get(row["job_id"], set()) <= serves
    short = set(work.table.loc[work.table["partition"] == "short", "job_id"])
    together = run.reconfigurations[run.reconfigurations["job_id"].isin(short)]
    assert (together["nodes_to"] <= 1).all()


@pytest.mark.parametrize(
    ("policy", "provider"),
    [*((name, "virtual") for name in ("fcfs", "easy", "conservative", "pref", "dmr", "sd")), ("min", "local")],
)
def test_jobs_run_where_their_demands_allow(tmp_path: Path, policy: str, provider: str) -> None:
    work, inventory = jobs_of_partitions(), unlike(provider)
    run = replay(work, inventory, policy, tmp_path / "run", **replaying(200))
    states = run.jobs.set_index("job_id")
    assert dict(states["state"].value_counts()) == {"completed": 15, "rejected": 1}
    assert states.loc["job 15", "reason"] == "nodes: 2, partition gpu has 1"
    assert_eligible(run, work)
    assert len(set.union(*nodes_of(run).values())) == 5

    machine = InventoryMachine.of(inventory)
    again = Run.load(tmp_path / "run")
    assert again.info.machine is not None
    assert again.info.machine.digest == machine.digest == tb.simulate(work, policy, inventory).info.machine.digest
    assert type(again.info.machine) is Machine

    path = tmp_path / "run" / JOURNAL
    pd.testing.assert_frame_equal(recovered(path).jobs, run.jobs)
    jobs, pools = on_pools(work, machine, Jobs.of(work, cores_per_node=4), registry.load(policy))
    scheduling = Setup.of(policy).scheduling
    once_more = redecide(journal.read(path)[1], jobs, inventory.facts, registry.load(policy), scheduling, pools)
    assert [*once_more] == decided(path)


def test_a_question_to_the_scheduler_calls_no_policy(tmp_path: Path) -> None:
    """When the limit of a job ends was an event of its pool: a replay asks in each round, and a re-decision does not.

    Found by seed 13 of the scenarios on partitions: the policy `oar` decided otherwise after a resumption.
    """

    def counted(calls: list[tuple[float, int]]) -> Policy:
        policy = registry.load("fcfs")
        decide = policy.decide

        def note(state: State) -> Iterator[Decision]:
            calls.append((state.now, state.total))
            return decide(state)

        object.__setattr__(policy, "decide", note)  # the policy is frozen
        return policy

    table = jobs_of_partitions(12).table.assign(partition=["gpu", "batch"] * 6, gres="", memory_mib=500.0)
    work = Workload(table.assign(nodes=1, nodes_min=1, nodes_max=1, kind="rigid"))
    inventory = replace(unlike(), partitions=(PARTITIONS[0], PARTITIONS[2]))
    calls: list[tuple[float, int]] = []
    replay(work, inventory, counted(calls), tmp_path / "run", **replaying(200, over_limit="kill"))
    again: list[tuple[float, int]] = []
    jobs = Jobs.of(work, cores_per_node=4, over_limit=OverLimit.KILL)
    jobs, pools = on_pools(work, InventoryMachine.of(inventory), jobs, registry.load("fcfs"))
    assert pools.disjoint
    entries = journal.read(tmp_path / "run" / JOURNAL)[1]
    list(redecide(entries, jobs, inventory.facts, counted(again), Setup.of("fcfs").scheduling, pools))
    assert calls == again and {total for _, total in calls} == {1, 4}


@pytest.mark.parametrize("policy", ["easy", "pref"])
def test_the_error_budget_of_a_replay_on_partitions_leaves_nothing(tmp_path: Path, policy: str) -> None:
    work = jobs_of_partitions(seed=2)
    replay(work, unlike(), policy, tmp_path / "run", **replaying(200))
    complete_budget(work, tmp_path / "run")


def test_a_prediction_on_the_inventory_has_the_nodes_of_the_replay(tmp_path: Path) -> None:
    """At a speed at which launches take no time, the rigid jobs start in the same order on the same nodes."""
    work, inventory = jobs_of_partitions(seed=3), unlike()
    run = replay(work, inventory, "easy", tmp_path / "run", **replaying(1))
    predicted = tb.simulate(work, "easy", inventory)
    assert nodes_of(predicted) == nodes_of(run)
    np.testing.assert_allclose(predicted.jobs["start"], run.jobs["start"], atol=3.0)


POLICIES = ("fcfs", "firstfit", "easy", "conservative", "oar", "pref", "keep-pref", "min", "avg", "dmr")


@pytest.mark.parametrize("policy", POLICIES)
def test_the_twenty_jobs_of_the_page_on_the_shipped_machine(tmp_path: Path, policy: str) -> None:
    """On virtual nodes in place of the containers. The replay has the schedule of the prediction but for launches."""
    work, shipped = tb.read(ROOT / "docs/reference/twenty.csv"), tb.inventory("partitions")
    nodes = tuple(replace(node, provider="virtual") for node in shipped.nodes)
    inventory = replace(shipped, nodes=nodes, groups=(Group("boxes", "virtual", VirtualSettings(), nodes),))
    run = replay(work, inventory, policy, tmp_path / "run", **replaying(20))
    assert run.info.counts == {"jobs": 20, "completed": 20}
    held, own = nodes_of(run), run.info.machine
    assert own is not None
    partitions = {part.name: {*part.names} or {node.name for node in nodes} for part in own.partitions}
    facts = {node.name: node for node in nodes}
    for row in work.table.to_dict("records"):
        served = set.union(*(partitions[name] for name in (row["partition"] or "batch").split(",")))
        assert held[row["job_id"]] <= served
        assert all(facts[name].memory_mib >= row["memory_mib"] for name in held[row["job_id"]])
        assert all(facts[name].gres or "gpu" not in row["gres"] for name in held[row["job_id"]])
        assert row["features"] in ("", *set.union(*({*facts[name].features} for name in held[row["job_id"]])))
    predicted = tb.simulate(work, policy, "partitions", speed=20)
    assert predicted.metrics()["mean_wait_s"] == pytest.approx(run_wait(run), rel=0.15)


def run_wait(run: Run) -> float:
    """Return the mean wait, s."""
    return float((run.jobs["start"] - run.jobs["submit"]).mean())


def test_a_plain_inventory_records_no_machine(tmp_path: Path) -> None:
    plain = replace(unlike(), partitions=(), nodes=unlike().nodes[:4], groups=())
    plain = replace(
        plain,
        nodes=tuple(replace(node, features=(), memory_mib=500, provider="local") for node in plain.nodes),
        groups=(),
    )
    assert InventoryMachine.of(plain).plain
    work = Workload(jobs_of_partitions(4).table.assign(nodes=1, nodes_min=1, nodes_max=1, gres="", partition=""))
    run = replay(work, plain, "easy", tmp_path / "run", **replaying(400))
    assert run.info.machine is None and "machine" not in run.info.as_dict()


def test_a_replay_is_not_resumed_with_other_partitions(tmp_path: Path) -> None:
    work = jobs_of_partitions(6)
    replay(work, unlike(), "easy", tmp_path / "run", **replaying(400))
    past = Resumption(tmp_path / "run" / JOURNAL)
    facts = journal.read(tmp_path / "run" / JOURNAL)[0]
    past.check(facts)
    other = replace(unlike(), partitions=PARTITIONS[:3])
    facts["info"]["machine"] = InventoryMachine.of(other).to_json()
    with pytest.raises(InputError, match="the killed replay differs in: machine"):
        past.check(facts)


def test_slurm_decides_on_equal_nodes_only_in_a_replay(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the policy slurm decides on equal nodes in a replay"):
        replay(jobs_of_partitions(2), unlike(), "slurm", tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_the_memory_of_a_program_must_fit_the_nodes_of_its_partition() -> None:
    """The nodes with the most memory do not count if they are not of the partition of the job."""
    nodes = tuple(replace(node, emulated=False, cpus=(0,), cores=1, provider="ssh") for node in unlike().nodes)
    inventory = Inventory("i", "agents", nodes, partitions=PARTITIONS)
    work = Workload(
        pd.DataFrame(
            {"job_id": ["a", "b"], "submit_time": 0.0, "run_time": 9.0, "nodes": [1, 2], "partition": ["gpu", "gpu"]}
        )
    )
    jobs = Jobs.of(work, cores_per_node=1)
    jobs, pools = on_pools(work, InventoryMachine.of(inventory), jobs, registry.load("easy"))
    assert pools.of.tolist() == [0, -1]
    check_programs(jobs, inventory, pools)
    jobs = jobs.with_columns(memory_mib=np.array([5000.0, 1.0]))
    with pytest.raises(InputError, match="needs 5000 MiB on each of 1 nodes, and the nodes have 4000 MiB"):
        check_programs(jobs, inventory, pools)


def test_jobs_that_no_nodes_serve_do_not_count_for_the_least_time() -> None:
    work = jobs_of_partitions(2)
    table = work.table.assign(submit_time=0.0, run_time=[50.0, 5000.0])
    on_one = table.assign(nodes=1, nodes_min=1, nodes_max=1)
    assert shortest_replay(Workload(table), unlike(), 1.0) < 100.0 < shortest_replay(Workload(on_one), unlike(), 1.0)
