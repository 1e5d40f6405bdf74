"""Commands of a batch system that run in the background, and whose failures are settled by an observation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tracebed.benchmarks.lines import Mailbox
from tracebed.ground import system as world
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.batch.base import Refused


@dataclass
class Command:
    """The commands that carry out a decision, one after the other."""

    calling: bool = field(default=False, kw_only=True)
    failed_at: float | None = field(default=None, kw_only=True)
    """Time of a failure that has not been settled."""
    final: bool = field(default=False, kw_only=True)
    """Whether the batch system refused: another call is useless."""


class Commands:
    """The commands that run in the background.

    Args:
        mailbox: the mailbox of the loop.
        now: returns the time of the clock.
        failed: called in the loop with the job, the command and the reason of a failure.
    """

    def __init__(self, mailbox: Mailbox, now: Callable[[], float], failed: Callable[[int, Command, str], None]) -> None:
        """Start without commands."""
        self._mailbox, self._now, self._failed = mailbox, now, failed
        self._calls: list[world.Background] = []

    def running(self) -> list[world.Background]:
        """Return the calls that have not ended."""
        self._calls = [each for each in self._calls if each.is_alive()]
        return self._calls

    def run(self, job: int, command: Command, call: Callable[[], object], done: Callable[[], None]) -> None:
        """Make a call in the background, then call `done` in the loop if the call succeeded."""
        command.calling, command.failed_at, command.final = True, None, False

        def finish(error: TestbedError | None) -> None:
            command.calling = False
            if error is None:
                done()
                return
            command.failed_at, command.final = self._now(), isinstance(error, Refused)
            self._failed(job, command, str(error))

        def run() -> None:
            error = None
            try:
                call()
            except TestbedError as failure:
                error = failure
            except Exception as failure:  # noqa: BLE001 - a command must not end silently
                error = TestbedError(f"a command failed: {failure!r}")
            self._mailbox.post(partial(finish, error))

        self.running()
        self._calls.append(world.current().start(run, f"command for job {job}"))
