"""`tracebed nodes`: the nodes of an inventory without a replay."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

import click

import tracebed.api as tb
from tracebed.cli.console import end_on_signals, print_json, print_table
from tracebed.cli.groups import LazyGroup
from tracebed.cli.messages import MessageLevel, emit, progress
from tracebed.cli.options import PATH, Command, InventoryName, json_option, output_option
from tracebed.ground.errors import ExitCode, TestbedError
from tracebed.ground.outputs import INVENTORY

COMMANDS = {
    "up": "Prepare the nodes of an inventory: containers, installations, allocations.",
    "check": "Check the health of nodes, and list the unhealthy nodes.",
    "facts": "Print the facts of nodes, or write an inventory with their CPUs.",
    "down": "Remove what `up` or a killed replay made.",
    "calibrate": "Measure the overheads and the work rate of a testbed, or fit them to replays.",
    "bench": "Run a benchmark by hand: memory bandwidth, load balance, reconfigurations.",
    "schema": "Print the JSON schema of inventories, for editors.",
}
SCHEMA = "tracebed-nodes/1"


class Nodes(LazyGroup):
    """The commands of `COMMANDS`."""

    def summaries(self) -> dict[str, str]:
        """Return one line of help for each command."""
        return COMMANDS

    def load(self, name: str) -> click.Command:
        """Return the command `name`."""
        if name in ("bench", "calibrate"):
            command: click.Command = getattr(importlib.import_module(f"tracebed.cli.{name}"), name)
            return command
        return {"up": up, "check": check, "facts": facts, "down": down, "schema": schema}[name]


@click.group(cls=Nodes)
def nodes() -> None:
    """Prepare the nodes of an inventory, check and measure them, and take them down.

    An inventory is a YAML file, an Ansible inventory in YAML, an SSH configuration, or the name of an inventory that
    tracebed provides.

    \b
    Example:
      tracebed nodes check emulated-4
    """
    end_on_signals()


def inventory_argument(command: Command) -> Command:
    """Add the argument `INVENTORY`."""
    return click.argument("inventory", type=InventoryName(), metavar="INVENTORY")(command)


@click.command()
@inventory_argument
@json_option
def up(inventory: Path, as_json: bool) -> None:
    """Prepare the nodes of INVENTORY for replays.

    The nodes stay up until `tracebed nodes down`. A replay uses nodes that are up, and brings up other nodes only for
    its own duration.

    \b
    Example:
      tracebed nodes up emulated-4
    """
    with progress("bringing up the nodes"):
        groups = tb.nodes_up(inventory, on_step=_detail)
    if as_json:
        print_json(SCHEMA, {"groups": groups})
        return
    rows = [
        [group["group"], group["provider"], len(group["nodes"]), "made ready" if group["made"] else "were ready"]
        for group in groups
    ]
    print_table(["group", "provider", "nodes", "state"], rows)


@click.command()
@inventory_argument
@json_option
def down(inventory: Path, as_json: bool) -> None:
    """Remove what `tracebed nodes up` or a killed replay made for INVENTORY.

    Nothing else is removed. The command may be repeated.

    \b
    Example:
      tracebed nodes down emulated-4
    """
    groups = tb.nodes_down(inventory, on_step=_detail if as_json else click.echo)  # also what precedes an error
    if as_json:
        print_json(SCHEMA, {"groups": groups})
        return
    if not any(group["steps"] for group in groups):
        click.echo("nothing to remove")


@click.command()
@inventory_argument
@output_option(
    "Write an inventory in which nodes without `cores` have the CPUs that were found.",
    INVENTORY,
    required=False,
    metavar="FILE",
)
@json_option
def facts(inventory: Path, output: Path | None, replace: bool, as_json: bool) -> ExitCode:
    """Print the facts of the nodes of INVENTORY: CPUs, memory, versions, limits, load, clock.

    The command starts an agent on each node. It brings up nodes that are not up, and takes them down at its end. The
    exit status is 4 if an agent does not start.

    \b
    Example:
      tracebed nodes facts emulated-4
    """
    with progress("collecting facts"):
        reports = tb.nodes_facts(inventory, on_step=_detail)
    if as_json:
        print_json(SCHEMA, {"nodes": [report.as_dict() for report in reports]})
    else:
        _print_facts(reports)
    if output is not None:
        _write(tb.with_facts(inventory, reports), output, replace)
    return ExitCode.UNHEALTHY if any(report.error for report in reports) else ExitCode.OK


def _detail(step: str) -> None:
    emit(step, MessageLevel.DETAIL)


def _write(inventory: tb.Inventory, target: Path, replace: bool) -> None:
    """Write `inventory` to `target` as YAML."""
    tb.write_inventory(inventory, target, replace=replace)
    emit(f"inventory: {target}")


def _print_facts(reports: Sequence[tb.NodeReport]) -> None:
    columns = ["node", "provider", "CPU", "sockets", "CPUs", "MiB", "kernel", "governor", "Python", "cgroup CPUs"]
    rows = []
    for report in reports:
        if report.error is not None:
            rows.append([report.node.name, report.node.provider, report.error, *[None] * (len(columns) - 3)])
            continue
        found = report.facts
        memory = [size for size in (found["memory"]["total_mib"], found["cgroup"]["memory_mib"]) if size is not None]
        rows.append(
            [
                report.node.name,
                report.node.provider,
                found["host"]["cpu"],
                found["topology"]["sockets"],
                found["topology"]["cpus"],
                min(memory, default=None),
                found["host"]["kernel"],
                " ".join(found["governor"]) or None,
                found["python"],
                found["cgroup"]["cpus"],
            ]
        )
    print_table(columns, rows, spare=["governor", "cgroup CPUs", "kernel", "Python"])


@click.command()
@inventory_argument
@click.option("--health", type=PATH, metavar="FILE", help="Thresholds (YAML), in place of the built-in ones.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.0, 3600.0),
    default=2.0,
    show_default=True,
    help="Time over which the load of other processes is measured, s.",
)
@output_option("Write an inventory without the unhealthy nodes.", INVENTORY, required=False, metavar="FILE")
@json_option
def check(
    inventory: Path, health: Path | None, seconds: float, output: Path | None, replace: bool, as_json: bool
) -> ExitCode:
    """Check the health of the nodes of INVENTORY by thresholds.

    An agent on each node reports load, pressure, free memory and disk, limits of the control group, the clock, and the
    work rate of computing nodes. The exit status is 4 if a node is unhealthy.

    \b
    Example:
      tracebed nodes check emulated-4 --seconds 0
    """
    with progress("checking nodes"):
        found = tb.nodes_check(inventory, health=health, seconds=seconds, on_step=_detail)
    if as_json:
        print_json(SCHEMA, {"nodes": [{"node": item.node} | item.as_dict() for item in found]})
    else:
        rows = [
            [
                item.node,
                item.state,
                *(item.signals.get(name) for name in ("load", "cpu_pressure", "outside_load", "rate_deviation")),
                *(item.signals.get(name) for name in ("memory_free_mib", "disk_free_mib", "round_trip_s")),
            ]
            for item in found
        ]
        columns = ["node", "state", "load", "CPU pressure", "other load", "rate deviation", "MiB free", "disk MiB free"]
        print_table([*columns, "round trip s"], rows, spare=["round trip s", "disk MiB free", "rate deviation"])
        reasons: dict[str, list[str]] = {}
        for item in found:
            if item.reason:
                reasons.setdefault(item.reason, []).append(item.node)
        for reason, names in reasons.items():
            click.echo(f"{', '.join(names)}: {reason}")
    bad = [item.node for item in found if item.state == "unhealthy"]
    if bad:
        emit(f"unhealthy: {', '.join(bad)}")
    if output is not None:
        if len(bad) == len(found):
            raise TestbedError("all nodes are unhealthy", where=str(inventory), hint="no inventory was written")
        _write(tb.without_nodes(inventory, bad), output, replace)
    return ExitCode.UNHEALTHY if bad else ExitCode.OK


@click.command()
def schema() -> None:
    """Print the JSON schema of inventories, with the settings of the installed providers.

    \b
    Example:
      tracebed nodes schema > inventory.schema.json
    """
    from tracebed.ground.stored import compact_json

    click.echo(compact_json(tb.inventory_schema()))
