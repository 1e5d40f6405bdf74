"""The scripts of a page, and the data of its interactive charts."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markupsafe import Markup

from tracebed.validation.report.interactive.data import data
from tracebed.validation.verdict.validation import CaseResult

FOLDER = Path(__file__).parent
SCRIPTS = (
    "columns.js",
    "time.js",
    "state.js",
    "facts.js",
    "panel.js",
    "gantt.js",
    "curves.js",
    "points.js",
    "gestures.js",
    "toolbar.js",
    "main.js",
)
"""Scripts of the charts, in the order of their definitions."""
ALWAYS = ("decode.js", "save.js", "tables.js")
"""Scripts of every page: figures can be saved, and tables sorted and filtered."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Content security policy of a page: no requests, and no script other than that of `Scripts`."""


@dataclass(frozen=True)
class Scripts:
    """The script of a page, with the data of its charts."""

    script: Markup
    style: str = ""
    data: str = ""
    """Content of the data block of the charts: base64; empty without charts."""

    @property
    def policy(self) -> str:
        """Content security policy that allows exactly this script."""
        digest = base64.b64encode(hashlib.sha256(self.script.encode()).digest()).decode()
        return f"{POLICY}; script-src 'sha256-{digest}'"


def scripts(charts_of: CaseResult | None = None) -> Scripts:
    """Return the scripts of a page; with the interactive charts of a case, of its typical pair of runs, if given."""
    if charts_of is None:
        return Scripts(_script(charts=False))
    style = Markup(_read("uplot/uPlot.min.css"))
    return Scripts(_script(charts=True), style, data(charts_of.pair, _about(charts_of)))


def _about(result: CaseResult) -> str:
    """Return which repetition the charts show, or an empty text for a single repetition."""
    if len(result.repetitions) == 1:
        return ""
    name = next(one.name for one in result.repetitions if one.run is result.pair.real)
    return f"real: {name}, one of {len(result.repetitions)} repetitions"


@cache
def _script(*, charts: bool) -> Markup:
    """Return the scripts of tracebed as one function without globals, with the library of charts and its license."""
    text = "\n".join(map(_read, ALWAYS))
    if not charts:
        return Markup(f'(() => {{\n"use strict";\n{text}}})();')
    license, library = _read("uplot/LICENSE"), _read("uplot/uPlot.iife.min.js")
    ours = "\n".join(map(_read, SCRIPTS))
    return Markup(f'/*! uPlot\n{license}*/\n(() => {{\n"use strict";\n{library}\n{text}\n{ours}}})();')


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
