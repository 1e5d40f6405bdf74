"""Options of the commands that write formats of other programs."""

from __future__ import annotations

from typing import Any

import click

from tracebed.cli.options import SPEED, Command, ExtensionName, ExtensionOption

WRITING = {"to": "format", "iterations": "iterations", "kassel_inflation": "kassel_inflation"} | {
    "whole_seconds": "whole_seconds",
    "batsim_version": "version",
    "submit_speed": "speed",
}
"""Option of the command -> option of `write_workload`."""


def writer_options(command: Command) -> Command:
    """`--to` and the options of the formats' writers; `writing_options` takes them on."""
    options = (
        click.option(
            "--to",
            cls=ExtensionOption,
            type=ExtensionName("tracebed.formats"),
            metavar="FORMAT",
            help="Format to write, if the name of the output does not tell it: elastisim, batsim (folders), slurm, ...",
        ),
        click.option(
            "--iterations",
            type=click.IntRange(1, 1_000_000),
            help="elastisim: iterations of a malleable job, between which it can be resized.  [default: 10]",
        ),
        click.option(
            "--kassel-inflation",
            is_flag=True,
            default=None,
            help="elastisim: divide run times by the efficiency at the requested size, as Kassel does.",
        ),
        click.option(
            "--whole-seconds",
            is_flag=True,
            default=None,
            help="swf: round times to whole seconds, for programs that read no fractions (AccaSim, AleaNG).",
        ),
        click.option(
            "--batsim-version",
            type=click.Choice(["4", "5"]),
            help="batsim: version that reads the profiles.  [default: 5]",
        ),
        click.option("--speed", "submit_speed", type=SPEED, help="slurm: trace seconds a second.  [default: 1]"),
    )
    for option in reversed(options):
        command = option(command)
    return command


def writing_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take those of `writer_options` out of `options`; return the given ones as `write_workload` has them."""
    taken = {ours: options.pop(theirs) for theirs, ours in WRITING.items()}
    return {name: value for name, value in taken.items() if value is not None}
