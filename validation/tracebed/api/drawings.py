"""Pictures for papers: of runs, verdicts, error budgets, what-ifs and tables of experiments, and the page of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import pandas as pd

from tracebed.ground.errors import InputError
from tracebed.orchestrator import run as orchestrator
from tracebed.validation import budget, verdict
from tracebed.validation import pictures as drawing
from tracebed.validation.pictures import Picture
from tracebed.validation.verdict.ranking import PolicyComparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawn(Protocol):
    """A result that draws its pictures itself, as a what-if does."""

    def pictures(self) -> dict[str, Picture]:
        """Return the pictures by name."""


Pictured = (
    orchestrator.Run
    | Mapping[str, orchestrator.Run]
    | verdict.Validation
    | budget.ErrorBudget
    | PolicyComparison
    | Drawn
)
"""What has pictures."""


def pictures(subject: Pictured) -> dict[str, Picture]:
    """Return the pictures of a run, of several runs by name, of a verdict, an error budget or a what-if, by name.

    Args:
        subject: what the pictures show.

    Returns:
        Name -> picture, with `save(path, width=...)` for .svg, .png, .pdf, and .csv with its data, `figure(width)`, and
        `frame()`.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.generate("cirne", jobs=20, nodes=16, seed=1)
        >>> found = tb.pictures({policy: tb.simulate(w, policy) for policy in ("fcfs", "easy", "conservative")})
        >>> sorted(found)
        ['distributions', 'gantt', 'queue', 'utilization']
        >>> found["queue"].save("queue.pdf", width=3.5).name
        'queue.pdf'
    """
    if isinstance(subject, orchestrator.Run):
        subject = {subject.info.policy or "run": subject}
    if isinstance(subject, Mapping):
        from tracebed.validation.report import runs

        return runs.pictures(subject)
    if isinstance(subject, verdict.Validation):
        from tracebed.validation.report import html

        return html.pictures(subject)
    if isinstance(subject, budget.ErrorBudget):
        from tracebed.validation.budget.figure import picture

        return {"waterfall": picture(subject)}
    if isinstance(subject, PolicyComparison):
        from tracebed.validation.report import gains

        return {"gains": gains.picture(subject)}
    return subject.pictures()


class History(NamedTuple):
    """The history of a baseline: a table, its picture, and its page."""

    table: pd.DataFrame
    picture: Picture

    @property
    def steps(self) -> pd.DataFrame:
        """The steps of the errors, oldest first: `simulator`, `metric`, `version`, `date`, `previous` (the version
        before), and the levels `before` and `after` (mean errors in margins)."""
        from tracebed.validation.verdict.history import steps

        return steps(self.table)

    def page(self, path: Path | str) -> Path:
        """Write the page: a line of each metric over the commits, the steps, the results; and return its path.

        Args:
            path: the page, an .html file.
        """
        from tracebed.validation.report.history import render
        from tracebed.validation.report.html import write_page

        return write_page(render(self.table, self.steps), Path(path))


def history(*baselines: Path | str) -> History:
    """Return how the verdicts of a baseline changed from commit to commit.

    Args:
        baselines: a baseline in a Git repository; or several baselines in their order, such as the records of a CI
            job, whose names state the time and the commit (`20261129T120000Z-0123abcd.json`).

    Returns:
        `table` has a row per version, simulator and metric, oldest first: `version`, `date`, `simulator`, `verdict`,
        `metric`, `gate`, `z` (mean error in margins), `metric_verdict`; `picture` draws the gated metrics.

    Raises:
        InputError: a version is not a baseline, or the only file is not in a Git repository.

    Example:
        >>> import tracebed.api as tb
        >>> table, picture = tb.history("baseline.yaml")  # doctest: +SKIP
        >>> picture.save("history.pdf", width=3.5)  # doctest: +SKIP
    """
    from tracebed.validation.report.history import picture
    from tracebed.validation.verdict.history import history as read

    table = read([Path(path) for path in baselines])
    return History(table, picture(table))


def save_pictures(subject: Pictured, folder: Path | str) -> list[Path]:
    """Write the pictures of `pictures` to a folder, and return the files.

    Each is written as wide as one column and as two (NAME-column, NAME-page), as .svg, .png and .pdf, and its data as
    NAME.csv.

    Args:
        subject: what the pictures show.
        folder: the folder, which may exist.

    Raises:
        InputError: the folder is a file.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.generate("cirne", jobs=5, nodes=16, seed=1)
        >>> len(tb.save_pictures(tb.simulate(w, "easy"), "figures"))
        28
    """
    check_folder(Path(folder))
    return drawing.save_all(pictures(subject), Path(folder))


def check_folder(folder: Path) -> None:
    """Raise InputError unless pictures can be written to a folder.

    Args:
        folder: the folder, which may exist.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError("is a file, not a folder", where=str(folder), hint="name a folder")


def runs_page(
    runs: Mapping[str, orchestrator.Run], path: Path | str, metrics: Mapping[str, Mapping[str, Any]] | None = None
) -> Path:
    """Write a page with the metrics, curves and Gantt charts of any number of runs, and return its path.

    Args:
        runs: name in the legend -> run.
        path: the page, an .html file.
        metrics: name -> metrics of the run; computed by default.

    Raises:
        InputError: the file cannot be written, or its name does not end in .html.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.generate("cirne", jobs=5, nodes=16, seed=1)
        >>> tb.runs_page({policy: tb.simulate(w, policy) for policy in ("fcfs", "easy")}, "runs.html").name
        'runs.html'
    """
    from tracebed.validation.report.html import write_page
    from tracebed.validation.report.runs import render

    return write_page(render(runs, metrics), Path(path))


def plot_means(
    table: pd.DataFrame,
    figures: str | Sequence[str],
    *,
    kind: Literal["bars", "lines", "normalized"] = "bars",
    at: Mapping[str, Any] | None = None,
    relative_to: Mapping[str, Any] | None = None,
    spread: Literal["seeds", "jobs"] = "seeds",
    title: str = "",
) -> Picture:
    """Return a picture of means over seeds with 95 % intervals, from the table of an experiment.

    Args:
        table: the result of `experiment`.
        figures: names of metrics; a panel each.
        kind: bars; lines over the share of malleable jobs or an interval; or bars divided by a baseline.
        at: the points to show: column -> value, or list of values.
        relative_to: the baseline, such as `{"policy": "easy"}`.
        spread: `jobs` adds boxes of quartiles over jobs.
        title: title of the picture.

    Raises:
        InputError: no row of the table has such a figure.

    Example:
        >>> from pathlib import Path
        >>> import tracebed.api as tb
        >>> text = "workloads: {s: {model: cirne, options: {jobs: 20, nodes: 16}}}\\npolicies: [fcfs, easy]\\nseeds: 3"
        >>> _ = Path("sweep.yaml").write_text(text)
        >>> picture = tb.plot_means(tb.experiment("sweep.yaml", "sweep", workers=1), "mean_wait_s")
        >>> list(picture.frame()["series"])
        ['fcfs', 'easy']
    """
    from tracebed.validation.experiments.experiment_schema import Plot
    from tracebed.validation.experiments.views.bars import bars

    names = [figures] if isinstance(figures, str) else list(figures)
    plot = Plot(
        kind=kind,
        figures=names,
        at=dict(at or {}),
        relative_to=None if relative_to is None else dict(relative_to),
        spread=spread,
    )
    rows = table[table["window"] == table["window"].iloc[0]]
    if (found := bars(plot, rows, title)) is None:
        raise InputError(f"no row has {', '.join(names)} at these points", hint="compare `at` with the table")
    return Picture(partial(_drawn, plot, rows, title), title, data=lambda: found[1])


def _drawn(plot: Any, rows: pd.DataFrame, title: str, width: float) -> Figure:
    from tracebed.validation.experiments.views.bars import bars

    found = bars(plot, rows, title, width=width)
    assert found is not None
    return found[0]
