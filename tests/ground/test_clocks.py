"""The clocks of nodes: offsets from pings, and times in events."""

from __future__ import annotations

import random

import pytest

from tracebed.orchestrator.testbeds.link import DRIFT, NodeClock


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
