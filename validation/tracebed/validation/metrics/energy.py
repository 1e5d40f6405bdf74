"""Energy: from recorded power, or modelled, under names that say which.

The modelled energy is that of the power of the nodes by state (`tracebed.validation.metrics.power`) if the machine of
the run says it, else that of a model of busy cores. All count the energy of trace time: power in W times trace seconds.
A replay at a speed of 60 draws this power for a sixtieth of the time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps, Window, full
from tracebed.validation.metrics.jobs import origin
from tracebed.validation.metrics.measured import MeasuredRun, Undefined
from tracebed.validation.metrics.metric import Margin, Metric
from tracebed.validation.metrics.power import PARTS, has_states, node_powers
from tracebed.validation.metrics.power_states import clock_note, energy_above_idle, energy_by_state
from tracebed.validation.statistics import sum_of_products

GAP = 3.0  # largest time between two samples, in median periods; a longer one is a gap
COVERED = 0.95  # smallest share of the window for which the power must be recorded
IDLE = 0.05  # quantile of the recorded power over time that is taken as the power of idle nodes
MARGIN = Margin(0.05)
NO_POWER = "the run has no samples of power"
OF_PLATFORM = "power_of_platform"
"""Key of `RunInfo.imported`: the power is that of all nodes, and node 0 has the figures."""
TOTAL = "energy_j"
"""Key of `RunInfo.imported`: the energy of the whole run, J."""
OWN = "the file of the run records its energy, which no model replaces"
NO_OFF_POWER = "nodes were switched off, and the machine of the run does not say the power of its nodes"


@dataclass(frozen=True)
class RecordedPower:
    """The recorded power in the window of a run, summed over the nodes with samples."""

    mean_w: float  # mean power over the recorded part of the window, W
    # Baseline: the sum over the nodes of the power that each exceeds in 95 % of the window, W. It is too high for a
    # machine that is never idle.
    idle_w: float
    nodes: int  # Number of nodes with samples. The power of a machine with several nodes belongs to one of them.
    covered: float  # share of the window for which the power is recorded, over all nodes with samples
    gaps: int  # number of samples that follow the previous one after more than `GAP` median periods


def recorded_power(run: MeasuredRun, window: Window | None = None) -> RecordedPower:
    """Return the recorded power in a window, if each machine has samples and these cover enough (`COVERED`) of it.

    `window`: None: that of the run.
    """
    window = window or run.window
    rows, start, end = power_rows(run.run), window.start_s, window.end_s
    if rows is None:
        raise Undefined(NO_POWER)
    node, begins, ends, power, gaps = rows
    nodes = len(np.unique(node))
    info = run.run.info
    machines = 1 if info.imported.get(OF_PLATFORM) else len(info.hosts) or len(info.nodes)
    if nodes < machines:
        raise Undefined(f"power was recorded on {nodes} of {machines} machines")
    if not end > start:
        raise Undefined("the window is empty")
    # A sample is the mean power since the previous sample of the node, so the sum of power times duration is the exact
    # energy between the first and the last sample. The first sample counts for one median period.
    held = np.maximum(np.minimum(ends, end) - np.maximum(begins, start), 0.0)
    covered = float(held.sum()) / (nodes * (end - start))
    if covered < COVERED:
        raise Undefined(f"the samples of power cover {100 * covered:.0f} % of the window")
    mean = sum_of_products(held, power) / float(held.sum()) * nodes
    idle = sum(_quantile(power[node == each], held[node == each]) for each in np.unique(node))
    return RecordedPower(mean, idle, nodes, covered, gaps)


def recorded_steps(run: MeasuredRun) -> Steps:
    """Return the recorded power of all machines over s after the first submission, W. Raises Undefined as its mean."""
    recorded_power(run)
    rows = power_rows(run.run)
    assert rows is not None
    _, begins, ends, power, _ = rows
    return Steps.count(begins, ends, power)


def _quantile(power: FloatArray, held: FloatArray) -> float:
    """Return the power that is exceeded in all but the share `IDLE` of the recorded time, W."""
    order = np.argsort(power)
    passed = np.cumsum(held[order])
    return float(power[order][np.searchsorted(passed, IDLE * passed[-1])])


def power_rows(run: Run) -> tuple[Any, ...] | None:
    """Return node, begin and end (s after the first submission) and power of each sample, and the number of gaps."""
    if np.isnan(run.table("nodes")["power_w"]).all():
        return None
    samples = run.nodes[(run.nodes["power_state"] == "").to_numpy()]  # a change of the state is no sample
    table = samples.sort_values(["node", "time"], kind="stable")
    node, time, power = (table[name].to_numpy() for name in ("node", "time", "power_w"))
    known = ~np.isnan(power)
    time = time - origin(run)
    first = np.append(True, node[1:] != node[:-1])
    span = np.append(np.nan, np.diff(time))
    period = float(np.median(span[known & ~first])) if (known & ~first).any() else 0.0
    span[first] = period
    gaps = int((span[known] > GAP * period).sum()) if not run.info.imported.get(OF_PLATFORM) else 0
    return node[known], (time - span)[known], time[known], power[known], gaps


def energy_facts(run: MeasuredRun) -> dict[str, Any]:
    """Return the facts of the energy metrics as JSON values.

    `model`: the parameters of the model of busy cores; `figures`: `machine` if the power of the nodes by state replaces
    it, else `model`; `clock`: what is unknown of the clock of the tariff, empty: nothing; `recorded`: None without
    samples.
    """
    try:
        recorded: dict[str, Any] | None = asdict(recorded_power(run))
    except Undefined:
        recorded = None
    figures = "model" if node_powers(run.run.info) is None else "machine"
    return {"model": asdict(run.power_model), "figures": figures, "clock": clock_note(run), "recorded": recorded}


def _recorded_above_idle(run: MeasuredRun) -> float:
    power = recorded_power(run)
    return (power.mean_w - power.idle_w) * run.window.length_s


def _recorded_full(run: MeasuredRun) -> float:
    """Return the recorded energy from the first submission to the last end, or the total that a file states, J."""
    stated = run.run.info.imported.get(TOTAL)
    if isinstance(stated, (int, float)):
        return float(stated)
    return energy_of(run, full(run.last_end_s))


def energy_of(run: MeasuredRun, window: Window) -> float:
    """Return the recorded energy in a window, J. Raises Undefined without samples for `COVERED` of the window."""
    return recorded_power(run, window).mean_w * window.length_s


def _check_model(run: MeasuredRun) -> bool:
    """Return whether the machine says the power of its nodes. Raises Undefined if no model may be used."""
    imported = run.run.info.imported
    if imported and (TOTAL in imported or power_rows(run.run) is not None):
        raise Undefined(OWN)
    if node_powers(run.run.info) is not None:
        return True
    if has_states(run.run):
        raise Undefined(NO_OFF_POWER)
    return False


def _modelled(run: MeasuredRun) -> float:
    if _check_model(run):
        return energy_by_state(run, *PARTS)
    idle = run.power_model.idle_w * run.run.total_nodes * run.window.length_s
    return idle + _busy_above_idle(run)


def _modelled_above_idle(run: MeasuredRun) -> float:
    return energy_above_idle(run) if _check_model(run) else _busy_above_idle(run)


def _busy_above_idle(run: MeasuredRun) -> float:
    busy = run.computing.mean(run.window.start_s, run.window.end_s)
    return run.power_model.busy_core_w * busy * run.window.length_s


METRICS = (
    Metric(
        name="energy_j",
        label="energy in the window, recorded",
        short="energy, recorded",
        unit="J",
        definition=lambda run: energy_of(run, run.window),
        undefined=NO_POWER,
        margin=MARGIN,
        optional=True,
        docs="integral of the recorded power (`nodes.parquet`) over the window, in trace seconds; of computed nodes "
        "with energy counters (RAPL), and of simulators that write power",
    ),
    Metric(
        name="energy_full_j",
        label="energy, full span, recorded",
        unit="J",
        definition=_recorded_full,
        undefined=NO_POWER,
        margin=MARGIN,
        optional=True,
        docs="recorded energy from the first submission to the last end, or the total that the file of an imported run "
        "states",
    ),
    Metric(
        name="energy_above_idle_j",
        label="energy above idle in the window, recorded",
        unit="J",
        definition=_recorded_above_idle,
        undefined=NO_POWER,
        optional=True,
        docs="recorded energy - baseline x length of the window; the baseline is the power that a node exceeds in 95 % "
        "of the window",
    ),
    Metric(
        name="modelled_energy_j",
        label="energy in the window, modelled",
        short="energy, modelled",
        unit="J",
        definition=_modelled,
        undefined="the window is empty",
        margin=MARGIN,
        docs="not measured: sum of the energies by state if the machine of the run says the power of its nodes, else "
        "(idle power x nodes + power of a busy core x mean number of busy cores) x length of the window; 100 W a node "
        "and 5 W a core unless `metrics --power IDLE:CORE` is given",
    ),
    Metric(
        name="modelled_energy_above_idle_j",
        label="energy above idle in the window, modelled",
        unit="J",
        definition=_modelled_above_idle,
        undefined="the window is empty",
        docs="not measured: power that a busy core adds x core seconds in which jobs compute in the window",
    ),
)
"""The metrics of energy."""
