"""The stages of resizes through the connections between ranks: a job on this machine that goes through given sizes.

The ranks are started as in replays, and this program replaces their agents. A rank computes for a tenth of its time on
one CPU, so that more ranks than CPUs hardly disturb each other. A separate process forks the ranks, since the process
of a caller may have threads.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tracebed.benchmarks import leader
from tracebed.benchmarks.kernels import calibrate, compute
from tracebed.benchmarks.lines import decode, encode
from tracebed.benchmarks.memory import free_mib
from tracebed.benchmarks.program import Launch, Program
from tracebed.benchmarks.stages import ReconfigurationStages
from tracebed.ground.errors import InputError, TestbedError

DUTY = 0.1
GRAIN_S = 0.01  # planned time of an iteration on one rank, s
ITERATIONS = 10**6
ANSWER_S = 60.0  # longest wait for an event of a rank, s
TAIL = 2000  # number of characters of the output that an error message shows


def reconfigure(
    sizes: Sequence[int], state_mib: float, *, plain: bool = True, timeout_s: float = 300.0
) -> tuple[ReconfigurationStages, ...]:
    """Run a job through all sizes, and return the stages of each change.

    The new ranks start while the job waits for its malleability point. So decision and spawn overlap, and their sum is
    at most too large.

    Args:
        sizes: number of ranks at the start, then after each change.
        state_mib: size of the state, MiB.
        plain: whether to measure new starts of jobs with the same numbers of ranks too.
        timeout_s: longest run time, s.

    Raises:
        InputError: a parameter is invalid.
        TestbedError: the state is too large for this machine, or a rank has failed.
    """
    if not sizes or min(sizes) < 1 or not 0 <= state_mib < float("inf"):
        raise InputError(f"the sizes {list(sizes)}, or the state of {state_mib:g} MiB, are invalid")
    free = free_mib()
    if free is not None and 2 * state_mib > free:
        what = f"a state of {state_mib:g} MiB is too large: it is held twice while it moves"
        raise TestbedError(what, hint=f"this machine has {free} MiB of free memory")
    with tempfile.TemporaryDirectory(prefix="tracebed-resizes-") as folder:
        order = json.dumps({"sizes": list(sizes), "state_mib": state_mib, "plain": plain, "folder": folder})
        command = [sys.executable, "-m", __name__, order]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=timeout_s, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired as error:
            raise TestbedError(f"the job did not end within {timeout_s:g} s") from error
    if done.returncode != 0:
        raise TestbedError(f"the job has failed with status {done.returncode}: {done.stderr[-TAIL:].strip()}")
    return tuple(ReconfigurationStages(*values) for values in json.loads(done.stdout))


class _Rank:
    """A forked rank, and the agent's end of its connection."""

    def __init__(self, launch: Launch) -> None:
        self.control, theirs = socket.socketpair()
        self.control.settimeout(ANSWER_S)
        self._lines = self.control.makefile("rb")
        context = multiprocessing.get_context("fork")
        self.process: BaseProcess = context.Process(target=_become_rank, args=(launch, theirs))
        self.process.start()
        theirs.close()

    def wait_for(self, kind: str) -> dict[str, Any]:
        """Return the next event of this kind. Raises TestbedError if the rank ends or reports an error before it."""
        while line := self._lines.readline():
            message = decode(line)
            if message["type"] == kind:
                return message
            if message["type"] in ("error", "finished"):
                raise TestbedError(f"a rank has failed: {message.get('what') or message.get('reason')}")
        raise TestbedError(f"a rank ended before its event {kind!r}")

    def end(self) -> float:
        """Wait for the end of the rank, and return the time since the leader released it, s; 0: not released."""
        left = self.wait_for("finished").get("left")
        self.process.join(ANSWER_S)
        seconds = 0.0 if left is None else time.monotonic() - left
        self.close()
        return seconds

    def close(self) -> None:
        """End the rank if it still runs, and close the connection."""
        if self.process.is_alive():
            self.process.kill()
        self._lines.close()
        self.control.close()
        self.process.join(ANSWER_S)


def _become_rank(launch: Launch, control: socket.socket) -> None:
    """Run the rank in the forked process, until this program ends. Its output is the error output of the program."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.closerange(3, control.fileno())
    os.closerange(control.fileno() + 1, 2**20)
    status = leader.run(launch, control, compute)
    sys.stdout.flush()
    os._exit(status)


class _Job:
    """A job of `size` ranks."""

    def __init__(self, folder: Path, rate: float, size: int, state_mib: float) -> None:
        """Start the job, and wait until its ranks work together."""
        folder.mkdir()
        self._folder, self._requests, self._authkey = folder, 0, secrets.token_bytes(16)
        units = max(1, round(rate * GRAIN_S)) * ITERATIONS
        self._program = Program("pils", 0, units, ITERATIONS, rate, balance="dynamic", state_mib=state_mib)
        self._cpus = sorted(os.sched_getaffinity(0))
        begun = time.monotonic()
        self._ranks = [self._start(0, size)]
        self._ranks[0].wait_for("listening")
        self._ranks += [self._start(number, size) for number in range(1, size)]
        self._ranks[0].wait_for("started")
        self.start_s = time.monotonic() - begun

    def resize(self, size: int) -> ReconfigurationStages:
        """Change the number of ranks, and return the stages."""
        before = len(self._ranks)
        self._ranks += [self._start(number, size) for number in range(before, size)]
        self._requests += 1
        members = [f"n{number}" for number in range(size)]
        self._ranks[0].control.sendall(encode({"request": str(self._requests), "members": members}))
        found = self._ranks[0].wait_for("resized")["stages"]
        terminations = [rank.end() for rank in self._ranks[size:]]
        del self._ranks[size:]
        spawn_s, moved_mib = found["spawn_s"] or 0.0, found["moved_mib"] or 0.0
        termination_s = max(terminations, default=0.0)
        times = (found["decision_s"], spawn_s, found["redistribution_s"], termination_s)
        return ReconfigurationStages(before, size, *times, moved_mib)

    def close(self) -> None:
        """End all ranks."""
        for rank in self._ranks:
            rank.close()

    def _start(self, number: int, size: int) -> _Rank:
        return _Rank(
            Launch(
                job="resized",
                rank=f"n{number}",
                leader=number == 0,
                members=tuple(f"n{member}" for member in range(size)),
                family="AF_UNIX",
                address=str(self._folder / "leader"),
                authkey=self._authkey,
                cpus=(self._cpus[number % len(self._cpus)],),
                program=self._program,
                duty=DUTY,
                folder=self._folder,
                received=time.monotonic(),
            )
        )


def main(order: dict[str, Any]) -> list[ReconfigurationStages]:
    """Run the jobs of an order, and return the stages."""
    folder, sizes, rate = Path(order["folder"]), order["sizes"], calibrate()
    starts = {}
    for size in sorted({*sizes[1:]}) if order["plain"] else []:
        job = _Job(folder / f"plain-{size}", rate, size, 0.0)
        starts[size] = job.start_s
        job.close()
    job = _Job(folder / "resized", rate, sizes[0], order["state_mib"])
    try:
        changes = [size for before, size in pairwise(sizes) if size != before]
        return [job.resize(size)._replace(plain_spawn_s=starts.get(size)) for size in changes]
    finally:
        job.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))))
