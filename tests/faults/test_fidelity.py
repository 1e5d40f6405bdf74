"""Fidelity of the virtual testbed: 50 scenarios have the same outcome virtually and on real processes."""

from __future__ import annotations

import functools
import itertools
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.faults.kinds import CONTROLLER_FAULTS
from tests.faults.scenario import POLICIES, JobSpec, Outcome, Scenario, carry_out
from tests.oracles.real_faults import KINDS, Story, replay_all, slowed
from tests.patience import patience, slowness
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.runs.working_folders import working_folders
from tracebed.testing.virtual.faults import Fault

# -- courses: what happens in a replay, compared up to what is concurrent ----------------------------------------------

DETAILS = {"start": "nodes", "resize": "nodes", "end": "state"}
"""The kinds of entries whose data must be equal too, with the name of the datum."""
ENTRIES = ("submit", "launched", "effect", "requeue", "down", "up", "cancel", "reject", "pause", *DETAILS)
"""The kinds of entries that are compared. Not among them is `kill`, the message to end the ranks that are left: who
notices the loss of a node first, the leader of a job or the controller, decides whether it is needed."""

APART_S = 50.0
"""Time between two events of different jobs or nodes that are not concurrent, trace s: 0.5 s at a speed of 100."""

Event = tuple[str, str, int]
"""Kind of an entry of the journal, its job or node, and the number of entries of both before it."""


class Course(NamedTuple):
    """A replay.

    `jobs` are job -> state and restarts, empty if there is no run; `rounds` event -> round of the scheduler and its
    time, trace s; `details` event -> its nodes, state or reason.
    """

    jobs: dict[str, tuple[str, int]]
    rounds: dict[Event, tuple[int, float]]
    details: dict[Event, Any]

    @classmethod
    def of(cls, folder: Path) -> Course:
        """Return the course of a replay to `folder`, or of one that has not become a run there."""
        jobs, rounds, details = {}, dict[Event, tuple[int, float]](), dict[Event, Any]()
        left = [folder] if folder.exists() else working_folders(folder)
        path = left[-1] / JOURNAL if left else None
        if folder.exists():
            table = Run.load(folder).jobs
            columns = (table[name] for name in ("job_id", "state", "restarts"))
            jobs = {job: (state, restarts) for job, state, restarts in zip(*columns, strict=True)}
        numbers: Counter[tuple[str, str]] = Counter()
        for entry in journal.read(path)[1] if path is not None else ():
            if entry.kind in ENTRIES:
                key = (entry.kind, entry.job or entry.node or "")
                event = (*key, numbers[key])
                numbers[key] += 1
                rounds[event] = entry.round, entry.time
                if entry.kind in DETAILS:
                    details[event] = entry.data[DETAILS[entry.kind]]
        return cls(jobs, rounds, details)

    def order(self, apart_s: float = 0.0) -> set[tuple[Event, Event]]:
        """Return the pairs of events in different rounds, at least `apart_s` apart if of different jobs or nodes."""
        found = set()
        for pair in combinations(self.rounds, 2):
            (one, begun, first), (other, ended, second) = sorted((*self.rounds[event], event) for event in pair)
            if one < other and (first[1] == second[1] or ended - begun >= apart_s):
                found.add((first, second))
        return found


def differences(course: Course, models: Sequence[Course]) -> Iterator[str]:
    """Yield in what a replay differs from others of the same scenario.

    Two events are concurrent unless one is before the other in all `models`, by `APART_S` if they are of different jobs
    or nodes.
    """
    model = models[0]
    yield from _unequal("job", course.jobs, model.jobs)
    for event in sorted(course.rounds.keys() ^ model.rounds.keys()):
        yield f"{'only here' if event in course.rounds else 'missing'}: {' '.join(map(str, event))}"
    yield from _unequal("entry", course.details, model.details)
    ordered = set.intersection(*(other.order(APART_S) for other in models))
    for first, second in sorted(ordered & {(second, first) for first, second in course.order()}):
        yield f"order: {' '.join(map(str, second))} before {' '.join(map(str, first))}"


def _unequal(what: str, ours: dict[Any, Any], theirs: dict[Any, Any]) -> Iterator[str]:
    common: Iterable[Any] = sorted(ours.keys() & theirs.keys())
    yield from (f"{what} {key}: {ours[key]}, not {theirs[key]}" for key in common if ours[key] != theirs[key])
    if bool(ours) != bool(theirs):
        yield f"{what}: {len(ours)}, not {len(theirs)}"


# -- fidelity ----------------------------------------------------------------------------------------------------------

STRUCK = ("launched", "resize", "effect", "submit", "end", "start", "up")
"""The kinds of entries upon which a fault strikes."""
ONLY = {"kill_rank": ("launched",), "stop_rank": ("launched",), "disk_full": ("start",)}
"""Those of faults that need a rank that runs, or an entry that follows soon and cannot be written."""
LEAST = 4.0
"""Smallest factor of the times of real scenarios: other tests may begin after the speed of the machine was measured."""
VARIANTS = ((1.0, 0), (0.4, 1), (2.0, 2), (5.0, 3))
"""Factors of all times but those of tracebed, and seeds: what differs between them is concurrent."""


def course(scenario: Scenario) -> Course:
    """Return the course of a scenario in a virtual world."""
    found: list[Course] = []

    def keep(outcome: Outcome) -> None:
        found.append(Course.of(outcome.folder))

    carry_out(scenario, keep)
    return found[0]


@functools.cache
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


SEEDS = (
    *(52, 54, 59, 65, 68, 88, 100, 101, 105, 107, 108, 110, 111, 112, 114, 115, 116, 117, 118, 120, 121, 122, 123, 125),
    *(129, 130, 132, 133, 134, 138, 149, 151, 156, 157, 159, 162, 164, 165, 168, 256, 308),
    *(415, 424, 426, 430, 432, 442, 448, 449, 453),
)
"""The seeds of the scenarios: those that `chosen` keeps, among them at least three of each kind of fault."""


def chosen(seed: int) -> bool:
    """Return whether the faults of a scenario can strike, and its outcome is the same in 120 other courses as well.

    `python -m tests.faults.test_fidelity FIRST COUNT` prints such seeds.
    """
    courses = models(scenario := drawn(seed))
    if not all(fault.after.split()[0] in ONLY.get(fault.kind, STRUCK) for fault in scenario.faults):
        return False
    variants = itertools.product((0.3, 0.6, 1.0, 1.5, 2.5, 5.0), range(4, 24))
    others = (course(slowed(scenario, factor, number)) for factor, number in variants)
    return is_determined(courses) and not any(next(differences(other, courses), None) for other in others)


@pytest.mark.slow
def test_fifty_scenarios_have_the_same_outcome_virtually_and_on_real_processes(tmp_path: Path) -> None:
    scenarios = [drawn(seed) for seed in SEEDS]
    real = [slowed(scenario, min(max(slowness(), LEAST), VARIANTS[-1][0])) for scenario in scenarios]
    with ThreadPoolExecutor(1) as pool:
        replayed = pool.submit(replay_all, real, tmp_path, patience(600))
        virtual = [models(scenario) for scenario in scenarios]
        folders = replayed.result()
    found = []
    for scenario, courses, folder in zip(scenarios, virtual, folders, strict=True):
        texts = [*differences(Course.of(folder / "run"), courses)]
        texts += [] if is_determined(courses) else ["the virtual outcome depends on the speed: draw another scenario"]
        if (struck := Story(scenario, folder).struck) < len(scenario.faults):
            texts.append(f"only {struck} faults have struck")
        errors = (folder / "errors").read_text()[-500:]
        found += [f"seed {scenario.seed}, {scenario.faults}: {text} {errors}" for text in texts[:8]]
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_the_scenarios_contain_each_fault_and_each_policy() -> None:
    scenarios = [drawn(seed) for seed in SEEDS]
    kinds = Counter(fault.kind for scenario in scenarios for fault in scenario.faults)
    assert len(scenarios) == 50
    assert set(kinds) == set(KINDS) and min(kinds.values()) >= 3
    assert {scenario.policy for scenario in scenarios} == set(POLICIES)


A, B, C = ("start", "j1", 0), ("end", "j2", 0), ("up", "v1", 0)


def made(*rounds: int, state: str = "completed") -> Course:
    """Return a course of three events in these rounds, 60 s apart."""
    times = [(number, 60.0 * number) for number in rounds]
    return Course({"j2": (state, 0)}, dict(zip((A, B, C), times, strict=False)), {B: state})


def test_events_are_concurrent_unless_all_models_have_them_in_one_order() -> None:
    both = [made(1, 2, 3), made(1, 3, 2)]
    assert [*differences(made(1, 3, 2), both)] == []
    assert [*differences(made(2, 2, 2), both)] == []
    assert [*differences(made(2, 1, 3), both)] == ["order: end j2 0 before start j1 0"]
    near = Course({}, {A: (1, 20.0), B: (2, 29.0)}, {})
    assert [*differences(Course({}, {A: (2, 29.0), B: (1, 20.0)}, {}), [near])] == []
    later = ("end", "j1", 0)
    near = Course({}, {A: (1, 20.0), later: (2, 29.0)}, {})
    assert [*differences(Course({}, {A: (2, 29.0), later: (1, 20.0)}, {}), [near])] == [
        "order: end j1 0 before start j1 0"
    ]


def test_other_states_and_other_events_are_differences() -> None:
    assert [*differences(made(1, 2, 3, state="failed"), [made(1, 2, 3)])] == [
        "job j2: ('failed', 0), not ('completed', 0)",
        "entry ('end', 'j2', 0): failed, not completed",
    ]
    assert [*differences(made(1, 2), [made(1, 2, 3)])] == ["missing: up v1 0"]
    assert [*differences(made(1, 2, 3), [made(1, 2)])] == ["only here: up v1 0"]


TWO = (JobSpec(20.0, 200.0, 600.0, 1, 1, 1), JobSpec(40.0, 300.0, 600.0, 2, 2, 2))


def test_a_fault_strikes_upon_an_entry_of_the_journal_once_the_fault_before_it_has_struck() -> None:
    kill = Fault("kill", 0.0, "", 0.5, 0.9, "end j1")
    faults = (kill, Fault("kill_agent", 0.0, "v2", 0.0, 0.9, "launched j2"))
    outcomes = []
    for order in (faults, faults[::-1]):
        jobs = course(Scenario(3, "easy", nodes=3, jobs=TWO, faults=order)).jobs
        outcomes.append([restarts for _, restarts in jobs.values()])
    assert outcomes == [[0, 0], [0, 1]]  # the entry `launched j2` is before the entry `end j1`


def ends(*faults: Fault) -> list[float]:
    """Return the ends of the two jobs."""
    found: list[float] = []

    def keep(outcome: Outcome) -> None:
        assert outcome.run is not None
        found.extend(outcome.run.jobs["end"])

    carry_out(Scenario(3, "easy", nodes=3, jobs=TWO, faults=faults), keep)
    return found


def test_a_virtual_rank_that_is_stopped_from_outside_catches_up() -> None:
    """The deadlines of real ranks are absolute, so a stop in the midst of a job does not move its end."""
    usual = ends()
    stopped = Fault("stop_rank", 0.0, "v2", 1.0, 0.9, "launched j2")
    assert ends(stopped) == pytest.approx(usual, abs=10.0)
    late = ends(stopped._replace(seconds=5.0))
    assert late[0] == pytest.approx(usual[0], abs=10.0)
    assert late[1] > usual[1] + 150.0


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    sys.stdout.writelines(f"{seed}\n" for seed in range(first, first + count) if chosen(seed))
