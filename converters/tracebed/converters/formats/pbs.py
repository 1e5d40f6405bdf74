"""Accounting of PBS Pro, OpenPBS and Torque: `MM/DD/YYYY HH:MM:SS;KIND;job;key=value ...`, usually one file per day.

Each E record (ended) is a job. Jobs without an E record are read from D or A records (deleted, aborted), R records
(rerun: the unsuccessful run) and S records (started: the job was running when the log was written).
Times in E records are instants. Only the timestamps of the lines are in the server's time zone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools.amounts import span
from tracebed.converters.formats.tools.columns import ASSUMED_UTC, relabel, utc
from tracebed.converters.formats.tools.files import Input, bad_line
from tracebed.converters.formats.tools.gres import UNEVEN, gpus_on_nodes
from tracebed.converters.formats.tools.pbs_text import LINE, Accounting, read_accounting
from tracebed.converters.formats.tools.states import RecordState, pbs_exit
from tracebed.converters.log import Log, make_log
from tracebed.converters.workload import MAX_SIZE, BoolArray, FloatArray, IntArray, System
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.ground.table import codes_of

NUMBER = re.compile(r"-?\d{1,15}(\.\d*)?$")
AMOUNT = re.compile(r"(\d{1,18})([kmgtp]?)([bw]?)$", re.IGNORECASE)
SLOTS = re.compile(r"(\d{1,9})(?:-(\d{1,9})|\*(\d{1,9}))?$")
NCPUS = re.compile(r"[:+(]ncpus=(\d{1,9})(?=[:+)]|$)")
SPELLINGS = (("ncpus", "ppn"), ("ngpus", "gpus"))
"""Names of cores and GPUs in a request, of PBS Pro and of Torque."""
DEPENDENCIES = ("after", "afterok", "afternotok", "afterany")
"""Kinds of dependencies that PBS and Slurm have alike."""
MEMORY = ("mem", "pmem")
"""Memory of a job, and of a process."""
SELECT, NODES = "Resource_List.select", "Resource_List.nodes"
"""The request of PBS Pro, and of Torque."""
RESOURCES = ("nodes", "select", "nodect", "ncpus", "ngpus", "walltime", *MEMORY)
USED = (
    *("user", "group", "account", "queue", "ctime", "qtime", "etime", "start", "end", "Exit_status"),
    *("exec_host", "exec_vnode", "depend"),
    *(f"Resource_List.{name}" for name in RESOURCES),
)
"""Keys of a record that are read; other keys are kept by `keep_extra`."""


def allocated(slots: str) -> tuple[int, bool] | None:
    """Return the cores of a host's slots, such as `0-15`, `0,2-4` and `0*8`, and whether they are stated elsewhere.

    For a chunk over several vnodes of a host, PBS Pro writes `0*0`: the cores are those of `exec_vnode`, as they are of
    a host without slots. None: an invalid text.
    """
    cores, elsewhere = 0, not slots
    for part in slots.split(",") if slots else ["0"]:
        match = SLOTS.match(part)
        if not match:
            return None
        first, last, times = match.groups()
        elsewhere |= times == "0"
        cores += int(times) if times else max(int(last) - int(first), 0) + 1 if last else 1
    return cores, elsewhere


def requested(text: str) -> tuple[int, int, int] | None:
    """Return nodes, cores and GPUs of `2:ncpus=16:ngpus=2+1:ncpus=4` or `4:ppn=32:fast+n7:ppn=8`; None: invalid."""
    nodes = cores = gpus = 0
    for chunk in text.partition("#")[0].split("+"):
        first, *rest = chunk.split(":")
        count = int(first[:18]) if re.match(r"\d+$", first) else 1  # otherwise the name of a node
        resources = dict(item.split("=", 1) for item in [first, *rest] if "=" in item)
        texts = [resources.get(pbs) or resources.get(torque) or "" for pbs, torque in SPELLINGS]
        if not all(re.match(r"\d{0,9}$", text) for text in texts):
            return None
        nodes, cores, gpus = nodes + count, cores + count * int(texts[0] or 1), gpus + count * int(texts[1] or 0)
    return nodes, cores, gpus


def features(request: str) -> str:
    """Return the properties of nodes that a request demands, as `--constraint` writes them.

    They are the words of a chunk of Torque (`4:ppn=8:fast`), and the resources of PBS Pro that are true.
    """
    items = re.split(r"[:+]", request.partition("#")[0])
    starts = {chunk.split(":")[0] for chunk in request.split("+")}
    properties = [item for item in items if "=" not in item and item not in starts and not item.isdecimal()]
    true = [item.partition("=")[0] for item in items if item.partition("=")[2].lower() in ("true", "t", "y")]
    return "&".join(dict.fromkeys(filter(None, properties + true)))


def dependency(text: str, one_server: bool) -> str:
    """Return the conditions of the start (`afterok:12.srv@srv` in a Q record), as `--dependency` writes them.

    Conditions that Slurm does not have, such as `on` and `before`, are left out: other jobs have their opposite.
    """
    conditions = []
    for condition in text.strip('"').split(","):
        kind, *jobs = condition.split(":")
        names = [job.partition("@")[0] for job in jobs]
        if kind in DEPENDENCIES and names:
            conditions.append(":".join([kind, *(name.partition(".")[0] if one_server else name for name in names)]))
    return ",".join(conditions)


@dataclass
class PbsRecords:
    """The jobs of records, which are numbered by their rows. Jobs are numbered, too."""

    accounting: Accounting
    jobs: list[tuple[int, int]] = field(default_factory=list)
    """The row of each job, after the row of the record that completed it."""
    status: dict[int, str] = field(default_factory=dict)
    """The derived state of a row."""
    ended_at: dict[int, float] = field(default_factory=dict)
    """End in s since 1970 in the server's time zone, of a row without an end."""
    killed: set[int] = field(default_factory=set)
    """Rows of E records of jobs that were deleted before."""
    unknown: list[int] = field(default_factory=list)
    """Rows that do not tell when the job was submitted."""
    queued: dict[int, int] = field(default_factory=dict)
    started: dict[int, int] = field(default_factory=dict)
    deleted: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    """The last E record of each job that was not queued or started again since."""
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, row: int, kind: str, job: int, whole_array: bool) -> None:
        """Add the record of the next line that is not of a plain job."""
        if whole_array:
            self.counts["records of whole job arrays, left out (tasks have their own records)"] += 1
        elif (kind in "DAR" and job in self.ended) or (kind == "E" and self._is_repeated(row, job)):
            self.counts["records of jobs that had ended, left out"] += 1
        elif kind == "E":
            self.ended[job] = row
            if self.deleted.pop(job, None) is not None:
                self.killed.add(row)
            self._add_ended(row, row, job)
        elif kind == "R":
            run = row if self.accounting.value("start", row) is not None else self.started.get(job)
            if run is None:
                self.counts["reruns without a record of the run, left out"] += 1
            else:
                self.status[run], self.ended_at[run] = RecordState.REQUEUED, self.accounting.stamps[row]
                self._add_ended(row, run, job)
        elif kind == "S":
            self.ended.pop(job, None)
            self.started[job] = row
        elif kind == "Q":
            self.ended.pop(job, None)
            self.queued.setdefault(job, row)
        elif kind in "DA":
            self.status[row] = JobState.CANCELLED if kind == "D" else JobState.FAILED
            self.deleted[job] = row
        else:
            self.counts["records of other kinds, left out"] += 1

    def _is_repeated(self, row: int, job: int) -> bool:
        """Return whether a job has an earlier E record of the same run."""
        earlier, value = self.ended.get(job), self.accounting.value
        return earlier is not None and all(value(at, earlier) == value(at, row) for at in ("start", "end"))

    def _add_ended(self, at: int, row: int, job: int) -> None:
        self.jobs.append((at, row))
        self.started.pop(job, None)
        if self.status.get(row) != RecordState.REQUEUED:
            self.queued.pop(job, None)

    def add_unended(self) -> None:
        """Add the jobs that did not end or did not start."""
        after = len(self.accounting.stamps)
        for job, last in self.deleted.items():
            begun, queued = self.started.pop(job, None), self.queued.pop(job, None)
            if begun is None and any(self.accounting.value(at, last) is not None for at in ("ctime", "qtime")):
                queued = last if queued is None else queued
            if begun is not None:
                self.status[begun], self.ended_at[begun] = self.status[last], self.accounting.stamps[last]
            elif queued is not None:
                self.status[queued] = self.status[last]
            self.jobs.append((after, next(row for row in (begun, queued, last) if row is not None)))
            if begun is None and queued is None:
                self.unknown.append(last)
        for job, begun in self.started.items():
            self.status[begun] = RecordState.RUNNING
            self.jobs.append((after, begun))
            self.queued.pop(job, None)
        self.counts["jobs still queued at the end of the log, left out"] += len(self.queued)


def _jobs_of(accounting: Accounting, code: IntArray) -> tuple[IntArray, PbsRecords]:
    """Return the rows of the jobs in the order in which they ended, and what the records say about these rows.

    A plain job has Q and S records, and then one E record. The records of other jobs are added one by one.
    """
    kind, count = accounting.kinds, int(code.max(initial=-1)) + 1
    whole_array = pc.match_substring(accounting.jobs, "[]").to_numpy(zero_copy_only=False)
    ended = kind == ord("E")
    last = np.zeros(count, dtype=np.int64)
    last[code] = np.arange(len(code))
    unusual = whole_array | ~np.isin(kind, [ord(letter) for letter in "QSE"])
    plain = (
        (np.bincount(code[ended], minlength=count) == 1)
        & ended[last]
        & (np.bincount(code[unusual], minlength=count) == 0)
    )
    records = PbsRecords(accounting)
    others = np.flatnonzero(~plain[code])
    letters = kind[others].tobytes().decode()
    adding = zip(others.tolist(), letters, code[others].tolist(), whole_array[others].tolist(), strict=True)
    following = next(adding, None)
    cut = set()
    for part in accounting.parts:
        while following is not None and following[0] < part.end:
            records.add(*following)
            following = next(adding, None)
        final = part.end - 1
        own = part.end > part.start and part.unfinished and accounting.value("end", final)
        own = own and ((plain[code[final]] and ended[final]) or (final, final) in records.jobs[-1:])
        if own:
            cut.add(final)
        if part.broken or own:
            records.counts["last line of a file cut off, left out"] += 1
    records.add_unended()
    at = np.flatnonzero(plain[code] & ended)
    both = np.concatenate([np.column_stack([at, at]), np.array(records.jobs, dtype=np.int64).reshape(-1, 2)])
    rows = both[np.argsort(both[:, 0], kind="stable"), 1]
    return rows[~np.isin(rows, list(cut))] if cut else rows, records


class _Jobs:
    """The values of jobs, one record each."""

    def __init__(self, accounting: Accounting, rows: IntArray, code: IntArray) -> None:
        self.accounting, self.rows = accounting, rows
        self.columns = {name: _taken(column, rows) for name, column in accounting.columns.items()}
        self.names = _taken(accounting.jobs, rows)
        depend = accounting.columns["depend"]
        queued = np.flatnonzero(_lengths(depend))
        queued = queued[accounting.kinds[queued] == ord("Q")]
        if len(queued):  # only Q records have it
            last = np.full(code.max() + 1, -1)
            last[code[queued]] = queued
            self.columns["depend"] = pc.coalesce(self.columns["depend"], _taken(depend, last[code[rows]]))
        self.requests = {name: self._requests(name) for name in (SELECT, NODES)}

    def __len__(self) -> int:
        return len(self.rows)

    def has(self, name: str, empty: bool = False) -> BoolArray:
        """Return which jobs have a value, or also an `empty` one, shape (jobs,)."""
        column = self.columns[name]
        has: BoolArray = column.is_valid().to_numpy(zero_copy_only=False) if empty else _lengths(column) > 0
        return has

    def noted(self, values: dict[int, Any], missing: Any) -> Any:
        """Return the value of each job's row, shape (jobs,)."""
        result = np.full(len(self.accounting.stamps), missing)
        result[list(values)] = list(values.values())
        return result[self.rows]

    def labels(self, name: str) -> tuple[IntArray, list[str]]:
        """Return the number of each job's text, shape (jobs,), and the texts; a missing value is an empty text."""
        return codes_of(pa.chunked_array([pc.fill_null(self.columns[name], "")]))

    def numbers(self, name: str, read: Callable[[str], float | None]) -> tuple[FloatArray, BoolArray]:
        """Return values as `read` parses them, NaN if missing or 0 (unknown), and which are invalid, shape (jobs,)."""
        column = self.columns[name]
        whole = read is _number and pc.all(pc.ascii_is_decimal(column)).as_py() is not False
        if whole and _lengths(column).max() <= 15:
            values = column.cast(pa.int64()).cast(pa.float64()).to_numpy(zero_copy_only=False)
            return np.where(values == 0, np.nan, values), np.zeros(len(self), dtype=bool)
        codes, texts = self.labels(name)
        parsed = [read(text) if text else math.nan for text in texts]
        bad = np.array([value is None for value in parsed], dtype=bool)[codes]
        return np.array([value or math.nan for value in parsed], dtype=np.float64)[codes], bad

    def amount(self, name: str, read: Callable[[str], float | None], what: str) -> FloatArray:
        """Return values as `numbers`. Raises InputError if one is not `what`."""
        values, bad = self.numbers(name, read)
        self.check((bad, self.error(name, what)))
        return values

    def error(self, name: str, what: str) -> Callable[[int], InputError]:
        """Return the error for the invalid value of a job."""
        return lambda row: bad_line(f"{name}={self.columns[name][row].as_py()[:40]} is not {what}", self.place(row))

    def check(self, *faults: tuple[BoolArray, Callable[[int], InputError]]) -> None:
        """Raise the error of the first job with a fault, of its faults the first."""
        rows = [(int(np.argmax(bad)), number) for number, (bad, _) in enumerate(faults) if bad.any()]
        if rows:
            row, number = min(rows)
            raise faults[number][1](row)

    def place(self, row: int) -> str:
        """Return `file:line` of a job."""
        return self.accounting.place(int(self.rows[row]))

    def allocated(self) -> tuple[FloatArray, FloatArray, BoolArray, BoolArray]:
        """Return the nodes and cores of `exec_host`, whether the cores are stated elsewhere, and the invalid ones.

        A text such as `n1/0-15+n2/0,2-4+n3/0*8` has a piece for each host, or for each core of a host.
        """
        pieces = pc.split_pattern(pc.fill_null(self.columns["exec_host"], ""), "+")
        job = np.repeat(np.arange(len(self)), np.diff(pieces.offsets.to_numpy()))
        encoded = pieces.flatten().dictionary_encode()
        piece = encoded.indices.to_numpy(zero_copy_only=False)
        names, slots = _partitioned(encoded.dictionary, "/")
        host = names.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)[piece]
        kinds, distinct = codes_of(pa.chunked_array([slots]))
        parsed = [allocated(slot) for slot in distinct]
        known = np.array([value or (0, False) for value in parsed], dtype=np.float64)[kinds]
        missing = np.array([value is None for value in parsed], dtype=np.float64)[kinds]
        pairs = np.sort(job * (host.max() + 1) + host, kind="stable")  # almost sorted
        nodes = np.bincount(pairs[np.append(True, np.diff(pairs) > 0)] // (host.max() + 1), minlength=len(self))
        cores, elsewhere, bad = (np.bincount(job, values[piece], len(self)) for values in (*known.T, missing))
        return nodes.astype(np.float64), cores.astype(np.float64), elsewhere > 0, bad > 0

    def _requests(self, name: str) -> tuple[Any, BoolArray]:
        """Return nodes, cores and GPUs of the requests of a kind, shape (jobs, 3), and which are invalid."""
        codes, texts = self.labels(name)
        parsed = [requested(text) for text in texts]
        values = np.array([value or (0, 0, 0) for value in parsed], dtype=np.float64).reshape(-1, 3)
        return values[codes], np.array([value is None for value in parsed], dtype=bool)[codes]

    def sizes(self) -> tuple[FloatArray, FloatArray]:
        """Return the allocated, or else the requested, nodes and cores, shape (jobs,); 0 nodes if unknown."""
        placed, (nodes, cores, elsewhere, misplaced) = self.has("exec_host"), self.allocated()
        elsewhere &= placed
        by_select, by_nodes = (np.where(placed, self.has(name), self.has(name, empty=True)) for name in (SELECT, NODES))
        asked = by_select | by_nodes
        (selected, bad_select), (other, bad_other) = self.requests[SELECT], self.requests[NODES]
        wanted = np.where(by_select[:, None], selected, np.where(by_nodes[:, None], other, 0.0))
        (nodect, bad_nodect), (ncpus, bad_ncpus) = (
            self.numbers(f"Resource_List.{name}", _number) for name in ("nodect", "ncpus")
        )
        of_vnodes = np.zeros(len(self))
        vnodes = pc.fill_null(self.columns["exec_vnode"].filter(pa.array(elsewhere)), "")
        codes, texts = codes_of(pa.chunked_array([vnodes]))
        of_vnodes[elsewhere] = np.array([sum(map(int, NCPUS.findall(text))) for text in texts], dtype=np.float64)[codes]
        for values in (np.trunc(np.nan_to_num(ncpus)), wanted[:, 1], of_vnodes):
            cores = np.where(elsewhere & (values != 0), values, cores)
        for mask, values in ((~placed & asked, wanted), (~placed & ~asked, np.column_stack([nodect, ncpus]))):
            nodes, cores = (np.where(mask, np.trunc(values[:, at]), old) for at, old in enumerate((nodes, cores)))
        nodes, cores = np.fmax(nodes, 0.0), np.where(placed, cores, np.fmax(cores, 0.0))

        def too_large(row: int) -> InputError:
            size: Sequence[float] = (nodes[row], cores[row])
            if asked[row] and not (placed[row] and (of_vnodes[row] or not elsewhere[row])):  # too large for a float
                exact = requested(self.columns[SELECT if by_select[row] else NODES][row].as_py()) or size
                size = (nodes[row], exact[1]) if placed[row] else exact
            return bad_line(f"invalid size of {int(size[0])} nodes, {int(size[1])} cores", self.place(row))

        used, chunks = elsewhere | ~placed, "chunks such as 2:ncpus=16"
        unstated = np.where(placed, elsewhere & (of_vnodes == 0) & (wanted[:, 1] == 0), ~asked)
        self.check(
            (placed & misplaced, self.error("exec_host", "a list of nodes and cores such as n1/0-15+n2/0*16")),
            (used & by_select & bad_select, self.error(SELECT, chunks)),
            (used & ~by_select & by_nodes & bad_other, self.error(NODES, chunks)),
            (~placed & ~asked & bad_nodect, self.error("Resource_List.nodect", "a number")),
            (unstated & bad_ncpus, self.error("Resource_List.ncpus", "a number")),
            ((nodes > MAX_SIZE) | (cores > MAX_SIZE), too_large),
        )
        return nodes, cores

    def gpus(self) -> FloatArray:
        """Return the requested GPUs, shape (jobs,), NaN if there are none."""
        named, bad = self.numbers("Resource_List.ngpus", _number)
        faults, most = [(bad, self.error("Resource_List.ngpus", "a number"))], np.zeros(len(self))
        for name in (NODES, SELECT):
            values, bad = self.requests[name]
            there = self.has(name)
            faults.append((bad & there, self.error(name, "chunks such as 2:ncpus=16")))
            most = np.where(there, np.maximum(most, values[:, 2]), most)
        self.check(*faults)
        return np.where(named > 0, named, np.where(most > 0, most, np.nan))

    def names_of(self, *names: str) -> pd.Categorical:
        """Return the first value of each job that is not empty, shape (jobs,), without quotes."""
        return _mapped(_first_text(*(self.columns[name] for name in names)), lambda text: text.strip('"'))

    def extras(self) -> dict[str, pd.Series[Any]]:
        """Return the columns of the other keys, in the order in which the jobs have them."""
        order = {}
        for name in self.columns.keys() - set(USED):
            has = self.has(name, empty=True)
            if has.any():
                first = int(np.argmax(has))
                order[first, self.accounting.positions[name][self.rows[first]].as_py()] = name
        texts = {name: pc.fill_null(self.columns[name], "") for _, name in sorted(order.items())}
        return {f"extra_{name}": pd.Series(text.to_pandas(), dtype="str") for name, text in texts.items()}

    def features(self) -> pd.Categorical:
        """Return the demanded properties of nodes, shape (jobs,), as `--constraint` writes them."""
        return _mapped(_first_text(self.columns[SELECT], self.columns[NODES]), features)

    def statuses(self, records: PbsRecords, over: BoolArray) -> pd.Categorical:
        """Return the state of each job, shape (jobs,). `over`: it ran at least as long as its limit."""
        codes, texts = self.labels("Exit_status")
        states = list(dict.fromkeys(records.status.values()))
        known = self.noted({row: states.index(state) for row, state in records.status.items()}, -1)
        started, finished = self.has("start", empty=True), self.has("Exit_status", empty=True)
        deleted = np.isin(self.rows, list(records.killed))
        valid = [re.match(r"-?\d{1,9}$", text) is not None for text in texts]
        bad = (known < 0) & started & finished & ~np.array(valid, dtype=bool)[codes]
        self.check((bad, self.error("Exit_status", "a whole number")))
        key = np.select([~started, finished], [0, 2 + codes], 1) * 8 + deleted * 4 + ~self.has(SELECT) * 2 + over
        kinds, which = np.unique(key, return_inverse=True)
        names: list[str] = []
        for kind in kinds.tolist():
            case, flags = divmod(kind, 8)
            if case == 0:
                names.append(JobState.CANCELLED if flags & 4 else JobState.FAILED)
            elif case == 1 or not valid[case - 2]:
                names.append("")
            else:
                code = int(texts[case - 2])
                names.append(pbs_exit(code, torque=bool(flags & 2), deleted=bool(flags & 4), over=bool(flags & 1)))
        labels = relabel(np.where(known < 0, which, len(names) + known), [*names, *states])
        return labels.remove_unused_categories()  # those of records that are no jobs


def recognizes(file: Input) -> bool:
    """Return whether the first line is an accounting record."""
    first = file.head.lstrip().partition(b"\n")[0]
    return LINE.match(first.decode("utf-8", "replace")) is not None


def read_log(
    files: Sequence[Input], *, keep_extra: bool = False, keep_names: bool = False, time_zone: str | None = None
) -> Log:
    """Read accounting files in the order of their names; a job may be submitted in one file and end in another.

    Timestamps are in the time zone of the server. Without one they count as UTC, with a warning if one is used. An
    incomplete last line is left out.
    """
    accounting = read_accounting(files, USED, keep_extra)
    code = accounting.jobs.dictionary_encode().indices.to_numpy().astype(np.int64)
    rows, records = _jobs_of(accounting, code)
    if not len(rows):
        raise InputError("contains no jobs that ended", where=files[0].where, hint="add the files of later days")
    jobs = _Jobs(accounting, rows, code)
    nodes, cores = jobs.sizes()
    with np.errstate(divide="ignore", invalid="ignore"):
        cores_per_node = np.nan_to_num(np.ceil(cores / nodes), nan=1.0, posinf=1.0).clip(1.0, None)
    number = (_number, "a number")
    start = jobs.amount("start", *number)
    zone = "UTC" if time_zone is None else time_zone
    ended = utc(jobs.noted(records.ended_at, math.nan), zone)
    end = np.where(np.isnan(ended), jobs.amount("end", *number), ended)
    queued = _first_known(jobs.amount("ctime", *number), jobs.amount("qtime", *number))
    stamps = np.where(np.isin(rows, records.unknown), np.nan, accounting.stamps[rows])
    submit = _first_known(queued, utc(stamps, zone))
    local = (np.isfinite(ended) | np.isnan(queued)) & (time_zone is None)
    eligible = jobs.amount("etime", *number)
    limit = jobs.amount("Resource_List.walltime", span, "a time such as 12:00:00")
    what = "an amount of memory such as 16gb"
    whole, of_process = (jobs.amount(f"Resource_List.{name}", _mib, what) for name in MEMORY)
    ids, named = _partitioned(jobs.names, ".")
    servers = set(named.unique().to_pylist())
    depend = _mapped(jobs.columns["depend"], lambda text: dependency(text, len(servers) == 1))
    gpus = jobs.gpus()
    gres, uneven = gpus_on_nodes(gpus, nodes)
    queue = jobs.names_of("queue")  # of PBS, which binds jobs to nodes, as a partition of Slurm does
    return make_log(
        files,
        "pbs",
        {
            "job_id": pd.Series((ids if len(servers) == 1 else jobs.names).to_pandas(), dtype="str"),
            "submit_time": submit,
            "time_limit": limit,
            "nodes": nodes.astype(np.int64),
            "cores_per_node": cores_per_node.astype(np.int64),
            "memory_mib": _first_known(whole / np.maximum(nodes, 1.0), of_process * cores_per_node),
            "user": jobs.names_of("user"),
            "group": jobs.names_of("account", "group"),
            "queue": queue,
            "partition": queue,
            "status": jobs.statuses(records, end - start >= limit),
            # The eligible time of a job with dependencies is a result of the other jobs, not a demand.
            "earliest_start": np.where((eligible > submit) & (np.asarray(depend) == ""), eligible, np.nan),
            "features": jobs.features(),
            "gres": gres,
            "dependency": depend,
            "logged_start": start,
            "logged_end": end,
            "extra_gpus": gpus,
            **(jobs.extras() if keep_extra else {}),
        },
        system=System(name=min(servers)) if len(servers) == 1 else System(),
        time_zone=zone,
        parameters={"time_zone": zone, "keep_extra": keep_extra, "keep_names": keep_names},
        defects={"jobs of unknown size": nodes == 0, ASSUMED_UTC: local, UNEVEN: uneven, **records.counts},
        place=jobs.place,
        names=("user", "group"),
    )


def _taken(column: pa.Array, rows: IntArray) -> pa.Array:
    """Return the values in `rows`; row -1 is missing."""
    if len(rows) == len(column) and (np.diff(rows) == 1).all():
        return column
    return column.take(pa.array(rows, mask=rows < 0))


def _partitioned(column: pa.Array, mark: str) -> tuple[pa.Array, pa.Array]:
    """Return the texts before and after the first `mark`; without one, the whole text and an empty one."""
    parts = pc.split_pattern(column, mark, max_splits=1)
    return pc.list_element(parts, 0), pc.binary_join(pc.list_slice(parts, 1), pa.scalar("", column.type))


def _lengths(column: pa.Array) -> IntArray:
    """Return the number of bytes of each text, 0 of a missing one, shape (texts,)."""
    lengths: IntArray = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return lengths


def _mapped(column: pa.Array, function: Callable[[str], str]) -> pd.Categorical:
    """Return the labels that `function` makes of texts; a missing text is empty."""
    codes, texts = codes_of(pa.chunked_array([pc.fill_null(column, "")]))
    return relabel(codes, [function(text) for text in texts])


def _first_text(*columns: pa.Array) -> pa.Array:
    """Return the first text of each row that is not empty."""
    return pc.coalesce(*(pc.if_else(pc.equal(column, ""), None, column) for column in columns))


def _number(text: str) -> float | None:
    return float(text) if NUMBER.match(text) else None


def _mib(text: str) -> float | None:
    """Return an amount of memory in MiB; None: not an amount. A word, `w`, has eight bytes."""
    match = AMOUNT.match(text)
    if not match:
        return None
    scale = 1024.0 ** " kmgtp".index(match[2].lower() or " ") * (8.0 if match[3].lower() == "w" else 1.0)
    return float(match[1]) * scale / 2.0**20


def _first_known(*choices: Any) -> Any:
    result = choices[-1]
    for values in choices[-2::-1]:
        result = np.where(np.isnan(values), result, values)
    return result


FORMAT = Format("pbs", "accounting of PBS Pro and Torque", recognizes, marks=Marks.LINES, read_log=read_log)
