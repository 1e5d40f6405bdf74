"""Slurm's power saving: what a slurm.conf says of it, and the file that says the power and the boots of the nodes.

Source: slurm.conf(5) of Slurm 22.05, its guide "Power Saving", and experiments on Slurm 22.05.8
(docs/explanation/power-saving-of-slurm.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import Field

from tracebed.ground.yaml_file import YamlFile
from tracebed.machine.power import NodePower
from tracebed.slurm.conf_lines import Line, hosts_of, whole
from tracebed.slurm.values import UNLIMITED, Fact

NEVER = -1
"""Idle time after which a node is never switched off."""
KEYS = frozenset(
    (
        *("suspendprogram", "suspendtime", "suspendtimeout", "suspendrate", "suspendexcnodes", "suspendexcparts"),
        *("resumeprogram", "resumetimeout", "resumerate"),
    )
)
"""Keys of slurm.conf, in lower case, that a simulation with power saving models."""
HINT = "write `power:`, and below it lines such as `n[1-8]: {busy_w: 300, idle_w: 150, boot_s: 120}`"
OFF = frozenset((*UNLIMITED, "none"))
"""Values of `SuspendTime`, in lower case, with which nodes are never switched off."""


class PowerRules(Fact):
    """When slurmctld switches nodes off and on.

    Attributes:
        suspend_s: idle time after which a node is switched off, s; -1: never (`SuspendTime`).
        suspend_timeout_s: time from then on for which no job is allocated the node, s (`SuspendTimeout`).
        resume_timeout_s: a node that boots for longer is set down, s (`ResumeTimeout`).
        suspend_rate, resume_rate: nodes that are switched off, or on, in a minute; 0: any number (`SuspendRate`,
            `ResumeRate`).
        spared: nodes that are never switched off, as a list of hosts (`SuspendExcNodes`).
        spared_partitions: partitions whose nodes are not (`SuspendExcParts`).
        kept: list of hosts -> number of its idle nodes that stay on (`SuspendExcNodes=n[1-8]:2`).
        interval_s, least_interval_s: `power_save_interval` and `power_save_min_interval` of `SlurmctldParameters`.
    """

    suspend_s: int = NEVER
    suspend_timeout_s: int = 30
    resume_timeout_s: int = 60
    suspend_rate: int = 60
    resume_rate: int = 300
    spared: str = ""
    spared_partitions: tuple[str, ...] = ()
    kept: dict[str, int] = Field(default_factory=dict)
    interval_s: int = 10
    least_interval_s: int = 0


class _PowerFile(Fact):
    """The file of the power of nodes."""

    power: dict[str, NodePower]


def recognized(text: str) -> bool:
    """Return whether a text is a file of the power of nodes."""
    lines = (line.strip() for line in text.splitlines())
    return re.match(r"power\s*:", next((line for line in lines if line and not line.startswith("#")), "")) is not None


def read_power(text: str, where: str) -> dict[str, NodePower]:
    """Return the power of each node of a file of YAML: `power:`, and the power of lists of hosts.

    Raises:
        InputError: the file is invalid, or a node is in two lists.
    """
    file = YamlFile.parse(text, where, hint=HINT)
    found: dict[str, NodePower] = {}
    for hosts, power in file.checked(_PowerFile).power.items():
        for name in hosts_of(hosts, where):
            if name in found:
                raise file.error(f"node {name} has its power twice", "power", hosts, hint="remove it from one list")
            found[name] = power
    return found


def seconds(text: str) -> int | None:
    """Return `SuspendTime`, or one of the timeouts, s; `NEVER`: without end; None: it is not given."""
    return None if not text else NEVER if text.lower() in OFF else whole(text, NEVER)


def rules_of(values: Mapping[str, str], partitions: Sequence[Line]) -> PowerRules | None:
    """Return the power saving of a slurm.conf, keys in lower case; None: slurmctld switches no node off.

    Both programs must be given, and `SuspendTime`, of the whole cluster or of a partition.
    """
    times = [values.get("suspendtime", ""), *(line.of("SuspendTime") for line in partitions)]
    programs = values.get("suspendprogram") and values.get("resumeprogram")
    if not programs or not any(time is not None and time >= 0 for time in map(seconds, times)):
        return None
    own = dict(item.strip().lower().partition("=")[::2] for item in values.get("slurmctldparameters", "").split(","))
    plain, kept = _excepted(values.get("suspendexcnodes", ""))
    return PowerRules(
        suspend_s=NEVER if (time := seconds(times[0])) is None else time,
        suspend_timeout_s=whole(values.get("suspendtimeout", ""), 30),
        resume_timeout_s=whole(values.get("resumetimeout", ""), 60),
        suspend_rate=whole(values.get("suspendrate", ""), 60),
        resume_rate=whole(values.get("resumerate", ""), 300),
        spared=plain,
        spared_partitions=tuple(filter(None, values.get("suspendexcparts", "").split(","))),
        kept=kept,
        interval_s=whole(own.get("power_save_interval", ""), 10),
        least_interval_s=whole(own.get("power_save_min_interval", ""), 0),
    )


def _excepted(text: str) -> tuple[str, dict[str, int]]:
    """Return the spared nodes of `SuspendExcNodes`, and how many idle ones of its lists stay on.

    A number after a colon belongs to all the text before it, as far as the last number: in `n1,n[2-4]:2`, two of the
    four nodes stay on.
    """
    if ":" not in text:
        return text, {}
    kept: dict[str, int] = {}
    hosts, _, rest = text.partition(":")
    while hosts:
        count, _, rest = rest.partition(",")
        kept[hosts] = whole(count, 0)  # 0: all of them
        hosts, _, rest = rest.partition(":")
    return "", kept
