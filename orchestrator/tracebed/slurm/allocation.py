"""An allocation of Slurm and its steps, by the commands of Slurm on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import IO

from tracebed.ground import system
from tracebed.ground.errors import TestbedError
from tracebed.slurm.environment import check_conf, explained

BUSY = re.compile("contact slurm controller|timed out|connection refused|temporarily|socket", re.IGNORECASE)
"""Messages of Slurm after which another attempt may succeed."""
ENDED = "Invalid job"
"""Part of the message of Slurm for a job or a step that has ended."""
FOLLOWS = re.compile(r"srun: (error: \S+: tasks? |Force Terminated|launch/)|salloc: (Pending|job \d+ queued)|Try \"")
"""Messages of Slurm that follow from the actual error."""
IMPOSSIBLE = {"BadConstraints", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit"}
"""Reasons of Slurm for a request that it cannot grant before an administrator changes its configuration."""
LOOK_S, LONGEST_LOOK_S = 2.0, 60.0
"""First and longest time between two looks at a pending request, s. The time doubles."""
END_S = 60.0
"""Time in which Slurm must end steps and allocations, s."""


class Allocations:
    """The allocations of a name, and the steps whose names begin with it. `where` is the group, for messages.

    A command of Slurm must end within `command_s`, s.
    """

    def __init__(self, name: str, where: str, command_s: float) -> None:
        """Describe the allocations without a command of Slurm. Raise InputError if the configuration is missing."""
        self.name, self.where, self.command_s = name, where, command_s
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if name == "SLURM_CONF" or not re.match("(SLURM|SALLOC|SRUN|SQUEUE|SCANCEL)_", name)
        }
        """The environment without the variables of an allocation that set options of Slurm."""
        check_conf(self.environment)

    def find(self) -> int | None:
        """Return the running allocation, which another process may have made; None: no allocation runs."""
        own = ("--me", f"--name={self.name}", "--states=RUNNING")
        found = self.slurm("squeue", "--noheader", *own, "--format=%i").split()
        return int(found[0]) if found else None

    def allocate(self, nodes: int, comment: str, options: Sequence[str], wait_s: float) -> int:
        """Wait for a new allocation, at most `wait_s`, and return its ID."""
        own = (f"--nodes={nodes}", f"--job-name={self.name}", f"--comment={comment}")
        ended, reason = threading.Event(), [""]
        looking = threading.Thread(target=self._look, args=(ended, reason), daemon=True)
        looking.start()
        try:
            # --no-kill: the loss of a node ends the jobs on it, not the allocation.
            self.call(["salloc", "--no-shell", "--no-kill", *own, *options], most_s=wait_s)
            found = self.find()
        except TestbedError as error:
            self.release()  # the request may still be pending
            if reason[0] in IMPOSSIBLE:
                what, hint = f"Slurm cannot grant {nodes} nodes: {reason[0]}", "use fewer nodes, or other `options`"
                raise TestbedError(what, where=self.where, hint=hint) from error
            if isinstance(error.__cause__, subprocess.TimeoutExpired):
                why = f": {reason[0]}" if reason[0] else ""
                what = f"Slurm has not granted {nodes} nodes within {wait_s:g} s{why}"
                hint = "raise `wait_s`, or use fewer nodes"
                raise TestbedError(what, where=self.where, hint=hint, transient=True) from error
            error.hint = error.hint or "`options` of the group has the options of salloc"
            raise
        except BaseException:
            self.release()
            raise
        finally:
            ended.set()
            looking.join()
        if found is None:
            raise TestbedError("the allocation ended at once", where=self.where, transient=True)
        return found

    def _look(self, ended: threading.Event, reason: list[str]) -> None:
        """Record why the request is pending, and cancel a request that Slurm cannot grant, until `ended`."""
        pause = LOOK_S
        while not ended.wait(pause):
            pause = min(LONGEST_LOOK_S, 2 * pause)
            with contextlib.suppress(TestbedError):  # the next look may succeed
                own = ("--me", f"--name={self.name}", "--states=PENDING")
                reason[0] = self.slurm("squeue", "--noheader", *own, "--format=%r").strip() or reason[0]
                if reason[0] in IMPOSSIBLE:
                    self.stop_waiting()

    def stop_waiting(self) -> None:
        """Cancel the pending requests for an allocation, so that `allocate` fails."""
        self.slurm("scancel", "--me", f"--name={self.name}", "--state=PENDING")

    def describe(self, job: int) -> tuple[list[str], float | None]:
        """Return the hosts of a running allocation, and the time left, s; None: unlimited."""
        shown = self.slurm("squeue", "--noheader", f"--jobs={job}", "--format=%T|%N|%L", missing="")
        state, names, left = (shown.strip() or "unknown to Slurm||").split("|")
        if state != "RUNNING":
            hint = "`squeue --me` lists your allocations; without `job`, tracebed makes one"
            raise TestbedError(f"allocation {job} is {state}, not RUNNING", where=self.where, hint=hint)
        return self.slurm("scontrol", "show", "hostnames", names).split(), seconds(left)

    def address(self, host: str) -> str:
        """Return the name or address of a host of the allocation in the network."""
        found = re.search(r"\bNodeAddr=(\S+)", self.slurm("scontrol", "--oneliner", "show", "node", host))
        return found[1] if found else host

    def step(self, job: int, name: str, *hosts: str) -> list[str]:
        """Return the beginning of a command that runs as a step, with one process on each of the hosts."""
        places = (f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", f"--nodelist={','.join(hosts)}")
        # --overlap: agents and commands share the CPUs of the allocation. The agent pins its ranks itself.
        options = ("--overlap", "--mpi=none", "--mem=0", "--kill-on-bad-exit=0", *self._unbound)
        return ["srun", f"--jobid={job}", f"--job-name={self.name}-{name}", *places, *options]

    @cached_property
    def _unbound(self) -> list[str]:
        """The option that binds a step to no CPU, if Slurm binds steps. Otherwise, Slurm warns of the option."""
        binds = re.search(r"^TaskPlugin\s*=.*(affinity|cgroup)", self.slurm("scontrol", "show", "config"), re.MULTILINE)
        return ["--cpu-bind=none"] if binds else []

    def end_steps(self, job: int, node: str = "", stamp: str = "") -> None:
        """Kill the steps `NODE-STAMP` of a node until a stamp, or all steps of this name, and wait for their end.

        A step may have been started by a controller that was killed.
        """
        until = system.monotonic() + END_S
        while steps := self._steps(job, node, stamp):
            with contextlib.suppress(TestbedError):  # some have ended meanwhile
                self.slurm("scancel", "--signal=KILL", *steps)
            if system.monotonic() > until:
                what = f"the steps {', '.join(steps)} have not ended within {END_S:g} s"
                raise TestbedError(what, where=self.where, transient=True)
            system.sleep(0.1)

    def _steps(self, job: int, node: str, stamp: str) -> list[str]:
        """Return the IDs of the steps of a node that were started until a stamp, or of all steps."""
        found = []
        for line in self.slurm(
            "squeue", "--steps", "--noheader", f"--jobs={job}", "--format=%i|%j", missing=""
        ).splitlines():
            step, _, name = line.strip().partition("|")
            place, _, begun = name.removeprefix(f"{self.name}-").rpartition("-")
            if name.startswith(f"{self.name}-") and (not node or (place == node and begun <= stamp)):
                found.append(step)
        return found

    def release(self) -> None:
        """Cancel the allocations, running or pending, and wait for their end."""
        own = ("--me", f"--name={self.name}")
        until = system.monotonic() + END_S
        while self.slurm("squeue", "--noheader", *own, "--format=%i").split():
            self.slurm("scancel", *own)
            if system.monotonic() > until:
                what = f"the allocation {self.name} has not ended within {END_S:g} s"
                raise TestbedError(what, where=self.where, transient=True)
            system.sleep(0.2)

    def slurm(self, *command: str, missing: str | None = None) -> str:
        """Run a command of Slurm and return its output, or `missing` if the job has ended."""
        try:
            return self.call(command).decode(errors="replace")
        except TestbedError as error:
            if missing is not None and ENDED in error.what:
                return missing
            raise explained(error) from error

    def call(
        self,
        command: Sequence[str],
        data: bytes = b"",
        most_s: float | None = None,
        output: IO[bytes] | None = None,
    ) -> bytes:
        """Run a command on this machine until its end, and return its output.

        `most_s` (default: `command_s`) is the time in which the command ends, s, or the file `output` grows.
        """
        program, most_s = command[0], most_s or self.command_s
        try:
            done = self._run(command, data, most_s, output)
        except subprocess.TimeoutExpired as error:
            what = f"{program} has not ended within {most_s:g} s"
            raise TestbedError(what, where=self.where, transient=True) from error
        except FileNotFoundError as error:
            hint = "run tracebed where the commands of Slurm are installed"
            raise TestbedError(f"the program {program} is missing", where=self.where, hint=hint) from error
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            messages = [line for line in lines if not FOLLOWS.match(line)] or lines
            what = messages[-1] if messages else f"{program} failed with status {done.returncode}"
            raise TestbedError(what, where=self.where, transient=bool(BUSY.search(what)))
        return done.stdout or b""

    def _run(
        self, command: Sequence[str], data: bytes, most_s: float, output: IO[bytes] | None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command until its end. Raises TimeoutExpired if it takes too long."""
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=self.environment,
        ) as process:
            size = 0
            try:
                while True:
                    try:
                        found, errors = process.communicate(data, timeout=most_s)
                        return subprocess.CompletedProcess(command, process.returncode, found, errors)
                    except subprocess.TimeoutExpired:
                        before, size = size, 0 if output is None else os.fstat(output.fileno()).st_size
                        if size <= before:
                            raise
                        data = b""  # it is being sent already
            except BaseException:
                process.kill()
                raise


def seconds(text: str) -> float | None:
    """Return a time left as squeue prints it (`1-02:03:04`, `5:00`), s; None: unlimited or unknown."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if found is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)
