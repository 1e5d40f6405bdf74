"""`tracebed watch`: the live view of a replay, from another process than the replay."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from tracebed.cli.messages import Progress, current, emit, progress
from tracebed.cli.options import OutputPath, gathered, json_option, option, shared
from tracebed.ground.display import json_values, time_text
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.outputs import METRICS

if TYPE_CHECKING:
    from tracebed.api import ExperimentProgress, OpenMetrics, ReplayView

LEAST_S = 0.1
"""Shortest time between two pictures, s."""
REFRESH_S = 1.0
"""Time between two pictures on a terminal, s."""
LOG_S = 10.0
"""Time between two lines if the output is not a terminal, s."""


class Show(Protocol):
    """What shows the view of a replay, and the state of its experiment, if it is part of one."""

    def __call__(self, view: ReplayView | None, state: ExperimentProgress | None = None) -> None:
        """Show both."""


class MetricsTarget(OutputPath):
    """A click type: a port of this machine, or the path of a file."""

    name = "port or file"

    def __init__(self) -> None:
        super().__init__(METRICS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a number as a port, and anything else as a path, or fail as click does."""
        if str(value).isdecimal():
            return click.IntRange(1, 65535).convert(value, param, ctx)
        return super().convert(value, param, ctx)


metrics_option = click.option(
    "--metrics",
    type=MetricsTarget(),
    metavar="PORT|FILE",
    help="OpenMetrics for Prometheus: serve them on this port of 127.0.0.1, or write them to this file every second.",
)


@dataclass(frozen=True)
class Viewing:
    """How a replay is watched."""

    wait: bool = option(help="Wait up to a minute until a replay to RUN begins.")
    interval: float | None = option(
        type=click.FloatRange(0),
        metavar="SECONDS",
        help="Time between two pictures or lines; 0: show one and exit.",
    )
    metrics: int | Path | None = shared(metrics_option)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@gathered("viewing", Viewing)
@json_option
def watch(run: Path, viewing: Viewing, as_json: bool) -> ExitCode:
    """Show a replay while it runs: queue, jobs on the nodes, lateness, health, faults, time left.

    RUN is the output folder (-o) of the replay, its working folder, or a finished run; or that of an experiment with
    replays: its cells, the replay that runs now, and the expected time left. The command must run on the machine of the
    replay. It only reads the journal of the replay. On a terminal, it draws a picture every second;
    otherwise, it prints a line every ten seconds. It ends with the replay.

    \b
    Example:
      tracebed watch runs/real
    """
    import tracebed.api as tb

    once = viewing.interval == 0
    with contextlib.ExitStack() as stack:
        if (folder := tb.experiment_at(run)) is not None:
            _watch_experiment(folder, viewing, stack, as_json=as_json)
            return ExitCode.OK
        follower = stack.enter_context(contextlib.closing(tb.JournalFollower(run, wait=viewing.wait)))
        show, published, period = _outputs(viewing, stack, as_json=as_json)
        while True:
            going = follower.read() and not once
            view = follower.view
            if view is not None and view.now == view.now:
                show(view)
                if published:
                    published.update(view)
            if not going:
                break
            follower.sleep(period)
    if view is None:
        emit(f"tracebed: {run}: the replay ended before its first job")
    elif view.status == "stopped":
        todo = "the command of the replay with --resume continues it, `tracebed replay --recover` makes a run of it"
        emit(f"tracebed: {follower.source.folder}: the replay was killed or has failed: {todo}")
    return ExitCode.OK


def _outputs(viewing: Viewing, stack: contextlib.ExitStack, *, as_json: bool) -> tuple[Show, OpenMetrics | None, float]:
    """Return what shows a view, what publishes it, and the time between two pictures, s."""
    import tracebed.api as tb

    published = None
    if viewing.metrics is not None:
        published = tb.OpenMetrics(*_port_and_file(viewing.metrics))
        stack.callback(published.close)
    terminal = sys.stdout.isatty() and not as_json and viewing.interval != 0
    usual = REFRESH_S if terminal or published else LOG_S
    show = stack.enter_context(_screen() if terminal else _printed(as_json))
    return show, published, max(viewing.interval, LEAST_S) if viewing.interval else usual


def _watch_experiment(folder: Path, viewing: Viewing, stack: contextlib.ExitStack, *, as_json: bool) -> None:
    """Show the replays of an experiment until it ends."""
    import tracebed.api as tb

    show, published, period = _outputs(viewing, stack, as_json=as_json)
    followers: dict[Path, tb.JournalFollower] = {}  # of the replay that runs now
    while True:
        state = tb.ExperimentProgress.read(folder)
        if state.run not in followers:
            for follower in followers.values():
                follower.close()
            followers.clear()
            if state.run is not None:
                with contextlib.suppress(InputError):  # it has ended since
                    followers[state.run] = tb.JournalFollower(state.run)
        for follower in followers.values():
            follower.read()
        view = next((each.view for each in followers.values()), None)
        view = view if view is not None and view.now == view.now else None
        show(view, state)
        if published and view is not None:
            published.update(view)
        if viewing.interval == 0 or not state.locked:
            break
        time.sleep(period)
    for follower in followers.values():
        follower.close()


def _port_and_file(metrics: int | Path) -> tuple[int | None, Path | None]:
    """Return the port and the file of OpenMetrics, one of which is None."""
    return (metrics, None) if isinstance(metrics, int) else (None, metrics)


@contextlib.contextmanager
def _screen() -> Iterator[Show]:
    """Yield a function that draws the picture of a view on the terminal, over the last picture."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    import tracebed.api as tb

    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def show(view: ReplayView | None, state: ExperimentProgress | None = None) -> None:
            lines = [] if state is None else [state.line(view), *map(_cell_line, state.cells())]
            shown: list[Any] = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
            if view is not None:
                shown.append(tb.view_picture(view, console.width, console.height - 1 - len(lines)))
            live.update(Group(*shown), refresh=True)

        yield show


def _cell_line(row: tuple[str, int, int, int, bool, float | None]) -> str:
    """Return the state of a cell of an experiment as a line: `  w-easy: 3 of 5, runs, 12 s each`."""
    cell, done, planned, failed, running, mean_s = row
    parts = [f"{done} of {planned}", *([f"{failed} failed"] if failed else []), *(["runs"] if running else [])]
    return f"  {cell}: {', '.join([*parts, *([f'{time_text(mean_s)} each'] if mean_s is not None else [])])}"


@contextlib.contextmanager
def _printed(as_json: bool) -> Iterator[Show]:
    """Yield a function that prints a view as one line: text with the time of day, or JSON."""
    import json

    import tracebed.api as tb

    def show(view: ReplayView | None, state: ExperimentProgress | None = None) -> None:
        if as_json:
            own = {} if view is None else tb.view_snapshot(view)
            about = {} if state is None else {"experiment": state.to_json(view)}
            click.echo(json.dumps({"schema": "tracebed-watch/1"} | json_values(about | own)))
        else:
            texts = [*([] if state is None else [state.line(view)]), *([] if view is None else [tb.view_line(view)])]
            click.echo(f"{time.strftime('%H:%M:%S')} {': '.join(texts)}")
        sys.stdout.flush()

    yield show


@dataclass(frozen=True)
class Live:
    """The live view of a replay."""

    live: bool | None = option(
        "--live/--no-live", default=None, help="Draw the replay while it runs.  [default: on a terminal]"
    )
    metrics: int | Path | None = shared(metrics_option)

    @contextlib.contextmanager
    def shown(self, output: Path, what: str, total: int) -> Iterator[Progress]:
        """Show a replay while the block runs, by `tracebed watch` in a process of low priority.

        A separate process does not delay the loop of the replay. Without a picture (by default, if standard error is
        not a terminal or messages are quiet), a progress bar over `total` jobs is shown.
        """
        live = (sys.stderr.isatty() and not current().quiet) if self.live is None else self.live
        with contextlib.ExitStack() as stack:
            if live or self.metrics is not None:
                stack.enter_context(_watcher(output, live=live, metrics=self.metrics))
            yield Progress(lambda done: None) if live else stack.enter_context(progress(what, total))


@contextlib.contextmanager
def _watcher(output: Path, *, live: bool, metrics: int | Path | None) -> Iterator[None]:
    """Run `tracebed watch` while the block runs."""
    import subprocess

    if metrics is not None:
        import tracebed.api as tb

        tb.OpenMetrics(*_port_and_file(metrics)).close()  # reports a missing package or a port that is in use now
    words = ["nice", "-n", "19", sys.executable, "-P", "-m", __name__, str(output), "--wait"]
    words += ["--metrics", str(metrics)] if metrics is not None else []
    watcher = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if live else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if live else None,
        start_new_session=True,  # Ctrl-C must reach only the replay; the watcher ends with the replay
    )
    try:
        yield
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            watcher.wait(2 * REFRESH_S)
        if watcher.poll() is None:
            watcher.terminate()
            watcher.wait()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    watch()
