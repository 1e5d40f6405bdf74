"""Report sections about the real runs: causes against their health, samples of the machine, repetitions, and noise.

The noise of the repetitions is shown beside the error of the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
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
from tracebed.validation.report.scales import TimeAxis
from tracebed.validation.report.sections import Section
from tracebed.validation.report.style import REAL, SOFT, heading, panels
from tracebed.validation.report.templates import fill
from tracebed.validation.report.words import percentage, real_side
from tracebed.validation.verdict import Comparison
from tracebed.validation.verdict.screening import Repetition
from tracebed.validation.verdict.validation import CaseMetric, CaseResult, Validation

BINS = 240  # largest number of points of a curve

REACH = 2.0  # end of the axis of the bars, in margins


class Signal(NamedTuple):
    """A column of the samples of nodes, and how it is drawn."""

    column: str
    title: str
    unit: str
    relative: bool = False  # whether the values are divided by their median


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


class Bars(NamedTuple):
    """A line with two bars: spread of the real repetitions and error of the prediction, in margins."""

    label: str
    spread: float
    error: float
    text: str


def _repetitions(validation: Validation) -> Markup:
    """Return the tables of the repetitions of each case, with the causes of those that are excluded."""
    every = [one for result in validation.cases for one in result.repetitions]
    excluded = sum(bool(one.excluded) for one in every)
    return fill(
        "repetitions",
        repetitions=len(every),
        excluded=excluded,
        flagged=sum(bool(one.flags) and not one.excluded for one in every),
        results=[
            (result, _counts(result), any(one.excluded or one.flags or one.causes for one in result.repetitions))
            for result in validation.cases
        ],
        several=len(validation.cases) > 1,
        remarks=_remarks,
    )


def _counts(result: CaseResult) -> str:
    excluded = sum(bool(one.excluded) for one in result.repetitions)
    count = len(result.repetitions)
    return f"{count} repetition{'s' if count > 1 else ''}" + (f", {excluded} excluded" if excluded else "")


def _remarks(one: Repetition) -> str:
    """Return causes and signals of a repetition as text."""
    _, _, why = one.excluded.partition(": ")
    texts = [str(cause.get("text", "")) for cause in one.causes]
    known = why in texts or why in "; ".join(texts)
    return "; ".join(filter(None, ("" if known else why, *texts, one.flags))) or "-"


def _noise(validation: Validation) -> Markup | None:
    """Return the bars of each gated metric, or None if no case has two repetitions."""
    metrics = [item for item in validation.metrics if item.gate and any(case.repeats > 1 for case in item.cases)]
    if not metrics:
        return None
    several = len(validation.cases) > 1
    lines = [
        (
            _bars(item.metric.label, item.cases),
            [_bars(one.case, [one]) for one in item.cases] if several else [],
        )
        for item in metrics
    ]
    return fill("noise", lines=lines, several=several, reach=REACH, at=_at)


def _bars(label: str, cases: Iterable[CaseMetric]) -> Bars:
    """Return the line of the root mean squares over some cases."""
    known = [case for case in cases if math.isfinite(case.z)]
    spread = _root_mean_square([case.real_sd / case.margin for case in known if case.margin])
    error = _root_mean_square([case.z for case in known])
    noise = _root_mean_square([case.noise_cv for case in known])
    off = _root_mean_square([case.relative_error for case in known])
    text = f"noise {percentage(noise)}, error {percentage(off)}"
    return Bars(label, spread, error, text)


def _root_mean_square(values: list[float]) -> float:
    """Return the root of the mean square of the values that are not NaN; NaN if all are."""
    known = [value for value in values if not math.isnan(value)]
    return math.sqrt(sum(value**2 for value in known) / len(known)) if known else math.nan


def _at(margins: float) -> str:
    """Return a place on the axis as a share of its length."""
    return f"{100 * min(margins / REACH, 1.0):.2f}%"


REPETITIONS = Section("Real repetitions", 300, _repetitions, scope="validation")
NOISE = Section("Noise of the real runs and error of the prediction", 360, _noise, scope="validation")
