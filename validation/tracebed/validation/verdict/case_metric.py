"""The figures of one metric in one case of a validation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class CaseMetric:
    """One metric in one case. NaN: undefined or unknown."""

    case: str
    repeats: int
    """Number of real repetitions."""
    runs: int
    """Number of predictions."""
    real_mean: float
    """Mean over the repetitions, unit of the metric."""
    real_sd: float
    """Standard deviation over the repetitions, unit of the metric."""
    predicted: float
    """Mean over the predictions, unit of the metric."""
    relative_error: float
    """(predicted - real mean) / real mean; NaN for a real mean of 0."""
    margin: float
    """Margin in the unit of the metric."""
    z: float
    """(predicted - real mean) / margin."""
    low: float
    """Lower end of the confidence interval of z."""
    high: float
    noise_cv: float
    """Coefficient of variation of the real runs: real_sd / real_mean."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return asdict(self)
