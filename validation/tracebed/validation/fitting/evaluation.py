"""Evaluation of parameter sets. Each set is simulated once per case, and its quantities are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tracebed import bounds
from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.errors import InputError
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.testbeds.calibration import OVERHEADS
from tracebed.registry import unknown
from tracebed.validation.fitting.cases import FitCase
from tracebed.validation.fitting.loss import LossName, Target

NAMES = OVERHEADS
"""The parameters. The grain in `Overheads` is no parameter, but a setting of the testbed that the runs record."""
BOUNDS = (1e-4, 10.0)
"""Default bounds of each parameter, wall s. The lower bound stands for no overhead."""

LEAST_S = 1e-9
"""Smallest accepted lower bound of a parameter that varies, wall s."""
DIGITS = 5
"""Significant digits of the parameters of the search."""

Parameters = tuple[float, ...]
"""A value for each of `NAMES`, wall s."""


@dataclass(frozen=True)
class Space:
    """The parameters and their bounds, in wall seconds. The search is in the logarithm of the parameters.

    A logarithmic space gives each order of magnitude the same share (McDonald et al., arXiv 2403.13918).
    """

    low: FloatArray
    """Lower bounds, shape (parameters,)."""
    high: FloatArray

    @classmethod
    def of(cls, given: Mapping[str, tuple[float, float]], speed: float) -> Space:
        """Return the space with the bounds `given` by name, s, and the default bounds for all other parameters.

        Args:
            given: parameter -> lower and upper bound, wall s. Equal bounds fix a known parameter.
            speed: highest speed of the runs, which limits the upper bounds.

        Raises:
            InputError: a parameter is unknown, or a bound is out of range.
        """
        most = bounds.MAX_SECONDS / speed
        for name, pair in given.items():
            if name not in NAMES:
                raise unknown("parameter", name, list(NAMES))
            for value in pair:
                bounds.check(f"bound of {name}", value, 0 if pair[0] == pair[1] else LEAST_S, most)
            if not pair[0] <= pair[1]:
                raise InputError(f"bounds of {name} are {pair[0]:g} and {pair[1]:g}", hint="give the lower bound first")
        pairs = np.array([given.get(name, (BOUNDS[0], min(BOUNDS[1], most))) for name in NAMES], dtype=np.float64)
        return cls(pairs[:, 0], pairs[:, 1])

    def at(self, shares: FloatArray) -> FloatArray:
        """Return the parameters at `shares` (0 to 1, shape (..., parameters)) of the logarithmic ranges, s."""
        low, high = np.maximum(self.low, LEAST_S), np.maximum(self.high, LEAST_S)
        return np.where(self.known, self.low, low * (high / low) ** shares)

    def shares(self, parameters: FloatArray) -> FloatArray:
        """Return the inverse of `at`; 0 for parameters at or below the lower bounds, and for known ones."""
        low, high = np.maximum(self.low, LEAST_S), np.where(self.known, np.inf, self.high)
        return np.asarray(np.log(np.maximum(parameters, low) / low) / np.log(high / low))

    @property
    def known(self) -> BoolArray:
        """Whether each parameter is known: its bounds are equal. Shape (parameters,)."""
        return np.asarray(self.low == self.high)


class Evaluator:
    """Simulations of parameter sets for all cases. Each simulation is made once.

    Args:
        cases: the cases.
        kind: the loss.
        on_simulation: called after each new simulation with the number of simulations so far.
    """

    def __init__(self, cases: Sequence[FitCase], kind: LossName, on_simulation: Callable[[int], None] | None = None):
        self.cases = list(cases)
        self.targets = [Target.of(case, kind) for case in cases]
        self.simulations = 0
        self._on_simulation = on_simulation
        self._known: dict[tuple[int, Parameters], FloatArray] = {}

    def quantities(self, case: int, parameters: FloatArray) -> FloatArray:
        """Return the quantities of case number `case` predicted with `parameters`, shape (quantities,)."""
        key = (case, tuple(parameters.tolist()))
        if key not in self._known:
            run = self.cases[case].predict(overheads_of(parameters))
            self._known[key] = self.targets[case].measure(run)
            self.simulations += 1
            if self._on_simulation:
                self._on_simulation(self.simulations)
        return self._known[key]


@dataclass(frozen=True)
class Problem:
    """The search for the parameters of some of the cases of an evaluator.

    The loss is the mean of the losses of the cases. Quantities and weights of the cases are concatenated.
    """

    evaluator: Evaluator
    chosen: tuple[int, ...]
    """Numbers of the cases."""
    space: Space

    def quantities(self, parameters: FloatArray) -> FloatArray:
        """Return the quantities of all chosen cases, shape (quantities,)."""
        return np.concatenate([self.evaluator.quantities(case, parameters) for case in self.chosen])

    def loss(self, parameters: FloatArray) -> float:
        """Return the loss of `parameters`."""
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


def overheads_of(parameters: FloatArray) -> Overheads:
    """Return `parameters` (shape (parameters,), s) as overheads."""
    values: dict[str, Any] = {**values_of(parameters)}
    return Overheads(**values)


def values_of(parameters: FloatArray) -> dict[str, float]:
    """Return `parameters` (shape (parameters,), s) by name."""
    return dict(zip(NAMES, parameters.tolist(), strict=True))


def rounded(parameters: FloatArray) -> FloatArray:
    """Return `parameters` with `DIGITS` significant digits."""
    return np.array([float(f"{value:.{DIGITS}g}") for value in parameters])
