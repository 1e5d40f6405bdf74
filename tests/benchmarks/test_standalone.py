"""STREAM and PILS as programs of their own: kernels, rules on sizes and validation, checksums, and malleability."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
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
from tracebed import malleable
from tracebed.benchmarks import kernels
from tracebed.benchmarks.affinity import threads_of
from tracebed.benchmarks.drom import TABLE, Administrator
from tracebed.benchmarks.kernels import stream as binding
from tracebed.benchmarks.kernels.stream import BLOCK, Arrays, Function, StreamKernels, arrays
from tracebed.benchmarks.memory import free_mib
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.ownership import DromResult, Flags
from tracebed.benchmarks.standalone import pils, stream
from tracebed.benchmarks.standalone.pils import PilsResult, PilsWork, RankResult, Reduce, run_ranks
from tracebed.benchmarks.standalone.stream import last_level_cache
from tracebed.benchmarks.standalone.team import Team, chosen, share
from tracebed.cli import tracebed
from tracebed.ground.errors import ExitCode, InputError, TestbedError

CPUS = tuple(sorted(os.sched_getaffinity(0)))
needs_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


@pytest.fixture(autouse=True)
def fresh_choice() -> Iterator[None]:
    """Reset the choice of the kernel in every test."""
    kernels._pick.cache_clear()
    binding.load.cache_clear()
    yield
    kernels._pick.cache_clear()
    binding.load.cache_clear()


def both() -> tuple[StreamKernels, StreamKernels]:
    try:
        return binding._C(), binding._NumPy()
    except OSError:
        pytest.skip("the C kernels were not built")


def filled(elements: int) -> Arrays:
    data = arrays(elements)
    for number, array in enumerate(data):
        for index in range(elements):
            array[index] = 0.1 * index + number
    return data


DEFINITION: dict[Function, tuple[str, Callable[[float, float, float], float]]] = {
    Function.COPY: ("c", lambda a, b, c: a),
    Function.SCALE: ("b", lambda a, b, c: 3.0 * c),
    Function.ADD: ("c", lambda a, b, c: a + b),
    Function.TRIAD: ("a", lambda a, b, c: b + 3.0 * c),
}


@given(st.sampled_from(list(Function)), st.integers(0, 40), st.integers(0, 40))
def test_the_kernels_compute_their_definition_on_their_range(function: Function, first: int, count: int) -> None:
    count = min(count, 40 - first)
    target, rule = DEFINITION[function]
    expected = filled(40)
    for index in range(first, first + count):
        values = (expected.a[index], expected.b[index], expected.c[index])
        getattr(expected, target)[index] = rule(*values)
    for made in both():
        data = filled(40)
        made.stream(function, data, 3.0, first, count)
        assert [list(array) for array in data] == [list(array) for array in expected]


def test_long_ranges_are_equal_in_c_and_numpy() -> None:
    """The NumPy kernels work on parts of a range."""
    elements = 2 * binding.CACHED + 77
    results = []
    for made in both():
        data = arrays(elements)
        made.pattern(data, 0, elements)
        made.fill(data.a, 0.5, 3, elements - 5)
        for function in Function:
            made.stream(function, data, 3.0, 1, elements - 2)
        results.append([bytes(array) for array in data])
        assert made.error(data.a, data.a[5], 5, 1) == 0
        assert made.error(data.a, 1.0, 0, 1) == 1
    assert results[0] == results[1]


def test_units_have_the_checksum_of_their_definition() -> None:
    blocks = 5
    expected = 0
    for unit in range(100):
        block = (unit * 0x9E3779B97F4A7C15 % 2**64 >> 32) * blocks >> 32
        elements = range(block * BLOCK, (block + 1) * BLOCK)
        expected += (unit + 1) * sum(index % 1009 + 3 * (index % 2003) for index in elements)
    for made in both():
        data = arrays(blocks * BLOCK)
        made.pattern(data, 0, len(data.a))
        assert made.units(data, 0, 100) == expected
        assert sum(made.units(data, first, 10) for first in range(0, 100, 10)) == expected
        assert list(data.a[:5]) == [0, 4, 8, 12, 16]
        data.c[3 * BLOCK] += 1  # data that are not read would not matter
        assert made.units(data, 0, 100) != expected


def test_traffic_is_counted_as_in_stream() -> None:
    assert [function.bytes for function in Function] == [16, 16, 24, 24]


def test_an_outdated_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    both()
    monkeypatch.setattr(kernels, "LIBRARY", "libc.so.6")
    with pytest.raises(TestbedError, match="reinstall"):
        binding._C()


def test_arrays_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(TestbedError, match="no memory"):
        arrays(2**58)


# The program


def cache(folder: Path, cpu: int, *levels: tuple[int, str, str]) -> None:
    for index, texts in enumerate(levels):
        place = folder / f"cpu{cpu}" / "cache" / f"index{index}"
        place.mkdir(parents=True)
        for name, text in zip(("level", "shared_cpu_list", "size"), texts, strict=True):
            (place / name).write_text(f"{text}\n")


def test_the_last_level_cache_counts_once_for_all_cpus_that_share_it(tmp_path: Path) -> None:
    for cpu in range(6):
        cache(tmp_path, cpu, (1, str(cpu), "32K"), (2, str(cpu), "1024K"), (3, "0-3" if cpu < 4 else "4-5", "32M"))
    (tmp_path / "cpu6").mkdir()
    assert last_level_cache(range(4), tmp_path) == 32 * 2**20
    assert last_level_cache([0, 4], tmp_path) == 64 * 2**20
    assert last_level_cache([0, 6], tmp_path) is None
    cache(tmp_path, 7, (1, "7", "32K"), (2, "7", "8"))
    assert last_level_cache([7], tmp_path) == 8


def test_free_memory_is_what_linux_says(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 4096000 kB\nMemAvailable:    2048000 kB\n")
    assert free_mib(tmp_path / "meminfo") == 2000
    assert (free_mib(tmp_path / "absent") or 0) > 0


def test_small_arrays_have_a_warning_and_too_large_ones_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "last_level_cache", lambda cpus: 80_000)
    monkeypatch.setattr(stream, "free_mib", lambda: 3)
    with pytest.warns(UserWarning, match="STREAM requires 40,000 elements"):
        assert not stream.run(39_999, threads=1, repetitions=2).large_enough
    assert stream.run(40_000, threads=1, repetitions=2).large_enough
    with pytest.raises(InputError, match="take 4 MiB, and 3 MiB of memory are free"):
        stream.run(140_000, threads=1)
    monkeypatch.setattr(stream, "ELEMENTS", 5)
    assert stream.run(threads=1, repetitions=2).elements == 40_000
    monkeypatch.setattr(stream, "last_level_cache", lambda cpus: None)
    result = stream.run(threads=1, repetitions=2)
    assert (result.elements, result.cache_bytes, result.large_enough) == (5, None, True)


@pytest.mark.parametrize("kernel", ["c", "numpy"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_results_are_valid_and_the_first_repetition_does_not_count(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both()
    monkeypatch.setenv("TRACEBED_KERNEL", kernel)
    result = stream.run(50_000, repetitions=stream.MOST_REPETITIONS)
    assert result.kernel == kernel
    assert result.valid and result.errors == (0, 0, 0)  # the same operations in the same order
    assert result.threads() == [len(CPUS)]
    for row in result.table(len(CPUS)):
        times = [repetition.seconds[row.function] for repetition in result.repetitions[1:]]
        assert row.least_s == min(times) and row.most_s == max(times)
        assert row.mb_per_s == pytest.approx(row.function.bytes * 50_000 / min(times) / 1e6)
        assert row.least_s <= row.average_s <= row.most_s


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_wrong_array_is_invalid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stream.arrays

    def run(wrong: float) -> stream.StreamResult:
        data = made(1000)
        original = stream._repetition

        def repetition(team: Team, functions: StreamKernels, data: Arrays) -> tuple[float, ...]:
            seconds = original(team, functions, data)
            getattr(data, name)[500] *= 1 + wrong
            return seconds

        with monkeypatch.context() as patch:
            patch.setattr(stream, "arrays", lambda elements: data)
            patch.setattr(stream, "_repetition", repetition)
            return stream.run(1000, threads=1, repetitions=2)

    assert run(0.0).valid
    assert not run(1e-9).valid
    monkeypatch.setattr(stream.StreamResult, "valid", False)
    result = CliRunner().invoke(tracebed, ["nodes", "bench", "stream", "--set", "elements=1000"])
    assert isinstance(result.exception, TestbedError)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threads": 0}, "0 threads"),
        ({"threads": len(CPUS) + 1}, f"and there are {len(CPUS)}"),
        ({"cpus": ()}, "no CPU is given"),
        ({"cpus": (CPUS[-1] + 1,)}, f"may not use CPU {CPUS[-1] + 1}"),
        ({"repetitions": 1}, "1 repetitions"),
        ({"repetitions": 251}, "251 repetitions"),
        ({"elements": 0}, "0 elements"),
    ],
)
def test_invalid_arguments_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        stream.run(**({"elements": 1000} | given))


@needs_cpus
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_administrator_changes_the_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 -> 1 -> 2 CPUs. The administrator is this process, so its changes come at known repetitions."""
    low, high = CPUS[:2]
    table = NodeTable.create(tmp_path / "node", [low, high])
    administrator, me = Administrator(table), os.getpid()
    changes: dict[int, tuple[int, ...]] = {2: (high,), 5: (low, high)}
    original, bound = stream._repetition, []

    def repetition(team: Team, functions: StreamKernels, data: Arrays) -> tuple[float, ...]:
        found: dict[int, set[int]] = {}
        team.run(lambda index, size: found.update({index: os.sched_getaffinity(0)}))
        bound.append(found)
        if cpus := changes.get(len(bound)):
            assert not administrator.set_mask(me, cpus).error
        return original(team, functions, data)

    monkeypatch.setattr(stream, "_repetition", repetition)
    monkeypatch.setenv(TABLE, str(table.path))
    assert not administrator.prepare(me, [low, high])[0].error
    result = stream.run(10_000, repetitions=8)
    assert [repetition.cpus for repetition in result.repetitions] == [(low, high)] * 2 + [(high,)] * 3 + [
        (low, high)
    ] * 3
    assert bound[0] == bound[7] == {0: {low}, 1: {high}}
    assert bound[3] == {0: {high}}
    assert result.valid
    assert result.threads() == [1, 2]
    assert administrator.free() == (low, high)
    with pytest.raises(InputError, match="the table of CPUs chooses them"):
        stream.run(1000, cpus=[low])
    table.close()


def test_the_command_prints_the_table_of_stream() -> None:
    result = CliRunner().invoke(
        tracebed, ["nodes", "bench", "stream", "--set", "elements=30000", "--cpus", str(CPUS[-1])]
    )
    assert result.exit_code == ExitCode.OK, result.output
    lines = result.stdout.splitlines()
    assert "based on a variant of the STREAM benchmark code" in lines[0]
    start = next(number for number, line in enumerate(lines) if line.startswith("Function"))
    assert lines[start].split() == ["Function", "Best", "Rate", "MB/s", "Avg", "time", "Min", "time", "Max", "time"]
    assert [line.split()[0] for line in lines[start + 1 : start + 5]] == ["Copy:", "Scale:", "Add:", "Triad:"]
    assert f"Threads: 1, on CPUs {CPUS[-1]}" in lines
    assert lines[-1].startswith("Solution validates")


def test_the_command_prints_json() -> None:
    words = ["nodes", "bench", "stream", "--set", "elements=30000", "--threads", "1", "--repetitions", "3", "--json"]
    found = json.loads(CliRunner().invoke(tracebed, words).stdout)
    assert found["schema"] == "tracebed-bench-stream/1"
    assert found["valid"] and found["elements"] == 30000
    assert [row["function"] for row in found["by_threads"]["1"]] == ["copy", "scale", "add", "triad"]
    assert [len(repetition["seconds"]) for repetition in found["repetitions"]] == [4, 4, 4]


def test_the_program_needs_no_numpy() -> None:
    both()
    code = "import sys, warnings; warnings.simplefilter('ignore'); from tracebed.benchmarks.standalone import stream; "
    code += "stream.run(1000, repetitions=2); print('numpy' in sys.modules)"
    environment = {key: value for key, value in os.environ.items() if key != "TRACEBED_KERNEL"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


# Threads


@needs_cpus
def test_a_team_works_on_its_cpus_and_ends() -> None:
    before, threads = os.sched_getaffinity(0), threading.active_count()
    found: dict[int, tuple[int, set[int]]] = {}

    def look(index: int, size: int) -> None:
        found[index] = size, os.sched_getaffinity(0)

    with Team(CPUS[:1]) as team:
        for cpus in (CPUS[:1], CPUS[:2], CPUS[1::-1], CPUS[1:2], CPUS[:2]):
            found.clear()
            team.resize(cpus)
            team.run(look)
            assert found == {index: (len(cpus), {cpu}) for index, cpu in enumerate(cpus)}
    assert os.sched_getaffinity(0) == before
    assert threading.active_count() == threads


@needs_cpus
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_a_thread_is_raised_when_all_have_ended(failing: int) -> None:
    ended = []

    def work(index: int, size: int) -> None:
        if index == failing:
            raise ZeroDivisionError
        ended.append(index)

    with Team(CPUS[:2]) as team:
        with pytest.raises(ZeroDivisionError):
            team.run(work)
        assert ended == [1 - failing]
        team.run(lambda index, size: ended.append(index))
        assert sorted(ended[1:]) == [0, 1]


@given(st.integers(0, 10**6), st.integers(1, 100))
def test_shares_are_complete_and_nearly_equal(total: int, size: int) -> None:
    parts = [share(total, size, index) for index in range(size)]
    assert [first for first, _ in parts] == [sum(count for _, count in parts[:index]) for index in range(size)]
    assert sum(count for _, count in parts) == total
    assert max(count for _, count in parts) - min(count for _, count in parts) <= 1


def test_without_a_table_threads_have_the_first_cpus() -> None:
    with malleable.attach(pin=False) as program:
        assert chosen(program, None, 1) == CPUS[:1]
        assert chosen(program, CPUS[::-1], None) == CPUS[::-1]


# `tracebed nodes bench pils`: ranks with different loads, whose result depends on the work only.

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
def test_invalid_arguments_of_pils_are_refused(given: dict[str, Any], message: str) -> None:
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
