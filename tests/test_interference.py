"""Interference: kernels measured beside each other, and simulations of jobs that share nodes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import tracebed.api as tb
from agents import Agent
from tracebed.benchmarks.kernels import compute
from tracebed.orchestrator.calibrating.interference import interference
from tracebed.orchestrator.testbeds.agent.measuring import core_rates
from tracebed.orchestrator.testbeds.inventory import load_inventory
from tracebed.orchestrator.testbeds.registry import TESTBEDS

CPUS = sorted(os.sched_getaffinity(0))[:2]
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="this process may use one CPU only")


# -- the measurement


@two_cpus
def test_the_kernel_beside_runs_on_the_other_cpus_during_the_measurement() -> None:
    seen: set[tuple[int, ...]] = set()

    def beside(first: int, count: int) -> int:
        seen.add((threading.get_ident(), *sorted(os.sched_getaffinity(0))))
        return compute(first, count)

    measured: set[tuple[int, ...]] = set()

    def kernel(first: int, count: int) -> int:
        measured.add((threading.get_ident(), *sorted(os.sched_getaffinity(0))))
        return compute(first, count)

    [windows] = core_rates(CPUS[:1], 3, 0.01, kernel, others=CPUS[1:], beside=beside)
    assert len(windows) == 3 and min(rate for rate, _ in windows) > 0
    assert {tuple(mask) for _, *mask in measured} == {(CPUS[0],)}
    assert {tuple(mask) for _, *mask in seen} == {(CPUS[1],)}


def test_an_error_of_the_kernel_beside_is_not_hidden() -> None:
    def failing(first: int, count: int) -> int:
        raise MemoryError("no memory")

    with pytest.raises(MemoryError, match="no memory"):
        core_rates(CPUS[:1], 1, 0.005, compute, others=CPUS[:1], beside=failing)


@two_cpus
@pytest.mark.parametrize("cores", [1, 2, None])
def test_an_agent_measures_a_kernel_beside_another_one(tmp_path: Path, cores: int | None) -> None:
    node = {"name": "n1", "cores": 2, "cpus": ",".join(map(str, CPUS)), "emulated": False}
    request = {"type": "measure", "windows": 2, "seconds": 0.01, "kernel": "pils", "beside": "stream"}
    with Agent(tmp_path, node=node) as agent:
        agent.greet()
        agent.tell(request | {"cores": cores})
        answer = agent.hear("measured" if cores == 1 else "error")
    if cores == 1:
        [[(rate, _), _]] = answer["rates"]
        assert rate > 100
    else:
        assert "no core is left" in answer["what"]
