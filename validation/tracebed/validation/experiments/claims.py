"""Claims: what a paper prints, and the rules by which a figure of ours matches. A rule is fixed before the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tracebed.validation.experiments.parts import ExperimentPart, Where

WITHIN = 0.05
"""Largest accepted distance of a number: a share of the printed value, or for a change a difference of two shares."""
NEAR = 0.10
"""Distance up to which a number counts as near."""
ROUNDING = 1e-9


class Rule(StrEnum):
    """How a figure of ours matches a claim."""

    NUMBER = "number"
    """The distance is at most 5 %, or 5 points for a change, which must also have the printed sign."""
    SIGN = "sign"
    """The change has the sign of `value`."""
    ORDER = "order"
    """The figures of the points in `order` increase."""
    AT_MOST = "at-most"
    """The figure is not above `value`."""
    AT_LEAST = "at-least"
    """The figure is not below `value`."""


class Claim(ExperimentPart):
    """A figure, a change or an ordering that a paper prints."""

    element: Annotated[str, Field(max_length=80)] = ""
    """The printed place: `table 1`, `figure 7`, `section 3.2, wait`."""
    claim: str = ""
    """The words of the paper."""
    rule: Annotated[Rule, Field(strict=False)] = Rule.NUMBER
    figure: str
    value: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The printed value. With `relative_to`, the relative change: -0.25 for 25 % less. Absent for an order."""
    at: Where = Field(default_factory=dict)
    """Points that the figure describes."""
    take: Literal["mean", "least", "greatest"] = "mean"
    """How to combine the figures of several points, each a mean over seeds."""
    relative_to: Where | None = None
    """Points of the baseline. Each point is compared with the baseline of the same other keys, where there is one."""
    order: list[Where] = Field(default_factory=list)
    """Points whose figures increase, each in addition to `at`."""
    window: str | None = None
    """Name of the window; by default the first one counts, and the others are further rows."""
    assumption: str = ""
    """What was assumed in place of the defaults of the study. Such rows are shown and not counted."""
    fitted: bool = False
    """Whether a constant was fitted to this figure. Such a row is shown and not counted."""
    note: str = ""
    reason: str = ""
    """Why our figure differs. It is shown where the figure does not match."""
    experiment: str = ""
    """The study or command behind the reason."""

    @model_validator(mode="before")
    @classmethod
    def _order(cls, raw: Any) -> Any:
        return {"rule": "order", **raw} if isinstance(raw, dict) and raw.get("order") else raw

    @model_validator(mode="after")
    def _whole(self) -> Claim:
        if self.rule is Rule.ORDER:
            if len(self.order) < 2 or self.value is not None:
                raise ValueError("an order has two points or more in `order`, and no `value`")
        elif self.order:
            raise ValueError("`order` requires the rule `order`")
        elif self.value is None:
            raise ValueError(f"the rule `{self.rule}` requires a `value`")
        if self.rule is Rule.SIGN and (self.relative_to is None or not self.value):
            raise ValueError("the rule `sign` requires `relative_to` and a `value` other than 0")
        return self

    @property
    def is_change(self) -> bool:
        """Whether the value is a relative change."""
        return self.relative_to is not None

    @property
    def places(self) -> list[Where]:
        """What selects the points of each figure: one, or several for an order."""
        return [{**self.at, **where} for where in self.order] or [self.at]


def distance(printed: float, ours: float, *, is_change: bool) -> float:
    """Return ours / printed - 1, or ours - printed for a change. NaN if the printed value is 0 and no change."""
    if is_change:
        return ours - printed
    return ours / printed - 1.0 if printed else math.nan


def is_near(printed: float, ours: float, within: float, *, is_change: bool, relative: bool = False) -> bool:
    """Return whether the distance is at most `within`. A change must also have the printed sign.

    Args:
        relative: whether the distance of a change is a share of the printed change, unless that is 0.
    """
    if is_change and has_wrong_sign(printed, ours):
        return False
    if not is_change and not printed:
        return ours == 0.0
    scale = abs(printed) if relative and is_change and printed else 1.0
    return abs(distance(printed, ours, is_change=is_change)) <= (within + ROUNDING) * scale


def has_wrong_sign(printed: float, ours: float) -> bool:
    """Return whether a change has another sign than the printed one, which is not 0."""
    return printed != 0.0 and (ours == 0.0 or (printed > 0.0) != (ours > 0.0))


def matches(rule: Rule, printed: float | None, ours: Sequence[float], *, is_change: bool) -> bool | None:
    """Return whether our figures match, or None if one is missing.

    Args:
        printed: the printed value; None for an order.
        ours: our figure, or for an order the figures of its points.
        is_change: whether the value is a relative change.
    """
    if not ours or any(math.isnan(value) for value in ours):
        return None
    if rule is Rule.ORDER:
        return all(first < second for first, second in pairwise(ours))
    value = 0.0 if printed is None else printed
    if rule is Rule.SIGN:
        return not has_wrong_sign(value, ours[0])
    if rule is Rule.AT_MOST:
        return ours[0] <= value + ROUNDING * abs(value)
    if rule is Rule.AT_LEAST:
        return ours[0] >= value - ROUNDING * abs(value)
    return is_near(value, ours[0], WITHIN, is_change=is_change)
