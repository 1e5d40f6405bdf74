"""A prediction held against a real run, metric by metric, and what may be said of it.

One real run has no noise of its own to set an error against, so its verdict is `inconclusive`, whatever the
numbers (docs/verdict.md says why); the numbers, the margins and the reason stand beside it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tracebed.errors import ExitCode, InputError
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.validation.metrics import FIGURES, TAU, busy_cores, metrics, per_job, total_cores
from tracebed.validation.statistics import Differences, Interval, batch_means, differences

SCHEMA = "tracebed-comparison/1"
REPEATS_NEEDED = 5
"""Healthy real repetitions without which a comparison of fewer than three workloads decides nothing."""
UNMATCHED_ALLOWED = 0.01
"""Share of the jobs that may have no counterpart."""
TIME_BINS = 100
"""Bins of the window whose utilisations stand in for observations of a batch-means interval."""


class Verdict(enum.StrEnum):
    """What may be said of a prediction."""

    ACCURATE = "accurate"
    INACCURATE = "inaccurate"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> ExitCode:
        """The exit status that tells the shell."""
        return {
            Verdict.ACCURATE: ExitCode.OK,
            Verdict.INACCURATE: ExitCode.INACCURATE,
            Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
        }[self]


class Reason(enum.StrEnum):
    """Why a verdict is inconclusive."""

    UNHEALTHY = "unhealthy"
    NOT_DEFINED = "not_defined"
    UNMATCHED_JOBS = "unmatched_jobs"
    TOO_FEW_REPEATS = "too_few_repeats"


REASONS = {
    Reason.UNHEALTHY: "the real run's clocks contradict each other",
    Reason.NOT_DEFINED: "one of the runs has no such figure",
    Reason.UNMATCHED_JOBS: f"more than {100 * UNMATCHED_ALLOWED:g} % of the jobs ended in one run only",
    Reason.TOO_FEW_REPEATS: "one real run: no accuracy claim",
}


@dataclass(frozen=True)
class Margin:
    """How far a prediction may be off: the larger of a share of the real figure and an absolute amount.

    Absolute amounts in seconds are of trace time (at a speed of 60, 10 s are 0.17 s of the wall clock) as the
    log had it; `compare` scales them with the run times of a compressed workload.
    """

    relative: float
    absolute: float = 0.0
    gate: bool = False
    """Whether the metric enters the overall verdict."""

    def at(self, real: float) -> float:
        """Return the margin in the unit of the figure."""
        return max(self.relative * abs(real), self.absolute)


MARGINS: dict[str, Margin] = {
    "makespan_s": Margin(0.03, gate=True),
    "utilization": Margin(0.03, 0.01, gate=True),
    "mean_response_s": Margin(0.05, 10.0, gate=True),
    "mean_wait_s": Margin(0.10, 10.0, gate=True),
    "mean_bounded_slowdown": Margin(0.10, 0.1, gate=True),
    "throughput": Margin(0.03),
    "p95_wait_s": Margin(0.15, 30.0),
    "median_run_s": Margin(0.02),
    "median_reconfiguration_s": Margin(0.20, 0.5),
    "expand_operations_per_job": Margin(0.10, 0.1),
    "shrink_operations_per_job": Margin(0.10, 0.1),
}
"""Default margins, set before any comparison was seen, from repeats of real runs (docs/verdict.md)."""


@dataclass(frozen=True)
class Judged:
    """One metric of the two runs, held against its margin."""

    name: str
    real: float
    predicted: float
    margin: Margin
    stability: Interval | None
    """Batch-means interval of predicted - real within this pair of runs; no interval of accuracy."""
    verdict: Verdict
    reasons: tuple[Reason, ...]

    @property
    def difference(self) -> float:
        """Predicted - real."""
        return self.predicted - self.real

    @property
    def relative_error(self) -> float:
        """Difference over the real figure; NaN where that is 0."""
        return self.difference / self.real if self.real else math.nan

    @property
    def tolerance(self) -> float:
        """The margin in the unit of the metric."""
        return self.margin.at(self.real)

    @property
    def z(self) -> float:
        """Difference in margins: within -1 and 1 the point lies inside; NaN where there is no margin."""
        return self.difference / self.tolerance if self.tolerance else math.nan

    @property
    def observation(self) -> str:
        """What was seen, which is no claim: how far off, and the margin."""
        if math.isnan(self.difference):
            return "not defined in both runs"
        if self.difference == 0:
            return "no difference"
        if self.tolerance == self.margin.relative * abs(self.real):
            return f"off by {100 * self.relative_error:+.1f} %, margin {100 * self.margin.relative:g} %"
        unit = FIGURES[self.name].unit
        unit = f" {unit}" if unit else ""
        d = self.difference
        off = f"{d:+,.0f}" if abs(d) >= 1000 else f"{d:+.3g}"
        return f"off by {off}{unit}, margin {self.margin.absolute:g}{unit}"

    def to_json(self) -> dict[str, Any]:
        """Everything of the metric, as plain values."""
        shown = FIGURES[self.name]
        return {
            "name": self.name,
            "label": shown.label,
            "unit": shown.unit,
            "gate": self.margin.gate,
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


@dataclass(frozen=True)
class Matching:
    """How the jobs of the two runs found each other."""

    matched: int
    """Ended in both runs."""
    ended_in_neither: int
    """Rejected or cancelled alike in both."""
    only_real: int
    """Ended in the real run only."""
    only_predicted: int
    """Ended in the prediction only."""
    unlike: int
    """Ended in neither, and not alike."""
    states_differ: int
    """Of the matched: in another state."""

    @property
    def unmatched(self) -> int:
        """Jobs without a counterpart."""
        return self.only_real + self.only_predicted + self.unlike

    @property
    def unmatched_share(self) -> float:
        """Share of all jobs of either run that have no counterpart."""
        return self.unmatched / max(self.matched + self.ended_in_neither + self.unmatched, 1)


@dataclass(frozen=True)
class Comparison:
    """A real run, a prediction, and what their comparison showed."""

    real: Run
    predicted: Run
    real_metrics: dict[str, Any]
    predicted_metrics: dict[str, Any]
    judged: list[Judged]
    jobs: pd.DataFrame
    """A row a matched job in submit order: job_id, kind, nodes, and submit, wait, run, response and
    bounded_slowdown with the suffixes _real and _predicted."""
    differences: dict[str, Differences | None]
    """Of wait, run and response."""
    matching: Matching
    warnings: list[str]
    verdict: Verdict
    reasons: tuple[Reason, ...]
    tau: float
    compression: float
    """Factor on the absolute margins in seconds: that of the workload's run times."""

    @property
    def exit_code(self) -> ExitCode:
        """The exit status of the comparison."""
        return ExitCode.UNHEALTHY if Reason.UNHEALTHY in self.reasons else self.verdict.exit_code

    @property
    def headline(self) -> str:
        """The verdict's reasons and the observation in a sentence or two."""
        gated = [item for item in self.judged if item.margin.gate and not math.isnan(item.z)]
        why = "; ".join(REASONS[reason] for reason in self.reasons)
        inside = sum(abs(item.z) <= 1 for item in gated)
        seen = f"{inside} of {len(gated)} gated metrics lie within their margins in this pair of runs"
        worst = max(gated, key=lambda item: abs(item.z), default=None)
        far = f"; farthest: {FIGURES[worst.name].label}, {worst.observation}" if worst and worst.difference else ""
        return f"{why}. Observed, not claimed: {seen}{far}."

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain values, without the tables of the runs."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "reasons": [reason.value for reason in self.reasons],
            "headline": self.headline,
            "repeats": 1,
            "repeats_needed": REPEATS_NEEDED,
            "tau": self.tau,
            "time_compression": self.compression,
            "metrics": [item.to_json() for item in self.judged],
            "matching": asdict(self.matching) | {"unmatched_share": self.matching.unmatched_share},
            "per_job": {name: asdict(d) if d else None for name, d in self.differences.items()},
            "warnings": self.warnings,
            "real": side(self.real.info) | {"metrics": self.real_metrics},
            "predicted": side(self.predicted.info) | {"metrics": self.predicted_metrics},
        }


def compare(real: Run, predicted: Run, tau: float = TAU, *, allow_different_workloads: bool = False) -> Comparison:
    """Hold `predicted` against `real`.

    Args:
        real: what happened: a replay, or a log read as a run.
        predicted: what a simulator said.
        tau: threshold of the bounded slowdown, s, on both sides.
        allow_different_workloads: match jobs by id although the workloads are not the same.

    Raises:
        InputError: the sides are swapped, the workloads differ, or no job is in both runs.
    """
    if not real.info.is_real:
        raise InputError(
            f"the run given as real is a prediction ({real.info.source})", hint="swap --real and --predicted"
        )
    if predicted.info.is_real:
        raise InputError(
            f"the run given as predicted is a real one ({predicted.info.source})",
            hint="give the simulator's run as --predicted; `tracebed metrics` sets runs side by side",
        )
    same = real.info.workload.get("sha256") == predicted.info.workload.get("sha256")
    if not same and not allow_different_workloads:
        raise InputError(
            "the two runs are not of the same workload (their hashes differ)",
            hint="predict the workload that was replayed, or match job ids with --allow-different-workloads",
        )
    jobs, matching = _match(per_job(real, tau), per_job(predicted, tau))
    ours, theirs = metrics(real, tau), metrics(predicted, tau)
    common = _reasons(ours, matching)
    compression = time_compression(real.info)
    margins = {
        name: replace(margin, absolute=margin.absolute * compression) if FIGURES[name].unit == "s" else margin
        for name, margin in MARGINS.items()
    }
    judged = [
        _judge(name, margin, ours[name], theirs[name], _stability(name, jobs, real, predicted, ours), common)
        for name, margin in margins.items()
        if margin.gate or _concerns(name, ours, theirs)
    ]
    gated = [item for item in judged if item.margin.gate]
    found = {reason for item in gated for reason in item.reasons}
    return Comparison(
        real=real,
        predicted=predicted,
        real_metrics=ours,
        predicted_metrics=theirs,
        judged=judged,
        jobs=jobs,
        differences={
            name: differences(jobs[f"{name}_predicted"].to_numpy(), jobs[f"{name}_real"].to_numpy())
            for name in ("wait", "run", "response")
        },
        matching=matching,
        warnings=_warnings(real, predicted, ours, theirs, matching, same),
        verdict=combine(item.verdict for item in gated),
        reasons=tuple(reason for reason in Reason if reason in found),
        tau=tau,
        compression=compression,
    )


def time_compression(info: RunInfo) -> float:
    """Return the factor, at most 1, by which the steps of a workload compressed its run times."""
    steps = (info.workload.get("provenance") or {}).get("steps", [])
    factors = [step["parameters"].get("run_time") or 1.0 for step in steps if step["name"] == "scale"]
    return min(math.prod(factors), 1.0)


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of several gated metrics: inaccurate if one is; accurate only if all are."""
    found = set(verdicts)
    for verdict in (Verdict.INACCURATE, Verdict.INCONCLUSIVE):
        if verdict in found:
            return verdict
    return Verdict.ACCURATE if found else Verdict.INCONCLUSIVE


def side(info: RunInfo) -> dict[str, Any]:
    """Return the facts of one side that a reader of a comparison needs beside it, as plain values."""
    return {
        "source": info.source,
        "execution": info.execution,
        "policy": info.policy,
        "policy_parameters": info.policy_parameters,
        "parameters": info.parameters,
        "seed": info.seed,
        "nodes": len(info.nodes),
        "cores": sum(node.cores for node in info.nodes),
        "speed": info.speed,
        "resolution_s": info.resolution_s,
        "state": info.state,
        "lateness_ms": info.lateness_ms,
        "workload": {key: info.workload.get(key) for key in ("name", "sha256", "jobs")},
        "created": info.created,
        "hosts": info.hosts,
        "versions": info.versions,
        "warnings": info.warnings,
    }


def _concerns(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Tell whether an advisory metric says anything of these runs; operations do of malleable jobs only."""
    if name.endswith("operations_per_job") and not (ours["jobs_malleable"] or theirs["jobs_malleable"]):
        return False
    return not (math.isnan(ours[name]) and math.isnan(theirs[name]))


def _judge(
    name: str,
    margin: Margin,
    real: float,
    predicted: float,
    stability: Interval | None,
    common: tuple[Reason, ...],
) -> Judged:
    undefined = (Reason.NOT_DEFINED,) if math.isnan(real) or math.isnan(predicted) else ()
    # With one real run `common` always holds a reason against deciding.
    return Judged(name, real, predicted, margin, stability, Verdict.INCONCLUSIVE, (*undefined, *common))


def _reasons(real: dict[str, Any], matching: Matching) -> tuple[Reason, ...]:
    found = [Reason.TOO_FEW_REPEATS]
    if matching.unmatched_share > UNMATCHED_ALLOWED:
        found.insert(0, Reason.UNMATCHED_JOBS)
    if real["clock_skew_jobs"]:
        found.insert(0, Reason.UNHEALTHY)
    return tuple(found)


def _match(real: pd.DataFrame, predicted: pd.DataFrame) -> tuple[pd.DataFrame, Matching]:
    """Pair the jobs by id; the pairs are in the real run's submit order."""
    both = real.merge(predicted, on="job_id", how="outer", suffixes=("_real", "_predicted"), indicator=True)
    if not (both["_merge"] == "both").any():
        raise InputError("the two runs have no job in common", hint="predict the workload that was replayed")
    ended_real = both["finished_real"].eq(True).to_numpy()
    ended_predicted = both["finished_predicted"].eq(True).to_numpy()
    alike = (both["state_real"] == both["state_predicted"]).to_numpy(dtype=bool, na_value=False)
    neither = ~ended_real & ~ended_predicted
    paired = both[ended_real & ended_predicted]
    same_end = neither & alike & (both["state_real"] != "interrupted").to_numpy(dtype=bool, na_value=False)
    matching = Matching(
        matched=len(paired),
        ended_in_neither=int(same_end.sum()),
        only_real=int((ended_real & ~ended_predicted).sum()),
        only_predicted=int((ended_predicted & ~ended_real).sum()),
        unlike=int((neither & ~same_end).sum()),
        states_differ=int((paired["state_real"] != paired["state_predicted"]).sum()),
    )
    columns = ("submit", "wait", "run", "response", "bounded_slowdown")
    jobs = paired[[f"{name}_{of}" for name in columns for of in ("real", "predicted")]].assign(
        job_id=paired["job_id"], kind=paired["kind_real"], nodes=paired["nodes_real"].astype("int64")
    )
    return jobs.sort_values("submit_real", kind="stable").reset_index(drop=True), matching


def _stability(name: str, jobs: pd.DataFrame, real: Run, predicted: Run, ours: dict[str, Any]) -> Interval | None:
    """Return how stable the difference of a mean is within this pair of runs; None where not defined."""
    column = {
        "mean_wait_s": "wait",
        "mean_response_s": "response",
        "mean_bounded_slowdown": "bounded_slowdown",
    }.get(name)
    if column:
        return batch_means((jobs[f"{column}_predicted"] - jobs[f"{column}_real"]).to_numpy(dtype=np.float64))
    end = ours["utilization_window"]["end_s"]
    if name != "utilization" or not end > 0 or math.isnan(ours["utilization"]):
        return None
    edges = np.linspace(0.0, end, TIME_BINS + 1)
    use = [busy_cores(run).means(edges) / total_cores(run) for run in (predicted, real)]
    return batch_means(use[0] - use[1])


def _warnings(
    real: Run,
    predicted: Run,
    ours: dict[str, Any],
    theirs: dict[str, Any],
    matching: Matching,
    same_workload: bool,
) -> list[str]:
    """Say what makes the two runs less comparable than they look."""
    a, b = real.info, predicted.info
    found = []
    if not same_workload:
        found.append("the runs are of different workloads; jobs were matched by their ids")
    if matching.unmatched:
        share = 100 * matching.unmatched_share
        found.append(
            f"{matching.unmatched:,} jobs ({share:.1f} % of all) have no counterpart: "
            f"{matching.only_real:,} ended only in the real run, {matching.only_predicted:,} only in the "
            f"prediction, {matching.unlike:,} in neither and not alike"
        )
    if matching.states_differ:
        found.append(f"{matching.states_differ:,} jobs ended in another state than predicted")
    facts: list[tuple[str, Any, Any]] = [
        ("policy", a.policy, b.policy),
        ("policy parameters", a.policy_parameters, b.policy_parameters),
        ("number of nodes", len(a.nodes), len(b.nodes)),
        ("number of cores", total_cores(real), total_cores(predicted)),
    ]
    if any(value for key, value in b.parameters.items() if key.startswith("overhead_")):
        facts.append(("speed", a.speed, b.speed))  # without overheads, a prediction is the same at any speed
    facts += [(key, a.parameters[key], b.parameters[key]) for key in sorted(a.parameters.keys() & b.parameters)]
    found += [f"{what} differs: real {x}, predicted {y}" for what, x, y in facts if x != y]
    if a.state != "completed":
        found.append(f"the real run is {a.state}: {'; '.join(a.interruptions) or 'no cause recorded'}")
    if b.state != "completed":
        found.append(f"the prediction is {b.state}")
    found += _late(real, ours)
    for name, figures in (("real run", ours), ("prediction", theirs)):
        if figures["clock_skew_jobs"]:
            found.append(
                f"{figures['clock_skew_jobs']:,} jobs of the {name} begin before they were submitted, "
                "or end before they began"
            )
    return found


def _late(real: Run, figures: dict[str, Any]) -> list[str]:
    """Say when submissions came so late that the replay is not of the schedule that was planned."""
    jobs = real.jobs
    off = (jobs["submit"] - jobs["submit_planned"]).abs().max()
    between = figures["utilization_window"]["end_s"] / max(len(jobs) - 1, 1)
    if not off > max(5.0, 0.01 * between):
        return []
    return [f"submissions lie up to {off:,.1f} trace seconds off their plan; a slower --speed brings them nearer"]
