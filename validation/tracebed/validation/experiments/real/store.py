"""The folder of a campaign.

    OUTPUT/real/campaign.json         cells with all settings, order of the repetitions
    OUTPUT/real/repetitions.jsonl     a line for each attempt: cell, number, start, duration, error
    OUTPUT/real/CELL/rep-01/          the run of a repetition
    OUTPUT/real/CELL/rep-01.log       output of the command beside the repetition

A repetition is done if its folder has a run that was not interrupted by a signal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracebed.ground.errors import InputError
from tracebed.ground.files import replacing
from tracebed.ground.input_files import MAX_RUN_JSON, read_file, read_json
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.working_folders import is_running, working_folders

if TYPE_CHECKING:
    from tracebed.validation.experiments.real.campaign import Campaign, Slot

SCHEMA = "tracebed-campaign/1"
REAL = "real"
"""Folder of the replays in the output folder."""
PLAN = "campaign.json"
LOG = "repetitions.jsonl"


@dataclass(frozen=True)
class Attempt:
    """An attempt at a repetition."""

    cell: str
    number: int
    session: int
    started: str
    """Start in ISO 8601."""
    seconds: float
    """Duration, wall s."""
    error: str | None = None
    """Reason why there is no completed run; None: the repetition is done."""


def keep_plan(campaign: Campaign, folder: Path) -> None:
    """Write the plan of a campaign, after a check of the plan in `folder`: a campaign may grow, but not change.

    Further repetitions and further cells are replayed after those that are done.

    Raises:
        InputError: the folder belongs to another campaign; the error says what differs.
    """
    experiment = campaign.file.experiment
    plan = {
        "schema": SCHEMA,
        "name": campaign.file.name,
        "repetitions": campaign.counts,
        **{key: getattr(experiment, key) for key in ("sessions", "seed", "settle_s")},
        "cells": {name: cell.settings for name, cell in campaign.cells.items()},
        "order": [asdict(slot) for slot in campaign.order],
    }
    if (folder / PLAN).exists():
        earlier = read_plan(folder)
        if changes := list(_changes(earlier, plan)):
            raise InputError(
                f"has the replays of another experiment: {'; '.join(changes[:3])}{'; ...' if len(changes) > 3 else ''}",
                where=str(folder),
                hint="restore the experiment file, or name another folder with -o",
            )
    folder.mkdir(exist_ok=True)
    with replacing(folder / PLAN) as stream:
        stream.write(json.dumps(plan, indent=1).encode() + b"\n")


def _changes(earlier: Any, now: Any, place: str = "") -> Iterator[str]:
    """Yield the values that differ between two plans, except what was only added."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        for key in [*earlier, *(key for key in now if key not in earlier)]:
            if key not in ("order", "name"):  # the order follows from the other keys, the name does not matter
                yield from _changes(earlier.get(key), now.get(key), f"{place}.{key}" if place else key)
    elif earlier != now and not _is_extended(earlier, now, place):
        yield f"{place} was {_value_text(earlier)}, is {_value_text(now)}"


def _is_extended(earlier: Any, now: Any, place: str) -> bool:
    """Return whether a cell or repetitions of a cell were added."""
    part = place.partition(".")[0]
    if part == "cells":
        return earlier is None and isinstance(now, dict) and "workload" in now
    return part == "repetitions" and now is not None and (earlier or 0) < now


def _value_text(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def has_replays(folder: Path) -> bool:
    """Return whether the output folder of an experiment has replays."""
    return (folder / REAL / PLAN).is_file()


def read_plan(folder: Path) -> dict[str, Any]:
    """Return the plan of the campaign in `folder`. Raises InputError if there is none, or it is damaged."""
    path = folder / PLAN
    hint = "`tracebed experiment FILE.yaml -o FOLDER` writes such folders"
    if not path.is_file():
        raise InputError(f"has no replays: {PLAN} is missing", where=str(folder), hint=hint)
    plan: dict[str, Any] = read_json(path, "plan of replays", hint=hint, most=MAX_RUN_JSON)
    from tracebed.validation.experiments.real.campaign import Slot  # slow: the replayer and the batch systems

    try:
        if plan["schema"] != SCHEMA:
            raise ValueError(f"schema {plan['schema']!r}")
        plan["order"] = [Slot(**slot) for slot in plan["order"]]
        if not isinstance(plan["cells"], dict) or {slot.cell for slot in plan["order"]} != plan["cells"].keys():
            raise ValueError("the cells are not those of the repetitions")
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"is damaged: {error}", where=str(path), hint="name another folder with -o") from error
    return plan


def note(attempt: Attempt, folder: Path) -> None:
    """Append an attempt to the log of the campaign."""
    with (folder / LOG).open("ab") as stream:
        if stream.tell() and not _ends_a_line(folder / LOG):
            stream.write(b"\n")
        stream.write(json.dumps(asdict(attempt)).encode() + b"\n")


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"


def attempts(folder: Path) -> list[Attempt]:
    """Return the attempts in the order of execution. A line that was cut off (a killed campaign) is ignored."""
    found = []
    if not (folder / LOG).exists():
        return []
    for line in read_file(folder / LOG, "log of replays", most=MAX_RUN_JSON).splitlines():
        try:
            found.append(Attempt(**json.loads(line)))
        except (ValueError, TypeError, RecursionError):
            continue
    return found


def run_of(slot: Slot, folder: Path) -> Run | None:
    """Return the run of a repetition, or None if the repetition is not done.

    Raises:
        InputError: the run is damaged.
    """
    path = folder / slot.folder
    if not (path / "run.json").is_file():
        return None
    run = Run.load(path)
    return None if run.info.stopped_by_signal else run


def run_folders(folder: Path, *, campaign: bool = False) -> list[Path]:
    """Return the folders of the repetitions, or of the runs of an ensemble, in `folder`; `folder` itself for a run.

    Args:
        campaign: whether `folder` may also be that of an experiment: then the repetitions are those of all cells.

    Raises:
        InputError: `folder` has no run.
    """
    if (folder / "run.json").is_file():
        return [folder]
    for pattern in (
        "rep-*/run.json",
        "run-*/run.json",
        *([f"{REAL}/*/rep-*/run.json", "*/rep-*/run.json"] if campaign else []),
    ):
        if found := sorted(path.parent for path in folder.glob(pattern)):
            return found
    what = "is neither a run nor a folder of repetitions: run.json and rep-*/run.json are missing"
    raise InputError(what, where=str(folder), hint="`tracebed replay` and `tracebed experiment` write runs")


def left_folders(slot: Slot, folder: Path) -> list[Path]:
    """Return the working folders of interrupted attempts at a repetition."""
    return [left for left in working_folders(folder / slot.folder) if not is_running(left)]
