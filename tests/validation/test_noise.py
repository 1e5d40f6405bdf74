"""Noise of repeated runs: pooled variances, the class of the testbed, the file, and the command."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tracebed.api as tb
from tests.commands import call
from tests.runs import make_run
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import metrics
from tracebed.validation.verdict.noise import TestbedClass, noise_floor, repeats_for
from tracebed.validation.verdict.tolerances import Tolerances


def repetition(wait: float, *, workload: str = "a", policy: str = "easy", **info: Any) -> Run:
    """Return a run of two jobs of one node; the second one waits for `wait` s."""
    jobs = [(0.0, 0.0, 100.0, 1), (10.0, 10.0 + wait, 110.0 + wait, 1)]
    return make_run(jobs, machine=2, sha256=workload * 64, policy=policy, **info)


WAITS = {"a": [50.0, 52.0, 49.0, 51.0], "b": [200.0, 230.0, 210.0]}


def repetitions() -> list[Run]:
    return [repetition(wait, workload=name) for name, waits in WAITS.items() for wait in waits]


def test_the_variances_of_the_logarithms_are_pooled_within_cells() -> None:
    profile = noise_floor(repetitions()).profile
    assert profile is not None
    squares = [(math.log(w) - statistics.fmean(map(math.log, waits))) ** 2 for waits in WAITS.values() for w in waits]
    found = profile.noise("mean_wait_s")
    assert found is not None
    assert found.log_sd == pytest.approx(math.sqrt(sum(squares) / 5))
    assert (found.df, found.cells) == (5, 2)
    assert profile.noise("no_such_metric") is None
    assert profile.noise("expand_operations_per_job") is None  # 0 in every run


def test_no_run_with_an_unusual_outcome_is_taken_in_silence() -> None:
    waits = [50.0, 52.0, 49.0, 51.0, 50.5, 400.0]
    floor = noise_floor({f"r{number}": repetition(wait) for number, wait in enumerate(waits)})
    [text] = floor.unusual
    assert text.startswith("r5: H5: makespan +")
    assert floor.profile is not None
    used, without = floor.profile.noise("mean_wait_s"), floor.selections["without unusual"]["mean_wait_s"]
    assert used is not None
    assert (used.df, without.df) == (5, 4)
    assert without.log_sd < 0.05 < used.log_sd


def test_the_profile_estimates_the_noise_that_made_the_runs() -> None:
    rng = np.random.default_rng(2)
    runs = [
        repetition(mean * math.exp(rng.normal(0, 0.05)), workload=name, policy=policy)
        for name, mean in (("a", 40.0), ("b", 400.0))
        for policy in ("easy", "fcfs")
        for _ in range(10)
    ]
    profile = noise_floor(runs).profile
    assert profile is not None
    found = profile.noise("mean_wait_s")
    assert found is not None
    assert found.df == 36
    assert found.log_sd == pytest.approx(0.05, rel=0.3)


def test_the_floor_has_the_statistics_of_each_cell() -> None:
    floor = noise_floor(repetitions())
    waits = {item.cell: item for item in floor.cells if item.metric == "mean_wait_s"}
    assert list(waits) == ["tiny-easy (run 1)", "tiny-easy (run 5)"]
    found = waits["tiny-easy (run 5)"]
    assert found.mean == pytest.approx(statistics.fmean(WAITS["b"]) / 2)
    assert found.sd == pytest.approx(statistics.stdev(WAITS["b"]) / 2)
    assert found.cv == pytest.approx(found.sd / found.mean)


def test_unhealthy_runs_and_copies_are_left_out() -> None:
    sick = {"state": "unhealthy", "causes": [{"state": "unhealthy", "text": "a node is missing"}]}
    floor = noise_floor({"one": repetition(50.0), "two": repetition(50.0), "three": repetition(99.0, health=sick)})
    assert floor.left_out == ("two: the same times as one", "three: unhealthy: a node is missing")
    assert floor.profile is None
    assert {item.repetitions for item in floor.cells} == {1}
    with pytest.raises(InputError, match="no run is usable: run 1: unhealthy: a node is missing"):
        noise_floor([repetition(99.0, health=sick)])


def test_runs_of_another_class_and_predictions_are_refused() -> None:
    with pytest.raises(InputError, match=r"another class of testbed than run 1: speed 1 and 500"):
        noise_floor([repetition(50.0), repetition(51.0, speed=500.0)])
    with pytest.raises(InputError, match=r"is a prediction \(simulator\)"):
        noise_floor([repetition(50.0, real=False)])
    profile = noise_floor(repetitions()).profile
    assert profile is not None
    profile.require(repetition(70.0, workload="c", policy="sd").info, 10.0)
    other = repetition(70.0, execution="computed", parameters={"duty": 0.5, "clock": "steady"}).info
    with pytest.raises(
        InputError, match=r"execution emulated and computed; duty .* and 0\.5; clock unknown and steady"
    ):
        profile.require(other, 10.0)
    with pytest.raises(InputError, match="with tau 10, this verdict with tau 60"):
        profile.require(repetition(70.0).info, 60.0)


def test_the_class_names_the_facts_on_which_noise_depends() -> None:
    info = repetition(1.0, hosts=[{"name": "a", "cpu": "X"}], parameters={"duty": [0.5, 0.3], "clock": "wall"}).info
    found = TestbedClass.of(info)
    assert (found.nodes, found.cores, found.duty, found.clock, found.cpu) == (2, [1], [0.3, 0.5], "wall", ["X"])


def test_the_file_is_read_as_written_and_checked(tmp_path: Path) -> None:
    profile = noise_floor(repetitions()).profile
    assert profile is not None
    path = profile.save(tmp_path / "noise.yaml")
    assert tb.NoiseProfile.load(path) == profile
    assert tb.NoiseProfile.load(path).sha256 == profile.sha256
    raw = yaml.safe_load(path.read_text())
    assert raw["schema"] == "tracebed-noise/1"
    assert [len(cell["runs"]) for cell in raw["cells"]] == [4, 3]
    path.write_text(path.read_text().replace("df: 5", "df: none"))
    with pytest.raises(InputError, match=r"noise\.yaml:\d+: metrics\.\w+\.df"):
        tb.NoiseProfile.load(path)
    path.write_text("schema: tracebed-calibration/1\n")
    with pytest.raises(InputError, match="schema is 'tracebed-calibration/1', not 'tracebed-noise/1'"):
        tb.NoiseProfile.load(path)
    with pytest.raises(InputError, match="cannot read the noise profile"):
        tb.NoiseProfile.load(tmp_path / "missing.yaml")


def test_repetitions_needed_grow_with_the_noise_relative_to_the_margin() -> None:
    def needed(cv: float) -> int | None:
        waits = 1000 * np.exp(cv * np.array([-1.1, -0.6, 0.0, 0.6, 1.1]))
        runs = [repetition(float(wait)) for wait in waits]
        return repeats_for(noise_floor(runs), Tolerances.default().replaced({"wait": "10%"}))["mean_wait_s"]

    quiet, noisy = needed(0.02), needed(0.10)
    assert quiet == 5  # the least number for one workload
    assert noisy is not None
    assert 10 <= noisy <= 20  # protocol: 13 repetitions for a standard deviation of one margin
    assert needed(2.0) is None


def test_one_real_run_is_judged_with_the_noise_of_a_profile(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    profile = noise_floor([repetition(float(wait)) for wait in rng.normal(1000, 8, 8)]).profile
    assert profile is not None
    path = profile.save(tmp_path / "noise.yaml")
    real = repetition(1000.0)
    near, far = (repetition(wait, real=False) for wait in (1005.0, 1600.0))
    assert tb.compare(real, near).verdict == "inconclusive"
    assert tb.compare(real, near, noise=path).verdict == "accurate"
    assert tb.compare(real, far, noise=path).verdict == "inaccurate"
    assert any(text.startswith("profile-based") for text in tb.compare(real, near, noise=path).warnings)
    with pytest.raises(InputError, match="another class of testbed: speed 1 and 500"):
        tb.compare(repetition(1000.0, speed=500.0), near, noise=path)


def test_the_command_prints_the_floor_and_writes_the_profile(tmp_path: Path) -> None:
    for number, run in enumerate(repetitions(), 1):
        run.save(tmp_path / "campaign" / run.info.workload["sha256"][0] / f"rep-{number:02d}")
    path = tmp_path / "noise.yaml"
    done = call("metrics", tmp_path / "campaign", "--noise", path)
    assert f"tiny-easy ({tmp_path / 'campaign' / 'b' / 'rep-05'})" in done.stdout
    assert "repetitions needed" in done.stdout
    assert tb.NoiseProfile.load(path).metrics["mean_wait_s"].df == 5
    found = json.loads(call("metrics", tmp_path / "campaign", "--noise", path, "--replace", "--json").stdout)
    assert found["schema"] == "tracebed-noise-floor/1"
    assert {item["repetitions"] for item in found["cells"]} == {3, 4}
    assert found["profile"]["metrics"]["mean_wait_s"]["df"] == 5
    one = tmp_path / "campaign" / "a" / "rep-01"
    assert [item.mean for item in tb.noise(one).cells if item.metric == "mean_wait_s"] == [
        metrics(Run.load(one))["mean_wait_s"]
    ]
    for words, message in (
        ((one, "--noise", tmp_path / "few.yaml"), "the repetitions are too few for a noise profile"),
        ((tmp_path, "--noise", tmp_path / "few.yaml"), "is neither a run nor a folder of repetitions"),
        ((one, "--noise", path), "exists: a noise profile"),
        ((one, "--noise", path, "--replace", "--window", "full"), "--window does not apply with --noise"),
        ((one, "--tolerances", path), "--tolerances and --replace are for a noise profile"),
    ):
        done = call("metrics", *words)
        assert isinstance(done.exception, InputError)
        assert message in str(done.exception)
    assert not (tmp_path / "few.yaml").exists()
    shown = call("metrics", one, "--noise", tmp_path / "few.yaml")
    assert "repetitions needed" in shown.stdout  # the tables come before the error


def test_the_tolerances_decide_on_the_repetitions_needed(tmp_path: Path) -> None:
    for number, wait in enumerate([900.0, 950.0, 1000.0, 1050.0, 1100.0]):
        repetition(wait).save(tmp_path / "cell" / f"rep-{number:02d}")
    needed = []
    for margin in ("10%", "40%"):
        (tmp_path / "t.yaml").write_text(f"margins: {{wait: {margin}}}\n")
        words = ("--noise", tmp_path / "noise.yaml", "--replace", "--tolerances", tmp_path / "t.yaml", "--json")
        needed.append(json.loads(call("metrics", tmp_path / "cell", *words).stdout)["repeats_needed"]["mean_wait_s"])
    assert needed[0] > needed[1]
