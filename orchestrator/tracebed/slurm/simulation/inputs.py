"""The inputs and the outcome of a simulation of Slurm on a cluster whose jobs share nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray, IntArray
from tracebed.ground.table import repeated
from tracebed.orchestrator.scheduling.dependencies import Condition
from tracebed.orchestrator.scheduling.names import ResizePolicy
from tracebed.slurm.simulation.resources import Parts, Request, Resources

Floats: TypeAlias = Sequence[float] | FloatArray
Ints: TypeAlias = Sequence[int] | IntArray
Truths: TypeAlias = Sequence[bool] | BoolArray


def listed(values: Any) -> list[Any]:
    """Return a column as a list, which has no scalars of NumPy."""
    return values.tolist() if isinstance(values, np.ndarray) else [*values]


SUBMITTED, JOBS = -2, -1
"""Kinds of a counter: jobs that run or wait, and jobs that run. The other kinds are resources of running jobs."""
CORES, MEMORY, NODES, BILLING, GRES = range(5)
"""Kinds of a counter of resources: memory in MiB. The generic resources begin at `GRES`."""
OF_PARENT = -1.0
"""Shares of an association with `Fairshare=parent`."""
CANCEL, REQUEUE, SUSPEND = range(3)
"""What happens to a preempted job (`PreemptMode`)."""
ENDED, KILLED, PREEMPTED, LOST = range(4)
"""How a job ended: by itself, beyond its time limit or the end of its reservation, since it was preempted, or since one
of its nodes went down."""
BACK, DRAINED, DOWN = range(3)
"""What becomes of a node: it is back, takes no further jobs, or is down."""
CHECK_S = 30.0
"""Interval at which slurmctld looks for jobs beyond their time limit, and for jobs whose nodes have booted, s."""
LAST_WEIGHT = 2**31 - 1
"""Weight of a node that is off: it is allocated last, whatever its own weight."""
POWER_LOOP_S = 1.0005
"""Period of the thread that switches nodes off and on, s: it sleeps for a second (Slurm 22.05.8)."""


@dataclass(frozen=True)
class Conditions:
    """The conditions of all jobs.

    Attributes:
        earliest: earliest start of each job, s; -inf: none.
        any_of: whether one of the conditions suffices, for each job.
        group: jobs of one name and one user, if a job waits for its group; -1: other jobs.
        kill_invalid: whether a job whose condition is impossible is cancelled (`kill_invalid_depend`).
    """

    earliest: Floats
    dependencies: Sequence[tuple[Condition, ...]]
    any_of: Truths
    group: Ints
    fails: Truths
    kill_invalid: bool = False

    @classmethod
    def none(cls, count: int) -> Conditions:
        """Return the conditions of `count` jobs without any."""
        no = repeated(False, count)
        return cls(repeated(-math.inf, count), [()] * count, no, repeated(-1, count), no)


@dataclass(frozen=True)
class Arrays:
    """The array of each job (-1: none), and the largest number of running tasks of each array (0: any number)."""

    of: Ints
    most: Sequence[int] = ()

    @classmethod
    def none(cls, count: int) -> Arrays:
        """Return the arrays of `count` jobs that belong to none."""
        return cls(repeated(-1, count))


@dataclass(frozen=True)
class Entries:
    """The entries of each job in Slurm's queue. A job in several partitions (`--partition=cpu,gpu`) has one for each.

    Of each entry, there are the first entry of its job, and the next one (-1: none). `one_reservation`: one entry of a
    job at most has a reservation in a pass (`bf_one_resv_per_job`).
    """

    first: Ints
    following: Ints
    one_reservation: bool = False

    @classmethod
    def of(cls, jobs: Sequence[int], *, one_reservation: bool = False) -> Entries:
        """Return the entries of jobs. `jobs`: the job of each entry."""
        if jobs == range(len(jobs)):
            return cls(jobs, repeated(-1, len(jobs)), one_reservation)
        first, last = dict[int, int](), dict[int, int]()
        following = [-1] * len(jobs)
        for entry, job in enumerate(jobs):
            first.setdefault(job, entry)
            if job in last:
                following[last[job]] = entry
            last[job] = entry
        return cls([first[job] for job in jobs], following, one_reservation)

    @property
    def several(self) -> bool:
        """Whether any job has several entries."""
        return bool(np.max(self.following, initial=-1) >= 0)


@dataclass(frozen=True)
class Licenses:
    """The licences of the cluster and of each job by kind; whether a backfill pass reserves them (`bf_licenses`)."""

    total: Sequence[int]
    wanted: Sequence[Sequence[int]]
    planned: bool = False

    @classmethod
    def none(cls, count: int) -> Licenses:
        """Return the licences of `count` jobs that want none."""
        return cls((), [()] * count)


class Limit(NamedTuple):
    """A limit of a group of jobs."""

    counter: int
    kind: int
    most: int
    reason: str
    """The reason that squeue prints."""


@dataclass(frozen=True)
class Limits:
    """The limits of associations and QOS on all jobs.

    A limit is a counter with a largest value, such as the cores of the running jobs of one user in one QOS. Jobs with
    the same user, account, QOS and partition are a group with the same limits.

    Attributes:
        limits: limits of each group, in the order in which Slurm checks them; those of jobs before those of resources.
        counted: (counter, kind) of each counter in which the jobs of a group count.
    """

    group: Ints = ()
    limits: Sequence[Sequence[Limit]] = ()
    counted: Sequence[Sequence[tuple[int, int]]] = ()
    counters: int = 0


def amounts_of(
    request: Request, parts: Parts | None, nodes: Resources, weights: Sequence[float], most: bool
) -> list[int]:
    """Return the amounts of a job by kind: of its cores `parts`; None: of the requested ones. Weights: see `billed`."""
    if parts is None:
        cores, count = request.cores, request.fewest
        memory = max(0, request.memory) * (cores if request.by_core else count)
    else:
        cores, count = sum(parts.values()), len(parts)
        memory = sum(nodes.memory_of(request, node, own) for node, own in parts.items())
    amounts = [cores, memory, count, 0, *(each * count for each in request.gres)]
    amounts[BILLING] = int(billed(amounts, weights, most))
    return amounts


def billed(amounts: Sequence[int], weights: Sequence[float], most: bool) -> float:
    """Return the billing of a job: the sum of weighted amounts, or, if `most`, the largest one."""
    total = 0.0
    for amount, weight in zip(amounts, weights, strict=True):
        value = amount * weight
        total = max(total, value) if most else total + value
    return total


@dataclass(frozen=True)
class Associations:
    """The tree of accounts and users. The first one is the root. Each account comes before its children.

    Attributes:
        parent: parent of each association; that of the root is the root.
        shares: shares of each association among its siblings, or `OF_PARENT`.
        half_life_s: time in which usage decays to one half, s; 0: no decay.
        resets: instants at which usage is set to zero, whole seconds, in ascending order.
        dampening: 0: Fair Tree; otherwise `FairShareDampeningFactor` of the classic fair share.
    """

    parent: Sequence[int]
    shares: Sequence[float]
    is_user: Sequence[bool]
    half_life_s: float = 0.0
    resets: Sequence[int] = ()
    dampening: int = 0


class Booked(NamedTuple):
    """An advance reservation."""

    begin: int
    end: int
    kill: int
    """When the jobs in the reservation are killed: its end, or `ResvOverRun` later."""
    nodes: int
    """Mask of its nodes."""
    flexible: bool = False
    """Whether its jobs may also run on other nodes, and outside of its time."""


@dataclass(frozen=True)
class Bookings:
    """The advance reservations, and the one in which each job runs (-1: none).

    `notices`: instants at which slurmctld notices that one has begun or ended, s of the simulation.
    """

    booked: Sequence[Booked]
    inside: Ints
    notices: Sequence[float] = ()

    @classmethod
    def none(cls, count: int) -> Bookings:
        """Return no reservations for `count` jobs."""
        return cls((), repeated(-1, count))


@dataclass(frozen=True)
class Preemption:
    """Classes of jobs, such as partitions or QOS, and which of them preempt which.

    Attributes:
        of: class of each job.
        may: mask of the classes whose jobs a job of each class may preempt.
        rank: of each class; jobs of a smaller rank are preempted first.
        mode: what happens to a preempted job of each class.
        grace_s: time from the preemption to the end of a job of each class, s.
        exempt_s: a job of each class that has run for less time is not preempted, s.
        youngest: whether the youngest jobs are preempted first (`preempt_youngest_first`).
        again: how often the jobs are sorted again (`preempt_reorder_count`).
    """

    of: Ints
    may: Sequence[int]
    rank: Sequence[int]
    mode: Sequence[int]
    grace_s: Sequence[int]
    exempt_s: Sequence[float]
    youngest: bool = False
    again: int = 1

    @classmethod
    def none(cls, count: int) -> Preemption:
        """Return that no job preempts another one."""
        return cls(repeated(0, count), [0], [0], [CANCEL], [0], [0.0])


class NodeChange(NamedTuple):
    """The instant at which the availability of a node changes, s."""

    at: float
    node: int
    kind: int
    """`BACK`, `DRAINED` or `DOWN`."""


@dataclass(frozen=True)
class Availability:
    """The changes of the availability of nodes, and whether a job that loses a node returns to the queue.

    Plans count on no node that is out, since Slurm does not know when it returns.
    """

    changes: Sequence[NodeChange] = ()
    requeues: bool = True


@dataclass(frozen=True)
class Resizing:
    """The layer that resizes running jobs beside Slurm's loops, see `slurm.resize_layer`. Sizes are in nodes.

    Expanders are the last entries of the inputs, and are never submitted: a malleable job that may expand has one, with
    what the job requests on one node.

    Attributes:
        policy: how the layer decides.
        interval_s, phase_s: the layer makes a pass at multiples of the interval after the phase, s.
        least, preferred, most: sizes of each job; 0: rigid. Each job starts at the size that it requests.
        rates: of each job, its rate at each size from the least to the most, relative to that at its requested size.
        expander: the expander of each job; -1: the job does not expand.
        shrinks: whether each job may shrink.
        grows: whether each job may grow beyond the largest size that it has had.
        pause_s: for how long a job does not work when a resize takes effect, s.
        release_s: time from the decision of a shrink until the nodes are free, s.
        merge_s, merge_rank_s: time from the start of an expander of one node until the job has its nodes, and the
            additional time for each further node, s.
        counted: whether a merged expander stays counted as a running job (priority/multifactor).
    """

    policy: ResizePolicy
    interval_s: float
    phase_s: float
    least: Sequence[int]
    preferred: Sequence[int]
    most: Sequence[int]
    rates: Sequence[Sequence[float]]
    expander: Sequence[int]
    shrinks: Sequence[bool]
    grows: Sequence[bool]
    pause_s: float = 0.0
    release_s: float = 0.0
    merge_s: float = 0.0
    merge_rank_s: float = 0.0
    counted: bool = False

    @property
    def expanders(self) -> int:
        """Number of expanders."""
        return sum(entry >= 0 for entry in self.expander)


@dataclass(frozen=True)
class PowerSaving:
    """Slurm's power saving (`SuspendTime`): when slurmctld switches nodes off, and on for a job.

    A thread of slurmctld looks at the nodes, each second after a change of a node, else at each `interval_s`.

    Attributes:
        suspend_s: whole seconds after which an idle node is switched off; -1: never.
        suspend_timeout_s: whole seconds from then on for which no job is allocated the node (`SuspendTimeout`).
        boot_s: time from the decision to switch a node on until its slurmd registers, s.
        off: whether each node is off when the simulation begins.
        spared: mask of nodes that are never switched off (`SuspendExcNodes`, `SuspendExcParts`).
        kept: (mask, count): of these nodes, so many idle ones stay on (`SuspendExcNodes=n[1-8]:2`).
        suspend_rate, resume_rate: nodes that are switched off, or on, in a minute; 0: any number.
        interval_s, least_interval_s: `power_save_interval` and `power_save_min_interval` of `SlurmctldParameters`.
        phase_s: an instant at which the thread looks, s.
        linear: whether a job that does not fit on the nodes that are on gets nodes as if all were on (`select/linear`);
            else it gets those that are on first.
    """

    suspend_s: Sequence[int]
    suspend_timeout_s: Sequence[int]
    boot_s: Sequence[float]
    off: Sequence[bool]
    spared: int = 0
    kept: Sequence[tuple[int, int]] = ()
    suspend_rate: int = 60
    resume_rate: int = 300
    interval_s: int = 10
    least_interval_s: int = 0
    phase_s: float = 0.0
    linear: bool = False


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Inputs:
    """What a simulation needs, in arrays. Jobs are in the order of their submission.

    Attributes:
        submit: submission of each job, s.
        run_time: run time of each job, s; infinite: until its time limit.
        limit: time limit of each job, s.
        launch_s: time from the decision to the start of the processes, for each job, s.
        overrun_s: time from the limit of each job until slurmctld kills it, s; NaN: until the next check.
        over_limit_s: time that each job may run beyond its limit, s (`OverTimeLimit`).
        end_s: time from the end of the processes to the release of the nodes, for each job, s.
        user: user of each job, for `bf_max_job_user`.
        fixed: part of the priority of each job that does not change.
        association: association of each job; -1: none.
        billing: weights of the amounts of a job in its usage (`billed`), of each partition.
        age, max_age_s, fairshare, period_s: of priority/multifactor, see `machine.Weights`.
        first_period_s: instant of the first computation of priorities, s.
        kill_wait_s: a job that has passed its expected end is expected to end this much later, s.
        check_s: instant at which slurmctld looks for jobs beyond their limit, as it does every `CHECK_S`, s.
        billing_most: whether the largest weighted amount is billed, not the sum.
        array_reservations: most tasks of an array with a reservation in a backfill pass (`bf_max_job_array_resv`).
        job_depth: number of jobs of a partition in a pass of the main loop; 0: any number (`partition_job_depth`).
        part_test, user_part_test: number of jobs of a partition, and of a user in a partition, in a backfill pass; 0:
            any number (`bf_max_job_part`, `bf_max_job_user_part`).
        complete_wait_s: for how long no job starts while another one is completing, s (`CompleteWait`).
        begin_s: instant at which the simulation begins, s. Jobs that were submitted before it wait at this instant.
        entries: the entries of jobs in several partitions, each of which is a job here; None: there are no such jobs.
        held: of each job, the cores by node that it holds when the simulation begins; empty: no job runs then.
        since: start of each job that runs then, s, not before 0 of Slurm's clock; NaN: the job waits.
        usage: decayed, billed seconds of each association when the simulation begins; empty: 0.
        factors: fair-share factor of each association when the simulation begins; empty: as without usage.
        shortest: shortest time limit with which each job may start (`--time-min`), s; 0: its time limit. Empty: no job
            has one.
        deadline: instant until which each job must end, s; inf: none. Empty: no job has one.
        het_job: heterogeneous job of each component; -1: none. Empty: there are none.
        availability: the outages of nodes; None: there are none.
        resizing: the layer that resizes running jobs; None: there is none.
        saving: the power saving; None: nodes are always on. Outages, a layer and jobs that are suspended are not
            modeled beside it.
        watched: the simulation ends when the first `watched` jobs have started; 0: when all jobs have ended.
    """

    submit: Floats
    run_time: Floats
    limit: Ints
    launch_s: Floats
    overrun_s: Floats
    over_limit_s: Floats
    end_s: Floats
    requests: Sequence[Request]
    partition: Ints
    user: Ints
    fixed: Floats
    tier: Sequence[int]
    free: Resources
    associations: Associations
    association: Ints
    usage_factor: Floats
    billing: Sequence[Sequence[float]]
    reserve: Truths
    age: float
    max_age_s: float
    fairshare: float
    period_s: float
    first_period_s: float
    kill_wait_s: int = 30
    check_s: float = 0.0
    billing_most: bool = False
    limits: Limits = NO_LIMITS
    conditions: Conditions | None = None
    arrays: Arrays | None = None
    array_reservations: int = 20
    job_depth: int = 0
    part_test: int = 0
    user_part_test: int = 0
    complete_wait_s: int = 0
    licenses: Licenses | None = None
    bookings: Bookings | None = None
    preemption: Preemption | None = None
    entries: Entries | None = None
    begin_s: float = -math.inf
    held: Sequence[Parts] = ()
    since: Sequence[float] = ()
    usage: Sequence[float] = ()
    factors: Sequence[float] = ()
    shortest: Sequence[int] = ()
    deadline: Sequence[float] = ()
    het_job: Sequence[int] = ()
    availability: Availability | None = None
    resizing: Resizing | None = None
    saving: PowerSaving | None = None
    watched: int = 0


class Stint(NamedTuple):
    """A time in which a job held cores, before it was requeued, suspended or resized."""

    job: int
    start: float
    end: float
    parts: Parts


class Resized(NamedTuple):
    """A resize that took effect. Times are in s, sizes in nodes."""

    job: int
    asked: float
    """The decision of the layer."""
    decided: float
    """When the job begins to adapt."""
    applied: float
    """When it works on its new nodes."""
    ended: float
    """When the nodes of a shrink are free."""
    before: int
    after: int


class Switched(NamedTuple):
    """The instant at which slurmctld decides to switch a node off or on, s."""

    node: int
    at: float
    on: bool


@dataclass
class Outcome:
    """What happened: times of each job, s (NaN: never), the cores that each job held by node, and how it ended.

    The times and the cores are those of the last run of a job. `active` is the instant from which on it ran without
    being suspended, `restarts` how often it was requeued. `refused` is the limit of its group that refused a job at its
    submission; -1: none.
    """

    start: list[float]
    launched: list[float]
    end: list[float]
    active: list[float]
    fate: list[int]
    restarts: list[int]
    refused: list[int]
    parts: Sequence[Parts]
    stints: list[Stint]
    resizes: list[Resized] = field(default_factory=list)
    switched: list[Switched] = field(default_factory=list)
