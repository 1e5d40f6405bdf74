"""The program of a job in a replay: its application, its command, and the work of its ranks.

The commands that jobs may run are in a file of the user, since a workload may come from elsewhere.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from tracebed.benchmarks.applications.base import Application, load_application, parse_parameters
from tracebed.benchmarks.applications.command import Command
from tracebed.benchmarks.program import Program
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.yaml_file import YamlFile
from tracebed.machine.pools import Pools
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.testbeds.machine import InventoryMachine
from tracebed.orchestrator.testbeds.nodes import Inventory

ROUNDING = 1e-9  # largest rounding error of a part of a run time, relative to the run time
COMMANDS_HINT = "write commands: {NAME: {arguments: [PROGRAM, ARGUMENT, ...]}}"
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
    """The commands that jobs may run."""

    where: str  # their file, for messages
    sha256: str  # of the content of the file
    commands: Mapping[str, AllowedCommand]  # by name

    @classmethod
    def read(cls, path: Path) -> AllowedCommands:
        """Read a file. Raises InputError if it cannot be read or is invalid; the message has the line."""
        yaml = YamlFile.read(path, "file of allowed commands", hint=COMMANDS_HINT, unreadable="check --allow-commands")
        return cls(str(path), hashlib.sha256(yaml.text.encode()).hexdigest(), yaml.checked(_CommandsFile).commands)


def program_of(
    jobs: Jobs, job: int, rates: Mapping[str, float], *, speed: float, grain_s: float, balance: str
) -> Program:
    """Return the program that takes the run time of `job` on its requested nodes. `rates` are units per core second."""
    application = application_of(jobs, job)
    first, *others = application.kernels
    seconds = jobs.run_time[job] / speed
    program, iterations = sized(jobs, job, seconds, rates[first]), max(1, round(seconds / grain_s))
    return program._replace(
        application=jobs.application[job],
        iterations=iterations,
        requests={str(request.point(iterations)): request.nodes for request in jobs.requests_of(job)},
        balance=application.balance or balance,
        parameters=parse_parameters(jobs.parameters[job]),
        partition=application.partition,
        memory_mib=_memory_mib(jobs, job),
        ratios={kernel: rates[kernel] / rates[first] for kernel in others},
        state_mib=jobs.state_mib[job] if jobs.state_mib else 0.0,
    )


def kernels_of(jobs: Jobs) -> list[str]:
    """Return the kernels of the applications of all jobs, `pils` first: its rate describes the machine."""
    chosen = dict.fromkeys(zip(jobs.application, jobs.parameters, strict=True))
    found = (kernel for names in chosen for kernel in _application(*names).kernels)
    return list(dict.fromkeys(["pils", *found]))


def application_of(jobs: Jobs, job: int) -> Application:
    """Return the application of a job. Raises InputError if it or its parameters are invalid."""
    try:
        return _application(jobs.application[job], jobs.parameters[job])
    except InputError as error:
        raise InputError(error.what, where=f"job {jobs.ids[job]}", hint=error.hint) from error


@cache
def _application(name: str, parameters: str) -> Application:
    return load_application(name, parse_parameters(parameters))


def _memory_mib(jobs: Jobs, job: int) -> int:
    """Return the memory that each rank of a job holds, MiB: the larger of the application's and the workload's."""
    own = application_of(jobs, job).own_mib
    needed = jobs.memory_mib[job] if jobs.memory_mib else math.nan
    return own if math.isnan(needed) else max(own, math.ceil(needed))


def check_programs(jobs: Jobs, inventory: Inventory, pools: Pools | None = None) -> None:
    """Check that every job has a valid program and a possible speedup, and fits into the memory of enough nodes.

    With `pools`, the nodes of a job are those of its pool. A job without a pool will be rejected.
    """
    rates = defaultdict[str, float](lambda: 1.0)
    nodes_of = [inventory.nodes] if pools is None else [[inventory.nodes[n] for n in own.nodes] for own in pools.pools]
    sizes = [
        sorted((node.memory_mib or math.inf for node in nodes if not node.emulated), reverse=True) for nodes in nodes_of
    ]
    for job, name in enumerate(jobs.ids):
        try:
            program_of(jobs, job, rates, speed=1.0, grain_s=math.inf, balance="static").checked()
        except InputError as error:
            raise InputError(error.what, where=f"job {name}", hint=error.hint) from error
        pool = 0 if pools is None else int(pools.of[job])
        needed, nodes, memory = _memory_mib(jobs, job), jobs.low[job], sizes[pool] if pool >= 0 else []
        if memory and nodes <= len(memory) and needed > memory[nodes - 1]:
            what = f"needs {needed} MiB on each of {nodes} nodes, and the nodes have {memory[nodes - 1]:g} MiB"
            hint = "replay on nodes with more memory, or on emulated nodes, which allocate no memory"
            raise InputError(what, where=f"job {name}", hint=hint)


def sized(jobs: Jobs, job: int, seconds: float, rate: float) -> Program:
    """Return the program of `job`. It takes `seconds` on its q requested nodes, and `seconds` * S(q) / S(n) on n nodes.

    On n nodes, all cores do the parallel part, in q/n of its time on the q requested nodes. The rest of the run time is
    spent on one core. With Amdahl's law, this is the serial part. In other models it depends on n: the serial part is
    the least over the sizes of the job, and the rest is overhead (`Program.overhead`). A speedup that exceeds that of
    the cores on some number of nodes is an InputError. `rate` is units per second of a core.
    """
    nodes, parallel = jobs.nodes[job], seconds * jobs.parallel[job]
    sizes = sorted({nodes, *range(jobs.low[job], jobs.high[job] + 1)})
    alone = {n: seconds / jobs.rate(job, n) - parallel * nodes / n for n in sizes}  # seconds on one core
    least = min(alone.values())
    if least < -ROUNDING * seconds:
        most = min(alone, key=alone.__getitem__)
        raise InputError(
            f"has a superlinear speedup on {most} nodes, which a replay cannot reproduce",
            where=f"job {jobs.ids[job]}",
            hint="give a speedup of at most n on n nodes, or simulate the workload",
        )
    serial = max(0.0, least)
    total = serial + parallel * nodes
    overhead = {
        str(n): round((rest - serial) * rate) for n, rest in alone.items() if rest - serial > ROUNDING * seconds
    }
    program = Program.lasting(
        serial + parallel, nodes, jobs.cores[job], rate, parallel_fraction=parallel * nodes / total if total else 1.0
    )
    return program._replace(overhead=overhead)


def shortest_replay(
    workload: Workload, inventory: Inventory, speed: float, *, over_limit: OverLimit = OverLimit.EXTEND
) -> float:
    """Return a lower bound of the wall time of a replay of `workload`, in seconds.

    The bound is the maximum of the time from the first submission to the earliest possible end of the last job, and of
    the work of all jobs divided by the cores of the inventory. Jobs that require more nodes than the inventory has, or
    that no nodes of it can serve, are ignored.
    """
    most = max(node.cores for node in inventory.nodes)
    jobs = Jobs.of(workload, cores_per_node=most, over_limit=over_limit)
    machine, pools = InventoryMachine.of(inventory), None
    if not machine.plain:
        pools = Pools.on(machine, workload.runnable()[0], np.asarray(jobs.column("low")))
    return shortest_replay_of(jobs, inventory, speed, over_limit=over_limit, pools=pools)


def shortest_replay_of(
    jobs: Jobs, inventory: Inventory, speed: float, *, over_limit: OverLimit, pools: Pools | None = None
) -> float:
    """Return the bound of `shortest_replay` for the jobs of a workload."""
    cores = [node.cores for node in inventory.nodes]
    killing = over_limit is OverLimit.KILL
    last, work = 0.0, 0.0
    think_s = jobs.waits.think_s if jobs.waits is not None else [math.nan] * len(jobs)
    for job, submit in enumerate(jobs.submit):
        if jobs.low[job] > len(cores) or (pools is not None and pools.of[job] < 0):
            continue
        duration = min(jobs.run_time[job], jobs.limit[job]) if killing else jobs.run_time[job]
        most = min(jobs.high[job], len(cores))
        if math.isnan(think_s[job]):  # else the submission follows from the end of another job
            last = max(last, submit - jobs.submit[0] + duration / jobs.rate(job, most))
        program = sized(jobs, job, duration, 1e6)
        work += (program.serial_units + program.parallel_units) / 1e6
    return max(last, work / sum(cores)) / speed


def command_of(jobs: Jobs, job: int, allowed: AllowedCommands | None) -> dict[str, Any]:
    """Return the command of a job, empty for another application. A malleable job needs an elastic command."""
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
