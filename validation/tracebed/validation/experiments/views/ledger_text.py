"""How many rows of ledgers match, and the figures of a row as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracebed.ground.display import cell
from tracebed.validation.experiments.claims import NEAR, WITHIN, Rule, is_near
from tracebed.validation.experiments.views.ledger import Row


@dataclass(frozen=True)
class Counts:
    """How many of the rows that count match. Rows that were not computed are counted apart."""

    numbers: int
    numbers_close: int
    """Within 10 % of the printed value; a change of the printed sign within 10 % of the printed change."""
    numbers_near: int
    """Within 10 %, or 10 points for a change of the printed sign."""
    numbers_very_close: int
    """Within 5 % of the printed value; a change of the printed sign within 5 % of the printed change."""
    numbers_matching: int
    """Within 5 %, or 5 points for a change of the printed sign."""
    orders: int
    orders_matching: int
    untried_orders: int
    """Orderings that do not come out, and whose reason has no experiment."""
    signs: int
    """Printed changes with a value or in words."""
    signs_matching: int
    bounds: int
    """`at-most` and `at-least`."""
    bounds_matching: int
    unexplained_signs: int
    """Wrong signs whose reason has no experiment."""
    not_computed: int

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Counts:
        """Return the counts of the rows that count."""
        counted = [row for row in rows if row.counts]
        known = [row for row in counted if row.matches is not None]
        numbers = [row for row in known if row.rule is Rule.NUMBER]
        orders = [row for row in known if row.rule is Rule.ORDER]
        bounds = [row for row in known if row.rule in (Rule.AT_MOST, Rule.AT_LEAST)]
        signs = [row for row in known if row.is_change and row.rule in (Rule.NUMBER, Rule.SIGN) and row.printed]
        wrong = [row for row in signs if row.has_wrong_sign]

        def near(within: float, *, relative: bool = False) -> int:
            return sum(
                is_near(row.printed or 0.0, row.ours[0], within, is_change=row.is_change, relative=relative)
                for row in numbers
            )

        return cls(
            numbers=len(numbers),
            numbers_close=near(NEAR, relative=True),
            numbers_near=near(NEAR),
            numbers_very_close=near(WITHIN, relative=True),
            numbers_matching=sum(bool(row.matches) for row in numbers),
            orders=len(orders),
            orders_matching=sum(bool(row.matches) for row in orders),
            untried_orders=sum(not row.matches and not row.experiment for row in orders),
            signs=len(signs),
            signs_matching=len(signs) - len(wrong),
            bounds=len(bounds),
            bounds_matching=sum(bool(row.matches) for row in bounds),
            unexplained_signs=sum(not row.experiment for row in wrong),
            not_computed=len(counted) - len(known),
        )

    @property
    def table(self) -> list[tuple[str, str]]:
        """The counts as text: what, and how many of how many."""
        near, share = "numbers within", "of the printed change"
        return [
            (f"{near} 10 %, changes within 10 % {share}", f"{self.numbers_close} of {self.numbers}"),
            (f"{near} 10 %, changes within 10 points", f"{self.numbers_near} of {self.numbers}"),
            (f"{near} 5 %, changes within 5 % {share}", f"{self.numbers_very_close} of {self.numbers}"),
            (f"{near} 5 %, changes within 5 points", f"{self.numbers_matching} of {self.numbers}"),
            ("orderings that come out", f"{self.orders_matching} of {self.orders}"),
            ("orderings that do not, without an experiment", str(self.untried_orders)),
            ("signs that come out", f"{self.signs_matching} of {self.signs}"),
            ("bounds that hold", f"{self.bounds_matching} of {self.bounds}"),
            ("wrong signs without an experiment", str(self.unexplained_signs)),
            ("rows not computed", str(self.not_computed)),
        ]


def printed_text(row: Row) -> str:
    """Return the printed figure as text."""
    if row.printed is None:
        return "order"
    if row.rule is Rule.SIGN:
        return "more" if row.printed > 0 else "less"
    bound = {Rule.AT_MOST: "at most ", Rule.AT_LEAST: "at least "}.get(row.rule, "")
    return bound + _figure_text(row.printed, row)


def ours_text(row: Row) -> str:
    """Return our figure with its interval as text; of an order, the figures of its points."""
    if not row.ours:
        return "-"
    text = _figure_text(row.ours[0], row)
    for first, second in zip(row.ours, row.ours[1:], strict=False):
        text += f" {'<' if first < second else '≥'} {_figure_text(second, row)}"
    if row.low is None or row.high is None:
        return text
    low, high = _figure_text(row.low, row), _figure_text(row.high, row)
    return text if low == high else f"{text} ({low} to {high})"


def distance_text(row: Row) -> str:
    """Return the distance as text: percent; for a change, points and percent of the printed change."""
    if row.distance is None:
        return ""
    if not row.is_change:
        return f"{100 * row.distance:+.1f} %"
    share = f" ({100 * row.distance / abs(row.printed):+.0f} %)" if row.printed else ""
    return f"{100 * row.distance:+.1f} points{share}"


def reason_text(row: Row) -> str:
    """Return the reason of a row that does not match, with the experiment behind it."""
    if row.matches is not False:
        return ""
    reason = row.reason or "not explained"
    return f"{reason} ({row.experiment})" if row.experiment else reason


def _figure_text(value: float, row: Row) -> str:
    return f"{100 * value:+.1f} %" if row.is_change else cell(value)
