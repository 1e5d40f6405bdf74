"""Fit of the parameters of a simulator to real runs (docs/explanation/fitting.md).

Prior art: simcal, the calibration of simulators by automated search (McDonald, Horzela, Suter, Casanova: Automated
Calibration of Parallel and Distributed Computing Simulators: A Case Study, PDSEC 2024, arXiv 2403.13918): mean relative
error, parameters in a logarithmic space, and a budget. The cloud follows simcal's `LossCloud`, the sets of parameters
whose loss is below a limit. Here the limit follows from the noise of the repetitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from typing import Literal

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground import bounds as accepted
from tracebed.ground.version import version
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.testbeds.calibration import Calibration, FitFold, FitRecord, FittedRuns, OverheadEstimate
from tracebed.validation.fitting.cases import FitCase
from tracebed.validation.fitting.evaluation import Evaluator, Key, Problem, Space, overheads
from tracebed.validation.fitting.loss import LossName, Target
from tracebed.validation.fitting.search import Search, least_budget
from tracebed.validation.metrics import MeasuredRun

BUDGET = 200  # default number of parameter sets to try
CLOUD_SIZE = 50  # largest number of sets in the cloud of a fit
IDENTIFIED = 2.0  # a parameter is identified if its largest value in the cloud is at most this multiple of the smallest
IDENTIFIED_SHARE = 0.1  # a parameter with a linear scale is identified if the cloud has at most this share of its range
TIED = 0.8  # smallest correlation over the cloud (absolute) of two parameters that cannot be told apart
AT_END = 0.01  # a value is at the end of a range within this share of the range, in the scale of the search
LEAST_CLOUD = 8  # smallest number of sets of a cloud for which correlations are computed


@dataclass(frozen=True)
class Range:
    """Values of a parameter over the cloud."""

    low: float
    median: float
    high: float
    # Whether the real runs determine the parameter: within a factor of `IDENTIFIED`, or `IDENTIFIED_SHARE`.
    identified: bool
    at_end: Literal["", "lower", "upper"]  # the end of the accepted range at which the best value is


@dataclass(frozen=True)
class Member:
    """A parameter set and its loss."""

    values: Mapping[str, float]
    loss: float


@dataclass(frozen=True)
class Fold:
    """A fold of the cross-validation: a fit without the runs of one workload, applied to that workload."""

    workload: str
    values: Mapping[str, float]
    loss_in: float  # loss for the workloads of the fit
    loss_out: float  # loss for the workload left out
    loss_in_beside: float  # loss for the workloads of the fit, of the best set beside the search
    loss_out_beside: float  # loss for the workload left out, of the same set


@dataclass(frozen=True)
class Fit:
    """Parameters of a simulator fitted to real runs."""

    cases: tuple[FitCase, ...]
    loss_name: LossName
    budget: int
    seed: int
    tolerance: float  # largest additional loss of a set of the cloud
    best: Member
    searched: float  # loss of the best set of the search
    beside: Member  # the best set beside the search: that without overheads, or that of the random search
    # At most `CLOUD_SIZE` sets that fit equally well, chosen far from each other. The first is the best.
    cloud: tuple[Member, ...]
    cloud_sets: int  # number of all sets that fit equally well
    # Parameter -> values over all sets that fit equally well, for the parameters that were searched.
    ranges: Mapping[str, Range]
    # Pairs of parameters that cannot be told apart, with their correlation over the cloud.
    tied: tuple[tuple[str, str, float], ...]
    known: Mapping[str, float]  # parameters that were given
    # Parameters that change no quantity of these runs. They are absent, or at the lower bound.
    without_effect: tuple[str, ...]
    folds: tuple[Fold, ...]  # a fold per workload; empty with fewer than two workloads
    sets: int  # number of parameter sets tried
    simulations: int  # number of simulations, cross-validation included
    failures: Mapping[Key, str]  # case and parameter set of each simulation that failed -> why

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

    The loss is `metrics` (mean relative error of the gated metrics) or `jobs` (of wait and response of each job). The
    budget is the number of parameter sets to try, also in each fold; sets are not simulated again. Bounds are wall s;
    equal ones fix a known overhead. Without a tolerance, the largest additional loss of a set of the cloud is that of
    errors by the half-widths of the 95 % intervals of the real means (docs/explanation/fitting.md).
    """
    targets = [Target.of(case, loss) for case in cases]
    space = overheads(bounds or {}, max(case.info.speed for case in cases))

    def simulated(keys: Sequence[Key]) -> Iterator[tuple[Key, FloatArray]]:
        for key in keys:
            number, values = key
            run = cases[number].predict(Overheads(**dict(zip(space.names, values, strict=True))))
            yield key, targets[number].measure(MeasuredRun(run))

    evaluator = Evaluator(targets, simulated, on_simulation)
    none = np.zeros((1, len(space.names)))
    return fit_parameters(
        cases, evaluator, space, none, loss=loss, budget=budget, seed=seed, tolerance=tolerance, workers=1
    )


def random_sets(space: Space, count: int, seed: int) -> FloatArray:
    """Return the sets of a random search, uniform in the scales of the parameters, shape (count, parameters)."""
    shares = np.random.default_rng([seed, 1]).uniform(size=(count, len(space.names)))
    return np.array([np.clip(space.rounded(each), space.low, space.high) for each in space.at(shares)])


def fit_parameters(
    cases: Sequence[FitCase],
    evaluator: Evaluator,
    space: Space,
    beside: FloatArray,
    *,
    loss: LossName,
    budget: int,
    seed: int,
    tolerance: float | None,
    workers: int,
) -> Fit:
    """Fit the parameters of a simulator to the real runs of `cases`, and cross-validate the fit by workload.

    `beside`: sets to compare the fit with, shape (sets, parameters). With several workers, the fit and its folds are
    searched together. Other arguments as for `fit`.
    """
    accepted.check("budget", budget, least_budget(len(space.names)), 1e9)
    if tolerance is not None:
        accepted.check("tolerance", tolerance, 0, 1e9)

    def search(chosen: tuple[int, ...]) -> Search:
        problem = Problem(evaluator, chosen, space)
        return Search(problem, budget, seed, problem.tolerance if tolerance is None else tolerance).run()

    everything = tuple(range(len(cases)))
    left_out = folds_of(cases)
    chosen = [everything, *(tuple(set(everything) - set(out)) for out in left_out.values())]
    compare = partial(Problem(evaluator, everything, space).prefetch, beside)
    if workers > 1:
        threads = ThreadPoolExecutor(len(chosen) + 1)
        try:
            searches, comparison = [threads.submit(search, each) for each in chosen], threads.submit(compare)
            searched_folds = [each.result() for each in searches]
            comparison.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # after an error, the pool ends what they wait for
    else:
        searched_folds = list(map(search, chosen))
        compare()
    whole = searched_folds[0]
    sets, least = whole.probes + len(whole.tried), whole.loss(whole.best)
    compared = _best_of(beside, whole.problem)
    for each in beside:
        if space.contains(each) and np.array_equal(whole.set_of(each), each):
            whole.loss(each)  # sets beside the search that fit as well are part of the cloud
    cloud = np.array(whole.cloud)
    spread = cloud[spread_out(space.shares(cloud), CLOUD_SIZE)]
    members = tuple(Member(space.by_name(parameters), whole.loss(parameters)) for parameters in spread)
    searched = [index for index in range(len(space.names)) if whole.free[index]]
    return Fit(
        cases=tuple(cases),
        loss_name=loss,
        budget=budget,
        seed=seed,
        tolerance=whole.tolerance,
        best=members[0],
        searched=least,
        beside=Member(space.by_name(compared), whole.problem.loss(compared)),
        cloud=members,
        cloud_sets=len(cloud),
        ranges={space.names[index]: _range(space, cloud, index) for index in searched},
        tied=tuple(_tied(space, cloud, searched)),
        known={name: members[0].values[name] for name in np.array(space.names)[space.known].tolist()},
        without_effect=tuple(np.array(space.names)[~whole.free & ~space.known].tolist()),
        folds=tuple(
            _fold(cases[out[0]].name, each, _best_of(beside, each.problem), out)
            for out, each in zip(left_out.values(), searched_folds[1:], strict=True)
        ),
        sets=sets,
        simulations=evaluator.simulations,
        failures=evaluator.failures,
    )


def folds_of(cases: Sequence[FitCase]) -> dict[str, list[int]]:
    """Return hash of a workload -> numbers of its cases; empty if there are fewer than two workloads."""
    folds: dict[str, list[int]] = {}
    for number, case in enumerate(cases):
        folds.setdefault(case.workload.sha256, []).append(number)
    return folds if len(folds) > 1 else {}


def _fold(workload: str, found: Search, beside: FloatArray, out: Sequence[int]) -> Fold:
    """Return the fold of a search without the cases `out`; `beside` is the best set beside the search."""
    left_out = Problem(found.problem.evaluator, tuple(out), found.problem.space)
    return Fold(
        workload=workload,
        values=found.problem.space.by_name(found.best),
        loss_in=found.loss(found.best),
        loss_out=left_out.loss(found.best),
        loss_in_beside=found.problem.loss(beside),
        loss_out_beside=left_out.loss(beside),
    )


def _best_of(sets: FloatArray, problem: Problem) -> FloatArray:
    """Return the set with the smallest loss."""
    return min(sets, key=problem.loss)


def _range(space: Space, cloud: FloatArray, index: int) -> Range:
    """Return the values of a parameter over the cloud, whose first set is the best."""
    values, shares = cloud[:, index], space.shares(cloud)[:, index]
    low, high = float(values.min()), float(values.max())
    identified = high <= IDENTIFIED * low if space.log[index] else bool(np.ptp(shares) <= IDENTIFIED_SHARE)
    end: Literal["", "lower", "upper"] = "lower" if shares[0] <= AT_END else "upper" if shares[0] >= 1 - AT_END else ""
    return Range(low, float(np.median(values)), high, identified, end)


def _tied(space: Space, cloud: FloatArray, searched: Sequence[int]) -> Iterator[tuple[str, str, float]]:
    """Yield pairs of parameters that vary together over the cloud, with their correlation."""
    # The stronger one of two: of the values, which shows sums, and in the scales of the search, which shows products.
    wide = [index for index in searched if not _range(space, cloud, index).identified]
    if len(cloud) < LEAST_CLOUD:
        return
    for one, other in combinations(wide, 2):
        pairs = [values[:, [one, other]] for values in (cloud, space.shares(cloud))]
        correlations = [float(np.corrcoef(*pair.T).item(1)) for pair in pairs if (np.ptp(pair, axis=0) > 0).all()]
        strongest = max(correlations, key=abs, default=0.0)
        if abs(strongest) >= TIED:
            yield space.names[one], space.names[other], round(strongest, 4)


def spread_out(points: FloatArray, count: int) -> list[int]:
    """Return the indices of at most `count` points: the first, then always the one farthest from the chosen points."""
    chosen = [0]
    distance = np.linalg.norm(points - points[0], axis=1)
    while len(chosen) < min(count, len(points)):
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(points - points[chosen[-1]], axis=1))
    return chosen


def calibration_of(fit: Fit, name: str) -> Calibration:
    """Return the calibration with the fitted overheads, their ranges over the cloud, the cloud, and the fit."""
    info = fit.cases[0].info
    runs = sum(len(case.runs) for case in fit.cases)
    fitted = {
        name: OverheadEstimate(
            value=fit.best.values[name], median=item.median, low=item.low, high=item.high, count=runs
        )
        for name, item in fit.ranges.items()
    }
    given = {
        name: OverheadEstimate(value=value, median=value, low=value, high=value, count=0)
        for name, value in fit.known.items()
    }
    return Calibration(
        name=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tracebed=version(),
        inventory=str(info.parameters.get("inventory", "")),
        execution="emulated" if info.execution == "emulated" else "computed",
        nodes=len(info.nodes),
        cores=sorted({node.cores for node in info.nodes}),
        host={"name": info.hosts[0].get("name")} if info.hosts else {},
        speed=info.speed,
        grain_s=info.parameters["grain_s"],
        repetitions=min(len(case.runs) for case in fit.cases),
        duty=min(info.duties),
        overheads=fitted | given,
        workloads=sorted({case.workload.sha256 for case in fit.cases}),
        batch=str(info.batch.get("system", "")),
        fit=FitRecord(
            loss=fit.loss_name,
            value=fit.best.loss,
            without_overheads=fit.beside.loss,
            tolerance=fit.tolerance,
            budget=fit.budget,
            seed=fit.seed,
            sets=fit.sets,
            simulations=fit.simulations,
            identified=[name for name, item in fit.ranges.items() if item.identified],
            known=list(fit.known),
            without_effect=list(fit.without_effect),
            runs=[
                FittedRuns(
                    workload=case.name,
                    sha256=case.workload.sha256,
                    policy=case.info.policy,
                    speed=case.info.speed,
                    runs=list(case.runs),
                )
                for case in fit.cases
            ],
            cross_validation=[
                FitFold(
                    workload=fold.workload,
                    overheads=dict(fold.values),
                    loss_in=fold.loss_in,
                    loss_out=fold.loss_out,
                    loss_out_without=fold.loss_out_beside,
                )
                for fold in fit.folds
            ],
        ),
        cloud=[dict(member.values) for member in fit.cloud],
    )
