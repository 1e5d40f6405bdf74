"""`tracebed board`: the errors of simulators on real runs by other people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import MessageLevel, emit
from tracebed.cli.options import PATH, STORE, json_option, output_option
from tracebed.errors import ExitCode

if TYPE_CHECKING:
    from tracebed.api.board import Board


@click.command()
@click.option(
    "--from",
    "sources",
    multiple=True,
    type=PATH,
    metavar="FOLDER",
    help="A local copy of data sets, whose files are found by their hashes; may be repeated.",
)
@click.option(
    "--entry",
    "entries",
    multiple=True,
    type=PATH,
    metavar="FILE",
    help="A YAML file with simulators: DATASET: {NAME: {command: ..., from: csv}}; may be repeated.",
)
@click.option("--only", multiple=True, metavar="DATASET", help="Score only this data set; may be repeated.")
@click.option("--page", is_flag=True, help="Make the page and the plot again from board.json in the output folder.")
@output_option("Folder of board.json, the page and the plot, and of the copies and the predictions.", STORE)
@json_option
def board(
    sources: tuple[Path, ...],
    entries: tuple[Path, ...],
    only: tuple[str, ...],
    page: bool,
    output: Path,
    as_json: bool,
) -> ExitCode:
    """Score simulators on real runs by other people: one table for each data set.

    Each data set of which there is a copy is predicted by each entry, and the predictions are scored. The folder has
    the scores (board.json), the page (board.md) and the plot (board.svg). `tracebed experiment --list` names the data
    sets. The same command continues: predictions that are made are not made again.

    \b
    Example:
      tracebed board --from batsim-experiments -o board
      tracebed board --from batsim-experiments --entry mine.yaml -o board
      tracebed board --page -o board
    """
    from tracebed.api.board import FILE, Board, build_board, load_entries, write_board
    from tracebed.cli.runs import end_on_signals
    from tracebed.files import locked_folder

    end_on_signals()
    if page:
        found, missing = Board.load(output / FILE), dict[str, str]()
    else:
        given = load_entries(entries)
        with locked_folder(output, "board"):
            found, missing = build_board(output, sources, given, only, lambda name: emit(f"scoring {name}"))
    write_board(found, output)
    for name, why in missing.items():
        emit(f"{name} is not scored: {why}", MessageLevel.WARNING)
    if as_json:
        print_json(found.file_schema, found.model_dump(mode="json", by_alias=True))
    else:
        _show(found)
        click.echo(f"\npage: {output / 'board.md'}")
    return ExitCode.OK


def _show(found: Board) -> None:
    """Print the scores, the errors of the mean wait in margins."""
    from tracebed.api.board import WAIT, interval_text, lanes_of, number_text, share_text

    rows = []
    for dataset, track, ceiling, entries in lanes_of(found):
        for each in ([ceiling] if ceiling else []) + entries:
            figures = [interval_text(each.wait), number_text(each.worst[WAIT].error)]
            figures += [share_text(each.placed), number_text(each.noise_ratio)]
            rows.append([dataset, track, each.entry, *figures, each.verdict if each.kind != "real" else ""])
    print_table(["data set", "run times", "entry", "|error|", "worst", "placed", "noise", "verdict"], rows)
