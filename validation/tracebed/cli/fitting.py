"""Fits of overheads to recorded runs, and the ranges of predictions over a cloud, for the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tracebed.cli.console import load_workload, print_table
from tracebed.cli.messages import emit, progress
from tracebed.errors import InputError

if TYPE_CHECKING:
    from tracebed.api import Calibration, Run


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
        InputError: no workload is given, or the runs cannot be fitted to.
    """
    import tracebed.api as tb

    if not workloads:
        raise InputError("no workload is given", hint="give the replayed workloads with --workload")
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
