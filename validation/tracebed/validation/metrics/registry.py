"""The installed metrics: those of tracebed, then those of other packages, from entry points."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from tracebed.errors import InputError
from tracebed.registry import Registry
from tracebed.validation.metrics.metric import Metric

STANDARD = "standard"
"""Entry point of the metrics of tracebed, which come first."""

REGISTRY: Registry[Metric | Sequence[Metric]] = Registry("tracebed.metrics", "metric")
"""An entry point names one `Metric`, or a sequence of them."""

RESERVED = {
    *("undefined", "quartiles", "trimmed", "tau", "utilization_window", "operations", "reconfiguration_s"),
    *("jobs_unfinished", "jobs_malleable", "jobs_by_state", "clock_skew_jobs", "zero_run_jobs"),
}
"""Keys of the dictionary of `metrics` that are no metrics."""


@cache
def all_metrics() -> dict[str, Metric]:
    """Return the installed metrics by name, in the order in which tables show them.

    Raises:
        InputError: an entry point cannot be loaded, names no metric, or a metric that is there already.
    """
    found: dict[str, Metric] = {}
    for entry in sorted(REGISTRY.names(), key=lambda name: (name != STANDARD, name)):
        for metric in _metrics_of(REGISTRY.load(entry), REGISTRY.entries[entry].value):
            if metric.name in found or metric.name in RESERVED:
                raise InputError(
                    f"there is a metric {metric.name!r} already",
                    where=REGISTRY.entries[entry].value,
                    hint="rename the metric, or uninstall its package",
                )
            found[metric.name] = metric
    return found


def _metrics_of(extension: Any, where: str) -> Sequence[Metric]:
    metrics = [extension] if isinstance(extension, Metric) else extension
    if not isinstance(metrics, Sequence) or not all(isinstance(metric, Metric) for metric in metrics):
        hint = "the entry point names a tracebed.validation.metrics.Metric, or a sequence of them"
        raise InputError("not a metric", where=where, hint=hint)
    return metrics
