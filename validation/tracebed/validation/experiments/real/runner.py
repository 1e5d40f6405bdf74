"""Execution of a campaign: replay the repetitions in order, and continue where an earlier call stopped."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tracebed.ground.errors import InputError, TracebedError
from tracebed.orchestrator.batch import session as batch
from tracebed.orchestrator.batch.recovery import cancel_leftover_jobs
from tracebed.orchestrator.replay import session
from tracebed.orchestrator.run import Run
from tracebed.validation.experiments.real import store
from tracebed.validation.experiments.real.beside import BackgroundCommand
from tracebed.validation.experiments.real.campaign import Campaign, Slot
from tracebed.validation.experiments.real.store import Attempt


@dataclass(frozen=True)
class Remaining:
    """The repetitions of a campaign that are not done yet."""

    todo: list[Slot]
    done: int
    """Number of repetitions that are done."""
    shortest_s: float
    """Lower bound of the wall time of `todo`, s."""


def remaining(campaign: Campaign, folder: Path) -> Remaining:
    """Return the repetitions that are not done. Raises InputError if a run is damaged."""
    chosen = [slot for slot in campaign.order if slot.cell in campaign.chosen]
    todo = [slot for slot in chosen if store.run_of(slot, folder) is None]
    shortest = {name: campaign.file.experiment.settle_s + cell.shortest_s for name, cell in campaign.cells.items()}
    return Remaining(todo, len(chosen) - len(todo), sum(shortest[slot.cell] for slot in todo))


def repeat(
    campaign: Campaign,
    plan: Remaining,
    folder: Path,
    on_progress: Callable[[float, Attempt | None], None] | None = None,
) -> list[Attempt]:
    """Keep the plan, and replay the repetitions of `plan` in order. A repetition that fails does not end the campaign.

    Args:
        plan: the plan for this campaign and this folder.
        folder: the folder of the campaign, in a folder that is locked by `files.locked_folder`.
        on_progress: called with the number of repetitions done so far, with a fraction during a replay; and with the
            attempt when it has ended.

    Returns:
        The attempts.

    Raises:
        InputError: the folder has the runs of another campaign.
        KeyboardInterrupt: a signal ended a replay. The next call repeats it and continues.
    """
    store.keep_plan(campaign, folder)
    attempts = []
    for done, slot in enumerate(plan.todo):

        def show(share: float, attempt: Attempt | None = None, done: int = done) -> None:
            if on_progress is not None:
                on_progress(done + share, attempt)

        attempts.append(_attempt(campaign, slot, folder, show))
        show(1.0, attempts[-1])
    return attempts


def _attempt(campaign: Campaign, slot: Slot, folder: Path, show: Callable[[float], None]) -> Attempt:
    """Replay one repetition and append the attempt to the log of the campaign."""
    started, begun = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    error: str | None = "the experiment was interrupted"
    try:
        run = _replay(campaign, slot, folder, show)
        if run.info.state == "interrupted":
            (error,) = run.info.interruptions
            if run.info.stopped_by_signal:
                raise KeyboardInterrupt
        else:
            error = None
    except TracebedError as failure:
        error = str(failure)
    finally:
        attempt = Attempt(slot.cell, slot.number, slot.session, started, time.monotonic() - begun, error)
        store.note(attempt, folder)
    return attempt


def _replay(campaign: Campaign, slot: Slot, folder: Path, show: Callable[[float], None]) -> Run:
    """Replay one repetition, with the command of its cell beside it."""
    cell, settle_s, output = campaign.cells[slot.cell], campaign.file.experiment.settle_s, folder / slot.folder
    try:
        output.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(output.parent)) from error
    for left in store.left_folders(slot, folder):
        if cell.scheduler is not None:
            cancel_leftover_jobs(left, cell.scheduler.system())
        shutil.rmtree(left)

    def progress(ended: int) -> None:
        show(ended / max(1, len(cell.workload)))

    def replay() -> Run:
        if cell.scheduler is not None:
            return batch.replay(
                cell.workload,
                output,
                cell.scheduler,
                name=cell.title,
                replace_run=True,  # an interrupted attempt
                on_progress=progress,
            )
        return session.replay(
            cell.workload,
            cell.inventory,
            cell.setup,
            output,
            name=cell.title,
            options=cell.options,
            work_rate=cell.work_rate,
            replace_run=True,  # an interrupted attempt
            on_progress=progress,
        )

    if not cell.beside:
        time.sleep(settle_s)
        return replay()
    with BackgroundCommand(cell.beside, output.with_name(f"{output.name}.log"), campaign.file.folder) as beside:
        time.sleep(settle_s)
        beside.check()
        run = replay()
        try:
            beside.check()
        except TracebedError:
            shutil.rmtree(output)  # the command did not run beside the whole replay
            raise
    return run
