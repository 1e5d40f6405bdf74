"""Options of `tracebed experiment`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.options import SPEED, STORE, OutputPath, output_option
from tracebed.errors import InputError
from tracebed.outputs import ARTIFACT

if TYPE_CHECKING:
    from tracebed.api.experiments import Pool

FOLDER = Path("experiments")
"""The output folder by default."""
PERTURBATIONS = 20


@dataclass(frozen=True)
class Execution:
    """Where cells come from, where they are computed, and where they go to."""

    logs: tuple[str, ...]
    """`PATH` or `NAME=PATH` of logs."""
    folder: Path
    """The output folder."""
    dask: str | None
    """Address of a Dask scheduler; None: processes on this machine."""
    workers: int | None

    def pool(self) -> Pool:
        """Return the workers. Raises InputError if the options contradict each other."""
        from tracebed.api.experiments import DaskPool, LocalPool

        if self.dask is None:
            return LocalPool(self.workers)
        if self.workers is not None:
            raise InputError("--workers is given with --dask", hint="Dask has the workers that it was started with")
        return DaskPool(self.dask)


@dataclass(frozen=True)
class Choices:
    """What a sensitivity analysis changes, in place of the section `sensitivity` of the file where given."""

    choices: tuple[str, ...]
    """NAME=VALUE[,VALUE]."""
    settings: tuple[str, ...]
    """NAME=VALUE at the base."""
    figures: tuple[str, ...]
    runs: int
    """Number of perturbed inputs."""


def artifact_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--report`, the folder of an artifact, as the argument `artifact` of the command."""
    about = (
        "Also write an artifact for a reproducibility committee: inputs, results, hashes, and a script that rebuilds."
    )
    return click.option("--report", "artifact", type=OutputPath(ARTIFACT), metavar="FOLDER", help=about)(command)


def execution_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--log`, `--workers`, `--dask` and `-o`, together the argument `execution` of the command."""
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
            "--dask",
            metavar="ADDRESS",
            help="Simulate on the workers of a Dask cluster; its scheduler is at tcp://host:8786.",
        ),
        output_option(
            "The output folder; experiments that share one share simulated cells.  [default: experiments]",
            STORE,
            required=False,
        ),
    )

    @wraps(command)
    def with_execution(
        *, logs: tuple[str, ...], workers: int | None, dask: str | None, output: Path | None, **others: Any
    ) -> Any:
        from tracebed.cli.runs import end_on_signals

        end_on_signals()  # a signal must end the workers and release what they share
        return command(execution=Execution(logs, output or FOLDER, dask, workers), **others)

    return _with(options, with_execution)


def choices_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--sensitivity`, `-x`, `-b`, `--figure` and `--perturb`, together the argument `choices` of the command."""
    options = (
        click.option(
            "--sensitivity",
            is_flag=True,
            help="Change the free choices of the file one at a time, and print the effects, largest first.",
        ),
        click.option(
            "-x",
            "--choice",
            "choices",
            multiple=True,
            metavar="NAME=VALUE[,VALUE]",
            help="Free choice with other values, in place of those of the file; may be repeated.",
        ),
        click.option(
            "-b",
            "--base",
            "settings",
            multiple=True,
            metavar="NAME=VALUE",
            help="Value of a choice at the base; may be repeated.",
        ),
        click.option(
            "--figure", "figures", multiple=True, metavar="METRIC", help="Figure to print and plot; may be repeated."
        ),
        click.option(
            "--perturb",
            type=click.IntRange(2, 10_000),
            metavar="N",
            help=f"Number of perturbed inputs for the base and for each changed choice.  [default: {PERTURBATIONS}]",
        ),
    )

    @wraps(command)
    def with_choices(
        *,
        sensitivity: bool,
        choices: tuple[str, ...],
        settings: tuple[str, ...],
        figures: tuple[str, ...],
        perturb: int | None,
        **others: Any,
    ) -> Any:
        if not sensitivity and (settings or figures or perturb) and not choices:
            raise InputError("-b, --figure and --perturb are for a sensitivity analysis", hint="add --sensitivity")
        wanted = Choices(choices, settings, figures, perturb or PERTURBATIONS) if sensitivity or choices else None
        return command(choices=wanted, **others)

    return _with(options, with_choices)


def paper_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--inventory`, `--repetitions` and `--speed`, together the argument `paper` of the command."""
    options = (
        click.option("--inventory", metavar="NAME|FILE", help="The nodes.  [default: the cores of this machine]"),
        click.option("--repetitions", type=click.IntRange(1, 1000), help="Replays of each scenario.  [default: 3]"),
        click.option("--speed", type=SPEED, help="Trace seconds per wall second."),
    )

    @wraps(command)
    def with_paper(*, inventory: str | None, repetitions: int | None, speed: float | None, **others: Any) -> Any:
        given = {"inventory": inventory, "repetitions": repetitions, "speed": speed}
        return command(paper={key: value for key, value in given.items() if value is not None}, **others)

    return _with(options, with_paper)


def _with(options: Sequence[Callable[[Any], Any]], command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def chosen(option: str, texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of an option KEY=VALUE,VALUE by key. Raises InputError if a text is not of this form."""
    wanted: dict[str, list[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not (key and equals and values):
            raise InputError(f"{option} {text!r} chooses nothing", hint="write KEY=VALUE, or KEY=VALUE,VALUE")
        wanted.setdefault(key, []).extend(values.split(","))
    return wanted
