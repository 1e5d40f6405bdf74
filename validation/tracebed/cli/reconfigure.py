"""`tracebed nodes bench reconfigure`: the stages of changes of the number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.console import print_json
from tracebed.cli.families import set_option, settings_from
from tracebed.cli.messages import emit, progress
from tracebed.cli.options import Number, Numbers, json_option

if TYPE_CHECKING:
    from tracebed.api.benchmarks import Transport

UNITS = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}


class Mib(Number):
    """A click type: a size such as `8MiB`, in MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse, or fail as click does."""
        unit = next((unit for unit in UNITS if str(value).endswith(unit)), "")
        return UNITS.get(unit, 1.0) * super().convert(str(value).removesuffix(unit), param, ctx)


SETTINGS: Mapping[str, click.ParamType[Any]] = {
    "through": click.Choice(["connections", "mpi"]),
    "sizes": Numbers(64),
    "state": Mib(0, 2.0**20),
}
HELP = """\b
Settings and their defaults:
  through=connections: Way in which ranks start and state moves: the connections
    of replays, or mpi (extra mpi).
  sizes=1,2,4,2: Number of ranks at the start, then after each change.
  state=8MiB: Size of the state that moves.
"""


@click.command(epilog=HELP)
@set_option("Set a value (listed below)")
@json_option
def reconfigure(settings: tuple[str, ...], as_json: bool) -> None:
    """Change the number of ranks of a job on this machine, and print how long each stage takes.

    The stages are decision, spawn, redistribution of the state, and termination. A plain spawn is a new start of the
    same number of ranks.

    \b
    Example:
      tracebed nodes bench reconfigure --set sizes=1,2,4,2 --set state=8MiB
    """
    from tracebed.api import benchmarks

    given = {"through": "connections", "sizes": [1, 2, 4, 2], "state": 8.0} | settings_from(settings, SETTINGS)
    through: Transport = given["through"]
    with progress("measuring the stages"):
        stages, library = benchmarks.reconfigure(given["sizes"], given["state"], through=through)
    if as_json:
        changes = [change._asdict() | {"total_s": change.total_s, "ratio": change.ratio} for change in stages]
        print_json("tracebed-bench-reconfigure/1", {"through": through, "library": library, "changes": changes})
        return
    if library:
        emit(library)
    click.echo(benchmarks.table(stages), nl=False)
