"""A job that is not submitted yet, at the end of the queue of a live cluster."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from tracebed.ground.bounds import MAX_SIZE
from tracebed.ground.errors import InputError
from tracebed.ground.registry import one_of
from tracebed.slurm.job_fields import UNITS
from tracebed.slurm.machine import Weights
from tracebed.slurm.scontrol import YEAR_S
from tracebed.slurm.simulation.forecast import UNRANKED
from tracebed.slurm.state import ClusterState, LiveJob
from tracebed.slurm.values import duration_s

ID = "new"
"""The id of the job in a forecast."""
KEYS = ("nodes", "cores", "partition", "time", "gres", "memory", "features", "user", "account", "qos")
EXAMPLE = "write nodes=4,partition=gpu,time=12:00:00"


def with_job(state: ClusterState, text: str) -> ClusterState:
    """Return the state with the job of a text `KEY=VALUE,...` as its last waiting job.

    With `user`, its priority follows from the rules, as that of the later jobs of a forecast. Without a user, or with
    priority/basic, it is the last in the order of the queue.

    Raises:
        InputError: the text is invalid, or Slurm would refuse the job in its partition.
    """
    given = _given(text)
    cluster = state.machine
    names = [each.name for each in cluster.partitions]
    usual = next((each.name for each in cluster.partitions if each.default), names[0])
    partition = given.get("partition", usual)
    one_of("partition of --would-start", partition, names)
    number = names.index(partition)
    own = cluster.partitions[number]
    limit_s = duration_s(given["time"], "--would-start time") if "time" in given else cluster.limit_s(number)
    if own.limit_s and limit_s > own.limit_s:
        what = f"time={given['time']} exceeds MaxTime of the partition {partition}, {own.limit_s / 60:g} min"
        raise InputError(f"--would-start {what}", hint="give a shorter time, or another partition")
    nodes = _count(given, "nodes", 1)
    if own.most_nodes and nodes > own.most_nodes:
        what = f"nodes={nodes} exceeds MaxNodes of the partition {partition}, {own.most_nodes}"
        raise InputError(f"--would-start {what}", hint="give fewer nodes, or another partition")
    waiting = [job for job in state.jobs if job.start is None and job.priority]
    ranked = cluster.weights != Weights()
    user = given.get("user", "")
    accounts = [share.account for share in state.shares if share.user == user]
    accounts += [job.account for job in state.jobs if job.user == user]
    last = min((job.priority for job in waiting), default=UNRANKED)
    job = LiveJob(
        id=ID,
        user=user,
        account=given.get("account", accounts[0] if user and accounts else ""),
        partition=partition,
        limit_s=limit_s or YEAR_S,
        cores=_count(given, "cores", nodes),
        per_node=0,
        fewest=nodes,
        memory_mib=_memory_mib(given["memory"]) if "memory" in given else math.nan,
        features=given.get("features", ""),
        gres=given.get("gres", ""),
        number=max((each.number for each in state.jobs), default=0) + 1,
        waits_since=state.instant,
        eligible=state.instant,
        priority=UNRANKED if user and ranked else last,
        qos=given.get("qos", ""),
        reason="not submitted",
    )
    return replace(state, jobs=(*state.jobs, job))


def _given(text: str) -> dict[str, str]:
    """Return the values of a text by key."""
    given: dict[str, str] = {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not (key and equals and value):
            raise InputError(f"--would-start {item!r} is not KEY=VALUE", hint=EXAMPLE)
        one_of("key of --would-start", key, KEYS)
        if key in given:
            raise InputError(f"--would-start {key} is given twice", hint="give it once")
        given[key] = value
    return given


def _count(given: dict[str, str], key: str, usual: int) -> int:
    text = given.get(key, str(usual))
    if not (text.isdecimal() and len(text) < 16 and 1 <= int(text) <= MAX_SIZE):
        raise InputError(f"--would-start {key}={text} is not a number from 1 to {MAX_SIZE:,}", hint=EXAMPLE)
    return int(text)


def _memory_mib(text: str) -> float:
    """Return the memory on each node, MiB, of a text of `--mem`."""
    found = re.fullmatch(r"(\d{1,12})([KMGT]?)", text.upper())
    if found is None:
        raise InputError(f"--would-start memory={text} is not a size", hint="write memory=4000M or memory=64G")
    return math.ceil(float(found[1]) * UNITS[found[2] or "M"])
