"""ElastiSim: a list of jobs in JSON, application models, a platform, and a configuration.

Formats: the documentation of ElastiSim (elastisim.github.io), and experiments with ElastiSim. A job that ElastiSim
simulates alone on its requested nodes has exactly the run time of the workload.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools import elastisim_models as models
from tracebed.converters.formats.tools import unsupported_columns as unsupported
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.json_jobs import OURS, Item, load, load_jobs, plain, workload_of
from tracebed.converters.speedup import Speedup
from tracebed.converters.workload import Kind, Provenance, Step, System, Workload
from tracebed.ground.errors import InputError

FIELDS = ("job_id", "submit_time", "run_time", "time_limit", "nodes", "kind", "nodes_min", "nodes_max", "nodes_pref")
HELD = (*FIELDS, "speedup", "speedup_parameters")
"""Columns that ElastiSim uses; job_id is stored in mapping.csv. A speedup becomes a formula, and attributes."""
RESIZABLE = (Kind.MOLDABLE.value, Kind.MALLEABLE.value)
LONGEST_WALLTIME = 2**31 - 1
"""Longest time limit in s: ElastiSim uses 32 bits."""
LONGEST_RUN = 9e9
"""Longest run time in s: nanoseconds must fit 64 bits."""
EPOCH = 5e8
"""If the first submit time exceeds this (s; nearly 16 years), times are since 1970."""
CONFIGURATION = {
    "jobs_file": "jobs.json",
    "platform_file": "platform.xml",
    "zmq_url": "ipc://elastisim.ipc",
    "schedule_on_job_submit": True,
    "schedule_on_job_finalize": True,
    "schedule_on_scheduling_point": True,
    "scheduling_interval": 0,
    "min_scheduling_interval": 0,
    "allow_oversubscription": False,
    "sensing": False,
    "sensing_interval": 60,
    "log_task_times": False,
    "show_progress_bar": False,
    "pfs_read_links": ["PFS_read"],
    "pfs_write_links": ["PFS_write"],
    **{
        name: f"{name}.csv"
        for name in (
            *("job_statistics", "cpu_utilization", "node_utilization", "network_activity", "pfs_utilization"),
            *("gpu_utilization", "task_times"),
        )
    },
}
"""Paths are relative to the folder in which ElastiSim is started. Sensing is off because it changes schedules."""
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
    <zone id="Machine" routing="Full">
        <zone id="Batch_system_zone" routing="Full">
            <host id="Batch_system" speed="0Gf">
                <prop id="batch_system" value="true"/>
            </host>
        </zone>
        <cluster id="Crossbar" prefix="node_" radical="0-{last}" suffix="" speed="100Gf" bw="100Gbps" lat="50us">
            <prop id="node_local_bb" value="false"/>
            <prop id="pfs_targets" value="PFS"/>
        </cluster>
        <zone id="PFS_zone" routing="Full">
            <host id="PFS" speed="0Gf">
                <prop id="pfs_host" value="true"/>
            </host>
        </zone>
        <link id="PFS_read" bandwidth="80GBps" latency="500us"/>
        <link id="PFS_write" bandwidth="50GBps" latency="500us"/>
        <zoneRoute src="PFS_zone" dst="Crossbar" gw_src="PFS" gw_dst="node_Crossbar_router" symmetrical="NO">
            <link_ctn id="PFS_read"/>
        </zoneRoute>
        <zoneRoute src="Crossbar" dst="PFS_zone" gw_src="node_Crossbar_router" gw_dst="PFS" symmetrical="NO">
            <link_ctn id="PFS_write"/>
        </zoneRoute>
    </zone>
</platform>
"""


def recognizes(file: Input) -> bool:
    """Return whether the head of the file has the key `application_model`, which each job must have."""
    return file.head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and b'"application_model"' in file.head


# -- writing


def write_folder(workload: Workload, folder: Path, *, iterations: int = 10, kassel_inflation: bool = False) -> None:
    """Write jobs.json, platform.xml, configuration.json, application models, and mapping.csv (ElastiSim id, job_id).

    `elastisim configuration.json` runs in the folder. A malleable job can be resized between its `iterations`. With
    `kassel_inflation`, the sequential work of a job is run time x requested nodes, without correction for the parallel
    efficiency, as in Kassel's conversion: jobs with a speedup below linear run longer than in the workload.
    """
    if iterations < 1:
        raise InputError(f"invalid number of iterations {iterations}", hint="use at least 1")
    workload, counts = unsupported.simulated_jobs(workload, "ElastiSim")
    jobs, files = _jobs(workload, iterations, kassel_inflation)
    machine = _machine(workload)
    fate = "kept as attributes, which ElastiSim only passes to the scheduler"
    unsupported.warn_of_losses(workload, counts | _losses(workload, machine), "ElastiSim", HELD, fate)
    lines = ",\n".join(json.dumps(job) for job in jobs)
    (folder / "jobs.json").write_text(f'{{"jobs": [\n{lines}\n],\n"{OURS}": {workload.provenance.to_json()}}}\n')
    (folder / "platform.xml").write_text(PLATFORM.format(last=machine - 1))
    (folder / "configuration.json").write_text(json.dumps(CONFIGURATION, indent=2) + "\n")
    for name, formula in files.items():
        (folder / name).write_text(json.dumps(models.document(formula), indent=2) + "\n")
    with (folder / "mapping.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("id", "job_id"))
        rows.writerows(enumerate(workload.column("job_id")))


def _machine(workload: Workload) -> int:
    """Return the number of nodes of the platform: that of the system, or else the size of the largest job."""
    known = workload.provenance.system.nodes
    return known or int(max(workload.ints("nodes").max(), workload.ints("nodes_max").max()))


def _jobs(workload: Workload, iterations: int, inflated: bool) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the jobs in ElastiSim's format, and the formula of each application model file."""
    columns = [workload.column(name).tolist() for name in HELD]
    tables: dict[str, str] = {}
    files: dict[str, str] = {}
    parse = cache(Speedup.parse)
    jobs = []
    for row, notes in zip(zip(*columns, strict=True), unsupported.notes_of(workload, FIELDS), strict=True):
        job_id, submit, run_time, limit, nodes, kind, least, most, preferred, name, parameters = row
        speedup = parse(name, parameters, f"speedup of job {job_id!r}")
        if run_time > LONGEST_RUN:
            raise InputError(
                f"run time of {run_time:g} s is too long", where=f"job {job_id!r}", hint="clean the workload first"
            )
        work = run_time * nodes / speedup.of(nodes) if inflated else run_time
        table = ""
        if speedup.points:
            table = tables.setdefault(parameters, f"application_table_{len(tables) + 1}.json")
        model = models.application(speedup, work, nodes, table)
        files[model.file] = model.formula
        resizable = kind in RESIZABLE
        size = {"num_nodes_min": max(1, least), "num_nodes_max": max(1, most)} if resizable else {"num_nodes": nodes}
        jobs.append(
            {
                "type": kind if resizable else Kind.RIGID.value,
                "submit_time": plain(submit),
                **size,
                **({"walltime": max(1, int(np.ceil(limit)))} if limit <= LONGEST_WALLTIME else {}),
                "application_model": model.file,
                "arguments": {
                    "iterations": iterations if kind == Kind.MALLEABLE else 1,
                    "num_nodes_pref": max(1, preferred) if resizable else nodes,
                    **model.arguments,
                },
                "attributes": {"job_id": job_id} | {name: _attribute(value) for name, value in notes.items()},
            }
        )
    return jobs, files


def _attribute(value: Any) -> Any:
    """Return a value that ElastiSim accepts; ElastiSim aborts on true and false."""
    return int(value) if isinstance(value, bool) else value


def _losses(workload: Workload, machine: int) -> dict[str, Any]:
    """Return information that is lost or changed in the files -> number of occurrences, or the jobs."""
    nodes, least, most = (workload.ints(name) for name in ("nodes", "nodes_min", "nodes_max"))
    kind, limit = workload.column("kind"), workload.floats("time_limit")
    resizable, bounded = np.isin(kind.astype(str), RESIZABLE), (least != nodes) | (most != nodes)
    larger, unknown = np.where(resizable, least, nodes) > machine, not workload.provenance.system.nodes
    return {
        f"jobs larger than the machine's {machine:,} nodes, which deadlock ElastiSim": larger,
        f"unknown number of nodes of the system, set to the size of the largest job, {machine:,}": unknown,
        "evolving jobs, written as rigid since ElastiSim requires a formula for their requests": kind == Kind.EVOLVING,
        "rigid jobs with bounds that differ from their size, bounds left out": (kind == Kind.RIGID) & bounded,
        "minimum sizes of 0 nodes, written as 1": resizable & (least < 1),
        "time limits rounded up to whole seconds": (np.ceil(limit) != limit) & ~np.isnan(limit),
        "time limits of 0 s, written as 1 s": limit == 0,
        "time limits longer than 68 years, left out": limit > LONGEST_WALLTIME,
        unsupported.PART_OF_NODE: unsupported.on_parts_of_nodes(workload),
    }


# -- reading


@dataclass
class Neighbors:
    """The files in the folder of a jobs file: application models and the platform."""

    folder: Path
    speed: float | None = None
    """Speed of a node, flop/s."""
    nodes: int | None = None
    found: dict[str, Item | None] = field(default_factory=dict)

    @classmethod
    def of(cls, file: Input) -> Neighbors:
        """Read the number of nodes and their speed from the platform in the folder of `file`."""
        neighbors = cls(file.path.parent)
        platforms = sorted(neighbors.folder.glob("*.xml")) if file.raw is None else []
        for path in platforms:
            platform = platform_of(Input.at(path).text.decode("utf-8", "replace"))
            if platform is not None:
                neighbors.nodes, neighbors.speed = platform
                break
        return neighbors

    def model(self, name: str) -> Item | None:
        """Return an application model, found by its path or in the folder of the jobs file; None if missing."""
        if name not in self.found:
            self.found[name] = None
            for path in (self.folder / name, self.folder / Path(name).name):
                if _is_file(path):
                    self.found[name] = load(Input.at(path))
                    break
        return self.found[name]


def platform_of(text: str) -> tuple[int | None, float | None] | None:
    """Return number and speed (flop/s) of the nodes of a platform, None if unknown; None: it has no clusters."""
    clusters = [dict(re.findall(r'(\w+)="([^"]*)"', tag)) for tag in re.findall(r"<cluster\b([^>]*)>", text)]
    ranges = [re.fullmatch(r"(\d{1,9})-(\d{1,9})", cluster.get("radical", "")) for cluster in clusters]
    speeds = {cluster.get("speed", "") for cluster in clusters}
    if not ranges or not all(ranges):
        return None
    nodes = sum(max(0, int(r[2]) - int(r[1]) + 1) for r in ranges if r) or None
    return nodes, _flops(speeds.pop()) if len(speeds) == 1 else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # the text is not a valid file name
        return False


def _flops(text: str) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE]\d{1,2})?)([kMGTPE]?)f", text)
    return float(match[1]) * 1000.0 ** " kMGTPE".index(match[2] or " ") if match else None


def read(file: Input, *, keep_extra: bool = False) -> Workload:
    """Read a jobs file and the application models of its jobs.

    The run time is computed from the application model on the preferred nodes (arguments.num_nodes_pref, or else the
    maximum) if the model only waits and computes; otherwise it is unknown. Job ids are ElastiSim's numbers, the ranks
    by submit time. `keep_extra` keeps attributes, arguments and GPUs.
    """
    _, items, ours = load_jobs(file)
    neighbors, counts = Neighbors.of(file), Counter[str]()
    rows = [_row(job, neighbors, counts, bool(ours)) for job in items]
    notes = [job.item("attributes") for job in items]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if ours:
        columns |= unsupported.columns_of(notes, FIELDS, columns["nodes"])
        columns["job_id"] = [note.text("job_id") for note in notes]
    else:
        order = np.argsort(columns["submit_time"], kind="stable")
        columns["job_id"] = [str(rank) for rank in np.argsort(order, kind="stable")]
    if keep_extra and not ours:
        columns |= unsupported.extras_of(notes, _names(notes), "extra_")
        arguments = [job.item("arguments") for job in items]
        columns |= unsupported.extras_of(arguments, _names(arguments), "extra_argument_")
    if keep_extra and any(columns["extra_gpus_per_node"]):
        counts.pop("jobs that request GPUs, request left out", None)
    else:
        columns.pop("extra_gpus_per_node", None)
    first = min(columns["submit_time"])
    if first >= EPOCH:
        columns["submit_time"] = [submit - first for submit in columns["submit_time"]]
    made = Provenance(System(neighbors.nodes), None, first if first >= EPOCH else None)
    step = Step("read", {"format": "elastisim", "keep_extra": keep_extra}, counts)
    return workload_of(columns, file, ours, made, step)


def _names(items: Sequence[Item]) -> list[str]:
    return list(dict.fromkeys(name for item in items for name in item.values))


def _row(job: Item, neighbors: Neighbors, counts: Counter[str], ours: bool) -> dict[str, Any]:
    """Return the values of one job, and count defects in `counts`."""
    kind = job.text("type").lower()
    if kind not in (*Kind, "adaptive"):
        job.refuse("type", "one of rigid, moldable, malleable, evolving, adaptive")
    counts["adaptive jobs (malleable and evolving), read as malleable"] += kind == "adaptive"
    arguments = job.item("arguments")
    if kind == Kind.RIGID:
        least = most = preferred = job.whole("num_nodes", least=1)
    else:
        least, most = job.whole("num_nodes_min", least=1), job.whole("num_nodes_max", least=1)
        if least > most:
            job.refuse("num_nodes_max", f"at least num_nodes_min, {least}")
        requested = arguments.whole("num_nodes_pref", most)
        counts["jobs without a preferred size, set to the maximum"] += "num_nodes_pref" not in arguments.values
        preferred = min(max(requested, least), most)
        counts["preferred sizes outside the bounds of the job, set to the nearest bound"] += preferred != requested
    nodes = arguments.whole("requested", preferred, least=1) if ours else preferred
    limit = job.number("walltime", 0.0, least=0.0)
    ignored = isinstance(job.values.get("walltime"), float)
    counts["walltimes that are not integers, ignored as in ElastiSim"] += ignored
    gpus = job.whole("num_gpus_per_node" if kind == Kind.RIGID else "num_gpus_per_node_min", 0)
    counts["jobs that request GPUs, request left out"] += gpus > 0
    row = {
        "job_id": "",
        "submit_time": job.number("submit_time"),
        "run_time": float("nan"),
        "time_limit": float("nan") if ignored or not limit else limit,
        "nodes": nodes,
        "kind": "malleable" if kind == "adaptive" else kind,
        "nodes_min": least,
        "nodes_max": most,
        "nodes_pref": preferred,
        "speedup": "linear",
        "speedup_parameters": "",
        "extra_gpus_per_node": gpus,
    }
    model = neighbors.model(job.text("application_model"))
    if model is None:
        counts["jobs whose application model is missing, run time unknown"] += 1
        return row
    try:
        row["run_time"] = _seconds(model, arguments, nodes, neighbors)
        if not ours and least < most:
            row["speedup"], row["speedup_parameters"] = _speedup(model, arguments, (least, nodes, most), neighbors)
    except models.UnsupportedModelError:
        counts["jobs whose application model does not determine the run time, run time unknown"] += 1
    return row


def _seconds(model: Item, arguments: Item, nodes: int, neighbors: Neighbors) -> float:
    """Return the run time on `nodes` nodes in s, rounded to nanoseconds."""
    return round(models.run_time(model, arguments.values, nodes, neighbors.speed) * models.NANO) / models.NANO


def _speedup(model: Item, arguments: Item, sizes: tuple[int, int, int], neighbors: Neighbors) -> tuple[str, str]:
    """Return `linear` if the speedup is linear between the job's bounds, otherwise a table of up to 17 sizes."""
    least, nodes, most = sizes
    chosen = sorted({*np.unique(np.geomspace(least, most, 16).round().astype(int)).tolist(), nodes})
    times = {n: _seconds(model, arguments, n, neighbors) for n in chosen}
    if min(times.values()) <= 0:
        return "linear", ""
    if np.allclose([n * time for n, time in times.items()], times[nodes] * nodes, rtol=1e-6):
        return "linear", ""
    return "table", " ".join(f"{n}:{time!r}" for n, time in times.items())


FORMAT = Format(
    "elastisim",
    "jobs.json of ElastiSim and its related files",
    recognizes,
    read=read,
    write_folder=write_folder,
    written="mapping.csv",
)
