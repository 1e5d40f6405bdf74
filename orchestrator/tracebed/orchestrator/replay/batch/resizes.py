"""The resizes of the jobs of a batch system that a policy decides, and the second jobs by which jobs expand."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tracebed.orchestrator.replay.batch.base import JobObservation, Phase

RETRY_S = 1.0  # time after which a failed shrink is tried again, wall s
SECOND = re.compile(r"(?P<name>.+)\+(?P<request>[0-9]+)")  # name of a second job, which takes nodes for the job `name`


def second_name(name: str, request: int) -> str:
    """Return the name of the second job of a request for nodes."""
    return f"{name}+{request}"


@dataclass
class BatchResize:
    """A resize. Times are of the replay's clock, s since 1970; None: not reached."""

    request: int  # number of the request of the job, from 1: the start
    before: tuple[str, ...]
    after: tuple[str, ...]  # The nodes of the job. The first one never changes.
    rates: tuple[float, float]  # rate of the job before and after, in work seconds a second
    asked: float  # decision of the policy
    decision_s: float  # time that the policy took to decide, s
    called: float | None = None  # beginning of the request for nodes, or of the command that releases nodes
    granted: float | None = None  # time at which a second job held the additional nodes
    merged: float | None = None  # time at which the batch system had changed the nodes of the job
    seen: float | None = None  # malleability point at which the job read its new size
    applied: float | None = None  # time at which the job worked on its new nodes, and had left the others
    state: str = ""  # `applied` or `refused`; empty: pending, or the job ended first
    reason: str = ""  # last message of the batch system about a call that failed

    @property
    def expands(self) -> bool:
        """Whether nodes are added."""
        return len(self.after) > len(self.before)

    @property
    def added(self) -> tuple[str, ...]:
        """The nodes that an expansion adds."""
        return self.after[len(self.before) :]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the resize with these values, from `vars`."""
        return cls(**{**values, **{name: tuple(values[name]) for name in ("before", "after", "rates")}})

    def row(self, job_id: str, trace: Callable[[float], float], nan: float) -> dict[str, Any]:
        """Return the row of the table `reconfigurations`, with `nan` for times that are not reached."""

        def at(time: float | None) -> float:
            return nan if time is None else trace(max(time, self.asked))

        def took(since: float | None, until: float | None) -> float:
            return nan if since is None or until is None else max(0.0, until - since)

        done = self.state == "applied"
        ended = max(filter(None, (self.merged, self.applied)), default=None)
        return {
            "job_id": job_id,
            "kind": "expand" if self.expands else "shrink",
            "nodes_from": len(self.before),
            "nodes_to": len(self.after),
            "asked": trace(self.asked),
            "decided": at(self.seen) if done else nan,
            "applied": at(self.applied) if done else nan,
            "ended": at(ended) if done else nan,
            "state": self.state or "cancelled",
            "decision_s": self.decision_s,
            "grant_s": took(self.called, self.granted),
            "merge_s": took(self.granted if self.expands else self.called, self.merged),
            "spawn_s": took(self.seen, self.applied) if self.expands else nan,
            "termination_s": nan if self.expands else took(self.seen, self.applied),
        }


@dataclass
class Command:
    """The commands that carry out a decision, one after the other."""

    calling: bool = field(default=False, kw_only=True)
    failed_at: float | None = field(default=None, kw_only=True)  # time of a failure that has not been settled
    final: bool = field(default=False, kw_only=True)  # whether the batch system refused: another call is useless


@dataclass
class StartCommand(Command):
    """The commands of a start on `nodes`."""

    nodes: tuple[str, ...]


@dataclass
class ResizeCommand(Command):
    """The commands of a resize."""

    resize: BatchResize
    second: str | None = None  # ID of the second job that holds the nodes of an expansion
    told: bool = False  # whether the job can read its new size

    def settle(self, nodes: Collection[str], seconds: Sequence[JobObservation], began: float) -> str:
        """Find out what has become of the resize after a command failed. Its answer may have been lost.

        The observation must have begun after the failure. `nodes` are those of the job in it, and `seconds` the second
        jobs of the request that have not ended. The result is `merged` if the batch system has changed the nodes;
        `again` if the command is to be repeated; `wait`; `withdraw` if the second jobs are to be cancelled; `refused`
        if none is left.
        """
        assert self.failed_at is not None
        resize, granted = self.resize, [each for each in seconds if each.phase is Phase.RUNNING]
        if {*nodes} == {*resize.after}:
            resize.merged, self.failed_at = began, None
            return "merged"
        if not resize.expands and began <= self.failed_at + RETRY_S:
            return "wait"
        if not resize.expands or (granted and not self.final):
            if resize.expands:
                self.second, resize.granted = granted[0].id, resize.granted or began
            self.failed_at = None
            return "again"
        return "withdraw" if seconds else "refused"


def planned_end(work_s: float, launched: float, rate: float, resizes: Sequence[BatchResize]) -> float:
    """Return when a malleable job completes its work, in s at the rate 1. It does not work during a resize."""
    since = launched
    for resize in resizes:
        if resize.seen is None or resize.applied is None:
            continue
        work_s -= (resize.seen - since) * rate
        since, rate = resize.applied, resize.rates[1]
    return since + work_s / rate


def held_times(
    first: tuple[str, ...], changes: list[tuple[float, tuple[str, ...]]], start: float, end: float
) -> Iterator[tuple[str, float, float]]:
    """Yield (node, since, until) for each time in which a job held a node. It had the nodes `first` at its start."""
    since = dict.fromkeys(first, start)
    for at, names in changes:
        now = min(end, max(start, at))
        for name in [name for name in since if name not in names]:
            yield name, since.pop(name), now
        for name in names:
            since.setdefault(name, now)
    yield from ((name, began, end) for name, began in since.items())
