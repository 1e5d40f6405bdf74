"""The HTML table that notebooks show for a policy."""

from __future__ import annotations

from dataclasses import fields
from html import escape
from typing import Any


class ParameterTable:
    """Mixin for policies: a small HTML table of name, parameters and kind. A policy works without it, too."""

    def _repr_html_(self) -> str:
        policy: Any = self
        facts = {field.name: str(getattr(policy, field.name)) for field in fields(policy)}
        facts["malleable"] = "yes" if policy.malleable else "no"
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
        return f"<table><caption>Policy {escape(type(self).__name__)}</caption>{''.join(rows)}</table>"
