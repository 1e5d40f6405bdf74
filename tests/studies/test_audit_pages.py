"""The audit pages of the papers: the form of their tables, and their commands, which run on small inputs.

The commands of a page run in order, in one empty folder. Logs are replaced by generated ones, workloads are small, a
study has one seed and two shares, and replays are fast. A test that a page names must exist; the suite runs it.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from tests.documented import FIXTURES, ROOT, VERDICTS, check, drawn, faster, make, prepare, run
from tests.logs import cori_log, curie_log, eagle_log, theta_log
from tracebed.converters.workload import Workload
from tracebed.ground.errors import ExitCode
from tracebed.studies.papers import sd, throughput
from tracebed.studies.papers.base import PAPERS
from tracebed.validation.experiments import workloads
from tracebed.validation.experiments.experiment_schema import LogSpec
from tracebed.validation.experiments.file import load_experiment, names

FOLDER = ROOT / "docs" / "explanation" / "papers" / "audit"
AUDITED = ("deadlines", "dmr", "drom", "kassel", "sd-policy")
AWAITED: set[str] = set()
"""Papers whose page is still to be written."""
PAGES = [FOLDER / f"{paper}.md" for paper in AUDITED if paper not in AWAITED]
COLUMNS = ["section", "what", "command", "result"]
LEAST_ROWS = 25
RESULT = re.compile(r"works(?: on .+|[:;] .+)?|partly: .+|not built: .+|assumed: .+")
JOBS = 30
"""Number of jobs of a workload that a command or a study draws, and of a generated log."""


def mixed(path: Path) -> None:
    """Write a drawn workload of which half of the jobs are malleable."""
    rigid = path.with_name("stand-in.parquet")
    drawn(rigid)
    make(path.parent, "malleable", rigid.name, "--share", "0.5", "-o", path.name)


STAND_INS: dict[str, Callable[[Path], None]] = {
    **FIXTURES,
    "cori-knl": lambda path: cori_log(path, JOBS),
    "cori-haswell": lambda path: cori_log(path, JOBS, "regular_hsw"),
    "eagle.csv": lambda path: eagle_log(path, JOBS),
    "theta.csv": lambda path: theta_log(path, JOBS),
    "mixed.parquet": mixed,
    "CEA-Curie-2011-2.1-cln.swf.gz": lambda path: curie_log(path, JOBS),
}
TWO_NODES = "groups: {all: {nodes: 'n[1-2]', cores: 16, emulated: true}}\n"
OF_REPLAYS = ["--repetitions", "1", "--speed", "2000"]
"""Options that are added to a study by replays, and for those that take any nodes:"""
ON_TWO_NODES = ["--inventory", "two-nodes.yaml"]
OWN_NODES = {"dmr-throughput"}
"""Studies that run on the nodes of their paper."""


class Row(NamedTuple):
    """A row of an audit page."""

    section: str
    what: str
    command: str
    result: str

    @property
    def commands(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.command)


def rows_of(text: str) -> list[Row]:
    """Return the rows of the table of a page. Raises ValueError if it is no table of the four columns."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    if cells[:2] != [COLUMNS, ["---"] * 4]:
        raise ValueError(f"the page has no table with the columns {', '.join(COLUMNS)}")
    for line, row in zip(lines, cells, strict=True):
        if len(row) != len(COLUMNS) or not line.endswith("|"):
            raise ValueError(f"this row has {len(row)} cells, not 4: {line}")
    return [Row(*row) for row in cells[2:]]


@cache
def named_in(path: Path) -> set[str]:
    """Return the names of the tests in a file; none if there is no such file."""
    if not path.exists():
        return set()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def fault_of(command: str) -> str | None:
    """Return what is wrong with a command, or None: no such test, command, option or choice."""
    if found := re.fullmatch(r"pytest (tests/(?:\w+/)?test_\w+\.py)::(test_\w+)", command):
        file, name = found.groups()
        return None if name in named_in(ROOT / file) else f"{file} has no test {name}"
    if not command.startswith("tracebed "):
        return "is neither `tracebed ...` nor `pytest tests/FOLDER/test_FILE.py::TEST`"
    try:
        check(shlex.split(command))
    except click.ClickException as error:
        return error.format_message()
    return None


def faults(text: str) -> Iterator[str]:
    """Return what is wrong with the form of a page, one line each."""
    rows = rows_of(text)
    if len(rows) < LEAST_ROWS:
        yield f"the page has {len(rows)} rows, not {LEAST_ROWS} or more"
    for row in rows:
        where = f"{row.section}, {row.what}"
        if not row.section or not row.what:
            yield f"{where}: section or what is empty"
        if not RESULT.fullmatch(row.result):
            yield f"{where}: the result is {row.result!r}"
        if row.result.startswith("not built") == bool(row.command):
            yield f"{where}: a row has a command, or is not built"
        if row.command and not re.fullmatch(r"`[^`]+`(?:[,;] `[^`]+`)*", row.command):
            yield f"{where}: the command is not between backticks: {row.command}"
        yield from (f"{where}: {command}: {fault}" for command in row.commands if (fault := fault_of(command)))


def cut(command: list[str]) -> list[str]:
    """Return the command with few jobs, and with one seed and two shares of a study."""
    command = faster(command)
    if command[1] == "generate" and "--jobs" not in command:
        return [*command, "--jobs", str(JOBS)]
    if command[1] != "experiment" or {"--list", "--show", "--ledger", "--dry-run"} & set(command):
        return command
    for word in command[2:]:
        if word in PAPERS.names():
            return [*command, *OF_REPLAYS, *([] if word in OWN_NODES else ON_TWO_NODES)]
        if word in names():
            command = [*command, "--workers", "1"]
            if "--sensitivity" in command:
                return [*command, "--perturb", "2"]
            points = load_experiment(word).experiment.points()
            cells = {"seed": {points[0].seed}, "share": {points[0].share, points[-1].share} - {None}}
            for key, values in cells.items():
                if values and not any(given.startswith(f"{key}=") for given in command):
                    command += ["--only", f"{key}={','.join(f'{value:g}' for value in sorted(values))}"]
    return command


def run_page(text: str, folder: Path) -> None:
    """Run the distinct commands of a page in the current folder, `folder`."""
    (folder / "two-nodes.yaml").write_text(TWO_NODES, encoding="utf-8")
    for line in dict.fromkeys(line for row in rows_of(text) for line in row.commands):
        command = shlex.split(line)
        if command[0] == "tracebed":
            prepare(command, folder, STAND_INS)
            run(cut(command), VERDICTS if command[1] in ("compare", "validate") else {ExitCode.OK})


@pytest.fixture
def small_studies(monkeypatch: pytest.MonkeyPatch, without_pictures: None) -> None:
    """Let studies draw few jobs, take any log, and leave out their pictures."""
    draw, cleaned, sd_5 = workloads.draw, workloads._cleaned, sd.sd_5

    def few(model: str, jobs: int | None = None, **options: Any) -> Workload:
        return draw(model, min(jobs or JOBS, JOBS), **options)

    def of_any(log: LogSpec, paths: list[Path]) -> Workload:
        return cleaned(log.model_copy(update={"jobs": None, "fingerprint": None}), paths)

    def crowded(**options: Any) -> Workload:
        table = sd_5(12, largest=1, **options).table
        return Workload(table.assign(submit_time=0.01 * table["submit_time"]))

    monkeypatch.setattr(workloads, "draw", few)
    monkeypatch.setattr(workloads, "_cleaned", of_any)
    monkeypatch.setattr(sd, "sd_5", crowded)
    monkeypatch.setattr(sd, "SEEDS", range(1))
    for name, value in {"JOBS": (100,), "OF_CURVES": 100, "SEEDS": range(1), "WINDOW": 20}.items():
        monkeypatch.setattr(throughput, name, value)


def test_each_paper_has_a_page() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} - {"index"} == {path.stem for path in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_form(page: Path) -> None:
    assert list(faults(page.read_text(encoding="utf-8"))) == []


@pytest.mark.slow
@pytest.mark.usefixtures("small_studies")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page.read_text(encoding="utf-8"), tmp_path)


# -- the checks themselves, on small pages


def page_of(*rows: str) -> str:
    return "\n".join(["# A paper", "", "| section | what | command | result |", "|---|---|---|---|", *rows, ""])


GOOD = "| 1 | static backfill | `tracebed simulate w.parquet --policy conservative -o run` | works |"


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| 1 | a | `pytest tests/studies/test_audit_pages.py::test_no_such` | works |", "has no test test_no_such"),
        ("| 1 | a | `pytest tests/test_no_such.py::test_a` | works |", "has no test test_a"),
        ("| 1 | a | `pytest tests/scheduling/test_cores.py` | works |", "is neither"),
        ("| 1 | a | `tracebed simulate w.parquet --no-such` | works |", "No such option"),
        ("| 1 | a | `tracebed simulate w.parquet --engine steam` | works |", "is not one of"),
        ("| 1 | a | `slurmctld -D` | works |", "is neither"),
        ("| 1 | a | tracebed demo | works |", "not between backticks"),
        ("| 1 | a | `tracebed demo` | worked |", "the result is 'worked'"),
        ("| 1 | a | `tracebed demo` | partly: |", "the result is 'partly:'"),
        ("| 1 | a | `tracebed demo` | not built: no time |", "has a command, or is not built"),
        ("| 1 | a | | works |", "has a command, or is not built"),
        ("| | a | `tracebed demo` | works |", "is empty"),
    ],
)
def test_a_bad_row_is_found(row: str, fault: str) -> None:
    found = list(faults(page_of(*[GOOD] * LEAST_ROWS, row)))
    assert len(found) == 1 and fault in found[0]


def test_a_good_row_is_none_and_few_rows_are() -> None:
    others = [
        "| 2 | a | `pytest tests/studies/test_audit_pages.py::test_a_bad_row_is_found` | works: by a test |",
        "| 3 | a | | not built: it needs a parallel file system |",
        "| 4 | a | `tracebed experiment sd-4 --log a.swf.gz` | works on a generated log of that shape; the log: PWA |",
        "| 5 | a | `tracebed generate sd-1 -o a.csv`; `tracebed simulate a.csv -o b` | assumed: easy |",
    ]
    assert list(faults(page_of(*[GOOD] * LEAST_ROWS, *others))) == []
    assert list(faults(page_of(GOOD))) == ["the page has 1 rows, not 25 or more"]


@pytest.mark.parametrize("text", ["", page_of("| 1 | a | works |"), page_of("| 1 | a | `x | y` | works |")])
def test_what_is_no_table_of_four_columns_is_found(text: str) -> None:
    with pytest.raises(ValueError, match=r"no table with the columns|this row has"):
        rows_of(text)


@pytest.mark.usefixtures("small_studies")
def test_a_command_that_fails_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page_of(GOOD, GOOD), tmp_path)  # once: its output exists then
    assert (tmp_path / "run").exists()
    with pytest.raises(AssertionError, match="--policy no-such"):
        run_page(page_of(GOOD.replace("conservative", "no-such")), tmp_path)


def test_a_study_has_one_seed_and_two_shares() -> None:
    command = ["tracebed", "experiment", "kassel-eagle", "--log", "eagle.csv"]
    cells = ["--only", "seed=0", "--only", "share=0,1"]
    assert cut(command) == [*command, "--workers", "1", *cells]
    chosen = [*command, "--only", "share=0.4"]
    assert cut(chosen) == [*chosen, "--workers", "1", *cells[:2]]
    assert cut(["tracebed", "experiment", "kassel", "--ledger"])[3:] == ["--ledger"]
    assert cut(["tracebed", "experiment", "drom-in-situ"])[3:] == [*OF_REPLAYS, *ON_TWO_NODES]
