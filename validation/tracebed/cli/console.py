"""Standard output: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

import click

import tracebed.api as tb
from tracebed.cli.messages import emit, progress
from tracebed.ground.display import cell, json_values

UNBOUNDED = 100_000
"""Columns of an output that is not a terminal: a line is as long as it must be."""
GAP = 2
"""Blanks between two columns."""


def load_workload(path: Path, **options: Any) -> tb.Workload:
    """Read a workload with a progress line, should it take long."""
    with progress(f"reading {path.name}"):
        return tb.read(path, **options)


def duration_text(seconds: float | None) -> str:
    """Return a duration in s, min, h or d: 3.2 s, 12 min, 2.5 h, 152.9 d."""
    if seconds is None or math.isnan(seconds):
        return "not known"
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.3g} s"


def print_json(schema: str, value: Mapping[str, Any]) -> None:
    """Print one JSON document. NaN and infinity, which JSON cannot express, become null.

    Args:
        schema: name and version of the document's structure (`tracebed-run/1`). It is the first key, `schema`.
            The version grows when a key is removed or its meaning changes, not when a key is added.
        value: the other keys.
    """
    click.echo(json.dumps({"schema": schema} | json_values(value), indent=2))


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    keys: int = 1,
    text: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Print a table: labels and sentences left, the rest right; numbers readable, and nothing cut.

    On a terminal that is too narrow, heads break between words, then the first column and the columns in `text` do.
    If this is not enough, the columns in `spare` are left out, one after the other until the table fits, and a line on
    standard error names them. A table that is still too wide is printed in parts, each with the key columns.

    Args:
        columns: the heads.
        rows: the values.
        keys: number of columns, from the left, that tell the rows apart.
        text: heads of the columns with sentences.
        spare: heads of the columns that matter least, the least important one first.
    """
    terminal = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNBOUNDED
    shown = []
    for index, head in enumerate(columns):
        sentences = index == 0 or head in text
        values = [row[index] for row in rows]
        left = sentences or (index < keys and all(isinstance(value, str) for value in values))
        shown.append(_Column(head, [cell(value) for value in values], wraps=sentences, left=left))
    left_out: list[str] = []
    for head in spare:
        if _least(shown) <= terminal:
            break
        left_out.append(head)
        shown = [column for column in shown if column.head not in left_out]
    if left_out:
        emit(f"(a wider terminal shows {', '.join(left_out)} too)")
    lines: list[str] = []
    for number, part in enumerate(_parts(shown, keys, terminal)):
        _narrow(part, terminal)
        lines += ["", *_lines(part)] if number else _lines(part)
    sys.stdout.write("".join(f"{line}\n" for line in lines))  # click.echo writes UTF-8 where the encoding is ASCII
    sys.stdout.flush()


@dataclass
class _Column:
    """A column of a table, and how wide it is."""

    head: str
    cells: list[str]
    wraps: bool
    """Whether its cells may break between words."""
    left: bool
    width: int = 0
    """Its width on the terminal, characters."""

    @cached_property
    def whole(self) -> int:
        """The smallest width at which no cell breaks."""
        return max(_longest(self.head), *map(len, self.cells), 0)

    @cached_property
    def least(self) -> int:
        """The smallest width at which no word breaks."""
        return max(map(_longest, (self.head, *self.cells))) if self.wraps else self.whole

    def broken(self, text: str) -> str:
        """Return a head or a cell with the line breaks of this width."""
        return (
            text
            if len(text) <= self.width
            else textwrap.fill(text, self.width, break_long_words=False, break_on_hyphens=False)
        )


def _longest(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _least(columns: Sequence[_Column]) -> int:
    """Return the smallest width of a table."""
    return sum(column.least for column in columns) + GAP * (len(columns) - 1)


def _parts(columns: Sequence[_Column], keys: int, terminal: int) -> Iterator[list[_Column]]:
    """Yield the columns of each part of a table: the key columns, and as many others as fit."""
    part, others = list(columns[:keys]), list(columns[keys:])
    for column in others:
        if len(part) > keys and _least([*part, column]) > terminal:
            yield part
            part = list(columns[:keys])
        part.append(column)
    yield part


def _narrow(columns: Sequence[_Column], terminal: int) -> None:
    """Make the widest columns narrower until the table fits: heads break first, then cells."""
    for column in columns:
        column.width = max(len(column.head), *map(len, column.cells), 0)
    excess = sum(column.width for column in columns) + GAP * (len(columns) - 1) - terminal
    for bound in ("whole", "least"):
        while excess > 0 and (wide := [each for each in columns if each.width > getattr(each, bound)]):
            widest = max(wide, key=lambda each: each.width)
            widest.width -= 1
            excess -= 1


def _lines(columns: Sequence[_Column]) -> Iterator[str]:
    """Yield the lines of a table, the heads dim on a terminal. `rich` prints the same, and takes 20 ms to import."""
    dim = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    texts = [[column.broken(text).split("\n") for text in (column.head, *column.cells)] for column in columns]
    widths = [max(map(_width, chain.from_iterable(column))) for column in texts]
    for number, cells in enumerate(zip(*texts, strict=True)):
        if number == 0 and not any(column.head for column in columns):
            continue
        if number == 0:  # heads stand at the bottom
            cells = tuple([""] * (max(map(len, cells)) - len(head)) + head for head in cells)
        for parts in zip_longest(*cells, fillvalue=""):
            line = [text if column.left else text.rstrip() for column, text in zip(columns, parts, strict=True)]
            blanks = [" " * (width - _width(text)) for width, text in zip(widths, line, strict=True)]
            padded = [
                text + blank if column.left else blank + text
                for column, text, blank in zip(columns, line, blanks, strict=True)
            ]
            if dim and number == 0:
                padded = [click.style(text, bold=True, dim=True) for text in padded]
            yield (" " * GAP).join(padded)


def _width(text: str) -> int:
    """Return the width of a text on a terminal, where characters of East Asia have two columns."""
    return len(text) if text.isascii() else len(text) + sum(east_asian_width(one) in "FW" for one in text)


def change(found: tb.Difference | None) -> str:
    """Return a difference as text, marked if it is not significant; a dash if that is unknown."""
    return "-" if found is None else found.text


def explain_falls(ends: Iterable[tuple[float, float]]) -> None:
    """Say how a change can be below -100 %, if the lower end of an interval is, given with its base."""
    if any(base and low < -abs(base) for low, base in ends):
        emit("changes are in percent of the mean of the base: below -100 %, runs fall by more than this mean")


def end_on_signals() -> None:
    """Treat SIGTERM and SIGHUP like Ctrl-C until the command ends. A SIGHUP that is ignored (`nohup`) stays ignored."""
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before = signal.signal(number, signal.default_int_handler)
            click.get_current_context().call_on_close(partial(signal.signal, number, before))
