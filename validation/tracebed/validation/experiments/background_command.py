"""A command that runs beside a repetition, with a supervisor that kills all its processes.

The supervisor is a separate process: `python -m tracebed.validation.experiments.background_command COMMAND`. It starts
the command with the shell, and kills the command and all descendants when its standard input is closed. So no process
of the command remains if the campaign itself is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tracebed.ground.errors import TestbedError

if TYPE_CHECKING:  # a supervisor is started for each run of a command, and must start fast
    from pathlib import Path

    import psutil

PATIENCE_S = 10.0  # longest time to wait until all processes of a command have ended, wall s
_PR_SET_CHILD_SUBREAPER = 36


class BackgroundCommand:
    """A running shell command, as a context manager: its processes are killed at the end of the block."""

    def __init__(self, command: str, log: Path, folder: Path) -> None:
        self.command, self.log, self.folder = command, log, folder

    def __enter__(self) -> Self:
        """Start the command in a new session, so that Ctrl-C does not signal it."""
        with self.log.open("wb") as output:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", __name__, self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=self.folder,
                start_new_session=True,
            )
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as started:
            started.read()  # closed as soon as the command has been started
        return self

    def check(self) -> None:
        """Raise TestbedError if the command has ended with another status than 0."""
        if status := self._supervisor.poll():
            raise TestbedError(f"`{self.command}` failed with status {status}", where=str(self.log))

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit status of the command when it has ended, or None if it runs longer than `timeout_s`."""
        try:
            return self._supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill all processes of the command."""
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()
        try:
            self._supervisor.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()


def supervise(command: str) -> int:
    """Run `command` until it ends or standard input is closed (status 0); then kill its remaining processes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # descendants of ended processes become children of this one
    process = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=sys.stderr)
    os.close(sys.stdout.fileno())  # the command has been started
    closed = threading.Event()

    def watch() -> None:
        while os.read(0, 4096):
            pass
        closed.set()
        kill_descendants()

    threading.Thread(target=watch, daemon=True).start()
    status = process.wait()
    kill_descendants()
    return 0 if closed.is_set() else status if status >= 0 else 128 - status


def kill_descendants() -> None:
    """Kill the descendants of this process until none remains. Several passes are needed: descendants may fork."""
    # Most commands leave none. This process is a subreaper, so without children it has no descendants either.
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    import psutil

    deadline = time.monotonic() + PATIENCE_S / 2
    while (remaining := descendants(psutil.Process())) and time.monotonic() < deadline:
        for process in remaining:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(remaining, timeout=PATIENCE_S / 2)


def descendants(ancestor: psutil.Process) -> list[psutil.Process]:
    """Return the descendants of a process that have not ended, also those in other sessions."""
    import psutil

    ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    found = []
    for process in ancestor.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() not in ended:
                found.append(process)
    return found


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1]))
