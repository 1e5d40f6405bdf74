"""The ledger of a study: the rules of claims, the rows of a table, and the papers with their elements."""

from __future__ import annotations

import csv
import itertools
import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tracebed.cli import tracebed
from tracebed.ground.errors import InputError
from tracebed.studies.ledger.ledger import (
    NEAR,
    WITHIN,
    Ledger,
    Measured,
    Row,
    distance,
    explained,
    is_near,
    matches,
    of_findings,
    rows_of,
    rows_of_experiment,
)
from tracebed.studies.ledger.page import (
    Counts,
    distance_text,
    ours_text,
    page,
    printed_text,
    reason_text,
    stored,
)
from tracebed.studies.papers.base import PAPERS
from tracebed.studies.papers.paper import Constant, Element, Paper, load_paper, names, paper_of
from tracebed.validation.experiments.experiment import Experiment
from tracebed.validation.experiments.experiment_schema import Claim, Rule
from tracebed.validation.experiments.file import load_experiment

ROOT = Path(__file__).parents[2]
LEDGERS = ROOT / "docs" / "explanation" / "papers" / "ledgers"
"""The ledgers of the last whole runs."""
FIGURES = st.floats(-1e9, 1e9, allow_nan=False)


def claim(**keys: Any) -> Claim:
    return Claim(**{"figure": "mean_wait_s", "value": None if "order" in keys else 1.0} | keys)


@pytest.mark.parametrize(
    ("rule", "printed", "ours", "is_change", "expected"),
    [
        ("number", 100.0, 105.0, False, True),
        ("number", 100.0, 105.1, False, False),
        ("number", 100.0, 95.0, False, True),
        ("number", 0.0, 0.0, False, True),
        ("number", 0.0, 0.01, False, False),
        ("number", -0.60, -0.55, True, True),
        ("number", -0.60, -0.54, True, False),
        ("number", 0.02, -0.02, True, False),  # within 5 points, and of the other sign
        ("number", 0.0, 0.04, True, True),  # a printed change of 0 has no sign
        ("number", 0.02, 0.0, True, False),
        ("sign", -1.0, -0.001, True, True),
        ("sign", -1.0, 0.0, True, False),
        ("sign", 0.3, 8.0, True, True),
        ("at-most", 20.0, 20.0, False, True),
        ("at-most", 20.0, 20.1, False, False),
        ("at-least", 0.95, 1.0, False, True),
        ("at-least", 0.95, 0.94, False, False),
    ],
)
def test_a_figure_matches_by_the_rule(rule: str, printed: float, ours: float, is_change: bool, expected: bool) -> None:
    assert matches(Rule(rule), printed, [ours], is_change=is_change) is expected


def test_an_order_is_strict_and_an_unknown_figure_matches_nothing() -> None:
    assert matches(Rule.ORDER, None, [1.0, 2.0, 3.0], is_change=False) is True
    assert matches(Rule.ORDER, None, [1.0, 3.0, 2.0], is_change=False) is False
    assert matches(Rule.ORDER, None, [1.0, 1.0], is_change=False) is False
    assert matches(Rule.ORDER, None, [1.0, math.nan], is_change=False) is None
    assert matches(Rule.NUMBER, 1.0, [], is_change=False) is None


@given(printed=FIGURES, ours=FIGURES, is_change=st.booleans())
def test_a_match_is_near_and_has_the_printed_sign(printed: float, ours: float, is_change: bool) -> None:
    found = matches(Rule.NUMBER, printed, [ours], is_change=is_change)
    if found:
        assert is_near(printed, ours, NEAR, is_change=is_change)
        if printed and is_change:
            assert matches(Rule.SIGN, printed, [ours], is_change=True)
        if printed or is_change:
            assert abs(distance(printed, ours, is_change=is_change)) <= WITHIN + 1e-9
    assert matches(Rule.NUMBER, printed, [printed], is_change=is_change)
    assert matches(Rule.AT_MOST, printed, [ours], is_change=is_change) or matches(
        Rule.AT_LEAST, printed, [ours], is_change=is_change
    )


@given(values=st.lists(FIGURES, min_size=2, max_size=6, unique=True))
def test_of_all_permutations_of_an_order_one_matches(values: list[float]) -> None:
    found = [order for order in itertools.permutations(values) if matches(Rule.ORDER, None, order, is_change=False)]
    assert found == [tuple(sorted(values))]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"value": None}, "requires a `value`"),
        ({"rule": "sign", "value": -1.0}, "requires `relative_to`"),
        ({"rule": "order", "value": None}, "two points or more"),
        ({"order": [{"policy": "a"}]}, "two points or more"),
        ({"order": [{"policy": "a"}, {"policy": "b"}], "value": 1.0}, "no `value`"),
        ({"order": [{"policy": "a"}, {"policy": "b"}], "rule": "number"}, "requires the rule `order`"),
        ({"rule": "about"}, "Input should be"),
    ],
)
def test_a_claim_is_whole(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        claim(**keys)


EXPERIMENT: dict[str, Any] = {
    "workloads": {"w": {"model": "lublin99", "options": {"jobs": 20, "nodes": 16}}},
    "malleable": {"shares": [0.0, 0.5]},
    "policies": ["easy", "pref"],
    "seeds": 2,
    "windows": {"A": {}, "B": {"ended": True}},
    "interval_s": [10.0, 0.0],
}
POINT = {
    "workload": "w",
    "priority": "fcfs",
    "runtime_model": "ideal",
    "malleability_interval_s": 0.0,
    "processes": "none",
    "outages": "none",
    "perturbation": 0,
}
WAITS = {("easy", 0.0): (10, 30), ("easy", 0.5): (40, 40), ("pref", 0.0): (30, 10), ("pref", 0.5): (3, 9)}


def table(*, window: str = "A", interval_s: float = 10.0, factor: float = 1.0) -> pd.DataFrame:
    """Return waits by policy and share, of two seeds each."""
    rows = [
        {**POINT, "policy": policy, "share": share, "seed": seed, "mean_wait_s": factor * wait}
        for (policy, share), both in WAITS.items()
        for seed, wait in enumerate(both)
    ]
    return pd.DataFrame(rows).assign(window=window, interval_s=interval_s)


def rows(*claims: Claim, of: pd.DataFrame | None = None) -> list[Row]:
    experiment = Experiment(**EXPERIMENT, published=list(claims))
    return rows_of_experiment(experiment, table() if of is None else of)


def test_a_row_has_the_figure_of_the_mean_over_seeds_and_its_interval() -> None:
    (row,) = rows(claim(element="table 1", value=20.0, at={"policy": "easy", "share": 0.0}, reason="none"))
    assert (row.element, row.ours, row.distance, row.matches, row.runs) == ("table 1", [20.0], 0.0, True, 2)
    assert (row.low, row.high) == pytest.approx((10.5, 29.5))
    assert (printed_text(row), ours_text(row), distance_text(row)) == ("20", "20 (10.5 to 29.5)", "+0.0 %")
    assert reason_text(row) == ""  # reasons are for figures that do not match


def test_seeds_of_the_same_cells_are_one_run() -> None:
    """With all jobs malleable no seed draws anything, so all seeds are one simulation."""
    order = [{"policy": "pref"}, {"policy": "easy"}]
    same = table().assign(cell=lambda rows: rows.policy + rows.share.astype("str"))
    (row,) = rows(claim(order=order, at={"share": 0.5}), of=same)
    assert (row.runs, row.note, row.ours) == (1, "", [6.0, 40.0])
    (row,) = rows(claim(value=20.0, at={"policy": "easy", "share": 0.0}), of=same)
    assert (row.runs, row.low, row.high) == (1, None, None)
    drawn = same.assign(cell=same.cell.where(same.policy == "pref", same.cell + same.seed.astype("str")))
    (row,) = rows(claim(order=order, at={"share": 0.5}), of=drawn)
    assert (row.runs, row.note[:17]) == (2, "so in 2 of 2 runs")


def test_a_change_is_relative_to_the_same_point() -> None:
    """easy: 20 and 40 at the shares 0 and 0.5; pref: 20 and 6. So -85 % at best, against easy at the same share."""
    keys = {"at": {"policy": "pref"}, "relative_to": {"policy": "easy"}, "take": "least", "value": -0.5}
    (row,) = rows(claim(**keys))
    assert row.ours == pytest.approx([-0.85])
    assert row.distance == pytest.approx(-0.35)
    assert (row.matches, row.has_wrong_sign) == (False, False)
    assert row.at == "least of policy pref against policy easy"
    assert distance_text(row) == "-35.0 points (-70 %)"
    assert reason_text(row) == "not explained"
    named = claim(**keys | {"relative_to": {"policy": "easy", "share": 0.0}})
    assert rows(named)[0].ours == pytest.approx([-0.7])


def test_a_base_that_lacks_the_value_of_a_key_counts_as_a_whole() -> None:
    held = table()
    held = held[(held["policy"] != "easy") | (held["share"] == 0)]
    (row,) = rows(claim(at={"policy": "pref"}, relative_to={"policy": "easy"}, take="least"), of=held)
    assert row.ours == pytest.approx([6 / 20 - 1])


def test_the_first_window_and_settings_count_and_the_others_are_further_rows() -> None:
    held = pd.concat([table(), table(interval_s=0.0, factor=2.0), table(window="B", factor=3.0)])
    found = rows(claim(value=20.0, at={"policy": "easy", "share": 0.0}), of=held)
    assert [(row.assumption, row.ours) for row in found] == [
        ("", [20.0]),
        ("window B", [60.0]),
        ("interval_s 0", [40.0]),
    ]
    assert [row.counts for row in found] == [True, False, False]
    found = rows(claim(at={"policy": "easy", "interval_s": 0.0}, window="A"), of=held)
    assert [(row.assumption, row.ours) for row in found] == [("", [60.0])]


def test_an_order_has_a_figure_for_each_point() -> None:
    order = [{"policy": "pref"}, {"policy": "easy"}]
    (row,) = rows(claim(order=order, at={"share": 0.5}))
    assert (row.ours, row.matches, row.low) == ([6.0, 40.0], True, None)
    assert row.note == "so in 2 of 2 runs; not decided: about 3 runs are needed"
    assert row.at == "share 0.5: policy pref < policy easy"
    assert (printed_text(row), ours_text(row)) == ("order", "6 < 40")
    (row,) = rows(claim(order=order[::-1], at={"share": 0.5}))
    assert (row.matches, row.note[:17], ours_text(row)) == (False, "so in 0 of 2 runs", "40 ≥ 6")


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([1.0, 1.1, 0.9, 1.0], "so in 4 of 4 runs"),
        ([-1.0, -1.1, -0.9, -1.0], "so in 0 of 4 runs"),
        ([0.0, 0.0, 0.0, 0.0], "so in 0 of 4 runs"),
        ([2.0, -1.0, 2.0, -1.0], "so in 2 of 4 runs; not decided: about 122 runs are needed"),
        ([1.0, -1.0, 1.0, -1.0], "so in 2 of 4 runs; not decided: about 1,000,000 runs are needed"),
    ],
)
def test_an_order_is_decided_if_each_step_is_larger_than_its_interval(steps: list[float], says: str) -> None:
    seeds = [
        {"policy": policy, "seed": seed, "x": x}
        for seed, step in enumerate(steps)
        for policy, x in (("a", 10.0), ("b", 10.0 + step))
    ]
    (row,) = rows_of(
        [claim(figure="x", order=[{"policy": "a"}, {"policy": "b"}])],
        Measured(pd.DataFrame(seeds), ["policy"], ["seed"]),
    )
    assert row.note == says


def test_what_was_not_computed_is_a_row_too() -> None:
    held = table()
    whole, part, none = rows(
        claim(at={"policy": "easy"}),
        claim(at={"policy": "easy", "share": [0.0, 0.5]}, note="table 2"),
        claim(at={"policy": "pref"}, order=[{"share": 0.0}, {"share": 0.5}]),
        of=held[(held["share"] == 0) & (held["policy"] == "easy")],
    )
    assert (whole.ours, whole.note) == ([20.0], "")
    assert (part.ours, part.note) == ([20.0], "only some of these points were computed; table 2")
    assert (none.ours, none.matches, none.runs, ours_text(none)) == ([], None, 0, "-")
    assert rows(claim(), of=pd.DataFrame())[0].matches is None


def test_a_change_relative_to_zero_is_not_computed() -> None:
    (row,) = rows(claim(at={"policy": "pref"}, relative_to={"policy": "easy"}), of=table(factor=0.0))
    assert (row.ours, row.matches) == ([], None)


@given(
    waits=st.lists(st.floats(0.1, 1e6), min_size=2, max_size=20),
    bases=st.lists(st.floats(0.1, 1e6), min_size=2, max_size=20),
)
def test_an_interval_is_within_the_runs(waits: list[float], bases: list[float]) -> None:
    runs = min(len(waits), len(bases))
    by_run = [
        {"policy": policy, "repetition": run, "wait": values[run]}
        for policy, values in (("ours", waits), ("base", bases))
        for run in range(runs)
    ]
    keys = {"figure": "wait", "at": {"policy": "ours"}}
    plain, change = rows_of(
        [claim(**keys), claim(**keys, relative_to={"policy": "base"})], Measured.of(by_run, ["policy"])
    )
    assert plain.runs == change.runs == runs
    assert plain.ours == pytest.approx([sum(waits[:runs]) / runs])
    assert plain.low is not None and plain.high is not None and change.low is not None
    assert min(waits[:runs]) <= plain.low <= plain.high <= max(waits[:runs])
    assert change.low >= -1.0


def test_findings_of_real_runs_make_the_same_rows() -> None:
    measured = Measured.of(
        [
            {"by": "replay", "policy": policy, "repetition": repetition, "makespan_s": value + repetition}
            for policy, value in (("static", 100.0), ("sd", 93.0))
            for repetition in (1, 2)
        ]
        + [{"by": "simulation", "policy": policy, "makespan_s": 50.0} for policy in ("static", "sd")],
        ["by", "policy"],
    )
    by_replay, simulated, missing = rows_of(
        [
            claim(figure=figure, value=-0.07, at={"by": by, "policy": "sd"}, relative_to={"by": by, "policy": "static"})
            for by, figure in (("replay", "makespan_s"), ("simulation", "makespan_s"), ("replay", "mean_wait_s"))
        ],
        measured,
    )
    assert by_replay.ours == pytest.approx([94.5 / 101.5 - 1])
    assert (by_replay.matches, by_replay.runs) == (True, 2)
    assert (simulated.ours, simulated.runs, simulated.low) == ([0.0], 1, None)
    assert missing.matches is None
    ledger = of_findings("a study of no paper", measured, "command")
    assert (ledger.paper, ledger.whole, ledger.rows) == ("", True, [])
    assert not of_findings("sd-5-real", None, "").whole
    with pytest.raises(InputError, match="no key 'by'"):
        rows_of([claim(at={"by": "replay"})], Measured.of([{"policy": "sd", "mean_wait_s": 1.0}], ["policy"]))


def row(**keys: Any) -> Row:
    defaults: dict[str, Any] = {
        **dict.fromkeys(("element", "claim", "at", "assumption", "note", "reason", "experiment"), ""),
        **{"figure": "mean_wait_s", "rule": Rule.NUMBER, "printed": 1.0, "ours": [1.0], "fitted": False},
        **{"is_change": False, "low": None, "high": None, "runs": 1, "distance": 0.0, "matches": True},
    }
    return Row(**defaults | keys)


def test_counts_are_of_rows_under_the_defaults() -> None:
    wrong = row(is_change=True, printed=-0.1, ours=[0.2], matches=False)
    found = Counts.of(
        [
            row(),
            row(ours=[1.08], matches=False),
            row(ours=[1.2], matches=False),
            row(assumption="other", ours=[9.0], matches=False),
            row(fitted=True),
            row(ours=[], matches=None),
            row(rule=Rule.ORDER, printed=None, ours=[1.0, 2.0]),
            row(rule=Rule.AT_MOST, ours=[2.0], matches=False),
            row(rule=Rule.SIGN, is_change=True, printed=-1.0, ours=[-0.2]),
            wrong,
            wrong.model_copy(update={"experiment": "sd-assumptions"}),
        ]
    )
    assert found == Counts(5, 2, 2, 1, 1, 1, 1, 0, 3, 1, 1, 0, unexplained_signs=1, not_computed=1)
    assert ("wrong signs without an experiment", "1") in found.table


@pytest.mark.parametrize(
    ("printed", "ours", "expected"),
    [
        (-0.021, -0.06, (0, 1, 0, 1)),  # 3.9 points, and almost three times the printed change
        (-0.5, -0.46, (1, 1, 0, 1)),
        (-0.5, -0.48, (1, 1, 1, 1)),
        (0.0, 0.04, (1, 1, 1, 1)),  # a printed change of 0 has no share
        (-0.021, 0.02, (0, 0, 0, 0)),
    ],
)
def test_changes_count_by_their_size_and_by_points(printed: float, ours: float, expected: tuple[int, ...]) -> None:
    is_match = matches(Rule.NUMBER, printed, [ours], is_change=True)
    found = Counts.of([row(is_change=True, printed=printed, ours=[ours], matches=is_match)])
    counts = (found.numbers_close, found.numbers_near, found.numbers_very_close, found.numbers_matching)
    assert counts == expected


def test_an_ordering_that_fails_names_the_experiment_that_was_tried() -> None:
    failed = row(rule=Rule.ORDER, printed=None, ours=[2.0, 1.0], matches=False)
    tried = failed.model_copy(update={"experiment": "sd-assumptions"})
    assert Counts.of([failed, tried, row(rule=Rule.ORDER, printed=None, ours=[1.0, 2.0])]).untried_orders == 1


def a_ledger(*rows: Row, study: str = "one") -> Ledger:
    command = f"tracebed experiment {study}"
    return Ledger(study=study, paper="p", command=command, date="2026-01-02", version="1", whole=True, rows=list(rows))


def test_a_ledger_is_written_and_read(tmp_path: Path) -> None:
    ledger = a_ledger(row(element="table 1"), row(ours=[1.0, 2.0], rule=Rule.ORDER, printed=None, matches=False))
    assert ledger.write(tmp_path) == tmp_path / "ledger.json"
    assert Ledger.load(tmp_path / "ledger.json") == ledger
    with (tmp_path / "ledger.csv").open(newline="") as stream:
        first, second = csv.DictReader(stream)
    assert (first["paper"], first["study"], first["element"], first["matches"]) == ("p", "one", "table 1", "yes")
    assert (second["ours"], second["matches"]) == ("1 2", "no")
    assert second["command"] == "tracebed experiment one"


def test_the_published_schema_is_that_of_the_files() -> None:
    text = (files("tracebed.validation") / "schemas" / "tracebed-ledger-1.json").read_text(encoding="utf-8")
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "tracebed-ledger-1.json"}
    assert json.loads(text) == about | Ledger.model_json_schema(by_alias=True)


def test_a_page_merges_the_studies_of_a_paper(tmp_path: Path) -> None:
    paper = Paper(
        title="T",
        citation="A. Author",
        studies=["one", "two", "three"],
        elements={"table 1": Element(shows="a table"), "figure 1": Element(shows="a | b", reason="a diagram")},
        fitted=[Constant(name="launch_s", value=8, why="not printed")],
    )
    other = row(element="table 1", assumption="depth 50", matches=False, ours=[3.0])
    a_ledger(row(element="table 1", claim="as printed")).write(_folder(tmp_path / "one"))
    (tmp_path / "two.json").write_text(a_ledger(other, study="two").json_text)
    text = page(paper, stored(paper, tmp_path), "make")
    assert "| numbers within 5 %, changes within 5 points | 1 of 1 |" in text
    assert "| elements without a row | 1 of 2 |" in text and "| fitted constants | 1 |" in text
    assert "| `three` | not run |" in text
    assert "| figure 1 | a \\| b |  |  | a diagram |" in text
    assert "| depth 50 | table 1 |" in text and "not explained" in text
    assert text.count("as printed") == 1


def test_a_reason_may_be_written_after_the_run_and_a_rule_may_not() -> None:
    """The page has the present words of a claim. A claim with another rule is another claim."""
    ran = a_ledger(row(element="table 1", at="policy easy", matches=False))
    now = claim(element="table 1", at={"policy": "easy"}, reason="known", experiment="sd-assumptions", claim="one")
    (found,) = explained(ran, [now]).rows
    assert (found.reason, found.experiment, found.claim) == ("known", "sd-assumptions", "one")
    assert (found.matches, found.ours) == (False, [1.0])
    assert explained(ran, [now.model_copy(update={"rule": Rule.AT_MOST})]) == ran


@pytest.mark.parametrize("name", sorted(path.stem for path in LEDGERS.glob("*.json")))
def test_a_stored_ledger_is_of_a_whole_run_with_the_present_rules(name: str) -> None:
    ledger = Ledger.load(LEDGERS / f"{name}.json")
    assert (ledger.study, ledger.whole) == (name, True)
    claims = load_paper(ledger.paper).claims_of(name)
    present = rows_of(claims, Measured.of([], ()))
    hint = "the claims have changed: run the study again"
    assert {row.key for row in ledger.rows} == {row.key for row in present}, hint
    defaults = {(row.key, row.assumption, row.fitted) for row in present}
    assert defaults <= {(row.key, row.assumption, row.fitted) for row in ledger.rows}, hint


@pytest.mark.parametrize("name", names())
def test_the_page_of_a_paper_is_made_from_the_stored_ledgers(name: str) -> None:
    done = CliRunner().invoke(tracebed, ["experiment", name, "--ledger", "-o", str(LEDGERS)])
    path = LEDGERS.parent / f"{name}.md"
    if path.exists():
        hint = f"tracebed experiment {name} --ledger -o {LEDGERS.relative_to(ROOT)} > {path.relative_to(ROOT)}"
        assert done.stdout == path.read_text(encoding="utf-8"), hint
    else:
        assert isinstance(done.exception, InputError), f"the page {path.name} is missing"


def test_the_counts_of_all_papers_are_those_of_the_stored_ledgers() -> None:
    done = CliRunner().invoke(tracebed, ["experiment", "--ledger", "-o", str(LEDGERS)])
    path = LEDGERS.parent / "index.md"
    hint = f"tracebed experiment --ledger -o {LEDGERS.relative_to(ROOT)} > {path.relative_to(ROOT)}"
    assert done.stdout == path.read_text(encoding="utf-8"), hint
    totals = [line.split("|") for line in done.stdout.splitlines() if line.startswith("| numbers within 10 %")]
    *each, whole = [int(cell.split(" of ")[0]) for cell in totals[0][2:-1]]
    assert sum(each) == whole > 0


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_the_command_prints_the_page_of_a_paper(tmp_path: Path) -> None:
    done = CliRunner().invoke(tracebed, ["experiment", "kassel", "--ledger", "-o", str(tmp_path)])
    assert isinstance(done.exception, InputError) and "no study of kassel has run" in done.exception.what
    (tmp_path / "kassel-knl.json").write_text(a_ledger(row(), study="kassel-knl").json_text)
    done = CliRunner().invoke(tracebed, ["experiment", "kassel", "--ledger", "-o", str(tmp_path)])
    assert done.exit_code == 0 and done.stdout.startswith("# Evaluating Malleable Job Scheduling")


@pytest.mark.usefixtures("without_pictures")
def test_a_study_prints_and_writes_its_ledger(tmp_path: Path) -> None:
    study = EXPERIMENT | {
        "interval_s": [10.0],
        "windows": {"A": {}},
        "published": [{"element": "table 1", "figure": "makespan_s", "value": 1.0, "reason": "another workload"}],
    }
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(study))
    words = ["experiment", str(path), "-o", str(tmp_path / "out"), "--workers", "1"]
    done = CliRunner().invoke(tracebed, words)
    assert done.exit_code == 0, done.output
    assert "another workload" in done.stdout and "changes within 10 points: 0 of 1" in done.stderr
    ledger = Ledger.load(tmp_path / "out" / "s" / "ledger.json")
    assert (ledger.study, ledger.paper, ledger.whole) == ("s", "", True)
    assert ledger.command == "tracebed experiment s.yaml"
    done = CliRunner().invoke(tracebed, [*words, "--only", "share=0.5"])
    ledger = Ledger.load(tmp_path / "out" / "s" / "ledger.json")
    assert (ledger.command, ledger.whole) == ("tracebed experiment s.yaml --only share=0.5", False)


@pytest.mark.parametrize("name", names())
def test_every_element_of_a_paper_has_a_claim_a_plot_or_a_reason(name: str) -> None:
    paper = load_paper(name)
    claims = [each for study in paper.studies for each in paper.claims_of(study)]
    repeated = {each.element for each in claims} | set(paper.drawn)
    assert "" not in repeated, "a claim of a shipped study lacks its element"
    assert repeated <= set(paper.elements), "a claim or plot names an element that the paper lacks"
    assert set(paper.elements) - repeated == {key for key, element in paper.elements.items() if element.reason}


def test_every_study_of_a_paper_exists_and_belongs_to_one_paper() -> None:
    studies = [study for name in names() for study in load_paper(name).studies]
    assert len(studies) == len(set(studies))
    for study in studies:
        assert study in PAPERS.names() or load_experiment(study).experiment.published
    assert paper_of("kassel-knl") == "kassel" and paper_of("mine") == ""
    for name in names():
        assert set(load_paper(name).claims) <= set(PAPERS.names()), "simulated cells have their claims in their file"


@pytest.mark.parametrize("name", names())
def test_a_claim_that_counts_is_made_once(name: str) -> None:
    paper = load_paper(name)
    for study in paper.studies:
        words = {"claim": "", "note": "", "reason": "", "experiment": ""}
        counted = [each.model_copy(update=words) for each in paper.claims_of(study) if not each.assumption]
        assert not [each for index, each in enumerate(counted) if each in counted[:index]]
