"""Why jobs wait: the reasons that squeue prints, and what they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from tracebed.slurm.state import LiveJob


def waits_for(jobs: Sequence[LiveJob]) -> list[str]:
    """Return why each of the waiting `jobs` waits, as squeue says it, and for what.

    With the reason `Priority`, this is the number of jobs before it in the queues of its partitions.
    """
    # components of heterogeneous jobs often have no reason
    before = [job for job in jobs if job.reason in ("Priority", "Resources") or (job.whole_id and job.priority)]
    queue = [(_rank(job), _partitions(job)) for job in before]
    return [" ".join(filter(None, (job.reason or "None", _named(job, queue)))) for job in jobs]


def _rank(job: LiveJob) -> tuple[float, int]:
    """Return the place of a job in a queue; the first job has the largest."""
    return job.priority, -job.number


def _partitions(job: LiveJob) -> frozenset[str]:
    return frozenset((job.partition, *job.others))


def _named(job: LiveJob, queue: Sequence[tuple[tuple[float, int], frozenset[str]]]) -> str:
    """Return what the reason of a job means; empty: the reason says it."""
    if job.reason == "Priority":
        own, parts = _rank(job), _partitions(job)
        before = sum(rank > own and not parts.isdisjoint(others) for rank, others in queue)
        return f"({before} before it)"
    if job.reason == "BeginTime":
        return f"({datetime.fromtimestamp(job.eligible, UTC):%Y-%m-%dT%H:%M:%S})"
    if job.reason.startswith("QOS"):
        return f"(QOS {job.qos})" if job.qos else ""
    if job.reason.startswith("Assoc") or job.reason.endswith("PerAccount"):
        return f"({job.account})"
    values = {"Licenses": job.licenses, "Reservation": job.reservation, "JobArrayTaskLimit": job.array}
    values["Dependency"] = re.sub(r"[(]unfulfilled[)]", "", job.dependency)
    value = values.get(job.reason, "")
    return f"({value})" if value else ""
