"""Logs of batch systems and simulators in the formats of `converters.formats`, imported as runs of a workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.tools.files import inputs_at
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.nodes import nodes_of
from tracebed.validation.simulators.assembly import run_of
from tracebed.validation.simulators.observed import Observed
from tracebed.validation.simulators.simulator import ReadOptions


def read(path: Path, form: str, workload: Workload | None, options: ReadOptions) -> Run:
    """Read a log as a run: its logged starts and ends are the times of the jobs. Without a workload, the log is it.

    Raises:
        InputError: the log cannot be read, has no starts and ends, or its jobs are not those of the workload.
    """
    if options.columns or options.unit:
        given = "--columns" if options.columns else "--unit"
        raise InputError(f"{given} is for tables, and {path.name} is in format {form}", hint="use import --from csv")
    zone: dict[str, Any] = {"time_zone": options.time_zone} if options.time_zone else {}
    log = read_workload(path, form, **zone)
    if not np.isfinite(log.floats("logged_start")).any():
        hint = "use a format with starts and ends, or import --from csv with --columns"
        raise InputError(f"the file in format {form} has no starts of jobs", where=str(path), hint=hint)
    return run_of(_observed(path, form, log, options), log if workload is None else workload, options)


def _observed(path: Path, form: str, log: Workload, options: ReadOptions) -> Observed:
    system, inputs = log.provenance.system, inputs_at(path)
    nodes = log.ints("nodes")
    jobs = pd.DataFrame(
        {
            "job_id": log.column("job_id"),
            "submit": log.floats("submit_time"),
            "start": log.floats("logged_start"),
            "end": log.floats("logged_end"),
            "nodes": np.where(nodes > 0, nodes, np.nan),
            "time_limit": log.floats("time_limit"),
            "user": log.column("user"),
            "state": log.column("status"),
            "kind": log.column("kind"),
        }
    )
    return Observed(
        jobs=jobs,
        source=inputs[0].source,
        where=str(path),
        place=lambda row: f"{path}, job {jobs['job_id'].iloc[row]}",
        format=form,
        nodes=nodes_of(system) if system.nodes and options.nodes is None else None,
        facts={
            "files": len(inputs),
            "unix_start": log.provenance.unix_start,
            "time_zone": log.provenance.time_zone,
        },
    )
