"""Report sections about power: the power of the machine by state over time, and the energy by state."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.metrics import MeasuredRun, Undefined
from tracebed.validation.metrics.power import KWH_J, PARTS
from tracebed.validation.metrics.power_states import clock_note, energy_by_state
from tracebed.validation.metrics.power_states import panels as solar_panels
from tracebed.validation.pictures import Picture
from tracebed.validation.report.curves import BINS
from tracebed.validation.report.scales import TimeAxis
from tracebed.validation.report.sections import Content, Section
from tracebed.validation.report.style import INK, NARROW, PREDICTED, REAL, SOFT, above, heading, panels
from tracebed.validation.verdict import Comparison

CHARTS = 6  # largest number of charts in a page
COLORS = {"busy": "#4477aa", "idle": "#66ccee", "boot": "#ee6677", "shutdown": "#aa3377", "off": SOFT}
"""Color of each part of the power."""
UNITS = ((1e9, "GW"), (1e6, "MW"), (1e3, "kW"), (1.0, "W"))
ENERGIES = ((1e6 * KWH_J, "GWh"), (1e3 * KWH_J, "MWh"), (KWH_J, "kWh"), (KWH_J / 1e3, "Wh"))
Sides = Mapping[str, tuple[MeasuredRun, str]]  # name -> run and color of its heading


def _sides(runs: Mapping[str, tuple[Run, str]]) -> dict[str, tuple[MeasuredRun, str]]:
    """Return the runs whose machine says the power of its nodes, measured over the whole run."""
    sides = {}
    for name, (run, color) in runs.items():
        with suppress(Undefined):
            measured = MeasuredRun(run, window="full")
            if len(measured.power.edges) > 1:
                sides[name] = (measured, color)
    return sides


def of_runs(runs: Mapping[str, tuple[Run, str]]) -> Content | None:
    """Return the pictures of the power over time and of the energy by state; None: no machine says its power.

    `runs`: name -> run, and the color of its name.
    """
    sides = _sides(runs)
    if not sides:
        return None
    return _over_time(sides, len(sides)), _energies(sides)


def _compared(comparison: Comparison) -> Content | None:
    return of_runs({"real": (comparison.real, REAL), "predicted": (comparison.predicted, PREDICTED)})


SECTION = Section("Power and energy", 550, _compared)


def _unit(most: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    return next((each for each in units if most >= each[0]), units[-1])


def _solar(run: MeasuredRun, end: float) -> Steps | None:
    """Return the power of the panels of the machine, if it has some."""
    machine = run.run.info.machine
    if machine is None or machine.tariff is None or not machine.tariff.solar_w:
        return None
    return solar_panels(run, end)


def _over_time(sides: Sides, known: int) -> Picture:
    shown = dict(list(sides.items())[:CHARTS])
    time = TimeAxis.of(*(run.given for run, _ in shown.values()))
    most = max(float(run.power.total.max()) for run, _ in shown.values())
    unit, name_of_unit = _unit(most, UNITS)
    present = [part for part in PARTS if any(run.power.watts[part].any() for run, _ in shown.values())]
    sun = {name: _solar(run, time.end) for name, (run, _) in shown.items()}
    brightest = max((float(each.values.max()) for each in sun.values() if each is not None), default=0.0)
    top = max(most, min(brightest, 2 * most)) or 1.0  # large panels do not dwarf the machine

    def draw(width: float) -> Figure:
        figure, axes_of = panels(len(shown), 1.9 if len(shown) < 3 else 1.3, width)
        for axes, (name, (run, color)) in zip(axes_of, shown.items(), strict=True):
            _stack(axes, run, time, unit, present)
            if (solar := sun[name]) is not None:
                y = np.append(solar.values[:-1], solar.values[-2:-1]) / unit
                axes.step(solar.times / time.unit, y, where="post", color=INK, linewidth=0.9, label="solar panels")
            axes.set_ylim(0, 1.06 * top / unit)
            axes.yaxis.set_major_locator(MaxNLocator(4 if width > NARROW else 3))
            axes.set_ylabel(f"power ({name_of_unit})")
            time.apply(axes, label=axes is axes_of[-1])
            if len(shown) > 1:
                heading(axes, name, color)
        above(axes_of[0])
        return figure

    averaged = any(len(run.power.edges) > 2 * BINS for run, _ in shown.values())
    notes = dict.fromkeys(note for run, _ in shown.values() if (note := clock_note(run)))
    caption = (
        "Power of the machine by the state of its nodes, modelled: cores that jobs hold (busy) and other cores (idle) "
        "of nodes that are on, and the nodes that boot, are being switched off, or are off."
        + (" Line: what the solar panels give." if any(each is not None for each in sun.values()) else "")
        + (f" Averages over {BINS} bins." if averaged else "")
        + (f" The first {len(shown)} of {known} runs." if len(shown) < known else "")
        + "".join(f" Note: {note}." for note in notes)
        + time.note(*shown)
    )
    return Picture(draw, caption, "Power by state of the nodes over time", data=lambda: _table(shown, time))


def _stack(axes: Axes, run: MeasuredRun, time: TimeAxis, unit: float, parts: list[str]) -> None:
    """Draw the parts of the power of a run, one upon the other."""
    x, watts = _points(run, time.end)
    axes.stackplot(
        x / time.unit,
        [watts[part] / unit for part in parts],
        labels=parts,
        colors=[COLORS[part] for part in parts],
        alpha=0.85,
        linewidth=0,
        step="post",
    )


def _points(run: MeasuredRun, end: float) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return instants from 0 to `end` (s), and the power of each part from each of them on, W."""
    use = run.power
    if len(use.edges) > 2 * BINS:
        x = np.linspace(0.0, end, BINS + 1)
        return x, {part: np.append(means := use.means(part, x), means[-1]) for part in PARTS}
    inside = use.edges[:-1] < end
    x = np.append(use.edges[:-1][inside], min(end, use.edges[-1]))
    return x, {part: np.append(use.watts[part][inside], use.watts[part][inside][-1]) for part in PARTS}


def _table(sides: Sides, time: TimeAxis) -> pd.DataFrame:
    """Return the data of the charts: a row per run and instant."""
    tables = []
    for name, (run, _) in sides.items():
        x, watts = _points(run, time.end)
        table = pd.DataFrame({"run": name, "time_s": x} | {f"{part}_w": watts[part] for part in PARTS})
        if (solar := _solar(run, time.end)) is not None:
            table["solar_w"] = solar.at(x)
        tables.append(table)
    table = pd.concat(tables, ignore_index=True)
    return table if len(sides) > 1 else table.drop(columns="run")


def _energies(sides: Sides) -> Picture:
    """Return the energy of each run by state, as bars."""
    energy = {name: [energy_by_state(run, part) for part in PARTS] for name, (run, _) in sides.items()}
    unit, name_of_unit = _unit(max(map(sum, energy.values())), ENERGIES)

    def draw(width: float) -> Figure:
        figure, (axes,) = panels(1, 0.32 * len(energy) + 0.12, width)
        box = axes.get_position()
        names = [name if len(name) <= 16 else f"{name[:15]}…" for name in energy]
        left = 0.012 * max(map(len, names)) * (9.6 / width) if len(names) > 1 else 0.0
        axes.set_position((box.x0 + max(0.0, left - 0.06), box.y0, box.width - max(0.0, left - 0.06), box.height))
        before = np.zeros(len(energy))
        for number, part in enumerate(PARTS):
            amounts = np.array([each[number] for each in energy.values()]) / unit
            if amounts.any():
                axes.barh(np.arange(len(energy)), amounts, 0.7, before, color=COLORS[part], alpha=0.85, label=part)
            before += amounts
        for row, total in enumerate(before):
            axes.text(total, row, f" {total:,.4g}", ha="left", va="center")
        axes.set_ylim(len(energy) - 0.5, -0.5)
        axes.set_yticks(np.arange(len(energy)), names if len(names) > 1 else [""])
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.12 * float(before.max()) or 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(8 if width > NARROW else 4))
        axes.set_xlabel(f"energy ({name_of_unit})")
        above(axes)
        return figure

    def table() -> pd.DataFrame:
        rows = [
            {"run": name} | dict(zip([f"{part}_j" for part in PARTS], each, strict=True))
            for name, each in energy.items()
        ]
        return pd.DataFrame(rows)

    caption = "Energy from the first submission to the last end by the state of the nodes, modelled."
    return Picture(draw, caption, "Energy by state of the nodes", data=table)
