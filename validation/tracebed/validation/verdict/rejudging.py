"""The health of a finished replay, judged again: by the journal and the tables of its run, and by the default limits.

The state in `run.json` is a statement of whoever made the run, and so are the limits by which it was found. A judge of
simulators therefore uses neither: the signals are computed from the journal, and compared with the limits that tracebed
provides. Narrower limits of the run hold too. docs/explanation/decisions/018-health-judged-again.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.health import Value, execution_kind, judged, rounded, times_of
from tracebed.orchestrator.replay.thresholds import SEVERE, SIGNALS, HealthThresholds
from tracebed.orchestrator.run import JOURNAL, Run

TIMES = ["job_id", "submit", "start", "end", "state"]  # columns by which a journal is recognized as that of a run
ROUNDING_S = 1e-6  # largest difference of equal times, s

NO_JOURNAL = "its journal is missing: the health was judged by the figures in run.json and by the tables"
"""Note about a run that is kept without its journal, as those of recorded suites are."""


class ReassessedHealth(NamedTuple):
    """The health of a replay according to its journal and tables."""

    state: str  # `healthy`, `degraded` or `unhealthy`; empty: the replay recorded no health, and has no journal
    causes: list[dict[str, Any]]  # the causes of the state and of milder states, as in `RunInfo.health`
    # How the judgment differs from the record of the run, and what could not be recomputed; a sentence each.
    notes: list[str]
    lenient: bool  # whether the replay is unhealthy, but not by its own limits
    # The judged figures: signal -> value; None: unknown. Empty: the replay recorded no health, and has no journal.
    signals: dict[str, float | None]


def reassessed_health(run: Run) -> ReassessedHealth:
    """Return the health of a replay by the default limits, and by those of the replay where they are narrower."""
    # The signals are those of the journal. Without a journal they are the figures in `run.json`. The tables of the run
    # are counted in both cases, and the larger value holds.
    recorded = found = run.info.health
    notes: list[str] = []
    if run.folder is not None:
        again, notes = _from_journal(run)
        if again is not None and recorded and again["state"] != recorded["state"]:
            notes.append(f"run.json says {recorded['state']}, but the journal and the limits say {again['state']}")
        found = again or recorded
    own = _with_counts(found.get("signals", {}), run)
    jobs = run.table("jobs")
    times = times_of(jobs["run_time"].tolist(), jobs["submit_planned"].tolist(), run.info.speed)
    usual = judged(own, HealthThresholds.read(), execution_kind(run.info), times)
    causes = _merged(found, usual["causes"])
    state = causes[0]["state"] if causes else found.get("state", "")
    lenient = state == "unhealthy" and bool(found) and found.get("state") != "unhealthy"
    if found.get("wider"):
        wider = found["wider"]
        more = f" and {len(wider) - 1} more" if len(wider) > 1 else ""
        notes.append(f"its limits of health are wider than the defaults ({wider[0]}{more}): the defaults hold")
    if lenient:
        notes.append(f"it is {found['state']} by its own record and limits, and unhealthy by the defaults")
    return ReassessedHealth(state, causes, notes, lenient, usual["signals"] if found else {})


def _from_journal(run: Run) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the health that the journal of a run gives, by the limits in the journal, or None with the reason."""
    assert run.folder is not None
    path = run.folder / JOURNAL
    if not path.is_file():
        return None, [NO_JOURNAL]
    from tracebed.orchestrator.replay.batch.recovery import (
        recovered as recovered_batch,  # slow: the whole of the replayer
    )
    from tracebed.orchestrator.replay.recovery import recovered

    try:
        again = recovered_batch(run.folder) if run.info.batch else recovered(path)
    except InputError as error:
        return None, [f"its journal cannot be used ({error.what}): the health was judged by the figures in run.json"]
    if not _same_jobs(run, again):
        return None, ["its journal has other times or states of jobs: the health was judged by the figures in run.json"]
    return again.info.health, []


def _same_jobs(run: Run, other: Run) -> bool:
    """Return whether two runs have the same jobs with the same states and times."""
    tables = [each.table("jobs") for each in (run, other)]
    if len(tables[0]) != len(tables[1]):
        return False
    ours, theirs = (each.frame()[TIMES].sort_values("job_id", ignore_index=True) for each in tables)
    if not ours[["job_id", "state"]].equals(theirs[["job_id", "state"]]):
        return False
    far = (ours[TIMES[1:4]] - theirs[TIMES[1:4]]).abs() > ROUNDING_S * max(1.0, run.info.speed)
    return not far.to_numpy().any() and bool((ours.isna() == theirs.isna()).to_numpy().all())


def _with_counts(signals: Mapping[str, Any], run: Run) -> dict[str, Value]:
    """Return the values of the signals: recorded, or counted in the tables if that is more."""
    info, jobs = run.info, run.table("jobs")
    requeued = (jobs.equal("state", JobState.COMPLETED) & (jobs["restarts"] > 0)).sum()
    ended = jobs.among("state", [JobState.FAILED, JobState.INTERRUPTED]).sum()
    lost = {str(outage.get("node")) for outage in info.outages}
    late = np.fmax.reduce(jobs["submit"] - jobs["submit_planned"], initial=np.nan) / info.speed
    counted = {
        "agents_lost": Value(len(lost), ", ".join(sorted(lost))),
        "pauses": Value(len(info.pauses)),
        "jobs_disturbed": Value(rounded(float(ended + requeued) / max(len(jobs), 1))),
        "submission_late_s": Value(rounded(float(late)) if late == late else None),
        "core_overlap_s": Value(info.handovers.get("overlap_s")),
    }
    recorded = {name: signals.get(name) for name in SIGNALS}
    values = {
        name: Value(value) for name, value in recorded.items() if isinstance(value, int | float) and value == value
    }
    for name, value in counted.items():
        if value.value is not None and value.value > (values[name].value or 0.0 if name in values else -1.0):
            values[name] = value
    return values


def _merged(found: Mapping[str, Any], usual: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the worst cause of each signal by both limits, the worst first. Texts of the replay name the place."""
    told = [*found.get("causes", []), *found.get("defaults", {}).get("causes", [])]
    known: dict[str, dict[str, Any]] = {}
    for cause in (*told, *usual):
        name = cause.get("signal", cause["text"])
        if name not in known or SEVERE.index(cause["state"]) < SEVERE.index(known[name]["state"]):
            known[name] = cause
    return sorted(known.values(), key=lambda cause: SEVERE.index(cause["state"]))
