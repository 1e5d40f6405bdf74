"""`tracebed forecast`: when the waiting jobs of a Slurm cluster start."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.charts import duration_text
from tracebed.cli.console import load_workload, print_json, print_table
from tracebed.cli.logs import format_option, keep_option, raw_options, time_zone_option
from tracebed.cli.messages import emit, progress, warn
from tracebed.cli.options import PATH, json_option, output_option, seed_option
from tracebed.ground.outputs import FORECAST

if TYPE_CHECKING:
    from tracebed.api import Forecast


@click.command()
@click.argument("state", type=PATH, required=False)
@click.option(
    "--log", type=PATH, required=True, metavar="LOG", help="Accounting of the cluster, or a workload made of it."
)
@click.option(
    "--repetitions",
    type=click.IntRange(2, 10_000),
    default=16,
    show_default=True,
    metavar="N",
    help="Number of simulations, with drawn run times and later jobs.",
)
@seed_option
@format_option
@time_zone_option
@keep_option
@output_option("Table to write, a CSV file.", FORECAST, required=False)
@json_option
def forecast(
    state: Path | None,
    log: Path,
    repetitions: int,
    seed: int,
    output: Path | None,
    replace: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Forecast when each waiting job of a Slurm cluster starts, with an interval.

    STATE is a folder with the output of Slurm's commands: config.txt, partition.txt, node.txt, job.txt, and if possible
    sprio.txt, sshare.txt, reservation.txt, qos.txt and accounts.txt. Without it, the commands are run now. The log
    teaches how long the jobs of each user run, and which jobs will be submitted. It must have the names of users:
    --keep names, here or when it is cleaned.

    \b
    Commands of the files:
      scontrol show config > config.txt
      scontrol -o show partition > partition.txt
      scontrol -o show node > node.txt
      scontrol -d -o show job > job.txt
      sprio -l > sprio.txt
      sshare -a -l -P > sshare.txt
      scontrol show reservation > reservation.txt
      sacctmgr -P show qos > qos.txt

    \b
    Example:
      tracebed forecast state --log accounting/ --keep names
      tracebed forecast --log january.parquet -o starts.csv
    """
    import tracebed.api as tb

    history = load_workload(log, equal_nodes=False, **raw_options(options))
    with progress("simulating"):
        found = tb.forecast(state, history, repetitions=repetitions, seed=seed)
    for note in found.notes:
        warn(note)
    if output is not None:
        found.to_csv(output, replace=replace)
    if as_json:
        print_json("tracebed-forecast/1", found.to_json())
    else:
        _print(found)
    if output is not None:
        emit(f"forecast: {output}")


def _print(found: Forecast) -> None:
    rows: list[list[Any]] = []
    for row in found.table.to_dict("records"):
        asked = f"{row['cores']} {'core' if row['cores'] == 1 else 'cores'}, {duration_text(row['limit_s'])}"
        times = [_clock(row[name], found.instant) for name in ("start", "earliest", "latest", "slurm")]
        rows.append([row["job_id"], row["user"], row["partition"], asked, *times, row["waits"], row["reason"]])
    columns = ["job", "user", "partition", "asked", "start", "80 %: from", "to", "Slurm's estimate", "waits for"]
    columns.append("no forecast")
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    print_table(columns, rows, spare=["asked", "user", "waits for"])
    emit(f"state of {found.instant:%Y-%m-%d %H:%M:%S}, clock of the cluster; {found.members} simulations")


def _clock(time: datetime, instant: datetime) -> str:
    """Return a time, with the date if it is not that of the state."""
    if time != time:  # NaT
        return ""
    return f"{time:%H:%M:%S}" if time.date() == instant.date() else f"{time:%Y-%m-%d %H:%M:%S}"
