"""Jobs by user, account, partition, class of nodes and requested size, with node hours, waits and slowdowns of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.display import counted
from tracebed.ground.ranges import as_ranges
from tracebed.ground.registry import one_of
from tracebed.ground.table import BLOCK, codes_of
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.validation.metrics.measured import MeasuredRun, Undefined, last_instant
from tracebed.validation.statistics import mean, percentile

if TYPE_CHECKING:
    import pandas as pd

SIZES = 2 ** np.arange(62)  # largest size of each class of sizes, nodes
COLUMNS = {"user": "user", "account": "group", "partition": "partition"}
"""Classification by name -> the column of the table of jobs from which it is made."""
PLURALS = {**{by: f"{by}s" for by in COLUMNS}, "class": "classes of nodes"}
"""Classification by name -> the classes in words."""
BY = (*PLURALS, "size")
"""The classifications."""
MOST = 20  # largest number of users, accounts, partitions or classes with a row of their own: names may be private
RANGES = 3  # largest number of ranges of nodes in the name of a class of nodes
UNKNOWN = "unknown"
USERS = 8  # number of users, accounts, partitions or classes of nodes with a row of their own: those with the most jobs


def numbered(classes: IntArray, label: Callable[[int], str]) -> tuple[IntArray, list[str]]:
    """Return the class of each job as an index, and the labels of the classes in ascending order."""
    numbers, codes = np.unique(classes, return_inverse=True)
    return codes, [label(int(number)) for number in numbers]


def size_label(number: int) -> str:
    """Return the name of a class of sizes; -1: unknown."""
    high = 2**number if number >= 0 else 0
    return (f"{high}" if high <= 2 else f"{high // 2 + 1:,} to {high:,}") if high else UNKNOWN


def by_size(nodes: IntArray) -> tuple[IntArray, list[str]]:
    """Return the class of sizes of each job (by powers of two) as an index, and the labels in ascending order."""
    return numbered(np.where(nodes > 0, np.searchsorted(SIZES, nodes, side="left"), -1), size_label)


def most_frequent(names: pd.Series[str]) -> tuple[IntArray, list[str]]:
    """Return the class of each job and the labels: the names with the most jobs, then the others."""
    import pandas as pd

    largest = names.value_counts().index[:USERS]
    codes = largest.get_indexer(pd.Index(names))
    labels = [name or "unknown" for name in largest]
    if (codes < 0).any():
        codes, labels = np.where(codes < 0, len(labels), codes), [*labels, "others"]
    return codes, labels


def names_of(run: Run, by: str) -> tuple[IntArray, list[str]]:
    """Return the class of each job by user, account, partition or class of nodes as an index, and the names.

    An empty name: unknown. Of several partitions (cpu,gpu), the first counts. A job without one is in the default
    partition of the machine of the run.

    Raises:
        Undefined: the classes of all jobs are unknown.
    """
    codes, names = _by_nodes(run) if by == "class" else codes_of(run.table("jobs").raw(COLUMNS[by]))
    if by == "partition":
        default = _default_partition(run.info)
        firsts = [name.partition(",")[0] or default for name in names]
        number = {first: index for index, first in enumerate(dict.fromkeys(firsts))}
        codes, names = np.array([number[first] for first in firsts], dtype=np.int64)[codes], [*number]
    if not any(names):
        raise Undefined(f"the {PLURALS[by]} of the jobs are unknown")
    return codes, names


def _default_partition(info: RunInfo) -> str:
    """Return the partition of jobs that name none; empty: the machine has no partitions."""
    partitions = info.machine.partitions if info.machine else ()
    return next((each.name for each in (*filter(lambda each: each.default, partitions), *partitions)), "")


def _by_nodes(run: Run) -> tuple[IntArray, list[str]]:
    """Return the class of most of the nodes that each job held at any time, the first such class, and the names."""
    for fact in ("nodes", "allocations"):
        if reason := run.info.unknown.get(fact):
            raise Undefined(reason)
    class_of, names = node_classes(run.info)
    up_to = [np.append(0, np.cumsum(class_of == number)) for number in range(len(names))]
    jobs, held = run.table("jobs"), run.table("allocations").without("start", "end", "cores", "cpus")
    codes = np.full(len(jobs), len(names))
    for begin in range(0, len(jobs), BLOCK):  # in blocks of jobs, which bounds the memory
        own = codes[begin : begin + BLOCK]
        most = np.zeros(len(own), dtype=np.int64)
        ranks = (block.rows_in("job_id", jobs) - begin for block in held.blocks())
        rows = held.take(np.concatenate([(rank >= 0) & (rank < len(own)) for rank in ranks]))
        job = rows.rows_in("job_id", jobs) - begin
        order = np.argsort(job * len(class_of) + rows["node"], kind="stable")
        job, first = job[order], rows["node"][order]
        last = first + rows["count"][order]
        # A job whose cores or nodes changed has some nodes in several rows. They count once: a row counts from the last
        # node of the previous rows of the job on.
        base = job * (len(class_of) + 1)
        reached = np.append(0, np.maximum.accumulate(base + last)[:-1])
        first = np.clip(reached - base, first, last)
        for number, before in enumerate(up_to):
            nodes = np.bincount(job, weights=before[last] - before[first], minlength=len(own)).astype(np.int64)
            own[nodes > most] = number
            most = np.maximum(nodes, most)
    return codes, [*names, ""]


def node_classes(info: RunInfo) -> tuple[IntArray, list[str]]:
    """Return the class of each node of a run as an index, and the names of the classes: those of their nodes.

    The classes are those of the machine, or nodes of equal cores and sockets if the run records no machine. Classes
    that differ only in the names of their nodes are one.
    """
    kinds: list[object] = []
    if info.machine is None:
        kinds += [node[1:] for node in info.nodes]
    else:
        for alike in info.machine.classes:
            # `names` and `count` are how a class lists its nodes, not what the nodes have.
            kinds += [repr(replace(alike, names=(), count=1))] * alike.size
    number = {kind: index for index, kind in enumerate(dict.fromkeys(kinds))}
    nodes: list[list[str]] = [[] for _ in number]
    for node, kind in zip(info.nodes, kinds, strict=True):
        nodes[number[kind]].append(node.name)
    return np.array([number[kind] for kind in kinds], dtype=np.int64), [*map(_nodes_text, nodes)]


def _nodes_text(names: Sequence[str]) -> str:
    """Return the names of some nodes as ranges, of many ranges the first ones and the number of nodes."""
    ranges = as_ranges(names).split(",")
    if len(ranges) <= RANGES:
        return ",".join(ranges)
    return f"{','.join(ranges[: RANGES - 1])},... ({len(names):,} nodes)"


def metrics_by(run: MeasuredRun, by: str, most: int | None = MOST) -> pd.DataFrame:
    """Return the figures of the jobs by class.

    Args:
        run: the measured run. Jobs that it excludes are in no class.
        by: one of `BY`: `user`, `account`, `partition`, `class` (of nodes) or `size` (requested nodes, by powers of
            two).
        most: number of names with a row of their own: those with the most node hours. None: all

    Returns:
        A row per class: sizes in ascending order, others by node hours, the most first. Columns:

        - `class`: the name; `unknown` for jobs without one; in the last row, `37 others` for the 37 beyond `most`
        - `classes`: the number of classes in the row
        - `jobs`: the number of jobs, finished or not
        - `node_hours`: what the jobs held; a node counts by the share of its cores. Requested nodes x run time if the
          run does not record allocations
        - `mean_wait_s`, `median_wait_s`, `mean_bounded_slowdown`: over the finished jobs; NaN: no job finished

    Raises:
        InputError: there is no such classification.
        Undefined: the users, accounts, partitions or nodes of all jobs are unknown.
    """
    import pandas as pd

    one_of("classification", by, BY)
    hours = node_hours(run)[run.rows]
    codes, labels, pooled = _classes(run, by, hours, most)
    count = np.bincount(codes, minlength=len(labels))
    jobs_of = np.split(np.argsort(codes, kind="stable"), np.cumsum(count)[:-1]) if labels else []
    waits, slowdowns = run.jobs["wait"], run.jobs["bounded_slowdown"]
    return pd.DataFrame(
        {
            "class": pd.Series(labels, dtype="str"),
            "classes": np.array([1] * (len(labels) - bool(pooled)) + [pooled] * bool(pooled), dtype=np.int64),
            "jobs": count,
            "node_hours": np.bincount(codes, weights=hours, minlength=len(labels)),
            "mean_wait_s": [mean(waits[jobs]) for jobs in jobs_of],
            "median_wait_s": [percentile(waits[jobs], 50) for jobs in jobs_of],
            "mean_bounded_slowdown": [mean(slowdowns[jobs]) for jobs in jobs_of],
        }
    )


def _classes(run: MeasuredRun, by: str, hours: FloatArray, most: int | None) -> tuple[IntArray, list[str], int]:
    """Return the row of each job, the labels of the rows, and the number of classes that share the last row."""
    if by == "size":
        return *by_size(run.jobs["nodes"]), 0
    codes, names = names_of(run.run, by)
    codes, labels = codes[run.rows], [name or UNKNOWN for name in names]
    held = np.bincount(codes, weights=hours, minlength=len(names))
    present = np.unique(codes).tolist()  # a warm-up may exclude all jobs of a user
    ranked = sorted(present, key=lambda code: (-held[code], labels[code]))
    pooled = 0 if most is None else max(0, len(ranked) - most)
    own = ranked[: len(ranked) - pooled]
    row = np.full(len(names), len(own), dtype=np.int64)
    row[own] = np.arange(len(own))
    shown = [labels[code] for code in own]
    return row[codes], [*shown, counted(pooled, "other")] if pooled else shown, pooled


def node_hours(run: MeasuredRun) -> FloatArray:
    """Return the node hours that each job of the run held, shape (jobs,). A node counts by the share of its cores."""
    jobs, held = run.run.table("jobs"), run.run.table("allocations")
    if not len(held) or not run.cores:
        hours: FloatArray = np.nan_to_num(jobs["nodes"] * (jobs["end"] - jobs["start"])) / 3600.0
        return hours
    # The sum of 1 / cores up to each node gives that over a range of nodes, whose cores may differ, in one step.
    shares = np.cumsum([0.0] + [1.0 / max(node.cores, 1) for node in run.run.info.nodes])
    total, latest = np.zeros(len(jobs)), last_instant(run.run)
    for block in held.blocks():
        first, start, end = block["node"], block["start"], block["end"]
        end = np.where(np.isfinite(end), end, latest)
        seconds = (shares[first + block["count"]] - shares[first]) * block["cores"] * (end - start)
        np.add.at(total, block.rows_in("job_id", jobs), seconds)
    return total / 3600.0
