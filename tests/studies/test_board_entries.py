"""The board from data to page: a small data set, entries by a file of five lines, tracks, controls and exclusions."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.commands import call
from tracebed.converters.workload import Workload
from tracebed.ground.errors import ExitCode, InputError
from tracebed.studies.board.board import Board, Score, changes
from tracebed.studies.board.datasets import Dataset, datasets
from tracebed.studies.board.entries import load_entries

ROOT = Path(__file__).resolve().parents[2]
NODES = {"a_16": 16, "a_20": 20, "b_16": 16, "copy_16": 16, "c_16": 16, "broken_16": 16}
"""Case -> nodes. Two are one workload, two are one real run, and the nodes of the last one are not all there."""
SEEDS = {"a": 1, "b": 2, "copy": 2, "c": 3, "broken": 4}
SUITE = """\
workloads: "*"
policies: [easy]
recorded:
  runs: "{workload}.real.csv"
  from: csv
  planned: "{workload}.planned.csv"
  nodes: {"*_16": 16, "*_20": 20}
simulators:
  easy: {}
"""
SIMULATOR = """\
import csv, sys
workload, nodes, output = sys.argv[1], int(sys.argv[2]), sys.argv[3]
free, now = [0.0] * nodes, 0.0
with open(workload) as file, open(output, "w") as written:
    rows = csv.DictReader(file)
    if {"logged_start", "logged_end"} & set(rows.fieldnames):
        sys.exit("the workload has what really happened")
    print("job_id,start,end", file=written)
    for row in rows:  # first come, first served
        free.sort()
        now = max(now, float(row["submit_time"]), free[int(row["nodes"]) - 1])
        end = now + float(row["run_time"])
        free[: int(row["nodes"])] = [end] * int(row["nodes"])
        print(row["job_id"], now, end, sep=",", file=written)
"""


def _jobs(seed: int) -> pd.DataFrame:
    """Return 60 jobs of at most 8 nodes, with their planned run times."""
    rng = np.random.default_rng(seed)
    run = np.round(rng.lognormal(5.5, 1.0, 60), 1)
    return pd.DataFrame(
        {
            "job_id": [str(number) for number in range(60)],
            "submit_time": np.round(np.cumsum(rng.exponential(130.0, 60)), 1),
            "run_time": run,
            "time_limit": np.round(run * rng.uniform(1.1, 3.0, 60)),
            "nodes": rng.integers(1, 9, 60),
            "kind": "rigid",
        }
    )


def _table(jobs: pd.DataFrame, policy: str, nodes: int) -> str:
    run = tb.simulate(Workload(jobs), policy, nodes)
    table = run.jobs[["job_id", "submit", "start", "end", "nodes", "time_limit"]]
    return table.rename(columns={"job_id": "id"}).to_csv(index=False)


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """The tables of the data set: a system under EASY whose run times differ from the planned ones by some percent."""
    found = {}
    for case, nodes in NODES.items():
        name = case.split("_")[0]
        planned = _jobs(SEEDS[name])
        noise = np.random.default_rng([SEEDS[name], nodes]).normal(1.0, 0.04, len(planned))
        observed = planned.assign(run_time=np.minimum(planned["run_time"] * noise, planned["time_limit"]))
        found[f"{case}.planned.csv"] = _table(planned, "fcfs", nodes)
        found[f"{case}.real.csv"] = _table(observed, "easy", 9 if name == "broken" else nodes)
    return found


@pytest.fixture(scope="module")
def data(files: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the data set."""
    folder = tmp_path_factory.mktemp("clone")
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@contextmanager
def only_mine(files: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Let the data set be the only one of the board, whose own entries are in `folder`."""
    made = Dataset(
        name="grid5000-2016-02",
        title="sixty jobs",
        institution="a university",
        source="https://example.org/runs",
        commit="0123456",
        licence="",
        citation="Someone, somewhere",
        files={name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()},
        suite=SUITE,
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in list(datasets()):
            patch.delitem(datasets(), name)
        patch.setitem(datasets(), "mine", made.model_copy(update={"name": "mine"}))
        patch.setattr("tracebed.studies.board.entries.SHIPPED", _shipped(folder))
        yield


def _shipped(folder: Path) -> Path:
    path = folder / "shipped.yaml"
    path.write_text('"*": {fcfs: {policy: fcfs}}\n')
    return path


def _by_name(board: Board) -> dict[tuple[str, str], Score]:
    return {(each.entry, each.track): each for each in board.scores}


class Scored(NamedTuple):
    """A board with its folder, and what the command printed."""

    folder: Path
    printed: str


@pytest.fixture(scope="module")
def scored(files: Mapping[str, str], data: Path, tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """The board with the entries of a file: five lines, and simulators that fail or copy run times."""
    tmp_path = tmp_path_factory.mktemp("scored")
    (tmp_path / "sim.py").write_text(SIMULATOR)
    (tmp_path / "outputs").mkdir()
    for case, nodes in NODES.items():
        text = _table(_jobs(SEEDS[case.split("_")[0]]), "easy", nodes)
        (tmp_path / "outputs" / f"{case}.csv").write_text(text)
        mixed = (data / f"{case}.real.csv").read_text() if case.startswith("c_") else text
        (tmp_path / "outputs" / f"mixed-{case}.csv").write_text(mixed)
        (tmp_path / "outputs" / f"fewer-{case}.csv").write_text("\n".join(mixed.splitlines()[:-9]) + "\n")
    program = shlex.quote(sys.executable)
    entry = (
        f'mine:\n  stranger:\n    command: "{program} sim.py {{workload}} {{nodes}} {{output}}.csv"\n    from: csv\n'
        '  ready: {runs: "outputs/{workload}.csv", from: csv}\n'
    )
    assert len(entry.splitlines()) == 5
    others = (
        '  failing: {command: "false {output}", from: csv}\n'
        '  mixed: {runs: "outputs/mixed-{workload}.csv", from: csv}\n'
        '  fewer: {runs: "outputs/fewer-{workload}.csv", from: csv}\n'
    )
    (tmp_path / "entry.yaml").write_text(entry + others)
    with only_mine(files, tmp_path):
        done = call("-q", "validate", "--board", tmp_path / "entry.yaml", "--from", data, "-o", tmp_path / "board")
    assert done.return_value == ExitCode.USAGE, done.exception  # two of them fail
    return Scored(tmp_path / "board", done.output)


@pytest.mark.slow
def test_a_stranger_enters_by_five_lines_with_a_command_and_with_outputs(scored: Scored, tmp_path: Path) -> None:
    board = Board.load(scored.folder / "board.json")
    found = _by_name(board)
    assert len(found) == len(board.scores)
    stranger, ready = found["stranger", "planned"], found["ready", "planned"]
    assert {stranger.kind, ready.kind} == {"entered"}
    assert stranger.errors == found["fcfs", "planned"].errors  # the same algorithm, written by another hand
    assert ready.errors == found["easy", "planned"].errors
    page = (scored.folder / "board.md").read_text()
    assert "| stranger |" in page and "| ready |" in page
    assert "stranger" in (scored.folder / "board.svg").read_text()
    assert "stranger" in scored.printed

    # Cases: one real run twice, one workload on two machines, and one run without some of its nodes.
    assert (stranger.cases, stranger.real_runs, len(stranger.errors["mean_wait_s"])) == (5, 4, 3)
    facts = board.datasets["mine"]
    assert (facts.cases, facts.real_runs, facts.unhealthy) == (6, 5, 1)

    # Run times: those of the log are a track of their own, to which outputs that exist do not belong.
    assert ("stranger", "observed") in found and ("ready", "observed") not in found
    assert found["easy", "observed"].wait.mean < 1e-6 < found["easy", "planned"].wait.mean

    # Controls: shuffled waits have no error of the mean, and are found; copied run times are on the other track.
    assert found["shuffled", "planned"].wait.mean < 1e-6
    shuffled, easy = found["shuffled", "planned"].placed, found["easy", "planned"].placed
    assert shuffled is not None and easy is not None and shuffled < easy - 0.1
    assert found["other-runs", "planned"].wait.mean > 1
    assert ("observed", "planned") not in found and ("observed", "observed") in found
    assert "its run times are found to be copies" in page

    # The page is made again from the scores alone.
    (tmp_path / "board.json").write_text((scored.folder / "board.json").read_text())
    document = json.loads(call("validate", "--board", "--dry-run", "-o", tmp_path, "--json").stdout)
    assert (tmp_path / "board.md").read_text() == page
    assert len(document["scores"]) == len(board.scores)


@pytest.mark.slow
def test_a_simulator_that_fails_has_no_score_and_one_that_copies_some_run_times_has_two(scored: Scored) -> None:
    board = Board.load(scored.folder / "board.json")
    failed = board.datasets["mine"].failed
    assert "ended with status 1" in failed["failing"]
    assert failed["fewer"] == "15 % of the jobs of a_16-easy ended in one run only"
    entered = {each.entry for each in board.scores}
    assert entered >= {"easy", "fcfs"} and entered.isdisjoint({"failing", "fewer"})
    tracks = {each.track: each.errors["mean_wait_s"] for each in board.scores if each.entry == "mixed"}
    assert {track: len(clusters) for track, clusters in tracks.items()} == {"planned": 2, "observed": 1}
    assert "Not scored: failing, since" in (scored.folder / "board.md").read_text()
    assert "failing is not scored on mine: " in scored.printed  # with -q too: it is an error


@pytest.fixture(scope="module")
def stored(scored: Scored) -> Board:
    """The board as it was before `stranger` came, with an entry of before and a data set of which there is no copy."""
    board = Board.load(scored.folder / "board.json")
    scores = [each for each in board.scores if each.entry != "stranger"]
    ready = next(each for each in scores if each.entry == "ready")
    elsewhere = ready.model_copy(update={"dataset": "elsewhere"})
    facts = board.datasets | {"elsewhere": board.datasets["mine"]}
    return board.model_copy(update={"scores": [*scores, elsewhere], "datasets": facts, "date": "2026-01-01"})


@pytest.mark.slow
def test_an_entry_that_arrives_is_scored_alone_and_the_stored_board_is_written(
    scored: Scored, stored: Board, files: Mapping[str, str], data: Path, tmp_path: Path
) -> None:
    program = shlex.quote(sys.executable)
    file = tmp_path / "entry.yaml"
    (tmp_path / "sim.py").write_text(SIMULATOR)
    command = f'command: "{program} sim.py {{workload}} {{nodes}} {{output}}.csv", from: csv'
    file.write_text(f"mine: {{stranger: {{{command}}}}}\n")
    (tmp_path / "docs").mkdir()
    baseline = stored.save(tmp_path / "docs" / "board.json")
    words = ["--from", data, "--baseline", baseline, "-o", tmp_path / "board"]
    with only_mine(files, tmp_path):
        looked = call("validate", "--board", file, *words)
        assert looked.return_value == ExitCode.OK and Board.load(baseline) == stored
        done = call("validate", "--board", file, *words, "--update-baseline", "better")
        assert done.return_value == ExitCode.OK, done.output
        made = Board.load(baseline)

        # Only the new entry was predicted, and all other rows stay.
        predicted = tmp_path / "board" / "mine" / "planned" / "predicted"
        assert [path.name for path in predicted.iterdir()] == ["stranger"]
        new = [each for each in made.scores if each not in stored.scores]
        assert {(each.entry, each.track) for each in new} == {("stranger", "planned"), ("stranger", "observed")}
        assert [each for each in made.scores if each not in new] == stored.scores
        assert made.datasets == stored.datasets
        whole = _by_name(Board.load(scored.folder / "board.json"))
        assert [each.model_dump() for each in new] == [whole["stranger", each.track].model_dump() for each in new]
        assert "changes of" in done.stdout and "2 rows" in done.stdout and "new" in done.stdout
        for name in ("board.md", "board.html", "board.svg"):
            assert "stranger" in (baseline.parent / name).read_text()

        # It comes again, with other waits: an earlier score changes, which must be accepted.
        late = SIMULATOR.replace("now = max(now,", "now = 50 + max(now,")
        (tmp_path / "sim.py").write_text(late)
        file.write_text(f'mine: {{stranger: {{{command}, version: "2"}}}}\n')
        refused = call("validate", "--board", file, *words, "--update-baseline", "better")
        assert refused.return_value == ExitCode.INACCURATE and Board.load(baseline) == made
        assert "is not written: 2 earlier scores would change or be lost, such as stranger on mine" in refused.stderr
        assert call("validate", "--board", file, *words, "--update-baseline", "any").return_value == 0
        changed = changes(made, Board.load(baseline))
        assert {(each.row.entry, each.row.track, each.kind) for each in changed} == {
            ("stranger", "planned", "changed"),
            ("stranger", "observed", "changed"),
        }

        # Without a file, the entries of tracebed are scored again; those that were sent stay.
        assert call("validate", "--board", *words, "--update-baseline", "better").return_value == 0
        assert changes(made, Board.load(baseline)) == changed


def test_the_baseline_of_a_board_is_a_board(tmp_path: Path) -> None:
    words = ["validate", "--board", "-o", tmp_path / "board"]
    assert "without a baseline" in str(call(*words, "--update-baseline", "any").exception)
    other = str(call(*words, "--baseline", tmp_path / "scores.json").exception)
    assert "the baseline of a board is a board.json" in other
    (tmp_path / "board.json").write_text('{"schema": "tracebed-baseline/1"}')
    assert "not 'tracebed-board/1'" in str(call(*words, "--baseline", tmp_path / "board.json").exception)
    assert "--annotate does not apply with --board" in str(call(*words, "--annotate").exception)


@pytest.mark.slow
def test_the_entry_of_the_pages_works_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and the second command of `Enter in ten minutes`, in the folder of the source."""
    page = (ROOT / "docs" / "board.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"such as enter\.yaml.*?```yaml\n(.*?)```", page, re.DOTALL)
    assert len(text.splitlines()) == 5
    (line,) = re.findall(r"^    tracebed (.* -o new)$", page, re.MULTILINE)
    (tmp_path / "enter.yaml").write_text(text)
    for name in ("tests/slurm_recordings", "docs/board.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = call(*shlex.split(line))
    assert done.return_value == ExitCode.OK, done.output
    board, made = Board.load(ROOT / "docs" / "board.json"), Board.load(tmp_path / "new" / "board.json")
    (change,) = changes(board, made)
    assert (change.row.entry, change.kind) == ("mine", "new")
    fcfs = next(each for each in board.of("slurm-22.05", "planned") if each.entry == "fcfs")
    for metric, errors in fcfs.errors.items():  # the command is fcfs of tracebed, on another way
        assert change.row.errors[metric] == pytest.approx(errors, rel=1e-4, abs=1e-6)


def test_mistakes_in_entries_have_their_line(files: Mapping[str, str], data: Path, tmp_path: Path) -> None:
    def message(text: str) -> str:
        (tmp_path / "entry.yaml").write_text(text)
        return str(call("validate", "--board", tmp_path / "entry.yaml", "--from", data, "-o", tmp_path / "b").exception)

    with only_mine(files, tmp_path):
        assert "entry.yaml:2: unknown data set 'grid'" in message("mine: {}\ngrid: {x: {policy: easy}}\n")
        assert "the board has an entry easy on mine" in message("mine: {easy: {policy: easy}}\n")
        assert "entry.yaml:1: mine.x" in message("mine: {x: {polcy: easy}}\n")
        assert "the command has no {output}" in message('mine: {x: {command: "true", from: csv}}\n')
        assert "unknown data set 'none'" in str(
            call("validate", "--board", "--only", "dataset=none", "-o", tmp_path / "b").exception
        )
        nothing = str(call("validate", "--board", "--from", tmp_path / "outputs", "-o", tmp_path / "new").exception)
        assert "no data set can be scored" in nothing
        with pytest.raises(InputError, match="cannot read"):
            load_entries([tmp_path / "missing.yaml"])


def test_the_entries_of_tracebed_are_of_data_sets_that_exist(tmp_path: Path) -> None:
    (shipped,) = load_entries([])
    names = {simulator.name for name in datasets() for simulator in shipped.simulators(name, tmp_path)}
    assert {"easy", "easy-nodes", "conservative-nodes", "fcfs", "slurm", "accasim"} <= names
