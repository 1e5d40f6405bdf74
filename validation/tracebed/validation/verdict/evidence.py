"""Evidence of real runs: in which parts of a prediction they could have revealed errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracebed.orchestrator.run import RunInfo


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


def evidence(real: Sequence[RunInfo], predicted: Sequence[RunInfo]) -> Evidence:
    """Return which parts of the predictions `predicted` the runs `real` test."""
    replayed = all(info.source == "replay" for info in real)
    own = replayed and not any(info.batch for info in real)
    shared = own and all(_decided_by_tracebed(info) for info in predicted)
    by = ", ".join(dict.fromkeys(filter(None, (imposed(info) for info in real))))
    delays = "delays of launches, ends and resizes" if replayed else "delays of the real system"
    could = [f"{delays}, and the schedule that follows from them"]
    could_not = []
    if by:
        could_not.append(f"run times: they were imposed ({by})")
    else:
        could.append("run times")
    if shared:
        could_not.append("decisions of the scheduler: the same code decided on both sides")
    else:
        could.append("decisions of the scheduler")
    return Evidence(shared, by, tuple(could), tuple(could_not))


def _decided_by_tracebed(info: RunInfo) -> bool:
    """Return whether the scheduler of tracebed made the decisions of a prediction, in any simulator."""
    return info.source == "simulator" or info.parameters.get("scheduler") == "tracebed"
