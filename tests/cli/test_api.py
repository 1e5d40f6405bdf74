"""The Python interface: examples in the documentation and in docstrings, notebooks, names and errors."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import matplotlib
import nbclient
import nbformat
import pandas as pd
import pytest

import tracebed.api as tb
from tests.patience import patience
from tracebed.api import budgets, logs, nodes, results, runs, workloads
from tracebed.converters import scaling
from tracebed.converters.formats import reading, writing
from tracebed.orchestrator.calibrating import procedure
from tracebed.orchestrator.scheduling.policies.easy import Easy
from tracebed.orchestrator.scheduling.state import Start, State
from tracebed.orchestrator.testbeds import inventory
from tracebed.orchestrator.testbeds.checking import preparation, survey

ROOT = Path(__file__).resolve().parents[2]
MODULES: tuple[Any, ...] = (workloads, logs, runs, budgets, results, nodes)
MODULES += (reading, writing, scaling, inventory, preparation, survey, procedure)
OF_COMMANDS = {
    *("budget_of_case", "check_folder", "courses_of", "describe_log", "differences", "fit_simulator", "keep_perturbed"),
    *("measured", "reconfigure", "resizes", "validate_suite", "write_gains"),
}
"""Functions without an example: steps of commands, between two files."""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def workload() -> tb.Workload:
    drawn = tb.generate("cirne", jobs=30, nodes=16, seed=3)
    return tb.make_malleable(tb.scale(drawn, nodes=4), share=0.7, seed=1)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_of_the_docstrings_run(module: Any) -> None:
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
    assert result.attempted > 0 or module is results


def test_every_public_function_has_an_example_and_lists_its_arguments() -> None:
    for name in tb.__all__:
        value = getattr(tb, name)
        own = getattr(value, "__module__", "").startswith(("tracebed.api", "tracebed.operators"))
        if not isinstance(value, type) and callable(value) and own:
            assert (">>> " in value.__doc__) is (name not in OF_COMMANDS), name
            known = set(re.findall(r"(\w+)[,:]", value.__doc__))
            assert set(value.__annotations__) - known <= {"return"}, name


@pytest.mark.usefixtures("no_process_is_left")
def test_from_a_model_to_a_report(tmp_path: Path, workload: tb.Workload) -> None:
    sim = tb.simulate(workload, "pref", nodes=4)
    real = tb.replay(workload, "pref", "emulated-4", speed=400_000)
    assert sim.metrics()["mean_wait_s"] > 0
    assert len(sim.jobs) == len(real.jobs) == 30
    assert isinstance(sim.plot_gantt(), matplotlib.figure.Figure)
    comparison = tb.compare(real=real, predicted=sim)
    assert comparison.verdict == "inconclusive"
    assert comparison.verdict in comparison.explain()
    assert comparison.to_html("report.html") == Path("report.html").read_text()
    columns = {"real", "noise", "predicted", "error", "margin", "z", "gate", "verdict"}
    assert set(comparison.to_frame().columns) == columns
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert sim.export("csv", "jobs.csv") is not None
    assert len(pd.read_csv("jobs.csv")) == 30


def test_a_policy_is_a_name_a_class_or_an_instance(workload: tb.Workload) -> None:
    runs_of = [tb.simulate(workload, policy, nodes=4) for policy in ("easy", Easy, Easy())]
    assert {run.info.policy for run in runs_of} == {"easy"}
    pd.testing.assert_frame_equal(runs_of[0].jobs, runs_of[1].jobs)
    pd.testing.assert_frame_equal(runs_of[0].jobs, runs_of[2].jobs)

    @dataclass(frozen=True)
    class OneByOne:
        malleable: ClassVar[bool] = False

        def decide(self, state: State) -> Any:
            head = next(iter(state.queue.jobs()), None)
            if head is not None and state.idle == state.total:
                yield Start(head, state.jobs.nodes[head])

    alone = tb.simulate(workload, OneByOne, nodes=4)
    assert alone.info.policy == "OneByOne"
    assert (alone.jobs["start"].to_numpy()[1:] >= alone.jobs["end"].to_numpy()[:-1]).all()


def test_nodes_are_a_number_an_inventory_a_name_or_a_path(workload: tb.Workload) -> None:
    Path("i.yaml").write_text("nodes: [{name: 'n[1-4]', cores: 1, emulated: true}]\n")
    shapes = (None, 4, "i.yaml", Path("i.yaml"), tb.inventory("i.yaml"), "emulated-4")
    found = [tb.simulate(workload, "easy", nodes) for nodes in shapes]
    assert {run.total_nodes for run in found} == {4}
    with pytest.raises(tb.InputError, match="cores per node"):
        tb.simulate(workload, "easy", "i.yaml", cores_per_node=2)


@pytest.mark.usefixtures("no_process_is_left")
def test_a_replay_works_in_a_thread_and_keeps_its_folder_on_demand(workload: tb.Workload) -> None:
    """Signal handlers can be set in the main thread only."""
    found: list[tb.Run] = []

    def replay() -> None:
        found.append(tb.replay(workload, "easy", "emulated-4", speed=1e6, output="real"))

    thread = threading.Thread(target=replay)
    thread.start()
    thread.join()
    assert found[0].info.state == "completed"
    loaded = tb.Run.load("real")
    assert isinstance(loaded, tb.Run)
    pd.testing.assert_frame_equal(loaded.jobs, found[0].jobs)
    assert list(tb.metrics({"real": "real"}).columns) == ["unit", "real"]


def test_objects_have_a_readable_repr(workload: tb.Workload) -> None:
    run = tb.simulate(workload, "pref", nodes=4)
    for value, words in ((workload, ("30 jobs", "4 nodes")), (run, ("30 jobs", "pref"))):
        assert "\n" not in repr(value)
        assert [word for word in words if word not in repr(value)] == []
        assert "<table" in value._repr_html_()
        assert "<svg" in value._repr_html_()


def test_each_policy_of_tracebed_shows_name_kind_and_parameters() -> None:
    from tracebed.orchestrator.scheduling.policies import registry

    for name in tb.policies().index:
        if not registry.POLICIES.entries[name].value.startswith("tracebed."):
            continue
        policy: Any = registry.load(name)
        assert "\n" not in repr(policy)
        shown = policy._repr_html_()
        assert [key for key in registry.parameters(policy) if f">{key}</th>" not in shown] == []
        assert f"Policy {type(policy).__name__}" in shown
        assert f">{'yes' if policy.malleable else 'no'}</td></tr></table>" in shown


def test_the_table_of_policies_has_their_kind_and_a_summary() -> None:
    table = tb.policies()
    assert table.loc["pref", "malleable"]
    assert not table.loc["easy", "malleable"]
    assert table["summary"].str.len().min() > 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: tb.read("absent.swf"), "absent.swf"),
        (lambda w: tb.generate("cirn", 5), "did you mean cirne"),
        (lambda w: tb.generate("cirne", 5, node=16), "did you mean nodes"),
        (lambda w: tb.simulate(w, "esay"), "did you mean easy"),
        (lambda w: tb.simulate(w, int), "int is not a policy"),
        (lambda w: tb.write(w, "w.xyz"), "w.xyz"),
        (lambda w: tb.make_malleable(w, 2.0), "share"),
        (lambda w: tb.make_malleable(w, 0.5, kind="moldable"), "downey"),
        (lambda w: tb.make_malleable(w, 0.5, speedup="downey", most=0.4), "leave out most"),
        (lambda w: tb.scale(w, load=-1.0), "load"),
        (lambda w: tb.Run.load("absent"), "absent"),
        (lambda w: tb.compare(tb.simulate(w, "easy"), tb.simulate(w, "easy")), "prediction"),
        (lambda w: tb.experiment("absent-study", "out"), "absent-study"),
        (lambda w: tb.clean("absent", "absent-recipe"), "absent"),
        (lambda w: tb.as_run(w), "log"),
        (lambda w: tb.simulate(w, "easy", over_limit="kil"), "did you mean kill"),
        (lambda w: tb.simulate(w, "easy", runtime_model="worst"), "one of ideal, worst-case"),
        (lambda w: tb.simulate(w, "easy", priority="shortest"), "did you mean shortest-first"),
        (lambda w: tb.simulate(w, "easy", engine="typo"), "one of auto, compiled, python"),
        (lambda w: tb.simulate(w, "easy", speed=0.0), "speed is 0"),
        (lambda w: tb.simulate(w, "easy", interval_s=-1.0), "interval_s is -1"),
        (lambda w: tb.simulate(w, "easy", cores_per_node=0), "cores_per_node is 0"),
        (lambda w: tb.simulate(w, "easy", 4.5), "nodes is 4.5"),
        (lambda w: tb.replay(w, "easy", "emulated-4", over_limit="kil"), "did you mean kill"),
        (lambda w: tb.replay(w, "easy", "emulated-4", priority="typo"), "one of fcfs"),
        (lambda w: tb.replay(w, "easy", "emulated-4", balance="typo"), "one of static, dynamic"),
        (lambda w: tb.replay(w, "easy", "emulated-4", speed=0.0), "speed is 0"),
        (lambda w: tb.replay(w, "easy", "emulated-4", speed=1e6, interval_s=-1.0), "interval_s is -1"),
        (lambda w: tb.generate("cirne"), "needs a value for jobs"),
        (lambda w: tb.generate("cirne", 5, seed=-1), "seed is -1"),
        (lambda w: tb.generate("cirne", 5, kind="rigid"), "one of malleable, moldable"),
        (lambda w: tb.generate("cirne", 5, estimates="typo"), "one of tsafrir05"),
        (lambda w: tb.generate("cirne", 5, estimates={"longst": 3600.0}), "did you mean longest"),
        (lambda w: tb.make_malleable(w, 0.5, speedup="typo"), "one of amdahl, downey"),
        (lambda w: tb.make_malleable(w, 0.5, kind="typo"), "one of malleable, moldable"),
        (lambda w: tb.make_malleable(w, 0.5, seed=-1), "seed is -1"),
        (lambda w: tb.make_malleable(w, 0.5, nodes=0), "nodes is 0"),
        (lambda w: tb.metrics([]), "no runs"),
        (lambda w: tb.metrics(tb.simulate(w, "easy"), window="typo"), "arrivals, full"),
        (lambda w: tb.experiment("kassel-knl", "out", workers=0), "workers is 0"),
    ],
)
def test_errors_of_the_caller_are_input_errors(workload: tb.Workload, call: Any, message: str) -> None:
    with pytest.raises(tb.InputError, match=message) as raised:
        call(workload)
    assert isinstance(raised.value, tb.TracebedError)
    assert "\n" not in str(raised.value)


def test_the_import_is_light_and_every_name_is_there() -> None:
    script = """
import json, sys
import tracebed.api as tb
light = sorted({"numpy", "pandas", "matplotlib", "pyarrow"} & set(sys.modules))
missing = [name for name in tb.__all__ if not hasattr(tb, name)]
print(json.dumps([light, missing, sorted(tb.__all__) == sorted(dir(tb))]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], [], True]
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        tb.simulat  # noqa: B018 - the access is the test


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
def test_the_notebook_runs_and_is_kept_without_outputs(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "docs" / "tutorial" / "notebook.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []
    nbclient.NotebookClient(
        notebook, timeout=int(patience(300)), resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = "".join(str(output) for cell in code for output in cell.outputs)
    assert "inconclusive" in shown
    assert "<svg" in shown
    assert "image/png" in shown
    assert (tmp_path / "report.html").is_file()
