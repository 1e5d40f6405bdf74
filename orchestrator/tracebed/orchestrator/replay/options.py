"""The options of a replay beside its setup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracebed.ground.registry import one_of
from tracebed.orchestrator.scheduling import names

if TYPE_CHECKING:  # experiments without replays load the options, too
    from tracebed.orchestrator.replay.programs import AllowedCommands
    from tracebed.orchestrator.replay.thresholds import HealthThresholds

CLOCKS = ("wall", "steady")
"""The clock of submissions, policy calls, time limits and jobs: the monotonic clock, or a `pace.SteadyClock`."""
BALANCES = ("static", "dynamic")
"""How the work of a job is divided among its ranks: in equal shares, or in chunks from a common pool."""
NODE_FAILURES = (*names.NODE_FAILURES, "abort")
"""Treatment of the jobs of a lost node: those of a simulation, or end the replay."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that only a replay on a testbed has."""

    balance: str = "static"  # distribution of work over the ranks of a job, `static` or `dynamic`
    clock: str = "wall"  # one of `pace.CLOCKS`
    proposed_duty: float | None = None  # by a calibration, for nodes without a duty; None: `DEFAULT_DUTY`
    on_node_failure: str = "requeue"  # treatment of the jobs of a lost node, one of `NODE_FAILURES`
    drain: bool = False  # whether to run without the nodes whose agents do not start, unless no agent starts
    commands: AllowedCommands | None = None  # those that jobs may run
    health: HealthThresholds | None = None  # None: the limits that tracebed provides

    def __post_init__(self) -> None:
        one_of("balance", self.balance, BALANCES)
        one_of("clock", self.clock, CLOCKS)
        one_of("on_node_failure", self.on_node_failure, NODE_FAILURES)
