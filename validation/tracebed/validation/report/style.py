"""The look of all pictures: colors, sizes, and SVG text without a reference to anything outside.

Colors are of Paul Tol's color-blind safe schemes. Inline in a page, ink and lines follow the page's CSS variables
(`--ink`, `--soft`, ...), so that one picture is readable on light and dark paper; elsewhere they are dark ink.
"""

from __future__ import annotations

import io
import re
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, SOFT, PAPER = "#1d2126", "#5b636d", "#ffffff"
REAL, PREDICTED = "#004488", "#bb5566"
JOBS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#44aa99", "#999933")
"""Colors of jobs: middle tones, which stand out from white and from black."""
VARIABLES = {INK: "ink", SOFT: "soft", PAPER: "paper", REAL: "real", PREDICTED: "predicted"}
"""Colors that a page may replace by CSS variables of these names."""

WIDE, NARROW = 11.2, 4.6
"""Widths of a picture in inches: on a screen, and on a phone of 375 px with text of the same size."""
DASHED: Any = (0, (4, 3))
MARKS = 3_000
"""Marks above which a collection becomes pixels inside the SVG."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tracebed",
    "text.parse_math": False,  # names come from users' files
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
    """Return a figure of `count` panels below each other with the margins that all pictures share.

    Args:
        count: number of panels.
        height: of each panel, inches.
        width: of the figure, inches; equal widths give time axes that align from picture to picture.
        gap: between panels, inches.
    """
    left, right, top, bottom = (0.85 if width > NARROW else 0.62), 0.25, 0.3, 0.5
    total = top + bottom + count * height + (count - 1) * gap
    figure = Figure(figsize=(width, total))
    share = (width - left - right) / width
    axes = [
        figure.add_axes((left / width, 1 - (top + (n + 1) * height + n * gap) / total, share, height / total))
        for n in range(count)
    ]
    return figure, axes


def heading(axes: Axes, text: str, color: str) -> None:
    """Write a panel's title at its upper left."""
    axes.set_title(text, loc="left", fontsize=9.5, fontweight="bold", color=color, pad=4)


def svg(figure: Figure, name: str) -> str:
    """Return the figure as an <svg> element for inlining in HTML: no prolog, no metadata, no links.

    The URL of an artist becomes its tooltip (`<title>`), since a page that needs nothing else links to nothing.

    Args:
        figure: the figure.
        name: unique in the page; a prefix of the ids in the element.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", dpi=200, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text, count=2)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, count=1, flags=re.DOTALL)  # of all elements of the page
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
