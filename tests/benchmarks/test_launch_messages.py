"""What reaches an agent: values that are missing or no numbers never do, and a job that costs nodes ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.oracles.redecided import virtual
from tests.runs import replaying
from tracebed.benchmarks.lines import encode
from tracebed.benchmarks.program import Program
from tracebed.converters.schema import SCHEMA
from tracebed.converters.workload import Workload
from tracebed.ground import system
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.replay.programs import check_programs
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import MOST_LOSSES
from tracebed.testing.virtual.kernel import VirtualWorld

GIVEN: dict[str, Any] = {
    "run_time": 40.0,
    "kind": "malleable",
    "requests": "0.5:3",
    "features": "bigmem",
    "gres": "gpu:1",
    "dependency": "afterok:1",
    "array": "12",
    "licenses": "matlab:2",
    "reservation": "night",
    "after": "1",
    "application_parameters": "initialization=0.1",
}
"""Values of columns whose values have a form. Other columns get a number or a word."""
WITHOUT = ("job_id", "submit_time", "nodes", "speedup_parameters")
"""Columns without which no job runs, or, of the last, without which the model of its column `speedup` is invalid."""


def of_two(column: str, value: Any, other: Any) -> Workload:
    """Return two malleable jobs with these values of a column."""
    jobs = {"job_id": ["1", "2"], "submit_time": [0.0, 1.0], "run_time": 40.0, "nodes": 2, "cores_per_node": 2}
    malleable = {"kind": "malleable", "nodes_min": 1, "nodes_max": 4, "application": "simulation"}
    return Workload(pd.DataFrame(jobs | malleable | {column: pd.Series([value, other], dtype=object)}))


def replayed(workload: Workload, folder: Path, policy: str = "pref", **options: Any) -> pd.DataFrame:
    return replay(workload, virtual(4), policy, folder, **replaying(20.0), **options).jobs


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("column", [name for name in SCHEMA if name not in WITHOUT])
def test_a_replay_ends_whatever_value_of_a_job_is_missing(tmp_path: Path, column: str, first: bool) -> None:
    value = GIVEN.get(column, 2 if SCHEMA[column].dtype != "str" else SCHEMA[column].default or "x")
    value = "2" if column == "after" and first else value  # no job waits for itself
    workload = of_two(column, *((value, None) if first else (None, value)))
    jobs = replayed(workload, tmp_path / "run", "pref" if column != "requests" else "dmr")
    assert set(jobs["state"]) == {"completed"} and jobs["restarts"].sum() == 0


def test_a_state_that_is_missing_is_no_state_for_a_batch_system_either() -> None:
    assert SubmissionPlan.of(of_two("state_mib", 8.0, None), speed=20.0, limit_step_s=1.0).state_mib == [8.0, 0.0]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_no_message_holds_what_is_no_number(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"type": "launch", "program": {"state_mib": number}})


@pytest.mark.parametrize(("column", "value"), [("state_mib", float("nan")), ("state_mib", -1.0)])
def test_an_invalid_program_is_refused_before_the_replay(column: str, value: float) -> None:
    jobs = Jobs.of(of_two("state_mib", 8.0, 4.0)).with_columns(**{column: np.array([8.0, value])})
    with pytest.raises(InputError, match=f"job 2: {column} is"):
        check_programs(jobs, virtual(4))


@pytest.mark.parametrize("field", ["ratios", "rate", "state_mib"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_program_with_what_is_no_number_is_refused(field: str, number: float) -> None:
    program = Program.lasting(1.0, 2, 2, 1e6)
    with pytest.raises(InputError, match=field):
        program._replace(**{field: {"stream": number} if field == "ratios" else number}).checked()


@pytest.mark.parametrize("begun", [True, False])
def test_a_job_that_costs_a_node_each_time_ends(tmp_path: Path, begun: bool) -> None:
    """The agent is killed while the job starts, or while it runs. The other job must not suffer."""
    costs = 0

    def kill(ended: int) -> None:
        nonlocal costs
        here = system.current()
        assert isinstance(here, VirtualWorld)
        for node in here.nodes.values():
            ranks = [rank for agent in node.agents for rank in agent.ranks.values() if rank.launch.job == "1"]
            if ranks and not (begun and not ranks[0].computes):
                costs += 1
                ranks[0].agent.kill()
                return

    jobs = replayed(of_two("state_mib", 8.0, 4.0), tmp_path / "run", on_progress=kill)
    [culprit, other] = jobs.to_dict("records")
    assert culprit["state"] == "failed" and culprit["restarts"] == MOST_LOSSES - 1 and costs >= MOST_LOSSES
    assert culprit["reason"].startswith(f"the job lost nodes {MOST_LOSSES} times, and is not requeued again; node n")
    assert "its agent was killed by SIGKILL" in culprit["reason"]
    assert other["state"] == "completed"
