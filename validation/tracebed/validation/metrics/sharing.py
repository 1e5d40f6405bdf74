"""Guests and mates: jobs that start on nodes of running jobs, and the jobs that share their nodes with them."""

from __future__ import annotations

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray, Kind
from tracebed.ground.table import rows_of
from tracebed.validation.metrics.measured import MeasuredRun
from tracebed.validation.metrics.metric import Metric
from tracebed.validation.statistics import mean

NO_MALLEABLE = "no job is malleable"
ROUNDING = 1e-3
"""Share by which core seconds must be fewer to count as fewer: the times of real runs are rounded."""


def _of_finished(run: MeasuredRun, which: int) -> BoolArray:
    """Return whether each finished job was a guest (0) or a mate (1); empty if no job is malleable."""
    chosen: BoolArray = run.guests_and_mates[which][run.rows][run.jobs["finished"]]
    return chosen if run.run.table("jobs").equal("kind", Kind.MALLEABLE).any() else chosen[:0]


def _number(run: MeasuredRun, which: int) -> float:
    found = _of_finished(run, which)
    return int(found.sum()) if len(found) else float("nan")


def _better(run: MeasuredRun) -> float:
    """Return the share of the guests that held fewer core seconds than their run time on whole nodes takes."""
    guests = _of_finished(run, 0)
    if not guests.any():
        return float("nan")  # also of runs without nodes, such as imported tables
    jobs, held = run.run.table("jobs"), run.run.table("allocations")
    row = rows_of(held.raw("job_id"), jobs.raw("job_id"))
    last = held["start"] >= jobs["start"][row]
    used: FloatArray = held["cores"] * held["count"] * (held["end"] - held["start"])
    spent = np.bincount(row[last], used[last], minlength=len(jobs))
    static = jobs["run_time"] * jobs["nodes"] * (run.cores / run.run.total_nodes)
    better = spent < (1.0 - ROUNDING) * static
    return mean(better[run.rows][run.jobs["finished"]][guests])


METRICS = (
    Metric(
        name="guests",
        label="guests",
        definition=lambda run: _number(run, 0),
        undefined=NO_MALLEABLE,
        of_malleable_jobs=True,
        optional=True,
        docs="finished jobs that started on a part of the cores of a node, beside a running malleable job: the jobs "
        "scheduled with malleability of the SD-Policy paper",
    ),
    Metric(
        name="guest_share",
        label="guests, share",
        definition=lambda run: mean(_of_finished(run, 0)),
        undefined=NO_MALLEABLE,
        of_malleable_jobs=True,
        optional=True,
        docs="guests / finished jobs",
    ),
    Metric(
        name="mates",
        label="mates",
        definition=lambda run: _number(run, 1),
        undefined=NO_MALLEABLE,
        of_malleable_jobs=True,
        optional=True,
        docs="finished malleable jobs that shared a node with a guest",
    ),
    Metric(
        name="mate_share",
        label="mates, share",
        definition=lambda run: mean(_of_finished(run, 1)),
        undefined=NO_MALLEABLE,
        of_malleable_jobs=True,
        optional=True,
        docs="mates / finished jobs",
    ),
    Metric(
        name="guests_better",
        label="guests better than static, share",
        definition=_better,
        undefined="no job was a guest",
        of_malleable_jobs=True,
        optional=True,
        docs="guests that held fewer core seconds, by 0.1 % or more, than whole nodes for their dedicated run time / "
        "guests",
    ),
)
"""The metrics of shared nodes."""
