"""The stages of a reconfiguration in processes: decision, spawn, redistribution, termination, and their table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ReconfigurationStages(NamedTuple):
    """One change of the number of ranks of a job, by stage. Stages follow each other, so their sum is the total."""

    before: int
    """Number of ranks before the change."""
    after: int
    """Number of ranks after the change."""
    decision_s: float
    """Time from the question, or from the request, to the decision."""
    spawn_s: float
    """Time until the new ranks are connected. 0 for a shrink."""
    redistribution_s: float
    """Time in which the state of the job moves."""
    termination_s: float
    """Time until the processes of the released ranks have ended. 0 for an expansion."""
    moved_mib: float
    """State that moved between ranks, MiB."""
    plain_spawn_s: float | None = None
    """Time for a new start of `after` ranks; None: not measured."""
    first_iteration_s: float | None = None
    """Time of the first iteration after the change, which is not part of the total; None: not measured."""

    @property
    def total_s(self) -> float:
        """The sum of the stages, s."""
        return self.decision_s + self.spawn_s + self.redistribution_s + self.termination_s

    @property
    def ratio(self) -> float | None:
        """The total over the time for a new start of `after` ranks."""
        return None if not self.plain_spawn_s else self.total_s / self.plain_spawn_s


HEADINGS = (
    "Ranks",
    "Decision ms",
    "Spawn ms",
    "Redistribution ms",
    "Termination ms",
    "Total ms",
    "Moved MiB",
    "Plain spawn ms",
    "Total / plain",
    "First iteration ms",
)


def table(stages: Iterable[ReconfigurationStages]) -> str:
    """Return the changes as a table, one row each."""
    rows = [HEADINGS, *map(_row, stages)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _row(change: ReconfigurationStages) -> tuple[str, ...]:
    times = (change.decision_s, change.spawn_s, change.redistribution_s, change.termination_s, change.total_s)
    return (
        f"{change.before} -> {change.after}",
        *(f"{1000 * seconds:.2f}" for seconds in times),
        f"{change.moved_mib:.2f}",
        "" if change.plain_spawn_s is None else f"{1000 * change.plain_spawn_s:.2f}",
        "" if change.ratio is None else f"{change.ratio:.3f}",
        "" if change.first_iteration_s is None else f"{1000 * change.first_iteration_s:.2f}",
    )
