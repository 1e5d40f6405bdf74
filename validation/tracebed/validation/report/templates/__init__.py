"""Jinja templates of the report. Every value is escaped unless it is `Markup`."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from tracebed.ground.display import cell, time_text
from tracebed.validation.report.words import percent, percentage, reason_text, signed


def fill(template: str, /, **values: Any) -> Markup:
    """Render a template of this folder with `values`."""
    return Markup(_environment().get_template(f"{template}.html.j2").render(**values))


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = cell
    environment.filters["percent"] = percent
    environment.filters["percentage"] = percentage
    environment.filters["time"] = _time
    environment.filters["signed"] = signed
    environment.filters["reason"] = reason_text
    return environment


def _time(seconds: float) -> str:
    """Return a time in units of its own size, a dash if unknown: one unit for a table would make minutes 0.0139 d."""
    return time_text(seconds) if math.isfinite(seconds) else "-"
