"""Slurm as a batch system, by its commands: `sbatch`, `squeue`, `sacct`, `scancel`, `sinfo`, `scontrol`, `salloc`."""

from __future__ import annotations

import math
import os
import pwd
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.host_lists import host_names
from tracebed.ground.registry import one_of
from tracebed.machine.nodes import NodeFacts
from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay.batch.base import (
    BatchSettings,
    Demands,
    JobObservation,
    JobRequest,
    LayerFacts,
    LayerJob,
    LayerPass,
    NodeState,
    Phase,
    Refused,
    SystemFacts,
)
from tracebed.orchestrator.replay.batch.commands import TIMEOUT_S, option, run
from tracebed.orchestrator.scheduling.names import RESIZE_POLICIES
from tracebed.slurm.environment import check_conf, explained
from tracebed.slurm.job_fields import memory, whole_nodes
from tracebed.slurm.job_states import is_held, is_limit, is_permanent, is_usable, meaning, power_of
from tracebed.slurm.layer_settings import EXPANSION, NO_SHRINK
from tracebed.slurm.live_layer import decided
from tracebed.slurm.machine import SlurmMachine
from tracebed.slurm.scontrol import Record, records
from tracebed.slurm.state import COMMANDS, TRIED, ClusterState, held_cores, state_of
from tracebed.slurm.submissions import demands_of, held_demands_of

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
EXCLUSIVE = ("OverSubscribe=EXCLUSIVE", "Exclusive=NODE", "Exclusive=TOPO")
"""Settings of a partition whose jobs are exclusive, to Slurm 25.11 and from 26.05 on."""
GRANT_S = 5
"""Time after which a request for nodes that Slurm has not granted is withdrawn, s."""
TIME_FORMAT = "SLURM_TIME_FORMAT"
LAST = 2147483645
"""Largest `--nice`: a job with it is the last of the queue."""
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
QUEUE_FORMAT = "%i|%j|%T|%S|%e|%N|%r"
"""Format of `squeue`. The reason is last, because it may contain any character."""
ACCOUNTING_FIELDS = "JobID,JobName,State,Start,End,NodeList,Reason"
"""Fields of `sacct`, in the order of `QUEUE_FORMAT`."""
NODE_FORMAT = "%N|%c|%X|%T"


class SlurmSystem:
    """Slurm, by its commands. `SLURM_CONF` chooses the cluster."""

    name: ClassVar[str] = "slurm"

    def __init__(self, settings: BatchSettings) -> None:
        """Prepare the options of `sbatch`."""
        self._settings, self._partition = settings, settings.partition
        if settings.demands and settings.partition is not None:
            what = f"partition={settings.partition} is for all jobs, but each job has the partition of the workload"
            raise InputError(what, hint="leave it out")
        self._cores: dict[str, dict[str, int]] = {}  # job with demands -> its cores on each node when it started
        self._constant: dict[str, str] = {}  # output of the commands whose output does not change during a replay
        self._options = [option(text, "sbatch", OWN_OPTIONS, "account=physics") for text in settings.options]
        kept = {key: value for key, value in os.environ.items() if key in PASSED_ON or key.startswith("SBATCH_")}
        self._environment = kept | {TIME_FORMAT: "%s", "LC_ALL": "C"}
        if settings.configuration is not None:
            if not settings.configuration.is_file():
                raise InputError("is not a file", where=str(settings.configuration), hint="give the path of slurm.conf")
            self._environment["SLURM_CONF"] = str(settings.configuration.absolute())
        check_conf(self._environment)

    def facts(self) -> SystemFacts:
        """Return the nodes of the partition and the parameters of the scheduler."""
        partition = "" if self._settings.demands else self._chosen_partition
        nodes, states = self._nodes()
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
        """Submit a job by `sbatch`. Without demands, jobs get whole nodes, as with the policies of tracebed.

        A held job asks for one node until its start: `scontrol` can add nodes and CPUs, but not remove tasks.
        """
        if request.demands:
            again = () if request.requeued and not request.held else ("--no-requeue",)
            size = [*(("--hold",) if request.held else ()), *request.demands, *again]
        elif request.held:
            size = ["--hold", "--no-requeue", *self._size(1)]
        else:
            size = [f"--nodes={request.nodes}", "--exclusive"]
        command = [
            *("sbatch", "--parsable", f"--job-name={request.name}", *size),
            *(f"--output={request.output}", f"--chdir={request.script.parent}"),
        ]
        if request.limit_s is not None:
            command.append(f"--time={max(1, math.ceil(request.limit_s / 60.0))}")
        if self._partition and not request.demands:
            command.append(f"--partition={self._partition}")
        if request.dependency:
            command += [f"--dependency={request.dependency}", "--kill-on-invalid-dep=yes"]
        printed = self._run(*command, *self._options, str(request.script), *request.arguments, refusing=True)
        words = printed.split()
        job = words[-1].partition(";")[0] if words else ""
        if not job.isdigit():
            raise TestbedError(f"sbatch printed {printed[:80]!r}, not a job id", transient=True)
        return job

    def dependency(self, conditions: Sequence[tuple[str, str, float]], *, any_of: bool) -> str | None:
        """Return conditions as in `--dependency`; None: a delay is not of whole minutes."""
        if any(delay_s % 60.0 for _, _, delay_s in conditions):
            return None
        texts = [f"{kind}:{id}" + (f"+{delay_s / 60.0:.0f}" if delay_s else "") for kind, id, delay_s in conditions]
        return ("?" if any_of else ",").join(texts)

    def poll(self, prefix: str, known: Collection[str]) -> dict[str, JobObservation]:
        """Return the jobs of the replay from one `squeue`, and the jobs purged by slurmctld from one `sacct`."""
        printed = self._run("squeue", "-h", "-a", "-t", "all", *self._of_users, "-o", QUEUE_FORMAT)
        found = {each.id: each for each in observations(printed, prefix)}
        if self._settings.demands:
            found = self._with_cores(found)
        forgotten = sorted(set(known) - found.keys())
        if self._accounts:
            for some in _batches(forgotten):
                fields = ("-o", ACCOUNTING_FIELDS)
                past = self._run("sacct", "-n", "-P", "-X", "-j", ",".join(some), *fields)
                found |= {each.id: each for each in observations(past, prefix)}
        return found

    @property
    def _of_users(self) -> tuple[str, ...]:
        """Options of `squeue` for the jobs of the replay: root submits jobs of other users, too."""
        return () if self._settings.demands and os.geteuid() == 0 else ("--me",)

    def _with_cores(self, found: Mapping[str, JobObservation]) -> dict[str, JobObservation]:
        """Return observations with the cores of the running jobs, which share nodes."""
        new = {id for id, each in found.items() if each.phase is Phase.RUNNING} - self._cores.keys()
        if new:
            printed = self._run("scontrol", "-d", "-o", "show", "job")
            for record in records(printed, "JobId", "scontrol show job"):
                if record.needed("JobId") in new:
                    self._cores[record.needed("JobId")] = held_cores(record)
        return {
            id: replace(each, cores=self._cores[id]) if each.nodes and id in self._cores else each
            for id, each in found.items()
        }

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs by `scancel`."""
        for some in _batches(ids):
            self._run("scancel", "--quiet", *some)

    # -- resizes ---------------------------------------------------------------------------------------------------

    def check_resizing(self) -> None:
        """Raise InputError unless Slurm permits expansions and shrinks, shares nodes by CPUs, and has a database.

        If jobs have demands, `held_demands` checks their partitions.

        Slurm 22.05 refuses to shrink a job that was expanded if it has no database. It never again allocates a node
        that an exclusive job has released by a shrink, and with `select/linear` all jobs are exclusive.
        """
        self._check_permissions()
        if not self._configuration.get("SelectType", "").endswith(("/cons_tres", "/cons_res")):
            what = f"Slurm has {self._configuration.get('SelectType')}, which never allocates again what a job released"
            raise InputError(what, hint="set SelectType=select/cons_tres")
        if self._settings.demands:
            return
        shown = self._run("scontrol", "show", "partition", self._chosen_partition)
        if any(setting in shown for setting in EXCLUSIVE):
            what = (
                f"the jobs of partition {self._chosen_partition!r} are exclusive: nodes that they release stay unused"
            )
            raise InputError(what, hint=f"choose a partition without {' or '.join(EXCLUSIVE)}")

    def _check_permissions(self) -> None:
        """Raise InputError unless Slurm permits expansions and shrinks, and has a database."""
        words = self._configuration.get("SchedulerParameters", "").split(",")
        where = "SchedulerParameters of slurm.conf"
        if EXPANSION not in words:
            hint = f"add {EXPANSION} to SchedulerParameters, then `scontrol reconfigure`"
            raise InputError(f"Slurm does not permit the expansion of jobs: no {EXPANSION}", where=where, hint=hint)
        if NO_SHRINK in words:
            hint = f"remove {NO_SHRINK} from SchedulerParameters, then `scontrol reconfigure`"
            raise InputError(f"Slurm does not permit that jobs shrink: {NO_SHRINK}", where=where, hint=hint)
        if not self._accounts:
            what = "Slurm has no database: it would refuse to shrink a job that was expanded"
            raise InputError(what, hint="set AccountingStorageType=accounting_storage/slurmdbd, and run slurmdbd")

    def node_states(self) -> dict[str, NodeState]:
        """Return the states of the nodes of the partition, by name. Only jobs in a reservation start on its nodes."""
        within = any(text.startswith("--reservation=") for text in self._options)
        return {
            name: NodeState(word, is_usable(word) and (within or not word.startswith("reserved")), is_held(word))
            for name, word in self._nodes()[1].items()
        }

    def power_states(self) -> dict[str, PowerState]:
        """Return the state of the power of each node, by name; empty: Slurm switches no node off."""
        programs = (self._configuration.get(f"{name}Program", "(null)") for name in ("Suspend", "Resume"))
        if "(null)" in programs:
            return {}
        return {name: power_of(word) for name, word in self._nodes()[1].items()}

    def start(self, id: str, nodes: Sequence[str]) -> None:
        """Let a held job start on `nodes`, by `scontrol update` and `scontrol release`."""
        count = len(nodes)
        cpus = self._job(id).number("CPUs/Task") if self._settings.demands else self._cpus
        size = (f"NumNodes={count}-{count}", f"NumTasks={count}", f"NumCPUs={count * cpus}")
        self._run("scontrol", "update", f"JobId={id}", *size, f"ReqNodeList={','.join(nodes)}", refusing=True)
        self._run("scontrol", "release", id, refusing=True)

    def hold(self, id: str) -> None:
        """Hold a waiting job."""
        self._run("scontrol", "hold", id, refusing=True)

    def request(self, id: str, name: str, nodes: Sequence[str]) -> str:
        """Take nodes by `salloc` for a second job without steps, which ends by itself after a minute."""
        size = [f"--nodelist={','.join(nodes)}", "--time=1"]
        second = ("--no-shell", f"--immediate={GRANT_S}", f"--dependency=expand:{id}", f"--job-name={name}")
        user = None
        if self._settings.demands:
            job = self._job(id)
            size += [*_whole(len(nodes), job.number("CPUs/Task")), *_shape(job)]
            user = _user_of(job)
        else:
            size += self._size(len(nodes)) + ([f"--partition={self._partition}"] if self._partition else [])
        try:
            self._run("salloc", *second, *size, *self._options, refusing=True, user=user)
        except TestbedError as error:
            if "unable to allocate resources: connection timed out" in error.what.lower():
                listed = self._run("squeue", "-h", *self._of_users, f"--name={name}", "-t", "all", "-o", "%r")
                reason = listed.split("\n")[-2:-1]
                why = f": {reason[0]}" if reason and reason[0] != "None" else ""
                raise Refused(f"Slurm did not grant {','.join(nodes)} within {GRANT_S} s{why}") from error
            raise
        found = self._run("squeue", "-h", *self._of_users, f"--name={name}", "-t", "R", "-o", "%i").split()
        if not found:
            raise TestbedError(f"the job {name} with the requested nodes has ended", transient=True)
        return found[-1]

    def merge(self, id: str, second: str) -> None:
        """Give the nodes of a second job to the job that it expands.

        Slurm 22.05 accepts this for a job that has ended, too, and never allocates the nodes again.
        """
        state = self._run("squeue", "-h", "-j", id, "-t", "all", "-o", "%T", refusing=True).strip()
        if state != "RUNNING":
            raise Refused(f"job {id} is {state or 'unknown'}, and cannot expand")
        self._run("scontrol", "update", f"JobId={second}", "NumNodes=0", refusing=True)

    def shrink(self, id: str, nodes: Sequence[str]) -> None:
        """Let a running job keep only `nodes`."""
        self._run("scontrol", "update", f"JobId={id}", f"NodeList={','.join(nodes)}", refusing=True)

    # -- demands, and a layer beside Slurm -------------------------------------------------------------------------

    def demands(self, workload: Workload, folder: Path, speed: float) -> Demands:
        """Return the demands of the jobs of a workload on this cluster, as options of `sbatch`."""
        machine, root = self._state().machine, os.geteuid() == 0
        return demands_of(workload, machine, root=root, enterable=_is_enterable(folder), speed=speed)

    def machine(self, nodes: Collection[str]) -> SlurmMachine:
        """Return the machine that has some nodes of the cluster, as its slurm.conf describes it.

        Nodes in advance reservations are not usable. So the machine has no reservations, which change with the time.
        """
        state = self._state()
        return SlurmMachine.of(state.machine.only(nodes), parameters=state.conf.parameters)

    def held_demands(
        self, workload: Workload, folder: Path, speed: float, cores: Sequence[int], malleable: Sequence[bool]
    ) -> Demands:
        """Return the demands of jobs that hold whole nodes, which a policy chooses, as options of `sbatch`."""
        state = self._state()
        return held_demands_of(
            workload,
            state.machine,
            cores,
            malleable,
            release=float(state.conf.parameters.get("release", TRIED)),
            root=os.geteuid() == 0,
            enterable=_is_enterable(folder),
            speed=speed,
        )

    def _state(self) -> ClusterState:
        """Return the state of the cluster. Its configuration is asked for once."""
        names = ("config", "partition", "node", "job", "reservation")
        texts = {name: self._constant.get(name) or self._run(*COMMANDS[name], without=TIME_FORMAT) for name in names}
        self._constant = {name: texts[name] for name in ("config", "partition")}
        return state_of(texts, Path(self._configuration.get("SLURM_CONF", "")).parent)

    def check_layer(self, policy: str) -> LayerFacts:
        """Raise InputError unless Slurm permits expansions and shrinks, and has a database."""
        one_of("policy of the layer", policy, RESIZE_POLICIES)
        self._check_permissions()
        plugin = self._configuration.get("SelectType", "")
        if not plugin.endswith(("/cons_tres", "/cons_res", "/linear")):
            what = f"resizes of jobs with {plugin or 'an unknown select plugin'} were not tried"
            raise InputError(what, where="SelectType of slurm.conf", hint="set SelectType=select/cons_tres")
        me = pwd.getpwuid(os.geteuid()).pw_name
        owner = self._configuration.get("SlurmUser", "").partition("(")[0]
        given = ("sacctmgr", "-n", "-P", "show", "user", me, "format=AdminLevel")
        if os.geteuid() == 0 or me == owner or self._run(*given).strip() in ("Operator", "Administrator"):
            return LayerFacts(True)
        what = f"time limits of resized jobs stay as they are: {me} is no operator of Slurm"
        return LayerFacts(False, (what,))

    def layer_pass(self, policy: str, jobs: Sequence[LayerJob], released: Collection[tuple[str, str]]) -> LayerPass:
        """Decide which jobs leave nodes, and which ask for nodes."""
        return decided(self._state(), next(each for each in RESIZE_POLICIES if each == policy), jobs, released)

    def ask(self, id: str, name: str, most: int, wait_s: float) -> tuple[str, tuple[str, ...]]:
        """Ask by `salloc` for a second job without steps, of the shape of the first one, the last of the queue.

        Slurm limits it to the rest of the time limit of the first job. With `--ntasks`, Slurm 22.05 would cut its nodes
        to the number of its tasks, or wait for all of them. Slurm tells the nodes to a process of the user of the job
        only. `salloc` ends, and with it the second job that waits, if the replay is killed.
        """
        job = self._job(id)
        held = held_cores(job)
        shape = [f"--cpus-per-task={min(held.values())}", *_shape(job)]
        if whole_nodes(job):
            shape.append("--exclusive")
        user = _user_of(job)
        bound = ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()
        second = ("--no-shell", f"--immediate={math.ceil(wait_s)}", f"--dependency=expand:{id}", f"--job-name={name}")
        where = (f"--nodes=1-{most}", f"--exclude={','.join(held)}", f"--nice={LAST}")
        command = (*bound, "salloc", *second, *where, *shape)
        self._run(*command, refusing=True, timeout_s=wait_s + TIMEOUT_S, user=user)
        found = self._run("squeue", "-h", *self._of_users, f"--name={name}", "-t", "R", "-o", "%i|%N").split()
        if not found:
            raise TestbedError(f"the job {name} with the requested nodes has ended", transient=True)
        second_id, _, nodes = found[-1].partition("|")
        return second_id, tuple(hosts_in(nodes))

    def _job(self, id: str) -> Record:
        """Return what Slurm says of a job."""
        (job,) = records(self._run("scontrol", "-d", "-o", "show", "job", id), "JobId", "scontrol show job")
        return job

    def set_limit(self, id: str, limit_s: float) -> None:
        """Set the time limit of a running job, in whole minutes, rounded up."""
        minutes = max(1, math.ceil(limit_s / 60.0 - 1e-6))
        self._run("scontrol", "update", f"JobId={id}", f"TimeLimit={minutes}", refusing=True)

    def _size(self, nodes: int) -> list[str]:
        """Return the options of a request for all CPUs of nodes, which is not exclusive."""
        return _whole(nodes, self._cpus)

    @cached_property
    def _cpus(self) -> int:
        """The CPUs of the smallest node."""
        return min(node.cores for node in self._nodes()[0])

    def _nodes(self) -> tuple[list[NodeFacts], dict[str, str]]:
        """Return the nodes of the partition, or of all partitions if jobs have demands, and node -> state."""
        where = ("-a",) if self._settings.demands else ("-p", self._chosen_partition)
        listed = self._run("sinfo", "-N", "-h", *where, "-o", NODE_FORMAT)
        return nodes_in(listed)

    @cached_property
    def _chosen_partition(self) -> str:
        return self._partition or self._default_partition()

    @cached_property
    def _configuration(self) -> dict[str, str]:
        return configuration_in(self._run("scontrol", "show", "config"))

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

    def _run(self, *command: str, refusing: bool = False, without: str | None = None, **further: Any) -> str:
        """Run a command of Slurm and return its output.

        Args:
            command: the command.
            refusing: whether an error that is not transient is final.
            without: a variable of the environment that the command does not get.
            further: other arguments of `run`.
        """
        environment = {name: value for name, value in self._environment.items() if name != without}
        try:
            return run(*command, environment=environment, transient=TRANSIENT, refusing=refusing, **further)
        except TestbedError as error:
            raise explained(error) from error


def _is_enterable(folder: Path) -> bool:
    """Return whether all users can enter a folder."""
    return all(each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents) if each.exists())


def _whole(nodes: int, cpus: int) -> list[str]:
    """Return the options of a request for nodes with a task of `cpus` CPUs on each."""
    return [f"--nodes={nodes}", f"--ntasks={nodes}", f"--cpus-per-task={cpus}"]


def _shape(job: Record) -> list[str]:
    """Return the options of a second job that has what a job has: partition, account, QOS, features and memory."""
    memory_mib, by_core = memory(job)
    shape = [f"--mem{'-per-cpu' if by_core else ''}={memory_mib:.0f}"] if memory_mib else []
    given = {"partition": "Partition", "account": "Account", "qos": "QOS", "constraint": "Features"}
    return shape + [f"--{option}={job.of(field)}" for option, field in given.items() if job.of(field)]


def _user_of(job: Record) -> int | None:
    """Return the user of a job; None: the one of this process."""
    number = re.search(r"\((\d+)\)", job.of("UserId"))
    return int(number[1]) if number and int(number[1]) != os.geteuid() else None


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the IDs in parts that fit in a command line."""
    for first in range(0, len(ids), IDS_PER_COMMAND):
        yield ids[first : first + IDS_PER_COMMAND]


# -- the output of the commands ------------------------------------------------------------------------------------


def observations(text: str, prefix: str) -> Iterator[JobObservation]:
    """Yield the jobs in the output of `squeue` (`QUEUE_FORMAT`) or `sacct -n -P` (`ACCOUNTING_FIELDS`).

    Jobs whose names do not begin with `prefix` are not parsed: they may have any name and any state.

    Times must be in seconds since 1970 (`SLURM_TIME_FORMAT=%s`). Lines with fewer fields are ignored: they belong
    to a name with a line break, which no job of a replay has.
    """
    for line in text.splitlines():
        fields = line.split("|", 6)
        if len(fields) < 7 or not fields[1].startswith(prefix):
            continue
        job, name, word, start, end, nodes, reason = fields
        phase, state = meaning(word)
        names = tuple(hosts_in(nodes)) if phase not in (Phase.WAITING, Phase.UNKNOWN) else ()
        yield JobObservation(
            id=job,
            name=name,
            phase=phase,
            word=word,
            state=state,
            reason="" if reason in ("None", "(null)") else reason,
            start=_time(start) if names else None,  # a pending job has a forecast, a cancelled one its end
            end=_time(end) if phase in (Phase.ENDING, Phase.ENDED) else None,  # a running job has its limit there
            nodes=names,
            hopeless=phase is Phase.WAITING and is_permanent(reason),
            limited=phase is Phase.WAITING and is_limit(reason),
        )


def _time(text: str) -> float | None:
    """Return a time in s since 1970, or None for `N/A`, `Unknown` and `None`."""
    return float(text) if re.fullmatch(r"[0-9]{1,12}", text) else None


def hosts_in(text: str) -> list[str]:
    """Return the hosts of a list such as `n[1-3,07],login`, in its order."""
    if text in ("", "None assigned", "(null)"):
        return []
    try:
        return host_names(text)
    except ValueError as error:
        raise TestbedError(str(error)) from error


def nodes_in(text: str) -> tuple[list[NodeFacts], dict[str, str]]:
    """Return the nodes in the output of `sinfo -N -h -o NODE_FORMAT`, each once, and node -> state."""
    found: dict[str, NodeFacts] = {}
    states = {}
    for line in text.splitlines():
        fields = line.split("|", 3)
        if len(fields) < 4 or not (fields[1].isdigit() and fields[2].isdigit()):
            raise TestbedError(f"sinfo printed {line[:80]!r}, which is not a node")
        name, cores, sockets, state = fields
        found[name] = NodeFacts(name, max(1, int(cores)), max(1, int(sockets)))
        states[name] = state
    return list(found.values()), states


def configuration_in(text: str) -> dict[str, str]:
    """Return the parameters in the output of `scontrol show config`."""
    pairs = re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.MULTILINE)
    return {name: value for name, value in pairs if value not in ("(null)", "")}
