"""Dependencies and think times in replays: with real processes, with virtual nodes, and with kills of the replayer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.faults.scenario import JobSpec, Outcome, Scenario, carry_out
from tests.faults.shrinking import violations
from tests.oracles.redecided import complete_budget, decided, decided_again, emulated, virtual
from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.testing.virtual.faults import Fault

NAN = math.nan
JOBS = Workload(
    pd.DataFrame(
        {
            "job_id": ["a", "b", "c", "d", "e", "f"],
            "submit_time": [1000.0, 1001.0, 1002.0, 1003.0, 1004.0, 1005.0],
            "run_time": [40.0, 30.0, 20.0, 20.0, 20.0, 20.0],
            "time_limit": [60.0, 60.0, 60.0, 60.0, 60.0, 60.0],
            "nodes": [1, 2, 1, 1, 1, 1],
            "cores_per_node": 2,
            "dependency": ["", "afterok:a", "afternotok:a", "after:a", "", "afterok:c"],
            "after": ["", "", "", "", "b", ""],
            "think_time": [NAN, NAN, NAN, NAN, 10.0, NAN],
        }
    )
)


@pytest.mark.parametrize("nodes", [emulated, virtual])
def test_a_replay_waits_as_the_prediction_does(nodes: object, tmp_path: Path) -> None:
    assert callable(nodes)
    inventory = nodes(2)
    run = replay(JOBS, inventory, "easy", tmp_path / "run", speed=40.0)
    predicted = tb.simulate(JOBS, "easy", nodes=2)
    real, expected = run.jobs.set_index("job_id"), predicted.jobs.set_index("job_id")
    assert real["state"].to_dict() == expected["state"].to_dict()
    assert real["state"].tolist() == ["completed"] * 2 + ["cancelled"] + ["completed"] * 2 + ["cancelled"]
    cancelled = real["state"] == "cancelled"  # a busy machine disturbs other jobs, and their reason says so
    assert real["reason"][cancelled].to_dict() == expected["reason"][cancelled].to_dict()
    assert real["start"]["b"] >= real["end"]["a"]  # of one clock, in whole rounds
    assert real["start"]["d"] > real["start"]["a"]
    assert real["submit"]["e"] >= real["end"]["b"] + 10.0
    assert real["submit"]["b"] < real["end"]["a"]  # the wait counts from the submission
    assert run.info.lateness_ms["count"] == 6
    assert run.info.lateness_ms["max"] < (real["end"]["b"] - 1004.0) / 40.0 * 1e3  # of the instant due, not the planned
    path = tmp_path / "run" / JOURNAL
    assert decided_again(path, Jobs.of(JOBS), inventory, registry.load("easy")) == decided(path)
    assert recovered(path).jobs.equals(run.jobs)
    entries = journal.read(path)[1]
    assert {"b", "c", "f"} <= {entry.job for entry in entries if entry.kind == "hold"}  # `d` depends on the clock
    assert {entry.job for entry in entries if entry.kind == "withdraw"} == {"c", "f"}
    if nodes is virtual:
        complete_budget(JOBS, tmp_path / "run")


def test_a_replay_ignores_dependencies_if_asked(tmp_path: Path) -> None:
    run = replay(JOBS, virtual(4), "easy", tmp_path / "run", speed=40.0, dependencies="ignore")
    assert set(run.jobs["state"]) == {"completed"}
    assert any("5 jobs that depend on another job: dependency ignored" in text for text in run.info.warnings)
    late = run.jobs["submit"] - run.jobs["submit_planned"]
    assert late.abs().max() < 1.0


CHAIN = (
    JobSpec(10.0, 300.0, 600.0, 4, 4, 4),
    JobSpec(20.0, 200.0, 400.0, 8, 8, 8, "afterok-1"),
    JobSpec(30.0, 100.0, 200.0, 2, 1, 4, "think-1:200"),
    JobSpec(40.0, 100.0, 200.0, 2, 2, 2, "after-3"),
    JobSpec(50.0, 100.0, 200.0, 1, 1, 1, "afternotok-1"),
    JobSpec(60.0, 100.0, 200.0, 1, 1, 1, "think-2:"),
    JobSpec(70.0, 100.0, 200.0, 1, 1, 1, "singleton"),
)


@pytest.mark.parametrize("after", ["hold j2", "end j1", "eligible j2", "submit j3", "start j4", "withdraw j5"])
def test_a_replay_that_is_killed_at_each_step_of_a_chain_goes_on_as_if_it_were_not(after: str) -> None:
    """The replay is killed when it has written this entry of its journal."""
    scenario = Scenario(7, "easy", "requeue", "kill", 8, CHAIN, (Fault("kill", 0, "", 3.0, 0.5, after),))
    found: dict[str, pd.DataFrame] = {}

    def keep(outcome: Outcome) -> None:
        assert outcome.run is not None
        assert outcome.kills == len(outcome.scenario.faults)
        found["killed" if outcome.kills else "whole"] = outcome.run.jobs

    assert violations(scenario) == []
    carry_out(scenario, keep)
    carry_out(Scenario(7, "easy", "requeue", "kill", 8, CHAIN), keep)
    assert found["killed"]["state"].tolist() == found["whole"]["state"].tolist()
    assert found["whole"]["state"].tolist() == [*["completed"] * 4, "cancelled", *["completed"] * 2]
    np.testing.assert_allclose(found["killed"]["start"], found["whole"]["start"], atol=60.0)
