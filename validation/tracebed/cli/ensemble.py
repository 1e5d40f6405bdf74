"""The ensemble of a prediction: its runs beside the run with constant delays, and its courses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracebed.cli.console import print_table
from tracebed.cli.messages import emit, progress

if TYPE_CHECKING:
    from tracebed.api import Run

FOLDER = "ensemble"
"""Folder of the members in the folder of the run."""


def kept_members(output: Path, members: Iterable[Run], count: int) -> list[dict[str, Any]]:
    """Write the members of an ensemble into the folder of their run, and return the metrics of each.

    Args:
        output: the folder of the run.
        members: the runs.
        count: the number of these runs.
    """
    found = []
    with progress("simulating the ensemble", total=count) as bar:
        for number, run in enumerate(members, start=1):
            run.save(output / FOLDER / f"run-{number:02d}")
            found.append(run.metrics())
            bar.update(number)
    return found


def show_ensemble(run: Run, output: Path, members: list[dict[str, Any]]) -> None:
    """Print each gated metric of a run with its interval over the ensemble, and the courses of the ensemble."""
    import pandas as pd

    from tracebed.api.measures import courses_of, intervals, metric_definitions

    own, known = run.metrics(), metric_definitions()
    gated = [name for name, metric in known.items() if metric.margin is not None and metric.margin.gate]
    rows = intervals(pd.DataFrame(members)[gated]).itertuples()
    print_table(
        ["metric", "constant delays", "median", "95 % of the ensemble: from", "to"],
        [[known[name].title, own[name], *row] for name, *row in rows],
    )
    emit(courses_of(run.info.policy, members))
    emit(f"{output / FOLDER}: {len(members)} runs with drawn delays")
