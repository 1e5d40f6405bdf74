"""The commands that draw workloads from models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tracebed.errors import InputError
from tracebed.orchestrator.cli.console import SIZE, json_option, output_option, progress, seed_option
from tracebed.orchestrator.cli.summary import finish

SITES = ("anl", "ctc", "kth", "sdsc")


@click.group()
def generate() -> None:
    """Draw a workload from a model.

    \b
    Example:
      tracebed generate cirne --nodes 16 --jobs 200 --seed 7 -o w.parquet
    """


@generate.command(short_help="Rigid jobs of a supercomputer (Cirne and Berman 2001).")
@click.option("--jobs", type=click.IntRange(min=1), required=True, help="How many jobs.")
@click.option("--nodes", type=SIZE, help="Nodes of the machine.  [default: the site's own]")
@click.option(
    "--cores-per-node",
    type=SIZE,
    default=1,
    show_default=True,
    help="Cores of each node; jobs use them all.",
)
@click.option(
    "--site",
    type=click.Choice(SITES),
    default="anl",
    show_default=True,
    help="Whose daily cycle of arrivals.",
)
@click.option(
    "--set",
    "constants",
    multiple=True,
    metavar="NAME=VALUE",
    help="A constant of the model, such as power_of_two=0.5; repeat for more (docs/models.md lists them).",
)
@click.option("--exact", is_flag=True, help="Draw with RANDLIB as the reference program does; slow.")
@seed_option
@output_option("The workload to write: .parquet, .csv or .swf.")
@json_option
def cirne(
    jobs: int,
    nodes: int | None,
    cores_per_node: int,
    site: str,
    constants: Sequence[str],
    exact: bool,
    seed: int,
    output: Path,
    as_json: bool,
) -> None:
    """Rigid jobs of a supercomputer (Cirne and Berman 2001): sizes, run times, limits, a daily cycle.

    \b
    Example:
      tracebed generate cirne --nodes 16 --jobs 200 --seed 7 -o w.parquet
    """
    from tracebed.converters.models import registry
    from tracebed.converters.models.cirne import Parameters

    parameters = Parameters(**_constants(constants, Parameters()))
    with progress("drawing jobs"):
        workload = registry.draw(
            "cirne",
            jobs,
            site=site,
            nodes=nodes,
            cores_per_node=cores_per_node,
            seed=seed,
            parameters=parameters,
            exact=exact,
        )
    finish(workload, output, as_json)


def _constants(texts: Sequence[str], defaults: Any) -> dict[str, Any]:
    """Parse NAME=VALUE; a value takes the type of the default."""
    result: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in vars(defaults):
            raise InputError(f"--set {text}: no constant {name!r}", mend=f"one of {', '.join(vars(defaults))}")
        try:
            result[name] = type(getattr(defaults, name))(value)
        except ValueError:
            raise InputError(f"--set {text}: {value!r} is not a number", mend=f"{name}=NUMBER") from None
    return result
