"""Conversion of `sacct -P` output to a table with one record per line and tabs between the fields.

sacct does not quote values, but a job name, comment or command may contain the delimiter or a line break. Such
records are reassembled with the help of the other columns: times, states and numbers have recognizable shapes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracebed.converters.formats.tools.files import Input
from tracebed.errors import InputError

FREE = frozenset(
    (
        *("jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir", "container", "constraints"),
        *("extra", "stdin", "stdout", "stderr"),
    )
)
"""Columns of free text, which may contain delimiters and line breaks."""
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
    rb"([^=,\s]+=[^=,\s]+,?)*": ("alloctres", "reqtres"),
    rb"\d*:?\d*": ("exitcode", "derivedexitcode"),
    rb"\d+(_(\d+|\[[^\]]*\]))?(\+\d+)?(\.[\w+]+)?": ("jobid",),
    rb"\d+(\.[\w+]+)?": ("jobidraw",),
    rb"[A-Z_]+\+?( by \S+)?": ("state",),
    rb"\S*|None assigned": ("nodelist",),
    rb".*": ("reason", "reservation", "wckey", "licenses", "failednode"),
    rb"\S*": ("constraints",),
    rb"((\S*/)?(sbatch|srun|salloc)( .*)?)?": ("submitline",),
    rb"": ("",),  # --parsable ends each line with a delimiter
}
"""Pattern of a value -> columns with this pattern. Values of other columns, except `FREE`, contain no blanks."""
SHAPES = {name: shape for shape, names in SHAPED.items() for name in names}
FIELDS = frozenset(SHAPES) | FREE | {"cluster", "partition", "account", "user", "group", "qos"}
LOOK_AHEAD = 50
"""Maximum number of lines in one record."""
MANY = 40
"""Maximum number of delimiters in the free texts of one record, to bound the search."""


@dataclass(frozen=True)
class SacctHeader:
    """The first line: column names as spelled in the file, and the delimiter."""

    names: tuple[str, ...]
    delimiter: bytes

    @classmethod
    def of(cls, file: Input) -> SacctHeader:
        """Read the first line of a file; a line without a delimiter is one name."""
        first = file.head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].rstrip(b"\r").replace(b'"', b"")
        between = re.match(rb"[A-Za-z]+([^A-Za-z0-9]+)[A-Za-z]", first)
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


def one_line_each(file: Input, header: SacctHeader, used: Container[str]) -> tuple[Input, Counter[str]]:
    """Return the file with one record per line and tabs between fields, and the counts of repairs.

    Line numbers do not change: a record that filled several lines is followed by empty lines.

    Args:
        file: the output of sacct.
        used: the columns to read, in lower case. A record is reassembled only if their values are unambiguous.

    Raises:
        InputError: a line has too few fields, or too many and the columns do not determine which belong together.
    """
    if header.delimiter == b",":  # CSV from another tool, which quotes values
        return file, Counter()
    data = file.text
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
        self.free = [name in FREE for name in header.lower]
        self.shaped = [name in SHAPES for name in header.lower]
        self.used = [name in used for name in header.lower]
        self.found = Counter[str]()
        self.shapes = [re.compile(SHAPES.get(name, rb"\S*")) for name in header.lower]

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
                    if text.count(b"\t") - self.width >= MANY or (last > first and self.begins(more)):
                        break
                    record = self.with_joined_texts(text) if last >= odd else None
                    if record is not None:
                        self.found["records whose free text contains delimiters or line breaks"] += 1
                        return first, last, record
        if odd == len(self.ends) - 1 and not self.complete:
            self.found["last line cut off, left out"] += 1
            return odd, odd, b""
        if self.free[-1] and self.delimiters[odd] < self.width - 1 and not self.begins(self.line(odd)):
            self.found["lines that continue a text in the last column, left out"] += 1
            return odd, odd, b""  # the preceding record is complete without it
        raise InputError(
            f"line has {self.delimiters[odd] + 1} fields, but the header has {self.width}, and the extra delimiters"
            " cannot be located",
            where=f"{self.file.where}:{odd + 1}",
            hint="correct or remove the line, or run sacct with JobName last or another --delimiter",
        )

    def begins(self, text: bytes) -> bool:
        """Return whether a line begins like a record, up to the job id; False if free text precedes the job id."""
        for column, part in enumerate(text.split(b"\t")[: self.width]):
            if self.free[column] or not self.shapes[column].fullmatch(part):
                return False
            if self.header.lower[column] in ("jobid", "jobidraw"):
                return True
        return False

    def with_joined_texts(self, text: bytes) -> bytes | None:
        """Return a record with its free texts joined, or None if there is no way to join them or more than one."""
        parts = text.split(b"\t")
        if len(parts) < self.width:
            return None
        ways = self.assignments(parts, 0, 0, {})
        return b"\t".join(*ways.values()) if len(ways) == 1 else None

    def assignments(self, parts: Sequence[bytes], column: int, at: int, memo: dict[tuple[int, int], Ways]) -> Ways:
        """Return the ways to assign the parts from `at` on to the columns from `column` on, at least two if ambiguous.

        Ways with the same values in the used columns count as one. Of adjacent free columns without a shape, the
        first takes all extra parts.
        """
        if (column, at) in memo:
            return memo[column, at]
        found: Ways = {}
        surplus = len(parts) - at - (self.width - column)
        if column == self.width:
            return {(): []} if not surplus else {}
        first_free = self.free[column] and (self.shaped[column] or not (column and self.free[column - 1]))
        for more in range(surplus + 1) if first_free else range(1):
            value = self.header.delimiter.join(parts[at : at + 1 + more])
            if len(found) > 1:
                break
            if (self.shaped[column] or not self.free[column]) and not self.shapes[column].fullmatch(value):
                continue
            for key, rest in self.assignments(parts, column + 1, at + 1 + more, memo).items():
                found[(value, *key) if self.used[column] else key] = [value, *rest]
        memo[column, at] = found
        return found


Ways = dict[tuple[bytes, ...], list[bytes]]
"""Values of the used columns -> values of all columns."""
