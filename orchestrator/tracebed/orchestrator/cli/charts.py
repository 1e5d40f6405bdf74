"""Charts in text: bars, columns, and durations in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

BLOCKS = " ▏▎▍▌▋▊▉█"
COLUMNS = " ▁▂▃▄▅▆▇█"


def spell(seconds: float | None) -> str:
    """Return a duration in the unit that suits it: 3.2 s, 12 min, 2.5 h, 152.9 d."""
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


def columns(title: str, counts: Sequence[int], height: int = 5, width: int = 2) -> list[str]:
    """Return a column chart as lines: `height` of columns, then the hours under every third."""
    top = max(counts, default=0) or 1
    levels = [max(round(count / top * height * 8), int(count > 0)) for count in counts]
    lines = [
        "".join(COLUMNS[min(max(level - 8 * row, 0), 8)] * width + " " for level in levels).rstrip()
        for row in reversed(range(height))
    ]
    axis = "".join(f"{hour:<{3 * (width + 1)}}" for hour in range(0, len(counts), 3))
    return [f"{title} (highest {top:,})", *lines, axis.rstrip()]


def beside(left: list[str], right: list[str], gap: str = "    ") -> list[str]:
    """Return two blocks of lines side by side."""
    blank = " " * len(left[0])
    rows = max(len(left), len(right))
    left, right = left + [blank] * (rows - len(left)), right + [""] * (rows - len(right))
    return [f"{a}{gap}{b}".rstrip() for a, b in zip(left, right, strict=True)]
