"""Fits to real runs, and the ranges of predictions over a cloud, for the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tracebed.cli.console import load_workload, print_json, print_table
from tracebed.cli.messages import emit, progress, warn
from tracebed.cli.options import budget_option, gathered, loss_option, seed_option
from tracebed.ground.errors import InputError

if TYPE_CHECKING:
    from tracebed.api import Calibration, Run
    from tracebed.api.experiments import SimulatorCalibration


def fit_to_runs(
    runs: Sequence[Path],
    workloads: Sequence[Path],
    *,
    loss: Literal["metrics", "jobs"],
    budget: int,
    seed: int,
    name: str,
) -> Calibration:
    """Fit overheads to recorded runs.

    Args:
        runs: folders of replays.
        workloads: files of the replayed workloads.
        loss, budget, seed, name: as for `tracebed.api.fit`.

    Raises:
        InputError: the runs cannot be fitted to.
    """
    import tracebed.api as tb

    loaded = {str(path): load_workload(path) for path in workloads}
    with progress(f"fitting to {len(runs)} runs", total=budget * len(loaded) ** 2) as bar:
        return tb.fit(
            loaded, [str(run) for run in runs], loss=loss, budget=budget, seed=seed, name=name, on_progress=bar.update
        )


def show_fit(made: Calibration) -> None:
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


def cloud_of(calibration: Path) -> list[Calibration]:
    """Return the calibrations of the cloud of a file. Raises InputError if the calibration has no cloud."""
    from tracebed.api import Calibration

    members = Calibration.load(calibration).members
    if not members:
        hint = "`tracebed nodes calibrate RUN...` writes calibrations with a cloud"
        raise InputError("the calibration has no cloud", where=str(calibration), hint=hint)
    return members


def show_cloud(run: Run, predicted: Iterable[Run]) -> None:
    """Print the metrics of a prediction with their ranges over a cloud.

    Args:
        run: the prediction.
        predicted: the predictions with the sets of the cloud, one at a time since each may be large.
    """
    import tracebed.api as tb

    figures = [each.metrics() for each in predicted]
    own = run.metrics()
    rows = []
    for name, metric in tb.metric_definitions().items():
        if metric.margin is not None and metric.margin.gate:
            values = [each[name] for each in figures]
            rows.append((metric.title, own[name], min(values), max(values)))
    print_table(["metric", "prediction", "least", "largest"], rows)
    emit(f"least and largest of {len(figures)} sets of overheads that fit the calibration's runs equally well")


# -- parameters of a simulator


@dataclass(frozen=True)
class Fitting:
    """The options of a fit of a simulator."""

    fit: bool
    loss: Literal["metrics", "jobs"]
    budget: int
    seed: int
    workers: int | None


FIT_SETTINGS = ("loss", "budget", "seed", "workers")
"""Parameters of the options that apply with `--fit` only."""


fit_options = gathered(
    "fitting",
    Fitting,
    click.option(
        "--fit",
        is_flag=True,
        help="Validate nothing: fit the `parameters` of a simulator with a `command` to the real runs.",
    ),
    loss_option,
    budget_option("Number of parameter sets to try in a fit, and as many by random search."),
    seed_option,
    click.option(
        "--workers",
        type=click.IntRange(1),
        help="Number of simulations of a fit at a time.  [default: the number of cores]",
    ),
)
"""`--fit`, `--loss`, `--budget`, `--seed` and `--workers`."""


def fit_simulator(
    file: Path, output: Path, only: Mapping[str, Sequence[str]], fitting: Fitting, *, as_json: bool
) -> None:
    """Fit the parameters of a simulator of an experiment, and print the result.

    Args:
        file, output, only: as for `tracebed.api.experiments.fit_simulator`.
        fitting: the options.
        as_json: whether the result is printed as JSON.

    Raises:
        InputError: the parameters cannot be fitted.
    """
    from tracebed.api import experiments

    try:
        with progress(f"fitting with {file.name}", total=1.0) as bar:
            made = experiments.fit_simulator(
                file,
                output,
                only=only,
                loss=fitting.loss,
                budget=fitting.budget,
                seed=fitting.seed,
                workers=fitting.workers,
                on_progress=bar.update,
            )
    except KeyboardInterrupt:
        emit(f"tracebed: the finished simulations are in {output}; the same command continues the fit")
        raise
    if as_json:
        print_json(made.file_schema, made.model_dump(mode="json", exclude={"file_schema"}))
    else:
        show_simulator_fit(made)
        emit(f"calibration: {output / 'calibrated' / f'{made.name}.yaml'}")
    warn_of_fit(made)


def show_simulator_fit(made: SimulatorCalibration) -> None:
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


def warn_of_fit(made: SimulatorCalibration) -> None:
    """Print what the fit does not determine."""
    tied = {name for pair in made.tied for name in pair.parameters}
    for name, each in made.parameters.items():
        if each.at_end and name not in tied:  # the end of a range says nothing of two parameters with one effect
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
