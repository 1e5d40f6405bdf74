"""The report of a validation: verdict, errors by metric and case, repetitions, and the pages of a suite."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pages import Outline, plain
from tests.runs import fcfs_run, make_run
from tracebed.orchestrator.run import Run
from tracebed.validation.report import forest, scales, words
from tracebed.validation.report import html as report
from tracebed.validation.report.banner import banner
from tracebed.validation.report.style import MARKS
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.validate import validate
from tracebed.validation.verdict.validation import MetricVerdict, Validation

STRETCHES = (1.0, 1.004, 0.997, 1.002, 0.999)


def case(name: str = "tiny-fcfs", *, repeats: int = 5, off: float = 1.0, jobs: int = 60, **info: Any) -> Case:
    """Return a case of slightly different real runs, with a prediction whose run times are multiplied by `off`."""
    real = [fcfs_run(jobs, stretch=stretch, **info) for stretch in STRETCHES[:repeats]]
    policy = name.rpartition("-")[2]
    return Case(name, name.rpartition("-")[0], policy, tuple(real), (fcfs_run(jobs, stretch=off, real=False),))


def section(page: str, name: str) -> str:
    """Return the HTML of a section."""
    return page[page.index(f'<section id="{name}"') :].partition("</section>")[0]


@pytest.fixture(scope="module")
def alone() -> Validation:
    return validate([case()])


@pytest.fixture(scope="module")
def page(alone: Validation) -> str:
    return report.render(alone)


def test_the_page_of_a_case_is_self_contained_and_repeatable(alone: Validation, page: str) -> None:
    outline = Outline(page)
    assert not outline.open
    assert all(reference.startswith(("#", "data:image/png")) for reference in outline.references)
    assert len(outline.ids) == len(set(outline.ids))
    assert report.render(alone) == page


def test_the_verdict_and_its_numbers_come_first(alone: Validation, page: str) -> None:
    assert alone.verdict.value == "accurate"
    head = page[: page.index("<nav>")]
    assert "Accurate" in head
    assert "5 real repetitions, 1 prediction" in head
    tiles = re.findall(r'<li class="(\w+)"><span>(.*?)</span><b>(.*?)</b>', head)
    assert {label for _, label, _ in tiles} == {item.metric.label for item in alone.metrics if item.gate}
    assert {state for state, _, _ in tiles} == {"accurate"}
    assert "Where:" not in head
    order = re.findall(r'<section id="([\w-]+)"', page)
    assert order[:4] == ["forest", "warnings", "verdicts", "evidence"]
    assert order.index("gantt") > order.index("repetitions")


def test_all_sections_of_a_case_are_present_once(page: str) -> None:
    for name in ("forest", "verdicts", "evidence", "repetitions", "noise", "gantt", "queue", "agreement", "provenance"):
        assert page.count(f'<section id="{name}"') == 1


def test_a_wrong_prediction_says_where_and_why() -> None:
    """The jobs of the prediction run 30 % longer."""
    found = validate([case(off=1.3)])
    assert found.verdict.value == "inaccurate"
    head = banner(found)
    assert head.verdict == "inaccurate"
    assert head.where[0].startswith("utilization in the window: +21")
    assert head.why == ("utilization in the window: predicted run times are 1.3 times the workload's in 60 of 60 jobs",)
    page = plain(found)
    Outline(page)
    assert 'class="mark inaccurate"' in section(page, "forest")
    assert "<b>Where:</b>" in page


def test_one_repetition_has_neither_noise_nor_distances() -> None:
    found = validate([case(repeats=1)])
    page = plain(found)
    Outline(page)
    assert found.verdict.value == "inconclusive"
    assert '<section id="noise"' not in page
    assert "Distances between runs" not in page
    assert "too few repeats" in section(page, "verdicts")


def test_five_repetitions_have_a_distance_map_with_the_prediction(page: str) -> None:
    found = section(page, "agreement")
    matrix = found[found.index('class="heat"') :].partition("</table>")[0]
    assert matrix.count("<tr>") == 7  # the head, five repetitions, and the prediction
    assert "rep-05" in matrix
    assert "prediction" in matrix
    assert "Noise ratio" in found


@pytest.mark.slow
def test_the_pages_of_a_suite_link_to_each_other(tmp_path: Path) -> None:
    suite = validate([case("tiny-fcfs"), case("other-fcfs", off=1.3)])
    path = report.write(suite, tmp_path / "tracebed.html")
    page = path.read_text()
    Outline(page)
    links = re.findall(r'href="([^"#]+)"', page)
    assert len(links) == 2
    for link, name in zip(links, ("tiny-fcfs", "other-fcfs"), strict=True):
        of_case = (tmp_path / link).read_text()
        Outline(of_case)
        assert f"<h1>{name}" in of_case
        assert 'href="../tracebed.html"' in of_case
        assert '<section id="gantt"' in of_case
    assert '<section id="gantt"' not in page
    assert '<td class="outside">' in section(page, "cases")
    assert section(page, "forest").count('class="row case"') >= 10
    assert "of other-fcfs" in page[: page.index("<nav>")]


def test_a_suite_unfolds_the_metrics_that_are_not_accurate() -> None:
    page = plain(validate([case("tiny-fcfs"), case("other-fcfs", off=1.1)]))
    shown = section(page, "forest").partition("Advisory metrics")[0]
    metrics = re.findall(r"<details( open)?>\s*<summary class=\"row\">(.*?)</summary>", shown, re.DOTALL)
    assert len(metrics) == 5
    for unfolded, text in metrics:
        assert bool(unfolded) == ("state accurate" not in text)


def bare(run: Run) -> Run:
    """Return an imported run: its nodes, and which of them its jobs held, are unknown."""
    return Run(replace(run.info, nodes=[]), run.jobs, run.allocations[:0], run.reconfigurations[:0])


@pytest.mark.slow
def test_a_metric_that_the_prediction_does_not_define_is_shown() -> None:
    known = case()
    found = validate([replace(known, predicted=tuple(map(bare, known.predicted)))])
    page = report.render(found)
    Outline(page)
    assert "not defined" in section(page, "forest")
    assert found.verdict.value == "inconclusive"
    assert "not defined" in section(page, "verdicts")


@pytest.mark.slow
def test_runs_without_nodes_and_allocations_have_a_report() -> None:
    known = case()
    unknown = replace(known, real=tuple(map(bare, known.real)), predicted=tuple(map(bare, known.predicted)))
    page = report.render(validate([unknown]))
    Outline(page)
    assert '<section id="gantt"' not in page
    assert '<section id="staircases"' not in page
    assert page.count('<section id="agreement"') == 1


def test_an_excluded_repetition_is_listed_with_its_cause() -> None:
    cause = {"signal": "late_s", "value": 10.2, "limit": 1.0, "state": "unhealthy", "text": "a <rank> was 10.2 s late"}
    sick = fcfs_run(60, stretch=1.001, health={"state": "unhealthy", "causes": [cause], "signals": {}})
    five = case()
    found = validate([replace(five, real=(*five.real, sick))])
    page = plain(found)
    Outline(page)
    rows = section(page, "repetitions")
    assert "6 repetitions: 5 in the verdict, 1 excluded" in rows
    assert re.search(r'<tr class="advisory"><td>rep-06</td><td>unhealthy</td><td>no: .*?a &lt;rank&gt; was', rows)
    assert "5 real repetitions (1 more excluded)" in page


def test_no_finished_jobs_have_a_report() -> None:
    nothing = [(0.0, math.nan, math.nan, 1)]
    runs = make_run(nothing), make_run(nothing, real=False)
    page = report.render(validate([Case.of([runs[0]], [runs[1]])]))
    Outline(page)
    assert "Fewer than two jobs ended in all runs" in page


def metric_verdict(item: MetricVerdict, **change: Any) -> MetricVerdict:
    """Return `item` with another result in its only case."""
    (only,) = item.cases
    return replace(item, cases=(replace(only, **change),))


def test_errors_have_the_unit_of_the_margin_that_applies(alone: Validation) -> None:
    wait = next(item for item in alone.metrics if item.metric.name == "mean_wait_s")
    shares = {"real_mean": 200.0, "margin": 20.0, "z": -0.5, "low": -0.7, "high": -0.3}
    item = metric_verdict(wait, **shares)
    assert words.error(item) == "−5 % [−7, −3]"
    assert words.margin(item) == "±10 %"
    item = metric_verdict(wait, **(shares | {"real_mean": 1.0, "margin": 10.0}))
    assert words.error(item) == "−5 s [−7, −3]"
    assert words.margin(item) == "±10 s"
    item = metric_verdict(wait, z=math.nan, low=math.nan, high=math.nan)
    assert words.error(item) == "not defined"


@pytest.mark.parametrize(
    ("z", "place", "shape"),
    [
        (0.0, 0.0, forest.DIAMOND),
        (3.1, 3.1, forest.DIAMOND),  # beyond the last tick, but on the axis
        (7.5, forest.REACH, forest.ARROWS[True]),
        (-7.5, -forest.REACH, forest.ARROWS[False]),
    ],
)
def test_an_error_beyond_the_axis_is_an_arrow_at_its_end(alone: Validation, z: float, place: float, shape: str) -> None:
    row = forest.metric_row(replace(alone.metrics[0], z=z, low=z - 20, high=z + 20))
    assert row.z == place
    assert row.interval == (-forest.REACH, forest.REACH)
    assert row.beyond == {3.1: "+3.1", 7.5: "+7.5", -7.5: "\N{MINUS SIGN}7.5"}.get(z, "")
    assert row.shape == shape


def test_many_marks_are_thinned_to_an_image() -> None:
    import numpy as np
    from matplotlib.figure import Figure

    generator = np.random.default_rng(0)
    x, y = generator.lognormal(3, 2, 50_000), generator.normal(0, 1, 50_000)
    axes = Figure().subplots()
    scales.scatter(axes, x, y, "red", linear={"x": 1.0})
    (marks,) = axes.collections
    drawn = np.asarray(marks.get_offsets())
    assert marks.get_rasterized()
    assert len(drawn) < 25_000
    assert drawn[:, 1].max() == y.max()
    scales.scatter(axes, x[:MARKS], y[:MARKS], "red")
    assert len(np.asarray(axes.collections[1].get_offsets())) == MARKS
