"""Report sections about the differences: agreement job by job, classes of jobs, and the jobs at which the runs part.

The agreement is a scatter plot, a Bland-Altman plot, a shift function, and statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tracebed.converters.workload import FloatArray
from tracebed.ground.display import cell
from tracebed.orchestrator.run import Run
from tracebed.validation.pictures import Picture
from tracebed.validation.report import scales
from tracebed.validation.report.scales import TimeAxis
from tracebed.validation.report.sections import Content, Section
from tracebed.validation.report.style import DASHED, NARROW, PREDICTED, REAL, SOFT, beside, heading
from tracebed.validation.report.templates import fill
from tracebed.validation.report.words import percentage, real_side
from tracebed.validation.verdict import Comparison
from tracebed.validation.verdict.breakdown import QUANTITIES, breakdown
from tracebed.validation.verdict.divergence import divergences
from tracebed.validation.verdict.per_job import PerJob, per_job
from tracebed.validation.verdict.validation import CaseResult, Validation

BARS = 600  # largest number of jobs whose range of real values is drawn
COLOR, HEAT = "187, 85, 102", 0.75
"""Color of the matrix of distances (red, green, blue), and its opacity for the largest distance."""
WORST = 10  # number of jobs in the table of the largest differences

TITLES = {
    "size": "requested nodes",
    "run time": "run time",
    "kind": "kind",
    "user": "user",
    "account": "account",
    "partition": "partition",
    "class": "class of nodes",
    "behaviour": "behavior",
    "hour": "hour of submission",
}
"""Classification of `breakdown` -> title."""
FOLDED = 12  # number of classes above which a classification is folded
REACH = 60.0  # length of the bar of the largest share of a classification, in a graphic of 120 x 14 units


def _agreement(validation: Validation) -> Content | None:
    """Return the pictures and tables of a single case, or None for several cases."""
    if len(validation.cases) > 1:
        return None
    (result,) = validation.cases
    wait = result.per_job
    if wait is None:
        return "Fewer than two jobs ended in all runs."
    response = per_job(_included(result), result.case.predicted, "response")
    assert response is not None  # the jobs are those of the waits
    quantities = {"wait": wait, "response": response}
    jobs = wait.jobs_table
    off = jobs["predicted"] - jobs["real"]
    worst = jobs.assign(off=off).loc[off.abs().sort_values(ascending=False, kind="stable").index[:WORST]]
    table = fill(
        "agreement",
        found=list(quantities),
        rows=_rows(list(quantities.values())),
        several=wait.repeats > 1,
        worst=worst[worst["off"] != 0].to_dict("records"),
    )
    parts = (_scatter(result, quantities), _bland_altman(quantities), _shift(quantities), table)
    return (*parts, _distances(result, wait)) if wait.repeats > 1 else parts


def _included(result: CaseResult) -> list[Run]:
    """Return the repetitions that are part of the verdict, or all repetitions if all are excluded."""
    return [one.run for one in result.repetitions if not one.excluded] or list(result.case.real)


def _rows(found: Sequence[PerJob]) -> list[tuple[str, list[str]]]:
    """Return label and values (a text per quantity) of the statistics that are known."""
    rows = [
        ("matched jobs", [cell(one.jobs) for one in found]),
        ("mean (bias)", [cell(one.bias) for one in found]),
        ("mean absolute", [cell(one.mae) for one in found]),
        ("root mean square", [cell(one.rmse) for one in found]),
        ("absolute, p95", [cell(one.p95) for one in found]),
        ("limits of agreement", [f"{cell(one.limits[0])} to {cell(one.limits[1])}" for one in found]),
        ("slope of the bias", [cell(one.slope) for one in found]),
        ("Kendall's tau-b", [cell(one.kendall_tau) for one in found]),
        ("Kolmogorov-Smirnov distance D (not an accuracy test)", [cell(one.ks_d) for one in found]),
        ("Wasserstein-1 distance", [cell(one.wasserstein) for one in found]),
        ("Wasserstein-1 distance between two real runs", [cell(one.wasserstein_real) for one in found]),
        ("distance from a real run (root mean square)", [cell(one.distance) for one in found]),
        ("distance between two real runs", [cell(one.distance_real) for one in found]),
        ("noise ratio (1: as close as another real run)", [cell(one.noise_ratio) for one in found]),
    ]
    if found[0].repeats > 1:
        inside = [f"{percentage(one.inside_envelope)}, expected {percentage(one.inside_expected)}" for one in found]
        rows.append(("jobs between the smallest and the largest real value", inside))
    return [(label, values) for label, values in rows if set(values) != {"-"}]


def _scatter(result: CaseResult, found: Mapping[str, PerJob]) -> Picture:
    """Return the plot of predicted over real values."""

    def draw_one(axes: Axes, name: str, one: PerJob) -> None:
        real, low, high, predicted = _columns(one)
        linear = scales.decades(real, predicted)
        reach = max(float(high.max()), float(predicted.max()), 1e-9) * (1.6 if linear is not None else 1.05)
        axes.plot([0, reach], [0, reach], color=SOFT, linewidth=0.9, linestyle=DASHED)
        if one.repeats > 1 and one.jobs <= BARS:
            axes.hlines(predicted, low, high, color=SOFT, linewidth=0.7, alpha=0.6)
        scales.scatter(axes, real, predicted, PREDICTED, linear={"x": linear, "y": linear})
        for axis in ("x", "y"):
            scales.apply(axes, axis, linear)
        axes.set_xlim(-0.02 * reach if linear is None else -0.15 * linear, reach)
        axes.set_ylim(axes.get_xlim())
        axes.set_xlabel(f"real {name} (s)")
        axes.set_ylabel("predicted (s)")

    means = ""
    if found["wait"].repeats > 1:
        lines = ", the line from the smallest to the largest" if found["wait"].jobs <= BARS else ""
        means = f" The real value is the mean of {found['wait'].repeats} repetitions{lines}."
    return Picture(
        _two(draw_one, found, 3.4),
        f"Each mark is a job. Dashed: the prediction equals the real value ({real_side(result.pair.real.info)}). Above "
        "this line, the prediction is too large.",
        "Predicted over real waits and responses, a mark for each job",
        "Predicted over real",
        chart="scatter",
        about_figure=f"{means} The axes are logarithmic, and linear near 0.",
    )


def _bland_altman(found: Mapping[str, PerJob]) -> Picture:
    """Return the plot of differences over means (Bland and Altman 1986)."""

    def draw_one(axes: Axes, name: str, one: PerJob) -> None:
        real, _, _, predicted = _columns(one)
        middle, off = (real + predicted) / 2, predicted - real
        linear = {"x": scales.decades(middle), "y": scales.threshold(off)}
        axes.axhspan(*one.limits, color=REAL, alpha=0.10, linewidth=0)
        axes.axhline(0.0, color=SOFT, linewidth=0.7)
        axes.axhline(one.bias, color=REAL, linewidth=0.9, linestyle=DASHED)
        scales.scatter(axes, middle, off, PREDICTED, linear=linear)
        for axis, threshold in linear.items():
            scales.apply(axes, axis, threshold)
        axes.set_xlabel(f"mean of real and predicted {name} (s)")

    slopes = ", ".join(f"{name} {one.slope:+.2g}" for name, one in found.items())
    caption = (
        "Difference predicted - real of each job over the mean of both values. Dashed: mean difference (bias). Band: "
        "limits of agreement, bias ± 1.96 standard deviations. Differences that grow with the value are a proportional "
        f"bias; slopes of the regression: {slopes}."
    )
    return Picture(_two(draw_one, found, 2.4), caption, "Bland-Altman plots of waits and responses", "Bland-Altman")


def _shift(found: Mapping[str, PerJob]) -> Picture:
    """Return the plot of the differences of the deciles (shift function)."""

    def draw_one(axes: Axes, name: str, one: PerJob) -> None:
        real, low, high, off = (
            np.array(each) for each in (one.shift.real, one.shift.low, one.shift.high, one.shift.difference)
        )
        places = 100 * np.array(one.shift.probabilities)
        axes.axhline(0.0, color=SOFT, linewidth=0.7)
        if one.repeats > 1:
            axes.fill_between(places, low - real, high - real, color=REAL, alpha=0.18, linewidth=0)
        axes.vlines(places, 0.0, off, color=PREDICTED, linewidth=1.4)
        axes.scatter(places, off, color=PREDICTED, s=18, linewidths=0, zorder=3)
        scales.apply(axes, "y", scales.threshold(off))
        narrow = axes.get_figure(root=True).get_figwidth() <= NARROW  # type: ignore[union-attr]
        axes.set_xticks(places[::2] if narrow else places, [f"{n:.0f} %" for n in (places[::2] if narrow else places)])
        axes.set_xlabel(f"share of the jobs with a smaller {name}")

    band = " Band: range of the deciles of the real repetitions." if found["wait"].repeats > 1 else ""
    caption = (
        "Difference predicted - real of each decile of the distribution (Harrell-Davis estimates)."
        f"{band} Equal heights: all jobs are shifted equally. Heights that grow to the right: long values are wrong."
    )
    alt = "Differences of the deciles of waits and of responses"
    return Picture(_two(draw_one, found, 1.7), caption, alt, "Shift function")


def _distances(result: CaseResult, wait: PerJob) -> Markup:
    """Return the matrix of the distances between any two runs."""
    included = [one.name for one in result.repetitions if not one.excluded] or [one.name for one in result.repetitions]
    names = [(name, "real") for name in included]
    names += [(f"prediction {n}" if wait.runs > 1 else "prediction", "predicted") for n in range(1, wait.runs + 1)]
    largest = max(max(row) for row in wait.distances)
    rows = [
        (name, [(value, round(HEAT * value / largest, 3) if largest else 0.0) for value in row])
        for name, row in zip(names, wait.distances, strict=True)
    ]
    return fill("distances", names=names, rows=rows, wait=wait, color=COLOR)


def _two(
    draw_one: Callable[[Axes, str, PerJob], None], found: Mapping[str, PerJob], height: float
) -> Callable[[float], Figure]:
    """Return a function that draws a panel for each quantity in a given width."""

    def draw(width: float) -> Figure:
        figure, both = beside(height, width)
        for axes, (name, one) in zip(both, found.items(), strict=True):
            draw_one(axes, name, one)
            if not axes.get_ylabel():
                axes.set_ylabel("predicted - real (s)" if width > NARROW else "difference (s)")
            heading(axes, name, SOFT)
        return figure

    return draw


def _columns(one: PerJob) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return real (mean), low, high and predicted values of the jobs, s, shape (jobs,) each."""
    real, low, high, predicted = (one.jobs_facts[name] for name in ("real", "low", "high", "predicted"))
    return real, low, high, predicted


AGREEMENT = Section("Agreement job by job", 700, _agreement, scope="validation")


def _breakdown(comparison: Comparison) -> Markup | None:
    """Return the tables of the differences by classes of jobs, or None without matched jobs."""
    if not len(comparison.jobs):
        return None
    table = breakdown(comparison.jobs, comparison.real)
    groups = []
    for by, title in TITLES.items():
        classes = table[table["by"] == by]
        rows = _class_rows(classes.to_dict("records"))
        if len(rows) > 1:
            groups.append((title, rows))
    if not groups:
        return None
    sizes = table[table["by"] == "size"]
    totals = [sizes.loc[sizes["quantity"] == quantity, "contribution"].sum() for quantity in QUANTITIES]
    return fill("breakdown", groups=groups, totals=totals, folded=FOLDED)


def _class_rows(records: list[dict[Any, Any]]) -> list[dict[str, Any]]:
    """Return a row per class with its differences by quantity, and the bar of its contribution to the wait."""
    waits = [record for record in records if record["quantity"] == "wait"]
    longest = max((abs(record["contribution"]) for record in waits), default=0.0)
    off = {(record["class"], record["quantity"]): record["difference"] for record in records}
    return [
        {
            "class": record["class"],
            "wait": record,
            "bar": round(REACH * record["contribution"] / longest, 1) if longest else 0.0,
            "differences": [off[record["class"], quantity] for quantity in QUANTITIES],
        }
        for record in waits
    ]


def _divergences(comparison: Comparison) -> Markup | None:
    """Return the table of the jobs with the first differences, or None if there are no decisions."""
    parted = divergences(comparison.real, comparison.predicted)
    if not parted.decisions:
        return None
    time = TimeAxis.of(comparison.real, comparison.predicted)
    rows = parted.table.to_dict("records")
    return fill("divergences", found=parted, rows=rows, time=time, real_side=real_side(comparison.real.info))


BREAKDOWN = Section("Differences by classes of jobs", 850, _breakdown)
DIVERGENCES = Section("First divergences", 870, _divergences)
