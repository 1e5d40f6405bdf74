"""Parsers of the output of Slurm's commands: `squeue`, `sacct`, `sinfo`, `scontrol show config`, and lists of hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tracebed.ground.errors import TestbedError
from tracebed.ground.host_lists import host_names
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.batch.base import JobObservation, Phase
from tracebed.slurm.job_states import is_permanent, meaning

QUEUE_FORMAT = "%i|%j|%T|%S|%e|%N|%r"
"""Format of `squeue`. The reason is last, because it may contain any character."""
ACCOUNTING_FIELDS = "JobID,JobName,State,Start,End,NodeList,Reason"
"""Fields of `sacct`, in the order of `QUEUE_FORMAT`."""
NODE_FORMAT = "%N|%c|%X|%T"


def observations(text: str, prefix: str) -> Iterator[JobObservation]:
    """Yield the jobs in the output of `squeue` (`QUEUE_FORMAT`) or `sacct -n -P` (`ACCOUNTING_FIELDS`).

    Jobs whose names do not begin with `prefix` are not parsed: they may have any name and any state.

    Times must be in seconds since 1970 (`SLURM_TIME_FORMAT=%s`). Lines with fewer fields are ignored: they belong
    to a name with a line break, which no job of a replay has.
    """
    for line in text.splitlines():
        fields = line.split("|", 6)
        if len(fields) < 7 or not fields[1].startswith(prefix):
            continue
        job, name, word, start, end, nodes, reason = fields
        phase, state = meaning(word)
        names = tuple(hosts(nodes)) if phase not in (Phase.WAITING, Phase.UNKNOWN) else ()
        yield JobObservation(
            id=job,
            name=name,
            phase=phase,
            word=word,
            state=state,
            reason="" if reason in ("None", "(null)") else reason,
            start=_time(start) if names else None,  # a pending job has a forecast, a cancelled one its end
            end=_time(end) if phase in (Phase.ENDING, Phase.ENDED) else None,  # a running job has its limit there
            nodes=names,
            hopeless=phase is Phase.WAITING and is_permanent(reason),
        )


def _time(text: str) -> float | None:
    """Return a time in s since 1970, or None for `N/A`, `Unknown` and `None`."""
    return float(text) if re.fullmatch(r"[0-9]{1,12}", text) else None


def hosts(text: str) -> list[str]:
    """Return the hosts of a list such as `n[1-3,07],login`, in its order."""
    if text in ("", "None assigned", "(null)"):
        return []
    try:
        return host_names(text)
    except ValueError as error:
        raise TestbedError(str(error)) from error


def nodes(text: str) -> tuple[list[NodeFacts], dict[str, str]]:
    """Return the nodes in the output of `sinfo -N -h -o NODE_FORMAT`, each once, and node -> state."""
    found: dict[str, NodeFacts] = {}
    states = {}
    for line in text.splitlines():
        fields = line.split("|", 3)
        if len(fields) < 4 or not (fields[1].isdigit() and fields[2].isdigit()):
            raise TestbedError(f"sinfo printed {line[:80]!r}, which is not a node")
        name, cores, sockets, state = fields
        found[name] = NodeFacts(name, max(1, int(cores)), max(1, int(sockets)))
        states[name] = state
    return list(found.values()), states


def configuration(text: str) -> dict[str, str]:
    """Return the parameters in the output of `scontrol show config`."""
    pairs = re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.MULTILINE)
    return {name: value for name, value in pairs if value not in ("(null)", "")}
