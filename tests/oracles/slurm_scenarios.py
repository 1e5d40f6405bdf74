"""Small workloads that show one rule of Slurm each, for `record_slurm_events.py` and `test_slurm_events.py`.

Two nodes of four cores, unless a scenario has others. Passes are made every second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True)
class Submitted:
    """A job, an array of jobs (`tasks`), or a heterogeneous job (`components`: cores of the further components).

    Times are s, and the limit min (0: none is asked for). `stubborn`: the job ignores SIGTERM. The options of sbatch
    follow from `columns`, further columns of the workload; `options` are others.
    """

    at: float
    run: float
    cores: int
    limit: int = 1
    tasks: str = ""
    fails: bool = False
    stubborn: bool = False
    columns: Mapping[str, str | float] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    components: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """A workload and its cluster, recorded `until` a second.

    `settings` and `lines` (NodeName, PartitionName) are those of slurm.conf, `accounts` the arguments of sacctmgr. The
    administrator has `actions` at their instants; `@N` is second N of the recording. `stepwise`: the jobs sleep second
    by second, so that a suspended one does not go on.
    """

    name: str
    jobs: tuple[Submitted, ...]
    until: float
    settings: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    actions: tuple[tuple[float, str], ...] = ()
    accounts: tuple[str, ...] = ()
    nodes: int = 2
    stepwise: bool = False


EACH_SECOND = "bf_interval=1,bf_resolution=1,bf_max_job_test=1000,sched_min_interval=0,batch_sched_delay=0"
SCENARIOS: dict[str, Scenario] = {}


def _add(
    name: str, until: float, *jobs: Submitted, parameters: str = "", more: tuple[str, ...] = (), **other: object
) -> None:
    given = dict(item.partition("=")[::2] for item in f"{EACH_SECOND}{parameters}".split(","))
    text = ",".join(f"{key}={value}" if value else key for key, value in given.items())
    settings = (
        f"SchedulerParameters={text}",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        *more,
    )
    lines = ("NodeName=n[1-2] CPUs=4", "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE")
    more_of_it = {"settings": settings, "lines": lines, **other}
    SCENARIOS[name] = Scenario(name, jobs, until, **more_of_it)  # type: ignore[arg-type]


def _job(at: float, run: float, cores: int, limit: int = 1, **other: object) -> Submitted:
    names = ("tasks", "fails", "stubborn", "options", "components")
    own = {name: other.pop(name) for name in names if name in other}
    return Submitted(at, run, cores, limit, columns=other, **own)  # type: ignore[arg-type]


# Job 2 needs the whole cluster from second 20 on: it has no reservation before, so job 3 starts.
_add("begin", 50, _job(0, 5, 4), _job(1, 4, 8, earliest_start=20), _job(2, 22, 1, 2), _job(28, 3, 4))
# The main loop alone looks at job 2 every sched_interval only.
_add(
    "begin-main-loop",
    50,
    _job(0, 3, 4),
    _job(1, 4, 8, earliest_start=10.5),
    parameters=",sched_interval=30,bf_interval=-1",
)
# Priorities of the age count from the begin. They are computed every minute.
AGED = ("PriorityType=priority/multifactor", "PriorityWeightAge=100000", "PriorityMaxAge=1000", "PriorityCalcPeriod=1")
_add(
    "begin-age",
    145,
    _job(0, 110, 8, 2),
    _job(1, 10, 8, earliest_start=40),
    _job(20, 10, 8),
    more=AGED,
    accounts=("list cluster",),
)
_add(
    "dependency",
    30,
    _job(0, 6, 1),
    _job(0.2, 9, 1, fails=True),
    _job(0.4, 2, 1, dependency="after:1"),
    _job(0.6, 3, 1, dependency="afterok:1"),
    _job(0.8, 3, 1, dependency="afterok:2"),
    _job(1.0, 3, 1, dependency="afternotok:2"),
    _job(1.2, 3, 1, dependency="afterany:1,afterany:2"),
    _job(1.4, 3, 1, dependency="afterany:1?afterany:2"),
    _job(1.6, 3, 1, dependency="afterok:2,afterany:5"),
    _job(2.0, 3, 1, dependency="afternotok:1"),
    _job(2.2, 3, 1),
    _job(2.4, 3, 1, dependency="afterok:5?afternotok:2"),
    _job(2.6, 3, 1, dependency="afterok:1:2"),
    _job(2.8, 3, 1, dependency="afterany:13"),
)
# A minute after the start. Job 2 waits, so that a backfill pass is made every second.
_add(
    "dependency-delay",
    75,
    _job(0, 70, 1, 5),
    _job(1, 3, 8),
    _job(2, 3, 1, dependency="after:1+1"),
    _job(3, 3, 1, dependency="afternotok:1,after:1"),
)
_add(
    "dependency-killed",
    40,
    _job(0, 6, 1, fails=True),
    _job(0.4, 3, 1, dependency="afterok:1"),
    _job(0.8, 3, 1, dependency="afterany:2"),
    _job(1.0, 3, 1, dependency="afterok:2"),
    _job(1.2, 3, 1, dependency="after:2"),
    _job(1.4, 3, 1, dependency="afternotok:2"),
    more=("DependencyParameters=kill_invalid_depend",),
)
_add(
    "dependency-after-limit",
    110,
    _job(0, 300, 1),
    _job(1, 3, 1, dependency="afterok:1"),
    _job(1.2, 3, 1, dependency="afternotok:1"),
    _job(1.4, 3, 1, dependency="afterany:1"),
)
_add(
    "singleton",
    45,
    _job(0, 6, 1, application="a"),
    _job(1, 5, 1, application="a", dependency="singleton"),
    _job(2, 4, 1, application="b", dependency="singleton"),
    _job(3, 3, 1, application="a", dependency="singleton"),
    _job(4, 3, 1, application="a"),
)
# No reservation for a job that waits for another one.
_add("dependency-no-reservation", 40, _job(0, 8, 4), _job(1, 3, 8, dependency="afterany:1"), _job(2, 20, 2, 5))
_add(
    "dependency-age",
    145,
    _job(0, 35, 4),
    _job(0.5, 110, 4, 2),
    _job(1, 10, 8, dependency="afterany:1"),
    _job(20, 10, 8),
    more=AGED,
    accounts=("list cluster",),
)
# Arrays
_add("array-limit", 50, _job(0, 6, 2, tasks="1-5%2"), _job(2, 3, 2))
_add(
    "array-of-different-jobs",
    60,
    _job(0, 10, 4),
    _job(0.5, 10, 4),
    _job(1, 8, 4, tasks="0-2"),
    _job(2, 5, 4),
    _job(3, 4, 4),
)
# The nodes are free after 1, 5 and 10 minutes; job 5 fits only beside the third task, if that has no reservation.
RESERVED = (
    _job(0, 25, 4, 1),
    _job(0.2, 25, 4, 5),
    _job(0.4, 50, 2, 10),
    _job(1, 9, 4, 10, tasks="0-2"),
    _job(2, 9, 2, 11),
)
THREE = ("NodeName=n[1-3] CPUs=4", "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE")
_add("array-reserved", 60, *RESERVED, lines=THREE, nodes=3)
_add("bf_max_job_array_resv", 60, *RESERVED, lines=THREE, nodes=3, parameters=",bf_max_job_array_resv=2")
_add(
    "array-depth",
    40,
    _job(0, 6, 8),
    _job(1, 20, 1, tasks="0-4"),
    _job(2, 20, 1),
    parameters=",default_queue_depth=2,bf_interval=-1,sched_interval=60",
)
_add(
    "array-bf-max-job-test",
    40,
    _job(0, 20, 4),
    _job(1, 9, 8),
    _job(2, 9, 1, tasks="0-2"),
    _job(3, 5, 1),
    parameters=",bf_max_job_test=2,sched_interval=-1",
)
_add("array-limit-reservation", 60, _job(0, 9, 8), _job(1, 8, 4, tasks="0-3%1"), _job(2, 9, 4, 1), _job(3, 30, 4, 1))
_add(
    "array-dependency",
    60,
    _job(0, 5, 4, tasks="0-1"),
    _job(1, 3, 1, dependency="afterany:1"),
    _job(1.5, 3, 1, dependency="afterok:1_0"),
    _job(2.0, 3, 1, dependency="after:1"),
)
_add("array-aftercorr", 60, _job(0, 5, 4, tasks="0-2"), _job(1, 3, 1, tasks="0-2", dependency="aftercorr:1"))
# Licences
LICENSED = (
    _job(0, 15, 2, 2, licenses="a:2"),
    _job(1, 5, 4, 1, licenses="a:1"),
    _job(2, 30, 4, 5),
    _job(3, 5, 2, 1, licenses="b:1,a:1"),
)
_add("licenses", 60, *LICENSED, more=("Licenses=a:2,b:1",))
WIDE = (_job(0, 15, 2, 2, licenses="a:2"), _job(1, 5, 8, 1, licenses="a:1"), _job(2, 30, 4, 5))
_add("licenses-no-reservation", 60, *WIDE, more=("Licenses=a:2",))
_add("bf_licenses", 60, *WIDE, more=("Licenses=a:2",), parameters=",bf_licenses")
# The nodes suffice, the licences do not: the plan counts those of the running and the reserved jobs.
_add(
    "bf_licenses-plan",
    80,
    _job(0, 15, 1, 1, licenses="a:1"),
    _job(0.5, 30, 1, 2, licenses="a:1"),
    _job(1, 5, 1, 1, licenses="a:2"),
    _job(2, 5, 1, 1, licenses="a:1"),
    _job(17, 5, 1, 1, licenses="a:1"),
    _job(18, 5, 1, 2, licenses="a:1"),
    more=("Licenses=a:2",),
    parameters=",bf_licenses",
)
# Reservations
CREATE = "scontrol create reservation ReservationName=r User=root StartTime=@{0} EndTime=@{1} Nodes={2} {3}"
_add(
    "reservation-maintenance",
    90,
    _job(0, 15, 4),
    _job(1, 5, 4),
    _job(2, 5, 8),
    _job(3, 5, 2),
    actions=((-2, CREATE.format(30, 60, "n2", "Flags=MAINT")),),
)
_add(
    "reservation-before",
    110,
    _job(0, 20, 8),
    _job(5, 3, 4),
    _job(11, 3, 4, 2),
    _job(30, 3, 1),
    actions=((-2, CREATE.format(75, 90, "ALL", "Flags=MAINT,IGNORE_JOBS")),),
)
# Without backfill. Job 1 fits on no nodes that are not reserved: it blocks no other job.
_add(
    "reservation-main-loop",
    60,
    _job(0, 5, 2, 2),
    _job(1, 5, 2, 1),
    _job(9, 3, 2, 1),
    actions=((-2, CREATE.format(68, 90, "ALL", "")),),
    parameters=",bf_interval=-1,sched_interval=300",
)
# Job 2 waits for node 1, since node 2 is reserved: it blocks job 3.
_add(
    "reservation-main-loop-busy",
    60,
    _job(0, 20, 4, 1),
    _job(1, 5, 6, 1),
    _job(2, 5, 2, 1),
    lines=THREE,
    nodes=3,
    actions=((-2, CREATE.format(30, 90, "n2", "")),),
    parameters=",bf_interval=-1,sched_interval=300",
)
_add(
    "reservation-inside",
    110,
    _job(0, 12, 4, 1, reservation="r"),
    _job(0.5, 5, 4, 1),
    _job(1, 5, 4, 1),
    _job(2, 12, 4, 1, reservation="r"),
    _job(3, 5, 8, 1, reservation="r"),
    _job(24, 5, 4, 1, reservation="r"),
    actions=((-2, CREATE.format(10, 50, "n1", "")),),
)
_add(
    "reservation-end",
    130,
    _job(0, 100, 4, 3, reservation="r"),
    _job(15, 100, 2, 1, reservation="r"),
    actions=((-2, CREATE.format(5, 45, "ALL", "")),),
)
# FLEX: job 1 starts before the reservation, on both nodes, and job 3 runs beyond its end.
_add(
    "reservation-flex",
    70,
    _job(0, 12, 8, 1, reservation="r"),
    _job(1, 6, 4, 1),
    _job(2, 30, 4, 1, reservation="r"),
    actions=((-2, CREATE.format(8, 32, "n1", "Flags=FLEX")),),
)
# Heterogeneous jobs. Job 2 fits on the idle node, job 3 does not: both wait, and job 4 behind them.
_add("het", 60, _job(0, 12, 4), _job(1, 6, 4, components=(4,)), _job(2, 5, 1), _job(16, 6, 1, components=(1,)))
# Each component has nodes of its own: job 3 waits, though job 2 leaves two cores of its node.
_add("het-nodes", 60, _job(0, 15, 4), _job(1, 5, 1, components=(1,)), _job(2, 5, 4), _job(3, 5, 1, 2))
# The main loop starts nothing behind a heterogeneous job, though the nodes are idle; backfill does, 20 s later.
_add(
    "het-main-loop",
    80,
    _job(0, 3, 1),
    _job(6, 5, 1, components=(1,)),
    _job(6.5, 5, 1),
    _job(7, 5, 1, partition="other"),
    parameters=",bf_interval=20",
    lines=("NodeName=n[1-2] CPUs=4", "PartitionName=main Nodes=n1,n2 Default=YES", "PartitionName=other Nodes=n2"),
)
# Preemption
TIERS = (
    "NodeName=n[1-2] CPUs=4",
    "PartitionName=low Nodes=ALL Default=YES PriorityTier=1",
    "PartitionName=high Nodes=ALL PriorityTier=2",
)
BY_TIER = ("PreemptType=preempt/partition_prio",)
PREEMPTED = (
    _job(0, 40, 4, 2),
    _job(0.5, 40, 4, 2),
    _job(8, 6, 4, 1, partition="high"),
    _job(9, 5, 2, 1),
    _job(30, 5, 8, 1, partition="high"),
)
_add("preempt-requeue", 210, *PREEMPTED, lines=TIERS, more=(*BY_TIER, "PreemptMode=REQUEUE"))
_add("preempt-cancel", 70, *PREEMPTED, lines=TIERS, more=(*BY_TIER, "PreemptMode=CANCEL"))
_add("preempt-suspend", 100, *PREEMPTED, stepwise=True, lines=TIERS, more=(*BY_TIER, "PreemptMode=SUSPEND,GANG"))
GRACE = ("NodeName=n[1-2] CPUs=4", "PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=10", TIERS[2])
_add("preempt-grace", 60, *PREEMPTED[:4], lines=GRACE, more=(*BY_TIER, "PreemptMode=CANCEL"))
_add(
    "preempt-exempt",
    80,
    *PREEMPTED[:4],
    lines=TIERS,
    more=(*BY_TIER, "PreemptMode=CANCEL", "PreemptExemptTime=00:00:20"),
)
SMALL = (
    _job(0, 40, 2, 2),
    _job(1.2, 40, 1, 2),
    _job(2.4, 40, 1, 2),
    _job(3.6, 40, 3, 2),
    _job(4.8, 40, 1, 2),
    _job(9, 6, 2, 1, partition="high"),
    _job(18, 6, 3, 1, partition="high"),
)
_add("preempt-order", 60, *SMALL, lines=TIERS, more=(*BY_TIER, "PreemptMode=CANCEL"))
_add(
    "preempt-youngest",
    60,
    *SMALL,
    lines=TIERS,
    more=(*BY_TIER, "PreemptMode=CANCEL"),
    parameters=",preempt_youngest_first",
)
# Preemption by QOS, off for a partition, and of the jobs that do not fit beside each other
QOS = ("modify qos normal set priority=0", "add qos high preempt=normal priority=100", "modify user root set qos+=high")
_add(
    "preempt-qos",
    70,
    _job(0, 40, 4, 2),
    _job(0.5, 40, 4, 2),
    _job(8, 6, 4, 1, queue="high"),
    _job(9, 5, 2, 1),
    accounts=QOS,
    more=("PreemptType=preempt/qos", "PreemptMode=CANCEL"),
)
OFF = (*TIERS[:2], "PartitionName=off Nodes=ALL PriorityTier=1 PreemptMode=OFF", TIERS[2])
_add(
    "preempt-off",
    60,
    _job(0, 30, 4, 2, partition="off"),
    _job(0.5, 30, 2, 2),
    _job(8, 6, 4, 1, partition="high"),
    _job(16, 6, 8, 1, partition="high"),
    lines=OFF,
    more=(*BY_TIER, "PreemptMode=CANCEL"),
)
# Limits by partition: partition p has nodes 1 and 2, partition q node 3
PARTS = ("NodeName=n[1-3] CPUs=4", "PartitionName=p Nodes=n[1-2] Default=YES", "PartitionName=q Nodes=n3")
QUEUED = (
    *(_job(0, 8, 8), _job(0.2, 8, 4, partition="q")),
    *(
        _job(1, 30, 1),
        _job(1.2, 30, 1),
        _job(1.4, 30, 1),
        _job(1.6, 30, 1, partition="q"),
        _job(1.8, 30, 1, partition="q"),
    ),
)
_add(
    "partition_job_depth",
    60,
    *QUEUED,
    lines=PARTS,
    nodes=3,
    parameters=",partition_job_depth=2,bf_interval=-1,sched_interval=300",
)
_add(
    "partition_job_depth-full",
    60,
    *QUEUED,
    lines=PARTS,
    nodes=3,
    parameters=",partition_job_depth=1,bf_interval=-1,sched_interval=15",
)
WAITING = (
    _job(0, 20, 4, 2),
    _job(1, 5, 8, 1),
    _job(2, 5, 1, 1),
    _job(3, 5, 2, 1, partition="q"),
    _job(4, 5, 2, 1, partition="q"),
)
_add("bf_max_job_part", 60, *WAITING, lines=PARTS, nodes=3, parameters=",bf_max_job_part=1,sched_interval=-1")
_add("bf_max_job_user_part", 60, *WAITING, lines=PARTS, nodes=3, parameters=",bf_max_job_user_part=1,sched_interval=-1")
APART = (
    "NodeName=n[1-2] CPUs=4",
    "PartitionName=a Nodes=n1 Default=YES MaxTime=INFINITE",
    "PartitionName=b Nodes=n2 MaxTime=INFINITE",
)
# The node of job 1 is completing for six seconds. Job 2 has an idle node.
COMPLETING = (_job(0, 5, 4), _job(7, 5, 4), _job(7.2, 5, 4))
_add("complete-wait", 40, *COMPLETING, more=("Epilog={folder}/epilog", "CompleteWait=4"))
_add("completing", 40, *COMPLETING, more=("Epilog={folder}/epilog",))
# Jobs in several partitions. Jobs 1 and 2 fill the nodes. Job 3 takes the partition that is free first, and job 4 the
# other one; the tasks of an array spread over both.
_add(
    "partitions",
    75,
    _job(0, 25, 4, partition="a"),
    _job(0.4, 12, 4, partition="b"),
    _job(2, 20, 4, partition="a,b"),
    _job(3, 15, 4, partition="b,a"),
    _job(5, 10, 2, partition="a,b", tasks="0-3"),
    _job(6, 5, 4, partition="b"),
    lines=APART,
)
# Job 4 comes before job 3 in the partition of a higher tier only.
TIERED = (
    "NodeName=n[1-2] CPUs=4",
    "PartitionName=low Nodes=ALL Default=YES PriorityTier=1",
    "PartitionName=high Nodes=n2 PriorityTier=2",
)
_add(
    "partitions-tier",
    75,
    _job(0, 14, 4),
    _job(0.4, 26, 4),
    _job(2, 10, 8),
    _job(3, 10, 4, partition="low,high"),
    _job(4, 5, 4),
    lines=TIERED,
)
# Job 3 waits for both partitions. Job 4 starts on the idle cores of n2 if job 3 has no reservation there.
RESERVING = (
    _job(0, 30, 4, 1, partition="a"),
    _job(0.4, 50, 2, 2, partition="b"),
    _job(2, 10, 4, 1, partition="a,b"),
    _job(4, 12, 2, 3, partition="b"),
)
_add("partitions-reserved", 75, *RESERVING, lines=APART)
_add("bf_one_resv_per_job", 75, *RESERVING, lines=APART, parameters=",bf_one_resv_per_job")
# Two jobs without a limit. Job 3 waits for the whole cluster; job 4 ends before, if it is planned with DefaultTime.
DEFAULTS = (
    "NodeName=n[1-2] CPUs=4",
    "PartitionName=main Nodes=ALL Default=YES DefaultTime=1 MaxTime=10",
)
_add(
    "default-time",
    175,
    _job(0, 20, 4, 2),
    _job(0.4, 150, 4, 4),
    _job(2, 10, 8, 1),
    _job(4, 90, 4, 0),
    lines=DEFAULTS,
)
# Limits that lapse between two events: no job is submitted or ends then.
LONG = "PreemptMode=CANCEL"
_add(
    "lapse-exempt",
    125,
    _job(0, 300, 8, 10),
    _job(5, 10, 8, 10, partition="high"),
    lines=TIERS,
    more=(*BY_TIER, LONG, "PreemptExemptTime=00:01:30"),
    parameters=",bf_interval=30,batch_sched_delay=3",
)
_add(
    "lapse-exempt-main-loop",
    80,
    _job(0, 300, 8, 10),
    _job(5, 10, 8, 10, partition="high"),
    lines=TIERS,
    more=(*BY_TIER, LONG, "PreemptExemptTime=00:00:40"),
    parameters=",bf_interval=-1,sched_interval=25",
)
# No job waits when the begin of job 2 comes: a ping of the nodes wakes the backfill thread.
_add("lapse-begin", 125, _job(0, 3, 4), _job(1, 4, 8, earliest_start=20), parameters=",sched_interval=300")
_add(
    "lapse-exempt-idle",
    110,
    _job(0, 300, 4, 10),
    _job(0.5, 300, 2, 10),
    _job(5, 10, 8, 10, partition="high"),
    _job(6, 10, 2, 20),
    lines=TIERS,
    more=(*BY_TIER, LONG, "PreemptExemptTime=00:00:40"),
    parameters=",bf_interval=10,sched_interval=300",
)
SLOW = (_job(0, 3, 4, partition="a"), _job(8, 5, 4, partition="b"))
_add(
    "lapse-complete-wait",
    60,
    *SLOW,
    lines=APART,
    more=("Epilog={folder}/epilog-40", "CompleteWait=32"),
    parameters=",bf_interval=30,sched_interval=300",
)
_add(
    "lapse-complete-wait-main-loop",
    60,
    *SLOW,
    lines=APART,
    more=("Epilog={folder}/epilog-40", "CompleteWait=10"),
    parameters=",bf_interval=-1,sched_interval=20",
)
# Job 2 may start from second 25 on, and has a reservation from second 45 on; job 3 would delay it.
_add(
    "lapse-min-age",
    75,
    _job(0, 60, 4, 2),
    _job(1, 5, 8, 1, earliest_start=25),
    _job(30, 5, 4, 5),
    _job(50, 5, 4, 5),
    parameters=",bf_min_age_reserve=20",
)
# The priority of job 2 stays at that of the largest age, and job 3 passes it.
PASSED = (
    "NodeName=n[1-2] CPUs=4",
    "PartitionName=main Nodes=ALL Default=YES PriorityJobFactor=1",
    "PartitionName=better Nodes=ALL PriorityJobFactor=1000",
)
_add(
    "lapse-priority",
    200,
    _job(0, 300, 4, 10),
    _job(1, 10, 8, 1),
    _job(75, 10, 4, 10, partition="better"),
    lines=PASSED,
    more=(
        "PriorityType=priority/multifactor",
        "PriorityWeightAge=100000",
        "PriorityMaxAge=00:01:00",
        "PriorityWeightPartition=33333",
        "PriorityCalcPeriod=1",
    ),
    parameters=",bf_interval=-1,sched_interval=600",
    accounts=("list cluster",),
)
# Jobs that end at their limit, or are preempted, and ignore SIGTERM
_add(
    "kill-wait",
    150,
    _job(0, 300, 8, 1, stubborn=True),
    _job(1, 5, 8, 1),
    more=("KillWait=20",),
)
_add(
    "kill-wait-preempt",
    60,
    _job(0, 300, 8, 1, stubborn=True),
    _job(10, 5, 8, 1, partition="high"),
    lines=TIERS,
    more=(*BY_TIER, LONG, "KillWait=20"),
)
_add(
    "over-time-limit",
    200,
    *(_job(7 * k, 300, 1, 1) for k in range(8)),
    more=("OverTimeLimit=1",),
)
# slurmctld looks every 30 s: some jobs end by themselves after their limit.
_add("time-limit", 160, *(_job(7 * k, 300, 1, 1) for k in range(8)))
_add("time-limit-completed", 130, *(_job(4 * k, 66, 1, 1) for k in range(8)))

# Node n2 is lost: job 1 is requeued, and job 3 waits for the node and delays nothing. Job 6 makes Slurm look again.
LOST = "scontrol update nodename=n2 state=down reason=fan"
BACK = "scontrol update nodename=n2 state=resume"
HIT = (_job(0, 50, 8, 2), _job(1, 20, 4, 1), _job(12, 5, 8, 1), _job(13, 15, 4, 1), _job(62, 60, 1, 2))
_add("node-down", 200, *HIT, _job(134, 3, 1), actions=((10, LOST), (60, BACK)), more=("ReturnToService=0",))
_add("node-down-fail", 90, *HIT, actions=((10, LOST), (60, BACK)), more=("ReturnToService=0", "JobRequeue=0"))
# Job 1 ends on the drained node. Jobs 2 and 4 follow each other on the other one, and job 3 waits for both.
DRAINED = (_job(0, 20, 8, 1), _job(1, 10, 4, 1), _job(2, 5, 8, 1), _job(3, 30, 4, 1))
_add("node-drain", 90, *DRAINED, actions=((5, "scontrol update nodename=n2 state=drain reason=disk"), (50, BACK)))


# -- drawn workloads with arrays, begin times, licences, a reservation and preemption ----------------------------------


def drawn(seed: int, mode: str) -> Scenario:
    """Return a drawn workload of 70 submissions: arrays, begins, licences, a reservation and preemption."""
    draw, now, jobs = Random(seed), 0.0, list[Submitted]()
    for _ in range(70):
        now += draw.expovariate(1 / 2.5)
        cores = draw.choices((1, 2, 4, 8, 12), (5, 4, 4, 2, 1))[0]
        run = round(min(60.0, draw.lognormvariate(2.3, 0.8)), 1)
        columns: dict[str, str | float] = {"partition": draw.choices(("low", "high"), (7, 2))[0]}
        kind = draw.random()
        if kind < 0.15:
            columns["licenses"] = f"a:{draw.choice((1, 2))}"
        elif kind < 0.25:
            columns["earliest_start"] = math.ceil(now) + draw.randint(5, 30)
        elif kind < 0.30 and 40 < now < 100:
            columns |= {"reservation": "r", "partition": "low"}
            cores = min(cores, 4)
        tasks = f"0-{draw.choice((2, 4))}{draw.choice(('', '%2'))}" if 0.3 < kind < 0.42 and cores < 8 else ""
        limit = draw.choice((1, 1, 2, 4)) if run < 50 else draw.choice((2, 4))
        jobs.append(Submitted(round(now, 1), run, cores, limit, tasks, columns=columns))
    settings = (
        "SchedulerParameters=bf_interval=5,bf_resolution=10,bf_max_job_test=1000,batch_sched_delay=0",
        *("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core", "Licenses=a:2"),
        *((*BY_TIER, f"PreemptMode={mode}") if mode else ()),
    )
    lines = (
        "NodeName=n[1-6] CPUs=4",
        "PartitionName=low Nodes=ALL Default=YES PriorityTier=1",
        "PartitionName=high Nodes=n[1-4] PriorityTier=2",
    )
    actions = ((-2, CREATE.format(70, 130, "n6", "")),)
    return Scenario(f"drawn-{seed}", tuple(jobs), 420, settings, lines, actions, nodes=6)


DRAWN = {each.name: each for each in (drawn(1, ""), drawn(2, "CANCEL"), drawn(3, "REQUEUE"))}
