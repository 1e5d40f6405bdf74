"""The common time axis of the pictures of a report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import origin
from tracebed.validation.report.style import NARROW

DRAINED = 0.95
"""Share of the jobs that end before the end of a cropped axis."""
TAIL = 0.5
"""Share of the axis above which the tail after that instant is cropped."""
UNITS = ((86400.0, "days", 4.0), (3600.0, "h", 3.0), (60.0, "min", 10.0))
"""Units of time: seconds, name, and smallest length of the axis in this unit."""


@dataclass(frozen=True)
class TimeAxis:
    """Trace time after the first submission of each run, from 0 to `end`.

    The axis covers its runs completely, unless all arrivals and `DRAINED` of the job ends lie in its first half. Then
    the axis is cropped, and `note` describes the rest.
    """

    end: float
    """End of the axis, s."""
    unit: float
    """Length of the unit, s."""
    name: str
    """Name of the unit: days, h, min or s."""
    later: tuple[int, ...]
    """For each run, the number of jobs that end after `end`."""
    last: tuple[float, ...]
    """For each run, the last end of a job, s; 0 if no job ended."""

    @classmethod
    def of(cls, *runs: Run) -> TimeAxis:
        """Return the axis for all of `runs`."""
        ends = [_ends(run) for run in runs]
        last = tuple(float(each.max(initial=0.0)) for each in ends)
        full = max([*last, *(_last_allocation(run) for run in runs), 1.0])
        drained = [float(np.quantile(each, DRAINED, method="higher")) for each in ends if len(each)]
        end = max([*drained, *(_last_submission(run) for run in runs), 1.0])
        if end >= (1 - TAIL) * full:
            end = full
        unit, name = next(((unit, name) for unit, name, least in UNITS if end >= least * unit), (1.0, "s"))
        return cls(end, unit, name, tuple(int((each > end).sum()) for each in ends), last)

    def apply(self, axes: Axes, *, label: bool = True) -> None:
        """Set limits, ticks and label of an x axis in the unit of this axis."""
        axes.set_xlim(0.0, 1.01 * self.end / self.unit)
        wide = axes.get_figure(root=True).get_figwidth() > NARROW  # type: ignore[union-attr]
        steps = [1, 2, 3, 5, 6, 10] if self.name in ("h", "min") else [1, 2, 5, 10]
        axes.xaxis.set_major_locator(MaxNLocator(12 if wide else 6, steps=steps))
        if label:
            axes.set_xlabel(f"time after the first submission ({self.name})")
        else:
            axes.tick_params(labelbottom=False)

    def show(self, instant: float) -> str:
        """Return an instant (s) in the unit of this axis: `6.9 days`."""
        return f"{instant / self.unit:,.4g} {self.name}"

    def note(self, *sides: str) -> str:
        """Return a sentence about jobs that end after the axis; empty if there are none.

        Args:
            sides: name of each run (`real`, `predicted`).
        """
        beyond = [
            f"{count:,} {side} jobs end later, the last at {self.show(last)}"
            for side, count, last in zip(sides, self.later, self.last, strict=True)
            if count
        ]
        if not beyond:
            return ""
        return f" The time axis ends at {self.show(self.end)}, when {100 * DRAINED:.0f} % of the jobs have ended: " + (
            "; ".join(beyond) + "."
        )


def _ends(run: Run) -> FloatArray:
    ends = run.jobs["end"].to_numpy(dtype=np.float64) - origin(run)
    return ends[np.isfinite(ends)]


def _last_submission(run: Run) -> float:
    submits = run.jobs["submit"].to_numpy(dtype=np.float64) - origin(run)
    return float(submits[np.isfinite(submits)].max(initial=0.0))


def _last_allocation(run: Run) -> float:
    ends = run.allocations["end"].to_numpy(dtype=np.float64) - origin(run)
    return float(ends[np.isfinite(ends)].max(initial=0.0))
