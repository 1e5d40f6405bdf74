"""`tracebed import`: runs from the output of other simulators and from real logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import tracebed.api as tb
from tracebed.cli.messages import progress
from tracebed.cli.options import PATH, RUN, SIZE, added, json_option, output_option
from tracebed.ground.errors import InputError

table_options = added(
    click.option(
        "--columns",
        multiple=True,
        metavar="FIELD=NAME,...",
        help="Columns of a table that are not recognized: job_id, submit, start, end, wait, run, response, "
        "nodes, cores, state, time_limit, user, kind, held. May be repeated.",
    ),
    click.option(
        "--unit",
        type=click.Choice(["s", "ms", "us", "ns", "min", "h"]),
        help="Unit of times, if the column name does not state it.  [default: s]",
    ),
    click.option(
        "--time-zone",
        metavar="ZONE",
        help="Time zone of dates without an offset (Europe/Berlin).  [default: UTC]",
    ),
)
"""Options for reading tables of other programs."""
reading_options = added(
    table_options,
    click.option(
        "--match",
        default="auto",
        show_default=True,
        metavar="auto|id|order|shape|FILE",
        help="Match jobs by id, by the order of their submissions, by submit time, size and run time (shape), or "
        "by a file of two columns: id in the file, id in the workload.",
    ),
)
"""Options for reading files of other programs; several commands have them."""


@click.command("import")
@click.argument("file", type=PATH, metavar="FILE")
@click.option(
    "--from",
    "form",
    metavar="NAME",
    help="Simulator or format that wrote FILE: csv, batsim, elastisim, swf, sacct, ...  [default: by its content]",
)
@click.option("--as", "side", type=click.Choice(["predicted", "real"]), required=True, help="Side of the comparison.")
@click.option(
    "--workload",
    type=PATH,
    metavar="FILE|RUN",
    help="The workload of the jobs, or a run of it. Optional for a real run: FILE is then its own workload.",
)
@click.option("--policy", default="", metavar="NAME", help="Scheduling policy of the run, for reports.")
@click.option("--nodes", type=SIZE, help="Number of nodes.  [default: as in FILE or the workload]")
@click.option("--cores-per-node", type=SIZE, help="Cores of each node.  [default: as in FILE or the workload]")
@reading_options
@click.option(
    "--only",
    multiple=True,
    metavar="COLUMN=VALUE,...",
    help="Rows of a table that has several runs: those with these values. May be repeated.",
)
@output_option("Folder of the run.", RUN)
@json_option
def import_(
    file: Path,
    side: tb.Side,
    columns: Sequence[str],
    only: Sequence[str],
    output: Path,
    replace: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Convert FILE, the output of a simulator or the log of a real system, to a run.

    FILE is a table of jobs with a header (CSV or Parquet), the output of a simulator, or a log in a format that
    `tracebed convert` reads. Data missing in FILE, such as nodes and resizes, are unknown in the run, and metrics
    that need it are undefined.

    \b
    Example:
      tracebed import real.csv --as real --nodes 64 -o runs/real
      tracebed import sim.csv --as predicted --workload runs/real -o runs/sim
      tracebed compare --real runs/real --predicted runs/sim
    """
    tb.check_run(output, replace=replace, real=side == "real")
    with progress(f"reading {file.name}"):
        given = {name: value for name, value in options.items() if value is not None}
        rows = chosen(only, "--only", "COLUMN=VALUE", "run_id=1")
        run = tb.import_run(file, side=side, columns=chosen(columns), rows=rows, **given)
    run.save(output, replace=replace)
    from tracebed.cli.run_summary import summary

    summary(run, output, as_json)


def chosen(
    texts: Sequence[str], option: str = "--columns", form: str = "FIELD=NAME", example: str = "start=Start,end=End"
) -> dict[str, str]:
    """Return `FIELD=NAME,FIELD=NAME` texts of an option as a dictionary. Raises InputError for another form."""
    found: dict[str, str] = {}
    for text in texts:
        for part in text.split(","):
            field, equals, name = (word.strip() for word in part.partition("="))
            if not (field and equals and name):
                raise InputError(f"{option} {part!r} is not {form}", hint=f"write {option} {example}")
            if field in found:
                raise InputError(f"{option} names {field} twice", hint="name each once")
            found[field] = name
    return found
