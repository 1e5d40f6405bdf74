"""Parameters of a simulator and their space, and the simulations of parameter sets: each set once per case."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.ground import bounds
from tracebed.ground.errors import InputError, TracebedError
from tracebed.ground.registry import unknown
from tracebed.orchestrator.testbeds.calibration import OVERHEADS
from tracebed.validation.fitting.loss import Target

BOUNDS = (1e-4, 10.0)  # Default bounds of an overhead, wall s. The lower bound stands for no overhead.
LEAST_S = 1e-9  # smallest accepted lower bound of an overhead that varies, wall s
STEP_S = 0.002
"""Smallest step of an overhead, wall s. Smaller steps show single decisions of the policy, not the trend."""
DIGITS = 5  # significant digits of the parameters of the search
LINEAR_STEP = 0.05  # step of a parameter with a linear scale, as a share of its range

Parameters: TypeAlias = tuple[float, ...]  # a value for each parameter of a space


@dataclass(frozen=True)
class Parameter:
    """A parameter and its range. Equal bounds fix a known parameter."""

    name: str
    low: float
    high: float
    # Whether the search is in the logarithm, which gives each order of magnitude the same share (McDonald et al., arXiv
    # 2403.13918).
    log: bool = True
    integer: bool = False
    # Value below the range at which the parameter has no effect; None: there is no such value.
    absent: float | None = None
    step: float = 0.0  # smallest step of a finite difference
    unit: float | None = None  # unit of the parameter in linear programs; None: its largest absolute value


@dataclass(frozen=True)
class Space:
    """The sets of values of some parameters. Arrays have the shape (parameters,)."""

    parameters: tuple[Parameter, ...]

    @cached_property
    def names(self) -> list[str]:
        """Names of the parameters."""
        return [each.name for each in self.parameters]

    @cached_property
    def low(self) -> FloatArray:
        """Lower bounds."""
        return np.array([each.low for each in self.parameters], dtype=np.float64)

    @cached_property
    def high(self) -> FloatArray:
        """Upper bounds."""
        return np.array([each.high for each in self.parameters], dtype=np.float64)

    @cached_property
    def known(self) -> BoolArray:
        """Whether each parameter is known: its bounds are equal."""
        return np.asarray(self.low == self.high)

    @cached_property
    def integer(self) -> BoolArray:
        """Whether each parameter is an integer."""
        return np.array([each.integer for each in self.parameters], dtype=bool)

    @cached_property
    def log(self) -> BoolArray:
        """Whether each parameter is searched in its logarithm."""
        return np.array([each.log for each in self.parameters], dtype=bool) & ~self.known

    @cached_property
    def unit(self) -> FloatArray:
        """Units of the parameters in linear programs, which have absolute tolerances."""
        return np.array([each.unit or max(abs(each.low), abs(each.high)) or 1.0 for each in self.parameters])

    @cached_property
    def least_step(self) -> FloatArray:
        """Smallest step of each parameter."""
        steps = np.array([each.step for each in self.parameters], dtype=np.float64)
        return np.where(self.log, steps, LINEAR_STEP * (self.high - self.low))

    @cached_property
    def fixed(self) -> FloatArray:
        """Values of the parameters that are not searched: the known one, else the absent one, else the lower bound."""
        absent = [each.low if each.absent is None else each.absent for each in self.parameters]
        return self.rounded(np.where(self.known, self.low, absent))

    def at(self, shares: FloatArray) -> FloatArray:
        """Return the parameters at `shares` (0 to 1, shape (..., parameters)) of the ranges."""
        low, high = np.where(self.log, self.low, 1.0), np.where(self.log, self.high, 1.0)
        return np.where(self.log, low * (high / low) ** shares, self.low + (self.high - self.low) * shares)

    def shares(self, parameters: FloatArray) -> FloatArray:
        """Return the inverse of `at`; 0 for parameters at or below the lower bounds, and for known ones."""
        inside = np.maximum(parameters, self.low)
        low, high = np.where(self.log, self.low, 1.0), np.where(self.log, self.high, np.e)
        of_logarithm = np.log(np.where(self.log, inside, 1.0) / low) / np.log(high / low)
        width = np.where(self.known, np.inf, self.high - self.low)
        return np.where(self.log, of_logarithm, (inside - self.low) / width)

    def rounded(self, parameters: FloatArray) -> FloatArray:
        """Return `parameters` with `DIGITS` significant digits; integers as integers."""
        digits = [float(f"{value:.{DIGITS}g}") for value in parameters]
        return np.where(self.integer, np.rint(parameters), digits)

    def contains(self, parameters: FloatArray) -> bool:
        """Return whether `parameters` are within the ranges."""
        return bool(((self.low <= parameters) & (parameters <= self.high)).all())

    def step(self, center: FloatArray) -> FloatArray:
        """Return the steps of finite differences at `center`."""
        steps = np.where(self.log, np.maximum(center / 2, self.least_step), self.least_step)
        return np.where(self.integer, np.maximum(np.rint(steps), 1.0), steps)

    def around(self, center: FloatArray, reach: float, most: float) -> tuple[FloatArray, FloatArray]:
        """Return bounds around `center`: a factor of 1 + `reach`; on a linear scale `reach` / `most` of the range."""
        width = np.where(self.log, reach * self.least_step, reach / most * (self.high - self.low))
        factor = np.where(self.log, 1 + reach, 1.0)
        low = np.maximum(self.low, center / factor - width)
        return low, np.maximum(low, np.minimum(self.high, center * factor + width))

    def varied(self, parameters: FloatArray, changes: FloatArray) -> FloatArray:
        """Return `parameters`, changed by `changes`: of their logarithms, or in tenths of a linear range."""
        linear = parameters + changes / 10 * (self.high - self.low)
        return np.where(self.log, parameters * np.exp(changes), linear)

    def by_name(self, parameters: FloatArray) -> dict[str, float]:
        """Return `parameters` by name."""
        return dict(zip(self.names, parameters.tolist(), strict=True))


def overheads(given: Mapping[str, tuple[float, float]], speed: float) -> Space:
    """Return the space of overheads with the bounds `given` by name, wall s, and default bounds for all others."""
    # Equal bounds fix a known overhead. The highest speed of the runs limits the upper bounds.
    most = bounds.MAX_SECONDS / speed
    for name, pair in given.items():
        if name not in OVERHEADS:
            raise unknown("parameter", name, list(OVERHEADS))
        for value in pair:
            bounds.check(f"bound of {name}", value, 0 if pair[0] == pair[1] else LEAST_S, most)
        if not pair[0] <= pair[1]:
            raise InputError(f"bounds of {name} are {pair[0]:g} and {pair[1]:g}", hint="give the lower bound first")
    pairs = {name: given.get(name, (BOUNDS[0], min(BOUNDS[1], most))) for name in OVERHEADS}
    return Space(tuple(Parameter(name, *pair, absent=0.0, step=STEP_S, unit=1.0) for name, pair in pairs.items()))


Key: TypeAlias = tuple[int, Parameters]  # number of a case, and a parameter set
Compute: TypeAlias = Callable[[Sequence[Key]], Iterable[tuple[Key, FloatArray | TracebedError]]]
"""Simulates some keys, and yields each with the quantities of its case, or with the failure, in any order."""


class Evaluator:
    """Simulations of parameter sets for all cases. Each simulation is made once, also with several threads."""

    def __init__(
        self, targets: Sequence[Target], compute: Compute, on_simulation: Callable[[int], None] | None = None
    ) -> None:
        self.targets = list(targets)
        self.simulations = 0
        self.failures: dict[Key, str] = {}
        self._compute, self._on_simulation = compute, on_simulation
        self._known: dict[Key, Future[FloatArray]] = {}
        self._lock = threading.Lock()

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Simulate the keys that are not known, together."""
        with self._lock:
            new: dict[Key, Future[FloatArray]] = {key: Future() for key in keys if key not in self._known}
            self._known |= new
        try:
            for key, found in self._compute(list(new)) if new else ():
                with self._lock:
                    self.simulations += 1
                    if self._on_simulation:
                        self._on_simulation(self.simulations)
                    if isinstance(found, TracebedError):
                        self.failures[key] = str(found)
                        found = np.full_like(self.targets[key[0]].means, np.nan)
                new[key].set_result(found)
        except BaseException as error:
            for future in new.values():
                if not future.done():
                    future.set_exception(error)  # another thread may wait for it
            raise

    def quantities(self, case: int, parameters: FloatArray) -> FloatArray:
        """Return the predicted quantities of a case, shape (quantities,); NaN if the simulator fails."""
        key = (case, tuple(parameters.tolist()))
        self.prefetch([key])
        return self._known[key].result()


@dataclass(frozen=True)
class Problem:
    """The search for the parameters of some cases, whose quantities are concatenated; their mean loss is the loss."""

    evaluator: Evaluator
    chosen: tuple[int, ...]  # numbers of the cases
    space: Space

    def prefetch(self, sets: Iterable[FloatArray]) -> None:
        """Simulate the sets that are not known, together."""
        self.evaluator.prefetch((case, tuple(each.tolist())) for each in sets for case in self.chosen)

    def quantities(self, parameters: FloatArray) -> FloatArray:
        """Return the quantities of all chosen cases, shape (quantities,)."""
        self.prefetch([parameters])
        return np.concatenate([self.evaluator.quantities(case, parameters) for case in self.chosen])

    def loss(self, parameters: FloatArray) -> float:
        """Return the loss of `parameters`; infinite if the simulator fails, or a quantity is undefined."""
        self.prefetch([parameters])
        targets = self.evaluator.targets
        return float(np.mean([targets[case].loss(self.evaluator.quantities(case, parameters)) for case in self.chosen]))

    @cached_property
    def means(self) -> FloatArray:
        """Means of the repetitions, shape (quantities,)."""
        return np.concatenate([self.evaluator.targets[case].means for case in self.chosen])

    @cached_property
    def weights(self) -> FloatArray:
        """Weights of the absolute differences in the loss, shape (quantities,)."""
        return np.concatenate([self.evaluator.targets[case].weights for case in self.chosen]) / len(self.chosen)

    @property
    def tolerance(self) -> float:
        """Mean of the tolerances of the cases."""
        return float(np.mean([self.evaluator.targets[case].tolerance for case in self.chosen]))
