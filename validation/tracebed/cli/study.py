"""`tracebed study`: an experiment of a paper by real runs, beside the published figures."""

from __future__ import annotations

from pathlib import Path

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import say
from tracebed.cli.options import SPEED, STORE, ExtensionName, json_option, output_option
from tracebed.errors import InputError


@click.command()
@click.argument("name", required=False, type=ExtensionName("tracebed.studies"))
@click.option("--list", "listing", is_flag=True, help="List the studies.")
@click.option("--inventory", metavar="NAME|FILE", help="The nodes.  [default: the cores of this machine]")
@click.option(
    "--repetitions", type=click.IntRange(1, 1000), default=3, show_default=True, help="Replays of each scenario."
)
@click.option("--speed", type=SPEED, help="Trace seconds per wall second.")
@output_option("The output folder.  [default: study-NAME]", STORE, required=False)
@json_option
def study(
    name: str | None,
    listing: bool,
    inventory: str | None,
    repetitions: int,
    speed: float | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Repeat an experiment of a paper by real runs, and print the published figures beside the measured ones.

    The same command continues a study that was stopped: it keeps the runs that are complete.

    \b
    Example:
      tracebed study drom-in-situ
      tracebed study drom-high-priority --inventory emulated-4 -o priority
    """
    from tracebed.files import locked_folder
    from tracebed.validation.experiments.papers.base import STUDIES, Settings

    if listing:
        print_table(["study", "what"], [[known, STUDIES.summary(known)] for known in STUDIES.names()])
        return
    if name is None:
        raise InputError("no study", hint="`tracebed study --list` has the names")
    run = STUDIES.load(name)
    folder = output or Path(f"study-{name}")
    with locked_folder(folder, "study", mark="findings.md"):
        findings = run(Settings(folder, inventory, repetitions, speed, lambda step: say(f"tracebed: {step}")))
        page = findings.save(folder)
    if as_json:
        print_json("tracebed-study/1", findings.facts())
        return
    for table in findings.tables:
        say(f"{findings.title}: {table.title}")
        print_table(list(table.columns), [list(row) for row in table.rows])
    for note in findings.notes:
        say(note)
    say(f"{page}")
