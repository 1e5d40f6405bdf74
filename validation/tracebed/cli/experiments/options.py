"""Options of `tracebed experiment`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.options import SPEED, STORE, OutputPath, gathered, output_option
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import ARTIFACT

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


def _execution(logs: tuple[str, ...], workers: int | None, dask: str | None, output: Path | None) -> Execution:
    from tracebed.cli.runs import end_on_signals

    end_on_signals()  # a signal must end the workers and release what they share
    return Execution(logs, output or FOLDER, dask, workers)


execution_options = gathered(
    "execution",
    _execution,
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
"""`--log`, `--workers`, `--dask` and `-o`."""


def _choices(
    sensitivity: bool,
    choices: tuple[str, ...],
    settings: tuple[str, ...],
    figures: tuple[str, ...],
    perturb: int | None,
) -> Choices | None:
    if not sensitivity and (settings or figures or perturb) and not choices:
        raise InputError("-b, --figure and --perturb are for a sensitivity analysis", hint="add --sensitivity")
    return Choices(choices, settings, figures, perturb or PERTURBATIONS) if sensitivity or choices else None


choices_options = gathered(
    "choices",
    _choices,
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
"""`--sensitivity`, `-x`, `-b`, `--figure` and `--perturb`."""


def _paper(inventory: str | None, repetitions: int | None, speed: float | None) -> dict[str, Any]:
    given = {"inventory": inventory, "repetitions": repetitions, "speed": speed}
    return {key: value for key, value in given.items() if value is not None}


paper_options = gathered(
    "paper",
    _paper,
    click.option("--inventory", metavar="NAME|FILE", help="The nodes.  [default: the cores of this machine]"),
    click.option("--repetitions", type=click.IntRange(1, 1000), help="Replays of each scenario.  [default: 3]"),
    click.option("--speed", type=SPEED, help="Trace seconds per wall second."),
)
"""`--inventory`, `--repetitions` and `--speed`."""


def chosen(option: str, texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of an option KEY=VALUE,VALUE by key. Raises InputError if a text is not of this form."""
    wanted: dict[str, list[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not (key and equals and values):
            raise InputError(f"{option} {text!r} chooses nothing", hint="write KEY=VALUE, or KEY=VALUE,VALUE")
        wanted.setdefault(key, []).extend(values.split(","))
    return wanted
