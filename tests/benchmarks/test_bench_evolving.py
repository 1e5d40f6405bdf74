"""Evolving jobs: CPU time of the programs of 1,000 jobs on 128 x 4 and of their simulation, by behavior."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

import tracebed.api as tb
from tracebed.converters.models.deadlines import TYPES
from tracebed.orchestrator.evolving.machine import Leak, Machine
from tracebed.orchestrator.evolving.simulation import leaking, programs_of, simulate
from tracebed.topology import Grid

MACHINE = Machine(Grid((8, 16)), 4)
T = TypeVar("T")


def timed(call: Callable[[], T]) -> tuple[float, T]:
    begin = time.process_time()
    result = call()
    return time.process_time() - begin, result


@pytest.mark.parametrize("behaviour", [*TYPES, "uniform"])
def test_runs_of_a_thousand_jobs(benchmark: Any, behaviour: str) -> None:
    """Draw and adapt programs, then simulate them under both dynamic allocations."""
    study = tb.generate("deadline-normal", seed=1, behaviour=behaviour)

    def times() -> dict[str, float]:
        found: dict[str, float] = {}
        found["programs_s"], programs = timed(lambda: programs_of(study, MACHINE, seed=1))
        for leak in Leak:
            found[f"{leak.name.lower()}_s"], _ = timed(lambda: simulate(programs, MACHINE, leaking(study, leak)))  # noqa: B023
        return found

    figures = benchmark.pedantic(times, rounds=1)
    benchmark.extra_info.update(figures)
    print(f"\n{behaviour}: " + ", ".join(f"{name} {value:.2f}" for name, value in figures.items()))  # noqa: T201
