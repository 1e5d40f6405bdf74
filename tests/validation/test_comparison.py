"""The verdict on the console: one case and several, with reasons, within 80 columns."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from tests.runs import fcfs_run
from tracebed.cli.gate import show
from tracebed.validation.verdict import Validation, validate
from tracebed.validation.verdict.cases import Case


def case(policy: str = "fcfs", *, repeats: int = 5, error: float = 1.0, **options: Any) -> Case:
    """Return a case whose repetitions differ by a few percent of their run times."""
    real = [fcfs_run(60, stretch=1 + 0.002 * index, policy=policy) for index in range(repeats)]
    return Case.of(real, [fcfs_run(60, stretch=error, real=False, policy=policy)], **options)


@pytest.fixture(scope="module")
def single() -> Validation:
    return validate([case(repeats=1, error=1.1)])


@pytest.fixture(scope="module")
def several() -> Validation:
    return validate([case(name) for name in ("fcfs", "easy")] + [case("pref", calibration=True)])


def plain(text: str) -> str:
    """Return `text` without escape sequences."""
    return re.sub("\\x1b[^m]*m", "", text)


def test_one_real_run_is_inconclusive_with_the_reason(single: Validation, capsys: pytest.CaptureFixture[str]) -> None:
    show(single)
    out, _ = capsys.readouterr()
    assert "real:      1 run, replay, fcfs; emulated" in out
    assert "makespan" in out
    assert "* advisory" in out
    assert "could not have failed: run times: they were imposed (emulated nodes)" in out
    assert "inconclusive: one real run: no accuracy claim" in out


def test_a_log_has_an_unknown_policy_and_no_column_of_noise(capsys: pytest.CaptureFixture[str]) -> None:
    log = fcfs_run(60, source="log", execution="logged", health={}, policy="not known")
    show(validate([Case.of([log], [fcfs_run(60, stretch=0.1, real=False)])]))
    out, _ = capsys.readouterr()
    assert "real:      1 run, log, policy unknown; logged: read from a log" in out
    assert "not known" not in out
    assert "noise" not in next(line for line in out.splitlines() if line.startswith("metric")).split()


def test_several_cases_have_the_worst_and_the_margins(several: Validation, capsys: pytest.CaptureFixture[str]) -> None:
    show(several)
    out, _ = capsys.readouterr()
    assert "cases:     3, 5 real runs of 1 workload" in out  # all three have the same repetitions
    assert "shown only, since they were used for calibration: tiny-pref" in out
    header = next(line for line in out.splitlines() if line.startswith("metric"))
    columns = ["metric", "noise (largest)", "|error|", "worst", ">1, >2", "mean", "margin", "verdict"]
    assert header.split() == " ".join(columns).split()
    assert "with 0.5 times the margins: " in out
    assert out.splitlines()[-1].startswith(f"{several.verdict}: ")


@pytest.mark.parametrize("name", ["single", "several"])
def test_the_table_fits_the_usual_terminal(
    name: str,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(request.getfixturevalue(name))
    lines = plain(capsys.readouterr().out).splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("metric"))
    table = lines[first : lines.index("* advisory: not part of the verdict")]
    assert max(map(len, table)) <= 80
    assert not any("…" in line for line in table)
    assert {"margin", "verdict"} <= set(table[0].split())  # the margin is always shown
    if name == "single":  # one real run has no noise, so that there is room for the prediction
        assert table[0].split() == ["metric", "real", "predicted", "error", "margin", "verdict"]
    assert len(table) == 1 + len(request.getfixturevalue(name).metrics)


def test_a_warning_of_the_simulator_before_is_not_repeated(
    single: Validation, capsys: pytest.CaptureFixture[str]
) -> None:
    show(single)
    first = capsys.readouterr().err
    show(single, single.warnings)
    assert "warning" in first
    assert capsys.readouterr().err == ""
