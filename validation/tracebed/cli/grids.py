"""Options of the commands that compute the cells of studies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.options import STORE, output_option
from tracebed.errors import InputError

if TYPE_CHECKING:
    from tracebed.validation.experiments.simulated.pools import Pool


@dataclass(frozen=True)
class Grid:
    """Where the cells of a study come from, and go to."""

    logs: tuple[str, ...]
    """`PATH` or `NAME=PATH` of logs."""
    folder: Path
    """The output folder."""
    kind: str
    """`local` or `dask`."""
    scheduler: str | None
    workers: int | None

    def pool(self) -> Pool:
        """Return the workers. Raises InputError if the options contradict each other."""
        from tracebed.validation.experiments.simulated.pools import DaskPool, LocalPool

        if self.kind == "local":
            if self.scheduler is not None:
                raise InputError("--scheduler goes with --pool dask", hint="add it, or leave this out")
            return LocalPool(self.workers)
        if self.scheduler is None:
            raise InputError("--pool dask needs the scheduler's address", hint="--scheduler tcp://host:8786")
        if self.workers is not None:
            raise InputError("--workers goes with --pool local", hint="Dask has the workers that it was started with")
        return DaskPool(self.scheduler)


def grid_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--log`, `--workers`, `--pool`, `--scheduler` and `-o`, together the argument `grid` of the command."""
    options = (
        click.option(
            "--log",
            "logs",
            multiple=True,
            metavar="[NAME=]PATH",
            help="Path of the log of a workload; may be repeated.",
        ),
        click.option(
            "--workers", type=click.IntRange(1), help="Number of simulations at a time.  [default: the number of cores]"
        ),
        click.option(
            "--pool",
            type=click.Choice(["local", "dask"]),
            default="local",
            show_default=True,
            help="Where simulations run: processes on this machine, or the workers of a Dask cluster.",
        ),
        click.option("--scheduler", metavar="ADDRESS", help="Address of the Dask scheduler: tcp://host:8786."),
        output_option(
            "The output folder; studies that share one share cells.  [default: sweeps]", STORE, required=False
        ),
    )

    @wraps(command)
    def with_grid(
        *,
        logs: tuple[str, ...],
        workers: int | None,
        pool: str,
        scheduler: str | None,
        output: Path | None,
        **others: Any,
    ) -> Any:
        from tracebed.cli.runs import end_on_signals

        end_on_signals()  # a signal must end the workers and release what they share
        return command(grid=Grid(logs, output or Path("sweeps"), pool, scheduler, workers), **others)

    for option in reversed(options):
        with_grid = option(with_grid)
    return with_grid


def chosen(option: str, texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of an option KEY=VALUE,VALUE by key. Raises InputError if a text is not of this form."""
    wanted: dict[str, list[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not (key and equals and values):
            raise InputError(f"{option} {text!r} chooses nothing", hint="write KEY=VALUE, or KEY=VALUE,VALUE")
        wanted.setdefault(key, []).extend(values.split(","))
    return wanted
