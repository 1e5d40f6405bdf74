"""Hand-overs of CPUs between jobs that share a node: overlaps of their masks, and gaps between them.

The spans of a CPU are computed from the instants at which ranks applied their masks, by one clock for each node.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

TAKEN = attrgetter("taken")


@dataclass(slots=True)
class Span:
    """The time in which a CPU was in the mask of a rank, trace s."""

    job: str
    taken: float
    grown: bool
    """Whether the mask of a running rank grew. Otherwise the rank was launched with the CPU."""
    released: float = math.inf
    shrunk: bool = False
    """Whether the mask of a running rank shrank. Otherwise the rank ended with the CPU."""
    ended: float = math.inf
    """End of the rank."""


class Handover(NamedTuple):
    """The overlap or the gap between two jobs on a CPU."""

    seconds: float
    """Duration, trace s; of an overlap the common time of both masks."""
    node: int
    cpu: int
    before: str
    """The job that held the CPU first."""
    after: str


class SpanStep(NamedTuple):
    """A step of the sweep over the spans of a CPU, sorted by begin: results for this span and for all spans so far."""

    overlap: Handover | None
    """Longest overlap of the span with an earlier span of another job."""
    gap: Handover | None
    """Time before the span since another job, if the CPU was handed over between running ranks."""
    latest: dict[str, float]
    """Job -> its last release after the begin of the span."""
    last: Span | None
    """The span that is released last."""
    found: int = 0
    """Number of overlaps and gaps so far."""
    longest_overlap: Handover | None = None
    longest_gap: Handover | None = None


NOTHING = SpanStep(None, None, {}, None)


class CpuSpans:
    """The spans of a CPU, sorted by their begin.

    A change of a span invalidates the steps from this span on. Changes arrive almost in order, so that the cost of a
    change does not depend on the length of the replay.
    """

    def __init__(self, node: int, cpu: int) -> None:
        """Start without spans."""
        self.node, self.cpu = node, cpu
        self._spans: list[Span] = []
        self._steps: list[SpanStep] = []

    def add(self, span: Span) -> None:
        """Add a span."""
        insort(self._spans, span, key=TAKEN)
        self.changed(span)

    def remove(self, span: Span) -> None:
        """Remove a span."""
        self.changed(span)
        self._spans.remove(span)

    def changed(self, span: Span) -> None:
        """Invalidate the steps from `span` on, after its release or the end of its rank has become known."""
        del self._steps[bisect_left(self._spans, span.taken, key=TAKEN) :]

    def steps(self) -> Sequence[SpanStep]:
        """Return the steps of all spans."""
        step = self._steps[-1] if self._steps else NOTHING
        for span in islice(self._spans, len(self._steps), None):
            step = self._next(step, span)
            self._steps.append(step)
        return self._steps

    def _next(self, before: SpanStep, span: Span) -> SpanStep:
        overlap, gap = self._overlap(before, span), self._gap(before.last, span)
        latest = {job: released for job, released in before.latest.items() if released > span.taken}
        latest[span.job] = max(span.released, latest.get(span.job, -math.inf))
        return SpanStep(
            overlap,
            gap,
            latest,
            span if before.last is None or span.released > before.last.released else before.last,
            before.found + (overlap is not None) + (gap is not None),
            max(filter(None, (before.longest_overlap, overlap)), default=None),
            max(filter(None, (before.longest_gap, gap)), default=None),
        )

    def _overlap(self, before: SpanStep, span: Span) -> Handover | None:
        others = [(released, job) for job, released in before.latest.items() if job != span.job]
        released, job = max(others, default=(-math.inf, ""))
        seconds = min(released, span.released) - span.taken
        known = 0 < seconds < math.inf  # the duration is known when one of both masks has released the CPU
        return Handover(seconds, self.node, self.cpu, job, span.job) if known else None

    def _gap(self, last: Span | None, span: Span) -> Handover | None:
        """Return the time between two jobs.

        A CPU is handed over if the mask of the first rank shrank, and the second rank took the CPU before the first
        rank ended, or if the mask of the second rank grew. Otherwise the CPU was idle between two jobs.
        """
        if last is None or last.job == span.job or last.released > span.taken:
            return None
        if not (span.grown or (last.shrunk and span.taken <= last.ended)):
            return None
        return Handover(span.taken - last.released, self.node, self.cpu, last.job, span.job)


class Handovers:
    """The spans of the CPUs of jobs that share nodes."""

    def __init__(self) -> None:
        """Start without spans."""
        self._cpus: dict[tuple[int, int], CpuSpans] = {}  # (node, CPU) -> its spans
        self._ranks: dict[tuple[int, str], dict[int, Span]] = defaultdict(dict)  # (node, job) -> CPU -> last span

    def change(
        self, node: int, job: str, before: Iterable[int] | None, after: Iterable[int] | None, at: float, *, since: float
    ) -> None:
        """Add a change of the mask of the rank of `job` on `node`.

        Args:
            before: the CPUs before the change; None: the rank was launched with `after`.
            after: the CPUs after the change; None: the rank has ended.
            at: time of the change, trace s.
            since: time at which the rank was launched, trace s, for CPUs without an earlier change.
        """
        spans, old, new = self._ranks[node, job], set(before or ()), set(after or ())
        for cpu in old - new:
            span = spans.get(cpu)
            if span is None or span.released < math.inf:
                span = self._take(node, cpu, spans, Span(job, since, grown=False))
            span.released, span.shrunk = at, after is not None
            self._cpus[node, cpu].changed(span)
        for cpu in new - old:
            self._take(node, cpu, spans, Span(job, at, grown=before is not None))
        if after is None:
            for cpu, span in self._ranks.pop((node, job)).items():
                span.ended = at
                self._cpus[node, cpu].changed(span)

    def lose(self, node: int) -> None:
        """Remove the masks of the ranks on the lost `node`: the time of their end is unknown."""
        for key in [key for key in self._ranks if key[0] == node]:
            for cpu, span in self._ranks.pop(key).items():
                if span.released == math.inf:
                    self._cpus[node, cpu].remove(span)

    def overlaps(self) -> Iterator[Handover]:
        """Yield for each span its longest overlap with an earlier span of another job on the CPU, if there is one."""
        for cpu in self._cpus.values():
            yield from (step.overlap for step in cpu.steps() if step.overlap)

    def gaps(self) -> Iterator[Handover]:
        """Yield the times between two jobs for each CPU that was handed over between running ranks."""
        for cpu in self._cpus.values():
            yield from (step.gap for step in cpu.steps() if step.gap)

    def worst(self, speed: float, names: Sequence[str]) -> dict[str, Any]:
        """Return the longest overlap and the longest gap for `run.json`, wall s; empty without hand-overs.

        Args:
            speed: trace seconds per wall second.
            names: names of the nodes.

        Returns:
            `handovers`: number of CPUs handed over. `gap_s`, `overlap_s`: the longest; 0 without an overlap. `gap_at`,
            `overlap_at`: CPU, node and jobs.
        """
        ends = [steps[-1] for cpu in self._cpus.values() if (steps := cpu.steps())]
        facts: dict[str, Any] = {"handovers": sum(step.found for step in ends)}
        if not facts["handovers"]:
            return {}
        gaps, overlaps = (step.longest_gap for step in ends), (step.longest_overlap for step in ends)
        for name, found in (("gap", gaps), ("overlap", overlaps)):
            longest = max(filter(None, found), default=None)
            facts[f"{name}_s"] = 0.0 if longest is None else float(f"{longest.seconds / speed:.6g}")
            if longest is not None:
                place = f"CPU {longest.cpu} of {names[longest.node]}"
                facts[f"{name}_at"] = f"{place}, jobs {longest.before} and {longest.after}"
        return facts

    def _take(self, node: int, cpu: int, spans: dict[int, Span], span: Span) -> Span:
        self._cpus.setdefault((node, cpu), CpuSpans(node, cpu)).add(span)
        spans[cpu] = span
        return span
