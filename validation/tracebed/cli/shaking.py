"""Intervals of metrics over runs with shaken input, and differences between such runs, for the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tracebed.cli.console import print_table
from tracebed.cli.messages import progress, say

if TYPE_CHECKING:
    import pandas as pd

    from tracebed.api import Run, Workload
    from tracebed.api.measures import Difference

UNKNOWN = "accidents are unknown: `tracebed simulate --shake` shows by how much the figures of a run change with them"


def shaken_runs(output: Path, runs: Iterable[tuple[Workload, Run]], count: int) -> pd.DataFrame:
    """Keep the metrics of runs with shaken input in the folder of their run, and return them.

    Args:
        output: the folder.
        runs: each shaken workload and its run.
        count: the number of these runs.
    """
    from tracebed.api.measures import keep_shaken

    with progress("simulating with shaken input", total=count) as bar:

        def counted() -> Iterator[tuple[Workload, Run]]:
            for number, each in enumerate(runs, start=1):
                yield each
                bar.update(number)

        return keep_shaken(output, counted())


def show_shaken(run: Run, output: Path, shaken: pd.DataFrame) -> None:
    """Print each metric of a run with its interval over the runs with shaken input."""
    from tracebed.api.measures import PERTURBED, intervals, metric_definitions

    own, known = run.metrics(), metric_definitions()
    print_table(
        ["metric", "as it is", "median", "95 % of the runs: from", "to"],
        [[known[name].title, own[name], *row] for name, *row in intervals(shaken).itertuples()],
    )
    say(f"{output / PERTURBED}: {len(shaken)} runs with shaken input")


def change(found: Difference | None) -> str:
    """Return a difference as text, marked if it may be an accident; a dash if accidents are unknown."""
    return "-" if found is None else found.text
