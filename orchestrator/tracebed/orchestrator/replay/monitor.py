"""The monitor of a replay: observations of the machine, the agents and the ranks while jobs run.

The monitor reads the entries of the journal, both during the replay and in a recovery. A recovered run therefore has
the same samples and the same health as the run that the replay would have saved.

Among the observations are the hand-overs of CPUs between jobs that share a node: overlaps of their masks, and gaps
between them. The spans of a CPU are computed from the instants at which ranks applied their masks, by one clock for
each node.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from tracebed.ground import system
from tracebed.ground.cpus import parse_cpus
from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.programs import application_of
from tracebed.orchestrator.runs.schema import NAN, TABLES
from tracebed.orchestrator.scheduling.jobs import Jobs

COLUMNS = [name for name in TABLES["nodes"] if name != "power_state"]
WARNINGS = 20  # largest number of different warnings of agents that are kept
TAKEN = attrgetter("taken")


class Named(Protocol):
    """A node: its name and its number of cores."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def cores(self) -> int:
        """The number of cores."""


class LoopWatch:
    """The lateness and the CPU time of the replay loop itself, with a sample every `period_s` of wall time."""

    def __init__(self, period_s: float) -> None:
        """Start without a sample. The first call of `sample` returns one."""
        self._period_s = period_s
        self._due = 0.0
        self._late_s = 0.0

    def sample(self, due: float, now: float, *, last: bool = False) -> dict[str, float] | None:
        """Return a sample of the loop, which woke up at `now` in place of `due`, if one is due or it is the `last`."""
        self._late_s = max(self._late_s, now - due)
        if now < self._due and not last:
            return None
        self._due = now + self._period_s
        late_s, self._late_s = self._late_s, 0.0
        return {"time": now, "cpu_s": system.current().process_time(), "late_s": late_s}


@dataclass
class WorkTotals:
    """Work of ranks: completed units, and CPU and wall time in the kernel of the benchmark, summed over threads, s."""

    units: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def add(self, units: float, cpu_s: float, wall_s: float) -> None:
        """Add the work of an iteration."""
        self.units += units
        self.cpu_s += cpu_s
        self.wall_s += wall_s

    @property
    def rate(self) -> float:
        """Units per second of CPU time; NaN: no work."""
        return self.units / self.cpu_s if self.cpu_s > 0 and self.units else NAN

    @property
    def cpu_share(self) -> float:
        """CPU time over wall time; NaN: no work."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else NAN


@dataclass
class NodeSamples:
    """The samples of a node."""

    cores: int
    # The last sample before the first submission, or the first sample if all are later.
    first: Mapping[str, Any] | None = None
    last: Mapping[str, Any] | None = None
    # The first and the last sample of each agent that has ended because the node slept.
    earlier: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=list)
    slept: bool = False  # whether the node has slept since the last sample
    work: WorkTotals = field(default_factory=WorkTotals)  # work since the last sample
    late_s: float = NAN  # largest lateness of a rank since the last sample, s

    def mean(self, *path: str) -> float | None:
        """Return the mean growth of a figure of the samples per second while the node was on; None: unknown."""
        if self.first is None or self.last is None:
            return None
        if not self.earlier:  # most nodes
            return growth(self.first, self.last, *path)
        agents = [*self.earlier, (self.first, self.last)]
        known = [
            (rate, after["time"] - before["time"])
            for before, after in agents
            if (rate := growth(before, after, *path)) is not None
        ]
        return sum(rate * span for rate, span in known) / sum(span for _, span in known) if known else None


@dataclass
class Largest:
    """The largest value of a figure, and the place at which it occurred."""

    value: float = 0.0
    place: str = ""

    def update(self, value: float, place: str) -> None:
        """Replace the value if `value` is larger."""
        if value > self.value:
            self.value, self.place = value, place


@dataclass(slots=True)
class Span:
    """The time in which a CPU was in the mask of a rank, trace s."""

    job: str
    taken: float
    grown: bool  # Whether the mask of a running rank grew. Otherwise the rank was launched with the CPU.
    released: float = math.inf
    shrunk: bool = False  # Whether the mask of a running rank shrank. Otherwise the rank ended with the CPU.
    ended: float = math.inf  # end of the rank


class Handover(NamedTuple):
    """The overlap or the gap between two jobs on a CPU."""

    seconds: float  # duration, trace s; of an overlap the common time of both masks
    node: int
    cpu: int
    before: str  # the job that held the CPU first
    after: str


class SpanStep(NamedTuple):
    """A step of the sweep over the spans of a CPU, sorted by begin: results for this span and for all spans so far."""

    overlap: Handover | None  # longest overlap of the span with an earlier span of another job
    gap: Handover | None  # time before the span since another job, if the CPU was handed over between running ranks
    latest: dict[str, float]  # job -> its last release after the begin of the span
    last: Span | None  # the span that is released last
    found: int = 0  # number of overlaps and gaps so far
    longest_overlap: Handover | None = None
    longest_gap: Handover | None = None


NOTHING = SpanStep(None, None, {}, None)


class CpuSpans:
    """The spans of a CPU, sorted by their begin.

    A change of a span invalidates the steps from this span on. Changes arrive almost in order, so that the cost of a
    change does not depend on the length of the replay.
    """

    def __init__(self, node: int, cpu: int) -> None:
        self.node, self.cpu = node, cpu
        self._spans: list[Span] = []
        self._steps: list[SpanStep] = []

    def add(self, span: Span) -> None:
        """Add a span."""
        insort(self._spans, span, key=TAKEN)
        self.changed(span)

    def remove(self, span: Span) -> None:
        """Remove a span."""
        self.changed(span)
        self._spans.remove(span)

    def changed(self, span: Span) -> None:
        """Invalidate the steps from `span` on, after its release or the end of its rank has become known."""
        del self._steps[bisect_left(self._spans, span.taken, key=TAKEN) :]

    def steps(self) -> Sequence[SpanStep]:
        """Return the steps of all spans."""
        step = self._steps[-1] if self._steps else NOTHING
        for span in islice(self._spans, len(self._steps), None):
            step = self._next(step, span)
            self._steps.append(step)
        return self._steps

    def _next(self, before: SpanStep, span: Span) -> SpanStep:
        overlap, gap = self._overlap(before, span), self._gap(before.last, span)
        latest = {job: released for job, released in before.latest.items() if released > span.taken}
        latest[span.job] = max(span.released, latest.get(span.job, -math.inf))
        return SpanStep(
            overlap,
            gap,
            latest,
            span if before.last is None or span.released > before.last.released else before.last,
            before.found + (overlap is not None) + (gap is not None),
            max(filter(None, (before.longest_overlap, overlap)), default=None),
            max(filter(None, (before.longest_gap, gap)), default=None),
        )

    def _overlap(self, before: SpanStep, span: Span) -> Handover | None:
        others = [(released, job) for job, released in before.latest.items() if job != span.job]
        released, job = max(others, default=(-math.inf, ""))
        seconds = min(released, span.released) - span.taken
        known = 0 < seconds < math.inf  # the duration is known when one of both masks has released the CPU
        return Handover(seconds, self.node, self.cpu, job, span.job) if known else None

    def _gap(self, last: Span | None, span: Span) -> Handover | None:
        """Return the time between two jobs.

        A CPU is handed over if the mask of the first rank shrank, and the second rank took the CPU before the first
        rank ended, or if the mask of the second rank grew. Otherwise the CPU was idle between two jobs.
        """
        if last is None or last.job == span.job or last.released > span.taken:
            return None
        if not (span.grown or (last.shrunk and span.taken <= last.ended)):
            return None
        return Handover(span.taken - last.released, self.node, self.cpu, last.job, span.job)


class Handovers:
    """The spans of the CPUs of jobs that share nodes."""

    def __init__(self) -> None:
        self._cpus: dict[tuple[int, int], CpuSpans] = {}  # (node, CPU) -> its spans
        self._ranks: dict[tuple[int, str], dict[int, Span]] = defaultdict(dict)  # (node, job) -> CPU -> last span

    def change(
        self, node: int, job: str, before: Iterable[int] | None, after: Iterable[int] | None, at: float, *, since: float
    ) -> None:
        """Add a change of the mask of the rank of `job` on `node` at the trace time `at`.

        Without CPUs `before`, the rank was launched with `after`; without CPUs `after`, it has ended. CPUs without an
        earlier change are held `since` the launch of the rank.
        """
        spans, old, new = self._ranks[node, job], set(before or ()), set(after or ())
        for cpu in old - new:
            span = spans.get(cpu)
            if span is None or span.released < math.inf:
                span = self._take(node, cpu, spans, Span(job, since, grown=False))
            span.released, span.shrunk = at, after is not None
            self._cpus[node, cpu].changed(span)
        for cpu in new - old:
            self._take(node, cpu, spans, Span(job, at, grown=before is not None))
        if after is None:
            for cpu, span in self._ranks.pop((node, job)).items():
                span.ended = at
                self._cpus[node, cpu].changed(span)

    def lose(self, node: int) -> None:
        """Remove the masks of the ranks on the lost `node`: the time of their end is unknown."""
        for key in [key for key in self._ranks if key[0] == node]:
            for cpu, span in self._ranks.pop(key).items():
                if span.released == math.inf:
                    self._cpus[node, cpu].remove(span)

    def overlaps(self) -> Iterator[Handover]:
        """Yield for each span its longest overlap with an earlier span of another job on the CPU, if there is one."""
        for cpu in self._cpus.values():
            yield from (step.overlap for step in cpu.steps() if step.overlap)

    def gaps(self) -> Iterator[Handover]:
        """Yield the times between two jobs for each CPU that was handed over between running ranks."""
        for cpu in self._cpus.values():
            yield from (step.gap for step in cpu.steps() if step.gap)

    def worst(self, speed: float, names: Sequence[str]) -> dict[str, Any]:
        """Return the longest overlap and the longest gap for `run.json`, wall s; empty without hand-overs.

        `handovers` is the number of CPUs handed over. `gap_s` and `overlap_s` are the longest times, 0 without an
        overlap. `gap_at` and `overlap_at` are their CPU, node and jobs.
        """
        ends = [steps[-1] for cpu in self._cpus.values() if (steps := cpu.steps())]
        facts: dict[str, Any] = {"handovers": sum(step.found for step in ends)}
        if not facts["handovers"]:
            return {}
        gaps, overlaps = (step.longest_gap for step in ends), (step.longest_overlap for step in ends)
        for name, found in (("gap", gaps), ("overlap", overlaps)):
            longest = max(filter(None, found), default=None)
            facts[f"{name}_s"] = 0.0 if longest is None else float(f"{longest.seconds / speed:.6g}")
            if longest is not None:
                place = f"CPU {longest.cpu} of {names[longest.node]}"
                facts[f"{name}_at"] = f"{place}, jobs {longest.before} and {longest.after}"
        return facts

    def _take(self, node: int, cpu: int, spans: dict[int, Span], span: Span) -> Span:
        self._cpus.setdefault((node, cpu), CpuSpans(node, cpu)).add(span)
        spans[cpu] = span
        return span


class Monitor:
    """Observations of the machine, the agents and the ranks. Times are wall s unless stated."""

    def __init__(self, jobs: Jobs, nodes: Sequence[Named], speed: float) -> None:
        self.jobs, self.speed = jobs, speed
        self.nodes = [NodeSamples(node.cores) for node in nodes]
        self.seen: set[int] = set()  # nodes whose agents sent a message
        self.lost: set[int] = set()  # nodes whose agents were lost
        self.late = Largest()  # of a rank after a deadline
        self.halt = Largest()  # time in which a rank that computes did not run, within or between two iterations
        self.loop_late = Largest()  # of the replay loop
        self.agent_late = Largest()  # of the heartbeat of an agent
        self.overruns = 0  # parts of iterations that ended after their deadline
        self.residuals: dict[str, float] = {}  # job -> its delay behind its plan when it ended
        self.planned: dict[str, float] = {}  # completed job -> the time that its leader planned for its last run
        # Job -> time from its start, or from the boot of its nodes, to its first work, if it shared no node then.
        self.launches: dict[str, float] = {}
        self.ends: dict[str, float] = {}  # job -> time from the last iteration of its leader to the end of the process
        self.broken: set[str] = set()  # jobs with a rank that was killed from outside
        self.work = WorkTotals()
        self.rates_after: dict[str, float] = {}  # node -> units per second of CPU time after the last job
        self.strays: dict[tuple[str, str], str] = {}  # (job, node) -> own mask of a process, and its allocation
        self.halts: dict[tuple[str, str], list[float | None]] = {}  # times of stops from outside; None: no end
        self.warnings: Counter[tuple[str, str]] = Counter()  # (node, warning), at most `WARNINGS` different ones
        self.rates: Mapping[str, float] = {}
        """Kernel -> units per second of a core by which the jobs were sized. Empty: the jobs are emulated."""
        self.handovers = Handovers()  # CPUs handed over between jobs that share a node
        self._names = [node.name for node in nodes]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._job_numbers = {name: number for number, name in enumerate(jobs.ids)}
        self._starts: dict[str, tuple[float, list[str]]] = {}  # job that was not launched -> its start and its nodes
        self._on_since: dict[str | None, float] = {}  # node -> end of its last boot
        self._begun: dict[tuple[str, int], float] = {}  # (job, node) of the leader -> start of its current iteration
        self._worked: set[tuple[str, int]] = set()  # of these, the ones that have ended an iteration
        self._shared: set[str] = set()  # jobs that have shared a node
        self._pauses: dict[int, list[tuple[float, float]]] = {}  # node -> the beginnings of its pauses, and their sums
        self._clocks: list[Mapping[str, float]] = []  # the first and the last record
        self._loop: list[Mapping[str, Any]] = []  # the last sample before the first submission, and the last one
        self._rows = array("d")  # row by row; a long replay has millions
        self._handlers = {
            "sample": self._sample,
            "work": self._work,
            "loop": self._loop_sample,
            "start": self._start,
            "cores": self._cores,
            "launched": self._launched,
            "power": self._power,
            "started": self._started,
            "ended": self._ended,
            "lost": self._lost,
            "asleep": self._asleep,
            "calibrated": self._calibrated,
            "mask": self._mask,
            "clock": self._clock,
            "stray": self._stray,
            "halted": self._halted,
            "warning": self._warning,
            "pause": self._pause,
        }

    def apply(self, entry: Entry) -> None:
        """Process one entry of the journal."""
        if entry.node is not None:
            self.seen.add(self._numbers[entry.node])
        if entry.kind in self._handlers:
            self._handlers[entry.kind](entry)

    def table(self) -> pd.DataFrame:
        """Return the table `nodes` of a run: one row per node and sample."""
        rows = np.array(self._rows, dtype=np.float64).reshape(-1, len(COLUMNS))
        return pd.DataFrame(rows, columns=COLUMNS).astype({"node": "int64"})

    @property
    def sampled(self) -> set[int]:
        """The nodes with samples."""
        return {number for number, node in enumerate(self.nodes) if node.last is not None}

    @property
    def started_at(self) -> float:
        """Time of the first submission, trace s. Earlier samples are only the baseline of later ones."""
        return float(self.jobs.submit[0])

    # -- figures of the whole replay -------------------------------------------------------------------------------

    def external_load(self, *, computing: bool) -> float | None:
        """Return the load by other processes as a share of the cores of nodes, or of machines; None: unknown."""
        own = sum(node.mean("cpu_s") or 0.0 for node in self.nodes) if not computing else 0.0
        loads, cores = [], 0
        for node in self.nodes:
            load = node.mean("busy_s") if computing else node.mean("host", "busy_s")
            if load is not None and node.last is not None:
                loads.append(load - (node.mean("cpu_s") or 0.0) if computing else load)
                cores += node.cores if computing else int(node.last["host"]["cpus"])
        if not loads:
            return None
        return max(0.0, sum(loads) - own - self._loop_load()) / cores

    def steal(self) -> float | None:
        """Return the share of the CPU time of the nodes (of the machines if unknown) that the hypervisor took."""
        nodes = [(node.mean("steal_s"), node.cores) for node in self.nodes]
        known = [(steal, cores) for steal, cores in nodes if steal is not None]
        if not known:
            hosts = [(node.mean("host", "steal_s"), node.last["host"]["cpus"]) for node in self._hosts()]
            known = [(steal, cpus) for steal, cpus in hosts if steal is not None]
        return sum(steal for steal, _ in known) / sum(cores for _, cores in known) if known else None

    def pressure(self, resource: str) -> float | None:
        """Return the largest share of time in which some task on a machine waited for `resource`; None: unknown."""
        waited = [node.mean("host", resource) for node in self._hosts()]
        return max((share for share in waited if share is not None), default=None)

    def work_rates(self) -> list[float]:
        """Return the work rates of the periods in which ranks computed, in units per second of CPU time."""
        return [rate for rate in self._rows[COLUMNS.index("work_rate") :: len(COLUMNS)] if not math.isnan(rate)]

    def clock_loss(self) -> float | None:
        """Return the share of time in which the steady clock stood still; None: the clock is the monotonic one."""
        if len(self._clocks) < 2:
            return None
        begin, end = self._clocks[0], self._clocks[-1]
        return max(0.0, 1 - (end["steady"] - begin["steady"]) / (end["monotonic"] - begin["monotonic"]))

    def _hosts(self) -> list[Any]:
        return [node for node in self.nodes if node.last is not None and "host" in node.last]

    def _loop_load(self) -> float:
        return growth(self._loop[0], self._loop[-1], "cpu_s") or 0.0 if self._loop else 0.0

    # -- entries ---------------------------------------------------------------------------------------------------

    def _sample(self, entry: Entry) -> None:
        """Add a row for the time since the last sample of the node."""
        number = self._numbers[entry.node or ""]
        node, data = self.nodes[number], entry.data
        if node.slept and node.first is not None and node.last is not None:  # the counters have begun again
            node.earlier.append((node.first, node.last))
            node.first = node.last = None
            self._rows.extend((entry.time, number, *[NAN] * (len(COLUMNS) - 2)))  # the next row begins here
        node.slept = False
        before, node.last = node.last, data
        if entry.time < self.started_at or node.first is None:
            node.first = data
        if entry.time >= self.started_at and entry.node not in self.rates_after:  # a calibration may delay a heartbeat
            self.agent_late.update(data.get("late_s", 0.0), f"on {entry.node}")
        if before is None or entry.time < self.started_at:
            return

        def rate(*path: str) -> float:
            found = growth(before, data, *path)
            return NAN if found is None else found

        busy = rate("busy_s")
        outside = busy - rate("cpu_s")  # NaN: unknown
        work, late_s = node.work, node.late_s
        node.work, node.late_s = WorkTotals(), NAN
        self._rows.extend(
            (
                entry.time,
                number,
                busy,
                rate("host", "energy_j"),
                work.rate,
                work.cpu_share,
                rate("host", "cpu"),
                rate("steal_s"),
                outside if math.isnan(outside) else max(0.0, outside),
                late_s,
            )
        )

    def _work(self, entry: Entry) -> None:
        """Add the iterations of a rank since its last message."""
        job, number = entry.job or "", self._numbers[entry.node or ""]
        node, place = self.nodes[number], f"job {job} on {entry.node}"
        cores = max(1, min(self.jobs.cores[self._job_numbers[job]], node.cores))
        weight = self._weight(job) if self.rates else 1.0
        for ended, units, cpu_s, wall_s, late_s in entry.data["samples"]:
            self.work.add(weight * units, cpu_s, wall_s)
            node.work.add(weight * units, cpu_s, wall_s)
            self._late(node, late_s, place)
            self.halt.update((wall_s - cpu_s) / cores, place)
            if (leader := (job, number)) in self._begun:
                ended = self._running(number, ended)
                if job not in self._shared:  # such a job may have fewer cores
                    self.halt.update(ended - self._begun[leader] - wall_s / cores, place)
                self._begun[leader] = ended
                self._worked.add(leader)

    def _late(self, node: NodeSamples, late_s: float, place: str) -> None:
        node.late_s = late_s if math.isnan(node.late_s) else max(node.late_s, late_s)
        self.late.update(late_s, place)

    def _loop_sample(self, entry: Entry) -> None:
        if entry.time < self.started_at:
            self._loop.clear()
        self._loop[1:] = [entry.data]
        self.loop_late.update(entry.data["late_s"], f"at {entry.time:,.0f} s")

    def _start(self, entry: Entry) -> None:
        if "cores" in entry.data:  # on shared nodes a job first waits for the ranks of the other job
            self._cores(entry)
        else:
            self._starts[entry.job or ""] = entry.time, entry.data["nodes"]

    def _cores(self, entry: Entry) -> None:
        self._shared.add(entry.job or "")

    def _weight(self, job: str) -> float:
        """Return the units of PILS that take as long as a unit of a job."""
        kernel = application_of(self.jobs, self._job_numbers[job]).kernels[0]
        return self.rates["pils"] / self.rates.get(kernel, self.rates["pils"])

    def _launched(self, entry: Entry) -> None:
        job = entry.job or ""
        if job in self._starts:
            start, nodes = self._starts.pop(job)
            begin = max([start, *(self._on_since.get(node, start) for node in nodes)]) if self._on_since else start
            self.launches[job] = (entry.data["at"] - begin) / self.speed

    def _power(self, entry: Entry) -> None:
        if entry.data["state"] == PowerState.ON:
            self._on_since[entry.node] = entry.time

    def _started(self, entry: Entry) -> None:
        number = self._numbers[entry.node or ""]
        self._begun[entry.job or "", number] = self._running(number, entry.data["time"])

    def _ended(self, entry: Entry) -> None:
        job, number, data = entry.job or "", self._numbers[entry.node or ""], entry.data
        last = self._begun.pop((job, number), None)
        if last is not None and (job, number) in self._worked and data["state"] == "completed":
            self.ends[job] = self._running(number, data["time"]) - last
        self._worked.discard((job, number))
        if data["state"] == "failed" and (data.get("exit_code") or 0) < 0:
            self.broken.add(job)  # a rank that fails by itself may have joined a job that was ending
        self.overruns += data.get("overruns") or 0
        if data.get("late_s") is not None:
            self._late(self.nodes[number], data["late_s"], f"job {job} on {entry.node}")
        if data["state"] == "completed" and data.get("residual_s") is not None:
            self.residuals[job] = data["residual_s"]
        if data["state"] == "completed" and data.get("planned_s") is not None:
            self.planned[job] = data["planned_s"]

    def _lost(self, entry: Entry) -> None:
        """Remove the leaders on the node: their jobs may run again, with other ranks."""
        number = self._numbers[entry.node or ""]
        self.lost.add(number)
        self._pauses.pop(number, None)  # those of the agent
        self.handovers.lose(number)
        for leader in [leader for leader in self._begun if leader[1] == number]:
            del self._begun[leader]
            self._worked.discard(leader)

    def _asleep(self, entry: Entry) -> None:
        """Note that the agent has ended. No job was on the node."""
        number = self._numbers[entry.node or ""]
        self.nodes[number].slept = True
        self._pauses.pop(number, None)  # those of the agent

    def _calibrated(self, entry: Entry) -> None:
        if entry.data["units_per_core_second"] is not None:
            self.rates_after[entry.node or ""] = entry.data["units_per_core_second"]

    def _stray(self, entry: Entry) -> None:
        data = entry.data
        self.strays[entry.job or "", entry.node or ""] = f"{data['used']} instead of {data['cpus']}"

    def _halted(self, entry: Entry) -> None:
        """Add a stop, or replace it by its length."""
        found = self.halts.setdefault((entry.job or "", entry.node or ""), [])
        if entry.data["halted_s"] is not None and found and found[-1] is None:
            found.pop()
        found.append(entry.data["halted_s"])

    def _warning(self, entry: Entry) -> None:
        what = (entry.node or "", entry.data["what"])
        if what in self.warnings or len(self.warnings) < WARNINGS:
            self.warnings[what] += 1

    def _mask(self, entry: Entry) -> None:
        masks = (entry.data[name] for name in ("before", "after"))
        before, after = (None if mask is None else parse_cpus(mask) for mask in masks)
        number, at, since = self._numbers[entry.node or ""], entry.data["applied"], entry.data["since"]
        self.handovers.change(number, entry.job or "", before, after, at, since=since)

    def _pause(self, entry: Entry) -> None:
        """Record the pause that ends, for the nodes whose agents were taken over. Other nodes have new agents."""
        data, before = entry.data, self._pauses
        since = data["since"]
        numbers = {self._numbers[name]: total for name, total in data["left_out"].items()}
        self._pauses = {number: [*before.get(number, []), (since, total)] for number, total in numbers.items()}

    def _running(self, number: int, monotonic: float) -> float:
        """Return the `monotonic` time of a rank on a node without the pauses of the replay."""
        past = [total for since, total in self._pauses.get(number, []) if monotonic >= since]
        return monotonic - (past[-1] if past else 0.0)

    def _clock(self, entry: Entry) -> None:
        self._clocks[1:] = [entry.data]


def growth(before: Mapping[str, Any], after: Mapping[str, Any], *path: str) -> float | None:
    """Return the growth per second of the figure at `path` between two samples; None: unknown.

    The growth is unknown if the counter has decreased, as after the CPU of a virtual machine went offline.
    """
    span = after["time"] - before["time"]
    *outer, name = path
    for key in outer:
        before, after = before.get(key, {}), after.get(key, {})
    old, new = before.get(name), after.get(name)
    return (new - old) / span if span > 0 and old is not None and new is not None and new >= old else None
