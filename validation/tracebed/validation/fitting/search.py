"""Search for the parameter set with the smallest loss, and for the cloud of the sets that fit equally well.

The search has four stages within one budget of parameter sets:

0. Probes: the known parameters only, and each other parameter added at its upper bound. A parameter that changes no
   quantity of any case cannot be fitted (resizes of rigid jobs) and stays 0.
1. Sobol points in the logarithm of the parameters, scrambled by the seed (a quarter of the budget).
2. Refinement. The loss is a sum of absolute differences, so near a set it is minimized by linear programming on the
   quantities, which are linearized by finite differences and updated with each step (successive linear programming).
3. The cloud. The extreme values of each parameter under the linearization are found by linear programming, checked by
   simulation, and moved towards the best set until they fit. The rest of the budget is spent on mixtures of sets of the
   cloud.

Every set of the cloud was simulated: the linearization only proposes sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.validation.fitting.evaluation import NAMES, Parameters, Problem, rounded

SHARE_OF_SOBOL = 0.25
SHARE_OF_CLOUD = 0.4
"""Shares of the budget. The rest is for the refinement."""
STEP_S = 0.002
"""Smallest step of a finite difference, wall s. Smaller steps show single decisions of the policy, not the trend."""
REACH = 3.0
"""Largest change of a parameter in a step of the refinement: by the factor 1 + `REACH`."""
HALVINGS = 3
"""Largest number of halvings of the reach, and of the distance to a set that does not fit."""
CORRECTIONS = 3
"""Largest number of proposals for an extreme set. Each corrects the linearization for the next one."""
VARIATION = 0.1
"""Standard deviation of the logarithms of the parameters of a mixture."""
LEAST_GAIN = 0.01
"""Smallest relative improvement of the loss by a linearization. With less improvement the descent ends."""
LEAST_BUDGET = 4 * (len(NAMES) + 1)
"""Smallest number of sets: the probes, and a few linearizations."""


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
    """Whether each parameter is searched: not known, and with an effect on the quantities. Shape (parameters,)."""
    tried: dict[Parameters, float] = field(default_factory=dict)
    """Parameter set -> its loss, in the order of the trials."""
    probes: int = 0
    """Number of sets simulated to find the free parameters."""

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
    def fixed(self) -> FloatArray:
        """Values of the parameters that are not searched: the known ones, else 0. Shape (parameters,)."""
        space = self.problem.space
        return rounded(np.where(space.known, space.low, 0.0))

    @property
    def best(self) -> FloatArray:
        """The set with the smallest loss so far."""
        return np.array(min(self.tried, key=self.tried.__getitem__))

    @property
    def limit(self) -> float:
        """Largest loss of a set of the cloud."""
        return min(self.tried.values()) + self.tolerance

    @property
    def cloud(self) -> list[FloatArray]:
        """The sets whose loss is within the tolerance of the smallest loss. The best is first."""
        limit = self.limit
        inside = [(loss, parameters) for parameters, loss in self.tried.items() if loss <= limit]
        return [np.array(parameters) for _, parameters in sorted(inside)]

    def left(self, until: int | None = None) -> int:
        """Return the number of sets that may still be tried."""
        return (self.budget if until is None else min(until, self.budget)) - self.probes - len(self.tried)

    def loss(self, parameters: FloatArray) -> float:
        """Return the loss of a set, and remember the set."""
        key = tuple(rounded(np.where(self.free, parameters, self.fixed)).tolist())
        if key not in self.tried:
            self.tried[key] = self.problem.loss(np.array(key))
        return self.tried[key]

    def probe(self) -> None:
        """Find the parameters that change a quantity. The probes count towards the budget but are not in the cloud."""
        space, fixed = self.problem.space, self.fixed
        without = self.problem.quantities(fixed)
        self.free = np.zeros(len(NAMES), dtype=bool)
        for index in np.flatnonzero(~space.known):
            alone = np.where(np.arange(len(NAMES)) == index, space.high, fixed)
            self.free[index] = (self.problem.quantities(alone) != without).any()
        self.probes = 1 + int((~space.known).sum())

    def sample(self, until: int) -> None:
        """Try the lower bounds, and Sobol points, until `until` sets were tried."""
        from scipy.stats import qmc

        self.loss(self.problem.space.low)
        count = max(self.left(until), 1)
        sobol = qmc.Sobol(len(NAMES), rng=np.random.default_rng(self.seed))
        for share in sobol.random_base2(math.ceil(math.log2(count)))[: self.left(until)]:
            self.loss(self.problem.space.at(share))

    def refine(self, until: int) -> None:
        """Descend from the best set, then from the second best, and so on, until `until` sets were tried."""
        for start in sorted(self.tried, key=self.tried.__getitem__):
            self._descend(np.array(start), until)

    def _descend(self, center: FloatArray, until: int) -> None:
        """Move from `center` to the optimum of the linearized loss, until a linearization gives no improvement.

        The optimum is searched within reach of the center. The reach grows with success and shrinks with failure.
        """
        while self.left(until) > int(self.free.sum()):
            model, reach, start = self.linearized(center), REACH, self.loss(center)
            while reach > REACH / 2**HALVINGS and self.left(until) > 0:
                target = rounded(model.optimum(1 + reach))
                better = self.loss(target) < self.loss(center)
                center = target if better else center
                reach = min(REACH, 2 * reach) if better else reach / 2
                model = model.updated(center, target)
            if self.loss(center) > (1 - LEAST_GAIN) * start:
                return

    def linearized(self, center: FloatArray) -> Linearized:
        """Return the linearization of the quantities at `center`: one set is tried per free parameter."""
        space, problem = self.problem.space, self.problem
        at = problem.quantities(center)
        slopes = np.zeros((len(at), len(center)))
        for index in np.flatnonzero(self.free):
            step = max(center[index] / 2, STEP_S)
            up, down = space.high[index] - center[index], center[index] - space.low[index]
            step = min(step, up) if up >= min(step, down) else -min(step, down)
            moved = center.copy()
            moved[index] += step
            moved = rounded(moved)
            self.loss(moved)
            slopes[:, index] = (problem.quantities(moved) - at) / (moved[index] - center[index])
        return Linearized(problem, center, at, slopes, self.free, self.fixed)

    def spread(self) -> None:
        """Explore the cloud with the rest of the budget."""
        if self.left() <= int(self.free.sum()):
            return
        model = self.linearized(self.best)
        for index in np.flatnonzero(self.free):
            for sign in (1.0, -1.0):
                model = self._extend(model, sign * np.eye(len(NAMES))[index])
        space = self.problem.space
        for _ in range(20 * self.budget):
            if self.left() <= 0:
                return
            cloud = self.cloud
            some = [cloud[index] for index in self._random.integers(len(cloud), size=2)]
            share = self._random.uniform(-0.25, 1.25)
            mixture = np.maximum(share * some[0] + (1 - share) * some[1], space.low)
            varied = mixture * np.exp(VARIATION * self._random.standard_normal(len(mixture)))
            self.loss(np.clip(varied, space.low, space.high))

    def _extend(self, model: Linearized, goal: FloatArray) -> Linearized:
        """Search the cloud for the set with the smallest `goal` @ parameters, and return the improved linearization.

        Each set that does not fit improves the linearization. After `CORRECTIONS` such sets, the segment between the
        best set and the last one is bisected.
        """
        center = outside = model.center
        for _ in range(CORRECTIONS):
            extreme = model.extreme(goal, self.limit)
            if self.left() <= 0 or extreme is None or self.loss(extreme) <= self.limit:
                return model
            outside = rounded(extreme)
            model = model.updated(center, outside)
        for _ in range(HALVINGS):
            outside = (center + outside) / 2
            if self.left() <= 0 or self.loss(outside) <= self.limit:
                break
        return model


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
    fixed: FloatArray
    """Values of the other parameters."""

    def updated(self, center: FloatArray, tried: FloatArray) -> Linearized:
        """Return the linearization at `center`, with slopes that agree with the set `tried` (Broyden 1965)."""
        step = tried - self.center
        if not step.any():
            return self
        error = self.problem.quantities(tried) - self.at - self.slopes @ step
        slopes = self.slopes + np.outer(error, step) / (step @ step)
        return Linearized(self.problem, center, self.problem.quantities(center), slopes, self.free, self.fixed)

    def optimum(self, factor: float) -> FloatArray:
        """Return the set with the smallest linearized loss in which parameters change by `factor` or little more."""
        space = self.problem.space
        low = np.maximum(space.low, self.center / factor - STEP_S * (factor - 1))
        high = np.minimum(space.high, self.center * factor + STEP_S * (factor - 1))
        found = self._solve(np.zeros(len(self.center)), None, low, np.maximum(low, high))
        return self.center if found is None else found

    def extreme(self, goal: FloatArray, limit: float) -> FloatArray | None:
        """Return the set with the smallest `goal` @ parameters and a linearized loss of at most `limit`."""
        return self._solve(goal, limit, self.problem.space.low, self.problem.space.high)

    def _solve(self, goal: FloatArray, limit: float | None, low: FloatArray, high: FloatArray) -> FloatArray | None:
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
        low, high = np.where(self.free, low, self.fixed), np.where(self.free, high, self.fixed)
        variables = [*zip(low, high, strict=True), *[(0, None)] * count]
        solution = linprog(costs, A_ub=rows, b_ub=right, bounds=variables, method="highs")
        return None if solution.x is None else np.asarray(solution.x[: len(goal)])
