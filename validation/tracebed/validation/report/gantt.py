"""Gantt charts of the nodes held by jobs over time.

A density chart, the share of busy cores by node and time, takes the place of a chart with more bars than a picture can
show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.table import concatenated, encoded, expanded
from tracebed.machine.power import PowerState
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import origin
from tracebed.validation.metrics.power import ASLEEP, SleepPeriods, has_states
from tracebed.validation.pictures import Picture
from tracebed.validation.report import style
from tracebed.validation.report.scales import TimeAxis
from tracebed.validation.report.sections import MOST_DATA, Section
from tracebed.validation.report.style import DASHED, INK, JOBS, NARROW, PREDICTED, REAL, SOFT, heading, panels, small
from tracebed.validation.report.words import real_side
from tracebed.validation.verdict import Comparison

BARS = 3_000  # number of bars above which a chart shows the density of jobs; a fifth of it for narrow ones
DARKER = 0.6  # factor of the color of a malleable job for its edges
NAMES = 16  # number of nodes above which an axis shows numbers instead of names

SLEEP = {PowerState.BOOT: "////", PowerState.SHUTDOWN: r"\\", PowerState.OFF: ""}
"""State of a node that is not on -> its hatch."""
COLUMNS, ROWS = 240, 64  # largest number of bins of time and of groups of nodes
Ids = Callable[[], "pd.Index[Any]"]  # return the ids of jobs; only charts with bars need them
COLORS = "Blues"  # color map: from light to dark, in print and for the color blind, too


def picture(run: Run) -> Picture:
    """Return the Gantt chart of a run: nodes from top to bottom, time after the first submission; or an empty one."""
    ids, time = ids_of(run), TimeAxis.of(run)

    def draw_one(width: float) -> Figure:
        figure, (axes,) = panels(1, height_of(run.total_nodes), width)
        draw(axes, run, ids, time)
        legend(axes, run)
        return figure

    caption = f"Jobs on nodes over time. {about_bars([run], ids)}{time.note('of the')}"
    return Picture(draw_one, caption, "Gantt chart", data=lambda: frame({"": run}), is_large=is_large(run))


def ids_of(*runs: Run) -> Ids:
    """Return a function that returns the ids of the jobs of `runs`, each once."""

    @cache
    def ids() -> pd.Index[Any]:
        texts = encoded(concatenated([run.table("jobs").raw("job_id") for run in runs]))[1]
        known: pd.Index[Any] = pd.Index(pd.array(texts, dtype="str"))
        return known

    return ids


def frame(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Return the bars of charts, a row per bar and run: job_id, nodes, start and end, s after the first submission."""
    bars_of_runs = []
    for name, run in runs.items():
        ids = ids_of(run)()
        bars = blocks(run, ids)
        named = bars.assign(job_id=ids[bars["job"]], run=name).rename(columns={"low": "node", "high": "last_node"})
        bars_of_runs.append(named[["run", "job_id", "node", "last_node", "start", "end"]])
    table = pd.concat(bars_of_runs, ignore_index=True)
    return table if len(runs) > 1 else table.drop(columns="run")


def about_bars(runs: Sequence[Run], ids: Ids) -> str:
    """Return the sentences about the colors of the bars, for a caption."""
    malleable = any(run.table("jobs").equal("kind", "malleable").any() for run in runs)
    resized = any((run.are_resizes & run.table("reconfigurations").equal("state", "applied")).any() for run in runs)
    steps = "; steps are expansions or shrinks" if resized else ""
    shades = f" Full colors: malleable jobs{steps}. Pale: rigid jobs." if malleable else ""
    shared = any(run.jobs_on_shared_nodes for run in runs)
    parts = " Jobs on a shared node are parts of its row." if shared else ""
    dense = any(len(run.table("allocations")) > BARS and _bars(run, ids, BARS) is None for run in runs)
    many = f"More than {BARS:,} bars: the share of busy cores by node and time." if dense else ""
    sleep = any(map(has_states, runs))
    states = " Grey: nodes that are off. Hatched: nodes that boot or are being switched off." if sleep else ""
    return many or f"Numbers: jobs. Colors repeat.{shades}{parts}{states}"


def small_gantt_svg(run: Run) -> str:
    """Return a small Gantt chart of a run as an <svg> element for HTML, 4.6 inches wide, with tooltips of the bars."""
    # The text has the color of the surrounding text.
    with mpl.rc_context(style.STYLE):
        figure, (axes,) = panels(1, min(height_of(run.total_nodes), 1.6), NARROW)
        draw(axes, run, ids_of(run), TimeAxis.of(run), titles=True)
        text = style.svg(figure, "small")
    for color in (INK, style.SOFT):
        text = text.replace(f"var(--{style.VARIABLES[color]}, {color})", "currentColor")
    return text.replace("<svg ", f'<svg style="width: {NARROW}in; max-width: 100%" ', 1)


def _compared(comparison: Comparison) -> Picture | None:
    """Return the charts of both runs, one above the other on one time axis, or None if neither run has allocations."""
    sides = ((comparison.real, "real", REAL), (comparison.predicted, "predicted", PREDICTED))
    if not any(len(run.table("allocations")) for run, _, _ in sides):
        return None
    time = TimeAxis.of(comparison.real, comparison.predicted)
    nodes = max(run.total_nodes for run, _, _ in sides)
    ids = ids_of(comparison.real, comparison.predicted)

    def draw_both(width: float) -> Figure:
        figure, both = panels(2, height_of(nodes), width)
        for axes, (run, name, color), last in zip(both, sides, time.last, strict=True):
            draw(axes, run, ids, time, nodes=nodes, titles=True, label=axes is both[-1])
            heading(axes, name, color)
            if axes is both[0]:
                legend(axes, run)
            if 0 < last <= time.end:
                axes.axvline(last / time.unit, color=color, linewidth=0.9, linestyle=DASHED)
            elif last:
                text = f"last job ends at {time.show(last)} \N{RIGHTWARDS ARROW}"
                axes.text(0.99, 0.03, text, ha="right", va="bottom", transform=axes.transAxes)
        return figure

    caption = (
        f"Jobs on nodes over time: the real run ({real_side(comparison.real.info)}) above, the prediction below. A job "
        f"has the same color in both charts."
    ) + (" Grey: nodes that are not on." if any(has_states(run) for run, _, _ in sides) else "")
    about = f" {about_bars([run for run, _, _ in sides], ids)} Dashed: last end.{time.note('real', 'predicted')}"
    return Picture(
        draw_both,
        caption,
        "Two Gantt charts, real above predicted, on one time axis",
        chart="gantt",
        about_figure=about,
        data=lambda: frame({name: run for run, name, _ in sides}),
        is_large=is_large(comparison.real, comparison.predicted),
    )


def draw(
    axes: Axes,
    run: Run,
    ids: Ids,
    time: TimeAxis,
    *,
    nodes: int | None = None,
    titles: bool = False,
    label: bool = True,
) -> None:
    """Draw the chart of a run in `nodes` rows; the position in `ids` is the color of a job, `titles` makes tooltips."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    bars = _bars(run, ids, BARS if figure.get_figwidth() > NARROW else BARS // 5, time.end)
    if bars is None:
        draw_density(axes, run, time)
    elif len(bars):
        _draw_bars(axes, run, bars, ids(), time, titles=titles)
        _draw_sleep(axes, run, time)
    axes.set_ylim(nodes or run.total_nodes or 1, 0)
    names = [node.name for node in run.info.nodes]
    if 0 < len(names) <= NAMES:
        longest = 12 if figure.get_figwidth() > NARROW else 7
        shown = [name if len(name) <= longest else f"{name[: longest - 1]}…" for name in names]
        rows = 72 * axes.get_position().height * figure.get_figheight() / (1.1 * float(mpl.rcParams["font.size"]))
        every = -(-len(names) // max(1, int(rows)))
        axes.set_yticks(np.arange(0, len(names), every) + 0.5, shown[::every])
        axes.tick_params(axis="y", length=0)
    else:
        axes.set_ylabel("node")
        axes.yaxis.set_major_formatter("{x:,.0f}")
    time.apply(axes, label=label)
    if bars is not None and axes.collections and isinstance(axes.collections[0], PolyCollection):
        _number(axes, bars, ids(), time)


def legend(axes: Axes, run: Run) -> None:
    """Draw the meaning of the colors above a chart with bars."""
    if not any(isinstance(each, PolyCollection) for each in axes.collections):
        return
    color = JOBS[0]
    malleable = run.jobs["kind"] == "malleable"
    handles = [
        Patch(facecolor=(color, 0.9), edgecolor=_darker(color), label="malleable job"),
        Patch(facecolor=(color, 0.4 if malleable.any() else 0.9), label="rigid job"),
    ]
    there = [handle for handle, known in zip(handles, (malleable.any(), not malleable.all()), strict=True) if known]
    drawn = {each.get_label() for each in axes.collections}
    for state, hatch in SLEEP.items():
        if state in drawn:
            face, edge = _shade(hatch)
            there.append(Patch(facecolor=face, edgecolor=edge, hatch=hatch, linewidth=0, label=state.value))
    axes.legend(
        handles=there, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=5, frameon=False, borderaxespad=0.1,
        handlelength=1.2, columnspacing=1.2,
    )  # fmt: skip


def _number(axes: Axes, bars: pd.DataFrame, ids: pd.Index[Any], time: TimeAxis) -> None:
    """Write the number of each job on its largest bar, if it fits."""
    figure, box = axes.get_figure(root=True), axes.get_position()
    assert figure is not None
    across = 72 * figure.get_figwidth() * box.width / np.ptp(axes.get_xlim()) / time.unit  # points for each second
    down = 72 * figure.get_figheight() * box.height / np.ptp(axes.get_ylim())
    wide = (bars["end"] - bars["start"]).to_numpy() * across
    high = (bars["high"] + bars["lower"] - bars["low"] - bars["upper"]).to_numpy() * down
    job, size = bars["job"].to_numpy(), small()
    order = np.argsort(-wide * high, kind="stable")
    _, first = np.unique(job[order], return_index=True)
    for bar in order[first]:
        text = str(ids[job[bar]])
        if wide[bar] > 0.65 * size * len(text) + 2 and high[bar] > size:
            row = bars.iloc[bar]
            at = (
                (row["start"] + row["end"]) / 2 / time.unit,
                (row["low"] + row["upper"] + row["high"] + row["lower"]) / 2,
            )
            axes.text(*at, text, ha="center", va="center", fontsize=size, clip_on=True)


def blocks(run: Run, ids: pd.Index[Any]) -> pd.DataFrame:
    """Return the bars of a chart. Adjacent nodes held by one job for the same time form one bar.

    Jobs on a shared node are bars in parts of its row, as high as their shares of the cores. A row per bar: job
    (position in `ids`), low and high (first and last node), start and end (s after the first submission), upper and
    lower (the edges of the bar in the row of its node, 0 to 1).
    """
    rows, zero = run.table("allocations"), origin(run)
    start, end = rows["start"] - zero, rows["end"] - zero
    rows, start, end = rows.take(end > start), start[end > start], end[end > start]
    job = ids.get_indexer(ids_of(run)())[rows.rows_in("job_id", run.table("jobs"))]
    order = np.lexsort((rows["node"], end, start, job))
    job, start, end, low = job[order], start[order], end[order], rows["node"][order]
    columns = {"job": job, "start": start, "end": end, "low": low, "high": low + rows["count"][order] - 1}
    cores = np.array([node.cores for node in run.info.nodes], dtype=np.int64)
    held = rows["cores"][order]
    if (held < cores[low]).any():
        table = _in_rows(pd.DataFrame({**columns, "cores": held}), cores)
        columns = {name: table[name].to_numpy() for name in (*columns, "upper", "lower")}
        job, start, end, low = (columns[name] for name in ("job", "start", "end", "low"))
    else:
        columns |= {"upper": np.zeros(len(job)), "lower": np.ones(len(job))}
    whole = (columns["upper"] == 0) & (columns["lower"] == 1)
    same = (job[1:] == job[:-1]) & (start[1:] == start[:-1]) & (end[1:] == end[:-1])
    same &= (low[1:] == columns["high"][:-1] + 1) & whole[1:] & whole[:-1]
    first = np.flatnonzero(np.append(True, ~same)[: len(job)])
    last = np.append(first[1:], len(job))[: len(first)] - 1
    names = ("job", "low", "high", "start", "end", "upper", "lower")
    return pd.DataFrame({name: columns[name][last if name == "high" else first] for name in names})


def _bars(run: Run, ids: Ids, most: int, until: float = np.inf) -> pd.DataFrame | None:
    """Return the bars that start by `until` (s after the first submission), or None if there are more than `most`."""
    if _with_bars(run, most, until) > most:
        return None
    bars = blocks(run, ids())
    bars = bars[bars["start"] <= until]
    return bars if len(bars) <= most else None


def _with_bars(run: Run, most: int, until: float = np.inf) -> int:
    """Return the number of jobs with a bar that starts by `until`, at most one for each; above `most`, a part of it."""
    jobs, zero = run.table("jobs"), origin(run)
    drawn = np.zeros(len(jobs), dtype=bool)
    for block in run.table("allocations").blocks():
        start = block["start"] - zero
        drawn[block.rows_in("job_id", jobs)[(block["end"] - zero > start) & (start <= until)]] = True
        if drawn.sum() > most:
            break
    return int(drawn.sum())


def is_large(*runs: Run) -> bool:
    """Return whether the bars of `runs` are more data than a page offers: they have five columns or more."""
    return any(_with_bars(run, MOST_DATA // 5) > MOST_DATA // 5 for run in runs)


def _in_rows(table: pd.DataFrame, cores: IntArray) -> pd.DataFrame:
    """Return the bars with the columns `upper` and `lower`. A bar with parts of several nodes becomes one of each."""
    # On each node, the job that came first is at the top, as the owner of a node holds its first cores.
    part = table["cores"].to_numpy() < cores[table["low"].to_numpy()]
    size = np.where(part, table["high"] - table["low"] + 1, 1)
    rows, low = expanded(table["low"].to_numpy(), size)
    table, part = table.iloc[rows].reset_index(drop=True), part[rows]
    table["low"] = low
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


def height_of(nodes: int) -> float:
    """Return the height of a chart, inches."""
    return float(np.clip(0.28 * nodes, 1.1, 3.2))


def _colors(run: Run, ids: pd.Index[Any]) -> npt.NDArray[np.float64]:
    """Return a color for each job, shape (jobs, 4). If there are malleable jobs, rigid jobs are translucent."""
    colors = np.array([mpl.colors.to_rgba(color) for color in JOBS])[np.arange(len(ids)) % len(JOBS)]
    rigid = (run.jobs.set_index("job_id")["kind"].reindex(ids) != "malleable").to_numpy()
    colors[:, 3] = np.where(rigid & ~rigid.all(), 0.4, 0.9)
    return colors


def _darker(color: str) -> tuple[float, float, float]:
    red, green, blue = mpl.colors.to_rgb(color)
    return DARKER * red, DARKER * green, DARKER * blue


def _draw_bars(axes: Axes, run: Run, bars: pd.DataFrame, ids: pd.Index[Any], time: TimeAxis, *, titles: bool) -> None:
    x0, x1 = (bars[name].to_numpy(dtype=np.float64) / time.unit for name in ("start", "end"))
    y0, y1 = (bars["low"] + bars["upper"]).to_numpy(), (bars["high"] + bars["lower"]).to_numpy()
    corners = np.stack([np.column_stack(c) for c in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))], axis=1)
    job = bars["job"].to_numpy()
    colors = _colors(run, ids)[job]
    malleable = (run.jobs.set_index("job_id")["kind"].reindex(ids) == "malleable").to_numpy()[job]
    # Edges in the color of a malleable job show that its steps belong together.
    edges = np.where(malleable[:, None], np.append(DARKER * colors[:, :3], np.ones((len(job), 1)), axis=1), 1.0)
    collection = PolyCollection(
        list(corners), facecolors=colors, edgecolors=edges, linewidths=0.5 if len(bars) < 500 else 0.2
    )
    if titles:
        collection.set_urls(_titles(run, bars, ids))
    axes.add_collection(collection)


def _draw_sleep(axes: Axes, run: Run, time: TimeAxis) -> None:
    """Draw the periods in which nodes are not on, if they are few enough: grey if off, hatched if they change."""
    bars = sleep_blocks(run, time.end)
    if len(bars) > BARS:
        return
    for state, hatch in SLEEP.items():
        own = bars[bars["state"] == ASLEEP.index(state)]
        x0, x1 = own["start"] / time.unit, own["end"] / time.unit
        y0, y1 = own["low"], own["high"] + 1
        corners = np.stack([np.column_stack(c) for c in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))], axis=1)
        face, edge = _shade(hatch)
        if len(own):
            axes.add_collection(
                PolyCollection(
                    list(corners), facecolors=face, edgecolors=edge, hatch=hatch, linewidths=0, label=state.value
                )
            )


def _shade(hatch: str) -> tuple[Any, Any]:
    """Return the colors of the face and of the edges of nodes that are not on."""
    return ("none", SOFT) if hatch else ((SOFT, 0.22), "none")


def sleep_blocks(run: Run, end: float) -> pd.DataFrame:
    """Return the periods until `end` (s) in which nodes are not on, those of adjacent nodes as one.

    A row per period: state (index into `ASLEEP`), low and high (first and last node), start and end (s after the first
    submission).
    """
    sleep = SleepPeriods.of(run, origin(run))
    start, until = np.maximum(sleep.start, 0.0), np.minimum(sleep.end, end)
    there = np.flatnonzero(start < until)
    order = there[np.lexsort((sleep.node[there], until[there], start[there], sleep.state[there]))]
    state, node, start, until = sleep.state[order], sleep.node[order], start[order], until[order]
    same = (state[1:] == state[:-1]) & (start[1:] == start[:-1]) & (until[1:] == until[:-1])
    first = np.flatnonzero(np.append(True, ~(same & (np.diff(node) == 1)))[: len(order)])
    last = np.append(first[1:], len(order))[: len(first)] - 1
    return pd.DataFrame(
        {"state": state[first], "low": node[first], "high": node[last], "start": start[first], "end": until[first]}
    )


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


SECTION = Section("Jobs on nodes", 400, _compared)


def density(run: Run, end: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return edges of groups of nodes, edges of bins of time (s), and shares of busy cores, shape (groups, bins)."""
    nodes, zero = run.total_nodes, origin(run)
    rows = min(nodes, ROWS)
    cores = np.array([node.cores for node in run.info.nodes], dtype=np.float64)
    area = np.zeros((rows + 3, COLUMNS + 3))
    for block in run.table("allocations").blocks():
        start, until = block["start"] - zero, block["end"] - zero
        there = (until > start) & (start < end)
        start, until, held = start[there], np.minimum(until[there], end), block.take(there)
        weight, low = held["cores"] / cores[held["node"]], held["node"].astype(np.float64)
        # A rectangle is the signed sum of four quadrants, each from a corner to the right and down. The differences of
        # a quadrant between neighboring cells are not 0 in the four cells at its corner only.
        for y, sign_y in ((low, 1.0), (low + held["count"], -1.0)):
            for x, sign_x in ((start, 1.0), (until, -1.0)):
                at = (y * rows / nodes, x * COLUMNS / end)
                cell = [np.floor(each).astype(np.int64) for each in at]
                rest = [each - whole for each, whole in zip(at, cell, strict=True)]
                for up in (0, 1):
                    for right in (0, 1):
                        share = (rest[0] if up else 1.0 - rest[0]) * (rest[1] if right else 1.0 - rest[1])
                        place = (cell[0] + up) * area.shape[1] + cell[1] + right
                        np.add.at(area.ravel(), place, sign_y * sign_x * share * weight)
    shares = area.cumsum(axis=0).cumsum(axis=1)[:rows, :COLUMNS]
    return np.linspace(0.0, nodes, rows + 1), np.linspace(0.0, end, COLUMNS + 1), np.clip(shares, 0.0, 1.0)


def draw_density(axes: Axes, run: Run, time: TimeAxis) -> None:
    """Draw the density chart of a run with its color bar."""
    nodes, times, shares = density(run, time.end)
    image = axes.pcolormesh(times / time.unit, nodes, 100.0 * shares, cmap=COLORS, vmin=0, vmax=100, rasterized=True)
    figure = axes.get_figure(root=True)
    assert figure is not None
    box = axes.get_position()
    inch = 1.0 / figure.get_figwidth()
    axes.set_position((box.x0, box.y0, box.width - 0.42 * inch, box.height))
    place = figure.add_axes((box.x1 - 0.3 * inch, box.y0, 0.09 * inch, box.height))
    bar = figure.colorbar(image, cax=place, ticks=[0, 50, 100])
    bar.set_label("busy cores (%)", size=small(), labelpad=1)
    bar.ax.tick_params(labelsize=small(), pad=1, length=2)
    bar.outline.set_visible(False)
