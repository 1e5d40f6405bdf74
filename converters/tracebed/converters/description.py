"""What a workload is like: statistics for tables, and a picture."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from tracebed.converters.formats.files import replacing
from tracebed.converters.workload import FloatArray, IntArray, Workload, steps_of
from tracebed.errors import InputError, tolerate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUANTILES = {"min": 0.0, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
HOUR, DAY = 3600.0, 86_400.0
PICTURES = (".png", ".svg", ".pdf")
LOAD_BINS, JOBS_PER_BIN = 96, 4
LAST_INSTANT = 9.18e9
"""Late in 2260, s since 1970: 64 bits of nanoseconds, pandas' clock, do not reach much further."""


def offered_load(workload: Workload) -> float | None:
    """Return sum(run time * nodes) / (nodes of the system * span of the submissions).

    `None` where the system's size is not known or the submissions span no time; jobs of unknown run time or
    size do not count.
    """
    nodes, span = workload.provenance.system.nodes, float(np.ptp(workload.floats("submit_time")))
    return None if nodes is None or span <= 0.0 else float(_work(workload).sum()) / (nodes * span)


def describe(workload: Workload) -> dict[str, Any]:
    """Return the statistics of a workload.

    Times in s. `None` where a workload does not know; arrivals by weekday and the dates need `unix_start`.
    Without it, the hours are those since time 0, modulo a day.
    """
    provenance, submit = workload.provenance, workload.floats("submit_time")
    run, limit = workload.floats("run_time"), workload.floats("time_limit")
    nodes = workload.ints("nodes")
    with np.errstate(divide="ignore", invalid="ignore"):
        accuracy = run / limit
    clock = local_clock(workload)
    return {
        "jobs": len(workload),
        "system": asdict(provenance.system),
        "time_zone": provenance.time_zone,
        "first_submit": None if clock is None else clock[0].isoformat(),
        "last_submit": None if clock is None else clock[-1].isoformat(),
        "first_submit_s": float(submit[0]),
        "last_submit_s": float(submit[-1]),
        "span_s": float(submit[-1] - submit[0]),
        "offered_load": offered_load(workload),
        "offered_load_steps": [
            {name: step.parameters[f"offered_load_{name}"] for name in ("before", "in_window", "after")}
            for step in provenance.steps
            if "offered_load_after" in step.parameters
        ],
        "node_hours": float(_work(workload).sum() / HOUR),
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
        "arrivals_by_hour": hours(workload).tolist(),
        "arrivals_by_weekday": None
        if clock is None
        else dict(zip(WEEKDAYS, np.bincount(clock.day_of_week, minlength=7).tolist(), strict=True)),
        "kinds": dict(Counter(workload.column("kind")).most_common()),
        "statuses": dict(Counter(workload.column("status")).most_common()),
        "unknown": {
            "run_time": int(np.isnan(run).sum()),
            "time_limit": int(np.isnan(limit).sum()),
            "nodes": int((nodes == 0).sum()),
        },
        "sources": [asdict(source) for source in provenance.sources],
        "steps": steps_of(asdict(provenance)),
    }


def quantiles(values: FloatArray | IntArray) -> dict[str, float | None]:
    """Return the mean and `QUANTILES` of the finite values; `None` where there is none."""
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return dict.fromkeys([*QUANTILES, "mean"])
    found = np.quantile(finite, list(QUANTILES.values()))
    return {**dict(zip(QUANTILES, found.tolist(), strict=True)), "mean": float(finite.mean())}


def size_histogram(nodes: IntArray) -> list[tuple[int, int, int]]:
    """Return (from, to, jobs) for sizes 1, 2, 3 to 4, 5 to 8, ...: each bin ends at a power of two."""
    known = nodes[nodes > 0]
    counts = np.bincount(np.ceil(np.log2(known)).astype(np.int64)).tolist() if len(known) else []
    return [(2**i // 2 + 1 if i else 1, 2**i, count) for i, count in enumerate(counts)]


def run_time_histogram(run: FloatArray) -> list[tuple[float, float | None, int]]:
    """Return (from, to, jobs) for run times to 1 s, 10 s, 1 min, 10 min, 1 h, 6 h, 1 day, no end."""
    edges = [0.0, 1.0, 10.0, 60.0, 600.0, HOUR, 6 * HOUR, DAY, np.inf]
    counts = np.histogram(run[np.isfinite(run)], edges)[0].tolist()
    last = max((i for i, count in enumerate(counts) if count), default=-1)
    return [(edges[i], None if edges[i + 1] == np.inf else edges[i + 1], counts[i]) for i in range(last + 1)]


def hours(workload: Workload) -> IntArray:
    """Return the arrivals in each hour of the day, shape (24,), on the workload's own clock."""
    clock = local_clock(workload)
    hour = workload.floats("submit_time") // HOUR % 24 if clock is None else clock.hour
    return np.bincount(np.asarray(hour, dtype=np.int64), minlength=24)


@lru_cache(maxsize=1)  # tables and pictures of one workload ask again, and its defects are to be warned of once
def local_clock(workload: Workload) -> pd.DatetimeIndex | None:
    """Return the instants of submission in the workload's time zone, else UTC; `None` if not known.

    A submission before 1970 or after 2260 is a defect, tolerated as not known: no calendar here reaches further.
    """
    provenance = workload.provenance
    if provenance.unix_start is None:
        return None
    seconds = provenance.unix_start + workload.floats("submit_time")
    if not (seconds.min() >= 0.0 and seconds.max() < LAST_INSTANT):
        tolerate({"submissions before 1970 or after 2260, the dates are taken as not known": 1})
        return None
    zone = provenance.time_zone or "UTC"
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        tolerate({f"time zone {zone!r} is not known here, times are in UTC": 1})
        zone = "UTC"
    return pd.DatetimeIndex(pd.to_datetime(seconds, unit="s", utc=True)).tz_convert(zone)


def load_over_time(workload: Workload) -> tuple[FloatArray, FloatArray]:
    """Return edges (s, shape (bins + 1,)) and the load offered between them: work submitted over capacity."""
    submit = workload.floats("submit_time")
    bins = int(np.clip(len(submit) // JOBS_PER_BIN, 1, LOAD_BINS))
    edges = np.linspace(submit[0], max(submit[-1], submit[0] + 1.0), bins + 1)
    work = np.histogram(submit, edges, weights=_work(workload))[0]
    return edges, work / (np.diff(edges) * (workload.provenance.system.nodes or 1))


def _work(workload: Workload) -> FloatArray:
    """Return the node seconds of each job, 0 where they are not known."""
    return np.nan_to_num(workload.floats("run_time")) * workload.ints("nodes")


def plot(workload: Workload, path: Path | str) -> None:
    """Draw sizes, run times, arrivals and offered load into a picture: PNG, SVG or PDF by the name of `path`.

    Raises:
        InputError: the name asks for no picture, or the place cannot be written to.
    """
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix.lower() not in PICTURES:
        raise InputError("not a picture's name", where=str(path), mend=f"end it in {', '.join(PICTURES)}")
    figure = Figure(figsize=(11, 7.2), dpi=130)
    figure.set_layout_engine("constrained", h_pad=0.12, w_pad=0.12)
    axes = figure.subplots(2, 2)
    _plot_sizes(axes[0, 0], workload)
    _plot_run_times(axes[0, 1], workload)
    _plot_hours(axes[1, 0], workload)
    _plot_load(axes[1, 1], workload)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_axisbelow(True)
        ax.set_title(ax.get_title(), loc="left", fontsize=11)
        ax.set_title("")
    figure.suptitle(_title(workload), x=0.012, ha="left", fontsize=13, fontweight="bold")
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower())


BLUE, ORANGE, GREY = "#3b6ea5", "#d9822b", "#8a8a8a"


def _title(workload: Workload) -> str:
    system = workload.provenance.system
    machine = f"{system.nodes:,} nodes" if system.nodes else "system of unknown size"
    load = offered_load(workload)
    parts = [system.name, f"{len(workload):,} jobs", machine, f"offered load {load:.2f}" if load else ""]
    return " · ".join(part for part in parts if part)


def _plot_sizes(ax: Axes, workload: Workload) -> None:
    histogram = size_histogram(workload.ints("nodes"))
    share = np.array([jobs for _, _, jobs in histogram]) / max(1, len(workload))
    labels = [str(high) if low == high else f"{low}–{high}" for low, high, _ in histogram]
    ax.bar(range(len(share)), 100 * share, color=BLUE, width=0.8)
    crowded = len(labels) > 7
    ax.set_xticks(range(len(share)), labels, rotation=40 if crowded else 0, ha="right" if crowded else "center")
    ax.set(title="Requested nodes", ylabel="jobs, %")
    ax.grid(axis="y", alpha=0.3)


def _plot_run_times(ax: Axes, workload: Workload) -> None:
    series = {"run time": workload.floats("run_time"), "time limit": workload.floats("time_limit")}
    known = {name: np.maximum(v[np.isfinite(v)], 1.0) for name, v in series.items()}
    top = max((float(values.max()) for values in known.values() if len(values)), default=1.0)
    bins = np.geomspace(1.0, max(top, 2.0), 49)
    for (name, values), color in zip(known.items(), (BLUE, ORANGE), strict=True):
        if len(values):
            weights = np.full(len(values), 100 / len(values))
            style = {"histtype": "step", "linewidth": 1.6} if name == "time limit" else {"alpha": 0.75}
            ax.hist(values, bins=bins.tolist(), weights=weights, color=color, label=name, **style)
    ax.set_xscale("log")
    ticks = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 36_000: "10 h", 259_200: "3 d"}
    shown = {second: text for second, text in ticks.items() if second <= 1.3 * top}
    ax.set_xticks(list(shown), list(shown.values()))
    ax.minorticks_off()
    ax.set(title="Run times and time limits", ylabel="jobs, %")
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, loc="upper left")


def _plot_hours(ax: Axes, workload: Workload) -> None:
    counts = hours(workload)
    ax.bar(np.arange(24) + 0.5, 100 * counts / max(1, counts.sum()), width=0.85, color=BLUE)
    ax.axhline(100 / 24, color=GREY, linewidth=1, linestyle="--")
    known = workload.provenance.unix_start is not None
    zone = workload.provenance.time_zone or "UTC"
    ax.set_xticks(range(0, 25, 3))
    ax.set(
        title="Arrivals by hour of the day",
        ylabel="jobs, %",
        xlim=(0, 24),
        xlabel=f"hour, {zone}" if known else "hour since time 0, modulo a day",
    )
    ax.grid(axis="y", alpha=0.3)


def _plot_load(ax: Axes, workload: Workload) -> None:
    edges, load = load_over_time(workload)
    span = edges[-1] - edges[0]
    units = ((DAY, "days"), (HOUR, "hours"), (60.0, "minutes"))
    unit, name = next((unit for unit in units if span >= 2 * unit[0]), (1.0, "s"))
    ax.stairs(load, edges / unit, fill=True, color=BLUE, alpha=0.75)
    if workload.provenance.system.nodes is not None:
        ax.axhline(1.0, color=GREY, linewidth=1, linestyle="--")
        mean = offered_load(workload)
        if mean is not None:
            ax.axhline(mean, color=ORANGE, linewidth=1.6, label=f"mean {mean:.2f}")
            ax.legend(frameon=False, loc="upper right")
    highest, usual = float(load.max()), 1.25 * float(np.quantile(load, 0.98))
    title = "Offered load" if workload.provenance.system.nodes else "Offered work, nodes"
    if highest > usual:
        title += f" (highest {highest:.3g}, cut off)"
    ax.set(
        title=title,
        xlabel=f"{name} since time 0",
        xlim=(edges[0] / unit, edges[-1] / unit),
        ylim=(0, max(usual, 1.15 if workload.provenance.system.nodes else 0.1)),
    )
    ax.grid(alpha=0.3)
