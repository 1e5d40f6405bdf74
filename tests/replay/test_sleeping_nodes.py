"""Nodes of a replay that sleep: real agents that end and start, and the same decisions as in a simulation."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from tests.oracles.redecided import decided, emulated, virtual
from tests.runs import replaying
from tests.servers.agents import agents_of
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.machine.power import NodePower, Sleep
from tracebed.orchestrator.replay import journal, redecide
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.sleeping import Sleeping
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.testbeds.machine import InventoryMachine
from tracebed.orchestrator.testbeds.nodes import Inventory
from tracebed.orchestrator.watching.picture import line
from tracebed.orchestrator.watching.replay_view import ReplayView

pytestmark = pytest.mark.usefixtures("no_process_is_left")

NEXT = {"on": "shutdown", "shutdown": "off", "off": "boot", "boot": "on"}


def asleep(inventory: Inventory, *, boot_s: float = 40.0, shutdown_s: float = 20.0, **rule: Any) -> Inventory:
    """Return an inventory whose nodes sleep."""
    power = NodePower(busy_w=300.0, idle_w=100.0, off_w=5.0, boot_s=boot_s, shutdown_s=shutdown_s)
    groups = tuple(
        replace(group, nodes=tuple(replace(node, power=power) for node in group.nodes)) for group in inventory.groups
    )
    nodes = tuple(node for group in groups for node in group.nodes)
    return replace(inventory, nodes=nodes, groups=groups, sleep=Sleep(**{"rule": "idle", "idle_s": 50.0, **rule}))


def jobs_at(*jobs: tuple[float, float, int], limit: float = 1.5) -> Workload:
    """Return rigid jobs of (submit, run time, nodes). Their limits are `limit` times as long."""
    submit, run_time, nodes = (list(column) for column in zip(*jobs, strict=True))
    table = {"job_id": [f"j{number}" for number in range(1, len(jobs) + 1)], "submit_time": submit}
    table |= {"run_time": run_time, "time_limit": [limit * each for each in run_time], "nodes": nodes}
    return Workload(pd.DataFrame({**table, "cores_per_node": 2, "kind": "rigid"}))


def states(run: Run) -> dict[int, list[tuple[float, str]]]:
    """Return the changes of the power of each node."""
    rows = run.nodes[run.nodes["power_state"] != ""]
    return {int(node): list(zip(own["time"], own["power_state"], strict=True)) for node, own in rows.groupby("node")}


def test_agents_of_nodes_that_sleep_end_and_start_and_a_job_waits_for_them(tmp_path: Path) -> None:
    """Each job but the first is submitted after the end of the one before it, when its nodes sleep."""
    inventory = asleep(emulated(2), idle_s=0.0)
    agents: set[int] = set()

    def watch(ended: int) -> None:
        agents.update(process.pid for process in agents_of(psutil.Process()))

    table = jobs_at((0, 60, 2), (1, 60, 2), (2, 30, 1)).table
    work = Workload(table.assign(after=["", "j1", "j2"], think_time=[math.nan, 100.0, 100.0]))
    run = replay(work, inventory, "easy", tmp_path / "run", on_progress=watch, **replaying(100.0))
    assert [*run.jobs["state"]] == ["completed"] * 3
    changes, jobs = states(run), run.jobs.set_index("job_id")
    boots = [since for own in changes.values() for since, state in own if state == "boot"]
    assert (len(boots), len(agents)) == (3, 5)
    for own in changes.values():
        before, since = "on", -math.inf
        for time, state in own:
            assert state == NEXT[before]
            assert time - since >= {"off": 20.0, "on": 40.0}.get(state, 0.0)
            before, since = state, time
    on = max(time for own in changes.values() for time, state in own if state == "on" and time < jobs["end"]["j2"])
    assert jobs["start"]["j2"] + 40.0 <= on <= jobs["launched"]["j2"]
    assert run.info.machine is not None and run.info.machine.sleep == inventory.sleep
    again = recovered(tmp_path / "run" / JOURNAL)
    pd.testing.assert_frame_equal(again.jobs, run.jobs)
    pd.testing.assert_frame_equal(again.nodes, run.nodes)
    assert states(Run.load(tmp_path / "run")) == changes
    view = ReplayView(facts := journal.read_facts(tmp_path / "run" / JOURNAL))
    asleep_at = []
    for entry in journal.read(tmp_path / "run" / JOURNAL)[1]:
        view.apply([entry])
        asleep_at.append(view.node_counts()["asleep"])
    assert (asleep_at[0], max(asleep_at)) == (0, 2) and "nodes asleep" in line(view)
    view.finish(facts["end"])
    assert view.health() == run.info.health


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@pytest.mark.parametrize("rule", [{"keep": 0}, {"keep": 2, "idle_s": 0.0}, {"boot_s": 200.0, "shutdown_s": 90.0}])
def test_nodes_sleep_as_in_the_simulation(tmp_path: Path, policy: str, rule: dict[str, Any]) -> None:
    """The jobs and the states of all nodes are those of the prediction, up to the times of agents."""
    work = jobs_at(*((160.0 * n + 7 * (n * n % 11), 55.0 + 37 * (n % 5), 1 + n % 4) for n in range(14)))
    inventory = replace(asleep(virtual(4), **rule), heartbeat_s=20.0)
    run = replay(work, inventory, policy, tmp_path / "run", **replaying(8.0))
    simulated = predict(work, InventoryMachine.of(inventory), policy)
    for column in ("start", "end"):
        assert (run.jobs[column] - simulated.jobs[column]).abs().max() < 8.0
    end = simulated.jobs["end"].max()
    real, expected = (
        {node: [state for since, state in own if since < end] for node, own in states(each).items()}
        for each in (run, simulated)
    )
    assert real == expected and sum(map(len, real.values())) > 8
    path = tmp_path / "run" / JOURNAL
    jobs, sleeping = Jobs.of(work, cores_per_node=2), Sleeping.of(InventoryMachine.of(inventory))
    entries, scheduling = journal.read(path)[1], Setup.of(policy).scheduling
    again = redecide.redecide(entries, jobs, inventory.facts, registry.load(policy), scheduling, None, sleeping)
    assert [*again] == decided(path)


def test_the_limit_of_a_job_counts_from_the_boot_of_its_nodes(tmp_path: Path) -> None:
    """A boot takes longer than the limit, and an agent longer than the boot."""
    for number, boot_s in enumerate((500.0, 0.0)):
        inventory, work = asleep(virtual(2), boot_s=boot_s), jobs_at((0, 60, 1), (300, 60, 2), limit=1.2)
        run = replay(work, inventory, "easy", tmp_path / f"run{number}", **replaying(200.0, over_limit="kill"))
        assert [*run.jobs["state"]] == ["completed"] * 2
        assert run.jobs["launched"][1] - run.jobs["start"][1] > max(12.0, boot_s)
        assert run.info.health["state"] == "healthy"  # a boot is not the overhead of a launch


def test_a_rule_that_a_replay_cannot_follow_is_refused(tmp_path: Path) -> None:
    work, nodes = jobs_at((0, 60, 1)), asleep(virtual(2))
    for inventory, policy, what in (
        (nodes, "sd", "lets jobs share nodes"),
        (asleep(virtual(2), rule="windows", share=0.5), "easy", "by the rule windows in a replay"),
        (replace(virtual(2), sleep=Sleep(rule="idle")), "easy", "class 1 of the machine has no `power`"),
    ):
        with pytest.raises(InputError, match=what):
            replay(work, inventory, policy, tmp_path / "run", **replaying(100.0))
    assert not [*tmp_path.iterdir()]
