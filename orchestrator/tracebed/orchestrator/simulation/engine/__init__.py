"""The compiled simulator: engine.c, for the policies that it knows; the readable one beside it is its reference.

It gives the same schedule to the bit, node by node and row by row, a hundred times as fast. Where there was no compiler
when tracebed was built, or for what the engine does not know, the Python simulator runs; `obstacle` says which it is.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracebed.converters.speedup import SpeedupFunction
from tracebed.orchestrator.scheduling.cluster import Cluster, Ledger
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies.conservative import Conservative
from tracebed.orchestrator.scheduling.policies.easy import Easy
from tracebed.orchestrator.scheduling.policies.fcfs import Fcfs
from tracebed.orchestrator.scheduling.policies.firstfit import FirstFit
from tracebed.orchestrator.scheduling.policies.kassel import Avg, KeepPref, Min, Pref
from tracebed.orchestrator.scheduling.priorities import FCFS
from tracebed.orchestrator.scheduling.record import Record, Resizes
from tracebed.orchestrator.scheduling.state import Policy, seen_by
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.simulation.simulator import Overheads
from tracebed.states import JobState

LIBRARY = Path(__file__).with_name("libtracebed_engine.so")
POLICIES: dict[type[Any], int] = {Fcfs: 0, FirstFit: 1, Easy: 2, Pref: 3, Min: 3, KeepPref: 3, Avg: 4, Conservative: 5}
"""Policy -> its number in engine.c. Exactly these classes: what derives from one may decide otherwise."""
STATES = (JobState.UNKNOWN, JobState.COMPLETED, JobState.KILLED, JobState.REJECTED)
"""The states of jobs by their number in engine.c."""
MORE = 1
INSTANTS = 4096
"""In one slice; between slices Ctrl-C is heard and progress is reported."""
MAX_SPEEDUP_VALUES = 20_000_000
"""Largest table of values of speedup functions, 8 bytes each."""
INT32_MAX = 2**31 - 1
"""Largest number of nodes or cores in engine.c."""

Array: TypeAlias = NDArray[Any]
DOUBLES, INTS, BYTES = (ctypes.POINTER(kind) for kind in (ctypes.c_double, ctypes.c_int32, ctypes.c_uint8))


class Setup(ctypes.Structure):
    """`struct setup` of engine.c; arrays by their address."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("jobs", "nodes")),
        *((name, ctypes.c_void_p) for name in ("submit", "run_time", "work", "limit")),
        *((name, ctypes.c_void_p) for name in ("requested", "low", "high", "pref", "job_cores")),
        *((name, ctypes.c_void_p) for name in ("malleable", "curve", "speedup", "cores")),
        *((name, ctypes.c_int64) for name in ("policy", "runtime_model", "over_limit")),
        *((name, ctypes.c_int64) for name in ("first_fit_only", "count_idle", "grow_at_start")),
        ("backfill_depth", ctypes.c_int64),
        ("backfill_interval_s", ctypes.c_double),
        *((name, ctypes.c_double) for name in ("launch_s", "end_s", "reconfiguration_s")),
        *((name, ctypes.c_double) for name in ("interval_s", "malleability_interval_s")),
    )


class Results(ctypes.Structure):
    """`struct results` of engine.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("reconfigurations", "ranges")),
        *((name, DOUBLES) for name in ("start", "launched", "end")),
        ("state", BYTES),
        *((name, INTS) for name in ("row_job", "row_from", "row_to")),
        *((name, DOUBLES) for name in ("row_asked", "row_decided", "row_applied")),
        *((name, INTS) for name in ("held_job", "held_first", "held_nodes")),
        *((name, DOUBLES) for name in ("held_since", "held_until")),
    )


def obstacle(jobs: Jobs, policy: Policy, total: int, priority: str = FCFS) -> str:
    """Return why the engine cannot simulate `jobs` under `policy` on `total` nodes; nothing where it can."""
    if _library() is None:
        return "the compiled engine was not built: no C compiler was at hand when tracebed was installed"
    if type(policy) not in POLICIES:
        return f"the compiled engine does not know the policy {type(policy).__name__}"
    if isinstance(policy, Pref) and policy.promise != "pool":
        return f"the compiled engine does not know promise={policy.promise}"
    if isinstance(policy, Conservative) and policy.backfill_depth > INT32_MAX:
        return "the compiled engine does not know so large a depth"
    if priority != FCFS:
        return f"the compiled engine does not know the priority {priority}"
    if max(map(max, (jobs.nodes, jobs.high, jobs.cores))) > INT32_MAX:
        return "there are jobs too large for the compiled engine"
    if sum(top + 1 - low for low, top in _sizes(seen_by(policy, jobs), total).values()) > MAX_SPEEDUP_VALUES:
        return "there are too many different speedup functions for the compiled engine"
    return ""


class CompiledSimulator:
    """`simulator.Simulator`, compiled: the same arguments, attributes and results, for what has no `obstacle`."""

    def __init__(
        self,
        jobs: Jobs,
        cores: list[int],
        policy: Policy,
        *,
        runtime_model: RuntimeModel = RuntimeModel.IDEAL,
        overheads: Overheads | None = None,
        interval_s: float = 0.0,
        malleability_interval_s: float = 0.0,
        priority: str = FCFS,
    ) -> None:
        """Lay the workload out. Raises ValueError where there is an obstacle."""
        if reason := obstacle(jobs, policy, len(cores), priority):
            raise ValueError(reason)
        self.jobs = jobs
        self.cluster = Cluster(cores)
        self.record = Record(jobs)
        self._seen = seen = seen_by(policy, jobs)
        overheads = overheads or Overheads()
        curve, speedup = _curves(seen, len(cores))
        uneven = min(cores, default=0) < max(jobs.cores, default=0)
        pref = policy if isinstance(policy, Pref) else Pref()
        slurm = policy if isinstance(policy, Conservative) else Conservative()
        arrays: dict[str, Array | None] = {
            "submit": np.array(jobs.submit),
            "run_time": np.array(jobs.run_time),
            "work": np.array(jobs.work),
            "limit": np.array(jobs.limit),
            **{name: np.array(getattr(seen, name), dtype=np.int32) for name in ("low", "high", "pref")},
            "requested": np.array(jobs.nodes, dtype=np.int32),
            "job_cores": np.array(jobs.cores, dtype=np.int32),
            "malleable": np.array(seen.malleable, dtype=np.uint8),
            "curve": curve,
            "speedup": speedup,
            "cores": np.array(cores, dtype=np.int32) if uneven else None,
        }
        self._arrays = arrays  # the engine reads them
        self._setup = Setup(
            jobs=len(jobs),
            nodes=len(cores),
            policy=POLICIES[type(policy)],
            runtime_model=list(RuntimeModel).index(runtime_model),
            over_limit=list(OverLimit).index(jobs.over_limit),
            first_fit_only=pref.backfill == "firstfit",
            count_idle=pref.count_idle,
            grow_at_start=pref.grow_at_start,
            backfill_depth=slurm.backfill_depth,
            backfill_interval_s=slurm.backfill_interval_s,
            launch_s=overheads.launch_s,
            end_s=overheads.end_s,
            reconfiguration_s=overheads.reconfiguration_s,
            interval_s=interval_s,
            malleability_interval_s=malleability_interval_s,
            **{name: None if values is None else values.ctypes.data for name, values in arrays.items()},
        )

    def run(self, on_progress: Callable[[int], None] | None = None) -> Record:
        """Run until every job has ended and return the record.

        Args:
            on_progress: called now and then with the number of jobs submitted so far.

        Raises:
            MemoryError: there is not enough.
        """
        library = _library()
        assert library is not None
        engine = library.tracebed_engine_new(ctypes.byref(self._setup))
        if not engine:
            raise MemoryError("the compiled engine")
        try:
            while (said := library.tracebed_engine_advance(engine, INSTANTS)) == MORE:
                if on_progress:
                    on_progress(library.tracebed_engine_submitted(engine))
            if said < 0:
                raise MemoryError("the compiled engine") if said == -1 else AssertionError("no reservation is possible")
            results = Results()
            library.tracebed_engine_results(engine, ctypes.byref(results))
            self._take_over(results)
        finally:
            library.tracebed_engine_free(engine)
        return self.record

    def _take_over(self, results: Results) -> None:
        """Copy the results of the engine into the record and the ledger."""

        def taken(kind: str, name: str, count: int) -> array[Any]:
            values: array[Any] = array(kind)
            values.frombytes(ctypes.string_at(getattr(results, name), count * values.itemsize))
            return values

        jobs, record, rows, held = self.jobs, self.record, results.reconfigurations, results.ranges
        record.submit = list(jobs.submit)
        record.start, record.launched, record.end = (
            taken("d", name, len(jobs)).tolist() for name in ("start", "launched", "end")
        )
        record.state = [STATES[number] for number in taken("B", "state", len(jobs))]
        for job, state in enumerate(record.state):
            if state == JobState.KILLED:
                record.reason[job] = "time limit"
            elif state == JobState.REJECTED:
                record.reason[job] = f"needs {self._seen.low[job]} nodes, the machine has {len(self.cluster)}"
        record.close(JobState.UNKNOWN, "the policy never started it")
        record.resizes = Resizes(
            *(taken("i", f"row_{name}", rows) for name in ("job", "from", "to")),
            *(taken("d", f"row_{name}", rows) for name in ("asked", "decided", "applied", "applied")),
        )
        self.cluster.ledger = Ledger(
            jobs=taken("i", "held_job", held),
            firsts=taken("i", "held_first", held),
            counts=taken("i", "held_nodes", held),
            starts=taken("d", "held_since", held),
            ends=taken("d", "held_until", held),
        )


def _sizes(jobs: Jobs, total: int) -> dict[SpeedupFunction, tuple[int, int]]:
    """Return the least and the most nodes that are asked of each speedup function."""
    numbers: dict[SpeedupFunction, int] = {}
    number = np.array([-1 if s is None else numbers.setdefault(s, len(numbers)) for s in jobs.speedup], dtype=np.int64)
    adapts = number >= 0
    low, high, pref, nodes = (np.array(sizes)[adapts] for sizes in (jobs.low, jobs.high, jobs.pref, jobs.nodes))
    least, most = np.full(len(numbers), INT32_MAX), np.zeros(len(numbers), dtype=np.int64)
    np.minimum.at(least, number[adapts], np.minimum(low, nodes))
    np.maximum.at(most, number[adapts], np.maximum(np.minimum(high, total), np.maximum(pref, nodes)))
    return dict(zip(numbers, zip(least.tolist(), most.tolist(), strict=True), strict=True))


def _curves(jobs: Jobs, total: int) -> tuple[Array, Array]:
    """Return where the S(0) of each malleable job would stand, shape (jobs,), in a table of S, shape (values,)."""
    values: list[float] = []
    begins: dict[SpeedupFunction | None, int] = {None: 0}
    for speedup, (low, top) in _sizes(jobs, total).items():
        begins[speedup] = len(values) - low
        values += [speedup(nodes) for nodes in range(low, top + 1)]
    return np.array([begins[speedup] for speedup in jobs.speedup], dtype=np.int64), np.array(values)


@cache
def _library() -> Any:
    """Return the bound engine; None where it was not built for this machine, or for another version of this module."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None
    library.tracebed_engine_setup_size.restype = ctypes.c_int64
    if library.tracebed_engine_setup_size() != ctypes.sizeof(Setup):
        return None
    library.tracebed_engine_new.argtypes = [ctypes.POINTER(Setup)]
    library.tracebed_engine_new.restype = ctypes.c_void_p
    library.tracebed_engine_free.argtypes = [ctypes.c_void_p]
    library.tracebed_engine_free.restype = None
    library.tracebed_engine_advance.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.tracebed_engine_submitted.argtypes = [ctypes.c_void_p]
    library.tracebed_engine_submitted.restype = ctypes.c_int64
    library.tracebed_engine_results.argtypes = [ctypes.c_void_p, ctypes.POINTER(Results)]
    library.tracebed_engine_results.restype = None
    return library
