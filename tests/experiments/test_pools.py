"""Pools of local processes: what the workers share with this process, and that they end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import GUARD_S, until

POOL = """
import operator, os, sys, threading, time
from functools import partial
from tracebed.validation.experiments.pools import LocalPool

READ = []


def pids(item):
    time.sleep(0.05)
    return os.getpid(), len(READ)


def sleeping(item):
    print(os.getpid(), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    READ.append("read before the workers start")
    other = threading.Thread(target=time.sleep, args=(60,), daemon=True)
    if "thread" in sys.argv:
        other.start()
    with LocalPool(2) as pool:
        assert list(pool.map(pids, [])) == []
        if "data" in sys.argv:  # all workers have the first function, each later one comes with its items
            squares = [number**2 for number in range(6)]
            print(sorted(pool.map(partial(operator.getitem, squares), range(6))))
            print(sorted(pool.map(partial(pow, 3), range(3))))
        if "sleep" in sys.argv:
            list(pool.map(sleeping, range(2)))
        found = dict(pool.map(pids, range(6)))
    assert os.getpid() not in {pid for pid, _ in found.values()}
    print(sorted({read for _, read in found.values()}))
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    path = tmp_path / "pool.py"
    path.write_text(POOL)
    return [sys.executable, "-W", "error", str(path)]


@pytest.mark.parametrize(("words", "shared"), [((), "[1]\n"), (("thread",), "[0]\n")])
def test_workers_share_what_was_read_unless_there_are_threads(
    program: list[str], words: tuple[str, ...], shared: str
) -> None:
    """Forking beside a thread could keep one of its locks closed; the workers then start anew."""
    done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=GUARD_S, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (shared, "", 0)


@pytest.mark.parametrize("words", [("data",), ("data", "thread")])
def test_a_pool_computes_several_functions(program: list[str], words: tuple[str, ...]) -> None:
    done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=GUARD_S, check=False)
    assert done.stdout.splitlines()[:2] == [
        *("[(0, 0), (1, 1), (2, 4), (3, 9), (4, 16), (5, 25)]", "[(0, 1), (1, 3), (2, 9)]")
    ], done.stderr


@pytest.mark.parametrize("words", [("sleep",), ("sleep", "thread")])
def test_workers_end_when_the_main_process_is_killed(program: list[str], words: tuple[str, ...]) -> None:
    with subprocess.Popen([*program, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        workers = [int(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGKILL)
        assert until(lambda: not any(map(_lives, workers)))


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
