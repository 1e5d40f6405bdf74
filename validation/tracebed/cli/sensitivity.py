"""`tracebed sensitivity`: how much the figures of a study depend on its free choices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.grids import Grid, chosen, grid_options
from tracebed.cli.messages import progress, say, warn
from tracebed.cli.options import SIZE, json_option
from tracebed.display import cell, effect
from tracebed.errors import ExitCode, InputError

if TYPE_CHECKING:
    from tracebed.validation.experiments.file import StudyFile
    from tracebed.validation.experiments.views.sensitivity import Analysis, Sensitivity


@click.command()
@click.argument("study", metavar="STUDY|WORKLOAD")
@click.option(
    "-x",
    "--choice",
    "choices",
    multiple=True,
    metavar="NAME=VALUE[,VALUE]",
    help="Free choice with other values, in place of those of the study; may be repeated.",
)
@click.option(
    "-b",
    "--base",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Value of a choice at the base; may be repeated.",
)
@click.option("--policy", metavar="NAME", help="Policy of a WORKLOAD.")
@click.option("--nodes", type=SIZE, help="Number of nodes for a WORKLOAD.  [default: the workload's system]")
@click.option("--figure", "figures", multiple=True, metavar="METRIC", help="Figure to print and plot; may be repeated.")
@click.option(
    "--shake",
    type=click.IntRange(2, 10_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Number of shaken inputs for the base and for each changed choice.",
)
@grid_options
@json_option
def sensitivity(
    study: str,
    choices: tuple[str, ...],
    settings: tuple[str, ...],
    policy: str | None,
    nodes: int | None,
    figures: tuple[str, ...],
    shake: int,
    grid: Grid,
    as_json: bool,
) -> ExitCode:
    """Change one free choice of a study at a time, and print the effects, largest first.

    The base and each change are simulated with the same shaken inputs. An effect is marked if it may be an accident,
    and if it is inside the band: smaller than what accidents do to the figure of the base. Base, choices and figures
    are those of the section `sensitivity` of the study file, unless options give others.

    A choice is a key of the points (`interval_s`), of the study file (`over_limit`), of the workload (`limits`), or a
    parameter of the policy (`calls`). A WORKLOAD with --policy is a study of one point.

    \b
    Example:
      tracebed sensitivity kassel-knl --log cori-knl/ -o sweeps
      tracebed sensitivity w.parquet --policy pref -x interval_s=10,60
    """
    from tracebed.files import locked_folder
    from tracebed.validation.experiments.views import sensitivity as analyzing
    from tracebed.validation.experiments.workloads import logs_of

    file = _study(study, policy, nodes)
    spec = file.study.sensitivity
    wanted: dict[str, list[Any]] = {
        name: [_value(value) for value in values] for name, values in chosen("-x", choices).items()
    } or spec.choices
    if not wanted:
        raise InputError("no free choice", where=file.source.where, hint="give one: -x interval_s=10,60")
    base = spec.base | {name: _value(values[-1]) for name, values in chosen("-b", settings).items()}
    shown = _known(figures) or spec.figures
    workers_of = grid.pool()
    folder = grid.folder
    with locked_folder(folder, "sweep", mark="cells"):
        with progress(f"preparing {file.name}"):
            asked = analyzing.analysis(file, base, wanted, shake, folder, logs_of(file, grid.logs))
        todo = len(asked.plan.todo)
        say(f"{file.name}: {len(asked.changed)} changes, {shake} shaken inputs each, {todo:,} cells to compute")
        with workers_of, progress(f"simulating {file.name}", total=todo) as bar:
            found = analyzing.measure(asked, folder, workers_of, lambda done, total: bar.update(done))
        return _finish(asked, found, shown, folder / file.name, as_json)


def _study(name: str, policy: str | None, nodes: int | None) -> StudyFile:
    """Return the study of the argument; of a workload and a policy, a study of one point."""
    from tracebed.validation.experiments.file import load_study, names, parse_study

    if policy is None:
        if nodes is not None:
            raise InputError("--nodes is for a WORKLOAD", hint="give --policy too, or leave it out")
        if name not in names() and Path(name).suffix not in (".yaml", ".yml"):
            raise InputError("neither a study nor its YAML file", where=name, hint="give --policy for a workload")
        return load_study(name)
    workload = {"file": Path(name).name} | ({"nodes": nodes} if nodes else {})
    text = json.dumps({"workloads": {"workload": workload}, "policies": [policy]})
    return parse_study(f"{Path(name).stem}-{policy}", text, name)


def _value(text: str) -> Any:
    """Return the value of a text, as in a study file: a number, a truth value, or text."""
    from tracebed.yaml_file import YamlFile

    return YamlFile.parse(text, text, hint="write a value as in a study file").raw


def _known(figures: Sequence[str]) -> list[str]:
    from tracebed.registry import one_of
    from tracebed.validation.metrics import all_metrics

    for name in figures:
        one_of("metric", name, all_metrics())
    return list(figures)


def _finish(asked: Analysis, found: Sensitivity, shown: Sequence[str], own: Path, as_json: bool) -> ExitCode:
    """Draw the plots, and print the effects, warnings and failures."""
    from tracebed.validation.experiments.views import tornado

    table = found.table[found.table["figure"].isin(shown)]
    with progress("drawing"):
        printed = {name: asked.printed(name) for name in shown}
        drawn = tornado.draw(table, printed, f"{asked.file.name}: {asked.about}", own / "plots")
    for warning, count in found.warnings.items():
        warn(f"{warning} (in {count:,} cells)")
    if as_json:
        facts = {
            "study": asked.file.name,
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
        say(f"{own / 'sensitivity.csv'}; {len(drawn)} plots")
    for label, reason in found.failed.items():
        say(f"tracebed: {label}: {reason}")
    return ExitCode.USAGE if found.failed else ExitCode.OK


def _print(rows: Any, asked: Analysis) -> None:
    """Print the effects on one figure."""
    from tracebed.validation.metrics import all_metrics

    if not len(rows):
        return
    first = rows.iloc[0]
    band = f"{cell(first['band_low'])} to {cell(first['band_high'])}"
    printed = "".join(f", printed {cell(value)}" for value in asked.printed(first["figure"]))
    click.echo(f"\n{all_metrics()[first['figure']].title}: {cell(first['base'])} ({band}){printed}; {asked.about}")
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
    )
