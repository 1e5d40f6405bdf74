"""Intervals of metrics over runs with perturbed input, and differences between such runs, for the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tracebed.cli.console import print_table
from tracebed.cli.messages import emit, progress

if TYPE_CHECKING:
    import pandas as pd

    from tracebed.api import Run, Workload
    from tracebed.api.measures import Difference

UNKNOWN = "significance is unknown: `tracebed simulate --perturb` gives the figures of a run their intervals"


def perturbed_runs(output: Path, runs: Iterable[tuple[Workload, Run]], count: int) -> pd.DataFrame:
    """Keep the metrics of runs with perturbed input in the folder of their run, and return them.

    Args:
        output: the folder.
        runs: each perturbed workload and its run.
        count: the number of these runs.
    """
    from tracebed.api.measures import keep_perturbed

    with progress("simulating with perturbed input", total=count) as bar:

        def counted() -> Iterator[tuple[Workload, Run]]:
            for number, each in enumerate(runs, start=1):
                yield each
                bar.update(number)

        return keep_perturbed(output, counted())


def show_perturbed(run: Run, output: Path, perturbed: pd.DataFrame) -> None:
    """Print each metric of a run with its interval over the runs with perturbed input."""
    from tracebed.api.measures import PERTURBED, intervals, metric_definitions

    own, known = run.metrics(), metric_definitions()
    print_table(
        ["metric", "as it is", "median", "95 % of the runs: from", "to"],
        [[known[name].title, own[name], *row] for name, *row in intervals(perturbed).itertuples()],
    )
    emit(f"{output / PERTURBED}: {len(perturbed)} runs with perturbed input")


def change(found: Difference | None) -> str:
    """Return a difference as text, marked if it is not significant; a dash if that is unknown."""
    return "-" if found is None else found.text


def explain_falls(ends: Iterable[tuple[float, float]]) -> None:
    """Say how a change can be below -100 %, if one is.

    Args:
        ends: lower end of the interval of each change, and the base whose share it is, in one unit.
    """
    if any(base and low < -abs(base) for low, base in ends):
        emit("changes are in percent of the mean of the base: below -100 %, runs fall by more than this mean")
