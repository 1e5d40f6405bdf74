"""`tracebed watch`: the live view of a replay, from another process than the replay."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.messages import Progress, current, emit, progress
from tracebed.cli.options import OutputPath, gathered, json_option, option, shared
from tracebed.ground.display import json_values
from tracebed.ground.errors import ExitCode
from tracebed.ground.outputs import METRICS

if TYPE_CHECKING:
    from tracebed.api import ReplayView

LEAST_S = 0.1
"""Shortest time between two pictures, s."""
REFRESH_S = 1.0
"""Time between two pictures on a terminal, s."""
LOG_S = 10.0
"""Time between two lines if the output is not a terminal, s."""


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

    RUN is the output folder (-o) of the replay, its working folder, or a finished run. The command must run on the
    machine of the replay. It only reads the journal of the replay. On a terminal, it draws a picture every second;
    otherwise, it prints a line every ten seconds. It ends with the replay.

    \b
    Example:
      tracebed watch runs/real
    """
    import tracebed.api as tb

    metrics, once = viewing.metrics, viewing.interval == 0
    with contextlib.ExitStack() as stack:
        follower = stack.enter_context(contextlib.closing(tb.JournalFollower(run, wait=viewing.wait)))
        published = None
        if metrics is not None:
            published = tb.OpenMetrics(*_port_and_file(metrics))
            stack.callback(published.close)
        terminal = sys.stdout.isatty() and not as_json and not once
        show = stack.enter_context(_screen() if terminal else _printed(as_json))
        usual = REFRESH_S if terminal or published else LOG_S
        period = max(viewing.interval, LEAST_S) if viewing.interval else usual
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


def _port_and_file(metrics: int | Path) -> tuple[int | None, Path | None]:
    """Return the port and the file of OpenMetrics, one of which is None."""
    return (metrics, None) if isinstance(metrics, int) else (None, metrics)


@contextlib.contextmanager
def _screen() -> Iterator[Callable[[ReplayView], None]]:
    """Yield a function that draws the picture of a view on the terminal, over the last picture."""
    from rich.console import Console
    from rich.live import Live

    import tracebed.api as tb

    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda view: live.update(tb.view_picture(view, console.width, console.height - 1), refresh=True)


@contextlib.contextmanager
def _printed(as_json: bool) -> Iterator[Callable[[ReplayView], None]]:
    """Yield a function that prints a view as one line: text with the time of day, or JSON."""
    import json

    import tracebed.api as tb

    def show(view: ReplayView) -> None:
        if as_json:
            click.echo(json.dumps({"schema": "tracebed-watch/1"} | json_values(tb.view_snapshot(view))))
        else:
            click.echo(f"{time.strftime('%H:%M:%S')} {tb.view_line(view)}")
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
