"""`tracebed baseline`: earlier results, with which later validations are compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.groups import LazyGroup
from tracebed.cli.messages import say, warn
from tracebed.cli.options import PATH, json_option, output_option
from tracebed.errors import ExitCode
from tracebed.outputs import BASELINE

if TYPE_CHECKING:
    from tracebed.validation.verdict.acceptance import SimulatorBaseline

COMMANDS = {
    "update": "Write the baseline of a validation, or update it.",
    "show": "Print the errors and the acceptance limits of a baseline.",
}
COLUMNS = ("metric", "verdict", "case", "error / margin", "predicted", "lowest", "highest")


class Baselines(LazyGroup):
    """The commands of `COMMANDS`."""

    def summaries(self) -> dict[str, str]:
        """Return one line of help for each command."""
        return COMMANDS

    def load(self, name: str) -> click.Command:
        """Return the command `name`."""
        return {"update": update, "show": show}[name]


@click.group(cls=Baselines)
def baseline() -> None:
    """Keep the results of a simulator as a baseline for CI jobs.

    A baseline has the error of each metric, and for each case the range of predicted values that is accurate given
    the recorded real runs. `tracebed validate --baseline FILE` and `tracebed compare --baseline FILE` end with status
    1 if a metric leaves its limits or its error grows by more than the ratchet of the tolerances.

    \b
    Example:
      tracebed baseline update out/verdict.json -o baseline.yaml
      tracebed baseline show baseline.yaml
    """


@click.command()
@click.argument("verdict", type=PATH, metavar="VERDICT")
@output_option(
    "The baseline: YAML, or JSON if the name ends in .json. Other simulators in the file are kept.", BASELINE
)
@click.option("--accept-worse", is_flag=True, help="Write the baseline although a result is worse than before.")
def update(verdict: Path, output: Path, accept_worse: bool) -> ExitCode:
    """Write the results in VERDICT to a baseline.

    VERDICT is the output of `tracebed compare --json`, the file verdict.json of `tracebed validate`, or the folder of
    that file. If the baseline exists, all differences are printed. If a result is worse or the tolerances changed,
    the command ends with status 1 and does not write, unless --accept-worse is given.

    \b
    Example:
      tracebed baseline update out/verdict.json -o baseline.yaml
    """
    from tracebed.validation.verdict.baseline import Baseline, verdicts_in

    new = Baseline.of(verdicts_in(verdict))
    old = Baseline.load(output) if output.exists() else Baseline(tracebed=new.tracebed, simulators={})
    found = list(old.changes(new))
    for change in found:
        (warn if change.failed else say)(f"{change.simulator}: {change.text}")
    worse = sum(change.failed for change in found)
    if worse and not accept_worse:
        hint = "improve the simulator, or review the changes and give --accept-worse"
        click.echo(f"{output}: not written, {worse} results are worse ({hint})")
        return ExitCode.INACCURATE
    old.updated(new).save(output, replace=True)
    click.echo(f"{output}: {', '.join(new.simulators)}")
    return ExitCode.OK


@click.command()
@click.argument("file", type=PATH, metavar="BASELINE")
@json_option
def show(file: Path, as_json: bool) -> None:
    """Print the errors and acceptance limits of BASELINE, a row per metric and case.

    \b
    Example:
      tracebed baseline show baseline.yaml
    """
    from tracebed.validation.verdict.baseline import Baseline

    found = Baseline.load(file)
    if as_json:
        content = found.model_dump(mode="json", by_alias=True)
        print_json(content.pop("schema"), content)
        return
    for name, simulator in found.simulators.items():
        click.echo(f"{name} {simulator.version}: {simulator.verdict}; ratchet {simulator.ratchet:g} margins")
        print_table(COLUMNS, list(_rows(simulator)))


def _rows(simulator: SimulatorBaseline) -> Iterator[tuple[Any, ...]]:
    """Yield a row per metric with the mean error over the cases, and a row per case with its limits."""
    from tracebed.validation.verdict.acceptance import title

    for name, metric in simulator.metrics.items():
        label = title(name) + ("" if metric.gate else "*")
        reach = (None, None) if metric.reach is None else (-metric.reach, metric.reach)
        if len(metric.cases) != 1:
            yield label, metric.verdict, "mean of the errors", _signed(metric.z), "", *map(_signed, reach)
        for case, item in metric.cases.items():
            low, high = item.limits or (None, None)
            first = (label, metric.verdict) if len(metric.cases) == 1 else ("", "")
            yield *first, case, _signed(item.z), item.predicted, low, high


def _signed(z: float | None) -> str:
    return "-" if z is None else f"{z:+.3f}"
