"""The executor `nights`: nodes that are off each night, under the rules of a published program, in compiled code.

Source: Schäfer et al., "Saving Energy Costs and Time on Supercomputers" (EESP at SC26), and the branch of ElastiSim of
github.com/FuldaHPC/ElastisimFulda, commit c2d6b930, whose rules are written anew here. The machine says which share of
its nodes is off and when (`sleep`, rule `windows`), and how long boots and shutdowns last. Without `sleep`, all nodes
stay on. docs/reference/policies/nights.md states the rules. Two policies are known, by the names of tracebed's nearest
ones, whose parameters are not used: `firstfit` ("EASY" in the paper) and `min` (`min_steal_agreement`).

The time limit of a job is its expected run time: a job takes a node that is to be off only if it is expected to end by
then, and goes on if it does not.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from functools import cache
from typing import Any

import numpy as np

from tracebed.converters.speedup import Speedup
from tracebed.converters.workload import FloatArray, IntArray, Kind, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.machine.machine import Machine
from tracebed.machine.power import seconds_of_day
from tracebed.orchestrator.executors import Options
from tracebed.orchestrator.run import Run, RunInfo, workload_facts
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.record import PowerChanges, Resizes, ScheduleRecord
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.engine import LIBRARY, missing
from tracebed.orchestrator.simulation.sleeping import Sleeping
from tracebed.orchestrator.tables import make_run

POLICIES = ("firstfit", "min")
PARALLEL = 0.95
"""Parallel part of a job whose speedup the workload does not state: the least that the published jobs have."""
COLUMNS = {
    "rows": ("row_job", "row_from", "row_to", "row_asked", "row_applied"),
    "held": ("held_job", "held_first", "held_count", "held_begin", "held_end"),
    "powers": ("power_node", "power_time", "power_state"),
}
"""Number of rows -> columns, as in `struct nights_results` of nights.c."""
CODES = {"asked": "d", "applied": "d", "begin": "d", "end": "d", "time": "d", "state": "B"}


class _Results(ctypes.Structure):
    _fields_ = [  # noqa: RUF012
        *((name, ctypes.c_int64) for name in COLUMNS),
        *((name, ctypes.c_void_p) for names in COLUMNS.values() for name in names),
    ]


class Nights:
    """The executor."""

    options = Options
    predicts = True

    def accepts(self, machine: Machine, setup: Setup) -> bool:
        """Return whether the nodes are alike for all jobs, are always on or off in windows, and the policy is known."""
        sleeps = machine.sleep is None or machine.sleep.rule == "windows"
        return machine.plain and sleeps and setup.scheduling.policy in POLICIES

    def execute(self, workload: Workload, machine: Machine, setup: Setup, options: Options) -> Run:
        """Simulate a workload.

        Raises:
            InputError: the compiled engine is missing; a job has another kind than rigid, moldable or malleable, or
                another speedup than by Amdahl's law; or the power of nodes that sleep is unknown.
        """
        if reason := missing():
            raise InputError(f"the executor nights is compiled code only: {reason}", hint="install a C compiler")
        nodes = list(machine.nodes)
        jobs = Jobs.of(
            workload,
            cores_per_node=max(node.cores for node in nodes),
            over_limit=OverLimit.AGAIN,  # the limit is not the end: it may be an underestimate
            dependencies=setup.scheduling.dependencies,
        )
        if jobs.waits is not None:
            what = "the executor nights does not support dependencies and think times"
            raise InputError(what, hint="ignore them: --dependencies ignore")
        record, cluster = ScheduleRecord(jobs), Cluster([node.cores for node in nodes])
        simulate(record, cluster, machine, setup.scheduling.policy, parallel_parts(workload, jobs))
        info = RunInfo(
            source="simulator",
            engine="compiled",
            execution="simulated",
            nodes=nodes,
            machine=None if machine.told_by_nodes else machine,
            workload=workload_facts(workload, options.name),
            setup=setup,
            parameters={"executor": "nights"},
        )
        return make_run(record, cluster, info)


def simulate(record: ScheduleRecord, cluster: Cluster, machine: Machine, policy: str, part: FloatArray) -> None:
    """Simulate the jobs of a record, and write the results to the record and the ledger of the cluster.

    `part`: parallel part of each job, shape (jobs,).
    """
    jobs, total = record.jobs, len(cluster)
    low, high = np.asarray(jobs.column("low")), np.asarray(jobs.column("high"))
    fits = np.flatnonzero((low if policy == "min" else np.asarray(jobs.column("nodes"))) <= total)
    for job in sorted({*range(len(jobs))} - {*fits.tolist()}):
        record.refuse(job, JobState.REJECTED, f"needs {low[job]} nodes, the machine has {total}")
    malleable = np.array([kind == Kind.MALLEABLE for kind in jobs.kind])
    nodes, run_time = np.asarray(jobs.column("nodes")), np.asarray(jobs.column("run_time"), dtype=np.float64)
    # Whole seconds of the run time without the loss of the requested nodes, as the published jobs have.
    loss = nodes * ((1 - part) + part / nodes)
    iterations = np.where(malleable, np.maximum(1.0, np.rint(run_time / loss)), 1.0)
    sleeping, share, window = Sleeping.of(machine), 0.0, (0, 0)
    if sleeping:
        rule = sleeping.rule
        share, window = rule.share, (seconds_of_day("start", rule.start), seconds_of_day("end", rule.end))
    # The difference of rounded numbers, as in the published program: 30 % of 10 nodes are 3, and 1 - 0.7 is below 0.3.
    targets = int(total * (1.0 - (1.0 - share)))
    shrinks = bool(sleeping and sleeping.rule.shrink)
    numbers = np.array(
        [len(fits), total, targets, policy == "min", share > 0, shrinks, *(at % 86_400 for at in window)], dtype=np.int64
    )
    quiet = np.zeros(total)
    given = [
        *(np.asarray(values, dtype=np.float64)[fits] for values in (jobs.column("submit"), run_time, iterations, part)),
        np.asarray(jobs.column("limit"), dtype=np.float64)[fits],
        *(np.where(malleable, values, nodes)[fits].astype(np.int32) for values in (nodes, low, high)),
        malleable[fits].astype(np.uint8),
        *((sleeping.boot_s, sleeping.shutdown_s) if sleeping else (quiet, quiet)),
    ]
    given = [np.ascontiguousarray(values) for values in given]
    start, end, results = np.empty(len(fits)), np.empty(len(fits)), _Results()
    run, free = _functions()
    state = run(*(values.ctypes.data for values in (numbers, *given, start, end)), ctypes.byref(results))
    if not state:
        raise MemoryError("the compiled engine cannot allocate memory")
    try:
        columns = {name: _copied(results, name, count) for count, names in COLUMNS.items() for name in names}
    finally:
        free(state)
    _write(record, cluster, fits, start, end, columns)


def _write(
    record: ScheduleRecord, cluster: Cluster, fits: IntArray, start: FloatArray, end: FloatArray, columns: dict[str, Any]
) -> None:
    """Write the results of the jobs `fits` to the record and the ledger."""
    times = np.full((2, len(record.jobs)), math.nan)
    times[:, fits] = start, end
    record.submit = array("d", np.asarray(record.jobs.column("submit"), dtype=np.float64).tobytes())
    record.start, record.launched, record.end = (array("d", times[row].tobytes()) for row in (0, 0, 1))
    for job in np.flatnonzero(~np.isnan(times[1])).tolist():
        record.state[job] = JobState.COMPLETED
    record.close(JobState.UNKNOWN, "needs more nodes than are on when it may start")
    job_of = fits.astype(np.int32)
    resized = array("i", job_of[np.asarray(columns["row_job"])].tobytes()) if len(columns["row_job"]) else array("i")
    applied = columns["row_applied"]
    record.resizes = Resizes(
        resized, columns["row_from"], columns["row_to"], columns["row_asked"], applied, applied[:], applied[:]
    )
    record.power = PowerChanges(columns["power_node"], columns["power_time"], columns["power_state"])
    ledger = cluster.ledger
    ledger.jobs = array("i", job_of[np.asarray(columns["held_job"])].tobytes()) if len(columns["held_job"]) else array("i")
    ledger.firsts, ledger.counts = columns["held_first"], columns["held_count"]
    ledger.starts, ledger.ends = columns["held_begin"], columns["held_end"]


def parallel_parts(workload: Workload, jobs: Jobs) -> FloatArray:
    """Return the parallel part of each job by Amdahl's law, shape (jobs,).

    Raises:
        InputError: a malleable job has another speedup.
    """
    texts = zip(*(workload.column(name) for name in ("job_id", "speedup", "speedup_parameters")), strict=True)
    stated = {str(job): (str(name or ""), str(parameters or "")) for job, name, parameters in texts}
    parts, parsed = np.full(len(jobs), PARALLEL), {key: _parallel(*key) for key in {*stated.values()}}
    for job, name in enumerate(jobs.ids):
        if (part := parsed[stated[name]]) is not None:
            parts[job] = part
        elif jobs.kind[job] == Kind.MALLEABLE:
            what = f"job {name} is malleable, and its speedup is {stated[name][0] or 'missing'}"
            raise InputError(what, hint="the executor nights knows Amdahl's law: speedup amdahl with one parameter")
    return parts


def _parallel(name: str, parameters: str) -> float | None:
    """Return the parallel part of a speedup; None: it is not by Amdahl's law."""
    return Speedup.parse(name, parameters).numbers[0] if name == "amdahl" else None


def _copied(results: _Results, name: str, count: str) -> array[Any]:
    """Return a copy of a column of the results."""
    values: array[Any] = array(CODES.get(name.partition("_")[2], "i"))
    if size := getattr(results, count) * values.itemsize:
        values.frombytes((ctypes.c_char * size).from_address(getattr(results, name)))
    return values


@cache
def _functions() -> tuple[Any, Any]:
    """Return the functions of nights.c: simulate, and free its results."""
    library = ctypes.CDLL(str(LIBRARY))
    run, free = library.tracebed_nights, library.tracebed_nights_free
    run.argtypes, run.restype = [*([ctypes.c_void_p] * 14), ctypes.POINTER(_Results)], ctypes.c_void_p
    free.argtypes, free.restype = [ctypes.c_void_p], None
    return run, free


EXECUTOR = Nights()
