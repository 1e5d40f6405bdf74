"""`tracebed repeat`: a campaign, that is repeated replays of several cells in random order, and their statistics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import progress, say, warn
from tracebed.cli.options import PATH, STORE, json_option, output_option
from tracebed.errors import ExitCode, InputError

if TYPE_CHECKING:
    from tracebed.validation.experiments.real.campaign import Campaign
    from tracebed.validation.experiments.real.store import Attempt
    from tracebed.validation.experiments.views.statistics import Summary


@click.command()
@click.argument("campaign", required=False, type=PATH, metavar="CAMPAIGN")
@click.option("--summary", "only_summary", type=PATH, metavar="FOLDER", help="Print the statistics of a campaign only.")
@output_option("Folder of the campaign, with a folder for each cell.", STORE, required=False)
@json_option
def repeat(campaign: Path | None, only_summary: Path | None, output: Path | None, as_json: bool) -> ExitCode:
    """Replay the cells of CAMPAIGN, a YAML file, several times each, in random order.

    The same command continues a campaign that was interrupted. A repetition that fails does not end the campaign. At
    the end, and by --summary: mean, variation, health, drift and correlation of the repetitions.

    \b
    Example:
      tracebed repeat campaign.yaml -o runs/campaign
      tracebed repeat --summary runs/campaign
    """
    if only_summary is not None:
        if campaign is not None or output is not None:
            raise InputError("--summary takes the folder of a campaign only", hint="leave out the campaign file and -o")
        _print(only_summary, as_json)
        return ExitCode.OK
    if campaign is None or output is None:
        raise InputError("the campaign file or its output is missing", hint="tracebed repeat CAMPAIGN.yaml -o FOLDER")
    from tracebed.cli.runs import end_on_signals

    end_on_signals()
    from tracebed.validation.experiments.real.campaign import load_campaign

    with progress(f"reading {campaign.name}"):
        loaded = load_campaign(campaign)
    attempts = _repeat(loaded, output)
    _print(output, as_json)
    return ExitCode.UNHEALTHY if any(attempt.error for attempt in attempts) else ExitCode.OK


def _repeat(campaign: Campaign, folder: Path) -> list[Attempt]:
    """Carry out what is left of the campaign, with a forecast, progress, and a warning for each failure."""
    from tracebed.display import time_text
    from tracebed.validation.experiments.real import runner, store

    with store.locked(folder):
        plan = runner.plan(campaign, folder)
        kept = f", {plan.done} of them done" if plan.done else ""
        say(
            f"{len(campaign.cells)} cells, {len(campaign.order)} repetitions{kept}; "
            f"this takes at least {time_text(plan.shortest_s)}"
        )
        try:
            with progress(f"repeating {campaign.name}", total=len(plan.todo)) as bar:

                def show(done: float, attempt: Attempt | None) -> None:
                    bar.update(done)
                    if attempt is not None and attempt.error:
                        warn(f"{attempt.cell}, repetition {attempt.number}: {attempt.error}")

                return runner.repeat(campaign, plan, folder, show)
        except KeyboardInterrupt:
            say(f"tracebed: the finished repetitions are in {folder}; the same command continues the campaign")
            raise


def _print(folder: Path, as_json: bool) -> None:
    """Print the statistics of the campaign in `folder`."""
    from tracebed.validation.experiments.views.statistics import summarize

    with progress(f"reading {folder}"):
        summary = summarize(folder)
    if as_json:
        print_json("tracebed-campaign/1", {"campaign": str(folder), **summary.to_json()})
        return
    _print_cells(summary)
    _print_predictions(summary)
    _print_dependence(summary)
    for run in summary.runs[summary.runs["signals"] != ""].itertuples():
        warn(f"{run.cell}, repetition {run.repetition}: {run.signals}")
    for attempt in summary.failed:
        say(f"tracebed: {attempt.cell}, repetition {attempt.number} failed: {attempt.error}")
    if summary.missing:
        say(f"tracebed: {summary.missing} repetitions are missing: the campaign is not complete")


def _print_cells(summary: Summary) -> None:
    """Print mean and coefficient of variation of each cell."""
    from tracebed.display import cell as shown

    rows = []
    for item in summary.figures:
        health = "/".join(str(count) for count in summary.states.get(item.cell, {}).values())
        figures = [
            shown(figure.mean) + (f" ± {figure.cv:.2%}" if figure.cv == figure.cv else "")
            for figure in item.metrics.values()
        ]
        rows.append([item.cell, item.selection, item.n, health if item.selection == "all" else "", *figures])
    print_table(["cell", "repetitions", "n", "health*", *_titles(summary)], rows, spare=("health*",))
    click.echo("mean ± coefficient of variation; *healthy/degraded/unhealthy/unknown")


def _print_predictions(summary: Summary) -> None:
    """Print the relative errors of the predictions, if there are any."""
    items = [item for item in summary.figures if any(figure.error == figure.error for figure in item.metrics.values())]
    if items:
        click.echo("")
        rows = [
            [item.cell, item.selection, *(f"{figure.error:+.2%}" for figure in item.metrics.values())] for item in items
        ]
        print_table(["error of the prediction", "repetitions", *_titles(summary)], rows)


def _print_dependence(summary: Summary) -> None:
    """Print drift and lag-1 correlation."""
    if not summary.dependences:
        return
    from tracebed.validation.metrics import all_metrics

    click.echo("")
    rows = [
        [
            all_metrics()[name].label,
            f"{found.drift_percent:+.3f} %",
            f"{found.drift_p:.3f}",
            f"{found.correlation:+.2f}",
            f"{found.expected:+.2f} ({found.low:+.2f} to {found.high:+.2f})",
        ]
        for name, found in summary.dependences.items()
    ]
    print_table(["over the sequence", "drift per run", "p", "lag-1 correlation", "if independent (95 %)"], rows)


def _titles(summary: Summary) -> list[str]:
    from tracebed.validation.metrics import all_metrics

    return [all_metrics()[name].title for name in summary.figures[0].metrics]
