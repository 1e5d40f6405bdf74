"""Replacement of runs: which earlier run a new run may replace."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracebed.ground.errors import InputError
from tracebed.ground.outputs import OTHER, REPLACE
from tracebed.orchestrator.runs.working_folders import check_idle


@dataclass(frozen=True)
class Successor:
    """A run that is to be written to a folder."""

    folder: Path
    replace: bool
    """Whether an earlier run may be replaced."""
    real: bool
    """Whether the new run is real: a replay or a log, not a prediction."""
    finished: bool = True
    """Whether the new run was not interrupted."""
    own: Path | None = None
    """The working folder of the replay whose run this is."""

    def check_idle(self) -> None:
        """Raise InputError if another replay is writing to the folder."""
        check_idle(self.folder, self.own)

    def check(self, existing: Path) -> None:
        """Raise InputError if the run in `existing`, which has or had the name `folder`, may not be replaced."""
        if is_finished_real(existing) and not (self.real and self.finished):
            new = "an interrupted run" if self.real else "a prediction"
            what = f"exists: a finished real run, which {new} does not replace"
            raise InputError(what, where=str(self.folder), hint=OTHER)
        if not self.replace:
            raise InputError("exists: a run", where=str(self.folder), hint=REPLACE)


def is_finished_real(folder: Path) -> bool:
    """Return whether `folder` is a real run that was not interrupted, or a run whose metadata are damaged."""
    return _is_finished(folder, lambda info: info["source"] == "replay" or info["execution"] == "logged")


def is_finished_replay(folder: Path) -> bool:
    """Return whether `folder` is a replay that was not interrupted, real or virtual, or has damaged metadata."""
    return _is_finished(folder, lambda info: info["source"] in ("replay", "virtual"))


def _is_finished(folder: Path, counts: Callable[[dict[str, Any]], bool]) -> bool:
    try:
        info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return bool(counts(info) and info.get("state", "completed") == "completed")
    except FileNotFoundError:
        return False
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return True
