"""Intervals of metrics over runs with shaken input, for the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tracebed.orchestrator.cli.console import print_table
from tracebed.orchestrator.cli.messages import progress, say

if TYPE_CHECKING:
    from tracebed.orchestrator.run import Run


def show_shaken(run: Run, output: Path, runs: Iterable[Run], count: int) -> None:
    """Print each metric of a run with its interval over runs with shaken input, and keep their metrics.

    Args:
        run: the run with the workload as it is.
        output: its folder.
        runs: the runs with shaken input.
        count: the number of these runs.
    """
    from tracebed.orchestrator.run import SHAKEN
    from tracebed.validation.accidents import figures, intervals, keep
    from tracebed.validation.metrics import all_metrics, metrics

    with progress("simulating with shaken input", total=count) as bar:

        def counted() -> Iterator[Run]:
            for number, shaken in enumerate(runs, start=1):
                yield shaken
                bar.update(number)

        found = figures(counted())
    keep(found, output)
    own = metrics(run)
    print_table(
        ["metric", "as it is", "median", "95 % of the runs: from", "to"],
        [[all_metrics()[name].title, own[name], *row] for name, *row in intervals(found).itertuples()],
    )
    say(f"{output / SHAKEN}: {count} runs with shaken input")
