"""`tracebed nodes bench aligner`: the malleable aligner over MPI beside the original one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.families import set_option, settings_from
from tracebed.cli.messages import progress
from tracebed.cli.options import json_option

SETTINGS: Mapping[str, click.ParamType[Any]] = {
    "workers": click.IntRange(1, 64),
    "reads": click.IntRange(1, 10**12),
    "pairs": click.IntRange(1, 1000),
    "chunks": click.IntRange(1, 10**6),
}
HELP = """\b
Settings and their defaults:
  workers=1: Number of workers. The writer, and the manager of the malleable
    version, are processes of their own.
  reads=400000: Number of reads, each a unit of PILS.
  pairs=5: Number of pairs of runs.
  chunks=1: Chunks of the malleable version for each worker.
"""


@click.command(epilog=HELP)
@set_option("Set a value (listed below)")
@json_option
def aligner(settings: tuple[str, ...], as_json: bool) -> None:
    """Run the original and the malleable aligner over MPI in pairs, and print what malleability costs.

    The aligner stands for HPG-aligner. No run is resized. Both versions must have the same checksum. The CPU time is
    that of the workers.

    \b
    Example:
      tracebed nodes bench aligner --set workers=1 --set pairs=10
    """
    from tracebed.api import benchmarks

    given = {"workers": 1, "reads": 400_000, "pairs": 5, "chunks": 1} | settings_from(settings, SETTINGS)
    with progress("running the aligner"):
        result = benchmarks.aligner(**given)
    if as_json:
        pairs = [{"original": asdict(before), "malleable": asdict(after)} for before, after in result.pairs]
        fields = {**given, "wall_overhead": result.wall._asdict(), "cpu_overhead": result.cpu._asdict()}
        print_json("tracebed-bench-aligner/1", fields | {"pairs": pairs})
        return
    rows = [
        (str(number), *(f"{value:.3f}" for run in pair for value in (run.seconds, run.cpu_s)))
        for number, pair in enumerate(result.pairs, 1)
    ]
    print_table(["pair", "original, s", "CPU time, s", "malleable, s", "CPU time, s"], rows)
    click.echo("\nMalleable against original, medians (middle half of the pairs):")
    for name, ratio in (("time", result.wall), ("CPU time of the workers", result.cpu)):
        click.echo(f"{name}: {ratio.medians:+.2%} ({ratio.low:+.2%} to {ratio.high:+.2%})")
    click.echo(f"Checksum of all runs: {result.pairs[0][0].checksum}")
