"""How values are shown to people: on the console, in reports and in plots."""

from __future__ import annotations

from typing import Any


def cell(value: Any) -> str:
    """Return a value as tables show it: four significant digits, thousands separated, a dash if missing."""
    if value is None or (isinstance(value, float) and value != value):
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if 1000 <= abs(value) < 1e15 or isinstance(value, int):
        return f"{value:,.0f}"
    return f"{value:.4g}"
