"""The command `tracebed nodes calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

import tracebed.api as tb
from tracebed.cli.console import end_on_signals, load_workload, print_json, print_table
from tracebed.cli.groups import Sectioned
from tracebed.cli.messages import emit, progress
from tracebed.cli.options import (
    PATH,
    SPEED,
    budget_option,
    gathered,
    inventory_option,
    json_option,
    loss_option,
    option,
    output_option,
    seed_option,
    shared,
)
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import CALIBRATION


@dataclass(frozen=True)
class Probes:
    """The replays that are measured."""

    speed: float = option(type=SPEED, default=100.0, help="Trace seconds per wall second of the probes.")
    repetitions: int = option(type=click.IntRange(1, 1000), default=3, help="Number of replays of each probe.")


@dataclass(frozen=True)
class Fit:
    """The fit to recorded replays."""

    workloads: tuple[Path, ...] = option("--workload", help="Workload of the recorded replays RUN...; may be repeated.")
    loss: Literal["metrics", "jobs"] = shared(loss_option)
    budget: int = shared(budget_option("Number of sets of overheads to try in a fit."))
    seed: int = shared(seed_option)

    def calibration(self, runs: Sequence[Path], name: str) -> tb.Calibration:
        """Return overheads that are fitted to recorded runs (folders)."""
        loaded = {str(path): load_workload(path) for path in self.workloads}
        with progress(f"fitting to {len(runs)} runs", total=self.budget * len(loaded) ** 2) as bar:
            return tb.fit(
                loaded,
                [str(run) for run in runs],
                loss=self.loss,
                budget=self.budget,
                seed=self.seed,
                name=name,
                on_progress=bar.update,
            )


@click.command(cls=Sectioned, sections={"Fit to recorded replays": Fit})
@click.argument("runs", type=PATH, nargs=-1, metavar="[RUN...]")
@inventory_option(required=False)
@gathered("probes", Probes)
@gathered("fit", Fit)
@output_option("Calibration to write, a YAML file.", CALIBRATION)
@json_option
def calibrate(
    runs: tuple[Path, ...],
    inventory: Path | None,
    probes: Probes,
    fit: Fit,
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
    if fit.workloads and not runs:
        raise InputError("--workload is given without recorded replays", hint="add RUN..., or leave it out")
    if inventory is not None:
        end_on_signals()
    machine = None if inventory is None else tb.inventory(inventory)
    name = output.name.partition(".")[0]
    with CALIBRATION.file(output, replace=replace) as file:  # an output that cannot be written is reported first
        if machine is not None:
            with progress(f"calibrating {len(machine.nodes)} {machine.execution} nodes", total=1.0) as bar:
                made = tb.calibrate(machine, **vars(probes), on_progress=bar.update)
        else:
            made = fit.calibration(runs, name) if fit.workloads else tb.calibrate_batch(runs, name=name)
        file.write(made.text.encode())
    if as_json:
        print_json("tracebed-calibration/1", made.model_dump(mode="json", exclude={"file_schema"}))
    elif fit.workloads:
        show_fit(made)
    else:
        _show(made)


def _show(made: tb.Calibration) -> None:
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


def _factor(estimate: tb.OverheadEstimate) -> str:
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def _row(name: str, estimate: tb.OverheadEstimate, *, repeated: bool = True) -> tuple[str, ...]:
    repetitions = [" ".join(f"{1e3 * value:.3g}" for value in estimate.repetitions)] if repeated else []
    interval = f"{1e3 * estimate.low:.3g} to {1e3 * estimate.high:.3g}"
    return name.removesuffix("_s"), f"{1e3 * estimate.value:.3g}", interval, *repetitions, f"{estimate.count:,}"


def show_fit(made: tb.Calibration) -> None:
    """Print the fitted overheads with their ranges over the cloud, the losses, and the cross-validation."""
    record = made.fit
    assert record is not None
    print_table(
        ["overhead", "fitted, ms", "range over the cloud, ms", "identified"],
        [
            (
                name.removesuffix("_s"),
                f"{1e3 * item.value:.3g}",
                f"{1e3 * item.low:.3g} to {1e3 * item.high:.3g}",
                "given" if name in record.known else "yes" if name in record.identified else "no",
            )
            for name, item in made.overheads.items()
        ],
    )
    emit(
        f"loss ({record.loss}): {100 * record.value:.2f} %, without overheads {100 * record.without_overheads:.2f} %; "
        f"{len(made.cloud)} sets are within {100 * record.tolerance:.2f} % of it"
    )
    for fold in record.cross_validation:
        emit(
            f"fitted without {fold.workload}: loss {100 * fold.loss_in:.2f} %; for {fold.workload} "
            f"{100 * fold.loss_out:.2f} %, without overheads {100 * fold.loss_out_without:.2f} %"
        )
    if not record.cross_validation:
        emit("no cross-validation: it needs runs of at least two workloads")
    if record.without_effect:
        names = ", ".join(name.removesuffix("_s") for name in record.without_effect)
        emit(f"no effect on these runs, left at 0: {names}")
