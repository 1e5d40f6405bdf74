"""Health of the real run: whether the run is fit to be compared, and the causes if not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracebed.orchestrator.run import Run
from tracebed.validation.verdict.capacity import unused_nodes

HEALTHY, DEGRADED, UNHEALTHY, UNKNOWN = "healthy", "degraded", "unhealthy", "unknown"
FACTS = ("interrupted", "clock_skew_jobs", "nodes_unused")
"""Signals without a limit that a run could widen."""
LOGGED = "it is a log without a record of its machine: the health was judged by nodes, states and times only"


NOT_JUDGED: tuple[str, list[dict[str, Any]], list[str], bool, dict[str, float | None]] = ("", [], [LOGGED], False, {})
"""The health of a log: state, causes, notes, lenient, and signals."""


@dataclass(frozen=True)
class Health:
    """State of the real run, and the causes with their figures."""

    state: str
    """`healthy`, `degraded`, `unhealthy`, or `unknown` for a log or a replay that recorded no health."""
    causes: tuple[dict[str, Any], ...]
    """Causes: signal, value, limit, state (degraded or unhealthy) and text."""
    notes: tuple[str, ...] = ()
    """How the health differs from the record of the run, and what could not be recomputed; a sentence each."""
    lenient: bool = False
    """Whether the run is unhealthy by the default limits only, and not by its own ones."""
    signals: Mapping[str, float | None] = field(default_factory=dict)
    """The judged figures: signal -> value; None: unknown. Empty for a log, and for a replay without a record."""

    @classmethod
    def of(cls, run: Run, skewed_jobs: int) -> Health:
        """Return the health of the real run `run`. The health of a replay is judged again (`rejudging`).

        Args:
            skewed_jobs: number of jobs with contradicting times.
        """
        found = NOT_JUDGED
        if run.info.source == "replay":
            from tracebed.validation.verdict.rejudging import reassessed_health  # slow: the limits of replays

            found = reassessed_health(run)
        state, causes, notes, lenient, signals = found
        causes = [*causes]
        known = {cause.get("signal") for cause in causes}
        if run.info.state == "interrupted" and state != UNHEALTHY and "interrupted" not in known:
            why = "; ".join(filter(None, run.info.interruptions)) or "cause unknown"
            causes.append(_cause("interrupted", 1, 0, f"the run was interrupted: {why}"))
        if skewed_jobs:
            text = f"{skewed_jobs:,} jobs start before their submission or end before their start"
            causes.append(_cause("clock_skew_jobs", skewed_jobs, 0, text))
        if (unused := unused_nodes(run)) is not None:
            causes.append(_cause("nodes_unused", len(unused.nodes), 0, unused.text))
        of_limits = [cause for cause in causes if cause["state"] == UNHEALTHY]
        return cls(
            UNHEALTHY if of_limits else state or UNKNOWN,
            tuple(causes),
            tuple(notes),
            lenient and all(cause.get("signal") not in FACTS for cause in of_limits),
            signals,
        )

    @property
    def decisive(self) -> list[dict[str, Any]]:
        """Causes of the state, without the causes of a milder state."""
        return [cause for cause in self.causes if cause["state"] == self.state]

    @property
    def why(self) -> str:
        """Texts of the decisive causes."""
        return "; ".join(cause["text"] for cause in self.decisive) or "cause unknown"


def counted_notes(notes: Sequence[tuple[str, str]], total: int) -> list[str]:
    """Return notes about runs as text, each different note once.

    Args:
        notes: name of a run and its note.
        total: number of runs.
    """
    by_text: dict[str, list[str]] = {}
    for name, note in notes:
        by_text.setdefault(note, []).append(name)
    return [
        f"{names[0]}: {note}" if len(names) == 1 else f"{len(names)} of {total} runs ({names[0]}, and others): {note}"
        for note, names in by_text.items()
    ]


def _cause(signal: str, value: float, limit: float, text: str) -> dict[str, Any]:
    return {"signal": signal, "value": value, "limit": limit, "state": UNHEALTHY, "text": text}
