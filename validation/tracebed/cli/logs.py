"""Options of the commands that read logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.options import SIZE, ExtensionName, ExtensionOption, added
from tracebed.ground.errors import InputError

if TYPE_CHECKING:
    from tracebed.api import System

PLAIN = "amte, batsim, csv, elastisim, parquet and swf"
"""Formats whose readers keep names: help must not import the readers, and a test compares them."""


format_option = click.option(
    "--from",
    "format",
    cls=ExtensionOption,
    type=ExtensionName("tracebed.formats"),
    metavar="FORMAT",
    help="Format of the input, if its content does not tell: {names}.",
)
machine_option = click.option(
    "--machine",
    metavar="NAME",
    help="Machine whose jobs are read from a log of several: 'Perlmutter CPU', or a cluster of sacct.",
)


time_zone_option = click.option(
    "--time-zone", metavar="ZONE", help="Time zone of a log that does not name it, such as America/Denver."
)
keep_option = click.option(
    "--keep",
    type=click.Choice(["extra", "names"]),
    multiple=True,
    help="extra: keep the other columns of a log, too, as extra_...; names: keep names of users and projects, "
    f"which otherwise become pseudonyms, except in {PLAIN}. May be repeated.",
)


log_options = added(
    format_option,
    click.option(
        "--by",
        type=click.Choice(["node", "core"]),
        help="Processors of an SWF or of sacct become cores of whole nodes (default), or nodes of one core.",
    ),
    time_zone_option,
    machine_option,
    keep_option,
)
"""`--from`, `--by`, `--time-zone`, `--machine` and `--keep`; `raw_options` takes them on."""


def raw_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `log_options` that were given, as `read_workload` takes them."""
    kept = {f"keep_{what}": True for what in options.get("keep", ())}
    return kept | {name: value for name, value in options.items() if name != "keep" and value is not None}


system_option = click.option(
    "--system",
    metavar="NODESxCORES",
    help="Machine of the workload, if its file does not name it: 64x48, or 64 for the nodes alone.",
)


def system_of(text: str | None) -> System | None:
    """Return the machine that `--system` names."""
    from tracebed.api import System

    if text is None:
        return None
    nodes, times, cores = text.partition("x")
    try:
        return System(SIZE(nodes), SIZE(cores) if times else None)
    except click.BadParameter as error:
        what = error.message.rstrip(".")
        raise InputError(f"--system {text!r} is not a machine: {what}", hint="write 1024x8, or 1024") from None
