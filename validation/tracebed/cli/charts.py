"""Text charts (bars, columns, areas) and durations as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

BLOCKS = " ▏▎▍▌▋▊▉█"
COLUMNS = " ▁▂▃▄▅▆▇█"


def duration_text(seconds: float | None) -> str:
    """Return a duration in s, min, h or d: 3.2 s, 12 min, 2.5 h, 152.9 d."""
    if seconds is None or math.isnan(seconds):
        return "not known"
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.3g} s"


def bars(title: str, counts: Mapping[str, int], width: int = 24) -> list[str]:
    """Return a bar chart as lines of equal length: label, bar, share."""
    total, top = sum(counts.values()) or 1, max(counts.values(), default=0) or 1
    label = max(map(len, counts), default=0)
    lines = [
        f"{name:>{label}} {_bar(count / top, width)} {count / total:6.1%} {count:>9,}" for name, count in counts.items()
    ]
    longest = max(map(len, [title, *lines]))
    return [f"{line:{longest}}" for line in [title, *lines]]


def _bar(share: float, width: int) -> str:
    eighths = max(round(share * width * 8), int(share > 0))
    return f"{'█' * (eighths // 8) + BLOCKS[eighths % 8].strip():{width}}"


def columns(title: str, counts: Mapping[str, int], *, height: int = 5, width: int = 2, every: int = 1) -> list[str]:
    """Return a column chart as `height` lines and an axis that names every `every`-th column."""
    top = max(counts.values(), default=0) or 1
    levels = [max(round(count / top * height * 8), int(count > 0)) for count in counts.values()]
    lines = [
        "".join(COLUMNS[min(max(level - 8 * row, 0), 8)] * width + " " for level in levels).rstrip()
        for row in reversed(range(height))
    ]
    axis = "".join(f"{name:<{every * (width + 1)}}" for name in list(counts)[::every])
    lines = [f"{title} (highest {top:,})", *lines, axis.rstrip()]
    longest = max(map(len, lines))
    return [f"{line:{longest}}" for line in lines]


def area(
    title: str,
    mean: Sequence[float],
    highest: Sequence[float],
    *,
    limit: float | None,
    ends: tuple[str, str],
    top: float | None = None,
    width: int = 64,
    height: int = 8,
) -> list[str]:
    """Return an area chart as lines: solid up to the mean, shaded up to the maximum, with a line at the limit.

    Args:
        title: title of the chart.
        mean: mean of each bin; bins have equal width.
        highest: maximum of each bin.
        limit: value at which a line is drawn; None draws no line.
        ends: labels under the first and the last bin.
        top: maximum of all charts that share this scale.
        width: width of the chart in characters.
        height: largest number of lines, without the line of the limit.
    """
    top = max(top or 0.0, *highest, limit or 0.0) or 1.0
    below = height if limit is None else max(1, int(height * limit / top))
    size = (limit or top) / below  # the height of one line of text; the limit is a multiple of it
    rows = max(below, math.ceil(top / size - 1e-9))
    count = min(width, len(mean))
    cells = [(i * len(mean) // count, (i + 1) * len(mean) // count) for i in range(count)]
    means = [sum(mean[a:b]) / (b - a) for a, b in cells]
    peaks = [max(highest[a:b]) for a, b in cells]
    label = max(len(f"{value:,.0f}") for value in (top, limit or 0.0))
    repeat = width // count
    lines = []
    for row in reversed(range(rows)):
        text = "".join(_cell(m / size - row, p / size - row) * repeat for m, p in zip(means, peaks, strict=True))
        name = f"{top:,.0f}" if row == rows - 1 and top != limit else ""
        lines.append(f"{name:>{label}} {text}".rstrip())
        if limit is not None and row == below:
            lines.append(_limit_line(limit, label, means, peaks, repeat))
    if limit is not None and rows == below:
        lines.insert(0, _limit_line(limit, label, means, peaks, repeat))
    axis = f"{ends[0]}{ends[1]:>{max(count * repeat - len(ends[0]), len(ends[1]) + 1)}}"
    return [title, *lines, f"{'':{label}} {axis}"]


def _cell(mean: float, highest: float) -> str:
    """Return the character of a cell, given the mean and the maximum relative to the cell (0: bottom, 1: top)."""
    if mean > 0.0:
        return COLUMNS[min(max(round(8 * mean), 1), 8)]
    return "░" if highest > 1e-9 else " "


def _limit_line(limit: float, label: int, means: Sequence[float], peaks: Sequence[float], repeat: int) -> str:
    marks = ("█" if m > limit else "░" if p > limit else "─" for m, p in zip(means, peaks, strict=True))
    return f"{limit:>{label},.0f} " + "".join(mark * repeat for mark in marks)


def side_by_side(left: list[str], right: list[str], gap: str = "    ") -> list[str]:
    """Return two blocks of lines side by side."""
    blank = " " * len(left[0])
    rows = max(len(left), len(right))
    left, right = left + [blank] * (rows - len(left)), right + [""] * (rows - len(right))
    return [f"{a}{gap}{b}".rstrip() for a, b in zip(left, right, strict=True)]
