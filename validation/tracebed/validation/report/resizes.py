"""Report sections about malleable jobs: times of reconfigurations, durations of their stages, and staircases.

The staircases are the nodes or cores held over time, real and predicted. Runs that change the size of no job, and give
each the same size, have no staircases: all would be boxes, as of rigid jobs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.metrics import origin
from tracebed.validation.pictures import Picture
from tracebed.validation.report.scales import TimeAxis
from tracebed.validation.report.sections import Section
from tracebed.validation.report.style import DASHED, MARKS, NARROW, PREDICTED, REAL, SOFT, heading, panels, scale, small
from tracebed.validation.report.templates import fill
from tracebed.validation.report.words import real_side
from tracebed.validation.verdict import Comparison
from tracebed.validation.verdict.resizing import allocations_of_jobs, areas_between, sizes_of, whole_nodes

SHOWN = 12  # largest number of staircases in a report


def _over_time(comparison: Comparison) -> tuple[Picture, ...] | None:
    """Return the plots of applied changes of nodes and of cores, as far as a run has any."""
    where = f"The real run ({real_side(comparison.real.info)}) above, the prediction below."
    nodes = (
        "Applied reconfigurations: nodes that a job gained (up) or released (down), at the instant at which the new "
        f"size became effective. {where}"
    )
    cores = (
        "Applied changes of cores: cores that a job gained (up) or released (down) on a node, at the instant at which "
        f"its rank had the new CPUs. {where}"
    )
    return tuple(filter(None, (_drawn(comparison, "nodes", nodes), _drawn(comparison, "cores", cores)))) or None


def _drawn(comparison: Comparison, unit: str, caption: str) -> Picture | None:
    """Return the plot of the applied changes of `unit`, nodes or cores, or None if neither run has any."""
    time = TimeAxis.of(comparison.real, comparison.predicted)
    sides = []
    for run in (comparison.real, comparison.predicted):
        table = run.resizes if unit == "nodes" else run.core_changes
        applied = ((table["state"] == "applied") & table["applied"].notna()).to_numpy()
        unapplied = len(table) - int(applied.sum())
        table = table[applied]
        x = (table["applied"] - origin(run)).to_numpy(dtype=np.float64) / time.unit
        y = (table[f"{unit}_to"] - table[f"{unit}_from"]).to_numpy(dtype=np.float64)
        more = f", {unapplied:,} not applied" if unapplied else ""
        sides.append((x, y, f"{int((y > 0).sum()):,} expanded, {int((y < 0).sum()):,} shrunk{more}"))
    if not any(len(x) for x, _, _ in sides):
        return None
    reach = max(float(np.abs(y).max(initial=1.0)) for _, y, _ in sides) * 1.15

    def draw(width: float) -> Figure:
        figure, both = panels(2, 1.1, width)
        for axes, (x, y, counts), name, color in zip(
            both, sides, ("real", "predicted"), (REAL, PREDICTED), strict=True
        ):
            many = len(x) > MARKS
            axes.axhline(0.0, color=SOFT, linewidth=0.7)
            axes.vlines(x, 0.0, y, color=color, linewidth=0.8, alpha=0.35 if many else 0.8, rasterized=many)
            axes.scatter(x, y, s=8, color=color, linewidths=0, rasterized=many)
            axes.set_ylim(-reach, reach)
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.set_ylabel(unit)
            heading(axes, f"{name}: {counts}", color)
            time.apply(axes, label=axes is both[-1])
        return figure

    return Picture(draw, caption, f"Changes of {unit} over time, real above predicted")


def _stages(comparison: Comparison) -> Markup | None:
    ours, theirs = (m["reconfiguration_s"] for m in (comparison.real_metrics, comparison.predicted_metrics))
    rows: list[tuple[str, str, Any, Any]] = []
    for kind in ("expand", "shrink"):
        stages = list(ours.get(kind, {}) | theirs.get(kind, {}))
        rows += [(kind, stage, ours.get(kind, {}).get(stage), theirs.get(kind, {}).get(stage)) for stage in stages]
    return fill("stages", rows=rows, real_side=real_side(comparison.real.info)) if rows else None


def _core_changes(comparison: Comparison) -> Markup | None:
    """Return the table of the changes of cores by cause, with the hand-overs, or None without changes."""
    ours, theirs = (m["core_changes"] for m in (comparison.real_metrics, comparison.predicted_metrics))
    rows = [(cause, ours.get(cause), theirs.get(cause)) for cause in ours | theirs]
    return fill("cores", rows=rows, info=comparison.real.info) if rows else None


OVER_TIME = Section("Reconfigurations", 900, _over_time)
BY_STAGE = Section(
    "Reconfigurations by stage",
    1200,
    lambda pair: tuple(filter(None, (_stages(pair), _core_changes(pair)))) or None,
    folded=True,
)


def _staircases(comparison: Comparison) -> Picture | None:
    """Return the staircases of the jobs that differ most; None without any, or with one size per job in both runs."""
    jobs = comparison.jobs[(comparison.jobs["kind"] == "malleable").to_numpy()]
    if not len(jobs):
        return None
    ids = pd.Index(jobs["job_id"])
    runs = (comparison.real, comparison.predicted)
    cores = not all(whole_nodes(run, ids) for run in runs)
    real, predicted = (allocations_of_jobs(run, ids, cores=cores) for run in runs)
    sizes = [sizes_of(table, len(ids)) for table in (real, predicted)]
    changed = [int((most > least).sum()) for least, most in sizes]
    both = np.all([most > 0 for _, most in sizes], axis=0)
    if not both.any() or not (any(changed) or (sizes[0][1] != sizes[1][1])[both].any()):
        return None
    areas = areas_between(real, predicted, len(ids))
    worst = np.argsort(-areas, kind="stable")[:SHOWN]
    time = TimeAxis.of(*runs)
    what = "cores" if cores else "nodes"

    def draw(width: float) -> Figure:
        columns = min(4 if width > NARROW else 2, len(worst))
        rows = -(-len(worst) // columns)
        foot, step, panel, left, right, gap = (scale() * each for each in (0.5, 1.3, 0.85, 0.5, 0.1, 0.42))
        height = step * rows + foot
        figure = Figure(figsize=(width, height))
        each = (width - left - right + gap) / (4 if width > NARROW else 2) - gap
        for place, job in enumerate(worst):
            row, column = divmod(place, columns)
            bottom = height - step * (row + 1) + scale() * 0.1
            box = ((left + column * (each + gap)) / width, bottom / height, each / width, panel / height)
            axes = figure.add_axes(box)
            _draw(axes, real[real["job"] == job], time.unit, REAL)
            _draw(axes, predicted[predicted["job"] == job], time.unit, PREDICTED)
            axes.set_ylim(bottom=0, top=1.12 * axes.get_ylim()[1])
            axes.margins(x=0.04)
            axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
            axes.xaxis.set_major_locator(MaxNLocator(3))
            axes.xaxis.set_major_formatter("{x:,.4g}")
            axes.tick_params(labelsize=small())
            name = str(ids[job])
            shortened = name if len(name) <= 14 else f"{name[:13]}…"
            axes.set_title(f"job {shortened}", loc="left", fontsize="medium", color=SOFT, pad=4)
        figure.text(left / width, 0.06 / height, f"time after the first submission ({time.name})", va="bottom")
        figure.text(0.06 / width, 1 - 0.06 / height, what, va="top")
        return figure

    differing = int((areas > 0).sum())
    which = "All" if len(ids) <= SHOWN else f"The {len(worst)} that differ most of"
    caption = (
        f"{what.capitalize()} held by malleable jobs over time: solid and shaded, the real run "
        f"({real_side(comparison.real.info)}); dashed, the prediction. {which} {len(ids):,} malleable jobs, ordered by "
        f"the area between both lines; {differing:,} of {len(ids):,} differ. Changed in size: {changed[0]:,} jobs of "
        f"the real run, {changed[1]:,} of the prediction; a job that keeps its size is a box."
    )
    return Picture(draw, caption, "Staircases of malleable jobs, real and predicted overlaid")


def _draw(axes: Axes, table: pd.DataFrame, unit: float, color: str) -> None:
    """Draw the staircase of one job."""
    if not len(table):
        return
    start, end, nodes = (table[name].to_numpy(dtype=np.float64) for name in ("start", "end", "held"))
    steps = Steps.count(start, end, nodes)
    x, y = np.append(steps.times[:1], steps.times) / unit, np.append(0.0, steps.values)
    line = "-" if color == REAL else DASHED
    axes.step(x, y, where="post", color=color, linewidth=1.1, linestyle=line)
    if color == REAL:
        axes.fill_between(x, y, step="post", color=color, alpha=0.12, linewidth=0)


STAIRCASES = Section("Sizes of malleable jobs over time", 650, _staircases)
