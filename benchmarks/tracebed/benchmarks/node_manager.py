"""The node manager of the DROM paper: equipartition of the CPUs of a node among all its jobs.

M. D'Amico et al.: "DROM: Enabling Efficient and Effortless Malleability for Resource Managers", ICPP 2018 Companion,
section 5. There, it is part of Slurm's `slurmd`. Each node has its own manager; managers with the same calls place the
tasks of a job alike.

    manager = NodeManager(Administrator(table), sockets=[range(8), range(8, 16)])
    variables = manager.launch("job 1", [pid], cpus=16)     # before the program of the process starts
    manager.launch("job 2", [pid_2, pid_3], cpus=16)        # job 1 shrinks to one socket
    manager.end("job 1")                                    # job 2 has both
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.ownership import DromResult, Flags
from tracebed.ground.errors import InputError, TestbedError

CHANGE = Flags.STEAL | Flags.REPLACE  # the manager is the only administrator of its node


@dataclass
class _Placed:
    """A job on the node."""

    tasks: int
    most: int
    cpus: set[int] = field(default_factory=set)


class Equipartition:
    """The CPUs of each task of the jobs on a node, without processes.

    All jobs have the same number of CPUs, but at most as many as requested, and one for each task at least; CPUs that
    cannot be divided go to the first jobs. A job that starts takes CPUs that are free, then CPUs of the others, whole
    sockets if possible. CPUs of a job that ends return to the jobs that had them first, as far as the shares are equal
    then. CPUs of a job are divided among its tasks in the order of sockets; the numbers differ by one at most.

    Args:
        sockets: the CPUs of each socket.
    """

    def __init__(self, sockets: Sequence[Iterable[int]]) -> None:
        self._socket = {cpu: number for number, cpus in enumerate(sockets) for cpu in cpus}
        self._jobs: dict[str, _Placed] = {}
        self._owner: dict[int, str] = {}  # CPU -> the running job that had it first

    def masks(self) -> dict[str, list[tuple[int, ...]]]:
        """Return the CPUs of each task of each job, jobs in the order of their starts."""
        found = {}
        for name, job in self._jobs.items():
            cpus = sorted(job.cpus, key=lambda cpu: (self._socket[cpu], cpu))
            cuts = [len(cpus) * task // job.tasks for task in range(job.tasks + 1)]
            found[name] = [tuple(sorted(cpus[begin:end])) for begin, end in pairwise(cuts)]
        return found

    def start(self, name: str, tasks: int, cpus: int | None = None) -> None:
        """Place a job.

        Args:
            name: the job.
            tasks: number of its tasks on the node.
            cpus: number of requested CPUs; None: all.

        Raises:
            InputError: the job is on the node already, has no tasks, or the node has fewer CPUs than tasks.
        """
        if name in self._jobs:
            raise InputError(f"the job {name} is on the node already", hint="end it first, or choose another name")
        total = tasks + sum(job.tasks for job in self._jobs.values())
        if tasks < 1 or total > len(self._socket):
            what = f"the job {name} has {tasks} tasks: {total} tasks on {len(self._socket)} CPUs"
            raise InputError(what, hint="each job has a task, and each task a CPU of its own")
        self._jobs[name] = _Placed(tasks, max(tasks, len(self._socket) if cpus is None else cpus))
        self._share()

    def end(self, name: str) -> None:
        """Remove a job, and divide its CPUs among the others. Raises InputError if the job is not on the node."""
        if self._jobs.pop(name, None) is None:
            raise InputError(f"the job {name} is not on the node", hint=f"choose among {[*self._jobs]}")
        self._owner = {cpu: owner for cpu, owner in self._owner.items() if owner != name}
        self._share()

    def _share(self) -> None:
        sizes = self._sizes()
        for name, job in self._jobs.items():
            while len(job.cpus) > sizes[name]:  # from the socket where it has fewest, the last CPU first
                job.cpus.remove(min(job.cpus, key=lambda cpu: (self._near(job.cpus, cpu), -self._socket[cpu], -cpu)))
        free = set(self._socket).difference(*(job.cpus for job in self._jobs.values()))
        for name, job in self._jobs.items():
            while len(job.cpus) < sizes[name]:  # its own, then those of the socket where it has, or could have, most
                chosen = min(
                    free,
                    key=lambda cpu: (
                        self._owner.get(cpu) != name,
                        -self._near(job.cpus, cpu),
                        -self._near(free, cpu),
                        cpu,
                    ),
                )
                free.remove(chosen)
                job.cpus.add(chosen)
        for name, job in self._jobs.items():
            for cpu in job.cpus:
                self._owner.setdefault(cpu, name)

    def _near(self, cpus: Iterable[int], cpu: int) -> int:
        """Return how many of `cpus` are on the socket of `cpu`."""
        return sum(self._socket[other] == self._socket[cpu] for other in cpus)

    def _sizes(self) -> dict[str, int]:
        """Return the number of CPUs of each job: one after the other goes to the job with fewest, up to its request."""
        sizes = {name: job.tasks for name, job in self._jobs.items()}
        for _ in range(len(self._socket) - sum(sizes.values())):
            below = [name for name, job in self._jobs.items() if sizes[name] < job.most]
            if not below:
                break
            sizes[min(below, key=sizes.__getitem__)] += 1
        return sizes


class NodeManager:
    """The node manager: it sets the CPUs of the processes of all jobs on a node.

    Args:
        administrator: the administrator of the node; there must be no other.
        sockets: the CPUs of each socket; None: one socket.
    """

    def __init__(self, administrator: Administrator, sockets: Sequence[Iterable[int]] | None = None) -> None:
        """Start without jobs. Raises TableLostError."""
        self._administrator = administrator
        self.placement = Equipartition([administrator.cpus()] if sockets is None else sockets)
        self._pids: dict[str, list[int]] = {}
        self._set: dict[int, tuple[int, ...]] = {}

    def launch(self, job: str, pids: Sequence[int], cpus: int | None = None) -> list[Mapping[str, str]]:
        """Place a job, and shrink the others: `launch_request` and `pre_launch` of the paper.

        Args:
            job: the job.
            pids: the processes of its tasks, before they execute the program. A task takes its CPUs once the processes
                that hold them have polled.
            cpus: number of requested CPUs; None: all.

        Returns:
            The environment variables of each task.

        Raises:
            InputError: as `Equipartition.start`.
            TestbedError: the table is lost or full, or a process has ended.
        """
        self.placement.start(job, len(pids), cpus)
        variables: list[Mapping[str, str]] = []
        for pid, mask in zip(pids, self.placement.masks()[job], strict=True):
            result, found = self._administrator.prepare(pid, mask, CHANGE)
            if result.error:
                self._pids[job] = list(pids[: len(variables)])
                self.end(job)
                raise TestbedError(f"process {pid} of the job {job} cannot be placed: {result.name}")
            self._set[pid] = mask
            variables.append(found)
        self._pids[job] = list(pids)
        self._apply()
        return variables

    def end(self, job: str) -> None:
        """Expand the others onto the CPUs of a job that has ended: `post_term` and `release_resources` of the paper.

        Raises:
            InputError: the job is not on the node.
            TestbedError: the table is lost.
        """
        self.placement.end(job)
        for pid in self._pids.pop(job):
            self._administrator.finalize(pid)
            self._set.pop(pid, None)
        self._apply()

    def _apply(self) -> None:
        for job, masks in self.placement.masks().items():
            for pid, mask in zip(self._pids[job], masks, strict=True):
                if self._set.get(pid) != mask:
                    result = self._administrator.set_mask(pid, mask, CHANGE)
                    if result.error and result is not DromResult.NO_PROCESS:  # `end` follows for a task that has ended
                        raise TestbedError(f"the CPUs of process {pid} of the job {job} cannot be set: {result.name}")
                    self._set[pid] = mask
