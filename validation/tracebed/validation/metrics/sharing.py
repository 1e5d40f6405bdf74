"""Shared nodes: guests, which start on nodes of running jobs, their mates, and hand-overs of CPUs between jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray, Kind
from tracebed.validation.metrics.jobs import since_last_start
from tracebed.validation.metrics.measured import MeasuredRun
from tracebed.validation.metrics.metric import Metric
from tracebed.validation.statistics import mean

NO_MALLEABLE = "no job is malleable"
ROUNDING = 1e-3  # share by which core seconds must be fewer to count as fewer: the times of real runs are rounded

NO_HANDOVER = "no CPU was handed over between the processes of two jobs"


def _of_finished(run: MeasuredRun, which: int) -> BoolArray:
    """Return whether each finished job was a guest (0) or a mate (1); empty if no job is malleable."""
    chosen: BoolArray = run.guests_and_mates[which][run.rows][run.jobs["finished"]]
    return chosen if run.run.table("jobs").equal("kind", Kind.MALLEABLE).any() else chosen[:0]


def _number(run: MeasuredRun, which: int) -> float:
    chosen = _of_finished(run, which)
    return int(chosen.sum()) if len(chosen) else float("nan")


def _better(run: MeasuredRun) -> float:
    """Return the share of the guests that held fewer core seconds than their run time on whole nodes takes."""
    guests = _of_finished(run, 0)
    if not guests.any():
        return float("nan")  # also of runs without nodes, such as imported tables
    jobs = run.run.table("jobs")
    held, job = since_last_start(run.run.table("allocations"), jobs)
    used: FloatArray = held["cores"] * held["count"] * (held["end"] - held["start"])
    spent = np.bincount(job, used, minlength=len(jobs))
    static = jobs["run_time"] * jobs["nodes"] * (run.cores / run.run.total_nodes)
    better = spent < (1.0 - ROUNDING) * static
    return mean(better[run.rows][run.jobs["finished"]][guests])


def _number_and_share(one: str, which: int, docs: str) -> tuple[Metric, Metric]:
    """Return the number of finished guests (0) or mates (1), and their share of the finished jobs."""
    number = Metric(
        name=f"{one}s",
        label=f"{one}s",
        definition=lambda run: _number(run, which),
        undefined=NO_MALLEABLE,
        of_malleable_jobs=True,
        optional=True,
        docs=docs,
    )
    share = replace(
        number,
        name=f"{one}_share",
        label=f"{one}s, share",
        definition=lambda run: mean(_of_finished(run, which)),
        docs=f"{one}s / finished jobs",
    )
    return number, share


METRICS = (
    *_number_and_share(
        "guest",
        0,
        "finished jobs that started on a part of the cores of a node, beside a running malleable job: the jobs "
        "scheduled with malleability of the SD-Policy paper",
    ),
    *_number_and_share("mate", 1, "finished malleable jobs that shared a node with a guest"),
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


def _longest_of_replay(name: str, field: str, label: str, docs: str) -> Metric:
    return Metric(
        name=name,
        label=label,
        unit="wall s",
        definition=lambda run: float(run.run.info.handovers.get(field, float("nan"))),
        undefined=NO_HANDOVER,
        optional=True,
        docs=f"longest time in which {docs}, in wall seconds; only of replays with hand-overs of CPUs",
    )


HANDOVERS = (
    _longest_of_replay(
        "overlap_s",
        "overlap_s",
        "overlap of two masks, longest",
        "the masks of two jobs had a CPU in common",
    ),
    _longest_of_replay(
        "handover_gap_s", "gap_s", "gap of a hand-over, longest", "a CPU that is handed over was in no mask"
    ),
)
"""The metrics of hand-overs."""
