"""What happens in a replay, and the comparison of two replays up to what is concurrent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.runs.working_folders import working_folders

DETAILS = {"start": "nodes", "resize": "nodes", "end": "state"}
"""The kinds of entries whose data must be equal too, with the name of the datum."""
KINDS = ("submit", "launched", "effect", "requeue", "down", "up", "cancel", "reject", "pause", *DETAILS)
"""The kinds of entries that are compared. Not among them is `kill`, the message to end the ranks that are left: who
notices the loss of a node first, the leader of a job or the controller, decides whether it is needed."""

APART_S = 50.0
"""Time between two events of different jobs or nodes that are not concurrent, trace s: 0.5 s at a speed of 100."""

Event = tuple[str, str, int]
"""Kind of an entry of the journal, its job or node, and the number of entries of both before it."""


class Course(NamedTuple):
    """A replay.

    Attributes:
        jobs: job -> state and restarts; empty if there is no run.
        rounds: event -> round of the scheduler, and its time, trace s.
        details: event -> its nodes, state or reason.
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
            if entry.kind in KINDS:
                key = (entry.kind, entry.job or entry.node or "")
                event = (*key, numbers[key])
                numbers[key] += 1
                rounds[event] = entry.round, entry.time
                if entry.kind in DETAILS:
                    details[event] = entry.data[DETAILS[entry.kind]]
        return cls(jobs, rounds, details)

    def order(self, apart_s: float = 0.0) -> set[tuple[Event, Event]]:
        """Return the pairs of events in different rounds, the earlier one first. The events of a round are a set.

        Args:
            apart_s: least time between two events of different jobs or nodes, trace s.
        """
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
