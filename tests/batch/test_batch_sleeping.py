"""A replay on a real Slurm whose nodes sleep, and its prediction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import tracebed.api as tb
from tests.servers.sleeping_slurm import SleepingSlurm
from tests.servers.slurmd import reason_to_skip
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.slurm.conf import read

REASON = reason_to_skip()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.slow]

NODES, BOOT_S = 3, 2
LOOK_S = 31.0
"""slurmctld looks for booted nodes every 30 s, in whole seconds."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SleepingSlurm]:
    """Yield a Slurm all of whose nodes are off."""
    cluster = SleepingSlurm(tmp_path_factory.mktemp("slurm"), NODES, suspend_s=5, boot_s=BOOT_S, suspend_timeout_s=2)
    try:
        cluster.up()
        cluster.until(cluster.asleep, "the nodes do not sleep")
        yield cluster
    finally:
        cluster.down()


def test_nodes_boot_for_a_job_of_a_replay_and_sleep_again(slurm: SleepingSlurm, tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"job_id": ["two"], "submit_time": [0.0], "run_time": [3.0], "nodes": [2], "time_limit": [60.0]}
    )
    jobs = Workload(table.assign(cores_per_node=2), Provenance(system=System(NODES, 2)))
    before = len(slurm.notes())
    run = tb.replay_on(jobs, speed=1, output=tmp_path / "run", configuration=slurm.conf)
    assert run.info.state == "completed"
    slurm.until(slurm.asleep, "the nodes do not sleep again")
    notes = slurm.notes()[before:]
    for node in ("n1", "n2"):
        boot, on, off = (note for note in notes if note.node == node)
        assert (boot.what, on.what, off.what) == ("boot", "on", "off")
        begin = run.jobs["start"].iloc[0] + run.info.batch["epoch_s"]
        assert boot.at + BOOT_S <= on.at <= begin
        assert off.at >= run.jobs["end"].iloc[0] + run.info.batch["epoch_s"] - 1.0
    assert {note.node for note in notes} == {"n1", "n2"}
    recorded = {node: own["power_state"].tolist() for node, own in run.nodes.groupby("node")}  # at each observation
    assert recorded.keys() == {0, 1, 2} and recorded[2] == ["off"]
    for node in (0, 1):
        assert recorded[node][0] == "off" and recorded[node][-1] == "on"

    power, conf = tmp_path / "power.yaml", tmp_path / "slurm.conf"
    power.write_text(f"power:\n  n[1-{NODES}]: {{busy_w: 2, idle_w: 1, boot_s: {BOOT_S}}}\n")
    conf.write_text(slurm.conf.read_text().replace("State=UNKNOWN", "State=CLOUD"))  # the nodes are off at the begin
    expected = predict(jobs, read(conf, power).known_machine(), "slurm", over_limit=OverLimit.KILL)
    states = expected.nodes
    assert {*states.loc[states["power_state"] == "boot", "node"]} == {0, 1}
    assert BOOT_S <= expected.jobs["start"].iloc[0] <= BOOT_S + LOOK_S + 3.0
