"""Validation of a simulator over the cases of a suite: the results and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tracebed.errors import ExitCode
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import Margin, Metric
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.comparison import Comparison
from tracebed.validation.verdict.rule import Reason, Verdict
from tracebed.validation.verdict.tolerances import Tolerances

SCHEMA = "tracebed-verdict/1"


@dataclass(frozen=True)
class SimulatorFacts:
    """The simulator that made the predictions."""

    name: str
    version: str
    arguments_sha256: str
    """Hash of the parameters of all predictions: policies, run-time model, overheads, calibration, seeds."""
    runs: int
    """Number of predictions, over all cases."""


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
    """(predicted - real mean) / real mean."""
    margin: float
    """Margin in the unit of the metric."""
    z: float
    """(predicted - real mean) / margin."""
    low: float
    """Lower end of the confidence interval of z."""
    high: float
    noise_cv: float
    """Coefficient of variation of the real runs: real_sd / real_mean."""


@dataclass(frozen=True)
class MetricVerdict:
    """One metric over all cases, and the verdict on it."""

    metric: Metric
    margin: Margin
    gate: bool
    """Whether the metric has a part in the overall verdict."""
    evidence: bool
    """False for a metric of run times where the real run times were imposed."""
    cases: tuple[CaseMetric, ...]
    z: float
    """Mean of z over the cases: the error in margins."""
    low: float
    """Lower end of the confidence interval of z."""
    high: float
    se: float
    """Standard error of z."""
    df: float
    """Degrees of freedom of `se` (Welch-Satterthwaite)."""
    delta_needed: float
    """Smallest relative margin with which the metric would be accurate."""
    repeats_needed: int | None
    """Repetitions of each case for a decision with 80 % power at this error and noise; None: unknown, or no number."""
    verdict: Verdict
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Repetition:
    """One repetition of a real run, and whether it has a part in the verdict."""

    run: Run
    name: str
    state: str
    """Health: `healthy`, `degraded`, `unhealthy` or `unknown`."""
    causes: tuple[dict[str, Any], ...]
    """Causes of the state, as in `RunInfo.health`."""
    excluded: str = ""
    """Why the repetition is excluded, as text that begins with H1, H2, H3, H6, H7 or `health`; empty: included."""
    flags: str = ""
    """Signals H4 and H5 of an unusual outcome, as text: a warning, never a reason to exclude."""


@dataclass(frozen=True)
class CaseResult:
    """One case: its repetitions, and the comparison of a typical pair of runs."""

    case: Case
    repetitions: tuple[Repetition, ...]
    pair: Comparison
    """The most central prediction against the most central of the included repetitions."""


@dataclass(frozen=True)
class Population:
    """Interval of the error over the population of workloads of which those of the suite are a sample."""

    workloads: int
    intervals: dict[str, tuple[float, float]]
    """Metric -> interval of z (Student's t over the workloads)."""


@dataclass(frozen=True, repr=False)
class Validation:
    """The result for one simulator: verdict, metrics and cases."""

    simulator: SimulatorFacts
    cases: tuple[CaseResult, ...]
    metrics: tuple[MetricVerdict, ...]
    """Gated metrics first, then advisory ones."""
    verdict: Verdict
    reasons: tuple[Reason, ...]
    headline: str
    warnings: list[str]
    tolerances: Tolerances
    tau: float
    """Threshold of the bounded slowdown, s."""
    sensitivity: dict[float, Verdict]
    """Factor on all margins (0.5, 2) -> verdict."""
    without_outliers: Verdict | None = None
    """Verdict without the repetitions flagged by H4 or H5; None if no repetition is flagged."""
    population: Population | None = None
    """None for fewer than eight workloads."""
    could_fail: list[str] = field(default_factory=list)
    """Parts of the prediction that the real runs could have shown to be wrong."""
    could_not_fail: list[str] = field(default_factory=list)
    """Parts that are imposed, or the same code on both sides."""
    same_scheduler: bool = False
    """Whether the same scheduler code decided on both sides."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the validation."""
        if self.verdict is Verdict.INCONCLUSIVE and Reason.UNHEALTHY in self.reasons:
            return ExitCode.UNHEALTHY
        return self.verdict.exit_code

    @property
    def pair(self) -> Comparison:
        """The pair of runs of the first case."""
        return self.cases[0].pair
