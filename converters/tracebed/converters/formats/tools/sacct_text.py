"""Conversion of `sacct -P` output to a table with one record per line and tabs between the fields.

sacct does not quote values, but a job name, comment or command may contain the delimiter or a line break. Such
records are reassembled with the help of the other columns: times, states and numbers have recognizable shapes.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tracebed.converters.formats.tools.files import HEAD_BYTES, Input
from tracebed.converters.formats.tools.slurm_demands import options_of
from tracebed.converters.formats.tools.states import SLURM
from tracebed.ground.errors import InputError

FREE = frozenset(
    (
        *("jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir", "container", "constraints"),
        *("extra", "stdin", "stdout", "stderr", "licenses"),
    )
)
"""Columns of free text, which may contain delimiters and line breaks. Licenses are alternatives: `a:1|b:2`."""
NAMED = frozenset(("account", "wckey", "qos", "reservation", "reason", "mcslabel"))
"""Columns whose values may contain delimiters, too (observed in Slurm 22.05), but rarely do."""
WITH_COMMA = frozenset(("reason", "mcslabel"))
"""Those of `NAMED` whose values may contain commas, which separate the other names in Slurm."""
LISTS = frozenset(("jobid", "nodelist", "partition", "alloctres", "reqtres"))
"""Columns whose values contain commas."""
FEW = frozenset(("cluster", "partition"))
"""Columns with few values, each of which most files have in many records."""
ITEM = rb"[^=,\s]+=[^=,\s]+"
SHAPED = {
    rb"[\d:T .+-]+|Unknown|None|N/A|": ("submit", "eligible", "start", "end"),
    rb"[\d.-]*:[\d:.]+|INVALID|": (
        *("elapsed", "totalcpu", "cputime", "usercpu", "systemcpu", "suspended", "reserved", "planned", "resvcpu"),
    ),
    rb"[\d.-]*:[\d:.]+|INVALID|UNLIMITED|Partition_Limit|": ("timelimit",),
    rb"\d*|UNLIMITED|Partition_Limit": ("timelimitraw",),
    rb"\d+": ("elapsedraw", "uid", "gid"),
    rb"\d*": ("priority", "qosraw", "cputimeraw", "wckeyid", "associd", "resvcpuraw"),
    rb"[\d.]+[KMGTP]?": ("nnodes", "allocnodes", "reqnodes", "ncpus", "alloccpus", "reqcpus"),
    rb"([\d.]+[KMGTP]?[cn?]?)?": ("reqmem",),
    # A resource occurs once in a list. A comma may be the delimiter, too.
    rb"(?!(?:.*,)?([^=,]+)=[^,]*,(?:.*,)?\1=)(?:" + ITEM + rb"(?:," + ITEM + rb")*)?": (
        *("alloctres", "reqtres"),
        *(f"tresusage{way}{of}" for way in ("in", "out") for of in ("ave", "max", "min", "tot")),
    ),
    rb"\d*:?\d*": ("exitcode", "derivedexitcode"),
    rb"\d+(_(\d+|\[[^\]]*\]))?(\+\d+)?(\.[\w+]+)?": ("jobid",),
    rb"\d+(\.[\w+]+)?": ("jobidraw",),
    rb"[A-Z_]+\+?( by \S+)?": ("state",),
    rb"(?!,)(?!.*,,)[^\s\[\]=]*(?:\[[\d,-]+\][^\s\[\]=]*)*(?<!,)|None assigned": ("nodelist",),
    rb"([^\s|,;:=]+(:\d+)?([|,;][^\s|,;:=]+(:\d+)?)*)?": ("licenses",),
    rb".*": ("reason", "reservation", "wckey", "failednode"),
    # Features between operators: brackets are closed, and no operator begins or ends the text.
    rb"(?![|&])(?!.*[|&]{2})(?:\[[^\[\]\s]*\]|[^\s\[\]])*(?<![|&])": ("constraints",),
    rb"(/.*)?": ("workdir",),
    rb"((\S*/)?(sbatch|srun|salloc)( .*)?)?": ("submitline",),
    rb"": ("",),  # --parsable ends each line with a delimiter
}
"""Pattern of a value -> columns with this pattern. Values of other columns, except `FREE`, contain no blanks."""
SHAPES = {name: shape for shape, names in SHAPED.items() for name in names}
FIELDS = frozenset(SHAPES) | FREE | {"cluster", "partition", "account", "user", "group", "qos"}
LOOK_AHEAD = 50
"""Maximum number of lines in one record."""
SAMPLE = 20_000
"""Number of regular lines whose values in `FEW` are usual."""
MANY, COMMAS = 40, 200
"""Maximum number of extra delimiters in one record, to bound the search; if the delimiter is a comma: the second."""


@dataclass(frozen=True)
class SacctHeader:
    """The first line: column names as spelled in the file, and the delimiter."""

    names: tuple[str, ...]
    delimiter: bytes

    @classmethod
    def of(cls, file: Input) -> SacctHeader:
        """Read the first line of a file; a line without a delimiter is one name."""
        first = _first_line(file).replace(b'"', b"")
        # A table of another tool may have row numbers before the columns of sacct.
        between = re.match(rb"(?:(?:Unnamed: [\d.]+)?,)?[A-Za-z]+([^A-Za-z0-9]+)[A-Za-z]", first)
        delimiter = between[1] if between else b"|"
        pieces = first.split() if not delimiter.strip(b" ") else first.split(delimiter)
        return cls(tuple(name.decode("utf-8", "replace").strip() for name in pieces), delimiter)

    @property
    def lower(self) -> tuple[str, ...]:
        """The names in lower case."""
        return tuple(name.lower() for name in self.names)

    @property
    def padded(self) -> bool:
        """Whether the delimiter is blanks, as in sacct's default output, which truncates values."""
        return not self.delimiter.strip(b" ")


def _first_line(file: Input) -> bytes:
    """Return the first line of a file, without the blanks that pad the first name of sacct's default output."""
    return file.head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].strip(b"\r ")


def lacks_header(file: Input) -> bool:
    """Return whether the first line has a job id, a state and a span of time or exit code: the output of `sacct -n`."""
    first = _first_line(file)
    marks = {re.compile(SHAPES["jobid"]), re.compile(rb"\d+:\d+|(\d+-)?\d+:\d\d:\d\d")}
    for delimiter in {None, *re.findall(rb"[^\w .:+\[\]%-]+", first)}:
        parts = first.split(delimiter)
        states = [part.split()[0].rstrip(b"+").decode("ascii", "replace") in SLURM for part in parts if part.strip()]
        if any(states) and all(any(mark.fullmatch(part) for part in parts) for mark in marks):
            return True
    return False


def _quoted(data: bytes, width: int) -> bool:
    """Return whether a table is CSV from another tool, which quotes values with commas."""
    if b'"' not in data:
        return False
    head = data[:HEAD_BYTES].decode("utf-8", "replace")
    try:
        rows = [row for row in csv.reader(io.StringIO(head, newline="")) if row][1:]
    except csv.Error:
        return True
    rows = rows[:-1] if len(data) > HEAD_BYTES else rows  # the last one may be cut off
    return 2 * sum(len(row) == width for row in rows) >= len(rows)


def one_line_each(file: Input, header: SacctHeader, used: Container[str]) -> tuple[Input, Counter[str]]:
    """Return the file with one record per line and tabs between fields, and the counts of repairs.

    Line numbers do not change: a record that filled several lines is followed by empty lines. It is reassembled only if
    the values of the columns `used` (in lower case) are unambiguous; otherwise, InputError is raised.
    """
    data = file.text
    if header.delimiter == b"," and _quoted(data, len(header.names)):
        return file, Counter()
    top = b"\n" + data.partition(b"\n")[0].removeprefix(b"\xef\xbb\xbf") + b"\n"
    again = data.count(top)  # of exports that were joined
    data = data.replace(top, b"\n\n") if again else data
    if header.delimiter != b"\t":
        data = data.replace(b"\t", b" ").replace(header.delimiter, b"\t")
    text = _Text(file, header, used, data)
    text.found["headers of further exports, left out"] += again
    pieces, done = [], 0
    for odd in text.irregular_lines():
        if odd < done:
            continue
        first, last, record = text.record_at(odd, done)
        pieces += [data[text.starts[done] : text.starts[first]], record, b"\n" * (last - first + 1)]
        done = last + 1
    if pieces:
        data = b"".join([*pieces, data[text.starts[done] :]])
    return replace(file, raw=data), text.found


class _Text:
    """The lines of a file, with tabs between their fields."""

    def __init__(self, file: Input, header: SacctHeader, used: Container[str], data: bytes) -> None:
        self.file, self.header, self.data = file, header, data
        content = np.frombuffer(data, np.uint8)
        breaks = np.flatnonzero(content == ord("\n"))
        self.complete = data.endswith(b"\n")
        self.ends = breaks if self.complete else np.append(breaks, len(data))
        self.starts = np.append(np.append(0, self.ends[:-1] + 1), len(data))
        tabs = np.searchsorted(np.flatnonzero(content == ord("\t")), self.ends)
        self.delimiters = np.diff(tabs, prepend=0)
        self.width = len(header.names)
        self.most = self.width + (COMMAS if header.delimiter == b"," else MANY)
        names = header.lower
        self.free = [name in FREE or (header.delimiter == b"," and name in LISTS) for name in names]
        self.shaped = [name in SHAPES for name in names]
        self.used = [name in used for name in names]
        self.found = Counter[str]()
        self.shapes = [re.compile(SHAPES.get(name, rb"\S*")) for name in names]

    def irregular_lines(self) -> Iterator[int]:
        """Yield the lines whose number of fields differs from the header."""
        for number in np.flatnonzero(self.delimiters != self.width - 1).tolist():
            if self.line(number):
                yield number

    def line(self, number: int) -> bytes:
        """Return a line without its line end."""
        return self.data[self.starts[number] : self.ends[number]].rstrip(b"\r")

    def record_at(self, odd: int, done: int) -> tuple[int, int, bytes]:
        """Return the first and last line of the record that contains line `odd`, and the record as one line."""
        for first in (odd, odd - 1):
            if first >= max(done, 1):
                text = b""
                for last in range(first, min(first + LOOK_AHEAD, len(self.ends))):
                    more = self.line(last)
                    text = text + b" " + more if last > first else more
                    if text.count(b"\t") >= self.most or (last > first and self.begins(more)):
                        break
                    records = self.with_joined_values(text) if last >= odd else []
                    if len(records) > 1:
                        raise self.unclear(odd, "two repairs fit")
                    for record in records:
                        self.found["records whose values contain delimiters or line breaks, reassembled"] += 1
                        return first, last, record
        if odd == len(self.ends) - 1 and not self.complete:
            self.found["last line cut off, left out"] += 1
            return odd, odd, b""
        if self.header.lower[-1] in FREE and self.delimiters[odd] < self.width - 1 and not self.begins(self.line(odd)):
            self.found["lines that continue a text in the last column, left out"] += 1
            return odd, odd, b""  # the preceding record is complete without it
        raise self.unclear(odd, "no repair fits")

    def unclear(self, odd: int, why: str) -> InputError:
        """Return the error about a line of too many or too few fields."""
        return InputError(
            f"line has {self.delimiters[odd] + 1} fields, but the header has {self.width}, and the extra delimiters"
            f" cannot be located: {why}",
            where=f"{self.file.where}:{odd + 1}",
            hint="correct or remove the line, or run sacct with JobName last or another --delimiter",
        )

    def begins(self, text: bytes) -> bool:
        """Return whether a line begins like a record, up to the job id; False if free text precedes the job id."""
        for column, part in enumerate(text.split(b"\t")[: self.width]):
            if self.header.lower[column] in ("jobid", "jobidraw"):
                return self.shapes[column].fullmatch(part) is not None
            if self.free[column] or not self.shapes[column].fullmatch(part):
                return False
        return False

    @cached_property
    def usual(self) -> dict[int, set[bytes]]:
        """The values of each of the columns `FEW` in the first regular lines of the file."""
        columns = [number for number, name in enumerate(self.header.lower) if name in FEW]
        regular = np.flatnonzero(self.delimiters == self.width - 1)[1 : SAMPLE + 1].tolist()
        parts = [self.line(number).split(b"\t") for number in regular]
        return {
            column: {name for values in parts for name in values[column].split(b",")} for column in columns if parts
        }

    def with_joined_values(self, text: bytes) -> list[bytes]:
        """Return a record with the pieces of its values joined: none, one, or two if there is more than one way.

        First, the cluster and partition are those of other records, and only free texts contain delimiters.
        """
        parts = text.split(b"\t")
        if len(parts) < self.width:
            return []
        for usual in (self.usual, {}) if self.usual else ({},):
            for named in (frozenset[str](), WITH_COMMA if self.header.delimiter == b"," else NAMED):
                search = _Search(self, parts, usual, named)
                ways = search.ways(0, 0)
                if ways:
                    return [b"\t".join(values) for values in ways.values()]
        return []


Ways = dict[tuple[Hashable, ...], list[bytes]]
"""Values of the used columns -> values of all columns."""


class _Search:
    """The ways to assign the parts of a record to the columns."""

    def __init__(
        self, text: _Text, parts: Sequence[bytes], usual: Mapping[int, Container[bytes]], named: Container[str]
    ) -> None:
        self.text, self.parts, self.usual = text, parts, usual
        self.free = [free or name in named for free, name in zip(text.free, text.header.lower, strict=True)]
        self.memo: dict[tuple[int, int], Ways] = {}

    def ways(self, column: int, at: int) -> Ways:
        """Return the ways to assign the parts from `at` on to the columns from `column` on, at least two if ambiguous.

        Ways with the same meaning in the used columns count as one. Of adjacent free columns that are not used and
        have no shape, the first takes all extra parts.
        """
        if (column, at) in self.memo:
            return self.memo[column, at]
        text, ways, surplus = self.text, Ways(), len(self.parts) - at - (self.text.width - column)
        if column == text.width:
            return {(): []} if not surplus else {}
        follows = column > 0 and self.loose(column) and self.loose(column - 1)
        for more in range(surplus + 1) if self.free[column] and not follows else range(1):
            value = text.header.delimiter.join(self.parts[at : at + 1 + more])
            if len(ways) > 1:
                break
            if not self.loose(column) and not text.shapes[column].fullmatch(value):
                continue
            if column in self.usual and not all(name in self.usual[column] for name in value.split(b",")):
                continue  # a waiting job may have several partitions, each of which is usual
            meaning = (self.meaning(column, value),) if text.used[column] else ()
            for key, rest in self.ways(column + 1, at + 1 + more).items():
                ways[*meaning, *key] = [value, *rest]
        self.memo[column, at] = ways
        return ways

    def loose(self, column: int) -> bool:
        """Return whether a column holds free text without a shape that is not used."""
        return self.free[column] and not self.text.shaped[column] and not self.text.used[column]

    def meaning(self, column: int, value: bytes) -> Hashable:
        """Return what is read of a value: of a command line, its options."""
        if self.text.header.lower[column] != "submitline":
            return value
        return tuple(options_of(value.decode("utf-8", "replace")).items())
