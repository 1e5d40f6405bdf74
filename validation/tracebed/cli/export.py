"""`tracebed export`: a run in the formats of other programs."""

from __future__ import annotations

from pathlib import Path

import click

import tracebed.api as tb
from tracebed.cli.console import print_json
from tracebed.cli.messages import emit, progress
from tracebed.cli.options import LATER, PATH, json_option, output_option
from tracebed.ground.registry import Registry

FORMATS = Registry[object]("tracebed.exporters", "export format").names()


@click.command(epilog="\b\nExample:\n  tracebed export runs/sim --to perfetto -o trace.json.gz")
@click.argument("run", type=PATH, metavar="RUN")
@click.option("--to", "to", type=click.Choice(FORMATS), required=True, help="Format to write.")
@output_option("The file to write, compressed if its name ends in .gz.", LATER)
@json_option
def export(run: Path, to: str, output: Path, replace: bool, as_json: bool) -> None:
    """Write a run for another program: Perfetto, evalys, readers of SWF, spreadsheets.

    perfetto is a trace for ui.perfetto.dev with a track per node; evalys is a jobs.csv; swf holds the wait and run
    times of the run; csv is a table of the jobs. What the file lacks is printed.
    """
    tb.export_kind(to).check(output, replace=replace)
    with progress(f"reading {run.name}"):
        found = tb.Run.load(run)
    with progress(f"writing {output.name}"):
        notes = found.export(to, output, replace=replace)
    if as_json:
        print_json("tracebed-export/1", {"run": str(run), "to": to, "output": str(output), "notes": notes})
    else:
        click.echo(f"{output}: {to}, {len(found.jobs):,} jobs")
    for note in notes:
        emit(f"tracebed: note: {note}")
