"""The reader of PBS accounting as it was before it read columns: a record is an object, made of its line.

It is the slow reference of `tracebed.converters.formats.pbs`: the same workloads, warnings and errors.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.amounts import span
from tracebed.converters.formats.tools.columns import ASSUMED_UTC, utc
from tracebed.converters.formats.tools.files import Input, bad_line
from tracebed.converters.formats.tools.gres import UNEVEN, gpus_on_nodes
from tracebed.converters.formats.tools.states import RecordState, pbs_exit
from tracebed.converters.log import Log, make_log
from tracebed.converters.workload import MAX_SIZE, System
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState

LINE = re.compile(r"(\d\d/\d\d/\d{4}) (\d\d:\d\d:\d\d);(\w);([^;]*);(.*)", re.ASCII | re.DOTALL)
BETWEEN = re.compile(r" +(?=[A-Za-z_][\w.]*=)")
NUMBER = re.compile(r"-?\d{1,15}(\.\d*)?$")
AMOUNT = re.compile(r"(\d{1,18})([kmgtp]?)([bw]?)$", re.IGNORECASE)
SLOTS = re.compile(r"(\d{1,9})(?:-(\d{1,9})|\*(\d{1,9}))?$")
NCPUS = re.compile(r"[:+(]ncpus=(\d{1,9})(?=[:+)]|$)")
SPELLINGS = (("ncpus", "ppn"), ("ngpus", "gpus"))
"""Names of cores and GPUs in a request, of PBS Pro and of Torque."""
DEPENDENCIES = ("after", "afterok", "afternotok", "afterany")
"""Kinds of dependencies that PBS and Slurm have alike."""
MEMORY = ("mem", "pmem")
"""Memory of a job, and of a process."""
RESOURCES = ("nodes", "select", "nodect", "ncpus", "ngpus", "walltime", *MEMORY)
USED = {
    *("user", "group", "account", "queue", "ctime", "qtime", "etime", "start", "end", "Exit_status"),
    *("exec_host", "exec_vnode", "depend"),
    *(f"Resource_List.{name}" for name in RESOURCES),
}
"""Keys of a record that are read; other keys are kept by `keep_extra`."""


@dataclass
class PbsRecord:
    """An accounting record: its job, its values, its place in the file, and the derived state."""

    job: str
    stamp: float
    """Timestamp of the line, s since 1970 in the server's time zone."""
    values: dict[str, str]
    place: str
    deleted: bool = False
    status: str = ""
    ended: float = math.nan
    """End in s since 1970 in the server's time zone, if the record has no end."""

    def amount(self, name: str, read: Callable[[str], float | None], what: str) -> float:
        """Return a value as `read` parses it (None: it is not `what`), NaN if it is missing or 0 (unknown)."""
        text = self.values.get(name)
        if not text:
            return math.nan
        value = read(text)
        if value is None:
            raise self.error(name, what)
        return value or math.nan

    def number(self, name: str) -> float:
        """Return a value as a number, NaN if it is missing or 0 (unknown)."""
        return self.amount(name, _number, "a number")

    def error(self, name: str, what: str) -> InputError:
        """Return the error for an invalid value."""
        return bad_line(f"{name}={self.values[name][:40]} is not {what}", self.place)

    def size(self) -> tuple[int, int]:
        """Return the allocated, or else the requested, nodes and cores; 0 nodes if unknown."""
        if self.values.get("exec_host"):
            nodes, cores = self.allocated()
        elif requests := [name for name in ("Resource_List.select", "Resource_List.nodes") if name in self.values]:
            nodes, cores, _ = self.requested(requests[0])
        else:
            known = (self.number("Resource_List.nodect"), self.number("Resource_List.ncpus"))
            nodes, cores = (int(value) if value > 0 else 0 for value in known)
        if nodes > MAX_SIZE or cores > MAX_SIZE:
            raise bad_line(f"invalid size of {nodes} nodes, {cores} cores", self.place)
        return nodes, cores

    def allocated(self) -> tuple[int, int]:
        """Return the nodes and cores of `exec_host`, such as `n1/0-15+n2/0,2-4+n3/0*8`.

        For a chunk over several vnodes of a host, PBS Pro writes `n1/0*0`: the cores are those of `exec_vnode`, as they
        are of a host without slots.
        """
        hosts, cores, elsewhere = set(), 0, False
        for piece in self.values["exec_host"].split("+"):
            host, _, slots = piece.partition("/")
            hosts.add(host)
            for part in slots.split(",") if slots else ["0"]:
                match = SLOTS.match(part)
                if not match:
                    raise self.error("exec_host", "a list of nodes and cores such as n1/0-15+n2/0*16")
                first, last, times = match.groups()
                elsewhere |= times == "0" or not slots
                cores += int(times) if times else max(int(last) - int(first), 0) + 1 if last else 1
        if elsewhere:
            of_vnodes = sum(map(int, NCPUS.findall(self.values.get("exec_vnode", ""))))
            name = next((name for name in ("select", "nodes") if self.has_resource(name)), None)
            requested = self.requested(f"Resource_List.{name}")[1] if name else 0
            cores = of_vnodes or requested or int(np.nan_to_num(self.number("Resource_List.ncpus"))) or cores
        return len(hosts), cores

    def requested(self, name: str) -> tuple[int, int, int]:
        """Return nodes, cores and GPUs of `2:ncpus=16:ngpus=2+1:ncpus=4` or `4:ppn=32:fast+n7:ppn=8`."""
        nodes = cores = gpus = 0
        for chunk in self.values[name].partition("#")[0].split("+"):
            first, *rest = chunk.split(":")
            count = int(first[:18]) if re.match(r"\d+$", first) else 1  # otherwise the name of a node
            resources = dict(item.split("=", 1) for item in [first, *rest] if "=" in item)
            texts = [resources.get(pbs) or resources.get(torque) or "" for pbs, torque in SPELLINGS]
            if not all(re.match(r"\d{0,9}$", text) for text in texts):
                raise self.error(name, "chunks such as 2:ncpus=16")
            nodes, cores, gpus = nodes + count, cores + count * int(texts[0] or 1), gpus + count * int(texts[1] or 0)
        return nodes, cores, gpus

    def features(self) -> str:
        """Return the demanded properties of nodes, as `--constraint` writes them.

        They are the words of a chunk of Torque (`4:ppn=8:fast`), and the resources of PBS Pro that are true.
        """
        name = next((name for name in ("select", "nodes") if self.has_resource(name)), None)
        if name is None:
            return ""
        items = re.split(r"[:+]", self.values[f"Resource_List.{name}"].partition("#")[0])
        starts = {chunk.split(":")[0] for chunk in self.values[f"Resource_List.{name}"].split("+")}
        properties = [item for item in items if "=" not in item and item not in starts and not item.isdecimal()]
        true = [item.partition("=")[0] for item in items if item.partition("=")[2].lower() in ("true", "t", "y")]
        return "&".join(dict.fromkeys(filter(None, properties + true)))

    def dependency(self, one_server: bool) -> str:
        """Return the conditions of the start (`afterok:12.srv@srv` in a Q record), as `--dependency` writes them.

        Conditions that Slurm does not have, such as `on` and `before`, are left out: other jobs have their opposite.
        """
        conditions = []
        for condition in self.values.get("depend", "").strip('"').split(","):
            kind, *jobs = condition.split(":")
            names = [job.partition("@")[0] for job in jobs]
            if kind in DEPENDENCIES and names:
                conditions.append(":".join([kind, *(name.partition(".")[0] if one_server else name for name in names)]))
        return ",".join(conditions)

    def gpus(self) -> float:
        """Return the requested GPUs, NaN if there are none."""
        named = self.number("Resource_List.ngpus")
        chunks = [self.requested(f"Resource_List.{name}")[2] for name in ("nodes", "select") if self.has_resource(name)]
        return named if named > 0 else float(max(chunks, default=0)) or math.nan

    def has_resource(self, name: str) -> bool:
        """Return whether the record has the value `Resource_List.name`."""
        return bool(self.values.get(f"Resource_List.{name}"))


@dataclass
class PbsRecords:
    """The records read so far, by job."""

    jobs: list[PbsRecord] = field(default_factory=list)
    queued: dict[str, PbsRecord] = field(default_factory=dict)
    started: dict[str, PbsRecord] = field(default_factory=dict)
    dependencies: dict[str, str] = field(default_factory=dict)
    """What each job depends on; only Q records have it."""
    deleted: dict[str, PbsRecord] = field(default_factory=dict)
    ended: dict[str, PbsRecord] = field(default_factory=dict)
    """The last E record of each job that was not queued or started again since."""
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, record: PbsRecord) -> None:
        """Add the record of the next line."""
        if "[]" in record.job:
            self.counts["records of whole job arrays, left out (tasks have their own records)"] += 1
        elif (kind in "DAR" and record.job in self.ended) or (kind == "E" and self._is_repeated(record)):
            self.counts["records of jobs that had ended, left out"] += 1
        elif kind == "E":
            self.ended[record.job] = record
            record.deleted = self.deleted.pop(record.job, None) is not None
            self._add_ended(record)
        elif kind == "R":
            run = record if "start" in record.values else self.started.get(record.job)
            if run is None:
                self.counts["reruns without a record of the run, left out"] += 1
            else:
                run.status, run.ended = RecordState.REQUEUED, record.stamp
                self._add_ended(run)
        elif kind == "S":
            self.ended.pop(record.job, None)
            self.started[record.job] = record
        elif kind == "Q":
            self.ended.pop(record.job, None)
            self.queued.setdefault(record.job, record)
            if depend := record.values.get("depend"):
                self.dependencies[record.job] = depend
        elif kind in "DA":
            record.status = JobState.CANCELLED if kind == "D" else JobState.FAILED
            self.deleted[record.job] = record
        else:
            self.counts["records of other kinds, left out"] += 1

    def _is_repeated(self, record: PbsRecord) -> bool:
        """Return whether a job has an earlier E record of the same run."""
        earlier = self.ended.get(record.job)
        return earlier is not None and all(earlier.values.get(at) == record.values.get(at) for at in ("start", "end"))

    def _add_ended(self, record: PbsRecord) -> None:
        self.jobs.append(record)
        self.started.pop(record.job, None)
        if record.status != RecordState.REQUEUED:
            self.queued.pop(record.job, None)

    def add_unended(self) -> None:
        """Add the jobs that did not end or did not start."""
        for job, last in self.deleted.items():
            begun, queued = self.started.pop(job, None), self.queued.pop(job, None)
            if begun is None and {"ctime", "qtime"} & last.values.keys():
                queued = queued or last
            if begun is not None:
                begun.status, begun.ended = last.status, last.stamp
            elif queued is not None:
                queued.status = last.status
            self.jobs.append(begun or queued or last)
            if begun is None and queued is None:
                last.stamp = math.nan  # submit time unknown
        for begun in self.started.values():
            begun.status = RecordState.RUNNING
            self.jobs.append(begun)
            self.queued.pop(begun.job, None)
        self.counts["jobs still queued at the end of the log, left out"] += len(self.queued)


def read_log(
    files: Sequence[Input], *, keep_extra: bool = False, keep_names: bool = False, time_zone: str | None = None
) -> Log:
    """Read accounting files in the order of their names; a job may be submitted in one file and end in another.

    Timestamps are in the time zone of the server. Without one they count as UTC, with a warning if one is used. An
    incomplete last line is left out.
    """
    records = PbsRecords()
    for file in files:
        _read(file, records, keep_extra)
    records.add_unended()
    if not records.jobs:
        raise InputError("contains no jobs that ended", where=files[0].where, hint="add the files of later days")
    jobs = records.jobs
    for job in jobs:
        if job.job in records.dependencies:
            job.values.setdefault("depend", records.dependencies[job.job])
    nodes, cores = np.array([job.size() for job in jobs], dtype=np.float64).T
    with np.errstate(divide="ignore", invalid="ignore"):
        cores_per_node = np.nan_to_num(np.ceil(cores / nodes), nan=1.0, posinf=1.0).clip(1.0, None)
    start = _numbers(jobs, "start")
    zone = "UTC" if time_zone is None else time_zone
    ended = utc(np.array([job.ended for job in jobs]), zone)
    end = np.where(np.isnan(ended), _numbers(jobs, "end"), ended)
    queued = _first_known(_numbers(jobs, "ctime"), _numbers(jobs, "qtime"))
    submit = _first_known(queued, utc(np.array([job.stamp for job in jobs]), zone))
    local = (np.isfinite(ended) | np.isnan(queued)) & (time_zone is None)
    eligible = _numbers(jobs, "etime")
    limit = np.array([job.amount("Resource_List.walltime", span, "a time such as 12:00:00") for job in jobs])
    what = "an amount of memory such as 16gb"
    whole, of_process = (np.array([job.amount(f"Resource_List.{name}", _mib, what) for job in jobs]) for name in MEMORY)
    servers = {job.job.partition(".")[2] for job in jobs}
    dependency = np.array([job.dependency(len(servers) == 1) for job in jobs], dtype=object)
    gpus = np.array([job.gpus() for job in jobs])
    gres, uneven = gpus_on_nodes(gpus, nodes)
    return make_log(
        files,
        "pbs",
        {
            "job_id": [job.job.partition(".")[0] if len(servers) == 1 else job.job for job in jobs],
            "submit_time": submit,
            "time_limit": limit,
            "nodes": nodes.astype(np.int64),
            "cores_per_node": cores_per_node.astype(np.int64),
            "memory_mib": _first_known(whole / np.maximum(nodes, 1.0), of_process * cores_per_node),
            "user": _labels(jobs, "user"),
            "group": _labels(jobs, "account", "group"),
            "queue": _labels(jobs, "queue"),
            "partition": _labels(jobs, "queue"),  # a queue of PBS is what binds jobs to nodes, as a partition of Slurm
            "status": [_status(*row) for row in zip(jobs, end - start >= limit, strict=True)],
            # The eligible time of a job with dependencies is a result of the other jobs, not a demand.
            "earliest_start": np.where((eligible > submit) & (dependency == ""), eligible, np.nan),
            "features": [job.features() for job in jobs],
            "gres": gres,
            "dependency": dependency,
            "logged_start": start,
            "logged_end": end,
            "extra_gpus": gpus,
            **(_extras(jobs) if keep_extra else {}),
        },
        system=System(name=min(servers)) if len(servers) == 1 else System(),
        time_zone=zone,
        parameters={"time_zone": zone, "keep_extra": keep_extra, "keep_names": keep_names},
        defects={"jobs of unknown size": nodes == 0, ASSUMED_UTC: local, UNEVEN: uneven, **records.counts},
        place=lambda row: jobs[row].place,
        names=("user", "group"),
    )


def _read(file: Input, records: PbsRecords, keep_extra: bool) -> None:
    """Read the records of a file. An incomplete last line, without a line end, is left out."""
    broken: InputError | None = None
    last: PbsRecord | None = None
    for number, line in file.lines():
        if not line.strip():
            continue
        if broken is not None:
            raise broken
        place = f"{file.where}:{number}"
        try:
            kind, last = _record(line, place, keep_extra)
        except InputError as error:
            broken, last = error, None
            continue
        records.add(kind, last)
    ended = records.jobs[-1] if records.jobs and records.jobs[-1] is last else None
    cut = broken is not None or (ended is not None and ended.values.get("end") and "resources_used" not in line)
    if cut and not file.data.endswith(b"\n"):
        records.counts["last line of a file cut off, left out"] += 1
        if broken is None:
            records.jobs.pop()
    elif broken is not None:
        raise broken


def _record(line: str, place: str, keep_extra: bool) -> tuple[str, PbsRecord]:
    """Return the kind of record and the record of a line."""
    match = LINE.match(line)
    if not match or not match[4]:
        raise InputError(
            f"not a record: {line[:40]!r}", where=place, hint="the format is MM/DD/YYYY HH:MM:SS;KIND;job;key=value ..."
        )
    date, clock, kind, job, body = match.groups()
    day, second = _midnight(date), span(clock)
    if day is None or second is None or second >= 86_401:
        raise InputError(f"'{date} {clock}' is not MM/DD/YYYY HH:MM:SS", where=place, hint="correct the line")
    try:
        values = dict(item.split("=", 1) for item in body.split(" ") if item)
    except ValueError:  # a value contains blanks
        values = dict(item.split("=", 1) for item in BETWEEN.split(body.strip()) if "=" in item)
        if kind in "ES" and not values:
            raise bad_line("record without values", place) from None
    if not keep_extra:
        values = {name: values[name] for name in USED & values.keys()}
    return kind, PbsRecord(job, day + second, values, place)


@lru_cache
def _midnight(date: str) -> float | None:
    """Return MM/DD/YYYY as s since 1970, or None if the date is invalid."""
    try:
        return datetime.strptime(date, "%m/%d/%Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _number(text: str) -> float | None:
    return float(text) if NUMBER.match(text) else None


def _mib(text: str) -> float | None:
    """Return an amount of memory in MiB; None: not an amount. A word, `w`, has eight bytes."""
    match = AMOUNT.match(text)
    if not match:
        return None
    scale = 1024.0 ** " kmgtp".index(match[2].lower() or " ") * (8.0 if match[3].lower() == "w" else 1.0)
    return float(match[1]) * scale / 2.0**20


def _numbers(jobs: Sequence[PbsRecord], name: str) -> Any:
    return np.array([job.amount(name, _number, "a number") for job in jobs])


def _first_known(*choices: Any) -> Any:
    result = choices[-1]
    for values in choices[-2::-1]:
        result = np.where(np.isnan(values), result, values)
    return result


def _labels(jobs: Sequence[PbsRecord], *names: str) -> pd.Categorical:
    texts = [next((job.values[name] for name in names if job.values.get(name)), "").strip('"') for job in jobs]
    labels: pd.Categorical = pd.Categorical(np.array(texts, dtype=object))
    return labels


def _status(job: PbsRecord, over: bool) -> str:
    if job.status:
        return job.status
    if "start" not in job.values:
        return JobState.CANCELLED if job.deleted else JobState.FAILED
    if "Exit_status" not in job.values:
        return ""
    text = job.values["Exit_status"]
    if not re.match(r"-?\d{1,9}$", text):
        raise job.error("Exit_status", "a whole number")
    return pbs_exit(int(text), torque=not job.has_resource("select"), deleted=job.deleted, over=over)


def _extras(jobs: Sequence[PbsRecord]) -> dict[str, pd.Series[Any]]:
    names = dict.fromkeys(name for job in jobs for name in job.values if name not in USED)
    return {f"extra_{name}": pd.Series([job.values.get(name, "") for job in jobs], dtype="str") for name in names}
