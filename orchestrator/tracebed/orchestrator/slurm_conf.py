"""The scheduling parameters of a slurm.conf, as parameters of the policy `slurm`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tracebed.errors import InputError

WITHOUT_EFFECT = frozenset(
    (
        *("defer", "bf_continue", "bf_max_time", "bf_yield_interval", "bf_yield_sleep", "max_rpc_cnt"),
        *("max_sched_time", "sched_min_interval", "build_queue_timeout", "bf_busy_nodes", "bf_window_linear"),
        *("bf_running_job_reserve", "bf_one_resv_per_job", "bf_max_job_array_resv"),
    )
)
"""Parameters that change nothing for batch jobs of whole nodes in one partition, in passes that take no time."""
MODELED = {
    "schedulertype": ("sched/backfill", "sched/builtin"),
    "selecttype": ("select/linear",),
    "prioritytype": ("priority/basic",),
    "topologyplugin": ("topology/none",),
}
"""Key of slurm.conf -> its values that the policy models."""


@dataclass(frozen=True)
class SlurmConf:
    """What a slurm.conf says about scheduling.

    Attributes:
        parameters: parameters of the policy `slurm`: name -> value as text.
        differences: settings that the policy does not model, one sentence each.
    """

    parameters: dict[str, str]
    differences: tuple[str, ...]


def read(path: Path, known: Collection[str]) -> SlurmConf:
    """Read a slurm.conf; the keys are not case-sensitive, and the last value of a key is valid.

    Args:
        path: the file.
        known: names of the parameters of the policy.

    Raises:
        InputError: the file cannot be read.
    """
    keys: dict[str, str] = {}
    for line in _lines(path):
        key, equals, value = line.partition("=")
        if equals:
            keys[key.strip().lower()] = value.strip()
    parameters, differences = {}, []
    for text in filter(None, keys.get("schedulerparameters", "").split(",")):
        name, _, value = (part.strip() for part in text.partition("="))
        if name in known:
            parameters[name] = value
        elif name not in WITHOUT_EFFECT:
            differences.append(f"SchedulerParameters {name} is not modeled")
    if keys.get("schedulertype") == "sched/builtin":
        parameters["bf_interval"] = "-1"
    for key, values in MODELED.items():
        if key in keys and keys[key] not in values:
            differences.append(f"{key}={keys[key]} is not modeled; {values[0]} is assumed")
    return SlurmConf(parameters, tuple(differences))


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of the file without comments, continued lines as one."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    for line in text.replace("\\\n", "").splitlines():
        if line := line.partition("#")[0].strip():
            yield line
