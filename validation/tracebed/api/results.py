"""Workloads, runs and comparisons with the methods that users of `tracebed.api` expect.

Each class adds to the one of the same name below it what needs a room above that one: metrics, pictures, and the
HTML that notebooks show.
"""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import pandas as pd

from tracebed.converters import workload as converters
from tracebed.files import replacing
from tracebed.orchestrator import run as orchestrator
from tracebed.registry import one_of
from tracebed.validation import verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tracebed.validation.budget import ErrorBudget
    from tracebed.validation.metrics.measured import PowerModel, WindowName

OnInconclusiveName: TypeAlias = Literal["fail", "warn", "pass"]

CHARTED = 100_000
"""Most rows of allocations for which a notebook shows a chart."""


class Workload(converters.Workload):
    """A submission list: `table` (a row per job) and `provenance` (system, sources, steps). Treat both as frozen.

    The columns of `table`, with their units, are listed by `tracebed describe --dictionary` and in the reference.
    """

    @classmethod
    def of(cls, workload: converters.Workload) -> Self:
        """Return `workload` as an instance of this class, without a copy of its table."""
        new = cls.__new__(cls)
        vars(new).update(vars(workload))
        return new


class Run(orchestrator.Run):
    """What happened to each job of a workload, in a replay, a simulation or a log.

    `jobs`, `allocations`, `reconfigurations` and `nodes` are frames; `info` has the facts that are not rows. Times
    are seconds of the workload (trace seconds) since its time 0.
    """

    @classmethod
    def of(cls, run: orchestrator.Run) -> Self:
        """Return `run` as an instance of this class, without a copy of its tables."""
        new = cls.__new__(cls)
        vars(new).update(vars(run))
        return new

    @property
    def health(self) -> dict[str, Any]:
        """Whether a replay is fit to be compared; empty for other runs.

        `state` is `healthy`, `degraded` or `unhealthy`, `causes` has the signals above their limits, each with
        `signal`, `value`, `limit`, `state` and `text`, and `signals` has all figures.
        """
        return self.info.health

    def metrics(
        self,
        tau: float = 10.0,
        window: WindowName = "arrivals",
        *,
        after: float = 0.0,
        ended: bool = False,
        power: PowerModel | None = None,
    ) -> dict[str, Any]:
        """Return the metrics of the run by name, such as `mean_wait_s`; see `tracebed.validation.metrics.metrics`."""
        from tracebed.validation.metrics import metrics

        return metrics(self, tau, window, after=after, ended=ended, power=power)

    def plot_gantt(self, *, width: float = 11.0) -> Figure:
        """Return a matplotlib figure of the nodes over time, each bar a job.

        Args:
            width: of the figure, inches.
        """
        from tracebed.validation.report.gantt import gantt_figure

        figure = gantt_figure(self, width=width)
        vars(figure)["_repr_png_"] = partial(
            figure_png, figure
        )  # without pyplot a notebook shows the figure's name only
        return figure

    def export(self, to: str, path: Path | str) -> list[str]:
        """Write the run for another program, and return what the format cannot hold, a text each.

        Args:
            to: `perfetto`, `evalys`, `swf`, `csv`, or the name of another installed exporter.
            path: the file; compressed if its name ends in .gz.

        Raises:
            InputError: there is no such exporter, or the file cannot be written.
        """
        from tracebed.validation.export import export

        return list(export(self, to, Path(path)))

    def _repr_html_(self) -> str:
        from tracebed.validation.report.gantt import small_gantt_svg

        info = self.info
        facts = {
            "execution": f"{info.execution} ({info.source})",
            "policy": info.policy,
            "workload": str(info.workload.get("name", "")),
            "nodes": f"{self.total_nodes:,}",
            "jobs": ", ".join(f"{count:,} {state}" for state, count in self.jobs["state"].value_counts().items()),
            "state": info.state,
        }
        chart = small_gantt_svg(self) if 0 < len(self.allocations) <= CHARTED else ""
        return _table("Run", facts) + chart


class Comparison(verdict.Comparison):
    """A prediction and a repetition of the real run, job by job."""

    @classmethod
    def of(cls, comparison: verdict.Comparison) -> Self:
        """Return `comparison` as an instance of this class."""
        return cls(**{field.name: getattr(comparison, field.name) for field in fields(comparison)})

    def breakdown(self) -> pd.DataFrame:
        """Return the differences predicted - real by size, run time, user, hour of submission and kind of the jobs.

        Returns:
            A row per classification, class and quantity: columns `by`, `class`, `quantity` (wait, run, response,
            bounded_slowdown), `jobs`, `real`, `predicted`, `difference` (means over the class), `contribution` to the
            difference of the mean over all jobs, and `share` of it. Times are in s.
        """
        from tracebed.validation.verdict.breakdown import breakdown

        return breakdown(self.jobs, self.real)

    def divergences(self, count: int = 10, *, tolerance_s: float | None = None) -> pd.DataFrame:
        """Return the jobs at which the runs first part, and the decisions at which they do.

        Args:
            count: number of jobs.
            tolerance_s: differences of times up to this one are explained, s; by default the resolution of the runs,
                the lateness of submissions, and the scheduling interval.

        Returns:
            A row per job, by time: columns `job_id`, `parting` (missing, nodes, order or time), `time` (s after the
            first submission), `first` (the run that decided first), `real` and `predicted` (what each run decided),
            `delay` (s, predicted - real), `idle_...` nodes and `waiting_...` jobs of each run just before.
        """
        from tracebed.validation.verdict.divergence import divergences

        return divergences(self.real, self.predicted, tolerance_s=tolerance_s, count=count).table


class Validation(verdict.Validation):
    """The verdict on a simulator, over the cases of a suite or for one case.

    `verdict`, `headline` and `metrics` have the result; `cases` has the repetitions, and a typical pair of runs.
    """

    @classmethod
    def of(cls, validation: verdict.Validation) -> Self:
        """Return `validation` as an instance of this class."""
        return cls(**{field.name: getattr(validation, field.name) for field in fields(validation)})

    @property
    def pair(self) -> Comparison:
        """The most central prediction and the most central repetition of the first case."""
        return Comparison.of(super().pair)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per metric and case.

        Returns:
            index `metric` (its name, which ends in the unit: `_s` for seconds) and `case`; columns `real` (mean over
            the repetitions), `noise` (its coefficient of variation), `predicted`, `error` (relative), `margin` (in the
            unit of the metric), `z` (error in margins), `gate` (whether the verdict depends on the metric), and
            `verdict` (of the metric over all cases).
        """
        columns = ["metric", "case", "real", "noise", "predicted", "error", "margin", "z", "gate", "verdict"]
        rows = [
            (
                item.name,
                case.case,
                case.real_mean,
                case.noise_cv,
                case.predicted,
                case.relative_error,
                case.margin,
                case.z,
                item.gate,
                item.verdict.value,
            )
            for item in self.metrics
            for case in item.cases
        ]
        return pd.DataFrame(rows, columns=columns).set_index(["metric", "case"])

    def breakdown(self) -> pd.DataFrame:
        """Return `Comparison.breakdown` of the pair of the first case."""
        return self.pair.breakdown()

    def divergences(self, count: int = 10, *, tolerance_s: float | None = None) -> pd.DataFrame:
        """Return `Comparison.divergences` of the pair of the first case."""
        return self.pair.divergences(count, tolerance_s=tolerance_s)

    def to_html(self, path: Path | str | None = None, budget: ErrorBudget | None = None) -> str:
        """Return the report as the text of one HTML document, after it was written to `path`, if one is given.

        Args:
            path: the file. The pages of several cases are written to a folder of the same name beside it.
            budget: error budget of the predictions, for a section of its own.

        Raises:
            InputError: the file cannot be written, or its name does not end in .html.
        """
        from tracebed.validation.report import html as report

        more = {}
        if budget is not None:
            from tracebed.validation.budget.figure import section

            more["budget"] = section(budget)
        if path is not None:
            report.write(self, path, more)
        return report.render(self, more)

    def to_markdown(self, path: Path | str | None = None) -> str:
        """Return a summary in Markdown, as for the page of a CI job, after it was written to `path`, if one is given.

        Raises:
            InputError: the file cannot be written.
        """
        from tracebed.validation.report.markdown import markdown

        return _written(markdown([self]), path)

    def to_junit(self, path: Path | str | None = None, *, inconclusive: OnInconclusiveName = "fail") -> str:
        """Return the verdict as JUnit XML, a test case per metric and case, after it was written to `path`, if given.

        Args:
            path: the file.
            inconclusive: `fail`: a gated metric without a decision is a failure; `warn`, `pass`: it is skipped.

        Raises:
            InputError: the file cannot be written, or `inconclusive` is unknown.
        """
        from tracebed.validation.report.junit import junit
        from tracebed.validation.verdict.gate import OnInconclusive

        one_of("inconclusive", inconclusive, OnInconclusive)
        return _written(junit([self], OnInconclusive(inconclusive)).decode(), path)


def _written(text: str, path: Path | str | None) -> str:
    """Return `text`, after it was written to `path`, if one is given."""
    if path is not None:
        with replacing(Path(path)) as stream:
            stream.write(text.encode())
    return text


def figure_png(figure: Figure) -> bytes:
    """Return a figure as a PNG image. Without pyplot, a notebook needs it as the method `_repr_png_` of the figure."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", bbox_inches="tight")
    return stream.getvalue()


def metrics_table(runs: Mapping[str, orchestrator.Run], **options: Any) -> pd.DataFrame:
    """Return the metrics of several runs: a row per metric, a column per run.

    Args:
        runs: name -> run.
        options: those of `tracebed.validation.metrics.metrics`.
    """
    from tracebed.validation.metrics import all_metrics, metrics

    found = {name: metrics(run, **options) for name, run in runs.items()}
    known = all_metrics()
    table = {name: [values[metric] for metric in known] for name, values in found.items()}
    units = {"unit": [metric.unit for metric in known.values()]}
    return pd.DataFrame(units | table, index=pd.Index(list(known), name="metric"))


def _table(title: str, facts: Mapping[str, str]) -> str:
    """Return facts as a small HTML table."""
    rows: Sequence[str] = [
        f"<tr><th style='text-align: left'>{html.escape(name)}</th>"
        f"<td style='text-align: left'>{html.escape(value)}</td></tr>"
        for name, value in facts.items()
    ]
    return f"<table><caption><b>{title}</b></caption>{''.join(rows)}</table>"
