"""The lost and returned nodes of a replay."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from tracebed.ground import system
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.replay.event_handler import EventHandler
from tracebed.orchestrator.replay.executor import Rounds
from tracebed.orchestrator.scheduling.pools import AnyScheduler
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.testbeds.base import Event, Testbed

SILENCE = 10.0  # number of heartbeats that an agent may miss before its node counts as lost
RETURN_S = 60.0  # time for which the replay waits for lost nodes if jobs need them and no other event occurs, wall s
KEPT = "the run so far is kept"


class Change(NamedTuple):
    """The loss or the return of a node."""

    node: int
    reason: str | None  # reason of the loss; None: the node is back


def lost(node: int, reason: str) -> Event:
    """Return the event of a missing agent on `node`, which does not abort a replay."""
    return Event(node, {"type": "lost", "reason": reason, "expected": True}, system.monotonic())


class Outages:
    """The lost nodes, and the treatment of their jobs."""

    def __init__(self, testbed: Testbed, heartbeat_s: float, on_node_failure: str, not_on: Container[int]) -> None:
        """Begin without lost nodes. `not_on`: the nodes that sleep, which are silent."""
        self.testbed, self.on_node_failure, self.not_on = testbed, on_node_failure, not_on
        self.drop = testbed.drop  # closes the connection of the testbed to a node
        self.lost: dict[int, str] = {}  # node -> reason
        self.timeout_s = max(SILENCE, SILENCE * heartbeat_s)
        self._changes: list[Change] = []
        self._last_message = [0.0] * len(testbed.nodes)
        self._silent_at = 0.0  # no node can count as silent before, monotonic
        self._stuck_since: float | None = None  # since when jobs wait for lost nodes only, monotonic

    def begin(self, now: float) -> None:
        """Begin to wait for heartbeats at the monotonic time `now`."""
        self._last_message = [now] * len(self._last_message)

    def handle(self, event: Event) -> None:
        """Process a loss, a return or an error of a node. Raises TestbedError if a loss aborts the replay."""
        self._last_message[event.node] = event.time
        message, node = event.message, event.node
        kind = message["type"]
        if kind == "lost":
            self._lose(node, f"its agent {message['reason']}", expected=message.get("expected", False))
        elif kind == "back" and node in self.lost:
            del self.lost[node]
            self._changes.append(Change(node, None))
        elif kind == "error" and message.get("job") is None and node not in self.lost:
            self._drop(node, f"has failed: {message['what']}")
        # An error about a job is not processed: the job ended while a message to it was in transit.

    def _lose(self, node: int, reason: str, *, expected: bool) -> None:
        if self.on_node_failure == "abort" and not expected:
            raise TestbedError(reason, where=f"node {self.testbed.nodes[node].name}", hint=KEPT)
        if node not in self.lost:
            self.lost[node] = reason
            self._changes.append(Change(node, reason))

    def _drop(self, node: int, reason: str) -> None:
        """Give up `node`, whose agent does not work. The testbed then reports its loss."""
        if self.on_node_failure == "abort":
            raise TestbedError(f"its agent {reason}", where=f"node {self.testbed.nodes[node].name}", hint=KEPT)
        self._last_message[node] = system.monotonic()
        self.drop(node, reason)

    def check_silence(self, wall: float) -> None:
        """Give up the node whose agent has been silent for too long. Raises TestbedError if this aborts the replay."""
        if wall < self._silent_at:  # the nodes are not searched in each round
            return
        available = [
            node for node in range(len(self._last_message)) if node not in self.lost and node not in self.not_on
        ]
        quietest = min(available, key=self._last_message.__getitem__, default=None)
        if quietest is None:
            return
        if wall - self._last_message[quietest] > self.timeout_s:
            self._drop(quietest, f"has been silent for {self.timeout_s:g} s")
        else:
            self._silent_at = self._last_message[quietest] + self.timeout_s

    def apply_changes(
        self,
        scheduler: AnyScheduler,
        event_handler: EventHandler,
        record: ScheduleRecord,
        rounds: Rounds,
    ) -> bool:
        """Pass the losses and returns of this round to the scheduler. Return whether there were any."""
        if not self._changes:  # most rounds
            return False
        changes, self._changes = self._changes, []
        for node, reason in changes:
            if reason is None:
                rounds.note_node("up", node)
                record.node_up(node, rounds.now)
                scheduler.node_back(node, rounds.now)
                continue
            rounds.note_node("down", node, reason=reason)
            record.node_down(node, rounds.now, reason)
            for job in scheduler.node_lost(node, rounds.now):
                name = self.testbed.nodes[node].name
                event_handler.lose(job, node, *record.treat_loss(job, self.on_node_failure, name, reason))
        return True

    def note_progress(self) -> None:
        """Note that a job runs, or that a submission or a call of the policy is due."""
        self._stuck_since = None

    def stuck(self, waiting: int) -> str | None:
        """Return why the replay must end if the `waiting` jobs have waited too long for lost nodes only, else None."""
        if not (waiting and self.lost):
            self._stuck_since = None
            return None
        now = system.monotonic()
        self._stuck_since = now if self._stuck_since is None else self._stuck_since
        if now - self._stuck_since < RETURN_S:
            return None
        names = [f"{self.testbed.nodes[node].name} ({reason})" for node, reason in sorted(self.lost.items())]
        lost = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
        return f"{waiting:,} jobs wait for lost nodes that did not return within {RETURN_S:g} s: {lost}"
