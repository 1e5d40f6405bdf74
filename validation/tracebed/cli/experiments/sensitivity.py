"""The sensitivity of an experiment: how much its figures depend on its free choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.experiments.options import Choices, Execution, chosen
from tracebed.cli.messages import MessageLevel, emit, progress, warn
from tracebed.cli.perturbation import explain_falls
from tracebed.ground.display import cell, effect
from tracebed.ground.errors import ExitCode, InputError

if TYPE_CHECKING:
    from tracebed.api.experiments import Analysis, ExperimentFile, Sensitivity


def analyze(
    file: ExperimentFile, asked: Choices, execution: Execution, logs: Mapping[str, Path], as_json: bool
) -> ExitCode:
    """Change one free choice of an experiment at a time, and print the effects, largest first.

    The base and each change are simulated with the same perturbed inputs. Base, choices and figures are those of the
    section `sensitivity` of the file, unless options give others.
    """
    from tracebed.api.experiments import analysis, measure
    from tracebed.ground.files import locked_folder

    spec = file.experiment.sensitivity
    wanted: dict[str, list[Any]] = {
        name: [_value(value) for value in values] for name, values in chosen("-x", asked.choices).items()
    } or spec.choices
    if not wanted:
        raise InputError("no free choice", where=file.source.where, hint="give one: -x interval_s=10,60")
    base = spec.base | {name: _value(values[-1]) for name, values in chosen("-b", asked.settings).items()}
    shown = _known(asked.figures) or spec.figures
    pool, folder = execution.pool(), execution.folder
    with locked_folder(folder, "experiment"):
        with progress(f"preparing {file.name}"):
            prepared = analysis(file, base, wanted, asked.runs, folder, logs)
        todo = len(prepared.plan.todo)
        changes = f"{len(prepared.changed)} changes, {asked.runs} perturbed inputs each"
        emit(f"{file.name}: {changes}, {todo:,} cells to compute")
        with pool, progress(f"simulating {file.name}", total=todo) as bar:
            found = measure(prepared, folder, pool, lambda done, total: bar.update(done))
        return _finish(prepared, found, shown, folder / file.name, as_json)


def _value(text: str) -> Any:
    """Return the value of a text, as in an experiment file: a number, a truth value, or text."""
    from tracebed.ground.yaml_file import YamlFile

    return YamlFile.parse(text, text, hint="write a value as in an experiment file").raw


def _known(figures: Sequence[str]) -> list[str]:
    from tracebed.api.measures import metric_definitions
    from tracebed.ground.registry import one_of

    for name in figures:
        one_of("metric", name, metric_definitions())
    return list(figures)


def _finish(asked: Analysis, found: Sensitivity, shown: Sequence[str], own: Path, as_json: bool) -> ExitCode:
    """Draw the plots, and print the effects, warnings and failures."""
    from tracebed.api.experiments import tornado

    table = found.table[found.table["figure"].isin(shown)]
    with progress("drawing"):
        printed = {name: asked.printed(name) for name in shown}
        drawn = tornado.draw(table, printed, f"{asked.file.name}: {asked.about}", own / "plots")
    for warning, count in found.warnings.items():
        warn(f"{warning} (in {count:,} cells)")
    if as_json:
        facts = {
            "experiment": asked.file.name,
            "output": str(own),
            "base": asked.settings,
            "runs": asked.runs,
            "printed": {name: asked.printed(name) for name in shown},
            "effects": table.to_dict("records"),
            "failed": found.failed,
            "plots": [str(path) for path in drawn],
        }
        print_json("tracebed-sensitivity/1", facts)
    else:
        for name in shown:
            _print(table[table["figure"] == name], asked)
        emit(f"{own / 'sensitivity.csv'}; {len(drawn)} plots")
    for label, reason in found.failed.items():
        emit(f"tracebed: {label}: {reason}", MessageLevel.ERROR)
    return ExitCode.USAGE if found.failed else ExitCode.OK


def _print(rows: Any, asked: Analysis) -> None:
    """Print the effects on one figure."""
    from tracebed.api.measures import metric_definitions

    if not len(rows):
        return
    first = rows.iloc[0]
    band = f"{cell(first['band_low'])} to {cell(first['band_high'])}"
    printed = "".join(f", printed {cell(value)}" for value in asked.printed(first["figure"]))
    click.echo(
        f"\n{metric_definitions()[first['figure']].title}: {cell(first['base'])} ({band}){printed}; {asked.about}"
    )
    print_table(
        ["choice", "base", "changed to", "figure", "effect", "found"],
        [
            [
                *(row[key] for key in ("choice", "base_value", "value", "changed")),
                effect(row["change"], row["low"], row["high"], row["base"]),
                row["found"],
            ]
            for row in rows.to_dict("records")
        ],
        keys=3,
    )
    explain_falls(zip(rows["low"], rows["base"], strict=True))
