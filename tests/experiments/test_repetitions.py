"""Campaigns: their files, the order of the repetitions, and the statistics over the sequence."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.patience import GUARD_S
from tests.suites import suite_of
from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import InputError, TestbedError
from tracebed.validation.experiments import background_command as beside
from tracebed.validation.experiments.background_command import BackgroundCommand
from tracebed.validation.experiments.cell import Campaign
from tracebed.validation.experiments.views.statistics import dependence
from tracebed.validation.verdict import screening

CELLS = "workloads: {w: w.csv}\npolicies: [easy]\n"
BED = "{inventory: emulated-4, speed: 1e6}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tb.write(tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4), tmp_path / "w.csv")
    return tmp_path


def campaign(folder: Path, text: str) -> Campaign:
    """Return the campaign of an experiment with these testbeds and keys."""
    (folder / "c.yaml").write_text(CELLS + text)
    found = suite_of(folder / "c.yaml").campaign
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"testbed: {BED}\nrepetitions: 2\nsessions: 3\n", "3 sessions need at least as many"),
        (f"testbeds:\n  a: {BED}\n  b: {{sped: 3}}\n", "c.yaml:5: testbeds.b.sped: unknown key"),
        (f"testbeds:\n  a: {BED}\n  b: {{inventory: x.yaml}}\n", "c.yaml:5: x.yaml: cannot read"),
        ("testbeds:\n  a: {speed: 3}\n", "c.yaml:4: required key inventory is missing"),
        ("testbed: {inventory: emulated-4, balance: odd}\n", "case w-easy: unknown balance 'odd'"),
        (f"testbeds:\n  ../a: {BED}\n", "c.yaml:4: testbeds.../a"),
        (
            f"testbeds: {{a: {BED}}}\nrepetitions: 2\nspeed: 3\n",
            "`speed` is given both for a testbed and for all cells",
        ),
        (f"testbed: {BED}\nplots: {{}}\n", "`plots` applies to simulated cells only"),
        ("repetitions: 2\n", "`repetitions` requires a `testbed`"),
        (f"testbed: {BED}\nsimulators: {{tracebed: {{calibration: {{b: x.yaml}}}}}}\n", "unknown testbed 'b'"),
        ("cells: {a: {}}\n", "c.yaml:3: an experiment has no `cells`"),
        (
            "testbed:\n  inventory:\n    nodes:\n    - {name: n, cors: 2}\n",
            "c.yaml:6: unknown key 'cors' (did you mean cores?",
        ),
        ("testbed: {inventory: {nodes: [{name: n, cores: 2}]}}\n", "c.yaml:3: node 'n': a node needs either `cpus`"),
    ],
)
def test_an_invalid_testbed_is_an_error_with_its_line(folder: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        campaign(folder, text)
    assert message in str(raised.value)


def test_a_testbed_has_settings_of_its_own(folder: Path) -> None:
    cells = campaign(folder, "testbeds:\n  a: {inventory: emulated-4, speed: 9}\n  b: {inventory: emulated-4}\n").cells
    assert [(name, cell.setup.timing.speed) for name, cell in cells.items()] == [("w-easy-a", 9.0), ("w-easy-b", 1.0)]
    assert cells["w-easy-a"].settings["workload"] == tb.read(folder / "w.csv").sha256


def test_a_workload_of_a_real_cell_may_be_drawn_and_made_malleable(folder: Path) -> None:
    """The jobs are those of the simulated cell of the same point."""
    text = (
        "workloads: {w: {model: cirne, options: {jobs: 5, nodes: 4}}}\npolicies: [pref]\nmalleable: {shares: [0, 1]}\n"
    )
    (folder / "c.yaml").write_text(f"{text}testbed: {BED}\nrepetitions: 1\n")
    found = suite_of(folder / "c.yaml", folder / "out").campaign
    assert found is not None and list(found.cells) == ["w-pref-share0", "w-pref-share1"]
    drawn = tb.generate("cirne", jobs=5, nodes=4, seed=0)
    wanted = [drawn, tb.make_malleable(drawn, 1.0, 0)]
    assert [cell.workload.sha256 for cell in found.cells.values()] == [workload.sha256 for workload in wanted]


def test_an_inventory_may_be_written_in_the_experiment(folder: Path) -> None:
    text = f"testbeds:\n  a: {BED}\n"
    text += "  b: {inventory: {grain_s: 0.1, nodes: [{name: 'n[1-2]', cores: 3, emulated: true}]}}\n"
    inventory = campaign(folder, text).cells["w-easy-b"].replay.inventory
    assert ([node.name for node in inventory.nodes], inventory.grain_s, inventory.name) == (["n1", "n2"], 0.1, "b")


@pytest.mark.parametrize(("repetitions", "sessions"), [(10, 1), (10, 3), (4, 4)])
def test_each_session_has_every_cell_in_a_random_order(folder: Path, repetitions: int, sessions: int) -> None:
    def order(seed: int) -> list[tuple[str, int, int]]:
        text = f"repetitions: {repetitions}\nsessions: {sessions}\nseed: {seed}\n"
        text += f"testbeds: {{a: {BED}, b: {BED}, c: {{inventory: emulated-4, repetitions: 7}}}}\n"
        return [(slot.cell[-1], slot.number, slot.session) for slot in campaign(folder, text).order]

    slots = order(1)
    assert slots == order(1)
    assert slots != order(2)
    assert [session for _, _, session in slots] == sorted(session for _, _, session in slots)
    for cell in "abc":
        own = [(number, session) for name, number, session in slots if name == cell]
        assert [number for number, _ in own] == list(range(1, (7 if cell == "c" else repetitions) + 1))
        counts = pd.Series([session for _, session in own]).value_counts()
        assert sorted(counts.index) == list(range(1, sessions + 1))
        assert counts.max() - counts.min() <= 1


# -- the command beside a repetition -------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until_dead(pids: list[int]) -> None:
    deadline = time.monotonic() + GUARD_S
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "the processes of the command are still running"
        time.sleep(0.02)


TREE = "echo $$ > pids; (sleep 1000 & echo $! >> pids; exec setsid sleep 1000) & echo $! >> pids; touch ready; wait"
"""A command with a descendant in another session, and a descendant whose parent has ended."""


def pids(folder: Path) -> list[int]:
    deadline = time.monotonic() + GUARD_S
    while not (folder / "pids").exists() or len(found := (folder / "pids").read_text().split()) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return list(map(int, found))


def test_all_processes_of_the_command_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt), BackgroundCommand(TREE, tmp_path / "log", tmp_path) as running:
        found = pids(tmp_path)
        assert all(map(alive, found))
        running.check()
        raise KeyboardInterrupt
    wait_until_dead(found)


def test_the_command_does_not_outlive_a_killed_campaign(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from tracebed.validation.experiments.background_command import BackgroundCommand\n"
    )
    script += "with BackgroundCommand(sys.argv[1], Path('log'), Path()): time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", script, TREE], cwd=tmp_path) as process:
        found = pids(tmp_path)
        process.kill()
    wait_until_dead(found)


@pytest.mark.parametrize(("command", "status"), [("no-such-command", 127), ("exit 3", 3), ("kill -9 $$", 137)])
def test_a_command_that_fails_is_an_error(tmp_path: Path, command: str, status: int) -> None:
    with BackgroundCommand(command, tmp_path / "log", tmp_path) as running:
        running._supervisor.wait(GUARD_S)
        with pytest.raises(TestbedError, match=f"failed with status {status}"):
            running.check()


def test_a_command_that_has_done_its_work_is_no_error(tmp_path: Path) -> None:
    with BackgroundCommand("echo done", tmp_path / "log", tmp_path) as running:
        running._supervisor.wait(GUARD_S)
        running.check()
    assert (tmp_path / "log").read_text() == "done\n"


def test_descendants_include_those_of_other_sessions() -> None:
    with subprocess.Popen(["sh", "-c", "setsid sleep 1000 & wait"]) as process:
        own = psutil.Process(process.pid)
        deadline = time.monotonic() + GUARD_S
        while len(found := beside.descendants(own)) < 1:
            assert time.monotonic() < deadline
        assert own in beside.descendants(psutil.Process())
        for each in [*found, own]:
            each.kill()


# -- statistics ----------------------------------------------------------------------------------------------------


def reference(values: FloatArray, cells: list[str]) -> tuple[float, float]:
    """Return slope and lag-1 correlation: by a full weighted regression with a constant per cell, and by a loop."""
    names = sorted(set(cells))
    relative, standard, spread = [], [], []
    for value, cell in zip(values, cells, strict=True):
        own = [other for other, name in zip(values, cells, strict=True) if name == cell]
        mean = sum(own) / len(own)
        sd = (sum((other - mean) ** 2 for other in own) / len(own)) ** 0.5
        relative.append(value / mean - 1)
        standard.append((value - mean) / sd)
        spread.append(sd / mean)
    floor = np.median([spread[cells.index(name)] for name in names])
    root = np.array([1 / max(own, floor) for own in spread])
    design = np.array([[float(k), *(float(cell == name) for name in names)] for k, cell in enumerate(cells)])
    slope = np.linalg.lstsq(root[:, None] * design, root * np.array(relative), rcond=None)[0][0]
    products = sum(standard[k] * standard[k + 1] for k in range(len(values) - 1))
    return 100 * slope, products / sum(item**2 for item in standard)


@given(
    counts=st.lists(st.integers(2, 12), min_size=1, max_size=4),
    drift=st.floats(-0.02, 0.02),
    seed=st.integers(0, 1000),
)
def test_drift_and_correlation_are_those_of_a_plain_computation(counts: list[int], drift: float, seed: int) -> None:
    if sum(counts) < 3:
        counts = [*counts, 3]
    rng = np.random.default_rng(seed)
    cells = list(map(str, rng.permutation(np.repeat([f"c{k}" for k in range(len(counts))], counts))))
    values = np.array([1 + int(cell[1:]) for cell in cells]) * (1 + drift * np.arange(len(cells)))
    values = values + rng.normal(0, 0.1, len(cells))
    found = dependence(values, cells)
    assert found is not None
    slope, correlation = reference(values, cells)
    assert found.drift_percent == pytest.approx(slope, rel=1e-6, abs=1e-9)
    assert found.correlation == pytest.approx(correlation, rel=1e-6, abs=1e-9)


def autocorrelated(n: int, phi: float, seed: int) -> FloatArray:
    """Return a first-order autoregressive process of variance 1 with the lag-1 correlation `phi`."""
    rng = np.random.default_rng(seed)
    values = [rng.normal()]
    for noise in rng.normal(size=n - 1):
        values.append(phi * values[-1] + noise * (1 - phi**2) ** 0.5)
    return np.array(values)


def test_a_known_drift_is_found() -> None:
    cells = list(map(str, np.random.default_rng(1).permutation(np.repeat(["a", "b", "c"], 20))))
    means = {"a": 10.0, "b": 100.0, "c": 5000.0}
    noise = np.random.default_rng(2).normal(0, 0.01, 60)
    values = np.array([means[cell] for cell in cells]) * (1 + 0.002 * np.arange(60) + noise)
    found = dependence(values, cells)
    assert found is not None
    assert found.drift_percent == pytest.approx(0.2 / 1.06, rel=0.15)  # the means are those in the middle
    assert found.drift_p < 0.001


def test_a_cell_that_varies_much_does_not_hide_the_drift_of_the_others() -> None:
    cells = list(map(str, np.random.default_rng(1).permutation(np.repeat(["a", "b", "c"], 20))))
    noise = np.array([{"a": 0.001, "b": 0.001, "c": 0.4}[cell] for cell in cells]) * autocorrelated(60, 0.0, 2)
    found = dependence(1 + 0.001 * np.arange(60) + noise, cells)
    assert found is not None
    assert found.drift_percent == pytest.approx(0.1, rel=0.1)
    assert found.drift_p < 0.001


def test_a_known_correlation_is_found_and_is_none_in_independent_values() -> None:
    cells = list(map(str, np.random.default_rng(1).permutation(np.repeat(["a", "b"], 100))))
    means = np.array([{"a": 10.0, "b": 200.0}[cell] for cell in cells])
    correlated = dependence(means * (1 + 0.01 * autocorrelated(200, 0.6, 3)), cells)
    independent = dependence(means * (1 + 0.01 * autocorrelated(200, 0.0, 3)), cells)
    assert correlated is not None
    assert independent is not None
    assert correlated.correlation == pytest.approx(0.6, abs=0.12)
    assert correlated.correlation > correlated.high
    assert independent.low < independent.correlation < independent.high
    assert independent.drift_p > 0.05


def test_the_expected_correlation_of_one_cell_is_that_of_moran() -> None:
    n = 40
    found = dependence(np.random.default_rng(5).normal(10, 1, n), ["a"] * n)
    assert found is not None
    assert found.expected == pytest.approx(-1 / n, abs=0.01)
    assert found.high - found.low == pytest.approx(4 / n**0.5, rel=0.15)


def test_missing_values_and_constant_cells_do_not_enter() -> None:
    values = np.array([1.0, 5.0, np.nan, 2.0, 5.0, 3.0])
    found = dependence(values, ["a", "b", "a", "a", "b", "a"])
    assert found is not None
    assert found.runs == 3
    assert found.drift_percent == pytest.approx(100 * np.polyfit([0, 3, 5], [1 / 2, 1.0, 3 / 2], 1)[0])
    assert dependence(np.array([1.0, 2.0]), ["a", "a"]) is None
    assert dependence(np.array([5.0, 5.0, 5.0]), ["a", "a", "a"]) is None


def test_signals_of_the_outcome() -> None:
    runs = pd.DataFrame(
        {
            "mean_run_s": [100.0, 101.0, 99.0, 104.0],
            "makespan_s": [1000.0, 1001.0, 1100.0, 999.0],
            "loss_of_capacity": [0.10, 0.11, 0.09, 0.30],
        }
    )
    first, second, third, fourth = screening.signals(runs)
    assert (first, second) == ("", "")
    assert third == "H5: makespan +9.9% from the median"
    assert fourth.startswith("H4: mean run time +4.0% from the median of the others; H5: loss of capacity +19.5%")
    assert screening.signals(runs.iloc[2:]) == ["", ""]
