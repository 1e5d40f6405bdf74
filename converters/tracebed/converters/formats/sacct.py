"""Slurm accounting from `sacct -P` (or `--parsable`, any `--delimiter`), with fields in any order.

A row is a job or a job step; steps are left out. A job that was resized has a row for each size, with -D and without,
all but the last in state RESIZING. The `Submit` time of each row is the end of the previous row. `Start` of a row is
the resize; after a shrink, Slurm 22.05 keeps the start of the job. The rows become one job with the first size;
`extra_segments` lists all sizes. A job that gave its nodes to another (an expansion) stays COMPLETED without nodes,
with an unknown `End` and an `Elapsed` that grows: such a job ended when it was resized.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools import slurm_demands as demands
from tracebed.converters.formats.tools.amounts import amount, first_positive, parsed, span
from tracebed.converters.formats.tools.columns import (
    ASSUMED_UTC,
    WHICH_HOUR,
    Columns,
    column_spec,
    in_order,
    one_machine,
    read_columns,
    relabel,
)
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.gres import UNEVEN
from tracebed.converters.formats.tools.sacct_json import as_columns, is_json
from tracebed.converters.formats.tools.sacct_text import FIELDS, SacctHeader, lacks_header, one_line_each
from tracebed.converters.formats.tools.states import UNFINISHED, slurm_states
from tracebed.converters.log import Log, make_log, place_of
from tracebed.converters.workload import BoolArray, FloatArray, System
from tracebed.ground.errors import InputError

WANTED = {
    "job": column_spec("text", "jobid", "jobidraw", needed=True),
    "cluster": column_spec("label", "cluster"),
    "submit": column_spec("time", "submit", needed=True),
    "eligible": column_spec("time", "eligible"),
    "start": column_spec("time", "start"),
    "end": column_spec("time", "end"),
    "elapsed": column_spec("label", "elapsedraw", "elapsed"),
    "limit": column_spec("label", "timelimit"),
    "limit in minutes": column_spec("label", "timelimitraw"),
    "state": column_spec("label", "state"),
    "nodes": column_spec("label", "nnodes", "allocnodes"),
    "requested nodes": column_spec("label", "reqnodes"),
    "cpus": column_spec("label", "ncpus", "alloccpus"),
    "requested cpus": column_spec("label", "reqcpus"),
    "resources": column_spec("label", "alloctres"),
    "requested resources": column_spec("label", "reqtres"),
    "requested gres": column_spec("label", "reqgres"),
    "memory": column_spec("label", "reqmem"),
    "user": column_spec("label", "user", "uid"),
    "account": column_spec("label", "account", "group"),
    "partition": column_spec("label", "partition"),
    "qos": column_spec("label", "qos"),
    "node list": column_spec("label", "nodelist"),
    "features": column_spec("label", "constraints"),
    "reservation": column_spec("label", "reservation"),
    "licenses": column_spec("label", "licenses"),
    "submit line": column_spec("label", "submitline"),
}
NEEDED = (("jobid", "jobidraw"), ("submit",), ("end", "elapsed", "elapsedraw"))
USED = frozenset(name for wanted in WANTED.values() for name in wanted.names)
SIZES = ("nnodes", "allocnodes", "reqnodes", "alloctres", "reqtres")
STATES = "BF,CA,CD,DL,F,NF,OOM,PD,PR,R,RQ,RS,RV,S,TO"
"""All states. Without them, `sacct -S` leaves out jobs whose eligible time is unknown: those held while they ran."""
EXPORT = f"sacct -aPD -S DATE -E DATE -s {STATES} -o"
COMMAND = f"{EXPORT} JobID,Cluster,User,Account,Partition,QOS,Submit,Eligible,Start,End,Elapsed"
COMMAND += ",Timelimit,Constraints,State,NNodes,NCPUS,ReqNodes,ReqMem,AllocTRES,ReqTRES,NodeList,Reservation,SubmitLine"
HALVED = f"resized jobs without the rows of all sizes, core hours incomplete (export the log with -s {STATES})"
STEP = r"\.[^.\]]+$"
"""A step (`12.batch`, `12_3.0`), not the tasks of an array that sacct cuts off (`12_[1,3,...]`, `12_[1,3,...%5]`)."""
NO_LIMIT = ("UNLIMITED", "Partition_Limit", "INVALID")


def recognizes(file: Input) -> bool:
    """Return whether the columns contain the job id and at least two other fields of sacct, or a row or JSON has."""
    names = set(SacctHeader.of(file).lower)
    if names & {"jobid", "jobidraw"}:
        return len(names & FIELDS) >= 3
    return is_json(file) or lacks_header(file)


def read_log(
    files: Sequence[Input],
    *,
    keep_extra: bool = False,
    keep_names: bool = False,
    time_zone: str | None = None,
    machine: str | None = None,
    by: Literal["node", "core"] = "node",
) -> Log:
    """Read the output of sacct -P, with its header, or of sacct --json, of the cluster `machine` if there are several.

    `by` core: a node of the workload is one core, for nodes shared by jobs. ISO times are in the time zone of the
    machine on which sacct ran; by default UTC, with a warning.
    """
    repaired = Counter[str]()
    whole = []
    quoted = False
    for file in files:
        if is_json(file):
            whole.append(as_columns(file))
            continue
        header = _checked(file)
        text, repairs = one_line_each(file, header, USED)
        whole.append(text)
        repaired += repairs
        quoted |= SacctHeader.of(text).delimiter == b","
    c = read_columns(whole, WANTED, extras=keep_extra, quoted=quoted)
    zone = "UTC" if time_zone is None else time_zone
    columns, noted = _columns(c, zone)
    if by == "core":
        _count_cores(columns)
        noted = {}
    steps = c["job"].str.contains(STEP, regex=True).to_numpy(dtype=bool)
    later = _join_segments(columns, c, ~steps)
    resizing = np.asarray(columns["status"]) == "resizing"
    halved = (resizing | (columns["logged_start"] < columns["submit_time"])) & ~later
    columns |= _releases(c["job"], steps, columns["logged_end"])
    name, only = one_machine(c.labels("cluster"), machine, place_of(files))
    rows = np.flatnonzero(~steps & ~later & only)
    return make_log(
        files,
        "sacct",
        {name: values[rows] for name, values in columns.items()}
        | {name: values.iloc[rows].reset_index(drop=True) for name, values in c.extras.items()},
        system=System(name=name),
        time_zone=zone,
        parameters={
            "time_zone": zone,
            "keep_extra": keep_extra,
            "keep_names": keep_names,
            "machine": machine,
            "by": by,
        },
        defects={
            "rows of job steps, left out": int(steps.sum()),
            "rows of resized jobs, merged into one job": int(later.sum()),
            "rows of other clusters, left out": int((~only).sum()),
            ASSUMED_UTC: min(c.local("submit"), len(rows)) if time_zone is None else 0,
            "components of heterogeneous jobs, which become jobs of their own": int(
                columns["extra_het_job"][rows].astype(bool).sum() if "extra_het_job" in columns else 0
            ),
            **{what: mask[rows] for what, mask in {**noted, HALVED: halved}.items()},
            **repaired,
        },
        place=lambda row: c.place(int(rows[row])),
        names=("user", "group"),
        unread=c.unread,
    )


def _checked(file: Input) -> SacctHeader:
    """Return the header of a file; raise InputError if a required field is missing."""
    header = SacctHeader.of(file)
    where, hint = f"{file.where}:1", f"export the log with {COMMAND}"
    if lacks_header(file):
        what = "the first line is a record, not the names of the columns"
        raise InputError(what, where=where, hint=f"without -n (--noheader), {hint}")
    if header.padded:
        what = "columns are padded with blanks and values are truncated"
        raise InputError(what, where=where, hint=f"with -P (--parsable2), {hint}")
    for choices in (*NEEDED, SIZES):
        if not set(choices) & set(header.lower):
            raise InputError(f"column {' or '.join(choices)} is missing", where=where, hint=hint)
    return header


def _columns(c: Columns, zone: str) -> tuple[dict[str, Any], dict[str, BoolArray]]:
    """Return the columns of a workload, and assumption -> rows, each of shape (rows,), including the rows of steps."""
    status = slurm_states(c.labels("state"))
    elapsed = parsed(c, "elapsed", span, "a time such as 1-02:03:04")
    times, unclear = in_order(c, ("submit", "eligible", "start", "end"), zone, elapsed)
    submit, eligible = times["submit"], times["eligible"]
    start, end, run = _times(c, times["start"], times["end"], elapsed, status)
    requested = first_positive(
        parsed(c, "requested nodes", amount, "a number of nodes"),
        parsed(c, "requested resources", _resource("node"), "resources"),
    )
    nodes = first_positive(
        parsed(c, "nodes", amount, "a number of nodes"),
        parsed(c, "resources", _resource("node"), "resources"),
        requested,
    )
    cpus = first_positive(
        parsed(c, "cpus", amount, "a number of CPUs"),
        parsed(c, "resources", _resource("cpu"), "resources"),
        parsed(c, "requested cpus", amount, "a number of CPUs"),
        parsed(c, "requested resources", _resource("cpu"), "resources"),
    )
    cores = np.maximum(np.nan_to_num(np.ceil(cpus / nodes), nan=1.0), 1.0)
    gpus = first_positive(parsed(c, "resources", _gpus, "resources"), parsed(c, "requested resources", _gpus, ""))
    said = demands.evidence(c.labels("submit line"))
    array = demands.arrays_of(c["job"], said["array"])
    earliest, staggered = demands.earliest_starts(submit, eligible, array, said)
    gres, uneven = _gres(c, nodes, first_positive(requested, nodes), said)
    more = requested < nodes
    spread = more & (np.asarray(said["per node"]) == "")
    columns = {
        "job_id": c["job"].array,
        "submit_time": submit,
        "run_time": run,
        "time_limit": first_positive(
            parsed(c, "limit", _limit, "a time limit"), 60.0 * parsed(c, "limit in minutes", _limit, "a time limit")
        ),
        "nodes": nodes,
        "cores_per_node": cores,
        "memory_mib": _memory(c, nodes, cores, first_positive(requested, nodes)),
        "user": c.labels("user"),
        "group": c.labels("account"),
        "features": c.labels("features"),
        "gres": gres,
        "fewest_nodes": np.where(more, requested, 0).astype(np.int64),
        "spread": spread.astype(np.int64),
        "dependency": said["dependency"],
        "array": array,
        "reservation": c.labels("reservation"),
        "licenses": _licences(c, said),
        "queue": c.labels("qos"),
        "partition": demands.partitions_of(c.labels("partition"), said["partition"]),
        "status": status,
        "earliest_start": earliest,
        "logged_start": start,
        "logged_end": end,
        "extra_gpus": gpus,
        "extra_eligible": np.where(eligible > submit, eligible, np.nan),
        **_het_jobs(c["job"]),
    }
    return columns, {
        "jobs on more nodes than they asked for, whose cores may lie on any nodes (no --ntasks-per-node known)": spread,
        UNEVEN: uneven,
        "jobs with --time-min or --deadline, which simulations ignore": np.asarray(said["lapse"]) != "",
        "tasks of arrays that became eligible one after the other, number of tasks at once (%) unknown": staggered,
        "tasks of an array that did not start, one job for all of them": c["job"].str.contains("_[", regex=False),
        WHICH_HOUR: unclear,
    }


def _gres(c: Columns, nodes: FloatArray, requested: FloatArray, said: Mapping[str, Any]) -> tuple[Any, BoolArray]:
    """Return the generic resources on each node of a job, as `--gres` writes them, and the mask of the uneven ones."""
    held, uneven = demands.gres_per_node(c.labels("resources"), nodes, c.labels("requested resources"))
    wanted, _ = demands.gres_per_node(c.labels("requested resources"), requested)
    per_node = demands.by_label(c.labels("requested gres"), demands.plain_gres)
    gpus = demands.by_label(said["gpus"], lambda text: f"gpu:{text}" if text else "")
    return demands.first_text(held, wanted, per_node, demands.by_label(said["gres"], demands.plain_gres), gpus), uneven


def _licences(c: Columns, said: Mapping[str, Any]) -> Any:
    """Return the licences of each job, as `--licenses` writes them."""
    tracked = (demands.by_label(c.labels(name), demands.licences_of) for name in ("resources", "requested resources"))
    return demands.first_text(c.labels("licenses"), said["licenses"], *tracked)


def _count_cores(columns: dict[str, Any]) -> None:
    """Turn each core into a node of one core, in place."""
    cores = columns["cores_per_node"]
    columns["nodes"] = columns["nodes"] * cores
    columns["memory_mib"] = columns["memory_mib"] / cores
    columns["cores_per_node"] = np.ones(len(cores))
    columns["fewest_nodes"] = columns["spread"] = np.zeros(len(cores), dtype=np.int64)
    columns["gres"] = np.full(len(cores), "", dtype=object)  # a count for each node of the machine


def _het_jobs(job: pd.Series[str]) -> dict[str, Any]:
    """Return the job id of the whole heterogeneous job for each component (`123+1`), if there are any."""
    component = job.str.contains("+", regex=False).to_numpy(dtype=bool)
    whole = np.full(len(job), "", dtype=object)
    whole[component] = [name.partition("+")[0] for name in job[component]]
    return {"extra_het_job": whole.astype(str)} if component.any() else {}


def _releases(job: pd.Series[str], steps: BoolArray, end: FloatArray) -> dict[str, Any]:
    """Return for how long the steps of each job went on after its end, s, if any did.

    The end of a job is the instant at which Slurm ends it. Processes that ignore SIGTERM hold the nodes until SIGKILL,
    `KillWait` later. A job with several rows, such as one that was requeued, counts as released at its end.
    """
    if not steps.any():
        return {}
    last = pd.Series(end[steps], index=job[steps].str.split(".").str[0].to_numpy()).groupby(level=0).max()
    after = job.map(last).to_numpy(dtype=np.float64) - end
    late = ~steps & ~job.duplicated(keep=False).to_numpy(dtype=bool) & (after > 1.0)  # ends are whole seconds
    return {"extra_release_s": np.where(late, after, 0.0)} if late.any() else {}


def _times(
    c: Columns, start: FloatArray, end: FloatArray, elapsed: FloatArray, status: Any
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return start, end and run time without suspension, each of shape (rows,); NaN if the job did not start or end."""
    if "start" not in c:
        start = np.where(elapsed > 0, end - elapsed, np.nan)
    if "end" not in c:
        end = start + elapsed
    nodes = c.labels("node list")
    nowhere = [code for code, name in enumerate(nodes.categories) if name == "None assigned"]
    # For jobs that did not start, older Slurm versions set the start to the end.
    never = np.isin(nodes.codes, nowhere)
    if "node list" not in c:
        never = (np.asarray(status) == "cancelled") & (start == end)
    start = np.where(never & ~(elapsed > 0), np.nan, start)
    states = [code for code, name in enumerate(status.categories) if name in UNFINISHED]
    end = np.where(np.isin(status.codes, states), np.nan, end)
    run = np.where(np.isnan(elapsed), end - start, elapsed)
    if "start" in c or "end" in c:
        run = np.where(np.isnan(start) | np.isnan(end), np.nan, run)
    return start, end, run


def _limit(text: str) -> float | None:
    return np.nan if text in NO_LIMIT else span(text)


def _resource(name: str) -> Any:
    """Return a function that extracts the amount of a resource from TRES such as `billing=4,cpu=4,mem=8G,node=2`."""
    pattern = re.compile(rf"(?:^|,){name}=([\d.]+[KMGTPE]?)")

    def read(text: str) -> float | None:
        match = pattern.search(text)
        return np.nan if match is None and "=" in text else amount(match[1]) if match else None

    return read


def _gpus(text: str) -> float | None:
    """Return the GPUs in TRES such as `cpu=4,gres/gpu:a100=2,gres/gpu=2`: the total, or else the sum over types."""
    return float(sum(count for name, count in demands.gres_of(text).items() if name.partition(":")[0] == "gpu"))


MEMORY = re.compile(r"(\d+(?:\.\d*)?)([KMGTP]?)[cn?]?$")


def _memory(c: Columns, nodes: FloatArray, cores: FloatArray, requested: FloatArray) -> FloatArray:
    """Return MiB per node: of the allocated, else of the requested memory (until Slurm 21.08 `4000Mc` or `16Gn`)."""

    def mib(text: str) -> float | None:
        match = MEMORY.match(text)
        return (amount(match[1] + (match[2] or "M")) or 0.0) / 2.0**20 if match else None

    value = parsed(c, "memory", mib, "an amount of memory")
    each = parsed(c, "memory", lambda text: float("cn".find(text[-1])), "")
    asked = np.where(each == 0, value * cores, np.where(each == 1, value, value / requested))
    memory = _resource("mem")
    held = parsed(c, "resources", memory, "resources") / nodes / 2.0**20
    wanted = parsed(c, "requested resources", memory, "resources") / requested / 2.0**20
    return first_positive(held, asked, wanted)


def _join_segments(columns: dict[str, Any], c: Columns, jobs: BoolArray) -> BoolArray:
    """Merge the rows of each resized job into its first row, in place; return the mask of the other rows.

    The time in which a job ran at a size is Elapsed of the row, less the time before the size if Start is the start
    of the job. Elapsed is without the suspensions at this size only.
    """
    status, nodes, run = columns["status"], columns["nodes"], columns["run_time"]
    gone = np.zeros(len(c), bool)
    states = np.asarray(status)
    resizing = jobs & (states == "resizing")
    if not resizing.any():
        return gone
    job = np.asarray(c["job"] + "\0" + np.asarray(c.labels("cluster").astype(str)))
    rows = np.flatnonzero(jobs & np.isin(job, np.unique(job[resizing])))
    start, end, submit = (columns[name] for name in ("logged_start", "logged_end", "submit_time"))
    without_nodes = parsed(c, "nodes", amount, "a number of nodes") == 0
    rows = rows[np.lexsort((end[rows], submit[rows], job[rows]))]
    codes, segments = status.codes.copy(), np.full(len(c), "", dtype=object)
    head, begin, before = 0, 0.0, -1
    for row in rows.tolist():
        same = before >= 0 and job[before] == job[row]
        if same and (resizing[before] or gone[before]) and submit[before] == submit[row]:
            gone[row] = True  # a copy, of an export that overlaps another
            continue
        gone[row], before = same and resizing[before], row
        if not gone[row]:
            head, begin = row, start[row]
        else:
            codes[head] = codes[row]
            if (np.isnan(end[row]) or (without_nodes[row] and not resizing[row])) and states[row] not in UNFINISHED:
                continue  # the job gave its nodes to another job; Slurm records no end, or that of a job without nodes
            run[head] += run[row] - max(begin - start[row], 0.0)
            end[head] = end[row]
        if resizing[row] or gone[row]:
            segments[head] = f"{segments[head]} {nodes[row]:.0f}:{end[row] - begin:g}".strip()
            begin = end[row]
    columns["status"] = relabel(codes, [str(name) for name in status.categories])
    columns["extra_segments"] = segments.astype(str)
    return gone


FORMAT = Format(
    "sacct",
    "Slurm's accounting, by sacct -P or --json",
    recognizes,
    read_log=read_log,
)
