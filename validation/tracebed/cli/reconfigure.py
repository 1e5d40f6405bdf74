"""`tracebed nodes bench reconfigure`: the stages of changes of the number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracebed.cli.console import print_json
from tracebed.cli.messages import emit, progress
from tracebed.cli.options import Number, json_option
from tracebed.errors import InputError

if TYPE_CHECKING:
    from tracebed.api.benchmarks import Transport

MOST_RANKS = 64
UNITS = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}


def _sizes(text: str) -> list[int]:
    """Return the sizes of `1,2,4`. Raises InputError."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and 1 <= int(word) <= MOST_RANKS for word in words):
        raise InputError(f"--sizes: {text!r} is invalid", hint=f"give numbers from 1 to {MOST_RANKS}: 1,2,4,2")
    return [int(word) for word in words]


def _mib(text: str) -> float:
    """Return the MiB of `8MiB`. Raises InputError."""
    unit = next((unit for unit in UNITS if text.endswith(unit)), "")
    try:
        return UNITS.get(unit, 1.0) * Number(0, 2.0**20).convert(text.removesuffix(unit), None, None)
    except click.ClickException as error:
        raise InputError(f"--state: {text!r} is not a size", hint="write 512KiB, 8MiB or 1GiB") from error


@click.command()
@click.option(
    "--through",
    type=click.Choice(["connections", "mpi"]),
    default="connections",
    show_default=True,
    help="Way in which ranks start and state moves: the connections of replays, or MPI (extra mpi).",
)
@click.option(
    "--sizes",
    default="1,2,4,2",
    show_default=True,
    metavar="LIST",
    help="Number of ranks at the start, then after each change.",
)
@click.option("--state", default="8MiB", show_default=True, metavar="SIZE", help="Size of the state that moves.")
@json_option
def reconfigure(through: Transport, sizes: str, state: str, as_json: bool) -> None:
    """Change the number of ranks of a job on this machine, and print how long each stage takes.

    The stages are decision, spawn, redistribution of the state, and termination. A plain spawn is a new start of the
    same number of ranks.

    \b
    Example:
      tracebed nodes bench reconfigure --sizes 1,2,4,2 --state 8MiB
    """
    from tracebed.api import benchmarks

    chosen, state_mib = _sizes(sizes), _mib(state)
    with progress("measuring the stages"):
        stages, library = benchmarks.reconfigure(chosen, state_mib, through=through)
    if as_json:
        changes = [change._asdict() | {"total_s": change.total_s, "ratio": change.ratio} for change in stages]
        print_json("tracebed-bench-reconfigure/1", {"through": through, "library": library, "changes": changes})
        return
    if library:
        emit(library)
    click.echo(benchmarks.table(stages), nl=False)
