"""The real cells of an experiment: their predictions and replays, and the statistics of the repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

import tracebed.api as tb
from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import MessageLevel, emit, one_line, progress, warn
from tracebed.ground.display import cell as shown
from tracebed.ground.display import time_text
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.files import locked_folder


def run(
    file: tb.ExperimentFile,
    points: Sequence[tb.Point],
    logs: Mapping[str, Path],
    folder: Path,
    *,
    dry_run: bool,
    as_json: bool,
) -> ExitCode:
    """Predict and replay the cells of an experiment that are not done, and print the statistics of the repetitions."""
    if file.experiment.recorded is not None:
        hint = f"tracebed validate {file.source.where} -o FOLDER"
        raise InputError("the real runs are recorded: there is nothing to replay", where=file.source.where, hint=hint)
    if dry_run:
        if tb.has_replays(folder):
            show_statistics(folder, as_json)
        else:
            list_points(file, points, as_json)
        announce(tb.forecast_suite(tb.load_suite(file, points, folder, logs), folder))
        return ExitCode.OK
    with locked_folder(folder, "experiment"):
        with progress(f"reading {file.name}"):
            suite = tb.load_suite(file, points, folder, logs)
        forecast = tb.forecast_suite(suite, folder)
        announce(forecast)
        _, failed, attempts = execute(suite, forecast, folder)
        summary = show_statistics(folder, as_json)
        tb.write_csv(tb.statistics_frame(summary), folder / "statistics.csv", tb.statistics_table(summary))
    if failed:
        return ExitCode.USAGE
    return ExitCode.UNHEALTHY if any(attempt.error for attempt in attempts) else ExitCode.OK


def execute(
    suite: tb.Suite, forecast: tb.SuiteForecast, folder: Path
) -> tuple[tb.Predictions, dict[str, str], list[tb.Attempt]]:
    """Make the missing predictions and replays of a suite. Return predictions, failures by simulator, and attempts."""
    try:
        suite.file.write(folder)
        with progress("predicting", total=len(suite.cases) * len(suite.simulators)) as bar:
            predictions, failed = tb.predict_suite(suite, folder, bar.update)
        show_failures(failed)
        return predictions, failed, _replay(suite, forecast, folder)
    except KeyboardInterrupt:
        emit(f"tracebed: the finished runs are in {folder}; the same command continues the experiment")
        raise


def show_failures(failed: Mapping[str, str]) -> None:
    """Print each simulator that failed, also with -q: simulator -> why."""
    for name, failure in failed.items():
        emit(f"tracebed: {name} failed: {one_line(failure)}", MessageLevel.ERROR)


def announce(forecast: tb.SuiteForecast) -> None:
    """Print the remaining replays and predictions, and their least duration."""
    done = forecast.repetitions - forecast.to_replay
    kept = f", {done} of them done" if done and forecast.to_replay else ""
    to_predict = ", ".join(f"{count} by {name}" for name, count in forecast.to_predict.items() if count)
    emit(f"cases: {forecast.cases}, repetitions: {forecast.repetitions}{kept}")
    if to_predict:
        emit(f"predictions to make: {to_predict}")
    if forecast.to_replay:
        emit(f"replays to make: {forecast.to_replay}, at least {time_text(forecast.shortest_s)}")


def _replay(suite: tb.Suite, forecast: tb.SuiteForecast, folder: Path) -> list[tb.Attempt]:
    """Carry out the remaining replays, with progress and a warning for each failure."""
    if suite.campaign is None:
        return []
    with progress(f"replaying {suite.file.name}", total=forecast.to_replay) as bar:

        def show(done: float, attempt: tb.Attempt | None) -> None:
            bar.update(min(done, forecast.to_replay))  # repetitions that replace excluded ones come in addition
            if attempt is not None and attempt.error:
                warn(f"{attempt.cell}, repetition {attempt.number}: {attempt.error}")

        return tb.replay_campaign(suite.campaign, folder, show)


def show_statistics(folder: Path, as_json: bool) -> tb.Statistics:
    """Print and return the statistics of the replays in the output folder `folder`."""
    with progress(f"reading {folder}"):
        summary = tb.statistics_of(folder)
    if as_json:
        print_json("tracebed-repetitions/1", {"folder": str(folder), **summary.to_json()})
        return summary
    _print_cells(summary)
    _print_predictions(summary)
    _print_dependence(summary)
    for run in summary.runs[summary.runs["signals"] != ""].itertuples():
        warn(f"{run.cell}, repetition {run.repetition}: {run.signals}")
    for attempt in summary.failed:
        emit(f"tracebed: {attempt.cell}, repetition {attempt.number} failed: {attempt.error}", MessageLevel.ERROR)
    if summary.missing:
        emit(f"tracebed: {summary.missing} repetitions are missing: the experiment is not complete")
    return summary


def _print_cells(summary: tb.Statistics) -> None:
    """Print mean and coefficient of variation of each cell."""
    rows = []
    for item in summary.figures:
        health = "/".join(str(count) for count in summary.states.get(item.cell, {}).values())
        figures = [
            shown(figure.mean) + (f" ± {figure.cv:.2%}" if figure.cv == figure.cv else "")
            for figure in item.metrics.values()
        ]
        rows.append([item.cell, item.selection, item.n, health if item.selection == "all" else "", *figures])
    print_table(["cell", "repetitions", "n", "health*", *_titles(summary)], rows, keys=2, spare=("health*",))
    click.echo("mean ± coefficient of variation; *healthy/degraded/unhealthy/unknown")


def _print_predictions(summary: tb.Statistics) -> None:
    """Print the relative errors of the predictions, if there are any."""
    rows = [
        [item.cell, item.selection, name, *(f"{figure.errors[name]:+.2%}" for figure in item.metrics.values())]
        for item in summary.figures
        for name in next(iter(item.metrics.values())).errors
        if item.n
    ]
    if rows:
        click.echo("")
        print_table(["error of the prediction", "repetitions", "by", *_titles(summary)], rows, keys=3)


def _print_dependence(summary: tb.Statistics) -> None:
    """Print drift and lag-1 correlation."""
    if not summary.dependences:
        return
    click.echo("")
    rows = [
        [
            tb.metric_definitions()[name].label,
            f"{found.drift_percent:+.3f} %",
            f"{found.drift_p:.3f}",
            f"{found.correlation:+.2f}",
            f"{found.expected:+.2f} ({found.low:+.2f} to {found.high:+.2f})",
        ]
        for name, found in summary.dependences.items()
    ]
    print_table(["over the sequence", "drift per run", "p", "lag-1 correlation", "if independent (95 %)"], rows)


def _titles(summary: tb.Statistics) -> list[str]:
    return [tb.metric_definitions()[name].title for name in summary.figures[0].metrics]


def list_points(file: tb.ExperimentFile, points: Sequence[tb.Point], as_json: bool) -> None:
    """Print the points of the grid."""
    rows = [asdict(point) for point in points]
    if as_json:
        print_json("tracebed-grid/1", {"experiment": file.name, "points": len(points), "grid": rows})
        return
    keys = [key for key in rows[0] if key in ("workload", "policy") or len({str(row[key]) for row in rows}) > 1]
    print_table(keys, [[tb.value_text(row[key]) for key in keys] for row in rows], keys=len(keys))
