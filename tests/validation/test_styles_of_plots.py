"""Plots of an experiment: one style a series on a page, intervals over pairs, what labels and legends say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tracebed.cli import tracebed
from tracebed.validation.experiments.experiment_schema import Plot
from tracebed.validation.experiments.views import plots
from tracebed.validation.pictures import COLORS, STYLE, SeriesStyle
from tracebed.validation.report import history

POINT: dict[str, Any] = {
    **{"workload": "w", "share": None, "priority": "fcfs", "runtime_model": "ideal"},
    **dict.fromkeys(("processes", "outages"), "none"),
    **{"interval_s": 0.0, "malleability_interval_s": 0.0, "perturbation": 0, "window": "A"},
}
PAGE = """\
workloads: {w: {model: lublin99, options: {jobs: 40, nodes: 32}}}
malleable: {shares: [0, 1]}
policies: [fcfs, easy, pref]
seeds: 3
plots:
  bars: {kind: bars, figures: mean_wait_s}
  some: {kind: bars, figures: mean_wait_s, at: {policy: [pref, easy]}}
  ratios: {kind: normalized, figures: mean_wait_s, relative_to: {policy: easy, share: 0}}
  lines: {kind: lines, figures: mean_wait_s, relative_to: {policy: fcfs}}
  ecdf: {kind: ecdf, figures: wait, at: {share: 1, policy: [pref, easy]}}
  each: {kind: ecdf, figures: wait}
  daily: {kind: daily, figures: response, at: {policy: pref, share: 1}, relative_to: {policy: easy, share: 0}}
"""


def table(values: Mapping[str, Sequence[float]], **point: Any) -> pd.DataFrame:
    """Return rows of a grid: policy -> its mean wait for each seed."""
    return pd.DataFrame(
        [
            {**POINT, "policy": name, "seed": seed, "mean_wait_s": value, **point}
            for name, sample in values.items()
            for seed, value in enumerate(sample)
        ]
    )


@pytest.mark.usefixtures("svg_only", "unrendered")
def test_a_policy_keeps_its_color_in_every_figure_of_a_page(tmp_path: Path) -> None:
    path = tmp_path / "page.yaml"
    path.write_text(PAGE)
    result = CliRunner().invoke(tracebed, ["experiment", str(path), "-o", str(tmp_path / "out"), "--workers", "1"])
    assert result.exit_code == 0, result.output
    colors: dict[str, set[str]] = {}
    for name in ("bars", "some", "ratios", "lines", "ecdf", "each", "daily"):
        drawn = pd.read_csv(tmp_path / "out/page/plots" / f"{name}.csv").query("figure != 'jobs started smaller'")
        for series, color in zip(drawn["series"], drawn["color"], strict=True):
            colors.setdefault(re.sub(r"share [\d.]+, |, share [\d.]+", "", series), set()).add(color)
        if name == "ratios":
            assert list(dict.fromkeys(drawn["series"])) == ["fcfs", "easy", "pref"]  # not the order of the rows
        if name == "lines":
            assert set(zip(drawn["series"], drawn["marker"], strict=True)) == {("easy", "s"), ("pref", "D")}
    assert colors == {"fcfs": {COLORS[0]}, "easy": {COLORS[1]}, "pref": {COLORS[2]}}


def test_further_series_of_a_policy_keep_its_color() -> None:
    def drawing(plot: Plot, rows: pd.DataFrame) -> plots.Drawing:
        return plots.Drawing(None, plot, rows, lambda _: None, None, "", Path(), "")  # type: ignore[arg-type]

    alone = table({"a": [1.0], "b": [2.0]})
    several = pd.concat([table({"b": [2.0]}, priority=each) for each in ("fcfs", "sjf")])
    plot = Plot(kind="bars", figures=["mean_wait_s"])
    numbers = plots._numbers(["a", "b"], [drawing(plot, several), drawing(plot, alone)])
    assert numbers == {"a": 0, "b": 1, "b, priority fcfs": 1, "b, priority sjf": 1 + len(COLORS)}
    first, second = (SeriesStyle.of(numbers[f"b, priority {each}"]) for each in ("fcfs", "sjf"))
    assert first.color == second.color and first.line != second.line and first.hatch != second.hatch
    many = plots._numbers([f"p{number}" for number in range(len(COLORS) + 1)], [drawing(plot, several)])
    assert len(set(many.values())) == len(many) - 1  # b has the style of its first series
    assert len({(SeriesStyle.of(n).color, SeriesStyle.of(n).hatch) for n in range(32)}) == 32
    assert len({(each.color, each.line, each.marker) for each in map(SeriesStyle.of, range(32))}) == 32


def test_the_interval_of_a_ratio_is_that_of_the_pairs() -> None:
    """A run that equals its baseline for each seed is 1 exactly, though the seeds differ."""
    rows = table({"easy": [10, 20, 60], "pref": [10, 20, 60], "half": [5, 10, 30], "other": [12, 18, 66]})
    plot = Plot(kind="normalized", figures=["mean_wait_s"], relative_to={"policy": "easy"})
    drawn = plots.bars(plot, rows, "")
    assert drawn is not None
    figure, data = drawn
    found = data.set_index("series")[["value", "low", "high", "runs"]]
    assert found.loc["pref"].tolist() == pytest.approx([1, 1, 1, 3], abs=1e-12)
    assert found.loc["half"].tolist() == pytest.approx([0.5, 0.5, 0.5, 3], abs=1e-12)
    ratio = 96 / 90
    apart = np.array([12, 18, 66]) - ratio * np.array([10, 20, 60])
    half = 4.302653 * apart.std(ddof=1) / 3**0.5 / 30
    assert found.loc["other"].tolist() == pytest.approx([ratio, ratio - half, ratio + half, 3], rel=1e-6)
    (axes,) = figure.axes
    assert axes.get_ylabel() == "wait, mean,\nratio to easy"
    (text,) = [each.get_text().replace("\n", " ") for each in figure.legends[0].get_texts()[3:]]
    assert text == "ratio of the means and its 95 % interval over 3 pairs of the same seed (Student's t)"


def test_a_baseline_without_pairs() -> None:
    """A log without seeds is the baseline of each seed; seeds without a baseline are no pairs."""
    plot = Plot(kind="normalized", figures=["mean_wait_s"], relative_to={"policy": "easy"})
    one = plots.bars(plot, table({"easy": [10], "pref": [5, 10, 15]}), "")
    some = plots.bars(plot, table({"easy": [10, 10], "pref": [5, 10, 15]}), "")
    assert one is not None and some is not None
    half = 4.302653 * 0.5 / 3**0.5
    assert one[1].loc[0, ["value", "low", "high"]].tolist() == pytest.approx([1, 1 - half, 1 + half], rel=1e-6)
    assert one[1].loc[0, "runs"] == 3 and some[1].loc[0, "runs"] == 2


@pytest.mark.parametrize("count", [2, 4, 6, 8, 12, 16, 20, 30, 60])
@pytest.mark.parametrize("value", [73.0, 7.0, 0.468, 99_600.0])
def test_values_on_bars_do_not_run_together(count: int, value: float) -> None:
    rows = table({f"p{number:02}": [value] for number in range(count)})
    with mpl.rc_context({**STYLE, "font.sans-serif": ["DejaVu Sans"]}):
        drawn = plots.bars(Plot(kind="bars", figures=["mean_wait_s"]), rows, "", width=3.5)
        assert drawn is not None
        FigureCanvasAgg(drawn[0]).draw()
        boxes = sorted((text.get_window_extent() for text in drawn[0].axes[0].texts), key=lambda box: box.x0)
    assert count > 16 or len(boxes) == count
    for left, right in pairwise(boxes):
        assert right.x0 > left.x1 + 0.5


def test_a_metric_has_one_color_in_all_panels_of_a_history() -> None:
    """The simulators have different gated metrics; a figure without one of them keeps the colors of the others."""
    known = {"accurate": ["makespan_s", "mean_wait_s"], "other": ["mean_wait_s"]}
    rows = [
        {"simulator": simulator, "version": version, "metric": metric, "gate": True, "z": 0.5}
        | {"metric_verdict": "accurate", "verdict": "accurate"}
        for simulator, metrics in known.items()
        for version in ("1", "2")
        for metric in metrics
    ]
    figure = history.picture(pd.DataFrame(rows)).figure()
    colors = [{line.get_label(): line.get_color() for line in axes.lines} for axes in figure.axes]
    assert colors[0]["wait, mean"] == colors[1]["wait, mean"] != colors[0]["makespan"]
