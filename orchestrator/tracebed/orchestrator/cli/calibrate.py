"""The command `tracebed calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracebed.orchestrator.cli.console import print_json, print_table
from tracebed.orchestrator.cli.messages import progress, say
from tracebed.orchestrator.cli.options import SPEED, inventory_option, json_option, output_option

if TYPE_CHECKING:
    from tracebed.orchestrator.calibration import Calibration, Estimate


@click.command()
@inventory_option(required=True)
@click.option(
    "--speed",
    type=SPEED,
    default=100.0,
    show_default=True,
    help="Trace seconds per wall second of the probes.",
)
@click.option(
    "--repetitions",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Number of replays of each probe.",
)
@output_option("Calibration to write, a YAML file.")
@json_option
def calibrate(inventory: Path, speed: float, repetitions: int, output: Path, as_json: bool) -> None:
    """Measure what replays on an inventory take time for, by replays of small workloads.

    The calibration has the work rate of the cores, the proposed duty, and the time that launches, ends and resizes
    take. It takes about 90 s. The machine should be as idle as for the replays to come.

    \b
    Example:
      tracebed calibrate --inventory local --speed 400 -o local.calibration.yaml
      tracebed simulate w.parquet --policy pref --inventory local --calibration local.calibration.yaml -o sim
    """
    from tracebed.orchestrator.cli.runs import end_on_signals

    end_on_signals()
    import tracebed.api as tb
    from tracebed.files import replacing

    machine = tb.inventory(inventory)
    with replacing(output) as file:  # an output that cannot be written is reported before the measurement
        with progress(f"calibrating {len(machine.nodes)} {machine.execution} nodes", total=1.0) as bar:
            made = tb.calibrate(machine, speed=speed, repetitions=repetitions, on_progress=bar.update)
        file.write(made.text.encode())
    if as_json:
        print_json("tracebed-calibration/1", made.model_dump(mode="json", exclude={"file_schema"}))
    else:
        _show(made)


def _show(made: Calibration) -> None:
    """Print the constants, with their intervals and the spread between the repetitions."""
    print_table(
        ["overhead", "value, ms", "95 % interval, ms", "repetitions, ms", "samples"],
        [_row(name, estimate) for name, estimate in made.overheads.items()],
    )
    if rate := made.units_per_core_second:
        low, high = rate.spread
        say(f"work rate: {rate.median:,.0f} units per core and second; p05 to p95 of windows {low:.2f} to {high:.2f}")
    if proposal := made.duty_proposal:
        say(f"proposed duty: {proposal.duty:g} for {proposal.ranks} ranks; the probes ran with duty {made.duty:g}")
    for what in made.skipped:
        say(f"not measured: {what}")


def _row(name: str, estimate: Estimate) -> tuple[str, ...]:
    repetitions = " ".join(f"{1e3 * value:.3g}" for value in estimate.repetitions)
    interval = f"{1e3 * estimate.low:.3g} to {1e3 * estimate.high:.3g}"
    return name.removesuffix("_s"), f"{1e3 * estimate.value:.3g}", interval, repetitions, f"{estimate.count:,}"
