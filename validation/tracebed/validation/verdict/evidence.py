"""Evidence of real runs: in which parts of a prediction they could have revealed errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from tracebed.orchestrator.run import VIRTUAL, RunInfo

COPIES = 0.99
"""Smallest share of the jobs with the observed run time for which the predicted run times are copies."""
ROUNDING_S = 0.01
"""Difference of run times that is rounding, s: simulators print times with few digits."""


def imposed(info: RunInfo) -> str:
    """Return what imposed the run times of a real run, or an empty text if the run times were measured.

    An emulated rank sleeps for its planned run time. A rank with a duty below 1 computes for a part of the planned time
    and sleeps until its planned end. A steady clock stands still until a late rank has finished its planned work.
    """
    partial = sorted({duty for duty in info.duties if 0 < duty < 1})
    kinds = ["emulated nodes"] if "emulated" in info.execution.split("+") else []
    if partial:
        kinds.append("duty " + " to ".join(f"{each:g}" for each in dict.fromkeys((partial[0], partial[-1]))))
    if info.parameters.get("clock") == "steady":
        kinds.append("steady clock")
    return ", ".join(kinds)


def copied_run_times(jobs: pd.DataFrame, resolution_s: float) -> bool:
    """Return whether the predicted run times are copies of the observed ones, not predictions of them.

    Args:
        jobs: table of matched jobs, as in `Comparison.jobs`.
        resolution_s: resolution of the times of both runs, s: smaller differences are rounding.
    """
    if not len(jobs):
        return False
    difference = (jobs["run_predicted"] - jobs["run_real"]).abs()
    return bool((difference <= max(resolution_s, ROUNDING_S)).mean() >= COPIES)


@dataclass(frozen=True)
class Evidence:
    """Parts of a prediction that the real runs test, and parts that they do not test."""

    same_scheduler: bool
    """Whether the same scheduler code decided on both sides."""
    imposed: str
    """What imposed the run times; empty if they were measured."""
    could_fail: tuple[str, ...]
    """Parts of the prediction in which the real runs could have revealed errors."""
    could_not_fail: tuple[str, ...]
    """Parts that are imposed, or the same on both sides."""


def evidence(real: Sequence[RunInfo], predicted: Sequence[RunInfo], copied: Sequence[bool]) -> Evidence:
    """Return which parts of predictions real runs test.

    Args:
        real, predicted: the runs of all cases.
        copied: for each case, whether the predicted run times are copies of the observed ones.
    """
    replayed = all(info.source == "replay" for info in real)
    own = replayed and not any(info.batch for info in real)
    shared = own and all(_decided_by_tracebed(info) for info in predicted)
    by = ", ".join(dict.fromkeys(filter(None, (imposed(info) for info in real))))
    delays = "delays of launches, ends and resizes" if replayed else "delays of the real system"
    could = [f"{delays}, and the schedule that follows from them"]
    could_not = []
    copies = "the predicted run times are copies of the observed ones"
    if by:
        could_not.append(f"run times: they were imposed ({by})")
    elif copied and all(copied):
        could_not.append(f"run times: {copies}")
    elif any(copied):
        could.append(f"run times of {len(copied) - sum(copied)} of {len(copied)} cases")
        could_not.append(f"run times of {sum(copied)} of {len(copied)} cases: {copies}")
    else:
        could.append("run times")
    if shared:
        could_not.append("decisions of the scheduler: the same code decided on both sides")
    else:
        could.append("decisions of the scheduler")
    return Evidence(shared, by, tuple(could), tuple(could_not))


def _decided_by_tracebed(info: RunInfo) -> bool:
    """Return whether the scheduler of tracebed made the decisions of a prediction, in any simulator."""
    return info.source in ("simulator", VIRTUAL) or info.parameters.get("scheduler") == "tracebed"
