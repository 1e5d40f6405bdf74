"""Tables for papers in LaTeX, with the rules of the package booktabs, beside those in CSV."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tracebed.ground.display import cell
from tracebed.ground.files import replacing
from tracebed.ground.outputs import LATEX

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "\xa0": "~",
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}"},
    **{character: f"\\{character}" for character in "&%$#_{}"},
}

MOST_ROWS = 200
"""Rows of the longest table beside a CSV file."""
LINE = 12
"""Characters of a line in a cell."""
MOST_COLUMNS = 4
"""Columns of the widest table in one column of a paper; a wider one is set over both."""


def escaped(text: str) -> str:
    """Return a text whose special characters LaTeX prints, with the signs of its negative numbers as minus signs."""
    shown = "{}" * text.startswith(("[", "*"))  # else they are an argument of a line break before them
    shown += re.sub("|".join(map(re.escape, _SPECIAL)), lambda found: _SPECIAL[found[0]], text)
    return re.sub(r"(?<![\w.-])-(?=\.?\d)", "$-$", shown)


def with_half_width(value: float, half: float) -> str:
    """Return a mean with the half-width of its interval, both rounded to two digits of this: `33,700 ± 1,200`."""
    if not half > 0:  # no noise, or unknown
        return f"{cell(value)} ± 0" if half == 0 else cell(value)
    decimals = 1 - math.floor(math.log10(half))
    return " ± ".join(f"{round(each, decimals):,.{max(decimals, 0)}f}" for each in (value, half))


@dataclass(frozen=True)
class PaperTable:
    """A table for a paper, with units in the heads and n in a column or in the caption."""

    heads: Sequence[str]
    """Heads of the columns, with units."""
    rows: Sequence[Sequence[Any]]
    """Values; numbers have four significant digits, None and NaN are a dash."""
    caption: str
    """What the table shows: the number of runs, the kind of the intervals, and the seeds."""
    keys: int = 1
    """Number of first columns that are set left; the others are set right."""

    @property
    def latex(self) -> str:
        r"""The table as a `table` environment: `\usepackage{booktabs}` in the paper, then `\input{FILE}`."""
        texts = [
            [value if isinstance(value, str) else "-" if pd.isna(value) else cell(value) for value in row]
            for row in [self.heads, *self.rows]
        ]
        wide = len(self.heads) > MOST_COLUMNS
        shown = [[_stacked(text, index >= self.keys) for index, text in enumerate(row)] for row in texts]
        head, *lines = [" & ".join(row) + r" \\" for row in shown]
        columns = "l" * self.keys + "r" * (len(self.heads) - self.keys)
        place = "table*" if wide else "table"
        parts = ["% a table of tracebed", rf"\begin{{{place}}}", r"\centering", r"\footnotesize"]
        parts += [r"\setlength{\tabcolsep}{3pt}"]
        parts += [rf"\caption{{{escaped(self.caption)}}}"]
        parts += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *lines, r"\bottomrule"]
        return "\n".join([*parts, r"\end{tabular}", rf"\end{{{place}}}", ""])


def _stacked(text: str, right: bool) -> str:
    """Return a text of a table in lines of about `LINE` characters, on the left of twice as many, as LaTeX."""
    wrapper = textwrap.TextWrapper(LINE if right else 2 * LINE, break_long_words=False, break_on_hyphens=False)
    lines = [escaped(line) for line in wrapper.wrap(text.replace("± ", "±\xa0"))]
    if len(lines) < 2:
        return "".join(lines)
    return rf"\begin{{tabular}}[t]{{@{{}}{'r' if right else 'l'}@{{}}}}" + r"\\".join(lines) + r"\end{tabular}"


def write_latex(path: Path, *tables: PaperTable) -> None:
    """Write tables to one file. Raises InputError if the file exists and is no such table."""
    with LATEX.file(path) as stream:
        stream.write("".join(each.latex for each in tables).encode())


def write_csv(data: pd.DataFrame, path: Path, *tables: PaperTable) -> None:
    """Write `data` as CSV, and beside it, as .tex, the `tables` that a paper shows of it, unless they are too long.

    Without rows, earlier files are removed.
    """
    if len(data):
        with replacing(path) as stream:
            data.to_csv(stream, index=False)
    else:
        path.unlink(missing_ok=True)
    beside = path.with_suffix(".tex")
    if 0 < sum(len(each.rows) for each in tables) <= MOST_ROWS:
        write_latex(beside, *tables)
    elif LATEX.matches(beside):  # of other rows
        beside.unlink()
