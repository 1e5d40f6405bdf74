"""The pictures of a report, as SVG without a reference to anything outside.

All time axes are seconds (or minutes, hours, days) after each run's own first submission and have the same
limits, so that pictures can be read one below the other. Colours are of Paul Tol's colour-blind safe schemes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tracebed.converters.workload import FloatArray, IntArray
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import busy_cores, origin, total_cores, waiting
from tracebed.validation.steps import Steps
from tracebed.validation.verdict import Comparison

REAL, PREDICTED = "#004488", "#bb5566"
JOB_COLOURS = (
    "#332288",
    "#88ccee",
    "#44aa99",
    "#117733",
    "#999933",
    "#ddcc77",
    "#cc6677",
    "#882255",
    "#aa4499",
)
VECTOR = 3_000
"""Marks above which a collection becomes pixels inside the SVG."""
RECTANGLES = 20_000
"""Rectangles above which a Gantt chart is sampled at the picture's resolution."""
BINS = 800
"""Bins of a step curve that has more steps than can be told apart."""
WIDTH, LEFT, RIGHT = 11.2, 0.85, 0.25  # inches; the same on every picture, so that time axes align
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tracebed",
    "text.parse_math": False,  # names come from users' files
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans", "sans-serif"],
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#777777",
    "axes.labelcolor": "#333333",
    "axes.linewidth": 0.6,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.unicode_minus": True,
}


@dataclass(frozen=True)
class Picture:
    """An SVG element with the text below it."""

    name: str
    svg: str
    caption: str
    alt: str


def pictures(comparison: Comparison, real_side: str) -> list[Picture]:
    """Draw every picture that the two runs have data for.

    Args:
        comparison: the comparison.
        real_side: what the real side is, for captions (`replayed on emulated nodes`).
    """
    time = _TimeAxis.of(comparison)
    found = []
    with mpl.rc_context(STYLE):
        for name, draw, caption, alt in _all(comparison, real_side):
            figure = draw(comparison, time)
            if figure is not None:
                found.append(Picture(name, _svg(figure, name), caption, alt))
    return found


Draw = Callable[[Comparison, "_TimeAxis"], Figure | None]


def _all(comparison: Comparison, real_side: str) -> list[tuple[str, Draw, str, str]]:
    malleable = (comparison.real.jobs["kind"] == "malleable").any()
    shades = (
        " Full colours: malleable jobs, whose steps are their expansions and shrinkings; pale: rigid."
        if malleable
        else ""
    )
    return [
        (
            "gantt",
            gantt,
            f"Who held which nodes, and when. Above the real run ({real_side}), below the prediction, on one "
            f"time axis; a job has the same colour in both.{shades} Dashed: the end of the last job.",
            "Two Gantt charts, real above predicted, on one time axis",
        ),
        (
            "use",
            utilisation,
            f"Share of all cores that jobs hold; real ({real_side}) and predicted. Shaded: after the last "
            "submission, outside the arrival window that the verdict's utilisation is taken over.",
            "Utilisation over time, real and predicted overlaid",
        ),
        (
            "queue",
            queue,
            f"Jobs that wait, real ({real_side}) and predicted.",
            "Queue length over time, real and predicted overlaid",
        ),
        (
            "waits",
            wait_differences,
            "Wait of each job, predicted - real, by the time of its submission, and how these differences "
            "are distributed. Dashed: their mean, the bias; band: limits of agreement, bias ± 1.96 standard "
            f"deviations. Above 0 jobs wait longer in the prediction than in the real run ({real_side}).",
            "Difference of each job's wait, and a histogram",
        ),
        (
            "reconfigurations",
            reconfigurations,
            "Reconfigurations that were applied: nodes that a job gained (up) or gave back (down), at the "
            "instant from which it worked on its new size. Above the real run "
            f"({real_side}), below the prediction.",
            "Reconfigurations over time, real above predicted",
        ),
    ]


@dataclass(frozen=True)
class _TimeAxis:
    """The time axis that all pictures share."""

    end: float
    unit: float
    name: str

    @classmethod
    def of(cls, comparison: Comparison) -> _TimeAxis:
        ends = [
            float((run.allocations["end"] - origin(run)).max())
            for run in (comparison.real, comparison.predicted)
            if run.allocations["end"].notna().any()
        ]
        spans = [m["makespan_s"] for m in (comparison.real_metrics, comparison.predicted_metrics)]
        end = max([*ends, *(s for s in spans if not np.isnan(s)), 1.0])
        for unit, name, least in ((86400.0, "days", 4.0), (3600.0, "h", 3.0), (60.0, "min", 10.0)):
            if end >= least * unit:
                return cls(end, unit, name)
        return cls(end, 1.0, "s")

    def apply(self, axes: Axes, *, label: bool = True) -> None:
        axes.set_xlim(0.0, 1.01 * self.end / self.unit)
        axes.xaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 3, 5, 6, 10]))
        if label:
            axes.set_xlabel(f"time after the first submission ({self.name})")
        else:
            axes.tick_params(labelbottom=False)


def _figure(panels: int, heights: float, *, gap: float = 0.35, bottom: float = 0.5) -> tuple[Figure, list[Axes]]:
    """Return a figure of `panels` below each other, `heights` inches each, with the margins all share."""
    top = 0.3
    height = top + bottom + panels * heights + (panels - 1) * gap
    figure = Figure(figsize=(WIDTH, height))
    width = (WIDTH - LEFT - RIGHT) / WIDTH
    axes = [
        figure.add_axes((LEFT / WIDTH, 1 - (top + (n + 1) * heights + n * gap) / height, width, heights / height))
        for n in range(panels)
    ]
    return figure, axes


def gantt(comparison: Comparison, time: _TimeAxis) -> Figure | None:
    """Draw both Gantt charts above each other on one time axis; None where nobody knows who held what."""
    sides = ((comparison.real, "real", REAL), (comparison.predicted, "predicted", PREDICTED))
    if not any(len(run.allocations) for run, _, _ in sides):
        return None
    nodes = max(run.total_nodes for run, _, _ in sides)
    figure, panels = _figure(2, float(np.clip(0.28 * nodes, 1.1, 3.2)))
    ids = pd.Index(comparison.real.jobs["job_id"]).union(comparison.predicted.jobs["job_id"], sort=False)
    for axes, (run, name, colour) in zip(panels, sides, strict=True):
        blocks = _blocks(run, ids)
        if len(blocks) > RECTANGLES:
            _draw_sampled(axes, run, ids, time, axes.get_position().height * figure.get_figheight())
        else:
            _draw_blocks(axes, run, blocks, ids, time)
        last = float((run.jobs["end"] - origin(run)).max())
        if np.isfinite(last):
            axes.axvline(last / time.unit, color=colour, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.set_ylim(nodes, 0)
        axes.set_title(name, loc="left", fontsize=9.5, fontweight="bold", color=colour, pad=4)
        names = [node.name for node in run.info.nodes]
        if len(names) <= 16:
            axes.set_yticks(np.arange(len(names)) + 0.5, [n if len(n) <= 12 else f"{n[:11]}…" for n in names])
            axes.tick_params(axis="y", length=0)
        else:
            axes.set_ylabel("node")
        time.apply(axes, label=axes is panels[-1])
    return figure


def _blocks(run: Run, ids: pd.Index[Any]) -> pd.DataFrame:
    """Return what jobs hold as rectangles (job, low, high, start, end); neighbours held alike are one."""
    rows = run.allocations
    table = pd.DataFrame(
        {
            "job": ids.get_indexer(pd.Index(rows["job_id"])),
            "start": rows["start"] - origin(run),
            "end": rows["end"] - origin(run),
            "low": rows["node"],
            "high": rows["node"] + rows["count"] - 1,
        }
    )
    table = table[table["end"] > table["start"]].sort_values(["job", "start", "end", "low"], ignore_index=True)
    same = (table[["job", "start", "end"]].diff() == 0).all(axis=1) & (table["low"] == table["high"].shift() + 1)
    block = (~same).cumsum()
    return table.groupby(block, sort=False).agg(
        job=("job", "first"),
        low=("low", "first"),
        high=("high", "last"),
        start=("start", "first"),
        end=("end", "first"),
    )


def _colours(run: Run, ids: pd.Index[Any]) -> npt.NDArray[np.float64]:
    """Return a colour for each of `ids`, shape (jobs, 3): by its place; pale if rigid among malleable."""
    colours = np.array([mpl.colors.to_rgb(colour) for colour in JOB_COLOURS])[np.arange(len(ids)) % len(JOB_COLOURS)]
    kinds = run.jobs.set_index("job_id")["kind"].reindex(ids)
    rigid = (kinds != "malleable").to_numpy()
    share = np.where(rigid & ~rigid.all(), 0.35, 0.85)[:, None]
    return np.asarray(share * colours + (1 - share))


def _draw_blocks(axes: Axes, run: Run, blocks: pd.DataFrame, ids: pd.Index[Any], time: _TimeAxis) -> None:
    x0, x1 = (blocks[name].to_numpy(dtype=np.float64) / time.unit for name in ("start", "end"))
    y0, y1 = blocks["low"].to_numpy(dtype=np.float64), blocks["high"].to_numpy(dtype=np.float64) + 1
    corners = np.stack([np.column_stack(c) for c in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))], axis=1)
    few = len(blocks) <= VECTOR
    job = blocks["job"].to_numpy()
    colours = _colours(run, ids)[job]
    malleable = (run.jobs.set_index("job_id")["kind"].reindex(ids) == "malleable").to_numpy()[job]
    axes.add_collection(
        PolyCollection(
            list(corners),
            facecolors=colours,
            # The steps of a malleable job belong together: a line of its own hue between them, not a gap.
            edgecolors=np.where(malleable[:, None], 0.6 * colours, 1.0) if few else "none",
            linewidths=0.5 if len(blocks) < 500 else 0.2,
            rasterized=not few,
        )
    )


def _draw_sampled(axes: Axes, run: Run, ids: pd.Index[Any], time: _TimeAxis, inches: float) -> None:
    """Draw a chart of very many rectangles as what each pixel's node does at the pixel's instant."""
    columns, rows = 2200, int(min(run.total_nodes, 200 * inches))
    nodes = np.floor((np.arange(rows) + 0.5) * run.total_nodes / rows).astype(np.int64)
    instants = (np.arange(columns) + 0.5) * time.end / columns
    job = _sample(run, ids, nodes, instants)
    image = np.ones((rows, columns, 4))
    image[..., :3] = _colours(run, ids)[np.maximum(job, 0)]
    image[..., 3] = job >= 0
    axes.imshow(
        image,
        extent=(0.0, time.end / time.unit, float(run.total_nodes), 0.0),
        aspect="auto",
        interpolation="nearest",
        rasterized=True,
    )


def _sample(run: Run, ids: pd.Index[Any], nodes: IntArray, instants: FloatArray) -> IntArray:
    """Return which job holds each of `nodes` (ascending) at each of `instants`, shape (nodes, instants); -1: none."""
    table = run.allocations
    start = table["start"].to_numpy(dtype=np.float64) - origin(run)
    end = table["end"].to_numpy(dtype=np.float64) - origin(run)
    low, high = (np.searchsorted(nodes, table["node"] + more) for more in (0, table["count"]))
    held = np.repeat(np.arange(len(table)), high - low)  # a row for each of `nodes` in an allocation
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


def _curve(axes: Axes, steps: Steps, time: _TimeAxis, scale: float, name: str, colour: str) -> None:
    """Draw a step function: exactly, or as averages of bins where it has too many steps to be seen."""
    dashed: Any = "-" if colour == REAL else (0, (5, 1.5))
    if len(steps.times) <= 2 * BINS:
        x = np.concatenate(([0.0], steps.times, [time.end]))
        y = np.concatenate((steps.at(np.zeros(1)), steps.values, [0.0]))
    else:
        x = np.linspace(0.0, time.end, BINS + 1)
        y = np.append(steps.means(x), 0.0)
    x, y = x / time.unit, y / scale
    axes.step(x, y, where="post", color=colour, linewidth=1.1, linestyle=dashed, label=name)
    if colour == REAL:
        axes.fill_between(x, y, step="post", color=colour, alpha=0.10, linewidth=0)


def _two_curves(comparison: Comparison, time: _TimeAxis, of: Callable[[Run], tuple[Steps, float]]) -> Figure:
    figure, (axes,) = _figure(1, 1.9)
    for run, name, colour in (
        (comparison.real, "real", REAL),
        (comparison.predicted, "predicted", PREDICTED),
    ):
        steps, scale = of(run)
        _curve(axes, steps, time, scale, name, colour)
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False, borderaxespad=0.1)
    time.apply(axes)
    return figure


def utilisation(comparison: Comparison, time: _TimeAxis) -> Figure | None:
    """Draw the share of cores held, real and predicted; None where no run says who held which nodes."""
    if not any(len(run.allocations) for run in (comparison.real, comparison.predicted)):
        return None
    figure = _two_curves(comparison, time, lambda run: (busy_cores(run), max(total_cores(run), 1)))
    axes = figure.axes[0]
    axes.set_ylim(0, 1.04)
    axes.set_ylabel("utilisation")
    window = comparison.real_metrics["utilization_window"]
    if window["name"] == "arrivals":
        axes.axvspan(window["end_s"] / time.unit, 1.01 * time.end / time.unit, color="#888888", alpha=0.12, linewidth=0)
    return figure


def queue(comparison: Comparison, time: _TimeAxis) -> Figure:
    """Draw how many jobs wait, real and predicted."""
    figure = _two_curves(comparison, time, lambda run: (waiting(run), 1.0))
    figure.axes[0].set_ylabel("waiting jobs")
    figure.axes[0].yaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


def wait_differences(comparison: Comparison, time: _TimeAxis) -> Figure | None:
    """Draw each job's difference of waits and their histogram; None without a matched job."""
    jobs, agreement = comparison.jobs, comparison.differences["wait"]
    if agreement is None:
        return None
    d = (jobs["wait_predicted"] - jobs["wait_real"]).to_numpy(dtype=np.float64)
    figure, (axes,) = _figure(1, 2.3)
    box = axes.get_position()
    axes.set_position((box.x0, box.y0, box.width * 0.80, box.height))
    beside = figure.add_axes((box.x0 + box.width * 0.82, box.y0, box.width * 0.18, box.height), sharey=axes)
    axes.axhspan(*agreement.limits, color=REAL, alpha=0.08, linewidth=0)
    axes.axhline(0.0, color="#777777", linewidth=0.7)
    axes.axhline(agreement.bias, color=REAL, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.scatter(
        jobs["submit_real"] / time.unit,
        d,
        s=9 if len(d) <= VECTOR else 3,
        color=PREDICTED,
        alpha=0.6 if len(d) <= VECTOR else 0.25,
        linewidths=0,
        rasterized=len(d) > VECTOR,
    )
    axes.set_ylabel("predicted - real wait (s)")
    last = max(float(jobs["submit_real"].max()), 1e-9)
    axes.set_xlim(-0.01 * last / time.unit, 1.01 * last / time.unit)
    axes.set_xlabel(f"submission ({time.name} after the first)")
    beside.hist(d, bins=40, orientation="horizontal", color=PREDICTED, alpha=0.7)
    beside.axhline(agreement.bias, color=REAL, linewidth=0.9, linestyle=(0, (4, 3)))
    beside.tick_params(labelleft=False)
    beside.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    beside.set_xlabel("jobs")
    return figure


def reconfigurations(comparison: Comparison, time: _TimeAxis) -> Figure | None:
    """Draw applied reconfigurations over time, real above predicted; None where there are none."""
    sides = []
    for run in (comparison.real, comparison.predicted):
        table = run.reconfigurations
        table = table[(table["state"] == "applied") & table["applied"].notna()]
        x = (table["applied"] - origin(run)).to_numpy(dtype=np.float64) / time.unit
        sides.append((x, (table["nodes_to"] - table["nodes_from"]).to_numpy(dtype=np.float64)))
    if not any(len(x) for x, _ in sides):
        return None
    figure, panels = _figure(2, 1.1)
    reach = max(float(np.abs(y).max(initial=1.0)) for _, y in sides) * 1.15
    for axes, (x, y), name, colour in zip(panels, sides, ("real", "predicted"), (REAL, PREDICTED), strict=True):
        many = len(x) > VECTOR
        axes.axhline(0.0, color="#777777", linewidth=0.7)
        axes.vlines(x, 0.0, y, color=colour, linewidth=0.8, alpha=0.35 if many else 0.8, rasterized=many)
        axes.scatter(x, y, s=8, color=colour, linewidths=0, rasterized=many)
        axes.set_ylim(-reach, reach)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_ylabel("nodes")
        axes.set_title(
            f"{name}: {int((y > 0).sum()):,} expanded, {int((y < 0).sum()):,} shrunk",
            loc="left",
            fontsize=9.5,
            fontweight="bold",
            color=colour,
            pad=4,
        )
        time.apply(axes, label=axes is panels[-1])
    return figure


def _svg(figure: Figure, name: str) -> str:
    """Return the figure as an <svg> element for inlining in HTML: no prolog, no metadata, ids of its own."""
    file = io.StringIO()
    figure.savefig(file, format="svg", dpi=200, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text, count=2)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text, count=1)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
