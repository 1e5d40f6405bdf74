"""The folder of a provider on a machine of a testbed, for the installation of tracebed and the files of jobs.

The work on the machine is done by `on_node.py`, which the provider runs with a Python of the machine.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tempfile
import threading
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, Protocol

from tracebed.ground import system
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds import on_node
from tracebed.orchestrator.testbeds.provider import AGENT_MODULE
from tracebed.orchestrator.testbeds.replay_folder import unpack
from tracebed.orchestrator.testbeds.wheelhouse import wheel

OLDEST_KERNEL = (4, 18)  # oldest accepted Linux kernel: the kernel of Red Hat Enterprise Linux 8
NEEDED_MIB = 64  # free space that an installation and the files of some jobs need, MiB
DIGITS = 16  # number of hexadecimal digits that identify a wheel


class CommandRunner(Protocol):
    """A function that runs a command on a machine. Raises TestbedError if the command fails."""

    def __call__(self, arguments: Sequence[str], data: bytes = b"", output: IO[bytes] | None = None) -> bytes:
        """Run the command with standard input `data`, and return its standard output, or write it to the file `output`.

        A command that writes to a file has a time limit only for pauses between bytes.
        """


class WheelCache:
    """The wheel for each platform, made when it is first needed."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, bytes]] = {}
        self._lock = threading.Lock()

    def of(self, platform: str) -> tuple[str, bytes]:
        """Return the digest and the content of the wheel for a platform."""
        with self._lock:
            if platform not in self._made:
                with tempfile.TemporaryDirectory(prefix="tracebed-") as folder:
                    content = wheel(Path(folder), platform).read_bytes()
                self._made[platform] = hashlib.sha256(content).hexdigest()[:DIGITS], content
            return self._made[platform]


class Installation:
    """The folder of a provider on a machine, which `where` names in messages (`host web`).

    A relative `folder` starts in the home of the user on the machine. `python` is the Python there, `replay` the name
    of the folder of this replay there.
    """

    def __init__(self, where: str, folder: str, python: str, replay: str, command: CommandRunner) -> None:
        self.where, self.folder, self.python, self.replay = where, folder, python, replay
        self._command = command
        self._lock = threading.Lock()
        self._facts: dict[str, Any] = {}

    def up(self, wheels: WheelCache, making: Callable[[], None] = lambda: None) -> bool:
        """Install tracebed, unless it is installed, after a call of `making`. Return whether it was installed now."""
        with self._lock:
            if self._facts:
                return False
            facts = json.loads(self._on_node("probe"))
            self._check(facts)
            digest, content = wheels.of(facts["platform"])
            facts["environment"] = f"env-{digest}-{'.'.join(facts['python'].split('.')[:2])}"
            missing = facts["environment"] not in facts["environments"]
            if missing:
                making()
                self._on_node("install", digest, data=content)
            self._facts = facts
            return missing

    def _check(self, facts: dict[str, Any]) -> None:
        """Raise TestbedError if tracebed cannot be installed."""
        kernel = tuple(int(number) for number in re.findall(r"\d+", facts["kernel"])[:2])
        if facts["system"] != "linux" or kernel < OLDEST_KERNEL:
            oldest = ".".join(map(str, OLDEST_KERNEL))
            what = f"its system is {facts['system']} {facts['kernel']}, not Linux {oldest} or newer"
            raise TestbedError(what, where=self.where)
        if not facts["writable"]:
            raise TestbedError(f"{facts['folder']} cannot be written", where=self.where, hint="set `folder:`")
        if facts["free_mib"] < NEEDED_MIB:
            what = f"the disk of {facts['folder']} has {facts['free_mib']} MiB of free space, less than {NEEDED_MIB}"
            raise TestbedError(what, where=self.where, hint="set `folder:` to a folder on another disk")

    def agent(self, node: str, stamp: str, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs the agent of a node, after `up`. The `stamp` is greater than earlier ones."""
        mark = "\n".join([self._facts["folder"], node, stamp])
        python = f"{self._facts['folder']}/{self._facts['environment']}/bin/python"
        variables = [f"{on_node.MARK}={mark}", f"TMPDIR={self._facts['temporary']}"]
        return ["env", *variables, python, "-P", "-m", AGENT_MODULE, *arguments]

    @property
    def spool(self) -> str:
        """The folder for files of jobs and agents, after `up`."""
        return f"{self._facts['folder']}/{self.replay}"

    @property
    def address(self) -> str | None:
        """The address of the machine to which the connection leads, after `up`; None: unknown."""
        address: str | None = self._facts["address"]
        return address

    def end(self, node: str = "", stamp: str = "") -> None:
        """Kill the commands of a node that were started until `stamp`, or all commands of the folder."""
        self._on_node("end", *([node, stamp] if node else []))

    def remove(self) -> str:
        """Kill the commands of the folder, and remove the folder if tracebed made it; return it, or an empty text."""
        removed = self._on_node("remove").decode()
        with self._lock:
            self._facts = {}
        return removed

    def fetch(self, node: str, target: Path) -> None:
        """Copy the files of the jobs of a node to the folder `target`."""
        try:
            with tempfile.TemporaryFile(dir=target) as archive:
                self._command([self.python, "-I", "-c", program(), "pack", self.spool, node], output=archive)
                archive.seek(0)
                unpack(archive, node, target)
        except OSError as error:
            what = f"the files of the jobs of node {node} cannot be written to {target}: {error.strerror}"
            raise TestbedError(what, where=self.where) from error

    def _on_node(self, verb: str, *arguments: str, data: bytes = b"") -> bytes:
        try:
            return self._command([self.python, "-I", "-c", program(), verb, self.folder, *arguments], data)
        except TestbedError as error:
            if error.hint is None and (
                "not found" in error.what or "No such file" in error.what
            ):  # by the shell of the machine
                hint = "install Python 3.11 or newer there, or set `python:` to its path"
                raise TestbedError(error.what, where=error.where or self.where, hint=hint) from error
            raise


_stamps = itertools.count()
_started_ns = int(1e9 * system.time())


def next_stamp() -> str:
    """Return a text that is greater than all earlier results in this process, even if the clock is set back."""
    return f"{_started_ns + next(_stamps):020d}"


def program() -> str:
    """Return the text of `on_node.py`, which is run on machines."""
    return files(on_node.__package__).joinpath("on_node.py").read_text(encoding="utf-8")
