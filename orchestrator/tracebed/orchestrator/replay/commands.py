"""The commands that the jobs of a replay may run: a file of the user, since a workload may come from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tracebed.benchmarks.applications.command import Command
from tracebed.ground.errors import InputError
from tracebed.ground.yaml_file import YamlFile
from tracebed.orchestrator.replay.programs import application_of
from tracebed.orchestrator.scheduling.jobs import Jobs

HINT = "write commands: {NAME: {arguments: [PROGRAM, ARGUMENT, ...]}}"
Text = Annotated[str, Field(pattern=r"^[^\x00]*$")]
Name = Annotated[str, Field(pattern=r"^[^\s=\x00]+$")]


class AllowedCommand(BaseModel):
    """A command that jobs may run, without a shell."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    arguments: Annotated[list[Text], Field(min_length=1)]
    """The program, an absolute path or a name in PATH, and its arguments."""
    environment: dict[Name, Text] = {}
    """Environment variables."""
    folder: Annotated[str, Field(pattern=r"^/[^\x00]*$")] | None = None
    """Working folder on the nodes; None: the folder of the job."""


class _CommandsFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    commands: Annotated[dict[Name, AllowedCommand], Field(min_length=1)]


@dataclass(frozen=True)
class AllowedCommands:
    """The commands that jobs may run.

    Attributes:
        where: their file, for messages.
        sha256: SHA-256 of the content of the file.
        commands: name -> command.
    """

    where: str
    sha256: str
    commands: Mapping[str, AllowedCommand]

    @classmethod
    def read(cls, path: Path) -> AllowedCommands:
        """Read a file. Raises InputError if it cannot be read or is invalid; the message has the line."""
        yaml = YamlFile.read(path, "file of allowed commands", hint=HINT, unreadable="check --allow-commands")
        return cls(str(path), hashlib.sha256(yaml.text.encode()).hexdigest(), yaml.checked(_CommandsFile).commands)


def command_of(jobs: Jobs, job: int, allowed: AllowedCommands | None) -> dict[str, Any]:
    """Return the command of a job as in its program: empty if the job runs another application.

    Raises:
        InputError: the command is not allowed, or the job is malleable and the command is rigid.
    """
    application, where = application_of(jobs, job), f"job {jobs.ids[job]}"
    if not isinstance(application, Command):
        return {}
    if allowed is None:
        hint = "--allow-commands FILE names the commands that jobs may run"
        raise InputError("runs a command, and no command is allowed", where=where, hint=hint)
    if application.name not in allowed.commands:
        hint = f"commands of {allowed.where}: {', '.join(allowed.commands)}"
        raise InputError(f"command {application.name!r} is not allowed", where=where, hint=hint)
    if jobs.low[job] != jobs.high[job] and not application.elastic:
        hint = "give the job one size (nodes_min equal to nodes_max), or add backend=elastic or backend=dmr"
        raise InputError("a command cannot change its number of nodes", where=where, hint=hint)
    if jobs.malleable[job] and application.backend == "rigid":
        hint = "make the job rigid, or add backend=affinity or backend=openmp to its application_parameters"
        raise InputError("a malleable job runs a rigid command", where=where, hint=hint)
    return allowed.commands[application.name].model_dump()


def check_commands(jobs: Jobs, allowed: AllowedCommands | None) -> None:
    """Check the commands of all jobs. Raises InputError as `command_of`."""
    for job in range(len(jobs)):
        command_of(jobs, job, allowed)
