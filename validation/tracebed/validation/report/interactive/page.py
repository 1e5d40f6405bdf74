"""The scripts and the data of the interactive charts as parts of a page."""

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
"""Scripts of tracebed, in the order of their definitions."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Content security policy of a page: no requests, and no script other than that of `Charts`."""


@dataclass(frozen=True)
class Charts:
    """The parts of a page that make its figures interactive."""

    data: str
    """Content of the data block: base64."""
    script: Markup
    style: Markup

    @property
    def policy(self) -> str:
        """Content security policy that allows exactly this script."""
        digest = base64.b64encode(hashlib.sha256(self.script.encode()).digest()).decode()
        return f"{POLICY}; script-src 'sha256-{digest}'"


def charts(result: CaseResult) -> Charts:
    """Return the interactive charts of a case: of its typical pair of runs."""
    return Charts(data(result.pair, _about(result)), _script(), Markup(_read("uplot/uPlot.min.css")))


def _about(result: CaseResult) -> str:
    """Return which repetition the charts show, or an empty text for a single repetition."""
    if len(result.repetitions) == 1:
        return ""
    name = next(one.name for one in result.repetitions if one.run is result.pair.real)
    return f"real: {name}, one of {len(result.repetitions)} repetitions"


@cache
def _script() -> Markup:
    """Return the library with its license, and the scripts of tracebed as one function without globals."""
    license, library = _read("uplot/LICENSE"), _read("uplot/uPlot.iife.min.js")
    ours = "\n".join(map(_read, SCRIPTS))
    return Markup(f'/*! uPlot\n{license}*/\n(() => {{\n"use strict";\n{library}\n{ours}}})();')


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
