"""What the power states of nodes give and cost: energy by state, nodes off, boots, and the price and CO2 of the energy.

Modelled: power of the classes of the machine x time. The states and what jobs hold are those of the run.
"""

from __future__ import annotations

from tracebed.machine.calendar import UNDATED, Clock
from tracebed.machine.power import PowerState, Tariff
from tracebed.orchestrator.runs.steps import Steps, Window, full
from tracebed.validation.metrics.jobs import origin
from tracebed.validation.metrics.measured import MeasuredRun, Undefined
from tracebed.validation.metrics.metric import Margin, Metric
from tracebed.validation.metrics.power import ABOVE_IDLE, ASLEEP, PARTS, Supply, solar_power

HOUR_S = 3600.0
NO_WINDOW = "the window is empty"
NO_TARIFF = "the machine of the run has no tariff"
WORDS = {
    "busy": "cores that jobs hold of nodes that are on: power of a busy node x share of its cores x time",
    "idle": "other cores of nodes that are on: power of an idle node x share of its cores x time",
    "boot": "nodes that are being switched on",
    "shutdown": "nodes that are being switched off",
    "off": "nodes that are off",
}
"""Part of the energy -> its definition."""


def energy_by_state(run: MeasuredRun, *parts: str, window: Window | None = None) -> float:
    """Return the modelled energy of some of `PARTS` in a window, by default that of the run, J; NaN: it is empty.

    Raises Undefined if the machine of the run does not say the power of its nodes.
    """
    window = window or run.window
    energy = sum(run.power.energy(part, window.start_s, window.end_s) for part in parts)
    return energy if window.length_s > 0 else float("nan")


def energy_above_idle(run: MeasuredRun) -> float:
    """Return the modelled energy in the window beyond that of idle nodes, J."""
    return energy_by_state(run, ABOVE_IDLE)


def tariff_of(run: MeasuredRun) -> Tariff:
    """Return the tariff of the machine of a run. Raises Undefined if it has none."""
    machine = run.run.info.machine
    if machine is None or machine.tariff is None:
        raise Undefined(NO_TARIFF)
    return machine.tariff


def has_panels(run: MeasuredRun) -> bool:
    """Return whether the machine of a run has solar panels."""
    machine = run.run.info.machine
    return machine is not None and machine.tariff is not None and machine.tariff.solar_w > 0


def clock_note(run: MeasuredRun) -> str:
    """Return what is unknown of the clock of the tariff, as a sentence; empty: nothing, or there are no panels."""
    if not has_panels(run):
        return ""
    clock = _clock(run)
    if clock.unix_start is None:
        return UNDATED
    if clock.time_zone is None:
        return f"the time zone of the workload is {clock.zone or 'unknown'}: sunrise and sunset in UTC"
    return ""


def _clock(run: MeasuredRun) -> Clock:
    provenance = run.run.info.workload.get("provenance") or {}
    return Clock(provenance.get("unix_start"), provenance.get("time_zone") or "")


def panels(run: MeasuredRun, end: float) -> Steps:
    """Return the power of the solar panels from the first submission to `end`, s after it, W."""
    zero = origin(run.run)
    solar = solar_power(tariff_of(run), _clock(run), zero, zero + end)
    return Steps(solar.times - zero, solar.values)


def _supply(run: MeasuredRun, window: Window) -> Supply:
    """Return the energy of a window by its source: of it follow the cost, the CO2 and the share of the panels."""
    power, horizon = run.power, run.horizon_s
    return run.of_window("supply", window, lambda: Supply.of(power, panels(run, horizon), window.start_s, window.end_s))


def _priced(run: MeasuredRun, what: str, *, whole: bool = False) -> float:
    """Return the cost or the CO2 of the energy in the window, or of the whole run."""
    tariff, window = tariff_of(run), full(run.last_end_s) if whole else run.window
    supply = _supply(run, window)
    if not window.length_s > 0:
        return float("nan")
    return supply.cost(tariff) if what == "cost" else supply.co2_kg(tariff)


def _solar_share(run: MeasuredRun) -> float:
    if not tariff_of(run).solar_w:
        raise Undefined("the machine of the run has no solar panels")
    supply = _supply(run, run.window)
    total = supply.grid_j + supply.solar_j
    return supply.solar_j / total if total > 0 else float("nan")


def _off(run: MeasuredRun) -> Steps:
    """Return the share of the nodes that are off over s after the first submission."""
    steps = run.sleep.count(run.horizon_s, [PowerState.OFF])
    return Steps(steps.times, steps.values / max(run.run.total_nodes, 1))


def _node_h(run: MeasuredRun, *states: PowerState) -> float:
    """Return the node hours in some states in the window."""
    steps = run.sleep.count(run.horizon_s, states)
    return steps.mean(run.window.start_s, run.window.end_s) * run.window.length_s / HOUR_S


def _boots(run: MeasuredRun) -> float:
    """Return the number of boots that begin in the window. A boot that takes no time counts."""
    _ = run.sleep  # raises Undefined
    rows = run.run.table("nodes")
    began = rows["time"][rows.equal("power_state", PowerState.BOOT)] - origin(run.run)
    if not run.window.length_s > 0:
        return float("nan")
    return int(((began >= run.window.start_s) & (began < run.window.end_s)).sum())


def _energy(part: str) -> Metric:
    return Metric(
        name=f"modelled_{part}_energy_j",
        label=f"energy in the window, {part}, modelled",
        unit="J",
        definition=lambda run: energy_by_state(run, part),
        undefined=NO_WINDOW,
        optional=True,
        docs=f"not measured, by the power of the machine: {WORDS[part]}",
    )


METRICS = (
    *map(_energy, PARTS),
    Metric(
        name="modelled_energy_full_j",
        label="energy, full span, modelled",
        unit="J",
        definition=lambda run: energy_by_state(run, *PARTS, window=full(run.last_end_s)),
        undefined=NO_WINDOW,
        margin=Margin(0.05),
        optional=True,
        docs="not measured, by the power of the machine: the energy from the first submission to the last end",
    ),
    Metric(
        name="energy_cost",
        label="cost of the energy in the window, modelled",
        short="cost",
        unit="currency",
        definition=lambda run: _priced(run, "cost"),
        undefined=NO_WINDOW,
        margin=Margin(0.05),
        optional=True,
        docs="modelled energy x price by the tariff of the machine: at each instant, the solar panels give what they "
        "can, and the grid the rest",
    ),
    Metric(
        name="energy_cost_full",
        label="cost of the energy, full span, modelled",
        unit="currency",
        definition=lambda run: _priced(run, "cost", whole=True),
        undefined=NO_WINDOW,
        margin=Margin(0.05),
        optional=True,
        docs="the cost from the first submission to the last end",
    ),
    Metric(
        name="energy_co2_kg",
        label="CO2 of the energy in the window, modelled",
        short="CO2",
        unit="kg",
        definition=lambda run: _priced(run, "co2"),
        undefined=NO_WINDOW,
        margin=Margin(0.05),
        optional=True,
        docs="modelled energy x CO2 by the tariff of the machine, by source as the cost",
    ),
    Metric(
        name="energy_co2_full_kg",
        label="CO2 of the energy, full span, modelled",
        unit="kg",
        definition=lambda run: _priced(run, "co2", whole=True),
        undefined=NO_WINDOW,
        margin=Margin(0.05),
        optional=True,
        docs="the CO2 from the first submission to the last end",
    ),
    Metric(
        name="solar_share",
        label="energy from the panels in the window, share",
        definition=_solar_share,
        undefined="the machine used no energy",
        optional=True,
        docs="modelled energy taken from the solar panels / modelled energy",
    ),
    Metric(
        name="off_share",
        label="nodes off in the window, mean share",
        short="off",
        definition=lambda run: _off(run).mean(run.window.start_s, run.window.end_s),
        undefined=NO_WINDOW,
        margin=Margin(0.05, 0.01),
        optional=True,
        mean_over_time=_off,
        docs="node seconds in the state off in the window / (nodes x its length)",
    ),
    Metric(
        name="boots",
        label="boots in the window",
        definition=_boots,
        undefined=NO_WINDOW,
        margin=Margin(0.10, 5.0),
        optional=True,
        docs="number of times that a node began to boot in the window",
    ),
    Metric(
        name="asleep_node_h",
        label="node hours not on in the window",
        unit="node h",
        definition=lambda run: _node_h(run, *ASLEEP),
        undefined=NO_WINDOW,
        optional=True,
        docs="node hours in the window in which nodes are off, boot or are being switched off",
    ),
    Metric(
        name="switching_node_h",
        label="node hours of boots and shutdowns in the window",
        unit="node h",
        definition=lambda run: _node_h(run, PowerState.BOOT, PowerState.SHUTDOWN),
        undefined=NO_WINDOW,
        optional=True,
        docs="node hours in the window in which nodes boot or are being switched off: lost for jobs and for sleep",
    ),
)
"""The metrics of the power states of nodes."""
