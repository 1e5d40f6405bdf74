"""The page of a paper: the ledgers of its studies as one Markdown document, with the counts at the top."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tracebed.ground.display import markdown_table
from tracebed.studies.papers.paper import Paper
from tracebed.validation.experiments.views.ledger import FILE, Ledger, Row, explained, not_run
from tracebed.validation.experiments.views.ledger_text import (
    Counts,
    distance_text,
    ours_text,
    printed_text,
    reason_text,
)
from tracebed.validation.metrics import all_metrics

COLUMNS = ("element", "claim", "figure", "rule", "printed", "ours", "distance", "matches", "study", "why not")


def stored(paper: Paper, folder: Path) -> list[Ledger]:
    """Return the ledgers of the studies of a paper in a folder: STUDY/ledger.json, or STUDY.json.

    Words and reasons are those of the present claims. Claims of a study without a ledger are not computed.

    Raises:
        InputError: a ledger is damaged.
    """
    found = []
    for study in paper.studies:
        claims = paper.claims_of(study)
        paths = [path for path in (folder / study / FILE, folder / f"{study}.json") if path.exists()]
        found.append(explained(Ledger.load(paths[0]), claims) if paths else not_run(study, claims))
    return found


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
