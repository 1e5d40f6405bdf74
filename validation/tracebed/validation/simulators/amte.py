"""Logs of the FIFO-Malleable-Job-Scheduler as runs: the hosts of each job over time, and its resizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tracebed.converters.formats import amte
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import Kind, Workload
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run
from tracebed.validation.simulators.assembly import run_of
from tracebed.validation.simulators.observed import NodePeriods, Observed, applied_resizes
from tracebed.validation.simulators.simulator import ExternalSimulator, ReadOptions


def recognizes(path: Path) -> bool:
    """Return whether a file is a log of the scheduler."""
    return path.is_file() and path.stat().st_size > 0 and amte.recognizes(Input.at(path))


def read(path: Path, workload: Workload | None, options: ReadOptions) -> Run:
    """Read a log. Jobs are numbered from 0 in the order of their starts, and hosts in the order of their names."""
    file = Input.at(path)
    jobs = amte.logged_jobs(file)
    # All jobs are rigid if none was resized. Otherwise the scripts in the folders beside the log state which jobs are
    # malleable; without scripts, all jobs count as malleable.
    resized = any(job.changes for job in jobs)
    scripts = amte.scripts_beside(path, len(jobs)) if resized else None
    malleable = [resized if scripts is None else scripts[row].malleable for row in range(len(jobs))]
    names = sorted(amte.hosts_of(jobs))
    numbers = {host: number for number, host in enumerate(names)}
    periods, resizes, strange = [], [], 0
    for row, job in enumerate(jobs):
        held = dict.fromkeys(job.hosts, job.start)
        for change in job.changes:
            before = len(held)
            if change.expands:
                held |= dict.fromkeys(change.hosts, change.time)
            else:
                strange += len(set(change.hosts) - held.keys())
                gone = [host for host in dict.fromkeys(change.hosts) if host in held]
                periods += [(row, numbers[host], held.pop(host), change.time) for host in gone]
            if len(held) != before:
                resizes.append((row, before, len(held), change.time, change.expands))
        periods += [(row, numbers[host], since, job.end) for host, since in held.items()]
    ids = [str(row) for row in range(len(jobs))]
    table = pd.DataFrame(
        {
            "job_id": ids,
            "submit": 0.0,
            "start": [job.start for job in jobs],
            "end": [job.end for job in jobs],
            "nodes": [float(len(job.hosts)) for job in jobs],
            "kind": [str(Kind.MALLEABLE if each else Kind.RIGID) for each in malleable],
        }
    )
    cores = options.cores_per_node or (workload.provenance.system.cores_per_node if workload else None) or 1
    observed = Observed(
        jobs=table,
        source=file.source,
        where=str(path),
        place=lambda row: f"{path}:{jobs[row].line}",
        format="amte",
        program="FIFO-Malleable-Job-Scheduler",
        nodes=[NodeFacts(name, cores) for name in names] if options.nodes is None else None,
        allocations=_allocations(periods),
        reconfigurations=_reconfigurations(resizes),
        resolution_s=0.0,
        match="id",
        facts={"names": [job.name for job in jobs]},
        warnings=[f"{strange} words in lists of released hosts are no hosts of the job"] if strange else [],
    )
    return run_of(observed, workload, options)


def _allocations(periods: list[tuple[int, int, float, float]]) -> pd.DataFrame:
    """Return the table of allocations for (row, node, start, end)."""
    row, node, start, end = zip(*periods, strict=True)
    return NodePeriods(np.array(row), np.array(node), np.array(start), np.array(end)).allocations()


def _reconfigurations(resizes: list[tuple[int, int, int, float, bool]]) -> pd.DataFrame:
    """Return the table of resizes for (row, nodes before, nodes after, instant, whether it is an expansion)."""
    # The log has the decision on an expansion, and the end of a shrink; the other instants of a resize are unknown.
    changes = pd.DataFrame(resizes, columns=["row", "nodes_from", "nodes_to", "time", "expands"])
    expands, time = changes["expands"].to_numpy(dtype=bool), changes["time"].to_numpy(dtype=np.float64)
    return applied_resizes(changes, asked=np.where(expands, time, np.nan), ended=np.where(expands, np.nan, time))


SIMULATOR = ExternalSimulator(
    name="amte", title="log of the FIFO-Malleable-Job-Scheduler", read=read, recognizes=recognizes
)
"""Logs of the scheduler of Finnerty et al."""
