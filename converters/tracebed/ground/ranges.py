"""Node names: one name, or a range such as `n[01-16]`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from tracebed.ground.errors import InputError

LONGEST_NAME = 200
"""Longest accepted name, in bytes. Node names are parts of file names, which have at most 255 bytes."""


@dataclass(frozen=True)
class NameRange:
    """The names `before` + number + `after`, for numbers from `first` to `last`; the name `before` without a `width`.

    Attributes:
        last: last number; None if the range has no end (`n[1-*]`).
        width: minimum number of digits, by zero padding; None for a single name.
    """

    before: str
    first: int = 0
    last: int | None = 0
    width: int | None = None
    after: str = ""

    def __len__(self) -> int:
        """Return the number of names. Raises ValueError if the range has no end."""
        if self.last is None:
            raise ValueError("the name range has no end")
        return self.last - self.first + 1

    def __iter__(self) -> Iterator[str]:
        if self.width is None:
            yield self.before
            return
        for number in count(self.first) if self.last is None else range(self.first, self.last + 1):
            yield f"{self.before}{number:0{self.width}d}{self.after}"


def parse_names(text: str, *, most: int) -> NameRange:
    """Return the names of `n`, `n[1-64]`, `n[01-64]` (zero-padded to two digits) or `n[1-*]` (no end).

    Raises InputError if the name or the range is invalid, or has an end and more than `most` names.
    """
    hint = "a name consists of letters, digits, `_`, `.`, `-` and at most one range like [1-64]"
    if len(text.encode(errors="replace")) > LONGEST_NAME:
        raise InputError(f"name {text[:20]!r}... is longer than {LONGEST_NAME} bytes", hint=hint)
    if re.fullmatch(r"[\w.-]+", text):
        return NameRange(text)
    parts = re.fullmatch(r"([\w.-]*)\[([0-9]{1,18})-([0-9]{1,18}|\*)\]([\w.-]*)", text)
    if parts is None:
        raise InputError(f"name {text!r} is invalid", hint=hint)
    before, first, last, after = parts.groups()
    width = len(first) if first.startswith("0") else 0
    names = NameRange(before, int(first), None if last == "*" else int(last), width, after)
    if names.last is not None and names.last < names.first:
        raise InputError(f"name range {text!r} is empty", hint="the first number must not exceed the last")
    if names.last is not None and names.last - names.first >= most:
        raise InputError(f"name range {text!r} has more than {most:,} names", hint="use a shorter range")
    return names


def as_ranges(names: Sequence[str]) -> str:
    """Return names with consecutive numbers as ranges: `n1`, `n2`, `n3` as `n[1-3]`."""
    runs: list[tuple[str, str, str]] = []
    for name in names:
        before = name.rstrip("0123456789")
        digits = name[len(before) :]
        if runs and digits and runs[-1][0] == before and digits == f"{int(runs[-1][2] or -2) + 1:0{len(runs[-1][1])}d}":
            runs[-1] = (before, runs[-1][1], digits)
        else:
            runs.append((before, digits, digits))
    return ",".join(f"{before}[{first}-{last}]" if first != last else before + first for before, first, last in runs)
