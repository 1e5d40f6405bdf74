"""The interface of batch systems: submit a job, observe all jobs at once, cancel jobs, describe the system."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from tracebed.converters.workload import Workload
from tracebed.ground.errors import TestbedError
from tracebed.ground.registry import Registry
from tracebed.ground.states import JobState
from tracebed.machine.machine import Machine
from tracebed.machine.nodes import NodeFacts
from tracebed.machine.power import PowerState


class Phase(enum.StrEnum):
    """Phase of a job in a batch system."""

    WAITING = "waiting"  # the job is in the queue
    RUNNING = "running"  # the job holds nodes, and its processes run, are stopped, or are being started
    ENDING = "ending"  # the job has ended, and its nodes are being cleaned up
    ENDED = "ended"  # the job has ended, and its nodes are free
    # The state of the batch system is unknown to tracebed, or the batch system no longer lists the job.
    UNKNOWN = "unknown"


LIVE = frozenset({Phase.WAITING, Phase.RUNNING, Phase.ENDING})  # phases of a job that has not ended


@dataclass(frozen=True)
class JobRequest:
    """A job to be submitted."""

    name: str
    """Name of the job in the batch system. Jobs of other replays have other names."""
    nodes: int
    limit_s: float | None
    """Time limit, wall s. None: the default of the batch system."""
    script: Path
    """Shell script of the job, on a file system that all nodes see."""
    arguments: tuple[str, ...]
    output: Path
    """File for the output of the job."""
    held: bool = False
    """Whether the job waits in the queue until `ResizingSystem.start`, and is not started again after a failure."""
    dependency: str = ""
    """Conditions of the start, in the form of the batch system. Only for a system with `dependency`."""
    demands: tuple[str, ...] = ()
    """Options of the submission that say what the job demands, in the form of the batch system, as `Demands` has them.
    Empty: `nodes` whole nodes of the partition of the settings."""
    requeued: bool = True
    """Whether the batch system may start the job again after a failure."""


@dataclass(frozen=True)
class JobObservation:
    """State of a job at one instant, as the batch system reports it."""

    id: str
    name: str
    phase: Phase
    word: str
    """State, as named by the batch system."""
    state: JobState = JobState.UNKNOWN
    """Final state, if the job has ended."""
    reason: str = ""
    """Reason of the state, as given by the batch system."""
    start: float | None = None
    """Earliest possible start of the job, s since 1970; the latest one is `SystemFacts.resolution_s` later. None: the
    job has not started."""
    end: float | None = None
    """End of the job, s since 1970, rounded down. None: not ended."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes of the job, in the order of the batch system."""
    hopeless: bool = False
    """Whether a waiting job will never start unless an operator changes something."""
    limited: bool = False
    """Whether a waiting job waits for a limit on what its user, account or QOS holds: for the end of other jobs."""
    cores: Mapping[str, int] = field(default_factory=dict)
    """Node -> cores of the job there when it started. Empty: all cores of its nodes."""

    @property
    def is_left(self) -> bool:
        """Whether the job is ending and has no nodes any more."""
        return self.phase is Phase.ENDING and not self.nodes


class Demands(NamedTuple):
    """What the jobs of a workload demand of a batch system, in its form."""

    options: list[tuple[str, ...]]
    """Options of the submission of each job with a run time and a size (`Workload.runnable`)."""
    counts: dict[str, int]
    """Assumption or omission -> number of jobs, for the warnings of the run."""
    users: tuple[str, ...] = ()
    """Other users than that of the replay, as whom jobs run."""
    longest_s: tuple[float, ...] = ()
    """Longest time limit that the system allows each job, wall s; infinity: any. Only of `PooledSystem`."""
    shrink_only: frozenset[int] = frozenset()
    """Numbers of the malleable jobs that the system can shrink, and not expand. Only of `PooledSystem`."""


class LayerJob(NamedTuple):
    """A running malleable job that a layer beside the batch system may resize."""

    id: str
    nodes: tuple[str, ...]
    """Its nodes. The first one runs its script, and stays."""
    least: int
    preferred: int
    most: int
    largest: int
    """Largest number of nodes that the job has had."""
    waits: bool
    """Whether a request of the job for nodes waits."""


class LayerPass(NamedTuple):
    """The decisions of a pass of a layer, by the IDs of jobs."""

    shrinks: dict[str, tuple[str, ...]]
    """The nodes that a job leaves."""
    expansions: dict[str, int]
    """The largest number of nodes for which a job asks."""
    excluded: dict[str, str]
    """Why a job cannot be resized, or only shrink."""
    limits_s: dict[str, float]
    """The time limit of each job that has one, wall s."""


class LayerFacts(NamedTuple):
    """What a batch system permits to a layer."""

    sets_limits: bool
    """Whether the user of the replay may change the time limits of running jobs."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeState:
    """State of a node at one instant, as the batch system reports it."""

    word: str  # state, as named by the batch system
    usable: bool  # whether jobs can start on the node once it is idle: it is not down, drained, or without an answer
    held: bool  # whether jobs hold the node, of whatever user


@dataclass(frozen=True)
class SystemFacts:
    """Description of a batch system and its nodes."""

    name: str
    version: str
    nodes: tuple[NodeFacts, ...]
    """Nodes on which the jobs may run, in the order of the batch system."""
    parameters: Mapping[str, Any]
    """Parameters on which the decisions of the scheduler depend, by the names of the batch system."""
    resolution_s: float
    """Resolution of the starts that the batch system reports, wall s."""
    limit_step_s: float
    """Time limits are multiples of this time, wall s."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Additional facts for the run: partition, state of the nodes, accounting."""


class Refused(TestbedError):
    """A final refusal of a job or of a resize, for example because the batch system has too few nodes."""


class BatchSystem(Protocol):
    """A batch system. Methods may be called from several threads.

    All methods raise TestbedError, with `transient` if a retry may succeed.
    """

    name: ClassVar[str]

    def facts(self) -> SystemFacts:
        """Return the description of the system."""

    def submit(self, request: JobRequest) -> str:
        """Submit a job and return its ID. Raises Refused if the system will never accept the job."""

    def poll(self, prefix: str, known: Collection[str]) -> dict[str, JobObservation]:
        """Return the jobs whose names begin with `prefix`, by ID, in one request for all jobs.

        Two jobs have the same name if a submission whose answer was lost was repeated.

        Args:
            prefix: the beginning of the names of all jobs of a replay.
            known: ids of jobs that have not ended yet. They are also searched in the accounting of the system.
        """

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs. Jobs that have ended are ignored."""


@runtime_checkable
class DependingSystem(BatchSystem, Protocol):
    """A batch system whose jobs may depend on each other."""

    def dependency(self, conditions: Sequence[tuple[str, str, float]], *, any_of: bool) -> str | None:
        """Return conditions as in `JobRequest.dependency`; None: the system cannot express one of them.

        Args:
            conditions: (kind, id, delay in wall s) of each, with the kinds `after`, `afterok`, `afternotok` and
                `afterany`.
            any_of: whether one of them suffices.
        """


@runtime_checkable
class SleepingSystem(BatchSystem, Protocol):
    """A batch system that may switch nodes off, and on for a job."""

    def power_states(self) -> dict[str, PowerState]:
        """Return the state of the power of each node, by name; empty: no node is ever switched off."""


@runtime_checkable
class ResizingSystem(BatchSystem, Protocol):
    """A batch system that starts jobs on chosen nodes and resizes running jobs, so that a policy of tracebed decides.

    To expand a job, a second job takes the additional nodes (`request`), and then gives them to the first (`merge`).
    `cancel` withdraws the second job. The methods raise Refused if a repetition of the call is useless.
    """

    def check_resizing(self) -> None:
        """Raise InputError if the configuration of the batch system does not permit resizes."""

    def node_states(self) -> dict[str, NodeState]:
        """Return the state of each node, by name."""

    def start(self, id: str, nodes: Sequence[str]) -> None:
        """Let a held job start on `nodes`."""

    def hold(self, id: str) -> None:
        """Keep a waiting job from starting until the next `start`."""

    def request(self, id: str, name: str, nodes: Sequence[str]) -> str:
        """Take `nodes` for the running job `id` by a second job with a name, and return the ID of the second job."""

    def merge(self, id: str, second: str) -> None:
        """Give the nodes of a second job to the running job `id`, for which they were requested."""

    def shrink(self, id: str, nodes: Sequence[str]) -> None:
        """Let the running job `id` keep only `nodes`, which include its first node."""


@runtime_checkable
class DemandingSystem(BatchSystem, Protocol):
    """A batch system to which jobs are submitted with demands of their own (`BatchSettings.demands`)."""

    def demands(self, workload: Workload, folder: Path, speed: float) -> Demands:
        """Return what the jobs of a workload demand. Users of jobs must be able to enter the `folder` of the run.

        The `speed` is in trace seconds per wall second.
        """


@runtime_checkable
class PooledSystem(ResizingSystem, Protocol):
    """A batch system of several partitions, in which jobs with demands of their own start on chosen nodes.

    Each job holds whole nodes, which a policy chooses among those that can serve it.
    """

    def machine(self, nodes: Collection[str]) -> Machine:
        """Return the machine: some nodes of the batch system, and its partitions."""

    def held_demands(
        self, workload: Workload, folder: Path, speed: float, cores: Sequence[int], malleable: Sequence[bool]
    ) -> Demands:
        """Return what jobs demand that wait held for their `start`, as `DemandingSystem.demands`, but no size.

        Args:
            workload: the jobs, with a run time and a size (`Workload.runnable`).
            folder: the folder of the run.
            speed: trace seconds per wall second.
            cores: cores that each job has on each of its nodes, shape (jobs,).
            malleable: whether each job may be resized, shape (jobs,).

        Raises:
            InputError: a job cannot be started or resized as a policy decides.
        """


@runtime_checkable
class LayeredSystem(DemandingSystem, Protocol):
    """A batch system beside whose own decisions a layer resizes running jobs.

    To expand a job, a second job asks for nodes, and then gives them to the first (`merge`). `cancel` withdraws the
    second job, also while it waits. The methods raise Refused if a repetition of the call is useless.
    """

    def check_layer(self, policy: str) -> LayerFacts:
        """Raise InputError if the policy is unknown, or the configuration of the batch system permits no resizes."""

    def layer_pass(self, policy: str, jobs: Sequence[LayerJob], released: Collection[tuple[str, str]]) -> LayerPass:
        """Decide by a policy which jobs leave nodes, and which ask for nodes.

        Args:
            policy: the policy.
            jobs: the jobs without a pending resize, in the order of their starts.
            released: pairs (ID of a job, node) of nodes that jobs are about to leave, which count as free.
        """

    def ask(self, id: str, name: str, most: int, wait_s: float) -> tuple[str, tuple[str, ...]]:
        """Ask for up to `most` nodes for the running job `id` by a second job with a name.

        The call lasts until the nodes are granted, at most `wait_s`: then the second job is withdrawn. The result is
        the ID of the second job and its nodes.
        """

    def merge(self, id: str, second: str) -> None:
        """Give the nodes of a second job to the running job `id`, for which they were asked."""

    def shrink(self, id: str, nodes: Sequence[str]) -> None:
        """Let the running job `id` keep only `nodes`, which include its first node."""

    def set_limit(self, id: str, limit_s: float) -> None:
        """Set the time limit of a running job, wall s, rounded up to the resolution of the batch system."""


class BatchSystemFactory(Protocol):
    """A class of batch systems."""

    def __call__(self, settings: BatchSettings) -> BatchSystem:
        """Return the batch system with these settings. Raises InputError if an option is invalid."""


@dataclass(frozen=True)
class BatchSettings:
    """Settings of a batch system and of its submissions."""

    partition: str | None = None
    """Partition or queue of all jobs. None: the default of the batch system."""
    options: tuple[str, ...] = ()
    """Additional options of each submission, `KEY=VALUE` or `KEY`, in the form of the batch system."""
    program: str | None = None
    """Command of the shell that does the work of malleable jobs under a policy. None: the work is emulated."""
    configuration: Path | None = None
    """Configuration file of the batch system (`SLURM_CONF`). None: the file given by the environment."""
    demands: bool = False
    """Whether each job is submitted with its own partition, account, QOS and resources. If not, all jobs get whole
    nodes of `partition`."""


# The installed batch systems.
BATCH_SYSTEMS = Registry[BatchSystemFactory]("tracebed.batch_systems", "batch system", Callable)
