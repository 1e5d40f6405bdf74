"""A layer that resizes running jobs beside a real Slurm, which starts all jobs with their own demands."""

from __future__ import annotations

import os
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
from tests.batch.test_batch_resizes import kill_before_a_merge, lost_nodes
from tests.oracles.accounting import agreement, prefix_of
from tests.servers.slurmd import Slurm, reason_to_skip, release
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay.batch.base import BatchSettings, Refused
from tracebed.slurm.batch_system import SlurmSystem
from tracebed.slurm.resize_layer import GRES, LOSES, SHARED

REASON = reason_to_skip(accounting=True)
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.slow]


@pytest.fixture(scope="module")
def slurm() -> Iterator[LayerSlurm]:
    """Yield a Slurm whose jobs can be resized."""
    with started("layer") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(slurm: LayerSlurm) -> Path:
    """Return a folder that all users can enter."""
    return slurm.folder.parent


def layer(policy: str) -> list[str]:
    """Return the options of a layer with a pass every second."""
    return [f"resizes={policy}", "resize-interval=1"]


GROWING = "main" if release() < LOSES else "alone"
"""The partition whose jobs may shrink and expand."""
ON_ACC, FIXED = ({"gres": "acc:2", "features": ""}, GRES) if release() < LOSES else ({"features": "big"}, SHARED)
"""What keeps the jobs of the partition `acc` on large nodes, and why the layer does not expand such a job."""
ELASTIC = malleable(4, 1, nodes_max=4, submit_time=0.0, run_time=16.0, partition=GROWING)
"""A job on four of the five small nodes, which shrinks to one node if another one needs two or more nodes."""
HEAD = {"submit_time": 3.0, "nodes": 3, "partition": GROWING}


def test_jobs_have_their_demands_and_the_layer_resizes_them(slurm: LayerSlurm, folder: Path) -> None:
    workload = jobs(
        ELASTIC,
        {"submit_time": 0.2, "partition": "acc", **ON_ACC, "cores_per_node": 2, "queue": "high"},
        {"submit_time": 0.4, "user": "games", "group": "biology", "features": "big", "memory_mib": 2000.0},
        {"submit_time": 0.6, "user": "games", "group": "biology", "features": "big", "cores_per_node": 2},
        malleable(1, 1, submit_time=0.8, partition="acc", **ON_ACC, cores_per_node=1, run_time=12.0),
        {"submit_time": 1.0, "partition": "nowhere"},
        HEAD,
    )
    run = tb.replay_on(workload, output=folder / "run", configuration=slurm.conf, options=layer("dmr"), name="w")
    assert run.jobs["state"].tolist() == [*["completed"] * 5, "rejected", "completed"]
    assert (run.info.policy, run.info.policy_parameters["resizes"]) == ("slurm", "dmr")
    assert run.info.batch["resize_interval"] == 1.0
    done = run.reconfigurations[run.reconfigurations["state"] == "applied"]
    sizes = done[["kind", "nodes_from", "nodes_to"]].to_numpy().tolist()
    assert {*done["job_id"]} == {"j0"}
    assert sizes[:2] == [["shrink", 4, 1], ["expand", 1, 2]]  # there are five small nodes
    assert sizes[2:] in ([], [["expand", 2, 4]])  # on nodes of the head, if it ended long enough before
    assert done[done["kind"] == "expand"]["grant_s"].gt(0.0).all()
    head = run.jobs.set_index("job_id").loc["j6"]
    shrunk = done[done["kind"] == "shrink"]["ended"].iloc[0]
    assert 0.0 < head["start"] - shrunk < 3.0  # the next turn of the main loop
    assert any(f"malleable jobs {FIXED}" in each for each in run.info.warnings)

    table = accounted(slurm, run)
    found = table[["User", "Account", "QOS", "Partition", "AllocCPUS"]].to_numpy().tolist()
    assert found == [
        ["daemon", "physics", "normal", GROWING, "16"],
        ["daemon", "physics", "high", "acc", "2"],
        ["games", "biology", "normal", "main", "4"],
        ["games", "biology", "normal", "main", "2"],
        ["daemon", "physics", "normal", "acc", "1"],
        ["daemon", "physics", "normal", GROWING, "12"],
    ]
    assert table["ReqMem"].tolist()[:3] == ["4000M", "1000M", "2000M"]
    held = run.allocations.set_index("job_id")["cores"]
    assert held.loc["j3"] == 2
    assert {*held.loc["j0"]} == {4}

    found_by_sacct = agreement(slurm, run)
    assert (found_by_sacct.jobs, found_by_sacct.defects) == (6, [])
    check_no_expander_is_left(slurm, run)
    shown = slurm("scontrol", "show", "job", job_id(slurm, run, 0))
    assert "TimeLimit=00:" in shown and "TimeLimit=00:05:00" not in shown  # it follows the sizes
    made = tb.calibrate_batch([run], name="layer")
    assert {*made.overheads} == {"launch_s", "end_s", "expand_s", "reconfiguration_s", "release_s"}
    assert 0.0 < made.overheads["expand_s"].value < 3.0


def job_id(slurm: Slurm, run: tb.Run, number: int) -> str:
    """Return the ID of a job of a run in Slurm."""
    return slurm("squeue", "-h", "-t", "all", "-n", f"{prefix_of(run)}{number}", "-o", "%A").split()[0]


def test_without_a_layer_jobs_have_their_demands_and_keep_their_sizes(slurm: LayerSlurm, folder: Path) -> None:
    workload = jobs(ELASTIC | {"run_time": 6.0}, HEAD)
    run = tb.replay_on(workload, output=folder / "plain", configuration=slurm.conf, options=["demands"])
    assert run.jobs["state"].tolist() == ["completed"] * 2
    assert run.reconfigurations is None or not len(run.reconfigurations)
    assert run.jobs["start"].iloc[1] >= run.jobs["end"].iloc[0] - 1.0  # no node was released for it
    assert accounted(slurm, run)["User"].tolist() == ["daemon"] * 2


def test_slurmctld_is_killed_between_grant_and_merge(
    slurm: LayerSlurm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_before_a_merge(slurm, monkeypatch)
    workload = jobs(ELASTIC | {"run_time": 25.0}, HEAD)
    run = tb.replay_on(workload, output=folder / "killed", configuration=slurm.conf, options=layer("pref"))
    assert run.jobs["state"].tolist() == ["completed"] * 2
    check_no_expander_is_left(slurm, run)


def test_a_node_of_an_expanded_job_that_dies_ends_this_job_only(
    slurm: LayerSlurm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lost_nodes(slurm, monkeypatch):
        run = tb.replay_on(jobs(ELASTIC, HEAD), output=folder / "lost", configuration=slurm.conf, options=layer("dmr"))
    assert run.jobs["reason"].str.startswith("NODE_FAIL").tolist() == [True, False]
    assert run.jobs["state"].tolist() == ["failed", "completed"]
    slurm.until(lambda: slurm("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "8", "nodes do not return")
    check_no_expander_is_left(slurm, run)


@pytest.mark.parametrize("moment", ["an expander waits", "a job has shrunk"])
def test_a_killed_replay_is_resumed(slurm: LayerSlurm, folder: Path, moment: str) -> None:
    """With the replayer, the expander that waits ends. The resumed one continues with the nodes that jobs have."""
    # The last job waits for four nodes until the second one ends. Until then, the expander of the first one waits.
    rows = (
        malleable(2, 1, submit_time=0.0, run_time=16.0),
        {"submit_time": 0.5, "run_time": 25.0, "time_limit": 60.0},
        {"submit_time": 1.5, "nodes": 3, "run_time": 3.0},
        {"submit_time": 3.0, "nodes": 4, "run_time": 3.0},
    )
    workload = jobs(*(row | {"partition": GROWING} for row in rows))

    def reached() -> bool:
        listed = slurm("squeue", "-h", "-o", "%j %T %D").splitlines()
        if moment == "an expander waits":
            return any("+" in line and "PENDING" in line for line in listed)
        return any(line.endswith("-0 RUNNING 1") for line in listed)

    options = ["--resizes", "dmr", "-S", "resize-interval=1"]
    resumed = killed(slurm, workload, folder / moment.replace(" ", "-"), options, reached, moment)
    slurm.until(lambda: "+" not in slurm("squeue", "-h", "-o", "%j"), "the expander stays")
    run = resumed()
    assert run.jobs["state"].tolist() == ["completed"] * 4
    assert len(run.info.pauses) == 1
    check_no_expander_is_left(slurm, run)
    assert agreement(slurm, run).defects == []


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"SchedulerParameters": "bf_interval=1"}, "permit_job_expansion"),
        ({"SchedulerParameters": "permit_job_expansion,disable_job_shrink"}, "disable_job_shrink"),
        ({"AccountingStorageType": "accounting_storage/none"}, "no database"),
        ({"SelectType": "select/cray_aries"}, "select/cray_aries were not tried"),
    ],
)
def test_a_slurm_that_permits_no_resizes_is_refused(slurm: LayerSlurm, changed: dict[str, str], what: str) -> None:
    system = SlurmSystem(BatchSettings(configuration=slurm.conf, demands=True))
    assert system.check_layer("dmr").sets_limits
    system._configuration.update(changed)  # the parsed output of `scontrol show config`
    with pytest.raises(InputError, match=what):
        system.check_layer("dmr")
    with pytest.raises(InputError, match="policy of the layer"):
        system.check_layer("easy")


def test_no_job_that_has_ended_expands(slurm: LayerSlurm) -> None:
    """Slurm 22.05 would accept the merge, and never allocate the nodes again."""
    system = SlurmSystem(BatchSettings(configuration=slurm.conf, demands=True))
    own = ("--uid=daemon", "--gid=daemon", "-A", "physics", "-N1", "-n1", "-t5", "-D", "/", "-o", "/dev/null")
    job = slurm("sbatch", "--parsable", *own, "--wrap", "sleep 300").strip()
    slurm.until(lambda: slurm("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING", "the job does not start")
    second, nodes = system.ask(job, "tracebed-1a2b3c4d-0+2", 2, 30.0)
    assert len(nodes) == 2
    slurm("scancel", job)
    slurm.until(lambda: slurm("squeue", "-h", "-j", job, check=False).strip() == "", "the job does not end")
    with pytest.raises(Refused, match=f"job {job} is CANCELLED, and cannot expand"):
        system.merge(job, second)
    system.cancel([second])
    slurm.until(lambda: slurm("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "8", "nodes stay allocated")


def test_a_user_who_is_no_operator_changes_no_limits(slurm: LayerSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    system = SlurmSystem(BatchSettings(configuration=slurm.conf, demands=True))
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    facts = system.check_layer("dmr")
    assert (facts.sets_limits, facts.warnings) == (
        False,
        ("time limits of resized jobs stay as they are: daemon is no operator of Slurm",),
    )
    slurm("sacctmgr", "-i", "modify", "user", "daemon", "set", "adminlevel=operator")
    assert system.check_layer("dmr") == (True, ())
