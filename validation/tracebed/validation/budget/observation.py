"""The times and decisions of a real run, from its tables and its journal."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.redecide import logged_decisions
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.decision_log import LoggedDecision
from tracebed.orchestrator.simulation.observed import ObservedResize, ObservedTimes


@dataclass(frozen=True)
class RealRun:
    """A real run with its journal.

    Attributes:
        run: the run.
        entries: the entries of its journal.
        decisions: the calls of the policy and the decisions in the journal.
        observed: the times of the run.
    """

    run: Run
    entries: list[Entry]
    decisions: list[LoggedDecision]
    observed: ObservedTimes

    @classmethod
    def load(cls, folder: Path) -> RealRun:
        """Read the run in `folder` and its journal. A run of a batch system has no decisions of a policy.

        Raises:
            InputError: `folder` is not a replay, its journal is missing or damaged, or its replayer was killed. Or the
                run is that of a batch system, and was interrupted, or jobs were resized.
        """
        run = Run.load(folder)
        where = str(folder)
        if not run.info.is_replay:
            what = f"the source of the run is {run.info.source}, not a replay"
            raise InputError(what, where=where, hint="an error budget requires the journal of a replay")
        if run.info.batch:
            return cls(run, [], [], observe_batch(run, where))
        facts, entries = journal.read(folder / JOURNAL)
        interrupted = run.info.state == "interrupted"
        if interrupted and "end" not in facts:
            what = "the replayer was killed: the journal may lack its last decisions"
            raise InputError(what, where=where, hint="repeat the replay")
        found = logged_decisions(entries)
        until = float(facts["end"]["time"]) if interrupted else math.inf
        reason = "; ".join(run.info.interruptions) if interrupted else None
        observed = observe(run, found, until=until, interrupted=reason)
        return cls(run, entries, found, replace(observed, requests=_requests(run, entries)))


def _requests(run: Run, entries: list[Entry]) -> dict[int, list[tuple[float, int]]]:
    """Return the times, trace s, and nodes of the requests of each evolving job."""
    number = {name: job for job, name in enumerate(run.jobs["job_id"])}
    requests: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for entry in entries:
        if entry.kind == "request":
            requests[number[entry.job or ""]].append((entry.time, int(entry.data["nodes"])))
    return requests


def observe(
    run: Run, decisions: list[LoggedDecision], *, until: float = math.inf, interrupted: str | None = None
) -> ObservedTimes:
    """Return the times of a real run.

    Args:
        decisions: the calls of the policy and the decisions of its journal.
        until: end of an interrupted run, trace s.
        interrupted: reason of the interruption; None: the run was not interrupted.
    """
    jobs, table = run.jobs, run.resizes
    number = {name: job for job, name in enumerate(jobs["job_id"])}
    submit = jobs["submit"].to_numpy()
    resizes: dict[int, list[ObservedResize]] = defaultdict(list)
    columns = (table["job_id"], table["nodes_to"] - table["nodes_from"])
    times = (table[name] for name in ("asked", "decided", "applied", "ended"))
    for name, added, *instants in zip(*(column.tolist() for column in (*columns, *times)), strict=True):
        resizes[number[name]].append(ObservedResize(added, *instants))
    cancelled: dict[int, float] = {}
    for decision in decisions:
        if decision.kind == "cancel":
            cancelled.setdefault(number[decision.job], decision.time)
    return ObservedTimes(
        submit=submit[: int(np.isfinite(submit).sum())].tolist(),
        start=jobs["start"].tolist(),
        launched=jobs["launched"].tolist(),
        end=jobs["end"].tolist(),
        state=[JobState(state) for state in jobs["state"]],
        reason=jobs["reason"].tolist(),
        cancelled=cancelled,
        resizes=dict(resizes),
        calls=[decision.time for decision in decisions if decision.kind == "call"],
        until=until,
        interrupted=interrupted,
    )


def observe_batch(run: Run, where: str) -> ObservedTimes:
    """Return the times of a run of a batch system. The work of a rigid job is the time in which it ran.

    Raises:
        InputError: the run was interrupted, or jobs were resized.
    """
    if run.info.state == "interrupted" or len(run.reconfigurations):
        what = "an error budget requires a complete run of the batch system without resizes"
        raise InputError(what, where=where, hint="repeat the replay")
    work = (run.jobs["end"] - run.jobs["launched"]).tolist()
    return replace(observe(run, []), work=work)
