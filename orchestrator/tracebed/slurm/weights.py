"""The parameters of priority/multifactor, and weights of trackable resources.

Source: slurm.conf(5) of Slurm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field

from tracebed.ground.errors import InputError
from tracebed.slurm.conf_lines import whole
from tracebed.slurm.database import SCALES
from tracebed.slurm.values import Fact, duration_s

RESETS = ("daily", "weekly", "monthly", "quarterly", "yearly")
"""Values of `PriorityUsageResetPeriod`, in lower case, that set the usage to zero regularly."""


FLAGS_WITHOUT_EFFECT = ("calculate_running", "fair_tree")
"""`PriorityFlags` that change no decision. Priorities of running jobs matter to preemption only."""


class Weights(Fact):
    """The parameters of priority/multifactor. All weights 0: priority/basic, the order of submission.

    Attributes:
        age, fairshare, job_size, partition, qos, association: weights of the factors (`PriorityWeightAge`, ...).
        tres: weight of each trackable resource (`PriorityWeightTRES`).
        max_age_s: waiting time at which the factor of the age is 1, s.
        half_life_s: time in which recorded usage decays to one half, s; 0: no decay.
        reset: how often recorded usage is set to zero (`PriorityUsageResetPeriod`); empty: never.
        period_s: time between two computations of all priorities, s.
        favor_small: whether the factor of the size decreases with the size.
        dampening: `FairShareDampeningFactor`, of the classic fair share.
    """

    age: int = 0
    fairshare: int = 0
    job_size: int = 0
    partition: int = 0
    qos: int = 0
    association: int = 0
    tres: dict[str, float] = Field(default_factory=dict)
    max_age_s: float = 7 * 86400.0
    half_life_s: float = 7 * 86400.0
    reset: str = ""
    period_s: float = 300.0
    favor_small: bool = False
    flags: tuple[str, ...] = ()
    dampening: int = 1

    def normal(self, factor: str) -> bool:
        """Return whether a factor is divided by its largest value: no flag `NO_NORMAL_...` says otherwise."""
        return "no_normal_all" not in self.flags and f"no_normal_{factor}" not in self.flags

    @property
    def classic(self) -> int:
        """The dampening factor of the classic fair share; 0: Fair Tree."""
        return self.dampening if "no_fair_tree" in self.flags else 0


def weights_of(values: Mapping[str, str]) -> Weights:
    """Return the weights in the settings of a slurm.conf, keys in lower case."""
    given = set(re.split(r"[,\s]+", values.get("priorityflags", "").lower())) - {"", *FLAGS_WITHOUT_EFFECT}
    flags = tuple(sorted(given))
    if "depth_oblivious" in flags:
        flags = (*flags, "no_fair_tree")

    reset = values.get("priorityusageresetperiod", "").lower()

    def weight(name: str) -> int:
        return whole(values.get(f"priorityweight{name}", ""), 0)

    def period(name: str, default: str) -> float:
        return duration_s(values.get(name, default), "")

    return Weights(
        age=weight("age"),
        fairshare=weight("fairshare"),
        job_size=weight("jobsize"),
        partition=weight("partition"),
        qos=weight("qos"),
        association=weight("assoc"),
        tres=tres_weights(values.get("priorityweighttres", ""), ""),
        max_age_s=period("prioritymaxage", "7-0"),
        half_life_s=period("prioritydecayhalflife", "7-0"),
        period_s=period("prioritycalcperiod", "5"),
        favor_small=values.get("priorityfavorsmall", "no").lower() == "yes",
        reset=reset if reset in RESETS else "",
        flags=flags,
        dampening=whole(values.get("fairsharedampeningfactor", ""), 1) or 1,
    )


def tres_weights(text: str, where: str) -> dict[str, float]:
    """Return the weights of a text such as `CPU=1.0,Mem=0.25G,GRES/gpu=2.0`: name -> weight, of memory for each MiB."""
    found = {}
    for item in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*([\w/:.-]+)\s*=\s*(-?[0-9]*\.?[0-9]+)([KMGTP]?)\s*", item, re.IGNORECASE)
        if match is None:
            raise InputError(f"{item[:40]!r} is not a weight", where=where, hint="write CPU=1.0,Mem=0.25G")
        found[match[1].lower()] = float(match[2]) / (SCALES[match[3].upper()] if match[3] else 1)
    return found
