"""The fields of `scontrol show job`: those that are modeled, those without effect on a start, and all others.

Source: scontrol(1), and the fields that Slurm 22.05, 24.11 and 26.05 print (`slurm_recordings/fields/job.json`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from tracebed.converters.formats.tools.gres import gres_items
from tracebed.slurm.machine import WHOLE
from tracebed.slurm.scontrol import MISSING, Record


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODELED = _names(
    """
    Account AccrueTime AllocTRES ArrayJobId ArrayTaskId ArrayTaskThrottle CPU_IDs CPUs/Task Deadline Dependency
    EligibleTime EndTime Exclusive Features Gres HetJobId JobId JobName JobState Licenses MinMemoryCPU
    MinMemoryNode NodeList Nodes NumCPUs NumNodes OverSubscribe Partition Priority QOS Reason ReqTRES
    Reservation StartTime SubmitTime SuspendTime TRES TimeLimit TimeMin TresPerJob TresPerNode UserId
    """
)
WITHOUT_EFFECT = _names(
    """
    AdminComment AllocNode:Sid BatchFlag BatchHost Command Comment CompletingTime Container ContainerID
    ContainerType CronJob CrontabSpec DerivedExitCode ExitCode ExpeditedRequeue Extra FailedNode GRES
    GresAllowTaskSharing GresOneTaskPerSharing GroupId HetJobIdSet HetJobOffset JOB_GRES KillOInInvalidDependent
    KillOnInvalidDependent LastSchedEval LicensesAlloc MailType MailUser Mem MemUpdate Nice NumTasks OOMKillStep
    Power PreemptEligibleTime Requeue ResizeTime Restarts ResvPorts RunTime SELinuxContext SLUID SchedNodeList
    Scheduler SecsPreSuspend StdErr StdIn StdOut StepMgrEnabled SubmitLine SystemComment TresBind TresFreq WCKey
    WorkDir
    """
)
"""`Nice` is a part of the priority, and the tasks are counted by `NumCPUs`."""
NOTHING = "0|No"
IGNORED: Mapping[str, str] = {
    **dict.fromkeys(("BatchFeatures", "BurstBuffer", "BurstBufferState", "ClusterFeatures", "ConsolidateSegments"), ""),
    **dict.fromkeys(("CpusPerTres", "FedActiveSiblings", "FedOrigin", "FedViableSiblings", "MemPerTres"), ""),
    **dict.fromkeys(("ExcNodeList", "MCS_label", "Network", "Prefer", "ReqNodeList"), ""),
    **dict.fromkeys(("NtasksPerTRES", "PreemptTime", "SegmentSize", "Switches", "ThreadSpec", "TresPerSocket"), ""),
    **dict.fromkeys(
        ("Contiguous", "GresEnforceBind", "MinTmpDiskNode", "Reboot", "SpreadJob", "SpreadSegments"), NOTHING
    ),
    "CoreSpec": r"\*|0",
    "DelayBoot": r"00:00:00",
    "MinCPUsNode": r"1",  # or what the tasks of a node need, see `ignored_fields`
    "NtasksPerN:B:S:C": r"(\d+|\*):(0|\*):(0|\*):(0|\*)",  # tasks for each node are modeled
    "ReqB:S:C:T": r"(0|\*):(0|\*):(0|\*):(0|\*)",
    "Socks/Node": r"\*",
    "TresPerTask": r"cpu[:=]\d+",
}
"""Field that is not modeled -> its values without effect, beside those of `scontrol.MISSING`."""
UNITS = {"K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}
OF_RUNNING = frozenset(("PreemptTime",))
"""Fields of `IGNORED` that matter for a running job. The others matter for the start of a waiting one."""
FREE = _names(
    """
    AdminComment Command Comment Container CrontabSpec Extra JobName MailUser Network StdErr StdIn StdOut
    SubmitLine SystemComment WCKey WorkDir
    """
)
"""Fields with any text, in which other words may look like fields."""


def ignored_fields(fields: Mapping[str, str], *, waits: bool) -> Iterator[str]:
    """Yield a sentence for each field of a job that is unknown, or has an effect that is not modeled."""
    last = ""
    for name, value in fields.items():
        if name in IGNORED:
            if (waits or name in OF_RUNNING) and not _plain(name, value, fields):
                yield f"{name} is not modeled"
        elif name not in MODELED | WITHOUT_EFFECT:
            if name[0].isupper() and last not in FREE:
                yield f"the field {name} is unknown, and ignored"
            continue
        last = name


def _plain(name: str, value: str, fields: Mapping[str, str]) -> bool:
    """Return whether a field of `IGNORED` has no effect."""
    if value in MISSING or re.fullmatch(IGNORED[name], value):
        return True
    if name != "MinCPUsNode":
        return False
    tasks, cpus = (re.match(r"\d+", fields.get(each, "")) for each in ("NtasksPerN:B:S:C", "CPUs/Task"))
    needed = max(1, int(tasks[0]) if tasks else 1) * (int(cpus[0]) if cpus else 1)
    return value.isdecimal() and int(value) <= needed


def gres(record: Record, nodes: int) -> str:
    """Return the generic resources on each node. Those of a whole job are distributed equally over its nodes."""
    if per_node := record.of("TresPerNode", "Gres"):
        return per_node
    items = gres_items(record.of("TresPerJob"))
    return ",".join(":".join(filter(None, (name, kind, str(-(-count // (nodes or 1)))))) for name, kind, count in items)


def whole_nodes(record: Record) -> bool:
    """Return whether a job has whole nodes. From Slurm 26.05 on, OverSubscribe=NO no longer says so."""
    if "Exclusive" in record.fields:
        return record.fields["Exclusive"] in WHOLE
    return record.of("OverSubscribe") in ("NO", "EXCLUSIVE")


def memory(record: Record) -> tuple[float, bool]:
    """Return the memory of a job, MiB, on each node or for each core, and whether it is for each core."""
    for name in ("MinMemoryCPU", "MinMemoryNode"):
        if found := re.match(r"(\d+(?:\.\d+)?)([KMGT]?)", record.of(name)):
            return math.ceil(float(found[1]) * UNITS[found[2] or "M"]), name == "MinMemoryCPU"
    return 0.0, False
