"""The watchdog of a command: a process that starts the command, and ends all processes of the command.

The watchdog is a child of the rank, and the parent of the command and of its orphaned processes. The watchdog ends
these processes when the command has ended, when the rank closes the connection, and when the rank is killed. The
command is in the process group of the rank, so that it receives the signals of the agent to the rank. The watchdog is
not in this group.

Messages from the rank:  start (arguments, environment, folder, memory_mib)
Messages to the rank:    started (pid), ended (status, reason)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tracebed.benchmarks.affinity import processes_of
from tracebed.benchmarks.lines import decode, encode
from tracebed.benchmarks.memory import MIB
from tracebed.ground.errors import print_traceback

MEMORY_S = 0.1
"""Time between two checks of the memory of a command, s."""
LINE = 2**22
"""Longest message, bytes."""
_PR_SET_CHILD_SUBREAPER = 36


class Watchdog:
    """The watchdog of one command, in the process of the rank.

    Attributes:
        pid: its process.
        link: the connection to the watchdog, which closes it after the end of the command.
    """

    def __init__(self) -> None:
        """Fork the watchdog. No other thread may run."""
        group = os.getpgrp()
        _become_subreaper()  # the watchdog may be killed
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            _become_watchdog(theirs, group)
        theirs.close()

    def start(self, command: Mapping[str, Any]) -> None:
        """Start a command. Its messages follow."""
        with contextlib.suppress(BrokenPipeError):  # the watchdog was killed: `receive` returns None
            self.link.send(encode(command))

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None: the watchdog has ended."""
        try:
            line = self.link.recv(LINE)
        except OSError:
            return None
        return decode(line) if line else None

    def close(self) -> None:
        """End all processes of the command, and wait until they have ended."""
        self.link.close()
        os.waitpid(self.pid, 0)
        end_children()


def _become_watchdog(link: socket.socket, group: int) -> NoReturn:
    """Turn the forked child into the watchdog. It ends with `os._exit`, because the outer frames belong to the rank."""
    try:
        os.setpgid(0, 0)
        for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if descriptor > 2 and descriptor != link.fileno():
                os.closerange(descriptor, descriptor + 1)
        _become_subreaper()
        _watch_command(link, group)
    except BaseException as error:
        print_traceback(error)
        raise
    finally:
        end_children()
        os._exit(0)


def _become_subreaper() -> None:
    """Make this process the parent of orphaned descendants."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _watch_command(link: socket.socket, group: int) -> None:
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken)
    line = link.recv(LINE)
    if not line:
        return
    command = decode(line)
    killed = _kills()
    try:
        process = subprocess.Popen(
            command["arguments"],
            env=command["environment"],
            cwd=command["folder"],
            stdin=subprocess.DEVNULL,
            process_group=group,
        )
    except (OSError, ValueError) as error:
        link.send(encode({"type": "ended", "status": None, "reason": f"the command cannot be started: {error}"}))
        return
    link.send(encode({"type": "started", "pid": process.pid}))
    limit, reason = command["memory_mib"], None
    while True:
        ready = select.select([link.fileno(), wake], [], [], MEMORY_S if limit else None)[0]
        if link.fileno() in ready:  # the rank has closed the connection, or was killed
            return
        if wake in ready:
            os.read(wake, 4096)
        if process.poll() is not None:
            break
        if limit and (used := memory_mib()) > limit:
            reason = f"out of memory: the command used {used:.0f} MiB of {limit} MiB"
            break
    end_children()
    status = process.wait()
    if reason is None and status == -signal.SIGKILL and _kills() > killed:
        reason = "out of memory: the kernel of the node has killed the command"
    link.send(encode({"type": "ended", "status": status, "reason": reason}))


def end_children() -> None:
    """Kill all descendants of this process, which is a subreaper, and wait for their end."""
    signal.set_wakeup_fd(-1)
    while True:
        for process in processes_of(os.getpid())[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def memory_mib() -> float:
    """Return the memory of all descendants of this process, MiB. Shared memory is counted for each of them."""
    pages = 0
    for process in processes_of(os.getpid())[1:]:
        with contextlib.suppress(OSError):  # it has ended
            pages += int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def _kills() -> int:
    """Return the number of processes that the kernel has killed for lack of memory."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
