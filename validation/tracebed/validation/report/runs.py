"""The page of any number of runs: their metrics side by side, and their curves in one picture with a legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.metrics import (
    MeasuredRun,
    Undefined,
    all_metrics,
    busy_cores,
    classes,
    metrics,
    total_cores,
    waiting,
)
from tracebed.validation.metrics.jobs import measures
from tracebed.validation.pictures import LINES, Picture
from tracebed.validation.report import gantt, power, scales
from tracebed.validation.report.curves import curves, draw_distribution
from tracebed.validation.report.interactive import scripts
from tracebed.validation.report.scales import TimeAxis
from tracebed.validation.report.sections import Content, Section, pictures_of, rendered_sections
from tracebed.validation.report.style import JOBS, SOFT, above, beside, heading, panels
from tracebed.validation.report.templates import fill

Runs = Mapping[str, Run]  # name in the legend -> run
CHARTS = 6  # largest number of Gantt charts in a page
FOLDED = 12  # number of rows above which a table of classes is folded


def render(runs: Runs, table: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return the page as an HTML document. The same runs give the same text. `table`: name -> metrics of the run."""
    known = table or {name: metrics(run) for name, run in runs.items()}
    own = _sections() | {
        "table": Section("Metrics", 50, partial(_table, known), scope="runs"),
        "classes": Section("Jobs by class", 60, partial(_classes, known), scope="runs"),
    }
    sections = list(rendered_sections({"runs": runs}, own))
    return str(fill("runs", runs=runs, styles=_styles(runs), sections=sections, scripts=scripts()))


def pictures(runs: Runs) -> dict[str, Picture]:
    """Return the pictures of the page by name."""
    return pictures_of({"runs": runs}, _sections())


def _sections() -> dict[str, Section]:
    contents = (
        ("utilization", "Utilization", 100, _utilization),
        ("queue", "Queue", 200, _queue),
        ("distributions", "Distributions of waits and responses", 300, _distributions),
        ("gantt", "Jobs on nodes", 400, _gantt),
        ("power", "Power and energy", 250, _power),
    )
    return {name: Section(title, order, content, scope="runs") for name, title, order, content in contents}


def _styles(runs: Runs) -> dict[str, tuple[Run, str, Any]]:
    """Return name -> run, color and style of its lines."""
    return {
        name: (run, JOBS[number % len(JOBS)], LINES[(number // len(JOBS) + number) % len(LINES)])
        for number, (name, run) in enumerate(runs.items())
    }


def _table(known: Mapping[str, Mapping[str, Any]], runs: Runs) -> Markup:
    """Return the table of the metrics that are defined for a run."""
    rows = [
        (metric.label, metric.unit, [known[name][metric.name] for name in runs]) for metric in all_metrics().values()
    ]
    rows = [row for row in rows if not all(isinstance(value, float) and math.isnan(value) for value in row[2])]
    return fill("runs_metrics", names=list(runs), rows=rows)


def _classes(known: Mapping[str, Mapping[str, Any]], runs: Runs) -> Markup | None:
    """Return tables of the jobs by user, account, partition and class of nodes, where they are known, and by size.

    A classification with one class is left out: its row would repeat the metrics of all jobs.
    """
    measured = {name: MeasuredRun(run, known[name]["tau"]) for name, run in runs.items()}
    groups = []
    for by in classes.BY:
        rows = []
        for name, run in measured.items():
            with suppress(Undefined):
                table = classes.metrics_by(run, by)
                rows += [(label, name, figures) for label, _, *figures in table.itertuples(index=False)]
        first = {label: number for number, label in reversed([*enumerate(row[0] for row in rows)])}
        if len(first) > 1:
            groups.append(
                (
                    "class of nodes" if by == "class" else by,
                    sorted(rows, key=lambda row: first[row[0]]),
                    len(rows) > FOLDED,
                )
            )
    return fill("runs_classes", groups=groups, several=len(runs) > 1, most=classes.MOST) if groups else None


def _over_time(
    runs: Runs, of: Callable[[Run], tuple[Steps, float]], label: str, caption: str, top: float | None = None
) -> Picture:
    time = TimeAxis.of(*runs.values())

    def draw(width: float) -> Figure:
        figure = curves(_styles(runs), time, of, width)
        (axes,) = figure.axes
        axes.set_ylabel(label)
        axes.set_ylim(0, top)
        axes.yaxis.set_major_formatter("{x:,.12g}")
        return figure

    return Picture(draw, caption + time.note(*runs), caption)


def _utilization(runs: Runs) -> Picture | None:
    if not any(len(run.table("allocations")) for run in runs.values()):
        return None
    caption = "Share of all cores held by jobs."
    return _over_time(runs, lambda run: (busy_cores(run), max(total_cores(run), 1)), "utilization", caption, 1.04)


def _queue(runs: Runs) -> Picture:
    return _over_time(runs, lambda run: (waiting(run), 1.0), "waiting jobs", "Number of waiting jobs.")


def _power(runs: Runs) -> Content | None:
    """Return the power of the machine over time and its energy by state, of runs whose machine says the power."""
    return power.of_runs({name: (run, color) for name, (run, color, _) in _styles(runs).items()})


def _distributions(runs: Runs) -> Picture:
    """Return the distributions of waits and responses, a line per run."""
    jobs = {name: measures(run) for name, run in runs.items()}
    linear = {what: scales.threshold(*(table[what] for table in jobs.values())) for what in ("wait", "response")}

    def draw(width: float) -> Figure:
        figure, both = beside(1.9, width, sharey=True)
        for axes, what in zip(both, linear, strict=True):
            for name, (_, color, line) in _styles(runs).items():
                draw_distribution(axes, jobs[name][what], name, color, line)
            scales.apply(axes, "x", linear[what])
            axes.set_xlim(left=0)
            axes.set_ylim(0, 1.04)
            axes.set_xlabel(f"{what} (s)")
            heading(axes, what, SOFT)
        both[0].set_ylabel("share of the jobs")
        above(both[-1])
        return figure

    return Picture(draw, "Share of the finished jobs with at most this wait and at most this response.")


def _gantt(runs: Runs) -> Picture | None:
    """Return the charts of the first runs, one below the other on one time axis."""
    shown = {name: run for name, run in list(runs.items())[:CHARTS] if len(run.table("allocations"))}
    if not shown:
        return None
    time = TimeAxis.of(*shown.values())
    ids = gantt.ids_of(*shown.values())
    nodes = max(run.total_nodes for run in shown.values())
    styles = _styles(runs)

    def draw(width: float) -> Figure:
        height = gantt.height_of(nodes) * (1.0 if len(shown) < 3 else 0.7)
        figure, axes_of = panels(len(shown), height, width)
        for axes, (name, run) in zip(axes_of, shown.items(), strict=True):
            gantt.draw(axes, run, ids, time, nodes=nodes, titles=True, label=axes is axes_of[-1])
            heading(axes, name, styles[name][1])
        gantt.legend(axes_of[0], next(iter(shown.values())))
        return figure

    rest = f" The first {len(shown)} of {len(runs)} runs." if len(shown) < len(runs) else ""
    caption = f"A job has the same color in all charts. {gantt.about_bars(list(shown.values()), ids)}{rest}"
    is_large = gantt.is_large(*shown.values())
    return Picture(draw, caption, "Gantt charts", data=lambda: gantt.frame(shown), is_large=is_large)
