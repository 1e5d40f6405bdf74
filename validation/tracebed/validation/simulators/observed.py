"""Jobs as a file of another program describes them, before they are matched with the jobs of a workload.

A reader of a format fills an `Observed`. `assembly.run_of` makes a run of it. So units, origins of time, matching and
checks are the same for all formats. Files with the jobs of each node over time (`NodePeriods`) give the tables of
allocations and resizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.provenance import Source
from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.validation.simulators.simulator import MatchName

INSTANTS = ("submit", "start", "end")
DURATIONS = ("wait", "run", "response")
NUMBERS = (*INSTANTS, *DURATIONS, "run_time", "time_limit", "nodes", "cores")
TEXTS = ("job_id", "state", "user", "kind")
FIELDS: dict[str, str] = {
    "job_id": "id of the job",
    "submit": "submission: a number or a date-time",
    "start": "start of the job",
    "end": "end of the job",
    "wait": "start - submission",
    "run": "end - start",
    "response": "end - submission",
    "nodes": "nodes that the job requested and held",
    "cores": "cores (processors) that the job requested and held, on all nodes",
    "state": "how the job ended",
    "run_time": "run time that the workload states, where it differs from `run`",
    "time_limit": "requested time limit",
    "user": "user",
    "kind": "rigid, moldable, malleable or evolving",
    "held": "numbers of the nodes that the job held, as intervals: `0-3 7`",
}
"""Field of a job -> meaning. Times are in s. `held` is only a field of tables (`csv`)."""
RESOLUTIONS = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5)  # Resolutions that are recognized, s. Finer times count as exact.
SEVERAL_RUNS = "of a table of several runs, choose one: import --only COLUMN=VALUE"
"""What to do if each job occurs several times."""
MINUTE = 60.0
MANY = 20  # number of different times that must all be whole minutes before the resolution counts as a minute


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The jobs of a file.

    At least one of `start` and `wait`, and one of `end`, `run` and `response` must be known for a job that ended.
    """

    jobs: pd.DataFrame
    """A row per job in the order of the file: columns of `FIELDS` as float64 (NaN: unknown) or str (empty: unknown).

    `submit`, `start` and `end` have the origin of the file. Missing columns are unknown.
    """
    source: Source
    """The file: name, SHA-256, size."""
    where: str
    """The file, for messages."""
    place: Callable[[int], str]
    """Function from a row to its place in the file, for messages (`jobs.csv:17`)."""
    format: str
    """Name under which the format is known to `--from`."""
    program: str = ""
    """Program that made the file, if known (`batsim`)."""
    version: str = ""
    """Version of the program, if known."""
    policy: str = ""
    """Scheduling policy, if known."""
    nodes: Sequence[NodeFacts] | None = None
    """Nodes of the machine, if known."""
    allocations: pd.DataFrame | None = None
    """A row per period in which a job holds nodes: `row` (in `jobs`), `node`, `count`, `start`, `end`, `cores`.

    None: unknown. Missing `start` and `end` are those of the job, missing `cores` all cores of the nodes.
    """
    reconfigurations: pd.DataFrame | None = None
    """The table of `runs.schema.TABLES` with `row` in place of `job_id`. None: unknown."""
    samples: pd.DataFrame | None = None
    """A row per sample of power, and per change of the state of the power of a node, in the order of the changes.

    `time` (with the origin of the file), `node`, `power_w` and `power_state` of the table `nodes` of a run. None:
    unknown.
    """
    resolution_s: float | None = None
    """Resolution of the times, s; 0: exact. None: detected."""
    match: MatchName = "auto"
    """How jobs of this format are matched by default."""
    unix: bool = False
    """Whether `submit`, `start` and `end` are s since 1970."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Further facts for `RunInfo.imported`: units, columns, ..."""
    warnings: Sequence[str] = ()
    _texts: dict[str, pd.Series[str]] = field(default_factory=dict, init=False, repr=False)
    """What `texts` has returned: columns are used several times."""
    _known: dict[str, bool] = field(default_factory=dict, init=False, repr=False)
    """What `is_known` has returned."""

    def floats(self, name: str) -> FloatArray:
        """Return a numeric column, shape (rows,); NaN where unknown."""
        if name not in self.jobs:
            return np.full(len(self.jobs), np.nan)
        return self.jobs[name].to_numpy(dtype=np.float64)

    def texts(self, name: str) -> pd.Series[str]:
        """Return a text column, shape (rows,); empty where unknown."""
        if name not in self._texts:
            missing = name not in self.jobs
            values = pd.Series([""] * len(self.jobs), dtype="str") if missing else self.jobs[name].fillna("")
            self._texts[name] = values.astype("str").reset_index(drop=True)
        return self._texts[name]

    def is_known(self, name: str) -> bool:
        """Return whether the column `name` has a known value."""
        if name not in self._known and name in self.jobs:
            values = self.jobs[name]
            self._known[name] = bool((values != "").any() if name in TEXTS else values.notna().any())
        return self._known.get(name, False)

    @cached_property
    def resolution(self) -> float:
        """Resolution of the times, s; 0: exact."""
        if self.resolution_s is not None:
            return self.resolution_s
        return resolution_of([self.floats(name) for name in (*INSTANTS, *DURATIONS)])

    def at_speed(self, speed: float) -> Observed:
        """Return the jobs on a clock that is `speed` times as fast. Dates keep the instant of the first submission.

        Raises:
            InputError: the times are dates, and no submission is known.
        """
        if speed == 1:
            return self
        submit = self.floats("submit")
        if self.unix and not np.isfinite(submit).any():
            what = "the times are dates, and the file has no submit times: a speed has no origin"
            raise InputError(what, where=self.where, hint="name the column of submit times: --columns submit=NAME")
        origin = float(np.nanmin(submit)) if self.unix else 0.0

        def scaled(table: pd.DataFrame | None, instants: Sequence[str], durations: Sequence[str] = ()) -> Any:
            if table is None:
                return None
            moved = {name: origin + (table[name] - origin) * speed for name in instants if name in table}
            return table.assign(**moved, **{name: table[name] * speed for name in durations if name in table})

        return replace(
            self,
            jobs=scaled(self.jobs, INSTANTS, (*DURATIONS, "run_time", "time_limit")),
            allocations=scaled(self.allocations, ("start", "end")),
            reconfigurations=scaled(self.reconfigurations, ("asked", "decided", "applied", "ended")),
            samples=scaled(self.samples, ("time",)),
            resolution_s=self.resolution * speed,
            facts={**self.facts, "speed": speed},
        )

    def error(self, row: int, what: str, hint: str = "correct or remove the line") -> InputError:
        """Return the error for a row of the file, which names the job and the place."""
        job = self.texts("job_id").iloc[row]
        return InputError(f"job {job[:40]!r} {what}" if job else f"the job {what}", where=self.place(row), hint=hint)


class NodePeriods(NamedTuple):
    """Periods in which a job holds a node, an entry each; grouped by job. Shapes (periods,)."""

    job: IntArray
    node: IntArray
    start: FloatArray
    end: FloatArray  # NaN: until the end of the file

    def allocations(self) -> pd.DataFrame:
        """Return a row per job, period and range of consecutive nodes: `row`, `node`, `count`, `start`, `end`."""
        order = np.lexsort((self.node, self.end, self.start, self.job))
        job, node, start, end = (values[order] for values in self)
        joins = (job[1:] == job[:-1]) & (start[1:] == start[:-1]) & (end[1:] == end[:-1]) & (node[1:] == node[:-1] + 1)
        first = np.flatnonzero(np.append(True, ~joins)[: len(job)])
        count = np.diff(first, append=len(job))
        table = pd.DataFrame(
            {"row": job[first], "node": node[first], "count": count, "start": start[first], "end": end[first]}
        )
        return table.sort_values(["start", "row", "node"], ignore_index=True)

    def resizes(self, start: FloatArray, end: FloatArray) -> pd.DataFrame:
        """Return a row per resize between start and end, s, of a job: `row`, `time`, `nodes_from`, `nodes_to`."""
        table = pd.DataFrame(
            {
                "row": np.concatenate([self.job, self.job]),
                "time": np.concatenate([self.start, self.end]),
                "change": np.repeat([1, -1], len(self.job)),
            }
        )
        table = table.groupby(["row", "time"])[["change"]].sum().reset_index()  # sorted by job and time
        table["nodes_to"] = table.groupby("row")["change"].cumsum()
        table["nodes_from"] = table["nodes_to"] - table["change"]
        row, time = table["row"].to_numpy(), table["time"].to_numpy()
        inside = (time > start[row]) & (time < end[row]) & (table["change"].to_numpy() != 0)
        resizes: pd.DataFrame = table.loc[inside, ["row", "time", "nodes_from", "nodes_to"]].reset_index(drop=True)
        return resizes


def applied_resizes(changes: pd.DataFrame, **instants: FloatArray) -> pd.DataFrame:
    """Return `Observed.reconfigurations` of resizes; `asked`, `decided`, `applied`, `ended` are NaN if not given."""
    sizes = changes[["row", "nodes_from", "nodes_to"]].reset_index(drop=True)
    kind = np.where(sizes["nodes_to"] > sizes["nodes_from"], "expand", "shrink")
    unknown = dict.fromkeys(("asked", "decided", "applied", "ended"), np.nan)
    return sizes.assign(kind=kind, **(unknown | instants), state="applied")


def resolution_of(times: Sequence[FloatArray]) -> float:
    """Return the largest resolution of `RESOLUTIONS`, or a minute, of which all finite times are multiples; else 0."""
    # A minute is only recognized if there are at least `MANY` different times.
    values = np.concatenate([np.asarray(each, dtype=np.float64).ravel() for each in times] or [np.empty(0)])
    values = np.unique(values[np.isfinite(values)])
    if not len(values):
        return 0.0
    if len(values) >= MANY and _multiples(values, MINUTE):
        return MINUTE
    return next((step for step in RESOLUTIONS if _multiples(values, step)), 0.0)


def _multiples(values: FloatArray, step: float) -> bool:
    quotients = values / step
    error = np.maximum(1e-6, 4 * np.finfo(np.float64).eps * np.abs(quotients))
    return bool((np.abs(quotients - np.rint(quotients)) <= error).all())


WORDS: dict[str, JobState] = {
    **dict.fromkeys(("completed", "complete", "success", "successful", "done", "finished", "ok"), JobState.COMPLETED),
    **dict.fromkeys(("completedsuccessfully", "completing", "ended", "terminated", "1", "true"), JobState.COMPLETED),
    **dict.fromkeys(("failed", "failure", "error", "nodefail", "bootfail", "outofmemory", "0"), JobState.FAILED),
    **dict.fromkeys(("completedfailed", "false"), JobState.FAILED),
    **dict.fromkeys(("killed", "timeout", "deadline", "completedwalltimereached"), JobState.KILLED),
    **dict.fromkeys(("cancelled", "canceled", "completedkilled", "revoked", "deleted"), JobState.CANCELLED),
    **dict.fromkeys(("rejected", "refused"), JobState.REJECTED),
    **dict.fromkeys(("running", "pending", "interrupted", "suspended", "waiting", "queued"), JobState.INTERRUPTED),
}
"""Word for a state, in lower case and without punctuation -> the state."""


def states_of(words: pd.Series[str]) -> tuple[list[JobState | None], list[str]]:
    """Return the state of each word, None for an empty one, and the words whose meaning is unknown."""
    # Only the first word of a text counts (`CANCELLED by 1234`).
    states: dict[str, JobState | None] = {"": None}
    strange = []
    for text in dict.fromkeys(words):
        first = (text.split() or [""])[0]
        key = "".join(letter for letter in first.lower() if letter.isalnum())
        if text not in states:
            state = WORDS.get(key)
            if state is None:
                strange.append(text)
            states[text] = state or JobState.UNKNOWN
    return [states[text] for text in words], strange
