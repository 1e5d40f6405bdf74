"""The report: self-contained pages that escape names and have all facts, of a comparison, a validation and a suite."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import packages
from tests.pages import Outline, plain, rendered, validated
from tests.runs import NAN, fcfs_run, lending_run, make_run
from tracebed.ground.display import cell
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import metrics
from tracebed.validation.report import gantt, scales, verdicts, words
from tracebed.validation.report import html as report
from tracebed.validation.report.html import banner
from tracebed.validation.report.scales import TimeAxis
from tracebed.validation.report.style import MARKS
from tracebed.validation.verdict import Comparison, compare
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.validate import validate
from tracebed.validation.verdict.validation import MetricVerdict, Validation

EVIL = "<script>alert('x')</script>&\"$\\frac{1}{0}$"

STRETCHES = (1.0, 1.004, 0.997, 1.002, 0.999)


def malleable(*, real: bool, shift: float = 0.0) -> Run:
    jobs = [(0.0, 0.0, 100.0, 2), (10.0, 10.0, 60.0 + shift, 2), (20.0, 110.0, 150.0, 4)]
    return make_run(
        jobs,
        real=real,
        staircases={"1": [(0.0, 60.0 + shift, 2), (60.0 + shift, 100.0, 4)]},
        reconfigurations=[("1", "expand", 2, 4, 55.0, 58.0, 60.0 + shift, 61.0, "applied")],
        speed=200.0,
        lateness_ms={"p50": 0.31, "p99": 2.17, "max": 4.4, "count": 3} if real else {},
    )


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(malleable(real=True), malleable(real=False, shift=5.0))


@pytest.fixture(scope="module")
def page(comparison: Comparison) -> str:
    return rendered(comparison.real, comparison.predicted)


def test_the_page_is_self_contained(page: str) -> None:
    outline = Outline(page)
    assert not outline.open
    assert all(reference.startswith(("#", "data:image/png")) for reference in outline.references)
    assert not {"link", "iframe", "object", "embed", "base"} & outline.tags
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", re.sub(r"(?s)<script.*?</script>", "", page))
    assert len(outline.ids) == len(set(outline.ids))
    targets = {reference[1:] for reference in outline.references if reference.startswith("#")}
    assert targets | set(re.findall(r"url\(#([^)]+)\)", page)) <= set(outline.ids)


def test_the_page_has_all_required_facts(page: str) -> None:
    for what in (
        "Inconclusive",
        "no accuracy claim",
        "too few repeats",
        "emulated: real processes that slept",
        "simulated: virtual time",
        "p50 0.31 ms, p99 2.17 ms, max 4.4 ms",
        "200 trace seconds per wall second",
        "within-run stability",
        "Two Gantt charts",
        "<details>",
        "Largest differences of waits",
        "expand, decision",
        "a" * 64,
    ):
        assert what in page
    assert page.count("jobs emulated, not computed") >= 6  # at the top and with every picture
    assert "computed: real processes that used" not in page


def test_names_of_users_are_escaped() -> None:
    ids = [EVIL, "b", "c"]
    runs = [
        make_run(
            [(0.0, 0.0, 5.0, 1), (1.0, 9.0 + shift, 19.0 + shift, 1), (2.0, 2.0 + shift, 9.0, 1)],
            ids=ids,
            real=real,
            machine=2,
            workload={"name": EVIL, "sha256": "", "jobs": 3, "provenance": {}},
            policy=EVIL,
            warnings=[EVIL],
            parameters={EVIL: EVIL},
        )
        for real, shift in ((True, 0.0), (False, 3.0))
    ]
    for run in runs:
        run.info.nodes = [type(node)(EVIL, node.cores) for node in run.info.nodes]
    page = rendered(*runs)
    found = re.findall("<script([^>]*)>", page)
    assert set(found) == {' type="text/plain" class="table"', ' type="text/plain" id="chart-data"', ""}
    assert found.count("") == 1
    assert "alert('x')" not in page
    assert "&lt;script&gt;" in page
    Outline(page)


def test_a_page_is_a_function_of_its_comparison(comparison: Comparison, page: str) -> None:
    assert rendered(comparison.real, comparison.predicted) == page


def test_every_section_is_present_once(page: str, case_page: str) -> None:
    of_a_pair = ("gantt", "utilization", "queue", "differences", "distributions", "reconfigurations")
    of_a_case = ("forest", "verdicts", "evidence", "repetitions", "noise", "gantt", "queue", "agreement", "provenance")
    for text, names in ((page, of_a_pair), (case_page, of_a_case)):
        assert [text.count(f'<section id="{name}"') for name in names] == [1] * len(names)


@pytest.mark.parametrize("execution", ["computed", "logged", "computed+emulated"])
def test_every_kind_of_execution_is_named(execution: str) -> None:
    page = plain(validated(make_run([(0, 0, 5, 1)], execution=execution), make_run([(0, 0, 5, 1)], real=False)))
    for part in execution.split("+"):
        assert words.execution(make_run([], execution=part).info) in page


def test_a_run_without_ended_jobs_has_a_report() -> None:
    nothing = [(0.0, NAN, NAN, 1)]
    page = rendered(make_run(nothing), make_run(nothing, real=False))
    assert "Fewer than two jobs ended in all runs" in page
    Outline(page)


@pytest.mark.slow
def test_many_rectangles_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    found = validated(fcfs_run(300), fcfs_run(300, stretch=1.02, real=False))
    drawn = len(report.render(found))
    monkeypatch.setattr(gantt, "BARS", 100)
    sampled = report.render(found)
    assert sampled.count("data:image/png") == 8  # charts and color bars of both sides, for screens and for phones
    assert len(sampled) < drawn + 300_000
    Outline(sampled)


def test_an_unwritable_path_of_a_report_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        report.write_page("", tmp_path / "file" / "report.html")
    with pytest.raises(InputError, match=r"must end in \.html"):
        report.write_page("", tmp_path / "file")
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.slow
def test_a_long_tail_is_cropped_and_reported() -> None:
    """100 jobs end within 200 s, one ten times later: the axis shows the arrivals and the drain."""
    jobs = [(float(n), float(n), n + 100.0, 1) for n in range(100)] + [(50.0, 50.0, 2000.0, 1)]
    runs = [make_run(jobs, machine=120, real=real) for real in (True, False)]
    time = TimeAxis.of(*runs)
    assert (time.end, time.later, time.last) == (195.0, (5, 5), (2000.0, 2000.0))
    page = rendered(*runs)
    assert "The time axis ends at 195 s, when 95 % of the jobs have ended: 5 real jobs end later" in page
    assert page.count("last job ends at 2,000 s") == 4


@pytest.mark.parametrize("last", [195.0, 390.0])
def test_a_short_tail_is_shown(last: float) -> None:
    jobs = [(float(n), float(n), n + 100.0, 1) for n in range(100)] + [(50.0, 50.0, last, 1)]
    time = TimeAxis.of(make_run(jobs, machine=120))
    assert time.end == max(last, 199.0)
    assert time.note("real") == ""


def test_a_scale_is_logarithmic_if_few_values_dominate() -> None:
    few = np.array([0.0, 10.0, 20.0, 30.0, 40.0, 90_000.0])
    assert scales.threshold(np.array([0.0, 10.0, 20.0, 30.0])) is None
    assert scales.threshold(np.zeros(3)) is None
    assert scales.threshold(few) == 1.0
    assert scales.threshold(1000 * few) == 1000.0
    edges = scales.edges(np.array([-1000.0, 1000.0]), 6, 10.0)
    assert edges.tolist() == pytest.approx([-1000, -100, -10, 0, 10, 100, 1000])


def test_a_picture_follows_the_colors_of_the_page(page: str) -> None:
    """Text and lines use the page's color; a fixed color could be invisible in dark mode."""
    svg = "".join(re.findall(r"<svg viewBox.*?</svg>", page, re.DOTALL))
    assert not re.search(r"(fill|stroke): (#000|black|#1d2126|#5b636d)", svg)
    texts = re.findall(r"<text[^>]*>", svg)
    assert len(texts) > 50
    assert all("var(--" in text for text in texts)
    variables = set(re.findall(r"var\((--\w+)", page))
    dark = page[page.index("prefers-color-scheme: dark") :].partition("} }")[0]
    assert variables <= set(re.findall(r"(--\w+):", dark))


def test_every_bar_of_both_charts_has_a_tooltip(comparison: Comparison, page: str) -> None:
    bars = sum(len(gantt.blocks(run, pd.Index(run.jobs["job_id"]))) for run in (comparison.real, comparison.predicted))
    assert page.count("<title>job ") == 2 * bars  # on screens and on phones


@pytest.mark.slow
def test_changes_of_cores_are_drawn_and_listed_with_the_worst_hand_overs() -> None:
    facts = {"handovers": 4, "gap_s": 0.0123, "gap_at": "CPU 3 of n1, jobs 1 and 2", "overlap_s": 0.0}
    page = rendered(lending_run(handovers=facts, strays=7), lending_run(real=False))
    for heading in ("real: 2 expanded, 3 shrunk", "predicted: 2 expanded, 3 shrunk"):
        assert heading in page
    rows = {row.split("</td>")[0]: row for row in page.split("<tr><td>")}
    assert rows["lend"].count("<td>") == 8
    assert re.findall("<td>([^<]*)", rows["lend"]) == ["2", "2", "2", "2"] * 2
    assert re.findall("<td>([^<]*)", rows["operator"]) == ["1", "-", "-", "-"] * 2
    for fact in ("two jobs: 4.", "two masks: 0 s of", "0.0123 s of wall time (CPU 3 of n1", "left their CPUs: 7"):
        assert fact in page
    assert "Jobs on a shared node are parts of its row." in page
    assert "change of cores</th>" not in rendered(malleable(real=True), malleable(real=False))


SECTION = """
    from markupsafe import Markup
    from matplotlib.figure import Figure
    from tracebed.validation.report.sections import Section

    def energy(comparison):
        figure = Figure()
        axes = figure.subplots()
        axes.plot([1, 2]).pop().set_url("about <this> line")
        return figure

    ENERGY = Section("Energy & power", 350, energy)
    TEXT = Section("Text", 360, lambda comparison: f"<b>{len(comparison.jobs)} jobs</b>")
    BOLD = Section("Bold", 370, lambda comparison: Markup("<b>{}</b>").format("<i>"))
    LEFT_OUT = Section("Left out", 380, lambda comparison: None)
    WRONG = Section("Wrong", 390, lambda comparison: 5)
"""


@pytest.mark.slow
def test_sections_of_another_package_are_in_the_report(tmp_path: Path) -> None:
    names = {name: f"sections:{name.upper()}" for name in ("energy", "text", "bold", "left_out")}
    site = packages.install(tmp_path / "theirs", {"sections.py": SECTION}, {"tracebed.report_sections": names})
    for name, real in (("real", True), ("predicted", False)):
        malleable(real=real).save(tmp_path / name)
    words = ("compare", "--real", "real", "--predicted", "predicted", "--report", "report.html")
    done = packages.tracebed(site, *words, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    page = (tmp_path / "report.html").read_text()
    Outline(page)
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    start = titles.index("Verdict by metric")
    after = ["Evidence for the verdict", "Real repetitions", "Energy &amp; power", "Text", "Bold", "Jobs on nodes"]
    assert titles[start : start + 7] == ["Verdict by metric", *after]
    assert "&lt;b&gt;3 jobs&lt;/b&gt;" in page
    assert "<b>&lt;i&gt;</b>" in page
    assert re.search(r'<div class="any"[^>]*><svg [^>]*>', page)
    assert 'href="about' not in page


@pytest.mark.slow
def test_a_wrong_section_of_another_package_is_named(tmp_path: Path) -> None:
    site = packages.install(
        tmp_path / "theirs", {"sections.py": SECTION}, {"tracebed.report_sections": {"wrong": "sections:WRONG"}}
    )
    for name, real in (("real", True), ("predicted", False)):
        malleable(real=real).save(tmp_path / name)
    words = ("compare", "--real", "real", "--predicted", "predicted", "--report", "report.html")
    done = packages.tracebed(site, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "report section wrong: returns int" in done.stderr


LATE = {"signal": "late_s", "value": 10.2, "limit": 1.0, "state": "unhealthy", "text": "a <rank> was 10.2 s late"}


def test_the_causes_of_an_unhealthy_run_are_in_the_report() -> None:
    real = malleable(real=True)
    real.info.health = {
        "state": "unhealthy",
        "causes": [LATE],
        "signals": {"rank_late_s": 0.01, "steal": None},
        "thresholds": "ab" * 32,
    }
    page = plain(validated(real, malleable(real=False)))
    Outline(page)
    section = page[page.index('<section id="health"') :].partition("</section>")[0]
    for what in (
        "<strong>Unhealthy</strong>",
        "unhealthy: a &lt;rank&gt; was 10.2 s late",
        "<dt>rank_late_s</dt><dd>0.01</dd>",
        "<dt>steal</dt><dd>-</dd>",
        HealthThresholds.read().sha256[:12],
    ):
        assert what in section
    assert "The real run is unhealthy: a &lt;rank&gt; was 10.2 s late; one real run" in page


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({}, "<strong>Healthy</strong>: all signals are within their limits"),
        ({"health": {}}, "<strong>Unknown</strong>: the replay has no record"),
        ({"health": {}, "source": "log", "execution": "logged"}, None),
    ],
)
def test_the_report_names_the_health_of_a_replay(info: dict[str, Any], says: str | None) -> None:
    page = plain(validated(make_run([(0, 0, 5, 1)], **info), make_run([(0, 0, 5, 1)], real=False)))
    assert ('<section id="health"' in page) == (says is not None)
    assert (says or "") in page


@pytest.mark.slow
def test_samples_of_the_real_run_are_drawn_by_signal() -> None:
    real = malleable(real=True)
    assert '<section id="samples"' not in rendered(real, malleable(real=False))
    times = np.repeat(np.linspace(0.0, 149.0, 2000), 4)
    samples = pd.DataFrame({"time": times, "node": np.tile(np.arange(4), 2000)})
    measured = {"pressure": 0.2, "late_s": np.where(samples["node"] == 0, NAN, 0.1), "work_rate": 4e5}
    real = Run(real.info, real.jobs, real.allocations, real.reconfigurations, samples.assign(**measured))
    page = rendered(real, malleable(real=False))
    Outline(page)
    section = page[page.index('<section id="samples"') :].partition("</section>")[0]
    for what, drawn in (("CPU pressure", 2), ("lateness of ranks", 2), ("work rate", 2), ("outside the run", 0)):
        assert section.count(what) == drawn  # for screens and for phones
    assert len(section) < 150_000


@pytest.mark.slow
def test_samples_outside_the_time_axis_are_not_drawn() -> None:
    real = malleable(real=True)
    samples = pd.DataFrame({"time": [-5.0, 5000.0], "node": [0, 1], "pressure": 0.5})
    real = Run(real.info, real.jobs, real.allocations, real.reconfigurations, samples)
    assert '<section id="samples"' not in rendered(real, malleable(real=False))


def test_classes_and_divergences_are_tables(page: str) -> None:
    classes = page[page.index('<section id="breakdown"') :].partition("</section>")[0]
    assert "By requested nodes" in classes
    assert "<td>3 to 4</td>" in classes
    assert "By kind" in classes
    assert "By user" not in classes and "By class of nodes" not in classes
    parted = page[page.index('<section id="divergences"') :].partition("</section>")[0]
    assert "The runs do not part" in parted


def test_differences_on_unlike_nodes_are_by_class_of_nodes() -> None:
    real = fcfs_run(60)
    real.info.nodes = [node._replace(cores=8) if n % 2 else node for n, node in enumerate(real.info.nodes)]
    page = rendered(real, fcfs_run(60, stretch=1.1, real=False))
    classes = page[page.index('<section id="breakdown"') :].partition("</section>")[0]
    assert "By class of nodes" in classes and "<td>n1,n3,... (8 nodes)</td>" in classes


def test_the_fairness_between_users_is_real_beside_predicted() -> None:
    sides = fcfs_run(60), fcfs_run(60, stretch=1.1, real=False)
    for run in sides:
        run.jobs["user"] = ["ann", "bob", "eve"] * 20
    figures = [f"<td>{cell(metrics(run)['jain_index_users'])}</td>" for run in sides]
    assert f"fairness between users, Jain&#39;s index</td>{''.join(figures)}" in rendered(*sides)
    assert "fairness between users" not in rendered(fcfs_run(60), fcfs_run(60, real=False)), "no users"


def test_the_first_divergences_are_in_the_report() -> None:
    fcfs = [(0.0, 0.0, 100.0, 2), (10.0, 100.0, 200.0, 4), (20.0, 200.0, 230.0, 1)]
    easy = [*fcfs[:2], (20.0, 20.0, 50.0, 1)]
    page = plain(validated(make_run(fcfs), make_run(easy, real=False)))
    parted = page[page.index('<section id="divergences"') :].partition("</section>")[0]
    assert "The runs part at 1 job (3 decided starts and resizes were compared)." in parted
    assert "<td>nothing: still waiting; start on 1 node later, after start on 4 nodes of job 2</td>" in parted
    assert '<td class="predicted">start on 1 node</td>' in parted
    assert "2 / 2" in parted


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
def case_page(alone: Validation) -> str:
    return report.render(alone)


def test_the_verdict_and_its_numbers_come_first(alone: Validation, case_page: str) -> None:
    assert alone.verdict.value == "accurate"
    head = case_page[: case_page.index("<nav>")]
    assert "Accurate" in head
    assert "5 real repetitions, 1 prediction" in head
    tiles = re.findall(r'<li class="(\w+)"><span>(.*?)</span><b>(.*?)</b>', head)
    assert {label for _, label, _ in tiles} == {item.metric.label for item in alone.metrics if item.gate}
    assert {state for state, _, _ in tiles} == {"accurate"}
    assert "Where:" not in head
    order = re.findall(r'<section id="([\w-]+)"', case_page)
    assert order[:4] == ["forest", "warnings", "verdicts", "evidence"]
    assert order.index("gantt") > order.index("repetitions")


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


def test_five_repetitions_have_a_distance_map_with_the_prediction(case_page: str) -> None:
    found = section(case_page, "agreement")
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
        (0.0, 0.0, verdicts.DIAMOND),
        (3.1, 3.1, verdicts.DIAMOND),  # beyond the last tick, but on the axis
        (7.5, verdicts.REACH, verdicts.ARROWS[True]),
        (-7.5, -verdicts.REACH, verdicts.ARROWS[False]),
    ],
)
def test_an_error_beyond_the_axis_is_an_arrow_at_its_end(alone: Validation, z: float, place: float, shape: str) -> None:
    row = verdicts.metric_row(replace(alone.metrics[0], z=z, low=z - 20, high=z + 20))
    assert row.z == place
    assert row.interval == (-verdicts.REACH, verdicts.REACH)
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
