"""Stop a process of the replay that this command runs beside, and let it continue.

    beside: python3 stop.py rank --after 1.5 --for 2

The command is for the key `beside` of a testbed in an experiment file: it finds `tracebed experiment` among its
ancestors, and stops only processes that descend from it. Only the Python standard library is used.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

SUPERVISOR = "tracebed.validation.experiments.background_command"
AGENT = "tracebed.orchestrator.testbeds.agent"


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    command: str


def processes() -> dict[int, Process]:
    """Return all processes that have not ended, by their id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # the process has ended
            continue
        if state not in "ZX":
            found[int(folder.name)] = Process(int(folder.name), int(parent), command)
    return found


def experiment() -> int:
    """Return the id of the command: the parent of the supervisor among the ancestors of this process."""
    found, pid = processes(), os.getpid()
    while pid in found:
        if SUPERVISOR in found[pid].command:
            return found[pid].parent
        pid = found[pid].parent
    sys.exit("stop.py does not run beside a repetition of `tracebed experiment`")


def target(kind: str, replayer: int) -> int | None:
    """Return the process to stop, or None while no such process runs."""
    found = processes()
    agents = sorted(item.pid for item in found.values() if item.parent == replayer and AGENT in item.command)
    ranks = sorted(item.pid for item in found.values() if item.parent in agents)
    if not ranks:  # no job has started
        return None
    return {"replayer": replayer, "agent": agents[0], "rank": ranks[-1]}[kind]


def wait_for(kind: str, replayer: int, patience_s: float = 60.0) -> int:
    """Wait until a job runs, and return the process to stop."""
    deadline = time.monotonic() + patience_s
    while (pid := target(kind, replayer)) is None:
        if time.monotonic() > deadline:
            sys.exit(f"no {kind} of the replay has been found")
        time.sleep(0.01)
    return pid


def is_stopped(pid: int) -> bool:
    """Send a process the signal to stop. Return whether it has stopped; a process that ends does not."""
    try:
        os.kill(pid, signal.SIGSTOP)
        while (state := Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) not in "TZX":
            time.sleep(0.001)
    except OSError:  # it has ended
        return False
    return state == "T"


def main() -> None:
    parser = argparse.ArgumentParser(description="Stop a process of the replay that this command runs beside.")
    parser.add_argument("kind", choices=["rank", "agent", "replayer"])
    parser.add_argument("--after", type=float, default=1.0, help="wall time after the start of the first job, s")
    parser.add_argument("--for", type=float, default=2.0, dest="duration", help="wall time for which it is stopped, s")
    arguments = parser.parse_args()
    replayer = experiment()
    wait_for("rank", replayer)
    time.sleep(arguments.after)
    while not is_stopped(pid := wait_for(arguments.kind, replayer)):
        time.sleep(0.01)
    try:
        time.sleep(arguments.duration)
    finally:
        os.kill(pid, signal.SIGCONT)
    print(f"stopped the {arguments.kind} {pid} for {arguments.duration:g} s")  # noqa: T201


if __name__ == "__main__":
    main()
