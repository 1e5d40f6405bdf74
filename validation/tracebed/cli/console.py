"""Standard output: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.messages import emit, progress
from tracebed.display import cell, json_values

if TYPE_CHECKING:
    from rich.table import Table

    from tracebed.api import Workload

UNBOUNDED = 100_000
"""Columns of an output that is not a terminal: a line is as long as it must be."""


def load_workload(path: Path, **options: Any) -> Workload:
    """Read a workload with a progress line, should it take long."""
    import tracebed.api as tb

    with progress(f"reading {path.name}"):
        return tb.read(path, **options)


def print_json(schema: str, value: Mapping[str, Any]) -> None:
    """Print one JSON document. NaN and infinity, which JSON cannot express, become null.

    Args:
        schema: name and version of the document's structure (`tracebed-run/1`). It is the first key, `schema`.
            The version grows when a key is removed or its meaning changes, not when a key is added.
        value: the other keys.
    """
    click.echo(json.dumps({"schema": schema} | json_values(value), indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, spare: Sequence[str] = ()) -> None:
    """Print a table: first column left, the others right; numbers readable, and never cut.

    On a terminal that is too narrow, the columns named in `spare` are left out, one after the other until the table
    fits, and a line on standard error names the columns.
    """
    from rich.console import Console

    terminal = Console().width if sys.stdout.isatty() else UNBOUNDED
    unbounded = Console(width=UNBOUNDED)
    table = _table(columns, rows)
    needed = unbounded.measure(table).maximum
    left_out: list[str] = []
    for column in spare:
        if unbounded.measure(table).maximum <= terminal:
            break
        left_out.append(column)
        kept = [index for index, name in enumerate(columns) if name not in left_out]
        table = _table([columns[index] for index in kept], [[row[index] for index in kept] for row in rows])
    if left_out:
        emit(f"(a terminal of {needed} columns shows {', '.join(left_out)} too)")
    least, most = unbounded.measure(table)
    Console(width=max(least, min(most, terminal)), highlight=False).print(table)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=any(columns))
    for index, column in enumerate(columns):
        first = index == 0
        table.add_column(column, justify="left" if first else "right", header_style="dim", no_wrap=not first)
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    return table
