"""The malleable MPI program: its state, its stages, and runs under mpiexec."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.patience import GUARD_S
from tracebed.benchmarks.dmr import Action, Answer, SizeRange
from tracebed.benchmarks.mpi import launch, program
from tracebed.benchmarks.mpi.launch import Events, MpiResult, mpiexec, reconfigure
from tracebed.benchmarks.redistribution import Block
from tracebed.benchmarks.stages import ReconfigurationStages, table
from tracebed.ground.errors import InputError, TestbedError

needs_mpi = pytest.mark.skipif(find_spec("mpi4py") is None, reason="pip install 'tracebed[mpi]'")


def test_the_direct_value_of_the_state_is_that_of_the_iterations() -> None:
    block = Block(5, 12)
    vector = program.initial_vector(block)
    for iteration in range(6):
        assert (vector == program.vector_after(block, iteration)).all()
        program.advance_vector(vector)
    assert program.vector_checksum(np.array([2**63, 2**63, 3], dtype=np.uint64)) == 3


@pytest.mark.parametrize("total", [0, 1, 7, 1000])
@pytest.mark.parametrize("before", [1, 2, 3, 5])
@pytest.mark.parametrize("after", [1, 2, 4, 7])
def test_each_element_is_kept_or_arrives_once(total: int, before: int, after: int) -> None:
    blocks = {rank: program.block_of(total, after, rank) for rank in range(max(before, after))}
    held: dict[int, list[int]] = {rank: [] for rank in blocks}
    for rank, new in blocks.items():
        held[rank] += range(*program.kept(program.block_of(total, before, rank), new))
    for source, target, part in program.transfers(total, before, after):
        assert source != target
        assert set(range(*part)) <= set(range(*program.block_of(total, before, source)))
        held[target] += range(*part)
    assert {rank: sorted(elements) for rank, elements in held.items()} == {
        rank: list(range(*block)) for rank, block in blocks.items()
    }


def test_the_events_lead_to_the_planned_sizes() -> None:
    events = Events([1, 4, 2], 2)
    answers = [
        events(0, size, SizeRange(1, wanted, 4)) for size, wanted in ((1, 4), (1, 4), (1, 4), (4, 2), (4, 2), (2, 2))
    ]
    none = [Answer(Action.NONE, size) for size in (1, 1, 4, 2)]
    assert answers == [none[0], none[1], Answer(Action.EXPAND, 4), none[2], Answer(Action.SHRINK, 2), none[3]]


def test_the_table_of_stages() -> None:
    changes = [
        ReconfigurationStages(1, 12, 0.015, 2.0, 2.355, 0.0, 4.0, 3.496),
        ReconfigurationStages(12, 6, 0.001, 0.0, 0.002, 0.003, 1.0, first_iteration_s=0.5),
    ]
    assert changes[0].total_s == pytest.approx(4.37)
    assert changes[0].ratio == pytest.approx(1.25)
    assert [line.split() for line in table(changes).splitlines()[1:]] == [
        ["1", "->", "12", "15.00", "2000.00", "2355.00", "0.00", "4370.00", "4.00", "3496.00", "1.250"],
        ["12", "->", "6", "1.00", "0.00", "2.00", "3.00", "6.00", "1.00", "500.00"],
    ]


@pytest.mark.parametrize(("sizes", "iterations"), [([], 3), ([2, 1], 3), ([1, 0], 3), ([1, 2], 0)])
def test_invalid_parameters_are_refused(sizes: list[int], iterations: int) -> None:
    with pytest.raises(InputError):
        reconfigure(sizes, 1, iterations=iterations)


def test_a_missing_mpi_is_reported_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TestbedError, match=r"mpiexec is missing.*pip install mpi4py mpich"):
        mpiexec()


@pytest.mark.slow
@needs_mpi
def test_processes_are_spawned_and_released_and_no_element_is_lost() -> None:
    result = reconfigure([1, 2, 3, 1], 0.5, iterations=2)
    assert [(change.before, change.after) for change in result.stages] == [(1, 2), (2, 3), (3, 1)]
    *expansions, shrink = result.stages
    for change in expansions:
        assert change.spawn_s > 0
        assert change.termination_s == 0
        assert change.plain_spawn_s is not None
    assert (shrink.spawn_s, shrink.termination_s > 0) == (0, True)
    assert all(change.decision_s > 0 and change.redistribution_s > 0 for change in result.stages)
    assert all(change.first_iteration_s for change in result.stages)
    assert [change.moved_mib for change in result.stages] == pytest.approx([0.25, 0.25, 1 / 3], abs=1e-4)
    elements = 2**16
    assert result.iterations == 8
    assert result.checksum == program.vector_checksum(program.vector_after(Block(0, elements), 8))


@needs_mpi
def test_some_of_the_processes_that_were_spawned_together_are_released() -> None:
    result = reconfigure([1, 3, 2, 1], 0.1, iterations=1, plain=False, timeout_s=GUARD_S)
    assert [(change.before, change.after) for change in result.stages] == [(1, 3), (3, 2), (2, 1)]
    assert result.checksum == program.vector_checksum(program.vector_after(Block(0, round(0.1 * 2**17)), 4))


@pytest.mark.slow
@needs_mpi
def test_the_command_prints_the_table() -> None:
    command = [
        sys.executable,
        "-m",
        "tracebed.benchmarks.mpi",
        "--sizes",
        "1,2,1",
        "--state",
        "0.1",
        "--iterations",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split()[:3] == ["Ranks", "Decision", "ms"]
    assert [line.split()[:3] for line in lines[2:4]] == [["1", "->", "2"], ["2", "->", "1"]]
    assert lines[-1].startswith("3 iterations, checksum ")
    for options in (["--sizes", "1,x"], ["--sizes", "2"], ["--iterations", "0"]):
        done = subprocess.run([*command[:3], *options], capture_output=True, text=True, check=False)
        assert done.returncode == 2, options
        assert "Traceback" not in done.stderr


@needs_mpi
def test_a_program_that_takes_too_long_is_ended_with_all_its_processes() -> None:
    def running() -> list[str]:
        """Return the processes of the program that the test has started."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if f"{launch.MARK}={os.getpid()}".encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append(process.name)
            except OSError:
                continue  # it has ended
        return found

    with pytest.raises(TestbedError, match="did not end within 3 s"):
        reconfigure([1, 3], 1, iterations=10**9, plain=False, timeout_s=3)
    end = time.monotonic() + GUARD_S  # the kernel ends killed processes a little later
    while running():
        assert time.monotonic() < end, running()
        time.sleep(0.01)


@needs_mpi
def test_a_failure_of_one_process_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resource manager that answers with an invalid size makes rank 0 fail, while the others wait for it."""

    def wrong(self: Events, pid: int, size: int, sizes: SizeRange) -> Answer:
        return Answer(Action.EXPAND, 2) if size == 1 else Answer(Action.SHRINK, 0)

    monkeypatch.setattr(Events, "__call__", wrong)
    with pytest.raises(TestbedError, match=r"(?s)has failed with status .*size 0"):
        reconfigure([1, 2, 1], 0.1, iterations=1, plain=False, timeout_s=60)


def test_shared_memory_is_removed_unless_a_process_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "FOLDER", tmp_path)
    mapped, opened, left, other = (tmp_path / name for name in ("mpich_shm_1_0", "mpich_shm_2_0", "mpich_shm_3_0", "x"))
    for path in (mapped, opened, left, other):
        path.write_bytes(b"0")
    with mapped.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    with opened.open(), memory:
        launch._remove_segments(launch._segments())
        assert sorted(tmp_path.iterdir()) == [mapped, opened, other]
    launch._remove_segments(launch._segments())
    assert list(tmp_path.iterdir()) == [other]


@needs_mpi
def test_a_result_says_which_library_was_used() -> None:
    result = reconfigure([1], 0.01, plain=False)
    assert isinstance(result, MpiResult)
    assert "MPI" in result.library
    assert result.stages == ()
