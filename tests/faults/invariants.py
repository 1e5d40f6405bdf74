"""What must hold in every virtual world, whatever its faults.

Each function returns the violations as text. They compare what the controller has recorded (run and journal) with what
the virtual world has seen.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise, zip_longest
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.faults.kinds import CONTROLLER_FAULTS, NODE_FAULTS, is_harmless
from tests.faults.scenario import CORES, Outcome, Scenario, broken_waits
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.event_handler import NOT_STARTED
from tracebed.orchestrator.replay.journal import DamagedJournal
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.redecide import logged_decisions, redecide
from tracebed.orchestrator.replay.resumption import ENDED
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import utilization
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.pools import on_pools
from tracebed.orchestrator.scheduling.sleeping import Sleeping
from tracebed.orchestrator.scheduling.state import handles_requests, visible_jobs
from tracebed.orchestrator.testbeds.machine import InventoryMachine
from tracebed.orchestrator.watching.follower import view_of
from tracebed.testing.virtual.machine import VirtualRank
from tracebed.validation.metrics.measured import MeasuredRun

LEFT_S = 600.0
"""Time after which the agents and ranks that a controller has left alone must have ended, s."""
READ_AGAIN = 10
"""One of this number of scenarios has its files read again, as that takes long."""
_DAMAGING = ("power_failure", "flipped_byte")
"""Faults after which a journal may be refused."""
LATE_S = 0.6
"""Largest difference between the end of a job in the world and in its run, wall s."""
CLOCK_S = 0.1
"""Largest error of the time at which the cores of a rank have changed, wall s."""
ENDS_ALL = {"fcfs", "easy", "conservative", "firstfit"}
"""Policies under which no node is idle while every waiting job would fit."""


class CoreWatch:
    """Watches that no core of a node is used by two jobs at a time, also if the controller loses power."""

    def __init__(self, *, power_failure: bool = False) -> None:
        self.power_failure = power_failure
        self.violations: list[str] = []
        self._used: dict[str, dict[VirtualRank, set[int]]] = defaultdict(dict)

    def __call__(self, what: str, *facts: Any) -> None:
        """Process what has happened in the world."""
        if what not in ("cpus", "end"):
            return
        rank: VirtualRank = facts[0]
        used = self._used[rank.agent.node.name]
        used.pop(rank, None)
        if what == "end":
            return
        cpus = set(rank.cpus)
        for other, theirs in used.items():
            if cpus & theirs and not other.over and other.computes and self._related(rank, other):
                now, node = rank.world.now, rank.agent.node.name
                jobs = f"{other.launch.job} and {rank.launch.job}"
                self.violations.append(f"cores: {jobs} use the cores {sorted(cpus & theirs)} of {node} at {now:.3f} s")
        used[rank] = cpus

    def _related(self, rank: VirtualRank, other: VirtualRank) -> bool:
        """Return whether the controller of one rank can know of the other rank.

        A power failure may lose the whole journal. On computing nodes, the agents of another replay then have the CPUs.
        """
        return rank.agent is other.agent or not self.power_failure


def check(outcome: Outcome, cores: CoreWatch) -> list[str]:
    """Return the violations of all rules. The world of the outcome must be the present one.

    What is on disk is read again for one seed of `READ_AGAIN`.
    """
    thorough = outcome.scenario.seed % READ_AGAIN == 0
    found = [*cores.violations, *_error(outcome)]
    try:
        facts, entries = _written(outcome)
    except InputError as error:
        facts, entries = {}, []
        if not outcome.scenario.has(*_DAMAGING):
            found.append(f"journal: {error}")
    if outcome.run is not None:
        found += [*_states(outcome, outcome.run), *_ends(outcome, outcome.run, facts), *_resizes(outcome.run)]
        found += [*_cores(outcome, outcome.run, facts), *_waits(outcome, outcome.run)]
        found += [*_files(outcome, outcome.run)] if thorough else []
    if entries:
        found += [*_requests(outcome, entries), *_decisions(outcome, entries), *_power(outcome, facts, entries)]
        found += _windows(outcome, entries)
        found += [*_recovery(outcome), *watched(outcome, facts, entries)] if thorough else []
    found += [*_eligible(outcome), *_refusals(outcome)]
    return [*found, *_left(outcome)]  # the last one lets time pass


def _written(outcome: Outcome) -> tuple[dict[str, Any], list[journal.Entry]]:
    """Return the facts and the entries of the journal."""
    path = outcome.journal
    return journal.read(path) if path is not None and journal.has_facts(path) else ({}, [])


def _of_jobs(run: Run, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield these columns of each job."""
    table = run.table("jobs")  # no frame of pandas, which takes longer
    return zip(*(table[name].tolist() for name in names), strict=True)


def _error(outcome: Outcome) -> Iterator[str]:
    """An error must have a cause among the faults."""
    scenario, error = outcome.scenario, outcome.error
    nodes = scenario.has(*NODE_FAULTS)
    allowed = {
        TestbedError: nodes,
        InputError: scenario.has(*_DAMAGING, "disk_full"),
        DamagedJournal: scenario.has(*_DAMAGING),
        RuntimeError: scenario.has("terminate"),
    }
    if error is not None and not allowed.get(type(error), False):
        yield f"error: {type(error).__name__}: {error}"
    if outcome.run is not None and outcome.run.info.state == "interrupted" and not (nodes or scenario.has("terminate")):
        yield f"error: the run is interrupted: {outcome.run.info.interruptions}"


def _states(outcome: Outcome, run: Run) -> Iterator[str]:
    """Each job has an end, with a reason unless it has completed."""
    scenario = outcome.scenario
    harmless, unserved = all(is_harmless(fault) for fault in scenario.faults), _unserved(scenario)
    for name, state, reason in _of_jobs(run, "job_id", "state", "reason"):
        if state == "rejected" and name in unserved:
            continue
        if state == "completed":
            if name in unserved:
                yield f"states: job {name} is completed, and too few nodes can serve it"
            continue
        if state in ("unknown", "running") or (state == "interrupted") > (run.info.state == "interrupted"):
            yield f"states: job {name} is {state} ({reason})"
        elif not reason:
            yield f"states: job {name} is {state} without a reason"
        elif state == "cancelled" and "is never satisfied" in reason:
            continue  # `_waits` checks it
        elif state == "killed" and reason == "time limit" and scenario.over_limit == "kill":
            continue
        elif reason == NOT_STARTED and not scenario.has("dead_start", "stop_rank", "hang", "partition"):
            yield f"states: job {name} is {state} although no rank was hindered to start: {reason}"
        elif ENDED in reason and scenario.has("kill"):
            continue  # an agent that has launched no rank does not wait for another controller
        elif harmless and outcome.error is None:
            yield f"states: job {name} is {state} although every fault is harmless: {reason}"


def _unserved(scenario: Scenario) -> set[str]:
    """Return the jobs that too few nodes can serve, on the fewest nodes with which the policy starts them."""
    _, policy = scenario.setup.resolved(scenario.nodes)
    seen = visible_jobs(policy, Jobs.of(scenario.workload, cores_per_node=CORES))
    pairs = zip(seen.ids, seen.low, scenario.jobs, strict=True)
    return {name for name, low, job in pairs if low > min(len(scenario.eligible(job)), scenario.most_nodes(job))}


def _eligible(outcome: Outcome) -> Iterator[str]:
    """A job runs only on nodes that can serve it, and on no more than it may have."""
    scenario = outcome.scenario
    jobs = {f"j{number}": job for number, job in enumerate(scenario.jobs, 1)}
    eligible = {name: scenario.eligible(job) for name, job in jobs.items()}
    for now, what, *details in outcome.seen:
        if what == "fork":
            name, node = details[0].launch.job, details[0].agent.node.name
            if node not in eligible[name]:
                yield f"eligible: job {name} runs on {node} at {now:.3f} s, and only {sorted(eligible[name])} serve it"
    if outcome.run is not None:
        rows = outcome.run.table("reconfigurations")
        for row in np.flatnonzero(outcome.run.are_resizes).tolist():
            name, count = rows.text("job_id", row), rows["nodes_to"][row]
            if count > max(scenario.most_nodes(jobs[name]), jobs[name].low):
                yield f"eligible: job {name} has {count} nodes, and may have {scenario.most_nodes(jobs[name])}"


def _ends(outcome: Outcome, run: Run, facts: Mapping[str, Any]) -> Iterator[str]:
    """A job is completed exactly if its last leader has completed its work, and ended when that happened."""
    scenario, world = outcome.scenario, outcome.world
    completed: dict[str, list[float]] = defaultdict(list)
    computed: dict[str, float] = {}
    for now, what, *details in outcome.seen:
        if what == "finish" and details[0].launch.leader and details[1] == "completed":
            completed[details[0].launch.job].append(now)
            computed[details[0].launch.job] = details[2]
    exact = not scenario.has(*_DELAYING, *CONTROLLER_FAULTS)
    measured = not scenario.has(*_DELAYING, "step_clock", "lying_rank", "power_failure")
    reported = not scenario.has(*_LOSING, *_DAMAGING)
    zero = world.controller.at(facts["zero"])
    rows = _of_jobs(run, "job_id", "state", "reason", "launched", "end", "restarts")
    for job, state, reason, launched, end, restarts in rows:
        ends = completed[job]
        if state == "completed" and not ends:
            yield f"ends: job {job} is completed in the run only"
        if len(ends) > 1 + restarts and not scenario.has(*_DAMAGING):  # the journal may lack the first end
            yield f"ends: job {job} has completed {len(ends)} times, with {restarts} restarts"
        if state in ("failed", "killed") and len(ends) > restarts and reported and ENDED not in reason:
            yield f"ends: job {job} is {state} ({reason}), although its leader has completed"
        if state == "completed" and ends and exact:
            late = zero + end / scenario.speed - ends[-1]
            if not -1e-3 <= late <= LATE_S:
                yield f"ends: job {job} ended {late:.3f} s after its last leader"
        if state == "completed" and ends and measured:
            run_time = (end - launched) / scenario.speed
            if abs(run_time - computed[job]) > LATE_S:
                yield f"ends: job {job} ran for {run_time:.3f} s in the run, but computed for {computed[job]:.3f} s"


_DELAYING = {*NODE_FAULTS} - {"drift", "step_clock", "lying_rank", "send_twice"}
"""Faults that delay the news of the end of a job, or the end of one of its ranks."""
_LOSING = {*NODE_FAULTS} - {"drift", "step_clock", "send_twice", "slow_network"}
"""Faults that may lose the news of the completion of a leader, or end one of the other ranks of its job."""


def _waits(outcome: Outcome, run: Run) -> Iterator[str]:
    """A job starts, and is submitted, after the jobs for which it waits; it is cancelled only if it never can."""
    names = ("job_id", "state", "submit", "start", "end", "restarts")
    rows = {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in _of_jobs(run, *names)}
    waits = {f"j{number}": job.waits for number, job in enumerate(outcome.scenario.jobs, 1) if job.waits}
    yield from broken_waits(waits, rows, 1, 1e-6)


def _resizes(run: Run) -> Iterator[str]:
    """The steps of a resize are in order."""
    rows = run.table("reconfigurations")
    steps = zip(*(rows[name].tolist() for name in ("asked", "decided", "applied", "ended")), strict=True)
    for row, times in enumerate(steps):
        known = [time for time in times if time == time]  # NaN: unknown
        if known != sorted(known):
            yield f"resizes: the steps of a resize of job {rows.text('job_id', row)} are at {times}"


def _cores(outcome: Outcome, run: Run, facts: Mapping[str, Any]) -> Iterator[str]:
    """The cores of a job on a node that it has shared are those that its rank had, unless a node was lost."""
    scenario, rows = outcome.scenario, run.table("reconfigurations")
    changes = np.flatnonzero(rows["node"] >= 0).tolist()
    if not changes or scenario.has(*CONTROLLER_FAULTS, "step_clock", "lying_rank", "garble"):
        return
    zero, applied = outcome.world.controller.at(facts["zero"]), rows.equal("state", "applied")
    recorded: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for row in changes:
        rank = rows.text("job_id", row), run.info.nodes[rows["node"][row]].name
        found = recorded.setdefault(rank, [(-math.inf, rows["cores_from"][row])])
        if applied[row]:
            found.append((zero + rows["applied"][row] / scenario.speed, rows["cores_to"][row]))
    held: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for now, what, *details in outcome.seen:
        if what in ("cpus", "end"):
            launch = details[0].launch
            held[launch.job, launch.rank].append((now, len(details[1]) if what == "cpus" else 0))
    ended = [row for row in _of_jobs(run, "job_id", "state", "restarts") if row[1] in ("completed", "killed")]
    told_all = {job for job, _, restarts in ended if not restarts}
    for (job, node), found in recorded.items():
        for (since, cores), (until, _) in pairwise(held[job, node]):
            middle = (since + until) / 2
            told = max((change for change in found if change[0] <= middle), key=itemgetter(0))[1]
            if job in told_all and until - since > 2 * CLOCK_S and told != cores > 0:
                yield f"cores: job {job} had {cores} cores on {node} at {middle:.3f} s, and {told} in its run"


def _requests(outcome: Outcome, entries: list[journal.Entry]) -> Iterator[str]:
    """A request in the journal is one that its job has made."""
    made = Counter((details[0].launch.job, details[1]) for _, what, *details in outcome.seen if what == "asks")
    noted = Counter((entry.job, entry.data["nodes"]) for entry in entries if entry.kind == "asks")
    for (job, nodes), times in (noted - made).items():
        yield f"requests: job {job} did not ask for {nodes} nodes, but {times} more times in the journal"


def _files(outcome: Outcome, run: Run) -> Iterator[str]:
    """The run on disk is the run that was returned."""
    assert run.folder is not None
    loaded = Run.load(run.folder)
    for name in ("jobs", "allocations", "reconfigurations"):
        if not getattr(loaded, name).equals(getattr(run, name)):
            yield f"files: the table {name} on disk differs from the run"


def _recovery(outcome: Outcome) -> Iterator[str]:
    """The journal alone makes the same run."""
    assert outcome.journal is not None
    again, run = recovered(outcome.journal), outcome.run
    if run is not None and run.info.state == "completed" and not again.jobs.equals(run.jobs):
        changed = [str(name) for name in run.jobs if not again.jobs[name].equals(run.jobs[name])]
        yield f"journal: the recovered run differs in {', '.join(changed)}"


def watched(outcome: Outcome, facts: Mapping[str, Any], entries: list[journal.Entry]) -> Iterator[str]:
    """The view of the journal has the figures that the metrics have for the run."""
    run = outcome.run
    if run is None:
        return
    view = view_of(facts)
    view.apply(entries)
    view.finish(facts.get("end"))
    measured = MeasuredRun(run)
    used = utilization(measured.busy, measured.window, measured.cores)
    if view.utilization() != pytest.approx(used, abs=1e-9, nan_ok=True):
        yield f"watched: the utilization is {used} in the run, and {view.utilization()} in the view"
    if view.resizes != (resizes := len(measured.applied)):
        yield f"watched: {resizes} resizes took effect in the run, and {view.resizes} in the view"
    if view.lateness() != run.info.lateness_ms or view.health() != run.info.health:
        yield f"watched: {run.info.lateness_ms}, {run.info.health} in the run; {view.lateness()}, {view.health()}"
    if view.core_changes.total() != (changes := int((run.table("reconfigurations")["node"] != -1).sum())):
        yield f"watched: {changes} changes of cores in the run, and {view.core_changes.total()} in the view"
    states = Counter(run.table("jobs")["state"].tolist())
    if (shown := {name: count for name, count in view.counts().items() if count}) != states:
        yield f"watched: the states are {dict(states)} in the run, and {shown} in the view"


def _decisions(outcome: Outcome, entries: list[journal.Entry]) -> Iterator[str]:
    """The policy makes the decisions of the journal again."""
    scenario = outcome.scenario
    setup, policy = scenario.setup.resolved(scenario.nodes)
    limits, evolving = OverLimit(scenario.over_limit), handles_requests(policy)
    jobs = Jobs.of(scenario.workload, cores_per_node=CORES, over_limit=limits, evolving=evolving)
    machine, pools = InventoryMachine.of(scenario.inventory), None
    if not machine.plain:
        jobs, pools = on_pools(scenario.workload, machine, jobs, policy)
    sleeping = Sleeping.of(machine)
    decisions = redecide(entries, jobs, scenario.inventory.facts, policy, setup.scheduling, pools, sleeping)
    for number, (logged, other) in enumerate(zip_longest(logged_decisions(entries), decisions)):
        if other != logged:
            yield f"journal: decision {number} is {logged}, and again {other}"
            break
    yield from _stalls(outcome, entries, jobs)


def _stalls(outcome: Outcome, entries: list[journal.Entry], jobs: Jobs) -> Iterator[str]:
    """No node is idle while every waiting job would fit."""
    if outcome.scenario.policy not in ENDS_ALL:
        return
    number = {name: job for job, name in enumerate(jobs.ids)}
    nodes = {node.name for node in outcome.scenario.inventory.nodes}
    eligible = {name: outcome.scenario.eligible(outcome.scenario.jobs[job]) for name, job in number.items()}
    waiting: set[str] = set()
    holding: dict[str, set[str]] = {}
    down: set[str | None] = set()
    stopping: set[str | None] = set()
    sleep = outcome.scenario.inventory.sleep
    back = "on" if sleep is not None and sleep.rule == "windows" else "off"
    for _, group in groupby(entries, lambda entry: entry.round):
        for entry in group:
            job = entry.job or ""
            match entry.kind:
                case "submit" | "eligible":
                    waiting.add(job)
                case "hold":
                    waiting.discard(job)
                case "start":
                    waiting.discard(job)
                    holding[job] = {*entry.data["nodes"]}
                case "end" | "requeue":
                    holding.pop(job, None)
                    if entry.kind == "requeue":
                        waiting.add(job)
                case "reject" | "cancel":
                    waiting.discard(job)
                case "down":
                    down.add(entry.node)
                case "up":
                    down.discard(entry.node)
                case "power" if entry.data["state"] == "shutdown":
                    stopping.add(entry.node)
                case "power" if entry.data["state"] == back:
                    stopping.discard(entry.node)
        idle = nodes.difference(down, stopping, *holding.values())
        if waiting and all(jobs.nodes[number[job]] <= len(idle & eligible[job]) for job in waiting):
            yield f"liveness: {sorted(idle)} are idle at {entry.time:.1f} s, and all of {sorted(waiting)} would fit"
            return


NEXT = {"on": "shutdown", "shutdown": "off", "off": "boot", "boot": "on"}
"""State of the power of a node -> the next one."""


def _power(outcome: Outcome, facts: Mapping[str, Any], entries: list[journal.Entry]) -> Iterator[str]:
    """A node changes its state in order and takes its time, no job runs on it unless it is on, and the run says so."""
    inventory, damaged = outcome.scenario.inventory, outcome.scenario.has(*_DAMAGING)
    power = {node.name: node.power for node in inventory.nodes}
    changes: dict[str, list[tuple[float, str]]] = {name: [(-math.inf, "on")] for name in power}
    holding: dict[str | None, set[str]] = {}
    resized: dict[str | None, set[str]] = {}
    for entry in entries:
        _note_held(entry, holding, resized)
        if entry.kind != "power":
            continue
        node, state = entry.node or "", entry.data["state"]
        (since, before), own = changes[node][-1], power[node]
        least_s = {"off": own.shutdown_s, "on": own.boot_s}.get(state, 0.0) if own else math.inf
        if NEXT[before] != state or entry.time - since < least_s:
            yield f"power: {node} is {before} from {since} s on, and {state} from {entry.time} s on"
        holders = Counter(name for nodes in holding.values() for name in nodes)
        if state == "shutdown" and holders[node]:
            yield f"power: {node} is switched off at {entry.time} s, and {holders[node]} jobs hold it"
        changes[node].append((entry.time, state))
    if outcome.run is not None:
        rows, names = outcome.run.table("nodes"), [*power]
        told = {name: changes[name][:1] for name in power}
        for row in range(len(rows["time"])):
            if state := rows.text("power_state", row):
                told[names[rows["node"][row]]].append((rows["time"][row], state))
        if told != changes and not damaged:
            yield f"power: the run says {told}, and the journal {changes}"
    if damaged or "zero" not in facts or any(entry.kind == "pause" for entry in entries):
        return  # the clock of a replay that was resumed leaves out its pauses
    for now, what, *details in outcome.seen:
        if what == "fork":
            node = details[0].agent.node.name
            at = (now - outcome.world.controller.at(facts["zero"])) * outcome.scenario.speed
            state = next(state for since, state in reversed(changes[node]) if since <= at)
            if state != "on":
                yield f"power: {details[0].launch.job} is launched on {node} at {at:.1f} s, which is {state}"


def _note_held(entry: journal.Entry, holding: dict[str | None, set[str]], resized: dict[str | None, set[str]]) -> None:
    """Note in `holding` which nodes jobs hold after an entry. `resized`: those after the last resize of each job."""
    if entry.kind == "start":
        holding[entry.job] = {*entry.data["nodes"]}
    elif entry.kind in ("end", "requeue"):
        holding.pop(entry.job, None)
    elif entry.kind == "resize":
        resized[entry.job] = {*entry.data["nodes"]}
        holding[entry.job] |= resized[entry.job]
    elif entry.kind == "effect":
        holding[entry.job] = resized[entry.job]


DECIDING = {"submit", "end", "requeue", "effect", "up", "window"}
"""Kinds of entries of rounds in which nodes may be switched off."""


def _windows(outcome: Outcome, entries: list[journal.Entry]) -> Iterator[str]:
    """In the window, nodes of it are on only while jobs hold them, and no node boots. Before and after, none goes."""
    window = getattr(outcome.scenario, "window", None)
    if window is None:
        return
    begin, end = (60 * minute for minute in window)
    names = [node.name for node in outcome.scenario.inventory.nodes]
    members = {*names[: int(len(names) * outcome.scenario.share + 1e-9)]}
    holding: dict[str | None, set[str]] = {}
    resized: dict[str | None, set[str]] = {}
    state: dict[str | None, str] = {}
    down: set[str | None] = set()
    for _, group in groupby(entries, lambda entry: entry.round):
        kinds = set()
        for entry in group:
            kinds.add(entry.kind)
            dark = (entry.time - begin) % 86_400 < end - begin
            _note_held(entry, holding, resized)
            if entry.kind in ("down", "up"):
                (down.add if entry.kind == "down" else down.discard)(entry.node)
            if entry.kind == "power":
                state[entry.node] = entry.data["state"]
                if (entry.data["state"], dark) in (("shutdown", False), ("boot", True)) or entry.node not in members:
                    yield f"windows: {entry.node} is {entry.data['state']} at {entry.time} s"
        on = {name for name in members if state.get(name, "on") == "on"}
        if dark and kinds & DECIDING and (left := on.difference(down, *holding.values())):
            yield f"windows: {sorted(left)} are idle at {entry.time} s, in the window"


def _refusals(outcome: Outcome) -> Iterator[str]:
    """A replay is not resumed with another workload."""
    for _, what, *_ in outcome.seen:
        if what == "not refused" and not outcome.scenario.has("power_failure"):  # the whole journal may be lost
            yield "resumption: another workload was not refused"


def _left(outcome: Outcome) -> Iterator[str]:
    """When all nodes are back and time has passed, no agent and no rank is left."""
    world = outcome.world
    for node in world.nodes.values():
        node.heal()
    until = world.monotonic() + LEFT_S
    world.wait_for(lambda: not world.starts and not any(node.agents for node in world.nodes.values()), until)
    for node in world.nodes.values():
        for agent in node.agents:
            ranks = ", ".join(rank.launch.job for rank in agent.ranks.values())
            yield f"left: an agent on {node.name} with {f'ranks of {ranks}' if ranks else 'no ranks'}"
    if world.starts and not any(node.agents for node in world.nodes.values()):
        yield f"left: {len(world.starts)} ranks without an agent"
