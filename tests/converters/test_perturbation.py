"""Perturbation of workloads: what changes in a workload, and the intervals of metrics in commands and studies."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.pages import without_pictures
from tests.runs import fcfs_run
from tests.validation.test_schemas import problems
from tracebed.cli import tracebed
from tracebed.cli.console import explain_falls
from tracebed.converters.perturbation import Perturbation, input_hash, perturbed
from tracebed.converters.workload import Workload
from tracebed.ground.display import cell
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import PERTURBED
from tracebed.validation.report.html import render
from tracebed.validation.significance import (
    INPUT,
    LEAST,
    apart,
    differences,
    figures,
    intervals,
    paired,
    read_figures,
    write_figures,
)


def workload(submit: list[float], **columns: Any) -> Workload:
    table = {"job_id": [f"j{number}" for number in range(len(submit))], "submit_time": submit, "run_time": 100.0}
    return Workload(pd.DataFrame(table | {"nodes": 1, "time_limit": 130.0} | columns))


def by_id(workload: Workload) -> pd.DataFrame:
    return workload.table.set_index("job_id").sort_index()


@given(
    submit=st.lists(st.integers(0, 500).map(float) | st.floats(0, 500), min_size=1, max_size=20),
    seed=st.integers(0, 100),
    submit_s=st.sampled_from([0.0, 0.5, 10.0]),
    limit_s=st.sampled_from([0.0, 60.0]),
)
def test_changes_are_small_and_leave_the_jobs(submit: list[float], seed: int, submit_s: float, limit_s: float) -> None:
    before = workload(submit, deadline=[time + 1000 for time in submit])
    after = perturbed(before, seed, Perturbation(submit_s, limit_s))
    old, new = by_id(before), by_id(after)
    assert old.index.equals(new.index)
    for name in ("run_time", "nodes"):
        assert old[name].equals(new[name])
    moved = new["submit_time"] - old["submit_time"]
    assert (moved.abs() <= submit_s + 1e-9).all() and (new["submit_time"] >= 0).all()
    assert np.allclose(new["deadline"] - new["submit_time"], 1000)
    longer = new["time_limit"] - old["time_limit"]
    assert ((longer >= 0) & (longer < max(limit_s, 1e-9))).all()
    if all(time == round(time) for time in submit):
        assert (new["submit_time"] == new["submit_time"].round()).all()
    assert perturbed(before, seed, Perturbation(submit_s, limit_s)).table.equals(after.table)


def test_without_moves_only_the_order_of_ties_changes() -> None:
    before = workload([0.0] * 5 + [7.0] * 5)
    orders = {tuple(perturbed(before, seed, Perturbation(0.0, 0.0)).table["job_id"]) for seed in range(20)}
    assert len(orders) > 10
    assert {frozenset(order[:5]) for order in orders} == {frozenset(f"j{number}" for number in range(5))}


def test_logged_times_are_left_out() -> None:
    after = perturbed(workload([0.0, 5.0], logged_start=[1.0, 6.0], logged_end=[101.0, 106.0]), 1)
    assert "logged_start" not in after.table and "logged_end" not in after.table


@pytest.mark.parametrize("changes", [{"submit_s": -1.0}, {"limit_s": float("inf")}, {"submit_s": float("nan")}])
def test_an_invalid_change_is_an_error(changes: dict[str, float]) -> None:
    with pytest.raises(InputError, match="out of range"):
        tb.perturb(tb.generate("cirne", jobs=5, nodes=8, seed=1), 1, **changes)


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(tracebed, list(arguments), catch_exceptions=False, standalone_mode=False)


def test_the_command_prints_and_keeps_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = tb.generate("lublin99", jobs=150, nodes=16, seed=2)
    tb.write(made, "w.parquet")
    for policy in ("fcfs", "easy"):
        command = ["simulate", "w.parquet", "--policy", policy, "--perturb", "8,submit=30", "-o", policy]
        assert "95 % of the runs" in invoked(*command).output
    rows = read_figures(tmp_path / "easy")
    assert rows is not None and len(rows) == 8
    expected = [tb.simulate(tb.perturb(made, seed, submit_s=30), "easy").metrics() for seed in range(1, 9)]
    assert rows["mean_wait_s"].tolist() == pytest.approx([figures["mean_wait_s"] for figures in expected])
    found = intervals(rows).loc["mean_wait_s"]
    assert rows["mean_wait_s"].min() <= found["low"] < found["median"] < found["high"] <= rows["mean_wait_s"].max()
    lines = invoked("metrics", "fcfs", "easy").output.splitlines()
    side_by_side, against = [line for line in lines if line.startswith("wait, mean")]
    assert side_by_side.count(" to ") == 2 and against.count(" to ") == 1
    [line] = [line for line in invoked("metrics", "easy", "--after", "60").output.splitlines() if "wait, mean" in line]
    assert " to " not in line  # the intervals are those of all jobs
    invoked("simulate", "w.parquet", "--policy", "easy", "-o", "fcfs", "--replace")
    assert read_figures(tmp_path / "fcfs") is None  # another run has other intervals
    (tmp_path / "easy" / PERTURBED).write_text("a\nb\n")
    with pytest.raises(InputError, match="not a table of metrics"):
        invoked("metrics", "easy")


values = st.lists(st.integers(-20, 20).map(float) | st.just(float("nan")), min_size=1, max_size=30).map(np.array)


def middle(values: Any) -> tuple[float, float]:
    """Return the middle 95 % of values, interpolated between the ordered values: slow and obvious."""
    ordered = sorted(values)
    ends = []
    for share in (0.025, 0.975):
        place = share * (len(ordered) - 1)
        before = int(place)
        after = min(before + 1, len(ordered) - 1)
        ends.append(ordered[before] + (place - before) * (ordered[after] - ordered[before]))
    return ends[0], ends[1]


@given(values, values)
def test_groups_that_are_not_pairs_differ_where_their_intervals_part(first: Any, second: Any) -> None:
    found = apart(first, second)
    one, two = ([value for value in group if value == value] for group in (first, second))
    if not one or not two:
        assert found is None
        return
    (low_1, high_1), (low_2, high_2) = middle(one), middle(two)
    part = low_2 > high_1 + 1e-6 or high_2 < low_1 - 1e-6
    assert found is not None and found.differ == (part if max(len(one), len(two)) >= LEAST else None)
    assert found.change == pytest.approx(np.mean(two) - np.mean(one), abs=1e-6)
    assert found.low - 1e-6 <= found.change <= found.high + 1e-6 or len(one) + len(two) > 2


@given(values, st.integers(0, 1000))
def test_pairs_differ_where_the_interval_of_their_differences_has_no_zero(first: Any, seed: int) -> None:
    second = first + np.random.default_rng(seed).integers(-2, 6, len(first))
    found = paired(first, second)
    known = [b - a for a, b in zip(first, second, strict=True) if a == a]
    if not known:
        assert found is None
        return
    low, high = middle(known)
    assert found is not None and found.pairs == len(known)
    assert found.differ == (low > 1e-6 or high < -1e-6 if len(known) >= LEAST else None)


def test_pairs_show_a_difference_that_is_smaller_than_the_effect_of_perturbations() -> None:
    inputs = np.random.default_rng(1).normal(1000, 200, 20)
    names = [f"input {number}" for number in range(20)]
    base = pd.DataFrame({INPUT: names, "mean_wait_s": inputs})
    other = pd.DataFrame({INPUT: names, "mean_wait_s": inputs + 10}).iloc[::-1]
    found = differences(base, other)["mean_wait_s"]
    assert (found.pairs, found.differ) == (20, True)
    assert found.change == pytest.approx(10)
    assert differences(base.drop(columns=INPUT), other)["mean_wait_s"].differ is False
    elsewhere = other.assign(**{INPUT: [f"other {name}" for name in other[INPUT]]})
    assert (found := differences(base, elsewhere)["mean_wait_s"]).pairs == 0 and found.differ is False


def test_one_value_is_an_interval_of_no_width() -> None:
    ours = pd.DataFrame({"mean_wait_s": np.arange(100.0, 120.0)})
    for printed, differ in ((99.0, True), (105.0, False), (121.0, True)):
        assert differences(pd.DataFrame({"mean_wait_s": [printed]}), ours)["mean_wait_s"].differ is differ
    assert differences(ours[:1], ours[1:2])["mean_wait_s"].differ is None


def test_the_order_of_sums_is_no_difference() -> None:
    first = np.full(10, 1565.0)
    found = paired(first, first * (1 + 1e-14))
    assert found is not None and (found.low, found.high, found.differ) == (0.0, 0.0, False)


def test_inputs_are_hashed_by_the_submissions_alone() -> None:
    rigid = tb.generate("lublin99", jobs=60, nodes=16, seed=2)
    malleable = tb.make_malleable(rigid, 0.5, 0)
    names = [input_hash(tb.perturb(jobs, seed)) for jobs in (rigid, malleable) for seed in range(5)]
    assert names[:5] == names[5:]
    assert len(set(names)) == 5


def test_metrics_says_where_runs_differ_significantly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tb.write(tb.generate("lublin99", jobs=150, nodes=16, seed=2), "w.parquet")
    for policy in ("fcfs", "easy"):
        invoked("simulate", "w.parquet", "--policy", policy, "--perturb", "8", "-o", policy)
        invoked("simulate", "w.parquet", "--policy", policy, "-o", f"{policy}-once")
    found = json.loads(invoked("metrics", "fcfs", "easy", "fcfs-once", "--json").stdout)
    assert problems(found, "tracebed-metrics-1.json") == []
    easy, once = found["differences"]
    assert (easy["run"], easy["against"], once["run"]) == ("easy", "fcfs", "fcfs-once")
    wait = easy["metrics"]["mean_wait_s"]
    rows = {policy: read_figures(tmp_path / policy) for policy in ("fcfs", "easy")}
    assert rows["fcfs"] is not None and rows["easy"] is not None
    each = (rows["easy"]["mean_wait_s"] - rows["fcfs"]["mean_wait_s"]).tolist()
    assert (wait["pairs"], wait["differ"]) == (8, True)
    assert (wait["low"], wait["high"]) == pytest.approx(middle(each))
    assert once["metrics"]["mean_wait_s"] | {"pairs": 0, "differ": False} == once["metrics"]["mean_wait_s"]
    text = invoked("metrics", "fcfs", "easy", "fcfs-once").output
    assert "8 pairs" in text and "not significant: " in text
    assert "significance" not in invoked("metrics", "fcfs-once", "easy-once").output
    alone = json.loads(invoked("metrics", "fcfs-once", "easy-once", "--json").stdout)
    assert {each["differ"] for each in alone["differences"][0]["metrics"].values()} == {None}
    assert problems(alone, "tracebed-metrics-1.json") == []


def test_the_json_of_a_run_has_its_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tb.write(tb.generate("lublin99", jobs=60, nodes=16, seed=2), "w.parquet")
    arguments = ["simulate", "w.parquet", "--policy", "easy", "--json"]
    plain = json.loads(invoked(*arguments, "-o", "plain").stdout)
    found = json.loads(invoked(*arguments, "--perturb", "6,limits=0", "-o", "perturbed").stdout)
    assert problems(plain, "tracebed-run-1.json") == problems(found, "tracebed-run-1.json") == []
    rows = read_figures(tmp_path / "perturbed")
    assert rows is not None
    perturbed = found.pop("perturbed")
    assert found | {"run": "plain"} == plain
    assert (perturbed["runs"], perturbed["submit_s"], perturbed["limit_s"]) == (6, 10.0, 0.0)
    for name, expected in intervals(rows).to_dict("index").items():
        assert perturbed["metrics"].pop(str(name)) == pytest.approx(expected, rel=1e-12, nan_ok=True)
    assert perturbed["metrics"] == {}


def test_a_change_below_minus_100_percent_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of 10 and 990 s: the second policy gains 980 s in one of the pairs, and the mean of the first is 500 s."""
    first, second = np.array([10.0, 990.0] * 4), np.array([9.0, 10.0] * 4)
    found = paired(first, second)
    assert found is not None and "(-196 to " in found.text
    explain_falls([(found.low, found.base)])
    assert "in percent of the mean of the base: below -100 %" in capsys.readouterr().err
    explain_falls([(-499.0, 500.0), (-1.0, 0.0), (-1.0, math.nan)])
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_verdict_says_whether_the_error_is_significant(tmp_path: Path) -> None:
    for seed in range(5):
        fcfs_run(60, stretch=1 + seed / 1000).save(tmp_path / f"real/rep-0{seed + 1}")
    predicted = fcfs_run(60, stretch=1.1, real=False)
    predicted.save(tmp_path / "sim")
    arguments = ["compare", "--real", str(tmp_path / "real"), "--predicted", str(tmp_path / "sim")]
    assert "significance" not in invoked(*arguments).output
    assert json.loads(invoked(*arguments, "--json").stdout)["perturbed_differences"] is None
    write_figures(figures(fcfs_run(60, stretch=1.1 + seed / 1000, real=False) for seed in range(6)), tmp_path / "sim")
    found = json.loads(invoked(*arguments, "--json").stdout)
    assert problems(found, "tracebed-verdict-2.json") == []
    assert found["perturbed_differences"]["mean_run_s"]["differ"] is True
    assert found["perturbed_differences"]["mean_run_s"]["relative"] == pytest.approx(0.1, abs=0.01)
    write_figures(figures(fcfs_run(60, stretch=1 + seed / 50, real=False) for seed in range(6)), tmp_path / "sim")
    output = invoked(*arguments).output
    assert "with perturbed input" in output and "not significant: " in output
    assert "significance is unknown" not in output
    assert json.loads(invoked(*arguments, "--json").stdout)["perturbed_differences"]["mean_run_s"]["differ"] is False
    other_tau = json.loads(invoked(*arguments, "--tau", "20", "--json").stdout)
    assert other_tau["perturbed_differences"] is None  # the figures of perturbed inputs have the default tau


@pytest.mark.slow
@without_pictures()
def test_the_report_has_the_intervals_of_perturbed_runs_and_else_does_not_mention_them(tmp_path: Path) -> None:
    real = [fcfs_run(60, stretch=1 + seed / 200) for seed in range(5)]
    fcfs_run(60, stretch=1.05, real=False).save(tmp_path / "sim")
    plain = render(tb.compare(real, tmp_path / "sim"))
    assert "perturbed" not in plain and 'class="spread" x="' in plain  # the spread of the noise section alone
    write_figures(figures(fcfs_run(60, stretch=1 + seed / 50, real=False) for seed in range(8)), tmp_path / "sim")
    found = tb.compare(real, tmp_path / "sim")
    page = render(found)
    assert found.perturbed_differences is not None and found.perturbed_intervals is not None
    row = found.perturbed_intervals["mean_run_s"]
    assert f"({cell(row['low'])} to {cell(row['high'])})</td>" in page  # all metrics of the pair
    verdicts = {item.name: found.perturbed_differences[item.name] for item in found.metrics}
    for each in verdicts.values():  # the verdict by metric
        value, _, interval = each.text.partition(" (")
        assert f'{value} <span class="soft">({interval}</span>' in page if interval else f"<td>{value}" in page
    assert any(each.text.startswith("not significant: ") for each in verdicts.values())
    assert page.count('height="40%"') == len(found.metrics)  # the differences in margins
    few = pd.read_csv(tmp_path / "sim" / PERTURBED)[: LEAST - 1]
    write_figures(few, tmp_path / "sim")
    unknown = render(tb.compare(real, tmp_path / "sim"))
    assert "with perturbed input" in unknown and 'height="40%"' not in unknown and "not significant: " not in unknown


def test_inputs_that_were_drawn_several_times_are_pairs_in_their_order() -> None:
    first = pd.DataFrame({INPUT: [*"aabbcd"], "mean_wait_s": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]})
    second = pd.DataFrame({INPUT: [*"dcbbaabe"], "mean_wait_s": [60.0, 50.0, 30.0, 40.0, 10.0, 20.0, 70.0, 80.0]})
    found = differences(first, second)["mean_wait_s"]
    assert (found.pairs, found.base, found.change) == (6, 3.5, 31.5)
    assert differences(second, first)["mean_wait_s"].change == -31.5


def test_a_file_without_metrics_is_an_error(tmp_path: Path) -> None:
    (tmp_path / PERTURBED).write_text("foo,bar\n1,2\n")
    with pytest.raises(InputError, match="no metric"):
        read_figures(tmp_path)


def test_two_predictions_are_compared_by_their_metrics(tmp_path: Path) -> None:
    fcfs_run(10, real=False).save(tmp_path / "sim")
    with pytest.raises(InputError, match="is a prediction") as caught:
        invoked("compare", "--real", str(tmp_path / "sim"), "--predicted", str(tmp_path / "sim"))
    assert caught.value.hint is not None and "tracebed metrics" in caught.value.hint


@pytest.mark.usefixtures("without_pictures")
def test_an_experiment_compares_policies_and_printed_figures_over_the_same_changes(tmp_path: Path) -> None:
    study: dict[str, Any] = {
        "workloads": {"w": {"model": "lublin99", "options": {"jobs": 150, "nodes": 16}}},
        "policies": ["fcfs", "easy"],
        "perturbations": 8,
        "published": [
            {"figure": "mean_wait_s", "value": 1.0, "at": {"policy": "easy"}, "note": "far"},
            {"figure": "mean_wait_s", "value": -0.01, "at": {"policy": "easy"}, "relative_to": {"policy": "fcfs"}},
        ],
    }
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(study))
    arguments = ["experiment", str(path), "-o", str(tmp_path / "out"), "--workers", "1"]
    output = invoked(*arguments).output
    table = pd.read_parquet(tmp_path / "out/s/table.parquet")
    waits = {policy: rows.sort_values("perturbation")["mean_wait_s"] for policy, rows in table.groupby("policy")}
    each = [b - a for a, b in zip(waits["fcfs"], waits["easy"], strict=True)]
    differing = pd.read_csv(tmp_path / "out/s/differences.csv").set_index(["policy", "figure"])
    row = differing.loc[("easy", "mean_wait_s")]
    assert (row["against"], row["pairs"], row["differ"]) == ("fcfs", 8, max(each) < 0)
    assert (row["low"], row["high"]) == pytest.approx(middle(each))
    assert "against fcfs, over the same seeds and changes" in output
    held = pd.read_csv(tmp_path / "out/s/ledger.csv")
    assert (held["low"][0], held["high"][0]) == pytest.approx(middle(waits["easy"]))
    shares = [b / a - 1 for a, b in zip(waits["fcfs"], waits["easy"], strict=True)]
    assert (held["low"][1], held["high"][1]) == pytest.approx(middle(shares))
    assert held["runs"].tolist() == [8, 8] and held["matches"][0] == "no"
    study["published"][0]["value"] = float(np.mean(waits["easy"]))
    path.write_text(yaml.safe_dump(study))
    found = json.loads(invoked(*arguments, "--json").stdout)
    assert found["ledger"][0]["matches"] is True
    assert [each["differ"] for each in found["differences"] if each["figure"] == "jobs"] == [False]
    path.write_text(yaml.safe_dump(study | {"perturbations": 0}))
    alone = invoked(*arguments).output
    assert "significance is unknown" in alone and "over the same seeds" not in alone
    assert not (tmp_path / "out/s/differences.csv").exists()  # those of an earlier call
    assert json.loads(invoked(*arguments, "--json").stdout)["ledger"][0]["low"] is None


@pytest.mark.usefixtures("without_pictures")
def test_an_experiment_has_a_point_for_each_change(tmp_path: Path) -> None:
    study = {
        "workloads": {"w": {"model": "lublin99", "options": {"jobs": 150, "nodes": 16}}},
        "malleable": {"shares": [0, 0.5]},
        "policies": ["easy", "pref"],
        "perturbations": 3,
        "perturbation": {"submit_s": 30},
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(study))
    output = invoked("experiment", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "out"), "--workers", "1").output
    table = pd.read_parquet(tmp_path / "out" / "s" / "table.parquet")
    assert len(table) == 2 * 2 * 3
    assert table.groupby(["policy", "share"])["mean_wait_s"].nunique().min() == 3
    rigid = table[table["policy"] == "easy"].groupby("perturbation")["mean_wait_s"]
    assert rigid.nunique().max() == 1  # with malleable jobs or without
    assert next(line for line in output.splitlines() if " easy " in line).count(" to ") >= 4
    mixed = tb.make_malleable(tb.generate("lublin99", jobs=150, nodes=16, seed=0), 0.5, 0)
    [row] = table.query('policy == "pref" and share == 0.5 and perturbation == 2').to_dict("records")
    direct = tb.simulate(tb.perturb(mixed, 2, submit_s=30), "pref").metrics()
    assert row["mean_wait_s"] == pytest.approx(direct["mean_wait_s"])
