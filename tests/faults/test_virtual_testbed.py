"""Replays in a virtual world: a seed gives one course of events, and no scenario of a seed violates a rule."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tests.faults.invariants import watched
from tests.faults.kinds import NODE_FAULTS
from tests.faults.scenario import JobSpec, Outcome, Scenario, carry_out
from tests.faults.shrinking import Finding, shrunk, violations
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.scheduling.record import MOST_LOSSES
from tracebed.testing.virtual.faults import Fault

SEEDS = 12
"""Number of seeds in the default run. The search in CI draws more (`tox -e faults`)."""
EIGHT = tuple(JobSpec(40.0 * number, 100.0, 200.0, 1 + number % 4, 1, 4) for number in range(8))


@pytest.mark.parametrize("block", range(4))
def test_no_scenario_violates_a_rule(block: int) -> None:
    seeds = range(block * SEEDS // 4, (block + 1) * SEEDS // 4)
    assert {seed: found for seed in seeds if (found := violations(Scenario.drawn(seed)))} == {}


@pytest.mark.parametrize("seed", range(6))
def test_after_kills_the_view_has_the_figures_of_the_metrics(seed: int) -> None:
    """Also of a replay that an interruption ends, and with jobs that share nodes."""
    draw = random.Random(seed)
    kills = [Fault("kill", draw.randrange(200, 2400), "", draw.choice((0.5, 3.0, 20.0)), draw.random()) for _ in "1234"]
    ends = [Fault("terminate", draw.randrange(1500, 2000), "", 0.0, 0.5)] if seed % 3 == 2 else []
    policy = ("pref", "min", "keep-pref", "sd", "dmr", "avg")[seed]
    scenario = replace(Scenario.drawn(seed), policy=policy, faults=tuple(sorted([*kills, *ends])))

    def check(outcome: Outcome) -> None:
        assert outcome.kills and outcome.journal is not None
        assert outcome.run is not None or ends
        assert [*watched(outcome, *journal.read(outcome.journal))] == []

    carry_out(scenario, check)


def course(scenario: Scenario) -> list[str]:
    """Return the entries of the journal of a replay, and its result."""
    found: list[str] = []

    def keep(outcome: Outcome) -> None:
        assert outcome.run is not None and outcome.journal is not None
        found.extend(map(repr, journal.read(outcome.journal)[1]))
        found.append(outcome.run.jobs.to_csv())

    carry_out(scenario, keep)
    return found


@pytest.mark.parametrize("seed", [3, 14])
def test_a_seed_gives_one_course_of_events(seed: int) -> None:
    scenario = Scenario.drawn(seed, faults=0)
    faults = (Fault("crash", 9.0, "v2", 5.0, 0.3), Fault("kill", 900, "", 3.0, 0.9), Fault("garble", 12.0, "v3"))
    first = course(replace(scenario, faults=faults))
    assert len(first) > 100
    assert first == course(replace(scenario, faults=faults))
    assert first != course(replace(scenario, faults=faults, seed=seed + 1))


def test_a_seed_gives_one_course_whatever_the_hashes_of_a_process() -> None:
    """After a loss of rows, ranks were killed in the order of a set. Seed 3000102 has a power failure."""
    program = (
        "from tests.faults.scenario import Scenario, carry_out\n"
        "for event in carry_out(Scenario.drawn(3000102), lambda outcome: None).seen: print(*event[:2])"
    )
    courses = []
    for hashes in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=True)
        courses.append(done.stdout.splitlines())
    assert len(courses[0]) > 100
    assert courses[0] == courses[1]


@pytest.mark.parametrize("kind", NODE_FAULTS)
def test_each_fault_strikes_and_is_survived(kind: str) -> None:
    struck: list[str] = []

    def then(outcome: Outcome) -> None:
        assert outcome.run is not None and outcome.run.info.state == "completed", outcome.error
        struck.extend(fault.kind for _, what, fault, *_ in outcome.seen if what == "fault")

    faults = tuple(Fault(kind, 1.5 + 0.4 * number, f"v{1 + number % 4}", 3.0, number / 5) for number in range(5))
    carry_out(Scenario(5, nodes=4, jobs=EIGHT, faults=faults), then)
    assert struck == [kind] * 5
    assert violations(Scenario(5, nodes=4, jobs=EIGHT, faults=faults)) == []


def test_a_replay_that_is_killed_five_times_loses_only_the_pauses() -> None:
    faults = tuple(Fault("kill", 300 + 150 * number, "", 2.0, 0.9) for number in range(5))
    outcomes: list[pd.DataFrame] = []

    def keep(outcome: Outcome) -> None:
        assert outcome.run is not None
        outcomes.append(outcome.run.jobs)
        pauses, faults = outcome.run.info.pauses, outcome.scenario.faults
        assert outcome.kills == len(faults) == len(pauses)
        assert all(pause["wall_s"] >= 2.0 and pause["lost"] == 0 for pause in pauses)
        assert ("pauses" in {cause["signal"] for cause in outcome.run.info.health["causes"]}) == bool(faults)

    for drawn in (faults, ()):
        carry_out(Scenario(7, nodes=4, jobs=EIGHT, faults=drawn), keep)
    killed, never = outcomes
    assert list(killed["state"]) == list(never["state"]) == ["completed"] * len(EIGHT)
    assert list(killed["restarts"]) == [0] * len(EIGHT)
    # A start and an end are late by the time in which no controller ran, of which the pauses leave out all but the time
    # until the agents notice. At speed 100, that is some trace seconds.
    assert (killed["end"] - never["end"]).abs().max() < 60.0


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["pref", "sd", "easy"])
def test_a_replay_may_be_killed_at_any_call(policy: str) -> None:
    """At every seventh call, from the start of the agents to their end. The first two kills come 40 calls apart."""
    jobs = tuple(JobSpec(20.0 + 30.0 * number, 60.0, 120.0, 1 + number % 2, 1, 3) for number in range(3))
    scenario, calls = Scenario(9, policy, nodes=3, jobs=jobs), list[int]()
    carry_out(scenario, lambda outcome: calls.append(outcome.world.calls))
    assert calls[0] > 200
    found = {}
    for call in range(3, calls[0], 7):
        kills = tuple(Fault("kill", at, "", 1.0, 0.9) for at in (call, call + 40))
        if texts := violations(replace(scenario, faults=kills)):
            found[call] = texts
    assert found == {}


def test_a_finding_is_shrunk_to_the_fault_and_the_job_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracebed.orchestrator.replay.loop import Replayer

    send = Replayer._send

    def forgets(self: Replayer) -> None:
        self.ranks._outbox = [pair for pair in self.ranks._outbox if pair[1].get("job") != "j5"]
        send(self)

    monkeypatch.setattr(Replayer, "_send", forgets)
    faults = (Fault("drift", 1.0, "v2", 1.0, 0.3), Fault("slow_network", 2.0, "v3", 1.0, 0.3))
    scenario = Scenario(8, nodes=4, jobs=EIGHT[:6], faults=faults)
    found = violations(scenario)
    assert found
    smallest = shrunk(Finding(scenario, found))
    assert len(smallest.scenario.jobs) == 5
    assert smallest.scenario.faults == ()
    assert smallest.as_test().startswith("def test_")


def test_the_worlds_folder_is_removed() -> None:
    folders: list[Path] = []
    carry_out(Scenario(1, nodes=2, jobs=EIGHT[:1]), lambda outcome: folders.append(outcome.world.folder))
    assert folders and not folders[0].exists()


@pytest.mark.parametrize("entry", ["start j1", "launched j1"])
def test_a_job_that_costs_a_node_at_each_start_fails(entry: str) -> None:
    """Without an end of its own, the replay never ends: the job is requeued each time, also across a resumption."""
    jobs = (JobSpec(0.0, 100.0, 200.0, 1, 1, 1), JobSpec(40.0, 50.0, 100.0, 1, 1, 1))
    losses = tuple(Fault("kill_agent", 0.0, "v1", 0.5, 0.5, entry) for _ in range(MOST_LOSSES))
    kill = Fault("kill", 0, "", 3.0, 0.5, "requeue j1")
    scenario = Scenario(7, policy="fcfs", nodes=1, jobs=jobs, faults=(*losses[:2], kill, *losses[2:]))
    assert violations(scenario) == []

    def check(outcome: Outcome) -> None:
        assert outcome.kills == 1 and outcome.run is not None
        first, second = outcome.run.jobs.to_dict("records")
        assert (first["state"], second["state"]) == ("failed", "completed")
        assert first["reason"].startswith(f"the job lost nodes {MOST_LOSSES} times, and is not requeued again")

    carry_out(scenario, check)
