"""The history of a baseline: a picture for papers, and a page with a line of each metric, its steps and results."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tracebed.converters.workload import FloatArray
from tracebed.validation.metrics import all_metrics
from tracebed.validation.pictures import Picture, SeriesStyle
from tracebed.validation.report.interactive import scripts
from tracebed.validation.report.markdown import number
from tracebed.validation.report.sections import figure_html
from tracebed.validation.report.style import (
    ACCURATE,
    DASHED,
    INK,
    NARROW,
    PREDICTED,
    SOFT,
    STYLE,
    WIDE,
    above,
    heading,
    panels,
    small,
)
from tracebed.validation.report.templates import fill

STATES = {"accurate": (ACCURATE, "o"), "inaccurate": (PREDICTED, "X"), "inconclusive": ("#8a6100", "D")}
"""Verdict -> color and shape of its mark."""
LABELS = 16  # largest number of versions with a name on the axis
DAYS = 6  # largest number of days on the axis of the page
RESULTS = 50  # largest number of results in the table of the page
SPAN = 0.1  # smallest range of errors of a panel, margins


def picture(table: pd.DataFrame) -> Picture:
    """Return the picture of a history; `table` as from `verdict.baseline.history`."""
    simulators = list(dict.fromkeys(table["simulator"]))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(table["metric"]))}  # one style in all panels

    def draw(width: float) -> Figure:
        figure, axes_of = panels(len(simulators), 2.0, width, gap=0.9)
        for axes, simulator in zip(axes_of, simulators, strict=True):
            mine = table[table["simulator"] == simulator]
            names = list(dict.fromkeys(zip(mine["version"], mine["verdict"], strict=True)))
            places = {name: place for place, (name, _) in enumerate(names)}
            gated = mine[mine["gate"] & mine["z"].notna()]
            axes.axhspan(-1.0, 1.0, color=SOFT, alpha=0.13, linewidth=0)
            axes.axhline(0.0, color=SOFT, linewidth=0.7)
            for metric, rows in gated.groupby("metric", sort=False):
                label = label_of(str(metric))
                style = SeriesStyle.of(numbers[metric])
                x = [places[name] for name in rows["version"]]
                axes.plot(x, rows["z"], color=style.color, linestyle=style.line, linewidth=1.1, label=label)
                for state, (shade, shape) in STATES.items():
                    found = rows[rows["metric_verdict"] == state]
                    at = [places[name] for name in found["version"]]
                    axes.plot(at, found["z"], linestyle="", marker=shape, color=shade, markersize=4)
            for state in dict.fromkeys([*gated["metric_verdict"], *mine["verdict"]]):
                shade, shape = STATES[state]
                axes.plot([], [], linestyle="", marker=shape, color=shade, markersize=4, label=state)
            top = max(1.3, 1.15 * float(gated["z"].abs().max())) if len(gated) else 1.3
            for place, (_, verdict) in enumerate(names):
                shade, shape = STATES[verdict]
                axes.plot(place, -top, marker=shape, color=shade, markersize=6, clip_on=False, zorder=5)
            axes.set_ylim(-top, top)
            axes.set_xlim(-0.5, len(names) - 0.5)
            every = -(-len(names) // (LABELS if width > 5 else LABELS // 2))
            shown = range(0, len(names), every)
            axes.set_xticks(list(shown), [names[place][0] for place in shown], rotation=30, ha="right")
            axes.set_ylabel("error (margins)")
            heading(axes, simulator, SOFT)
            above(axes)
        return figure

    caption = (
        "Mean error of each gated metric over the versions of the baseline, in margins. Band: the margin. Marks: the "
        "verdict on the metric; on the axis that on the simulator."
    )
    return Picture(draw, caption, "Errors over the versions of a baseline", data=lambda: table)


def label_of(metric: str) -> str:
    """Return the name of a metric in a legend."""
    known = all_metrics().get(metric)
    return known.label if known else metric


def render(table: pd.DataFrame, steps: pd.DataFrame) -> str:
    """Return the page of a history as an HTML document; arguments as from `verdict.history`."""
    numbers = {version: number for number, version in enumerate(dict.fromkeys(steps["version"]), 1)}
    numbered = steps.assign(number=steps["version"].map(numbers))
    parts = [
        _simulator(number, name, own, numbered[numbered["simulator"] == name])
        for number, (name, own) in enumerate(table.groupby("simulator", sort=False))
    ]
    days = [str(date)[:10] for date in table["date"] if date]
    return str(
        fill(
            "history",
            parts=parts,
            results=table["version"].nunique(),
            days=(days[0], days[-1]) if days else None,
            most=RESULTS,
            sections=[],
            scripts=scripts(),
        )
    )


def _simulator(place: int, name: Any, own: pd.DataFrame, steps: pd.DataFrame) -> dict[str, Any]:
    """Return what the template shows of one simulator."""
    versions = own.drop_duplicates("version")[["version", "date", "verdict"]]
    gates = dict(zip(own["metric"], own["gate"], strict=True))
    gated = [str(metric) for metric, gate in gates.items() if gate]
    errors: dict[Any, dict[Any, Any]] = own.pivot_table("z", "version", "metric", dropna=False).to_dict("index")
    latest = own[own["version"] == versions["version"].iloc[-1]]
    return {
        "name": name,
        "latest": versions.iloc[-1],
        "metrics": [
            (label_of(row.metric), number(row.z), row.metric_verdict) for row in latest[latest["gate"]].itertuples()
        ],
        "steps": [
            (step, version, str(rows["date"].iloc[0])[:10], rows["previous"].iloc[0], _changes(rows))
            for (step, version), rows in reversed(list(steps.groupby(["number", "version"])))
        ],
        "gated": [label_of(metric) for metric in gated],
        "rows": [
            (
                row["version"],
                row["date"][:10],
                row["verdict"],
                [number(errors[row["version"]].get(name, np.nan)) for name in gated],
            )
            for row in reversed(versions.to_dict("records")[-RESULTS:])
        ],
        "figures": [
            (title, _figure(f"history-{place}-{number}", own, versions, steps, metrics))
            for number, (title, metrics) in enumerate(
                {"": gated, "Advisory metrics": [metric for metric in gates if metric not in gated]}.items()
            )
            if metrics
        ],
    }


def _changes(steps: pd.DataFrame) -> list[tuple[str, str, str, bool]]:
    """Return the metrics that step at one commit: name, level before and after, whether the error grew."""
    return [
        (label_of(row["metric"]), number(row["before"]), number(row["after"]), abs(row["after"]) > abs(row["before"]))
        for row in steps.to_dict("records")
    ]


def _figure(name: str, own: pd.DataFrame, versions: pd.DataFrame, steps: pd.DataFrame, metrics: list[str]) -> Markup:
    """Return a figure with a panel per metric on one axis of versions."""
    places = {version: place for place, version in enumerate(versions["version"])}
    days = [str(date)[:10] or version for version, date in zip(versions["version"], versions["date"], strict=True)]

    def draw(width: float) -> Figure:
        figure, axes_of = panels(len(metrics), 0.8, width, gap=0.42)
        for axes, metric in zip(axes_of, metrics, strict=True):
            rows = own[own["metric"] == metric]
            _line(axes, rows, places, steps[steps["metric"] == metric])
            axes.set_xlim(-0.5, len(places) - 0.5)
            heading(axes, label_of(metric), SOFT)
            axes.tick_params(labelbottom=axes is axes_of[-1])
            firsts = [place for place, day in enumerate(days) if place == 0 or days[place - 1] != day]
            every = -(-len(firsts) // (DAYS if width > NARROW else DAYS // 2))
            axes.set_xticks(firsts[::every], [days[place] for place in firsts[::every]])
        return figure

    caption = (
        "Mean error over the cases, in margins. Dashed: one margin. Thick: the level between two steps; the number is "
        "that of the step in the list. Marks: circle accurate, cross inaccurate, diamond inconclusive."
    )
    shown = own[own["metric"].isin(metrics)]
    picture = Picture(draw, caption, "Errors over the commits", data=lambda: shown)
    with mpl.rc_context(STYLE):
        return figure_html(picture, {"wide": draw(WIDE), "narrow": draw(NARROW)}, name, "Errors over the commits")


def _line(axes: Axes, rows: pd.DataFrame, places: dict[str, int], steps: pd.DataFrame) -> None:
    """Draw the errors of one metric, their levels and steps."""
    known = rows[rows["z"].notna()]
    x: FloatArray = np.array([places[version] for version in known["version"]], dtype=float)
    z = known["z"].to_numpy(np.float64)
    axes.axhline(0.0, color=SOFT, linewidth=0.7)
    for margin in (-1.0, 1.0):
        axes.axhline(margin, color=SOFT, linewidth=0.7, linestyle=DASHED)
    axes.plot(x, z, color=SOFT, linewidth=0.8)
    begins = [0, *(list(known["version"]).index(version) for version in steps["version"]), len(x)]
    for begin, end in pairwise(begins):
        if end > begin:
            axes.plot([x[begin] - 0.4, x[end - 1] + 0.4], [z[begin:end].mean()] * 2, color=INK, linewidth=1.6)
    low, high = min(0.0, *z, 0.0), max(0.0, *z, 0.0)
    room = max(SPAN - (high - low), 0.0) / 2 + 0.2 * max(SPAN, high - low)
    axes.set_ylim(low - room, high + room)
    for step in steps.itertuples():
        at = places[str(step.version)] - 0.5
        axes.axvline(at, color=PREDICTED, linewidth=0.9)
        axes.text(at, high + room, f" {step.number}", color=PREDICTED, va="top", fontsize=small(), fontweight="bold")
    for state, (shade, shape) in STATES.items():
        chosen = known[known["metric_verdict"] == state]
        at_of = [places[version] for version in chosen["version"]]
        marks = axes.scatter(at_of, chosen["z"], marker=shape, color=shade, s=22, zorder=3, linewidths=0)
        marks.set_urls(
            [
                f"{version} {date[:10]}: {number(z)} margins"
                for version, date, z in zip(chosen["version"], chosen["date"], chosen["z"], strict=True)
            ]
        )
