"""Clocks: the steady clock of processes stands still at their earliest deadline; clocks of nodes have offsets."""

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
from tracebed.orchestrator.testbeds.link import DRIFT, NodeClock

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


# The clocks of nodes: offsets from pings, and times in events.


def ping(clock: NodeClock, sent: float, offset: float, there: float, back: float, held: float = 0.1) -> None:
    """Pass the echo of a ping that took `there` and `back` seconds and was held by the node in between."""
    received = sent + there + offset
    clock.echo(sent, received, received + held, sent + there + held + back)


def test_an_offset_is_exact_if_both_ways_are_equally_long() -> None:
    clock = NodeClock()
    assert not clock.known
    ping(clock, 100.0, 1e6, 0.002, 0.002)
    assert clock.known
    assert clock.offset_s == pytest.approx(1e6, abs=1e-9)
    assert clock.round_trip_s == pytest.approx(0.004, abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_error_of_an_offset_is_at_most_half_of_its_round_trip_and_the_drift(seed: int) -> None:
    rng = random.Random(seed)
    clock, now, drift = NodeClock(), 0.0, rng.uniform(-0.9, 0.9) * DRIFT
    for _ in range(200):
        now += 1.0
        ping(clock, now, 500.0 + drift * now, rng.expovariate(1000), rng.expovariate(1000))
        assert clock.round_trip_s is not None
        age = now + 1.0 - clock._measured
        assert abs(clock.offset_s - (500.0 + drift * now)) <= clock.round_trip_s / 2 + DRIFT * age


def test_the_sample_of_least_round_trip_is_kept_until_it_is_too_old() -> None:
    clock = NodeClock()
    ping(clock, 0.0, 5.0, 0.001, 0.001)
    ping(clock, 1.0, 5.0, 0.001, 0.003)
    assert clock.offset_s == pytest.approx(5.0)
    ping(clock, 1000.0, 5.02, 0.010, 0.012)  # the drift has made the first sample worse than this one
    assert clock.offset_s == pytest.approx(5.019)


def test_a_sample_that_contradicts_the_kept_one_replaces_it() -> None:
    clock = NodeClock()
    ping(clock, 0.0, 5.0, 0.001, 0.001)
    ping(clock, 1.0, -40.0, 0.5, 0.5)  # the node was suspended
    assert clock.offset_s == pytest.approx(-40.0)


def test_the_clock_of_this_machine_has_no_offset_unless_it_is_measured() -> None:
    clock = NodeClock(same=True)
    assert clock.known
    ping(clock, 0.0, 0.0, 0.001, 0.005)
    assert clock.offset_s == 0.0
    ping(clock, 1.0, 30.0, 0.001, 0.001)  # a time namespace
    assert clock.offset_s == pytest.approx(30.0)


def test_times_are_converted_and_are_not_after_the_arrival() -> None:
    clock = NodeClock()
    ping(clock, 0.0, 100.0, 0.001, 0.001)
    message = {"time": 150.0, "decided": 149.0, "applied": None, "samples": [[140.0, 7, 1.0], [160.0, 8, 2.0]], "n": 3}
    found = clock.convert(message, 51.0)
    assert found["time"] == pytest.approx(50.0) and found["decided"] == pytest.approx(49.0)
    assert found["applied"] is None and found["n"] == 3
    assert found["samples"][0] == [pytest.approx(40.0), 7, 1.0] and found["samples"][1] == [51.0, 8, 2.0]
    assert message["time"] == 150.0
