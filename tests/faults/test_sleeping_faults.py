"""Replays on nodes that sleep in virtual time, with faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.faults.scenario import JobSpec, Outcome, carry_out
from tests.faults.shrinking import examine, violations
from tests.faults.sleeping_scenario import SleepingPools, SleepingScenario
from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.sleeping import Sleepers
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.windows import WatchedWindows, WindowedCluster
from tracebed.testing.virtual.faults import Fault

SEEDS, PORTION = 12, 4
"""Number of seeds, and of those of a test. CI plays 200."""
TWO = SleepingScenario(
    seed=1,
    nodes=2,
    jobs=(
        JobSpec(0.0, 100.0, 200.0, 1, 1, 1),
        JobSpec(400.0, 100.0, 200.0, 2, 2, 2),
        JobSpec(900.0, 100.0, 200.0, 2, 1, 2),
    ),
)
"""Both nodes sleep when the second and the third job are submitted."""


@pytest.mark.parametrize("first", range(0, SEEDS, PORTION))
@pytest.mark.parametrize("kind", [SleepingScenario, SleepingPools])
def test_no_rule_is_violated(first: int, kind: type[SleepingScenario]) -> None:
    assert examine(range(first, first + PORTION), kind) == (PORTION, [])


def course(scenario: SleepingScenario, node: str) -> list[tuple[str, str]]:
    """Return what the journal says of a node and the second job: kinds, and states or reasons. All jobs complete."""
    told: list[tuple[str, str]] = []

    def read(outcome: Outcome) -> None:
        assert outcome.run is not None and outcome.journal is not None
        assert [*outcome.run.jobs["state"]] == ["completed"] * 3, outcome.run.jobs
        for entry in journal.read(outcome.journal)[1]:
            if entry.node == node and entry.kind in ("power", "asleep", "back", "lost", "down", "up"):
                told.append((entry.kind, str(entry.data.get("state") or entry.data.get("reason") or "")))
            elif entry.job == "j2" and entry.kind in ("start", "requeue", "launched"):
                told.append((entry.kind, ""))

    carry_out(scenario, read)
    return told


SLEPT = [("power", "shutdown"), ("asleep", ""), ("power", "off")]
BOOTED = [("start", ""), ("power", "boot"), ("back", ""), ("power", "on"), ("launched", "")]


def test_a_job_waits_for_the_nodes_that_boot_for_it() -> None:
    assert violations(TWO) == []
    assert course(TWO, "v2")[: len(SLEPT + BOOTED)] == SLEPT + BOOTED


def test_a_node_whose_agent_does_not_come_back_is_lost_and_its_job_starts_again() -> None:
    """The node loses power while it sleeps. Its job waits for the boot, and returns to the queue."""
    scenario = replace(TWO, faults=(Fault("crash", 0.0, "v2", 12.0, 0.9, after="asleep v2"),))
    assert violations(scenario) == []
    told = course(scenario, "v2")
    lost = ("lost", "did not start: node v2: the node cannot be reached")
    failed = [("start", ""), ("power", "boot"), lost, ("down", f"its agent {lost[1]}"), ("requeue", "")]
    assert told[: len(SLEPT + failed)] == SLEPT + failed
    rest = told[len(SLEPT + failed) :]
    assert rest[:5] == [("back", ""), ("up", ""), ("power", "on"), ("start", ""), ("launched", "")]


@pytest.mark.parametrize("kind", ["crash", "kill_agent", "partition", "hang"])
@pytest.mark.parametrize("after", ["power v2", "asleep v2", "start j2", "back v2"])
def test_a_node_that_is_lost_while_it_sleeps_or_boots_loses_no_job(kind: str, after: str) -> None:
    for keep in (0, 1):
        scenario = replace(TWO, keep=keep, faults=(Fault(kind, 0.0, "v2", 15.0, 0.9, after=after),))
        assert violations(scenario) == []
        course(scenario, "v2")


@pytest.mark.parametrize("first", ["power v1", "asleep v1", "start j2", "back v1"])
@pytest.mark.parametrize("second", ["power v1", "asleep v1", "back v1"])
def test_a_replay_may_be_killed_at_any_change_of_a_node(first: str, second: str) -> None:
    """Before an order is passed to the testbed, and between the report of an agent and the state of its node."""
    kill = Fault("kill", 0, "", 3.0, 0.9)
    scenario = replace(TWO, faults=(kill._replace(after=first), kill._replace(after=second)))
    kills: list[int] = []
    carry_out(scenario, lambda outcome: kills.append(outcome.kills))
    assert kills == [2]
    assert violations(scenario) == []
    assert course(scenario, "v1")[:1] == SLEPT[:1]


@pytest.mark.parametrize("call", range(60, 1200, 95))
def test_a_replay_may_be_killed_at_any_call(call: int) -> None:
    assert violations(replace(TWO, faults=(Fault("kill", call, "", 3.0, 0.9),))) == []


def test_an_order_that_a_killed_replay_did_not_pass_on_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, the node is being switched off for ever."""
    scenario = replace(TWO, faults=(Fault("kill", 0, "", 3.0, 0.9, after="power v2"),))
    assert violations(scenario) == []
    monkeypatch.setattr(Sleepers, "order_again", lambda sleepers: None)
    assert violations(scenario) != []


def test_a_rank_that_is_launched_before_its_node_is_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent is up before the boot is over."""
    complete = Sleepers.complete

    def launch_early(sleepers: Sleepers, now: float) -> list[int]:
        up = {node for node in sleepers._done if sleepers.state[node] is PowerState.BOOT}
        sleepers.ranks.not_on -= up
        for job in [*sleepers.ranks.running]:
            sleepers.ranks.launch(job)
        sleepers.ranks.not_on |= up
        return complete(sleepers, now)

    monkeypatch.setattr(Sleepers, "complete", launch_early)
    found = violations(replace(TWO, boot_s=300.0))
    assert found[0].startswith("power: j2 is launched on v"), found


def test_a_boot_that_is_too_short_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Sleepers.__init__

    def begin_with_less(sleepers: Sleepers, *arguments: Any) -> None:
        begin(sleepers, *arguments)
        sleepers._least_s[PowerState.BOOT] = [270.0] * TWO.nodes

    monkeypatch.setattr(Sleepers, "__init__", begin_with_less)
    assert violations(replace(TWO, boot_s=300.0))[0].startswith("power: v1 is ")


# -- windows -----------------------------------------------------------------------------------------------------------

NIGHT = SleepingScenario(
    seed=1,
    policy="pref",
    nodes=4,
    window=(5, 15),
    jobs=(
        JobSpec(0.0, 400.0, 800.0, 4, 1, 4),
        JobSpec(200.0, 100.0, 200.0, 4, 4, 4),
        JobSpec(1200.0, 100.0, 200.0, 2, 2, 2),
    ),
)
"""From 300 s to 900 s, two of four nodes are off: the first job leaves them, the second one waits for them."""
KEPT = replace(NIGHT, policy="easy", window=(5, 7), shrink=False)
"""The first job keeps the nodes that are to be off until it ends."""


def kinds_of(scenario: SleepingScenario, *kinds: str) -> list[tuple[str, str]]:
    """Return the entries of these kinds in the journal of a replay: kind, and what it is about. All jobs complete."""
    told: list[tuple[str, str]] = []

    def read(outcome: Outcome) -> None:
        assert outcome.run is not None and outcome.journal is not None
        assert {*outcome.run.jobs["state"]} == {"completed"}, outcome.run.jobs
        entries = journal.read(outcome.journal)[1]
        chosen = (entry for entry in entries if entry.kind in kinds)
        told.extend((entry.kind, entry.job or entry.node or str(entry.data["is_open"])) for entry in chosen)

    carry_out(scenario, read)
    return told


def test_a_job_leaves_the_nodes_of_a_window_and_another_one_waits_for_its_end() -> None:
    assert violations(NIGHT) == []
    told = kinds_of(NIGHT, "start", "resize", "window", "asleep", "back")
    assert told[:3] == [("start", "j1"), ("resize", "j1"), ("window", "True")]
    assert [*map(sorted, (told[3:5], told[6:8]))] == [[(kind, f"v{n}") for n in (1, 2)] for kind in ("asleep", "back")]
    assert (told[5], told[8]) == (("window", "False"), ("start", "j2"))
    assert [kind for kind, _ in kinds_of(replace(NIGHT, shrink=False), "resize", "window")] == ["window", "window"]


@pytest.mark.parametrize("scenario", [NIGHT, KEPT])
@pytest.mark.parametrize("kind", ["crash", "partition"])
@pytest.mark.parametrize("after", ["window ", "power v1", "back v2", "effect j1", "end j1"])
def test_a_node_that_is_lost_around_a_window_loses_no_job(scenario: SleepingScenario, kind: str, after: str) -> None:
    for node in ("v1", "v2"):
        fault = Fault(kind, 0.0, node, 15.0, 0.9, after=after)
        assert violations(replace(scenario, faults=(fault,))) == []
        assert kinds_of(replace(scenario, faults=(fault,)), "end") != []


@pytest.mark.parametrize("after", ["window ", "power v1", "resize j1", "asleep v1", "back v1"])
@pytest.mark.parametrize("scenario", [NIGHT, KEPT])
def test_a_replay_may_be_killed_around_a_window(scenario: SleepingScenario, after: str) -> None:
    kill = Fault("kill", 0, "", 3.0, 0.9)
    killed = replace(scenario, faults=(kill._replace(after=after), kill._replace(after="window ")))
    assert violations(killed) == []
    assert kinds_of(killed, "window") == [("window", "True"), ("window", "False")]


def test_the_end_of_a_window_does_not_bring_back_a_node_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that held it cannot end before, since a rank of it hangs on another node."""
    faults = Fault("hang", 1.0, "v3", 5.0, 0.9), Fault("crash", 0.0, "v1", 20.0, 0.9, after="window ")
    scenario = replace(KEPT, jobs=(*KEPT.jobs[:1], JobSpec(200.0, 100.0, 200.0, 2, 2, 2)), faults=faults)
    assert violations(scenario) == []
    monkeypatch.setattr(WindowedCluster, "lose", Cluster.lose)
    assert violations(scenario) != []


def test_a_node_that_boots_within_the_window_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    take = WatchedWindows.take_orders

    def take_all(cluster: WatchedWindows) -> list[tuple[int, PowerState]]:
        is_open, cluster.is_open = cluster.is_open, False
        orders = take(cluster)
        cluster.is_open = is_open
        return orders

    monkeypatch.setattr(WatchedWindows, "take_orders", take_all)
    assert violations(NIGHT)[0].startswith("windows: v1 is boot at 3")
