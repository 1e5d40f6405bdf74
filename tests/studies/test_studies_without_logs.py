"""The studies of the papers whose logs are not at hand, Eagle, Theta and Curie: each runs on generated logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.commands import call
from tests.logs import curie_log, eagle_log, theta_log
from tracebed.ground.errors import InputError
from tracebed.validation.experiments.file import load_experiment

Log = Callable[[Path, int], None]
JOBS = {"kassel-eagle": 143_829, "kassel-theta": 2550, "sd-4": 198_509}
"""As the papers print them."""


run = partial(call, "experiment", "--workers", "1")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the ledger of a study that count."""
    rows = json.loads((folder / "ledger.json").read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if not row["assumption"]]


@pytest.mark.parametrize(
    ("study", "log", "cells", "like_print"),
    [
        (
            "kassel-theta",
            theta_log,
            ["policy=easy,firstfit,keep-pref,min", "share=0,1", "seed=0", "interval_s=1"],
            {"workload_jobs", "workload_jobs_per_hour", "jobs_on_1_node", "jobs_on_8_nodes", "jobs_on_256_nodes",
             "jobs_up_to_10000_s", "utilization"},
        ),
        pytest.param(
            "kassel-eagle",
            eagle_log,
            ["policy=easy,firstfit,keep-pref,min", "share=0,1", "seed=0", "interval_s=10"],
            {"workload_jobs", "workload_jobs_per_hour", "jobs_on_1_node", "jobs_up_to_10000_s", "utilization"},
            marks=pytest.mark.slow,
        ),
        pytest.param("sd-4", curie_log, ["policy=static,MAXSD 10"], {"makespan_s"}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_study_takes_a_log_of_the_papers_shape(
    study: str, log: Log, cells: list[str], like_print: set[str], tmp_path: Path, svg_only: None, unrendered: None
) -> None:
    """The first printed row of each of these figures comes out: of the log as it is, or under rigid jobs."""
    log(tmp_path / "log", JOBS[study])
    only = [word for each in cells for word in ("--only", each)]
    done = run(study, "--log", tmp_path / "log", "-o", tmp_path / "out", *only)
    assert done.exit_code == 0, done.output
    rows = rows_of(tmp_path / "out" / study)
    assert any(row["ours"] and row["figure"] == "mean_response_s" for row in rows)
    first = {row["figure"]: row for row in reversed(rows) if row["figure"] in like_print}
    assert first.keys() == like_print
    assert {figure: row["ours"] for figure, row in first.items() if not row["matches"]} == {}
    assert len(list((tmp_path / "out" / study / "plots").glob("*.svg"))) >= 3


def short_eagle_log(path: Path, jobs: int) -> None:
    """Write an Eagle log with twice the load of the whole one, so that jobs shrink in it."""
    eagle_log(path, jobs, days=14 * jobs / JOBS["kassel-eagle"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "log", "jobs", "seed"),
    [
        ("kassel-theta", theta_log, 2550, ["--only", "seed=0"]),
        ("kassel-eagle", short_eagle_log, 8000, ["--only", "seed=0"]),
        ("sd-4", curie_log, 2000, []),
    ],
)
def test_a_whole_study_has_all_its_rows_and_plots(
    study: str, log: Log, jobs: int, seed: list[str], tmp_path: Path, svg_only: None, unrendered: None
) -> None:
    """All cells, of one seed, on fewer jobs: no row lacks a cell, and each plot is drawn."""
    log(tmp_path / "log", jobs)
    text = load_experiment(study).source.text
    (tmp_path / "mine.yaml").write_text(text.replace(f"jobs: {JOBS[study]}", f"jobs: {jobs}"), encoding="utf-8")
    done = run(tmp_path / "mine.yaml", "--log", tmp_path / "log", "-o", tmp_path / "out", *seed)
    assert done.exit_code == 0, done.output
    rows = rows_of(tmp_path / "out" / "mine")
    assert rows and [row for row in rows if not row["ours"]] == []
    plots = {path.stem for path in (tmp_path / "out" / "mine" / "plots").glob("*.svg")}
    assert plots == load_experiment(study).experiment.plots.keys()


@pytest.mark.parametrize("study", JOBS)
def test_a_study_waits_for_its_log(study: str, tmp_path: Path) -> None:
    missing = run(study, "-o", tmp_path / "out").exception
    assert isinstance(missing, InputError) and "requires a public log" in missing.what
    (workload,) = load_experiment(study).experiment.workloads.values()
    assert workload.log is not None and workload.log.source is not None and workload.log.source in missing.what
    assert missing.hint is not None and "--log PATH" in missing.hint


@pytest.mark.parametrize(
    ("study", "log"), [("kassel-theta", theta_log), ("kassel-eagle", eagle_log), ("sd-4", curie_log)]
)
def test_a_study_refuses_a_log_with_other_jobs(study: str, log: Log, tmp_path: Path) -> None:
    log(tmp_path / "short", 100)
    other = run(study, "--log", tmp_path / "short", "-o", tmp_path / "out").exception
    assert isinstance(other, InputError) and "the cleaned log has 100 jobs, not" in other.what
