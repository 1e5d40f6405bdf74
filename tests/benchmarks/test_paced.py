"""Paced workers and sleepers against a clock that the test sets: deadlines, debt, overruns, conserved units."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.patience import GUARD_S
from tracebed.benchmarks.clock import Clock
from tracebed.benchmarks.workers import PacedThreads, Sleeper, Threads, Workers

CPUS = sorted(os.sched_getaffinity(0))
RATE = 100.0
"""Units per second of a core."""


class SetClock(Clock):
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def at(self, monotonic: float) -> float:
        return self.time


class Bench:
    """Workers whose threads run, but whose main thread and clock are the test."""

    def __init__(self, cores: int, duty: float) -> None:
        self.clock = SetClock()
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.asked: list[int] = []
        self.assigned = 0
        self.ended: list[tuple[float, int]] = []
        """(time, units) of each share that has ended."""
        cpus = (CPUS * cores)[:cores]
        self.workers: Workers
        if duty == 0:
            self.workers = Sleeper(cpus, RATE, self._finished, self.clock)
        else:
            self.workers = PacedThreads(cpus, RATE, self._finished, self.clock, self._kernel, self.calls.put, duty)

    def _kernel(self, first: int, units: int) -> int:
        self.asked.append(units)
        return sum(range(first, first + units))

    def start(self, counts: Sequence[int]) -> None:
        """Assign a share to an idle core for each count of units. The units are numbered in this order."""
        ends = [self.assigned, *itertools.accumulate(counts, initial=self.assigned)][1:]
        self.assigned = ends[-1]
        self.workers.start([range(*pair) for pair in itertools.pairwise(ends)])

    def _finished(self, units: int, cores: int) -> None:
        self.ended.append((self.clock.time, units))

    def compute(self, shares: int) -> None:
        """Process the messages of the threads for as many computed shares, at the present time."""
        for _ in range(shares):
            self.calls.get(timeout=GUARD_S)()
        self.workers.tick()

    def to_deadline(self, late: float = 0.0) -> None:
        """Set the clock to the next deadline, and let the workers notice."""
        assert self.workers.deadline is not None
        self.clock.time = max(self.clock.time, self.workers.deadline + late)
        self.workers.tick()

    def part(self, shares: Sequence[int], behind: float = 0.0) -> float:
        """Carry out a part that is computed at once, and return its planned time."""
        self.workers.begin(behind)
        self.start(shares)
        if isinstance(self.workers, Threads):
            self.compute(len(shares))
        while self.workers.busy:
            self.to_deadline()
        return self.workers.end()


@pytest.fixture(params=[0.0, 0.5])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    before = os.sched_getaffinity(0)
    yield Bench(2, request.param)
    os.sched_setaffinity(0, before)


@pytest.fixture
def paced() -> Iterator[Bench]:
    before = os.sched_getaffinity(0)
    yield Bench(2, 0.5)
    os.sched_setaffinity(0, before)


def test_a_share_ends_at_the_deadline_of_its_plan(paced: Bench) -> None:
    paced.workers.begin(0.0)
    paced.start([100, 200])
    assert paced.workers.deadline is None  # nothing to wait for until a share is computed
    paced.compute(2)
    assert sorted(paced.asked) == [50, 100]
    assert paced.ended == [] and paced.workers.deadline == 1001.0
    paced.clock.time = 1000.999
    paced.workers.tick()
    assert paced.ended == []
    paced.to_deadline()
    assert paced.ended == [(1001.0, 100)] and paced.workers.busy
    paced.to_deadline()
    assert paced.ended == [(1001.0, 100), (1002.0, 200)] and not paced.workers.busy
    assert paced.workers.deadline is None
    assert paced.workers.end() == 2.0
    assert (paced.workers.overruns, paced.workers.late_s) == (0, 0.0)


def test_a_part_that_is_behind_the_plan_has_an_earlier_deadline(bench: Bench) -> None:
    assert bench.part([200, 200], behind=0.5) == 2.0  # the plan of the part, whatever its delay
    assert bench.ended[-1][0] == 1001.5
    assert bench.workers.overruns == 0


def test_debt_that_exceeds_the_part_is_an_overrun_and_ends_at_once(bench: Bench) -> None:
    assert bench.part([100, 100], behind=5.0) == 1.0
    assert bench.ended[-1][0] == 1000.0
    assert bench.workers.overruns == 1
    assert bench.workers.late_s == 4.0


def test_computing_past_the_deadline_is_one_overrun_of_the_part(paced: Bench) -> None:
    paced.workers.begin(0.0)
    paced.start([100, 100])
    paced.clock.time = 1003.0
    paced.compute(2)
    assert [time for time, _ in paced.ended] == [1003.0, 1003.0]
    assert paced.workers.end() == 1.0
    assert (paced.workers.overruns, paced.workers.late_s) == (1, 2.0)
    assert paced.workers.sample()[1::3] == (100, 2.0)
    paced.part([100, 100])
    assert paced.workers.overruns == 1 and paced.workers.late_s == 2.0
    assert paced.workers.sample()[1::3] == (100, 0.0)  # a sample has the figures since the last one


def test_a_late_wake_up_is_late_but_no_overrun(bench: Bench) -> None:
    bench.workers.begin(0.0)
    bench.start([100, 100])
    if isinstance(bench.workers, Threads):
        bench.compute(2)
    bench.to_deadline(late=0.25)
    bench.workers.end()
    assert (bench.workers.overruns, bench.workers.late_s) == (0, 0.25)


def test_chunks_of_a_core_follow_one_another_by_the_plan(paced: Bench) -> None:
    """With dynamic balance, a core that was late has the deadline of its next chunk as if it had been in time."""
    paced.workers.begin(0.0)
    paced.start([100, 300])
    paced.compute(2)
    paced.to_deadline(late=0.4)  # the first core, at 1001.4 in place of 1001
    paced.start([100])
    paced.compute(1)
    assert paced.workers.deadline == 1002.0
    paced.to_deadline()
    paced.to_deadline()
    assert [time for time, _ in paced.ended] == [1001.4, 1002.0, 1003.0]
    assert paced.workers.end() == 3.0


def test_a_sample_has_the_work_that_was_really_done(bench: Bench) -> None:
    bench.part([100, 200])
    _, units, cpu_s, wall_s, late_s = bench.workers.sample()
    assert units == sum(bench.asked) == (150 if isinstance(bench.workers, Threads) else 0)
    assert late_s == 0.0
    assert (wall_s > 0) == (cpu_s > 0) == (units > 0)


def test_a_sample_is_short(bench: Bench) -> None:
    """The journal of a long replay has millions of samples."""
    bench.part([100, 200])
    assert all(len(repr(figure).partition(".")[2]) <= 9 for figure in bench.workers.sample() if "e" not in repr(figure))


def test_few_units_are_not_rounded_to_nothing(paced: Bench) -> None:
    """One unit per part at duty 0.5 is one computed unit in every other part."""
    for _ in range(10):
        paced.part([1])
    assert sum(paced.asked) == 5 and set(paced.asked) == {0, 1}


parts = st.lists(
    st.tuples(st.lists(st.integers(0, 300), min_size=1, max_size=3), st.floats(0, 3), st.integers(1, 3)), max_size=12
)


@given(st.floats(0.01, 1.0) | st.just(0.0), parts)
def test_units_are_conserved_and_no_part_ends_before_its_deadline(
    duty: float, parts: list[tuple[list[int], float, int]]
) -> None:
    """Whatever the duty, the shares, the debt and the mask changes in between."""
    before = os.sched_getaffinity(0)
    try:
        bench, planned = Bench(3, duty), 0
        for shares, behind, cores in parts:
            begun = bench.clock.time
            bench.workers.set_mask((CPUS * 3)[:3])
            took = bench.part(shares, behind)
            planned += sum(shares)
            assert took == pytest.approx(max(shares) / RATE)
            assert bench.clock.time >= begun - behind + took - 1e-9
            bench.workers.set_mask((CPUS * 3)[:cores])
            assert sum(units for _, units in bench.ended) == planned
            assert sum(bench.asked) == (int(duty * planned) if duty else 0)
    finally:
        os.sched_setaffinity(0, before)
