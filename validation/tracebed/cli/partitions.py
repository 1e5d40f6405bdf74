"""The tables of partitions and of classes of nodes of `tracebed describe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tracebed.cli.charts import duration_text
from tracebed.cli.console import print_table

HEADS = {
    **{"jobs": "jobs", "gpu_jobs": "GPU jobs", "nodes": "nodes", "cores": "CPUs", "gpus": "GPUs"},
    **{"core_hours": "core hours", "gpu_hours": "GPU hours", "core_demand": "demand", "gpu_demand": "of GPUs"},
}
TIMES = {"run_time_s": ("run time", ("median", "p95")), "wait_s": ("wait", ("mean", "median", "p95"))}
MUCH = 1.0
"""Demand above which a queue grows for as long as the log lasts."""


def print_partitions(facts: Mapping[str, Any]) -> None:
    """Print a row for each partition, a line for each demand above 100 %, and a row for each class of nodes.

    Nothing is printed of a workload without partitions.
    """
    found = facts["by_partition"]
    if len(found) < 2:
        return
    shown = found if len(found) > 2 else found[:1]
    known = {name: title for name, title in HEADS.items() if any(row[name] for row in found)}
    times = [(name, of) for name, (_, each) in TIMES.items() for of in each if found[-1][name][of] is not None]
    heads = ["partition", *known.values(), *(f"{TIMES[name][0]}, {of}" for name, of in times)]
    print_table(heads, [_row(row, known, times) for row in shown], spare=("GPU hours", "run time, p95", "wait, median"))
    for row in shown:
        if facts["node_classes"] and row["nodes"] is None:
            click.echo(f"partition {row['partition']} is not in the slurm.conf")
        for name, what in (("core_demand", "CPUs"), ("gpu_demand", "GPUs")):
            if row[name] is not None and row[name] > MUCH:
                of = f"partition {row['partition']}" if row["partition"] else "all partitions"
                click.echo(f"demand above 100 %: the jobs of {of} need {100 * row[name]:.0f} % of its {what}")
    click.echo()
    if facts["node_classes"]:
        _print_classes(facts["node_classes"])


def _row(row: Mapping[str, Any], known: Mapping[str, str], times: list[tuple[str, str]]) -> tuple[Any, ...]:
    cells = []
    for name in known:
        value = row[name]
        if name.endswith("_demand"):
            value = None if value is None else f"{100 * value:.0f} %"
        cells.append(round(value) if isinstance(value, float) else value)
    lengths = (row[name][of] for name, of in times)
    return (row["partition"] or "all", *cells, *(None if value is None else duration_text(value) for value in lengths))


def _print_classes(classes: list[dict[str, Any]]) -> None:
    rows = [
        (
            *(kind["names"], kind["nodes"], kind["cpus"], f"{kind['memory_mib']:,} MiB"),
            ",".join(f"{name}:{count}" for name, count in kind["gres"].items()) or None,
            *(",".join(kind["features"]) or None, ", ".join(kind["partitions"])),
        )
        for kind in classes
    ]
    print_table(["class", "nodes", "CPUs", "memory", "gres", "features", "partitions"], rows, text=("partitions",))
    click.echo()
