"""Suites of experiment files, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracebed.ground.files import locked_folder
from tracebed.validation.experiments import runner
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.suite import Suite, load_suite


def suite_of(path: Path | str, output: Path | str = "out", only: Sequence[str] = ()) -> Suite:
    """Return the suite of an experiment file with real runs."""
    file = load_experiment(str(path))
    return load_suite(file, file.selected({}), Path(output), {}, only)


def run_suite(path: Path | str, output: Path) -> None:
    """Make the predictions and the replays of an experiment, without statistics and verdicts."""
    with locked_folder(output, "experiment"):
        suite = suite_of(path, output)
        runner.predict_suite(suite, output)
        if suite.campaign is not None:
            runner.replay_campaign(suite.campaign, output)
