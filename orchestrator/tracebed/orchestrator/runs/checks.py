"""Consistency checks of a Run that was read from files. An error names the file and the row.

`runs.schema.conform` checks the types of the columns. The checks here compare values: within a row, with the job and
nodes that the row refers to, and between allocations of the same cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tracebed.converters.schema import duplicated
from tracebed.converters.workload import MAX_EXACT, MAX_SIZE, FloatArray, Kind, RowError
from tracebed.ground.cpus import parse_cpus
from tracebed.ground.errors import InputError
from tracebed.ground.states import ChangeCause, JobState
from tracebed.ground.table import BoolArray, IntArray, Table, codes_of, expanded
from tracebed.machine.power import PowerState
from tracebed.orchestrator.runs.schema import TABLES, refuse

ROUNDING_S = 1e-6  # tolerance of the comparison of times in a run without a resolution, trace s
# Largest time by which a job of a real run may start before its submission because of clock skew, wall s.
CLOCK_SKEW_S = 86_400.0
STAMP_SKEW_S = 1.0  # largest accepted difference between the clocks that time one job of a real run, wall s

Refusal: TypeAlias = tuple[BoolArray, Callable[[int], str]]
"""Whether each row is refused, and the message for one that is."""
BLOCK_NODES = 2**16
# Largest block, in nodes and in rows, of the comparison of allocations node by node. It bounds the memory.
BLOCK_ROWS = 2**22


@dataclass(frozen=True)
class Facts:
    """Metadata of a run with which the tables must agree."""

    cores: IntArray  # of each node, shape (nodes,)
    counts: Mapping[str, int]  # number of jobs (`jobs`), and of jobs by state, from `run.json`
    tolerance_s: float  # of the comparison of times, trace s
    skew_s: float  # longest time by which a job may start before its submission, trace s
    stamp_skew_s: float  # longest time by which the steps of one job may be out of order, trace s
    logged: bool  # the run is a log, in which the start of a completed job may be missing
    imported: bool  # another program recorded the run, and maybe not each instant of a resize


def check(tables: Mapping[str, Table], facts: Facts, folder: Path) -> None:
    """Check the tables of a run, as returned by `conform`, against each other and `facts`. `folder` is for messages.

    An invalid value in one row is a RowError, any other an InputError.
    """
    jobs, resizes, samples = tables["jobs"], tables["reconfigurations"], tables["nodes"]
    for name, table in tables.items():
        if len(table):
            _check_values(name, table, _path(folder, name))
    _check_jobs(jobs, facts, _path(folder, "jobs"))
    _check_counts(jobs, facts.counts, folder)
    _check_allocations(tables["allocations"], jobs, facts, folder)
    if len(resizes):
        _check_reconfigurations(resizes, jobs, facts, _path(folder, "reconfigurations"))
        _check_steps(resizes, jobs, facts, _path(folder, "reconfigurations"))
    if len(samples):
        _check_samples(samples, facts.cores, _path(folder, "nodes"))


def _path(folder: Path, name: str) -> str:
    return str(folder / f"{name}.parquet")


def _refuse_in_blocks(table: Table, checks: Callable[[Table], Iterator[Refusal]], where: str) -> None:
    """Make `checks` of each block of a table, which bounds the memory.

    The error is that of a check of the whole table: of the first check that fails, for the first row in which it does.
    """
    error, before, first = None, None, 0
    for block in table.blocks():
        for number, (bad, what) in enumerate(islice(checks(block), before)):
            if bad.any():
                row = int(bad.argmax())
                error, before = RowError(what(row), first + row, where), number
                break
        first += len(block)
    if error:
        raise error


def _check_values(name: str, table: Table, where: str) -> None:
    """Check that no number is infinite and that no text is missing."""

    def checks(block: Table) -> Iterator[Refusal]:
        for column, spec in TABLES[name].items():
            if spec.dtype == "float64":
                numbers = block[column]
                yield np.abs(numbers) > MAX_EXACT, lambda row: f"{column} is {numbers[row]:g}"  # noqa: B023
            elif spec.dtype == "str":
                yield block.missing(column), lambda row: f"{column} is missing"  # noqa: B023

    _refuse_in_blocks(table, checks, where)


def _check_jobs(jobs: Table, facts: Facts, where: str) -> None:
    nodes, tolerance = jobs["nodes"], facts.tolerance_s
    submit, start, end = (jobs[name] for name in ("submit", "start", "end"))

    def job(row: int) -> str:
        return _job(jobs, row)

    refuse(jobs.equal("job_id", ""), lambda row: "job_id is empty", where)
    refuse(duplicated(jobs.raw("job_id")), lambda row: f"{job(row)} appears twice", where)
    for column, known in (("kind", [*Kind]), ("state", [*JobState])):
        _check_words(jobs, column, known, where)
    refuse((nodes < 0) | (nodes > MAX_SIZE), lambda row: f"{job(row)} requests {nodes[row]:,} nodes", where)
    refuse(jobs["restarts"] < 0, lambda row: f"restarts of {job(row)} is negative", where)
    for column in ("run_time", "time_limit", "deadline"):
        times = jobs[column]
        refuse(times < 0, lambda row: f"{column} of {job(row)} is {times[row]:g} s", where)  # noqa: B023
    planned = jobs["submit_planned"]
    refuse(np.isnan(planned), lambda row: f"submit_planned of {job(row)} is missing", where)
    began, ended = ~np.isnan(start), ~np.isnan(end)
    refuse(began & np.isnan(submit), lambda row: f"{job(row)} starts, but its submit time is missing", where)
    done = jobs.among("state", (JobState.COMPLETED, JobState.KILLED))
    lacking = done & ~(began & ended) if not facts.logged else began & ~ended & done
    refuse(lacking, lambda row: f"{job(row)} is {jobs.text('state', row)}, but its start or end is missing", where)
    refuse(
        end < start - tolerance,
        lambda row: f"{job(row)} ends at {end[row]:.15g} s, before its start at {start[row]:.15g} s",
        where,
    )
    launched, skew = jobs["launched"], tolerance + facts.stamp_skew_s
    refuse(
        ~np.isnan(launched) & ~began & (jobs["restarts"] == 0),
        lambda row: f"{job(row)} is launched, but its start is missing",
        where,
    )
    refuse(
        (launched < start - skew) | (launched > end + skew),
        lambda row: (
            f"{job(row)} is launched at {launched[row]:.15g} s, but runs from {start[row]:.15g} to {end[row]:.15g} s"
        ),
        where,
    )
    refuse(
        start < submit - tolerance - facts.skew_s,
        lambda row: f"{job(row)} starts at {start[row]:.15g} s, before its submission at {submit[row]:.15g} s",
        where,
    )


def _check_counts(jobs: Table, counts: Mapping[str, int], folder: Path) -> None:
    """Check that the number of jobs, in total and in each state, is that in `run.json`."""
    found = {"jobs": len(jobs), **{state.value: int(jobs.equal("state", state).sum()) for state in JobState}}
    for name in ["jobs", *JobState] if counts else []:
        if counts.get(name, 0) != found[name]:
            jobs_of_state = name if name == "jobs" else f"{name} jobs"
            what = f"has {found[name]:,} {jobs_of_state}, run.json has {counts.get(name, 0):,}"
            hint = "one of the two files was changed: repeat the run"
            raise InputError(what, where=_path(folder, "jobs"), hint=hint)


def _check_allocations(rows: Table, jobs: Table, facts: Facts, folder: Path) -> None:
    where, cores = _path(folder, "allocations"), facts.cores
    start, end = jobs["start"], jobs["end"]
    restarted = jobs["restarts"] > 0  # the job may have held nodes before its last start
    earliest, latest = np.full(len(jobs), np.inf), np.full(len(jobs), -np.inf)

    def checks(block: Table) -> Iterator[Refusal]:
        def name(row: int) -> str:
            return _job(block, row)

        def span(row: int) -> str:
            return f"{name(row)} holds nodes from {since[row]:.15g} to {until[row]:.15g} s"

        job = block.rows_in("job_id", jobs) if len(block) else np.empty(0, dtype=np.int64)
        yield job < 0, lambda row: f"{name(row)} is not in jobs.parquet"
        first, count, held = (block[name] for name in ("node", "count", "cores"))
        since, until = block["start"], block["end"]
        yield (
            (first < 0) | (count < 1) | (count > len(cores)) | (first > len(cores) - count),
            lambda row: (
                f"{name(row)} holds {count[row]:,} nodes from number {first[row]:,}, the run has {len(cores):,}"
            ),
        )
        fewest = _fewest(cores, first, count)
        yield (
            (held < 1) | (held > fewest),
            lambda row: f"{name(row)} holds {held[row]:,} cores per node on nodes with {fewest[row]:,}",
        )
        yield np.isnan(since), lambda row: f"start of the allocation of {name(row)} is missing"
        yield until < since, span
        begin, stop, earlier = start[job], end[job], restarted[job]
        yield np.isnan(begin) & ~earlier, lambda row: f"{name(row)} holds nodes, but has no start in jobs.parquet"
        yield np.isnan(until) & ~np.isnan(stop), lambda row: f"end of the allocation of {name(row)} is missing"
        yield (
            ((since < begin - facts.tolerance_s) & ~earlier) | (until > stop + facts.tolerance_s),
            lambda row: f"{span(row)}, but runs from {begin[row]:.15g} to {stop[row]:.15g} s",
        )
        np.minimum.at(earliest, job, since)
        np.maximum.at(latest, job, np.where(np.isnan(until), np.inf, until))

    _refuse_in_blocks(rows, checks, where)
    if len(rows):
        _check_held_throughout(jobs, earliest, latest, facts, folder)
    if not facts.imported:  # jobs of other programs may share a node, which counts whole for each, with a warning
        _check_no_core_twice(rows, facts.tolerance_s, cores, where)


def _check_held_throughout(jobs: Table, first: FloatArray, last: FloatArray, facts: Facts, folder: Path) -> None:
    """Check that each job that ran has an allocation, of which the first begins and the last ends with the job."""
    start, end, where = jobs["start"], jobs["end"], _path(folder, "jobs")
    held = np.isfinite(first)
    what = "runs, but holds no nodes in allocations.parquet"
    refuse((end > start) & ~held, lambda row: f"{_job(jobs, row)} {what}", where)
    once = jobs["restarts"] == 0  # else `start` is that of the last run
    short = (held & once & (first > start + facts.tolerance_s)) | (held & (last < end - facts.tolerance_s))
    refuse(
        short,
        lambda row: (
            f"{_job(jobs, row)} runs from {start[row]:.15g} to {end[row]:.15g} s, but holds nodes "
            f"from {first[row]:.15g} to {last[row]:.15g} s in allocations.parquet"
        ),
        where,
    )


def _check_steps(rows: Table, jobs: Table, facts: Facts, where: str) -> None:
    """Check that the steps of each change are in order and within the job, and that no resize is recorded twice."""
    skew = facts.tolerance_s + facts.stamp_skew_s
    steps = ("asked", "decided", "applied", "ended")
    for earlier, later in combinations(steps, 2):
        before, after = rows[earlier], rows[later]
        refuse(
            after < before - skew,
            lambda row: f"{later} at {after[row]:.15g} s, before {earlier} at {before[row]:.15g} s",  # noqa: B023
            where,
        )
    job = _rows_of(rows, jobs, where)
    begin, end = (jobs[name][job] for name in ("start", "end"))
    earlier_run = jobs["restarts"][job] > 0
    in_vain = rows.among("state", ("cancelled", "refused"))  # the policy learnt of the end later
    for step in steps:
        at = rows[step]
        late = (at > end + skew) & ~(in_vain & (step == "asked"))
        refuse(
            ((at < begin - skew) & ~earlier_run) | late,
            lambda row: (
                f"{_job(rows, row)}: {step} at {at[row]:.15g} s, but the job runs "  # noqa: B023
                f"from {begin[row]:.15g} to {end[row]:.15g} s"
            ),
            where,
        )
    resizes = np.flatnonzero((rows["node"] == -1) & rows.equal("state", "applied"))
    sizes = np.column_stack([rows[name][resizes] for name in ("nodes_from", "nodes_to", "applied")])
    order = np.lexsort((sizes[:, 2], job[resizes]))  # stable: two resizes at one time stay in their order
    twice = (job[resizes][order][1:] == job[resizes][order][:-1]) & (sizes[order][1:] == sizes[order][:-1]).all(axis=1)
    again = np.zeros(len(rows), dtype=bool)
    again[resizes[order][1:][twice]] = True
    refuse(again, lambda row: f"the resize of {_job(rows, row)} is recorded twice", where)


def _check_reconfigurations(rows: Table, jobs: Table, facts: Facts, where: str) -> None:
    cores = facts.cores
    _rows_of(rows, jobs, where)
    of_nodes = rows["node"] == -1
    _check_words(rows, "kind", ["expand", "shrink", "move"], where)
    _check_words(rows, "state", ["applied", "cancelled", "denied", "refused"], where)
    asked, denied = rows["nodes_asked"], rows.equal("state", "denied")
    refuse(asked < 0, lambda row: "nodes_asked is negative", where)
    refuse(denied & (asked != rows["nodes_to"]), lambda row: "denied, but nodes_to was not requested", where)
    _check_words(rows, "cause", [*ChangeCause], where)
    refuse(
        of_nodes != rows.equal("cause", ChangeCause.RESIZE),
        lambda row: f"cause is {rows.text('cause', row)}, but node is {rows['node'][row]}",
        where,
    )
    before, after = rows["nodes_from"], rows["nodes_to"]
    # Another program may record resizes, and not on how many nodes.
    most = len(cores) if len(cores) or not facts.imported else MAX_SIZE
    impossible = (np.minimum(before, after) < 1) | (np.maximum(before, after) > most)
    impossible |= np.where(of_nodes, _unfit(rows, before, after), before != after)
    refuse(
        impossible | (of_nodes & (before == after)),
        lambda row: f"{rows.text('kind', row)} from {before[row]:,} to {after[row]:,} nodes of {len(cores):,}",
        where,
    )
    _check_core_changes(rows, cores, where)
    unknown = np.isnan(rows["asked"]) & np.isnan(rows["applied"])  # other simulators may not record `asked`
    if facts.imported:  # a log may have the end of a resize only
        unknown &= np.isnan(rows["ended"])
    refuse(unknown, lambda row: f"{_job(rows, row)} is resized, but no instant of the resize is known", where)
    applied, stated = rows.equal("state", "applied"), ~np.isnan(rows["applied"])
    contradict = stated & ~applied if facts.imported else applied != stated
    refuse(contradict, lambda row: "state and applied contradict each other", where)
    for column in ("decision_s", "grant_s", "merge_s", "spawn_s", "redistribution_s", "termination_s", "moved_mib"):
        refuse(rows[column] < 0, lambda row: f"{column} is negative", where)  # noqa: B023


def _check_core_changes(rows: Table, cores: IntArray, where: str) -> None:
    """Check node and cores of the changes of cores on a node."""
    node, before, after = (rows[name] for name in ("node", "cores_from", "cores_to"))
    outside = (node < -1) | (node >= len(cores))
    refuse(outside, lambda row: f"node {node[row]:,} of {len(cores):,}", where)
    size = np.append(cores, 0)[node]  # 0 for a change of nodes
    impossible = (np.minimum(before, after) < 0) | (np.maximum(before, after) > size)
    if (node >= 0).any():
        impossible |= (node >= 0) & _unfit(rows, before, after)
    refuse(
        impossible,
        lambda row: f"{rows.text('kind', row)} from {before[row]:,} to {after[row]:,} cores of {size[row]:,}",
        where,
    )


def _unfit(rows: Table, before: IntArray, after: IntArray) -> BoolArray:
    """Return whether the kind of each change contradicts its sizes."""
    signs = rows.equal("kind", "expand").astype(np.int64) - rows.equal("kind", "shrink")
    return np.asarray(np.sign(after - before) != signs)


def _check_samples(rows: Table, cores: IntArray, where: str) -> None:
    node = rows["node"]
    refuse((node < 0) | (node >= len(cores)), lambda row: f"node {node[row]:,} of {len(cores):,}", where)
    refuse(np.isnan(rows["time"]), lambda row: "time is missing", where)
    for column in [name for name in TABLES["nodes"] if name not in ("time", "node", "power_state")]:
        refuse(rows[column] < 0, lambda row: f"{column} is negative", where)  # noqa: B023
    _check_words(rows, "power_state", ["", *PowerState], where)


def _check_words(table: Table, column: str, known: Sequence[str], where: str) -> None:
    words = [str(word) for word in known]
    refuse(
        ~table.among(column, words),
        lambda row: f"{column} is {table.text(column, row)[:40]!r}, not one of {', '.join(filter(None, words))}",
        where,
    )


def _job(table: Table, row: int) -> str:
    """Return the name of the job in a row, for messages."""
    return f"job {table.text('job_id', row)[:40]!r}"


def _rows_of(table: Table, jobs: Table, where: str) -> IntArray:
    """Return the row of the job of each row of `table` in `jobs`, shape (rows,)."""
    if not len(table):
        return np.empty(0, dtype=np.int64)
    found = table.rows_in("job_id", jobs)
    refuse(found < 0, lambda row: f"{_job(table, row)} is not in jobs.parquet", where)
    return found


def _fewest(cores: IntArray, first: IntArray, count: IntArray) -> IntArray:
    """Return the minimum number of cores per node in each range of nodes."""
    if not len(first) or (cores == cores[0]).all():
        return np.full(len(first), cores[0] if len(cores) else 0)
    bounds = np.column_stack((first, first + count)).ravel()
    return np.minimum.reduceat(np.append(cores, MAX_SIZE), bounds)[::2]


# -- cores held twice --------------------------------------------------------------------------------------------------


def _check_no_core_twice(rows: Table, tolerance_s: float, cores: IntArray, where: str) -> None:
    """Check that simultaneous jobs on a node hold at most its cores, and different CPUs."""
    masks = None if rows.equal("cpus", "").all() else _Masks(rows, where)
    for inside, held, row, node in _by_node(rows.without("job_id", "cpus"), tolerance_s, len(cores)):
        since, until = held["start"], _until(held, tolerance_s)
        overlap = (node[1:] == node[:-1]) & (until[row[:-1]] > since[row[1:]])
        if not overlap.any():
            continue
        is_shared = np.zeros(len(cores), dtype=bool)
        is_shared[node[1:][overlap]] = True
        row, node = row[is_shared[node]], node[is_shared[node]]
        since, until, weight, row = since[row], until[row], held["cores"][row], inside[row]
        used, event = _sweep(node, since, until, weight)
        beyond = np.flatnonzero(used > cores[node[event]])
        if len(beyond):
            at = event[beyond[0]]
            others = used[beyond[0]] - weight[at]
            takes = f"takes {weight[at]:,} of {cores[node[at]]:,} cores of node number {node[at]:,}"
            raise _error(rows, int(row[at]), f"{takes} at {since[at]:.15g} s, while other jobs hold {others:,}", where)
        if masks:
            masks.check(row, node, since, until)


def _until(rows: Table, tolerance_s: float) -> FloatArray:
    """Return the ends of allocations, before which others on their nodes do not start, s."""
    until = rows["end"]
    return np.where(np.isnan(until), np.inf, until) - tolerance_s


def _by_node(rows: Table, tolerance_s: float, total: int) -> Iterator[tuple[IntArray, Table, IntArray, IntArray]]:
    """Yield all nodes of all allocations with a positive duration, by node and start, in blocks of nodes.

    A block is the numbers of its rows, these rows by start, and for each node the row among these and the node.
    """
    lasting = [_until(block, tolerance_s) > block["start"] for block in rows.blocks()]
    many = sum(int(block["count"][long].sum()) for block, long in zip(rows.blocks(), lasting, strict=True))
    blocks = max(math.ceil(total / BLOCK_NODES), math.ceil(many / BLOCK_ROWS))
    bounds = np.unique(np.linspace(0, total, blocks + 1).astype(np.int64))
    parts: list[list[IntArray]] = [[] for _ in bounds[1:]]
    kind, before = np.min_scalar_type(len(rows)), 0
    for block, long in zip(rows.blocks(), lasting, strict=True):
        row = np.flatnonzero(long)
        first = np.searchsorted(bounds, block["node"][row], side="right") - 1
        end = np.searchsorted(bounds, (block["node"] + block["count"])[row])
        which, number = expanded(first, end - first)
        order = np.argsort(number.astype(np.uint16), kind="stable")  # numpy uses a radix sort for 16 bits
        ends = np.searchsorted(number[order], np.arange(1, len(parts)))
        for part, some in zip(parts, np.split((row[which[order]] + before).astype(kind), ends), strict=False):
            part.append(some)
        before += len(block)
    for part, (low, high) in zip(parts, pairwise(bounds.tolist()), strict=True):
        inside = np.concatenate(part)
        part.clear()
        held = rows.take(inside)
        order = np.argsort(held["start"], kind="stable")
        inside, held = inside[order], held.take(order)
        begin = np.maximum(held["node"], low)
        many = np.minimum(held["node"] + held["count"], high) - begin
        row, node = expanded(begin - low, many)
        order = np.argsort(node.astype(np.uint16), kind="stable")
        yield inside, held, row[order], node[order] + low


def _sweep(node: IntArray, since: FloatArray, until: FloatArray, weight: IntArray) -> tuple[IntArray, IntArray]:
    """Return the sum of the weights on the node after each start, and the index of the start, by node and time."""
    index = np.arange(len(node))
    event, starts = np.concatenate((index, index)), np.repeat([True, False], len(node))
    order = np.lexsort((starts, np.concatenate((since, until)), node[event]))
    event, starts = event[order], starts[order]
    used = np.cumsum(np.where(starts, weight[event], -weight[event]))
    return used[starts], event[starts]


class _Masks:
    """The CPU masks of the allocations of real nodes: CPU lists with as many CPUs as the job has cores."""

    def __init__(self, rows: Table, where: str) -> None:
        self._rows, self._where = rows, where
        self._codes, texts = codes_of(rows.raw("cpus"))
        self._cpus: list[tuple[int, ...]] = []
        for code, text in enumerate(texts):
            try:
                self._cpus.append(parse_cpus(text))
            except InputError as error:
                raise RowError(error.what, int((self._codes == code).argmax()), where) from error
        sizes = np.array([len(cpus) for cpus in self._cpus], dtype=np.int64)[self._codes]
        held = rows["cores"]
        refuse(
            (sizes > 0) & (sizes != held), lambda row: f"{held[row]:,} cores, but CPUs {texts[self._codes[row]]}", where
        )

    def check(self, row: IntArray, node: IntArray, since: FloatArray, until: FloatArray) -> None:
        """Check that no CPU of each `node` is in the masks of two simultaneous allocations of `row`."""
        codes = self._codes[row]
        cpus = [self._cpus[code] for code in codes.tolist()]
        many = np.array([len(mask) for mask in cpus], dtype=np.int64)
        index = np.repeat(np.arange(len(row)), many)
        cpu = np.array([number for mask in cpus for number in mask], dtype=np.int64)
        if not len(cpu):
            return
        unit = node[index] * (int(cpu.max()) + 1) + cpu
        used, event = _sweep(unit, since[index], until[index], np.ones(len(unit), dtype=np.int64))
        twice = np.flatnonzero(used > 1)
        if len(twice):
            at = event[twice[0]]
            what = f"takes CPU {cpu[at]} of node number {node[index[at]]:,}, which another job holds"
            raise _error(self._rows, int(row[index[at]]), what, self._where)


def _error(rows: Table, row: int, what: str, where: str) -> RowError:
    return RowError(f"{_job(rows, row)} {what}", row, where)
