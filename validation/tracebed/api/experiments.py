"""Experiments: workloads under policies and settings, simulated or replayed on testbeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from tracebed.api.checks import check_size
from tracebed.api.progress import reporter
from tracebed.ground.errors import InputError
from tracebed.ground.files import locked_folder
from tracebed.studies.ledger import tornado
from tracebed.studies.ledger.ledger import Ledger
from tracebed.studies.ledger.ledger import of_findings as ledger_of_findings
from tracebed.studies.ledger.ledger import of_grid as ledger_of_grid
from tracebed.studies.ledger.page import (
    Counts,
    claim_texts,
    distance_text,
    ours_text,
    printed_text,
    reason_text,
)
from tracebed.studies.ledger.page import overview as overview_of
from tracebed.studies.ledger.page import page as page_of
from tracebed.studies.ledger.page import stored as stored_ledgers
from tracebed.studies.ledger.sensitivity import Analysis, Sensitivity, analysis, measure
from tracebed.studies.papers.base import PAPERS, Study
from tracebed.studies.papers.base import Settings as PaperSettings
from tracebed.studies.papers.base import is_done as is_replayed
from tracebed.studies.papers.base import shortest_s as shortest_replay_s
from tracebed.studies.papers.paper import load_paper, paper_of
from tracebed.studies.papers.paper import names as papers
from tracebed.validation.experiments import runner as grid
from tracebed.validation.experiments import store as cell_store
from tracebed.validation.experiments.experiment import Point
from tracebed.validation.experiments.file import ExperimentFile, load_experiment
from tracebed.validation.experiments.file import names as shipped
from tracebed.validation.experiments.pools import DaskPool, LocalPool, Pool
from tracebed.validation.experiments.runner import (
    Forecast,
    GridPlan,
    GridResult,
    forecast_suite,
    predict_suite,
    replay_campaign,
)
from tracebed.validation.experiments.simulators import SimulatorCalibration
from tracebed.validation.experiments.store import Attempt, has_replays
from tracebed.validation.experiments.suite import Predictions, Suite, load_suite, validate_suite
from tracebed.validation.experiments.views import plots
from tracebed.validation.experiments.views.artifact import Made
from tracebed.validation.experiments.views.artifact import write as write_artifact
from tracebed.validation.experiments.views.averages import GROUP, Against, against_first, intervals, is_perturbed, means
from tracebed.validation.experiments.views.results import clear as clear_results
from tracebed.validation.experiments.views.results import write as write_results
from tracebed.validation.experiments.views.statistics import Statistics
from tracebed.validation.experiments.views.statistics import summarize as statistics_of
from tracebed.validation.experiments.workloads import logs_of
from tracebed.validation.fitting import BUDGET, LossName
from tracebed.validation.fitting.simulators import fit_suite, to_fit

__all__ = [
    "GROUP",
    "PAPERS",
    "Against",
    "Analysis",
    "Attempt",
    "Counts",
    "DaskPool",
    "ExperimentFile",
    "Forecast",
    "GridPlan",
    "GridResult",
    "Ledger",
    "LocalPool",
    "Made",
    "PaperSettings",
    "Point",
    "Pool",
    "Predictions",
    "Sensitivity",
    "SimulatorCalibration",
    "Statistics",
    "Study",
    "Suite",
    "against_first",
    "analysis",
    "cell_store",
    "claim_texts",
    "clear_results",
    "distance_text",
    "experiment",
    "fit_simulator",
    "forecast_suite",
    "grid",
    "has_replays",
    "intervals",
    "is_perturbed",
    "is_replayed",
    "ledger_of_findings",
    "ledger_of_grid",
    "load_experiment",
    "load_paper",
    "load_suite",
    "logs_of",
    "means",
    "measure",
    "ours_text",
    "overview_of",
    "page_of",
    "paper_of",
    "papers",
    "plots",
    "predict_suite",
    "printed_text",
    "reason_text",
    "replay_campaign",
    "shipped",
    "shortest_replay_s",
    "statistics_of",
    "stored_ledgers",
    "tornado",
    "validate_suite",
    "write_artifact",
    "write_results",
]


def experiment(
    file: Path | str,
    output: Path | str,
    *,
    logs: Mapping[str, Path | str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
    workers: int | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> pd.DataFrame:
    """Run the cells of an experiment: simulate each once, or replay each several times. Resumes after an interruption.

    Args:
        file: name of an experiment that is part of tracebed (`tracebed experiment --list`), or path of a file.
        output: folder of the results.
        logs: workload of the experiment -> path of its log.
        only: key of a cell -> the values to run.
        workers: number of simulations at a time; by default one per core.
        on_progress: called with the number of cells or repetitions done in this call.

    Returns:
        Of simulated cells, a row per point and window: its keys (`workload`, `policy`, `share`, `seed`, ...) and the
        metrics. Of replays, a row per repetition that has a run, in the order of execution: `cell`, `repetition`,
        `session`, `started`, `seconds` (wall), `state`, `health`, `causes`, `signals` (of the outcome), and metrics.

    Raises:
        InputError: the experiment is invalid, a log is missing, no cell could be computed, a simulator fails, or
            `output` has replays of another experiment.
        KeyboardInterrupt: a signal ended a replay. The next call continues.

    Example:
        >>> from pathlib import Path
        >>> import tracebed.api as tb
        >>> text = "workloads: {small: {model: cirne, options: {jobs: 20, nodes: 16}}}\\npolicies: [fcfs, easy]\\n"
        >>> _ = Path("simulated.yaml").write_text(text)
        >>> sorted(tb.experiment("simulated.yaml", "simulated", workers=1)["policy"])
        ['easy', 'fcfs']
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> _ = tb.write(w, "w.parquet")
        >>> text = "workloads: {w: w.parquet}\\npolicies: [easy]\\nrepetitions: 2\\nsettle_s: 0\\n"
        >>> _ = Path("real.yaml").write_text(text + "testbed: {inventory: emulated-4, speed: 1e6}\\n")
        >>> list(tb.experiment("real.yaml", "real")["repetition"])
        [1, 2]
    """
    if workers is not None:
        check_size("workers", workers)
    loaded, folder = load_experiment(str(file)), Path(output)
    if loaded.experiment.recorded is not None:
        what = "the real runs are recorded: there is nothing to run"
        raise InputError(what, where=str(file), hint="validate the simulators: tb.validate")
    points = loaded.selected({key: list(values) for key, values in (only or {}).items()})
    paths = {name: Path(path) for name, path in (logs or {}).items()}
    with locked_folder(folder, "experiment"):
        if loaded.experiment.beds:
            suite = load_suite(loaded, points, folder, paths)
            run_suite(suite, folder, reporter(f"experiment {loaded.name}", None, on_progress))
            return statistics_of(folder).runs
        with LocalPool(workers) as pool:
            plan = grid.plan(loaded, points, folder, paths)
            told = reporter(f"experiment {loaded.name}", len(plan.todo), on_progress)
            done = grid.run(loaded, plan, folder, pool, lambda done, total: told(done))
    for reason, failed in done.failed.items():
        if not len(done.table):
            raise InputError(f"no point could be computed: {reason}", where=str(file), hint=f"{len(failed):,} points")
    return done.table


def fit_simulator(
    file: Path | str,
    output: Path | str,
    *,
    only: Mapping[str, Sequence[str]] | None = None,
    loss: LossName = "metrics",
    budget: int = BUDGET,
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


def run_suite(suite: Suite, folder: Path, on_progress: Callable[[float], None]) -> Predictions:
    """Make the predictions and the replays of a suite that are not done. Raises InputError if a simulator fails."""
    suite.file.write(folder)
    predictions, failed = predict_suite(suite, folder)
    if failed:
        name, failure = next(iter(failed.items()))
        raise InputError(f"simulator {name} failed: {failure}", where=suite.file.source.where)
    if suite.campaign is not None:
        replay_campaign(suite.campaign, folder, lambda done, _: on_progress(done))
    return predictions
