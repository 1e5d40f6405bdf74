"""The command `tracebed nodes calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import emit, progress
from tracebed.cli.options import (
    PATH,
    SPEED,
    budget_option,
    inventory_option,
    json_option,
    loss_option,
    output_option,
    seed_option,
)
from tracebed.cli.sections import Sectioned
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import CALIBRATION

if TYPE_CHECKING:
    from tracebed.api import Calibration
    from tracebed.api.types import OverheadEstimate


@click.command(cls=Sectioned, sections={"Fit to recorded replays": ("workloads", "loss", "budget", "seed")})
@click.argument("runs", type=PATH, nargs=-1, metavar="[RUN...]")
@inventory_option(required=False)
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
@click.option(
    "--workload",
    "workloads",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Workload of the recorded replays RUN...; may be repeated.",
)
@loss_option
@budget_option("Number of sets of overheads to try in a fit.")
@seed_option
@output_option("Calibration to write, a YAML file.", CALIBRATION)
@json_option
def calibrate(
    runs: tuple[Path, ...],
    inventory: Path | None,
    speed: float,
    repetitions: int,
    workloads: tuple[Path, ...],
    loss: Literal["metrics", "jobs"],
    budget: int,
    seed: int,
    output: Path,
    replace: bool,
    as_json: bool,
) -> None:
    """Measure what replays on an inventory take time for, by replays of small workloads.

    With RUN... and their workloads, the overheads are fitted to these recorded replays instead, and cross-validated by
    workload. The calibration then also contains the sets of overheads that fit equally well (the cloud). With RUN...
    alone, replays of a policy on a batch system (--scheduler), the overheads are those that the runs have recorded.

    The calibration has the work rate of the cores, the proposed duty, the slowdown of the kernels PILS and STREAM
    beside each other, and the time that launches, ends and resizes take. It takes about 100 s. The machine should be as
    idle as for the replays to come.

    \b
    Example:
      tracebed nodes calibrate --inventory local --speed 400 -o local.yaml
      tracebed simulate w.parquet --policy pref --calibration local.yaml -o sim
      tracebed nodes calibrate real-1 real-2 --workload w.parquet -o fitted.yaml
    """
    if bool(runs) == bool(inventory):
        what = "a calibration needs an inventory to measure, or recorded replays"
        raise InputError(what, hint="give --inventory NAME, or RUN... --workload FILE")
    if workloads and not runs:
        raise InputError("--workload is given without recorded replays", hint="add RUN..., or leave it out")
    name = output.name.partition(".")[0]
    if runs and not workloads:
        import tracebed.api as tb

        with CALIBRATION.file(output, replace=replace) as file:
            measured = tb.calibrate_batch(runs, name=name)
            file.write(measured.text.encode())
        _print(measured, as_json)
        return
    if runs:
        from tracebed.cli.fitting import fit_to_runs, show_fit

        with CALIBRATION.file(
            output, replace=replace
        ) as file:  # an output that cannot be written is reported before the fit
            fitted = fit_to_runs(runs, workloads, loss=loss, budget=budget, seed=seed, name=name)
            file.write(fitted.text.encode())
        if as_json:
            print_json("tracebed-calibration/1", fitted.model_dump(mode="json", exclude={"file_schema"}))
        else:
            show_fit(fitted)
        return
    assert inventory is not None
    from tracebed.cli.runs import end_on_signals

    end_on_signals()
    import tracebed.api as tb

    machine = tb.inventory(inventory)
    with CALIBRATION.file(
        output, replace=replace
    ) as file:  # an output that cannot be written is reported before the measurement
        with progress(f"calibrating {len(machine.nodes)} {machine.execution} nodes", total=1.0) as bar:
            made = tb.calibrate(machine, speed=speed, repetitions=repetitions, on_progress=bar.update)
        file.write(made.text.encode())
    _print(made, as_json)


def _print(made: Calibration, as_json: bool) -> None:
    """Print a measured calibration."""
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
    if made.applications:
        costs = [(name, *item) for name, each in made.applications.items() for item in each.items()]
        print_table(
            ["application", "resize", "value, ms", "95 % interval, ms", "samples"],
            [(name, *_row(cost, estimate, repeated=False)) for name, cost, estimate in costs],
            keys=2,
        )
    if rate := made.units_per_core_second:
        low, high = rate.spread
        emit(f"work rate: {rate.median:,.0f} units per core and second; p05 to p95 of windows {low:.2f} to {high:.2f}")
    if proposal := made.duty_proposal:
        emit(f"proposed duty: {proposal.duty:g} for {proposal.ranks} ranks; the probes ran with duty {made.duty:g}")
    if table := made.interference:
        print_table(
            ["rate of", *(f"beside {kernel}" for kernel in table)],
            [(kernel, *map(_factor, row.values())) for kernel, row in table.items()],
        )
    for what in made.skipped:
        emit(f"not measured: {what}")


def _factor(estimate: OverheadEstimate) -> str:
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def _row(name: str, estimate: OverheadEstimate, *, repeated: bool = True) -> tuple[str, ...]:
    repetitions = [" ".join(f"{1e3 * value:.3g}" for value in estimate.repetitions)] if repeated else []
    interval = f"{1e3 * estimate.low:.3g} to {1e3 * estimate.high:.3g}"
    return name.removesuffix("_s"), f"{1e3 * estimate.value:.3g}", interval, *repetitions, f"{estimate.count:,}"
