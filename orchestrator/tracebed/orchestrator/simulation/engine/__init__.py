"""The compiled simulator: engine.c, for the policies that it supports. The Python simulator is its reference.

Both simulators give identical results; the compiled one is 6 to 120 times as fast, by policy. The Python simulator is
used if tracebed was built without a C compiler or the engine does not support the simulation; `obstacle` returns the
reason.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracebed.converters.workload import Kind
from tracebed.ground.states import ChangeCause, JobState
from tracebed.ground.table import Packed
from tracebed.machine.pools import Pools
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.names import FCFS, FIRST, MAX_AGE_S
from tracebed.orchestrator.scheduling.record import NEVER_STARTED, POWER_STATES, Resizes, ScheduleRecord
from tracebed.orchestrator.scheduling.sleeping import Sleeping
from tracebed.orchestrator.scheduling.state import Policy, shares, visible_jobs
from tracebed.orchestrator.setup import DEFAULT, Setup
from tracebed.orchestrator.simulation.delays import ROWS, STEPS, Drawn, Pauses
from tracebed.orchestrator.simulation.engine.library import DescriptionError, Library, Results
from tracebed.orchestrator.simulation.engine.policies import FORMS, INT32_MAX, form_of
from tracebed.orchestrator.simulation.interference import Interference
from tracebed.orchestrator.simulation.outages import Outages
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel

LIBRARY = Path(__file__).with_name("libtracebed_engine.so")
PRIORITIES = {
    FCFS: "AS_SUBMITTED",
    "largest-slowdown-first": "LARGEST_SLOWDOWN_FIRST",
    "shortest-first": "SHORTEST_FIRST",
    "aging": "AGING",
}
"""Priority -> its name in base.h."""
STATES = (JobState.UNKNOWN, JobState.COMPLETED, JobState.KILLED, JobState.REJECTED)
"""The final states of jobs in the engine."""
CAUSES = (ChangeCause.LEND, ChangeCause.RETURN, ChangeCause.INHERIT)
"""The causes of changes of cores in the engine."""
SLEEPS = {"windows": "OFF_IN_WINDOWS", "idle": "OFF_WHEN_IDLE"}
"""Rule of `Sleep` -> its name in base.h."""
NAMES = {
    "policy": {form.name for form in FORMS.values()},
    "priority": set(PRIORITIES.values()),
    "state": {state.name for state in STATES},
    "kind": {kind.name for kind in Kind},
    "cause": {cause.name for cause in CAUSES},
    "inside": {"BEFORE", "AFTER", "OFF"},
    "sleep": {"ALWAYS_ON", *SLEEPS.values()},
    "power": {f"NODE_{state.name}" for state in POWER_STATES},
    "runtime_model": {model.name for model in RuntimeModel},
    "over_limit": {way.name for way in OverLimit},
    "count_idle": {"YES", "NO", "HEAD"},
    "promise": {"POOL", "DIRECT", "STEAL"},
    "calls": {"EVENT", "SETTLE", "TICK"},
    "outcome": {"DONE", "MORE", "NO_MEMORY", "IMPOSSIBLE"},
}
"""Enumeration in base.h -> names of its values."""
INSTANTS = 4096
"""Number of instants simulated in the first call of the engine. Between calls, Ctrl-C is handled and progress reported.
"""
CALL_S = 0.05
"""CPU time of a call, s, below which the next one is longer. Between calls, the engine waits for other threads."""
MAX_SPEEDUP_VALUES = 20_000_000
"""Largest number of values of speedup functions in the table passed to the engine, 8 bytes each."""

Array: TypeAlias = NDArray[Any]


def missing() -> str:
    """Return the reason why there is no compiled engine; empty if there is one."""
    if _library() is not None:
        return ""
    if LIBRARY.exists():
        return "the compiled engine was built for another machine or version: install tracebed again"
    return "the compiled engine was not built: there was no C compiler when tracebed was installed"


def obstacle(
    jobs: Jobs,
    policy: Policy,
    total: int,
    setup: Setup = DEFAULT,
    *,
    interference: Interference | None = None,
    outages: Outages | None = None,
    pools: Pools | None = None,
    sleeping: Sleeping | None = None,
) -> str:
    """Return the reason why the engine cannot simulate `jobs` under `policy` on `total` nodes; empty if it can."""
    if outages is not None:
        return "the compiled engine does not support outages of nodes"
    if sleeping is not None and sleeping.rule.rule != "idle":
        return f"the compiled engine does not support nodes that sleep by the rule {sleeping.rule.rule}"
    if jobs.waits is not None:
        return "the compiled engine does not support dependencies and think times"
    if pools is not None and (reason := _obstacle_of_pools(pools, policy, setup, sleeping)):
        return reason
    if reason := missing():
        return reason
    form = form_of(policy)
    if form is None:
        return f"the compiled engine does not support the policy {type(policy).__name__}"
    if reason := form.obstacle(policy):
        return reason
    scheduling, priority = setup.scheduling, setup.scheduling.priority
    if scheduling.placement != FIRST:
        return f"the compiled engine does not support the placement {scheduling.placement}"
    if priority not in PRIORITIES:
        return f"the compiled engine does not support the priority {priority}"
    if priority != FCFS and shares(policy):
        return f"the compiled engine does not support the priority {priority} under policies that share nodes"
    if shares(policy) and (reason := _obstacle_of_sharing(jobs, setup.timing.overheads, interference)):
        return reason
    if max(np.max(jobs.column(name)) for name in ("nodes", "high", "cores")) > INT32_MAX:
        return f"the compiled engine supports jobs of at most {INT32_MAX} nodes or cores per node"
    largest = max(np.max(jobs.column(name)) for name in ("nodes", "high", "pref"))
    if len(jobs.speedups[0]) * (largest + 1) <= MAX_SPEEDUP_VALUES:
        return ""
    if sum(top + 1 - low for low, top in _sizes(_with_visible_sizes(policy, jobs), total)) > MAX_SPEEDUP_VALUES:
        return "the workload has too many different speedup functions for the compiled engine"
    return ""


def _obstacle_of_pools(pools: Pools, policy: Policy, setup: Setup, sleeping: Sleeping | None) -> str:
    """Return the reason why the engine cannot simulate pools; empty if it can."""
    if not pools.disjoint:
        return "the compiled engine does not support nodes that serve jobs of several pools"
    # It numbers the nodes of a pool by weight. The last nodes of a job, and reserved ones, are those by number, as are
    # those that are switched off first.
    by_number = policy.malleable or shares(policy) or getattr(policy, "reserve", "") == "nodes"
    if (by_number or sleeping) and any(np.ptp(pools.weights[list(pool.nodes)]) for pool in pools.pools):
        how = "that sleep" if sleeping else f"under {type(policy).__name__}"
        return f"the compiled engine does not support nodes of unlike weights {how}"
    # The first waiting job of a pool needs nodes that stay on. It must change with events of the pool only.
    if sleeping and (priority := setup.scheduling.priority) in ("largest-slowdown-first", "aging"):
        return f"the compiled engine does not support nodes that sleep in pools with the priority {priority}"
    return ""


def _obstacle_of_sharing(jobs: Jobs, overheads: Overheads, interference: Interference | None) -> str:
    """Return the reason why the engine cannot simulate jobs that share nodes; empty if it can."""
    if overheads.grain_s:
        return "the compiled engine does not support a grain under policies that share nodes"
    if interference and any(jobs.application):
        return "the compiled engine does not support interference"
    from tracebed.orchestrator.simulation.cores_in_use import is_divided  # loads programs of jobs, for sharing only

    for name, parameters in set(zip(jobs.application, jobs.parameters, strict=True)):
        if name and is_divided(name, parameters):
            return f"the compiled engine does not support the application {name} under policies that share nodes"
    return ""


class CompiledSimulator:
    """Compiled version of `simulator.Simulator` with the same arguments, attributes and results.

    On a machine with pools, `pools.PooledSimulator` is used.
    """

    def __init__(
        self,
        jobs: Jobs,
        cores: list[int],
        policy: Policy,
        setup: Setup = DEFAULT,
        *,
        sockets: list[int] | None = None,
        interference: Interference | None = None,
        drawn: Drawn | None = None,
        pauses: Pauses | None = None,
        outages: Outages | None = None,
        pools: Pools | None = None,
        sleeping: Sleeping | None = None,
    ) -> None:
        """Prepare the arrays of the workload. Raise ValueError if there is an `obstacle`."""
        assert pools is None
        reason = obstacle(
            jobs, policy, len(cores), setup, interference=interference, outages=outages, sleeping=sleeping
        )
        if reason:
            raise ValueError(reason)
        self.jobs = jobs
        self.cluster = Cluster(cores, sockets)
        self._shares = shares(policy)
        self._visible = seen = _with_visible_sizes(policy, jobs)
        scheduling, timing = setup.scheduling, setup.timing
        curve, speedup = _curves(seen, len(cores))
        run_time, work = jobs.column("run_time"), jobs.work_s
        needs_cores = self._shares or min(cores, default=0) < np.max(jobs.column("cores"), initial=0)
        library, form = _library(), form_of(policy)
        assert library is not None and form is not None  # no obstacle
        self._library, numbers = library, library.numbers
        self._setup: Any = library.setup(
            {
                "jobs": len(jobs),
                "nodes": len(cores),
                "submit": jobs.column("submit"),
                "run_time": work if np.array_equal(work, run_time) else run_time,
                "work": work,
                "limit": jobs.column("limit"),
                "requested": jobs.column("nodes"),
                "low": seen.column("low"),
                "high": seen.column("high"),
                "pref": seen.column("pref"),
                "workload_pref": seen.column("workload_pref"),
                "job_cores": jobs.column("cores"),
                "ranks": jobs.column("ranks"),
                "malleable": seen.column("malleable"),
                "curve": curve,
                "speedup": speedup,
                "parallel": jobs.column("parallel") if needs_cores else None,
                "cores": cores if needs_cores else None,
                "policy": numbers["policy"][form.name],
                **form.parameters(policy, jobs, numbers),
                "priority": numbers["priority"][PRIORITIES[scheduling.priority]],
                "max_age_s": MAX_AGE_S,
                "runtime_model": numbers["runtime_model"][timing.runtime_model.name],
                "over_limit": numbers["over_limit"][jobs.over_limit.name],
                "shares": self._shares,
                "kind": [numbers["kind"][kind.upper()] for kind in jobs.kind] if self._shares else None,
                "sockets": self.cluster.sockets if self._shares else None,
                **asdict(timing.overheads.times(timing.speed)),
                **{f"drawn_{step}": drawn and drawn[step] for step in STEPS},
                "drawn_rows": ROWS,
                "pause_fixed": pauses and pauses.fixed.ravel(),
                "pause_rank": pauses and pauses.rank.ravel(),
                "pause_release": pauses and pauses.released,
                "interval_s": scheduling.interval_s,
                "malleability_interval_s": timing.malleability_interval_s,
                "sleep": numbers["sleep"][SLEEPS[sleeping.rule.rule] if sleeping else "ALWAYS_ON"],
                "boot_s": sleeping and sleeping.boot_s,
                "shutdown_s": sleeping and sleeping.shutdown_s,
                "idle_s": sleeping.rule.idle_s if sleeping else 0.0,
                "keep": sleeping.rule.keep if sleeping else 0,
            }
        )

    def run(self, on_progress: Callable[[int], None] | None = None) -> ScheduleRecord:
        """Run until every job has ended and return the record.

        Args:
            on_progress: called periodically with the number of jobs submitted so far.

        Raises:
            MemoryError: the engine cannot allocate memory.
        """
        with self:
            self.advance(on_progress)
        return self.record

    def __enter__(self) -> CompiledSimulator:
        """Begin at time 0. Raise MemoryError if the engine cannot allocate memory."""
        self._engine = self._library.new(self._setup)
        if not self._engine:
            raise MemoryError("the compiled engine cannot allocate memory")
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Complete the record, unless there was an error."""
        try:
            if error is None:
                self._setup = None
                self.record = ScheduleRecord(self.jobs)  # only now, since it takes as much memory as the jobs
                self._copy_results(self._library.results(self._engine))
        finally:
            self._library.free(self._engine)

    def advance(self, on_progress: Callable[[int], None] | None = None, until: float = -math.inf) -> float:
        """Go on until every job has ended, and nodes were switched off until an instant, s.

        Return the last instant, s; infinite: jobs wait for ever. The rest is as for `run`.
        """
        library, engine = self._library, self._engine
        outcome = {number: name for name, number in library.numbers["outcome"].items()}
        instants, begun = INSTANTS, time.thread_time()
        while (status := outcome[library.advance(engine, instants, until)]) == "MORE":
            if time.thread_time() - begun < CALL_S:
                instants *= 2
            if on_progress:
                on_progress(library.submitted(engine))
            begun = time.thread_time()
        if status == "NO_MEMORY":
            raise MemoryError("the compiled engine cannot allocate memory")
        assert status == "DONE", "no reservation is possible"
        return float(library.last(engine))

    def _copy_results(self, results: Results) -> None:
        """Copy the results of the engine into the record and the ledger."""
        jobs, record, rows, held = self.jobs, self.record, results.number("reconfigurations"), results.number("ranges")
        number = self._library.numbers["state"]
        states = np.array([JobState[name] for name in number], dtype=object)
        record.submit = array("d", np.asarray(jobs.column("submit"), dtype=np.float64).tobytes())
        record.start, record.launched, record.end = (
            results.array(name, len(jobs)) for name in ("start", "launched", "end")
        )
        ended = np.frombuffer(results.array("state", len(jobs)), dtype=np.uint8)
        record.state = states[ended].tolist()
        for job in np.flatnonzero(ended == number["KILLED"]).tolist():
            record.reason[job] = "time limit"
        for job in np.flatnonzero(ended == number["REJECTED"]).tolist():
            record.reason[job] = f"needs {self._visible.low[job]} nodes, the machine has {len(self.cluster)}"
        if (ended == number["UNKNOWN"]).any():
            record.close(JobState.UNKNOWN, NEVER_STARTED)
        record.resizes = Resizes(
            *(results.array(f"row_{name}", rows) for name in ("job", "from", "to")),
            *(results.array(f"row_{name}", rows) for name in ("asked", "decided", "applied", "ended")),
        )
        ledger: Any = self.cluster.ledger
        instants = results.taken("instants", results.number("instant_count"))
        ledger.jobs, ledger.firsts, ledger.counts, since, until = (
            results.taken(f"held_{name}", held) for name in ("job", "first", "nodes", "since", "until")
        )
        ledger.starts, ledger.ends = Packed(since, instants, times=True), Packed(until, instants, times=True)
        ledger.ordered = not self._shares
        changes, power = results.number("power_changes"), record.power
        power.node, power.time, power.state = (
            results.array(f"power_{name}", changes) for name in ("node", "time", "state")
        )
        if self._shares:
            self._copy_shared_results(results)

    def _copy_shared_results(self, results: Results) -> None:
        """Copy the changes of cores and the parts of shared nodes from the results of the engine."""
        cluster, ledger, changes = self.cluster, self.cluster.ledger, self.record.cores
        for row, part in enumerate(results.array("held_part", len(ledger.jobs))):
            if part:
                cores = cluster.cores[ledger.firsts[row]]
                ledger.parts[row] = range(cores - part, cores) if part > 0 else range(-part)
        count = results.number("core_changes")
        causes = [ChangeCause[name] for name in self._library.numbers["cause"]]
        changes.job, changes.node, changes.cores_from, changes.cores_to, changes.asked = (
            results.array(f"core_{name}", count) for name in ("job", "node", "from", "to", "asked")
        )
        changes.nodes = array("i", map(self.jobs.nodes.__getitem__, changes.job))
        changes.cause = [causes[number] for number in results.array("core_cause", count)]
        changes.decided, changes.seen, changes.applied = changes.asked[:], changes.asked[:], changes.asked[:]


def _with_visible_sizes(policy: Policy, jobs: Jobs) -> Jobs:
    """Return `jobs` with the sizes as `policy` sees them, and their own speedup functions."""
    seen = visible_jobs(policy, jobs)
    if not policy.malleable:
        return seen
    own = seen.with_columns(speedup=jobs.column("speedup"))
    own.speedups = jobs.speedups
    return own


def _sizes(jobs: Jobs, total: int) -> list[tuple[int, int]]:
    """Return the minimum and maximum number of nodes for which each of `jobs.speedups` is needed."""
    functions, number = jobs.speedups
    adapts = number >= 0
    low, high, pref, nodes = (np.asarray(jobs.column(name))[adapts] for name in ("low", "high", "pref", "nodes"))
    least, most = np.full(len(functions), INT32_MAX), np.zeros(len(functions), dtype=np.int64)
    np.minimum.at(least, number[adapts], np.minimum(low, nodes))
    np.maximum.at(most, number[adapts], np.maximum(np.minimum(high, total), np.maximum(pref, nodes)))
    return list(zip(least.tolist(), most.tolist(), strict=True))


def _curves(jobs: Jobs, total: int) -> tuple[Array, Array]:
    """Return the index of S(0) of each job in a table of values of S, shape (jobs,), and the table, shape (values,).

    The table has only the needed values of each S, so that S(0) itself is not in it.
    """
    values: list[float] = []
    begins: list[int] = []
    functions, number = jobs.speedups
    if not functions:
        return np.zeros(len(jobs), dtype=np.int64), np.array(values)
    for speedup, (low, top) in zip(functions, _sizes(jobs, total), strict=True):
        begins.append(len(values) - low)
        values += [speedup(nodes) for nodes in range(low, top + 1)]
    return np.array([*begins, 0], dtype=np.int64)[number], np.array(values)  # -1 is the last


@cache
def _library() -> Library | None:
    """Return the compiled engine, or None if it was not built for this machine and this version of tracebed."""
    try:
        return Library(LIBRARY, NAMES)
    except (OSError, DescriptionError):
        return None
