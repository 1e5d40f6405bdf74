"""Scenarios: a small workload, a policy and faults, drawn from a seed, and the replay of one in a virtual world."""

from __future__ import annotations

import math
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from tests.faults.kinds import CONTROLLER_FAULTS, HARMLESS, NODE_FAULTS, flip, tear
from tracebed.converters.workload import Workload
from tracebed.ground import system as outside
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.replay.journal import has_facts
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.runs.working_folders import working_folders
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.testbeds.nodes import AGENTS, Group, Inventory, Node
from tracebed.testing.virtual.faults import Fault, arm, strike
from tracebed.testing.virtual.kernel import Killed, VirtualWorld, never
from tracebed.testing.virtual.provider import VirtualSettings

JOBS, NODES, CORES, FAULTS = 30, 8, 4, 5
"""The size of a drawn scenario."""
SPEED = 100.0
"""Trace seconds per wall second."""
SIZES = (1, 1, 1, 2, 2, 4, 8)
"""Sizes of jobs, nodes."""
HEARTBEAT_S = 5.0
POLICIES = ("easy", "fcfs", "conservative", "firstfit", "min", "pref", "keep-pref", "avg", "sd", "dmr", "slurm")
CALLS = 2500
"""Number of calls of the controller among which its faults are drawn: about those of a replay of `JOBS` jobs."""
LONGEST_S = 4000.0
"""Virtual time after which a scenario is given up, s: the work takes about 100 s, and each fault up to about 200 s."""
PAUSES_S = (0.5, 3.0, 20.0, 100.0)
"""Times until a killed controller is resumed, s. Agents wait for 30 s."""


class JobSpec(NamedTuple):
    """A job of a scenario: times in trace s, numbers of nodes, and what it demands of a machine with partitions."""

    submit: float
    run_time: float
    limit: float
    nodes: int
    low: int
    high: int
    waits: str = ""
    """What the job waits for, and how many jobs before it: `afterok-2`, `think-1:30` (s), `singleton`; empty: none."""
    partition: str = ""
    memory_mib: int = 0
    gpus: int = 0


WAITS = ("afterok", "afternotok", "afterany", "after", "think", "singleton")
"""Kinds of what a drawn job waits for."""


def drawn_wait(draw: random.Random) -> str:
    """Return what a job waits for, as in `JobSpec.waits`."""
    kind = draw.choice(WAITS)
    text = kind if kind == "singleton" else f"{kind}-{draw.randint(1, 5)}"
    return text + (draw.choice(("", ":0", ":20", ":200")) if kind == "think" else "")


def columns_of(waits: str, number: int, first: int = 1) -> tuple[str, str, float]:
    """Return `dependency`, `after` and `think_time` of job `number` that `waits`, if the jobs begin with `first`."""
    kind, _, rest = waits.partition("-")
    back, _, think_s = rest.partition(":")
    other = f"j{number - int(back)}" if back and number - int(back) >= first else ""
    if kind == "think":
        return "", other, float(think_s or "nan")
    return f"{kind}:{other}" if other else "singleton" * (kind == "singleton"), "", math.nan


def broken_waits(waits: dict[str, str], rows: dict[str, dict[str, Any]], first: int, early_s: float) -> Iterator[str]:
    """Yield the violations in a run: a job starts, and is submitted, after the jobs for which it waits.

    Args:
        waits: job -> what it waits for.
        rows: job -> its state, submit, start, end and restarts.
        first: number of the first job.
        early_s: largest error of a time, trace s.
    """
    for name, text in waits.items():
        dependency, after, think_s = columns_of(text, int(name[1:]), first)
        kind, _, other = dependency.partition(":") if dependency else ("afterany", "", after)
        job, its = rows[name], rows.get(other)
        if its is None or job["state"] in ("interrupted", "rejected", "unknown") or its["state"] == "unknown":
            continue
        if think_s == think_s:
            if job["submit"] < its["end"] + think_s - early_s:
                yield f"waits: job {name} is submitted at {job['submit']} s, less than {think_s} s after {other}"
            continue
        refused = {"afterok": its["state"] != "completed", "afternotok": its["state"] == "completed"}.get(kind, False)
        if (job["state"] == "cancelled") != refused:
            yield f"waits: job {name} ({kind} {other}) is {job['state']}, but {other} is {its['state']}"
        since = its["end"] if kind != "after" else its["start"] if not its["restarts"] else -math.inf  # its first start
        if job["start"] < since - early_s:
            yield f"waits: job {name} ({kind} {other}) starts at {job['start']} s, and {other} was at {since} s"


@dataclass(frozen=True)
class Scenario:
    """A scenario, which a test can contain as text. `seed` gives all times and secrets of its world."""

    seed: int
    policy: str = "easy"
    on_node_failure: str = "requeue"
    over_limit: str = "extend"
    nodes: int = NODES
    jobs: tuple[JobSpec, ...] = ()
    faults: tuple[Fault, ...] = ()
    speed: float = SPEED

    @classmethod
    def drawn(
        cls, seed: int, *, jobs: int = JOBS, nodes: int = NODES, faults: int = FAULTS, waits: bool = True
    ) -> Scenario:
        """Return the scenario of a seed. `waits`: in three of ten seeds, a third of the jobs waits for other jobs."""
        draw = random.Random(seed)
        policy = draw.choice(POLICIES)
        rigid = draw.random() < 0.2
        submit, specs = 0.0, []
        for _ in range(jobs):
            submit += draw.expovariate(1 / 60.0)
            size, run_time = min(nodes, draw.choice(SIZES)), draw.lognormvariate(5.0, 1.0)
            low, high = (size, size) if rigid or draw.random() < 0.4 else (max(1, size // 2), min(nodes, 2 * size))
            limit = run_time * draw.choice((1.0, 1.2, 2.0))
            specs.append(JobSpec(round(submit, 3), round(run_time, 3), round(limit, 3), size, low, high))
        lasts = submit / SPEED + 8
        found = []
        kinds = [*NODE_FAULTS, *CONTROLLER_FAULTS, "kill"] if draw.random() < 0.75 else [*HARMLESS, "kill", "kill"]
        for _ in range(faults):
            kind = draw.choice(kinds)
            if kind in NODE_FAULTS:
                name = f"v{draw.randint(1, nodes)}"
                seconds = draw.choice((0.3, 2.0, 8.0, 25.0, 90.0))
                found.append(Fault(kind, round(1.0 + draw.random() * lasts, 3), name, seconds, round(draw.random(), 3)))
            else:
                seconds = draw.choice(PAUSES_S if len(kinds) > 5 else PAUSES_S[:3])
                found.append(Fault(kind, draw.randrange(1, CALLS), "", seconds, round(draw.random(), 3)))
        more = random.Random(f"waits of {seed}")  # the other draws are the same with and without
        if waits and more.random() < 0.3:
            for number in more.sample(range(jobs), jobs // 3):
                specs[number] = specs[number]._replace(waits=drawn_wait(more))
        failure, over_limit = draw.choice(("requeue", "requeue", "fail")), draw.choice(("extend", "kill"))
        return cls(seed, policy, failure, over_limit, nodes, tuple(specs), tuple(sorted(found)))

    @cached_property
    def workload(self) -> Workload:
        """The workload."""
        columns = list(zip(*self.jobs, strict=True))
        kinds = ["rigid" if job.low == job.high else "malleable" for job in self.jobs]
        return Workload(
            pd.DataFrame(
                {
                    "job_id": [f"j{number}" for number in range(1, len(self.jobs) + 1)],
                    "submit_time": columns[0],
                    "run_time": columns[1],
                    "time_limit": columns[2],
                    "nodes": columns[3],
                    "cores_per_node": CORES,
                    "kind": kinds,
                    "nodes_min": columns[4],
                    "nodes_max": columns[5],
                    "speedup": "amdahl",
                    "speedup_parameters": "0.95",
                    **self._waits,
                }
            )
        )

    @property
    def _waits(self) -> dict[str, Any]:
        """The columns of what the jobs wait for. Every third job has the name of another one, for `singleton`."""
        if not any(job.waits for job in self.jobs):
            return {}
        rows = [columns_of(job.waits, number) for number, job in enumerate(self.jobs, 1)]
        dependency, after, think_time = zip(*rows, strict=True)
        users = [f"u{number % 3}" for number in range(len(self.jobs))]
        return {"dependency": dependency, "after": after, "think_time": think_time, "user": users}

    @cached_property
    def inventory(self) -> Inventory:
        """The nodes."""
        nodes = tuple(Node(f"v{n}", CORES, emulated=True, provider="virtual") for n in range(1, self.nodes + 1))
        group = Group("nodes", "virtual", VirtualSettings(seed=self.seed), nodes, "virtual-nodes")
        return Inventory("virtual", AGENTS, nodes, heartbeat_s=HEARTBEAT_S, groups=(group,))

    @cached_property
    def setup(self) -> Setup:
        """The setup."""
        return Setup.of(self.policy, speed=self.speed, over_limit=self.over_limit)

    def eligible(self, job: JobSpec) -> set[str]:
        """Return the names of the nodes that can serve a job: all nodes."""
        return {node.name for node in self.inventory.nodes}

    def most_nodes(self, job: JobSpec) -> int:
        """Return the most nodes that a job may have."""
        return self.nodes

    def has(self, *kinds: str) -> bool:
        """Return whether one of its faults is of these kinds."""
        return any(fault.kind in kinds for fault in self.faults)


@dataclass
class Outcome:
    """What came of a scenario, in its world after the end.

    `run` is None if there is no run, for the reason `error`. `seen` is what happened to processes: virtual time, event,
    job, rank, details.
    """

    scenario: Scenario
    world: VirtualWorld
    folder: Path
    run: Run | None = None
    error: Exception | None = None
    kills: int = 0
    seen: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def journal(self) -> Path | None:
        """The journal: of the run, or of the replay that has not become one."""
        if self.run is not None and self.run.folder is not None:
            return self.run.folder / JOURNAL
        left = working_folders(self.folder)
        return left[-1] / JOURNAL if left else None


class _Controller:
    """The faults of the controller."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome, self.world = outcome, outcome.world
        faults = [fault for fault in outcome.scenario.faults if fault.kind in CONTROLLER_FAULTS]
        self.pending = sorted((fault for fault in faults if not fault.after), key=lambda fault: fault.at)
        self.following = [fault for fault in outcome.scenario.faults if fault.after]
        self.died_of: Fault | None = None
        self.signal: int | None = None

    def arm(self) -> None:
        """Let the faults strike the controller that runs now."""
        self.world.on_call, self.world.on_entry = self.at, self.written if self.following else None
        self._wait()

    def _wait(self) -> None:
        """Wait for the call of the next fault; a signal is sent at the next call of the main thread."""
        due = self.pending[0].at if self.pending else math.inf
        self.world.next_call = due if self.signal is None else 0

    def written(self, kind: str, name: str) -> None:
        """Let the next fault that waits for this entry of the journal strike."""
        if self.following and self.following[0].after == f"{kind} {name}":
            fault = self.following.pop(0)
            if fault.kind in NODE_FAULTS:
                self.world.after(0.0, lambda: strike(self.world, fault, NODE_FAULTS[fault.kind]))
            else:
                self.strike(fault)

    def at(self, call: int) -> None:
        """Let the faults that are due strike."""
        if self.signal is not None and self.world.thread is None:
            number, self.signal = self.signal, None
            signal.raise_signal(number)
        while self.pending and call >= self.pending[0].at:
            self.strike(self.pending.pop(0))
        self._wait()

    def strike(self, fault: Fault) -> None:
        """Let a fault happen now. Raises Killed if the controller is killed."""
        if fault.kind == "terminate":
            self.signal = signal.SIGTERM
            self._wait()
        elif fault.kind == "disk_full":
            self.world.full_until = self.world.now + fault.seconds
        else:
            self.died_of = fault
            self._save(fault)
            self.world.kill_controller(silent=fault.kind == "power_failure")
            raise Killed

    def _save(self, fault: Fault) -> None:
        """Keep the disk as it is: the code that is killed must not change it."""
        kept = self.world.keep_disk()
        if fault.kind == "power_failure":
            for path in kept.glob(f"*/{JOURNAL}-wal"):
                tear(path, fault.draw)
        if fault.kind == "flipped_byte":
            files = sorted(path for path in kept.glob(f"*/{JOURNAL}*") if not path.name.endswith("-shm"))
            if files:
                flip(files[int(fault.draw * 1000) % len(files)], fault.draw)


def carry_out(
    scenario: Scenario,
    then: Callable[[Outcome], None] | None = None,
    watch: Callable[..., None] | None = None,
) -> Outcome:
    """Replay a scenario in a virtual world that `watch` observes, and call `then` with the outcome before its end."""
    world = VirtualWorld(scenario.seed)
    world.ends_at = LONGEST_S
    outcome = Outcome(scenario, world, world.home / "run")
    world.observers.append(lambda what, *facts: outcome.seen.append((world.now, what, *facts)))
    if watch is not None:
        world.observers.append(watch)
    controller = _Controller(outcome)
    try:
        with outside.using(world), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            timed = [fault for fault in scenario.faults if fault.kind in NODE_FAULTS and not fault.after]
            arm(world, timed, NODE_FAULTS)
            _replay_until_ended(outcome, controller)
            world.next_call, world.on_entry = math.inf, None  # a fault that is left must not strike the checks
            if then is not None:
                then(outcome)
    finally:
        world.end()
    return outcome


def _replay_until_ended(outcome: Outcome, controller: _Controller) -> None:
    """Replay, and resume the replay whenever the controller was killed or its disk was full."""
    scenario, world = outcome.scenario, outcome.world
    options = Options(on_node_failure=scenario.on_node_failure)
    for attempt in range(len(scenario.faults) + 2):
        controller.arm()
        outcome.error = None
        try:
            workload, inventory = scenario.workload, scenario.inventory
            setup, resumed = scenario.setup, attempt > 0
            outcome.run = replay(workload, inventory, setup, outcome.folder, options=options, resume=resumed)
        except Killed:
            assert controller.died_of is not None
            fault = controller.died_of
            outcome.kills += 1
            world.restart_controller(rebooted=fault.kind == "power_failure")
            world.wait_for(never, world.monotonic() + fault.seconds)
            _try_other_workload(outcome, options, fault)
            continue
        except KeyboardInterrupt as error:
            outcome.error = RuntimeError(f"interrupted: {error}")
            return
        except (InputError, TestbedError) as error:
            outcome.error = error
            if world.was_full or world.full:
                if world.full:
                    world.wait_for(never, world.monotonic() + world.full_until - world.now + 1.0)
                world.was_full = False
                continue
        return


def _try_other_workload(outcome: Outcome, options: Options, fault: Fault) -> None:
    """Resume with another workload, in one of four resumptions: it must be refused, and change nothing.

    A replay that was killed before it wrote its journal begins again with any workload, as one whose journal is lost.
    """
    left = outcome.journal
    if fault.draw > 0.25 or left is None:
        return
    scenario = outcome.scenario
    other = replace(scenario, jobs=scenario.jobs[:-1])
    try:
        if not (scenario.has("power_failure") or has_facts(left)):
            return
        run = replay(other.workload, other.inventory, other.setup, outcome.folder, options=options, resume=True)
    except InputError as error:
        outcome.seen.append((outcome.world.now, "refused", str(error)))
    except TestbedError:  # the whole journal was lost, so another replay began
        outcome.seen.append((outcome.world.now, "not refused", None))
    else:
        outcome.seen.append((outcome.world.now, "not refused", run))
