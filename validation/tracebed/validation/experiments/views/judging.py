"""Execution of a suite: predictions, replays, and the validation of each simulator.

    OUTPUT/experiment.yaml                   the experiment file
    OUTPUT/real/                             the replays: CASE/rep-01, ...
    OUTPUT/predicted/SIMULATOR/CASE          a prediction; with several seeds CASE/run-01, ...
    OUTPUT/predicted/SIMULATOR/CASE.json     everything on which the prediction depends, with its hash

A repetition or prediction that is done is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tracebed.ground.errors import InputError, TracebedError
from tracebed.orchestrator.run import Run
from tracebed.validation.experiments.predicted.suite import Suite, SuiteCase
from tracebed.validation.experiments.real import runner as replays
from tracebed.validation.experiments.real import store
from tracebed.validation.experiments.real.campaign import Campaign
from tracebed.validation.experiments.real.store import Attempt
from tracebed.validation.verdict import Validation, validate
from tracebed.validation.verdict.cases import Case

PREDICTED = "predicted"
Predictions = dict[str, dict[str, tuple[Run, ...]]]
"""Simulator -> case -> its predictions."""


@dataclass(frozen=True)
class Forecast:
    """The remaining work of a suite, and its duration."""

    cases: int
    repetitions: int
    """Number of repetitions of all cases; recorded runs too."""
    to_replay: int
    """Number of repetitions that are not done."""
    shortest_s: float
    """Lower bound of the wall time of the replays, with the pauses between them, s."""
    to_predict: dict[str, int]
    """Simulator -> number of predictions to be made."""


def forecast(suite: Suite, folder: Path) -> Forecast:
    """Return the remaining work of a suite with the output folder `folder`, which may be missing.

    Raises:
        InputError: a run in the folder is damaged.
    """
    to_predict = {
        name: sum(simulator.missing(case.task, _place(folder, name, case)) for case in suite.cases.values())
        for name, simulator in suite.simulators.items()
    }
    if suite.campaign is None:
        count = sum(len(case.recorded) for case in suite.cases.values())
        return Forecast(len(suite.cases), count, 0, 0.0, to_predict)
    plan = replays.remaining(suite.campaign, folder / store.REAL)
    return Forecast(len(suite.cases), plan.done + len(plan.todo), len(plan.todo), plan.shortest_s, to_predict)


def predict(
    suite: Suite, folder: Path, on_progress: Callable[[int], None] | None = None
) -> tuple[Predictions, dict[str, str]]:
    """Make the missing predictions, and read the others.

    A simulator that fails does not end the suite.

    Args:
        folder: the output folder, locked by `files.locked_folder`.
        on_progress: called with the number of cases that are predicted, over all simulators.

    Returns:
        the predictions of the simulators without failure; and simulator -> failure.
    """
    found: Predictions = {}
    failed: dict[str, str] = {}
    done = 0
    for name, simulator in suite.simulators.items():
        found[name] = {}
        for case in suite.cases.values():
            try:
                found[name][case.name] = simulator.predictions(case.task, _place(folder, name, case))
            except TracebedError as error:
                failed[name] = f"{case.name}: {error}"
                del found[name]
                break
            done += 1
            if on_progress is not None:
                on_progress(done)
    return found, failed


def replay(
    campaign: Campaign, folder: Path, on_progress: Callable[[float, Attempt | None], None] | None = None
) -> list[Attempt]:
    """Carry out the missing replays, as `real.runner.repeat`.

    Raises:
        InputError: the folder belongs to a suite with other cases.
        KeyboardInterrupt: a signal ended a replay. The next call continues.
    """
    return replays.repeat(campaign, replays.remaining(campaign, folder / store.REAL), folder / store.REAL, on_progress)


def validations(suite: Suite, predictions: Predictions, folder: Path) -> tuple[dict[str, Validation], dict[str, str]]:
    """Return simulator -> validation over the cases of the suite; and simulator -> why its runs cannot be compared.

    Raises:
        InputError: a case has no real run, or the noise profile is that of other testbeds.
    """
    found: dict[str, Validation] = {}
    failed: dict[str, str] = {}
    tau = suite.file.experiment.tau
    for name, cases in cases_of(suite, predictions, folder).items():
        if suite.noise is not None:
            for case in cases:
                suite.noise.require(case.real[0].info, tau)
        try:
            made = validate(cases, suite.tolerances, profile=suite.noise, tau=tau)
        except InputError as error:
            failed[name] = f"its predictions cannot be compared: {error}"
            continue
        version = suite.simulators[name].spec.version or made.simulator.version
        found[name] = replace(made, simulator=replace(made.simulator, name=name, version=version))
    return found, failed


def cases_of(suite: Suite, predictions: Predictions, folder: Path) -> dict[str, list[Case]]:
    """Return simulator -> the cases of the suite with the predictions of the simulator.

    Raises:
        InputError: a case has no run.
    """
    real = {name: case.recorded or replayed(suite, name, folder) for name, case in suite.cases.items()}
    return {
        name: [
            Case(
                case.name,
                case.workload,
                case.task.names["policy"],
                tuple(real[case.name].values()),
                predicted[case.name],
                case.calibration,
                tuple(real[case.name]),
                case.cluster,
            )
            for case in suite.cases.values()
        ]
        for name, predicted in predictions.items()
    }


def replayed(suite: Suite, case: str, folder: Path) -> dict[str, Run]:
    """Return name -> run of the repetitions of a case that are done, in the order of execution."""
    assert suite.campaign is not None
    slots = [slot for slot in suite.campaign.order if slot.cell == case]
    runs = {Path(slot.folder).name: store.run_of(slot, folder / store.REAL) for slot in slots}
    return {name: run for name, run in runs.items() if run is not None}


def _place(folder: Path, simulator: str, case: SuiteCase) -> Path:
    """Return the folder of the predictions of a case by a simulator."""
    return folder / PREDICTED / simulator / case.name
