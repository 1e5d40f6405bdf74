"""Experiments: workloads under policies and settings, simulated or replayed on testbeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pandas as pd

from tracebed.api.arguments import check_size
from tracebed.api.verdicts import Validation
from tracebed.ground.errors import InputError
from tracebed.ground.files import locked_folder
from tracebed.ground.progress import reporter
from tracebed.validation.experiments import runner
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.pools import LocalPool
from tracebed.validation.experiments.runner import predict_suite, replay_campaign
from tracebed.validation.experiments.suite import Predictions, Suite, load_suite
from tracebed.validation.experiments.suite import validate_suite as validations_of
from tracebed.validation.experiments.views.results import clear as clear_results
from tracebed.validation.experiments.views.results import write as write_results
from tracebed.validation.experiments.views.statistics import summarize as statistics_of
from tracebed.validation.verdict.gate import Gate


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
            plan = runner.plan(loaded, points, folder, paths)
            told = reporter(f"experiment {loaded.name}", len(plan.todo), on_progress)
            done = runner.run(loaded, plan, folder, pool, lambda done, total: told(done))
    for reason, failed in done.failed.items():
        if not len(done.table):
            raise InputError(f"no point could be computed: {reason}", where=str(file), hint=f"{len(failed):,} points")
    return done.table


def validate(
    file: Path | str,
    output: Path | str,
    *,
    simulators: Sequence[str] = (),
    case_pages: bool = True,
    on_progress: Callable[[float], None] | None = None,
) -> dict[str, Validation]:
    """Validate the simulators of an experiment with real runs: predict, replay, and decide. Resumes when interrupted.

    Args:
        file: the experiment file, with `simulators`, and a testbed or recorded runs.
        output: folder of the runs, the verdicts and the reports.
        simulators: names of the simulators to validate; by default all of the experiment.
        case_pages: whether to write a report for each case.
        on_progress: called periodically with the number of repetitions done in this call.

    Returns:
        simulator -> validation, in the order of the experiment.

    Raises:
        InputError: the experiment is invalid, `output` has replays of another one, or a simulator fails.
        KeyboardInterrupt: a signal ended a replay. The next call continues.

    Example:
        >>> from pathlib import Path
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> _ = tb.write(w, "w.parquet")
        >>> text = "workloads: {w: w.parquet}\\npolicies: [easy]\\nrepetitions: 2\\nsettle_s: 0\\n"
        >>> text += "testbed: {inventory: emulated-4, speed: 1e6}\\nsimulators: {tracebed: {}}\\n"
        >>> _ = Path("suite.yaml").write_text(text)
        >>> list(tb.validate("suite.yaml", "validation"))
        ['tracebed']
    """
    loaded, folder = load_experiment(str(file)), Path(output)
    suite = load_suite(loaded, loaded.selected({}), folder, {}, simulators)
    told = reporter(f"validating {loaded.name}", None, on_progress)
    validated = validate_suite(suite, folder, lambda: (run_suite(suite, folder, told), {}), case_pages=case_pages)
    for name, failure in validated.failed.items():
        raise InputError(f"simulator {name} failed: {failure}", where=str(file))
    return dict(validated.validations)


Validations: TypeAlias = Mapping[str, Validation]
"""Simulator -> its verdict."""


class SuiteVerdicts(NamedTuple):
    """The verdicts on the simulators of a suite."""

    validations: Validations
    failed: dict[str, str]
    """Simulator without a verdict -> why."""
    document: dict[str, Any]
    """The results as in verdict.json."""


def validate_suite(
    suite: Suite,
    folder: Path,
    execute: Callable[[], tuple[Predictions, dict[str, str]]],
    judge: Callable[[Validations, Mapping[str, str]], Gate] | None = None,
    *,
    case_pages: bool = True,
    on_step: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> SuiteVerdicts:
    """Predict and replay the cases of a suite, judge its simulators, and write the results to its folder.

    Args:
        suite: the suite.
        folder: its folder, which is locked meanwhile.
        execute: makes the predictions and replays that are not done; returns simulator -> failure, too.
        judge: called with the validations and with simulator -> why its predictions cannot be compared; returns the
            gate of the validations: what an inconclusive verdict means, and the differences from a baseline.
        case_pages: whether to write a report for each case.
        on_step: wraps each long step that follows, such as `comparing`.
    """
    with locked_folder(folder, "experiment"):
        clear_results(folder, suite.file.experiment.simulators)
        predictions, failed = execute()
        with on_step("comparing"):
            found, incomparable = validations_of(suite, predictions, folder)
        validations = {name: Validation.of(validation) for name, validation in found.items()}
        gate = judge(validations, incomparable) if judge else Gate([*validations.values()])
        failed = failed | incomparable
        with on_step("drawing the reports"):
            document = write_results(suite, replace(gate, failures=failed), folder, case_pages=case_pages)
    return SuiteVerdicts(validations, failed, document)


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
