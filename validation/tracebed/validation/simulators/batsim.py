"""Output of Batsim: `jobs.csv` of any version, with the energy and the power states of the machines, and checked
against the schedule and the machine states in the same folder.

Format: the documentation of Batsim (batsim.readthedocs.io). Columns are found by name: the versions of 2016 have
`jobID` and processors in place of resources, versions before 1.2 have `hacky_job_id`, version 4 has `final_state` and
`metadata`, version 5 has `profile`, too. Jobs that never started have -1 or no value as their times.

`pstate_changes.csv` has a row for each change of the power state of machines: -2 begins to switch them off, -1 to
switch them on, and a number from 0 on is the state that they have from then on. `consumed_energy.csv` has the energy of
all machines until an instant, J.

`tracebed export --to evalys` writes the same columns, and a row for each allocation of a job: `17`, `17#2`, ...
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.provenance import System
from tracebed.converters.workload import MAX_SIZE, IntArray, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.input_files import parse_json
from tracebed.machine.nodes import MOST_NODES, nodes_of
from tracebed.machine.power import PowerState
from tracebed.orchestrator.run import Run
from tracebed.validation.simulators.assembly import run_of
from tracebed.validation.simulators.observed import NodePeriods, applied_resizes
from tracebed.validation.simulators.simulator import ExternalSimulator, ReadOptions
from tracebed.validation.simulators.table import Table, intervals, names_of, observed_of, read_table

COLUMNS = {
    "job_id": "job_id",
    "submit": "submission_time",
    "start": "starting_time",
    "end": "finish_time",
    "run": "execution_time",
    "wait": "waiting_time",
    "nodes": "requested_number_of_resources",
    "time_limit": "requested_time",
    "held": "allocated_resources",
}
"""Field -> column of `jobs.csv`."""
OLD_COLUMNS = {
    "job_id": "jobID",
    "nodes": "requested_number_of_processors",
    "held": "allocated_processors",
}
"""Field -> column of `jobs.csv` of the versions of 2016, where it has another name."""
MARKS = ("job_id", "submit", "nodes", "run")  # fields by whose columns the file is recognized
FILES = ("machine_states", "schedule", "consumed_energy", "pstate_changes")
STATES = ("nb_sleeping", "nb_switching_on", "nb_switching_off", "nb_idle", "nb_computing")
"""Columns of the machine states whose sum is the number of machines."""
SWITCHES = {-2: PowerState.SHUTDOWN, -1: PowerState.BOOT}
"""State in `pstate_changes.csv` -> that of the nodes until the next row."""
SETTLED = {PowerState.SHUTDOWN: PowerState.OFF, PowerState.BOOT: PowerState.ON}
AGREES = 0.001  # largest relative difference from the figures that Batsim prints: machine states have six digits


def recognizes(path: Path) -> bool:
    """Return whether a file is a `jobs.csv` of Batsim, or a folder has one."""
    return _jobs_file(path) is not None


def _jobs_file(path: Path) -> Path | None:
    files = [path] if path.is_file() else sorted(path.glob("*jobs.csv*")) if path.is_dir() else []
    for file in files:
        if file.stat().st_size and set(MARKS) <= _fields(Input.at(file).columns).keys():
            return file
    return None


def _fields(names: Sequence[str]) -> dict[str, str]:
    """Return the column of each field, of the column names of a file in the spelling of the file or in lower case."""
    known = {spelt: field for field, name in [*COLUMNS.items(), *OLD_COLUMNS.items()] for spelt in (name, name.lower())}
    return {known[name]: name for name in names if name in known}


def read(path: Path, workload: Workload | None, options: ReadOptions) -> Run:
    """Read `jobs.csv`, or a folder with it, as a run."""
    file = _jobs_file(path)
    if file is None:
        hint = "give the file jobs.csv of Batsim, or the folder with it"
        raise InputError("is not an output of Batsim", where=str(path), hint=hint)
    spelt = names_of(Input.at(file))
    columns = _fields(spelt)
    columns["state"] = "final_state" if "final_state" in spelt else "success"
    table = read_table(file, replace(options, columns=columns | dict(options.columns)))
    table = replace(table, jobs=table.jobs.assign(job_id=_ids(table.jobs["job_id"])))
    if table.jobs["job_id"].duplicated().any():
        names = sorted({row.get("workload_name") or "" for row in _rows(file)})
        if len(names) > 1 and "workload_name" not in options.rows:
            what = f"has the jobs of {len(names)} workloads ({', '.join(names[:5])}) with the same ids"
            raise InputError(what, where=str(file), hint=f"choose one: import --only workload_name={names[0]}")
    beside = _CompanionFiles(file)
    machines = beside.machines()
    whole, courses = _joined(table)
    samples = beside.samples()
    cores = options.cores_per_node or (workload.provenance.system.cores_per_node if workload else None) or 1
    observed = observed_of(
        whole,
        "batsim",
        program="batsim",
        version=beside.version(spelt),
        nodes=nodes_of(System(options.nodes or machines, cores)) if options.nodes or machines else None,
        samples=samples,
        facts=beside.energy_facts(),
        warnings=[*beside.contradictions(table), *beside.sleep_notes(samples), *courses.pop("warnings", ())],
        **courses,
    )
    return run_of(observed, workload, options)


def _ids(ids: pd.Series[str]) -> pd.Series[str]:
    """Return job ids without the name of their workload, which precedes a `!`."""
    return ids.str.rpartition("!")[2] if len(ids) else ids


def _joined(table: Table) -> tuple[Table, dict[str, Any]]:
    """Join the rows of a job with several allocations: `17`, `17#2`, ...; also return attributes of `Observed`."""
    # Such a row is submitted when it starts. Batsim gives similar names to jobs that it submits again, but these are
    # submitted later than they start, or have the number 1.
    jobs = table.jobs
    if table.held is None or not {"submit", "start", "end"} <= set(jobs):
        return table, {}
    none = applied_resizes(pd.DataFrame(columns=["row", "nodes_from", "nodes_to"], dtype=np.int64))
    submit, start, end = (jobs[name].to_numpy(dtype=np.float64) for name in ("submit", "start", "end"))
    parts = jobs["job_id"].str.extract(r"\A(.+)#(\d{1,9})\Z")
    later = (parts[1].astype(float) > 1) & parts[0].isin(jobs["job_id"]) & (submit == start)
    if not later.any():
        return table, {"reconfigurations": none}
    job, _ = pd.factorize(parts[0].where(later, jobs["job_id"]))
    order = np.lexsort((start, job))
    again = (job[order][1:] == job[order][:-1]) & (start[order][1:] > end[order][:-1])
    # A job that was started again holds no nodes between two rows: its run begins after the last such gap.
    after = pd.Series(np.append(False, again)[np.argsort(order)].astype(np.int64))
    run = after.iloc[order].groupby(job[order]).cumsum().sort_index().to_numpy()
    last = run == pd.Series(run).groupby(job).transform("max").to_numpy()
    rows = np.flatnonzero(last)
    first = np.flatnonzero(~pd.Series(job).duplicated())
    begins = pd.Series(start[rows]).groupby(job[rows]).min().to_numpy()
    ends = pd.Series(end[rows]).groupby(job[rows]).max().to_numpy()
    whole = jobs.iloc[first].reset_index(drop=True)
    waits = begins - whole["submit"] if "wait" in whole else None
    whole = whole.assign(start=begins, end=ends, run=ends - begins, **({} if waits is None else {"wait": waits}))
    held = _held(table, rows, job[rows])
    changes = held.resizes(begins, ends)
    lost = int((~last).sum())
    notes = [f"{lost:,} rows are allocations before a restart of the job, and are ignored"] if lost else []
    return replace(table, jobs=whole, held=None, kept=table.kept[first]), {
        "allocations": held.allocations(),
        "reconfigurations": applied_resizes(changes, applied=changes["time"].to_numpy(dtype=np.float64)),
        "warnings": notes,
    }


def _held(table: Table, rows: IntArray, job: IntArray) -> NodePeriods:
    """Return the periods in which jobs hold nodes, of rows of the table with the number of their job."""
    assert table.held is not None
    periods = []
    for row, owner in zip(rows.tolist(), job.tolist(), strict=True):
        span = (table.jobs["start"].iloc[row], table.jobs["end"].iloc[row])
        for low, high in intervals(table.held.iloc[row], table, row):
            periods += [(owner, node, *span) for node in range(low, high + 1)]
    owner, node, start, end = (np.array(values) for values in zip(*sorted(periods), strict=True))
    goes_on = (owner[1:] == owner[:-1]) & (node[1:] == node[:-1]) & (start[1:] == end[:-1])
    begins, stops = np.append(True, ~goes_on), np.append(~goes_on, True)
    return NodePeriods(owner[begins], node[begins], start[begins], end[stops])


class _CompanionFiles:
    """The other files of a simulation, with the same prefix as `jobs.csv`."""

    def __init__(self, jobs: Path) -> None:
        head = jobs.name.partition("jobs.csv")[0]
        self.files = {
            kind: file
            for kind in (*(f"{name}.csv" for name in FILES), "schedule.json")
            for file in (jobs.parent / f"{head}{kind}", jobs.parent / f"{head}{kind}.gz")
            if file.is_file()
        }

    def version(self, spelt: list[str]) -> str:
        """Return the version of Batsim, as precisely as the files state it."""
        if stated := self._schedule().get("batsim_version"):
            return str(stated)
        if {"hacky_job_id", OLD_COLUMNS["job_id"]} & set(spelt):
            return "before 1.2"
        return "5" if "schedule.json" in self.files else "4" if "schedule.csv" in self.files else ""

    def _schedule(self) -> dict[str, Any]:
        """Return the figures of the schedule; empty without it."""
        if file := self.files.get("schedule.json"):
            figures = parse_json(Input.at(file).text.decode(errors="replace"), where=str(file), hint="run Batsim again")
            return figures if isinstance(figures, dict) else {}
        if file := self.files.get("schedule.csv"):
            return dict(next(_rows(file), {}))
        return {}

    def machines(self) -> int | None:
        """Return the number of machines, or None without machine states."""
        file = self.files.get("machine_states.csv")
        first = next(_rows(file), None) if file else None
        if first is None:
            return None
        machines = sum(_number(first, name, file) for name in STATES)
        if not 0 <= machines <= MAX_SIZE:
            what = f"the number of machines is {machines:g}, not from 0 to {MAX_SIZE:,}"
            raise InputError(what, where=str(file), hint="run Batsim again")
        return int(machines) or None

    def energy_facts(self) -> dict[str, Any]:
        """Return the energy of the simulation, J, and whether `samples` have the power of all machines."""
        facts: dict[str, Any] = {"power_of_platform": True} if "consumed_energy.csv" in self.files else {}
        if "consumed_joules" in (schedule := self._schedule()):
            file = self.files.get("schedule.json") or self.files.get("schedule.csv")
            if (energy := _number(schedule, "consumed_joules", file)) > 0:  # else Batsim did not count it
                facts["energy_j"] = energy
        return facts

    def samples(self) -> pd.DataFrame | None:
        """Return the power of all machines, as that of node 0, and the power states of each; None without files."""
        tables = [*self._power(), *self._states()]
        return pd.concat(tables, ignore_index=True) if tables else None

    def _power(self) -> Iterator[pd.DataFrame]:
        """Yield the mean power between the instants at which the energy of all machines is written."""
        file = self.files.get("consumed_energy.csv")
        if file is None:
            return
        rows = [(0.0, 0.0), *((_number(row, "time", file), _number(row, "energy", file)) for row in _rows(file))]
        time, energy = (np.array(column) for column in zip(*rows, strict=True))
        if (np.diff(time) < 0).any():
            raise InputError("the times of its rows do not ascend", where=str(file), hint="run Batsim again")
        last = np.append(np.diff(time) > 0, True)  # the last of several rows of one instant
        time, energy = time[last], energy[last]
        power = np.append(np.nan, np.diff(energy) / np.diff(time))
        if (power < 0).any():
            raise InputError("the energy of its rows does not ascend", where=str(file), hint="run Batsim again")
        yield pd.DataFrame({"time": time, "node": 0, "power_w": power, "power_state": ""})

    def _states(self) -> Iterator[pd.DataFrame]:
        """Yield the states of the power of each machine."""
        file = self.files.get("pstate_changes.csv")
        if file is None:
            return
        state: dict[int, PowerState] = {}
        changes: list[tuple[float, int, str]] = []
        for row in _rows(file):
            time, code = _number(row, "time", file), _number(row, "new_pstate", file)
            for machine in _machines(row.get("machine_id") or "", file):
                before = state.get(machine, PowerState.ON)
                after = SWITCHES.get(int(code)) or SETTLED.get(before, before)
                if after != before:
                    changes.append((time, machine, after.value))
                    state[machine] = after
        if changes:
            yield pd.DataFrame(changes, columns=["time", "node", "power_state"]).assign(power_w=np.nan)

    def sleep_notes(self, samples: pd.DataFrame | None) -> Iterator[str]:
        """Yield a sentence if machines are switched off."""
        states = samples[samples["power_state"] != ""] if samples is not None else None
        if states is not None and len(states):
            nodes, boots = states["node"].nunique(), int((states["power_state"] == PowerState.BOOT).sum())
            yield f"{nodes:,} nodes are switched off at times, with {boots:,} boots: jobs may wait for them"
        elif (file := self.files.get("machine_states.csv")) and any(
            _number(row, name, file) for row in _rows(file) for name in STATES[:3]
        ):
            yield f"nodes are switched off at times by {file.name}; without pstate_changes.csv, it is unknown which"

    def contradictions(self, table: Table) -> Iterator[str]:
        """Yield a sentence for each value of the other files that contradicts `jobs.csv`."""
        start, end, nodes, wait = (
            table.jobs[name].to_numpy(dtype=np.float64) if name in table.jobs else np.full(len(table.jobs), np.nan)
            for name in ("start", "end", "nodes", "wait")
        )
        ran = np.isfinite(start) & np.isfinite(end)
        if ran.any() and "mean_waiting_time" in (schedule := self._schedule()):  # without jobs, Batsim divides by 0
            file = self.files.get("schedule.json") or self.files.get("schedule.csv")
            theirs, ours = _number(schedule, "mean_waiting_time", file), float(np.nanmean(wait))
            if abs(theirs - ours) > AGREES * max(abs(theirs), 1.0):
                yield f"the schedule of Batsim has a mean waiting time of {theirs:g} s, jobs.csv of {ours:g} s"
        if file := self.files.get("machine_states.csv"):
            rows = list(_rows(file))
            times = np.array([_number(row, "time", file) for row in rows])
            busy = np.array([_number(row, "nb_computing", file) for row in rows])
            theirs, ours = float(busy[:-1] @ np.diff(times)), float(((end - start) * nodes)[ran].sum())
            if abs(theirs - ours) > AGREES * max(ours, 1.0):
                yield f"machines compute for {theirs:g} node-seconds in the machine states, for {ours:g} in jobs.csv"


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a small CSV file. Raises InputError if the file is not CSV."""
    try:
        yield from csv.DictReader(io.StringIO(Input.at(path).data.decode("utf-8", "replace"), newline=""))
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=str(path), hint="run Batsim again") from None


def _machines(text: str, path: Path) -> Iterator[int]:
    """Yield the numbers of a set of machines: `0-3 7`."""
    for part in text.split():
        found = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part)
        if found is None or not int(found[1]) <= int(found[2] or found[1]) < MOST_NODES:
            what = f"machine_id is {text[:40]!r}, not a set of machines such as 0-3 7"
            raise InputError(what, where=str(path), hint="run Batsim again")
        yield from range(int(found[1]), int(found[2] or found[1]) + 1)


def _number(row: Mapping[str, Any], name: str, path: Path | None) -> float:
    with contextlib.suppress(KeyError, ValueError, TypeError, OverflowError):
        if math.isfinite(value := float(row[name])):
            return value
    raise InputError(f"{name} is missing or not a finite number", where=str(path), hint="run Batsim again")


SIMULATOR = ExternalSimulator(name="batsim", title="output of Batsim: jobs.csv", read=read, recognizes=recognizes)
"""Output of Batsim (all versions): jobs.csv, or the folder with it."""
