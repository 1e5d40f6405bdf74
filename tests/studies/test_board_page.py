"""The page of the board: made from the stored scores, and each figure repeated where the data are."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from tracebed.studies.board.board import WAIT, Board, Score, interval, number, share
from tracebed.studies.board.building import build as build_board
from tracebed.studies.board.entries import load_entries
from tracebed.studies.board.page import failure, page, plot

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RECORDINGS = ROOT / "tests" / "slurm_recordings"
HINT = "tracebed validate --board --dry-run -o docs"
INSTITUTIONS, PROGRAMS = 3, 5
LAPIS = ROOT / "tests" / "peers" / "lapis.yaml"
"""The entry of a simulator by other people, which runs in an environment of its own."""
PLACES = {
    "grid5000-2016-02": "grid5000-2016-02",
    "cirrus-2024q1": "cirrus-2024q1",
    "slurm-model": "slurm-model",
    "slurm-model-nodes": "slurm-model",
    "amte-rigid": "../peers/amte",
}
"""Data set -> its place in the reference data; without one, the files are part of the tests."""


@pytest.fixture(scope="module")
def board() -> Board:
    return Board.load(DOCS / "board.json")


def test_the_page_and_the_plot_are_made_from_the_stored_scores(board: Board) -> None:
    assert (DOCS / "board.md").read_text(encoding="utf-8") == page(board), HINT
    assert (DOCS / "board.svg").read_text(encoding="utf-8") == plot(board), HINT


def test_the_published_schema_is_that_of_the_file() -> None:
    text = (files("tracebed.validation") / "schemas" / "tracebed-board-1.json").read_text(encoding="utf-8")
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "tracebed-board-1.json"}
    assert json.loads(text) == about | Board.model_json_schema(by_alias=True)


def test_the_plot_has_a_dot_for_each_workload_of_each_entry(board: Board) -> None:
    drawn = ElementTree.fromstring(plot(board))
    shown = [each for each in board.scores if each.kind != "control"]
    legend = 5  # one dot for each kind of entry that occurs
    dots = drawn.findall("{http://www.w3.org/2000/svg}circle")
    assert len(dots) == sum(len(each.errors[WAIT]) for each in shown) + legend


def test_the_board_has_what_it_promises(board: Board) -> None:
    assert len(board.datasets) >= 4
    assert len({facts.institution for facts in board.datasets.values()} - {"tracebed"}) >= INSTITUTIONS
    programs = {each.program for each in board.scores if each.kind in ("published", "simulated", "entered")}
    assert programs >= {"tracebed", "batsim", "elastisim", "accasim", "lapis"} and len(programs) >= PROGRAMS
    entries = [each for each in board.scores if each.kind in ("published", "simulated")]
    assert any(each.verdict == "inaccurate" and each.kind == "published" for each in entries)
    assert not any(facts.failed for facts in board.datasets.values())
    for each in entries:  # a wrong scheduler is never ahead of all others on a data set with several workloads
        if each.entry == "fcfs" and len(each.errors[WAIT]) > 1:
            assert each.verdict == "inaccurate"
            assert [other for other in board.of(each.dataset, each.track) if other.kind != "entered"][-1] is each


def test_what_the_text_of_the_page_says_is_so(board: Board) -> None:
    assert not any(each.verdict == "accurate" for each in board.scores)
    first, *others = board.of("slurm-model", "planned")
    ceiling = board.ceiling("slurm-model")
    assert first.entry == "fcfs" and ceiling is not None
    assert (first.placed or 0) < 0.1 < (ceiling.placed or 0)
    assert first.noise_ratio == pytest.approx(others[0].noise_ratio, rel=0.05)
    (shuffled,) = board.controls("cirrus-2024q1")
    assert all((shuffled.placed or 0) >= (each.placed or 0) for each in board.of("cirrus-2024q1", "observed"))


def test_named_nodes_are_within_their_aim_on_february_2016(board: Board) -> None:
    found = {each.entry: each for each in board.of("grid5000-2016-02", "planned")}
    assert found["conservative-nodes"].wait_error_s <= 2.5
    assert found["batsim"].wait_error_s == pytest.approx(25.84, abs=0.005)


def test_the_entry_of_the_page_is_the_file_that_was_scored(board: Board) -> None:
    assert f"```yaml\n{LAPIS.read_text()}```" in page(board)
    entered = [each for each in board.scores if each.kind == "entered"]
    assert {each.dataset for each in entered} == set(yaml.safe_load(LAPIS.read_text()))
    assert all((each.program, each.version) == ("lapis", "0.4.2") for each in entered)


def test_no_row_mixes_the_tracks(board: Board) -> None:
    for dataset in board.datasets:
        for track in ("planned", "observed"):
            assert {each.track for each in board.of(dataset, track)} <= {track}
    published = {each.entry: each.track for each in board.scores if each.kind == "published"}
    assert published == {"batsim": "planned", "elastisim": "observed"}


def test_every_control_fails_where_the_real_runs_are_healthy(board: Board) -> None:
    controls = [each for each in board.scores if each.kind == "control"]
    assert {each.entry for each in controls} == {"shuffled", "other-runs", "observed"}
    for each in controls:
        fails = "not at all" not in failure(board, each)
        assert fails or board.datasets[each.dataset].unhealthy, f"{each.entry} on {each.dataset}"
        if each.entry == "observed":
            assert each.track == "observed"


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [*PLACES, "slurm-22.05"])
def test_each_figure_is_repeated(board: Board, dataset: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Skips where the data are not, since they are not part of tracebed."""
    place: Callable[[str], Path] = request.getfixturevalue("reference_data")
    source = place(PLACES[dataset]) if dataset in PLACES else RECORDINGS
    again, _ = build_board(tmp_path, [source], load_entries([LAPIS]), [dataset])
    stored, made = ({_key(each): each for each in found.scores if each.dataset == dataset} for found in (board, again))
    without = again.datasets[dataset].failed.keys()  # AccaSim and lapis, where they are not installed
    assert made.keys() == {key for key in stored if key[1] not in without}
    for key, each in made.items():
        assert _figures(each) == pytest.approx(_figures(stored[key]), rel=1e-4, abs=1e-6), key
        assert (each.verdict, each.why, each.kind) == (stored[key].verdict, stored[key].why, stored[key].kind), key
    facts, now = (found.datasets[dataset].model_dump(exclude={"failed", "noise"}) for found in (board, again))
    assert facts == now


def _key(score: Score) -> tuple[str, str]:
    return score.track, score.entry


def _figures(score: Score) -> dict[str, float]:
    """Return all figures of a score by name."""
    found = {f"{metric} {name}": value for metric, each in score.errors.items() for name, value in each.items()}
    found |= {f"worst {metric}": worst.error for metric, worst in score.worst.items()}
    found |= {"s": score.wait_error_s, "cases": score.cases, "real runs": score.real_runs}
    return found | {"placed": _known(score.placed), "noise": _known(score.noise_ratio)}


def _known(value: float | None) -> float:
    return -1.0 if value is None else value


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.00004, "0.000"), (0.1425, "0.142"), (5.1149, "5.11"), (71.45, "71.5"), (6460.46, "6460")],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text
    assert number(-value) == (f"-{text}" if value else text)


def test_unknown_figures_are_dashes() -> None:
    assert number(math.nan) == number(None) == interval(None) == share(None) == "-"
