"""Fit of overheads to real runs (docs/explanation/fitting.md).

Prior art: simcal, the calibration of simulators by automated search (McDonald, Horzela, Suter, Casanova: Automated
Calibration of Parallel and Distributed Computing Simulators: A Case Study, PDSEC 2024, arXiv 2403.13918): mean relative
error, parameters in a logarithmic space, and a budget. The cloud follows simcal's `LossCloud`, the sets of parameters
whose loss is below a limit. Here the limit follows from the noise of the repetitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracebed import bounds as accepted
from tracebed.converters.workload import FloatArray
from tracebed.validation.fitting.cases import FitCase
from tracebed.validation.fitting.evaluation import NAMES, Evaluator, Problem, Space, values_of
from tracebed.validation.fitting.loss import LossName
from tracebed.validation.fitting.search import LEAST_BUDGET, Search

BUDGET = 200
"""Default number of parameter sets to try."""
CLOUD_SIZE = 50
"""Largest number of sets in the cloud of a fit."""
IDENTIFIED = 2.0
"""A parameter is identified if its largest value in the cloud is at most this multiple of its smallest value."""


@dataclass(frozen=True)
class Range:
    """Values of a parameter over the cloud, wall s."""

    low: float
    median: float
    high: float

    @property
    def identified(self) -> bool:
        """Whether the real runs determine the parameter within a factor of `IDENTIFIED`."""
        return self.high <= IDENTIFIED * self.low


@dataclass(frozen=True)
class Member:
    """A parameter set of the cloud and its loss."""

    overheads: Mapping[str, float]
    """Wall s."""
    loss: float


@dataclass(frozen=True)
class Fold:
    """A fold of the cross-validation: a fit without the runs of one workload, applied to that workload."""

    workload: str
    overheads: Mapping[str, float]
    """Wall s."""
    loss_in: float
    """Loss for the workloads of the fit."""
    loss_out: float
    """Loss for the workload left out."""
    loss_out_without: float
    """Loss for the workload left out without overheads."""


@dataclass(frozen=True)
class Fit:
    """Overheads fitted to real runs."""

    cases: tuple[FitCase, ...]
    loss_name: LossName
    budget: int
    seed: int
    tolerance: float
    """Largest additional loss of a set of the cloud."""
    best: Member
    loss_without: float
    """Loss without overheads."""
    cloud: tuple[Member, ...]
    """At most `CLOUD_SIZE` sets that fit equally well, chosen far from each other. The first is the best."""
    ranges: Mapping[str, Range]
    """Parameter -> values over all sets that fit equally well, for the parameters that were searched."""
    known: Mapping[str, float]
    """Parameters that were given, wall s."""
    without_effect: tuple[str, ...]
    """Parameters that change no quantity of these runs. They are 0."""
    folds: tuple[Fold, ...]
    """A fold per workload; empty with fewer than two workloads."""
    sets: int
    """Number of parameter sets tried."""
    simulations: int
    """Number of simulations, cross-validation included."""

    @property
    def loss_in(self) -> float:
        """Mean loss of the folds for the workloads of their fits; NaN without cross-validation."""
        return float(np.mean([fold.loss_in for fold in self.folds])) if self.folds else float("nan")

    @property
    def loss_out(self) -> float:
        """Mean loss of the folds for the workloads left out; NaN without cross-validation."""
        return float(np.mean([fold.loss_out for fold in self.folds])) if self.folds else float("nan")


def fit(
    cases: Sequence[FitCase],
    *,
    loss: LossName = "metrics",
    budget: int = BUDGET,
    seed: int = 0,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    tolerance: float | None = None,
    on_simulation: Callable[[int], None] | None = None,
) -> Fit:
    """Fit overheads to the real runs of `cases`, and cross-validate the fit by workload.

    Args:
        cases: the cases, from `cases_of`.
        loss: `metrics` (mean relative error of the gated metrics) or `jobs` (of wait and response of each job).
        budget: number of parameter sets to try; each is simulated once per case. Each fold of the cross-validation
            has the same budget. Sets of the fit are not simulated again.
        seed: seed of the search. The same arguments give the same fit.
        bounds: parameter -> lower and upper bound, wall s. Default: `BOUNDS`. Equal bounds fix a known overhead.
        tolerance: largest additional loss of a set of the cloud. None: the loss of errors by the half-widths of the
            95 % intervals of the real means (docs/explanation/fitting.md).
        on_simulation: called after each simulation with the number of simulations so far.

    Raises:
        InputError: a parameter or loss is unknown, or a number is out of range.
    """
    accepted.check("budget", budget, LEAST_BUDGET, 1e9)
    if tolerance is not None:
        accepted.check("tolerance", tolerance, 0, 1e9)
    evaluator = Evaluator(cases, loss, on_simulation)
    space = Space.of(bounds or {}, max(case.info.speed for case in cases))

    def search(chosen: Sequence[int]) -> Search:
        problem = Problem(evaluator, tuple(chosen), space)
        return Search(problem, budget, seed, problem.tolerance if tolerance is None else tolerance).run()

    whole = search(range(len(cases)))
    cloud = np.array(whole.cloud)
    kept = spread_out(space.shares(cloud), CLOUD_SIZE)
    values = zip(NAMES, cloud.min(axis=0), np.median(cloud, axis=0), cloud.max(axis=0), strict=True)
    ranges = {name: Range(*map(float, row)) for name, *row in values}
    free, known = (dict(zip(NAMES, mask.tolist(), strict=True)) for mask in (whole.free, space.known))
    members = tuple(_member(whole, cloud[index]) for index in kept)
    return Fit(
        cases=tuple(cases),
        loss_name=loss,
        budget=budget,
        seed=seed,
        tolerance=whole.tolerance,
        best=members[0],
        loss_without=whole.problem.loss(np.zeros(len(NAMES))),
        cloud=members,
        ranges={name: ranges[name] for name in NAMES if free[name]},
        known={name: members[0].overheads[name] for name in NAMES if known[name]},
        without_effect=tuple(name for name in NAMES if not free[name] and not known[name]),
        folds=tuple(cross_validated(cases, search)),
        sets=whole.probes + len(whole.tried),
        simulations=evaluator.simulations,
    )


def cross_validated(cases: Sequence[FitCase], search: Callable[[Sequence[int]], Search]) -> list[Fold]:
    """Return the fold of each workload, or no folds if there are fewer than two workloads.

    Args:
        cases: the cases.
        search: returns the finished search for the cases with the given numbers.
    """
    workloads = {case.workload.sha256: case.name for case in cases}
    folds: list[Fold] = []
    if len(workloads) < 2:
        return folds
    for sha256, name in workloads.items():
        out = [number for number, case in enumerate(cases) if case.workload.sha256 == sha256]
        others = [number for number in range(len(cases)) if number not in out]
        found = search(others)
        left_out = Problem(found.problem.evaluator, tuple(out), found.problem.space)
        folds.append(
            Fold(
                workload=name,
                overheads=values_of(found.best),
                loss_in=found.loss(found.best),
                loss_out=left_out.loss(found.best),
                loss_out_without=left_out.loss(np.zeros(len(NAMES))),
            )
        )
    return folds


def spread_out(points: FloatArray, count: int) -> list[int]:
    """Return the indices of at most `count` points: the first, then always the point farthest from the chosen points.

    Args:
        points: shape (points, parameters).
        count: largest number of points.
    """
    chosen = [0]
    distance = np.linalg.norm(points - points[0], axis=1)
    while len(chosen) < min(count, len(points)):
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(points - points[chosen[-1]], axis=1))
    return chosen


def _member(search: Search, parameters: FloatArray) -> Member:
    return Member(values_of(parameters), search.loss(parameters))
