"""Search for the parameter set with the least loss, and for the cloud of the sets that fit equally well.

The search has four stages within one budget of parameter sets:

0. Probes: no overheads, and each parameter alone at its upper bound. A parameter that changes no quantity of any case
   cannot be fitted (resizes of rigid jobs) and stays 0.
1. Sobol points in the logarithm of the parameters, scrambled by the seed (half of the budget).
2. Refinement. The loss is a sum of absolute differences, so near a set it is minimized by linear programming on the
   quantities, which are linearized by finite differences (successive linear programming for an L1 norm).
3. The cloud. The extreme values of each parameter under the linearization are found by linear programming, checked by
   simulation, and moved towards the best set until they fit. The rest of the budget is mixtures of sets of the cloud.

Every set of the cloud was simulated: the linearization only proposes sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.validation.fitting.evaluation import NAMES, Parameters, Problem

SHARE_OF_SOBOL = 0.5
SHARE_OF_CLOUD = 0.3
"""Shares of the budget; the refinement has the rest."""
STEP_S = 0.002
"""Least step of a finite difference, wall s. Far smaller steps show single decisions of the policy, not the trend."""
HALVINGS = 3
"""Number of bisections between the best set and a proposed set that does not fit."""
LEAST_BUDGET = 4 * (len(NAMES) + 1)
"""Least number of sets: the probes, and a few linearizations."""


@dataclass
class Search:
    """A search. The same problem, budget and seed give the same sets.

    Args:
        problem: the problem.
        budget: number of parameter sets to try, at least `LEAST_BUDGET`.
        seed: seed of the Sobol points and of the mixtures.
        tolerance: largest additional loss of a set of the cloud.
    """

    problem: Problem
    budget: int
    seed: int
    tolerance: float
    free: BoolArray = field(default_factory=lambda: np.ones(len(NAMES), dtype=bool))
    """Whether each parameter changes the quantities, shape (parameters,). The others stay 0."""
    tried: dict[Parameters, float] = field(default_factory=dict)
    """Parameter set -> its loss, in the order of the trials."""

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def run(self) -> Search:
        """Search until the budget is used, and return this search."""
        self.probe()
        self.sample(round(self.budget * SHARE_OF_SOBOL))
        self.refine(self.budget - round(self.budget * SHARE_OF_CLOUD))
        self.spread()
        return self

    @property
    def best(self) -> FloatArray:
        """The set with the least loss so far."""
        return np.array(min(self.tried, key=self.tried.__getitem__))

    @property
    def limit(self) -> float:
        """Largest loss of a set of the cloud."""
        return min(self.tried.values()) + self.tolerance

    @property
    def cloud(self) -> list[FloatArray]:
        """The sets that fit equally well: the loss is within the tolerance of the least loss. The best is first."""
        limit = self.limit
        inside = [(loss, parameters) for parameters, loss in self.tried.items() if loss <= limit]
        return [np.array(parameters) for _, parameters in sorted(inside)]

    def left(self, until: int | None = None) -> int:
        """Return the number of sets that may still be tried."""
        return (self.budget if until is None else min(until, self.budget)) - len(self.tried)

    def loss(self, parameters: FloatArray) -> float:
        """Return the loss of a set, and remember the set."""
        key = tuple(np.where(self.free, parameters, 0.0).tolist())
        if key not in self.tried:
            self.tried[key] = self.problem.loss(np.array(key))
        return self.tried[key]

    def probe(self) -> None:
        """Find the parameters that change a quantity."""
        nothing = np.zeros(len(NAMES))
        self.loss(nothing)
        without = self.problem.quantities(nothing)
        alone = np.diag(self.problem.space.high)
        for parameters in alone:
            self.loss(parameters)
        self.free = np.array([(self.problem.quantities(parameters) != without).any() for parameters in alone])

    def sample(self, until: int) -> None:
        """Try Sobol points until `until` sets were tried."""
        from scipy.stats import qmc

        count = max(self.left(until), 1)
        sobol = qmc.Sobol(len(NAMES), rng=np.random.default_rng(self.seed))
        for share in sobol.random_base2(math.ceil(math.log2(count)))[: self.left(until)]:
            self.loss(self.problem.space.at(share))

    def refine(self, until: int) -> None:
        """Move the best set to the optimum of the linearized loss until that is no longer better."""
        while self.left(until) > int(self.free.sum()):
            best = self.best
            before = self.loss(best)
            model = self.linearized(best)
            target = model.optimum()
            for _ in range(HALVINGS):
                if self.left(until) <= 0 or self.loss(target) < before:
                    break
                target = (target + self.best) / 2
            if not min(self.tried.values()) < before * (1 - 1e-3):
                return

    def linearized(self, center: FloatArray) -> Linearized:
        """Return the linearization of the quantities at `center`: one set is tried per free parameter."""
        space, problem = self.problem.space, self.problem
        at = problem.quantities(center)
        slopes = np.zeros((len(at), len(center)))
        for index in np.flatnonzero(self.free):
            step = max(center[index] / 2, STEP_S)
            if center[index] + step > space.high[index]:
                step = -step
            moved = center.copy()
            moved[index] += step
            self.loss(moved)
            slopes[:, index] = (problem.quantities(moved) - at) / step
        return Linearized(problem, center, at, slopes, self.free)

    def spread(self) -> None:
        """Explore the cloud with the rest of the budget."""
        if self.left() <= int(self.free.sum()):
            return
        best = self.best
        model = self.linearized(best)
        for extreme in model.extremes(self.limit):
            self._farthest(best, extreme)
        space = self.problem.space
        for _ in range(20 * self.budget):
            if self.left() <= 0:
                return
            cloud = self.cloud
            some = [cloud[index] for index in self._random.integers(len(cloud), size=2)]
            share = self._random.uniform(-0.25, 1.25)
            mixture = share * some[0] + (1 - share) * some[1]
            self.loss(np.clip(mixture, space.low, space.high))

    def _farthest(self, best: FloatArray, extreme: FloatArray) -> None:
        """Bisect for the set nearest to `extreme` that fits, on the line from `best`."""
        inside, outside, share = 0.0, 1.0, 1.0
        for _ in range(HALVINGS + 1):
            if self.left() <= 0:
                return
            if self.loss(best + share * (extreme - best)) <= self.limit:
                inside = share
            else:
                outside = share
            if inside == outside:
                return
            share = (inside + outside) / 2


@dataclass(frozen=True)
class Linearized:
    """The quantities near a set, as linear functions of the parameters."""

    problem: Problem
    center: FloatArray
    at: FloatArray
    """The quantities at the center, shape (quantities,)."""
    slopes: FloatArray
    """Derivatives of the quantities, per wall s, shape (quantities, parameters)."""
    free: BoolArray
    """Whether each parameter can vary, shape (parameters,)."""

    def optimum(self) -> FloatArray:
        """Return the set with the least linearized loss within the bounds."""
        found = self._solve(np.zeros(len(self.center)), None)
        return self.center if found is None else found

    def extremes(self, limit: float) -> list[FloatArray]:
        """Return the sets in which a parameter is least or largest while the linearized loss is at most `limit`."""
        found = []
        for index in np.flatnonzero(self.free):
            for sign in (1.0, -1.0):
                goal = np.zeros(len(self.center))
                goal[index] = sign
                solution = self._solve(goal, limit)
                if solution is not None:
                    found.append(solution)
        return found

    def _solve(self, goal: FloatArray, limit: float | None) -> FloatArray | None:
        """Minimize `goal` @ parameters subject to loss <= `limit`; without a limit, minimize the loss.

        The variables are the parameters and a bound e_k >= |predicted_k - mean_k| for each quantity.
        """
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, eye_array, hstack, vstack

        problem, count = self.problem, len(self.at)
        moved = self.at - problem.means - self.slopes @ self.center
        slopes, unit = csr_array(self.slopes), eye_array(count)
        rows: Any = vstack([hstack([slopes, -unit]), hstack([-slopes, -unit])])
        right = np.concatenate((-moved, moved))
        costs = np.concatenate((goal, np.zeros(count)))
        if limit is None:
            costs[len(goal) :] = problem.weights
        else:
            rows = vstack([rows, csr_array(np.concatenate((np.zeros(len(goal)), problem.weights))[None, :])])
            right = np.append(right, limit)
        low = np.where(self.free, problem.space.low, 0.0)
        high = np.where(self.free, problem.space.high, 0.0)
        variables = [*zip(low, high, strict=True), *[(0, None)] * count]
        solution = linprog(costs, A_ub=rows, b_ub=right, bounds=variables, method="highs")
        return np.asarray(solution.x[: len(goal)]) if solution.success else None
