"""The metrics of tracebed.

For a job with submit time a, start s and end c: wait s - a, run time c - s, response time c - a, slowdown
(c - a) / (c - s), bounded slowdown max(1, (c - a) / max(c - s, tau)) (Feitelson et al. 1997). Times are trace seconds
after the first submission of the run. Means are over finished jobs. The margins were derived from repeated real runs
before the first comparison (docs/explanation/verdict.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tracebed.orchestrator.runs.steps import full, utilization
from tracebed.validation.metrics import deadlines, energy, outages, placement, power_states, sharing, users
from tracebed.validation.metrics.measured import MeasuredRun
from tracebed.validation.metrics.metric import Margin, Metric
from tracebed.validation.statistics import mean, percentile, sum_of_products

NO_JOB = "no job ended"
NO_WINDOW = "the window is empty"
NO_OPERATION = "no reconfiguration was applied"


def _throughput(run: MeasuredRun) -> float:
    within = (run.ends_s >= run.window.start_s) & (run.ends_s <= run.window.end_s)
    return int(within.sum()) / run.window.length_s


def _operations(run: MeasuredRun, column: str, jobs: int) -> float:
    run.require("reconfigurations")
    return int(run.finished[column].sum()) / jobs if jobs else float("nan")


def _delivered_nodes(run: MeasuredRun) -> float:
    return run.busy.mean(run.window.start_s, run.window.end_s) * run.run.total_nodes / run.cores


def _area_weighted(run: MeasuredRun) -> float:
    area = run.finished["nodes"] * run.finished["run"]
    weighted = sum_of_products(area, run.finished["bounded_slowdown"])
    return weighted / float(area.sum()) if area.sum() > 0 else float("nan")


def _moved_nodes(run: MeasuredRun) -> float:
    run.require("reconfigurations")
    applied = run.applied
    return mean(np.abs(applied["nodes_to"] - applied["nodes_from"]))


def _blocked_node_seconds(run: MeasuredRun) -> float:
    """Return the node seconds between the decision and the end of reconfigurations on the nodes that change hands."""
    run.require("reconfigurations")
    applied = run.applied
    if not len(applied):
        return float("nan")
    expands = applied.equal("kind", "expand")
    since = np.where(expands, applied["asked"], applied["applied"])
    until = np.where(expands, applied["applied"], applied["ended"])
    blocked = np.abs(applied["nodes_to"] - applied["nodes_from"]) * (until - since)
    return float(np.nansum(blocked)) if (~np.isnan(blocked)).any() else float("nan")


def _granted_rate(run: MeasuredRun) -> float:
    run.require("reconfigurations")
    rows = run.run.table("reconfigurations")
    granted = ~rows.equal("state", "denied") & (rows["nodes_to"] == rows["nodes_asked"])
    return mean(granted[rows["nodes_asked"] > 0])


def _distribution(
    column: str,
    docs: str,
    mean_docs: str,
    *,
    unit: str = "s",
    short: str = "",
    margins: tuple[Margin | None, Margin | None, Margin | None] = (None, None, None),
    of_run_times: bool = False,
) -> Iterator[Metric]:
    """Yield mean, median and 95th percentile of a column of the finished jobs, with these margins."""
    suffix, label = "_s" if unit else "", column.replace("_", " ")
    yield Metric(
        name=f"mean_{column}{suffix}",
        short=short,
        label=f"{label}, mean",
        unit=unit,
        definition=lambda run: mean(run.finished[column]),
        undefined=NO_JOB,
        of_run_times=of_run_times,
        margin=margins[0],
        mean_of=column,
        docs=mean_docs,
    )
    for name, words, percent, margin in (
        ("median", "median", 50, margins[1]),
        ("p95", "95th percentile", 95, margins[2]),
    ):
        yield Metric(
            name=f"{name}_{column}{suffix}",
            label=f"{label}, {name}",
            unit=unit,
            definition=partial(MeasuredRun.percentile, column=column, percent=percent),
            undefined=NO_JOB,
            of_run_times=of_run_times,
            margin=margin,
            docs=f"{words} of {docs}",
        )


def _operations_per_resized_job(run: MeasuredRun, column: str) -> float:
    run.require("reconfigurations")
    counts = run.finished[column]
    return mean(counts[counts > 0])


def _operations_per_job(kind: str) -> tuple[Metric, Metric, Metric]:
    """Return the operations of a kind (expand, shrink) per job, per malleable job and per job that had any."""
    counts = f"executed {kind} operations of finished jobs / finished"
    per_job = Metric(
        name=f"{kind}_operations_per_job",
        label=f"{kind} operations per job",
        definition=lambda run: _operations(run, f"{kind}s", len(run.finished)),
        undefined=NO_JOB,
        margin=Margin(0.10, 0.1),
        of_malleable_jobs=True,
        docs=f"{counts} jobs",
    )
    per_malleable_job = Metric(
        name=f"{kind}_operations_per_malleable_job",
        label=f"{kind} operations per malleable job",
        definition=lambda run: _operations(run, f"{kind}s", len(run.malleable)),
        undefined="no malleable job ended",
        of_malleable_jobs=True,
        mean_of=f"{kind}s",
        docs=f"{counts} malleable jobs",
    )
    verb = {"expand": "expanded", "shrink": "shrank"}[kind]
    per_resized_job = Metric(
        name=f"{kind}_operations_per_resized_job",
        label=f"{kind} operations per job that {verb}",
        definition=lambda run: _operations_per_resized_job(run, f"{kind}s"),
        undefined=f"no finished job {verb}",
        of_malleable_jobs=True,
        optional=True,
        mean_of=f"{kind}s",
        above_zero=True,
        docs=f"{counts} jobs that {verb} at least once",
    )
    return per_job, per_malleable_job, per_resized_job


METRICS = (
    Metric(
        name="makespan_s",
        short="makespan",
        label="makespan",
        unit="s",
        definition=lambda run: run.last_end_s,
        undefined=NO_JOB,
        margin=Margin(0.03, gate=True),
        docs="last end - first submission",
    ),
    *_distribution(
        "wait",
        "s - a",
        "mean of s - a over finished jobs",
        short="wait",
        margins=(Margin(0.10, 10.0, gate=True), None, Margin(0.15, 30.0)),
    ),
    *_distribution(
        "response", "c - a", "mean of c - a", short="response", margins=(Margin(0.05, 10.0, gate=True), None, None)
    ),
    *_distribution("run", "c - s", "mean of c - s", margins=(None, Margin(0.02), None), of_run_times=True),
    Metric(
        name="mean_slowdown",
        label="slowdown, mean",
        definition=lambda run: mean(run.finished["slowdown"]),
        undefined="no job with a run time above 0 ended",
        docs="mean of (c - a) / (c - s) over jobs with a run time above 0",
    ),
    *_distribution(
        "bounded_slowdown",
        "the bounded slowdown",
        "mean of max(1, (c - a) / max(c - s, tau))",
        unit="",
        short="slowdown",
        margins=(Margin(0.10, 0.1, gate=True), None, None),
    ),
    Metric(
        name="geo_bounded_slowdown",
        label="bounded slowdown, geometric mean",
        definition=lambda run: float(np.exp(mean(np.log(run.finished["bounded_slowdown"])))),
        undefined=NO_JOB,
        docs="geometric mean of the bounded slowdown; a few jobs dominate the arithmetic mean",
    ),
    Metric(
        name="area_bounded_slowdown",
        label="bounded slowdown, area-weighted",
        definition=_area_weighted,
        undefined="no job with a run time above 0 ended",
        docs="mean of the bounded slowdown, weighted with requested nodes x (c - s)",
    ),
    Metric(
        name="mean_bounded_slowdown_ref",
        label="bounded slowdown by dedicated run time, mean",
        definition=lambda run: mean(run.finished["bounded_slowdown_ref"]),
        undefined="no job with a known dedicated run time ended",
        docs="mean of max(1, (c - a) / max(r, tau)), with r the run time of the workload on the requested nodes",
    ),
    Metric(
        name="mean_slowdown_ref",
        label="slowdown by dedicated run time, mean",
        definition=lambda run: mean(run.finished["slowdown_ref"]),
        undefined="no job with a known dedicated run time ended",
        mean_of="slowdown_ref",
        docs="mean of (c - a) / r: the slowdown of the SD-Policy paper",
    ),
    Metric(
        name="utilization",
        label="utilization in the window",
        definition=lambda run: utilization(run.busy, run.window, run.cores),
        undefined=NO_WINDOW,
        margin=Margin(0.03, 0.01, gate=True),
        mean_over_time=lambda run: run.used_share,
        docs="core seconds held by jobs in the window / (P x its length), from the allocations, with the size that "
        "malleable jobs had at each instant",
    ),
    Metric(
        name="utilization_full",
        label="utilization, full span",
        definition=lambda run: utilization(run.busy, full(run.last_end_s), run.cores),
        undefined=NO_WINDOW,
        docs="utilization from the first submission to the last end",
    ),
    Metric(
        name="throughput",
        label="throughput in the window",
        unit="jobs/s",
        definition=_throughput,
        undefined=NO_WINDOW,
        margin=Margin(0.03),
        docs="jobs that ended in the window / its length",
    ),
    Metric(
        name="delivered_nodes",
        label="nodes delivered in the window",
        unit="node s/s",
        definition=_delivered_nodes,
        undefined=NO_WINDOW,
        docs="node seconds held by jobs in the window / its length",
    ),
    Metric(
        name="loss_of_capacity",
        label="loss of capacity in the window",
        definition=lambda run: run.loss_of_capacity,
        undefined=NO_WINDOW,
        docs="integral over the window of min(cores requested by waiting jobs, idle cores) / (P x its length): "
        "the capacity that was idle while jobs waited",
    ),
    Metric(
        name="jobs",
        label="jobs",
        definition=lambda run: len(run.jobs),
        docs="number of jobs",
    ),
    Metric(
        name="jobs_finished",
        label="jobs finished",
        definition=lambda run: len(run.finished),
        docs="number of jobs that finished",
    ),
    *_operations_per_job("expand"),
    *_operations_per_job("shrink"),
    Metric(
        name="granted_rate",
        label="granted requests of evolving jobs",
        definition=_granted_rate,
        undefined="no request of an evolving job was answered",
        optional=True,
        docs="requests of evolving jobs that were granted in full / answered requests",
    ),
    Metric(
        name="median_reconfiguration_s",
        label="reconfiguration, median",
        unit="s",
        definition=lambda run: percentile(run.reconfiguration_s(), 50),
        undefined=NO_OPERATION,
        margin=Margin(0.20, 0.5),
        of_malleable_jobs=True,
        docs="median time from the request for a reconfiguration until the new size is effective",
    ),
    Metric(
        name="p95_reconfiguration_s",
        label="reconfiguration, p95",
        unit="s",
        definition=lambda run: percentile(run.reconfiguration_s(), 95),
        undefined=NO_OPERATION,
        of_malleable_jobs=True,
        docs="95th percentile of the time from the request for a reconfiguration until the new size is effective",
    ),
    Metric(
        name="nodes_moved_per_operation",
        label="nodes moved per operation",
        definition=_moved_nodes,
        undefined=NO_OPERATION,
        of_malleable_jobs=True,
        docs="mean of |new size - old size| over applied reconfigurations",
    ),
    Metric(
        name="blocked_node_s",
        label="nodes blocked by reconfigurations",
        unit="node s",
        definition=_blocked_node_seconds,
        undefined=NO_OPERATION,
        of_malleable_jobs=True,
        docs="sum over applied reconfigurations of moved nodes x time in which they do no work: of an expand operation "
        "from the request until the new size is effective, of a shrink operation from then until the nodes are idle",
    ),
    *deadlines.METRICS,
    *energy.METRICS,
    *power_states.METRICS,
    *sharing.HANDOVERS,
    *sharing.METRICS,
    *placement.METRICS,
    *users.METRICS,
    *outages.METRICS,
)
"""The metrics in the order of tables."""
