"""Batsim: a workload of jobs and profiles in JSON, and a SimGrid platform.

Format: the documentation of Batsim (batsim.readthedocs.io). Every job is written with a delay profile: the job
occupies its nodes for its run time. Batsim 5 renamed the profile types.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools import unsupported_columns as unsupported
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.json_jobs import OURS, Item, load_jobs, plain, workload_of
from tracebed.converters.workload import Kind, Provenance, Step, System, Workload
from tracebed.ground.errors import InputError

DELAY = {"4": "delay", "5": "DelayProfile"}
"""Version of Batsim -> name of the delay profile type."""
HELD = {"job_id", "submit_time", "run_time", "time_limit", "nodes"}
FIELDS = ("id", "subtime", "res", "profile", "walltime")
SHORTEST = 0.001
"""Shortest delay and time limit written, in s: Batsim rejects 0 s."""
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
    workload, counts = unsupported.simulated_jobs(workload, "Batsim")
    machine = _machine(workload)
    fate = "kept in extra_data, which Batsim passes to the scheduler"
    unsupported.warn_of_losses(workload, counts | _losses(workload, machine), "Batsim", HELD, fate)
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
        for (job_id, submit, nodes, limit, delay), notes in zip(rows, unsupported.notes_of(workload, HELD), strict=True)
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


def _losses(workload: Workload, machine: int) -> dict[str, Any]:
    """Return information that is lost or changed in the file -> number of occurrences, or the jobs."""
    unknown = not workload.provenance.system.nodes
    return {
        f"unknown number of nodes of the system, set to the size of the largest job, {machine:,}": unknown,
        f"jobs larger than the machine's {machine:,} nodes": workload.ints("nodes") > machine,
        unsupported.NOT_RIGID: workload.column("kind") != Kind.RIGID,
        unsupported.PART_OF_NODE: unsupported.on_parts_of_nodes(workload),
        "run times below 1 ms, written as 1 ms": workload.floats("run_time") < SHORTEST,
        "time limits below 1 ms, written as 1 ms": workload.floats("time_limit") < SHORTEST,
        "job ids with '!', which Batsim uses as the separator after a workload name": sum(
            "!" in job_id for job_id in workload.column("job_id")
        ),
    }


# -- reading


def read(file: Input, *, keep_extra: bool = False) -> Workload:
    """Read a workload. The run time of a job is unknown unless its profile is a delay."""
    document, items, ours = load_jobs(file)
    profiles, counts = document.item("profiles"), Counter[str]()
    columns: dict[str, Any] = {
        "job_id": [job.text("id") for job in items],
        "submit_time": [job.number("subtime") for job in items],
        "run_time": [_run_time(job, profiles, counts) for job in items],
        "time_limit": [_limit(job) for job in items],
        "nodes": [job.whole("res") for job in items],
    }
    if ours:
        columns |= unsupported.columns_of([_notes(job) for job in items], HELD, columns["nodes"])
    elif keep_extra:
        names = dict.fromkeys(name for job in items for name in job.values if name not in FIELDS)
        columns |= unsupported.extras_of(items, list(names), "extra_")
    else:
        counts["jobs with additional keys, not kept"] = sum(
            any(name not in FIELDS for name in job.values) for job in items
        )
    made = Provenance(System(document.whole("nb_res", 0) or None))
    return workload_of(columns, file, ours, made, Step("read", {"format": "batsim", "keep_extra": keep_extra}, counts))


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


FORMAT = Format(
    "batsim",
    "workload and platform of Batsim",
    recognizes,
    read=read,
    write=write,
    write_folder=write_folder,
    written="workload.json",
)
