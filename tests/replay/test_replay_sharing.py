"""Jobs that share nodes in a replay: their processes never share a core, and no work is lost."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

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
from tests.runs import replaying
from tracebed.benchmarks.program import Program
from tracebed.converters.workload import Workload
from tracebed.ground.cpus import parse_cpus
from tracebed.orchestrator.replay import journal, loop
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Cancel, Decision, Lend, Reject, Resize, Share, Start, State
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Event
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.orchestrator.testbeds.testbed import AgentTestbed
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
    """This also holds if jobs are cancelled. Ranks are killed in virtual time (`test_replay_orders.py`)."""
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
