"""Studies: the file and its errors, the grid, the cache of cells, and sweeps that are stopped and resumed."""

from __future__ import annotations

import csv
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import tracebed.api as tb
from tests.commands import call
from tests.patience import GUARD_S
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.malleability import to_malleable
from tracebed.converters.models.registry import draw
from tracebed.converters.workload import Workload
from tracebed.ground.errors import ExitCode, InputError, Tolerated
from tracebed.ground.files import locked_folder
from tracebed.machine.nodes import nodes_of
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.experiments import cell as cells
from tracebed.validation.experiments import runner as grid
from tracebed.validation.experiments import workloads
from tracebed.validation.experiments.experiment_schema import Plot
from tracebed.validation.experiments.file import load_experiment, names
from tracebed.validation.experiments.pools import DaskPool, LocalPool
from tracebed.validation.experiments.runner import plan
from tracebed.validation.experiments.views import plots
from tracebed.validation.experiments.views.averages import base_of
from tracebed.validation.experiments.views.job_plots import ecdf, heat_maps
from tracebed.validation.experiments.workloads import fingerprint
from tracebed.validation.metrics import MeasuredRun, metrics
from tracebed.validation.metrics.metric import REGISTRY as METRICS
from tracebed.validation.pictures import STYLE

POINT: dict[str, Any] = {
    **dict.fromkeys(("seed", "perturbation"), 0),
    **{"share": None, "priority": "fcfs", "runtime_model": "ideal", "window": "A"},
    **dict.fromkeys(("processes", "outages"), "none"),
    **{"interval_s": 0.0, "malleability_interval_s": 0.0},
}
SMALL = """\
workloads:
  w: {model: lublin99, options: {jobs: 60, nodes: 32}}
malleable: {shares: [0, 0.5, 1]}
policies:
  - easy
  - {label: tight, policy: pref, parameters: {count_idle: false}}
seeds: 2
windows: {A: {after_s: 3600}, B: {after_s: 3600, ended: true}}
"""


DRAWN = yaml.safe_load(SMALL)["workloads"]["w"]


@pytest.fixture
def study(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the study SMALL with some keys replaced."""

    def write(**changes: Any) -> Path:
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(SMALL) | changes, sort_keys=False))
        return path

    return write


HERE = ("--workers", "1")
"""One worker is the process of the test."""


run = partial(call, "experiment")


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (("policies:", "polices:"), 4, "polices: unknown key"),
        (("lublin99", "lublin98"), 2, "unknown model 'lublin98'"),
        (("seeds: 2", "seeds: many"), 7, "seeds"),
        (("seeds: 2", "seeds: -1"), 7, "seeds: must be at least 0"),
        (("[0, 0.5, 1]", "[0, 50]"), 3, "malleable.shares.1"),
        (("after_s: 3600, ended", "after_s: -1, ended"), 8, "windows.B.after_s"),
        (("ended: true", "ended: maybe"), 8, "windows.B.ended"),
        (("- easy", "- easy\n  - easy"), 6, "two policies have the name 'easy'"),
        (("seeds: 2", "exclude: [{polcy: easy}]"), 7, "unknown key 'polcy'"),
        (("seeds: 2", "exclude: [{policy: easier}]"), 7, "no point has policy 'easier'"),
        (("seeds: 2", "runtime_model: [ideal, worst]"), 7, "unknown runtime model 'worst'"),
        (("seeds: 2", "priority: fastest"), 7, "unknown priority 'fastest'"),
        (("seeds: 2", "published:\n  - {figure: wait, value: 1}"), 8, "unknown figure 'wait'"),
        (("seeds: 2", "plots:\n  p: {kind: bars, figures: makespan_s, window: C}"), 8, "unknown window 'C'"),
        (("seeds: 2", "plots:\n  p: {kind: heatmap, figures: wait}"), 8, "`relative_to` is required for"),
        (("seeds: 2", "plots:\n  p: {kind: ecdf, figures: wait, by: class}"), 8, "`by` is for the kind `heatmap`"),
        (("{model: lublin99, options: {jobs: 60, nodes: 32}}", "{}"), 2, "one of `file`, `log` and `model`"),
        (("seeds: 2", "seeds: [2"), 8, "is not YAML"),
        (("seeds: 2", "policies: [pref]"), 7, "key 'policies' occurs twice"),
        (("seeds: 2", "tau: -1e3"), 7, "tau: must be "),  # a string in YAML 1.1
        (("seeds: 2", "seeds: 0"), 7, "seeds: 0 seeds"),
        (("seeds: 2", "seeds: 1000001"), 7, "seeds: 1,000,001 seeds"),
        (("seeds: 2", "seeds: [1, 2, 1]"), 7, "seeds: 1 is listed twice"),
        (("seeds: 2", "interval_s: [0, 10, 0.0]"), 7, "interval_s: 0.0 is listed twice"),
        (("[0, 0.5, 1]", "[0, 0.5, 0.5]"), 3, "malleable.shares: 0.5 is listed twice"),
        (("seeds: 2", "seeds: 1000000"), 1, "points, more than 1,000,000"),
        (("- easy", '- {policy: easy, label: "a\\0"}'), 5, "cannot be printed"),
    ],
)
def test_a_broken_study_names_the_line_and_the_key(
    tmp_path: Path, change: tuple[str, str], line: int, says: str
) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(SMALL.replace(*change))
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        load_experiment(str(path))
    assert caught.value.where == f"{path}:{line}"
    assert caught.value.hint


def test_errors_that_only_a_sweep_can_detect_have_a_line(study: Callable[..., Path], tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
        ({"policies": ["easy", "slowest"]}, (), r"small.yaml:14: unknown policy 'slowest' \(one of"),
        ({"policies": [{"policy": "easy", "parameters": {"depth": 3}}]}, (), "policy easy has no parameter 'depth'"),
        ({"workloads": {"w": {"file": "gone.swf"}}}, (), r"small.yaml:\d+: file .*gone.swf does not exist"),
        ({"workloads": {"w": {"model": "cirne", "options": {"jobz": 5}}}}, (), "cirne has no option 'jobz'"),
        ({"workloads": {"w": {"model": "cirne", "options": {"jobs": 0}}}}, (), r"small.yaml:2: 0 jobs is out of range"),
        ({"workloads": {"w": DRAWN | {"nodes": 10**11}}}, (), r"small.yaml:2: invalid system size 100000000000"),
        (
            {"workloads": {"w": {"model": "cirne", "options": {"jobs": 9, "seed": -1}}}},
            (),
            r"small.yaml:\d: model cirne:",
        ),
        ({"workloads": {"w": {"log": {"source": "the archive"}}}}, (), "from the archive .*--log PATH"),
        ({"workloads": {"w": {"log": {}}}}, ("--log", tmp_path / "gone"), "the log of --log .* does not exist"),
        ({}, ("--log", "x"), "matches no log"),
        ({}, ("--only", "policy=pref"), "no point with policy=pref .*easy, tight"),
        ({}, ("--only", "policy"), "chooses nothing"),
        ({}, ("--dask", "tcp://127.0.0.1:9", "--workers", "2"), "--workers is given with --dask"),
    ]
    for changes, words, says in cases:
        result = run(study(**changes), "-o", tmp_path / "out", *words)
        assert isinstance(result.exception, InputError), result.output
        assert re.search(says, str(result.exception)), str(result.exception)


def test_cells_are_measured_as_single_simulations_are(study: Callable[..., Path], tmp_path: Path) -> None:
    """The table's rows equal the results of `predict` and `metrics`; equal simulations are run once."""
    file = load_experiment(str(study()))
    points = file.selected({})
    assert len(points) == 3 * 2 * 2
    folder = tmp_path / "out"
    with locked_folder(folder, "experiment"), LocalPool(2) as pool:
        planned = plan(file, points, folder, {})
        # For each seed: easy once, for all shares; tight for shares 0, 0.5 and 1.
        assert (planned.distinct, len(planned.todo), len(planned.variants)) == (8, 8, 4)
        swept = grid.run(file, planned, folder, pool)
        assert (swept.computed, swept.failed) == (8, {})
        again = plan(file, points, folder, {})
        assert (len(again.todo), again.variants, again.cells) == (0, [], planned.cells)
    assert len(swept.table) == 12 * 2
    assert pd.read_parquet(folder / "small" / "table.parquet").equals(
        pd.read_csv(folder / "small" / "table.csv", float_precision="round_trip")
    )

    from tracebed.converters.malleability import to_malleable

    for seed in (0, 1):
        base = draw("lublin99", jobs=60, nodes=32, seed=seed)
        for label, policy, options in (("easy", "easy", {}), ("tight", "pref", {"count_idle": False})):
            for share in (0.0, 0.5, 1.0):
                mixed = to_malleable(base, share, seed)
                predicted = predict(mixed, nodes_of(base.provenance.system), policy, policy_parameters=options)
                for window, ended in (("A", False), ("B", True)):
                    figures = metrics(predicted, after=3600, ended=ended)
                    wanted = {"seed": seed, "policy": label, "share": share, "window": window}
                    (row,) = (row for row in swept.table.to_dict("records") if wanted.items() <= row.items())
                    for name in ("mean_response_s", "mean_wait_s", "utilization", "makespan_s"):
                        assert row[name] == pytest.approx(figures[name], rel=1e-12), (wanted, name)
                    assert row["mean_run_s_p75"] == pytest.approx(figures["quartiles"]["mean_run_s"][1])


MACHINE = """\
classes: [{names: ["n[1-24]"]}, {names: ["g[1-8]"], gres: {gpu: 2}}]
partitions: [{name: batch, nodes: ["n[1-24]"], default: true}, {name: gpu, nodes: ["g[1-8]"]}]
"""


def test_the_machine_of_a_workload_is_that_of_its_cells(study: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "machine.yaml").write_text(MACHINE)
    base = draw("lublin99", jobs=60, nodes=8, seed=1)
    partition = ["gpu" if number % 3 else "batch" for number in range(len(base))]
    write_workload(Workload(base.table.assign(partition=partition), base.provenance), tmp_path / "w.parquet")
    path = study(workloads={"w": {"file": "w.parquet", "machine": "machine.yaml"}}, policies=["easy"], malleable=None)
    result = run(path, "-o", tmp_path / "out", *HERE)
    assert result.exit_code == 0, result.output
    table = pd.read_parquet(tmp_path / "out/small/table.parquet")
    predicted = predict(tb.read(tmp_path / "w.parquet"), tb.read_machine(tmp_path / "machine.yaml"), "easy")
    assert set(table.loc[table["window"] == "A", "mean_wait_s"]) == {metrics(predicted, after=3600)["mean_wait_s"]}

    first = plan(load_experiment(str(path)), load_experiment(str(path)).selected({}), tmp_path / "out", {})
    (tmp_path / "machine.yaml").write_text(MACHINE.replace("n[1-24]", "n[1-25]"))
    other = plan(load_experiment(str(path)), load_experiment(str(path)).selected({}), tmp_path / "out", {})
    assert not first.todo and len(other.todo) == other.distinct  # the machine is part of the identity of a cell


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        ({"machine": "gone.yaml"}, r"small.yaml:\d+: gone.yaml: there is no such file, and no such inventory"),
        ({"machine": "small.yaml"}, r"small.yaml:\d+: .*small.yaml:1: unknown key 'workloads'"),
        ({"machine": "emulated-4", "nodes": 4}, r"`nodes` and `machine` are given; the machine has its nodes"),
    ],
)
def test_a_machine_that_cannot_be_read_has_a_line(study: Callable[..., Path], workload: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load_experiment(str(study(workloads={"w": DRAWN | workload})))
    assert re.search(says, str(caught.value)), str(caught.value)


@pytest.mark.usefixtures("without_pictures")
def test_studies_that_share_a_folder_share_cells(study: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    first = json.loads(run(study(), "-o", folder, *HERE, "--only", "policy=easy", "--json").stdout)
    other = study(policies=[{"policy": "easy", "label": "another name"}, "fcfs"]).rename(tmp_path / "other.yaml")
    second = json.loads(run(other, "-o", folder, *HERE, "--json").stdout)
    assert (first["cells"], first["computed"]) == (2, 2)
    assert (second["cells"], second["computed"]) == (4, 2)


def test_every_input_of_a_result_identifies_its_cell(study: Callable[..., Path], tmp_path: Path) -> None:
    def identities(**changes: Any) -> set[str]:
        file = load_experiment(str(study(**changes)))
        return {cell.identity for cell in plan(file, file.selected({}), tmp_path / "out", {}).cells.values()}

    found = [
        identities(seeds=1, malleable=None, policies=["easy"], **changes)
        for changes in (
            {},
            {"interval_s": 10},
            {"malleability_interval_s": 10},
            {"runtime_model": "worst-case"},
            {"priority": "aging"},
            {"over_limit": "kill"},
            {"over_limit": "now"},
            {"tau": 60},
            {"windows": {"A": {}}},
            {"workloads": {"w": {"model": "lublin99", "options": {"jobs": 61, "nodes": 32}}}},
            {"workloads": {"w": {"model": "lublin99", "options": {"jobs": 60, "nodes": 32}, "nodes": 33}}},
        )
    ]
    assert all(len(cells) == 1 for cells in found)
    assert len(set.union(*found)) == len(found)


def test_changed_code_of_a_policy_makes_another_cell(
    study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version of a policy does not change while it is being developed."""
    own = tmp_path / "own_policy.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = EntryPoint("own", "own_policy:Own", registry.POLICIES.group)
    monkeypatch.setitem(registry.POLICIES.entries, "own", entry)
    file = load_experiment(str(study(policies=["own"], seeds=1, malleable=None)))
    found = []
    for name in ("nodes", "nodes", "limit"):
        own.write_text(
            "from dataclasses import dataclass\nfrom tracebed.orchestrator.scheduling.state import Start\n"
            "@dataclass(frozen=True)\nclass Own:\n    malleable = False\n    def decide(self, state):\n"
            f"        for job in sorted(state.queue.jobs(), key=lambda job: state.jobs.{name}[job]):\n"
            "            if state.jobs.nodes[job] <= state.idle:\n"
            "                yield Start(job, state.jobs.nodes[job])\n"
        )
        sys.modules.pop("own_policy", None)
        importlib.invalidate_caches()
        workloads.code_of.cache_clear()
        planned = plan(file, file.selected({}), tmp_path / "out", {})
        found += [cell.identity for cell in planned.cells.values()]
    assert found[0] == found[1] != found[2]


def test_planning_reads_no_metadata_per_point(study: Callable[..., Path], tmp_path: Path) -> None:
    """Each point read the metadata of the packages of all metrics: 7 of 8 parts of the time of planning."""
    file = load_experiment(str(study(policies=["easy"], seeds=1, malleable=None, perturbations=40)))
    cells._package_of.cache_clear()
    planned = plan(file, file.selected({}), tmp_path, {})
    assert len(planned.cells) == 40
    found = cells._package_of.cache_info()
    assert 0 < found.misses <= len(METRICS.entries) + len(registry.POLICIES.entries)
    assert found.hits >= 39 * len(METRICS.entries)


def test_malleable_jobs_are_drawn_for_policies_that_use_them(study: Callable[..., Path], tmp_path: Path) -> None:
    """Under easy all jobs are rigid; pref resizes malleable jobs, and sd shares their nodes."""
    file = load_experiment(str(study(policies=["easy", "pref", "sd"], malleable={"shares": 1}, seeds=1)))
    planned = plan(file, file.selected({}), tmp_path, {})
    easy, pref, sd = (cell.workload for cell in planned.cells.values())
    assert [variant.path for variant in planned.variants] == [pref] == [sd]
    assert easy != pref


def start(path: Path, folder: Path) -> subprocess.Popen[str]:
    script = "from tracebed.cli import main; main()"
    words = [sys.executable, "-c", script, "experiment", str(path), "-o", str(folder), "--workers", "2"]
    return subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def cells_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the existing cells with the file facts that change if a cell is rewritten."""
    found = [(path.name, path.stat()) for path in (folder / "cells").glob("*.json")]
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found}


@pytest.mark.usefixtures("no_process_is_left")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_a_stopped_sweep_is_resumed(study: Callable[..., Path], tmp_path: Path, end: signal.Signals) -> None:
    """A stopped sweep keeps its finished cells and leaves no worker; a second sweep computes only the others."""
    jobs = {"jobs": 1500, "nodes": 64}
    path, folder = study(workloads={"w": {"model": "cirne", "options": jobs}}, seeds=5), tmp_path / "out"
    process = start(path, folder)
    deadline = time.monotonic() + GUARD_S
    while len(cells_in(folder)) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()
    if end == signal.SIGKILL:
        process.kill()  # only the main process: its workers must detect its end
    elif end == signal.SIGTERM:
        process.terminate()  # as `kill` sends it: to the main process only
    else:
        os.killpg(process.pid, end)  # as a terminal sends it
    _, said = process.communicate(timeout=GUARD_S)
    assert process.returncode == (-signal.SIGKILL if end == signal.SIGKILL else ExitCode.INTERRUPTED)
    assert end == signal.SIGKILL or "the same command continues the experiment" in said
    assert end == signal.SIGKILL or "leaked" not in said
    while_stopped = cells_in(folder)
    total = 5 * (1 + 3)
    assert 2 <= len(while_stopped) < total

    result = run(path, "-o", folder, "--json", "--workers", "2")
    assert result.exit_code == 0, result.output
    done = json.loads(result.stdout)
    assert (done["cells"], done["computed"]) == (total, total - len(while_stopped))
    after = cells_in(folder)
    assert len(after) == total
    assert while_stopped.items() <= after.items()
    assert not list(folder.rglob("*.part")) or end == signal.SIGKILL


@pytest.mark.usefixtures("without_pictures")
def test_a_failed_cell_does_not_affect_others(study: Callable[..., Path], tmp_path: Path) -> None:
    """The window is beyond one workload's last submission: its cells fail with a reason, the other's succeed."""
    workload = draw("lublin99", jobs=3, nodes=32)
    write_workload(
        type(workload)(workload.table.assign(submit_time=0.0), workload.provenance), tmp_path / "short.parquet"
    )
    path = study(
        workloads={"w": DRAWN, "short": {"file": "short.parquet"}},
        windows={"late": {"after_s": 20_000}},
        policies=["easy"],
        seeds=1,
        malleable=None,
    )
    result = run(path, "-o", tmp_path / "out", *HERE)
    assert result.return_value == ExitCode.USAGE
    assert "no job is submitted after a warm-up of 20000 s" in result.stderr
    table = pd.read_parquet(tmp_path / "out" / "small" / "table.parquet")
    assert list(table["workload"]) == ["w"]


def edited(text: str) -> str:
    """Return the text of a cell with an edited mean wait."""
    content = json.loads(text)
    content["rows"][0]["mean_wait_s"] /= 2
    return json.dumps(content)


DAMAGES: dict[str, tuple[Callable[[str], str], str]] = {
    "empty": (lambda text: "", "not the JSON of a cell"),
    "truncated": (lambda text: text[: len(text) // 2], "not the JSON of a cell"),
    "a list": (lambda text: "[]", "not the JSON of a cell"),
    "null": (lambda text: "null", "not the JSON of a cell"),
    "deeply nested": (lambda text: "[" * 100_000, "not the JSON of a cell"),
    "without rows": (lambda text: text.replace('"rows"', '"row"'), "the key 'rows' is missing"),
    "without a checksum": (lambda text: text.replace('"sha256"', '"sum"'), "the key 'sha256' is missing"),
    "edited": (edited, "does not match its checksum"),
}


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cell_is_computed_again(study: Callable[..., Path], tmp_path: Path, damage: str) -> None:
    path, out = study(policies=["easy", "fcfs"], seeds=1, malleable=None), tmp_path / "out"
    assert run(path, "-o", out, *HERE).exit_code == 0
    table = pd.read_parquet(out / "small" / "table.parquet")
    cell, other = sorted((out / "cells").glob("*.json"))
    whole = cell.read_text()
    change, says = DAMAGES[damage]
    cell.write_text(change(whole))
    with pytest.warns(Tolerated, match="the cell is computed again") as said:
        result = run(path, "-o", out, "--json", *HERE)
    assert json.loads(result.stdout)["computed"] == 1
    (warning,) = [str(item.message) for item in said if issubclass(item.category, Tolerated)]
    assert warning.startswith(f"{cell}: damaged: {says}")
    assert_same_but_seconds(pd.read_parquet(out / "small" / "table.parquet"), table)
    assert json.loads(run(path, "-o", out, "--json", *HERE).stdout)["computed"] == 0

    cell.write_text(other.read_text())
    with pytest.warns(Tolerated, match=f"belongs to the cell {other.stem}"):
        run(path, "-o", out, *HERE)
    assert_same_but_seconds(pd.read_parquet(out / "small" / "table.parquet"), table)


def assert_same_but_seconds(one: pd.DataFrame, other: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(one.drop(columns="seconds"), other.drop(columns="seconds"))


@pytest.mark.usefixtures("without_pictures")
def test_a_cell_that_is_damaged_and_fails_has_no_row(study: Callable[..., Path], tmp_path: Path) -> None:
    path, out = study(policies=["easy"], seeds=1, malleable=None), tmp_path / "out"
    assert run(path, "-o", out, *HERE).exit_code == 0
    (cell,) = (out / "cells").glob("*.json")
    cell.write_text("")

    def failing(cell: object) -> object:
        raise InputError("no")

    with pytest.MonkeyPatch.context() as patch, pytest.warns(Tolerated, match="computed again"):
        patch.setattr(grid, "simulate", failing)
        assert run(path, "-o", out, *HERE).return_value == ExitCode.USAGE


@pytest.mark.usefixtures("without_pictures")
def test_a_damaged_table_of_jobs_is_made_again(study: Callable[..., Path], tmp_path: Path) -> None:
    wide = {"at": {"policy": "fcfs"}, "relative_to": {"policy": "easy"}}
    plot = {"kind": "heatmap", "figures": "wait", **wide}
    path = study(policies=["easy", "fcfs"], seeds=1, malleable=None, plots={"p": plot})
    assert run(path, "-o", tmp_path / "out", *HERE).exit_code == 0
    damaged = next((tmp_path / "out" / "cells").glob("*.jobs.parquet"))
    whole = damaged.read_bytes()
    damaged.write_bytes(b"PAR1")
    with pytest.warns(Tolerated, match=f"{damaged.name}: damaged: does not match its checksum"):
        assert json.loads(run(path, "-o", tmp_path / "out", "--json", *HERE).stdout)["computed"] == 1
    assert damaged.read_bytes() == whole


UNLIKE = """classes:
  - {names: ["n[1-8]"], cores: 1}
  - {names: ["g[1-4]"], cores: 1, gres: {gpu: 2}}
partitions:
  - {name: batch, nodes: ["n[1-8]"], default: true}
  - {name: gpu, nodes: ["g[1-4]"]}
"""


def test_heat_maps_have_rows_by_partition_and_by_class_of_nodes(tmp_path: Path) -> None:
    workload = tb.generate("lublin99", jobs=40, nodes=4, seed=2)
    workload = tb.Workload(workload.table.assign(partition=["gpu", "", "", ""] * 10))
    (tmp_path / "machine.yaml").write_text(UNLIKE)
    run = tb.simulate(workload, "slurm", tb.read_machine(tmp_path / "machine.yaml"))
    ours = grid._jobs(MeasuredRun(run), workload).assign(weight=1.0)
    base = ours.assign(response=ours["response"] * np.where(ours["partition"] == "gpu", 3.0, 2.0))
    expected: dict[str, dict[str, tuple[float, int]]] = {
        "partition": {"batch": (2, 30), "gpu": (3, 10)},
        "class": {"n[1-8]": (2, 30), "g[1-4]": (3, 10)},
    }
    for by, rows in expected.items():
        plot = Plot(kind="heatmap", figures=["response"], at={}, relative_to={}, by=by)
        figure, data = heat_maps(plot, ours, base, ["ours", "base"], "title")
        axes = figure.axes[0]
        assert [text.get_text() for text in axes.get_yticklabels()] == [*rows]
        assert axes.get_ylabel() == {"partition": "partition", "class": "class of nodes"}[by]
        assert data.groupby(by)["jobs"].sum().to_dict() == {name: jobs for name, (_, jobs) in rows.items()}
        assert data["ratio"].tolist() == pytest.approx([rows[name][0] for name in data[by]])
    unknown = ours.drop(columns="class")
    with pytest.raises(InputError, match="the classes of nodes of the jobs of a heat map are unknown"):
        heat_maps(plot, ours, unknown, ["ours", "base"], "title")


def test_only_the_jobs_that_a_plot_shows_are_kept(study: Callable[..., Path], tmp_path: Path) -> None:
    shown = {"kind": "distribution", "figures": ["nodes"], "at": {"policy": "easy", "share": 0, "seed": 0}}
    file = load_experiment(str(study(plots={"d": shown})))
    planned = plan(file, file.selected({}), tmp_path / "out", {})
    assert [point.policy for point, cell in planned.cells.items() if cell.jobs] == ["easy"]
    assert sum(cell.jobs for cell in planned.todo) == 1 < len(planned.todo)


@pytest.mark.usefixtures("without_pictures")
def test_a_damaged_workload_is_made_again(study: Callable[..., Path], tmp_path: Path) -> None:
    """The drawn workload and its malleable variant: replacing one by another valid workload is damage, too."""
    path, out = study(policies=["pref"], seeds=1, malleable={"shares": 0.5}), tmp_path / "out"
    assert run(path, "-o", out, *HERE).exit_code == 0
    table = pd.read_parquet(out / "small" / "table.parquet")
    for cell in (out / "cells").glob("*.json"):
        cell.unlink()
    kept = {file: file.read_bytes() for file in (out / "workloads").glob("*.parquet")}
    assert len(kept) == 2
    for file in kept:
        file.unlink()
        write_workload(draw("lublin99", jobs=60, nodes=32, seed=9), file)
    with pytest.warns(Tolerated, match="the workload is created again") as said:
        assert run(path, "-o", out, *HERE).exit_code == 0
    assert {str(item.message).partition(":")[0] for item in said} == set(map(str, kept))
    assert_same_but_seconds(pd.read_parquet(out / "small" / "table.parquet"), table)
    assert {file: file.read_bytes() for file in kept} == kept


@pytest.mark.usefixtures("without_pictures")
def test_a_log_is_checked_before_anything_is_computed(study: Callable[..., Path], tmp_path: Path) -> None:
    workload = draw("lublin99", jobs=50, nodes=32)
    write_workload(workload, tmp_path / "log.parquet")
    right = {"jobs": 50, "fingerprint": fingerprint(workload), "path": "log.parquet"}
    for changes, says in (
        ({}, None),
        ({"jobs": 51}, "the cleaned log has 50 jobs, not 51"),
        ({"fingerprint": "0" * 64}, "differ from those"),
    ):
        path = study(workloads={"w": {"log": right | changes}}, policies=["easy"], seeds=1, malleable=None)
        result = run(path, "-o", tmp_path / "out", *HERE)
        assert (result.exception is None) is (says is None), result.output
        assert says is None or says in str(result.exception)


def test_a_fingerprint_depends_on_jobs_and_not_on_their_names() -> None:
    workload = draw("lublin99", jobs=20, nodes=32)
    renamed = type(workload)(workload.table.assign(job_id=[f"x{n}" for n in range(20)], user="somebody"))
    longer = type(workload)(workload.table.assign(run_time=workload.floats("run_time") + 1))
    assert fingerprint(renamed) == fingerprint(workload) != fingerprint(longer)


def picture(plot: Plot, rows: pd.DataFrame) -> Figure:
    drawn = plots.bars(plot, rows, "title")
    assert drawn is not None
    return drawn[0]


@pytest.mark.slow
def test_plots_show_what_the_table_holds(study: Callable[..., Path], tmp_path: Path) -> None:
    wide = {"at": {"policy": "tight", "share": 1}, "relative_to": {"policy": "easy", "share": 0}}
    pictures = {
        "bars": {"kind": "bars", "figures": ["mean_response_s", "utilization"], "window": "B"},
        "normalized": {"kind": "normalized", "figures": "makespan_s", "relative_to": {"policy": "easy"}},
        "heat": {"kind": "heatmap", "figures": "slowdown_ref", **wide},
        "days": {"kind": "daily", "figures": "slowdown_ref", **wide},
    }
    path = study(plots=pictures, seeds=1)
    result = run(path, "-o", tmp_path / "out", *HERE)
    assert result.exit_code == 0, result.output
    for name in pictures:
        folder = tmp_path / "out" / "small" / "plots"
        assert (folder / f"{name}.pdf").read_bytes()[:4] == b"%PDF"
        assert f'data-name="{name}"' in (folder.parent / "index.html").read_text(encoding="utf-8")
        assert (folder / f"{name}.png").read_bytes()[1:4] == b"PNG"
        assert "<svg" in (folder / f"{name}.svg").read_text(encoding="utf-8")
        assert len(pd.read_csv(folder / f"{name}.csv"))
    kept = list((tmp_path / "out" / "cells").glob("*.jobs.parquet"))
    assert len(kept) == 2  # only the two points that heat maps and lines show

    file = load_experiment(str(path))
    rows = pd.read_parquet(tmp_path / "out" / "small" / "table.parquet")
    figure = picture(file.experiment.plots["bars"], rows[rows["window"] == "B"])
    for axes, name, scale in zip(figure.axes, ("mean_response_s", "utilization"), (1, 100), strict=True):
        drawn = sorted(bar.get_height() for bars in axes.containers for bar in bars)  # type: ignore[attr-defined]
        assert drawn == pytest.approx(sorted(rows[rows["window"] == "B"][name] * scale))
    figure = picture(file.experiment.plots["normalized"], rows[rows["window"] == "A"])
    (axes,) = figure.axes
    mine = rows[rows["window"] == "A"].set_index(["policy", "share"])["makespan_s"]
    wanted = [mine["tight", share] / mine["easy", share] for share in (0.0, 0.5, 1.0)]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(wanted)  # type: ignore[attr-defined]


def legend_of(figure: Any) -> list[str]:
    """Return the entries of the legend of a figure, each in one line."""
    return [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]


@pytest.mark.usefixtures("without_pictures")
def test_boxes_are_quartiles_and_the_plot_says_of_what(study: Callable[..., Path], tmp_path: Path) -> None:
    """Boxes are over jobs, over time for utilization; a figure without values has no panel and no label."""
    figures = ["mean_response_s", "utilization", "makespan_s"]
    path = study(plots={"p": {"kind": "bars", "figures": figures, "window": "B", "spread": "jobs"}}, seeds=1)
    assert run(path, "-o", tmp_path / "out", *HERE).exit_code == 0
    rows = pd.read_parquet(tmp_path / "out" / "small" / "table.parquet")
    rows = rows[rows["window"] == "B"]
    plot = load_experiment(str(path)).experiment.plots["p"]
    figure = picture(plot, rows)
    boxes = [[path for drawn in axes.collections for path in drawn.get_paths()] for axes in figure.axes]
    assert [sum(len(path) > 0 for path in found) for found in boxes] == [len(rows), len(rows), 0]
    low = sorted(path.vertices[:, 1].min() for path in boxes[0])
    assert low == pytest.approx(sorted(rows["mean_response_s_p25"]))
    assert legend_of(figure) == [
        *("easy", "tight", "box: quartiles over jobs (response, mean)"),
        "box: quartiles over time (utilization in the window)",
    ]

    unknown = rows["policy"] == "easy"
    figure = picture(plot, rows.assign(**{name: rows[name].where(~unknown) for name in figures}))
    assert legend_of(figure)[0] == "tight"
    figure = picture(plot, rows.assign(utilization=np.nan))
    assert [axes.get_ylabel() for axes in figure.axes] == ["response, mean (s)", "makespan (s)"]


def table(**values: Sequence[float]) -> pd.DataFrame:
    """Return rows of a grid: policy -> its mean wait for each seed."""
    return pd.DataFrame(
        [
            {**POINT, "workload": "w", "policy": name, "seed": seed, "mean_wait_s": value}
            for name, sample in values.items()
            for seed, value in enumerate(sample)
        ]
    )


def test_bars_have_the_95_percent_interval_of_the_mean_over_seeds_and_their_values() -> None:
    drawn = plots.bars(Plot(kind="bars", figures=["mean_wait_s"]), table(a=[10, 12, 14], b=[11_000, 11_000]), "")
    assert drawn is not None
    figure, data = drawn
    assert list(data["value"]) == [12.0, 11_000.0]
    half = 4.302653 * 2 / 3**0.5  # the quantile of Student's t of 2 degrees of freedom
    assert data.loc[0, ["low", "high"]].tolist() == pytest.approx([12 - half, 12 + half], rel=1e-6)
    assert data.loc[1, ["low", "high"]].tolist() == [11_000, 11_000]
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"  # a bar of 12 beside one of 11,000
    assert [text.get_text() for text in axes.texts] == ["12", "11k"]
    assert legend_of(figure) == ["a", "b", "mean and its 95 % interval over 2-3 seeds (Student's t)"]
    one = plots.bars(Plot(kind="bars", figures=["mean_wait_s"]), table(a=[10], b=[20]), "")
    assert one is not None
    assert one[0].axes[0].get_yscale() == "linear"
    assert legend_of(one[0]) == ["a", "b"]
    assert one[1]["low"].isna().all()


def test_lines_are_over_the_setting_that_varies() -> None:
    rows = pd.concat([table(a=[10, 12], b=[5, 5]).assign(interval_s=each) for each in (0.0, 60.0, 10.0)])
    drawn = plots.bars(Plot(kind="lines", figures=["mean_wait_s"]), rows, "", width=7.16)
    assert drawn is not None
    figure, data = drawn
    assert figure.get_figwidth() == 7.16
    assert list(figure.axes[0].lines[0].get_xdata()) == [0.0, 10.0, 60.0]
    assert figure.axes[0].get_xlabel() == "interval (s)"
    assert data.groupby("series")["value"].first().to_dict() == {"a": 11.0, "b": 5.0}


def test_distributions_are_means_over_seeds() -> None:
    jobs = [pd.DataFrame({"wait": [0.0, 10.0]}), pd.DataFrame({"wait": [0.0, 0.0]})]
    plot = Plot(kind="ecdf", figures=["wait"])
    with mpl.rc_context(STYLE):
        figure, data = ecdf(plot, {"a": jobs, "b": [pd.DataFrame({"wait": [20.0]})]}, "")
    found = data[data["series"] == "a"].drop_duplicates("value").set_index("value")["share"]
    assert found.to_dict() == {0.0: 0.75, 10.0: 1.0, 20.0: 1.0}
    assert data[data["series"] == "a"]["low"].notna().all() and data[data["series"] == "b"]["low"].isna().all()
    assert legend_of(figure) == ["a", "b", "mean and its 95 % interval over 2 seeds (Student's t)"]


@pytest.mark.usefixtures("svg_only", "unrendered")
def test_printed_values_are_marks_on_their_bars(study: Callable[..., Path], tmp_path: Path) -> None:
    """A value on its bar, the least of several bars on that bar, and a change at our changed baseline."""
    claims: list[dict[str, Any]] = [
        {"element": "table 1", "figure": "makespan_s", "value": 5000, "at": {"policy": "easy", "share": 0}},
        {"element": "table 2", "figure": "makespan_s", "value": 4000, "take": "least", "at": {"policy": "tight"}},
        {
            "figure": "makespan_s",
            "value": -0.5,
            "at": {"policy": "tight", "share": 1},
            "relative_to": {"policy": "easy"},
        },
        {"figure": "makespan_s", "value": 9000, "rule": "at-most", "at": {"policy": "easy", "share": 1}},
        {  # of means over several bars
            "figure": "makespan_s",
            "value": 0,
            "at": {"policy": "tight", "share": [0.5, 1]},
            "relative_to": {"policy": "easy", "share": [0, 0.5]},
        },
        {"figure": "makespan_s", "value": 1, "at": {"policy": "easy"}, "window": "B"},  # of the other window
        {"figure": "mean_wait_s", "value": 1, "at": {"policy": "easy"}},  # of no panel
        {"figure": "makespan_s", "order": [{"policy": "tight"}, {"policy": "easy"}]},  # no value
    ]
    shown = {
        "absolute": {"kind": "bars", "figures": "makespan_s"},
        "some": {"kind": "bars", "figures": "makespan_s", "at": {"share": 0.5}},
        "ratios": {"kind": "normalized", "figures": "makespan_s", "relative_to": {"policy": "easy"}},
    }
    path = study(published=claims, plots=shown, seeds=1)
    assert run(path, "-o", tmp_path / "out", *HERE).exit_code == 0
    folder = tmp_path / "out" / "small"
    table = pd.read_parquet(folder / "table.parquet")
    table = table[table["window"] == "A"].set_index(["policy", "share"])["makespan_s"]
    drawn = pd.read_csv(folder / "plots" / "absolute.csv", keep_default_na=False)
    marks = drawn[drawn["what"] != "mean"].set_index("what")
    assert len(drawn[drawn["what"] == "mean"]) == 6
    assert marks.loc["printed", "value"].tolist() == [5000, 4000]
    assert marks.loc["printed", "series"].tolist() == ["easy", "tight"]
    assert marks.loc["printed", "share"].tolist() == [0, table["tight"].idxmin()]
    assert marks.loc["printed", "element"].tolist() == ["table 1", "table 2"]
    assert marks.loc["printed, by our baseline", "value"] == pytest.approx(0.5 * table["easy", 1.0])
    assert marks.loc["printed: at most", "value"] == 9000
    assert len(marks) == 4
    drawn = pd.read_csv(folder / "plots" / "ratios.csv")
    assert drawn[drawn["what"] == "printed"]["value"].tolist() == [0.5]
    least = table["tight"].idxmin()
    assert drawn[drawn["what"] == "printed, by our baseline"]["value"].tolist() == [
        pytest.approx(4000 / table["easy", least])
    ]
    assert (drawn["what"] != "mean").sum() == 2  # the bars of easy are the baseline

    drawn = pd.read_csv(folder / "plots" / "some.csv")
    assert ("table 2" in set(drawn["element"])) == (least == 0.5)  # without the least bar, no bar has the mark

    file = load_experiment(str(path))
    rows = pd.read_parquet(folder / "table.parquet")
    both = plots.bars(
        file.experiment.plots["absolute"], rows[rows["window"] == "A"], "title", file.experiment.published
    )
    assert both is not None
    points = [line.get_ydata()[0] for line in both[0].axes[0].lines]  # type: ignore[index]
    assert points == pytest.approx([5000, 4000, 0.5 * table["easy", 1.0], 9000])


def test_captions_are_not_cut_off() -> None:
    """Title, legend and labels of a picture with many long names lie within it."""
    names = [f"a policy with a long name, number {number}" for number in range(10)]
    loads = [f"very-heavy-local-forks-{number}" for number in range(5)]
    rows = pd.DataFrame(
        [{**POINT, "workload": load, "policy": name, "mean_wait_s": 10.0} for load in loads for name in names]
    )
    plot = Plot(kind="bars", figures=["mean_wait_s"])
    with mpl.rc_context(STYLE):
        figure = plots.bars(plot, rows, "A title that is much longer than a column of a paper is wide, " * 3)
        assert figure is not None
        FigureCanvasAgg(figure[0]).draw()
    labels = [label.get_text() for label in figure[0].axes[0].get_xticklabels()]
    assert labels == [str(number) for number in range(5)]
    assert figure[0].axes[0].get_xlabel() == "workload very-heavy-local-forks-..."
    inside = figure[0].bbox
    parts = [figure[0]._suptitle, *figure[0].legends, *figure[0].axes]  # type: ignore[attr-defined]
    for part in parts:
        box = part.get_tightbbox() if hasattr(part, "get_tightbbox") else part.get_window_extent()
        assert box.x0 >= inside.x0 - 1 and box.x1 <= inside.x1 + 1, part
        assert box.y0 >= inside.y0 - 1 and box.y1 <= inside.y1 + 1, part


@pytest.mark.usefixtures("without_pictures")
def test_bars_are_normalized_where_nothing_is_made_malleable(study: Callable[..., Path], tmp_path: Path) -> None:
    plot = {"kind": "normalized", "figures": "makespan_s", "relative_to": {"policy": "easy"}}
    path = study(plots={"p": plot}, malleable=None, policies=["easy", "fcfs"])
    result = run(path, "-o", tmp_path / "out", *HERE)
    assert result.exit_code == 0, result.output
    rows = pd.read_parquet(tmp_path / "out" / "small" / "table.parquet")
    mean = rows[rows["window"] == "A"].groupby("policy")["makespan_s"].mean()
    figure = picture(load_experiment(str(path)).experiment.plots["p"], rows[rows["window"] == "A"])
    assert [bar.get_height() for bar in figure.axes[0].patches] == [  # type: ignore[attr-defined]
        pytest.approx(mean["fcfs"] / mean["easy"], rel=0.1)  # mean of the ratios of the seeds
    ]


def test_a_dry_run_lists_the_grid_and_touches_nothing(study: Callable[..., Path], tmp_path: Path) -> None:
    path = study(exclude=[{"policy": "tight", "share": [0, 1]}])
    result = run(path, "--dry-run", "--json", "--only", "seed=1", "-o", tmp_path / "out")
    listed = json.loads(result.stdout)
    grid = {(point["policy"], point["share"]) for point in listed["grid"]}
    assert grid == {("easy", 0.0), ("easy", 0.5), ("easy", 1.0), ("tight", 0.5)}
    assert listed["points"] == 4
    assert not (tmp_path / "out").exists()
    missing = run(study(workloads={"w": "nowhere.parquet"}), "--dry-run").exception
    assert "small.yaml:" in str(missing) and "nowhere.parquet does not exist" in str(missing)


@pytest.mark.parametrize("name", names())
def test_shipped_studies_are_complete(name: str) -> None:
    file = load_experiment(name)
    assert file.experiment.published
    assert file.experiment.plots
    assert all(spec.log is None or (spec.log.jobs and spec.log.source) for spec in file.experiment.workloads.values())
    assert run(name, "--show").stdout == file.source.text


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("sd-") and name != "sd-amdahl"])
def test_the_sd_studies_run_in_proportion_to_cores(name: str) -> None:
    """SD-Policy paper, section 3.4: on half of its cores, a job of any size takes twice its time."""
    chosen = load_experiment(name).experiment.malleable
    assert chosen is not None and chosen.shares == [1.0]
    table = draw("sd-1", jobs=50).table.assign(time_limit=1e6)
    workload = to_malleable(Workload(table), 1.0, nodes=1024, thresholds=chosen.thresholds)
    jobs = Jobs.of(workload)
    assert [jobs.rate(job, jobs.nodes[job], 0.5) for job in range(len(jobs))] == [0.5] * len(jobs)


@pytest.mark.slow
def test_kassel_knl_gives_the_printed_rigid_turnaround(reference_data: Callable[[str], Path], tmp_path: Path) -> None:
    result = run(
        "kassel-knl", "--log", reference_data("logs/cori-knl"), "-o", tmp_path, "--json", *HERE,
        "--only", "policy=firstfit", "--only", "share=0", "--only", "seed=0", "--only", "interval_s=0",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    of_rigid = ("mean_response_s", "policy firstfit, share 0")
    found = [row for row in json.loads(result.stdout)["ledger"] if (row["figure"], row["at"]) == of_rigid]
    (rigid,) = (
        row for row in found if row["assumption"].startswith("interval_s 0") and "window" not in row["assumption"]
    )
    assert round(rigid["ours"][0]) == rigid["printed"] == 4551  # in whole seconds, as printed


@pytest.mark.slow
def test_dask_computes_the_same(study: Callable[..., Path], tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    path = study(seeds=1)
    # With a fixed port, two clusters on one machine leave an open socket.
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(processes=True, **options) as cluster:
        result = run(path, "-o", tmp_path / "dask", "--dask", cluster.scheduler_address)
        assert result.exit_code == 0, result.output
        with DaskPool(cluster.scheduler_address) as pool:  # an error in one item does not affect others
            found = dict(pool.map(_picky, [1, 2, 3]))
        assert (found[1], found[3]) == (10, 30)
        assert str(found[2]) == "two is not liked"
    run(path, "-o", tmp_path / "local", *HERE)
    tables = [pd.read_parquet(tmp_path / name / "small" / "table.parquet") for name in ("dask", "local")]
    pd.testing.assert_frame_equal(*(table.drop(columns="seconds") for table in tables))


def test_an_unreachable_dask_scheduler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("tracebed.validation.experiments.pools.PATIENCE_S", 0.2)
    with pytest.raises(InputError, match="no response from Dask scheduler"), DaskPool("tcp://127.0.0.1:9"):
        pass


def _picky(item: int) -> int:
    if item == 2:
        raise InputError("two is not liked")
    return 10 * item


def test_a_cell_on_the_machine_of_a_slurm_conf_is_kept(tmp_path: Path) -> None:
    """What the simulation of Slurm knows of a cluster is part of the record of the cell, as in a run."""
    conf, path, output = tmp_path / "slurm.conf", tmp_path / "g.yaml", tmp_path / "out"
    conf.write_text(
        "SelectType=select/linear\nPriorityType=priority/basic\nNodeName=n[1-32] CPUs=1\n"
        "PartitionName=batch Nodes=ALL Default=YES MaxTime=60\n"
    )
    policy = {"policy": "slurm", "conf": conf.name}
    path.write_text(yaml.safe_dump({"workloads": {"w": DRAWN}, "policies": [policy], "seeds": 1}))
    first = tb.experiment(path, output, workers=1)
    [kept] = (output / "cells").glob("*.json")
    assert json.loads(kept.read_text())["cell"]["machine"] == tb.slurm_conf(conf).machine.to_json()
    written = kept.stat().st_mtime_ns
    pd.testing.assert_frame_equal(tb.experiment(path, output, workers=1), first)
    assert kept.stat().st_mtime_ns == written


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize("limit", [1, 10_000])
def test_policies_that_finish_different_jobs_are_named(call: Callable[..., Any], limit: int) -> None:
    """A shorter limit rejects long jobs, and the waits of the others fall: no gain of the policy."""
    conf = "SelectType=select/linear\nPriorityType=priority/basic\nNodeName=n[1-32] CPUs=1\n"
    Path("long.conf").write_text(f"{conf}PartitionName=batch Nodes=ALL Default=YES\n")
    Path("short.conf").write_text(f"{conf}PartitionName=batch Nodes=ALL Default=YES MaxTime={limit}\n")
    workload = tb.generate("lublin99", jobs=60, nodes=32, seed=0)
    table = workload.table.assign(time_limit=60.0 * np.ceil(workload.table["run_time"] / 60))
    tb.write(tb.Workload(table, workload.provenance), "w.csv")
    policies = "[{policy: slurm, conf: long.conf, label: long}, {policy: slurm, conf: short.conf, label: short}]"
    Path("g.yaml").write_text(f"workloads: {{w: w.csv}}\npolicies: {policies}\n")
    status, _, said = call("experiment", "g.yaml", "-o", "out", "--workers", "1")
    assert status == 0, said
    kept = int((table["time_limit"] <= 60 * limit).sum())
    text = f"over the jobs that finish, and policies finish different jobs: long 60 of 60, short {kept} of 60"
    assert (text in said) is (kept < 60)
    assert (kept < 60) is (limit == 1)


def test_a_slurm_conf_of_another_size_is_named_with_its_policy_and_the_workload(call: Callable[..., Any]) -> None:
    nodes = "SelectType=select/cons_tres\nPriorityType=priority/basic\nNodeName=n[1-4] CPUs=8\n"
    Path("four.conf").write_text(f"{nodes}PartitionName=a Nodes=n[1-3] Default=YES\nPartitionName=b Nodes=n4\n")
    drawn = "workloads: {drawn: {model: cirne, options: {jobs: 20, nodes: 16}}}\n"
    Path("g.yaml").write_text(f"{drawn}policies: [{{policy: slurm, conf: four.conf, label: ours}}]\n")
    status, _, said = call("experiment", "g.yaml", "-o", "out", "--workers", "1")
    assert status == 2
    assert "the `conf` of policy ours has 4 nodes, but workload drawn has 16 (give the slurm.conf" in said


# Comparisons with a baseline of which `exclude` leaves out cells.

GRID = """workloads: {drawn: {model: cirne, options: {jobs: 40, nodes: 16, seed: 1}}}
malleable: {shares: [0, 0.5, 1]}
policies: [easy, pref]
perturbations: 6
exclude: [{policy: easy, share: [0.5, 1]}]
plots: {n: {kind: normalized, figures: [mean_response_s], relative_to: {policy: easy}}}
published:
  - {figure: mean_response_s, value: -0.5, at: {policy: pref, share: 1}, relative_to: {policy: easy}}
"""


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_baseline_with_one_share_is_compared_with_each_share(call: Callable[..., Any]) -> None:
    """A hand calculation: the mean of the differences over the same changes, and the mean at share 0 as the base."""
    Path("g.yaml").write_text(GRID)
    status, out, said = call("experiment", "g.yaml", "-o", "out", "--workers", "1")
    assert status == 0, said
    table = tb.experiment("g.yaml", "out", workers=1).set_index(["policy", "share", "perturbation"])["mean_response_s"]
    found = {row["share"]: row for row in rows_of(Path("out/g/differences.csv")) if row["figure"] == "mean_response_s"}
    base = table["easy", 0.0]
    for share, against in (("0.0", "easy"), ("0.5", "easy, share 0"), ("1.0", "easy, share 0")):
        changes = table["pref", float(share)] - base
        assert found[share]["against"] == against
        assert float(found[share]["change"]) == pytest.approx(float(changes.mean()))
        assert int(found[share]["pairs"]) == 6
    assert float(found["1.0"]["change"]) < 0
    assert "easy, share 0" in out
    ratios = {row["share"]: float(row["value"]) for row in rows_of(Path("out/g/plots/n.csv")) if row["what"] == "mean"}
    assert ratios == pytest.approx({share: table["pref", float(share)].mean() / base.mean() for share in ratios})
    assert set(ratios) == {"0.0", "0.5", "1.0"}
    ledger = json.loads(Path("out/g/ledger.json").read_text())["rows"][0]
    assert ledger["ours"] == pytest.approx(table["pref", 1.0].mean() / base.mean() - 1)


@pytest.mark.usefixtures("without_pictures")
def test_another_workload_is_no_baseline_and_its_points_are_named(call: Callable[..., Any]) -> None:
    tb.write(tb.generate("cirne", jobs=20, nodes=16, seed=1), "a.parquet")
    tb.write(tb.generate("cirne", jobs=20, nodes=16, seed=2), "b.parquet")
    Path("g.yaml").write_text(
        "workloads: {a: a.parquet, b: b.parquet}\npolicies: [easy, fcfs]\nperturbations: 3\n"
        "exclude: [{policy: easy, workload: b}]\n"
    )
    status, _, said = call("experiment", "g.yaml", "-o", "out", "--workers", "1")
    assert status == 0
    assert {row["workload"] for row in rows_of(Path("out/g/differences.csv"))} == {"a"}
    assert "1 points have no point of easy to compare with, the first workload b, policy fcfs" in said


@pytest.mark.usefixtures("without_pictures")
def test_a_baseline_with_one_seed_is_paired_with_each_seed(call: Callable[..., Any]) -> None:
    tb.write(tb.generate("cirne", jobs=30, nodes=16, seed=1), "a.parquet")
    Path("g.yaml").write_text(
        "workloads: {a: a.parquet}\npolicies: [easy, pref]\nmalleable: {shares: [0, 0.5]}\nseeds: 2\nperturbations: 3\n"
        "exclude: [{policy: easy, share: [0.5]}, {policy: easy, seed: 1}]\n"
    )
    status, _, said = call("experiment", "g.yaml", "-o", "out", "--workers", "1")
    assert status == 0, said
    rows = [row for row in rows_of(Path("out/g/differences.csv")) if row["figure"] == "mean_wait_s"]
    assert [(row["share"], row["pairs"]) for row in rows] == [("0.0", "6"), ("0.5", "6")]
    table = tb.experiment("g.yaml", "out", workers=1).set_index(["policy", "share", "seed", "perturbation"])[
        "mean_wait_s"
    ]
    changes = [
        table["pref", 0.5, seed, number] - table["easy", 0.0, 0, number] for seed in (0, 1) for number in (1, 2, 3)
    ]
    assert float(rows[1]["change"]) == pytest.approx(float(np.mean(changes)))


def test_the_baseline_of_a_point() -> None:
    base: list[dict[str, Any]] = [
        {"workload": "a", "share": 0.0, "interval_s": 0.0},
        {"workload": "a", "share": 0.0, "interval_s": 10.0},
        {"workload": "b", "share": 0.0, "interval_s": 0.0},
    ]
    keys = ("workload", "share", "interval_s")

    def found(workload: str, share: float, interval_s: float) -> list[int]:
        at = {"workload": workload, "share": share, "interval_s": interval_s}
        return [base.index(row) for row in base_of(at, base, keys)]

    assert found("a", 0.5, 10.0) == [1]  # one share stands for every share
    assert found("b", 0.5, 10.0) == [2]
    assert found("a", 0.5, 60.0) == []  # there are two intervals, and neither is this one
    assert found("c", 0.0, 0.0) == []
