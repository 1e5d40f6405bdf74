"""Tornado plots: the effects of free choices on a figure, largest on top, over the band of the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tracebed.studies.ledger.sensitivity import INSIDE, NOT_SIGNIFICANT, OUTSIDE, UNKNOWN
from tracebed.validation.metrics import all_metrics
from tracebed.validation.pictures import COLORS, PAGE, STYLE, columns_of, save, wrapped
from tracebed.validation.report.style import SOFT

SHOWN = {OUTSIDE: COLORS[0], INSIDE: COLORS[4], NOT_SIGNIFICANT: COLORS[6], UNKNOWN: COLORS[3]}
"""What was found -> color of the bar."""
BAND = "#ccbb4455"


def draw(table: pd.DataFrame, printed: Mapping[str, Sequence[float]], title: str, folder: Path) -> list[Path]:
    """Draw a tornado plot per figure as PNG and SVG with the data as CSV, and return the PNG files.

    Args:
        table: the table of `sensitivity.measure`.
        printed: metric of the table -> values printed in a paper. A metric without rows is left out.
        title: the base, for the title.
        folder: the output folder.
    """
    written = []
    for name, values in printed.items():
        rows = table[table["figure"] == name]
        if not len(rows):
            continue
        with mpl.rc_context(STYLE):
            figure = tornado(rows, values, title)
        written.append(save(figure, rows, folder, f"sensitivity-{name}"))
    return written


def tornado(rows: pd.DataFrame, printed: Sequence[float], title: str) -> Figure:
    """Return the tornado plot of one figure, a bar per row with the interval of its effect in percent of the base."""
    metric, base = all_metrics()[rows["figure"].iloc[0]], float(rows["base"].iloc[0])
    scale = 100.0 / abs(base) if base else 1.0
    change, low, high = (scale * rows[name].to_numpy(dtype=np.float64) for name in ("change", "low", "high"))
    band = [scale * (float(rows[end].iloc[0]) - base) for end in ("band_low", "band_high")]
    figure = Figure(figsize=(PAGE, 1.3 + 0.22 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvspan(*band, color=BAND, linewidth=0)
    axes.axvline(0.0, color="#222222", linewidth=0.8)
    at = np.arange(len(rows))
    axes.barh(at, change, 0.66, color=[SHOWN[found] for found in rows["found"]])
    ends = np.maximum([change - low, high - change], 0.0)  # the mean of few runs may be outside
    axes.errorbar(change, at, xerr=ends, fmt="none", ecolor="#222222", elinewidth=0.9, capsize=2.5)
    labels = zip(rows["choice"], rows["base_value"], rows["value"], strict=True)
    axes.set_yticks(at, [f"{name}: {value if was == '-' else f'{was} → {value}'}" for name, was, value in labels])
    axes.invert_yaxis()
    unit = f" {metric.unit}" if metric.unit else ""
    axes.set_xlabel(f"change of {metric.label} ({'%' if base else metric.unit or '1'}); base {base:,.4g}{unit}")
    axes.grid(axis="x", linewidth=0.5, color=SOFT, alpha=0.3)
    there = set(rows["found"])
    handles: list[Artist] = [Patch(color=color, label=found) for found, color in SHOWN.items() if found in there]
    handles.append(Patch(color=BAND, label="perturbations of the base"))
    for value in printed:
        line = axes.axvline(scale * (value - base), color=COLORS[1], linewidth=1.2, linestyle="--")
        line.set_label(f"printed: {value:,.4g}")
        handles.append(line)
    ncols = columns_of([str(handle.get_label()) for handle in handles], PAGE)
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, frameon=False)
    figure.suptitle(wrapped(title, PAGE))
    return figure
