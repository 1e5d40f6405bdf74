"""`tracebed calibrate`: the parameters of a simulator, fitted to the real runs of an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import emit, progress, warn
from tracebed.cli.options import PATH, STORE, budget_option, json_option, loss_option, output_option, seed_option

if TYPE_CHECKING:
    from tracebed.api.experiments import SimulatorCalibration


@click.command()
@click.argument("file", type=PATH, metavar="FILE")
@click.option(
    "--only",
    multiple=True,
    metavar="KEY=VALUE[,VALUE]",
    help="Calibrate this simulator (simulator=NAME), and fit to these cells only (workload=mine); may be repeated.",
)
@loss_option
@budget_option("Number of parameter sets to try, and as many by random search.")
@seed_option
@click.option(
    "--workers", type=click.IntRange(1), help="Number of simulations at a time.  [default: the number of cores]"
)
@output_option("Folder of the calibration, and of the real runs if they are replays.", STORE)
@json_option
def calibrate(
    file: Path,
    only: tuple[str, ...],
    loss: Literal["metrics", "jobs"],
    budget: int,
    seed: int,
    workers: int | None,
    output: Path,
    as_json: bool,
) -> None:
    """Fit the parameters of a simulator to real runs: FILE has a `command`, its `parameters`, and the real runs.

    The calibration is OUTPUT/calibrated/NAME.yaml. `tracebed validate` uses it if FILE names it as the `calibration` of
    the simulator, and bases no verdict on the workloads of the fit. These are the workloads with `calibration: true`,
    or else all. The same command continues an interrupted calibration. `tracebed nodes calibrate` measures the
    overheads of nodes.

    \b
    Example:
      tracebed calibrate suite.yaml -o validation
    """
    from tracebed.cli.runs import end_on_signals

    end_on_signals()
    from tracebed.api.experiments import calibrate_simulator
    from tracebed.cli.experiments.options import chosen

    try:
        with progress(f"calibrating with {file.name}", total=1.0) as bar:
            made = calibrate_simulator(
                file,
                output,
                only=chosen("--only", only),
                loss=loss,
                budget=budget,
                seed=seed,
                workers=workers,
                on_progress=bar.update,
            )
    except KeyboardInterrupt:
        emit(f"tracebed: the finished simulations are in {output}; the same command continues the calibration")
        raise
    if as_json:
        print_json(made.file_schema, made.model_dump(mode="json", exclude={"file_schema"}))
    else:
        _show(made)
        emit(f"calibration: {output / 'calibrated' / f'{made.name}.yaml'}")
    _warn(made)


def _show(made: SimulatorCalibration) -> None:
    """Print the fitted parameters with their ranges over the cloud, the losses, and the cross-validation."""
    print_table(
        ["parameter", "fitted", "range over the cloud", "identified", "searched"],
        [
            (
                name,
                f"{each.value:.4g}",
                f"{each.low:.4g} to {each.high:.4g}",
                "yes" if each.identified else "no",
                f"{each.range[0]:g} to {each.range[1]:g}, {each.scale}{', integer' * each.integer}",
            )
            for name, each in made.parameters.items()
        ],
    )
    print_table(
        ["loss", "search, fitted", "random, fitted", "search, left out", "random, left out"],
        [
            ("all workloads", _percent(made.search_value), _percent(made.random_value), "-", "-"),
            *(
                (
                    f"without {fold.workload}",
                    _percent(fold.loss_in),
                    _percent(fold.loss_in_random),
                    _percent(fold.loss_out),
                    _percent(fold.loss_out_random),
                )
                for fold in made.cross_validation
            ),
        ],
    )
    emit(
        f"{made.cloud_sets} parameter sets are within {100 * made.tolerance:.3g} % of the smallest loss; "
        f"{made.simulations:,} simulations, {made.failures.simulations:,} failed"
    )
    if not made.cross_validation:
        emit("no cross-validation: it needs real runs of at least two workloads")
    click.echo(made.fitted)


def _warn(made: SimulatorCalibration) -> None:
    """Print what the fit does not determine."""
    for name, each in made.parameters.items():
        if each.at_end:
            end = each.range[each.at_end == "upper"]
            warn(f"{name} is at the {each.at_end} end of its range, {end:g}: a wider range may fit better")
    for pair in made.tied:
        one, other = pair.parameters
        warn(f"{one} and {other} cannot be told apart: their correlation over the cloud is {pair.correlation:+.2f}")
    if made.without_effect:
        warn(f"no effect on these runs, left at the lower ends: {', '.join(made.without_effect)}")
    if made.random_value is not None and made.random_value < made.search_value:
        warn("the random search found a better set, which is the result: raise --budget")
    if made.failures.simulations:
        warn(f"{made.failures.simulations:,} simulations failed, such as: {made.failures.first}")


def _percent(loss: float | None) -> str:
    return "failed" if loss is None else f"{100 * loss:.3g} %"
