"""Mistakes in the code of users: an error of theirs, with file, line, exception and mend, never an internal error."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import tracebed.api as tb
from tests import packages
from tracebed.benchmarks.applications.base import APPLICATIONS
from tracebed.converters.formats.format import FORMATS
from tracebed.converters.models.registry import MODELS
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.registry import Registry
from tracebed.machine.calendar import SOURCES as OUTAGES
from tracebed.machine.sources import SOURCES as MACHINES
from tracebed.orchestrator.replay.batch.base import BATCH_SYSTEMS
from tracebed.orchestrator.scheduling.placement import PLACEMENTS
from tracebed.orchestrator.scheduling.scheduler import PolicyError
from tracebed.orchestrator.testbeds.base import TESTBEDS
from tracebed.orchestrator.testbeds.provider import PROVIDERS
from tracebed.studies.papers.base import PAPERS
from tracebed.testing import check_policy
from tracebed.validation.export.exporter import EXPORTERS
from tracebed.validation.report.sections import SECTIONS
from tracebed.validation.simulators.simulator import SIMULATORS

NUMBER = 3
HEAD = """from dataclasses import dataclass
from typing import ClassVar
from tracebed.orchestrator.scheduling.state import Note, Start, Wake

@dataclass(frozen=True)
class Mine:
    malleable: ClassVar[bool] = False
"""
DECIDE = "    def decide(self, state):\n        "
POLICIES = {
    "attribute": (DECIDE + "state.nothing\n        yield\n", 9, "AttributeError: 'State' object has no attribute"),
    "inside": (DECIDE + "state.reservation('x')\n        yield\n", 9, "failed: TypeError"),
    "open": (DECIDE + "open('/absent')\n        yield\n", 9, "failed: FileNotFoundError"),
    "exit": (DECIDE + "exit(0)\n        yield\n", 9, "failed: SystemExit: 0"),
    "recursion": (DECIDE + "yield from self.decide(state)\n", 9, "failed: RecursionError"),
    "no yield": (DECIDE + "return None\n", 8, "decide returns NoneType, not decisions (`decide` is a generator"),
    "coroutine": (
        "    async def decide(self, state):\n        return 1\n",
        8,
        "decide returns coroutine, not decisions",
    ),
    "tuple": (DECIDE + "yield (3, 4)\n", 9, "yields (3, 4), not a decision (yield one of Start, Resize"),
    "none": (DECIDE + "yield None\n", 9, "yields None, not a decision"),
    "class": (DECIDE + "yield Start\n", 9, "not a decision"),
    "text for a job": (DECIDE + "yield Start('a', 1)\n", 9, "the decision has invalid values: TypeError"),
    "no such job": (DECIDE + "yield Start(10**6, 1)\n", 9, "the decision has invalid values: IndexError"),
    "text for a time": (DECIDE + "yield Wake('soon')\n", 9, "the decision has invalid values: TypeError"),
    "nan": (DECIDE + "yield Wake(float('nan'))\n", 9, "yields Wake(at=nan), not a decision"),
    "impossible": (DECIDE + "yield Start(state.queue.head, 99)\n", 9, "on 99 nodes: the job runs on"),
    "delegated": (
        DECIDE + "yield from self.more(state)\n    def more(self, state):\n        yield Start(state.queue.head, 99)\n",
        11,
        "on 99 nodes: the job runs on",
    ),
    "endless": (DECIDE + "while True:\n            yield Note('n', 1.0)\n", 10, "times in one call, and goes on"),
    "no method": ("    decide = 5\n", 5, "decide cannot be called: TypeError"),
    "no state": ("    def decide(self):\n        yield\n", 5, "decide cannot be called: TypeError"),
    "no default": ("    patience_s: float\n" + DECIDE + "yield\n", 8, "the parameter 'patience_s' has no default"),
    "post init": ("    def __post_init__(self):\n        self.x = 3\n" + DECIDE + "yield\n", 9, "FrozenInstanceError"),
    "view": ("    def view(self, jobs):\n        return None\n" + DECIDE + "yield\n", 8, "view returns NoneType"),
    "view fails": ("    def view(self, jobs):\n        jobs.no\n" + DECIDE + "yield\n", 9, "failed: AttributeError"),
    "type": ("    x: Foo = 3\n" + DECIDE + "yield\n", 8, "cannot be imported: NameError"),
    "import exits": (DECIDE + "yield\nimport sys\nsys.exit(0)\n", 11, "cannot be imported: SystemExit: 0"),
}


@pytest.fixture(scope="module")
def workload() -> tb.Workload:
    return tb.scale(tb.generate("cirne", jobs=8, nodes=16, seed=3), nodes=4, arrivals=0.01)


def written(name: str, folder: Path) -> tuple[str, str, str]:
    """Write a policy to `mine.py`, and return how it is named, and the place and the text of its error."""
    code, line, text = POLICIES[name]
    (folder / "mine.py").write_text(HEAD + code)
    return f"{folder / 'mine.py'}:Mine", f"{folder / 'mine.py'}:{line}: ", text


@pytest.mark.parametrize("name", POLICIES)
def test_a_mistake_in_a_policy_has_its_line(name: str, tmp_path: Path, workload: tb.Workload) -> None:
    policy, place, text = written(name, tmp_path)
    with pytest.raises(tb.TracebedError) as raised:
        tb.simulate(workload, policy)
    assert str(raised.value).startswith(place) and text in str(raised.value)
    assert raised.value.hint and raised.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("name", ["attribute", "impossible", "no yield"])
def test_a_replay_has_the_line_too(name: str, tmp_path: Path, workload: tb.Workload) -> None:
    policy, place, text = written(name, tmp_path)
    with pytest.raises(PolicyError) as raised:
        tb.replay(workload, policy, "virtual", speed=1000.0)
    assert str(raised.value).startswith(place) and text in str(raised.value)


@pytest.mark.parametrize("name", ["attribute", "impossible", "no yield", "endless"])
def test_check_policy_has_the_line_too(name: str, tmp_path: Path) -> None:
    policy, place, text = written(name, tmp_path)
    with pytest.raises(PolicyError) as raised:
        check_policy(policy, cases=2)
    assert str(raised.value).startswith(place) and text in str(raised.value) and "policy Mine" in str(raised.value)


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from tracebed.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("quiet", [["-q"], []])
def test_workers_of_an_experiment_have_the_line_too(tmp_path: Path, workload: tb.Workload, quiet: list[str]) -> None:
    _, place, text = written("attribute", tmp_path)
    tb.write(workload, tmp_path / "w.parquet")
    (tmp_path / "e.yaml").write_text("workloads: {w: w.parquet}\npolicies: [easy, 'mine.py:Mine']\n")
    done = command(*quiet, "experiment", "e.yaml", "-o", "out", "--workers", "2", folder=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert f"tracebed: {place}policy Mine" in done.stderr and text in done.stderr


def test_the_command_prints_a_line_and_with_v_the_traceback(tmp_path: Path, workload: tb.Workload) -> None:
    policy, place, text = written("attribute", tmp_path)
    tb.write(workload, tmp_path / "w.parquet")
    words = ["simulate", "w.parquet", "--policy", policy, "-o", "run"]
    done = command("-q", *words, folder=tmp_path)
    assert done.returncode == ExitCode.USAGE and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"tracebed: {place}policy Mine") and text in done.stderr
    assert "Traceback" in command("-v", *words, folder=tmp_path).stderr


PACKAGE = '''
from dataclasses import dataclass
from typing import ClassVar

from tracebed.converters.formats.format import Format
from tracebed.machine.calendar import OutageSource
from tracebed.machine.sources import MachineSource
from tracebed.orchestrator.executors import Options
from tracebed.validation.export.exporter import Exporter
from tracebed.validation.metrics import Metric
from tracebed.validation.report.sections import Section
from tracebed.validation.simulators.simulator import ExternalSimulator


def fails(*arguments, **more):
    return {}["missing"]


def wrong(*arguments, **more):
    return "wrong"


def failing(jobs: int, *, seed: int = 0):
    """Draw nothing."""
    return {}["missing"]


def drawing(jobs: int, *, seed: int = 0):
    """Draw a number."""
    return 3


def begins(mark):
    return lambda file: file.head.startswith(mark)


FAILS = Format("fails", "fails", begins(b"%fails"), suffixes=(".fails",), read=fails, write=fails)
WRONG = Format("wrong", "wrong", begins(b"%wrong"), suffixes=(".wrong",), read=wrong)
EXPORT_FAILS, EXPORT_WRONG = Exporter("fails", fails), Exporter("wrong", wrong)
SIMULATOR = ExternalSimulator(name="fails", title="fails", read=fails)
SIMULATOR_WRONG = ExternalSimulator(name="wrong", title="wrong", read=wrong)
METRIC = Metric(name="mine", label="mine", definition=fails, docs="fails")
METRIC_WRONG = Metric(name="mine", label="mine", definition=wrong, docs="wrong")
SECTION = Section("mine", 5, fails, scope="runs")
MACHINE = MachineSource("a wrong machine", lambda path: path.suffix == ".wrong", wrong)
OUTAGES = OutageSource("wrong outages", lambda text: text.startswith("%wrong"), wrong)
ITEMS = OutageSource("items", lambda text: text.startswith("%items"), lambda *arguments: [3])


class Executor:
    options = Options
    predicts = True

    def accepts(self, machine, setup):
        return True

    def execute(self, workload, machine, setup, options):
        return fails()


EXECUTOR = Executor()


@dataclass(frozen=True)
class Policy:
    malleable: ClassVar[bool] = False

    def decide(self, state):
        state.nothing
        yield
'''
LINES = PACKAGE.splitlines()
FAILS, WRONG = LINES.index('    return {}["missing"]') + 1, LINES.index("def wrong(*arguments, **more):") + 1
DRAW_FAILS, DRAW_WRONG = (
    LINES.index('    """Draw nothing."""') + 2,
    LINES.index("def drawing(jobs: int, *, seed: int = 0):") + 1,
)
NOTHING = LINES.index("        state.nothing") + 1
ITEMS = next(number for number, line in enumerate(LINES, 1) if line.startswith("ITEMS"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, workload: tb.Workload) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    points = {
        "tracebed.formats": {"fails": "mine:FAILS", "wrong": "mine:WRONG"},
        "tracebed.models": {"fails": "mine:failing", "wrong": "mine:drawing"},
        "tracebed.exporters": {"fails": "mine:EXPORT_FAILS", "wrong": "mine:EXPORT_WRONG"},
        "tracebed.simulators": {"fails": "mine:SIMULATOR", "wrong": "mine:SIMULATOR_WRONG"},
        "tracebed.policies": {"fails": "mine:Policy"},
        "tracebed.testbeds": {"fails": "mine:fails", "wrong": "mine:wrong"},
        "tracebed.placements": {"fails": "mine:fails", "wrong": "mine:wrong"},
        "tracebed.machines": {"wrong": "mine:MACHINE"},
        "tracebed.outages": {"wrong": "mine:OUTAGES", "items": "mine:ITEMS"},
        "tracebed.executors": {"failing": "mine:EXECUTOR"},
        "tracebed.batch_systems": {"wrong": "mine:wrong"},
        "tracebed.experiments": {"fails": "mine:fails", "wrong": "mine:wrong"},
    }
    tb.write(workload, folder / "w.parquet")
    tb.simulate(workload, "easy").save(folder / "sim")
    (folder / "fails.txt").write_text("%fails\n1 2\n")
    (folder / "wrong.txt").write_text("%wrong\n1 2\n")
    (folder / "nodes.yaml").write_text("testbed: fails\nnodes: [{name: 'n[1-4]', cores: 2, emulated: true}]\n")
    (folder / "wrong.yaml").write_text("testbed: wrong\nnodes: [{name: 'n[1-4]', cores: 2, emulated: true}]\n")
    (folder / "a.wrong").write_text("a wrong machine\n")
    (folder / "items.txt").write_text("%items\n")
    return packages.install(folder, {"mine.py": PACKAGE}, points)


SIMULATE = "simulate w.parquet --policy easy -o out/i"
REPLAY = "replay w.parquet --policy easy --speed 1000 -o out/e"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "line", "text"),
    [
        ("convert fails.txt -o out/a.csv", FAILS, "package mine failed: KeyError: 'missing' (correct the file; -v"),
        ("convert w.parquet -o out/a.fails", FAILS, "package mine failed: KeyError: 'missing'"),
        ("convert wrong.txt -o out/a.csv", WRONG, "format wrong returns str (return Workload)"),
        ("generate fails --jobs 3 -o out/b.csv", DRAW_FAILS, "failed: KeyError"),
        ("generate wrong --jobs 3 -o out/b.csv", DRAW_WRONG, "model wrong returns int (return Workload)"),
        ("export sim --to fails -o out/c", FAILS, "failed: KeyError"),
        ("export sim --to wrong -o out/d", WRONG, "export format wrong returns str (return list)"),
        ("simulate w.parquet --policy fails -o out/f", NOTHING, "policy Policy at t = "),
        (f"{REPLAY} --inventory nodes.yaml", FAILS, "failed: KeyError"),
        (f"{REPLAY} --inventory wrong.yaml", WRONG, "testbed wrong returns str, without start, receive, stop"),
        (f"{SIMULATE} --grid 2x2 --placement fails", FAILS, "failed: KeyError"),
        (f"{SIMULATE} --grid 2x2 --placement wrong", WRONG, "placement wrong returns 'wrong' (return 1 of the idle"),
        (f"{SIMULATE} --machine a.wrong", WRONG, "the reader of a wrong machine returns str (return Machine)"),
        (f"{SIMULATE} --outages wrong.txt", WRONG, "the reader of wrong outages returns str (return Outage)"),
        (f"{SIMULATE} --outages items.txt", ITEMS, "the reader of items returns int (return Outage)"),
        (f"{SIMULATE} --with failing", FAILS, "failed: KeyError"),
        ("replay w.parquet --scheduler wrong -o out/j", WRONG, "batch system wrong returns str, without submit, poll"),
        ("experiment fails -o out/k", FAILS, "failed: KeyError"),
        ("experiment wrong -o out/l", WRONG, "experiment wrong returns str (return Findings)"),
        ("import fails.txt --from fails --as predicted --workload w.parquet -o out/g", FAILS, "failed: KeyError"),
        (
            "import fails.txt --from wrong --as predicted --workload w.parquet -o out/h",
            WRONG,
            "simulator wrong returns str (return Run)",
        ),
    ],
)
def test_a_mistake_in_a_package_has_its_line(site: Path, words: str, line: int, text: str) -> None:
    folder = site.parent
    (folder / "out").mkdir(exist_ok=True)
    done = packages.tracebed(site, "-q", *words.split(), cwd=folder)
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert f"tracebed: {site / 'mine.py'}:{line}: " in done.stderr and text in done.stderr


OF_CLASSES = (FORMATS, EXPORTERS, SECTIONS, SIMULATORS, MACHINES, OUTAGES)
OF_FUNCTIONS = (MODELS, PLACEMENTS, TESTBEDS, BATCH_SYSTEMS, PAPERS)


@pytest.mark.parametrize(
    ("registry", "wanted"),
    [
        *((registry, f"an instance of {registry.kind.__name__}") for registry in OF_CLASSES),
        *((registry, "a function") for registry in OF_FUNCTIONS),
        *((registry, "a class") for registry in (PROVIDERS, APPLICATIONS)),
    ],
    ids=lambda value: getattr(value, "noun", ""),
)
def test_an_entry_point_that_names_something_else_is_an_error_of_the_package(
    registry: Registry[Any], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number in the module of this test is no extension of any kind."""
    entry = EntryPoint("mine", f"{__name__}:NUMBER", registry.group)
    own = type(registry)(registry.group, registry.noun, registry.kind)
    monkeypatch.setitem(vars(own), "entries", {"mine": entry})
    with pytest.raises(InputError) as raised:
        own.load("mine")
    error = raised.value
    assert (error.what, error.where, error.hint) == (
        f"{registry.noun} mine is not {wanted}: int",
        f"{__name__}:NUMBER",
        f"the entry point names {wanted}",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "entry", "line", "text"),
    [
        ("metrics", "METRIC", FAILS, "metric mine failed: KeyError"),
        ("metrics", "METRIC_WRONG", WRONG, "metric mine returns str (return Real)"),
        ("metrics", "ABSENT", None, "metric mine cannot be loaded"),
    ],
)
def test_a_mistake_in_a_metric_has_its_line(
    site: Path, tmp_path: Path, group: str, entry: str, line: int | None, text: str
) -> None:
    own = packages.install(tmp_path, {"mine.py": PACKAGE}, {f"tracebed.{group}": {"mine": f"mine:{entry}"}})
    done = packages.tracebed(own, "metrics", str(site.parent / "sim"), cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE, done.stderr
    place = f"{own / 'mine.py'}:{line}: " if line is not None else "mine:ABSENT: "
    assert f"tracebed: {place}" in done.stderr and text in done.stderr
