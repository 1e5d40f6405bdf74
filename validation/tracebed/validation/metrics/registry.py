"""Registry of metrics: the metrics of tracebed, then those of other packages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from tracebed.ground.errors import InputError
from tracebed.ground.registry import Registry
from tracebed.validation.metrics.metric import Metric

STANDARD = "standard"
"""Entry point of the metrics of tracebed, which are listed first."""

REGISTRY: Registry[Metric | Sequence[Metric]] = Registry("tracebed.metrics", "metric")
"""An entry point refers to one `Metric` or to a sequence of metrics."""

RESERVED = {
    *("energy", "undefined", "quartiles", "trimmed", "tau", "utilization_window", "operations", "reconfiguration_s"),
    *(
        "deadlines_by_behaviour",
        "core_changes",
        "jobs_unfinished",
        "jobs_malleable",
        "jobs_by_state",
        "clock_skew_jobs",
        "zero_run_jobs",
    ),
}
"""Further keys of the dictionary of `metrics`, which metrics must not use."""


@cache
def all_metrics() -> dict[str, Metric]:
    """Return the installed metrics by name, in the order of tables.

    Raises:
        InputError: an entry point cannot be loaded, is not a metric, or repeats the name of a metric.
    """
    found: dict[str, Metric] = {}
    for entry in sorted(REGISTRY.names(), key=lambda name: (name != STANDARD, name)):
        for metric in _metrics_of(REGISTRY.load(entry), REGISTRY.entries[entry].value):
            if metric.name in found or metric.name in RESERVED:
                raise InputError(
                    f"metric {metric.name!r} already exists",
                    where=REGISTRY.entries[entry].value,
                    hint="rename the metric, or uninstall its package",
                )
            found[metric.name] = metric
    return found


def _metrics_of(extension: Any, where: str) -> Sequence[Metric]:
    metrics = [extension] if isinstance(extension, Metric) else extension
    if not isinstance(metrics, Sequence) or not all(isinstance(metric, Metric) for metric in metrics):
        hint = "the entry point must refer to a tracebed.validation.metrics.Metric or a sequence of metrics"
        raise InputError("not a metric", where=where, hint=hint)
    return metrics
