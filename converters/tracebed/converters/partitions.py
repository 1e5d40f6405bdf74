"""What the jobs of each partition of a log demand and hold, for the tables of `tracebed describe`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracebed.converters.description import HOUR, cores_used, partitions_of, quantiles
from tracebed.converters.formats.tools.gres import gres_items
from tracebed.converters.workload import FloatArray, Workload

WHOLE = ""
"""Name of all partitions together."""


@dataclass(frozen=True)
class Capacity:
    """What a partition has, or all partitions together."""

    nodes: int
    cores: int
    """Cores, or CPUs where jobs count CPUs."""
    gpus: int


def gpus_of(workload: Workload) -> FloatArray:
    """Return the GPUs of each job on all its nodes, shape (jobs,); 0 if it has none or they are unknown."""
    if "extra_gpus" in workload.columns:
        return np.nan_to_num(workload.floats("extra_gpus"))
    texts = workload.texts("gres")
    on_node = {text: float(_gpus_on_node(text)) for text in texts.unique().tolist()}
    return np.asarray(texts.map(on_node), dtype=np.float64) * workload.ints("nodes")


def _gpus_on_node(gres: str) -> int:
    """Return the GPUs in generic resources such as `gpu:a100:2,nvme:1`."""
    return sum(count for name, _, count in gres_items(gres) if name == "gpu")


def partition_facts(workload: Workload, capacities: Mapping[str, Capacity] | None = None) -> list[dict[str, Any]]:
    """Return a description of each partition, most jobs first, and of all (name `WHOLE`), in JSON types.

    The demand is the work of the jobs (core seconds, GPU seconds) over what the partition could do between the first
    and the last submission of the log. Partitions that share nodes are each compared with all of their nodes.

    Args:
        capacities: partition -> what it has; unknown partitions have no demand.
    """
    cores = workload.ints("nodes") * cores_used(workload)
    run, gpus = np.nan_to_num(workload.floats("run_time")), gpus_of(workload)
    wait = workload.floats("logged_start") - workload.floats("submit_time")
    names = workload.partitions().to_numpy()
    found = []
    for name in [*partitions_of(workload), WHOLE]:
        of = names == name if name != WHOLE else np.ones(len(names), dtype=bool)
        has = (capacities or {}).get(name)
        sizes = {size: None if has is None else getattr(has, size) for size in ("nodes", "cores", "gpus")}
        hours = {"core_hours": float(cores[of] @ run[of]) / HOUR, "gpu_hours": float(gpus[of] @ run[of]) / HOUR}
        found.append(
            {
                "partition": name,
                "jobs": int(of.sum()),
                "gpu_jobs": int((gpus[of] > 0).sum()),
                **sizes,
                **hours,
                "core_demand": _demand(hours["core_hours"], sizes["cores"], workload.span),
                "gpu_demand": _demand(hours["gpu_hours"], sizes["gpus"], workload.span),
                "largest_job_nodes": int(workload.ints("nodes")[of].max(initial=0)),
                "run_time_s": quantiles(workload.floats("run_time")[of]),
                "wait_s": quantiles(wait[of]),
            }
        )
    return found


def _demand(hours: float, capacity: int | None, span: float) -> float | None:
    return hours * HOUR / (capacity * span) if capacity and span > 0.0 else None
