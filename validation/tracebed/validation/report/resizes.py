"""Report sections about reconfigurations: their times, and the durations of their stages."""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tracebed.validation.metrics import origin
from tracebed.validation.pictures import Picture
from tracebed.validation.report.sections import Section
from tracebed.validation.report.style import MARKS, PREDICTED, REAL, SOFT, heading, panels
from tracebed.validation.report.templates import fill
from tracebed.validation.report.time_axis import TimeAxis
from tracebed.validation.report.words import real_side
from tracebed.validation.verdict import Comparison


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


def _by_stage(comparison: Comparison) -> tuple[Markup, ...] | None:
    """Return the tables of the durations of changes of nodes and of cores, as far as a run has any."""
    return tuple(filter(None, (_stages(comparison), _core_changes(comparison)))) or None


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
BY_STAGE = Section("Reconfigurations by stage", 1200, _by_stage, folded=True)
