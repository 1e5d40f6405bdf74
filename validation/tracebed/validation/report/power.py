"""Report sections about power: that of the machine by state over time, what was recorded, and the energy."""

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
from tracebed.validation.metrics.energy import energy_of, recorded_steps
from tracebed.validation.metrics.power import KWH_J, PARTS
from tracebed.validation.metrics.power_states import clock_note, energy_by_state, has_panels
from tracebed.validation.metrics.power_states import panels as solar_panels
from tracebed.validation.pictures import Picture
from tracebed.validation.report.curves import BINS
from tracebed.validation.report.scales import TimeAxis
from tracebed.validation.report.sections import Content, Section
from tracebed.validation.report.style import (
    INK,
    NARROW,
    PREDICTED,
    REAL,
    SOFT,
    above,
    heading,
    higher,
    panels,
    scale,
)
from tracebed.validation.verdict import Comparison

HEADING = 0.2  # height of the heading of a panel, in
CHARTS = 6  # largest number of charts in a page
RECORDED = "recorded"
COLORS = {
    **{"busy": "#4477aa", "idle": "#66ccee", "boot": "#ee6677", "shutdown": "#aa3377", "off": SOFT},
    RECORDED: "#228833",
}
"""Color of each part of the power, and of what was recorded."""
UNITS = ((1e9, "GW"), (1e6, "MW"), (1e3, "kW"), (1.0, "W"))
ENERGIES = ((1e6 * KWH_J, "GWh"), (1e3 * KWH_J, "MWh"), (KWH_J, "kWh"), (KWH_J / 1e3, "Wh"))
Sides = Mapping[str, tuple[MeasuredRun, str]]  # name -> run and color of its heading


def _sides(runs: Mapping[str, tuple[Run, str]]) -> dict[str, tuple[MeasuredRun, str]]:
    """Return the runs with power, modelled by their machine or recorded, measured over the whole run."""
    sides = {name: (MeasuredRun(run, window="full"), color) for name, (run, color) in runs.items()}
    return {name: side for name, side in sides.items() if _is_modelled(side[0]) or _recorded(side[0]) is not None}


def _is_modelled(run: MeasuredRun) -> bool:
    """Return whether the machine of a run says the power of its nodes."""
    with suppress(Undefined):
        return len(run.power.edges) > 1
    return False


def _recorded(run: MeasuredRun) -> Steps | None:
    """Return the recorded power, if there is any."""
    with suppress(Undefined):
        return recorded_steps(run)
    return None


def of_runs(runs: Mapping[str, tuple[Run, str]]) -> Content | None:
    """Return the pictures of the power over time and of the energy; None: there is no power of the runs.

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
    return solar_panels(run, end) if has_panels(run) else None


def _over_time(sides: Sides, known: int) -> Picture:
    shown = dict(list(sides.items())[:CHARTS])
    time = TimeAxis.of(*(run.given for run, _ in shown.values()))
    modelled = {name: run for name, (run, _) in shown.items() if _is_modelled(run)}
    sun = {name: _solar(run, time.end) for name, run in modelled.items()}
    recorded = {name: steps for name, (run, _) in shown.items() if (steps := _recorded(run)) is not None}
    highest = [float(run.power.total.max()) for run in modelled.values()]
    most = max([*highest, *(float(_curve(steps, time.end)[1].max()) for steps in recorded.values())]) or 1.0
    brightest = max((float(each.values.max()) for each in sun.values() if each is not None), default=0.0)
    top = max(most, min(brightest, 2 * most))  # large panels do not dwarf the machine
    unit, name_of_unit = _unit(top, UNITS)
    present = [part for part in PARTS if any(run.power.watts[part].any() for run in modelled.values())]

    def draw(width: float) -> Figure:
        figure, axes_of = panels(len(shown), 1.9 if len(shown) < 3 else 1.3, width)
        for axes, (name, (_, color)) in zip(axes_of, shown.items(), strict=True):
            if name in modelled:
                _stack(axes, modelled[name], time, unit, present)
            if name in recorded:
                x, y = _curve(recorded[name], time.end)
                axes.step(x / time.unit, y / unit, where="post", color=COLORS[RECORDED], linewidth=1.1, label=RECORDED)
            if (solar := sun.get(name)) is not None:
                y = np.append(solar.values[:-1], solar.values[-2:-1]) / unit
                axes.step(solar.times / time.unit, y, where="post", color=INK, linewidth=0.9, label="solar panels")
            axes.set_ylim(0, 1.06 * top / unit)
            axes.yaxis.set_major_locator(MaxNLocator(4 if width > NARROW else 3))
            axes.set_ylabel(f"power ({name_of_unit})")
            time.apply(axes, label=axes is axes_of[-1])
            if len(shown) > 1:
                heading(axes, name, color)
        _legend(axes_of)
        return figure

    averaged = any(len(run.power.edges) > 2 * BINS for run in modelled.values())
    notes = dict.fromkeys(note for run in modelled.values() if (note := clock_note(run)))
    states = (
        "Power of the machine by the state of its nodes, modelled: cores that jobs hold (busy) and other cores (idle) "
        "of nodes that are on, and the nodes that boot, are being switched off, or are off."
    )
    caption = " ".join(
        [
            *([states] if modelled else ["Power of the machine."]),
            *([f"Green: what was recorded, averages over {BINS} bins."] if recorded else []),
            *(["Line: what the solar panels give."] if any(each is not None for each in sun.values()) else []),
            *([f"Averages over {BINS} bins."] if averaged else []),
            *([f"The first {len(shown)} of {known} runs."] if len(shown) < known else []),
            *(f"Note: {note}." for note in notes),
        ]
    ) + time.note(*shown)  # fmt: skip
    return Picture(draw, caption, "Power of the machine over time", data=lambda: _table(shown, time))


def _legend(axes_of: list[Axes]) -> None:
    """Draw the legend above the first panel, with what is in any of the panels."""
    first, known = axes_of[0], set(axes_of[0].get_legend_handles_labels()[1])
    for label in [label for axes in axes_of[1:] for label in axes.get_legend_handles_labels()[1]]:
        if label not in known:
            known.add(label)
            width, alpha = (5.0, 0.85) if label in PARTS else (1.1, 1.0)
            first.plot([], [], color=COLORS.get(label, INK), linewidth=width, alpha=alpha, label=label)
    above(first)
    if len(axes_of) > 1:  # its heading is below
        figure, legend = first.get_figure(root=True), first.get_legend()
        assert isinstance(figure, Figure) and legend is not None
        higher(figure, HEADING * scale())
        raised = 1.0 + HEADING * scale() / (figure.get_figheight() * first.get_position().height)
        legend.set_bbox_to_anchor((1.0, raised), transform=first.transAxes)


def _curve(steps: Steps, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Return instants from 0 to `end` (s), and the mean of the recorded power from each of them to the next, W."""
    # Samples of a file may be so near to each other that their digits do not suffice for the power between them.
    x = np.linspace(0.0, end, BINS + 1)
    y = steps.means(x)
    return x, np.append(y, y[-1])


def _stack(axes: Axes, run: MeasuredRun, time: TimeAxis, unit: float, parts: list[str]) -> None:
    """Draw the parts of the power of a run, one upon the other."""
    x, watts = _parts(run, time.end)
    axes.stackplot(
        x / time.unit,
        [watts[part] / unit for part in parts],
        labels=parts,
        colors=[COLORS[part] for part in parts],
        alpha=0.85,
        linewidth=0,
        step="post",
    )


def _parts(run: MeasuredRun, end: float) -> tuple[np.ndarray, dict[str, np.ndarray]]:
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
        if _is_modelled(run):
            x, watts = _parts(run, time.end)
            table = pd.DataFrame({"run": name, "time_s": x} | {f"{part}_w": watts[part] for part in PARTS})
            if (solar := _solar(run, time.end)) is not None:
                table["solar_w"] = solar.at(x)
            tables.append(table)
        if (steps := _recorded(run)) is not None:
            x, y = _curve(steps, time.end)
            tables.append(pd.DataFrame({"run": name, "time_s": x, f"{RECORDED}_w": y}))
    table = pd.concat(tables, ignore_index=True)
    return table if len(sides) > 1 else table.drop(columns="run")


def _energies(sides: Sides) -> Picture:
    """Return the energy of each run as a bar: by state, or as it was recorded."""
    kinds = (*PARTS, RECORDED)
    energy = {name: [_energy(run, kind) for kind in kinds] for name, (run, _) in sides.items()}
    unit, name_of_unit = _unit(max(map(sum, energy.values())), ENERGIES)

    def draw(width: float) -> Figure:
        figure, (axes,) = panels(1, 0.32 * len(energy) + 0.12, width)
        box = axes.get_position()
        names = [name if len(name) <= 16 else f"{name[:15]}…" for name in energy]
        left = 0.012 * max(map(len, names)) * (9.6 / width) if len(names) > 1 else 0.0
        axes.set_position((box.x0 + max(0.0, left - 0.06), box.y0, box.width - max(0.0, left - 0.06), box.height))
        before = np.zeros(len(energy))
        for number, part in enumerate(kinds):
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
        rows = [(name, *each) for name, each in energy.items()]
        return pd.DataFrame(rows, columns=["run", *(f"{kind}_j" for kind in kinds)])

    modelled = any(_is_modelled(run) for run, _ in sides.values())
    caption = "Energy from the first submission to the last end" + (", modelled by the state of the nodes" * modelled)
    only = " Green: recorded, of runs without a model." if any(each[-1] for each in energy.values()) else ""
    return Picture(draw, f"{caption}.{only}", "Energy of the runs", data=table)


def _energy(run: MeasuredRun, kind: str) -> float:
    """Return the modelled energy of a part; that recorded, if there is no model, J."""
    if _is_modelled(run):
        return energy_by_state(run, kind) if kind in PARTS else 0.0
    return energy_of(run, run.window) if kind == RECORDED else 0.0
