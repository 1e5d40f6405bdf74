"""The command that says what a workload is like."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tracebed.orchestrator.cli.charts import bars, beside, columns, spell
from tracebed.orchestrator.cli.console import (
    json_option,
    load_workload,
    print_json,
    print_table,
    progress,
    say,
    workload_argument,
)
from tracebed.orchestrator.cli.summary import or_unknown


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


def _print_facts(path: Path, facts: Mapping[str, Any]) -> None:
    system = facts["system"]
    machine = f"{or_unknown(system['nodes'])} nodes of {or_unknown(system['cores_per_node'])} cores"
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
