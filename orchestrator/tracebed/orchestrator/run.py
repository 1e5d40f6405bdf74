"""The Run: what happened to the jobs of a workload, in one form for replays, predictions and logs.

A run is a folder of `run.json` and four Parquet tables. A replay on real nodes, a prediction, the output of another
simulator and a public log all have this form, so that the same code measures them. Times in the tables are trace
seconds since time 0 of the workload (wall seconds times the speed); the facts of the wall clock are in `run.json`.
"""

from __future__ import annotations

import glob
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, Self, get_type_hints

import numpy as np
import pyarrow.parquet as pq

from tracebed.converters.provenance import fits
from tracebed.converters.workload import MAX_EXACT, SCHEMA, FloatArray, Workload
from tracebed.ground.display import json_values
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.files import check_folder, replacing_folder, sha256_of
from tracebed.ground.input_files import MAX_RUN_JSON, read_json
from tracebed.ground.outputs import OTHER, REPLACE
from tracebed.ground.parquet_file import in_file, read
from tracebed.ground.states import JobState
from tracebed.ground.table import BLOCK, BoolArray, Table, codes_of, counts_of, repeated, texts
from tracebed.ground.version import version
from tracebed.machine.machine import Machine
from tracebed.machine.nodes import NodeFacts, ranges
from tracebed.orchestrator.runs.checks import CLOCK_SKEW_S, ROUNDING_S, STAMP_SKEW_S, Facts, check
from tracebed.orchestrator.runs.schema import TABLES, conform
from tracebed.orchestrator.runs.working_folders import check_idle
from tracebed.orchestrator.setup import SETUP_PARTS, Setup

if TYPE_CHECKING:
    import pandas as pd


JOURNAL = "journal.sqlite"
PERTURBED = "perturbed.csv"
"""Metrics of runs with perturbed input, part of the files of the run."""
FILES = ("run.json", "jobs.parquet")
"""The files by which a folder is recognized as a run."""
PARTS = (*(f"{name}.parquet" for name in TABLES), JOURNAL, PERTURBED)
"""Further files of a run."""
VIRTUAL = "virtual"
"""Source and execution of a replay on virtual nodes."""
FORMAT = 4
"""Version of the folder layout; other versions are rejected."""


class Frame:
    """An attribute of a run: a table as a frame, made when it is first read. From then on, it is the table."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __get__(self, run: Any, owner: type[Any]) -> pd.DataFrame:
        frames: dict[str, pd.DataFrame] = run.frames
        if self.name not in frames:
            frames[self.name] = run.tables[self.name].frame()
        return frames[self.name]

    def __set__(self, run: Any, frame: pd.DataFrame) -> None:
        run.frames = {**run.frames, self.name: frame}  # a copy of the run keeps its own


@dataclass
class RunInfo:
    """Metadata of a run: the content of `run.json`."""

    source: str
    """`replay`, `virtual` (a replay on virtual nodes), `simulator`, the name of another simulator, or `log`."""
    execution: str
    """`computed` (jobs used CPU), `emulated` (jobs slept), `virtual` (jobs and nodes are models), `simulated`, `logged`
    (mixed nodes: `computed+emulated`)."""
    nodes: list[NodeFacts]
    workload: dict[str, Any]
    """`name`, `sha256`, `jobs` and `provenance`."""
    setup: Setup = field(default_factory=Setup)
    """The scheduling of the jobs and the model of time. `settings` contains the settings stated by the source."""
    machine: Machine | None = None
    """The machine, if `nodes` do not say all of it: that of a slurm.conf. Its nodes are `nodes`."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Parameters specific to the executor of the run: inventory, grain, balance, duty, ..."""
    engine: str = ""
    """Simulator of a prediction: `compiled` or `python`. The results of both are identical."""
    seed: int = 0
    resolution_s: float = 0.0
    """Resolution of the times, trace seconds (0: exact)."""
    state: str = "completed"
    """`completed` or `interrupted`."""
    interruptions: list[str] = field(default_factory=list)
    outages: list[dict[str, Any]] = field(default_factory=list)
    """Lost nodes: `node`, `from` and `until` (trace s; None: the node did not return), `reason`, and in a simulation
    `kind`: `down`, or `drain` for a node that took no new jobs."""
    pauses: list[dict[str, Any]] = field(default_factory=list)
    """Times in which the replayer of a resumed replay did not run: `at` (trace s), `wall_s` (duration in wall time;
    None: unknown), `adopted` and `lost` (numbers of running jobs that went on, and that lost an agent)."""
    lateness_ms: dict[str, float] = field(default_factory=dict)
    """Lateness of the submissions of a replay, wall ms after the planned instants: p50, p99, max, count."""
    handovers: dict[str, Any] = field(default_factory=dict)
    """CPUs handed over between jobs that share nodes, in a replay: `handovers` (number), `overlap_s` and `gap_s` (the
    longest overlap of two masks and the longest time between them on a CPU, wall s), `overlap_at` and `gap_at`."""
    strays: int = 0
    """Number of ranks of a replay with a process that changed its own CPU mask; `warnings` names jobs and nodes."""
    counts: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    health: dict[str, Any] = field(default_factory=dict)
    """Health of a replay: `state` (healthy, degraded or unhealthy), `causes` (signal, value, limit, state, text),
    `signals` (all figures), `thresholds` (hash), and for limits wider than the defaults `wider` (texts) and `defaults`
    (state and causes by the defaults). Empty for other runs."""
    calibration: dict[str, Any] = field(default_factory=dict)
    """Calibration used: name, sha256, `workloads` (hashes of the workloads it was made from), ... Empty without one."""
    imported: dict[str, Any] = field(default_factory=dict)
    """Origin of a run read from the file of another program: `from`, `file`, `sha256`, `bytes`, `program`, `version`,
    `matched_by`, `offset_s`, ... Empty for other runs."""
    unknown: dict[str, str] = field(default_factory=dict)
    """What the source of the run does not record (`nodes`, `allocations`, `reconfigurations`) -> reason. The tables
    have no rows for it, which does not mean zero: metrics that need it are undefined for this reason."""
    batch: dict[str, Any] = field(default_factory=dict)
    """Facts of the batch system that was the scheduler of a replay: `system`, `version`, `partition`, `accounting`,
    `epoch_s` (Unix time of trace time 0), `submission_ms` (duration of the calls), ... Empty for other runs."""
    created: str | None = None
    """Start of the run in ISO 8601. None for a prediction, so that equal inputs give equal files."""
    hosts: list[dict[str, Any]] = field(default_factory=list)
    """Hosts of a replay: name, CPU model, cores, kernel, calibration."""
    versions: dict[str, str] = field(default_factory=lambda: {"tracebed": version()})
    format: int = FORMAT

    @property
    def policy(self) -> str:
        """Name of the policy; `setup.UNKNOWN_POLICY` if the source does not record it."""
        return self.setup.scheduling.policy

    @property
    def policy_parameters(self) -> dict[str, Any]:
        """Parameters of the policy, with their defaults."""
        return dict(self.setup.scheduling.policy_parameters)

    @property
    def speed(self) -> float:
        """Trace seconds per wall second. In a prediction, it converts the overheads."""
        return self.setup.timing.speed

    @property
    def stated(self) -> dict[str, tuple[str, ...]]:
        """The settings that the source of the run states, by part of the setup.

        A batch system that decides states its own policy and its treatment of time limits. A log or a file of another
        program states the policy at most. The time of a real run is not modeled.
        """
        if self.source == "log" or self.imported:
            return {"scheduling": ("policy", "policy_parameters"), "timing": ("speed",)}
        if self.batch and "parameters" not in self.batch:  # with a policy of tracebed, they are beside its own
            return {"scheduling": ("policy", "policy_parameters", "over_limit"), "timing": ("speed",)}
        return SETUP_PARTS | ({"timing": ("speed",)} if self.is_replay else {})

    @property
    def settings(self) -> dict[str, Any]:
        """The stated settings besides policy and speed: settings, each overhead as a setting, and `parameters`."""
        parts = self.setup.as_dict()
        found = {name: parts[room][name] for room, names in self.stated.items() for name in names}
        for name in ("policy", "policy_parameters", "speed", "calibration"):
            found.pop(name, None)
        if not found.get("dispatched"):
            found.pop("dispatched", None)
        found |= {f"overhead_{name}": value for name, value in found.pop("overheads", {}).items()}
        return found | self.parameters

    @property
    def is_real(self) -> bool:
        """Whether the run was observed on a real system: a replay or a log, not a prediction or a virtual replay."""
        return self.source == "replay" or self.execution == "logged"

    @property
    def kind(self) -> str:
        """The kind of the run in words: `a real run (log)`, `a virtual replay` or `a prediction (simulator)`."""
        if self.source == VIRTUAL:
            return "a virtual replay"
        return f"a {'real run' if self.is_real else 'prediction'} ({self.source})"

    @property
    def is_replay(self) -> bool:
        """Whether the run was replayed, on real nodes or on virtual ones."""
        return self.source in ("replay", VIRTUAL)

    @property
    def stopped_by_signal(self) -> bool:
        """Whether a signal (such as Ctrl-C) interrupted the run, rather than a failure of the testbed."""
        return any(reason.startswith("SIG") for reason in self.interruptions)

    @property
    def duties(self) -> tuple[float, ...]:
        """Duty of the ranks of a replay, one for all nodes or one per node; 0 or 1 for other runs."""
        duty = self.parameters.get("duty")
        known = [each for each in (duty if isinstance(duty, list) else [duty]) if isinstance(each, (int, float))]
        return tuple(map(float, known)) or (0.0 if self.execution in ("emulated", VIRTUAL) else 1.0,)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `run.json`: JSON values. A figure that is NaN or infinite is undefined: None."""
        apart = ("nodes", "setup", "machine")
        facts: dict[str, Any] = json_values({name: value for name, value in vars(self).items() if name not in apart})
        parts = self.setup.as_dict()
        stated = self.stated.items()
        setup = {room: {name: parts[room][name] for name in names if name != "calibration"} for room, names in stated}
        machine = {} if self.machine is None else {"machine": self.machine.to_json()}
        return facts | {"nodes": ranges(self.nodes), "setup": setup, **machine}

    @classmethod
    def from_json(cls, raw: Any, *, where: str | None = None) -> RunInfo:
        """Return the metadata in `raw`, the output of `as_dict`.

        Args:
            raw: the content of the file; unknown keys are ignored.
            where: the file, for messages.

        Raises:
            InputError: a value is missing or invalid.
        """

        def damaged(what: str) -> InputError:
            return InputError(what, where=where, hint="the file was changed: repeat the run")

        if not isinstance(raw, dict):
            raise damaged("is not a JSON object")
        number = raw.get("format")
        if isinstance(number, int) and number != FORMAT:
            hint = "update tracebed" if number > FORMAT else "repeat the run"
            raise InputError(f"the run has format {number}, and this tracebed reads {FORMAT}", where=where, hint=hint)
        for item in fields(cls):
            if item.name not in raw and item.default is MISSING and item.default_factory is MISSING:
                raise damaged(f"{item.name} is missing")
        nodes = raw["nodes"]
        if not isinstance(nodes, list):
            raise damaged("nodes is not a list")
        if not isinstance(raw.get("setup"), dict):
            raise damaged("setup is missing or not an object")
        apart = ("nodes", "setup", "machine")
        kinds = {name: kind for name, kind in get_type_hints(cls).items() if name in raw and name not in apart}
        for name, kind in kinds.items():
            if not fits(raw[name], kind):
                raise damaged(f"{name} is {shown(raw[name])}, not of type {getattr(kind, '__name__', kind)}")
        try:
            parts, machine = _with_machine(raw)
            setup = Setup.from_dict(parts)
        except InputError as error:
            raise damaged(f"setup: {error.what}") from error
        info = cls(**{name: raw[name] for name in kinds}, nodes=[], setup=setup, machine=machine)
        if info.resolution_s < 0:
            raise damaged(f"resolution_s is {info.resolution_s:g}, below 0")
        if info.state not in ("completed", "interrupted"):
            raise damaged(f"state is {shown(info.state)}, not completed or interrupted")
        if info.health and not _is_health(info.health):
            raise damaged("health is not a state with its causes")
        if not fits(info.calibration.get("workloads", []), list[str]):
            raise damaged(f"workloads of the calibration is {shown(info.calibration['workloads'])}")
        for name in ("overlap_s", "gap_s"):
            if not fits(info.handovers.get(name, 0.0), float):
                raise damaged(f"{name} of the hand-overs is {shown(info.handovers[name])}")
        for name, kind in (("name", str), ("sha256", str), ("jobs", int), ("provenance", dict)):
            if not isinstance(info.workload.get(name, kind()), kind):
                raise damaged(f"{name} of the workload is {shown(info.workload[name])}")
        try:
            info.nodes = [node for part in nodes for node in NodeFacts.from_json(part)]
        except ValueError as error:
            raise damaged(str(error)) from error
        if len(nodes) > 1 and len({node.name for node in info.nodes}) < len(info.nodes):  # a range has no name twice
            raise damaged("two nodes have the same name")
        return info


def _with_machine(raw: Mapping[str, Any]) -> tuple[dict[str, Any], Machine | None]:
    """Return the setup in the content of a `run.json`, as JSON values, and the machine, if one is recorded.

    Until November 2026, the machine of a slurm.conf was recorded in two parameters of the policy `slurm`, as texts.

    Raises:
        InputError: the machine is invalid.
    """
    setup, machine = raw["setup"], raw.get("machine")
    scheduling = setup.get("scheduling")
    parameters = scheduling.get("policy_parameters") if isinstance(scheduling, dict) else None
    if isinstance(parameters, dict) and "cluster" in parameters and scheduling["policy"] == "slurm":
        others = dict(parameters)
        texts = {"cluster": others.pop("cluster"), "reservations": others.pop("reservations", "")}
        setup = {**setup, "scheduling": {**scheduling, "policy_parameters": others}}
        if texts["cluster"]:
            try:
                machine = {"source": "slurm"} | {name: json.loads(text) for name, text in texts.items() if text}
            except (TypeError, ValueError) as error:
                raise InputError("the cluster of the policy slurm is not JSON") from error
    if machine is None:
        return setup, None
    from tracebed.machine.sources import recorded_machine  # imports the readers of workloads

    return setup, recorded_machine(machine)


class Run:
    """A run in memory: `info`, and the tables of `TABLES` as pandas frames, or as columns (`table`) without pandas."""

    folder: Path | None = None
    """Folder in which the run was saved, or from which it was read."""
    jobs = Frame()
    allocations = Frame()
    reconfigurations = Frame()
    nodes = Frame()

    def __init__(
        self,
        info: RunInfo,
        jobs: pd.DataFrame | Table,
        allocations: pd.DataFrame | Table | None = None,
        reconfigurations: pd.DataFrame | Table | None = None,
        nodes: pd.DataFrame | Table | None = None,
        *,
        folder: Path | None = None,
    ) -> None:
        """Create a run from its tables, which were read from `folder`. A table that is None is empty.

        Raises:
            InputError: a column is missing or has the wrong type.
        """
        self.info = info
        given = (jobs, allocations, reconfigurations, nodes)
        self.tables = {name: conform(name, table) for name, table in zip(TABLES, given, strict=True)}
        for name in ("allocations", "reconfigurations"):
            self.tables[name] = self.tables[name].numbered("job_id", self.tables["jobs"])
        self.frames: dict[str, pd.DataFrame] = {}
        self.folder = folder

    def table(self, name: str) -> Table:
        """Return a table of `TABLES` as columns.

        Raises:
            InputError: the frame of the table was changed, and a column is missing or has the wrong type.
        """
        return conform(name, self.frames[name]) if name in self.frames else self.tables[name]

    @cached_property
    def total_nodes(self) -> int:
        """Number of nodes."""
        return len(self.info.nodes)

    @property
    def are_resizes(self) -> BoolArray:
        """Whether each reconfiguration is one of `resizes`."""
        rows = self.table("reconfigurations")
        return np.asarray((rows["node"] == -1) & ~rows.among("state", ("denied", "refused")))

    @property
    def resizes(self) -> pd.DataFrame:
        """The reconfigurations in nodes, without changes of the cores on a node and without denied or refused ones."""
        return self.reconfigurations[self.are_resizes]

    @property
    def requests(self) -> pd.DataFrame:
        """The answers to the requests of evolving jobs: reconfigurations in nodes, and denied ones."""
        return self.reconfigurations[(self.reconfigurations["nodes_asked"] > 0).to_numpy()]

    @property
    def core_changes(self) -> pd.DataFrame:
        """The reconfigurations of the cores of a job on a node."""
        return self.reconfigurations[(self.reconfigurations["node"] != -1).to_numpy()]

    @property
    def jobs_on_shared_nodes(self) -> int:
        """Number of jobs that held only some of the cores of a node at some time."""
        rows = self.table("allocations")
        cores = np.array([node.cores for node in self.info.nodes], dtype=np.int64)
        if min(int(block["cores"].min(initial=MAX_EXACT)) for block in rows.blocks()) >= cores.max(initial=0):
            return 0
        partial = np.concatenate([block["cores"] < cores[block["node"]] for block in rows.blocks()])
        return len(codes_of(rows.take(partial).raw("job_id"))[1])

    def check(self, folder: Path) -> None:
        """Check the tables; docs/reference/runs.md lists the checks.

        Args:
            folder: the folder of the run, or the file that it was made from, for messages.

        Raises:
            InputError: the run is damaged. The error names the table, and the row if there is one.
        """
        info, observed = self.info, self.info.is_real or self.info.is_replay
        facts = Facts(
            cores=np.array([node.cores for node in info.nodes], dtype=np.int64),
            counts=info.counts,
            tolerance_s=max(info.resolution_s, ROUNDING_S),
            skew_s=CLOCK_SKEW_S * info.speed if observed else 0.0,
            stamp_skew_s=STAMP_SKEW_S * info.speed if observed else 0.0,
            logged=info.execution == "logged",
            imported=bool(info.imported),
        )
        check({name: self.table(name) for name in TABLES}, facts, folder)

    def __repr__(self) -> str:
        """Return source, policy, jobs, nodes and makespan, on one line."""
        info, jobs = self.info, self.table("jobs")
        ended = jobs["end"][~np.isnan(jobs["end"])]
        makespan = f"makespan {ended.max() - np.nanmin(jobs['submit']):,.0f} s" if len(ended) else "no job ended"
        interrupted = ", interrupted" if info.state != "completed" else ""
        health = f", {info.health['state']}" if info.health else ""
        return (
            f"Run({info.source}, {info.policy}, {len(jobs):,} jobs, {self.total_nodes:,} nodes, "
            f"{makespan}{interrupted}{health})"
        )

    def save(
        self, folder: Path | str, *, replace: bool = False, journal: Path | None = None, own: Path | None = None
    ) -> Path:
        """Write the run to `folder` atomically, and return `folder`.

        Args:
            folder: the target.
            replace: whether an earlier run in `folder` is replaced when the new one is complete. A finished real run is
                never replaced by a prediction or by an interrupted run.
            journal: the journal of a replay. It is moved into the folder.
            own: the working folder of the replay whose run this is.

        Raises:
            InputError: `folder` exists and may not be replaced, a replay writes to it, or it cannot be written.
        """
        folder = Path(folder)
        successor = Successor(folder, replace, self.info.is_real, self.info.state == "completed", own)
        with replacing_folder(folder, FILES, PARTS, "a run", successor.check) as scratch:
            successor.check_idle()
            facts = self.info.as_dict()
            with ThreadPoolExecutor(2) as threads:  # Arrow and hashlib work without Python's lock
                written = threads.map(lambda name: write_table(self.table(name), table_file(scratch, name)), TABLES)
                facts["checksums"] = dict(zip(TABLES, written, strict=True))
            with (scratch / "run.json").open("w", encoding="utf-8") as file:  # streamed: a run may have a million nodes
                json.dump(facts, file, indent=2, sort_keys=True)
                file.write("\n")
            if journal is not None:
                shutil.move(journal, scratch / JOURNAL)
            successor.check_idle()
        self.folder = folder
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
            hint = "`tracebed simulate` and `tracebed replay` write runs"
            if any(folder.parent.glob(f"{glob.escape(folder.name)}.partial-*")):
                hint = f"a replay to it has not ended: `tracebed watch {folder}`"
            raise InputError("is not a run: run.json is missing", where=str(folder), hint=hint)
        raw = read_json(path, "run.json", hint="repeat the run", most=MAX_RUN_JSON)
        info = RunInfo.from_json(raw, where=str(path))
        tables = {}
        for name in TABLES:
            path = table_file(folder, name)
            tables[name] = conform(name, read(path, hint="repeat the run"), str(path))
        run = cls(info, **tables, folder=folder)
        run.check(folder)
        check_sums(raw.get("checksums"), folder)
        run.tables = {name: in_file(table, table_file(folder, name)) for name, table in run.tables.items()}
        return run


def check_target(folder: Path, *, replace: bool = False, real: bool = True) -> None:
    """Check that a run can be written to `folder`: it is missing or empty, or an earlier run that may be replaced.

    Args:
        folder: the target.
        replace: whether an earlier run may be replaced.
        real: whether the run is real. A prediction never replaces a finished real run.

    Raises:
        InputError: `folder` exists and may not be replaced, a replay writes to it, or its parent is not writable.
    """
    successor = Successor(folder, replace, real)
    successor.check_idle()
    check_folder(folder, FILES, "a run", successor.check)


def workload_facts(workload: Workload, name: str) -> dict[str, Any]:
    """Return the description of a workload for `run.json`: name, hash, number of jobs, provenance."""
    provenance = json.loads(workload.provenance.to_json())
    return {"name": name, "sha256": workload.sha256, "jobs": len(workload), "provenance": provenance}


def run_of_jobs(
    workload: Workload,
    info: RunInfo,
    *,
    start: FloatArray,
    end: FloatArray,
    state: Sequence[str] | None = None,
    reason: Sequence[str] | None = None,
    allocations: pd.DataFrame | Table | None = None,
) -> Run:
    """Return the run of the jobs of a workload, all submitted at their times. Sets `info.counts`.

    Args:
        workload: the jobs; those of `Workload.runnable`, if the executor needs run times and sizes.
        info: the metadata of the run.
        start: time at which each job starts, s, shape (jobs,); NaN: never.
        end: time at which each job ends, s, shape (jobs,); NaN: never.
        state: final state of each job, a `JobState`. None: `completed`, and `rejected` for jobs that never start.
        reason: reason for the state of each job; empty for jobs that need none. None: no job needs a reason.
        allocations: the table `allocations` (docs/reference/runs.md). None: it has no rows; `info.unknown` says why.

    Raises:
        InputError: a column of `allocations` is missing or has the wrong type.
    """
    if state is None:
        state = [JobState.REJECTED if never else JobState.COMPLETED for never in np.isnan(start)]
    given = {
        "submit_planned": workload.floats("submit_time"),
        "submit": workload.floats("submit_time"),
        "start": np.asarray(start, np.float64),
        "end": np.asarray(end, np.float64),
        "state": texts([str(one) for one in state]),
        "reason": repeated("", len(workload)) if reason is None else texts([str(one) for one in reason]),
    }
    requested = {
        name: workload.arrow(name) if column.dtype == "str" else workload.column(name)
        for name, column in TABLES["jobs"].items()
        if name in SCHEMA
    }
    jobs = Table(requested | given)
    info.counts = {"jobs": len(workload), **counts_of(jobs.raw("state"))}
    return Run(info, jobs, allocations)


def _is_health(raw: dict[str, Any]) -> bool:
    """Return whether a value has the state and the causes of `RunInfo.health`, also by the default limits."""
    defaults = raw.get("defaults")
    return (
        _is_judgment(raw)
        and isinstance(raw.get("signals", {}), dict)
        and isinstance(raw.get("thresholds", ""), str)
        and fits(raw.get("wider", []), list[str])
        and (_is_judgment(defaults) if "wider" in raw else defaults is None)
    )


def _is_judgment(raw: Any) -> bool:
    """Return whether a value is a state of health with its causes."""
    states = ("degraded", "unhealthy")
    if not isinstance(raw, dict) or raw.get("state") not in ("healthy", *states):
        return False
    return isinstance(raw.get("causes"), list) and all(
        isinstance(cause, dict)
        and cause.get("state") in states
        and isinstance(cause.get("text"), str)
        and isinstance(cause.get("signal", ""), str)
        for cause in raw["causes"]
    )


def table_file(folder: Path, name: str) -> Path:
    """Return the file of a table in the folder of a run."""
    return folder / f"{name}.parquet"


def write_table(table: Table, path: Path) -> str:
    """Write a table, and return the SHA-256 of the file.

    Only texts have a dictionary: times and ids have too many values, and trying takes time.
    """
    words = [name for name, column in TABLES[path.stem].items() if column.dtype == "str" and name != "job_id"]
    with pq.ParquetWriter(path, table.rows(0, 0).arrow().schema, use_dictionary=words) as writer:
        for block in table.blocks():
            writer.write_table(block.arrow(), BLOCK)
    return sha256_of(path)


def check_sums(sums: Any, folder: Path) -> None:
    """Check the tables against the checksums in `run.json`. Warn if there are none, as in runs of earlier versions.

    Raises:
        InputError: a table does not match its checksum.
    """
    known = sums if isinstance(sums, dict) else {}
    for name in TABLES:
        if name in known and known[name] != sha256_of(table_file(folder, name)):
            what = "does not match its checksum in run.json: the file was changed after the run"
            raise InputError(what, where=str(table_file(folder, name)), hint="repeat the run")
    missing = len(TABLES.keys() - known.keys())
    tolerate({"tables without a checksum in run.json: changes cannot be detected": missing}, where=str(folder))


@dataclass(frozen=True)
class Successor:
    """A run that is to be written to a folder."""

    folder: Path
    replace: bool
    """Whether an earlier run may be replaced."""
    real: bool
    """Whether the new run is real: a replay or a log, not a prediction."""
    finished: bool = True
    """Whether the new run was not interrupted."""
    own: Path | None = None
    """The working folder of the replay whose run this is."""

    def check_idle(self) -> None:
        """Raise InputError if another replay is writing to the folder."""
        check_idle(self.folder, self.own)

    def check(self, existing: Path) -> None:
        """Raise InputError if the run in `existing`, which has or had the name `folder`, may not be replaced."""
        if is_finished_real(existing) and not (self.real and self.finished):
            new = "an interrupted run" if self.real else "a prediction"
            what = f"exists: a finished real run, which {new} does not replace"
            raise InputError(what, where=str(self.folder), hint=OTHER)
        if not self.replace:
            raise InputError("exists: a run", where=str(self.folder), hint=REPLACE)


def is_finished_real(folder: Path) -> bool:
    """Return whether `folder` is a real run that was not interrupted, or a run whose metadata are damaged."""
    return _is_finished(folder, lambda info: info["source"] == "replay" or info["execution"] == "logged")


def is_finished_replay(folder: Path) -> bool:
    """Return whether `folder` is a replay that was not interrupted, real or virtual, or has damaged metadata."""
    return _is_finished(folder, lambda info: info["source"] in ("replay", "virtual"))


def _is_finished(folder: Path, counts: Callable[[dict[str, Any]], bool]) -> bool:
    try:
        info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return bool(counts(info) and info.get("state", "completed") == "completed")
    except FileNotFoundError:
        return False
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return True
