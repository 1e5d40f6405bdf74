"""Execution of a campaign: replay the repetitions in order, and continue where an earlier call stopped."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tracebed.errors import InputError, TracebedError
from tracebed.orchestrator.batch import session as batch
from tracebed.orchestrator.batch.abandoned import cancel_leftover_jobs
from tracebed.orchestrator.replay import session
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.repetitions import store
from tracebed.validation.repetitions.beside import Beside
from tracebed.validation.repetitions.campaign import Campaign, Cell, Slot
from tracebed.validation.repetitions.store import Attempt


@dataclass(frozen=True)
class Plan:
    """The repetitions of a campaign that are not done yet."""

    todo: list[Slot]
    done: int
    """Number of repetitions that are done."""
    shortest_s: float
    """Lower bound of the wall time of `todo`, s."""


def plan(campaign: Campaign, folder: Path) -> Plan:
    """Write or check the plan in `folder`, which `store.locked` has locked, and return the remaining repetitions.

    Each call repeats the predictions of cells, since predictions may change while the runs remain.

    Raises:
        InputError: the folder belongs to another campaign, or a run is damaged. A damaged run is not replaced.
    """
    store.keep_plan(campaign, folder)
    for cell in campaign.cells.values():
        if cell.predict:
            _predict(cell).save(folder / cell.name / store.PREDICTION, replace=True)
    return remaining(campaign, folder)


def remaining(campaign: Campaign, folder: Path) -> Plan:
    """Return the repetitions that are not done. Raises InputError if a run is damaged."""
    todo = [slot for slot in campaign.order if store.run_of(slot, folder) is None]
    shortest = {name: campaign.spec.settle_s + cell.shortest_s for name, cell in campaign.cells.items()}
    return Plan(todo, len(campaign.order) - len(todo), sum(shortest[slot.cell] for slot in todo))


def repeat(
    campaign: Campaign, plan: Plan, folder: Path, on_progress: Callable[[float, Attempt | None], None] | None = None
) -> list[Attempt]:
    """Replay the repetitions of `plan` in order. A repetition that fails does not end the campaign.

    Args:
        campaign: the campaign.
        plan: the plan for this campaign and this folder.
        folder: the folder of the campaign, locked by `store.locked`.
        on_progress: called with the number of repetitions done so far, with a fraction during a replay; and with the
            attempt when it has ended.

    Returns:
        The attempts.

    Raises:
        KeyboardInterrupt: a signal ended a replay. The next call repeats it and continues.
    """
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
    error: str | None = "the campaign was interrupted"
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
    cell, settle_s, output = campaign.cells[slot.cell], campaign.spec.settle_s, folder / slot.folder
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
                name=cell.workload_name,
                replace_run=True,  # an interrupted attempt
                on_progress=progress,
            )
        return session.replay(
            cell.workload,
            cell.inventory,
            cell.setup,
            output,
            name=cell.workload_name,
            options=cell.options,
            work_rate=cell.work_rate,
            replace_run=True,  # an interrupted attempt
            on_progress=progress,
        )

    if not cell.beside:
        time.sleep(settle_s)
        return replay()
    with Beside(cell.beside, output.with_name(f"{output.name}.log"), campaign.folder) as beside:
        time.sleep(settle_s)
        beside.check()
        run = replay()
        try:
            beside.check()
        except TracebedError:
            shutil.rmtree(output)  # the command did not run beside the whole replay
            raise
    return run


def _predict(cell: Cell) -> Run:
    """Simulate the workload of a cell with the overheads of its calibration."""
    setup = Setup.of(cell.setup, calibration=cell.predicted_by)
    return predict(cell.workload, cell.inventory.facts, setup, name=cell.workload_name)
