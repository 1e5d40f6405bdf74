"""Jobs that share nodes in a replay: their processes never share a core, and no work is lost."""

from __future__ import annotations

import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from tests.faults.invariants import CoreWatch
from tests.faults.kinds import NODE_FAULTS
from tests.oracles.redecided import decided, decided_again, emulated, virtual
from tests.patience import GUARD_S
from tests.replay.test_replayer import CPUS, workload
from tests.replay.test_replayer_mishaps import (
    LISTENING,
    STARTED,
    Said,
    Scripted,
    carry_out,
    ended,
    outlived_leader,
    until_sent,
)
from tests.runs import by_node, replaying
from tracebed.benchmarks.program import Program
from tracebed.converters.workload import Workload
from tracebed.ground.cpus import parse_cpus
from tracebed.orchestrator.replay import journal, loop
from tracebed.orchestrator.replay.loop import Replayer
from tracebed.orchestrator.replay.monitor import CpuSpans, Handover, Handovers
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Cancel, Decision, Lend, Reject, Resize, Share, Start, State
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Event
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node
from tracebed.orchestrator.testbeds.provider import world_of
from tracebed.orchestrator.testbeds.testbed import AgentTestbed
from tracebed.testing.virtual.faults import Fault, arm
from tracebed.testing.virtual.kernel import VirtualWorld
from tracebed.testing.virtual.provider import VirtualSettings
from tracebed.validation.metrics.jobs import guests_and_mates

pytestmark = pytest.mark.usefixtures("no_process_is_left")


class Watched(AgentTestbed):
    """A testbed that collects the CPUs of each rank, as its agent reports them."""

    def __init__(self, inventory: Inventory, spool: Path) -> None:
        super().__init__(inventory, spool)
        self.launched: dict[tuple[int, str], set[int]] = {}  # (node, job) -> the CPUs at the launch of its rank
        self.running: set[tuple[int, str]] = set()
        self.started: dict[str, float] = {}  # job -> time at which its ranks began
        self.changes: dict[tuple[int, str], list[tuple[float, set[int]]]] = defaultdict(list)
        self.guests = 0

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        if message["type"] == "launch":
            key = (node, message["job"])
            assert key not in self.launched
            self.guests += any(at == node for at, _ in self.running)
            self.launched[key] = set(parse_cpus(message["cpus"]))
            self.running.add(key)
        super().send(node, message)

    def receive(self, until: float | None) -> list[Event]:
        events = super().receive(until)
        for node, message, _ in events:
            key = (node, message.get("job", ""))
            if message["type"] == "started":
                self.started[key[1]] = message["time"]
            elif message["type"] == "resized" and "cpus" in message:
                cpus = set(parse_cpus(message["cpus"]))
                self.changes[key].append((message["applied"], cpus))
            elif message["type"] == "ended":
                self.running.remove(key)
                if message["state"] == "completed":
                    done = message["done"]  # the agent may answer a request after the end that it does not know yet
                    self.changes[key] = [*(change for change in self.changes[key] if change[0] <= done), (done, set())]
                else:  # it ended before this time, and its CPUs may belong to another rank
                    self.changes[key] = []
                    del self.launched[key]
            assert message["type"] != "error" or "mask" not in message["what"], message
        return events

    def assert_no_cpu_has_two_ranks(self) -> None:
        steps = [(at, key, cpus) for key, changes in self.changes.items() for at, cpus in changes]
        for key, cpus in self.launched.items():  # ranks that did not wait for their CPUs
            if self.started[key[1]] < self.changes[key][0][0]:
                steps.append((self.started[key[1]], key, cpus))
        held: dict[tuple[int, str], set[int]] = {}
        for at, key, cpus in sorted(steps, key=itemgetter(0)):
            held[key] = cpus
            others = {other: mask for other, mask in held.items() if other[0] == key[0] and other != key}
            shared = {other: self.changes[other] for other, mask in others.items() if cpus & mask}
            assert not shared, (at, key, cpus, self.changes[key], shared)


@dataclass(eq=False)
class Crowding:
    """A policy that lets jobs share nodes at random and cancels some."""

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
                if jobs.kind[owner] == "malleable" and owner not in state.resizing
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


def crowd(jobs: int, seed: int, *, resizes: bool = False) -> Workload:
    draw = np.random.default_rng(seed)
    nodes, run_time = draw.integers(1, 4, jobs), draw.exponential(60.0, jobs)
    table = {
        "job_id": [f"job {number}" for number in range(jobs)],
        "submit_time": np.sort(draw.uniform(0.0, 14.0 * jobs, jobs)),
        "run_time": run_time,
        "time_limit": 3 * run_time + 1,
        "nodes": nodes,
        "nodes_min": 1 if resizes else nodes,
        "nodes_max": nodes + resizes,
        "cores_per_node": draw.integers(1, 5, jobs),
        "kind": draw.choice(["malleable", "moldable", "rigid"], jobs, p=[0.7, 0.2, 0.1]),
        "speedup": "amdahl",
        "speedup_parameters": "1.0",
    }
    return Workload(pd.DataFrame(table))


def assert_no_core_has_two_jobs(allocations: pd.DataFrame, cores: Sequence[int]) -> None:
    for node, count in enumerate(cores):
        here = allocations[(allocations["node"] <= node) & (node < allocations["node"] + allocations["count"])]
        for instant in set(here["start"]):
            assert here.loc[(here["start"] <= instant) & (instant < here["end"]), "cores"].sum() <= count


def test_jobs_crowded_onto_nodes_never_share_a_core_and_lose_no_work(tmp_path: Path) -> None:
    """This also holds if jobs are cancelled. Ranks are killed in virtual time."""
    work = crowd(50, 7)
    nodes = tuple(Node(f"n{number}", 4, 2, None, True) for number in range(4))
    inventory = Inventory("test", "agents", nodes, grain_s=0.004)
    testbed = Watched(inventory, tmp_path / "spool")
    options = replaying(1000.0, balance="dynamic")
    run = carry_out(work, Crowding(5, 0.04), tmp_path, inventory, options, testbed)
    states = Counter(run.jobs["state"])
    assert states.keys() == {"completed", "cancelled"}
    assert states["completed"] >= 15
    assert testbed.guests > 20
    testbed.assert_no_cpu_has_two_ranks()
    assert_no_core_has_two_jobs(run.allocations, [4] * 4)

    done: Counter[str] = Counter()
    cut_short = set()
    for entry in journal.read(tmp_path / JOURNAL)[1]:
        if entry.kind == "ended":
            done[entry.job or ""] += entry.data["units_done"]
            cut_short |= {entry.job} if entry.data["state"] != "completed" else set()
    asked = work.table.set_index("job_id")
    for name in set(run.jobs.loc[run.jobs["state"] == "completed", "job_id"]) - cut_short:
        job = asked.loc[name]
        seconds = job["run_time"] / options["speed"]
        program = Program.lasting(seconds, job["nodes"], job["cores_per_node"], EMULATED_RATE)
        assert done[name] == program.serial_units + program.parallel_units
    jobs = Jobs.of(work, cores_per_node=4)
    assert decided_again(tmp_path / JOURNAL, jobs, inventory, Crowding(5, 0.04)) == decided(tmp_path / JOURNAL)


MATE_AND_GUEST = {
    "job_id": ["mate", "guest"],
    "submit_time": [0.0, 20.0],
    "run_time": [160.0, 10.0],
    "time_limit": [400.0, 40.0],
    "nodes": 1,
    "nodes_min": 1,
    "nodes_max": 1,
    "cores_per_node": 2,
    "kind": "malleable",
}


@pytest.mark.skipif(len(CPUS) < 2, reason="a guest needs a CPU beside its mate's; this machine has one")
def test_a_guest_computes_on_the_highest_cpu_while_its_mate_keeps_the_other(tmp_path: Path) -> None:
    inventory = Inventory("test", "agents", (Node("n1", 2, 1, tuple(CPUS[:2])),), grain_s=0.02)
    at_once = MATE_AND_GUEST | {"submit_time": 0.0}  # later, the mate might have ended on a busy machine
    work, parameters = Workload(pd.DataFrame(at_once)), {"max_slowdown": "inf"}
    run = replay(work, inventory, "sd", tmp_path / "run", policy_parameters=parameters, **replaying(speed=200))
    low, high = (str(cpu) for cpu in CPUS[:2])
    both = f"{low},{high}" if CPUS[1] > CPUS[0] + 1 else f"{low}-{high}"
    assert run.info.counts == {"jobs": 2, "completed": 2}
    assert run.jobs_on_shared_nodes == 2
    assert [found.tolist() for found in guests_and_mates(run)] == [[False, True], [True, False]]
    changes = run.core_changes
    assert changes[["job_id", "node", "cores_from", "cores_to", "cause", "state"]].values.tolist() == [
        ["mate", 0, 2, 1, "lend", "applied"],
        ["mate", 0, 1, 2, "return", "applied"],
    ]
    instants = changes[["asked", "decided", "applied"]].to_numpy()
    assert (np.diff(instants, axis=1) >= 0).all(), instants
    assert run.info.handovers["handovers"] == 2
    assert run.info.handovers["gap_at"].startswith(f"CPU {CPUS[1]} of n1, jobs ")
    assert all(len(checksum) == 16 for checksum in run.jobs["checksum"])
    held = run.allocations.sort_values(["start", "job_id"])
    assert held[["job_id", "cores", "cpus"]].values.tolist() == [
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


@dataclass(eq=False)
class Impatient:
    """A policy that starts the second job as a guest of the first and cancels it before the mate has freed the core."""

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


def test_a_guest_that_is_cancelled_before_its_core_is_free_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guest is launched at once, waits for its core, and is killed. Its mate reaches no malleability point."""
    monkeypatch.setattr(loop, "LOOK_S", GUARD_S)
    inventory = Inventory("test", "agents", (Node("n1", 2, 1, None, True),), grain_s=60.0, heartbeat_s=GUARD_S)
    testbed = Watched(inventory, tmp_path / "spool")
    work = Workload(pd.DataFrame(MATE_AND_GUEST))
    run = carry_out(work, Impatient(), tmp_path, inventory, replaying(speed=100.0), testbed)
    assert run.jobs.set_index("job_id")["state"].to_dict() == {"mate": "completed", "guest": "cancelled"}
    assert testbed.guests == 1
    entries = list(journal.read(tmp_path / JOURNAL)[1])
    order = [(entry.kind, entry.job) for entry in entries]
    assert ("started", "guest") not in order and ("mask", "guest") not in order
    cancelled, ended = order.index(("cancel", "guest")), order.index(("ended", "guest"))
    assert cancelled < ended < order.index(("end", "guest")) < order.index(("ended", "mate"))
    assert entries[ended].data["units_done"] == 0


@dataclass(eq=False)
class Heirs:
    """A policy that starts the third job as a guest on the first nodes of two mates and shrinks it when it is alone."""

    malleable: ClassVar[bool] = True
    shares: ClassVar[bool] = True

    def decide(self, state: State) -> Iterator[Decision]:
        first, second, guest = 0, 1, 2
        for job in list(state.queue.jobs()):
            if job == guest:
                yield Share(job, 0, (Lend(first, (0,), 1), Lend(second, (1,), 1)))
            else:
                yield Start(job, 1)
        if list(state.size) == [guest] and not state.resizing and state.size[guest] == 2:
            yield Resize(guest, 1)


def test_a_guest_that_inherited_its_leaders_node_last_can_still_shrink(tmp_path: Path) -> None:
    table = {"job_id": ["long", "short", "guest"], "submit_time": 0.0, "run_time": [50.0, 3.0, 160.0]}
    table |= {"time_limit": 1e3, "nodes": [1, 1, 2], "nodes_min": 1, "nodes_max": 2, "cores_per_node": 2}
    work = Workload(pd.DataFrame(table | {"kind": "malleable", "speedup": "amdahl", "speedup_parameters": "0.9"}))
    testbed = Watched(emulated(2), tmp_path / "spool")
    run = carry_out(work, Heirs(), tmp_path, emulated(2), replaying(100.0), testbed)
    assert run.jobs.sort_values("end")["job_id"].tolist() == ["short", "long", "guest"]
    assert run.resizes[["nodes_from", "nodes_to", "state"]].values.tolist() == [[2, 1, "applied"]]
    changes = run.core_changes[["job_id", "node", "cores_from", "cores_to", "cause"]].values.tolist()
    assert sorted(changes[:2]) == [["long", 0, 2, 1, "lend"], ["short", 1, 2, 1, "lend"]]
    assert changes[2:] == [["guest", 1, 1, 2, "inherit"], ["guest", 0, 1, 2, "inherit"]]
    errors = [entry.job for entry in journal.read(tmp_path / JOURNAL)[1] if entry.kind == "error"]
    assert "guest" not in errors  # a mask may reach the short job after its end


@dataclass(eq=False)
class Generous:
    """A policy in which the first job lends one core to the second."""

    malleable: ClassVar[bool] = False
    shares: ClassVar[bool] = True

    def decide(self, state: State) -> Iterator[Decision]:
        for job in list(state.queue.jobs()):
            yield Share(job, 0, (Lend(0, (0,), 1),)) if state.size else Start(job, 1)


def test_a_limit_accounts_for_the_cores_of_an_overdue_guest(tmp_path: Path) -> None:
    """The guest should end after 1 s but stays: at half speed the mate reaches its 10 s limit in 20 s, not 10.5 s."""

    def script(sent: Said) -> Iterator[Said]:
        yield from until_sent(sent, "launch")
        yield [(0, {**LISTENING[1], "job": "mate"}), (0, {**STARTED[1], "job": "mate"})]
        yield from until_sent(sent, "resize")
        yield [
            (
                0,
                {
                    "type": "resized",
                    "job": "mate",
                    "cpus": "0",
                    "decided": time.monotonic(),
                    "applied": time.monotonic(),
                },
            )
        ]
        yield from until_sent(sent, "kill")
        assert [(message["type"], message["job"]) for _, message in sent[-3:]] == [
            ("launch", "guest"),
            ("resize", "mate"),
            ("kill", "mate"),
        ]
        yield [(0, {**ended(0, "killed")[1], "job": name, "time": time.monotonic()}) for name in ("mate", "guest")]

    table = MATE_AND_GUEST | {"submit_time": 0.0, "run_time": [1e3, 1.0], "time_limit": [10.0, np.nan]}
    options = replaying(100.0, over_limit=OverLimit.KILL)
    run = carry_out(Workload(pd.DataFrame(table)), Generous(), tmp_path, emulated(1), options, Scripted(script))
    assert run.jobs["state"].tolist() == ["killed", "killed"]
    killed = next(entry.time for entry in journal.read(tmp_path / JOURNAL)[1] if entry.kind == "kill")
    assert killed >= run.jobs["start"][1] + 20.0 - 1e-6


@dataclass(eq=False)
class Late:
    """A policy that cancels the first job when the second is submitted."""

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        for job in list(state.queue.jobs()):
            if state.size:
                yield Cancel(0, "too late")
            yield Reject(job, "enough") if state.size else Start(job, 2)


def test_a_job_that_has_done_its_work_can_no_longer_be_cancelled(tmp_path: Path) -> None:
    """Its leader has ended; the end of the other rank has not been reported yet."""
    script = outlived_leader("completed")
    table = {"job_id": ["a", "b"], "submit_time": [0.0, 20.0], "run_time": 1.0, "time_limit": 10.0, "nodes": [2, 1]}
    run = carry_out(Workload(pd.DataFrame(table)), Late(), tmp_path, emulated(2), replaying(100.0), Scripted(script))
    assert run.jobs["state"].tolist() == ["completed", "rejected"]


@pytest.mark.parametrize("policy", ["sd", "drom-share"])
def test_limits_of_guests_and_mates_use_their_intended_speed(tmp_path: Path, policy: str) -> None:
    work = workload(12)
    inventory, options = virtual(4), replaying(speed=1000, over_limit=OverLimit.KILL)
    run = replay(work, inventory, policy, tmp_path / "run", **options)
    assert set(run.jobs["state"]) <= {"completed", "killed"}
    assert_no_core_has_two_jobs(run.allocations, [2] * 4)
    jobs = Jobs.of(work, cores_per_node=2, over_limit=OverLimit.KILL)
    path = tmp_path / "run" / JOURNAL
    assert decided_again(path, jobs, inventory, registry.load(policy), options) == decided(path)


@pytest.mark.parametrize(("speedup", "parameters"), [("amdahl", "0.5"), ("linear", ""), ("table", "1:100 2:80")])
def test_jobs_that_lend_cores_take_the_time_that_the_simulator_models(
    tmp_path: Path, speedup: str, parameters: str
) -> None:
    """Planned times are compared: they depend on the cores in each iteration, and not on the load of the machine."""
    table = {"job_id": ["mate", "guest"], "submit_time": [0.0, 20.0], "run_time": [120.0, 20.0], "nodes": 2}
    table |= {"time_limit": [400.0, 40.0], "nodes_min": 2, "nodes_max": 2, "cores_per_node": 8, "kind": "malleable"}
    work = Workload(pd.DataFrame(table | {"speedup": speedup, "speedup_parameters": parameters}))
    choice, model, out = {"max_slowdown": "inf"}, RuntimeModel.WORST_CASE, tmp_path / "run"
    run = replay(work, emulated(2, 8), "sd", out, policy_parameters=choice, **replaying(speed=100))
    assert run.jobs_on_shared_nodes == 2
    entries = list(journal.read(out / JOURNAL)[1])
    ends = [entry for entry in entries if entry.kind == "ended" and entry.data["leader"]]
    planned = {entry.job: entry.data["planned_s"] * 100 for entry in ends}
    simulated = predict(work, list(run.info.nodes), "sd", policy_parameters=choice, runtime_model=model)
    lasts = simulated.jobs.set_index("job_id").eval("end - launched")
    assert planned["guest"] == pytest.approx(lasts["guest"], rel=0.02)  # it has half of the cores to its end
    told = [entry for entry in entries if (entry.kind, entry.job) == ("resized", "mate")]
    # The slower one of two ranks decides. An answer without an iteration is that of the agent: the rank has its CPUs
    # already, and answers itself, or it has not begun, and is slow from the start.
    took, returned = dict.fromkeys(["n1", "n2"], 0), 0
    for entry in told:
        if (iteration := entry.data["iteration"]) is not None:
            if len(parse_cpus(entry.data["cpus"])) < 8:
                took[entry.data["rank"]] = iteration
            else:
                returned = max(returned, iteration)
    lent, jobs = (returned - min(took.values())) / round(120 / 100 / 0.02), Jobs.of(work)
    expected = 120 * (1 - lent) + 120 * lent / jobs.rate(0, 2, 0.5)
    assert planned["mate"] == pytest.approx(expected, rel=0.02)
    assert (planned["guest"] < 39) == (speedup != "linear")


# -- overlaps and gaps of the masks, against a slow reference ----------------------------------------------------------

Spans = list[tuple[str, float, float]]


def worst(found: list[Handover]) -> float:
    return max((each.seconds for each in found), default=0.0)


def slow_overlap(spans: Spans) -> float:
    """Return the longest common time of two spans of different jobs."""
    common = [
        min(end, other_end) - max(start, other_start)
        for job, start, end in spans
        for other, other_start, other_end in spans
        if job < other
    ]
    return max([0.0, *common])


def test_a_lent_cpu_that_the_guest_takes_later_is_a_gap_and_no_overlap() -> None:
    found = Handovers()
    found.change(0, "owner", (0, 1, 2, 3), (0, 1), 10.0, since=0.0)
    found.change(0, "guest", None, (2, 3), 10.5, since=10.5)
    found.change(0, "guest", (2, 3), None, 20.0, since=10.5)
    found.change(0, "owner", (0, 1), (0, 1, 2, 3), 20.25, since=0.0)
    assert not list(found.overlaps())
    assert sorted(found.gaps()) == [
        (0.25, 0, 2, "guest", "owner"),
        (0.25, 0, 3, "guest", "owner"),
        (0.5, 0, 2, "owner", "guest"),
        (0.5, 0, 3, "owner", "guest"),
    ]


def test_a_cpu_that_two_jobs_have_at_once_is_an_overlap_whichever_message_arrives_first() -> None:
    changes = [
        (0, "owner", (0, 1), (0,), 10.0, 0.0),
        (0, "guest", None, (1,), 9.5, 9.5),
    ]
    for order in (changes, changes[::-1]):
        found = Handovers()
        for node, job, before, after, at, since in order:
            found.change(node, job, before, after, at, since=since)
        assert list(found.overlaps()) == [(0.5, 0, 1, "owner", "guest")]
        assert not list(found.gaps())


def test_the_time_between_two_jobs_that_shared_nothing_is_no_gap() -> None:
    found = Handovers()
    found.change(0, "owner", (0, 1), (0,), 10.0, since=0.0)  # for a guest that never took the CPU
    found.change(0, "owner", (0,), None, 20.0, since=0.0)
    found.change(0, "later", None, (0, 1), 50.0, since=50.0)
    assert not list(found.gaps())
    assert not list(found.overlaps())


def test_masks_on_a_lost_node_are_unknown() -> None:
    found = Handovers()
    found.change(0, "guest", None, (1,), 5.0, since=5.0)
    found.change(1, "guest", None, (1,), 5.0, since=5.0)
    found.lose(0)
    for node in (0, 1):
        found.change(node, "next", None, (1,), 30.0, since=30.0)
        found.change(node, "next", (1,), None, 40.0, since=30.0)
    assert [(each.node, each.before) for each in found.overlaps()] == [(1, "guest")]


@pytest.mark.parametrize("seed", range(100))
def test_the_worst_overlap_and_gap_are_those_of_a_slow_reference(seed: int) -> None:
    """Spans of a CPU are drawn. Each job holds the CPU in several spans between its launch and its end."""
    draw = random.Random(seed)
    messages = []
    spans: Spans = []
    for job in "abcd"[: draw.randint(2, 4)]:
        instants = sorted(draw.sample(range(10**6), 2 * draw.randint(1, 3)))  # no two jobs at one instant
        begin, end = instants[0], instants[-1]
        own = list(zip(instants[::2], instants[1::2], strict=True))
        spans += [(job, float(start), float(stop)) for start, stop in own]
        messages.append((begin, job, None, (0, 1)))  # CPU 0 is the one with spans, CPU 1 that of the job
        for (_, stop), (start, _) in pairwise(own):
            messages += [(stop, job, (0, 1), (1,)), (start, job, (1,), (0, 1))]
        messages.append((end, job, (0, 1), None))
    draw.shuffle(messages)  # of several ranks; the messages of one rank arrive in their order
    arrival = {job: iter(sorted(entry for entry in messages if entry[1] == job)) for job in "abcd"}
    found = Handovers()
    for _, job, *_ in messages:
        at, name, before, after = next(arrival[job])
        found.change(0, name, before, after, float(at), since=math.nan)
        found.worst(1.0, ["n1"])  # a live view computes the longest ones between two messages
    of_cpu = [each for each in found.overlaps() if each.cpu == 0]
    assert worst(of_cpu) == slow_overlap(spans)
    gaps = sorted((each.seconds, each.before, each.after) for each in found.gaps() if each.cpu == 0)
    assert gaps == sorted(slow_gaps(spans))


def slow_gaps(spans: Spans) -> list[tuple[float, str, str]]:
    """Return the gaps before spans at whose begin no other job has the CPU, as (s, job before, job after)."""
    first = {job: min(start for name, start, _ in spans if name == job) for job, *_ in spans}
    last = {job: max(end for name, _, end in spans if name == job) for job, *_ in spans}
    gaps = []
    for job, start, end in spans:
        if any(other != (job, start, end) and other[1] <= start < other[2] for other in spans):
            continue
        earlier = [other for other in spans if other[2] <= start and other != (job, start, end)]
        if not earlier:
            continue
        before = max(earlier, key=lambda other: other[2])
        shrank = before[2] < last[before[0]] and start <= last[before[0]]
        if before[0] != job and (shrank or start > first[job]):
            gaps.append((start - before[2], before[0], job))
    return gaps


def test_a_view_does_not_compute_earlier_hand_overs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    monkeypatch.setattr(CpuSpans, "_next", lambda *args, original=CpuSpans._next: steps.append(1) or original(*args))
    found = Handovers()
    for turn in range(1000):
        at = 10.0 * turn
        found.change(0, "owner", (0, 1), (0,), at, since=-1.0)
        found.change(0, f"guest {turn}", None, (1,), at + 1, since=at + 1)
        found.change(0, f"guest {turn}", (1,), None, at + 6, since=at + 1)
        found.change(0, "owner", (0,), (0, 1), at + 8, since=-1.0)
        worst = found.worst(2.0, ["n1"])
    assert worst["handovers"] == 2000
    assert (worst["gap_s"], worst["overlap_s"]) == (1.0, 0.0)
    assert len(steps) <= 4000


def test_an_overlap_counts_when_one_mask_has_released_the_cpu() -> None:
    found = Handovers()
    found.change(0, "owner", None, (0, 1), 0.0, since=0.0)
    found.change(0, "guest", None, (1,), 10.0, since=10.0)
    assert found.worst(1.0, ["n1"]) == {}
    found.change(0, "guest", (1,), None, 15.0, since=10.0)
    assert found.worst(1.0, ["n1"])["overlap_s"] == 5.0


# -- policies that decide at random, with crossing messages and killed ranks, in virtual time --------------------------

SPEED = 1000.0


class Resizing(Crowding):
    """A policy that also resizes jobs that share no node."""

    malleable: ClassVar[bool] = True

    def decide(self, state: State) -> Iterator[Decision]:
        yield from super().decide(state)
        for job in [job for job in state.resizable if job not in state.resizing and not state.cluster.shares(job)]:
            most = min(state.jobs.high[job], state.size[job] + state.idle)
            size = self.draw.randint(state.jobs.low[job], most)
            if size != state.size[job]:
                yield Resize(job, size)


def assert_ranks_end_where_their_jobs_are(run: Run, path: Path) -> None:
    held: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in by_node(run).itertuples():
        held.setdefault((row.job_id, f"n{row.node + 1}"), []).append((row.start, row.end))
    for entry in journal.read(path)[1]:
        if entry.kind == "ended":
            assert any(start < entry.time <= end for start, end in held[entry.job or "", entry.node or ""]), entry


def replayed(seed: int, folder: Path, *over_limit: OverLimit) -> Counter[str]:
    """Replay one drawn case, check the invariants, and return what was observed.

    The treatment of jobs that exceed their limit is one of `over_limit`, or any if none is given.
    """
    draw = random.Random(seed)
    resizes, deaths, cancels = draw.random() < 0.5, draw.choice([0, 6, 20, 40]), draw.choice([0.0, 0.03, 0.2])
    work = crowd(draw.randint(5, 50), seed, resizes=resizes)
    policy = Resizing if resizes else Crowding
    options = replaying(
        SPEED, over_limit=draw.choice(over_limit or [*OverLimit]), interval_s=draw.choice([0.0, 0.0, 20.0])
    )
    settings = VirtualSettings(seed=seed, latency_s=10 ** draw.uniform(-4.0, -1.5), launch_s=0.005)
    nodes = tuple(Node(f"n{number}", 4, 1, None, True, provider="virtual") for number in range(1, 5))
    inventory = Inventory("test", "agents", nodes, grain_s=0.02, groups=(Group("test", "virtual", settings, nodes),))
    here, cores = world_of(inventory, SPEED, 60.0), CoreWatch()
    assert isinstance(here, VirtualWorld)
    here.observers.append(cores)
    lasts_s = work.table["submit_time"].max() / SPEED + 1.0
    times = sorted(here.now + 1.0 + draw.random() * lasts_s for _ in range(deaths))
    kills = [Fault("kill_rank", at, draw.choice(nodes).name, draw=draw.random()) for at in times]
    arm(here, kills, NODE_FAULTS)
    try:
        run = carry_out(work, policy(seed, cancels), folder, inventory, options, here=here)
    finally:
        here.end()
    assert cores.violations == []
    states = Counter(run.jobs["state"])
    assert states.keys() <= {"completed", "cancelled", "failed", "killed"}
    assert bool(deaths) >= bool(states["failed"]) and bool(cancels) >= bool(states["cancelled"])
    assert not run.info.handovers.get("overlap_s")
    assert_no_core_has_two_jobs(run.allocations, [4] * 4)
    assert_ranks_end_where_their_jobs_are(run, folder / JOURNAL)
    jobs = Jobs.of(work, over_limit=OverLimit(options.get("over_limit", "extend")))
    again = decided_again(folder / JOURNAL, jobs, inventory, policy(seed, cancels), options)
    assert again == decided(folder / JOURNAL)
    masks = sum(entry.kind == "mask" for entry in journal.read(folder / JOURNAL)[1])
    return states + Counter({"masks": masks}) + Counter(f"resize {state}" for state in run.reconfigurations["state"])


@pytest.mark.parametrize("block", range(4))
def test_any_message_order_and_any_killed_rank(tmp_path: Path, block: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block * 10, (block + 1) * 10):
        (tmp_path / str(seed)).mkdir()
        seen += replayed(seed, tmp_path / str(seed))
    assert min(seen[what] for what in ("completed", "cancelled", "failed", "masks", "resize applied")) > 10, seen


def test_limits_end_as_in_a_search_of_all_running_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replayer searches only the jobs whose expected ends come first."""
    next_limit, enforce = Replayer._next_limit, Replayer._enforce_limits
    counts: Counter[str] = Counter()

    def ends(replayer: Replayer, now: float) -> dict[int, float]:
        jobs, running = replayer.jobs, replayer.ranks.running
        able = [job for job in running if running[job].outcome is None and jobs.limit[job] != jobs.run_time[job]]
        return {job: replayer.scheduler.limit_end(job, now) for job in able}

    def checked_next_limit(replayer: Replayer) -> float:
        expected = min(ends(replayer, replayer.rounds.now).values(), default=math.inf)
        found = next_limit(replayer)
        assert found == pytest.approx(expected, rel=1e-12)
        counts["limits"] += found < math.inf
        return found

    def checked_enforce(replayer: Replayer, now: float) -> None:
        expected = [job for job, end in ends(replayer, now).items() if end <= now]
        entries = len(replayer.rounds.entries)
        enforce(replayer, now)
        kills = [replayer.event_handler.numbers[entry.job or ""] for entry in replayer.rounds.entries[entries:]]
        assert kills == expected
        counts["kills"] += len(kills)

    monkeypatch.setattr(Replayer, "_next_limit", checked_next_limit)
    monkeypatch.setattr(Replayer, "_enforce_limits", checked_enforce)
    for seed in range(12):
        (tmp_path / str(seed)).mkdir()
        counts += replayed(seed, tmp_path / str(seed), OverLimit.KILL)
    assert min(counts[what] for what in ("limits", "kills", "killed", "masks")) > 10, counts
