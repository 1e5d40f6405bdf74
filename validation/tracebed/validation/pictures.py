"""Pictures for papers: one concept for all figures, their style and sizes, and their files: SVG, PNG, PDF, CSV."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from tracebed.converters.pictures import FONT as FONT
from tracebed.converters.pictures import check_name, metadata
from tracebed.converters.workload import FloatArray
from tracebed.ground.display import WIDTH
from tracebed.ground.files import replacing
from tracebed.ground.outputs import PICTURE
from tracebed.validation.report import style

COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222")
"""Paul Tol's bright scheme, safe for the color blind."""
HATCHES = ("", "////", "....", "xxxx")  # patterns of the further series, if there are more series than colors
LINES: tuple[Any, ...] = ("-", style.DASHED, (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
"""Styles of lines, so that lines differ in print without colors."""
MARKERS = "osD^vPX*"
COLUMN, PAGE = 3.5, WIDTH  # widths of a column and of a page of a paper with two columns, in
WIDTHS: Mapping[str, float] = {"column": COLUMN, "page": PAGE}
STYLE: dict[Any, Any] = {
    **style.STYLE,
    "font.size": FONT,
    "axes.titlesize": FONT,
    "figure.titlesize": FONT + 1,
    "figure.facecolor": style.PAPER,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # publishers refuse fonts of type 3
}
FORMATS = ("svg", "png", "pdf")
DPI = 300


@dataclass(frozen=True)
class SeriesStyle:
    """Color, line, marker and hatch of a series: the same in all figures of a page."""

    color: str
    line: Any
    marker: str
    hatch: str

    @classmethod
    def of(cls, number: int) -> SeriesStyle:
        """Return the style of the series with this number on its page, from 0."""
        again = number // len(COLORS)
        return cls(
            COLORS[number % len(COLORS)],
            LINES[(number + again) % len(LINES)],
            MARKERS[(number + again) % len(MARKERS)],
            HATCHES[again % len(HATCHES)],
        )


@dataclass(frozen=True)
class Picture:
    """A figure with a caption. Pages have it in two widths, for screens and for phones; papers in `WIDTHS`."""

    draw: Callable[[float], Figure]
    """Return the figure in the given width, inches."""
    caption: str = ""
    alt: str = ""
    """Alternative text for screen readers."""
    title: str = ""
    """Title below that of the section, for one of several contents."""
    chart: str = ""
    """Name of the interactive chart that replaces the figure: `gantt`, `utilization`, `queue`, `differences`,
    `scatter`; empty for a figure without such a chart."""
    about_figure: str = ""
    """Part of the caption that applies to the figure only, not to its interactive chart."""
    data: Callable[[], pd.DataFrame] | None = None
    """Return what the figure shows, a row per mark. By default it is read from the figure."""
    is_large: bool = False
    """Whether `data` has more values than a page offers, so that a page need not make it."""

    def figure(self, width: float = PAGE) -> Figure:
        """Return the figure for a paper.

        Args:
            width: inches.
        """
        with mpl.rc_context(STYLE):
            return self.draw(width)

    def frame(self) -> pd.DataFrame:
        """Return what the figure shows."""
        return drawn_in(self.figure()) if self.data is None else self.data()

    def save(self, path: Path | str, *, width: float = PAGE) -> Path:
        """Write the figure (.svg, .png, .pdf) or what it shows (.csv), and return the path.

        Args:
            path: the file; its suffix is the format.
            width: inches; `COLUMN` and `PAGE` are the widths of one and of two columns.

        Raises:
            InputError: the format is not supported, or the file exists and is not a picture of tracebed.
        """
        path = Path(path)
        if path.suffix.lower() == ".csv":
            return _write_csv(self.frame(), path)
        return _write(self.figure(width), path)


def save_all(pictures: Mapping[str, Picture], folder: Path) -> list[Path]:
    """Write each picture in both widths and all formats (NAME-column.svg, NAME-page.pdf), and its data (NAME.csv)."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, picture in pictures.items():
        for called, width in WIDTHS.items():
            written += _write_all(picture.figure(width), folder, f"{name}-{called}")
        written.append(picture.save(folder / f"{name}.csv"))
    return written


def save(figure: Figure, data: pd.DataFrame, folder: Path, stem: str) -> Path:
    """Write `stem`.svg, .png, .pdf and the shown data as .csv into `folder`, and return the path of the PNG file."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_all(figure, folder, stem)
    _write_csv(data, folder / f"{stem}.csv")
    return folder / f"{stem}.png"


def _write_all(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write a figure in all formats, laid out once: the layout takes longer than a format does."""
    first, *others = (folder / f"{stem}.{form}" for form in FORMATS)
    written = [_write(figure, first)]
    figure.set_layout_engine(None)
    return [*written, *(_write(figure, path) for path in others)]


def _write(figure: Figure, path: Path) -> Path:
    check_name(path)
    form = path.suffix[1:].lower()
    with PICTURE.file(path) as stream, mpl.rc_context(STYLE):
        figure.savefig(stream, format=form, dpi=DPI, metadata=metadata(form))
    return path


def _write_csv(data: pd.DataFrame, path: Path) -> Path:
    with replacing(path) as stream:
        stream.write(data.to_csv(index=False).encode())
    return path


def drawn_in(figure: Figure) -> pd.DataFrame:
    """Return points and bars of a figure: panel, series, x, y (axis units); x_end and y_end of bars and segments."""
    rows: list[tuple[Any, ...]] = []
    for axes in figure.axes:
        over = " over ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel())))
        panel = ": ".join(filter(None, (axes.get_title("left") or axes.get_title(), over)))
        for series, points in _artists(axes):
            rows += [(panel, series, *point, *(np.nan,) * (4 - len(point))) for point in points]
    return pd.DataFrame(rows, columns=["panel", "series", "x", "y", "x_end", "y_end"])


def _artists(axes: Axes) -> Iterator[tuple[str, FloatArray]]:
    """Yield label and points, shape (points, 2), or ends, shape (bars, 4), of each artist of a panel."""
    for line in axes.lines:
        yield _label_of(line), np.column_stack([np.asarray(line.get_xdata()), np.asarray(line.get_ydata())])
    labels = {id(bar): str(each.get_label()) for each in axes.containers for bar in each.get_children()}
    for patch in axes.patches:
        if isinstance(patch, Rectangle):
            x, y = patch.get_xy()
            label = labels.get(id(patch), "")
            ends = np.array([[x, y, x + patch.get_width(), y + patch.get_height()]])
            yield "" if label.startswith("_") else label, ends
    for marks in axes.collections:
        if isinstance(marks, PathCollection):
            yield _label_of(marks), np.asarray(marks.get_offsets(), dtype=np.float64)
        else:
            boxes = [path.get_extents().get_points().ravel() for path in marks.get_paths() if len(path)]
            yield _label_of(marks), np.array(boxes).reshape(-1, 4)


def _label_of(artist: Any) -> str:
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def panels(
    count: int, title: str, *, height: float = 2.0, wide: bool = False, width: float | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure of `count` panels of `height` inches with their labels, and the panels."""
    # A single panel is as wide as a column, or as a page if `wide`. Several are side by side, two in a row of a page,
    # or below each other if `wide` or if the figure is as wide as a column.
    width = width or (COLUMN if count == 1 and not wide else PAGE)
    columns = 1 if wide or count == 1 or width == COLUMN else 2
    rows = -(-count // columns)
    figure = Figure(figsize=(width, height * rows + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[count:]:
        axes.remove()
    figure.suptitle(wrapped(title, width))
    return figure, list(grid[:count])


def legend(figure: Figure, axes_of: Iterable[Axes], more: Mapping[str, Artist] | None = None) -> None:
    """Draw the legend of all panels, and `more` entries, below them, and make the figure higher by its height."""
    # A label of several panels is drawn once, bars first.
    labeled = [pair for axes in axes_of for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    handles = {label: handle for handle, label in sorted(labeled, key=lambda pair: isinstance(pair[0], Line2D))}
    width = figure.get_figwidth()
    entries: dict[str, Any] = {wrapped(label, width - 0.6): each for label, each in {**handles, **(more or {})}.items()}
    if not entries:
        return
    columns = columns_of([max(label.split("\n"), key=len) for label in entries], width)
    lines = sum(label.count("\n") + 1 for label in entries) / columns
    figure.set_figheight(figure.get_figheight() + np.ceil(lines) * 1.6 * FONT / 72)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns, frameon=False)


def wrapped(text: str, width: float) -> str:
    """Return a text in lines that fit into `width` inches."""
    return textwrap.fill(text, max(16, characters(width, FONT + 1)))


def columns_of(labels: list[str], width: float) -> int:
    """Return the number of columns of a legend that fits into `width` inches."""
    room = characters(width)
    for count in range(len(labels), 1, -1):
        each = np.array_split(np.array(labels, dtype=object), count)  # as matplotlib divides them
        if sum(max(map(len, column)) + 10 for column in each) <= room:  # 10: the symbol and the gap
            return count
    return 1


def characters(width: float, font: float = FONT) -> int:
    """Return the number of characters of a usual text that fits into `width` inches."""
    return int(width * 72 / (0.54 * font))
