"""Conversion between the fields of Standard Workload Format and the columns of a workload."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools import states
from tracebed.converters.formats.tools.files import Input, bad_line, wrong_fields
from tracebed.converters.formats.tools.gres import gpus_on_nodes
from tracebed.converters.formats.tools.swf_header import SwfHeader
from tracebed.converters.log import MAX_SPAN_S, has_values
from tracebed.converters.workload import (
    MAX_EXACT,
    MAX_SIZE,
    SCHEMA,
    BoolArray,
    FloatArray,
    IntArray,
    Workload,
    column_of,
)
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState

NUMBER = r"-?\d{1,15}(?:\.\d*)?"
ALEA = re.compile(rf"({NUMBER})\s+({NUMBER})\s+([^\s:]*):[^\s:]*:(\d{{1,7}})x(\d{{1,5}})")
METACENTRUM = re.compile(r"(\{[^}]*\})(?:\s+(\S+))?(?:\s+(\S+))?(?:\s.*)?")
CORES = re.compile(r"(?:ppn|ncpus)=(\d{1,5})")
COUNT = re.compile(r"\d{1,7}")


class Extension(NamedTuple):
    """The values of the further fields, each of shape (jobs,). Unknown values are 0 nodes, NaN or an empty text."""

    nodes: IntArray
    cores: IntArray
    """Cores per node."""
    gpus: FloatArray
    soft_limit: FloatArray
    cluster: pd.Series[str]
    queue: pd.Series[str]
    node_list: pd.Series[str]
    in_bytes: BoolArray
    """Whether the requested memory is in bytes, of the whole job."""
    of_unknown_family: BoolArray
    """Whether the further fields belong to neither family."""


def read_extension(rests: Sequence[str]) -> Extension:
    """Parse the text after the 18th field of each line."""
    jobs = len(rests)
    nodes, cores = np.zeros(jobs, np.int64), np.ones(jobs, np.int64)
    gpus, soft = np.full(jobs, np.nan), np.full(jobs, np.nan)
    cluster, queue, node_list = [""] * jobs, [""] * jobs, [""] * jobs
    strange, in_bytes = np.zeros(jobs, bool), np.zeros(jobs, bool)
    for job, rest in enumerate(rests):
        if match := ALEA.fullmatch(rest):
            gpus[job], soft[job] = float(match[1]), float(match[2])
            cluster[job], nodes[job], cores[job] = match[3], int(match[4]), int(match[5])
        elif match := METACENTRUM.fullmatch(rest):
            in_bytes[job] = True
            node_list[job], queue[job] = match[1][1:-1].strip(), match[2] or ""
            nodes[job], cores[job] = _chunks(match[3] or "")
        else:
            strange[job] = bool(rest)
    known = (nodes > 0) & (cores > 0)
    return Extension(
        nodes=np.where(known, nodes, 0),
        cores=np.where(known, cores, 1),
        gpus=np.where(gpus > 0, gpus, np.nan),
        soft_limit=np.where(soft > 0, soft, np.nan),
        cluster=pd.Series(cluster, dtype="str"),
        queue=pd.Series(queue, dtype="str"),
        node_list=pd.Series(node_list, dtype="str"),
        in_bytes=in_bytes,
        of_unknown_family=strange,
    )


def _chunks(text: str) -> tuple[int, int]:
    """Return the nodes of a request and its maximum of cores per node; 0 nodes if the request is invalid.

    A chunk is `N:ppn=P:property` or `host:ppn=P`, with the cores at any place behind the first; `N:P` is `N:ppn=P`.
    """
    nodes, most = 0, 0
    for chunk in text.split("+"):
        first, *others = chunk.partition("#")[0].split(":")
        stated = [match[1] for part in others if (match := CORES.fullmatch(part))]
        stated = stated or [part for part in others[:1] if part.isdecimal() and len(part) <= 5]
        counted = COUNT.fullmatch(first)
        if not counted and (first.isdecimal() or not (first and stated)):  # a name alone may be anything
            return 0, 1
        nodes += int(first) if counted else 1
        most = max(most, int(stated[0]) if stated else 1)
    return nodes, most


FIELDS = (
    *("job", "submit", "wait", "run", "allocated", "cpu_time", "used_memory", "requested", "limit"),
    *("requested_memory", "status", "user", "group", "executable", "queue", "partition"),
    *("preceding", "think"),
)
NAMES = ("user", "group", "executable", "queue", "partition")
"""Fields that are numbers in the standard but words in some logs."""
NUMBERS = tuple(name for name in FIELDS if name not in NAMES)
PARTIAL = (2, 3, 4)
BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")


class FieldLines(NamedTuple):
    """The job lines of a file, one row per line with columns `FIELDS`, and counts of tolerated defects.

    If lines have more than 18 fields, the column `more` has the further fields.
    """

    fields: pd.DataFrame
    numbers: np.ndarray[Any, Any] | None = None
    """Line number of each row in the file, shape (rows,)."""
    comments: list[tuple[int, str]] = []  # noqa: RUF012 - never modified
    counts: dict[str, int] = {}  # noqa: RUF012 - never modified


def read_lines(file: Input) -> FieldLines:
    """Read the job lines in one pass if they follow the standard, otherwise line by line."""
    data = file.text
    comments: list[tuple[int, str]] = []
    position, above = 0, 0
    while data[position : position + 1] in (b";", b"\n", b"\r"):
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        above += 1
        if data[position : position + 1] == b";":
            comments.append((above, data[position + 1 : end].decode("utf-8", "replace").rstrip("\r")))
        position = end + 1
    fields = None if BLANK_LINE.search(data, position) else _read_at_once(data, position)
    if fields is not None:
        line_numbers = np.arange(len(fields)) + above + 1
        return FieldLines(fields, line_numbers, comments, {"comment lines not in ASCII": _not_ascii(comments)})
    return _read_one_by_one(file)


def _read_at_once(data: bytes, position: int) -> pd.DataFrame | None:
    """Return the fields if every line from `position` on has 18 and all numbers are integers; otherwise None."""
    body = io.BytesIO(data)
    body.seek(position)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pd.errors.ParserWarning)
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)
        try:
            fields = pd.read_csv(
                body,
                sep=r"\s+",
                header=None,
                names=[*FIELDS, "more"],
                index_col=False,
                na_filter=False,
                skip_blank_lines=False,
                quoting=csv.QUOTE_NONE,
            )
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError):
            return None
    more = fields.pop("more")
    for name in NAMES:
        if fields[name].dtype.kind == "O":  # words, or numbers too large for int64
            fields[name] = fields[name].astype("str")
    regular = len(fields) > 0 and more.dtype.kind not in "biuf" and bool((more == "").all())
    regular = regular and all(fields[name].dtype == np.int64 for name in NUMBERS)
    return fields if regular and all(fields[name].dtype.kind in "iOT" for name in NAMES) else None


def _read_one_by_one(file: Input) -> FieldLines:
    """Read line by line; raise InputError at the first line that is not a job."""
    comments: list[tuple[int, str]] = []
    rows: list[list[str]] = []
    more: list[str] = []
    numbers: list[int] = []
    short = semicolons = 0
    for number, line in file.lines():
        line = line.strip()
        if line.startswith(";"):
            comments.append((number, line[1:]))
        elif line:
            tokens = line.split()
            if any(";" in token for token in tokens[:17]):
                tokens = [token.strip() or "-1" for token in line.removesuffix(";").split(";")]
                semicolons += 1
            comment = next((i for i, token in enumerate(tokens) if token.startswith(";")), len(tokens))
            tokens = tokens[:comment]
            if len(tokens) < 17:
                raise wrong_fields(len(tokens), 18, f"{file.where}:{number}")
            short += len(tokens) == 17
            more.append(" ".join(tokens[18:]))
            rows.append(tokens[:18] if len(tokens) > 17 else [*tokens, "-1"])
            numbers.append(number)
    columns = {name: [row[index] for row in rows] for index, name in enumerate(FIELDS)}
    fields = pd.DataFrame(
        {name: pd.Series(columns[name], dtype="str") for name in NAMES}
        | {name: _numbers(columns[name], name, numbers, file.where) for name in NUMBERS}
    )
    if any(more):
        fields["more"] = pd.Series(more, dtype="str")
    counts = {
        "comment lines not in ASCII": _not_ascii(comments),
        "lines with semicolons between the fields": semicolons,
        "lines with 17 fields, field 18 set to -1": short,
    }
    return FieldLines(fields, np.array(numbers, dtype=np.int64), comments, counts)


def _numbers(values: list[str], name: str, lines: list[int], where: str) -> np.ndarray[Any, Any]:
    """Return a field of all lines as int64 if every value is whole, otherwise as float64."""
    plain = all(value.isascii() and "_" not in value for value in values)  # Python reads 1_0 as 10
    try:
        if plain:
            return np.array([int(value) for value in values], dtype=np.int64)
    except (ValueError, OverflowError):
        pass  # some values are not integers
    result = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            result[row] = float(value) if value.isascii() and "_" not in value else np.nan
        except ValueError:
            result[row] = np.nan
        if not np.isfinite(result[row]):
            what = f"field {FIELDS.index(name) + 1} ({name}) is {value[:40]!r}, not a number"
            raise bad_line(what, f"{where}:{lines[row]}")
    whole = (result == np.floor(result)) & (np.abs(result) < MAX_EXACT)
    return result.astype(np.int64) if whole.all() else result


def _not_ascii(comments: list[tuple[int, str]]) -> int:
    return sum(not text.isascii() for _, text in comments)


def refuse_unreadable(lines: FieldLines, where: str) -> None:
    """Raise InputError if a job has an invalid number, submit time or status, or if two jobs have the same number."""
    assert lines.numbers is not None
    f = {name: lines.fields[name].to_numpy() for name in NUMBERS}
    vast = {name: (f[name].dtype.kind == "f") & (np.abs(f[name]) >= MAX_EXACT) for name in NUMBERS}
    broken = {name: vast[name] | (f[name] != np.floor(f[name])) for name in ("job", "status", "preceding")}
    for name, what, bad in (
        ("job", "invalid job number", broken["job"] | (f["job"] < 0)),
        ("submit", "missing submit time", f["submit"] < 0),
        ("status", "invalid status code", broken["status"]),
        ("preceding", "invalid job number", broken["preceding"]),
        ("requested", "invalid number of processors", vast["requested"]),
        ("allocated", "invalid number of processors", vast["allocated"]),
    ):
        if bad.any():
            what = f"{what}: field {FIELDS.index(name) + 1} is {f[name][bad][0]}"
            raise bad_line(what, f"{where}:{lines.numbers[bad][0]}")
    jobs = lines.fields["job"][~is_superfluous(lines.fields)]
    if not jobs.is_unique:
        row = jobs.index[jobs.duplicated()][0]
        what = f"second job with number {jobs[row]}"
        raise InputError(what, where=f"{where}:{lines.numbers[row]}", hint="renumber or remove the line")


def is_superfluous(fields: pd.DataFrame) -> pd.Series[bool]:
    """Return the mask of lines that are parts of a checkpointed job with a line for the whole job."""
    partial = fields["status"].isin(PARTIAL)
    return partial & fields["job"].isin(fields["job"][~partial])


EPOCH = 5e8
"""If the first submit time exceeds this (s; nearly 16 years), times are since 1970, not since the log's start."""
KIB_PER_MIB = 1024.0
MOST_MEMORY_MIB = 2.0**30
"""Most memory of a node, MiB: more is no memory in KiB per processor."""
BYTES_PER_MIB = 1024.0 * KIB_PER_MIB
MEDIAN_MEMORY_KIB = 2.0**32
"""Largest median of field 10: if half of the jobs request more than 4 TiB per processor, the unit is another one."""


class Decoded(NamedTuple):
    """The decoded job lines."""

    table: pd.DataFrame
    unix_start: float | None
    """The instant of time 0, in s since 1970; None if submit times were relative to the log's start."""
    counts: dict[str, int]
    has_sizes: bool = False
    """Whether fields after the 18th have the nodes and cores of jobs."""


def decode(lines: FieldLines, cores: int, by: str = "node") -> Decoded:
    """Return the jobs of `lines`, on nodes with `cores` cores, and counts of deviations from the standard.

    Columns without any value are left out.
    """
    fields = lines.fields
    superfluous = is_superfluous(fields)
    fields = fields[~superfluous] if superfluous.any() else fields
    f = {name: fields[name].to_numpy() for name in NUMBERS}
    requested, allocated = f["requested"], f["allocated"]
    processors = np.ceil(np.where(requested > 0, requested, np.maximum(allocated, 0))).astype(np.int64)
    vast = processors > MAX_SIZE
    processors[vast] = 0
    nodes = -(-processors // cores)
    cores_per_node = np.maximum(1, -(-processors // np.maximum(nodes, 1)))
    others = (requested > 0) & (allocated > 0) & (requested != allocated)
    further = read_extension(fields["more"].tolist()) if "more" in fields else None
    if further is not None:
        given = further.nodes > 0
        others &= ~given  # the processor fields of these logs are unreliable
        size = (further.nodes, further.cores) if by == "node" else (further.nodes * further.cores, 1)
        nodes, cores_per_node = np.where(given, size[0], nodes), np.where(given, size[1], cores_per_node)
    submit = f["submit"].astype(np.float64)
    unix_start = float(submit.min()) if len(submit) and submit.min() >= EPOCH else None
    submit -= unix_start or 0.0
    memory = f["requested_memory"] * cores_per_node / KIB_PER_MIB
    if further is not None:
        memory = np.where(further.in_bytes, f["requested_memory"] / BYTES_PER_MIB / np.maximum(nodes, 1), memory)
    much = ~(memory <= MOST_MEMORY_MIB)
    of_kib = (f["requested_memory"] > 0) & (True if further is None else ~further.in_bytes)
    in_order = np.sort(f["requested_memory"][of_kib])
    another_unit = len(in_order) > 0 and in_order[(len(in_order) - 1) // 2] > MEDIAN_MEMORY_KIB
    much |= of_kib & another_unit
    filler = _is_filler(f, further)
    preceding = np.where(filler, -1, f["preceding"])
    itself = (preceding > 0) & (preceding == f["job"])
    preceding = np.where(itself, -1, preceding)
    never_started = (f["status"] == 5) & (f["run"] < 0)
    absurd = {name: f[name] > MAX_SPAN_S for name in ("wait", "run", "limit")}
    run = _known(f["run"], (f["run"] >= 0) & ~absurd["run"])
    limit = _known(f["limit"], (f["limit"] > 0) & ~absurd["limit"])
    logged_start = submit + _known(f["wait"], (f["wait"] >= 0) & ~never_started & ~absurd["wait"])
    status = pd.Series(f["status"], dtype="float64").map(states.SWF)  # 1.5 is not a status
    queue = _words(fields["queue"])
    columns = {
        "job_id": _texts(f["job"]),
        "submit_time": submit,
        "run_time": run,
        "time_limit": limit,
        "nodes": nodes,
        "cores_per_node": cores_per_node,
        "memory_mib": _known(memory, (f["requested_memory"] > 0) & ~much),
        **{name: _words(fields[name]) for name in ("user", "group")},
        "queue": queue if further is None else further.queue.where(further.queue != "", queue),
        "partition": _words(fields["partition"]),
        "status": status.fillna(JobState.UNKNOWN.value).astype("str"),
        "after": _texts(preceding).where(preceding > 0, ""),
        "think_time": _known(f["think"], (f["think"] >= 0) & ~filler),
        "logged_start": logged_start,
        "logged_end": logged_start + run,
        "extra_executable": _words(fields["executable"]),
        "extra_allocated": _known(allocated, others),
        "extra_cpu_time_s": _known(f["cpu_time"]),
        "extra_used_memory_kib": _known(f["used_memory"]),
    }
    if further is not None:
        columns |= {
            "extra_gpus": further.gpus,
            **({"gres": gpus_on_nodes(further.gpus, nodes.astype(np.float64))[0]} if by == "node" else {}),
            "extra_soft_limit_s": further.soft_limit,
            "extra_cluster": further.cluster,
            "extra_node_list": further.node_list,
        }
    needed = ("job_id", "submit_time", "run_time", "nodes", "cores_per_node")
    table = pd.DataFrame({name: values for name, values in columns.items() if name in needed or has_values(values)})
    words = {name: fields[name] for name in NAMES if fields[name].dtype.kind not in "iu"}
    counts = {
        "times since 1970, shifted to the first submission": int(unix_start is not None),
        "job numbers that begin with 0": int(len(fields) > 0 and f["job"].min() == 0),
        "jobs not in submit order, sorted": int((np.diff(submit) < 0).sum()),
        "lines of parts of checkpointed jobs, left out (the line of the whole job is kept)": int(superfluous.sum()),
        "jobs cancelled before they started, without a run time": int(never_started.sum()),
        "jobs without a run time": int(((f["run"] < 0) & ~never_started).sum()),
        "times longer than 300 years, set to unknown": int(sum(far.sum() for far in absurd.values())),
        "jobs without a wait time, start unknown": int((f["wait"] < 0).sum()),
        "jobs that ran longer than their limit": int((run > limit).sum()),
        "jobs with different requested and allocated processors": int(others.sum()),
        "jobs without requested processors, size taken from the allocation": int(
            ((requested <= 0) & (allocated > 0)).sum()
        ),
        f"jobs with more than {MAX_SIZE:,} processors, size set to unknown": int(vast.sum()),
        "jobs of unknown size": int((nodes == 0).sum()),
        "lines with one value in all fields 17 and 18, left out": len(fields) if filler else 0,
        "jobs with more than 1 PiB of memory on a node (field 10 in bytes?), set to unknown": (
            0 if another_unit else int(much.sum())
        ),
        "jobs of a log with field 10 in another unit than KiB per processor, set to unknown": (
            int(much.sum()) if another_unit else 0
        ),
        "jobs that follow themselves, field 17 left out": int(itself.sum()),
        "jobs with an unknown status code": int(status.isna().sum()),
        **{
            f"jobs whose {name} is not a number": int((~values.str.fullmatch(r"-?\d+")).sum())
            for name, values in words.items()
        },
    }
    if further is not None:
        counts |= {
            "jobs with nodes and cores after field 18, used as their size": int(given.sum()),
            "lines with more than 18 fields, further fields left out": int(further.of_unknown_family.sum()),
        }
    return Decoded(table, unix_start, counts, further is not None and bool(given.any()))


def _is_filler(f: Mapping[str, FloatArray | IntArray], further: Extension | None) -> bool:
    """Return whether fields 17 and 18 mean nothing: logs with further fields have one value there in each line.

    In a log of 18 fields, each job of which follows the first one, the first one would follow itself.
    """
    preceding = f["preceding"]
    if not len(preceding) or preceding[0] <= 0 or (preceding != preceding[0]).any():
        return False
    of_family = further is not None and bool((~further.of_unknown_family).any())
    return of_family or bool((preceding == f["job"]).any() and len(preceding) > 1)


def encode(workload: Workload) -> pd.DataFrame:
    """Return the 18 fields of each job, -1 if a value is unknown or cannot be represented in SWF."""
    table = workload.table
    submit, start = workload.floats("submit_time"), workload.floats("logged_start")
    processors = workload.ints("nodes") * workload.ints("cores_per_node")
    processors = np.where(processors > 0, processors, -1)
    allocated = _amount(table, "extra_allocated")
    memory = workload.floats("memory_mib") * KIB_PER_MIB / workload.ints("cores_per_node")
    numbers = _numbers_of(table["job_id"])
    number_of = pd.Series(numbers, index=table["job_id"].to_numpy())
    codes = pd.Series({word: code for code, word in states.SWF.items()})
    wait = start - submit
    words = {name: table.get("extra_executable" if name == "executable" else name) for name in NAMES}
    return pd.DataFrame(
        {
            "job": numbers,
            "submit": _plain(np.maximum(submit, 0.0)),
            "wait": _plain(wait),
            "run": _plain(workload.floats("run_time")),
            "allocated": np.where((allocated > 0) & (processors > 0), allocated, processors).astype(np.int64),
            "cpu_time": _plain(_amount(table, "extra_cpu_time_s")),
            "used_memory": _plain(_amount(table, "extra_used_memory_kib")),
            "requested": processors,
            "limit": _plain(workload.floats("time_limit")),
            "requested_memory": _plain(memory),
            "status": codes.reindex(workload.column("status"), fill_value=-1).to_numpy(),
            **{name: _name_numbers(names) for name, names in words.items()},
            "preceding": number_of.reindex(workload.column("after"), fill_value=-1).to_numpy(),
            "think": _plain(workload.floats("think_time")),
        },
        columns=list(FIELDS),
        index=table.index,
    )


def _known(values: Any, known: Any = None) -> np.ndarray[Any, Any]:
    """Return values as floats, NaN where `known` is False (default: where values are negative)."""
    return np.where(values >= 0 if known is None else known, values, np.nan)


def _texts(values: Any) -> pd.Series[Any]:
    """Return job numbers as text. Invalid job numbers may be fractions or exceed 2^63."""
    if values.dtype.kind == "f":
        return pd.Series([f"{value:.0f}" if value.is_integer() else f"{value:g}" for value in values], dtype="str")
    return pd.Series(values, dtype="int64").astype("str")


def _words(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return a name field as text, empty for -1."""
    texts = values.astype("str").reset_index(drop=True)
    return texts.where(texts != "-1", "")


def _plain(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a field of times or amounts, as integers if all are whole; unknown and negative values become -1."""
    values = np.where(values >= 0, values, -1.0)
    whole = (values == np.floor(values)) & (values < MAX_EXACT)
    return values.astype(np.int64) if whole.all() else values


def _amount(table: pd.DataFrame, name: str) -> np.ndarray[Any, Any]:
    """Return an extra column of amounts as floats, NaN where a value is missing or does not fit a field."""
    if name not in table or table[name].dtype.kind not in "if":
        return np.full(len(table), np.nan)
    values = table[name].to_numpy(dtype=np.float64)
    return np.where((values >= 0) & (values < MAX_EXACT), values, np.nan)


def _numbers_of(texts: pd.Series[Any]) -> Any:
    """Return texts as numbers if all are canonical decimal integers that fit a field, otherwise 1, 2, 3, ..."""
    canonical = bool(texts.str.fullmatch("0|[1-9][0-9]{0,17}").all())
    return texts.astype("int64").to_numpy() if canonical else np.arange(1, len(texts) + 1)


def _name_numbers(names: pd.Series[Any] | None) -> Any:
    """Return names as numbers if all are numbers, otherwise numbered 1, 2, ... in order of appearance; -1 if empty."""
    if names is None:
        return -1
    codes, unique = pd.factorize(names.astype("str").to_numpy())
    given = pd.Series([name for name in unique if name != ""], dtype="str")
    numbers = dict(zip(given, _numbers_of(given), strict=True))
    return np.array([numbers.get(name, -1) for name in unique], dtype=np.int64)[codes]


def lossy_columns(table: pd.DataFrame, decoded: pd.DataFrame) -> list[str]:
    """Return the columns of a workload's table that its SWF fields, when `decoded`, do not reproduce."""
    return [str(name) for name in table if not _same(table[name].to_numpy(), _column(decoded, str(name)))]


def _column(table: pd.DataFrame, name: str) -> Any:
    """Return a column, or its default if the table lacks it; None if it has no default."""
    if name.startswith("extra_") and name not in table:
        return None
    return column_of(table, name)


def _same(ours: Any, theirs: Any) -> bool:
    """Return whether two columns are bitwise equal, with NaN equal to NaN."""
    if theirs is None or (ours.dtype.kind in "iufb") != (theirs.dtype.kind in "iufb"):
        return False
    if ours.dtype.kind == "f" and theirs.dtype.kind == "f":
        nan = np.isnan(ours)
        return bool(np.array_equal(nan, np.isnan(theirs))) and ours[~nan].tobytes() == theirs[~nan].tobytes()
    return ours.dtype.kind == theirs.dtype.kind and bool(np.all(ours == theirs))


def restored(decoded: pd.DataFrame, header: SwfHeader, where: str) -> pd.DataFrame:
    """Return the table that tracebed wrote, with columns from the comments or else from the job lines."""
    for name, values in header.values.items():
        if len(values) != len(decoded):
            raise InputError(
                f"{len(decoded)} job lines, but the comments have {name} for {len(values)} jobs",
                where=where,
                hint="undo the edit, or remove all Tracebed- comments to read it as plain SWF",
            )
    table = {}
    for name in header.columns:
        if name not in header.values and name not in SCHEMA and name not in decoded:
            raise InputError(
                f"no comment has the values of column {name!r}",
                where=where,
                hint="undo the edit, or remove all Tracebed- comments to read it as plain SWF",
            )
        kept = header.values.get(name)
        table[name] = _column(decoded, name) if kept is None else kept.to_numpy()
    return pd.DataFrame(table)
