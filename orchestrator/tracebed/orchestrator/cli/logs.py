"""What the commands that read logs share: options of the readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tracebed.errors import InputError
from tracebed.orchestrator.cli.options import SIZE, Command

if TYPE_CHECKING:
    from tracebed.converters.workload import System

PLAIN = "batsim, csv, elastisim, parquet and swf"
"""Formats whose readers keep names: help must not import the readers, and a test compares them."""


def log_options(command: Command) -> Command:
    """`--from`, `--by`, `--time-zone`, `--machine`, `--keep-extra`, `--keep-names`; `raw_options` takes them on."""
    options = (
        click.option("--from", "format", metavar="FORMAT", help="The input's format, where its content does not tell."),
        click.option(
            "--by",
            type=click.Choice(["node", "core"]),
            help="Of an SWF's processors: make whole nodes (default), or a node of one core of each.",
        ),
        click.option("--time-zone", metavar="ZONE", help="Clock of a log that does not say: America/Denver."),
        click.option(
            "--machine",
            metavar="NAME",
            help="Machine whose jobs to read from a log of several: 'Perlmutter CPU'; the cluster of sacct.",
        ),
        click.option("--keep-extra", is_flag=True, default=None, help="Keep a log's other columns too, as extra_..."),
        click.option(
            "--keep-names",
            is_flag=True,
            default=None,
            help=f"Keep names of users and projects. Otherwise they become pseudonyms, except in {PLAIN}.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def raw_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `log_options` that were given, as `read_workload` takes them."""
    return {name: value for name, value in options.items() if value is not None}


system_option = click.option(
    "--system",
    metavar="NODESxCORES",
    help="The machine the workload was made for, if its file does not say: 64x48, or 64.",
)


def system_of(text: str | None) -> System | None:
    """Return the machine that `--system` names."""
    from tracebed.converters.workload import System

    if text is None:
        return None
    nodes, times, cores = text.partition("x")
    try:
        return System(SIZE(nodes), SIZE(cores) if times else None)
    except click.BadParameter as error:
        what = error.message.rstrip(".")
        raise InputError(f"--system {text!r} is not a machine: {what}", hint="write 1024x8, or 1024") from None
