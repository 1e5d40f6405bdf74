"""The pictures of a what-if: waits over time, effects beside errors, waits by class, queue length, utilization.

Those of malleable jobs: a day as staircases, and shares x policies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tracebed.operators.whatif.classes import KIND, Answer, JobClass
from tracebed.operators.whatif.resizing import FIT, Resizing
from tracebed.operators.whatif.study import WhatIf
from tracebed.validation.pictures import COLORS, LINES, MARKERS, Picture
from tracebed.validation.report.style import ACCURATE, DASHED, NARROW, PREDICTED, REAL, SOFT, panels

SIDES = {
    "logged": ("logged", REAL, "-"),
    "predicted": ("predicted", PREDICTED, DASHED),
    "changed": ("changed", ACCURATE, "-"),
}
"""Side -> label, color and style of its lines."""
UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
MOST_CLASSES = 30
MOST_MAIN = 10
"""Classes in the picture of the summary, which is one sheet of paper."""
SHOWN = 0.9
"""Share of many classes whose intervals lie on the axis of the effects: a few may be a hundred times as long."""
MOST_ERROR = 20.0
"""Largest error that is drawn: e to this power is beyond each axis."""
ROW = 0.27
"""Height of a class, inches."""


def pictures(found: WhatIf) -> dict[str, tuple[str, Picture]]:
    """Return title and picture by the name of their files."""
    begin = f"Time 0: {_begin(found)}."
    window = f"Mean wait of the jobs submitted in a window of {_length(found.window_s)}, over the middle of the window."
    waits = _lines(found, found.windows, "", "mean wait ({unit})", f"{window} {begin}")
    drawn = {"waits": ("Waits over time", waits)}

    def table() -> pd.DataFrame:
        return pd.DataFrame([_row(each) for each in found.classes])

    answered = found.refused is not None and not found.refused.much and not found.classes[0].much
    if answered:
        drawn["effects"] = "Effect beside the error of the model", replace(_effects(found.classes), data=table)
    by_class = _classes(found.classes, found.comparison, changed=answered)
    drawn["classes"] = "Waits by class", replace(by_class, data=table)
    courses = (
        ("queue", "Queue", "waiting_", "waiting jobs", "Number of waiting jobs."),
        ("utilization", "Utilization", "busy_", "utilization", "Share of the cores that jobs hold."),
    )
    for name, title, prefix, label, about in courses:
        own = found.courses[["time", *(column for column in found.courses if str(column).startswith(prefix))]]
        drawn[name] = title, _lines(found, own, prefix, label, f"{about} {begin}")
    if rows := [replace(each.classes[0], name=each.title) for each in found.alternatives if not each.classes[0].much]:

        def alone() -> pd.DataFrame:
            return pd.DataFrame([{"change": each.name, **_row(each)} for each in rows]).drop(columns=["by", "class"])

        picture = _effects(rows)
        if refusing := [
            f"{each.title} ({row[-1]})"
            for each, row in zip(found.alternatives, found.of_changes[1], strict=True)
            if each.classes[0].much
        ]:
            without = f" Not drawn, since these changes refuse more than 1 % of the work: {', '.join(refusing)}."
            picture = replace(picture, caption=picture.caption + without)
        drawn["changes"] = "Each change alone", replace(picture, data=alone)
    if found.malleable is not None:
        if found.malleable.sweep:
            drawn["sweep"] = "Shares and policies", _sweep(found.malleable)
        elif (day := found.malleable.staircase) is not None and len(day):
            drawn["staircase"] = "A day of the malleable jobs", _staircase(found, day)
    return drawn


def main_picture(found: WhatIf) -> Picture:
    """Return the picture of the answer: the changes, the sweep, or the effects on all jobs and on partitions."""
    drawn = pictures(found)
    for name in ("changes", "sweep"):
        if name in drawn:
            return drawn[name][1]
    few = [each for each in found.classes if each.by in ("all", KIND, "partition")][:MOST_MAIN]
    return _effects(few) if "effects" in drawn else _classes(few, "", changed=False)


def _staircase(found: WhatIf, day: pd.DataFrame) -> Picture:
    """Return the picture of the nodes that the malleable jobs hold in a day, before and after."""

    def draw(width: float) -> Figure:
        figure, (axes,) = panels(1, 2.1, width)
        hours = (day["time"] - float(day["time"].iloc[0])) / 3600.0
        for side, column in (("predicted", "before"), ("changed", "after")):
            _, color, line = SIDES[side]
            label = "before" if column == "before" else "malleable"
            axes.step(hours, day[column], where="post", color=color, linestyle=line, linewidth=1.2, label=label)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_ylabel("nodes")
        axes.set_xlabel("time (h)")
        _legend(axes)
        return figure

    begin = float(day["time"].iloc[0] - found.courses["time"].iloc[0])
    about = (
        "Nodes that the jobs hold which are malleable in the first pair (Amdahl's law, first seed): with resizes, and "
        "the same jobs without. Of all days of the log, resizes change this one most. "
        f"Time 0: {_length(begin)} after {_begin(found)}."
    )
    return Picture(draw, about, "Nodes of the malleable jobs over a day, before and after", data=lambda: day)


def _sweep(found: Resizing) -> Picture:
    """Return the picture of the effect of each policy over the share of malleable jobs."""
    policies = list(dict.fromkeys(each.policy for each in found.cells))
    rows = [
        {"share": each.share, "policy": each.policy, **dict(zip(EFFECT, each.every.shares, strict=True))}
        for each in found.cells
    ]
    rows += [{"share": 0.0, "policy": name, **dict.fromkeys(EFFECT, 0.0)} for name in policies if 0.0 in found.shares]
    table = pd.DataFrame(rows).sort_values(["policy", "share"], ignore_index=True)

    def draw(width: float) -> Figure:
        figure, (axes,) = panels(1, 2.6, width)
        error = found.cells[0].every.error
        if math.isfinite(error):
            error = min(error, MOST_ERROR)
            axes.axhspan(100 * math.expm1(-error), 100 * math.expm1(error), color=SOFT, alpha=0.15, linewidth=0)
        for at, name in enumerate(policies):
            own, color = table[table["policy"] == name], COLORS[at % len(COLORS)]
            share, (middle, low, high) = 100 * own["share"], (100 * own[column] for column in EFFECT)
            style: dict[str, Any] = {"linestyle": LINES[at % len(LINES)], "marker": MARKERS[at % len(MARKERS)]}
            axes.plot(share, middle, color=color, linewidth=1.2, markersize=4, label=name, **style)
            axes.fill_between(share, low, high, color=color, alpha=0.15, linewidth=0)
        known = table[list(EFFECT)].to_numpy()
        ends = 100 * np.append(known[np.isfinite(known)], [-0.05, 0.05])
        margin = 0.1 * (ends.max() - ends.min())
        axes.set_ylim(ends.min() - margin, ends.max() + margin)
        axes.axhline(0.0, color=SOFT, linewidth=0.8)
        axes.set_ylabel("change of the mean wait (%)")
        axes.set_xlabel("malleable share of the jobs that can be malleable (%)")
        _legend(axes)
        return figure

    about = (
        "Change of the mean wait of all jobs. Line: mean over the pairs (seeds, draws, speedup models); band: "
        "the middle 95 % of the pairs. Grey: the falls and rises by less than the error of the model on this log."
    )
    return Picture(draw, about, "Change of the mean wait by share and policy", data=lambda: table)


EFFECT = ("effect", "effect_low", "effect_high")


def _row(each: JobClass) -> dict[str, object]:
    return {
        "by": each.by,
        "class": each.name,
        "jobs": each.jobs,
        "logged_wait_s": each.logged_s,
        "predicted_wait_s": each.predicted_s,
        "predicted_low_s": each.low_s,
        "predicted_high_s": each.high_s,
        "error": math.expm1(each.error),
        "error_low": math.expm1(-each.error),
        "moving_average_error": math.nan if each.moving is None else each.moving.error,
        "changed_wait_s": each.changed_s,
        **dict(zip(EFFECT, each.shares, strict=True)),
        "answer": "" if each.effect is None else each.answer.value,
    }


def _lines(found: WhatIf, table: pd.DataFrame, prefix: str, label: str, about: str) -> Picture:
    """Return the picture of a line for each side over time."""
    span = float(table["time"].iloc[-1] - table["time"].iloc[0]) if len(table) else 0.0
    unit, name = unit_of(span)
    known = [side for side in SIDES if f"{prefix}{side}" in table]
    top = max((float(table[f"{prefix}{side}"].max()) for side in known), default=0.0)
    scale, scale_name = (1.0, "") if prefix else unit_of(top)

    def draw(width: float) -> Figure:
        figure, (axes,) = panels(1, 2.1, width)
        time = (table["time"] - float(found.courses["time"].iloc[0])) / unit
        for side in known:
            text, color, line = SIDES[side]
            axes.plot(time, table[f"{prefix}{side}"] / scale, color=color, linestyle=line, linewidth=1.2, label=text)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(label.format(unit=scale_name))
        axes.set_xlabel(f"time ({name})")
        axes.xaxis.set_major_locator(MaxNLocator(12 if width > NARROW else 5, steps=[1, 2, 3, 5, 6, 10]))
        _legend(axes)
        return figure

    changed = f" Changed: {found.contrast}." if found.change else ""
    sides = "Logged: read from the log. Predicted: mean over the members of the ensemble."
    return Picture(draw, f"{about} {sides}{changed}", alt=about, data=lambda: table)


def _legend(axes: Axes) -> None:
    """Draw the legend above the panel."""
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(SIDES), frameon=False, borderaxespad=0.1)


def _rows(classes: Sequence[JobClass]) -> list[JobClass]:
    """Return the classes to draw: the largest ones, in their order."""
    largest = sorted(classes, key=lambda each: -each.jobs)[:MOST_CLASSES]
    return [each for each in classes if each in largest]


def _by_class(classes: Sequence[JobClass], label: str) -> Callable[[float], Figure]:
    """Return a function that returns an empty figure with a row for each class."""

    def empty(width: float) -> Figure:
        figure, (axes,) = panels(1, ROW * len(classes) + 0.3, width)
        box = axes.get_position()
        axes.set_ylim(len(classes) - 0.4, -0.6)
        axes.set_yticks(range(len(classes)), ["\n".join(wrap(each.title, 34)[:2]) for each in classes])
        axes.tick_params(axis="y", length=0)
        longest = max((text.get_window_extent().width / figure.dpi for text in axes.get_yticklabels()), default=0.0)
        margin = (longest + 0.1) / width
        axes.set_position((margin, box.y0, box.x1 - margin, box.height))
        axes.grid(axis="x", color=SOFT, alpha=0.25, linewidth=0.6)
        axes.set_xlabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(9 if width > NARROW else 4))
        return figure

    return empty


def _effects(classes: Sequence[JobClass]) -> Picture:
    """Return the picture of the effects with their intervals, beside the errors of the model."""
    shown = [each for each in _rows(classes) if math.isfinite(each.shares[0])]
    empty = _by_class(shown, "change of the mean wait (%)")
    ends = [max(abs(share) for share in each.shares[1:]) for each in shown]
    part = SHOWN if len(shown) > MOST_MAIN else 1.0
    reach = 110 * max([0.1, *np.quantile(ends, [part] if ends else [])])

    def draw(width: float) -> Figure:
        figure = empty(width)
        (axes,) = figure.axes
        axes.axvline(0.0, color=SOFT, linewidth=0.8)
        for place, each in enumerate(shown):
            middle, low, high = (100 * share for share in each.shares)
            if not math.isnan(each.error):
                error, up = 100 * math.expm1(-each.error), 100 * math.expm1(min(each.error, MOST_ERROR))
                axes.barh(place, up - error, left=error, height=0.62, color=SOFT, alpha=0.22, linewidth=0)
            color = ACCURATE if each.answer in (Answer.FALL, Answer.RISE) else SOFT
            axes.plot([low, high], [place, place], color=color, linewidth=1.6)
            axes.plot([middle], [place], marker="D", markersize=4.5, color=color)
        axes.set_xlim(-reach, reach)
        return figure

    fit = ", which is within a factor of 2" if classes[0].most_error == FIT else ""
    caption = (
        "Diamond and line: the effect of the change on the mean wait, and the middle 95 % of the pairs of members. "
        "Band: the error of the model on this log: the falls and rises by less than its factor. Green: the interval "
        f"does not contain 0, and the effect is beyond the band{fit}. Grey: inconclusive. What lies beyond the axis is "
        "in the table."
    )
    return Picture(draw, caption, "Effect on the mean wait of each class, with the error of the model")


def _classes(classes: Sequence[JobClass], comparison: str, *, changed: bool) -> Picture:
    """Return the picture of the mean waits by class."""
    shown = _rows(classes)
    unit, name = unit_of(max(max(each.logged_s, each.high_s) for each in shown))
    empty = _by_class(shown, f"mean wait ({name})")

    def draw(width: float) -> Figure:
        figure = empty(width)
        (axes,) = figure.axes
        places = range(len(shown))
        for place, each in enumerate(shown):
            axes.plot([each.low_s / unit, each.high_s / unit], [place] * 2, color=PREDICTED, linewidth=1.6, alpha=0.7)
        marks = {"logged": ("logged_s", "|", 12.0), "predicted": ("predicted_s", "o", 5.0)}
        if changed:
            marks["changed"] = ("changed_s", "D", 4.5)
        for side, (figures, mark, size) in marks.items():
            text, color, _ = SIDES[side]
            values = [getattr(each, figures) / unit for each in shown]
            style: dict[str, Any] = {"markersize": size, "markeredgewidth": 2.2 if mark == "|" else 0.8}
            axes.plot(values, places, linestyle="none", marker=mark, color=color, label=text, **style)
        axes.set_xlim(left=0)
        _legend(axes)
        return figure

    about = "Mean wait of the jobs of each class. Line: the middle 95 % of the members of the ensemble."
    about += f" {comparison[0].upper()}{comparison[1:]}." if comparison else ""
    return Picture(draw, about, "Mean waits by class, logged and predicted")


def unit_of(seconds: float) -> tuple[float, str]:
    """Return the unit of a time that is at least twice the unit: its length, s, and its name."""
    return next((each for each in UNITS if seconds >= 2 * each[0]), UNITS[-1])


def _length(seconds: float) -> str:
    unit, name = unit_of(seconds)
    return f"{seconds / unit:.3g} {name}"


def _begin(found: WhatIf) -> str:
    return (
        "the beginning of the log" if found.unix_start is None else found.span.partition(" to ")[0] + f" ({found.zone})"
    )
