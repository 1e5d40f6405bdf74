"""Options of the commands that write formats of other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from tracebed.cli.families import set_option, settings_from
from tracebed.cli.options import SPEED, ExtensionName, ExtensionOption, added

OF_WRITERS = {
    "iterations": click.IntRange(1, 1_000_000),
    "kassel_inflation": click.BOOL,
    "whole_seconds": click.BOOL,
    "version": click.Choice(["4", "5"]),
    "speed": SPEED,
}
"""Options of the writers of tracebed, and their types."""
RUN = "run"
"""The target of a conversion that writes a run in place of a workload."""


class ExportTarget(ExtensionName):
    """A click type: the name of a format that is written, or `run`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or fail as click does."""
        return value if value == RUN else super().convert(value, param, ctx)


writer_options = added(
    click.option(
        "--to",
        cls=ExtensionOption,
        type=ExportTarget("tracebed.formats"),
        metavar="FORMAT",
        help="Format to write, if the name of the output does not tell it: elastisim, batsim (folders), slurm, ...; "
        "or run: what the real machine did.",
    ),
    set_option(
        "Options of the writer. elastisim: iterations of a malleable job, between which it can be resized (10), "
        "kassel_inflation=yes divides run times by the efficiency at the requested size; swf: whole_seconds=yes, for "
        "programs that read no fractions (AccaSim, AleaNG); batsim: version 4 or 5 (5); slurm: speed, trace seconds a "
        "second (1)"
    ),
)
"""`--to` and `--set`; `writing_options` takes them on."""


def writing_options(to: str | None, settings: Sequence[str]) -> dict[str, Any]:
    """Return the given ones of `writer_options` as `write_workload` has them."""
    found: dict[str, Any] = settings_from(settings, OF_WRITERS, strict=False)
    return found if to is None else {"format": to} | found
