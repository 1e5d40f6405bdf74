"""The steady clock: it stands still at the earliest deadline of its processes, and never runs backwards."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.patience import GUARD_S
from tracebed.benchmarks.clock import POLL_S, Clock, SteadyClock
from tracebed.ground.errors import TestbedError

fork = multiprocessing.get_context("fork")


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[SteadyClock]:
    with contextlib.closing(SteadyClock.create(tmp_path / "clock", 4)) as found:
        yield found


def until_held(clock: SteadyClock) -> None:
    until = time.monotonic() + GUARD_S
    while not clock.holder():
        assert time.monotonic() < until


def test_the_clock_of_a_replay_is_the_monotonic_clock_by_default() -> None:
    before = time.monotonic()
    clock = Clock()
    clock.hold_at(before)
    assert before <= clock.now() <= time.monotonic()
    assert (clock.at(5.0), clock.monotonic(7.0), clock.path) == (5.0, 7.0, None)


def test_the_clock_runs_up_to_a_deadline_and_stands_still_there(clock: SteadyClock) -> None:
    begun = clock.now()
    clock.hold_at(begun + 0.01)
    time.sleep(0.05)
    stopped = clock.now()
    time.sleep(0.01)
    assert clock.now() == stopped >= begun + 0.01
    assert clock.holder() == os.getpid()
    clock.hold_at(begun)  # a deadline in the past does not turn it back
    assert clock.now() == stopped
    clock.hold_at(None)
    wall, again = time.monotonic(), clock.now()
    time.sleep(0.01)
    assert clock.now() - again >= 0.01
    assert clock.now() - again <= time.monotonic() - wall + 1e-6
    assert not clock.holder()
    assert Path(clock.path or "").stat().st_mode & 0o777 == 0o600


def test_a_process_waits_for_the_clock_without_spinning(clock: SteadyClock) -> None:
    begun = clock.now()
    assert clock.monotonic(begun + 5) <= time.monotonic() + 5
    clock.hold_at(begun)
    stopped, wall = clock.now(), time.monotonic()
    assert clock.monotonic(stopped + 1e-9) >= wall + POLL_S
    assert clock.monotonic(stopped + 5) >= wall + 5
    assert clock.monotonic(stopped) <= time.monotonic()


def test_a_process_that_holds_the_clock_stops_it_for_all_until_it_is_forgotten(
    clock: SteadyClock, tmp_path: Path
) -> None:
    def hold(deadline: float) -> None:
        SteadyClock(tmp_path / "clock").hold_at(deadline)
        time.sleep(GUARD_S)

    begun = clock.now()
    holder = fork.Process(target=hold, args=(begun,))
    holder.start()
    assert holder.pid is not None
    until_held(clock)
    stopped = clock.now()
    time.sleep(0.01)
    assert clock.now() == stopped and clock.holder() == holder.pid
    holder.kill()
    holder.join()
    time.sleep(0.01)
    assert clock.now() == stopped  # the death of a process does not move the clock; its parent does
    clock.forget(holder.pid)
    time.sleep(0.01)
    assert clock.now() >= stopped + 0.01 and not clock.holder()


def test_the_clock_never_runs_backwards_nor_past_a_deadline(clock: SteadyClock, tmp_path: Path) -> None:
    """Each process checks its own deadlines while the others move theirs."""

    def check(seed: int) -> None:
        draw, own, last = random.Random(seed), SteadyClock(tmp_path / "clock"), 0.0
        for _ in range(300):
            deadline = own.now() + draw.uniform(-0.002, 0.002)
            own.hold_at(deadline)
            held_from = own.now()
            for _ in range(draw.randrange(5)):
                now = own.now()
                assert last <= now <= max(deadline, held_from)
                last = now
            own.hold_at(None)

    processes = [fork.Process(target=check, args=(seed,)) for seed in range(3)]
    for process in processes:
        process.start()
    last = 0.0
    while any(process.is_alive() for process in processes):
        now = clock.now()
        assert last <= now <= time.monotonic()
        last = now
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 2), st.none() | st.floats(-5, 5), st.floats(0, 3)), max_size=30))
def test_the_clock_loses_exactly_the_time_for_which_a_deadline_stops_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, float | None, float]]
) -> None:
    """Against a loop over small steps, on times that the test sets."""
    folder = tmp_path_factory.mktemp("clock")
    wall = expected = time.monotonic()
    first = SteadyClock.create(folder / "clock", 3)
    first._state[0] = first._state[1] = wall
    clocks = [first, SteadyClock(folder / "clock"), SteadyClock(folder / "clock")]
    for index, own in enumerate(clocks):
        own._own = 2 + 2 * index
    deadlines = [float("inf")] * 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: wall)
        for index, offset, passing in steps:
            deadlines[index] = float("inf") if offset is None else expected + offset
            clocks[index].hold_at(None if offset is None else deadlines[index])
            wall += passing
            expected = max(expected, min(expected + passing, *deadlines))
            assert [own.now() for own in clocks] == [pytest.approx(expected, abs=1e-6)] * 3
    for own in clocks:
        own.close()


def test_a_lock_that_a_stopped_process_keeps_is_an_error(
    clock: SteadyClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replayer would otherwise wait forever, and could not even be interrupted."""
    locked = fork.Event()

    def keep() -> None:
        with SteadyClock(tmp_path / "clock")._locked():
            locked.set()
            time.sleep(GUARD_S)

    holder = fork.Process(target=keep)
    holder.start()
    try:
        assert locked.wait(GUARD_S)
        monkeypatch.setattr(clock, "_lock_timeout_s", 0.05)
        with pytest.raises(TestbedError, match=r"has kept the lock of the steady clock for 0\.05 s"):
            clock.now()
    finally:
        holder.kill()
        holder.join()
    assert clock.now() <= time.monotonic()  # the kernel has released the lock


def test_a_clock_has_room_for_a_number_of_processes(tmp_path: Path) -> None:
    with contextlib.closing(SteadyClock.create(tmp_path / "clock", 1)) as one:
        one.hold_at(None)
        with (
            contextlib.closing(SteadyClock(tmp_path / "clock")) as other,
            pytest.raises(TestbedError, match="no room for another rank"),
        ):
            other.hold_at(None)
