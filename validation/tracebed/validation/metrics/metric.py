"""The class of metrics: name, unit, definition, margin and documentation; and the registry of all installed metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tracebed.ground.errors import InputError
from tracebed.ground.registry import Registry
from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.metrics.measured import MeasuredRun

UNDEFINED = "the metric is undefined for this run"

STANDARD = "standard"  # entry point of the metrics of tracebed, which are listed first

REGISTRY: Registry[Metric | Sequence[Metric]] = Registry("tracebed.metrics", "metric")
"""An entry point refers to one `Metric` or to a sequence of metrics."""

RESERVED = {
    *("energy", "undefined", "quartiles", "trimmed", "tau", "utilization_window", "operations", "reconfiguration_s"),
    *(
        "deadlines_by_behaviour",
        "core_changes",
        "jobs_unfinished",
        "jobs_malleable",
        "jobs_by_state",
        "clock_skew_jobs",
        "zero_run_jobs",
    ),
}
"""Further keys of the dictionary of `metrics`, which metrics must not use."""


@dataclass(frozen=True)
class Margin:
    """Largest accepted difference of a prediction: the larger of a share of the real value and an absolute amount.

    Absolute amounts in seconds are trace time of the original log (at a speed of 60, 10 s are 0.17 s of wall time). If
    the workload has compressed run times, a comparison scales these amounts by the same factor.
    """

    relative: float = 0.0
    """Share of the real value."""
    absolute: float = 0.0
    """Amount in the unit of the metric."""
    gate: bool = False
    """Whether the metric enters the overall verdict. Other metrics are advisory."""

    def at(self, real: float) -> float:
        """Return the margin in the unit of the metric, for a real value of `real`."""
        return max(self.relative * abs(real), self.absolute)

    def scaled(self, factor: float) -> Margin:
        """Return the margin multiplied by `factor`."""
        return Margin(factor * self.relative, factor * self.absolute, gate=self.gate)

    def text(self, unit: str = "") -> str:
        """Return the margin as in a tolerances file, for a metric with this unit: `10%, 10 s, gate`."""
        parts = [f"{100 * self.relative:g}%"] if self.relative else []
        if self.absolute or not parts:
            parts.append(f"{self.absolute:g} {unit}".rstrip())
        return ", ".join([*parts, "gate" if self.gate else "advisory"])

    def words(self, unit: str = "") -> str:
        """Return the margin as text, for a metric with this unit: `10 %, at least 10 s, gate`."""
        parts = [f"{100 * self.relative:g} %"] if self.relative else []
        if self.absolute:
            parts.append(f"{'at least ' if parts else ''}{self.absolute:g} {unit}".rstrip())
        return ", ".join([*parts, "gate" if self.gate else "advisory"])


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric of a run.

    Tables, reports, comparisons, studies and the documentation use these attributes. A package adds a metric by an
    entry point of the group `tracebed.metrics` (docs/how-to/write-a-metric.md).
    """

    name: str
    """Key in the dictionary of `metrics` and in JSON: lower case, with the suffix `_s` for seconds."""
    label: str
    """Name in tables."""
    short: str = ""
    """Short name in options and tolerances files: `wait`."""
    unit: str = ""
    """Unit in tables; empty for counts, shares and ratios. Margins in `s` scale with compressed run times."""
    definition: Callable[[MeasuredRun], float]
    """Return the value for a measured run; raise `Undefined` or return NaN if the metric is undefined."""
    undefined: str = UNDEFINED
    """Reason to report if the definition returns NaN."""
    docs: str
    """Definition for the documentation (Markdown)."""
    margin: Margin | None = None
    """Largest accepted difference of a prediction; None excludes the metric from comparisons."""
    of_malleable_jobs: bool = False
    """Whether the metric is only about malleable jobs. Comparisons of rigid jobs omit such metrics."""
    of_run_times: bool = False
    """Whether the metric measures run times alone. Where the run times were imposed, such a metric is no evidence."""
    optional: bool = False
    """Whether the metric is undefined for most runs, such as runs without deadlines. No message reports that."""
    mean_of: str = ""
    """Column of `per_job`. The metric is its mean; quartiles are also computed."""
    above_zero: bool = False
    """Whether the mean and the quartiles are over jobs whose value of `mean_of` is above 0."""
    mean_over_time: Callable[[MeasuredRun], Steps] | None = None
    """Function of time. The metric is its mean in the window; quartiles are also computed."""

    @property
    def title(self) -> str:
        """Label and unit: `makespan (s)`."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


@cache
def all_metrics() -> dict[str, Metric]:
    """Return the installed metrics by name, in the order of tables.

    Raises:
        InputError: an entry point cannot be loaded, is not a metric, or repeats the name of a metric.
    """
    metrics: dict[str, Metric] = {}
    for entry in sorted(REGISTRY.names(), key=lambda name: (name != STANDARD, name)):
        for metric in _metrics_of(entry):
            if metric.name in metrics or metric.name in RESERVED:
                raise InputError(
                    f"metric {metric.name!r} already exists",
                    where=REGISTRY.entries[entry].value,
                    hint="rename the metric, or uninstall its package",
                )
            metrics[metric.name] = metric
    return metrics


def _metrics_of(entry: str) -> Sequence[Metric]:
    extension: Any = REGISTRY.load(entry)
    metrics = [extension] if isinstance(extension, Metric) else extension
    if not isinstance(metrics, Sequence) or not all(isinstance(metric, Metric) for metric in metrics):
        hint = "the entry point must refer to a tracebed.validation.metrics.Metric or a sequence of metrics"
        raise InputError("not a metric", where=REGISTRY.entries[entry].value, hint=hint)
    return metrics
