"""`tracebed nodes bench pils`: ranks with different loads, whose result depends on the work only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.patience import GUARD_S
from tracebed.benchmarks import kernels
from tracebed.benchmarks.affinity import threads_of
from tracebed.benchmarks.drom import TABLE, Administrator
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.ownership import DromResult, Flags
from tracebed.benchmarks.standalone import pils
from tracebed.benchmarks.standalone.pils import PilsResult, PilsWork, RankResult, Reduce, run_ranks
from tracebed.benchmarks.standalone.team import Team
from tracebed.cli import tracebed
from tracebed.ground.errors import ExitCode, InputError, TestbedError

CPUS = tuple(sorted(os.sched_getaffinity(0)))
needs_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
FOREVER = ["nodes", "bench", "pils", "--set", "units=1", "--set", "loads=4", "--set", f"iterations={10**7}"]


def expected(work: PilsWork, ranks: int) -> int:
    return sum(kernels.compute(0, work.load(rank) * work.iterations * work.units) for rank in range(ranks)) % 2**64


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.floats(0.01, 1.0),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, len(CPUS)),
)
def test_the_checksum_depends_on_the_work_only(
    loads: list[int], grain: float, iterations: int, units: int, threads: int
) -> None:
    result = pils.run(loads, grain=grain, iterations=iterations, units=units, threads=threads)
    assert result.checksum == expected(result.work, 1)
    assert result.ranks[0].cpus == (CPUS[:threads],) * iterations


@needs_cpus
def test_each_rank_has_its_load_and_its_cpus() -> None:
    result = pils.run([3, 5], iterations=4, units=2, ranks=2, threads=1)
    assert [rank.load for rank in result.ranks] == [3, 5]
    assert [rank.cpus for rank in result.ranks] == [((CPUS[0],),) * 4, ((CPUS[1],),) * 4]
    assert [rank.checksum for rank in result.ranks] == [expected(result.work, 2)] * 2
    for rank in result.ranks:
        assert all(0 < compute < whole for compute, whole in zip(rank.compute_s, rank.iteration_s, strict=True))
        assert rank.cpu_s > 0


def test_load_balance_and_efficiency_follow_their_definition() -> None:
    ranks = (
        RankResult(1, ((0,), (0,)), (1.0, 2.0), (3.0, 4.0), 2.5, 0),
        RankResult(2, ((1, 2), (1,)), (2.5, 3.5), (3.0, 4.0), 5.0, 0),
    )
    result = PilsResult("c", PilsWork((1, 2), 1.0, 2, 1), ranks, 7.0)
    assert result.load_balance == pytest.approx((3 + 6) / 2 / 6)
    assert [rank.wait_s for rank in ranks] == [4.0, 1.0]
    assert [rank.core_s for rank in ranks] == [7.0, 10.0]
    assert result.efficiency == pytest.approx(7.5 / 17)


def test_the_work_of_a_task_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "calibrate", lambda: 4000.0)
    assert pils.run([1], iterations=1, task_s=0.01).work.units == 40
    assert pils.run([1], iterations=1, task_s=1e-9).work.units == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loads": []}, "not positive"),
        ({"loads": [1, 0]}, "not positive"),
        ({"grain": 0.0}, "grain 0"),
        ({"grain": 1.5}, "grain 1.5"),
        ({"grain": float("nan")}, "grain nan"),
        ({"task_s": 0.0}, "task of 0 s"),
        ({"iterations": 0}, "iterations is 0"),
        ({"units": 0}, "units is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": len(CPUS) + 1}, f"need {len(CPUS) + 1} CPUs"),
        ({"ranks": 2, "threads": len(CPUS)}, f"need {2 * len(CPUS)} CPUs"),
        ({"cpus": [CPUS[-1] + 1]}, f"may not use CPU {CPUS[-1] + 1}"),
    ],
)
def test_invalid_arguments_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pils.run(**({"loads": [1], "units": 1} | given))


# Ranks


def test_a_reduction_adds_the_values_of_all_ranks() -> None:
    def rank(number: int, reduce: Reduce) -> list[int]:
        return [reduce(number), reduce(10 * number)]

    assert run_ranks(1, rank) == [[0, 0]]
    assert run_ranks(4, rank) == [[6, 60]] * 4


def failing(number: int, reduce: Reduce) -> int:
    reduce(0)
    if number == 1:
        raise TestbedError("no memory")
    return reduce(0)


def killed(number: int, reduce: Reduce) -> int:
    reduce(0)
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return reduce(0)


def root_failing(number: int, reduce: Reduce) -> int:
    reduce(0)
    if number == 0:
        raise TestbedError("rank 0 fails")
    return reduce(0)


@pytest.mark.parametrize(
    ("rank", "message"),
    [(failing, "rank 1: no memory"), (killed, "rank 1 has ended early"), (root_failing, "rank 0 fails")],
)
def test_a_rank_that_fails_ends_all(rank: Callable[[int, Reduce], int], message: str) -> None:
    before = psutil.Process().children()  # of other tests
    with pytest.raises(TestbedError, match=message):
        run_ranks(3, rank)
    assert set(psutil.Process().children()) <= set(before)


# Malleability


@pytest.fixture
def administrator(tmp_path: Path) -> Iterator[Administrator]:
    table = NodeTable.create(tmp_path / "node", CPUS[:2])
    yield Administrator(table, sync_s=GUARD_S)
    table.close()


@needs_cpus
def test_an_administrator_changes_the_cpus_and_the_checksum_stays(
    administrator: Administrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, high = CPUS[:2]
    me = os.getpid()
    changes: dict[int, tuple[int, ...]] = {3: (high,), 6: (low, high), 8: (low,)}
    original, done = pils._tasks, []

    def tasks(team: Team, *arguments: Any) -> list[tuple[int, float]]:
        done.append(team.cpus)
        if cpus := changes.get(len(done)):
            assert not administrator.set_mask(me, cpus).error
        return original(team, *arguments)

    monkeypatch.setattr(pils, "_tasks", tasks)
    monkeypatch.setenv(TABLE, str(administrator.table.path))
    assert not administrator.prepare(me, [low, high])[0].error
    result = pils.run([7], grain=0.3, iterations=10, units=3)
    assert list(result.ranks[0].cpus) == done == [(low, high)] * 3 + [(high,)] * 3 + [(low, high)] * 2 + [(low,)] * 2
    assert result.checksum == expected(result.work, 1)
    assert administrator.free() == (low, high)
    with pytest.raises(InputError, match="the table of CPUs chooses them"):
        pils.run([1], units=1, cpus=[low])


@contextlib.contextmanager
def started(administrator: Administrator, *words: str, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """Run the command with both CPUs prepared for it, after the code `before`."""
    code = "import json, os, sys; os.environ.update(json.loads(sys.stdin.readline()))\n"
    code += f"from tracebed.benchmarks.standalone import pils; {before}\nfrom tracebed.cli import main; main()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code, *FOREVER, *words], **pipes)
    try:
        prepared, variables = administrator.prepare(process.pid, CPUS[:2])
        assert prepared is DromResult.SUCCESS
        assert process.stdin is not None
        process.stdin.write(json.dumps(dict(variables)) + "\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + GUARD_S
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.01)


def second_rank(administrator: Administrator, process: subprocess.Popen[str]) -> int:
    """Wait until both ranks have registered, and return the PID of rank 1."""
    wait_for(lambda: len(administrator.pids()) == 2 and process.pid in administrator.pids())
    (other,) = set(administrator.pids()) - {process.pid}
    return other


def masks(pid: int) -> set[frozenset[int]]:
    """Return the CPUs of the threads of a process."""
    found = set()
    for thread in threads_of(pid):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            found.add(frozenset(os.sched_getaffinity(thread)))
    return found


@needs_cpus
def test_the_command_follows_an_administrator(administrator: Administrator) -> None:
    low, high = CPUS[:2]
    with started(administrator) as process:
        wait_for(lambda: administrator.pids() == [process.pid] and {low} in masks(process.pid))
        assert administrator.set_mask(process.pid, [high], Flags.SYNC) is DromResult.SUCCESS
        wait_for(lambda: os.sched_getaffinity(process.pid) == {high})  # the thread that computes
        assert administrator.set_mask(process.pid, [low, high], Flags.SYNC) is DromResult.SUCCESS
        wait_for(lambda: masks(process.pid) == {frozenset({low}), frozenset({high})})
        process.send_signal(signal.SIGINT)
        assert process.wait(GUARD_S) == ExitCode.INTERRUPTED
    assert administrator.pids() == []
    assert administrator.free() == (low, high)


@needs_cpus
def test_ranks_share_the_prepared_cpus_and_each_follows_its_own(administrator: Administrator) -> None:
    low, high = CPUS[:2]
    with started(administrator, "--set", "ranks=2") as process:
        other = second_rank(administrator, process)
        assert administrator.mask(process.pid) == (DromResult.SUCCESS, (low,))
        assert administrator.mask(other) == (DromResult.SUCCESS, (high,))
        assert administrator.set_mask(other, []) in (DromResult.SUCCESS, DromResult.NOTED)
        assert administrator.mask(other, Flags.SYNC) == (DromResult.SUCCESS, ())
        # It waits for the other rank, and polls meanwhile.
        assert administrator.set_mask(process.pid, [high], Flags.SYNC) is DromResult.SUCCESS
        assert administrator.set_mask(other, [low], Flags.SYNC) is DromResult.SUCCESS
        os.kill(other, signal.SIGKILL)
        assert process.wait(GUARD_S) == ExitCode.UNHEALTHY
    assert administrator.pids() == []
    assert administrator.free() == (low, high)


@needs_cpus
@pytest.mark.parametrize("thief", [0, 1])
@pytest.mark.parametrize("flags", [Flags.STEAL, Flags.STEAL | Flags.SYNC])
def test_ranks_that_wait_for_a_rank_without_a_cpu_do_not_wait_for_ever(
    administrator: Administrator, thief: int, flags: Flags
) -> None:
    """The last CPU of one was stolen for the other, which waited at the barrier, and never polled."""
    with started(administrator, "--set", "ranks=2", before="pils.STARVED_S = 0.5") as process:
        ranks = process.pid, second_rank(administrator, process)
        assert not administrator.set_mask(ranks[thief], CPUS[:2], flags).error
        assert process.wait(GUARD_S) == ExitCode.UNHEALTHY
        assert process.stderr is not None
        assert f"rank {1 - thief} has lost its last CPU, and the other ranks" in process.stderr.read()
    wait_for(lambda: administrator.pids() == [] and administrator.free() == CPUS[:2])


@needs_cpus
def test_a_rank_without_a_cpu_ends_with_rank_0(administrator: Administrator) -> None:
    with started(administrator, "--set", "ranks=2") as process:
        other = second_rank(administrator, process)
        assert administrator.set_mask(other, []) in (DromResult.SUCCESS, DromResult.NOTED)
        assert administrator.mask(other, Flags.SYNC) == (DromResult.SUCCESS, ())
        process.kill()
        wait_for(lambda: not psutil.pid_exists(other) or psutil.Process(other).status() == psutil.STATUS_ZOMBIE)


# The command


@needs_cpus
def test_the_command_prints_times_and_load_balance() -> None:
    words = ["nodes", "bench", "pils", "--threads", "1"]
    for setting in ("ranks=2", "loads=2,4", "units=5", "iterations=3"):
        words += ["--set", setting]
    result = CliRunner().invoke(tracebed, words)
    assert result.exit_code == ExitCode.OK, result.output
    lines = result.stdout.splitlines()
    assert "3 iterations, tasks of 5 units" in lines[0]
    rows = [line.split() for line in lines if line[:1].isdigit()]
    assert [row[:3] for row in rows] == [["0", "2", str(CPUS[0])], ["1", "4", str(CPUS[1])]]
    for name in ("Iteration", "Load balance", "Parallel efficiency", "Checksum", "Application time"):
        assert any(line.startswith(f"{name}: ") for line in lines), name
    found = json.loads(CliRunner().invoke(tracebed, [*words, "--json"]).stdout)
    assert found["schema"] == "tracebed-bench-pils/1"
    assert found["checksum"] == f"{expected(PilsWork((2, 4), 1.0, 3, 5), 2):016x}"
    assert [rank["load"] for rank in found["ranks"]] == [2, 4]
    assert f"Checksum: {found['checksum']}" in lines


@pytest.mark.parametrize("loads", ["", "1,", "a", "-1", "1.5"])
def test_invalid_loads_are_refused(loads: str) -> None:
    result = CliRunner().invoke(tracebed, ["nodes", "bench", "pils", "--set", f"loads={loads}"])
    assert isinstance(result.exception, InputError)
