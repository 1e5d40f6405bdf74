"""Batsim: a workload of jobs and profiles in JSON, and a SimGrid platform.

Format: the documentation of Batsim (batsim.readthedocs.io). Every job is written with a delay profile: the job
occupies its nodes for its run time. Batsim 5 renamed the profile types.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.json_jobs import Item, load, plain
from tracebed.converters.formats.tools.unsupported_columns import (
    columns_of,
    extras_of,
    notes_of,
    simulated_jobs,
    unsupported_columns,
    warn_of_unsupported,
)
from tracebed.converters.workload import Kind, Provenance, Step, System, Workload
from tracebed.ground.errors import InputError, tolerate

DELAY = {"4": "delay", "5": "DelayProfile"}
"""Version of Batsim -> name of the delay profile type."""
HELD = {"job_id", "submit_time", "run_time", "time_limit", "nodes"}
FIELDS = ("id", "subtime", "res", "profile", "walltime")
SHORTEST = 0.001
"""Shortest delay and time limit written, in s: Batsim rejects 0 s."""
OURS = "tracebed"
"""Key of the provenance in the JSON file; Batsim ignores it."""
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
    <zone id="AS0" routing="Full">
        <cluster id="nodes" prefix="node_" radical="0-{last}" suffix="" speed="1Gf" bw="1GBps" lat="50us"/>
        <cluster id="master" prefix="master_host" radical="0-0" suffix="" speed="1Gf" bw="1GBps" lat="50us">
            <prop id="role" value="master"/>
        </cluster>
        <link id="backbone" bandwidth="1GBps" latency="50us"/>
        <zoneRoute src="nodes" dst="master" gw_src="node_nodes_router" gw_dst="master_hostmaster_router">
            <link_ctn id="backbone"/>
        </zoneRoute>
    </zone>
</platform>
"""


def recognizes(file: Input) -> bool:
    """Return whether the head of the file has the key `subtime` of jobs or `nb_res` of the workload."""
    head = file.head
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and (b'"subtime"' in head or b'"nb_res"' in head)


# -- writing


def write(workload: Workload, file: BinaryIO, *, version: str = "5") -> None:
    """Write the workload file without a platform, for Batsim `4` (also 3) or `5`, which renamed the profile types."""
    if version not in DELAY:
        raise InputError(f"unknown Batsim version {version}", hint=f"use {' or '.join(DELAY)}")
    workload, counts = simulated_jobs(workload, "Batsim")
    machine = _machine(workload)
    tolerate({**counts, **_losses(workload, machine)})
    warn_of_unsupported(
        list(unsupported_columns(workload, HELD)), "Batsim", "kept in extra_data, which Batsim passes to the scheduler"
    )
    delays = {time: f"delay_{time:g}_{number}" for number, time in enumerate(np.unique(_delays(workload)).tolist())}
    names = ("job_id", "submit_time", "nodes", "time_limit")
    rows = zip(*(workload.column(name).tolist() for name in names), _delays(workload).tolist(), strict=True)
    jobs = [
        {
            "id": job_id,
            "subtime": plain(submit),
            "res": nodes,
            "profile": delays[delay],
            **({"walltime": plain(max(limit, SHORTEST))} if limit == limit else {}),
            **({"extra_data": json.dumps(notes)} if notes else {}),
        }
        for (job_id, submit, nodes, limit, delay), notes in zip(rows, notes_of(workload, HELD), strict=True)
    ]
    profiles = {name: {"type": DELAY[version], "delay": plain(time)} for time, name in delays.items()}
    text = io.TextIOWrapper(file, encoding="utf-8", write_through=True)
    text.write(f'{{"nb_res": {machine},\n"jobs": [\n')
    text.write(",\n".join(json.dumps(job) for job in jobs))
    text.write('\n],\n"profiles": {\n')
    text.write(",\n".join(f"{json.dumps(name)}: {json.dumps(profile)}" for name, profile in profiles.items()))
    text.write(f'\n}},\n"{OURS}": {workload.provenance.to_json()}}}\n')
    text.detach()


def write_folder(workload: Workload, folder: Path, *, version: str = "5") -> None:
    """Write workload.json (see `write`) and platform.xml, with the nodes of the system and a host for the scheduler."""
    with (folder / "workload.json").open("wb") as file:
        write(workload, file, version=version)
    machine = _machine(workload.runnable()[0])
    (folder / "platform.xml").write_text(PLATFORM.format(last=machine - 1))


def _machine(workload: Workload) -> int:
    return workload.provenance.system.nodes or int(workload.ints("nodes").max())


def _delays(workload: Workload) -> Any:
    return np.maximum(workload.floats("run_time"), SHORTEST)


def _losses(workload: Workload, machine: int) -> dict[str, int]:
    """Return information that is lost or changed in the file -> number of occurrences."""
    kind, nodes = workload.column("kind"), workload.ints("nodes")
    cores, known = workload.ints("cores_per_node"), workload.provenance.system
    return {
        f"unknown number of nodes of the system, set to the size of the largest job, {machine:,}": int(not known.nodes),
        f"jobs larger than the machine's {machine:,} nodes": int((nodes > machine).sum()),
        "jobs that are not rigid, written at their requested size": int((kind != Kind.RIGID).sum()),
        "jobs on part of the cores of a node, written as whole nodes": int(
            (cores < (known.cores_per_node or cores.max())).sum()
        ),
        "run times below 1 ms, written as 1 ms": int((workload.floats("run_time") < SHORTEST).sum()),
        "time limits below 1 ms, written as 1 ms": int((workload.floats("time_limit") < SHORTEST).sum()),
        "job ids with '!', which Batsim uses as the separator after a workload name": sum(
            "!" in job_id for job_id in workload.column("job_id")
        ),
    }


# -- reading


def read(file: Input, *, keep_extra: bool = False) -> Workload:
    """Read a workload. The run time of a job is unknown unless its profile is a delay."""
    document = load(file)
    items, profiles, counts = document.items("jobs"), document.item("profiles"), Counter[str]()
    if not items:
        raise InputError("contains no jobs", where=file.where, hint="check that the file is complete")
    ours = document.item(OURS).values
    columns: dict[str, Any] = {
        "job_id": [job.text("id") for job in items],
        "submit_time": [job.number("subtime") for job in items],
        "run_time": [_run_time(job, profiles, counts) for job in items],
        "time_limit": [_limit(job) for job in items],
        "nodes": [job.whole("res") for job in items],
    }
    if ours:
        columns |= columns_of([_notes(job) for job in items], HELD, columns["nodes"])
    elif keep_extra:
        names = dict.fromkeys(name for job in items for name in job.values if name not in FIELDS)
        columns |= extras_of(items, list(names), "extra_")
    else:
        counts["jobs with additional keys, not kept"] = _more(items)
    tolerate(counts, where=file.where)
    size = document.whole("nb_res", 0) or None
    before = Provenance.from_json(json.dumps(ours), where=file.where) if ours else Provenance(System(size))
    found = {what: count for what, count in counts.items() if count}
    step = Step("read", {"format": "batsim", "keep_extra": keep_extra}, found)
    provenance = replace(before, sources=(*before.sources, file.source), steps=(*before.steps, step))
    table = pd.DataFrame({name: pd.Series(values) for name, values in columns.items()})
    return Workload(table, provenance, where=file.where)


def _run_time(job: Item, profiles: Item, counts: Counter[str]) -> float:
    name = job.text("profile")
    if name not in profiles.values:
        raise InputError(f"profile {name[:60]!r} is missing", where=job.where, hint="add it, or remove the job")
    profile = Item(profiles.item(name).values, f"{profiles.where}, {name[:60]}")
    if profile.values.get("type") in DELAY.values():
        return profile.number("delay", least=0.0)
    counts["jobs whose profile is not a delay, run time unknown"] += 1
    return float("nan")


def _limit(job: Item) -> float:
    limit = job.number("walltime", -1.0)
    if limit < 0 and limit != -1:
        job.refuse("walltime", "-1 (no limit) or a time")
    return limit if limit >= 0 else float("nan")


def _notes(job: Item) -> Item:
    """Return the values that tracebed stored in `extra_data`; raise InputError if it is not JSON."""
    text = job.values.get("extra_data")
    if text is None:
        return Item({}, job.where)
    try:
        return Item({"extra_data": json.loads(str(text))}, job.where).item("extra_data")
    except (ValueError, RecursionError):
        raise InputError("extra_data is not JSON", where=job.where, hint="restore or rewrite the file") from None


def _more(items: Sequence[Item]) -> int:
    return sum(any(name not in FIELDS for name in job.values) for job in items)


FORMAT = Format(
    "batsim",
    "workload and platform of Batsim",
    recognizes,
    read=read,
    write=write,
    write_folder=write_folder,
    written="workload.json",
)
