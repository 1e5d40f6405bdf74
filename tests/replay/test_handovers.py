"""Overlaps and gaps of the masks of jobs that share nodes, against a slow reference."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from tracebed.orchestrator.replay.monitor import CpuSpans, Handover, Handovers

Spans = list[tuple[str, float, float]]


def worst(found: list[Handover]) -> float:
    return max((each.seconds for each in found), default=0.0)


def slow_overlap(spans: Spans) -> float:
    """Return the longest common time of two spans of different jobs."""
    common = [
        min(end, other_end) - max(start, other_start)
        for job, start, end in spans
        for other, other_start, other_end in spans
        if job < other
    ]
    return max([0.0, *common])


def test_a_lent_cpu_that_the_guest_takes_later_is_a_gap_and_no_overlap() -> None:
    found = Handovers()
    found.change(0, "owner", (0, 1, 2, 3), (0, 1), 10.0, since=0.0)
    found.change(0, "guest", None, (2, 3), 10.5, since=10.5)
    found.change(0, "guest", (2, 3), None, 20.0, since=10.5)
    found.change(0, "owner", (0, 1), (0, 1, 2, 3), 20.25, since=0.0)
    assert not list(found.overlaps())
    assert sorted(found.gaps()) == [
        (0.25, 0, 2, "guest", "owner"),
        (0.25, 0, 3, "guest", "owner"),
        (0.5, 0, 2, "owner", "guest"),
        (0.5, 0, 3, "owner", "guest"),
    ]


def test_a_cpu_that_two_jobs_have_at_once_is_an_overlap_whichever_message_arrives_first() -> None:
    changes = [
        (0, "owner", (0, 1), (0,), 10.0, 0.0),
        (0, "guest", None, (1,), 9.5, 9.5),
    ]
    for order in (changes, changes[::-1]):
        found = Handovers()
        for node, job, before, after, at, since in order:
            found.change(node, job, before, after, at, since=since)
        assert list(found.overlaps()) == [(0.5, 0, 1, "owner", "guest")]
        assert not list(found.gaps())


def test_the_time_between_two_jobs_that_shared_nothing_is_no_gap() -> None:
    found = Handovers()
    found.change(0, "owner", (0, 1), (0,), 10.0, since=0.0)  # for a guest that never took the CPU
    found.change(0, "owner", (0,), None, 20.0, since=0.0)
    found.change(0, "later", None, (0, 1), 50.0, since=50.0)
    assert not list(found.gaps())
    assert not list(found.overlaps())


def test_masks_on_a_lost_node_are_unknown() -> None:
    found = Handovers()
    found.change(0, "guest", None, (1,), 5.0, since=5.0)
    found.change(1, "guest", None, (1,), 5.0, since=5.0)
    found.lose(0)
    for node in (0, 1):
        found.change(node, "next", None, (1,), 30.0, since=30.0)
        found.change(node, "next", (1,), None, 40.0, since=30.0)
    assert [(each.node, each.before) for each in found.overlaps()] == [(1, "guest")]


@pytest.mark.parametrize("seed", range(100))
def test_the_worst_overlap_and_gap_are_those_of_a_slow_reference(seed: int) -> None:
    """Spans of a CPU are drawn. Each job holds the CPU in several spans between its launch and its end."""
    draw = random.Random(seed)
    messages = []
    spans: Spans = []
    for job in "abcd"[: draw.randint(2, 4)]:
        instants = sorted(draw.sample(range(10**6), 2 * draw.randint(1, 3)))  # no two jobs at one instant
        begin, end = instants[0], instants[-1]
        own = list(zip(instants[::2], instants[1::2], strict=True))
        spans += [(job, float(start), float(stop)) for start, stop in own]
        messages.append((begin, job, None, (0, 1)))  # CPU 0 is the one with spans, CPU 1 that of the job
        for (_, stop), (start, _) in pairwise(own):
            messages += [(stop, job, (0, 1), (1,)), (start, job, (1,), (0, 1))]
        messages.append((end, job, (0, 1), None))
    draw.shuffle(messages)  # of several ranks; the messages of one rank arrive in their order
    arrival = {job: iter(sorted(entry for entry in messages if entry[1] == job)) for job in "abcd"}
    found = Handovers()
    for _, job, *_ in messages:
        at, name, before, after = next(arrival[job])
        found.change(0, name, before, after, float(at), since=math.nan)
        found.worst(1.0, ["n1"])  # a live view computes the longest ones between two messages
    of_cpu = [each for each in found.overlaps() if each.cpu == 0]
    assert worst(of_cpu) == slow_overlap(spans)
    gaps = sorted((each.seconds, each.before, each.after) for each in found.gaps() if each.cpu == 0)
    assert gaps == sorted(slow_gaps(spans))


def slow_gaps(spans: Spans) -> list[tuple[float, str, str]]:
    """Return the gaps before spans at whose begin no other job has the CPU, as (s, job before, job after)."""
    first = {job: min(start for name, start, _ in spans if name == job) for job, *_ in spans}
    last = {job: max(end for name, _, end in spans if name == job) for job, *_ in spans}
    gaps = []
    for job, start, end in spans:
        if any(other != (job, start, end) and other[1] <= start < other[2] for other in spans):
            continue
        earlier = [other for other in spans if other[2] <= start and other != (job, start, end)]
        if not earlier:
            continue
        before = max(earlier, key=lambda other: other[2])
        shrank = before[2] < last[before[0]] and start <= last[before[0]]
        if before[0] != job and (shrank or start > first[job]):
            gaps.append((start - before[2], before[0], job))
    return gaps


def test_a_view_does_not_compute_earlier_hand_overs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    monkeypatch.setattr(CpuSpans, "_next", lambda *args, original=CpuSpans._next: steps.append(1) or original(*args))
    found = Handovers()
    for turn in range(1000):
        at = 10.0 * turn
        found.change(0, "owner", (0, 1), (0,), at, since=-1.0)
        found.change(0, f"guest {turn}", None, (1,), at + 1, since=at + 1)
        found.change(0, f"guest {turn}", (1,), None, at + 6, since=at + 1)
        found.change(0, "owner", (0,), (0, 1), at + 8, since=-1.0)
        worst = found.worst(2.0, ["n1"])
    assert worst["handovers"] == 2000
    assert (worst["gap_s"], worst["overlap_s"]) == (1.0, 0.0)
    assert len(steps) <= 4000


def test_an_overlap_counts_when_one_mask_has_released_the_cpu() -> None:
    found = Handovers()
    found.change(0, "owner", None, (0, 1), 0.0, since=0.0)
    found.change(0, "guest", None, (1,), 10.0, since=10.0)
    assert found.worst(1.0, ["n1"]) == {}
    found.change(0, "guest", (1,), None, 15.0, since=10.0)
    assert found.worst(1.0, ["n1"])["overlap_s"] == 5.0
