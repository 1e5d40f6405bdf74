"""Simulation of a workload by ElastiSim, with the policies of tracebed: its messages are events, replies are decisions.

The simulator and the replayer execute the same `Scheduler`. ElastiSim differs from them in two ways:

* It sends a message for each event, also for several events at one instant, and the policy decides before the next
  message. `ElastisimExecutor` therefore waits for the events that are known to follow at the same instant.
* A resize takes effect at a scheduling point. The executor keeps the resize until the scheduling point of the job, so
  that the allocation in the cluster of the scheduler is at all times that of ElastiSim.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from tracebed.converters.workload import Kind, Provenance, System, Workload
from tracebed.drivers.elastisim import outputs, program
from tracebed.ground.errors import InputError
from tracebed.ground.files import check_folder, set_aside
from tracebed.ground.outputs import OutputKind
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run, RunInfo, workload_facts
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.names import DependencyRule
from tracebed.orchestrator.scheduling.record import NEVER_STARTED, ScheduleRecord
from tracebed.orchestrator.scheduling.scheduler import Scheduler
from tracebed.orchestrator.scheduling.state import Policy, shares
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.tables import make_run
from tracebed.validation.simulators.simulator import SimulateOptions

SUPPORTED = frozenset(
    {"priority", "placement", "over_limit", "interval_s", "malleability_interval_s", "overheads", "calibration"}
)
"""Options that ElastiSim supports; `release_s` of the overheads has no effect, with a warning."""
ITERATIONS = 10  # number of iterations of a malleable job, if neither a grain nor a malleability interval is given
OWN = ("program", "iterations")
"""Names of `SimulateOptions.simulator_options`: the program, and the number of iterations of malleable jobs."""
RELEASE = "ElastiSim releases nodes at the scheduling point: release_s of the overheads has no effect"
GRACE_S = 30.0  # time within which the program must end after its last message, s
FILES = ("configuration.json", "jobs.json")  # files by which a kept folder is recognized, so that it may be replaced

INSTANT_S = 1e-6  # events closer than this count as one instant, s: ElastiSim sums up the durations of activities


def simulate(workload: Workload, nodes: Sequence[NodeFacts], setup: Setup, options: SimulateOptions) -> Run:
    """Simulate `workload` by ElastiSim under a policy of tracebed.

    ElastiSim simulates the jobs; the scheduler of tracebed receives its events and decides. The times of the run are
    those of ElastiSim's messages, which are exact, and are compared with its job_statistics.csv. Resizes take effect
    between iterations: of `overheads.grain_s` or `malleability_interval_s` seconds on the requested nodes, or else
    `iterations` (10) in each job. `simulator_options` may have `program` and `iterations`.
    """
    if unknown := set(options.simulator_options) - {*OWN}:
        raise InputError(f"elastisim has no option {min(unknown)!r}", hint=f"options: {', '.join(OWN)}")
    path = program.find(options.simulator_options.get("program"))
    setup, policy = Setup.of(setup, dispatched=False).resolved(len(nodes))
    executor = _executor(workload, nodes, policy, setup)
    count = _whole(options.simulator_options.get("iterations", str(ITERATIONS)))
    iterations = _iterations(executor, executor.overheads.grain_s or setup.timing.malleability_interval_s, count)
    with _scratch(options.keep, options.replace) as folder:
        if executor.sent:
            _run(path, folder, workload, executor, iterations, options)
            _check(folder, executor)
    executor.record.close(JobState.UNKNOWN, NEVER_STARTED)
    info = RunInfo(
        source="elastisim",
        execution="simulated",
        nodes=list(nodes),
        workload=workload_facts(workload, options.name),
        setup=setup,
        parameters={"scheduler": "tracebed", "iterations": count},
        calibration=setup.timing.calibration.facts() if setup.timing.calibration else {},
        warnings=[RELEASE] if setup.timing.overheads.release_s else [],
    )
    info.versions["elastisim"] = program.version(options.simulator_options)
    return make_run(executor.record, executor.cluster, info)


def _executor(workload: Workload, nodes: Sequence[NodeFacts], policy: Policy, setup: Setup) -> ElastisimExecutor:
    """Return the executor, or refuse a policy or nodes with properties that ElastiSim lacks."""
    if shares(policy):
        raise InputError(
            f"policy {setup.scheduling.policy} lets jobs share nodes, which ElastiSim cannot do",
            hint="use another policy",
        )
    jobs = Jobs.of(
        workload,
        cores_per_node=max(node.cores for node in nodes),
        over_limit=setup.scheduling.over_limit,
        dependencies=DependencyRule.IGNORE,
    )
    if min(node.cores for node in nodes) < max(jobs.cores):
        what = "some nodes have fewer cores than jobs request, and ElastiSim has no run-time model for them"
        raise InputError(what, hint="use nodes with equal cores")
    return ElastisimExecutor(
        jobs,
        nodes,
        policy,
        overheads=setup.timing.overheads.times(setup.timing.speed),
        interval_s=setup.scheduling.interval_s,
        priority=setup.scheduling.priority,
        placement=setup.scheduling.placed,
    )


def _whole(text: str) -> int:
    """Return the number of iterations that is given as text."""
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"iterations is {text!r}", hint="a whole number from 1")
    return int(text)


def _iterations(executor: ElastisimExecutor, grain_s: float, count: int) -> list[int]:
    """Return the number of iterations of each sent job: those of `grain_s` seconds, or `count` if it is 0."""
    work, seen = executor.jobs.work, executor.scheduler.jobs
    resizable = [seen.malleable[job] and seen.low[job] < seen.high[job] for job in executor.sent]
    each = [max(1, round(work[job] / grain_s)) if grain_s else count for job in executor.sent]
    return [number if malleable else 1 for number, malleable in zip(each, resizable, strict=True)]


@contextmanager
def _scratch(kept: Path | None, replace: bool) -> Iterator[Path]:
    """Create the folder of ElastiSim's files: `kept`, or a temporary one."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="tracebed-elastisim-") as scratch:
            yield Path(scratch)
        return
    kind = OutputKind("a folder of ElastiSim", rb"(?s).", parts=FILES)
    folder = check_folder(kept, FILES, kind.noun, kind.guard(kept, replace))
    with set_aside(folder):
        folder.mkdir()
        yield folder


def exported(workload: Workload, executor: ElastisimExecutor, total: int) -> Workload:
    """Return the sent jobs of `workload` as the policy sees them, for a machine of `total` nodes, without limits."""
    runnable, _ = workload.runnable()
    seen, sent = executor.scheduler.jobs, executor.sent
    nodes, low, high = (np.array(values)[sent] for values in (seen.nodes, seen.low, seen.high))
    flexible = np.where(np.array(seen.malleable)[sent], Kind.MALLEABLE.value, Kind.MOLDABLE.value)
    table = pd.DataFrame(
        {
            "job_id": runnable.column("job_id")[sent],
            "submit_time": np.array(seen.submit)[sent],
            "run_time": np.array(executor.jobs.work)[sent],
            "nodes": nodes,
            "kind": np.where(low < high, flexible, Kind.RIGID.value),
            "nodes_min": np.minimum(low, nodes),
            "nodes_max": np.maximum(high, nodes),
            "nodes_pref": nodes,
            "speedup": runnable.column("speedup")[sent],
            "speedup_parameters": runnable.column("speedup_parameters")[sent],
        }
    )
    return Workload(table, Provenance(system=System(total)))


def _run(
    path: Path,
    folder: Path,
    workload: Workload,
    executor: ElastisimExecutor,
    iterations: Sequence[int],
    options: SimulateOptions,
) -> None:
    """Run the program in `folder`, and answer its messages with the decisions of the scheduler."""
    deadline = time.monotonic() + options.timeout_s
    process: program.Process | None = None
    with tempfile.TemporaryDirectory(prefix="tracebed-") as sockets:
        connection = program.Connection(Path(sockets, "s"), deadline, lambda: process is not None and process.runs())
        try:
            program.write_input(
                exported(workload, executor, len(executor.cluster)),
                folder,
                address=connection.address,
                iterations=iterations,
                overheads=executor.overheads,
                shift_s=executor.jobs.submit[executor.sent[0]] - executor.origin,
                interval_s=executor.interval_s,
            )
            process = program.Process(path, folder)
            while (message := connection.receive()) is not None:
                connection.send(executor.handle_message(message))
                if options.on_progress:
                    options.on_progress(executor.submitted)
            if not process.wait(GRACE_S):
                raise program.NoMessageError(timeout=True)
        except program.NoMessageError as silent:
            assert process is not None
            raise (_timeout_error(executor, options, connection) if silent.timeout else process.failure()) from None
        finally:
            if process is not None:
                process.stop()
            connection.close()


def _timeout_error(executor: ElastisimExecutor, options: SimulateOptions, connection: program.Connection) -> InputError:
    """Return the error for a program that did not finish in time."""
    ended = sum(state is not JobState.UNKNOWN for state in executor.record.state)
    silence = time.monotonic() - connection.last
    what = (
        f"ElastiSim did not finish within {options.timeout_s:g} s: {ended:,} of {len(executor.jobs):,} jobs had ended, "
        f"and its last message was {silence:.3g} s ago"
    )
    return InputError(what, hint="give a longer timeout; --with elastisim,timeout=2h,keep=FOLDER keeps its files")


def _check(folder: Path, executor: ElastisimExecutor) -> None:
    """Check that ElastiSim's job_statistics.csv has every job, with the times of its messages as far as printed."""
    path = folder / outputs.STATISTICS
    table = outputs.statistics(path)
    if len(table) != len(executor.sent):
        what = f"has {len(table):,} of {len(executor.sent):,} jobs: ElastiSim did not finish"
        raise InputError(what, where=str(path), hint="--with elastisim,keep=FOLDER keeps its files")
    record = executor.record
    for column, times in (("start", record.start), ("end", record.end)):
        exact = np.array(times)[executor.sent] - executor.origin
        printed = table[column].to_numpy()
        ran = np.isfinite(exact)
        off = ran & (np.abs(printed - exact) > outputs.unit(printed) + INSTANT_S)
        if off.any():
            at = int(off.argmax())
            what = f"{column} of job {at} is {printed[at]:g} s, but {exact[at]:.9g} s in the messages of ElastiSim"
            raise InputError(what, where=str(path), hint="--with elastisim,keep=FOLDER keeps its files")


class ElastisimExecutor:
    """The executor of the decisions of a scheduler whose events come from ElastiSim."""

    def __init__(
        self,
        jobs: Jobs,
        nodes: Sequence[NodeFacts],
        policy: Policy,
        *,
        overheads: Overheads,
        interval_s: float,
        priority: str,
        placement: str,
    ) -> None:
        """Start before the first submission. Reject the jobs that are larger than the machine."""
        self.jobs, self.overheads, self.interval_s = jobs, overheads, interval_s
        self.cluster = Cluster([node.cores for node in nodes], [node.sockets for node in nodes], placement)  # the nodes
        self.record = ScheduleRecord(jobs)  # times and states of the jobs
        self.scheduler = Scheduler(jobs, self.cluster, policy, self, interval_s=interval_s, priority=priority)
        low = self.scheduler.jobs.low
        # Number of a job in ElastiSim -> job. Jobs larger than the machine are rejected and not sent.
        self.sent = [job for job in range(len(jobs)) if low[job] <= len(nodes)]
        self._number = {job: number for number, job in enumerate(self.sent)}
        for job in range(len(jobs)):
            if job not in self._number:
                self.record.submit[job] = jobs.submit[job]
                self.scheduler.submit(job, jobs.submit[job])
        first = jobs.submit[self.sent[0]] if self.sent else 0.0
        # Trace time of ElastiSim's time 0, s
        self.origin = math.floor(first / interval_s) * interval_s if interval_s else first
        self.submitted = 0  # number of jobs that ElastiSim has submitted
        self._now, self._call = 0.0, math.inf
        self._happened = False  # events since the last `serve`
        self._orders = program.Reply()
        self._cancelled: dict[int, str] = {}
        self._resizes: dict[int, tuple[list[int], float]] = {}  # job -> nodes, and the earliest time of the resize
        # running job -> work done at an instant, the instant, the rate since then, and the expected end
        self._progress: dict[int, tuple[float, float, float, float]] = {}

    def handle_message(self, message: program.Invocation) -> program.Reply:
        """Handle a message of ElastiSim, and return the reply."""
        self._orders = program.Reply()
        self._now = now = max(self._now, self._instant(message))
        self._happened |= self._handle(message.occasion, message.job, now)
        if not self._has_event_at(now):
            self._decide(now)
        return self._orders

    def _instant(self, message: program.Invocation) -> float:
        """Return the trace time of a message, s: the exact time of a known event closer than `INSTANT_S`."""
        # A policy may compare the time with that of a reservation, which is later by a rounding error otherwise.
        now = message.time + self.origin
        if message.occasion is program.MessageReason.PERIODIC:
            known = round(now / self.interval_s) * self.interval_s
        elif message.occasion is program.MessageReason.SUBMITTED:
            known = self.jobs.submit[self.sent[message.job]]
        else:
            _, _, _, known = self._progress[self.sent[message.job]]
        return known if abs(known - now) < INSTANT_S else now

    def _handle(self, occasion: program.MessageReason, number: int, now: float) -> bool:
        """Report the event to the scheduler; return whether there was one."""
        if occasion is program.MessageReason.PERIODIC:
            return False
        job = self.sent[number]
        if occasion is program.MessageReason.SUBMITTED:
            self.submitted += 1
            self.record.submit[job] = self.jobs.submit[job]
            self.scheduler.submit(job, now)
        elif occasion is program.MessageReason.SCHEDULING_POINT:
            nodes, ready = self._resizes.get(job, ([], math.inf))
            if now < ready - INSTANT_S:
                return False
            del self._resizes[job]
            self._orders.nodes[number] = nodes
            begin = self._continue(job, now, self.overheads.reconfiguration_s, len(nodes))
            self.record.resize_applied(job, now, begin, begin)
            self.scheduler.resized(job, now)
        elif occasion in (program.MessageReason.COMPLETED, program.MessageReason.KILLED):
            if self.jobs.work[job] < self.jobs.run_time[job]:
                self._end(job, now, JobState.KILLED, "time limit")
            else:
                self._end(job, now, JobState.COMPLETED)
        return True

    def _end(self, job: int, now: float, state: JobState, reason: str = "") -> None:
        self._progress.pop(job, None)
        self._resizes.pop(job, None)
        self.record.finish(job, now, state, reason)
        self.scheduler.end(job, now)

    def _has_event_at(self, now: float) -> bool:
        """Return whether ElastiSim will report another event at this instant."""
        if self.submitted < len(self.sent) and self.jobs.submit[self.sent[self.submitted]] <= now + INSTANT_S:
            return True
        return any(end <= now + INSTANT_S for _, _, _, end in self._progress.values())

    def _decide(self, now: float) -> None:
        """Call the policy until all events are processed, including events caused by its decisions."""
        while True:
            if self._happened:
                self.scheduler.serve()
                self._call = min(self._call, self.scheduler.due(now))
                self._happened = False
            if self._call > now:
                break
            self._call = self.scheduler.decide(now)
            for job, reason in self._cancelled.items():  # ElastiSim kills them with the reply
                self._orders.kills.append(self._number[job])
                self._end(job, now, JobState.CANCELLED, reason)
                self._happened = True
            self._cancelled.clear()
        if self._call < math.inf and not self.interval_s:
            what = "ElastiSim cannot call the policy at an instant without an event, which the policy requested"
            raise InputError(what, hint="give a scheduling interval (--interval S)")
        if self.submitted == len(self.sent) and not self.scheduler.state.size and self._call == math.inf:
            waiting = [job for job in self.sent if self.record.state[job] is JobState.UNKNOWN]
            self._orders.kills += [self._number[job] for job in waiting]  # no event will follow: ElastiSim would hang

    # -- the executor of the scheduler ---------------------------------------------------------------------------------

    def start(self, job: int, nodes: list[int]) -> None:
        """Start `job` with the reply."""
        self.record.start[job] = self._now
        self._progress[job] = (0.0, self._now, 0.0, math.inf)
        self.record.launched[job] = self._continue(job, self._now, self.overheads.launch(len(nodes)), len(nodes))
        self._orders.nodes[self._number[job]] = nodes

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Keep the resize until the first scheduling point of the job at which all new ranks have joined."""
        self.record.resize_requested(job, before, len(nodes), self._now)
        self._resizes[job] = (nodes, self._now + self.overheads.expand(len(nodes) - before))
        return False

    def deny(self, job: int, wanted: int) -> None:
        """Record that the job does not get `wanted` nodes."""
        self.record.deny(job, self.scheduler.state.size[job], wanted, self._now)

    def change_cores(self, job: int) -> None:
        """Raise InputError: in ElastiSim, jobs hold whole nodes."""
        raise InputError("the policy lets jobs share nodes, which ElastiSim cannot do", hint="use another policy")

    def reject(self, job: int, reason: str) -> None:
        """Record that `job` is rejected, and kill it in ElastiSim if it has been sent."""
        self.record.refuse(job, JobState.REJECTED, reason)
        if job in self._number:
            self._orders.kills.append(self._number[job])

    def cancel(self, job: int, reason: str) -> None:
        """Kill the running job with the reply."""
        self._cancelled[job] = reason

    def _continue(self, job: int, now: float, pause: float, nodes: int) -> float:
        """Continue `job` on `nodes` nodes after `pause` seconds. Return the time at which it continues, s."""
        done, since, rate, _ = self._progress[job]
        done += max(0.0, now - since) * rate
        begin, rate = max(now, since) + pause, self.jobs.rate(job, nodes)
        end = begin + max(0.0, self.jobs.work[job] - done) / rate + self.overheads.end(nodes)
        self._progress[job] = (done, begin, rate, end)
        return begin
