"""Messages on standard error and in the log file: progress, notes, warnings and errors."""

from __future__ import annotations

import enum
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tracebed.ground.errors import InputError, Tolerated

if TYPE_CHECKING:
    from rich.console import RenderableType


class MessageLevel(enum.IntEnum):
    """Importance of a message."""

    DETAIL = 10
    """Shown with -v only."""
    NOTE = 20
    """Not shown with -q."""
    WARNING = 30
    """Not shown with -q."""
    ERROR = 40
    """Always shown."""


@dataclass
class Messages:
    """The settings of -q, -v and --log-file for one call of `tracebed`."""

    quiet: bool = False
    verbose: bool = False
    log_file: Path | None = None
    """Every message is appended to this file, whether or not it is shown."""

    @property
    def threshold(self) -> MessageLevel:
        """The lowest level that is shown."""
        return MessageLevel.ERROR if self.quiet else MessageLevel.DETAIL if self.verbose else MessageLevel.NOTE

    def open_log(self, path: Path) -> None:
        """Append messages to the file `path` from now on. Raises InputError if it cannot be written or is no log."""
        from tracebed.ground.outputs import LOG

        LOG.check(path)
        try:
            with path.open("a", encoding="utf-8"):
                self.log_file = path
        except OSError as error:
            what = f"the log file cannot be written: {error.strerror}"
            raise InputError(what, where=str(path), hint="name another file with --log-file") from error
        self.log(MessageLevel.DETAIL, f"command: {one_line(sys.argv)}")

    def log(self, level: MessageLevel, message: str) -> None:
        """Append `message` to the log file, if there is one."""
        if self.log_file is None:
            return
        lines = "".join(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {level.name:7} {line}\n" for line in _lines(message))
        try:
            with self.log_file.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(lines)
        except OSError as error:
            path, self.log_file = self.log_file, None  # a full disk must not end the command
            warn(f"{path}: the log file cannot be written: {error.strerror}")


def _lines(message: str) -> list[str]:
    return [line for line in message.splitlines() if line]


_current = Messages()


def current() -> Messages:
    """Return the settings in force."""
    return _current


def use(messages: Messages) -> None:
    """Put `messages` in force."""
    global _current
    _current = messages


def emit(message: str, level: MessageLevel = MessageLevel.NOTE) -> None:
    """Print a message to standard error, if its level is shown, and append it to the log file, if there is one."""
    if level >= _current.threshold:
        click.echo(message, err=True)
    _current.log(level, message)


def warn(message: object) -> None:
    """Print a warning of tracebed as one line."""
    emit(f"tracebed: warning: {one_line(message)}", MessageLevel.WARNING)


def one_line(message: object) -> str:
    """Return `message` as one line without control characters, which may stand in names of files and in values."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(message))


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as one line. Warnings of libraries are shown with -v or Python's -W only."""
    if issubclass(category, Tolerated) or category is UserWarning:
        warn(message)
    else:
        level = MessageLevel.WARNING if sys.warnoptions else MessageLevel.DETAIL
        emit(f"{filename}:{lineno}: {category.__name__}: {message}", level)


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
    begun = time.monotonic()
    show = _nothing if _current.quiet else _bar if sys.stderr.isatty() else _plain_lines
    with show(what, total, begun) as shown:
        yield shown
    emit(f"{what}: {time.monotonic() - begun:.2f} s", MessageLevel.DETAIL)


@contextmanager
def _nothing(what: str, total: float | None, begun: float) -> Iterator[Progress]:
    yield Progress(lambda done: None)


@contextmanager
def _bar(what: str, total: float | None, begun: float) -> Iterator[Progress]:
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


@contextmanager
def _plain_lines(what: str, total: float | None, begun: float) -> Iterator[Progress]:
    import tracebed.api as tb

    yield Progress(tb.progress_lines(what, total, emit, first_s=1.0))


def ready_streams() -> None:
    """Make standard output and error safe against closed streams and characters unknown to the terminal."""
    import io

    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


TRACEBACK = "TRACEBED_TRACEBACK"
"""Environment variable: any value but "" and "0" prints the traceback in place of writing it to a file."""


def crash_report(error: Exception, *, shown: bool = False) -> str:
    """Return the line to print for `error`, after its traceback was written to a file.

    Args:
        error: the error as it was caught.
        shown: print the traceback to standard error in place of writing it. `TRACEBED_TRACEBACK` does the same.
    """
    import traceback

    from tracebed.ground.version import version

    what = one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    facts = f"tracebed {version()}, Python {sys.version.split()[0]}"
    text = "".join(traceback.format_exception(error))
    if shown or os.environ.get(TRACEBACK, "0") not in ("", "0"):
        sys.stderr.write(text)
        return f"internal error: {what} ({facts}; report this line and the traceback above)"
    path = _written(f"{facts}, {sys.platform}\ncommand: {sys.argv}\n\n{text}")
    if path is None:
        return f"internal error: {what} ({facts}; report this line, and the traceback, which {TRACEBACK}=1 prints)"
    return f"internal error: {what} ({facts}; report this line and the traceback in {path})"


def _written(text: str) -> Path | None:
    """Write `text` to a new file in the folder of states, or of temporary files; None if neither can be written."""
    import tempfile

    home = os.environ.get("XDG_STATE_HOME") or f"{os.environ.get('HOME', '')}/.local/state"
    for folder in (Path(home, "tracebed"), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stamp = time.strftime("%Y%m%d-%H%M%S")
            handle, name = tempfile.mkstemp(".txt", f"tracebed-crash-{stamp}-", folder)
            with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            continue
        return Path(name)
    return None
