"""Ranking of policies: decisive pairs, concordance, rank correlation; and policies compared by their real runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tracebed.api as tb
from tests.commands import call
from tests.runs import campaign, fcfs_run
from tracebed.orchestrator.run import Run
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.ranking import Observation, in_place, rank, welch_interval
from tracebed.validation.verdict.validate import validate

STRETCHES = (1.0, 1.02, 1.05, 1.01, 1.03)
"""A drift of the machine that both policies meet."""


def observed(
    policy: str, real: list[float], predicted: float, workload: str = "w", metric: str = "wait"
) -> Observation:
    return Observation(workload, policy, metric, np.array(real), np.array([predicted]))


def test_an_added_repetition_is_paired_in_the_place_of_an_excluded_one() -> None:
    nan = float("nan")
    assert in_place(np.array([1.0, nan, 3.0, 4.0]), 3).tolist() == [1.0, 4.0, 3.0]
    assert in_place(np.array([1.0, 2.0, 3.0, nan]), 3).tolist() == [1.0, 2.0, 3.0]
    assert len(in_place(np.array([1.0, 2.0, 3.0, 4.0]), 3)) == 4  # another number of repetitions: no pairs


def test_the_interval_is_that_of_welch() -> None:
    a, b = np.array([1.0, 2.0, 4.0]), np.array([3.0, 3.5, 4.5, 6.0])
    low, high = welch_interval(a, b)
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))
    assert welch_interval(np.ones(3), np.zeros(3)) == (1, 1)
    assert all(map(math.isnan, welch_interval(np.ones(1), np.zeros(3))))


def test_pairs_count_only_if_the_noise_decides_them() -> None:
    found = rank(
        [
            observed("easy", [100.0, 101.0, 99.0], 100.0),
            observed("fcfs", [200.0, 198.0, 203.0], 190.0),
            observed("sd", [100.5, 103.0, 98.0], 90.0),
        ]
    )
    assert found is not None
    assert [(pair.first, pair.second, pair.decisive) for pair in found.pairs] == [
        ("easy", "fcfs", True),
        ("easy", "sd", False),
        ("fcfs", "sd", True),
    ]
    assert (found.concordant, found.decisive, found.passed) == (2, 2, True)
    assert found.orders[0].policies == ("easy", "sd", "fcfs")
    assert found.orders[0].predicted == ("sd", "easy", "fcfs")
    assert found.orders[0].tau_b == pytest.approx(1 / 3)
    assert found.headline.startswith(
        "of 3 comparisons (3 pairs of policies, by each metric), the real runs decide 2, and 2 of these 2 are predicted"
    )
    assert "a rank correlation (tau-b) of 3 policies means little" in found.headline
    json.dumps(found.to_json())


def test_a_decisive_pair_in_the_opposite_order_fails_and_a_predicted_tie_does_not() -> None:
    real = [
        observed("easy", [10.0, 11.0], 30.0),
        observed("fcfs", [20.0, 21.0], 20.0),
        observed("sd", [40.0, 41.0], 20.0),
    ]
    found = rank(real)
    assert found is not None
    assert [pair.sentence for pair in found.discordant] == [
        "w, wait: easy below fcfs in the real runs, above in the predictions",
        "w, wait: easy below sd in the real runs, above in the predictions",
    ]
    assert not found.passed
    assert (found.concordant, found.decisive) == (0, 3)


def test_values_of_0_are_compared_by_their_difference() -> None:
    found = rank([observed("easy", [0.0, 0.0, 0.1], 0.0), observed("fcfs", [20.0, 21.0, 22.0], 5.0)])
    assert found is not None
    assert found.pairs[0].real == pytest.approx(0.1 / 3 - 21)
    assert found.passed
    assert found.decisive == 1


def test_undefined_values_and_single_policies_give_no_ranking() -> None:
    assert rank([observed("easy", [1.0, 2.0], 1.0), observed("fcfs", [math.nan], 1.0)]) is None
    assert rank([observed("easy", [1.0, 2.0], 1.0), observed("fcfs", [1.0, 2.0], 1.0, workload="v")]) is None
    single = rank([observed("easy", [1.0], 1.0), observed("fcfs", [2.0], 1.0)])
    assert single is not None
    assert single.decisive == 0
    assert single.passed
    assert "decides none of 1 comparison (1 pair of policies" in single.headline


def test_a_validation_ranks_the_policies_of_each_workload() -> None:
    def case(policy: str, real: float, predicted: float) -> Case:
        runs = [fcfs_run(40, stretch=real * (1 + 0.001 * k), policy=policy) for k in range(5)]
        return Case.of(runs, [fcfs_run(40, stretch=predicted, real=False, policy=policy)])

    good = validate([case("easy", 1.0, 1.0), case("fcfs", 1.3, 1.3)])
    assert good.ranking is not None
    assert good.ranking.passed
    assert good.ranking.concordant == good.ranking.decisive > 0
    assert good.to_json()["ranking"]["passed"]
    wrong = validate([case("easy", 1.0, 1.3), case("fcfs", 1.3, 1.0)])
    assert any(
        "policies in the wrong order: tiny, wait, mean: easy below fcfs in the real runs" in text
        for text in wrong.warnings
    )
    assert validate([case("easy", 1.0, 1.0)]).ranking is None


@pytest.mark.slow
def test_an_exact_simulator_rarely_fails() -> None:
    """Five policies, two of them equal, five repetitions with 3 % noise: fewer than 5 % of the trials fail."""
    rng = np.random.default_rng(3)
    means = np.array([100.0, 100.0, 101.0, 120.0, 150.0])
    failed = 0
    for _ in range(300):
        real = means[:, None] * np.exp(rng.normal(0, 0.03, (5, 5)))
        found = rank([observed(f"p{i}", real[i].tolist(), float(means[i])) for i in range(5)])
        assert found is not None
        failed += not found.passed
    assert failed / 300 < 0.05


def repetitions(factor: float, noise: float = 0.001, **info: Any) -> list[Run]:
    """Return repetitions whose run times are longer by `factor`, by a drift, and by noise."""
    own = factor * np.array(STRETCHES) * (1 + noise * np.random.default_rng(int(100 * factor)).standard_normal(5))
    return [fcfs_run(30, seed=1, stretch=float(each), source="replay", **info) for each in own]  # type: ignore[arg-type]


def test_a_drift_that_both_policies_meet_cancels_in_the_pairs() -> None:
    slow, fast = repetitions(1.0), repetitions(0.98)
    found = tb.compare({"slow": slow, "fast": fast})
    row = found.to_frame().loc[("fast", "median_run_s")]
    values = [np.array([run.metrics()["median_run_s"] for run in map(tb.Run.of, runs)]) for runs in (slow, fast)]
    interval = stats.ttest_rel(values[1], values[0]).confidence_interval(0.95)
    assert (row["low"], row["high"]) == pytest.approx(tuple(np.array(interval) / values[0].mean()))
    assert row["change"] == pytest.approx(-0.02, abs=0.002)
    assert (row["pairs"], row["differ"]) == (5, True)
    unpaired = tb.compare({"slow": slow, "fast": fast[:4]}).to_frame().loc[("fast", "median_run_s")]
    assert (unpaired["pairs"], unpaired["differ"]) == (0, False)  # the drift hides the difference


def test_equal_policies_do_not_differ_and_one_repetition_decides_nothing() -> None:
    same = tb.compare({"a": repetitions(1.0), "b": repetitions(1.0)})
    assert not same.to_frame()["differ"].any()
    one = tb.compare({"a": repetitions(1.0)[:1], "b": repetitions(0.5)[:1]})
    assert one.to_frame()["differ"].isna().all()


def test_an_unhealthy_repetition_is_left_out_with_its_pair() -> None:
    slow, fast = repetitions(1.0), repetitions(0.9)
    slow[2].info.state = "interrupted"
    found = tb.compare({"slow": slow, "fast": fast})
    assert found.to_frame().loc[("fast", "median_run_s"), "pairs"] == 4
    assert [warning for warning in found.warnings if warning.startswith("slow, rep-03 is excluded")]
    for run in slow:
        run.info.state = "interrupted"
    with pytest.raises(tb.TestbedError, match="slow has no real run that can be compared") as caught:
        tb.compare({"slow": slow, "fast": fast})
    assert caught.value.exit_code == 4


def test_the_comparison_is_readable() -> None:
    found = tb.compare({"slow": repetitions(1.0), "mine <b>": repetitions(0.9)})
    text = found.explain()
    assert text.startswith("mine <b> against slow on ")
    assert "5 pairs of real runs" in text
    assert "response, mean (s): -" in text
    assert "mine &lt;b&gt;" in found._repr_html_()
    assert found._repr_html_().count("<svg") == text.count("  ") > 3
    assert "\n" not in repr(found)


def test_folders_of_repetitions_are_read_and_other_settings_are_warned_of(tmp_path: Path) -> None:
    for name, factor in (("slow", 1.0), ("fast", 0.9)):
        for number, run in enumerate(repetitions(factor, parameters={"duty": factor}), 1):
            run.save(tmp_path / name / f"rep-{number:02d}")
    found = tb.compare({name: tmp_path / name for name in ("slow", "fast")})
    assert "duty differs: 1.0 with slow, 0.9 with fast" in found.warnings
    assert found.to_frame()["pairs"].max() == 5


def test_what_cannot_be_compared_is_refused() -> None:
    real = repetitions(1.0)
    predicted = fcfs_run(30, seed=1, real=False)
    other = fcfs_run(30, seed=2, source="replay", sha256="b" * 64)
    for runs, message in (
        ({"a": real}, "fewer than two policies"),
        ({"a": real, "b": []}, "b has no run"),
        ({"a": real, "b": [predicted]}, "a run of b is a prediction"),
        ({"a": real, "b": [other]}, "the workload of a run of b is another one"),
    ):
        with pytest.raises(tb.InputError, match=message):
            tb.compare(runs)
    with pytest.raises(tb.InputError, match="margins does not apply"):
        tb.compare({"a": real, "b": real}, margins={"wait": "5%"})
    with pytest.raises(tb.InputError, match="the prediction is missing"):
        tb.compare(real)


def test_tables_of_other_programs_are_read_as_for_a_prediction(tmp_path: Path) -> None:
    names = {"submit": "submit_time", "start": "start_time", "end": "finish_time"}
    jobs = fcfs_run(30, seed=1).jobs[["job_id", *names, "nodes"]].rename(columns=names)
    jobs.to_csv(tmp_path / "log.csv", index=False)
    found = tb.compare({"one": tmp_path / "log.csv", "other": [tmp_path / "log.csv"]})
    assert found.to_frame()["change"].abs().max() == 0


def test_simulated_and_real_gains_stand_side_by_side_with_their_signs(tmp_path: Path) -> None:
    folder = campaign(tmp_path / "x")
    real, made = (
        [folder / part / f"tiny-{name}" for name in ("slow", "fast")] for part in ("real", "predicted/tracebed")
    )
    (found,) = tb.gains(real, made)
    row = found.to_frame().loc[("fast", "median_run_s")]
    assert row["simulated"] == pytest.approx(-0.1, abs=1e-6)
    assert row["change"] == pytest.approx(-0.1, abs=0.01)
    assert row["same_sign"] is True
    heads, rows = found.table()
    assert heads[2] == "slow" and {row[-1] for row in rows} <= {"yes", "unclear"} and {row[-2] for row in rows} == {"5"}
    clear = sum(row[-1] == "yes" for row in rows)
    assert found.headline.endswith(f"clear in {clear} of 5 comparisons; the simulated gain has the same sign in "
                                   f"{clear} of these {clear}")  # fmt: skip
    (wrong,) = tb.gains(real, made[::-1][:1] + made[:1])  # the order of the predictions does not matter
    assert wrong.headline == found.headline
    assert [pair.text for pair in tb.gains(real)[0].differences["fast"].values()] == [
        pair.text for pair in found.differences["fast"].values()
    ]
    with pytest.raises(tb.InputError, match="have the same policy and workload"):
        tb.gains([real[0], real[0]])


def test_a_gain_of_the_wrong_sign_is_said(tmp_path: Path) -> None:
    real, made = campaign(tmp_path / "a"), campaign(tmp_path / "b", fast=1.1)
    cells = [real / "real" / f"tiny-{name}" for name in ("slow", "fast")]
    (found,) = tb.gains(cells, [made])
    assert found.to_frame().loc[("fast", "median_run_s"), "same_sign"] is False
    assert "no" in {row[-1] for row in found.table()[1]}


def test_gains_on_the_command_line_with_a_table_and_pictures_for_the_paper(tmp_path: Path) -> None:
    folder = campaign(tmp_path / "x_1")
    cells = [word for name in ("slow", "fast") for word in ("--real", str(folder / "real" / f"tiny-{name}"))]
    table, figures = tmp_path / "gains.tex", tmp_path / "figures"
    done = call("compare", "--by", "policy", *cells, "--predicted", folder, "--report", table, "--report", figures)
    assert done.return_value == 0
    assert "same sign" in done.stdout and "the real gain is clear in" in done.stdout
    text = table.read_text()
    assert all(
        part in text for part in (r"\toprule", r"\midrule", r"\bottomrule", "slow: n = 5, fast: n = 5", r"95 \%")
    )
    assert len({line.count(" & ") for line in text.splitlines() if line.endswith(r"\\")}) == 1
    assert sorted(path.suffix for path in figures.glob("gains*")) == sorted([".csv", *2 * [".pdf", ".png", ".svg"]])
    shown = json.loads(call("compare", "--by", "policy", *cells, "--json").stdout)
    assert shown["schema"] == "tracebed-gains/1" and shown["workloads"][0]["repetitions"] == {"slow": 5, "fast": 5}
    for words, message in (
        (cells, "--predicted is missing"),
        ([*cells, "--predicted", folder, "--by", "policy", "--match", "id"], "--match does not apply with --by"),
        ([*cells, "--by", "policy", "--report", tmp_path / "a.html"], "is no report of policies"),
    ):
        assert message in str(call("compare", *words).exception)
