"""Report sections about the health of the real run: causes against it, and samples of the machine over time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tracebed.converters.workload import IntArray
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.validation.metrics import origin
from tracebed.validation.pictures import Picture
from tracebed.validation.report.sections import Section
from tracebed.validation.report.style import REAL, SOFT, heading, panels
from tracebed.validation.report.templates import fill
from tracebed.validation.report.time_axis import TimeAxis
from tracebed.validation.report.words import real_side
from tracebed.validation.verdict import Comparison

BINS = 240
"""Largest number of points of a curve."""


class Signal(NamedTuple):
    """A column of the samples of nodes, and how it is drawn."""

    column: str
    title: str
    unit: str
    relative: bool = False
    """Whether the values are divided by their median."""


SIGNALS = (
    Signal("pressure", "CPU pressure: time in which a task waited for a CPU", "share"),
    Signal("outside", "load of processes outside the run", "cores"),
    Signal("work_rate", "work rate of a core, relative to its median", "ratio", relative=True),
    Signal("cpu_share", "CPU time over wall time of computing ranks", "share"),
    Signal("late_s", "lateness of ranks", "wall s"),
)


def _health(comparison: Comparison) -> Markup | None:
    """Return the state, the causes and all signals, or None for a log: its health is unknown."""
    health, info = comparison.health, comparison.real.info
    if not health.causes and info.source != "replay":
        return None
    return fill("health", health=health, thresholds=HealthThresholds.read().sha256)


def _samples(comparison: Comparison) -> Picture | None:
    """Return curves of the samples of the nodes of the real run, or None without samples."""
    samples = comparison.real.nodes
    time = TimeAxis.of(comparison.real, comparison.predicted)
    at = (samples["time"] - origin(comparison.real)).to_numpy(dtype=np.float64)
    seen = (at >= 0) & (at < time.end)
    samples, bins = samples[seen], (at[seen] / time.end * BINS).astype(np.int64)
    drawn = [signal for signal in SIGNALS if samples[signal.column].notna().any()]
    if not drawn:
        return None
    curves = [_curve(samples[signal.column], bins, signal) for signal in drawn]

    def draw(width: float) -> Figure:
        figure, all_axes = panels(len(drawn), 0.62, width, gap=0.42)
        for axes, signal, curve in zip(all_axes, drawn, curves, strict=True):
            x = (curve.index.to_numpy() + 0.5) * time.end / BINS / time.unit
            axes.fill_between(x, curve["min"], curve["max"], color=REAL, alpha=0.15, linewidth=0)
            axes.plot(x, curve["median"], color=REAL, linewidth=1.0)
            axes.set_ylim(bottom=0, top=max(1.05 * float(curve["max"].max()), 1e-3))
            axes.yaxis.set_major_locator(MaxNLocator(3))
            axes.set_ylabel(signal.unit)
            heading(axes, signal.title, SOFT)
            time.apply(axes, label=axes is all_axes[-1])
        return figure

    caption = (
        f"Samples of the nodes of the real run ({real_side(comparison.real.info)}): median, smallest and largest value "
        f"of all nodes in each of {BINS} bins of time."
    )
    return Picture(draw, caption, "Samples of the nodes of the real run over time")


def _curve(values: pd.Series[float], bins: IntArray, signal: Signal) -> pd.DataFrame:
    """Return median, smallest and largest value of each bin (index)."""
    scale = values.median() if signal.relative else 1.0
    return (values / scale).groupby(bins).agg(["median", "min", "max"]).dropna()


HEALTH = Section("Health of the real run", 460, _health, folded=True)
SAMPLES = Section("The machine during the real run", 470, _samples, folded=True)
