"""Nodes that the first waiting job needs are not switched off."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.oracles.drawn import draw
from tests.oracles.engines import differences
from tests.scheduling.test_scheduling import workload_of
from tracebed.machine.machine import Machine, NodeClass
from tracebed.machine.power import NodePower, Sleep
from tracebed.orchestrator.simulation.prediction import EngineChoice, predict

POWER = NodePower(busy_w=200, idle_w=100, off_w=5, boot_s=10, shutdown_s=1)


def sleepy(nodes: int, idle_s: float = 0.0, keep: int = 0) -> Machine:
    sleep = Sleep(rule="idle", idle_s=idle_s, keep=keep)
    return Machine(classes=(NodeClass(count=nodes, power=POWER),), sleep=sleep)


@pytest.mark.parametrize("engine", ["python", "compiled"])
def test_idle_nodes_stay_on_for_the_head(engine: EngineChoice) -> None:
    """The second job needs all three nodes: the two idle ones wait with it. Without it, they are switched off."""
    jobs = pd.DataFrame(
        {
            "job_id": ["1", "2"],
            "submit_time": [0.0, 5.0],
            "run_time": [100.0, 50.0],
            "time_limit": [100.0, 50.0],
            "nodes": [1, 3],
        }
    )
    run = tb.simulate(tb.Workload(jobs.assign(submit_time=0.0)), "fcfs", sleepy(3), engine=engine)
    assert run.jobs["start"].tolist() == [0, 100]
    assert not (run.nodes["time"] < 150).any()
    late = tb.simulate(tb.Workload(jobs), "fcfs", sleepy(3), engine=engine)
    states = late.nodes[late.nodes["time"] < 160]
    assert states[["time", "node", "power_state"]].to_numpy().tolist() == [
        *([0, node, "shutdown"] for node in (1, 2)),
        *([1, node, "off"] for node in (1, 2)),
        *([100, node, "boot"] for node in (1, 2)),
        *([110, node, "on"] for node in (1, 2)),
    ]
    assert late.jobs["end"].tolist() == [100, 160]


@given(
    st.integers(0, 10**6), st.sampled_from(["firstfit", "easy", "conservative", "pref"]), st.sampled_from([0.0, 40.0])
)
def test_both_engines_keep_the_same_nodes_on(seed: int, policy: str, idle_s: float) -> None:
    case = draw(seed)
    work, machine = workload_of(case.jobs), sleepy(case.machine, idle_s, keep=seed % 2)
    runs = [predict(work, machine, policy, engine=engine) for engine in ("python", "compiled")]
    assert not differences(*runs)
