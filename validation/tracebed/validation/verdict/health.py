"""Health of the real run: whether the run is fit to be compared, and the causes if not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracebed.orchestrator.run import Run

HEALTHY, DEGRADED, UNHEALTHY, UNKNOWN = "healthy", "degraded", "unhealthy", "unknown"


@dataclass(frozen=True)
class Health:
    """State of the real run, and the causes with their figures."""

    state: str
    """`healthy`, `degraded`, `unhealthy`, or `unknown` for a log or a replay that recorded no health."""
    causes: tuple[dict[str, Any], ...]
    """Causes: signal, value, limit, state (degraded or unhealthy) and text."""

    @classmethod
    def of(cls, run: Run, skewed_jobs: int) -> Health:
        """Return the health of the real run `run`.

        Args:
            run: the real run.
            skewed_jobs: number of jobs with contradicting times.
        """
        recorded = run.info.health
        causes = list(recorded.get("causes", []))
        state = recorded.get("state", UNKNOWN)
        if run.info.state == "interrupted" and state != UNHEALTHY:
            why = "; ".join(filter(None, run.info.interruptions)) or "cause unknown"
            causes.append(_cause("interrupted", 1, 0, f"the run was interrupted: {why}"))
        if skewed_jobs:
            text = f"{skewed_jobs:,} jobs start before their submission or end before their start"
            causes.append(_cause("clock_skew_jobs", skewed_jobs, 0, text))
        if any(cause["state"] == UNHEALTHY for cause in causes):
            state = UNHEALTHY
        return cls(state, tuple(causes))

    @property
    def decisive(self) -> list[dict[str, Any]]:
        """Causes of the state, without the causes of a milder state."""
        return [cause for cause in self.causes if cause["state"] == self.state]

    @property
    def why(self) -> str:
        """Texts of the decisive causes."""
        return "; ".join(cause["text"] for cause in self.decisive) or "cause unknown"


def _cause(signal: str, value: float, limit: float, text: str) -> dict[str, Any]:
    return {"signal": signal, "value": value, "limit": limit, "state": UNHEALTHY, "text": text}
