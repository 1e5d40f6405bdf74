"""What all commands share: shared options, tables for people, JSON for machines, progress, warnings."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from tracebed.errors import InputError, Tolerated

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tracebed.converters.workload import Workload

    FloatType = click.ParamType[float]
else:
    FloatType = click.ParamType  # only newer versions of click say the type at run time

Command = TypeVar("Command", bound=Callable[..., Any])

UNBOUNDED = 100_000
"""Columns of what is no terminal: a line is as long as it must."""


class FilePath(click.Path):
    """A click type: the path of a file or folder; never the empty one, which would be the current folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse, or fail as click does: a variable of the shell was empty."""
        if not str(value):
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


PATH = FilePath()


def output_option(what: str, *, required: bool = True) -> Callable[[Command], Command]:
    """`-o/--output PATH`, the same everywhere."""
    return click.option("-o", "--output", type=PATH, required=required, metavar="PATH", help=what)


def json_option(command: Command) -> Command:
    """`--json`: print JSON for machines in place of the table."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")(command)


def seed_option(command: Command) -> Command:
    """`--seed N`: of the numpy Generator that every draw of the command comes from."""
    return click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of all draws.")(
        command
    )


def workload_argument(command: Command) -> Command:
    """Take the workload's file; `load_workload` reads it."""
    return click.argument("workload", type=PATH, metavar="WORKLOAD")(command)


def keep_inputs(inputs: Iterable[Path], outputs: Iterable[Path | None]) -> None:
    """Raise InputError where writing would replace what is read, in a folder too, or one output another."""
    sources = [os.path.realpath(path) for path in inputs]
    taken: list[str] = []
    for output in outputs:
        if output is None or (output.exists() and not (output.is_file() or output.is_dir())):
            continue  # a pipe or terminal is not replaced
        target = os.path.realpath(output)
        if any((_holds(source, target) and output.exists()) or _holds(target, source) for source in sources):
            raise InputError("would replace what it is made from", where=str(output), hint="name another file")
        if target in taken:
            raise InputError("two results under one name", where=str(output), hint="name another file for one of them")
        taken.append(target)


def _holds(folder: str, path: str) -> bool:
    """Tell whether a path is this one, or in this folder."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def load_workload(path: Path, **options: Any) -> Workload:
    """Read a workload with a progress line, should it take long."""
    from tracebed.converters.formats.reading import read_workload

    with progress(f"reading {path.name}"):
        return read_workload(path, **options)


def print_json(schema: str, value: Mapping[str, Any]) -> None:
    """Print one JSON document. NaN and infinity, which JSON cannot express, become null.

    Args:
        schema: name and version of the document's structure (`tracebed-run/1`). It is the first key, `schema`.
            The version grows when a key is removed or its meaning changes, not when a key is added.
        value: the other keys.
    """
    click.echo(json.dumps({"schema": schema} | _plain(value), indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, spare: Sequence[str] = ()) -> None:
    """Print a table: first column left, the others right; numbers readable, and never cut.

    On a terminal too narrow for it, the columns named in `spare` are left out, and a line says so.
    """
    from rich.console import Console

    terminal = Console().width if sys.stdout.isatty() else UNBOUNDED
    unbounded = Console(width=UNBOUNDED)
    table = _table(columns, rows)
    needed = unbounded.measure(table).maximum
    if spare and needed > terminal:
        kept = [index for index, column in enumerate(columns) if column not in spare]
        table = _table([columns[index] for index in kept], [[row[index] for index in kept] for row in rows])
        say(f"(a terminal of {needed} columns shows {', '.join(spare)} too)")
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


def cell(value: Any) -> str:
    """Return a value as a table shows it: four significant digits, thousands apart, a dash for nothing."""
    if value is None or (isinstance(value, float) and value != value):
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if 1000 <= abs(value) < 1e15 or isinstance(value, int):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def say(message: str) -> None:
    """Tell the person something, on standard error, so that standard output stays clean."""
    click.echo(message, err=True)


def one_line(message: object) -> str:
    """Return a message as one line that a terminal shows as it is: what names of files and values hold is not ours."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(message))


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as one line; libraries' own keep to themselves unless Python is asked for them."""
    if issubclass(category, Tolerated) or category is UserWarning:
        click.echo(f"tracebed: warning: {one_line(message)}", err=True)
    elif sys.warnoptions:
        click.echo(f"{filename}:{lineno}: {category.__name__}: {message}", err=True)


class Progress:
    """A task whose progress is shown: call `update(done)`."""

    def __init__(self, show: Callable[[float], None]) -> None:
        """Take what draws `done` of the total."""
        self._show = show

    def update(self, done: float) -> None:
        """Show that `done` of the total is done."""
        self._show(done)


@contextmanager
def progress(what: str, total: float | None = None) -> Iterator[Progress]:
    """Show `what` once the block has taken a second: a bar on a terminal, plain lines elsewhere."""
    import time

    begun = time.monotonic()
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())

        class Late(Bar):
            def get_renderables(self) -> Iterable[RenderableType]:
                return super().get_renderables() if time.monotonic() - begun > 1.0 else ()

        with Late(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield Progress(lambda done: bar.update(task, completed=done))
    else:
        due = begun + 1.0

        def line(done: float) -> None:
            nonlocal due
            now = time.monotonic()
            if now >= due:
                due = now + 10.0
                click.echo(f"{what}: {done / total:.0%}{_left(now - begun, done, total)}" if total else what, err=True)

        yield Progress(line)


def _left(passed: float, done: float, total: float) -> str:
    """Return an estimate of the time left, in words; nothing before there is one."""
    from tracebed.orchestrator.cli.charts import spell

    return f", {spell(passed * (total - done) / done)} left" if 0 < done < total else ""


class Number(click.FloatRange):
    """A click type: a finite number in a range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse, or fail as click does; nan and inf lie in every range of click's."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Say nothing in --help where there is no bound; click would write `x<=None`."""
        return "" if self.min is None and self.max is None else super()._describe_range()


SIZE = click.IntRange(1, 10_000_000)
"""Nodes of a machine, or cores of a node: beyond the largest there are, and what memory holds."""
SPEED = Number(0.001, 1_000_000)
SECONDS = Number(0)

DURATION_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """Parse `90`, `90s`, `15m`, `2h` or `1d` into seconds; raise InputError otherwise."""
    text = text.strip()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        seconds = float(number) * DURATION_UNITS[text[len(number) :]]
    except (ValueError, KeyError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise InputError(f"{text!r} is not a duration", hint="write 90s, 15m, 2h or 1d")
    return seconds


class Duration(FloatType):
    """A click type for `duration`, at least 0."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse, or fail as click does."""
        try:
            seconds = duration(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)
        if seconds < 0:
            self.fail(f"{value!r} is below 0", param, ctx)
        return seconds


DURATION = Duration()
