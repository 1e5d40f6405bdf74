"""`tracebed board`: real runs by other people, as cases for the validation of simulators."""

from __future__ import annotations

from pathlib import Path

import click

from tracebed.cli.console import print_json
from tracebed.cli.groups import LazyGroup
from tracebed.cli.options import LATER, PATH, json_option, output_option

COMMANDS = {
    "list": "List the data sets: origin, licence, citation.",
    "fetch": "Verify a local copy of a data set, and make a suite of it.",
}


class Board(LazyGroup):
    """The commands of `COMMANDS`."""

    def summaries(self) -> dict[str, str]:
        """Return one line of help for each command."""
        return COMMANDS

    def load(self, name: str) -> click.Command:
        """Return the command `name`."""
        return {"list": listing, "fetch": fetch}[name]


@click.group(cls=Board)
def board() -> None:
    """List data sets of real runs by other people, and make suites for `tracebed validate` of local copies.

    The data are not part of tracebed. Their hashes are, so that a copy is verified.

    \b
    Example:
      tracebed board fetch grid5000-2016-02 --from batsim-experiments -o g5k
      tracebed validate g5k/suite.yaml -o verdict
    """


@click.command("list")
@json_option
def listing(as_json: bool) -> None:
    """List the data sets: what was run where, the source, the licence and the citation.

    \b
    Example:
      tracebed board list
    """
    from tracebed.api.board import datasets

    found = datasets().values()
    if as_json:
        print_json("tracebed-board/1", {"datasets": [each.model_dump() for each in found]})
        return
    for each in found:
        click.echo(f"{each.name}: {each.title}")
        cases = "a suite of cases" if each.suite else "no cases yet"
        rows = {
            "institution": each.institution,
            "source": f"{each.source} at commit {each.commit}, {len(each.files)} files, {cases}",
            "licence": each.licence or "none stated",
            "cite": each.citation,
            "note": each.note,
        }
        for title, text in rows.items():
            if text:
                click.echo(f"  {title:12} {text}")


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--from", "source", type=PATH, metavar="FOLDER", help="A copy of the data, such as a clone of the source."
)
@output_option("Folder of the files and their suite.", LATER)
@json_option
def fetch(name: str, source: Path | None, output: Path, replace: bool, as_json: bool) -> None:
    """Find the files of the data set NAME in a local copy by their hashes, and write them with a suite for them.

    The folder has the files, the experiment file suite.yaml for `tracebed validate`, and ORIGIN.txt with source,
    licence and citation. tracebed downloads nothing: without --from, the message names the source.

    \b
    Example:
      tracebed board fetch grid5000-2016-02 --from batsim-experiments -o g5k
    """
    from tracebed.api.board import dataset
    from tracebed.api.board import fetch as fetch_dataset

    made = fetch_dataset(name, output, source=source, replace=replace)
    chosen = dataset(name)
    if as_json:
        print_json(
            "tracebed-fetched/1", {"name": name, "output": str(output), "suite": str(made) if chosen.suite else None}
        )
        return
    click.echo(f"{made}: {chosen.title}")
    click.echo(f"licence: {chosen.licence or 'none stated'}; cite: {chosen.citation}")
