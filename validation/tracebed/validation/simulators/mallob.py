"""Logs of Mallob as runs: the jobs that clients introduced, with priority, limit, maximum demand, start and end.

Format: the folder of a run has a folder for each MPI rank, as the README of github.com/domschrei/mallob-experimental-
data describes it, and the output of Slurm with the options. Of a rank R that introduces jobs, `log.R.streamer` has
`SUBMIT NAME arr= prio= wclim= maxdem=`, `log.R.i` the number of each name, `log.R.reader` the formula of each number,
and `log.R` what happened: `Introducing job #J`, `Scheduling r.#J:0`, `SOLUTION #J`, `TIMEOUT #J`. A line `#J:I :
update v=V` in `log.R` of any rank is the number of workers of job J, which the rank learns while it has one of them.

Each rank is a node. The volumes of most jobs were logged by ranks whose logs are not public (`logged_volumes`), so the
sizes of all jobs are computed: by the published rule, from the starts, the ends, the priorities and the demands in the
logs (`ruled_volumes`). The logged volumes show how well. Which ranks a job held is unknown: they are assigned.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import FloatArray, IntArray, Kind, Provenance, Source, Step, System, Workload
from tracebed.ground.errors import InputError
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.policies.mallob import volumes
from tracebed.validation.simulators.assembly import at_speed, run_of
from tracebed.validation.simulators.observed import NodePeriods, Observed, applied_resizes
from tracebed.validation.simulators.simulator import ExternalSimulator, ReadOptions

MAIN = re.compile(r"log\.(\d+)")
SUBMIT = re.compile(r"SUBMIT (\S+) arr=\S+ prio=(\S+) wclim=(\d+)s maxdem=(\d+)")
NUMBER = re.compile(r'Mapping job "[^".]*\.([^"]+)\.json" to internal ID #(\d+)')
FORMULA = re.compile(r"Reading job #(\d+) rev\. \d+ \{([^}]*)\}")
EVENT = re.compile(
    r"(?P<time>\d+\.\d+) \d+ (?:"
    r"Introducing job #(?P<submit>\d+) |Scheduling r\.#(?P<start>\d+):0 |"
    r"SOLUTION #(?P<solved>\d+) |TIMEOUT #(?P<timeout>\d+) )"
)
VOLUME = re.compile(r"(\d+\.\d+) \d+ #(\d+):\d+ : update v=(\d+) ")
RANKS, THREADS = re.compile(r"#ranks: *(\d+)"), re.compile(r" -t=(\d+) ")
HINT = "give the folder of a run, with the folders of the ranks in it, complete and as Mallob wrote it"
COLUMNS = ("client", "formula", "priority", "limit", "demand", "submit", "start", "end", "state")


class Ranks(NamedTuple):
    """The machine of a run, by its options: the number of MPI ranks, and the solver threads of each."""

    ranks: int
    threads: int


def recognizes(path: Path) -> bool:
    """Return whether a folder has logs of clients of Mallob."""
    return path.is_dir() and any(path.glob("*/log.*.streamer"))


def contents_of(folder: Path) -> dict[str, bytes]:
    """Return name -> content of the logs in the folder of a run: main logs, those of clients, and Slurm's output."""
    names = [name for name in folder.glob("*/log.*") if MAIN.fullmatch(name.name) or name.suffix in CLIENT]
    try:
        return {each.name: each.read_bytes() for each in sorted([*names, *folder.glob("slurm-*.out")])}
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(error.filename), hint=HINT) from None


CLIENT = (".streamer", ".i", ".reader")
"""Endings of the logs that only a rank that introduces jobs has."""


def logged_jobs(contents: Mapping[str, bytes], where: str) -> pd.DataFrame:
    """Return the jobs that were introduced, a row each in the order of their introduction; the index is the number.

    Columns: client (rank), formula, priority, limit (wall-clock limit, s), demand (maximum number of workers), submit
    (introduction by the client), start (a rank offered to hold the first worker), end (the client learnt the result),
    and state: solved, timeout, or running at the end of the log. Times are s since the start of Mallob; NaN: never.

    Args:
        contents: name of a log -> its content.
        where: the folder, for messages.

    Raises:
        InputError: a log of a client is missing, or a job lacks its submission.
    """
    jobs: dict[int, dict[str, object]] = {}
    clients = sorted({name.removesuffix(".streamer") for name in contents if name.endswith(".streamer")})
    for client in clients:
        if missing := [client + ending for ending in ("", *CLIENT) if client + ending not in contents]:
            raise InputError(f"the log {missing[0]} is missing", where=where, hint=HINT)
        texts = {ending: contents[client + ending].decode("utf-8", "replace") for ending in ("", *CLIENT)}
        submissions = {match[1]: match for match in SUBMIT.finditer(texts[".streamer"])}
        names = {int(match[2]): match[1] for match in NUMBER.finditer(texts[".i"])}
        formulas = {int(match[1]): match[2] for match in FORMULA.finditer(texts[".reader"])}
        for event in EVENT.finditer(texts[""]):
            what = str(event.lastgroup)
            number, time = int(event[what]), float(event["time"])
            if what == "submit":
                submission = submissions.get(names.get(number, ""))
                if submission is None:
                    raise InputError(f"job {number} of {client} was never submitted", where=where, hint=HINT)
                jobs[number] = {
                    "client": int(client.rpartition(".")[2]),
                    "formula": formulas.get(number, ""),
                    "priority": float(submission[2]),
                    "limit": float(submission[3]),
                    "demand": int(submission[4]),
                    "submit": time,
                    "state": "running",
                }
            elif number not in jobs:
                raise InputError(f"job {number} of {client} was never introduced", where=where, hint=HINT)
            elif what == "start":
                jobs[number]["start"] = time
            else:
                jobs[number] |= {"end": time, "state": what}
    if not jobs:
        raise InputError("no client introduced a job", where=where, hint=HINT)
    table = pd.DataFrame.from_dict(jobs, orient="index", columns=list(COLUMNS))
    return table.sort_values("submit", kind="stable")


def logged_volumes(contents: Mapping[str, bytes]) -> pd.DataFrame:
    """Return the numbers of workers that ranks logged: `time` (s), `job` (number) and `volume`, in order of time."""
    rows = [
        (float(match[1]), int(match[2]), int(match[3]))
        for name, content in contents.items()
        if MAIN.fullmatch(name)
        for match in VOLUME.finditer(content.decode("utf-8", "replace"))
    ]
    table = pd.DataFrame(rows, columns=["time", "job", "volume"]).astype({"time": float, "job": int, "volume": int})
    return table.sort_values("time", kind="stable", ignore_index=True)


class Volumes(NamedTuple):
    """Periods in which a job has a constant number of workers, in order of their jobs and times. Shapes (periods,)."""

    row: IntArray  # row of the job in the table of jobs
    start: FloatArray  # s
    end: FloatArray  # s; NaN: the end of the log
    workers: IntArray

    def agreement(self, jobs: pd.DataFrame, logged: pd.DataFrame) -> tuple[int, float]:
        """Return how many logged volumes are of a job that runs, and the share of them that is right within one."""
        order = np.argsort(self.start, kind="stable")
        periods = pd.DataFrame({"start": self.start, "end": self.end, "row": self.row, "workers": self.workers})
        known = logged.assign(row=jobs.index.get_indexer(pd.Index(logged["job"])).astype(np.int64))
        both = pd.merge_asof(known, periods.iloc[order], left_on="time", right_on="start", by="row")
        both = both[(both["start"] <= both["time"]) & ~(both["end"] <= both["time"])]
        return len(both), float(((both["volume"] - both["workers"]).abs() <= 1).mean()) if len(both) else float("nan")


def ruled_volumes(jobs: pd.DataFrame, ranks: int, until: float = float("nan")) -> Volumes | None:
    """Return the volumes that the rule of the policy `mallob` gives at each start and each end of a job.

    Args:
        jobs: columns start, end (s), priority and demand of `logged_jobs`.
        ranks: number of ranks.
        until: the end of jobs that run at the end of the log, s; NaN: unknown.

    Returns:
        The periods, or None if more jobs run at once than there are ranks.
    """
    start, end = (jobs[name].to_numpy(dtype=np.float64) for name in ("start", "end"))
    end = np.where(np.isfinite(end), end, until)
    priority, demand = jobs["priority"].tolist(), jobs["demand"].clip(upper=ranks).tolist()
    events = [(start[row], 1, row) for row in np.flatnonzero(np.isfinite(start)).tolist()]
    events += [(end[row], 0, row) for row in np.flatnonzero(np.isfinite(start + end)).tolist()]  # ends come first
    held: dict[int, tuple[float, int]] = {}  # job -> since when, workers
    periods: list[tuple[int, float, float, int]] = []

    def change(row: int, time: float, workers: int) -> None:
        since, before = held.get(row, (time, 0))
        if before and since < time:
            periods.append((row, since, time, before))
        held[row] = (time, workers)

    for time, begins, row in sorted(events):
        if begins:
            held[row] = (time, 0)
        else:
            change(row, time, 0)
            del held[row]
        active = [*held]
        if len(active) > ranks:
            return None
        weights, most = ([column[each] for each in active] for column in (priority, demand))
        shares = volumes(weights, [1] * len(active), most, ranks) if active else []
        for each, workers in zip(active, shares, strict=True):
            if held[each][1] != workers:
                change(each, time, workers)
    periods += [(row, since, until, workers) for row, (since, workers) in held.items()]
    table = pd.DataFrame(sorted(periods), columns=["row", "start", "end", "workers"])
    rows, sizes = (table[name].to_numpy(dtype=np.int64) for name in ("row", "workers"))
    since, to = (table[name].to_numpy(dtype=np.float64) for name in ("start", "end"))
    return Volumes(rows, since, to, sizes)


def _on_ranks(found: Volumes, ranks: int) -> NodePeriods:
    """Return the volumes on assigned ranks: a job that shrinks releases the ranks that it got last."""
    free = [*range(ranks - 1, -1, -1)]
    held: dict[int, list[tuple[int, float]]] = {}  # job -> ranks, and since when each is held
    periods: list[tuple[int, int, float, float]] = []
    changes: list[tuple[float, int, int]] = []  # time, job, workers
    for row, start, end, workers in zip(*(column.tolist() for column in found), strict=True):
        if changes and changes[-1][:2] == (start, row):
            changes.pop()
        changes += [(start, row, workers), *([(end, row, 0)] if end == end else [])]
    changes.sort()
    for index in np.split(np.arange(len(changes)), np.flatnonzero(np.diff([time for time, *_ in changes])) + 1):
        own = [changes[place] for place in index.tolist()]
        for time, row, workers in own:
            while len(held.get(row, [])) > workers:
                rank, since = held[row].pop()
                free.append(rank)
                periods.append((row, rank, since, time))
        for time, row, workers in own:
            mine = held.setdefault(row, [])
            mine += [(free.pop(), time) for _ in range(workers - len(mine))]
    periods += [(row, rank, since, float("nan")) for row, own in held.items() for rank, since in own]
    table = pd.DataFrame(periods, columns=["row", "rank", "start", "end"]).sort_values("row", kind="stable")
    rows, nodes = (table[name].to_numpy(dtype=np.int64) for name in ("row", "rank"))
    starts, ends = (table[name].to_numpy(dtype=np.float64) for name in ("start", "end"))
    return NodePeriods(rows, nodes, starts, ends)


def ranks_of(contents: Mapping[str, bytes]) -> Ranks | None:
    """Return the machine of a run by the output of Slurm; None: it is not there, or has other lines."""
    for name, content in contents.items():
        if name.endswith(".out"):
            text = content.decode("utf-8", "replace")
            if (ranks := RANKS.search(text)) and (threads := THREADS.search(text)):
                return Ranks(int(ranks[1]), int(threads[1]))
    return None


def workload_of(jobs: pd.DataFrame, ranks: Ranks | None, sources: tuple[Source, ...]) -> Workload:
    """Return the workload of logged jobs, whose run times are unknown: each ran on many sizes."""
    table = pd.DataFrame(
        {
            "job_id": jobs.index.astype(str),
            "submit_time": jobs["submit"].to_numpy(),
            "run_time": float("nan"),
            "time_limit": jobs["limit"].to_numpy(),
            "nodes": 1,
            "cores_per_node": ranks.threads if ranks else 1,
            "kind": Kind.MALLEABLE.value,
            "nodes_min": 1,
            "nodes_max": jobs["demand"].to_numpy(),
            "nodes_pref": 1,
            "priority": jobs["priority"].to_numpy(),
            "user": [f"client-{rank}" for rank in jobs["client"]],
            "status": jobs["state"].map({"solved": "completed", "timeout": "timeout", "running": "running"}).to_numpy(),
            "logged_start": jobs["start"].to_numpy(),
            "logged_end": jobs["end"].to_numpy(),
            "extra_formula": jobs["formula"].to_numpy(),
        }
    )
    system = System(*ranks) if ranks else System()
    return Workload(table, Provenance(system=system, sources=sources, steps=(Step("import", {"from": "mallob"}),)))


def read(path: Path, workload: Workload | None, options: ReadOptions) -> Run:
    """Read the folder of a run, or a table of `logged_jobs` as CSV, whose ranks are the nodes of the options."""
    contents = {path.name: Input.at(path).data} if path.is_file() else contents_of(path)
    jobs = _jobs_in(contents[path.name], path) if path.is_file() else logged_jobs(contents, str(path))
    ranks = ranks_of(contents)
    whole = b"".join(contents.values())
    source = Source(path.name, hashlib.sha256(whole).hexdigest(), len(whole))
    number = options.nodes or (ranks.ranks if ranks else 0)
    sizes = ruled_volumes(jobs, number) if number else None
    facts: dict[str, object] = {}
    warnings = ["the number of ranks is unknown, or more jobs than ranks run at once: allocations are unknown"]
    held = resizes = None
    if sizes is not None:
        known, right = sizes.agreement(jobs, logged_volumes(contents))
        facts = {"volumes": "computed by the rule of the policy mallob", "logged_volumes": known, "within_one": right}
        facts["nodes_of_jobs"] = "assigned"
        agree = f", right within one worker in {100 * right:.1f} % of {known:,} logged volumes" if known else ""
        warnings = [f"the sizes of jobs are computed by the rule of the policy mallob{agree}; their ranks are assigned"]
        periods = _on_ranks(sizes, number)
        held = periods.allocations()
        changes = periods.resizes(jobs["start"].to_numpy(), jobs["end"].fillna(np.inf).to_numpy())
        resizes = applied_resizes(changes, asked=changes["time"].to_numpy())
    observed = Observed(
        jobs=pd.DataFrame(
            {
                "job_id": jobs.index.astype(str),
                "submit": jobs["submit"].to_numpy(),
                "start": jobs["start"].to_numpy(),
                "end": jobs["end"].to_numpy(),
                "state": jobs["state"].replace({"solved": "completed"}).to_numpy(),
                "time_limit": jobs["limit"].to_numpy(),
                "kind": Kind.MALLEABLE.value,
                "user": [f"client-{rank}" for rank in jobs["client"]],
            }
        ),
        source=source,
        where=str(path),
        place=lambda row: f"{path}: log.{jobs['client'].iloc[row]}",
        format="mallob",
        program="mallob",
        policy="mallob",
        nodes=[NodeFacts(f"rank-{rank}", ranks.threads) for rank in range(ranks.ranks)] if ranks else None,
        resolution_s=0.001,
        match="id",
        allocations=held,
        reconfigurations=resizes,
        facts=facts,
        warnings=warnings,
    )
    own = at_speed(workload_of(jobs, ranks, (source,)), options) if workload is None else workload
    return run_of(observed, own, options)


def _jobs_in(table: bytes, path: Path) -> pd.DataFrame:
    """Return the jobs of a table, as `logged_jobs`."""
    jobs = pd.read_csv(io.BytesIO(table), index_col=0)
    if missing := [name for name in COLUMNS if name not in jobs and name != "formula"]:
        raise InputError(f"the column {missing[0]} is missing", where=str(path), hint=HINT)
    return jobs


SIMULATOR = ExternalSimulator(name="mallob", title="logs of Mallob", read=read, recognizes=recognizes)
"""Logs of Mallob, the scheduler of Sanders and Schreiber."""
