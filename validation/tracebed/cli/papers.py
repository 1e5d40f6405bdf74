"""Experiments of papers by real runs, ledgers of published figures, and the list of all experiments of tracebed."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import tracebed.api as tb
from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import emit
from tracebed.ground.display import time_text
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.files import locked_folder


def command_of(study: str, logs: Mapping[str, Path], only: Sequence[str]) -> str:
    """Return the command of a study as text, with the names of logs and without their folders."""
    given = [f"--log {f'{name}=' if len(logs) > 1 else ''}{path.name}" for name, path in logs.items()]
    return " ".join(["tracebed experiment", study, *given, *(f"--only {text}" for text in only)])


def command_of_paper(study: str, settings: tb.PaperSettings) -> str:
    """Return the command of an experiment by real runs as text."""
    inventory = [f"--inventory {Path(settings.inventory).name}"] if settings.inventory else []
    speed = [f"--speed {settings.speed:g}"] if settings.speed else []
    logs = [f"--log {name}={path.name}" for name, path in settings.logs.items()]
    return " ".join(["tracebed experiment", study, *logs, *inventory, f"--repetitions {settings.repetitions}", *speed])


def print_ledger(ledger: tb.Ledger) -> None:
    """Print the rows that count, and how many match. If no row counts, print all."""
    if not ledger.rows:
        return
    known = tb.metric_definitions()
    counted = [row for row in ledger.rows if row.counts] or ledger.rows
    columns = ["ledger", "figure", "at", "assumption", "printed", "ours", "distance", "matches", "claim", "reason"]
    rows = [
        [
            row.element or row.note or "-",
            known[row.figure].title if row.figure in known else row.figure,
            row.at,
            row.assumption or ("fitted" if row.fitted else ""),
            tb.printed_text(row),
            tb.ours_text(row),
            tb.distance_text(row),
            row.verdict,
            "; ".join(filter(None, (row.claim, row.note if row.element else ""))),
            tb.reason_text(row) if row.element else "",
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
    emit("; ".join(f"{what}: {count}" for what, count in tb.LedgerCounts.of(ledger.rows).table))


def print_page(name: str | None, folder: Path) -> ExitCode:
    """Print the page of a paper: the ledgers of its studies in an output folder, merged. None: the counts of all."""
    if name is None:
        found = {each: (paper := tb.load_paper(each), tb.stored_ledgers(paper, folder)) for each in tb.papers()}
        click.echo(tb.ledger_overview(found, "tracebed experiment --ledger"), nl=False)
        return ExitCode.OK
    paper = tb.load_paper(name)
    ledgers = tb.stored_ledgers(paper, folder)
    if not any(ledger.date for ledger in ledgers):
        hint = f"run one of {', '.join(paper.studies)} with the same output folder"
        raise InputError(f"no study of {name} has run", where=str(folder), hint=hint)
    click.echo(tb.ledger_page(paper, ledgers, f"tracebed experiment {name} --ledger"), nl=False)
    return ExitCode.OK


def list_all(as_json: bool) -> None:
    """Print the experiments of tracebed (files of simulated cells, and replays of papers) and recorded real runs."""
    abouts = {name: tb.load_experiment(name).experiment.about for name in tb.shipped_experiments()}
    abouts |= {name: tb.PAPERS.summary(name) for name in tb.PAPERS.names()}
    suites = tb.recorded_suites()
    if as_json:
        elsewhere = [each.model_dump() for each in tb.datasets().values()]
        recorded = [*map(vars, suites.values())]
        print_json("tracebed-experiments/1", {"experiments": abouts, "recorded": recorded, "datasets": elsewhere})
        return
    for name, about in abouts.items():
        click.echo(f"{name:24}  {textwrap.shorten(about, 100, placeholder=' ...')}")
    click.echo("\nReal runs that were recorded, for `tracebed validate --recorded NAME -o FOLDER`:")
    for name, suite in suites.items():
        click.echo(f"{name:24}  {suite.title}: {suite.cases} cases, {suite.runs} runs, recorded {suite.recorded}")
    click.echo("\nReal runs by other people, not part of tracebed, with a local copy: --from FOLDER:")
    for name, each in tb.datasets().items():
        click.echo(f"{name:24}  {each.title}")
        licence, source = each.licence or "none stated", " at ".join(filter(None, [each.source, each.commit]))
        click.echo(f"{'':24}  {each.institution}; {source}; licence: {licence}; {each.citation}")


def is_paper(name: str) -> bool:
    """Return whether an experiment is the replay of a paper's experiment."""
    return name in tb.PAPERS.names()


def text_of(name: str) -> str:
    """Return the settings and the claims of an experiment of a paper, as YAML."""
    import yaml

    study: object
    study, paper = tb.PAPERS.load(name), tb.paper_of(name)
    usual = tb.PaperSettings(Path())
    claims = tb.load_paper(paper).claims_of(name) if paper else []
    logs: tuple[str, ...] = getattr(study, "logs", ())
    nodes = {"inventory": "nodes of this machine, or --inventory" if isinstance(study, tb.Study) else "this machine"}
    facts = {
        "about": tb.PAPERS.summary(name),
        **({"logs": [*logs]} if logs else nodes),
        "repetitions": usual.repetitions,
        **({"speed": study.speed} if isinstance(study, tb.Study) else {}),
        "published": [claim.model_dump(mode="json", exclude_defaults=True) for claim in claims],
    }
    runs = "simulations" if logs else "real runs"
    head = f"# {name}: {runs} by a program ({tb.PAPERS.entries[name].value}), not by the cells of a file.\n"
    return head + yaml.safe_dump(facts, sort_keys=False, width=120, allow_unicode=True)


def run(
    name: str, folder: Path, settings: Mapping[str, Any], logs: Sequence[str], *, dry_run: bool, as_json: bool
) -> ExitCode:
    """Repeat an experiment of a paper by real runs, and print the published figures beside the measured ones.

    Runs that are complete are kept. With `dry_run`, print the replays. `logs` are the texts of `--log`.
    """
    paths = tb.PAPERS.logs(name, logs)
    if dry_run:
        return _list_replays(name, folder, settings, as_json)
    with locked_folder(folder, "experiment"):
        own = folder / name
        own.mkdir(exist_ok=True)
        made = tb.PaperSettings(folder=own, logs=paths, on_step=lambda step: emit(f"tracebed: {step}"), **settings)
        findings = tb.PAPERS.findings(name, made)
        page = findings.save(own)
        ledger = tb.ledger_of_findings(name, findings.measured, command_of_paper(name, made))
        ledger.write(own)
    if as_json:
        rows = [row.model_dump(mode="json") for row in ledger.rows]
        print_json("tracebed-findings/1", findings.facts() | {"ledger": rows})
        return ExitCode.OK
    for table in findings.tables:
        emit(f"{findings.title}: {table.title}")
        print_table(list(table.columns), [list(row) for row in table.rows])
    print_ledger(ledger)
    for note in findings.notes:
        emit(note)
    emit(f"{page}")
    return ExitCode.OK


def _list_replays(name: str, folder: Path, settings: Mapping[str, Any], as_json: bool) -> ExitCode:
    """Print the replays of an experiment of a paper, those that are done, and the least duration of the others."""
    study = tb.PAPERS.load(name)
    if not isinstance(study, tb.Study):
        raise InputError(f"{name} does not list its replays", hint="run it without --dry-run")
    chosen = tb.PaperSettings(folder=folder / name, on_step=lambda step: emit(f"tracebed: {step}"), **settings)
    rows: list[dict[str, Any]] = [
        {
            "replay": each.folder,
            "jobs": len(each.workload),
            "nodes": len(each.inventory.nodes),
            "policy": each.policy,
            "speed": each.speed,
            "done": tb.is_paper_replayed(chosen, each),
            "shortest_s": tb.paper_replay_s(each),
        }
        for each in study.replays(chosen)
    ]
    if as_json:
        print_json("tracebed-replays/1", {"experiment": name, "replays": rows})
        return ExitCode.OK
    shown = [row | {"done": "yes" if row["done"] else "no", "shortest_s": time_text(row["shortest_s"])} for row in rows]
    print_table([*[*rows[0]][:-1], "at least"], [[*map(str, row.values())] for row in shown])
    todo = [row for row in rows if not row["done"]]
    shortest = time_text(sum(row["shortest_s"] for row in todo))
    emit(f"replays to make: {len(todo)} of {len(rows)}, at least {shortest}; beside them, the study simulates")
    return ExitCode.OK
