"""Jobs that share nodes in a replay: their processes never share a core, and lose no work."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from redecided import decided, decided_again
from test_replayer import CPUS, workload
from test_replayer_mishaps import carry_out
from tracebed.benchmarks.cpus import parse_cpus
from tracebed.benchmarks.program import Program
from tracebed.converters.workload import Workload
from tracebed.orchestrator import journal
from tracebed.orchestrator.replayer import Options, replay
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Cancel, Decision, Lend, Share, Start, State
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Event
from tracebed.orchestrator.testbeds.inventory import Inventory, Node
from tracebed.orchestrator.testbeds.local import LocalTestbed

pytestmark = pytest.mark.usefixtures("no_process_is_left")


class Watched(LocalTestbed):
    """A testbed that knows which CPUs each rank has or may have, and lets nobody be told of another's."""

    def __init__(self, inventory: Inventory, spool: Path) -> None:
        super().__init__(inventory, spool)
        self.masks: dict[tuple[int, str], list[set[int]]] = {}  # (node, job) -> what it works on, what it was told
        self.narrowed: list[tuple[int, str]] = []
        self.guests_launched = 0

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        if "cpus" in message:
            key, cpus = (node, message["job"]), set(parse_cpus(message["cpus"]))
            others = [masks for (at, job), masks in self.masks.items() if at == node and job != key[1]]
            assert not any(cpus & mask for masks in others for mask in masks), (key, message, others)
            self.guests_launched += message["type"] == "launch" and bool(others)
            assert message["type"] != "launch" or key not in self.masks
            if message["type"] == "launch" or key in self.masks:  # else its end is among the events not yet acted on
                self.masks.setdefault(key, []).append(cpus)
                assert len(self.masks[key]) <= 2  # one change may be pending
        super().send(node, message)

    def receive(self, until: float | None) -> list[Event]:
        events = super().receive(until)
        for node, message, _ in events:
            key = (node, message.get("job", ""))
            if message["type"] == "ended":
                del self.masks[key]
            elif message["type"] == "resized" and "cpus" in message:
                before, now = self.masks[key]
                assert set(parse_cpus(message["cpus"])) == now
                self.masks[key] = [now]
                if len(now) < len(before):
                    self.narrowed.append(key)
            assert message["type"] != "error" or "mask" not in message["what"], message
        return events


class Crowding:
    """A policy that has jobs share nodes at random, and ends some."""

    malleable: ClassVar[bool] = False
    shares: ClassVar[bool] = True

    def __init__(self, seed: int, cancels: float) -> None:
        self.draw, self.cancels = random.Random(seed), cancels

    def decide(self, state: State) -> Iterator[Decision]:
        draw, jobs, cluster = self.draw, state.jobs, state.cluster
        for job in list(state.queue.jobs()):
            size = jobs.nodes[job]
            free = min(state.idle, draw.randint(0, size) if state.size else size)
            lendable = [
                (owner, node)
                for owner in state.size
                if jobs.kind[owner] == "malleable"
                for node in cluster.owned(owner)
                if node not in cluster.loans
            ]
            if free == size:
                yield Start(job, size)
            elif len(lendable) >= size - free and jobs.kind[job] != "rigid":
                lent = draw.sample(lendable, size - free)
                cores = {owner: draw.randint(1, cluster.cores[0] - 1) for owner, _ in lent}
                nodes = {owner: tuple(node for of, node in lent if of == owner) for owner in cores}
                yield Share(job, free, tuple(Lend(owner, nodes[owner], cores[owner]) for owner in cores))
        for job in list(state.size):
            if draw.random() < self.cancels:
                yield Cancel(job, "bad luck")


def crowd(jobs: int, seed: int) -> Workload:
    draw = np.random.default_rng(seed)
    nodes, run_time = draw.integers(1, 4, jobs), draw.exponential(60.0, jobs)
    table = {
        "job_id": [f"job {number}" for number in range(jobs)],
        "submit_time": np.sort(draw.uniform(0.0, 3000.0, jobs)),
        "run_time": run_time,
        "time_limit": 3 * run_time + 1,
        "nodes": nodes,
        "nodes_min": nodes,
        "nodes_max": nodes,
        "cores_per_node": draw.integers(1, 5, jobs),
        "kind": draw.choice(["malleable", "moldable", "rigid"], jobs, p=[0.7, 0.2, 0.1]),
    }
    return Workload(pd.DataFrame(table))


def assert_no_core_has_two_jobs(allocations: pd.DataFrame, cores: Sequence[int]) -> None:
    for node, count in enumerate(cores):
        here = allocations[(allocations["node"] <= node) & (node < allocations["node"] + allocations["count"])]
        for instant in set(here["start"]):
            assert here.loc[(here["start"] <= instant) & (instant < here["end"]), "cores"].sum() <= count


@pytest.mark.parametrize(("balance", "cancels"), [("static", 0.0), ("dynamic", 0.02)])
def test_jobs_crowded_onto_nodes_never_share_a_core_and_lose_no_work(
    tmp_path: Path, balance: str, cancels: float
) -> None:
    work = crowd(150, 7)
    nodes = tuple(Node(f"n{number}", 4, 2, None, True) for number in range(5))
    inventory = Inventory("test", "local", nodes, grain_s=0.004)
    testbed = Watched(inventory, tmp_path / "spool")
    options = Options(1000.0, balance=balance)
    run = carry_out(work, Crowding(5, cancels), tmp_path, inventory, options, testbed)
    states = Counter(run.jobs["state"])
    assert states.keys() <= {"completed", "cancelled"} and states["completed"] >= 100
    assert bool(states["cancelled"]) == bool(cancels)
    assert testbed.guests_launched > 20
    assert len(testbed.narrowed) > 10
    assert_no_core_has_two_jobs(run.allocations, [4] * 5)

    done: Counter[str] = Counter()
    cut_short = set()
    for entry in journal.read(tmp_path / JOURNAL)[1]:
        if entry.kind == "ended":
            done[entry.job or ""] += entry.data["units_done"]
            cut_short |= {entry.job} if entry.data["state"] == "killed" else set()
    asked = work.table.set_index("job_id")
    for name in set(run.jobs.loc[run.jobs["state"] == "completed", "job_id"]) - cut_short:
        job = asked.loc[name]
        program = Program.lasting(job["run_time"] / options.speed, job["nodes"], job["cores_per_node"], EMULATED_RATE)
        assert done[name] == program.serial_units + program.parallel_units
    jobs = Jobs.of(work, cores_per_node=4)
    assert decided_again(tmp_path / JOURNAL, jobs, inventory, Crowding(5, cancels)) == decided(tmp_path / JOURNAL)


MATE_AND_GUEST = {
    "job_id": ["mate", "guest"],
    "submit_time": [0.0, 20.0],
    "run_time": [200.0, 20.0],
    "time_limit": [400.0, 40.0],
    "nodes": 1,
    "nodes_min": 1,
    "nodes_max": 1,
    "cores_per_node": 2,
    "kind": "malleable",
}


@pytest.mark.skipif(len(CPUS) < 2, reason="a guest needs a CPU beside its mate's; this machine has one")
def test_a_guest_computes_on_the_highest_cpu_while_its_mate_keeps_the_other(tmp_path: Path) -> None:
    inventory = Inventory("test", "local", (Node("n1", 2, 1, tuple(CPUS[:2])),), grain_s=0.02)
    work, parameters = Workload(pd.DataFrame(MATE_AND_GUEST)), {"max_slowdown": "inf"}
    run = replay(work, inventory, "sd", tmp_path / "run", policy_parameters=parameters, options=Options(speed=100))
    low, high = (str(cpu) for cpu in CPUS[:2])
    both = f"{low},{high}" if CPUS[1] > CPUS[0] + 1 else f"{low}-{high}"
    assert run.info.counts == {"jobs": 2, "completed": 2}
    assert run.jobs_on_shared_nodes == 2
    held = run.allocations.sort_values(["start", "job_id"])
    assert held[["job_id", "cores", "cpus"]].values.tolist() == [
        ["mate", 2, both],
        ["guest", 1, high],
        ["mate", 1, low],
        ["mate", 2, both],
    ]
    entries = list(journal.read(tmp_path / "run" / JOURNAL)[1])
    told = [(entry.kind, entry.job, entry.data.get("cores")) for entry in entries if entry.kind in ("start", "cores")]
    parts = [("start", "guest", {"n1": "1"}), ("cores", "mate", {"n1": "0"}), ("cores", "mate", None)]
    assert told == [("start", "mate", None), *parts]
    order = [(entry.kind, entry.job, entry.data.get("cpus")) for entry in entries]
    gave_way, came = order.index(("resized", "mate", low)), order.index(("started", "guest", None))
    gone, grew = order.index(("ended", "guest", None)), order.index(("resized", "mate", both))
    assert gave_way < came < gone < grew
    [last] = [entry for entry in entries if entry.kind == "ended" and entry.job == "mate"]
    assert last.data["state"] == "completed" and last.data["cpu_s"] > 0


class Impatient:
    """Has the second job be a guest of the first, and ends it before its mate can have given way."""

    malleable: ClassVar[bool] = False
    shares: ClassVar[bool] = True

    def decide(self, state: State) -> Iterator[Decision]:
        for job in list(state.queue.jobs()):
            if not state.size:
                yield Start(job, 1)
            else:
                [owner] = state.size
                yield Share(job, 0, (Lend(owner, (0,), 1),))
                yield Cancel(job, "no patience")


def test_a_guest_that_is_ended_before_its_place_is_clear_never_runs(tmp_path: Path) -> None:
    inventory = Inventory("test", "local", (Node("n1", 2, 1, None, True),), grain_s=0.5)
    testbed = Watched(inventory, tmp_path / "spool")
    work = Workload(pd.DataFrame(MATE_AND_GUEST))
    run = carry_out(work, Impatient(), tmp_path, inventory, Options(speed=100.0), testbed)
    assert run.jobs.set_index("job_id")["state"].to_dict() == {"mate": "completed", "guest": "cancelled"}
    assert not testbed.guests_launched
    assert {entry.job for entry in journal.read(tmp_path / JOURNAL)[1] if entry.kind == "ended"} == {"mate"}


@pytest.mark.parametrize("policy", ["sd", "drom-share"])
def test_a_limit_ends_guests_and_mates_at_the_speed_that_they_should_have(tmp_path: Path, policy: str) -> None:
    work = workload(12)
    inventory = Inventory("test", "local", tuple(Node(f"n{n}", 2, 1, None, True) for n in range(4)), grain_s=0.02)
    options = Options(speed=400, kill_at_limit=True)
    run = replay(work, inventory, policy, tmp_path / "run", options=options)
    assert set(run.jobs["state"]) <= {"completed", "killed"}
    assert_no_core_has_two_jobs(run.allocations, [2] * 4)
    jobs = Jobs.of(work, cores_per_node=2)
    path = tmp_path / "run" / JOURNAL
    assert decided_again(path, jobs, inventory, registry.load(policy), options) == decided(path)
