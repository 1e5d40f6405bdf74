"""`tracebed clean`: a workload from a raw log, with an audit of the removed jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import tracebed.api as tb
from tracebed.cli.console import print_json, print_table
from tracebed.cli.logs import Reading, system_of, system_option, write_and_summarize
from tracebed.cli.messages import emit, progress
from tracebed.cli.options import (
    PATH,
    WRITTEN_WORKLOAD,
    OutputPath,
    chosen,
    gathered,
    json_option,
    option,
    output_option,
    shared,
)
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import TOUCHED


@dataclass(frozen=True)
class Cleaning:
    """How a log is cleaned."""

    recipe: str | None = option(metavar="NAME|FILE", help="Name of a recipe (see --list), or path of a recipe file.")
    listing: bool = option("--list", help="List the recipes and the cleaning steps.")
    show: bool = option(help="Print the recipe, as a start for one of your own.")
    settings: tuple[str, ...] = option(
        "--set", metavar="STEP.PARAMETER=VALUE", help="Set a parameter of a step; may be repeated."
    )
    only: tuple[str, ...] = option(
        metavar="KEY=VALUE,...", help="Keep only these jobs: partition=cpu,debug or queue=long. May be repeated."
    )
    without: tuple[str, ...] = option(metavar="STEP", help="Leave out a step; may be repeated.")
    explain: Path | None = option(
        type=OutputPath(TOUCHED),
        help="Write every touched record with the reason to this file: .csv or .parquet, also with .gz.",
    )
    system: str | None = shared(system_option)


@click.command()
@click.argument("raw", nargs=-1, type=PATH, metavar="RAW...")
@gathered("cleaning", Cleaning)
@gathered("reading", Reading)
@output_option("The clean workload to write: .parquet, .csv or .swf.", WRITTEN_WORKLOAD, required=False)
@json_option
def clean(
    raw: Sequence[Path], cleaning: Cleaning, reading: Reading, output: Path | None, replace: bool, as_json: bool
) -> None:
    """Make a clean workload of a raw log, by a recipe of named steps, with an audit of what each did.

    RAW are files, or folders of files, of one log. The audit says for each step how many jobs and node hours there
    were before and after; --json prints it for machines, --explain names every touched record.

    \b
    Example:
      tracebed clean cori-knl/ --recipe cori-knl --explain t.csv -o knl.parquet
      tracebed clean sacct.txt --recipe sacct --only partition=cpu -o cpu.parquet
    """
    if cleaning.listing:
        _list()
        return
    recipe, explain = cleaning.recipe, cleaning.explain
    if recipe is None:
        raise InputError("no recipe", hint="name one with --recipe; `tracebed clean --list` has them")
    loaded = tb.recipe(recipe)
    if cleaning.show:
        click.echo(loaded.text, nl=False)
        return
    if not raw or output is None:
        raise InputError("no log to clean" if not raw else "no place for the result", hint="RAW... -o FILE")
    with progress(f"reading {raw[0].name} and cleaning"):
        done = tb.clean_with_audit(
            raw,
            recipe,
            settings=_settings(cleaning.settings),
            without=cleaning.without,
            only=chosen("--only", cleaning.only),
            system=system_of(cleaning.system),
            explain=explain is not None,
            **reading.keywords,
        )
    if explain is not None:
        with progress(f"writing {explain.name}"):
            _write_touched(done, explain, replace)
    if as_json:
        tb.write(done.workload, output, replace=replace)
        facts = {
            "output": str(output),
            "recipe": loaded.name,
            **tb.workload_summary(done.workload),
            "audit": done.to_json(),
        }
        print_json("tracebed-clean/1", facts)
        return
    _print_audit(loaded, done.audit)
    write_and_summarize(done.workload, output, as_json=False, quietly=True, replace=replace)
    if explain is not None:
        emit(f"touched records: {explain}")


def _settings(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse STEP.PARAMETER=VALUE; the value is YAML, as it would stand in the recipe."""
    from tracebed.ground.yaml_file import YamlFile

    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        step, dot, parameter = place.partition(".")
        if not (equals and dot and parameter):
            raise InputError(f"--set {text!r} is not a setting", hint="write STEP.PARAMETER=VALUE")
        parsed = YamlFile.parse(value, f"--set {place}", hint="write 60, true, a-name or [a, b]")
        settings.setdefault(step, {})[parameter] = parsed.raw
    return settings


def _write_touched(done: tb.Cleaned, path: Path, replace: bool) -> None:
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if plain.suffix not in (".csv", ".parquet"):
        raise InputError("is no name for a table", where=str(path), hint="end it in .csv, .csv.gz or .parquet")
    with TOUCHED.file(path, replace=replace) as file:
        if plain.suffix == ".csv":
            done.touched.to_csv(file, index=False)
        else:
            done.touched.to_parquet(file, index=False)


def _print_audit(recipe: tb.Recipe, audit: Sequence[tb.Audited]) -> None:
    columns = ["step", "jobs before", "merged", "dropped", "changed", "flagged", "jobs after", "node hours", "lost"]
    rows = [
        (
            row.step,
            *(row.jobs_before, row.merged or None, row.dropped or None, row.changed or None, row.flagged or None),
            *(row.jobs_after, row.node_hours_after, _lost(row)),
        )
        for row in audit
    ]
    print_table(columns, rows, spare=("jobs before", "flagged"))
    for row in audit:
        for found in row.found:
            click.echo(f"{row.step}: {found}")


def _lost(row: tb.Audited) -> float | None:
    lost = row.node_hours_before - row.node_hours_after
    return lost if abs(lost) > 1e-6 * max(row.node_hours_before, 1.0) else None


def _list() -> None:
    import inspect
    import textwrap

    click.secho("Recipes", bold=True)
    for name in tb.recipes():
        click.echo(f"  {name:16}  {textwrap.shorten(tb.recipe(name).about, 100, placeholder=' ...')}")
    click.secho("Steps", bold=True)
    for name, step in tb.cleaning_steps().items():
        shown = ", ".join(
            str(parameter.replace(annotation=inspect.Parameter.empty))
            for parameter in list(inspect.signature(step).parameters.values())[1:]
        )
        click.echo(f"  {name}({shown})")
        click.echo(f"      {(inspect.getdoc(step) or '').partition(chr(10))[0]}")
