"""`tracebed validate --board`: the errors of simulators on real runs by other people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.experiments.options import chosen
from tracebed.cli.messages import MessageLevel, emit
from tracebed.errors import InputError

if TYPE_CHECKING:
    from tracebed.api.board import Board


def make(
    entries: Sequence[Path],
    sources: Sequence[Path],
    only: tuple[str, ...],
    folder: Path,
    *,
    stored: bool,
    as_json: bool,
) -> None:
    """Score the entries on the data sets, and write the scores, the page and the plot.

    Args:
        entries: files of entries, beside those of tracebed.
        sources: folders with local copies of data sets.
        only: `dataset=NAME[,NAME]`; empty for all.
        folder: the output folder.
        stored: whether the scores are those in the output folder.
        as_json: whether to print JSON.
    """
    from tracebed.api.board import FILE, Board, build_board, load_entries, write_board
    from tracebed.files import locked_folder

    if stored:
        found, missing = Board.load(folder / FILE), dict[str, str]()
    else:
        wanted = chosen("--only", only)
        names = wanted.pop("dataset", [])
        if wanted:
            raise InputError(f"--only {min(wanted)}=... does not apply with --board", hint="use --only dataset=NAME")
        given = load_entries(entries)
        with locked_folder(folder, "board"):
            found, missing = build_board(folder, sources, given, names, lambda name: emit(f"scoring {name}"))
    write_board(found, folder)
    for name, why in missing.items():
        emit(f"{name} is not scored: {why}", MessageLevel.WARNING)
    if as_json:
        print_json(found.file_schema, found.model_dump(mode="json", by_alias=True))
    else:
        _show(found)
        click.echo(f"\npage: {folder / 'board.md'}")


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
