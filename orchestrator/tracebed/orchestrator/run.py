"""The Run: what happened to the jobs of a workload, in one form for replays, predictions and logs.

A run is a folder of `run.json` and four Parquet tables. A replay on real nodes, a prediction, the output of another
simulator and a public log all have this form, so that the same code measures them. Times in the tables are trace
seconds since time 0 of the workload (wall seconds times the speed); the facts of the wall clock are in `run.json`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from reprlib import repr as shown
from typing import Any, NamedTuple, Self, get_type_hints

import numpy as np
import pandas as pd

from tracebed import bounds
from tracebed.converters.provenance import fits
from tracebed.converters.workload import MAX_SIZE, System, Workload
from tracebed.errors import InputError, tolerate
from tracebed.files import check_folder, replacing_folder
from tracebed.orchestrator.run_checks import CLOCK_SKEW_S, ROUNDING_S, Facts, check
from tracebed.orchestrator.run_schema import TABLES, conform

JOURNAL = "journal.sqlite"
FILES = ("run.json", "jobs.parquet")
"""The files by which a folder is recognized as a run."""
FORMAT = 2
"""Version of the folder's layout; a reader refuses a newer one. In 1 the allocations had a row a node and no count."""


class NodeFacts(NamedTuple):
    """A node as the run saw it."""

    name: str
    cores: int
    sockets: int = 1

    @classmethod
    def from_json(cls, raw: Any) -> NodeFacts:
        """Return the node in `raw`. Raises ValueError if `raw` is not a node."""
        if isinstance(raw, dict) and raw.keys() <= {*cls._fields}:
            name, cores, sockets = raw.get("name"), raw.get("cores"), raw.get("sockets", 1)
            sized = all(type(size) is int and 1 <= size <= MAX_SIZE for size in (cores, sockets))
            if isinstance(name, str) and name and sized:
                return cls(**raw)
        raise ValueError(f"{shown(raw)} is not a node: a name, and cores and sockets from 1 to {MAX_SIZE:,}")


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
    def from_json(cls, raw: Any, *, where: str | None = None) -> RunInfo:
        """Inverse of `as_dict`.

        Args:
            raw: what the file holds; keys that are not facts are ignored.
            where: the file, for messages.

        Raises:
            InputError: a fact is missing, or cannot be what it says.
        """

        def damaged(what: str) -> InputError:
            return InputError(what, where=where, hint="it was changed: make the run again")

        if not isinstance(raw, dict):
            raise damaged("is not a JSON object")
        number = raw.get("format", 0)
        if isinstance(number, int) and number > FORMAT:
            raise InputError(f"run format {number} is newer than this tracebed", where=where, hint="update tracebed")
        for item in fields(cls):
            if item.name not in raw and item.default is MISSING and item.default_factory is MISSING:
                raise damaged(f"{item.name} is missing")
        nodes = raw["nodes"]
        if not isinstance(nodes, list):
            raise damaged("nodes is not a list")
        kinds = {name: kind for name, kind in get_type_hints(cls).items() if name in raw and name != "nodes"}
        for name, kind in kinds.items():
            if not fits(raw[name], kind):
                raise damaged(f"{name} is {shown(raw[name])}, not of type {getattr(kind, '__name__', kind)}")
        info = cls(**{name: raw[name] for name in kinds}, nodes=[])
        if not bounds.MIN_SPEED <= info.speed <= bounds.MAX_SPEED:
            raise damaged(f"speed is {info.speed:g}, not from {bounds.MIN_SPEED} to {bounds.MAX_SPEED:,.0f}")
        if info.resolution_s < 0:
            raise damaged(f"resolution_s is {info.resolution_s:g}, below 0")
        if info.state not in ("completed", "interrupted"):
            raise damaged(f"state is {shown(info.state)}, not completed or interrupted")
        for name, kind in (("name", str), ("sha256", str), ("jobs", int), ("provenance", dict)):
            if not isinstance(info.workload.get(name, kind()), kind):
                raise damaged(f"{name} of the workload is {shown(info.workload[name])}")
        try:
            info.nodes = [NodeFacts.from_json(node) for node in nodes]
        except ValueError as error:
            raise damaged(str(error)) from error
        if len({node.name for node in info.nodes}) < len(info.nodes):
            raise damaged("two nodes have one name")
        return info


class Run:
    """A run in memory: `info`, and the tables of `TABLES` as pandas frames with exactly these columns."""

    def __init__(
        self,
        info: RunInfo,
        jobs: pd.DataFrame,
        allocations: pd.DataFrame | None = None,
        reconfigurations: pd.DataFrame | None = None,
        nodes: pd.DataFrame | None = None,
    ) -> None:
        """Adopt the tables; a table left out is empty.

        Raises:
            InputError: a column is missing or of another type.
        """
        self.info = info
        self.jobs = conform("jobs", jobs)
        self.allocations = conform("allocations", allocations)
        self.reconfigurations = conform("reconfigurations", reconfigurations)
        self.nodes = conform("nodes", nodes)

    @cached_property
    def total_nodes(self) -> int:
        """Number of nodes."""
        return len(self.info.nodes)

    @property
    def jobs_on_shared_nodes(self) -> int:
        """How many jobs had only a part of a node at some time."""
        whole = pd.Series([node.cores for node in self.info.nodes]).take(self.allocations["node"].to_numpy()).array
        return int(self.allocations.loc[self.allocations["cores"] < whole, "job_id"].nunique())

    def __repr__(self) -> str:
        """Return source, policy, jobs, nodes and makespan, on one line."""
        info = self.info
        span = self.jobs["end"].max() - self.jobs["submit"].min()
        makespan = f"makespan {span:,.0f} s" if span == span else "no job ended"
        interrupted = ", interrupted" if info.state != "completed" else ""
        return (
            f"Run({info.source}, {info.policy}, {len(self.jobs):,} jobs, {self.total_nodes:,} nodes, "
            f"{makespan}{interrupted})"
        )

    def save(self, folder: Path | str, *, journal: Path | None = None) -> Path:
        """Write the folder whole or not at all; an earlier run there is replaced once this one is complete.

        Args:
            folder: the target.
            journal: the journal of a replay, moved into the folder.

        Raises:
            InputError: `folder` exists and is not a run, or cannot be written.
        """
        folder = Path(folder)
        with replacing_folder(folder, FILES, (*(f"{name}.parquet" for name in TABLES), JOURNAL), "a run") as scratch:
            for name in TABLES:
                getattr(self, name).to_parquet(_table_file(scratch, name), index=False)
            facts = self.info.as_dict()
            facts["checksums"] = {name: _sha256(_table_file(scratch, name)) for name in TABLES}
            with (scratch / "run.json").open("w", encoding="utf-8") as file:  # in pieces: it may name a million nodes
                json.dump(facts, file, indent=2, sort_keys=True)
                file.write("\n")
            if journal is not None:
                shutil.move(journal, scratch / JOURNAL)
        return folder

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read and check the folder of a run; docs/reference/runs.md lists the checks.

        Raises:
            InputError: the folder is not a run, or is damaged. The error names the file, and the row if there is one.
        """
        folder = Path(folder)
        path = folder / "run.json"
        if not path.is_file():
            raise InputError(
                "is not a run: it has no run.json",
                where=str(folder),
                hint="`tracebed simulate` or `replay` make one",
            )
        raw = _read_json(path)
        info = RunInfo.from_json(raw, where=str(path))
        tables = {}
        for name in TABLES:
            table = _read_table(_table_file(folder, name))
            if name == "allocations" and info.format == 1:
                table["count"] = 1
            tables[name] = conform(name, table, str(_table_file(folder, name)))
        info.format = FORMAT
        facts = Facts(
            cores=np.array([node.cores for node in info.nodes], dtype=np.int64),
            counts=info.counts,
            tolerance_s=max(info.resolution_s, ROUNDING_S),
            skew_s=CLOCK_SKEW_S * info.speed if info.is_real else 0.0,
            logged=info.execution == "logged",
        )
        check(tables, facts, folder)
        _check_sums(raw.get("checksums"), folder)
        return cls(info, **tables)


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


def _table_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"is damaged: {what}", where=str(path), hint="make the run again") from error


def _read_table(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError, OverflowError) as error:  # pyarrow's, too
        what = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot be read: {what}", where=str(path), hint="make the run again") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_sums(sums: Any, folder: Path) -> None:
    """Check the tables against the checksums in `run.json`; runs of earlier versions have none, which is a warning."""
    known = sums if isinstance(sums, dict) else {}
    for name in TABLES:
        if name in known and known[name] != _sha256(_table_file(folder, name)):
            what = "does not have the checksum that run.json gives: it was changed after the run"
            raise InputError(what, where=str(_table_file(folder, name)), hint="make the run again")
    missing = len(TABLES.keys() - known.keys())
    tolerate({"tables without a checksum in run.json: a changed value may go unnoticed": missing}, where=str(folder))
