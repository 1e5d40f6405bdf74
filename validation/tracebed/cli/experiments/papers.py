"""Experiments of papers by real runs, and the list of all experiments of tracebed."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import emit
from tracebed.ground.errors import ExitCode, InputError


def list_all(as_json: bool) -> None:
    """Print the experiments of tracebed (files of simulated cells, and replays of papers) and recorded real runs."""
    from tracebed.api.experiments import PAPERS, load_experiment, shipped
    from tracebed.api.recorded import datasets, recorded_suites

    abouts = {name: load_experiment(name).experiment.about for name in shipped()}
    abouts |= {name: PAPERS.summary(name) for name in PAPERS.names()}
    suites = recorded_suites()
    if as_json:
        elsewhere = [each.model_dump() for each in datasets().values()]
        recorded = [*map(vars, suites.values())]
        print_json("tracebed-experiments/1", {"experiments": abouts, "recorded": recorded, "datasets": elsewhere})
        return
    for name, about in abouts.items():
        click.echo(f"{name:24}  {textwrap.shorten(about, 100, placeholder=' ...')}")
    click.echo("\nReal runs that were recorded, for `tracebed validate --recorded NAME -o FOLDER`:")
    for name, suite in suites.items():
        click.echo(f"{name:24}  {suite.title}: {suite.cases} cases, {suite.runs} runs, recorded {suite.recorded}")
    click.echo("\nReal runs by other people, not part of tracebed, with a local copy: --from FOLDER:")
    for name, each in datasets().items():
        click.echo(f"{name:24}  {each.title}")
        licence, source = each.licence or "none stated", " at ".join(filter(None, [each.source, each.commit]))
        click.echo(f"{'':24}  {each.institution}; {source}; licence: {licence}; {each.citation}")


def is_paper(name: str) -> bool:
    """Return whether an experiment is the replay of a paper's experiment."""
    from tracebed.api.experiments import PAPERS

    return name in PAPERS.names()


def text_of(name: str) -> str:
    """Return the settings and the claims of an experiment of a paper, as YAML."""
    import yaml

    from tracebed.api.experiments import PAPERS, PaperSettings, Study, load_paper, paper_of

    study: object
    study, paper = PAPERS.load(name), paper_of(name)
    usual = PaperSettings(Path())
    claims = load_paper(paper).claims_of(name) if paper else []
    facts = {
        "about": PAPERS.summary(name),
        "inventory": "nodes of this machine, or --inventory" if isinstance(study, Study) else "this machine",
        "repetitions": usual.repetitions,
        **({"speed": study.speed} if isinstance(study, Study) else {}),
        "published": [claim.model_dump(mode="json", exclude_defaults=True) for claim in claims],
    }
    head = f"# {name}: real runs by a program ({PAPERS.entries[name].value}), not by the cells of a file.\n"
    return head + yaml.safe_dump(facts, sort_keys=False, width=120, allow_unicode=True)


def run(name: str, folder: Path, settings: Mapping[str, Any], *, dry_run: bool, as_json: bool) -> ExitCode:
    """Repeat an experiment of a paper by real runs, and print the published figures beside the measured ones.

    Runs that are complete are kept. With `dry_run`, print the replays.
    """
    if dry_run:
        return _list_replays(name, folder, settings, as_json)
    from tracebed.api.experiments import PAPERS, PaperSettings, ledger_of_findings
    from tracebed.cli.experiments.ledger import command_of_paper, print_ledger
    from tracebed.ground.files import locked_folder

    with locked_folder(folder, "experiment"):
        own = folder / name
        own.mkdir(exist_ok=True)
        made = PaperSettings(folder=own, on_step=lambda step: emit(f"tracebed: {step}"), **settings)
        findings = PAPERS.load(name)(made)
        page = findings.save(own)
        ledger = ledger_of_findings(name, findings.measured, command_of_paper(name, made))
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
    from tracebed.api.experiments import PAPERS, PaperSettings, Study, is_replayed, shortest_replay_s
    from tracebed.ground.display import time_text

    study = PAPERS.load(name)
    if not isinstance(study, Study):
        raise InputError(f"{name} does not list its replays", hint="run it without --dry-run")
    chosen = PaperSettings(folder=folder / name, on_step=lambda step: emit(f"tracebed: {step}"), **settings)
    rows: list[dict[str, Any]] = [
        {
            "replay": each.folder,
            "jobs": len(each.workload),
            "nodes": len(each.inventory.nodes),
            "policy": each.policy,
            "speed": each.speed,
            "done": is_replayed(chosen, each),
            "shortest_s": shortest_replay_s(each),
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
