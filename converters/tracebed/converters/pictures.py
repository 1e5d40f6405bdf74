"""A picture of a workload, drawn from the statistics of `description.describe` (the facts).

A panel is a function of axes and facts. Panels without data are left out. For two workloads, each panel is drawn
twice, side by side, on the same scale. docs/reference/describe.md describes the panels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from tracebed.converters.description import DAY, HOUR, MOST, POINTS_PER_DECADE, WEEKDAYS, local_time
from tracebed.converters.workload import FloatArray
from tracebed.ground.display import WIDTH, counted
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import PICTURE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import Collection
    from matplotlib.figure import Figure

Facts = Mapping[str, Any]

PICTURES = (".png", ".svg", ".pdf")
BLUE, PALE, ORANGE, RED, GREY = "#2f5f98", "#b7cbe2", "#d9822b", "#c0392b", "#8a8a8a"
ROW, FONT = 1.85, 7.0
"""Height of a row of panels, inches; size of the text, points."""
SHORT_TICKS = {0.001: "1 ms", 0.01: "10 ms", 0.1: "0.1 s", 1.0: "1 s", 10.0: "10 s", 60.0: "1 min", 600.0: "10 min"}
LONG_TICKS = {
    3600.0: "1 h",
    36_000.0: "10 h",
    259_200.0: "3 d",
    2_592_000.0: "30 d",
    3.15576e7: "1 y",
    3.15576e9: "100 y",
}
RUN_TIME_TICKS = SHORT_TICKS | LONG_TICKS
STYLE: dict[Any, Any] = {
    "font.size": FONT,
    "axes.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "tracebed",
    "text.parse_math": False,  # a name in a user's file may contain $
    "pdf.fonttype": 42,  # publishers refuse fonts of type 3
}


class Panel(NamedTuple):
    """A panel: its drawing function, and a function that returns whether the facts have data for it."""

    draw: Callable[[Axes, Facts], None]
    known: Callable[[Facts], bool]


def check_name(path: Path) -> None:
    """Raise InputError if the suffix of `path` is not that of a supported picture format."""
    if path.suffix.lower() not in PICTURES:
        raise InputError("unsupported picture format", where=str(path), hint=f"use a name with {', '.join(PICTURES)}")


def plot(facts: Facts, path: Path | str, *, before: Facts | None = None) -> None:
    """Draw the facts of a workload as PNG, SVG or PDF. The same facts give the same bytes.

    Args:
        facts: result of `description.describe`.
        path: file to write; its suffix sets the format.
        before: facts of the workload before cleaning, to be drawn on the left.

    Raises:
        InputError: the format is not supported, or the file cannot be written.
    """
    import matplotlib

    path = Path(path)
    check_name(path)
    with matplotlib.rc_context(STYLE):
        figure = _one(facts) if before is None else _pair(before, facts)
    form = path.suffix[1:].lower()
    with PICTURE.file(path) as file, matplotlib.rc_context(STYLE):
        figure.savefig(file, format=form, metadata=metadata(form))


def metadata(form: str) -> dict[str, Any]:
    """Return the metadata of pictures of the format `form`: no date, and the mark of `outputs.PICTURE`."""
    undated: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    return {"Software" if form == "png" else "Creator": "tracebed"} | undated.get(form, {})


def _figure(rows: int) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, ROW * rows + 0.3), dpi=200)
    figure.set_layout_engine("constrained", h_pad=0.06, w_pad=0.06)
    return figure


def _one(facts: Facts) -> Figure:
    """Draw the occupation and the last of an odd number of panels in full width, the other panels in two columns."""
    wide = [panel for panel in PANELS[:1] if panel.known(facts)]
    narrow = [panel for panel in PANELS[1:] if panel.known(facts)]
    rows = len(wide) + (len(narrow) + 1) // 2
    figure = _figure(rows)
    grid = figure.add_gridspec(rows, 2)
    cells = [grid[0, :]] * len(wide) + [grid[row, column] for row in range(len(wide), rows) for column in (0, 1)]
    if len(narrow) % 2:
        cells[len(wide) + len(narrow) - 1 :] = [grid[rows - 1, :]]
    for panel, cell in zip([*wide, *narrow], cells, strict=True):
        ax = figure.add_subplot(cell)
        panel.draw(ax, facts)
        _finish(ax)
    figure.suptitle(_title(facts), x=0.012, ha="left", fontsize="large", fontweight="bold")
    return figure


def _pair(before: Facts, after: Facts) -> Figure:
    """Draw one row per panel on one scale, with the workload before on the left and the workload after on the right."""
    if not (_dated(before) and _dated(after)):  # dates and seconds since time 0 have no common scale
        before, after = {**before, "clock": None}, {**after, "clock": None}
    panels = [panel for panel in PANELS if panel.known(before) or panel.known(after)]
    figure = _figure(len(panels))
    axes = figure.subplots(len(panels), 2, squeeze=False)
    for panel, row in zip(panels, axes, strict=True):
        for ax, facts, when in zip(row, (before, after), ("before", "after"), strict=True):
            if panel.known(facts):
                panel.draw(ax, facts)
                ax.set_title(f"{ax.get_title()}, {when}")
            else:
                ax.text(0.5, 0.5, f"{when}: not known", ha="center", color=GREY, transform=ax.transAxes)
                ax.set_axis_off()
            _finish(ax)
        if panel.known(before) and panel.known(after):
            _same_scale(*row)
    titles = f"before: {_title(before)}\nafter: {_title(after)}"
    figure.suptitle(titles, x=0.012, ha="left", fontsize="large", fontweight="bold")
    return figure


def _same_scale(left: Axes, right: Axes) -> None:
    """Set the limits of two panels to their union, and the color scales of their maps to a common maximum."""
    for get, put in (("get_xlim", "set_xlim"), ("get_ylim", "set_ylim")):
        limits = np.array([getattr(ax, get)() for ax in (left, right)])
        for ax in (left, right):
            getattr(ax, put)(_union(limits))
    maps = [(ax, image) for ax in (left, right) for image in ax.collections if image.get_array() is not None]
    for ax, image in maps:
        image.set_clim(0.0, max(other.get_clim()[1] or 0.0 for _, other in maps))
        _label_maximum(ax, image)


def _union(limits: FloatArray) -> tuple[float, float]:
    upside_down = limits[0, 0] > limits[0, 1]
    low, high = float(limits.min()), float(limits.max())
    return (high, low) if upside_down else (low, high)


def _finish(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_axisbelow(True)
    ax.set_title(ax.get_title(), loc="left", fontsize="medium")
    ax.set_title("")


def _title(facts: Facts) -> str:
    system, load = facts["system"], facts["offered_load"]
    machine = f"{system['nodes']:,} nodes" if system["nodes"] else "system of unknown size"
    count = counted(facts["jobs"], "job")
    parts = [system["name"], count, machine, "" if load is None else f"offered load {load:.2f}"]
    return " · ".join(part for part in parts if part)


def _draw_occupation(ax: Axes, facts: Facts) -> None:
    series, capacity = facts["occupation"]["over_time"], facts["system"]["nodes"]
    edges = _time_axis(ax, facts, np.array(series["edges_s"]))
    ax.stairs(series["highest"], edges, fill=True, color=PALE, label="highest")
    ax.stairs(series["mean"], edges, fill=True, color=BLUE, label="mean")
    if capacity is not None:
        ax.axhline(capacity, color=RED, linewidth=1.0, label=f"capacity {capacity:,}")
    if not facts["occupation"]["whole"]:
        _remark(ax, f"{MOST:.0%} of the node hours, in the shortest time")
    ax.set(title="Node occupation", ylabel="nodes", ylim=(0, 1.3 * max(max(series["highest"]), capacity or 0)))
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, loc="upper left", ncols=3, borderaxespad=0.1)


def _draw_cumulative(ax: Axes, facts: Mapping[str, Any], *, title: str) -> None:
    points = np.array(facts["at_most"])
    points = np.concatenate([points[:1] / 1.1, points, points[-1:] * 1.1])  # makes the first and the last step visible
    lines = ("node_hours", ORANGE, 1.9), ("jobs", BLUE, 1.0)  # the wider line stays visible below the other
    for name, color, line in lines:
        if facts[name] is not None:
            shares = 100 * np.array([0.0, *facts[name], 1.0])
            ax.step(points, shares, where="post", color=color, linewidth=line, label=name.replace("_", " "))
    ax.set_xscale("log")
    ax.set(title=title, ylabel="share, %", ylim=(0, 103), xlim=(min(points[0], 1 / 1.1), points[-1]))
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, loc="best")


def _draw_cumulative_sizes(ax: Axes, facts: Facts) -> None:
    _draw_cumulative(ax, facts["cumulative"]["nodes"], title="Cumulative jobs and node hours by size")
    _size_axis(ax)


def _draw_cumulative_times(ax: Axes, facts: Facts) -> None:
    _draw_cumulative(ax, facts["cumulative"]["run_time_s"], title="Cumulative jobs and node hours by run time")
    _run_time_axis(ax)


def _draw_sizes(ax: Axes, facts: Facts) -> None:
    bins = facts["nodes_histogram"]
    shares = 100 * np.array([bin["jobs"] for bin in bins]) / facts["jobs"]
    ax.bar(range(len(bins)), shares, color=BLUE, width=0.8)
    ax.set(title="Requested nodes", ylabel="jobs, %", xlim=(-0.6, max(len(bins), 4) - 0.4))
    ax.xaxis.set_major_locator(_ticker().MultipleLocator(1))
    ax.xaxis.set_major_formatter(lambda place, _: _bin_name(round(place)))
    ax.tick_params(axis="x", labelsize=FONT if len(bins) <= 8 else FONT - 1, rotation=0 if len(bins) <= 8 else 35)
    ax.grid(axis="y", alpha=0.3)


def _bin_name(power: int) -> str:
    """Return the label of a bin of `description.size_histogram`."""
    if power < 0:
        return ""
    return str(2**power) if power < 2 else f"{2 ** (power - 1) + 1}–{2**power}"


def _draw_run_times(ax: Axes, facts: Facts) -> None:
    for key, name, color in (("run_time_s", "run time", BLUE), ("time_limit_s", "time limit", ORANGE)):
        if facts["cumulative"][key] is None:
            continue
        edges, shares = _log_bins(facts["cumulative"][key])
        filled = key == "run_time_s"
        style: dict[str, Any] = {"fill": True, "alpha": 0.75} if filled else {"linewidth": 1.1}
        ax.stairs(shares, edges, color=color, label=name, **style)
    ax.set_xscale("log")
    ax.set(title="Run times and time limits", ylabel="jobs, %")
    ax.set_ylim(bottom=0.0)
    _run_time_axis(ax)
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, loc="best")


def _log_bins(facts: Mapping[str, Any]) -> tuple[FloatArray, FloatArray]:
    """Return edges (s) and the share of jobs between them (%), 8 bins per decade. The first includes shorter jobs."""
    stride, points, shares = POINTS_PER_DECADE // 8, facts["at_most"], facts["jobs"]
    chosen = [*range(0, len(points) - 1, stride), len(points) - 1]
    ends = np.array(points)[chosen]
    return np.append(ends[0] / 10 ** (1 / 8), ends), 100 * np.diff([0.0, *(shares[i] for i in chosen)])


def _draw_arrivals(ax: Axes, facts: Facts) -> None:
    ax.xaxis.set_major_locator(_ticker().MultipleLocator(3))
    if facts["clock"] is None:
        counts = np.array(facts["arrivals_by_hour"])
        ax.bar(np.arange(24) + 0.5, 100 * counts / counts.sum(), width=0.85, color=BLUE)
        ax.axhline(100 / 24, color=GREY, linewidth=1, linestyle="--")
        title, label = "Arrivals by hour of the day", "hour since time 0, modulo a day"
        ax.set(title=title, ylabel="jobs, %", xlim=(0, 24), xlabel=label)
        ax.grid(axis="y", alpha=0.3)
        return
    week = np.array(facts["arrivals_by_weekday_and_hour"])
    image = ax.pcolormesh(np.arange(25), np.arange(8), 100 * week / week.sum(), cmap="Blues", vmin=0.0, rasterized=True)
    _label_maximum(ax, image)
    ax.set(title="Arrivals by hour and weekday", xlabel=f"hour, {facts['clock']['zone']}", ylim=(7, 0))
    ax.set_yticks(np.arange(7) + 0.5, WEEKDAYS)
    ax.tick_params(axis="y", length=0)


def _label_maximum(ax: Axes, image: Collection) -> None:
    """Write the maximum of a map above it, which takes less space than a color bar."""
    _remark(ax, f"darkest: {image.get_clim()[1]:.3g} % of the jobs")


def _remark(ax: Axes, text: str) -> None:
    ax.set_title(text, loc="right", fontsize=FONT - 1, color=GREY)


def _draw_load(ax: Axes, facts: Facts) -> None:
    capacity, mean = facts["system"]["nodes"], facts["offered_load"]
    load = np.array(facts["offered_load_over_time"]["load"])
    edges = _time_axis(ax, facts, np.array(facts["offered_load_over_time"]["edges_s"]))
    ax.stairs(load, edges, fill=True, color=BLUE, alpha=0.75)
    if capacity is not None:
        ax.axhline(1.0, color=RED, linewidth=1.0, label="capacity")
    if mean is not None:
        ax.axhline(mean, color=ORANGE, linewidth=1.1, label=f"mean {mean:.3g}")
    if capacity is not None:
        ax.legend(frameon=False, loc="upper right", ncols=2, borderaxespad=0.1)
    top = 1.35 * float(np.quantile(load, 0.98))  # the maximum of a burst would compress the rest
    ax.set_ylim(0, max(top, 1.3 if capacity else 0.1))
    _remark(ax, f"highest: {load.max():.3g}")
    ax.set(title="Offered load" if capacity else "Offered work", ylabel="share of capacity" if capacity else "nodes")
    ax.grid(alpha=0.3)


def _time_axis(ax: Axes, facts: Facts, seconds: FloatArray) -> FloatArray:
    """Label the axis with dates, or with the time since time 0 if dates are unknown. Return `seconds` in axis units."""
    clock = facts["clock"]
    if _dated(facts):
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        zone = ZoneInfo(clock["zone"])
        locator = AutoDateLocator(tz=zone, minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))  # type: ignore[no-untyped-call]
        days = (clock["unix_start"] + seconds) / DAY
        ax.set_xlim(days[0], days[-1])
        return np.asarray(days)
    units = ((DAY, "days"), (HOUR, "hours"), (60.0, "minutes"))
    unit, name = next((unit for unit in units if seconds[-1] - seconds[0] >= 2 * unit[0]), (1.0, "s"))
    ax.set_xlim(seconds[0] / unit, seconds[-1] / unit)
    ax.set_xlabel(f"{name} since time 0")
    return np.asarray(seconds / unit)


def _dated(facts: Facts) -> bool:
    """Return whether all times of the time axes have dates."""
    edges = [facts["offered_load_over_time"]["edges_s"]]
    if facts["occupation"] is not None:
        edges.append(facts["occupation"]["over_time"]["edges_s"])
    return all(local_time(facts["clock"], seconds[end]) is not None for seconds in edges for end in (0, -1))


def _size_axis(ax: Axes) -> None:
    """Set at most a dozen ticks, at powers of two."""
    ax.set_xlabel("nodes")
    ax.xaxis.set_major_locator(_ticker().LogLocator(base=2, numticks=12))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.minorticks_off()


def _run_time_axis(ax: Axes) -> None:
    """Set ticks at round numbers of seconds, minutes, hours, days and years."""
    ax.xaxis.set_major_locator(_ticker().FixedLocator(list(RUN_TIME_TICKS)))
    ax.xaxis.set_major_formatter(lambda place, _: next(n for s, n in RUN_TIME_TICKS.items() if np.isclose(s, place)))
    ax.minorticks_off()


def _ticker() -> Any:
    from matplotlib import ticker

    return ticker


PANELS: Sequence[Panel] = (
    Panel(_draw_occupation, lambda facts: facts["occupation"] is not None),
    Panel(_draw_cumulative_sizes, lambda facts: facts["cumulative"]["nodes"] is not None),
    Panel(_draw_cumulative_times, lambda facts: facts["cumulative"]["run_time_s"] is not None),
    Panel(_draw_sizes, lambda facts: bool(facts["nodes_histogram"])),
    Panel(
        _draw_run_times,
        lambda facts: any(facts["cumulative"][name] is not None for name in ("run_time_s", "time_limit_s")),
    ),
    Panel(_draw_arrivals, lambda _: True),
    Panel(_draw_load, lambda facts: facts["span_s"] > 0.0 and any(facts["offered_load_over_time"]["load"])),
)
