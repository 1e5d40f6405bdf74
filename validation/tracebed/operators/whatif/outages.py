"""The outages of nodes in a what-if: the backtest with and without them, and the difference.

All members have the same outages. A job that is on a node when it goes down is another one in each member, and another
one than in the log. Each difference is that of a pair of members, as the effect of a change is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracebed.converters.workload import Workload
from tracebed.ground.display import counted
from tracebed.ground.errors import InputError
from tracebed.machine.calendar import Calendar
from tracebed.operators.whatif.classes import Answer, JobClass
from tracebed.operators.whatif.shares import percent, spread
from tracebed.orchestrator.simulation.outages import OutageModel, horizon_s
from tracebed.slurm.machine import SlurmMachine

HOUR_S = 3600.0


@dataclass(frozen=True)
class OutageEffect:
    """What the outages do to the backtest.

    Attributes:
        outages: number of outages in the time of the log.
        nodes: number of nodes that they hit.
        node_hours: node hours in outages, from the beginning of the log to its last start.
        share: the same as a share of all node hours of this time.
        jobs_hit: mean number of jobs, over the members, that lost a node at least once.
        classes: all jobs, and the partitions. `predicted_s` and `error` are without the outages, `changed_s` is with
            them, and `effect` is the difference.
    """

    outages: int
    nodes: int
    node_hours: float
    share: float
    jobs_hit: float
    classes: tuple[JobClass, ...]

    @property
    def sentence(self) -> str:
        """The difference of the mean waits of all jobs in words."""
        every = self.classes[0]
        number = f"{counted(self.outages, 'outage')} of {counted(self.nodes, 'node')}"
        hours = f"{self.node_hours:,.0f} node hours, {percent(self.share)} % of those of the cluster"
        hit = f"{self.jobs_hit:,.1f} jobs lose a node in a prediction"
        what, low, high = map(percent, every.shares)
        between = " to ".join(percent(abs(share)) for share in sorted(every.shares[1:], key=abs))
        match every.answer:
            case Answer.EQUAL:
                effect = "do not change the predicted waits"
            case Answer.UNKNOWN if every.effect is None or not every.effect.base:
                effect = "have no effect in percent: no job waits without them"
            case _ if every.effect is not None and every.effect.differ:
                verb = "raise" if every.effect.change > 0 else "lower"
                effect = f"{verb} the predicted mean wait by {what.lstrip('-')} % ({between} %)"
            case _:
                effect = f"change the predicted mean wait by {what} % ({low} to {high} %), which may be chance"
        without = f"without them, the model's own error on this log is {spread(every.error)}"
        return f"the outages ({number}, {hours}; {hit}) {effect}; {without}"

    def to_json(self) -> dict[str, Any]:
        """Return the effect as JSON values."""
        rows = [
            {
                **{"by": each.by, "class": each.name, "jobs": each.compared, "logged_wait_s": each.logged_s},
                **{"without_wait_s": each.predicted_s, "with_wait_s": each.changed_s},
                "error_without": float(np.expm1(each.error)),
                **dict(zip(("relative", "relative_low", "relative_high"), each.shares, strict=True)),
            }
            for each in self.classes
        ]
        names = ("outages", "nodes", "node_hours", "share", "jobs_hit", "sentence")
        return {**{name: getattr(self, name) for name in names}, "classes": rows}


def calendar_of(
    outages: Calendar | OutageModel, workload: Workload, machines: Sequence[SlurmMachine], where: str
) -> tuple[list[Calendar], list[str]]:
    """Return the calendar of each machine, and notes.

    Events of nodes that a machine lacks are left out: the database of Slurm keeps those of former nodes.

    Raises:
        InputError: no outage is of a node of the first machine, or too many are drawn.
    """
    if isinstance(outages, OutageModel):
        nodes = [machine.nodes for machine in machines]
        return [outages.calendar(each, horizon_s(workload, len(each))) for each in nodes], []
    calendars, notes = list[Calendar](), list[str]()
    for machine, title in zip(machines, ("the slurm.conf", "the changed cluster"), strict=False):
        names = {node.name for node in machine.nodes}
        kept = tuple(outage for outage in outages.outages if outage.node in names)
        if outages.outages and not kept and not calendars:
            what = f"no outage is of a node of the slurm.conf; the first one is of {outages.outages[0].node}"
            raise InputError(what, where=where, hint="give the slurm.conf of the cluster of the outages")
        if others := len(outages.outages) - len(kept):
            notes.append(f"{counted(others, 'outage')} of nodes that {title} lacks: left out")
        calendars.append(Calendar(kept))
    return calendars, notes


def effect_of(
    calendar: Calendar, machine: SlurmMachine, span: tuple[float, float], hits: Sequence[int], classes: list[JobClass]
) -> OutageEffect:
    """Return the effect of the outages on classes of jobs. `span`: the time of the log, s; `hits`: of each member."""
    number = {node.name: at for at, node in enumerate(machine.nodes)}
    since: dict[int, float] = {}
    seconds, outages = 0.0, [each for each in calendar.outages if each.start < span[1] and each.end > span[0]]
    for change in calendar.changes(machine.nodes):  # merges the outages of a node that overlap
        at = min(max(change.at, span[0]), span[1])
        if change.kind is None:
            seconds += at - since.pop(change.node)
        else:
            since.setdefault(change.node, at)
    seconds += sum(span[1] - at for at in since.values())
    return OutageEffect(
        outages=len(outages),
        nodes=len({number[each.node] for each in outages}),
        node_hours=seconds / HOUR_S,
        share=seconds / ((span[1] - span[0]) * len(number)),
        jobs_hit=float(np.mean(hits)),
        classes=tuple(each for each in classes if each.by in ("all", "partition")),
    )
