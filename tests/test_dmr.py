"""Checks of the status, as `dmr_check_status`: the rule, the resource manager of a node, and programs that ask."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from patience import GUARD_S
from tracebed import malleable
from tracebed.benchmarks.dmr import Action, Answer, SizeRange, check_status
from tracebed.benchmarks.dmr_manager import NodeCpus, ResourceManager, request_decision
from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.lines import decode
from tracebed.benchmarks.node_table import NodeTable
from tracebed.errors import InputError, TestbedError

PAPER = SizeRange(3, 6, 12)
"""The sizes of HPG-aligner in the paper: 3 to 12 processes, preferred 6."""


@pytest.mark.parametrize(
    ("size", "idle", "waiting", "answer"),
    [
        (12, 0, [], Answer(Action.NONE, 12)),
        (12, 0, [3], Answer(Action.SHRINK, 6)),  # to the preferred size, although 9 would be enough
        (12, 0, [9], Answer(Action.SHRINK, 3)),  # the preferred size does not suffice
        (12, 0, [10], Answer(Action.NONE, 12)),  # no shrink would help
        (12, 0, [10, 3], Answer(Action.SHRINK, 6)),  # a later job can start
        (12, 2, [3], Answer(Action.SHRINK, 6)),
        (12, 3, [3], Answer(Action.NONE, 12)),  # the job can start without a shrink
        (6, 0, [3], Answer(Action.SHRINK, 3)),
        (3, 0, [3], Answer(Action.NONE, 3)),
        (3, 4, [], Answer(Action.EXPAND, 7)),
        (3, 40, [], Answer(Action.EXPAND, 12)),
        (3, 4, [4], Answer(Action.NONE, 3)),  # the waiting job can use the idle processors
        (3, 4, [8], Answer(Action.EXPAND, 7)),  # it cannot use them, and a shrink would not help
        (6, 4, [7], Answer(Action.SHRINK, 3)),
        (20, 5, [], Answer(Action.NONE, 20)),  # above its largest size: no action
    ],
)
def test_a_check_shrinks_for_waiting_jobs_and_expands_onto_idle_processors(
    size: int, idle: int, waiting: list[int], answer: Answer
) -> None:
    assert check_status(size, PAPER, idle, waiting) == answer


@pytest.mark.parametrize("sizes", [(0, 1, 2), (2, 1, 3), (1, 4, 3), (1, 2.5, 3), (True, 1, 1)])
def test_invalid_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="are invalid"):
        SizeRange(*sizes).checked()
    with malleable.attach() as m, pytest.raises(InputError, match="are invalid"):
        m.check(sizes[0], sizes[2], sizes[1])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[NodeTable]:
    made = NodeTable.create(tmp_path / "table", range(8))
    yield made
    made.close()


PROGRAM = """
import sys
from tracebed import malleable
with malleable.attach(pin=False) as m:
    print(0, *m.cpus, flush=True)
    for line in sys.stdin:
        print(int(m.check(2, 6, 4)), *m.cpus, flush=True)
"""


def test_a_program_asks_and_gets_or_releases_cpus(table: NodeTable) -> None:
    """Jobs that wait for CPUs, and CPUs that become idle, change the CPUs of a program at its next check."""
    administrator = Administrator(table)
    cpus = NodeCpus(administrator)
    with ResourceManager(cpus) as manager:
        _, variables = administrator.prepare(os.getpid(), range(4))
        environment = {**os.environ, **variables, **manager.variables}
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert program.stdin is not None
        assert program.stdout is not None

        def check() -> list[int]:
            assert program.stdin is not None
            assert program.stdout is not None
            program.stdin.write("\n")
            program.stdin.flush()
            return [int(word) for word in program.stdout.readline().split()]

        with program:
            assert program.stdout.readline().split() == ["0", "0", "1", "2", "3"]
            assert check() == [1, 0, 1, 2, 3, 4, 5]  # four CPUs were idle: up to the largest size
            assert check() == [0, 0, 1, 2, 3, 4, 5]
            cpus.waiting = [4]
            assert check() == [1, 0, 1, 2, 3]  # down to the preferred size: 4 CPUs are idle
            assert check() == [0, 0, 1, 2, 3]  # the job can start: no expansion onto its CPUs
            assert administrator.free() == (4, 5, 6, 7)
            cpus.waiting = [6]
            assert check() == [1, 0, 1]
            assert check() == [0, 0, 1]
            cpus.waiting = []
            assert check() == [1, 0, 1, 2, 3, 4, 5]
            program.stdin.close()
            assert program.wait(GUARD_S) == 0


def test_a_program_without_its_resource_manager_keeps_its_cpus(
    table: NodeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    administrator = Administrator(table)
    with ResourceManager(NodeCpus(administrator)) as manager:
        _, variables = administrator.prepare(os.getpid(), range(2))
    for name, value in {**variables, **manager.variables}.items():
        monkeypatch.setenv(name, value)
    with malleable.attach(pin=False) as m:
        with pytest.warns(UserWarning, match="does not answer a check"):
            assert not m.check(1, 8, 4)
        assert m.cpus == (0, 1)


def test_an_invalid_request_has_an_answer_and_the_next_one_too(tmp_path: Path) -> None:
    def decide(pid: int, size: int, sizes: SizeRange) -> Answer:
        assert pid == os.getpid()
        return check_status(size, sizes, 1, [])

    with ResourceManager(decide) as manager:
        (path,) = manager.variables.values()
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
            answers = link.makefile("rb")
            for request in (b"[]", b"{}", b"{", b'{"size":0,"least":1,"preferred":1,"most":2}'):
                link.sendall(request + b"\n")
                assert list(decode(answers.readline())) == ["error"], request
            answers.close()
        assert request_decision(path, 1, SizeRange(1, 1, 2)) == Answer(Action.EXPAND, 2)
        assert oct(Path(path).parent.stat().st_mode & 0o777) == "0o700"
    assert not Path(path).parent.exists()
    with pytest.raises(TestbedError, match="does not answer"):
        request_decision(str(tmp_path / "missing"), 1, PAPER)


def test_the_folder_of_a_resource_manager_can_be_lost(table: NodeTable) -> None:
    with ResourceManager(NodeCpus(Administrator(table))) as manager:
        (path,) = manager.variables.values()
        shutil.rmtree(Path(path).parent)
        with pytest.raises(TestbedError, match="does not answer"):
            request_decision(path, 1, PAPER)
