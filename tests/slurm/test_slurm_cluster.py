"""Slurm on nodes that jobs share: each rule, both simulators against each other, and real runs by other people."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.oracles import slurm_cases
from tests.oracles.slurm_simulation.accounting import FairShare
from tests.oracles.slurm_simulation.nodes import Nodes
from tests.oracles.slurm_simulation.simulator import siblings
from tracebed.cli import tracebed
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import FloatArray, Provenance, System, Workload
from tracebed.ground.errors import InputError, Tolerated
from tracebed.machine.features import satisfies
from tracebed.machine.sources import recorded_machine
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.slurm.conf import read
from tracebed.slurm.database import Database, Limits, Qos
from tracebed.slurm.gres import counted_gres, demanded_gres, gres_of, kept_gres
from tracebed.slurm.machine import Alike, Partition, SlurmCluster, SlurmMachine, Weights, duration_s
from tracebed.slurm.simulation import engine
from tracebed.slurm.simulation.factors import size_factor
from tracebed.slurm.simulation.feasibility import fits
from tracebed.slurm.simulation.inputs import BACK, DOWN, DRAINED, LOST, Associations, Entries, NodeChange
from tracebed.slurm.simulation.resources import ALL, Request, Switches
from tracebed.slurm.simulation.start_conditions import ignored
from tracebed.studies.board.conversions import notebook_tables
from tracebed.studies.board.datasets import fetch


def resources(cores: list[int], **other: Any) -> Nodes:
    """Return nodes with `cores` free cores of 12 each."""
    count = len(cores)
    usual = {"switches": None, "weights": [1] * count, "total_memory": [1000] * count, "gres": [(0,)] * count}
    facts = {**usual, **other}
    return Nodes(
        cores, [*facts["total_memory"]], [*facts["gres"]], [12] * count, facts["total_memory"], facts["switches"],
        facts["weights"],
    )  # fmt: skip


def request(cores: int, **other: Any) -> Request:
    return Request(cores, **{"gres": (0,), **other})


# -- the choice of nodes ----------------------------------------------------------------------------------------------


def test_tasks_per_node_wait_for_a_node_and_other_cores_spread() -> None:
    half = resources([6, 6, 6, 6])  # as tried on Slurm 22.05.8: sbatch -n 12 --ntasks-per-node=12, and sbatch -n 12
    assert half.choose(request(12, per_node=12), 15) is None
    assert half.choose(request(12), 15) == {0: 6, 1: 6}
    assert half.choose(request(8, per_node=4), 15) == {0: 4, 1: 4}


def test_the_switch_with_the_fewest_usable_nodes_is_chosen() -> None:
    tree = resources([12, 12, 12, 12, 12], switches=Switches.of([0b111, 0b11000, 0], [[], [], [0, 1]]))
    assert tree.choose(request(12), 31) == {3: 12}
    assert tree.choose(request(36, fewest=3), 31) == {0: 12, 1: 12, 2: 12}
    assert tree.choose(request(48), 31) == {3: 12, 4: 12, 0: 12, 1: 12}


def test_nodes_of_a_smaller_weight_come_first() -> None:
    weighted = resources([12, 12, 12], weights=[3, 1, 2])
    assert weighted.choose(request(12), 7) == {1: 12}
    assert weighted.choose(request(24), 7) == {1: 12, 2: 12}


def test_jobs_with_generic_resources_compare_the_cores_that_they_can_use() -> None:
    beside, apart = resources([12, 3], gres=[(2,), (2,)]), resources([12, 0, 3], gres=[(2,), (2,), (2,)])
    assert beside.choose(request(2, gres=(1,)), 3) == {1: 2}
    assert beside.choose(request(1), 3) == {1: 1}
    assert beside.choose(request(1, gres=(1,)), 3) == {0: 1}  # one of each node
    assert apart.choose(request(1), 7) == {2: 1}
    assert apart.choose(request(1, gres=(1,)), 7) == {0: 1}
    assert apart.choose(request(2, gres=(1,), per_node=2), 7) == {0: 2}


@given(st.integers(0, 10**9))
def test_a_job_fits_if_nodes_of_the_empty_cluster_can_be_chosen_for_it(seed: int) -> None:
    draw, empty = Random(seed), Nodes.of(slurm_cases.drawn(seed)[0].free)
    for _ in range(20):
        asked = slurm_cases._request(draw, draw.randint(1, (1 << len(empty.total)) - 1), max(empty.total))
        chosen = empty.choose(asked, asked.eligible)
        assert fits(empty, asked) == (chosen is not None), asked


def test_memory_and_generic_resources_limit_a_node() -> None:
    free = resources([12, 12], gres=[(0,), (2,)])
    assert free.choose(request(1, gres=(1,)), 3) == {1: 1}
    assert free.choose(request(4, memory=300, by_core=True), 3) == {0: 3, 1: 1}
    assert free.choose(request(1, memory=1001), 3) is None
    alone = request(1, memory=ALL)
    parts = free.choose(alone, 3)
    assert parts == {0: 1}
    free.take(alone, parts)
    assert free.memory == [0, 1000]
    assert free.choose(alone, 1) is None
    free.release(alone, parts)
    assert free.memory == [1000, 1000]


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=8),
    st.integers(1, 40),
    st.integers(0, 12),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_choice_has_all_cores_and_no_core_twice(
    cores: list[int], wanted: int, per_node: int, fewest: int, tree: bool
) -> None:
    leaves = [mask_of(range(leaf, len(cores), 3)) for leaf in range(3)]
    free = resources(cores, switches=Switches.of([*leaves, 0], [[], [], [], [0, 1, 2]]) if tree else None)
    asked = request(wanted, per_node=per_node, fewest=fewest)
    parts = free.choose(asked, (1 << len(cores)) - 1)
    capacity = [free.capacity(asked, node) for node in range(len(cores))]
    if parts is None:
        assert sum(capacity) < wanted or sum(size > 0 for size in capacity) < fewest or wanted < fewest
        return
    assert sum(parts.values()) == wanted
    assert len(parts) >= fewest
    assert all(0 < taken <= capacity[node] for node, taken in parts.items())


# -- priorities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "cores", "priority"), [(1, 12, 50000), (1, 48, 125000), (3, 36, 150000), (1, 1, 27083)]
)
def test_the_factor_of_the_size_is_that_of_slurm(nodes: int, cores: int, priority: int) -> None:
    # sprio of Slurm 22.05.8 on 4 nodes of 12 cores with PriorityWeightJobSize=200000
    assert math.floor(200000 * size_factor(nodes, cores, 4, 48)) == priority


TREE = Associations(
    parent=[0, 0, 0, 0, 2, 2, 3, 3],  # root, its user, two accounts, and two users of each
    shares=[1] * 8,
    is_user=[False, True, False, False, True, True, True, True],
)


def test_fair_tree_ranks_accounts_before_users() -> None:
    tree = FairShare(replace(TREE, half_life_s=3600.0), 0)
    for user, cores in ((4, 10), (5, 1), (6, 3)):
        tree.use(user, cores, 0, 100)
    tree.update([], 100)
    assert tree.factors[4:] == [1 / 5, 2 / 5, 3 / 5, 4 / 5]  # the account of users 6 and 7 has used less
    tree.update([(7, 100, 100)], 3700)
    assert tree.factors[4:] == [3 / 5, 4 / 5, 2 / 5, 1 / 5]
    assert tree.usage[3] == pytest.approx(tree.usage[6] + tree.usage[7])


def test_users_with_equal_usage_have_equal_factors() -> None:
    assert FairShare(TREE, 0).factors[4:] == [1.0] * 4
    tree = FairShare(TREE, 0)
    for user in (4, 5):
        tree.use(user, 1, 0, 10)
    tree.update([], 10)
    assert tree.factors[4:] == [2 / 5, 2 / 5, 1.0, 1.0]


def test_usage_decays_as_in_slurm() -> None:
    # log of Slurm 22.05.8 with a half-life of 20 minutes: factor 0.999422500 a second; 41 s of 3 cores and a usage
    # factor of 0.5 are 60.060527, 41 s with a billing of 5.9765625 are 239.303662
    tree = FairShare(replace(TREE, half_life_s=1200.0), 0)
    tree.use(4, 3 * 0.5, 19, 60)
    tree.use(6, 5.9765625, 19, 60)
    assert tree.usage[4] == pytest.approx(60.060527, abs=1e-6)
    assert tree.usage[6] == pytest.approx(239.303662, abs=1e-6)
    tree.update([], 60)
    assert tree.usage[4] == pytest.approx(60.060527 * 0.965933769184245, abs=1e-6)


def test_usage_is_reset() -> None:
    tree = FairShare(replace(TREE, resets=(50, 100)), 0)
    tree.use(4, 1, 0, 40)
    tree.update([], 60)
    assert tree.usage == [0.0] * 8
    tree.update([(4, 1, 70)], 90)
    tree.update([], 100)
    assert tree.usage == [0.0] * 8


# -- slurm.conf -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("1:30", 90), ("2:00:00", 7200), ("0-4", 14400), ("7-0", 604800), ("1-2:30", 95400), ("infinite", 0)],
)
def test_times_of_slurm(text: str, seconds: int) -> None:
    assert duration_s(text, "") == seconds


def test_no_invalid_time_is_read() -> None:
    with pytest.raises(InputError, match="'soon' is not a time"):
        duration_s("soon", "slurm.conf:1")


def test_generic_resources_of_all_types_are_added() -> None:
    found = gres_of("gpu:a100:2,gpu:v100:1(S:0),nvme,gres:lic:3")
    assert found == {"gpu": 3, "gpu:a100": 2, "gpu:v100": 1, "nvme": 1, "lic": 3}


@pytest.mark.parametrize(
    ("text", "gres"),
    [
        ("bw:4K", {"bw": 4096}),
        ("bw:no_consume:4g", {"bw": 2**32}),
        ("bw:lustre:no_consume:2M", {"bw": 2**21, "bw:lustre": 2**21}),
        ("gres/gpu:a100=2", {"gpu": 2, "gpu:a100": 2}),
        ("PER_NODE:gpu:tesla", {"gpu": 1, "gpu:tesla": 1}),
        ("gpu:1g.5gb:2", {"gpu": 2, "gpu:1g.5gb": 2}),
        ("none", {}),
        ("(null)", {}),
    ],
)
def test_counts_of_generic_resources_have_suffixes_types_and_flags(text: str, gres: dict[str, int]) -> None:
    assert gres_of(text) == gres
    assert kept_gres(text) == (tuple(gres) if "no_consume" in text else ())


def test_a_type_counts_if_the_cluster_has_others() -> None:
    one, two = [{"gpu": 4, "gpu:a100": 4}], [{"gpu": 4, "gpu:a100": 4}, {"gpu": 2, "gpu:v100": 2}]
    assert counted_gres(one) == ("gpu",)
    assert counted_gres(two) == ("gpu", "gpu:a100", "gpu:v100")
    assert demanded_gres("gpu:a100:2", one, ("gpu",)) == {"gpu": 2}
    assert demanded_gres("gpu:a100:2", two, counted_gres(two)) == {"gpu": 2, "gpu:a100": 2}
    assert demanded_gres("gpu:h100:2", one, ("gpu",)) == {"gpu": 2, "gpu:h100": 2}  # the cluster has none
    assert demanded_gres("gpu:h100:2", [{"gpu": 4}], ("gpu",)) == {"gpu": 2}  # types are in gres.conf at most


def test_features_are_joined_by_and_and_or() -> None:
    has = ("ib", "big")
    assert satisfies(has, "")
    assert satisfies(has, "ib&big")
    assert not satisfies(has, "ib&gpu")
    assert satisfies(has, "gpu|big")
    assert satisfies(has, "ib&(gpu|big)")
    assert not satisfies(has, "(ib|gpu)&fast")


def test_a_job_of_several_kinds_of_nodes_may_have_a_node_of_each() -> None:
    assert satisfies(("ib",), "[ib*2&big*1]")
    assert satisfies(("big",), "[ib*2&big*1]")
    assert satisfies(("rack2", "ib"), "ib&[rack1|rack2]")
    assert not satisfies(("rack3", "ib"), "ib&[rack1|rack2]")
    assert satisfies(("ib",), "ib*4")


@pytest.mark.parametrize("text", ["ib&", "|ib", "[ib", "ib]", "ib)", "ib big", "()", "ib&&big"])
def test_no_invalid_features_are_read(text: str) -> None:
    with pytest.raises(InputError, match="are invalid"):
        satisfies(("ib", "big"), text)


def test_no_partition_has_an_unknown_node(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("NodeName=n[1-2] CPUs=4\nPartitionName=main Nodes=n[1-3]\n")
    with pytest.raises(InputError, match="partition main has the unknown node n3") as error:
        read(path)
    assert str(path) + ":2" in str(error.value)


def test_settings_of_heterogeneous_jobs_are_named_for_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    text = "SchedulerParameters=bf_hetjob_prio=min\nSelectType=select/{}\nNodeName=n[1-2] CPUs=4\n"
    for select, named in (("cons_tres", True), ("linear", False)):
        path.write_text(f"{text.format(select)}PartitionName=main Nodes=ALL\n")
        assert any("bf_hetjob_prio" in each for each in read(path).differences) is named


def cluster(folder: Path, text: str, *more: Path) -> SlurmCluster:
    """Return the cluster of a slurm.conf."""
    path = folder / "slurm.conf"
    path.write_text(text)
    found = read(path, *more).cluster
    assert found is not None
    return found


def test_a_partition_names_a_set_of_nodes(tmp_path: Path) -> None:
    text = "NodeName=a[1-2] CPUs=4 Feature=big,ib\nNodeName=b[1-3] CPUs=4\nNodeSet=large Feature=big Nodes=b3\n"
    found = cluster(tmp_path, f"{text}PartitionName=main Nodes=large,b1\nPartitionName=all Nodes=ALL\n")
    assert [found.nodes[node][0] for node in found.members(0)] == ["a1", "a2", "b1", "b3"]
    assert len(found.members(1)) == 5
    with pytest.raises(InputError, match="NodeSet none has no nodes"):
        cluster(tmp_path, f"{text}NodeSet=none Feature=fast\nPartitionName=main Nodes=none\n")


def test_future_nodes_and_special_resources_are_not_for_jobs(tmp_path: Path) -> None:
    text = "NodeName=a[1-2] Sockets=2 CoresPerSocket=8 ThreadsPerCore=2 RealMemory=1000 MemSpecLimit=200 "
    found = cluster(
        tmp_path,
        f"{text}CpuSpecList=0-1,16,17\nNodeName=b1 CPUs=16 CoreSpecCount=2\nNodeName=c[1-9] CPUs=4 State=FUTURE\n"
        "PartitionName=main Nodes=a[1-2],c[1-9]\nPartitionName=other Nodes=b1\n",
    )
    assert [(name, kind.cores, kind.memory_mib) for name, kind in found.nodes] == [
        ("a1", 14, 800),
        ("a2", 14, 800),
        ("b1", 14, 1),
    ]
    assert found.members(0) == [0, 1]
    assert not any("FUTURE" in text or "Spec" in text for text in read(tmp_path / "slurm.conf").differences)


def test_a_limit_of_cpus_is_one_of_cores_with_hardware_threads(tmp_path: Path) -> None:
    """Slurm counts the threads of a core as CPUs: in limits, in the memory of a job and in billing."""
    qos = tmp_path / "qos.txt"
    qos.write_text("Name|Priority|MaxTRES|MinTRES\nnormal|0|cpu=9,node=4|cpu=3\n")
    text = "NodeName=a[1-2] Sockets=1 CoresPerSocket=8 ThreadsPerCore=2 RealMemory=1000\nDefMemPerCPU=10\n"
    text += 'PartitionName=main Nodes=ALL TRESBillingWeights="CPU=1.5,Mem=0.25G"\nPartitionName=other Nodes=ALL\n'
    found = cluster(tmp_path, text, qos)
    assert found.database.qos[0].limits.job_tres == {"cpu": 4, "node": 4}
    assert found.database.qos[0].limits.least_tres == {"cpu": 2}
    main, other = found.partitions
    assert (main.memory_per_core_mib, main.billing["cpu"], other.billing) == (20, 3.0, {"cpu": 2.0})


def test_a_job_larger_than_its_partition_or_than_any_node_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text(
        "NodeName=a[1-4] CPUs=4\nPartitionName=main Nodes=ALL MaxNodes=2 MaxTime=60\nSelectType=select/cons_tres"
    )
    table = {"job_id": ["1", "2", "3"], "submit_time": [0.0] * 3, "run_time": [5.0] * 3, "time_limit": [60.0] * 3}
    table |= {"nodes": [2, 3, 1], "cores_per_node": [4, 1, 5]}
    run = predict(Workload(pd.DataFrame(table), Provenance()), read(path).machine, "slurm")
    reasons = run.jobs.set_index("job_id")["reason"]
    assert reasons["1"] == ""
    assert reasons["2"].startswith("PartitionNodeLimit")
    never = "no nodes of its partition can ever run it: 5 cores on a node are demanded, and a node has 4 at most"
    assert reasons["3"] == never


# -- the two simulators -----------------------------------------------------------------------------------------------


def check_engines(seed: int) -> None:
    kept, policy = slurm_cases.drawn(seed)
    if not kept.requests:
        return
    assert not slurm_cases.compared(seed)
    outcome = engine.simulate(replace(kept, watched=0), policy)
    conditions = kept.conditions
    entries = kept.entries or Entries.of(range(len(outcome.end)))
    for job, first in enumerate(entries.first):
        ended = [each for each in siblings(entries, job) if not math.isnan(outcome.end[each])]
        assert len(ended) < 2 or job != first
        # only a job with a dependency, a limit, a deadline or components, or in a reservation, may never start
        inside = (kept.bookings and kept.bookings.inside[job] >= 0) or kept.deadline or kept.het_job
        assert ended or inside or (conditions and conditions.dependencies[job]) or kept.limits.counters
    until = engine.simulate(kept, policy)  # it ends when the watched jobs have started
    if not any(outcome.restarts):
        assert repr(until.start[: kept.watched]) == repr(outcome.start[: kept.watched])  # NaN differs from itself
    stints = [
        *((stint.parts, stint.start, stint.end) for stint in outcome.stints),
        *zip(outcome.parts, outcome.active, outcome.end, strict=True),
    ]
    for node, cores in enumerate(kept.free.total):
        changes = [
            (when, sign * parts[node])
            for parts, start, end in stints
            if node in parts
            for when, sign in ((end, -1), (start, 1))
        ]
        held = np.cumsum([change for _, change in sorted(changes)])
        assert not len(held) or held.max() <= cores


@given(st.integers(0, 10**9))
@example(320)  # a job that was suspended and resumed at once ended twice
def test_compiled_and_python_are_equal_and_no_core_is_held_twice(seed: int) -> None:
    check_engines(seed)


@pytest.mark.slow
@settings(max_examples=150)  # each without and with outages, and beside a layer
@given(st.integers(0, 10**9))
def test_compiled_and_python_are_equal_in_many_cases(seed: int) -> None:
    check_engines(seed)


def out(changes: Sequence[NodeChange], nodes: int) -> Iterator[tuple[int, float, float, int]]:
    """Yield node, begin, end and kind of each time in which a node has one kind of outage."""
    for node in range(nodes):
        own = [*(change for change in changes if change.node == node), NodeChange(math.inf, node, BACK)]
        for change, after in itertools.pairwise(own):
            if change.kind != BACK and change.at < after.at:
                yield node, change.at, after.at, change.kind


@given(st.integers(0, 10**9))
def test_no_job_starts_on_a_node_that_is_out_or_runs_on_one_that_is_down(seed: int) -> None:
    """A job that is lost or requeued has held a node until the instant at which the node went down."""
    inputs, policy = slurm_cases.drawn(seed)
    if not inputs.requests:
        return
    inputs = slurm_cases.with_outages(seed, replace(inputs, preemption=None, watched=0))
    assert inputs.availability is not None
    outcome = engine.simulate(inputs, policy)
    held = [(stint.parts, stint.start, stint.end) for stint in outcome.stints]
    held += [*zip(outcome.parts, outcome.start, outcome.end, strict=True)]
    downs = {(change.at, change.node) for change in inputs.availability.changes if change.kind == DOWN}
    for parts, start, end in held:
        for node, begin, until, kind in out(inputs.availability.changes, len(inputs.free.total)):
            if node in parts and end > start > inputs.begin_s:
                assert not begin <= start < until, (node, begin)
                assert kind == DRAINED or not (start < until and end > begin), (node, begin)
    for stint in outcome.stints:
        assert any((stint.end, node) in downs for node in stint.parts)
    for job, fate in enumerate(outcome.fate):
        if fate == LOST and not math.isnan(outcome.end[job]):
            assert not inputs.availability.requeues
            assert any((outcome.end[job], node) in downs for node in outcome.parts[job])


@pytest.mark.parametrize(("library", "error"), [("missing.so", "no C compiler"), ("slurm.c", "belongs to another")])
def test_without_the_compiled_simulation_an_error_says_what_to_install(
    library: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LIBRARY", engine.LIBRARY.with_name(library))
    engine._functions.cache_clear()
    with pytest.raises(InputError, match=error) as raised:
        engine.simulate(*slurm_cases.drawn(1))
    assert "install" in str(raised.value.hint)


# -- runs -------------------------------------------------------------------------------------------------------------

CLUSTER = SlurmCluster(
    kinds=(
        Alike(names="n[1-2]", cores=4, memory_mib=1000),
        Alike(names="g1", cores=4, gres={"gpu": 2}, memory_mib=1000),
    ),
    partitions=(
        Partition(name="main", nodes="n[1-2]", default=True, memory_per_core_mib=250),
        Partition(name="gpu", nodes="g1", memory_per_core_mib=250),
    ),
    shared=True,
    memory=True,
    weights=Weights(job_size=1000),
)


def workload_of(**columns: Any) -> Workload:
    table = pd.DataFrame({name: values for name, values in columns.items() if isinstance(values, list)})
    table.insert(0, "job_id", [str(job) for job in range(1, len(table) + 1)])
    return Workload(table.assign(time_limit=600.0), Provenance(system=System(3, 4)))


def test_jobs_share_nodes_and_wait_in_their_partition() -> None:
    workload = workload_of(
        submit_time=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        run_time=[100.0] * 7,
        nodes=[1] * 7,
        cores_per_node=[3, 3, 2, 1, 4, 4, 1],
        partition=["", "main", "", "", "gpu", "gpu", "none"],
        gres=["", "", "", "", "gpu:1", "gpu:3", ""],
    )
    run = predict(workload, SlurmMachine.of(CLUSTER), "slurm", over_limit=OverLimit.KILL)
    jobs = run.jobs.set_index("job_id")
    waits = (jobs["start"] - jobs["submit"])[["1", "2", "5"]]
    assert ((waits >= 0.0) & (waits < 4.5)).all()  # until the next pass
    assert 30.0 <= jobs["start"]["4"] < 36.0  # beside 1 or 2, by a backfill pass, since 3 comes first
    assert 100.0 <= jobs["start"]["3"] < 108.0
    assert jobs["reason"]["6"].endswith(
        ": 3 of the generic resource gpu on a node are demanded, and a node has 2 at most"
    )
    assert jobs["reason"]["7"] == "the cluster has no partition none"
    assert [node.name for node in run.info.nodes] == ["n1", "n2", "g1"]
    held = run.allocations.set_index("job_id")
    assert held["cores"][["1", "2", "4", "5"]].tolist() == [3, 3, 1, 4]
    assert held["node"]["5"] == 2


def test_a_job_of_several_partitions_starts_in_the_first_that_has_room() -> None:
    workload = workload_of(
        submit_time=[0.0, 1.0, 2.0, 3.0, 3.0, 5.0],
        run_time=[100.0, 200.0, 50.0, 20.0, 20.0, 20.0],
        nodes=[1, 2, 1, 1, 1, 1],
        cores_per_node=[4] * 6,
        partition=["gpu", "main", "gpu,main", "main,none", "main,gpu", "gpu"],
        array=["", "", "", "7", "7", ""],
        dependency=["", "", "", "", "", "afterany:5"],
    )
    run = predict(workload, SlurmMachine.of(CLUSTER), Slurm(seed=3), over_limit=OverLimit.KILL)
    start = run.jobs.set_index("job_id")["start"]
    assert 100.0 <= start["3"] < 106.0
    assert 150.0 <= start["5"] < 156.0  # after job 3, in the partition gpu
    assert 200.0 <= start["4"] < 206.0
    assert 170.0 <= start["6"] < 206.0
    assert run.allocations.set_index("job_id")["node"][["3", "5"]].tolist() == [2, 2]
    assert set(run.jobs["state"]) == {"completed"}
    all_of = CLUSTER.model_copy(update={"all_partitions": True})
    run = predict(workload, SlurmMachine.of(all_of), "slurm", over_limit=OverLimit.KILL)
    assert run.jobs.set_index("job_id")["reason"]["4"] == "the cluster has no partition none"


def test_a_heterogeneous_job_starts_together_or_not_at_all() -> None:
    columns: dict[str, Any] = {"extra_het_job": ["", "2", "2", "", "5", "5"], "cores_per_node": [4, 1, 4, 1, 1, 9]}
    columns |= {"submit_time": [0.0, 1, 1, 2, 3, 3], "run_time": [50.0] * 6, "nodes": [1] * 6}
    workload = workload_of(**columns)
    jobs = predict(workload, SlurmMachine.of(CLUSTER), "slurm", over_limit=OverLimit.KILL).jobs
    start = jobs.set_index("job_id")["start"]
    assert start["2"] == start["3"] >= 50.0 and start["4"] >= start["2"]
    reasons = jobs.set_index("job_id")["reason"]
    assert reasons["5"] == "another component of its heterogeneous job is rejected"
    assert reasons["6"].startswith("no nodes of its partition can ever run it: 9 cores on a node are demanded")
    assert ignored(workload) == ["4 components of heterogeneous jobs start one by one, not together"]


HET_LOG = """\
JobID|User|Account|Partition|Submit|Start|End|Elapsed|Timelimit|State|NNodes|NCPUS|ReqNodes
1|ann|a|main|2026-11-28T05:24:01|2026-11-28T05:24:02|2026-11-28T05:24:05|00:00:03|00:01:00|COMPLETED|4|16|4
3+0|ann|a|main|2026-11-28T05:24:10|2026-11-28T05:24:58|2026-11-28T05:25:05|00:00:07|00:02:00|COMPLETED|1|1|1
3+1|ann|a|main|2026-11-28T05:24:10|2026-11-28T05:24:58|2026-11-28T05:25:05|00:00:07|00:02:00|COMPLETED|1|2|1
5|ann|a|main|2026-11-28T05:24:10|2026-11-28T05:24:59|2026-11-28T05:25:05|00:00:06|00:01:00|COMPLETED|1|1|1
"""


def test_the_components_of_a_log_of_sacct_start_together(tmp_path: Path) -> None:
    """As Slurm 22.05.8 did: a backfill pass 57 s after the first submission starts them, and job 5."""
    path = tmp_path / "log.txt"
    path.write_text(HET_LOG)
    with pytest.warns(Tolerated):
        log = read_workload(path)
    conf = "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSchedulerParameters=bf_interval=60\n"
    machine = cluster(tmp_path, f"{conf}NodeName=n[1-4] CPUs=4\nPartitionName=main Nodes=ALL\n")
    policy = Slurm(bf_interval=60, seed=1)
    start = predict(log, SlurmMachine.of(machine), policy, over_limit=OverLimit.KILL).jobs.set_index("job_id")["start"]
    assert start["3+0"] == start["3+1"] == start["5"] == pytest.approx(58.5, abs=4.0)


def test_a_job_of_several_partitions_is_refused_once_with_the_reason() -> None:
    """A limit of submitted jobs counts a job once, and its reason is that of the job."""
    qos = Qos(name="normal", limits=Limits(user_submit=2))
    machine = CLUSTER.model_copy(update={"enforced": ("limits",), "database": Database(qos=(qos,))})
    columns = {"submit_time": [0.0, 1.0, 2.0], "run_time": [50.0] * 3, "nodes": [1] * 3, "cores_per_node": [4] * 3}
    workload = workload_of(**columns, partition=["main,gpu"] * 3)
    jobs = predict(workload, SlurmMachine.of(machine), "slurm", over_limit=OverLimit.KILL).jobs
    assert jobs["state"].tolist() == ["completed", "completed", "rejected"]
    assert jobs["reason"][2].startswith("QOSMaxSubmitJobPerUserLimit")


def test_a_job_is_killed_at_its_limit_or_gets_more_time() -> None:
    workload = workload_of(submit_time=[0.0], run_time=[900.0], nodes=[1], cores_per_node=[1])
    machine, policy = SlurmMachine.of(CLUSTER), Slurm(seed=4)
    killed = predict(workload, machine, policy, over_limit=OverLimit.KILL).jobs
    assert killed["state"][0] == "killed"
    assert 600.0 <= killed["end"][0] - killed["start"][0] <= 630.0
    more = predict(workload, machine, policy).jobs
    assert more["end"][0] - more["start"][0] == pytest.approx(900.0)
    with pytest.raises(InputError, match="--over-limit now is not modeled"):
        predict(workload, machine, policy, over_limit=OverLimit.NOW)
    with pytest.raises(InputError, match="simulated by the compiled engine only"):
        predict(workload, machine, policy, engine="python")


def test_a_job_whose_memory_fits_on_no_nodes_is_rejected() -> None:
    main = CLUSTER.partitions[0].model_copy(update={"memory_per_core_mib": 500})  # for two of the four cores
    cluster = CLUSTER.model_copy(update={"partitions": (main,)})
    workload = workload_of(
        submit_time=[0.0, 0.0], run_time=[9.0, 9.0], nodes=[8, 4], spread=[1, 1], fewest_nodes=[1, 1]
    )
    run = predict(workload, SlurmMachine.of(cluster), "slurm")
    assert run.jobs["state"].tolist() == ["rejected", "completed"]


def test_no_run_without_jobs_is_made() -> None:
    workload = workload_of(submit_time=[0.0], run_time=[9.0], nodes=[1], partition=["other"])
    says = "none of the 1 jobs can run on the cluster: the cluster has no partition other"
    with pytest.raises(InputError, match=says):
        predict(workload, SlurmMachine.of(CLUSTER), "slurm")


def test_no_invalid_cluster_is_simulated() -> None:
    with pytest.raises(InputError, match=r"the cluster of Slurm is invalid: .* kinds"):
        recorded_machine({"source": "slurm", "cluster": {}})


def test_a_workload_is_simulated_with_a_slurm_conf(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nPriorityType=priority/multifactor\n"
        "TopologyPlugin=topology/tree\nNodeName=n[1-4] CPUs=4\nPartitionName=main Nodes=ALL Default=YES\n"
    )
    (tmp_path / "topology.conf").write_text("SwitchName=a Nodes=n[1-3]\nSwitchName=b Nodes=n4\n")
    workload = workload_of(submit_time=[0.0, 0.0], run_time=[9.0, 9.0], nodes=[1, 1], cores_per_node=[2, 2])
    write_workload(workload, tmp_path / "w.parquet")
    out = tmp_path / "run"
    arguments = ["simulate", str(tmp_path / "w.parquet"), "--policy", "slurm", "-P", f"@{conf}", "-o", str(out)]
    result = CliRunner().invoke(tracebed, arguments)
    assert result.exit_code == 0, result.output
    run = Run.load(out)
    assert run.allocations["node"].tolist() == [3, 3]  # both on the switch with one node
    assert run.info.engine == "compiled"


# -- a real Slurm of other people -------------------------------------------------------------------------------------


def model_jobs(folder: Path) -> Workload:
    """Return the 500 jobs of slurm_model: sbatch -n N --ntasks-per-node=M without -N."""
    with (folder / "jobs500.csv").open() as file:
        rows = list(csv.DictReader(file, delimiter=";"))

    def column(name: str) -> Any:
        return np.array([float(row[name] or math.nan) for row in rows])

    limit = column("wall_limit") * 60
    run_time = np.where(column("wall_time") < 0, limit + 86400, column("wall_time"))  # -1: until the limit
    per_node = column("ntasks_per_node").astype(int)
    table = pd.DataFrame({"job_id": [row["job_id"] for row in rows], "submit_time": column("dt"), "run_time": run_time})
    table = table.assign(time_limit=limit, nodes=column("n_tasks").astype(int) // per_node, cores_per_node=per_node)
    table = table.assign(fewest_nodes=1, memory_mib=column("mem"))
    for name, of in (("user", "user"), ("group", "account"), ("partition", "partition"), ("gres", "gres")):
        table[name] = [row[of] for row in rows]
    table["features"] = [row["constraint"] for row in rows]
    return Workload(table, Provenance(system=System(10, 12)))


def model_waits(folder: Path) -> tuple[list[str], list[FloatArray]]:
    """Return the ids of the 500 jobs, and their waits in 24 predictions, s."""
    workload, conf = model_jobs(folder), read(folder / "slurm.conf")
    ids, waits = workload.texts("job_id").tolist(), []
    for seed in range(24):
        run = predict(workload, conf.machine, "slurm", over_limit=OverLimit.KILL, policy_parameters={"seed": seed})
        jobs = run.jobs.set_index("job_id").loc[ids]
        waits.append((jobs["start"] - jobs["submit"]).to_numpy())
    return ids, waits


def distance(a: FloatArray, b: FloatArray) -> float:
    """Return the root mean square of the differences, s."""
    return float(np.sqrt(((a - b) ** 2).mean()))


def test_a_real_slurm_with_fairshare_features_gpus_and_memory_is_predicted(
    reference_data: Callable[[str], Path],
) -> None:
    """The jobs of slurm_model (Simakov and others): their own simulator has a noise ratio of 2.29 over 43 runs."""
    folder = reference_data("slurm-model")
    ids, waits = model_waits(folder)
    runs = pd.read_csv(folder / "two-runs.csv", dtype={"job_id": str})
    real = [own.set_index("job_id").loc[ids, "wait_time"].to_numpy() for _, own in runs.groupby("run_id")]
    noise = distance(*real)
    ratio = np.mean([distance(wait, own) for wait in waits for own in real]) / noise
    assert round(noise) == 5023
    assert ratio < 1.2
    means = [np.mean([wait.mean() for wait in group]) for group in (waits, real)]
    assert means[0] == pytest.approx(means[1], rel=0.03)


def test_the_predictions_of_slurm_model_are_as_near_to_43_real_runs_as_was_judged(
    reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    """The notebook of the authors has the mean distances between runs, two runs, and the median waits of 43."""
    fetch("slurm-model-20.02", tmp_path / "copy", reference_data("slurm_model"))
    ids, waits = model_waits(tmp_path / "copy")
    text = (tmp_path / "copy" / "jobs500.nb.html").read_text()

    def printed(code: str) -> float:
        """Return what the notebook prints below a line of code."""
        (number,) = re.findall(re.escape(f"{code}</code></pre>") + r".*?<code>\[1\] ([\d.]+)", text, re.DOTALL)
        return float(number)

    between = printed("sum(md[1:Nnormal,1:Nnormal])/(Nnormal*Nnormal-Nnormal)")
    simulator = printed("sum(md[1:Nnormal,(Nnormal+1):(Nnormal+Nsim)])/(Nnormal*Nsim)")
    assert simulator / between == pytest.approx(2.285, abs=5e-4)
    noise = between / math.sqrt(len(ids))  # the notebook has the root of the sum of squares
    real = []
    for number in (1, 2):
        run = pd.read_csv(tmp_path / "copy" / f"run-{number}.csv", dtype={"job_id": str}).set_index("job_id").loc[ids]
        real.append((run["start"] - run["submit"]).to_numpy())
    assert np.mean([distance(wait, own) for wait in waits for own in real]) / noise == pytest.approx(1.02, abs=0.005)
    tables = notebook_tables({"jobs500.nb.html": text.encode()})
    medians = next(each for each in tables if "normal_median_waittime" in each).set_index("job_id")
    median = medians.loc[ids, "normal_median_waittime"].astype(float).to_numpy()
    # A real run is about as far from the median as half of the variance between two runs.
    squares = [distance(wait, median) ** 2 + noise**2 / 2 for wait in waits]
    assert np.mean(np.sqrt(squares)) / noise == pytest.approx(1.12, abs=0.01)
