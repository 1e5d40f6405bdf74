"""Options of `tracebed validate` for recorded real runs: copies of them, and the board, which scores simulators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import tracebed.api as tb
from tracebed.cli.console import print_json, print_table
from tracebed.cli.gate import Gating
from tracebed.cli.messages import MessageLevel, emit, progress
from tracebed.cli.options import chosen, gathered, option
from tracebed.ground.display import counted
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.files import locked_folder
from tracebed.ground.registry import unknown


@dataclass(frozen=True)
class Data:
    """Recorded real runs to copy or to score."""

    recorded: str | None = option(
        metavar="NAME",
        help="Validate nothing: copy recorded real runs, which are part of tracebed or downloaded from their "
        "source, with their experiment file, to the output folder. `tracebed experiment --list` has the names.",
    )
    sources: tuple[Path, ...] = option(
        "--from",
        metavar="FOLDER",
        help="With --recorded NAME or --board: a local copy of real runs that are not part of tracebed, such as a "
        "clone of their source; may be repeated. The files are found by their hashes. Without a copy, they are "
        "downloaded.",
    )
    board: bool = option(
        help="Score simulators on real runs by other people: a page with a table for each data set. FILE has more "
        "simulators: DATASET: {NAME: {command: ..., from: csv}}. With --baseline board.json, the other scores of this "
        "board stay, and the changes are printed; --update-baseline writes it and its pages (better: unless a score "
        "changed or is gone).",
    )


data_options = gathered("data", Data)


def copy(name: str, sources: Sequence[Path], folder: Path, as_json: bool) -> None:
    """Copy recorded real runs of the package, or of a local copy, with their experiment file, to a folder."""
    if name not in (known := [*tb.recorded_suites(), *tb.datasets()]):
        raise unknown("recorded suite", name, known)
    if name in tb.datasets() or sources:
        chosen = tb.dataset(name)
        with progress("looking for the files" if sources else "downloading"):
            made = tb.fetch_from(name, folder, sources)
        if as_json:
            facts = {"name": name, "output": str(folder), "file": str(made) if chosen.suite else None}
            print_json("tracebed-dataset/1", facts)
        else:
            click.echo(f"{made}: {chosen.title}")
            click.echo(f"licence: {chosen.licence or 'none stated'}; cite: {chosen.citation}")
        return
    file, suite = tb.unpack(name, folder), tb.recorded_suite(name)
    if as_json:
        print_json("tracebed-recorded/1", vars(suite) | {"output": str(folder), "file": str(file)})
    else:
        click.echo(f"{file}: {suite.cases} cases, {suite.runs} real runs, {suite.title}")


def score(
    entries: Sequence[Path],
    sources: Sequence[Path],
    only: tuple[str, ...],
    folder: Path,
    gating: Gating,
    *,
    stored: bool,
    as_json: bool,
) -> ExitCode:
    """Score `entries` (files) on the data sets `only` (`dataset=NAME[,NAME]`; empty: all); write scores and pages.

    With `stored`, the scores are those in the output folder. `sources` are folders with local copies of data sets. The
    baseline of `gating` is a board that is extended, and written if it is to be updated. The status is that of wrong
    usage if a simulator of `entries` failed.
    """
    baseline = gating.baseline
    if baseline is not None and baseline.name != tb.BOARD_FILE:
        raise InputError(f"the baseline of a board is a {tb.BOARD_FILE}", where=str(baseline), hint="name such a file")
    if baseline is None and gating.update_baseline is not None:
        raise InputError("--update-baseline is given without a baseline", hint="name its file with --baseline")
    earlier = tb.Board.load(baseline) if baseline is not None else None
    own: set[str] = set()
    if stored:
        found, missing = tb.Board.load(folder / tb.BOARD_FILE), dict[str, str]()
    else:
        wanted = chosen("--only", only)
        names = wanted.pop("dataset", [])
        if wanted:
            raise InputError(f"--only {min(wanted)}=... does not apply with --board", hint="use --only dataset=NAME")
        given = tb.board_entries(entries)
        own = {name for file in given[1:] for of_data in file.entries.values() for name in of_data}
        with locked_folder(folder, "board"):
            found, missing = tb.build_board(
                folder, sources, given, names, lambda name: emit(f"scoring {name}"), earlier
            )
    tb.write_board(found, folder)
    for name, why in missing.items():
        emit(f"{name} is not scored: {why}", MessageLevel.WARNING)
    for name, facts in found.datasets.items():
        for entry, why in facts.failed.items():
            emit(f"{entry} is not scored on {name}: {why}", MessageLevel.ERROR)
    if as_json:
        print_json(found.file_schema, found.model_dump(mode="json", by_alias=True))
    else:
        _show(found)
        click.echo(f"\npage: {folder / 'board.html'}")
    status = ExitCode.OK if baseline is None or earlier is None else _update(earlier, found, baseline, gating, as_json)
    fails = any(own & facts.failed.keys() for facts in found.datasets.values())
    return ExitCode.USAGE if fails and status is ExitCode.OK else status


def _update(before: tb.Board, after: tb.Board, baseline: Path, gating: Gating, as_json: bool) -> ExitCode:
    """Print the changes of a stored board, write it if it is to be updated, and return the exit status."""
    changes = tb.board_changes(before, after)
    rows = []
    for each in changes:
        sides = [
            (tb.board_interval_text(side.wait), side.verdict) if side else ("-", "-")
            for side in (each.before, each.after)
        ]
        errors, verdicts = zip(*sides, strict=True)
        rows.append([each.row.dataset, each.row.track, each.row.entry, each.kind, *errors, *verdicts])
    if not as_json:
        heads = ["data set", "run times", "entry", "change", "|error| before", "now", "verdict before", "now"]
        click.echo(f"\nchanges of {baseline}: {counted(len(changes), 'row')}")
        print_table(heads, rows, keys=4)
    if gating.update_baseline is None:
        return ExitCode.OK
    if gating.update_baseline == "better" and (moved := [each for each in changes if each.before]):
        example = f"{moved[0].row.entry} on {moved[0].row.dataset}"
        what = f"{counted(len(moved), 'earlier score')} would change or be lost, such as {example}"
        emit(f"tracebed: {baseline} is not written: {what} (--update-baseline any accepts it)", MessageLevel.ERROR)
        return ExitCode.INACCURATE
    tb.write_board(after, baseline.parent)
    return ExitCode.OK


def _show(found: tb.Board) -> None:
    """Print the scores, the errors of the measure (mostly the mean wait) in margins."""
    rows = []
    for dataset, track, ceiling, entries in found.lanes():
        for each in ([ceiling] if ceiling else []) + entries:
            figures = [tb.board_interval_text(each.wait), tb.board_number_text(each.worst[each.measure].error)]
            figures += [tb.board_share_text(each.placed), tb.board_number_text(each.noise_ratio)]
            rows.append([dataset, track, each.entry, *figures, each.verdict if each.kind != "real" else ""])
    print_table(["data set", "run times", "entry", "|error|", "worst", "placed", "noise", "verdict"], rows, keys=3)
