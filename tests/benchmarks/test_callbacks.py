"""Callbacks and the asynchronous receiver (DROM paper, section 3.1), with real processes on a table of eight CPUs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.answering import AFTER_A_LINE, Answering
from tracebed import malleable
from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.ownership import DromResult, Flags

PROGRAM = """
import signal, sys
from tracebed import malleable

def use(cpus):
    print(cpus, flush=True)
    if "fails" in sys.argv and len(cpus) == 1:
        raise RuntimeError("cannot shrink")
    sys.stdin.readline()          # the program still uses its CPUs until the test says so

asynchronous = "asynchronous" in sys.argv
with malleable.attach(pin=False, on_change=use, asynchronous=asynchronous) as m:
    print(m.cpus, flush=True)
    if asynchronous:
        signal.pause()            # no malleability point
    for line in sys.stdin:
        try:
            print(m.poll(), m.cpus, flush=True)
        except RuntimeError as error:
            print(error, flush=True)
"""


class Program(Answering):
    """A program on CPUs 0 to 3, whose callback prints the CPUs and returns after a line."""

    def __init__(self, administrator: Administrator, *arguments: str) -> None:
        environment = {**os.environ, "TRACEBED_DROM_TABLE": str(administrator.table.path)}
        super().__init__([*AFTER_A_LINE, sys.executable, "-c", PROGRAM, *arguments], environment)
        assert administrator.prepare(self.pid, range(4))[0] is DromResult.SUCCESS
        assert self.ask() == "(0, 1, 2, 3)"
        self.fails = "fails" in arguments

    def __exit__(self, *_: object) -> None:
        assert self.kill() == "" or self.fails


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Administrator]:
    table = NodeTable.create(tmp_path / "node", range(8))
    yield Administrator(table, sync_s=60.0)
    table.close()


def test_the_receiver_applies_changes_without_a_malleability_point(admin: Administrator) -> None:
    """The CPUs that a program loses are free once its callback has returned, and not before."""
    with Program(admin, "asynchronous") as program:
        assert admin.set_mask(program.pid, [1]) is DromResult.NOTED
        assert program.heard() == "(1,)"
        assert admin.mask(program.pid) == (DromResult.NOTED, (0, 1, 2, 3))
        assert admin.free() == (4, 5, 6, 7)
        program.tell()
        assert admin.mask(program.pid, Flags.SYNC) == (DromResult.SUCCESS, (1,))
        assert admin.free() == (0, 2, 3, 4, 5, 6, 7)
        assert admin.set_mask(program.pid, [4, 5]) is DromResult.NOTED  # it loses one CPU and receives two
        assert program.heard() == "()"
        assert program.ask() == "(4, 5)"
        assert admin.mask(program.pid) == (DromResult.SUCCESS, (4, 5))


def test_a_change_during_a_callback_is_told_before_it_is_applied(admin: Administrator) -> None:
    with Program(admin, "asynchronous") as program:
        assert admin.set_mask(program.pid, [0, 1]) is DromResult.NOTED
        assert program.heard() == "(0, 1)"
        assert admin.set_mask(program.pid, [1, 2], Flags.REPLACE) is DromResult.NOTED
        assert program.ask() == "(1,)"
        assert admin.mask(program.pid) == (DromResult.NOTED, (0, 1, 2, 3))
        assert program.ask() == "(1, 2)"
        assert admin.mask(program.pid) == (DromResult.SUCCESS, (1, 2))


def test_poll_calls_the_callback(admin: Administrator) -> None:
    with Program(admin) as program:
        assert program.ask() == "False (0, 1, 2, 3)"
        assert admin.set_mask(program.pid, [0, 1, 7]) is DromResult.NOTED
        assert program.ask() == "(0, 1)"
        assert admin.mask(program.pid) == (DromResult.NOTED, (0, 1, 2, 3))
        assert program.ask() == "(0, 1, 7)"
        assert program.ask() == "True (0, 1, 7)"


def test_a_callback_that_fails_changes_nothing(admin: Administrator) -> None:
    receiving = Administrator(admin.table)
    with Program(admin, "fails") as program:
        for _ in range(2):  # the change is still pending, and fails again
            receiving.set_mask(program.pid, [3])
            assert program.ask() == "(3,)"
            assert program.heard() == "cannot shrink"
            assert admin.mask(program.pid) == (DromResult.NOTED, (0, 1, 2, 3))
        assert admin.set_mask(program.pid, [2, 3], Flags.REPLACE) is DromResult.NOTED
        assert program.ask() == "(2, 3)"
        assert program.ask() == "True (2, 3)"


def test_a_callback_that_fails_ends_the_receiver_with_a_trace(admin: Administrator) -> None:
    with Program(admin, "asynchronous", "fails") as program:
        assert admin.set_mask(program.pid, [3]) is DromResult.NOTED
        assert program.heard() == "(3,)"
        assert program.process.stderr is not None
        lines = iter(program.process.stderr.readline, "")
        assert any("RuntimeError: cannot shrink" in line for line in lines)
        assert admin.mask(program.pid) == (DromResult.NOTED, (0, 1, 2, 3))


def test_the_receiver_ends_with_the_program(admin: Administrator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEBED_DROM_TABLE", str(admin.table.path))
    assert admin.prepare(os.getpid(), range(4))[0] is DromResult.SUCCESS
    changed = threading.Event()
    with malleable.attach(pin=False, on_change=lambda _: changed.set(), asynchronous=True) as m:
        assert admin.set_mask(os.getpid(), [0]) is DromResult.SUCCESS
        assert changed.wait(60.0)
        assert m.poll() and m.cpus == (0,)  # noticed by the receiver, reported by the next poll
        assert not m.poll()
    assert "tracebed-receiver" not in {thread.name for thread in threading.enumerate()}
