"""Conversion of the record and the ledger of a scheduler to a Run, for the simulator and the replayer."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracebed.converters.workload import FloatArray
from tracebed.ground.cpus import format_cpus
from tracebed.ground.display import counted
from tracebed.ground.states import JobState
from tracebed.ground.table import (
    BLOCK,
    PACKED_FROM,
    IntArray,
    Packed,
    Table,
    Texts,
    concatenated,
    counts_of,
    expanded,
    packed,
    repeated,
    take,
    texts,
)
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.runs.schema import NAN, TABLES, conform
from tracebed.orchestrator.scheduling.cluster import Cluster, Ledger
from tracebed.orchestrator.scheduling.record import (
    MEASURED,
    NEVER_STARTED,
    POWER_STATES,
    CoreChanges,
    PowerChanges,
    ScheduleRecord,
)

if TYPE_CHECKING:
    import pandas as pd


def make_run(
    record: ScheduleRecord,
    cluster: Cluster,
    info: RunInfo,
    *,
    cpus: Sequence[Sequence[int]] | None = None,
    samples: pd.DataFrame | None = None,
    pools: IntArray | None = None,
) -> Run:
    """Return the run that `record` and the ledger of `cluster` describe. Empties the ledger; adds counts and warnings.

    Virtual nodes have no `cpus`. `samples` is the table `nodes` of the run. `pools` is the pool of nodes of each job,
    shape (jobs,); None: there are none.
    """
    table = jobs_table(record)
    info.counts = {"jobs": len(record.jobs), **counts_of(table.raw("state"))}  # in the order of the jobs
    info.warnings = [f"{count:,} {what}" for what, count in record.jobs.counts.items()] + info.warnings
    if rejected := info.counts.get(JobState.REJECTED):
        unserved = record.unserved
        if unserved:
            why = Counter(unserved.values()).most_common(1)[0][0]
            such = "" if len({*unserved.values()}) == 1 else "such as "
            served = "it" if len(unserved) == 1 else "them"
            info.warnings.append(
                f"{counted(len(unserved), 'job')} rejected, since no nodes of the machine serve {served}: {such}{why}"
            )
            rejected -= len(unserved)
        too_large = f"the machine has {len(cluster)}"
        large = sum(reason.endswith(too_large) for job, reason in enumerate(record.reason) if job not in unserved)
        if large:
            info.warnings.append(f"{counted(large, 'job')} rejected: the machine has only {len(cluster):,} nodes")
        if rejected > large:
            by_policy = counted(rejected - large, "job")
            refused = Counter(
                why
                for job, (state, why) in enumerate(zip(record.state, record.reason, strict=True))
                if state == JobState.REJECTED and job not in unserved and not why.endswith(too_large)
            )
            why, count = refused.most_common(1)[0]
            example = f"{why}; " if count == rejected - large else f"such as {counted(count, 'job')}: {why}; "
            info.warnings.append(f"{by_policy} rejected by the policy: {example}the table jobs has the reasons")
    if never := record.reason.count(NEVER_STARTED):  # of lost nodes, the simulator warns
        info.warnings.append(f"{counted(never, 'job')} never started by the policy")
    allocations = allocations_table(cluster.ledger, _ids(record), cluster.cores, cpus or [()] * len(cluster))
    nodes: pd.DataFrame | Table | None = samples
    if len(record.power):
        rows = [conform("nodes", part) for part in (power_table(record.power), samples) if part is not None]
        nodes = Table({name: concatenated([part.raw(name) for part in rows]) for name in rows[0]})
    return Run(info, table, allocations, reconfigurations_table(record, pools), nodes)


def jobs_table(record: ScheduleRecord) -> Table:
    """Return the table `jobs` of a run: one row per job, in submit order."""
    jobs = record.jobs
    columns = {
        "job_id": _ids(record),
        "kind": jobs.kept("kind"),
        "submit_planned": jobs.kept("submit"),
        "submit": record.submit,
        "start": record.start,
        "launched": record.launched,
        "end": record.end,
        "state": record.state,
        "reason": record.reason,
        "nodes": jobs.kept("nodes"),
        "run_time": jobs.kept("run_time"),
        "time_limit": jobs.kept("limit"),
        "user": jobs.kept("user"),
        **{
            name: jobs.kept(name) if len(jobs.kept(name)) else repeated("", len(jobs))
            for name in ("group", "partition", "behaviour")
        },
        "deadline": jobs.kept("deadline") if len(jobs.kept("deadline")) else repeated(NAN, len(jobs)),
        "restarts": record.restarts,
        "checksum": record.checksum,
    }
    texts_in = {name for name, column in TABLES["jobs"].items() if column.dtype == "str"}
    for name, values in columns.items():
        columns[name] = packed(_texts(values) if name in texts_in else _numbers(values))
    return Table({name: columns[name] for name in TABLES["jobs"]})


def _numbers(values: Any) -> Any:
    return values if isinstance(values, Packed) else np.asarray(values)


def _texts(values: Any) -> Any:
    """Return texts as a column. A column of equal texts is made of one of them."""
    if isinstance(values, Packed):
        return values
    first = next(iter(values), "") if isinstance(values, list) else None
    return texts(values) if first is None or values.count(first) < len(values) else repeated(first, len(values))


def _ids(record: ScheduleRecord) -> Texts:
    """Return the ids of the jobs as a column."""
    return texts(record.jobs.column("ids"))


def reconfigurations_table(record: ScheduleRecord, pools: IntArray | None = None) -> Table | None:
    """Return the table `reconfigurations` of a run, in the order of the policy's decisions; None without rows.

    The decisions of one instant are in the order of the `pools` of their jobs, if there are pools: the simulators call
    the policy for them in different orders.
    """
    if not len(record.resizes) and not len(record.cores):
        return None
    ids = _ids(record)
    columns: dict[str, Any] = {name: np.asarray(values) for name, values in vars(record.resizes).items()}
    columns["job_id"] = _of_jobs(ids, columns.pop("job"))
    more = columns["nodes_to"] > columns["nodes_from"]
    columns["kind"] = _words(["shrink", "expand"], more.astype(np.int8))
    for name in MEASURED if record.measured else ():
        columns[name] = np.full(len(record.resizes), NAN)
        for row, measured in record.measured.items():
            columns[name][row] = measured.get(name, NAN)
    if record.nodes_asked:
        columns["nodes_asked"] = np.zeros(len(record.resizes), dtype=np.int64)
        columns["nodes_asked"][[*record.nodes_asked]] = [*record.nodes_asked.values()]
    state = (~np.isnan(columns["applied"])).astype(np.int8)
    state[[*record.denied]] = len(STATES) - 1
    table = Table(columns | {"state": _words(STATES, state)})
    if len(record.cores):
        parts = [conform("reconfigurations", part) for part in (table, _core_changes(record.cores, ids))]
        table = Table({name: concatenated([part.raw(name) for part in parts]) for name in parts[0]})
    elif pools is None:
        return table
    asked, applied = table["asked"], table["applied"]
    at = np.where(np.isnan(asked), applied, asked)  # a change without a decision is at the time it was applied
    if pools is None:
        return table.take(np.argsort(at, kind="stable"))
    job = np.concatenate([np.asarray(rows.job, dtype=np.int64) for rows in (record.resizes, record.cores)])
    return table.take(np.lexsort((pools[job], at)))


def power_table(changes: PowerChanges) -> Table:
    """Return the rows of the table `nodes` for changes of the power of nodes, sorted by time and node."""
    node, time, state = (np.asarray(values) for values in (changes.node, changes.time, changes.state))
    order = np.lexsort((node, time))  # stable: several states of a node at one instant stay in their order
    states = take(texts(POWER_STATES), state[order].astype(np.int64))
    return Table({"time": time[order], "node": node[order].astype(np.int64), "power_state": states})


STATES = ("cancelled", "applied", "denied")


def _core_changes(changes: CoreChanges, ids: Texts) -> Table:
    """Return the rows of the table `reconfigurations` for changes of cores. Their cores are free when they apply."""
    names = ("job", "node", "nodes", "cores_from", "cores_to", "asked", "decided", "seen", "applied")
    columns: dict[str, Any] = {name: np.asarray(getattr(changes, name)) for name in names}
    columns["job_id"] = take(ids, columns.pop("job"))
    columns["nodes_from"] = columns["nodes_to"] = columns.pop("nodes")
    columns["ended"] = columns["applied"]
    columns["cause"] = texts(changes.cause)
    more = np.sign(columns["cores_to"] - columns["cores_from"])
    columns["kind"] = take(texts(["shrink", "move", "expand"]), more.astype(np.int64) + 1)
    return Table(columns | {"state": take(texts(STATES), (~np.isnan(columns["applied"])).astype(np.int64))})


def allocations_table(
    ledger: Ledger, ids: Texts | Sequence[str], cores: Sequence[int], cpus: Sequence[Sequence[int]]
) -> Table:
    """Return the table `allocations` of a run, sorted by start, job and node. A virtual node has no `cpus`.

    A row is a range of consecutive nodes on which a job holds the same cores for the same period. The function empties
    the ledger, which takes half a gigabyte for a million malleable jobs.
    """
    kind = _kinds(cores, cpus)
    alike = ledger.ordered and len(kind) > 0 and not kind[-1]
    job, low, count = map(np.asarray, (ledger.jobs, ledger.firsts, ledger.counts))
    start: Any = ledger.starts if alike else np.asarray(ledger.starts)
    end: Any = ledger.ends if alike else np.asarray(ledger.ends)
    ledger.jobs, ledger.firsts, ledger.counts = array("i"), array("i"), array("i")
    ledger.starts, ledger.ends = array("d"), array("d")
    columns: dict[str, Any] = {"job_id": job, "node": low, "count": count, "start": start, "end": end}
    if alike:
        columns["cores"] = repeated(np.int64(cores[0]), len(job))
        columns["cpus"] = repeated(format_cpus(cpus[0]), len(job))
        del job, low, count, start, end
        return _narrowed(columns, ids)
    high = low + count
    del count
    entry = np.arange(len(job)) if ledger.parts else np.empty(0, dtype=np.int64)
    if len(job) and kind[-1]:
        row, low, high = split(low, high, kind)
        job, start, end, entry = job[row], start[row], end[row], entry[row] if ledger.parts else entry
    if not _ascend(start, job, low, end):
        order = ledger_order(start, job, low, end)
        start = start[order]  # one after the other, so that each old array is freed before the next is sorted
        end = end[order]
        job = job[order]
        low = low[order]
        high = high[order]
        entry = entry[order] if ledger.parts else entry
        del order
    masks: dict[str, int] = {}  # mask -> its number
    stretches = np.flatnonzero(np.diff(kind, prepend=-1)).tolist()
    of_kind = [masks.setdefault(format_cpus(cpus[node]), len(masks)) for node in stretches]
    if len(stretches) == 1 and not ledger.parts:
        held, mask = repeated(np.int32(cores[0]), len(low)), repeated(np.int32(0), len(low))
    else:
        held, mask = np.asarray(cores, np.int32)[low], np.array(of_kind, np.int32)[kind[low]]
    for at in np.flatnonzero(np.isin(entry, list(ledger.parts))).tolist() if ledger.parts else ():
        part = ledger.parts[int(entry[at])]
        held[at] = len(part)
        mask[at] = masks.setdefault(format_cpus(cpus[int(low[at])][part.start : part.stop]), len(masks))
    joins = low[1:] == high[:-1]
    for same in (job, start, end, held, mask):
        joins &= same[1:] == same[:-1]
    columns = {"job_id": job, "node": low, "count": high, "start": start, "end": end, "cores": held, "cpus": mask}
    del job, low, high, start, end, held, mask, same, entry  # frees each array when its column is made
    if joins.any():
        first, last = np.append(True, ~joins), np.append(~joins, True)
        columns = {name: columns.pop(name)[last if name == "count" else first] for name in list(columns)}
    columns["count"] -= columns["node"]
    columns["cpus"] = _compact(columns["cpus"], lambda mask: take(texts([*masks]), mask))
    columns["cores"] = _compact(columns["cores"], lambda held: held.astype(np.int64))
    return _narrowed(columns, ids)


def _narrowed(columns: dict[str, Any], ids: Texts | Sequence[str]) -> Table:
    """Return the table of columns, of which those of a large table are packed one after the other, and then freed."""
    columns["job_id"] = _of_jobs(texts(ids), columns["job_id"])
    for name in [*columns]:  # in their order
        values = columns.pop(name)
        columns[name] = packed(values)
        if name in ("node", "count") and isinstance(columns[name], np.ndarray):  # few rows
            columns[name] = values.astype(np.int64)
        del values  # before the next one
    return Table(columns)


def _words(words: Sequence[str], number: npt.NDArray[Any]) -> Any:
    """Return words by their numbers as a column."""
    return Packed(number, texts(words)) if len(number) >= PACKED_FROM else take(texts(words), number)


def _of_jobs(ids: Texts, job: IntArray) -> Any:
    """Return the ids of jobs, by their numbers, as a column."""
    return Packed(job, ids) if len(job) >= PACKED_FROM else take(ids, job)


def _compact(values: IntArray, column: Callable[[IntArray], Any]) -> Any:
    """Return `column(values)`, in the memory of one value if all are equal."""
    if len(values) and (values == values[0]).all():
        value = column(values[:1])[0]
        return repeated(value if isinstance(value, np.generic) else value.as_py(), len(values))
    return column(values)


def _kinds(cores: Sequence[int], cpus: Sequence[Sequence[int]]) -> IntArray:
    """Return for each node the number of its stretch: consecutive nodes with the same cores and CPUs."""
    unlike = [alike != before for alike, before in pairwise(zip(cores, cpus, strict=True))]
    return np.cumsum(np.array([False, *unlike], dtype=np.int64)[: len(cores)])


def split(low: IntArray, high: IntArray, kind: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Split ranges [low, high) where `kind` changes. Return the index of the range, low and high of each piece."""
    pieces = kind[high - 1] - kind[low] + 1
    row, stretch = expanded(kind[low], pieces)
    begins = np.searchsorted(kind, np.arange(kind[-1] + 2))
    return row, np.maximum(low[row], begins[stretch]), np.minimum(high[row], begins[stretch + 1])


def ledger_order(start: FloatArray, job: IntArray, low: IntArray, end: FloatArray) -> IntArray:
    """Return the order of the rows by start, job, low and end.

    Most rows of a ledger are in the order of their starts. The others are sorted by it, and then blocks of rows by all
    keys, in a fraction of the memory of a sort of all rows.
    """
    if len(start) <= BLOCK:
        return _order(start, job, low, end)
    latest = np.maximum.accumulate(start)
    late = np.flatnonzero(start < latest)
    late = late[np.argsort(start[late], kind="stable")]
    late_start, blocks, first, since = start[late], [], 0, 0
    while first < len(start):
        end_of = latest[min(first + BLOCK, len(start)) - 1]  # a block ends with all rows of a start
        last, until = (int(np.searchsorted(times, end_of, side="right")) for times in (latest, late_start))
        own = np.flatnonzero(start[first:last] == latest[first:last]) + first
        rows = np.sort(np.concatenate((own, late[since:until])))
        rows = rows[_order(start[rows], job[rows], low[rows], end[rows])]
        blocks.append(rows.astype(np.int32) if len(start) < 2**31 else rows)
        first, since = last, until
    return np.concatenate(blocks)


def _order(start: FloatArray, job: IntArray, low: IntArray, end: FloatArray) -> IntArray:
    """Return the order of `ledger_order` by stable sorts of one key, fast on rows that are almost in that order."""
    order = np.argsort(start, kind="stable")
    sorted_start = start[order]
    key = np.cumsum(np.append(False, sorted_start[1:] != sorted_start[:-1]), dtype=np.int64)  # number of the start
    del sorted_start
    jobs, nodes = int(job.max()) + 1, int(low.max()) + 1
    if (int(key[-1]) + 1) * jobs * nodes < 2**63:
        key *= jobs
        key += job[order]
        key *= nodes
        key += low[order]
        within = np.argsort(key, kind="stable")
        key = key[within]
        if (key[1:] != key[:-1]).all():  # no end decides
            return order[within]
    del order, key
    return np.lexsort((end, job.astype(np.int64) << 32 | low, start))  # one key of two is sorted once


def _ascend(*keys: npt.NDArray[Any]) -> bool:
    """Return whether the rows are sorted by `keys`; the first key is the primary one."""
    good = np.ones(max(0, len(keys[0]) - 1), dtype=bool)
    for key in reversed(keys):
        good = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & good)
    return bool(good.all())
