"""Slurm as a batch system, by its commands: `sbatch`, `squeue`, `sacct`, `scancel`, `sinfo` and `scontrol`."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import ClassVar

from tracebed.errors import InputError, TestbedError
from tracebed.orchestrator.batch import slurm_output
from tracebed.orchestrator.batch.base import BatchSettings, JobObservation, JobRequest, SystemFacts
from tracebed.orchestrator.batch.commands import option, run
from tracebed.orchestrator.slurm.environment import check_conf

IDS_PER_COMMAND = 1000
"""Maximum number of job IDs in a command line."""
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SLURM_JWT")
"""Environment variables of the commands, besides `SBATCH_*`. `sbatch` passes its environment to jobs."""
OWN_OPTIONS = frozenset(
    {
        *("array", "chdir", "cluster-constraint", "clusters", "dependency", "error", "exclusive", "export", "help"),
        *("ignore-pbs", "input", "job-name", "nodes", "output", "parsable", "partition", "quiet", "test-only"),
        *("time", "usage", "version", "wait", "wrap"),
    }
)
"""Options of `sbatch` that tracebed sets, or that are not possible in a replay."""
DECIDING = (
    *("EnforcePartLimits", "FairShareDampeningFactor", "KillWait", "OverTimeLimit", "PreemptMode", "PreemptType"),
    *("PriorityFlags", "PriorityMaxAge", "PriorityType", "PriorityWeightAge", "PriorityWeightFairShare"),
    *("PriorityWeightJobSize", "PriorityWeightPartition", "PriorityWeightQOS", "PriorityDecayHalfLife"),
    *("CompleteWait", "SchedulerParameters", "SchedulerType", "SelectType", "SelectTypeParameters"),
)
"""Parameters of Slurm on which its decisions depend."""
TRANSIENT = (
    *("unable to contact", "socket timed out", "connection refused", "connection reset", "connection timed out"),
    *("temporarily", "communication", "zero bytes", "controller not responding", "backup controller"),
    *("already in completing state", "configuration for this", "in standby mode", "try again"),
)
"""Parts of messages of Slurm after which a retry may succeed."""


class SlurmSystem:
    """Slurm, by its commands. `SLURM_CONF` chooses the cluster."""

    name: ClassVar[str] = "slurm"

    def __init__(self, settings: BatchSettings) -> None:
        """Prepare the options of `sbatch`.

        Raises:
            InputError: an option is invalid, or the configuration file is missing.
        """
        self._partition = settings.partition
        self._options = [option(text, "sbatch", OWN_OPTIONS, "account=physics") for text in settings.options]
        kept = {key: value for key, value in os.environ.items() if key in PASSED_ON or key.startswith("SBATCH_")}
        self._environment = kept | {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
        if settings.configuration is not None:
            if not settings.configuration.is_file():
                raise InputError("is not a file", where=str(settings.configuration), hint="give the path of slurm.conf")
            self._environment["SLURM_CONF"] = str(settings.configuration.absolute())
        check_conf(self._environment)

    def facts(self) -> SystemFacts:
        """Return the nodes of the partition and the parameters of the scheduler."""
        partition = self._partition or self._default_partition()
        listed = self._run("sinfo", "-N", "-h", "-p", partition, "-o", slurm_output.NODE_FORMAT)
        nodes, states = slurm_output.nodes(listed)
        if not nodes:
            raise InputError(f"partition {partition!r} has no nodes", hint="`sinfo` lists the partitions")
        config = self._configuration
        return SystemFacts(
            name=self.name,
            version=config.get("SLURM_VERSION", "unknown"),
            nodes=tuple(nodes),
            parameters={name: config[name] for name in sorted(DECIDING) if name in config},
            resolution_s=1.0,
            limit_step_s=60.0,
            details={
                "cluster": config.get("ClusterName", ""),
                "partition": partition,
                "options": self._options,
                "accounting": self._accounts,
                "node_states": sorted({state.rstrip("*") for state in states.values()}),
            },
        )

    def submit(self, request: JobRequest) -> str:
        """Submit a job by `sbatch`. Jobs get whole nodes, as with the policies of tracebed."""
        command = [
            *("sbatch", "--parsable", f"--job-name={request.name}", f"--nodes={request.nodes}", "--exclusive"),
            *(f"--output={request.output}", f"--chdir={request.script.parent}"),
        ]
        if request.limit_s is not None:
            command.append(f"--time={max(1, math.ceil(request.limit_s / 60.0))}")
        if self._partition:
            command.append(f"--partition={self._partition}")
        printed = self._run(*command, *self._options, str(request.script), *request.arguments, refusing=True)
        words = printed.split()
        job = words[-1].partition(";")[0] if words else ""
        if not job.isdigit():
            raise TestbedError(f"sbatch printed {printed[:80]!r}, not a job id", transient=True)
        return job

    def poll(self, prefix: str, known: Collection[str]) -> dict[str, JobObservation]:
        """Return the jobs of the replay from one `squeue`, and the jobs purged by slurmctld from one `sacct`."""
        printed = self._run("squeue", "-h", "-a", "-t", "all", "--me", "-o", slurm_output.QUEUE_FORMAT)
        found = {each.id: each for each in slurm_output.observations(printed, prefix)}
        forgotten = sorted(set(known) - found.keys())
        if self._accounts:
            for some in _batches(forgotten):
                fields = ("-o", slurm_output.ACCOUNTING_FIELDS)
                past = self._run("sacct", "-n", "-P", "-X", "-j", ",".join(some), *fields)
                found |= {each.id: each for each in slurm_output.observations(past, prefix)}
        return found

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs by `scancel`."""
        for some in _batches(ids):
            self._run("scancel", "--quiet", *some)

    @cached_property
    def _configuration(self) -> dict[str, str]:
        return slurm_output.configuration(self._run("scontrol", "show", "config"))

    @property
    def _accounts(self) -> bool:
        """Whether Slurm keeps past jobs in a database that `sacct` can read."""
        return self._configuration.get("AccountingStorageType", "").endswith(("/slurmdbd", "/mysql"))

    def _default_partition(self) -> str:
        """Return the name of the default partition."""
        partitions = self._run("sinfo", "-h", "-o", "%P").split()
        marked = [name.rstrip("*") for name in partitions if name.endswith("*")]
        if not marked:
            names = ", ".join(partitions) or "no partition"
            raise InputError("Slurm has no default partition", hint=f"choose one by -S partition=NAME: {names}")
        return marked[0]

    def _run(self, *command: str, refusing: bool = False) -> str:
        """Run a command of Slurm and return its output. `refusing`: an error that is not transient is final."""
        return run(*command, environment=self._environment, transient=TRANSIENT, refusing=refusing)


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the IDs in parts that fit in a command line."""
    for first in range(0, len(ids), IDS_PER_COMMAND):
        yield ids[first : first + IDS_PER_COMMAND]
