"""Hand-overs of CPUs between jobs that share a node: overlaps of their masks, and gaps between them.

The spans of a CPU are computed from the instants at which ranks applied their masks, by one clock for each node.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(slots=True)
class Span:
    """The time in which the rank of a job had a CPU in its mask, trace s."""

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
    """The job that had the CPU first."""
    after: str


class Handovers:
    """The spans of the CPUs of jobs that share nodes."""

    def __init__(self) -> None:
        """Start without spans."""
        self._spans: dict[tuple[int, int], list[Span]] = defaultdict(list)  # (node, CPU) -> its spans
        self._ranks: dict[tuple[int, str], dict[int, Span]] = defaultdict(dict)  # (node, job) -> CPU -> last span

    def change(
        self, node: int, job: str, before: Iterable[int] | None, after: Iterable[int] | None, at: float, *, since: float
    ) -> None:
        """Add a change of the mask of the rank of `job` on `node`.

        Args:
            node: the node.
            job: the job.
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
        for cpu in new - old:
            self._take(node, cpu, spans, Span(job, at, grown=before is not None))
        if after is None:
            for span in self._ranks.pop((node, job)).values():
                span.ended = at

    def lose(self, node: int) -> None:
        """Forget the masks of the ranks on the lost `node`: the time at which they ended is unknown."""
        for key in [key for key in self._ranks if key[0] == node]:
            for cpu, span in self._ranks.pop(key).items():
                if span.released == math.inf:
                    self._spans[node, cpu].remove(span)

    def overlaps(self) -> Iterator[Handover]:
        """Yield for each span its longest overlap with an earlier span of another job on the CPU, if there is one."""
        for (node, cpu), spans in self._spans.items():
            latest: dict[str, float] = {}  # job -> its last release so far
            for span in sorted(spans, key=lambda span: span.taken):
                others = [(released, job) for job, released in latest.items() if job != span.job]
                released, job = max(others, default=(-math.inf, ""))
                if (seconds := min(released, span.released) - span.taken) > 0:
                    yield Handover(seconds, node, cpu, job, span.job)
                latest = {job: released for job, released in latest.items() if released > span.taken}
                latest[span.job] = max(span.released, latest.get(span.job, -math.inf))

    def gaps(self) -> Iterator[Handover]:
        """Yield the times between two jobs for each CPU that was handed over between running ranks.

        A CPU is handed over if the mask of the first rank shrank, and the second rank took the CPU before the first
        rank ended, or if the mask of the second rank grew. Otherwise the CPU was idle between two jobs.
        """
        for (node, cpu), spans in self._spans.items():
            last: Span | None = None
            for span in sorted(spans, key=lambda span: span.taken):
                if last is not None and last.job != span.job and last.released <= span.taken:
                    shrunk = last.shrunk and span.taken <= last.ended
                    if shrunk or span.grown:
                        yield Handover(span.taken - last.released, node, cpu, last.job, span.job)
                if last is None or span.released > last.released:
                    last = span

    def worst(self, speed: float, names: Sequence[str]) -> dict[str, Any]:
        """Return the longest overlap and the longest gap for `run.json`, wall s; empty without hand-overs.

        Args:
            speed: trace seconds per wall second.
            names: names of the nodes.

        Returns:
            `handovers`: number of CPUs handed over. `gap_s`, `overlap_s`: the longest; 0 without an overlap. `gap_at`,
            `overlap_at`: CPU, node and jobs.
        """
        gaps, overlaps = list(self.gaps()), list(self.overlaps())
        if not gaps and not overlaps:
            return {}
        facts: dict[str, Any] = {"handovers": len(gaps) + len(overlaps)}
        for name, found in (("gap", gaps), ("overlap", overlaps)):
            longest = max(found, default=None)
            facts[f"{name}_s"] = 0.0 if longest is None else float(f"{longest.seconds / speed:.6g}")
            if longest is not None:
                place = f"CPU {longest.cpu} of {names[longest.node]}"
                facts[f"{name}_at"] = f"{place}, jobs {longest.before} and {longest.after}"
        return facts

    def _take(self, node: int, cpu: int, spans: dict[int, Span], span: Span) -> Span:
        self._spans[node, cpu].append(span)
        spans[cpu] = span
        return span
