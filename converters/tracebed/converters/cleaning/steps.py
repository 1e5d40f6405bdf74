"""The cleaning steps. Each step is a function of the `Records` and its parameters, and returns an `Effect`.

A new step must be added to `STEPS`; recipes use its function name. The module `audit` applies the effects.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracebed.converters.scaling import SIZES, seconds_since_start
from tracebed.converters.workload import MAX_EXACT, BoolArray, FloatArray, IntArray, Provenance, column_of
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState

HOUR, DAY = 3600.0, 86_400.0
SHARE = "extra_node_share"
"""Share of its nodes that a job used, from 0 to 1."""
FLAG = "extra_flag"
"""Flags of a job, separated by spaces."""


@dataclass(frozen=True)
class Records:
    """Input of a step: the table, sorted by submit time and then by start, and its provenance."""

    table: pd.DataFrame
    provenance: Provenance

    def __len__(self) -> int:
        return len(self.table)

    def floats(self, name: str) -> FloatArray:
        """Return a numeric column, shape (records,). A missing column is NaN, or the default of the schema."""
        if name.startswith("extra_") and name not in self.table:
            return np.full(len(self.table), np.nan)
        return np.asarray(column_of(self.table, name), dtype=np.float64)

    def codes(self, name: str) -> tuple[Any, list[str]]:
        """Return a text column as codes, shape (records,), and their texts; of several partitions, the first counts."""
        if name not in self.table:
            return np.zeros(len(self.table), np.int64), [""]
        values = self.table[name]
        if isinstance(values.dtype, pd.CategoricalDtype):
            return values.cat.codes.to_numpy(), [str(label) for label in values.cat.categories]
        if name == "partition":
            values = values.str.partition(",")[0]
        codes, labels = pd.factorize(values)
        return codes, [str(label) for label in labels]

    def is_in(self, name: str, wanted: Sequence[str]) -> BoolArray:
        """Return which records have one of these texts in the column `name`, shape (records,)."""
        codes, labels = self.codes(name)
        chosen = [code for code, label in enumerate(labels) if label in wanted]
        return np.isin(codes, chosen)


Reason = str | Callable[[Any], Sequence[str]]
"""Reason for an effect: one text for all records, or a function from row numbers to texts."""


@dataclass(frozen=True)
class Effect:
    """Effect of a step: masks of shape (records,), where `None` means no record, and new columns."""

    drop: BoolArray | None = None
    merge: BoolArray | None = None
    """Records whose content another record takes over; they are dropped as well."""
    change: BoolArray | None = None
    flag: BoolArray | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """New columns: name -> values, shape (records,)."""
    reason: Reason = ""
    found: Sequence[str] = ()
    """Findings that do not concern a single record, such as gaps and their lengths."""


def flagged(records: Records, mask: BoolArray, name: str, drop: bool, reason: Reason, found: Sequence[str]) -> Effect:
    """Return the effect of a step that flags jobs, or drops them if `drop`."""
    if drop:
        return Effect(drop=mask, reason=reason, found=found)
    before = records.table[FLAG].astype(object) if FLAG in records.table else pd.Series("", records.table.index)
    marked = before.where(~mask, (before + f" {name}").str.strip())
    return Effect(flag=mask, columns={FLAG: marked} if mask.any() else {}, reason=reason, found=found)


def texts(values: Any, before: str, after: str = "") -> Reason:
    """Return a reason that shows the value of each record."""
    return lambda rows: [f"{before}{value}{after}" for value in np.asarray(values)[rows]]


def node_hours(table: pd.DataFrame) -> tuple[float, float]:
    """Return node hours (of shared nodes, the job's share) and hours of run time. An unknown run time counts as 0."""
    run = np.nan_to_num(np.asarray(table["run_time"], dtype=np.float64))
    nodes = np.asarray(table["nodes"], dtype=np.float64)
    if SHARE in table:
        nodes = nodes * np.nan_to_num(np.asarray(table[SHARE], dtype=np.float64), nan=1.0)
    return float(run @ nodes) / HOUR, float(run.sum()) / HOUR


def flag_gaps(records: Records, longer: float = 2 * HOUR, drop: bool = False) -> Effect:
    """Flag jobs that waited through a gap: at least `longer` s in which no job ran, as in maintenance.

    The gap, not the scheduler, caused the wait of these jobs. If the log has no start times, a gap is a period
    without submissions, and no job is flagged.
    """
    submit, start, end = (records.floats(name) for name in ("submit_time", "logged_start", "logged_end"))
    ran = np.isfinite(start) & np.isfinite(end)
    order = np.argsort(start[ran], kind="stable")
    begins, busy_until = start[ran][order], np.maximum.accumulate(end[ran][order]) if ran.any() else end[ran]
    if not ran.any():
        begins = busy_until = submit
    idle = begins[1:] - busy_until[:-1]
    gaps = np.flatnonzero(idle >= longer)
    low, high = busy_until[gaps], begins[gaps + 1]
    which = np.searchsorted(high, submit, side="left")  # the first gap that ends at or after the submission
    hit = (which < len(gaps)) & ran if len(gaps) else np.zeros(len(records), bool)
    if len(gaps):
        hit &= start >= high[np.minimum(which, len(gaps) - 1)]
    findings = [f"no job ran for {(b - a) / HOUR:.1f} h from {a:,.0f} s" for a, b in zip(low, high, strict=True)]
    return flagged(records, hit, "gap", drop, "waited while no job ran", findings)


def flag_bursts(records: Records, jobs: int = 100, within: float = 60.0, drop: bool = False) -> Effect:
    """Flag bursts: `jobs` or more jobs submitted by one user within `within` s."""
    user, _ = records.codes("user")
    crowd = _largest_groups(user, records.floats("submit_time"), within)
    return flagged(records, crowd >= jobs, "burst", drop, _reason_of_group(crowd, within), ())


def flag_storms(
    records: Records, jobs: int = 100, within: float = HOUR, shorter: float = 60.0, drop: bool = False
) -> Effect:
    """Flag test storms: `jobs` or more jobs of one user and size within `within` s, each shorter than `shorter` s."""
    user, _ = records.codes("user")
    nodes = records.floats("nodes").astype(np.int64)
    short = records.floats("run_time") < shorter
    kind = np.unique(np.stack([user, nodes]), axis=1, return_inverse=True)[1].reshape(-1)
    crowd = np.zeros(len(records), np.int64)
    crowd[short] = _largest_groups(kind[short], records.floats("submit_time")[short], within)
    return flagged(records, crowd >= jobs, "storm", drop, _reason_of_group(crowd, within), ())


def flag_flurries(
    records: Records, times: float = 10.0, jobs: int = 1000, within: float = DAY, drop: bool = False
) -> Effect:
    """Flag flurries (Feitelson and Tsafrir 2006): jobs of one user that dominate the log for some time.

    The log is divided into intervals of `within` s. A user has a flurry in an interval with at least `jobs` jobs of
    that user, if these are also more than `times` the median number of jobs of all users per interval. The paper
    identifies flurries by eye; these thresholds are a choice of tracebed.
    """
    if within < 1.0:
        raise InputError(f"flag_flurries: within is {within:g} s, below 1 s", hint="use at least 1")
    user, names = records.codes("user")
    stretch = (records.floats("submit_time") // within).astype(np.int64)
    usual = _median_count(stretch)
    pairs, place, count = np.unique(np.stack([stretch, user]), axis=1, return_inverse=True, return_counts=True)
    many = (count >= jobs) & (count > times * usual)
    findings = [
        f"{names[pairs[1, i]] or 'one user'}: {count[i]:,} jobs within {within:g} s from {pairs[0, i] * within:,.0f} s"
        for i in np.flatnonzero(many)
    ]
    return flagged(records, many[place.reshape(-1)], "flurry", drop, "jobs of one user dominate the log", findings)


def _median_count(places: IntArray) -> float:
    """Return the median number of occurrences in `places` of each number from its minimum to its maximum."""
    counts = np.sort(np.unique(places, return_counts=True)[1])
    absent = int(places.max() - places.min()) + 1 - len(counts)
    middle = [(absent + len(counts) - 1) // 2, (absent + len(counts)) // 2]
    return float(np.mean([counts[place - absent] if place >= absent else 0 for place in middle]))


def _largest_groups(groups: IntArray, times: FloatArray, within: float) -> IntArray:
    """Return for each job the largest number of jobs of its group in any interval of `within` s that contains it.

    It suffices to consider the intervals that begin at a job. The result for a job is the maximum count of the
    intervals that begin at this job or less than `within` s before it.
    """
    order = np.lexsort((times, groups))
    g, t = np.asarray(groups)[order], times[order]
    crowd = np.zeros(len(t), np.int64)
    edges = np.append(np.flatnonzero(np.diff(g, prepend=-2)), len(g))
    for low, high in pairwise(edges):
        own = t[low:high]
        last = np.searchsorted(own, own + within, side="right")
        first = np.searchsorted(own, own - within, side="left")
        crowd[low:high] = _highest(last - np.arange(len(own)), first)
    result = np.empty(len(t), np.int64)
    result[order] = crowd
    return result


def _highest(counts: IntArray, first: IntArray) -> IntArray:
    """Return max(counts[first[i]:i + 1]) for each i with a sparse table (range maximum query). `first` ascends."""
    table = [counts]
    width = 1
    while 2 * width <= len(counts):
        previous = table[-1]
        table.append(np.maximum(previous[:-width], previous[width:]))
        width *= 2
    place = np.arange(len(counts))
    level = np.log2(place - first + 1).astype(np.int64)
    result = np.empty(len(counts), np.int64)
    for power in np.unique(level):
        at = level == power
        result[at] = np.maximum(table[power][first[at]], table[power][place[at] - 2**power + 1])
    return result


def _reason_of_group(crowd: IntArray, within: float) -> Any:
    return lambda rows: [f"{crowd[row]:,} jobs of one user within {within:g} s" for row in rows]


def drop_copies(records: Records) -> Effect:
    """Drop records that repeat an earlier record in every column, as in overlapping exports.

    If the log has one number for all tasks of an array, tasks with equal times may be dropped as well.
    """
    table = records.table
    suspects = np.flatnonzero(table.duplicated(["job_id", "submit_time"], keep=False))
    drop = np.zeros(len(table), bool)
    drop[suspects] = table.iloc[suspects].duplicated()
    return Effect(drop=drop, reason="repeats an earlier record in every column")


def merge_split(records: Records, gap: float = 1.0, count_gaps: bool = True) -> Effect:
    """Merge the records of one run that accounting split, usually at midnight.

    A record continues another one if both have the same job, submit time and number of nodes, and it starts at most
    `gap` s after the end of the other. The job runs from the first start to the last end, including the gaps; without
    `count_gaps`, its run time is the sum of those of its records.
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
    run = records.floats("run_time")
    if count_gaps:
        run = np.where(change, whole - start, run)
    elif len(order):
        run = run.copy()
        run[order[heads]] = np.add.reduceat(run[order], heads)
    pieces = np.zeros(len(order), np.int64)
    pieces[order[heads]] = tails - heads + 1
    return Effect(
        merge=merge,
        change=change,
        columns={"run_time": run, "logged_end": whole} if merge.any() else {},
        reason=lambda rows: [
            f"merged from {pieces[row]} records" if pieces[row] else "merged into the record before it" for row in rows
        ],
    )


def unique_ids(records: Records) -> Effect:
    """Append -2, -3, ... to the id of the second, third, ... run of one job id (requeued jobs, tasks of an array)."""
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
    for between in ("-", "-run"):  # -run2 if the log has a job with the id ...-2
        new = pc.if_else(pa.array(change), pc.binary_join_element_wise(old, numbers, pa.scalar(between, old.type)), old)
        if not pc.any(pc.is_in(old, new.filter(pa.array(change)))).as_py():
            break
    renamed = pd.Series(new.to_pandas(), dtype="str")
    columns: dict[str, Any] = {"job_id": renamed}
    if "dependency" in records.table:
        last = dict(zip(ids[change], renamed[change], strict=True))  # a later run comes later in the table
        columns["dependency"] = _on_last_runs(records.table["dependency"], last)
    return Effect(change=change, columns=columns, reason=texts(nth, "run ", " of this job"))


def _on_last_runs(dependency: pd.Series[Any], last: Mapping[str, str]) -> pd.Series[str]:
    """Return dependencies on the last runs of requeued jobs, given job -> its last run."""
    number = re.compile(r"(?<=:)\d+(?:_\d+)?")
    known = {text: number.sub(lambda job: last.get(job[0], job[0]), text) for text in map(str, dependency.unique())}
    return dependency.astype(object).map(known).astype("str")


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
    """Keep only jobs of these partitions and queues. `largest`: only the partition with the most node hours."""
    drop = np.zeros(len(records), bool)
    codes, labels = records.codes("partition")
    if largest:
        work = np.bincount(codes, np.nan_to_num(records.floats("run_time")) * records.floats("nodes"))
        partitions = [labels[int(np.argmax(work))]]
    for name, wanted in (("partition", partitions), ("queue", queues)):
        if wanted:
            names = records.codes(name)[1]
            if missing := [one for one in wanted if one not in names]:
                shown = ", ".join(label[:40] for label in names[:20] if label)
                raise InputError(f"keep_partitions: no job has the {name} {missing[0]!r}", hint=f"one of {shown}")
            drop |= ~records.is_in(name, wanted)
    return Effect(drop=drop, reason=lambda rows: [f"partition {labels[codes[row]]}" for row in rows])


def drop_statuses(records: Records, statuses: Sequence[str]) -> Effect:
    """Drop jobs with one of these final states (completed, failed, cancelled, ...)."""
    codes, labels = records.codes("status")
    drop = records.is_in("status", statuses)
    return Effect(drop=drop, reason=lambda rows: [f"status {labels[codes[row]]}" for row in rows])


def drop_shared(records: Records, below: float = 0.99) -> Effect:
    """Drop jobs that used less than the share `below` of their nodes (`extra_node_share`, if the log has it)."""
    share = records.floats("extra_node_share")
    return Effect(drop=share < below, reason=texts(share, "used a share of its nodes of "))


def drop_gpu(records: Records) -> Effect:
    """Drop jobs that requested GPUs (`extra_gpus`, if the log has it)."""
    gpus = records.floats("extra_gpus")
    return Effect(drop=gpus > 0, reason=texts(gpus, "GPUs: "))


def drop_cancelled_before_start(records: Records) -> Effect:
    """Drop jobs that were cancelled before they started: their start or run time is missing."""
    cancelled = records.is_in("status", [JobState.CANCELLED])
    never = np.isnan(records.floats("logged_start")) | np.isnan(records.floats("run_time"))
    return Effect(drop=cancelled & never, reason="cancelled before it started")


def drop_unfinished(records: Records) -> Effect:
    """Drop jobs without a run time: they never ran, or had not ended when the log was exported."""
    return Effect(drop=np.isnan(records.floats("run_time")), reason="run time unknown")


def drop_short(records: Records, shorter: float = 1.0) -> Effect:
    """Drop jobs that ran for less than `shorter` s."""
    run = records.floats("run_time")
    return Effect(drop=run < shorter, reason=texts(run, "ran for ", " s"))


def drop_zero_nodes(records: Records) -> Effect:
    """Drop jobs with 0 nodes: never started, or size unknown."""
    return Effect(drop=records.floats("nodes") < 1, reason="0 nodes")


def whole_nodes(records: Records, cores: int) -> Effect:
    """Convert the processors of each job to whole nodes of `cores` cores."""
    if cores < 1:
        raise InputError(f"whole_nodes: cores is {cores}, below 1", hint="use at least 1")
    processors = records.floats("nodes") * records.floats("cores_per_node")
    nodes = np.ceil(processors / cores)
    per_node = np.maximum(1.0, np.ceil(processors / np.maximum(nodes, 1.0)))
    change = (nodes != records.floats("nodes")) | (per_node != records.floats("cores_per_node"))
    columns = {"nodes": nodes.astype(np.int64), "cores_per_node": per_node.astype(np.int64)}
    return Effect(change=change, columns=columns, reason=texts(processors.astype(np.int64), "processors: "))


def over_machine(records: Records, nodes: int | None = None, action: str = "clip") -> Effect:
    """Clip or drop (`action`) jobs with more nodes than the machine."""
    machine = records.provenance.system.nodes if nodes is None else nodes
    if machine is None:
        raise InputError("over_machine: the size of the machine is unknown", hint="set the parameter nodes")
    if machine < 1:
        raise InputError(f"over_machine: nodes is {machine}, below 1", hint="use at least 1")
    size = records.floats("nodes")
    over = size > machine
    if _choice("over_machine", "action", action, ("clip", "drop")) == "drop":
        return Effect(drop=over, reason=texts(size, "nodes: "))
    columns = {
        name: np.minimum(records.floats(name), machine).astype(np.int64) for name in SIZES if name in records.table
    }
    return Effect(change=over, columns=columns if over.any() else {}, reason=texts(size, "nodes were "))


def missing_limits(records: Records, factor: float = 1.25, rounding: str = "none") -> Effect:
    """Set a missing time limit to `factor` times the run time.

    Args:
        factor: time limit divided by run time.
        rounding: `none`; `hour`: up to a full hour; `next-hour`: up to the next full hour, also from a full hour,
            as in the published generator of the authors of the Kassel study (csv_to_jobs.py); the paper does not round.
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
        reason=texts(limits, "time limit missing, set to ", " s"),
    )


def over_limit(records: Records, action: str = "raise") -> Effect:
    """Handle jobs that ran longer than their limit: `raise` the limit, `clip` the run time, or `drop` the job."""
    _choice("over_limit", "action", action, ("raise", "clip", "drop"))
    limit, run = records.floats("time_limit"), records.floats("run_time")
    over = run > limit
    reason = texts(run - limit, "exceeded its time limit by ", " s")
    if action == "drop":
        return Effect(drop=over, reason=reason)
    name, values = (
        ("time_limit", np.where(over, run, limit)) if action == "raise" else ("run_time", np.where(over, limit, run))
    )
    return Effect(change=over, columns={name: values} if over.any() else {}, reason=reason)


def window(records: Records, start: str | float | None = None, end: str | float | None = None) -> Effect:
    """Keep jobs submitted in [start, end): dates in the time zone of the log, or s since time 0."""
    submit = records.floats("submit_time")
    low = -np.inf if start is None else _instant(start, records)
    high = np.inf if end is None else _instant(end, records)
    return Effect(drop=(submit < low) | (submit >= high), reason="submitted outside the window")


def keep_ids(records: Records, first: int, last: int) -> Effect:
    """Keep jobs with a number in [first, last]."""
    numbers = pd.to_numeric(records.table["job_id"].astype(object), errors="coerce").to_numpy(dtype=np.float64)
    inside: BoolArray = (numbers >= first) & (numbers <= last)
    return Effect(drop=~inside, reason="job number outside the range")


def keep_first(records: Records, jobs: int, start: str | float | None = None) -> Effect:
    """Keep the first `jobs` jobs submitted at or after `start` (a date in the log's time zone, or s since time 0)."""
    submit = records.floats("submit_time")
    late = submit >= (-np.inf if start is None else _instant(start, records))
    return Effect(drop=~(late & (np.cumsum(late) <= jobs)), reason="not among the first")


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
    """Return the checked parameters of the step `name`. A single text is accepted for a list of texts."""
    if name not in STEPS:
        raise InputError(f"unknown cleaning step {name!r}", hint=f"one of {', '.join(STEPS)}")
    taken = dict(inspect.signature(STEPS[name], eval_str=True).parameters)
    del taken["records"]
    for parameter in parameters:
        if parameter not in taken:
            hint = f"parameters: {', '.join(taken) or 'none'}"
            raise InputError(f"step {name} has no parameter {parameter!r}", hint=hint)
    return {own: _fitting(value, taken[own].annotation, f"{name}.{own}") for own, value in parameters.items()}


KINDS: dict[Any, str] = {
    float: "a number >= 0",
    int: "a whole number >= 0",
    int | None: "a whole number >= 0",
    bool: "true or false",
    str: "a string",
    str | float | None: "a date, or s since time 0",
    Sequence[str]: "a list of strings",
}
"""Annotation of a parameter -> description of its valid values."""


def _fitting(value: Any, kind: Any, parameter: str) -> Any:
    """Return the value of a parameter as the type `kind`. Raise InputError if it has another type."""
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
    from tracebed.ground.yaml_file import abbreviated  # imports pydantic, which is slow

    raise InputError(f"{parameter} {abbreviated(value)} is not {KINDS[kind]}")


def _choice(step: str, name: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise InputError(f"{step}: invalid {name} {value!r}", hint=f"one of {', '.join(choices)}")
    return value


def _instant(when: str | float, records: Records) -> float:
    return float(when) if isinstance(when, int | float) else seconds_since_start(str(when), records.provenance)
