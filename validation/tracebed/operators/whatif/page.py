"""The pages of a what-if, self-contained, and the files beside them: the document, the jobs, pictures with their data.

`index.html` has all; `summary.html` is one sheet for a committee: a sentence, a picture, and what is not modeled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tracebed.ground.outputs import WHATIF
from tracebed.operators.whatif.classes import Answer
from tracebed.operators.whatif.pictures import main_picture, pictures
from tracebed.operators.whatif.resizing import columns_of, rows_of
from tracebed.operators.whatif.study import WhatIf, cores_of, document
from tracebed.validation.pictures import save_all
from tracebed.validation.report.interactive import scripts
from tracebed.validation.report.sections import Content, Section, rendered_sections
from tracebed.validation.report.templates import fill

(PAGE, DOCUMENT), SUMMARY, JOBS, PLOTS = WHATIF.parts, "summary.html", "jobs.csv", "plots"


def write(found: WhatIf, folder: Path) -> Path:
    """Write the page, the document, the jobs and the pictures to a folder, and return the path of the page."""
    with WHATIF.folder(folder, WHATIF.parts) as scratch:
        (scratch / PAGE).write_text(render(found), encoding="utf-8")
        (scratch / SUMMARY).write_text(render_summary(found), encoding="utf-8")
        (scratch / DOCUMENT).write_text(document(found), encoding="utf-8")
        found.jobs.to_csv(scratch / JOBS, index=False)
        save_all({name: picture for name, (_, picture) in pictures(found).items()}, scratch / PLOTS)
    return folder / PAGE


def render(found: WhatIf) -> str:
    """Return the page as an HTML document. The same what-if gives the same text."""
    sections = {name: Section(title, order, content, scope="whatif") for name, title, order, content in _own(found)}
    machines = [
        (side, len(machine.nodes), cores_of(machine), ", ".join(each.name for each in machine.partitions))
        for side, machine in zip(("as it was", "changed"), found.machines, strict=False)
    ]
    own = list(rendered_sections({"whatif": found}, sections))
    return str(fill("whatif", machines=machines, sections=own, **_common(found)))


def render_summary(found: WhatIf) -> str:
    """Return the summary as an HTML document."""
    section = Section("The answer", 0, partial(_constant, main_picture(found)), scope="whatif")
    own = [each for each in rendered_sections({"whatif": found}, {"answer": section}) if each.name == "answer"]
    return str(fill("whatif_summary", sections=own, page=PAGE, **_common(found)))


def _common(found: WhatIf) -> dict[str, Any]:
    """Return what both pages have: the title, and the color of the answer."""
    answer = found.headlines[0].answer
    conclusive = answer in (Answer.FALL, Answer.RISE, Answer.EQUAL) and not (found.refused and found.refused.much)
    conclusive |= any(each.classes[0].answer is Answer.FALL for each in found.alternatives)
    return {
        "scripts": scripts(),
        "found": found,
        "title": found.title or ("Backtest" if found.malleable is None else "Backtest, and malleable jobs"),
        "state": "accurate" if conclusive else "inconclusive" if found.title else "",
    }


def _own(found: WhatIf) -> Iterator[tuple[str, str, int, Callable[[Any], Content]]]:
    orders = {"sweep": 50, "staircase": 60, "waits": 100, "effects": 200, "classes": 300, "queue": 500}
    orders |= {"utilization": 600, "changes": 40}
    for name, (title, picture) in pictures(found).items():
        yield name, title, orders[name], partial(_constant, picture)
    yield "table", "All classes", 400, _table
    if found.alternatives:
        columns, rows = found.of_changes
        yield "of-changes", "All changes", 45, partial(_constant, fill("whatif_changes", columns=columns, rows=rows))
    if found.malleable is not None:
        table = {"columns": columns_of(found.malleable), "rows": rows_of(found.malleable)}
        content = fill("whatif_malleable", found=found.malleable, **table)
        yield "malleable", "Malleable jobs", 70, partial(_constant, content)
    if found.outages:
        yield "outages", "With and without the outages", 450, partial(_constant, fill("whatif_outages", found=found))


def _constant(content: Content, found: WhatIf) -> Content:
    return content


def _table(found: WhatIf) -> Content:
    return fill("whatif_classes", found=found)
