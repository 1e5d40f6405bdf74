"""Screening of the repetitions of a real run: which of them are part of the verdict.

A repetition is excluded only for causes that are measured independently of its metrics, with limits fixed before the
runs. Excluding runs by their outcome would bias the sample, so unusual outcomes (H4, H5) are warnings.

    H1      another number of nodes than most repetitions, or nodes that were never used while the first job of the
            queue lacked exactly these nodes (`health.unused_nodes`)
    H2      more than 1 % of the jobs ended in another state than in most repetitions
    H3      submissions too far from the planned times
    H4, H5  unusual run time, makespan or loss of capacity: a warning (docs/how-to/repeat.md)
    H6      contradicting times: jobs start before their submission or end before their start
    H7      the log of an earlier repetition, up to a shift of all times and to rounding: counted once
    health  the replay is unhealthy by its journal and the default limits, or was interrupted

The health of a replay contains stricter forms of H1, H2 and H3 (docs/reference/health.md).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray
from tracebed.ground.table import BLOCK, ascending, rows_of, strings, take
from tracebed.orchestrator.run import Run
from tracebed.validation.verdict.health import UNHEALTHY, Health

MAJORITY = 3  # smallest number of repetitions among which there is a majority
LATE_S = 5.0  # H3: accepted deviation of a submission from its planned time, trace s
LATE_SHARE = 0.01  # H3: the same, as a share of the mean time between two submissions
OF_FACTS = {"clock_skew_jobs": "H6", "nodes_unused": "H1"}
"""Signal -> the rule that an unhealthy run breaks if the signal is its only cause."""

Figures = Mapping[str, Any]  # the dictionary of `metrics` of a run

TIMES = ("submit", "start", "end")
SHIFTED_S = 0.01  # largest spread of the differences of the times of two copies, trace s; also at most `SHIFTED_WALL_S`
SHIFTED_WALL_S = 0.001  # The same, wall s. The launches of real repetitions vary by more than this.
GRIDS_S = (3600.0, 60.0, 10.0, 1.0, 0.1, 0.01)  # units to which times are rounded, s, the largest first
FLOAT_S = 1e-6  # accepted error of a multiple of a unit, s
MANY = 10  # smallest number of times for which the differences may spread: few times are near each other by chance

H4_RUN_TIME = 0.03  # H4: accepted relative difference of the mean run time from the median of the others
H5_DEVIATION = 0.05  # H5: accepted deviation of log makespan, and of the loss of capacity, from the median
H5_SPREADS = 6 * 1.4826  # H5: the same, in median absolute deviations (1.4826 MAD estimate a standard deviation)
LEAST_REPETITIONS = 3  # smallest number of repetitions of a cell for which the signals are computed


@dataclass(frozen=True)
class Repetition:
    """One repetition of a real run, and whether it is part of the verdict."""

    run: Run
    name: str
    state: str
    """Health: `healthy`, `degraded`, `unhealthy` or `unknown`."""
    causes: tuple[dict[str, Any], ...]
    """Causes of the state, as in `RunInfo.health`."""
    excluded: str = ""
    """Why the repetition is excluded, as text that begins with H1, H2, H3, H6, H7 or `health`; empty: included."""
    notes: tuple[str, ...] = ()
    """How the health differs from the record of the run, and what could not be recomputed; a sentence each."""
    lenient: bool = False
    """Whether the run is excluded by the default limits of health only, and not by its own ones."""
    signals: Mapping[str, float | None] = field(default_factory=dict)
    """The figures by which the health was judged, as in `Health.signals`."""
    flags: str = ""
    """Signals H4 and H5 of an unusual outcome, as text: a warning, never a reason to exclude."""

    @cached_property
    def sha256(self) -> str:
        """Hash of the times and states of the jobs."""
        return log_sha256(self.run)

    def why(self, state: str) -> str:
        """Return the texts of the causes with this state; empty if there are none."""
        return "; ".join(cause["text"] for cause in self.causes if cause["state"] == state)

    @property
    def unfit(self) -> bool:
        """Whether the repetition is excluded for its health, not as a duplicate."""
        return bool(self.excluded) and not self.excluded.startswith("H7")

    def to_json(self) -> dict[str, Any]:
        """Return the repetition as JSON values, without the tables of the run."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "health": {"state": self.state, "causes": list(self.causes)},
            "excluded": self.excluded or None,
            "notes": list(self.notes),
            "flags": self.flags or None,
        } | identity(self.run)


def most_frequent(found: Sequence[tuple[Repetition, str]]) -> tuple[Repetition, str]:
    """Return the first repetition with the most frequent kind of first cause, and this cause."""
    # Texts of one kind differ in their numbers. The text of a single repetition is returned whole.
    if len(found) > 1:
        found = [(run, text.partition("; ")[0]) for run, text in found]
    kinds = [re.split(r"[:;,(]|\d", text.partition(": ")[2] or text)[0] for _, text in found]
    return found[kinds.index(Counter(kinds).most_common(1)[0][0])]


def identity(run: Run) -> dict[str, Any]:
    """Return the identity of a run as JSON values."""
    names = ["source", "execution", "state", "created", "seed", "speed", "resolution_s", "parameters", "calibration"]
    names += ["lateness_ms", "hosts", "versions", "warnings"]
    facts = {"jobs": len(run.table("jobs")), "nodes": run.total_nodes}
    return facts | {name: getattr(run.info, name) for name in names}


def screen(
    runs: Sequence[Run], names: Sequence[str], figures: Sequence[Figures], unmatched: float
) -> tuple[Repetition, ...]:
    """Return the repetitions of a real run and the reasons to exclude them; `unmatched` is the accepted share of H2."""
    usual_nodes = _most_common([run.total_nodes for run in runs])
    different = different_states(runs)
    repetitions: list[Repetition] = []
    earlier: dict[str, Run] = {}
    for index, (run, name, measured) in enumerate(zip(runs, names, figures, strict=True)):
        health = Health.of(run, measured["clock_skew_jobs"])
        original = copied(run, earlier)
        late = lateness(run, measured)
        missing, share = missing_jobs(run)
        nodes = f"H1: {run.total_nodes} nodes, most repetitions have {usual_nodes}"
        unhealthy = _of_health(health)
        reasons = {
            nodes: run.total_nodes != usual_nodes,
            unhealthy: health.state == UNHEALTHY,
            f"H2: {missing}": share > unmatched,
            f"H2: {different[index]:.1%} of the jobs ended in another state than in most repetitions": different[index]
            > unmatched,
            f"H3: {late}": bool(late) and not run.info.health,
            f"H7: the same log as {original}": bool(original),
        }
        held = [reason for reason, holds in reasons.items() if holds]
        if not original:
            earlier[name] = run
        lenient = health.lenient and held == [unhealthy]
        excluded = "".join(held[:1])
        notes = (*health.notes, *([missing] if missing and f"H2: {missing}" not in held else []))
        repetitions.append(Repetition(run, name, health.state, health.causes, excluded, notes, lenient, health.signals))
    return _flagged(repetitions, figures)


def lateness(run: Run, figures: Figures) -> str:
    """Return by how much submissions deviate from their planned times, as text; empty if within the limits of H3."""
    jobs = run.table("jobs")
    off = np.fmax.reduce(np.abs(jobs["submit"] - jobs["submit_planned"]), initial=0.0)
    between = figures["utilization_window"]["end_s"] / max(len(jobs) - 1, 1)
    if not off > max(LATE_S, LATE_SHARE * between):
        return ""
    return f"submissions deviate up to {off:,.1f} trace seconds from their planned times"


def missing_jobs(run: Run) -> tuple[str, float]:
    """Return which jobs of the workload the file of an imported run lacks, as text, and their share; empty: none."""
    imported, jobs = run.info.imported, len(run.table("jobs"))
    count, named = imported.get("jobs_without_row", 0), imported.get("missing_jobs", [])
    if not count:
        return "", 0.0
    shown = ", ".join([*named, *(["..."] if count > len(named) else [])])
    return f"{count:,} of {jobs:,} jobs are not in the file {imported.get('file', '')} ({shown})", count / jobs


def _of_health(health: Health) -> str:
    signals = {cause.get("signal", "") for cause in health.decisive}
    rule = OF_FACTS.get(signals.pop(), "health") if len(signals) == 1 else "health"
    return f"{rule}: {health.why}"


def _most_common(values: Sequence[int]) -> int:
    """Return the most common value; the largest of several."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value))


def different_states(runs: Sequence[Run]) -> list[float]:
    """Return the share of jobs that are missing, or end unlike the majority, for each repetition (of `MAJORITY`)."""
    if len(runs) < MAJORITY:
        return [0.0] * len(runs)
    states = pd.concat(
        [
            run.table("jobs").frame().set_index("job_id")["state"].astype(str).rename(index)
            for index, run in enumerate(runs)
        ],
        axis=1,
    ).fillna("missing")
    codes, names = pd.factorize(states.to_numpy().ravel())
    table = codes.reshape(states.shape)
    counts = np.stack([(table == code).sum(axis=1) for code in range(len(names))])
    usual = counts.argmax(axis=0)
    return [float(share) for share in (table != usual[:, None]).mean(axis=0)]


def _flagged(repetitions: Sequence[Repetition], figures: Sequence[Figures]) -> tuple[Repetition, ...]:
    """Return the repetitions with the signals H4 and H5 of those that are included."""
    columns = ("mean_run_s", "makespan_s", "loss_of_capacity")
    included = [index for index, repetition in enumerate(repetitions) if not repetition.excluded]
    rows = [[figures[index][name] for name in columns] for index in included]
    texts = dict(zip(included, signals(pd.DataFrame(rows, columns=list(columns), dtype=float)), strict=True))
    return tuple(replace(each, flags=texts.get(index, "")) for index, each in enumerate(repetitions))


def log_sha256(run: Run) -> str:
    """Return a hash of the times and states of the jobs, in any order of rows: equal on all machines."""
    rows = run.table("jobs")
    order = ascending(rows.raw("job_id"))
    digest = hashlib.sha256()
    for column in ("job_id", "state"):
        texts = take(rows.raw(column), order)
        for first in range(0, len(texts), BLOCK):
            digest.update(("\n" * (first > 0) + "\n".join(strings(texts[first : first + BLOCK]))).encode())
    for column in TIMES:
        digest.update(rows[column][order].astype("<f8", copy=False).tobytes())
    return digest.hexdigest()


def copied(run: Run, earlier: Mapping[str, Run]) -> str:
    """Return the name of the first run in `earlier` of which `run` is a copy; empty if `run` is no copy."""
    return next((name for name, other in earlier.items() if is_copy(run, other)), "")


def is_copy(run: Run, other: Run) -> bool:
    """Return whether two runs are copies: the same jobs, states and times, up to one shift and to rounding."""
    # The differences of the times of copies are equal. If one of the two logs was rounded, the differences spread by at
    # most its unit. The times of two repetitions vary from job to job.
    ours, others = run.table("jobs"), other.table("jobs")
    if len(ours) != len(others):
        return False
    row = rows_of(ours.raw("job_id"), others.raw("job_id"))
    states, their_states = ours["state"], others["state"]
    if (row < 0).any() or (states != their_states[row]).any():
        return False
    tables = [np.column_stack([each[name] for name in TIMES]) for each in (ours, others)]
    times, theirs = tables[0].ravel(), tables[1][row].ravel()
    known = ~np.isnan(times)
    if (known == np.isnan(theirs)).any():
        return False
    times, theirs = times[known], theirs[known]
    spread = float(np.ptp(times - theirs)) if len(times) else 0.0
    if len(times) < MANY:
        return spread <= FLOAT_S
    units = {_unit(times), _unit(theirs)}
    unit = max(units) if len(units) > 1 else 0.0  # a shift of two rounded logs keeps all differences equal
    shifted = min(SHIFTED_S, SHIFTED_WALL_S * min(run.info.speed, other.info.speed))
    return spread <= max(unit, shifted) + FLOAT_S


def _unit(times: FloatArray) -> float:
    """Return the largest unit of `GRIDS_S` of which all times are multiples; 0 without one."""
    for unit in GRIDS_S:
        if (np.abs(times - np.round(times / unit) * unit) <= FLOAT_S).all():
            return unit
    return 0.0


def signals(runs: pd.DataFrame) -> list[str]:
    """Return the signals of each repetition of one cell as text, or an empty text if there are none."""
    texts_by_run: list[list[str]] = [[] for _ in range(len(runs))]
    if len(runs) < LEAST_REPETITIONS:
        return [""] * len(runs)
    times = runs["mean_run_s"].to_numpy()
    for index, own in enumerate(times):
        others = float(np.median(np.delete(times, index)))
        if abs(own - others) > H4_RUN_TIME * others:
            texts_by_run[index].append(f"H4: mean run time {own / others - 1:+.1%} from the median of the others")
    for name, values in (
        ("makespan", np.log(runs["makespan_s"].to_numpy())),
        ("loss of capacity", runs["loss_of_capacity"].to_numpy()),
    ):
        limit, differences = _h5_limit(values)
        for row in np.flatnonzero(np.abs(differences) > limit):
            relative = math.expm1(differences[row]) if name == "makespan" else differences[row]
            texts_by_run[row].append(f"H5: {name} {relative:+.1%} from the median")
    return ["; ".join(texts) for texts in texts_by_run]


def _h5_limit(values: FloatArray) -> tuple[float, FloatArray]:
    """Return the largest accepted deviation from the median, and the deviations."""
    differences = values - np.median(values)
    return max(H5_DEVIATION, H5_SPREADS * float(np.median(np.abs(differences)))), differences
