"""The HTML table that notebooks show for a policy."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tracebed.ground.display import facts_html


class ParameterTable:
    """Mixin for policies: a small HTML table of name, parameters and kind. A policy works without it, too."""

    def _repr_html_(self) -> str:
        policy: Any = self
        facts = {field.name: str(getattr(policy, field.name)) for field in fields(policy)}
        facts["malleable"] = "yes" if policy.malleable else "no"
        return facts_html(f"Policy {type(self).__name__}", facts)
