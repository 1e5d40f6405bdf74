"""Commands that change workloads: convert, scale and malleable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tracebed.cli.console import load_workload
from tracebed.cli.families import set_option, settings_from
from tracebed.cli.logs import log_options, raw_options, system_of, system_option
from tracebed.cli.messages import progress
from tracebed.cli.options import (
    DURATION,
    LATER,
    PATH,
    SIZE,
    WRITTEN_WORKLOAD,
    Number,
    duration,
    inventory_option,
    json_option,
    output_option,
    seed_option,
    workload_argument,
)
from tracebed.cli.summary import write_and_summarize
from tracebed.cli.writers import RUN, writer_options, writing_options
from tracebed.ground.errors import InputError

if TYPE_CHECKING:
    from tracebed.api import Workload
    from tracebed.api.types import Flexible, Speedup

OF_SIZES: dict[str, click.ParamType[Any]] = dict.fromkeys(("preferred", "most", "least"), Number(0, 1))
OF_SIZES |= {"doublings": click.IntRange(0, 30), "phases": click.IntRange(1, 1000), "application": click.STRING}
"""Settings of `tracebed malleable` and their types."""


@click.command()
@click.argument("source", type=PATH, metavar="IN")
@output_option("Workload to write: .parquet, .csv or .swf, also with .gz, or in the format of --to.", LATER)
@system_option
@log_options
@writer_options
@json_option
def convert(
    source: Path,
    output: Path,
    replace: bool,
    system: str | None,
    to: str | None,
    settings: Sequence[str],
    as_json: bool,
    **options: Any,
) -> None:
    """Convert a log or workload from one format to another.

    Defects of a log that are tolerated are counted in warnings and in the provenance of the workload. With --to run
    the result is a run, with which `compare` compares predictions of the same workload.

    \b
    Example:
      tracebed convert RICC-2010-2.swf.gz -o ricc.parquet
      tracebed convert log.txt --system 64x48 -o log.parquet
      tracebed convert knl.parquet --to run -o runs/knl-real
      tracebed convert ricc.parquet --to elastisim -o ricc-elastisim
    """
    from tracebed.api.outputs import check_run, check_workload
    from tracebed.api.workloads import read_source

    as_run = to == RUN
    writing = writing_options(None if as_run else to, settings)
    if as_run and writing:
        raise InputError("--to run and --set", hint="--set is for the formats of workloads")
    if as_run:
        check_run(output, replace=replace)
    else:
        check_workload(output, writing.get("format"), replace=replace)
    machine = system_of(system)
    with progress(f"reading {source.name}"):
        workload = read_source(source, machine, **raw_options(options))
    if as_run:
        _finish_run(workload, source, output, replace, as_json)
    else:
        write_and_summarize(workload, output, as_json, writing=writing, replace=replace)


@click.command()
@workload_argument
@click.option("--nodes", type=SIZE, help="Number of nodes of the target machine.")
@click.option("--cores-per-node", type=SIZE, help="Cores of each node of the target machine.")
@inventory_option(what="Take nodes and cores per node (the fewest) from an inventory")
@click.option("--window", type=DURATION, help="Length of the window in which jobs are kept: 90s, 15m, 2h, 1d.")
@click.option(
    "--start",
    metavar="WHEN",
    help="Start of the window, a duration since time 0 or a date.  [default: the first submission]",
)
@click.option(
    "--runtime",
    metavar="FACTOR|max=TIME",
    help="Factor on run times and limits, or the run time to which the longest job is compressed.",
)
@click.option("--arrivals", type=Number(), metavar="FACTOR", help="Factor on the times between submissions.")
@system_option
@output_option("Workload to write: .parquet, .csv or .swf.", WRITTEN_WORKLOAD)
@json_option
def scale(
    workload: Path,
    nodes: int | None,
    cores_per_node: int | None,
    inventory: Path | None,
    window: float | None,
    start: str | None,
    runtime: str | None,
    arrivals: float | None,
    system: str | None,
    output: Path,
    replace: bool,
    as_json: bool,
) -> None:
    """Map a workload onto fewer nodes, cut a window, compress its times.

    Sizes are mapped in proportion, from 1 to the size of the target. Time limits are compressed like run times. The
    provenance records each change, with the offered load before and after.

    \b
    Example:
      tracebed scale w.parquet --nodes 4 --runtime max=10m -o s.parquet
      tracebed scale w.parquet --window 2h --start 2010-09-01 -o s.parquet
    """
    import tracebed.api as tb

    before = load_workload(workload)
    if inventory is not None:
        if nodes is not None or cores_per_node is not None:
            raise InputError("both --inventory and a size are given", hint="give one of them")
        nodes, cores_per_node = _size_of(inventory)
    factor, longest = _compression(runtime)
    with progress("scaling"):
        after = tb.scale(
            before,
            nodes,
            cores_per_node,
            window=window,
            start=None if start is None else _instant(start),
            run_time=factor,
            longest=longest,
            arrivals=arrivals,
            system=system_of(system),
        )
    write_and_summarize(after, output, as_json, before=before, replace=replace)


@click.command()
@workload_argument
@click.option(
    "--share", type=Number(0, 1), required=True, help="Share of the rigid jobs that become malleable, 0 to 1."
)
@click.option("--nodes", type=SIZE, help="Number of nodes of the machine.  [default: the workload's system]")
@click.option(
    "--speedup",
    type=click.Choice(["amdahl", "downey"]),
    default="amdahl",
    show_default=True,
    help="Speedup model: Amdahl's law with thresholds of efficiency, or Downey's with the model of Cirne and Berman.",
)
@click.option(
    "--kind",
    type=click.Choice(["malleable", "moldable", "evolving"]),
    default="malleable",
    show_default=True,
    help="Kind that the jobs become; moldable with downey only, evolving with amdahl only.",
)
@set_option(
    "amdahl: preferred (0.8) and most (0.5), the efficiencies to exceed at the requested and at the largest size, and "
    "least (0.2), the smallest size as a share of the requested one; or doublings in their place, how often the "
    "requested size can be halved and doubled, with a linear speedup; evolving: phases (3), in each of which a job "
    "asks for more nodes, then for fewer; application, the program that the jobs become, whose resizes "
    "simulate --calibration knows"
)
@seed_option
@output_option("Workload to write: .parquet, .csv or .swf.", WRITTEN_WORKLOAD)
@json_option
def malleable(
    workload: Path,
    share: float,
    nodes: int | None,
    speedup: Speedup,
    kind: Flexible | Literal["evolving"],
    settings: Sequence[str],
    seed: int,
    output: Path,
    replace: bool,
    as_json: bool,
) -> None:
    """Turn a share of the rigid jobs into malleable ones, by Amdahl's law and thresholds of efficiency.

    \b
    Example:
      tracebed malleable w.parquet --share 0.5 --seed 1 -o mixed.parquet
      tracebed malleable w.parquet --share 1 --speedup downey -o m.swf
      tracebed malleable w.parquet --share 1 --kind evolving -o evolving.parquet
    """
    import tracebed.api as tb

    before = load_workload(workload)
    with progress("choosing jobs"):
        after = tb.make_malleable(
            before,
            share,
            seed,
            nodes=nodes,
            speedup=speedup,
            kind=kind,
            **settings_from(settings, OF_SIZES),
        )
    write_and_summarize(after, output, as_json, replace=replace)


def _finish_run(workload: Workload, source: Path, output: Path, replace: bool, as_json: bool) -> None:
    import tracebed.api as tb
    from tracebed.cli.runs import summary

    with progress("dealing out nodes"):
        run = tb.as_run(workload, name=source.name.partition(".")[0], where=str(source))
        run.save(output, replace=replace)
    summary(run, output, as_json)


# -- reading options


def _compression(text: str | None) -> tuple[float | None, float | None]:
    """Parse `--runtime`: (factor, longest run time in s), at most one of them given."""
    if text is None:
        return None, None
    if text.startswith("max="):
        return None, duration(text.removeprefix("max="))
    try:
        return float(text), None
    except ValueError:
        raise InputError(f"--runtime {text!r} is no factor", hint="write 0.1, or max=600s") from None


def _instant(text: str) -> float | str:
    """Return the seconds of a duration, or the text of a date."""
    try:
        return duration(text)
    except InputError:
        return text


def _size_of(inventory: Path) -> tuple[int, int]:
    import tracebed.api as tb

    nodes = tb.inventory(inventory).nodes
    return len(nodes), min(node.cores for node in nodes)
