"""The job states and pending reasons of Slurm, and their meaning for a replay.

The names are those of `squeue` and `sacct` from Slurm 17.11 to 25.05. A state that is not listed is UNKNOWN.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tracebed.ground.states import JobState
from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay.batch.base import Phase


class Meaning(NamedTuple):
    """The meaning of a state of Slurm: the phase, and the final state of a job that has ended."""

    phase: Phase
    state: JobState = JobState.UNKNOWN


WAITING, RUNNING, ENDING = Meaning(Phase.WAITING), Meaning(Phase.RUNNING), Meaning(Phase.ENDING)

STATES: dict[str, Meaning] = {
    "PENDING": WAITING,
    "REQUEUED": WAITING,
    "REQUEUE_FED": WAITING,
    "REQUEUE_HOLD": WAITING,
    "RESV_DEL_HOLD": WAITING,
    "SPECIAL_EXIT": WAITING,  # requeued and held, with a mark of the user
    "CONFIGURING": RUNNING,  # nodes are allocated, but may still boot
    "POWER_UP_NODE": RUNNING,
    "RUNNING": RUNNING,
    "RESIZING": RUNNING,
    "SIGNALING": RUNNING,
    "STOPPED": RUNNING,  # the processes stand still, and the job holds its nodes
    "SUSPENDED": RUNNING,  # the processes stand still, and other jobs may run on the nodes
    "EXPEDITING": WAITING,
    "UPDATE_DB": RUNNING,
    "STAGE_OUT": ENDING,
    "COMPLETING": ENDING,
    "COMPLETED": Meaning(Phase.ENDED, JobState.COMPLETED),
    "CANCELLED": Meaning(Phase.ENDED, JobState.CANCELLED),
    "PREEMPTED": Meaning(Phase.ENDED, JobState.CANCELLED),
    "REVOKED": Meaning(Phase.ENDED, JobState.CANCELLED),  # started in another cluster of the federation
    "TIMEOUT": Meaning(Phase.ENDED, JobState.KILLED),
    "DEADLINE": Meaning(Phase.ENDED, JobState.KILLED),
    "FAILED": Meaning(Phase.ENDED, JobState.FAILED),
    "BOOT_FAIL": Meaning(Phase.ENDED, JobState.FAILED),
    "LAUNCH_FAILED": Meaning(Phase.ENDED, JobState.FAILED),
    "RECONFIG_FAIL": Meaning(Phase.ENDED, JobState.FAILED),
    "NODE_FAIL": Meaning(Phase.ENDED, JobState.FAILED),
    "OUT_OF_MEMORY": Meaning(Phase.ENDED, JobState.FAILED),
}
"""State of Slurm -> its meaning."""

NEVER_STARTS = frozenset(
    {
        "AccountNotAllowed",
        "BadConstraints",
        "DeadLine",
        "DependencyNeverSatisfied",
        "InvalidAccount",
        "InvalidQOS",
        "JobHeldAdmin",
        "JobHeldUser",
        "PartitionConfig",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "QOSNotAllowed",
        "Reservation deleted",
        "ReservationDeleted",
        "launch failed requeued held",
        "job requeued in held state",
    }
)
"""Reasons of pending jobs that never start unless an operator changes something.

Limits such as `QOSMaxNodePerUserLimit` are not listed: such a job starts when other jobs have ended. `PartitionConfig`
and `PartitionNodeLimit` mean that the job is larger than its partition, or that nodes of it are down.
"""


def meaning(word: str) -> Meaning:
    """Return the meaning of a state as printed by `squeue` or `sacct`: `RUNNING`, `CANCELLED by 0`, `CANCELLED+`."""
    first = word.split(maxsplit=1)[0].rstrip("+").upper() if word.strip() else ""
    return STATES.get(first, Meaning(Phase.UNKNOWN))


def is_permanent(reason: str) -> bool:
    """Return whether a job that is pending for `reason` never starts unless an operator changes something."""
    return reason.replace("_", " ") in NEVER_STARTS or reason in NEVER_STARTS


def is_limit(reason: str) -> bool:
    """Return whether a job that is pending for `reason` waits for a limit on what its user, account or QOS holds.

    Used up minutes are another limit: they decay.
    """
    return re.match(r"QOS|Assoc|Max\w+Per", reason) is not None and re.search("Minutes|Wall", reason) is None


HELD = ("ALLOC", "MIX")
"""Beginnings of the states of nodes on which a job runs."""
UNUSABLE = ("DOWN", "DRAIN", "FAIL", "MAINT", "POWER", "REBOOT", "FUTURE", "UNK", "NO_RESPOND")
"""Beginnings of the states of nodes on which no job starts."""


def is_usable(word: str) -> bool:
    """Return whether jobs start on a node in a state as printed by `sinfo`: `idle`, `mixed`, `draining`, `idle*`."""
    return not word.endswith("*") and not word.upper().startswith(UNUSABLE)


def is_held(word: str) -> bool:
    """Return whether a job runs on a node in a state as printed by `sinfo`: `allocated`, `mixed`."""
    return word.upper().startswith(HELD)


POWER = {"~": PowerState.OFF, "#": PowerState.BOOT, "%": PowerState.SHUTDOWN}
"""Last character of the state of a node -> the state of its power. A node also has `#` while it waits for its boot."""


def power_of(word: str) -> PowerState:
    """Return the state of the power of a node in a state as printed by `sinfo`: `idle~`, `allocated#`, `idle%`."""
    return POWER.get(word[-1:], PowerState.ON)
