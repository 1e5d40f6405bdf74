"""Hand-overs of CPUs between jobs that share nodes in a replay: the longest overlap and gap of two masks."""

from __future__ import annotations

from tracebed.validation.metrics.measured import MeasuredRun
from tracebed.validation.metrics.metric import Metric

NO_HANDOVER = "no CPU was handed over between the processes of two jobs"


def _longest(run: MeasuredRun, name: str) -> float:
    return float(run.run.info.handovers.get(name, float("nan")))


METRICS = (
    Metric(
        name="overlap_s",
        label="overlap of two masks, longest",
        unit="wall s",
        definition=lambda run: _longest(run, "overlap_s"),
        undefined=NO_HANDOVER,
        optional=True,
        docs="longest time in which the masks of two jobs had a CPU in common, in wall seconds; only of replays "
        "with hand-overs of CPUs",
    ),
    Metric(
        name="handover_gap_s",
        label="gap of a hand-over, longest",
        unit="wall s",
        definition=lambda run: _longest(run, "gap_s"),
        undefined=NO_HANDOVER,
        optional=True,
        docs="longest time in which a CPU that is handed over was in no mask, in wall seconds; only of replays with "
        "hand-overs of CPUs",
    ),
)
"""The metrics of hand-overs."""
