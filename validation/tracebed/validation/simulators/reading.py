"""Import of the output of other programs: reads a file or folder in any known form as a run.

A form is a simulator, or one of the formats of logs of batch systems and simulators in `converters.formats`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.formats.format import FORMATS, named
from tracebed.converters.formats.reading import read_workload, recognized
from tracebed.converters.formats.tools.files import Input, inputs_at
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.extension_errors import checked
from tracebed.ground.registry import unknown
from tracebed.machine.nodes import nodes_of
from tracebed.orchestrator.run import Run
from tracebed.validation.simulators.assembly import at_speed, run_of, workload_for_import
from tracebed.validation.simulators.observed import Observed
from tracebed.validation.simulators.simulator import SIMULATORS, ReadOptions

TABLE = "csv"  # the form of a file that no simulator and no format recognizes
OF_ROWS = (TABLE, "batsim")  # forms that are tables, whose rows can be chosen


def import_run(
    path: Path, options: ReadOptions, workload: Workload | Run | None = None, form: str | None = None
) -> Run:
    """Read the output of a simulator, or the log of a real system, as a run.

    `workload` is that of the jobs, or a run of it; None: it is made from the file. `form` is an installed simulator or
    a format of logs; None: recognized by the content.
    """
    if isinstance(workload, Run):
        workload, options = workload_for_import(options, workload)
    if workload is None and options.side == "predicted":
        hint = "give --workload FILE, or a real run of the workload: --workload runs/real"
        raise InputError("a prediction needs the workload that it predicts", where=str(path), hint=hint)
    if workload is None and (options.mapping or options.match != "auto"):
        raise InputError("jobs can only be matched with a --workload", hint="leave out --match")
    if form is None:
        form = TABLE if options.columns else form_of(path)
        if options.rows and form not in OF_ROWS:
            form = TABLE
    if options.rows and form not in OF_ROWS:
        what = f"import --only is for tables, and {path.name} is in format {form}"
        raise InputError(what, hint="use import --from csv")
    if form in SIMULATORS.entries:
        chosen = SIMULATORS.load(form)
        if chosen.read is None:
            readers = [name for name in SIMULATORS.names() if SIMULATORS.load(name).read]
            raise InputError(f"the output of {form} cannot be read", hint=f"use one of {', '.join(readers)}")
        made = checked(chosen.read(path, workload, options), Run, f"simulator {chosen.name}", chosen.read)
        return _checked(made, path)
    if form in FORMATS.entries:
        return _checked(read_log(path, form, workload, options), path)
    raise unknown("form of a file", form, forms())


def _checked(run: Run, path: Path) -> Run:
    """Return a run that other commands can read. Raises InputError if they could not."""
    try:
        run.check(path)
    except InputError as error:
        what = f"the jobs of the file are no run that other commands can read: {error.what}"
        raise InputError(what, where=str(path), hint="correct the file; if it is right, report this line") from error
    return run


def forms() -> list[str]:
    """Return the names of all forms: simulators, then formats of logs that are not also simulators."""
    formats = [name for name in FORMATS.names() if named(name).reader is not None]
    return [*SIMULATORS.names(), *(name for name in formats if name not in SIMULATORS.entries)]


def simulator_at(path: Path) -> str | None:
    """Return the simulator that wrote a file or folder, recognized by its content, or None if it is unknown."""
    for name in SIMULATORS.names():
        recognizes = SIMULATORS.load(name).recognizes
        if recognizes is not None and recognizes(path):
            return name
    return None


def form_of(path: Path) -> str:
    """Return the form of a file or folder, by its content."""
    if name := simulator_at(path):
        return name
    if path.is_dir():
        hint = "name its form by import --from, or give a file in it"
        raise InputError("the form of the folder is not recognized", where=str(path), hint=hint)
    form = recognized(Input.at(path))
    if form is not None and form.reader is not None and form.name not in SIMULATORS.entries:
        return form.name
    return TABLE


def read_log(path: Path, form: str, workload: Workload | None, options: ReadOptions) -> Run:
    """Read a log as a run: its logged starts and ends are the times of the jobs. Without a workload, the log is it."""
    if options.columns or options.unit:
        given = "--columns" if options.columns else "--unit"
        raise InputError(f"{given} is for tables, and {path.name} is in format {form}", hint="use import --from csv")
    zone: dict[str, Any] = {"time_zone": options.time_zone} if options.time_zone else {}
    log = read_workload(path, form, **zone)
    if not np.isfinite(log.floats("logged_start")).any():
        hint = "use a format with starts and ends, or import --from csv with --columns"
        raise InputError(f"the file in format {form} has no starts of jobs", where=str(path), hint=hint)
    own = at_speed(log, options) if workload is None else workload
    return run_of(_observed(path, form, log, options), own, options)


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
