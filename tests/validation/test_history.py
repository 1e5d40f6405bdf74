"""The history of a simulator: records of commits, the steps of its errors, and its page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracebed.api as tb
from tests.oracles.validations import make_validation
from tests.servers import chromium
from tracebed.validation.verdict.baseline import Baseline
from tracebed.validation.verdict.history import breaks, steps

LEVELS = (1.0, 1.0, 1.0, 1.03, 1.03, 1.03, 1.1, 1.0, 1.0)
"""Factor of the waits at each commit: a small step, which stays, and a large one, which is taken back."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("records")
    found = {f: Baseline.of([make_validation({"w1-fcfs": f, "w2-fcfs": f}).to_json()]) for f in set(LEVELS)}
    names = [f"202611{day:02}T120000Z-{day:08x}{0:032x}" for day in range(1, len(LEVELS) + 1)]
    return [found[f].save(folder / f"{name}.json") for name, f in zip(names, LEVELS, strict=True)]


def test_records_state_their_commits_and_days(records: list[Path]) -> None:
    """Outside a repository, also a single one."""
    table = tb.history(*records).table.drop_duplicates("version")
    assert list(table["version"]) == [f"{day:08x}" for day in range(1, len(LEVELS) + 1)]
    assert table["date"].iloc[0] == "2026-11-01T12:00:00Z"
    assert tb.history(records[2]).table["date"].unique().tolist() == ["2026-11-03T12:00:00Z"]


def test_each_step_is_found_with_its_commit_and_day(records: list[Path]) -> None:
    found = tb.history(*records).steps
    waits = found[found["metric"] == "mean_wait_s"]
    assert [date[:10] for date in waits["date"]] == ["2026-11-04", "2026-11-07", "2026-11-08"]
    previous = {f"{day:08x}": f"{day - 1:08x}" for day in (4, 7, 8)}
    assert dict(zip(waits["version"], waits["previous"], strict=True)) == previous
    before, after = waits["before"].to_numpy(), waits["after"].to_numpy()
    assert before[1:].tolist() == after[:-1].tolist()
    assert after[0] == tb.history(records[4]).table.set_index("metric").loc["mean_wait_s", "z"]
    assert tb.history(*records[:3]).steps.empty


def test_a_metric_that_is_undefined_at_some_commits_has_steps_between_the_others(records: list[Path]) -> None:
    table = tb.history(*records).table
    table.loc[(table["version"] == "00000005") & (table["metric"] == "mean_wait_s"), "z"] = np.nan
    found = steps(table)
    assert [date[8:10] for date in found[found["metric"] == "mean_wait_s"]["date"]] == ["04", "07", "08"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([0.5], []),
        ([0.1, 0.9], []),  # two values do not tell a step from noise
        ([0.1, 0.1, 0.1, 0.9], [3]),
        ([0.1, 0.1, 0.1, 0.105], []),  # less than a change that counts
        ([0.1, 0.1, 0.112, 0.112], [2]),
        ([1e6, 1e6, 1e6 + 1, 1e6 + 1], [2]),
        ([0.0, 0.0, 0.0, 0.4, 0.0, 0.0], [3, 4]),
        ([0.0, 0.1, 0.2, 0.3, 0.4], []),  # a trend is no step
    ],
)
def test_the_steps_of_a_deterministic_simulator_are_exact(values: list[float], expected: list[int]) -> None:
    assert breaks(np.array(values)) == expected


@pytest.mark.parametrize(("n", "false", "found"), [(5, 0.13, 0.0), (10, 0.07, 0.55), (20, 0.05, 0.8), (40, 0.03, 0.9)])
def test_noise_seldom_makes_a_step_and_seldom_hides_one(n: int, false: float, found: float) -> None:
    """The rates of the docstring, over series of white noise without a step, and with one of three deviations."""
    draws = np.random.default_rng(n)
    noise = draws.standard_normal((400, n))
    assert np.mean([breaks(each) != [] for each in noise]) <= false
    noise[:, n // 2 :] += 3.0
    assert np.mean([any(abs(at - n // 2) <= 1 for at in breaks(each)) for each in noise]) >= found


def test_the_page_has_a_line_of_each_metric_and_the_steps(
    records: list[Path], call: Callable[..., Any], tmp_path: Path
) -> None:
    status, out, _ = call("metrics", *map(str, records), "--report", "history.html")
    assert status == 0
    assert re.search(r"^step of mine at 00000004 2026-11-04: .*wait, mean \+0\.0\d to \+0\.4", out, re.MULTILINE)
    text = (tmp_path / "history.html").read_text()
    for label in ("makespan", "wait, mean", "wait, p95", "2026-11-04", "<code>00000004</code>"):
        assert label in text
    assert text.count('class="step"') == 3
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', text) == []  # self-contained
    status, out, _ = call("metrics", *map(str, records), "--json")
    assert {step["version"] for step in json.loads(out)["steps"]} == {"00000004", "00000007", "00000008"}
    status, _, said = call("metrics", *map(str, records), "--report", "figures")
    assert status == 2 and ".html" in said


@pytest.mark.skipif(chromium.PROGRAM is None, reason="there is no Chromium")
def test_the_page_fits_a_phone_and_a_screen_in_light_and_dark(records: list[Path], tmp_path: Path) -> None:
    path = tb.history(*records).page(tmp_path / "history.html")
    with chromium.Chromium(tmp_path / "profile") as browser:
        for width, dark in ((375, False), (375, True), (1280, False), (1280, True)):
            page = chromium.Page(browser, path, width=width, dark=dark, phone=width < 500)
            assert page.errors() == []
            assert page.run("document.documentElement.scrollWidth") == width
            shown = page.run("[...document.querySelectorAll('figure > div')].filter(e => e.checkVisibility()).length")
            assert shown == 1  # the advisory metrics are folded
            assert page.run("getComputedStyle(document.body).backgroundColor") == (
                "rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)"
            )
            page.close()
