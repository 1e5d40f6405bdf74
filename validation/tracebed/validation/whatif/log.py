"""The jobs of a log as a simulation of its cluster takes them, and the jobs by which the simulation is judged.

A log begins and ends at an instant, but the cluster ran before and after it. sacct lists the jobs that ended, or ran,
in a span of time. So the first end of a job is taken for the beginning of the log:

- a job that ran then is submitted at its logged start. It sets the state of the machine and is not judged;
- a job that waited then is submitted at the beginning. It sets the queue and is not judged;
- all other jobs are submitted when they were, or when they became eligible (`Eligible` of sacct), and are judged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tracebed.converters.description import cores_used
from tracebed.converters.formats.tools.states import UNFINISHED
from tracebed.converters.workload import BoolArray, FloatArray, IntArray, Step, Workload
from tracebed.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.slurm.asked import IN_CORES, in_cpus, several_kinds
from tracebed.orchestrator.slurm.machine import Machine

EXPORT = "export the log with sacct -aPD -S DATE -E DATE -o ... (`tracebed clean --list` has the fields)"

OWN = "give the slurm.conf of the cluster of the log"


@dataclass(frozen=True)
class Log:
    """The jobs of a log.

    Attributes:
        workload: the jobs that are simulated, by submission. `logged_start` is what happened.
        judged: whether a job is judged, shape (jobs,).
        begin: beginning of the log, s.
        wide: number of jobs with more cores on a node than any node has; they are left out.
        notes: what was assumed or left out, with its number of jobs.
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
    def cores(self) -> IntArray:
        """The cores of each job, shape (jobs,)."""
        return self.workload.ints("nodes") * self.workload.ints("cores_per_node")


def with_starts(workload: Workload, run: Run) -> Workload:
    """Return a workload with the starts and ends of a real run of it as the logged ones.

    Raises:
        InputError: a job of the workload is not in the run.
    """
    rows = pd.Index(run.jobs["job_id"]).get_indexer(pd.Index(workload.column("job_id")))
    if (rows < 0).any():
        job = workload.column("job_id")[int(np.argmin(rows))]
        what = f"the run lacks {int((rows < 0).sum()):,} jobs of the workload, such as {job}"
        raise InputError(what, hint="give a run of this workload")
    jobs = run.jobs.iloc[rows]
    moved = workload.floats("submit_time") - jobs["submit"].to_numpy(dtype=np.float64)
    times = {f"logged_{end}": jobs[end].to_numpy(dtype=np.float64) + moved for end in ("start", "end")}
    return Workload(workload.table.assign(**times), workload.provenance)


def log_of(workload: Workload, machine: Machine, where: str | None = None) -> Log:
    """Return the jobs of a log, to be simulated on its cluster.

    Args:
        workload: the log, read but not scaled.
        where: file of the log, for messages.

    Raises:
        InputError: no job has a logged start.
    """
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
    counted = {"cpus_per_core": machine.cpus_per_core} if _in_cpus(workload, machine) else {}
    threads, most = counted.get("cpus_per_core", 1), max(machine.cores_of(kind) for kind in machine.kinds)
    cores = -(-np.maximum(cores_used(workload), 1) // threads)
    wide = kept & (cores > most)
    table = workload.table.assign(submit_time=submit, run_time=run_time, cores_per_node=cores)
    notes = [f"{int(each.sum()):,} of {len(kept):,} jobs {what}" for what, each in counts.items() if each.any()]
    notes += [f"the CPUs of the log are hardware threads, {threads} of a core"] if threads > 1 else []
    judged = np.isfinite(start) & ~ran & ~waited
    if np.isfinite(eligible).any():  # the log says when the conditions of a job were met
        table = table.drop(columns=["earliest_start", "dependency", "array"], errors="ignore")
    table = table.assign(extra_judged=judged)[kept & ~wide]
    if not len(table):
        what = f"each job has more cores on a node than any node of the slurm.conf, which have {most:,} at most"
        raise InputError(what, where=where, hint=OWN)
    found = Workload(table, replace(workload.provenance, steps=(*workload.provenance.steps, Step(IN_CORES, counted))))
    judged = found.table.pop("extra_judged").to_numpy(dtype=bool)
    if not judged.any():
        what = "no job was submitted after the first end of a job: the log is too short to judge a model"
        raise InputError(what, where=where, hint="give a longer log")
    return Log(found, judged, begin, int(wide.sum()), tuple(notes))


def _in_cpus(workload: Workload, machine: Machine) -> bool:
    """Return whether the cores of a log are CPUs, as those of sacct, or since a job has more than any node has cores.

    Slurm counts a hardware thread as a CPU, and allocates whole cores.
    """
    more = int(cores_used(workload).max()) > max(kind.cores for kind in machine.kinds)
    return in_cpus(workload) or (more and any(kind.threads > 1 for kind in machine.kinds))
