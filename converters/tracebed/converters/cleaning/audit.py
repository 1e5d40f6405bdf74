"""Cleaning of a log: applies the steps in order and records the effect of each step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.cleaning.steps import STEPS, Effect, Records, checked, node_hours
from tracebed.converters.log import Log
from tracebed.converters.workload import IntArray, Provenance, Step, System, Workload
from tracebed.ground.errors import InputError, tolerate

ACTIONS = ("merged", "dropped", "changed", "flagged")


@dataclass(frozen=True)
class Audited:
    """Effect of one step: numbers of jobs (records, before merging), their node hours, and their hours of run time."""

    step: str
    parameters: dict[str, Any]
    jobs_before: int
    jobs_after: int
    node_hours_before: float
    node_hours_after: float
    run_hours_before: float
    run_hours_after: float
    merged: int = 0
    dropped: int = 0
    changed: int = 0
    flagged: int = 0
    found: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Cleaned:
    """A clean workload, the audit, and optionally every affected record with the reason."""

    workload: Workload
    audit: list[Audited]
    touched: pd.DataFrame
    """`record` (counted from 1 in submit order of the log), `job_id`, `submit_time`, `step`, `action`, `reason`."""

    def to_json(self) -> list[dict[str, Any]]:
        """Return the audit as JSON values."""
        return [asdict(row) for row in self.audit]


def clean(
    log: Log | Workload,
    steps: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    system: System | None = None,
    explain: bool = False,
) -> Cleaned:
    """Clean a log by steps, each the name (a key of `STEPS`) and its parameters; `explain` lists every affected record.

    The system of the clean workload is `system`, or the one in the provenance. Raises InputError if no job is left, the
    job ids are not unique after the last step, or a parameter is invalid.
    """
    where = log.where if isinstance(log, Log) else ""
    provenance = log.provenance
    if system is not None:
        provenance = replace(provenance, system=replace(system, name=system.name or provenance.system.name))
    stated, logged = provenance.system.name, log.provenance.system.name
    if isinstance(log, Log) and stated not in logged and logged not in stated:
        tolerate({f"the recipe is for {stated}, the log is from {logged}": 1}, where=where)
    table = _sorted(log.table)
    del log  # frees the memory of a large log
    record: IntArray = np.arange(1, len(table) + 1)
    audit: list[Audited] = []
    touched: list[pd.DataFrame] = []
    hours = node_hours(table)
    for name, parameters in steps:
        effect = _effect(name, parameters, Records(table, provenance))
        if explain:
            touched += _touched(table, record, name, effect)
        before, hours_before = len(table), hours
        table, record = _apply(table, record, effect)
        tally = {action: 0 if mask is None else int(mask.sum()) for action, mask in _masks(effect).items()}
        hours = node_hours(table) if any(tally.values()) else hours
        row = Audited(
            name,
            dict(parameters),
            before,
            len(table),
            hours_before[0],
            hours[0],
            hours_before[1],
            hours[1],
            **tally,
            found=list(effect.found),
        )
        audit.append(row)
        provenance = replace(provenance, steps=(*provenance.steps, _step(row)))
        if not len(table):
            raise InputError(f"{name} leaves no job", where=where or None, hint="check the recipe against the log")
    workload = _workload(table, provenance, where)
    columns = ["record", "job_id", "submit_time", "step", "action", "reason"]
    return Cleaned(workload, audit, pd.concat(touched, ignore_index=True) if touched else pd.DataFrame(columns=columns))


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """Return the records sorted by submit time, then by start."""
    submit = table["submit_time"].to_numpy()
    start = table["logged_start"].to_numpy() if "logged_start" in table else np.zeros(len(table))
    later = np.diff(submit)
    if np.all((later > 0) | ((later == 0) & (np.diff(start) >= 0))):
        return table
    return table.iloc[np.lexsort((start, submit))].reset_index(drop=True)


def jobs_of(log: Log) -> Workload:
    """Return the jobs of a log: split records are merged and ids are made unique, without further cleaning."""
    return clean(log, [("merge_split", {}), ("unique_ids", {})]).workload


def records_of(log: Log) -> Workload:
    """Return every record of a log as a job of its own with a unique id, without cleaning."""
    return clean(log, [("unique_ids", {})]).workload


def _effect(name: str, parameters: Mapping[str, Any], records: Records) -> Effect:
    fitting = checked(name, parameters)
    try:
        inspect.signature(STEPS[name]).bind(records, **fitting)
    except TypeError as error:
        raise InputError(f"cleaning step {name}: {error}", hint="see `tracebed clean --list`") from None
    return STEPS[name](records, **fitting)


def _masks(effect: Effect) -> dict[str, Any]:
    return dict(zip(ACTIONS, (effect.merge, effect.drop, effect.change, effect.flag), strict=True))


def _apply(table: pd.DataFrame, record: IntArray, effect: Effect) -> tuple[pd.DataFrame, IntArray]:
    """Return the remaining records after applying `effect`."""
    if effect.columns:
        table = table.assign(**effect.columns)
    gone = [mask for mask in (effect.drop, effect.merge) if mask is not None and mask.any()]
    if gone:
        keep = ~np.logical_or.reduce(gone)
        table, record = table[keep].reset_index(drop=True), record[keep]
    return table, record


def _touched(table: pd.DataFrame, record: IntArray, name: str, effect: Effect) -> list[pd.DataFrame]:
    """Return the records that a step affects, with action and reason."""
    pieces = []
    for action, mask in _masks(effect).items():
        if mask is not None and mask.any():
            rows = np.flatnonzero(mask)
            piece = table.iloc[rows][["job_id", "submit_time"]].assign(
                step=name,
                action=action,
                reason=effect.reason if isinstance(effect.reason, str) else list(effect.reason(rows)),
            )
            piece.insert(0, "record", record[rows])
            pieces.append(piece)
    return pieces


def _step(row: Audited) -> Step:
    """Return the audit of a step as a provenance step."""
    hours = {"node_hours_before": row.node_hours_before, "node_hours_after": row.node_hours_after}
    tally = {action: getattr(row, action) for action in ACTIONS if getattr(row, action)}
    return Step(f"clean {row.step}", {**row.parameters, **hours}, {"jobs before": row.jobs_before, **tally})


def _workload(table: pd.DataFrame, provenance: Provenance, where: str) -> Workload:
    """Return the workload of clean records, without empty `extra_` columns."""
    if not table["job_id"].is_unique:
        twice = table["job_id"][table["job_id"].duplicated()].iloc[0]
        raise InputError(f"job_id {twice!r} is not unique", where=where or None, hint="add the step unique_ids")
    silent = [name for name in map(str, table) if name.startswith("extra_") and table[name].isna().all()]
    return Workload(table.drop(columns=silent), provenance, where=where or None)
