"""Modular Workload Format (Corbalan and D'Amico, JSSPP 2021): 41 or 42 fields between `;`, a line a component.

A job of a modular machine has components, each on a module of its own, with its own size, wait and run time.
A workload has one shape a job. So each component becomes a job: `7` of a job with one component, `7+0`, `7+1`
of one with several; `extra_job` is the number that they share. That they start together is lost, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools.fields import Fields, first_line, read_fields
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.states import SWF, statuses
from tracebed.converters.formats.tools.swf_columns import EPOCH
from tracebed.converters.log import Log, make_log
from tracebed.converters.workload import FloatArray

FIELDS = (
    *("job", "components", "name", "submit", "wait", "limit", "components_at_submit", "component"),
    *("component_name", "component_wait", "run", "status", "executable", "partitions", "nodes", "processes"),
    *("threads", "memory", "frequency", "reference_power", "nam", "local_storage", "network", "constraint"),
    *("hint", "licenses", "module", "partition", "nodes_alloc", "processes_alloc", "threads_alloc"),
    *("memory_alloc", "frequency_alloc", "average_power", "nam_alloc", "storage_alloc", "network_alloc"),
    *("licenses_alloc", "after", "dependency", "think", "api_call_time"),
)
"""Up to `licenses` what was asked for, from `module` on what was got."""
FEWEST = len(FIELDS) - 1
OTHERS = (
    *("name", "component_name", "executable", "memory", "frequency", "reference_power", "nam", "local_storage"),
    *("network", "constraint", "hint", "licenses", "module", "average_power", "dependency", "api_call_time"),
)
"""Kept on request, as they are."""
STATES = {str(code): word for code, word in SWF.items() if word}


def recognises(file: Input) -> bool:
    """Tell a component by its 41 or 42 fields, the first two numbers."""
    fields = _split(first_line(file, b";#"))
    return FEWEST <= len(fields) <= len(FIELDS) and all(re.fullmatch(r"\d+", text) for text in fields[:2])


def read_log(
    files: Sequence[Input], *, keep_extra: bool = False, keep_names: bool = False, time_zone: str | None = None
) -> Log:
    """Read one file or several.

    Args:
        files: text.
        keep_extra: keep names, memory, frequency, power, network, licences, ... as `extra_...`.
        keep_names: for likeness with other readers: the format names no users.
        time_zone: of the machine's clock.

    Raises:
        InputError: a line has other than 41 or 42 fields, or a word stands where a number must.
    """
    f = read_fields(files, FIELDS, _split, ";#", FEWEST)
    submit, run, wait = f.known("submit"), f.known("run"), f.known("component_wait")
    wait = np.where(np.isnan(wait), f.known("wait"), wait)
    start = submit + wait
    nodes, cores = _size(f, "")
    nodes_got, cores_got = _size(f, "_alloc")
    unasked = ~(nodes > 0)
    nodes, cores = np.where(unasked, nodes_got, nodes), np.where(unasked, cores_got, cores)
    allocated = nodes_got * np.fmax(cores_got, 1.0)
    limit = f.known("limit")
    ids, several = _component_ids(f)
    after, left_out = _after(f, ids, start + run)
    extras = {f"extra_{name}": f.texts(name) for name in OTHERS} if keep_extra else {}
    return make_log(
        files,
        "mwf",
        {
            "job_id": ids,
            "submit_time": submit,
            "run_time": run,
            "time_limit": np.where(limit > 0, limit, np.nan),
            "nodes": nodes,
            "cores_per_node": cores,
            "partition": f.texts("partitions").where(f.texts("partitions") != "", f.texts("partition")),
            "status": statuses(f.labels("status"), STATES),
            "after": after,
            "think_time": np.where(after != "", f.known("think"), np.nan),
            "logged_start": start,
            "logged_end": start + run,
            "extra_job": f.texts("job").where(several, ""),
            "extra_component": f.texts("component").where(several, ""),
            "extra_allocated": np.where(allocated != nodes * np.fmax(cores, 1.0), allocated, np.nan),
        },
        time_zone=time_zone,
        parameters={"time_zone": time_zone, "keep_extra": keep_extra, "keep_names": keep_names},
        defects={"components of jobs with several, taken as jobs that need not start together": several.to_numpy()},
        counts=left_out,
        place=f.place,
        keep_names=keep_names,
        extras=extras,
        since_1970=bool(np.nanmin(submit, initial=np.inf) >= EPOCH),
    )


def _split(line: str) -> list[str]:
    return [text.strip() for text in line.split(";")]


def _size(f: Fields, suffix: str) -> tuple[FloatArray, FloatArray]:
    """Return nodes, and cores on each: processes times threads, each 1 where not known."""
    processes, threads = f.known(f"processes{suffix}"), f.known(f"threads{suffix}")
    known = (processes > 0) | (threads > 0)
    cores = np.where(processes > 0, processes, 1.0) * np.where(threads > 0, threads, 1.0)
    return f.known(f"nodes{suffix}"), np.where(known, cores, np.nan)


def _component_ids(f: Fields) -> tuple[pd.Series[str], pd.Series[bool]]:
    """Return the name of each component as a job, and whether its job has several."""
    job = f.texts("job")
    several = job.duplicated(keep=False) & (job != "")
    component = f.texts("component").where(lambda text: text != "", job.groupby(job).cumcount().astype("str"))
    return job.where(~several, job + "+" + component), several


def _after(f: Fields, ids: pd.Series[str], end: FloatArray) -> tuple[pd.Series[str], dict[str, int]]:
    """Return whom each component waits for: the first job of its list, there the component that ends last."""
    last: dict[str, int] = {}
    for row, job in enumerate(f.texts("job")):
        if job not in last or not end[row] < end[last[job]]:
            last[job] = row
    more = unknown = 0
    after = []
    for job, text in zip(f.texts("job"), f.texts("after"), strict=True):
        wanted = [name for name in re.split(r"[,\s:]+", text) if name and name != "-1"]
        first = wanted[0] if wanted and wanted[0] in last and wanted[0] != job else ""
        unknown += bool(wanted) and not first
        more += max(0, len(wanted) - 1)
        after.append(ids[last[first]] if first else "")
    counts = {
        "further jobs that a job comes after, left out: a workload has one": more,
        "jobs after one that the file has not, taken as after none": unknown,
    }
    return pd.Series(after, dtype="str"), counts


FORMAT = Format(
    "mwf",
    "Modular Workload Format",
    recognises,
    marks=Marks.LINES,
    suffixes=(".mwf",),
    read_log=read_log,
)
