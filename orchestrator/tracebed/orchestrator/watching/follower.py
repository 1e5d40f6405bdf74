"""The journal of a replay, followed while the replay writes it."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

from tracebed.ground import system as world
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay.journal import Entry, Reader
from tracebed.orchestrator.runs.working_folders import is_running
from tracebed.orchestrator.watching.source import find_journal, source_of, view_of
from tracebed.orchestrator.watching.view import View

WAIT_S = 60.0
"""Time for which a follower waits for the start of a replay, s."""


class JournalFollower:
    """The journal of a replay, and the view made from it.

    Args:
        run: the output of the replay, its working folder, or a run.
        wait: whether to wait until a replay to `run` begins.

    Raises:
        InputError: no replay writes to `run`, and `run` contains no journal.
    """

    def __init__(self, run: Path, *, wait: bool = False) -> None:
        self.view: View | None = None
        until = world.monotonic() + WAIT_S
        while wait and not ((source := source_of(run)) and source.running):
            if world.monotonic() > until:
                what = f"no replay has begun within {WAIT_S:g} s"
                raise InputError(what, where=str(run), hint="start the replay first")
            world.sleep(0.05)
        self.source = find_journal(run)
        self._reader = Reader(self.source.journal)

    def read(self) -> bool:
        """Process the new entries of the journal. Return whether the replay is still running."""
        going = self.source.running and is_running(self.source.folder)
        try:
            first: list[Entry] = []
            entries = self._reader.stream()
            if self.view is None:
                first = [*islice(entries, 1)]
                if facts := self._reader.known:
                    self.view = view_of(facts)  # the facts precede all entries; they may be large
            if self.view is not None:
                self.view.apply(chain(first, entries))
                if not going:
                    self.view.finish(self._reader.facts().get("end"))
        except InputError as error:
            error.where = error.where or str(self.source.journal)
            raise
        return going

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the replay ends."""
        until = world.monotonic() + seconds
        while (left := until - world.monotonic()) > 0 and is_running(self.source.folder):
            world.sleep(min(left, 0.25))

    def close(self) -> None:
        """Close the journal."""
        self._reader.close()
