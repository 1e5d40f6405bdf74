"""Gantt charts of the nodes held by jobs over time."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from tracebed.converters.workload import FloatArray, IntArray
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import origin
from tracebed.validation.report import style
from tracebed.validation.report.sections import Picture, Section
from tracebed.validation.report.style import DASHED, INK, JOBS, NARROW, PREDICTED, REAL, WIDE, heading, panels
from tracebed.validation.report.time_axis import TimeAxis
from tracebed.validation.report.words import real_side
from tracebed.validation.verdict import Comparison

BARS = 3_000
"""Number of bars above which a chart is sampled at the resolution of the picture; a fifth of it for phones."""
NAMES = 16
"""Number of nodes above which an axis shows numbers instead of names."""


def gantt_figure(run: Run, *, width: float = WIDE) -> Figure:
    """Return the Gantt chart of a run: nodes held by each job over time.

    Args:
        run: the run. Without allocations, the chart is empty.
        width: width of the figure, inches.

    Returns:
        A figure with one panel: nodes from top to bottom, time in s, min, h or days after the first submission.
    """
    with mpl.rc_context({**style.STYLE, "figure.facecolor": "white"}):
        figure, (axes,) = panels(1, _height(run.total_nodes), width)
        draw(axes, run, pd.Index(run.jobs["job_id"]), TimeAxis.of(run))
    return figure


def small_gantt_svg(run: Run) -> str:
    """Return a small Gantt chart of a run as an <svg> element for HTML, 4.6 inches wide.

    The text has the color of the surrounding text. Each bar has a tooltip with job, nodes, start, end and state.
    """
    with mpl.rc_context(style.STYLE):
        figure, (axes,) = panels(1, min(_height(run.total_nodes), 1.6), NARROW)
        draw(axes, run, pd.Index(run.jobs["job_id"]), TimeAxis.of(run), titles=True)
        text = style.svg(figure, "small")
    for color in (INK, style.SOFT):
        text = text.replace(f"var(--{style.VARIABLES[color]}, {color})", "currentColor")
    return text.replace("<svg ", f'<svg style="width: {NARROW}in; max-width: 100%" ', 1)


def _compared(comparison: Comparison) -> Picture | None:
    """Return the charts of both runs, one above the other on one time axis, or None if neither run has allocations."""
    sides = ((comparison.real, "real", REAL), (comparison.predicted, "predicted", PREDICTED))
    if not any(len(run.allocations) for run, _, _ in sides):
        return None
    time = TimeAxis.of(comparison.real, comparison.predicted)
    nodes = max(run.total_nodes for run, _, _ in sides)
    ids = pd.Index(comparison.real.jobs["job_id"]).union(comparison.predicted.jobs["job_id"], sort=False)

    def draw_both(width: float) -> Figure:
        figure, both = panels(2, _height(nodes), width)
        for axes, (run, name, color), last in zip(both, sides, time.last, strict=True):
            draw(axes, run, ids, time, nodes=nodes, titles=True, label=axes is both[-1])
            heading(axes, name, color)
            if 0 < last <= time.end:
                axes.axvline(last / time.unit, color=color, linewidth=0.9, linestyle=DASHED)
            elif last:
                axes.set_title(f"last job ends at {time.show(last)} \N{RIGHTWARDS ARROW}", loc="right", fontsize=9)
        return figure

    malleable = bool((comparison.real.jobs["kind"] == "malleable").any())
    shades = " Full colors: malleable jobs; steps are expansions or shrinks. Pale: rigid jobs." if malleable else ""
    shared = any(run.jobs_on_shared_nodes for run, _, _ in sides)
    parts = " Jobs on a shared node are parts of its row." if shared else ""
    sampled = any(len(run.allocations) > BARS and len(blocks(run, ids)) > BARS for run, _, _ in sides)
    pixels = (
        f" More than {BARS:,} bars: each pixel shows the job on one node at one instant. Short jobs may be missing."
        if sampled
        else ""
    )
    caption = (
        f"Jobs on nodes over time: the real run ({real_side(comparison.real.info)}) above, the prediction below. A job "
        f"has the same color in both charts.{shades}{parts}"
    )
    about = f"{pixels} Dashed: last end.{time.note('real', 'predicted')}"
    return Picture(
        draw_both,
        caption,
        "Two Gantt charts, real above predicted, on one time axis",
        chart="gantt",
        about_figure=about,
    )


def draw(
    axes: Axes,
    run: Run,
    ids: pd.Index[Any],
    time: TimeAxis,
    *,
    nodes: int | None = None,
    titles: bool = False,
    label: bool = True,
) -> None:
    """Draw the chart of a run.

    Args:
        axes: axes to draw on.
        run: the run.
        ids: job ids. The color of a job depends on its position in `ids`.
        time: the time axis.
        nodes: number of rows of the chart; by default the number of nodes of the run.
        titles: whether each bar has a tooltip, for `style.svg`.
        label: whether the time axis has a label.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    bars = blocks(run, ids)
    bars = bars[bars["start"] <= time.end]
    if len(bars) > _most(figure.get_figwidth()):
        _draw_sampled(axes, run, ids, time, axes.get_position().height * figure.get_figheight())
    elif len(bars):
        _draw_bars(axes, run, bars, ids, time, titles=titles)
    axes.set_ylim(nodes or run.total_nodes or 1, 0)
    names = [node.name for node in run.info.nodes]
    if 0 < len(names) <= NAMES:
        longest = 12 if figure.get_figwidth() >= WIDE else 7
        shown = [name if len(name) <= longest else f"{name[: longest - 1]}…" for name in names]
        axes.set_yticks(np.arange(len(names)) + 0.5, shown)
        axes.tick_params(axis="y", length=0)
    else:
        axes.set_ylabel("node")
        axes.yaxis.set_major_formatter("{x:,.0f}")
    time.apply(axes, label=label)


def blocks(run: Run, ids: pd.Index[Any]) -> pd.DataFrame:
    """Return the bars of a chart. Adjacent nodes held by one job for the same time form one bar.

    Jobs on a shared node are bars in parts of its row, as high as their shares of the cores.

    Returns:
        A row per bar: job (position in `ids`), low and high (first and last node), start and end (s after the first
        submission), upper and lower (the edges of the bar in the row of its node, 0 to 1).
    """
    rows = run.allocations
    table = pd.DataFrame(
        {
            "job": ids.get_indexer(pd.Index(rows["job_id"])),
            "start": rows["start"] - origin(run),
            "end": rows["end"] - origin(run),
            "low": rows["node"],
            "high": rows["node"] + rows["count"] - 1,
            "cores": rows["cores"],
        }
    )
    table = table[table["end"] > table["start"]].sort_values(["job", "start", "end", "low"], ignore_index=True)
    table = _in_rows(table, np.array([node.cores for node in run.info.nodes], dtype=np.int64))
    same = (table[["job", "start", "end"]].diff() == 0).all(axis=1) & (table["low"] == table["high"].shift() + 1)
    whole = (table["upper"] == 0) & (table["lower"] == 1)
    block = (~(same & whole & whole.shift(fill_value=False))).cumsum()
    return table.groupby(block, sort=False).agg(
        job=("job", "first"),
        low=("low", "first"),
        high=("high", "last"),
        start=("start", "first"),
        end=("end", "first"),
        upper=("upper", "first"),
        lower=("lower", "first"),
    )


def _in_rows(table: pd.DataFrame, cores: IntArray) -> pd.DataFrame:
    """Return the bars with the columns `upper` and `lower`. A bar with parts of several nodes becomes one of each.

    On each node, the job that came first is at the top, as the owner of a node holds its first cores.

    Args:
        table: bars with the number of cores on each node.
        cores: node -> number of cores.
    """
    part = table["cores"].to_numpy() < cores[table["low"].to_numpy()]
    size = np.where(part, table["high"] - table["low"] + 1, 1)
    rows = np.repeat(np.arange(len(table)), size)
    table, part = table.iloc[rows].reset_index(drop=True), part[rows]
    table["low"] += np.arange(len(rows)) - np.repeat(np.cumsum(size) - size, size)
    table.loc[part, "high"] = table.loc[part, "low"]
    upper, lower = np.zeros(len(rows)), np.ones(len(rows))
    came = table.groupby(["job", "low"])["start"].transform("min")
    held: list[tuple[int, int, float]] = []  # first core, core after the last one, end
    node = -1
    for row in table.assign(came=came)[part].sort_values(["low", "start", "came", "job"]).itertuples():
        held = [each for each in held if each[2] > row.start] if row.low == node else []
        node, first = row.low, 0
        for begin, after, _ in sorted(held):
            if begin - first >= row.cores:
                break
            first = after
        held.append((first, first + row.cores, row.end))
        upper[row.Index], lower[row.Index] = first / cores[node], (first + row.cores) / cores[node]
    return table.assign(upper=upper, lower=lower)


def sample(run: Run, ids: pd.Index[Any], nodes: IntArray, instants: FloatArray) -> IntArray:
    """Return the job that holds each node at each instant.

    Args:
        run: the run.
        ids: job ids.
        nodes: indices of nodes, ascending.
        instants: s after the first submission, ascending.

    Returns:
        Positions in `ids`, shape (nodes, instants); -1 for an idle node.
    """
    table = run.allocations
    start = table["start"].to_numpy(dtype=np.float64) - origin(run)
    end = table["end"].to_numpy(dtype=np.float64) - origin(run)
    low, high = (np.searchsorted(nodes, table["node"] + more) for more in (0, table["count"]))
    held = np.repeat(np.arange(len(table)), high - low)  # one row for each of `nodes` in an allocation
    place = np.arange(len(held)) - np.repeat(np.cumsum(high - low) - high, high - low)
    order = np.lexsort((start[held], place))
    job = ids.get_indexer(pd.Index(table["job_id"]))[held][order]
    start, end, place = start[held][order], end[held][order], place[order]
    first, last = (np.searchsorted(place, np.arange(len(nodes)), side=side) for side in ("left", "right"))
    found = np.full((len(nodes), len(instants)), -1, dtype=np.int64)
    for row, (low, high) in enumerate(zip(first, last, strict=True)):
        if high > low:
            at = np.searchsorted(start[low:high], instants, side="right") - 1 + low
            held = (at >= low) & (end[np.maximum(at, low)] > instants)
            found[row, held] = job[at[held]]
    return found


def _height(nodes: int) -> float:
    return float(np.clip(0.28 * nodes, 1.1, 3.2))


def _most(width: float) -> int:
    return BARS if width >= WIDE else BARS // 5


def _colors(run: Run, ids: pd.Index[Any]) -> npt.NDArray[np.float64]:
    """Return a color for each job, shape (jobs, 4). If there are malleable jobs, rigid jobs are translucent."""
    colors = np.array([mpl.colors.to_rgba(color) for color in JOBS])[np.arange(len(ids)) % len(JOBS)]
    rigid = (run.jobs.set_index("job_id")["kind"].reindex(ids) != "malleable").to_numpy()
    colors[:, 3] = np.where(rigid & ~rigid.all(), 0.4, 0.9)
    return colors


def _draw_bars(axes: Axes, run: Run, bars: pd.DataFrame, ids: pd.Index[Any], time: TimeAxis, *, titles: bool) -> None:
    x0, x1 = (bars[name].to_numpy(dtype=np.float64) / time.unit for name in ("start", "end"))
    y0, y1 = (bars["low"] + bars["upper"]).to_numpy(), (bars["high"] + bars["lower"]).to_numpy()
    corners = np.stack([np.column_stack(c) for c in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))], axis=1)
    job = bars["job"].to_numpy()
    colors = _colors(run, ids)[job]
    malleable = (run.jobs.set_index("job_id")["kind"].reindex(ids) == "malleable").to_numpy()[job]
    # Edges in the color of a malleable job show that its steps belong together.
    edges = np.where(malleable[:, None], np.append(0.6 * colors[:, :3], np.ones((len(job), 1)), axis=1), 1.0)
    collection = PolyCollection(
        list(corners), facecolors=colors, edgecolors=edges, linewidths=0.5 if len(bars) < 500 else 0.2
    )
    if titles:
        collection.set_urls(_titles(run, bars, ids))
    axes.add_collection(collection)


def _titles(run: Run, bars: pd.DataFrame, ids: pd.Index[Any]) -> list[str]:
    """Return the tooltip of each bar: job, nodes, state, start and end of the bar and of the job."""
    names = [node.name for node in run.info.nodes]
    share = bars["lower"] - bars["upper"]
    jobs = run.jobs.set_index("job_id").reindex(ids[bars["job"]])
    columns = [jobs["kind"], jobs["state"], jobs["start"] - origin(run), jobs["end"] - origin(run)]
    columns += [*(bars[name] for name in ("low", "high", "start", "end")), share]
    titles = []
    rows = zip(jobs.index, *(column.tolist() for column in columns), strict=True)
    for name, kind, state, start, end, low, high, begin, until, part in rows:
        nodes = names[low] if low == high else f"{names[low]} to {names[high]}"
        if part < 1:
            nodes += f", {part * run.info.nodes[low].cores:.0f} of {run.info.nodes[low].cores} cores"
        lines = [f"job {name}, {kind}, {state}", f"{nodes}: {begin:,.1f} to {until:,.1f} s"]
        if (start, end) != (begin, until):
            lines.append(f"start {start:,.1f} s, end {end:,.1f} s")
        titles.append("\n".join(lines))
    return titles


def _draw_sampled(axes: Axes, run: Run, ids: pd.Index[Any], time: TimeAxis, height: float) -> None:
    """Draw a chart as an image: each pixel has the color of the job that holds the node at that instant."""
    width = axes.get_position().width * axes.get_figure(root=True).get_figwidth()  # type: ignore[union-attr]
    columns, rows = int(200 * width), int(min(run.total_nodes, 200 * height))
    nodes = np.floor((np.arange(rows) + 0.5) * run.total_nodes / rows).astype(np.int64)
    instants = (np.arange(columns) + 0.5) * time.end / columns
    job = sample(run, ids, nodes, instants)
    image = _colors(run, ids)[np.maximum(job, 0)]
    image[job < 0] = 0.0
    axes.imshow(
        image,
        extent=(0.0, time.end / time.unit, float(run.total_nodes), 0.0),
        aspect="auto",
        interpolation="nearest",
        rasterized=True,
    )


SECTION = Section("Jobs on nodes", 400, _compared)
