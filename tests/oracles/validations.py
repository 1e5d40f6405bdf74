"""Validations of a synthetic simulator, whose error is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from tests.runs import fcfs_run
from tracebed.orchestrator.run import Run
from tracebed.validation.verdict import Case, SimulatorFacts, Tolerances, Validation, validate

JOBS = 30


@cache
def real_runs(seed: int, repetitions: int = 5, *, noise: float = 0.002) -> tuple[Run, ...]:
    """Return repetitions of a workload, whose run times differ by a factor with this standard deviation."""
    factors = 1 + noise * np.random.default_rng(seed).standard_normal(repetitions)
    return tuple(
        fcfs_run(JOBS, seed=seed, stretch=float(factor), sha256=f"{seed:064x}", source="replay") for factor in factors
    )


@cache
def predicted_run(seed: int, stretch: float = 1.0) -> Run:
    """Return a prediction of this workload, with run times that are wrong by a factor."""
    return fcfs_run(JOBS, seed=seed, stretch=stretch, real=False, sha256=f"{seed:064x}")


def make_validation(
    stretches: Mapping[str, float] | None = None,
    *,
    name: str = "mine",
    repetitions: int = 5,
    noise: float = 0.002,
    tolerances: Tolerances | None = None,
    calibration: Sequence[str] = (),
) -> Validation:
    """Return the validation of a simulator.

    `stretches`: case (`w1-fcfs`, ...) -> factor on the run times of the prediction. `calibration`: cases on which the
    simulator was calibrated.
    """
    found = tuple((stretches or {"w1-fcfs": 1.0, "w2-fcfs": 1.0}).items())
    if tolerances is None:
        return _usual(found, name, repetitions, noise, tuple(calibration))
    return _validated(found, name, repetitions, noise, tuple(calibration), tolerances)


def _validated(
    stretches: tuple[tuple[str, float], ...],
    name: str,
    repetitions: int,
    noise: float,
    calibration: tuple[str, ...],
    tolerances: Tolerances | None = None,
) -> Validation:
    cases = [
        Case(
            case,
            case.partition("-")[0],
            "fcfs",
            real_runs(int(case[1]), repetitions, noise=noise),
            (predicted_run(int(case[1]), stretch),),
            calibration=case in calibration,
        )
        for case, stretch in stretches
    ]
    return validate(cases, tolerances, simulator=SimulatorFacts(name, "1.2", "0" * 64, len(cases)))


_usual = cache(_validated)  # many tests look at the same validation


SUITE = """workloads: [w1, w2]
policies: [fcfs]
recorded: "real/{workload}-{policy}/rep-*"
simulators:
  mine: {runs: "mine/{workload}-{policy}"}
"""


def write_suite(folder: Path, stretch: float = 1.0, *, repetitions: int = 5) -> Path:
    """Write recorded real runs, predictions that are wrong by a factor, and their suite file; return the file."""
    for seed in (1, 2):
        for number, run in enumerate(real_runs(seed, repetitions), 1):
            run.save(folder / "real" / f"w{seed}-fcfs" / f"rep-{number:02d}")
        predicted_run(seed, stretch).save(folder / "mine" / f"w{seed}-fcfs")
    file = folder / "suite.yaml"
    file.write_text(SUITE)
    return file
