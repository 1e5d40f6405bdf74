"""Validations: repetitions, exclusions, cases, evidence, warnings, exit codes and JSON; and comparisons of two runs."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.runs import NAN, fcfs_run, make_run
from tracebed.cli.gate import show
from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import ExitCode, InputError, Tolerated
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.validation.metrics import Margin, all_metrics
from tracebed.validation.statistics import batch_means, differences
from tracebed.validation.verdict import (
    Case,
    MetricVerdict,
    Reason,
    Tolerances,
    Validation,
    Verdict,
    combine,
    compare,
    validate,
)
from tracebed.validation.verdict.decision import rounded_up

LATE = {"signal": "late_s", "value": 10.2, "limit": 1.0, "state": "unhealthy", "text": "a rank was 10.2 s late"}
LOADED = {"signal": "pressure", "value": 0.2, "limit": 0.1, "state": "degraded", "text": "pressure 20 %, limit 10 %"}

REAL = [(0.0, 0.0, 100.0, 2), (10.0, 100.0, 200.0, 4), (20.0, 200.0, 300.0, 4)]


def health(state: str, *causes: dict[str, Any]) -> dict[str, Any]:
    return {"state": state, "causes": list(causes), "signals": {}, "thresholds": "0" * 64}


UNHEALTHY, DEGRADED = health("unhealthy", LATE), health("degraded", LOADED)


def repetitions(count: int, *, noise: float = 0.002, seed: int = 0, jobs: int = 40, **info: Any) -> list[Run]:
    """Return real runs of one workload, with run times that vary from run to run by the share `noise`."""
    generator = np.random.default_rng(seed)
    return [fcfs_run(jobs, stretch=1 + noise * generator.normal(), **info) for _ in range(count)]


def predicted(stretch: float = 1.0, *, jobs: int = 40, **info: Any) -> Run:
    return fcfs_run(jobs, stretch=stretch, real=False, **info)


def validated(real: list[Run], *predictions: Run, **options: Any) -> Validation:
    return validate([Case.of(real, predictions or [predicted()])], **options)


def suite(count: int, repeats: int = 3, *, stretches: list[float] | None = None, **info: Any) -> list[Case]:
    """Return cases of different workloads; `stretches` are the run times of the predictions."""
    factors = stretches or [1.0] * count
    return [
        Case(
            name=f"w{number}-fcfs",
            workload=f"w{number}",
            policy="fcfs",
            real=tuple(repetitions(repeats, seed=number, jobs=40 + number, sha256=f"{number:064x}", **info)),
            predicted=(predicted(factor, jobs=40 + number, sha256=f"{number:064x}"),),
        )
        for number, factor in zip(range(count), factors, strict=True)
    ]


def metric(found: Validation, name: str) -> MetricVerdict:
    return next(item for item in found.metrics if item.name == name)


def test_an_exact_prediction_of_five_repetitions_is_accurate() -> None:
    found = validated(repetitions(5))
    assert found.verdict is Verdict.ACCURATE
    assert found.reasons == ()
    assert found.exit_code == ExitCode.OK
    assert found.headline.startswith("all 5 gated metrics are within their margins; largest error: ")
    assert [item.name for item in found.gated] == [
        "makespan_s", "mean_wait_s", "mean_response_s", "mean_bounded_slowdown", "utilization",
    ]  # fmt: skip
    assert found.sensitivity == {0.5: Verdict.ACCURATE, 2.0: Verdict.ACCURATE}
    assert found.without_outliers is None
    assert found.population == {}


def test_a_wrong_prediction_is_inaccurate_and_the_headline_says_where() -> None:
    found = validated(repetitions(5), predicted(1.3))
    assert found.verdict is Verdict.INACCURATE
    assert found.exit_code == ExitCode.INACCURATE
    assert found.headline.startswith("makespan is off by +")
    assert found.sensitivity[0.5] is Verdict.INACCURATE
    wait = metric(found, "mean_wait_s")
    assert wait.repeats_needed is None
    assert wait.needed.alone > wait.margin.relative


def test_the_figures_of_a_case_are_those_of_its_runs() -> None:
    real = repetitions(5)
    found = validated(real, predicted(1.01))
    waits = [float((run.jobs["start"] - run.jobs["submit"]).mean()) for run in real]
    prediction = predicted(1.01)
    expected = float((prediction.jobs["start"] - prediction.jobs["submit"]).mean())
    wait = metric(found, "mean_wait_s")
    (case,) = wait.cases
    assert case.real_mean == pytest.approx(np.mean(waits))
    assert case.real_sd == pytest.approx(np.std(waits, ddof=1))
    assert case.predicted == pytest.approx(expected)
    assert case.margin == pytest.approx(max(10.0, 0.1 * float(np.mean(waits))))
    assert case.z == pytest.approx((expected - np.mean(waits)) / case.margin)
    assert case.noise_cv == pytest.approx(case.real_sd / case.real_mean)
    assert (case.repeats, case.runs) == (5, 1)
    half = 2.776445 * case.real_sd / case.margin / np.sqrt(5)
    assert (case.low, case.high) == (pytest.approx(case.z - half, rel=1e-5), pytest.approx(case.z + half, rel=1e-5))
    assert (wait.low, wait.high) == (pytest.approx(case.low), pytest.approx(case.high))
    assert wait.df == pytest.approx(4)
    assert wait.relative_error == pytest.approx(expected / np.mean(waits) - 1)


def percent(share: float) -> str:
    return f"{rounded_up(100 * share):g} %"


def test_a_wrong_prediction_of_a_fast_replay_without_a_calibration_names_the_calibration_first() -> None:
    real = repetitions(5, speed=400.0)
    headline = validated(real, predicted(1.3, speed=400.0)).headline
    assert headline.startswith("the predictions have no calibration: ")
    assert "a second of these is 400 trace seconds" in headline and "wait, mean is off by +" in headline
    for other in (predicted(1.3, speed=400.0, overheads={"launch_s": 0.05}), predicted(1.3, source="theirs")):
        assert validated(real, other).headline.startswith("makespan is off by +")


def test_repetitions_are_asked_for_only_beyond_those_that_count(capsys: pytest.CaptureFixture[str]) -> None:
    found = validated(repetitions(5, noise=0.08), predicted())
    wait = metric(found, "mean_wait_s")
    assert wait.repeats_needed is not None and wait.repeats_needed > 5
    show(found)
    assert f"repetitions needed: {wait.repeats_needed} (counted now: 5)" in capsys.readouterr().out
    enough = [replace(item, repeats_needed=5) for item in found.metrics]
    show(replace(found, metrics=tuple(enough)))
    assert "repetitions needed" not in capsys.readouterr().out


def test_the_smallest_margin_that_passes_is_in_the_unit_of_the_margin() -> None:
    found = validated(repetitions(5), predicted(1.3), tolerances=Tolerances.default().replaced({"wait": "20 s"}))
    absolute, relative = metric(found, "mean_wait_s"), metric(found, "mean_response_s")
    assert absolute.needed.absolute > 20
    assert absolute.margin_needed.endswith(" s")
    assert float(absolute.margin_needed.removesuffix(" s")) == pytest.approx(absolute.needed.absolute, rel=1e-2)
    alone = relative.needed.alone
    assert relative.margin_needed == percent(alone) == percent(relative.needed.relative)  # the amount does not help
    helped = replace(relative, needed=replace(relative.needed, relative=alone / 2))
    assert helped.margin_needed == f"{percent(alone / 2)} with 10 s, {percent(alone)} without"


# Repetitions.


@pytest.mark.parametrize("stretch", [1.0, 5.0])
def test_one_real_run_is_inconclusive_however_near_or_far(stretch: float) -> None:
    found = validated(repetitions(1), predicted(stretch))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.exit_code == ExitCode.INCONCLUSIVE
    assert Reason.TOO_FEW_REPEATS in found.reasons
    assert "one real run: no accuracy claim" in found.headline


def test_too_few_repetitions_are_never_accurate_but_may_prove_an_error() -> None:
    near, far = validated(repetitions(4)), validated(repetitions(4), predicted(1.5))
    assert (near.verdict, near.reasons) == (Verdict.INCONCLUSIVE, (Reason.TOO_FEW_REPEATS,))
    assert far.verdict is Verdict.INACCURATE
    five = validate(suite(5, repeats=3))
    assert five.verdict is Verdict.ACCURATE
    assert validate(suite(4, repeats=3)).reasons == (Reason.TOO_FEW_REPEATS,)


def test_noise_makes_a_verdict_inconclusive_and_says_how_many_repetitions_are_needed() -> None:
    found = validated(repetitions(5, noise=0.1))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert Reason.NOISE_EXCEEDS_MARGIN in found.reasons
    needed = [item.repeats_needed for item in found.gated if Reason.NOISE_EXCEEDS_MARGIN in item.reasons]
    assert any(needed)
    assert all(count is None or count > 5 for count in needed)


@dataclass(frozen=True)
class Noise:
    log_sd: float
    df: float


class Profile:
    """A noise profile with the same noise of each metric."""

    def __init__(self, log_sd: float, df: float = 20.0) -> None:
        self.noise_of_each = Noise(log_sd, df)

    def require(self, info: RunInfo, tau: float) -> None:
        if info.speed != 1.0:
            raise InputError("another class of testbed")

    def noise(self, metric: str) -> Noise:
        return self.noise_of_each


def test_a_noise_profile_supplies_the_noise_of_one_real_run() -> None:
    found = validated(repetitions(1), profile=Profile(0.005))
    assert found.verdict is Verdict.ACCURATE
    wait = metric(found, "mean_wait_s")
    assert wait.profile_based
    assert wait.df == pytest.approx(20)
    assert wait.se == pytest.approx(0.005 * wait.cases[0].real_mean / wait.cases[0].margin)
    assert any("profile-based" in text for text in found.warnings)
    assert validated(repetitions(1), predicted(1.5), profile=Profile(0.005)).verdict is Verdict.INACCURATE
    noisy = validated(repetitions(1), profile=Profile(0.5))
    assert noisy.reasons == (Reason.NOISE_EXCEEDS_MARGIN,)


def test_a_noise_profile_is_pooled_with_few_repetitions_and_ignored_with_enough() -> None:
    few = metric(validated(repetitions(3), profile=Profile(0.005)), "mean_wait_s")
    own = metric(validated(repetitions(3)), "mean_wait_s").cases[0]
    pooled = (20 * (0.005 * own.real_mean) ** 2 + 2 * own.real_sd**2) / 22
    assert few.df == pytest.approx(22)
    assert few.cases[0].real_sd == pytest.approx(np.sqrt(pooled))
    enough = metric(validated(repetitions(5), profile=Profile(0.5)), "mean_wait_s")
    assert not enough.profile_based
    assert enough.se == metric(validated(repetitions(5)), "mean_wait_s").se


def test_a_noise_profile_of_another_testbed_is_refused() -> None:
    with pytest.raises(InputError, match="another class"):
        validated(repetitions(1, speed=60.0), profile=Profile(0.005))


def test_a_stochastic_simulator_adds_the_spread_of_its_runs() -> None:
    one = metric(validated(repetitions(5), predicted(1.0)), "mean_wait_s")
    three = metric(validated(repetitions(5), predicted(0.99), predicted(1.0), predicted(1.01)), "mean_wait_s")
    assert three.se > one.se
    assert three.cases[0].runs == 3


# Exclusions.


def test_unhealthy_repetitions_are_excluded_and_listed() -> None:
    real = [*repetitions(5), *repetitions(1, noise=0.0, health=UNHEALTHY)]
    found = validated(real)
    assert found.verdict is Verdict.ACCURATE
    assert [bool(each.excluded) for each in found.cases[0].repetitions] == [False] * 5 + [True]
    assert "1 of 6 repetitions is excluded (rep-06: health: a rank was 10.2 s late)" in found.warnings
    assert metric(found, "mean_wait_s").cases[0].repeats == 5


def test_many_unhealthy_repetitions_are_one_line_with_the_most_frequent_cause() -> None:
    slow = {**LATE, "text": "steal: 30 %; load: 20 %"}
    causes = [LATE, slow, {**slow, "text": "steal: 40 %"}]
    real = [run for i, cause in enumerate(causes) for run in repetitions(1, seed=i, health=health("unhealthy", cause))]
    found = validated([*repetitions(5, seed=9), *real])
    assert [text for text in found.warnings if "repetitions" in text] == [
        "3 of 8 repetitions are excluded (rep-07, and others: health: steal: 30 %)"
    ]


def test_too_few_healthy_repetitions_end_with_4() -> None:
    found = validated([*repetitions(4), *repetitions(1, noise=0.0, health=UNHEALTHY)])
    assert found.reasons == (Reason.UNHEALTHY,)
    assert found.exit_code == ExitCode.UNHEALTHY
    assert found.headline.startswith("1 of 5 real runs is unhealthy: a rank was 10.2 s late. ")


def with_unhealthy(cases: list[Case], unhealthy: dict[int, int]) -> list[Case]:
    """Make runs of the cases unhealthy: number of the case -> number of its first runs."""
    for number, count in unhealthy.items():
        for run in cases[number].real[:count]:
            run.info.health = UNHEALTHY
    return cases


@pytest.mark.parametrize(
    ("cases", "repeats", "unhealthy", "verdict"),
    [
        (3, 5, {0: 1}, Verdict.ACCURATE),  # one of fifteen
        (5, 3, {4: 1}, Verdict.ACCURATE),
        (2, 5, {1: 1}, Verdict.ACCURATE),  # one of ten
        (1, 5, {0: 1}, Verdict.INCONCLUSIVE),  # one of five
        (3, 5, {0: 1, 1: 1}, Verdict.INCONCLUSIVE),  # two of fifteen
        (4, 5, {0: 2}, Verdict.INCONCLUSIVE),  # two of twenty, of one case
    ],
)
def test_few_unhealthy_runs_leave_the_verdict_to_the_others(
    cases: int, repeats: int, unhealthy: dict[int, int], verdict: Verdict
) -> None:
    found = validate(with_unhealthy(suite(cases, repeats), unhealthy))
    assert found.verdict is verdict
    assert found.reasons == (() if verdict is Verdict.ACCURATE else (Reason.UNHEALTHY,))
    assert any("is excluded" in text or "are excluded" in text for text in found.warnings)


def test_a_metric_for_which_the_others_do_not_suffice_is_inconclusive_alone() -> None:
    whole, found = validate(suite(3, 5, noise=0.02)), validate(with_unhealthy(suite(3, 5, noise=0.02), {0: 1}))
    assert whole.verdict is Verdict.ACCURATE
    undecided = {item.name: item.reasons for item in found.gated if item.verdict is not Verdict.ACCURATE}
    assert undecided == {"utilization": (Reason.UNHEALTHY,)}
    assert metric(found, "utilization").high < 1  # its interval fits, but four repetitions have too little power
    assert found.exit_code == ExitCode.UNHEALTHY


def test_a_single_unhealthy_run_ends_with_4_and_its_figures_are_shown() -> None:
    found = validated(repetitions(1, health=UNHEALTHY))
    assert found.exit_code == ExitCode.UNHEALTHY
    assert found.headline.startswith("the real run is unhealthy: a rank was 10.2 s late; one real run")
    assert "the real run is unhealthy: a rank was 10.2 s late" in found.warnings
    assert metric(found, "mean_wait_s").cases[0].real_mean > 0


def test_an_error_proved_by_healthy_repetitions_is_an_error() -> None:
    found = validated([*repetitions(4), *repetitions(1, health=UNHEALTHY)], predicted(1.5))
    assert found.exit_code == ExitCode.INACCURATE


def test_a_degraded_run_is_a_warning() -> None:
    found = validated([*repetitions(4), *repetitions(1, seed=9, health=DEGRADED)])
    assert found.verdict is Verdict.ACCURATE
    assert "1 of 5 repetitions is degraded (rep-05: pressure 20 %, limit 10 %)" in found.warnings


def test_the_same_log_twice_counts_once() -> None:
    real = repetitions(4)
    found = validated([*real, real[0]])
    assert found.cases[0].repetitions[4].excluded == "H7: the same log as rep-01"
    assert found.reasons == (Reason.TOO_FEW_REPEATS,)
    assert found.exit_code == ExitCode.INCONCLUSIVE


def test_another_number_of_nodes_is_excluded() -> None:
    odd = repetitions(1, seed=7)[0]
    odd.info.nodes = [*odd.info.nodes, NodeFacts("more", 1)]
    found = validated([*repetitions(5), odd])
    assert found.cases[0].repetitions[5].excluded == "H1: 17 nodes, most repetitions have 16"


def test_jobs_that_end_differently_from_most_repetitions_exclude_a_run() -> None:
    odd = repetitions(1, seed=7, states={"3": "failed", "7": "failed"}, source="log", execution="logged", health={})
    found = validated([*repetitions(5), *odd])
    assert found.cases[0].repetitions[5].excluded.startswith("H2: 5.0% of the jobs ended in another state")


def test_late_submissions_exclude_a_run_without_a_record_of_its_health() -> None:
    for recorded, excluded in (({}, True), (health("healthy"), False)):
        odd = repetitions(1, seed=7, health=recorded)[0]
        odd.jobs.loc[1, "submit_planned"] -= 9.0
        found = validated([*repetitions(5), odd])
        assert found.cases[0].repetitions[5].excluded.startswith("H3: submissions deviate up to 9.0") == excluded


def test_contradicting_times_exclude_a_run() -> None:
    odd = repetitions(1, seed=7)[0]
    odd.jobs.loc[1, "start"] = odd.jobs.loc[1, "submit"] - 5.0
    with pytest.warns(Tolerated, match="clock skew"):
        found = validated([*repetitions(5), odd])
    assert found.cases[0].repetitions[5].excluded.startswith("H6: 1 jobs start before their submission")


def test_an_unusual_outcome_is_a_warning_and_the_verdict_is_given_without_it() -> None:
    real = [*repetitions(5, noise=0.001), fcfs_run(40, stretch=1.5)]
    found = validated(real)
    assert found.cases[0].repetitions[5].excluded == ""
    assert found.cases[0].repetitions[5].flags.startswith("H4: ")
    assert found.verdict is not Verdict.ACCURATE
    assert found.without_outliers is Verdict.ACCURATE
    assert f"the verdict is accurate instead of {found.verdict}" in " | ".join(found.warnings)


# Cases.


def test_the_worst_case_decides_where_errors_cancel() -> None:
    found = validate(suite(6, stretches=[1.2, 0.8] * 3))
    assert found.verdict is Verdict.INACCURATE
    wrong = [item for item in found.gated if abs(item.z) <= 1 and item.verdict is Verdict.INACCURATE]
    assert wrong
    assert any("cancel in the mean" in text for text in found.warnings)
    assert " margins" in found.headline


@pytest.mark.slow
def test_a_claim_about_the_population_needs_eight_workloads() -> None:
    found = validate(suite(8))
    assert found.workloads == 8
    low, high = found.population["mean_wait_s"]
    z = np.array([case.z for case in metric(found, "mean_wait_s").cases])
    half = 2.364624 * z.std(ddof=1) / np.sqrt(8)
    assert (low, high) == (pytest.approx(z.mean() - half, rel=1e-5), pytest.approx(z.mean() + half, rel=1e-5))
    twice = [Case(f"{c.name}-{n}", f"w{i // 2}", c.policy, c.real, c.predicted) for n in (1,)
             for i, c in enumerate(suite(8))]  # fmt: skip
    assert validate(twice).population == {}  # four workloads under two policies


def test_workloads_of_the_calibration_are_shown_and_not_gated() -> None:
    cases = suite(3, repeats=5)
    wrong = predicted(1.5, sha256=f"{0:064x}")
    marked = Case(cases[0].name, "w0", "fcfs", cases[0].real, (wrong,), calibration=True)
    found = validate([marked, *cases[1:]])
    assert found.verdict is Verdict.ACCURATE
    assert [case.case for case in metric(found, "mean_wait_s").cases] == ["w1-fcfs", "w2-fcfs", "w0-fcfs"]
    assert any("w0-fcfs: not part of the verdict" in text for text in found.warnings)
    worst = metric(found, "mean_wait_s").worst
    assert worst is not None and worst.case != "w0-fcfs"
    alone = validate([marked])
    assert alone.reasons[0] is Reason.CALIBRATION_WORKLOAD
    assert alone.verdict is Verdict.INCONCLUSIVE


def test_the_workloads_of_a_calibration_are_recognized_by_their_hash() -> None:
    fitted = predicted(calibration={"name": "here", "workloads": ["b" * 64, "a" * 64]})
    assert validated(repetitions(5), fitted).reasons == (Reason.CALIBRATION_WORKLOAD,)
    held_out = predicted(calibration={"name": "here", "workloads": ["b" * 64]})
    assert validated(repetitions(5), held_out).verdict is Verdict.ACCURATE


def test_jobs_without_a_counterpart_forbid_the_verdict_accurate() -> None:
    lost = predicted(states={"40": "interrupted"})
    wide = dict.fromkeys(("wait", "response", "slowdown", "makespan", "utilization"), "90%")
    found = validated(repetitions(5), lost, tolerances=Tolerances.default().replaced(wide))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons == (Reason.UNMATCHED_JOBS,)
    assert found.cases[0].unmatched == pytest.approx(1 / 40)


def test_a_metric_that_the_prediction_lacks_is_a_reason() -> None:
    blind = predicted()
    blind.info.nodes = []
    blind.allocations = blind.allocations.iloc[:0]
    found = validated(repetitions(5), blind)
    assert found.reasons == (Reason.NOT_DEFINED,)
    assert metric(found, "utilization").reasons == (Reason.NOT_DEFINED,)
    assert metric(found, "mean_wait_s").verdict is Verdict.ACCURATE


def test_a_metric_that_is_wrong_in_one_case_and_undefined_in_another_names_the_wrong_case() -> None:
    cases = suite(2, repeats=5, stretches=[1.0, 3.0])
    blind = predicted(sha256=f"{0:064x}")
    blind.jobs[["start", "end"]] = NAN
    blind.jobs["state"] = "interrupted"
    found = validate([Case(cases[0].name, "w0", "fcfs", cases[0].real, (blind,)), cases[1]])
    assert found.verdict is Verdict.INACCURATE
    assert re.search(
        r"wait, mean is off: mean absolute error \d\S* margins, worst case \+\d\S* \(w1-fcfs\)", found.headline
    )
    assert "nan" not in found.headline


def test_a_metric_that_the_real_runs_lack_is_left_out_with_a_warning() -> None:
    real = repetitions(5)
    for run in real:
        run.info.nodes = []
        run.allocations = run.allocations.iloc[:0]
    found = validated(real)
    assert found.verdict is Verdict.ACCURATE
    assert len(found.gated) == 4
    assert any("undefined for the real runs" in text for text in found.warnings)


def test_a_metric_that_the_real_runs_of_one_case_lack_is_decided_by_the_others_with_a_warning() -> None:
    cases = suite(2, repeats=5)
    for run in cases[0].real:
        run.info.nodes = []
        run.allocations = run.allocations.iloc[:0]
    found = validate(cases)
    assert [case.case for case in metric(found, "utilization").cases] == ["w1-fcfs"]
    texts = [text for text in found.warnings if "undefined" in text]
    assert texts and all("for the real runs of w0-fcfs: other cases decide it" in text for text in texts)


def test_runs_in_which_nothing_ended_are_inconclusive() -> None:
    nothing = [make_run([(0.0, NAN, NAN, 1)], states={"1": "interrupted"}) for _ in range(5)]
    found = validate([Case.of(nothing, [make_run([(0.0, 0.0, 5.0, 1)], real=False)])])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert Reason.NOT_DEFINED in found.reasons
    json.dumps(found.to_json())


def test_a_makespan_of_zero_has_no_relative_error() -> None:
    runs = [make_run([(0.0, 0.0, 0.0, 1)]) for _ in range(5)]
    found = validate([Case.of(runs, [make_run([(0.0, 0.0, 0.0, 1)], real=False)])])
    assert np.isnan(metric(found, "makespan_s").relative_error)
    assert "margins" in metric(found, "makespan_s").error


# Evidence.


def test_imposed_run_times_and_the_same_scheduler_are_said() -> None:
    found = validated(repetitions(5))
    assert found.same_scheduler
    assert found.could_not_fail == [
        "run times: they were imposed (emulated nodes)",
        "decisions of the scheduler: the same code decided on both sides",
    ]
    assert len(found.could_fail) == 1
    run_time = metric(found, "median_run_s")
    assert not run_time.evidence
    assert not run_time.gate
    assert run_time.part == "advisory, run times not tested"
    computed = validated(repetitions(5, execution="computed"), predicted(source="batsim"))
    assert not computed.same_scheduler
    assert computed.could_not_fail == []
    assert computed.could_fail[1:] == ["run times", "decisions of the scheduler"]
    assert metric(computed, "median_run_s").evidence


def test_another_simulator_that_asks_our_policies_shares_the_scheduler() -> None:
    found = validated(repetitions(5), predicted(source="elastisim", parameters={"scheduler": "tracebed"}))
    assert found.same_scheduler
    assert found.simulator.name == "elastisim"
    log = validated(repetitions(5, source="log", execution="logged"))
    assert not log.same_scheduler


# Warnings.


def test_margins_that_are_wider_than_the_default_are_said() -> None:
    found = validated(repetitions(5), tolerances=Tolerances.default().replaced({"wait": "50%", "makespan": "1%"}))
    wide = [text for text in found.warnings if "wider than the default" in text]
    assert wide == ["the margin of wait, mean (50%, gate) is wider than the default (10%, 10 s, gate)"]


@pytest.mark.parametrize(("margin", "said"), [("10%", False), ("49%", False), ("50%", True), ("100%", True)])
def test_a_margin_within_which_no_prediction_is_too_low_is_said(margin: str, said: bool) -> None:
    found = validated(repetitions(5), tolerances=Tolerances.default().replaced({"wait": margin}))
    text = "a wait, mean that is predicted too low is off by 100 % at most, which is within 2 margins"
    assert any(warning.startswith(text) for warning in found.warnings) is said


def test_a_claim_by_the_makespan_only_is_said() -> None:
    off = {"wait": "off", "response": "off", "slowdown": "off"}
    found = validated(repetitions(5), tolerances=Tolerances.default().replaced(off))
    assert any(text.startswith("the verdict depends on makespan, utilization") for text in found.warnings)
    assert sum("is not part of the verdict, by default, wait=off" in text for text in found.warnings) == 3


def test_compressed_times_compress_margins_in_seconds_and_are_said() -> None:
    provenance = {"steps": [{"name": "scale", "parameters": {"run_time": 0.1}}]}
    workload = {"name": "w", "sha256": "a" * 64, "jobs": 40, "provenance": provenance}
    found = validated(repetitions(5, workload=workload), predicted(workload=workload))
    plain = validated(repetitions(5))
    small = Tolerances.default().replaced({"wait": "10 s"})
    assert metric(validated(repetitions(5, workload=workload), predicted(workload=workload), tolerances=small),
                  "mean_wait_s").cases[0].margin == pytest.approx(1.0)  # fmt: skip
    assert any("multiplied by 0.1" in text for text in found.remarks)
    assert not any("multiplied by" in text for text in [*found.warnings, *plain.remarks])  # nothing can be mended
    assert "multiplied by 0.1" in found.explain()


def test_the_noise_of_several_cases_is_pooled_and_the_largest(capsys: pytest.CaptureFixture[str]) -> None:
    quiet, loud = suite(2), suite(2, noise=0.02)
    cases = [quiet[0], Case("w1-fcfs", "w1", "fcfs", loud[1].real, loud[1].predicted)]
    found = validate(cases)
    wait = metric(found, "mean_wait_s")
    each = [case.noise_cv for case in wait.cases]
    assert wait.noise == pytest.approx(((sum(cv**2 for cv in each) / 2) ** 0.5, max(each)))
    show(found)
    printed = capsys.readouterr().out
    assert "noise (largest)" in printed
    assert f"{100 * wait.noise[0]:.2g}% ({100 * max(each):.2g}%)" in printed
    assert "the root mean square over the cases, and the largest" in printed
    show(validate(quiet[:1]))
    assert "noise (largest)" not in capsys.readouterr().out


def test_an_amount_that_is_much_wider_than_the_share_is_said() -> None:
    tolerances = Tolerances.default().replaced({"wait": "1%, 5000 s"})
    found = validated(repetitions(5), tolerances=tolerances)
    assert any(
        text.startswith("the margin of wait, mean is the amount of 5,000 s in tiny-fcfs") for text in found.warnings
    )


def test_differences_of_the_runs_are_said_once() -> None:
    cases = [
        Case(c.name, c.workload, c.policy, c.real, (predicted(jobs=40 + n, policy="easy", sha256=f"{n:064x}"),))
        for n, c in enumerate(suite(5))
    ]
    found = validate(cases)
    assert found.warnings.count("policy differs: real fcfs, predicted easy") == 1


# Refused input.


def test_runs_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(InputError, match="different policies: fcfs, easy"):
        validated([*repetitions(2), *repetitions(1, policy="easy")])
    with pytest.raises(InputError, match="different simulators: simulator, batsim"):
        validated(repetitions(2), predicted(), predicted(source="batsim"))
    with pytest.raises(InputError, match="different workloads"):
        validated([*repetitions(2), *repetitions(1, sha256="b" * 64)])
    with pytest.raises(InputError, match="given as real is a prediction"):
        validated([predicted()])
    with pytest.raises(InputError, match="given as predicted is a real run"):
        validated(repetitions(2), repetitions(1)[0])
    with pytest.raises(InputError, match="no case"):
        validate([])
    with pytest.raises(InputError, match="same name"):
        validate([suite(1)[0], suite(1)[0]])
    with pytest.raises(InputError, match="real run is missing"):
        Case.of([], [predicted()])
    with pytest.raises(InputError, match="no predicted run"):
        Case.of(repetitions(1), [])


# Invariances and output.


def test_the_order_of_repetitions_and_cases_does_not_matter() -> None:
    cases = suite(5, stretches=[1.0, 1.01, 1.02, 0.99, 1.0])
    turned = [Case(c.name, c.workload, c.policy, c.real[::-1], c.predicted) for c in cases[::-1]]
    one, other = validate(cases), validate(turned)
    assert one.verdict is other.verdict
    for a, b in zip(one.metrics, other.metrics, strict=True):
        assert (a.z, a.low, a.high) == (pytest.approx(b.z), pytest.approx(b.low), pytest.approx(b.high))


def test_the_pair_of_a_case_is_central() -> None:
    real = [fcfs_run(40, stretch=factor) for factor in (1.02, 1.0, 0.98, 1.001, 0.999)]
    found = validated(real)
    assert found.pair.real is real[1]
    assert found.pair is found.cases[0].pair


def test_text_and_json() -> None:
    found = validated(repetitions(5), predicted(1.3))
    lines = found.explain().splitlines()
    assert lines[0].endswith("tiny-fcfs, 5 real runs: inaccurate")
    assert lines[1] == found.headline
    assert any(line.startswith("wait, mean (s): +") and line.endswith("gate: inaccurate") for line in lines)
    assert repr(found) == f"<Validation of {found.title}: inaccurate, warnings: {len(found.warnings)}>"
    shown = found._repr_html_()
    assert "<td>wait, mean (s)</td>" in shown
    assert "<td>inaccurate</td>" in shown
    document = found.to_json()
    assert document["schema"] == "tracebed-verdict/2"
    assert document["exit_code"] == 1
    assert document["simulator"]["name"] == "tracebed"
    assert document["tolerances"]["sha256"] == Tolerances.default().sha256
    json.dumps(document)


def test_equal_predictions_have_equal_arguments() -> None:
    one, other = (validated(repetitions(5), predicted(seed=0, **more)).simulator for more in ({}, {"engine": "python"}))
    assert one.arguments_sha256 == other.arguments_sha256
    changed = validated(repetitions(5), predicted(parameters={"interval_s": 30})).simulator
    assert changed.arguments_sha256 != one.arguments_sha256


def test_hand_worked_comparison() -> None:
    predicted = [(0.0, 0.0, 90.0, 2), (10.0, 90.0, 180.0, 4), (20.0, 180.0, 270.0, 4)]
    found = compare(make_run(REAL), make_run(predicted, real=False))
    assert (found.real_metrics["mean_wait_s"], found.predicted_metrics["mean_wait_s"]) == (90, 80)
    assert (found.real_metrics["makespan_s"], found.predicted_metrics["makespan_s"]) == (300, 270)
    waits = found.differences["wait"]
    assert waits is not None
    assert (waits.bias, waits.mae, waits.jobs) == (-10, 10, 3)
    assert found.jobs["job_id"].tolist() == ["1", "2", "3"]


def test_identical_runs_do_not_differ() -> None:
    found = compare(fcfs_run(60, execution="computed"), fcfs_run(60, real=False))
    waits = found.differences["wait"]
    assert waits is not None
    assert (waits.mae, waits.wasserstein, waits.limits) == (0, 0, (0, 0))
    assert waits.kendall_tau == pytest.approx(1)
    assert not found.warnings


def test_jobs_are_matched_by_id_not_by_place() -> None:
    turned = make_run(REAL[::-1], ids=["3", "2", "1"], real=False)
    found = compare(make_run(REAL), turned)
    assert found.jobs["job_id"].tolist() == ["1", "2", "3"]
    assert (found.jobs["wait_predicted"] == found.jobs["wait_real"]).all()


def test_jobs_without_a_counterpart_are_counted_and_reported() -> None:
    real = make_run(REAL, states={"3": "failed"})
    predicted = [*REAL[:1], (10.0, NAN, NAN, 4), REAL[2], (30.0, 300.0, 310.0, 1), (40.0, NAN, NAN, 9)]
    found = compare(real, make_run(predicted, real=False, states={"2": "interrupted", "5": "rejected"}))
    matching = found.matching
    assert (matching.matched, matching.only_real, matching.only_predicted, matching.unlike) == (2, 1, 1, 1)
    assert matching.states_differ == 1
    assert matching.unmatched_share == pytest.approx(3 / 5)
    assert any("3 jobs (60.0 % of all) have no counterpart (2, 4, 5): 1 ended" in warning for warning in found.warnings)
    assert any("1 job ended in a different state" in warning for warning in found.warnings)


def test_jobs_rejected_on_both_sides_agree() -> None:
    jobs, states = [*REAL, (30.0, NAN, NAN, 9)], {"4": "rejected"}
    found = compare(make_run(jobs, states=states), make_run(jobs, states=states, real=False))
    assert found.matching.ended_in_neither == 1
    assert found.matching.unmatched == 0


def test_different_workloads_are_refused_unless_allowed() -> None:
    real, other = make_run(REAL), make_run(REAL, real=False, sha256="b" * 64)
    with pytest.raises(InputError, match=r"have different workloads.*--match id"):
        compare(real, other)
    found = compare(real, other, allow_different_workloads=True)
    assert found.matching.matched == 3
    assert "different workloads" in found.warnings[0]
    strangers = make_run(REAL, real=False, ids=["x", "y", "z"])
    with pytest.raises(InputError, match="no job in common"):
        compare(real, strangers)


def test_differences_between_runs_are_warnings() -> None:
    real = make_run(
        REAL, speed=200.0, interval_s=10, parameters={"grain": 1}, state="interrupted", policy_parameters={"depth": 3}
    )
    predicted = make_run(REAL, real=False, policy="easy", machine=6, overheads=Overheads(end_s=1.0))
    said = " | ".join(compare(real, predicted).warnings)
    for what in (
        "policy differs: real fcfs, predicted easy",
        "number of nodes differs: real 4, predicted 6",
        "speed differs: real 200.0, predicted 1.0",
        "interval_s differs: real 10, predicted 0",
    ):
        assert what in said
    assert "grain" not in said
    assert "depth" not in said  # parameters of different policies always differ
    assert "policy parameter depth differs" in " | ".join(compare(real, make_run(REAL, real=False)).warnings)
    assert "overhead_end_s" not in said


def test_parameters_of_an_older_version_are_one_warning() -> None:
    real = make_run(REAL, policy_parameters={"count_idle": True, "old": 1})
    new = make_run(REAL, real=False, policy_parameters={"count_idle": "yes", "calls": "event", "ties": "start"})
    said = [text for text in compare(real, new).warnings if "policy parameter" in text]
    assert said == [
        "policy parameters are not recorded: real unknown, predicted calls event, ties start",
        "policy parameter old differs: real 1, predicted not recorded",
    ]


def test_the_speed_of_a_prediction_without_overheads_is_ignored() -> None:
    predicted = make_run(REAL, real=False, overheads=Overheads(launch_s=0.0))
    assert not any("speed" in text for text in compare(make_run(REAL, speed=200.0), predicted).warnings)


def test_late_submissions_are_reported() -> None:
    real = make_run(REAL)
    real.jobs.loc[1, "submit_planned"] = 3.0
    assert any("up to 7.0 trace seconds from" in text for text in compare(real, make_run(REAL, real=False)).warnings)


def test_an_interrupted_run_is_unhealthy_whatever_it_recorded() -> None:
    for recorded in ({}, health("healthy"), health("degraded", LOADED)):
        real = make_run(REAL, state="interrupted", interruptions=["SIGTERM"], health=recorded)
        assert compare(real, make_run(REAL, real=False)).health.state == "unhealthy"
        found = validated([real], make_run(REAL, real=False))
        assert found.exit_code == ExitCode.UNHEALTHY
        assert found.headline.startswith("the real run is unhealthy: the run was interrupted: SIGTERM; ")


def test_an_interruption_is_named_once() -> None:
    lost = LATE | {"text": "the agent of n1 was lost"}
    real = make_run(REAL, state="interrupted", interruptions=["agent lost"], health=health("unhealthy", lost))
    found = validated([real], make_run(REAL, real=False))
    assert [text for text in found.warnings if "unhealthy" in text] == [
        "the real run is unhealthy: the agent of n1 was lost"
    ]


@pytest.mark.parametrize(
    ("info", "by"),
    [
        ({"execution": "computed"}, ""),
        ({"execution": "computed", "parameters": {"duty": 1.0}}, ""),
        ({"execution": "logged", "source": "log"}, ""),
        ({"execution": "computed", "parameters": {"duty": 0.5}}, "(duty 0.5)"),
        ({"execution": "computed", "parameters": {"duty": [1.0, 0.7, 0.5]}}, "(duty 0.5 to 0.7)"),
        ({"execution": "emulated", "parameters": {"duty": 0.0}}, "(emulated nodes)"),
        ({"execution": "computed+emulated", "parameters": {"duty": [0.0, 0.5]}}, "(emulated nodes, duty 0.5)"),
    ],
)
def test_imposed_run_times_are_no_evidence(info: dict[str, Any], by: str) -> None:
    found = compare(make_run(REAL, **info), make_run(REAL, real=False))
    said = [text for text in found.warnings if "were imposed" in text]
    assert len(said) == bool(by)
    assert all(by in text for text in said)


def test_a_run_in_which_nothing_ended_is_compared_without_a_crash() -> None:
    nothing = [(0.0, NAN, NAN, 1), (1.0, NAN, NAN, 1)]
    found = compare(make_run(nothing, states={"1": "interrupted", "2": "interrupted"}), make_run(REAL[:2], real=False))
    assert found.differences["wait"] is None
    assert found.matching.matched == 0


def test_the_gate_is_the_protocols() -> None:
    assert {name for name, metric in all_metrics().items() if metric.margin and metric.margin.gate} == {
        "makespan_s",
        "utilization",
        "mean_response_s",
        "mean_wait_s",
        "mean_bounded_slowdown",
    }


def test_margins_in_seconds_are_compressed_like_the_workload() -> None:
    steps = [{"name": "scale", "parameters": {"run_time": factor}} for factor in (0.1, 0.5)] + [
        {"name": "scale", "parameters": {"nodes": 4}},
        {"name": "cirne", "parameters": {"run_time": 9.0}},
    ]
    workload = {"name": "w", "sha256": "a" * 64, "jobs": 3, "provenance": {"steps": steps}}
    jobs = [(0.0, 0.0, 9.0, 2), (1.0, 2.0, 4.0, 2)]
    found = compare(make_run(jobs, workload=workload), make_run(jobs, real=False, workload=workload))
    assert found.compression == pytest.approx(0.05)
    margins = {item.name: item.cases[0].margin for item in validated([found.real], found.predicted).metrics}
    assert margins["mean_wait_s"] == pytest.approx(0.5)
    assert margins["mean_bounded_slowdown"] == pytest.approx(0.1)


def test_margins_are_in_trace_time_at_any_speed() -> None:
    runs = [(make_run(REAL, speed=speed), make_run(REAL, real=False, speed=speed)) for speed in (1.0, 60.0)]
    slow, fast = (
        {item.name: item.cases[0].margin for item in validated([real], other).metrics} for real, other in runs
    )
    assert slow["mean_wait_s"] == fast["mean_wait_s"] == 10.0


def test_operations_are_judged_where_jobs_are_malleable() -> None:
    rigid = validated([make_run(REAL)], make_run(REAL, real=False))
    assert "expand_operations_per_job" not in {item.name for item in rigid.metrics}
    stairs = {"1": [(0.0, 50.0, 2), (50.0, 100.0, 3)]}
    asked = [("1", "expand", 2, 3, 49.0, 50.0, 50.0, 50.0, "applied")]
    real = make_run(REAL, staircases=stairs, reconfigurations=asked)
    found = validated([real], make_run(REAL, staircases=stairs, real=False))
    operations = next(item for item in found.metrics if item.name == "expand_operations_per_job")
    assert (operations.cases[0].real_mean, operations.cases[0].predicted) == (pytest.approx(1 / 3), 0)
    assert not operations.gate


def test_a_replay_without_a_record_of_its_health_is_a_warning() -> None:
    found = validated([make_run(REAL, health={})], make_run(REAL, real=False))
    assert found.exit_code == ExitCode.INCONCLUSIVE
    assert found.warnings[0].startswith("the health of the real run is unknown")
    log = validated([make_run(REAL, health={}, source="log", execution="logged")], make_run(REAL, real=False))
    assert not any("unknown" in text for text in log.warnings)


@given(st.lists(st.sampled_from(list(Verdict))))
def test_one_inaccurate_metric_is_enough_and_accurate_needs_all(verdicts: list[Verdict]) -> None:
    overall = combine(verdicts)
    assert (overall is Verdict.INACCURATE) == (Verdict.INACCURATE in verdicts)
    assert (overall is Verdict.ACCURATE) == (set(verdicts) == {Verdict.ACCURATE})


def test_exit_codes() -> None:
    assert [verdict.exit_code for verdict in Verdict] == [0, 1, 3]


# Statistics.


def test_batch_means_by_hand() -> None:
    values = np.repeat(np.arange(10.0), 3)
    interval = batch_means(values, level=0.90)
    assert interval is not None
    assert interval.mean == 4.5
    assert interval.half_width == pytest.approx(1.8331 * np.std(np.arange(10.0), ddof=1) / math.sqrt(10), rel=1e-4)
    assert (interval.low, interval.high) == (
        interval.mean - interval.half_width,
        interval.mean + interval.half_width,
    )
    assert batch_means(np.arange(19.0)) is None


def test_batch_means_see_correlation_that_independence_hides() -> None:
    generator = np.random.default_rng(1)
    series = np.zeros(2000)
    for index in range(1, 2000):
        series[index] = 0.95 * series[index - 1] + generator.normal()
    interval = batch_means(series)
    assert interval is not None
    assert interval.half_width > 3 * 1.645 * series.std() / math.sqrt(2000)


samples = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=30)


@given(samples)
def test_differences_agree_with_their_definitions(pairs: list[tuple[int, int]]) -> None:
    predicted, real = (np.array(side, dtype=np.float64) for side in zip(*pairs, strict=True))
    found = differences(predicted, real)
    assert found is not None
    d = [p - r for p, r in pairs]
    mean = sum(d) / len(d)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in d) / (len(d) - 1))
    assert found.bias == pytest.approx(mean)
    assert found.mae == pytest.approx(sum(map(abs, d)) / len(d))
    assert found.rmse == pytest.approx(math.sqrt(sum(x * x for x in d) / len(d)))
    assert found.limits == pytest.approx((mean - 1.96 * deviation, mean + 1.96 * deviation))
    gaps = [abs(p - r) for p, r in zip(sorted(predicted), sorted(real), strict=True)]
    assert found.wasserstein == pytest.approx(sum(gaps) / len(gaps))
    assert found.mae >= found.wasserstein - 1e-9
    assert found.kendall_tau == pytest.approx(_tau_b(predicted, real), nan_ok=True)


def _tau_b(x: FloatArray, y: FloatArray) -> float:
    score = tied_x = tied_y = pairs = 0
    for i in range(len(x)):
        for j in range(i):
            a, b = np.sign(x[i] - x[j]), np.sign(y[i] - y[j])
            score, tied_x, tied_y, pairs = score + a * b, tied_x + (a == 0), tied_y + (b == 0), pairs + 1
    spread = math.sqrt((pairs - tied_x) * (pairs - tied_y))
    return float(score) / spread if spread else math.nan


def test_shuffled_waits_have_the_same_distribution_and_are_no_good_prediction() -> None:
    waits = np.random.default_rng(2).exponential(100.0, 500)
    found = differences(np.roll(waits, 1), waits)
    assert found is not None
    assert found.wasserstein == pytest.approx(0)
    assert stats.ks_2samp(np.roll(waits, 1), waits).pvalue == 1  # the result of a test on the pooled jobs
    assert found.mae > 0.5 * waits.mean()


def test_margin_is_the_larger_of_share_and_amount() -> None:
    margin = Margin(0.1, 10.0)
    assert (margin.at(50.0), margin.at(1000.0)) == (10.0, 100.0)


def test_uneven_machines_are_measured_by_cores() -> None:
    run = make_run([(0, 0, 10, 1), (0, 10, 20, 1)], machine=2)
    run.info.nodes = [NodeFacts("small", 1), NodeFacts("big", 3)]
    found = compare(run, make_run([(0, 0, 10, 1), (0, 10, 20, 1)], machine=2, real=False))
    assert found.real_metrics["utilization_full"] == pytest.approx(20 / (4 * 20))
