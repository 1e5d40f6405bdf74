"""Tolerances: the shipped file, other files, changed margins, and the hash."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tracebed.ground.errors import InputError
from tracebed.validation.metrics import Margin, all_metrics
from tracebed.validation.metrics.standard import METRICS
from tracebed.validation.verdict import Tolerances
from tracebed.validation.verdict.tolerances import MANY, SHIPPED, parse_margin


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tolerances.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def to_yaml(tolerances: Tolerances) -> str:
    """Return the tolerances as a file."""
    known = all_metrics()
    width = max(map(len, tolerances.margins))
    rows = [
        f"  {name + ':':<{width + 1}} {margin.text(known[name].unit)}"
        for name, margin in sorted(tolerances.margins.items(), key=lambda item: not item[1].gate)
    ]
    return "\n".join(
        [
            "# Tolerances of a verdict. Omitted metrics keep their margins.",
            f"alpha: {tolerances.alpha:g}        # level of each one-sided test",
            f"kappa: {tolerances.kappa:g}            # largest accepted error of one case, in margins",
            f"repeats: {{few: {tolerances.repeats_few}, many: {tolerances.repeats_many}}}  "
            f"# healthy repetitions of each case, with fewer than {MANY} cases and with more",
            f"unmatched: {tolerances.unmatched:g}     # largest accepted share of jobs without a counterpart",
            f"ratchet: {tolerances.ratchet:g}       "
            "# largest accepted growth of an error since the baseline, in margins",
            f"window_s: {tolerances.window_s:.0f}   # longest window of the moving average of the wait, s: two weeks",
            "margins:               # the larger of a share of the real value and an amount; gate, advisory or off",
            *rows,
            "",
        ]
    )


def test_the_shipped_file_is_generated_from_the_metrics() -> None:
    ours = {metric.name: metric.margin for metric in METRICS if metric.margin is not None}
    assert SHIPPED.read_text(encoding="utf-8") == to_yaml(Tolerances(ours))
    assert Tolerances.load(SHIPPED).sha256 == Tolerances.default().sha256
    assert dict(Tolerances.load(SHIPPED).margins) == dict(Tolerances.default().margins)


def test_the_documentation_has_the_shipped_file() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "tolerances.md"
    assert f"```yaml\n{SHIPPED.read_text(encoding='utf-8')}```" in page.read_text(encoding="utf-8")


def test_a_file_replaces_what_it_names(tmp_path: Path) -> None:
    text = "alpha: 0.01\nrepeats: {many: 4}\nmargins:\n  wait: 20%, 5 s\n  p95_wait_s: gate\n  makespan: 'off'\n"
    found = Tolerances.load(written(tmp_path, text))
    assert (found.alpha, found.repeats_many, found.repeats_few, found.kappa) == (0.01, 4, 5, 2.0)
    assert found.margins["mean_wait_s"] == Margin(0.20, 5.0, gate=True)
    assert found.margins["p95_wait_s"] == Margin(0.15, 30.0, gate=True)
    assert "makespan_s" not in found.margins
    assert found.margins["mean_response_s"] == Tolerances.default().margins["mean_response_s"]
    assert found.source.endswith("tolerances.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alpha: 2\n", r"tolerances.yaml:1: alpha"),
        ("kappa: 2\nmargin: {}\n", r"tolerances.yaml:2: margin: unknown key"),
        ("margins:\n  makespan: 3%\n  wiat: 10%\n", r"tolerances.yaml:3: unknown metric 'wiat'.*did you mean wait\?"),
        ("margins:\n  wait: 10 min\n", r"tolerances.yaml:2: '10 min' is not a margin of mean_wait_s.*amount in s"),
        ("margins:\n  wait: -5%\n", r"tolerances.yaml:2: '-5%' is not a margin"),
        ("margins:\n  wait: 5%, 6%\n", r"tolerances.yaml:2: .* '6%' is given twice"),
        ("margins:\n  mean_slowdown: gate\n", r"tolerances.yaml:2: .*the amount is missing"),
        ("repeats: {few: 1}\n", r"tolerances.yaml:1: repeats.few"),
        ("- 1\n", r"tolerances.yaml:1"),
    ],
)
def test_errors_name_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        Tolerances.load(written(tmp_path, text))
    assert re.search(message, str(error.value)), str(error.value)


def test_margins_of_the_command_line() -> None:
    found = Tolerances.default().replaced({"wait": "15%", "slowdown": "0.2, advisory", "utilization": "0.02"})
    assert found.margins["mean_wait_s"] == Margin(0.15, 0.0, gate=True)
    assert found.margins["mean_bounded_slowdown"] == Margin(0.0, 0.2, gate=False)
    assert found.margins["utilization"] == Margin(0.0, 0.02, gate=True)
    assert found.source == "default, wait=15%, slowdown=0.2, advisory, utilization=0.02"
    assert Tolerances.default().replaced({}) == Tolerances.default()
    with pytest.raises(InputError, match="unknown metric"):
        Tolerances.default().replaced({"speed": "1%"})


@pytest.mark.parametrize("name", [name for name, metric in all_metrics().items() if metric.margin is not None])
def test_margins_are_read_as_they_are_written(name: str) -> None:
    metric = all_metrics()[name]
    assert metric.margin is not None
    assert parse_margin(metric.margin.text(metric.unit), metric) == metric.margin


def test_the_hash_is_of_what_decides() -> None:
    default = Tolerances.default()
    same = (default.replaced({"p95_wait_s": "50%"}), default.replaced({"wait": "10%, 10 s"}))
    assert {each.sha256 for each in same} == {default.sha256}
    other = (default.replaced({"wait": "11%"}), default.replaced({"wait": "off"}), default.scaled(2.0))
    assert len({each.sha256 for each in (default, *other)}) == 4


def test_short_names_are_unique() -> None:
    short = [metric.short for metric in all_metrics().values() if metric.short]
    assert len(set(short)) == len(short)
    assert not set(short) & all_metrics().keys()
    assert {"wait", "response", "makespan", "slowdown"} <= set(short)


def test_repetitions_needed_by_the_number_of_cases() -> None:
    assert [Tolerances.default().repeats(cases) for cases in (1, 4, 5, 10)] == [5, 5, 3, 3]
