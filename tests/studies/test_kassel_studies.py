"""The studies of the Kassel paper: figures of workloads, plots of workloads, and runs on generated logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.commands import call
from tests.logs import CORI, cori_row, write
from tracebed.converters.cleaning.audit import clean
from tracebed.converters.cleaning.recipes import load_recipe
from tracebed.converters.formats.reading import read_raw
from tracebed.converters.workload import Provenance, Step, System, Workload
from tracebed.ground.errors import InputError
from tracebed.studies.ledger.sensitivity import changed_points
from tracebed.validation.experiments import workloads as characteristics
from tracebed.validation.experiments.experiment import Experiment
from tracebed.validation.experiments.experiment_schema import JobsSpec, Plot
from tracebed.validation.experiments.file import load_experiment, names
from tracebed.validation.experiments.views.job_plots import distribution, queue

KASSEL = [name for name in names() if name.startswith("kassel-")]


run = partial(call, "experiment", "--workers", "1")


def rows_of(folder: Path, study: str, element: str) -> list[dict[str, Any]]:
    """Return the rows of a ledger that count, of the elements that begin with `element`."""
    rows = json.loads((folder / study / "ledger.json").read_text())["rows"]
    return [row for row in rows if row["element"].startswith(element) and not row["assumption"]]


# -- figures of workloads


def workload(*steps: Step) -> Workload:
    table = pd.DataFrame(
        {
            "job_id": list("abcd"),
            "submit_time": [100.0, 200.0, 300.0, 7300.0],
            "nodes": [1, 4, 32, 33],
            "run_time": [10.0, 1000.0, 1001.0, 5.0],
        }
    )
    return Workload(table, Provenance(system=System(64, 1), steps=steps))


def cleaned(name: str, before: float, after: float, jobs: int) -> Step:
    return Step(f"clean {name}", {"node_hours_before": before, "node_hours_after": after}, {"jobs before": jobs})


def test_figures_of_a_workload() -> None:
    shares = {
        "single": JobsSpec(nodes=[1, 1]),
        "up_to_32": JobsSpec(nodes=[1, 32]),
        "short": JobsSpec(run_time=[0, 1000]),
        "short_and_small": JobsSpec(run_time=[0, 1000], nodes=[1, 1]),
    }
    steps = [cleaned("drop_copies", 100, 80, 9), cleaned("window", 80, 50, 8), cleaned("drop_partitions", 50, 40, 7)]
    found = characteristics.of_workload(workload(*steps, cleaned("drop_shared", 40, 20, 5)), shares)
    assert found == {
        "workload_jobs": 4.0,
        "workload_jobs_per_hour": 2.0,
        "workload_records": 9.0,
        "workload_removed": 5.0,
        "workload_run_time_lost": pytest.approx(0.6),  # 20 of 50; copies and other periods are no loss
        **{"single": 0.25, "up_to_32": 0.75, "short": 0.75, "short_and_small": 0.25},
    }


def test_a_workload_that_was_not_cleaned_lost_nothing() -> None:
    found = characteristics.of_workload(workload(), {})
    assert (found["workload_records"], found["workload_removed"], found["workload_run_time_lost"]) == (4.0, 0.0, 0.0)


@pytest.mark.usefixtures("without_pictures")
def test_claims_about_the_workload_have_one_row_in_all_windows_and_settings(tmp_path: Path) -> None:
    study = {
        "workloads": {"w": {"model": "lublin99", "options": {"jobs": 40, "nodes": 32}}},
        "policies": ["easy"],
        "interval_s": [0, 10],
        "windows": {"A": {}, "B": {"ended": True}},
        "shares_of_jobs": {"all_of_them": {"nodes": [1, 32]}},
        "published": [
            {"element": "table 1", "figure": "workload_jobs", "value": 40},
            {"element": "table 1", "figure": "all_of_them", "value": 1.0},
            {"element": "table 1", "figure": "makespan_s", "value": 1.0},
        ],
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(study))
    assert run(tmp_path / "s.yaml", "-o", tmp_path / "out").exit_code == 0
    rows = json.loads((tmp_path / "out" / "s" / "ledger.json").read_text())["rows"]
    assert [(row["figure"], row["matches"]) for row in rows[:2]] == [("workload_jobs", True), ("all_of_them", True)]
    assert [row["figure"] for row in rows[2:]] == ["makespan_s"] * 4


# -- plots


def test_a_distribution_has_a_mark_at_each_printed_share() -> None:
    published = [
        {"element": "figure 3", "figure": "on_4", "value": 0.5},
        {"element": "figure 3", "figure": "short", "value": 0.75},
    ]
    experiment = Experiment.model_validate(
        {
            "workloads": {"w": {"model": "lublin99"}},
            "policies": ["easy"],
            "shares_of_jobs": {"on_4": {"nodes": [4, 4]}, "short": {"run_time": [0, 3600]}},
            "published": published,
        }
    )
    plot = Plot(kind="distribution", figures=["nodes", "run_time"])
    jobs = pd.DataFrame({"nodes": [1, 1, 4, 16], "run_time": [36.0, 360.0, 3600.0, 7200.0]})
    figure, drawn = distribution(experiment, plot, jobs, "title")
    marks = drawn[drawn["what"].str.startswith("printed")]
    assert marks[["value", "jobs"]].to_numpy().tolist() == [[4.0, 4.0], [1.0, 3.0]]  # two jobs are smaller than 4 nodes
    lines = drawn[drawn["what"] == "jobs"].set_index(["figure", "value"])["jobs"]
    assert lines["nodes"].to_dict() == {1.0: 2.0, 4.0: 3.0, 16.0: 4.0}
    assert lines["run_time"].to_dict() == {0.01: 1.0, 0.1: 2.0, 1.0: 3.0, 2.0: 4.0}
    assert [text.get_text() for text in figure.axes[0].texts] == ["50 %, ours 25.0 %"]


def test_utilization_and_queue_have_the_marks_of_the_window() -> None:
    experiment = Experiment.model_validate(
        {
            "workloads": {"w": {"model": "lublin99"}},
            "policies": ["easy"],
            "windows": {"A": {"after_s": 50}},
        }
    )
    jobs = pd.DataFrame(
        {"submit": [0.0, 0.0, 100.0], "wait": [0.0, 100.0, 100.0], "run": 100.0, "nodes": [3, 3, 1], "machine": 4}
    )
    figure, drawn = queue(experiment, Plot(kind="queue", figures=["utilization", "queue"]), jobs, "title")
    marks = drawn[drawn["value"].isna()].set_index("figure")["time_s"]
    assert marks.to_dict() == {"end of the warm-up": 50.0, "last submission": 100.0}
    lines = drawn.dropna().set_index("time_s").groupby("figure")["value"]
    early, late = (lines.get_group("utilization").loc[slice(*span)] for span in ((10, 90), (110, 140)))
    assert early.tolist() == pytest.approx([75.0] * len(early))
    assert late.tolist() == pytest.approx([75.0] * len(late))
    assert lines.get_group("queue").loc[10:90].tolist() == pytest.approx([1.0] * len(early))
    assert len(figure.axes) == 2


@pytest.mark.parametrize("kind", ["bars", "distribution", "queue"])
def test_plots_without_a_comparison_take_no_baseline(kind: str) -> None:
    figures = {"bars": "makespan_s", "distribution": "nodes", "queue": "queue"}[kind]
    assert Plot(kind=kind, figures=figures)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not allowed"):
        Plot(kind=kind, figures=figures, relative_to={"policy": "easy"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown figure"):
        Plot(kind=kind, figures="no such figure")  # type: ignore[arg-type]


# -- Cori Haswell


def test_haswell_is_the_papers(reference_data: Callable[[str], Path]) -> None:
    recipe = load_recipe("cori-haswell")
    days = reference_data("logs/cori-haswell")
    done = clean(read_raw([days]), recipe.steps, system=recipe.system)
    assert (done.audit[0].jobs_before, len(done.workload)) == (recipe.expect["records"], recipe.expect["jobs"])
    shares = load_experiment("kassel-haswell").experiment.shares_of_jobs
    found = characteristics.of_workload(done.workload, shares)
    assert found["jobs_up_to_32_nodes"] == pytest.approx(0.978, abs=0.001)
    assert found["jobs_on_1_node"] == pytest.approx(0.5, abs=0.012)
    assert found["jobs_up_to_1000_s"] == pytest.approx(0.75, abs=0.006)
    assert found["workload_run_time_lost"] == pytest.approx(0.1368, abs=0.004)
    earlier = recipe.with_settings({"window": {"start": "2022-11-06 22:00"}})
    before = len(clean(read_raw([days]), earlier.steps, system=recipe.system).workload) - len(done.workload)
    assert before == pytest.approx(119_781 - 91_200 - 28_259, abs=3), "table 2 begins on 7 November"


def test_four_days_with_genepool_have_more_jobs_than_the_papers_five(reference_data: Callable[[str], Path]) -> None:
    days = sorted(path for path in reference_data("logs/cori-haswell").iterdir() if path.is_file())
    partitions = load_recipe("cori-haswell").steps[2][1]["partitions"]
    kept: dict[str, dict[str, Any]] = {
        "drop_partitions": {"partitions": [name for name in partitions if name != "genepool"]},
        "window": {"start": None},
    }
    recipe = load_recipe("cori-haswell").with_settings(kept)
    done = clean(read_raw(days), recipe.steps, system=recipe.system)
    assert len(done.workload) == 31_442 > 119_781 - 91_200


def haswell_row(job: str, submit: str, start: str, end: str) -> str:
    return cori_row(job, "regular_hsw", submit, start, end).replace("cori knl", "cori haswell")


@pytest.mark.usefixtures("without_pictures")
def test_the_files_below_a_log_count_and_their_copies_do_not(tmp_path: Path) -> None:
    rows = [haswell_row("1", "07 10:00:00", "07 10:00:00", "07 11:00:00")]
    rows.append(haswell_row("2", "06 23:00:00", "06 23:00:00", "07 01:00:00"))
    later = haswell_row("3", "08 10:00:00", "08 10:00:00", "08 11:00:00")
    (tmp_path / "log" / "Start-End").mkdir(parents=True)
    write(tmp_path / "log" / "11-7-22.csv", CORI, rows)
    write(
        tmp_path / "log" / "Start-End" / "11-8-22.csv",
        CORI,
        [rows[0], later, later.replace('"3"', '"4"').replace("regular_hsw", "genepool")],
    )
    text = load_experiment("kassel-haswell").source.text
    study = tmp_path / "mine.yaml"
    words = (
        study,
        "--log",
        tmp_path / "log",
        "-o",
        tmp_path / "out",
        "--only",
        "policy=easy",
        "--only",
        "share=0",
        "--only",
        "seed=0",
    )
    study.write_text(text)
    refused = run(*words).exception
    assert isinstance(refused, InputError) and "has 2 jobs, not 28,259 or 27,889" in refused.what
    study.write_text(text.replace("[28259, 27889]", "2").replace("after_s: 43200", "after_s: 0"))
    done = run(*words)
    assert done.exit_code == 0, done.output
    jobs = {row["figure"]: row["ours"] for row in rows_of(tmp_path / "out", "mine", "table")}
    assert jobs["workload_jobs"] == [2.0], "jobs 1 and 3"


# -- choices


@pytest.mark.parametrize("name", [name for name in KASSEL if load_experiment(name).experiment.sensitivity.choices])
def test_the_choices_of_the_studies_are_valid(name: str) -> None:
    file = load_experiment(name)
    spec = file.experiment.sensitivity
    found = list(changed_points(file, spec.base, spec.choices))
    assert {choice.name for choice, _ in found} == set(spec.choices)
