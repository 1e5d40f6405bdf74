"""Formatting of values for the console, reports, plots and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

WIDTH = 7.16
"""Width of a picture, two columns of a paper, inches."""
LEAST_PERCENT = 1e-4
"""Smallest change that is printed in percent; smaller ones are 0."""


def cell(value: Any) -> str:
    """Return a value as a table cell: four significant digits, thousands separated, a dash if missing."""
    if value is None or (isinstance(value, float) and value != value):
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if 1000 <= abs(value) < 1e15 or isinstance(value, int):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def time_text(seconds: float) -> str:
    """Return a duration in its two largest units: `0.5 s`, `12 s`, `1 min 12 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    for unit, smaller, name, other in ((86_400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if seconds >= unit:
            count, rest = divmod(int(seconds), unit)
            return f"{count:,} {name} {rest // smaller} {other}" if rest // smaller else f"{count:,} {name}"
    return f"{int(seconds)} s"


def effect(change: float, low: float, high: float, base: float) -> str:
    """Return a difference as text, in percent of the base unless the base is 0: `-12 % (-15 to -9)`, or `equal`."""
    values = (change, low, high)
    if low == high == 0.0:
        return "equal"
    middle, low_text, high_text = (
        map(cell, values) if not base else (_signed_percent(value / abs(base)) for value in values)
    )
    return f"{middle}{' %' if base else ''} ({low_text} to {high_text})"


def _signed_percent(share: float) -> str:
    percent = 100 * share
    return signed(percent if abs(percent) >= LEAST_PERCENT else 0.0)


def signed(value: float, digits: int = 3) -> str:
    """Return a number with its sign and some significant digits, and no exponent if large: `-12.3`, `+1,344`."""
    return f"{value:+,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:+.{digits}g}"


def listed(names: Sequence[str], most: int) -> str:
    """Return names as text, and how many there are beyond the first `most`: `a, b and 3 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 job`, `1,200 jobs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def facts_html(title: str, facts: Mapping[str, str]) -> str:
    """Return facts as a small HTML table, for notebooks."""
    left = "style='text-align: left'"
    rows = (f"<tr><th {left}>{escape(key)}</th><td {left}>{escape(fact)}</td></tr>" for key, fact in facts.items())
    return f"<table><caption><b>{escape(title)}</b></caption>{''.join(rows)}</table>"


def rows_html(columns: Iterable[str], rows: Iterable[Sequence[str]], pictures: Sequence[str] = ()) -> str:
    """Return rows as an HTML table, for notebooks; `pictures` has an SVG image for the last column of each row."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = ["".join(f"<td>{escape(text)}</td>" for text in row) for row in rows]
    if pictures:
        body = [f"{cells}<td>{picture}</td>" for cells, picture in zip(body, pictures, strict=True)]
    lines = "".join(f"<tr>{cells}</tr>\n" for cells in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{lines}</tbody></table>"


def json_values(value: Any) -> Any:
    """Return a value for JSON: NaN and infinity, which JSON cannot express, become null; numpy scalars, numbers."""
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
