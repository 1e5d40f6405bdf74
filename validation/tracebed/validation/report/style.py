"""The style of all pictures: colors, sizes, and SVG without external references.

The colors are from Paul Tol's color-blind safe schemes. In a page, text and lines have the colors of its CSS variables
(`--ink`, `--soft`, ...), so that one picture is readable in light and dark mode. Elsewhere, text and lines are dark.
"""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, SOFT, PAPER = "#1d2126", "#5b636d", "#ffffff"
REAL, PREDICTED, ACCURATE = "#004488", "#bb5566", "#117733"
JOBS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#44aa99", "#999933")
"""Colors of jobs: middle tones with contrast to white and to black."""
VARIABLES = {INK: "ink", SOFT: "soft", PAPER: "paper", REAL: "real", PREDICTED: "predicted", ACCURATE: "accurate"}
"""Color -> name of the CSS variable by which a page can override the color."""

WIDE, NARROW = 9.6, 4.6
"""Widths of a picture in a page, inches: for a screen, and for a phone. Their text has 7 points if they are scaled to
two columns, or to one column, of a paper."""
DASHED: Any = (0, (4, 3))
MARKS = 3_000  # number of marks above which a collection is rasterized in the SVG
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tracebed",
    "text.parse_math": False,  # a name in a user's file may contain $
    "text.color": INK,
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans", "sans-serif"],
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.unicode_minus": True,
}


def panels(count: int, height: float, width: float, *, gap: float = 0.35) -> tuple[Figure, list[Axes]]:
    """Return panels one below the other, with the margins of all pictures: time axes of equal widths are aligned."""
    # Heights and margins, inches, are those for a page, and shrink with the text.
    left, right, top, bottom = (scale() * each for each in (0.85 if width > NARROW else 0.62, 0.25, 0.3, 0.5))
    height, gap = scale() * height, scale() * gap
    total = top + bottom + count * height + (count - 1) * gap
    figure = Figure(figsize=(width, total))
    share = (width - left - right) / width
    axes = [
        figure.add_axes((left / width, 1 - (top + (n + 1) * height + n * gap) / total, share, height / total))
        for n in range(count)
    ]
    return figure, axes


def beside(height: float, width: float, *, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure of two panels (sizes in inches): side by side, or lower ones below each other on phones."""
    # With one y axis, only the left one of two panels side by side shows its labels.
    if width <= NARROW:
        return panels(2, 0.8 * height, width, gap=0.75)
    figure, (left,) = panels(1, height, width)
    box = left.get_position()
    share = 0.475 if sharey else 0.45
    left.set_position((box.x0, box.y0, box.width * share, box.height))
    place = (box.x0 + box.width * (1 - share), box.y0, box.width * share, box.height)
    right = figure.add_axes(place, sharey=left if sharey else None)
    right.tick_params(labelleft=not sharey)
    return figure, [left, right]


def scale() -> float:
    """Return the factor of all lengths other than widths: 1 in pages; smaller in papers, as their text is."""
    return float(mpl.rcParams["font.size"]) / float(STYLE["font.size"])


def small() -> float:
    """Return the size of the text of marks and numbers in a panel, points: one less than that of other text."""
    return float(mpl.rcParams["font.size"]) - 1.0


def heading(axes: Axes, text: str, color: str) -> None:
    """Set the title of a panel at its upper left."""
    axes.set_title(text, loc="left", fontsize="medium", fontweight="bold", color=color, pad=4)


def above(axes: Axes) -> None:
    """Draw the legend above a panel, in as many rows as its width needs, and make the figure higher by more rows."""
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    _, labels = axes.get_legend_handles_labels()
    size = float(mpl.rcParams["font.size"])
    each = 0.6 * size * (max(map(len, labels), default=1) + 6) / 72
    columns = max(1, min(len(labels), int(axes.get_position().width * figure.get_figwidth() / each)))
    rows = -(-len(labels) // columns)
    if rows > 1:
        higher(figure, 1.75 * size / 72 * (rows - 1))
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=columns, frameon=False, borderaxespad=0.1)


def higher(figure: Figure, more: float) -> None:
    """Make a figure higher by `more` inches at its top, and leave its panels where they are."""
    height = figure.get_figheight()
    figure.set_figheight(height + more)
    for axes in figure.axes:
        box = axes.get_position()
        share = height / (height + more)
        axes.set_position((box.x0, box.y0 * share, box.width, box.height * share))


def svg(figure: Figure, name: str) -> str:
    """Return the figure as an <svg> element for inlining in HTML; `name`, unique in the page, begins its ids."""
    # The URL of an artist becomes its tooltip (`<title>`), because a self-contained page has no links.
    file = io.StringIO()
    figure.savefig(file, format="svg", dpi=200, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text, count=2)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, count=1, flags=re.DOTALL)  # applies to the whole page
    attributes = 'aria-hidden="true" stroke-linejoin="round" stroke-linecap="butt"'
    text = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" {attributes}>', text, count=1)
    text = re.sub(r'<a xlink:href="([^"]*)"[^>]*>\s*<(\w+)([^>]*?)\s*/>\s*</a>', r"<\2\3><title>\1</title></\2>", text)
    text = re.sub(r"</?a\b[^>]*>", "", text)
    text = re.sub(r"(fill|stroke): (#\w{6})\b", lambda found: f"{found[1]}: {_variable(found[2])}", text)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    text = re.sub(r'\sid="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)


def _variable(color: str) -> str:
    return f"var(--{VARIABLES[color]}, {color})" if color in VARIABLES else color
