"""The scheduling parameters of a slurm.conf, as parameters of the policy `slurm`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tracebed.errors import InputError
from tracebed.orchestrator.run import RunInfo
from tracebed.orchestrator.scheduling.policies.slurm import Slurm

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
CHANGED_DEFAULTS = ("SelectType", "PriorityType")
"""Keys of `MODELED` whose defaults differ between versions of Slurm."""


@dataclass(frozen=True)
class SlurmConf:
    """The scheduling settings of a slurm.conf.

    Attributes:
        parameters: parameters of the policy `slurm`: name -> value as text.
        differences: settings that the policy does not model, one sentence each.
    """

    parameters: dict[str, str]
    differences: tuple[str, ...]


def read(path: Path) -> SlurmConf:
    """Read a slurm.conf. The last value of a key counts.

    Raises:
        InputError: the file cannot be read.
    """
    lines = list(_lines(path))
    pairs = (line.partition("=") for line in lines)
    conf = of_config({key.strip(): value.strip() for key, equals, value in pairs if equals})
    given = {line.partition("=")[0].strip().lower() for line in lines}
    unset = (
        f"{key} is not set, and its default depends on the version of Slurm; {MODELED[key.lower()][0]} is assumed"
        for key in CHANGED_DEFAULTS
        if key.lower() not in given
    )
    included = filter(None, (re.fullmatch(r"include\s+(.+)", line, re.IGNORECASE) for line in lines))
    unread = (f"the included file {line[1]} is not read" for line in included)
    return replace(conf, differences=(*conf.differences, *unset, *unread))


def of_config(config: Mapping[str, str]) -> SlurmConf:
    """Return the scheduling settings of a configuration (key -> value). The keys are not case-sensitive."""
    known = {field.name for field in fields(Slurm)}
    keys = {key.lower(): value for key, value in config.items()}
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


def policy_parameters(info: RunInfo) -> dict[str, Any]:
    """Return the parameters with which a policy simulates a run; for a run of Slurm, those of its configuration."""
    if not info.batch or info.policy != "slurm":
        return dict(info.policy_parameters)
    return {**of_config(info.policy_parameters).parameters, "speed": info.speed}


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of the file without comments, continued lines as one."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    for line in text.replace("\\\n", "").splitlines():
        if line := line.partition("#")[0].strip():
            yield line
