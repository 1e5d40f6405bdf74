"""A metric: its name, unit, definition, margin and documentation, in one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tracebed.validation.metrics.measured import MeasuredRun
from tracebed.validation.steps import Steps

UNDEFINED = "the run has no such figure"


@dataclass(frozen=True)
class Margin:
    """How far a prediction may be off: the larger of a share of the real figure and an absolute amount.

    Absolute amounts in seconds are trace time as the log had it (at a speed of 60, 10 s are 0.17 s of wall time). A
    comparison scales these amounts with the run times of a compressed workload.
    """

    relative: float = 0.0
    """Share of the real figure."""
    absolute: float = 0.0
    """Amount in the unit of the metric."""
    gate: bool = False
    """Whether the metric enters the overall verdict; an advisory metric does not."""

    def at(self, real: float) -> float:
        """Return the margin in the unit of the figure, for a real figure of `real`."""
        return max(self.relative * abs(real), self.absolute)

    def words(self, unit: str = "") -> str:
        """Return the margin in words, for a metric with this unit: `10 %, at least 10 s, gate`."""
        parts = [f"{100 * self.relative:g} %"] if self.relative else []
        if self.absolute:
            parts.append(f"{'at least ' if parts else ''}{self.absolute:g} {unit}".rstrip())
        return ", ".join([*parts, "gate" if self.gate else "advisory"])


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One figure of a run.

    Tables, reports, comparisons, studies and the documentation take all they show of a metric from this object.
    A package adds a metric by an entry point of the group `tracebed.metrics` (docs/how-to/write-a-metric.md).
    """

    name: str
    """Key in the dictionary of `metrics` and in JSON: lower case, with `_s` at its end for seconds."""
    label: str
    """Name in tables."""
    unit: str = ""
    """Unit in tables; empty for counts, shares and ratios. Margins in `s` are scaled with a compressed workload."""
    definition: Callable[[MeasuredRun], float]
    """Return the value of a measured run. A definition that raises `Undefined`, or returns NaN, has no value."""
    undefined: str = UNDEFINED
    """Why there is no value, where the definition returns NaN."""
    docs: str
    """Definition in words, as the documentation shows it (Markdown)."""
    margin: Margin | None = None
    """Largest allowed difference of a prediction; None for metrics that a comparison leaves out."""
    of_malleable_jobs: bool = False
    """Whether the metric is about malleable jobs; a comparison of rigid jobs leaves the metric out."""
    mean_of: str = ""
    """Column of `per_job` of which the metric is the mean: gives quartiles, and stability in a comparison."""
    mean_over_time: Callable[[MeasuredRun], Steps] | None = None
    """Function of time of which the metric is the mean in the window: gives quartiles and stability, too."""

    @property
    def title(self) -> str:
        """Label and unit: `makespan (s)`."""
        return f"{self.label} ({self.unit})" if self.unit else self.label
