"""The demands of jobs as options of sbatch, and the decisions of the layer in handmade states of a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import tracebed.api as tb
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError
from tracebed.machine import machine as general
from tracebed.machine.machine import Machine, NodeClass
from tracebed.orchestrator.replay.batch.base import BatchSettings, JobObservation, LayerJob, Phase
from tracebed.orchestrator.replay.batch.records import JobRecords
from tracebed.orchestrator.replay.batch.watched import WatchedJob, never_starts
from tracebed.slurm import resize_layer
from tracebed.slurm.batch_system import SlurmSystem
from tracebed.slurm.job_states import is_limit
from tracebed.slurm.live_layer import decided
from tracebed.slurm.machine import Alike, Partition, Preempt, SlurmCluster, SlurmMachine
from tracebed.slurm.state import ClusterState, LiveJob
from tracebed.slurm.submissions import (
    CLOSED,
    LACKING,
    LICENSED,
    NOT_ROOT,
    SHORT,
    SHRINK_ONLY,
    demands_of,
    held_demands_of,
)

CLUSTER = SlurmCluster(
    kinds=(
        Alike(names="n[1-4]", cores=4, memory_mib=4000, gres={"acc": 2}),
        Alike(names="b[1-2]", cores=8, memory_mib=8000, features=("big",)),
    ),
    partitions=(
        Partition(name="main", default=True, memory_per_core_mib=100),
        Partition(name="own", nodes="b[1-2]", exclusive=True, memory_per_core_mib=100),
    ),
    shared=True,
    memory=True,
)


def row(**columns: Any) -> dict[str, Any]:
    """Return the columns of a job."""
    default: dict[str, Any] = {"submit_time": 0.0, "run_time": 10.0, "time_limit": 60.0, "nodes": 2, "user": ""}
    default |= {"cores_per_node": 2, "group": "", "queue": "", "partition": "", "gres": "", "features": ""}
    return {**default, "memory_mib": float("nan"), "spread": 0, "fewest_nodes": 0, **columns}


def options(*rows: dict[str, Any], cluster: SlurmCluster = CLUSTER, **given: Any) -> Any:
    """Return the demands of jobs."""
    table = pd.DataFrame([{"job_id": f"j{number}", **each} for number, each in enumerate(rows)])
    workload = Workload(table, Provenance(system=System(6, 4)))
    return demands_of(workload, cluster, **{"root": True, "enterable": True, **given})


def test_a_job_is_submitted_with_its_columns() -> None:
    full = row(partition="main", group="physics", queue="high", memory_mib=1000.5, gres="acc:1", features="big")
    spread = row(nodes=3, cores_per_node=2, spread=1, fewest_nodes=2)
    assert options(full, row(), spread).options == [
        (
            *("--nodes=2", "--ntasks-per-node=2", "--mem=1001", "--partition=main", "--account=physics"),
            *("--qos=high", "--constraint=big", "--gres=acc:1"),
        ),
        ("--nodes=2", "--ntasks-per-node=2"),
        ("--ntasks=6", "--nodes=2-6"),
    ]
    later = row(submit_time=5.0, earliest_start=26.0)
    assert options(later).options[0][-1] == "--begin=now+21"
    assert options(later, speed=10.0).options[0][-1] == "--begin=now+3"


def test_cores_become_cpus_and_memory_is_left_out_where_slurm_does_not_allocate_it() -> None:
    kinds = tuple(kind.model_copy(update={"threads": 2}) for kind in CLUSTER.kinds)
    threads = SlurmCluster(kinds=kinds, partitions=CLUSTER.partitions, shared=True)
    assert options(row(memory_mib=100.0), cluster=threads).options == [("--nodes=2", "--ntasks-per-node=4")]


def test_root_submits_jobs_as_their_users() -> None:
    rows = row(user="daemon"), row(user="no-such-user"), row()
    found = options(*rows)
    assert found.options[0][-2:] == ("--uid=1", "--gid=1")
    assert found.users == ("daemon",)
    assert {what: count for what, count in found.counts.items() if "users" in what} == {LACKING: 1}
    others = {"root": False}, {"enterable": False}
    for given, counts in zip(others, ({NOT_ROOT: 2}, {CLOSED: 1, LACKING: 1}), strict=True):
        found = options(*rows, **given)
        assert not found.users and not any("--uid" in text for each in found.options for text in each)
        assert {what: count for what, count in found.counts.items() if "users" in what} == counts


# -- decisions ---------------------------------------------------------------------------------------------------------


def live(number: int, **fields: Any) -> LiveJob:
    """Return a waiting job of two nodes with four cores each, or a running one with the nodes `held`."""
    held = fields.get("held", {})
    default: dict[str, Any] = {"user": "u", "account": "a", "partition": "main", "limit_s": 600.0, "per_node": 4}
    default |= {"cores": sum(held.values()) or 8, "fewest": len(held) or 2, "memory_mib": 0.0, "features": ""}
    default |= {"gres": "", "number": number, "start": 0.0 if held else None, "priority": 1000 - number}
    return LiveJob(id=str(number), **{**default, **fields})


def state(*jobs: LiveJob, cluster: SlurmCluster = CLUSTER, release: str = "22.05") -> ClusterState:
    """Return a state of a cluster."""
    conf: Any = SimpleNamespace(parameters={"release": release})
    return ClusterState(100.0, conf, cluster, frozenset(), jobs, {}, (), ())


def on(*nodes: str, cores: int = 4) -> dict[str, int]:
    """Return the cores of a job on nodes."""
    return dict.fromkeys(nodes, cores)


def layer(number: int, nodes: Sequence[str], **fields: Any) -> LayerJob:
    """Return a malleable job."""
    sizes = {"least": 1, "preferred": 2, "most": 4, "largest": len(nodes), "waits": False}
    return LayerJob(str(number), tuple(nodes), **{**sizes, **fields})


ON_ALL = on("n1", "n2", "n3", "n4")
BIG = live(2, held=on("b1", "b2", cores=8), per_node=8)
WAITING = live(9)


def test_a_job_shrinks_if_the_first_waiting_job_then_fits() -> None:
    running = live(1, held=ON_ALL)
    found = decided(state(running, BIG, WAITING), "dmr", [layer(1, [*ON_ALL])], set())
    assert found.shrinks == {"1": ("n4", "n3")}
    assert (found.expansions, found.limits_s) == ({}, {"1": 600.0})
    for reason in ("AssocMaxJobsLimit", "Dependency", "BeginTime"):
        held = state(running, BIG, replace(WAITING, reason=reason))
        assert decided(held, "dmr", [layer(1, [*ON_ALL])], set()).shrinks == {}


def test_nodes_that_jobs_are_about_to_leave_are_free() -> None:
    running, other = live(1, held=on("n1", "n2", "n3")), live(3, held=on("n4"))
    jobs = [layer(1, ["n1", "n2", "n3"])]
    one = replace(WAITING, fewest=1, cores=4)
    assert decided(state(running, other, BIG, one), "dmr", jobs, set()).shrinks == {"1": ("n3",)}
    assert decided(state(running, other, BIG, one), "dmr", jobs, {("3", "n4")}).shrinks == {}


def test_an_expander_is_no_waiting_job() -> None:
    running = live(1, held=ON_ALL)
    for expander in (replace(WAITING, name="tracebed-1a2b3c4d-0+2"), replace(WAITING, dependency="expand:1")):
        assert decided(state(running, BIG, expander), "dmr", [layer(1, [*ON_ALL])], set()).shrinks == {}


@pytest.mark.parametrize("what", ["cores", "memory"])
def test_a_job_asks_for_nodes_with_room_for_what_it_has_on_each_node(what: str) -> None:
    running = live(1, held=on("n1"), per_node=4, memory_mib=3000.0)
    other = live(2, held=on("n2", cores=1), per_node=1, memory_mib=100.0 if what == "cores" else 2000.0)
    jobs = [layer(1, ["n1"], largest=4)]
    assert decided(state(running, other), "dmr", jobs, set()).expansions == {"1": 3}
    assert decided(state(running, other, live(3, held=ON_ALL | on("b1", cores=8))), "dmr", jobs, set()).expansions == {
        "1": 1
    }


def test_a_job_on_shared_nodes_does_not_grow_beyond_its_largest_size() -> None:
    running = live(1, held=on("n1"))
    assert decided(state(running), "dmr", [layer(1, ["n1"])], set()).expansions == {}
    assert decided(state(running), "dmr", [layer(1, ["n1"], largest=3)], set()).expansions == {"1": 2}
    assert decided(state(running), "dmr", [layer(1, ["n1"], largest=3, waits=True)], set()).expansions == {}
    newer = decided(state(running, release="24.11"), "dmr", [layer(1, ["n1"], largest=3)], set())
    assert (newer.expansions, newer.excluded) == ({}, {"1": resize_layer.SHARED})


def test_a_job_with_less_than_a_minute_left_asks_for_no_nodes() -> None:
    for limit_s, expansions in ((160.0, {}), (165.0, {"1": 2})):  # it has run for 100 s
        running = live(1, held=on("n1"), limit_s=limit_s)
        assert decided(state(running), "dmr", [layer(1, ["n1"], largest=3)], set()).expansions == expansions


def test_exclusive_jobs_expand_and_do_not_shrink_before_26_05() -> None:
    plain = CLUSTER.model_copy(update={"kinds": tuple(kind.model_copy(update={"gres": {}}) for kind in CLUSTER.kinds)})
    one = live(1, partition="own", held=on("b1", cores=8), per_node=8, whole=True)
    assert decided(state(one, cluster=plain), "dmr", [layer(1, ["b1"])], set()).expansions == {"1": 1}
    both = live(1, partition="own", held=on("b1", "b2", cores=8), per_node=8, whole=True)
    head = live(9, partition="own", fewest=1, cores=8, per_node=8)
    found = decided(state(both, head, cluster=plain), "dmr", [layer(1, ["b1", "b2"])], set())
    assert (found.shrinks, found.excluded) == ({}, {"1": resize_layer.EXCLUSIVE})
    newer = decided(state(both, head, cluster=plain, release="24.11"), "dmr", [layer(1, ["b1", "b2"])], set())
    assert (newer.shrinks, newer.excluded) == ({"1": ("b2",)}, {})
    assert decided(state(one, cluster=plain, release="24.11"), "dmr", [layer(1, ["b1"])], set()).expansions == {"1": 1}


@pytest.mark.parametrize(("release", "shrinks"), [("22.05", {}), ("24.11", {"1": ("b2",)})])
@pytest.mark.parametrize(("gres", "reason"), [("acc:1", resize_layer.GRES), ("", resize_layer.GIVEN)])
def test_exclusive_jobs_do_not_expand_on_a_cluster_with_generic_resources(
    release: str, shrinks: dict[str, tuple[str, ...]], gres: str, reason: str
) -> None:
    both = live(1, partition="own", held=on("b1", "b2", cores=8), per_node=8, whole=True, gres=gres)
    head = live(9, partition="own", fewest=1, cores=8, per_node=8)
    found = decided(state(both, head, release=release), "dmr", [layer(1, ["b1", "b2"])], set())
    assert (found.shrinks, found.excluded) == (shrinks, {"1": reason})
    one = replace(both, held=on("b1", cores=8))
    assert decided(state(one, release=release), "dmr", [layer(1, ["b1"])], set()).expansions == {}


@pytest.mark.parametrize(
    ("mode", "reason", "shrinks"),
    [("requeue", resize_layer.PREEMPTED, True), ("suspend", resize_layer.SUSPENDED, False)],
)
def test_jobs_that_may_be_preempted_do_not_expand(mode: str, reason: str, shrinks: bool) -> None:
    main, other = CLUSTER.partitions
    tiers = (main.model_copy(update={"preempt_mode": mode}), other.model_copy(update={"tier": 2}))
    cluster = CLUSTER.model_copy(update={"partitions": tiers, "preempt": Preempt(by_tier=True)})
    found = decided(state(live(1, held=ON_ALL), BIG, WAITING, cluster=cluster), "dmr", [layer(1, [*ON_ALL])], set())
    assert (bool(found.shrinks), found.excluded) == (shrinks, {"1": reason})
    small = state(live(1, held=on("n1")), cluster=cluster)
    assert decided(small, "dmr", [layer(1, ["n1"], largest=3)], set()).expansions == {}


@pytest.mark.parametrize(
    ("fields", "reason", "shrinks"),
    [
        ({"gres": "acc:1"}, resize_layer.GRES, True),
        ({"reservation": "maintenance"}, resize_layer.RESERVED, False),
        ({"deadline": 1000.0}, resize_layer.DEADLINE, False),
        ({"whole_id": "7"}, resize_layer.COMPONENT, False),
        ({"per_node": 0}, resize_layer.SPREAD, False),
    ],
)
def test_jobs_that_are_not_resized_have_a_reason(fields: dict[str, Any], reason: str, shrinks: bool) -> None:
    running = live(1, held=ON_ALL, **fields)
    found = decided(state(running, BIG, WAITING), "pref", [layer(1, [*ON_ALL])], set())
    assert found.excluded == {"1": reason}
    assert bool(found.shrinks) == shrinks
    smaller = live(1, held=on("n1"), **fields)
    assert decided(state(smaller), "pref", [layer(1, ["n1"], largest=4)], set()).expansions == {}


@pytest.mark.parametrize(
    ("exclusions", "whole", "release", "expected"),
    [
        ((), False, 22.05, (True, True, "")),
        ((), False, 24.11, (True, False, resize_layer.SHARED)),
        ((), True, 22.05, (False, True, resize_layer.EXCLUSIVE)),
        ((), True, 24.11, (True, True, "")),
        ((resize_layer.GRES,), False, 26.05, (True, False, resize_layer.GRES)),
        ((resize_layer.PREEMPTED, resize_layer.GRES), True, 22.05, (False, False, resize_layer.GRES)),
        ((resize_layer.PREEMPTED, resize_layer.SUSPENDED), True, 24.11, (False, False, resize_layer.SUSPENDED)),
        ((resize_layer.DEADLINE,), False, 22.05, (False, False, resize_layer.DEADLINE)),
    ],
)
def test_what_a_layer_may_do_with_a_job_is_a_table(
    exclusions: tuple[str, ...], whole: bool, release: float, expected: tuple[bool, bool, str]
) -> None:
    excludes = dict.fromkeys(exclusions, True) | {resize_layer.RESERVED: False}
    assert resize_layer.permission(excludes, whole=whole, release=release, gives_gres=False) == expected
    if whole and expected[1]:
        expected = (expected[0], False, resize_layer.GIVEN)
    assert resize_layer.permission(excludes, whole=whole, release=release, gives_gres=True) == expected


# -- around it ---------------------------------------------------------------------------------------------------------


def test_jobs_that_a_limit_holds_start_only_if_other_jobs_end() -> None:
    assert [is_limit(reason) for reason in ("QOSMaxCpuPerUserLimit", "AssocMaxJobsLimit", "MaxJobsPerAccount")] == [
        *(True, True, True)
    ]
    assert not any(is_limit(reason) for reason in ("Resources", "QOSGrpCpuMinutesLimit", "AssocGrpWallLimit", "None"))

    def watched(phase: Phase, *, limited: bool) -> WatchedJob:
        job = WatchedJob("1")
        job.seen = JobObservation("1", "t-1", phase, "X", limited=limited)
        return job

    held, runs = watched(Phase.WAITING, limited=True), watched(Phase.RUNNING, limited=False)
    assert never_starts([held], limited=True) and not never_starts([held])
    assert not never_starts([held, runs], limited=True)


def test_a_folder_that_users_share_has_files_that_they_can_read_and_not_replace(tmp_path: Path) -> None:
    records = JobRecords(tmp_path / "jobs", shared=True)
    assert records.folder.stat().st_mode & 0o7777 == 0o1777
    target = tmp_path / "target"
    (records.folder / ".t-0.2.size").symlink_to(target)
    records.write_size("t-0", 2, 0.5, ["n1", "n2"])
    assert not target.exists()
    assert (records.folder / "t-0.size").stat().st_mode & 0o777 == 0o644
    assert records.requested_size("t-0") == (2, ("n1", "n2"))
    (records.folder / "t-0.busy").symlink_to(target)
    with records.kept_running("t-0", "7"):
        assert not target.exists()
    own = JobRecords(tmp_path / "own")
    own.write_size("t-0", 1, 1.0, ["n1"])
    assert own.folder.stat().st_mode & 0o777 == 0o700
    assert (own.folder / "t-0.size").stat().st_mode & 0o777 == 0o600


def test_a_layer_and_a_policy_exclude_each_other(tmp_path: Path) -> None:
    workload = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
    with pytest.raises(InputError, match="a layer that resizes jobs: the batch system starts the jobs, and a policy"):
        tb.replay_on(workload, "slurm", "easy", output=tmp_path / "run", options=["resizes=dmr"])
    with pytest.raises(InputError, match="'resizes' is not an option of a replay"):
        tb.replay_on(workload, "slurm", output=tmp_path / "run", options=["resizes"])
    with pytest.raises(InputError, match="partition=test is for all jobs"):
        SlurmSystem(BatchSettings(partition="test", demands=True))
    with pytest.raises(InputError, match="resize interval"):
        tb.replay_on(workload, "slurm", output=tmp_path / "run", options=["resizes=dmr", "resize-interval=0"])
    assert [*tmp_path.iterdir()] == []


# -- jobs that a policy of tracebed starts -----------------------------------------------------------------------------


def held(*rows: dict[str, Any], cores: Sequence[int] = (4, 4, 4), release: float = 22.05) -> Any:
    """Return the demands of jobs that a policy starts, all of which are malleable."""
    table = pd.DataFrame([{"job_id": f"j{number}", **each} for number, each in enumerate(rows)])
    given: dict[str, Any] = {"release": release, "root": False, "enterable": True}
    workload = Workload(table, Provenance(system=System(6, 4)))
    return held_demands_of(workload, CLUSTER, cores[: len(rows)], [True] * len(rows), **given)


def test_a_held_job_has_one_node_with_its_cores_and_its_demands() -> None:
    full = row(partition="main", group="physics", memory_mib=1000.5, gres="acc:1", features="big", earliest_start=9.0)
    found = held(full, row(spread=1, fewest_nodes=2, licenses="matlab"), cores=(4, 8))
    assert found.options == [
        (
            *("--nodes=1", "--ntasks=1", "--cpus-per-task=4", "--mem=1001", "--partition=main", "--account=physics"),
            *("--constraint=big", "--gres=acc:1"),
        ),
        ("--nodes=1", "--ntasks=1", "--cpus-per-task=8", "--licenses=matlab"),
    ]
    assert found.shrink_only == {0}
    assert (found.counts[SHRINK_ONLY], found.counts[LICENSED], found.counts[SHORT]) == (1, 1, 0)
    assert found.longest_s == (math.inf, math.inf)


def test_the_limit_of_a_held_job_is_that_of_its_partition() -> None:
    partitions = (CLUSTER.partitions[0].model_copy(update={"limit_s": 600.0}), CLUSTER.partitions[1])
    cluster = SlurmCluster(kinds=CLUSTER.kinds, partitions=partitions, shared=True)
    workload = Workload(pd.DataFrame([row(job_id="j0")]), Provenance(system=System(6, 4)))
    found = held_demands_of(workload, cluster, [4], [True], release=22.05, root=False, enterable=True)
    assert found.longest_s == (600.0,)
    assert found.counts[SHORT] == 1


def test_what_no_policy_can_decide_is_refused() -> None:
    with pytest.raises(InputError, match="1 job in advance reservations"):
        held(row(reservation="later"), row())
    with pytest.raises(InputError, match="1 malleable job in partitions with exclusive jobs, such as own: Slurm"):
        held(row(), row(partition="own"))
    newer = held(row(partition="own"), row(), release=24.11)
    assert (len(newer.options), newer.shrink_only) == (2, {0})  # it gets the generic resources of the cluster


def test_some_of_the_nodes_of_a_cluster_are_a_cluster() -> None:
    assert len(CLUSTER.nodes) == 6  # which is cached
    some = CLUSTER.only(["n2", "n3", "b2"])
    assert [(name, kind.cores) for name, kind in some.nodes] == [("n2", 4), ("n3", 4), ("b2", 8)]
    assert [kind.names for kind in some.kinds] == ["n2,n3", "b2"]
    assert [(each.name, each.nodes, each.empty) for each in some.partitions] == [
        ("main", "", False),
        ("own", "b2", False),
    ]
    assert CLUSTER.only(["n1"]).partitions[1].empty
    one = SlurmCluster(kinds=tuple(Alike(names=f"n{at}", cores=4) for at in (1, 2)), partitions=CLUSTER.partitions[:1])
    assert [kind.names for kind in one.only(["n1", "n2"]).kinds] == ["n1,n2"]


def test_machines_with_the_same_nodes_and_partitions_have_the_same_pools() -> None:
    whole, names = SlurmMachine.of(CLUSTER), [name for name, _ in CLUSTER.nodes]
    again = SlurmMachine.of(CLUSTER.only(names), parameters={"bf_interval": "9"})
    assert (whole.pooled_digest, whole.digest) == (again.pooled_digest, SlurmMachine.of(CLUSTER).digest)
    assert whole.digest != again.digest
    split = Machine(
        classes=(
            *(NodeClass(names=(f"n{at}",), cores=4, sockets=4, memory_mib=4000, gres={"acc": 2}) for at in range(1, 5)),
            NodeClass(names=("b[1-2]",), cores=8, sockets=8, memory_mib=8000, features=("big",)),
        ),
        partitions=(
            general.Partition(name="main", nodes=tuple(names), default=True, shared=True),
            general.Partition(name="own", nodes=("b2", "b1")),
        ),
    )
    assert split.pooled_digest == whole.pooled_digest
    other = replace(split, partitions=split.partitions[:1])
    assert other.pooled_digest != whole.pooled_digest
