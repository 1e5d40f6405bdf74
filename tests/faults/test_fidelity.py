"""Fidelity of the virtual testbed: 50 scenarios have the same outcome virtually and on real processes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from courses import Course, differences
from patience import patience, slowness
from real import KINDS, replay_all, slowed
from tracebed.testing.virtual.faults import CONTROLLER_FAULTS, Fault
from tracebed.testing.virtual.scenario import POLICIES, JobSpec, Outcome, Scenario, carry_out

STRUCK = ("launched", "resize", "effect", "submit", "end", "start", "up")
"""The kinds of entries upon which a fault strikes."""
ONLY = {"kill_rank": ("launched",), "stop_rank": ("launched",), "disk_full": ("start",)}
"""Those of faults that need a rank that runs, or an entry that follows soon and cannot be written."""
VARIANTS = ((1.0, 0), (0.4, 1), (1.0, 2), (3.0, 3))
"""Factors of all times but those of tracebed, and seeds: what differs between them is concurrent."""


def course(scenario: Scenario) -> Course:
    """Return the course of a scenario in a virtual world."""
    found: list[Course] = []

    def keep(outcome: Outcome) -> None:
        found.append(Course.of(outcome.folder))

    carry_out(scenario, keep)
    return found[0]


def drawn(seed: int) -> Scenario:
    """Return the scenario of a seed: two to eight jobs on two to four nodes, and up to two faults."""
    draw = random.Random(seed)
    nodes, jobs, submit = draw.randint(2, 4), [], 20.0
    for _ in range(draw.randint(2, 8)):
        size, run_time = draw.randint(1, nodes), float(draw.randint(100, 300))
        low, high = (size, size) if draw.random() < 0.4 else (1, nodes)
        limit = run_time * draw.choice((0.5, 1.5, 1.5, 1.5))
        jobs.append(JobSpec(submit, run_time, limit, size, low, high))
        submit += draw.randint(20, 150)
    failure, over_limit = draw.choice(("requeue", "fail")), draw.choice(("extend", "kill"))
    scenario = Scenario(seed, POLICIES[seed % len(POLICIES)], failure, over_limit, nodes, tuple(jobs))
    for kind in sorted(draw.sample(KINDS, draw.choice((0, 1, 1, 1, 2, 2))), key="terminate".__eq__):
        scenario = replace(scenario, faults=(*scenario.faults, _fault(kind, scenario, draw)))
    return scenario


def _fault(kind: str, scenario: Scenario, draw: random.Random) -> Fault:
    """Return a fault that strikes after the earlier ones upon an event, at a node that has to do with it and is up."""
    before, names = course(scenario), [fault.after for fault in scenario.faults]
    events = [*before.rounds]
    first = max((index for index, event in enumerate(events) if " ".join(event[:2]) in names), default=-1) + 1
    candidates = [event for event in events[first:] if event[0] in ONLY.get(kind, STRUCK)]
    what, name, number = draw.choice(candidates or events[-1:])
    earlier = events[: events.index((what, name, number)) + 1]
    down = Counter(node for what, node, _ in earlier if what == "down")
    down.subtract(node for what, node, _ in earlier if what == "up")
    held = next((nodes for event, nodes in before.details.items() if event[:2] == ("start", name)), [name])
    up = [node for node in held if node.startswith("v") and not down[node]]
    if kind not in CONTROLLER_FAULTS and not up:
        kind = "kill"
    node = "" if kind in CONTROLLER_FAULTS else draw.choice(up)
    return Fault(kind, 0.0, node, draw.choice((0.5, 1.0, 1.5)), 0.9, f"{what} {name}")


def models(scenario: Scenario) -> list[Course]:
    """Return courses of a scenario at several speeds."""
    return [course(slowed(scenario, factor, seed)) for factor, seed in VARIANTS]


def is_determined(courses: Sequence[Course]) -> bool:
    """Return whether the courses of a scenario have one outcome, whatever the speed of the machine."""
    return not any(next(differences(other, courses), None) for other in courses[1:])
