"""A replay with a real OAR as the scheduler under test, started in namespaces of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import tracebed.api as tb
from tests.servers.oard import Oar, reason_to_skip
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.states import JobState
from tracebed.oar.batch_system import PHASES, OarSystem, observations
from tracebed.orchestrator.replay.batch.base import BatchSettings, Phase

REASON = reason_to_skip()
RECORDED = """{
  "7": {"name": "x-3", "state": "Error", "events": [{"type": "FRAG_JOB_REQUEST"}, {"type": "WALLTIME"}],
        "exit_code": null, "startTime": 1795352861, "stopTime": 1795352887, "assigned_network_address": ["oar1"]},
  "9": {"name": "x-5", "state": "Terminated", "events": [{"type": "SWITCH_INTO_TERMINATE_STATE"}],
        "exit_code": 768, "startTime": 1795352861, "stopTime": 1795352864, "assigned_network_address": ["oar3"]},
  "6": {"name": "x-1", "state": "Terminated", "events": [], "exit_code": 0, "startTime": 1795352780,
        "stopTime": 1795352783, "assigned_network_address": ["oar1", "oar2"]},
  "8": {"name": "x-4", "state": "Error", "events": [{"type": "FRAG_JOB_REQUEST"}], "exit_code": null,
        "startTime": 0, "stopTime": 1795352871, "assigned_network_address": []},
  "10": {"name": "x-6", "state": "Waiting", "startTime": 0, "assigned_network_address": [], "exit_code": null},
  "11": {"name": "x-7", "state": "Dreaming", "startTime": 0, "assigned_network_address": []}
}"""
"""Output of `oarstat -J -f` of OAR 2.5.9, with the keys that are used, and an invented state."""


def test_recorded_output_of_oarstat_is_read() -> None:
    jobs = {each.name: each for each in observations(RECORDED)}
    states = {name: each.state for name, each in jobs.items() if each.phase is Phase.ENDED}
    assert states == {
        "x-3": JobState.KILLED,
        "x-5": JobState.FAILED,
        "x-1": JobState.COMPLETED,
        "x-4": JobState.CANCELLED,
    }
    assert (jobs["x-1"].start, jobs["x-1"].end, jobs["x-1"].nodes) == (1795352778.0, 1795352783.0, ("oar1", "oar2"))
    assert (jobs["x-4"].start, jobs["x-6"].phase, jobs["x-7"].phase) == (None, Phase.WAITING, Phase.UNKNOWN)
    assert list(observations("")) == []


@pytest.mark.parametrize("text", ["x", "[]", '{"1": 5}', '{"1": {}}', '{"1": {"state": "Running", "startTime": "x"}}'])
def test_damaged_output_of_oarstat_is_an_error(text: str) -> None:
    with pytest.raises(TestbedError, match="oarstat"):
        list(observations(text))


def test_states_of_oar_are_known() -> None:
    """The values of the column `state` of the table `jobs` in the schema of OAR 2.5.9."""
    schema = "Waiting Hold toLaunch toError toAckReservation Launching Running Suspended Resuming Finishing Terminated"
    assert set(PHASES) == {*schema.split(), "Error"}


@pytest.mark.parametrize("option", ["name=x", "array=3", "-x", "A=b", "a=b\nc"])
def test_options_that_a_replay_cannot_have_are_refused(option: str) -> None:
    with pytest.raises(InputError):
        OarSystem(BatchSettings(options=(option,)))


@pytest.fixture(scope="module")
def oar() -> Iterator[Oar]:
    """Yield an OAR with four nodes."""
    cluster = Oar(nodes=4)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.slow
def test_oar_decides_and_the_run_has_its_nodes(oar: Oar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{oar.commands}:{os.environ['PATH']}")
    rows = [("all", 0, 4, 4, 60), ("waits", 1, 2, 2, 60), ("long", 1, 600, 1, 5), ("huge", 2, 2, 5, 60)]
    table = pd.DataFrame(rows, columns=["job_id", "submit_time", "run_time", "nodes", "time_limit"])
    jobs = Workload(table.assign(cores_per_node=1), Provenance(system=System(4, 1)))
    run = tb.replay_on(jobs, "oar", output=tmp_path / "run")
    found = run.jobs.set_index("job_id")
    expected = {"all": "completed", "waits": "completed", "long": "killed", "huge": "rejected"}
    assert found["state"].to_dict() == expected, found[["state", "reason"]]
    assert "not enough resources" in found.loc["huge", "reason"]
    assert (run.info.policy, run.info.batch["version"][:2]) == ("oar", "2.")
    assert [node.name for node in run.info.nodes] == ["oar1", "oar2", "oar3", "oar4"]
    assert run.allocations.groupby("job_id")["count"].sum().to_dict() == {"all": 4, "waits": 2, "long": 1}
    assert found.loc["waits", "start"] >= found.loc["all", "end"] - run.info.resolution_s
    done = found[found["state"] == "completed"]
    assert (done["end"] - done["start"] >= done["run_time"]).all()
    tb.Run.load(tmp_path / "run")
