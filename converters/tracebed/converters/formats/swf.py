"""Standard Workload Format, version 2.2: 18 numbers a job, `;` comments.

The format: Chapin et al. 1999, and the Parallel Workloads Archive. The reader takes what is found in the wild
and counts it. The writer puts what the 18 fields cannot hold into comments (see `swf_header`), so that
tracebed reads the very same workload again.

A job's processors (requested, else allocated) become whole nodes: on nodes of c cores, p processors are
ceil(p / c) nodes with ceil(p / nodes) cores on each. c is MaxProcs / MaxNodes of the header. Two families of
logs say nodes and cores in fields beyond the 18th (see `swf_extension`); these are then the size.
"""

from __future__ import annotations

import csv
import io
import re
import warnings
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc

from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools import states, swf_header
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.swf_extension import read_extension
from tracebed.converters.formats.tools.swf_header import Header
from tracebed.converters.log import MAX_SPAN_S, TOO_LARGE
from tracebed.converters.workload import MAX_EXACT, MAX_SIZE, SCHEMA, Provenance, Step, Workload, column_of
from tracebed.errors import InputError, tolerate
from tracebed.states import JobState

FIELDS = (
    *("job", "submit", "wait", "run", "allocated", "cpu_time", "used_memory", "requested", "limit"),
    *("requested_memory", "status", "user", "group", "executable", "queue", "partition"),
    *("preceding", "think"),
)
NAMES = ("user", "group", "executable", "queue", "partition")
"""Fields that are numbers by the standard and words in some logs."""
NUMBERS = tuple(name for name in FIELDS if name not in NAMES)
PARTIAL = (2, 3, 4)
EPOCH = 5e8
"""A first submit time beyond this (s; nearly 16 years) counts from 1970, not from the log's start."""
KIB_PER_MIB = 1024.0
BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")


def recognises(file: Input) -> bool:
    """Tell SWF by a leading `;`, or by a first line of 17 fields or more that begins with five numbers."""
    first = file.head.lstrip().split(b"\n", 1)[0]
    if first.startswith(b";"):
        return True
    tokens = first.replace(b";", b" ").split()
    return len(tokens) >= 17 and all(re.fullmatch(rb"[-+]?\d+(\.\d*)?", token) for token in tokens[:5])


def read(file: Input, *, by: str = "node") -> Workload:
    """Read a log or a written workload.

    Args:
        file: the file.
        by: `node`: processors become whole nodes of the header's cores a node; `core`: each core counts as a
            node of one core.

    Raises:
        InputError: a line cannot be read at all.
    """
    if by not in ("node", "core"):
        raise InputError(f"by={by!r}", hint="node or core")
    if b"\0" in file.text:
        raise InputError("binary data, not SWF", where=file.where, hint="check the file")
    lines = _read_lines(file)
    header = swf_header.parse(lines.comments, file.where)
    if header.provenance is not None:
        if by == "core":
            raise InputError(
                "tracebed wrote this file, with nodes of its own",
                where=file.where,
                hint="read the original log by core",
            )
        decoded = decode(lines, header.system(by).cores_per_node or 1)
        return Workload(_restored(decoded.table, header, file.where), header.provenance, where=file.where)
    _refuse_unreadable(lines, file.where)
    system = header.system(by)
    decoded = decode(lines, system.cores_per_node or 1, by)
    counts = {**lines.counts, **decoded.counts, **header.absurd(), **_mismatch(header, lines)}
    counts[TOO_LARGE] = int((decoded.table["nodes"] > system.nodes).sum()) if system.nodes else 0
    counts = {what: count for what, count in counts.items() if count}
    tolerate(counts, where=file.where)
    start = header.number("UnixStartTime")
    provenance = Provenance(
        system=system,
        time_zone=header.text("TimeZoneString") or None,
        unix_start=decoded.unix_start or (None if start is None else float(start)),
        sources=(file.source,),
        steps=(Step("read", {"format": "swf", "by": by}, counts),),
        header=header.labels,
    )
    return Workload(decoded.table, provenance, where=file.where)


def write(workload: Workload, file: BinaryIO, *, whole_seconds: bool = False) -> None:
    """Write a workload, and warn of the columns that only tracebed will see.

    Args:
        workload: any.
        file: opened.
        whole_seconds: round times and memory in the job lines to whole numbers, for programs that read no others
            (AccaSim, AleaNG); what that loses is kept in comments.
    """
    provenance, table = workload.provenance, workload.table
    fields = encode(workload)
    if whole_seconds:
        fields = fields.apply(lambda values: np.rint(values).astype(np.int64) if values.dtype.kind == "f" else values)
    header = list(swf_header.lines_of(provenance, len(table)))
    labels = swf_header.parse(((0, line[1:]) for line in header), "")
    decoded = decode(Lines(fields), labels.system("node").cores_per_node or 1).table
    lost = [str(name) for name in table if not _same(table[name].to_numpy(), _column(decoded, str(name)))]
    if lost:
        what = f"SWF has no field for what {', '.join(lost)} say; kept in comments that only tracebed reads"
        tolerate({what: len(lost)})
    header += swf_header.our_lines(provenance, table, lost)
    file.write(("\n".join(header) + "\n").encode())
    plain = pc.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")
    pc.write_csv(pa.Table.from_pandas(fields, preserve_index=False), file, plain)


# -- lines to fields


class Lines(NamedTuple):
    """The job lines of a file: one row a line, columns `FIELDS`, and what was tolerated in them.

    Where lines have more than 18 fields, a column `more` has the rest.
    """

    fields: pd.DataFrame
    numbers: np.ndarray[Any, Any] | None = None
    """Line of the file that each row stands on."""
    comments: list[tuple[int, str]] = []  # noqa: RUF012 - never changed
    counts: dict[str, int] = {}  # noqa: RUF012 - never changed


def _read_lines(file: Input) -> Lines:
    """Read all job lines at once where they are as the standard has them, else one by one."""
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
        return Lines(fields, line_numbers, comments, {"comment lines not in ASCII": _not_ascii(comments)})
    return _read_one_by_one(file)


def _read_at_once(data: bytes, position: int) -> pd.DataFrame | None:
    """Return the fields if every line from `position` on has 18 and all numbers are whole; else None."""
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
        if fields[name].dtype.kind == "O":  # words, or numbers too large for a field
            fields[name] = fields[name].astype("str")
    regular = len(fields) > 0 and more.dtype.kind not in "biuf" and bool((more == "").all())
    regular = regular and all(fields[name].dtype == np.int64 for name in NUMBERS)
    return fields if regular and all(fields[name].dtype.kind in "iOT" for name in NAMES) else None


def _read_one_by_one(file: Input) -> Lines:
    """Read every line on its own; raise InputError at the first that is no job."""
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
                raise InputError(
                    f"{len(tokens)} fields, a job has 18",
                    where=f"{file.where}:{number}",
                    hint="complete or remove the line, or name the format with --from",
                )
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
        "lines with 17 fields, the last taken as -1": short,
    }
    return Lines(fields, np.array(numbers, dtype=np.int64), comments, counts)


def _numbers(values: list[str], name: str, lines: list[int], where: str) -> np.ndarray[Any, Any]:
    """Return a field of all lines as int64 if every value is whole, else as float64."""
    try:
        return np.array([int(value) for value in values], dtype=np.int64)
    except (ValueError, OverflowError):
        pass  # not all whole: as floats, below
    result = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            result[row] = float(value)
        except ValueError:
            result[row] = np.nan
        if not np.isfinite(result[row]):
            raise InputError(
                f"field {FIELDS.index(name) + 1} ({name}) is {value[:40]!r}, not a number",
                where=f"{where}:{lines[row]}",
                hint="correct or remove the line",
            )
    whole = (result == np.floor(result)) & (np.abs(result) < MAX_EXACT)
    return result.astype(np.int64) if whole.all() else result


def _not_ascii(comments: list[tuple[int, str]]) -> int:
    return sum(not text.isascii() for _, text in comments)


def _refuse_unreadable(lines: Lines, where: str) -> None:
    """Raise InputError where a job has no number or no submit time, or where whole numbers are none."""
    assert lines.numbers is not None
    f = {name: lines.fields[name].to_numpy() for name in NUMBERS}
    vast = {name: (f[name].dtype.kind == "f") & (np.abs(f[name]) >= MAX_EXACT) for name in NUMBERS}
    broken = {name: vast[name] | (f[name] != np.floor(f[name])) for name in ("job", "status", "preceding")}
    for name, what, bad in (
        ("job", "no job number", broken["job"] | (f["job"] < 0)),
        ("submit", "no submit time", f["submit"] < 0),
        ("status", "no status code", broken["status"]),
        ("preceding", "no job number", broken["preceding"]),
        ("requested", "no number of processors", vast["requested"]),
        ("allocated", "no number of processors", vast["allocated"]),
    ):
        if bad.any():
            raise InputError(
                f"{what}: field {FIELDS.index(name) + 1} is {f[name][bad][0]}",
                where=f"{where}:{lines.numbers[bad][0]}",
                hint="correct or remove the line",
            )

    jobs = lines.fields["job"][~_superfluous(lines.fields)]
    if not jobs.is_unique:
        row = jobs.index[jobs.duplicated()][0]
        what = f"a second job of the number {jobs[row]}"
        raise InputError(what, where=f"{where}:{lines.numbers[row]}", hint="renumber or remove the line")


def _superfluous(fields: pd.DataFrame) -> pd.Series[bool]:
    """Tell which lines are parts of a checkpointed job that has a line of the whole too."""
    partial = fields["status"].isin(PARTIAL)
    return partial & fields["job"].isin(fields["job"][~partial])


def _mismatch(header: Header, lines: Lines) -> dict[str, int]:
    said, found = header.number("MaxJobs"), len(lines.fields)
    if said in (None, found):
        return {}
    return {f"the header says MaxJobs {said}, the file has {found} job lines": 1}


# -- fields to columns, and back


class Decoded(NamedTuple):
    """What the job lines say."""

    table: pd.DataFrame
    unix_start: float | None
    """Set where submit times were instants since 1970: that of time 0."""
    counts: dict[str, int]


def decode(lines: Lines, cores: int, by: str = "node") -> Decoded:
    """Return the jobs of `lines`, for nodes of `cores` cores, and how often they deviate from the standard.

    Columns that hold nothing in any job are left out.
    """
    fields = lines.fields
    superfluous = _superfluous(fields)
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
        told = further.nodes > 0
        others &= ~told  # the fields of processors are not to be relied on there
        size = (further.nodes, further.cores) if by == "node" else (further.nodes * further.cores, 1)
        nodes, cores_per_node = np.where(told, size[0], nodes), np.where(told, size[1], cores_per_node)
    submit = f["submit"].astype(np.float64)
    unix_start = float(submit.min()) if len(submit) and submit.min() >= EPOCH else None
    submit -= unix_start or 0.0
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
        "memory_mib": _known(f["requested_memory"], f["requested_memory"] > 0) * cores_per_node / KIB_PER_MIB,
        **{name: _words(fields[name]) for name in ("user", "group")},
        "queue": queue if further is None else further.queue.where(further.queue != "", queue),
        "partition": _words(fields["partition"]),
        "status": status.fillna(JobState.UNKNOWN.value).astype("str"),
        "after": _texts(f["preceding"]).where(f["preceding"] > 0, ""),
        "think_time": _known(f["think"]),
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
            "extra_soft_limit_s": further.soft_limit,
            "extra_cluster": further.cluster,
            "extra_node_list": further.node_list,
        }
    needed = ("job_id", "submit_time", "run_time", "nodes", "cores_per_node")
    table = pd.DataFrame({name: values for name, values in columns.items() if name in needed or _says(values)})
    words = {name: fields[name] for name in NAMES if fields[name].dtype.kind not in "iu"}
    counts = {
        "times given as instants since 1970, time 0 is now the first submission": int(unix_start is not None),
        "job numbers that begin with 0": int(len(fields) > 0 and f["job"].min() == 0),
        "jobs out of submit order, sorted": int((np.diff(submit) < 0).sum()),
        "lines of checkpointed jobs' parts, left out for the line of the whole": int(superfluous.sum()),
        "jobs cancelled before they started, without a run time": int(never_started.sum()),
        "jobs without a run time": int(((f["run"] < 0) & ~never_started).sum()),
        "times longer than 300 years, taken as not known": int(sum(far.sum() for far in absurd.values())),
        "jobs without a wait time, start not known": int((f["wait"] < 0).sum()),
        "jobs that ran longer than requested": int((run > limit).sum()),
        "jobs that were allocated other processors than requested": int(others.sum()),
        "jobs without requested processors, size taken from the allocation": int(
            ((requested <= 0) & (allocated > 0)).sum()
        ),
        f"jobs of more than {MAX_SIZE:,} processors, size taken as not known": int(vast.sum()),
        "jobs of unknown size": int((nodes == 0).sum()),
        "jobs with an unknown status code": int(status.isna().sum()),
        **{
            f"jobs whose {name} is not a number": int((~values.str.fullmatch(r"-?\d+")).sum())
            for name, values in words.items()
        },
    }
    if further is not None:
        counts |= {
            "jobs whose fields after the 18th say nodes and cores, their size": int(told.sum()),
            "lines with more than 18 fields, the rest left out": int(further.strange.sum()),
        }
    return Decoded(table, unix_start, counts)


def encode(workload: Workload) -> pd.DataFrame:
    """Return the 18 fields of each job, -1 where SWF cannot hold or the workload does not know the value."""
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
    """Return floats, NaN where not `known` (negative, unless told otherwise)."""
    return np.where(values >= 0 if known is None else known, values, np.nan)


def _texts(values: Any) -> pd.Series[Any]:
    """Return numbers as text. Job numbers are whole; a damaged one may be a fraction or beyond 2^63."""
    if values.dtype.kind == "f":
        return pd.Series([f"{value:.0f}" if value.is_integer() else f"{value:g}" for value in values], dtype="str")
    return pd.Series(values, dtype="int64").astype("str")


def _words(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return a name field as text, empty for -1."""
    texts = values.astype("str").reset_index(drop=True)
    return texts.where(texts != "-1", "")


def _says(values: Any) -> bool:
    """Tell whether any job says something in this column."""
    return bool((values != "").any()) if isinstance(values, pd.Series) else not np.isnan(values).all()


def _plain(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a field of times or amounts: whole numbers if all are, -1 for what is not known or negative."""
    values = np.where(values >= 0, values, -1.0)
    whole = (values == np.floor(values)) & (values < MAX_EXACT)
    return values.astype(np.int64) if whole.all() else values


def _amount(table: pd.DataFrame, name: str) -> np.ndarray[Any, Any]:
    """Return an extra column of amounts as floats, NaN where it has none that a field holds."""
    if name not in table or table[name].dtype.kind not in "if":
        return np.full(len(table), np.nan)
    values = table[name].to_numpy(dtype=np.float64)
    return np.where((values >= 0) & (values < MAX_EXACT), values, np.nan)


def _canonical(texts: pd.Series[Any]) -> bool:
    """Tell whether every text is the decimal form of a whole number that fits a field."""
    return bool(texts.str.fullmatch("0|[1-9][0-9]{0,17}").all())


def _numbers_of(texts: pd.Series[Any]) -> Any:
    """Return texts as the numbers that they are if all are, else 1, 2, 3, ..."""
    return texts.astype("int64").to_numpy() if _canonical(texts) else np.arange(1, len(texts) + 1)


def _name_numbers(names: pd.Series[Any] | None) -> Any:
    """Return names as numbers: their own if all are numbers, else 1, 2, ... as they appear; -1 for none."""
    if names is None:
        return -1
    codes, unique = pd.factorize(names.astype("str").to_numpy())
    given = pd.Series([name for name in unique if name != ""], dtype="str")
    numbers = dict(zip(given, _numbers_of(given), strict=True))
    return np.array([numbers.get(name, -1) for name in unique], dtype=np.int64)[codes]


def _column(table: pd.DataFrame, name: str) -> Any:
    """Return a column, its default where the table lacks it; None if it has none."""
    if name.startswith("extra_") and name not in table:
        return None
    return column_of(table, name)


def _same(ours: Any, theirs: Any) -> bool:
    """Tell whether two columns are equal to the last bit, NaN equal to NaN."""
    if theirs is None or (ours.dtype.kind in "iufb") != (theirs.dtype.kind in "iufb"):
        return False
    if ours.dtype.kind == "f" and theirs.dtype.kind == "f":
        nan = np.isnan(ours)
        return bool(np.array_equal(nan, np.isnan(theirs))) and ours[~nan].tobytes() == theirs[~nan].tobytes()
    return ours.dtype.kind == theirs.dtype.kind and bool(np.all(ours == theirs))


def _restored(decoded: pd.DataFrame, header: Header, where: str) -> pd.DataFrame:
    """Return the table that tracebed wrote: columns from the comments, else from the job lines."""
    for name, values in header.values.items():
        if len(values) != len(decoded):
            raise InputError(
                f"{len(decoded)} job lines, but comments keep {name} of {len(values)} jobs",
                where=where,
                hint="undo the edit, or remove all Tracebed- comments to read it as plain SWF",
            )
    table = {}
    for name in header.columns:
        if name not in header.values and name not in SCHEMA and name not in decoded:
            raise InputError(
                f"no comment keeps the values of column {name!r}",
                where=where,
                hint="undo the edit, or remove all Tracebed- comments to read it as plain SWF",
            )
        kept = header.values.get(name)
        table[name] = _column(decoded, name) if kept is None else kept.to_numpy()
    return pd.DataFrame(table)


FORMAT = Format(
    "swf",
    "Standard Workload Format",
    recognises,
    marks=Marks.LOOSE,
    suffixes=(".swf",),
    read=read,
    write=write,
)
