"""The provider `local`: nodes that are sets of this machine's CPUs, or emulated. Agents are child processes."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds.nodes import Group, Node
from tracebed.orchestrator.testbeds.provider import AGENT_MODULE
from tracebed.orchestrator.testbeds.replay_folder import agent_log, append_to
from tracebed.orchestrator.testbeds.settings import ProviderSettings

AGENT = [sys.executable, "-P", "-m", AGENT_MODULE]
END_S = 1.0  # time in which an agent that has closed its output ends, s
# Time in which a killed process must end, s. A process that waits for a disk does not end before the disk answers.
KILL_S = 30.0
EXHAUSTED = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # errors after which a retry may succeed


class LocalChannel:
    """A child process, and the pipes to it. Only the user can read `log`, the file of its standard error."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start the process. Raises OSError if that fails."""
        self.log = log
        with append_to(log) as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                bufsize=0,
                start_new_session=True,  # so that Ctrl-C at a terminal reaches only the replayer
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self.writer, self.reader = self._stdin.fileno(), self._stdout.fileno()

    def poll(self) -> int | None:
        """Return the exit status."""
        return self.process.poll()

    def exit_reason(self) -> str:
        """Return how the process ended, and the last line of its log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        status = self.process.poll()
        how = "closed its output" if status is None else f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        *_, last = ["", *self.errors()]
        return f"{how}: {last}" if last else how

    def errors(self) -> list[str]:
        """Return the lines of the standard error of the process."""
        return self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()

    def close(self) -> None:
        """Close the input of the process."""
        self._stdin.close()

    def kill(self) -> None:
        """Kill the process and its group, wait for its end, at most `KILL_S`, and close the pipes."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # the process has ended meanwhile
                os.killpg(self.process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(KILL_S)
        self._stdin.close()
        self._stdout.close()


class UnpreparedNodes:
    """Nodes on this machine that need no preparation: the common part of providers."""

    fan_out = 4
    made = False
    folder: Path

    def up(self) -> None:
        """Do nothing."""

    def down(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def spool(self, node: Node) -> str:
        """Return the folder of the replay."""
        return str(self.folder.absolute())

    def fetch(self, node: Node, target: Path) -> None:
        """Do nothing: if jobs write files, the files are here already."""

    def bind(self, node: Node) -> str | None:
        """Return the loopback address."""
        return "127.0.0.1"


class LocalProvider(UnpreparedNodes):
    """Nodes of this machine."""

    name = "local"
    Settings = ProviderSettings
    shared = True

    def __init__(self, group: Group, folder: Path, on_step: Callable[[str], None]) -> None:
        self.group, self.folder = group, folder
        self.command = AGENT

    def run(self, node: Node, arguments: Sequence[str]) -> LocalChannel:
        """Start an agent as a child process."""
        try:
            return LocalChannel([*self.command, *arguments], agent_log(self.folder, node))
        except OSError as error:
            raise TestbedError(
                f"cannot start agents: {error.strerror}",
                where=error.filename,
                hint="raise the limits on processes and open files (ulimit -a), or use fewer nodes",
                transient=error.errno in EXHAUSTED,
            ) from error
