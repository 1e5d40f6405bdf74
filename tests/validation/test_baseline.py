"""Baselines: the ratchet, the option that keeps them, and acceptance limits by the rule of the decision."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commands import call
from tests.oracles.validations import make_validation, write_suite
from tests.pages import without_pictures
from tests.validation.test_validation import suite, with_unhealthy
from tracebed.cli.gate import Gating
from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import ExitCode, InputError
from tracebed.validation.verdict import Tolerances, Validation, Verdict, validate
from tracebed.validation.verdict.baseline import Baseline, CaseBaseline, MetricBaseline, ranges, reach_of
from tracebed.validation.verdict.decision import Estimate, Samples, estimate

CASES = {"w1-fcfs": 1.0, "w2-fcfs": 1.0}

ALPHA, KAPPA = 0.025, 2.0


def baseline_of(*validations: Validation) -> Baseline:
    return Baseline.of([validation.to_json() for validation in validations])


@pytest.fixture(scope="module")
def exact() -> Validation:
    return make_validation(CASES)


def stretched(factor: float, **options: Any) -> Validation:
    return make_validation(dict.fromkeys(CASES, factor), **options)


def test_the_same_results_have_no_findings(exact: Validation) -> None:
    assert baseline_of(exact).check(exact) == []
    assert baseline_of(exact).check(make_validation(CASES)) == []


@pytest.mark.parametrize("factor", [1.01, 1.025])
def test_a_metric_whose_error_grows_by_more_than_the_ratchet_fails_and_is_named(
    factor: float, exact: Validation
) -> None:
    worse = stretched(factor)
    grown = {
        after.name: abs(after.z) - abs(before.z)
        for before, after in zip(exact.metrics, worse.metrics, strict=True)
        if after.evidence
    }
    expected = {name for name, growth in grown.items() if growth > exact.tolerances.ratchet}
    assert expected
    assert expected < grown.keys()
    assert worse.verdict is Verdict.ACCURATE  # the absolute gate alone does not notice
    findings = baseline_of(exact).check(worse)
    assert {finding.metric for finding in findings} == expected
    assert all(finding.failed and finding.title in finding.text for finding in findings)
    assert all("error grew from" in finding.text for finding in findings)


def test_an_error_that_falls_is_no_finding(exact: Validation) -> None:
    assert baseline_of(stretched(1.025)).check(exact) == []


def test_the_ratchet_of_the_tolerances_counts() -> None:
    from dataclasses import replace

    loose = replace(Tolerances.default(), ratchet=5.0)
    assert baseline_of(stretched(1.0, tolerances=loose)).check(stretched(1.025, tolerances=loose)) == []


def test_a_prediction_outside_its_limits_is_no_longer_accurate(exact: Validation) -> None:
    from dataclasses import replace

    loose = replace(Tolerances.default(), ratchet=5.0)
    before, after = stretched(1.0, tolerances=loose), stretched(1.05, tolerances=loose)
    inaccurate = {item.name for item in after.metrics if item.evidence and item.verdict is not Verdict.ACCURATE}
    findings = baseline_of(before).check(after)
    assert {finding.metric for finding in findings} == inaccurate
    assert all("no longer accurate" in finding.text for finding in findings)
    assert all("limit" in finding.text for finding in findings)


def test_limits_follow_the_verdict_of_a_validation(exact: Validation) -> None:
    """The limits of one case, the other unchanged, separate the predictions that the rule accepts."""
    stored = baseline_of(exact).simulators["mine"]
    for factor in (1.0, 1.02, 1.05, 1.1):
        moved = make_validation(CASES | {"w2-fcfs": factor})
        for metric in moved.metrics:
            if metric.evidence and metric.verdict is not Verdict.INACCURATE:
                limits = stored.metrics[metric.name].cases["w2-fcfs"].limits
                assert limits is not None
                predicted = next(case.predicted for case in metric.cases if case.case == "w2-fcfs")
                assert (metric.verdict is Verdict.ACCURATE) == (limits[0] < predicted < limits[1]), metric.name


def test_a_verdict_without_few_unhealthy_runs_has_limits() -> None:
    made = validate(with_unhealthy(suite(3, 5), {0: 1}))
    assert made.verdict is Verdict.ACCURATE
    assert baseline_of(made).check(made) == []


@pytest.mark.parametrize("repetitions", [2, 4])
def test_too_few_repetitions_leave_no_limits(repetitions: int) -> None:
    found = baseline_of(make_validation({"w1-fcfs": 1.3}, repetitions=repetitions)).simulators["mine"]
    assert {item.reach for item in found.metrics.values()} == {None}
    assert {case.limits for item in found.metrics.values() for case in item.cases.values()} == {None}


def test_other_margins_are_refused(exact: Validation) -> None:
    wider = make_validation(CASES, tolerances=Tolerances.default().replaced({"wait": "20%"}))
    with pytest.raises(InputError, match=r"wait, mean \(s\): 10%, 10 s, gate became 20%"):
        baseline_of(exact).check(wider)


def test_a_missing_case_or_metric_fails_and_a_new_one_does_not(exact: Validation) -> None:
    one = make_validation({"w1-fcfs": 1.0})
    findings = baseline_of(exact).check(one)
    assert [(finding.title, finding.failed) for finding in findings if finding.failed] == [("w2-fcfs", True)]
    assert [(finding.title, finding.failed) for finding in baseline_of(one).check(exact)] == [("w2-fcfs", False)]
    document = exact.to_json()
    assert baseline_of(exact).check(exact) == []
    document["metrics"] = [item for item in document["metrics"] if item["name"] != "mean_wait_s"]
    without = Baseline.of([document])
    assert [finding.metric for finding in baseline_of(exact).changes(without) if finding.failed] == ["mean_wait_s"]


def test_other_real_runs_are_a_warning(exact: Validation) -> None:
    again = make_validation(CASES, noise=0.003)
    findings = baseline_of(exact).check(again)
    assert {finding.title for finding in findings} == set(CASES)
    assert not any(finding.failed for finding in findings)
    assert "real runs" in findings[0].text


def test_a_simulator_that_the_baseline_lacks_is_a_warning(exact: Validation) -> None:
    (finding,) = baseline_of(exact).check(make_validation(CASES, name="other"))
    assert (finding.simulator, finding.failed) == ("other", False)


def test_calibration_cases_have_no_part(exact: Validation) -> None:
    partly = baseline_of(make_validation(CASES | {"w3-fcfs": 1.0}, calibration=["w3-fcfs"]))
    assert set(partly.simulators["mine"].inputs) == set(CASES)
    worse = make_validation(CASES | {"w3-fcfs": 1.5}, calibration=["w3-fcfs"])
    assert partly.check(worse) == []


@pytest.mark.parametrize("name", ["baseline.yaml", "baseline.json"])
def test_a_file_has_one_line_per_case_and_is_read_back(name: str, exact: Validation, tmp_path: Path) -> None:
    found = baseline_of(exact, make_validation(CASES, name="other"))
    found.save(tmp_path / name)
    assert Baseline.load(tmp_path / name) == found
    text = (tmp_path / name).read_text()
    if name.endswith(".yaml"):
        rows = [line for line in text.splitlines() if line.strip().startswith("w1-fcfs: {predicted")]
        assert len(rows) == sum(len(item.metrics) for item in found.simulators.values())
    else:
        assert json.loads(text)["schema"] == "tracebed-baseline/1"


def test_an_invalid_file_is_an_error_with_its_line(exact: Validation, tmp_path: Path) -> None:
    path = baseline_of(exact).save(tmp_path / "b.yaml")
    path.write_text(path.read_text().replace("ratchet: 0.25", "ratchet: often"))
    with pytest.raises(InputError, match=r"b\.yaml:\d+: simulators\.mine\.ratchet"):
        Baseline.load(path)
    path.write_text("schema: tracebed-calibration/1\n")
    with pytest.raises(InputError, match="not 'tracebed-baseline/1'"):
        Baseline.load(path)


def update(target: Path, how: str, *validations: Validation) -> ExitCode:
    """Write results to a baseline, as `tracebed validate --update-baseline` does, and return the exit status."""
    gating = Gating("fail", target, how, annotate=False, code_quality=None)
    return gating.judge(validations, gating.kept()).status([], as_json=False)


def test_update_writes_then_refuses_to_get_worse(
    exact: Validation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, bad = tmp_path / "baseline.yaml", stretched(1.01)
    assert update(target, "better", exact) == ExitCode.OK
    before = target.read_bytes()
    capsys.readouterr()
    assert update(target, "better", bad) == ExitCode.INACCURATE
    assert target.read_bytes() == before
    refused = capsys.readouterr()
    assert "worse than the baseline: mine: response, mean (s): the error grew from" in refused.err
    assert "not written" in refused.err
    assert "--update-baseline any" in refused.err
    assert refused.out == ""
    assert (update(target, "any", bad), target.read_bytes() == before) == (ExitCode.OK, False)
    assert "response, mean (s): the error grew from" in capsys.readouterr().err
    assert (update(target, "better", exact), target.read_bytes() == before) == (ExitCode.OK, True)
    assert "response, mean (s): the error fell from" in capsys.readouterr().err


def test_update_refuses_other_tolerances(exact: Validation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = baseline_of(exact).save(tmp_path / "baseline.yaml")
    wider = make_validation(CASES, tolerances=Tolerances.default().replaced({"wait": "20%"}))
    assert update(target, "better", wider) == ExitCode.INACCURATE
    assert "the tolerances changed: wait, mean (s): 10%, 10 s, gate became 20%, gate" in capsys.readouterr().err
    assert Baseline.load(target) == baseline_of(exact)
    assert update(target, "any", wider) == ExitCode.OK
    assert Baseline.load(target) == baseline_of(wider)


def test_update_keeps_the_other_simulators(exact: Validation, tmp_path: Path) -> None:
    target = tmp_path / "baseline.yaml"
    assert update(target, "better", exact, make_validation(CASES, name="other")) == ExitCode.OK
    assert update(target, "better", exact) == ExitCode.OK
    assert list(Baseline.load(target).simulators) == ["mine", "other"]


def test_update_prints_errors_and_limits(exact: Validation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    update(tmp_path / "baseline.yaml", "better", exact)
    text = capsys.readouterr().out
    assert "mine 1.2: accurate; ratchet 0.25 margins" in text
    for name in ("makespan (s)", "wait, mean (s)", "w1-fcfs", "w2-fcfs", "lowest", "highest"):
        assert name in text


@without_pictures()
def test_the_commands_write_a_baseline_and_the_verdict_decides(tmp_path: Path) -> None:
    suite, target = write_suite(tmp_path), tmp_path / "baseline.json"
    validate = ("validate", suite, "--no-case-pages", "-o", tmp_path / "out")
    done = call(*validate, "--baseline", target, "--update-baseline", "better", "--json")
    assert done.return_value == ExitCode.OK
    assert Baseline.load(target) == Baseline.of(json.loads(done.stdout)["simulators"])
    assert Baseline.load(tmp_path / "out/baseline.json") == Baseline.load(target)
    case, prediction = tmp_path / "real/w1-fcfs", tmp_path / "mine/w1-fcfs"
    compare = ("compare", "--real", case, "--predicted", prediction)
    one = tmp_path / "one.yaml"
    done = call(*compare, "--baseline", one, "--update-baseline", "any")
    assert "ratchet 0.25 margins" in done.stdout
    assert [len(found.inputs) for found in Baseline.load(one).simulators.values()] == [1]
    suite.write_text(suite.read_text() + "baseline: own.yaml\n")
    call(*validate, "--update-baseline", "better")
    assert Baseline.load(tmp_path / "own.yaml") == Baseline.load(target)
    for words, message in (
        ((*compare, "--update-baseline", "any"), "--update-baseline is given without a baseline"),
        ((*compare, "--baseline", suite, "--update-baseline", "any"), "exists and is not a baseline"),
        ((*compare, "--baseline", tmp_path / "missing.yaml"), "cannot read the baseline"),
    ):
        failed = call(*words)
        assert isinstance(failed.exception, InputError)
        assert message in str(failed.exception)


@pytest.mark.parametrize("limits", [[], [1.0], [1.0, 2.0, 3.0]])
def test_no_baseline_with_other_than_two_limits_is_read(limits: list[float], exact: Validation, tmp_path: Path) -> None:
    path = tmp_path / "baseline.yaml"
    document = baseline_of(exact).model_dump(mode="json", by_alias=True)
    next(iter(document["simulators"]["mine"]["metrics"].values()))["cases"]["w1-fcfs"]["limits"] = limits
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="limits"):
        Baseline.load(path)


def test_the_published_schema_is_that_of_the_files(exact: Validation) -> None:
    import jsonschema

    text = (files("tracebed.validation") / "schemas" / "tracebed-baseline-1.json").read_text(encoding="utf-8")
    published = json.loads(text)
    document = json.loads(baseline_of(exact).json_text)
    jsonschema.Draft202012Validator(published).validate(document)
    del document["simulators"]["mine"]["kappa"]
    with pytest.raises(jsonschema.ValidationError, match="'kappa' is a required property"):
        jsonschema.Draft202012Validator(published).validate(document)
    model = Baseline.model_json_schema(by_alias=True)
    for part, fields in {"": model, **model["$defs"]}.items():
        own = published["$defs"][part] if part else published
        assert own["properties"].keys() == fields["properties"].keys()
        assert set(own["required"]) == {*fields["required"], *([] if part else ["schema"])}


def judged(real: FloatArray, predicted: FloatArray, margin: FloatArray) -> Estimate:
    return estimate(Samples.of(real, predicted, margin), ALPHA, KAPPA)


def drawn(seed: int, cases: int, repeats: int, noise: float, error: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the real values, predictions and margins of one metric; noise and error in margins."""
    rng = np.random.default_rng(seed)
    centers = rng.lognormal(5, 1, cases)
    margin = 0.1 * centers
    real = centers[:, None] + margin[:, None] * noise * rng.standard_normal((cases, repeats))
    return real, real.mean(axis=1) + margin * error * rng.standard_normal(cases), margin


SUITES = {
    "seed": st.integers(0, 10_000),
    "cases": st.integers(1, 8),
    "repeats": st.integers(2, 8),
    "noise": st.floats(0.0, 1.5),
    "error": st.floats(0.0, 1.5),
}


@given(**SUITES)
def test_the_decision_flips_at_the_limits(seed: int, cases: int, repeats: int, noise: float, error: float) -> None:
    real, predicted, margin = drawn(seed, cases, repeats, noise, error)
    found = judged(real, predicted, margin)
    for case, (low, high) in enumerate(ranges(found.z, reach_of(float(found.half + found.reserve)), KAPPA)):

        def accurate(z: float, case: int = case) -> bool:
            moved = predicted.copy()
            moved[case] = real[case].mean() + z * margin[case]
            return bool(judged(real, moved, margin).accurate)

        if np.isnan(low):
            assert not any(accurate(z) for z in np.linspace(-2.5, 2.5, 21))
        else:
            step = min(1e-6, (high - low) / 10)
            assert [accurate(low - step), accurate(low + step)] == [False, True]
            assert [accurate(high - step), accurate(high + step)] == [True, False]
            assert accurate((low + high) / 2)


@given(**SUITES)
def test_a_baseline_accepts_what_the_decision_accepts(
    seed: int, cases: int, repeats: int, noise: float, error: float
) -> None:
    real, predicted, margin = drawn(seed, cases, repeats, noise, error)
    found = judged(real, predicted, margin)
    names = [f"case-{index}" for index in range(cases)]
    metric = MetricBaseline(
        gate=True,
        margin="10%, gate",
        verdict="accurate",
        z=0.0,
        reach=reach_of(float(found.half + found.reserve)),
        cases={
            name: CaseBaseline(predicted=None, real=float(values.mean()), margin=float(width), z=None, limits=None)
            for name, values, width in zip(names, real, margin, strict=True)
        },
    )
    values = dict(zip(names, map(float, predicted), strict=True))
    assert metric.accepts(values, KAPPA) == bool(found.accurate)
    assert not metric.accepts(values | {names[0]: float("nan")}, KAPPA)


def test_with_one_case_the_limits_are_the_margin_less_the_noise() -> None:
    real = np.array([[99.0, 101.0, 100.0, 98.0, 102.0]])
    half = float(judged(real, np.array([100.0]), np.array([10.0])).half)
    assert ranges(np.array([0.3]), reach_of(half), KAPPA)[0] == pytest.approx([half - 1, 1 - half])
    assert 0 < half < 1


def test_no_value_is_accurate_beside_a_case_that_is_off_by_more_than_kappa() -> None:
    spans = ranges(np.array([2.5, 0.0]), 0.9, KAPPA)
    assert np.isnan(spans[1]).all()
    assert spans[0] == pytest.approx([-1.8, 1.8])


def test_noise_of_the_margin_or_unknown_noise_leaves_no_limits() -> None:
    assert reach_of(1.0) is None
    assert reach_of(float("nan")) is None
    assert np.isnan(ranges(np.array([0.0]), None, KAPPA)).all()
