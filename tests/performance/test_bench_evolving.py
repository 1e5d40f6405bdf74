"""Evolving jobs: CPU time of programs of 1,000 jobs on 128 x 4, and of their simulation; the policy `leak`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

import tracebed.api as tb
from tracebed.converters.models.deadlines import TYPES
from tracebed.ground.topology import Grid
from tracebed.orchestrator.evolving.machine import LeakVariant, Machine
from tracebed.orchestrator.evolving.simulation import leaking, programs_of, simulate

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
        for leak in LeakVariant:
            found[f"{leak.name.lower()}_s"], _ = timed(lambda: simulate(programs, MACHINE, leaking(study, leak)))  # noqa: B023
        return found

    figures = benchmark.pedantic(times, rounds=1)
    benchmark.extra_info.update(figures)
    print(f"\n{behaviour}: " + ", ".join(f"{name} {value:.2f}" for name, value in figures.items()))  # noqa: T201


@pytest.mark.parametrize("load", ["normal", "heavy", "very-heavy"])
@pytest.mark.parametrize("contiguous", [True, False])
def test_the_policy_leak_with_ten_thousand_jobs(benchmark: Any, load: str, contiguous: bool) -> None:
    """Simulate malleable jobs that start on one node or more."""
    rigid = tb.generate(f"deadline-{load}", jobs=10_000, seed=1)
    work = tb.make_malleable(rigid, share=1.0, least=0.001)
    options = {"contiguous": contiguous}
    seconds, _ = benchmark.pedantic(
        lambda: timed(lambda: tb.simulate(work, "leak", policy_parameters=options)), rounds=1
    )
    print(f"\n{load}, contiguous {contiguous}: {len(work) / seconds:,.0f} jobs/s")  # noqa: T201
