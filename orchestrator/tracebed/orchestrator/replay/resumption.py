"""Resumption of a replay whose replayer was killed.

All inputs of a replayer are in its journal, so the state of the replayer is rebuilt by passing them to another replayer
in the same rounds. The rebuilt decisions must equal the recorded decisions. Then the running agents are taken over.
Messages of the killed replayer may be lost. Agents report which ranks they have and repeat the events that were not
recorded, so that lost messages are detected and sent again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.ground import system
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.event_handler import LEADER_ENDED, NOT_STARTED
from tracebed.orchestrator.replay.executor import RunningJob
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.loop import Replayer
from tracebed.orchestrator.replay.outages import lost
from tracebed.orchestrator.replay.pace import Timeline
from tracebed.orchestrator.replay.recovery import check_unchanged
from tracebed.orchestrator.testbeds.base import Event, Testbed

SETTLE_S = 5.0  # time in which the agents that were taken over must answer, wall s
ENDED = "ended while the replay was stopped"  # what an agent did that was not taken over
# Kinds of entries that a replayer computes from its own clock, in addition to the decisions.
OWN = ("loop", "clock", "launched", "mask")
SAME = ("execution", "nodes", "parameters")  # facts of the run that must not change between a replay and its resumption


class MissingRank(NamedTuple):
    """A missing rank of a node: the message that launches it was lost, or the agent was replaced."""

    job: int
    active: RunningJob
    node: int


class Resumption:
    """The journal of a killed replayer."""

    def __init__(self, path: Path) -> None:
        """Read the journal. Raises InputError if it cannot be read."""
        self.path = path
        self._seen: dict[str, int] = {}  # node -> number of the last recorded event of its agent
        self._left_out: dict[str, float] = {}  # node -> the sum of the pauses of its agent, wall s
        self._missing_before = 0  # number of lost rows at the last pause, which dealt with them
        self._boots: list[str | None] = []  # the identity of the kernel after each pause
        self._loop_at: float | None = None  # time of the last sample of the loop, monotonic
        with closing(journal.Reader(path)) as reader:
            for entry in reader.stream():
                self._note(entry)
            self.facts = reader.facts()
            self._missing = self.facts.get(journal.MISSING, 0)
            # After a power failure, ranks may do what the journal does not know.
            self.lost_rows = self._missing > self._missing_before
        boots = [self.facts.get("boot"), *self._boots]  # absent: another version of tracebed wrote the journal
        self._boot = boots[-1]
        # Then the monotonic clock of the machine has begun again.
        self.rebooted = self._boot is not None and self._boot != system.current().boot_id()

    def _note(self, entry: Entry) -> None:
        """Keep what the resumption needs of an entry, apart from the state of the replayer."""
        if entry.kind == "loop":
            self._loop_at = entry.data["time"]
        elif entry.kind == "pause":  # other agents that ran then have been replaced
            self._boots += [entry.data["boot"]] if "boot" in entry.data else []
            self._missing_before = entry.data.get("missing", 0)
            self._left_out = dict(entry.data["left_out"])
            self._seen = {name: number for name, number in self._seen.items() if name in self._left_out}
        elif entry.node is not None and entry.kind in ("lost", "back", "asleep"):
            self._left_out.pop(entry.node, None)
            self._seen[entry.node] = 0
        elif entry.node is not None and "n" in entry.data:
            self._seen[entry.node] = max(self._seen.get(entry.node, 0), entry.data["n"])

    @property
    def ended(self) -> bool:
        """Whether the replay had ended, and only its run was not saved."""
        return "end" in self.facts

    @property
    def begun(self) -> bool:
        """Whether the clock of the replay had been started."""
        return "zero" in self.facts

    def check(self, facts: Mapping[str, Any]) -> None:
        """Raise InputError unless `facts` of the resuming replay equal the facts of the journal."""
        facts = json.loads(json.dumps(facts))
        before, now = self.facts.get("info", {}), facts["info"]
        pairs: list[tuple[str, Any, Any]] = [(name, before.get(name), now[name]) for name in SAME]
        for part, settings in now["setup"].items():
            kept = before.get("setup", {}).get(part, {})
            pairs += [(name, kept.get(name), value) for name, value in settings.items()]
        pairs.append(("machine", before.get("machine"), now.get("machine")))
        pairs.append(("workload", before.get("workload", {}).get("sha256"), now["workload"]["sha256"]))
        pairs.append(("calibration", before.get("calibration", {}).get("sha256"), now["calibration"].get("sha256")))
        pairs += [(name, self.facts.get(name), facts[name]) for name in ("jobs", "cpus")]
        pairs.append(("health thresholds", self.facts.get("thresholds", [""])[0], facts["thresholds"][0]))
        changed = [name for name, old, new in pairs if old != new and not (name == "jobs" and _same_jobs(old, new))]
        check_unchanged(changed, self.path.parent)

    # -- the state of the killed replayer --------------------------------------------------------------------------

    def restore(self, replayer: Replayer) -> None:
        """Restore the state of the killed replayer in `replayer`, whose testbed has not started.

        Decisions that differ from the recorded ones are an InputError. A recorded loss of a node that aborted the
        replay is a TestbedError again.
        """
        replayer.timeline.zero = self.facts["zero"]
        replayer.rounds.now = replayer.jobs.submit[0]  # if no round was recorded, the first one is yet to come
        drop = replayer.outages.drop
        replayer.outages.drop = lambda node, reason: None  # the journal has the loss that followed
        with closing(journal.Reader(self.path)) as reader:
            before: list[Entry] = []
            for _, entries in groupby(reader.stream(), lambda entry: entry.round):
                if before:
                    self._restore_round(replayer, before, last=False)
                before = list(entries)
        if before:  # the last round may be incomplete: the replayer writes the rest of it
            self._restore_round(replayer, before, last=True)
        replayer.outages.drop = drop

    def _restore_round(self, replayer: Replayer, entries: Sequence[Entry], *, last: bool) -> None:
        rounds = replayer.rounds
        number = rounds.number = entries[0].round
        rounds.now = entries[0].time
        for entry in entries:
            replayer.monitor.apply(entry)
            if entry.kind == "pause":
                replayer.timeline.pause(entry.data["at"], entry.data["zero"])
                replayer.record.paused(entry.data)
        replayer.handle([event for entry in entries if (event := _event(entry, replayer.number_of))])
        for entry in entries:
            job = replayer.event_handler.numbers.get(entry.job or "")
            if entry.kind == "launched" and job is not None:
                replayer.record.launched[job] = entry.data["at"]
            if entry.kind == "kill" and job in replayer.ranks.running and entry.data["reason"] == LEADER_ENDED:
                replayer.event_handler.end_orphan(job)
            if entry.kind == "kill" and job in replayer.ranks.running and entry.data["reason"] == NOT_STARTED:
                replayer.event_handler.end_unstarted(job)
        submitted = [replayer.event_handler.numbers[entry.job or ""] for entry in entries if entry.kind == "submit"]
        replayer.arrivals.take(submitted)
        replayer.decide(submitted)
        replayer.ranks.take_messages()
        if replayer.sleepers is not None:
            replayer.sleepers.take_orders()
        decided = [_comparable(entry) for entry in rounds.entries if entry.kind not in OWN]
        known = [_comparable(entry) for entry in entries if _is_decision(entry)]
        if decided == known:
            written = {(entry.kind, entry.job, entry.node) for entry in entries}
            lost = [entry for entry in rounds.entries if (entry.kind, entry.job, entry.node) not in written]
            rounds.entries[:] = lost if last else []  # the results of the last events may not have been written
            rounds.end()
        elif last and not known:
            rounds.end()  # the replayer was killed between the events and the decisions
        else:
            what = f"the decisions of round {number} are not those of the journal"
            hint = "`tracebed replay --recover` makes a run of it; replay again without --resume"
            raise InputError(what, where=str(self.path), hint=hint)
        rounds.next()

    # -- the agents ------------------------------------------------------------------------------------------------

    def agents(self, replayer: Replayer) -> dict[str, dict[str, Any]]:
        """Return the agents that may still run: node name -> facts, and the number of the last recorded event."""
        agents: dict[str, dict[str, Any]] = self.facts.get("agents", {})
        left = {name: facts for name, facts in agents.items() if replayer.number_of[name] not in replayer.outages.lost}
        return {name: {**facts, "seen": self._seen.get(name, 0)} for name, facts in left.items()}

    def continue_replay(self, replayer: Replayer) -> None:
        """Continue the replay on the testbed, which has started. The pause is not part of the time of the replay."""
        testbed, ranks = replayer.testbed, replayer.ranks
        adopted = {replayer.number_of[name]: set(jobs) for name, jobs in testbed.adopted.items()}
        if self.lost_rows:
            kept = _kill_ranks(replayer, adopted)
            adopted = {}
        else:
            kept = _receive_kept_events(replayer, adopted)
        events = [*self._node_changes(replayer, adopted), *kept]
        running = [(job, active) for job, active in ranks.running.items()]
        ended = {(event.node, event.message["job"]) for event in kept if event.message["type"] == "ended"}
        missing = [
            MissingRank(job, active, node)
            for job, active in running
            for node in active.alive
            if node in adopted
            and replayer.jobs.ids[job] not in adopted[node]
            and (node, replayer.jobs.ids[job]) not in ended  # the rank may be launched again in the next round
        ]
        lost_jobs = [job for job, active in running if not active.alive.keys() <= adopted.keys()]
        replayer.journal.add_facts({"agents": testbed.agents})
        pause = self._pause(replayer) | {"adopted": len(running) - len(lost_jobs), "lost": len(lost_jobs)}
        # The ranks that were taken over are stopped until the pause is in the journal.
        replayer.play(events, system.monotonic(), pause)
        never = []
        for job, active, node in missing:
            if ranks.running.get(job) is active and node in active.alive:
                if active.outcome is None:
                    ranks.launch_again(job, node)
                else:
                    never.append(_never_launched(replayer, job, node))
        ranks.resend(before=running)
        ranks.send()
        if replayer.sleepers is not None:
            replayer.sleepers.order_again()
        if never:
            replayer.play(never, system.monotonic())

    def _node_changes(self, replayer: Replayer, adopted: Mapping[int, object]) -> Iterator[Event]:
        """Yield the losses and returns of the nodes whose agents were not taken over."""
        out = {replayer.number_of[name]: reason for name, reason in replayer.testbed.out.items()}
        sleepers = replayer.sleepers
        holders = {node for active in replayer.ranks.running.values() for node in active.alive}
        for node in range(len(replayer.testbed.nodes)):
            was_lost = node in replayer.outages.lost
            if node in out and not was_lost:
                yield lost(node, f"did not start: {out[node]}")
            elif node not in adopted and node in holders and not was_lost:
                reason = "lost its ranks with the last rows of the journal" if self.lost_rows else ENDED
                yield lost(node, reason)
                yield Event(node, {"type": "back"}, system.monotonic())
            elif node not in out and (was_lost or (sleepers is not None and sleepers.awaits_agent(node))):
                yield Event(node, {"type": "back"}, system.monotonic())

    def _pause(self, replayer: Replayer) -> dict[str, Any]:
        """End the pause of the timeline now, and return its data.

        The pause begins when the agents have stopped their ranks, since the ranks worked until then. The pause is
        equally long for the clocks of the ranks and for the timeline, so work and trace time still agree. If no agent
        was taken over, all jobs have ended, and trace time continues from the last entry of the journal.

        The data are the trace time `at`, the new `zero` of the timeline, `since` (monotonic s) and `wall_s` of the
        pause (None: unknown), and `left_out`: node that was taken over -> the sum of its pauses, wall s. `boot`
        identifies the kernel, whose monotonic clock gives these times. `missing` rows were lost in power failures so
        far.
        """
        timeline, testbed, last = replayer.timeline, replayer.testbed, replayer.rounds.now
        held: Mapping[str, float] = testbed.held if testbed.adopted else {}  # testbeds of other packages may lack it
        before, now = self._left_out, system.monotonic()
        at, since, wall_s = last, max(held.values(), default=None), None if self.rebooted else self._wall_s()
        if since is None or (self.rebooted and not self._shifted(timeline, testbed)):
            timeline.pause(at)
            wall_s = wall_s if since is None else max(0.0, now - since)
        elif replayer.clock.path is None:
            since = max(since, timeline.clock_at(last))
            at, wall_s = max(last, timeline.trace(since)), max(0.0, now - since)
            timeline.pause(at, timeline.zero + wall_s)
        elif any(testbed.adopted.values()):  # the stopped ranks have held the steady clock
            at = max(last, timeline.now())
            timeline.pause(at, timeline.zero)
        else:  # the last rank has ended, perhaps after the last entry of the journal
            at = max(last, timeline.trace(replayer.clock.past(since)))
            timeline.pause(at)
        left_out = {name: before.get(name, 0.0) + (wall_s or 0.0) for name in held}
        pause = {"at": at, "zero": timeline.zero, "since": since, "wall_s": wall_s, "left_out": left_out}
        return pause | {"boot": system.current().boot_id(), "missing": self._missing}

    def _shifted(self, timeline: Timeline, testbed: Testbed) -> bool:
        """Let the timeline use the clock of this boot, if the clocks of nodes connect it with the clock of the last."""
        before, now = self.facts.get("agents", {}), testbed.agents
        known = [name for name in now if name in testbed.adopted and before.get(name, {}).get("boot") == self._boot]
        differences = [now[name]["offset_s"] - before[name]["offset_s"] for name in known]
        if differences:
            timeline.shift(statistics.median(differences))
        return bool(differences)

    def _wall_s(self) -> float | None:
        """Return the duration of the pause by the journal; None: unknown, since the machine was restarted."""
        last, now = self._loop_at, system.monotonic()
        return None if last is None or last > now else round(now - last, 3)


def _receive_kept_events(replayer: Replayer, adopted: Collection[int]) -> list[Event]:
    """Return the events that the agents kept. They precede the answer to a request for a sample.

    The events are not in the journal yet, so the agents must keep them: this replayer may be killed too.
    """
    testbed, events = replayer.testbed, []
    receive = partial(testbed.receive, recorded=False) if adopted else testbed.receive
    silent = set(adopted)
    for node in range(len(testbed.nodes)):
        testbed.send(node, {"type": "sample", "calibrate": False})
    until = system.monotonic() + SETTLE_S
    while silent and system.monotonic() < until and not replayer.interrupted:
        new = receive(min(until, system.monotonic() + 0.2))
        silent -= {event.node for event in new if event.message["type"] in ("heartbeat", "lost")}
        events += new
    for node in sorted(silent):
        replayer.outages.drop(node, f"has not answered for {SETTLE_S:g} s")
    return events


def _kill_ranks(replayer: Replayer, adopted: Mapping[int, Collection[str]]) -> list[Event]:
    """Kill all ranks of the agents that were taken over, wait for their ends, and return the losses of nodes."""
    testbed, lost_nodes = replayer.testbed, []
    left = {(node, job) for node, jobs in adopted.items() for job in jobs}
    for node, job in sorted(left):  # in the same order in each process
        testbed.send(node, {"type": "kill", "job": job, "reason": "the journal lacks rows"})
    until = system.monotonic() + SETTLE_S
    while left and system.monotonic() < until and not replayer.interrupted:
        # Other events concern jobs as they were in the lost rows.
        for event in testbed.receive(min(until, system.monotonic() + 0.2)):
            if event.message["type"] == "lost":
                lost_nodes.append(event)
                left -= {(node, job) for node, job in left if node == event.node}
            elif event.message["type"] == "ended":
                left.discard((event.node, event.message["job"]))
    for node in sorted({node for node, _ in left}):
        replayer.outages.drop(node, f"has not ended its ranks for {SETTLE_S:g} s")
    return lost_nodes


def _never_launched(replayer: Replayer, job: int, node: int) -> Event:
    """Return the event of the end of a killed rank that was never launched."""
    name, active = replayer.testbed.nodes[node].name, replayer.ranks.running[job]
    facts = {"rank": name, "leader": node == active.nodes[0], "state": "killed", "reason": "it was never launched"}
    figures = {"exit_code": None, "units_done": 0, "cpu_s": 0.0}
    now = system.monotonic()
    return Event(node, {"type": "ended", "job": replayer.jobs.ids[job], "time": now, **facts, **figures}, now)


def _event(entry: Entry, number_of: Mapping[str, int]) -> Event | None:
    """Return the event of an entry; None: the entry is not an event of an agent."""
    if entry.node is None or entry.kind in ("down", "up", "power", "sample", "mask"):
        return None
    message = {"type": entry.kind, **entry.data} | ({} if entry.job is None else {"job": entry.job})
    return Event(number_of[entry.node], message, entry.data.get("time", 0.0))


def _is_decision(entry: Entry) -> bool:
    """Return whether a replayer computes the entry from the events before it."""
    return (entry.node is None or entry.kind in ("down", "up", "power")) and entry.kind not in (*OWN, "submit", "pause")


def _comparable(entry: Entry) -> tuple[str, str | None, str | None, str]:
    return entry.kind, entry.job, entry.node, json.dumps(entry.data, sort_keys=True)


def _same_jobs(old: Any, new: Any) -> bool:
    """Return whether two workloads in JSON are equal; unlike other numbers, NaN is not equal to itself."""
    return json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)
