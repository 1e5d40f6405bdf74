"""Evaluation of parameter sets. Each set is simulated once per case, and its quantities are kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import TracebedError
from tracebed.validation.fitting.loss import Target
from tracebed.validation.fitting.space import Parameters, Space

Key: TypeAlias = tuple[int, Parameters]
"""Number of a case, and a parameter set."""
Compute: TypeAlias = Callable[[Sequence[Key]], Iterable[tuple[Key, FloatArray | TracebedError]]]
"""Simulates some keys, and yields each with the quantities of its case, or with the failure, in any order."""


class Evaluator:
    """Simulations of parameter sets for all cases. Each simulation is made once, also with several threads.

    Args:
        targets: the quantities of each case.
        compute: makes simulations.
        on_simulation: called after each new simulation with the number of simulations so far.
    """

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
        """Return the quantities of case number `case` predicted with `parameters`, shape (quantities,).

        They are NaN if the simulator fails.
        """
        key = (case, tuple(parameters.tolist()))
        self.prefetch([key])
        return self._known[key].result()


@dataclass(frozen=True)
class Problem:
    """The search for the parameters of some of the cases of an evaluator.

    The loss is the mean of the losses of the cases. Quantities and weights of the cases are concatenated.
    """

    evaluator: Evaluator
    chosen: tuple[int, ...]
    """Numbers of the cases."""
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
