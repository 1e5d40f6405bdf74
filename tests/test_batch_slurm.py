"""Replays with a real Slurm as the scheduler under test, started in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from slurmd import Slurm, reason_to_skip
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.orchestrator.replay.folder import working_folders

REASON = reason_to_skip(accounting=True)
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.slow]

NODES = 4
COLUMNS = ["job_id", "submit_time", "run_time", "nodes", "time_limit"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Yield a Slurm with accounting."""
    cluster = Slurm(tmp_path_factory.mktemp("slurm"), nodes=NODES, accounting=True)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def workload(*jobs: tuple[str, float, float, int, float]) -> Workload:
    """Return a workload of rigid jobs: id, submit time, run time, nodes, time limit."""
    table = pd.DataFrame(jobs, columns=COLUMNS).assign(cores_per_node=1)
    return Workload(table, Provenance(system=System(NODES, 2)))


def test_slurm_decides_and_the_run_has_its_nodes(slurm: Slurm, tmp_path: Path) -> None:
    jobs = workload(
        ("all", 10, 40, 4, 600),
        ("waits", 20, 20, 2, 600),
        ("beside", 20, 20, 2, 600),
        ("late", 30, 20, 3, np.nan),
        ("huge", 30, 20, NODES + 1, 600),
    )
    output = tmp_path / "run"
    run = tb.replay_on(jobs, speed=10, output=output, configuration=slurm.conf, options=["comment=a b; |c"])
    assert run.info.state == "completed"
    assert run.info.policy == "slurm"
    assert run.info.policy_parameters["SchedulerType"] == "sched/backfill"
    table = run.jobs.set_index("job_id")
    assert table["state"].to_dict() == {
        **dict.fromkeys(("all", "waits", "beside", "late"), "completed"),
        "huge": "rejected",
    }
    assert table.loc["huge", "reason"].startswith("never starts: Partition")
    ran = table.drop("huge")
    assert (ran["end"] - ran["start"] >= ran["run_time"]).all()
    assert (ran["launched"] >= ran["start"]).all()
    assert (ran["start"] >= ran["submit"]).all()
    assert (ran["submit"] >= ran["submit_planned"]).all()
    assert ran["time_limit"].dropna().tolist() == [600.0] * 3
    assert table.loc["waits", "start"] >= table.loc["all", "end"] - run.info.resolution_s
    held = run.allocations.groupby("job_id")["count"].sum()
    assert held.to_dict() == {"all": 4, "waits": 2, "beside": 2, "late": 3}
    assert [node.name for node in run.info.nodes] == ["n1", "n2", "n3", "n4"]
    assert run.info.batch["submission_ms"]["p50"] > 0
    assert run.info.batch["accounting"]
    loaded = tb.Run.load(output)  # checks that no node has two jobs
    pd.testing.assert_frame_equal(loaded.jobs, run.jobs)
    assert not working_folders(output)
    assert not slurm("squeue", "-h").strip()


def test_a_job_that_outlives_its_limit_is_killed(slurm: Slurm, tmp_path: Path) -> None:
    killed = workload(("long", 0, 6000, 1, 1))
    run = tb.replay_on(killed, speed=60, output=tmp_path / "run", configuration=slurm.conf)
    row = run.jobs.iloc[0]
    assert (row["state"], row["reason"], row["time_limit"]) == ("killed", "TIMEOUT: TimeLimit", 3600.0)
