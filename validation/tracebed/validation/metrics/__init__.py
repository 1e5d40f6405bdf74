"""Metrics of a run, with the same definitions for real runs and predictions (docs/reference/metrics.md)."""

from tracebed.validation.metrics.jobs import TAU, origin, per_job
from tracebed.validation.metrics.measured import MeasuredRun, PowerModel, Undefined, busy_cores, total_cores, waiting
from tracebed.validation.metrics.metric import Margin, Metric, all_metrics
from tracebed.validation.metrics.summary import figures, metrics, summarize, table_row

__all__ = [
    "TAU",
    "Margin",
    "MeasuredRun",
    "Metric",
    "PowerModel",
    "Undefined",
    "all_metrics",
    "busy_cores",
    "figures",
    "metrics",
    "origin",
    "per_job",
    "summarize",
    "table_row",
    "total_cores",
    "waiting",
]
