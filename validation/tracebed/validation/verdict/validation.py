"""Validation of a simulator over the cases of a suite: the results and the verdict."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Any

from tracebed.ground.display import counted, rows_html, signed
from tracebed.ground.errors import ExitCode
from tracebed.ground.sparks import interval_svg
from tracebed.ground.version import version
from tracebed.validation.metrics import Margin, Metric
from tracebed.validation.moving_average import MovingAverage, in_words
from tracebed.validation.significance import Difference
from tracebed.validation.verdict.cases import Case, Level, Membership
from tracebed.validation.verdict.comparison import Comparison
from tracebed.validation.verdict.courses import Course, sentence
from tracebed.validation.verdict.decision import Needed, margin_text
from tracebed.validation.verdict.per_job import PerJob
from tracebed.validation.verdict.ranking import Ranking
from tracebed.validation.verdict.rates import PairedRate
from tracebed.validation.verdict.rejudging import NO_JOURNAL
from tracebed.validation.verdict.resizing import Resizing
from tracebed.validation.verdict.rule import Reason, Verdict
from tracebed.validation.verdict.screening import Repetition, identity
from tracebed.validation.verdict.tolerances import Tolerances

SCHEMA = "tracebed-verdict/2"
SUITE_SCHEMA = "tracebed-verdicts/2"  # schema of the verdicts of a suite, one per simulator
POPULATION = 8  # smallest number of workloads for a claim about the population of workloads


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
class MetricVerdict:
    """One metric over all cases, and the verdict on it."""

    metric: Metric
    margin: Margin
    gate: bool
    """Whether the metric affects the overall verdict."""
    evidence: bool
    """False for a metric of run times where the real run times were imposed."""
    cases: tuple[CaseMetric, ...]
    z: float
    """Mean of z over the cases: the error in margins."""
    low: float
    """Lower end of the confidence interval of z."""
    high: float
    reserve: float
    """Width on each side of the interval that an accurate prediction needs, in margins: for skewed noise."""
    se: float
    """Standard error of z."""
    df: float
    """Degrees of freedom of `se` (Welch-Satterthwaite)."""
    relative_error: float
    """Mean over the cases of (predicted - real mean) / real mean; NaN if a real mean is 0."""
    relative_low: float
    """Lower end of the confidence interval of `relative_error`."""
    relative_high: float
    needed: Needed
    """Smallest margins with which the metric would be accurate."""
    repeats_needed: int | None
    """Repetitions of each case for a decision with 80 % power at this error and noise; None: unknown, or no number."""
    profile_based: bool
    """Whether the noise of a case comes from a noise profile, not from its repetitions."""
    verdict: Verdict
    reasons: tuple[Reason, ...]
    calibration: int = 0
    """Number of cases of calibration workloads, the last ones of `cases`: they have no part in the verdict."""

    @property
    def name(self) -> str:
        """Name of the metric."""
        return self.metric.name

    @property
    def deciding(self) -> tuple[CaseMetric, ...]:
        """The cases on which the verdict depends."""
        return self.cases[: len(self.cases) - self.calibration]

    @property
    def noise(self) -> tuple[float, float]:
        """CV of the real repetitions: the root mean square over the cases, and the largest; NaN if unknown."""
        known = [case.noise_cv for case in self.cases if not math.isnan(case.noise_cv)]
        return (math.sqrt(fmean(cv**2 for cv in known)), max(known)) if known else (math.nan, math.nan)

    @property
    def worst(self) -> CaseMetric | None:
        """The case with the largest error of those on which the verdict depends; None if all errors are undefined."""
        return max(self._known, key=lambda case: abs(case.z), default=None)

    @property
    def mean_absolute(self) -> float:
        """Mean absolute z over the cases on which the verdict depends: the error in margins; NaN if unknown."""
        return fmean(abs(case.z) for case in self._known) if self._known else math.nan

    @property
    def _known(self) -> list[CaseMetric]:
        """The deciding cases whose error is defined."""
        return [case for case in self.deciding if not math.isnan(case.z)]

    def beyond(self, margins: float) -> int:
        """Return the number of deciding cases whose error exceeds this number of margins."""
        return sum(abs(case.z) > margins for case in self.deciding)

    @property
    def margin_needed(self) -> str:
        """`needed` as text, rounded up: `22.7 %`, `11 s`, `12.4 % with 10 s, 22.7 % without`, or a dash if unknown."""
        unit = f" {self.metric.unit}".rstrip()
        if not self.margin.relative:
            return margin_text(self.needed.absolute, unit)
        alone = margin_text(100 * self.needed.alone, " %")
        if not self.margin.absolute or alone == "-":
            return alone
        relative = margin_text(100 * self.needed.relative, " %")
        return alone if relative == alone else f"{relative} with {self.margin.absolute:g}{unit}, {alone} without"

    @property
    def part(self) -> str:
        """Role of the metric in the verdict: `gate`, `advisory`, or `advisory, run times not tested`."""
        if not self.evidence:
            return "advisory, run times not tested"
        return "gate" if self.gate else "advisory"

    @property
    def error(self) -> str:
        """The error and its interval as text: `+2.1 % [+1.8, +2.4]`.

        The unit is margins if there are several cases, because their margins differ, and if a real mean is 0.
        """
        shares = (self.relative_error, self.relative_low, self.relative_high)
        percent = len(self.deciding) == 1 and not math.isnan(self.relative_error)
        mean, low, high = (100 * each for each in shares) if percent else (self.z, self.low, self.high)
        text = f"{signed(mean)} {'%' if percent else 'margins'}"
        return text if math.isnan(low) else f"{text} [{signed(low)}, {signed(high)}]"

    @property
    def spread(self) -> str:
        """The size of the error as text; of several cases the mean absolute z, the worst, and cases beyond margins."""
        if len(self.deciding) == 1:
            unit = f", {signed(self.z, 2)} margins" if "margins" not in self.error else ""
            return self.error + unit
        if self.worst is None:
            return "undefined"
        worst = f"worst case {self.worst.z:+.2g} ({self.worst.case})"
        return (
            f"mean absolute error {self.mean_absolute:.2g} margins, {worst}, "
            f"{self.beyond(1)} of {len(self._known)} cases beyond one margin, {self.beyond(2)} beyond two"
        )

    @property
    def sentence(self) -> str:
        """The metric in one line: `wait, mean (s): +2.1 % [+1.8, +2.4], margin 10 %, at least 10 s, gate: accurate`."""
        why = f" ({', '.join(reason.value for reason in self.reasons)})" if self.reasons else ""
        imposed = "" if self.evidence else ", run times not tested"
        allowed = self.margin.words(self.metric.unit)
        error = self.error if len(self.deciding) == 1 else f"{self.spread}, mean {self.error}"
        return f"{self.metric.title}: {error}, margin {allowed}{imposed}: {self.verdict}{why}"

    def to_json(self) -> dict[str, Any]:
        """Return the verdict on the metric as JSON values."""
        names = ["gate", "evidence", "profile_based", "z", "low", "high", "reserve", "se", "df"]
        names += ["relative_error", "relative_low", "relative_high", "repeats_needed"]
        return {
            "name": self.name,
            "label": self.metric.label,
            "unit": self.metric.unit,
            "definition": self.metric.docs,
            "delta": self.margin.relative,
            "delta_abs": self.margin.absolute,
            "verdict": self.verdict.value,
            "reasons": [reason.value for reason in self.reasons],
            "cases": [case.to_json() for case in self.cases],
            "mean_absolute_z": self.mean_absolute,
            "worst_case": self.worst.case if self.worst else None,
            "worst_z": self.worst.z if self.worst else None,
            "beyond_one_margin": self.beyond(1),
            "beyond_two_margins": self.beyond(2),
            "delta_needed": self.needed.relative,
            "delta_alone_needed": self.needed.alone,
            "delta_abs_needed": self.needed.absolute,
        } | {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class CaseResult:
    """One case: its repetitions, and the comparison of a typical pair of runs."""

    case: Case
    member: Membership
    """The real run and the workload of the case, which other cases may share."""
    repetitions: tuple[Repetition, ...]
    pair: Comparison
    """The most central prediction against the most central of the included repetitions."""
    calibration: bool
    """Whether the case is not part of the verdict, since the predictions use a calibration made from its workload."""
    copied: bool
    """Whether the predicted run times are copies of the observed ones, so that they could not have failed."""
    unmatched: float
    """Largest share of the jobs of a pair of runs without a counterpart."""
    per_job: PerJob | None
    """Differences of the waits job by job; None if fewer than two jobs ended in all runs."""
    resizing: Resizing | None
    """Resizes and staircases of the malleable jobs; None if no job is resized, or allocations are unknown."""
    rates: tuple[PairedRate, ...]
    """Rates of the jobs with deadlines in the pair of runs; empty without deadlines."""
    unmatched_limit: float
    """Largest accepted share of unmatched jobs."""
    moving_average: MovingAverage | None = None
    """Error of the moving average of the wait, if there is one real run of enough jobs; advisory."""
    courses: tuple[Course, ...] = ()
    """The courses of an ensemble; empty for a single prediction."""

    def to_json(self) -> dict[str, Any]:
        """Return the case as JSON values, without the tables of the runs."""
        matching, info = self.pair.matching, self.case.real[0].info
        shares = {"unmatched_share": self.unmatched, "unmatched_limit": self.unmatched_limit}
        return {
            "name": self.case.name,
            "workload": self.case.workload,
            "real_run": self.member.real_run,
            "cluster": self.member.workload,
            "workload_sha256": info.workload.get("sha256"),
            "policy": self.case.policy,
            "policy_parameters": info.policy_parameters,
            "calibration": self.calibration,
            "run_times_copied": self.copied,
            "time_compression": self.pair.compression,
            "window": self.pair.real_metrics["utilization_window"],
            "repetitions": [each.to_json() for each in self.repetitions],
            "predictions": [identity(run) for run in self.case.predicted],
            "matching": asdict(matching) | shares,
            "courses": [course.to_json() for course in self.courses],
            "per_job": self.per_job.to_json() if self.per_job else None,
            "resizing": self.resizing.to_json() if self.resizing else None,
            "rates": [asdict(rate) for rate in self.rates],
            "moving_average": asdict(self.moving_average) if self.moving_average else None,
        }


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
    without_outliers: Verdict | None
    """Verdict without the repetitions flagged by H4 or H5; None if no repetition is flagged."""
    by_own_limits: Verdict | None
    """Verdict by the limits of health of the real runs, where these are wider than the defaults and change which runs
    count; None elsewhere."""
    levels: tuple[Level, ...]
    """Intervals of the gated metrics over the cases, the real runs and the workloads, as far as there are two."""
    ranking: Ranking | None
    """Order of the policies on each workload; None if no workload has several policies."""
    could_fail: list[str]
    """Parts of the prediction in which the real runs could have revealed errors."""
    could_not_fail: list[str]
    """Parts that are imposed, or the same code on both sides."""
    same_scheduler: bool
    """Whether the same scheduler code decided on both sides."""
    perturbed_differences: Mapping[str, Difference] | None = None
    """Metric -> difference between the real runs and the predictions with perturbed input; None: not simulated."""
    perturbed_intervals: Mapping[str, Mapping[str, float]] | None = None
    """Metric -> `median`, `low` and `high` over the predictions with perturbed input; None: not simulated."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the validation."""
        if self.verdict is Verdict.INCONCLUSIVE and Reason.UNHEALTHY in self.reasons:
            return ExitCode.UNHEALTHY
        return self.verdict.exit_code

    @property
    def real_runs(self) -> int:
        """Number of different real runs: a run in several cases, or twice in one case, counts once."""
        return len({repetition.sha256 for each in self.cases for repetition in each.repetitions})

    @property
    def workloads(self) -> int:
        """Number of independent workloads."""
        return len({each.member.workload for each in self.cases})

    @property
    def population(self) -> dict[str, tuple[float, float]]:
        """Metric -> interval of the error over the population of workloads, of which those of the suite are a sample.

        Only metrics that are defined for at least `POPULATION` workloads.
        """
        return {
            name: interval
            for level in self.levels
            for name, interval in level.intervals.items()
            if level.unit == "workloads" and level.numbers[name] >= POPULATION
        }

    @property
    def dependence(self) -> list[str]:
        """A sentence per gated metric with its intervals over cases, real runs and workloads, where these differ."""
        if len({level.number for level in self.levels}) < 2:
            return []
        return [
            f"{item.metric.label}: mean error in margins "
            + ", ".join(
                f"over {level.numbers[item.name]} {level.unit} {low:+.2f} to {high:+.2f}"
                for level in self.levels
                if item.name in level.intervals
                for low, high in [level.intervals[item.name]]
            )
            for item in self.gated
        ]

    @property
    def remarks(self) -> list[str]:
        """How margins and health were found, where this is not the usual way, a sentence each."""
        notes = [each.notes for case in self.cases for each in case.repetitions]
        return remarks(notes, [case.pair.compression for case in self.cases])

    @property
    def moving_averages(self) -> list[str]:
        """The errors of the moving average of the wait in cases with one real run, in words; advisory."""
        return in_words({each.case.name: each.moving_average for each in self.cases if each.moving_average})

    @property
    def courses(self) -> list[str]:
        """A sentence for each case whose ensemble has several courses: their frequencies, and the real runs of each."""
        counts = [(each, sum(not one.excluded for one in each.repetitions)) for each in self.cases]
        return [sentence(each.case.name, each.courses, count) for each, count in counts if len(each.courses) > 1]

    @property
    def noise(self) -> str:
        """How far the predicted waits are from the real ones, beside the noise of the real runs; empty if unknown."""
        ratios = {each.case.name: each.per_job.noise_ratio for each in self.cases if each.per_job}
        ratios = {name: ratio for name, ratio in ratios.items() if not math.isnan(ratio)}
        if not ratios:
            return ""
        worst = max(ratios, key=lambda name: ratios[name])
        of = f"{ratios[worst]:.3g}"
        if len(ratios) > 1:
            of = f"median {median(ratios.values()):.3g}, largest {of} ({worst})"
        return f"noise ratio of the waits, job by job: {of}; 1 is as close to a real run as another real run"

    @property
    def resizes(self) -> str:
        """The resizes and staircases of the case with the largest area between them; empty without resizes."""
        found = {each.case.name: each.resizing for each in self.cases if each.resizing}
        if not found:
            return ""
        worst = max(found, key=lambda name: found[name].predicted.area)
        place = f", case with the largest area ({worst})" if len(found) > 1 else ""
        return f"malleable jobs{place}: {found[worst].sentence}"

    @property
    def pair(self) -> Comparison:
        """The pair of runs of the first case."""
        return self.cases[0].pair

    @property
    def gated(self) -> tuple[MetricVerdict, ...]:
        """The metrics on which the verdict depends."""
        return tuple(item for item in self.metrics if item.gate)

    @property
    def title(self) -> str:
        """The simulator and the cases: `tracebed 1.0: 10 cases, 50 real runs`."""
        name = " ".join(filter(None, (self.simulator.name, self.simulator.version)))
        runs = self.real_runs
        about = self.cases[0].case.name if len(self.cases) == 1 else f"{len(self.cases)} cases"
        return f"{name}: {about}, {runs:,} real {'run' if runs == 1 else 'runs'}"

    def explain(self) -> str:
        """Return the validation as text: verdict and headline, a line per metric, warnings."""
        lines = [f"{self.title}: {self.verdict}", self.headline, "", *(item.sentence for item in self.metrics)]
        lines += [*filter(None, [self.noise, self.resizes]), *self.courses, *self.moving_averages, *self.remarks]
        if self.warnings:
            lines += ["", "Warnings:", *(f"- {warning}" for warning in self.warnings)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Validation of {self.title}: {self.verdict}, warnings: {len(self.warnings)}>"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks."""
        rows = [
            (item.metric.title, item.error, item.margin.words(item.metric.unit), item.verdict, ", ".join(item.reasons))
            for item in self.metrics
        ]
        bars = [interval_svg(item.low, item.z, item.high, 3.2, marks=(-1.0, 1.0)) for item in self.metrics]
        names = ("metric", "error", "margin", "verdict", "reasons", "error in margins: -1 to 1 is accurate")
        notes = "".join(f"<li>{html.escape(warning)}</li>" for warning in self.warnings)
        return (
            f"<p><strong>{html.escape(f'{self.title}: {self.verdict}')}</strong><br>{html.escape(self.headline)}</p>\n"
            f"{rows_html(names, rows, bars)}\n<ul>{notes}</ul>"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the validation as JSON values (schema `tracebed-verdict/2`), without the tables of the runs."""
        without = self.without_outliers
        differences = {name: each.to_json() for name, each in (self.perturbed_differences or {}).items()}
        return {
            "schema": SCHEMA,
            "tracebed": version(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "verdict": self.verdict.value,
            "reasons": [reason.value for reason in self.reasons],
            "exit_code": int(self.exit_code),
            "headline": self.headline,
            "simulator": asdict(self.simulator),
            "tolerances": self.tolerances.to_json() | {"sha256": self.tolerances.sha256},
            "tau": self.tau,
            "metrics": [item.to_json() for item in self.metrics],
            "cases": [each.to_json() for each in self.cases],
            "sensitivity": {f"{factor:g}": verdict.value for factor, verdict in self.sensitivity.items()},
            "without_outliers": without.value if without else None,
            "by_own_limits": self.by_own_limits.value if self.by_own_limits else None,
            "real_runs": self.real_runs,
            "workloads": self.workloads,
            "levels": [asdict(level) | {"number": level.number} for level in self.levels],
            "population": {"workloads": self.workloads, "intervals": self.population} if self.population else None,
            "ranking": self.ranking.to_json() if self.ranking else None,
            "could_fail": self.could_fail,
            "could_not_fail": self.could_not_fail,
            "same_scheduler": self.same_scheduler,
            "perturbed_differences": differences or None,
            "warnings": self.warnings,
        }


def remarks(notes: Sequence[Iterable[str]], factors: Sequence[float]) -> list[str]:
    """Return the remarks about the real runs of a verdict: notes on their health, and factors on margins in seconds."""
    return [*_journals(notes), *_amounts(factors)]


def _journals(notes: Sequence[Iterable[str]]) -> Iterable[str]:
    """Yield how many runs have no journal, by the notes of each run."""
    without = sum(NO_JOURNAL in each for each in notes)
    if without:
        runs = f"{without:,} of {counted(len(notes), 'real run')}"
        yield f"health without a journal ({runs}): judged by the figures in run.json and by the tables"


def _amounts(factors: Sequence[float]) -> Iterable[str]:
    """Yield the factors on margins in seconds, if the run times of a workload are compressed."""
    if min(factors) < 1:
        shown = " to ".join(f"{factor:.3g}" for factor in sorted({min(factors), max(factors)}))
        yield f"margins in seconds are multiplied by {shown}, the compression of the run times of the workload"
