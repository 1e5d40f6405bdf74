"""The cleaning steps. Each is a function of the records and its own parameters, and returns an `Effect`.

To add one, write it and add its line to `STEPS`; recipes name it from then on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracebed.converters.cleaning.anomalies import flag_bursts, flag_flurries, flag_gaps, flag_storms
from tracebed.converters.cleaning.effect import HOUR, Effect, Records, texts
from tracebed.converters.scaling import seconds_since_start
from tracebed.converters.workload import MAX_EXACT, BoolArray
from tracebed.errors import InputError
from tracebed.states import JobState
from tracebed.yaml_file import shown


def drop_copies(records: Records) -> Effect:
    """Drop records that repeat an earlier one in every column: exports that overlap.

    Tasks of an array that started and ended together may be alike, too, where the log has one number for all.
    """
    table = records.table
    suspects = np.flatnonzero(table.duplicated(["job_id", "submit_time"], keep=False))
    drop = np.zeros(len(table), bool)
    drop[suspects] = table.iloc[suspects].duplicated()
    return Effect(drop=drop, reason="repeats an earlier record in every column")


def merge_split(records: Records, gap: float = 1.0) -> Effect:
    """Join the records of one run that accounting cut in pieces, at midnight above all.

    A piece follows another of the same job and submission on as many nodes, and starts at most `gap` s after
    its end. The job runs from the first start to the last end: the seconds between the pieces count.
    """
    job = pd.factorize(records.table["job_id"])[0]
    submit, start, end = (records.floats(name) for name in ("submit_time", "logged_start", "logged_end"))
    nodes = records.floats("nodes")
    order = np.argsort(job, kind="stable")
    o_start, o_end = start[order], end[order]
    follows = np.zeros(len(order), bool)
    same = (np.diff(job[order]) == 0) & (np.diff(submit[order]) == 0) & (np.diff(nodes[order]) == 0)
    wait = o_start[1:] - o_end[:-1]
    follows[1:] = same & (wait >= 0) & (wait <= gap)
    heads = np.flatnonzero(~follows)
    tails = np.append(heads[1:], len(order)) - 1
    whole, merge = end.copy(), np.zeros(len(order), bool)
    whole[order[heads]] = o_end[tails]
    merge[order[follows]] = True
    change = np.zeros(len(order), bool)
    change[order[heads[tails > heads]]] = True
    run = np.where(change, whole - start, records.floats("run_time"))
    pieces = np.zeros(len(order), np.int64)
    pieces[order[heads]] = tails - heads + 1
    return Effect(
        merge=merge,
        change=change,
        columns={"run_time": run, "logged_end": whole} if merge.any() else {},
        reason=lambda rows: [
            f"joined from {pieces[row]} records" if pieces[row] else "joined to the record before it" for row in rows
        ],
    )


def unique_ids(records: Records) -> Effect:
    """Give the second, third, ... run of one job number (requeued, or tasks of an array) the ending -2, -3, ..."""
    ids = records.table["job_id"]
    if ids.is_unique:
        return Effect()
    job = pd.factorize(ids)[0]
    order = np.argsort(job, kind="stable")
    first = np.flatnonzero(np.diff(job[order], prepend=-1))
    nth = np.empty(len(job), np.int64)
    nth[order] = np.arange(len(job)) - np.repeat(first, np.diff(np.append(first, len(job)))) + 1
    change = nth > 1
    old = pa.array(ids, pa.large_string())
    numbers = pa.array(nth).cast(pa.large_string())
    for between in ("-", "-run"):  # the second where a job of the log has such a name already
        new = pc.if_else(pa.array(change), pc.binary_join_element_wise(old, numbers, pa.scalar(between, old.type)), old)
        if not pc.any(pc.is_in(old, new.filter(pa.array(change)))).as_py():
            break
    renamed = pd.Series(new.to_pandas(), dtype="str")
    return Effect(change=change, columns={"job_id": renamed}, reason=texts(nth, "run ", " of this job"))


def drop_partitions(records: Records, partitions: Sequence[str] = (), queues: Sequence[str] = ()) -> Effect:
    """Drop jobs of these partitions or queues: shared nodes, GPUs, transfers, ..."""
    by_partition, by_queue = records.is_in("partition", partitions), records.is_in("queue", queues)
    partition, queue = records.codes("partition"), records.codes("queue")

    def reason(rows: Any) -> list[str]:
        return [
            f"partition {partition[1][partition[0][row]]}" if by_partition[row] else f"queue {queue[1][queue[0][row]]}"
            for row in rows
        ]

    return Effect(drop=by_partition | by_queue, reason=reason)


def keep_partitions(
    records: Records, partitions: Sequence[str] = (), queues: Sequence[str] = (), largest: bool = False
) -> Effect:
    """Keep only jobs of these partitions, and of these queues; or of the partition with most node hours."""
    drop = np.zeros(len(records), bool)
    codes, labels = records.codes("partition")
    if largest:
        work = np.bincount(codes, np.nan_to_num(records.floats("run_time")) * records.floats("nodes"))
        partitions = [labels[int(np.argmax(work))]]
    for name, wanted in (("partition", partitions), ("queue", queues)):
        if wanted:
            drop |= ~records.is_in(name, wanted)
    return Effect(drop=drop, reason=lambda rows: [f"partition {labels[codes[row]]}" for row in rows])


def drop_statuses(records: Records, statuses: Sequence[str]) -> Effect:
    """Drop jobs that ended in one of these ways."""
    codes, labels = records.codes("status")
    drop = records.is_in("status", statuses)
    return Effect(drop=drop, reason=lambda rows: [f"status {labels[codes[row]]}" for row in rows])


def drop_shared(records: Records, below: float = 0.99) -> Effect:
    """Drop jobs that had only a part of their nodes, where the log tells (`extra_node_share`)."""
    share = records.floats("extra_node_share")
    return Effect(drop=share < below, reason=texts(share, "had a share of its nodes of "))


def drop_gpu(records: Records) -> Effect:
    """Drop jobs that asked for GPUs, where the log tells (`extra_gpus`)."""
    gpus = records.floats("extra_gpus")
    return Effect(drop=gpus > 0, reason=texts(gpus, "GPUs: "))


def drop_cancelled_before_start(records: Records) -> Effect:
    """Drop jobs that were withdrawn before they started: cancelled, and no start or no run time is known."""
    cancelled = records.is_in("status", [JobState.CANCELLED])
    never = np.isnan(records.floats("logged_start")) | np.isnan(records.floats("run_time"))
    return Effect(drop=cancelled & never, reason="cancelled before it started")


def drop_unfinished(records: Records) -> Effect:
    """Drop jobs without a run time: they never ran, or had not ended when the log was taken."""
    return Effect(drop=np.isnan(records.floats("run_time")), reason="no run time is known")


def drop_short(records: Records, shorter: float = 1.0) -> Effect:
    """Drop jobs that ran for less than `shorter` s: of zero time, by default."""
    run = records.floats("run_time")
    return Effect(drop=run < shorter, reason=texts(run, "ran for ", " s"))


def drop_zero_nodes(records: Records) -> Effect:
    """Drop jobs without a node: never started, or of unknown size."""
    return Effect(drop=records.floats("nodes") < 1, reason="no node")


def whole_nodes(records: Records, cores: int) -> Effect:
    """Give jobs whole nodes of `cores` cores, where the log's processors were read as something else."""
    if cores < 1:
        raise InputError(f"whole_nodes: {cores} cores", hint="at least 1")
    processors = records.floats("nodes") * records.floats("cores_per_node")
    nodes = np.ceil(processors / cores)
    per_node = np.maximum(1.0, np.ceil(processors / np.maximum(nodes, 1.0)))
    change = (nodes != records.floats("nodes")) | (per_node != records.floats("cores_per_node"))
    columns = {"nodes": nodes.astype(np.int64), "cores_per_node": per_node.astype(np.int64)}
    return Effect(change=change, columns=columns, reason=texts(processors.astype(np.int64), "processors: "))


def over_machine(records: Records, nodes: int | None = None, action: str = "clip") -> Effect:
    """Clip (or `drop`) jobs of more nodes than the machine has."""
    machine = records.provenance.system.nodes if nodes is None else nodes
    if machine is None:
        raise InputError("over_machine: the size of the machine is not known", hint="give the step its nodes")
    if machine < 1:
        raise InputError(f"over_machine: a machine of {machine} nodes", hint="at least 1")
    size = records.floats("nodes")
    over = size > machine
    if _choice("over_machine", "action", action, ("clip", "drop")) == "drop":
        return Effect(drop=over, reason=texts(size, "nodes: "))
    columns = {
        name: np.minimum(records.floats(name), machine).astype(np.int64) for name in SIZES if name in records.table
    }
    return Effect(change=over, columns=columns if over.any() else {}, reason=texts(size, "nodes were "))


def missing_limits(records: Records, factor: float = 1.25, rounding: str = "none") -> Effect:
    """Give jobs without a time limit `factor` times their run time.

    Args:
        records: all of them.
        factor: of the run time.
        rounding: `none`; `hour`: up to a full hour; `next-hour`: the same, but what is a full hour already
            becomes the next, as in the conversion behind the Kassel study.
    """
    _choice("missing_limits", "rounding", rounding, ("none", "hour", "next-hour"))
    limit, run = records.floats("time_limit"), records.floats("run_time")
    missing = np.isnan(limit) & np.isfinite(run)
    guess = factor * run
    if rounding == "hour":
        guess = np.ceil(guess / HOUR) * HOUR
    elif rounding == "next-hour":
        guess = (np.floor(guess / HOUR) + 1.0) * HOUR
    guess = np.maximum(guess, 1.0)
    limits = np.where(missing, guess, limit)
    return Effect(
        change=missing,
        columns={"time_limit": limits} if missing.any() else {},
        reason=texts(limits, "no time limit, taken as ", " s"),
    )


def over_limit(records: Records, action: str = "raise") -> Effect:
    """Treat jobs that ran longer than their limit: `raise` the limit, `clip` the run time, or `drop` them."""
    _choice("over_limit", "action", action, ("raise", "clip", "drop"))
    limit, run = records.floats("time_limit"), records.floats("run_time")
    over = run > limit
    reason = texts(run - limit, "ran over its limit by ", " s")
    if action == "drop":
        return Effect(drop=over, reason=reason)
    name, values = (
        ("time_limit", np.where(over, run, limit)) if action == "raise" else ("run_time", np.where(over, limit, run))
    )
    return Effect(change=over, columns={name: values} if over.any() else {}, reason=reason)


def window(records: Records, start: str | float | None = None, end: str | float | None = None) -> Effect:
    """Keep jobs submitted in [start, end): dates on the log's clock, or s since time 0."""
    submit = records.floats("submit_time")
    low = -np.inf if start is None else _instant(start, records)
    high = np.inf if end is None else _instant(end, records)
    return Effect(drop=(submit < low) | (submit >= high), reason="submitted outside the window")


def keep_ids(records: Records, first: int, last: int) -> Effect:
    """Keep jobs whose number is in [first, last]."""
    numbers = pd.to_numeric(records.table["job_id"].astype(object), errors="coerce").to_numpy(dtype=np.float64)
    inside: BoolArray = (numbers >= first) & (numbers <= last)
    return Effect(drop=~inside, reason="its number is outside the range")


def keep_first(records: Records, jobs: int, start: str | float | None = None) -> Effect:
    """Keep the first `jobs` jobs submitted from `start` on (a date on the log's clock, or s since time 0)."""
    submit = records.floats("submit_time")
    late = submit >= (-np.inf if start is None else _instant(start, records))
    return Effect(drop=~(late & (np.cumsum(late) <= jobs)), reason="not among the first")


SIZES = ("nodes", "nodes_min", "nodes_max", "nodes_pref")

STEPS: dict[str, Callable[..., Effect]] = {
    step.__name__: step
    for step in (
        *(drop_copies, merge_split, unique_ids, drop_partitions, keep_partitions, drop_statuses, drop_shared, drop_gpu),
        *(drop_cancelled_before_start, drop_unfinished, drop_short, drop_zero_nodes, whole_nodes, over_machine),
        *(missing_limits, over_limit, window, keep_ids, keep_first),
        *(flag_gaps, flag_bursts, flag_storms, flag_flurries),
    )
}


def checked(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters as the step `name` takes them; a single text stands for a list of it.

    Raises:
        InputError: there is no such step, it takes no such parameter, or a value is of another kind.
    """
    if name not in STEPS:
        raise InputError(f"no cleaning step {name!r}", hint=f"one of {', '.join(STEPS)}")
    taken = dict(inspect.signature(STEPS[name], eval_str=True).parameters)
    del taken["records"]
    for parameter in parameters:
        if parameter not in taken:
            raise InputError(f"step {name} takes no {parameter!r}", hint=f"it takes {', '.join(taken) or 'nothing'}")
    return {own: _fitting(value, taken[own].annotation, f"{name}.{own}") for own, value in parameters.items()}


KINDS: dict[Any, str] = {
    float: "a number from 0 on",
    int: "a whole number from 0 on",
    int | None: "a whole number from 0 on",
    bool: "true or false",
    str: "a word",
    str | float | None: "a date, or s since time 0",
    Sequence[str]: "a list of words",
}
"""What parameters of steps are annotated as, and what may be given for each."""


def _fitting(value: Any, kind: Any, parameter: str) -> Any:
    """Return a parameter's value as its annotation says; raise InputError if it is of another kind."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_EXACT
    if kind == Sequence[str]:
        items = value if isinstance(value, list | tuple) else [value]
        if all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in items):
            return [str(item) for item in items]
    elif (
        (value is None and type(None) in get_args(kind))
        or (kind is float and number and value >= 0)
        or (kind in (int, int | None) and number and value >= 0 and isinstance(value, int))
        or (kind is bool and isinstance(value, bool))
        or (kind in (str, str | float | None) and isinstance(value, str))
        or (kind == str | float | None and number)
    ):
        return value
    raise InputError(f"{parameter} {shown(value)} is not {KINDS[kind]}")


def _choice(step: str, name: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise InputError(f"{step}: {name} {value!r}", hint=f"one of {', '.join(choices)}")
    return value


def _instant(when: str | float, records: Records) -> float:
    return float(when) if isinstance(when, int | float) else seconds_since_start(str(when), records.provenance)
