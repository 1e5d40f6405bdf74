"""Descriptions of workloads: statistics, pictures, and the meaning of the columns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from tracebed.api.workloads import read
from tracebed.converters import description, pictures, schema
from tracebed.converters import workload as converters
from tracebed.converters.cleaning.audit import records_of
from tracebed.converters.description import MOST, partition_facts
from tracebed.converters.formats.reading import read_raw
from tracebed.converters.log import Log
from tracebed.converters.workload import System

__all__ = ["MOST", "describe", "describe_log", "dictionary", "local_time", "plot", "summary"]


def describe(workload: converters.Workload | Path | str) -> dict[str, Any]:
    """Return the statistics of a workload: sizes, run times, load, occupation and arrivals.

    Args:
        workload: a workload, or the path of one.

    Returns:
        plain values, as `tracebed describe --json` prints them; None for what the workload does not know.

    Example:
        >>> import tracebed.api as tb
        >>> tb.describe(tb.generate("cirne", jobs=30, nodes=16))["jobs"]
        30
    """
    return _described(read(workload) if isinstance(workload, str | Path) else workload, None)


def describe_log(path: Path | str, system: System | Path | None = None, **options: Any) -> dict[str, Any]:
    """Return the statistics of a file as `describe` does. Each record of a raw log counts as a job, before cleaning.

    Args:
        path: the file, or a folder of files of one log.
        system: the machine; or the slurm.conf of the cluster, which gives the sizes of the partitions and the classes
            of nodes. None: that of the file.
        options: `format`, the name of the format, and options of the reader.

    Raises:
        InputError: a file cannot be read, or the slurm.conf names no nodes.
    """
    found = read_raw([Path(path)], **options)
    return _described(records_of(found) if isinstance(found, Log) else found, system)


def _described(workload: converters.Workload, system: System | Path | None) -> dict[str, Any]:
    """Return the statistics of a workload, also by partition, for a machine."""
    if isinstance(system, System):
        workload = workload.with_provenance(system=system)
    if not isinstance(system, Path):
        facts = description.describe(workload)
        return facts | {"by_partition": partition_facts(workload), "node_classes": []}
    from tracebed.api.clusters import capacities, cluster_of, node_classes

    cluster = cluster_of(system)
    by_partition = partition_facts(workload, capacities(cluster))
    return description.describe(workload) | {"by_partition": by_partition, "node_classes": node_classes(cluster)}


def summary(workload: converters.Workload) -> dict[str, Any]:
    """Return the main statistics of a workload.

    Args:
        workload: the workload.

    Returns:
        `jobs`, `malleable_jobs`, `nodes`, `cores_per_node`, `span_s` (first to last submission), `median_run_time_s`,
        `longest_run_time_s` and `offered_load`; None for what the workload does not know.

    Example:
        >>> import tracebed.api as tb
        >>> summary(tb.generate("cirne", jobs=30, nodes=16))["nodes"]
        16
    """
    system = workload.provenance.system
    run = description.quantiles(workload.floats("run_time"))
    return {
        "jobs": len(workload),
        "malleable_jobs": int((workload.column("kind") == "malleable").sum()),
        "nodes": system.nodes,
        "cores_per_node": system.cores_per_node,
        "span_s": workload.span,
        "median_run_time_s": run["median"],
        "longest_run_time_s": run["max"],
        "offered_load": workload.offered_load,
    }


def dictionary(workload: converters.Workload) -> list[dict[str, Any]]:
    """Return the columns of workloads: `column`, `type`, `meaning`, `default`, and `known`, the number of jobs.

    Args:
        workload: the workload. Columns without a default are those of its table.

    Example:
        >>> import tracebed.api as tb
        >>> dictionary(tb.generate("cirne", jobs=30, nodes=16))[0]["column"]
        'job_id'
    """
    return schema.dictionary(workload.table)


def plot(facts: Mapping[str, Any], path: Path | str, *, before: Mapping[str, Any] | None = None) -> None:
    """Draw the statistics of a workload.

    Args:
        facts: the statistics, as from `describe`.
        path: the picture: .png, .svg or .pdf.
        before: the statistics before cleaning, which are drawn beside.

    Raises:
        InputError: the file cannot be written, or its name has another ending.
    """
    pictures.plot(facts, path, before=before)


def local_time(clock: Mapping[str, Any] | None, seconds: float) -> datetime | None:
    """Return the date of an instant of a workload in its time zone; None: the date is unknown.

    Args:
        clock: the entry `clock` of `describe`.
        seconds: the instant, s since time 0.
    """
    return description.local_time(clock, seconds)
