"""Small pictures for notebooks, as SVG in the color of the surrounding text: an interval, and a curve."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def interval_svg(low: float, middle: float, high: float, reach: float, *, marks: tuple[float, ...] = ()) -> str:
    """Return an interval with its middle on an axis from -reach to reach; empty if the middle is unknown."""
    # Values beyond the axis are drawn at its end; NaN: the ends are unknown.
    if math.isnan(middle) or not reach > 0:
        return ""

    def at(value: float) -> float:
        return round(80 + 76 * min(max(value / reach, -1.0), 1.0), 1)

    lines = [f'<path d="M{at(mark)} 1v14" stroke-dasharray="2 2" opacity=".6"/>' for mark in marks]
    if not math.isnan(low) and not math.isnan(high):
        lines.append(f'<path d="M{at(low)} 8H{at(high)}" stroke-width="3" opacity=".6"/>')
    style = 'width="160" height="16" stroke="currentColor" fill="currentColor"'
    dot = f'<circle cx="{at(middle)}" cy="8" r="3.5"/>'
    return f'<svg {style}><path d="M80 1v14"/>{"".join(lines)}{dot}</svg>'


def curve_svg(values: npt.NDArray[np.float64], limit: float, label: str) -> str:
    """Return a curve above 0 (at least two equidistant values) as an area, with a dashed line at a limit."""
    top = max(float(values.max()), limit)
    heights = 60 - 56 * values / top
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(np.linspace(0, 440, len(values)), heights, strict=True))
    line = f'<path d="M0 {60 - 56 * limit / top:.1f}H440" stroke="currentColor" stroke-dasharray="4 3"/>'
    area = f'<polygon points="0,60 {points} 440,60" fill="currentColor" opacity=".35"/>'
    picture = f'<svg width="440" height="60">{area}{line}</svg>'
    return f'<figure style="margin: 0">{picture}<figcaption>{label}</figcaption></figure>'
