"""Comparison of a prediction with one real run, job by job: the diagnosis of a verdict.

The jobs are matched by id. Differences that make two runs less comparable are warnings. The evidence of real runs is in
which parts of a prediction they could have revealed errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tracebed.ground.display import counted
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.ground.table import Table, ascending, rows_of, strings, take
from tracebed.orchestrator.run import VIRTUAL, Run, RunInfo
from tracebed.orchestrator.setup import UNKNOWN_POLICY
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.validation.metrics import TAU, MeasuredRun, summarize, total_cores
from tracebed.validation.statistics import Differences, differences
from tracebed.validation.verdict.breakdown import breakdown
from tracebed.validation.verdict.divergence import Divergences, divergences
from tracebed.validation.verdict.health import Health
from tracebed.validation.verdict.screening import lateness

Figures = dict[str, Any]  # the dictionary of `metrics`

SAME = 1e-6  # accepted difference of equal numbers, relative and absolute
MEASURES = ("submit", "wait", "run", "response", "bounded_slowdown")
"""Columns of `per_job` that the table of matched jobs has for each run."""

COPIES = 0.99  # smallest share of the jobs with the observed run time for which the predicted run times are copies
ROUNDING_S = 0.01  # difference of run times that is rounding, s: simulators print times with few digits


@dataclass(frozen=True, repr=False)
class Comparison:
    """A prediction and a real run: metrics of both, matched jobs and their differences. The verdict is `Validation`."""

    real: Run
    predicted: Run
    real_metrics: dict[str, Any]
    """The dictionary of `metrics` of the real run."""
    predicted_metrics: dict[str, Any]
    jobs: pd.DataFrame
    """A row per matched job in submit order: job_id, kind, nodes, and submit, wait, run, response (s) and
    bounded_slowdown with the suffixes _real and _predicted."""
    differences: dict[str, Differences | None]
    """Differences of wait, run and response."""
    matching: Matching
    health: Health
    """Health of the real run."""
    warnings: list[str]
    """Differences that make the two runs less comparable."""
    tau: float
    """Threshold of the bounded slowdown, s."""
    compression: float
    """Factor on absolute margins in seconds: the compression of the run times of the workload."""

    def __repr__(self) -> str:
        name = self.real.info.workload.get("name") or "a workload"
        sources = f"{self.real.info.source} and {self.predicted.info.source}"
        return f"<Comparison of {name}, {self.real.info.policy}: {sources}, {self.matching.matched:,} jobs matched>"

    def breakdown(self) -> pd.DataFrame:
        """Return the differences predicted - real by size, run time, user, partition, class of nodes, and others.

        Returns:
            A row per classification, class and quantity: columns `by`, `class`, `quantity` (wait, run, response,
            bounded_slowdown), `jobs`, `real`, `predicted`, `difference` (means over the class), `contribution` to the
            difference of the mean over all jobs, and `share` of it. Times are in s.
        """
        return breakdown(self.jobs, self.real)

    def divergences(self, count: int = 10, *, tolerance_s: float | None = None) -> pd.DataFrame:
        """Return the jobs at which the runs first part, and the decisions at which they do.

        Args:
            count: number of jobs.
            tolerance_s: differences of times up to this one are explained, s; by default the resolution of the runs,
                the lateness of submissions, and the scheduling interval.

        Returns:
            A row per job, by time: columns `job_id`, `parting` (missing, nodes, order or time), `time` (s after the
            first submission), `first` (the run that decided first), `real` and `predicted` (what each run decided),
            `delay` (s, predicted - real), `idle_...` nodes and `waiting_...` jobs of each run just before.
        """
        return self.divergence(count, tolerance_s=tolerance_s).table

    def divergence(self, count: int = 10, *, tolerance_s: float | None = None) -> Divergences:
        """Return the table of `divergences` with the numbers of all jobs and decisions, and the tolerance.

        Args:
            count: number of jobs in the table.
            tolerance_s: as for `divergences`.
        """
        return divergences(self.real, self.predicted, tolerance_s=tolerance_s, count=count)


def compare(real: Run, predicted: Run, tau: float = TAU, *, allow_different_workloads: bool = False) -> Comparison:
    """Compare a prediction with a real run of the same workload, or with `allow_different_workloads` of another one."""
    check_sides(real, predicted, allow_different_workloads)
    sides = MeasuredRun(real, tau), MeasuredRun(predicted, tau)
    return compare_measured(*sides, (summarize(sides[0]), summarize(sides[1])))


def compare_measured(
    real: MeasuredRun,
    predicted: MeasuredRun,
    figures: tuple[dict[str, Any], dict[str, Any]],
    health: Health | None = None,
) -> Comparison:
    """Compare two runs, measured with the same tau, with their metrics. Without `health`, it is computed."""
    jobs, matching = match(real.jobs, predicted.jobs)
    same_workload = real.run.info.workload.get("sha256") == predicted.run.info.workload.get("sha256")
    return Comparison(
        real=real.given,
        predicted=predicted.given,
        real_metrics=figures[0],
        predicted_metrics=figures[1],
        jobs=jobs,
        differences={
            name: differences(jobs[f"{name}_predicted"].to_numpy(), jobs[f"{name}_real"].to_numpy())
            for name in ("wait", "run", "response")
        },
        matching=matching,
        health=health or Health.of(real.run, figures[0]["clock_skew_jobs"]),
        warnings=comparability_warnings(real.run, predicted.run, figures, matching, same_workload),
        tau=real.tau,
        compression=time_compression(real.run.info),
    )


def time_compression(info: RunInfo) -> float:
    """Return the factor (at most 1) by which the steps of the workload compressed its run times."""
    steps = (info.workload.get("provenance") or {}).get("steps", [])
    factors = [step["parameters"].get("run_time") or 1.0 for step in steps if step["name"] == "scale"]
    return min(math.prod(factors), 1.0)


def check_sides(real: Run, predicted: Run, allow_different_workloads: bool) -> None:
    """Raise InputError if the runs cannot be compared."""
    if not real.info.is_real:
        both = "`tracebed metrics` shows where two predictions differ"
        raise InputError(
            f"the run given as real is {real.info.kind}",
            hint="swap --real and --predicted" if predicted.info.is_real else both,
        )
    if predicted.info.is_real:
        raise InputError(
            f"the run given as predicted is {predicted.info.kind}",
            hint="use the run of a simulator as --predicted; `tracebed metrics` shows several runs side by side",
        )
    same = real.info.workload.get("sha256") == predicted.info.workload.get("sha256")
    if not same and not allow_different_workloads:
        names = [run.info.workload.get("name") or "unknown" for run in (real, predicted)]
        raise InputError(
            f"the runs have different workloads: the hashes of {names[0]} (real) and {names[1]} (predicted) differ",
            hint="simulate the replayed workload, or match jobs by id with --match id",
        )
    if same:
        check_same_plan(real, predicted)


def comparability_warnings(
    real: Run, predicted: Run, figures: tuple[Figures, Figures], matching: Matching, same_workload: bool
) -> list[str]:
    """Return the warnings about differences that make the two runs less comparable, one sentence each."""
    warnings = []
    if not same_workload:
        warnings.append("the runs have different workloads; jobs were matched by id")
    warnings += _jobs(matching)
    if real.info.policy == predicted.info.policy == UNKNOWN_POLICY:
        warnings.append("the policies of both runs are unknown: whether they are the same was not checked")
    elif real.info.policy == UNKNOWN_POLICY:
        warnings.append(f"the policy of the real run is unknown; the prediction is made under {predicted.info.policy}")
    warnings += [f"{what}: real {x}, predicted {y}" for what, x, y in _facts(real, predicted) if x != y]
    if predicted.info.state != "completed":
        warnings.append(f"the prediction is {predicted.info.state}")
    if late := lateness(real, figures[0]):
        warnings.append(f"{late}; replay with a lower --speed")
    if skewed := figures[1]["clock_skew_jobs"]:
        warnings.append(f"{skewed:,} jobs of the prediction start before their submission or end before their start")
    if by := imposed(real.info):
        warnings.append(
            f"the run times of the real run were imposed ({by}): run-time metrics, and the part of responses and "
            "slowdowns that is run time, are no evidence for the prediction"
        )
    return warnings


def _jobs(matching: Matching) -> list[str]:
    warnings = []
    if matching.unmatched:
        share, have = 100 * matching.unmatched_share, "has" if matching.unmatched == 1 else "have"
        named = ", ".join(matching.examples) + (", ..." if len(matching.examples) < matching.unmatched else "")
        warnings.append(
            f"{counted(matching.unmatched, 'job')} ({share:.1f} % of all) {have} no counterpart ({named}): "
            f"{matching.only_real:,} ended only in the real run, {matching.only_predicted:,} only in the "
            f"prediction, {matching.unlike:,} in neither run, in different states"
        )
    if matching.states_differ:
        warnings.append(f"{counted(matching.states_differ, 'job')} ended in a different state than predicted")
    return warnings


def _facts(real: Run, predicted: Run) -> list[tuple[str, Any, Any]]:
    """Return (what, real, predicted) of the parameters that should be equal in both runs."""
    a, b = real.info, predicted.info
    facts: list[tuple[str, Any, Any]] = []
    if a.policy != UNKNOWN_POLICY:
        facts.append(("policy differs", a.policy, b.policy))
    if _has_parameters(a) and a.policy in {b.policy, UNKNOWN_POLICY}:
        ours, theirs = a.policy_parameters, b.policy_parameters
        if new := sorted(theirs.keys() - ours):  # of an older version
            values = ", ".join(f"{name} {theirs[name]}" for name in new)
            facts.append(("policy parameters are not recorded", "unknown", values))
        for name in sorted(ours):
            value, predicted_value = ours[name], theirs.get(name, "not recorded")
            if isinstance(value, bool) and predicted_value in ("yes", "no"):  # a boolean in older versions
                value = "yes" if value else "no"
            facts.append((f"policy parameter {name} differs", value, predicted_value))
    if a.machine is not None and (b.machine is not None or a.is_replay):
        # A policy of tracebed decides on pools; only a model of Slurm depends on the rest of its configuration.
        kind = "digest" if b.policy == "slurm" else "pooled_digest"
        other = getattr(b.machine, kind)[:12] if b.machine is not None else "has no partitions and no resources"
        facts.append(("machine differs", getattr(a.machine, kind)[:12], other))
    facts += [
        ("number of nodes differs", len(a.nodes), len(b.nodes)),
        ("number of cores differs", total_cores(real), total_cores(predicted)),
    ]
    if b.setup.timing.overheads != Overheads():
        facts.append(("speed differs", a.speed, b.speed))  # the speed matters only with overheads
    ours, theirs = a.settings, b.settings
    return facts + [(f"{key} differs", ours[key], theirs[key]) for key in sorted(ours.keys() & theirs)]


def _has_parameters(real: RunInfo) -> bool:
    """Return whether a real run has its policy parameters."""
    # A batch system records its whole configuration, of which a policy of the same name has a part. A log or a file of
    # another program may record none.
    recorded = real.source != "log" and not real.imported
    return not real.batch and bool(real.policy_parameters or recorded)


EXAMPLES = 3
"""Number of jobs without a counterpart that a warning names."""


@dataclass(frozen=True)
class Matching:
    """Numbers of jobs with and without a counterpart in the other run."""

    matched: int
    """Jobs that ended in both runs."""
    ended_in_neither: int
    """Jobs that were rejected or canceled in both runs."""
    only_real: int
    """Jobs that ended only in the real run."""
    only_predicted: int
    """Jobs that ended only in the prediction."""
    unlike: int
    """Jobs that ended in neither run and have different states, or are missing in one run."""
    states_differ: int
    """Matched jobs with different final states."""
    examples: tuple[str, ...] = ()
    """Ids of the first jobs without a counterpart."""

    @property
    def unmatched(self) -> int:
        """Jobs without a counterpart."""
        return self.only_real + self.only_predicted + self.unlike

    @property
    def unmatched_share(self) -> float:
        """Share of the jobs of both runs that have no counterpart."""
        return self.unmatched / max(self.matched + self.ended_in_neither + self.unmatched, 1)


PLAN = ("submit_planned", "nodes", "run_time")  # columns of the jobs of a run that come from the workload


def check_same_plan(real: Run, predicted: Run) -> None:
    """Check that the ids of the jobs are not permuted in one of two runs of one workload."""
    jobs, others = real.table("jobs"), predicted.table("jobs")
    theirs = rows_of(jobs.raw("job_id"), others.raw("job_id"))
    both = jobs.take(theirs >= 0), others.take(theirs[theirs >= 0])
    differ = np.zeros(len(both[0]), dtype=bool)
    # A column of the plan is checked if both runs have the same values in it, in any order: a run of another program
    # may have other values.
    for name in PLAN:
        ours, other = (side[name].astype(np.float64) for side in both)
        close = np.isclose(ours, other, rtol=SAME, atol=SAME, equal_nan=True)
        if not close.all() and np.allclose(np.sort(ours), np.sort(other), rtol=SAME, atol=SAME, equal_nan=True):
            differ |= ~close
    if differ.any():
        row = int(differ.argmax())
        plans = [
            f"{side['nodes'][row]} nodes for {side['run_time'][row]:g} s at {side['submit_planned'][row]:g} s"
            for side in both
        ]
        raise InputError(
            f"{int(differ.sum()):,} jobs of the same workload differ in their plan, "
            f"first job {both[0].text('job_id', row)}: {plans[1]} in the prediction, {plans[0]} in the real run",
            hint="the job ids of one run were changed: repeat the prediction",
        )


def match(real: Table, predicted: Table) -> tuple[pd.DataFrame, Matching]:
    """Match the jobs of two tables of `measures` by id; at least one must be in both.

    A row per job that ended in both runs, in the submit order of the real run: job_id, kind, nodes, and `MEASURES` with
    the suffixes _real and _predicted; and the numbers of jobs.
    """
    theirs = rows_of(real.raw("job_id"), predicted.raw("job_id"))  # row in `predicted`; -1: absent
    common = theirs >= 0
    if not common.any():
        raise InputError("the two runs have no job in common", hint="simulate the replayed workload")
    ended_real, ended = real["finished"], predicted["finished"]
    ended_predicted = ended[theirs] & common
    alike = np.zeros(len(real), dtype=bool)
    for state in JobState:
        alike |= real.equal("state", state) & predicted.equal("state", state)[theirs] & common
    neither = ~ended_real & ~ended_predicted
    same_end = neither & alike & ~real.equal("state", JobState.INTERRUPTED)
    paired = ended_real & ended_predicted
    alone = np.ones(len(predicted), dtype=bool)
    alone[theirs[common]] = False
    lacking = (ended_real != ended_predicted) | (neither & ~same_end)
    examples = [
        *strings(take(real.raw("job_id"), np.flatnonzero(lacking)[:EXAMPLES])),
        *strings(take(predicted.raw("job_id"), np.flatnonzero(alone)[:EXAMPLES])),
    ]
    matching = Matching(
        matched=int(paired.sum()),
        ended_in_neither=int(same_end.sum()),
        only_real=int((ended_real & ~ended_predicted).sum()),
        only_predicted=int((ended_predicted & ~ended_real).sum() + (alone & ended).sum()),
        unlike=int((neither & ~same_end).sum() + (alone & ~ended).sum()),
        states_differ=int((paired & ~alike).sum()),
        examples=tuple(examples[:EXAMPLES]),
    )
    ours = np.flatnonzero(paired)
    ours = ours[ascending(take(real.raw("job_id"), ours))]
    ours = ours[np.argsort(real["submit"][ours], kind="stable")]
    sides = {"real": (real, ours), "predicted": (predicted, theirs[ours])}
    jobs = {f"{name}_{side}": table[name][rows] for name in MEASURES for side, (table, rows) in sides.items()}
    facts = Table({name: real.kept(name) for name in ("job_id", "kind", "nodes")}).take(ours)
    return Table(jobs | {name: facts.raw(name) for name in facts}).frame(), matching


def imposed(info: RunInfo) -> str:
    """Return what imposed the run times of a real run, or an empty text if the run times were measured."""
    # An emulated rank sleeps for its planned run time. A rank with a duty below 1 computes for a part of the planned
    # time and sleeps until its planned end. A steady clock stands still until a late rank has finished its planned
    # work.
    partial = sorted({duty for duty in info.duties if 0 < duty < 1})
    kinds = ["emulated nodes"] if "emulated" in info.execution.split("+") else []
    if partial:
        kinds.append("duty " + " to ".join(f"{each:g}" for each in dict.fromkeys((partial[0], partial[-1]))))
    if info.parameters.get("clock") == "steady":
        kinds.append("steady clock")
    return ", ".join(kinds)


def copied_run_times(jobs: pd.DataFrame, resolution_s: float) -> bool:
    """Return whether the predicted run times are copies of the observed ones, up to the resolution of both runs, s."""
    if not len(jobs):
        return False
    difference = (jobs["run_predicted"] - jobs["run_real"]).abs()
    return bool((difference <= max(resolution_s, ROUNDING_S)).mean() >= COPIES)


@dataclass(frozen=True)
class Evidence:
    """Parts of a prediction that the real runs test, and parts that they do not test."""

    same_scheduler: bool  # whether the same scheduler code decided on both sides
    imposed: str  # what imposed the run times; empty if they were measured
    could_fail: tuple[str, ...]  # parts of the prediction in which the real runs could have revealed errors
    could_not_fail: tuple[str, ...]  # parts that are imposed, or the same on both sides


def evidence(real: Sequence[RunInfo], predicted: Sequence[RunInfo], copied: Sequence[bool]) -> Evidence:
    """Return which parts of predictions real runs test; `copied`: whether the run times of a case are copies."""
    replayed = all(info.source == "replay" for info in real)
    own = replayed and not any(info.batch for info in real)
    shared = own and all(_decided_by_tracebed(info) for info in predicted)
    by = ", ".join(dict.fromkeys(filter(None, (imposed(info) for info in real))))
    delays = "delays of launches, ends and resizes" if replayed else "delays of the real system"
    could = [f"{delays}, and the schedule that follows from them"]
    could_not = []
    copies = "the predicted run times are copies of the observed ones"
    if by:
        could_not.append(f"run times: they were imposed ({by})")
    elif copied and all(copied):
        could_not.append(f"run times: {copies}")
    elif any(copied):
        could.append(f"run times of {len(copied) - sum(copied)} of {len(copied)} cases")
        could_not.append(f"run times of {sum(copied)} of {len(copied)} cases: {copies}")
    else:
        could.append("run times")
    if shared:
        could_not.append("decisions of the scheduler: the same code decided on both sides")
    else:
        could.append("decisions of the scheduler")
    return Evidence(shared, by, tuple(could), tuple(could_not))


def _decided_by_tracebed(info: RunInfo) -> bool:
    """Return whether the scheduler of tracebed made the decisions of a prediction, in any simulator."""
    return info.source in ("simulator", VIRTUAL) or info.parameters.get("scheduler") == "tracebed"
