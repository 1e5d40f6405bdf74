"""The axis `outages` of experiments: cells with outages from a file, or drawn from the seed of the point."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import tracebed.api as tb
from tracebed.cli import tracebed
from tracebed.ground.errors import InputError
from tracebed.validation.experiments.cell import simulated_cell
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.workloads import Bases

EVENTS = "node,from,to\nn1,40,400\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a workload of two nodes and a file of outages."""
    table = pd.DataFrame({"job_id": ["a", "b"], "submit_time": [0.0, 10.0], "run_time": [100.0, 300.0]})
    workload = tb.Workload(table.assign(nodes=1, cores_per_node=1))
    tb.write(workload, tmp_path / "w.parquet")
    (tmp_path / "events.csv").write_text(EVENTS)
    return tmp_path


def experiment(folder: Path, outages: str, *, more: str = "") -> Path:
    path = folder / "trial.yaml"
    text = f"workloads: {{w: {{file: w.parquet, nodes: 2}}}}\npolicies: [fcfs, easy]\noutages: {outages}\n{more}"
    path.write_text(text)
    return path


def computed(path: Path) -> pd.DataFrame:
    output = path.parent / "out"
    done = CliRunner().invoke(tracebed, ["experiment", str(path), "-o", str(output)])
    assert done.exit_code == 0, done.output
    return pd.read_parquet(output / "trial" / "table.parquet")


def test_cells_have_their_outages(folder: Path) -> None:
    """The second job has the other node until 310 s: the first one begins again then, fails, or has 60 s left."""
    fails = "{file: events.csv, on_node_failure: fail, label: fails}"
    saved = "{file: events.csv, checkpoint_s: 20, label: saved}"
    path = experiment(folder, f"[none, events.csv, {fails}, {saved}]")
    table = computed(path).query("policy == 'fcfs'").set_index("outages")
    assert table["jobs_hit"].fillna(0).to_dict() == {"none": 0, "events.csv": 1, "fails": 1, "saved": 1}
    assert table["makespan_s"].to_dict() == {"none": 310, "events.csv": 410, "fails": 310, "saved": 370}
    work = tb.read(folder / "w.parquet")
    run = tb.simulate(work, "fcfs", 2, outages=folder / "events.csv", checkpoint_s=20.0)
    assert run.metrics()["makespan_s"] == table["makespan_s"]["saved"]


def test_drawn_outages_are_those_of_the_seed_of_the_point(folder: Path) -> None:
    own, fixed = "{mtbf_s: 200, repair_s: 50}", "{mtbf_s: 200, repair_s: 50, seed: 1, label: fixed}"
    table = computed(experiment(folder, f"[{own}, {fixed}]", more="seeds: [0, 1]\n")).query("policy == 'fcfs'")
    found = table.set_index(["outages", "seed"])["mean_response_s"]
    name = "mtbf_s=200.0 repair_s=50.0"
    assert found[name, 1] == found["fixed", 1] == found["fixed", 0] != found[name, 0]
    model = {"mtbf_s": 200.0, "repair_s": 50.0, "seed": 1}
    run = tb.simulate(tb.read(folder / "w.parquet"), "fcfs", 2, outages=model)
    assert run.metrics()["mean_response_s"] == found["fixed", 0]


def test_the_content_of_a_file_of_outages_names_a_cell(folder: Path) -> None:
    def name(path: Path) -> str:
        file = load_experiment(str(path))
        point = file.experiment.points()[0]
        return simulated_cell(file.experiment, point, Bases(file, {}, folder / "out").of(point), jobs=False)[0].identity

    path = experiment(folder, "events.csv")
    first = name(path)
    assert name(path) == first
    (folder / "events.csv").write_text(EVENTS.replace("400", "500"))
    changed = name(path)
    plain = name(experiment(folder, "none"))
    assert len({first, changed, plain}) == 3


@pytest.mark.parametrize(
    ("outages", "says"),
    [
        ("{mtbf_s: 5}", "has mtbf_s, repair_s"),
        ("{mtbf_s: 5, repair_s: 0.1}", "repair_s of outages is 0.1"),
        ("{file: events.csv, shape: 2}", "leave `file` or `shape` out"),
        ("{checkpoint_s: 5}", "has mtbf_s, repair_s"),
        ("{file: none, checkpoint_s: 5}", "`checkpoint_s` has no effect"),
        ("{file: events.csv, on_node_failure: fail, checkpoint_s: 5}", "no job continues from a checkpoint"),
        ("[events.csv, events.csv]", "give the outages other labels"),
    ],
)
def test_invalid_outages_are_refused_with_the_line(folder: Path, outages: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        load_experiment(str(experiment(folder, outages)))
    assert "trial.yaml:3" in (error.value.where or "")


def test_a_missing_file_of_outages_and_real_cells_are_refused(folder: Path) -> None:
    done = CliRunner().invoke(tracebed, ["experiment", str(experiment(folder, "gone.csv")), "-o", str(folder / "out")])
    assert done.exit_code and "gone.csv" in str(done.exception) + done.output
    more = "testbed: {inventory: emulated-4}\n"
    with pytest.raises(InputError, match="`outages` applies to simulated cells only"):
        load_experiment(str(experiment(folder, "events.csv", more=more)))


def test_outages_and_processes_do_not_combine(folder: Path) -> None:
    path = experiment(folder, "events.csv", more="processes: synchronous\n")
    done = CliRunner().invoke(tracebed, ["experiment", str(path), "-o", str(folder / "out")])
    assert done.exit_code and "outages do not apply to processes" in str(done.exception) + done.output
