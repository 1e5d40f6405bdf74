"""The provider `slurm`: nodes of an allocation of Slurm. Agents are job steps, one on each node.

Slurm only allocates the nodes. The jobs of the replay are processes of the agents; Slurm does not schedule them. The
commands of Slurm run on this machine, which may be a login node or a node of the allocation.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Annotated

from pydantic import Field, field_validator

from tracebed.ground import system
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds.installation import Installation, WheelCache, next_stamp, program
from tracebed.orchestrator.testbeds.launcher import carry_out
from tracebed.orchestrator.testbeds.local import AGENT, LocalChannel
from tracebed.orchestrator.testbeds.nodes import Group, Node
from tracebed.orchestrator.testbeds.provider import NotReadyError
from tracebed.orchestrator.testbeds.replay_folder import agent_log, name_on_nodes, note_making
from tracebed.orchestrator.testbeds.settings import ProviderSettings
from tracebed.slurm.allocation import Allocations

OWN_OPTIONS = ("job-name", "no-shell", "nodes", "jobid", "no-kill")
"""The options of salloc that the provider sets."""


class SlurmSettings(ProviderSettings):
    """The keys of a group of provider `slurm`."""

    job: Annotated[int, Field(ge=1)] | None = None
    """ID of an existing allocation, which is not released. Default: `SLURM_JOB_ID`, else a new one, by salloc."""
    options: list[str] = Field(default_factory=list)
    """Options of salloc for a new allocation, for example `--partition=main`, `--time=60`, `--exclusive`."""
    wait_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600.0
    """Time to wait for a new allocation, s."""
    folder: str | None = None
    """Folder on the nodes for the installation and the files of jobs. Default: nothing is installed, because the
    nodes share the file system with this machine, with its Python and tracebed."""
    python: str = "python3"
    """With `folder`: Python 3.11 or newer on the nodes, a name or a path."""
    listen: bool = False
    """Whether ranks may listen on the address of the node in Slurm."""
    command_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Time in which a command of Slurm must end, s. It does not apply to agents."""

    @field_validator("options")
    @classmethod
    def _long_options(cls, options: list[str]) -> list[str]:
        for option in options:
            name = re.fullmatch(r"--([a-z][a-z-]*)(=.*)?", option)
            if name is None or not option.isprintable():
                raise ValueError(f"{option!r} is not an option of the form --name or --name=value")
            if any(own.startswith(name[1]) for own in OWN_OPTIONS):  # a prefix of an option stands for the option
                raise ValueError(f"{option!r} is set by tracebed")
        return options


class StepChannel(LocalChannel):
    """An agent in a job step, and the pipes to its srun. The function `end` kills the steps of the node."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], end: Callable[[], None]
    ) -> None:
        super().__init__(command, log, environment)
        self._end = end

    def errors(self) -> list[str]:
        """Return the lines of the standard error of the agent, or the lines of Slurm if there are no other lines."""
        lines = super().errors()
        return [line for line in lines if not line.startswith(("srun: ", "slurmstepd"))] or lines

    def kill(self) -> None:
        """Kill the processes of the step on the node, and srun."""
        if self.poll() is None:
            with contextlib.suppress(TestbedError):  # without srun, Slurm ends the step when it can
                self._end()
        super().kill()


class SlurmProvider:
    """Nodes of an allocation. The nodes of the group are the first nodes of the allocation, in order."""

    name = "slurm"
    Settings = SlurmSettings
    shared = False
    fan_out = 16

    def __init__(self, group: Group, folder: Path, on_step: Callable[[str], None]) -> None:
        """Prepare the provider without a command of Slurm."""
        settings = group.settings
        assert isinstance(settings, SlurmSettings)
        self.group, self.folder, self.on_step, self.settings = group, folder.absolute(), on_step, settings
        mark = hashlib.sha256((group.mark or group.name).encode()).hexdigest()[:12]
        self._slurm = Allocations(f"tracebed-{mark}", f"group {group.name}", settings.command_s)
        inside = os.environ.get("SLURM_JOB_ID", "")
        self._given = settings.job or (int(inside) if inside.isdigit() else None)
        self._lock = threading.Lock()
        self._job: int | None = None
        self._refused: TestbedError | None = None  # why Slurm has granted no allocation
        self._hosts: dict[str, str] = {}
        self._installations: dict[str, Installation] = {}
        self._temporary = ""
        self._until: float | None = None
        self._wheels = WheelCache()
        self.made = False

    def up(self) -> None:
        """Request an allocation unless one exists, and prepare its nodes.

        An allocation is requested once: after a failure, only an allocation that another process has taken is used.
        """
        with self._lock:
            if self._job is None:
                job = self._given or self._slurm.find() or self._allocate()
                self._match(job)
                self.on_step(f"allocation {job}: {', '.join(self._hosts.values())}")
                if not self._installations:
                    self._share(job)
                self._job = job
        self._everywhere(self._up)

    def _allocate(self) -> int:
        """Wait for a new allocation."""
        if self._refused is not None:
            raise self._refused
        note_making(self)
        count = len(self.group.nodes)
        self.on_step(f"waiting for an allocation of {count} nodes")
        try:
            comment, options = f"tracebed {self.group.name}", self.settings.options
            return self._slurm.allocate(count, comment, options, self.settings.wait_s)
        except TestbedError as error:
            self._refused = error
            raise

    def interrupt(self) -> None:
        """End the wait of `up` for an allocation."""
        if self._given is None:
            self._slurm.stop_waiting()

    def _up(self, installation: Installation) -> None:
        installation.up(self._wheels, partial(note_making, self))

    def _match(self, job: int) -> None:
        """Match the nodes of the group with the nodes of an allocation, in order."""
        hosts, left_s = self._slurm.describe(job)
        if len(hosts) < len(self.group.nodes):
            what = f"allocation {job} has {len(hosts)} nodes, but the group has {len(self.group.nodes)}"
            raise TestbedError(what, where=f"group {self.group.name}", hint="use a larger allocation, or fewer nodes")
        self._until = None if left_s is None else system.monotonic() + left_s
        self._hosts = {node.name: host for node, host in zip(self.group.nodes, hosts, strict=False)}
        if (folder := self.settings.folder) is not None:
            self._installations = {host: self._installation(job, host, folder) for host in self._hosts.values()}

    def _installation(self, job: int, host: str, folder: str) -> Installation:
        replay = name_on_nodes(self.folder)

        def command(arguments: Sequence[str], data: bytes = b"", output: IO[bytes] | None = None) -> bytes:
            try:
                return self._slurm.call([*self._slurm.step(job, "setup", host), *arguments], data, output=output)
            except TestbedError as error:
                raise TestbedError(error.what, where=f"host {host}", transient=error.transient) from error

        # Each host has a separate folder, because hosts may share the file system, but not their processes.
        return Installation(f"host {host}", f"{folder}/{host}", self.settings.python, replay, command)

    def _share(self, job: int) -> None:
        """Prepare nodes that share the file system. Raise TestbedError unless they have the files of this machine."""
        files = [sys.executable, str(Path(__file__)), str(self.folder)]
        try:
            found = self._on_hosts(job, "share", *files)
        except TestbedError as error:
            hint = "set `folder:` if the nodes do not share the file system with this machine"
            raise TestbedError(error.what, where=error.where, hint=hint, transient=error.transient) from error
        self._temporary = found.decode().splitlines()[0]

    def _on_hosts(self, job: int, verb: str, *arguments: str) -> bytes:
        """Run `on_node.py` on all nodes at once, with the Python of this machine, and return the output."""
        command = [sys.executable, "-I", "-c", program(), verb, self._slurm.name, *arguments]
        return self._slurm.call([*self._slurm.step(job, "setup", *self._hosts.values()), *command])

    def down(self) -> None:
        """End all agents, remove what `up` made, and release the allocation if `up` made it, also after an error."""
        with self._lock:
            job = self._given or self._slurm.find()
            try:
                if job is not None:
                    self._clean(job)
            finally:
                if self._given is None:
                    self._slurm.release()
                    if job is not None:
                        self.on_step(f"allocation {job} is released")
                self._job = self._refused = None

    def _clean(self, job: int) -> None:
        """End all agents, and remove what `up` made on the nodes."""
        self._slurm.end_steps(job)
        if self._job is None:
            self._match(job)
        if self._installations:
            self._everywhere(self._remove)
        else:
            self._on_hosts(job, "remove")

    def _remove(self, installation: Installation) -> None:
        if removed := installation.remove():
            self.on_step(f"{installation.where}: {removed} is removed")

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def run(self, node: Node, arguments: Sequence[str]) -> StepChannel:
        """Run the agent of a node as a job step."""
        job, installation = self._place(node)
        host, stamp = self._hosts[node.name], next_stamp()
        agent = ["env", f"TMPDIR={self._temporary}", *AGENT, *arguments]
        if installation is not None:
            agent = installation.agent(node.name, stamp, arguments)
        command = [*self._slurm.step(job, f"{node.name}-{stamp}", host), *agent]
        end = partial(self._slurm.end_steps, job, node.name, stamp)
        try:
            return StepChannel(command, agent_log(self.folder, node), self._slurm.environment, end)
        except OSError as error:
            raise TestbedError(f"cannot run srun: {error.strerror}", where=f"node {node.name}") from error

    def spool(self, node: Node) -> str:
        """Return the folder for files of jobs: the folder of this replay if the nodes share it."""
        _, installation = self._place(node)
        return str(self.folder) if installation is None else installation.spool

    def fetch(self, node: Node, target: Path) -> None:
        """Copy the files of the jobs of a node to the folder `target`, unless the nodes share it."""
        _, installation = self._place(node)
        if installation is not None:
            installation.fetch(node.name, target)

    def bind(self, node: Node) -> str | None:
        """Return the IPv4 address of the node in Slurm, if ranks may listen there."""
        if not self.settings.listen:
            return None
        self._place(node)
        name = self._slurm.address(self._hosts[node.name])
        try:
            return socket.gethostbyname(name)
        except OSError as error:
            raise TestbedError(f"the address of {name!r} is unknown", where=f"node {node.name}") from error

    def _place(self, node: Node) -> tuple[int, Installation | None]:
        """Return the allocation, and the folder with tracebed on the host of a node; None: no folder is needed.

        This method does not wait for an allocation: several threads call it, also after the testbed was stopped.
        """
        if self._job is None:
            raise NotReadyError("there is no allocation of Slurm", node, hint="make one: tracebed nodes up")
        installation = self._installations.get(self._hosts[node.name])
        if installation is not None:
            self._up(installation)
        return self._job, installation

    @property
    def left_s(self) -> float | None:
        """Time until Slurm ends the allocation, s; None: unlimited, or not allocated yet."""
        return None if self._until is None else self._until - system.monotonic()

    def _everywhere(self, do: Callable[[Installation], None]) -> None:
        carry_out([partial(do, installation) for installation in self._installations.values()], self.fan_out)
