"""The jobs of a log as a simulation of its cluster takes them, and the jobs by which the simulation is judged.

A log begins and ends at an instant, but the cluster ran before and after it. sacct lists the jobs that ended, or ran,
in a span of time. So the first end of a job is taken for the beginning of the log:

- a job that ran then is submitted at its logged start. It sets the state of the machine and is not judged;
- a job that waited then is submitted at the beginning. It sets the queue and is not judged;
- all other jobs are submitted when they were, or when they became eligible (`Eligible` of sacct), and are judged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tracebed.converters.description import cores_used
from tracebed.converters.formats.sacct import COMMAND
from tracebed.converters.formats.tools.states import UNFINISHED
from tracebed.converters.workload import BoolArray, FloatArray, IntArray, Step, Workload
from tracebed.ground.display import counted
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.slurm.machine import SlurmCluster
from tracebed.slurm.scontrol import task_numbers
from tracebed.slurm.simulation.demands import IN_CORES, STARTED, default_limits, in_cpus, several_kinds

EXPORT = f"export the log with {COMMAND}"

ENDS = 0.99
"""Share of the jobs that have started when the log ends."""

OWN = "give the slurm.conf of the cluster of the log"

ARRAY = re.compile(r"(\w+)_\[([^\]]*)\]?")
"""Id of an array whose tasks wait, such as `12_[3-5,9%2]`; a long list of tasks ends with `...`."""


@dataclass(frozen=True)
class Log:
    """The jobs of a log, by submission, whether each is judged, the beginning of the log, s, and what was assumed.

    `wide`: number of jobs with more cores on a node than any node has; they are left out.
    """

    workload: Workload
    judged: BoolArray
    begin: float
    wide: int
    notes: tuple[str, ...]

    @property
    def wait(self) -> FloatArray:
        """The logged wait of each job, s, shape (jobs,); NaN: unknown."""
        return np.maximum(0.0, self.workload.floats("logged_start") - self.workload.floats("submit_time"))

    @property
    def end(self) -> float:
        """The end of the log, s: the last submission, or the logged start of nearly all jobs."""
        start, submit = self.workload.floats("logged_start"), self.workload.floats("submit_time")
        return float(max(np.quantile(start[np.isfinite(start)], ENDS), submit.max(), self.begin + 1.0))

    @property
    def cores(self) -> IntArray:
        """The cores of each job, shape (jobs,)."""
        return self.workload.ints("nodes") * self.workload.ints("cores_per_node")


def with_starts(workload: Workload, run: Run) -> Workload:
    """Return a workload with the starts and ends of a real run of it as the logged ones."""
    rows = pd.Index(run.jobs["job_id"]).get_indexer(pd.Index(workload.column("job_id")))
    if (rows < 0).any():
        job = workload.column("job_id")[int(np.argmin(rows))]
        what = f"the run lacks {int((rows < 0).sum()):,} jobs of the workload, such as {job}"
        raise InputError(what, hint="give a run of this workload")
    jobs = run.jobs.iloc[rows]
    moved = workload.floats("submit_time") - jobs["submit"].to_numpy(dtype=np.float64)
    times = {f"logged_{end}": jobs[end].to_numpy(dtype=np.float64) + moved for end in ("start", "end")}
    return Workload(workload.table.assign(**times), workload.provenance)


def log_of(workload: Workload, machine: SlurmCluster, where: str | None = None) -> Log:
    """Return the jobs of a log, read but not scaled, to be simulated on its cluster."""
    workload, task, arrays = _with_tasks(workload)
    start, end, submit = (workload.floats(name) for name in ("logged_start", "logged_end", "submit_time"))
    if not np.isfinite(start).any():
        what = "no job has a logged start: there is nothing to compare the model with"
        raise InputError(what, where=where, hint=f"give the log of a real cluster; {EXPORT}")
    limit, run_time, sized = workload.floats("time_limit"), workload.floats("run_time"), workload.ints("nodes") > 0
    unfinished = workload.texts("status").isin(UNFINISHED).to_numpy() & ~np.isfinite(run_time) & np.isfinite(limit)
    run_time = np.where(unfinished, limit, run_time)
    kept = np.isfinite(run_time) & sized
    if not (kept & np.isfinite(start)).any():
        raise InputError("no job has a logged start, a run time and a size", where=where, hint=EXPORT)
    eligible = workload.floats("extra_eligible" if "extra_eligible" in workload.table else "earliest_start")
    held = kept & (eligible > submit)
    submit = np.where(held, eligible, submit)
    known = kept & np.isfinite(end) & ~unfinished
    begin = float(end[known].min()) if known.any() else float(submit[kept].min())
    ran, waited = start < begin, (submit < begin) & ~(start < begin)
    unlimited = kept & np.isnan(limit)
    counts = {
        "never started, or have no end or size in the log: left out": ~kept,
        "ran or waited when the log ends: their time limit is taken for their run time": kept & unfinished,
        "ran when the log begins: they start as logged, and are not judged": kept & ran,
        "waited when the log begins: submitted then, and not judged": kept & waited,
        "were held by a dependency, a begin time or a limit: submitted when they became eligible": held
        & ~ran
        & ~waited,
        "have no time limit in the log: DefaultTime or MaxTime of their partition is taken": unlimited,
    }
    kinds = kept & several_kinds(workload)
    counts["have several nodes, and features with brackets or counts: each node has any of these features"] = kinds
    submit = np.where(ran, start, np.where(waited, begin, submit))
    in_log = {"cpus_per_core": machine.cpus_per_core} if _in_cpus(workload, machine) else {}
    threads, most = in_log.get("cpus_per_core", 1), max(machine.cores_of(kind) for kind in machine.kinds)
    cores = -(-np.maximum(cores_used(workload), 1) // threads)
    wide = kept & (cores > most)
    limit = limit.copy()
    limit[ran & unlimited] = default_limits(workload, machine, ran & unlimited)  # a change of the cluster comes later
    table = workload.table.assign(submit_time=submit, run_time=run_time, time_limit=limit, cores_per_node=cores)
    table[STARTED] = ran
    notes = [*arrays]
    notes += [f"{int(each.sum()):,} of {len(kept):,} jobs {what}" for what, each in counts.items() if each.any()]
    notes += [f"the CPUs of the log are hardware threads, {threads} of a core"] if threads > 1 else []
    judged = np.isfinite(start) & ~ran & ~waited
    if np.isfinite(eligible).any():  # the log says when the conditions of a job were met
        table = table.drop(columns=["earliest_start", "dependency"], errors="ignore")
        table["array"] = workload.texts("array").where(pd.Series(task), "").to_numpy()
    table = table.assign(extra_judged=judged)[kept & ~wide]
    if not len(table):
        what = f"each job has more cores on a node than any node of the slurm.conf, which have {most:,} at most"
        raise InputError(what, where=where, hint=OWN)
    found = Workload(table, replace(workload.provenance, steps=(*workload.provenance.steps, Step(IN_CORES, in_log))))
    judged = found.table.pop("extra_judged").to_numpy(dtype=bool)
    if not judged.any():
        what = "no job was submitted after the first end of a job: the log is too short to judge a model"
        raise InputError(what, where=where, hint="give a longer log")
    return Log(found, judged, begin, int(wide.sum()), tuple(notes))


def _with_tasks(workload: Workload) -> tuple[Workload, BoolArray, list[str]]:
    """Return the log with each array that waits at its end as the tasks, the mask of such tasks, and notes."""
    ids = workload.column("job_id")
    waiting = workload.texts("status").isin(UNFINISHED) & workload.texts("job_id").str.contains("_[", regex=False)
    known, cut = set(ids.tolist()), 0
    tasks: dict[int, list[str]] = {}
    for row in np.flatnonzero(waiting).tolist():
        if match := ARRAY.fullmatch(ids[row]):
            own = [f"{match[1]}_{number}" for number in task_numbers(match[2])]
            tasks[row] = [name for name in own if name not in known] or [ids[row]]
            cut += "..." in match[2]
    if not tasks:
        return workload, np.zeros(len(ids), dtype=bool), []
    rows = np.repeat(np.arange(len(ids)), [len(tasks.get(row, "1")) for row in range(len(ids))])
    names = [name for row, job in enumerate(ids.tolist()) for name in tasks.get(row, [job])]
    count = sum(map(len, tasks.values()))
    notes = [f"{counted(count, 'task')} of {counted(len(tasks), 'array')} wait when the log ends: a job for each task"]
    if cut:
        notes.append(
            f"the list of tasks of {counted(cut, 'array')} is cut off in the log (...): further tasks are unknown"
        )
    table = workload.table.iloc[rows].assign(job_id=names).reset_index(drop=True)
    return Workload(table, workload.provenance), np.isin(rows, [*tasks]), notes


def _in_cpus(workload: Workload, machine: SlurmCluster) -> bool:
    """Return whether the cores of a log are CPUs, as those of sacct, or since a job has more than any node has cores.

    Slurm counts a hardware thread as a CPU, and allocates whole cores.
    """
    more = int(cores_used(workload).max()) > max(kind.cores for kind in machine.kinds)
    return in_cpus(workload) or (more and any(kind.threads > 1 for kind in machine.kinds))
