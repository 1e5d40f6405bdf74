"""The commands that make workloads: generate, convert, describe, scale, malleable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.errors import InputError
from tracebed.orchestrator.cli.charts import bars, beside, columns, spell
from tracebed.orchestrator.cli.console import (
    DURATION,
    SIZE,
    Number,
    duration,
    json_option,
    load_workload,
    output_option,
    print_json,
    print_table,
    progress,
    say,
    seed_option,
    workload_argument,
)

if TYPE_CHECKING:
    from tracebed.converters.workload import Provenance, System, Workload

SITES = ("anl", "ctc", "kth", "sdsc")


@click.group()
def generate() -> None:
    """Draw a workload from a model.

    \b
    Example:
      tracebed generate cirne --nodes 16 --jobs 200 --seed 7 -o w.parquet
    """


@generate.command(short_help="Rigid jobs of a supercomputer (Cirne and Berman 2001).")
@click.option("--jobs", type=click.IntRange(min=1), required=True, help="How many jobs.")
@click.option("--nodes", type=SIZE, help="Nodes of the machine.  [default: the site's own]")
@click.option(
    "--cores-per-node",
    type=SIZE,
    default=1,
    show_default=True,
    help="Cores of each node; jobs use them all.",
)
@click.option(
    "--site",
    type=click.Choice(SITES),
    default="anl",
    show_default=True,
    help="Whose daily cycle of arrivals.",
)
@click.option(
    "--set",
    "constants",
    multiple=True,
    metavar="NAME=VALUE",
    help="A constant of the model, such as power_of_two=0.5; repeat for more (docs/models.md lists them).",
)
@click.option("--exact", is_flag=True, help="Draw with RANDLIB as the reference program does; slow.")
@seed_option
@output_option("The workload to write: .parquet, .csv or .swf.")
@json_option
def cirne(
    jobs: int,
    nodes: int | None,
    cores_per_node: int,
    site: str,
    constants: Sequence[str],
    exact: bool,
    seed: int,
    output: Path,
    as_json: bool,
) -> None:
    """Rigid jobs of a supercomputer (Cirne and Berman 2001): sizes, run times, limits, a daily cycle.

    \b
    Example:
      tracebed generate cirne --nodes 16 --jobs 200 --seed 7 -o w.parquet
    """
    from tracebed.converters.models import registry
    from tracebed.converters.models.cirne import Parameters

    parameters = Parameters(**_constants(constants, Parameters()))
    with progress("drawing jobs"):
        workload = registry.draw(
            "cirne",
            jobs,
            site=site,
            nodes=nodes,
            cores_per_node=cores_per_node,
            seed=seed,
            parameters=parameters,
            exact=exact,
        )
    _finish(workload, output, as_json)


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="IN")
@output_option("The workload to write: .parquet, .csv or .swf, also with .gz.")
@click.option("--from", "format", metavar="FORMAT", help="Format of IN, where its content does not tell.")
@click.option(
    "--by",
    type=click.Choice(["node", "core"]),
    help="Of an SWF's processors: make whole nodes (default), or a node of one core of each.",
)
@json_option
def convert(source: Path, output: Path, format: str | None, by: str | None, as_json: bool) -> None:
    """Read a log or workload of any known format and write it in another.

    What was tolerated in a log is counted in warnings, and in the provenance of the workload.

    \b
    Example:
      tracebed convert RICC-2010-2.swf.gz -o ricc.parquet
    """
    workload = load_workload(source, format=format, **({"by": by} if by else {}))
    _finish(workload, output, as_json)


@click.command()
@workload_argument
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw a picture: .png, .svg, .pdf.")
@json_option
def describe(workload: Path, plot: Path | None, as_json: bool) -> None:
    """Sizes, run times, load and arrivals of a workload: table and plot.

    \b
    Example:
      tracebed describe ricc.parquet --plot ricc.png
    """
    from tracebed.converters import description

    loaded = load_workload(workload)
    with progress("describing"):
        facts = description.describe(loaded)
        if plot is not None:
            description.plot(loaded, plot)
    if as_json:
        print_json(facts)
    else:
        _print_facts(workload, facts)
    if plot is not None:
        say(f"picture: {plot}")


@click.command()
@workload_argument
@click.option("--nodes", type=SIZE, help="Map sizes onto a machine of this many nodes.")
@click.option("--cores-per-node", type=SIZE, help="Map cores onto nodes of this many cores.")
@click.option(
    "--inventory",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take nodes and cores per node (the fewest) from an inventory.",
)
@click.option("--window", type=DURATION, help="Keep the jobs submitted in this time: 90s, 15m, 2h, 1d.")
@click.option(
    "--start",
    metavar="WHEN",
    help="Start of the window: a duration since time 0, or a date.  [default: the first submission]",
)
@click.option(
    "--runtime",
    metavar="FACTOR|max=TIME",
    help="Compress run times: by a factor, or so that the longest takes TIME.",
)
@click.option("--arrivals", type=Number(), metavar="FACTOR", help="Compress the times between submissions.")
@click.option(
    "--system",
    metavar="NODESxCORES",
    help="The machine the workload was made for, where its file does not say.",
)
@output_option("The workload to write.")
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
    as_json: bool,
) -> None:
    """Map a workload onto fewer nodes, cut a window, compress its times.

    Sizes are mapped in proportion, at least 1, at most the target. Time limits are compressed like run times.
    Only what is asked for is done; the provenance records it, with the offered load before and after.

    \b
    Example:
      tracebed scale w.parquet --nodes 4 --window 2h --start 2010-09-01 --runtime max=10m -o s.parquet
    """
    from tracebed.converters import scaling

    before = load_workload(workload)
    if inventory is not None:
        if nodes is not None or cores_per_node is not None:
            raise InputError("--inventory and --nodes or --cores-per-node", mend="give one of them")
        nodes, cores_per_node = _size_of(inventory)
    factor, longest = _compression(runtime)
    with progress("scaling"):
        after = scaling.scale(
            before,
            nodes,
            cores_per_node,
            window=window,
            start=None if start is None else _instant(start, before.provenance),
            run_time=factor,
            longest=longest,
            arrivals=arrivals,
            system=_system(system),
        )
    _finish(after, output, as_json, before=before)


@click.command()
@workload_argument
@click.option("--share", type=Number(0, 1), required=True, help="Share of the rigid jobs to make malleable.")
@click.option("--nodes", type=SIZE, help="Nodes of the machine.  [default: the workload's system]")
@click.option(
    "--preferred",
    type=float,
    default=0.8,
    show_default=True,
    help="Efficiency to exceed at the requested size.",
)
@click.option("--most", type=float, default=0.5, show_default=True, help="Efficiency to exceed at the greatest size.")
@click.option("--least", type=float, default=0.2, show_default=True, help="Smallest size, as a share of the requested.")
@seed_option
@output_option("The workload to write.")
@json_option
def malleable(
    workload: Path,
    share: float,
    nodes: int | None,
    preferred: float,
    most: float,
    least: float,
    seed: int,
    output: Path,
    as_json: bool,
) -> None:
    """Turn a share of the rigid jobs into malleable ones, by Amdahl's law and thresholds of efficiency.

    \b
    Example:
      tracebed malleable small.parquet --share 0.5 --seed 1 -o mixed.parquet
    """
    from tracebed.converters.malleability import Thresholds, to_malleable

    before = load_workload(workload)
    with progress("choosing jobs"):
        after = to_malleable(before, share, seed, nodes=nodes, thresholds=Thresholds(preferred, most, least))
    _finish(after, output, as_json)


# -- reading options


def _constants(texts: Sequence[str], defaults: Any) -> dict[str, Any]:
    """Parse NAME=VALUE; a value takes the type of the default."""
    result: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in vars(defaults):
            raise InputError(f"--set {text}: no constant {name!r}", mend=f"one of {', '.join(vars(defaults))}")
        try:
            result[name] = type(getattr(defaults, name))(value)
        except ValueError:
            raise InputError(f"--set {text}: {value!r} is not a number", mend=f"{name}=NUMBER") from None
    return result


def _compression(text: str | None) -> tuple[float | None, float | None]:
    """Parse `--runtime`: (factor, longest run time in s), at most one of them given."""
    if text is None:
        return None, None
    if text.startswith("max="):
        return None, duration(text.removeprefix("max="))
    try:
        return float(text), None
    except ValueError:
        raise InputError(f"--runtime {text!r} is no factor", mend="write 0.1, or max=600s") from None


def _instant(text: str, provenance: Provenance) -> float:
    from tracebed.converters.scaling import seconds_since_start

    try:
        return duration(text)
    except InputError:
        return seconds_since_start(text, provenance)


def _system(text: str | None) -> System | None:
    from tracebed.converters.workload import System

    if text is None:
        return None
    nodes, times, cores = text.partition("x")
    try:
        return System(SIZE(nodes), SIZE(cores) if times else None)
    except click.BadParameter as error:
        what = error.message.rstrip(".")
        raise InputError(f"--system {text!r} is no machine: {what}", mend="write 1024x8, or 1024") from None


def _size_of(inventory: Path) -> tuple[int, int]:
    from tracebed.orchestrator.testbeds.inventory import load_inventory

    nodes = load_inventory(inventory).nodes
    return len(nodes), min(node.cores for node in nodes)


# -- saying what was done


def _finish(workload: Workload, output: Path, as_json: bool, *, before: Workload | None = None) -> None:
    """Write the workload and say what it is; beside what it was, where that is of interest."""
    from dataclasses import asdict

    from tracebed.converters.workload import write_workload

    with progress(f"writing {output.name}"):
        write_workload(workload, output)
    step = asdict(workload.provenance.steps[-1]) if workload.provenance.steps else None
    if as_json:
        summary = {"output": str(output), **_summary(workload), "sha256": workload.sha256, "step": step}
        print_json({**summary, "before": _summary(before)} if before else summary)
        return
    after = _spelt(_summary(workload))
    if before is not None:
        was = _spelt(_summary(before))
        print_table(["", "before", "after"], [(name, was[name], after[name]) for name in after])
    else:
        click.echo(f"{output}: " + ", ".join(f"{name} {value}" for name, value in after.items()))
    if step and step["counts"]:
        click.echo(f"{step['name']}: " + ", ".join(f"{what} {n:,}" for what, n in step["counts"].items()))


def _summary(workload: Workload) -> dict[str, Any]:
    from tracebed.converters.description import offered_load, quantiles

    system, submit = workload.provenance.system, workload.floats("submit_time")
    run = quantiles(workload.floats("run_time"))
    return {
        "jobs": len(workload),
        "malleable_jobs": int((workload.column("kind") == "malleable").sum()),
        "nodes": system.nodes,
        "cores_per_node": system.cores_per_node,
        "span_s": float(submit[-1] - submit[0]),
        "median_run_time_s": run["median"],
        "longest_run_time_s": run["max"],
        "offered_load": offered_load(workload),
    }


def _spelt(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return a summary as people read it."""
    load = summary["offered_load"]
    return {
        "jobs": f"{summary['jobs']:,}",
        "malleable": f"{summary['malleable_jobs']:,}",
        "nodes": _or_unknown(summary["nodes"]),
        "cores per node": _or_unknown(summary["cores_per_node"]),
        "submitted within": spell(summary["span_s"]),
        "median run time": spell(summary["median_run_time_s"]),
        "longest run time": spell(summary["longest_run_time_s"]),
        "offered load": "not known" if load is None else f"{load:.3g}",
    }


def _or_unknown(value: int | None) -> str:
    return "not known" if value is None else f"{value:,}"


# -- describe


def _print_facts(path: Path, facts: Mapping[str, Any]) -> None:
    system = facts["system"]
    machine = f"{_or_unknown(system['nodes'])} nodes of {_or_unknown(system['cores_per_node'])} cores"
    rows = [
        ("jobs", f"{facts['jobs']:,}"),
        ("system", f"{machine}, {system['name']}" if system["name"] else machine),
        ("submitted within", spell(facts["span_s"])),
        ("from", facts["first_submit"] or f"{facts['first_submit_s']:,.0f} s"),
        ("to", facts["last_submit"] or f"{facts['last_submit_s']:,.0f} s"),
        ("work", f"{facts['node_hours']:,.1f} node hours"),
        ("offered load", "not known" if facts["offered_load"] is None else f"{facts['offered_load']:.3f}"),
        *(("  scaled", _load_step(step)) for step in facts["offered_load_steps"]),
        ("kinds", _counted(facts["kinds"])),
        ("statuses", _counted(facts["statuses"])),
    ]
    if facts["arrivals_by_weekday"]:
        rows.append(("by weekday", _counted(facts["arrivals_by_weekday"])))
    unknown = {name.replace("_", " "): count for name, count in facts["unknown"].items() if count}
    if unknown:
        rows.append(("not known", _counted(unknown)))
    width = max(len(name) for name, _ in rows)
    click.secho(str(path), bold=True)
    for name, value in rows:
        click.echo(f"{name:{width}}  {value}")
    click.echo()
    titles = {
        "nodes": "nodes",
        "cores_per_node": "cores per node",
        "run_time_s": "run time, s",
        "time_limit_s": "time limit, s",
        "accuracy": "run time / limit",
        "interarrival_s": "between arrivals, s",
    }
    order = ("min", "p25", "median", "p75", "p95", "max", "mean")
    known = {name: title for name, title in titles.items() if facts[name]["mean"] is not None}
    print_table(["", *order], [(title, *(facts[name][q] for q in order)) for name, title in known.items()])
    click.echo()
    sizes = {
        f"{bin['from']:,}" if bin["from"] == bin["to"] else f"{bin['from']:,}–{bin['to']:,}": bin["jobs"]
        for bin in facts["nodes_histogram"]
    }
    times = {
        f"under {spell(bin['to_s'])}" if bin["to_s"] else f"{spell(bin['from_s'])} and more": bin["jobs"]
        for bin in facts["run_time_histogram"]
    }
    click.echo("\n".join(beside(bars("Requested nodes", sizes), bars("Run time", times))))
    click.echo()
    click.echo("\n".join(columns("Arrivals by hour of the day", facts["arrivals_by_hour"])))
    click.echo()
    for number, step in enumerate(facts["steps"], 1):
        click.echo(f"step {number}: {step}")


def _load_step(step: Mapping[str, float | None]) -> str:
    spelt = {name: "not known" if load is None else f"{load:.3f}" for name, load in step.items()}
    return f"{spelt['before']}, in the window {spelt['in_window']}, after {spelt['after']}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name or 'not known'} {count:,}" for name, count in counts.items())
