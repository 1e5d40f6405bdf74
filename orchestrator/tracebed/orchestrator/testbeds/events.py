"""The check of the messages of agents: an agent modified by the user of its node must not end the controller."""

from __future__ import annotations

import math
import re
from typing import Any

from tracebed.benchmarks.lines import decode
from tracebed.ground.cpus import parse_cpus
from tracebed.ground.errors import InputError

LINE_LIMIT = 64 * 2**20
"""Longest accepted line of an agent, bytes. The longest lines are the rates of all cores of a node."""
QUOTED = 200
"""Number of bytes of an invalid line that a message quotes."""

Types = tuple[type, ...]

NUMBER: Types = (int, float)
NOTHING = type(None)
JOB: dict[str, Types] = {"job": (str,), "rank": (str,)}
_OF_TYPE: dict[str, dict[str, Types]] = {
    "hello": {
        "version": (str,),
        "pid": (int,),
        "sockets": (str,),
        "attach": (str, NOTHING),
        "adopted": (list,),
        "host": (dict,),
        "units_per_core_second": (*NUMBER, NOTHING),
    },
    "facts": {"facts": (dict,)},
    "listening": {**JOB, "address": (str, list)},
    "started": JOB,
    "progress": JOB,
    "work": {**JOB, "samples": (list,)},
    "asks": {**JOB, "nodes": (int,)},
    "resized": {**JOB, "request": (int, NOTHING), "decided": NUMBER, "applied": NUMBER},
    "ended": {**JOB, "leader": (bool,), "state": (str,), "reason": (str, NOTHING)},
    "heartbeat": {"sample": (dict,)},
    "relay": {"to": (str,)},
    "measured": {"rates": (list,)},
    "reachable": {"address": (list,)},
    "reached": {"reason": (str, NOTHING)},
    "calibrated": {"units_per_core_second": (*NUMBER, NOTHING)},
    "stray": {**JOB, "threads": (int,), "cpus": (str,), "used": (str,)},
    "halted": {**JOB, "halted_s": (*NUMBER, NOTHING)},
    "warning": {"what": (str,)},
    "error": {"what": (str,)},
}
FIELDS = {kind: {**fields, "time": NUMBER} for kind, fields in _OF_TYPE.items()}
"""Type of event -> the fields that the testbed and the replay read, with the types of their values."""
STAGES = ("decision_s", "spawn_s", "redistribution_s", "termination_s", "moved_mib")
"""Figures of the stages of a resize in nodes, in wall seconds and MiB."""
CHECKSUM = re.compile("[0-9a-f]{16}")
"""The checksum of a result."""
FIGURES = ("exit_code", "units_done", "cpu_s", "planned_s", "late_s", "overruns", "residual_s", "termination_s", "done")
OPTIONAL: dict[str, Types] = {
    "n": (int,),
    "job": (str,),
    "rank": (str,),
    "hint": (str, NOTHING),
    "ping": (dict,),
    "cpus": (str,),
    "asked": (*NUMBER, NOTHING),
    "seen": (*NUMBER, NOTHING),
    "begun": (*NUMBER, NOTHING),
    "paused_s": NUMBER,
    "stages": (dict,),
    "checksum": (str, NOTHING),
    **dict.fromkeys(FIGURES, (*NUMBER, NOTHING)),
}
"""Fields that events of any type may have."""
KNOWN: Types = (*NUMBER, NOTHING)
FACTS: dict[str, dict[str, Types]] = {
    "host": {"cpu": (str,), "kernel": (str,)},
    "topology": {"sockets": (int,), "cpus": (int,)},
    "memory": {"total_mib": KNOWN, "free_mib": KNOWN},
    "disk": {"free_mib": KNOWN, "shared_free_mib": KNOWN},
    "cgroup": {"cpus": KNOWN, "memory_mib": KNOWN, "processes": KNOWN},
    "pressure": {"cpu": KNOWN, "io": KNOWN, "memory": KNOWN},
}
"""Part of the facts of a node -> the fields that are read, with the types of their values."""
HOST: dict[str, Types] = {
    **dict.fromkeys(("name", "machine", "kernel", "cpu", "python", "kernel_of_jobs"), (str,)),
    **dict.fromkeys(("cores", "cpus", "memory_mib"), KNOWN),
    "boot_id": (str, NOTHING),
}
"""Fields that the host of a `hello` may have. The host is kept in the run."""
SAMPLE: dict[str, Types] = {"cpu_s": NUMBER}
"""Figures that each sample has."""
PING: dict[str, Types] = {"sent": NUMBER, "received": NUMBER}
LATE: dict[str, Types] = {"late_s": NUMBER}


def read_event(line: bytes) -> dict[str, Any]:
    """Return the event in a line of an agent. An invalid line is an `error` of the agent."""
    try:
        event = decode(line)
        _check(event)
    except ValueError:
        return {"type": "error", "what": f"its agent wrote an invalid message: {line[:QUOTED]!r}"}
    return event


def _check(event: dict[str, Any]) -> None:
    """Raise ValueError if an event has an unknown type, lacks a field, or has a field of another type."""
    kind = event.get("type")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise ValueError
    _require(event, FIELDS[kind])
    for name, value in event.items():
        if name in OPTIONAL and type(value) not in OPTIONAL[name]:
            raise ValueError
    if "ping" in event:
        _require(event["ping"], PING)
    if "stages" in event:
        _check_stages(event["stages"])
    if event.get("checksum") is not None and not CHECKSUM.fullmatch(event["checksum"]):
        raise ValueError
    if kind == "resized" and "cpus" in event:
        _check_cpus(event["cpus"])
    for sample in event["samples"] if kind == "work" else ():
        if not isinstance(sample, list) or not all(type(value) in NUMBER for value in sample) or len(sample) != 5:
            raise ValueError
    if kind == "heartbeat":
        if "late_s" in event:
            _require(event, LATE)
        _check_sample(event["sample"])
    if kind == "facts":
        _check_facts(event["facts"])
    if kind == "hello":
        if not all(isinstance(job, str) for job in event["adopted"]) or not event["host"].keys() <= HOST.keys():
            raise ValueError
        _require(event["host"], {name: HOST[name] for name in event["host"]})


def _check_stages(stages: dict[str, Any]) -> None:
    """Raise ValueError if a stage of a resize is unknown, or has an invalid figure."""
    _require_figures(stages)
    if not stages.keys() <= {*STAGES} or not all(0 <= (figure or 0) < math.inf for figure in stages.values()):
        raise ValueError


def _check_cpus(text: str) -> None:
    """Raise ValueError if `text` is not a CPU list."""
    try:
        parse_cpus(text)
    except InputError as error:
        raise ValueError from error


def _check_sample(sample: dict[str, Any]) -> None:
    """Raise ValueError if a figure of a sample is missing or invalid."""
    figures = {name: value for name, value in sample.items() if name != "host"}
    _require_figures(figures)
    _require(figures, SAMPLE)
    if {"busy_s", "steal_s"} & figures.keys():
        _require(figures, {"busy_s": NUMBER, "steal_s": NUMBER})
    if "host" in sample:
        _require_figures(sample["host"])
        _require(sample["host"], {"cpus": (int,)})
        if sample["host"]["cpus"] < 1:
            raise ValueError


def _check_facts(facts: dict[str, Any]) -> None:
    """Raise ValueError if a fact that is read is missing or invalid."""
    lists = {"cpus_by_socket": (list,), "governor": (list,), "load": (list,)}
    _require(facts, {"cpus": (str,), "python": (str,), "clock_s": NUMBER, **dict.fromkeys(FACTS, (dict,)), **lists})
    for name, expected in FACTS.items():
        _require(facts[name], expected)
    texts = [*facts["cpus_by_socket"], *facts["governor"]]
    if facts["topology"]["cpus"] < 1 or not facts["load"] or not all(isinstance(text, str) for text in texts):
        raise ValueError
    if not all(type(load) in NUMBER for load in facts["load"]):
        raise ValueError
    try:
        valid = all(parse_cpus(text) for text in (facts["cpus"], *facts["cpus_by_socket"]))
    except InputError as error:
        raise ValueError from error
    if not valid or not facts["cpus_by_socket"]:
        raise ValueError


def _require(fields: dict[str, Any], expected: dict[str, Types]) -> None:
    for name, types in expected.items():
        if name not in fields or type(fields[name]) not in types:
            raise ValueError


def _require_figures(fields: Any) -> None:
    """Raise ValueError unless `fields` are figures by name."""
    if not isinstance(fields, dict):
        raise ValueError
    _require(fields, dict.fromkeys(fields, (*NUMBER, NOTHING)))
