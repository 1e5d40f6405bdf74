"""Experiments of papers by real runs, and the list of all experiments of tracebed."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import say
from tracebed.errors import ExitCode


def list_all() -> None:
    """Print the experiments of tracebed: files of simulated cells, and replays of papers."""
    from tracebed.api.experiments import PAPERS, load_experiment, shipped

    for name in shipped():
        about = textwrap.shorten(load_experiment(name).experiment.about, 100, placeholder=" ...")
        click.echo(f"{name:24}  {about}")
    for name in PAPERS.names():
        click.echo(f"{name:24}  {PAPERS.summary(name)}")


def is_paper(name: str) -> bool:
    """Return whether an experiment is the replay of a paper's experiment."""
    from tracebed.api.experiments import PAPERS

    return name in PAPERS.names()


def run(name: str, folder: Path, settings: Mapping[str, Any], as_json: bool) -> ExitCode:
    """Repeat an experiment of a paper by real runs, and print the published figures beside the measured ones.

    Runs that are complete are kept.
    """
    from tracebed.api.experiments import PAPERS, PaperSettings
    from tracebed.files import locked_folder

    chosen = {"inventory": None, "repetitions": 3, "speed": None, **settings}
    with locked_folder(folder, "experiment"):
        own = folder / name
        own.mkdir(exist_ok=True)
        made = PaperSettings(folder=own, say=lambda step: say(f"tracebed: {step}"), **chosen)
        findings = PAPERS.load(name)(made)
        page = findings.save(own)
    if as_json:
        print_json("tracebed-findings/1", findings.facts())
        return ExitCode.OK
    for table in findings.tables:
        say(f"{findings.title}: {table.title}")
        print_table(list(table.columns), [list(row) for row in table.rows])
    for note in findings.notes:
        say(note)
    say(f"{page}")
    return ExitCode.OK
