"""The options of a replay beside its setup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracebed.ground.registry import one_of

if TYPE_CHECKING:  # experiments without replays load the options, too
    from tracebed.orchestrator.replay.programs import AllowedCommands
    from tracebed.orchestrator.replay.thresholds import HealthThresholds

CLOCKS = ("wall", "steady")
"""The clock of submissions, policy calls, time limits and jobs: the monotonic clock, or a `pace.SteadyClock`."""
BALANCES = ("static", "dynamic")
"""How the work of a job is divided among its ranks: in equal shares, or in chunks from a common pool."""
NODE_FAILURES = ("requeue", "fail", "abort")
"""Treatment of the jobs of a lost node: return them to the queue, fail them, or end the replay."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that only a replay on a testbed has.

    Attributes:
        balance: distribution of work over the ranks of a job, `static` or `dynamic`.
        clock: `wall` or `steady` (see `CLOCKS`).
        proposed_duty: the duty that a calibration proposes, for nodes without a duty; None: `DEFAULT_DUTY`.
        on_node_failure: treatment of the jobs of a lost node, one of `NODE_FAILURES`.
        commands: the commands that jobs may run; None: no commands.
        drain: whether to run without the nodes whose agents do not start. If no agent starts, the replay fails.
        health: the limits of the health of the run; None: the limits that tracebed provides.
    """

    balance: str = "static"
    clock: str = "wall"
    proposed_duty: float | None = None
    on_node_failure: str = "requeue"
    drain: bool = False
    commands: AllowedCommands | None = None
    health: HealthThresholds | None = None

    def __post_init__(self) -> None:
        """Raise InputError if a name is unknown."""
        one_of("balance", self.balance, BALANCES)
        one_of("clock", self.clock, CLOCKS)
        one_of("on_node_failure", self.on_node_failure, NODE_FAILURES)
