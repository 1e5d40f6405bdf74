"""The search for violations: scenarios of many seeds, and the smallest scenario with the same violation."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from tests.faults.batch_scenario import BatchPlay, BatchScenario
from tests.faults.invariants import CoreWatch, check
from tests.faults.layered_batch import LayerPlay, LayerScenario
from tests.faults.pooled_batch import PooledPlay, PooledScenario
from tests.faults.resizing_batch import ResizingPlay, ResizingScenario
from tests.faults.scenario import Outcome, Scenario, carry_out

LIMIT = 300
"""Largest number of scenarios that are tried to shrink one."""


AnyScenario = Scenario | BatchScenario


class Finding(NamedTuple):
    """A scenario in which a rule is violated."""

    scenario: AnyScenario
    violations: list[str]

    @property
    def rule(self) -> str:
        """The rule that is violated first; of a crash, with the type of its exception."""
        words = self.violations[0].split(":")
        return ":".join(words[:2]) if words[0] == "crash" else words[0]

    def as_test(self) -> str:
        """Return a test of the scenario, to paste into `tests/faults`."""
        name = self.rule.replace(": ", "_").lower()
        return (
            f"def test_{name}_of_seed_{self.scenario.seed}() -> None:\n"
            f'    """{self.violations[0]}"""\n'
            f"    assert violations({self.scenario!r}) == []\n"
        )


def violations(scenario: AnyScenario) -> list[str]:
    """Replay a scenario, and return the violations of all rules; of a batch system, the first violation."""
    if isinstance(scenario, BatchScenario):
        return _violations_on_batch_system(scenario)
    cores, found = CoreWatch(power_failure=scenario.has("power_failure")), list[str]()

    def judge(outcome: Outcome) -> None:
        found.extend(check(outcome, cores))

    try:
        carry_out(scenario, judge, cores)
    except Exception as error:  # noqa: BLE001  any exception of the code under test is a finding
        found = [*found, f"crash: {type(error).__name__}: {error}"]
    return found


def _violations_on_batch_system(scenario: BatchScenario) -> list[str]:
    if isinstance(scenario, LayerScenario):
        play: BatchPlay = LayerPlay(scenario)
    elif isinstance(scenario, PooledScenario):
        play = PooledPlay(scenario)
    else:
        play = ResizingPlay(scenario) if isinstance(scenario, ResizingScenario) else BatchPlay(scenario)
    try:
        play.play().check()
    except AssertionError as error:
        return [str(error)]
    except Exception as error:  # noqa: BLE001  any exception of the code under test is a finding
        return [f"crash: {type(error).__name__}: {error}"]
    finally:
        play.close()
    return []


def examine(seeds: range, kind: type[AnyScenario] = Scenario) -> tuple[int, list[tuple[int, list[str]]]]:
    """Return the number of seeds, and those whose scenario of a kind violates a rule, with the violations."""
    found = [(seed, violations(kind.drawn(seed))) for seed in seeds]
    gc.collect()
    return len(seeds), [(seed, texts) for seed, texts in found if texts]


def prepare() -> None:
    """Prepare a process for many scenarios."""
    gc.freeze()
    gc.set_threshold(1_000_000)  # about a hundred scenarios: most of their objects are in no circle


def shrunk(finding: Finding) -> Finding:
    """Return the smallest scenario found that violates the same rule: fewest faults, jobs and nodes."""
    smallest, tried, progress = finding, 0, True
    while progress:
        progress = False
        for scenario in _smaller(smallest.scenario):
            tried += 1
            if tried > LIMIT:
                return smallest
            if found := violations(scenario):
                candidate = Finding(scenario, found)
                if candidate.rule == finding.rule:
                    smallest, progress = candidate, True
                    break
    return smallest


def _changed(scenario: AnyScenario, **fields: Any) -> AnyScenario:
    return replace(scenario, **fields)


def _smaller(scenario: AnyScenario) -> Iterator[AnyScenario]:
    """Yield scenarios with fewer faults, fewer jobs, or fewer nodes, the smallest first."""
    for index in range(len(scenario.faults)):
        yield _changed(scenario, faults=scenario.faults[:index] + scenario.faults[index + 1 :])
    part = len(scenario.jobs) // 2
    while part >= 1:
        for first in range(0, len(scenario.jobs), part):
            if len(scenario.jobs) > part:
                yield _changed(scenario, jobs=scenario.jobs[:first] + scenario.jobs[first + part :])
        part //= 2
    if isinstance(scenario, BatchScenario):
        return
    needed = max(max(job.nodes, job.low) for job in scenario.jobs)
    if needed < scenario.nodes:
        fewer = scenario.nodes - 1
        clipped = tuple(job._replace(high=min(job.high, max(fewer, job.nodes))) for job in scenario.jobs)
        struck = {fault.node for fault in scenario.faults}
        if f"v{scenario.nodes}" not in struck:
            yield replace(scenario, nodes=fewer, jobs=clipped)
