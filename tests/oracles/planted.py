"""Defects planted by hand: each is a patch of the product that the scenarios must find.

The first ten were chosen beforehand. The others undo the mends of defects that scenarios have found.

    python -m tests.oracles.planted                     # for each defect, the first seed that finds it
    python -m tests.oracles.planted requeued_twice --first 1000
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.scenario import Scenario
from tests.faults.shrinking import prepare, violations
from tracebed.benchmarks import ownership
from tracebed.benchmarks.node_table import TableEntry, Transaction
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay import event_handler
from tracebed.orchestrator.replay.executor import Ranks
from tracebed.orchestrator.replay.journal import Head
from tracebed.orchestrator.replay.loop import Replayer
from tracebed.orchestrator.replay.outages import Outages
from tracebed.orchestrator.replay.pace import Timeline
from tracebed.orchestrator.replay.resumption import Resumption
from tracebed.orchestrator.scheduling.dependencies import Arrivals
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.scheduling.scheduler import Scheduler
from tracebed.orchestrator.testbeds.agent import agent
from tracebed.orchestrator.testbeds.agent.jobs import RankManager
from tracebed.orchestrator.testbeds.agent.messages import Outbox
from tracebed.orchestrator.testbeds.agent.processes import RankProcess

Patch = Callable[[pytest.MonkeyPatch], None]


def missing_fsync(patch: pytest.MonkeyPatch) -> None:
    """The head of the journal does not reach the disk, so that rows that a power failure has lost are not missed."""
    patch.setattr(Head, "write", lambda self, chain: None)


def lost_wake(patch: pytest.MonkeyPatch) -> None:
    """A node that returns does not wake the queue."""
    apply = Outages.apply_changes

    def asleep(self: Outages, *args: Any) -> bool:
        apply(self, *args)
        return False

    patch.setattr(Outages, "apply_changes", asleep)


def double_free(patch: pytest.MonkeyPatch) -> None:
    """A rank takes CPUs that the rank of another job has not released."""

    def take(found: Transaction, entry: TableEntry) -> None:
        entry.held = entry.target

    patch.setattr(ownership, "take", take)


def requeued_twice(patch: pytest.MonkeyPatch) -> None:
    """A job that lost a node returns to the queue twice."""
    requeue = Scheduler.requeue

    def twice(self: Scheduler, job: int, now: float) -> None:
        requeue(self, job, now)
        self.submit(job, now)

    patch.setattr(Scheduler, "requeue", twice)


def journalled_after_its_message(patch: pytest.MonkeyPatch) -> None:
    """A decision is sent before it is in the journal."""

    def send(self: Replayer) -> None:
        self.ranks.send()
        self.rounds.end()
        self.rounds.next()

    patch.setattr(Replayer, "_send", send)


def confirmed_too_early(patch: pytest.MonkeyPatch) -> None:
    """An agent forgets the event after the last one that is recorded."""
    confirm = Outbox.confirm
    patch.setattr(Outbox, "confirm", lambda self, number: confirm(self, None if number is None else number + 1))


def never_killed(patch: pytest.MonkeyPatch) -> None:
    """SIGKILL does not follow SIGTERM."""

    def kill(self: RankProcess, reason: str) -> None:
        self.killed = self.killed or reason
        self.signal(signal.SIGTERM)

    patch.setattr(RankProcess, "kill", kill)


def lost_launch(patch: pytest.MonkeyPatch) -> None:
    """A launch that was lost with the controller is not repeated."""
    patch.setattr(Ranks, "launch_again", lambda self, job, node: None)


def ranks_run_on(patch: pytest.MonkeyPatch) -> None:
    """Agents do not stop their ranks while there is no controller."""
    patch.setattr(RankManager, "stop", lambda self: None)


def released_too_early(patch: pytest.MonkeyPatch) -> None:
    """A resize is complete before the ranks on the released nodes have ended."""
    check = Ranks.check_ended

    def early(self: Ranks, job: int) -> None:
        active = self.running[job]
        if active.applied is not None:
            active.dropped.clear()
        check(self, job)

    patch.setattr(Ranks, "check_ended", early)


def completed_rank_is_killed(patch: pytest.MonkeyPatch) -> None:
    """A rank that is killed after it has completed its work counts as killed."""
    outcome = RankProcess.outcome

    def only_by_status(self: RankProcess, code: int) -> tuple[str, str]:
        return ("killed", self.killed) if self.killed is not None and code else outcome(self, code)

    patch.setattr(RankProcess, "outcome", only_by_status)


def waits_for_dead_ranks(patch: pytest.MonkeyPatch) -> None:
    """A job whose ranks never join each other keeps its nodes for ever."""
    patch.setattr(event_handler, "START_S", float("inf"))


def _ignore(patch: pytest.MonkeyPatch, name: str) -> None:
    """Let each resumption have a false attribute `name`."""
    init = Resumption.__init__

    def unaware(self: Resumption, *args: Any) -> None:
        init(self, *args)
        setattr(self, name, False)

    patch.setattr(Resumption, "__init__", unaware)


def trusts_ranks_without_rows(patch: pytest.MonkeyPatch) -> None:
    """Ranks whose rows were lost in a power failure are taken over."""
    _ignore(patch, "lost_rows")


def stands_still_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """The monotonic clock is taken for that of the last boot."""
    _ignore(patch, "rebooted")


def steps_reach_the_run(patch: pytest.MonkeyPatch) -> None:
    """The step of the clock of a node makes a resize end before its request."""
    patch.setattr(ScheduleRecord, "within_resize", lambda self, job, decided, applied, now: (decided, applied))


def agent_waits_for_its_first_message(patch: pytest.MonkeyPatch) -> None:
    """An agent whose controller lost power before the first message waits for ever."""
    patch.setattr(agent, "HELLO_S", float("inf"))


def pause_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The time in which no controller ran counts as run time."""
    patch.setattr(Timeline, "pause", lambda self, trace, zero=None: None)


def submits_again(patch: pytest.MonkeyPatch) -> None:
    """A replayer that is resumed submits the jobs again that the killed one has submitted."""
    patch.setattr(Arrivals, "take", lambda self, jobs: None)


def ends_too_early(patch: pytest.MonkeyPatch) -> None:
    """A job counts as ended for the jobs that wait for it when it has started."""
    started = Arrivals.started

    def early(self: Arrivals, job: int, now: float) -> None:
        started(self, job, now)
        self.ended(job, JobState.COMPLETED, now)

    patch.setattr(Arrivals, "started", early)


OF_WAITS = ("submits_again", "ends_too_early")
"""The defects that concern jobs that wait for other jobs."""
PLANTED: dict[str, Patch] = {
    function.__name__: function
    for function in (
        missing_fsync,
        lost_wake,
        double_free,
        requeued_twice,
        journalled_after_its_message,
        confirmed_too_early,
        never_killed,
        lost_launch,
        ranks_run_on,
        released_too_early,
        completed_rank_is_killed,
        waits_for_dead_ranks,
        trusts_ranks_without_rows,
        stands_still_after_a_restart,
        steps_reach_the_run,
        agent_waits_for_its_first_message,
        pause_is_forgotten,
        submits_again,
        ends_too_early,
    )
}


def main() -> int:
    """Print the first seed that finds each defect, with what is violated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*PLANTED])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=20_000)
    chosen = parser.parse_args()
    prepare()
    for name in chosen.names:
        with pytest.MonkeyPatch.context() as patch:
            PLANTED[name](patch)
            for seed in range(chosen.first, chosen.first + chosen.count):
                if found := violations(Scenario.drawn(seed, waits=name in OF_WAITS)):
                    sys.stdout.write(f"{name}: seed {seed}: {found[0][:160]}\n")
                    break
            else:
                sys.stdout.write(f"{name}: not found\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
