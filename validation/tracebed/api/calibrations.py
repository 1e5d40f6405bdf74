"""Calibrations of testbeds: what replays there take time for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tracebed.api.results import AnyRun, loaded_run
from tracebed.converters.workload import Workload
from tracebed.ground.progress import reporter
from tracebed.orchestrator.calibrating import batch
from tracebed.orchestrator.testbeds.calibration import Calibration
from tracebed.validation import fitting


def calibrate_batch(runs: Sequence[AnyRun], *, name: str = "batch") -> Calibration:
    """Return what a batch system took time for in replays in which a policy decided: starts, ends and resizes.

    The runs record each step, so nothing is fitted. Simulations with the calibration predict other replays on the
    batch system.

    Args:
        runs: the replays (`replay_on` with a policy), or their folders. Each is a repetition.
        name: name of the calibration.

    Returns:
        the calibration. `Calibration.save` writes it.

    Raises:
        InputError: a run is not of such a replay, or is interrupted or unhealthy, or the runs differ in their system.

    Example:
        >>> import tracebed.api as tb
        >>> tb.calibrate_batch(["runs/slurm-1", "runs/slurm-2"]).save("slurm.calibration.yaml")  # doctest: +SKIP
    """
    loaded = [loaded_run(run) for run in runs]
    for run in loaded:
        fitting.check_usable(str(run.folder), run)
    return batch.calibrate_batch(loaded, name)


def fit(
    workloads: Workload | Sequence[Workload] | Mapping[str, Workload],
    runs: Sequence[AnyRun] | Mapping[str, AnyRun],
    *,
    loss: fitting.LossName = "metrics",
    budget: int = fitting.BUDGET,
    seed: int = 0,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    tolerance: float | None = None,
    name: str = "fit",
    on_progress: Callable[[int], None] | None = None,
) -> Calibration:
    """Fit the overheads of a testbed to replays of one or more workloads on it.

    Args:
        workloads: the replayed workloads; by name, or the name is a number.
        runs: the replays, or their folders; by name, or the name is the folder or a number. The workload of each is
            found by its hash. Replays of the same workload under the same policy are repetitions.
        loss: `metrics`, the mean relative error of the gated metrics, or `jobs`, that of wait and response of each job.
        budget: number of parameter sets to try. Each is simulated once per workload and policy.
        seed: seed of the search. The same arguments give the same fit.
        bounds: overhead -> lower and upper bound, wall s; by default from 0.1 ms to 10 s. Equal bounds fix a known one.
        tolerance: largest additional loss of a set of the cloud; by default it follows from the repetitions.
        name: name of the calibration.
        on_progress: called with the number of simulations so far.

    Returns:
        the calibration: fitted overheads, their ranges over the cloud, the `cloud` of sets that fit equally well, and
        the cross-validation in `fit`. `Calibration.save` writes it.

    Raises:
        InputError: a run is no complete and healthy replay, or its workload is missing; runs of different testbeds are
            mixed, or repetitions with different parameters; or an option is invalid.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> runs = [tb.replay(w, "easy", "emulated-4", speed=1e6) for _ in range(2)]
        >>> for run in runs:
        ...     run.info.health = {}  # the speed of this example is too high for a healthy run
        >>> made = tb.fit(w, runs, budget=40)
        >>> len(made.cloud) >= 1
        True
    """
    if isinstance(workloads, Workload):
        workloads = [workloads]
    if not isinstance(workloads, Mapping):
        workloads = {f"workload {number}": workload for number, workload in enumerate(workloads, 1)}
    if not isinstance(runs, Mapping):
        runs = {str(run) if isinstance(run, Path | str) else f"run {at}": run for at, run in enumerate(runs, 1)}
    loaded = {key: loaded_run(run) for key, run in runs.items()}
    cases = fitting.cases_of(workloads, loaded)
    told = reporter(f"fitting to {len(loaded)} runs", budget * len(loaded) ** 2, on_progress)
    found = fitting.fit(
        cases, loss=loss, budget=budget, seed=seed, bounds=bounds, tolerance=tolerance, on_simulation=told
    )
    return fitting.calibration_of(found, name)
