"""Matching of the rows of a file with the jobs of a workload: by a mapping, by id, by order or by shape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.cast import NOTHING
from tracebed.converters.workload import REQUESTED, FloatArray, IntArray, Kind, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.input_files import MAX_RUN_JSON, read_text
from tracebed.validation.simulators.observed import SEVERAL_RUNS, Observed
from tracebed.validation.simulators.simulator import ReadOptions

FEW = 0.01  # largest share of pairs that may contradict each other in size or submit time: more are a wrong match
LATE_S = 5.0  # smallest difference of submit times that counts as a contradiction, s
LATE_SHARE = 0.001  # the same, as a share of the span of all submissions
UNIT = "the times seem to be in {0}: give --unit {0}"
CLOSE = 0.01  # largest relative distance from a factor between two units at which times count as of the other unit
PLACEHOLDERS = {*map(str.lower, NOTHING), *("-", "--", "?", "0", "-1", "n/a", "undefined", "x")}
"""Ids that stand for a missing one, in lower case."""
SLOW = 0.5  # Largest ratio of the spans of the submissions of a file and a workload that may be that of a fast replay.
SHOWN = 5  # number of jobs that a message names
BY_HAND = "match jobs by --match FILE, id or order"


@dataclass(frozen=True)
class Pairing:
    """The row of a file for each job of a workload."""

    rows: IntArray  # row of each job, shape (jobs,); -1: the job is not in the file
    by: str  # `mapping`, `id`, `order` or `shape`
    offset_s: float  # time 0 of the workload on the clock of the file, s
    unmatched_rows: IntArray  # rows that match no job of the workload

    @property
    def found(self) -> IntArray:
        """Numbers of the jobs that are in the file."""
        return np.flatnonzero(self.rows >= 0)


def pair(observed: Observed, workload: Workload, options: ReadOptions) -> Pairing:
    """Match the rows of a file with the jobs of a workload, unambiguously, with equal sizes and submit times."""
    by: str = "mapping" if options.mapping else options.match
    if by == "auto":
        by = observed.match
    if by == "auto":
        by = _chosen(observed, workload)
    if by == "shape":
        found = _by_shape(observed, workload)
    else:
        match by:
            case "order":
                rows = _by_order(observed, workload)
            case _:
                rows = _by_id(observed, workload, _names(observed, workload, options.mapping))
        found = Pairing(rows, by, _offset(observed, workload, rows), _left(rows, len(observed.jobs)))
    if not len(found.found):
        hint = f"check --workload, or {BY_HAND}"
        raise InputError("no job of the file is in the workload", where=observed.where, hint=hint)
    _check_sizes(observed, workload, found)
    _check_submits(observed, workload, found, real=options.side == "real")
    return found


def _chosen(observed: Observed, workload: Workload) -> str:
    """Return how to match the jobs of a file without a default: by id if its ids are those of the workload."""
    if observed.is_known("job_id"):
        known = observed.texts("job_id").isin(workload.column("job_id").tolist())
        if known.mean() > 0.5:
            return "id"
    if observed.is_known("submit"):
        return "shape"
    if observed.is_known("job_id"):
        what = "the job ids of the file are not those of the workload, and the file has no submit times"
        raise InputError(what, where=observed.where, hint="match jobs by --match FILE or order")
    return "order"


def _left(rows: IntArray, count: int) -> IntArray:
    """Return the rows of the file that belong to no job."""
    return np.setdiff1d(np.arange(count), rows[rows >= 0])


# -- by id


def _names(observed: Observed, workload: Workload, mapping: Path | None) -> pd.Series[str]:
    """Return the id in the workload of each row; empty if the row is not in the mapping."""
    if not observed.is_known("job_id"):
        hint = "name its column by --columns job_id=NAME, or use --match order or shape"
        raise InputError("the file has no column of job ids", where=observed.where, hint=hint)
    ids = observed.texts("job_id").str.strip()
    if mapping is None:
        return ids
    table = read_mapping(mapping)
    theirs, ours = {*ids}, {*workload.column("job_id").tolist()}
    reverse = {ours: theirs for theirs, ours in table.items()}
    forward, backward = (sum(a in theirs and b in ours for a, b in each.items()) for each in (table, reverse))
    if not forward and not backward:
        what = "no line of the mapping has an id of the file and an id of the workload"
        line = next(iter(table.items()), None)
        what += f" (such as {line[0]!r}, {line[1]!r})" if line else ""
        hint = f"the ids of {observed.where} are such as {ids.iloc[0]!r}, those of the workload {min(ours)!r}"
        raise InputError(what, where=str(mapping), hint=hint)
    table = reverse if backward > forward else table
    return pd.Series([table.get(name, "") for name in ids], dtype="str")


def read_mapping(path: Path) -> dict[str, str]:
    """Return a file of two columns (comma, semicolon, tab, spaces): its first column -> its second one."""
    # Empty lines and lines that begin with `#` are ignored, and those of jobs that were not submitted: their id is a
    # negative number (the error of the submission) or missing. Any other id occurs once in a column.
    lines = read_text(path, "mapping", hint="check the path of --match", most=MAX_RUN_JSON).splitlines()
    mapping: dict[str, str] = {}
    taken: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        words = line.replace(",", " ").replace(";", " ").split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{path}:{number}"
        if len(words) != 2:
            hint = "write the id of the file and the id of the workload"
            raise InputError(f"has {len(words)} values, not two", where=where, hint=hint)
        theirs, ours = words
        if any(re.fullmatch(r"-\d*", word) or word.lower() in NOTHING for word in words):
            continue
        if theirs in mapping or ours in taken:
            raise InputError(f"id {(theirs if theirs in mapping else ours)[:40]!r} occurs twice", where=where)
        mapping[theirs] = ours
        taken[ours] = number
    return mapping


def _by_id(observed: Observed, workload: Workload, names: pd.Series[str]) -> IntArray:
    twice = names.duplicated() & (names != "")
    if twice.any():
        row = int(twice.to_numpy().argmax())
        first = int((names == names.iloc[row]).to_numpy().argmax())
        check_placeholder(observed, names, row)
        what = f"occurs twice: its first row is {observed.place(first)}, and {int(twice.sum()):,} rows are repeated"
        hint = f"remove the repeated rows, or keep only the last run of each job; {SEVERAL_RUNS}"
        raise observed.error(row, what, hint)
    rows = {name: row for row, name in enumerate(names) if name}  # rows that are not in the mapping have no name
    return np.array([rows.get(str(name), -1) for name in workload.column("job_id")], dtype=np.int64)


def check_placeholder(observed: Observed, names: pd.Series[str], row: int) -> None:
    """Raise InputError if the id of a row, which is repeated, stands for a missing one: `-`, `NA`, `0`."""
    if names.iloc[row].strip().lower() in PLACEHOLDERS:
        what = f"is the id of {int((names == names.iloc[row]).sum()):,} rows: it seems to stand for a missing id"
        raise observed.error(row, what, "give these jobs ids, remove the rows, or remove the column of ids")


# -- by order


def _by_order(observed: Observed, workload: Workload) -> IntArray:
    if len(observed.jobs) != len(workload):
        what = f"has {len(observed.jobs):,} jobs, the workload has {len(workload):,}: jobs cannot be matched by order"
        raise InputError(what, where=observed.where, hint="match jobs by --match FILE, id or shape")
    submit = observed.floats("submit")
    if not np.isfinite(submit).all():
        return np.arange(len(workload))
    return np.argsort(submit, kind="stable").astype(np.int64)


# -- by shape


def _by_shape(observed: Observed, workload: Workload) -> Pairing:
    """Match jobs by submit time, size and run time; the origin of time with the most matches is used."""
    submit = observed.floats("submit")
    if not np.isfinite(submit).any():
        what = "the file has no submit times, so jobs cannot be matched by shape"
        raise InputError(what, where=observed.where, hint="match jobs by --match FILE, id or order")
    shapes = _Shapes(observed, workload)
    planned = workload.floats("submit_time")
    candidates = [0.0, float(np.nanmin(submit) - planned[0]) if len(planned) else 0.0]
    if workload.provenance.unix_start is not None:
        candidates.append(workload.provenance.unix_start)
    offset = max(dict.fromkeys(candidates), key=lambda each: shapes.overlap(submit - each))
    rows = shapes.rows(submit - offset)
    return Pairing(rows, "shape", offset, _left(rows, len(observed.jobs)))


class _Shapes:
    """The jobs of a workload and of a file by size."""

    def __init__(self, observed: Observed, workload: Workload) -> None:
        self.observed, self.workload = observed, workload
        self.tolerance = max(observed.resolution, 1e-6)
        self.planned = workload.floats("submit_time")
        theirs = sizes_of(observed, workload)
        sized = bool(np.isfinite(theirs).all())
        self.theirs = np.nan_to_num(theirs).astype(np.int64) if sized else np.zeros(len(theirs), np.int64)
        self.ours = workload.ints("nodes") if sized else np.zeros(len(workload), np.int64)
        run, start, end = (observed.floats(name) for name in ("run", "start", "end"))
        self.ran = np.where(np.isfinite(run), run, end - start)
        self.run_time = workload.floats("run_time")
        self.ids = workload.column("job_id")

    def overlap(self, submit: FloatArray) -> int:
        """Return the number of rows with the submit time of a job of the workload."""
        at = np.searchsorted(self.planned, submit)
        low = np.abs(submit - self.planned[np.clip(at - 1, 0, len(self.planned) - 1)])
        high = np.abs(submit - self.planned[np.clip(at, 0, len(self.planned) - 1)])
        return int((np.fmin(low, high) <= self.tolerance).sum())

    def rows(self, submit: FloatArray) -> IntArray:
        """Return the row of each job, shape (jobs,); -1 without a row. Jobs of one shape must be interchangeable."""
        found = np.full(len(self.workload), -1, dtype=np.int64)
        ambiguous: list[int] = []
        for jobs, rows in self._groups(submit):
            if not len(rows) or not len(jobs):
                continue
            if len(jobs) == len(rows) == 1:
                found[jobs] = rows
                continue
            pairs = self._resolved(jobs, rows)
            if pairs is None:
                ambiguous += jobs.tolist()
            else:
                found[pairs[0]] = pairs[1]
        if ambiguous:
            shown = ", ".join(str(self.ids[job])[:20] for job in ambiguous[:SHOWN])
            more = ", ..." if len(ambiguous) > SHOWN else ""
            what = f"{len(ambiguous):,} jobs have the submit time, size and run time of another job: {shown}{more}"
            raise InputError(what, where=self.observed.where, hint="match jobs by --match FILE, id or order")
        return found

    def _groups(self, submit: FloatArray) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the jobs and the rows of one size whose submit times differ by less than the resolution."""
        ours = len(self.planned)
        known = np.flatnonzero(np.isfinite(submit))
        size = np.concatenate([self.ours, self.theirs[known]])
        time = np.concatenate([self.planned, submit[known]])
        index = np.concatenate([np.arange(ours), known])
        side = np.repeat([0, 1], [ours, len(known)])
        order = np.lexsort((index, side, time, size))
        size, time, index, side = size[order], time[order], index[order], side[order]
        new = np.append(True, (np.diff(size) != 0) | (np.diff(time) > self.tolerance))
        begins = np.append(np.flatnonzero(new), len(order))
        for low, high in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True):
            part = slice(low, high)
            yield index[part][side[part] == 0], index[part][side[part] == 1]

    def _resolved(self, jobs: IntArray, rows: IntArray) -> tuple[IntArray, IntArray] | None:
        """Return pairs of jobs and rows of one submit time and size, or None if there are several ways to pair them."""
        if len(jobs) == len(rows) and self._are_interchangeable(jobs):
            return jobs, rows
        near = np.abs(self.run_time[jobs][:, None] - self.ran[rows][None, :]) <= 2 * self.tolerance
        if (near.sum(axis=0) <= 1).all() and (near.sum(axis=1) <= 1).all() and near.any(axis=0).all():
            mine, theirs = np.nonzero(near)
            return jobs[mine], rows[theirs]
        if len(jobs) == len(rows):
            by_time = np.argsort(self.run_time[jobs], kind="stable"), np.argsort(self.ran[rows], kind="stable")
            mine, theirs = jobs[by_time[0]], rows[by_time[1]]
            if (np.abs(self.run_time[mine] - self.ran[theirs]) <= 2 * self.tolerance).all():
                classes = np.append(True, np.diff(self.run_time[mine]) > 4 * self.tolerance).cumsum()
                if all(self._are_interchangeable(mine[classes == each]) for each in np.unique(classes)):
                    return mine, theirs
        return None

    def _are_interchangeable(self, jobs: IntArray) -> bool:
        """Return whether jobs differ only in their ids: a scheduler cannot tell them apart."""
        for name in REQUESTED:
            values = self.workload.column(name)[jobs]
            same = (values == values[0]) | ((values != values) & (values[0] != values[0]))
            if name not in ("job_id", "submit_time") and not same.all():
                return False
        return bool(np.ptp(self.planned[jobs]) == 0)


# -- checks


def sizes_of(observed: Observed, workload: Workload) -> FloatArray:
    """Return the nodes of each row of the file, shape (rows,), NaN if unknown: cores are converted to nodes."""
    nodes, cores = observed.floats("nodes"), observed.floats("cores")
    per_node = workload.provenance.system.cores_per_node or int(workload.ints("cores_per_node").max(initial=1))
    return np.where(np.isfinite(nodes), nodes, np.ceil(cores / per_node))


def _offset(observed: Observed, workload: Workload, rows: IntArray) -> float:
    """Return time 0 of the workload on the clock of the file: from the first submission of a job of both."""
    jobs = np.flatnonzero(rows >= 0)
    submit, planned = observed.floats("submit")[rows[jobs]], workload.floats("submit_time")[jobs]
    known = np.isfinite(submit)
    if known.any():
        offset = float((submit[known] - planned[known])[0])
        return 0.0 if abs(offset) <= max(observed.resolution, 1e-6) else offset
    if observed.unix and (observed.is_known("start") or observed.is_known("end")):
        if workload.provenance.unix_start is None:
            what = "the times are dates, and neither the file nor the workload has submit times"
            raise InputError(what, where=observed.where, hint="name the column of submit times: --columns submit=NAME")
        return workload.provenance.unix_start
    return 0.0


def _check_sizes(observed: Observed, workload: Workload, found: Pairing) -> None:
    """Check the sizes of rigid jobs against the workload: differences are a sign of a wrong match."""
    jobs = found.found
    jobs = jobs[workload.column("kind")[jobs] == Kind.RIGID]
    theirs, ours = sizes_of(observed, workload)[found.rows[jobs]], workload.ints("nodes")[jobs]
    wrong = np.isfinite(theirs) & (theirs != ours) & (ours > 0)
    if wrong.sum() > FEW * len(jobs):
        at = int(wrong.argmax())
        what = (
            f"has {theirs[at]:g} nodes, but {ours[at]:,} in the workload; {int(wrong.sum()):,} of {len(jobs):,} jobs "
            f"matched by {found.by} differ in size"
        )
        hint = f"{BY_HAND}; if the column counts cores, use --columns cores=NAME; or the file is of another workload"
        raise observed.error(int(found.rows[jobs[at]]), what, hint)


def _check_submits(observed: Observed, workload: Workload, found: Pairing, *, real: bool) -> None:
    """Check the submit times against the workload: differences are a sign of a wrong match or unit."""
    jobs = found.found
    planned = workload.floats("submit_time")[jobs]
    submit = observed.floats("submit")[found.rows[jobs]] - found.offset_s
    limit = max(observed.resolution, LATE_S, LATE_SHARE * workload.span)
    off = np.abs(submit - planned) > limit
    if off.sum() <= (0.5 if real else FEW) * len(jobs):
        return
    spans = np.nanmax(submit) - np.nanmin(submit), np.ptp(planned)
    ratio = spans[0] / spans[1] if spans[1] > 0 else np.nan
    unit = _unit(ratio)
    at = int(off.argmax())
    what = (
        f"was submitted at {submit[at]:,.6g} s, but at {planned[at]:,.6g} s in the workload; {int(off.sum()):,} of "
        f"{len(jobs):,} jobs matched by {found.by} differ by more than {limit:g} s"
    )
    hint = UNIT.format(unit) if unit else f"check --workload, or {BY_HAND}"
    if not unit and 0 < ratio < SLOW:
        hint = (
            f"if a replay was faster than the workload, give its --speed (by the spans {1 / ratio:.3g}); or {BY_HAND}"
        )
    raise observed.error(int(found.rows[jobs[at]]), what, hint)


def check_unit(observed: Observed, workload: Workload, found: Pairing, run: FloatArray) -> None:
    """Check the run times of rigid jobs, s, shape (jobs,): another unit may be the only difference."""
    planned = workload.floats("run_time")
    known = (workload.column("kind") == Kind.RIGID) & (planned > 0) & (run > 0)
    if not known.any():
        return
    ratio = float(np.median(run[known] / planned[known]))
    if unit := _unit(ratio):
        at = int(known.argmax())
        what = (
            f"ran for {run[at]:,.6g} s, but for {planned[at]:,.6g} s in the workload; the median ratio is {ratio:,.4g}"
        )
        raise observed.error(int(found.rows[at]), what, UNIT.format(unit))


def _unit(ratio: float) -> str:
    """Return the unit in which times are that were read as s and are `ratio` times too large; empty: none."""
    factors = {1e3: "ms", 1e6: "us", 1e9: "ns", 1 / 60: "min", 1 / 3600: "h"}
    return next((name for factor, name in factors.items() if abs(ratio / factor - 1) < CLOSE), "")
