"""Runs with the methods that users of `tracebed.api` expect.

The class adds to the run of the orchestrator what stands on it: metrics, pictures, exports, and the HTML that notebooks
show. The orchestrator imports none of them.
"""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from tracebed.ground.display import WIDTH, facts_html
from tracebed.orchestrator import run as orchestrator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tracebed.validation.metrics.measured import PowerModel, WindowName

AnyRun: TypeAlias = orchestrator.Run | Path | str
"""A run, or the folder of one."""
CHARTED = 100_000
"""Most rows of allocations for which a notebook shows a chart."""


class Run(orchestrator.Run):
    """What happened to each job of a workload, in a replay, a simulation or a log.

    `jobs`, `allocations`, `reconfigurations` and `nodes` are frames; `info` is the metadata. Times
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
        grid: str | None = None,
    ) -> dict[str, Any]:
        """Return the metrics of the run by name, such as `mean_wait_s`; see `tracebed.validation.metrics.metrics`."""
        from tracebed.validation.metrics import metrics

        return metrics(self, tau, window, after=after, ended=ended, power=power, grid=grid)

    def plot_gantt(self, *, width: float = WIDTH) -> Figure:
        """Return a matplotlib figure of the nodes over time, each bar a job; `pictures` has more for a paper.

        Args:
            width: of the figure, inches.
        """
        from tracebed.validation.report.gantt import picture

        figure = picture(self).figure(width)
        vars(figure)["_repr_png_"] = partial(
            figure_png, figure
        )  # without pyplot a notebook shows the figure's name only
        return figure

    def export(self, to: str, path: Path | str, *, replace: bool = False) -> list[str]:
        """Write the run for another program, and return what the format cannot hold, a text each.

        Args:
            to: `perfetto`, `evalys`, `swf`, `csv`, or the name of another installed exporter.
            path: the file; compressed if its name ends in .gz.
            replace: whether an earlier export to this format in `path` is replaced.

        Raises:
            InputError: there is no such exporter, `path` exists and may not be replaced, or it cannot be written.
        """
        from tracebed.validation.export import export

        return list(export(self, to, Path(path), replace=replace))

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
        return facts_html("Run", facts) + chart


def loaded_run(run: AnyRun) -> orchestrator.Run:
    """Return a run, read from its folder if that is given."""
    return Run.load(run) if isinstance(run, Path | str) else run


def figure_png(figure: Figure) -> bytes:
    """Return a figure as a PNG image. Without pyplot, a notebook needs it as the method `_repr_png_` of the figure."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=150, bbox_inches="tight")
    return stream.getvalue()
