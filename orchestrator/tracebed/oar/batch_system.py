"""OAR as a batch system, by its commands: `oarsub`, `oarstat`, `oardel` and `oarnodes`."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar

from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay.batch.base import BatchSettings, JobObservation, JobRequest, Phase, SystemFacts
from tracebed.orchestrator.replay.batch.commands import option, run

PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "OARCONFFILE", "OARDIR")
TRANSIENT = ("connect to the database", "db connection", "cannot connect", "timeout", "try again", "executor is not")
"""Parts of messages of OAR after which a retry may succeed."""
OWN_OPTIONS = frozenset(
    {"array", "checkpoint", "name", "resource", "stdout", "stderr", "interactive", "hold", "queue", "scanscript"}
)
"""Options of `oarsub` that tracebed sets, or that are not possible in a replay."""
RESOLUTION_S = 1.0
"""Resolution of OAR's clock, s."""
AHEAD_S = 2.0
"""Time by which a start that OAR reports may be too late, s. OAR dates a start no earlier than its last pass. It dates
a pass in the next second, and after a pass in the same second in the one after that (oar_meta_sched of OAR 2.5.9)."""
PHASES = {
    **dict.fromkeys(("Waiting", "Hold", "toAckReservation"), Phase.WAITING),
    **dict.fromkeys(("toLaunch", "Launching", "Running", "Suspended", "Resuming"), Phase.RUNNING),
    **dict.fromkeys(("toError", "Finishing"), Phase.ENDING),
    **dict.fromkeys(("Terminated", "Error"), Phase.ENDED),
}
"""State of OAR -> phase."""


class OarSystem:
    """OAR, by its commands."""

    name: ClassVar[str] = "oar"

    def __init__(self, settings: BatchSettings) -> None:
        """Prepare the options of `oarsub`. Raises InputError if an option is invalid."""
        self._queue = settings.partition
        self._options = [option(text, "oarsub", OWN_OPTIONS, "project=physics") for text in settings.options]
        self._environment = {key: value for key, value in os.environ.items() if key in PASSED_ON} | {"LC_ALL": "C"}
        if settings.configuration is not None:
            self._environment["OARCONFFILE"] = str(settings.configuration.absolute())

    def facts(self) -> SystemFacts:
        """Return the nodes. Their cores are their resources."""
        resources = _parsed(self._run("oarnodes", "-J"), "oarnodes")
        usable = [resource for resource in resources.values() if resource.get("type", "default") == "default"]
        cores = Counter(str(resource["network_address"]) for resource in usable)
        if not cores:
            raise InputError("OAR has no nodes", hint="`oarnodes` lists them")
        first = {str(resource["network_address"]): int(resource["resource_id"]) for resource in reversed(usable)}
        nodes = tuple(NodeFacts(name, cores[name]) for name in sorted(cores, key=lambda name: first[name]))
        version = re.search(r"\d+(\.\d+)+", self._run("oarstat", "--version"))
        return SystemFacts(
            name=self.name,
            version=version[0] if version else "unknown",
            nodes=nodes,
            parameters={},
            resolution_s=RESOLUTION_S + AHEAD_S,
            limit_step_s=RESOLUTION_S,
            details={"partition": self._queue or "default", "options": self._options, "accounting": True},
        )

    def submit(self, request: JobRequest) -> str:
        """Submit a job by `oarsub`. Jobs get whole nodes."""
        resources = f"nodes={request.nodes}"
        if request.limit_s is not None:
            seconds = max(1, math.ceil(request.limit_s))
            resources += f",walltime={seconds // 3600}:{seconds // 60 % 60}:{seconds % 60}"
        command = ["oarsub", "-n", request.name, "-l", resources]
        command += ["-O", str(request.output), "-E", str(request.output), "-d", str(request.script.parent)]
        command += ["-q", self._queue] if self._queue else []
        job = shlex.join([str(request.script), *request.arguments])  # OAR gives this text to a shell on the node
        printed = self._run(*command, *self._options, job, refusing=True)
        printed_id = re.search(r"^OAR_JOB_ID=([0-9]+)$", printed, re.MULTILINE)
        if printed_id is None:
            raise TestbedError(f"oarsub printed {printed[-80:]!r}, not a job id", transient=True)
        return printed_id[1]

    def poll(self, prefix: str, known: Collection[str]) -> dict[str, JobObservation]:
        """Return the jobs of the replay from one `oarstat`, which also lists past jobs."""
        if not re.fullmatch(r"[a-z0-9-]+", prefix):
            raise InputError(f"{prefix!r} is not the beginning of a name")
        printed = self._run("oarstat", "-J", "-f", "--sql", f"job_name like '{prefix}%'")
        return {job.id: job for job in observations(printed)}

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs by `oardel`."""
        if ids:
            self._run("oardel", *ids)

    def _run(self, *command: str, refusing: bool = False) -> str:
        return run(*command, environment=self._environment, transient=TRANSIENT, refusing=refusing)


def observations(text: str) -> Iterator[JobObservation]:
    """Yield the jobs in the output of `oarstat -J -f`. Raises TestbedError if it cannot be parsed."""
    for number, job in _parsed(text, "oarstat").items():
        try:
            word = str(job["state"])
            phase = PHASES.get(word, Phase.UNKNOWN)
            start, stop = int(job.get("startTime") or 0), int(job.get("stopTime") or 0)
            events = [str(event.get("type", "")) for event in job.get("events") or []]
            nodes = tuple(map(str, job.get("assigned_network_address") or ()))
            yield JobObservation(
                id=str(number),
                name=str(job.get("name") or ""),
                phase=phase,
                word=word,
                state=_final(word, events, job.get("exit_code")) if phase is Phase.ENDED else JobState.UNKNOWN,
                reason=" ".join(dict.fromkeys(filter(None, events))) if phase is Phase.ENDED else "",
                start=start - AHEAD_S if start and nodes else None,
                end=float(stop) if stop and phase is Phase.ENDED else None,
                nodes=nodes,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TestbedError(f"oarstat printed a job that cannot be read: {error!r}", transient=True) from error


def _final(word: str, events: Sequence[str], exit_code: Any) -> JobState:
    """Return the final state of a job, from its state, its events and its exit code."""
    if "WALLTIME" in events:
        return JobState.KILLED
    if "FRAG_JOB_REQUEST" in events:
        return JobState.CANCELLED
    return JobState.COMPLETED if word == "Terminated" and not exit_code else JobState.FAILED


def _parsed(text: str, command: str) -> dict[str, Any]:
    """Return the JSON object that a command of OAR printed; empty if it printed nothing."""
    try:
        document = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise TestbedError(f"{command} printed {text[:80]!r}, which is not JSON", transient=True) from error
    if not isinstance(document, dict):
        raise TestbedError(f"{command} printed {text[:80]!r}, not a JSON object", transient=True)
    return document
