"""Tables and progress, printed alike by all commands."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracebed.cli import console
from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import progress
from tracebed.ground.display import cell

COLUMNS = ("what a row is about", "a", "b")
ROWS: list[tuple[str, float, float]] = [("one thing", 1.5, 123_456_789.0), ("another thing", 0.00012345, float("nan"))]


def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, *table: Any, **options: Any
) -> list[str]:
    """Return the lines of a table on a terminal of `width` columns, without escape sequences."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(*table, **options)
    return re.sub("\x1b[^m]*m", "", capsys.readouterr().out).splitlines()


@pytest.mark.parametrize("width", [5, 30, 300])
def test_a_table_wraps_labels_and_never_cuts_a_number(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = " ".join(printed(capsys, monkeypatch, width, COLUMNS, ROWS)).split()
    cells = ["1.5", "123,456,789", "0.0001234", "-"]
    assert {*words} == {*cells, *" ".join([*COLUMNS, *(row[0] for row in ROWS)]).split()}
    assert [word for word in words if word in cells] == (cells if width == 300 else ["1.5", "0.0001234", *cells[1::2]])


SWEEP = ("share", "policy", *(f"a figure with a long name, mean {number} (s)" for number in range(9)))
SWEPT = [[share, policy, *(share + 1e4 * figure for figure in range(9))] for share in (0, 0.5) for policy in "ab"]


@pytest.mark.parametrize("width", [80, 120])
def test_a_wide_table_comes_in_parts_with_the_key_columns(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = printed(capsys, monkeypatch, width, SWEEP, SWEPT, keys=2)
    assert max(map(len, lines)) <= width
    for share, policy in ((row[0], row[1]) for row in SWEPT):
        found = [line.split()[2:] for line in lines if line.split()[:2] == [cell(share), policy]]
        assert [*itertools.chain(*found)] == [cell(share + 1e4 * figure) for figure in range(9)]
        assert len(found) <= 2


@pytest.mark.parametrize("width", [80, 120])
def test_sentences_break_between_words_and_leave_the_numbers_whole(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = "nothing: not submitted yet; start on 1 node later, after shrink from 4 to 3 nodes of job 8"
    rows = [["10", 934.8, sentence, -143.25], ["11", 1066.0, "start on 1 node", -3.76]]
    lines = printed(capsys, monkeypatch, width, ("job", "time (s)", "real", "delay (s)"), rows, text=("real",))
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    assert all(word in text.split() for word in [*sentence.split(), "934.8", "-143.2", "1,066", "-3.76"])


def test_spare_columns_are_dropped_first_and_only_if_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_table(COLUMNS, ROWS, spare=["b"])
    assert "123,456,789" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(COLUMNS, ROWS, spare=["b"])
    out, err = capsys.readouterr()
    assert "123,456,789" not in out
    assert "b too" in err


def test_spare_columns_are_dropped_one_by_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    row = ("label", "x" * 20, "y" * 20, "z" * 20)
    monkeypatch.setenv("COLUMNS", "50")
    print_table(("", "a", "b", "c"), [row], spare=["c", "a", "b"])
    out, err = capsys.readouterr()
    assert all(value in out for value in row[:3])
    assert row[3] not in out
    assert err.endswith("shows c too)\n")


def test_a_table_without_names_of_columns_has_no_blank_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["", ""], [("jobs", 3)])
    assert capsys.readouterr().out == "jobs  3\n"


TEXTS = st.text(" ab-%:[]/é\n", max_size=6)


def lines_of_rich(columns: list[console._Column]) -> list[str]:
    table = Table(box=None, pad_edge=False, show_header=any(column.head for column in columns))
    for column in columns:
        table.add_column(Text(column.broken(column.head)), justify="left" if column.left else "right", no_wrap=True)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text(column.broken(value)) for column, value in zip(columns, row, strict=True)))
    with io.StringIO() as stream:
        Console(file=stream, width=console.UNBOUNDED, highlight=False, color_system=None).print(table)
        return stream.getvalue().splitlines()


@given(st.data(), st.integers(1, 4))
def test_a_table_is_as_rich_prints_it(data: st.DataObject, columns: int) -> None:
    heads = data.draw(st.lists(st.text(" ab-%:/", min_size=1, max_size=6), min_size=columns, max_size=columns))
    rows = data.draw(st.lists(st.lists(st.one_of(TEXTS, st.floats()), min_size=columns, max_size=columns), max_size=4))
    printed = []
    for lines in (console._lines, lines_of_rich):
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as stream:
            patch.setattr(console, "_lines", lines)
            print_table(heads, rows, text=heads[1:2])
        printed.append(stream.getvalue())
    assert printed[0] == printed[1]


def test_cells() -> None:
    assert [cell(value) for value in (None, 3, 12_345.6, 1.0, 1e300, -1e15, "x", True)] == [
        *("-", "3", "12,346", "1", "1e+300", "-1e+15", "x", "True")
    ]


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    print_json("tracebed-x/1", {"a": [float("nan"), float("inf"), 1.5], "b": {"c": (True, -float("inf"))}})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found == {"schema": "tracebed-x/1", "a": [None, None, 1.5], "b": {"c": [True, None]}}
    assert next(iter(found)) == "schema"


@pytest.mark.parametrize("total", [None, 10.0])
def test_a_short_task_has_no_progress_bar(
    total: float | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with progress("reading", total) as bar:
        bar.update(1.0)
        now[0] = 0.5
    assert "reading" not in capsys.readouterr().err
    now[0] = 10.0
    with progress("reading", total) as bar:
        now[0] = 12.0
        bar.update(1.0)
    assert "reading" in capsys.readouterr().err


def test_the_time_left_follows_from_the_pace_and_not_from_the_preparation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One percent after 1.2 s of preparation and 0.03 s of work once meant 2 min left, of 3 s."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with progress("simulating", 100) as bar:
        now[0] += 1.2
        bar.update(1)
        now[0] += 10.0
        bar.update(21)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("simulating: ")[2] for line in lines] == ["1%", "21%, 39 s left"]
