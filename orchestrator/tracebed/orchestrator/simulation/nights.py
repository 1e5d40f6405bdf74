"""The executor `nights`: nodes that are off each night, under the rules of a published program, in compiled code.

Source: Schäfer et al., "Saving Energy Costs and Time on Supercomputers" (EESP at SC26), and the branch of ElastiSim of
github.com/FuldaHPC/ElastisimFulda, commit c2d6b930, whose rules are written anew here. The machine says which share of
its nodes is off and when (`sleep`, rule `windows`), and how long boots and shutdowns last. Without `sleep`, all nodes
stay on. docs/explanation/nights.md states the rules. Two policies are known, by the names of tracebed's nearest
ones, whose parameters are not used: `firstfit` ("EASY" in the paper) and `min` (`min_steal_agreement`). The scheduler
is called at multiples of the scheduling interval, by default each second.

The time limit of a job is its expected run time: a job takes a node that is to be off only if it is expected to end by
then, and goes on if it does not.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tracebed.converters.speedup import Speedup
from tracebed.converters.workload import FloatArray, IntArray, Kind, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.machine.machine import Machine
from tracebed.machine.power import seconds_of_day, share_of
from tracebed.orchestrator.executors import Options
from tracebed.orchestrator.run import Run, RunInfo, workload_facts
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.record import PowerChanges, Resizes, ScheduleRecord
from tracebed.orchestrator.scheduling.sleeping import Sleeping
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.engine import LIBRARY, missing
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
    _fields_ = [
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
                another speedup than by Amdahl's law; the power of nodes that sleep is unknown; or the scheduling
                interval is not a whole number of seconds.
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
        if (interval_s := setup.scheduling.interval_s) % 1:
            what = f"the scheduling interval is {interval_s:g} s"
            raise InputError(what, hint="the executor nights needs a whole number of seconds")
        rules = rules_of(machine, setup.scheduling.policy)._replace(interval_s=int(interval_s) or 1)
        inputs = inputs_of(jobs, parallel_parts(workload, jobs))
        needed = inputs.low if rules.malleable else inputs.pref
        for job in np.flatnonzero(needed > rules.nodes).tolist():
            record.refuse(job, JobState.REJECTED, f"needs {needed[job]} nodes, the machine has {rules.nodes}")
        fits = np.flatnonzero(needed <= rules.nodes)
        fitting: list[Any] = [values[fits] for values in inputs]
        outcome = simulate(Inputs(*fitting), rules)
        _write(record, cluster, fits, outcome)
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


class Rules(NamedTuple):
    """What the simulation is given besides the jobs."""

    nodes: int
    malleable: bool
    """Whether the scheduler is that of malleable jobs (`min`), else jobs start on the nodes that they request."""
    share: float
    """Share of the nodes that is off in the window; 0: no node is switched off."""
    window: tuple[int, int]
    """Begin and end, s of the day."""
    shrinks: bool
    """Whether malleable jobs leave nodes that are to be off."""
    boot_s: FloatArray
    shutdown_s: FloatArray
    """Of each node, s, shape (nodes,)."""
    interval_s: int = 1
    """The scheduler is called at multiples of this time."""


class Inputs(NamedTuple):
    """The jobs, in the order of submission; arrays of shape (jobs,)."""

    submit: FloatArray
    run_time: FloatArray
    """On the requested nodes, s."""
    iterations: FloatArray
    """Of a malleable job, which changes its nodes after one; 1: of a rigid job."""
    part: FloatArray
    """Parallel part of the work."""
    predicted: FloatArray
    """Predicted run time on the requested nodes, s."""
    pref: IntArray
    low: IntArray
    high: IntArray
    malleable: IntArray


class Outcome(NamedTuple):
    """What happened. `start` and `end` in s, NaN: it never did; `columns`: those of `COLUMNS`, by name."""

    start: FloatArray
    end: FloatArray
    columns: dict[str, array[Any]]


def simulate(inputs: Inputs, rules: Rules) -> Outcome:
    """Simulate jobs, of which none needs more nodes than there are.

    Raises:
        MemoryError: there is no memory.
    """
    count = len(inputs.submit)
    targets = share_of(rules.nodes, rules.share)
    window = [at % 86_400 for at in rules.window]
    numbers = [count, rules.nodes, targets, rules.malleable, rules.share > 0, rules.shrinks, *window, rules.interval_s]
    codes = ("f8",) * 5 + ("i4",) * 3 + ("u1",)
    given = [np.ascontiguousarray(values, dtype=code) for values, code in zip(inputs, codes, strict=True)]
    given += [np.ascontiguousarray(values, dtype="f8") for values in (rules.boot_s, rules.shutdown_s)]
    start, end, results = np.empty(count), np.empty(count), _Results()
    run, free = _functions()
    arrays = [np.array(numbers, dtype=np.int64), *given, start, end]
    state = run(*(values.ctypes.data for values in arrays), ctypes.byref(results))
    if not state:
        raise MemoryError("the compiled engine cannot allocate memory")
    try:
        columns = {name: _copied(results, name, count) for count, names in COLUMNS.items() for name in names}
    finally:
        free(state)
    return Outcome(start, end, columns)


def rules_of(machine: Machine, policy: str) -> Rules:
    """Return the rules on a machine.

    Raises:
        InputError: the power of nodes that sleep is unknown.
    """
    sleeping, total = Sleeping.of(machine), len(machine.nodes)
    if sleeping is None:
        return Rules(total, policy == "min", 0.0, (0, 0), False, np.zeros(total), np.zeros(total))
    rule = sleeping.rule
    window = seconds_of_day("start", rule.start), seconds_of_day("end", rule.end)
    return Rules(total, policy == "min", rule.share, window, rule.shrink, sleeping.boot_s, sleeping.shutdown_s)


def inputs_of(jobs: Jobs, part: FloatArray) -> Inputs:
    """Return the inputs for jobs. `part`: parallel part of each job, shape (jobs,)."""
    malleable = np.array([kind == Kind.MALLEABLE for kind in jobs.kind])
    nodes, run_time = np.asarray(jobs.column("nodes")), np.asarray(jobs.column("run_time"), dtype=np.float64)
    # Whole seconds of the run time without the loss of the requested nodes, as the published jobs have.
    loss = nodes * ((1 - part) + part / nodes)
    iterations = np.where(malleable, np.maximum(1.0, np.rint(run_time / loss)), 1.0)
    low, high = (np.where(malleable, np.asarray(jobs.column(name)), nodes) for name in ("low", "high"))
    submit, limit = (np.asarray(jobs.column(name), dtype=np.float64) for name in ("submit", "limit"))
    return Inputs(submit, run_time, iterations, part, limit, nodes, low, high, malleable)


def _write(record: ScheduleRecord, cluster: Cluster, fits: IntArray, outcome: Outcome) -> None:
    """Write the outcome of the jobs `fits` to the record and the ledger."""
    columns = outcome.columns
    times = np.full((2, len(record.jobs)), math.nan)
    times[:, fits] = outcome.start, outcome.end
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
    ledger.jobs = (
        array("i", job_of[np.asarray(columns["held_job"])].tobytes()) if len(columns["held_job"]) else array("i")
    )
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
