"""Scaling of a workload to fewer nodes and a shorter time, for example for a replay on a small testbed.

The steps are, in this order:

1. A window is cut by submit time. Time 0 becomes the start of the window. Dependencies on jobs outside the window are
   dropped.
2. Sizes are mapped in proportion to the nodes (and cores) of the system: rounded to the nearest integer, at least 1
   and at most the target.
3. Run times, time limits and the slack up to deadlines are multiplied by the same factor, so that run time / limit
   does not change.
4. Arrivals are compressed: submit times, think times and earliest starts are multiplied by a factor.

The logged times (`logged_start`, `logged_end`) move with the window. Steps 2, 3 and 4 drop the logged times, because
they no longer apply to the scaled workload.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from tracebed.converters.log import INSTANTS, TOO_LARGE
from tracebed.converters.pooling import check_machine, with_shared_nodes
from tracebed.converters.requests import Request, format_requests, parse_requests
from tracebed.converters.workload import FloatArray, IntArray, Provenance, RowError, Step, System, Workload
from tracebed.ground.errors import InputError, tolerate

SIZES = ["nodes", "nodes_min", "nodes_max", "nodes_pref"]


def scale(
    workload: Workload,
    nodes: int | None = None,
    cores_per_node: int | None = None,
    *,
    window: float | None = None,
    start: float | str | None = None,
    run_time: float | None = None,
    longest: float | None = None,
    arrivals: float | None = None,
    load: float | None = None,
    system: System | None = None,
) -> Workload:
    """Map a workload onto a smaller machine, cut a window, and compress its times.

    Args:
        workload: the workload.
        nodes: nodes of the target machine; sizes are mapped in proportion, at least 1.
        cores_per_node: cores of each node of the target machine.
        window: duration of the window in which jobs are kept, s.
        start: start of the window, s since time 0 or a date; by default the first submission.
        run_time: factor on run times and time limits, above 0.
        longest: run time that the longest job gets, s, in place of `run_time`. Shorter run times are never stretched.
        arrivals: factor on the times between submissions, above 0; 0.5 doubles the offered load.
        load: offered load to which the arrivals are scaled in the end.
        system: the machine the workload was made for, if the workload does not know it, or knows it wrongly.

    Raises:
        InputError: a value is out of its range, a needed size is unknown, or the window is empty.

    Example:
        >>> import tracebed.api as tb
        >>> tb.scale(tb.generate("cirne", jobs=30, nodes=16), nodes=4).provenance.system.nodes
        4
    """
    if isinstance(start, str):
        start = seconds_since_start(start, workload.provenance)
    for name, value in (
        ("nodes", nodes),
        ("cores per node", cores_per_node),
        ("window", window),
        ("run time factor", run_time),
        ("longest run time", longest),
        ("arrivals factor", arrivals),
    ):
        if value is not None and not 0 < value < np.inf:
            raise InputError(f"{name} {value} is out of range", hint="must be above 0")
    if run_time is not None and longest is not None:
        raise InputError("a run time factor and a longest run time exclude each other", hint="give one of them")
    before = _with_known(workload, system)
    table, counts = before.table.copy(), {"jobs before": len(workload)}
    provenance = before.provenance
    if window is not None or start is not None:
        table, start, dropped = _cut(table, start, window, provenance)
        counts["dependencies on jobs outside the window dropped"] = dropped
        if provenance.unix_start is not None:
            provenance = replace(provenance, unix_start=provenance.unix_start + start)
    cut = Workload(table, provenance)
    target = _map_sizes(table, provenance.system, nodes, cores_per_node)
    if longest is not None:
        known = float(table["run_time"].max())
        run_time = longest / known if known > longest else 1.0
    _compress_runs(table, 1.0 if run_time is None else run_time)
    _compress_arrivals(table, 1.0 if arrivals is None else arrivals)
    if target != provenance.system or run_time not in (None, 1.0) or arrivals not in (None, 1.0):
        table = table.drop(columns=["logged_start", "logged_end"], errors="ignore")
    counts["jobs after"] = len(table)
    try:
        after = Workload(table, replace(provenance, system=target))
    except RowError as error:  # the workload was valid before
        raise InputError(f"after scaling, {error.what}", hint="use a smaller factor") from None
    parameters: dict[str, Any] = {
        "nodes": nodes,
        "cores_per_node": cores_per_node,
        "window": window,
        "start": start,
        "run_time": run_time,
        "longest": longest,
        "arrivals": arrivals,
    }
    step = Step(
        "scale",
        {
            **{name: value for name, value in parameters.items() if value is not None},
            "from_nodes": provenance.system.nodes,
            "from_cores_per_node": provenance.system.cores_per_node,
            "offered_load_before": before.offered_load,
            "offered_load_in_window": cut.offered_load,
            "offered_load_after": after.offered_load,
        },
        {name: count for name, count in counts.items() if count or name.startswith("jobs")},
    )
    scaled = after.with_step(step)
    return scaled if load is None else to_load(scaled, load)


def to_load(workload: Workload, load: float) -> Workload:
    """Scale the times between submissions such that the offered load is `load`. Raises InputError if it is unknown."""
    if not 0 < load < np.inf:
        raise InputError(f"load {load} is out of range", hint="must be above 0")
    offered = workload.offered_load
    if not offered:
        what = (
            "the size of its system is unknown"
            if workload.provenance.system.nodes is None
            else "all submit times are equal"
            if offered is None
            else "no job has a run time and nodes"
        )
        raise InputError(f"the offered load of the workload is unknown: {what}")
    return scale(workload, arrivals=offered / load)


def seconds_since_start(text: str, provenance: Provenance) -> float:
    """Convert a date such as `2010-09-01` or `2010-09-01 08:30` to s since time 0 of a workload.

    The date is in the workload's time zone, or in UTC if the time zone is unknown, unless `text` has an offset.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        hint = "write seconds since time 0 (7200, 2h) or a date (2010-09-01, 2010-09-01T08:30)"
        raise InputError(f"{text!r} is not a time", hint=hint) from None
    if provenance.unix_start is None:
        raise InputError(
            f"{text!r} cannot be converted: the date of the workload's time 0 is unknown",
            hint="write seconds since time 0 (7200, 2h)",
        )
    if instant.tzinfo is None:
        try:
            instant = instant.replace(tzinfo=ZoneInfo(provenance.time_zone) if provenance.time_zone else UTC)
        except (KeyError, ValueError, OSError):
            raise InputError(
                f"time zone {provenance.time_zone!r} is unknown", hint=f"write {text}T00:00+00:00"
            ) from None
    return instant.timestamp() - provenance.unix_start


def map_sizes(values: IntArray, original: int, target: int) -> IntArray:
    """Return values * target / original, rounded half up, from 1 to `target`; an unknown size, 0, stays 0."""
    scaled = np.clip((2 * values * target + original) // (2 * original), 1, target)
    return np.where(values > 0, scaled, 0)


def with_system(workload: Workload, system: System) -> Workload:
    """Set the known values of `system` as a step. Jobs larger than the system do not change, with a warning."""
    known = _with_known(workload, system)
    check_machine(known)
    merged = known.provenance.system
    if merged != workload.provenance.system:
        tolerate(with_shared_nodes(known))
    larger = 0 if merged.nodes is None else int((workload.ints("nodes") > merged.nodes).sum())
    tolerate({TOO_LARGE: larger})
    sizes = {"nodes": merged.nodes, "cores_per_node": merged.cores_per_node}
    return workload.with_step(Step("system", sizes, {TOO_LARGE: larger} if larger else {}), system=merged)


def _with_known(workload: Workload, system: System | None) -> Workload:
    """Replace the system in the workload's provenance by the known values of `system`."""
    if system is None:
        return workload
    known = workload.provenance.system
    return workload.with_provenance(
        system=System(
            system.nodes or known.nodes,
            system.cores_per_node or known.cores_per_node,
            system.name or known.name,
        )
    )


def _cut(
    table: pd.DataFrame, start: float | None, window: float | None, provenance: Provenance
) -> tuple[pd.DataFrame, float, int]:
    """Return the jobs submitted in [start, start + window), relative to it, `start`, and the dropped dependencies."""
    submit = table["submit_time"].to_numpy()
    start = float(submit[0]) if start is None else start
    end = np.inf if window is None else start + window
    table = table[(submit >= start) & (submit < end)].reset_index(drop=True)
    if table.empty:
        raise InputError(
            f"no job is submitted from {start:,.0f} s to {end:,.0f} s",
            hint=f"submit times are from {_span(submit, provenance)}",
        )
    for name in table.columns.intersection([*INSTANTS]):
        table[name] -= start
    dropped = 0
    if "after" in table:
        outside = (table["after"] != "") & ~table["after"].isin(table["job_id"])
        dropped = int(outside.sum())
        table["after"] = table["after"].where(~outside, "")
        if "think_time" in table:
            table["think_time"] = table["think_time"].where(~outside, np.nan)
    return table, start, dropped


def _span(submit: FloatArray, provenance: Provenance) -> str:
    span = f"{submit[0]:,.0f} s to {submit[-1]:,.0f} s"
    if provenance.unix_start is None:
        return span
    try:
        begin, end = (datetime.fromtimestamp(provenance.unix_start + t, UTC) for t in (submit[0], submit[-1]))
    except (ValueError, OverflowError, OSError):  # datetime ends with the year 9999
        return span
    return f"{span}, {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"


def _map_sizes(table: pd.DataFrame, system: System, nodes: int | None, cores_per_node: int | None) -> System:
    """Map the sizes in `table` in place and return the target system."""
    if nodes is not None:
        for name in table.columns.intersection(SIZES):
            original = _known(system.nodes, "nodes")
            table[name] = map_sizes(table[name].to_numpy(), original, nodes)
        if "requests" in table:
            asks = table["requests"].unique()
            table["requests"] = table["requests"].map({text: _map_requests(text, original, nodes) for text in asks})
    if cores_per_node is not None:
        cores = Workload(table).ints("cores_per_node")
        original = _known(system.cores_per_node, "cores per node")
        table["cores_per_node"] = map_sizes(cores, original, cores_per_node)
    grid = system.grid if nodes in (None, system.nodes) else ""  # a smaller machine has another, unknown grid
    return replace(
        system, nodes=nodes or system.nodes, cores_per_node=cores_per_node or system.cores_per_node, grid=grid
    )


def _map_requests(text: str, original: int, target: int) -> str:
    """Return the requests of an evolving job, each with its number of nodes mapped as a size."""
    requests = parse_requests(text)
    sizes = map_sizes(np.array([request.nodes for request in requests], dtype=np.int64), original, target).tolist()
    return format_requests(tuple(Request(one.share, nodes) for one, nodes in zip(requests, sizes, strict=True)))


def _known(size: int | None, what: str) -> int:
    if size is None:
        raise InputError(
            f"sizes cannot be scaled: the {what} of the workload's system are unknown",
            hint="set the original system with --system NODESxCORES",
        )
    return size


def _compress_runs(table: pd.DataFrame, factor: float) -> None:
    """Multiply run times, limits and the slack up to deadlines by `factor`, in place."""
    for name in table.columns.intersection(["run_time", "time_limit"]):
        table[name] *= factor
    if "deadline" in table:
        table["deadline"] = table["submit_time"] + (table["deadline"] - table["submit_time"]) * factor


def _compress_arrivals(table: pd.DataFrame, factor: float) -> None:
    """Multiply submit times, think times and earliest starts by `factor`, in place. Deadlines keep their slack."""
    if "deadline" in table:
        table["deadline"] += table["submit_time"] * (factor - 1.0)
    for name in table.columns.intersection(["submit_time", "think_time", "earliest_start"]):
        table[name] *= factor
