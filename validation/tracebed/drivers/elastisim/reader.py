"""Output of ElastiSim as a run: job_statistics.csv, and where they are present node_utilization.csv and task_times.csv.

The stages of launches and reconfigurations come from task_times.csv and the application models of the jobs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import MAX_EXACT, FloatArray, IntArray, Workload
from tracebed.drivers.elastisim import outputs
from tracebed.ground.errors import InputError
from tracebed.ground.input_files import MAX_RUN_JSON, read_json, read_text
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run
from tracebed.validation.simulators.assembly import run_of
from tracebed.validation.simulators.observed import NodePeriods, Observed, applied_resizes
from tracebed.validation.simulators.pairing import read_mapping
from tracebed.validation.simulators.simulator import ReadOptions

IDLE = "none"  # text for a node without jobs
MAPPING = "mapping.csv"  # file of the export: id in ElastiSim, id in the workload
ROUNDING_S = 1e-6  # a wait shorter than this is 0, s: ElastiSim prints waits of -1e-12 s
KINDS = {"adaptive": "malleable"}  # type of ElastiSim -> kind, where they differ
MARKS = {"id", "type", "submit time", "wait time", "makespan", "turnaround time", "status"}
"""Columns, in lower case, by which job_statistics.csv is recognized."""

LAUNCH = ("on_init",)
RECONFIGURATION = ("on_reconfiguration", "on_expansion")  # phases of an application model


def recognizes(path: Path) -> bool:
    """Return whether a file is a job_statistics.csv of ElastiSim, or a folder has one."""
    file = path / "job_statistics.csv" if path.is_dir() else path
    if not file.is_file() or not file.stat().st_size:
        return False
    columns = set(Input.at(file).columns)
    return columns >= MARKS and "nodes" not in columns  # a log in the form of ElastiSim's table has the sizes, too


def read(path: Path, workload: Workload | None, options: ReadOptions) -> Run:
    """Read the output of a simulation: job_statistics.csv, or its folder.

    ElastiSim numbers the jobs by submit time. Number k is the k-th job of the workload, or the k-th that has a run time
    and nodes, unless `options.mapping`, or mapping.csv beside the output, says otherwise. Files beside it with the
    names that ElastiSim uses are read, too: node_utilization.csv for the nodes of the jobs and their resizes,
    task_times.csv for their stages.
    """
    file = path / outputs.STATISTICS if path.is_dir() else path
    table = outputs.statistics(file)
    ids = _ids(table, file, workload, options)
    exact, offset = _submits(table, ids, workload, file)
    wait = table["wait"].to_numpy()
    start = exact + np.where(np.abs(wait) < ROUNDING_S, 0.0, wait)
    end = start + table["makespan"].to_numpy()
    jobs = pd.DataFrame(
        {
            "job_id": ids,
            "submit": exact,
            "start": start,
            "end": end,
            "state": np.where(np.isnan(start), "cancelled", table["status"]),
            "kind": table["type"].replace(KINDS),
        }
    )
    observed = Observed(
        jobs=jobs,
        source=Input.at(file).source,
        where=str(file),
        place=lambda row: f"{file}, job {row}",
        format="elastisim",
        program="elastisim",
        resolution_s=_resolution(table["wait"], table["makespan"]),
        match="id",
        facts={"files": [outputs.STATISTICS]},
    )
    beside = file.with_name(file.name.replace("job_statistics", "node_utilization"))
    if beside != file and beside.is_file():
        cores = options.cores_per_node or (workload.provenance.system.cores_per_node if workload else None) or 1
        observed = _with_nodes(observed, table, beside, cores, offset)
    run = run_of(observed, workload, replace(options, mapping=None, match="id"))
    launched = Stages(file.parent).launched(len(table), offset)
    run.jobs["launched"] = run.jobs["job_id"].map(dict(zip(ids, np.minimum(launched, end), strict=True)))
    return run


def _ids(table: pd.DataFrame, file: Path, workload: Workload | None, options: ReadOptions) -> list[str]:
    """Return the id of each job: that of the workload, or else its number."""
    numbers = [str(number) for number in table["id"]]
    mapping = options.mapping or file.with_name(MAPPING)
    if options.mapping or mapping.is_file():
        names = read_mapping(mapping) if options.mapping else _exported(mapping)
        if lacking := [number for number in numbers if number not in names]:
            raise InputError(
                f"lacks job {lacking[0]} of {file.name}", where=str(mapping), hint="a line per job: id, job_id"
            )
        return [names[number] for number in numbers]
    if workload is None:
        return numbers
    if options.match == "id":
        return numbers
    runnable, _ = workload.runnable()
    for jobs in (runnable, workload):  # the export leaves out jobs without run time or nodes
        if len(jobs) == len(table):
            return [str(name) for name in jobs.column("job_id")]
    what = f"has {len(table):,} jobs, the workload has {len(runnable):,} with a run time and nodes"
    raise InputError(what, where=str(file), hint="check --workload, or give the ids by --match FILE")


def _exported(path: Path) -> dict[str, str]:
    """Return the content of the mapping of an export: number in ElastiSim -> job id."""
    again = "export the workload again"
    text = read_text(path, "mapping", hint=again, most=MAX_RUN_JSON)
    try:
        return {row[0]: row[1] for row in csv.reader(text.splitlines(keepends=True)) if len(row) == 2}
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=str(path), hint=again) from None


def _submits(table: pd.DataFrame, ids: list[str], workload: Workload | None, file: Path) -> tuple[FloatArray, float]:
    """Return the exact submit times, s, and the exact time of ElastiSim's time 0, after a check of the jobs."""
    printed = table["submit"].to_numpy()
    if workload is None:
        return printed, 0.0
    row = pd.Index(workload.column("job_id").astype(str)).get_indexer(pd.Index(ids))
    if (row < 0).any():
        strange = ids[int((row < 0).argmax())]
        hint = "check --workload, or give the ids by --match FILE"
        raise InputError(f"job {strange[:40]!r} is not in the workload", where=str(file), hint=hint)
    exact = workload.floats("submit_time")[row]
    tolerance = outputs.unit(printed) + ROUNDING_S
    for offset in (0.0, float(exact.min() - printed.min())):  # the export begins with the first submission
        off = np.abs(printed + offset - exact) > tolerance
        if not off.any():
            return exact, offset
    at = int(off.argmax())
    what = f"job {at} was submitted at {printed[at]:g} s, but job {ids[at][:40]!r} of the workload at {exact[at]:.9g} s"
    raise InputError(what, where=str(file), hint="check --workload, or give the ids by --match FILE")


def _resolution(*durations: pd.Series[float]) -> float:
    """Return the resolution of times that are sums of two printed durations, s."""
    return 2.0 * max(float(outputs.unit(np.asarray(values, dtype=np.float64)).max()) for values in durations)


def _with_nodes(observed: Observed, table: pd.DataFrame, path: Path, cores: int, offset: float) -> Observed:
    """Return the jobs with their nodes of `cores` cores, their resizes and the stages of these."""
    rows = outputs.utilization(path)
    names, held = _held_nodes(rows, str(path))
    hint = "the files are of different simulations, or one is cut off"
    if len(held.job) and held.job.max() >= len(table):
        raise InputError(f"has job {held.job.max()}, which is not in the statistics", where=str(path), hint=hint)
    start, end = observed.floats("start"), observed.floats("end")
    printed = table["start"].to_numpy(), table["end"].to_numpy()
    held = _within(held, printed, (start, end), offset)
    size = _sizes(held, start)
    without = (end > start) & (size == 0)
    if without.any():
        raise InputError(f"has no nodes of job {int(without.argmax())}", where=str(path), hint=hint)
    changes = held.resizes(start, end)
    applied = Stages(path.parent).applied(changes, offset)
    # ElastiSim does not print when the scheduler decided.
    decided = changes["time"].to_numpy(dtype=np.float64)
    reconfigurations = applied_resizes(changes, decided=decided, applied=applied, ended=applied)
    resolution = observed.resolution
    if len(changes):
        resolution = max(resolution, float(outputs.unit(changes["time"].to_numpy() - offset).max()))
    return replace(
        observed,
        jobs=observed.jobs.assign(nodes=np.where(size > 0, size, np.nan)),
        nodes=[NodeFacts(name, cores) for name in names],
        allocations=held.allocations(),
        reconfigurations=reconfigurations,
        resolution_s=resolution,
        facts={"files": [outputs.STATISTICS, outputs.UTILIZATION]},
    )


class Stages:
    """The ends of the tasks before the work of each job and of its reconfigurations, by names no other phase has."""

    def __init__(self, folder: Path) -> None:
        """Read task_times.csv and the application models in `folder`. Without them, nothing is known."""
        work, launch, resize = (set[str](), set[str](), set[str]())
        for model in _models(folder):
            launch |= _names(model, LAUNCH)
            resize |= _names(model, RECONFIGURATION)
            work |= _names(model, ("phases",))
        path = folder / outputs.TASKS
        self._tasks = outputs.tasks(path) if path.is_file() and launch | resize else None
        self._launch, self._resize = launch - work, resize - work

    def launched(self, count: int, offset: float) -> FloatArray:
        """Return the end of the last task before the work of each job, s, shape (count,); NaN: unknown."""
        ends = np.full(count, np.nan)
        for job, time in self._of(self._launch).groupby("id")["time"].max().items():
            if 0 <= int(str(job)) < count:
                ends[int(str(job))] = time + offset
        return ends

    def applied(self, resizes: pd.DataFrame, offset: float) -> FloatArray:
        """Return the end of the tasks of each reconfiguration, s; without tasks the time of the node change."""
        tasks = self._of(self._resize)
        of_job = {int(str(job)): np.sort(times.to_numpy()) + offset for job, times in tasks.groupby("id")["time"]}
        found = resizes["time"].to_numpy(dtype=np.float64).copy()
        rows = resizes["row"].tolist()
        for at, (job, time) in enumerate(zip(rows, found.tolist(), strict=True)):
            following = found[at + 1] if at + 1 < len(rows) and rows[at + 1] == job else np.inf
            ends = of_job.get(job, np.empty(0))
            ends = ends[(ends >= time) & (ends <= following)]
            found[at] = ends.max(initial=time)
        return found

    def _of(self, names: set[str]) -> pd.DataFrame:
        if self._tasks is None:
            return pd.DataFrame({"id": np.empty(0, np.int64), "time": np.empty(0)})
        return self._tasks[self._tasks["task"].isin(names)]


def _models(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the application models of jobs.json in `folder`."""
    jobs = _dicts(_json(folder / "jobs.json").get("jobs"))
    names = {str(job.get("application_model")) for job in jobs}
    for name in sorted(names):
        yield _json(folder / name)


def _json(path: Path) -> dict[str, Any]:
    """Return the object in a file; empty if there is no such file."""
    try:
        content = read_json(path, "file of ElastiSim", most=MAX_RUN_JSON)
    except InputError:
        return {}
    return content if isinstance(content, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; empty if the value is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _names(model: dict[str, Any], phases: tuple[str, ...]) -> set[str]:
    """Return the names of the tasks in phases of an application model."""
    names = set()
    for name in phases:
        value = model.get(name)
        for phase in _dicts(value if isinstance(value, list) else [value]):
            names |= {str(task.get("name")) for task in _dicts(phase.get("tasks"))}
    return names


def _held_nodes(table: pd.DataFrame, where: str) -> tuple[list[str], NodePeriods]:
    """Return the names of the nodes, in the order of the file, and the periods in which jobs hold them."""
    code, names = pd.factorize(table["node"])
    order = np.argsort(code, kind="stable")
    node, time = code[order], table["time"].to_numpy()[order]
    last = np.append(node[1:] != node[:-1], True)
    until = np.where(last, np.nan, np.append(time[1:], np.nan))
    exploded = table["jobs"].iloc[order].reset_index(drop=True).str.split(";").explode()
    exploded = exploded[exploded != IDLE]
    ids = pd.to_numeric(exploded, errors="coerce").to_numpy(dtype=np.float64)
    bad = ~((ids >= 0) & (ids <= MAX_EXACT) & (ids == np.floor(ids)))
    if bad.any():
        text = exploded.iloc[int(bad.argmax())]
        raise InputError(f"running jobs are {text[:40]!r}", where=where, hint="job numbers, separated by semicolons")
    job, row = ids.astype(np.int64), exploded.index.to_numpy()
    by_job = np.lexsort((row, job))
    job, row = job[by_job], row[by_job]
    # A job keeps a node if the next row of the same node lists the job again.
    goes_on = (job[1:] == job[:-1]) & (row[1:] == row[:-1] + 1) & (node[row[1:]] == node[row[:-1]])
    begins, ends = np.append(True, ~goes_on)[: len(job)], np.append(~goes_on, True)[: len(job)]
    held = NodePeriods(job[begins], node[row[begins]], time[row[begins]], until[row[ends]])
    return list(map(str, names)), held


def _within(
    held: NodePeriods, printed: tuple[FloatArray, FloatArray], exact: tuple[FloatArray, FloatArray], offset: float
) -> NodePeriods:
    """Return the periods with the exact starts and ends of their jobs, on the clock of the exact times."""
    begin, until = (values[held.job] for values in exact)
    first, last = (values[held.job] for values in printed)
    start = np.where(held.start == first, begin, np.clip(held.start + offset, begin, until))
    end = np.where(held.end == last, until, np.clip(held.end + offset, begin, until))
    return held._replace(start=start, end=np.where(np.isnan(held.end), until, np.maximum(start, end)))


def _sizes(held: NodePeriods, start: FloatArray) -> IntArray:
    """Return the number of nodes with which each job starts, shape (jobs,); 0: it holds none."""
    return np.bincount(held.job[held.start == start[held.job]], minlength=len(start))
