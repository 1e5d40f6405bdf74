"""Progress of long calls in Python: silent at first, then lines on standard error."""

from __future__ import annotations

import itertools

import pytest

import tracebed.api as tb
from tracebed.ground import progress
from tracebed.orchestrator.simulation import simulator


class Clock:
    """A clock that is set by the test."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


def test_a_call_is_silent_for_five_seconds_and_then_says_how_far_it_is(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    report = progress.reporter("replaying under easy", 100, None)
    for clock.now, done in ((1.0, 0), (4.9, 20), (6.0, 25), (15.9, 60), (16.0, 60)):
        report(done)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "replaying under easy: 25%, 15 s left\nreplaying under easy: 60%, 10 s left\n"


def test_an_unknown_total_shows_what_is_done(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    report = progress.reporter("validating suite", None, None)
    clock.now = 5.0
    report(3)
    assert capsys.readouterr().err == "validating suite: 3 done\n"


def test_a_function_of_the_caller_replaces_the_lines(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    found: list[float] = []
    report = progress.reporter("w", 2, found.append)
    clock.now = 60.0
    report(1)
    assert (found, capsys.readouterr().err) == ([1], "")


def test_a_long_simulation_tells_its_progress(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    ticks = itertools.count(step=4)
    monkeypatch.setattr(simulator, "REPORT_EVERY", 10)
    monkeypatch.setattr(clock, "monotonic", lambda: float(next(ticks)))
    tb.simulate(tb.generate("cirne", jobs=400, nodes=16, seed=3), "easy", engine="python")
    assert "simulating under easy: " in capsys.readouterr().err
