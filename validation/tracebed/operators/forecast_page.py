"""The page of a forecast, self-contained: how the queue drains, reservations, starts by partition, and all jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tracebed.converters.workload import FloatArray
from tracebed.ground.display import time_text
from tracebed.operators.forecasts import Forecast
from tracebed.validation.pictures import Picture, SeriesStyle
from tracebed.validation.report.interactive import scripts
from tracebed.validation.report.sections import Content, Section, rendered_sections
from tracebed.validation.report.style import NARROW, PREDICTED, SOFT, above, panels
from tracebed.validation.report.templates import fill

POINTS = 400
"""Instants of the drain curve."""
STEPS_S = (60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86_400, 7 * 86_400)
"""Widths of the bars, s: the smallest one with at most `MOST_BARS`."""
MOST_BARS = 30
MOST_PARTITIONS = 7
"""Partitions with bars of their own: those with the most starts."""
BAND = (0.1, 0.9)
"""Quantiles of the simulations between which the band of the drain curve lies."""
OTHERS = "others"


def render(found: Forecast) -> str:
    """Return the page as an HTML document."""
    titles = {"drain": "How the queue drains", "partitions": "Starts by partition"}
    sections = {
        name: Section(titles[name], order, partial(_constant, picture), scope="forecast")
        for order, (name, picture) in enumerate(pictures(found).items())
    }
    table = fill("forecast_jobs", rows=[found.row(row) for row in found.table.to_dict("records")])
    sections["jobs"] = Section("Waiting jobs", 300, partial(_constant, table), scope="forecast")
    return str(
        fill(
            "forecast",
            scripts=scripts(),
            found=found,
            sentence=found.sentence,
            reservations=[
                (row["name"], *(f"{row[end]:%a %Y-%m-%d %H:%M}" for end in ("begin", "end")), row["nodes"])
                for row in found.reservations.to_dict("records")
            ],
            sections=list(rendered_sections({"forecast": found}, sections)),
        )
    )


def _constant(content: Content, found: Any) -> Content:
    return content


def pictures(found: Forecast) -> dict[str, Picture]:
    """Return the pictures by name; there are none without a job that starts."""
    starts = found.starts[~np.isnan(found.starts).all(axis=1)]
    if not starts.size:
        return {}
    begin, last = pd.Timestamp(found.instant).timestamp(), float(np.nanmax(starts))
    last = max(last, begin + STEPS_S[0])
    return {"drain": _drain(found, starts, begin, last), "partitions": _partitions(found, begin, last)}


def _dates(seconds: Any) -> Any:
    return np.asarray(seconds, dtype=np.float64).astype("datetime64[s]")


def drain(starts: FloatArray, instants: FloatArray) -> pd.DataFrame:
    """Return how many of the jobs still wait at some instants: median and band. `starts`: shape (jobs, members)."""
    ordered = np.sort(np.where(np.isnan(starts), np.inf, starts), axis=0)
    waiting = np.array([len(ordered) - np.searchsorted(own, instants, side="right") for own in ordered.T])
    low, middle, high = np.quantile(waiting, (BAND[0], 0.5, BAND[1]), axis=0)
    return pd.DataFrame({"time": _dates(instants), "waiting": middle, "low": low, "high": high})


def _drain(found: Forecast, starts: FloatArray, begin: float, last: float) -> Picture:
    table = drain(starts, np.linspace(begin, last, POINTS))

    def draw(width: float) -> Figure:
        figure, (axes,) = panels(1, 2.4, width)
        axes.fill_between(
            table["time"], table["low"], table["high"], step="post", color=PREDICTED, alpha=0.2, linewidth=0
        )
        axes.step(table["time"], table["waiting"], where="post", color=PREDICTED, linewidth=1.4, label="waiting jobs")
        label = "reservation"
        for row in found.reservations.to_dict("records"):
            if row["begin"] <= table["time"].iloc[-1]:
                axes.axvspan(row["begin"], row["end"], color=SOFT, alpha=0.18, linewidth=0, label=label)
                label = "_"
        axes.set_xlim(table["time"].iloc[0], table["time"].iloc[-1])
        axes.set_ylim(bottom=0)
        axes.set_ylabel("waiting jobs")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        _time_axis(axes, width)
        above(axes)
        return figure

    about = (
        "How many of the jobs that wait now still wait: median of the simulations, and the middle 80 % of them. Jobs "
        "without a forecast, and those that are submitted later, are left out. Grey: advance reservations."
    )
    return Picture(draw, about, "How many of the present waiting jobs still wait, over time", data=lambda: table)


def starts_by_partition(found: Forecast, begin: float, last: float) -> tuple[pd.DataFrame, float]:
    """Return the mean number of starts in each span of time by partition, and the length of a span, s."""
    step = float(next((each for each in STEPS_S if last - begin <= MOST_BARS * each), STEPS_S[-1]))
    first = begin - begin % step
    edges = first + step * np.arange(int((last - first) // step) + 2)
    partition = found.table["partition"].astype(str)
    largest = partition.value_counts().index[:MOST_PARTITIONS].tolist()
    groups = partition.where(partition.isin(largest), OTHERS)
    names = [*largest, *([OTHERS] if (groups == OTHERS).any() and OTHERS not in largest else [])]
    counts = {}
    for name in names:
        own = found.starts[(groups == name).to_numpy()]
        counts[name] = np.histogram(own[np.isfinite(own)], edges)[0] / found.members
    return pd.DataFrame({"time": _dates(edges[:-1]), **counts}), step


def _partitions(found: Forecast, begin: float, last: float) -> Picture:
    table, step = starts_by_partition(found, begin, last)

    def draw(width: float) -> Figure:
        figure, (axes,) = panels(1, 2.4, width)
        bottom = np.zeros(len(table))
        span = np.timedelta64(int(step), "s")
        for number, name in enumerate(table.columns[1:]):
            style = SeriesStyle.of(number)
            values = table[name].to_numpy()
            look: dict[str, Any] = {"color": style.color, "hatch": style.hatch, "label": name, "linewidth": 0}
            axes.bar(table["time"], values, span, bottom, align="edge", **look)
            bottom += values
        axes.set_xlim(table["time"].iloc[0], table["time"].iloc[-1] + span)
        axes.set_ylabel(f"starts in {time_text(step)}")
        axes.yaxis.set_major_locator(MaxNLocator(5))
        _time_axis(axes, width)
        above(axes)
        return figure

    about = f"Mean number of the jobs that wait now which start in each span of {time_text(step)}, by partition."
    return Picture(draw, about, "Starts of the present waiting jobs over time, by partition", data=lambda: table)


def _time_axis(axes: Axes, width: float) -> None:
    locator = AutoDateLocator(maxticks=9 if width > NARROW else 5)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_xlabel("time on the clock of the cluster")
