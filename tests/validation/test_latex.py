"""Tables for papers: their structure, their names, and whether LaTeX sets them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

import tracebed.api as tb
from tests.commands import call
from tests.validation.test_validation import predicted, repetitions, suite
from tracebed.ground.errors import InputError
from tracebed.validation.latex import MOST_ROWS, PaperTable, escaped, with_half_width, write_csv, write_latex
from tracebed.validation.report.markdown import verdict_table
from tracebed.validation.verdict import validate

NASTY = 'a_b & 50 % of #1 {x} ~^ $5 \\ <1> |2| "q" ± 3'
PLAIN = PaperTable(["policy", "wait (s)"], [["easy", 1234.5], ["[pref]", None]], "Two, n = 5.")


def cells(text: str) -> list[list[str]]:
    """Return the cells of the rows between the rules."""
    body = text.partition("\\toprule")[2].partition("\\bottomrule")[0].replace("\\midrule\n", "")
    return [re.split(r"(?<!\\) & ", line.removesuffix(r" \\")) for line in body.strip().splitlines()]


def test_a_table_has_its_rules_its_caption_and_rounded_numbers() -> None:
    text = PLAIN.latex
    assert text.count("\\begin") == text.count("\\end") == 2
    assert [
        text.index(rule) for rule in ("\\caption{Two, n = 5.}", "\\toprule", "\\midrule", "\\bottomrule")
    ] == sorted(text.index(rule) for rule in ("\\caption{Two, n = 5.}", "\\toprule", "\\midrule", "\\bottomrule"))
    assert cells(text) == [["policy", "wait (s)"], ["easy", "1,234"], ["{}[pref]", "-"]]


def test_names_are_escaped_and_negative_numbers_have_a_minus_sign() -> None:
    text = escaped(NASTY)
    assert not re.search(r"(?<!\\)[&%#]|[<>|\"±]", text)
    assert escaped("-1.5 (-2 to +3), easy-2, 10-20") == "$-$1.5 ($-$2 to +3), easy-2, 10-20"


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [
        (33671.2, 65812.0, "34,000 ± 66,000"),
        (0.33651, 0.0123, "0.337 ± 0.012"),
        (7.0, 0.0, "7 ± 0"),
        (7.5, float("nan"), "7.5"),
        (12.0, 1.04, "12.0 ± 1.0"),
    ],
)
def test_a_mean_is_rounded_to_two_digits_of_its_half_width(value: float, half: float, text: str) -> None:
    assert with_half_width(value, half) == text


def test_csv_has_the_table_beside_it_unless_it_is_long(tmp_path: Path) -> None:
    data, path = pd.DataFrame({"x": [1.23456789]}), tmp_path / "table.csv"
    write_csv(data, path, PLAIN)
    assert path.read_text() == "x\n1.23456789\n" and path.with_suffix(".tex").read_text() == PLAIN.latex
    write_csv(data, path, PaperTable(["x"], [["1"]] * (MOST_ROWS + 1), "long"))
    assert not path.with_suffix(".tex").exists()
    path.with_suffix(".tex").write_text("my thesis")
    with pytest.raises(InputError, match="is not a LaTeX table of tracebed"):
        write_csv(data, path, PLAIN)
    assert path.with_suffix(".tex").read_text() == "my thesis"


def table_of_verdicts() -> list[PaperTable]:
    one, several = validate(suite(1, 5)), validate(suite(3, 5))
    return [verdict_table(one), verdict_table(several)]


def test_the_table_of_verdicts_has_units_n_and_the_interval() -> None:
    one, several = table_of_verdicts()
    assert [row[0] for row in one.rows][:2] == ["makespan (s)", "wait, mean (s)"]
    assert {row[list(one.heads).index("n")] for row in (*one.rows,)} == {"5"}
    assert "95 % interval" in one.caption and "3 cases, n repetitions each" in several.caption


GRID = "workloads: {a_b: {model: cirne, options: {jobs: 10, nodes: 8}}}\npolicies: [easy, {policy: pref, label: p&q}]\n"


@pytest.mark.parametrize("more", ["seeds: 3\n", "seeds: 2\nperturbations: 3\n"])
def test_an_experiment_has_its_tables_with_n_and_seeds(more: str, tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(GRID + "malleable: {shares: [1]}\n" + more)
    call("experiment", tmp_path / "g.yaml", "--workers", 1, "-o", tmp_path / "out")
    folder = tmp_path / "out" / "g"
    text = (folder / "table.tex").read_text()
    heads, *rows = cells(text)
    assert heads[-1] == "n" and [row[0] for row in rows] == ["easy", "p\\&q"]
    assert {row[-1] for row in rows} == ({"3"} if "perturb" not in more else {"6"})
    assert ("seeds: 0, 1" in text) and ("95 \\%" in text)
    assert (folder / "differences.tex").exists() == (folder / "differences.csv").exists() == ("perturb" in more)


def test_runs_and_verdicts_become_tables_by_their_names(tmp_path: Path) -> None:
    for number, run in enumerate(repetitions(5), 1):
        run.save(tmp_path / "real" / f"rep-{number:02d}")
    predicted().save(tmp_path / "p")
    call("compare", "--real", tmp_path / "real", "--predicted", tmp_path / "p", "--report", tmp_path / "v.tex")
    call("metrics", tmp_path / "p", "--report", tmp_path / "m.tex")
    assert "n repetitions each" in (tmp_path / "v.tex").read_text()
    assert cells((tmp_path / "m.tex").read_text())[-1] == ["n, finished jobs", "40"]


def sets(tables: Sequence[PaperTable], folder: Path) -> subprocess.CompletedProcess[str]:
    write_latex(folder / "tables.tex", *tables)
    (folder / "paper.tex").write_text(
        "\\documentclass[twocolumn]{article}\\usepackage{booktabs}\\begin{document}\\input{tables}\\end{document}"
    )
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex (Debian: texlive-latex-recommended) is missing")
def test_latex_sets_the_tables(tmp_path: Path) -> None:
    nasty = PaperTable(["", NASTY, "[x]"], [["* a", NASTY, -1.5]] * 2, NASTY)
    done = sets([PLAIN, nasty, *table_of_verdicts()], tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000


def test_repetitions_have_a_table_with_the_errors_of_the_predictions(tmp_path: Path) -> None:
    jobs = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
    tb.write(jobs, tmp_path / "w.csv")
    (tmp_path / "c.yaml").write_text(
        "workloads: {w: w.csv}\npolicies: [easy]\nrepetitions: 2\nsettle_s: 0\nsimulators: {tracebed: {}}\n"
        "testbed: {inventory: emulated-4, speed: 1e6}\n"
    )
    call("experiment", tmp_path / "c.yaml", "-o", tmp_path / "out")
    rows = cells((tmp_path / "out" / "statistics.tex").read_text())
    assert [row[2].replace("~", " ") for row in rows[1:3]] == ["real", "error of tracebed"]
    assert {row[-1] for row in rows[1:3]} == {"2"}
    frame = pd.read_csv(tmp_path / "out" / "statistics.csv")
    assert set(frame.columns) >= {"cell", "n", "figure", "mean", "sd", "error_tracebed"}
