"""The page of a paper: the ledgers of its studies as one Markdown document, with the counts at the top."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracebed.ground.display import cell, markdown_table
from tracebed.studies.ledger.ledger import FILE, NEAR, WITHIN, Ledger, Row, explained, is_near, not_run
from tracebed.studies.papers.paper import Paper
from tracebed.validation.experiments.experiment_schema import Rule
from tracebed.validation.metrics import all_metrics


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


COLUMNS = ("element", "claim", "figure", "rule", "printed", "ours", "distance", "matches", "study", "why not")


def stored(paper: Paper, folder: Path) -> list[Ledger]:
    """Return the ledgers of the studies of a paper in a folder: STUDY/ledger.json, or STUDY.json.

    Words and reasons are those of the present claims. Claims of a study without a ledger are not computed.

    Raises:
        InputError: a ledger is damaged.
    """
    ledgers = []
    for study in paper.studies:
        claims = paper.claims_of(study)
        paths = [path for path in (folder / study / FILE, folder / f"{study}.json") if path.exists()]
        ledgers.append(explained(Ledger.load(paths[0]), claims) if paths else not_run(study, claims))
    return ledgers


def page(paper: Paper, ledgers: Sequence[Ledger], command: str) -> str:
    """Return the page of a paper.

    Args:
        ledgers: the ledgers of its studies.
        command: the command that makes the page.
    """
    rows = [(ledger, row) for ledger in ledgers for row in ledger.rows]
    order = {element: place for place, element in enumerate(paper.elements)}
    rows.sort(key=lambda each: order.get(each[1].element, len(order)))
    counted = [each for each in rows if each[1].counts]
    others = [each for each in rows if not each[1].counts]
    claimed = Counter(row.element for _, row in counted)
    without = [element for element in paper.elements if element not in claimed]
    counts = [
        *Counts.of(row for _, row in rows).table,
        ("elements without a row", f"{len(without)} of {len(paper.elements)}"),
        ("fitted constants", str(len(paper.fitted))),
    ]
    parts = [
        f"# {paper.title}",
        textwrap.fill(paper.citation, 118),
        f"Made by `{command}` from the ledgers of the studies; not written by hand.\n"
        "[The rules](../../reference/ledger.md) are the same for all claims.",
        markdown_table(("", ""), counts),
        "## Studies",
        markdown_table(
            ("study", "command", "date", "version", "most runs of a row", "all points"),
            [_study(ledger) for ledger in ledgers],
        ),
    ]
    if counted:
        parts += ["## Claims", _rows(counted, COLUMNS)]
    if others:
        text = "Under other assumptions than the default of the study, or of a figure to which a constant was fitted."
        parts += ["## Not counted", text, _rows(others, ("assumption", *COLUMNS))]
    drawn = paper.drawn
    elements = [
        (name, element.shows, str(claimed[name] or ""), "; ".join(drawn.get(name, [])), element.reason)
        for name, element in paper.elements.items()
    ]
    parts += ["## Elements", markdown_table(("element", "shows", "rows", "plots", "why none"), elements)]
    if paper.fitted:
        constants = [(constant.name, str(constant.value), constant.why) for constant in paper.fitted]
        parts += ["## Fitted constants", markdown_table(("constant", "value", "why"), constants)]
    return "\n\n".join(parts) + "\n"


def overview(papers: Mapping[str, tuple[Paper, Sequence[Ledger]]], command: str) -> str:
    """Return the page of all papers: the counts of each and of all, with the papers as columns.

    Args:
        papers: name -> paper, and the ledgers of its studies.
        command: the command that makes the page.
    """
    rows = {name: [row for ledger in ledgers for row in ledger.rows] for name, (_, ledgers) in papers.items()}
    counts = [Counts.of(each).table for each in (*rows.values(), [row for each in rows.values() for row in each])]
    fitted = [len(paper.fitted) for paper, _ in papers.values()]
    table = [(what, *(column[place][1] for column in counts)) for place, (what, _) in enumerate(counts[0])]
    missing = [
        f"- `{ledger.study}` ({name})" for name, (_, found) in papers.items() for ledger in found if not ledger.date
    ]
    parts = [
        "# What the papers print, and what comes out",
        f"Made by `{command}` from the ledgers of the studies; not written by hand.\n"
        "[The rules](../../reference/ledger.md) are the same for all claims.",
        markdown_table(("", *(f"[{name}]({name}.md)" for name in papers), "all"), table),
        f"Fitted constants and choices: {', '.join(f'{n} ({name})' for n, name in zip(fitted, papers, strict=True))}.",
    ]
    if missing:
        parts += ["Studies without a ledger of a whole run:", "\n".join(missing)]
    return "\n\n".join(parts) + "\n"


def _study(ledger: Ledger) -> tuple[str, ...]:
    if not ledger.date:
        return (f"`{ledger.study}`", "not run", "", "", "", "")
    whole = "yes" if ledger.whole else "no"
    return f"`{ledger.study}`", f"`{ledger.command}`", ledger.date, ledger.version, str(ledger.runs), whole


def _rows(rows: Iterable[tuple[Ledger, Row]], columns: Sequence[str]) -> str:
    return markdown_table(columns, [[_cells(ledger, row)[column] for column in columns] for ledger, row in rows])


def _cells(ledger: Ledger, row: Row) -> dict[str, str]:
    metric = all_metrics().get(row.figure)
    return {
        "element": row.element,
        "claim": "; ".join(filter(None, (row.claim, row.note))),
        "figure": f"{row.figure if metric is None else metric.title}: {row.at}",
        "assumption": row.assumption or "fitted",
        "rule": str(row.rule),
        "printed": printed_text(row),
        "ours": ours_text(row),
        "distance": distance_text(row),
        "matches": row.verdict,
        "study": f"`{ledger.study}`",
        "why not": reason_text(row),
    }


def claim_texts(ledger: Ledger) -> list[tuple[str, str, str, str]]:
    """Return each claim of a ledger in words, the printed figure, ours, and whether it matches."""
    return [
        (
            " ".join(filter(None, (row.element, row.claim or f"{row.figure}, {row.at}"))),
            printed_text(row),
            ours_text(row),
            row.verdict,
        )
        for row in ledger.rows
    ]
