"""The text that `sacct -P` writes, made a table: one record on each line, tabs between the fields.

sacct quotes nothing. A job's name, comment or command may hold the delimiter, or a line break. Such lines are put
together again by the columns around: a time, a state, a number can be told from a piece of a name.
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
"""Columns that may hold anything."""
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
    rb"": ("",),  # after the last delimiter of --parsable
}
"""What a value looks like -> of these columns; in any other that is not `FREE` it holds no blank."""
SHAPES = {name: shape for shape, names in SHAPED.items() for name in names}
FIELDS = frozenset(SHAPES) | FREE | {"cluster", "partition", "account", "user", "group", "qos"}
LOOK_AHEAD = 50
"""Lines that one record may fill."""
MANY = 40
"""Delimiters in the free texts of one record, beyond which nobody tries."""


@dataclass(frozen=True)
class Header:
    """The first line: names as they are spelt, and what stands between them."""

    names: tuple[str, ...]
    delimiter: bytes

    @classmethod
    def of(cls, file: Input) -> Header:
        """Read a file's first line; without a delimiter, it is one name."""
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
        """Whether blanks stand between the names: written for the eye, values cut."""
        return not self.delimiter.strip(b" ")


def one_line_each(file: Input, header: Header, used: Container[str]) -> tuple[Input, Counter[str]]:
    """Return the file with a record on each line and tabs between its fields; and how often what had to be mended.

    Lines keep their numbers: where a record filled several, empty ones follow it.

    Args:
        file: the table.
        header: its header.
        used: names in lower case of the columns that somebody wants: of these, at least, a mended record is sure.

    Raises:
        InputError: a line has too few fields, or too many and nothing tells which belong together.
    """
    if header.delimiter == b",":  # somebody's CSV, with quotes where needed
        return file, Counter()
    data = file.text
    if header.delimiter != b"\t":
        data = data.replace(b"\t", b" ").replace(header.delimiter, b"\t")
    text = _Text(file, header, used, data)
    pieces, done = [], 0
    for odd in text.odd():
        if odd < done:
            continue
        first, last, record = text.record_at(odd, done)
        pieces += [data[text.starts[done] : text.starts[first]], record, b"\n" * (last - first + 1)]
        done = last + 1
    if pieces:
        data = b"".join([*pieces, data[text.starts[done] :]])
    return replace(file, raw=data), text.found


class _Text:
    """The lines of a file, tabs between their fields."""

    def __init__(self, file: Input, header: Header, used: Container[str], data: bytes) -> None:
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
        self.used = [name in used for name in header.lower]
        self.found = Counter[str]()
        self.shapes = [re.compile(SHAPES.get(name, rb"\S*")) for name in header.lower]

    def odd(self) -> Iterator[int]:
        """Yield the lines that have not as many fields as the header."""
        for number in np.flatnonzero(self.delimiters != self.width - 1).tolist():
            if self.line(number):
                yield number

    def line(self, number: int) -> bytes:
        """Return a line without its end."""
        return self.data[self.starts[number] : self.ends[number]].rstrip(b"\r")

    def record_at(self, odd: int, done: int) -> tuple[int, int, bytes]:
        """Return the first and last line of the record that an odd line belongs to, and the record on one line."""
        for first in (odd, odd - 1):
            if first >= max(done, 1):
                text = b""
                for last in range(first, min(first + LOOK_AHEAD, len(self.ends))):
                    more = self.line(last)
                    text = text + b" " + more if last > first else more
                    if text.count(b"\t") - self.width >= MANY or (last > first and self.begins(more)):
                        break
                    record = self.mended(text) if last >= odd else None
                    if record is not None:
                        self.found["records whose free text holds delimiters or line breaks"] += 1
                        return first, last, record
        if odd == len(self.ends) - 1 and not self.complete:
            self.found["last line cut off, left out"] += 1
            return odd, odd, b""
        if self.free[-1] and self.delimiters[odd] < self.width - 1 and not self.begins(self.line(odd)):
            return odd, odd, b""  # more of a text whose record is whole already
        raise InputError(
            f"{self.delimiters[odd] + 1} fields where the header names {self.width}, and which belong together is"
            " not clear",
            where=f"{self.file.where}:{odd + 1}",
            hint="correct or remove the line; ask sacct for JobName last, or for another --delimiter",
        )

    def begins(self, text: bytes) -> bool:
        """Tell whether a line begins as a record must, up to a job's number, where no free text stands before that."""
        for column, part in enumerate(text.split(b"\t")[: self.width]):
            if self.free[column] or not self.shapes[column].fullmatch(part):
                return False
            if self.header.lower[column] in ("jobid", "jobidraw"):
                return True
        return False

    def mended(self, text: bytes) -> bytes | None:
        """Return a record with its free texts put together, None where no way or more than one fits."""
        parts = text.split(b"\t")
        if len(parts) < self.width:
            return None
        ways = self.ways(parts, 0, 0, {})
        return b"\t".join(*ways.values()) if len(ways) == 1 else None

    def ways(self, parts: Sequence[bytes], column: int, at: int, memo: dict[tuple[int, int], Ways]) -> Ways:
        """Return how parts from `at` on make the columns from `column` on; two ways, if there are more.

        Ways that give the reader the same are one. Of free columns side by side the first takes all.
        """
        if (column, at) in memo:
            return memo[column, at]
        found: Ways = {}
        surplus = len(parts) - at - (self.width - column)
        if column == self.width:
            return {(): []} if not surplus else {}
        first_free = self.free[column] and not (column and self.free[column - 1])
        for more in range(surplus + 1) if first_free else range(1):
            value = self.header.delimiter.join(parts[at : at + 1 + more])
            if len(found) > 1 or not (self.free[column] or self.shapes[column].fullmatch(value)):
                break
            for key, rest in self.ways(parts, column + 1, at + 1 + more, memo).items():
                found[(value, *key) if self.used[column] else key] = [value, *rest]
        memo[column, at] = found
        return found


Ways = dict[tuple[bytes, ...], list[bytes]]
"""What the columns in use hold -> what all columns hold."""
