"""The decisions of a replay, those of the same policy for the events of its journal, and those of its error budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay import journal, redecide
from tracebed.orchestrator.scheduling.decision_log import LoggedDecision
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import MEASURED
from tracebed.orchestrator.scheduling.state import Decision, Policy, State
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node
from tracebed.testing.virtual.provider import VirtualSettings
from tracebed.validation.budget import ErrorBudget, error_budget


def emulated(count: int, cores: int = 2) -> Inventory:
    nodes = tuple(Node(f"n{number}", cores, 1, None, True) for number in range(1, count + 1))
    return Inventory("test", "agents", nodes, grain_s=0.02)


def virtual(count: int, cores: int = 2) -> Inventory:
    """Return virtual nodes: the controller and the agents of tracebed, in virtual time."""
    return virtual_nodes(*[cores] * count)


def virtual_nodes(*cores: int) -> Inventory:
    """Return virtual nodes with these numbers of cores."""
    nodes = tuple(Node(f"n{i}", each, 1, None, True, provider="virtual") for i, each in enumerate(cores, 1))
    return Inventory("test", "agents", nodes, groups=(Group("test", "virtual", VirtualSettings(), nodes),))


def workload(jobs: int = 12, *, nodes: int = 4, malleable: float = 0.7, seed: int = 1) -> Workload:
    """Return an hour of jobs at a load at which malleable jobs shrink and expand."""
    rng = np.random.default_rng(seed)
    size = rng.integers(1, nodes + 1, jobs)
    run_time = rng.uniform(20, 300, jobs)
    kind = np.where(rng.random(jobs) < malleable, "malleable", "rigid")
    return Workload(
        pd.DataFrame(
            {
                "job_id": [f"job {number}" for number in range(jobs)],
                "submit_time": np.sort(rng.uniform(1000, 1600, jobs)),
                "run_time": run_time,
                "time_limit": run_time * 1.5,
                "nodes": size,
                "cores_per_node": 2,
                "kind": kind,
                "nodes_min": np.where(kind == "malleable", 1, size),
                "nodes_max": np.where(kind == "malleable", nodes, size),
                "speedup": "amdahl",
                "speedup_parameters": "0.95",
            }
        )
    )


def decided(path: Path) -> list[LoggedDecision]:
    """Return the calls and the decisions in a journal."""
    return redecide.logged_decisions(journal.read(path)[1])


def decided_again(
    path: Path, jobs: Jobs, inventory: Inventory, policy: Policy, options: dict[str, Any] | None = None
) -> list[LoggedDecision]:
    """Return the calls and decisions of the policy for the events of a journal."""
    settings = {name: value for name, value in (options or {}).items() if name != "options"}
    scheduling = Setup.of(policy, **settings).scheduling
    _, entries = journal.read(path)
    found = redecide.redecide(
        entries,
        jobs,
        inventory.facts,
        policy,
        scheduling,
    )
    return list(found)


def noting(policy: Policy, said: list[tuple[float, Decision]]) -> Policy:
    """Return `policy`, changed to append to `said` everything that it yields, including plans and wakes, with times."""
    decide = policy.decide

    def note(state: State) -> Iterator[Decision]:
        for decision in decide(state):
            said.append((state.now, decision))
            yield decision

    object.__setattr__(policy, "decide", note)  # the policy is frozen
    return policy


def complete_budget(work: Workload, folder: Path, make: Callable[[], Policy] | None = None) -> ErrorBudget:
    """Return the error budget of the replay in `folder`, and check that the last simulation is that replay.

    A simulation computes no results and no stages of resizes, and changes of cores take effect as modelled.
    """
    budget = error_budget(work, folder, make_policy=make)
    assert budget.decisions == 0, budget.headline
    real, steps = budget.runs[0].real, budget.runs[0].steps
    known, resizes = real.jobs.drop(columns="checksum"), real.resizes.drop(columns=[*MEASURED])
    pd.testing.assert_frame_equal(steps["calls"].jobs.drop(columns="checksum"), known, check_exact=True)
    pd.testing.assert_frame_equal(steps["calls"].resizes.drop(columns=[*MEASURED]), resizes, check_exact=True)
    held = real.allocations.drop(columns="cpus")
    pd.testing.assert_frame_equal(steps["calls"].allocations.drop(columns="cpus"), held, check_exact=True)
    frame = budget.frame
    assert (frame["remainder"] == 0).all()
    np.testing.assert_allclose(frame[budget.causes].sum(axis=1), frame["error"], rtol=1e-9, atol=1e-9)
    return budget
