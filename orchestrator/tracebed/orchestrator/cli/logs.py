"""What the commands that read logs share: options of the readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tracebed.orchestrator.cli.options import Command

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
