"""The best cells of a grid: their choice, their replays, and the gains, by one command."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracebed.api as tb
from tests.commands import call

GRID = "workloads: {small: small.parquet}\nmalleable: {shares: [0, 1]}\npolicies: [easy, pref]\nwindows: {all: {}}\n"


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tb.write(tb.scale(tb.generate("cirne", jobs=30, nodes=16, seed=1), nodes=4), "small.parquet")
    Path("grid.yaml").write_text(GRID)
    return tmp_path / "grid.yaml"


def test_the_best_cells_are_those_of_the_largest_gain_with_the_same_conditions(grid: Path) -> None:
    file, table = tb.load_experiment(str(grid)), tb.experiment(grid, "sims", workers=1)
    first, best = tb.best_points(file.experiment, file.selected({}), table, "mean_response_s")
    assert (first.policy, first.share, best.policy, best.share) == ("easy", 1.0, "pref", 1.0)
    with pytest.raises(tb.InputError, match="no policy has a lower mean_response_s than easy"):
        tb.best_points(file.experiment, file.selected({}), table[table["share"] == 0], "mean_response_s")
    real = file.replayed(
        [first, best], Path("jobs.parquet"), {"testbed": {"inventory": "emulated-4"}, "repetitions": 3}
    )
    assert real.experiment.is_real and [policy.name for policy in real.experiment.policies] == ["easy", "pref"]
    assert [*real.experiment.simulators] == ["tracebed"] and len(real.experiment.points()) == 2


def test_one_command_goes_from_the_grid_to_the_real_gain(grid: Path) -> None:
    words = ("experiment", grid, "--inventory", "emulated-4", "--speed", 100_000, "--repetitions", 1, "-o", "sims")
    done = call(*words)
    folder = Path("sims/grid/replayed")
    assert {path.name for path in (folder / "real").glob("small-*")} == {"small-easy", "small-pref"}
    hashes = {tb.Run.load(path.parent).info.workload["sha256"] for path in folder.glob("**/run.json")}
    assert len(hashes) == 1
    if isinstance(done.exception, tb.TestbedError):  # a busy machine: no healthy run
        assert "has no real run that can be compared" in str(done.exception)
    else:
        assert "same sign" in done.stdout and (folder / "gains.tex").exists()


def test_an_inventory_with_a_mistake_or_too_few_nodes_is_refused_before_replays(grid: Path) -> None:
    words = ("experiment", grid, "-o", "sims", "--inventory")
    Path("bad.yaml").write_text("node: [{name: 'n[1-4]', cores: 1, emulated: true}]\n")
    assert str(call(*words, "bad.yaml").exception).startswith("bad.yaml:1: unknown key 'node'")
    assert not Path("sims").exists()
    Path("few.yaml").write_text("nodes: [{name: 'n[1-2]', cores: 1, emulated: true}]\n")
    assert "few has 2 nodes, and the largest job of small" in str(call(*words, "few.yaml").exception)
    assert not Path("sims/grid/replayed").exists()


def test_options_of_replays_need_an_inventory(grid: Path) -> None:
    assert "--inventory, --repetitions and --speed" in str(call("experiment", grid, "--speed", 5).exception)
    refused = call("experiment", grid, "--inventory", "emulated-4", "--json").exception
    assert "--json does not apply" in str(refused)
