"""The journal of a replay, followed while the replay writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.ground import system
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay import recovery
from tracebed.orchestrator.replay.batch import recovery as batch_recovery
from tracebed.orchestrator.replay.journal import Entry, Reader
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.runs.working_folders import is_running, output_of, working_folders
from tracebed.orchestrator.watching.batch_view import BatchView
from tracebed.orchestrator.watching.replay_view import ReplayView
from tracebed.orchestrator.watching.view import View

WAIT_S = 60.0  # time for which a follower waits for the start of a replay, s
# Schema of a journal -> its view.
VIEWS: dict[str, Callable[[Mapping[str, Any]], View]] = {recovery.SCHEMA: ReplayView, batch_recovery.SCHEMA: BatchView}


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
        until = system.monotonic() + WAIT_S
        while wait and not ((source := source_of(run)) and source.running):
            if system.monotonic() > until:
                what = f"no replay has begun within {WAIT_S:g} s"
                raise InputError(
                    what, where=str(run), hint="start the replay first; an experiment simulates its grid before"
                )
            system.sleep(0.05)
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
        until = system.monotonic() + seconds
        while (left := until - system.monotonic()) > 0 and is_running(self.source.folder):
            system.sleep(min(left, 0.25))

    def close(self) -> None:
        """Close the journal."""
        self._reader.close()


class JournalSource(NamedTuple):
    """The location of the journal of a replay."""

    folder: Path  # the working folder of the replay, or the folder of its run
    running: bool  # whether the replay was running when the folder was found

    @property
    def journal(self) -> Path:
        """The file of the journal."""
        return self.folder / JOURNAL


def source_of(path: Path) -> JournalSource | None:
    """Return the journal of the replay to `path`; None: no replay writes to `path`, and `path` is not its run.

    `path` is the output of a replay (`-o`), or a working folder. If several replays have written to the output, the one
    that is running is chosen, then the run, then the newest working folder.
    """
    folders = [path] if output_of(path) else working_folders(path)
    folders = [folder for folder in folders if (folder / JOURNAL).is_file()]
    running = [folder for folder in folders if is_running(folder)]
    if running:
        return JournalSource(running[-1], True)
    if (path / JOURNAL).is_file():
        return JournalSource(path, False)
    return JournalSource(folders[-1], False) if folders else None


def find_journal(path: Path) -> JournalSource:
    """Return the journal of the replay to `path`. Raises InputError if there is no journal."""
    source = source_of(path)
    if source is None:
        hint = "give the -o of a replay, its working folder or its run; --wait waits for the start of the replay"
        raise InputError("no replay writes to it, and it contains no journal", where=str(path), hint=hint)
    return source


def view_of(facts: Mapping[str, Any]) -> View:
    """Return the view for a journal with these facts. Raises InputError if the schema of the journal is unknown."""
    make = VIEWS.get(str(facts.get("schema")))
    if make is None:
        hint = "the journal may be that of another version of tracebed"
        raise InputError(f"is not a journal of the schema {' or '.join(VIEWS)}", hint=hint)
    return make(facts)
