"""The state of the replays of an experiment, read by another process while they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tracebed.ground.display import counted, time_text
from tracebed.ground.files import LOCK, is_locked
from tracebed.orchestrator.watching.follower import source_of
from tracebed.orchestrator.watching.view import View
from tracebed.validation.experiments import store
from tracebed.validation.experiments.cell import Slot


@dataclass(frozen=True)
class Progress:
    """The repetitions of an experiment that are done, that run, and that remain."""

    folder: Path
    order: tuple[Slot, ...]
    """All repetitions, in the order of execution."""
    done: frozenset[Slot]
    failed: frozenset[Slot]
    """Repetitions without a run whose last attempt failed."""
    running: Slot | None
    durations: Mapping[str, float]
    """Cell -> mean duration of its attempts that made a run, wall s."""
    locked: bool
    """Whether the experiment is running: it also predicts, and pauses between replays."""

    @classmethod
    def read(cls, folder: Path) -> Progress:
        """Read the state of the replays in the output folder of an experiment. Raises InputError if it has none."""
        locked = is_locked(folder / LOCK)  # first: what ends later is in the files
        real = folder / store.REAL
        order = tuple(store.read_plan(real)["order"])
        done = frozenset(slot for slot in order if (real / slot.folder / "run.json").is_file())
        last = {(each.cell, each.number): each for each in store.attempts(real)}
        of_slot = {slot: last[key] for slot in order if (key := (slot.cell, slot.number)) in last}
        failed = {slot for slot, attempt in of_slot.items() if slot not in done and attempt.error}
        left = (slot for slot in order if slot not in done)
        running = next((slot for slot in left if (found := source_of(real / slot.folder)) and found.running), None)
        spent: dict[str, list[float]] = {}
        for slot in done:
            if slot in of_slot:
                spent.setdefault(slot.cell, []).append(of_slot[slot].seconds)
        durations = {cell: fmean(each) for cell, each in spent.items()}
        return cls(folder, order, done, frozenset(failed - {running}), running, durations, locked)

    @property
    def run(self) -> Path | None:
        """The output folder of the replay that runs now."""
        return self.folder / store.REAL / self.running.folder if self.running else None

    @property
    def left(self) -> list[Slot]:
        """The repetitions that are neither done nor running."""
        return [slot for slot in self.order if slot not in self.done and slot != self.running]

    def left_s(self, view: View | None = None) -> float | None:
        """Return the expected time until the end of all repetitions, wall s; None: unknown.

        A repetition takes as long as those of its cell so far, or as the mean of the known cells. `view` is that of the
        replay that runs now, which counts if no repetition has ended.
        """
        known, now = dict(self.durations), 0.0
        if view is not None and self.running is not None and view.now == view.now:
            now = view.left_s()
            known.setdefault(self.running.cell, (view.now - view.jobs.submit[0]) / view.info.speed + now)
        if not self.left:
            return now if view is not None or self.running is None else known.get(self.running.cell)
        if not known:
            return None
        return now + sum(known.get(slot.cell, fmean(known.values())) for slot in self.left)

    def cells(self) -> list[tuple[str, int, int, int, bool, float | None]]:
        """Return for each cell: name, repetitions done, planned, failed; whether one runs; mean duration (wall s)."""
        done, planned, failed = (Counter(slot.cell for slot in of) for of in (self.done, self.order, self.failed))
        running = self.running.cell if self.running else None
        return [
            (cell, done[cell], count, failed[cell], cell == running, self.durations.get(cell))
            for cell, count in planned.items()
        ]

    def line(self, view: View | None = None) -> str:
        """Return the state as text: `6 of 10 repetitions done, w-easy rep-03 runs, about 4 min left`."""
        parts = [f"{len(self.done):,} of {counted(len(self.order), 'repetition')} done"]
        parts += [f"{len(self.failed):,} failed"] if self.failed else []
        if not self.locked:
            return ", ".join([*parts, "ended" if not self.left and not self.failed else "stopped"])
        parts += [f"{self.running.cell} {Path(self.running.folder).name} runs" if self.running else "between replays"]
        left_s = self.left_s(view)
        return ", ".join([*parts, "time left unknown" if left_s is None else f"about {time_text(left_s)} left"])

    def to_json(self, view: View | None = None) -> dict[str, Any]:
        """Return the state as JSON values."""
        names = ("cell", "done", "planned", "failed", "running", "mean_s")
        return {
            "cells": [dict(zip(names, row, strict=True)) for row in self.cells()],
            "running": self.running.folder if self.running else None,
            "ended": not self.locked,
            "left_s": self.left_s(view),
        }


def experiment_at(path: Path) -> Path | None:
    """Return the folder of replays of an experiment at `path`: itself, or that of the best cells of its grid."""
    if store.has_replays(path):
        return path
    found = [each.parents[1] for each in sorted(path.glob(f"*/replayed/{store.REAL}/{store.PLAN}"))]
    return max(found, key=lambda each: (each / store.REAL / store.PLAN).stat().st_mtime_ns, default=None)
