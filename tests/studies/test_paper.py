"""The paper about tracebed: its citations exist, and its figures are those of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAPER = (ROOT / "paper.md").read_text(encoding="utf-8")


def test_each_citation_is_an_entry_and_each_entry_is_cited() -> None:
    entries = re.findall(r"^@\w+\{(\w+),", (ROOT / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(entries) == sorted(set(re.findall(r"@(\w+)", PAPER)))


def test_the_figures_are_those_of_the_page_on_accuracy() -> None:
    page = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    computed = page.partition("<!-- COMPUTED -->")[2].partition("<!-- end -->")[0]
    figures = re.findall(r"[+-]\d+\.\d+ %", PAPER)
    assert len(figures) == 4
    assert [figure for figure in figures if figure not in computed] == []


def test_the_paper_has_the_form_of_the_journal() -> None:
    _, header, body = PAPER.split("---\n", 2)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(yaml.safe_load(header))
    headings = re.findall(r"^# (.*)$", body, re.MULTILINE)
    required = ["Summary", "Statement of need", "State of the field", "Software design", "Research impact statement"]
    assert headings[:5] == required
    assert headings[-1] == "References"
    assert 750 <= len(body.split()) <= 1750
