"""`tracebed validate`: the verdicts on the simulators of a suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracebed.cli.console import print_json
from tracebed.cli.gate import gate_options
from tracebed.cli.messages import progress, say, warn
from tracebed.cli.options import PATH, STORE, json_option, output_option
from tracebed.errors import ExitCode

if TYPE_CHECKING:
    from tracebed.validation.experiments.real.store import Attempt
    from tracebed.validation.experiments.suite import Suite
    from tracebed.validation.experiments.views.verdicts import Forecast
    from tracebed.validation.verdict.validation import Validation


@click.command()
@click.argument("suite", type=PATH, metavar="SUITE")
@click.option(
    "--simulator", "only", multiple=True, metavar="NAME", help="Validate only this simulator of the suite. Repeatable."
)
@click.option("--dry-run", is_flag=True, help="Print the forecast, and neither replay nor predict.")
@click.option(
    "--case-pages/--no-case-pages", default=True, help="Write a report for each case too (some seconds a case)."
)
@output_option("Folder of the runs, the verdicts and the reports.", STORE)
@gate_options
@json_option
def validate(
    suite: Path,
    only: tuple[str, ...],
    dry_run: bool,
    case_pages: bool,
    output: Path,
    inconclusive: str,
    baseline: Path | None,
    annotate: bool,
    code_quality: Path | None,
    as_json: bool,
) -> ExitCode:
    """Validate the simulators of SUITE, a YAML file of workloads, policies, a testbed and simulators.

    Each case, a workload under a policy, is predicted by each simulator, and replayed several times in random order.
    The same command continues an interrupted validation: finished runs are not repeated. The folder has the
    verdicts (verdict.json), a summary (verdict.md), JUnit XML (junit.xml), and a report per simulator.

    \b
    Exit status: that of the worst simulator: 1 inaccurate, 4 unhealthy testbed data, 3 inconclusive, 0 accurate;
    2 if a simulator fails.

    \b
    Example:
      tracebed validate suite.yaml -o validation
    """
    from tracebed.cli.gate import Gate
    from tracebed.cli.runs import end_on_signals

    end_on_signals()
    from tracebed.validation.experiments.suite import load_suite
    from tracebed.validation.experiments.views import results
    from tracebed.validation.experiments.views import verdicts as runner
    from tracebed.validation.verdict.baseline import Baseline

    with progress(f"reading {suite.name}"):
        loaded = load_suite(suite, only)
        file = baseline or (loaded.folder / loaded.spec.baseline if loaded.spec.baseline else None)
        kept = Baseline.load(file) if file else None  # an invalid baseline is reported before the replays
        forecast = runner.forecast(loaded, output)
    _announce(forecast)
    if dry_run:
        return ExitCode.OK
    try:
        with runner.locked(output):
            runner.keep_suite(loaded, output)
            with progress("predicting", total=len(loaded.cases) * len(loaded.simulators)) as bar:
                predictions, failed = runner.predict(loaded, output, bar.update)
            for name, failure in failed.items():
                warn(f"{name}: {failure}")
            _replay(loaded, forecast, output)
            with progress("comparing"):
                validations = runner.validations(loaded, predictions, output)
            gate = Gate.of(list(validations.values()), inconclusive, kept)
            with progress("drawing the reports"):
                document = results.write(
                    loaded, validations, failed, output, gate.inconclusive, gate.findings, case_pages=case_pages
                )
    except KeyboardInterrupt:
        say(f"tracebed: the finished runs are in {output}; the same command continues the validation")
        raise
    if as_json:
        print_json(document["schema"], document)
    else:
        _show(validations, output)
    files = [suite, *([loaded.folder / loaded.spec.tolerances] if loaded.spec.tolerances else [])]
    status = gate.status(list(validations.values()), annotate=annotate, code_quality=code_quality, files=files)
    return ExitCode.USAGE if failed else status


def _announce(forecast: Forecast) -> None:
    """Print the remaining replays and predictions, and their least duration."""
    from tracebed.display import time_text

    done = forecast.repetitions - forecast.to_replay
    kept = f", {done} of them done" if done and forecast.to_replay else ""
    to_predict = ", ".join(f"{count} by {name}" for name, count in forecast.to_predict.items() if count)
    say(f"cases: {forecast.cases}, repetitions: {forecast.repetitions}{kept}")
    if to_predict:
        say(f"predictions to make: {to_predict}")
    if forecast.to_replay:
        say(f"replays to make: {forecast.to_replay}, at least {time_text(forecast.shortest_s)}")


def _replay(suite: Suite, forecast: Forecast, output: Path) -> None:
    """Carry out the remaining replays, with progress and a warning for each failure."""
    if suite.campaign is None:
        return
    from tracebed.validation.experiments.views import verdicts as runner

    with progress(f"replaying {suite.name}", total=forecast.to_replay) as bar:

        def show(done: float, attempt: Attempt | None) -> None:
            bar.update(done)
            if attempt is not None and attempt.error:
                warn(f"{attempt.cell}, repetition {attempt.number}: {attempt.error}")

        runner.replay(suite.campaign, output, show)


def _show(validations: dict[str, Validation], output: Path) -> None:
    """Print the result of each simulator, and where its report is."""
    from tracebed.cli.comparison import show

    said: set[str] = set()  # the simulators have the real runs, and their warnings, in common
    for name, validation in validations.items():
        show(validation, said)
        said.update(validation.warnings)
        click.echo(f"report: {output / name}.html\n")
