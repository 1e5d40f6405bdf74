"""Statistics of a workload, for the tables of `tracebed describe` and for `pictures` (docs/reference/describe.md).

All statistics are array operations, so that 11 million jobs take seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np

from tracebed.converters.formats.tools.gres import gres_items
from tracebed.converters.workload import SCHEMA, FloatArray, IntArray, Workload, steps_of
from tracebed.ground.errors import tolerate
from tracebed.ground.table import codes_of, counts_of

if TYPE_CHECKING:
    import pandas as pd


QUANTILES = {"min": 0.0, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}
SHARES = {"50": 0.5, "90": 0.9, "99": 0.99}
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
HOUR, DAY = 3600.0, 86_400.0
LOADS = ("before", "in_window", "after")
"""Offered loads that a scaling step records."""
OCCUPATION_BINS = 1000
LOAD_BINS, JOBS_PER_BIN = 96, 4
POINTS_PER_DECADE = 48
MOST = 0.95
"""Share of the node hours to draw if the rest spans a longer time."""
MOST_SIZES = 500
"""Largest number of distinct sizes in a cumulative distribution. More sizes are thinned out."""
MIN_PLOTTED, MAX_PLOTTED = 1e-3, 1e12
"""Range of run times (s) on a logarithmic axis. Run times beyond it are clipped."""
WHOLE = 0.99
"""Smallest share of its nodes with which a job counts as using whole nodes."""
LAST_INSTANT = 9.18e9
"""End of 2260, s since 1970. The 64-bit nanoseconds of pandas end soon after it."""


def describe(workload: Workload) -> dict[str, Any]:
    """Return the statistics of a workload in JSON types; `pictures.plot` draws them.

    Times are in s. Unknown statistics are None. Dates and arrivals by weekday need `unix_start`; without it, the hours
    of the day are the hours since time 0, modulo a day. The occupation needs logged times.
    """
    provenance, submit = workload.provenance, workload.floats("submit_time")
    run, limit = workload.floats("run_time"), workload.floats("time_limit")
    nodes, work = workload.ints("nodes"), workload.work
    with np.errstate(divide="ignore", invalid="ignore"):
        accuracy = run / limit
    clock = local_clock(workload)
    by_hour, by_weekday = arrivals(submit, clock)
    edges, load = load_over_time(workload)
    return {
        "jobs": len(workload),
        "system": asdict(provenance.system),
        "time_zone": provenance.time_zone,
        "clock": None if clock is None else {"unix_start": provenance.unix_start, "zone": str(clock.tz)},
        "first_submit": None if clock is None else clock[0].isoformat(),
        "last_submit": None if clock is None else clock[-1].isoformat(),
        "first_submit_s": float(submit[0]),
        "last_submit_s": float(submit[-1]),
        "span_s": float(submit[-1] - submit[0]),
        "offered_load": workload.offered_load,
        "offered_load_steps": [
            {name: step.parameters[f"offered_load_{name}"] for name in LOADS}
            for step in provenance.steps
            if all(isinstance(step.parameters.get(f"offered_load_{name}", ""), int | float | None) for name in LOADS)
        ],
        "node_hours": float(work.sum() / HOUR),
        "nodes": quantiles(nodes[nodes > 0]),
        "cores_per_node": quantiles(workload.ints("cores_per_node")),
        "run_time_s": quantiles(run),
        "time_limit_s": quantiles(limit),
        "accuracy": quantiles(accuracy),
        "interarrival_s": quantiles(np.diff(submit)),
        "nodes_histogram": [{"from": low, "to": high, "jobs": jobs} for low, high, jobs in size_histogram(nodes)],
        "run_time_histogram": [
            {"from_s": low, "to_s": high, "jobs": jobs} for low, high, jobs in run_time_histogram(run)
        ],
        "arrivals_by_hour": by_hour.tolist(),
        "arrivals_by_weekday": None
        if by_weekday is None
        else dict(zip(WEEKDAYS, by_weekday.sum(axis=1).tolist(), strict=True)),
        "arrivals_by_weekday_and_hour": None if by_weekday is None else by_weekday.tolist(),
        "kinds": _counts(workload, "kind"),
        "statuses": _counts(workload, "status"),
        "partitions": partitions_of(workload),
        "gpu_jobs": gpu_jobs(workload),
        "jobs_on_parts_of_nodes": part_jobs(workload),
        "unknown": {
            "run_time": int(np.isnan(run).sum()),
            "time_limit": int(np.isnan(limit).sum()),
            "nodes": int((nodes == 0).sum()),
            "logged_times": int((~_logged(workload)).sum()),
        },
        "occupation": _occupation_facts(workload),
        "cumulative": {
            "nodes": cumulative(nodes.astype(np.float64), work, known=nodes > 0, points=_points_of_sizes(nodes)),
            "run_time_s": cumulative(run, work, known=np.isfinite(run), points=_points_of_times(run)),
            "time_limit_s": cumulative(limit, work, known=np.isfinite(limit), points=_points_of_times(limit)),
        },
        "offered_load_over_time": {"edges_s": edges.tolist(), "load": load.tolist()},
        "sources": [asdict(source) for source in provenance.sources],
        "steps": steps_of(asdict(provenance)),
    }


def partitions_of(workload: Workload) -> dict[str, int]:
    """Return the number of jobs of each partition, most jobs first; empty if the workload names no partition."""
    counts: dict[str, int] = {}
    for text, jobs in counts_of(workload.arrow("partition")).items():
        name = text.partition(",")[0]
        counts[name] = counts.get(name, 0) + jobs
    return {name: counts[name] for name in sorted(counts, key=lambda name: -counts[name]) if name}


def gpu_jobs(workload: Workload) -> int:
    """Return the number of jobs with GPUs."""
    return int((gpus_of(workload) > 0).sum())


def part_jobs(workload: Workload) -> int:
    """Return the number of jobs that used a part of the cores of their nodes, as far as it is known.

    A node of an unknown machine has as many cores as the jobs with the most cores on a node.
    """
    used = workload.ints("cores_per_node")
    part = used < (workload.provenance.system.cores_per_node or used.max(initial=0))
    if "extra_node_share" in workload.columns:
        part = part | (workload.columns["extra_node_share"] < WHOLE)
    return int((part & (workload.ints("nodes") > 0)).sum())


def cores_used(workload: Workload) -> IntArray:
    """Return the cores of each job on a node, shape (jobs,): its share of the node, if it has one, rounded up."""
    cores = workload.ints("cores_per_node")
    if "extra_node_share" not in workload.columns:
        return cores
    share = workload.floats("extra_node_share")
    part = np.ceil(np.nan_to_num(share) * cores - 1e-9)
    return np.maximum(np.where(np.isfinite(share), part, cores), 1).astype(np.int64)


def quantiles(values: FloatArray | IntArray) -> dict[str, float | None]:
    """Return the mean and `QUANTILES` of the finite values, or None if there are no finite values."""
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return dict.fromkeys([*QUANTILES, "mean"])
    values_at = np.quantile(finite, list(QUANTILES.values()))
    return {**dict(zip(QUANTILES, values_at.tolist(), strict=True)), "mean": float(finite.mean())}


def size_histogram(nodes: IntArray) -> list[tuple[int, int, int]]:
    """Return (from, to, jobs) for the sizes 1, 2, 3 to 4, 5 to 8, ... Each bin ends at a power of two."""
    known = nodes[nodes > 0]
    counts = np.bincount(np.ceil(np.log2(known)).astype(np.int64)).tolist() if len(known) else []
    return [(2**i // 2 + 1 if i else 1, 2**i, count) for i, count in enumerate(counts)]


def run_time_histogram(run: FloatArray) -> list[tuple[float, float | None, int]]:
    """Return (from, to, jobs) for run times up to 1 s, 10 s, 1 min, 10 min, 1 h, 6 h, 1 day, and longer ones."""
    edges = [0.0, 1.0, 10.0, 60.0, 600.0, HOUR, 6 * HOUR, DAY, np.inf]
    counts = np.histogram(run[np.isfinite(run)], edges)[0].tolist()
    last = max((i for i, count in enumerate(counts) if count), default=-1)
    return [(edges[i], None if edges[i + 1] == np.inf else edges[i + 1], counts[i]) for i in range(last + 1)]


def cumulative(values: FloatArray, work: FloatArray, *, known: Any, points: FloatArray) -> dict[str, Any] | None:
    """Return the shares of the jobs and of their node hours with at most each of `points`.

    `values`, the node seconds `work` and the mask `known` have shape (jobs,); `points` ascend. The result has `at_most`
    (`points`), `jobs` and `node_hours` (the shares at each point), and `jobs_within` and `node_hours_within` (the
    smallest values that cover each of `SHARES`). It is None if no job has a known value; its node hours are, if their
    sum is 0.
    """
    order = np.argsort(values[known])
    if not len(order):
        return None
    ordered, hours = values[known][order], np.cumsum(work[known][order])
    below = np.searchsorted(ordered, points, side="right")
    wanted = np.array(list(SHARES.values()))
    jobs_at = np.ceil(wanted * len(ordered)).astype(np.int64) - 1
    facts = {
        "at_most": points.tolist(),
        "jobs": (below / len(ordered)).tolist(),
        "jobs_within": dict(zip(SHARES, ordered[jobs_at].tolist(), strict=True)),
        "node_hours": None,
        "node_hours_within": None,
    }
    if hours[-1] > 0.0:
        hours_at = np.searchsorted(hours, wanted * hours[-1])
        facts["node_hours"] = (np.concatenate(([0.0], hours))[below] / hours[-1]).tolist()
        facts["node_hours_within"] = dict(zip(SHARES, ordered[hours_at].tolist(), strict=True))
    return facts


def _points_of_sizes(nodes: IntArray) -> FloatArray:
    """Return all sizes that occur, or `MOST_SIZES` of them, evenly spaced on a logarithmic axis."""
    sizes = np.unique(nodes[nodes > 0]).astype(np.float64)
    if len(sizes) > MOST_SIZES:
        sizes = sizes[np.unique(np.searchsorted(sizes, np.geomspace(sizes[0], sizes[-1], MOST_SIZES)))]
    return sizes


def _points_of_times(times: FloatArray) -> FloatArray:
    """Return `POINTS_PER_DECADE` times per decade, from the shortest (at most 1 s) to the longest."""
    positive = times[times > 0.0]
    if not len(positive):
        return np.ones(1)
    low, high = np.log10(np.clip([positive.min(), positive.max()], MIN_PLOTTED, MAX_PLOTTED)) * POINTS_PER_DECADE
    return np.asarray(10.0 ** (np.arange(min(np.floor(low), 0.0), max(np.ceil(high), 0.0) + 1) / POINTS_PER_DECADE))


def occupied_nodes(workload: Workload) -> tuple[FloatArray, IntArray]:
    """Return the number of allocated nodes of a log over time, as an exact step function.

    A job holds its requested nodes from `logged_start` until just before `logged_end`. Jobs without these times,
    without nodes or with a duration of 0 are ignored. The result is the distinct times of starts and ends (s,
    ascending), and the nodes held from each of them until the next (the last is 0). Both have shape (instants,).
    """
    holds = _logged(workload) & (workload.floats("logged_start") != workload.floats("logged_end"))
    nodes = workload.ints("nodes")[holds]
    instants = np.concatenate([workload.floats("logged_start")[holds], workload.floats("logged_end")[holds]])
    held = np.concatenate([nodes, -nodes])
    order = np.argsort(instants)
    held = held[order]
    instants = instants[order]
    del order  # 176 MB with 11 million jobs
    np.cumsum(held, out=held)
    last = np.ones(len(instants), dtype=bool)  # events at the same time form one step
    np.not_equal(instants[1:], instants[:-1], out=last[:-1])
    return instants[last], held[last]


def resample(instants: FloatArray, held: IntArray, edges: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return the mean and the maximum of a step function between successive edges.

    The edges lie between the first and the last instant. The mean is exact, because the integral of a step function is
    linear between its instants.
    """
    mean = np.diff(np.interp(edges, instants, _integral(instants, held))) / np.diff(edges)
    first = np.searchsorted(instants, edges[:-1], side="right") - 1  # the step at the start of the bin
    last = np.searchsorted(instants, edges[1:], side="left") - 1  # the step at the end of the bin
    return mean, np.maximum(np.maximum.reduceat(held[: last[-1] + 1], first), held[last])


def _integral(instants: FloatArray, held: IntArray) -> FloatArray:
    """Return the node seconds held until each instant."""
    return np.concatenate([[0.0], np.cumsum(held[:-1] * np.diff(instants))])


def _window(instants: FloatArray, held: IntArray) -> tuple[float, float]:
    """Return the window to draw: the whole log, or the shortest window with `MOST` of the node hours.

    The shorter window applies if it is less than half of the log. Otherwise a few jobs that start months after the
    others would compress all other jobs into a corner of the picture.
    """
    node_seconds = _integral(instants, held)
    begins = np.linspace(0.0, 1.0 - MOST, 101)
    lows, highs = np.interp(np.array([begins, begins + MOST]) * node_seconds[-1], node_seconds, instants)
    shortest = int(np.argmin(highs - lows))
    low, high = float(lows[shortest]), float(highs[shortest])
    whole = float(instants[0]), float(instants[-1])
    return (low, high) if 0.0 < high - low < 0.5 * (whole[1] - whole[0]) else whole


def occupation(instants: FloatArray, held: IntArray, bins: int) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return time bin edges (s) in `_window`, and the mean and maximum of allocated nodes in each bin."""
    edges = np.unique(np.linspace(*_window(instants, held), bins + 1))
    return edges, *resample(instants, held, edges)


def _occupation_facts(workload: Workload) -> dict[str, Any] | None:
    instants, held = occupied_nodes(workload)
    if not len(held):
        return None
    capacity = workload.provenance.system.nodes
    edges, mean, highest = occupation(instants, held, OCCUPATION_BINS)
    shown = np.diff(np.clip(instants, edges[0], edges[-1]))
    span = float(edges[-1] - edges[0])
    beyond = None if capacity is None else np.maximum(held[:-1] - capacity, 0)
    return {
        "from_s": float(instants[0]),
        "to_s": float(instants[-1]),
        "whole": bool(edges[0] == instants[0] and edges[-1] == instants[-1]),
        "node_hours": float(_integral(instants, held)[-1]) / HOUR,
        "mean": float(held[:-1] @ shown) / span,
        "highest": int(held.max()),
        "share_of_time_above_capacity": None if beyond is None else float(shown[beyond > 0].sum()) / span,
        "node_hours_above_capacity": None if beyond is None else float(beyond @ np.diff(instants)) / HOUR,
        "over_time": {"edges_s": edges.tolist(), "mean": mean.tolist(), "highest": highest.tolist()},
    }


def _logged(workload: Workload) -> Any:
    """Return the mask of the jobs with known nodes and a valid pair of logged start and end."""
    start, end = workload.floats("logged_start"), workload.floats("logged_end")
    return (end >= start) & (workload.ints("nodes") > 0)


def arrivals(submit: FloatArray, clock: pd.DatetimeIndex | None) -> tuple[IntArray, IntArray | None]:
    """Return the arrivals by hour of the day, shape (24,), and by weekday and hour, shape (7, 24).

    Without a clock, the hours are those since time 0, modulo a day, and the weekdays are unknown.
    """
    if clock is None:
        return np.bincount((submit // HOUR % 24).astype(np.int64), minlength=24), None
    of_week = np.asarray(clock.day_of_week, dtype=np.int64) * 24 + np.asarray(clock.hour, dtype=np.int64)
    week = np.bincount(of_week, minlength=7 * 24).reshape(7, 24)
    return week.sum(axis=0), week


def local_clock(workload: Workload) -> pd.DatetimeIndex | None:
    """Return the dates of submission in the workload's time zone or in UTC, or None if they are unknown."""
    provenance = workload.provenance
    return local_dates(workload.floats("submit_time"), provenance.unix_start, provenance.time_zone)


def local_dates(seconds: FloatArray, unix_start: float | None, zone: str | None) -> pd.DatetimeIndex | None:
    """Return the dates of `seconds` after time 0 (Unix time `unix_start`) in `zone` or UTC, None if they are unknown.

    Submissions before 1970 or after 2260 are a defect. They are reported, and all dates count as unknown.
    """
    import pandas as pd

    if unix_start is None or not len(seconds):
        return None
    seconds = unix_start + seconds
    if not (seconds.min() >= 0.0 and seconds.max() < LAST_INSTANT):
        tolerate({"submissions before 1970 or after 2260, so that dates count as unknown": 1})
        return None
    zone = zone or "UTC"
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        tolerate({f"time zone {zone!r} is unknown, so that times are in UTC": 1})
        zone = "UTC"
    return pd.DatetimeIndex(pd.to_datetime(seconds, unit="s", utc=True)).tz_convert(zone)


def local_time(clock: Mapping[str, Any] | None, seconds: float) -> datetime | None:
    """Return the date `seconds` after time 0 by the `clock` of `describe`, or None if it is unknown or out of range."""
    if clock is None or not 0.0 <= clock["unix_start"] + seconds < LAST_INSTANT:
        return None
    return datetime.fromtimestamp(clock["unix_start"] + seconds, ZoneInfo(clock["zone"]))


def load_over_time(workload: Workload) -> tuple[FloatArray, FloatArray]:
    """Return time edges (s, shape (bins + 1,)) and the offered load between them: submitted work / capacity."""
    submit = workload.floats("submit_time")
    bins = int(np.clip(len(submit) // JOBS_PER_BIN, 1, LOAD_BINS))
    edges = np.linspace(submit[0], max(submit[-1], submit[0] + 1.0), bins + 1)
    work = np.histogram(submit, edges, weights=workload.work)[0]
    return edges, work / (np.diff(edges) * (workload.provenance.system.nodes or 1))


def _counts(workload: Workload, name: str) -> dict[str, int]:
    """Return the number of jobs with each value of a text column, most frequent first."""
    if name not in workload.columns:
        return {str(SCHEMA[name].default): len(workload)}
    return {str(value): int(jobs) for value, jobs in workload.table[name].value_counts().items()}


ALL_PARTITIONS = ""
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
    if "gres" not in workload.columns:
        return np.zeros(len(workload))
    codes, texts = codes_of(workload.arrow("gres"))
    on_node = [float(sum(count for name, _, count in gres_items(text) if name == "gpu")) for text in texts]
    return np.array(on_node, dtype=np.float64)[codes] * workload.ints("nodes")


def partition_facts(workload: Workload, capacities: Mapping[str, Capacity] | None = None) -> list[dict[str, Any]]:
    """Return a description of each partition, most jobs first, and of all (name `ALL_PARTITIONS`), in JSON types.

    The demand is the work of the jobs (core seconds, GPU seconds) over what the partition could do between the first
    and the last submission of the log. Partitions that share nodes are each compared with all of their nodes. A
    partition without a capacity has no demand.
    """
    cores = workload.ints("nodes") * cores_used(workload)
    run, gpus = np.nan_to_num(workload.floats("run_time")), gpus_of(workload)
    wait = workload.floats("logged_start") - workload.floats("submit_time")
    names = workload.partitions().to_numpy()
    rows = []
    for name in [*partitions_of(workload), ALL_PARTITIONS]:
        own = names == name if name != ALL_PARTITIONS else np.ones(len(names), dtype=bool)
        capacity = (capacities or {}).get(name)
        sizes = {size: None if capacity is None else getattr(capacity, size) for size in ("nodes", "cores", "gpus")}
        hours = {"core_hours": float(cores[own] @ run[own]) / HOUR, "gpu_hours": float(gpus[own] @ run[own]) / HOUR}
        rows.append(
            {
                "partition": name,
                "jobs": int(own.sum()),
                "gpu_jobs": int((gpus[own] > 0).sum()),
                **sizes,
                **hours,
                "core_demand": _demand(hours["core_hours"], sizes["cores"], workload.span),
                "gpu_demand": _demand(hours["gpu_hours"], sizes["gpus"], workload.span),
                "largest_job_nodes": int(workload.ints("nodes")[own].max(initial=0)),
                "run_time_s": quantiles(workload.floats("run_time")[own]),
                "wait_s": quantiles(wait[own]),
            }
        )
    return rows


def _demand(hours: float, capacity: int | None, span: float) -> float | None:
    return hours * HOUR / (capacity * span) if capacity and span > 0.0 else None
