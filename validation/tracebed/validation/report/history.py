"""The picture of the history of a baseline: a line of the error of each gated metric over its versions."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from tracebed.validation.metrics import all_metrics
from tracebed.validation.pictures import Picture, SeriesStyle
from tracebed.validation.report.style import ACCURATE, PREDICTED, SOFT, above, heading, panels

STATES = {"accurate": (ACCURATE, "o"), "inaccurate": (PREDICTED, "X"), "inconclusive": ("#8a6100", "D")}
"""Verdict -> color and shape of its mark."""
LABELS = 16  # largest number of versions with a name on the axis


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
                label = all_metrics()[str(metric)].label if metric in all_metrics() else str(metric)
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
