"""The application of a job: chosen by the workload, checked before the replay, with its memory."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import psutil
import pytest

from agents import Agent, launch_message
from tracebed.benchmarks.applications import registry
from tracebed.benchmarks.applications.base import memory
from tracebed.benchmarks.program import Program
from tracebed.converters.workload import Workload
from tracebed.errors import InputError, TestbedError
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

CPU = min(os.sched_getaffinity(0))
pytestmark = pytest.mark.usefixtures("no_process_is_left")


def jobs(**columns: object) -> Workload:
    first = {"job_id": ["a"], "submit_time": [0.0], "run_time": [1.0], "nodes": [1], "kind": ["rigid"]}
    return Workload(pd.DataFrame(first | {name: [value] for name, value in columns.items()}))


def computing(memory_mib: int) -> Inventory:
    return Inventory("one", "agents", (Node("n1", 1, 1, (CPU,), False, 0.2, memory_mib),))


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"application": "linpack"}, "job a: unknown application 'linpack'"),
        ({"application_parameters": "size=3"}, "job a: application pils has no parameter 'size'"),
        ({"application_parameters": "size"}, "job a: application_parameters has 'size'"),
        ({"memory_mib": 100.5}, "job a: needs 101 MiB on each of 1 nodes, and the nodes have 100 MiB"),
    ],
)
def test_a_job_that_cannot_run_is_refused_before_the_replay(
    tmp_path: Path, columns: dict[str, object], what: str
) -> None:
    with pytest.raises(InputError) as refused:
        replay(jobs(**columns), computing(100), "fcfs", tmp_path / "run")
    assert str(refused.value).startswith(what) and refused.value.hint
    assert not list(tmp_path.iterdir())


def test_a_rank_holds_the_memory_of_its_job(tmp_path: Path) -> None:
    node = {"name": "n1", "cores": 1, "cpus": str(CPU), "emulated": False}
    program = Program("pils", 0, 10**12, 10**6, rate=1e6, memory_mib=64)
    with Agent(tmp_path, node=node) as agent:
        agent.greet()
        agent.launch("1", program, cpus=str(CPU), cores=1, duty=0.01)
        agent.hear("started")
        (rank,) = agent.children()
        assert rank.memory_info().rss >= 64 * 2**20
        agent.tell({"type": "kill", "job": "1", "reason": "enough"})
        agent.hear("ended")
        agent.launch("2", program._replace(memory_mib=10**9), cpus=str(CPU), cores=1, duty=0.01)
        ended = agent.hear("ended")
    assert ended["state"] == "failed" and "the rank needs 1000000000 MiB" in ended["reason"]


def test_an_emulated_rank_holds_no_memory(tmp_path: Path) -> None:
    program = Program("pils", 0, 10, 1, rate=1e6, memory_mib=10**9)
    with Agent(tmp_path) as agent:
        agent.greet()
        agent.tell(launch_message("n1", "1", program, cores=1))
        ended = agent.hear("ended")
    assert ended["state"] == "completed" and ended["checksum"] is None


def test_memory_that_is_not_free_is_refused() -> None:
    before = psutil.Process().memory_info().rss
    held = memory(32)
    assert len(held) == 32 * 2**20
    assert psutil.Process().memory_info().rss - before >= 31 * 2**20
    with pytest.raises(TestbedError, match="the rank needs 1000000000 MiB"):
        memory(10**9)


def test_a_repeated_parameter_is_refused() -> None:
    assert registry.parse(" a=1  b=x=y ") == {"a": "1", "b": "x=y"}
    with pytest.raises(InputError, match="'a=2'"):
        registry.parse("a=1 a=2")
