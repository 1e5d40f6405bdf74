"""Pictures for papers: their style and size, and their files: PNG, SVG, and a CSV of what is drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tracebed.files import replacing

COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222")
"""Paul Tol's bright scheme, safe for the color blind."""
HATCHES = ("", "////", "....", "xxxx")
"""Patterns of the further series, if there are more series than colors."""
COLUMN, PAGE = 3.5, 7.16
"""Widths of a column and of a page of a paper, in."""
FONT = 7.0
"""Size of the font, points."""
STYLE: dict[Any, Any] = {
    "font.size": FONT,
    "axes.titlesize": FONT,
    "figure.titlesize": FONT + 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "text.parse_math": False,  # a name in a user's file may contain $
    "svg.fonttype": "none",
    "svg.hashsalt": "tracebed",  # the same picture is the same file
}
DPI = 250


def save(figure: Figure, data: pd.DataFrame, folder: Path, stem: str) -> Path:
    """Write `stem`.png, .svg and .csv into `folder`, and return the path of the PNG file.

    Args:
        figure: the picture.
        data: what the picture shows, a row per bar, mark, cell or point of a line.
        folder: the folder; it is made if it does not exist.
        stem: name of the files without suffix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, about in (("png", None), ("svg", {"Date": None})):
        with replacing(folder / f"{stem}.{suffix}") as stream, mpl.rc_context(STYLE):
            figure.savefig(stream, format=suffix, dpi=DPI, metadata=about)
    with replacing(folder / f"{stem}.csv") as stream:
        stream.write(data.to_csv(index=False).encode())
    return folder / f"{stem}.png"


def panels(count: int, title: str, *, height: float = 2.0, wide: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure of `count` panels, and the panels.

    A single panel is as wide as a column, or as a page if `wide`. Several are side by side, two in a row of a page,
    or below each other if `wide`.

    Args:
        count: number of panels.
        title: title of the figure.
        height: height of a panel with its labels, in.
        wide: whether a panel needs the width of a page.
    """
    columns = 1 if wide or count == 1 else 2
    rows = -(-count // columns)
    width = COLUMN if count == 1 and not wide else PAGE
    figure = Figure(figsize=(width, height * rows + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[count:]:
        axes.remove()
    figure.suptitle(wrapped(title, width))
    return figure, list(grid[:count])


def legend(figure: Figure, axes_of: Iterable[Axes], about: str = "") -> None:
    """Draw the legend of all panels below them, and make the figure higher by its height.

    Args:
        figure: the figure.
        axes_of: the panels. A label of several is drawn once, bars first.
        about: title of the legend.
    """
    found = [pair for axes in axes_of for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    handles = {label: handle for handle, label in sorted(found, key=lambda pair: isinstance(pair[0], Line2D))}
    width = figure.get_figwidth()
    title, columns = wrapped(about, width), columns_of(list(handles), width)
    lines = -(-len(handles) // columns) + (title.count("\n") + 1 if title else 0)
    figure.set_figheight(figure.get_figheight() + lines * 1.6 * FONT / 72)
    labels = list(handles)
    figure.legend(
        list(handles.values()), labels, loc="outside lower center", ncols=columns, frameon=False, title=title or None
    )


def wrapped(text: str, width: float) -> str:
    """Return a text in lines that fit into `width` inches."""
    return textwrap.fill(text, max(16, characters(width, FONT + 1)))


def columns_of(labels: list[str], width: float) -> int:
    """Return the number of columns of a legend that fits into `width` inches."""
    longest = max(map(len, labels), default=1) + 8  # its symbol
    return max(1, min(len(labels), characters(width) // longest))


def characters(width: float, font: float = FONT) -> int:
    """Return the number of characters of a usual text that fits into `width` inches."""
    return int(width * 72 / (0.54 * font))
