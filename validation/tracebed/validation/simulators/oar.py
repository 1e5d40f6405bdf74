"""Jobs of OAR: the JSON that `oarstat --gantt "BEGIN, END" --json` prints.

Format: the manual of oarstat. `resources` are the resources of the machine, each on a host, and `jobs` has the times
(s since 1970), the state and the resources of each job by its id. A job that has not ended has the end of its time
limit as `stop_time`, and a job that has not started has a planned start: both are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.input_files import parse_json
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run
from tracebed.validation.simulators.assembly import run_of
from tracebed.validation.simulators.observed import Observed
from tracebed.validation.simulators.simulator import ExternalSimulator, ReadOptions

HINT = 'give the output of oarstat --gantt "BEGIN, END" --json'
ENDED = ("Terminated", "Error")  # states of jobs whose `stop_time` is their end
STARTED = (*ENDED, "Running", "Finishing", "Suspended", "Resuming")  # states of jobs whose `start_time` is their start


def recognizes(path: Path) -> bool:
    """Return whether a file is a JSON object with a list of resources of OAR, or with jobs of OAR."""
    if not path.is_file() or not path.stat().st_size:
        return False
    head = Input.at(path).head.lstrip()
    return head.startswith(b"{") and (b'"resource_id"' in head or b'"submission_time"' in head)


def read(path: Path, workload: Workload | None, options: ReadOptions) -> Run:
    """Read the jobs of OAR with the nodes that they held (`oarstat --gantt --json`)."""
    # Resources of one host are the cores of a node. `options.nodes` does not apply: the file lists the machine.
    file = Input.at(path)
    raw = parse_json(file.data.decode("utf-8", "replace"), where=str(path), hint=HINT)
    jobs = raw.get("jobs") if isinstance(raw, dict) else None
    if not isinstance(jobs, dict) or not all(isinstance(job, dict) for job in jobs.values()):
        raise InputError("has no jobs of OAR", where=str(path), hint=HINT)
    hosts = dict(_hosts(raw.get("resources"), str(path)))
    places = [f"{path}, job {name}" for name in jobs]
    rows, held = [], []
    for name, job in jobs.items():
        where, state = f"{path}, job {name}", str(job.get("state") or "")
        mine: Counter[str] = Counter()
        for resource in _list(job, "resources", where):
            mine[hosts.setdefault(str(resource), f"resource-{resource}")] += 1
        rows.append(
            {
                "job_id": name,
                "submit": _time(job, "submission_time", where),
                "start": _time(job, "start_time", where) if state in STARTED else math.nan,
                "end": _time(job, "stop_time", where) if state in ENDED else math.nan,
                "nodes": len(mine) or math.nan,
                "time_limit": _time(job, "walltime", where),
                "user": str(job.get("user") or job.get("owner") or ""),
                "state": state,
            }
        )
        held.append(mine)
    table = pd.DataFrame(rows)
    whole = Counter(hosts.values())
    cores = options.cores_per_node or max(whole.values(), default=1)
    numbers = {host: number for number, host in enumerate(whole)}
    started = table["start"].notna().tolist() if rows else []
    allocations = pd.DataFrame(
        [
            (row, numbers[host], 1, max(1, cores * count // whole[host]))
            for row, mine in enumerate(held)
            if started[row]
            for host, count in sorted(mine.items(), key=lambda item: numbers[item[0]])
        ],
        columns=["row", "node", "count", "cores"],
    )
    known = set(allocations["row"])
    observed = Observed(
        jobs=table,
        source=file.source,
        where=str(path),
        place=lambda row: places[row],
        format="oar-gantt",
        program="oar",
        nodes=NodeFacts.alike(whole, cores),
        allocations=allocations if all(row in known for row, ran in enumerate(started) if ran) else None,
        resolution_s=1.0,
        unix=True,
    )
    return run_of(observed, workload, options)


def _hosts(resources: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield id and host of each resource, by id."""
    hosts = {}
    for resource in resources if isinstance(resources, list) else []:
        if not isinstance(resource, dict) or not str(resource.get("resource_id", "")).isdecimal():
            raise InputError("has a resource without a number", where=where, hint=HINT)
        number = str(resource["resource_id"])
        hosts[number] = str(resource.get("network_address") or resource.get("host") or f"resource-{number}")
    yield from sorted(hosts.items(), key=lambda item: (len(item[0]), item[0]))


def _list(job: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = job.get(name) or []
    if not isinstance(value, list):
        raise InputError(f"{name} is not a list", where=where, hint=HINT)
    return value


def _time(job: Mapping[str, Any], name: str, where: str) -> float:
    """Return a time or duration, s; NaN if it is missing or 0, as OAR writes unknown times."""
    value = job.get(name) or 0
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name} is not a number", where=where, hint=HINT)
    return number or math.nan


SIMULATOR = ExternalSimulator(
    name="oar-gantt", title="jobs of OAR: oarstat --gantt --json", read=read, recognizes=recognizes
)
"""Jobs of OAR: the JSON of `oarstat --gantt`."""
