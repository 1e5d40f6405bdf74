"""Sensitivity of studies to their free choices: names of choices, effects over the same perturbed inputs, plots."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

import tracebed.api as tb
from tests.validation.test_schemas import problems
from tracebed.cli import tracebed
from tracebed.ground.errors import ExitCode, InputError
from tracebed.studies.ledger.sensitivity import (
    INSIDE,
    NOT_SIGNIFICANT,
    OUTSIDE,
    changed_points,
    single_point,
    value_text,
)
from tracebed.studies.ledger.tornado import tornado
from tracebed.validation.experiments.file import ExperimentFile, load_experiment
from tracebed.validation.metrics import all_metrics

STUDY: dict[str, Any] = {
    "workloads": {
        "w": {"model": "lublin99", "options": {"jobs": 60, "nodes": 16}},
        "v": {"model": "lublin99", "options": {"jobs": 20}},
    },
    "malleable": {"shares": [0.5, 1]},
    "policies": ["pref", "easy", {"policy": "pref", "parameters": {"calls": "event"}, "label": "old"}],
    "seeds": [3, 5],
    "windows": {"all": {}, "late": {"after_s": 3600}},
    "exclude": [{"interval_s": 0, "malleability_interval_s": 0}],
    "malleability_interval_s": [0, 10],
    "published": [
        {"figure": "mean_wait_s", "value": 1696, "at": {"policy": ["pref", "old"]}},
        {"figure": "mean_wait_s", "value": 7, "at": {"policy": "easy"}},
        {"figure": "mean_wait_s", "value": -0.5, "relative_to": {"policy": "easy"}},
    ],
}


@pytest.fixture
def study(tmp_path: Path) -> Callable[..., ExperimentFile]:
    def write(**more: Any) -> ExperimentFile:
        path = tmp_path / "s.yaml"
        path.write_text(yaml.safe_dump(STUDY | more, sort_keys=False))
        return load_experiment(str(path))

    return write


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(tracebed, list(arguments), catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize(
    ("name", "value", "base"),
    [
        ("window", "late", "all"),
        ("workload", "v", "w"),
        ("share", 1, 0.5),
        ("share", 0.25, 0.5),  # not of the grid
        ("policy", "easy", "pref"),
        ("policy", "fcfs", "pref"),  # not of the study
        ("interval_s", 10, 0.0),
        ("priority", "shortest-first", "fcfs"),
        ("over_limit", "kill", "extend"),
        ("tau", 60, 10.0),
        ("malleable.preferred", 0.7, 0.8),
        ("preferred", 0.7, 0.8),
        ("limits", "exact", None),
        ("nodes", 32, None),
        ("options.jobs", 30, 60),
        ("scale.arrivals", 0.5, None),
        ("calls", "event", "settle"),
        ("narrow", "true", False),
        ("windows.all.after_s", 60, 0.0),
    ],
)
def test_a_choice_changes_its_key_and_no_other(
    study: Callable[..., ExperimentFile], name: str, value: Any, base: Any
) -> None:
    file = study()
    [(choice, changed)] = changed_points(file, {}, {name: [value]})
    assert (choice.name, choice.base) == (name, base)
    unchanged = single_point(file, {})
    assert unchanged.value(name) == base
    assert changed.value(name) == (True if value == "true" else value)
    names = ["share", "policy", "interval_s", "over_limit", "tau", "preferred", "limits", "calls"]
    if name not in ("policy", "malleable.preferred"):  # a policy has its own parameters
        assert all(changed.value(other) == unchanged.value(other) for other in names if other != name)


def test_the_value_of_the_base_is_not_a_change(study: Callable[..., ExperimentFile]) -> None:
    found = changed_points(study(), {"interval_s": 10}, {"interval_s": [0, 10.0, 60], "calls": ["settle"]})
    assert [choice.value for choice, _ in found] == [0, 60]


def test_a_mapping_changes_several_choices_and_the_base_holds_the_others(study: Callable[..., ExperimentFile]) -> None:
    ticks = {"interval_s": 0, "malleability_interval_s": 10}
    [(choice, changed)] = changed_points(study(), {"policy": "old", "interval_s": 10, "share": 1}, {"ticks": [ticks]})
    point = changed.point
    assert (point.interval_s, point.malleability_interval_s, point.share, point.policy) == (0.0, 10.0, 1.0, "old")
    assert changed.value("calls") == "event"
    assert choice.label == f"ticks: {value_text(ticks)}" == "ticks: interval_s 0, malleability_interval_s 10"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", 1, "seed is drawn at random"),
        ("perturbation", 1, "perturbation is drawn at random"),
        ("colour", "red", "no parameter 'colour'"),
        ("calls", "never", "calls"),
        ("interval_s", -1, "at least 0"),
        ("interval_s", "often", "must be a number"),
        ("window", "z", "unknown window 'z'"),
        ("workload", "z", "unknown workload 'z'"),
        ("policy", "z", "unknown policy 'z'"),
        ("limits", 0, "limits"),
        ("scale.bogus", 1, "unknown key"),
        ("tau.bogus", 1, "has no keys"),
        ("tau.bogus.deep", 1, "has no keys"),
        ("share", 2, "at most 1"),
    ],
)
def test_an_unknown_choice_or_value_is_an_error(
    study: Callable[..., ExperimentFile], name: str, value: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        single_point(study(tau=20), {name: value})
    assert caught.value.what.startswith(f"{name} {value}: ") and caught.value.where is not None


def test_the_choices_of_the_shipped_study_are_valid() -> None:
    file = load_experiment("kassel-knl")
    spec = file.experiment.sensitivity
    found = list(changed_points(file, spec.base, spec.choices))
    assert {choice.name for choice, _ in found} == set(spec.choices)
    assert {each.point.policy for _, each in found} == {"min"}


def expected(changes: dict[str, Any], runs: int) -> list[float]:
    """Return the mean wait of each run by the Python interface, without studies."""
    waits = []
    for run in range(runs):
        seed = (3, 5)[run % 2]
        drawn = tb.generate("lublin99", jobs=60, nodes=16, seed=seed)
        if changes.get("limits") == "exact":
            drawn = tb.Workload(drawn.table.assign(time_limit=drawn.table["run_time"]), drawn.provenance)
        jobs = tb.perturb(tb.make_malleable(drawn, 0.5, seed), run + 1)
        run_ = tb.simulate(
            jobs,
            changes.get("policy", "pref"),
            interval_s=changes.get("interval_s", 0.0),
        )
        waits.append(run_.metrics(after=3600.0 if changes.get("window") == "late" else 0.0)["mean_wait_s"])
    return waits


@pytest.mark.slow
def test_effects_are_those_of_direct_simulations(study: Callable[..., ExperimentFile], tmp_path: Path) -> None:
    wanted = {"policy": ["fcfs"], "interval_s": [600], "limits": ["exact"], "window": ["late"]}
    file = study(sensitivity={"figures": ["mean_wait_s"], "choices": wanted})
    arguments = [
        "experiment",
        "--sensitivity",
        file.source.where,
        "-o",
        str(tmp_path / "out"),
        "--workers",
        "1",
        "--perturb",
        "6",
    ]
    found = json.loads(invoked(*arguments, "--json").stdout)
    assert problems(found, "tracebed-sensitivity-1.json") == []
    assert found["printed"]["mean_wait_s"] == [1696]
    table = pd.read_csv(tmp_path / "out/s/sensitivity.csv")
    assert set(table["figure"]) >= {"mean_wait_s", "utilization"}
    rows = table[table["figure"] == "mean_wait_s"]
    assert rows["change"].abs().is_monotonic_decreasing
    base = expected({}, 6)
    for row in rows.to_dict("records"):
        [value] = wanted[row["choice"]]
        each = np.subtract(expected({row["choice"]: value}, 6), base)
        low, high = np.percentile(each, [2.5, 97.5])
        assert (row["change"], row["low"], row["high"]) == pytest.approx((each.mean(), low, high), abs=1e-6)
        band = np.percentile(base, [2.5, 97.5])
        assert (row["band_low"], row["band_high"]) == pytest.approx(tuple(band))
        inside = band[0] <= np.mean(base) + each.mean() <= band[1]
        clear = low > 1e-6 or high < -1e-6
        assert row["found"] == (NOT_SIGNIFICANT if not clear else INSIDE if inside else OUTSIDE), row
    again = invoked(*arguments)
    assert "0 cells to compute" in again.output and "printed 1,696" in again.output
    assert (tmp_path / "out/s/plots/sensitivity-mean_wait_s.png").stat().st_size > 10_000


def test_choices_on_the_command_line_need_no_section_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tb.write(tb.generate("lublin99", jobs=60, nodes=16, seed=2), "w.parquet")
    Path("w-easy.yaml").write_text("workloads: {w: w.parquet}\npolicies: [easy]\n")
    arguments = ["experiment", "w-easy.yaml", "-x", "interval_s=10,600", "-x", "limits=exact"]
    output = invoked(*arguments, "-b", "over_limit=kill", "--perturb", "6", "--figure", "makespan_s", "--workers", "1")
    assert output.exit_code == ExitCode.OK
    assert [line.split()[:3] for line in output.output.splitlines() if line.startswith("interval_s")]
    table = pd.read_csv(tmp_path / "experiments/w-easy/sensitivity.csv")
    assert sorted(set(zip(table["choice"], table["value"], strict=True))) == [
        ("interval_s", "10"), ("interval_s", "600"), ("limits", "exact"),
    ]  # fmt: skip
    jobs = tb.read("w.parquet")
    waits = [tb.simulate(tb.perturb(jobs, n), "easy", over_limit="kill").metrics()["mean_wait_s"] for n in range(1, 7)]
    assert table[table["figure"] == "mean_wait_s"]["base"].iloc[0] == pytest.approx(np.mean(waits))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["s.yaml", "--sensitivity"], "no free choice"),
        (["s.yaml", "-b", "share=1"], "add --sensitivity"),
        (["s.yaml", "-x", "limits"], "chooses nothing"),
        (["s.yaml", "-x", "limits=exact", "--figure", "beauty"], "beauty"),
    ],
)
def test_a_wrong_call_is_an_error(
    study: Callable[..., ExperimentFile],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    study()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        invoked("experiment", *arguments)


def test_a_change_that_cannot_be_simulated_is_named_and_the_others_are_shown(
    study: Callable[..., ExperimentFile], tmp_path: Path
) -> None:
    file = study()
    arguments = [file.source.where, "-x", "calls=tick,event", "-o", str(tmp_path / "out"), "--workers", "1"]
    found = invoked("experiment", *arguments, "--perturb", "2", "--json")
    assert found.return_value == ExitCode.USAGE
    document = json.loads(found.stdout)
    assert list(document["failed"]) == ["calls: tick"] and "interval" in document["failed"]["calls: tick"]
    assert {row["value"] for row in document["effects"]} == {"event"}
    assert {row["found"] for row in document["effects"]} == {"unknown"}  # two runs are too few


def test_a_figure_that_is_none_is_an_error_of_the_study(study: Callable[..., ExperimentFile]) -> None:
    with pytest.raises(InputError, match="unknown figure 'beauty'"):
        study(sensitivity={"figures": ["beauty"]})


def test_the_plot_shows_what_the_table_has() -> None:
    rows = pd.DataFrame(
        {
            "figure": "mean_wait_s", "choice": ["a", "b", "c"], "base_value": ["1", "-", "x"], "value": ["2", "y", "z"],
            "base": 200.0, "band_low": 190.0, "band_high": 215.0, "change": [-50.0, 10.0, 1.0],
            "low": [-60.0, 5.0, -3.0], "high": [-40.0, 14.0, 2.0], "found": [OUTSIDE, INSIDE, NOT_SIGNIFICANT],
        }
    )  # fmt: skip
    figure = tornado(rows, [150.0], "about")
    [axes] = figure.axes
    bars = [patch for patch in axes.patches if patch.get_height() == 0.66]  # type: ignore[attr-defined]
    assert [bar.get_width() for bar in bars] == pytest.approx([-25.0, 5.0, 0.5])  # type: ignore[attr-defined]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a: 1 → 2", "b: y", "c: x → z"]
    assert axes.get_xlabel() == f"change of {all_metrics()['mean_wait_s'].label} (%); base 200 s"
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == [OUTSIDE, INSIDE, NOT_SIGNIFICANT, "perturbations of the base", "printed: 150"]
    [printed] = [line for line in axes.lines if line.get_label() == "printed: 150"]
    assert list(printed.get_xdata()) == [-25.0, -25.0]  # type: ignore[arg-type]
    assert axes.yaxis_inverted()
