"""Calibrations: what replays on a testbed take time for, and parameters of simulators, fitted to real runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tracebed.api.arguments import check_size
from tracebed.api.results import AnyRun, loaded_run
from tracebed.converters.workload import Workload
from tracebed.ground.files import locked_folder
from tracebed.ground.progress import reporter
from tracebed.orchestrator.calibrating import batch
from tracebed.orchestrator.testbeds.calibration import Calibration
from tracebed.validation import fitting
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.pools import LocalPool
from tracebed.validation.experiments.simulators import SimulatorCalibration
from tracebed.validation.experiments.suite import load_suite
from tracebed.validation.fitting.simulators import fit_suite, to_fit


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


def fit_simulator(
    file: Path | str,
    output: Path | str,
    *,
    only: Mapping[str, Sequence[str]] | None = None,
    loss: fitting.LossName = "metrics",
    budget: int = fitting.BUDGET,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> SimulatorCalibration:
    """Fit the parameters of a simulator of an experiment to the real runs of its cases. Resumes after an interruption.

    Args:
        file: the experiment. The simulator has a `command` and `parameters` with ranges.
        output: folder of the calibration (`calibrated/NAME.yaml`), and of the real runs if these are replays.
        only: `simulator` -> its name, if several have parameters; key of a cell -> the values to fit to. Without
            workloads, the cases are those of the workloads with `calibration: true`, if there are any.
        loss: `metrics`, the mean relative error of the gated metrics, or `jobs`, that of wait and response of each job.
        budget: number of parameter sets to try, and of those of a random search.
        seed: seed of both searches. The same arguments give the same calibration, with any number of workers.
        workers: number of simulations at a time; by default one per core.
        on_progress: called with the share of the simulations that is done.

    Raises:
        InputError: the experiment is invalid, has no such simulator, or lacks a usable real run, or the simulator fails
            with all parameter sets.
    """
    if workers is not None:
        check_size("workers", workers)
    wanted = {key: list(values) for key, values in (only or {}).items()}
    loaded, name = to_fit(load_experiment(str(file)), wanted.pop("simulator", ()))
    points, folder = loaded.selected(wanted), Path(output)
    with locked_folder(folder, "experiment"), LocalPool(workers) as pool:
        suite = load_suite(loaded, points, folder, {}, [name])
        return fit_suite(
            suite,
            name,
            folder,
            pool,
            loss=loss,
            budget=budget,
            seed=seed,
            workers=pool.workers,
            on_progress=reporter(f"fitting {name}", 1.0, on_progress),
        )
