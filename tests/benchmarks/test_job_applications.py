"""The application of a job: chosen by the workload, checked before the replay, with its memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runs import replaying
from tests.servers.agents import Agent, launch_message
from tracebed.benchmarks.applications.base import load_application, memory, parse_parameters
from tracebed.benchmarks.kernels import compute, stream
from tracebed.benchmarks.program import Program
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

CPU = min(os.sched_getaffinity(0))
NODE = {"name": "n1", "cores": 1, "cpus": str(CPU), "emulated": False}
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
        ({"application": "stream", "application_parameters": "size_mib=120"}, "job a: needs 120 MiB on each"),
        ({"application": "stream", "application_parameters": "size_mib=0"}, "job a: stream.size_mib cannot be 0"),
    ],
)
def test_a_job_that_cannot_run_is_refused_before_the_replay(
    tmp_path: Path, columns: dict[str, object], what: str
) -> None:
    with pytest.raises(InputError) as refused:
        replay(jobs(**columns), computing(100), "fcfs", tmp_path / "run")
    assert str(refused.value).startswith(what) and refused.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("application", "parameters"), [("pils", {}), ("stream", {"size_mib": "48"})], ids=["plain", "with arrays"]
)
def test_a_rank_holds_the_memory_of_its_job(tmp_path: Path, application: str, parameters: dict[str, str]) -> None:
    """The arrays of an application are part of it."""
    program = Program(application, 0, 10**12, 10**6, 1e6, parameters=parameters, memory_mib=64)
    with Agent(tmp_path, node=NODE) as agent:
        agent.greet()
        agent.start("1", program, cpus=str(CPU), cores=1, duty=0.01)
        (rank,) = agent.children()
        held = rank.memory_info().rss
        agent.tell({"type": "kill", "job": "1", "reason": "enough"})
        agent.hear("ended")
        agent.launch("2", program._replace(memory_mib=10**9), cpus=str(CPU), cores=1, duty=0.01)
        ended = agent.hear("ended")
    assert 64 * 2**20 <= held < (64 + 48) * 2**20
    needed = 10**9 - int(parameters.get("size_mib", 0))
    assert ended["state"] == "failed" and f"the rank needs {needed} MiB" in ended["reason"]


@pytest.mark.parametrize(
    ("application", "needs"), [("pils", {"memory_mib": 10**9}), ("stream", {"parameters": {"size_mib": str(10**9)}})]
)
def test_an_emulated_rank_holds_no_memory_and_has_no_arrays(
    tmp_path: Path, application: str, needs: dict[str, Any]
) -> None:
    with Agent(tmp_path) as agent:
        agent.greet()
        agent.tell(launch_message("n1", "1", Program(application, 0, 10, 1, 1e6, **needs), cores=1))
        ended = agent.hear("ended")
    assert (ended["state"], ended["checksum"]) == ("completed", None)


def test_memory_that_is_not_free_is_refused() -> None:
    assert len(memory(32)) == 32 * 2**20
    with pytest.raises(TestbedError, match="the rank needs 1000000000 MiB"):
        memory(10**9)


def test_a_repeated_parameter_is_refused() -> None:
    assert parse_parameters(" a=1  b=x=y ") == {"a": "1", "b": "x=y"}
    with pytest.raises(InputError, match="'a=2'"):
        parse_parameters("a=1 a=2")


@given(st.floats(0, 1), st.floats(0.01, 2), st.lists(st.integers(0, 300), min_size=1, max_size=5))
@settings(max_examples=20)
def test_the_checksum_of_a_simulation_does_not_depend_on_its_division(
    share: float, ratio: float, lengths: list[int]
) -> None:
    program = Program("simulation", 0, 800, 10, 1e6, ratios={"stream": ratio})
    kernel = load_application("simulation", {"initialization": str(share)}).kernel(program)
    whole, parts, begin = kernel(100, sum(lengths)), 0, 100
    for length in lengths:
        parts += kernel(begin, length)
        begin += length
    assert parts % 2**64 == whole


def test_a_simulation_begins_in_memory_and_goes_on_in_the_cache() -> None:
    program = Program("nest", 0, 1000, 10, 1e6, ratios={"stream": 0.5})
    kernel = load_application("nest", {"initialization": "0.1"}).kernel(program)
    in_memory = stream.unit_kernel()
    assert kernel(0, 100) == in_memory(0, 50)
    assert kernel(100, 50) == compute(100, 50)
    assert kernel(90, 20) == (in_memory(45, 5) + compute(100, 10)) % 2**64


@pytest.mark.parametrize(
    ("application", "serial", "changes"),
    [
        ("alya", 0, {"partition": "static", "ratios": {"stream": 0.2}}),  # with divided data
        ("stream", 100, {"balance": "static", "parameters": {"size_mib": "8"}}),
        ("stream", 100, {"balance": "dynamic", "parameters": {"size_mib": "8"}}),
    ],
)
def test_a_job_that_is_resized_ends_as_if_undisturbed(
    tmp_path: Path, application: str, serial: int, changes: dict[str, Any]
) -> None:
    """A rank loses a core and gets it back. Its checksum is that of its units."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    node = {"name": "n1", "cores": len(cpus), "cpus": ",".join(map(str, cpus)), "emulated": False}
    program = Program(application, serial, 20_000, 40, 50_000.0, **changes)
    with Agent(tmp_path, node=node) as agent:
        agent.greet()
        agent.start("1", program, cpus=node["cpus"], cores=len(cpus), duty=0.5)
        for request, mask in enumerate((str(cpus[0]), node["cpus"]), 1):
            agent.tell({"type": "resize", "job": "1", "request": request, "cpus": mask})
            agent.hear("resized")
        ended = agent.hear("ended")
    units = serial + 20_000
    expected = load_application(application, program.parameters).kernel(program)(0, units // 2)
    assert (ended["state"], ended["units_done"], ended["checksum"]) == ("completed", units, f"{expected:016x}")


@pytest.mark.parametrize("kernel", ["pils", "stream", "linpack"])
def test_an_agent_measures_the_rate_of_a_kernel(tmp_path: Path, kernel: str) -> None:
    with Agent(tmp_path, node=NODE) as agent:
        agent.greet()
        agent.tell({"type": "measure", "windows": 2, "seconds": 0.01, "cores": None, "kernel": kernel})
        answer = agent.hear("error" if kernel == "linpack" else "measured")
    if kernel == "linpack":
        assert "unknown kernel 'linpack' (one of pils, stream)" in answer["what"]
    else:
        [[(rate, _), _]] = answer["rates"]
        assert rate > 100


@pytest.mark.slow
def test_a_replay_sizes_each_job_by_the_rate_of_its_kernel(tmp_path: Path) -> None:
    """A job in memory and a job in the cache take the same time, though their units differ."""
    table = {"job_id": ["cache", "memory"], "submit_time": [0.0, 0.0], "run_time": [40.0, 40.0], "nodes": 1}
    workload = Workload(pd.DataFrame(table | {"application": ["pils", "nest"], "application_parameters": ["", ONE]}))
    nodes = (Node("n1", 1, 1, (CPU,), False, 0.3),)
    run = replay(workload, Inventory("one", "agents", nodes), "fcfs", tmp_path / "run", **replaying(speed=100))
    assert set(run.jobs["state"]) == {"completed"}
    assert set(run.info.calibration["rates"]) == {"pils", "stream"}
    _, entries = journal.read(tmp_path / "run" / JOURNAL)
    planned = [entry.data["planned_s"] for entry in entries if entry.kind == "ended"]
    assert planned == pytest.approx([0.4, 0.4], rel=0.01)


ONE = "initialization=1"


@given(st.integers(0, 2**40), st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(1, 4))
@settings(max_examples=20)
def test_the_checksum_of_stream_does_not_depend_on_its_division(first: int, lengths: list[int], size_mib: int) -> None:
    """Another rank does the same on arrays of its own, after other units."""
    program = Program("stream", 0, 800, 10, 1e6)
    application = load_application("stream", {"size_mib": str(size_mib)})
    kernel, other = application.kernel(program), application.kernel(program)
    whole, parts, begin = kernel(first, sum(lengths)), 0, first
    other(0, 7)
    for length in lengths:
        parts += other(begin, length)
        begin += length
    assert parts % 2**64 == whole
    blocks, unit = size_mib * 2**20 // (3 * 8 * stream.BLOCK), first + sum(lengths)
    start = ((unit * 0x9E3779B97F4A7C15 % 2**64 >> 32) * blocks >> 32) * stream.BLOCK
    value = sum(index % 1009 + 3 * (index % 2003) for index in range(start, start + stream.BLOCK))
    assert kernel(unit, 1) == (unit + 1) * value % 2**64
