"""Nodes of a replay that sleep: real agents that end and start, and the same decisions as in a simulation."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import psutil
import pytest

from tests.oracles.redecided import decided, emulated, virtual
from tests.oracles.survival import Case, count
from tests.runs import replaying
from tests.servers.agents import agents_of
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.machine.calendar import UNDATED, Clock
from tracebed.machine.power import NodePower, PowerState, Sleep
from tracebed.orchestrator.replay import journal, redecide
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.scheduler import Scheduler
from tracebed.orchestrator.scheduling.sleeping import Sleeping
from tracebed.orchestrator.scheduling.windows import WatchedWindows, switch, watched_cluster
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


def windowed(inventory: Inventory, start: str, end: str, *, boot_s: float = 40.0, **rule: Any) -> Inventory:
    """Return an inventory half of whose nodes are off in a window."""
    window = {"rule": "windows", "idle_s": 0.0, "start": start, "end": end}
    return asleep(inventory, boot_s=boot_s, **{**window, "share": 0.5, **rule})


def malleable(work: Workload, *numbers: int) -> Workload:
    """Return jobs of which those with `numbers` run on one to four nodes."""
    table = work.table.assign(
        nodes_min=work.table["nodes"], nodes_max=work.table["nodes"], nodes_pref=work.table["nodes"]
    )
    table.loc[[*numbers], ["kind", "nodes_min", "nodes_max"]] = "malleable", 1, 4
    return Workload(table.assign(speedup="amdahl", speedup_parameters="0.95"))


def jobs_at(*jobs: tuple[float, float, int], limit: float = 1.5) -> Workload:
    """Return rigid jobs of (submit, run time, nodes). Their limits are `limit` times as long."""
    submit, run_time, nodes = (list(column) for column in zip(*jobs, strict=True))
    table = {"job_id": [f"j{number}" for number in range(1, len(jobs) + 1)], "submit_time": submit}
    table |= {"run_time": run_time, "time_limit": [limit * each for each in run_time], "nodes": nodes}
    return Workload(pd.DataFrame({**table, "cores_per_node": 2, "kind": "rigid"}))


def known_states(run: Run, end: float) -> dict[int, list[str]]:
    """Return the states of the power of each node before `end`."""
    return {node: [state for since, state in own if since < end] for node, own in states(run).items()}


def check_decisions(path: Path, work: Workload, inventory: Inventory, policy: str) -> None:
    """Check that the policy decides again what is in the journal at `path`, and that the journal gives the run."""
    setup, machine = Setup.of(policy), InventoryMachine.of(inventory)
    loaded, jobs = setup.resolved(len(inventory.nodes))[1], Jobs.of(work, cores_per_node=2)
    entries, sleeping = journal.read(path)[1], Sleeping.of(machine, Clock.of(work.provenance))
    again = redecide.redecide(entries, jobs, inventory.facts, loaded, setup.scheduling, None, sleeping)
    assert [*again] == decided(path)
    run, rebuilt = Run.load(path.parent), recovered(path)
    for table in ("jobs", "allocations", "reconfigurations"):
        pd.testing.assert_frame_equal(getattr(rebuilt, table), getattr(run, table))


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
    real = known_states(run, end)
    assert real == known_states(simulated, end) and sum(map(len, real.values())) > 8
    check_decisions(tmp_path / "run" / JOURNAL, work, inventory, policy)


WINDOWS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("easy", "00:10", "00:30", {}),
    ("conservative", "00:05", "00:30", {"boot_s": 300.0}),
    ("easy", "00:10", "00:20", {"share": 1.0}),
    ("min", "00:22", "00:35", {}),
    ("pref", "00:08", "00:35", {}),
    ("pref", "00:08", "00:35", {"shrink": False}),
    ("dmr", "00:08", "00:35", {}),
    ("easy", "23:30", "00:15", {}),  # the nodes are off at time 0 of the simulation, and go off in the replay
]


@pytest.mark.parametrize(("policy", "start", "end", "rule"), WINDOWS)
def test_nodes_are_off_in_windows_as_in_the_simulation(
    tmp_path: Path, policy: str, start: str, end: str, rule: dict[str, Any]
) -> None:
    """Time 0 is midnight in Berlin. The jobs and the states are those of the prediction, up to the times of agents."""
    numbers = range(14)
    jobs = jobs_at(*((160.0 * n + 7 * (n * n % 11), 155.0 + 37 * (n % 5), 1 + n % 4) for n in numbers))
    work = malleable(jobs, *(n for n in numbers if n % 3))
    midnight = datetime(2026, 7, 2, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    work = Workload(work.table, replace(work.provenance, unix_start=midnight, time_zone="Europe/Berlin"))
    inventory = replace(windowed(virtual(4), start, end, **rule), heartbeat_s=20.0)
    run = replay(work, inventory, policy, tmp_path / "run", **replaying(8.0))
    simulated = predict(work, InventoryMachine.of(inventory), policy)
    for column in ("start", "end"):
        assert (run.jobs[column] - simulated.jobs[column]).abs().max() < 8.0
    columns = ["job_id", "nodes_from", "nodes_to"]
    assert run.reconfigurations[columns].equals(simulated.reconfigurations[columns])
    real, expected = states(run), states(simulated)
    assert known_states(run, math.inf) == known_states(simulated, math.inf) and len(real) == 4 * rule.get("share", 0.5)
    for node, own in real.items():
        late = [since - then for (since, state), (then, _) in zip(own, expected[node], strict=True) if state != "off"]
        assert all(0.0 <= each < 8.0 for each in late)
    assert not any(UNDATED in warning for warning in run.info.warnings)
    check_decisions(tmp_path / "run" / JOURNAL, work, inventory, policy)


def test_agents_end_when_a_job_leaves_their_nodes_for_a_window_and_start_at_its_end(tmp_path: Path) -> None:
    """Of four nodes two are to be off. The first job leaves them, and the second one waits for all nodes."""
    inventory, agents = windowed(emulated(4), "00:02", "00:12"), set[int]()

    def watch(ended: int) -> None:
        agents.update(process.pid for process in agents_of(psutil.Process()))

    work = malleable(jobs_at((0, 300, 4), (200, 30, 4)), 0)
    run = replay(work, inventory, "pref", tmp_path / "run", on_progress=watch, **replaying(100.0))
    assert [*run.jobs["state"]] == ["completed"] * 2
    first, changes = run.reconfigurations.iloc[0], states(run)
    assert (first["job_id"], first["nodes_from"], first["nodes_to"]) == ("j1", 4, 2)
    assert known_states(run, run.jobs["end"][1]) == {0: [*NEXT.values()], 1: [*NEXT.values()]} and len(agents) == 6
    for (off, _), _, (boot, _), (on, _) in changes.values():
        assert 120.0 <= off < 720.0 <= boot <= on - 40.0 and run.jobs["start"][1] >= on
    assert any(UNDATED in warning for warning in run.info.warnings)
    check_decisions(tmp_path / "run" / JOURNAL, work, inventory, "pref")


NIGHT = """
grain_s: 0.02
linger_s: 120
sleep: {rule: windows, start: "00:01", end: "00:10", share: 0.5}
defaults: {emulated: true, cores: 2, power: {busy_w: 300, idle_w: 100, boot_s: 40, shutdown_s: 20}}
nodes: [{name: "n[1-4]"}]
"""


@pytest.mark.slow
def test_a_replay_that_is_killed_within_a_window_is_resumed(tmp_path: Path) -> None:
    """Two agents are left: no agent of a node that sleeps is started before the end of the window."""
    case = Case(tmp_path, jobs_at((0, 20, 1), (100, 60, 4)), NIGHT, "--speed", "100", "--policy", "easy")
    try:
        process = case.start()
        case.wait_until(process, count("asleep", 2))
        case.kill(process)
        assert len(case.agents()) == 2
        run = case.finish(case.start("--resume"))
    finally:
        case.end()
    assert [*run.jobs["state"]] == ["completed"] * 2 and len(run.info.pauses) == 1
    off = [*NEXT.values()]
    assert known_states(run, math.inf) == {0: off, 1: off}
    assert run.jobs["start"][1] >= 640.0


def test_a_replay_ends_when_nodes_never_serve(tmp_path: Path) -> None:
    """The boot lasts longer than the time between two windows."""
    inventory = replace(windowed(virtual(4), "22:00", "06:00", boot_s=17 * 3600.0), heartbeat_s=600.0)
    for number, interval_s in enumerate((0.0, 1000.0)):
        run = replay(
            jobs_at((0, 60, 4)), inventory, "easy", tmp_path / f"{number}", **replaying(100.0, interval_s=interval_s)
        )
        assert [*run.jobs["state"]] == ["unknown"] and run.info.state == "completed"


def test_a_window_that_passes_before_it_is_noticed_changes_nothing() -> None:
    """A round may be late by more than a window lasts, at a high speed."""
    work, machine = jobs_at((100, 60, 1)), InventoryMachine.of(windowed(virtual(4), "00:01", "00:10"))
    jobs, sleeping = Jobs.of(work, cores_per_node=2), Sleeping.of(machine)
    cluster = watched_cluster([2] * 4, [1] * 4, "first", jobs, sleeping)
    assert isinstance(cluster, WatchedWindows) and (cluster.next, cluster.end) == (100.0, 600.0)
    scheduler = Scheduler(jobs, cluster, registry.load("easy"), redecide._DecisionRecorder(None))  # type: ignore[arg-type]
    assert not switch(cluster, scheduler, 700.0)
    assert (cluster.next, cluster.take_orders(), cluster.idle) == (86_460.0, [], [0, 1, 2, 3])
    assert switch(cluster, scheduler, 86_500.0)
    assert cluster.take_orders() == [(0, PowerState.SHUTDOWN), (1, PowerState.SHUTDOWN)]


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
        (asleep(virtual(2), rule="subpart", share=0.5), "easy", "the rule subpart is that of the executor batsched"),
        (replace(virtual(2), sleep=Sleep(rule="idle")), "easy", "class 1 of the machine has no `power`"),
    ):
        with pytest.raises(InputError, match=what):
            replay(work, inventory, policy, tmp_path / "run", **replaying(100.0))
    assert not [*tmp_path.iterdir()]
