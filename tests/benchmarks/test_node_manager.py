"""Equipartition of a node among all its jobs (DROM paper, section 5), alone and on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.node_manager import Equipartition, NodeManager
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.ownership import DromResult
from tracebed.ground.errors import InputError, TestbedError

MN3 = (range(8), range(8, 16))
PROGRAM = """
import sys
from tracebed import malleable
with malleable.attach(pin=False) as m:
    while True:
        print(*m.cpus, flush=True)
        if not sys.stdin.readline():
            break
        m.poll(wait=False)
"""


def sizes(placement: Equipartition) -> dict[str, list[int]]:
    return {name: [*map(len, tasks)] for name, tasks in placement.masks().items()}


def test_two_jobs_have_a_socket_each_and_the_last_one_both() -> None:
    """Section 6.2: 16 CPUs for each application on two nodes, 8 on a node, in separate sockets."""
    node = Equipartition(MN3)
    node.start("nest", 1, 16)
    assert node.masks() == {"nest": [(*range(16),)]}
    node.start("coreneuron", 1, 16)
    assert node.masks() == {"nest": [(*range(8),)], "coreneuron": [(*range(8, 16),)]}
    node.end("nest")
    assert node.masks() == {"coreneuron": [(*range(16),)]}


def test_jobs_that_request_less_leave_the_rest_to_the_others() -> None:
    """Table 1: two ranks of NEST beside PILS of 4 CPUs and STREAM of 2; the ranks of NEST stay balanced."""
    node = Equipartition(MN3)
    node.start("nest", 2, 16)
    assert node.masks()["nest"] == [(*range(8),), (*range(8, 16),)]
    node.start("pils", 1, 4)
    assert node.masks() == {"nest": [(0, 1, 2, 3, 4, 5), (6, 7, 8, 9, 10, 11)], "pils": [(12, 13, 14, 15)]}
    node.start("stream", 1, 2)
    assert sizes(node) == {"nest": [5, 5], "pils": [4], "stream": [2]}
    node.end("pils")
    assert sizes(node) == {"nest": [7, 7], "stream": [2]}
    assert node.masks()["stream"] == [(10, 11)]  # a job that runs keeps its CPUs


def test_cpus_return_to_the_job_that_had_them_first() -> None:
    node = Equipartition([range(8)])
    for name in "abc":
        node.start(name, 1)
    assert sizes(node) == {"a": [3], "b": [3], "c": [2]}
    assert node.masks()["c"] == [(3, 7)]  # one of each, whose first owner is a
    node.end("b")
    assert node.masks() == {"a": [(0, 1, 2, 4)], "c": [(3, 5, 6, 7)]}
    node.end("a")
    assert node.masks() == {"c": [(*range(8),)]}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(1, 16)), max_size=20))
def test_shares_are_equal_disjoint_and_change_in_one_direction(steps: list[tuple[int, int, int]]) -> None:
    node, jobs = Equipartition(MN3), dict[str, tuple[int, int]]()
    for number, tasks, cpus in steps:
        name, before = str(number), {job: set().union(*masks) for job, masks in node.masks().items()}
        if starts := name not in jobs:
            if tasks + sum(count for count, _ in jobs.values()) > 16:
                continue
            node.start(name, tasks, cpus)
            jobs[name] = tasks, max(tasks, cpus)
        else:
            node.end(name)
            del jobs[name]
        masks = node.masks()
        after = {job: set().union(*tasks) for job, tasks in masks.items()}
        assert after.keys() == jobs.keys()
        for job in after.keys() & before.keys():  # a running job keeps a part of its mask, or gets more
            assert after[job] <= before[job] if starts else after[job] >= before[job]
        used = [cpu for cpus in after.values() for cpu in cpus]
        assert len(used) == len(set(used)) == min(16, sum(most for _, most in jobs.values()))
        for job, (count, most) in jobs.items():
            assert len(masks[job]) == count and all(masks[job])
            assert max(map(len, masks[job])) - min(map(len, masks[job])) <= 1
            for other, (other_count, _) in jobs.items():  # none has less than its request while another has more
                if len(after[job]) < most and len(after[other]) > other_count:
                    assert len(after[other]) <= len(after[job]) + 1


def test_a_job_that_does_not_fit_or_is_unknown_is_refused() -> None:
    node = Equipartition([range(2)])
    node.start("a", 1)
    with pytest.raises(InputError, match="on the node already"):
        node.start("a", 1)
    with pytest.raises(InputError, match="3 tasks on 2 CPUs"):
        node.start("b", 2)
    with pytest.raises(InputError, match="has 0 tasks"):
        node.start("b", 0)
    with pytest.raises(InputError, match="b is not on the node"):
        node.end("b")
    assert node.masks() == {"a": [(0, 1)]}


class Task:
    """A process that prints its CPUs at its start and after each poll."""

    def __init__(self) -> None:
        script = 'read variables; exec env $variables "$@"'
        command = ["sh", "-c", script, "sh", sys.executable, "-c", PROGRAM]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def say(self, line: str = "") -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[NodeManager]:
    table = NodeTable.create(tmp_path / "node", range(8))
    yield NodeManager(Administrator(table), [range(4), range(4, 8)])
    table.close()


def begin(task: Task, variables: object) -> str:
    assert isinstance(variables, dict)
    return task.say(" ".join(f"{name}={value}" for name, value in variables.items()))


def test_three_jobs_share_a_node_and_the_last_one_has_it(manager: NodeManager) -> None:
    """Each process obeys at its next poll; no CPU has two holders."""
    first, second, third, fourth = tasks = [Task() for _ in range(4)]
    try:
        (variables,) = manager.launch("one", [first.pid])
        assert begin(first, variables) == "0 1 2 3 4 5 6 7"
        two = manager.launch("two", [second.pid, third.pid])
        assert first.say() == "0 1 2 3"
        assert [begin(task, found) for task, found in zip((second, third), two, strict=True)] == ["4 5", "6 7"]
        (variables,) = manager.launch("three", [fourth.pid], 2)
        assert manager.placement.masks() == {"one": [(0, 1, 2)], "two": [(4,), (5, 6)], "three": [(3, 7)]}
        assert first.say() == "0 1 2"
        assert second.say() == "4"
        assert begin(fourth, variables) == "3"  # the process of task 2.2 still holds CPU 7
        assert third.say() == "5 6"
        assert fourth.say() == "3 7"
        second.end(), third.end()
        manager.end("two")
        assert [first.say(), fourth.say()] == ["0 1 2 4 5 6", "3 7"]
        first.end()
        manager.end("one")
        assert fourth.say() == "3 7"  # as many as it requested
    finally:
        for task in tasks:
            task.end()


def test_a_process_that_has_ended_is_refused_and_leaves_nothing(manager: NodeManager) -> None:
    task, gone = Task(), Task()
    gone.end()
    try:
        (variables,) = manager.launch("one", [task.pid])
        with pytest.raises(TestbedError, match="cannot be placed: NO_PROCESS"):
            manager.launch("two", [gone.pid, os.getpid()])
        assert manager.placement.masks() == {"one": [(*range(8),)]}
        assert begin(task, variables) == "0 1 2 3 4 5 6 7"
        assert manager._administrator.mask(os.getpid())[0] is DromResult.NO_PROCESS
    finally:
        task.end()
