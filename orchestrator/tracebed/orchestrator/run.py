"""The Run: what happened, whoever made it happen.

A run is a folder of `run.json` and four Parquet tables. A replay on real nodes, a prediction, the output of
somebody else's simulator and a public log read as the run that it once was all have this one form, so that one
code measures them. Times in the tables are trace seconds since time 0 of the workload (wall seconds times the
speed); the facts of the wall clock stand in `run.json`.
"""

from __future__ import annotations

import json
import platform
import shutil
import socket
import sys
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from tracebed.converters.workload import System, Workload
from tracebed.errors import InputError
from tracebed.files import check_folder, replacing_folder

JOURNAL = "journal.sqlite"
FILES = ("run.json", "jobs.parquet")
"""The files by which a folder is recognized as a run."""
FORMAT = 2
"""Version of the folder's layout; a reader refuses a newer one. In 1 the allocations had a row a node and no count."""

TABLES: dict[str, dict[str, str]] = {
    # A row a job, in submit order.
    "jobs": {
        "job_id": "str",
        "kind": "str",
        "submit_planned": "float64",  # the workload's submit time
        "submit": "float64",  # when it really was submitted
        "start": "float64",  # when its nodes became its own; NaN: never
        "launched": "float64",  # when its first work began; NaN: never, or not observed
        "end": "float64",  # when its nodes were free again; NaN: never
        "state": "str",  # a JobState
        "reason": "str",
        "nodes": "int64",  # requested
        "run_time": "float64",  # the workload's: dedicated, on the requested nodes
        "time_limit": "float64",
        "user": "str",
    },
    # A row each time a job holds (some cores of) nodes without change: consecutive ones held alike.
    "allocations": {
        "job_id": "str",
        "node": "int64",  # the first one, index into `info.nodes`
        "count": "int64",  # how many: node, node + 1, ...
        "start": "float64",
        "end": "float64",
        "cores": "int64",  # on each node
        "cpus": "str",  # on each node the CPU mask as a list (0-3,7); empty where nodes are virtual
    },
    # A row each reconfiguration that was asked for, by stage; NaN: the stage was not reached or not observed.
    "reconfigurations": {
        "job_id": "str",
        "kind": "str",  # expand or shrink
        "nodes_from": "int64",
        "nodes_to": "int64",
        "asked": "float64",  # the policy decided
        "decided": "float64",  # the job took note, at a malleability point
        "applied": "float64",  # it works on the new nodes
        "ended": "float64",  # released nodes are free again
        "state": "str",  # applied, or cancelled where the job ended first
    },
    # Samples of use and power, where there are any.
    "nodes": {
        "time": "float64",
        "node": "int64",
        "cpu_busy": "float64",  # busy cores
        "power_w": "float64",
    },
}


class NodeFacts(NamedTuple):
    """A node as the run saw it."""

    name: str
    cores: int
    sockets: int = 1


@dataclass
class RunInfo:
    """The facts of a run that are not rows: `run.json`."""

    source: str
    """`replay`, `simulator`, the name of another simulator, or `log`."""
    execution: str
    """`computed` (jobs burnt CPU), `emulated` (jobs slept), `simulated`, `logged`; mixed nodes: `computed+emulated`."""
    nodes: list[NodeFacts]
    workload: dict[str, Any]
    """`name`, `sha256`, `jobs` and `provenance`."""
    policy: str
    policy_parameters: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    """Everything else that shaped the run: runtime model, overheads, interval, grain, ..."""
    engine: str = ""
    """Of a prediction: `compiled` or `python`, which of our two simulators made it; they agree to the bit."""
    seed: int = 0
    speed: float = 1.0
    """Trace seconds per wall second; of a simulation: the speed whose overheads it predicts."""
    resolution_s: float = 0.0
    """Resolution of the times, trace seconds (0: exact)."""
    state: str = "completed"
    """`completed` or `interrupted`."""
    interruptions: list[str] = field(default_factory=list)
    lateness_ms: dict[str, float] = field(default_factory=dict)
    """A replay's own lateness, wall ms after the due instants of submissions: p50, p99, max, count."""
    counts: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    created: str | None = None
    """ISO instant of the start; none for a prediction, whose bytes depend on its input alone."""
    hosts: list[dict[str, Any]] = field(default_factory=list)
    """Facts of the machines that took part (name, CPU model, cores, kernel, calibration)."""
    versions: dict[str, str] = field(default_factory=lambda: {"tracebed": version("tracebed")})
    format: int = FORMAT

    @property
    def is_real(self) -> bool:
        """Whether processes really ran (computed or emulated), as against a prediction."""
        return self.source == "replay" or self.execution == "logged"

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `run.json`."""
        return vars(self) | {"nodes": [node._asdict() for node in self.nodes]}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> RunInfo:
        """Inverse of `as_dict`; unknown keys are ignored. Raises ValueError, TypeError, KeyError or AttributeError."""
        known = {item.name for item in fields(cls)}
        nodes = [NodeFacts(**node) for node in raw["nodes"]]
        return cls(**{key: value for key, value in raw.items() if key in known} | {"nodes": nodes})


class Run:
    """A run in memory: `info`, and the tables of `TABLES` as pandas frames with exactly these columns."""

    def __init__(
        self,
        info: RunInfo,
        jobs: pd.DataFrame,
        allocations: pd.DataFrame | None = None,
        reconfigurations: pd.DataFrame | None = None,
        nodes: pd.DataFrame | None = None,
        *,
        where: str | None = None,
    ) -> None:
        """Adopt the tables; a table left out is empty. Raises InputError where a column is missing."""
        self.info = info
        self.jobs = _conform("jobs", jobs, where)
        self.allocations = _conform("allocations", allocations, where)
        self.reconfigurations = _conform("reconfigurations", reconfigurations, where)
        self.nodes = _conform("nodes", nodes, where)

    @cached_property
    def total_nodes(self) -> int:
        """Number of nodes."""
        return len(self.info.nodes)

    @property
    def jobs_on_shared_nodes(self) -> int:
        """How many jobs had only a part of a node at some time."""
        whole = pd.Series([node.cores for node in self.info.nodes]).take(self.allocations["node"].to_numpy()).array
        return int(self.allocations.loc[self.allocations["cores"] < whole, "job_id"].nunique())

    def save(self, folder: Path | str, *, journal: Path | None = None) -> Path:
        """Write the folder whole or not at all; an earlier run there is replaced once this one is complete.

        Args:
            folder: where to.
            journal: a replay's journal, moved into the folder.

        Raises:
            InputError: `folder` exists and is no run, or cannot be written.
        """
        folder = Path(folder)
        with replacing_folder(folder, FILES, (*(f"{name}.parquet" for name in TABLES), JOURNAL), "a run") as scratch:
            for name in TABLES:
                getattr(self, name).to_parquet(scratch / f"{name}.parquet", index=False)
            with (scratch / "run.json").open("w", encoding="utf-8") as file:  # in pieces: it may name a million nodes
                json.dump(self.info.as_dict(), file, indent=2, sort_keys=True)
                file.write("\n")
            if journal is not None:
                shutil.move(journal, scratch / JOURNAL)
        return folder

    @classmethod
    def load(cls, folder: Path | str) -> Run:
        """Read a run's folder. Raises InputError, naming the file, where it is none or damaged."""
        folder = Path(folder)
        path = folder / "run.json"
        if not path.is_file():
            raise InputError(
                "is not a run: it has no run.json",
                where=str(folder),
                hint="`tracebed simulate` or `replay` make one",
            )
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            if raw.get("format", 0) > FORMAT:
                raise InputError(
                    f"run format {raw['format']} is newer than this tracebed", where=str(path), hint="update"
                )
            info = RunInfo.from_dict(raw)
        except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
            raise InputError(f"is damaged: {error}", where=str(path), hint="make the run again") from error
        tables = {name: _read_table(folder / f"{name}.parquet") for name in TABLES}
        if info.format == 1:
            tables["allocations"]["count"] = 1
            info.format = FORMAT
        return cls(info, **tables, where=str(folder))


def check_target(folder: Path) -> None:
    """Make sure that a run can be written to `folder`: it is new, empty, or an earlier run.

    Raises:
        InputError: it is something else, or its parent cannot be written.
    """
    check_folder(folder, FILES, "a run")


def nodes_of(system: System) -> list[NodeFacts]:
    """Return the nodes of a workload's own system, all alike.

    Raises:
        InputError: the size of the system is unknown.
    """
    if not system.nodes:
        raise InputError("the workload does not say how many nodes its system has", hint="give --nodes or --inventory")
    width = len(str(system.nodes))
    return [NodeFacts(f"n{number:0{width}d}", system.cores_per_node or 1) for number in range(1, system.nodes + 1)]


def workload_facts(workload: Workload, name: str) -> dict[str, Any]:
    """Return what a run keeps of its workload: name, hash, number of jobs, provenance."""
    provenance = json.loads(workload.provenance.to_json())
    return {"name": name, "sha256": workload.sha256, "jobs": len(workload), "provenance": provenance}


def host_facts() -> dict[str, Any]:
    """Return the facts of this machine that a reader of a run may ask for."""
    import psutil

    return {
        "name": socket.gethostname(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "cpus": psutil.cpu_count(),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "python": sys.version.split()[0],
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def _read_table(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise InputError(f"cannot be read: {error}", where=str(path), hint="make the run again") from error


def _conform(name: str, table: pd.DataFrame | None, where: str | None) -> pd.DataFrame:
    schema = TABLES[name]
    if table is None:
        return pd.DataFrame({column: pd.Series(dtype=dtype) for column, dtype in schema.items()})
    for column in schema:
        if column not in table:
            raise InputError(f"table {name} lacks column {column!r}", where=where, hint="make the run again")
    changed = {c: t for c, t in schema.items() if table[c].dtype != t}
    return table[list(schema)].astype(changed).reset_index(drop=True)
