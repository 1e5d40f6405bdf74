"""The inputs and the outcome of a simulation of Slurm on a cluster whose jobs share nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tracebed.slurm.rules.conditions import Arrays, Conditions
from tracebed.slurm.rules.entries import Entries
from tracebed.slurm.rules.licenses import Licenses
from tracebed.slurm.rules.limits import Limits
from tracebed.slurm.rules.multifactor import Associations
from tracebed.slurm.rules.outlook import Bookings
from tracebed.slurm.rules.preemption import Preemption
from tracebed.slurm.rules.resources import Parts, Request, Resources

NEVER = math.nan
NO_LIMITS = Limits()
ENDED, KILLED, PREEMPTED = range(3)
"""How a job ended: by itself, beyond its time limit or the end of its reservation, or since it was preempted."""
SUBMIT, END, COMPUTE, WAKE, CHANGE, NOTICE = range(6)
"""Kinds of events. `CHANGE`: a condition of a start may be met, which slurmctld does not notice at once. `NOTICE`:
slurmctld notices that an advance reservation has begun or ended."""


CHECK_S = 30.0
"""Interval at which slurmctld looks for jobs that have passed their time limit, s."""


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
        requests: the resources that each job requests.
        partition: partition of each job.
        user: user of each job, for `bf_max_job_user`.
        fixed: part of the priority of each job that does not change.
        tier: tier of each partition.
        free: the resources of the empty cluster.
        associations: the tree of accounts and users.
        association: association of each job; -1: none.
        usage_factor: factor of the usage of each job.
        billing: weights of the amounts of a job in its usage (`limits.billed`), of each partition.
        reserve: whether backfill reserves nodes for each job.
        age, max_age_s, fairshare, period_s: of priority/multifactor, see `machine.Weights`.
        first_period_s: instant of the first computation of priorities, s.
        kill_wait_s: see `plan.backfill`.
        check_s: instant at which slurmctld looks for jobs beyond their limit, as it does every `CHECK_S`, s.
        billing_most: whether the largest weighted amount is billed, not the sum.
        limits: the limits of the jobs.
        conditions: conditions of the starts; None: there are none.
        arrays: the arrays of the jobs; None: there are none.
        array_reservations: most tasks of an array with a reservation in a backfill pass (`bf_max_job_array_resv`).
        job_depth: number of jobs of a partition in a pass of the main loop; 0: any number (`partition_job_depth`).
        part_test, user_part_test: number of jobs of a partition, and of a user in a partition, in a backfill pass; 0:
            any number (`bf_max_job_part`, `bf_max_job_user_part`).
        complete_wait_s: for how long no job starts while another one is completing, s (`CompleteWait`).
        licenses: the licences; None: no job wants any.
        bookings: the advance reservations; None: there are none.
        preemption: which jobs preempt which; None: no job preempts another one.
        begin_s: instant at which the simulation begins, s. Jobs that were submitted before it wait at this instant.
        entries: the entries of jobs in several partitions, each of which is a job here; None: there are no such jobs.
        held: of each job, the cores by node that it holds when the simulation begins; empty: no job runs then.
        since: start of each job that runs then, s, not before 0 of Slurm's clock; NaN: the job waits.
        usage: decayed, billed seconds of each association when the simulation begins; empty: 0.
        factors: fair-share factor of each association when the simulation begins; empty: as without usage.
        shortest: shortest time limit with which each job may start (`--time-min`), s; 0: its time limit. Empty: no job
            has one.
        deadline: instant until which each job must end, s; inf: none. Empty: no job has one.
        together: heterogeneous job of each component; -1: none. Empty: there are none.
        watched: the simulation ends when the first `watched` jobs have started; 0: when all jobs have ended.
    """

    submit: Sequence[float]
    run_time: Sequence[float]
    limit: Sequence[int]
    launch_s: Sequence[float]
    overrun_s: Sequence[float]
    over_limit_s: Sequence[float]
    end_s: Sequence[float]
    requests: Sequence[Request]
    partition: Sequence[int]
    user: Sequence[int]
    fixed: Sequence[float]
    tier: Sequence[int]
    free: Resources
    associations: Associations
    association: Sequence[int]
    usage_factor: Sequence[float]
    billing: Sequence[Sequence[float]]
    reserve: Sequence[bool]
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
    together: Sequence[int] = ()
    watched: int = 0


class Stint(NamedTuple):
    """A time in which a job held cores, before it was requeued or suspended."""

    job: int
    start: float
    end: float
    parts: Parts


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
