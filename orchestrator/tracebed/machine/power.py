"""The power of nodes by state, when nodes are switched off, and the price of energy."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tracebed.ground import bounds
from tracebed.ground.errors import InputError

MOST_WATTS = 1e6


class PowerState(enum.StrEnum):
    """State of the power of a node."""

    ON = "on"
    """The node can run jobs."""
    SHUTDOWN = "shutdown"
    """The node is being switched off."""
    OFF = "off"
    """The node is switched off."""
    BOOT = "boot"
    """The node is being switched on."""


@dataclass(frozen=True, kw_only=True)
class NodePower:
    """The power of each node of a class, and the times of its changes.

    Attributes:
        busy_w: power of a node all of whose cores are allocated, W.
        idle_w: power of a node without a job, W. With some cores allocated, the power lies between the two in
            proportion.
        off_w: power of a node that is off, W.
        boot_w: power during the boot, W; None: `idle_w`.
        shutdown_w: power during the shutdown, W; None: `idle_w`.
        boot_s: duration of the boot, s.
        shutdown_s: duration of the shutdown, s.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    busy_w: float
    idle_w: float
    off_w: float = 0.0
    boot_w: float | None = None
    shutdown_w: float | None = None
    boot_s: float = 0.0
    shutdown_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise InputError if a number is out of its range, or a busy node has less power than an idle one."""
        for name in ("busy_w", "idle_w", "off_w", "boot_w", "shutdown_w"):
            bounds.check(name, getattr(self, name) or 0.0, 0, MOST_WATTS)
        for name in ("boot_s", "shutdown_s"):
            bounds.check(name, getattr(self, name), 0, bounds.MAX_SECONDS)
        if self.busy_w < self.idle_w:
            what = f"busy_w is {self.busy_w:g} W, less than idle_w, {self.idle_w:g} W"
            raise InputError(what, hint="exchange the two numbers")

    def watts(self, state: PowerState) -> float:
        """Return the power of a node without a job in a state, W."""
        given = {PowerState.ON: self.idle_w, PowerState.OFF: self.off_w}
        given |= {PowerState.BOOT: self.boot_w, PowerState.SHUTDOWN: self.shutdown_w}  # type: ignore[dict-item]
        return self.idle_w if given[state] is None else given[state]


@dataclass(frozen=True, kw_only=True)
class Sleep:
    """When nodes are switched off. One of four rules.

    `windows`: each day from `start` to `end`, a share of the nodes, the first ones, is off. A node of these that has a
    job is switched off when it is idle. Under the executor `nights`, a job takes such a node before the window only if
    its limit ends by then.
    `idle`: a node that has been idle for `idle_s` is switched off; as many idle nodes as the first waiting job needs
    stay on. A node that is off is switched on for the job that gets it, which then waits for the boot.
    `subpart`: each `period_s`, `share` of the nodes is switched off; the others are as under `idle`, and boot for the
    queue.
    `inertial`: each `period_s`, `factor` times as many nodes as before are switched on while the delay of the load
    grows, and off while it does not. The executor `batsched` has these two rules.

    Attributes:
        rule: `windows`, `idle`, `subpart` or `inertial`.
        start: start of the window, `HH:MM` on the clock of the workload.
        end: end of the window, `HH:MM`; before the start: on the next day.
        share: share of the nodes that is off (`windows`, `subpart`).
        shrink: whether malleable jobs release nodes that are to be off.
        idle_s: time for which a node is idle before it is switched off, s; None: it is not (`subpart`, `inertial`).
        keep: number of idle nodes that stay on.
        period_s: time between two decisions of `subpart` and `inertial`, s.
        factor: factor of the number of nodes that `inertial` switches.
        delay_s: mean delay of the load from which on `inertial` only switches nodes on, s.
        margin_s: time that plans add to limits, boots and shutdowns, s (`subpart`, `inertial`).
        planned_boot_s: duration of a boot in plans, s; None: the real one (`subpart`, `inertial`).
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    rule: Literal["windows", "idle", "subpart", "inertial"]
    start: str = "22:00"
    end: str = "06:00"
    share: float = 0.0
    shrink: bool = True
    idle_s: float | None = 0.0
    keep: int = 0
    period_s: float = 60.0
    factor: float = 2.0
    delay_s: float = 1e5
    margin_s: float = 0.0
    planned_boot_s: float | None = None

    @property
    def executor(self) -> str:
        """Return the name of the executor that has the rule; empty: any simulator."""
        return "batsched" if self.rule in ("subpart", "inertial") else ""

    @property
    def rest_s(self) -> float:
        """Return `idle_s`; infinite: nodes are not switched off for being idle."""
        return math.inf if self.idle_s is None else self.idle_s

    def __post_init__(self) -> None:
        """Raise InputError if a number is out of its range, or a time of the day is invalid."""
        bounds.check("share", self.share, 0, 1)
        for name in ("idle_s", "delay_s", "margin_s", "planned_boot_s"):
            bounds.check(name, getattr(self, name) or 0.0, 0, bounds.MAX_SECONDS)
        bounds.check("period_s", self.period_s, 1e-3, bounds.MAX_SECONDS)
        bounds.check("factor", self.factor, 1, bounds.MAX_MACHINE)
        if self.idle_s is None and not self.executor:
            raise InputError(f"the rule {self.rule} has no idle_s", hint="give the idle time, s")
        bounds.check("keep", self.keep, 0, bounds.MAX_MACHINE)
        if (seconds_of_day("start", self.start) - seconds_of_day("end", self.end)) % 86_400 == 0:
            what = f"the window in which nodes are off begins at {self.start}, and ends at {self.end}"
            raise InputError(what, hint="give two times of the day that differ")


@dataclass(frozen=True, kw_only=True)
class Tariff:
    """The price and the CO2 of energy from the grid, and from solar panels on the site.

    The panels give `solar_w` from `sunrise` to `sunset` and the share `solar_night` of it at night. The machine takes
    from the grid what the panels do not give. What it does not take of theirs is lost.

    Attributes:
        grid_price: price of a kWh of the grid.
        grid_co2_kg: CO2 of a kWh of the grid, kg.
        solar_price: price of a kWh of the panels.
        solar_co2_kg: CO2 of a kWh of the panels, kg.
        solar_w: power of the panels by day, W.
        solar_night: share of this power at night.
        sunrise: `HH:MM` on the clock of the workload.
        sunset: `HH:MM`, after sunrise.
        currency: of the prices.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    grid_price: float = 0.0
    grid_co2_kg: float = 0.0
    solar_price: float = 0.0
    solar_co2_kg: float = 0.0
    solar_w: float = 0.0
    solar_night: float = 0.0
    sunrise: str = "06:00"
    sunset: str = "18:00"
    currency: str = "USD"

    def __post_init__(self) -> None:
        """Raise InputError if a number is out of its range, or the sun sets before it rises."""
        for name in ("grid_price", "grid_co2_kg", "solar_price", "solar_co2_kg"):
            bounds.check(name, getattr(self, name), 0, 1e6)
        bounds.check("solar_w", self.solar_w, 0, 1e12)
        bounds.check("solar_night", self.solar_night, 0, 1)
        if not seconds_of_day("sunrise", self.sunrise) < seconds_of_day("sunset", self.sunset):
            raise InputError(f"the sun sets at {self.sunset}, and rises at {self.sunrise}", hint="give sunset after it")


def share_of(nodes: int, share: float) -> int:
    """Return how many of `nodes` nodes a share is, rounded down."""
    # The difference of rounded numbers, as in the program that published the rule `windows`: 0.29 of 100 nodes are 29.
    return int(nodes * (1.0 - (1.0 - share)))


def seconds_of_day(name: str, text: str) -> int:
    """Return the seconds since midnight of `HH:MM`; `24:00` is the end of the day. Raise InputError if invalid."""
    hours, colon, minutes = text.partition(":")
    if colon and len(minutes) == 2 and (hours + minutes).isascii() and (hours + minutes).isdigit():
        seconds = 3600 * int(hours) + 60 * int(minutes)
        if int(minutes) < 60 and seconds <= 86_400:
            return seconds
    raise InputError(f"{name} {text!r} is not a time of the day", hint="write hours and minutes: 22:00")
