"""A policy of tracebed decides on a real Slurm of three partitions, in the pools of its slurm.conf."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tracebed.api as tb
from tests.batch.layer_slurm import (
    LayerSlurm,
    accounted,
    check_no_expander_is_left,
    jobs,
    killed,
    malleable,
    started,
)
from tests.oracles.accounting import agreement, prefix_of, rows_of
from tests.servers.slurmd import reason_to_skip
from tracebed.ground.errors import InputError

REASON = reason_to_skip(accounting=True)
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.slow]

SERVES = {
    "main": {f"n{number}" for number in range(1, 9)},
    "short": {"n1", "n2", "n3"},
    "acc": {"n5", "n6", "n7", "n8"},
    "alone": {"n1", "n2", "n3", "n4", "n5"},
}
MANY = {"n6", "n7", "n8"}
"""The nodes with more than one `acc`."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[LayerSlurm]:
    """Yield a Slurm whose jobs can be resized."""
    with started("pools") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(slurm: LayerSlurm) -> Path:
    """Return a folder that all users can enter."""
    return slurm.folder.parent


def test_a_policy_decides_in_the_pools_and_slurm_agrees(slurm: LayerSlurm, folder: Path) -> None:
    workload = jobs(
        malleable(3, 1, submit_time=0.0, run_time=12.0, features=""),
        malleable(2, 1, submit_time=0.3, run_time=12.0, partition="acc", gres="acc:2", features="", memory_mib=2000.0),
        {"submit_time": 1.0, "partition": "short", "nodes": 2, "time_limit": 120.0},
        {
            **{"submit_time": 2.5, "partition": "acc", "gres": "acc:3", "features": "", "nodes": 2},
            **{"user": "games", "group": "biology", "queue": "high", "cores_per_node": 8},
        },
        {"submit_time": 3.0, "features": "big", "memory_mib": 9000.0},
        malleable(1, 1, submit_time=3.5, run_time=10.0),
        {"submit_time": 4.0, "partition": "nowhere"},
        {"submit_time": 4.1, "partition": "acc", "gres": "acc:9", "features": ""},
        {"submit_time": 4.2, "partition": "alone", "features": "", "cores_per_node": 2, "earliest_start": 4.2},
    )
    run = tb.replay_on(workload, "slurm", "pref", output=folder / "run", configuration=slurm.conf, options=["demands"])
    states = run.jobs["state"].tolist()
    assert states == [*["completed"] * 6, "rejected", "rejected", "completed"]
    machine = tb.read_machine(slurm.conf)
    assert run.info.machine is not None
    assert run.info.machine.nodes == machine.nodes
    predicted = tb.simulate(workload, "pref", machine)
    assert predicted.jobs["state"].tolist() == states
    found = tb.compare(run, predicted)
    assert not [each for each in found.warnings if "differ" in each]

    held = rows_of(slurm, prefix_of(run))
    used = {job: set().union(*(nodes for *_, nodes in rows)) for job, rows in held.items()}
    partitions = workload.table["partition"]
    assert all(nodes <= SERVES[partitions[job]] for job, nodes in used.items())
    assert used[1] <= MANY and used[3] <= MANY and used[4] <= MANY and used[5] <= SERVES["main"] - MANY
    table = accounted(slurm, run)
    assert table["Partition"].tolist() == ["main", "acc", "short", "acc", "main", "main", "alone"]
    assert table["User"].tolist() == ["daemon", "daemon", "daemon", "games", "daemon", "daemon", "daemon"]
    assert table.loc[3, ["Account", "QOS"]].tolist() == ["biology", "high"]
    assert table.loc[[1, 3], "AllocCPUS"].tolist() == ["16", "16"]

    done = run.reconfigurations[run.reconfigurations["state"] == "applied"]
    kinds = {*zip(done["job_id"], done["kind"], strict=True)}
    assert {("j0", "expand"), ("j1", "shrink")} <= kinds
    assert ("j1", "expand") not in kinds
    assert "refused" not in run.reconfigurations["state"].tolist()
    never = "1 malleable jobs with generic resources shrink, but never expand: Slurm refuses to merge them"
    assert never in run.info.warnings
    assert any("they hold whole nodes here" in each for each in run.info.warnings)
    by_sacct = agreement(slurm, run)
    assert (by_sacct.jobs, by_sacct.defects) == (7, [])
    check_no_expander_is_left(slurm, run)
    assert tb.Run.load(run.folder).info.machine == run.info.machine


@pytest.mark.parametrize("how", ["drained", "reserved"])
def test_a_node_without_starts_is_not_on_the_machine_and_the_comparison_says_so(
    slurm: LayerSlurm, folder: Path, how: str
) -> None:
    begin, end = {
        "drained": (
            ("update", "NodeName=n8", "State=DRAIN", "Reason=test"),
            ("update", "NodeName=n8", "State=RESUME"),
        ),
        "reserved": (
            ("create", "reservation", "ReservationName=r", "Users=root", "Nodes=n8", "StartTime=now", "Duration=10"),
            ("delete", "ReservationName=r"),
        ),
    }[how]
    slurm("scontrol", *begin)
    slurm.until(lambda: how in slurm("sinfo", "-h", "-n", "n8", "-o", "%T"), "the node is as before")
    try:
        workload = jobs({"submit_time": 0.0, "partition": "acc", "gres": "acc:2", "features": "", "nodes": 3})
        conf = {"output": folder / how, "configuration": slurm.conf, "options": ["demands"]}
        run = tb.replay_on(workload, "slurm", "easy", **conf)  # type: ignore[arg-type]
    finally:
        slurm("scontrol", *end)
    assert run.jobs["reason"].tolist() == ["gres of a node: acc:2, partition acc has too few such nodes"]
    predicted = tb.simulate(workload, "easy", tb.read_machine(slurm.conf))
    assert any("machine differs" in each for each in tb.compare(run, predicted).warnings)


def test_a_killed_replay_is_resumed_in_its_partitions(slurm: LayerSlurm, folder: Path) -> None:
    """By the command line. Jobs that Slurm has started are adopted, held ones are decided again."""
    workload = jobs(
        malleable(2, 1, submit_time=0.0, run_time=20.0),
        malleable(2, 1, submit_time=0.2, run_time=20.0, partition="acc", gres="acc:2", features=""),
        {"submit_time": 0.4, "partition": "short", "nodes": 3, "time_limit": 120.0},
        {"submit_time": 0.6, "partition": "acc", "gres": "acc:3", "features": "", "nodes": 3},
    )

    def reached() -> bool:
        return slurm("squeue", "-h", "-o", "%j %T").count(" RUNNING") >= 2

    resumed = killed(slurm, workload, folder / "killed", ["--policy", "pref", "-S", "demands"], reached, "no job runs")
    slurm("scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=test")  # it stays on the machine
    try:
        run = resumed()
    finally:
        slurm("scontrol", "update", "NodeName=n4", "State=RESUME")
    assert run.jobs["state"].tolist() == ["completed"] * 4
    assert run.info.machine is not None and len(run.info.machine.nodes) == 8
    assert [each["node"] for each in run.info.outages] in ([], ["n4"])
    assert len(run.info.pauses) == 1
    used = {
        number: set().union(*(nodes for *_, nodes in rows)) for number, rows in rows_of(slurm, prefix_of(run)).items()
    }
    assert used[1] <= MANY and used[2] == SERVES["short"] and used[3] == MANY
    assert agreement(slurm, run).defects == []
    check_no_expander_is_left(slurm, run)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"reservation": "later"}, "1 job in advance reservations"),
        ({"partition": "alone", "features": ""}, "1 malleable job in partitions with exclusive jobs, such as alone"),
        ({"partition": "short,acc", "features": ""}, "none of the partitions short,acc of job j0 has all nodes"),
    ],
)
def test_what_a_policy_cannot_decide_is_refused(
    slurm: LayerSlurm, folder: Path, row: dict[str, object], what: str
) -> None:
    workload = jobs(malleable(2, 1, submit_time=0.0, **row))
    with pytest.raises(InputError, match=what):
        tb.replay_on(
            workload, "slurm", "pref", output=folder / "refused", configuration=slurm.conf, options=["demands"]
        )
