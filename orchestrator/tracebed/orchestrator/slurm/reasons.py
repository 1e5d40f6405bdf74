"""Why jobs wait: the reasons that squeue prints, and what they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from tracebed.orchestrator.slurm.state import LiveJob


def waits_for(jobs: Sequence[LiveJob]) -> list[str]:
    """Return why each of the waiting `jobs` waits, as squeue says it, and for what.

    With the reason `Priority`, this is the number of jobs before it in the queues of its partitions.
    """
    return [" ".join(filter(None, (job.reason or "None", _named(job, jobs)))) for job in jobs]


def _named(job: LiveJob, jobs: Sequence[LiveJob]) -> str:
    """Return what the reason of a job means; empty: the reason says it."""
    if job.reason == "Priority":
        parts = {job.partition, *job.others}
        before = sum(
            (other.priority, -other.number) > (job.priority, -job.number)
            for other in jobs
            if other.reason in ("Priority", "Resources") and parts & {other.partition, *other.others}
        )
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
