"""What slurm.conf needs so that jobs can be resized."""

from __future__ import annotations

from collections.abc import Mapping

from tracebed.ground.display import listed
from tracebed.slurm.machine import SlurmCluster, Weights

EXPANSION, NO_SHRINK = "permit_job_expansion", "disable_job_shrink"
"""Words of `SchedulerParameters` that permit expansions and forbid shrinks."""
DATABASE = "accounting_storage/slurmdbd"
MOST_SHOWN = 4


def unsuitable(values: Mapping[str, str], cluster: SlurmCluster | None) -> list[str]:
    """Return which settings of a slurm.conf and its database do not suit resizes, a sentence each.

    Args:
        values: the settings by their names in lower case.
        cluster: the cluster, if jobs share nodes, nodes or partitions differ, or jobs have priorities; else None.
    """
    words = {word.strip().lower() for word in values.get("schedulerparameters", "").split(",")}
    found = []
    if EXPANSION not in words:
        found.append((f"lacks SchedulerParameters={EXPANSION}, without which Slurm refuses expansions", "with"))
    if NO_SHRINK in words:
        found.append((f"has SchedulerParameters={NO_SHRINK}, with which Slurm refuses shrinks", "without"))
    if values.get("accountingstoragetype", "").lower() != DATABASE:
        what = (
            f"lacks AccountingStorageType={DATABASE}, without which Slurm may refuse to shrink a job that has expanded"
        )
        found.append((what, "with"))
    notes = [f"the slurm.conf {what}: the result is that {side} this setting" for what, side in found]
    if cluster is not None and cluster.weights != Weights() and (limited := _limited(cluster)):
        what = f"limits of running jobs ({listed(limited, MOST_SHOWN)})"
        why = "with priority/multifactor, Slurm counts each second job as a running one after its merge, too"
        notes.append(f"{what} are modeled, and may hold later jobs for ever: {why}")
    return notes


def _limited(cluster: SlurmCluster) -> list[str]:
    """Return which accounts, users and QOS have a limit of running jobs that Slurm enforces."""
    if "limits" not in cluster.enforced:
        return []
    named = [
        (f"user {each.user}" if each.user else f"account {each.account}", each.limits)
        for each in cluster.database.associations
    ]
    named += [(f"QOS {each.name}", each.limits) for each in cluster.database.qos]
    return list(
        dict.fromkeys(
            name
            for name, limits in named
            if any(most is not None for most in (limits.jobs, limits.user_jobs, limits.account_jobs))
        )
    )
