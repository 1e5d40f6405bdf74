"""The power of the machine by state over time, its energy, and what the energy costs.

The states of the nodes are a staircase (`power_state` in `nodes.parquet`), and so are the cores that jobs hold
(`allocations.parquet`). The watts are those of the classes of the machine. All integrals are exact sums over the spans
between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray, IntArray
from tracebed.ground.table import expanded
from tracebed.machine.calendar import Clock
from tracebed.machine.power import NodePower, PowerState, Tariff, seconds_of_day
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.statistics import sum_of_products

if TYPE_CHECKING:
    from tracebed.machine.machine import Machine

KWH_J = 3.6e6
ASLEEP = (PowerState.BOOT, PowerState.SHUTDOWN, PowerState.OFF)
"""The states other than on, in the order of `SleepPeriods.state`."""
PARTS = ("busy", "idle", "boot", "shutdown", "off")
"""The parts of the power: cores that jobs hold and other cores of nodes that are on, and the other nodes by state."""
ABOVE_IDLE = "above idle"


def has_states(run: Run) -> bool:
    """Return whether a run has states of the power of its nodes."""
    return not run.table("nodes").equal("power_state", "").all()


@dataclass(frozen=True)
class SleepPeriods:
    """Periods in which a node is not on, s after the first submission; grouped by node, in time. Shapes (periods,)."""

    node: IntArray
    state: IntArray  # index into `ASLEEP`
    start: FloatArray
    end: FloatArray  # infinite: until the end of the run

    @classmethod
    def of(cls, run: Run, zero: float) -> SleepPeriods:
        """Return the periods of a run whose first submission is at `zero`, trace s."""
        rows = run.table("nodes")
        rows = rows.take(~rows.equal("power_state", ""))
        order = np.lexsort((rows["time"], rows["node"]))  # stable: rows of one instant keep their order
        node, start = rows["node"][order], rows["time"][order] - zero
        state = np.full(len(rows), -1)
        for number, name in enumerate(ASLEEP):
            state[rows.equal("power_state", name)] = number
        state = state[order]
        last = np.append(node[1:] != node[:-1], True)[: len(node)]
        end = np.where(last, np.inf, np.append(start[1:], np.inf)[: len(node)])
        kept = (state >= 0) & (end > start)
        return cls(node[kept], state[kept], start[kept], end[kept])

    def count(self, end: float, states: Sequence[PowerState] = ASLEEP) -> Steps:
        """Return the number of nodes in `states` over s after the first submission, until `end`."""
        chosen = np.isin(self.state, [ASLEEP.index(state) for state in states])
        return Steps.count(self.start[chosen], np.minimum(self.end[chosen], end))


@dataclass(frozen=True)
class HeldNodes:
    """Periods in which jobs hold cores of ranges of nodes, s after the first submission. Shapes (periods,)."""

    node: IntArray
    count: IntArray
    start: FloatArray
    end: FloatArray
    cores: IntArray  # on each of the nodes; below 0 for cores that an operator took

    def within(self, sleep: SleepPeriods, nodes: int) -> HeldNodes:
        """Return the parts of the periods in which the node is not on, each of one node."""
        sleeping = np.zeros(nodes + 1, dtype=np.int64)
        sleeping[1:] = np.cumsum(np.bincount(sleep.node, minlength=nodes) > 0)
        there = (sleeping[self.node + self.count] > sleeping[self.node]) & (self.end > self.start)
        which = np.flatnonzero(there)
        row, node = expanded(self.node[which], self.count[which])
        row = which[row]
        kept = sleeping[node + 1] > sleeping[node]
        row, node = row[kept], node[kept]
        # Times become ranks among the ends of the periods, so that a node and a time are one exact number.
        instants = np.unique(np.concatenate((sleep.start, sleep.end)))
        ranks = len(instants) + 1

        def rank(times: FloatArray, side: Literal["left", "right"]) -> IntArray:
            return np.searchsorted(instants, times, side).astype(np.int64)

        # Of the periods of a node, those overlap that end after the start and begin before the end.
        ends = sleep.node * ranks + rank(sleep.end, "left")
        starts = sleep.node * ranks + rank(sleep.start, "left")
        first = np.searchsorted(ends, node * ranks + rank(self.start[row], "right"), "left")
        stop = np.searchsorted(starts, node * ranks + rank(self.end[row], "left"), "left")
        pair, period = expanded(first, np.maximum(stop - first, 0))
        row = row[pair]
        start = np.maximum(self.start[row], sleep.start[period])
        end = np.minimum(self.end[row], sleep.end[period])
        return HeldNodes(sleep.node[period], np.ones_like(period), start, end, self.cores[row])


@dataclass(frozen=True)
class PowerUse:
    """The power of a machine by part, between consecutive instants."""

    edges: FloatArray  # ascending, s after the first submission, shape (spans + 1,)
    watts: dict[str, FloatArray]  # part (`PARTS`), and what busy cores add to idle ones -> power, W, shape (spans,)

    @property
    def total(self) -> FloatArray:
        """The power of the machine, W, shape (spans,)."""
        return np.asarray(sum(self.watts[part] for part in PARTS))

    def energy(self, part: str, start: float, end: float) -> float:
        """Return the energy of a part from `start` to `end` (s), J."""
        return sum_of_products(self.watts[part], np.diff(np.clip(self.edges, start, end)))

    def means(self, part: str, edges: FloatArray) -> FloatArray:
        """Return the mean power of a part in each bin between ascending `edges` (s), W, shape (edges - 1,)."""
        return Steps(self.edges, np.append(self.watts[part], 0.0)).means(edges)


def node_powers(info: RunInfo) -> list[NodePower] | None:
    """Return the power of each node of a run by its machine; None: the machine does not say it of all of them."""
    machine: Machine | None = info.machine
    if machine is None:
        return None
    kinds = [kind.power for kind in machine.classes for _ in range(kind.size)]
    named = dict(zip((node.name for node in machine.nodes), kinds, strict=True))
    powers = [named.get(node.name) for node in info.nodes]
    return None if None in powers or not powers else powers  # type: ignore[return-value]


def power_use(
    held: HeldNodes, sleep: SleepPeriods, powers: Sequence[NodePower], cores: IntArray, end: float
) -> PowerUse:
    """Return the power of a machine from the first submission to `end`, s after it.

    A node that is on has the power of an idle node, and of the difference to a busy one the share of its cores that
    jobs hold. A node in another state has the power of the state, also while a job holds it.

    Args:
        held: what jobs hold.
        sleep: when nodes are not on.
        powers: the power of each node, shape (nodes,).
        cores: the cores of each node, shape (nodes,).
        end: the end.
    """
    kinds = list(dict.fromkeys(zip(powers, cores.tolist(), strict=True)))
    numbers = {kind: number for number, kind in enumerate(kinds)}
    kind = np.array([numbers[each] for each in zip(powers, cores.tolist(), strict=True)])
    lost = held.within(sleep, len(powers))
    ranges = ((sleep.start, sleep.end), (held.start, held.end), (lost.start, lost.end))
    bounds = [np.clip(side, 0.0, end) for both in ranges for side in both]
    edges, index = np.unique(np.concatenate([*bounds, [0.0, end]]), return_inverse=True)
    at = np.split(index, np.cumsum([len(side) for side in bounds]))

    def staircase(first: IntArray, last: IntArray, amount: IntArray | BoolArray) -> FloatArray:
        """Return the sum of whole amounts, each there between two edges, in each span: an exact sum."""
        change = np.bincount(first, amount, len(edges)) - np.bincount(last, amount, len(edges))
        return np.asarray(np.cumsum(change)[:-1])

    watts = {part: np.zeros(len(edges) - 1) for part in (*PARTS, ABOVE_IDLE)}
    for number, (power, each) in enumerate(kinds):
        own = kind == number
        before = np.concatenate(([0], np.cumsum(own)))
        holds = held.cores * (before[held.node + held.count] - before[held.node])
        busy = staircase(at[2], at[3], holds) - staircase(at[4], at[5], lost.cores * own[lost.node])
        on = np.full(len(edges) - 1, float(own.sum()))
        for code, state in enumerate(ASLEEP):
            nodes = staircase(at[0], at[1], own[sleep.node] & (sleep.state == code))
            watts[state.value] += power.watts(state) * nodes
            on -= nodes
        share = np.clip(busy / each, 0.0, on)  # several jobs may hold a whole node of an imported run
        watts["busy"] += power.busy_w * share
        watts["idle"] += power.idle_w * (on - share)
        watts[ABOVE_IDLE] += (power.busy_w - power.idle_w) * share
    return PowerUse(edges, watts)


def solar_power(tariff: Tariff, clock: Clock, start: float, end: float) -> Steps:
    """Return the power of the solar panels from `start` to `end`, trace s, W.

    Sunrise and sunset are times of the clock of the workload: of its time zone, UTC if it is unknown. If the date of
    time 0 is unknown, too, time 0 is midnight.
    """
    rise, fall = seconds_of_day("sunrise", tariff.sunrise), seconds_of_day("sunset", tariff.sunset)
    days = range(clock.day(start), clock.day(end) + 1)
    starts, ends = (np.clip([clock.instant(day, at) for day in days], start, end) for at in (rise, fall))
    night = tariff.solar_night * tariff.solar_w
    weights = np.append(np.full(len(starts), tariff.solar_w - night), night)
    return Steps.count(np.append(starts, start), np.append(ends, end), weights)


@dataclass(frozen=True)
class Supply:
    """The energy of a machine by its source."""

    grid_j: float
    solar_j: float  # taken from the panels

    @classmethod
    def of(cls, use: PowerUse, solar: Steps, start: float, end: float) -> Supply:
        """Return the energy from `start` to `end` (s); `solar`: the power of the panels on the same clock."""
        inside = np.concatenate((use.edges, solar.times))
        edges = np.unique(np.clip(inside, start, end))
        if len(edges) < 2:
            return cls(0.0, 0.0)
        taken = Steps(use.edges, np.append(use.total, 0.0)).at(edges[:-1])
        given = np.minimum(solar.at(edges[:-1]), taken)
        return cls(sum_of_products(taken - given, np.diff(edges)), sum_of_products(given, np.diff(edges)))

    def cost(self, tariff: Tariff) -> float:
        """Return the price of the energy."""
        return (self.grid_j * tariff.grid_price + self.solar_j * tariff.solar_price) / KWH_J

    def co2_kg(self, tariff: Tariff) -> float:
        """Return the CO2 of the energy, kg."""
        return (self.grid_j * tariff.grid_co2_kg + self.solar_j * tariff.solar_co2_kg) / KWH_J
