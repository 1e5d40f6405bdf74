"""The journal of a replay that is running, or has ended, and the view for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.ground.errors import InputError
from tracebed.orchestrator.batch import recovery as batch_recovery
from tracebed.orchestrator.replay import recovery
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.runs.working_folders import is_running, output_of, working_folders
from tracebed.orchestrator.watching.batch import BatchView
from tracebed.orchestrator.watching.replayed import ReplayView
from tracebed.orchestrator.watching.view import View

VIEWS: dict[str, Callable[[Mapping[str, Any]], View]] = {recovery.SCHEMA: ReplayView, batch_recovery.SCHEMA: BatchView}
"""Schema of a journal -> its view."""


class JournalSource(NamedTuple):
    """The location of the journal of a replay."""

    folder: Path
    """The working folder of the replay, or the folder of its run."""
    running: bool
    """Whether the replay was running when the folder was found."""

    @property
    def journal(self) -> Path:
        """The file of the journal."""
        return self.folder / JOURNAL


def source_of(path: Path) -> JournalSource | None:
    """Return the journal of the replay to `path`; None: no replay writes to `path`, and `path` is not its run.

    Args:
        path: the output of a replay (`-o`), or a working folder. If several replays have written to the output, the
            one that is running is chosen, then the run, then the newest working folder.
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
