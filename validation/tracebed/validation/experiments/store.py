"""The output folder of an experiment: the results of its cells.

    OUTPUT/cells/IDENTITY.json               the metrics of a simulated cell, with a checksum of the content
    OUTPUT/cells/IDENTITY.jobs.parquet       jobs of the cell, if a plot requires them
    OUTPUT/real/campaign.json                real cells with all settings, order of the repetitions
    OUTPUT/real/repetitions.jsonl            a line for each attempt: cell, number, start, duration, error
    OUTPUT/real/CELL/rep-01/                 the run of a repetition
    OUTPUT/real/CELL/rep-01.log              output of the command beside the repetition
    OUTPUT/predicted/SIMULATOR/CELL          a prediction of a real cell; with several seeds CELL/run-01, ...
    OUTPUT/predicted/SIMULATOR/CELL.json     everything on which the prediction depends, with its hash

A truncated or modified file of a simulated cell, or a file of another cell, is ignored with a warning, and the cell is
computed again. A repetition is done if its folder has a run that was not interrupted by a signal.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.files import replacing, sha256_of
from tracebed.ground.input_files import MAX_RUN_JSON, read_file, read_json
from tracebed.ground.parquet_file import read_frame
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.working_folders import is_running, working_folders

if TYPE_CHECKING:
    import pandas as pd

    from tracebed.validation.experiments.cell import Campaign, CellResult, SimulatedCell, Slot
    from tracebed.validation.experiments.experiment import Point

PREDICTED = "predicted"  # folder of the predictions in the output folder
REAL = "real"  # folder of the replays in the output folder
PLAN = "campaign.json"
LOG = "repetitions.jsonl"
CAMPAIGN_SCHEMA = "tracebed-campaign/1"
CELL_SCHEMA = "tracebed-cell/1"


@dataclass(frozen=True)
class StoredCell:
    """The stored result of a cell."""

    rows: list[dict[str, Any]]  # a row per window
    seconds: float  # computation time, s
    warnings: list[str]
    jobs_sha256: str | None  # checksum of the table of jobs; None if the table was not kept


def write(cell: SimulatedCell, result: CellResult, folder: Path) -> None:
    """Write the files of a cell. The JSON file marks the cell as complete and is written last."""
    jobs = _jobs_path(cell, folder)
    jobs.parent.mkdir(exist_ok=True)
    if result.jobs is not None:
        with replacing(jobs) as stream:
            result.jobs.to_parquet(stream, index=False)
    # A machine has its own form in JSON: what the simulation of Slurm knows of a cluster is no dataclass.
    facts = {key: getattr(cell, key) for key in ("processes", "processes_seed", "tau", "identity")}
    content = {
        "schema": CELL_SCHEMA,
        "cell": facts
        | {"workload": cell.workload.name, "machine": cell.machine.to_json(), "setup": asdict(cell.setup)},
        "seconds": result.seconds,
        "warnings": result.warnings,
        "rows": result.rows,
        "jobs_sha256": sha256_of(jobs) if result.jobs is not None else None,
    }
    with replacing(_path(cell, folder)) as stream:
        stream.write(json.dumps(content | {"sha256": _checksum(content)}, indent=1).encode() + b"\n")


def is_kept(cell: SimulatedCell, folder: Path) -> bool:
    """Return whether the result of a cell is kept, with its jobs if required. Warn about a damaged result."""
    if not _path(cell, folder).exists():
        return False
    try:
        kept = read(cell, folder)
        if not cell.jobs:
            return True
        if kept.jobs_sha256 is None or not has_jobs(cell, folder):
            return False
        if sha256_of(_jobs_path(cell, folder)) != kept.jobs_sha256:
            raise InputError("does not match its checksum", where=str(_jobs_path(cell, folder)))
    except InputError as error:
        tolerate({f"damaged: {error.what}; the cell is computed again": 1}, where=error.where)
        return False
    return True


def read(cell: SimulatedCell, folder: Path) -> StoredCell:
    """Return the kept result of a cell.

    Raises:
        InputError: the file cannot be read, is not JSON, lacks a key, does not match its checksum, or belongs to
            another cell.
    """
    path = _path(cell, folder)

    def damaged(what: str) -> InputError:
        return InputError(what, where=str(path), hint="run the experiment again to compute the cell again")

    data = read_file(path, "cell", hint="run the experiment again to compute the cell again", most=MAX_RUN_JSON)
    try:
        content = json.loads(data)  # undefined figures are NaN
        expected = content.pop("sha256")
        kept = StoredCell(content["rows"], content["seconds"], content["warnings"], content["jobs_sha256"])
        identity = content["cell"]["identity"]
    except KeyError as error:
        raise damaged(f"the key {error} is missing") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(f"not the JSON of a cell: {error}") from error
    if _checksum(content) != expected:
        raise damaged("does not match its checksum")
    if identity != cell.identity:
        raise damaged(f"belongs to the cell {identity}")
    return kept


def has_jobs(cell: SimulatedCell, folder: Path) -> bool:
    """Return whether the jobs of a cell were kept."""
    return _jobs_path(cell, folder).exists()


class KeptJobs:
    """The kept jobs of the points of a grid, for workers that draw.

    Args:
        cells: the cells of the points.
        folder: the output folder.
    """

    def __init__(self, cells: Mapping[Point, SimulatedCell], folder: Path) -> None:
        """Find the cells with kept jobs."""
        self._kept = {
            point: (_jobs_path(cell, folder), len(cell.machine.nodes))
            for point, cell in cells.items()
            if has_jobs(cell, folder)
        }

    def __call__(self, point: Point) -> pd.DataFrame | None:
        """Return the jobs of a point and the nodes of the `machine`, or None. Raises InputError for a damaged file."""
        if point not in self._kept:
            return None
        path, nodes = self._kept[point]
        return read_frame(path, hint="run the experiment again").assign(machine=nodes)


def _path(cell: SimulatedCell, folder: Path) -> Path:
    return folder / "cells" / f"{cell.identity}.json"


def _jobs_path(cell: SimulatedCell, folder: Path) -> Path:
    return folder / "cells" / f"{cell.identity}.jobs.parquet"


def _checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 of the content of a cell, or of the inputs of a prediction, as canonical JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
    """Write the plan of a campaign, after a check of the plan in `folder`: a campaign may grow, but not change."""
    # Further repetitions and further cells are replayed after those that are done.
    experiment = campaign.file.experiment
    plan = {
        "schema": CAMPAIGN_SCHEMA,
        "name": campaign.file.name,
        "repetitions": campaign.counts,
        "more": dict(campaign.more),
        **{key: getattr(experiment, key) for key in ("sessions", "seed", "settle_s")},
        "cells": {name: cell.settings for name, cell in campaign.cells.items()},
        "order": [asdict(slot) for slot in campaign.order],
    }
    if (folder / PLAN).exists():
        earlier = read_plan(folder)
        if changes := list(_changes(earlier, plan)):
            of_inventory = all(".inventory." in change.partition(" was ")[0] for change in changes)
            changed = "inventory" if of_inventory else "experiment file"
            raise InputError(
                f"has the replays of another experiment: {'; '.join(changes[:3])}{'; ...' if len(changes) > 3 else ''}",
                where=str(folder),
                hint=f"restore the {changed}, or name another folder with -o",
            )
    folder.mkdir(exist_ok=True)
    with replacing(folder / PLAN) as stream:
        stream.write(json.dumps(plan, indent=1).encode() + b"\n")


def _changes(earlier: Any, now: Any, place: str = "") -> Iterator[str]:
    """Yield the values that differ between two plans, except what was only added."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        for key in [*earlier, *(key for key in now if key not in earlier)]:
            if key not in ("order", "name", "more"):  # these follow from the other keys and the runs, or do not matter
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
    """Return the plan of the campaign in `folder`. Raises InputError if it is missing or damaged."""
    path = folder / PLAN
    hint = "`tracebed experiment FILE.yaml -o FOLDER` writes such folders"
    if not path.is_file():
        raise InputError(f"has no replays: {PLAN} is missing", where=str(folder), hint=hint)
    plan: dict[str, Any] = read_json(path, "plan of replays", hint=hint, most=MAX_RUN_JSON)
    from tracebed.validation.experiments.cell import Slot

    try:
        if plan["schema"] != CAMPAIGN_SCHEMA:
            raise ValueError(f"schema {plan['schema']!r}")
        plan["order"] = [Slot(**slot) for slot in plan["order"]]
        if not isinstance(plan["cells"], dict) or {slot.cell for slot in plan["order"]} != plan["cells"].keys():
            raise ValueError("the cells are not those of the repetitions")
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"is damaged: {error}", where=str(path), hint="name another folder with -o") from error
    return plan


def added(folder: Path) -> dict[str, int]:
    """Return cell -> number of the repetitions that were added for unhealthy ones to the campaign in `folder`."""
    return dict(read_plan(folder).get("more", {})) if (folder / PLAN).is_file() else {}


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
    attempted = []
    if not (folder / LOG).exists():
        return []
    for line in read_file(folder / LOG, "log of replays", most=MAX_RUN_JSON).splitlines():
        try:
            attempted.append(Attempt(**json.loads(line)))
        except (ValueError, TypeError, RecursionError):
            continue
    return attempted


def run_of(slot: Slot, folder: Path) -> Run | None:
    """Return the run of a repetition, or None if the repetition is not done."""
    path = folder / slot.folder
    if not (path / "run.json").is_file():
        return None
    run = Run.load(path)
    return None if run.info.stopped_by_signal else run


def run_folders(folder: Path, *, campaign: bool = False) -> list[Path]:
    """Return the folders of runs in `folder`: of repetitions, of an ensemble, or of all cells of a `campaign`."""
    if (folder / "run.json").is_file():
        return [folder]
    for pattern in (
        "rep-*/run.json",
        "run-*/run.json",
        *([f"{REAL}/*/rep-*/run.json", "*/rep-*/run.json"] if campaign else []),
    ):
        if folders := sorted(path.parent for path in folder.glob(pattern)):
            return folders
    what = "is neither a run nor a folder of repetitions: run.json and rep-*/run.json are missing"
    raise InputError(what, where=str(folder), hint="`tracebed replay` and `tracebed experiment` write runs")


def real_cells(folder: Path) -> list[tuple[str, list[Path]]]:
    """Return name and repetitions of the real cells in `folder`, in the order of the experiment file."""
    if not (folder / REAL).is_dir():
        return [(folder.name, run_folders(folder))]
    done = sorted(path.parent for path in (folder / REAL).glob("*/rep-*/run.json"))
    found = {name: list(own) for name, own in groupby(done, key=lambda path: path.parent.name)}
    if not found:
        raise InputError("has no finished replays", where=str(folder), hint="`tracebed experiment` makes them")
    order = list(read_plan(folder / REAL)["cells"]) if has_replays(folder) else list(found)
    return [(name, found[name]) for name in order if name in found]


def predicted_cells(folder: Path) -> list[tuple[str, list[Path]]]:
    """Return name and predictions of the cells in `folder`: of a run, of a simulator, or of an experiment with one."""
    if (folder / PREDICTED).is_dir():
        simulators = sorted(path for path in (folder / PREDICTED).iterdir() if path.is_dir())
        if len(simulators) > 1:
            what = f"has predictions of {', '.join(path.name for path in simulators)}"
            raise InputError(what, where=str(folder), hint=f"choose one: {simulators[0]}")
        folder = simulators[0] if simulators else folder
    cells = sorted(
        {
            path.parent.parent if path.parent.name.startswith("run-") else path.parent
            for path in [*folder.glob("*/run.json"), *folder.glob("*/run-*/run.json")]
        }
        - {folder}
    )
    if (folder / "run.json").is_file() or not cells:
        return [(folder.name, run_folders(folder))]
    return [(cell.name, run_folders(cell)) for cell in cells]


def left_folders(slot: Slot, folder: Path) -> list[Path]:
    """Return the working folders of interrupted attempts at a repetition."""
    return [left for left in working_folders(folder / slot.folder) if not is_running(left)]


def prediction_folders(folder: Path, simulator: str, cell: str, seeds: int) -> list[Path]:
    """Return the folder of each prediction of a real cell by a simulator; `folder` is the output folder."""
    place = folder / PREDICTED / simulator / cell
    return [place] if seeds == 1 else [place / f"run-{seed + 1:02d}" for seed in range(seeds)]


def has_prediction(path: Path, inputs: Callable[[], dict[str, Any]]) -> bool:
    """Return whether the folder `path` has a complete prediction, and all its inputs, JSON values, are the same."""
    try:
        kept = read_json(_record(path), "record of a prediction")["sha256"]
    except (InputError, TypeError, KeyError):
        return False
    return bool(kept == _checksum(inputs())) and (path / "run.json").is_file()


def write_prediction(path: Path, inputs: Callable[[], dict[str, Any]], predict: Callable[[], Run]) -> None:
    """Make a prediction and write it to the folder `path`. The record of its inputs is written last."""
    _record(path).unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    predict().save(path, replace=True)
    record = inputs()
    with replacing(_record(path)) as stream:
        stream.write(json.dumps({"sha256": _checksum(record), **record}, indent=1).encode() + b"\n")


def _record(path: Path) -> Path:
    """Return the file of the inputs of the prediction in the folder `path`."""
    return path.with_name(f"{path.name}.json")
