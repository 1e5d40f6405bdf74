"""Search for the parameter set with the smallest loss, and for the cloud of the sets that fit equally well.

The search has four stages within one budget of parameter sets:

0. Probes: each parameter alone at its upper bound, the others absent. If parameters have no such value, the others are
   at their lower bounds, and then each alone is at its lower bound and the others at their upper bounds. A parameter
   that changes no quantity of any case cannot be fitted (resizes of rigid jobs): it stays absent, or at its lower
   bound.
1. Sobol points in the logarithm of the parameters, scrambled by the seed (a quarter of the budget).
2. Refinement. The loss is a sum of absolute differences, so near a set it is minimized by linear programming on the
   quantities, which are linearized by finite differences and updated with each step (successive linear programming).
3. The cloud. The extreme values of each parameter under the linearization are found by linear programming, checked by
   simulation, and moved towards the best set until they fit. The rest of the budget is spent on mixtures of sets of the
   cloud.

Every set of the cloud was simulated: the linearization only proposes sets. A set with which the simulator fails has an
infinite loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.ground.errors import InputError
from tracebed.validation.fitting.evaluation import Parameters, Problem

SHARE_OF_SOBOL = 0.25
SHARE_OF_CLOUD = 0.4  # Shares of the budget. The rest is for the refinement.
REACH = 3.0  # largest change of a parameter in a step of the refinement: by the factor 1 + `REACH`
HALVINGS = 3  # largest number of halvings of the reach, and of the distance to a set that does not fit
CORRECTIONS = 3  # Largest number of proposals for an extreme set. Each corrects the linearization for the next one.
VARIATION = 0.1  # standard deviation of the logarithms of the parameters of a mixture
BATCH = 8  # number of mixtures that are simulated together
LEAST_GAIN = 0.01  # smallest relative improvement of the loss by a linearization; with less, the descent ends


def least_budget(parameters: int) -> int:
    """Return the smallest number of sets for a number of parameters: the probes, and a few linearizations."""
    return 4 * (parameters + 1)


@dataclass
class Search:
    """A search. The same problem, budget and seed give the same sets."""

    problem: Problem
    budget: int
    seed: int
    tolerance: float
    # Whether each parameter is searched: not known, and with an effect on the quantities. Shape (parameters,).
    free: BoolArray = field(init=False)
    # Parameter set -> its loss, in the order of the trials.
    tried: dict[Parameters, float] = field(default_factory=dict)
    probes: int = 0  # number of sets that only served to find the free parameters

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self.free = ~self.problem.space.known

    def run(self) -> Search:
        """Search until the budget is used, and return this search."""
        self.probe()
        self.sample(round(self.budget * SHARE_OF_SOBOL))
        self.refine(self.budget - round(self.budget * SHARE_OF_CLOUD))
        self.spread()
        return self

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

    def set_of(self, parameters: FloatArray) -> FloatArray:
        """Return the set that is tried for `parameters`: rounded, within the ranges, with the fixed values."""
        space = self.problem.space
        return np.where(self.free, np.clip(space.rounded(parameters), space.low, space.high), space.fixed)

    def loss(self, parameters: FloatArray) -> float:
        """Return the loss of a set, and remember the set."""
        key = tuple(self.set_of(parameters).tolist())
        if key not in self.tried:
            self.tried[key] = self.problem.loss(np.array(key))
        return self.tried[key]

    def losses(self, sets: Iterable[FloatArray], until: int | None = None) -> None:
        """Try the sets together, in their order, until `until` sets were tried."""
        keys = dict.fromkeys(tuple(self.set_of(each).tolist()) for each in sets)
        new = [np.array(key) for key in keys if key not in self.tried][: max(0, self.left(until))]
        self.problem.prefetch(new)
        for each in new:
            self.loss(each)

    def probe(self) -> None:
        """Find the parameters that change a quantity. Probes that are not sets of the search count to the budget."""
        space = self.problem.space
        searched = np.flatnonzero(~space.known)
        absent = np.array([each.absent is not None for each in space.parameters])
        corners = [(space.fixed, space.high)]
        if not absent[searched].all():
            corners.append((space.rounded(np.where(space.known, space.low, space.high)), space.fixed))
        pairs = []
        for base, far in corners:
            alone = np.where(np.eye(len(base), dtype=bool), far, base)
            pairs += [(index, base, alone[index]) for index in searched]
        sets = {tuple(each.tolist()): each for _, *two in pairs for each in two}
        self.problem.prefetch(sets.values())
        effects: dict[int, list[bool]] = {index: [] for index in searched.tolist()}
        for number, *two in pairs:
            one, other = map(self.problem.quantities, two)
            if np.isfinite(one).all() or np.isfinite(other).all():
                effects[int(number)].append(not np.array_equal(one, other, equal_nan=True))
        for index, found in effects.items():
            self.free[index] = any(found) or not found  # without a successful probe, the effect is unknown
        inside = [each for each in sets.values() if space.contains(each) and np.array_equal(self.set_of(each), each)]
        self.probes = len(sets) - len(inside)
        for each in inside:
            self.loss(each)

    def sample(self, until: int) -> None:
        """Try the lower bounds, and Sobol points, until `until` sets were tried; one set must succeed."""
        from scipy.stats import qmc

        space = self.problem.space
        until = max(until, self.probes + len(self.tried) + len(space.names) + 1)
        count = max(self.left(until) - 1, 1)
        sobol = qmc.Sobol(len(space.names), rng=np.random.default_rng(self.seed))
        shares = sobol.random_base2(math.ceil(math.log2(count)))
        self.losses([space.low, *map(space.at, shares)], until)
        if not np.isfinite(min(self.tried.values())):
            failures = self.problem.evaluator.failures
            why = failures[min(failures)] if failures else "a quantity is undefined"
            raise InputError(f"the simulator fails with all {len(self.tried)} parameter sets: {why}")

    def refine(self, until: int) -> None:
        """Descend from the best set, then from the second best, and so on, until `until` sets were tried."""
        for start in sorted(self.tried, key=self.tried.__getitem__):
            if np.isfinite(self.tried[start]):
                self._descend(np.array(start), until)

    def _descend(self, center: FloatArray, until: int) -> None:
        """Move from `center` to the optimum of the linearized loss, until a linearization gives no improvement."""
        # The optimum is searched within reach of the center. The reach grows with success and shrinks with failure.
        while self.left(until) > int(self.free.sum()):
            model, reach, start = self.linearized(center), REACH, self.loss(center)
            while reach > REACH / 2**HALVINGS and self.left(until) > 0:
                target = self.set_of(model.optimum(reach))
                better = self.loss(target) < self.loss(center)
                center = target if better else center
                reach = min(REACH, 2 * reach) if better else reach / 2
                model = model.updated(center, target)
            if self.loss(center) > (1 - LEAST_GAIN) * start:
                return

    def linearized(self, center: FloatArray) -> Linearized:
        """Return the linearization of the quantities at `center`: one set is tried per free parameter."""
        # Where the simulator fails, the opposite direction is tried. If this fails, too, the slope is 0.
        space, problem = self.problem.space, self.problem
        at, step = problem.quantities(center), space.step(center)
        up, down = space.high - center, center - space.low
        ahead = np.where(up >= np.minimum(step, down), np.minimum(step, up), -np.minimum(step, down))
        back = np.where(ahead > 0, -np.minimum(step, down), np.minimum(step, up))
        slopes, left = np.zeros((len(at), len(center))), np.flatnonzero(self.free)
        for steps in (ahead, back):
            if self.left() < len(left):
                break
            moved = {index: self.set_of(center + np.where(np.arange(len(center)) == index, steps, 0)) for index in left}
            self.losses(moved.values())
            found = {index: problem.quantities(each) for index, each in moved.items()}
            for index, quantities in found.items():
                change = moved[index][index] - center[index]
                if change and np.isfinite(quantities).all():
                    slopes[:, index] = (quantities - at) / change
            left = np.array([index for index in left if not np.isfinite(found[index]).all()], dtype=np.int64)
        return Linearized(problem, center, at, slopes, self.free)

    def spread(self) -> None:
        """Explore the cloud with the rest of the budget."""
        if self.left() <= int(self.free.sum()):
            return
        model = self.linearized(self.best)
        for index in np.flatnonzero(self.free):
            for sign in (1.0, -1.0):
                model = self._extend(model, sign * np.eye(len(self.free))[index])
        for _ in range(20 * self.budget // BATCH):
            if self.left() <= 0:
                return
            cloud = self.cloud
            self.losses([self._mixture(cloud) for _ in range(BATCH)])

    def _mixture(self, cloud: list[FloatArray]) -> FloatArray:
        """Return a random set near the line through two random sets of the cloud."""
        some = [cloud[index] for index in self._random.integers(len(cloud), size=2)]
        share, space = self._random.uniform(-0.25, 1.25), self.problem.space
        mixture = np.maximum(share * some[0] + (1 - share) * some[1], space.low)
        return space.varied(mixture, VARIATION * self._random.standard_normal(len(mixture)))

    def _extend(self, model: Linearized, goal: FloatArray) -> Linearized:
        """Search the cloud for the set with the smallest `goal` @ parameters, and return the improved linearization."""
        # Each set that does not fit improves the linearization. After `CORRECTIONS` such sets, the segment between the
        # best set and the last one is bisected.
        center = outside = model.center
        for _ in range(CORRECTIONS):
            extreme = model.extreme(goal, self.limit)
            if self.left() <= 0 or extreme is None or self.loss(extreme) <= self.limit:
                return model
            outside = self.set_of(extreme)
            model = model.updated(center, outside)
        for _ in range(HALVINGS):
            outside = self.set_of((center + outside) / 2)
            if self.left() <= 0 or self.loss(outside) <= self.limit:
                break
        return model


@dataclass(frozen=True)
class Linearized:
    """The quantities near a set, as linear functions of the parameters."""

    problem: Problem
    center: FloatArray
    at: FloatArray  # the quantities at the center, shape (quantities,)
    slopes: FloatArray  # derivatives of the quantities, shape (quantities, parameters)
    free: BoolArray  # whether each parameter can vary, shape (parameters,)

    def updated(self, center: FloatArray, tried: FloatArray) -> Linearized:
        """Return the linearization at `center`, with slopes that agree with the set `tried` (Broyden 1965)."""
        # The linearization remains the same if the simulator fails with that set.
        step, quantities = tried - self.center, self.problem.quantities(tried)
        if not step.any() or not np.isfinite(quantities).all():
            return self
        error, scaled = quantities - self.at - self.slopes @ step, step / self.problem.space.unit**2
        slopes = self.slopes + np.outer(error, scaled) / (step @ scaled)
        return Linearized(self.problem, center, self.problem.quantities(center), slopes, self.free)

    def optimum(self, reach: float) -> FloatArray:
        """Return the set with the smallest linearized loss in which parameters change within `reach`."""
        low, high = self.problem.space.around(self.center, reach, 2 * REACH)
        found = self._solve(np.zeros(len(self.center)), None, low, high)
        return self.center if found is None else found

    def extreme(self, goal: FloatArray, limit: float) -> FloatArray | None:
        """Return the set with the smallest `goal` @ parameters and a linearized loss of at most `limit`."""
        return self._solve(goal, limit, self.problem.space.low, self.problem.space.high)

    def _solve(self, goal: FloatArray, limit: float | None, low: FloatArray, high: FloatArray) -> FloatArray | None:
        """Minimize `goal` @ parameters subject to loss <= `limit`; without a limit, minimize the loss."""
        # The variables are the parameters, in units of the space, and a bound e_k >= |predicted_k - mean_k| for each
        # quantity.
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, eye_array, hstack, vstack

        problem, count = self.problem, len(self.at)
        unit = problem.space.unit
        moved = self.at - problem.means - self.slopes @ self.center
        slopes, identity = csr_array(self.slopes * unit), eye_array(count)
        rows: Any = vstack([hstack([slopes, -identity]), hstack([-slopes, -identity])])
        right = np.concatenate((-moved, moved))
        costs = np.concatenate((goal, np.zeros(count)))
        if limit is None:
            costs[len(goal) :] = problem.weights
        else:
            rows = vstack([rows, csr_array(np.concatenate((np.zeros(len(goal)), problem.weights))[None, :])])
            right = np.append(right, limit)
        low, high = np.where(self.free, low, self.center) / unit, np.where(self.free, high, self.center) / unit
        variables = [*zip(low, high, strict=True), *[(0, None)] * count]
        solution = linprog(costs, A_ub=rows, b_ub=right, bounds=variables, method="highs")
        return None if solution.x is None else np.asarray(solution.x[: len(goal)]) * unit
