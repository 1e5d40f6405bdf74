"""What README and docs/ show: all commands are accepted and run, and figures, programs and YAML are right.

The blocks of a page run in order, in one empty folder. Files that a page assumes (logs, workloads, experiments) are
replaced by small ones, and replays run at a high speed. A block that a test cannot run has a comment above it,
`<!-- not run: REASON -->`; the options of its commands are still checked.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

import tracebed.api as tb
from tests.commands import call
from tests.documented import ROOT, blocks, check, inline, of_page, run_all
from tests.oracles.redecided import virtual
from tests.patience import GUARD_S
from tests.recorders import gallery
from tests.runs import replaying
from tracebed.benchmarks.dmr import Answer
from tracebed.benchmarks.dmr_manager import ResourceManager
from tracebed.benchmarks.mpi import launch
from tracebed.benchmarks.mpi.launch import LOOPBACK, compiler, mpiexec, run_until
from tracebed.benchmarks.unmodified import INCLUDE
from tracebed.cli.console import duration_text
from tracebed.converters.cleaning.recipes import load_recipe
from tracebed.converters.workload import Workload
from tracebed.ground.display import cell
from tracebed.ground.errors import ExitCode
from tracebed.ground.yaml_file import YamlFile
from tracebed.orchestrator.replay.session import replay
from tracebed.validation.experiments.experiment_schema import Claim, Plot, SensitivitySpec

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
NOT_RUN = {
    "README.md": 1,
    "docs/accuracy.md": 3,
    "docs/board.md": 2,
    "docs/explanation/amte-malleable.md": 2,
    "docs/explanation/calibration.md": 1,
    "docs/explanation/ensembles.md": 1,
    "docs/explanation/health.md": 2,
    "docs/explanation/mallob.md": 1,
    "docs/explanation/nights.md": 2,
    "docs/explanation/noise.md": 1,
    "docs/explanation/pace.md": 1,
    "docs/explanation/peers.md": 3,
    "docs/explanation/performance.md": 1,
    "docs/explanation/verdict.md": 1,
    "docs/how-to/ansible.md": 3,
    "docs/how-to/calibrate.md": 6,
    "docs/how-to/elastic-programs.md": 1,
    "docs/how-to/elastisim.md": 2,
    "docs/how-to/forecast.md": 2,
    "docs/how-to/grid.md": 3,
    "docs/how-to/malleable-on-my-cluster.md": 1,
    "docs/how-to/run-your-programs.md": 1,
    "docs/how-to/repeat.md": 1,
    "docs/how-to/replay.md": 1,
    "docs/how-to/survive.md": 1,
    "docs/how-to/write-a-policy.md": 1,
    "docs/how-to/validate-your-simulator.md": 2,
    "docs/reference/import.md": 1,
    "docs/reference/ledger.md": 1,
    "docs/reference/machines.md": 2,
    "docs/reference/power.md": 2,
    "docs/reference/policies/resize-layer.md": 1,
    "docs/reference/policies/slurm.md": 2,
    "docs/reference/tolerances.md": 1,
    "docs/reference/whatif.md": 3,
    "docs/testbeds/docker.md": 2,
    "docs/testbeds/slurm.md": 1,
    "docs/testbeds/slurm-layer.md": 1,
    "docs/testbeds/slurm-policies.md": 4,
    "docs/testbeds/ssh.md": 1,
    "docs/testbeds/slurm-scheduler.md": 1,
}
"""How many blocks of each page are not run: another one needs a change here, and a reason in the page."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_documented_commands_are_accepted(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    commands = [command for block in blocks(text) for command in block.commands]
    for command in [*commands, *inline(text)]:
        try:
            check(command)
        except click.ClickException as error:
            pytest.fail(f"{shlex.join(command)}: {error.format_message()}")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if list(blocks(page.read_text(encoding="utf-8")))], ids=name)
def test_documented_commands_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("svg_only" if page == gallery.PAGE else "without_pictures")
    monkeypatch.chdir(tmp_path)
    found = list(blocks(page.read_text(encoding="utf-8")))
    assert len([block for block in found if block.reason]) == NOT_RUN.get(name(page), 0)
    run_all(found, tmp_path)
    if page == gallery.PAGE:
        assert all(gallery.made(picture, tmp_path).stat().st_size > 1000 for picture in gallery.shown())


def test_no_page_is_excused_that_has_no_command() -> None:
    """A page without commands is not in the test above, which would count its blocks that are not run."""
    assert [page for page in NOT_RUN if not list(blocks((ROOT / page).read_text(encoding="utf-8")))] == []


def test_an_invalid_command_is_detected() -> None:
    text = "Text.\n\n    tracebed convert a.swf --no-such-option    # no\n\n"
    text += "<!-- not run: why -->\n\n    tracebed demo && x\n"
    first, second = blocks(text)
    assert (first.reason, second.reason, second.commands) == (None, "why", [["tracebed", "demo"]])
    with pytest.raises(click.NoSuchOption):
        check(first.commands[0])
    with pytest.raises(click.UsageError):
        check(["tracebed", "no-such-command"])
    with pytest.raises(click.BadParameter):
        check(["tracebed", "simulate", "w.parquet", "--engine", "steam"])
    assert list(inline("Use `tracebed clean --list` or `tracebed clean ...`.")) == [["tracebed", "clean", "--list"]]


# -- figures that the same commands give on every machine: another figure is a change of tracebed ----------------------

TUTORIAL = (ROOT / "docs/tutorial/index.md").read_text(encoding="utf-8")
NOT_HERE = ("replay", "compare", "explain", "metrics", "nodes")
"""Commands with real processes, or that need a real run."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the commands of the tutorial ran, without those with real runs."""
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in blocks(TUTORIAL):
            for command in block.commands:
                if command[1] not in NOT_HERE and "--calibration" not in command:
                    result = call(*command[1:])
                    assert result.exit_code == 0, result.output
    return folder


def figures(run: Path) -> dict[str, Any]:
    return tb.Run.load(run).metrics()


def prose(page: str) -> str:
    return re.sub(r"\s+", " ", page)


def test_the_tutorial_has_the_figures_of_its_commands(done: Path) -> None:
    told = prose(TUTORIAL)
    log, small = (tb.describe(tb.read(done / name)) for name in ("w.parquet", "small.parquet"))
    for facts, text in (
        (log, "{jobs} jobs on {nodes} nodes in {span}, at a load of {load:.3g}"),
        (small, "{jobs} jobs in {span} remain, at a load of {load:.2g}"),
    ):
        values = {"span": duration_text(facts["span_s"]), "load": facts["offered_load"]}
        assert text.format(jobs=facts["jobs"], nodes=facts["system"]["nodes"], **values) in told
    ideal, delayed = figures(done / "runs/sim"), figures(done / "runs/sim-overheads")
    wait, response = cell(ideal["mean_wait_s"]), cell(ideal["mean_response_s"])
    assert f"after {cell(ideal['makespan_s'])} s, jobs wait {wait} s in the mean, and take {response} s" in told
    assert f"smaller than the predicted {cell(ideal['mean_bounded_slowdown'])}" in told
    more = delayed["mean_response_s"] / ideal["mean_response_s"] - 1
    assert f"response is {cell(delayed['mean_response_s'])} s, {more:.0%} more".replace("%", " %") in told
    assert f"bounded slowdown {cell(delayed['mean_bounded_slowdown'])}, about half" in told
    assert delayed["mean_bounded_slowdown"] / ideal["mean_bounded_slowdown"] == pytest.approx(0.5, abs=0.05)
    assert f"the same, {cell(delayed['mean_wait_s'])} s" in told


def test_the_lesson_of_the_tutorial_happens_at_its_speed_and_not_at_a_lower_one(done: Path) -> None:
    """A replay in virtual time, whose launches and resizes take milliseconds, stands for the one with processes."""
    ideal, work = figures(done / "runs/sim"), tb.read(done / "mixed.parquet")
    for speed in (1000, 200):
        run = done / f"virtual-{speed}"
        replay(work, virtual(4, 8), "pref", run, name="mixed", **replaying(speed=speed))
        real = figures(run)
        if speed == 1000:
            assert f"--speed {speed} -o runs/real" in TUTORIAL
            assert real["mean_response_s"] > 1.1 * ideal["mean_response_s"]
            assert real["mean_bounded_slowdown"] < ideal["mean_bounded_slowdown"]
            budget = tb.error_budget(work, [run]).frame.loc["mean_response_s"]
            assert budget["delays"] / budget["error"] > 0.5
        else:
            for name in ("makespan_s", "mean_wait_s", "mean_response_s", "mean_bounded_slowdown", "utilization"):
                assert ideal[name] == pytest.approx(real[name], rel=0.1)


@pytest.mark.slow
def test_the_page_on_perturbed_inputs_has_the_figures_of_its_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/how-to/perturbations.md").read_text(encoding="utf-8")
    (*makes, shows) = next(blocks(page)).commands
    for command in makes:
        call(*command[1:])
    found = json.loads(call(*shows[1:], "--json").stdout)
    intervals = [run["metrics"]["perturbed"]["mean_wait_s"] for run in found["runs"]]
    easy, conservative = (f"{cell(each['low'])} to {cell(each['high'])} s" for each in intervals)
    assert f"mean wait is {easy} under `easy` and {conservative} under `conservative`" in prose(page)
    wait = found["differences"][0]["metrics"]["mean_wait_s"]
    less, more = (100 * abs(wait[end]) / wait["base"] for end in ("high", "low"))
    assert f"in each of the {wait['pairs']} pairs, by {less:.1f} to {more:.1f} % of the mean" in prose(page)


@pytest.mark.slow
def test_the_page_on_rehearsals_has_the_fault_of_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/how-to/rehearse.md").read_text(encoding="utf-8")
    of_page("rehearse")(tmp_path / "rehearsal.yaml")
    (drawn, _), (faulty,) = (block.commands for block in blocks(page))
    for command in (drawn, faulty):
        call(*command[1:])
    faults = [text for text in tb.Run.load("runs/faults").info.warnings if text.startswith("fault at")]
    assert [line.strip() for line in page.splitlines() if line.startswith("    fault at")] == faults


@pytest.mark.slow
def test_the_page_on_cleaning_has_the_waits_of_its_log(reference_data: Callable[[str], Path], tmp_path: Path) -> None:
    page = prose((ROOT / "docs/how-to/clean.md").read_text(encoding="utf-8"))
    call("clean", str(reference_data("logs/cori-knl")), "--recipe", "cori-knl", "-o", str(tmp_path / "knl.parquet"))
    jobs = tb.read(tmp_path / "knl.parquet")
    logged, predicted = (run.metrics()["mean_wait_s"] for run in (tb.as_run(jobs), tb.simulate(jobs, "easy")))
    told = (
        f"KNL's mean wait was {logged:,.0f} s; EASY, with the machine for these jobs alone, predicts {predicted:,.0f} s"
    )
    assert told in page
    assert f"expect: {{records: 55600, jobs: {len(jobs.table)}}}" in page


@pytest.mark.slow
def test_only_a_baseline_finds_run_times_that_are_two_percent_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/how-to/validate-your-simulator.md says, with the file `mine.yaml` of the page."""
    monkeypatch.chdir(tmp_path)
    call("validate", "--recorded", "emulated", "-o", "suite")
    of_page("validate-your-simulator")(tmp_path / "mine.yaml")
    work = tb.read("suite/workloads/cirne.csv")
    settings: dict[str, Any] = {"nodes": 4, "calibration": "suite/calibration.yaml", "speed": 500}
    baseline = ("--baseline", "baseline.yaml")
    for factor, more, status in (
        (1.0, (*baseline, "--update-baseline", "better"), ExitCode.INCONCLUSIVE),
        (1.02, (), ExitCode.INCONCLUSIVE),
        (1.02, baseline, ExitCode.INACCURATE),
    ):
        longer = Workload(work.table.assign(run_time=factor * work.table["run_time"]), work.provenance)
        tb.simulate(longer, "easy", **settings).jobs.to_csv("cirne-easy.csv", index=False)
        result = call("validate", "mine.yaml", "-o", "validation", "--no-case-pages", *more)
        assert result.return_value == status, result.output


# -- the programs of the page about malleable programs: they run as printed --------------------------------------------

PAGE = ROOT / "docs" / "how-to" / "make-a-program-malleable.md"
ELASTIC = PAGE.with_name("elastic-programs.md")
SOLVER = """
#include <mpi.h>
static void iteration(MPI_Comm comm, double *data, int step);
PROGRAM
static void iteration(MPI_Comm comm, double *data, int step) {
    double sum;
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    MPI_Allreduce(data, &sum, 1, MPI_DOUBLE, MPI_SUM, comm);
    if (rank == 0) printf("%d: %d processes, sum %g\\n", step, size, sum);
    *data *= 2;
}
int main(int argc, char **argv) {
    double data = 1;
    MPI_Init(&argc, &argv);
    run(argv, &data, 1, 4);
    MPI_Finalize();
    return 0;
}
"""
TEXT = PAGE.read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
PRINTED = dict(re.findall(r"^`python (\w+\.py)` prints\n\n```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", [*FILES])
def test_a_documented_program_runs_as_printed(name: str, tmp_path: Path) -> None:
    for file, code in FILES.items():
        (tmp_path / file).write_text(code)
    command, environment = [sys.executable, name], {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("PYTHONUNBUFFERED", None)  # it makes `print` write a line in pieces; another process may be between
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=GUARD_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    if name in PRINTED:
        assert sorted(done.stdout.splitlines()) == sorted(PRINTED[name].splitlines())
    else:  # without an administrator
        assert done.stdout.startswith("begins with ") and done.stdout.count("\n") == 1


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_documented_lines_of_c_compile(tmp_path: Path) -> None:
    found = re.search(r"^    (#include \"tracebed_malleable.h\"\n)\n((?:    .*\n)+)", TEXT, re.MULTILINE)
    assert found is not None
    body = f"{found[1]}#include <omp.h>\nvoid iteration(int);\nint run(int iterations) {{\n{found[2]}return 0;\n}}\n"
    (tmp_path / "lines.c").write_text(body)
    command = ["gcc", "-fopenmp", "-Wall", "-Werror", f"-I{INCLUDE}", "-c", "lines.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = re.search(r"^    #include <omp.h>\n(?:    .*\n|\n)+", TEXT, re.MULTILINE)
    assert found is not None
    (tmp_path / "steps.c").write_text(textwrap.dedent(found[0]))
    subprocess.run(["gcc", "-fopenmp", "-Wall", "-Werror", "steps.c", "-o", "steps"], cwd=tmp_path, check=True)


@pytest.mark.skipif(find_spec("mpi4py") is None or shutil.which("cc") is None, reason="pip install 'tracebed[mpi]'")
def test_the_documented_program_of_mpi_goes_through_its_sizes(tmp_path: Path) -> None:
    """Data and step of the spawned processes are those of the others."""
    found = re.search(r"^    #include <mpi.h>\n(?:    .*\n|\n)+", ELASTIC.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    (tmp_path / "solver.c").write_text(SOLVER.replace("PROGRAM", textwrap.dedent(found[0])))
    build = [compiler(), "-Wall", "-Werror", f"-I{INCLUDE}", "solver.c", "-o", "solver"]
    subprocess.run(build, cwd=tmp_path, check=True)
    plan = iter([3, 3, 1, 1])
    with ResourceManager(lambda pid, size, sizes: Answer.between(size, next(plan))) as manager:
        environment = {**os.environ, **LOOPBACK, **launch.ROOT, **manager.variables}
        printed = run_until([*mpiexec(), str(tmp_path / "solver")], environment, tmp_path / "output", GUARD_S)
    # Each process has 1 at the start, and doubles it in each step.
    expected = [(0, 1, 1), (1, 3, 6), (2, 3, 12), (3, 1, 8)]
    assert printed.splitlines() == [f"{step}: {size} processes, sum {total}" for step, size, total in expected]


# -- the YAML blocks; a recipe, claims and plots among them are valid --------------------------------------------------

BLOCK = re.compile(r"^(?P<indent> *)```ya?ml\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


def yaml_blocks() -> list[tuple[str, str]]:
    """Return (page and line, text) of each YAML block."""
    found = []
    for page in sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]):
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append((f"{page.relative_to(ROOT)}:{line}", match["text"]))
    return found


BLOCKS = yaml_blocks()


def parsed_block(name: str, key: str) -> Any:
    """Return the first block of a page that has a key."""
    for where, text in BLOCKS:
        parsed = YamlFile.parse(text, where, hint="").raw
        if where.startswith(name) and isinstance(parsed, dict) and key in parsed:
            return parsed
    raise AssertionError(f"{name} has no block with {key}")


@pytest.mark.parametrize(("where", "text"), BLOCKS, ids=[where for where, _ in BLOCKS])
def test_a_block_is_yaml(where: str, text: str) -> None:
    assert isinstance(YamlFile.parse(text, where, hint="").raw, dict | list)


def test_yaml_is_in_fenced_blocks() -> None:
    """YAML in an indented block would escape the test above."""
    assert len(BLOCKS) > 25
    for page in sorted(ROOT.glob("docs/**/*.md")):
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        keys = re.findall(r"^    [a-z_]+: *(?:#.*|\{.*|\[.*)?$", prose, re.MULTILINE)
        assert not keys, f"{page.name}: {keys}"


def test_the_recipe_of_the_documentation_is_one(tmp_path: Path) -> None:
    text = next(text for where, text in BLOCKS if where.startswith("docs/how-to/clean.md"))
    (tmp_path / "recipe.yaml").write_text(text)
    recipe = load_recipe(str(tmp_path / "recipe.yaml"))
    assert (len(recipe.steps), recipe.expect) == (3, {"records": 55600, "jobs": 41524})


@pytest.mark.parametrize("page", ["docs/reference/ledger.md", "docs/reference/experiment.md"])
def test_the_claims_of_the_documentation_are_valid(page: str) -> None:
    assert [Claim(**each) for each in parsed_block(page, "published")["published"]]


def test_the_plots_of_the_documentation_are_valid() -> None:
    views = parsed_block("docs/reference/experiment.md", "plots")
    assert [Plot(**each) for each in views["plots"].values()]
    assert SensitivitySpec(**views["sensitivity"]).choices
