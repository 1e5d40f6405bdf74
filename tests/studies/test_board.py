"""Data sets of real runs by other people: copies are verified, and become suites and the page of the board."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import yaml

import tracebed.api as tb
from tests.commands import call
from tests.pages import Outline
from tests.servers import chromium
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, Tolerated
from tracebed.orchestrator.run import Run
from tracebed.studies.board.board import WAIT, Board, Score, interval, number, share
from tracebed.studies.board.building import build as build_board
from tracebed.studies.board.building import controls
from tracebed.studies.board.conversions import AMTE_BOUNDS, CONVERSIONS
from tracebed.studies.board.datasets import Dataset, _candidates, datasets, fetch
from tracebed.studies.board.entries import EXAMPLE, load_entries
from tracebed.studies.board.page import failure, html, page
from tracebed.studies.board.picture import picture, row_id
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.suite import load_suite
from tracebed.validation.verdict import validate
from tracebed.validation.verdict.cases import Case

SUITE = """\
workloads: [one]
policies: [fcfs]
recorded: {runs: log.csv, from: csv, nodes: 1}
simulators: {fcfs: {}}
"""
TABLE = "id,submit,start,end,nodes\na,0,0,60,1\nb,5,60,90,1\n"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A data set of one file, beside the others."""
    made = Dataset(
        name="small",
        title="two jobs",
        institution="a university",
        source="https://example.org/runs",
        commit="0123456",
        licence="",
        citation="Someone, somewhere",
        files={"log.csv": hashlib.sha256(TABLE.encode()).hexdigest()},
        suite=SUITE,
    )
    monkeypatch.setitem(datasets(), "small", made)
    return made


@pytest.mark.parametrize("packed", [False, True])
def test_a_local_copy_becomes_a_suite(small: Dataset, tmp_path: Path, packed: bool) -> None:
    (tmp_path / "clone" / "runs").mkdir(parents=True)
    data = gzip.compress(TABLE.encode()) if packed else TABLE.encode()
    (tmp_path / "clone" / "runs" / f"jobs-7.csv{'.gz' * packed}").write_bytes(data)  # another name
    (tmp_path / "clone" / "log.csv").write_text("another file of this name\n")
    result = call("validate", "--recorded", "small", "--from", tmp_path / "clone", "-o", tmp_path / "copy")
    assert "licence: none stated; cite: Someone, somewhere" in result.stdout
    assert (tmp_path / "copy" / "log.csv").read_text() == TABLE
    origin = (tmp_path / "copy" / "ORIGIN.txt").read_text()
    assert "source: https://example.org/runs, commit 0123456" in origin
    assert "licence: none stated" in origin
    suite = load_experiment(str(tmp_path / "copy" / "suite.yaml"))
    task = load_suite(suite, suite.selected({}), tmp_path / "out", {}).cases["one-fcfs"]
    assert task.workload is not None and len(task.workload) == 2
    with pytest.raises(InputError, match="exists and is not empty"):
        fetch("small", tmp_path / "copy", tmp_path / "clone")


def test_logs_are_found_by_their_names_and_others_are_not_read(
    monkeypatch: pytest.MonkeyPatch, small: Dataset, tmp_path: Path
) -> None:
    texts = {"first.log.7": "one", "second.log.7": "two", "log.csv": TABLE}
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    monkeypatch.setitem(datasets(), "small", small.model_copy(update={"files": hashes}))
    for place, text in {"1/7/log.7": "one", "2/7/log.7": "two", "2/7/log.8": "other", "log.csv": TABLE}.items():
        (tmp_path / "clone" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clone" / place).write_text(text)
    assert [path.name for path in _candidates(tmp_path / "clone", {"log.7"})] == ["log.7", "log.7", "log.csv"]
    folder = fetch("small", tmp_path / "copy", tmp_path / "clone").parent
    assert {name: (folder / name).read_text() for name in texts} == texts


def test_a_copy_that_is_not_the_data_is_refused(small: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        fetch("small", tmp_path / "copy", tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"1 of 1 files of small are missing: no file has the SHA-256 of log\.csv; "):
        fetch("small", tmp_path / "copy", tmp_path)
    (tmp_path / "log.csv").write_text(TABLE + "c,6,90,95,1\n")
    with pytest.raises(InputError, match=r"SHA-256 of log\.csv; .*log\.csv is another file"):
        fetch("small", tmp_path / "copy", tmp_path)
    (tmp_path / ".git").mkdir()
    with pytest.raises(InputError) as wrong:  # a clone of another commit
        fetch("small", tmp_path / "copy", tmp_path)
    assert wrong.value.what.endswith("the files are those of https://example.org/runs at commit 0123456")
    assert wrong.value.hint == f"git -C {tmp_path} checkout 0123456"
    boarded = str(
        call("validate", "--board", "--only", "dataset=small", "--from", tmp_path, "-o", tmp_path / "b").exception
    )
    assert "no data set can be scored" in boarded and f"git -C {tmp_path} checkout 0123456" in boarded
    with pytest.raises(InputError, match="unknown data set 'smal'"):
        fetch("smal", tmp_path / "copy", tmp_path)
    alone = str(call("validate", "--from", tmp_path, "-o", tmp_path / "copy").exception)
    assert "--from applies with --recorded NAME or --board" in alone
    assert not (tmp_path / "copy").exists()


def test_each_data_set_states_its_origin_and_has_a_valid_suite(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("SchedulerType=sched/backfill\n")  # that of a suite
    asleep = "classes: [{count: 4, power: {busy_w: 2, idle_w: 1}}]\nsleep: {rule: idle}\n"  # the machines of another
    for each in datasets()["batsim-shutdown"].converted:
        (tmp_path / each).write_text(asleep)
    document = json.loads(call("experiment", "--list", "--json").stdout)
    assert [each["name"] for each in document["datasets"]] == list(datasets())
    printed = call("experiment", "--list").stdout
    for name, each in datasets().items():
        own = each.institution == "tracebed"
        assert own or (each.source.startswith("https://github.com/") and each.commit), name
        assert all([each.title, each.institution, each.citation, each.files])
        assert f"{name:24}  {each.title}" in printed
        assert f"licence: {each.licence or 'none stated'}; {each.citation}" in printed
        for made in each.converted:
            if made.endswith(".machine.yaml"):
                (tmp_path / made).write_text("classes: [{count: 32}]\n")
        if each.suite:  # the workloads of a pattern exist beside the files only
            file = tmp_path / f"{name}.yaml"
            file.write_text(each.suite.replace('workloads: "*"', "workloads: [delay_size34]"))
            assert load_experiment(str(file)).experiment.recorded is not None


MODEL = {
    "jobs500.csv": b"dt;job_id;wall_time;user;wall_limit;n_tasks;ntasks_per_node;account;partition;qos;constraint;"
    b"mem;gres\n"
    b"0;7;15;u5;2;24;12;a2;normal;normal;CPU-N;;\n49;8;-1;u1;30;1;1;a1;normal;normal;;500000;gpu:1\n",
    "two-runs.csv": b"slurm_mode,start_offset,run_id,job_id,submit_job,launch_job,job_epilog_complete,wait_time,"
    b"wall_time\n"
    b"normal,10,1,7,8.5,8.75,23.5,.25,15\nnormal,10,2,7,8.5,9.5,24.5,1,15\nnormal,10,1,8,57.5,58,1900,.5,1800\n",
}


def test_the_jobs_of_slurm_model_are_a_workload_of_cores_or_of_shared_nodes() -> None:
    def rows(table: bytes) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(table.decode())))

    first, second = rows(CONVERSIONS["slurm-model-cores"](MODEL))
    assert (first["submit_time"], first["run_time"], first["time_limit"], first["nodes"]) == ("0", "15", "120", "24")
    assert (second["run_time"], second["time_limit"], second["nodes"]) == ("1800", "1800", "1")  # until its limit
    first, second = rows(CONVERSIONS["slurm-model-nodes"](MODEL))
    assert (first["nodes"], first["cores_per_node"], first["features"], first["group"]) == ("2", "12", "CPU-N", "a2")
    assert (second["memory_mib"], second["gres"], second["run_time"]) == ("500000", "gpu:1", str(1800 + 86400))
    assert rows(CONVERSIONS["slurm-model-run"](MODEL, "2")) == [
        {"job_id": "7", "submit": "8.5", "start": "9.5", "end": "24.5"}
    ]
    assert [row["job_id"] for row in rows(CONVERSIONS["slurm-model-run"](MODEL, "1"))] == ["7", "8"]


def test_the_tables_of_a_notebook_are_two_runs_and_one_of_the_simulator() -> None:
    def table(columns: str, *rows: str) -> str:
        names = columns.split()
        labels = [{"label": [name], "name": [number]} for number, name in enumerate(names, 1)]
        data = [dict(zip(map(str, range(1, len(names) + 1)), row.split(), strict=True)) for row in rows]
        text = json.dumps({"columns": labels, "data": data})
        return f'<script data-pagedtable-source type="application/json">\n{text}\n</script>\n'

    runs = table("run_id job_id submit_job launch_job job_epilog_complete", "1 7 8.5 8.75 23.5", "2 7 8.5 9.5 24.5")
    starts = "job_id value dt2"
    notebook = [
        runs + table("job_id normal_median_walltime sim_median_walltime", "7 15 15.25", "8 1800 1800.5"),
        table(starts, "7 b1 9.5") + table("metric slurm_mode job_id dt2", "submit_job normal 7 8.5"),
        table(starts, "8 b1 60.5", "7 n1 9"),
        table("metric slurm_mode job_id dt2", "submit_job sim 7 8.75", "launch_job sim 7 9"),
    ]
    files = MODEL | {"jobs500.nb.html": "".join(notebook).encode()}
    assert CONVERSIONS["slurm-model-notebook"](files, "2") == b"job_id,submit,start,end\n7,8.5,9.5,24.5\n"
    assert CONVERSIONS["slurm-model-simulated"](files).splitlines() == [
        b"job_id,submit,start,end",
        b"7,8.75,9.0,24.25",
        b"8,57.75,60.5,1861.0",
    ]


def test_the_bounds_of_the_malleable_jobs_are_those_of_their_scripts(reference_data: Callable[[str], Path]) -> None:
    folder = reference_data("../peers/amte/workloads/AMTE-evaluation")
    batch = tb.read(folder / "fixedSchedule.csv")
    bounds = zip(batch.ints("nodes_min").tolist(), batch.ints("nodes_max").tolist(), strict=True)
    assert {job: each for job, each in enumerate(bounds) if each[0] < each[1]} == AMTE_BOUNDS
    made = CONVERSIONS["amte-plan"]({"fixedSchedule.csv": (folder / "fixedSchedule.csv").read_bytes()})
    table = pd.read_csv(io.BytesIO(made))
    ran, fitted = batch.floats("run_time"), table["run_time"]
    malleable = (table["kind"] == "malleable").to_numpy()
    assert malleable.sum() == 14
    assert abs(ran - fitted)[~malleable].max() < 1e-6
    assert 1 < abs(ran - fitted)[malleable].max() < 3  # the fit deviates by 1.4 s


@pytest.mark.slow
def test_february_2016_is_ten_real_runs_of_five_workloads(
    reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    """Twenty pairs become cases by two commands; the intervals are those over cases, runs and workloads."""
    source = reference_data("grid5000-2016-02")
    call("validate", "--recorded", "grid5000-2016-02", "--from", source, "-o", tmp_path / "g5k")
    words = ["--only", "simulator=batsim", "--no-case-pages", "--json"]
    document = json.loads(call("validate", tmp_path / "g5k" / "suite.yaml", "-o", tmp_path / "out", *words).stdout)
    text = json.dumps(document)
    assert "20 cases have 10 different real runs, and each counts once" in text
    assert "20 cases have 5 different workloads, and each counts once" in text
    (simulator,) = document["simulators"]
    wait = next(metric for metric in simulator["metrics"] if metric["name"] == "mean_wait_s")
    assert len(wait["cases"]) == 20
    assert sum(abs(case["z"]) for case in wait["cases"]) / 20 == pytest.approx(1.96, abs=0.01)


@pytest.mark.slow
def test_first_come_first_served_on_the_platform_of_elastisim_repeats_its_60000_starts(
    reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    """The published error of September 2024 is that of its platform, which has fewer cores than Cirrus."""
    file = fetch("cirrus-2024-09", tmp_path / "copy", reference_data("cirrus-2024-09"))
    measured = pd.read_csv(file.parent / "measured.job_statistics.csv", dtype={"ID": str})
    published = pd.read_csv(file.parent / "elastisim-rigid.job_statistics.csv", dtype={"ID": str})
    columns = {"ID": "job_id", "Submit Time": "submit_time", "Makespan": "run_time", "Nodes": "nodes"}
    jobs = measured[[*columns]].rename(columns=columns).astype({"submit_time": float, "run_time": float})
    errors = {}
    for nodes in (12745, 13248):
        run = tb.simulate(Workload(jobs.assign(kind="rigid")), "fcfs", nodes).jobs.set_index("job_id")
        errors[nodes] = (run["start"] - run["submit"]).mean() / measured["Wait Time"].mean() - 1
        apart = run["start"].loc[published["ID"]].to_numpy() - published["Start Time"].to_numpy()
        assert (abs(apart) <= 5).all() == (nodes == 12745)  # ElastiSim prints six digits
    assert len(published) == 60000
    assert errors == pytest.approx({12745: 0.418, 13248: 0.023}, abs=5e-4)


@pytest.mark.slow
def test_rounds_with_restarts_of_20_s_are_nearer_to_the_cluster_than_the_simulator_of_the_authors(
    reference_data: Callable[[str], Path],
) -> None:
    """The mean response times, which are recorded, under max-min fairness; and the makespans of the paper's pickles."""
    folder = reference_data("shockwave")
    with pytest.warns(Tolerated, match="116 times"):
        workload = tb.read(folder / "jobs.trace")
    files = {side: folder / f"max_min_fairness.{side}.pickle" for side in ("physical", "simulation")}
    runs = {side: tb.import_run(file, workload=workload, side="real") for side, file in files.items()}
    for launch_s in (0.0, 20.0):
        settings: dict[str, Any] = {"policy_parameters": {"round_s": 120.0}, "overheads": {"launch_s": launch_s}}
        runs[f"{launch_s:g}"] = tb.simulate(workload, "max-min-fairness", 32, **settings)
    real = runs.pop("physical").metrics()
    off = {name: run.metrics()["mean_response_s"] / real["mean_response_s"] - 1 for name, run in runs.items()}
    assert off == pytest.approx({"simulation": -0.084, "0": -0.183, "20": -0.045}, abs=5e-4)
    # The scheduler measured 34,619 s from its own start, which was before the first arrival.
    assert 0 < 34619 - real["makespan_s"] < 120
    assert runs["simulation"].metrics()["makespan_s"] == pytest.approx(33067.83, abs=0.01)


# The page of the board: made from the stored scores, and each figure repeated where the data are.

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RECORDINGS = ROOT / "tests" / "slurm_recordings"
HINT = "tracebed validate --board --dry-run -o docs"
INSTITUTIONS, PROGRAMS = 3, 5
LAPIS = ROOT / "tests" / "peers" / "lapis.yaml"
"""The entry of a simulator by other people, which runs in an environment of its own."""
PLACES = {
    "grid5000-2016-02": "grid5000-2016-02",
    "cirrus-2024q1": "cirrus-2024q1",
    "cirrus-2024-09": "cirrus-2024-09",
    "slurm-model": "slurm-model",
    "slurm-model-nodes": "slurm-model",
    "shockwave-tacc": "shockwave",
    "shockwave-tacc-others": "shockwave",
    "amte-rigid": "../peers/amte",
    "grid5000-2016-05": "batsim-experiments",
    "grid5000-2017-06": "evalys",
    "amte-malleable": "FIFO-Malleable-Job-Scheduler",
    "slurm-model-20.02": "slurm_model",
    "mallob-2022": "mallob-experimental-data",
    "batsim-shutdown": "evalys",
}
"""Data set -> its place in the reference data; without one, the files are part of the tests."""


@pytest.fixture(scope="module")
def board() -> Board:
    return Board.load(DOCS / "board.json")


def test_the_pages_and_the_picture_are_made_from_the_stored_scores(board: Board) -> None:
    assert (DOCS / "board.md").read_text(encoding="utf-8") == page(board), HINT
    assert (DOCS / "board.html").read_text(encoding="utf-8") == html(board), HINT
    assert (DOCS / "board.svg").read_text(encoding="utf-8") == picture(board, "board.html", alone=True), HINT


def test_the_published_schema_is_that_of_the_file() -> None:
    text = (files("tracebed.validation") / "schemas" / "tracebed-board-1.json").read_text(encoding="utf-8")
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "tracebed-board-1.json"}
    assert json.loads(text) == about | Board.model_json_schema(by_alias=True)


def test_the_picture_has_a_mark_for_each_entry_that_leads_to_its_figures(board: Board) -> None:
    text = picture(board, "board.html", alone=True)
    drawn = ElementTree.fromstring(text)
    links = [each.attrib["href"] for each in drawn.iter("{http://www.w3.org/2000/svg}a")]
    rows = [each for each in board.scores if each.kind not in ("control", "real")]
    # The noise of reality leads to its figures, too, on each data set with entries whose run times are planned.
    noise = [ceiling for *_, ceiling, _ in board.lanes() if ceiling]
    assert sorted(links) == sorted(f"board.html#{row_id(each)}" for each in rows + noise)
    nearest = [each for each in drawn.iter() if each.get("class") == "nearest"]
    assert len(nearest) == len(list(board.lanes()))
    for *_, entries in board.lanes():  # left is nearer
        places = [float(found) for each in entries for found in re.findall(rf'{row_id(each)}".*?<svg x="(.+?)%', text)]
        assert places == sorted(places) and len(places) == len(entries)


def test_the_html_page_is_whole(board: Board) -> None:
    """It is balanced, its ids are unique, its links lead to them, and it needs nothing but itself."""
    text = html(board)
    outline = Outline(text)
    assert outline.open == []
    assert len(set(outline.ids)) == len(outline.ids)
    assert {each.removeprefix("#") for each in outline.references} <= set(outline.ids)
    assert {row_id(each) for each in board.scores if each.kind != "control"} <= set(outline.ids)
    policy = unescape(re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', text)[0])
    assert policy.startswith("default-src 'none'") and "script-src 'sha256-" in policy
    assert EXAMPLE.read_text() in unescape(text)
    assert len(EXAMPLE.read_text().splitlines()) == 5


def test_names_and_texts_are_escaped(board: Board) -> None:
    evil = "<img src=x onerror=alert(1)>"
    score = board.of("slurm-22.05", "planned")[0].model_copy(update={"entry": evil, "program": evil, "why": evil})
    facts = board.datasets["slurm-22.05"].model_copy(update={"note": evil, "failed": {evil: evil}})
    made = board.model_copy(update={"scores": [score], "datasets": {"slurm-22.05": facts}})
    assert evil not in html(made) and evil not in picture(made)
    assert "img" not in Outline(html(made)).tags


needs_chromium = pytest.mark.skipif(
    chromium.PROGRAM is None, reason="no chromium to open the page with (apt-get install chromium)"
)


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(375, False), (375, True), (1280, False), (1280, True)])
def test_the_page_fits_a_phone_and_a_screen_in_light_and_dark(tmp_path: Path, width: int, dark: bool) -> None:
    with chromium.Chromium(tmp_path / "profile") as browser:
        opened = chromium.Page(browser, DOCS / "board.html", width=width, dark=dark, phone=width == 375)
        assert opened.errors() == []
        assert opened.run("document.documentElement.scrollWidth") <= width
        # No name of a lane reaches the name of its nearest entry.
        assert (
            opened.run(
                "[...document.querySelectorAll('.board .name')].filter(e => e.getBoundingClientRect().right + 4 >"
                " e.nextElementSibling.getBoundingClientRect().left).map(e => e.textContent)"
            )
            == []
        )
        pixels = matplotlib.image.imread(opened.picture(tmp_path / "page.png"))[..., :3].mean(axis=-1)
        light = float((pixels > 0.8).mean())
        assert light < 0.05 if dark else light > 0.7


@needs_chromium
@pytest.mark.parametrize("script", [True, False])
def test_a_mark_leads_to_its_figures_with_and_without_scripts(tmp_path: Path, board: Board, script: bool) -> None:
    score = board.of("grid5000-2016-02", "planned")[0]
    with chromium.Chromium(tmp_path / "profile") as browser:
        opened = chromium.Page(browser, DOCS / "board.html", script=script)
        opened.send("Emulation.setScriptExecutionDisabled", value=False)  # to look at the page
        shown = "[...document.querySelectorAll('.figures')].filter(e => e.offsetHeight).map(e => e.id)"
        assert opened.run(shown) == []
        box = opened.run(
            f"(() => {{ const box = document.querySelector('.board a[href=\"#{row_id(score)}\"] path')"
            ".getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        for kind in ("Pressed", "Released"):
            opened.mouse(kind, *box, button="left", clickCount=1)
        opened.wait_for(f"{shown}.length == 1")
        assert opened.run(shown) == [row_id(score)]
        text = opened.run("document.querySelector('.figures:target').innerText")
        assert all(number(value) in text for value in score.errors[score.measure].values())
        assert score.worst[WAIT].case in text


@needs_chromium
def test_a_table_of_scores_sorts_by_a_click(tmp_path: Path, board: Board) -> None:
    entries = board.of("grid5000-2016-02", "planned")
    with chromium.Chromium(tmp_path / "profile") as browser:
        opened = chromium.Page(browser, DOCS / "board.html")
        names = "[...document.querySelectorAll('.lane table')[0].tBodies[0].rows].map(e => e.cells[0].textContent)"
        click = "[...document.querySelectorAll('.lane th')].find(e => e.textContent === '{}').click()"
        assert opened.run(names) == [each.entry for each in entries]
        opened.run(click.format("placed"))
        placed = {each.entry: float(share(each.placed).removesuffix(" %")) for each in entries}
        found = [placed[name] for name in opened.run(names)]
        assert found == sorted(placed.values()) and len(set(found)) > 3
        opened.run(click.format("s"))
        opened.run(click.format("s"))  # the largest first
        assert opened.run(names) == [each.entry for each in sorted(entries, key=lambda each: -each.wait_error_s)]
        opened.run(click.format("entry"))
        assert opened.run(names) == sorted(each.entry for each in entries)


def test_the_board_has_what_it_promises(board: Board) -> None:
    assert len(board.datasets) >= 4
    assert len({facts.institution for facts in board.datasets.values()} - {"tracebed"}) >= INSTITUTIONS
    programs = {each.program for each in board.scores if each.kind in ("published", "simulated", "entered")}
    assert programs >= {"tracebed", "batsim", "elastisim", "accasim", "lapis"} and len(programs) >= PROGRAMS
    entries = [each for each in board.scores if each.kind in ("published", "simulated")]
    assert any(each.verdict == "inaccurate" and each.kind == "published" for each in entries)
    assert not any(facts.failed for facts in board.datasets.values())
    for each in entries:  # a wrong scheduler is never ahead of all others on a data set with several workloads
        if each.entry == "fcfs" and len(each.errors[WAIT]) > 1:
            assert each.verdict == "inaccurate"
            assert [other for other in board.of(each.dataset, each.track) if other.kind != "entered"][-1] is each


def test_what_the_text_of_the_page_says_is_so(board: Board) -> None:
    assert not any(each.verdict == "accurate" for each in board.scores)
    first, *others = board.of("slurm-model", "planned")
    ceiling = board.ceiling("slurm-model")
    assert first.entry == "fcfs" and ceiling is not None
    assert (first.placed or 0) < 0.1 < (ceiling.placed or 0)
    assert first.noise_ratio == pytest.approx(others[0].noise_ratio, rel=0.05)
    (shuffled,) = board.controls("cirrus-2024q1")
    assert all((shuffled.placed or 0) >= (each.placed or 0) for each in board.of("cirrus-2024q1", "observed"))


def test_a_data_set_may_be_ordered_by_the_response(board: Board) -> None:
    """Its controls shuffle responses: their distribution stays, and the jobs end elsewhere."""
    (fair, equal) = board.of("mallob-2022", "planned")
    assert (fair.entry, fair.measure) == ("fair-shares", "mean_response_s")
    assert fair.wait.mean == fair.errors["mean_response_s"]["every-10-s"] < equal.wait.mean
    assert fair.largest_other[0] != "mean_response_s"
    difference = fair.against(equal)
    assert difference is not None and difference.mean == pytest.approx(fair.wait.mean - equal.wait.mean)

    rows = {"job_id": map(str, range(30)), "submit_time": range(30), "run_time": [9, 25, 4] * 10, "nodes": [1, 3] * 15}
    workload = tb.Workload(pd.DataFrame(rows))
    ran, other = (tb.simulate(workload, policy, nodes=4) for policy in ("easy", "fcfs"))
    real = Run(replace(ran.info, source="log", execution="logged"), ran.jobs, ran.allocations, ran.reconfigurations)
    case = Case(name="c", workload="w", policy="easy", real=(real,), predicted=(other,))
    made = validate([case]).cases
    (shuffled,) = controls([case], made, "response")["shuffled"][0].predicted
    assert (shuffled.jobs["start"] <= other.jobs["start"]).all()
    assert (shuffled.jobs["start"] <= shuffled.jobs["end"]).all()
    response, was = (run.jobs["end"] - run.jobs["submit"] for run in (shuffled, real))
    assert sorted(response) == pytest.approx(sorted(was))
    assert list(response) != pytest.approx(list(was))
    (waits,) = controls([case], made)["shuffled"][0].predicted
    assert waits.jobs["start"].tolist() != pytest.approx(other.jobs["start"].tolist())


def test_named_nodes_are_within_their_aim_on_february_2016(board: Board) -> None:
    found = {each.entry: each for each in board.of("grid5000-2016-02", "planned")}
    assert found["conservative-nodes"].wait_error_s <= 2.5
    assert found["batsim"].wait_error_s == pytest.approx(25.84, abs=0.005)


def test_what_was_judged_once_is_on_the_board(board: Board) -> None:
    """The figures of 2026-11-28; another test repeats those of the board where the data are."""

    def wait_errors(name: str) -> dict[str, float]:
        return {each.entry: each.wait_error_s for track in ("planned", "observed") for each in board.of(name, track)}

    may, june = (wait_errors(name) for name in ("grid5000-2016-05", "grid5000-2017-06"))
    assert may == pytest.approx({"conservative": 2.32, "oar": 5.03, "easy": 9.32, "fcfs": 117.49}, abs=0.005)
    assert {name: june[name] for name in ("oar", "easy")} == pytest.approx({"oar": 7.89, "easy": 26.23}, abs=0.005)
    facts = board.datasets["grid5000-2016-05"]
    assert (facts.real_runs, facts.clusters, facts.unhealthy) == (23, 9, 3)


@pytest.mark.slow
def test_the_repeats_of_oar_have_the_noise_and_the_broken_runs_that_were_judged(
    reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    """May 2016: the spread of the mean wait, and the runs on 22 of 32 nodes. June 2017: the noise ratio."""
    cases = {}
    for name, place in (("grid5000-2016-05", "batsim-experiments"), ("grid5000-2017-06", "evalys")):
        suite = fetch(name, tmp_path / name, reference_data(place))
        words = ["-o", tmp_path / "out" / name, "--only", "simulator=oar", "--no-case-pages", "--json"]
        (simulator,) = json.loads(call("validate", suite, *words).stdout)["simulators"]
        cases[name] = simulator["cases"]
    ratios = [case["per_job"]["noise_ratio"] for case in cases["grid5000-2017-06"] if len(case["repetitions"]) > 1]
    assert len(ratios) == 4
    assert np.median(ratios) == pytest.approx(1.06, abs=0.005)
    runs = [each for case in cases["grid5000-2016-05"] for each in case["repetitions"]]
    broken = [each["name"] for each in runs if each["excluded"]]
    assert broken == [f"seed{number}.s1.gantt.json" for number in (1, 6, 7)]
    waits: dict[str, list[float]] = {}
    for path in sorted((tmp_path / "grid5000-2016-05").glob("*.gantt.json")):
        if path.name not in broken:
            logged = json.loads(path.read_text())["jobs"]
            jobs = [logged[number] for number in pd.read_csv(path.with_suffix(".csv"), dtype=str)["oar_id"]]
            wait = np.mean([job["start_time"] - job["submission_time"] for job in jobs])
            waits.setdefault(path.name.partition(".")[0], []).append(float(wait))
    squares = [((np.array(each) / np.mean(each) - 1) ** 2).sum() for each in waits.values()]
    freedom = sum(len(each) - 1 for each in waits.values())
    assert math.sqrt(sum(squares) / freedom) == pytest.approx(0.0492, abs=5e-4)


def test_the_entry_of_the_page_is_the_file_that_was_scored(board: Board) -> None:
    assert f"```yaml\n{LAPIS.read_text()}```" in page(board)
    entered = [each for each in board.scores if each.kind == "entered"]
    assert {each.dataset for each in entered} == set(yaml.safe_load(LAPIS.read_text()))
    assert all((each.program, each.version) == ("lapis", "0.4.2") for each in entered)


def test_no_row_mixes_the_tracks(board: Board) -> None:
    for dataset in board.datasets:
        for track in ("planned", "observed"):
            assert {each.track for each in board.of(dataset, track)} <= {track}
    published = {each.entry: each.track for each in board.scores if each.kind == "published"}
    assert published == {
        "batsim": "planned",
        "elastisim": "observed",
        "shockwave": "planned",
        "slurm-simulator": "planned",
    }


def test_every_control_fails_where_the_real_runs_are_healthy(board: Board) -> None:
    controls = [each for each in board.scores if each.kind == "control"]
    assert {each.entry for each in controls} == {"shuffled", "other-runs", "observed"}
    for each in controls:
        fails = "not at all" not in failure(board, each)
        assert fails or board.datasets[each.dataset].unhealthy, f"{each.entry} on {each.dataset}"
        if each.entry == "observed":
            assert each.track == "observed"


STAIRS = """\
0;/jobs/a; started; [h0, h1, h2]
{shrunk};/jobs/a; released; [h2]
20000000000;/jobs/b; started; [h2]
40000000000;/jobs/b; terminated
50000000000;/jobs/a; expand; [h2]
{ended};/jobs/a; terminated
150000000000; all jobs completed
"""
PLAN = "job_id,submit_time,run_time,nodes,kind,nodes_min,nodes_max\n0,0,60,3,malleable,2,3\n1,0,20,1,rigid,1,1\n"


def test_real_malleable_runs_have_a_table_beside_their_noise(
    monkeypatch: pytest.MonkeyPatch, small: Dataset, tmp_path: Path
) -> None:
    """The shrink is at 10 or 12 s, predicted at 14 s; the end at 100 or 110 s, predicted at 120 s."""
    times = {"run-1": (10, 100), "run-2": (12, 110), "predicted": (14, 120)}
    texts = {
        f"{name}.csv": STAIRS.format(shrunk=f"{shrunk}000000000", ended=f"{ended}000000000")
        for name, (shrunk, ended) in times.items()
    } | {"plan.csv": PLAN}
    suite = """
workloads: {two: plan.csv}
policies: [fcfs-malleable]
recorded: {runs: "run-*.csv", from: amte, nodes: 3}
simulators: {rigid: {policy: fcfs}, theirs: {runs: predicted.csv, from: amte}}
"""
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    monkeypatch.setitem(datasets(), "small", small.model_copy(update={"files": hashes, "suite": suite}))
    (tmp_path / "clone").mkdir()
    for name, text in texts.items():
        (tmp_path / "clone" / name).write_text(text)
    made, _ = build_board(tmp_path / "board", [tmp_path / "clone"], load_entries([]), ["small"])
    theirs = next(each.malleable for each in made.scores if each.entry == "theirs")
    noise = made.datasets["small"].malleable
    assert theirs is not None and noise is not None
    assert (theirs.precision, theirs.recall_near, theirs.time_s, theirs.response_s) == (1.0, 1.0, 1.5, 15.0)
    assert theirs.area == pytest.approx(((4 + 60) / 260 + (2 + 30) / 292) / 2, rel=1e-5)
    assert noise.area == pytest.approx((2 + 30) / 260, rel=1e-5)
    rigid = next(each.malleable for each in made.scores if each.entry == "rigid")
    assert rigid is not None
    assert (rigid.precision, rigid.recall) == (None, 0.0)
    text = page(made)
    rows = [
        line.split(" | ") for line in text.splitlines() if line.startswith(("| *real against", "| theirs", "| rigid"))
    ]
    assert ["100 % / 100 %", "100 % / 100 %", "1.00"] in [row[1:4] for row in rows]
    assert f"{number(100 * theirs.area)} % ({number(theirs.area / noise.area)})" in text


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [*PLACES, "slurm-22.05"])
def test_each_figure_is_repeated(board: Board, dataset: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Skips where the data are not, since they are not part of tracebed."""
    place: Callable[[str], Path] = request.getfixturevalue("reference_data")
    source = place(PLACES[dataset]) if dataset in PLACES else RECORDINGS
    again, _ = build_board(tmp_path, [source], load_entries([LAPIS]), [dataset])
    stored, made = ({_key(each): each for each in found.scores if each.dataset == dataset} for found in (board, again))
    without = again.datasets[dataset].failed.keys()  # AccaSim and lapis, where they are not installed
    assert made.keys() == {key for key in stored if key[1] not in without}
    for key, each in made.items():
        assert _figures(each) == pytest.approx(_figures(stored[key]), rel=1e-4, abs=1e-6), key
        assert (each.verdict, each.why, each.kind) == (stored[key].verdict, stored[key].why, stored[key].kind), key
    facts, now = (found.datasets[dataset].model_dump(exclude={"failed", "noise"}) for found in (board, again))
    assert facts == now


def _key(score: Score) -> tuple[str, str]:
    return score.track, score.entry


def _figures(score: Score) -> dict[str, float]:
    """Return all figures of a score by name."""
    found = {f"{metric} {name}": value for metric, each in score.errors.items() for name, value in each.items()}
    found |= {f"worst {metric}": worst.error for metric, worst in score.worst.items()}
    found |= {"s": score.wait_error_s, "cases": score.cases, "real runs": score.real_runs}
    malleable = score.malleable.model_dump() if score.malleable else {}
    found |= {f"malleable jobs, {name}": _known(value) for name, value in malleable.items()}
    return found | {"placed": _known(score.placed), "noise": _known(score.noise_ratio)}


def _known(value: float | None) -> float:
    return -1.0 if value is None else value


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.00004, "0.000"), (0.1425, "0.142"), (5.1149, "5.11"), (71.45, "71.5"), (6460.46, "6460")],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text
    assert number(-value) == (f"-{text}" if value else text)


def test_unknown_figures_are_dashes() -> None:
    assert number(math.nan) == number(None) == interval(None) == share(None) == "-"
