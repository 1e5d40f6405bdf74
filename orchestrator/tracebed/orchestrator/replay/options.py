"""The options of a replay."""

from __future__ import annotations

from dataclasses import dataclass

from tracebed import bounds
from tracebed.orchestrator.replay.commands import AllowedCommands
from tracebed.orchestrator.replay.pace import CLOCKS
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.placement import FIRST
from tracebed.orchestrator.scheduling.priorities import FCFS
from tracebed.orchestrator.scheduling.priorities import NAMES as PRIORITY_NAMES
from tracebed.registry import one_of

BALANCES = ("static", "dynamic")
"""How the work of a job is divided among its ranks: in equal shares, or in chunks from a common pool."""
NODE_FAILURES = ("requeue", "fail", "abort")
"""Treatment of the jobs of a lost node: return them to the queue, fail them, or end the replay."""

OF_REPETITIONS = ("interval_s", "over_limit", "balance", "priority", "placement")
"""Parameters of a run that its repetitions share, besides the policy, the nodes and the speed."""


@dataclass
class Options:
    """The options of a replay.

    Attributes:
        speed: trace seconds per wall second.
        interval_s: scheduling interval, trace seconds: the policy is called only at its multiples. 0: no interval.
        over_limit: treatment of jobs that exceed their time limit. `KILL` ends a job at its limit, computed with the
            nominal speed of the job. All other values affect only the end times that the scheduler expects.
        balance: distribution of work over the ranks of a job, `static` or `dynamic`.
        priority: order of the queue, a name of `priorities`.
        placement: the choice of the nodes of jobs, and the grid of the machine, as `hilbert@8x16`.
        clock: `wall` or `steady` (see `pace.CLOCKS`).
        proposed_duty: the duty that a calibration proposes, for nodes without a duty; None: `DEFAULT_DUTY`.
        on_node_failure: treatment of the jobs of a lost node, one of `NODE_FAILURES`.
        commands: the commands that jobs may run; None: none.
        drain: whether to run without the nodes whose agents do not start. If no agent starts, the replay fails.
    """

    speed: float = 1.0
    interval_s: float = 0.0
    over_limit: OverLimit = OverLimit.EXTEND
    balance: str = "static"
    priority: str = FCFS
    placement: str = FIRST
    clock: str = "wall"
    proposed_duty: float | None = None
    on_node_failure: str = "requeue"
    drain: bool = False
    commands: AllowedCommands | None = None

    def __post_init__(self) -> None:
        """Raise InputError if a name is unknown or a number is out of its range (`tracebed.bounds`)."""
        bounds.check("speed", self.speed, bounds.MIN_SPEED, bounds.MAX_SPEED)
        bounds.check("interval_s", self.interval_s, 0, bounds.MAX_SECONDS)
        one_of("balance", self.balance, BALANCES)
        one_of("priority", self.priority, PRIORITY_NAMES)
        one_of("clock", self.clock, CLOCKS)
        one_of("on_node_failure", self.on_node_failure, NODE_FAILURES)
