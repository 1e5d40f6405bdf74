"""`tracebed import`: runs from the output of other simulators and from real logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import tracebed.api as tb
from tracebed.cli.messages import progress
from tracebed.cli.options import PATH, RUN, SIZE, SPEED, gathered, json_option, keywords, option, output_option
from tracebed.ground.errors import InputError


@dataclass(frozen=True)
class Tables:
    """What the tables of other programs do not say of themselves."""

    columns: tuple[str, ...] = option(
        metavar="FIELD=NAME,...",
        help="Columns of a table that are not recognized: job_id, submit, start, end, wait, run, response, "
        "nodes, cores, state, time_limit, user, kind, held. May be repeated.",
    )
    unit: Literal["s", "ms", "us", "ns", "min", "h"] | None = option(
        help="Unit of times, if the column name does not state it.  [default: s]"
    )
    time_zone: str | None = option(
        metavar="ZONE", help="Time zone of dates without an offset (Europe/Berlin).  [default: UTC]"
    )

    @property
    def keywords(self) -> dict[str, Any]:
        """The given options, as `tracebed.api.import_run` takes them."""
        return keywords(self) | {"columns": chosen(self.columns)}


@dataclass(frozen=True)
class Origin:
    """Where a file of another program comes from."""

    form: str | None = option(
        "--from",
        metavar="NAME",
        help="Simulator or format that wrote FILE: csv, batsim, elastisim, swf, sacct, ...  [default: by its content]",
    )
    side: Literal["predicted", "real"] = option("--as", required=True, help="Side of the comparison.")
    workload: Path | None = option(
        metavar="FILE|RUN",
        help="The workload of the jobs, or a run of it. Optional for a real run: FILE is then its own workload.",
    )
    policy: str = option(
        default="", show_default=False, metavar="NAME", help="Scheduling policy of the run, for reports."
    )
    nodes: int | None = option(type=SIZE, help="Number of nodes.  [default: as in FILE or the workload]")
    cores_per_node: int | None = option(type=SIZE, help="Cores of each node.  [default: as in FILE or the workload]")
    speed: float | None = option(
        type=SPEED, help="Trace seconds per second of FILE, if it is of a replay.  [default: 1]"
    )


@dataclass(frozen=True)
class Rows:
    """Which rows of a file are read, and as which jobs."""

    match: str = option(
        default="auto",
        metavar="auto|id|order|shape|FILE",
        help="Match jobs by id, by the order of their submissions, by submit time, size and run time (shape), or "
        "by a file of two columns: id in the file, id in the workload.",
    )
    only: tuple[str, ...] = option(
        metavar="COLUMN=VALUE,...",
        help="Rows of a table that has several runs: those with these values. May be repeated.",
    )

    @property
    def keywords(self) -> dict[str, Any]:
        """The options, as `tracebed.api.import_run` takes them."""
        return {"match": self.match, "rows": chosen(self.only, "--only", "COLUMN=VALUE", "run_id=1")}


@click.command("import")
@click.argument("file", type=PATH, metavar="FILE")
@gathered("origin", Origin)
@gathered("tables", Tables)
@gathered("rows", Rows)
@output_option("Folder of the run.", RUN)
@json_option
def import_(file: Path, origin: Origin, tables: Tables, rows: Rows, output: Path, replace: bool, as_json: bool) -> None:
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
    tb.check_run(output, replace=replace, real=origin.side == "real")
    with progress(f"reading {file.name}"):
        run = tb.import_run(file, **keywords(origin), **rows.keywords, **tables.keywords)
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
