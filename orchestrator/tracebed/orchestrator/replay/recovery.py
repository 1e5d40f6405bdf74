"""Recovery: the run of a killed replay, made from its journal."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from tracebed.ground.cpus import parse_cpus
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.ending import ended_run
from tracebed.orchestrator.replay.event_handler import mask_changed
from tracebed.orchestrator.replay.journal import DamagedJournal, Entry
from tracebed.orchestrator.replay.monitor import Monitor
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.run import JOURNAL, Run, RunInfo, check_target
from tracebed.orchestrator.runs.working_folders import is_running, output_of
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import CoreChange, ScheduleRecord, cut_short
from tracebed.orchestrator.testbeds.nodes import Inventory

SCHEMA = "tracebed-journal/2"
KILLED = "the replay was killed"
"""The reason of interrupted jobs in a recovered run, unless the journal has another reason."""
SAME_COMMAND = "repeat the command of the killed replay, or omit --resume"
NOTHING_BEGUN = "the replay to {} was killed before its first job: the replay starts from the beginning"
"""The warning if the replay to resume had not begun; with the output."""


def check_unchanged(changed: Sequence[str], where: Path) -> None:
    """Raise InputError if the replay in the folder `where` is not resumed as it was begun: `changed` differs."""
    if changed:
        what = f"the killed replay differs in: {', '.join(changed)}"
        raise InputError(what, where=str(where), hint=SAME_COMMAND)


def facts_of(info: RunInfo, jobs: Jobs, inventory: Inventory, thresholds: HealthThresholds) -> dict[str, Any]:
    """Return the first facts of a journal, which `recovered` needs in addition to the entries."""
    columns = {item.name: getattr(jobs, item.name) for item in fields(jobs) if item.name != "speedup"}
    cpus = [list(node.cpus or ()) for node in inventory.nodes]
    return {
        "schema": SCHEMA,
        "info": info.as_dict(),
        "jobs": columns,
        "cpus": cpus,
        "thresholds": [thresholds.text, thresholds.where],
    }


def recover(
    folder: Path,
    output: Path | None = None,
    make: Callable[[Path], Run] | None = None,
    *,
    replace: bool = False,
) -> tuple[Run, Path]:
    """Make a run from the working folder of a killed replay, save it, and return the run and its folder.

    `folder` is not changed. By default the run is saved to the output of the replay, which must not exist unless
    `replace`, and `make` is that of replays on a testbed. A replay that is still running is an InputError.
    """
    target = output_of(folder)
    if target is not None and is_running(folder):
        raise InputError("the replay is still running", where=str(folder), hint="interrupt it, or wait until it ends")
    if output is not None:
        check_target(output, replace=replace)
    run = make(folder) if make is not None else recovered(folder / JOURNAL)
    if output is None and (target is None or target.exists()):
        what = f"{target} exists" if target else "the output of the replay is unknown"
        raise InputError(what, where=str(folder), hint="choose a folder for the run with -o")
    chosen = output or target
    assert chosen is not None
    with tempfile.TemporaryDirectory() as scratch:
        run.save(chosen, replace=replace, journal=journal.copy(folder / JOURNAL, Path(scratch) / JOURNAL))
    return run, chosen


def recovered(path: Path) -> Run:
    """Return the run of the journal at `path`. Jobs that were running at the last entry are interrupted at its time."""
    with closing(journal.Reader(path)) as reader:
        return _recovered(path, reader)


def _recovered(path: Path, reader: journal.Reader) -> Run:
    entries = reader.stream()
    first = next(entries, None)
    facts = reader.known  # those of the run and of the machines are before all entries
    if not facts:
        raise InputError("the replay has not begun", where=str(path), hint="wait for its start, or replay again")
    if facts.get("schema") != SCHEMA:
        hint = "give the working folder of a replay"
        raise InputError(f"is not a journal of the schema {SCHEMA}", where=str(path), hint=hint)
    try:
        info = RunInfo.from_json(facts["info"])
        rebuilt = Reconstruction(Jobs.of_facts(facts["jobs"]), info)
        thresholds = HealthThresholds.parse(*facts["thresholds"]) if "thresholds" in facts else HealthThresholds.read()
        monitor = Monitor(rebuilt.jobs, info.nodes, info.speed)
        monitor.rates = facts.get("calibration", {}).get("rates", {})
        last = rebuilt.jobs.submit[0]
        for entry in chain([] if first is None else [first], entries):
            rebuilt.apply(entry)
            monitor.apply(entry)
            last = entry.time
        facts = reader.facts()
        info.hosts = facts.get("hosts", [])
        info.calibration = facts.get("calibration", {})
        info.warnings += lost_rows(facts)
        end = facts.get("end", {"time": last, "interrupted": KILLED})
        cut_short(rebuilt.record, rebuilt.cluster, rebuilt.running, end["time"], end["interrupted"])
        return ended_run(rebuilt.record, rebuilt.cluster, info, end["interrupted"], facts["cpus"], monitor, thresholds)
    except DamagedJournal:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, InputError) as error:
        what = f"the journal is damaged: {type(error).__name__}: {error}"
        raise DamagedJournal(what, where=str(path), hint="the run cannot be recovered") from error


def lost_rows(facts: Mapping[str, Any]) -> list[str]:
    """Return the warnings of a run whose journal, with these facts, lacks rows or its head."""
    texts = []
    if lost := facts.get(journal.MISSING, 0):
        texts.append(f"the journal lacks {lost:,} rows that were written before a power failure")
    if facts.get(journal.NO_HEAD):
        texts.append("the head of the journal was missing: nothing proves that its last rows are those written")
    return texts


class Reconstruction:
    """The record of the jobs and the allocation of the nodes, reconstructed entry by entry.

    Of `info`, only the nodes and the sleep of the machine are used.
    """

    def __init__(self, jobs: Jobs, info: RunInfo) -> None:
        self.jobs = jobs
        self.record = ScheduleRecord(jobs)
        self.cluster = Cluster([node.cores for node in info.nodes], [node.sockets for node in info.nodes])
        self.running: dict[int, int] = {}
        """Running job -> its number of nodes, after the pending resize if there is one."""
        self.power: dict[int, PowerState] = {}
        """Node whose power has changed -> its state."""
        sleep = info.machine.sleep if info.machine is not None else None
        self._windowed = sleep is not None and sleep.rule == "windows"
        self._numbers = {name: number for number, name in enumerate(jobs.ids)}
        self._nodes = {node.name: number for number, node in enumerate(info.nodes)}

    def apply(self, entry: Entry) -> None:
        """Apply one entry. Entries that change neither the record nor the allocation are skipped."""
        if entry.kind in ("down", "up"):
            (self._down if entry.kind == "down" else self._up)(self._nodes[entry.node or ""], entry.time, entry.data)
        if entry.kind == "power":
            node, state = self._nodes[entry.node or ""], PowerState(entry.data["state"])
            self.power[node] = state
            self.record.power.add(node, entry.time, state)
        if entry.kind == "pause":
            self.record.paused(entry.data)
        if entry.kind == "mask":
            mask_changed(self.record, self._numbers[entry.job or ""], self._nodes[entry.node or ""], entry.data)
        handlers = {
            "submit": self._submit,
            "hold": self._hold,
            "eligible": self._eligible,
            "withdraw": self._withdraw,
            "start": self._start,
            "launched": self._launched,
            "resize": self._resize,
            "cores": self._cores,
            "effect": self._effect,
            "end": self._end,
            "requeue": self._requeue,
            "reject": self._reject,
        }
        if entry.kind in handlers:
            handlers[entry.kind](self._numbers[entry.job or ""], entry.time, entry.data)

    def _submit(self, job: int, now: float, data: Mapping[str, Any]) -> None:
        self.record.submit[job] = now

    def _hold(self, job: int, now: float, data: Mapping[str, Any]) -> None:
        self.record.held.add(job)

    def _eligible(self, job: int, now: float, data: Mapping[str, Any]) -> None:
        self.record.held.remove(job)

    def _withdraw(self, job: int, now: float, data: Mapping[str, Any]) -> None:
        self.record.refuse(job, JobState.CANCELLED, data["reason"])

    def _start(self, job: int, now: float, data: Mapping[str, Any]) -> None:
        self.record.start[job] = now
        nodes, parts = [self._nodes[name] for name in data["nodes"]], data.get("cores", {})
        cores = {self._nodes[name]: len(parse_cpus(part)) for name, part in parts.items()}
        self._take(job, [node for node in nodes if node not in cores], now)
        owner = {node: other for other in self.running for node in self.cluster.owned(other)}
        visited = [node for node in nodes if node in cores]
        for (host, count), part in groupby(visited, lambda node: (owner[node], cores[node])):
            self.cluster.lend(host, job, list(part), count, now)
        self.running[job] = len(nodes)

    def _launched(self, job: int, now: float, data: Mapping[str, Any]) -> None:
        self.record.launched[job] = data["at"]

    def _resize(self, job: int, now: float, data: Mapping[str, Any]) -> None:
        nodes = [self._nodes[name] for name in data["nodes"]]
        self.record.resize_requested(job, self.running[job], len(nodes), now)
        if released := {*self.cluster.owned(job)}.difference(nodes):
            self.cluster.put_last(job, released)
        self._take(job, nodes[self.running[job] :], now)
        self.running[job] = len(nodes)

    def _cores(self, job: int, now: float, data: Mapping[str, Any]) -> None:
        changes = {
            self._nodes[name]: CoreChange(*(range(cores[0], cores[-1] + 1) for cores in map(parse_cpus, change)))
            for name, change in data.get("changes", {}).items()
        }
        self.record.cores.requested(job, self.running[job], changes, now)

    def _effect(self, job: int, now: float, data: Mapping[str, Any]) -> None:
        self.record.resize_applied(job, data["decided"], data["applied"], now, data.get("measured"))
        if dropped := len(self.cluster.owned(job)) - self.running[job]:
            self.cluster.shrink(job, dropped, now)

    def _end(self, job: int, now: float, data: Mapping[str, Any]) -> None:
        self.record.checksum[job] = data.get("checksum", "")
        self.record.finish(job, now, JobState(data["state"]), data["reason"])
        self.cluster.release(job, now)
        del self.running[job]

    def _requeue(self, job: int, now: float, data: Mapping[str, Any]) -> None:
        self.record.requeue(job)
        self.cluster.release(job, now)
        del self.running[job]

    def _down(self, node: int, now: float, data: Mapping[str, Any]) -> None:
        self.record.node_down(node, now, data["reason"])
        self.cluster.lose(node)

    def _up(self, node: int, now: float, data: Mapping[str, Any]) -> None:
        self.record.node_up(node, now)
        self.cluster.restore(node)

    def _reject(self, job: int, now: float, data: Mapping[str, Any]) -> None:
        self.record.refuse(job, JobState.REJECTED, data["reason"])

    def _take(self, job: int, nodes: Sequence[int], now: float) -> None:
        """Allocate `nodes` to `job`, in ascending order, but nodes that sleep, or will in a window, come last.

        Raises ValueError if the nodes are not idle, or in another order.
        """
        parts: list[list[int]] = [[]]
        for node in nodes:
            parts += [[]] if parts[-1] and node < parts[-1][-1] else []
            parts[-1].append(node)
        most = 2 if self._windowed else len({*self.power.values(), PowerState.ON})
        if len({*nodes}.intersection(self.cluster.idle)) < len(nodes) or len(parts) > most:
            raise ValueError(f"the nodes of job {self.jobs.ids[job]} are not idle, or not in ascending order")
        for part in filter(None, parts):
            self.cluster.take(job, len(part), now, part)
