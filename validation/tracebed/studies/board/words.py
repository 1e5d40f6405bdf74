"""Words of the page and the plot of the board."""

from __future__ import annotations

import math

from tracebed.studies.board.board import Score
from tracebed.studies.board.scores import Spread


def program_of(score: Score) -> str:
    """Return the program that made a prediction, as text; empty for a real run, or an output of an unnamed program."""
    if score.kind == "real" or score.program == "csv":
        return ""
    return score.program


def number(value: float | None) -> str:
    """Return a figure with three significant digits, and no exponent; a dash if unknown."""
    if value is None or math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 3)}f}"


def interval(found: Spread | None, *, signed: bool = False) -> str:
    """Return a mean with its interval as text; without one, the mean alone. An unsigned interval ends at 0."""
    if found is None:
        return "-"
    sign = "+" if signed and found.mean > 0 else ""
    if math.isnan(found.low):
        return sign + number(found.mean)
    low = found.low if signed else max(found.low, 0.0)
    return f"{sign}{number(found.mean)} [{number(low)}, {number(found.high)}]"


def share(value: float | None) -> str:
    """Return a share in percent as text; a dash if unknown."""
    return "-" if value is None else f"{100 * value:.0f} %"
