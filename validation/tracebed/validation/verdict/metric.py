"""Comparison of one metric of two runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tracebed.display import cell
from tracebed.validation.metrics import Margin, Metric
from tracebed.validation.statistics import Interval
from tracebed.validation.verdict.rule import Reason, Verdict


@dataclass(frozen=True)
class MetricComparison:
    """One metric of the real run and of the prediction, and the margin of their difference."""

    metric: Metric
    real: float
    predicted: float
    margin: Margin
    """The margin of the metric, with absolute amounts scaled to a compressed workload."""
    stability: Interval | None
    """Batch-means interval of predicted - real within this pair of runs; not a confidence interval of the accuracy."""
    verdict: Verdict
    reasons: tuple[Reason, ...]
    evidence: bool = True
    """False for a metric of run times where the real run times were imposed. Such a metric is advisory."""

    @property
    def name(self) -> str:
        """Name of the metric."""
        return self.metric.name

    @property
    def difference(self) -> float:
        """Predicted - real."""
        return self.predicted - self.real

    @property
    def relative_error(self) -> float:
        """Difference / real value; NaN for a real value of 0."""
        return self.difference / self.real if self.real else math.nan

    @property
    def tolerance(self) -> float:
        """The margin in the unit of the metric."""
        return self.margin.at(self.real)

    @property
    def z(self) -> float:
        """Difference / margin: from -1 to 1 within the margin; NaN for a margin of 0."""
        return self.difference / self.tolerance if self.tolerance else math.nan

    @property
    def observation(self) -> str:
        """The difference and the margin, as text."""
        if math.isnan(self.difference):
            return "not defined in both runs"
        if self.difference == 0:
            return "no difference"
        if self.tolerance == self.margin.relative * abs(self.real):
            return f"off by {100 * self.relative_error:+.1f} %, margin {100 * self.margin.relative:g} %"
        unit = f" {self.metric.unit}" if self.metric.unit else ""
        d = self.difference
        off = f"{d:+,.0f}" if abs(d) >= 1000 else f"{d:+.3g}"
        return f"off by {off}{unit}, margin {self.margin.absolute:g}{unit}"

    @property
    def sentence(self) -> str:
        """The metric in one line: `makespan (s): real 300, predicted 270; off by -10.0 %, margin 3 % [gate]`."""
        values = f"real {cell(self.real)}, predicted {cell(self.predicted)}"
        return f"{self.metric.title}: {values}; {self.observation} [{self.part}]"

    @property
    def part(self) -> str:
        """Role of the metric in the verdict: `gate`, `advisory`, or `advisory, run times imposed`."""
        if not self.evidence:
            return "advisory, run times imposed"
        return "gate" if self.margin.gate else "advisory"

    def to_json(self) -> dict[str, Any]:
        """Return the comparison of the metric as JSON values."""
        return {
            "name": self.name,
            "label": self.metric.label,
            "unit": self.metric.unit,
            "gate": self.margin.gate,
            "evidence": self.evidence,
            "real": self.real,
            "predicted": self.predicted,
            "difference": self.difference,
            "relative_error": self.relative_error,
            "delta": self.margin.relative,
            "delta_abs": self.margin.absolute,
            "margin": self.tolerance,
            "z": self.z,
            "within_run_stability": [self.stability.low, self.stability.high] if self.stability else None,
            "verdict": self.verdict.value,
            "reasons": [reason.value for reason in self.reasons],
            "observation": self.observation,
        }
