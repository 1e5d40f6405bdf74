"""Tables for papers in LaTeX, with the rules of the package booktabs, beside those in CSV."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from tracebed.ground.display import cell

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def escaped(text: str) -> str:
    """Return a text whose special characters LaTeX prints."""
    return re.sub("|".join(map(re.escape, _SPECIAL)), lambda found: _SPECIAL[found[0]], text)


def latex(heads: Sequence[str], rows: Sequence[Sequence[Any]], caption: str, *, keys: int = 1) -> str:
    r"""Return a table as a `table` environment: `\usepackage{booktabs}` in the paper, then `\input{FILE}`.

    Args:
        heads: heads of the columns, with units.
        rows: values; numbers are shortened, None and NaN are a dash.
        caption: what the table shows: the number of runs, the kind of the intervals, and the seeds.
        keys: number of first columns that are set left; the others are set right.
    """
    shown = [
        [escaped(value if isinstance(value, str) else "-" if pd.isna(value) else cell(value)) for value in row]
        for row in [heads, *rows]
    ]
    head, *lines = [" & ".join(row) + r" \\" for row in shown]
    columns = "l" * keys + "r" * (len(heads) - keys)
    parts = ["% a table of tracebed", r"\begin{table}", r"\centering", rf"\caption{{{escaped(caption)}}}"]
    parts += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *lines, r"\bottomrule"]
    return "\n".join([*parts, r"\end{tabular}", r"\end{table}", ""])
