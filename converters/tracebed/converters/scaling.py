"""A workload onto fewer nodes and into less time, so that it can be replayed where and when there is room.

What is done, in this order:

1. A window is cut by submit time; time 0 becomes its start. A dependency on a job outside it is dropped.
2. Sizes are mapped in proportion to the nodes (and cores) of the system: rounded to the nearest, at least 1,
   never above the target.
3. Run times are multiplied by a factor, and with them time limits and the slack up to deadlines, so that run
   time / limit stays what it was.
4. Arrivals are compressed: submit times, think times and earliest starts are multiplied by a factor.

What the log says happened (`logged_start`, `logged_end`) moves with the window. After 2, 3 or 4 it did not
happen to this workload any more, and is left out.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from tracebed.converters.log import TOO_LARGE
from tracebed.converters.workload import FloatArray, IntArray, Provenance, RowError, Step, System, Workload
from tracebed.errors import InputError, tolerate

INSTANTS = ["submit_time", "deadline", "earliest_start", "logged_start", "logged_end"]
SIZES = ["nodes", "nodes_min", "nodes_max", "nodes_pref"]


def scale(
    workload: Workload,
    nodes: int | None = None,
    cores_per_node: int | None = None,
    *,
    window: float | None = None,
    start: float | None = None,
    run_time: float | None = None,
    longest: float | None = None,
    arrivals: float | None = None,
    system: System | None = None,
) -> Workload:
    """Return a workload for a smaller machine or a shorter time; what is done, and in which order, is above.

    Args:
        workload: any workload.
        nodes: of the target machine.
        cores_per_node: of the target machine.
        window: how long to submit jobs, s.
        start: of the window, s since time 0; the first submission by default.
        run_time: factor on run times, above 0.
        longest: compress run times so that the longest takes this many s, in place of `run_time`; where it
            takes less, nothing is stretched.
        arrivals: factor on the times between submissions, above 0; 0.5 doubles the offered load.
        system: the machine the workload was made for, where its provenance does not say or is wrong.

    Raises:
        InputError: an argument is out of its range, the system's size is not known, or the window is empty.
    """
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
        raise InputError("both a run time factor and a longest run time", hint="give one of them")
    before = _told(workload, system)
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
    except RowError as error:  # of a workload that was in order before
        raise InputError(f"scaled so, {error.what}", hint="take a smaller factor") from None
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
    return after.with_step(step)


def to_load(workload: Workload, load: float) -> Workload:
    """Return the workload with its arrivals stretched or compressed so that the offered load is `load`.

    Raises:
        InputError: `load` is not above 0, or the workload has no offered load: its system's size, run times or
            sizes are not known, or all jobs are submitted at once.
    """
    if not 0 < load < np.inf:
        raise InputError(f"load {load} is out of range", hint="must be above 0")
    offered = workload.offered_load
    if not offered:
        what = (
            "the size of its system is not known"
            if workload.provenance.system.nodes is None
            else "its submissions span no time"
            if offered is None
            else "no job has a run time and nodes"
        )
        raise InputError(f"the workload has no offered load to scale: {what}")
    return scale(workload, arrivals=offered / load)


def seconds_since_start(text: str, provenance: Provenance) -> float:
    """Return an instant, as `2010-09-01` or `2010-09-01 08:30`, in s since time 0 of a workload.

    The clock is that of the workload's time zone, UTC if it has none, unless `text` names an offset.

    Raises:
        InputError: `text` is no instant, or the workload does not know when its time 0 is.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        hint = "write seconds since time 0 (7200, 2h) or a date (2010-09-01, 2010-09-01T08:30)"
        raise InputError(f"{text!r} is not an instant", hint=hint) from None
    if provenance.unix_start is None:
        raise InputError(
            f"the date of time 0 is not known, so {text!r} is no instant of this workload",
            hint="write seconds since time 0 (7200, 2h)",
        )
    if instant.tzinfo is None:
        try:
            instant = instant.replace(tzinfo=ZoneInfo(provenance.time_zone) if provenance.time_zone else UTC)
        except (KeyError, ValueError, OSError):
            raise InputError(
                f"time zone {provenance.time_zone!r} is not known here", hint=f"write {text}T00:00+00:00"
            ) from None
    return instant.timestamp() - provenance.unix_start


def map_sizes(values: IntArray, original: int, target: int) -> IntArray:
    """Return values * target / original, rounded to the nearest (half up), at least 1, at most `target`.

    0, an unknown size, stays 0.
    """
    scaled = np.clip((2 * values * target + original) // (2 * original), 1, target)
    return np.where(values > 0, scaled, 0)


def with_system(workload: Workload, system: System) -> Workload:
    """Return the workload with the size of its machine as `system` says, recorded as a step.

    Jobs of more nodes stay as they are, with a warning; what `system` leaves open stays as known.
    """
    told = _told(workload, system).provenance.system
    larger = 0 if told.nodes is None else int((workload.ints("nodes") > told.nodes).sum())
    tolerate({TOO_LARGE: larger})
    sizes = {"nodes": told.nodes, "cores_per_node": told.cores_per_node}
    return workload.with_step(Step("system", sizes, {TOO_LARGE: larger} if larger else {}), system=told)


def _told(workload: Workload, system: System | None) -> Workload:
    """Return the workload with what `system` knows put into its provenance."""
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
    """Return the jobs submitted in [start, start + window), times since `start`, and dependencies dropped."""
    submit = table["submit_time"].to_numpy()
    start = float(submit[0]) if start is None else start
    end = np.inf if window is None else start + window
    table = table[(submit >= start) & (submit < end)].reset_index(drop=True)
    if table.empty:
        raise InputError(
            f"no job is submitted from {start:,.0f} s to {end:,.0f} s",
            hint=f"the workload's submissions span {_span(submit, provenance)}",
        )
    for name in table.columns.intersection(INSTANTS):
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
    except (ValueError, OverflowError, OSError):  # beyond the year 9999: dates that are wrong help nobody
        return span
    return f"{span}, {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"


def _map_sizes(table: pd.DataFrame, system: System, nodes: int | None, cores_per_node: int | None) -> System:
    """Map the sizes in `table` in place; return the system after it."""
    if nodes is not None:
        for name in table.columns.intersection(SIZES):
            original = _known(system.nodes, "nodes")
            table[name] = map_sizes(table[name].to_numpy(), original, nodes)
    if cores_per_node is not None:
        cores = Workload(table).ints("cores_per_node")
        original = _known(system.cores_per_node, "cores per node")
        table["cores_per_node"] = map_sizes(cores, original, cores_per_node)
    return replace(system, nodes=nodes or system.nodes, cores_per_node=cores_per_node or system.cores_per_node)


def _known(size: int | None, what: str) -> int:
    if size is None:
        raise InputError(
            f"the {what} of the workload's system are not known, so sizes have no proportion",
            hint="say what system it was made for: --system NODESxCORES",
        )
    return size


def _compress_runs(table: pd.DataFrame, factor: float) -> None:
    """Multiply run times, limits and the slack up to deadlines in place."""
    for name in table.columns.intersection(["run_time", "time_limit"]):
        table[name] *= factor
    if "deadline" in table:
        table["deadline"] = table["submit_time"] + (table["deadline"] - table["submit_time"]) * factor


def _compress_arrivals(table: pd.DataFrame, factor: float) -> None:
    """Multiply submit times and what hangs on them in place; a job's slack to its deadline stays."""
    if "deadline" in table:
        table["deadline"] += table["submit_time"] * (factor - 1.0)
    for name in table.columns.intersection(["submit_time", "think_time", "earliest_start"]):
        table[name] *= factor
