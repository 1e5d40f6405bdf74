"""Options of `tracebed validate` for recorded real runs: copies of them, and the board, which scores simulators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.experiments.options import chosen
from tracebed.cli.messages import MessageLevel, emit, progress
from tracebed.cli.options import PATH, gathered
from tracebed.ground.errors import InputError

if TYPE_CHECKING:
    from tracebed.api.board import Board


@dataclass(frozen=True)
class Data:
    """Recorded real runs to copy or to score."""

    recorded: str | None
    """Name of real runs to copy."""
    sources: tuple[Path, ...]
    """Local copies of real runs."""
    board: bool
    """Whether to score simulators on the data sets."""


data_options = gathered(
    "data",
    Data,
    click.option(
        "--recorded",
        metavar="NAME",
        help="Validate nothing: copy recorded real runs, which are part of tracebed or downloaded from their "
        "source, with their experiment file, to the output folder. `tracebed experiment --list` has the names.",
    ),
    click.option(
        "--from",
        "sources",
        multiple=True,
        type=PATH,
        metavar="FOLDER",
        help="With --recorded NAME or --board: a local copy of real runs that are not part of tracebed, such as a "
        "clone of their source; may be repeated. The files are found by their hashes. Without a copy, they are "
        "downloaded.",
    ),
    click.option(
        "--board",
        is_flag=True,
        help="Score simulators on real runs by other people: a page with a table for each data set. FILE has more "
        "simulators: DATASET: {NAME: {command: ..., from: csv}}.",
    ),
)
"""`--recorded`, `--from` and `--board`."""


def copy(name: str, sources: Sequence[Path], folder: Path, as_json: bool) -> None:
    """Copy recorded real runs of the package, or of a local copy, with their experiment file, to a folder."""
    from tracebed.api.recorded import dataset, datasets, fetch_from, recorded_suite, recorded_suites, unpack
    from tracebed.ground.registry import unknown

    if name not in (known := [*recorded_suites(), *datasets()]):
        raise unknown("recorded suite", name, known)
    if name in datasets() or sources:
        chosen = dataset(name)
        with progress("looking for the files" if sources else "downloading"):
            made = fetch_from(name, folder, sources)
        if as_json:
            facts = {"name": name, "output": str(folder), "file": str(made) if chosen.suite else None}
            print_json("tracebed-dataset/1", facts)
        else:
            click.echo(f"{made}: {chosen.title}")
            click.echo(f"licence: {chosen.licence or 'none stated'}; cite: {chosen.citation}")
        return
    file, suite = unpack(name, folder), recorded_suite(name)
    if as_json:
        print_json("tracebed-recorded/1", vars(suite) | {"output": str(folder), "file": str(file)})
    else:
        click.echo(f"{file}: {suite.cases} cases, {suite.runs} real runs, {suite.title}")


def score(
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
    from tracebed.ground.files import locked_folder

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
    for name, facts in found.datasets.items():
        for entry, why in facts.failed.items():
            emit(f"{entry} is not scored on {name}: {why}", MessageLevel.WARNING)
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
    print_table(["data set", "run times", "entry", "|error|", "worst", "placed", "noise", "verdict"], rows, keys=3)
