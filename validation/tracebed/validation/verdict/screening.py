"""Screening of the repetitions of a real run: which of them are part of the verdict.

A repetition is excluded only for causes that are measured independently of its metrics, with limits fixed before the
runs. Excluding runs by their outcome would bias the sample, so unusual outcomes (H4, H5) are warnings.

    H1      another number of nodes than most repetitions, or nodes that were never used while the first job of the
            queue lacked exactly these nodes (tracebed.validation.verdict.capacity)
    H2      more than 1 % of the jobs ended in another state than in most repetitions
    H3      submissions too far from the planned times
    H4, H5  unusual run time, makespan or loss of capacity: a warning (tracebed.validation.verdict.outcomes)
    H6      contradicting times: jobs start before their submission or end before their start
    H7      the log of an earlier repetition, up to a shift of all times and to rounding: counted once
    health  the replay is unhealthy by its journal and the default limits, or was interrupted

The health of a replay contains stricter forms of H1, H2 and H3 (docs/reference/health.md).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from tracebed.orchestrator.run import Run
from tracebed.validation.verdict import outcomes
from tracebed.validation.verdict.copies import copied, log_sha256
from tracebed.validation.verdict.health import UNHEALTHY, Health

MAJORITY = 3
"""Smallest number of repetitions among which there is a majority."""
LATE_S = 5.0
"""H3: accepted deviation of a submission from its planned time, trace s."""
LATE_SHARE = 0.01
"""H3: the same, as a share of the mean time between two submissions."""
OF_FACTS = {"clock_skew_jobs": "H6", "nodes_unused": "H1"}
"""Signal -> the rule that an unhealthy run breaks if the signal is its only cause."""

Figures = Mapping[str, Any]
"""The dictionary of `metrics` of a run."""


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
    """Return the first repetition with the most frequent kind of first cause, and this cause.

    Args:
        found: repetitions with a text each, at least one. Texts of one kind differ in their numbers. The text of a
            single repetition is returned whole.
    """
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
    """Return the repetitions of a real run with the reasons to exclude them.

    Args:
        runs: the repetitions, in the order of their execution.
        names: the name of each.
        figures: the metrics of each.
        unmatched: H2: accepted share of the jobs with a different state.
    """
    usual_nodes = _most_common([run.total_nodes for run in runs])
    different = different_states(runs)
    found: list[Repetition] = []
    earlier: dict[str, Run] = {}
    for index, (run, name, measured) in enumerate(zip(runs, names, figures, strict=True)):
        health = Health.of(run, measured["clock_skew_jobs"])
        original = copied(run, earlier)
        late = lateness(run, measured)
        nodes = f"H1: {run.total_nodes} nodes, most repetitions have {usual_nodes}"
        unhealthy = _of_health(health)
        reasons = {
            nodes: run.total_nodes != usual_nodes,
            unhealthy: health.state == UNHEALTHY,
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
        found.append(
            Repetition(run, name, health.state, health.causes, excluded, health.notes, lenient, health.signals)
        )
    return _flagged(found, figures)


def lateness(run: Run, figures: Figures) -> str:
    """Return by how much submissions deviate from their planned times, as text; empty if within the limits of H3."""
    jobs = run.table("jobs")
    off = np.fmax.reduce(np.abs(jobs["submit"] - jobs["submit_planned"]), initial=0.0)
    between = figures["utilization_window"]["end_s"] / max(len(jobs) - 1, 1)
    if not off > max(LATE_S, LATE_SHARE * between):
        return ""
    return f"submissions deviate up to {off:,.1f} trace seconds from their planned times"


def _of_health(health: Health) -> str:
    signals = {cause.get("signal", "") for cause in health.decisive}
    rule = OF_FACTS.get(signals.pop(), "health") if len(signals) == 1 else "health"
    return f"{rule}: {health.why}"


def _most_common(values: Sequence[int]) -> int:
    """Return the most common value; the largest of several."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value))


def different_states(runs: Sequence[Run]) -> list[float]:
    """Return for each repetition the share of jobs that are missing, or whose final state differs from the majority's.

    The shares are 0 for fewer than `MAJORITY` repetitions.
    """
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
    texts = dict(zip(included, outcomes.signals(pd.DataFrame(rows, columns=list(columns), dtype=float)), strict=True))
    return tuple(replace(each, flags=texts.get(index, "")) for index, each in enumerate(repetitions))
