"""The ledger at the end of a study, and the page of a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracebed.cli.console import print_table
from tracebed.cli.messages import emit
from tracebed.ground.errors import ExitCode, InputError

if TYPE_CHECKING:
    from tracebed.api.experiments import Ledger, PaperSettings


def command_of(study: str, logs: Mapping[str, Path], only: Sequence[str]) -> str:
    """Return the command of a study as text, with the names of logs and without their folders."""
    given = [f"--log {f'{name}=' if len(logs) > 1 else ''}{path.name}" for name, path in logs.items()]
    return " ".join(["tracebed experiment", study, *given, *(f"--only {text}" for text in only)])


def command_of_paper(study: str, settings: PaperSettings) -> str:
    """Return the command of an experiment by real runs as text."""
    inventory = [f"--inventory {Path(settings.inventory).name}"] if settings.inventory else []
    speed = [f"--speed {settings.speed:g}"] if settings.speed else []
    return " ".join(["tracebed experiment", study, *inventory, f"--repetitions {settings.repetitions}", *speed])


def print_ledger(ledger: Ledger) -> None:
    """Print the rows that count, and how many match. If no row counts, print all."""
    from tracebed.api import experiments as api
    from tracebed.api.measures import metric_definitions

    if not ledger.rows:
        return
    known = metric_definitions()
    counted = [row for row in ledger.rows if row.counts] or ledger.rows
    columns = ["ledger", "figure", "at", "assumption", "printed", "ours", "distance", "matches", "claim", "reason"]
    rows = [
        [
            row.element or row.note or "-",
            known[row.figure].title if row.figure in known else row.figure,
            row.at,
            row.assumption or ("fitted" if row.fitted else ""),
            api.printed_text(row),
            api.ours_text(row),
            api.distance_text(row),
            row.verdict,
            "; ".join(filter(None, (row.claim, row.note if row.element else ""))),
            api.reason_text(row) if row.element else "",
        ]
        for row in counted
    ]
    shown = [place for place, name in enumerate(columns) if place < 3 or any(row[place] for row in rows)]
    click.echo("")
    print_table(
        [columns[place] for place in shown],
        [[row[place] for place in shown] for row in rows],
        text=("assumption", "claim", "reason"),
    )
    if others := len(ledger.rows) - len(counted):
        emit(f"{others:,} further rows, under other assumptions, are in ledger.csv")
    emit("; ".join(f"{what}: {count}" for what, count in api.Counts.of(ledger.rows).table))


def print_page(name: str | None, folder: Path) -> ExitCode:
    """Print the page of a paper: the ledgers of its studies in an output folder, merged. None: the counts of all."""
    from tracebed.api.experiments import load_paper, overview_of, page_of, papers, stored_ledgers

    if name is None:
        found = {each: (paper := load_paper(each), stored_ledgers(paper, folder)) for each in papers()}
        click.echo(overview_of(found, "tracebed experiment --ledger"), nl=False)
        return ExitCode.OK
    paper = load_paper(name)
    ledgers = stored_ledgers(paper, folder)
    if not any(ledger.date for ledger in ledgers):
        hint = f"run one of {', '.join(paper.studies)} with the same output folder"
        raise InputError(f"no study of {name} has run", where=str(folder), hint=hint)
    click.echo(page_of(paper, ledgers, f"tracebed experiment {name} --ledger"), nl=False)
    return ExitCode.OK
