"""Commands that change workloads: convert, scale and malleable."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import tracebed.api as tb
from tracebed.cli.console import load_workload
from tracebed.cli.logs import Reading, system_of, system_option, write_and_summarize
from tracebed.cli.messages import progress
from tracebed.cli.options import (
    DURATION,
    LATER,
    PATH,
    SIZE,
    SPEED,
    WRITTEN_WORKLOAD,
    ExtensionName,
    ExtensionOption,
    Number,
    duration,
    gathered,
    inventory_option,
    json_option,
    keywords,
    option,
    output_option,
    seed_option,
    set_option,
    settings_from,
    shared,
    workload_argument,
)
from tracebed.ground.errors import InputError

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


@dataclass(frozen=True)
class Writing:
    """The format that is written, and options of its writer."""

    to: str | None = option(
        cls=ExtensionOption,
        type=ExportTarget("tracebed.formats"),
        metavar="FORMAT",
        help="Format to write, if the name of the output does not tell it: elastisim, batsim (folders), slurm, ...; "
        "or run: what the real machine did.",
    )
    settings: tuple[str, ...] = shared(
        set_option(
            "Options of the writer. elastisim: iterations of a malleable job, between which it can be resized (10), "
            "kassel_inflation=yes divides run times by the efficiency at the requested size; swf: whole_seconds=yes, "
            "for programs that read no fractions (AccaSim, AleaNG); batsim: version 4 or 5 (5); slurm: speed, trace "
            "seconds a second (1)"
        )
    )

    @property
    def keywords(self) -> dict[str, Any]:
        """The given options, as `tracebed.api.write` takes them."""
        found: dict[str, Any] = settings_from(self.settings, OF_WRITERS, strict=False)
        return found if self.to is None else {"format": self.to} | found


OF_SIZES: dict[str, click.ParamType[Any]] = dict.fromkeys(("preferred", "most", "least"), Number(0, 1))
OF_SIZES |= {"doublings": click.IntRange(0, 30), "phases": click.IntRange(1, 1000), "application": click.STRING}
"""Settings of `tracebed malleable` and their types."""


@click.command()
@click.argument("source", type=PATH, metavar="IN")
@output_option("Workload to write: .parquet, .csv or .swf, also with .gz, or in the format of --to.", LATER)
@system_option
@gathered("reading", Reading)
@gathered("writing", Writing)
@json_option
def convert(
    source: Path, output: Path, replace: bool, system: str | None, reading: Reading, writing: Writing, as_json: bool
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
    as_run, options = writing.to == RUN, writing.keywords
    if as_run and writing.settings:
        raise InputError("--to run and --set", hint="--set is for the formats of workloads")
    if as_run:
        tb.check_run(output, replace=replace)
    else:
        tb.check_workload(output, options.get("format"), replace=replace)
    machine = system_of(system)
    with progress(f"reading {source.name}"):
        workload = tb.read(source, system=machine, **reading.keywords)
    if as_run:
        _finish_run(workload, source, output, replace, as_json)
    else:
        write_and_summarize(workload, output, as_json, writing=options, replace=replace)


@dataclass(frozen=True)
class Scaling:
    """How a workload is scaled."""

    nodes: int | None = option(type=SIZE, help="Number of nodes of the target machine.")
    cores_per_node: int | None = option(type=SIZE, help="Cores of each node of the target machine.")
    inventory: Path | None = shared(
        inventory_option(what="Take nodes and cores per node (the fewest) from an inventory")
    )
    window: float | None = option(type=DURATION, help="Length of the window in which jobs are kept: 90s, 15m, 2h, 1d.")
    start: str | None = option(
        metavar="WHEN",
        help="Start of the window, a duration since time 0 or a date.  [default: the first submission]",
    )
    runtime: str | None = option(
        metavar="FACTOR|max=TIME",
        help="Factor on run times and limits, or the run time to which the longest job is compressed.",
    )
    arrivals: float | None = option(type=Number(), metavar="FACTOR", help="Factor on the times between submissions.")
    system: str | None = shared(system_option)

    @property
    def keywords(self) -> dict[str, Any]:
        """The options, as `tracebed.api.scale` takes them. Raises InputError if one is invalid."""
        found: dict[str, Any] = {"nodes": self.nodes, "cores_per_node": self.cores_per_node}
        if self.inventory is not None:
            if self.nodes is not None or self.cores_per_node is not None:
                raise InputError("both --inventory and a size are given", hint="give one of them")
            found = _size_of(self.inventory)
        start = None if self.start is None else _instant(self.start)
        found |= {"window": self.window, "arrivals": self.arrivals, "start": start, "system": system_of(self.system)}
        return found | _compression(self.runtime)


@click.command()
@workload_argument
@gathered("scaling", Scaling)
@output_option("Workload to write: .parquet, .csv or .swf.", WRITTEN_WORKLOAD)
@json_option
def scale(workload: Path, scaling: Scaling, output: Path, replace: bool, as_json: bool) -> None:
    """Map a workload onto fewer nodes, cut a window, compress its times.

    Sizes are mapped in proportion, from 1 to the size of the target. Time limits are compressed like run times. The
    provenance records each change, with the offered load before and after.

    \b
    Example:
      tracebed scale w.parquet --nodes 4 --runtime max=10m -o s.parquet
      tracebed scale w.parquet --window 2h --start 2010-09-01 -o s.parquet
    """
    before = load_workload(workload)
    how = scaling.keywords
    with progress("scaling"):
        after = tb.scale(before, **how)
    write_and_summarize(after, output, as_json, before=before, replace=replace)


@dataclass(frozen=True)
class Malleability:
    """Which jobs become malleable, and how."""

    share: float = option(
        type=Number(0, 1), required=True, help="Share of the rigid jobs that become malleable, 0 to 1."
    )
    nodes: int | None = option(type=SIZE, help="Number of nodes of the machine.  [default: the workload's system]")
    speedup: Literal["amdahl", "downey"] = option(
        default="amdahl",
        help="Speedup model: Amdahl's law with thresholds of efficiency, or Downey's with the model of Cirne and "
        "Berman.",
    )
    kind: Literal["malleable", "moldable", "evolving"] = option(
        default="malleable",
        help="Kind that the jobs become; moldable with downey only, evolving with amdahl only.",
    )
    settings: tuple[str, ...] = shared(
        set_option(
            "amdahl: preferred (0.8) and most (0.5), the efficiencies to exceed at the requested and at the largest "
            "size, and least (0.2), the smallest size as a share of the requested one; or doublings in their place, "
            "how often the requested size can be halved and doubled, with a linear speedup; evolving: phases (3), in "
            "each of which a job asks for more nodes, then for fewer; application, the program that the jobs become, "
            "whose resizes simulate --calibration knows"
        )
    )
    seed: int = shared(seed_option)


@click.command()
@workload_argument
@gathered("malleability", Malleability)
@output_option("Workload to write: .parquet, .csv or .swf.", WRITTEN_WORKLOAD)
@json_option
def malleable(workload: Path, malleability: Malleability, output: Path, replace: bool, as_json: bool) -> None:
    """Turn a share of the rigid jobs into malleable ones, by Amdahl's law and thresholds of efficiency.

    \b
    Example:
      tracebed malleable w.parquet --share 0.5 --seed 1 -o mixed.parquet
      tracebed malleable w.parquet --share 1 --speedup downey -o m.swf
      tracebed malleable w.parquet --share 1 --kind evolving -o evolving.parquet
    """
    before, choices = load_workload(workload), keywords(malleability)
    with progress("choosing jobs"):
        after = tb.make_malleable(before, **settings_from(choices.pop("settings"), OF_SIZES), **choices)
    write_and_summarize(after, output, as_json, replace=replace)


def _finish_run(workload: tb.Workload, source: Path, output: Path, replace: bool, as_json: bool) -> None:
    with progress("dealing out nodes"):
        run = tb.as_run(workload, name=source.name.partition(".")[0], where=str(source))
        run.save(output, replace=replace)
    from tracebed.cli.run_summary import summary

    summary(run, output, as_json)


# -- reading options


def _compression(text: str | None) -> dict[str, float]:
    """Parse `--runtime`: the factor on run times, or the longest run time in s, by the name of the setting."""
    if text is None:
        return {}
    if text.startswith("max="):
        return {"longest": duration(text.removeprefix("max="))}
    try:
        return {"run_time": float(text)}
    except ValueError:
        raise InputError(f"--runtime {text!r} is no factor", hint="write 0.1, or max=600s") from None


def _instant(text: str) -> float | str:
    """Return the seconds of a duration, or the text of a date."""
    try:
        return duration(text)
    except InputError:
        return text


def _size_of(inventory: Path) -> dict[str, int]:
    nodes = tb.inventory(inventory).nodes
    return {"nodes": len(nodes), "cores_per_node": min(node.cores for node in nodes)}
