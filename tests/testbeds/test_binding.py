"""Processes that do not keep to the CPUs of their job: they are put back, and the run says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest

from tests.patience import until
from tests.runs import replaying
from tests.servers.agents import Agent, stopped
from tracebed.benchmarks.affinity import strays, threads_of
from tracebed.benchmarks.program import Program
from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay.programs import AllowedCommand, AllowedCommands
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.testbeds.local import AGENT
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]
pytestmark = [
    pytest.mark.usefixtures("no_process_is_left"),
    pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs"),
]
STRAYING = """
import os, time
os.sched_setaffinity(0, {mask})
while os.sched_getaffinity(0) == {mask}: time.sleep(0.01)
print(sorted(os.sched_getaffinity(0)), flush=True)
"""


OFTEN = """
from tracebed.orchestrator.testbeds.agent import masks
from tracebed.orchestrator.testbeds.agent.__main__ import main
masks.CHECK_S = 0.3
main([])
"""
"""An agent that checks the CPUs of threads more often."""


NODE = {"name": "n1", "cores": 2, "cpus": ",".join(map(str, CPUS)), "emulated": False}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with Agent(tmp_path, node=NODE) as agent:
        agent.greet()
        yield agent


@pytest.fixture
def checking(tmp_path: Path) -> Iterator[Agent]:
    with Agent(tmp_path, [*AGENT[:2], "-c", OFTEN], node=NODE) as agent:
        agent.greet()
        yield agent


def test_a_thread_outside_its_mask_is_put_back_and_reported(checking: Agent) -> None:
    low, high = CPUS
    checking.start("1", Program("pils", 0, 10**12, 10**6, rate=1e6), cpus=str(low), cores=1, duty=0.01)
    (rank,) = checking.children()
    assert not strays(rank.pid, [low])
    checker = psutil.Process(checking.process.pid)
    checker.suspend()  # it would report each of the threads alone
    assert stopped(checker)
    for thread in threads_of(rank.pid):
        os.sched_setaffinity(thread, CPUS)
    checker.resume()
    found = checking.hear("stray")
    assert {name: found[name] for name in ("job", "rank", "cpus", "put_back")} == {
        **{"job": "1", "rank": "n1"},
        **{"cpus": str(low), "put_back": True},
    }
    assert found["threads"] >= 2 and str(high) in found["used"]
    assert not strays(rank.pid, [low])
    checking.tell({"type": "resize", "job": "1", "cpus": str(high), "request": 1})
    checking.hear("resized")
    for thread in threads_of(rank.pid):
        os.sched_setaffinity(thread, [low])
    assert until(lambda: not strays(rank.pid, [high]))


@pytest.mark.slow
def test_ranks_that_follow_their_masks_are_not_reported(agent: Agent) -> None:
    agent.start("1", Program("pils", 0, 10**12, 10**6, rate=1e6), duty=0.01)
    for request in range(60):
        cpus = (CPUS[:1], CPUS[1:], CPUS)[request % 3]
        agent.tell({"type": "resize", "job": "1", "cpus": ",".join(map(str, cpus)), "request": request})
        agent.hear("resized")
    agent.tell({"type": "sample", "calibrate": False})
    agent.hear("heartbeat")
    assert "stray" not in [message["type"] for message in agent.heard]


@pytest.mark.slow
def test_the_run_names_the_jobs_that_left_their_cpus(tmp_path: Path) -> None:
    code = STRAYING.format(mask={CPUS[1]})
    command = AllowedCommand(arguments=[sys.executable, "-c", code])
    allowed = AllowedCommands("commands.yaml", "0" * 64, {"strays": command})
    table = {"job_id": "a", "submit_time": 0.0, "run_time": 1.0, "nodes": 1, "kind": "rigid", "application": "command"}
    table |= {"application_parameters": "name=strays"}
    workload = Workload(pd.DataFrame({name: [value] for name, value in table.items()}))
    inventory = Inventory("one", "agents", (Node("n1", 1, 1, (CPUS[0],), False, 1.0),))
    run = replay(workload, inventory, "fcfs", tmp_path / "run", **replaying(commands=allowed))
    what = f"job a on n1: a process changed its own CPU mask ({CPUS[1]} instead of {CPUS[0]})"
    assert what in run.info.warnings
    assert list(run.jobs["state"]) == ["completed"]
