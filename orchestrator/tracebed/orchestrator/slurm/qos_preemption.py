"""Which QOS of Slurm preempts which, from the output of `sacctmgr -P show qos`.

Source: sacctmgr(1) of Slurm 22.05, and the table in the recording `preempt-qos`.
"""

from __future__ import annotations

from tracebed.orchestrator.slurm.lines import whole
from tracebed.orchestrator.slurm.machine import PREEMPT_MODES, QosPreempt, duration_s


def preempting(text: str, where: str) -> tuple[QosPreempt, ...]:
    """Return what a table of QOS, with its header, says about preemption.

    Raises:
        InputError: a time is invalid.
    """
    header, *rows = [line.split("|") for line in text.splitlines() if line.strip()] or [[]]
    found = []
    for row in rows:
        values = dict(zip(header, row, strict=False))
        mode, exempt = values.get("PreemptMode", "").lower(), values.get("PreemptExemptTime", "")
        found.append(
            QosPreempt(
                name=values.get("Name", ""),
                priority=whole(values.get("Priority", ""), 0),
                preempts=tuple(filter(None, values.get("Preempt", "").split(","))),
                mode=next((each for each in mode.split(",") if each in PREEMPT_MODES), ""),
                grace_s=int(duration_s(values.get("GraceTime") or "0", where)),
                exempt_s=duration_s(exempt, where) if exempt else None,
            )
        )
    return tuple(found)
