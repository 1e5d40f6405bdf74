"""Figures of pages that the same commands give on every machine: another figure is a change of tracebed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tracebed.api as tb
from tests.commands import call
from tests.documented import blocks, of_page
from tests.oracles.redecided import virtual
from tests.runs import replaying
from tracebed.cli.console import duration_text
from tracebed.converters.workload import Workload
from tracebed.ground.display import cell
from tracebed.ground.errors import ExitCode
from tracebed.orchestrator.replay.session import replay

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs/tutorial/index.md").read_text(encoding="utf-8")
NOT_HERE = ("replay", "compare", "explain", "metrics", "nodes")
"""Commands with real processes, or that need a real run."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the commands of the tutorial ran, without those with real runs."""
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in blocks(TUTORIAL):
            for command in block.commands:
                if command[1] not in NOT_HERE and "--calibration" not in command:
                    result = call(*command[1:])
                    assert result.exit_code == 0, result.output
    return folder


def figures(run: Path) -> dict[str, Any]:
    return tb.Run.load(run).metrics()


def prose(page: str) -> str:
    return re.sub(r"\s+", " ", page)


def test_the_tutorial_has_the_figures_of_its_commands(done: Path) -> None:
    told = prose(TUTORIAL)
    log, small = (tb.describe(tb.read(done / name)) for name in ("w.parquet", "small.parquet"))
    for facts, text in (
        (log, "{jobs} jobs on {nodes} nodes in {span}, at a load of {load:.3g}"),
        (small, "{jobs} jobs in {span} remain, at a load of {load:.2g}"),
    ):
        values = {"span": duration_text(facts["span_s"]), "load": facts["offered_load"]}
        assert text.format(jobs=facts["jobs"], nodes=facts["system"]["nodes"], **values) in told
    ideal, delayed = figures(done / "runs/sim"), figures(done / "runs/sim-overheads")
    wait, response = cell(ideal["mean_wait_s"]), cell(ideal["mean_response_s"])
    assert f"after {cell(ideal['makespan_s'])} s, jobs wait {wait} s in the mean, and take {response} s" in told
    assert f"smaller than the predicted {cell(ideal['mean_bounded_slowdown'])}" in told
    more = delayed["mean_response_s"] / ideal["mean_response_s"] - 1
    assert f"response is {cell(delayed['mean_response_s'])} s, {more:.0%} more".replace("%", " %") in told
    assert f"bounded slowdown {cell(delayed['mean_bounded_slowdown'])}, about half" in told
    assert delayed["mean_bounded_slowdown"] / ideal["mean_bounded_slowdown"] == pytest.approx(0.5, abs=0.05)
    assert f"the same, {cell(delayed['mean_wait_s'])} s" in told


def test_the_lesson_of_the_tutorial_happens_at_its_speed_and_not_at_a_lower_one(done: Path) -> None:
    """A replay in virtual time, whose launches and resizes take milliseconds, stands for the one with processes."""
    ideal, work = figures(done / "runs/sim"), tb.read(done / "mixed.parquet")
    for speed in (1000, 200):
        run = done / f"virtual-{speed}"
        replay(work, virtual(4, 8), "pref", run, name="mixed", **replaying(speed=speed))
        real = figures(run)
        if speed == 1000:
            assert f"--speed {speed} -o runs/real" in TUTORIAL
            assert real["mean_response_s"] > 1.1 * ideal["mean_response_s"]
            assert real["mean_bounded_slowdown"] < ideal["mean_bounded_slowdown"]
            budget = tb.error_budget(work, [run]).frame.loc["mean_response_s"]
            assert budget["delays"] / budget["error"] > 0.5
        else:
            for name in ("makespan_s", "mean_wait_s", "mean_response_s", "mean_bounded_slowdown", "utilization"):
                assert ideal[name] == pytest.approx(real[name], rel=0.1)


@pytest.mark.slow
def test_the_page_on_perturbed_inputs_has_the_figures_of_its_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/how-to/perturbations.md").read_text(encoding="utf-8")
    (*makes, shows) = next(blocks(page)).commands
    for command in makes:
        call(*command[1:])
    found = json.loads(call(*shows[1:], "--json").stdout)
    intervals = [run["metrics"]["perturbed"]["mean_wait_s"] for run in found["runs"]]
    easy, conservative = (f"{cell(each['low'])} to {cell(each['high'])} s" for each in intervals)
    assert f"mean wait is {easy} under `easy` and {conservative} under `conservative`" in prose(page)
    wait = found["differences"][0]["metrics"]["mean_wait_s"]
    less, more = (100 * abs(wait[end]) / wait["base"] for end in ("high", "low"))
    assert f"in each of the {wait['pairs']} pairs, by {less:.1f} to {more:.1f} % of the mean" in prose(page)


@pytest.mark.slow
def test_the_page_on_rehearsals_has_the_fault_of_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/how-to/rehearse.md").read_text(encoding="utf-8")
    of_page("rehearse")(tmp_path / "rehearsal.yaml")
    (drawn, _), (faulty,) = (block.commands for block in blocks(page))
    for command in (drawn, faulty):
        call(*command[1:])
    faults = [text for text in tb.Run.load("runs/faults").info.warnings if text.startswith("fault at")]
    assert [line.strip() for line in page.splitlines() if line.startswith("    fault at")] == faults


@pytest.mark.slow
def test_the_page_on_cleaning_has_the_waits_of_its_log(reference_data: Callable[[str], Path], tmp_path: Path) -> None:
    page = prose((ROOT / "docs/how-to/clean.md").read_text(encoding="utf-8"))
    call("clean", str(reference_data("logs/cori-knl")), "--recipe", "cori-knl", "-o", str(tmp_path / "knl.parquet"))
    jobs = tb.read(tmp_path / "knl.parquet")
    logged, predicted = (run.metrics()["mean_wait_s"] for run in (tb.as_run(jobs), tb.simulate(jobs, "easy")))
    told = (
        f"KNL's mean wait was {logged:,.0f} s; EASY, with the machine for these jobs alone, predicts {predicted:,.0f} s"
    )
    assert told in page
    assert f"expect: {{records: 55600, jobs: {len(jobs.table)}}}" in page


@pytest.mark.slow
def test_only_a_baseline_finds_run_times_that_are_two_percent_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/how-to/validate-your-simulator.md says, with the file `mine.yaml` of the page."""
    monkeypatch.chdir(tmp_path)
    call("validate", "--recorded", "emulated", "-o", "suite")
    of_page("validate-your-simulator")(tmp_path / "mine.yaml")
    work = tb.read("suite/workloads/cirne.csv")
    settings: dict[str, Any] = {"nodes": 4, "calibration": "suite/calibration.yaml", "speed": 500}
    baseline = ("--baseline", "baseline.yaml")
    for factor, more, status in (
        (1.0, (*baseline, "--update-baseline", "better"), ExitCode.INCONCLUSIVE),
        (1.02, (), ExitCode.INCONCLUSIVE),
        (1.02, baseline, ExitCode.INACCURATE),
    ):
        longer = Workload(work.table.assign(run_time=factor * work.table["run_time"]), work.provenance)
        tb.simulate(longer, "easy", **settings).jobs.to_csv("cirne-easy.csv", index=False)
        result = call("validate", "mine.yaml", "-o", "validation", "--no-case-pages", *more)
        assert result.return_value == status, result.output
