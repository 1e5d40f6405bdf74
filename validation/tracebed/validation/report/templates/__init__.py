"""Jinja templates of the report. Every value is escaped unless it is `Markup`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from tracebed.display import cell
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
    environment.filters["signed"] = signed
    environment.filters["reason"] = reason_text
    return environment
